//! Nodes with a contender's name that no session owns: foreign programs and people make such nodes, and no lock waits for them.

use lockkeeper::error::AcquireError;
use lockkeeper_core::{AttemptId, Mode};
use lockkeeper_testkit::proxy::OpCode;

use crate::support::{HOLDER_MARKER, Kind, PATIENCE, STEADY, World, for_every_kind, for_kinds, on_the_embedded_server};

for_every_kind!(
    a_waiter_ignores_a_node_without_a_session,
    a_try_ignores_a_node_without_a_session,
    a_lock_with_nodes_without_a_session_is_described_without_them,
);

on_the_embedded_server!(a_try_behind_a_holder_sends_no_extra_requests,);

for_kinds!([native Native, #[cfg(deep)] recipe Recipe, #[cfg(deep)] kazoo Kazoo, write Write] a_foreign_waiter_behind_a_node_without_a_session_is_no_holder);

/// Makes a persistent node that is named like a contender which excludes the subject, with this number.
async fn make_sessionless(world: &World, number: u32) -> String {
    let kind = world.kind.rival();
    let mode = match kind {
        Kind::Foreground | Kind::Background => Mode::Class("A".parse().unwrap()),
        Kind::Permits => Mode::Permits(2),
        Kind::Read | Kind::RecipeRead | Kind::KazooRead => Mode::Read,
        Kind::Write | Kind::RecipeWrite | Kind::KazooWrite => Mode::Write,
        _ => Mode::Exclusive,
    };
    let prefix = kind.node_format().prefix(mode, AttemptId::new(u128::from(number) + 1)).unwrap();
    let name = format!("{prefix}{number:010}");
    world.make(&world.node(&name)).await;
    name
}

/// Makes the lock with two such nodes, which are ahead of every later contender.
async fn lock_with_two(world: &World, keeper: &lockkeeper::Lockkeeper) {
    world.subject(keeper).acquire().await.unwrap().release().await.unwrap();
    for _ in 0..2 {
        // The next number is the count of creates so far: changes are creates and deletes, and children are what is left.
        let parent = world.observer.check_stat(&world.parent()).await.unwrap().unwrap();
        make_sessionless(world, u32::try_from((parent.cversion + parent.num_children) / 2).unwrap()).await;
    }
}

async fn remove_all(world: &World) {
    for name in world.queue().await {
        world.remove(&world.node(&name)).await;
    }
}

async fn a_waiter_ignores_a_node_without_a_session(world: &World) {
    let keeper = world.keeper().await;
    lock_with_two(world, &keeper).await;
    let guard = world.subject(&keeper).acquire().timeout(PATIENCE).await.unwrap();
    assert!(guard.is_held());
    // The waiter behind it ignores them, too.
    let waiter = world.enqueue(world.rival(&world.keeper().await).acquire().timeout(PATIENCE)).await;
    assert!(waiter.waits());
    guard.release().await.unwrap();
    waiter.granted().await.release().await.unwrap();
    remove_all(world).await;
}

async fn a_try_ignores_a_node_without_a_session(world: &World) {
    let keeper = world.keeper().await;
    lock_with_two(world, &keeper).await;
    let guard = world.subject(&keeper).try_acquire().await.unwrap();
    match world.rival(&keeper).try_acquire().await {
        Err(AcquireError::Held { ahead, holder, .. }) => {
            // A class's holder is named by its marker.
            let named = if world.kind.has_holder_marker() { HOLDER_MARKER.to_owned() } else { guard.name() };
            assert_eq!(holder.map(|holder| holder.node), Some(named));
            // Behind a marker no other node is read, so those two nodes count there.
            assert!(ahead == Some(1) || world.kind.has_holder_marker(), "{ahead:?}");
        }
        other => panic!("{other:?}"),
    }
    guard.release().await.unwrap();
    remove_all(world).await;
}

async fn a_lock_with_nodes_without_a_session_is_described_without_them(world: &World) {
    let keeper = world.keeper().await;
    lock_with_two(world, &keeper).await;
    let guard = world.subject(&keeper).acquire().timeout(PATIENCE).await.unwrap();
    let info = keeper.admin().show(&world.lock()).await.unwrap();
    let names =
        |contenders: &[lockkeeper::admin::ContenderInfo]| contenders.iter().map(|c| c.node.clone()).collect::<Vec<_>>();
    assert_eq!((names(&info.holders), names(&info.waiters)), (vec![guard.name()], vec![]));
    // To a foreign client of the other node formats, such a node is no contender either.
    let blocks = world.kind.node_format().foreign_clients_wait_for_any_node();
    let expected = if blocks { (2, 0) } else { (0, 2) };
    assert_eq!((info.sessionless.len(), info.unknown.len()), expected, "{info:?}");
    guard.release().await.unwrap();
    remove_all(world).await;
}

/// Curator and Kazoo count every node with such a name, so theirs waits until somebody deletes it.
async fn a_foreign_waiter_behind_a_node_without_a_session_is_no_holder(world: &World) {
    let keeper = world.keeper().await;
    world.make(&world.lock()).await;
    let foreign = |number: u128| {
        let prefix = world.kind.node_format().prefix(Mode::Exclusive, AttemptId::new(number)).unwrap();
        format!("{prefix}{number:010}")
    };
    let (without, waiting) = (foreign(0), foreign(1));
    world.make(&world.node(&without)).await;
    let admin = keeper.admin();
    let listed = admin.list(&world.lock()).await.unwrap();
    assert_eq!(listed.len(), 1, "nobody waits yet, and every foreign client would");
    world.make_foreign(&world.node(&waiting)).await;
    let shown = admin.show(&world.lock()).await.unwrap();
    let blocked = shown.waiters.first().map(|waiter| (waiter.node.clone(), waiter.blocked_by.clone()));
    assert_eq!(blocked, Some((waiting.clone(), Some(world.node(&without)))), "{shown:?}");
    assert!(shown.holders.is_empty(), "{shown:?}");
    // The numbers go on behind those two, because they count all creates.
    let error = world.subject(&keeper).try_acquire().await.unwrap_err();
    let text = error.to_string();
    let AcquireError::Held { holder: Some(first), .. } = error else { panic!("{error:?}") };
    assert_eq!((first.node, first.blocked_by), (waiting.clone(), Some(world.node(&without))), "{text}");
    assert!(text.contains(": nobody holds it; ") && !text.contains("held by"), "{text}");
    let broken = admin.evict(&world.lock(), &shown.sessionless[0], "left by a script").await.unwrap();
    assert_eq!((broken.node, broken.held, broken.described.as_str()), (without, false, "a node without a session"));
    let gone = admin.evict(&world.lock(), &shown.sessionless[0], "again").await;
    assert!(matches!(gone, Err(lockkeeper::error::AdminError::NotContending { .. })), "{gone:?}");
    let shown = admin.show(&world.lock()).await.unwrap();
    assert_eq!((shown.holders[0].node.as_str(), shown.holders[0].blocked_by.as_ref()), (waiting.as_str(), None));
    remove_all(world).await;
}

/// A create and a listing, a read of the holder's node, a delete.
async fn a_try_behind_a_holder_sends_no_extra_requests(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&world.keeper().await).acquire().await.unwrap();
    let before = proxy.counts();
    assert!(matches!(world.mutex(&keeper).try_acquire().await, Err(AcquireError::Held { ahead: Some(1), .. })));
    world.queued(1).await;
    let sent = proxy.counts().since(&before).requested;
    // A node without protection is read before it is deleted.
    let reads = if world.kind == Kind::Recipe { 2 } else { 1 };
    let counts = (sent.of_any(OpCode::CREATES), sent.of_any(OpCode::LISTS), sent.of(OpCode::GetData));
    assert_eq!(counts, (1, 1, reads), "{sent:?}");
    guard.release().await.unwrap();
}
