//! A background hold that makes way for the foreground, and goes on right after it.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::error::AcquireError;
use lockkeeper::{Guard, Lockkeeper, PriorityLock};
use lockkeeper_testkit::proxy::OpCode;
use tokio::time::{Instant, sleep, timeout};

use super::plain::Plain;
use crate::support::{HOLDER_MARKER, PATIENCE, STEADY, Waiter, World, asked, eventually, for_kinds, misused, name};

for_kinds!(
    [classes Foreground]
    a_foreground_wait_of_2_s_succeeds_beside_a_running_background_hold_of_10_s,
    a_background_hold_that_made_way_goes_on_ahead_of_the_other_background,
    a_hold_shorter_than_the_minimum_is_not_disturbed,
    a_holder_that_does_not_allow_it_is_not_asked,
    a_foreign_foreground_client_is_made_way_for,
    a_holder_is_asked_no_more_once_the_foreground_has_left,
    making_way_costs_what_it_says,
    a_steady_foreground_leaves_the_background_its_minimum_each_time,
    a_dropped_call_that_makes_way_leaves_the_queue,
    a_hold_that_is_revoked_and_makes_way_withdraws,
    only_a_lock_with_classes_makes_way,
    a_hold_that_did_not_wait_for_its_first_grant_waits_for_the_next,
);

fn lock(world: &World, keeper: &Lockkeeper) -> PriorityLock {
    keeper.priority_lock(world.lock())
}

/// Works in steps until `steps` are done, and makes way between two of them.
async fn work(mut guard: Guard, steps: u32) -> Guard {
    for _ in 0..steps {
        sleep(Duration::from_millis(100)).await;
        guard = guard.yield_lock().await.unwrap();
    }
    guard
}

/// Waits until the hold is to make way.
async fn asked_to_yield(guard: &Guard) {
    timeout(PATIENCE, guard.yield_requested()).await.expect("the holder is never asked");
    assert!(guard.should_yield());
}

/// Scenario 3 of Contentserv's document, with the foreground's timeout of 2 s that it names.
async fn a_foreground_wait_of_2_s_succeeds_beside_a_running_background_hold_of_10_s(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one).background().acquire().yielding().await.unwrap();
    let node = guard.node();
    let started = Instant::now();
    let job = crate::support::spawn(work(guard, 100));
    sleep(Duration::from_millis(300)).await;
    let saved = lock(world, &other).foreground().acquire().timeout(Duration::from_secs(2)).await;
    let saved = saved.expect("the background held the lock for more than 2 s");
    println!("granted {:?} after the background", started.elapsed());
    assert!(!job.is_finished());
    saved.release().await.unwrap();
    let guard = timeout(PATIENCE, job).await.expect("the background never goes on").unwrap();
    assert_eq!(guard.node(), node, "it has kept its place");
    assert!(guard.is_held() && started.elapsed() >= Duration::from_secs(10));
    guard.release().await.unwrap();
}

async fn a_background_hold_that_made_way_goes_on_ahead_of_the_other_background(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one).background().acquire().min_hold(Duration::ZERO).await.unwrap();
    let (node, token) = (name(&guard), guard.token());
    let last = world.enqueue(lock(world, &other).background().acquire()).await;
    let firsts = [
        world.enqueue(lock(world, &other).foreground().acquire()).await,
        world.enqueue(lock(world, &one).foreground().acquire()).await,
    ];
    asked_to_yield(&guard).await;
    let yields = crate::support::spawn(guard.yield_lock());
    let mut before = token;
    for first in firsts {
        let first = first.granted().await;
        assert!(last.waits() && !yields.is_finished() && first.token() > before);
        assert!(world.queue().await.contains(&node), "it keeps its place");
        before = first.token();
        first.release().await.unwrap();
    }
    let guard = timeout(PATIENCE, yields).await.expect("it waits for ever").unwrap().unwrap();
    assert!(last.waits());
    assert_eq!(name(&guard), node);
    assert!(guard.token() > before && guard.is_held() && !guard.should_yield());
    guard.release().await.unwrap();
    last.granted().await.release().await.unwrap();
}

/// It lists nothing either.
async fn a_hold_shorter_than_the_minimum_is_not_disturbed(world: &World) {
    let min_hold = Duration::from_secs(3600);
    is_not_asked(world, async |lock| lock.acquire().min_hold(min_hold).await).await;
}

async fn a_holder_that_does_not_allow_it_is_not_asked(world: &World) {
    is_not_asked(world, async |lock| lock.acquire().await).await;
}

async fn is_not_asked(world: &World, acquire: impl AsyncFnOnce(PriorityLock) -> Result<Guard, AcquireError>) {
    let (proxy, other) = (world.proxy().await, world.keeper().await);
    let one = world.keeper_through(&proxy, STEADY).await;
    let guard = acquire(lock(world, &one).background()).await.unwrap();
    let since = proxy.records().len();
    let saved = lock(world, &other).foreground().acquire().timeout(Duration::from_millis(1500)).await;
    assert!(matches!(saved, Err(AcquireError::Timeout { .. })), "{saved:?}");
    assert!(!guard.should_yield() && guard.revocation_requested().is_none());
    let listed = asked(world, &proxy, since).into_iter().filter(|(op, _)| OpCode::LISTS.contains(op)).count();
    assert_eq!(listed, 0, "it looks for no one");
    let token = guard.token();
    let guard = guard.yield_lock().await.unwrap();
    assert_eq!(guard.token(), token, "the same hold");
    guard.release().await.unwrap();
}

/// A client written from Contentserv's description writes no request. A background client of that kind does not overtake.
async fn a_foreign_foreground_client_is_made_way_for(world: &World) {
    let keeper = world.keeper().await;
    let guard = lock(world, &keeper).background().acquire().min_hold(Duration::ZERO).await.unwrap();
    let plain = async |class| {
        let client = Arc::new(Plain::new(world, class, false).await);
        let (ahead, waits) = (world.queue().await.len(), client.clone());
        let waiting = crate::support::spawn(async move { waits.lock().await });
        world.queued(ahead + 1).await;
        (client, waiting)
    };
    let (back, last) = plain("B").await;
    let (fore, first) = plain("A").await;
    asked_to_yield(&guard).await;
    let yields = crate::support::spawn(guard.yield_lock());
    let held = timeout(PATIENCE, first).await.expect("the foreign client waits for ever").unwrap();
    assert!(!yields.is_finished() && !last.is_finished());
    fore.unlock(held).await;
    let guard = timeout(PATIENCE, yields).await.expect("it waits for ever").unwrap().unwrap();
    assert!(!last.is_finished());
    guard.release().await.unwrap();
    back.unlock(timeout(PATIENCE, last).await.expect("it waits for ever").unwrap()).await;
}

async fn a_holder_is_asked_no_more_once_the_foreground_has_left(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one).background().acquire().min_hold(Duration::ZERO).await.unwrap();
    for _ in 0..2 {
        let waits = world.enqueue(lock(world, &other).foreground().acquire()).await;
        asked_to_yield(&guard).await;
        waits.abort();
        eventually("the holder knows that no one waits", async || !guard.should_yield()).await;
    }
    let token = guard.token();
    let guard = guard.yield_lock().await.unwrap();
    assert_eq!(guard.token(), token, "there is no one to make way for");
    guard.release().await.unwrap();
}

async fn making_way_costs_what_it_says(world: &World) {
    let (proxy, other) = (world.proxy().await, world.keeper().await);
    let one = world.keeper_through(&proxy, STEADY).await;
    let guard = lock(world, &one).background().acquire().min_hold(Duration::from_millis(500)).await.unwrap();
    let requests = |since| asked(world, &proxy, since).into_iter().map(|(op, _)| op).collect::<Vec<_>>();
    // The watches on its own nodes, and the first listing.
    let since = proxy.records().len();
    eventually("it looks out", async || requests(since).iter().any(|op| OpCode::LISTS.contains(op))).await;
    assert_eq!(requests(since).len(), 3, "{:?}", requests(since));
    let since = proxy.records().len();
    let waits = world.enqueue(lock(world, &other).foreground().acquire()).await;
    asked_to_yield(&guard).await;
    let looked = requests(since);
    // It watches the newcomer's node instead of the children.
    let expected = |list| OpCode::LISTS.contains(&list);
    assert!(matches!(looked[..], [list, OpCode::RemoveWatches, OpCode::GetData] if expected(list)), "{looked:?}");
    // While one waits, no newcomer makes it list.
    let last = world.enqueue(lock(world, &other).background().acquire()).await;
    assert_eq!(requests(since).len(), 3);
    let since = proxy.records().len();
    let yields = crate::support::spawn(guard.yield_lock());
    let first = waits.granted().await;
    eventually("it waits", async || requests(since).iter().any(|op| OpCode::LISTS.contains(op))).await;
    let gave_way = requests(since);
    // The watch on the newcomer's node stays.
    assert!(matches!(gave_way[..], [OpCode::GetData, OpCode::Multi, list] if expected(list)), "{gave_way:?}");
    first.release().await.unwrap();
    timeout(PATIENCE, yields).await.unwrap().unwrap().unwrap().release().await.unwrap();
    last.granted().await.release().await.unwrap();
}

/// However many come: each time that the background holds, it holds for at least the minimum.
async fn a_steady_foreground_leaves_the_background_its_minimum_each_time(world: &World) {
    const MIN_HOLD: Duration = Duration::from_millis(300);
    let (one, other) = (world.keeper().await, world.keeper().await);
    let mut guard = lock(world, &one).background().acquire().min_hold(MIN_HOLD).await.unwrap();
    for _ in 0..3 {
        let held = Instant::now();
        let first: Waiter = world.enqueue(lock(world, &other).foreground().acquire()).await;
        asked_to_yield(&guard).await;
        assert!(held.elapsed() >= MIN_HOLD - Duration::from_millis(100), "{:?}", held.elapsed());
        let yields = crate::support::spawn(guard.yield_lock());
        first.granted().await.release().await.unwrap();
        guard = timeout(PATIENCE, yields).await.expect("the background starves").unwrap().unwrap();
    }
    guard.release().await.unwrap();
}

async fn a_dropped_call_that_makes_way_leaves_the_queue(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    for waits_first in [false, true] {
        let guard = lock(world, &one).background().acquire().min_hold(Duration::ZERO).await.unwrap();
        let first = world.enqueue(lock(world, &other).foreground().acquire()).await;
        asked_to_yield(&guard).await;
        let mut yields = Box::pin(guard.yield_lock());
        if waits_first {
            assert!(timeout(Duration::from_millis(300), &mut yields).await.is_err());
        } else {
            assert!(futures_util::FutureExt::now_or_never(&mut yields).is_none());
        }
        drop(yields);
        let first = first.granted().await;
        eventually("only the foreground is left", async || {
            world.children(&world.lock()).await.len() == 2 && world.queue().await.len() == 1
        })
        .await;
        first.release().await.unwrap();
        assert!(!world.children(&world.lock()).await.iter().any(|name| name == HOLDER_MARKER));
    }
}

/// The request asks for more than a pause.
async fn a_hold_that_is_revoked_and_makes_way_withdraws(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one).background().acquire().min_hold(Duration::ZERO).await.unwrap();
    let first = world.enqueue(lock(world, &other).foreground().acquire()).await;
    asked_to_yield(&guard).await;
    world.observer.set_data(&guard.node(), b"unlock", None).await.unwrap();
    timeout(PATIENCE, guard.revocation()).await.expect("the holder never hears of it");
    let outcome = guard.yield_lock().await;
    assert!(matches!(outcome, Err(AcquireError::Revoked { .. })), "{outcome:?}");
    first.granted().await.release().await.unwrap();
    assert!(world.queue().await.is_empty());
}

async fn only_a_lock_with_classes_makes_way(world: &World) {
    let keeper = world.keeper().await;
    let outcome = keeper.mutex(world.lock()).acquire().yielding().await;
    assert_eq!(misused(&outcome), Some("yielding"));
}

async fn a_hold_that_did_not_wait_for_its_first_grant_waits_for_the_next(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let tries = lock(world, &one).background().acquire().timeout(Duration::ZERO);
    let limited = lock(world, &one).background().acquire().max_waiters(0);
    for request in [tries, limited] {
        let guard = request.min_hold(Duration::ZERO).await.unwrap();
        let node = guard.node();
        let first = world.enqueue(lock(world, &other).foreground().acquire()).await;
        asked_to_yield(&guard).await;
        let yields = crate::support::spawn(guard.yield_lock());
        first.granted().await.release().await.unwrap();
        let guard = timeout(PATIENCE, yields).await.unwrap().unwrap().expect("it keeps its place");
        assert_eq!(guard.node(), node);
        guard.release().await.unwrap();
    }
}
