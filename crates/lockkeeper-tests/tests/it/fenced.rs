//! Writes bound to a hold: carried out only while the ensemble has the hold's node, and never afterwards.

use std::time::Duration;

use lockkeeper::Loss;
use lockkeeper::error::WriteError;
use lockkeeper::guard::FencedWritten;
use lockkeeper_helix::HelixLock;
use lockkeeper_testkit::proxy::{Cut, OpCode, Proxy};

use crate::helix::{LONG, ask, lock, on_every_record_server, requested_by};
use crate::support::{
    DELETES, HOLDER_MARKER, STEADY, World, eventually, for_every_kind, on_every_server, watched, watches_set,
};

for_every_kind!(
    a_fenced_write_is_one_transaction_while_the_lock_is_held,
    a_fenced_write_that_arrives_after_the_loss_changes_nothing,
    a_fenced_write_under_way_when_the_node_is_deleted_reports_its_result,
    case_31_a_fenced_write_after_expiry_fails_and_is_never_sent_again,
);

on_every_server!(
    a_fenced_write_whose_reply_is_lost_is_reported_as_unknown_and_not_sent_again,
    a_fenced_write_waits_for_a_connection_that_comes_back,
    a_fenced_write_with_a_mistake_changes_nothing,
    several_locks_fence_one_write,
    a_dropped_fenced_write_changes_nothing_after_the_release,
    a_dropped_fenced_write_changes_nothing_while_the_next_task_holds,
    a_dropped_fenced_write_changes_nothing_in_the_next_use_of_a_kept_lock,
    behind_a_fenced_write_of_unknown_result_the_next_task_waits_for_the_delete,
    behind_a_fenced_write_of_unknown_result_a_kept_lock_is_acquired_again,
);

on_every_record_server!(
    a_leased_lock_fences_by_its_record,
    a_leased_lock_that_was_preempted_by_force_writes_nothing,
    a_leased_lock_whose_record_was_recreated_writes_nothing,
);

/// Creates a node for data and returns its path.
async fn data(world: &World, name: &str) -> String {
    let path = world.path(name);
    world.make(&path).await;
    path
}

/// Returns a node's data and version.
async fn read(world: &World, path: &str) -> (String, i32) {
    let (data, stat) = world.observer.get_data(path).await.unwrap();
    (String::from_utf8(data).unwrap(), stat.version)
}

async fn a_fenced_write_is_one_transaction_while_the_lock_is_held(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let (set, gone, made) = (data(world, "set").await, data(world, "gone").await, world.path("made"));
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let before = proxy.counts();
    let written = guard
        .fenced_write()
        .set(&set, "one")
        .create(&made, "two")
        .delete(&gone)
        .set_if(&set, "three", 1)
        .await
        .unwrap();
    assert_eq!((written.version(&set), written.version(&made), written.version(&gone)), (Some(2), Some(0), None));
    assert_eq!(proxy.counts().since(&before).requested.of(OpCode::Multi), 1);
    assert_eq!(read(world, &set).await, ("three".to_owned(), 2));
    assert_eq!(read(world, &made).await, ("two".to_owned(), 0));
    assert!(!world.exists(&gone).await);
    guard.fenced_write().check(&set, 2).delete_if(&made, 0).await.unwrap();
    assert!(guard.fenced_write().await.is_ok(), "a write without operations only checks the hold");
    guard.release().await.unwrap();
}

/// The holder still trusts its hold, but the ensemble has deleted its node, or its holder marker where the kind has one.
async fn a_fenced_write_that_arrives_after_the_loss_changes_nothing(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let path = data(world, "data").await;
    for mark in [false, true] {
        if mark && !world.kind.has_holder_marker() {
            continue;
        }
        let guard = world.subject(&keeper).acquire().await.unwrap();
        let write = proxy.on(OpCode::Multi).hold_request();
        let writing = async { guard.fenced_write().set(&path, "stale").await };
        let broken = async {
            write.caught().await;
            assert!(guard.is_held());
            let node = if mark { world.node(HOLDER_MARKER) } else { guard.node() };
            // The holder learns of the delete only from its own write.
            proxy.on_watch_event().path(node.as_str()).replace_reply("");
            world.remove(&node).await;
            write.release();
        };
        let (wrote, ()) = tokio::join!(writing, broken);
        assert!(matches!(wrote, Err(WriteError::Lost { loss: Loss::Removed, .. })), "{wrote:?}");
        assert_eq!(read(world, &path).await, (String::new(), 0));
        assert_eq!(guard.loss(), Some(Loss::Removed), "the loss in the reply is known immediately");
        drop(guard);
        world.queued(0).await;
    }
}

/// The watch event about the node comes before the reply. The call waits for the reply, because only the ensemble knows whether
/// the write was carried out.
async fn a_fenced_write_under_way_when_the_node_is_deleted_reports_its_result(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let path = data(world, "data").await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let node = guard.node();
    watched(&proxy, &node).await;
    let (events, reply, before) = (proxy.hold_watch_events(), proxy.on(OpCode::Multi).hold_reply(), proxy.counts());
    world.remove(&node).await;
    let lost = async {
        proxy.wait_until(|counts| counts.since(&before).requested.of(OpCode::Multi) == 1).await;
        events.release();
        reply.caught().await;
        assert_eq!(guard.lost().await, Loss::Removed);
        reply.release();
    };
    let writing = async { guard.fenced_write().set(&path, "stale").await };
    let (wrote, ()) = tokio::join!(writing, lost);
    assert!(matches!(wrote, Err(WriteError::Lost { loss: Loss::Removed, .. })), "{wrote:?}");
    assert_eq!(read(world, &path).await, (String::new(), 0));
}

/// One write is requested after the session has ended, one is under way when it ends. The same handle has a new session then,
/// and neither write is sent in it.
async fn case_31_a_fenced_write_after_expiry_fails_and_is_never_sent_again(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(2)).await;
    let path = data(world, "data").await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let before = proxy.counts();
    let lost = proxy.on(OpCode::Multi).hold_request();
    let writing = async { guard.fenced_write().set(&path, "under way").await };
    let cut_off = async {
        lost.caught().await;
        proxy.black_hole();
        drop(lost);
        guard.lost().await;
    };
    let (wrote, ()) = tokio::join!(writing, cut_off);
    assert!(matches!(wrote, Err(WriteError::Unknown { .. })), "{wrote:?}");
    world.queued(0).await;
    proxy.heal();
    let late = guard.fenced_write().set(&path, "late").await;
    assert!(matches!(late, Err(WriteError::Lost { .. })), "{late:?}");
    let next = world.subject(&keeper).acquire_in_new_session().await;
    let late = guard.fenced_write().set(&path, "later").await;
    assert!(matches!(late, Err(WriteError::Lost { .. })), "{late:?}");
    assert_eq!(read(world, &path).await, (String::new(), 0));
    let marks = u64::from(world.kind.has_holder_marker());
    assert_eq!(proxy.counts().since(&before).requested.of(OpCode::Multi), 1 + marks, "a write was sent again");
    next.fenced_write().set(&path, "new").await.unwrap();
    assert_eq!(read(world, &path).await, ("new".to_owned(), 1));
    next.release().await.unwrap();
}

/// The write was carried out once or not at all. The hold remains.
async fn a_fenced_write_whose_reply_is_lost_is_reported_as_unknown_and_not_sent_again(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let path = data(world, "data").await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let mut version = 0;
    for effect in [false, true] {
        let before = proxy.counts();
        let multi = proxy.on(OpCode::Multi);
        let cut = if effect { multi.cut_before_reply() } else { multi.cut_before_request() };
        let wrote = guard.fenced_write().set(&path, "once").await;
        assert!(matches!(wrote, Err(WriteError::Unknown { .. })), "{wrote:?}");
        cut.fired().await;
        assert!(guard.is_held());
        version += i32::from(effect);
        assert_eq!(read(world, &path).await.1, version);
        // The next write succeeds, so the connection is back, and the lost write did not arrive before it.
        let written = guard.fenced_write().set(&path, "again").await.unwrap();
        version += 1;
        assert_eq!(written.version(&path), Some(version));
        assert_eq!(proxy.counts().since(&before).requested.of(OpCode::Multi), 2);
    }
    guard.release().await.unwrap();
}

async fn a_fenced_write_waits_for_a_connection_that_comes_back(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let path = data(world, "data").await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let refused = proxy.counts().refused;
    proxy.refuse();
    proxy.cut(Cut::Reset);
    eventually("suspected", async || guard.state() == lockkeeper::guard::HoldState::Suspected).await;
    let writing = async { guard.fenced_write().set(&path, "patient").await };
    let back = async {
        proxy.wait_until(|counts| counts.refused > refused).await;
        proxy.heal();
    };
    let (wrote, ()) = tokio::join!(writing, back);
    assert_eq!(wrote.unwrap().version(&path), Some(1));
    guard.release().await.unwrap();
}

/// All operations or none, and the error names the node.
async fn a_fenced_write_with_a_mistake_changes_nothing(world: &World) {
    let keeper = world.keeper().await;
    let (path, nobody) = (data(world, "data").await, world.path("nobody"));
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let write = || guard.fenced_write().set(&path, "half");
    let no_node = Err(WriteError::NoNode { path: nobody.clone() });
    assert_eq!(write().set(&nobody, "").await, no_node);
    assert_eq!(write().delete(&nobody).await, no_node);
    assert_eq!(write().check(&nobody, 0).await, no_node);
    let below = format!("{nobody}/below");
    assert_eq!(write().create(&below, "").await, no_node);
    assert_eq!(write().create(&path, "").await, Err(WriteError::NodeExists { path: path.clone() }));
    let version = |expected| Err::<FencedWritten, _>(WriteError::BadVersion { path: path.clone(), expected });
    assert_eq!(write().check(&path, 7).await, version(7));
    assert_eq!(guard.fenced_write().set_if(&path, "", 7).await, version(7));
    assert_eq!(guard.fenced_write().delete_if(&path, 7).await, version(7));
    assert!(matches!(write().set("relative", "").await, Err(WriteError::Misuse(_))));
    let large = write().set(&path, vec![0; 2 << 20]).await;
    assert!(matches!(large, Err(WriteError::TooLarge { bytes: 2_097_152.., .. })), "{large:?}");
    // Its parent has children.
    assert!(matches!(write().delete(world.lock()).await, Err(WriteError::Refused { .. })));
    assert_eq!(read(world, &path).await, (String::new(), 0));
    assert!(guard.is_held());
    let largest = guard.fenced_write().set(&path, vec![b'x'; 1_000_000]).await.unwrap();
    assert_eq!(largest.version(&path), Some(1));
    guard.release().await.unwrap();
}

/// If one of the locks is lost, nothing is written, and the error says which.
async fn several_locks_fence_one_write(world: &World) {
    let keeper = world.keeper().await;
    let path = data(world, "data").await;
    let (a, b) = (world.path("a"), world.path("b"));
    let both = keeper.multi_lock([keeper.mutex(&a).acquire(), keeper.mutex(&b).acquire()]).await.unwrap();
    both.fenced_write().set(&path, "both").await.unwrap();
    world.remove(&both.holdings()[1].node()).await;
    match both.fenced_write().set(&path, "one").await {
        Err(WriteError::Lost { path, loss: Loss::Removed }) => assert_eq!(path, b),
        other => panic!("{other:?}"),
    }
    assert_eq!(read(world, &path).await, ("both".to_owned(), 1));
}

async fn a_dropped_fenced_write_changes_nothing_after_the_release(world: &World) {
    let keeper = world.keeper().await;
    let path = data(world, "data").await;
    for _ in 0..20 {
        let guard = world.mutex(&keeper).acquire().await.unwrap();
        drop(guard.fenced_write().set(&path, "dropped").into_future());
        guard.release().await.unwrap();
        let (_, version) = read(world, &path).await;
        world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
        assert_eq!(read(world, &path).await.1, version);
    }
}

/// A release passes the lock on without a round trip, but not while such a write is under way.
async fn a_dropped_fenced_write_changes_nothing_while_the_next_task_holds(world: &World) {
    let proxy = world.proxy().await;
    let (keeper, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let path = data(world, "data").await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    watches_set(&proxy, 1).await;
    let waiter = world.enqueue_mutex(&keeper).await;
    watches_set(&proxy, 2).await;
    let (write, token) = (proxy.on(OpCode::Multi).hold_request(), guard.token());
    drop(guard.fenced_write().set(&path, "of the first").into_future());
    write.caught().await;
    let mut released = std::pin::pin!(guard.release());
    assert!(futures_util::poll!(&mut released).is_pending());
    // Behind this, the library's thread has handled the release.
    other.mutex(world.path("other")).acquire().await.unwrap().release().await.unwrap();
    assert!(waiter.waits(), "granted while a write of the holder before was under way");
    write.release();
    let next = waiter.granted().await;
    assert!(next.token() > token);
    assert_eq!(read(world, &path).await, ("of the first".to_owned(), 1));
    released.await.unwrap();
    next.release().await.unwrap();
}

/// Waits until a kept lock has listed its queue: to acquire it, and to see who comes.
async fn can_be_kept(proxy: &Proxy) {
    proxy.wait_until(|counts| counts.delivered.of_any(&[OpCode::GetChildren, OpCode::GetChildren2]) >= 2).await;
}

async fn a_dropped_fenced_write_changes_nothing_in_the_next_use_of_a_kept_lock(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let path = data(world, "data").await;
    let lock = world.mutex(&keeper).keep();
    let guard = lock.acquire().await.unwrap();
    can_be_kept(&proxy).await;
    let (write, token) = (proxy.on(OpCode::Multi).hold_request(), guard.token());
    drop(guard.fenced_write().set(&path, "of the first use").into_future());
    write.caught().await;
    drop(guard);
    let mut next = lock.acquire().into_future();
    assert!(futures_util::poll!(&mut next).is_pending(), "used again while a write of the use before was under way");
    write.release();
    let next = next.await.unwrap();
    assert!(next.token() > token);
    assert_eq!(read(world, &path).await, ("of the first use".to_owned(), 1));
    next.release().await.unwrap();
    lock.release_kept().await.unwrap();
}

/// The write may still be on its way, and only the delete of the hold's node ends that.
async fn behind_a_fenced_write_of_unknown_result_the_next_task_waits_for_the_delete(world: &World) {
    let proxy = world.proxy().await;
    let (keeper, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let path = data(world, "data").await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    watches_set(&proxy, 1).await;
    let waiter = world.enqueue_mutex(&keeper).await;
    watches_set(&proxy, 2).await;
    let cut = proxy.on(OpCode::Multi).cut_before_request();
    let wrote = guard.fenced_write().set(&path, "of the first").await;
    assert!(matches!(wrote, Err(WriteError::Unknown { .. })) && cut.has_fired(), "{wrote:?}");
    // The connection is back.
    guard.verify().await.unwrap();
    let (delete, token) = (proxy.on_any(DELETES).path(guard.node()).hold_request(), guard.token());
    let mut released = std::pin::pin!(guard.release());
    assert!(futures_util::poll!(&mut released).is_pending());
    delete.caught().await;
    // Behind this, the library's thread has handled the release.
    other.mutex(world.path("other")).acquire().await.unwrap().release().await.unwrap();
    assert!(waiter.waits(), "granted while a write of the holder before may take effect");
    delete.release();
    let next = waiter.granted().await;
    assert!(next.token() > token);
    released.await.unwrap();
    next.release().await.unwrap();
}

async fn behind_a_fenced_write_of_unknown_result_a_kept_lock_is_acquired_again(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let path = data(world, "data").await;
    let lock = world.mutex(&keeper).keep();
    let guard = lock.acquire().await.unwrap();
    can_be_kept(&proxy).await;
    let (token, cut) = (guard.token(), proxy.on(OpCode::Multi).cut_before_request());
    let wrote = guard.fenced_write().set(&path, "of the first use").await;
    assert!(matches!(wrote, Err(WriteError::Unknown { .. })) && cut.has_fired(), "{wrote:?}");
    guard.verify().await.unwrap();
    drop(guard);
    let next = lock.acquire().await.unwrap();
    assert!(next.token() > token, "used again while a write of the use before may take effect");
    next.release().await.unwrap();
    lock.release_kept().await.unwrap();
}

/// The record fences after the owner's own writes of it, after a requestor's write, and after other clients used the parent
/// node.
async fn a_leased_lock_fences_by_its_record(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let path = data(world, "data").await;
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    assert_eq!(guard.fenced_write().set(&path, "1").await.unwrap().version(&path), Some(1));
    guard.renew().await.unwrap();
    assert_eq!(guard.fenced_write().set(&path, "2").await.unwrap().version(&path), Some(2));
    // This changes the parent node of both locks.
    HelixLock::new(&other, world.path("beside"), LONG).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(guard.fenced_write().set(&path, "3").await.unwrap().version(&path), Some(3));
    let asking = ask(&lock(world, &other, "b").priority(1).waiting(LONG));
    requested_by(world, "b").await;
    assert_eq!(guard.fenced_write().set(&path, "4").await.unwrap().version(&path), Some(4));
    guard.release().await.unwrap();
    asking.outcome().await.unwrap().release().await.unwrap();
}

async fn a_leased_lock_that_was_preempted_by_force_writes_nothing(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let path = data(world, "data").await;
    let guard = lock(world, &one, "a").cleanup(LONG).cleanup_by_guard().acquire().await.unwrap();
    guard.fenced_write().set(&path, "held").await.unwrap();
    let before = proxy.counts();
    let write = proxy.on(OpCode::Multi).hold_request();
    let writing = async { guard.fenced_write().set(&path, "stale").await };
    let taken = async {
        write.caught().await;
        let taken =
            lock(world, &other, "b").priority(1).waiting(Duration::ZERO).forceful(true).acquire().await.unwrap();
        write.release();
        taken
    };
    let (wrote, taken) = tokio::join!(writing, taken);
    // The holder learns of the preemption before the write is sent, meanwhile, or from the refusal.
    let nothing =
        matches!(wrote, Err(WriteError::Lost { .. } | WriteError::Unknown { .. } | WriteError::NotSent { .. }));
    assert!(nothing, "{wrote:?}");
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::Multi) > 0).await;
    assert_eq!(read(world, &path).await, ("held".to_owned(), 1));
    taken.fenced_write().set(&path, "taken").await.unwrap();
    taken.release().await.unwrap();
}

/// In a recreated node versions start at 0 again.
async fn a_leased_lock_whose_record_was_recreated_writes_nothing(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let path = data(world, "data").await;
    let guard = lock(world, &one, "a").acquire().await.unwrap();
    guard.fenced_write().await.unwrap();
    let before = proxy.counts();
    let write = proxy.on(OpCode::Multi).hold_request();
    let writing = async { guard.fenced_write().set(&path, "stale").await };
    let recreated = async {
        write.caught().await;
        // The same owner id acquires from elsewhere and releases, which deletes the node.
        lock(world, &other, "a").acquire().await.unwrap().release().await.unwrap();
        assert!(!world.exists(&world.lock()).await);
        let recreated = lock(world, &other, "b").acquire().await.unwrap();
        write.release();
        recreated
    };
    let (wrote, recreated) = tokio::join!(writing, recreated);
    assert!(matches!(wrote, Err(WriteError::Lost { .. } | WriteError::Unknown { .. })), "{wrote:?}");
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::Multi) > 0).await;
    assert_eq!(read(world, &path).await, (String::new(), 0));
    guard.lost().await;
    recreated.release().await.unwrap();
}
