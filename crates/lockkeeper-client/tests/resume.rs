//! Many watches over a cut.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "differential/proxy.rs"]
#[allow(dead_code, reason = "shared with the scripts, which lose single requests")]
mod proxy;

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lockkeeper_client::wire::{Acl, CreateMode, EventKind};
use lockkeeper_client::{Client, Config, ConnectionState};
use lockkeeper_server::Server;
use proxy::{Loss, Proxy};

const WATCHES: usize = 20_000;

#[tokio::test]
async fn many_watches_go_on_after_a_cut_without_a_read_of_each_node() {
    let server = Server::ephemeral().await.unwrap();
    let proxy = Proxy::start(server.addr()).await;
    let config = || Config::new(Duration::from_secs(30));
    let (client, mut states) = Client::open(proxy.addr.to_string().parse().unwrap(), config());
    let (other, _) = Client::open(server.connect_string().parse().unwrap(), config());
    assert_eq!(states.recv().await, Some(ConnectionState::Connected));

    let path = |number: usize| format!("/a-name-that-fills-several-packets-{number:010}");
    let asked: Vec<_> = (0..WATCHES).map(|number| client.exists_and_watch(&path(number))).collect();
    let mut watchers = Vec::new();
    for reply in asked {
        let (missing, watcher) = reply.await;
        assert_eq!(missing, Ok(None));
        watchers.push(watcher);
    }
    proxy.lose(Loss::All);
    assert_eq!(states.recv().await, Some(ConnectionState::Disconnected));
    let create = async |number| {
        other.create(&path(number), "", &[Acl::OPEN], CreateMode::Persistent).await.unwrap();
    };
    for number in (0..WATCHES).step_by(100) {
        create(number).await;
    }
    let before = server.stats().packets_received;
    proxy.lose(Loss::None);
    assert_eq!(states.recv().await, Some(ConnectionState::Connected));
    client.sync("/").await.unwrap();
    let packets = server.stats().packets_received - before;
    assert!(packets < 20, "{packets} packets for {WATCHES} watches");

    // Those that are left were set again, too.
    for number in (0..WATCHES).skip(50).step_by(100) {
        create(number).await;
    }
    client.sync("/").await.unwrap();
    for (number, mut watcher) in watchers.into_iter().enumerate() {
        if number % 50 == 0 {
            assert_eq!(watcher.await.unwrap().kind, EventKind::Created);
        } else {
            let fired = Pin::new(&mut watcher).poll(&mut Context::from_waker(Waker::noop()));
            assert!(fired.is_pending(), "watch {number} has fired");
        }
    }
}
