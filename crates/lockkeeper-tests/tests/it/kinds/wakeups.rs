//! The cost of a release for the waiters, counted on their connections, for queues of 10, 100 and 1 000.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use lockkeeper::Lockkeeper;
use lockkeeper::error::AdminError;
use lockkeeper_core::ReleaseRecord;
use lockkeeper_helix::HelixLock;
use lockkeeper_testkit::apache::four_letter_word;
use lockkeeper_testkit::proxy::{Counts, OpCode, Proxy, What};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use crate::support::{Held, Kind, Lock, STEADY, World, eventually, on_the_embedded_server_for, watches_set};

on_the_embedded_server_for!(
    [
        native Native, kazoo Kazoo, numbered Numbered, write Write, recipe_write RecipeWrite, upgradeable Upgradeable,
        permits Permits, foreground Foreground, background Background
    ]
    a_release_costs_the_same_for_every_queue_length,
);

on_the_embedded_server_for!(
    [native Native, kazoo Kazoo, recipe Recipe, write Write]
    a_release_far_back_in_a_queue_of_processes_costs_a_transaction_and_a_read,
    a_record_of_a_release_hinders_no_other_kind_of_lock,
);

on_the_embedded_server_for!(
    [shared Write]
    a_writers_release_wakes_only_the_readers_directly_behind_it,
    a_writers_release_grants_the_readers_of_its_process_without_a_round_trip,
);

on_the_embedded_server_for!(
    [classes Background]
    a_release_between_two_classes_wakes_the_first_of_each_at_most,
);

const QUEUES: [u64; 3] = [10, 100, 1_000];

/// Waiters of four sessions behind one proxy.
struct Waiters {
    proxy: std::sync::Arc<Proxy>,
    server: SocketAddr,
    keepers: Vec<Lockkeeper>,
    tasks: Vec<JoinHandle<()>>,
}

impl Waiters {
    async fn new(world: &World) -> Waiters {
        let proxy = world.proxy().await;
        let mut keepers = Vec::new();
        for _ in 0..4 {
            keepers.push(world.keeper_through(&proxy, STEADY).await);
        }
        Waiters { proxy, server: world.embedded().addr(), keepers, tasks: Vec::new() }
    }

    /// Adds that many waiters, and returns when they have set their watches and send nothing more.
    async fn add_waiters(&mut self, path: &str, kind: Kind, count: u64) -> UnboundedReceiver<Held> {
        let before = self.contenders(&kind.node(path, "")).len() as u64;
        let (granted, grants) = unbounded_channel();
        for (_, keeper) in (0..count).zip(self.keepers.iter().cycle()) {
            let (lock, granted): (Lock, _) = (kind.lock(keeper, path), granted.clone());
            // A guard that cannot be sent is dropped, which releases the lock.
            self.tasks.push(tokio::spawn(async move { drop(granted.send(lock.acquire().await.unwrap())) }));
        }
        // Each watches its own node, once it has waited for a while.
        eventually("all waiters watch their own nodes", async || {
            let contenders = self.contenders(&kind.node(path, ""));
            contenders.len() as u64 >= before + count && contenders.is_subset(&self.listed("wchc"))
        })
        .await;
        self.quiet().await;
        grants
    }

    /// The sessions with their nodes below this prefix.
    fn contenders(&self, nodes: &str) -> BTreeSet<(String, String)> {
        self.listed("dump").into_iter().filter(|(_, node)| node.starts_with(nodes)).collect()
    }

    /// The sessions with the paths that the server lists below them.
    fn listed(&self, word: &str) -> BTreeSet<(String, String)> {
        let (answer, mut session) = (four_letter_word(self.server, word).unwrap(), "");
        let mut listed = BTreeSet::new();
        for line in answer.lines() {
            match line.strip_prefix('\t') {
                Some(path) => _ = listed.insert((session.to_owned(), path.to_owned())),
                None => session = line.trim_end_matches(':'),
            }
        }
        listed
    }

    /// Returns when the waiters send nothing more.
    async fn quiet(&self) {
        let mut quiet = 0;
        while quiet < 2 {
            let since = self.since(&self.proxy.counts()).await;
            quiet = if asked(&since) == 0 { quiet + 1 } else { 0 };
        }
    }

    /// Returns the events and requests of the waiters since then. The replies to the queries below come after all earlier
    /// events.
    async fn since(&self, before: &Counts) -> Counts {
        let asked = futures_util::future::join_all(self.keepers.iter().map(|keeper| async {
            let shown = keeper.admin().show("/not/there").await;
            assert!(matches!(shown, Err(AdminError::NoSuchLock { .. })), "{shown:?}");
        }));
        asked.await;
        self.proxy.counts().since(before)
    }

    async fn end(self, world: &World, path: &str) {
        self.tasks.iter().for_each(JoinHandle::abort);
        eventually("no contender is left", async || world.children(path).await.is_empty()).await;
    }
}

/// Counts the waiters' requests (pings are never counted) without the queries of [`Waiters::since`], a write and two listings per session.
/// Heartbeats and the queries' writes are checks, and releases are counted elsewhere. A read of several lists gets the data of each
/// node too.
fn asked(since: &Counts) -> u64 {
    let of = |op| since.operations.of(op);
    since.operations.total() - of(OpCode::Check) - of(OpCode::Delete) - of(OpCode::GetChildren) - 8
}

/// Counts the requests that a proxy saw since then for the lock at `path`, without deletes. A session's heartbeats are for another
/// path, so they do not count; a transaction has no path.
fn asked_for(path: &str, proxy: &Proxy, since: usize) -> usize {
    let records = proxy.records().into_iter().skip(since);
    let counts = |what: What| match what {
        What::Request { op: OpCode::Ping | OpCode::Delete, .. } => false,
        What::Request { path: Some(asked), .. } => asked.starts_with(path),
        What::Request { path: None, .. } => true,
        _ => false,
    };
    records.filter(|record| counts(record.what.clone())).count()
}

/// N-20, T-08, C-14: for a thousand waiters the same small number of events and requests as for ten.
async fn a_release_costs_the_same_for_every_queue_length(world: &World) {
    let mut seen = Vec::new();
    for count in QUEUES {
        let path = world.path(&format!("queue-of-{count}"));
        let holder = world.keeper().await;
        let mut guard = world.kind.lock(&holder, &path).acquire().await.unwrap();
        let mut waiters = Waiters::new(world).await;
        let mut grants = waiters.add_waiters(&path, world.kind, count).await;
        for _ in 0..4 {
            // The first waiter may still be learning of the grant before.
            waiters.quiet().await;
            let (before, server) = (waiters.proxy.counts(), world.embedded().stats().events_sent);
            let records = waiters.proxy.records().len();
            guard.release().await.unwrap();
            guard = grants.recv().await.unwrap();
            let since = waiters.since(&before).await;
            let events = world.embedded().stats().events_sent - server;
            seen.push((
                count,
                since.watch_events,
                asked_for(world.kind.parent(&path), &waiters.proxy, records),
                events,
            ));
            assert!(grants.try_recv().is_err(), "two were granted");
        }
        drop((grants, guard));
        waiters.end(world, &path).await;
    }
    println!("(waiters, events to them, their requests, all events) of each release: {seen:?}");
    // The next waiter gets the event and lists. A semaphore's next holder also announces the grant in its node, which it and
    // the waiter behind it see. That waiter lists, because it is the first waiter now.
    let (events, requests) = match world.kind {
        Kind::Permits => (5, 12),
        Kind::Foreground | Kind::Background => (3, 6),
        // It lists below the path, too.
        Kind::Numbered => (2, 5),
        kind if kind.is_unprotected() => (2, 4),
        _ => (2, 3),
    };
    for (count, received, sent, all) in seen {
        assert!((1..=events).contains(&received) && sent <= requests, "of {count}: {received} events, {sent} requests");
        assert!(all <= events + 2, "of {count}: {all} events in all");
    }
}

/// T-08: a contender with 16 or more ahead learns from a short record that the one before it has held. It lists nothing, and a
/// handoff takes less than a kilobyte for any length of the queue.
async fn a_release_far_back_in_a_queue_of_processes_costs_a_transaction_and_a_read(world: &World) {
    /// The first contender that many are ahead of lists, and the one behind it finds its record.
    const LISTS: usize = 16;
    const LAST: usize = LISTS + 8;
    let (path, proxy) = (world.lock(), world.proxy().await);
    let mut waiters = Vec::new();
    for _ in 0..=LAST {
        let keeper = world.keeper_through(&proxy, STEADY).await;
        waiters.push((world.enqueue(world.kind.lock(&keeper, &path).acquire()).await, keeper));
    }
    // Each has waited long enough to watch its own node, and each waiter watches the one before it.
    proxy.wait_until(|counts| counts.delivered.of(OpCode::GetData) == 2 * LAST as u64 + 1).await;
    let mut held: Option<Held> = None;
    for (ahead, (waiter, keeper)) in waiters.into_iter().enumerate() {
        let (before, bytes) = (proxy.counts(), world.embedded().stats());
        if let Some(held) = held.take() {
            held.release().await.unwrap();
        }
        held = Some(waiter.granted().await);
        // The replies to a query come behind all earlier events.
        let shown = keeper.admin().show("/not/there").await;
        assert!(matches!(shown, Err(AdminError::NoSuchLock { .. })), "{shown:?}");
        let (since, now) = (proxy.counts().since(&before), world.embedded().stats());
        let bytes = now.bytes_sent + now.bytes_received - bytes.bytes_sent - bytes.bytes_received;
        // A query costs two listings, and a node without an id in its name is read before it is deleted.
        let (writes, records) = (since.requested.of(OpCode::Multi), since.requested.of(OpCode::MultiRead));
        let lists = since.requested.of_any(OpCode::LISTS) - 2 - records;
        let reads = since.requested.of(OpCode::GetData) - u64::from(ahead > 0 && world.kind.is_unprotected());
        let expected = match ahead {
            0 => (0, 0, 0, 0),
            // A writer may have become a reader in its place.
            1 => (0, 0, 0, u64::from(matches!(world.kind, Kind::Write | Kind::Kazoo))),
            2..LISTS => (0, 0, 0, 1),
            LISTS => (0, 1, 0, 1),
            _ => (1, 1, 0, 0),
        };
        assert_eq!((writes, records, reads, lists), expected, "{ahead} were ahead: {since:?}");
        // The reads of the own node, with the record and before its delete, have its data.
        let most = if world.kind.is_unprotected() { 1_800 } else { 1_500 };
        assert!(ahead <= LISTS || bytes < most, "{ahead} were ahead: {bytes} bytes with the query");
    }
    held.unwrap().release().await.unwrap();
}

/// The path of a lock that had a long queue is as good as new for a lock of any other kind.
async fn a_record_of_a_release_hinders_no_other_kind_of_lock(world: &World) {
    let path = world.lock();
    let mut waiters = Vec::new();
    for _ in 0..20 {
        let keeper = world.keeper().await;
        waiters.push(world.enqueue(world.kind.lock(&keeper, &path).acquire()).await);
    }
    for waiter in waiters {
        waiter.granted().await.release().await.unwrap();
    }
    let (data, _) = world.observer.get_data(&path).await.unwrap();
    assert!(ReleaseRecord::from_bytes(&data).is_some(), "{}", data.escape_ascii());
    let keeper = world.keeper().await;
    keeper.semaphore(&path, 3).try_acquire().await.unwrap().release().await.unwrap();
    world.observer.set_data(&path, &data, None).await.unwrap();
    HelixLock::new(&keeper, &*path, STEADY).try_acquire().await.unwrap().release().await.unwrap();
}

/// T-23, N-26: all these readers are granted together, without another request; one event per session, because the server sends
/// each session one event for a node. The writer behind them and the readers behind that writer get no event.
async fn a_writers_release_wakes_only_the_readers_directly_behind_it(world: &World) {
    for count in QUEUES {
        let path = world.path(&format!("batch-of-{count}"));
        let holder = world.keeper().await;
        let guard = Kind::Write.lock(&holder, &path).acquire().await.unwrap();
        let (mut near, mut far) = (Waiters::new(world).await, Waiters::new(world).await);
        let mut batch = near.add_waiters(&path, Kind::Read, count).await;
        let mut writer = far.add_waiters(&path, Kind::Write, 1).await;
        let mut later = far.add_waiters(&path, Kind::Read, count).await;
        let before = [near.proxy.counts(), far.proxy.counts()];
        guard.release().await.unwrap();
        let mut inside = Vec::new();
        for _ in 0..count {
            inside.push(batch.recv().await.unwrap());
        }
        let here = near.since(&before[0]).await;
        let there = far.since(&before[1]).await;
        // On a busy machine they wait for more than a second. Then each hold writes when it began, which is an event for itself, and
        // watches its node again; so does the writer that watches the last of them.
        let dated = here.operations.of(OpCode::SetData);
        assert!((4..=4 + dated).contains(&here.watch_events) && asked(&here) <= 2 * dated, "{count}: {here:?}");
        let watched = dated.min(1);
        assert!(there.watch_events <= watched && asked(&there) <= watched, "{count}: {there:?}");
        assert!(writer.try_recv().is_err() && later.try_recv().is_err());
        drop(inside);
        drop(writer.recv().await.unwrap());
        for _ in 0..count {
            drop(later.recv().await.unwrap());
        }
        near.end(world, &path).await;
        far.end(world, &path).await;
    }
}

/// The readers directly behind a writer of their process read before its delete is sent; a writer behind them waits for all.
async fn a_writers_release_grants_the_readers_of_its_process_without_a_round_trip(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let lock = |kind: Kind| kind.lock(&keeper, &world.lock());
    let guard = lock(Kind::Write).acquire().await.unwrap();
    watches_set(&proxy, 1).await;
    let before = proxy.counts();
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(world.enqueue(lock(Kind::Read).acquire()).await);
    }
    let writer = world.enqueue(lock(Kind::Write).acquire()).await;
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) == 4).await;
    let before = proxy.counts();
    let nothing_passes = proxy.on(OpCode::Delete).hold_request();
    let released = tokio::spawn(guard.release());
    let mut reading = Vec::new();
    for reader in readers {
        reading.push(reader.granted().await);
    }
    let since = proxy.counts().since(&before);
    assert_eq!((since.delivered.total(), since.watch_events), (0, 0), "{since:?}");
    assert!(writer.waits());
    nothing_passes.release();
    released.await.unwrap().unwrap();
    let last = reading.pop().unwrap();
    for guard in reading {
        guard.release().await.unwrap();
    }
    assert!(writer.waits(), "a reader holds");
    last.release().await.unwrap();
    writer.granted().await.release().await.unwrap();
}

/// The marker's deletion wakes the first foreground waiter, and the deletion of the holder's node the waiter behind it.
async fn a_release_between_two_classes_wakes_the_first_of_each_at_most(world: &World) {
    for count in [10, 100] {
        let path = world.path(&format!("classes-of-{count}"));
        let holder = world.keeper().await;
        let guard = Kind::Background.lock(&holder, &path).acquire().await.unwrap();
        let mut waiters = Waiters::new(world).await;
        let mut background = waiters.add_waiters(&path, Kind::Background, count).await;
        let mut foreground = waiters.add_waiters(&path, Kind::Foreground, count).await;
        let mut guard = Some(guard);
        let mut held: Option<Held> = None;
        for _ in 0..3 {
            let before = waiters.proxy.counts();
            match guard.take() {
                Some(guard) => guard.release().await.unwrap(),
                None => held.take().unwrap().release().await.unwrap(),
            }
            held = Some(foreground.recv().await.unwrap());
            let since = waiters.since(&before).await;
            assert!(since.watch_events <= 3 && asked(&since) <= 8, "{count}: {since:?}");
            assert!(background.try_recv().is_err(), "the background was granted first");
        }
        drop((held, foreground, background));
        waiters.end(world, &path).await;
    }
}
