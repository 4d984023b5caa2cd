//! Holders that are cut off, stuck, hung or saturated, and what their owners see.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use lockkeeper::error::{AcquireError, ReleaseError, VerifyError};
use lockkeeper::guard::{HoldState, OnLost};
use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_server::Server;
use lockkeeper_testkit::proxy::{Cut, OpCode, Proxy};
use tokio::time::Instant;

use crate::support::{
    HOLDER_MARKER, PATIENCE, REQUESTS, STEADY, World, asked, eventually, for_every_kind, misused,
    on_the_embedded_server, on_the_embedded_server_for, watches_set,
};

for_every_kind!(
    a_hold_is_verified_at_the_servers_in_one_round_trip,
    case_10_a_disconnect_at_any_request_leaves_no_node,
);

on_the_embedded_server!(
    case_32_a_guard_is_lost_by_its_deadline_even_if_the_librarys_thread_is_stuck,
    a_release_that_no_server_confirms_is_no_loss,
    case_53_a_holder_sees_suspicion_and_loss_and_sends_nothing_afterwards,
    a_check_that_nobody_waits_for_is_not_repeated_behind_the_release,
    case_43_an_unattended_hold_is_released,
    case_02_a_new_session_never_adopts_the_old_sessions_node,
);

on_the_embedded_server_for!([native Native]
    a_waiter_that_is_evicted_before_its_blocker_ends_is_not_granted,
    a_holder_is_warned_of_a_loss_as_early_as_it_asks,
    a_blocked_runtime_is_noticed,
    an_invalid_liveness_limit_is_refused_before_anything_is_sent,
);

const TIMEOUT: Duration = Duration::from_secs(2);

/// A waker that does not return.
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

/// Blocks the thread on which the library does its I/O, until the sender is dropped.
async fn block_library_thread(keeper: &Lockkeeper, proxy: &Proxy, path: &str) -> mpsc::Sender<()> {
    let (release, until) = mpsc::channel();
    let stuck = Arc::new(Stuck { woken: AtomicBool::new(false), until: Mutex::new(until) });
    let waker = Waker::from(stuck.clone());
    // The reply is held back, so that the query is still pending when it is polled.
    let hold = proxy.on_any(&[OpCode::GetChildren, OpCode::GetChildren2]).hold_reply();
    let admin = keeper.admin();
    let mut question = Box::pin(admin.show(path));
    assert!(matches!(question.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending));
    hold.caught().await;
    drop(hold);
    eventually("the thread is stuck", async || stuck.woken.load(Ordering::SeqCst)).await;
    release
}

/// The thread that would report the loss is stuck in foreign code. Before the server grants the lock to the next contender,
/// every observer of the hold sees the loss.
async fn case_32_a_guard_is_lost_by_its_deadline_even_if_the_librarys_thread_is_stuck(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let (report, reports) = mpsc::channel();
    let on_lost = OnLost::call(move |lost| report.send(lost.clone()).unwrap());
    let guard = world.mutex(&keeper).acquire().on_lost(on_lost).await.unwrap();
    let next = world.enqueue_mutex(&world.keeper().await).await;
    let stuck = block_library_thread(&keeper, &proxy, &world.path("aside")).await;
    let since = Instant::now();
    let lost = guard.cancelled_when_lost();
    let work = async { (guard.run(std::future::pending::<()>()).await, Instant::now()) };
    let granted = async { (next.granted().await, Instant::now()) };
    let ((outcome, stopped), (next, granted)) = tokio::join!(work, granted);
    assert_eq!(outcome, Err(Loss::Unreachable));
    assert!(stopped < granted, "reported only {:?} after the next grant", stopped - granted);
    assert!(stopped - since < TIMEOUT, "reported after {:?}", stopped - since);
    assert!(lost.is_cancelled() && !guard.is_held());
    assert_eq!(guard.lost().await, Loss::Unreachable);
    let said = reports.recv_timeout(PATIENCE).unwrap();
    assert_eq!((said.path, said.token, said.loss), (world.lock(), Some(guard.token()), Loss::Unreachable));
    drop(stuck);
    assert_eq!(guard.state(), HoldState::Lost(Loss::Unreachable), "lost is final");
    next.release().await.unwrap();
}

/// The work is done when it asks for the release. Otherwise `OnLost::Abort` would end a program that waits for its confirmation.
async fn a_release_that_no_server_confirms_is_no_loss(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, TIMEOUT).await;
    let (report, reports) = mpsc::channel();
    let on_lost = OnLost::call(move |lost| report.send(lost.path.clone()).unwrap());
    let released = world.mutex(&keeper).acquire().on_lost(on_lost.clone()).await.unwrap();
    let beside = world.path("beside");
    let held = keeper.mutex(&*beside).acquire().on_lost(on_lost).await.unwrap();
    proxy.black_hole();
    // The trust of both ends before that.
    assert!(matches!(released.release().await, Err(ReleaseError::Timeout { .. })));
    assert_eq!(held.lost().await, Loss::Unreachable);
    assert_eq!(reports.recv_timeout(PATIENCE), Ok(beside));
    assert_eq!(reports.try_recv(), Err(mpsc::TryRecvError::Empty));
}

/// The event about the deletion of the own node and the answer that the blocker does not exist are read at the same moment. The
/// event comes first, and the waiter behind may hold by then.
async fn a_waiter_that_is_evicted_before_its_blocker_ends_is_not_granted(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let holder = world.mutex(&world.keeper().await).acquire().await.unwrap();
    let between = world.enqueue_mutex(&world.keeper().await).await;
    let waiter = world.enqueue_mutex(&keeper).await;
    watches_set(&proxy, 2).await;
    let own = world.node(world.queue().await.last().unwrap());
    let watch = proxy.on(OpCode::GetData).path(holder.node()).hold_request();
    between.abort();
    watch.caught().await;
    let before = proxy.counts();
    let (release, until) = mpsc::channel::<()>();
    let stuck = Arc::new(Stuck { woken: AtomicBool::new(false), until: Mutex::new(until) });
    let waker = Waker::from(stuck.clone());
    let mut aside = keeper.mutex(world.path("aside")).acquire().timeout(Duration::from_millis(20)).into_future();
    assert!(aside.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    eventually("the thread is stuck", async || stuck.woken.load(Ordering::SeqCst)).await;
    world.remove(&own).await;
    world.remove(&holder.node()).await;
    watch.release();
    proxy
        .wait_until(|counts| {
            let since = counts.since(&before);
            since.delivered.of(OpCode::GetData) > 0 && since.watch_events > 0
        })
        .await;
    drop(release);
    match waiter.outcome().await {
        Err(AcquireError::Evicted { path, .. }) => assert_eq!(path, world.lock()),
        other => panic!("{other:?}"),
    }
    drop((aside, holder));
    world.queued(0).await;
}

/// Suspected, held again, lost: each change is reported to its waiter. A hold that ended with its session leaves nothing to
/// send.
async fn case_53_a_holder_sees_suspicion_and_loss_and_sends_nothing_afterwards(world: &World) {
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
    // A new session of the same handle does its own work; it sends nothing about the old hold.
    world.subject(&keeper).acquire_in_new_session().await.release().await.unwrap();
    let ops: Vec<_> = asked(world, &proxy, since).into_iter().map(|(op, _)| op).collect();
    let deletes = ops.iter().filter(|op| **op == OpCode::Delete).count();
    assert_eq!(deletes, 1, "only the new hold's: {ops:?}");
}

/// The session lives and the program gives no sign of life: the guard is lost, then the next contender gets the lock.
async fn case_43_an_unattended_hold_is_released(world: &World) {
    let keeper = world.keeper().await;
    let limit = Duration::from_secs(2);
    let guard = world.mutex(&keeper).acquire().with_liveness(limit).await.unwrap();
    let steady = world.kind.mutex(&keeper, &world.path("steady")).acquire().await.unwrap();
    let next = world.enqueue_mutex(&world.keeper().await).await;
    let started = Instant::now();
    let mut since = started;
    while started.elapsed() < limit + limit / 4 {
        since = Instant::now();
        assert!(guard.alive() && guard.valid_for() <= limit);
        tokio::time::sleep(limit / 20).await;
    }
    assert!(next.waits());
    let lost = async { (guard.lost().await, Instant::now()) };
    let granted = async {
        let next = next.granted().await;
        assert!(!guard.is_held(), "two hold");
        next
    };
    let ((loss, lost), next) = tokio::join!(lost, granted);
    assert_eq!(loss, Loss::Unattended);
    assert!(lost - since >= limit, "lost {:?} after the last sign of life", lost - since);
    assert!(!guard.alive(), "a lost hold is alive again");
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Unattended })));
    assert!(steady.alive(), "another hold of the session has no limit");
    next.release().await.unwrap();
    steady.release().await.unwrap();
}

/// `verify` makes one small write, which proves that a majority still has the node; it also renews the trust.
async fn a_hold_is_verified_at_the_servers_in_one_round_trip(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let before = proxy.counts();
    guard.verify().await.unwrap();
    assert_eq!(proxy.counts().since(&before).requested.of(OpCode::Multi), 1);
    // While the connection is lost, `verify` waits.
    let lost = proxy.on(OpCode::Multi).cut_before_reply();
    let verified = guard.verify();
    let (verified, ()) = tokio::join!(verified, lost.fired());
    verified.unwrap();
    // A clock cannot know that the node is deleted; the reply says so.
    world.remove(&guard.node()).await;
    assert_eq!(guard.verify().await, Err(VerifyError::Lost(Loss::Removed)));
    assert!(!guard.is_held());
}

/// Behind the delete, the check would find no node, and report the release as a loss.
async fn a_check_that_nobody_waits_for_is_not_repeated_behind_the_release(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let node = guard.node();
    let check = proxy.on(OpCode::Multi).path(&node).hold_reply();
    tokio::select! {
        verified = guard.verify() => panic!("{verified:?}"),
        () = check.caught() => {}
    }
    let releasing = crate::support::spawn(guard.release());
    proxy.wait_until(|counts| counts.answered.of(OpCode::Delete) == 1).await;
    let since = proxy.records().len();
    proxy.cut(Cut::Reset);
    drop(check);
    assert_eq!(releasing.await.unwrap(), Ok(()));
    let sent = asked(world, &proxy, since);
    let checks = sent.iter().filter(|(op, path)| *op == OpCode::Multi && node.ends_with(path.as_str()));
    assert_eq!(checks.count(), 0, "{sent:?}");
}

/// The same process and the same lock: while the node of the disconnected session exists, the new session's contender waits
/// behind it.
async fn case_02_a_new_session_never_adopts_the_old_sessions_node(world: &World) {
    let proxy = world.proxy().await;
    let old = world.keeper_through(&proxy, TIMEOUT).await;
    let guard = world.mutex(&old).acquire().await.unwrap();
    let new = world.keeper().await;
    proxy.black_hole();
    assert_eq!(guard.lost().await, Loss::Unreachable);
    assert!(world.exists(&guard.node()).await, "lost before the server grants the lock again");
    let refused = world.mutex(&new).try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
    let again = world.mutex(&new).acquire().timeout(PATIENCE).await.unwrap();
    assert!(!world.exists(&guard.node()).await, "the old node still exists");
    assert!(again.is_held() && !guard.is_held());
    again.release().await.unwrap();
    proxy.heal();
}

/// For every n, the connection breaks before the n-th request of a lock's whole life, or before its reply: in the end the queue
/// is empty and the lock is free.
async fn case_10_a_disconnect_at_any_request_leaves_no_node(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let other = world.keeper().await;
    for effect in [false, true] {
        for nth in 1.. {
            let path = world.path(&format!("{effect}-{nth}"));
            let rule = proxy.on_any(REQUESTS).path(world.kind.parent(&path)).nth(nth);
            let broken = if effect { rule.cut_before_reply() } else { rule.cut_before_request() };
            let lock = world.kind.lock(&keeper, &path);
            let guard = lock.acquire().await.unwrap();
            assert!(guard.is_held());
            guard.release().await.unwrap();
            let met = broken.has_fired();
            proxy.heal();
            let left = async || world.children(&path).await.iter().all(|name| name == HOLDER_MARKER);
            eventually(&format!("{path} is empty"), left).await;
            world.kind.rival().lock(&other, &path).acquire().timeout(PATIENCE).await.unwrap().release().await.unwrap();
            if !met {
                assert!(nth > 2, "no request was met");
                break;
            }
        }
    }
}

/// `nearly_lost` returns as long before the loss as the holder needs to stop its work.
async fn a_holder_is_warned_of_a_loss_as_early_as_it_asks(world: &World) {
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

/// A holder whose runtime does not run would see the loss too late.
async fn a_blocked_runtime_is_noticed(world: &World) {
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

async fn an_invalid_liveness_limit_is_refused_before_anything_is_sent(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.counts();
    let refused = world.mutex(&keeper).acquire().with_liveness(Duration::ZERO).await;
    assert_eq!(misused(&refused), Some("liveness"), "{refused:?}");
    assert_eq!(proxy.counts().since(&before).requested.total(), 0);
}

/// All of the user's threads are busy for more than two session timeouts, then the server is down for a while. The session
/// survives both, and so does the hold.
#[test]
fn case_49_a_saturated_runtime_and_a_server_restart_lose_no_lock() {
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
        let heartbeats = |server: &Server| {
            let requests = server.stats().requests;
            requests.iter().find(|(op, _)| **op == lockkeeper_server::OpCode::Multi).map_or(0, |(_, count)| *count)
        };
        eventually("two timeouts' heartbeats", async || heartbeats(&server) >= 8).await;
        assert_eq!(guard.state(), HoldState::Held);
        assert!(guard.runtime_lag().is_some_and(|lag| lag > TIMEOUT / 10), "{:?}", guard.runtime_lag());
        server.shutdown().await.unwrap();
        eventually("suspected", async || guard.state() == HoldState::Suspected).await;
        let server = Server::start(durable().with_listen(address)).await.unwrap();
        eventually("held again", async || guard.state() == HoldState::Held).await;
        eventually("renewal resumes", async || heartbeats(&server) >= 4).await;
        assert_eq!(guard.state(), HoldState::Held);
        busy.store(false, Ordering::SeqCst);
        user.shutdown_background();
        keeper.close().await;
    });
}

/// The servers for the process that is to be aborted; set for the child process only.
const ABORT: &str = "LOCKKEEPER_TEST_ABORT";

/// case_32: with `OnLost::Abort` the loss stops the whole process.
#[test]
fn case_32_a_process_with_on_lost_abort_stops_when_its_lock_is_lost() {
    let name = "cases::holders::case_32_a_process_with_on_lost_abort_stops_when_its_lock_is_lost";
    if let Ok(servers) = std::env::var(ABORT) {
        let builder = Lockkeeper::builder().session_timeout(TIMEOUT).on_lost(OnLost::Abort);
        let keeper = builder.connect_blocking(&servers).unwrap();
        let guard = keeper.mutex("/locks/abort").acquire().wait().unwrap();
        // The child process never checks its guard.
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
        eventually("the child holds the lock", async || {
            keeper.admin().show("/locks/abort").await.is_ok_and(|lock| !lock.holders.is_empty())
        })
        .await;
        proxy.black_hole();
        let status = tokio::time::timeout(PATIENCE, child.wait()).await.expect("the child still runs").unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(6), "{status}");
        let lock = keeper.admin().show("/locks/abort").await.unwrap();
        assert_eq!(lock.holders.len(), 1, "the process stopped before its session expired");
        keeper.close().await;
    });
}
