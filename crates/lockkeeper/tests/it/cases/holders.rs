//! Holders that are cut off, stuck, hung or saturated, and what they are told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use lockkeeper::{Error, HoldState, Lockkeeper, Loss, OnLost, ReleaseError, VerifyError};
use lockkeeper_server::Server;
use lockkeeper_testkit::proxy::{Cut, OpCode, Proxy};
use tokio::time::Instant;

use crate::support::{
    MARK, PATIENCE, REQUESTS, STEADY, World, asked, eventually, for_every_kind, on_the_embedded_server,
    on_the_embedded_server_for,
};

for_every_kind!(a_hold_is_verified_at_the_servers_in_one_round_trip, case_10_a_break_at_any_request_leaves_no_node,);

on_the_embedded_server!(
    case_32_a_guard_turns_lost_by_its_deadline_though_the_librarys_thread_is_stuck,
    case_53_work_hears_of_suspicion_and_loss_and_nothing_is_sent_afterwards,
    case_43_a_hold_that_nobody_attends_is_let_go,
    case_02_a_new_session_never_takes_the_old_ones_node_for_its_own,
);

on_the_embedded_server_for!([native Native]
    a_holder_is_warned_as_early_as_it_wants,
    a_runtime_that_does_not_run_is_noticed,
    an_impossible_liveness_limit_never_reaches_the_network,
);

const TIMEOUT: Duration = Duration::from_secs(2);

/// A waker that does not come back.
struct Stuck {
    woken: AtomicBool,
    until: Mutex<mpsc::Receiver<()>>,
}

impl Wake for Stuck {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        _ = self.until.lock().unwrap().recv();
    }
}

/// Blocks the thread on which the library does its input and output, until the sender is dropped.
async fn block_the_librarys_thread(keeper: &Lockkeeper, proxy: &Proxy, path: &str) -> mpsc::Sender<()> {
    let (release, until) = mpsc::channel();
    let stuck = Arc::new(Stuck { woken: AtomicBool::new(false), until: Mutex::new(until) });
    let waker = Waker::from(stuck.clone());
    // The reply is held, so that the question is still open when it is polled.
    let hold = proxy.on_any(&[OpCode::GetChildren, OpCode::GetChildren2]).hold_reply();
    let admin = keeper.admin();
    let mut question = Box::pin(admin.show(path));
    assert!(matches!(question.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending));
    hold.caught().await;
    drop(hold);
    eventually("the thread is stuck", async || stuck.woken.load(Ordering::SeqCst)).await;
    release
}

/// The thread that would tell of the loss is stuck in code that is not the library's; by the time the server lets the next one
/// in, everybody who could believe in the hold was told otherwise.
async fn case_32_a_guard_turns_lost_by_its_deadline_though_the_librarys_thread_is_stuck(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let (told, tells) = mpsc::channel();
    let on_lost = OnLost::call(move |lost| told.send(lost.clone()).unwrap());
    let guard = world.mutex(&keeper).acquire().on_lost(on_lost).await.unwrap();
    let next = world.wait_in_queue(&world.keeper().await).await;
    let stuck = block_the_librarys_thread(&keeper, &proxy, &world.path("aside")).await;
    let since = Instant::now();
    let lost = guard.lost_token();
    let work = async { (guard.run(std::future::pending::<()>()).await, Instant::now()) };
    let granted = async { (next.granted().await, Instant::now()) };
    let ((outcome, stopped), (next, granted)) = tokio::join!(work, granted);
    assert_eq!(outcome, Err(Loss::Unreachable));
    assert!(stopped < granted, "told only {:?} after the next was let in", stopped - granted);
    assert!(stopped - since < TIMEOUT, "told after {:?}", stopped - since);
    assert!(lost.is_cancelled() && !guard.is_held());
    assert_eq!(guard.lost().await, Loss::Unreachable);
    let said = tells.recv_timeout(PATIENCE).unwrap();
    assert_eq!((said.path, said.token, said.loss), (world.lock(), Some(guard.token()), Loss::Unreachable));
    drop(stuck);
    assert_eq!(guard.state(), HoldState::Lost(Loss::Unreachable), "lost is final");
    next.release().await.unwrap();
}

/// Suspected, held again, lost: each is told to who waits for it; and a hold that ended with its session leaves nothing to do.
async fn case_53_work_hears_of_suspicion_and_loss_and_nothing_is_sent_afterwards(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    assert_eq!(guard.state(), HoldState::Held);
    proxy.refuse();
    proxy.cut(Cut::Reset);
    assert_eq!(guard.changed(HoldState::Held).await, HoldState::Suspected);
    assert!(guard.is_held() && guard.valid_for() > Duration::ZERO);
    proxy.heal();
    assert_eq!(guard.changed(HoldState::Suspected).await, HoldState::Held);
    let work = guard.run(std::future::pending::<()>());
    let since = proxy.records().len();
    proxy.black_hole();
    let lost = HoldState::Lost(Loss::Unreachable);
    let (stopped, suspected) = tokio::join!(work, guard.changed(HoldState::Held));
    assert_eq!(stopped, Err(Loss::Unreachable));
    assert!(suspected == HoldState::Suspected || suspected == lost, "{suspected:?}");
    assert_eq!(guard.changed(HoldState::Suspected).await, lost);
    world.queued(0).await;
    proxy.heal();
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Unreachable })));
    // A new session of the same handle does its own; of the old hold there is nothing.
    loop {
        match world.mutex(&keeper).acquire().await {
            Ok(again) => break again.release().await.unwrap(),
            Err(error) => assert!(matches!(error, Error::SessionLost { .. }), "{error}"),
        }
    }
    let ops: Vec<_> = asked(world, &proxy, since).into_iter().map(|(op, _)| op).collect();
    let deletes = asked(world, &proxy, since).into_iter();
    let deletes = deletes.filter(|(op, path)| *op == OpCode::Delete && !path.contains("heartbeat")).count();
    assert_eq!(deletes, 1, "the new hold's alone: {ops:?}");
}

/// Its session lives, its program says nothing: the lock goes to the next, and the guard knows before.
async fn case_43_a_hold_that_nobody_attends_is_let_go(world: &World) {
    let keeper = world.keeper().await;
    let limit = Duration::from_secs(2);
    let guard = world.mutex(&keeper).acquire().with_liveness(limit).await.unwrap();
    let steady = world.kind.mutex(&keeper, &world.path("steady")).acquire().await.unwrap();
    let next = world.wait_in_queue(&world.keeper().await).await;
    let started = Instant::now();
    let mut since = started;
    while started.elapsed() < limit + limit / 4 {
        since = Instant::now();
        assert!(guard.alive() && guard.valid_for() <= limit);
        tokio::time::sleep(limit / 20).await;
    }
    assert!(next.waits());
    let lost = async { (guard.lost().await, Instant::now()) };
    let granted = async { (next.granted().await, Instant::now()) };
    let ((loss, lost), (next, granted)) = tokio::join!(lost, granted);
    assert_eq!(loss, Loss::Unattended);
    assert!(lost - since >= limit, "lost {:?} after a word", lost - since);
    assert!(lost < granted);
    assert!(!guard.alive(), "it comes back to life");
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Unattended })));
    assert!(steady.alive(), "another hold of the session has no limit");
    next.release().await.unwrap();
    steady.release().await.unwrap();
}

/// A word of a majority that the node stands: one small write, which also renews the trust.
async fn a_hold_is_verified_at_the_servers_in_one_round_trip(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let before = proxy.counts();
    guard.verify().await.unwrap();
    assert_eq!(proxy.counts().since(&before).requested.of(OpCode::Multi), 1);
    // While the connection is lost it waits.
    let lost = proxy.on(OpCode::Multi).cut_before_reply();
    let verified = guard.verify();
    let (verified, ()) = tokio::join!(verified, lost.fired());
    verified.unwrap();
    // What a clock cannot know: the node is gone, and the reply says so.
    world.remove(&guard.node()).await;
    assert_eq!(guard.verify().await, Err(VerifyError::Lost(Loss::Removed)));
    assert!(!guard.is_held());
}

/// The same process, the same lock: while the node of the session that is cut off still stands, the new one waits behind it.
async fn case_02_a_new_session_never_takes_the_old_ones_node_for_its_own(world: &World) {
    let proxy = world.proxy().await;
    let old = world.keeper_through(&proxy, TIMEOUT).await;
    let guard = world.mutex(&old).acquire().await.unwrap();
    let new = world.keeper().await;
    proxy.black_hole();
    assert_eq!(guard.lost().await, Loss::Unreachable);
    assert!(world.exists(&guard.node()).await, "lost before the server lets anybody in");
    let refused = world.mutex(&new).try_acquire().await;
    assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
    let again = world.mutex(&new).acquire().timeout(PATIENCE).await.unwrap();
    assert!(!world.exists(&guard.node()).await, "two nodes hold");
    assert!(again.is_held() && !guard.is_held());
    again.release().await.unwrap();
    proxy.heal();
}

/// Before the n-th request, or its reply, of a whole life of a lock, for every n: in the end the queue is empty and the lock free.
async fn case_10_a_break_at_any_request_leaves_no_node(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let other = world.keeper().await;
    for effect in [false, true] {
        for nth in 1.. {
            let path = world.path(&format!("{effect}-{nth}"));
            let rule = proxy.on_any(REQUESTS).path(path.as_str()).nth(nth);
            let broken = if effect { rule.cut_before_reply() } else { rule.cut_before_request() };
            let lock = world.kind.lock(&keeper, &path);
            let guard = lock.acquire().await.unwrap();
            assert!(guard.is_held());
            guard.release().await.unwrap();
            let met = broken.has_fired();
            proxy.heal();
            let left = async || world.children(&path).await.iter().all(|name| name == MARK);
            eventually(&format!("{path} is empty"), left).await;
            world.kind.rival().lock(&other, &path).acquire().timeout(PATIENCE).await.unwrap().release().await.unwrap();
            if !met {
                assert!(nth > 2, "nothing was met");
                break;
            }
        }
    }
}

/// As long before the loss as its work takes to stop.
async fn a_holder_is_warned_as_early_as_it_wants(world: &World) {
    let proxy = world.proxy().await;
    let timeout = TIMEOUT * 2;
    let keeper = world.keeper_through(&proxy, timeout).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let early = tokio::time::timeout(timeout + timeout / 2, guard.nearly_lost(timeout / 8)).await;
    assert!(early.is_err(), "warned although the server answers: {early:?}");
    proxy.black_hole();
    let margin = timeout / 2;
    let state = guard.nearly_lost(margin).await;
    let left = guard.valid_for();
    assert!(
        matches!(state, HoldState::Held | HoldState::Suspected) && left > Duration::ZERO && left <= margin,
        "{left:?}"
    );
    assert_eq!(guard.nearly_lost(Duration::ZERO).await, HoldState::Lost(Loss::Unreachable));
    proxy.heal();
}

/// Somebody who runs nothing while he holds a lock would hear of its loss too late.
async fn a_runtime_that_does_not_run_is_noticed(world: &World) {
    let keeper = world.connect(&world.servers(), TIMEOUT).await;
    let mutex = world.mutex(&keeper);
    let user = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let guard = mutex.acquire().await.unwrap();
            let deadline = std::time::Instant::now() + PATIENCE;
            while guard.runtime_lag().is_none_or(|lag| lag < TIMEOUT / 4) {
                assert!(std::time::Instant::now() < deadline, "never noticed");
                thread::sleep(Duration::from_millis(5));
            }
            assert!(guard.is_held());
            guard.release().await.unwrap();
        });
    });
    tokio::task::spawn_blocking(|| user.join().unwrap()).await.unwrap();
}

async fn an_impossible_liveness_limit_never_reaches_the_network(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.counts();
    let refused = world.mutex(&keeper).acquire().with_liveness(Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::InvalidLiveness { .. })), "{refused:?}");
    assert_eq!(proxy.counts().since(&before).requested.total(), 0);
}

/// All of the user's threads are busy, for more than two timeouts; then the server is away for a while. The session goes on in
/// both, and the hold with it.
#[test]
fn case_49_a_saturated_runtime_and_a_server_that_was_away_lose_no_lock() {
    crate::support::block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let durable = || crate::support::config().with_directory(dir.path());
        let server = Server::start(durable()).await.unwrap();
        let (address, servers) = (server.addr(), server.connect_string());
        let user = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let keeper = Lockkeeper::builder().session_timeout(TIMEOUT).connect(&servers).await.unwrap();
        let mutex = keeper.mutex("/locks/busy");
        let guard = Arc::new(user.spawn(async move { mutex.acquire().await }).await.unwrap().unwrap());
        let work = guard.clone();
        user.spawn(async move { work.run(std::future::pending::<()>()).await });
        let busy = Arc::new(AtomicBool::new(true));
        for _ in 0..4 {
            let busy = busy.clone();
            user.spawn(async move {
                while busy.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let proofs = |server: &Server| {
            let requests = server.stats().requests;
            requests.iter().find(|(op, _)| **op == lockkeeper_server::OpCode::Delete).map_or(0, |(_, count)| *count)
        };
        eventually("two timeouts' heartbeats", async || proofs(&server) >= 8).await;
        assert_eq!(guard.state(), HoldState::Held);
        assert!(guard.runtime_lag().is_some_and(|lag| lag > TIMEOUT / 10), "{:?}", guard.runtime_lag());
        server.shutdown().await.unwrap();
        eventually("suspected", async || guard.state() == HoldState::Suspected).await;
        let server = Server::start(durable().with_listen(address)).await.unwrap();
        eventually("held again", async || guard.state() == HoldState::Held).await;
        eventually("renewal resumes", async || proofs(&server) >= 4).await;
        assert_eq!(guard.state(), HoldState::Held);
        busy.store(false, Ordering::SeqCst);
        user.shutdown_background();
        keeper.close().await;
    });
}

/// Tells the process that is to be aborted which servers to use.
const ABORT: &str = "LOCKKEEPER_TEST_ABORT";

/// case_32: whoever wants that is stopped as a whole.
#[test]
fn case_32_a_process_that_wants_it_is_aborted_when_its_lock_is_lost() {
    let name = "cases::holders::case_32_a_process_that_wants_it_is_aborted_when_its_lock_is_lost";
    if let Ok(servers) = std::env::var(ABORT) {
        let builder = Lockkeeper::builder().session_timeout(TIMEOUT).on_lost(OnLost::Abort);
        let keeper = builder.connect_blocking(&servers).unwrap();
        let guard = keeper.mutex("/locks/abort").acquire().wait().unwrap();
        // It never looks.
        loop {
            thread::park();
            std::hint::black_box(&guard);
        }
    }
    crate::support::block_on(async {
        let server = Server::start(crate::support::config()).await.unwrap();
        let proxy = Proxy::start(server.addr()).await;
        let program = std::env::current_exe().unwrap();
        let mut child = tokio::process::Command::new(program)
            .args(["--exact", name, "--nocapture"])
            .env(ABORT, proxy.connect_string())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let keeper = Lockkeeper::connect(&server.connect_string()).await.unwrap();
        eventually("it holds", async || {
            keeper.admin().show("/locks/abort").await.is_ok_and(|lock| !lock.holders.is_empty())
        })
        .await;
        proxy.black_hole();
        let status = tokio::time::timeout(PATIENCE, child.wait()).await.expect("it goes on").unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(6), "{status}");
        let lock = keeper.admin().show("/locks/abort").await.unwrap();
        assert_eq!(lock.holders.len(), 1, "its session outlives it: it was stopped in time");
        keeper.close().await;
    });
}
