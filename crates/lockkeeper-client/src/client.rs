//! The handle for programs.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lockkeeper_wire::{Request, Response};
use tokio::sync::{mpsc, oneshot};

use crate::chroot::Chroot;
use crate::driver::{Driver, SharedState, WatchSender};
use crate::feed::{FeedEvent, FeedReceiver, feed};
use crate::servers::{Connect, Servers};
use crate::session::Session;
use crate::types::{Config, ConnectionState, RequestError, RequestId, Resume, WatchEvent};

/// A ZooKeeper session over TCP.
///
/// Requests are sent in the order of the calls, not in the order in which the returned futures are first polled.
/// Replies arrive in the same order. A watch delivers its event before the reply to any request that the server
/// answered after the change. Dropping the last handle closes the session in the background.
///
/// A session is over only when a server says so, or when its owner closes it. While no server can be reached, it waits
/// and tries again.
///
/// # Cancel safety
/// The server carries out a sent request even if the caller no longer waits for its reply. Dropping the future removes
/// the watch that the request would leave.
///
/// # Memory
/// Requests wait in memory while there is no connection, without a limit. A program that makes requests faster than the
/// servers answer them must limit how many are under way.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
    chroot: Chroot,
}

struct Handle {
    shared: Arc<SharedState>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.change(Session::close);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("session", &format_args!("{:#x}", self.session())).finish_non_exhaustive()
    }
}

impl Client {
    /// Opens a session, or resumes one, with one of these servers.
    ///
    /// Returns immediately; requests wait until a server has accepted the session. The receiver gets the states of the
    /// connection. The driver is a task of the current tokio runtime. If that runtime ends before the session, every
    /// request fails with [`RequestError::DriverEnded`]. The receiver then ends without [`ConnectionState::Over`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time.
    pub fn open(servers: Servers, config: Config) -> (Client, mpsc::UnboundedReceiver<ConnectionState>) {
        let chroot = servers.chroot.clone();
        Client::start(Arc::new(servers), chroot, config)
    }

    /// Opens a session as [`Client::open`] does, over connections that `connect` opens, without a chroot.
    ///
    /// # Panics
    /// As [`Client::open`], and if `connect` has no server.
    pub fn open_with(connect: impl Connect, config: Config) -> (Client, mpsc::UnboundedReceiver<ConnectionState>) {
        Client::start(Arc::new(connect), Chroot::default(), config)
    }

    fn start(
        connect: Arc<dyn Connect>,
        chroot: Chroot,
        config: Config,
    ) -> (Client, mpsc::UnboundedReceiver<ConnectionState>) {
        let (states, receiver) = mpsc::unbounded_channel();
        let session = Session::new(config, connect.servers(), fastrand::u64(..), Duration::ZERO);
        let (driver, shared) = Driver::new(session, connect, states);
        tokio::spawn(driver.run());
        (Client { handle: Arc::new(Handle { shared }), chroot }, receiver)
    }

    /// Sends a request as it is on the wire. The future resolves to the reply. The typed calls such as [`Client::get`] do
    /// the same.
    ///
    /// # Errors
    /// [`RequestError`]. The requests that the session itself makes are refused with
    /// [`ErrorCode::BadArguments`](lockkeeper_wire::ErrorCode): pings, closing, and setting or removing watches.
    ///
    /// # Cancel safety
    /// This call sends the request; dropping the future does not cancel it.
    pub fn request(
        &self,
        request: Request,
    ) -> impl Future<Output = Result<Response, RequestError>> + Send + Unpin + use<> {
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
    ) -> impl Future<Output = (Result<Response, RequestError>, Watcher)> + Send + use<> {
        let (fired, watched) = oneshot::channel();
        let (id, reply) = self.send(request, Some(WatchSender::Once(fired)));
        let (shared, chroot) = (self.handle.shared.clone(), self.chroot.clone());
        let watcher = Watcher { id, shared, chroot, watched };
        async move { (reply.await, watcher) }
    }

    /// Adds a watch that stays after it fires (`addWatch`, servers of 3.6 and later). It is for the node and its list of
    /// children. If it is recursive, it is for the node and all its descendants. The watch is active when the future
    /// resolves.
    ///
    /// # Errors
    /// [`RequestError`]; `Unimplemented` by an older server.
    ///
    /// # Cancel safety
    /// Dropping the future removes the watch.
    ///
    /// # Cost
    /// One round trip. Events that were not taken yet are kept in memory, without a limit.
    pub fn watch(
        &self,
        path: &str,
        recursive: bool,
    ) -> impl Future<Output = Result<PersistentWatcher, RequestError>> + Send + use<> {
        let (sender, events) = mpsc::unbounded_channel();
        let request = Request::AddWatch { path: path.to_owned(), recursive };
        let (id, reply) = self.send(request, Some(WatchSender::Always(sender)));
        let (shared, chroot) = (self.handle.shared.clone(), self.chroot.clone());
        let watcher = PersistentWatcher { id, shared, chroot, events };
        async move { reply.await.map(|_| watcher) }
    }

    /// Adds a watch as [`Client::watch`] does, for a reader that must know of the changes that it did not see: the feed reports lost
    /// connections and events that it dropped.
    ///
    /// # Errors
    /// As [`Client::watch`].
    ///
    /// # Cancel safety
    /// Dropping the future removes the watch.
    ///
    /// # Cost
    /// One round trip. At most `capacity` events are kept in memory, and two if it is less.
    pub fn feed(
        &self,
        path: &str,
        recursive: bool,
        capacity: usize,
    ) -> impl Future<Output = Result<WatchFeed, RequestError>> + Send + use<> {
        let (sender, events) = feed(capacity);
        let request = Request::AddWatch { path: path.to_owned(), recursive };
        let (id, reply) = self.send(request, Some(WatchSender::Feed(sender)));
        let (shared, chroot) = (self.handle.shared.clone(), self.chroot.clone());
        let watcher = WatchFeed { id, shared, chroot, events };
        async move { reply.await.map(|_| watcher) }
    }

    /// Returns the session's id; 0 before a server has assigned one.
    pub fn session(&self) -> i64 {
        self.handle.shared.session(Session::id)
    }

    /// Returns the session timeout: the requested one until a server has granted one.
    pub fn session_timeout(&self) -> Duration {
        self.handle.shared.session(Session::session_timeout)
    }

    /// Returns the age of the oldest request that was sent and not answered; zero without one, and without a connection.
    pub fn unanswered_for(&self) -> Duration {
        self.handle.shared.unanswered_for()
    }

    /// Returns what is needed to resume this session elsewhere; `None` before a server has accepted it.
    pub fn resume(&self) -> Option<Resume> {
        self.handle.shared.session(Session::resume)
    }

    /// Returns every server, and why the last attempt to connect to it failed; `None` if no attempt has failed since the
    /// last connection.
    ///
    /// A reason completes a sentence that begins with the server: `refuses connections (nothing listens there)`.
    pub fn connect_errors(&self) -> Vec<(String, Option<String>)> {
        self.handle.shared.connect_errors()
    }

    /// As [`Client::connect_errors`], for a caller that has no more time: an attempt that is under way counts as failed now.
    pub fn unfinished_errors(&self) -> Vec<(String, String)> {
        self.handle.shared.unfinished_errors()
    }

    /// Returns the servers, by their places in the list, that accept no session and have given no reason. The answer to a
    /// four-letter word may explain it: [`crate::ask`].
    pub fn unexplained(&self) -> Vec<usize> {
        self.handle.shared.unexplained()
    }

    /// Changes the current pause between two rounds over all servers: the next round begins after this time. Without a
    /// pause, this does nothing.
    ///
    /// By default, the pauses grow from 50 ms to 1 s.
    pub fn pause_for(&self, pause: Duration) {
        self.handle.shared.change(|session, now| session.pause_for(pause, now));
    }

    /// Returns the same session without the chroot of its connect string, for example to create the chroot's node.
    pub fn without_chroot(&self) -> Client {
        Client { handle: self.handle.clone(), chroot: Chroot::default() }
    }

    /// Adds a credential that this connection and every later one presents, for example `digest` and `user:password`. It
    /// counts for every request that is made later.
    ///
    /// If a server refuses the credential, the session is over with [`End::AuthFailed`](crate::End).
    pub fn add_credential(&self, scheme: impl Into<String>, credential: impl Into<Vec<u8>>) {
        let (scheme, credential) = (scheme.into(), credential.into());
        self.handle.shared.change(|session, now| session.add_credential(scheme, credential, now));
    }

    /// Closes the session: requests made before are carried out, later ones fail. [`ConnectionState::Over`] reports the end, at
    /// the latest after the session timeout.
    pub fn close(&self) {
        self.handle.shared.change(Session::close);
    }

    /// Passes a request to the session. The future resolves to the reply.
    pub(crate) fn send(&self, request: Request, watching: Option<WatchSender>) -> (RequestId, Reply) {
        self.pass_on(request, watching, false)
    }

    /// As `send`, for a request that may leave together with others.
    pub(crate) fn send_batched(&self, request: Request) -> Reply {
        self.pass_on(request, None, true).1
    }

    fn pass_on(&self, mut request: Request, watching: Option<WatchSender>, batched: bool) -> (RequestId, Reply) {
        self.chroot.enter(&mut request);
        let (id, received) = self.handle.shared.send(request, watching, batched);
        (id, Reply { received, chroot: self.chroot.clone() })
    }
}

/// Resolves to the reply to a request. Dropping it does not cancel the request.
pub(crate) struct Reply {
    received: oneshot::Receiver<Result<Response, RequestError>>,
    chroot: Chroot,
}

impl Future for Reply {
    type Output = Result<Response, RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.received).poll(context)).unwrap_or(Err(RequestError::DriverEnded));
        Poll::Ready(result.map(|response| self.chroot.leave(response)))
    }
}

/// Removes the chroot from the path of an event.
fn inside(mut event: WatchEvent, chroot: &Chroot) -> WatchEvent {
    chroot.leave_path(&mut event.path);
    event
}

/// A one-shot watch: resolves when it fires, or to `None` if the session or its driver ends first. Dropping it removes
/// the watch.
pub struct Watcher {
    id: RequestId,
    shared: Arc<SharedState>,
    chroot: Chroot,
    watched: oneshot::Receiver<WatchEvent>,
}

impl Future for Watcher {
    type Output = Option<WatchEvent>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let event = ready!(Pin::new(&mut self.watched).poll(context)).ok();
        Poll::Ready(event.map(|event| inside(event, &self.chroot)))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.unwatch(self.id);
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A watch that stays after it fires. Dropping it removes the watch.
///
/// The session sets the watch again after a reconnect. A server sends no events for the changes in between, so a
/// program that must know of them reads the nodes again after each [`ConnectionState::Connected`].
pub struct PersistentWatcher {
    id: RequestId,
    shared: Arc<SharedState>,
    chroot: Chroot,
    events: mpsc::UnboundedReceiver<WatchEvent>,
}

impl PersistentWatcher {
    /// Returns the next event. `None` means that the watch has ended: the session or its driver has ended, or the
    /// session has moved to a server older than 3.6. Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        let event = self.events.recv().await?;
        Some(inside(event, &self.chroot))
    }
}

impl Drop for PersistentWatcher {
    fn drop(&mut self) {
        self.shared.unwatch(self.id);
    }
}

impl fmt::Debug for PersistentWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentWatcher").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A persistent watch that keeps a bounded number of events and reports its gaps. Created by [`Client::feed`].
/// Dropping it removes the watch.
pub struct WatchFeed {
    id: RequestId,
    shared: Arc<SharedState>,
    chroot: Chroot,
    events: FeedReceiver,
}

impl WatchFeed {
    /// Returns the next event. `None` means that the watch has ended: the session or its driver has ended, or the session has
    /// moved to a server older than 3.6.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<FeedEvent> {
        let mut event = self.events.next().await?;
        if let FeedEvent::Fired { event, .. } = &mut event {
            self.chroot.leave_path(&mut event.path);
        }
        Some(event)
    }
}

impl Drop for WatchFeed {
    fn drop(&mut self) {
        self.shared.unwatch(self.id);
    }
}

impl fmt::Debug for WatchFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchFeed").field("id", &self.id).finish_non_exhaustive()
    }
}
