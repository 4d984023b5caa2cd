//! Clients that are written from the documents alone, without a line of this library, in one queue with ours.
//!
//! Each client does what its document prints, on a foreign client's session. Only two mistakes of the printed code are
//! mended: an empty listing is not indexed, and a name is compared whole.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper::error::{AcquireError, Error, Mismatch};
use lockkeeper::{Acquire, DistributedLock, Holding, Lockkeeper, NodeFormat};
use lockkeeper_contentserv::MonitorLock;
use lockkeeper_testkit::proxy::{OpCode, Record, What};
use zookeeper_client as zk;

use super::on_every_server;
use crate::support::{PATIENCE, STEADY, Waiter, World, eventually};

on_every_server!(
    the_documents_distributed_lock_queues_with_ours,
    the_recipes_exclusive_lock_queues_with_ours,
    the_recipes_readers_and_writers_queue_with_ours,
    the_recipes_recoverable_locks_answer_each_other,
    the_documents_foreground_and_background_requests_queue_with_ours,
    contenders_of_the_other_layout_are_refused_by_name,
    one_session_is_refused_in_the_other_layout_too,
    every_other_lock_of_a_new_path_is_refused_beside_a_numbered_client,
    several_locks_with_a_path_that_a_numbered_client_holds_are_refused,
    a_new_path_costs_no_round_trip_more,
    a_directory_that_is_named_like_a_contender_refuses_nobody,
    the_base_path_stays_and_the_object_leaves_nothing_else,
);

/// The rounds of each client in a race.
const ROUNDS: usize = 20;

/// A release that waits to be awaited.
struct Release(BoxFuture<'static, ()>);

/// A client of a document.
#[derive(Clone)]
struct Plain {
    session: zk::Client,
    document: Document,
    base: String,
    name: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Document {
    /// The class `DistributedLock`: the nodes are base path, name and number; every change wakes every client.
    DistributedLock,
    /// ZooKeeper's recipes: a client watches the nearest node before its own that it must wait for.
    Recipe,
    /// Contentserv's write lock: the first by name creates `privateLock`; every change wakes every client.
    Contentserv,
}

impl Plain {
    async fn new(world: &World, document: Document, base: &str, name: &'static str) -> Plain {
        let session = zk::Client::connect(&world.servers()).await.unwrap();
        Plain { session, document, base: base.to_owned(), name }
    }

    /// Acquires the lock and returns the node.
    async fn lock(&self) -> String {
        let everyone = zk::Acls::anyone_all();
        if self.document != Document::DistributedLock {
            _ = self.session.create(&self.base, b"", &zk::CreateMode::Persistent.with_acls(everyone)).await;
        }
        let options = zk::CreateMode::EphemeralSequential.with_acls(everyone);
        let (_, number) = self.session.create(&format!("{}/{}", self.base, self.name), b"", &options).await.unwrap();
        let own = format!("{}{number}", self.name);
        let node = format!("{}/{own}", self.base);
        loop {
            match self.document {
                Document::Recipe => {
                    let mut names = self.session.list_children(&self.base).await.unwrap();
                    names.sort_by_key(|name| name[name.len() - 10..].to_owned());
                    let before = names.iter().take_while(|name| **name != own);
                    let reads = self.name == "read-";
                    match before.filter(|name| !reads || name.starts_with("write-")).last() {
                        None => return node,
                        Some(name) => {
                            let path = format!("{}/{name}", self.base);
                            let (stat, changed) = self.session.check_and_watch_stat(&path).await.unwrap();
                            if stat.is_some() {
                                changed.changed().await;
                            }
                        }
                    }
                }
                Document::DistributedLock => {
                    let (mut names, _, changed) = self.session.get_and_watch_children(&self.base).await.unwrap();
                    names.sort();
                    if names.first() == Some(&own) {
                        return node;
                    }
                    changed.changed().await;
                }
                Document::Contentserv => {
                    let (mut names, _, changed) = self.session.get_and_watch_children(&self.base).await.unwrap();
                    let is_available = !names.iter().any(|name| name == "privateLock");
                    names.retain(|name| name != "privateLock");
                    names.sort();
                    if names.first() == Some(&own) && is_available {
                        let private = format!("{}/privateLock", self.base);
                        let options = zk::CreateMode::Ephemeral.with_acls(everyone);
                        match self.session.create(&private, b"", &options).await {
                            Ok(_) => return node,
                            Err(zk::Error::NodeExists) => continue,
                            Err(error) => panic!("{private}: {error}"),
                        }
                    }
                    changed.changed().await;
                }
            }
        }
    }

    async fn unlock(&self, node: &str) {
        self.session.delete(node, None).await.unwrap();
        if self.document == Document::Contentserv {
            self.session.delete(&format!("{}/privateLock", self.base), None).await.unwrap();
        }
    }
}

impl Plain {
    /// Waits until another client asks for the lock as the recoverable locks of the recipes do, then unlocks.
    async fn unlock_when_asked(self, node: String) {
        loop {
            let (data, _, changed) = self.session.get_and_watch_data(&node).await.unwrap();
            if data == b"unlock" {
                return self.unlock(&node).await;
            }
            changed.changed().await;
        }
    }
}

/// How one side locks: the future acquires the lock and returns its release.
type Locks = Arc<dyn Fn() -> BoxFuture<'static, Release> + Send + Sync>;

fn theirs(client: Plain) -> Locks {
    Arc::new(move || {
        let client = client.clone();
        async move {
            let node = client.lock().await;
            Release(async move { client.unlock(&node).await }.boxed())
        }
        .boxed()
    })
}

fn ours(request: impl Fn() -> Acquire<Holding> + Send + Sync + 'static) -> Locks {
    Arc::new(move || {
        let request = request().into_future();
        async move {
            let held = request.await.unwrap();
            Release(async move { held.release().await.unwrap() }.boxed())
        }
        .boxed()
    })
}

fn object(keeper: &Lockkeeper, base: &str, name: &str) -> Locks {
    let (keeper, base, name) = (keeper.clone(), base.to_owned(), name.to_owned());
    Arc::new(move || {
        let lock = DistributedLock::new(&keeper, &base, &name);
        async move {
            lock.lock().await.unwrap();
            Release(async move { lock.unlock().await.unwrap() }.boxed())
        }
        .boxed()
    })
}

fn monitor(keeper: &Lockkeeper, object: &str, background: bool) -> Locks {
    let (keeper, object) = (keeper.clone(), object.to_owned());
    Arc::new(move || {
        let lock = MonitorLock::new("Save Content", &keeper, &object);
        let lock = if background { lock.background() } else { lock };
        async move {
            lock.lock().await.unwrap();
            Release(async move { lock.unlock().await.unwrap() }.boxed())
        }
        .boxed()
    })
}

/// Each side waits while the other one holds, and gets the lock when the other one releases it.
async fn excludes_both_ways(world: &World, queue: &str, one: &Locks, other: &Locks) {
    for (first, second) in [(one, other), (other, one)] {
        let release = first().await;
        let held = world.children(queue).await.len();
        let waiting = crate::support::spawn(second());
        eventually("the second is in the queue", async || world.children(queue).await.len() > held).await;
        assert!(!waiting.is_finished());
        release.0.await;
        waiting.await.unwrap().0.await;
        eventually("the queue is empty", async || world.children(queue).await.is_empty()).await;
    }
}

/// No update of a counter is lost among these clients.
async fn loses_no_update(queue: &str, clients: &[Locks]) {
    let counter = Arc::new(tokio::sync::Mutex::new(0));
    let workers: Vec<_> = clients
        .iter()
        .map(|locks| {
            let (locks, counter) = (locks.clone(), counter.clone());
            crate::support::spawn(async move {
                for _ in 0..ROUNDS {
                    let release = locks().await;
                    // Both would fail with two holders: the lock of the process, and the count.
                    let mut value = counter.try_lock().expect("another client holds the lock");
                    let read = *value;
                    tokio::task::yield_now().await;
                    *value = read + 1;
                    drop(value);
                    release.0.await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(*counter.lock().await, clients.len() * ROUNDS, "{queue}");
}

/// N-01, N-06, N-10, D-03, D-07: a client written from the document and ours are in one queue, in both directions.
async fn the_documents_distributed_lock_queues_with_ours(world: &World) {
    let base = world.path("base");
    world.make(&base).await;
    let (mine, more) = (world.keeper().await, world.keeper().await);
    let mut plain = Vec::new();
    for _ in 0..2 {
        plain.push(theirs(Plain::new(world, Document::DistributedLock, &base, "nightly").await));
    }
    let ours = [object(&mine, &base, "nightly"), object(&more, &base, "nightly")];
    excludes_both_ways(world, &base, &plain[0], &ours[0]).await;
    plain.extend(ours);
    loses_no_update(&base, &plain).await;
    assert!(world.children(&base).await.is_empty());
}

/// T-01, T-12: the same for the exclusive lock of the recipes.
async fn the_recipes_exclusive_lock_queues_with_ours(world: &World) {
    let path = world.path("lock");
    let keeper = world.keeper().await;
    let plain = theirs(Plain::new(world, Document::Recipe, &path, "lock-").await);
    let mutex = keeper.mutex(&path).node_format(NodeFormat::Recipe);
    let ours = ours(move || mutex.acquire().any());
    excludes_both_ways(world, &path, &plain, &ours).await;
    loses_no_update(&path, &[plain.clone(), ours.clone(), plain, ours]).await;
}

/// N-23, N-27, T-13, T-18, T-19: a plain reader shares the lock with our reader; writers exclude every other contender.
async fn the_recipes_readers_and_writers_queue_with_ours(world: &World) {
    let path = world.path("lock");
    let keeper = world.keeper().await;
    let reader = theirs(Plain::new(world, Document::Recipe, &path, "read-").await);
    let writer = theirs(Plain::new(world, Document::Recipe, &path, "write-").await);
    let lock = keeper.rwlock(&path).node_format(NodeFormat::Recipe);
    let our_reader = ours({
        let lock = lock.clone();
        move || lock.read().acquire().any()
    });
    let our_writer = ours(move || lock.write().acquire().any());
    for (one, other) in [(&reader, &our_reader), (&our_reader, &reader)] {
        let (one, other) = (one().await, other().await);
        one.0.await;
        other.0.await;
    }
    excludes_both_ways(world, &path, &writer, &our_writer).await;
    excludes_both_ways(world, &path, &reader, &our_writer).await;
    excludes_both_ways(world, &path, &writer, &our_reader).await;
    loses_no_update(&path, &[writer.clone(), our_writer.clone(), writer, our_writer]).await;
}

/// T-24, T-25, T-26: a plain client releases when ours asks, and ours is asked by a plain client's word.
async fn the_recipes_recoverable_locks_answer_each_other(world: &World) {
    let keeper = world.keeper().await;
    for name in ["read-", "write-"] {
        let path = world.path(name);
        let lock = keeper.rwlock(&path).node_format(NodeFormat::Recipe);
        let plain = Plain::new(world, Document::Recipe, &path, name).await;
        let node = plain.lock().await;
        let holding = crate::support::spawn(plain.clone().unlock_when_asked(node));
        let waiter = Waiter::spawn(lock.write().acquire());
        eventually("ours waits", async || world.children(&path).await.len() == 2).await;
        assert!(!holding.is_finished());
        assert_eq!(keeper.admin().revoke(&path, None).await.unwrap().len(), 1);
        holding.await.unwrap();
        waiter.granted().await.release().await.unwrap();

        let guard = match name {
            "read-" => lock.read().acquire().any().await.unwrap(),
            _ => lock.write().acquire().any().await.unwrap(),
        };
        let (asker, node) = (Plain::new(world, Document::Recipe, &path, "write-").await, guard.node());
        let waiting = crate::support::spawn(async move {
            asker.session.set_data(&node, b"unlock", None).await.unwrap();
            let node = asker.lock().await;
            asker.unlock(&node).await;
        });
        tokio::time::timeout(PATIENCE, guard.revocation()).await.unwrap();
        assert!(guard.is_held() && !waiting.is_finished());
        guard.release().await.unwrap();
        waiting.await.unwrap();
    }
}

/// C-04, C-10, C-11, C-15, C-20: a client written from Contentserv's document and ours are in one queue, in both directions and
/// both classes.
async fn the_documents_foreground_and_background_requests_queue_with_ours(world: &World) {
    let object = world.object("P1");
    let path = format!("/{object}");
    let keeper = world.keeper().await;
    let mut all = Vec::new();
    for (class, background) in [("A-", false), ("B-", true)] {
        let plain = theirs(Plain::new(world, Document::Contentserv, &path, class).await);
        let ours = monitor(&keeper, &object, background);
        excludes_both_ways(world, &path, &plain, &ours).await;
        all.extend([plain, ours]);
    }
    loses_no_update(&path, &all).await;
    world.remove(&path).await;
}

/// D-07, N-07: an object never locks beside contenders of the other layout, and its error names their format.
async fn contenders_of_the_other_layout_are_refused_by_name(world: &World) {
    let (mine, yours) = (world.keeper().await, world.keeper().await);
    let base = world.path("base");
    let beside = |keeper: &Lockkeeper| DistributedLock::new(keeper, &base, "A");
    let below = |keeper: &Lockkeeper| DistributedLock::new(keeper, &base, "A").node_format(NodeFormat::Curator);
    let refused = |outcome: Result<(), AcquireError>, format: NodeFormat| {
        let error = outcome.expect_err("locked in two layouts");
        let AcquireError::Mismatch(Mismatch::Format { path, .. }) = &error else { panic!("{error}") };
        assert_eq!(*path, format!("{base}/A"));
        assert!(error.to_string().contains(&format!("{format:?}")), "{error}");
        let hint = Error::from(error).hint().unwrap();
        assert!(hint.contains(&format!("NodeFormat::{format:?}")), "{hint}");
    };
    let held = beside(&mine);
    held.lock().await.unwrap();
    refused(below(&yours).lock().await, NodeFormat::Numbered);
    refused(below(&yours).try_lock().await, NodeFormat::Numbered);
    held.unlock().await.unwrap();
    let held = below(&mine);
    held.lock().await.unwrap();
    refused(beside(&yours).lock().await, NodeFormat::Curator);
    refused(beside(&yours).try_lock().await, NodeFormat::Curator);
    // Another name is another lock, in either layout.
    DistributedLock::new(&yours, &base, "B").try_lock().await.unwrap();
    held.unlock().await.unwrap();
    beside(&yours).try_lock().await.unwrap();
}

/// D-07: the same for two objects of one session, whose numbers follow each other by chance.
async fn one_session_is_refused_in_the_other_layout_too(world: &World) {
    let (mine, yours) = (world.keeper().await, world.keeper().await);
    let base = world.path("base");
    let below = |keeper: &Lockkeeper| DistributedLock::new(keeper, &base, "A").node_format(NodeFormat::Curator);
    let held = below(&yours);
    held.lock().await.unwrap();
    let mutex = mine.mutex(format!("{base}/A"));
    let waiter = Waiter::spawn(mutex.acquire());
    let queue = format!("{base}/A");
    eventually("the mutex waits", async || world.children(&queue).await.len() == 2).await;
    // The waiter has number 1 below the lock's path. The next number below the base path is 2.
    world.make(&format!("{base}/B")).await;
    let object = DistributedLock::new(&mine, &base, "A");
    match object.lock_with(|request| request.timeout(PATIENCE)).await {
        Err(error @ AcquireError::Mismatch(Mismatch::Format { .. })) => {
            assert!(error.to_string().contains("Curator"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    held.unlock().await.unwrap();
    waiter.granted().await.release().await.unwrap();
    object.lock().await.unwrap();
    assert_eq!(object.node(), Some(format!("{base}/A0000000003")), "the numbers did not follow each other");
    object.unlock().await.unwrap();
}

/// N-07, D-07: a numbered client holds, and the path itself does not exist. No other kind of lock holds it too. Each is refused by
/// name, waits or not, and leaves neither a node nor the path, so that the next one is refused too.
async fn every_other_lock_of_a_new_path_is_refused_beside_a_numbered_client(world: &World) {
    let (mine, yours) = (world.keeper().await, world.keeper().await);
    let base = world.path("base");
    let (path, other) = (format!("{base}/A"), format!("{base}/A1"));
    let held = DistributedLock::new(&mine, &base, "A");
    held.lock().await.unwrap();
    let refused = async |what: &str, outcome: Result<(), AcquireError>| {
        let error = outcome.expect_err(what);
        let AcquireError::Mismatch(Mismatch::Format { path: named, .. }) = &error else { panic!("{what}: {error}") };
        assert_eq!(*named, path, "{what}");
        assert!(error.to_string().contains("Numbered"), "{what}: {error}");
        assert!(Error::from(error).hint().unwrap().contains("NodeFormat::Numbered"), "{what}");
        assert_eq!(world.children(&base).await, ["A0000000000"], "{what}");
    };
    for keeper in [&yours, &mine] {
        let mutex = keeper.mutex(&path);
        refused("a mutex", mutex.acquire().await.map(drop)).await;
        refused("a try", mutex.try_acquire().await.map(drop)).await;
        refused("a timeout", mutex.acquire().timeout(PATIENCE).await.map(drop)).await;
        let recipe = keeper.mutex(&path).node_format(NodeFormat::Recipe);
        refused("a recipe's mutex", recipe.acquire().await.map(drop)).await;
        refused("a reader", keeper.rwlock(&path).read().acquire().await.map(drop)).await;
        refused("a writer", keeper.rwlock(&path).write().acquire().await.map(drop)).await;
        refused("the foreground", keeper.priority_lock(&path).foreground().acquire().await.map(drop)).await;
        refused("the background", keeper.priority_lock(&path).background().acquire().await.map(drop)).await;
        refused("permits", keeper.semaphore(&path, 2).acquire().await.map(drop)).await;
        refused("a try of permits", keeper.semaphore(&path, 2).try_acquire().await.map(drop)).await;
    }
    // That name and a number is not this one.
    yours.mutex(&other).try_acquire().await.unwrap().release().await.unwrap();
    held.unlock().await.unwrap();
    yours.mutex(&path).try_acquire().await.unwrap().release().await.unwrap();
}

/// N-07: the error names the path, and the other locks are free again.
async fn several_locks_with_a_path_that_a_numbered_client_holds_are_refused(world: &World) {
    let (mine, yours) = (world.keeper().await, world.keeper().await);
    let base = world.path("base");
    let held = DistributedLock::new(&mine, &base, "B");
    held.lock().await.unwrap();
    let paths = ["A", "B", "C"].map(|name| format!("{base}/{name}"));
    let error = yours.multi_lock(paths.iter().map(|path| yours.mutex(path).acquire().any())).await.unwrap_err();
    let AcquireError::Mismatch(Mismatch::Format { path, .. }) = &error else { panic!("{error}") };
    assert_eq!(*path, paths[1]);
    for path in [&paths[0], &paths[2]] {
        // Their deletes may still be on their way.
        mine.mutex(path).acquire().timeout(PATIENCE).await.unwrap().release().await.unwrap();
    }
    assert!(!world.exists(&paths[1]).await);
    held.unlock().await.unwrap();
}

/// N-07: an attempt that makes its path reads the node above together with that, and lists it together with its own create. On a path
/// that exists it does neither.
async fn a_new_path_costs_no_round_trip_more(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let base = world.path("base");
    world.make(&base).await;
    let path = format!("{base}/A");
    // A server that reads several nodes at once gets one request for them, with parts.
    let asks_above = |since: usize| {
        let asked = |record: Record| match record.what {
            What::Request { op, path: Some(path), .. } | What::Part { op, path } if path == base => Some(op),
            _ => None,
        };
        proxy.records().into_iter().skip(since).filter_map(asked).collect::<Vec<_>>()
    };
    let since = proxy.records().len();
    let made = proxy.on(OpCode::CreateContainer).path(&*path).hold_reply();
    let waiter = Waiter::spawn(keeper.mutex(&path).acquire());
    eventually("the node above is read before the path's create is answered", async || {
        asks_above(since) == [OpCode::Exists]
    })
    .await;
    assert!(waiter.waits());
    let own = proxy.on_any(OpCode::CREATES).hold_reply();
    made.release();
    eventually("the node above is listed before the own create is answered", async || {
        asks_above(since)[1..].iter().any(|op| OpCode::LISTS.contains(op))
    })
    .await;
    assert!(waiter.waits());
    own.release();
    waiter.granted().await.release().await.unwrap();
    let since = proxy.records().len();
    keeper.mutex(&path).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(asks_above(since), []);
}

/// D-07: a directory whose name is the lock's and a number is no contender.
async fn a_directory_that_is_named_like_a_contender_refuses_nobody(world: &World) {
    let keeper = world.keeper().await;
    let base = world.path("base");
    world.make(&base).await;
    for name in ["A2026112500", "A0000000001"] {
        world.make(&format!("{base}/{name}")).await;
    }
    let below = DistributedLock::new(&keeper, &base, "A").node_format(NodeFormat::Curator);
    below.lock().await.unwrap();
    below.unlock().await.unwrap();
    let (beside, other) = (DistributedLock::new(&keeper, &base, "A"), world.keeper().await);
    beside.lock().await.unwrap();
    let outcome = DistributedLock::new(&other, &base, "A").node_format(NodeFormat::Curator).try_lock().await;
    assert!(matches!(outcome, Err(AcquireError::Mismatch(Mismatch::Format { .. }))), "{outcome:?}");
    beside.unlock().await.unwrap();
    for name in ["A2026112500", "A0000000001"] {
        world.remove(&format!("{base}/{name}")).await;
    }
}

/// D-24, D-25: the base path is created and stays; a caller that does not want that gets an error.
async fn the_base_path_stays_and_the_object_leaves_nothing_else(world: &World) {
    let keeper = world.keeper().await;
    let base = world.path("new/base");
    let lock = DistributedLock::new(&keeper, &base, "A");
    let outcome = lock.lock_with(|request| request.create_parents(false)).await;
    assert!(matches!(outcome, Err(AcquireError::NoSuchLock { .. })), "{outcome:?}");
    assert!(!world.exists(&base).await);
    lock.lock().await.unwrap();
    assert_eq!(lock.node(), Some(format!("{base}/A0000000000")));
    let shown = keeper.admin().show(format!("{base}/A")).await.unwrap();
    assert_eq!(shown.holders[0].node_path(format!("{base}/A")), format!("{base}/A0000000000"));
    for root in [base.clone(), format!("{base}/A")] {
        let listed = keeper.admin().list(&root).await.unwrap();
        assert_eq!(listed.iter().map(|lock| lock.path.as_str()).collect::<Vec<_>>(), [format!("{base}/A")], "{root}");
    }
    keeper.admin().break_lock(format!("{base}/A"), "a test").await.unwrap();
    eventually("the object has noticed the break", async || !lock.is_held()).await;
    lock.lock().await.unwrap();
    lock.unlock().await.unwrap();
    assert!(world.children(&base).await.is_empty());
}
