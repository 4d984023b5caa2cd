//! The connections of the HTTP service: how many there are at once, and how long a silent one stays.
//!
//! Anyone on the machine can connect. So one more connection than there are places takes the place of the one that has been silent
//! for the longest time, and a client that sends no request, or reads no answer, loses its place after some time.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep_until};

/// Maximum number of connections.
const PLACES: usize = 64;

/// Time for the head of a request, and for the client to read a part of its answer.
pub(super) const TIME: Duration = Duration::from_secs(10);

/// A listener that keeps at most so many connections open.
pub(super) struct Places {
    listener: TcpListener,
    most: usize,
    taken: VecDeque<Arc<Place>>,
}

/// One connection's place.
struct Place {
    /// When it was opened, or last sent a part of an answer.
    active: Mutex<Instant>,
    evicted: AtomicBool,
    gone: AtomicBool,
    /// Wakes the task of the connection.
    task: AtomicWaker,
}

impl Place {
    fn active(&self) -> Instant {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Places {
    /// At most a quarter of the descriptors that this process may open are for connections. The others are for sessions, the journal
    /// and its readers.
    pub(super) fn new(listener: TcpListener) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let quarter = limit.and_then(|limit| usize::try_from(limit / 4).ok()).unwrap_or(PLACES);
        Places { listener, most: quarter.clamp(1, PLACES), taken: VecDeque::new() }
    }

    /// Gives a new connection a place, at the cost of the one that has been silent for the longest time.
    fn take(&mut self, stream: TcpStream) -> Connection {
        self.taken.retain(|place| !place.gone.load(Ordering::Acquire));
        if self.taken.len() >= self.most {
            let silent = self.taken.iter().enumerate().min_by_key(|(_, place)| place.active()).map(|(at, _)| at);
            if let Some(place) = silent.and_then(|at| self.taken.remove(at)) {
                place.evict();
            }
        }
        let now = Instant::now();
        let place = Arc::new(Place {
            active: Mutex::new(now),
            evicted: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            task: AtomicWaker::new(),
        });
        self.taken.push_back(place.clone());
        Connection { stream, place, deadline: Box::pin(sleep_until(now + TIME)) }
    }
}

impl Listener for Places {
    type Io = Connection;
    type Addr = SocketAddr;

    /// Dropping the future loses no connection.
    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // Its errors are those of connections that have ended, or pass.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (self.take(stream), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with a place.
pub(super) struct Connection {
    stream: TcpStream,
    place: Arc<Place>,
    deadline: Pin<Box<Sleep>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.place.gone.store(true, Ordering::Release);
    }
}

impl Connection {
    /// Resolves to an error when the connection must end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.place.task.register(cx.waker());
        if self.place.evicted.load(Ordering::Acquire) {
            return Poll::Ready(ErrorKind::ConnectionAborted.into());
        }
        ready!(self.deadline.as_mut().poll(cx));
        Poll::Ready(ErrorKind::TimedOut.into())
    }

    /// Notes that a part of an answer was sent.
    fn sent(&mut self) {
        let now = Instant::now();
        *self.place.active.lock().unwrap_or_else(PoisonError::into_inner) = now;
        self.deadline.as_mut().reset(now + TIME);
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Pending => self.poll_end(cx).map(Err),
            read => read,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Pending => self.poll_end(cx).map(Err),
            written => {
                self.sent();
                written
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn places() -> (Places, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Places::new(listener), address)
    }

    /// A crowd of silent connections blinded the observer.
    #[tokio::test]
    async fn a_new_connection_takes_the_place_of_the_one_that_is_silent_for_the_longest_time() {
        let (mut places, address) = places().await;
        let (mut clients, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..places.most {
            clients.push(TcpStream::connect(address).await.unwrap());
            connections.push(places.accept().await.0);
        }
        // The oldest one gets an answer.
        connections[0].write_all(b"x").await.unwrap();
        clients.push(TcpStream::connect(address).await.unwrap());
        connections.push(places.accept().await.0);
        let ended = connections[1].read_u8().await.unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::ConnectionAborted);
        for at in (0..connections.len()).filter(|at| *at != 1) {
            clients[at].write_all(b"y").await.unwrap();
            assert_eq!(connections[at].read_u8().await.unwrap(), b'y');
        }
        // One that has ended leaves its place.
        connections.truncate(2);
        clients.push(TcpStream::connect(address).await.unwrap());
        connections.push(places.accept().await.0);
        assert!(!connections[0].place.evicted.load(Ordering::Acquire));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_whole_request_loses_its_place_in_time() {
        let (mut places, address) = places().await;
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut connection = places.accept().await.0;
        let begun = Instant::now();
        client.write_all(b"G").await.unwrap();
        assert_eq!(connection.read_u8().await.unwrap(), b'G');
        assert_eq!(connection.read_u8().await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!((TIME..TIME * 2).contains(&begun.elapsed()));
    }
}
