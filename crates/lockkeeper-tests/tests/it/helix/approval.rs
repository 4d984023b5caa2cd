//! Which party decides when a cleanup is not finished in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::Loss;
use lockkeeper_helix::{
    AcquireLeaseError, CleanupAlert, Decision, HelixAdmin, HelixGuard, LeaseError, TransferRequest, TransferRule,
};
use lockkeeper_testkit::proxy::OpCode;

use super::{LONG, ask, info, lock, on_every_record_server, stored};
use crate::support::{PATIENCE, STEADY, World, eventually, misused};

on_every_record_server!(
    an_alert_has_all_facts_and_an_approval_transfers_the_lock,
    a_rejection_leaves_the_lock_to_its_owner,
    a_request_that_is_withdrawn_is_not_seen_a_second_time,
    no_answer_in_time_is_a_rejection,
    an_owner_that_finishes_meanwhile_needs_no_decision,
    a_change_of_the_record_does_not_end_the_wait_for_a_decision,
    a_rule_decides_without_asking,
    an_operator_elsewhere_approves,
    an_operator_elsewhere_rejects_and_the_first_answer_counts,
    an_operators_late_decision_is_refused,
    without_an_approver_no_decision_is_requested,
);

const SHORT: Duration = Duration::from_millis(200);

fn approved(reason: &str) -> Decision {
    Decision::Approve { by: "shift lead".to_owned(), reason: reason.to_owned() }
}

/// The client itself decides.
fn rejected(reason: &str) -> Decision {
    Decision::Reject { by: String::new(), reason: reason.to_owned() }
}

fn approve() -> Decision {
    Decision::Approve { by: "sre".to_owned(), reason: "it hangs".to_owned() }
}

/// Acquires for an owner that never finishes its cleanup.
async fn acquire_without_cleanup(world: &World, id: &str) -> HelixGuard {
    let lock = lock(world, &world.keeper().await, id).priority(1).message("index");
    lock.cleanup(SHORT).cleanup_by_guard().acquire().await.unwrap()
}

/// H-75: the alert names the owner, its message and priority, the elapsed and allotted time, and the requestor.
/// H-76: after an approval the lock is taken by force, and the audit says who decided and why.
async fn an_alert_has_all_facts_and_an_approval_transfers_the_lock(world: &World) {
    let guard = acquire_without_cleanup(world, "a").await;
    let alerts: Arc<Mutex<Vec<CleanupAlert>>> = Arc::default();
    let seen = alerts.clone();
    let b =
        lock(world, &world.keeper().await, "b").priority(4).message("urgent").on_unfinished(PATIENCE, move |alert| {
            seen.lock().unwrap().push(alert);
            async { approve() }
        });
    let next = b.acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert!(next.token() > guard.token());
    let alerts = alerts.lock().unwrap().clone();
    let [alert] = &alerts[..] else { panic!("{alerts:?}") };
    assert_eq!((alert.path.as_str(), alert.owner.as_str(), alert.requestor.as_str()), (&*world.lock(), "a", "b"));
    assert_eq!((alert.owner_message.as_deref(), alert.requestor_message.as_deref()), (Some("index"), Some("urgent")));
    assert_eq!((alert.owner_priority, alert.requestor_priority, alert.allotted), (1, 4, SHORT));
    assert!(alert.elapsed >= SHORT, "{:?}", alert.elapsed);
    let decided = b.decisions();
    assert_eq!((decided.len(), &decided[0].alert, &decided[0].decision), (1, alert, &approve()));
    assert!(!decided[0].by_rule);
    next.release().await.unwrap();
}

/// H-76: the requestor gets the same error as without an approver.
async fn a_rejection_leaves_the_lock_to_its_owner(world: &World) {
    let guard = acquire_without_cleanup(world, "a").await;
    let reject = || Decision::Reject { by: "sre".to_owned(), reason: "let it finish".to_owned() };
    let b = lock(world, &world.keeper().await, "b").priority(4);
    let b = b.waiting(Duration::ZERO).on_unfinished(PATIENCE, move |_| async move { reject() });
    assert!(matches!(b.acquire().await, Err(AcquireLeaseError::CleanupUnfinished { .. })));
    assert_eq!((info(world).await.owner.as_str(), stored(world).await.request), ("a", None));
    assert_eq!(b.decisions()[0].decision, reject());
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// H-76: an owner that sees that nobody preempts it any more finds no request either, which it would take for another one.
async fn a_request_that_is_withdrawn_is_not_seen_a_second_time(world: &World) {
    let guard = Arc::new(acquire_without_cleanup(world, "a").await);
    let b = lock(world, &world.keeper().await, "b").priority(4).waiting(Duration::ZERO);
    let owner = guard.clone();
    let b = b.on_unfinished(PATIENCE, move |_| {
        let owner = owner.clone();
        async move {
            owner.preemption().await;
            Decision::Reject { by: "sre".to_owned(), reason: "let it finish".to_owned() }
        }
    });
    for _ in 0..20 {
        let (seen, over) = (guard.clone(), Arc::new(AtomicBool::new(false)));
        let ended = over.clone();
        let after = std::thread::spawn(move || {
            // On a busy machine this thread may miss the request.
            while seen.preempted_by().is_none() && !ended.load(Ordering::Relaxed) {}
            while seen.preempted_by().is_some() {}
            seen.revocation_requested()
        });
        assert!(matches!(b.acquire().await, Err(AcquireLeaseError::CleanupUnfinished { .. })));
        over.store(true, Ordering::Relaxed);
        assert_eq!(after.join().unwrap(), None);
    }
    drop(b);
    // The task that asked for the last decision may still drop its clone.
    eventually("no other clone of the guard is left", async || Arc::strong_count(&guard) == 1).await;
    Arc::into_inner(guard).unwrap().release().await.unwrap();
}

/// H-76: without an answer the request is rejected, and the audit has the rejection.
async fn no_answer_in_time_is_a_rejection(world: &World) {
    let guard = acquire_without_cleanup(world, "a").await;
    let b = lock(world, &world.keeper().await, "b").priority(4);
    // The shortest time for a decision.
    let b = b.on_unfinished(Duration::ZERO, |_| std::future::pending());
    assert!(matches!(b.acquire().await, Err(AcquireLeaseError::CleanupUnfinished { .. })));
    assert!(matches!(&b.decisions()[0].decision, Decision::Reject { by, .. } if by == "nobody"));
    let audited = HelixAdmin::new(&world.keeper().await).decisions(&world.lock()).await.unwrap();
    let [audited] = &audited[..] else { panic!("{audited:?}") };
    assert_eq!((audited.approved, audited.by_rule, audited.on_behalf_of.as_deref()), (false, false, Some("nobody")));
    assert_eq!((audited.reason.as_str(), audited.facts.owner.as_str()), ("no answer in time", "a"));
    assert_eq!(stored(world).await.request, None);
    guard.release().await.unwrap();
}

/// H-76: the request stays in the record while the decision is pending.
async fn an_owner_that_finishes_meanwhile_needs_no_decision(world: &World) {
    let guard = acquire_without_cleanup(world, "a").await;
    let (asked, was_asked) = tokio::sync::mpsc::unbounded_channel();
    let mut was_asked = was_asked;
    let b = lock(world, &world.keeper().await, "b").priority(4).on_unfinished(LONG, move |_| {
        asked.send(()).unwrap();
        std::future::pending()
    });
    let asking = ask(&b);
    was_asked.recv().await.unwrap();
    assert_eq!(info(world).await.requestor_id, "b");
    guard.release().await.unwrap();
    asking.granted().await.release().await.unwrap();
    assert_eq!(b.decisions(), []);
}

/// H-76: the owner renews its lease while somebody decides.
async fn a_change_of_the_record_does_not_end_the_wait_for_a_decision(world: &World) {
    let proxy = world.proxy().await;
    let guard = acquire_without_cleanup(world, "a").await;
    let (asked, mut was_asked) = tokio::sync::mpsc::unbounded_channel();
    let b = lock(world, &world.keeper_through(&proxy, STEADY).await, "b").priority(4).on_unfinished(LONG, move |_| {
        let (decide, decided) = tokio::sync::oneshot::channel();
        asked.send(decide).unwrap();
        async { decided.await.unwrap() }
    });
    let asking = ask(&b);
    let decide = was_asked.recv().await.unwrap();
    for _ in 0..3 {
        let reads = proxy.counts().delivered.of(OpCode::GetData);
        guard.renew().await.unwrap();
        proxy.wait_until(|counts| counts.delivered.of(OpCode::GetData) > reads).await;
    }
    assert!(asking.waits());
    decide.send(approve()).unwrap();
    let next = asking.granted().await;
    assert_eq!(guard.lost().await, Loss::Preempted);
    next.release().await.unwrap();
}

/// Waits for a pending transfer request and returns it.
async fn pending_request(world: &World, admin: &HelixAdmin) -> TransferRequest {
    let mut found = Vec::new();
    eventually("a decision is pending", async || {
        found = admin.requests(&world.lock()).await.unwrap();
        !found.is_empty()
    })
    .await;
    found.remove(0)
}

/// H-76: an operator finds the request from another session with all its facts and decides it with a name and a reason; the
/// decision can be read later.
async fn an_operator_elsewhere_approves(world: &World) {
    let guard = acquire_without_cleanup(world, "a").await;
    let admin = HelixAdmin::new(&world.keeper().await);
    let b = lock(world, &world.keeper().await, "b").priority(4).message("urgent").ask_operators(LONG);
    let asking = ask(&b);
    let request = pending_request(world, &admin).await;
    assert_eq!((request.facts.owner.as_str(), request.facts.owner_message.as_deref()), ("a", Some("index")));
    assert_eq!((request.facts.requestor.as_str(), request.facts.requestor_message.as_deref()), ("b", Some("urgent")));
    assert_eq!((request.facts.owner_priority, request.facts.requestor_priority), (1, 4));
    assert!(request.facts.elapsed_ms >= request.facts.allotted_ms && request.facts.allotted_ms == 200);
    assert!(request.until > request.since);
    assert_eq!(misused(&admin.decide(&request, approved(" ")).await), Some("reason"));
    assert!(asking.waits() && guard.is_held());
    let decision = admin.decide(&request, approved("its host crashed")).await.unwrap();
    assert!(decision.approved && decision.reason == "its host crashed");
    assert_eq!(decision.on_behalf_of.as_deref(), Some("shift lead"));
    let next = asking.granted().await;
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(admin.requests(&world.lock()).await.unwrap(), []);
    assert_eq!(admin.decisions(&world.lock()).await.unwrap(), [decision]);
    let [decided] = &b.decisions()[..] else { panic!("one decision") };
    assert_eq!((&decided.decision, &decided.alert.request), (&approved("its host crashed"), &Some(request.id)));
    next.release().await.unwrap();
}

/// H-76: the owner keeps the lock.
async fn an_operator_elsewhere_rejects_and_the_first_answer_counts(world: &World) {
    let guard = acquire_without_cleanup(world, "a").await;
    let (one, other) = (HelixAdmin::new(&world.keeper().await), HelixAdmin::new(&world.keeper().await));
    let b = lock(world, &world.keeper().await, "b").priority(4).ask_operators(LONG);
    let asking = ask(&b);
    let request = pending_request(world, &one).await;
    let (no, yes) =
        tokio::join!(one.decide(&request, rejected("let it finish")), other.decide(&request, approved("now")));
    let outcome = asking.outcome().await;
    match (no, yes) {
        (Ok(_), Err(LeaseError::Decided { approved: false, .. } | LeaseError::NoSuchRequest { .. })) => {
            assert!(matches!(outcome, Err(AcquireLeaseError::CleanupUnfinished { .. })), "{outcome:?}");
            assert!(guard.is_held());
        }
        (Err(LeaseError::Decided { approved: true, .. } | LeaseError::NoSuchRequest { .. }), Ok(_)) => {
            outcome.map(drop).unwrap()
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(one.decisions(&world.lock()).await.unwrap().len(), 1);
    drop(guard);
    eventually("the lock is free", async || stored(world).await.is_free()).await;
    let guard = acquire_without_cleanup(world, "a").await;
    let asking = ask(&b);
    let request = pending_request(world, &one).await;
    let decision = one.decide(&request, rejected("let it finish")).await.unwrap();
    assert_eq!(decision.on_behalf_of, None);
    assert!(matches!(asking.outcome().await, Err(AcquireLeaseError::CleanupUnfinished { .. })));
    assert_eq!((info(world).await.owner.as_str(), stored(world).await.request), ("a", None));
    guard.release().await.unwrap();
}

/// H-76: without an answer in time the request is rejected, the audit has that, and nothing of the request is left.
async fn an_operators_late_decision_is_refused(world: &World) {
    let guard = acquire_without_cleanup(world, "a").await;
    let admin = HelixAdmin::new(&world.keeper().await);
    let b = lock(world, &world.keeper().await, "b").priority(4).ask_operators(Duration::from_secs(3));
    let asking = ask(&b);
    let request = pending_request(world, &admin).await;
    assert!(matches!(asking.outcome().await, Err(AcquireLeaseError::CleanupUnfinished { .. })));
    let late = admin.decide(&request, approved("late")).await;
    assert!(
        matches!(&late, Err(LeaseError::Decided { approved: false, reason, .. }) if reason == "no answer in time"),
        "{late:?}"
    );
    assert_eq!(admin.decisions(&world.lock()).await.unwrap().len(), 1);
    assert_eq!(admin.requests("/").await.unwrap().iter().filter(|left| left.id == request.id).count(), 0);
    assert!(matches!(&b.decisions()[0].decision, Decision::Reject { by, .. } if by == "nobody"));
    // The same if the requestor drops its call.
    let asking = ask(&b.clone().ask_operators(LONG));
    pending_request(world, &admin).await;
    asking.abort();
    eventually("the request is removed", async || admin.requests(&world.lock()).await.unwrap().is_empty()).await;
    assert_eq!(admin.decisions(&world.lock()).await.unwrap().len(), 1, "a withdrawn request needs no decision");
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// H-78: the requestor gets the plain error, and no request or decision is recorded.
async fn without_an_approver_no_decision_is_requested(world: &World) {
    let guard = acquire_without_cleanup(world, "a").await;
    let b = lock(world, &world.keeper().await, "b").priority(4);
    match b.acquire().await {
        Err(AcquireLeaseError::CleanupUnfinished { owner, message, priority, elapsed, allotted, .. }) => {
            assert_eq!((owner.as_str(), message.as_deref(), priority), ("a", Some("index"), 1));
            assert!(elapsed >= allotted && allotted == SHORT);
        }
        other => panic!("{other:?}"),
    }
    assert!(guard.is_held());
    assert_eq!((stored(world).await.request, b.decisions()), (None, vec![]));
    let admin = HelixAdmin::new(&world.keeper().await);
    assert_eq!(admin.requests(&world.lock()).await.unwrap(), []);
    assert_eq!(admin.decisions(&world.lock()).await.unwrap(), []);
    guard.release().await.unwrap();
}

/// H-77: the audit has the rule's name; where no rule matches, the approver is asked.
async fn a_rule_decides_without_asking(world: &World) {
    let rule = TransferRule::new("batch yields", "batch-*", "b");
    let b = lock(world, &world.keeper().await, "b").priority(4).transfer_rule(rule);
    let guard = acquire_without_cleanup(world, "batch-7").await;
    b.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    let decided = b.decisions();
    assert!(matches!(&decided[0].decision, Decision::Approve { by, .. } if by == "batch yields"));
    assert!(decided[0].by_rule);
    let audited = HelixAdmin::new(&world.keeper().await).decisions(&world.lock()).await.unwrap();
    let [audited] = &audited[..] else { panic!("{audited:?}") };
    assert_eq!((audited.by_rule, audited.on_behalf_of.as_deref()), (true, Some("batch yields")));
    assert_eq!((audited.approved, audited.facts.owner.as_str()), (true, "batch-7"));
    let guard = acquire_without_cleanup(world, "online").await;
    assert!(matches!(b.acquire().await, Err(AcquireLeaseError::CleanupUnfinished { .. })));
    let asked = b.clone().on_unfinished(PATIENCE, |_| async { approve() });
    asked.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Preempted);
    assert_eq!(asked.decisions().iter().filter(|decided| decided.by_rule).count(), 1);
}
