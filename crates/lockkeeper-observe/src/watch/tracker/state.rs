//! The locks as they are now.

use std::sync::Arc;

use lockkeeper::admin::{ContenderInfo, Entries, LockInfo};
use lockkeeper::contest::{Contest, Counted};
use serde::Serialize;

use super::super::fact::{Contender, Moment};
use super::Tracker;
use super::lock::{Entry, LastChange, Lock, ReadState, named};

/// A lock as it is now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LockState {
    /// Its path.
    pub path: Arc<str>,
    /// The contenders that hold it.
    pub holders: Vec<ContenderState>,
    /// The contenders that wait, the oldest first.
    pub waiters: Vec<ContenderState>,
    /// How many nodes without a session are in its queue, for which foreign clients may wait.
    pub garbage: usize,
    /// Whether no contender holds it, and the first waiter waits for such a node.
    pub blocked: bool,
}

/// A contender as it is now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContenderState {
    /// The contender.
    #[serde(flatten)]
    pub contender: Arc<Contender>,
    /// How long it has been in this state: waiting, or holding.
    pub since_ms: i64,
    /// Whether that is not exact: see [`Fact::about`](crate::watch::Fact::about). A holder has held the lock for at least this long.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub about: bool,
    /// What its node says; `None` if it is not read yet, and for the owner of a leased lock.
    #[serde(skip)]
    pub info: Option<ContenderInfo>,
}

/// Numbers about all locks of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Locks with a holder or a waiter.
    pub in_use: usize,
    /// Nodes of locks without contenders.
    pub empty: usize,
    /// Nodes without a session for which foreign clients may wait.
    pub garbage: usize,
    /// Waiters of all locks.
    pub waiters: usize,
    /// Holders of all locks.
    pub holders: usize,
    /// How often a lock or a contender was left out, because there were too many.
    pub left_out: u64,
    /// Nodes that could not be listed, because this client has no right to.
    pub unreadable: usize,
}

/// Since when the oldest holder and the oldest waiter of a lock are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since {
    /// The oldest grant of a hold.
    pub held: Option<Moment>,
    /// The arrival of the oldest waiter.
    pub waiting: Option<Moment>,
    /// How many wait.
    pub waiters: usize,
    /// How many hold.
    pub holders: usize,
}

impl Since {
    /// Whether the lock has no contenders.
    pub fn is_unused(&self) -> bool {
        self.holders + self.waiters == 0
    }
}

impl Lock {
    /// Its contenders, without tombstones and nodes that have no session, and without those that were found and are not read yet: whether
    /// they hold the lock is not known.
    fn contenders(&self) -> impl Iterator<Item = (&String, &Entry, Option<&ContenderInfo>)> {
        let all = self.entries.iter().map(|(name, entry)| (name, entry, self.known.get(name)));
        let has_session = |info: Option<&ContenderInfo>| info.is_none_or(|info| !info.session.is_none());
        let is_known = |entry: &Entry| !entry.is_tombstone && (entry.is_announced || !entry.is_about);
        all.filter(move |(_, entry, info)| is_known(entry) && has_session(*info))
    }

    fn since(&self) -> Since {
        let mut since = Since::default();
        let granted = self.contenders().map(|(_, entry, _)| (entry.granted.map(|granted| granted.at), entry.entered));
        let leased = self.lease.iter().map(|lease| (Some(lease.granted), lease.granted));
        for (granted, entered) in granted.chain(leased) {
            let (oldest, count, at) = match granted {
                Some(at) => (&mut since.held, &mut since.holders, at),
                None => (&mut since.waiting, &mut since.waiters, entered),
            };
            *oldest = Some(oldest.map_or(at, |oldest: Moment| oldest.min(at)));
            *count += 1;
        }
        since
    }
}

impl Tracker {
    /// Since when the oldest holder and the oldest waiter of this lock are there.
    pub fn since(&self, lock: &str) -> Since {
        self.locks.get(lock).map(Lock::since).unwrap_or_default()
    }

    /// The same for each lock with contenders.
    pub fn all_since(&self) -> impl Iterator<Item = (&Arc<str>, Since)> {
        let locks = self.locks.iter().map(|(path, lock)| (path, lock.since()));
        locks.filter(|(_, since)| since.holders + since.waiters > 0)
    }

    /// The locks that have contenders or garbage, as they are at this moment, by path.
    pub fn locks(&self, now: Moment) -> Vec<LockState> {
        self.locks.keys().filter_map(|path| self.lock_head(path, now, usize::MAX)).collect()
    }

    /// A lock as it is at this moment, with so many holders and so many waiters at most; `None` if it has no contenders.
    pub fn lock_head(&self, path: &str, now: Moment, most: usize) -> Option<LockState> {
        let (path, lock) = self.locks.get_key_value(path)?;
        let is_used = !lock.entries.is_empty() || lock.lease.is_some();
        is_used.then(|| lock_state(path, lock, now, most))
    }

    /// Numbers about all locks.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals { left_out: self.left_out, unreadable: self.unreadable, ..Totals::default() };
        for (path, lock) in &self.locks {
            let since = lock.since();
            totals.in_use += usize::from(since.holders + since.waiters > 0);
            totals.empty += usize::from(lock.is_empty() && **path != *self.root);
            totals.garbage += lock.garbage;
            totals.waiters += since.waiters;
            totals.holders += since.holders;
        }
        totals
    }

    /// The paths of the locks that have nodes in their queue, or a record of a lease.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Arc<str>> {
        self.locks
            .iter()
            .filter(|(_, lock)| !lock.entries.is_empty() || lock.own.leased.is_some())
            .map(|(path, _)| path)
    }

    /// Returns a lock with its holders and waiters, as [`Admin::listing`](lockkeeper::admin::Admin::listing) does, from what was seen; `None`
    /// if it has no holder, no waiter and no node without a session. Tokens have epoch 0, and children that are no contenders are left out.
    pub fn described(&self, path: &str) -> Option<LockInfo> {
        let lock = self.locks.get(path)?;
        let names: Vec<_> = lock.names().collect();
        let counted = |place: &str| {
            let listed = self.locks.get(place)?;
            let changed = match &listed.changed {
                LastChange::Other => None,
                LastChange::By(transaction) => Some(*transaction),
                LastChange::Created(node) => self
                    .place(node)
                    .filter(|(lock, _)| **lock == *path)
                    .and_then(|(_, name)| lock.known.get(&name).map(|info| info.czxid)),
            };
            let entries = listed.created.zip(listed.since).map(|(count, since)| Entries::new(count, since));
            Some(Counted { entries, changed })
        };
        let info = Contest::new(path, &names, &lock.known).described(&lock.own, counted);
        let is_used = !info.holders.is_empty() || !info.waiters.is_empty() || !info.sessionless.is_empty();
        (is_used || info.lease.is_some()).then_some(info)
    }

    /// The locks with a waiter.
    pub(crate) fn waited_for(&self) -> impl Iterator<Item = LockInfo> {
        let has_waiter = |lock: &Lock| lock.entries.values().any(|entry| entry.granted.is_none());
        let locks = self.locks.iter().filter(move |(_, lock)| has_waiter(lock));
        locks.filter_map(|(path, _)| self.described(path)).filter(|lock| !lock.waiters.is_empty())
    }

    /// Whether a read that is under way may show another holder or waiter of this lock.
    pub(crate) fn is_being_read(&self, path: &str) -> bool {
        self.locks.get(path).is_some_and(|lock| {
            let is_unread =
                |(name, entry): (&String, &Entry)| entry.read.is_under_way() && !lock.known.contains_key(name);
            lock.marker == Some(ReadState::Asked) || lock.entries.iter().any(is_unread)
        })
    }
}

fn lock_state(path: &Arc<str>, lock: &Lock, now: Moment, most: usize) -> LockState {
    let state = |contender, at: Moment, about, info: Option<&ContenderInfo>| ContenderState {
        contender,
        since_ms: now.ms - at.ms,
        about,
        info: info.cloned(),
    };
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for (name, entry, info) in lock.contenders() {
        match entry.granted {
            Some(granted) if holders.len() < most => {
                holders.push(state(named(path, name, info), granted.at, granted.is_latest, info));
            }
            Some(_) => {}
            None => waiters.push((entry.entered, name, entry, info)),
        }
    }
    if let Some(lease) = &lock.lease {
        holders.push(state(lease.contender.clone(), lease.granted, lease.is_about, None));
    }
    // The oldest first.
    waiters.sort_by_key(|(entered, ..)| *entered);
    let first = waiters.into_iter().take(most);
    let waiters = first.map(|(at, name, entry, info)| state(named(path, name, info), at, entry.is_about, info));
    let waiters = waiters.collect();
    LockState { path: path.clone(), holders, waiters, garbage: lock.garbage, blocked: lock.is_blocked }
}
