//! What is left of locks is found and deleted on the embedded server, by its own client.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::embedded::{Server, server_config};
use lockkeeper_session::ensemble::NodeKind;

use lockkeeper::error::AdminError;
use lockkeeper_gc::{Leftover, LeftoverKind, cleanups, leftovers, sweep};

/// The root of records whose write asks for the servers' time.
const RECORDS: [&str; 1] = ["/lockkeeper/jobs"];

/// A server and a client of it.
async fn site() -> (Server, Lockkeeper) {
    let server = Server::start(server_config().with_listen(([127, 0, 0, 1], 0).into())).await.unwrap();
    let keeper = Lockkeeper::connect(&server.connect_string()).await.unwrap();
    create(&keeper, &["/locks"]).await;
    (server, keeper)
}

/// Creates persistent nodes without data.
async fn create(keeper: &Lockkeeper, paths: &[&str]) {
    for path in paths {
        let (path, keeper) = ((*path).to_owned(), keeper.clone());
        let created = keeper.sessions().ask(async move |ensemble| {
            ensemble.create(&path, Vec::new(), NodeKind::Persistent).await.unwrap();
            Ok::<_, AdminError>(())
        });
        created.await.unwrap();
    }
}

/// Writes a node, as a person with another client does.
async fn write(keeper: &Lockkeeper, path: &str, data: &str) {
    let (path, data, keeper) = (path.to_owned(), data.as_bytes().to_vec(), keeper.clone());
    let written = keeper.sessions().ask(async move |ensemble| {
        ensemble.write(&path, data, None).await.unwrap();
        Ok::<_, AdminError>(())
    });
    written.await.unwrap();
}

async fn found(keeper: &Lockkeeper) -> Vec<Leftover> {
    leftovers(keeper, "/", &RECORDS, None).await.unwrap().nodes
}

fn paths(leftovers: &[Leftover]) -> Vec<&str> {
    leftovers.iter().map(|leftover| leftover.path.as_str()).collect()
}

#[tokio::test]
async fn a_lock_in_use_is_not_left_and_a_root_that_does_not_exist_has_nothing() {
    let (_server, keeper) = site().await;
    create(&keeper, &["/locks/team", "/locks/team/a", "/locks/b"]).await;
    let guard = keeper.mutex("/locks/b").acquire().await.unwrap();
    assert_eq!(paths(&found(&keeper).await), ["/locks/team/a"]);
    assert_eq!(leftovers(&keeper, "/nowhere", &RECORDS, None).await.unwrap().nodes, []);
    assert!(leftovers(&keeper, "no path", &RECORDS, None).await.is_err());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_leftover_is_found_at_every_depth() {
    let (_server, keeper) = site().await;
    let deepest = "/locks".to_owned() + &"/a".repeat(40);
    let ends = deepest.match_indices('/').skip(2).map(|(at, _)| at).chain([deepest.len()]);
    create(&keeper, &ends.map(|end| &deepest[..end]).collect::<Vec<_>>()).await;
    assert_eq!(paths(&found(&keeper).await), [deepest]);
}

/// Between the look and the deletion, one node got a child, one was written, and one was deleted.
#[tokio::test]
async fn a_node_that_has_changed_since_it_was_found_stays() {
    let (_server, keeper) = site().await;
    create(&keeper, &["/locks/changed", "/locks/deleted", "/locks/same", "/locks/used", "/locks/used-not"]).await;
    let old = found(&keeper).await;
    assert_eq!(old.len(), 5);
    create(&keeper, &["/locks/used/child"]).await;
    write(&keeper, "/locks/changed", "in use by Ann").await;
    let deleted: Vec<_> = old.iter().filter(|leftover| leftover.path == "/locks/deleted").cloned().collect();
    assert_eq!(sweep(&keeper, "/locks", &deleted).await.unwrap().deleted, ["/locks/deleted"]);
    let swept = sweep(&keeper, "/locks", &old).await.unwrap();
    assert_eq!(swept.deleted, ["/locks/same", "/locks/used-not"]);
    assert_eq!(swept.changed, ["/locks/changed", "/locks/deleted", "/locks/used"]);
    let left = found(&keeper).await;
    assert_eq!(paths(&left), ["/locks/changed", "/locks/used/child"]);
    assert_eq!(left[0].kind, LeftoverKind::Note);
    // Only what was deleted is recorded.
    let recorded = cleanups(&keeper, "/").await.unwrap();
    let recorded: Vec<_> = recorded.iter().map(|cleanup| (cleanup.what.as_str(), &cleanup.nodes[..])).collect();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        recorded,
        [("empty", &names(&["/locks/deleted"])[..]), ("empty", &names(&["/locks/same", "/locks/used-not"])[..])]
    );
    let swept = sweep(&keeper, "/locks", &left).await.unwrap();
    assert_eq!((swept.deleted, swept.changed.len()), (vec!["/locks/used/child".to_owned()], 0), "a note is left out");
}

/// The lock was used after its neighbour was created, and nothing happened since: its last use has no date.
#[tokio::test]
async fn a_last_use_that_nothing_dates_counts_as_one_of_now() {
    let (_server, keeper) = site().await;
    create(&keeper, &["/locks/used", "/locks/never-used"]).await;
    let guard = keeper.mutex("/locks/used").acquire().await.unwrap();
    guard.release().await.unwrap();
    let left = leftovers(&keeper, "/locks", &RECORDS, None).await.unwrap();
    let [never, used] = &left.nodes[..] else { panic!("{left:?}") };
    assert_eq!(never.unused_since_ms, Some(never.created_ms));
    assert!(never.is_unused(never.created_ms + 1_000, Duration::from_secs(1)));
    assert_eq!(used.unused_since_ms, None);
    assert!(!used.is_unused(i64::MAX, Duration::ZERO));
    create(&keeper, &["/locks/later"]).await;
    let left = found(&keeper).await;
    let [later, _, used] = &left[..] else { panic!("{left:?}") };
    assert_eq!(used.unused_since_ms, Some(later.created_ms));
}
