//! The crate zookeeper-client against our server.

use std::time::Duration;

use lockkeeper_server::{OpCode, Server};
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

/// The client's own lock recipe, so that it runs on all of what recipes need.
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
