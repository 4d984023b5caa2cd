//! The handle for programs.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use lockkeeper_wire::{Request, Response};
use tokio::sync::{mpsc, oneshot};

use crate::driver::{Driver, SharedState, WatchSender};
use crate::session::Session;
use crate::types::{Config, ConnectionState, End, RequestError, RequestId, Resume, WatchEvent};

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
        self.0.change(Session::close);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("session", &format_args!("{:#x}", self.session())).finish_non_exhaustive()
    }
}

impl Client {
    /// Opens a session with one of these servers, each `host:port`. Every attempt resolves the names again.
    ///
    /// Returns immediately; requests wait until a server has accepted the session. The receiver gets the states of the
    /// connection. The driver is a task of the current tokio runtime: if that runtime ends before the session, every
    /// request fails with [`RequestError::DriverEnded`], and the receiver ends without [`ConnectionState::Over`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time, or without a server.
    pub fn open(servers: Vec<String>, config: Config) -> (Client, mpsc::UnboundedReceiver<ConnectionState>) {
        let (states, receiver) = mpsc::unbounded_channel();
        let session = Session::new(config, servers.len(), fastrand::u64(..), std::time::Duration::ZERO);
        let (driver, shared) = Driver::new(session, servers, states);
        tokio::spawn(driver.run());
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
        self.handle.0.session(Session::id)
    }

    /// Returns the session timeout: the requested one until a server has granted one.
    pub fn session_timeout(&self) -> std::time::Duration {
        self.handle.0.session(Session::session_timeout)
    }

    /// Returns what is needed to resume this session elsewhere; `None` before a server has accepted it.
    pub fn resume(&self) -> Option<Resume> {
        self.handle.0.session(Session::resume)
    }

    /// Returns the error of the last attempt to connect, unless a later attempt succeeded.
    pub fn connect_error(&self) -> Option<String> {
        self.handle.0.connect_error()
    }

    /// Closes the session: requests made before are carried out, later ones fail. [`ConnectionState::Over`] reports the end, at
    /// the latest after the session timeout.
    pub fn close(&self) {
        self.handle.0.change(Session::close);
    }

    /// Passes a request to the session. The future resolves to the reply.
    fn send(
        &self,
        request: Request,
        watching: Option<WatchSender>,
    ) -> (RequestId, impl Future<Output = Result<Response, RequestError>> + use<>) {
        let (id, received) = self.handle.0.send(request, watching);
        (id, async move { received.await.unwrap_or(Err(RequestError::SessionOver(End::Closed))) })
    }
}

/// A one-shot watch: resolves when it fires, or to `None` if the session or its driver ends first. Dropping it removes
/// the watch.
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
    events: mpsc::UnboundedReceiver<WatchEvent>,
}

impl PersistentWatcher {
    /// Returns the next event. `None` means that the watch has ended: the session or its driver has ended, or the
    /// session has moved to a server older than 3.6. Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        self.events.recv().await
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
