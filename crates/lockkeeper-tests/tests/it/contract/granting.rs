//! Which contender gets the lock, and when.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::error::{AcquireError, IncompatibleFormat, Mismatch};
use lockkeeper::guard::HoldState;
use lockkeeper::{FencingToken, NodeFormat};

use crate::support::{HOLDER_MARKER, Held, Kind, PATIENCE, World, eventually, for_every_kind, grew};

for_every_kind!(
    one_holder_at_a_time_and_tokens_increase,
    first_come_first_served,
    a_waiter_is_granted_the_lock_when_the_holder_releases_it,
    a_try_takes_a_free_lock,
    a_try_names_the_holder_and_leaves_no_node,
    a_try_never_meets_the_node_of_the_one_before,
    a_handle_contends_with_itself,
    locks_of_different_paths_are_independent,
    a_path_refuses_a_second_node_format,
    children_of_no_node_format_do_not_block_the_lock,
    foreign_clients_wait_in_the_same_queue,
    a_hold_is_suspected_during_a_short_disconnect_and_then_held_again,
);

/// The protected resource: a number, and a count of the holders inside.
#[derive(Default)]
struct Room {
    /// The number of readers inside, or -1 for a writer.
    inside: AtomicI64,
    number: AtomicU64,
    /// The writers' tokens, in order.
    tokens: Mutex<Vec<Option<FencingToken>>>,
}

impl Room {
    /// Stays under a lock long enough for another holder to enter if the lock allowed it.
    async fn visit(&self, guard: &Held, shares: bool) {
        let seen = self.number.load(SeqCst);
        if shares {
            assert!(self.inside.fetch_add(1, SeqCst) >= 0, "a reader beside a writer");
            let writers = self.tokens.lock().unwrap().last().copied();
            assert!(writers.is_none_or(|last| grew(last, guard.token())), "{writers:?}, then {guard:?}");
            tokio::task::yield_now().await;
            assert_eq!(self.number.load(SeqCst), seen, "a writer changed the number under a reader");
            self.inside.fetch_sub(1, SeqCst);
        } else {
            assert_eq!(self.inside.swap(-1, SeqCst), 0, "a writer beside another holder");
            self.tokens.lock().unwrap().push(guard.token());
            tokio::task::yield_now().await;
            self.number.store(seen + 1, SeqCst);
            self.inside.store(0, SeqCst);
        }
        assert!(guard.is_held());
    }
}

/// T-12, T-22, N-03, N-06, D-03, C-04, C-17: many tasks of several sessions acquire and release in every way. No two
/// incompatible holders meet, no update is lost, and each token is greater than the token of every earlier incompatible holder.
async fn one_holder_at_a_time_and_tokens_increase(world: &World) {
    const ROUNDS: usize = 6;
    const TASKS: usize = 4;
    let room = Arc::new(Room::default());
    let (mut tasks, mut alone) = (Vec::new(), 0);
    for _ in 0..3 {
        let keeper = world.keeper().await;
        for task in 0..TASKS {
            let lock = if task % 2 == 0 { world.subject(&keeper) } else { world.rival(&keeper) };
            alone += if lock.kind.shares() { 0 } else { ROUNDS };
            let room = room.clone();
            tasks.push(crate::support::spawn(async move {
                for round in 0..ROUNDS {
                    let guard = match lock.try_acquire().await {
                        Ok(guard) => guard,
                        Err(AcquireError::Held { .. }) => lock.acquire().await.unwrap(),
                        Err(error) => panic!("{error}"),
                    };
                    room.visit(&guard, lock.kind.shares()).await;
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
    assert_eq!(room.number.load(SeqCst), u64::try_from(alone).unwrap());
    let tokens = room.tokens.lock().unwrap();
    assert!(tokens.is_sorted_by(|earlier, later| grew(*earlier, *later)), "{tokens:?}");
}

/// N-04, N-29, C-18, C-19: the order of grants is the order in which the requests were stored, over all sessions.
async fn first_come_first_served(world: &World) {
    let keepers = [world.keeper().await, world.keeper().await];
    let mut guard = world.subject(&keepers[0]).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..7 {
        let keeper = &keepers[place / 2 % 2];
        let lock = if place % 2 == 0 { world.subject(keeper) } else { world.rival(keeper) };
        waiters.push(world.enqueue(lock.acquire()).await);
    }
    let mut waiters = waiters.into_iter();
    while let Some(waiter) = waiters.next() {
        assert!(waiter.waits());
        let token = guard.token();
        guard.release().await.unwrap();
        guard = waiter.granted().await;
        assert!(grew(token, guard.token()), "{token:?}, then {guard:?}");
        assert!(waiters.as_slice().iter().all(|waiter| waiter.waits()), "granted out of turn");
    }
    guard.release().await.unwrap();
}

/// N-09, N-16, D-06, D-10, D-17: a guard that is released, dropped, or moved away and dropped grants the lock to the next
/// waiter.
async fn a_waiter_is_granted_the_lock_when_the_holder_releases_it(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.rival(&one).acquire().await.unwrap();
    let waiter = world.enqueue(world.subject(&other).acquire()).await;
    drop(guard);
    let guard = waiter.granted().await;
    let waiter = world.enqueue(world.rival(&one).acquire()).await;
    guard.release().await.unwrap();
    let guard = waiter.granted().await;
    assert_eq!(world.queue().await, [guard.name()]);
}

/// `try_acquire` gets a free lock without waiting.
async fn a_try_takes_a_free_lock(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).try_acquire().await.unwrap();
    assert!(world.exists(&guard.node()).await);
    guard.release().await.unwrap();
    world.subject(&keeper).try_acquire().timeout(PATIENCE).message("again").await.unwrap().release().await.unwrap();
}

/// A refused `try_acquire` says who holds the lock and why, and leaves no node in the queue.
async fn a_try_names_the_holder_and_leaves_no_node(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.rival(&one).acquire().message("nightly index").await.unwrap();
    let refused = world.subject(&other).try_acquire().await.unwrap_err();
    let text = refused.to_string();
    let AcquireError::Held { path, holder: Some(holder), ahead } = refused else { panic!("{refused:?}") };
    assert_eq!((path, ahead), (world.lock(), Some(1)));
    assert_eq!(holder.message.as_deref(), Some("nightly index"));
    assert_eq!((holder.mode, holder.owner.as_ref()), (world.kind.rival().mode(), Some(one.owner())));
    assert!(guard.token().is_none_or(|token| Some(token) == holder.token));
    assert!(text.contains("held by") && text.contains("nightly index") && !text.contains('\n'), "{text}");
    world.queued(1).await;
    // Behind a waiter it is refused as well, and the error says how many contenders are ahead.
    let waiter = world.enqueue(world.rival(&one).acquire()).await;
    match world.subject(&other).try_acquire().await {
        Err(AcquireError::Held { ahead: Some(2), .. }) => {}
        other => panic!("{other:?}"),
    }
    world.queued(2).await;
    drop(guard);
    drop(waiter.granted().await);
}

/// The refused one has deleted its node, as far as its own session sees.
async fn a_try_never_meets_the_node_of_the_one_before(world: &World) {
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let guard = world.subject(&keeper).acquire().await.unwrap();
    for _ in 0..100 {
        match world.rival(&other).try_acquire().await {
            Err(AcquireError::Held { ahead: Some(1), .. }) => {}
            outcome => panic!("{outcome:?}"),
        }
    }
    guard.release().await.unwrap();
    world.rival(&other).try_acquire().await.unwrap().release().await.unwrap();
}

/// D-23: locks are not reentrant: a second `acquire` by the same handle waits, and a `try_acquire` is refused.
async fn a_handle_contends_with_itself(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    assert!(matches!(world.rival(&keeper.clone()).try_acquire().await, Err(AcquireError::Held { .. })));
    world.queued(1).await;
    let waiter = world.enqueue(world.rival(&keeper).acquire()).await;
    assert!(waiter.waits());
    guard.release().await.unwrap();
    drop(waiter.granted().await);
}

/// N-08, D-26: one session holds many locks together, also one below another.
async fn locks_of_different_paths_are_independent(world: &World) {
    let keeper = world.keeper().await;
    let mut guards = Vec::new();
    for name in ["a", "b", "a/inner", "a/inner/most"] {
        guards.push(world.kind.lock(&keeper, &world.path(name)).try_acquire().await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// A child whose name matches no node format is never counted, even if it looks older than all contenders, and never deleted.
async fn children_of_no_node_format_do_not_block_the_lock(world: &World) {
    let keeper = world.keeper().await;
    world.make(&world.lock()).await;
    let foreign = ["config", "lock-7", "write", "_c_not-a-uuid-lock-0000000000", "lock-00000000000000000001"];
    for name in foreign {
        world.make(&world.node(name)).await;
    }
    let guard = world.subject(&keeper).try_acquire().await.unwrap();
    let waiter = world.enqueue(world.rival(&keeper).acquire()).await;
    guard.release().await.unwrap();
    waiter.granted().await.release().await.unwrap();
    // None was deleted.
    for name in foreign {
        world.remove(&world.node(name)).await;
    }
}

/// Clients with different node formats do not see each other, so both would hold the lock. The later one gets an error that
/// names the other format, and leaves no node.
async fn a_path_refuses_a_second_node_format(world: &World) {
    let (first, keeper) = (world.keeper().await, world.keeper().await);
    // For the recipe's format a reader, because Curator's format also counts the node of the recipe's mutex.
    let others = [Kind::Native, Kind::RecipeRead, Kind::Kazoo, Kind::Foreground];
    for other in others.into_iter().filter(|other| other.node_format() != world.kind.node_format()) {
        let guard = other.lock(&first, &world.lock()).acquire().await.unwrap();
        for request in [world.subject(&keeper).acquire(), world.subject(&keeper).try_acquire()] {
            match request.await {
                Err(error @ AcquireError::Mismatch(Mismatch::Format { theirs, .. })) => {
                    assert_eq!(theirs, IncompatibleFormat::Named(other.node_format()));
                    assert!(!error.kind().is_retryable() && error.hint().is_some(), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
        eventually("only the holder's node is left", async || {
            let names = world.children_of(other, &world.lock()).await;
            names.iter().filter(|name| *name != HOLDER_MARKER).count() == 1
                && world.children(&world.lock()).await.len() <= 2
        })
        .await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        world.subject(&keeper).try_acquire().await.unwrap().release().await.unwrap();
        world.remove(&world.lock()).await;
    }
}

/// A node that a foreign client made in the path's node format holds the lock until it is deleted.
async fn foreign_clients_wait_in_the_same_queue(world: &World) {
    let keeper = world.keeper().await;
    world.make(&world.lock()).await;
    // Named as foreign clients name an exclusive contender.
    let foreign = match world.kind.node_format() {
        NodeFormat::Kazoo => "1b2f0c5e4c8e4b7f9c2f0a1b2c3d4e5f__lock__0000000000",
        NodeFormat::Contentserv => "A-0000000000",
        NodeFormat::Curator if world.kind == Kind::Permits => {
            "_c_01234567-89ab-cdef-0123-456789abcdef-permits-3-0000000000"
        }
        NodeFormat::Curator if world.kind != Kind::Native => {
            "_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__0000000000"
        }
        NodeFormat::Recipe if world.kind != Kind::Recipe => "write-0000000000",
        NodeFormat::Numbered => "0000000000",
        // Both node formats accept this name: Curator's without protection, and the recipe's.
        _ => "lock-0000000000",
    };
    let foreign = world.node(foreign);
    world.make_foreign(&foreign).await;
    assert!(matches!(world.subject(&keeper).try_acquire().await, Err(AcquireError::Held { holder: Some(_), .. })));
    world.queued(1).await;
    let waiter = world.enqueue(world.subject(&keeper).acquire()).await;
    assert!(waiter.waits());
    world.remove(&foreign).await;
    waiter.granted().await.release().await.unwrap();
}

/// Held, suspected while there is no connection, then held again: the guard reports each state without asking a server.
async fn a_hold_is_suspected_during_a_short_disconnect_and_then_held_again(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(30)).await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    assert_eq!(guard.state(), HoldState::Held);
    proxy.refuse();
    proxy.cut(lockkeeper_testkit::proxy::Cut::Reset);
    eventually("suspected", async || guard.state() == HoldState::Suspected).await;
    assert!(guard.is_held(), "the server cannot have granted the lock to another contender yet");
    proxy.heal();
    eventually("held again", async || guard.state() == HoldState::Held).await;
    assert!(world.exists(&guard.node()).await);
    guard.release().await.unwrap();
}
