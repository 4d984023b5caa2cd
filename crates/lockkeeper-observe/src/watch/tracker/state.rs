//! The locks as they are now.

use std::sync::Arc;

use lockkeeper::admin::{ContenderInfo, Entries, LockInfo, Observed};
use lockkeeper::contest::{Contest, Counted};
use serde::Serialize;

use super::super::fact::Moment;
use super::Tracker;
use super::lock::{Entry, LastChange, Lock, ReadState};

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
    fn contenders(&self) -> impl Iterator<Item = &Entry> {
        let has_session = |name: &String| self.known.get(name).is_none_or(|info| !info.session.is_none());
        let all = self.entries.iter().filter(|(_, entry)| !entry.is_tombstone && entry.is_known());
        all.filter(move |(name, _)| has_session(name)).map(|(_, entry)| entry)
    }

    /// A contender whose node is not read.
    fn unread(&self, name: &str, now: Moment) -> Option<ContenderInfo> {
        let entry = self.entries.get(name).filter(|entry| entry.is_known())?;
        let mut info = ContenderInfo::unread(name.to_owned());
        info.since = now.wall_time_of(entry.entered);
        Some(info)
    }

    /// Whether this contender holds the lock, by the last decision, and since when it does that or waits. Of a tombstone and of the owner of a
    /// lease, the nodes alone decide whether it holds: `holds`.
    fn observed(&self, node: &str, holds: bool, now: Moment) -> (bool, Option<Observed>) {
        let (holds, since) = match (self.entries.get(node), &self.lease) {
            (Some(Entry { granted: Some(granted), .. }), _) => (true, Some((granted.at, granted.is_latest))),
            (Some(entry), _) => (holds && entry.is_tombstone, Some((entry.entered, entry.is_about))),
            (None, lease) => (holds, lease.as_ref().map(|lease| (lease.granted, lease.is_about))),
        };
        (holds, since.map(|(at, about)| Observed { since: now.wall_time_of(at), about }))
    }

    fn since(&self) -> Since {
        let mut since = Since::default();
        let granted = self.contenders().map(|entry| (entry.granted.map(|granted| granted.at), entry.entered));
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
        locks.filter(|(_, since)| !since.is_unused())
    }

    /// The locks that are in use, as they are at this moment, by path.
    pub fn locks(&self, now: Moment) -> Vec<LockInfo> {
        self.locks.keys().filter_map(|path| self.lock_head(path, now, usize::MAX)).collect()
    }

    /// A lock as it is at this moment, with so many holders and so many waiters at most, and with what was seen of each ([`ContenderInfo::observed`]).
    /// Otherwise as [`Tracker::described`] returns it, but contenders whose nodes cannot be read or are not read yet are not left out, and
    /// hold the lock if that was decided last.
    pub fn lock_head(&self, path: &str, now: Moment, most: usize) -> Option<LockInfo> {
        let lock = self.locks.get(path)?;
        let mut info = self.head(path, |name| lock.unread(name, now), most)?;
        let holders = std::mem::take(&mut info.holders).into_iter().map(|holder| (true, holder));
        let waiters = std::mem::take(&mut info.waiters).into_iter().map(|waiter| (false, waiter));
        for (holds, mut contender) in holders.chain(waiters) {
            let (holds, observed) = lock.observed(&contender.node, holds, now);
            contender.observed = observed;
            if holds { info.holders.push(contender) } else { info.waiters.push(contender) }
        }
        Some(info)
    }

    /// Numbers about all locks.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals { left_out: self.left_out, unreadable: self.unreadable, ..Totals::default() };
        for (path, lock) in &self.locks {
            let since = lock.since();
            totals.in_use += usize::from(!since.is_unused());
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
    /// if it has no holder, no waiter and no node without a session. Children that are no contenders are left out.
    pub fn described(&self, path: &str) -> Option<LockInfo> {
        self.head(path, |_| None, usize::MAX)
    }

    /// The same, with so many holders and waiters at most, and with what `unread` says of contenders that were not read.
    fn head(&self, path: &str, unread: impl Fn(&str) -> Option<ContenderInfo>, most: usize) -> Option<LockInfo> {
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
        let info = Contest::new(path, &names, &lock.known).head(&lock.own, counted, unread, most);
        info.is_listed().then(|| info.in_epoch(self.epoch))
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
