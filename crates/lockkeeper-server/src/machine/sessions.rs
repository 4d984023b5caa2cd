//! Sessions and when they expire.
//!
//! Time is an argument. Deadlines are rounded up to the next tick, as in ZooKeeper. A touch within the same tick costs
//! nothing, and sessions expire in groups: never early, at most one tick late.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

/// Identifies a connection; unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    pub timeout: Duration,
    /// The password that resumes it.
    pub password: [u8; 16],
    pub connection: Option<ConnectionId>,
    /// The user of this machine to whom it belongs, if it has had a connection through the Unix socket since the start.
    user: Option<u32>,
    /// The tick at whose beginning it expires.
    deadline: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("timeout", &self.timeout)
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

/// All sessions that have not ended.
#[derive(Clone, Debug)]
pub struct Sessions {
    tick: Duration,
    by_id: BTreeMap<i64, Session>,
    buckets: BTreeMap<u64, BTreeSet<i64>>,
    /// The number of sessions of each user of this machine.
    by_user: BTreeMap<u32, usize>,
}

impl Sessions {
    /// Creates a set without sessions. They expire at multiples of `tick`.
    pub fn new(tick: Duration) -> Self {
        let (by_id, buckets, by_user) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { tick: tick.max(Duration::from_millis(1)), by_id, buckets, by_user }
    }

    /// Adds a session with its full timeout.
    pub fn insert(&mut self, id: i64, timeout: Duration, password: [u8; 16], now: Duration) {
        let deadline = self.deadline(now, timeout);
        self.remove(id);
        self.by_id.insert(id, Session { timeout, password, connection: None, user: None, deadline });
        self.buckets.entry(deadline).or_default().insert(id);
    }

    /// Returns the session, unless it has ended.
    pub fn get(&self, id: i64) -> Option<&Session> {
        self.by_id.get(&id)
    }

    /// Sets the connection of a session.
    pub fn set_connection(&mut self, id: i64, connection: Option<ConnectionId>) {
        if let Some(session) = self.by_id.get_mut(&id) {
            session.connection = connection;
        }
    }

    /// Sets the user of this machine to whom a session belongs.
    pub(crate) fn set_user(&mut self, id: i64, uid: u32) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        let before = session.user.replace(uid);
        if before != Some(uid) {
            self.discount(before);
            *self.by_user.entry(uid).or_default() += 1;
        }
    }

    /// Returns the number of sessions of a user of this machine.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.by_user.get(&uid).copied().unwrap_or(0)
    }

    fn discount(&mut self, user: Option<u32>) {
        if let Some(uid) = user
            && let Entry::Occupied(mut count) = self.by_user.entry(uid)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Sets a newly granted timeout, which counts from the next touch.
    pub fn set_timeout(&mut self, id: i64, timeout: Duration) {
        if let Some(session) = self.by_id.get_mut(&id) {
            session.timeout = timeout;
        }
    }

    /// Restarts the timeout of a session; returns false if it has ended.
    pub fn touch(&mut self, id: i64, now: Duration) -> bool {
        let Some(timeout) = self.by_id.get(&id).map(|session| session.timeout) else { return false };
        let deadline = self.deadline(now, timeout);
        let session = self.by_id.get_mut(&id).expect("found above");
        // Time does not go back, but the client may have resumed with a shorter timeout: then the deadline moves
        // forward.
        if deadline != session.deadline {
            let old = std::mem::replace(&mut session.deadline, deadline);
            self.unlist(old, id);
            self.buckets.entry(deadline).or_default().insert(id);
        }
        true
    }

    /// Removes an ended session.
    pub fn remove(&mut self, id: i64) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        self.unlist(session.deadline, id);
        self.discount(session.user);
        Some(session)
    }

    /// Returns the sessions whose deadline has passed, oldest deadline first. They stay until they are removed.
    pub fn expired(&self, now: Duration) -> impl Iterator<Item = i64> {
        let passed = self.ticks(now);
        self.buckets.range(..=passed).flat_map(|(_, ids)| ids.iter().copied())
    }

    /// Returns the number of sessions.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns all sessions by id.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Session)> {
        self.by_id.iter().map(|(id, session)| (*id, session))
    }

    /// Returns the deadlines, with the sessions that expire at each one unless they are touched.
    pub fn expiries(&self) -> impl ExactSizeIterator<Item = (Duration, &BTreeSet<i64>)> {
        self.buckets.iter().map(|(deadline, ids)| (self.time(*deadline), ids))
    }

    /// Returns each session behind this one in the order of the deadlines: its deadline, how many expire then, and its
    /// id.
    pub(crate) fn expiries_behind(
        &self,
        last: Option<(Duration, i64)>,
    ) -> impl Iterator<Item = (Duration, usize, i64)> {
        let from = last.map_or(0, |(deadline, _)| self.ticks(deadline));
        self.buckets.range(from..).flat_map(move |(deadline, ids)| {
            let after = last.filter(|_| *deadline == from).map_or(Unbounded, |(_, id)| Excluded(id));
            ids.range((after, Unbounded)).map(move |id| (self.time(*deadline), ids.len(), *id))
        })
    }

    fn time(&self, ticks: u64) -> Duration {
        Duration::from_nanos(u64::try_from(self.tick.as_nanos()).unwrap_or(u64::MAX).saturating_mul(ticks))
    }

    fn ticks(&self, time: Duration) -> u64 {
        u64::try_from(time.as_nanos() / self.tick.as_nanos()).unwrap_or(u64::MAX)
    }

    fn deadline(&self, now: Duration, timeout: Duration) -> u64 {
        self.ticks(now.saturating_add(timeout)).saturating_add(1)
    }

    fn unlist(&mut self, deadline: u64, id: i64) {
        if let Some(ids) = self.buckets.get_mut(&deadline) {
            ids.remove(&id);
            if ids.is_empty() {
                self.buckets.remove(&deadline);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_session_expires_at_the_tick_after_its_timeout_and_never_before() {
        let mut sessions = Sessions::new(MS(100));
        sessions.insert(7, MS(250), [0; 16], MS(30));
        assert_eq!(sessions.expiries().next().unwrap().0, MS(300));
        for now in 0..300 {
            assert_eq!(sessions.expired(MS(now)).count(), 0, "expired at {now} ms");
        }
        assert!(sessions.expired(MS(300)).eq([7]));
    }

    #[test]
    fn a_deadline_on_a_tick_moves_to_the_next_one() {
        let mut sessions = Sessions::new(MS(100));
        sessions.insert(7, MS(200), [0; 16], MS(100));
        assert_eq!(sessions.expired(MS(399)).count(), 0);
        assert!(sessions.expired(MS(400)).eq([7]));
    }

    #[test]
    fn a_new_timeout_counts_from_the_next_touch() {
        let mut sessions = Sessions::new(MS(100));
        sessions.insert(7, MS(200), [0; 16], MS(0));
        sessions.set_timeout(7, MS(500));
        sessions.set_timeout(8, MS(500));
        assert!(sessions.touch(7, MS(50)));
        assert_eq!(sessions.expired(MS(599)).count(), 0);
        assert!(sessions.expired(MS(600)).eq([7]));
    }

    #[test]
    fn a_touch_gives_the_full_timeout_and_an_ended_session_cannot_be_touched() {
        let mut sessions = Sessions::new(MS(100));
        sessions.insert(7, MS(200), [0; 16], MS(0));
        assert!(sessions.touch(7, MS(290)));
        assert_eq!(sessions.expired(MS(499)).count(), 0);
        assert!(sessions.expired(MS(500)).eq([7]));
        assert!(sessions.remove(7).is_some());
        assert!(!sessions.touch(7, MS(500)));
        assert_eq!(sessions.expired(MS(5000)).count(), 0);
        assert_eq!(sessions.expiries().len(), 0);
    }

    #[test]
    fn sessions_of_one_tick_expire_together() {
        let mut sessions = Sessions::new(MS(100));
        for id in 1..=10 {
            sessions.insert(id, MS(200), [0; 16], MS(u64::try_from(id).unwrap()));
        }
        assert_eq!(sessions.expired(MS(300)).count(), 10);
    }
}
