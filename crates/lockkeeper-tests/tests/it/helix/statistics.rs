//! Statistics of holds, cleanups and preemptions: for one lock object, and for a fleet.

use std::time::{Duration, Instant};

use lockkeeper::Loss;
use lockkeeper_helix::{HelixAdmin, HelixLock, Tally};
use lockkeeper_testkit::proxy::OpCode;

use super::{LONG, ask, lock, on_every_record_server, requested_by, stored};
use crate::support::{PATIENCE, STEADY, World, eventually};

on_every_record_server!(
    each_preemption_is_counted_with_its_outcome,
    an_owner_that_hands_the_lock_over_has_made_room_in_time,
    a_dead_owner_makes_room_late,
    a_cleanup_that_ended_late_is_counted_with_its_real_time,
    a_cleanup_that_the_loss_cut_off_is_not_finished_and_suggests_nothing,
    holds_are_counted_against_their_leases,
    a_fleet_counts_together_and_loses_nothing,
    an_addition_whose_reply_was_lost_is_counted_once,
);

const SHORT: Duration = Duration::from_millis(200);

fn outcomes(tally: &Tally) -> [u64; 4] {
    [tally.in_time, tally.late, tally.forced, tally.refused]
}

/// H-72: counted for the preempted owner, by the requestor that waited.
/// H-52: a requestor that waits past the cleanup timeout gets the lock when the cleanup ends, and the owner records its real time.
async fn each_preemption_is_counted_with_its_outcome(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = lock(world, &one, "a").cleanup(SHORT).cleanup_by_guard();
    let b = lock(world, &other, "b").priority(1);
    let counted = |lock: &lockkeeper_helix::HelixLock| outcomes(&lock.statistics().owners["a"]);
    // In time: this cleanup takes no time, however busy the machine is.
    let at_once = lock(world, &one, "a").cleanup(LONG).on_cleanup(async |_| {});
    let guard = at_once.acquire().await.unwrap();
    b.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(counted(&b), [1, 0, 0, 0]);
    // Refused.
    let guard = a.acquire().await.unwrap();
    b.acquire().await.unwrap_err();
    assert_eq!(counted(&b), [1, 0, 0, 1]);
    // By force.
    let forceful = b.clone().forceful(true);
    forceful.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(counted(&b), [1, 0, 1, 1]);
    // Late: the requestor waits past the cleanup timeout, and the owner releases after it.
    let guard = a.acquire().await.unwrap();
    let patient = b.clone().wait_past_cleanup();
    let begun = Instant::now();
    let asking = ask(&patient);
    requested_by(world, "b").await;
    let asked = stored(world).await.request.unwrap().since_ms;
    let over = asked + SHORT.as_millis() as i64;
    // The margin covers the requestor's error about the server's time, which is at most a round trip.
    eventually("the cleanup timeout is over", async || super::server_time(world).await > over + 500).await;
    assert!(asking.waits() && guard.is_held());
    guard.release().await.unwrap();
    let most = begun.elapsed();
    let tally = a.statistics().total();
    assert_eq!((tally.cleanups.count(), tally.overdue), (1, 1), "{tally:?}");
    // It is at least the cleanup timeout and most of the margin. A histogram adds at most an eighth.
    let real = Duration::from_millis(tally.cleanups.quantile(1000).unwrap());
    assert!(real > 2 * SHORT && real <= most + most / 8, "{real:?} of {most:?}");
    asking.granted().await.release().await.unwrap();
    assert_eq!(counted(&b), [1, 1, 1, 1]);
    let waited = &b.statistics().owners["a"].waited;
    assert_eq!(waited.count(), 4);
    // Three of the waits lasted as long as the cleanup timeout.
    assert!(waited.quantile(500).unwrap() >= 150, "{waited:?}");
    assert_eq!(b.statistics().total().preemptions(), 4);
}

/// H-72: the next owner has nothing to clean up, so force interrupts nothing.
async fn an_owner_that_hands_the_lock_over_has_made_room_in_time(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let b = lock(world, &other, "b").priority(1);
    let asking = ask(&b);
    requested_by(world, "b").await;
    guard.transfer("c").await.unwrap();
    let next = lock(world, &one, "c").acquire().await.unwrap();
    let served = asking.granted().await;
    // Before the release: behind it, the record no longer says why the hold ended.
    assert_eq!(next.lost().await, Loss::Preempted);
    served.release().await.unwrap();
    assert_eq!(outcomes(&b.statistics().owners["a"]), [1, 0, 0, 0]);
}

/// H-72: its lease ends after its cleanup timeout, and the requestor waits for that.
async fn a_dead_owner_makes_room_late(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let lease = SHORT * 10;
    let a = HelixLock::new(&one, world.lock(), lease).user_id("a").skew(Duration::ZERO).strict();
    let _guard = a.cleanup(SHORT).cleanup_by_guard().acquire().await.unwrap();
    proxy.black_hole();
    let b = lock(world, &other, "b").priority(1).wait_past_cleanup();
    b.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(outcomes(&b.statistics().owners["a"]), [0, 1, 0, 0]);
    proxy.heal();
}

/// H-72: allotted and real cleanup time, also if another client had the lock by then.
async fn a_cleanup_that_ended_late_is_counted_with_its_real_time(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = lock(world, &one, "a").cleanup(SHORT).cleanup_by_guard();
    let b = lock(world, &other, "b").priority(1).forceful(true);
    let guard = a.acquire().await.unwrap();
    let next = b.acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(a.statistics().total().cleanups.count(), 0, "the cleanup still runs");
    guard.release().await.unwrap_err();
    eventually("the cleanup is counted", async || a.statistics().total().cleanups.count() == 1).await;
    let tally = a.statistics().total();
    assert_eq!((tally.overdue, tally.share_in_time()), (1, Some(0.0)));
    assert!(tally.suggested_cleanup_ms().unwrap() >= 200, "{tally:?}");
    assert!((200..=225).contains(&tally.allotted.quantile(1000).unwrap()), "{tally:?}");
    next.release().await.unwrap();
    // A cleanup by a callback that finishes in time.
    let prompt = lock(world, &one, "a").cleanup(LONG).on_cleanup(async |_| {});
    let guard = prompt.acquire().await.unwrap();
    b.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    eventually("the cleanup is counted", async || prompt.statistics().total().cleanups.count() == 1).await;
    assert_eq!(prompt.statistics().total().share_in_time(), Some(1.0));
}

/// H-73: a guard that is dropped after the loss, as that of a command which is killed, has cleaned up nothing for sure.
async fn a_cleanup_that_the_loss_cut_off_is_not_finished_and_suggests_nothing(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard();
    let b = lock(world, &other, "b").priority(1).forceful(true).waiting(SHORT);
    let guard = a.acquire().await.unwrap();
    let next = b.acquire().await.unwrap();
    assert_eq!(guard.run(std::future::pending::<()>()).await, Err(Loss::Preempted));
    drop(guard);
    eventually("the cleanup is counted", async || a.statistics().total().cut_off.count() == 1).await;
    let tally = a.statistics().total();
    assert_eq!((tally.cleanups.count(), tally.overdue, tally.share_in_time()), (0, 0, Some(0.0)));
    assert_eq!(tally.suggested_cleanup_ms(), None, "{tally:?}");
    next.release().await.unwrap();
}

/// H-74: holds that ended with their lease are counted apart, and a renewed hold counts once.
async fn holds_are_counted_against_their_leases(world: &World) {
    let keeper = world.keeper().await;
    let a = lock(world, &keeper, "a");
    let guard = a.acquire().await.unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    let tally = a.statistics().total();
    assert_eq!((tally.holds(), tally.overran), (1, 0));
    assert!(tally.leases.quantile(1000).unwrap() >= 600_000, "{tally:?}");
    assert!(tally.held.quantile(1000).unwrap() < 600_000, "{tally:?}");
    // The lease of a renewed hold counts from its first grant to its last end.
    let renewed = HelixLock::new(&keeper, world.lock(), Duration::from_secs(1)).user_id("a").skew(Duration::ZERO);
    let guard = renewed.acquire().await.unwrap();
    let until_ms = stored(world).await.owner.unwrap().until_ms;
    eventually("the lease is over", async || super::server_time(world).await > until_ms).await;
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    let tally = renewed.statistics().total();
    assert!(tally.leases.quantile(1000).unwrap() >= 1_500, "{tally:?}");
    // Long enough for a grant on a machine with other work.
    let brief =
        HelixLock::new(&keeper, world.lock(), Duration::from_secs(1)).user_id("a").skew(Duration::ZERO).strict();
    let guard = brief.acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::LeaseEnded);
    eventually("the hold is counted", async || brief.statistics().total().holds() == 1).await;
    let tally = brief.statistics().total();
    assert_eq!(tally.overran, 1);
    assert!(tally.suggested_lease_ms().unwrap() >= 400, "{tally:?}");
    assert_eq!(
        HelixAdmin::new(&keeper).statistics(&world.lock()).await.unwrap(),
        None,
        "statistics were published without publish_statistics"
    );
}

/// H-73: counted by lock and by owner, each addition under compare-and-set; nothing is stored beside the lock.
async fn a_fleet_counts_together_and_loses_nothing(world: &World) {
    let mut holds = Vec::new();
    let shared = world.lock();
    for owner in ["a", "b", "c", "d"] {
        let keeper = world.keeper().await;
        let lock = lock(world, &keeper, owner).publish_statistics();
        holds.push(crate::support::spawn(async move {
            for _ in 0..5 {
                loop {
                    if let Ok(guard) = lock.acquire().await {
                        guard.release().await.unwrap();
                        break;
                    }
                }
            }
            assert!(lock.flush_statistics(PATIENCE).await);
        }));
    }
    for hold in holds {
        hold.await.unwrap();
    }
    let reader = world.keeper().await;
    let admin = HelixAdmin::new(&reader);
    let counted = admin.statistics(&shared).await.unwrap().unwrap();
    let holds: Vec<_> = counted.owners.iter().map(|(owner, tally)| (owner.as_str(), tally.holds())).collect();
    assert_eq!(holds, [("a", 5), ("b", 5), ("c", 5), ("d", 5)]);
    assert_eq!(counted.total().holds(), 20);
    assert!(!world.exists(&shared).await, "a free lock leaves nothing behind");
    assert!(reader.admin().list("/").await.unwrap().iter().all(|lock| !lock.path.starts_with("/lockkeeper")));
    assert!(admin.forget_statistics(&shared).await.unwrap());
    assert_eq!(admin.statistics(&shared).await.unwrap(), None);
    assert!(!admin.forget_statistics(&shared).await.unwrap());
}

/// H-73: the addition is neither lost nor counted twice.
async fn an_addition_whose_reply_was_lost_is_counted_once(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let a = lock(world, &keeper, "a").publish_statistics();
    let made = [OpCode::Create, OpCode::Create2];
    for (holds, ops) in [(1, &made[..]), (2, &[OpCode::SetData]), (3, &[OpCode::GetData])] {
        let guard = a.acquire().await.unwrap();
        let at = format!("/lockkeeper/stats/{}", world.lock()[1..].replace('/', "%2F"));
        let rule = proxy.on_any(ops).path(&at).cut_before_reply();
        guard.release().await.unwrap();
        assert!(a.flush_statistics(PATIENCE).await);
        rule.fired().await;
        drop(rule);
        proxy.heal();
        let counted = HelixAdmin::new(&world.keeper().await).statistics(&world.lock()).await.unwrap().unwrap();
        assert_eq!(counted.total().holds(), holds, "{ops:?}");
    }
    HelixAdmin::new(&keeper).forget_statistics(&world.lock()).await.unwrap();
}
