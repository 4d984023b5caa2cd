//! Apache Helix's own lock and ours on one node: they exclude, preempt and free each other.
//!
//! `cargo xtask interop helix` builds the Java side and sets its class path; each claim runs on the embedded server and on
//! Apache's. Commands and answers of the Java side are lines (`interop/helix`).

#![cfg(deep)]
#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::process::Stdio;
use std::time::Duration;

use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_helix::{AcquireLeaseError, HelixGuard, HelixLock, LockOperations};
use lockkeeper_server::{Config, Server};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The longest wait for an event that must come.
const PATIENCE: Duration = Duration::from_secs(60);

const LONG: Duration = Duration::from_secs(600);

/// Helix's side, in a process of its own.
struct Helix {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// Events that came before the test waited for them.
    early: Vec<String>,
    _child: Child,
}

impl Helix {
    async fn start(servers: &str) -> Helix {
        let classpath = std::env::var("LOCKKEEPER_INTEROP_HELIX").expect("run `cargo xtask interop helix`");
        let mut child = Command::new("java")
            .args(["-cp", &classpath, "lockkeeper.interop.HelixClient", servers])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut helix = Helix { input, output: BufReader::new(output).lines(), early: Vec::new(), _child: child };
        helix.expect("ready").await;
        helix
    }

    async fn say(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Waits for the line that begins with `start`, and returns the rest of it.
    async fn expect(&mut self, start: &str) -> String {
        let begins = |line: &String| line == start || line.starts_with(&format!("{start} "));
        let line = match self.early.iter().position(begins) {
            Some(at) => self.early.remove(at),
            None => loop {
                let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
                let line = line.unwrap_or_else(|_| panic!("never: {start}")).unwrap();
                let line = line.unwrap_or_else(|| panic!("Helix's side ended before {start}"));
                if begins(&line) {
                    break line;
                }
                self.early.push(line);
            },
        };
        line[start.len()..].trim().to_owned()
    }

    async fn make(&mut self, id: &str, path: &str, terms: Terms) {
        let Terms { priority, waiting, cleanup, forceful } = terms;
        self.say(&format!("new {id} {path} 600000 {priority} {waiting} {cleanup} {forceful}")).await;
        self.expect(&format!("ok {id}")).await;
    }

    async fn start_try(&mut self, id: &str) {
        self.say(&format!("try {id}")).await;
        self.expect(&format!("trying {id}")).await;
    }

    /// Returns the result of a try: `true`, `false` or `failed`.
    async fn tried(&mut self, id: &str) -> String {
        self.expect(&format!("tried {id}")).await
    }

    async fn try_lock(&mut self, id: &str) -> String {
        self.start_try(id).await;
        self.tried(id).await
    }

    async fn unlock(&mut self, id: &str) -> bool {
        self.say(&format!("unlock {id}")).await;
        self.expect(&format!("unlocked {id}")).await == "true"
    }

    async fn is_owner(&mut self, id: &str) -> bool {
        self.say(&format!("owner {id}")).await;
        self.expect(&format!("owner {id}")).await == "true"
    }

    async fn info(&mut self, id: &str) -> String {
        self.say(&format!("info {id}")).await;
        self.expect(&format!("info {id}")).await
    }
}

/// The terms of one of Helix's locks, in milliseconds.
#[derive(Clone, Copy)]
struct Terms {
    priority: i32,
    waiting: i64,
    cleanup: i64,
    forceful: bool,
}

const LOW: Terms = Terms { priority: 1, waiting: 600_000, cleanup: 600_000, forceful: false };
const HIGH: Terms = Terms { priority: 5, waiting: 600_000, cleanup: 0, forceful: false };
/// A short waiting timeout.
const HASTY: i64 = 500;

struct World {
    helix: Helix,
    keeper: Lockkeeper,
    path: String,
}

impl World {
    /// Our lock, configured for use beside Helix.
    fn ours(&self, id: &str) -> HelixLock {
        HelixLock::new(&self.keeper, self.path.clone(), LONG).user_id(id).keep_node().message("by-lockkeeper")
    }
}

fn run(servers: Option<String>, claim: impl AsyncFnOnce(&mut World)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut own = None;
        let servers = match servers {
            Some(servers) => servers,
            None => own.insert(Server::start(Config::default()).await.unwrap()).connect_string(),
        };
        let helix = Helix::start(&servers).await;
        let keeper = Lockkeeper::builder().session_timeout(Duration::from_secs(20)).connect(&servers).await.unwrap();
        let path = format!("/interop-{}/LOCK/RESOURCE/r", uuid::Uuid::new_v4());
        let mut world = World { helix, keeper, path };
        claim(&mut world).await;
        world.keeper.close().await;
    });
}

/// Makes tests of claims: `<claim>::<server>`.
macro_rules! on_both_servers {
    ($($claim:ident),+ $(,)?) => { $(
        mod $claim {
            #[test]
            fn embedded() {
                super::run(None, super::$claim);
            }
            #[test]
            fn apache() {
                let servers = std::env::var("LOCKKEEPER_TEST_ZOOKEEPER").expect("run `cargo xtask interop helix`");
                super::run(Some(servers), super::$claim);
            }
        }
    )+ };
}

on_both_servers!(
    helix_and_lockkeeper_exclude_each_other_and_read_each_others_record,
    lockkeeper_preempts_a_helix_owner,
    helix_preempts_a_lockkeeper_owner,
    force_means_the_same_to_both_clients,
    our_release_grants_the_lock_to_a_helix_requestor,
    our_lock_is_handed_over_to_helix_and_its_requestor_keeps_waiting,
    a_helix_owner_is_shown_and_a_revocation_request_does_not_disturb_it,
);

async fn granted(asking: tokio::task::JoinHandle<Result<HelixGuard, AcquireLeaseError>>) -> HelixGuard {
    tokio::time::timeout(PATIENCE, asking).await.expect("the call waits for ever").unwrap().unwrap()
}

fn ask(lock: HelixLock) -> tokio::task::JoinHandle<Result<HelixGuard, AcquireLeaseError>> {
    tokio::spawn(async move { lock.acquire().await })
}

/// H-66: each client reads what the other wrote.
async fn helix_and_lockkeeper_exclude_each_other_and_read_each_others_record(world: &mut World) {
    let path = world.path.clone();
    let basic = Terms { priority: 0, ..LOW };
    world.helix.make("helix", &path, basic).await;
    let ours = world.ours("ours");
    for _ in 0..3 {
        assert_eq!(world.helix.try_lock("helix").await, "true");
        assert!(!ours.try_lock().await.unwrap() && !LockOperations::unlock(&ours).await.unwrap());
        let seen = ours.info().await.unwrap();
        assert_eq!((seen.owner.as_str(), seen.message.as_str(), seen.priority), ("helix", "by-helix", 0));
        assert_eq!(seen.cleanup_timeout, 600_000);
        assert!(world.helix.is_owner("helix").await && world.helix.unlock("helix").await);
        let guard = ours.acquire().await.unwrap();
        assert_eq!(world.helix.try_lock("helix").await, "false");
        assert_eq!(world.helix.info("helix").await, "ours by-lockkeeper 0 NONE");
        assert!(!world.helix.unlock("helix").await && guard.is_held());
        guard.release().await.unwrap();
        assert_eq!(world.helix.info("helix").await, "NONE NONE 0 NONE");
    }
}

/// H-32, H-34: Helix's listener is called for our request, and we get the lock when it returns.
async fn lockkeeper_preempts_a_helix_owner(world: &mut World) {
    let path = world.path.clone();
    world.helix.make("helix", &path, LOW).await;
    assert_eq!(world.helix.try_lock("helix").await, "true");
    assert!(!world.ours("equal").priority(1).try_lock().await.unwrap());
    let asking = ask(world.ours("ours").priority(2));
    world.helix.expect("cleanup helix").await;
    assert!(!asking.is_finished());
    world.helix.say("finish helix").await;
    let guard = granted(asking).await;
    assert!(!world.helix.is_owner("helix").await && guard.is_held());
    assert_eq!(world.helix.info("helix").await, "ours by-lockkeeper 2 NONE");
    guard.release().await.unwrap();
}

/// H-32, H-34: the other way round.
async fn helix_preempts_a_lockkeeper_owner(world: &mut World) {
    let path = world.path.clone();
    world.helix.make("helix", &path, HIGH).await;
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let (done, finish) = tokio::sync::watch::channel(false);
    let ours = world.ours("ours").priority(2).cleanup(LONG).on_cleanup(move |preemption| {
        report.send((preemption.by, preemption.priority)).unwrap();
        let mut finish = finish.clone();
        async move { _ = finish.wait_for(|done| *done).await.map(drop) }
    });
    let guard = ours.acquire().await.unwrap();
    world.helix.start_try("helix").await;
    assert_eq!(reports.recv().await, Some(("helix".to_owned(), 5)));
    assert!(guard.is_held());
    done.send(true).unwrap();
    assert_eq!(world.helix.tried("helix").await, "true");
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert!(world.helix.is_owner("helix").await && !ours.is_current_owner().await.unwrap());
    assert!(world.helix.unlock("helix").await);
}

/// H-49, H-53, H-56: whichever client cleans up, and whichever waits.
async fn force_means_the_same_to_both_clients(world: &mut World) {
    let path = world.path.clone();
    world.helix.make("owner", &path, LOW).await;
    let hasty = Terms { waiting: HASTY, ..HIGH };
    world.helix.make("patient", &path, hasty).await;
    world.helix.make("forceful", &path, Terms { forceful: true, ..hasty }).await;
    let waiting = Duration::from_millis(500);
    // Helix owns the lock.
    assert_eq!(world.helix.try_lock("owner").await, "true");
    let refused = world.ours("ours").priority(2).waiting(waiting).acquire().await;
    assert!(matches!(refused, Err(AcquireLeaseError::CleanupUnfinished { .. })), "{refused:?}");
    assert!(world.helix.is_owner("owner").await);
    let guard = world.ours("ours").priority(2).waiting(waiting).forceful(true).acquire().await.unwrap();
    assert!(!world.helix.is_owner("owner").await);
    guard.release().await.unwrap();
    // Our client owns the lock.
    let guard = world.ours("ours").priority(2).cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    assert_eq!(world.helix.try_lock("patient").await, "failed");
    assert!(guard.is_held());
    assert_eq!(world.helix.try_lock("forceful").await, "true");
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(guard.preempted_by().unwrap().priority, 5);
    assert!(world.helix.unlock("forceful").await);
}

/// H-37: the request stays in the record when the owner releases.
async fn our_release_grants_the_lock_to_a_helix_requestor(world: &mut World) {
    let path = world.path.clone();
    world.helix.make("helix", &path, HIGH).await;
    let guard = world.ours("ours").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    world.helix.start_try("helix").await;
    assert_eq!(guard.preemption().await.by, "helix");
    guard.release().await.unwrap();
    assert_eq!(world.helix.tried("helix").await, "true");
    assert!(world.helix.unlock("helix").await);
}

/// case_35: Helix owns, renews and frees the record that our client hands over.
async fn our_lock_is_handed_over_to_helix_and_its_requestor_keeps_waiting(world: &mut World) {
    let path = world.path.clone();
    world.helix.make("helix", &path, LOW).await;
    world.helix.make("other", &path, LOW).await;
    let guard = world.ours("ours").priority(1).cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    guard.transfer("helix").await.unwrap();
    assert_eq!(guard.loss(), Some(Loss::Transferred));
    assert!(world.helix.is_owner("helix").await && !world.helix.is_owner("other").await);
    assert_eq!(world.helix.info("helix").await, "helix by-lockkeeper 1 NONE");
    assert_eq!(world.helix.try_lock("helix").await, "true", "Helix renews its own lock");
    assert_eq!(world.helix.try_lock("other").await, "false");
    assert!(world.helix.unlock("helix").await);
    // A requestor that waits for our client waits for the next owner.
    world.helix.make("high", &path, HIGH).await;
    let guard = world.ours("ours").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    world.helix.start_try("high").await;
    assert_eq!(guard.preemption().await.by, "high");
    guard.transfer("heir").await.unwrap();
    assert!(LockOperations::unlock(&world.ours("heir")).await.unwrap());
    assert_eq!(world.helix.tried("high").await, "true");
    assert!(world.helix.unlock("high").await);
}

/// H-66: Helix ignores our fields in the record: it renews, preempts and frees the lock.
async fn a_helix_owner_is_shown_and_a_revocation_request_does_not_disturb_it(world: &mut World) {
    let path = world.path.clone();
    world.helix.make("helix", &path, LOW).await;
    assert_eq!(world.helix.try_lock("helix").await, "true");
    let admin = world.keeper.admin();
    let shown = admin.show(&path).await.unwrap();
    assert_eq!((shown.holders[0].described.as_str(), shown.holders[0].mode), ("helix", "lease"));
    assert_eq!(shown.lease.unwrap().owner.as_deref(), Some("helix"));
    let asked = admin.revoke(&path, Some("deploying")).await.unwrap();
    assert_eq!(asked.len(), 1);
    assert!(admin.show(&path).await.unwrap().holders[0].revocation.is_some());
    assert!(world.helix.is_owner("helix").await);
    assert_eq!(world.helix.try_lock("helix").await, "true", "Helix renews its own lock");
    assert_eq!(world.helix.info("helix").await, "helix by-helix 1 NONE");
    assert!(world.helix.unlock("helix").await);
    assert_eq!(asked[0].answer(PATIENCE).await.unwrap(), lockkeeper::admin::RevokeAnswer::Released);
}
