//! Why a hold of a leased lock is lost, as its record tells.

use std::time::Duration;

use lockkeeper::Loss;
use lockkeeper::error::ReleaseError;
use lockkeeper_core::leased::Record;
use lockkeeper_helix::{HelixLock, LeaseError, LockStatus};
use lockkeeper_testkit::proxy::OpCode;

use super::{LONG, ask, lock, on_every_record_server, requested_by, server_time, stored};
use crate::support::{STEADY, World, eventually};

on_every_record_server!(
    a_lock_without_an_owner_was_broken_unless_its_requestor_has_been_served,
    another_owner_of_the_same_priority_did_not_preempt,
    an_ended_lease_of_which_another_owner_took_the_lock_has_ended,
    a_lease_is_kept_in_no_session_that_is_trusted_for_longer_than_its_notice,
    an_owner_is_told_of_a_preemption_once,
    a_hold_whose_record_is_overwritten_is_lost,
    a_hold_that_the_record_does_not_show_cannot_be_handed_over,
    the_status_of_a_lock_follows_its_last_hold,
    a_hold_is_verified_behind_an_ordered_write,
);

/// Writes the record as some client would.
async fn change(world: &World, change: impl FnOnce(&mut Record)) {
    let mut record = stored(world).await;
    change(&mut record);
    world.observer.set_data(&world.lock(), &record.to_bytes(), None).await.unwrap();
}

/// A requestor that took the lock by force, and has released it since, leaves neither owner nor request.
async fn a_lock_without_an_owner_was_broken_unless_its_requestor_has_been_served(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let a = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard();
    let guard = a.acquire().await.unwrap();
    guard.verify().await.unwrap();
    change(world, |record| record.owner = None).await;
    assert_eq!(guard.lost().await, Loss::Removed);
    for (served, loss) in [(true, Loss::Preempted), (false, Loss::Removed)] {
        let guard = a.acquire().await.unwrap();
        let asking = ask(&lock(world, &other, "b").priority(1));
        requested_by(world, "b").await;
        guard.preemption().await;
        let request = stored(world).await.request;
        // No living client serves the request then.
        asking.abort();
        eventually("the request is withdrawn", async || stored(world).await.request.is_none()).await;
        change(world, |record| record.request.clone_from(&request)).await;
        guard.verify().await.unwrap();
        change(world, |record| {
            record.owner = None;
            record.request = record.request.take().filter(|_| !served);
        })
        .await;
        assert_eq!(guard.lost().await, loss);
        change(world, |record| record.request = None).await;
    }
}

async fn another_owner_of_the_same_priority_did_not_preempt(world: &World) {
    let keeper = world.keeper().await;
    let guard = lock(world, &keeper, "a").priority(3).acquire().await.unwrap();
    guard.verify().await.unwrap();
    change(world, |record| {
        let owner = record.owner.as_mut().unwrap();
        (owner.id, owner.until_ms) = ("b".to_owned(), owner.until_ms + 1);
    })
    .await;
    assert_eq!(guard.lost().await, Loss::Removed);
    assert!(guard.preempted_by().is_none());
}

/// H-15: it was kept until somebody asked.
async fn an_ended_lease_of_which_another_owner_took_the_lock_has_ended(world: &World) {
    let keeper = world.keeper().await;
    let brief = HelixLock::new(&keeper, world.lock(), Duration::from_secs(1)).user_id("a").skew(Duration::ZERO);
    for (taken, loss) in [(true, Loss::LeaseEnded), (false, Loss::Removed)] {
        let guard = brief.acquire().await.unwrap();
        let until_ms = stored(world).await.owner.unwrap().until_ms;
        eventually("the lease is over", async || server_time(world).await > until_ms).await;
        guard.verify().await.unwrap();
        change(world, |record| match taken {
            true => {
                let owner = record.owner.as_mut().unwrap();
                (owner.id, owner.until_ms) = ("b".to_owned(), owner.until_ms + 600_000);
            }
            false => record.owner = None,
        })
        .await;
        assert_eq!(guard.lost().await, loss);
        change(world, |record| record.owner = None).await;
    }
}

/// H-15, H-16: a hold that outlives its session may continue in one with a longer timeout, but a requestor waits for the notice
/// that the record shows.
async fn a_lease_is_kept_in_no_session_that_is_trusted_for_longer_than_its_notice(world: &World) {
    let keeper = world.keeper().await;
    let brief = HelixLock::new(&keeper, world.lock(), Duration::from_secs(1)).user_id("a").skew(Duration::ZERO);
    let guard = brief.acquire().await.unwrap();
    let owner = stored(world).await.owner.unwrap();
    let timeout_ms = owner.notice_ms.unwrap();
    assert_eq!(i64::try_from(guard.session_timeout().as_millis()), Ok(timeout_ms));
    eventually("the lease is over", async || server_time(world).await > owner.until_ms).await;
    guard.verify().await.unwrap();
    change(world, |record| record.owner.as_mut().unwrap().notice_ms = Some(timeout_ms - 1)).await;
    eventually("the hold is lost", async || guard.loss() == Some(Loss::LeaseEnded)).await;
    change(world, |record| record.owner = None).await;
}

/// H-32: also if the next it sees of the record is the new owner.
async fn an_owner_is_told_of_a_preemption_once(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let asking = ask(&lock(world, &other, "b").priority(1));
    let told = guard.preemption().await;
    change(world, |record| {
        let owner = record.owner.as_mut().unwrap();
        (owner.id, owner.priority) = ("c".to_owned(), 2);
    })
    .await;
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(guard.preempted_by(), Some(told));
    drop(asking);
}

/// The holder does not know it yet: the event is still on its way.
async fn a_hold_that_the_record_does_not_show_cannot_be_handed_over(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    for (id, priority, loss) in [("a", 0, Loss::Removed), ("c", 0, Loss::Removed), ("c", 1, Loss::Preempted)] {
        let guard = lock(world, &keeper, "a").acquire().await.unwrap();
        guard.verify().await.unwrap();
        let events = proxy.hold_watch_events();
        change(world, |record| {
            let owner = record.owner.as_mut().unwrap();
            (owner.id, owner.priority, owner.until_ms) = (id.to_owned(), priority, owner.until_ms + 1);
        })
        .await;
        let before = stored(world).await;
        let transferred = guard.transfer("b");
        let reads = proxy.counts().requested.of(OpCode::GetData);
        let (transferred, ()) = tokio::join!(transferred, async {
            proxy.wait_until(|counts| counts.requested.of(OpCode::GetData) > reads).await;
            events.release();
        });
        match transferred {
            Err(LeaseError::Lost { loss: told, .. }) => assert_eq!(told, loss, "{id} {priority}"),
            outcome => panic!("{outcome:?}"),
        }
        assert_eq!(stored(world).await, before, "another owner's lock was handed over");
        change(world, |record| record.owner = None).await;
    }
}

/// H-64: another hold of the same lock goes on.
async fn the_status_of_a_lock_follows_its_last_hold(world: &World) {
    let keeper = world.keeper().await;
    let a = lock(world, &keeper, "a");
    let first = a.acquire().await.unwrap();
    let second = a.acquire().await.unwrap();
    assert_eq!(first.lost().await, Loss::Superseded);
    assert!(matches!(first.release().await, Err(ReleaseError::NotHeld { loss: Loss::Superseded })));
    assert_eq!(a.status(), LockStatus::Locked);
    second.release().await.unwrap();
    assert_eq!(a.status(), LockStatus::Unlocked);
}

/// Its own server may be stale.
async fn a_hold_is_verified_behind_an_ordered_write(world: &World) {
    let proxy = world.proxy().await;
    let guard = lock(world, &world.keeper_through(&proxy, STEADY).await, "a").acquire().await.unwrap();
    guard.verify().await.unwrap();
    let before = proxy.counts();
    guard.verify().await.unwrap();
    assert_eq!(proxy.counts().since(&before).requested.of(OpCode::Check), 1);
    guard.release().await.unwrap();
}

/// By data that is no record at all; nobody knows then who owns the lock.
async fn a_hold_whose_record_is_overwritten_is_lost(world: &World) {
    let keeper = world.keeper().await;
    let a = lock(world, &keeper, "a");
    let guard = a.acquire().await.unwrap();
    guard.verify().await.unwrap();
    world.observer.set_data(&world.lock(), b"something else", None).await.unwrap();
    assert_eq!(guard.lost().await, Loss::Removed);
    eventually("the status says so", async || a.status() == LockStatus::Unlocked).await;
    assert!(guard.release().await.is_err());
    assert_eq!(world.observer.get_data(&world.lock()).await.unwrap().0, b"something else");
    world.remove(&world.lock()).await;
}
