//! Asking a holder to release the lock.

use std::time::Duration;

use futures_util::FutureExt;
use lockkeeper::admin::{Owner, RevokeAnswer};
use lockkeeper::error::{AcquireError, AdminError};
use lockkeeper::{Lockkeeper, NodeFormat};
use lockkeeper_testkit::proxy::OpCode;
use tokio::time::Instant;

use super::on_every_server;
use crate::support::{PATIENCE, STEADY, Stalls, World, eventually};

on_every_server!(
    case_57_a_holder_sees_who_asks_and_why_and_releases,
    case_57_every_kind_sees_a_revocation_request,
    a_holder_may_refuse_and_is_asked_again,
    a_request_that_replaces_another_is_heard_apart_from_it,
    a_request_keeps_what_the_node_says_when_it_is_written,
    foreign_revocation_words_are_seen_and_the_nodes_data_is_restored,
    a_waiter_that_is_asked_withdraws,
    a_revocation_request_takes_nothing_by_force,
    a_wait_for_an_answer_ends_in_time_although_no_server_answers,
    foreign_holders_are_asked_with_their_own_word,
);

/// N-31, N-32, T-24, T-27: a holder watches its node once the hold is older than a moment, and within a second it sees who asks
/// and why. A control tells a busy machine apart.
async fn case_57_a_holder_sees_who_asks_and_why_and_releases(world: &World) {
    let owner = Owner { user: "ops".into(), host: "desk-3".into(), pid: 99, program: None };
    let asker = Lockkeeper::builder().session_timeout(STEADY).owner(owner.clone());
    let asker = asker.connect(&world.servers()).await.unwrap();
    world.keep_open(&asker);
    let guard = world.keeper().await.mutex(world.lock()).acquire().message("nightly").await.unwrap();
    assert_eq!(guard.revocation_requested(), None);

    let (stalls, since) = (Stalls::watch(), Instant::now());
    let asked = asker.admin().revoke(&world.lock(), Some("deploying")).await.unwrap();
    assert_eq!(asked.len(), 1);
    assert!(guard.node().ends_with(&asked[0].contender().node));
    let heard = tokio::time::timeout(PATIENCE, guard.revocation()).await.unwrap();
    let (took, most) = (since.elapsed(), stalls.allow(Duration::from_secs(1)));
    assert_eq!((heard.by.as_ref(), heard.reason.as_deref()), (Some(&owner), Some("deploying")));
    // Reported by the watch: any other look at the node takes at least a fifth of the session timeout.
    assert!(took < most, "reported after {took:?}, at most {most:?}");
    assert_eq!(guard.revocation_requested(), Some(heard));
    let shown = asker.admin().show(&world.lock()).await.unwrap();
    assert_eq!(shown.holders[0].message.as_deref(), Some("nightly"), "asking erases nothing");
    assert_eq!(shown.holders[0].revocation.as_ref().unwrap().by.as_ref(), Some(&owner));

    let answer = crate::support::spawn(async move { asked[0].answer(PATIENCE).await });
    guard.release().await.unwrap();
    assert_eq!(answer.await.unwrap().unwrap(), RevokeAnswer::Released);
}

/// Case 57: readers, writers, permits, classes.
async fn case_57_every_kind_sees_a_revocation_request(world: &World) {
    let (keeper, admin) = (world.keeper().await, world.keeper().await.admin());
    let [r, w, p, c, z] = ["r", "w", "p", "c", "z"].map(|name| world.path(name));
    let holdings = [
        keeper.rwlock(&r).read().acquire().any().await.unwrap(),
        keeper.rwlock(&r).read().acquire().any().await.unwrap(),
        keeper.rwlock(&w).write().acquire().any().await.unwrap(),
        keeper.semaphore(&p, 2).acquire().any().await.unwrap(),
        keeper.priority_lock(&c).background().acquire().any().await.unwrap(),
        keeper.mutex(&z).node_format(NodeFormat::Kazoo).acquire().any().await.unwrap(),
    ];
    for (path, holders) in [(&r, 2), (&w, 1), (&p, 1), (&c, 1), (&z, 1)] {
        assert_eq!(admin.revoke(path, None).await.unwrap().len(), holders, "{path}");
    }
    for holding in holdings {
        tokio::time::timeout(PATIENCE, holding.revocation()).await.unwrap_or_else(|_| panic!("{}", holding.node()));
        assert!(holding.is_held());
        holding.release().await.unwrap();
    }
}

/// Between the read and the write of the request, the data changes.
async fn a_request_keeps_what_the_node_says_when_it_is_written(world: &World) {
    let proxy = world.proxy().await;
    let (keeper, operator) = (world.keeper().await, world.keeper_through(&proxy, STEADY).await);
    let guard = keeper.mutex(world.lock()).acquire().message("stage one").await.unwrap();
    let (admin, lock) = (operator.admin(), world.lock());
    // The journal exists after this, so the next transaction is the request.
    admin.revoke(&lock, Some("first")).await.unwrap();
    let write = proxy.on(OpCode::Multi).path(guard.node()).hold_request();
    let asking = crate::support::spawn(async move { admin.revoke(&lock, Some("second")).await });
    write.caught().await;
    let (data, _) = world.observer.get_data(&guard.node()).await.unwrap();
    let data = String::from_utf8(data).unwrap().replace("stage one", "stage two");
    world.observer.set_data(&guard.node(), data.as_bytes(), None).await.unwrap();
    write.release();
    asking.await.unwrap().unwrap();
    let shown = keeper.admin().show(&world.lock()).await.unwrap().holders.remove(0);
    assert_eq!(shown.message.as_deref(), Some("stage two"));
    assert_eq!(shown.revocation.unwrap().reason.as_deref(), Some("second"));
    guard.release().await.unwrap();
}

async fn a_request_that_replaces_another_is_heard_apart_from_it(world: &World) {
    let guard = world.keeper().await.mutex(world.lock()).acquire().await.unwrap();
    let admin = world.keeper().await.admin();
    admin.revoke(&world.lock(), Some("first")).await.unwrap();
    let first = tokio::time::timeout(PATIENCE, guard.revocation()).await.unwrap();
    assert_eq!(guard.revocation_after(&first).now_or_never(), None, "it is the same");
    admin.revoke(&world.lock(), Some("second")).await.unwrap();
    let second = tokio::time::timeout(PATIENCE, guard.revocation_after(&first)).await.unwrap();
    assert_eq!(second.reason.as_deref(), Some("second"));
}

async fn a_holder_may_refuse_and_is_asked_again(world: &World) {
    let guard = world.keeper().await.mutex(world.lock()).acquire().await.unwrap();
    let admin = world.keeper().await.admin();
    for round in ["first", "second"] {
        let asked = admin.revoke(&world.lock(), Some(round)).await.unwrap();
        let heard = tokio::time::timeout(PATIENCE, guard.revocation()).await.unwrap();
        assert_eq!(heard.reason.as_deref(), Some(round));
        guard.refuse_revocation("in the middle of it").unwrap();
        assert_eq!(asked[0].answer(PATIENCE).await.unwrap(), RevokeAnswer::Refused("in the middle of it".to_owned()));
        assert_eq!(guard.revocation_requested(), None);
    }
    guard.release().await.unwrap();
}

/// The session is suspected then; it is lost only after most of its timeout.
async fn a_wait_for_an_answer_ends_in_time_although_no_server_answers(world: &World) {
    let proxy = world.proxy().await;
    let admin = world.keeper_through(&proxy, STEADY).await.admin();
    let guard = world.keeper().await.mutex(world.lock()).acquire().await.unwrap();
    let asked = admin.revoke(&world.lock(), None).await.unwrap();
    proxy.black_hole();
    for timeout in [200, 200, 0].map(Duration::from_millis) {
        assert_eq!(asked[0].answer(timeout).await.unwrap(), RevokeAnswer::None);
    }
    proxy.heal();
    guard.release().await.unwrap();
    // The connection may end, because the black hole has swallowed bytes of it.
    eventually("the release is seen", async || matches!(asked[0].answer(PATIENCE).await, Ok(RevokeAnswer::Released)))
        .await;
}

/// N-32, N-33, T-25, T-26, T-29, T-30: the word is read at whatever time it was written, and other data means nothing. The same
/// word again is the same request, which one refusal answers. The node data that the word replaced is written back.
async fn foreign_revocation_words_are_seen_and_the_nodes_data_is_restored(world: &World) {
    let admin = world.keeper().await.admin();
    for word in ["unlock", "__REVOKE__"] {
        // Immediately, before the holder watches its node.
        let guard = world.keeper().await.mutex(world.lock()).acquire().message("nightly").await.unwrap();
        world.observer.set_data(&guard.node(), b"something else", None).await.unwrap();
        world.observer.set_data(&guard.node(), word.as_bytes(), None).await.unwrap();
        world.observer.set_data(&guard.node(), word.as_bytes(), None).await.unwrap();
        let heard = tokio::time::timeout(PATIENCE, guard.revocation()).await.unwrap();
        assert_eq!((heard.by.as_ref(), heard.reason.as_ref()), (None, None));
        let restored = async |refused: Option<&str>| {
            eventually("the node's data is restored", async || {
                let shown = admin.show(&world.lock()).await.unwrap();
                let revocation = shown.holders[0].revocation.as_ref();
                let told = revocation.is_some_and(|revocation| revocation.refused.as_deref() == refused);
                shown.holders[0].message.as_deref() == Some("nightly") && told
            })
            .await;
        };
        restored(None).await;
        // The holder restores the data only after it has read the word again.
        world.observer.set_data(&guard.node(), word.as_bytes(), None).await.unwrap();
        restored(None).await;
        assert_eq!(guard.revocation_after(&heard).now_or_never(), None, "a second request");
        assert_eq!(guard.revocation_requested(), Some(heard));
        guard.refuse_revocation("in the middle of it").unwrap();
        restored(Some("in the middle of it")).await;
        assert_eq!(guard.revocation().now_or_never(), None, "a request without an answer");
        guard.release().await.unwrap();
    }
}

/// A waiter that receives a request withdraws, and the waiter behind it moves up.
async fn a_waiter_that_is_asked_withdraws(world: &World) {
    let guard = world.keeper().await.mutex(world.lock()).acquire().await.unwrap();
    let keeper = world.keeper().await;
    let waiter = world.enqueue_mutex(&keeper).await;
    let next = world.enqueue_mutex(&keeper).await;
    let node = world.queue().await[1].clone();
    let admin = world.keeper().await.admin();
    let asked = admin.revoke_node(&world.lock(), &node, Some("not today")).await.unwrap();
    match waiter.outcome().await {
        Err(AcquireError::Revoked { path, by }) => {
            assert_eq!((path, by.reason.as_deref()), (world.lock(), Some("not today")));
        }
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(asked.answer(PATIENCE).await.unwrap(), RevokeAnswer::Released);
    assert!(guard.is_held());
    guard.release().await.unwrap();
    drop(next.granted().await);
    let missing = admin.revoke_node(&world.lock(), &node, None).await;
    assert!(matches!(missing, Err(AdminError::NotContending { .. })), "{missing:?}");
}

/// T-28: a request alone never takes the lock from its holder.
async fn a_revocation_request_takes_nothing_by_force(world: &World) {
    let guard = world.keeper().await.mutex(world.lock()).acquire().await.unwrap();
    let asked = world.keeper().await.admin().revoke(&world.lock(), None).await.unwrap();
    tokio::time::timeout(PATIENCE, guard.revocation()).await.unwrap();
    assert_eq!(asked[0].answer(Duration::from_millis(200)).await.unwrap(), RevokeAnswer::None);
    assert!(guard.is_held() && world.exists(&guard.node()).await);
    let later = world.keeper().await;
    assert!(matches!(later.mutex(world.lock()).try_acquire().await, Err(AcquireError::Held { .. })));
    guard.release().await.unwrap();
}

/// N-34, T-26: a revocation writes the word that the foreign client knows; if that client knows none, it fails with
/// `CannotAsk`.
async fn foreign_holders_are_asked_with_their_own_word(world: &World) {
    let admin = world.keeper().await.admin();
    for (prefix, word) in
        [("lock-", Some("__REVOKE__")), ("write-", Some("unlock")), ("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__", None)]
    {
        let path = world.path(prefix);
        world.make(&path).await;
        let options = zookeeper_client::CreateMode::EphemeralSequential.with_acls(zookeeper_client::Acls::anyone_all());
        let (_, sequence) = world.observer.create(&format!("{path}/{prefix}"), b"10.1.2.3", &options).await.unwrap();
        let node = format!("{path}/{prefix}{sequence}");
        match (admin.revoke(&path, Some("please")).await, word) {
            (Ok(asked), Some(word)) => {
                assert_eq!(asked.len(), 1);
                let (data, stat) = world.observer.get_data(&node).await.unwrap();
                assert_eq!(data, word.as_bytes());
                // Asked again, there is nothing to write.
                assert_eq!(admin.revoke(&path, Some("please")).await.unwrap().len(), 1);
                assert_eq!(world.observer.get_data(&node).await.unwrap().1.version, stat.version);
            }
            (Err(error @ AdminError::CannotAsk { .. }), None) => assert!(error.hint().is_some(), "{error}"),
            (outcome, _) => panic!("{prefix}: {outcome:?}"),
        }
        world.remove(&node).await;
    }
}
