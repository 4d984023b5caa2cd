use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::error::{ErrorKind, SessionError};
use lockkeeper_client::wire::ErrorCode;
use lockkeeper_testkit::proxy::{OpCode, Proxy};

use crate::examples::recipes::double_barrier::{DoubleBarrier, Participant};
use crate::interfaces::on_every_server;
use crate::support::{STEADY, Waiter, World, eventually};

on_every_server!(
    nobody_is_in_before_all_have_come,
    nobody_is_out_before_all_have_left,
    the_session_that_ends_while_others_are_missing_leaves_no_node_and_is_an_error,
    the_session_that_ends_inside_counts_as_left_and_is_an_error,
    a_dropped_entry_leaves_no_node,
    a_participant_is_ephemeral_on_servers_without_containers_too,
);

/// So short that a test can wait for its end.
const SHORT: Duration = Duration::from_secs(2);

/// The nodes of the barrier.
async fn nodes(world: &World) -> Vec<String> {
    world.observer.list_children(&world.path("barrier")).await.unwrap_or_default()
}

async fn are_there(world: &World, count: usize) {
    eventually(&format!("{count} nodes"), async || nodes(world).await.len() == count).await;
}

fn barrier(world: &World, keeper: &Lockkeeper, size: usize) -> DoubleBarrier {
    DoubleBarrier::new(keeper.sessions(), &world.path("barrier"), size)
}

fn enter(barrier: &DoubleBarrier) -> Waiter<Participant, SessionError> {
    let barrier = barrier.clone();
    Waiter::spawn(async move { barrier.enter().await })
}

fn leave(participant: Participant) -> Waiter<(), SessionError> {
    Waiter::spawn(participant.leave())
}

/// Waits until the calls have looked at this many nodes that they wait for, or until one of them has ended.
async fn watching<G, E: std::fmt::Display>(proxy: &Proxy, op: OpCode, since: u64, calls: &[Waiter<G, E>]) {
    let looked = || proxy.counts().delivered.of(op) - since >= calls.len() as u64;
    eventually("they wait", async || looked() || !calls.iter().all(Waiter::waits)).await;
}

/// Participants of sessions of their own, all through this proxy.
async fn inside(world: &World, proxy: &Arc<Proxy>, size: usize) -> Vec<Participant> {
    let mut entering = Vec::new();
    for _ in 0..size {
        entering.push(enter(&barrier(world, &world.keeper_through(proxy, STEADY).await, size)));
    }
    let mut inside = Vec::new();
    for call in entering {
        inside.push(call.outcome().await.unwrap());
    }
    inside
}

async fn nobody_is_in_before_all_have_come(world: &World) {
    let proxy = world.proxy().await;
    let (one, two, three) =
        (world.keeper_through(&proxy, STEADY).await, world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let since = proxy.counts().delivered.of(OpCode::Exists);
    let calls = [&one, &two].map(|keeper| enter(&barrier(world, keeper, 3)));
    watching(&proxy, OpCode::Exists, since, &calls).await;
    assert!(calls.iter().all(Waiter::waits), "in before all had come");
    let third = enter(&barrier(world, &three, 3)).outcome().await.unwrap();
    let [first, second] = calls;
    drop((first.outcome().await.unwrap(), second.outcome().await.unwrap(), third));
}

async fn nobody_is_out_before_all_have_left(world: &World) {
    let proxy = world.proxy().await;
    // Each of them is the last one to leave once, in whatever order the nodes are.
    for last in 0..3 {
        let mut inside = inside(world, &proxy, 3).await;
        let last = inside.remove(last);
        let since = proxy.counts().delivered.of(OpCode::GetData);
        let calls: Vec<_> = inside.into_iter().map(leave).collect();
        watching(&proxy, OpCode::GetData, since, &calls).await;
        assert!(calls.iter().all(Waiter::waits), "out before all had left");
        leave(last).outcome().await.unwrap();
        for call in calls {
            call.outcome().await.unwrap();
        }
        are_there(world, 0).await;
    }
}

async fn the_session_that_ends_while_others_are_missing_leaves_no_node_and_is_an_error(world: &World) {
    let proxy = world.proxy().await;
    let dying = enter(&barrier(world, &world.keeper_through(&proxy, SHORT).await, 2));
    are_there(world, 1).await;
    proxy.black_hole();
    are_there(world, 0).await;
    proxy.heal();
    assert_eq!(dying.outcome().await.err().map(|error| error.kind()), Some(ErrorKind::Unavailable));
    // It does not count.
    let other = world.proxy().await;
    let inside = inside(world, &other, 2).await;
    assert_eq!(nodes(world).await.len(), 3);
    drop(inside);
}

async fn the_session_that_ends_inside_counts_as_left_and_is_an_error(world: &World) {
    let (proxy, steady) = (world.proxy().await, world.keeper().await);
    let dying = enter(&barrier(world, &world.keeper_through(&proxy, SHORT).await, 2));
    let other = enter(&barrier(world, &steady, 2)).outcome().await.unwrap();
    let dying = dying.outcome().await.unwrap();
    proxy.black_hole();
    leave(other).outcome().await.unwrap();
    proxy.heal();
    assert_eq!(leave(dying).outcome().await.err().map(|error| error.kind()), Some(ErrorKind::Unavailable));
    are_there(world, 0).await;
}

/// The create is under way when the call is dropped.
async fn a_dropped_entry_leaves_no_node(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    world.make(&world.path("barrier")).await;
    let create = proxy.on_any(&[OpCode::Create, OpCode::Create2]).path("-participant").hold_request();
    let entering = enter(&barrier(world, &keeper, 2));
    create.caught().await;
    entering.abort();
    let deletes = proxy.counts().requested.of(OpCode::Delete);
    create.release();
    proxy.wait_until(|counts| counts.delivered.of(OpCode::Delete) > deletes).await;
    are_there(world, 0).await;
}

/// Servers before ZooKeeper 3.5 refuse to create a container.
async fn a_participant_is_ephemeral_on_servers_without_containers_too(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let refused = proxy.on(OpCode::CreateContainer).every().refuse_reply(ErrorCode::Unimplemented);
    let inside = enter(&barrier(world, &keeper, 1)).outcome().await.unwrap();
    assert!(refused.has_fired());
    let mut names = nodes(world).await;
    names.retain(|name| name != "ready");
    let node = world.observer.check_stat(&format!("{}/{}", world.path("barrier"), names[0])).await.unwrap().unwrap();
    assert_ne!(node.ephemeral_owner, 0);
    drop(inside);
}
