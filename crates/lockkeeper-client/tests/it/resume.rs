//! Many watches over a cut.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lockkeeper_client::wire::{Acl, CreateMode, EventKind};
use lockkeeper_client::{Client, Config, ConnectionState};
use lockkeeper_server::Server;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Enough for several packets. At full size, a server that reads them all takes seconds on a busy machine.
const WATCHES: usize = if cfg!(deep) { 100_000 } else { 10_000 };

/// Listens in front of a server. While the value is `false`, it ends all connections, and no other one opens.
async fn forward(listener: TcpListener, server: SocketAddr, open: watch::Receiver<bool>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut open = open.clone();
        if *open.borrow_and_update() {
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => {}
                    _ = open.changed() => {}
                }
            });
        }
    }
}

#[tokio::test]
async fn many_watches_go_on_after_a_cut_without_a_read_of_each_node() {
    let server = Server::ephemeral().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (proxy, open) = (listener.local_addr().unwrap(), watch::Sender::new(true));
    tokio::spawn(forward(listener, server.addr(), open.subscribe()));
    let config = || Config::new(Duration::from_secs(30));
    let (client, mut states) = Client::open(proxy.to_string().parse().unwrap(), config());
    let (other, _) = Client::open(server.connect_string().parse().unwrap(), config());
    assert_eq!(states.recv().await, Some(ConnectionState::Connected));

    let path = |number: usize| format!("/a-name-that-fills-several-packets-{number:010}");
    let mut watchers = Vec::new();
    // In parts: the proxy forwards on this thread.
    for part in 0..WATCHES / 1_000 {
        let numbers = part * 1_000..(part + 1) * 1_000;
        let asked: Vec<_> = numbers.map(|number| client.exists_and_watch(&path(number))).collect();
        for reply in asked {
            let (missing, watcher) = reply.await;
            assert_eq!(missing, Ok(None));
            watchers.push(watcher);
        }
    }
    open.send_replace(false);
    assert_eq!(states.recv().await, Some(ConnectionState::Disconnected));
    let create = async |number| {
        other.create(&path(number), "", &[Acl::OPEN], CreateMode::Persistent).await.unwrap();
    };
    for number in (0..WATCHES).step_by(1_000) {
        create(number).await;
    }
    let before = server.stats().packets_received;
    open.send_replace(true);
    // On a busy machine, the session has tried its only server several times.
    while states.recv().await.unwrap() != ConnectionState::Connected {}
    client.sync("/").await.unwrap();
    let packets = server.stats().packets_received - before;
    assert!(packets < 100, "{packets} packets for {WATCHES} watches");

    // Those that are left were set again, too.
    for number in (0..WATCHES).skip(500).step_by(1_000) {
        create(number).await;
    }
    client.sync("/").await.unwrap();
    for (number, mut watcher) in watchers.into_iter().enumerate() {
        if number % 500 == 0 {
            assert_eq!(watcher.await.unwrap().kind, EventKind::Created);
        } else {
            let fired = Pin::new(&mut watcher).poll(&mut Context::from_waker(Waker::noop()));
            assert!(fired.is_pending(), "watch {number} has fired");
        }
    }
}
