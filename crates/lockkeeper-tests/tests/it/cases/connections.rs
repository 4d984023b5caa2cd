//! Connections that break at the worst moment.

use std::time::Duration;

use lockkeeper::Guard;
use lockkeeper::error::{AcquireError, ReleaseError, SessionError};
use lockkeeper_client::wire::ErrorCode;
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::proxy::{Cut, OpCode, Proxy};

use crate::support::{
    PATIENCE, REQUESTS, STEADY, World, asked, eventually, for_kinds, name, on_the_embedded_server_for,
};

for_kinds!(
    [native Native, #[cfg(deep)] recipe Recipe, numbered Numbered]
    case_07_a_refused_try_leaves_no_node_when_its_delete_is_lost,
    case_08_a_lost_create_leaves_one_node_and_acquires,
    case_11_a_release_waits_until_a_lost_delete_is_confirmed,
    case_12_a_flapping_connection_leaves_no_node,
    a_call_that_no_server_has_answered_is_unreachable_soon,
    case_16_a_release_during_the_waiters_disconnect_is_noticed,
    case_38_a_new_session_reads_only_after_its_own_create,
);

for_kinds!(
    [native Native, #[cfg(deep)] recipe Recipe]
    a_transaction_whose_success_is_denied_leaves_one_node_for_each_lock,
);

on_the_embedded_server_for!(
    [native Native, #[cfg(deep)] recipe Recipe, numbered Numbered]
    case_11_a_release_ends_with_the_session,
    connect_leaves_a_silent_server_in_time_to_reach_another,
);

/// The try is refused as usual, and its node is deleted when the connection is back.
async fn case_07_a_refused_try_leaves_no_node_when_its_delete_is_lost(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&world.keeper().await).acquire().await.unwrap();
    for effect in [false, true] {
        let deletes = proxy.on(OpCode::Delete);
        let lost = if effect { deletes.cut_before_reply() } else { deletes.cut_before_request() };
        let refused = world.mutex(&keeper).try_acquire().await;
        assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
        lost.fired().await;
        world.queued(1).await;
    }
    assert!(world.exists(&guard.node()).await);
    guard.release().await.unwrap();
}

/// The connection breaks before or after the create takes effect: one node exists, and it gets the lock. A node that was
/// created is found, not created again.
async fn case_08_a_lost_create_leaves_one_node_and_acquires(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    // The parent exists now, so the next create is the contender's.
    world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
    for effect in [true, false] {
        for contended in [false, true] {
            let holder = match contended {
                true => Some(world.mutex(&world.keeper().await).acquire().await.unwrap()),
                false => None,
            };
            let before = proxy.counts();
            let creates = proxy.on_any(OpCode::CREATES).path(world.lock());
            let lost = if effect { creates.cut_before_reply() } else { creates.cut_before_request() };
            let asked = crate::support::spawn(world.mutex(&keeper).acquire().into_future());
            lost.fired().await;
            if let Some(holder) = holder {
                world.queued(2).await;
                assert!(!asked.is_finished());
                holder.release().await.unwrap();
            }
            let guard = asked.await.unwrap().unwrap();
            assert!(guard.is_held());
            assert_eq!(world.queue().await, [name(&guard)], "a second node");
            let made = proxy.counts().since(&before).forwarded.of_any(OpCode::CREATES);
            assert_eq!(made, 1, "effect {effect}, contended {contended}");
            guard.release().await.unwrap();
            assert_eq!(world.queue().await, [""; 0]);
        }
    }
}

/// A server in trouble may carry out a transaction and answer with an error. No attempt then waits behind its own first node.
async fn a_transaction_whose_success_is_denied_leaves_one_node_for_each_lock(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let paths: Vec<_> = (0..8).map(|lock| world.path(&format!("lock-{lock}"))).collect();
    let acquire_all = async || {
        let acquired =
            paths.iter().map(|path| world.kind.mutex(&keeper, path).acquire().timeout(PATIENCE).into_future());
        futures_util::future::try_join_all(acquired).await
    };
    let release_all = async |guards: Vec<Guard>| {
        futures_util::future::try_join_all(guards.into_iter().map(Guard::release)).await.unwrap();
    };
    // The parents exist now.
    release_all(acquire_all().await.unwrap()).await;
    for error in [ErrorCode::MarshallingError, ErrorCode::ThrottledOp] {
        // Sooner or later some of the creates leave together.
        let guards = loop {
            let denied = proxy.on(OpCode::Multi).path("/lock-").refuse_reply(error);
            let guards = acquire_all().await.unwrap();
            if denied.has_fired() {
                break guards;
            }
            proxy.heal();
            release_all(guards).await;
        };
        for path in &paths {
            assert_eq!(world.children(path).await.len(), 1, "{path}: a second node");
        }
        release_all(guards).await;
        for path in &paths {
            assert_eq!(world.children(path).await, [""; 0], "{path}: a node is left");
        }
    }
}

/// A release ends only when the server has confirmed the delete. During a disconnect it is pending, then confirmed, whether or
/// not the delete had taken effect.
async fn case_11_a_release_waits_until_a_lost_delete_is_confirmed(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    for effect in [false, true] {
        let guard = world.mutex(&keeper).acquire().await.unwrap();
        let node = guard.node();
        let before = proxy.counts();
        let deletes = proxy.on(OpCode::Delete);
        let hold = if effect { deletes.hold_reply() } else { deletes.hold_request() };
        let releasing = crate::support::spawn(guard.release());
        hold.caught().await;
        let refused = proxy.counts().refused;
        proxy.refuse();
        proxy.cut(Cut::Reset);
        drop(hold);
        proxy.wait_until(|counts| counts.refused > refused).await;
        // A holder older than a moment watches its node, and the watch event comes before the reply: that is a server's
        // confirmation, too.
        let notified = effect && proxy.counts().since(&before).watch_events > 0;
        assert!(notified || !releasing.is_finished(), "released without a server");
        assert_eq!(world.exists(&node).await, !effect);
        proxy.heal();
        releasing.await.unwrap().unwrap();
        assert!(!world.exists(&node).await);
    }
    // A dropped guard is released the same way, without a caller.
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let lost = proxy.on(OpCode::Delete).cut_before_request();
    drop(guard);
    lost.fired().await;
    world.mutex(&world.keeper().await).acquire().timeout(PATIENCE).await.unwrap().release().await.unwrap();
}

/// A lost connection is no answer. A call without one does not count as a call that only waits for its turn.
async fn a_call_that_no_server_has_answered_is_unreachable_soon(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
    let guard = world.mutex(&world.keeper().await).acquire().await.unwrap();
    let cut = proxy.on_any(OpCode::CREATES).path(world.lock()).cut_before_request();
    // After the connection is back, the call first looks for the node that the create may have made.
    let lists = [OpCode::GetChildren, OpCode::GetChildren2, OpCode::MultiRead];
    let held = proxy.on_any(&lists).path(world.lock()).every().hold_request();
    let outcome = world.mutex(&keeper).acquire().timeout(Duration::from_secs(1)).await;
    assert!(cut.has_fired());
    assert!(matches!(outcome, Err(AcquireError::Session(SessionError::Unreachable { .. }))), "{outcome:?}");
    held.release();
    guard.release().await.unwrap();
}

/// If no server comes back, the release ends after the session timeout. The lock is free once the session has expired, and the
/// caller gets a different result.
async fn case_11_a_release_ends_with_the_session(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(1)).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    proxy.black_hole();
    assert!(matches!(guard.release().await, Err(ReleaseError::Timeout { .. })));
    world.queued(0).await;
}

/// Cuts the connection repeatedly: at the first request, the first reply, the second request, and so on.
async fn flap(proxy: &Proxy) {
    for nth in (1..=7).cycle() {
        let request = proxy.on_any(REQUESTS).nth(nth).cut_before_request();
        request.fired().await;
        let reply = proxy.on_any(REQUESTS).nth(nth).cut_before_reply();
        reply.fired().await;
    }
}

/// Tasks acquire and release in every way while the connection is cut every few requests: every attempt ends as it should, and
/// no node is left.
async fn case_12_a_flapping_connection_leaves_no_node(world: &World) {
    let rounds = if is_deep() { 24 } else { 8 };
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let mut tasks = Vec::new();
    for task in 0..3 {
        let mutex = world.mutex(&keeper);
        tasks.push(crate::support::spawn(async move {
            for round in 0..rounds {
                match (task + round) % 4 {
                    0 => drop(mutex.acquire().await.unwrap()),
                    1 => match mutex.try_acquire().await {
                        Ok(guard) => guard.release().await.unwrap(),
                        Err(error) => {
                            assert!(
                                matches!(
                                    error,
                                    AcquireError::Held { .. } | AcquireError::Session(SessionError::Unreachable { .. })
                                ),
                                "{error}"
                            );
                        }
                    },
                    2 => match mutex.acquire().timeout(Duration::from_millis(20)).await {
                        Ok(guard) => drop(guard),
                        Err(error) => {
                            assert!(
                                matches!(
                                    error,
                                    AcquireError::Timeout { .. }
                                        | AcquireError::Session(SessionError::Unreachable { .. })
                                ),
                                "{error}"
                            );
                        }
                    },
                    _ => mutex.acquire().await.unwrap().release().await.unwrap(),
                }
            }
        }));
    }
    let work = async {
        for task in tasks {
            task.await.unwrap();
        }
    };
    tokio::select! {
        () = work => {}
        () = flap(&proxy) => unreachable!("the cuts never end"),
    }
    assert!(proxy.counts().accepted > rounds, "the connection hardly flapped: {:?}", proxy.counts());
    proxy.heal();
    world.queued(0).await;
}

/// The watch is set again on reconnect and reports what happened meanwhile. A server reports missed events in no order, so the
/// waiter lists once more, and only once.
async fn case_16_a_release_during_the_waiters_disconnect_is_noticed(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let holder = world.keeper().await;
    for watched in [true, false] {
        let guard = world.mutex(&holder).acquire().await.unwrap();
        let before = proxy.counts();
        // Disconnect before the waiter can watch, or after.
        let unwatched = (!watched).then(|| proxy.on(OpCode::GetData).hold_request());
        let waiter = world.enqueue_mutex(&keeper).await;
        match &unwatched {
            Some(hold) => hold.caught().await,
            None => _ = proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) > 0).await,
        }
        proxy.refuse();
        proxy.cut(Cut::Reset);
        guard.release().await.unwrap();
        world.queued(1).await;
        assert!(waiter.waits());
        proxy.heal();
        waiter.granted().await.release().await.unwrap();
        let lists = proxy.counts().since(&before).requested.of_any(OpCode::LISTS);
        assert!(lists <= 2, "watched {watched}: {lists} listings");
    }
    eventually("the queue is empty", async || world.queue().await.is_empty()).await;
}

/// A stale server may show a new session a tree without the holder's node. It never shows a tree without the session's own
/// writes, and so not without what was written before them. So an attempt first creates its node, then reads.
async fn case_38_a_new_session_reads_only_after_its_own_create(world: &World) {
    let guard = world.mutex(&world.keeper().await).acquire().await.unwrap();
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.records().len();
    let refused = world.mutex(&keeper).try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
    world.queued(1).await;
    let asked: Vec<OpCode> = asked(world, &proxy, before).into_iter().map(|(op, _)| op).collect();
    let first = |kinds: &[OpCode]| asked.iter().position(|op| kinds.contains(op));
    let made = first(&[OpCode::Create, OpCode::Create2]);
    let looked = first(&[OpCode::GetChildren, OpCode::GetChildren2, OpCode::GetData, OpCode::Exists]);
    assert!(made.is_some() && made < looked, "{asked:?}");
    guard.release().await.unwrap();
}

/// A starting or frozen server accepts connections and does not answer: with the default session timeout, another server is
/// found in time.
async fn connect_leaves_a_silent_server_in_time_to_reach_another(world: &World) {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let servers = format!("{},{}", silent.local_addr().unwrap(), world.servers());
    // Each connect chooses its first server at random.
    let connecting = (0..8).map(|_| lockkeeper::Lockkeeper::connect(&servers));
    for keeper in futures_util::future::join_all(connecting).await {
        let keeper = keeper.unwrap();
        assert_eq!(keeper.session_timeout(), Some(Duration::from_secs(30)));
        world.keep_open(&keeper);
    }
}
