//! What ZooKeeper clients may rely on, request by request.

use std::time::Duration;

use lockkeeper_server::Server;

use crate::client::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_opens_reads_writes_and_closes() {
    let server = Server::ephemeral().await.unwrap();
    let mut client = Client::connect_with(server.addr(), 100_000);
    assert_eq!(client.session.timeout, 2_000, "20 ticks at most");
    assert_eq!(client.create("/a", 0), Ok("/a".to_owned()));
    assert_eq!(client.create("/a", 0), Err(-110));
    assert_eq!(client.create("/a/e", 1), Ok("/a/e".to_owned()));
    assert_eq!(client.create("/a/e/x", 0), Err(-108));
    let (data, stat) = client.get("/a/e", false).unwrap();
    assert_eq!((data.unwrap().as_slice(), stat.owner), (&b"data"[..], client.session.id));
    client.ping();
    let id = client.session.id;
    client.close();
    let mut other = Client::connect_with(server.addr(), 0);
    assert_eq!(other.session.timeout, 200, "2 ticks at least");
    assert!(other.session.id > id);
    assert_eq!(other.exists("/a/e", false), None);
    assert_eq!(other.children("/", false).unwrap(), ["a", "zookeeper"]);
    tokio::time::timeout(Duration::from_secs(10), server.shutdown()).await.unwrap().unwrap();
    other.expect_end();
}
