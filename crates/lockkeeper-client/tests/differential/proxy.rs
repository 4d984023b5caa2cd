//! A proxy between a client and a server that loses what a script tells it to lose.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// They arrive.
    None,
    /// The next request does not reach the server, and the connection ends.
    Request,
    /// The next request reaches the server. Its reply does not reach the client, and the connection ends.
    Reply,
    /// The connection ends, and no other one opens.
    All,
}

pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    loss: Arc<Mutex<Loss>>,
    cuts: watch::Sender<u64>,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, loss) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Loss::None)));
        let cuts = watch::Sender::new(0);
        let (shared, cut) = (loss.clone(), cuts.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                if *shared.lock().unwrap() == Loss::All {
                    continue;
                }
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                tokio::spawn(forward(client, server, shared.clone(), cut.subscribe()));
            }
        });
        Proxy { addr, loss, cuts }
    }

    pub(crate) fn lose(&self, loss: Loss) {
        *self.loss.lock().unwrap() = loss;
        if loss == Loss::All {
            self.cuts.send_modify(|cuts| *cuts += 1);
        }
    }
}

/// Forwards bytes in both directions until one side ends or the proxy cuts.
async fn forward(client: TcpStream, server: TcpStream, loss: Arc<Mutex<Loss>>, mut cuts: watch::Receiver<u64>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // A lost request or reply ends the connection once; the next connection works.
    let lost = |which: Loss| {
        let mut loss = loss.lock().unwrap();
        let lost = *loss == which;
        if lost {
            *loss = Loss::None;
        }
        lost
    };
    tokio::select! {
        () = copy(from_client, to_server, || lost(Loss::Request)) => {}
        () = copy(from_server, to_client, || lost(Loss::Reply)) => {}
        _ = cuts.changed() => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, lost: impl Fn() -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if lost() || to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}
