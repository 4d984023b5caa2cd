//! Contenders that wait for each other in a ring.
//!
//! A hold of a lock ends when its owner releases it, and an owner that waits for another lock may not release before it has that one.
//! Who keeps a hold while waiting is known in two ways:
//!
//! - The waiting node says it: a `lockkeeper run` inside the command of another one, and a request with
//!   [`while_holding`](lockkeeper::Acquire::while_holding). A ring of such waits is [certain](Certainty::Certain): none of them ends as
//!   long as they all wait.
//! - The waiter and the holder of another lock have one session, so they are one process, of any client. It may have several threads,
//!   and then the one that holds may not be the one that waits. A ring that needs such a step is only [likely](Certainty::Likely), or
//!   [possible](Certainty::Possible) if the session has several waits.
//!
//! What is stuck is found by elimination: a hold that no stuck waiter keeps ends at some time, and a waiter that no stuck contender
//! ahead keeps out gets the lock at some time. Whatever remains waits for ever. So readers, permits and queues of any length need no rule
//! of their own.

mod closing;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::time::SystemTime;

use lockkeeper::admin::{Admin, ContenderInfo, ContenderJson, LockInfo, SessionId};
use lockkeeper::error::AdminError;
use lockkeeper_session::text::plain;
use serde::{Serialize, Serializer};

pub use closing::closed;

/// A ring of contenders. Each waits for a lock, and the next one keeps it out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Deadlock {
    /// How sure it is.
    pub certainty: Certainty,
    /// The contenders, from the one that began to wait last.
    pub ring: Vec<Party>,
}

/// How sure it is that a ring of contenders is a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// Each waiter says that its caller keeps the hold while it waits.
    Certain,
    /// A waiter only has the session of the hold, and that session has no other wait. Another thread of its process may hold.
    Likely,
    /// As likely, but a session has several waits, so its process certainly has several threads.
    Possible,
}

/// One contender of a [`Deadlock`]. It keeps the one before it out, and waits for the one after it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Party {
    /// What it holds; `None` if it waits ahead of the one before it, for the same lock.
    pub holds: Option<Contention>,
    /// What it waits for.
    pub waits: Contention,
}

/// A contender and its lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Contention {
    /// The path of the lock.
    pub path: String,
    /// The contender.
    pub contender: ContenderInfo,
}

impl Serialize for Contention {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Json<'a> {
            path: &'a str,
            #[serde(flatten)]
            contender: ContenderJson<'a>,
        }
        Json { path: &self.path, contender: self.contender.json(&self.path) }.serialize(serializer)
    }
}

impl Deadlock {
    /// Returns since when all of them wait, by the server's clock.
    pub fn since(&self) -> Option<SystemTime> {
        self.ring.iter().map(|party| party.waits.contender.since).max()
    }

    /// Whether one of its contenders holds the lock at `path` or waits for it.
    pub fn involves(&self, path: &str) -> bool {
        let locks = self.ring.iter().flat_map(|party| party.holds.iter().chain([&party.waits]));
        locks.into_iter().any(|it| it.path == path)
    }

    /// Returns the contender whose end costs least: of those whose owner understands a request to release, if there is one, the one that
    /// was granted its lock last.
    pub fn victim(&self) -> Option<&Contention> {
        let holds = self.ring.iter().filter_map(|party| party.holds.as_ref());
        holds.max_by_key(|it| (it.contender.owner.is_some(), it.contender.granted.unwrap_or(it.contender.since)))
    }
}

/// `build@ci-7 (pid 1) holds /locks/a and waits for /locks/b, which build@ci-8 (pid 2) holds; it waits for /locks/a`
impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Party { holds, waits }) in self.ring.iter().enumerate() {
            let who = plain(&holds.as_ref().unwrap_or(waits).contender.described);
            match (at, holds) {
                (0, Some(hold)) => write!(f, "{who} holds {} and waits for {}", plain(&hold.path), plain(&waits.path))?,
                (0, None) => write!(f, "{who} waits for {}", plain(&waits.path))?,
                (_, Some(_)) => write!(f, ", which {who} holds; it waits for {}", plain(&waits.path))?,
                (_, None) => write!(f, ", behind {who}")?,
            }
        }
        Ok(())
    }
}

/// Returns the deadlocks among the locks at and below `root`, which may be `/`: the certain ones first, then by how long they last.
///
/// A ring is reported only if two reads of all locks show it. Each of its contenders then waited or held from the first read to the
/// second, so they did so at the same time.
///
/// # Cost
///
/// [`Admin::listing`], and again if it shows a ring.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
///
/// # Errors
///
/// As [`Admin::listing`].
pub async fn deadlocks(admin: &Admin, root: &str) -> Result<Vec<Deadlock>, AdminError> {
    let first = admin.listing(root).await?.locks;
    confirmed(admin, root, &first).await
}

/// Returns the deadlocks that these locks show, and that a second read of them shows too, as [`deadlocks`] does.
///
/// # Cost
///
/// [`Admin::listing`] if they show one, otherwise nothing.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
///
/// # Errors
///
/// As [`Admin::listing`].
pub async fn confirmed(admin: &Admin, root: &str, first: &[LockInfo]) -> Result<Vec<Deadlock>, AdminError> {
    if among(first).is_empty() {
        return Ok(Vec::new());
    }
    let second = admin.listing(root).await?.locks;
    Ok(among(&unchanged(first, second)))
}

/// Searches for the deadlocks of locks that change, as a [`View`](crate::watch::View) shows them: again and again, a second or more apart.
#[derive(Debug, Default)]
pub struct Search {
    /// The rings of the last search.
    before: HashSet<String>,
}

impl Search {
    /// Returns the deadlocks that these locks show, and that the last search has shown too, in the order of [`deadlocks`]. The contenders may
    /// not have been there at the same time, so a ring counts only then. Nothing is read.
    pub fn lasting<'l>(&mut self, locks: impl IntoIterator<Item = &'l LockInfo>) -> Vec<Deadlock> {
        // Somebody waits for each lock of a ring.
        let found = among(locks.into_iter().filter(|lock| !lock.waiters.is_empty()));
        let rings: HashSet<_> = found.iter().map(ToString::to_string).collect();
        let before = std::mem::replace(&mut self.before, rings);
        found.into_iter().filter(|ring| before.contains(&ring.to_string())).collect()
    }

    /// Whether the last search has found as many rings as it returned, so that another one finds nothing new unless a lock changes.
    pub fn is_settled(&self, lasting: &[Deadlock]) -> bool {
        self.before.len() == lasting.len()
    }
}

/// Returns the deadlocks among these locks, one ring for each: the certain ones first, then by how long they last. Nothing is read, so whoever
/// calls this has to know that their contenders are there at the same time.
pub(crate) fn among<'l>(locks: impl IntoIterator<Item = &'l LockInfo>) -> Vec<Deadlock> {
    // Leased locks have no queue: others take the lock when the lease is over.
    let locks: Vec<_> = locks.into_iter().filter(|lock| lock.lease.is_none()).collect();
    let (mut found, mut covered) = (Vec::new(), HashSet::new());
    for certainty in [Certainty::Certain, Certainty::Likely, Certainty::Possible] {
        Waits::new(&locks, certainty).rings(certainty, &mut covered, &mut found);
    }
    found.sort_by_key(|deadlock| (deadlock.certainty, deadlock.since()));
    found
}

/// Keeps the contenders that the first read shows in the same state. Nobody waits again after a grant, so they were in that state from
/// the first read to the second.
fn unchanged(first: &[LockInfo], mut second: Vec<LockInfo>) -> Vec<LockInfo> {
    let identity = |lock: &str, it: &ContenderInfo, waits| (it.node_path(lock), it.session, it.since, waits);
    let seen: HashSet<_> =
        first.iter().flat_map(|lock| members(0, lock).map(|it| identity(&lock.path, it.info, it.waits))).collect();
    for LockInfo { path, holders, waiters, .. } in &mut second {
        holders.retain(|it| seen.contains(&identity(path, it, false)));
        waiters.retain(|it| seen.contains(&identity(path, it, true)));
    }
    second
}

/// A contender of one of the locks.
#[derive(Clone, Copy)]
struct Member<'l> {
    /// The index of its lock.
    lock: usize,
    info: &'l ContenderInfo,
    waits: bool,
}

impl Member<'_> {
    fn reads(self) -> bool {
        self.info.mode == "read"
    }
}

/// The contenders of a lock, the holders first.
fn members(at: usize, lock: &LockInfo) -> impl Iterator<Item = Member<'_>> {
    let of = move |waits| move |info| Member { lock: at, info, waits };
    lock.holders.iter().map(of(false)).chain(lock.waiters.iter().map(of(true)))
}

/// Who is stuck, and why.
struct Waits<'l> {
    locks: &'l [&'l LockInfo],
    members: Vec<Member<'l>>,
    /// The index of the first member of each lock.
    starts: Vec<usize>,
    /// For each waiter, the holds that its owner keeps.
    keeps: Vec<Vec<usize>>,
    stuck: Vec<bool>,
}

impl<'l> Waits<'l> {
    /// Eliminates all that end at some time.
    fn new(locks: &'l [&'l LockInfo], certainty: Certainty) -> Self {
        let members: Vec<_> = locks.iter().enumerate().flat_map(|(at, lock)| members(at, lock)).collect();
        let len = |lock: &LockInfo| lock.holders.len() + lock.waiters.len();
        let starts = locks.iter().scan(0, |next, lock| Some(std::mem::replace(next, *next + len(lock))));
        let (mut nodes, mut held, mut waits) =
            (HashMap::new(), HashMap::<_, Vec<_>>::new(), HashMap::<_, usize>::new());
        for (at, member) in members.iter().enumerate() {
            if member.waits {
                *waits.entry(member.info.session).or_default() += 1;
            } else {
                nodes.insert(member.info.node_path(&locks[member.lock].path), at);
                held.entry(member.info.session).or_default().push(at);
            }
        }
        let counts = |session: SessionId| match certainty {
            _ if session.is_none() => false,
            Certainty::Certain => false,
            Certainty::Likely => waits.get(&session) == Some(&1),
            Certainty::Possible => true,
        };
        let keeps = |waiter: &Member<'_>| {
            if !waiter.waits {
                return Vec::new();
            }
            let mut keeps: Vec<_> = waiter.info.holds.iter().filter_map(|node| nodes.get(node).copied()).collect();
            if let Some(held) = held.get(&waiter.info.session).filter(|_| counts(waiter.info.session)) {
                // Tasks of one process that contend for one lock do not keep each other out.
                keeps.extend(held.iter().filter(|hold| members[**hold].lock != waiter.lock));
            }
            keeps
        };
        let keeps = members.iter().map(keeps).collect();
        let stuck = vec![true; members.len()];
        let mut waits = Waits { locks, starts: starts.collect(), keeps, stuck, members };
        while waits.eliminate() {}
        waits
    }

    /// Eliminates those that nothing stuck keeps out or keeps from ending; returns whether there was one.
    fn eliminate(&mut self) -> bool {
        let mut kept = vec![false; self.members.len()];
        for (_, keeps) in self.keeps.iter().enumerate().filter(|(at, _)| self.stuck[*at]) {
            keeps.iter().for_each(|hold| kept[*hold] = true);
        }
        let mut found = false;
        for (number, lock) in self.locks.iter().enumerate() {
            let mut ahead = Ahead::default();
            let end = self.starts.get(number + 1).copied().unwrap_or(self.members.len());
            for (at, kept) in kept.iter().enumerate().take(end).skip(self.starts[number]) {
                if !self.stuck[at] {
                    continue;
                }
                let member = self.members[at];
                if *kept || member.waits && ahead.keeps_out(lock, member) {
                    ahead.add(lock, member);
                } else {
                    self.stuck[at] = false;
                    found = true;
                }
            }
        }
        found
    }

    /// Adds a ring for each deadlock that has no member in `covered`, from its last waiter on.
    fn rings(&self, certainty: Certainty, covered: &mut HashSet<usize>, found: &mut Vec<Deadlock>) {
        if !self.stuck.contains(&true) {
            return;
        }
        let next: Vec<_> = (0..self.members.len()).map(|at| self.next(at)).collect();
        let mut last = self.in_rings(&next);
        last.retain(|at| self.members[*at].waits);
        last.sort_by_key(|at| std::cmp::Reverse(self.members[*at].info.since));
        for from in last {
            let Some(ring) = shortest_ring(&next, from) else { continue };
            if ring.iter().any(|at| covered.contains(at)) {
                continue;
            }
            covered.extend(ring.iter().copied());
            let waiters = ring.iter().enumerate().filter(|(_, at)| self.members[**at].waits);
            let parties = waiters.map(|(place, at)| {
                let before = ring[(place + ring.len() - 1) % ring.len()];
                let holds = (!self.members[before].waits).then(|| self.contention(before));
                Party { holds, waits: self.contention(*at) }
            });
            found.push(Deadlock { certainty, ring: parties.collect() });
        }
    }

    fn contention(&self, at: usize) -> Contention {
        let Member { lock, info, .. } = self.members[at];
        Contention { path: self.locks[lock].path.clone(), contender: info.clone() }
    }

    /// Returns what a stuck member needs the end of: a waiter that of the holders that keep it out or, if there is none, of the nearest
    /// such waiter ahead; a holder that of the waits of its owner.
    fn next(&self, at: usize) -> Vec<usize> {
        let member = self.members[at];
        if !self.stuck[at] {
            return Vec::new();
        }
        if !member.waits {
            let keepers =
                self.keeps.iter().enumerate().filter(|(waiter, keeps)| self.stuck[*waiter] && keeps.contains(&at));
            return keepers.map(|(waiter, _)| waiter).collect();
        }
        let (lock, start) = (self.locks[member.lock], self.starts[member.lock]);
        let conflicts = |other: &usize| {
            let both_read = self.members[*other].reads() && member.reads();
            self.stuck[*other] && (lock.permits.is_some() || !both_read)
        };
        let holders: Vec<_> = (start..at).take_while(|other| !self.members[*other].waits).filter(conflicts).collect();
        if holders.is_empty() { (start..at).rev().find(conflicts).into_iter().collect() } else { holders }
    }

    /// Returns the stuck members without those that nobody in a ring waits for.
    fn in_rings(&self, next: &[Vec<usize>]) -> Vec<usize> {
        let mut wanted = vec![0_usize; next.len()];
        next.iter().flatten().for_each(|at| wanted[*at] += 1);
        let mut outside: Vec<_> = (0..next.len()).filter(|at| wanted[*at] == 0).collect();
        let mut left = self.stuck.clone();
        while let Some(at) = outside.pop() {
            left[at] = false;
            for after in &next[at] {
                wanted[*after] -= 1;
                if wanted[*after] == 0 {
                    outside.push(*after);
                }
            }
        }
        (0..left.len()).filter(|at| left[*at]).collect()
    }
}

/// What is ahead in a queue.
#[derive(Default)]
struct Ahead {
    any: bool,
    writer: bool,
    permits: u64,
}

impl Ahead {
    fn add(&mut self, lock: &LockInfo, member: Member<'_>) {
        self.any = true;
        self.writer |= !member.reads();
        self.permits += permits_of(lock, member);
    }

    fn keeps_out(&self, lock: &LockInfo, member: Member<'_>) -> bool {
        match lock.permits {
            Some(limit) => self.permits + permits_of(lock, member) > u64::from(limit),
            // The number of permits is not known.
            None if member.info.permits.is_some() => false,
            None if member.reads() => self.writer,
            None => self.any,
        }
    }
}

/// How many permits a member takes. One that asks for the lock alone takes all.
fn permits_of(lock: &LockInfo, member: Member<'_>) -> u64 {
    u64::from(member.info.permits.or(lock.permits).unwrap_or(0).max(1))
}

/// Returns the shortest way from a member back to itself.
fn shortest_ring(next: &[Vec<usize>], from: usize) -> Option<Vec<usize>> {
    let mut before = HashMap::new();
    let mut reached = VecDeque::from([from]);
    while let Some(at) = reached.pop_front() {
        for after in &next[at] {
            if *after == from {
                let back = std::iter::successors(Some(at), |at| before.get(at).copied());
                let mut ring: Vec<_> = back.collect();
                ring.reverse();
                return Some(ring);
            }
            if !before.contains_key(after) {
                before.insert(*after, at);
                reached.push_back(*after);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
