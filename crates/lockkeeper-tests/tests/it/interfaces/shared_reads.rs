//! Readers of one process that share one node.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lockkeeper::error::{AcquireError, ReleaseError, SessionError};
use lockkeeper::guard::OnLost;
use lockkeeper::request::Access;
use lockkeeper::{CancellationToken, Guard, Lockkeeper, Loss, RwLock};
use lockkeeper_testkit::proxy::{Cut, OpCode, Proxy};

use crate::support::{PATIENCE, STEADY, Waiter, World, eventually, for_kinds, misused};

for_kinds!(
    [native Write, #[cfg(deep)] recipe RecipeWrite, #[cfg(deep)] kazoo KazooWrite]
    readers_that_wait_together_share_one_node,
    a_reader_beside_others_costs_one_listing_and_the_next_ones_nothing,
    a_waiting_writer_ends_the_sharing,
    a_writer_is_let_in_however_many_readers_come,
    readers_of_other_processes_do_not_end_the_sharing,
    a_reader_that_leaves_takes_no_place_from_the_others,
    a_reader_whose_attempt_fails_does_not_end_the_wait_of_the_others,
    when_all_readers_leave_their_node_is_deleted,
    the_release_of_the_last_reader_is_confirmed_while_others_look_at_its_hold,
    a_request_to_release_reaches_all_and_ends_the_sharing,
    a_loss_concerns_all_and_the_next_reader_enters_anew,
    each_reader_has_its_own_limits,
    a_reader_that_has_ended_does_not_leave_its_attempt_to_the_next_call_of_its_caller,
    readers_that_try_at_the_same_time_do_not_refuse_each_other,
    a_reader_that_tries_while_another_one_enters_is_granted_with_it,
    a_reader_that_tries_is_refused_once_another_one_is_known_to_wait,
    a_reader_that_tries_takes_no_place_from_the_others,
    a_reader_that_tries_gets_no_untrue_answer_from_silent_servers,
    a_reader_that_tries_in_an_outage_ends_in_time,
    readers_share_a_node_whatever_their_limit_of_liveness_is,
);

fn lock(world: &World, keeper: &Lockkeeper) -> RwLock {
    keeper.rwlock(world.lock()).node_format(world.kind.node_format())
}

fn reads(world: &World, keeper: &Lockkeeper) -> Access<Guard> {
    lock(world, keeper).read().share()
}

fn reader(reads: &Access<Guard>) -> Waiter<Guard> {
    Waiter::spawn(reads.acquire())
}

async fn release_all(guards: Vec<Guard>) {
    for released in join_all(guards.into_iter().map(Guard::release)).await {
        released.unwrap();
    }
}

/// How many requests a session had answered that create nodes, list, or delete.
fn requests(proxy: &Proxy) -> [u64; 3] {
    let done = proxy.counts().delivered;
    let sum = |ops: &[OpCode]| ops.iter().map(|&op| done.of(op)).sum();
    let lists = [OpCode::GetChildren, OpCode::GetChildren2, OpCode::MultiRead];
    [sum(OpCode::CREATES), sum(&lists), sum(&[OpCode::Delete, OpCode::Multi])]
}

async fn readers_that_wait_together_share_one_node(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let writer = lock(world, &other).write().acquire().await.unwrap();
    let reads = reads(world, &one);
    let waiting: Vec<_> = (0..50).map(|_| reader(&reads)).collect();
    world.queued(2).await;
    assert!(waiting.iter().all(Waiter::waits));
    let token = writer.token();
    writer.release().await.unwrap();
    let mut guards = Vec::new();
    for waiter in waiting {
        guards.push(waiter.granted().await);
    }
    assert!(guards.iter().all(|guard| guard.is_held() && guard.token() > token));
    let [creates, _, deletes] = requests(&proxy);
    assert_eq!(creates, 1, "one create for all");
    let last = guards.pop().unwrap();
    release_all(guards).await;
    assert!(last.is_held());
    assert_eq!(world.queue().await.len(), 1);
    assert_eq!(requests(&proxy)[2], deletes, "no delete before the last");
    last.release().await.unwrap();
    assert_eq!(world.queue().await.len(), 0, "the last one waits for the confirmation");
}

async fn a_reader_beside_others_costs_one_listing_and_the_next_ones_nothing(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let reads = reads(world, &keeper);
    let first = reads.acquire().await.unwrap();
    let [creates, lists, deletes] = requests(&proxy);
    let mut others = vec![reads.acquire().await.unwrap()];
    assert_eq!(requests(&proxy), [creates, lists + 1, deletes]);
    for _ in 0..500 {
        others.push(reads.acquire().await.unwrap());
        others.push(reads.try_acquire().await.unwrap());
        drop(reads.acquire().await.unwrap());
    }
    assert_eq!(requests(&proxy), [creates, lists + 1, deletes]);
    assert!(others.iter().all(|other| other.token() == first.token()));
    first.release().await.unwrap();
    release_all(others).await;
    assert_eq!(world.queue().await.len(), 0);
    let token = reads.acquire().await.unwrap().token();
    eventually("a use alone is not kept", async || world.queue().await.is_empty()).await;
    let next = reads.acquire().await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

/// Of this process or another.
async fn a_waiting_writer_ends_the_sharing(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    for writes in [&one, &other] {
        let reads = reads(world, &one);
        let (first, second) = (reads.acquire().await.unwrap(), reads.acquire().await.unwrap());
        let writer = world.enqueue(lock(world, writes).write().acquire()).await;
        // The event may be on its way until the observer has seen the writer; a reader that comes then lists the queue.
        let late = loop {
            let late = reader(&reads);
            tokio::task::yield_now().await;
            if world.queue().await.len() == 3 {
                break late;
            }
            late.abort();
        };
        assert!(late.waits() && writer.waits());
        assert!(matches!(reads.try_acquire().await, Err(AcquireError::Held { .. })));
        release_all(vec![first, second]).await;
        let writer = writer.granted().await;
        assert!(late.waits());
        let token = writer.token();
        writer.release().await.unwrap();
        let late = late.granted().await;
        assert!(late.token() > token);
        late.release().await.unwrap();
        world.queued(0).await;
    }
}

async fn a_writer_is_let_in_however_many_readers_come(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (over, uses) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let reads = reads(world, &one);
    let readers: Vec<_> = (0..16)
        .map(|_| {
            let (reads, over, uses) = (reads.clone(), over.clone(), uses.clone());
            crate::support::spawn(async move {
                while !over.is_cancelled() {
                    let guard = reads.acquire().await.unwrap();
                    uses.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    for turn in 0..20 {
        let before = uses.load(Ordering::Relaxed);
        eventually("readers read", async || uses.load(Ordering::Relaxed) > before + 16).await;
        let keeper = if turn % 2 == 0 { &one } else { &other };
        lock(world, keeper).write().acquire().await.unwrap().release().await.unwrap();
    }
    over.cancel();
    for reader in readers {
        reader.await.unwrap();
    }
    world.queued(0).await;
}

async fn readers_of_other_processes_do_not_end_the_sharing(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let reads = reads(world, &one);
    let mut guards = vec![reads.acquire().await.unwrap(), reads.acquire().await.unwrap()];
    let [creates, ..] = requests(&proxy);
    for _ in 0..3 {
        let theirs = lock(world, &other).read().acquire().await.unwrap();
        guards.push(reads.acquire().await.unwrap());
        theirs.release().await.unwrap();
        guards.push(reads.acquire().await.unwrap());
    }
    assert_eq!(requests(&proxy)[0], creates);
    assert_eq!(world.queue().await.len(), 1);
    release_all(guards).await;
}

/// Because its future is dropped, or by its limits.
async fn a_reader_that_leaves_takes_no_place_from_the_others(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    for is_dropped in [true, false] {
        let writer = lock(world, &other).write().acquire().await.unwrap();
        let (reads, cancel) = (reads(world, &one), CancellationToken::new());
        let first = Waiter::spawn(reads.acquire().cancel_on(cancel.clone()));
        world.queued(2).await;
        let place = world.queue().await;
        let second = reader(&reads);
        let next = world.enqueue(lock(world, &other).write().acquire()).await;
        assert!(second.waits());
        if is_dropped {
            first.abort();
            tokio::task::yield_now().await;
        } else {
            cancel.cancel();
            let left = first.outcome().await;
            assert!(matches!(left, Err(AcquireError::Cancelled { .. })), "{left:?}");
        }
        assert_eq!(world.queue().await[..2], place);
        writer.release().await.unwrap();
        let second = second.granted().await;
        assert!(next.waits(), "ahead of the writer that came after the node");
        second.release().await.unwrap();
        next.granted().await.release().await.unwrap();
    }
}

/// Its options are not those of the others.
async fn a_reader_whose_attempt_fails_does_not_end_the_wait_of_the_others(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let writer = lock(world, &other).write().acquire().await.unwrap();
    let reads = reads(world, &one);
    let refused = reads.acquire().max_waiters(0).into_future();
    let waiting = [reader(&reads), reader(&reads)];
    let refused = refused.await;
    assert!(matches!(refused, Err(AcquireError::TooManyWaiters { .. })), "{refused:?}");
    world.queued(2).await;
    writer.release().await.unwrap();
    let [first, second] = waiting;
    let guards = vec![first.granted().await, second.granted().await];
    assert_eq!(guards[0].token(), guards[1].token());
    release_all(guards).await;
    assert_eq!(world.queue().await.len(), 0);
}

async fn when_all_readers_leave_their_node_is_deleted(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let writer = lock(world, &other).write().acquire().await.unwrap();
    let reads = reads(world, &one);
    for _ in 0..3 {
        let waiting: Vec<_> = (0..5).map(|_| reader(&reads)).collect();
        world.queued(2).await;
        waiting.into_iter().for_each(Waiter::abort);
        world.queued(1).await;
    }
    // The next one is not confused by those that left.
    let last = reader(&reads);
    world.queued(2).await;
    writer.release().await.unwrap();
    last.granted().await.release().await.unwrap();
    assert_eq!(world.queue().await.len(), 0);
}

async fn a_request_to_release_reaches_all_and_ends_the_sharing(world: &World) {
    let keeper = world.keeper().await;
    let admin = keeper.admin();
    let reads = reads(world, &keeper);
    let guards = vec![reads.acquire().await.unwrap(), reads.acquire().await.unwrap()];
    assert_eq!(admin.show(&world.lock()).await.unwrap().holders.len(), 1);
    admin.revoke(&world.lock(), Some("deploying")).await.unwrap();
    for guard in &guards {
        assert_eq!(guard.revocation().await.reason.as_deref(), Some("deploying"));
        assert!(guard.is_held());
    }
    let late = reads.acquire().await.unwrap();
    assert!(late.token() > guards[0].token(), "a node of its own");
    release_all(guards).await;
    late.release().await.unwrap();
}

async fn a_loss_concerns_all_and_the_next_reader_enters_anew(world: &World) {
    let keeper = world.keeper().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = {
        let calls = calls.clone();
        OnLost::call(move |_| _ = calls.fetch_add(1, Ordering::Relaxed))
    };
    let reads = reads(world, &keeper);
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(reads.acquire().on_lost(count.clone()).await.unwrap());
    }
    let (node, token) = (guards[0].node(), guards[0].token());
    world.remove(&node).await;
    for guard in &guards {
        assert_eq!(guard.lost().await, Loss::Removed);
    }
    let next = reads.acquire().await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    for guard in guards {
        let released = guard.release().await;
        assert!(matches!(released, Err(ReleaseError::NotHeld { loss: Loss::Removed })), "{released:?}");
    }
    eventually("the loss is reported", async || calls.load(Ordering::Relaxed) > 0).await;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

/// The next call has limits of its own.
async fn a_reader_that_has_ended_does_not_leave_its_attempt_to_the_next_call_of_its_caller(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let writer = lock(world, &other).write().acquire().await.unwrap();
    let reads = reads(world, &one);
    for _ in 0..50 {
        let cancel = CancellationToken::new();
        let waiting = Waiter::spawn(reads.acquire().cancel_on(cancel.clone()));
        world.queued(2).await;
        cancel.cancel();
        assert!(matches!(waiting.outcome().await, Err(AcquireError::Cancelled { .. })));
        let crowded = reads.acquire().max_waiters(0).timeout(PATIENCE).await;
        assert!(matches!(crowded, Err(AcquireError::TooManyWaiters { .. })), "{crowded:?}");
    }
    writer.release().await.unwrap();
}

async fn each_reader_has_its_own_limits(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let writer = lock(world, &other).write().acquire().await.unwrap();
    let patient = reads(world, &one);
    assert!(matches!(patient.try_acquire().await, Err(AcquireError::Held { .. })));
    let short = Duration::from_millis(50);
    match patient.acquire().timeout(short).await {
        Err(AcquireError::Timeout { waited, .. }) => assert_eq!(waited, short),
        other => panic!("{other:?}"),
    }
    let now = patient.acquire().timeout(Duration::ZERO).await;
    assert!(matches!(now, Err(AcquireError::Held { .. })), "{now:?}");
    let cancel = CancellationToken::new();
    let waiting = Waiter::spawn(patient.acquire().cancel_on(cancel.clone()));
    world.queued(2).await;
    cancel.cancel();
    let cancelled = waiting.outcome().await;
    assert!(matches!(cancelled, Err(AcquireError::Cancelled { .. })), "{cancelled:?}");
    let crowded = patient.acquire().max_waiters(0).await;
    assert!(matches!(crowded, Err(AcquireError::TooManyWaiters { .. })), "{crowded:?}");
    let long = "x".repeat(5_000);
    assert_eq!(misused(&patient.acquire().message(long).await.map(drop)), Some("message"));
    assert_eq!(misused(&one.rwlock("no path").read().share().acquire().await.map(drop)), Some("path"));
    assert_eq!(misused(&one.rwlock("no path").read().share().try_acquire().await.map(drop)), Some("path"));
    writer.release().await.unwrap();
    patient.try_acquire().await.unwrap().release().await.unwrap();
    let blocking = patient.clone();
    tokio::task::spawn_blocking(move || blocking.acquire().wait().unwrap().release_blocking().unwrap()).await.unwrap();
    world.queued(0).await;
    let lost = patient.acquire().await.unwrap();
    world.remove(&lost.node()).await;
    assert_eq!(lost.lost().await, Loss::Removed);
    let released = tokio::task::spawn_blocking(move || lost.release_blocking()).await.unwrap();
    assert_eq!(released, Err(ReleaseError::NotHeld { loss: Loss::Removed }));
    proxy.refuse();
    proxy.cut(Cut::Reset);
    eventually("the connection is lost", async || {
        let tried = patient.acquire().timeout(short).await;
        matches!(tried, Err(AcquireError::Session(SessionError::Unreachable { .. })))
    })
    .await;
    proxy.heal();
}

/// Another thread looks at the hold, as a reader that comes does. The release of the last reader waits for its confirmation all
/// the same.
async fn the_release_of_the_last_reader_is_confirmed_while_others_look_at_its_hold(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    for round in 0..50 {
        // A new object: under load, a call of the round before that is not dropped yet would be another reader.
        let reads = reads(world, &keeper);
        let guard = reads.acquire().await.unwrap();
        // Everything behind the first look is held, so no other reader comes, and no release is confirmed.
        let unanswered = proxy.on_any(OpCode::LISTS).hold_request();
        let first = Waiter::spawn(reads.try_acquire());
        unanswered.caught().await;
        first.abort();
        let (looks, released) = (AtomicUsize::new(0), AtomicBool::new(false));
        let mut releasing = pin!(guard.release());
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !released.load(Ordering::Relaxed) {
                    // The call looks at the hold, and asks who is in the queue.
                    _ = reads.try_acquire().into_future().now_or_never();
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            while looks.load(Ordering::Relaxed) < 3 {
                std::hint::spin_loop();
            }
            let outcome = releasing.as_mut().now_or_never();
            released.store(true, Ordering::Relaxed);
            assert_eq!(outcome, None, "round {round}: released before the confirmation");
        });
        unanswered.release();
        releasing.await.unwrap();
    }
}

/// Nobody else is in the queue.
async fn readers_that_try_at_the_same_time_do_not_refuse_each_other(world: &World) {
    let keeper = world.keeper().await;
    let reads = reads(world, &keeper);
    let tried = join_all((0..10).map(|_| reads.try_acquire().into_future())).await;
    release_all(tried.into_iter().map(Result::unwrap).collect()).await;
    world.queued(0).await;
}

/// Nobody is known to hold or to wait.
async fn a_reader_that_tries_while_another_one_enters_is_granted_with_it(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let reads = reads(world, &keeper);
    let unanswered = proxy.on_any(OpCode::CREATES).hold_request();
    let first = reader(&reads);
    unanswered.caught().await;
    let mut tried = reads.try_acquire().into_future();
    assert!((&mut tried).now_or_never().is_none(), "it waits for the answer to the first one");
    unanswered.release();
    let guards = vec![first.granted().await, tried.await.unwrap()];
    assert_eq!(guards[0].node(), guards[1].node());
    release_all(guards).await;
    world.queued(0).await;
}

/// Without its timeout: the other one waits for as long as a writer holds.
async fn a_reader_that_tries_is_refused_once_another_one_is_known_to_wait(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let reads = reads(world, &one);
    let first = reads.acquire().await.unwrap();
    let writer = world.enqueue(lock(world, &other).write().acquire()).await;
    let unanswered = proxy.on_any(OpCode::LISTS).hold_request();
    let waiting = reader(&reads);
    unanswered.caught().await;
    let tried = Waiter::spawn(reads.try_acquire().timeout(PATIENCE * 2));
    let none = Waiter::spawn(reads.try_acquire().timeout(PATIENCE * 2));
    unanswered.release();
    for tried in [tried, none] {
        let tried = tried.outcome().await;
        assert!(matches!(tried, Err(AcquireError::Held { .. })), "{tried:?}");
    }
    assert!(waiting.waits());
    assert!(matches!(reads.try_acquire().into_future().now_or_never(), Some(Err(AcquireError::Held { .. }))));
    first.release().await.unwrap();
    writer.granted().await.release().await.unwrap();
    waiting.granted().await.release().await.unwrap();
    world.queued(0).await;
}

/// It continues the attempt of a reader that leaves before the answer.
async fn a_reader_that_tries_takes_no_place_from_the_others(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let reads = reads(world, &one);
    let reading = reads.acquire().await.unwrap();
    let writer = world.enqueue(lock(world, &other).write().acquire()).await;
    let (unlisted, unanswered) =
        (proxy.on_any(OpCode::LISTS).hold_request(), proxy.on_any(OpCode::CREATES).hold_reply());
    let left = reader(&reads);
    unlisted.caught().await;
    let mut tried = reads.try_acquire().timeout(PATIENCE * 2).into_future();
    assert!((&mut tried).now_or_never().is_none());
    let last = reader(&reads);
    unlisted.release();
    unanswered.caught().await;
    let place = world.queue().await;
    assert_eq!(place.len(), 3);
    let next = world.enqueue(lock(world, &other).write().acquire()).await;
    left.abort();
    tokio::task::yield_now().await;
    unanswered.release();
    let tried = tokio::time::timeout(PATIENCE, tried).await.unwrap();
    assert!(matches!(tried, Err(AcquireError::Held { .. })), "{tried:?}");
    assert_eq!(world.queue().await[..3], place);
    reading.release().await.unwrap();
    writer.granted().await.release().await.unwrap();
    let last = last.granted().await;
    assert!(next.waits(), "ahead of the writer that came after the node");
    last.release().await.unwrap();
    next.granted().await.release().await.unwrap();
    world.queued(0).await;
}

/// The connection lives, and the answer to the reader that enters does not come.
async fn a_reader_that_tries_gets_no_untrue_answer_from_silent_servers(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let reads = reads(world, &keeper);
    let unanswered = proxy.on_any(OpCode::CREATES).hold_request();
    let first = reader(&reads);
    unanswered.caught().await;
    let tried = Waiter::spawn(reads.try_acquire().timeout(Duration::from_millis(50))).outcome().await;
    assert!(matches!(tried, Err(AcquireError::Session(SessionError::Unreachable { .. }))), "{tried:?}");
    unanswered.release();
    first.granted().await.release().await.unwrap();
    world.queued(0).await;
}

/// The first other reader has to list the queue.
async fn a_reader_that_tries_in_an_outage_ends_in_time(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let reads = reads(world, &keeper);
    let first = reads.acquire().await.unwrap();
    proxy.refuse();
    proxy.cut(Cut::Reset);
    let tried = Waiter::spawn(reads.try_acquire().timeout(Duration::from_millis(500))).outcome().await;
    assert!(matches!(tried, Err(AcquireError::Session(SessionError::Unreachable { .. }))), "{tried:?}");
    proxy.heal();
    first.release().await.unwrap();
    world.queued(0).await;
}

async fn readers_share_a_node_whatever_their_limit_of_liveness_is(world: &World) {
    let keeper = world.keeper().await;
    let reads = reads(world, &keeper);
    let acquire = async || reads.acquire().with_liveness(STEADY / 4).await.unwrap();
    let (first, second) = (acquire().await, acquire().await);
    assert_eq!((world.queue().await.len(), first.node()), (1, second.node()));
    release_all(vec![first, second]).await;
}
