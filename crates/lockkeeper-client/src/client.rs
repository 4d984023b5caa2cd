//! The handle that programs hold, and the task that drives its session over TCP.

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
use crate::types::{Config, End, Event, RequestError, RequestId, Resume, Transport};

/// How many bytes are read from a socket at once.
const READ: usize = 64 << 10;

/// What the session's connection goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A server has accepted the session.
    Connected,
    /// The connection ended; the session may live on.
    Disconnected,
    /// The session is over. Nothing follows.
    Over(End),
}

/// What a watch saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// What happened.
    pub kind: EventKind,
    /// Where.
    pub path: Arc<str>,
}

/// Who waits for what.
#[derive(Default)]
struct Waiting {
    /// Who waits for the reply to the request with the number `first` and those after it.
    replies: VecDeque<Option<oneshot::Sender<Result<Response, RequestError>>>>,
    first: u64,
    watchers: HashMap<RequestId, Watching>,
    states: Option<mpsc::UnboundedSender<State>>,
}

enum Watching {
    Once(oneshot::Sender<Watched>),
    Always(mpsc::UnboundedSender<Watched>),
}

struct Inner {
    session: Session,
    waiting: Waiting,
    /// What went wrong with the last attempt to connect.
    trouble: Option<String>,
}

struct Shared {
    inner: Mutex<Inner>,
    /// Wakes the driver: there is something to send, or the session is to be closed.
    wake: Notify,
    origin: Instant,
}

impl Shared {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A ZooKeeper session over TCP.
///
/// Requests are sent in the order of the calls, not of the first polls of what they return. Replies come in the same order; a
/// watch tells its event before the reply to any request that the server answered after it. The last handle to be dropped closes
/// the session in the background.
///
/// # Cancel safety
/// A request that was made is carried out, whether or not somebody waits for its reply. Dropping the future that waits takes off
/// the watch that the request would leave.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

struct Handle(Arc<Shared>);

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
    /// Opens a session with one of these servers, each `host:port`. Names are resolved again at each attempt.
    ///
    /// Returns at once; requests wait until a server has accepted the session. The receiver tells what the connection goes through. The
    /// driver is a task of the current tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time, or without a server.
    pub fn open(servers: Vec<String>, session_timeout: Duration) -> (Client, mpsc::UnboundedReceiver<State>) {
        let config = Config::new(servers.len(), session_timeout);
        Client::open_with(servers, config)
    }

    /// As [`Client::open`], with every option of a session. `config.servers` is the length of `servers`.
    ///
    /// # Panics
    /// As [`Client::open`], and if the two do not agree.
    pub fn open_with(servers: Vec<String>, config: Config) -> (Client, mpsc::UnboundedReceiver<State>) {
        assert_eq!(servers.len(), config.servers, "as many servers as the session is told of");
        let (states, receiver) = mpsc::unbounded_channel();
        let session = Session::new(config, fastrand::u64(..), Duration::ZERO);
        let waiting = Waiting { first: 1, states: Some(states), ..Waiting::default() };
        let inner = Mutex::new(Inner { session, waiting, trouble: None });
        let shared = Arc::new(Shared { inner, wake: Notify::new(), origin: Instant::now() });
        tokio::spawn(drive(shared.clone(), servers));
        (Client { handle: Arc::new(Handle(shared)) }, receiver)
    }

    /// Sends a request; the future is its reply.
    ///
    /// # Errors
    /// [`RequestError`].
    ///
    /// # Cancel safety
    /// The request is sent by this call; dropping the future does not call it back.
    pub fn request(&self, request: Request) -> impl Future<Output = Result<Response, RequestError>> + use<> {
        self.send(request, None).1
    }

    /// Sends a request that leaves a one-shot watch where it succeeds; `exists` also where there is no node.
    ///
    /// # Errors
    /// [`RequestError`], beside the watcher. Only an `exists` that ends with [`ErrorCode::NoNode`](lockkeeper_wire::ErrorCode) has
    /// left a watch then: for the creation of the node.
    ///
    /// # Cancel safety
    /// As [`Client::request`]; its watch is taken off.
    pub fn request_and_watch(
        &self,
        request: Request,
    ) -> impl Future<Output = (Result<Response, RequestError>, Watcher)> + use<> {
        let (fired, watched) = oneshot::channel();
        let (id, reply) = self.send(request, Some(Watching::Once(fired)));
        let watcher = Watcher { id, shared: self.handle.0.clone(), watched };
        async move { (reply.await, watcher) }
    }

    /// Leaves a watch that does not go when it fires (`addWatch`, servers of 3.6 and later). It is there once the reply is.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn add_watch(&self, path: &str, recursive: bool) -> Result<PersistentWatcher, RequestError> {
        let (sender, events) = mpsc::unbounded_channel();
        let request = Request::AddWatch { path: path.to_owned(), recursive };
        let (id, reply) = self.send(request, Some(Watching::Always(sender)));
        let watcher = PersistentWatcher { id, shared: self.handle.0.clone(), events };
        reply.await?;
        Ok(watcher)
    }

    /// The session's id; 0 before a server has given it.
    pub fn session(&self) -> i64 {
        self.handle.0.lock().session.id()
    }

    /// The session timeout: as granted, or as asked for before that.
    pub fn session_timeout(&self) -> Duration {
        self.handle.0.lock().session.session_timeout()
    }

    /// What it takes to resume this session elsewhere; `None` before there is one.
    pub fn resume(&self) -> Option<Resume> {
        self.handle.0.lock().session.resume()
    }

    /// What went wrong with the last attempt to connect, if no later one succeeded.
    pub fn trouble(&self) -> Option<String> {
        self.handle.0.lock().trouble.clone()
    }

    /// Closes the session: requests made before are carried out, later ones fail. [`State::Over`] tells when it is done, at the latest
    /// after the session timeout.
    pub fn close(&self) {
        let now = self.handle.0.now();
        self.handle.0.lock().session.close(now);
        self.handle.0.wake.notify_one();
    }

    /// Hands a request to the session. The future resolves to the reply.
    fn send(
        &self,
        request: Request,
        watching: Option<Watching>,
    ) -> (RequestId, impl Future<Output = Result<Response, RequestError>> + use<>) {
        let (reply, received) = oneshot::channel();
        let shared = &self.handle.0;
        let now = shared.now();
        let mut inner = shared.lock();
        let id = if let Some(end) = inner.session.end() {
            // The driver may have ended: nothing would take the session's events any more.
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

/// Takes a watch off that nobody waits for any more.
fn unwatch(shared: &Shared, id: RequestId) {
    let now = shared.now();
    let mut inner = shared.lock();
    if inner.waiting.watchers.remove(&id).is_some() {
        inner.session.unwatch(id, now);
        drop(inner);
        shared.wake.notify_one();
    }
}

/// A one-shot watch: resolves when it fires, and to `None` when the session is over first. Dropping it takes the watch off.
pub struct Watcher {
    id: RequestId,
    shared: Arc<Shared>,
    watched: oneshot::Receiver<Watched>,
}

impl Future for Watcher {
    type Output = Option<Watched>;

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

/// A watch that does not go when it fires. Dropping it takes the watch off.
pub struct PersistentWatcher {
    id: RequestId,
    shared: Arc<Shared>,
    events: mpsc::UnboundedReceiver<Watched>,
}

impl PersistentWatcher {
    /// The next event; `None` when the session is over. Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Watched> {
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

/// Whom an event concerns.
enum Told {
    Reply(oneshot::Sender<Result<Response, RequestError>>, Result<Response, RequestError>),
    Once(oneshot::Sender<Watched>, Watched),
    State(State),
}

impl Inner {
    /// What there is to tell, to be told when the lock is free again: a waker may call back.
    fn tell(&mut self, told: &mut Vec<Told>) {
        while let Some(event) = self.session.poll() {
            match event {
                Event::Reply { id, result, .. } => {
                    let at = usize::try_from(id.0 - self.waiting.first).ok();
                    let reply = at.and_then(|at| self.waiting.replies.get_mut(at)).and_then(Option::take);
                    while let Some(None) = self.waiting.replies.front() {
                        self.waiting.replies.pop_front();
                        self.waiting.first += 1;
                    }
                    told.extend(reply.map(|reply| Told::Reply(reply, result)));
                }
                Event::Watch { id, kind, path } => match self.waiting.watchers.remove(&id) {
                    Some(Watching::Once(fired)) => told.push(Told::Once(fired, Watched { kind, path })),
                    Some(Watching::Always(events)) => {
                        // Its receiver is not woken by a send that fails; then its watcher is gone, and takes the watch off.
                        _ = events.send(Watched { kind, path });
                        self.waiting.watchers.insert(id, Watching::Always(events));
                    }
                    None => {}
                },
                Event::Connected { .. } => {
                    self.trouble = None;
                    told.push(Told::State(State::Connected));
                }
                Event::Disconnected => told.push(Told::State(State::Disconnected)),
                Event::Over(end) => {
                    self.waiting.watchers.clear();
                    told.push(Told::State(State::Over(end)));
                }
            }
        }
    }
}

/// An open connection, or one that is being opened.
enum Link {
    None,
    Opening(Transport, Pin<Box<dyn Future<Output = std::io::Result<TcpStream>> + Send>>),
    Open(Transport, TcpStream),
}

impl Link {
    fn transport(&self) -> Option<Transport> {
        match self {
            Link::None => None,
            Link::Opening(transport, _) | Link::Open(transport, _) => Some(*transport),
        }
    }
}

/// What woke the driver.
enum Wake {
    Opened(std::io::Result<TcpStream>),
    Read(std::io::Result<usize>),
    Due,
    Woken,
}

/// Drives a session until it is over.
async fn drive(shared: Arc<Shared>, servers: Vec<String>) {
    let mut link = Link::None;
    let mut buffer = vec![0_u8; READ];
    let mut told = Vec::new();
    let states = shared.lock().waiting.states.take();
    let mut sleep = pin!(tokio::time::sleep(Duration::ZERO));
    let mut sleeps_until = Duration::ZERO;
    loop {
        let (wanted, deadline) = {
            let mut inner = shared.lock();
            inner.tell(&mut told);
            (inner.session.transport(), inner.session.deadline())
        };
        for event in told.drain(..) {
            match event {
                Told::Reply(reply, result) => _ = reply.send(result),
                Told::Once(fired, watched) => _ = fired.send(watched),
                Told::State(state) => _ = states.as_ref().map(|states| states.send(state)),
            }
        }
        let Some(deadline) = deadline else { return };
        if link.transport() != wanted {
            link = match wanted {
                None => Link::None,
                Some(transport) => Link::Opening(transport, Box::pin(dial(servers[transport.server].clone()))),
            };
        }
        // Each reply moves the deadline; the timer is set anew only when it is to ring earlier, or has rung.
        if deadline < sleeps_until || sleep.is_elapsed() {
            sleep.as_mut().reset(shared.origin + deadline);
            sleeps_until = deadline;
        }
        let wake = tokio::select! {
            biased;
            wake = progress(&mut link, &shared, &mut buffer) => wake,
            () = shared.wake.notified() => Wake::Woken,
            () = sleep.as_mut() => Wake::Due,
        };
        let now = shared.now();
        let mut inner = shared.lock();
        match wake {
            // Below.
            Wake::Woken | Wake::Due => {}
            Wake::Read(Ok(read)) if read > 0 => inner.session.received(&buffer[..read], now),
            Wake::Read(end) => {
                let why = end.map_or_else(|error| error.to_string(), |_| "the server closed the connection".to_owned());
                inner.failed(&why, &servers, link.transport(), now);
                link = Link::None;
            }
            Wake::Opened(Ok(stream)) => {
                if let Link::Opening(transport, _) = link {
                    inner.session.opened(now);
                    link = Link::Open(transport, stream);
                }
            }
            Wake::Opened(Err(error)) => {
                inner.failed(&error.to_string(), &servers, link.transport(), now);
                link = Link::None;
            }
        }
        // Also where a socket is ready all the time.
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
            self.trouble = Some(format!("{server}: {why}"));
        }
        self.session.failed(now);
    }
}

async fn dial(server: String) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    // Requests leave when they are made, not when a packet is full.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// What happens next at the connection. Dropping the future loses nothing.
async fn progress(link: &mut Link, shared: &Shared, buffer: &mut [u8]) -> Wake {
    match link {
        Link::None => std::future::pending().await,
        Link::Opening(_, dialing) => Wake::Opened(dialing.as_mut().await),
        Link::Open(_, stream) => Wake::Read(exchange(stream, shared, buffer).await),
    }
}

/// Sends what there is to send, and resolves when something was read or the connection ended. Dropping the future loses nothing.
async fn exchange(stream: &mut TcpStream, shared: &Shared, buffer: &mut [u8]) -> std::io::Result<usize> {
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
