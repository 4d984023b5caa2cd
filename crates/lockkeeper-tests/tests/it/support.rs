//! The test worlds: a lock kind, a server, and an observer with a session of its own.
//!
//! A claim is written once and runs for every kind of lock on every kind of server ([`on_every_server`]). Plain `cargo test`
//! uses the embedded server and the kinds that differ in what the protocol does; `--cfg deep` adds Apache's servers, and the kinds that
//! differ in the names of their nodes (`docs/development.md`). After each claim, the world checks that no node, watch or session is left.

mod kinds;
pub(crate) mod metrics;
mod observer;
mod simulated;

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use lockkeeper::error::{AcquireError, Error};
use lockkeeper::{Guard, Lockkeeper, NodeFormat};
use lockkeeper_server::{Config, Server as EmbeddedServer, Words};
use lockkeeper_testkit::proxy::{OpCode, Proxy, What};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use zookeeper_client as zk;

pub(crate) use lockkeeper_testkit::Stalls;

pub(crate) use self::kinds::{Held, Kind, Lock, grew, name};
use self::observer::Observer;
pub(crate) use self::simulated::{simulated, simulated_keeper};

/// The longest wait for an event that must come: far longer than a working test needs on a busy machine. Only a failing test
/// reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The time after which a claim counts as hung. Claims with ten thousand grants take seconds, and minutes on a twentieth of a
/// core.
const LIMIT: Duration = Duration::from_secs(600);

/// A session timeout long enough that no busy machine loses the session by accident.
pub(crate) const STEADY: Duration = Duration::from_secs(20);

/// The name of the node that marks the holder of a lock with classes.
pub(crate) const HOLDER_MARKER: &str = "privateLock";

/// The requests that delete a contender's node.
pub(crate) const DELETES: &[OpCode] = &[OpCode::Delete, OpCode::Multi];

/// The requests that an attempt consists of.
pub(crate) const REQUESTS: &[OpCode] = &[
    OpCode::Create,
    OpCode::Create2,
    OpCode::CreateContainer,
    OpCode::GetChildren,
    OpCode::GetChildren2,
    OpCode::MultiRead,
    OpCode::GetData,
    OpCode::SetData,
    OpCode::Delete,
    OpCode::Multi,
];

/// The server that a claim runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// The server of this repository; each claim starts its own.
    Embedded,
    /// One server of Apache ZooKeeper.
    #[cfg(deep)]
    Apache,
    /// Three servers of Apache ZooKeeper.
    #[cfg(deep)]
    Ensemble,
}

/// A server that a claim can use.
enum Server {
    Embedded(EmbeddedServer),
    /// Started outside the test; the value is its connect string.
    #[cfg(deep)]
    Apache(String),
}

impl Site {
    async fn server(self) -> Server {
        #[cfg(deep)]
        let given = |variable| {
            Server::Apache(std::env::var(variable).unwrap_or_else(|_| {
                panic!("{variable} is not set: run `cargo xtask zookeeper test`, which starts the servers")
            }))
        };
        match self {
            Site::Embedded => Server::Embedded(embedded_server().await),
            #[cfg(deep)]
            Site::Apache => given("LOCKKEEPER_TEST_ZOOKEEPER"),
            #[cfg(deep)]
            Site::Ensemble => given("LOCKKEEPER_TEST_ENSEMBLE"),
        }
    }
}

/// Returns a configuration with ticks so short that a test can wait for an expiry, and with sessions as long as a test wants.
pub(crate) fn config() -> Config {
    let tick = Duration::from_millis(100);
    Config::default().with_tick(tick).with_session_timeouts(tick * 2..=PATIENCE * 2).with_words(Words::all())
}

/// An embedded server of this configuration.
pub(crate) async fn embedded_server() -> EmbeddedServer {
    EmbeddedServer::start(config()).await.unwrap()
}

/// A claim about a world. A box and no type of its own, because the compiler would make a runtime for each claim.
pub(crate) type Claim = fn(&World) -> LocalBoxFuture<'_, ()>;

/// Runs a claim for one kind of lock on one kind of server.
pub(crate) fn run(kind: Kind, site: Site, claim: Claim) {
    block_on(async {
        let world = World::new(kind, site.server().await).await;
        claim(&world).await;
        world.end().await;
    });
}

/// Runs a test on a runtime like that of a program.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    let mut outcome = None;
    run_boxed(async { outcome = Some(test.await) }.boxed_local());
    outcome.expect("the test ended")
}

/// As tokio's, without the type of the task: the compiler would make the whole runtime for each.
pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task.boxed())
}

fn run_boxed(test: LocalBoxFuture<'_, ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, test).await.expect("the test hangs") });
}

/// Makes tests of claims about mutexes: `<claim>::<kind>::<server>`.
macro_rules! on_every_server {
    ($($claim:ident),+ $(,)?) => {
        $crate::support::tests! { [native Native, #[cfg(deep)] recipe Recipe] $($claim)+ }
    };
}
pub(crate) use on_every_server;

/// Passes every kind of lock to a macro that makes tests.
macro_rules! with_every_kind {
    ($tests:ident $($claim:ident)*) => {
        $crate::support::$tests! {
            [
                native Native, #[cfg(deep)] recipe Recipe, #[cfg(deep)] kazoo Kazoo, #[cfg(deep)] numbered Numbered,
                read Read, write Write, #[cfg(deep)] recipe_read RecipeRead, #[cfg(deep)] recipe_write RecipeWrite,
                upgradeable Upgradeable, permits Permits, #[cfg(deep)] foreground Foreground, background Background
            ]
            $($claim)*
        }
    };
}
pub(crate) use with_every_kind;

macro_rules! kinds_in {
    ([$($(#[$when:meta])? $module:ident $kind:ident),+]) => { [$(Kind::$kind),+] };
}
use kinds_in;

/// Every kind of lock, for claims that use all kinds together.
pub(crate) const EVERY_KIND: [Kind; 12] = with_every_kind!(kinds_in);

/// Makes tests of claims about every kind of lock.
macro_rules! for_every_kind {
    ($($claim:ident),+ $(,)?) => {
        $crate::support::with_every_kind! { tests $($claim)+ }
    };
}
pub(crate) use for_every_kind;

/// Makes tests of claims about the given kinds.
macro_rules! for_kinds {
    ($kinds:tt $($claim:ident),+ $(,)?) => {
        $crate::support::tests! { $kinds $($claim)+ }
    };
}
pub(crate) use for_kinds;

/// Makes a module per claim, in it a module per kind, in it a test per server.
macro_rules! tests {
    ($kinds:tt $($claim:ident)+) => { $(
        mod $claim {
            $crate::support::tests! { @kinds $claim $kinds }
        }
    )+ };
    (@kinds $claim:ident [$($(#[$when:meta])? $module:ident $kind:ident),+]) => { $(
        $(#[$when])?
        mod $module {
            use $crate::support::{Kind, Site, run};
            #[test]
            fn embedded() {
                run(Kind::$kind, Site::Embedded, |world| Box::pin(super::super::$claim(world)));
            }
            #[cfg(deep)]
            #[test]
            fn apache() {
                run(Kind::$kind, Site::Apache, |world| Box::pin(super::super::$claim(world)));
            }
            #[cfg(deep)]
            #[test]
            fn ensemble() {
                run(Kind::$kind, Site::Ensemble, |world| Box::pin(super::super::$claim(world)));
            }
        }
    )+ };
}
pub(crate) use tests;

/// Makes tests of claims about mutexes that need the embedded server's own functions.
macro_rules! on_the_embedded_server {
    ($($claim:ident),+ $(,)?) => {
        $crate::support::embedded_tests! { [native Native, #[cfg(deep)] recipe Recipe] $($claim)+ }
    };
}
pub(crate) use on_the_embedded_server;

/// Makes tests of claims about every kind of lock on the embedded server.
macro_rules! for_every_kind_embedded {
    ($($claim:ident),+ $(,)?) => {
        $crate::support::with_every_kind! { embedded_tests $($claim)+ }
    };
}
pub(crate) use for_every_kind_embedded;

/// Makes tests of claims about the given kinds on the embedded server.
macro_rules! on_the_embedded_server_for {
    ($kinds:tt $($claim:ident),+ $(,)?) => {
        $crate::support::embedded_tests! { $kinds $($claim)+ }
    };
}
pub(crate) use on_the_embedded_server_for;

macro_rules! embedded_tests {
    ($kinds:tt $($claim:ident)+) => { $(
        mod $claim {
            $crate::support::embedded_tests! { @kinds $claim $kinds }
        }
    )+ };
    (@kinds $claim:ident [$($(#[$when:meta])? $module:ident $kind:ident),+]) => { $(
        $(#[$when])?
        #[test]
        fn $module() {
            $crate::support::run($crate::support::Kind::$kind, $crate::support::Site::Embedded, |world| {
                Box::pin(super::$claim(world))
            });
        }
    )+ };
}
pub(crate) use embedded_tests;

/// Returns when an idle thread that slept until `due` got its turn.
///
/// This is the control for a claim about time: an event no later than this was late because of the machine.
pub(crate) fn turn_at(due: Instant) -> JoinHandle<Instant> {
    tokio::task::spawn_blocking(move || {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        Instant::now()
    })
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The environment of a claim.
pub(crate) struct World {
    pub(crate) kind: Kind,
    server: Server,
    /// Looks from outside, in a session that no fault touches, and always sees the latest state.
    pub(crate) observer: Observer,
    /// The parent of all paths of this claim; the server may be shared.
    root: String,
    /// Kept until the end, because the end of a session would hide nodes that an attempt left behind.
    keepers: Mutex<Vec<Lockkeeper>>,
    /// Kept for the sessions that close through them.
    proxies: Mutex<Vec<Arc<Proxy>>>,
}

impl World {
    async fn new(kind: Kind, server: Server) -> World {
        let servers = server.connect_string();
        let observer = Observer::connect(&servers).await;
        // Ten digits at the end would be the name of a contender.
        let root = format!("/it-{}-", uuid::Uuid::new_v4());
        let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        observer.create(&root, b"", &options).await.unwrap();
        World { kind, server, observer, root, keepers: Mutex::default(), proxies: Mutex::default() }
    }

    /// The embedded server; panics on any other.
    pub(crate) fn embedded(&self) -> &EmbeddedServer {
        match &self.server {
            Server::Embedded(server) => server,
            #[cfg(deep)]
            Server::Apache(_) => panic!("only for claims on the embedded server"),
        }
    }

    /// The tick of the server: sessions expire at multiples of it.
    pub(crate) fn tick(&self) -> Duration {
        match self.server {
            Server::Embedded(_) => config().tick,
            // As in the default configuration; the tests start servers with shorter ticks.
            #[cfg(deep)]
            Server::Apache(_) => Duration::from_secs(2),
        }
    }

    /// Whether the server belongs to this claim alone.
    pub(crate) fn is_embedded(&self) -> bool {
        matches!(self.server, Server::Embedded(_))
    }

    /// The lock that most claims are about.
    pub(crate) fn lock(&self) -> String {
        self.path("lock")
    }

    /// Returns a path that belongs to this claim alone.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    /// Returns a monitor object's name that belongs to this claim alone: monitor objects are direct children of the root.
    pub(crate) fn object(&self, name: &str) -> String {
        self.path(name).replace('/', "-")
    }

    /// The mutex of [`World::lock`] in this world's kind.
    pub(crate) fn mutex(&self, keeper: &Lockkeeper) -> lockkeeper::Mutex {
        self.kind.mutex(keeper, &self.lock())
    }

    /// The lock of [`World::lock`] in this world's kind.
    pub(crate) fn subject(&self, keeper: &Lockkeeper) -> Lock {
        self.kind.lock(keeper, &self.lock())
    }

    /// The lock of [`World::lock`] in the kind that is never held beside this world's kind.
    pub(crate) fn rival(&self, keeper: &Lockkeeper) -> Lock {
        self.kind.rival().lock(keeper, &self.lock())
    }

    /// The connect string, without a chroot.
    pub(crate) fn servers(&self) -> String {
        self.server.connect_string()
    }

    /// A handle with a session of its own.
    pub(crate) async fn keeper(&self) -> Lockkeeper {
        self.connect(&self.servers(), STEADY).await
    }

    /// A proxy in front of the server, or of the first of several.
    pub(crate) async fn proxy(&self) -> Arc<Proxy> {
        let servers = self.servers();
        let first: SocketAddr = servers.split(',').next().unwrap().parse().unwrap();
        let proxy = Arc::new(Proxy::start(first).await);
        self.proxies.lock().unwrap().push(proxy.clone());
        proxy
    }

    /// A handle whose session goes through a proxy.
    pub(crate) async fn keeper_through(&self, proxy: &Proxy, session_timeout: Duration) -> Lockkeeper {
        self.connect(&proxy.connect_string(), session_timeout).await
    }

    /// A handle for these servers, whose session the world keeps open.
    pub(crate) async fn connect(&self, servers: &str, session_timeout: Duration) -> Lockkeeper {
        let builder = Lockkeeper::builder().session_timeout(session_timeout).connect_timeout(PATIENCE);
        // Some claims have a chroot of their own.
        let keeper = builder.create_chroot(true).connect(servers).await.unwrap();
        // Read the epoch now, which a session does once, so that claims count only their own requests.
        _ = keeper.admin().token_epoch().await;
        self.keep_open(&keeper);
        keeper
    }

    /// Keeps a handle's session open until the end of the claim.
    pub(crate) fn keep_open(&self, keeper: &Lockkeeper) {
        self.keepers.lock().unwrap().push(keeper.clone());
    }

    /// The names of the nodes of a lock in the order of their numbers, and of all other nodes below its path; empty if the path
    /// does not exist.
    pub(crate) async fn children(&self, path: &str) -> Vec<String> {
        self.children_of(self.kind, path).await
    }

    /// The same for another kind of lock.
    pub(crate) async fn children_of(&self, kind: Kind, path: &str) -> Vec<String> {
        let names = self.below(kind.parent(path)).await;
        kind.node_format().names(path, names)
    }

    /// The names below a path in the order of their numbers; empty if the path does not exist.
    async fn below(&self, path: &str) -> Vec<String> {
        let mut names = match self.observer.list_children(path).await {
            Ok(names) => names,
            Err(zk::Error::NoNode) => Vec::new(),
            Err(error) => panic!("{path}: {error}"),
        };
        names.sort_by_key(|name| name.get(name.len().saturating_sub(10)..).unwrap_or_default().to_owned());
        names
    }

    /// The contenders in the queue of [`World::lock`], in order.
    pub(crate) async fn queue(&self) -> Vec<String> {
        let mut names = self.children(&self.lock()).await;
        names.retain(|name| name != HOLDER_MARKER);
        names
    }

    /// Waits until the queue of [`World::lock`] has that many contenders.
    pub(crate) async fn queued(&self, count: usize) {
        eventually(&format!("{count} in the queue"), async || self.queue().await.len() == count).await;
    }

    /// The path of a node of [`World::lock`].
    pub(crate) fn node(&self, name: &str) -> String {
        self.kind.node(&self.lock(), name)
    }

    /// The node whose children are the queue of [`World::lock`].
    pub(crate) fn parent(&self) -> String {
        self.kind.parent(&self.lock()).to_owned()
    }

    pub(crate) async fn exists(&self, path: &str) -> bool {
        self.observer.check_stat(path).await.unwrap().is_some()
    }

    /// Deletes a node, as an operator would.
    pub(crate) async fn remove(&self, path: &str) {
        self.observer.delete(path, None).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Creates a persistent node.
    pub(crate) async fn make(&self, path: &str) {
        let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        self.observer.create(path, b"", &options).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Makes a node as a foreign client's contender would: it dies with the observer's session.
    pub(crate) async fn make_foreign(&self, path: &str) {
        let options = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
        self.observer.create(path, b"", &options).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Requests [`World::lock`] as a mutex and returns when the request is in the queue, behind all earlier contenders.
    pub(crate) async fn enqueue_mutex(&self, keeper: &Lockkeeper) -> Waiter {
        self.enqueue(self.mutex(keeper).acquire()).await
    }

    /// The same for any request for [`World::lock`].
    pub(crate) async fn enqueue<G: Send + 'static>(
        &self,
        request: impl IntoFuture<Output = Result<G, AcquireError>, IntoFuture: Send + 'static>,
    ) -> Waiter<G> {
        let ahead = self.queue().await.len();
        let waiter = Waiter::spawn(request);
        self.queued(ahead + 1).await;
        waiter
    }

    /// Checks that no resources are left: no contender's node, no waiter's watch, no session.
    async fn end(self) {
        self.proxies.lock().unwrap().iter().for_each(|proxy| proxy.heal());
        let mut left = vec![self.root.clone()];
        while let Some(path) = left.pop() {
            eventually(&format!("no contender at {path}"), async || {
                let names = self.below(&path).await;
                !names.iter().any(|name| is_contender(name))
            })
            .await;
            left.extend(self.below(&path).await.iter().map(|name| format!("{path}/{name}")));
        }
        let keepers = std::mem::take(&mut *self.keepers.lock().unwrap());
        for keeper in keepers {
            keeper.close().await;
        }
        match &self.server {
            Server::Embedded(server) => {
                eventually("no session and no watch but the observer's", async || {
                    let stats = server.stats();
                    stats.sessions <= 1 && stats.watches == 0
                })
                .await;
            }
            // Shared with other claims, whose sessions and watches are still there.
            #[cfg(deep)]
            Server::Apache(_) => {}
        }
    }
}

fn is_contender(name: &str) -> bool {
    name == HOLDER_MARKER
        || NodeFormat::beside(name).is_some()
        || NodeFormat::ALL.iter().any(|node_format| node_format.parse(name).is_some())
}

impl Server {
    fn connect_string(&self) -> String {
        match self {
            Server::Embedded(server) => server.connect_string(),
            #[cfg(deep)]
            Server::Apache(servers) => servers.clone(),
        }
    }
}

/// Returns the requests since a moment, with paths relative to the lock. Pings, which have no path, are left out.
pub(crate) fn asked(world: &World, proxy: &Proxy, since: usize) -> Vec<(OpCode, String)> {
    let lock = world.lock();
    let records = proxy.records().into_iter().skip(since);
    let requests = records.filter_map(|record| match record.what {
        What::Request { op, path: Some(path), .. } => Some((op, path)),
        _ => None,
    });
    requests.map(|(op, path)| (op, path.strip_prefix(&lock).unwrap_or(&path).to_owned())).collect()
}

/// Waits until that many reads of a session are answered: each sets the watch that its request asked for.
pub(crate) async fn watches_set(proxy: &Proxy, reads: u64) {
    proxy.wait_until(|counts| counts.delivered.of(OpCode::GetData) == reads).await;
}

/// Waits until a contender watches its own node, so that it knows its position.
pub(crate) async fn watched(proxy: &Proxy, node: &str) {
    let read = |what: &What| matches!(what, What::Reply { op: OpCode::GetData, path: Some(path), .. } if path == node);
    proxy.wait_for(|record| read(&record.what)).await;
}

/// A call that waits in a task of its own.
pub(crate) struct Waiter<G = Guard, E = AcquireError>(JoinHandle<Result<G, E>>);

impl<G, E: Display> Waiter<G, E> {
    pub(crate) fn spawn<R>(request: R) -> Waiter<G, E>
    where
        G: Send + 'static,
        E: Send + 'static,
        R: IntoFuture<Output = Result<G, E>, IntoFuture: Send + 'static>,
    {
        Waiter(spawn(request.into_future()))
    }

    /// Returns the call's result.
    pub(crate) async fn outcome(self) -> Result<G, E> {
        tokio::time::timeout(PATIENCE, self.0).await.expect("the waiter waits for ever").expect("the waiter panicked")
    }

    /// Returns the guard; panics if the call fails.
    pub(crate) async fn granted(self) -> G {
        self.outcome().await.unwrap_or_else(|error| panic!("not granted: {error}"))
    }

    /// Whether the call is still waiting.
    pub(crate) fn waits(&self) -> bool {
        !self.0.is_finished()
    }

    pub(crate) fn abort(self) {
        self.0.abort();
    }
}

/// What a refused call misused; `None` if it was not refused for that.
pub(crate) fn misused<T, E: Clone + Into<Error>>(outcome: &Result<T, E>) -> Option<&'static str> {
    match outcome.as_ref().err()?.clone().into() {
        Error::Misuse(misuse) => Some(misuse.argument),
        _ => None,
    }
}
