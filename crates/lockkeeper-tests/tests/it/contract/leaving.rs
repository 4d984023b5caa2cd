//! How the owner ends a wait or a hold: immediately for the owner, and without a node left behind.

use std::future::IntoFuture;
use std::time::Duration;

use lockkeeper::error::{AcquireError, AdminError, ReleaseError, SessionError};
use lockkeeper::{CancellationToken, Lockkeeper, Loss};
use lockkeeper_testkit::proxy::{OpCode, Proxy, What};
use tokio::time::Instant;

use crate::support::{
    DELETES, HOLDER_MARKER, Kind, PATIENCE, REQUESTS, STEADY, Stalls, World, eventually, for_every_kind,
    on_the_embedded_server,
};

for_every_kind!(
    case_09_a_timeout_is_on_time_and_leaves_no_node,
    case_06_a_call_dropped_at_any_moment_leaves_no_node,
    a_call_never_polled_leaves_no_node,
    a_cancelled_wait_leaves_no_node,
    a_confirmed_release_means_that_the_node_is_deleted,
    a_release_whose_future_is_dropped_is_carried_out,
    close_ends_waits_and_holds_and_deletes_all_nodes,
    an_unconfirmed_close_returns_when_it_is_sent,
    a_guard_outlives_its_handle_and_its_session_ends_with_it,
);

on_the_embedded_server!(giving_up_while_connecting_leaves_no_session);

/// The wait ends at its deadline, at most 100 ms late, the error gives the position, and the next waiter does not wait for the one
/// that left. A control tells a busy machine apart.
async fn case_09_a_timeout_is_on_time_and_leaves_no_node(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.rival(&one).acquire().message("nightly index").await.unwrap();
    // Long enough to be seen in the queue.
    let timeout = Duration::from_secs(2);
    let (stalls, started) = (Stalls::watch(), Instant::now());
    let impatient = world.subject(&other).acquire().timeout(timeout);
    let impatient = crate::support::spawn(async move { (impatient.await, started.elapsed()) });
    world.queued(2).await;
    let next = world.enqueue(world.rival(&one).acquire()).await;
    let (outcome, waited) = impatient.await.unwrap();
    let (error, most) = (outcome.unwrap_err(), stalls.allow(timeout + Duration::from_millis(100)));
    assert!(waited >= timeout && waited < most, "{waited:?}, at most {most:?}");
    let text = error.to_string();
    match error {
        AcquireError::Timeout { path, waited, holder: Some(holder), ahead: Some(1) } => {
            assert_eq!((path, waited), (world.lock(), timeout));
            assert_eq!(holder.message.as_deref(), Some("nightly index"));
        }
        other => panic!("{other:?}"),
    }
    let expected = format!("waited 2 s for {}: last seen held by ", world.lock());
    assert!(text.starts_with(&expected) && text.ends_with(": nightly index"), "{text}");
    world.queued(2).await;
    guard.release().await.unwrap();
    next.granted().await.release().await.unwrap();
    // Zero is a deadline too, although a lock may be granted faster.
    match world.subject(&one).acquire().timeout(Duration::ZERO).await {
        Ok(guard) => guard.release().await.unwrap(),
        Err(error) => assert!(matches!(error, AcquireError::Timeout { .. }), "{error:?}"),
    }
    world.queued(0).await;
}

/// The state of the n-th request when the caller drops the call.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// It has not reached the server.
    Requested,
    /// The server has carried it out, and the reply is on its way.
    Replied,
    /// It is lost with the connection.
    RequestLost,
    /// The server has carried it out, and the reply is lost with the connection.
    ReplyLost,
}

/// For every n, the caller drops the call while the n-th request or its reply is on its way or lost. No node of the call stays,
/// and other clients get the lock (`zookeeper-client`'s own lock leaves its node). The replies that the client waits for are
/// counted.
async fn case_06_a_call_dropped_at_any_moment_leaves_no_node(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let holder = world.keeper().await;
    for contended in [false, true] {
        let steps = match contended {
            true => count_contended(world, &proxy, &keeper, &holder).await,
            false => count_uncontended(world, &proxy, &keeper).await,
        };
        let mut reached = 0;
        for moment in [Moment::Requested, Moment::Replied, Moment::RequestLost, Moment::ReplyLost] {
            for nth in 1..=steps {
                let path = world.path(&format!("{moment:?}-{nth}-{contended}"));
                let guard = match contended {
                    true => Some(world.kind.rival().lock(&holder, &path).acquire().await.unwrap()),
                    false => None,
                };
                let met = drop_at(world, &proxy, &keeper, &path, moment, nth).await;
                let dropped = proxy.records().len();
                reached += u64::from(met);
                proxy.heal();
                let stays = guard.as_ref().map(|guard| guard.name());
                eventually(&format!("{stays:?} alone in {path}"), async || {
                    let left =
                        world.children(&path).await.into_iter().filter(|name| name != HOLDER_MARKER || !contended);
                    left.eq(stays.iter().cloned())
                })
                .await;
                // A connection that broke carries no round trip.
                if met && matches!(moment, Moment::Requested | Moment::Replied) {
                    let (turns, asked) = round_trips(&proxy, dropped, world.kind.parent(&path));
                    // The delete, and before it a read of each node if only the data says whose node it is. A reply that
                    // arrives together with the drop may have been followed by one more request.
                    let nodes = 1 + usize::from(matches!(world.kind, Kind::Foreground | Kind::Background));
                    let reads = if world.kind.is_unprotected() { nodes } else { 0 };
                    // It may have made the path, and not know yet whether a client is beside it: then it removes the path.
                    let most = 2 + reads + usize::from(!contended);
                    assert!(turns <= most, "{moment:?} {nth}, contended {contended}: {turns} round trips: {asked:?}");
                }
                if let Some(guard) = guard {
                    guard.release().await.unwrap();
                }
                let next = world.kind.rival().lock(&holder, &path).acquire().timeout(PATIENCE).await.unwrap();
                next.release().await.unwrap();
                // A create that was held back may arrive only now; its node is deleted again.
                eventually(&format!("{path} is empty"), async || world.children(&path).await.is_empty()).await;
            }
        }
        // A slow call also reads its own node, which is one request more. So the last moments may not occur each time.
        assert!(reached >= 2 * steps, "only {reached} of 4 times {steps} moments were met");
    }
}

/// Returns how often the client sent requests about a path after a reply, since a moment; and these requests. Listings and the
/// read of a limit do not count, because they are sent together with a create: on a busy machine its reply may pass the proxy
/// before they do. The removal of a watch is not waited for.
fn round_trips(proxy: &Proxy, since: usize, path: &str) -> (usize, Vec<OpCode>) {
    let (mut replied, mut turns, mut asked) = (false, 0, Vec::new());
    for record in proxy.records().into_iter().skip(since) {
        match record.what {
            What::Request { op, path: Some(at), .. } if at.starts_with(path) => {
                asked.push(op);
                let reads_limit = op == OpCode::GetData && at == path;
                if op != OpCode::RemoveWatches && !OpCode::LISTS.contains(&op) && !reads_limit {
                    turns += usize::from(std::mem::take(&mut replied));
                }
            }
            What::Reply { path: Some(at), .. } if at.starts_with(path) => replied = true,
            _ => {}
        }
    }
    (turns, asked)
}

/// Counts the requests of a call at a path that does not exist.
async fn count_uncontended(world: &World, proxy: &Proxy, keeper: &Lockkeeper) -> u64 {
    let (path, since) = (world.path("fresh"), proxy.records().len());
    let guard = world.kind.lock(keeper, &path).acquire().await.unwrap();
    let entered = requests_about(proxy, since, world.kind.parent(&path));
    guard.release().await.unwrap();
    entered
}

/// Counts the requests since a moment that a rule for this path may meet. An earlier call may still remove its own path.
fn requests_about(proxy: &Proxy, since: usize, path: &str) -> u64 {
    let records = proxy.records().into_iter().skip(since);
    let about = records.filter(
        |record| matches!(&record.what, What::Request { op, path: Some(at), .. } if REQUESTS.contains(op) && at.contains(path)),
    );
    about.count() as u64
}

/// Counts the requests of a call until it only waits.
async fn count_contended(world: &World, proxy: &Proxy, keeper: &Lockkeeper, holder: &Lockkeeper) -> u64 {
    let guard = world.rival(holder).acquire().await.unwrap();
    let (before, since) = (proxy.counts(), proxy.records().len());
    let waiter = world.enqueue(world.subject(keeper).acquire()).await;
    let reads = world.kind.reads_to_wait();
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) == reads).await;
    let asked = requests_about(proxy, since, &world.parent());
    drop(guard);
    drop(waiter.granted().await);
    world.queued(0).await;
    asked
}

/// Drops a call at its n-th request; returns false if the call ended before that request.
async fn drop_at(world: &World, proxy: &Proxy, keeper: &Lockkeeper, path: &str, moment: Moment, nth: u64) -> bool {
    let meant = proxy.on_any(REQUESTS).path(world.kind.parent(path)).nth(nth);
    let lock = world.kind.lock(keeper, path);
    let (hold, lost) = match moment {
        Moment::Requested => (Some(meant.hold_request()), None),
        Moment::Replied => (Some(meant.hold_reply()), None),
        Moment::RequestLost => (None, Some(meant.cut_before_request())),
        Moment::ReplyLost => (None, Some(meant.cut_before_reply())),
    };
    let mut call = lock.acquire().into_future();
    let met = async {
        match (&hold, &lost) {
            (Some(hold), _) => hold.caught().await,
            (_, Some(lost)) => lost.fired().await,
            _ => unreachable!("one of the two was set"),
        }
    };
    let met = tokio::select! {
        () = met => true,
        granted = &mut call => { drop(granted.unwrap()); false }
    };
    drop(call);
    drop(hold);
    met
}

/// A call starts when it is made, so dropping it unpolled ends it.
async fn a_call_never_polled_leaves_no_node(world: &World) {
    let keeper = world.keeper().await;
    for _ in 0..20 {
        drop(world.subject(&keeper).acquire().into_future());
        drop(world.subject(&keeper).acquire());
    }
    drop(world.rival(&keeper).acquire().timeout(PATIENCE).await.unwrap());
    world.queued(0).await;
}

/// N-15, D-21: the caller's cancellation token ends the wait, also if it was cancelled before the wait began.
async fn a_cancelled_wait_leaves_no_node(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.rival(&keeper).acquire().await.unwrap();
    let token = CancellationToken::new();
    let waiting = crate::support::spawn(world.subject(&keeper).acquire().cancel_on(token.clone()).into_future());
    world.queued(2).await;
    token.cancel();
    match waiting.await.unwrap() {
        Err(AcquireError::Cancelled { path }) => assert_eq!(path, world.lock()),
        other => panic!("{other:?}"),
    }
    world.queued(1).await;
    let late = world.subject(&keeper).acquire().cancel_on(token.clone()).await;
    assert!(matches!(late, Err(AcquireError::Cancelled { .. })), "{late:?}");
    // Cancelling the token after the grant has no effect.
    guard.release().await.unwrap();
    let token = CancellationToken::new();
    let guard = world.subject(&keeper).acquire().cancel_on(token.clone()).await.unwrap();
    token.cancel();
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// T-07, D-16: when `release` returns, any client of any server sees the lock free.
async fn a_confirmed_release_means_that_the_node_is_deleted(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    for _ in 0..10 {
        let guard = world.subject(&keeper).acquire().await.unwrap();
        let node = guard.node();
        assert!(world.exists(&node).await);
        guard.release().await.unwrap();
        assert!(!world.exists(&node).await);
    }
    // `release` does not return before the server has confirmed it.
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let hold = proxy.on_any(DELETES).hold_request();
    let node = guard.node();
    let releasing = crate::support::spawn(guard.release());
    hold.caught().await;
    assert!(!releasing.is_finished() && world.exists(&node).await);
    hold.release();
    releasing.await.unwrap().unwrap();
    assert!(!world.exists(&node).await);
}

/// Dropping the future of a release does not stop the release.
async fn a_release_whose_future_is_dropped_is_carried_out(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    drop(guard.release());
    world.queued(0).await;
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let hold = proxy.on_any(DELETES).hold_request();
    let mut release = Box::pin(guard.release());
    tokio::select! {
        released = &mut release => panic!("{released:?} without the server"),
        () = hold.caught() => {}
    }
    drop(release);
    hold.release();
    world.queued(0).await;
}

/// Waits fail with `Closed`, holds are lost with the same reason, and when `close` returns no node of the session is left.
async fn close_ends_waits_and_holds_and_deletes_all_nodes(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let waiter = world.enqueue(world.rival(&keeper).acquire()).await;
    let elsewhere = world.kind.lock(&keeper, &world.path("elsewhere")).acquire().await.unwrap();
    let [free, taken] = ["free", "taken"].map(|name| world.path(name));
    let (other, admin) = (world.keeper().await, keeper.admin());
    let taken_by = other.mutex(&taken).acquire().await.unwrap();
    let both = keeper.multi_lock([keeper.mutex(&free).acquire(), keeper.mutex(&taken).acquire()]);
    let both = crate::support::spawn(both.into_future());
    eventually("one is granted and the other waited for", async || {
        world.children_of(Kind::Native, &taken).await.len() == 2
    })
    .await;
    let asked = admin.revoke(&taken, None).await.unwrap().remove(0);
    let answer = crate::support::spawn(async move { asked.answer(PATIENCE).await });
    keeper.close().await;
    assert!(matches!(both.await.unwrap(), Err(AcquireError::Session(SessionError::Closed))));
    assert!(matches!(answer.await.unwrap(), Err(AdminError::Session(SessionError::Closed))));
    drop(taken_by);
    assert_eq!(world.queue().await, [""; 0]);
    assert!(!world.exists(&elsewhere.node()).await);
    assert!(matches!(waiter.outcome().await, Err(AcquireError::Session(SessionError::Closed))));
    assert_eq!(guard.lost().await, Loss::Closed);
    assert!(!guard.is_held());
    assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld { loss: Loss::Closed })));
    drop(elsewhere);
    assert!(matches!(world.subject(&keeper).acquire().await, Err(AcquireError::Session(SessionError::Closed))));
    assert!(matches!(keeper.admin().show(&world.lock()).await, Err(AdminError::Session(SessionError::Closed))));
    keeper.close().await;
}

/// The delete of a node of this session is confirmed before; the answer to the close is not waited for.
async fn an_unconfirmed_close_returns_when_it_is_sent(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.subject(&keeper).acquire().await.unwrap();
    let hold = proxy.on(OpCode::CloseSession).hold_reply();
    drop(guard);
    keeper.close_unconfirmed().await;
    assert_eq!(world.queue().await, [""; 0]);
    hold.caught().await;
    hold.release();
}

/// A handle may be dropped before its guard; the session ends with the last of them.
async fn a_guard_outlives_its_handle_and_its_session_ends_with_it(world: &World) {
    // Not kept by the world, because that would keep the session open.
    let keeper = Lockkeeper::builder().session_timeout(STEADY).connect(&world.servers()).await.unwrap();
    let guard = world.subject(&keeper).acquire().await.unwrap();
    drop(keeper);
    let looker = world.keeper().await;
    let holder = looker.admin().show(&world.lock()).await.unwrap().holders.remove(0);
    assert_eq!(holder.node, guard.name());
    assert!(guard.is_held());
    let waiter = world.enqueue(world.rival(&looker).acquire()).await;
    drop(guard);
    waiter.granted().await.release().await.unwrap();
}

/// The server has opened the session and the reply is on its way when the caller gives up: the session is closed, not left to
/// expire. The same holds for a call whose deadline passes, and then the next call succeeds.
async fn giving_up_while_connecting_leaves_no_session(world: &World) {
    let proxy = world.proxy().await;
    let sessions = || world.embedded().stats().sessions;
    let longer_than_patience = PATIENCE * 2;
    let builder = || Lockkeeper::builder().session_timeout(longer_than_patience);
    let servers = proxy.connect_string();
    let hold = proxy.on(OpCode::CreateSession).hold_reply();
    let mut connecting = Box::pin(builder().connect(&servers));
    tokio::select! {
        () = hold.caught() => {}
        connected = &mut connecting => panic!("{connected:?}"),
    }
    assert_eq!(sessions(), 2, "the observer's session and the new one");
    drop(connecting);
    hold.release();
    eventually("the abandoned session is closed", async || sessions() == 1).await;

    let keeper = builder().connect(&servers).await.unwrap();
    world.keep_open(&keeper);
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let session = keeper.admin().show(&world.lock()).await.unwrap().holders[0].session.0;
    assert!(world.embedded().faults().expire(session).await.unwrap());
    assert_eq!(guard.lost().await, Loss::SessionExpired);
    let hold = proxy.on(OpCode::CreateSession).hold_reply();
    let impatient = world.mutex(&keeper).acquire().timeout(Duration::from_millis(100)).await;
    assert!(impatient.is_err(), "{impatient:?}");
    hold.caught().await;
    hold.release();
    world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
    eventually("one session of the keeper", async || sessions() == 2).await;
}
