//! A lock that a process keeps between two uses.

use std::time::{Duration, Instant};

use lockkeeper::error::{AcquireError, ReleaseError};
use lockkeeper::guard::OnLost;
use lockkeeper::{CancellationToken, Loss, Mutex, NodeFormat};
use lockkeeper_testkit::proxy::OpCode;

use super::on_every_server;
use crate::support::{STEADY, Waiter, World, eventually, misused};

on_every_server!(
    a_kept_lock_is_taken_again_without_a_request,
    a_kept_lock_is_given_up_when_another_contender_comes,
    a_kept_lock_in_use_is_given_up_at_the_end_of_that_use,
    a_contender_that_came_before_the_watch_is_noticed,
    uses_of_a_kept_lock_take_turns,
    processes_that_keep_a_lock_get_it_equally_often,
    a_kept_lock_is_released_when_it_is_asked_for,
    a_kept_lock_that_is_lost_is_acquired_anew,
    a_dropped_lock_is_kept_no_longer,
    a_wait_for_a_use_ends_as_its_options_say,
    a_turn_that_comes_right_before_the_deadline_blames_no_server,
    a_kept_lock_needs_no_sign_of_life_between_two_uses,
    a_lock_whose_nodes_are_beside_others_is_not_kept,
    a_use_of_a_kept_lock_is_an_ordinary_guard,
);

/// Waits until the lock is kept and its watch is set, so that the next contender is noticed.
async fn kept(lock: &Mutex) {
    eventually("the lock is kept", async || lock.is_kept()).await;
}

async fn a_kept_lock_is_taken_again_without_a_request(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let lock = world.mutex(&keeper).keep();
    let first = lock.acquire().await.unwrap();
    let token = first.token();
    first.release().await.unwrap();
    eventually("it watches for others", async || {
        let replies = proxy.counts().delivered;
        replies.of(OpCode::GetChildren) + replies.of(OpCode::GetChildren2) >= 2
    })
    .await;
    // The watch on its node comes 100 ms after its create.
    eventually("it watches its node", async || proxy.counts().delivered.of(OpCode::GetData) > 0).await;
    kept(&lock).await;
    let before = proxy.counts();
    for _ in 0..1_000 {
        let guard = lock.acquire().await.unwrap();
        assert!(guard.is_held());
        assert_eq!(guard.token(), token);
        guard.release().await.unwrap();
        drop(lock.try_acquire().await.unwrap());
    }
    let after = proxy.counts();
    for op in [OpCode::Delete, OpCode::GetChildren, OpCode::GetChildren2, OpCode::GetData, OpCode::Multi] {
        assert_eq!(after.delivered.of(op), before.delivered.of(op), "{op:?}");
    }
    for &op in OpCode::CREATES {
        assert_eq!(after.delivered.of(op), before.delivered.of(op), "{op:?}");
    }
    assert!(lock.is_kept());
    lock.release_kept().await.unwrap();
    assert!(!lock.is_kept());
    world.queued(0).await;
    let next = lock.acquire().await.unwrap();
    assert!(next.token() > token, "a new hold");
    next.release().await.unwrap();
}

async fn a_kept_lock_is_given_up_when_another_contender_comes(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let lock = world.mutex(&one).keep();
    for _ in 0..3 {
        let token = lock.acquire().await.unwrap().token();
        kept(&lock).await;
        let guard = world.mutex(&other).acquire().await.unwrap();
        assert!(guard.token() > token);
        assert!(!lock.is_kept());
        assert!(matches!(lock.try_acquire().await, Err(AcquireError::Held { .. })));
        guard.release().await.unwrap();
    }
    // A try is refused, and ends the keeping.
    drop(lock.acquire().await.unwrap());
    kept(&lock).await;
    eventually("the lock was given up", async || match world.mutex(&other).try_acquire().await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(error) => {
            assert!(matches!(error, AcquireError::Held { .. }), "{error}");
            false
        }
    })
    .await;
}

async fn a_kept_lock_in_use_is_given_up_at_the_end_of_that_use(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let lock = world.mutex(&one).keep();
    let first = lock.acquire().await.unwrap();
    let (again, waiting) = (lock.clone(), Waiter::spawn(world.mutex(&other).acquire()));
    world.queued(2).await;
    let next = crate::support::spawn(async move {
        let guard = again.acquire().await.unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        token
    });
    assert!(first.is_held() && waiting.waits());
    let token = first.token();
    drop(first);
    let guard = waiting.granted().await;
    assert!(guard.token() > token);
    let granted = guard.token();
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert!(next > granted || next == token, "behind the other process, unless that was not noticed yet");
}

/// Its node is in the first listing.
async fn a_contender_that_came_before_the_watch_is_noticed(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let lock = world.mutex(&one).keep();
    // The parent exists now, so the second listing is the one with the watch.
    world.mutex(&other).acquire().await.unwrap().release().await.unwrap();
    for _ in 0..3 {
        let listing = proxy.on(OpCode::GetChildren2).path(world.lock()).nth(2).hold_request();
        drop(lock.acquire().await.unwrap());
        listing.caught().await;
        let waiting = Waiter::spawn(world.mutex(&other).acquire());
        world.queued(2).await;
        listing.release();
        waiting.granted().await.release().await.unwrap();
    }
}

/// In the order of their calls; never two at a time.
async fn uses_of_a_kept_lock_take_turns(world: &World) {
    let keeper = world.keeper().await;
    let lock = world.mutex(&keeper).keep();
    let inside = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let first = lock.acquire().await.unwrap();
    let mut tasks = Vec::new();
    for number in 0..20 {
        let (lock, inside) = (lock.clone(), inside.clone());
        let mut waiting = Box::pin(async move {
            let guard = lock.acquire().await.unwrap();
            inside.lock().unwrap().push(number);
            tokio::task::yield_now().await;
            assert_eq!(inside.lock().unwrap().last(), Some(&number), "alone");
            guard.release().await.unwrap();
        });
        assert!(futures_util::poll!(&mut waiting).is_pending());
        tasks.push(crate::support::spawn(waiting));
    }
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(inside.lock().unwrap().iter().copied().eq(0..20));
}

/// Whatever the number of their tasks.
async fn processes_that_keep_a_lock_get_it_equally_often(world: &World) {
    const TURNS: usize = 60;
    let over = CancellationToken::new();
    let mut processes = Vec::new();
    for tasks in [1, 4, 8] {
        let keeper = world.keeper().await;
        let (lock, over) = (world.mutex(&keeper).keep(), over.clone());
        processes.push(crate::support::spawn(async move {
            let tokens = std::sync::Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
            let tasks = (0..tasks).map(|_| {
                let (lock, over, tokens) = (lock.clone(), over.clone(), tokens.clone());
                async move {
                    while !over.is_cancelled() {
                        let guard = lock.acquire().await.unwrap();
                        tokens.lock().unwrap().insert(guard.token());
                        if tokens.lock().unwrap().len() >= TURNS {
                            over.cancel();
                        }
                        // So long that the others have entered the queue again.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        drop(guard);
                    }
                }
            });
            futures_util::future::join_all(tasks).await;
            tokens.lock().unwrap().len()
        }));
    }
    let mut turns = Vec::new();
    for process in processes {
        turns.push(process.await.unwrap());
    }
    let (most, least) = (turns.iter().max().unwrap(), turns.iter().min().unwrap());
    assert!(most - least <= TURNS / 10, "{turns:?}");
}

async fn a_kept_lock_is_released_when_it_is_asked_for(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let lock = world.mutex(&one).keep();
    let admin = other.admin();
    drop(lock.acquire().await.unwrap());
    kept(&lock).await;
    let shown = admin.show(&world.lock()).await.unwrap();
    assert_eq!(shown.holders.len(), 1, "{shown:?}");
    assert_eq!(admin.revoke(&world.lock(), Some("deploying")).await.unwrap().len(), 1);
    world.queued(0).await;
    // In use: its program decides.
    let guard = lock.acquire().await.unwrap();
    admin.revoke(&world.lock(), Some("again")).await.unwrap();
    assert_eq!(guard.revocation().await.reason.as_deref(), Some("again"));
    assert!(guard.is_held());
    drop(guard);
    world.queued(0).await;
}

async fn a_kept_lock_that_is_lost_is_acquired_anew(world: &World) {
    let keeper = world.keeper().await;
    let lock = world.mutex(&keeper).keep();
    let guard = lock.acquire().await.unwrap();
    let (token, node) = (guard.token(), guard.node());
    drop(guard);
    kept(&lock).await;
    world.remove(&node).await;
    eventually("the loss was noticed", async || !lock.is_kept()).await;
    let guard = lock.acquire().await.unwrap();
    assert!(guard.token() > token);
    let node = guard.node();
    world.remove(&node).await;
    assert_eq!(guard.lost().await, Loss::Removed);
    assert!(guard.release().await.is_err());
    lock.acquire().await.unwrap().release().await.unwrap();
}

async fn a_dropped_lock_is_kept_no_longer(world: &World) {
    let keeper = world.keeper().await;
    let lock = world.mutex(&keeper).keep();
    let other = lock.clone();
    drop(lock.acquire().await.unwrap());
    drop(lock);
    kept(&other).await;
    let guard = other.acquire().await.unwrap();
    drop(other);
    assert!(guard.is_held());
    world.queued(1).await;
    drop(guard);
    world.queued(0).await;
    // Nor after the handle is closed.
    let lock = world.mutex(&keeper).keep();
    drop(lock.acquire().await.unwrap());
    keeper.close().await;
    world.queued(0).await;
    assert!(!lock.is_kept() && lock.acquire().await.is_err());
}

async fn a_wait_for_a_use_ends_as_its_options_say(world: &World) {
    let keeper = world.keeper().await;
    let lock = world.mutex(&keeper).keep();
    let guard = lock.acquire().await.unwrap();
    let short = Duration::from_millis(50);
    match lock.acquire().timeout(short).await {
        Err(AcquireError::Timeout { waited, .. }) => assert_eq!(waited, short),
        other => panic!("{other:?}"),
    }
    // The caller's runtime may have no timers.
    let elsewhere = lock.clone();
    let late = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(elsewhere.acquire().timeout(short).into_future()).map(drop)
    });
    assert!(matches!(late.await.unwrap(), Err(AcquireError::Timeout { .. })));
    assert!(matches!(lock.try_acquire().await, Err(AcquireError::Held { .. })));
    let now = lock.acquire().timeout(Duration::ZERO).await;
    assert!(matches!(now, Err(AcquireError::Held { .. })), "{now:?}");
    let cancel = CancellationToken::new();
    cancel.cancel();
    let cancelled = lock.acquire().cancel_on(cancel).await;
    assert!(matches!(cancelled, Err(AcquireError::Cancelled { .. })), "{cancelled:?}");
    drop(guard);
    // A deadline counts for both waits together.
    let other = world.mutex(&world.keeper().await).acquire().await.unwrap();
    match lock.acquire().timeout(short).await {
        Err(AcquireError::Timeout { waited, .. }) => assert_eq!(waited, short),
        other => panic!("{other:?}"),
    }
    other.release().await.unwrap();
    let blocking = lock.clone();
    tokio::task::spawn_blocking(move || blocking.acquire().wait().unwrap().release_blocking().unwrap()).await.unwrap();
    let lost = lock.acquire().await.unwrap();
    world.remove(&lost.node()).await;
    assert_eq!(lost.lost().await, Loss::Removed);
    let released = tokio::task::spawn_blocking(move || lost.release_blocking()).await.unwrap();
    assert_eq!(released, Err(ReleaseError::NotHeld { loss: Loss::Removed }));
}

async fn a_lock_whose_nodes_are_beside_others_is_not_kept(world: &World) {
    let keeper = world.keeper().await;
    let numbered = keeper.mutex(world.path("numbered")).node_format(NodeFormat::Numbered).keep();
    assert_eq!(misused(&numbered.acquire().await.map(drop)), Some("node format"));
    assert_eq!(misused(&numbered.try_acquire().await.map(drop)), Some("node format"));
    let bad = keeper.mutex("no path").keep();
    assert_eq!(misused(&bad.acquire().await.map(drop)), Some("path"));
}

/// Its create has no answer by then.
async fn a_turn_that_comes_right_before_the_deadline_blames_no_server(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let held = world.mutex(&other).acquire().await.unwrap();
    let lock = world.mutex(&one).keep();
    let (begun, limit) = (Instant::now(), Duration::from_secs(1));
    let first = Waiter::spawn(lock.acquire().timeout(limit));
    world.queued(2).await;
    let writes = proxy.on_any(&[OpCode::CREATES, &[OpCode::Multi]].concat()).hold_request();
    let after_the_turn = Duration::from_millis(100);
    let second = Waiter::spawn(lock.acquire().timeout((limit + after_the_turn).saturating_sub(begun.elapsed())));
    for waiting in [first, second] {
        let outcome = waiting.outcome().await;
        assert!(matches!(outcome, Err(AcquireError::Timeout { .. })), "{outcome:?}");
    }
    drop(writes);
    proxy.heal();
    held.release().await.unwrap();
    world.queued(0).await;
}

/// Between two uses no work runs. A limit below a third of the session timeout does not end the keeping either.
async fn a_kept_lock_needs_no_sign_of_life_between_two_uses(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let lock = world.mutex(&keeper).keep();
    let limit = Duration::from_millis(300);
    assert!(limit < STEADY / 3);
    let (report, losses) = std::sync::mpsc::channel();
    let on_lost = OnLost::call(move |lost| _ = report.send(lost.loss));
    let used = lock.acquire().with_liveness(limit).on_lost(on_lost).await.unwrap();
    let token = used.token();
    drop(used);
    kept(&lock).await;
    // A hold with the same limit, from a later moment, is lost.
    let control = keeper.mutex(world.path("control")).acquire().with_liveness(limit).await.unwrap();
    assert_eq!(control.lost().await, Loss::Unattended);
    assert!(lock.is_kept());
    let used = lock.acquire().await.unwrap();
    assert_eq!(used.token(), token);
    assert!(used.alive());
    assert_eq!(losses.try_recv().ok(), None);
    // In a use, the limit counts.
    assert_eq!(used.lost().await, Loss::Unattended);
    drop(used);
    let reported = tokio::task::spawn_blocking(move || losses.recv()).await.unwrap();
    assert_eq!(reported, Ok(Loss::Unattended));
    assert!(!lock.is_kept());
}

/// It can be verified, released within a time, and be one of several locks of a call. Only the end of the hold ends the keeping.
async fn a_use_of_a_kept_lock_is_an_ordinary_guard(world: &World) {
    let keeper = world.keeper().await;
    let lock = world.mutex(&keeper).keep();
    let guard = lock.acquire().message("nightly").await.unwrap();
    let (token, node) = (guard.token(), guard.node());
    assert!(!lock.is_kept(), "it is in use");
    guard.verify().await.unwrap();
    guard.release_within(STEADY).await.unwrap();
    assert!(lock.is_kept());
    let several = [lock.acquire(), keeper.mutex(world.path("other")).acquire()];
    let several = keeper.multi_lock(several).await.unwrap();
    assert_eq!(several.token(world.lock()), Some(token));
    several.release().await.unwrap();
    assert!(lock.is_kept());
    let holders = keeper.admin().show(&world.lock()).await.unwrap().holders;
    assert_eq!(holders[0].message.as_deref(), Some("nightly"));
    assert_eq!(lock.acquire().await.unwrap().node(), node);
    lock.release_kept().await.unwrap();
    world.queued(0).await;
    // An ordinary lock is kept by nobody.
    let ordinary = world.mutex(&keeper);
    let guard = ordinary.acquire().await.unwrap();
    ordinary.release_kept().await.unwrap();
    assert!(guard.is_held() && !ordinary.is_kept());
    guard.release().await.unwrap();
    world.queued(0).await;
}
