//! Tokens of a rebuilt ensemble: refused until the operator raises the epoch, and above all older tokens from then on.

use lockkeeper::admin::TokenEpoch;
use lockkeeper::error::{AcquireError, AdminError, SessionError};
use lockkeeper::{FencingToken, Lockkeeper};
use lockkeeper_fence::{Refused, TokenGate};
use lockkeeper_helix::{AcquireLeaseError, HelixLock};
use lockkeeper_server::Server;
use lockkeeper_testkit::proxy::OpCode;
use zookeeper_client as zk;

use crate::helix::LONG;
use crate::support::{STEADY, World, block_on, config, eventually, on_the_embedded_server, watched};

on_the_embedded_server!(
    a_grant_behind_a_raised_epoch_waits_until_its_session_has_read_it,
    an_epoch_costs_one_read_per_session_and_none_per_lock,
    raising_an_epoch_sends_the_read_with_the_write_before_it,
    an_epoch_belongs_to_the_whole_ensemble_whatever_the_chroot,
    a_call_that_waits_for_the_epoch_of_its_session_ends_with_the_session,
    an_invalid_epoch_gives_no_tokens,
);

async fn connect(server: &Server) -> Lockkeeper {
    Lockkeeper::builder().session_timeout(STEADY).connect(&server.connect_string()).await.unwrap()
}

async fn token(keeper: &Lockkeeper) -> FencingToken {
    let guard = keeper.mutex("/locks/a").acquire().await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    token
}

/// The resource refuses tokens of an ensemble that was rebuilt empty. Once the operator raises the epoch above the tokens that
/// the resource has seen, new tokens are above all older ones: in sessions that were already open, in new sessions, and for
/// every kind of lock.
#[test]
fn tokens_of_a_rebuilt_ensemble_are_refused_until_its_epoch_is_raised() {
    block_on(async {
        let gate = TokenGate::new();
        // A server's own tokens follow its clock, so those of the old one are from the future.
        let old = Server::start(config().with_first_zxid(1 << 46)).await.unwrap();
        let keeper = connect(&old).await;
        for _ in 0..5 {
            drop(gate.enter("catalogue", token(&keeper).await).await.unwrap());
        }
        let highest = gate.highest("catalogue").unwrap();
        keeper.close().await;
        old.shutdown().await.unwrap();

        let rebuilt = Server::start(config()).await.unwrap();
        let before = connect(&rebuilt).await;
        let small = token(&before).await;
        assert!(matches!(gate.enter("catalogue", small).await, Err(Refused::Stale { .. })));
        assert_eq!(before.admin().token_epoch().await.unwrap(), TokenEpoch::default());

        let epoch = TokenEpoch::above(highest).unwrap();
        let held = before.mutex("/locks/held").acquire().await.unwrap();
        let operator = connect(&rebuilt).await;
        assert_eq!(operator.admin().raise_token_epoch(epoch).await.unwrap(), epoch);
        // The epoch is never lowered, and raising it to the same value again changes nothing.
        assert_eq!(operator.admin().raise_token_epoch(TokenEpoch::default()).await.unwrap(), epoch);
        assert_eq!(operator.admin().raise_token_epoch(epoch).await.unwrap(), epoch);

        // A server notifies a session of the change before it answers a later write, so no retry is needed here.
        let fresh = token(&before).await;
        assert!(fresh > highest && fresh > held.token());
        drop(gate.enter("catalogue", fresh).await.unwrap());
        let next = connect(&rebuilt).await;
        let later = token(&next).await;
        assert!(later > fresh);
        drop(gate.enter("catalogue", later).await.unwrap());
        assert!(held.is_held(), "the old hold keeps its token");

        let leased = HelixLock::new(&next, "/locks/leased", LONG).acquire().await.unwrap();
        let classed = next.priority_lock("/locks/classed").background().acquire().await.unwrap();
        assert!(leased.token() > later && classed.token() > leased.token());
        let shown = next.admin().show("/locks/classed").await.unwrap();
        assert_eq!(shown.holders[0].token, Some(classed.token()));
        leased.release().await.unwrap();
        drop((classed, held));
        for keeper in [before, operator, next] {
            keeper.close().await;
        }
        rebuilt.shutdown().await.unwrap();
    });
}

/// The holder before has a token of the new epoch. The next contender's session hears of the new epoch and of the release, and the old
/// epoch, which it has read, counts no more. Every client of an ensemble reads its epoch, so an ensemble that others use is not raised.
async fn a_grant_behind_a_raised_epoch_waits_until_its_session_has_read_it(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper().await, world.keeper().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let first = world.mutex(&one).acquire().await.unwrap();
    let second = world.enqueue_mutex(&other).await;
    let waiter = world.enqueue_mutex(&keeper).await;
    watched(&proxy, &world.node(&world.queue().await[1])).await;
    let (read, before) = (proxy.on(OpCode::Exists).path("/lockkeeper/epoch").hold_request(), proxy.counts());
    let admin = one.admin();
    let epoch = TokenEpoch::new(1).unwrap();
    admin.raise_token_epoch(epoch).await.unwrap();
    read.caught().await;
    first.release().await.unwrap();
    let second = second.granted().await;
    let token = second.token();
    assert!(token.get() > i64::from(epoch.get()) << 48, "{token} is not of the new epoch");
    second.release().await.unwrap();
    proxy.wait_until(|counts| counts.since(&before).watch_events >= 2).await;
    // Behind this, the library's thread has handled the events.
    other.mutex(world.path("other")).acquire().await.unwrap().release().await.unwrap();
    assert!(waiter.waits(), "granted without the new epoch");
    read.release();
    let third = waiter.granted().await;
    assert!(third.token() > token, "{} after {token}", third.token());
    third.release().await.unwrap();
}

async fn an_epoch_costs_one_read_per_session_and_none_per_lock(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    // An attempt that makes its path asks for the node above too.
    world.make(&world.lock()).await;
    for _ in 0..3 {
        world.mutex(&keeper).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(proxy.counts().requested.of(OpCode::Exists), 1);
}

/// The read does not wait for the reply to the write that orders it.
async fn raising_an_epoch_sends_the_read_with_the_write_before_it(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let before = proxy.counts();
    let write = proxy.on(OpCode::Check).hold_reply();
    let admin = keeper.admin();
    let raising = crate::support::spawn(async move { admin.raise_token_epoch(TokenEpoch::new(1).unwrap()).await });
    write.caught().await;
    proxy.wait_until(|counts| counts.since(&before).requested.of(OpCode::Exists) == 1).await;
    write.release();
    assert_eq!(raising.await.unwrap().unwrap().get(), 1);
}

/// Transaction ids count for the whole ensemble, so one lock under two chroots gives increasing tokens.
async fn an_epoch_belongs_to_the_whole_ensemble_whatever_the_chroot(world: &World) {
    let root = world.lock();
    let within = world.connect(&format!("{}{root}", world.servers()), STEADY).await;
    let without = world.keeper().await;
    let inner = within.mutex("/deep");
    let outer = without.mutex(format!("{root}/deep"));
    let first = inner.acquire().await.unwrap();
    let token = first.token();
    first.release().await.unwrap();
    let epoch = TokenEpoch::new(2).unwrap();
    within.admin().raise_token_epoch(epoch).await.unwrap();
    assert_eq!(without.admin().token_epoch().await.unwrap(), epoch);
    let (mut last, epoch_2) = (token, 2 << 48);
    for mutex in [&outer, &inner, &outer] {
        let guard = mutex.acquire().await.unwrap();
        assert!(guard.token() > last && guard.token().get() > epoch_2);
        last = guard.token();
        guard.release().await.unwrap();
    }
}

/// The session has heard of a new epoch, and ends before it has read it.
async fn a_call_that_waits_for_the_epoch_of_its_session_ends_with_the_session(world: &World) {
    let (proxy, operator) = (world.proxy().await, world.keeper().await.admin());
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let session = operator.show(world.lock()).await.unwrap().holders[0].session.0;
    guard.release().await.unwrap();
    let read = proxy.on(OpCode::Exists).path("/lockkeeper/epoch").hold_request();
    let (events, before) = (proxy.hold_watch_events(), proxy.counts());
    operator.raise_token_epoch(TokenEpoch::new(1).unwrap()).await.unwrap();
    events.caught().await;
    let admin = keeper.admin();
    let asking = tokio::spawn(async move { admin.token_epoch().await });
    // Its write, whose reply comes after the event.
    proxy.wait_until(|counts| counts.since(&before).forwarded.of(OpCode::Check) == 1).await;
    events.release();
    read.caught().await;
    assert!(world.embedded().faults().expire(session).await.unwrap());
    eventually("the call has ended", async || asking.is_finished()).await;
    let answer = asking.await.unwrap();
    assert!(matches!(answer, Err(AdminError::Session(SessionError::ConnectionLost { .. }))), "{answer:?}");
}

/// An invalid epoch is not taken for epoch 0: a token that does not increase is worse than none. Permits have no tokens, so
/// semaphores still work.
async fn an_invalid_epoch_gives_no_tokens(world: &World) {
    let keeper = world.keeper().await;
    // Its token was issued before.
    let before = HelixLock::new(&keeper, world.path("before"), LONG).acquire().await.unwrap();
    world.make("/lockkeeper").await;
    let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    world.observer.create("/lockkeeper/epoch", b"next", &options).await.unwrap();
    match world.mutex(&keeper).acquire().await {
        Err(error @ AcquireError::Session(SessionError::TokenEpoch { .. })) => {
            assert!(error.to_string().contains("\"next\"") && error.hint().is_some(), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let leased = HelixLock::new(&keeper, world.path("leased"), LONG).acquire().await;
    assert!(matches!(leased, Err(AcquireLeaseError::Session(SessionError::TokenEpoch { .. }))), "{leased:?}");
    before.renew().await.unwrap();
    before.release().await.unwrap();
    keeper.semaphore(world.path("permits"), 2).acquire().await.unwrap().release().await.unwrap();
    world.queued(0).await;
    world.observer.set_data("/lockkeeper/epoch", b"1\n", None).await.unwrap();
    eventually("the session has read the new epoch", async || keeper.admin().token_epoch().await.is_ok()).await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    assert!(guard.token().get() > 1 << 48);
    guard.release().await.unwrap();
}
