//! Asking a holder or a waiter to release: any client that may write its node may ask, and a request takes nothing by force.

use std::time::Duration;

use lockkeeper::admin::Owner;
use lockkeeper::error::{AcquireError, Misuse};
use lockkeeper::{Lockkeeper, NodeFormat, Revocation};
use lockkeeper_testkit::proxy::{OpCode, Proxy, Record, What};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Held, Kind, PATIENCE, STEADY, Stalls, World, eventually, for_every_kind};

for_every_kind!(
    a_revocation_word_asks_the_holder_and_takes_nothing,
    a_revocation_request_says_who_asks_and_why,
    a_repeated_request_is_one_and_a_refusal_allows_the_next,
    other_words_mean_nothing,
    a_request_written_before_the_first_read_is_not_missed,
    a_waiter_that_is_asked_withdraws,
    a_request_survives_a_disconnect,
);

/// The words with which foreign clients ask.
const WORDS: [&str; 2] = ["unlock", "__REVOKE__"];

/// Writes into a node, as any client may.
async fn write(world: &World, node: &str, data: &[u8]) {
    world.observer.set_data(node, data, None).await.unwrap_or_else(|error| panic!("{node}: {error}"));
}

async fn read(world: &World, node: &str) -> Vec<u8> {
    world.observer.get_data(node).await.unwrap_or_else(|error| panic!("{node}: {error}")).0
}

/// Adds a request to the node's data and keeps the rest.
async fn ask(world: &World, node: &str, id: &str, reason: &str) {
    let mut record: Value = serde_json::from_slice(&read(world, node).await).unwrap();
    let by = json!({"user": "ops", "host": "desk-3", "pid": 99});
    record["revocation"] = json!({"id": id, "by": by, "reason": reason, "at_ms": 1_700_000_000_000u64});
    write(world, node, record.to_string().as_bytes()).await;
}

/// Acquires, and returns when the holder watches its node.
async fn acquire_watched(world: &World, proxy: &Proxy, keeper: &Lockkeeper) -> Held {
    let guard = world.subject(keeper).acquire().await.unwrap();
    wait_until_read(proxy, &guard, 1).await;
    guard
}

/// Waits until the holder has read its own node that often: each read sets its watch.
async fn wait_until_read(proxy: &Proxy, guard: &Held, times: usize) {
    let (node, reply) = (guard.node(), OpCode::GetData);
    let read = |record: &Record| matches!(&record.what, What::Reply { op, path: Some(path), .. } if *op == reply && *path == node);
    eventually("the node was read often enough", async || {
        proxy.records().iter().filter(|record| read(record)).count() >= times
    })
    .await;
}

/// Returns the revocation that the holder sees.
async fn revocation(guard: &Held) -> Revocation {
    tokio::time::timeout(PATIENCE, guard.revocation()).await.expect("the holder saw no request")
}

/// N-31..N-34, T-24..T-28: the holder sees each word within a second, and the word takes nothing: the holder keeps the lock
/// until it releases, and its node's data is restored.
async fn a_revocation_word_asks_the_holder_and_takes_nothing(world: &World) {
    let (keeper, other) = (world.keeper().await, world.keeper().await);
    let (mut delays, stalls) = (Vec::new(), Stalls::watch());
    for word in WORDS {
        let guard = world.subject(&keeper).acquire().message("nightly index").await.unwrap();
        assert_eq!(guard.revocation_requested(), None);
        let asked = Instant::now();
        write(world, &guard.node(), word.as_bytes()).await;
        assert_eq!(revocation(&guard).await, Revocation::default());
        delays.push(asked.elapsed());
        assert_eq!(guard.revocation_requested(), Some(Revocation::default()));
        eventually("the node's data is restored", async || {
            let seen = keeper.admin().show(&world.lock()).await.unwrap();
            seen.holders[0].message.as_deref() == Some("nightly index")
        })
        .await;
        assert!(guard.is_held());
        assert!(matches!(world.rival(&other).try_acquire().await, Err(AcquireError::Held { .. })));
        guard.release().await.unwrap();
        world.rival(&other).try_acquire().await.unwrap().release().await.unwrap();
    }
    let most = stalls.allow(Duration::from_secs(1));
    println!("seen after {delays:?}, at most {most:?}");
    assert!(delays.iter().max() < Some(&most), "{delays:?}, at most {most:?}");
}

/// T-26, T-27: the request is a part of the node's data, so asking erases nothing.
async fn a_revocation_request_says_who_asks_and_why(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().message("nightly index").await.unwrap();
    ask(world, &guard.node(), "one", "deploying").await;
    let asked = revocation(&guard).await;
    let owner = Owner { user: "ops".into(), host: "desk-3".into(), pid: 99, program: None };
    assert_eq!((asked.by.as_ref(), asked.reason.as_deref()), (Some(&owner), Some("deploying")));
    assert!(asked.to_string().contains("desk-3") && asked.to_string().contains("deploying"), "{asked}");
    let seen = keeper.admin().show(&world.lock()).await.unwrap();
    assert_eq!(seen.holders[0].message.as_deref(), Some("nightly index"));
    guard.release().await.unwrap();
}

/// T-29: a request is reported once per request to every call. The refusal is written into the node for the asker, and only a
/// new request is reported again.
async fn a_repeated_request_is_one_and_a_refusal_allows_the_next(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.subject(&keeper).acquire().message("nightly index").await.unwrap();
    ask(world, &guard.node(), "one", "deploying").await;
    assert_eq!(revocation(&guard).await.id, "one");
    ask(world, &guard.node(), "one", "deploying still").await;
    assert_eq!(revocation(&guard).await.reason.as_deref(), Some("deploying"));
    match guard.refuse_revocation(&"x".repeat(4097)) {
        Err(Misuse { argument: "refusal", problem, .. }) if problem.contains("4097 bytes; the limit is 4096") => {}
        other => panic!("{other:?}"),
    }
    guard.refuse_revocation("half done").unwrap();
    eventually("the refusal can be read", async || {
        let record: Value = serde_json::from_slice(&read(world, &guard.node()).await).unwrap();
        record["revocation"]["refused"] == "half done" && record["message"] == "nightly index"
    })
    .await;
    assert_eq!(guard.revocation_requested(), None);
    assert!(guard.is_held());
    for id in ["three", "four"] {
        ask(world, &guard.node(), id, "now").await;
        assert_eq!(revocation(&guard).await.id, id);
        guard.refuse_revocation("still at it").unwrap();
        eventually("the refusal can be read", async || {
            let record: Value = serde_json::from_slice(&read(world, &guard.node()).await).unwrap();
            record["revocation"]["refused"] == "still at it" && record["revocation"]["id"] == id
        })
        .await;
    }
    guard.release().await.unwrap();
}

/// N-32, N-33: the holder wakes, reads, and watches again; it sees the word that follows.
async fn other_words_mean_nothing(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = acquire_watched(world, &proxy, &keeper).await;
    let before = proxy.counts();
    let words = ["", "unlock ", "UNLOCK", "unlock\0", "{\"lockkeeper\":1}", "[]"];
    for (written, word) in words.into_iter().enumerate() {
        write(world, &guard.node(), word.as_bytes()).await;
        wait_until_read(&proxy, &guard, written + 2).await;
    }
    assert_eq!(proxy.counts().since(&before).watch_events, 6);
    assert_eq!(guard.revocation_requested(), None);
    write(world, &guard.node(), b"unlock").await;
    revocation(&guard).await;
    guard.release().await.unwrap();
}

/// T-30: the read that sets the watch returns the request.
async fn a_request_written_before_the_first_read_is_not_missed(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    world.subject(&keeper).acquire().await.unwrap().release().await.unwrap();
    let guard = {
        // Among the reads, only that of the contender's own node matches.
        let read = proxy.on(OpCode::GetData).path(own_nodes(world)).hold_request();
        let guard = world.subject(&keeper).acquire().await.unwrap();
        read.caught().await;
        write(world, &guard.node(), b"unlock").await;
        assert_eq!(guard.revocation_requested(), None);
        guard
    };
    revocation(&guard).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// Returns a part that all paths of the subject's nodes contain, but not those of its lock and its marker.
fn own_nodes(world: &World) -> String {
    let start = match world.kind.node_format() {
        NodeFormat::Curator => "_c_",
        NodeFormat::Recipe if world.kind == Kind::Recipe => "lock-",
        NodeFormat::Recipe if world.kind == Kind::RecipeRead => "read-",
        NodeFormat::Recipe => "write-",
        NodeFormat::Kazoo => "",
        NodeFormat::Numbered => "0",
        _ if world.kind == Kind::Foreground => "A-",
        _ => "B-",
    };
    world.node(start)
}

/// The caller gets an error that names the asker, its node is deleted, and the next waiter moves up.
async fn a_waiter_that_is_asked_withdraws(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let guard = world.rival(&one).acquire().await.unwrap();
    let waiter = world.enqueue(world.subject(&other).acquire()).await;
    let next = world.enqueue(world.rival(&one).acquire()).await;
    let node = world.queue().await.remove(1);
    ask(world, &world.node(&node), "one", "deploying").await;
    match waiter.outcome().await {
        Err(error @ AcquireError::Revoked { .. }) => {
            let text = error.to_string();
            assert!(text.contains("desk-3") && text.contains("deploying") && !error.kind().is_retryable(), "{text}");
        }
        other => panic!("{other:?}"),
    }
    eventually("the waiter's node is deleted", async || !world.queue().await.contains(&node)).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    next.granted().await.release().await.unwrap();
    // A bare word does the same.
    let guard = world.rival(&one).acquire().await.unwrap();
    let waiter = world.enqueue(world.subject(&other).acquire()).await;
    let node = world.queue().await.remove(1);
    write(world, &world.node(&node), b"unlock").await;
    assert!(matches!(waiter.outcome().await, Err(AcquireError::Revoked { .. })));
    guard.release().await.unwrap();
}

/// A request written during the holder's disconnect: the watch, set again, reports it.
async fn a_request_survives_a_disconnect(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = acquire_watched(world, &proxy, &keeper).await;
    proxy.refuse();
    proxy.cut(lockkeeper_testkit::proxy::Cut::Reset);
    write(world, &guard.node(), b"unlock").await;
    assert_eq!(guard.revocation_requested(), None);
    proxy.heal();
    revocation(&guard).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}
