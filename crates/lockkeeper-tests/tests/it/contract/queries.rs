//! The answers to questions about locks.

use std::time::{Duration, SystemTime};

use lockkeeper::admin::Owner;
use lockkeeper::error::AdminError;
use lockkeeper::{Error, Lockkeeper, NodeFormat};
use lockkeeper_testkit::proxy::OpCode;

use crate::support::{Kind, STEADY, World, for_every_kind};

for_every_kind!(
    case_55_holder_and_waiters_are_shown_with_owner_and_message,
    listing_finds_locks_at_every_depth,
    follow_reports_every_change,
    follow_waits_for_the_first_contender,
    show_of_a_missing_path_fails_with_no_such_lock,
    unknown_children_and_contenders_without_an_owner_are_shown,
    a_question_whose_connection_is_lost_leaves_out_no_holder,
);

/// A listing says who holds the lock, where, why, since when, and in which order the others wait.
async fn case_55_holder_and_waiters_are_shown_with_owner_and_message(world: &World) {
    let owner = Owner { user: "build".into(), host: "ci-7".into(), pid: 4711, program: Some("job.sh".into()) };
    let builder = Lockkeeper::builder().session_timeout(STEADY).owner(owner.clone());
    let keeper = builder.connect(&world.servers()).await.unwrap();
    world.keep_open(&keeper);
    let asked = SystemTime::now();
    let guard = world.subject(&keeper).acquire().message("nightly index").await.unwrap();
    let first = world.enqueue(world.rival(&keeper).acquire()).await;
    let second = world.enqueue(world.subject(&world.keeper().await).acquire()).await;

    let seen = world.keeper().await.admin().show(&world.lock()).await.unwrap();
    assert_eq!((seen.path.as_str(), seen.holders.len(), seen.waiters.len()), (world.lock().as_str(), 1, 2));
    let holder = &seen.holders[0];
    assert_eq!((holder.owner.as_ref(), holder.message.as_deref()), (Some(&owner), Some("nightly index")));
    // Permits have none.
    assert_eq!(guard.token(), holder.token, "{holder:?}");
    assert_eq!((holder.mode, &holder.node), (world.kind.mode(), &guard.name()));
    let text = holder.to_string();
    assert!(text.starts_with("build@ci-7 (pid 4711) since 20") && text.ends_with("Z: nightly index"), "{text}");
    // The server runs on this machine, so both use the same clock.
    let since = holder.since.duration_since(asked).unwrap_or_default();
    assert!(holder.since + Duration::from_secs(1) > asked && since < Duration::from_secs(60), "{since:?}");
    let queue = world.queue().await;
    assert_eq!(queue, [&holder.node, &seen.waiters[0].node, &seen.waiters[1].node].map(String::clone));
    match guard.token() {
        Some(_) => assert!(seen.waiters[0].token < seen.waiters[1].token),
        None => assert!(seen.waiters.iter().all(|waiter| waiter.token.is_none()), "{seen:?}"),
    }
    assert_eq!(seen.waiters[1].owner.as_ref().unwrap().pid, std::process::id());
    assert_eq!(seen.waiters[0].session, holder.session);
    assert_ne!(seen.waiters[1].session, holder.session);

    guard.release().await.unwrap();
    let guard = first.granted().await;
    let seen = keeper.admin().show(&world.lock()).await.unwrap();
    assert_eq!((&seen.holders[0].node, seen.waiters.len()), (&guard.name(), 1));
    assert_eq!(guard.token(), seen.holders[0].token);
    drop(guard);
    drop(second.granted().await);
}

/// Locks below other locks are found, and the root's own lock; free locks are left out.
async fn listing_finds_locks_at_every_depth(world: &World) {
    let keeper = world.keeper().await;
    let root = world.path("deep");
    assert_eq!(keeper.admin().list(&root).await.unwrap(), [], "a missing root has no locks");
    let mut guards = Vec::new();
    let names = ["", "/a", "/a/b/c", &"/d".repeat(40), "/z"];
    for name in names {
        guards.push(world.kind.lock(&keeper, &format!("{root}{name}")).acquire().await.unwrap());
    }
    world.kind.lock(&keeper, &format!("{root}/free")).acquire().await.unwrap().release().await.unwrap();
    let found = keeper.admin().list(&root).await.unwrap();
    let paths: Vec<_> = found.iter().map(|lock| lock.path.strip_prefix(&root).unwrap()).collect();
    assert_eq!(paths, names);
    for (lock, guard) in found.iter().zip(&guards) {
        assert_eq!((lock.holders.len(), &lock.holders[0].node), (1, &guard.name()));
    }
    let found = keeper.admin().list("/").await.unwrap();
    assert!(guards.iter().all(|guard| found.iter().any(|lock| lock.path == guard.path())));
    drop(guards);
}

/// From the first look on, `follow` reports each contender that comes or goes.
async fn follow_reports_every_change(world: &World) {
    let (keeper, looker) = (world.keeper().await, world.keeper().await);
    let guard = world.rival(&keeper).acquire().await.unwrap();
    let mut follow = looker.admin().follow(world.lock());
    let seen = follow.next().await.unwrap();
    assert_eq!((&seen.holders[0].node, seen.waiters.len()), (&guard.name(), 0));
    // Dropping a call before its answer loses no change.
    assert!(futures_util::poll!(Box::pin(follow.next()).as_mut()).is_pending());
    let waiter = world.enqueue(world.subject(&keeper).acquire()).await;
    let seen = loop {
        let seen = follow.next().await.unwrap();
        if !seen.waiters.is_empty() {
            break seen;
        }
    };
    assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 1));
    let next = seen.waiters[0].node.clone();
    guard.release().await.unwrap();
    let seen = loop {
        // Between two holders with classes, there is a moment without a holder.
        let seen = follow.next().await.unwrap();
        if !seen.holders.is_empty() || !world.kind.has_holder_marker() {
            break seen;
        }
    };
    assert_eq!((&seen.holders[0].node, seen.waiters.len()), (&next, 0));
    waiter.granted().await.release().await.unwrap();
    match follow.next().await {
        Ok(seen) => assert_eq!((seen.holders.len(), seen.waiters.len()), (0, 0)),
        // A lock without contenders leaves no node there.
        Err(AdminError::NoSuchLock { .. }) if world.kind == Kind::Numbered => {}
        Err(error) => panic!("{error}"),
    }
}

/// A follower that asks for it sees a free lock before the lock's node exists, and then its first holder.
async fn follow_waits_for_the_first_contender(world: &World) {
    if world.kind == Kind::Numbered {
        return;
    }
    let (keeper, looker) = (world.keeper().await, world.keeper().await);
    let path = world.path("later");
    let mut follow = looker.admin().follow(&path).or_absent();
    let seen = follow.next().await.unwrap();
    assert!(seen.holders.is_empty() && seen.waiters.is_empty());
    assert!(futures_util::poll!(Box::pin(follow.next()).as_mut()).is_pending());
    let guard = world.kind.lock(&keeper, &path).acquire().await.unwrap();
    let seen = loop {
        // The node of a lock is created before the first contender's, and a holder marker after it.
        let seen = follow.next().await.unwrap();
        if !seen.holders.is_empty() {
            break seen;
        }
    };
    assert_eq!(seen.holders[0].node, guard.name());
    guard.release().await.unwrap();
}

/// A mistyped path is not reported as a free lock.
async fn show_of_a_missing_path_fails_with_no_such_lock(world: &World) {
    let keeper = world.keeper().await;
    let path = world.path("nowhere");
    match keeper.admin().show(&path).await {
        Err(AdminError::NoSuchLock { path: named }) => assert_eq!(named, path),
        other => panic!("{other:?}"),
    }
    world.kind.lock(&keeper, &path).acquire().await.unwrap().release().await.unwrap();
    if world.kind == Kind::Numbered {
        return;
    }
    let seen = keeper.admin().show(&path).await.unwrap();
    assert!(seen.holders.is_empty() && seen.waiters.is_empty());
}

/// Children that are no contenders are listed by name. A contender whose node has no data about its owner is shown without one.
async fn unknown_children_and_contenders_without_an_owner_are_shown(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let silent = match world.kind.node_format() {
        NodeFormat::Kazoo => "1b2f0c5e4c8e4b7f9c2f0a1b2c3d4e5f__lock__0000000999",
        NodeFormat::Contentserv => "B-0000000999",
        _ if world.kind == Kind::Permits => "_c_01234567-89ab-cdef-0123-456789abcdef-permits-3-0000000999",
        NodeFormat::Numbered => "0000000999",
        _ => "lock-0000000999",
    };
    // Beside the path, another name is another lock's or nobody's.
    let unknown = if world.kind == Kind::Numbered { Vec::new() } else { vec!["config".to_owned()] };
    world.make(&world.node("config")).await;
    world.make_foreign(&world.node(silent)).await;
    let seen = keeper.admin().show(&world.lock()).await.unwrap();
    assert_eq!((&seen.holders[0].node, seen.unknown.as_slice()), (&guard.name(), unknown.as_slice()));
    let waiter = seen.waiters.first().unwrap_or_else(|| panic!("{seen:?}"));
    assert_eq!((waiter.owner.as_ref(), waiter.described.as_str()), (None, "an unnamed owner"));
    world.remove(&world.node(silent)).await;
}

/// Without the contender that could not be read, the lock would seem to be free.
async fn a_question_whose_connection_is_lost_leaves_out_no_holder(world: &World) {
    let (proxy, keeper) = (world.proxy().await, world.keeper().await);
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let admin = world.keeper_through(&proxy, STEADY).await.admin();
    let cut = proxy.on(OpCode::GetData).path(guard.name()).cut_before_reply();
    match admin.show(world.lock()).await {
        Ok(lock) => assert_eq!(lock.holders.len(), 1, "{lock:?}"),
        Err(error) => assert!(Error::from(error.clone()).is_retryable(), "{error}"),
    }
    assert!(cut.has_fired());
    assert_eq!(admin.show(world.lock()).await.unwrap().holders.len(), 1);
    guard.release().await.unwrap();
}
