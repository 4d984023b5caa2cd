//! The threads and runtimes that may call the library, and the arguments of its calls.

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use lockkeeper::error::{AcquireError, AdminError, ConnectError, PathError, SessionError};
use lockkeeper::guard::{HoldState, OnLost};
use lockkeeper::{DistributedLock, LockPath, Lockkeeper, Loss};
use lockkeeper_helix::HelixLock;
use lockkeeper_testkit::proxy::OpCode;

use crate::support::{EVERY_KIND, Held, PATIENCE, STEADY, World, for_every_kind, for_kinds, misused};

for_every_kind!(
    programs_without_async_can_lock,
    case_51_a_guard_is_tied_to_no_task_and_no_thread,
    invalid_paths_are_refused_before_anything_is_sent,
    a_path_with_a_contenders_name_is_refused,
    a_missing_chroot_is_refused_or_created_and_hidden,
    case_47_a_wait_may_last_the_longest_duration,
    a_timeout_of_zero_tries_once,
    a_message_that_is_too_long_is_refused,
);

for_kinds!([every_kind Native] a_blocking_call_in_async_code_panics_with_advice);
for_kinds!([every_kind Native] a_request_measures_its_deadline_in_real_time_while_tokios_clock_is_paused);
for_kinds!([every_kind Native] a_session_timeout_below_a_millisecond_is_refused);
for_kinds!([every_kind Native] the_longest_session_timeout_is_the_longest_that_the_protocol_has);
for_kinds!([every_kind Native] case_25_a_blocked_runtime_loses_no_lock);
for_kinds!([every_kind Native] case_25_a_callback_that_blocks_loses_no_lock);

/// All calls come from a thread that never had a runtime.
async fn programs_without_async_can_lock(world: &World) {
    let (servers, path, kind) = (world.servers(), world.lock(), world.kind);
    let program = thread::spawn(move || {
        let builder = Lockkeeper::builder().session_timeout(STEADY).program("plain");
        let keeper = builder.connect_blocking(&servers).unwrap();
        let (lock, rival) = (kind.lock(&keeper, &path), kind.rival().lock(&keeper, &path));
        let guard = lock.acquire().message("by hand").wait().unwrap();
        assert!(matches!(rival.try_acquire().wait(), Err(AcquireError::Held { .. })));
        let short = Duration::from_millis(50);
        assert!(matches!(rival.acquire().timeout(short).wait(), Err(AcquireError::Timeout { .. })));
        guard.release_blocking().unwrap();
        // Dropped on a thread without a runtime.
        drop(lock.acquire().wait().unwrap());
        let guard = lock.acquire().timeout(PATIENCE).wait().unwrap();
        let closer = keeper.clone();
        let closing = thread::spawn(move || closer.close_blocking());
        assert_eq!(guard.lost_blocking(), Loss::Closed);
        closing.join().unwrap();
        drop(guard);
    });
    tokio::task::spawn_blocking(|| program.join().unwrap()).await.unwrap();
    assert_eq!(world.queue().await, [""; 0]);
}

/// tokio's clock jumps over a minute as soon as its runtime has nothing to do.
async fn a_request_measures_its_deadline_in_real_time_while_tokios_clock_is_paused(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let (servers, path, kind) = (world.servers(), world.lock(), world.kind);
    let (sender, waits) = tokio::sync::oneshot::channel();
    let program = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let keeper = Lockkeeper::builder().session_timeout(STEADY).connect(&servers).await.unwrap();
            let lock = kind.lock(&keeper, &path);
            let waiting = lock.acquire().timeout(PATIENCE).into_future();
            sender.send(()).unwrap();
            waiting.await.unwrap().release().await.unwrap();
            assert!(keeper.close_within(PATIENCE).await);
        });
    });
    waits.await.unwrap();
    world.queued(2).await;
    guard.release().await.unwrap();
    tokio::task::spawn_blocking(|| program.join().unwrap()).await.unwrap();
}

/// A timeout of zero acts like `try_acquire`: a free lock is granted, and the error about a held one names the holder.
async fn a_timeout_of_zero_tries_once(world: &World) {
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let guard = world.subject(&keeper).acquire().timeout(Duration::ZERO).await.unwrap();
    let refused = world.rival(&other).acquire().timeout(Duration::ZERO).await;
    assert!(matches!(refused, Err(AcquireError::Held { holder: Some(_), .. })), "{refused:?}");
    guard.release().await.unwrap();
    let both = [keeper.mutex(world.path("a")).acquire(), keeper.mutex(world.path("b")).acquire()];
    let both = keeper.multi_lock(both).timeout(Duration::ZERO).await.unwrap();
    both.release().await.unwrap();
}

/// A message is not truncated, because a reader would see half of it.
async fn a_message_that_is_too_long_is_refused(world: &World) {
    let keeper = world.keeper().await;
    let long = "é".repeat(2049);
    let refused = world.subject(&keeper).acquire().message(&long).await;
    assert_eq!(misused(&refused), Some("message"), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("4098 bytes; the limit is 4096"));
    let guard = world.subject(&keeper).acquire().message(&long[2..]).await.unwrap();
    let asked = keeper.admin().revoke(&world.lock(), Some(&long)).await;
    assert_eq!(misused(&asked), Some("reason"), "{asked:?}");
    let broken = keeper.admin().break_lock(&world.lock(), &long).await;
    assert_eq!(misused(&broken), Some("reason"), "{broken:?}");
    assert!(broken.unwrap_err().to_string().contains("the limit is 1024"));
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// Acquired in one task, used in another, released on a thread without a runtime.
async fn case_51_a_guard_is_tied_to_no_task_and_no_thread(world: &World) {
    let keeper = world.keeper().await;
    let lock = world.subject(&keeper);
    let guard: Held = crate::support::spawn(lock.acquire().into_future()).await.unwrap().unwrap();
    let guard = crate::support::spawn(async move {
        assert!(guard.is_held());
        guard
    });
    let guard = guard.await.unwrap();
    let released = tokio::task::spawn_blocking(move || thread::spawn(|| guard.release_blocking()).join().unwrap());
    released.await.unwrap().unwrap();
    let guard = lock.acquire().await.unwrap();
    tokio::task::spawn_blocking(move || thread::spawn(|| drop(guard)).join().unwrap()).await.unwrap();
    lock.acquire().timeout(PATIENCE).await.unwrap().release().await.unwrap();
}

/// The session has its own thread: while the user's only thread is blocked, heartbeats continue for more than two session
/// timeouts, and other locks of the same session work (cases 25 and 49). The test holds a lock of every kind.
async fn case_25_a_blocked_runtime_loses_no_lock(world: &World) {
    let proxy = world.proxy().await;
    // Far longer than a busy machine starves a thread.
    let timeout = Duration::from_secs(4);
    let (keeper, other) = (world.keeper_through(&proxy, timeout).await, world.keeper().await);
    let path = |name: &str, nth: usize| world.path(&format!("{name}-{nth}"));
    let locks: Vec<_> =
        EVERY_KIND.into_iter().enumerate().map(|(nth, kind)| kind.lock(&keeper, &path("lock", nth))).collect();
    let (wake, asleep) = mpsc::channel::<()>();
    let (held, all_held) = tokio::sync::oneshot::channel();
    let user = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut guards = Vec::new();
            for lock in locks {
                let guard = lock.acquire().await.unwrap();
                // A callback that never returns, too.
                let lost = guard.cancelled_when_lost();
                crate::support::spawn(async move { lost.cancelled().await });
                guards.push(guard);
            }
            held.send(()).unwrap();
            asleep.recv().unwrap();
            for guard in guards {
                assert!(guard.is_held());
                guard.release().await.unwrap();
            }
        });
    });
    all_held.await.unwrap();
    // One ping per 3/20 of the timeout in which nothing else was sent.
    let before = proxy.counts();
    proxy.wait_until(|counts| counts.since(&before).answered.of(OpCode::Ping) > 14).await;
    for (nth, kind) in EVERY_KIND.into_iter().enumerate() {
        kind.lock(&keeper, &path("aside", nth)).acquire().await.unwrap().release().await.unwrap();
        let refused = kind.rival().lock(&other, &path("lock", nth)).try_acquire().await;
        assert!(matches!(refused, Err(AcquireError::Held { .. })), "{kind:?}: {:?}", refused.err());
    }
    wake.send(()).unwrap();
    tokio::task::spawn_blocking(|| user.join().unwrap()).await.unwrap();
}

/// A callback for a lost lock that never returns: the other holds of its session are renewed, other locks work, and the next
/// loss is reported, too.
async fn case_25_a_callback_that_blocks_loses_no_lock(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(2)).await;
    let (release, until) = mpsc::channel::<()>();
    let (until, (report, reports)) = (Mutex::new(until), mpsc::channel());
    let blocks = OnLost::call(move |lost| {
        report.send(lost.path.clone()).unwrap();
        _ = until.lock().unwrap().recv();
    });
    let path = |name: &str| world.path(name);
    let steady = world.kind.lock(&keeper, &path("steady")).acquire().await.unwrap();
    for name in ["first", "second"] {
        let lost = world.kind.mutex(&keeper, &path(name)).acquire().on_lost(blocks.clone()).await.unwrap();
        world.remove(&lost.node()).await;
        lost.lost().await;
    }
    let (reports, mut told) = tokio::task::spawn_blocking(move || {
        let told = vec![reports.recv_timeout(PATIENCE).unwrap()];
        (reports, told)
    })
    .await
    .unwrap();
    let before = proxy.counts();
    // Longer than the session timeout.
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::Check) >= 6).await;
    assert_eq!(steady.state(), HoldState::Held);
    world.kind.lock(&keeper, &path("aside")).acquire().await.unwrap().release().await.unwrap();
    steady.release().await.unwrap();
    drop(release);
    told.push(tokio::task::spawn_blocking(move || reports.recv_timeout(PATIENCE).unwrap()).await.unwrap());
    told.sort();
    assert_eq!(told, ["first", "second"].map(path));
}

/// A blocking call would stop the runtime's other tasks. On a thread that may block it works, also within a runtime.
async fn a_blocking_call_in_async_code_panics_with_advice(world: &World) {
    fn panic_message(call: impl FnOnce()) -> String {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).expect_err("the call blocked a task");
        panic.downcast_ref::<&str>().map(ToString::to_string).or_else(|| panic.downcast_ref().cloned()).unwrap()
    }
    let keeper = world.keeper().await;
    let (path, servers) = (world.lock(), world.servers());
    let texts = [
        panic_message(|| drop(keeper.mutex(&path).acquire().wait())),
        panic_message(|| drop(keeper.multi_lock([keeper.mutex(&path).acquire()]).wait())),
        panic_message(|| drop(DistributedLock::new(&keeper, &path, "a").lock_blocking())),
        panic_message(|| drop(lockkeeper::blocking::connect(&servers))),
        panic_message(|| keeper.close_blocking()),
    ];
    let guard = keeper.mutex(&path).acquire().await.unwrap();
    let release = panic_message(|| drop(guard.release_blocking()));
    for text in texts.into_iter().chain([release]) {
        assert!(text.contains("a blocking call of Lockkeeper") && text.contains("spawn_blocking"), "{text}");
    }
    // The same on a runtime with one thread, both in a task and in the future that the runtime was started with.
    let (here, lock) = (keeper.clone(), path.clone());
    let single = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async move {
            let task = crate::support::spawn({
                let (keeper, path) = (here.clone(), lock.clone());
                async move { panic_message(|| drop(keeper.mutex(&path).acquire().wait())) }
            });
            [task.await.unwrap(), panic_message(|| drop(here.mutex(&lock).acquire().wait()))]
        })
    };
    for text in thread::spawn(single).join().unwrap() {
        assert!(text.contains("a blocking call of Lockkeeper"), "{text}");
    }
    let mutex = keeper.mutex(&path);
    tokio::task::spawn_blocking(move || mutex.acquire().wait().unwrap().release_blocking().unwrap()).await.unwrap();
}

/// Servers would silently raise it to their minimum.
async fn a_session_timeout_below_a_millisecond_is_refused(world: &World) {
    for given in [Duration::ZERO, Duration::from_micros(999)] {
        let builder = || Lockkeeper::builder().session_timeout(given);
        let dir = tempfile::tempdir().unwrap();
        for outcome in [builder().connect(&world.servers()).await, builder().embedded(dir.path()).await] {
            assert_eq!(misused(&outcome), Some("session timeout"), "{given:?}: {outcome:?}");
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains("at least 1ms"), "{error}");
        }
    }
}

/// A server grants what it allows. Without one, the call ends at its own timeout.
async fn the_longest_session_timeout_is_the_longest_that_the_protocol_has(world: &World) {
    let keeper = Lockkeeper::builder().session_timeout(Duration::MAX).connect(&world.servers()).await.unwrap();
    world.keep_open(&keeper);
    world.subject(&keeper).acquire().await.unwrap().release().await.unwrap();
    let proxy = world.proxy().await;
    proxy.black_hole();
    let builder = Lockkeeper::builder().session_timeout(Duration::MAX).connect_timeout(Duration::from_millis(500));
    let outcome = builder.connect(&proxy.connect_string()).await;
    assert!(matches!(outcome, Err(ConnectError::Session(SessionError::Unreachable { .. }))), "{outcome:?}");
}

/// Each error is returned before anything is sent.
async fn invalid_paths_are_refused_before_anything_is_sent(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.counts();
    let long = format!("/{}", "x".repeat(5_000));
    for path in ["", "/", "nightly", "/a//b", "/a/", "//", "/a/./b", "/a/../b", "/a\0b", "/a\u{1}b", &long] {
        let lock = world.kind.lock(&keeper, path);
        assert_eq!(misused(&lock.acquire().await), Some("path"), "{path:?}");
        assert_eq!(misused(&lock.try_acquire().timeout(PATIENCE).await), Some("path"), "{path:?}");
        let shown = keeper.admin().show(path).await;
        assert_eq!(misused(&shown), Some("path"), "{path:?}");
        let text = shown.unwrap_err().to_string();
        assert!(!text.contains(['\n', '\0', '\u{1}']) && text.len() < 300, "{text:?}");
        assert!(keeper.admin().follow(path).next().await.is_err());
    }
    let sent = proxy.counts().since(&before).requested;
    assert_eq!(sent.total(), 0, "{sent:?}");
}

/// A component that a reader takes for a contender, a holder marker or a tombstone, in any node format, would block the lock
/// above it. An existing node of that name can still be shown. No path in Lockkeeper's own tree is a lock either.
async fn a_path_with_a_contenders_name_is_refused(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.counts();
    for name in [
        "_c_00000000-0000-0000-0000-000000000000-lock-0000000000",
        "_c_00000000-0000-0000-0000-000000000000-permits-3-0000000000",
        "_s_00000000-0000-0000-0000-000000000000-x-d1000",
        "__READ__0000000000",
        "1b2f0c5e4c8e4b7f9c2f0a1b2c3d4e5f__lock__0000000000",
        "lock-0000000000",
        "read-2147483647",
        "write--2147483648",
        "A-0000004711",
        "privateLock",
    ] {
        for path in [format!("{}/{name}", world.lock()), format!("{}/{name}/below", world.lock())] {
            let lock = world.kind.lock(&keeper, &path);
            let Err(error) = lock.try_acquire().await else { panic!("{path} was granted") };
            let Err(problem @ PathError::Contender { .. }) = LockPath::parse(&path) else { panic!("{path} is a path") };
            assert_eq!(error.to_string(), problem.to_string());
            let text = error.to_string();
            assert!(text.contains(&format!("{name:?}")) && text.contains(&format!("{:?}", world.lock())), "{text}");
            assert_eq!(misused(&lock.acquire().await), Some("path"), "{path}");
            let leased = HelixLock::new(&keeper, path.as_str(), STEADY).acquire().await;
            assert_eq!(misused(&leased), Some("path"), "{path}");
        }
    }
    for path in ["/lockkeeper", "/lockkeeper/locks/x"] {
        assert_eq!(misused(&world.kind.lock(&keeper, path).try_acquire().await), Some("path"), "{path}");
        assert!(matches!(LockPath::parse(path), Err(PathError::OwnTree { .. })), "{path}");
    }
    assert_eq!(proxy.counts().since(&before).requested.total(), 0);
    let below = format!("{}/lock-0000000000", world.lock());
    assert!(matches!(keeper.admin().show(&below).await, Err(AdminError::NoSuchLock { .. })));

    // A name that only looks similar is a valid lock name, below another lock and beside it; so is any name that `join`
    // escapes.
    let above = LockPath::parse(&world.lock()).unwrap();
    for path in ["lock-1", "nightly-2024", "a-b"]
        .map(|name| format!("{above}/{name}"))
        .into_iter()
        .chain(["lock-0000000000", "A-0000004711", "x/y", ".."].map(|name| above.join(name).unwrap().to_string()))
    {
        let guard = world.kind.lock(&keeper, &path).try_acquire().await.unwrap();
        world.subject(&keeper).try_acquire().await.unwrap().release().await.unwrap();
        guard.release().await.unwrap();
        if world.exists(&path).await {
            world.remove(&path).await;
        }
    }
}

/// `connect` fails if the chroot is missing, and does not create it without `create_chroot`. With it, `connect` creates the
/// chroot and its parents, and no path that the user sees contains it.
async fn a_missing_chroot_is_refused_or_created_and_hidden(world: &World) {
    let chroot = world.path("some/where");
    let servers = format!("{}{chroot}", world.servers());
    let builder = || Lockkeeper::builder().session_timeout(STEADY);
    match builder().connect(&servers).await {
        Err(error @ ConnectError::Session(SessionError::NoChroot { .. })) => {
            assert!(error.to_string().contains(&chroot) && !error.kind().is_retryable(), "{error}");
            assert!(error.hint().is_some_and(|hint| hint.contains("create_chroot")), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!world.exists(&chroot).await);
    let keeper = builder().create_chroot(true).connect(&servers).await.unwrap();
    world.keep_open(&keeper);
    let guard = world.kind.lock(&keeper, "/locks/nightly").acquire().await.unwrap();
    assert!(guard.node().starts_with(&world.kind.node("/locks/nightly", "")));
    assert!(world.exists(&format!("{chroot}{}", guard.node())).await);
    let seen = keeper.admin().list("/").await.unwrap();
    assert_eq!((seen.len(), seen[0].path.as_str()), (1, "/locks/nightly"));
    guard.release().await.unwrap();
    assert_eq!(world.children(&format!("{chroot}/locks/nightly")).await, [""; 0]);
    builder().connect(&servers).await.unwrap().close().await;
}

/// The longest duration means "for ever"; it must not overflow a clock.
async fn case_47_a_wait_may_last_the_longest_duration(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.rival(&keeper).acquire().timeout(Duration::MAX).await.unwrap();
    let alive = keeper.mutex(world.path("alive")).acquire().with_liveness(Duration::MAX).await.unwrap();
    assert!(alive.alive());
    let waiting = crate::support::spawn(world.subject(&keeper).acquire().timeout(Duration::MAX).into_future());
    world.queued(2).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let builder = Lockkeeper::builder().session_timeout(Duration::MAX).connect_timeout(Duration::MAX);
    builder.connect(&world.servers()).await.unwrap().close().await;
    // So may the pause before the next attempt to connect.
    let proxy = world.proxy().await;
    let builder = Lockkeeper::builder().session_timeout(Duration::from_secs(1)).reconnect(1, Duration::MAX);
    let keeper = builder.connect(&proxy.connect_string()).await.unwrap();
    let guard = world.rival(&keeper).acquire().await.unwrap();
    proxy.black_hole();
    assert_eq!(guard.lost().await, Loss::Unreachable);
    proxy.heal();
}
