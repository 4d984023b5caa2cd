//! Locks that are handed over from owner to owner, and owners that are asked to release.

use std::time::Duration;

use lockkeeper::Loss;
use lockkeeper::admin::RevokeAnswer;
use lockkeeper::error::{AdminError, ReleaseError};
use lockkeeper_helix::{AcquireLeaseError, HelixLock, LeaseError, LockOperations};
use lockkeeper_testkit::proxy::OpCode;

use super::{LONG, ask, info, lock, on_every_record_server, requested_by, stored};
use crate::support::{PATIENCE, STEADY, World, eventually, misused};

on_every_record_server!(
    case_35_a_lock_outlives_its_session_and_is_handed_over_in_one_step,
    case_35_a_requestor_keeps_waiting_when_the_lock_is_handed_over,
    case_35_a_transfer_whose_reply_was_lost_is_carried_out_once,
    case_35_an_owner_relies_on_the_lock_no_more_when_the_next_one_may,
    a_transfer_to_a_client_that_has_preempted_the_owner_fails,
    only_a_client_with_the_owners_id_can_hand_a_lock_over,
    a_leased_lock_is_shown_with_its_owner_its_end_and_its_requestor,
    a_leased_holders_token_is_shown_as_granted,
    an_owner_is_asked_to_release_and_releases,
    a_request_to_release_does_not_reach_the_next_owner,
    an_owner_can_refuse_to_release,
    a_leased_lock_is_broken_with_a_reason,
    only_the_owner_that_was_shown_is_evicted,
);

/// A process hands the lock over and ends; the next owner is a process that was never in its session.
async fn case_35_a_lock_outlives_its_session_and_is_handed_over_in_one_step(world: &World) {
    let (one, other, third) = (world.keeper().await, world.keeper().await, world.keeper().await);
    let a = lock(world, &one, "a").priority(3).message("stage one").cleanup(LONG);
    let guard = a.acquire().await.unwrap();
    let before = info(world).await;
    guard.transfer("b").await.unwrap();
    assert_eq!(guard.loss(), Some(Loss::Transferred));
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Transferred })));
    // The same record with another owner.
    let after = info(world).await;
    assert_eq!(after.owner, "b");
    assert_eq!(lockkeeper_helix::LockAttributes { owner: "a".into(), ..after }, before);
    one.close().await;
    // No other client can take it, not even the previous owner; the new owner acquires it elsewhere.
    assert!(
        matches!(lock(world, &third, "a").acquire().await, Err(AcquireLeaseError::Outranked { by, .. }) if by == "b")
    );
    let b = lock(world, &other, "b");
    assert!(b.is_current_owner().await.unwrap());
    let taken = b.acquire().await.unwrap();
    assert!(taken.is_held());
    taken.release().await.unwrap();
    assert!(stored(world).await.is_free());
}

/// The reply of the write is held back, and the next owner may act.
async fn case_35_an_owner_relies_on_the_lock_no_more_when_the_next_one_may(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = lock(world, &keeper, "a").acquire().await.unwrap();
    let reply = proxy.on(OpCode::Multi).path(world.parent().trim_end_matches("/lock")).hold_reply();
    let (transferred, ()) = tokio::join!(guard.transfer("b"), async {
        reply.caught().await;
        assert_eq!((info(world).await.owner.as_str(), guard.loss()), ("b", Some(Loss::Transferred)));
        reply.release();
    });
    transferred.unwrap();
    lock(world, &keeper, "b").acquire().await.unwrap().release().await.unwrap();
}

/// The new owner takes over the request with its position and its time, and gets the notice.
async fn case_35_a_requestor_keeps_waiting_when_the_lock_is_handed_over(world: &World) {
    let (one, other, third) = (world.keeper().await, world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let asking = ask(&lock(world, &other, "high").priority(5));
    requested_by(world, "high").await;
    let request = stored(world).await.request;
    guard.transfer("b").await.unwrap();
    assert_eq!(stored(world).await.request, request);
    let b = lock(world, &third, "b").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    assert_eq!(b.preemption().await.by, "high");
    assert!(asking.waits());
    b.release().await.unwrap();
    let high = asking.granted().await;
    high.release().await.unwrap();
    // A requestor that is handed the lock stops waiting.
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let asking = ask(&lock(world, &other, "high").priority(5));
    requested_by(world, "high").await;
    guard.transfer("high").await.unwrap();
    asking.granted().await.release().await.unwrap();
}

async fn case_35_a_transfer_whose_reply_was_lost_is_carried_out_once(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = lock(world, &keeper, "a").acquire().await.unwrap();
    let rule = proxy.on(OpCode::Multi).cut_before_reply();
    guard.transfer("b").await.unwrap();
    rule.fired().await;
    assert_eq!(info(world).await.owner, "b");
    proxy.heal();
    lock(world, &keeper, "b").transfer("c").await.unwrap();
    assert_eq!(info(world).await.owner, "c");
    assert!(LockOperations::unlock(&lock(world, &keeper, "c")).await.unwrap());
}

/// The record then names the new owner, although this transfer was not carried out.
async fn a_transfer_to_a_client_that_has_preempted_the_owner_fails(world: &World) {
    let (proxy, other) = (world.proxy().await, world.keeper().await);
    let guard = lock(world, &world.keeper_through(&proxy, STEADY).await, "a").acquire().await.unwrap();
    let held = proxy.on(OpCode::Multi).hold_request();
    let (transferred, next) = tokio::join!(guard.transfer("b"), async {
        held.caught().await;
        let next = lock(world, &other, "b").priority(1).forceful(true).acquire().await.unwrap();
        held.release();
        next
    });
    assert!(matches!(transferred, Err(LeaseError::Lost { loss: Loss::Preempted, .. })), "{transferred:?}");
    assert!(next.is_held());
    next.release().await.unwrap();
}

/// The new owner must be valid; a mistake changes nothing.
async fn only_a_client_with_the_owners_id_can_hand_a_lock_over(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").acquire().await.unwrap();
    for nobody in ["", "NONE", "a"] {
        assert_eq!(misused(&guard.transfer(nobody).await), Some("terms"), "{nobody:?}");
        assert!(guard.is_held());
    }
    match lock(world, &other, "b").transfer("c").await {
        Err(LeaseError::NotOwner { owner, .. }) => assert_eq!(owner.as_deref(), Some("a")),
        other => panic!("{other:?}"),
    }
    // From another process, without the guard; the guard reports the loss.
    lock(world, &other, "a").transfer("c").await.unwrap();
    assert_eq!(guard.lost().await, Loss::Transferred);
    assert!(LockOperations::unlock(&lock(world, &other, "c")).await.unwrap());
    assert!(matches!(lock(world, &other, "c").transfer("d").await, Err(LeaseError::NotOwner { owner: None, .. })));
    // The ended lease of a strict owner cannot be handed over.
    let brief = HelixLock::new(&one, world.lock(), Duration::from_secs(1)).user_id("a").strict();
    let guard = brief.acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::LeaseEnded);
    assert!(matches!(guard.transfer("b").await, Err(LeaseError::Lost { loss: Loss::LeaseEnded, .. })));
}

/// One query for every kind of lock shows the owner, its lease's end by the server's clock, and the requestor.
async fn a_leased_lock_is_shown_with_its_owner_its_end_and_its_requestor(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let admin = other.admin();
    let a = lock(world, &one, "a").message("moving").cleanup(LONG).cleanup_by_guard();
    let guard = a.acquire().await.unwrap();
    let shown = admin.show(&world.lock()).await.unwrap();
    let [holder] = &shown.holders[..] else { panic!("{shown:?}") };
    assert_eq!((holder.mode, holder.described.as_str(), holder.message.as_deref()), ("lease", "a", Some("moving")));
    assert_eq!(holder.node_path(&shown.path), world.lock());
    let lease = shown.lease.unwrap();
    assert_eq!((lease.owner.as_deref(), lease.priority, &lease.requestor), (Some("a"), 0, &None));
    let until = lease.until.unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    assert_eq!(until.to_string(), info(world).await.timeout.to_string());
    let asking = ask(&lock(world, &other, "b").priority(4));
    requested_by(world, "b").await;
    let listed = admin.list(world.lock().rsplit_once('/').unwrap().0).await.unwrap();
    let [shown] = &listed[..] else { panic!("{listed:?}") };
    let requestor = shown.lease.as_ref().unwrap().requestor.clone().unwrap();
    assert_eq!((requestor.id.as_str(), requestor.priority), ("b", 4));
    guard.release().await.unwrap();
    asking.granted().await.release().await.unwrap();
    assert!(matches!(admin.show(&world.lock()).await, Err(AdminError::NoSuchLock { .. })));
    // A free node that Helix leaves is shown as free.
    lock(world, &one, "a").keep_node().acquire().await.unwrap().release().await.unwrap();
    let shown = admin.show(&world.lock()).await.unwrap();
    assert_eq!((shown.holders, shown.lease), (vec![], None));
}

/// The request takes nothing: the owner learns who asks and why, whatever its own priority.
async fn an_owner_is_asked_to_release_and_releases(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").acquire().await.unwrap();
    let admin = other.admin();
    let asked = admin.revoke(&world.lock(), Some("deploying")).await.unwrap();
    let [asked] = &asked[..] else { panic!("{asked:?}") };
    let request = lockkeeper::Holding::revocation(&guard).await;
    assert_eq!((request.reason.as_deref(), request.by.as_ref()), (Some("deploying"), Some(other.owner())));
    assert!(guard.is_held() && guard.preempted_by().is_none());
    let shown = admin.show(&world.lock()).await.unwrap();
    assert_eq!(shown.holders[0].revocation.as_ref().unwrap().reason.as_deref(), Some("deploying"));
    // A renewal is not an answer.
    guard.renew().await.unwrap();
    assert!(stored(world).await.owner.unwrap().revocation.is_some());
    guard.release().await.unwrap();
    assert_eq!(asked.answer(PATIENCE).await.unwrap(), RevokeAnswer::Released);
    // Another owner's lock is neither an answer to the request nor bound by it.
    let next = lock(world, &one, "b").acquire().await.unwrap();
    assert_eq!(stored(world).await.owner.unwrap().revocation, None);
    next.release().await.unwrap();
}

/// The owner changes between the read of the record and the write of the request.
async fn a_request_to_release_does_not_reach_the_next_owner(world: &World) {
    let (one, proxy) = (world.keeper().await, world.proxy().await);
    let admin = world.keeper_through(&proxy, STEADY).await.admin();
    let guard = lock(world, &one, "a").acquire().await.unwrap();
    let path = world.lock();
    let held = proxy.on(OpCode::Multi).hold_request();
    let (asked, next) = tokio::join!(admin.revoke(&path, None), async {
        held.caught().await;
        guard.release().await.unwrap();
        let next = lock(world, &one, "b").acquire().await.unwrap();
        held.release();
        next
    });
    assert_eq!(asked.unwrap()[0].answer(PATIENCE).await.unwrap(), RevokeAnswer::Released);
    assert_eq!(stored(world).await.owner.unwrap().revocation, None);
    next.release().await.unwrap();
}

async fn an_owner_can_refuse_to_release(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").acquire().await.unwrap();
    let asked = other.admin().revoke(&world.lock(), None).await.unwrap();
    lockkeeper::Holding::revocation(&guard).await;
    guard.refuse_revocation("in the middle of it").unwrap();
    assert_eq!(asked[0].answer(PATIENCE).await.unwrap(), RevokeAnswer::Refused("in the middle of it".into()));
    assert!(guard.is_held());
    // The owner can be asked again.
    let again = other.admin().revoke(&world.lock(), Some("now?")).await.unwrap();
    assert_eq!(lockkeeper::Holding::revocation(&guard).await.reason.as_deref(), Some("now?"));
    drop(guard);
    assert_eq!(again[0].answer(PATIENCE).await.unwrap(), RevokeAnswer::Released);
    eventually("the lock is free", async || stored(world).await.is_free()).await;
}

/// The waiter is next; the break and its record are one transaction.
async fn a_leased_lock_is_broken_with_a_reason(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let asking = ask(&lock(world, &other, "b").priority(4));
    requested_by(world, "b").await;
    let broken = other.admin().break_lock(&world.lock(), "its host crashed").await.unwrap();
    assert_eq!((broken.held, broken.described.as_str()), (true, "a"));
    guard.lost().await;
    asking.granted().await.release().await.unwrap();
    let entries = other.admin().broken(&world.lock()).await.unwrap();
    assert_eq!(entries.len(), 1);
    assert!(matches!(other.admin().break_lock(&world.lock(), "again").await, Err(AdminError::NoSuchLock { .. })));
}

/// The token stays the same, whichever of our clients writes the record afterwards; after a foreign client's write it is
/// unknown.
async fn a_leased_holders_token_is_shown_as_granted(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let shown = async || one.admin().show(&world.lock()).await.unwrap().holders.remove(0).token;
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    let token = Some(guard.token());
    assert_eq!(shown().await, token);
    guard.renew().await.unwrap();
    assert_eq!(shown().await, token, "renewed");
    let asking = ask(&lock(world, &other, "high").priority(5));
    requested_by(world, "high").await;
    assert_eq!(shown().await, token, "requested");
    one.admin().revoke(&world.lock(), None).await.unwrap();
    assert_eq!(shown().await, token, "revocation requested");
    guard.renew().await.unwrap();
    assert_eq!(shown().await, token, "renewed again");
    // As Helix writes it: only its own ten attributes.
    let mut record = stored(world).await;
    let owner = record.owner.as_mut().unwrap();
    (owner.granted_by, owner.revocation) = (None, None);
    world.observer.set_data(&world.lock(), &record.to_bytes(), None).await.unwrap();
    assert_eq!(shown().await, None);
    guard.release().await.unwrap();
    let next = asking.granted().await;
    assert_eq!(shown().await, Some(next.token()));
    next.release().await.unwrap();
}

/// A record has no node of its own for each owner.
async fn only_the_owner_that_was_shown_is_evicted(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let admin = other.admin();
    let shown = async || admin.show(&world.lock()).await.unwrap().holders.remove(0);
    let before = lock(world, &one, "a").acquire().await.unwrap();
    let a = shown().await;
    before.transfer("b").await.unwrap();
    let guard = lock(world, &one, "b").acquire().await.unwrap();
    let refused = admin.evict(&world.lock(), &a, "its host crashed").await;
    assert!(matches!(refused, Err(AdminError::NotContending { .. })), "{refused:?}");
    guard.verify().await.unwrap();
    let b = shown().await;
    // Whoever wrote the record since.
    guard.renew().await.unwrap();
    let broken = admin.evict(&world.lock(), &b, "its host crashed").await.unwrap();
    assert_eq!((broken.held, broken.described.as_str()), (true, "b"));
    assert_eq!(guard.lost().await, Loss::Removed);
    let free = world.mutex(&one).acquire().await.unwrap();
    let held = shown().await;
    assert!(matches!(admin.evict(&world.lock(), &b, "again").await, Err(AdminError::NotContending { .. })));
    let evicted = admin.evict(&world.lock(), &held, "again").await.unwrap();
    assert_eq!(free.node(), format!("{}/{}", world.lock(), evicted.node));
    assert_eq!(free.lost().await, Loss::Removed);
}
