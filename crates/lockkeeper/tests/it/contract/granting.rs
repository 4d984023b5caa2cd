//! Who gets the lock, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use lockkeeper::{Error, HoldState};

use crate::support::{PATIENCE, World, eventually, on_every_server};

on_every_server!(
    one_holder_at_a_time_and_tokens_that_grow,
    first_come_first_served,
    a_waiter_gets_in_when_the_holder_lets_go,
    a_try_takes_a_free_lock,
    a_try_names_the_holder_and_leaves_no_node,
    a_handle_contends_with_itself,
    locks_of_different_paths_do_not_know_each_other,
    children_of_no_dialect_block_nobody,
    contenders_of_other_makes_stand_in_the_same_line,
    a_short_break_suspects_the_hold_and_gives_it_back,
);

/// T-12, N-03, N-06, D-03: many tasks of several sessions, in all ways of asking and letting go: never two
/// inside, and each grant's token is greater than all before it.
async fn one_holder_at_a_time_and_tokens_that_grow(world: &World) {
    const ROUNDS: usize = 6;
    const TASKS: usize = 4;
    let inside = Arc::new(AtomicBool::new(false));
    let counter = Arc::new(AtomicUsize::new(0));
    let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let keeper = world.keeper().await;
        for task in 0..TASKS {
            let (mutex, inside, counter, tokens) =
                (world.mutex(&keeper), inside.clone(), counter.clone(), tokens.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let guard = match mutex.try_acquire().await {
                        Ok(guard) => guard,
                        Err(Error::Held { .. }) => mutex.acquire().await.unwrap(),
                        Err(error) => panic!("{error}"),
                    };
                    assert!(!inside.swap(true, SeqCst), "two holders");
                    tokens.lock().unwrap().push(guard.token());
                    let seen = counter.load(SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, SeqCst);
                    assert!(guard.is_held());
                    inside.store(false, SeqCst);
                    match (task + round) % 2 {
                        0 => drop(guard),
                        _ => guard.release().await.unwrap(),
                    }
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.load(SeqCst), 3 * TASKS * ROUNDS);
    let tokens = tokens.lock().unwrap();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

/// N-04: the order of grants is the order in which the requests were stored, over all sessions.
async fn first_come_first_served(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let mut guard = world.mutex(&one).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for place in 0..6 {
        waiters.push(world.stand_in_line(if place % 2 == 0 { &other } else { &one }).await);
    }
    let mut waiters = waiters.into_iter();
    while let Some(waiter) = waiters.next() {
        assert!(waiter.waits());
        let token = guard.token();
        guard.release().await.unwrap();
        guard = waiter.granted().await;
        assert!(token < guard.token());
        assert!(waiters.as_slice().iter().all(|waiter| waiter.waits()), "granted out of turn");
    }
    guard.release().await.unwrap();
}

/// N-09, N-16, D-06, D-10, D-17: released, dropped, or moved away: each lets the next in.
async fn a_waiter_gets_in_when_the_holder_lets_go(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.mutex(&one).acquire().await.unwrap();
    let waiter = world.stand_in_line(&other).await;
    drop(guard);
    let guard = waiter.granted().await;
    let waiter = world.stand_in_line(&one).await;
    guard.release().await.unwrap();
    let guard = waiter.granted().await;
    assert_eq!(world.queue().await, [guard.node().rsplit('/').next().unwrap()]);
}

/// A try costs no wait where there is nobody.
async fn a_try_takes_a_free_lock(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.mutex(&keeper).try_acquire().await.unwrap();
    assert!(world.exists(&guard.node()).await);
    guard.release().await.unwrap();
    world.mutex(&keeper).try_acquire().timeout(PATIENCE).message("again").await.unwrap().release().await.unwrap();
}

/// A refused try says who has the lock and why, and stands in nobody's way.
async fn a_try_names_the_holder_and_leaves_no_node(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.mutex(&one).acquire().message("nightly index").await.unwrap();
    let refused = world.mutex(&other).try_acquire().await.unwrap_err();
    let text = refused.to_string();
    let Error::Held { path, holder: Some(holder), ahead } = refused else { panic!("{refused:?}") };
    assert_eq!((path, ahead), (world.lock(), Some(1)));
    assert_eq!(holder.message.as_deref(), Some("nightly index"));
    assert_eq!((holder.token, holder.owner.as_ref()), (guard.token(), Some(one.owner())));
    assert!(guard.node().ends_with(&holder.node));
    assert!(text.contains("held by") && text.contains("nightly index") && !text.contains('\n'), "{text}");
    world.queued(1).await;
    // Behind a waiter it is refused as well, and told how many are before it.
    let waiter = world.stand_in_line(&one).await;
    match world.mutex(&other).try_acquire().await {
        Err(Error::Held { ahead: Some(2), .. }) => {}
        other => panic!("{other:?}"),
    }
    world.queued(2).await;
    drop(guard);
    drop(waiter.granted().await);
}

/// D-23: not reentrant: a second request by the same handle waits, and a try is refused.
async fn a_handle_contends_with_itself(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    assert!(matches!(world.mutex(&keeper.clone()).try_acquire().await, Err(Error::Held { .. })));
    world.queued(1).await;
    let waiter = world.stand_in_line(&keeper).await;
    assert!(waiter.waits());
    guard.release().await.unwrap();
    drop(waiter.granted().await);
}

/// N-08, D-26: many locks of one session are held at once, also one below another.
async fn locks_of_different_paths_do_not_know_each_other(world: &World) {
    let keeper = world.keeper().await;
    let mut guards = Vec::new();
    for name in ["a", "b", "a/inner", "a/inner/most"] {
        guards.push(world.kind.mutex(&keeper, &world.path(name)).try_acquire().await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// Foreign children are never counted: one that looks older than all blocks nobody, and nobody deletes it.
async fn children_of_no_dialect_block_nobody(world: &World) {
    let keeper = world.keeper().await;
    world.make(&world.lock()).await;
    let foreign = ["config", "lock-7", "write", "_c_not-a-uuid-lock-0000000000", "lock-00000000000000000001"];
    for name in foreign {
        world.make(&format!("{}/{name}", world.lock())).await;
    }
    let guard = world.mutex(&keeper).try_acquire().await.unwrap();
    let waiter = world.stand_in_line(&keeper).await;
    guard.release().await.unwrap();
    waiter.granted().await.release().await.unwrap();
    assert_eq!(world.queue().await.len(), foreign.len());
    for name in foreign {
        world.remove(&format!("{}/{name}", world.lock())).await;
    }
}

/// A node that another program made in the path's dialect holds the lock until it goes.
async fn contenders_of_other_makes_stand_in_the_same_line(world: &World) {
    let keeper = world.keeper().await;
    world.make(&world.lock()).await;
    // Both dialects know this name: Curator's without protection, and the recipe's.
    let foreign = format!("{}/lock-0000000000", world.lock());
    world.make(&foreign).await;
    assert!(matches!(world.mutex(&keeper).try_acquire().await, Err(Error::Held { holder: Some(_), .. })));
    world.queued(1).await;
    let waiter = world.stand_in_line(&keeper).await;
    assert!(waiter.waits());
    world.remove(&foreign).await;
    waiter.granted().await.release().await.unwrap();
}

/// Held, suspected as long as there is no connection, held again: the guard says so at each moment, without asking anybody.
async fn a_short_break_suspects_the_hold_and_gives_it_back(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(30)).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    assert_eq!(guard.state(), HoldState::Held);
    proxy.refuse();
    proxy.cut(lockkeeper_testkit::proxy::Cut::Reset);
    eventually("suspected", async || guard.state() == HoldState::Suspected).await;
    assert!(guard.is_held(), "the server cannot have given it away yet");
    proxy.heal();
    eventually("held again", async || guard.state() == HoldState::Held).await;
    assert!(world.exists(&guard.node()).await);
    guard.release().await.unwrap();
}
