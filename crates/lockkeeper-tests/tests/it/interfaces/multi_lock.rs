//! Several locks in one call.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::FutureExt;
use lockkeeper::error::{AcquireError, VerifyError};
use lockkeeper::guard::HoldState;
use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::proxy::{OpCode, What};

use super::on_every_server;
use crate::support::{STEADY, World, eventually, misused, on_the_embedded_server_for};

on_every_server!(
    case_52_locks_taken_in_opposite_orders_never_deadlock,
    case_52_several_locks_are_acquired_all_or_none_by_one_deadline,
    kinds_are_mixed_in_one_call,
    a_lock_named_twice_is_refused_immediately,
    requests_of_handles_with_different_chroots_are_refused,
    the_loss_of_one_lock_is_the_loss_of_all,
    a_call_fails_when_an_acquired_lock_is_lost_before_the_next_is_granted,
    a_call_whose_session_ends_acquires_all_of_its_locks_again,
    the_guard_answers_for_all_of_its_locks,
    a_call_whose_first_lock_is_broken_says_by_whom_and_why,
    a_release_or_a_drop_of_several_locks_releases_each_of_them,
    a_program_without_async_releases_all,
);

on_the_embedded_server_for!(
    [native Native]
    a_call_whose_session_the_server_ends_acquires_all_again,
    a_call_with_limited_retries_does_not_begin_again,
);

/// D-05: `multi_lock` of A and B against `multi_lock` of B and A.
async fn case_52_locks_taken_in_opposite_orders_never_deadlock(world: &World) {
    let rounds = if world.is_embedded() && is_deep() { 2_500 } else { 100 };
    let (a, b) = (world.path("a"), world.path("b"));
    let mut workers = Vec::new();
    for worker in 0..4 {
        let keeper = world.keeper().await;
        let (a, b) = if worker % 2 == 0 { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
        workers.push(crate::support::spawn(async move {
            for _ in 0..rounds {
                let both = keeper.multi_lock([keeper.mutex(&a).acquire(), keeper.mutex(&b).acquire()]).await.unwrap();
                assert!(both.is_held());
                both.release().await.unwrap();
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
}

async fn case_52_several_locks_are_acquired_all_or_none_by_one_deadline(world: &World) {
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let paths = ["a", "b", "c"].map(|name| world.path(name));
    let all = |keeper: &lockkeeper::Lockkeeper| {
        keeper.multi_lock(paths.iter().rev().map(|path| keeper.mutex(path).acquire()))
    };
    // The last in order is held by another client: the locks before it must be released.
    let last = other.mutex(&paths[2]).acquire().await.unwrap();
    // Long enough to acquire the first two.
    let short = Duration::from_secs(2);
    match all(&keeper).timeout(short).await {
        Err(AcquireError::Timeout { path, waited, holder, .. }) => {
            assert_eq!((path, waited), (paths[2].clone(), short));
            assert!(holder.is_some());
        }
        outcome => panic!("{outcome:?}"),
    }
    for path in &paths[..2] {
        eventually("the acquired locks are released", async || world.children(path).await.is_empty()).await;
    }
    last.release().await.unwrap();
    let guard = all(&keeper).each(|one| one.message("all three")).await.unwrap();
    let order: Vec<_> = guard.holdings().iter().map(|holding| holding.path().to_owned()).collect();
    assert_eq!(order, paths, "locks are acquired in path order, whatever order the call names");
    assert!(guard.token(&paths[0]) < guard.token(&paths[1]));
    drop(guard);
    for path in &paths {
        eventually("dropping the guard releases all", async || world.children(path).await.is_empty()).await;
    }
}

async fn kinds_are_mixed_in_one_call(world: &World) {
    let keeper = world.keeper().await;
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| world.path(name));
    let parts = [
        keeper.priority_lock(&d).background().acquire().any(),
        keeper.semaphore(&c, 3).acquire_many(2).any(),
        keeper.rwlock(&b).read().acquire().any(),
        keeper.mutex(&a).acquire().any(),
    ];
    let guard = keeper.multi_lock(parts).timeout(STEADY).await.unwrap();
    assert_eq!(guard.holdings().len(), 4);
    assert_eq!(guard.token(&c), None, "permits have no token");
    assert!(guard.token(&a).is_some() && guard.token(&b).is_some() && guard.token(&d).is_some());
    assert!(matches!(keeper.mutex(&a).try_acquire().await, Err(AcquireError::Held { .. })));
    drop(keeper.rwlock(&b).read().try_acquire().await.unwrap());
    assert!(matches!(keeper.semaphore(&c, 3).try_acquire_many(2).await, Err(AcquireError::Held { .. })));
    assert!(matches!(keeper.priority_lock(&d).try_acquire().await, Err(AcquireError::Held { .. })));
    guard.release().await.unwrap();
}

async fn a_lock_named_twice_is_refused_immediately(world: &World) {
    let keeper = world.keeper().await;
    let (a, b) = (world.path("a"), world.path("b"));
    let twice = [keeper.mutex(&a).acquire(), keeper.mutex(&b).acquire(), keeper.mutex(&a).acquire()];
    let refused = keeper.multi_lock(twice).await;
    assert_eq!(misused(&refused), Some("locks"), "{refused:?}");
    assert!(refused.unwrap_err().to_string().starts_with(&format!("{a} is requested twice")));
    let bad = [keeper.mutex(&a).acquire(), keeper.mutex("no/path").acquire()];
    assert_eq!(misused(&keeper.multi_lock(bad).await), Some("path"));
    // So are the options of every part, also of one whose turn would come late.
    let first = || keeper.mutex(world.path("first")).acquire().any();
    let long = [first(), keeper.mutex(world.path("long")).acquire().message("x".repeat(5000)).any()];
    let delay = [first(), keeper.priority_lock(world.path("late")).acquire().lock_delay(STEADY).any()];
    for (parts, argument) in [(long, "message"), (delay, "lock delay")] {
        assert_eq!(misused(&keeper.multi_lock(parts).await), Some(argument));
    }
    assert!(!world.exists(&world.path("first")).await, "it was acquired");
    assert!(!world.exists(&a).await, "the refused call created a node");
    let none = keeper.multi_lock::<lockkeeper::Guard>([]).await;
    assert_eq!(misused(&none), Some("locks"));
    assert!(none.unwrap_err().to_string().contains("at least one"));
    assert_eq!(misused(&keeper.multi_lock::<lockkeeper::Guard>([]).wait()), Some("locks"));
}

/// Their paths have no common order: two such calls would wait for each other. A fenced write would look for both nodes in one chroot.
async fn requests_of_handles_with_different_chroots_are_refused(world: &World) {
    let (keeper, chroot) = (world.keeper().await, world.path("zz"));
    world.make(&chroot).await;
    let below = Lockkeeper::connect(&format!("{}{chroot}", world.servers())).await.unwrap();
    let (a, m) = (world.path("a"), world.path("m"));
    for both in [
        [keeper.mutex(&m).acquire(), below.mutex("/a").acquire()],
        [below.mutex("/a").acquire(), keeper.mutex(&m).acquire()],
        [keeper.mutex(&a).acquire(), below.mutex(&a).acquire()],
    ] {
        let refused = keeper.multi_lock(both).await;
        assert_eq!(misused(&refused), Some("locks"), "{refused:?}");
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("their paths have no common order") && text.contains(&chroot), "{text}");
    }
    assert!(!world.exists(&m).await && !world.exists(&format!("{chroot}/a")).await, "a refused call created a node");
    // Two handles with one connect string are no two orders.
    let second = world.keeper().await;
    let both = keeper.multi_lock([second.mutex(&m).acquire(), keeper.mutex(&a).acquire()]).await.unwrap();
    both.fenced_write().await.unwrap();
    both.release().await.unwrap();
    below.close().await;
}

async fn the_loss_of_one_lock_is_the_loss_of_all(world: &World) {
    let keeper = world.keeper().await;
    let parts = ["a", "b"].map(|name| keeper.mutex(world.path(name)).acquire());
    let guard = keeper.multi_lock(parts).await.unwrap();
    world.remove(&guard.holdings()[1].node()).await;
    assert_eq!(guard.lost().await, Loss::Removed);
    assert!(!guard.is_held());
    assert_eq!(guard.state(), HoldState::Lost(Loss::Removed));
    assert_eq!(guard.run(std::future::pending::<()>()).await, Err(Loss::Removed));
    assert!(guard.release().await.is_err());
}

async fn a_call_fails_when_an_acquired_lock_is_lost_before_the_next_is_granted(world: &World) {
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let [a, b] = ["a", "b"].map(|name| world.path(name));
    let held = other.mutex(&b).acquire().await.unwrap();
    let both = keeper.multi_lock([keeper.mutex(&a).acquire(), keeper.mutex(&b).acquire()]);
    let call = crate::support::spawn(both.into_future());
    eventually("the call holds a and waits for b", async || world.children(&b).await.len() == 2).await;
    let node = world.children(&a).await.remove(0);
    world.remove(&format!("{a}/{node}")).await;
    match tokio::time::timeout(STEADY, call).await.expect("the call still waits for b").unwrap() {
        Err(AcquireError::Evicted { path, node: gone, .. }) => assert_eq!((path, gone), (a, node)),
        outcome => panic!("{outcome:?}"),
    }
    eventually("the call leaves the queue of b", async || world.children(&b).await.len() == 1).await;
    held.release().await.unwrap();
}

/// The first lock is held and the second one is waited for. The session is cut off until the servers have ended it.
async fn a_call_whose_session_ends_acquires_all_of_its_locks_again(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(2)).await;
    let other = world.keeper().await;
    let [a, b] = ["a", "b"].map(|name| world.path(name));
    let held = other.mutex(&b).acquire().await.unwrap();
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let request = |again| {
        keeper.multi_lock([keeper.mutex(&a).acquire(), keeper.mutex(&b).acquire()]).each(|one| {
            let report = report.clone();
            one.requeue(again).on_requeued(move |requeued| _ = report.send(requeued.clone()))
        })
    };
    let fails = crate::support::spawn(request(false).into_future());
    eventually("the call holds a and waits for b", async || world.children(&b).await.len() == 2).await;
    proxy.black_hole();
    eventually("the session has ended", async || world.children(&b).await.len() == 1).await;
    proxy.heal();
    let outcome = tokio::time::timeout(STEADY, fails).await.expect("the call still waits").unwrap();
    assert!(matches!(outcome, Err(AcquireError::SessionLost { .. })), "{outcome:?}");

    let both = crate::support::spawn(request(true).into_future());
    eventually("the call holds a and waits for b", async || world.children(&b).await.len() == 2).await;
    let before = world.children(&a).await;
    proxy.black_hole();
    eventually("the session has ended", async || world.children(&b).await.len() == 1).await;
    proxy.heal();
    eventually("the call waits for b again", async || world.children(&b).await.len() == 2).await;
    held.release().await.unwrap();
    let both = tokio::time::timeout(STEADY, both).await.expect("the call still waits").unwrap().unwrap();
    assert!(both.is_held());
    assert_ne!(world.children(&a).await, before, "the hold of a has survived its session");
    assert!(matches!(reports.recv().await.unwrap().loss, Loss::SessionExpired | Loss::Unreachable));
    assert!(reports.try_recv().is_err(), "it was reported once");
    both.release().await.unwrap();
}

/// The server says that the session is over, before the client's clock does.
async fn a_call_whose_session_the_server_ends_acquires_all_again(world: &World) {
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let [a, b] = ["a", "b"].map(|name| world.path(name));
    let held = other.mutex(&b).acquire().await.unwrap();
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let both = keeper.multi_lock([keeper.mutex(&a).acquire(), keeper.mutex(&b).acquire()]);
    let both = both.each(|one| {
        let report = report.clone();
        one.on_requeued(move |requeued| _ = report.send(requeued.clone()))
    });
    let both = crate::support::spawn(both.into_future());
    eventually("the call holds a and waits for b", async || world.children(&b).await.len() == 2).await;
    let session = other.admin().show(&b).await.unwrap().waiters[0].session;
    assert!(world.embedded().faults().expire(session.0).await.unwrap());
    let requeued = tokio::time::timeout(STEADY, reports.recv()).await.expect("the call has ended").unwrap();
    assert!([a, b].contains(&requeued.path), "{requeued:?}");
    assert_eq!(requeued.loss, Loss::SessionExpired);
    held.release().await.unwrap();
    both.await.unwrap().unwrap().release().await.unwrap();
}

/// C-31: the caller has said how often it retries, so the loss of its session is final.
async fn a_call_with_limited_retries_does_not_begin_again(world: &World) {
    let proxy = world.proxy().await;
    let pause = Duration::from_millis(50);
    let builder = Lockkeeper::builder().session_timeout(Duration::from_secs(2)).reconnect(1_000, pause);
    let keeper = builder.connect(&proxy.connect_string()).await.unwrap();
    let other = world.keeper().await;
    let [a, b] = ["a", "b"].map(|name| world.path(name));
    let held = other.mutex(&b).acquire().await.unwrap();
    let both = keeper.multi_lock([keeper.mutex(&a).acquire(), keeper.mutex(&b).acquire()]).timeout(STEADY);
    let both = crate::support::spawn(both.into_future());
    eventually("the call holds a and waits for b", async || world.children(&b).await.len() == 2).await;
    proxy.black_hole();
    match tokio::time::timeout(STEADY / 2, both).await.expect("the call has begun again").unwrap() {
        Err(AcquireError::SessionLost { path, loss: Loss::Unreachable }) => assert_eq!(path, a),
        outcome => panic!("{outcome:?}"),
    }
    proxy.heal();
    held.release().await.unwrap();
    keeper.close().await;
}

async fn the_guard_answers_for_all_of_its_locks(world: &World) {
    let keeper = world.keeper().await;
    let parts = ["a", "b"].map(|name| keeper.mutex(world.path(name)).acquire());
    let guard = keeper.multi_lock(parts).await.unwrap();
    guard.verify().await.unwrap();
    assert!(guard.alive());
    let held = HoldState::Held;
    assert_eq!(guard.state(), held);
    let mut changed = std::pin::pin!(guard.changed(held));
    assert!(changed.as_mut().now_or_never().is_none(), "nothing has changed");
    assert!(guard.loss().is_none() && guard.revocation_requested().is_none());
    let first = guard.holdings()[0].valid_for();
    assert!(guard.valid_for() > STEADY / 3 && guard.valid_for() <= first);
    guard.renewed().await;
    let (token, again) = (guard.cancelled_when_lost(), guard.cancelled_when_lost());
    assert!(!token.is_cancelled());
    let admin = world.keeper().await.admin();
    admin.revoke(world.path("b"), Some("maintenance")).await.unwrap();
    let (holding, asked) = guard.revocation().await;
    assert_eq!((holding.path(), asked.reason.as_deref()), (&*world.path("b"), Some("maintenance")));
    assert_eq!(guard.revocation_requested().map(|(_, by)| by), Some(asked.clone()));
    assert!(guard.revocation_after(&asked).now_or_never().is_none(), "there is no other request");
    guard.refuse_revocation("not now").unwrap();
    assert!(guard.revocation_requested().is_none());
    let node = guard.holdings()[1].node();
    world.remove(&node).await;
    assert_eq!(changed.await, HoldState::Lost(Loss::Removed));
    token.cancelled().await;
    again.cancelled().await;
    assert_eq!((guard.loss(), guard.valid_for()), (Some(Loss::Removed), Duration::ZERO));
    assert!(guard.cancelled_when_lost().is_cancelled());
    assert!(!guard.alive());
    assert_eq!(guard.verify().await, Err(VerifyError::Lost(Loss::Removed)));
}

/// The lock that it holds already is broken while it waits for the other.
async fn a_call_whose_first_lock_is_broken_says_by_whom_and_why(world: &World) {
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let [a, b] = ["a", "b"].map(|name| world.path(name));
    let second = other.mutex(&b).acquire().await.unwrap();
    let call =
        crate::support::spawn(keeper.multi_lock([&a, &b].map(|path| keeper.mutex(path).acquire())).into_future());
    eventually("the first lock is held", async || world.children(&a).await.len() == 1).await;
    eventually("the call waits", async || world.children(&b).await.len() == 2).await;
    let broken = other.admin().break_lock(&a, "stuck deploy").await.unwrap();
    let error = call.await.unwrap().unwrap_err();
    assert!(error.to_string().starts_with(&format!("the hold of {a} was broken by ")), "{error}");
    assert!(error.to_string().ends_with(": stuck deploy"), "{error}");
    assert!(matches!(error, AcquireError::Evicted { by: Some(by), .. } if *by == broken));
    second.release().await.unwrap();
}

/// It returns when the server has confirmed the release.
async fn a_program_without_async_releases_all(world: &World) {
    let keeper = world.keeper().await;
    let guard = keeper.multi_lock(["a", "b"].map(|name| keeper.mutex(world.path(name)).acquire())).await.unwrap();
    tokio::task::spawn_blocking(move || guard.release_blocking()).await.unwrap().unwrap();
    for name in ["a", "b"] {
        assert!(world.children(&world.path(name)).await.is_empty(), "{name}");
    }
}

async fn a_release_or_a_drop_of_several_locks_releases_each_of_them(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    for drops in [false, true] {
        let parts = ["a", "b", "c"].map(|name| keeper.mutex(world.path(name)).acquire());
        let guard = keeper.multi_lock(parts).await.unwrap();
        let mut nodes: Vec<_> = guard.holdings().iter().map(|holding| holding.node()).collect();
        nodes.sort();
        let before = proxy.records().len();
        match drops {
            true => drop(guard),
            false => guard.release().await.unwrap(),
        }
        let deleted = || {
            let records = proxy.records().into_iter().skip(before);
            let deletes = records.filter_map(|record| match record.what {
                What::Request { op: OpCode::Delete, path, .. } => path,
                // Several that leave at the same time leave together.
                What::Part { op: OpCode::Delete, path } => Some(path),
                _ => None,
            });
            let mut deleted: Vec<_> = deletes.filter(|path| nodes.contains(path)).collect();
            deleted.sort();
            deleted
        };
        eventually("all are released", async || deleted().len() == 3).await;
        assert_eq!(deleted(), nodes);
    }
}
