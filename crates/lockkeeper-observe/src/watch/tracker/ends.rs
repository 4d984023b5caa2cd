//! How holds and waits ended.

use std::collections::HashMap;
use std::sync::Arc;

use lockkeeper::admin::{ContenderInfo, SessionId};
use lockkeeper::contest::node_of;
use lockkeeper_core::Tombstone;

use super::super::fact::{Contender, End, Fact, Moment, What};
use super::lock::{Entry, grant, named};
use super::{MAX_UNEXPLAINED, SETTLE, Tracker};

/// How far apart the events of one transaction may arrive, in milliseconds. A client needs longer for two releases, one after the other,
/// unless its server is on the same machine and writes no disk.
const TOGETHER_MS: u64 = 1;

/// A contender whose node was deleted, until it is known how its hold or its wait ended.
pub(super) struct Ending {
    pub(super) lock: Arc<str>,
    pub(super) name: String,
    pub(super) entry: Entry,
    pub(super) info: Option<ContenderInfo>,
    /// The read of its node is under way.
    pub(super) awaits: bool,
    pub(super) at: Moment,
    /// Its deletion was not seen.
    pub(super) is_about: bool,
}

/// A hold whose end is not known, until its owner records it.
pub(super) struct Unexplained {
    pub(super) contender: Arc<Contender>,
    pub(super) info: ContenderInfo,
}

impl Ending {
    fn is_contender(&self) -> bool {
        self.info.as_ref().is_none_or(|info| !info.session.is_none())
    }
}

impl Tracker {
    /// When [`Tracker::settle`] has facts to add, in milliseconds since the observer's start.
    pub fn settles_at(&self) -> Option<i64> {
        // The answer to a read settles it.
        let is_due = |ending: &&Ending| !self.may_learn_more(ending);
        self.ending.iter().filter(is_due).map(|ending| ending.at.ms).min().map(|ms| ms + SETTLE.as_millis() as i64)
    }

    /// A read that is under way may tell more about it.
    fn may_learn_more(&self, ending: &Ending) -> bool {
        ending.awaits || self.locks.get(&ending.lock).is_some_and(|lock| lock.data.is_under_way())
    }

    /// Tells how holds and waits ended for which no more evidence will come. Call it when [`Tracker::settles_at`] has passed.
    pub fn settle(&mut self, now: Moment) {
        let is_due = |ending: &Ending| now.since(ending.at) >= SETTLE && !self.may_learn_more(ending);
        let due: Vec<_> = self.ending.iter().enumerate().filter(|(_, ending)| is_due(ending)).collect();
        if due.is_empty() {
            return;
        }
        let mut together = HashMap::<_, Vec<_>>::new();
        for ending in &self.ending {
            if let Some(info) = &ending.info {
                together.entry(info.session).or_default().push(ending.at.ms);
            }
        }
        let ends: Vec<_> = due.iter().map(|(at, ending)| (*at, self.end(ending, &together))).collect();
        let explained: Vec<_> = ends.iter().filter_map(|(at, _)| self.record_of(&self.ending[*at])).collect();
        for (at, how) in &ends {
            let ending = &self.ending[*at];
            if !ending.is_contender() {
                continue;
            }
            let facts = told(ending, how);
            if let (Some(Fact { what: What::Ended { contender, how: End::Unknown, .. }, .. }), Some(info)) =
                (facts.last(), &ending.info)
                && info.owner.is_some()
            {
                self.unexplained.push_back(Unexplained { contender: contender.clone(), info: info.clone() });
            }
            self.facts.extend(facts);
        }
        let surplus = self.unexplained.len().saturating_sub(MAX_UNEXPLAINED);
        self.unexplained.drain(..surplus);
        let mut at = 0;
        let mut gone = ends.iter().map(|(at, _)| *at).peekable();
        self.ending.retain(|_| {
            at += 1;
            gone.next_if_eq(&(at - 1)).is_none()
        });
        // Each record is of one hold. A larger position does not change a smaller one.
        let mut explained = explained;
        explained.sort_unstable();
        explained.dedup();
        explained.into_iter().rev().for_each(|at| _ = self.recorded.remove(at));
        let oldest = self.ending.iter().map(|ending| ending.at).min().unwrap_or(now);
        self.broken.retain(|(_, _, noted)| oldest.min(now).since(*noted) < 10 * SETTLE);
    }

    /// The position of the record of its owner.
    fn record_of(&self, ending: &Ending) -> Option<usize> {
        let info = ending.info.as_ref().filter(|_| ending.entry.granted.is_some())?;
        self.recorded.iter().position(|record| record.is_of(&ending.lock, info))
    }

    /// How it ended, by all evidence so far. `together`: the times of the ends of each session.
    fn end(&self, ending: &Ending, together: &HashMap<SessionId, Vec<i64>>) -> End {
        let node = node_of(&ending.lock, &ending.name);
        if let Some((_, broken, _)) = self.broken.iter().rev().find(|(path, ..)| *path == node) {
            return broken.clone();
        }
        if let Some(record) = self.record_of(ending).and_then(|at| self.recorded.get(at)) {
            return record.how.clone();
        }
        let lock = self.locks.get(&ending.lock);
        let Some(info) = &ending.info else { return End::Unknown };
        let attempt = info.id;
        let with_tombstones = lock.filter(|lock| lock.tombstones > 0);
        let tombstones =
            with_tombstones.into_iter().flat_map(|lock| lock.entries.keys()).filter_map(|name| Tombstone::read(name));
        if attempt.is_some() && tombstones.into_iter().any(|tombstone| Some(tombstone.id) == attempt) {
            return End::SessionOver;
        }
        if let Some(request) = info.revocation.as_ref().filter(|request| request.refused.is_none()) {
            return End::Revoked { by: request.to_string() };
        }
        let freed = lock.and_then(|lock| lock.freed);
        if ending.is_about {
            return End::Unknown;
        }
        if freed == Some(info.czxid) || self.sessions.contains_key(&info.session) {
            return End::Released;
        }
        // All ends of the session that are not told yet.
        let times = together.get(&info.session).map_or(&[][..], Vec::as_slice);
        let is_near = |at: &i64| (at - ending.at.ms).unsigned_abs() <= TOGETHER_MS;
        // A client of this library releases several locks in one moment too.
        let went_together = times.len() > 1 && times.iter().all(is_near);
        if went_together && info.owner.is_none() { End::SessionOver } else { End::Unknown }
    }
}

/// The facts about a contender that has left.
fn told(ending: &Ending, how: &End) -> Vec<Fact> {
    let Ending { lock, name, entry, info, at, is_about, .. } = ending;
    let (at, how) = (*at, how.clone());
    let contender = named(lock, name, info.as_ref());
    let mut facts = Vec::new();
    if !entry.is_announced {
        let what = What::Entered { contender: contender.clone() };
        facts.push(Fact { at: entry.entered, what, about: entry.is_about });
        if entry.granted.is_some() {
            facts.push(grant(lock, name, entry, info.as_ref()));
        }
    }
    facts.push(match entry.granted {
        Some(granted) => {
            let held = at.since(granted.at);
            Fact { at, what: What::Ended { contender, held, how }, about: *is_about || granted.is_latest }
        }
        None => {
            let waited = at.since(entry.entered);
            let about = *is_about || entry.is_about || entry.may_have_held;
            Fact { at, what: What::LeftWaiting { contender, waited, how }, about }
        }
    });
    facts
}
