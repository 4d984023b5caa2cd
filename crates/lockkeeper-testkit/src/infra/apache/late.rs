//! Delays what servers hear from their leader, so that their clients read stale data.
//!
//! On loopback a follower is hardly ever behind, so a test of a read without its sync would fail once in a thousand
//! runs. Here each server reaches each other one through a port of its own. The port carries what a follower sends
//! immediately, and what it receives after the delay. Elections use other ports and are not delayed; nothing is lost or
//! reordered.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::infra::process::POLL;

/// Time limit for a leader to listen: as long as a follower tries to reach one.
const PATIENCE: Duration = Duration::from_secs(5);

/// The delayed connections between the servers of one ensemble.
#[derive(Debug)]
pub(super) struct Ways {
    /// The delay of what each server hears, in microseconds.
    lags: Vec<Arc<AtomicU64>>,
    /// `None` only during the drop.
    runtime: Option<Runtime>,
}

impl Ways {
    /// Returns the connections of this many servers; no server lags yet.
    pub(super) fn new(servers: usize) -> io::Result<Ways> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("late").enable_all().build()?;
        Ok(Ways { lags: (0..servers).map(|_| Arc::default()).collect(), runtime: Some(runtime) })
    }

    /// Sets the delay of this server.
    pub(super) fn set(&self, server: usize, lag: Duration) {
        self.lags[server].store(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the port through which this server reaches another one that listens at `real`.
    pub(super) fn open(&self, server: usize, real: SocketAddr) -> io::Result<u16> {
        let runtime = self.runtime.as_ref().expect("dropped with this");
        // Not by the runtime: the caller may be on a runtime of its own, where waiting for another one would panic.
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let (port, lag) = (listener.local_addr()?.port(), self.lags[server].clone());
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        runtime.spawn(async move {
            loop {
                // An error concerns only the connection that was being accepted.
                let Ok((near, _)) = listener.accept().await else { continue };
                // When one end closes, the other one closes too: that is how the servers learn of it.
                tokio::spawn(carry(near, real, lag.clone()));
            }
        });
        Ok(port)
    }
}

impl Drop for Ways {
    fn drop(&mut self) {
        // Does not wait: the caller may be on a runtime, where waiting panics.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn carry(near: TcpStream, real: SocketAddr, lag: Arc<AtomicU64>) -> io::Result<()> {
    let far = timeout(PATIENCE, reach(real)).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((mut said, hears), (heard, mut listens)) = (near.into_split(), far.into_split());
    let (sender, due) = mpsc::unbounded_channel();
    tokio::select! {
        done = tokio::io::copy(&mut said, &mut listens) => done.map(drop),
        // Bytes that arrived before the end are still delivered.
        done = async { tokio::join!(hear(heard, sender, lag), deliver(hears, due)).1 } => done,
    }
}

/// Connects as soon as a server listens. A follower without our port would retry until its leader listens. But it is
/// connected to our port already, and if that connection ended, it would return to the election.
async fn reach(real: SocketAddr) -> TcpStream {
    loop {
        if let Ok(far) = TcpStream::connect(real).await {
            return far;
        }
        sleep(POLL).await;
    }
}

async fn hear(mut heard: OwnedReadHalf, due: mpsc::UnboundedSender<(Instant, Vec<u8>)>, lag: Arc<AtomicU64>) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = heard.read(&mut bytes).await {
        let when = Instant::now() + Duration::from_micros(lag.load(Relaxed));
        if due.send((when, bytes[..count].to_vec())).is_err() {
            return;
        }
    }
}

async fn deliver(mut hears: OwnedWriteHalf, mut due: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>) -> io::Result<()> {
    while let Some((when, bytes)) = due.recv().await {
        sleep_until(when).await;
        hears.write_all(&bytes).await?;
    }
    Ok(())
}
