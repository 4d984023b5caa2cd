//! The handle for programs, and the task that runs the session over TCP.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use lockkeeper_wire::{EventKind, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tracing::debug;

use crate::session::Session;
use crate::types::{Config, End, RequestError, RequestId, Resume, SessionEvent, Transport};

/// Maximum bytes per read from a socket.
const READ: usize = 64 << 10;

/// State of the session's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// A server has accepted the session.
    Connected,
    /// The connection ended; the session may live on.
    Disconnected,
    /// The session is over. Nothing follows.
    Over(End),
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub kind: EventKind,
    /// Path of the node.
    pub path: Arc<str>,
}

/// Waiters for replies and for watch events.
#[derive(Default)]
struct Waiting {
    /// Waiters for the replies to request `first` and its successors.
    replies: VecDeque<Option<oneshot::Sender<Result<Response, RequestError>>>>,
    first: u64,
    watchers: HashMap<RequestId, WatchSender>,
    states: Option<mpsc::UnboundedSender<ConnectionState>>,
}

enum WatchSender {
    Once(oneshot::Sender<WatchEvent>),
    Always(mpsc::UnboundedSender<WatchEvent>),
}

struct Inner {
    session: Session,
    waiting: Waiting,
    /// Error of the last attempt to connect.
    connect_error: Option<String>,
}

struct SharedState {
    inner: Mutex<Inner>,
    /// Wakes the driver when there are bytes to send, or when the session closes.
    wake: Notify,
    origin: Instant,
}

impl SharedState {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A ZooKeeper session over TCP.
///
/// Requests are sent in the order of the calls, not in the order in which the returned futures are first polled.
/// Replies arrive in the same order. A watch delivers its event before the reply to any request that the server
/// answered after the change. Dropping the last handle closes the session in the background.
///
/// # Cancel safety
/// The server carries out a sent request even if the caller no longer waits for its reply. Dropping the future removes
/// the watch that the request would leave.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

struct Handle(Arc<SharedState>);

impl Drop for Handle {
    fn drop(&mut self) {
        let now = self.0.now();
        self.0.lock().session.close(now);
        self.0.wake.notify_one();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.handle.0.lock();
        f.debug_struct("Client").field("session", &format_args!("{:#x}", inner.session.id())).finish_non_exhaustive()
    }
}

impl Client {
    /// Opens a session with one of these servers, each `host:port`. Every attempt resolves the names again.
    ///
    /// Returns immediately; requests wait until a server has accepted the session. The receiver gets the states of the
    /// connection. The driver is a task of the current tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time, or without a server.
    pub fn open(servers: Vec<String>, session_timeout: Duration) -> (Client, mpsc::UnboundedReceiver<ConnectionState>) {
        let config = Config::new(servers.len(), session_timeout);
        Client::open_with(servers, config)
    }

    /// Opens a session as [`Client::open`] does, with every option of a session. `config.servers` is the length of
    /// `servers`.
    ///
    /// # Panics
    /// As [`Client::open`], and if `config.servers` is not the length of `servers`.
    pub fn open_with(servers: Vec<String>, config: Config) -> (Client, mpsc::UnboundedReceiver<ConnectionState>) {
        assert_eq!(servers.len(), config.servers, "config.servers is the number of servers");
        let (states, receiver) = mpsc::unbounded_channel();
        let session = Session::new(config, fastrand::u64(..), Duration::ZERO);
        let waiting = Waiting { first: 1, states: Some(states), ..Waiting::default() };
        let inner = Mutex::new(Inner { session, waiting, connect_error: None });
        let shared = Arc::new(SharedState { inner, wake: Notify::new(), origin: Instant::now() });
        tokio::spawn(drive(shared.clone(), servers));
        (Client { handle: Arc::new(Handle(shared)) }, receiver)
    }

    /// Sends a request. The future resolves to the reply.
    ///
    /// # Errors
    /// [`RequestError`].
    ///
    /// # Cancel safety
    /// This call sends the request; dropping the future does not cancel it.
    pub fn request(&self, request: Request) -> impl Future<Output = Result<Response, RequestError>> + use<> {
        self.send(request, None).1
    }

    /// Sends a request that leaves a one-shot watch if it succeeds. `exists` leaves one for a missing node as well.
    ///
    /// # Errors
    /// [`RequestError`], beside the watcher. Of the failed requests, only an `exists` that ends with
    /// [`ErrorCode::NoNode`](lockkeeper_wire::ErrorCode) has left a watch: for the creation of the node.
    ///
    /// # Cancel safety
    /// As [`Client::request`]; dropping the future removes the watch.
    pub fn request_and_watch(
        &self,
        request: Request,
    ) -> impl Future<Output = (Result<Response, RequestError>, Watcher)> + use<> {
        let (fired, watched) = oneshot::channel();
        let (id, reply) = self.send(request, Some(WatchSender::Once(fired)));
        let watcher = Watcher { id, shared: self.handle.0.clone(), watched };
        async move { (reply.await, watcher) }
    }

    /// Adds a watch that stays after it fires (`addWatch`, servers of 3.6 and later). The watch is active when this
    /// returns.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn add_watch(&self, path: &str, recursive: bool) -> Result<PersistentWatcher, RequestError> {
        let (sender, events) = mpsc::unbounded_channel();
        let request = Request::AddWatch { path: path.to_owned(), recursive };
        let (id, reply) = self.send(request, Some(WatchSender::Always(sender)));
        let watcher = PersistentWatcher { id, shared: self.handle.0.clone(), events };
        reply.await?;
        Ok(watcher)
    }

    /// Returns the session's id; 0 before a server has assigned one.
    pub fn session(&self) -> i64 {
        self.handle.0.lock().session.id()
    }

    /// Returns the session timeout: the requested one until a server has granted one.
    pub fn session_timeout(&self) -> Duration {
        self.handle.0.lock().session.session_timeout()
    }

    /// Returns what is needed to resume this session elsewhere; `None` before a server has accepted it.
    pub fn resume(&self) -> Option<Resume> {
        self.handle.0.lock().session.resume()
    }

    /// Returns the error of the last attempt to connect, unless a later attempt succeeded.
    pub fn connect_error(&self) -> Option<String> {
        self.handle.0.lock().connect_error.clone()
    }

    /// Closes the session: requests made before are carried out, later ones fail. [`ConnectionState::Over`] reports the end, at
    /// the latest after the session timeout.
    pub fn close(&self) {
        let now = self.handle.0.now();
        self.handle.0.lock().session.close(now);
        self.handle.0.wake.notify_one();
    }

    /// Passes a request to the session. The future resolves to the reply.
    fn send(
        &self,
        request: Request,
        watching: Option<WatchSender>,
    ) -> (RequestId, impl Future<Output = Result<Response, RequestError>> + use<>) {
        let (reply, received) = oneshot::channel();
        let shared = &self.handle.0;
        let now = shared.now();
        let mut inner = shared.lock();
        let id = if let Some(end) = inner.session.end() {
            // The driver may have ended already, and then nothing would deliver the session's events.
            _ = reply.send(Err(RequestError::SessionOver(end)));
            RequestId(0)
        } else {
            let id = inner.session.request(request, now);
            inner.waiting.replies.push_back(Some(reply));
            inner.waiting.watchers.extend(watching.map(|watching| (id, watching)));
            id
        };
        drop(inner);
        shared.wake.notify_one();
        (id, async move { received.await.unwrap_or(Err(RequestError::SessionOver(End::Closed))) })
    }
}

/// Removes a watch that has no waiter any more.
fn unwatch(shared: &SharedState, id: RequestId) {
    let now = shared.now();
    let mut inner = shared.lock();
    if inner.waiting.watchers.remove(&id).is_some() {
        inner.session.unwatch(id, now);
        drop(inner);
        shared.wake.notify_one();
    }
}

/// A one-shot watch: resolves when it fires, or to `None` if the session is over first. Dropping it removes the watch.
pub struct Watcher {
    id: RequestId,
    shared: Arc<SharedState>,
    watched: oneshot::Receiver<WatchEvent>,
}

impl Future for Watcher {
    type Output = Option<WatchEvent>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.watched).poll(context).map(Result::ok)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        unwatch(&self.shared, self.id);
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A watch that stays after it fires. Dropping it removes the watch.
pub struct PersistentWatcher {
    id: RequestId,
    shared: Arc<SharedState>,
    events: mpsc::UnboundedReceiver<WatchEvent>,
}

impl PersistentWatcher {
    /// Returns the next event, or `None` when the session is over. Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        self.events.recv().await
    }
}

impl Drop for PersistentWatcher {
    fn drop(&mut self) {
        unwatch(&self.shared, self.id);
    }
}

impl fmt::Debug for PersistentWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentWatcher").field("id", &self.id).finish_non_exhaustive()
    }
}

/// An event and its receiver.
enum Delivery {
    Reply(oneshot::Sender<Result<Response, RequestError>>, Result<Response, RequestError>),
    Once(oneshot::Sender<WatchEvent>, WatchEvent),
    ConnectionState(ConnectionState),
}

impl Inner {
    /// Collects the session's events. The driver delivers them after it has released the mutex, because a waker may
    /// call back.
    fn collect(&mut self, deliveries: &mut Vec<Delivery>) {
        while let Some(event) = self.session.poll() {
            match event {
                SessionEvent::Reply { id, result, .. } => {
                    let at = usize::try_from(id.0 - self.waiting.first).ok();
                    let reply = at.and_then(|at| self.waiting.replies.get_mut(at)).and_then(Option::take);
                    while let Some(None) = self.waiting.replies.front() {
                        self.waiting.replies.pop_front();
                        self.waiting.first += 1;
                    }
                    deliveries.extend(reply.map(|reply| Delivery::Reply(reply, result)));
                }
                SessionEvent::Watch { id, kind, path } => match self.waiting.watchers.remove(&id) {
                    Some(WatchSender::Once(fired)) => deliveries.push(Delivery::Once(fired, WatchEvent { kind, path })),
                    Some(WatchSender::Always(events)) => {
                        // The send fails without a receiver; the dropped watcher has removed the watch then.
                        _ = events.send(WatchEvent { kind, path });
                        self.waiting.watchers.insert(id, WatchSender::Always(events));
                    }
                    None => {}
                },
                SessionEvent::Connected { .. } => {
                    self.connect_error = None;
                    deliveries.push(Delivery::ConnectionState(ConnectionState::Connected));
                }
                SessionEvent::Disconnected => deliveries.push(Delivery::ConnectionState(ConnectionState::Disconnected)),
                SessionEvent::Over(end) => {
                    self.waiting.watchers.clear();
                    deliveries.push(Delivery::ConnectionState(ConnectionState::Over(end)));
                }
            }
        }
    }
}

/// An open connection, or one that is being opened.
enum Connection {
    None,
    Opening(Transport, Pin<Box<dyn Future<Output = std::io::Result<TcpStream>> + Send>>),
    Open(Transport, TcpStream),
}

impl Connection {
    fn transport(&self) -> Option<Transport> {
        match self {
            Connection::None => None,
            Connection::Opening(transport, _) | Connection::Open(transport, _) => Some(*transport),
        }
    }
}

/// The reason why the driver woke up.
enum WakeReason {
    Opened(std::io::Result<TcpStream>),
    Read(std::io::Result<usize>),
    Due,
    Woken,
}

/// Drives a session until it is over.
async fn drive(shared: Arc<SharedState>, servers: Vec<String>) {
    let mut connection = Connection::None;
    let mut buffer = vec![0_u8; READ];
    let mut deliveries = Vec::new();
    let states = shared.lock().waiting.states.take();
    let mut sleep = pin!(tokio::time::sleep(Duration::ZERO));
    let mut sleeps_until = Duration::ZERO;
    loop {
        let (wanted, deadline) = {
            let mut inner = shared.lock();
            inner.collect(&mut deliveries);
            (inner.session.transport(), inner.session.deadline())
        };
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Reply(reply, result) => _ = reply.send(result),
                Delivery::Once(fired, watched) => _ = fired.send(watched),
                Delivery::ConnectionState(state) => _ = states.as_ref().map(|states| states.send(state)),
            }
        }
        let Some(deadline) = deadline else { return };
        if connection.transport() != wanted {
            connection = match wanted {
                None => Connection::None,
                Some(transport) => Connection::Opening(transport, Box::pin(dial(servers[transport.server].clone()))),
            };
        }
        // Each reply moves the deadline. The timer is set only when it has elapsed or must elapse earlier.
        if deadline < sleeps_until || sleep.is_elapsed() {
            sleep.as_mut().reset(shared.origin + deadline);
            sleeps_until = deadline;
        }
        let wake = tokio::select! {
            biased;
            wake = progress(&mut connection, &shared, &mut buffer) => wake,
            () = shared.wake.notified() => WakeReason::Woken,
            () = sleep.as_mut() => WakeReason::Due,
        };
        let now = shared.now();
        let mut inner = shared.lock();
        match wake {
            WakeReason::Woken | WakeReason::Due => {}
            WakeReason::Read(Ok(read)) if read > 0 => inner.session.received(&buffer[..read], now),
            WakeReason::Read(end) => {
                let why = end.map_or_else(|error| error.to_string(), |_| "the server closed the connection".to_owned());
                inner.failed(&why, &servers, connection.transport(), now);
                connection = Connection::None;
            }
            WakeReason::Opened(Ok(stream)) => {
                if let Connection::Opening(transport, _) = connection {
                    inner.session.opened(now);
                    connection = Connection::Open(transport, stream);
                }
            }
            WakeReason::Opened(Err(error)) => {
                inner.failed(&error.to_string(), &servers, connection.transport(), now);
                connection = Connection::None;
            }
        }
        // This runs even if the socket is always ready.
        if now >= deadline {
            inner.session.timeout(now);
        }
    }
}

impl Inner {
    fn failed(&mut self, why: &str, servers: &[String], transport: Option<Transport>, now: Duration) {
        if let Some(transport) = transport {
            let server = &servers[transport.server];
            debug!(%server, why, "connection failed");
            self.connect_error = Some(format!("{server}: {why}"));
        }
        self.session.failed(now);
    }
}

async fn dial(server: String) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    // Send each request immediately; do not wait for a full packet.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Waits for the next event of the connection. Dropping the future loses nothing.
async fn progress(connection: &mut Connection, shared: &SharedState, buffer: &mut [u8]) -> WakeReason {
    match connection {
        Connection::None => std::future::pending().await,
        Connection::Opening(_, dialing) => WakeReason::Opened(dialing.as_mut().await),
        Connection::Open(_, stream) => WakeReason::Read(exchange(stream, shared, buffer).await),
    }
}

/// Sends the outgoing bytes, and resolves when bytes were read or the connection ended. Dropping the future loses
/// nothing.
async fn exchange(stream: &mut TcpStream, shared: &SharedState, buffer: &mut [u8]) -> std::io::Result<usize> {
    poll_fn(|context| {
        let mut inner = shared.lock();
        loop {
            let outgoing = inner.session.outgoing();
            if outgoing.is_empty() {
                break;
            }
            match Pin::new(&mut *stream).poll_write(context, outgoing) {
                Poll::Ready(Ok(sent)) => outgoing.advance(sent),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
        }
        drop(inner);
        let mut read = ReadBuf::new(buffer);
        match Pin::new(&mut *stream).poll_read(context, &mut read) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(read.filled().len())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
