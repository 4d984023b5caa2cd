//! The driver over a stream that takes few bytes at a time, and that ends with bytes unsent.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_client::wire::{Acl, CreateMode};
use lockkeeper_client::{Client, Config, Connect, Connecting, ConnectionState, RequestError, Searching};
use lockkeeper_server::Server;
use tokio::io::{AsyncReadExt, copy_bidirectional, duplex};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Bytes that a stream takes while the other end does not read.
const WIDTH: usize = 64;

/// Opens narrow streams to a server. The first one can be cut.
struct Narrow {
    server: SocketAddr,
    opened: AtomicUsize,
    /// The first stream stops reading, and then ends.
    stop: Arc<Notify>,
    end: Arc<Notify>,
    unsent: Arc<Mutex<usize>>,
}

impl Narrow {
    fn new(server: SocketAddr) -> Arc<Narrow> {
        Arc::new(Narrow {
            server,
            opened: AtomicUsize::new(0),
            stop: Arc::default(),
            end: Arc::default(),
            unsent: Arc::default(),
        })
    }
}

impl Connect for Narrow {
    fn servers(&self) -> usize {
        1
    }

    fn connect(&self, _: usize) -> Searching {
        let first = self.opened.fetch_add(1, Ordering::Relaxed) == 0;
        let (server, stop, end, unsent) = (self.server, self.stop.clone(), self.end.clone(), self.unsent.clone());
        let connecting: Connecting = Box::pin(async move {
            let mut tcp = TcpStream::connect(server).await?;
            let (ours, mut theirs) = duplex(WIDTH);
            tokio::spawn(async move {
                tokio::select! {
                    _ = copy_bidirectional(&mut theirs, &mut tcp) => return,
                    () = stop.notified(), if first => {}
                }
                end.notified().await;
                *unsent.lock().unwrap() = theirs.read(&mut [0; WIDTH]).await.unwrap();
            });
            Ok(Box::new(ours) as Box<dyn lockkeeper_client::Stream>)
        });
        Box::pin(std::future::ready(Ok(connecting)))
    }

    fn name(&self, _: usize) -> String {
        "narrow".to_owned()
    }
}

#[tokio::test]
async fn requests_arrive_whole_and_in_order_through_a_narrow_stream() {
    let server = Server::ephemeral().await.unwrap();
    let (client, _states) = Client::open_with(Narrow::new(server.addr()), Config::new(Duration::from_secs(40)));
    // More than the stream and the sockets take at once, so replies arrive while requests are unsent.
    let data = vec![b'x'; 8 << 10];
    let create = |_| client.create("/n-", data.clone(), &[Acl::OPEN], CreateMode::PersistentSequential);
    for round in 0..10 {
        let asked: Vec<_> = (0..100).map(create).collect();
        for (at, reply) in asked.into_iter().enumerate() {
            assert_eq!(*reply.await.unwrap().0, *format!("/n-{:010}", 100 * round + at));
            // A request while the bytes of others are left.
            drop(client.get("/"));
        }
    }
}

#[tokio::test]
async fn the_next_connection_begins_without_the_bytes_that_the_last_one_did_not_send() {
    let server = Server::ephemeral().await.unwrap();
    let narrow = Narrow::new(server.addr());
    let (client, mut states) = Client::open_with(narrow.clone(), Config::new(Duration::from_secs(10)));
    client.sync("/").await.unwrap();
    assert_eq!(states.recv().await, Some(ConnectionState::Connected));
    narrow.stop.notify_one();
    let lost: Vec<_> = (0..100).map(|_| client.get("/")).collect();
    narrow.end.notify_one();
    for reply in lost {
        assert!(matches!(reply.await, Ok(_) | Err(RequestError::ConnectionLoss)));
    }
    assert_eq!(states.recv().await, Some(ConnectionState::Disconnected));
    while states.recv().await.unwrap() != ConnectionState::Connected {}
    client.sync("/").await.unwrap();
    assert_eq!(*narrow.unsent.lock().unwrap(), WIDTH, "the first stream was full");
    assert_eq!(narrow.opened.load(Ordering::Relaxed), 2, "the second connection is accepted at once");
}
