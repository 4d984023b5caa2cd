//! A search for a server's address that takes longer than an attempt.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_client::{Client, Config, Connect, Connecting, ConnectionState, Searching, Stream};
use lockkeeper_server::Server;
use tokio::net::TcpStream;

/// Two servers. The search for the one that is tried first never ends, but a second search for it does. The other one
/// refuses connections when it is gone.
struct Slow {
    server: SocketAddr,
    first: Mutex<Option<usize>>,
    gone: AtomicBool,
    refused: AtomicUsize,
}

impl Connect for Slow {
    fn servers(&self) -> usize {
        2
    }

    fn connect(&self, server: usize) -> Searching {
        let mut first = self.first.lock().unwrap();
        if first.is_none() {
            *first = Some(server);
            return Box::pin(std::future::pending());
        }
        let (address, refuses) = (self.server, *first != Some(server) && self.gone.load(Relaxed));
        let refused = self.refused.fetch_add(refuses.into(), Relaxed);
        assert!(refused < 5, "the other server had its turn several times and was not searched again");
        let connecting: Connecting = Box::pin(async move {
            if refuses {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            Ok(Box::new(TcpStream::connect(address).await?) as Box<dyn Stream>)
        });
        Box::pin(std::future::ready(Ok(connecting)))
    }

    fn name(&self, server: usize) -> String {
        format!("server {server}")
    }
}

/// The addresses of a search that began before a connection may be days old after it.
#[tokio::test]
async fn a_search_from_before_a_connection_is_not_continued_after_it() {
    let server = Server::ephemeral().await.unwrap();
    let (first, gone, refused) = Default::default();
    let slow = Arc::new(Slow { server: server.addr(), first, gone, refused });
    let (client, mut states) = Client::open_with(slow.clone(), Config::new(Duration::from_secs(2)));
    assert_eq!(states.recv().await, Some(ConnectionState::Connected));
    slow.gone.store(true, Relaxed);
    server.faults().cut_all().await.unwrap();
    assert_eq!(states.recv().await, Some(ConnectionState::Disconnected));
    while states.recv().await.expect("the session goes on") != ConnectionState::Connected {}
    client.sync("/").await.unwrap();
}
