//! How a hold or a place in line is lost against its owner's will, and what the owner is told.

use std::time::Duration;

use lockkeeper::{Error, HoldState, Lockkeeper, Loss, ReleaseError};
use tokio::time::Instant;

use crate::support::{Held, Lock, World, for_every_kind, for_every_kind_embedded, grew, turn_at};

for_every_kind!(
    case_01_a_cut_off_holder_knows_before_the_next_is_let_in,
    case_41_case_44_a_waiter_whose_session_ends_never_gets_the_lock,
    a_deleted_node_ends_the_hold,
    case_42_a_waiter_whose_node_is_deleted_is_told_at_once,
    guarded_work_stops_where_the_lock_is_lost,
);

for_every_kind_embedded!(an_expired_session_is_told_as_such, case_48_a_lost_hold_does_not_poison_the_lock,);

/// Short enough to wait for, long enough that a quarter of it outlasts a busy machine's hiccups.
const SHORT: Duration = Duration::from_secs(2);

/// Acquires by a handle whose last session may be over: that one attempt may say so, the next opens a new session.
async fn acquire_anew(lock: &Lock) -> Held {
    loop {
        match lock.acquire().await {
            Ok(guard) => return guard,
            Err(Error::SessionLost { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Its own clock tells it, for nobody else can: the guard is lost before the server can let the next one in. Lost is final,
/// and the same handle works again when the network does.
async fn case_01_a_cut_off_holder_knows_before_the_next_is_let_in(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, SHORT).await;
    let lock = world.subject(&keeper);
    let guard = lock.acquire().await.unwrap();
    let next = world.await_in_line(world.rival(&world.keeper().await).acquire()).await;
    proxy.black_hole();
    let due = Instant::now() + guard.valid_for();
    let lost = async { (guard.lost().await, Instant::now()) };
    let granted = async { (next.granted().await, Instant::now()) };
    let ((loss, lost_at), (next, granted_at), turn) = tokio::join!(lost, granted, turn_at(due));
    assert_eq!(loss, Loss::Unreachable);
    assert!(due < granted_at, "trusted for {:?} after the next was let in", due - granted_at);
    // Or with whoever had a turn when it was due: where nobody had one, nobody did any work either.
    let soon = turn.unwrap() + SHORT / 8;
    assert!(lost_at < granted_at.max(soon), "known only {:?} after the next was let in", lost_at - granted_at);
    assert!(!guard.is_held() && grew(guard.token(), next.token()));
    proxy.heal();
    next.release().await.unwrap();
    let again = acquire_anew(&lock).await;
    assert_eq!(guard.state(), HoldState::Lost(Loss::Unreachable), "lost is final");
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Unreachable })));
    assert!(again.is_held() && world.exists(&again.node()).await, "the old guard let go of the new hold");
    again.release().await.unwrap();
}

/// A place in line is a node of the session: it ends with it, and the waiter is told, not let in later.
async fn case_41_case_44_a_waiter_whose_session_ends_never_gets_the_lock(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, SHORT).await;
    let holder = world.keeper().await;
    let guard = world.rival(&holder).acquire().await.unwrap();
    let waiter = world.await_in_line(world.subject(&keeper).acquire()).await;
    proxy.black_hole();
    world.queued(1).await;
    proxy.heal();
    match waiter.outcome().await {
        Err(error @ Error::SessionLost { .. }) => assert!(error.is_retryable(), "{error}"),
        other => panic!("{other:?}"),
    }
    guard.release().await.unwrap();
    acquire_anew(&world.subject(&keeper)).await.release().await.unwrap();
}

/// N-17: an operator may break a lock: its holder is told, whoever was next is let in.
async fn a_deleted_node_ends_the_hold(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let lock = world.subject(&one);
    let guard = lock.acquire().await.unwrap();
    let next = world.await_in_line(world.rival(&other).acquire()).await;
    world.remove(&guard.node()).await;
    assert_eq!(guard.lost().await, Loss::Removed);
    assert_eq!((guard.is_held(), guard.state()), (false, HoldState::Lost(Loss::Removed)));
    assert!(guard.lost_token().is_cancelled());
    let next = next.granted().await;
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Removed })));
    assert!(world.exists(&next.node()).await, "a lost guard deleted another's node");
    next.release().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// It does not wait for those before it.
async fn case_42_a_waiter_whose_node_is_deleted_is_told_at_once(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.rival(&one).acquire().await.unwrap();
    let waiter = world.await_in_line(world.subject(&other).acquire()).await;
    let node = world.queue().await.pop().unwrap();
    world.remove(&format!("{}/{node}", world.lock())).await;
    match waiter.outcome().await {
        Err(Error::Evicted { path, node: evicted, by: None }) => assert_eq!((path, evicted), (world.lock(), node)),
        other => panic!("{other:?}"),
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// `Guard::run` drops the work at its next await, and gives its outcome where the lock lasts.
async fn guarded_work_stops_where_the_lock_is_lost(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await, Ok(7));
    let (started, has_started) = tokio::sync::oneshot::channel();
    let work = guard.run(async {
        _ = started.send(());
        std::future::pending::<()>().await;
    });
    let (done, ()) = tokio::join!(work, async {
        has_started.await.unwrap();
        world.remove(&guard.node()).await;
    });
    assert_eq!(done, Err(Loss::Removed));
    assert_eq!(guard.run(async { 7 }).await, Err(Loss::Removed));
}

/// The id of a handle's session, from the node of a guard of its.
async fn session(keeper: &Lockkeeper, guard: &Held) -> i64 {
    let seen = keeper.admin().show(guard.path()).await.unwrap();
    seen.holders.iter().find(|holder| holder.node == guard.name()).unwrap().session.0
}

/// The server ends the session of a holder that is in touch: `SessionExpired`, not a guess, and the next is let in.
async fn an_expired_session_is_told_as_such(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let elsewhere = world.kind.lock(&keeper, &world.path("elsewhere")).acquire().await.unwrap();
    let next = world.await_in_line(world.rival(&world.keeper().await).acquire()).await;
    assert!(world.embedded().expire_session(session(&keeper, &guard).await).await);
    assert_eq!(guard.lost().await, Loss::SessionExpired);
    assert_eq!(elsewhere.lost().await, Loss::SessionExpired, "all holds of a session end with it");
    next.granted().await.release().await.unwrap();
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::SessionExpired })));
    acquire_anew(&world.subject(&keeper)).await.release().await.unwrap();
}

/// Over and over: each loss is the guard's alone, the lock's handle goes on.
async fn case_48_a_lost_hold_does_not_poison_the_lock(world: &World) {
    let keeper = world.keeper().await;
    let lock = world.subject(&keeper);
    for _ in 0..5 {
        let guard = acquire_anew(&lock).await;
        assert!(world.embedded().expire_session(session(&keeper, &guard).await).await);
        assert_eq!(guard.lost().await, Loss::SessionExpired);
        // The guard still exists.
        let again = acquire_anew(&lock).await;
        assert!(again.is_held() && !guard.is_held());
        again.release().await.unwrap();
    }
}
