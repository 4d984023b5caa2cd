//! The client side of a connection: the bytes of the real client, `lockkeeper_client`, over a simulated link.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use lockkeeper_client::{Connect, Connecting, Searching};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::Sim;
use super::faults::Fault;
use super::link::{Inlet, Outlet};
use super::server::serve;

/// The network of one host: its faults concern all connections of its clients.
pub(super) struct Host {
    pub(super) sim: Sim,
    pub(super) number: usize,
}

impl Connect for Host {
    fn servers(&self) -> usize {
        self.sim.settings.servers
    }

    fn connect(&self, server: usize) -> Searching {
        let (sim, host) = (self.sim.clone(), self.number);
        let connecting: Connecting = Box::pin(async move {
            let travel = sim.within(&sim.settings.network.clone());
            tokio::time::sleep(travel).await;
            loop {
                let silent_until = sim.world().hosts[host].silent_until;
                if silent_until <= Instant::now() {
                    break;
                }
                tokio::time::sleep_until(silent_until).await;
            }
            if Instant::now() < sim.world().closed_until(server) {
                sim.world().counts.add(Fault::RefusedConnection, 1);
                return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "refuses connections"));
            }
            let (connection, to_server, from_client, from_server) = sim.world().accept(host, server);
            tokio::spawn(serve(sim.clone(), connection, from_client));
            let stream = ClientStream { sim, host, to_server, from_server, rest: Bytes::new() };
            Ok(Box::new(stream) as Box<dyn lockkeeper_client::Stream>)
        });
        Box::pin(std::future::ready(Ok(connecting)))
    }

    fn name(&self, server: usize) -> String {
        format!("server {server} of the simulation")
    }
}

impl Sim {
    /// Returns the network of a new host.
    pub(super) fn host(&self) -> Arc<Host> {
        Arc::new(Host { sim: self.clone(), number: self.world().add_host() })
    }
}

/// The stream of one connection.
struct ClientStream {
    sim: Sim,
    host: usize,
    to_server: Inlet,
    from_server: Outlet,
    /// What has arrived and did not fit into the reader's buffer.
    rest: Bytes,
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            match ready!(self.from_server.poll_recv(context)) {
                Some(piece) => self.rest = piece,
                None => return Poll::Ready(Ok(())),
            }
        }
        let fits = self.rest.len().min(buf.remaining());
        buf.put_slice(&self.rest.split_to(fits));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.sim.world().transmit(self.host, &self.to_server, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.to_server.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        // Without a lock if a panic has poisoned it: the test fails anyway.
        if !std::thread::panicking() {
            self.sim.world().client_left(self.host, &self.to_server);
        }
    }
}
