//! Since when a lock is held, as others see it: a holder writes that into its record, and before it does, others know bounds.
//!
//! In simulated time, which passes only when nothing else can happen.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::admin::{ContenderInfo, Grant};
use lockkeeper_session::ensemble::NodeKind;

use lockkeeper::error::{AcquireError, AdminError};
use lockkeeper::{Guard, Lockkeeper};
use lockkeeper_testkit::sim::Sim;
use tokio::time::sleep;

use crate::support::{Kind, simulated, simulated_keeper as keeper};

const LOCK: &str = "/locks/dated";

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn holder(keeper: &Lockkeeper) -> ContenderInfo {
    keeper.admin().show(LOCK).await.unwrap().holders.remove(0)
}

/// How long it waited, by what others see.
fn waited(holder: &ContenderInfo) -> Duration {
    holder.granted.unwrap().duration_since(holder.since).unwrap()
}

/// Whether two durations are the same but for round trips and the connecting of a session.
fn is_about(one: Duration, other: Duration) -> bool {
    one.abs_diff(other) < ms(200)
}

/// Waits for the lock of another process for so long.
async fn wait_for_it(sim: &Sim, keeper: &Lockkeeper, kind: Kind, wait: Duration) -> Guard {
    let other = keeper_of_the_first(sim, kind).await;
    let waiter = crate::support::spawn(kind.mutex(keeper, LOCK).acquire().into_future());
    sleep(wait).await;
    drop(other);
    waiter.await.unwrap().unwrap()
}

async fn keeper_of_the_first(sim: &Sim, kind: Kind) -> Guard {
    kind.mutex(&keeper(sim), LOCK).acquire().await.unwrap()
}

#[test]
fn a_holder_that_waited_is_held_since_its_grant_whatever_is_written_later() {
    simulated(async |sim| {
        for kind in [Kind::Native, Kind::Recipe] {
            let (near, far) = (keeper(&sim), keeper(&sim));
            let guard = wait_for_it(&sim, &near, kind, ms(65_000)).await;
            sleep(ms(200)).await;
            let seen = holder(&far).await;
            assert!(is_about(waited(&seen), ms(65_000)), "{kind:?}: {seen:?}");
            let text = seen.to_string();
            assert!(text.contains(" since ") && text.contains(", queued since "), "{text}");
            // A request to release, and the answer to it.
            sleep(ms(5_000)).await;
            let asked = far.admin().revoke(LOCK, Some("release day")).await.unwrap();
            sleep(ms(1_000)).await;
            guard.refuse_revocation("busy").unwrap();
            sleep(ms(1_000)).await;
            let refused = holder(&far).await;
            assert_eq!(refused.revocation.unwrap().refused.as_deref(), Some("busy"));
            assert_eq!((refused.granted, refused.since), (seen.granted, seen.since), "{kind:?}");
            drop(asked);
            guard.release().await.unwrap();
        }
    });
}

#[test]
fn an_error_says_since_when_the_holder_holds_and_not_since_when_it_waited() {
    simulated(async |sim| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let guard = wait_for_it(&sim, &near, Kind::Native, ms(65_000)).await;
        sleep(ms(200)).await;
        let mutex = Kind::Native.mutex(&far, LOCK);
        for outcome in [mutex.try_acquire().await, mutex.acquire().timeout(ms(500)).await] {
            let (AcquireError::Held { holder, .. } | AcquireError::Timeout { holder, .. }) = outcome.unwrap_err()
            else {
                panic!("another error");
            };
            assert!(is_about(waited(&holder.unwrap()), ms(65_000)));
        }
        guard.release().await.unwrap();
    });
}

/// Counts the requests of a cycle whose wait and hold take so long.
async fn cycle(sim: &Sim, kind: Kind, wait: Duration, hold: Duration) -> BTreeMap<&'static str, u64> {
    let near = keeper(sim);
    let other = keeper_of_the_first(sim, kind).await;
    let waiter = crate::support::spawn(kind.mutex(&near, LOCK).acquire().into_future());
    sleep(wait).await;
    other.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let before = sim.requests();
    sleep(hold).await;
    guard.release().await.unwrap();
    let grown = sim.requests().into_iter().map(|(op, count)| (op, count - before.get(op).unwrap_or(&0)));
    // Sessions prove that they live, and those of the test end.
    grown.filter(|(op, count)| *count > 0 && matches!(*op, "setData" | "getData" | "delete" | "getChildren")).collect()
}

/// The hold writes its record once, and watches its node again, because the write was a change. Nobody waits for either.
#[test]
fn only_a_hold_of_100_ms_after_a_wait_of_a_second_and_one_of_10_s_costs_a_write() {
    simulated(async |sim| {
        for (kind, verified) in [(Kind::Native, 0_u64), (Kind::Recipe, 1)] {
            let costs = |write, reads| {
                let all = [("delete", 1), ("getData", reads + verified), ("setData", write)];
                all.into_iter().filter(|(_, count)| *count > 0).collect::<BTreeMap<_, _>>()
            };
            for (wait, hold, costs) in [
                (ms(900), ms(9_900), costs(0, 0)),
                (ms(900), ms(10_100), costs(1, 1)),
                (ms(1_100), ms(90), costs(0, 0)),
                (ms(1_100), ms(110), costs(1, 1)),
                (ms(60_000), ms(10_000), costs(1, 1)),
            ] {
                assert_eq!(cycle(&sim, kind, wait, hold).await, costs, "{kind:?}: {wait:?}, {hold:?}");
            }
        }
    });
}

#[test]
fn a_holder_that_did_not_wait_is_held_since_it_came() {
    simulated(async |sim| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let guard = Kind::Native.mutex(&near, LOCK).acquire().await.unwrap();
        // Its queue has not changed since it came.
        sleep(ms(2_000)).await;
        let seen = holder(&far).await;
        assert_eq!(seen.granted, Some(seen.since));
        let waiter = crate::support::spawn(Kind::Native.mutex(&far, LOCK).acquire().into_future());
        sleep(ms(5_000)).await;
        // Before the waiter came, others may have been ahead.
        let lock = far.admin().show(LOCK).await.unwrap();
        let (came, waits) = (lock.holders[0].since, lock.waiters[0].since);
        assert_eq!(lock.holders[0].grant(), Some(Grant::between(came, Some(waits))));
        sleep(ms(5_000)).await;
        let lock = far.admin().show(LOCK).await.unwrap();
        assert!(waited(&lock.holders[0]) < ms(200), "its record says it: {lock:?}");
        assert!(!lock.holders[0].to_string().contains("queued"), "{}", lock.holders[0]);
        assert_eq!(lock.waiters[0].granted, None, "it waits");
        assert!(lock.waiters[0].to_string().contains(", queued since "), "{}", lock.waiters[0]);
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    });
}

/// Between the grant and the write of the record, others know only that it was granted the lock after its node was created.
#[test]
fn a_holder_that_has_not_said_yet_when_it_was_granted_the_lock_is_not_held_since_it_came() {
    simulated(async |sim| {
        let far = keeper(&sim);
        let guard = wait_for_it(&sim, &keeper(&sim), Kind::Native, ms(65_000)).await;
        let seen = holder(&far).await;
        assert_eq!((seen.granted, seen.grant()), (None, Some(Grant::between(seen.since, None))));
        assert!(!seen.to_string().contains(" since ") || seen.to_string().contains(", queued since "), "{seen}");
        guard.release().await.unwrap();
    });
}

/// A foreign client writes nothing. Its queue shows since when it holds the lock, or bounds.
#[test]
fn a_foreign_holder_is_held_since_its_queue_last_changed_or_before() {
    simulated(async |sim| {
        let far = keeper(&sim);
        let join = async |keeper: &Lockkeeper| {
            let created = keeper.sessions().ask(async |ensemble| {
                for path in ["/locks", LOCK] {
                    // It may be there.
                    _ = ensemble.create(path, Vec::new(), NodeKind::Persistent).await;
                }
                let node = format!("{LOCK}/0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__");
                let kind = NodeKind::EphemeralSequential;
                Ok::<_, AdminError>(ensemble.create(&node, b"10.0.0.7".to_vec(), kind).await.is_ok())
            });
            assert!(created.await.unwrap());
        };
        let clients = [keeper(&sim), keeper(&sim), keeper(&sim)];
        join(&clients[0]).await;
        sleep(ms(3_000)).await;
        let seen = holder(&far).await;
        assert_eq!(seen.granted, Some(seen.since), "nothing has changed since it came");
        for client in &clients[1..] {
            join(client).await;
            sleep(ms(3_000)).await;
        }
        let lock = far.admin().show(LOCK).await.unwrap();
        let first = &lock.holders[0];
        assert_eq!(first.grant(), Some(Grant::between(first.since, Some(lock.waiters[1].since))));
        let [first, ..] = clients;
        first.close().await;
        sleep(ms(3_000)).await;
        let lock = far.admin().show(LOCK).await.unwrap();
        let (second, third) = (&lock.holders[0], &lock.waiters[0]);
        assert_eq!(second.grant(), Some(Grant::between(second.since, None)), "the last change was an end: {third:?}");
    });
}

/// Between the grant and the write of the record nobody else knows since when the lock is held.
#[test]
fn a_follower_does_not_take_the_queue_for_the_hold() {
    simulated(async |sim| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let first = keeper_of_the_first(&sim, Kind::Native).await;
        let waiter = crate::support::spawn(Kind::Native.mutex(&near, LOCK).acquire().into_future());
        sleep(ms(3_000)).await;
        let mut follow = far.admin().follow(LOCK);
        assert_eq!(follow.next().await.unwrap().waiters.len(), 1);
        first.release().await.unwrap();
        let lock = follow.next().await.unwrap();
        assert_eq!((lock.holders[0].granted, lock.waiters.len()), (None, 0));
        assert!(lock.holders[0].to_string().contains(", queued since "), "{}", lock.holders[0]);
        let lock = tokio::time::timeout(ms(1_000), follow.next()).await.expect("the write wakes it").unwrap();
        assert!(is_about(waited(&lock.holders[0]), ms(3_000)), "{lock:?}");
        waiter.await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(follow.next().await.unwrap().holders.len(), 0);
    });
}

/// The holder marker is created with the grant.
#[test]
fn the_holder_of_a_lock_with_classes_is_held_since_its_marker() {
    simulated(async |sim| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let lock = |keeper: &Lockkeeper| keeper.priority_lock(LOCK);
        let first = lock(&far).background().acquire().await.unwrap();
        let waiter = crate::support::spawn(lock(&near).background().acquire().into_future());
        sleep(ms(5_000)).await;
        let before = sim.requests().get("setData").copied();
        first.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        sleep(ms(1_000)).await;
        assert!(is_about(waited(&holder(&far).await), ms(5_000)));
        assert_eq!(sim.requests().get("setData").copied(), before, "the marker tells it");
        guard.release().await.unwrap();
    });
}

/// Since the upgrade, it writes; before that, it read. After a downgrade it has another node.
#[test]
fn an_upgrade_begins_another_hold_and_so_does_a_downgrade() {
    simulated(async |sim| {
        let (near, far) = (keeper(&sim), keeper(&sim));
        let reader = near.rwlock(LOCK).upgradeable().acquire().await.unwrap();
        sleep(ms(20_000)).await;
        let writer = reader.upgrade().await.unwrap();
        sleep(ms(500)).await;
        assert!(is_about(waited(&holder(&far).await), ms(20_000)));
        let reader = writer.downgrade().await.unwrap();
        sleep(ms(500)).await;
        let seen = holder(&far).await;
        assert_eq!((seen.mode, seen.granted), ("read", Some(seen.since)));
        drop(reader);
    });
}

/// Its record announces the grant to those behind it in any case.
#[test]
fn a_permit_is_dated_and_announced_by_one_write() {
    simulated(async |sim| {
        let keepers = [keeper(&sim), keeper(&sim), keeper(&sim)];
        let permits = |at: usize| keepers[at].semaphore(LOCK, 1);
        let first = permits(0).acquire().await.unwrap();
        let second = crate::support::spawn(permits(1).acquire().into_future());
        sleep(ms(2_000)).await;
        let third = crate::support::spawn(permits(2).acquire().into_future());
        sleep(ms(2_000)).await;
        let before = sim.requests().get("setData").copied().unwrap_or(0);
        first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        sleep(ms(1_000)).await;
        assert!(is_about(waited(&holder(&keepers[0]).await), ms(4_000)));
        assert_eq!(sim.requests().get("setData").copied().unwrap_or(0) - before, 1);
        second.release().await.unwrap();
        third.await.unwrap().unwrap().release().await.unwrap();
    });
}
