//! One lock of the tree, and which of its contenders hold it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use lockkeeper::admin::ContenderInfo;
use lockkeeper::contest::{Contest, OwnNode, node_of};
use lockkeeper_core::HOLDER_MARKER;
use lockkeeper_session::Zxid;
use lockkeeper_session::text::plain;

use super::super::fact::{Contender, End, Fact, Moment, What};
use super::Tracker;

/// What is known of a node's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReadState {
    /// It was read, or there is nothing to read.
    #[default]
    Done,
    /// A read is under way.
    Asked,
    /// A read is under way, and the data has changed since.
    Again,
    /// A read may not have been answered, or the data may have changed unseen.
    Lost,
}

impl ReadState {
    pub(super) fn is_under_way(self) -> bool {
        matches!(self, ReadState::Asked | ReadState::Again)
    }
}

/// What created or deleted a node below a path last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum LastChange {
    /// It is not known, or a node was deleted.
    #[default]
    Other,
    /// A listing names the transaction.
    By(Zxid),
    /// The creation of this node was seen.
    Created(Box<str>),
}

/// The node of a contender.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Distinguishes contenders whose nodes have the same name, one after the other.
    pub(super) id: u64,
    pub(super) entered: Moment,
    /// It was found, and its creation was not seen.
    pub(super) is_about: bool,
    pub(super) is_tombstone: bool,
    pub(super) read: ReadState,
    /// Its facts are in the list of facts.
    pub(super) is_announced: bool,
    /// It was decided since it was found whether it holds the lock.
    pub(super) is_placed: bool,
    /// Since when it holds the lock.
    pub(super) granted: Option<Granted>,
    /// A holder marker came and went meanwhile, and it is not known whose that was.
    pub(super) may_have_held: bool,
}

/// Since when a contender holds a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) at: Moment,
    /// It was granted the lock then or before.
    pub(super) is_latest: bool,
    /// The grant was not seen.
    pub(super) is_found: bool,
}

impl Entry {
    pub(super) fn new(id: u64, entered: Moment, is_about: bool, is_tombstone: bool) -> Self {
        Entry {
            id,
            entered,
            is_about,
            is_tombstone,
            read: ReadState::Asked,
            is_announced: false,
            is_placed: false,
            granted: None,
            may_have_held: false,
        }
    }

    /// Whether it is known if it holds the lock: its creation was seen, or its node was read.
    pub(super) fn is_known(&self) -> bool {
        self.is_announced || !self.is_about
    }
}

/// The owner of a leased lock.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) contender: Arc<Contender>,
    pub(super) granted: Moment,
    pub(super) is_about: bool,
    revocation: Option<String>,
}

/// A path with contenders, or that may have some.
#[derive(Default)]
pub(super) struct Lock {
    /// Whether the path has a node. The contenders of a lock may also be beside its path.
    pub(super) exists: bool,
    /// How many nodes below it are no contenders.
    pub(super) directories: usize,
    /// Its contenders, by the names of their nodes.
    pub(super) entries: BTreeMap<String, Entry>,
    /// What their nodes say.
    pub(super) known: HashMap<String, ContenderInfo>,
    /// How many of its entries are tombstones.
    pub(super) tombstones: usize,
    /// Whether the node that marks the holder of a lock with classes was read; `None` without one.
    pub(super) marker: Option<ReadState>,
    /// Tells the reads of holder markers apart that come and go.
    pub(super) marker_id: u64,
    pub(super) data: ReadState,
    /// What the path's node says.
    pub(super) own: OwnNode,
    /// How many nodes were created below the path's node since that was created, and when it was.
    pub(super) created: Option<u32>,
    pub(super) since: Option<SystemTime>,
    /// The last change of the nodes below the path.
    pub(super) changed: LastChange,
    /// The node of the hold that was released last, if the path's data says so.
    pub(super) freed: Option<Zxid>,
    pub(super) lease: Option<Lease>,
    /// How many nodes without a session foreign clients may wait for.
    pub(super) garbage: usize,
    /// The contender that holds the lock alone, if one does: until its node goes, no other contender can hold it.
    pub(super) alone: Option<String>,
    /// Whether a read must first show who holds it.
    pub(super) is_undecided: bool,
    /// Since when it is not decided who holds it.
    pub(super) unjudged: Option<Moment>,
}

impl Lock {
    /// The names of the nodes of its queue.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let marker = self.marker.map(|_| HOLDER_MARKER);
        self.entries.keys().map(String::as_str).chain(marker)
    }

    pub(super) fn is_unused(&self) -> bool {
        !self.exists && self.entries.is_empty() && self.marker.is_none()
    }

    /// Whether its node is left from earlier use: nothing is below it, and it says nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.exists && self.directories == 0 && self.entries.is_empty() && self.lease.is_none()
    }

    /// Reads under way may not be answered, and what was read may be out of date.
    pub(super) fn forget_reads(&mut self) {
        if self.exists {
            self.data = ReadState::Lost;
        }
        self.marker = self.marker.map(|_| ReadState::Lost);
        self.known.remove(HOLDER_MARKER);
        for entry in self.entries.values_mut() {
            if entry.read != ReadState::Done {
                entry.read = ReadState::Lost;
            }
            entry.is_placed = false;
        }
        self.alone = None;
        self.changed = LastChange::Other;
    }

    /// The holder marker has gone. Who held the lock is known only if that one's node and the marker were read.
    pub(super) fn marker_has_gone(&mut self) {
        let was_read = self.marker.take().is_none_or(|read| read == ReadState::Done);
        for (name, entry) in &mut self.entries {
            entry.may_have_held |= !was_read || !self.known.contains_key(name);
        }
    }

    /// Whether no other contender can hold the lock until the node of this one goes.
    fn is_held_alone_by(&self, name: &str) -> bool {
        let is_sure = self.entries.get(name).is_some_and(|entry| entry.is_announced && entry.granted.is_some());
        let info = self.known.get(name).filter(|_| is_sure);
        info.is_some_and(|info| matches!(info.mode, "exclusive" | "write" | "class"))
    }

    /// The contenders of this lock that hold it; `None` if that is not known yet.
    fn holders(&mut self, path: &str) -> Option<Vec<String>> {
        let names: Vec<_> = self.names().collect();
        if names.is_empty() {
            self.garbage = 0;
            return Some(Vec::new());
        }
        let contest = Contest::new(path, &names, &self.known);
        let lacks_permits =
            contest.counts_permits() && self.exists && self.own.permits.is_none() && self.data != ReadState::Done;
        if contest.lacks_marker() || lacks_permits {
            return None;
        }
        let roles = contest.roles(&self.own);
        // The holder marker may be that of a contender that is not known.
        let is_unknown = |name: &String| !self.known.contains_key(name);
        if self.marker.is_some() && roles.holders.is_empty() && self.entries.keys().any(is_unknown) {
            return None;
        }
        let holders = roles.holders.iter().map(|name| (*name).to_owned()).collect();
        self.garbage = roles.sessionless.len();
        Some(holders)
    }
}

/// A contender as facts name it.
pub(super) fn named(lock: &Arc<str>, name: &str, info: Option<&ContenderInfo>) -> Arc<Contender> {
    let mode = info.map_or_else(|| ContenderInfo::unread(name.to_owned()).mode, |info| info.mode);
    Arc::new(Contender {
        lock: lock.clone(),
        node: node_of(lock, name).into(),
        who: info.map(|info| plain(&info.described)),
        message: info.and_then(|info| info.message.as_deref().map(plain)),
        mode,
        session: info.map(|info| info.session).filter(|session| !session.is_none()),
    })
}

impl Tracker {
    /// Lets it be decided again who holds a lock, before its next contender leaves or facts are taken. Contenders that come to a lock with
    /// one holder cost no decision.
    pub(super) fn judge_later(&mut self, path: &Arc<str>, at: Moment) {
        self.dirty.insert(path.clone());
        let Some(lock) = self.locks.get_mut(path) else { return };
        if lock.alone.is_none() && lock.unjudged.is_none() {
            lock.unjudged = Some(at);
            self.unjudged.push(path.clone());
        }
    }

    /// The same, although a contender holds it alone.
    pub(super) fn judge_again(&mut self, path: &Arc<str>, at: Moment) {
        if let Some(lock) = self.locks.get_mut(path) {
            lock.alone = None;
        }
        self.judge_later(path, at);
    }

    /// Decides what was left for later.
    pub(super) fn judge_all(&mut self) {
        for path in std::mem::take(&mut self.unjudged) {
            self.judge_now(&path);
        }
    }

    /// The same for one lock.
    pub(super) fn judge_now(&mut self, path: &Arc<str>) {
        if let Some(at) = self.locks.get_mut(path).and_then(|lock| lock.unjudged.take()) {
            self.judge(path, at);
        }
    }

    /// Decides who holds a lock.
    pub(super) fn judge(&mut self, path: &Arc<str>, at: Moment) {
        let is_blind = self.is_blind();
        let Some(lock) = self.locks.get_mut(path) else { return };
        lock.unjudged = None;
        self.dirty.insert(path.clone());
        // The queue may have more contenders than are known. The walk that follows decides.
        if is_blind {
            return;
        }
        let holders = lock.holders(path);
        lock.is_undecided = holders.is_none();
        let Some(holders) = holders else { return };
        let garbage = lock.garbage;
        let marks = lock.known.contains_key(HOLDER_MARKER);
        let mut facts = Vec::new();
        for (name, entry) in &mut lock.entries {
            let (was_placed, info) = (entry.is_placed, lock.known.get(name));
            // It holds the lock perhaps since long, which only its node may say.
            if entry.is_about && !entry.is_announced {
                continue;
            }
            // Whether it waits for a node without a session depends on its client.
            if garbage > 0 && info.is_none() && entry.read != ReadState::Done {
                continue;
            }
            entry.is_placed = true;
            match (holders.iter().any(|holder| holder == name), entry.granted) {
                (true, None) => {
                    // Of a hold that was found, only a record says when it began. It did so before it was found.
                    let said = info.and_then(|info| info.granted).filter(|_| !was_placed);
                    entry.granted = Some(Granted {
                        at: said.map_or(at, |said| at.of_wall(said)),
                        is_latest: !was_placed && said.is_none(),
                        is_found: !was_placed,
                    });
                    if entry.is_announced {
                        facts.push(grant(path, name, entry, info));
                    }
                }
                // The holder marker is another contender's: this one released, and its node is still in the queue.
                (false, Some(granted)) if marks => {
                    entry.granted = None;
                    let (contender, held) = (named(path, name, info), at.since(granted.at));
                    let what = What::Ended { contender, held, how: End::Released };
                    facts.push(Fact { at, what, about: granted.is_latest });
                }
                _ => {}
            }
        }
        lock.alone = holders.into_iter().next().filter(|name| lock.is_held_alone_by(name));
        if lock.alone.is_some() {
            // All others wait, also those that were found and are not read yet.
            lock.entries.values_mut().for_each(|entry| entry.is_placed = true);
        }
        self.facts.extend(facts);
    }

    /// Tells of a contender whose node was read.
    pub(super) fn announce(&mut self, path: &Arc<str>, name: &str, at: Moment) {
        let Some(lock) = self.locks.get_mut(path) else { return };
        let Some(entry) = lock.entries.get_mut(name) else { return };
        let info = lock.known.get(name);
        let is_contender = info.is_none_or(|info| !info.session.is_none());
        if entry.is_announced || entry.is_tombstone || !is_contender {
            return;
        }
        entry.is_announced = true;
        entry.is_placed |= lock.alone.is_some();
        let contender = named(path, name, info);
        self.facts.push(Fact { at: entry.entered.min(at), what: What::Entered { contender }, about: entry.is_about });
        if entry.granted.is_some() {
            self.facts.push(grant(path, name, entry, info));
        }
    }

    /// Notes the owner of a leased lock.
    pub(super) fn lease(&mut self, path: &Arc<str>, owner: Option<&ContenderInfo>, at: Moment) {
        let is_found = self.is_blind();
        let Some(lock) = self.locks.get_mut(path) else { return };
        let revocation = owner.and_then(|owner| owner.revocation.as_ref()).map(ToString::to_string);
        let owner = owner.map(|owner| named(path, "", Some(owner)));
        if let (Some(lease), Some(owner)) = (&mut lock.lease, &owner)
            && lease.contender.who == owner.who
        {
            lease.revocation = revocation;
            return;
        }
        if lock.lease.is_none() && owner.is_none() {
            return;
        }
        self.dirty.insert(path.clone());
        if let Some(Lease { contender, granted, is_about, revocation }) = lock.lease.take() {
            let how = match (&owner, revocation) {
                (Some(_), _) => End::TakenOver,
                (None, Some(by)) => End::Revoked { by },
                (None, None) => End::Released,
            };
            let held = at.since(granted);
            self.facts.push(Fact { at, what: What::Ended { contender, held, how }, about: is_about });
        }
        let Some(contender) = owner else { return };
        let what = What::Granted { contender: contender.clone(), waited: std::time::Duration::ZERO, found: is_found };
        self.facts.push(Fact { at, what, about: is_found });
        lock.lease = Some(Lease { contender, granted: at, is_about: is_found, revocation });
    }
}

pub(super) fn grant(path: &Arc<str>, name: &str, entry: &Entry, info: Option<&ContenderInfo>) -> Fact {
    let unseen = Granted { at: entry.entered, is_latest: true, is_found: true };
    let Granted { at, is_found: found, .. } = entry.granted.unwrap_or(unseen);
    let what = What::Granted { contender: named(path, name, info), waited: at.since(entry.entered), found };
    Fact { at, what, about: found || entry.is_about }
}
