//! Permits: counted, weighted, granted all or none, with a count that the path stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use lockkeeper::error::{AcquireError, Mismatch, Misuse};
use lockkeeper::guard::Permit;
use lockkeeper::{Lockkeeper, Loss, Semaphore};

use crate::support::{PATIENCE, REQUESTS, STEADY, Waiter, World, eventually, for_kinds};

for_kinds!(
    [permits Permits]
    never_more_permits_are_held_than_exist,
    weights_are_granted_whole_and_in_queue_order,
    a_waiter_that_leaves_the_queue_unblocks_those_behind_it,
    any_holders_release_wakes_the_first_waiter,
    the_path_stores_the_count_and_another_count_is_refused,
    an_invalid_count_is_refused_before_anything_is_sent,
    a_path_with_foreign_data_is_no_semaphore,
    a_path_without_a_count_gets_one,
    a_crash_frees_its_permits,
    case_13_a_disconnect_at_any_request_takes_all_permits_or_none,
    a_waiter_is_not_misled_by_a_revocation_request,
);

fn of(world: &World, keeper: &Lockkeeper, permits: u32) -> Semaphore {
    keeper.semaphore(world.lock(), permits)
}

async fn waiting(world: &World, semaphore: &Semaphore, take: u32) -> Waiter<Permit> {
    world.enqueue(semaphore.acquire_many(take)).await
}

/// Many tasks of several sessions with requests of all sizes: the permits in use never exceed the count.
async fn never_more_permits_are_held_than_exist(world: &World) {
    const PERMITS: u32 = 5;
    let out = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let semaphore = of(world, &world.keeper().await, PERMITS);
        for task in 0..4 {
            let (semaphore, out, most) = (semaphore.clone(), out.clone(), most.clone());
            tasks.push(crate::support::spawn(async move {
                for round in 0..8 {
                    let take = (task + round) % PERMITS + 1;
                    let permit = match (task + round) % 4 {
                        0 => match semaphore.acquire_many(take).timeout(Duration::from_millis(5)).await {
                            Ok(permit) => permit,
                            Err(error) => {
                                assert!(matches!(error, AcquireError::Timeout { .. }), "{error}");
                                continue;
                            }
                        },
                        _ => semaphore.acquire_many(take).await.unwrap(),
                    };
                    let now = out.fetch_add(take, SeqCst) + take;
                    assert!(now <= PERMITS, "{now} of {PERMITS} are in use");
                    most.fetch_max(now, SeqCst);
                    tokio::task::yield_now().await;
                    assert!(permit.is_held());
                    out.fetch_sub(take, SeqCst);
                    if round % 2 == 0 { drop(permit) } else { permit.release().await.unwrap() }
                }
            }));
        }
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE, task).await.expect("a task waits for ever").unwrap();
    }
    println!("at most {} of {PERMITS} were in use", most.load(SeqCst));
    world.queued(0).await;
}

/// A large request keeps its position even if a later small one would fit, and gets all its permits in one grant.
async fn weights_are_granted_whole_and_in_queue_order(world: &World) {
    let (one, other) = (of(world, &world.keeper().await, 5), of(world, &world.keeper().await, 5));
    let three = one.acquire_many(3).await.unwrap();
    let one_more = other.try_acquire().await.unwrap();
    let four = waiting(world, &other, 4).await;
    let small = waiting(world, &one, 1).await;
    assert!(matches!(one.try_acquire().await, Err(AcquireError::Held { .. })), "it overtook the waiters");
    assert!(four.waits() && small.waits());
    // One permit is free, the release makes two, and the request needs four.
    one_more.release().await.unwrap();
    world.queued(3).await;
    assert!(four.waits() && small.waits());
    three.release().await.unwrap();
    let four = four.granted().await;
    let small = small.granted().await;
    assert!(four.is_held() && small.is_held());
    assert!(matches!(one.try_acquire().await, Err(AcquireError::Held { .. })));
    four.release().await.unwrap();
    one.try_acquire_many(4).await.unwrap().release().await.unwrap();
    small.release().await.unwrap();
}

/// When a large request gives up, every waiter that only it had blocked is granted, however many there are.
async fn a_waiter_that_leaves_the_queue_unblocks_those_behind_it(world: &World) {
    let (one, other) = (of(world, &world.keeper().await, 5), of(world, &world.keeper().await, 5));
    let two = one.acquire_many(2).await.unwrap();
    let large = waiting(world, &other, 5).await;
    let mut small = Vec::new();
    for _ in 0..3 {
        small.push(waiting(world, &one, 1).await);
    }
    let last = waiting(world, &other, 1).await;
    large.abort();
    let mut inside = Vec::new();
    for waiter in small {
        inside.push(waiter.granted().await);
    }
    assert!(last.waits() && two.is_held());
    inside.pop().unwrap().release().await.unwrap();
    let last = last.granted().await;
    for permit in inside.into_iter().chain([two, last]) {
        permit.release().await.unwrap();
    }
}

/// Any holder may release first: a watch on only one of them would miss the others.
async fn any_holders_release_wakes_the_first_waiter(world: &World) {
    let semaphore = of(world, &world.keeper().await, 3);
    let other = of(world, &world.keeper().await, 3);
    for first in 0..3 {
        let mut holders = Vec::new();
        for _ in 0..3 {
            holders.push(semaphore.acquire().await.unwrap());
        }
        let waiters = [waiting(world, &other, 1).await, waiting(world, &semaphore, 1).await];
        holders.remove(first).release().await.unwrap();
        let [near, far] = waiters;
        let near = near.granted().await;
        assert!(far.waits());
        holders.remove(0).release().await.unwrap();
        let far = far.granted().await;
        for permit in holders.into_iter().chain([near, far]) {
            permit.release().await.unwrap();
        }
    }
}

/// The first contender stores the count. The others get an error that names it, do not wait, and leave no node.
async fn the_path_stores_the_count_and_another_count_is_refused(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let permit = of(world, &one, 3).acquire_many(3).await.unwrap();
    assert_eq!(other.admin().show(&world.lock()).await.unwrap().permits, Some(3));
    for ours in [1, 2, 4, u32::MAX] {
        for request in [of(world, &other, ours).acquire(), of(world, &other, ours).try_acquire()] {
            match request.await {
                Err(error @ AcquireError::Mismatch(Mismatch::Permits { .. })) => {
                    let text = error.to_string();
                    assert!(text.contains("3 permits") && text.contains(&ours.to_string()), "{text}");
                    assert!(!error.kind().is_retryable() && error.hint().is_some());
                }
                other => panic!("{other:?}"),
            }
        }
    }
    world.queued(1).await;
    permit.release().await.unwrap();
    // The count remains as long as the path exists, also without holders.
    assert!(matches!(
        of(world, &other, 4).try_acquire().await,
        Err(AcquireError::Mismatch(Mismatch::Permits { stated: Some(3), .. }))
    ));
    world.queued(0).await;
    world.remove(&world.lock()).await;
    of(world, &other, 4).try_acquire_many(4).await.unwrap().release().await.unwrap();
}

async fn an_invalid_count_is_refused_before_anything_is_sent(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.counts();
    for (permits, take) in [(0, 1), (0, 0), (3, 0), (3, 4), (1, u32::MAX)] {
        for request in
            [of(world, &keeper, permits).acquire_many(take), of(world, &keeper, permits).try_acquire_many(take)]
        {
            match request.await {
                Err(AcquireError::Misuse(Misuse { argument: "permits", problem, .. })) => {
                    let expected = match permits {
                        0 => "cannot have 0 permits".to_owned(),
                        _ => format!("cannot take {take} of {permits} permits"),
                    };
                    assert!(problem.contains(&expected), "{problem}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(proxy.counts().since(&before).requested.total(), 0);
}

/// Data that a foreign client keeps at the path is not replaced.
async fn a_path_with_foreign_data_is_no_semaphore(world: &World) {
    let keeper = world.keeper().await;
    world.make(&world.lock()).await;
    world.observer.set_data(&world.lock(), b"theirs", None).await.unwrap();
    match of(world, &keeper, 3).acquire().await {
        Err(AcquireError::Mismatch(Mismatch::Permits { ours: 3, stated: None, .. })) => {}
        other => panic!("{other:?}"),
    }
    world.queued(0).await;
    assert_eq!(world.observer.get_data(&world.lock()).await.unwrap().0, b"theirs");
}

/// The same when several contenders with different counts start together: one count is stored.
async fn a_path_without_a_count_gets_one(world: &World) {
    world.make(&world.lock()).await;
    let mut asked = Vec::new();
    for permits in [2, 3, 2, 3] {
        let keeper = world.keeper().await;
        asked.push((permits, crate::support::spawn(of(world, &keeper, permits).acquire().into_future())));
    }
    let (mut granted, mut refused) = (Vec::new(), Vec::new());
    for (ours, asked) in asked {
        match asked.await.unwrap() {
            Ok(permit) => granted.push((ours, permit)),
            Err(AcquireError::Mismatch(Mismatch::Permits { stated: Some(stated), .. })) => refused.push((ours, stated)),
            Err(error) => panic!("{error}"),
        }
    }
    let agreed = granted[0].0;
    assert!(granted.iter().all(|(ours, _)| *ours == agreed), "{granted:?}");
    assert!(refused.iter().all(|(ours, stated)| *ours != agreed && *stated == agreed), "{refused:?}");
    assert_eq!((granted.len(), refused.len()), (2, 2));
}

/// All its permits are free, and the waiters get them in order.
async fn a_crash_frees_its_permits(world: &World) {
    let proxy = world.proxy().await;
    let crashing = of(world, &world.keeper_through(&proxy, Duration::from_secs(2)).await, 4);
    let (crashed, other) = (crashing.acquire_many(3).await.unwrap(), of(world, &world.keeper().await, 4));
    let beside = other.acquire().await.unwrap();
    let large = waiting(world, &other, 3).await;
    let small = waiting(world, &other, 1).await;
    proxy.black_hole();
    let large = large.granted().await;
    assert_eq!(crashed.lost().await, Loss::Unreachable);
    proxy.heal();
    assert!(small.waits());
    beside.release().await.unwrap();
    let small = small.granted().await;
    large.release().await.unwrap();
    small.release().await.unwrap();
}

/// The connection breaks before the n-th request or its reply: the contender gets all its permits, and after the release all
/// are free. The test covers the grant without a wait, the grant after a wait, and the release.
async fn case_13_a_disconnect_at_any_request_takes_all_permits_or_none(world: &World) {
    let proxy = world.proxy().await;
    let breaking = of(world, &world.keeper_through(&proxy, STEADY).await, 3);
    let other = of(world, &world.keeper().await, 3);
    other.acquire().await.unwrap().release().await.unwrap();
    for contended in [false, true] {
        for effect in [false, true] {
            let mut met = 0;
            for nth in 1..=12 {
                let holder = if contended { Some(other.acquire_many(2).await.unwrap()) } else { None };
                let request = proxy.on_any(REQUESTS).path(world.lock()).nth(nth);
                let lost = if effect { request.cut_before_reply() } else { request.cut_before_request() };
                let asked = crate::support::spawn(breaking.acquire_many(2).into_future());
                if let Some(holder) = holder {
                    world.queued(2).await;
                    holder.release().await.unwrap();
                }
                let permit =
                    tokio::time::timeout(PATIENCE, asked).await.expect("the call waits for ever").unwrap().unwrap();
                assert_eq!(world.queue().await.len(), 1, "a second node after request {nth}");
                assert!(matches!(other.try_acquire_many(2).await, Err(AcquireError::Held { .. })));
                other.try_acquire().await.unwrap().release().await.unwrap();
                permit.release().await.unwrap();
                world.queued(0).await;
                other.try_acquire_many(3).await.unwrap().release().await.unwrap();
                let fired = futures_util::poll!(Box::pin(lost.fired()).as_mut()).is_ready();
                drop(lost);
                proxy.heal();
                if !fired {
                    break;
                }
                met += 1;
            }
            assert!(met >= 4, "only {met} requests were reached, contended {contended}, effect {effect}");
        }
    }
}

/// The revocation word overwrites the data that announces the grant; the waiters behind list again to find out.
async fn a_waiter_is_not_misled_by_a_revocation_request(world: &World) {
    let (one, other) = (of(world, &world.keeper().await, 2), of(world, &world.keeper().await, 2));
    let holders = [one.acquire().await.unwrap(), one.acquire().await.unwrap()];
    let near = waiting(world, &one, 1).await;
    let far = waiting(world, &other, 1).await;
    let [first, second] = holders;
    first.release().await.unwrap();
    let near = near.granted().await;
    world.observer.set_data(&near.node(), b"unlock", None).await.unwrap();
    near.revocation().await;
    second.release().await.unwrap();
    let far = far.granted().await;
    eventually("both are held", async || near.is_held() && far.is_held()).await;
    assert_eq!(world.queue().await.len(), 2);
    near.release().await.unwrap();
    far.release().await.unwrap();
}
