//! The tracker against an oracle: random histories of queues, with events and reads that arrive late, and gaps.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper::admin::{ContenderInfo, Entries, LockInfo, SessionId, Walk};
use lockkeeper::contest::{Contest, Counted, OwnNode};
use lockkeeper_core::PathRecord;
use lockkeeper_observe::watch::{End, Fact, GapCause, Limits, Moment, Tracker, Wanted, What};
use lockkeeper_session::Zxid;
use lockkeeper_session::ensemble::{Children, Node, TreeChange, above};
use proptest::prelude::*;

/// What a lock's contenders are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kazoo,
    ReadWrite,
    Permits,
    Numbered,
}

const LOCKS: [(&str, Kind); 4] = [
    ("/locks/kazoo", Kind::Kazoo),
    ("/locks/curator", Kind::ReadWrite),
    ("/locks/app/pool", Kind::Permits),
    ("/locks/app/job", Kind::Numbered),
];

const PERMITS: u32 = 2;

#[derive(Clone, Debug)]
enum Action {
    Join { lock: usize, session: i64, reads: bool },
    Leave(usize),
    EndSession(i64),
    Garbage,
    RemoveGarbage,
    Deliver(usize),
    Answer,
    Disconnect,
    Walk,
    Reconnect,
}

/// What a server counts below a node.
#[derive(Clone, Copy, Default)]
struct Below {
    created: u32,
    changed: i64,
}

/// A server, as much of it as a tracker sees.
#[derive(Default)]
struct World {
    nodes: BTreeMap<String, Node>,
    below: BTreeMap<String, Below>,
    zxid: i64,
    attempts: u64,
    /// Events that the tracker has not seen. `None`: it is not connected.
    events: Option<VecDeque<(String, TreeChange)>>,
    sessions: i64,
    granted: BTreeSet<String>,
    ended: BTreeSet<String>,
    garbage: BTreeSet<String>,
    /// Nodes that ended with their session.
    expired: BTreeSet<String>,
}

impl World {
    /// The id of a session, which is used once.
    fn session(&self, session: i64) -> i64 {
        self.sessions + session
    }

    fn create(&mut self, path: &str, owner: i64, data: Vec<u8>) {
        self.zxid += 1;
        let (zxid, owner) = (Zxid(self.zxid), SessionId(owner));
        let (mtime_ms, ctime_ms) = (1_000, 1_000);
        let node =
            Node { data, czxid: zxid, mzxid: zxid, pzxid: zxid, ctime_ms, mtime_ms, version: 0, owner, children: 0 };
        self.nodes.insert(path.to_owned(), node);
        self.count(path, 1);
        self.tell(path, TreeChange::Created);
    }

    fn delete(&mut self, path: &str) {
        if self.nodes.remove(path).is_some() {
            self.ended.insert(path.to_owned());
            self.zxid += 1;
            self.count(path, 0);
            self.tell(path, TreeChange::Deleted);
        }
    }

    /// The server counts the changes below each node.
    fn count(&mut self, path: &str, created: u32) {
        let (parent, _) = path.rsplit_once('/').unwrap();
        let below = self.below.entry(parent.to_owned()).or_default();
        *below = Below { created: below.created + created, changed: self.zxid };
    }

    fn tell(&mut self, path: &str, change: TreeChange) {
        if let Some(events) = &mut self.events {
            events.push_back((path.to_owned(), change));
        }
        for (lock, kind) in LOCKS {
            self.granted.extend(self.holders(lock, kind));
        }
    }

    fn join(&mut self, lock: usize, session: i64, reads: bool) {
        let (path, kind) = LOCKS[lock];
        self.attempts += 1;
        let id = format!("{:032x}", u128::from(self.attempts) << 64 | 0x4000_8000);
        let directory = if kind == Kind::Numbered { above(path) } else { path };
        let number = self.below.get(directory).map_or(0, |below| below.created);
        let uuid = format!("{}-{}-{}-{}-{}", &id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]);
        let node = match (kind, reads) {
            (Kind::Kazoo, _) => format!("{path}/{id}__lock__{number:010}"),
            (Kind::ReadWrite, true) => format!("{path}/_c_{uuid}-__READ__{number:010}"),
            (Kind::ReadWrite, false) => format!("{path}/_c_{uuid}-__WRIT__{number:010}"),
            (Kind::Permits, _) => format!("{path}/_c_{uuid}-permits-1-{number:010}"),
            (Kind::Numbered, _) => format!("{path}{number:010}"),
        };
        if session == 0 {
            self.garbage.insert(node.clone());
        }
        self.create(&node, session, b"10.0.0.7".to_vec());
    }

    /// The nodes in the queue of a lock, in order.
    fn queue(&self, lock: &str, kind: Kind) -> Vec<(&String, &Node)> {
        let prefix = if kind == Kind::Numbered { lock.to_owned() } else { format!("{lock}/") };
        let is_in = |path: &str| {
            path.strip_prefix(&prefix).is_some_and(|rest| rest.len() >= 10 && !rest.contains('/') && rest != "config")
        };
        let mut queue: Vec<_> = self.nodes.iter().filter(|(path, _)| is_in(path)).collect();
        queue.sort_by_key(|(path, _)| path[path.len() - 10..].to_owned());
        queue
    }

    /// The lock as a client describes it that reads it now.
    fn described(&self, lock: &str, kind: Kind) -> Option<LockInfo> {
        let name = |path: &str| path[lock.len()..].trim_start_matches('/').to_owned();
        let known: HashMap<_, _> = self.queue(lock, kind).into_iter().map(|(path, node)| (name(path), node)).collect();
        let known: HashMap<_, _> =
            known.into_iter().map(|(name, node)| (name.clone(), ContenderInfo::read(name, node))).collect();
        let names: Vec<_> = known.keys().cloned().collect();
        let counted = |listed: &str| {
            let Below { created, changed } = self.below.get(listed).copied().unwrap_or_default();
            let entries = Entries::new(created, UNIX_EPOCH + Duration::from_millis(1_000));
            Some(Counted { entries: Some(entries), changed: Some(Zxid(changed)) })
        };
        let permits = (kind == Kind::Permits).then_some(PERMITS);
        let own = OwnNode { permits, ..OwnNode::default() };
        let info = Contest::new(lock, &names, &known).described(&own, counted);
        info.is_listed().then_some(info)
    }

    /// The holders, by the definition of each kind.
    fn holders(&self, lock: &str, kind: Kind) -> Vec<String> {
        let mut holders = Vec::new();
        for (path, node) in self.queue(lock, kind) {
            if node.owner.is_none() {
                // Foreign clients wait for it.
                break;
            }
            let reads = path.contains("READ");
            let admits = match kind {
                Kind::Kazoo | Kind::Numbered => holders.is_empty(),
                Kind::ReadWrite => holders.is_empty() || reads,
                Kind::Permits => holders.len() < PERMITS as usize,
            };
            if !admits {
                break;
            }
            holders.push(path.clone());
            if kind == Kind::ReadWrite && !reads {
                break;
            }
        }
        holders
    }

    fn walk(&self) -> Walk {
        let locks = LOCKS.into_iter().filter(|(_, kind)| *kind != Kind::Numbered).map(|(lock, _)| lock);
        let directories = ["/locks", "/locks/app"].into_iter().chain(locks);
        let mut listed: BTreeMap<String, Vec<String>> = directories.map(|path| (path.to_owned(), Vec::new())).collect();
        for path in self.nodes.keys().filter(|path| *path != "/locks") {
            let (parent, name) = path.rsplit_once('/').unwrap();
            listed.entry(parent.to_owned()).or_default().push(name.to_owned());
        }
        let children = |(path, names): (String, Vec<String>)| {
            let Below { created, changed } = self.below.get(&path).copied().unwrap_or_default();
            let changed = Zxid(changed);
            (path, Children { names, data_len: 0, created, ctime_ms: 1_000, changed })
        };
        Walk { listed: listed.into_iter().map(children).collect(), ..Walk::default() }
    }
}

struct Run {
    world: World,
    tracker: Tracker,
    reads: VecDeque<Wanted>,
    walk: Option<Walk>,
    ms: i64,
    facts: Vec<Fact>,
    has_gap: bool,
}

impl Run {
    fn new() -> Self {
        let mut world = World { events: Some(VecDeque::new()), ..World::default() };
        world.create("/locks", 0, Vec::new());
        world.create("/locks/app", 0, Vec::new());
        for (lock, kind) in LOCKS.into_iter().filter(|(_, kind)| *kind != Kind::Numbered) {
            let data = if kind == Kind::Permits { PathRecord::new(PERMITS).to_bytes() } else { Vec::new() };
            world.create(lock, 0, data);
        }
        let mut tracker = Tracker::new("/locks", Limits::default());
        tracker.begin_walk();
        tracker.end_walk(&world.walk(), Moment { ms: 0, wall_ms: 5_000 });
        let mut run =
            Run { world, tracker, reads: VecDeque::new(), walk: None, ms: 0, facts: Vec::new(), has_gap: false };
        run.collect();
        while !run.reads.is_empty() {
            run.answer();
        }
        run
    }

    fn now(&self) -> Moment {
        Moment { ms: self.ms, wall_ms: 5_000 + self.ms }
    }

    fn collect(&mut self) {
        self.reads.extend(self.tracker.take_wanted());
        self.facts.extend(self.tracker.take_facts());
    }

    fn deliver(&mut self, count: usize) {
        self.ms += 7;
        let at = self.now();
        for _ in 0..count {
            let Some((path, change)) = self.world.events.as_mut().and_then(VecDeque::pop_front) else { break };
            self.tracker.change(&path, change, at);
        }
        self.tracker.settle(at);
        self.collect();
    }

    /// A reply comes after all events about changes that it shows.
    fn answer(&mut self) {
        if self.world.events.is_none() {
            return;
        }
        self.deliver(usize::MAX);
        let Some(wanted) = self.reads.pop_front() else { return };
        self.tracker.answer(&wanted, self.world.nodes.get(&wanted.path), self.now());
        self.collect();
    }

    fn act(&mut self, action: Action) {
        self.ms += 1;
        let contenders = || {
            let all = LOCKS.into_iter().flat_map(|(lock, kind)| self.world.queue(lock, kind));
            all.map(|(path, node)| (path.clone(), node.owner)).collect::<Vec<_>>()
        };
        match action {
            Action::Join { lock, session, reads } => self.world.join(lock, self.world.session(session), reads),
            Action::Leave(at) => {
                let alive: Vec<_> = contenders().into_iter().filter(|(_, owner)| !owner.is_none()).collect();
                if !alive.is_empty() {
                    self.world.delete(&alive[at % alive.len()].0);
                }
            }
            Action::EndSession(session) => {
                let session = self.world.session(session);
                for (path, _) in contenders().into_iter().filter(|(_, owner)| owner.0 == session) {
                    self.world.expired.insert(path.clone());
                    self.world.delete(&path);
                }
                self.world.sessions += 10;
            }
            Action::Garbage => self.world.join(0, 0, false),
            Action::RemoveGarbage => {
                if let Some((path, _)) = contenders().into_iter().find(|(_, owner)| owner.is_none()) {
                    self.world.delete(&path);
                }
            }
            Action::Deliver(count) => self.deliver(count),
            Action::Answer => self.answer(),
            Action::Disconnect => {
                if self.world.events.take().is_some() {
                    self.has_gap = true;
                    self.walk = None;
                    self.reads.clear();
                    self.tracker.lose(self.now(), GapCause::Disconnected);
                    self.collect();
                }
            }
            Action::Walk => {
                if self.world.events.is_none() {
                    self.world.events = Some(VecDeque::new());
                    self.tracker.begin_walk();
                    // Its listings are from this moment; more happens before they have all arrived.
                    self.walk = Some(self.world.walk());
                }
            }
            Action::Reconnect => {
                if let Some(walk) = self.walk.take() {
                    self.tracker.end_walk(&walk, self.now());
                    self.collect();
                }
            }
        }
    }

    fn finish(&mut self) {
        [Action::Walk, Action::Reconnect].into_iter().for_each(|action| self.act(action));
        self.deliver(usize::MAX);
        while !self.reads.is_empty() {
            self.answer();
        }
        self.ms += 1_000;
        self.deliver(0);
        assert!(self.tracker.settles_at().is_none(), "an end is never told");
    }

    fn named(&self, which: impl Fn(&What) -> Option<String>) -> Vec<String> {
        self.facts.iter().filter_map(|fact| which(&fact.what)).collect()
    }
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (0..LOCKS.len(), 1..5_i64, any::<bool>()).prop_map(|(lock, session, reads)| Action::Join { lock, session, reads }),
        5 => (0..100_usize).prop_map(Action::Leave),
        1 => (1..5_i64).prop_map(Action::EndSession),
        1 => Just(Action::Garbage),
        1 => Just(Action::RemoveGarbage),
        4 => (1..4_usize).prop_map(Action::Deliver),
        4 => Just(Action::Answer),
    ]
}

fn with_gaps() -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => action(),
        1 => Just(Action::Disconnect),
        2 => Just(Action::Walk),
        2 => Just(Action::Reconnect),
    ]
}

fn once(what: &str, mut nodes: Vec<String>) -> BTreeSet<String> {
    let count = nodes.len();
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes.len(), count, "{what} is told twice");
    nodes.into_iter().collect()
}

/// What it says is in itself consistent, and the state at the end is the server's.
fn check(run: &Run) {
    let entered = once(
        "an arrival",
        run.named(|what| match what {
            What::Entered { contender } => Some(contender.node.to_string()),
            _ => None,
        }),
    );
    let granted = once(
        "a grant",
        run.named(|what| match what {
            What::Granted { contender, .. } => Some(contender.node.to_string()),
            _ => None,
        }),
    );
    let ended = once(
        "an end",
        run.named(|what| match what {
            What::Ended { contender, .. } | What::LeftWaiting { contender, .. } => Some(contender.node.to_string()),
            _ => None,
        }),
    );
    let held = once(
        "an end of a hold",
        run.named(|what| match what {
            What::Ended { contender, .. } => Some(contender.node.to_string()),
            _ => None,
        }),
    );
    assert!(granted.is_subset(&entered) && ended.is_subset(&entered) && held.is_subset(&granted));
    // A node without a session that was deleted before it could be read looks like a contender to every reader.
    let wrong: Vec<_> =
        granted.difference(&run.world.granted).filter(|path| !run.world.garbage.contains(*path)).collect();
    assert!(wrong.is_empty(), "{wrong:?} were never granted");
    for fact in &run.facts {
        if let What::Ended { contender, how: End::Released, .. } = &fact.what {
            assert!(!run.world.expired.contains(&*contender.node), "a loss is called a release");
        }
    }
    for (lock, kind) in LOCKS {
        let state = run.tracker.locks(run.now()).into_iter().find(|state| *state.path == *lock);
        let nodes = |all: &[ContenderInfo]| all.iter().map(|it| it.node_path(lock)).collect::<BTreeSet<_>>();
        let (holders, waiters) = state.as_ref().map(|s| (nodes(&s.holders), nodes(&s.waiters))).unwrap_or_default();
        let real: BTreeSet<_> = run.world.holders(lock, kind).into_iter().collect();
        let alive = run.world.queue(lock, kind).into_iter().filter(|(_, node)| !node.owner.is_none());
        let others: BTreeSet<_> = alive.map(|(path, _)| path.clone()).filter(|path| !real.contains(path)).collect();
        assert_eq!((holders, waiters), (real, others), "{lock}");
        assert_eq!(run.tracker.described(lock), run.world.described(lock, kind), "as a client reads it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_gaps_every_grant_and_every_end_is_told_once(actions in prop::collection::vec(action(), 1..80)) {
        let mut run = Run::new();
        actions.into_iter().for_each(|action| run.act(action));
        run.finish();
        check(&run);
        let granted = run.named(|what| match what {
            What::Granted { contender, .. } => Some(contender.node.to_string()),
            _ => None,
        });
        let missed: Vec<_> = run.world.granted.iter().filter(|path| !granted.contains(path)).collect();
        prop_assert!(missed.is_empty(), "{missed:?} were never told");
        prop_assert!(run.facts.iter().all(|fact| !fact.about));
    }

    #[test]
    fn after_gaps_the_state_is_right_and_nothing_is_told_twice(actions in prop::collection::vec(with_gaps(), 1..80)) {
        let mut run = Run::new();
        actions.into_iter().for_each(|action| run.act(action));
        run.finish();
        check(&run);
        let gaps = run.facts.iter().filter(|fact| matches!(fact.what, What::Gap { .. })).count();
        prop_assert!(gaps > 0 || !run.has_gap);
    }
}

/// A server that was cut off from the others has sent nothing for some time before its connection ended.
#[test]
fn a_gap_begins_at_the_last_moment_until_which_all_changes_are_known_to_have_been_seen() {
    let at = |ms| Moment { ms, wall_ms: 1_000_000 + ms };
    let mut tracker = Tracker::new("/locks", Limits::default());
    tracker.end_walk(&Walk::default(), at(0));
    tracker.prove(at(5_000));
    tracker.lose(at(9_000), GapCause::Disconnected);
    tracker.begin_walk();
    tracker.end_walk(&Walk::default(), at(10_000));
    let facts = tracker.take_facts();
    let gap = facts.iter().find_map(|fact| if let What::Gap { since, .. } = fact.what { Some(since) } else { None });
    assert_eq!(gap, Some(at(5_000)), "{facts:?}");
}

/// A class lock of two contenders, of which the first one holds; and the reads that are not answered.
fn handed_over(world: &mut World, read: impl Fn(&str) -> bool) -> (Tracker, Vec<Wanted>) {
    let at = |ms| Moment { ms, wall_ms: 1_000_000 + ms };
    let mut tracker = Tracker::new("/locks", Limits::default());
    tracker.end_walk(&Walk::default(), at(0));
    tracker.change("/locks/a", TreeChange::Created, at(0));
    for (node, session) in [("/locks/a/B-0000000000", 7), ("/locks/a/privateLock", 7), ("/locks/a/B-0000000001", 8)] {
        world.create(node, session, Vec::new());
        tracker.change(node, TreeChange::Created, at(1));
    }
    let (answered, left) = tracker.take_wanted().into_iter().partition(|wanted: &Wanted| read(&wanted.path));
    for wanted in Vec::from_iter::<Vec<_>>(answered) {
        tracker.answer(&wanted, world.nodes.get(&wanted.path), at(2));
    }
    (tracker, left)
}

/// A write does not say that the node is known: it came before the walk.
#[test]
fn a_contender_whose_node_is_written_during_a_walk_is_found() {
    let at = |ms| Moment { ms, wall_ms: 1_000_000 + ms };
    let (mut world, mut tracker) = (World::default(), Tracker::new("/locks", Limits::default()));
    world.join(0, 7, false);
    let node = world.nodes.keys().next().unwrap();
    tracker.begin_walk();
    tracker.change(node, TreeChange::Written, at(1));
    tracker.end_walk(&world.walk(), at(2));
    assert!(tracker.take_wanted().iter().any(|wanted| wanted.path == *node));
}

/// The read of an earlier marker says nothing of a later one.
#[test]
fn the_read_of_a_holder_marker_that_has_gone_does_not_count_for_the_next_one() {
    let at = |ms| Moment { ms, wall_ms: 1_000_000 + ms };
    let (mut world, marker) = (World::default(), "/locks/a/privateLock");
    let (mut tracker, late) = handed_over(&mut world, |path| path != marker);
    let first = world.nodes[marker].clone();
    tracker.change(marker, TreeChange::Deleted, at(3));
    tracker.change("/locks/a/B-0000000000", TreeChange::Deleted, at(3));
    world.create(marker, 8, Vec::new());
    tracker.change(marker, TreeChange::Created, at(4));
    tracker.answer(&late[0], Some(&first), at(5));
    for wanted in tracker.take_wanted() {
        tracker.answer(&wanted, world.nodes.get(&wanted.path), at(6));
    }
    let granted = |fact: &Fact| matches!(&fact.what, What::Granted { contender, .. } if contender.node.ends_with("1"));
    assert!(tracker.take_facts().iter().any(granted));
}

/// It may be the contender that the holder marker marks.
#[test]
fn a_contender_that_goes_before_it_is_read_is_not_told_as_a_waiter_without_doubt() {
    let at = |ms| Moment { ms, wall_ms: 1_000_000 + ms };
    let (mut world, node) = (World::default(), "/locks/a/B-0000000000");
    for is_answered in [false, true] {
        let (mut tracker, late) = handed_over(&mut world, |path| path != node);
        // It was gone when the read came to the server.
        if is_answered {
            tracker.answer(&late[0], None, at(3));
            tracker.take_facts();
        }
        tracker.change(node, TreeChange::Deleted, at(3));
        tracker.change("/locks/a/privateLock", TreeChange::Deleted, at(3));
        tracker.answer(&late[0], None, at(4));
        tracker.settle(at(60_000));
        let facts = tracker.take_facts();
        let left = facts.iter().find(|fact| matches!(fact.what, What::LeftWaiting { .. })).unwrap();
        assert!(left.about, "{is_answered}: {facts:?}");
    }
}

/// A hold of a lock with classes may be over before the node that marks its holder is read.
#[test]
fn a_hold_whose_marker_was_not_read_is_not_told_as_a_wait_without_doubt() {
    let at = |ms| Moment { ms, wall_ms: 1_000_000 + ms };
    for (comes, is_answered, goes_first) in
        [(false, false, true), (true, false, true), (true, true, true), (true, false, false)]
    {
        let mut tracker = Tracker::new("/locks", Limits::default());
        tracker.end_walk(&Walk::default(), at(0));
        tracker.change("/locks/a", TreeChange::Created, at(0));
        let (node, marker) = ("/locks/a/B-0000000000", "/locks/a/privateLock");
        let mut world = World::default();
        world.create(node, 7, Vec::new());
        let found = world.nodes[node].clone();
        tracker.change(node, TreeChange::Created, at(1));
        for wanted in tracker.take_wanted() {
            tracker.answer(&wanted, (wanted.path == node).then_some(&found), at(2));
        }
        tracker.take_facts();
        if comes {
            tracker.change(marker, TreeChange::Created, at(3));
            // It is gone when the read comes to the server.
            for wanted in tracker.take_wanted().iter().filter(|_| is_answered) {
                tracker.answer(wanted, None, at(4));
            }
            if !goes_first {
                tracker.change(node, TreeChange::Deleted, at(4));
            }
            tracker.change(marker, TreeChange::Deleted, at(4));
        }
        tracker.change(node, TreeChange::Deleted, at(5));
        tracker.settle(at(60_000));
        let facts = tracker.take_facts();
        let left = facts.iter().find(|fact| matches!(fact.what, What::LeftWaiting { .. })).unwrap();
        assert_eq!(left.about, comes, "{facts:?}");
    }
}

/// A lock as a snapshot has it: who holds it, who waits, and since when.
fn snapshot(tracker: &Tracker, lock: &str, now: Moment) -> [Vec<(String, i64)>; 2] {
    let lock = tracker.lock_head(lock, now, usize::MAX).unwrap();
    let ms = |it: &ContenderInfo| it.observed.unwrap().since.duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    [lock.holders, lock.waiters].map(|all| all.iter().map(|it| (it.node_path(&lock.path), ms(it))).collect())
}

/// As `show` says it: the lock is not available, and no contender is to blame.
#[test]
fn an_abandoned_hold_is_a_holder_in_a_snapshot_whether_its_begin_was_seen_or_not() {
    let at = |ms| Moment { ms, wall_ms: 1_000_000 + ms };
    let tombstone = "/locks/kazoo/_s_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-x-d30000";
    let waiter = "/locks/kazoo/_c_1a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-d30000-lock-0000000001";
    for is_seen in [false, true] {
        let (mut world, mut tracker) = (World::default(), Tracker::new("/locks", Limits::default()));
        if is_seen {
            tracker.end_walk(&Walk::default(), at(0));
            tracker.change("/locks/kazoo", TreeChange::Created, at(0));
        }
        for (node, session) in [(tombstone, 0), (waiter, 8)] {
            world.create(node, session, Vec::new());
            if is_seen {
                tracker.change(node, TreeChange::Created, at(1));
            }
        }
        if !is_seen {
            tracker.end_walk(&world.walk(), at(2));
        }
        for wanted in tracker.take_wanted() {
            tracker.answer(&wanted, world.nodes.get(&wanted.path), at(3));
        }
        tracker.take_facts();
        let [holders, waiters] = snapshot(&tracker, "/locks/kazoo", at(9));
        assert_eq!((holders[0].0.as_str(), waiters[0].0.as_str()), (tombstone, waiter), "{is_seen}");
        assert_eq!((holders.len(), waiters.len(), tracker.since("/locks/kazoo").holders), (1, 1, 0), "{is_seen}");
    }
}

/// The marker may be another contender's by now, and the queue alone says something else.
#[test]
fn in_a_gap_a_snapshot_has_the_holder_that_was_known_last() {
    let at = |ms| Moment { ms, wall_ms: 1_000_000 + ms };
    let (mut world, mut tracker) = (World::default(), Tracker::new("/locks", Limits::default()));
    tracker.end_walk(&Walk::default(), at(0));
    tracker.change("/locks/a", TreeChange::Created, at(0));
    let [first, second] = [0, 1].map(|number| format!("/locks/a/B-000000000{number}"));
    for (node, session) in [(first.as_str(), 7), (&second, 8), ("/locks/a/privateLock", 8)] {
        world.create(node, session, Vec::new());
        tracker.change(node, TreeChange::Created, at(1));
    }
    for wanted in tracker.take_wanted() {
        tracker.answer(&wanted, world.nodes.get(&wanted.path), at(2));
    }
    tracker.take_facts();
    let before = snapshot(&tracker, "/locks/a", at(3));
    assert_eq!(before, [vec![(second, 1_000_001)], vec![(first, 1_000_001)]]);
    tracker.lose(at(4), GapCause::Disconnected);
    assert_eq!(snapshot(&tracker, "/locks/a", at(3)), before);
}
