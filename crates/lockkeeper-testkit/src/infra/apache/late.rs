//! Makes servers hear their leader late, so that their clients read stale data.
//!
//! On loopback a follower is hardly ever behind, and a read that should have had a sync before it fails once in a thousand runs.
//! Here each server finds each other one behind a port of its own, which carries what a follower says at once, and what it hears
//! when it is due. Election has ports of its own and is not concerned; nothing is lost, nor does anything change its order.

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

/// How long a leader may take to listen: as long as a follower tries to reach one.
const PATIENCE: Duration = Duration::from_secs(5);

/// The ways between the servers of one ensemble.
#[derive(Debug)]
pub(super) struct Ways {
    /// How late each server hears the others, in microseconds.
    lags: Vec<Arc<AtomicU64>>,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Ways {
    /// For so many servers; no server lags yet.
    pub(super) fn new(servers: usize) -> io::Result<Ways> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("late").enable_all().build()?;
        Ok(Ways { lags: (0..servers).map(|_| Arc::default()).collect(), runtime: Some(runtime) })
    }

    /// From now on this server hears the others so late.
    pub(super) fn set(&self, server: usize, lag: Duration) {
        self.lags[server].store(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Where this server finds another one that listens at `real`.
    pub(super) fn open(&self, server: usize, real: SocketAddr) -> io::Result<u16> {
        let runtime = self.runtime.as_ref().expect("dropped with this");
        // Not by the runtime: the caller may be on one of its own, where waiting for another would panic.
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let (port, lag) = (listener.local_addr()?.port(), self.lags[server].clone());
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        runtime.spawn(async move {
            loop {
                // An error concerns the one connection that was being accepted; there is always a next.
                let Ok((near, _)) = listener.accept().await else { continue };
                // When an end goes, so does the other: that is how the servers learn of it.
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
        // What was heard before the end is still delivered.
        done = async { tokio::join!(hear(heard, sender, lag), deliver(hears, due)).1 } => done,
    }
}

/// Connects as soon as somebody listens. A follower that is faster than its leader would try again, but it has a connection already,
/// and one that ends would send it back to the election.
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
