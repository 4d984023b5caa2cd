//! The task that runs a session over TCP, and the state that it shares with the handles.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use bytes::Buf;
use lockkeeper_wire::{Request, Response};
use tokio::io::ReadBuf;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tracing::debug;

use crate::servers::{Connect, Connecting, Stream};
use crate::session::Session;
use crate::types::{ConnectionState, RequestError, RequestId, SessionEvent, Transport, WatchEvent};

/// Maximum bytes per read from a socket.
const READ: usize = 64 << 10;

type Reply = oneshot::Sender<Result<Response, RequestError>>;

/// Where the events of a watch go.
pub(crate) enum WatchSender {
    Once(oneshot::Sender<WatchEvent>),
    Always(mpsc::UnboundedSender<WatchEvent>),
}

/// Waiters for replies and for watch events.
#[derive(Default)]
struct Waiting {
    /// Waiters for the replies to request `first` and its successors.
    replies: VecDeque<Option<Reply>>,
    first: u64,
    watchers: HashMap<RequestId, WatchSender>,
}

struct Inner {
    session: Session,
    waiting: Waiting,
    /// Error of the last attempt to connect.
    connect_error: Option<String>,
    /// Whether the driver has ended. Then nothing delivers the session's events.
    ended: bool,
}

/// What the driver and the handles of a session share.
pub(crate) struct SharedState {
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

    /// Runs a question on the session.
    pub(crate) fn session<T>(&self, ask: impl FnOnce(&Session) -> T) -> T {
        ask(&self.lock().session)
    }

    /// Changes the session and wakes the driver.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Session, Duration)) {
        let now = self.now();
        change(&mut self.lock().session, now);
        self.wake.notify_one();
    }

    pub(crate) fn connect_error(&self) -> Option<String> {
        self.lock().connect_error.clone()
    }

    /// Passes a request to the session. The receiver gets the reply, always.
    pub(crate) fn send(
        &self,
        request: Request,
        watching: Option<WatchSender>,
    ) -> (RequestId, oneshot::Receiver<Result<Response, RequestError>>) {
        let (reply, received) = oneshot::channel();
        let now = self.now();
        let mut inner = self.lock();
        let left = inner.session.outgoing().len();
        let end = inner.session.end().map(RequestError::SessionOver);
        let id = if let Some(error) = end.or(inner.ended.then_some(RequestError::DriverEnded)) {
            _ = reply.send(Err(error));
            RequestId(0)
        } else {
            let id = inner.session.request(request, now);
            inner.waiting.replies.push_back(Some(reply));
            inner.waiting.watchers.extend(watching.map(|watching| (id, watching)));
            id
        };
        // The driver knows already of bytes that are left. A request that adds none has an event.
        let wakes = left == 0 || inner.session.outgoing().len() == left;
        drop(inner);
        if wakes {
            self.wake.notify_one();
        }
        (id, received)
    }

    /// Removes a watch that has no receiver any more.
    pub(crate) fn unwatch(&self, id: RequestId) {
        let now = self.now();
        let mut inner = self.lock();
        if inner.waiting.watchers.remove(&id).is_some() {
            inner.session.unwatch(id, now);
            drop(inner);
            self.wake.notify_one();
        }
    }
}

/// The driver of one session. If it is dropped before the session is over, for example with its runtime, every
/// request gets an error and every watch ends.
pub(crate) struct Driver {
    shared: Arc<SharedState>,
    connect: Arc<dyn Connect>,
    states: mpsc::UnboundedSender<ConnectionState>,
}

impl Driver {
    pub(crate) fn new(
        session: Session,
        connect: Arc<dyn Connect>,
        states: mpsc::UnboundedSender<ConnectionState>,
    ) -> (Driver, Arc<SharedState>) {
        let waiting = Waiting { first: 1, ..Waiting::default() };
        let inner = Mutex::new(Inner { session, waiting, connect_error: None, ended: false });
        let shared = Arc::new(SharedState { inner, wake: Notify::new(), origin: Instant::now() });
        (Driver { shared: shared.clone(), connect, states }, shared)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let (end, waiting) = {
            let mut inner = self.shared.lock();
            inner.ended = true;
            (inner.session.end(), std::mem::take(&mut inner.waiting))
        };
        // The mutex is free here, because a waker may call back.
        let error = end.map_or(RequestError::DriverEnded, RequestError::SessionOver);
        for reply in waiting.replies.into_iter().flatten() {
            _ = reply.send(Err(error));
        }
    }
}

/// An event and its receiver.
enum Delivery {
    Reply(Reply, Result<Response, RequestError>),
    Once(oneshot::Sender<WatchEvent>, WatchEvent),
    ConnectionState(ConnectionState),
    /// Dropping the sender ends the watch.
    Ended(#[allow(dead_code, reason = "only dropped")] WatchSender),
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
                SessionEvent::WatchEnded { id } => {
                    deliveries.extend(self.waiting.watchers.remove(&id).map(Delivery::Ended));
                }
                SessionEvent::Connected { .. } => {
                    self.connect_error = None;
                    deliveries.push(Delivery::ConnectionState(ConnectionState::Connected));
                }
                SessionEvent::Disconnected => deliveries.push(Delivery::ConnectionState(ConnectionState::Disconnected)),
                SessionEvent::Over(end) => {
                    deliveries.extend(self.waiting.watchers.drain().map(|(_, sender)| Delivery::Ended(sender)));
                    deliveries.push(Delivery::ConnectionState(ConnectionState::Over(end)));
                }
            }
        }
    }

    fn failed(&mut self, why: &str, connect: &dyn Connect, transport: Option<Transport>, now: Duration) {
        if let Some(transport) = transport {
            let server = connect.name(transport.server);
            debug!(%server, why, "connection failed");
            self.connect_error = Some(format!("{server}: {why}"));
        }
        self.session.failed(now);
    }
}

/// An open connection, or one that is being opened.
enum Connection {
    None,
    Opening(Transport, Connecting),
    Open(Transport, Box<dyn Stream>),
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
    Opened(std::io::Result<Box<dyn Stream>>),
    Read(std::io::Result<usize>),
    Due,
    Woken,
}

impl Driver {
    /// Drives the session until it is over.
    pub(crate) async fn run(self) {
        let Driver { shared, connect, states } = &self;
        let mut connection = Connection::None;
        let mut buffer = vec![0_u8; READ];
        let mut deliveries = Vec::new();
        let mut sleep = pin!(tokio::time::sleep(Duration::ZERO));
        let mut sleeps_until = Duration::ZERO;
        let mut sends = false;
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
                    Delivery::ConnectionState(state) => _ = states.send(state),
                    Delivery::Ended(sender) => drop(sender),
                }
            }
            let Some(deadline) = deadline else { return };
            if connection.transport() != wanted {
                connection = match wanted {
                    None => Connection::None,
                    Some(transport) => Connection::Opening(transport, connect.connect(transport.server)),
                };
            }
            // Each reply moves the deadline. The timer is set only when it has elapsed or must elapse earlier.
            if deadline < sleeps_until || sleep.is_elapsed() {
                sleep.as_mut().reset(shared.origin + deadline);
                sleeps_until = deadline;
            }
            let wake = tokio::select! {
                biased;
                () = shared.wake.notified(), if !sends => WakeReason::Woken,
                wake = progress(&mut connection, shared, &mut buffer) => wake,
                () = shared.wake.notified() => WakeReason::Woken,
                () = sleep.as_mut() => WakeReason::Due,
            };
            sends = matches!(wake, WakeReason::Woken);
            if sends && shared.session(Session::in_flight) > 1 {
                // The tasks that are ready make their requests first, so that one write sends them all. A request that
                // is alone would only be late.
                tokio::task::yield_now().await;
            }
            let now = shared.now();
            let mut inner = shared.lock();
            match wake {
                WakeReason::Woken | WakeReason::Due => {}
                WakeReason::Read(Ok(read)) if read > 0 => inner.session.received(&buffer[..read], now),
                WakeReason::Read(end) => {
                    let why =
                        end.map_or_else(|error| error.to_string(), |_| "the server closed the connection".to_owned());
                    inner.failed(&why, &**connect, connection.transport(), now);
                    connection = Connection::None;
                }
                WakeReason::Opened(Ok(stream)) => {
                    if let Connection::Opening(transport, _) = connection {
                        inner.session.opened(now);
                        connection = Connection::Open(transport, stream);
                    }
                }
                WakeReason::Opened(Err(error)) => {
                    inner.failed(&error.to_string(), &**connect, connection.transport(), now);
                    connection = Connection::None;
                }
            }
            // This runs even if the socket is always ready.
            if now >= deadline {
                inner.session.timeout(now);
            }
        }
    }
}

/// Waits for the next event of the connection. Dropping the future loses nothing.
async fn progress(connection: &mut Connection, shared: &SharedState, buffer: &mut [u8]) -> WakeReason {
    match connection {
        Connection::None => std::future::pending().await,
        Connection::Opening(_, dialing) => WakeReason::Opened(dialing.as_mut().await),
        Connection::Open(_, stream) => WakeReason::Read(exchange(&mut **stream, shared, buffer).await),
    }
}

/// Sends the outgoing bytes, and resolves when bytes were read or the connection ended. Dropping the future loses
/// nothing.
async fn exchange(stream: &mut dyn Stream, shared: &SharedState, buffer: &mut [u8]) -> std::io::Result<usize> {
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
        // TLS keeps the last bytes until it is flushed. If this is pending, a later poll continues.
        if let Poll::Ready(Err(error)) = Pin::new(&mut *stream).poll_flush(context) {
            return Poll::Ready(Err(error));
        }
        let mut read = ReadBuf::new(buffer);
        match Pin::new(&mut *stream).poll_read(context, &mut read) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(read.filled().len())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
