//! The typed calls and the connect string, with the embedded server.

use std::time::Duration;

use lockkeeper_client::wire::{Acl, AclId, CreateMode, ErrorCode, EventKind, OpResult, ReadOp, VersionedPath, WriteOp};
use lockkeeper_client::{Client, Config, MultiError, RequestError, Servers};
use lockkeeper_server::Server;

const TIMEOUT: Duration = Duration::from_secs(10);
const OPEN: &[Acl] = &[Acl::OPEN];

/// Opens a session below this chroot, which may be empty.
fn open(server: &Server, chroot: &str) -> Client {
    let servers = format!("{}{chroot}", server.connect_string());
    Client::open(servers.parse().unwrap(), Config::new(TIMEOUT)).0
}

#[tokio::test]
async fn each_call_does_what_it_says() {
    let server = Server::ephemeral().await.unwrap();
    let client = open(&server, "");
    let refused = |error| Err(RequestError::Refused(error));

    let (path, stat) = client.create("/a", "one", OPEN, CreateMode::Persistent).await.unwrap();
    assert_eq!((&*path, stat.data_length), ("/a", 3));
    assert_eq!(client.create("/a", "", OPEN, CreateMode::Persistent).await.map(drop), refused(ErrorCode::NodeExists));
    client.create("/box", "", OPEN, CreateMode::Container).await.unwrap();
    client.create_with_ttl("/ttl", "", OPEN, false, Duration::from_secs(60)).await.unwrap();
    let (path, _) = client.create_with_ttl("/ttl-", "", OPEN, true, Duration::from_secs(60)).await.unwrap();
    assert_eq!(path.len(), "/ttl-".len() + 10);

    assert_eq!(client.get("/a").await.unwrap().0, "one");
    assert_eq!(client.set("/a", "two", Some(7)).await, refused(ErrorCode::BadVersion).map(|()| stat));
    assert_eq!(client.set("/a", "two", Some(0)).await.unwrap().version, 1);
    assert_eq!(client.exists("/a").await.unwrap().map(|stat| stat.version), Some(1));
    assert_eq!(client.exists("/none").await, Ok(None));
    client.sync("/a").await.unwrap();

    client.create("/a/b", "", OPEN, CreateMode::Ephemeral).await.unwrap();
    let (names, stat) = client.children("/a").await.unwrap();
    assert_eq!((names, stat.num_children), (vec!["b".into()], 1));
    assert_eq!(client.count_descendants("/a").await, Ok(1));
    assert_eq!(client.ephemerals("/a").await.unwrap(), ["/a/b".into()]);
    assert_eq!(client.delete("/a", None).await, refused(ErrorCode::NotEmpty));
    client.delete("/a/b", Some(0)).await.unwrap();

    client.add_credential("digest", "u:p");
    assert!(client.who_am_i().await.unwrap().contains(&("digest".to_owned(), Some("u".to_owned()))));
    let own = [Acl { perms: 31, id: AclId::Other { scheme: "auth".to_owned(), id: String::new() } }];
    client.set_acl("/a", &own, Some(0)).await.unwrap();
    let (acl, stat) = client.acl("/a").await.unwrap();
    assert!(matches!(&acl[..], [Acl { id: AclId::Other { scheme, .. }, .. }] if scheme == "digest"));
    assert_eq!(stat.aversion, 1);
    assert_eq!(open(&server, "").get("/a").await.map(drop), refused(ErrorCode::NoAuth));
}

#[tokio::test]
async fn a_transaction_names_the_operation_that_failed() {
    let server = Server::ephemeral().await.unwrap();
    let client = open(&server, "");
    let delete = |path: &str| WriteOp::Delete(VersionedPath { path: path.to_owned(), version: -1 });
    let create = |path: &str| WriteOp::Create(lockkeeper_client::wire::Create::new(path, "", CreateMode::Persistent));
    let failed = client.multi(vec![create("/a"), delete("/none"), create("/b")]).await;
    assert_eq!(failed, Err(MultiError::Operation { index: 1, error: ErrorCode::NoNode }));
    assert_eq!(client.exists("/a").await, Ok(None));
    let done = client.multi(vec![create("/a"), create("/a/b"), delete("/a/b")]).await.unwrap();
    assert!(matches!(&done[..], [OpResult::Created { .. }, OpResult::Created { .. }, OpResult::Deleted]));
    let reads = vec![ReadOp::GetChildren { path: "/a".to_owned() }, ReadOp::GetData { path: "/b".to_owned() }];
    let read = client.multi_read(reads).await.unwrap();
    assert_eq!(read, [OpResult::Children(Vec::new()), OpResult::Failed(ErrorCode::NoNode)]);
}

#[tokio::test]
async fn a_watch_of_each_kind_fires() {
    let server = Server::ephemeral().await.unwrap();
    let client = open(&server, "");
    let (missing, created) = client.exists_and_watch("/a").await;
    assert_eq!(missing, Ok(None));
    client.create("/a", "", OPEN, CreateMode::Persistent).await.unwrap();
    let (_, changed) = client.get_and_watch("/a").await;
    let (_, listed) = client.children_and_watch("/a").await;
    client.create("/a/b", "", OPEN, CreateMode::Persistent).await.unwrap();
    client.set("/a", "x", None).await.unwrap();
    let mut kinds = Vec::new();
    for watcher in [created, changed, listed] {
        kinds.push(watcher.await.unwrap().kind);
    }
    assert_eq!(kinds, [EventKind::Created, EventKind::DataChanged, EventKind::ChildrenChanged]);
    // A read that fails leaves no watch.
    let (failed, watcher) = client.get_and_watch("/none").await;
    assert_eq!(failed.map(drop), Err(RequestError::Refused(ErrorCode::NoNode)));
    drop(watcher);
}

#[tokio::test]
async fn a_chroot_is_on_every_path_that_is_sent_and_on_none_that_is_returned() {
    let server = Server::ephemeral().await.unwrap();
    let outside = open(&server, "");
    outside.create("/app", "", OPEN, CreateMode::Persistent).await.unwrap();
    outside.create("/apples", "", OPEN, CreateMode::Ephemeral).await.unwrap();
    let client = open(&server, "/app");
    let mut all = client.watch("/", true).await.unwrap();
    let (path, _) = client.create("/n-", "", OPEN, CreateMode::EphemeralSequential).await.unwrap();
    assert_eq!(&*path, "/n-0000000000");
    assert!(outside.exists("/app/n-0000000000").await.unwrap().is_some());
    assert_eq!(&*all.next().await.unwrap().path, "/n-0000000000");
    assert_eq!(client.children("/").await.unwrap().0, ["n-0000000000".into()]);
    assert_eq!(client.ephemerals("").await.unwrap(), std::slice::from_ref(&path));
    let (_, watcher) = client.get_and_watch("/").await;
    outside.set("/app", "x", None).await.unwrap();
    assert_eq!(&*watcher.await.unwrap().path, "/");
    let ops = vec![WriteOp::Create(lockkeeper_client::wire::Create::new("/m", "", CreateMode::Persistent))];
    let done = client.multi(ops).await.unwrap();
    assert!(matches!(&done[..], [OpResult::Created { path, .. }] if &**path == "/m"));
    assert_eq!(client.get("relative").await.map(drop), Err(RequestError::Refused(ErrorCode::BadArguments)));
}

#[tokio::test]
async fn a_session_goes_on_with_the_servers_that_can_be_reached() {
    let server = Server::ephemeral().await.unwrap();
    // Port 1 refuses connections, and the name does not exist.
    let servers: Servers = format!("127.0.0.1:1,no-such-host.invalid,{}", server.connect_string()).parse().unwrap();
    for _ in 0..5 {
        let (client, _states) = Client::open(servers.clone(), Config::new(TIMEOUT));
        assert_eq!(client.exists("/a").await, Ok(None));
        assert!(client.connect_errors().iter().all(|(_, error)| error.is_none()));
    }
}
