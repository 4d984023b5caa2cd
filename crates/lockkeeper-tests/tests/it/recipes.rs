//! The recipes, request by request: what an exclusive contender sends, watches, and is woken by.

use std::future::IntoFuture;
use std::time::Duration;

use lockkeeper::error::{AcquireError, ConnectError, SessionError};
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_testkit::proxy::OpCode;
use tokio::time::Instant;
use zookeeper_client as zk;

use crate::support::{Kind, PATIENCE, STEADY, World, asked, for_kinds, watches_set};

for_kinds!(
    [native Native, recipe Recipe, numbered Numbered]
    a_request_is_an_ephemeral_numbered_node_of_its_lock,
    a_waiter_creates_its_node_lists_and_watches_its_predecessor,
    a_waiter_in_the_middle_can_leave_without_granting_the_lock,
    a_wake_up_without_cause_grants_nothing,
    changes_that_come_while_a_waiter_is_busy_are_not_missed,
    names_below_one_base_path_are_separate_locks,
    a_fresh_path_needs_no_setup,
    a_release_grants_the_lock_sooner_than_a_silent_end,
    service_errors_have_one_type_and_keep_their_cause,
);

/// T-01, N-01, N-10, D-07: the node is the lock's path, the node format's name and ten digits, and belongs to the session; a
/// later contender has a higher number.
async fn a_request_is_an_ephemeral_numbered_node_of_its_lock(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let name = guard.node().strip_prefix(&world.node("")).unwrap().to_owned();
    let (prefix, number) = name.split_at(name.len() - 10);
    assert!(number.bytes().all(|byte| byte.is_ascii_digit()), "{name}");
    match world.kind {
        Kind::Recipe => assert_eq!(name, "lock-0000000000"),
        Kind::Numbered => assert_eq!((prefix, name.as_str()), ("", "0000000000")),
        _ => assert!(prefix.starts_with("_c_") && prefix.ends_with("-lock-"), "{name}"),
    }
    let session = keeper.admin().show(&world.lock()).await.unwrap().holders[0].session;
    let stat = world.observer.check_stat(&guard.node()).await.unwrap().unwrap();
    assert_eq!(stat.ephemeral_owner, session.0);
    assert_ne!(session.0, 0);
    let number: u32 = number.parse().unwrap();
    guard.release().await.unwrap();
    let later = world.mutex(&keeper).acquire().await.unwrap().node();
    assert!(later[later.len() - 10..].parse::<u32>().unwrap() > number, "{later} after {name}");
}

/// The request of one look at the queue, with its path as [`asked`] has it. Beside the lock's path, it also lists the nodes below it.
fn look(world: &World) -> (OpCode, String) {
    let place = world.parent();
    let op = if place == world.lock() { OpCode::GetChildren2 } else { OpCode::MultiRead };
    (op, place.strip_prefix(&world.lock()).unwrap_or(&place).to_owned())
}

/// T-02, T-04, T-06, N-04: the create, the list, the watch on the predecessor, and the watch on its own node. No other child
/// wakes the waiter; the deletion of its predecessor does.
async fn a_waiter_creates_its_node_lists_and_watches_its_predecessor(world: &World) {
    let (others, proxy) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let first = world.mutex(&others).acquire().await.unwrap();
    let second = world.enqueue_mutex(&others).await;
    let since = proxy.records().len();
    let third = world.enqueue_mutex(&keeper).await;
    watches_set(&proxy, 2).await;
    let queue = world.queue().await;
    let asked = asked(world, &proxy, since);
    let create = &queue[2][..queue[2].len() - 10];
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert_eq!((OpCode::CREATES.contains(&asked[0].0), &asked[0].1), (true, &world.kind.node("", create)), "{asked:?}");
    assert_eq!(asked[1], look(world));
    let read = |name: &str| (OpCode::GetData, world.kind.node("", name));
    assert_eq!(asked[2..], [read(&queue[1]), read(&queue[2])]);

    // A child comes, a child goes, the holder releases: all of it concerns only the second contender.
    let before = proxy.counts();
    let foreign = world.node("config");
    world.make(&foreign).await;
    world.remove(&foreign).await;
    first.release().await.unwrap();
    let second = second.granted().await;
    // The reply to this query comes after all earlier events of the session.
    keeper.admin().show(&world.lock()).await.unwrap();
    assert_eq!(proxy.counts().since(&before).watch_events, 0);
    assert!(third.waits());
    second.release().await.unwrap();
    third.granted().await.release().await.unwrap();
}

/// T-11, T-06, N-12, N-13, D-11, D-12: the waiter behind lists again, does not get the lock, and watches the next predecessor;
/// both when the waiter gives up and when its session ends.
async fn a_waiter_in_the_middle_can_leave_without_granting_the_lock(world: &World) {
    let (holder, middle, proxy) = (world.keeper().await, world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&holder).acquire().await.unwrap();
    let leaves = crate::support::spawn(world.mutex(&holder).acquire().into_future());
    world.queued(2).await;
    let dies = world.enqueue_mutex(&middle).await;
    let last = world.enqueue_mutex(&keeper).await;
    watches_set(&proxy, 2).await;
    let queue = world.queue().await;
    let since = proxy.records().len();

    middle.close().await;
    assert!(matches!(dies.outcome().await, Err(AcquireError::Session(SessionError::Closed))));
    watches_set(&proxy, 3).await;
    leaves.abort();
    watches_set(&proxy, 4).await;
    assert!(last.waits());
    let queries = |name: &str| [look(world), (OpCode::GetData, world.kind.node("", name))];
    assert_eq!(asked(world, &proxy, since), [queries(&queue[1]), queries(&queue[0])].concat());

    guard.release().await.unwrap();
    last.granted().await.release().await.unwrap();
}

/// N-14, N-13: a write to the predecessor's node wakes the waiter; it does not get the lock, and it sees the next change too.
async fn a_wake_up_without_cause_grants_nothing(world: &World) {
    let (holder, proxy) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&holder).acquire().await.unwrap();
    let waiter = world.enqueue_mutex(&keeper).await;
    watches_set(&proxy, 2).await;
    let before = proxy.counts();
    for writes in 1..=3 {
        let (data, _) = world.observer.get_data(&guard.node()).await.unwrap();
        world.observer.set_data(&guard.node(), &data, None).await.unwrap();
        watches_set(&proxy, 2 + writes).await;
        assert_eq!(proxy.counts().since(&before).watch_events, writes);
        assert!(waiter.waits() && guard.is_held());
    }
    guard.release().await.unwrap();
    waiter.granted().await.release().await.unwrap();
}

/// D-13, D-14, N-12: all contenders ahead leave one by one while the waiter receives no events; the events are kept for it.
async fn changes_that_come_while_a_waiter_is_busy_are_not_missed(world: &World) {
    let (others, proxy) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&others).acquire().await.unwrap();
    let mut middle = Vec::new();
    for _ in 0..3 {
        middle.push(world.enqueue_mutex(&others).await);
    }
    let last = world.enqueue_mutex(&keeper).await;
    watches_set(&proxy, 2).await;
    let busy = proxy.hold_watch_events();
    guard.release().await.unwrap();
    for waiter in middle {
        waiter.granted().await.release().await.unwrap();
    }
    assert_eq!(world.queue().await.len(), 1);
    assert!(last.waits());
    busy.release();
    last.granted().await.release().await.unwrap();
}

/// N-07, N-08, D-04: also for names with the same prefix. A holder of one lock does not block the other lock, neither for other
/// handles nor for its own.
async fn names_below_one_base_path_are_separate_locks(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let lock = |keeper: &Lockkeeper, name: &str| world.kind.mutex(keeper, &world.path(&format!("stores/{name}")));
    let names = ["A", "B", "AB", "A-", "lock-"];
    let mut guards = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let (mine, yours) = if at % 2 == 0 { (&one, &other) } else { (&other, &one) };
        guards.push(lock(mine, name).try_acquire().await.unwrap_or_else(|error| panic!("{name}: {error}")));
        assert!(matches!(lock(yours, name).try_acquire().await, Err(AcquireError::Held { .. })), "{name}");
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
    for (guard, name) in guards.into_iter().zip(names) {
        guard.release().await.unwrap();
        drop(lock(&one, name).try_acquire().await.unwrap());
    }
}

/// D-24: with all defaults on a server without setup; every missing node is created, and open to all.
async fn a_fresh_path_needs_no_setup(world: &World) {
    let keeper = Lockkeeper::connect(&world.servers()).await.unwrap();
    world.keep_open(&keeper);
    let path = world.path("never/used/before");
    let guard = world.kind.mutex(&keeper, &path).acquire().await.unwrap();
    for node in [guard.node(), world.kind.parent(&path).to_owned(), world.path("never")] {
        let (acl, _) = world.observer.get_acl(&node).await.unwrap();
        assert_eq!(acl, zk::Acls::anyone_all().iter().cloned().collect::<Vec<_>>(), "{node}");
    }
    guard.release().await.unwrap();
}

/// N-19, D-19: compares the times until the next grant, after a release and after an end without one.
async fn a_release_grants_the_lock_sooner_than_a_silent_end(world: &World) {
    let timeout = Duration::from_secs(2);
    let (proxy, next) = (world.proxy().await, world.keeper().await);
    let mut after_release = Vec::new();
    let holder = world.keeper().await;
    for _ in 0..5 {
        let guard = world.mutex(&holder).acquire().await.unwrap();
        let waiter = world.enqueue_mutex(&next).await;
        let released = Instant::now();
        let releasing = crate::support::spawn(guard.release());
        let guard = waiter.granted().await;
        after_release.push(released.elapsed());
        releasing.await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
    let holder = world.keeper_through(&proxy, timeout).await;
    let guard = world.mutex(&holder).acquire().await.unwrap();
    let waiter = world.enqueue_mutex(&next).await;
    let vanished = Instant::now();
    proxy.black_hole();
    let second = waiter.granted().await;
    let after_silence = vanished.elapsed();
    proxy.heal();
    assert!(!guard.is_held());
    second.release().await.unwrap();
    let usual = *after_release.iter().min().unwrap();
    println!("granted {usual:?} after a release, {after_silence:?} after a silent end (session timeout {timeout:?})");
    assert!(usual * 2 < after_silence, "{after_release:?}, {after_silence:?}");
}

/// N-15, D-20: every failure of the service is a [`lockkeeper::Error`] that says what came back, with the server's own words if
/// it refused.
async fn service_errors_have_one_type_and_keep_their_cause(world: &World) {
    let keeper = world.keeper().await;
    // A node that may have no children, so the create itself is refused.
    let options = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
    let refused = world.path(if world.kind == Kind::Numbered { "no/lock" } else { "no" });
    let parent = world.kind.parent(&refused);
    world.observer.create(parent, b"", &options).await.unwrap();
    let error = world.kind.mutex(&keeper, &refused).acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Session(_)), "{error:?}");
    match error.into() {
        Error::Session(SessionError::Refused { path, reason }) => {
            assert_eq!(path, refused);
            assert!(reason.contains("ephemeral"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    world.remove(parent).await;
    // No test binds this port, and another one that is free now may be a server's soon.
    let nobody = "127.0.0.1:1";
    let error = Lockkeeper::builder().connect_timeout(Duration::from_millis(300)).connect(nobody).await.unwrap_err();
    assert!(matches!(error, ConnectError::Session(_)), "{error:?}");
    match error.into() {
        Error::Session(SessionError::Unreachable { servers, detail, .. }) => {
            assert_eq!(servers, nobody);
            assert!(detail.contains("refuses connections"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    // No state of the failure stays: the lock works as soon as the cause is removed.
    world.kind.mutex(&keeper, &refused).acquire().timeout(PATIENCE).await.unwrap().release().await.unwrap();
}
