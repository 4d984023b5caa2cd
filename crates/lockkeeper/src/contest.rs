//! Decides which contenders of a lock hold it, from what is known of its nodes. Without I/O.
//!
//! For programs that read the nodes of locks themselves, as observers do.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::SystemTime;

use lockkeeper_core::{CURATOR_LEASES, Limit, PathRecord};
use lockkeeper_core::{
    Discipline, FencingToken, ForeignSemaphore, HOLDER_MARKER, Mode, NodeFormat, Queue, SemaphoreNode, Sessionless,
    Verdict, Zxid, node_path,
};
use lockkeeper_session::ensemble::{Children, Node, above};
use lockkeeper_session::text::moment;

use crate::admin::{Entries, LeaseInfo, LockInfo};
use crate::contender::ContenderInfo;
pub use crate::queue::driver::operations::is_contended_beside;

/// The limit of a semaphore whose path states none: all contenders count as holders.
const UNSTATED: u32 = u32::MAX;

/// The contenders of one lock, by the names of their nodes, before it is decided which of them hold it.
pub struct Contest<'a, 'k> {
    path: &'a str,
    node_format: NodeFormat,
    /// With the nodes without a session.
    all: Queue<'a>,
    /// Without them: contenders of this library skip them.
    queue: Queue<'a>,
    /// The nodes without a session, in order.
    skipped: Vec<&'a str>,
    known: &'k HashMap<String, ContenderInfo>,
}

/// The roles of the nodes of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles<'a> {
    /// The number of permits of a semaphore, if the path states it.
    pub permits: Option<u32>,
    /// The contenders that hold the lock.
    pub holders: Vec<&'a str>,
    /// The contenders that wait, in the order of the queue. The second text is the path of a node without a session, if the contender's
    /// client waits for that node alone.
    pub waiters: Vec<(&'a str, Option<String>)>,
    /// Nodes without a session that foreign clients may wait for, in the order of the queue.
    pub sessionless: Vec<&'a str>,
    /// Children that are not contenders.
    pub unknown: Vec<&'a str>,
}

/// What the node at a lock's path says. The default: nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnNode {
    /// The number of permits that it states.
    pub permits: Option<u32>,
    /// The same, as Kazoo's semaphore states it.
    pub kazoo_permits: Option<u32>,
    /// The record of a leased lock, which counts if the lock has no queue.
    pub leased: Option<Leased>,
}

impl OwnNode {
    /// Reads the node.
    pub fn of(node: &Node) -> Self {
        let record = Some(node).filter(|node| !node.data.is_empty() && node.owner.is_none());
        let permits = record.and_then(|node| match PathRecord::limit(&node.data, node.version) {
            Limit::Permits(permits) => Some(permits),
            _ => None,
        });
        let leased = record.and_then(crate::admin::leased);
        OwnNode { permits, kazoo_permits: ForeignSemaphore::Kazoo.limit(&node.data), leased }
    }
}

/// What the servers count of the children of a node. The default: nothing is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// How many were created, and since when.
    pub entries: Option<Entries>,
    /// The transaction that last created or deleted one.
    pub changed: Option<Zxid>,
}

impl Counted {
    /// Reads a listing.
    pub fn of(children: &Children) -> Self {
        let entries = moment(children.ctime_ms).map(|since| Entries { count: children.created, since });
        Counted { entries, changed: Some(children.changed) }
    }
}

/// What the record of a leased lock says.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    /// The owner as a holder; `None` between two owners.
    pub owner: Option<ContenderInfo>,
    /// Its terms.
    pub lease: LeaseInfo,
}

impl<'a, 'k> Contest<'a, 'k> {
    /// Puts the names in order. `known`: the contenders whose nodes were read. Others count as contenders with a session.
    pub fn new<S: AsRef<str>>(path: &'a str, names: &'a [S], known: &'k HashMap<String, ContenderInfo>) -> Self {
        let node_format = format_of(names);
        let all = Queue::read(node_format, names);
        // Our waiters ignore these nodes too.
        let is_skipped = |name: &str| known.get(name).is_some_and(|info| info.session.is_none() && !info.abandoned);
        let skipped: Vec<_> = all.entries().iter().map(|entry| entry.name).filter(|name| is_skipped(name)).collect();
        let queue = if skipped.is_empty() { all.clone() } else { all.clone().without(&skipped) };
        Contest { path, node_format, all, queue, skipped, known }
    }

    /// Whose semaphore it is, if it is one of a foreign client.
    pub fn semaphore(&self) -> Option<ForeignSemaphore> {
        self.all.unknown().iter().find_map(|name| Some(ForeignSemaphore::read(name)?.0))
    }

    /// The node that marks the holder of a lock with classes, as it was read.
    fn marker(&self) -> Option<&'k ContenderInfo> {
        self.known.get(HOLDER_MARKER).filter(|_| self.queue.has_holder_marker())
    }

    /// Whether the holder marker decides who holds the lock, and is not read.
    pub fn lacks_marker(&self) -> bool {
        self.queue.has_holder_marker() && self.marker().is_none()
    }

    /// Whether the number of permits decides who holds the lock.
    pub fn counts_permits(&self) -> bool {
        self.discipline(None).limit().is_some()
    }

    /// Whether [`Contest::described`] needs the lock's own node.
    pub(crate) fn needs_own_node(&self) -> bool {
        self.semaphore() == Some(ForeignSemaphore::Kazoo)
            || self.counts_permits()
            || self.semaphore().is_none() && self.queue.entries().is_empty()
    }

    /// The number of permits that counts.
    fn permits(&self, own: &OwnNode) -> Option<u32> {
        match self.semaphore() {
            Some(ForeignSemaphore::Kazoo) => own.kazoo_permits,
            Some(ForeignSemaphore::Curator) => None,
            None => own.permits,
        }
    }

    /// The node whose children are the nodes of the queue, if it is one node.
    pub(crate) fn listed(&self) -> Option<Cow<'a, str>> {
        match self.semaphore() {
            Some(ForeignSemaphore::Kazoo) => None,
            Some(ForeignSemaphore::Curator) => Some(format!("{}/{CURATOR_LEASES}", self.path).into()),
            None => Some(self.node_format.listed(self.path).into()),
        }
    }

    /// The rule of the queue, derived from its first contender.
    fn discipline(&self, permits: Option<u32>) -> Discipline {
        let mode = self.queue.entries().first().map_or(Mode::Exclusive, |entry| entry.mode);
        Discipline::of(mode, permits.unwrap_or(UNSTATED))
    }

    /// Decides who holds the lock.
    pub fn roles(self, own: &OwnNode) -> Roles<'a> {
        let (permits, marker) = (self.permits(own), self.marker());
        if self.semaphore().is_some() {
            return self.roles_of_semaphore(permits);
        }
        let discipline = self.discipline(permits);
        let entries = self.queue.entries();
        // Without a marker, the holders are the first ones: a contender that waits keeps all later ones waiting.
        let first = match marker {
            Some(_) => 0,
            None => {
                // Until it is upgraded, and while it waits for that, an upgradeable reader holds as a reader.
                let reads = |name: &str| self.known.get(name).is_some_and(|info| info.reads);
                let verdict = |name: &str| match reads(name) {
                    true => discipline.decide_as_reader(&self.queue, name),
                    false => discipline.decide(&self.queue, name),
                };
                let holds = |name: &str| verdict(name) == Verdict::Granted;
                entries.iter().take_while(|entry| holds(entry.name)).count()
            }
        };
        let mut unknown = self.queue.unknown().to_vec();
        let (mut holders, mut waiters, mut sessionless) = (Vec::new(), Vec::new(), Vec::new());
        for (at, entry) in entries.iter().enumerate() {
            let holds = match marker {
                // Only one contender holds a lock with classes.
                Some(marker) => holders.is_empty() && self.known.get(entry.name).is_some_and(|info| marker.marks(info)),
                None => at < first,
            };
            // Only a node that the queue's contenders skip can block a holder.
            match holds.then(|| self.blocked_by(entry.name, discipline)).flatten() {
                None if holds => holders.push(entry.name),
                blocked_by => waiters.push((entry.name, blocked_by)),
            }
        }
        if self.node_format.foreign_clients_wait_for_any_node() {
            unknown.retain(|name| !self.skipped.contains(name));
            sessionless = self.skipped;
        }
        let permits = discipline.limit().filter(|permits| *permits != UNSTATED);
        Roles { permits, holders, waiters, sessionless, unknown }
    }

    /// Describes the lock, with what is known of its contenders. Those that are not known are left out. `counted`: what the servers count
    /// below a node. Tokens have epoch 0 ([`LockInfo::in_epoch`]).
    pub fn described(self, own: &OwnNode, counted: impl FnOnce(&str) -> Option<Counted>) -> LockInfo {
        self.head(own, counted, |_| None, usize::MAX)
    }

    /// The same with so many holders and so many waiters at most, and with what `unread` says of a contender that is not known.
    pub fn head(
        self,
        own: &OwnNode,
        counted: impl FnOnce(&str) -> Option<Counted>,
        unread: impl Fn(&str) -> Option<ContenderInfo>,
        most: usize,
    ) -> LockInfo {
        let (path, known, semaphore, marker) = (self.path, self.known, self.semaphore(), self.marker());
        let listed = self.listed();
        let Counted { entries, changed } = listed.as_deref().and_then(counted).unwrap_or_default();
        let settled = self.settled(changed);
        let roles = self.roles(own);
        let of = |name: &str| known.get(name).cloned().or_else(|| unread(name));
        let mut info = LockInfo {
            permits: roles.permits,
            semaphore: semaphore.map(ForeignSemaphore::name),
            sessionless: roles.sessionless.iter().filter_map(|name| of(name)).collect(),
            unknown: roles.unknown.iter().map(|name| (*name).to_owned()).collect(),
            entries: entries.filter(|_| listed.as_deref() == Some(path)),
            ..LockInfo::unused(path)
        };
        let mut holders = roles.holders.into_iter().take(most).peekable();
        while let Some(name) = holders.next() {
            let Some(mut contender) = of(name) else { continue };
            // Curator's client asks for the next lease of its semaphore when the one before it has its own.
            let next = holders.peek().filter(|_| semaphore == Some(ForeignSemaphore::Curator));
            let next = next.and_then(|next| known.get(*next)).map(|next| next.since);
            let settled = settled.into_iter().chain(next).min();
            if let Some(mark) = marker {
                (contender.token, contender.granted) = (Some(FencingToken::from_zxid(mark.czxid)), Some(mark.since));
            }
            contender.blocked_by = None;
            contender.holds(settled);
            info.holders.push(contender);
        }
        for (name, blocked_by) in roles.waiters.into_iter().take(most) {
            let Some(mut contender) = of(name) else { continue };
            contender.blocked_by = blocked_by;
            contender.waits();
            info.waiters.push(contender);
        }
        if info.is_quiet() {
            info.permits = own.permits;
            if let Some(Leased { owner, lease }) = own.leased.clone() {
                info.holders.extend(owner);
                info.lease = Some(lease);
            }
        }
        info
    }

    /// When the queue has changed last, if `changed`, the transaction that did it, created a contender that is still there. `None` if
    /// a contender is not known: it is deleted by now, so the queue has changed since.
    fn settled(&self, changed: Option<Zxid>) -> Option<SystemTime> {
        let of_semaphore = self.all.unknown().iter().copied().filter(|name| ForeignSemaphore::read(name).is_some());
        let names = self.all.entries().iter().map(|entry| entry.name).chain(of_semaphore);
        let infos = names.map(|name| self.known.get(name)).collect::<Option<Vec<_>>>()?;
        infos.into_iter().find(|info| Some(info.czxid) == changed).map(|info| info.since)
    }

    /// The same for the semaphore of a foreign client: its leases hold, those that ask for one wait.
    fn roles_of_semaphore(self, permits: Option<u32>) -> Roles<'a> {
        let mut roles = Roles { permits, ..Roles::default() };
        let (mut leases, mut asking) = (Vec::new(), Vec::new());
        for name in self.all.unknown() {
            match ForeignSemaphore::read(name) {
                _ if self.known.get(*name).is_some_and(|info| info.session.is_none()) => roles.sessionless.push(*name),
                Some((_, SemaphoreNode::Lease(number))) => leases.push((number.map(|number| number.get()), *name)),
                Some((_, SemaphoreNode::Asks(number))) => asking.push((number.get(), *name)),
                None => {}
            }
        }
        leases.sort_unstable();
        asking.sort_unstable();
        // The one that asks first may have created its lease, and waits until others are given back.
        let of = |name: &str| self.known.get(name).map(|info| (info.session, info.czxid));
        let waits = |lease: &str, asks: &str| {
            of(lease).zip(of(asks)).is_some_and(|(lease, asks)| lease.0 == asks.0 && lease.1 > asks.1)
        };
        if let (Some((Some(_), newest)), Some((_, first))) = (leases.last(), asking.first())
            && waits(newest, first)
        {
            leases.pop();
        }
        roles.holders = leases.into_iter().map(|(_, name)| name).collect();
        roles.waiters = asking.into_iter().map(|(_, name)| (name, None)).collect();
        roles
    }

    /// The path of the node without a session that this contender waits for.
    fn blocked_by(&self, name: &str, discipline: Discipline) -> Option<String> {
        if self.skipped.is_empty() {
            return None;
        }
        let info = self.known.get(name)?;
        let of = |name: &&str| Some(Sessionless { name: (*name).to_owned(), czxid: self.known.get(*name)?.czxid });
        let nodes: Vec<_> = self.skipped.iter().filter_map(of).collect();
        let ahead = Sessionless::ahead_of(&nodes, &self.all, (self.node_format, discipline), name)?;
        info.is_blocked_by(ahead).then(|| node_of(self.path, &ahead.name))
    }
}

/// Returns the lock to whose queue a node belongs by its name, and the name in that queue: the lock at the node above, that lock beside
/// the node if the name is a lock's and a number, or the semaphore of a foreign client. `None` if it is not named like a contender.
/// `exists`: whether a node exists, because some names of a semaphore are also those of other nodes.
///
/// A directory whose name ends in a number is named so too. Only a contender has a session.
pub fn place_of(node: &str, exists: impl Fn(&str) -> bool) -> Option<(String, String)> {
    ForeignSemaphore::place_of(node, exists).or_else(|| own_place_of(node))
}

/// The same without semaphores.
pub fn own_place_of(node: &str) -> Option<(String, String)> {
    let parent = above(node);
    let name = node.rsplit('/').next().filter(|name| !name.is_empty())?;
    if NodeFormat::of_line(&[name]).is_some() {
        return Some((parent.to_owned(), name.to_owned()));
    }
    let lock = NodeFormat::beside(name)?;
    Some((child(parent, lock), name.strip_prefix(lock)?.to_owned()))
}

/// The path of a node of a lock's queue.
pub fn node_of(lock: &str, name: &str) -> String {
    if lock == "/" { format!("/{name}") } else { node_path(lock, name) }
}

/// The path of a node's child.
pub fn child(parent: &str, name: &str) -> String {
    format!("{}/{name}", parent.trim_end_matches('/'))
}

/// The format of the nodes of a queue, from their names in it.
pub(crate) fn format_of<S: AsRef<str>>(names: &[S]) -> NodeFormat {
    match names.iter().all(|name| NodeFormat::of_node(name.as_ref()) == NodeFormat::Numbered) && !names.is_empty() {
        true => NodeFormat::Numbered,
        false => NodeFormat::of(names),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::SessionId;

    use super::*;

    #[test]
    fn a_node_belongs_to_the_lock_above_it_or_beside_it() {
        let place = own_place_of;
        let at = |lock: &str, name: &str| Some((lock.to_owned(), name.to_owned()));
        assert_eq!(place("/locks/a/lock-0000000001"), at("/locks/a", "lock-0000000001"));
        assert_eq!(place("/locks/a/privateLock"), at("/locks/a", "privateLock"));
        assert_eq!(place("/locks/job0000000007"), at("/locks/job", "0000000007"));
        assert_eq!(place("/job0000000007"), at("/job", "0000000007"));
        assert_eq!(place("/lock-0000000001"), at("/", "lock-0000000001"));
        for directory in ["/", "/locks", "/locks/nightly", "/locks/0000000007"] {
            assert_eq!(place(directory), None, "{directory}");
        }
    }

    #[test]
    fn names_that_are_numbers_are_beside_the_path() {
        assert_eq!(format_of(&["0000000007", "0000000008"]), NodeFormat::Numbered);
        assert_eq!(format_of(&["read-0000000007", "0000000008"]), NodeFormat::Recipe);
        assert_eq!(format_of::<&str>(&[]), NodeFormat::default());
    }

    /// Curator's client creates its lease before it may have it.
    #[test]
    fn the_lease_of_the_client_that_asks_first_waits() {
        let id = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d";
        let names = [
            format!("leases/_c_{id}-lease-0000000004"),
            format!("leases/_c_{id}-lease-0000000005"),
            format!("locks/_c_{id}-lock-0000000009"),
            format!("locks/_c_{id}-lock-0000000008"),
        ];
        let node = |session, czxid| Node {
            data: b"10.0.0.7".to_vec(),
            czxid: Zxid(czxid),
            mzxid: Zxid(czxid),
            pzxid: Zxid(czxid),
            ctime_ms: 0,
            mtime_ms: 0,
            version: 0,
            owner: SessionId(session),
            children: 0,
        };
        let of = |sessions: [(i64, i64); 4]| -> HashMap<String, ContenderInfo> {
            let nodes = names.iter().zip(sessions);
            nodes
                .map(|(name, (session, czxid))| {
                    (name.clone(), ContenderInfo::read(name.clone(), &node(session, czxid)))
                })
                .collect()
        };
        let holders = |known: &HashMap<String, ContenderInfo>| {
            let roles = Contest::new("/pool", &names, known).roles(&OwnNode::default());
            assert_eq!(roles.waiters.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [&names[3], &names[2]]);
            roles.holders.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        // The first that asks has session 3.
        let waiting = of([(1, 10), (3, 21), (2, 30), (3, 20)]);
        assert_eq!(holders(&waiting), [names[0].clone()]);
        assert!(waiting.values().all(|info| (info.mode, info.permits, info.token) == ("permits", Some(1), None)));
        // It has not created its lease yet: one of an earlier hold is its own too.
        assert_eq!(holders(&of([(1, 10), (3, 11), (2, 30), (3, 20)])), names[..2]);
    }

    /// Nothing is known of the nodes but their names.
    #[test]
    fn contenders_that_are_not_read_count() {
        let names = ["write-0000000003", "read-0000000001", "read-0000000002", "README"];
        let known = HashMap::new();
        let roles = Contest::new("/locks/a", &names, &known).roles(&OwnNode::default());
        assert_eq!(roles.holders, ["read-0000000001", "read-0000000002"]);
        assert_eq!(roles.waiters, [("write-0000000003", None)]);
        assert_eq!((roles.unknown, roles.sessionless), (vec!["README"], Vec::new()));
        let names = ["permits-x", "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-permits-2-0000000001"];
        let contest = Contest::new("/locks/a", &names, &known);
        assert!(contest.counts_permits());
        assert!(
            contest.roles(&OwnNode { permits: Some(1), ..OwnNode::default() }).holders.is_empty(),
            "it asks for more than there is"
        );
    }
}
