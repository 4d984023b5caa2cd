//! Locks broken by a person: the waiters and holders affected, the journal, and the nodes that a break spares.

use std::time::{Duration, SystemTime};

use lockkeeper::admin::Owner;
use lockkeeper::error::{AcquireError, AdminError, VerifyError};
use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_testkit::proxy::{Cut, OpCode};
use zookeeper_client as zk;

use crate::support::{
    HOLDER_MARKER, STEADY, Waiter, World, eventually, misused, name, on_every_server, on_the_embedded_server,
};

on_every_server!(
    case_56_a_broken_lock_goes_to_the_next_waiter_and_the_journal_keeps_who_and_why,
    an_evicted_waiter_fails_and_the_others_keep_their_positions,
    a_break_without_a_reason_or_a_holder_changes_nothing,
    a_break_removes_only_a_named_contender_or_the_only_holder,
    a_break_spares_a_newer_holder,
    a_break_spares_the_successor_of_a_holder_that_releases_meanwhile,
    a_break_removes_the_holder_that_writes_to_its_node_meanwhile,
    a_break_spares_the_holder_that_the_one_before_makes_way_for_meanwhile,
    a_break_spares_a_node_of_the_same_name_that_was_written_to,
    a_break_whose_reply_is_lost_is_carried_out_once,
    a_break_grants_the_lock_to_the_next_waiter_of_every_kind,
    a_hold_that_is_broken_at_once_learns_of_it_by_verify_and_by_itself,
);

on_the_embedded_server!(the_oldest_journal_records_are_deleted_above_the_limit);

/// The parent of the journal's records.
const JOURNAL: &str = "/lockkeeper/audit";

/// Connects a handle whose owner has a name.
async fn operator(world: &World) -> (Lockkeeper, Owner) {
    let owner = Owner { user: "op".into(), host: "desk".into(), pid: 7, program: None };
    let keeper = Lockkeeper::builder().session_timeout(STEADY).owner(owner.clone()).connect(&world.servers()).await;
    let keeper = keeper.unwrap();
    world.keep_open(&keeper);
    (keeper, owner)
}

/// The journal exists after this, so the operator's next transaction is a break.
async fn break_once(world: &World, operator: &Lockkeeper) {
    let guard = world.mutex(operator).acquire().await.unwrap();
    operator.admin().break_lock(&world.lock(), "the first").await.unwrap();
    guard.lost().await;
}

/// N-22, T-10: the holder loses its guard, the next waiter gets the lock with a greater token, and the journal shows later who
/// broke it.
async fn case_56_a_broken_lock_goes_to_the_next_waiter_and_the_journal_keeps_who_and_why(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let (operator, by) = operator(world).await;
    let guard = world.mutex(&one).acquire().message("nightly index").await.unwrap();
    let next = world.enqueue_mutex(&other).await;
    let seen = operator.admin().show(&world.lock()).await.unwrap().holders.remove(0);
    let before = SystemTime::now();
    let broken = operator.admin().break_lock(&world.lock(), "  its host burns\n").await.unwrap();
    assert_eq!(guard.lost().await, Loss::Removed);
    let next = next.granted().await;
    assert!(next.token() > guard.token());

    assert_eq!((broken.path.as_str(), broken.held, broken.reason.as_str()), (&*world.lock(), true, "its host burns"));
    assert_eq!((&broken.node, broken.token, broken.session), (&seen.node, Some(guard.token()), seen.session));
    assert_eq!((broken.owner.as_ref(), broken.message.as_deref()), (Some(one.owner()), Some("nightly index")));
    assert_eq!((&broken.by, &broken.described), (&by, &one.owner().to_string()));
    // The server runs on this machine, so both use the same clock.
    let at = broken.at.duration_since(before).unwrap_or_default();
    assert!(broken.at + Duration::from_secs(1) > before && at < Duration::from_secs(60), "{at:?}");

    // The record is found from the lock's path and from each path above it, but not from a neighbour's.
    let admin = other.admin();
    for root in [world.lock(), world.path("lock").rsplit_once('/').unwrap().0.to_owned(), "/".to_owned()] {
        let found = admin.broken(&root).await.unwrap();
        assert_eq!(found.iter().filter(|found| found.path == world.lock()).collect::<Vec<_>>(), [&broken], "{root}");
    }
    assert_eq!(admin.broken(&world.path("loc")).await.unwrap(), []);
    // The journal itself is not a lock.
    assert!(admin.list("/").await.unwrap().iter().all(|lock| !lock.path.starts_with("/lockkeeper")));
    next.release().await.unwrap();
}

/// The evicted call fails; the holder keeps the lock, and the waiter behind keeps waiting.
async fn an_evicted_waiter_fails_and_the_others_keep_their_positions(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.mutex(&one).acquire().await.unwrap();
    let waiter = world.enqueue_mutex(&other).await;
    let last = world.enqueue_mutex(&one).await;
    let seen = one.admin().show(&world.lock()).await.unwrap().waiters.remove(0);
    let broken = one.admin().evict(&world.lock(), &seen, "in the way").await.unwrap();
    assert_eq!((broken.held, &broken.node), (false, &seen.node));
    match waiter.outcome().await {
        Err(error @ AcquireError::Evicted { .. }) => {
            assert!(error.to_string().contains(&broken.by.to_string()), "{error}");
            assert!(error.to_string().ends_with(&format!(": {}", broken.reason)), "{error}");
            let AcquireError::Evicted { path, node, by } = error else { unreachable!("matched above") };
            assert_eq!((path, node, by.as_deref()), (world.lock(), seen.node.clone(), Some(&broken)));
        }
        other => panic!("{other:?}"),
    }
    assert!(guard.is_held() && last.waits());
    match one.admin().evict(&world.lock(), &seen, "once more").await {
        Err(AdminError::NotContending { node, .. }) => assert_eq!(node, seen.node),
        other => panic!("{other:?}"),
    }
    // The journal has nothing about a node that another client deleted.
    let unnamed = world.enqueue_mutex(&other).await;
    let node = one.admin().show(&world.lock()).await.unwrap().waiters.pop().unwrap().node;
    world.remove(&world.node(&node)).await;
    match unnamed.outcome().await {
        Err(AcquireError::Evicted { node: gone, by, .. }) => assert_eq!((gone, by), (node, None)),
        other => panic!("{other:?}"),
    }
    guard.release().await.unwrap();
    last.granted().await.release().await.unwrap();
}

/// A break without a reason sends no request, and a break that did not happen is not recorded.
async fn a_break_without_a_reason_or_a_holder_changes_nothing(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let admin = keeper.admin();
    assert!(matches!(admin.break_lock(&world.lock(), "why not").await, Err(AdminError::NoSuchLock { .. })));
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let seen = admin.show(&world.lock()).await.unwrap().holders.remove(0);
    let before = proxy.counts();
    for reason in ["", " \t\n"] {
        assert_eq!(misused(&admin.break_lock(&world.lock(), reason).await), Some("reason"));
        assert_eq!(misused(&admin.evict(&world.lock(), &seen, reason).await), Some("reason"));
    }
    assert_eq!(misused(&admin.break_lock("nightly", "why not").await), Some("path"));
    let sent = proxy.counts().since(&before).requested;
    assert_eq!(sent.of(OpCode::Multi) + sent.of(OpCode::Delete), 0, "{sent:?}");
    assert!(guard.is_held());
    guard.release().await.unwrap();
    match admin.break_lock(&world.lock(), "why not").await {
        Err(AdminError::NobodyHolds { path }) => assert_eq!(path, world.lock()),
        other => panic!("{other:?}"),
    }
    assert_eq!(admin.broken(&world.lock()).await.unwrap(), []);
}

/// A foreign child is never deleted, and one of several holders only if it was named.
async fn a_break_removes_only_a_named_contender_or_the_only_holder(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let config = format!("{}/config", world.lock());
    world.make(&config).await;
    let mut seen = keeper.admin().show(&world.lock()).await.unwrap().holders.remove(0);
    seen.node = "config".to_owned();
    match keeper.admin().evict(&world.lock(), &seen, "wrong node").await {
        Err(AdminError::NotContending { node, .. }) => assert_eq!(node, "config"),
        other => panic!("{other:?}"),
    }
    assert!(world.exists(&config).await && guard.is_held());
    guard.release().await.unwrap();
    world.remove(&config).await;

    let shared = world.path("shared");
    world.make(&shared).await;
    let readers = ["read-0000000000", "read-0000000001"];
    for reader in readers {
        world.make_foreign(&format!("{shared}/{reader}")).await;
    }
    match keeper.admin().break_lock(&shared, "which one?").await {
        Err(AdminError::SeveralHold { holders, .. }) => assert_eq!(holders.len(), 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.children(&shared).await, readers);
    let second = keeper.admin().show(&shared).await.unwrap().holders.remove(1);
    assert!(keeper.admin().evict(&shared, &second, "this one").await.unwrap().held);
    assert_eq!(world.children(&shared).await, readers[..1]);
    keeper.admin().break_lock(&shared, "the only one now").await.unwrap();
    assert_eq!(world.children(&shared).await, [""; 0]);
}

/// Between a person's look and the break, another client got the lock. With the recipe's names its node even has the same name.
async fn a_break_spares_a_newer_holder(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.mutex(&one).acquire().await.unwrap();
    let seen = other.admin().show(&world.lock()).await.unwrap().holders.remove(0);
    guard.release().await.unwrap();
    world.remove(&world.lock()).await;
    let guard = world.mutex(&other).acquire().await.unwrap();
    match other.admin().evict(&world.lock(), &seen, "it hangs").await {
        Err(AdminError::NotContending { node, .. }) => assert_eq!(node, seen.node),
        other => panic!("{other:?}"),
    }
    assert!(guard.is_held() && world.exists(&guard.node()).await);
    guard.release().await.unwrap();
}

/// Between the read and the transaction, the holder releases the lock and the next waiter gets it. The transaction fails, or it never
/// arrives.
async fn a_break_spares_the_successor_of_a_holder_that_releases_meanwhile(world: &World) {
    let proxy = world.proxy().await;
    let operator = world.keeper_through(&proxy, STEADY).await;
    let (one, other) = (world.keeper().await, world.keeper().await);
    break_once(world, &operator).await;
    for arrives in [true, false] {
        let guard = world.mutex(&one).acquire().await.unwrap();
        let next = world.enqueue_mutex(&other).await;
        let transaction = proxy.on(OpCode::Multi).hold_request();
        let (admin, lock) = (operator.admin(), world.lock());
        let breaking = crate::support::spawn(async move { admin.break_lock(&lock, "it hangs").await });
        transaction.caught().await;
        let node = guard.node();
        guard.release().await.unwrap();
        let next = next.granted().await;
        if !arrives {
            proxy.cut(Cut::Fin);
        }
        transaction.release();
        match breaking.await.unwrap() {
            Err(AdminError::NotContending { path, node: gone }) => {
                assert_eq!((path, world.node(&gone)), (world.lock(), node))
            }
            other => panic!("{other:?}"),
        }
        assert!(next.is_held() && world.exists(&next.node()).await);
        assert_eq!(operator.admin().broken(&world.lock()).await.unwrap().len(), 1);
        next.release().await.unwrap();
    }
}

/// Between the read and the transaction, the holder writes to its node.
async fn a_break_removes_the_holder_that_writes_to_its_node_meanwhile(world: &World) {
    let proxy = world.proxy().await;
    let operator = world.keeper_through(&proxy, STEADY).await;
    let keeper = world.keeper().await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let transaction = proxy.on(OpCode::Multi).hold_request();
    let (admin, lock) = (operator.admin(), world.lock());
    let breaking = crate::support::spawn(async move { admin.break_lock(&lock, "it hangs").await });
    transaction.caught().await;
    let (data, _) = world.observer.get_data(&guard.node()).await.unwrap();
    world.observer.set_data(&guard.node(), &data, None).await.unwrap();
    transaction.release();
    assert_eq!(world.node(&breaking.await.unwrap().unwrap().node), guard.node());
    assert_eq!(guard.lost().await, Loss::Removed);
}

/// Between the looks or right before the transaction, the holder makes way for another class and keeps its node. The holder marker is
/// that of another hold then, of another session or of the same one.
async fn a_break_spares_the_holder_that_the_one_before_makes_way_for_meanwhile(world: &World) {
    let proxy = world.proxy().await;
    let operator = world.keeper_through(&proxy, STEADY).await;
    let (one, other) = (world.keeper().await, world.keeper().await);
    break_once(world, &operator).await;
    let path = world.path("classes");
    for (next, is_read) in [(&one, true), (&other, true), (&one, false), (&other, false)] {
        let guard = one.priority_lock(&path).background().acquire().min_hold(Duration::ZERO).await.unwrap();
        let held = match is_read {
            // The first read of the holder marker shows who holds.
            true => proxy.on(OpCode::GetData).path(HOLDER_MARKER).nth(2).hold_request(),
            false => proxy.on(OpCode::Multi).path(JOURNAL).hold_request(),
        };
        let (admin, lock, node) = (operator.admin(), path.clone(), name(&guard));
        let breaking = crate::support::spawn(async move { admin.break_lock(&lock, "it hangs").await });
        held.caught().await;
        let first = Waiter::spawn(next.priority_lock(&path).foreground().acquire());
        guard.yield_requested().await;
        let yields = Waiter::spawn(guard.yield_lock());
        let first = first.granted().await;
        held.release();
        assert_eq!(breaking.await.unwrap().unwrap().node, node);
        first.verify().await.unwrap();
        first.release().await.unwrap();
        assert!(matches!(yields.outcome().await, Err(AcquireError::Evicted { .. })));
    }
}

/// Names without an id are used again once the parent was created again.
async fn a_break_spares_a_node_of_the_same_name_that_was_written_to(world: &World) {
    let proxy = world.proxy().await;
    let operator = world.keeper_through(&proxy, STEADY).await;
    break_once(world, &operator).await;
    let (path, node) = (world.path("recipe"), format!("{}/lock-0000000000", world.path("recipe")));
    world.make(&path).await;
    world.make_foreign(&node).await;
    let transaction = proxy.on(OpCode::Multi).path(JOURNAL).hold_request();
    let (admin, lock) = (operator.admin(), path.clone());
    let breaking = crate::support::spawn(async move { admin.break_lock(&lock, "it hangs").await });
    transaction.caught().await;
    world.remove(&node).await;
    world.make_foreign(&node).await;
    world.observer.set_data(&node, b"another holder", None).await.unwrap();
    transaction.release();
    let broken = breaking.await.unwrap();
    assert!(matches!(broken, Err(AdminError::NotContending { .. })), "{broken:?}");
    assert!(world.exists(&node).await);
    world.remove(&node).await;
}

/// The connection breaks before or after the transaction: there is one record and one removal, and the next holder keeps the
/// lock.
async fn a_break_whose_reply_is_lost_is_carried_out_once(world: &World) {
    let proxy = world.proxy().await;
    let operator = world.keeper_through(&proxy, STEADY).await;
    let (one, other) = (world.keeper().await, world.keeper().await);
    break_once(world, &operator).await;
    for (times, effect) in [(2, true), (3, false)] {
        let guard = world.mutex(&one).acquire().await.unwrap();
        let next = world.enqueue_mutex(&other).await;
        let breaks = proxy.on(OpCode::Multi);
        let lost = if effect { breaks.cut_before_reply() } else { breaks.cut_before_request() };
        let broken = operator.admin().break_lock(&world.lock(), "lost and found").await.unwrap();
        lost.fired().await;
        assert_eq!(broken.token, Some(guard.token()));
        assert_eq!(guard.lost().await, Loss::Removed);
        let next = next.granted().await;
        assert_eq!(operator.admin().broken(&world.lock()).await.unwrap().len(), times);
        assert!(next.is_held() && world.exists(&next.node()).await);
        next.release().await.unwrap();
    }
}

/// A broken holder's marker is deleted with its node, a broken permit is free again, and a writer gets the lock when the last
/// reader is broken. A broken writer is not mistaken for a writer that became a reader.
async fn a_break_grants_the_lock_to_the_next_waiter_of_every_kind(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let admin = world.keeper().await.admin();

    let path = world.path("classes");
    let guard = one.priority_lock(&path).background().acquire().await.unwrap();
    let waiting = Waiter::spawn(other.priority_lock(&path).foreground().acquire());
    eventually("two contenders and the holder marker", async || world.children(&path).await.len() == 3).await;
    let broken = admin.break_lock(&path, "in the way").await.unwrap();
    assert_eq!(broken.token, Some(guard.token()));
    let next = waiting.granted().await;
    assert!(guard.token() < next.token());
    assert_eq!(guard.lost().await, Loss::Removed);
    next.release().await.unwrap();
    assert_eq!(world.children(&path).await, [""; 0]);

    // A foreign holder, which keeps its marker whatever happens to its node.
    let options = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
    for node in ["A-0000000007", "privateLock"] {
        world.observer.create(&format!("{path}/{node}"), b"", &options).await.unwrap();
    }
    let waiting = Waiter::spawn(other.priority_lock(&path).foreground().acquire());
    eventually("two contenders and the holder marker", async || world.children(&path).await.len() == 3).await;
    admin.break_lock(&path, "in the way").await.unwrap();
    waiting.granted().await.release().await.unwrap();
    assert_eq!(world.children(&path).await, [""; 0]);

    let path = world.path("permits");
    let permits = [one.semaphore(&path, 2).acquire().await.unwrap(), one.semaphore(&path, 2).acquire().await.unwrap()];
    let waiting = Waiter::spawn(other.semaphore(&path, 2).acquire());
    eventually("three contenders", async || world.children(&path).await.len() == 3).await;
    let lock = admin.show(&path).await.unwrap();
    assert_eq!((lock.holders.len(), lock.waiters.len()), (2, 1));
    assert!(matches!(admin.break_lock(&path, "which?").await, Err(AdminError::SeveralHold { .. })));
    admin.evict(&path, &lock.holders[1], "in the way").await.unwrap();
    let next = waiting.granted().await;
    assert_eq!(permits[1].lost().await, Loss::Removed);
    assert!(permits[0].is_held());
    next.release().await.unwrap();
    for permit in permits {
        _ = permit.release().await;
    }

    let path = world.path("shared");
    let reader = one.rwlock(&path).read().acquire().await.unwrap();
    let waiting = Waiter::spawn(other.rwlock(&path).write().acquire());
    eventually("two contenders", async || world.children(&path).await.len() == 2).await;
    admin.break_lock(&path, "in the way").await.unwrap();
    let writer = waiting.granted().await;
    assert_eq!(reader.lost().await, Loss::Removed);
    let waiting = Waiter::spawn(one.rwlock(&path).read().acquire());
    eventually("two contenders", async || world.children(&path).await.len() == 2).await;
    admin.break_lock(&path, "in the way").await.unwrap();
    waiting.granted().await.release().await.unwrap();
    assert_eq!(writer.lost().await, Loss::Removed);
}

/// Above 256 records the oldest are deleted, several at a time; the newest record stays.
async fn the_oldest_journal_records_are_deleted_above_the_limit(world: &World) {
    let keeper = world.keeper().await;
    let admin = keeper.admin();
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    admin.break_lock(&world.lock(), "the first").await.unwrap();
    guard.lost().await;
    let first = world.children(JOURNAL).await.remove(0);
    let (record, _) = world.observer.get_data(&format!("{JOURNAL}/{first}")).await.unwrap();
    let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let copies = (1..256).map(|copy| format!("{JOURNAL}/break-copy-{copy:03}"));
    futures_util::future::join_all(copies.map(|copy| {
        let (observer, record, options) = (&world.observer, &record, &options);
        async move { observer.create(&copy, record, options).await.unwrap() }
    }))
    .await;
    assert_eq!(admin.broken("/").await.unwrap().len(), 256);

    let guard = world.mutex(&keeper).acquire().await.unwrap();
    admin.break_lock(&world.lock(), "the last").await.unwrap();
    guard.lost().await;
    let left = admin.broken("/").await.unwrap();
    assert_eq!((left.len(), left.last().unwrap().reason.as_str()), (224, "the last"));
    assert!(!world.exists(&format!("{JOURNAL}/{first}")).await);
}

/// A young hold does not watch its node, so the next holder may be granted the lock before the old guard knows. It asks the servers,
/// or watches once its request is 100 ms old.
async fn a_hold_that_is_broken_at_once_learns_of_it_by_verify_and_by_itself(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    for asks in [true, false] {
        let guard = world.mutex(&one).acquire().await.unwrap();
        other.admin().break_lock(&world.lock(), "for the test").await.unwrap();
        let next = world.mutex(&other).try_acquire().await.unwrap();
        assert!(next.token() > guard.token());
        if asks {
            assert_eq!(guard.verify().await, Err(VerifyError::Lost(Loss::Removed)));
        }
        assert_eq!(guard.lost().await, Loss::Removed);
        assert!(!guard.is_held());
        next.release().await.unwrap();
    }
}
