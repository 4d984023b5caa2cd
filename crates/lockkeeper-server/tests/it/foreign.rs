//! Tests with the crate zookeeper-client.

use std::time::Duration;

use lockkeeper_server::{Config, OpCode, Secret, Server};
use zookeeper_client::{Acls, Client, CreateMode, Error, EventType, LockPrefix};

const OPEN: Acls<'static> = Acls::anyone_all();

async fn client(server: &Server) -> Client {
    Client::connector().with_session_timeout(Duration::from_secs(4)).connect(&server.connect_string()).await.unwrap()
}

#[tokio::test]
async fn a_foreign_client_creates_reads_watches_and_deletes() {
    let server = Server::ephemeral().await.unwrap();
    let one = client(&server).await;
    let two = client(&server).await;
    let (_, missing) = one.check_and_watch_stat("/a").await.unwrap();
    let (stat, sequence) = two.create("/a", b"1", &CreateMode::Persistent.with_acls(OPEN)).await.unwrap();
    assert_eq!(sequence.into_i64(), -1);
    let event = missing.changed().await;
    assert_eq!((event.event_type, event.path.as_str()), (EventType::NodeCreated, "/a"));
    let (data, read, changed) = one.get_and_watch_data("/a").await.unwrap();
    assert_eq!((data.as_slice(), read), (&b"1"[..], stat));
    let stat = two.set_data("/a", b"22", Some(0)).await.unwrap();
    assert_eq!((stat.version, stat.data_length), (1, 2));
    assert_eq!(changed.changed().await.event_type, EventType::NodeDataChanged);
    assert_eq!(two.set_data("/a", b"22", Some(0)).await, Err(Error::BadVersion));
    let (_, sequence) = one.create("/a/b-", b"", &CreateMode::EphemeralSequential.with_acls(OPEN)).await.unwrap();
    assert_eq!(sequence.to_string(), "0000000000");
    let (children, _, children_changed) = two.get_and_watch_children("/a").await.unwrap();
    assert_eq!(children, ["b-0000000000"]);
    assert_eq!(two.delete("/a", None).await, Err(Error::NotEmpty));
    drop(one);
    assert_eq!(children_changed.changed().await.event_type, EventType::NodeChildrenChanged);
    assert_eq!(two.list_children("/a").await.unwrap(), Vec::<String>::new());
    two.delete("/a", None).await.unwrap();
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_dropped_watcher_is_removed_from_the_server() {
    let server = Server::ephemeral().await.unwrap();
    let client = client(&server).await;
    let (_, watcher) = client.check_and_watch_stat("/nothing").await.unwrap();
    assert_eq!(server.stats().watches, 1);
    drop(watcher);
    while server.stats().watches != 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(server.stats().requests(OpCode::RemoveWatches), 1);
}

#[tokio::test]
async fn a_multi_of_a_foreign_client_is_all_or_nothing() {
    let server = Server::ephemeral().await.unwrap();
    let client = client(&server).await;
    let mut writer = client.new_multi_writer();
    let persistent = CreateMode::Persistent.with_acls(OPEN);
    writer.add_create("/m", b"", &persistent).unwrap();
    writer.add_create("/m/x", b"", &persistent).unwrap();
    writer.add_delete("/missing", None).unwrap();
    assert!(writer.commit().await.is_err());
    assert_eq!(client.check_stat("/m").await.unwrap(), None);
    let mut writer = client.new_multi_writer();
    writer.add_create("/m", b"", &persistent).unwrap();
    writer.add_create("/m/x", b"", &persistent).unwrap();
    writer.add_check_version("/m/x", 0).unwrap();
    assert_eq!(writer.commit().await.unwrap().len(), 3);
    let mut reader = client.new_multi_reader();
    reader.add_get_children("/m").unwrap();
    reader.add_get_data("/m/x").unwrap();
    assert_eq!(reader.commit().await.unwrap().len(), 2);
}

/// The client's own lock recipe works, and so does everything that recipes need.
#[tokio::test]
async fn a_foreign_lock_recipe_hands_over() {
    let server = Server::ephemeral().await.unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let container = CreateMode::Container.with_acls(OPEN);
    one.mkdir("/locks/one", &container).await.unwrap();
    let prefix = || LockPrefix::new_curator("/locks/one", "lock-").unwrap();
    let held = one.lock(prefix(), b"one", OPEN).await.unwrap();
    let waiting = tokio::spawn(async move { two.lock(prefix(), b"two", OPEN).await.map(|_| ()) });
    while server.stats().watches == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(held);
    waiting.await.unwrap().unwrap();
}

/// Case 15: the client reconnects with its session, its ephemeral nodes and its watches, and gets the events that it
/// missed.
#[tokio::test]
async fn a_foreign_client_keeps_its_session_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let config = || Config::default().with_directory(directory.path()).with_tick(Duration::from_millis(500));
    let server = Server::start(config()).await.unwrap();
    let addr = server.addr();
    let client = client(&server).await;
    client.create("/e", b"", &CreateMode::Ephemeral.with_acls(OPEN)).await.unwrap();
    let session = client.session_id();
    let (_, watcher) = client.check_and_watch_stat("/later").await.unwrap();
    server.shutdown().await.unwrap();
    let server = Server::start(config().with_listen(addr)).await.unwrap();
    let stat = loop {
        match client.check_stat("/e").await {
            Ok(stat) => break stat.unwrap(),
            Err(Error::ConnectionLoss) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(stat.ephemeral_owner, session.0);
    client.create("/later", b"", &CreateMode::Persistent.with_acls(OPEN)).await.unwrap();
    assert_eq!(watcher.changed().await.event_type, EventType::NodeCreated);
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_foreign_client_presents_the_secret_as_auth() {
    let config = Config::default().with_secret(Secret::new(*b"open sesame"));
    let server = Server::start(config).await.unwrap();
    let connect = async |secret: &[u8]| {
        Client::connector().with_auth(Secret::SCHEME, secret).connect(&server.connect_string()).await
    };
    let client = connect(b"open sesame").await.unwrap();
    client.create("/a", b"", &CreateMode::Persistent.with_acls(OPEN)).await.unwrap();
    let refused = match connect(b"guess").await {
        Ok(client) => client.check_stat("/a").await.map(|_| ()),
        Err(error) => Err(error),
    };
    assert_eq!(refused, Err(Error::AuthFailed));
    assert_eq!(client.list_children("/").await.unwrap(), ["a", "zookeeper"]);
}
