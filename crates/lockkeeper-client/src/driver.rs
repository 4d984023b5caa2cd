//! The task that runs a session over TCP, and the state that it shares with the handles.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use lockkeeper_wire::{Request, Response, refusal};
use tokio::io::ReadBuf;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::debug;

use crate::feed::{FeedEvent, FeedSender};
use crate::problem::TlsProblem;
use crate::servers::{CLOSED, Connect, Connecting, Searching, Stream, is_close};
use crate::session::Session;
use crate::types::{ConnectionState, RequestError, RequestId, SessionEvent, Transport, WatchEvent};

/// Maximum bytes per read from a socket.
const READ: usize = 64 << 10;
/// What is said of a server that gave no reason.
const SILENT: &str = "does not answer";
/// Why a session has no connection to a server whose address is not known in time.
const NOT_FOUND: &str = "cannot be found in time (if this is a name: DNS does not answer)";
/// Maximum bytes of memory that an empty buffer keeps.
const KEPT: usize = 256 << 10;

type Reply = oneshot::Sender<Result<Response, RequestError>>;

/// Where the events of a watch go.
pub(crate) enum WatchSender {
    Once(oneshot::Sender<WatchEvent>),
    Always(mpsc::UnboundedSender<WatchEvent>),
    Feed(FeedSender),
}

/// Waiters for replies and for watch events.
#[derive(Default)]
struct Waiting {
    /// Waiters for the replies to request `first` and its successors.
    replies: VecDeque<Option<Reply>>,
    first: u64,
    watchers: HashMap<RequestId, WatchSender>,
}

impl Waiting {
    /// Reports a change of the connection to the feeds, between the events before it and those after it.
    fn tell_feeds(&self, event: &FeedEvent) {
        for watcher in self.watchers.values() {
            if let WatchSender::Feed(feed) = watcher {
                feed.push(event.clone());
            }
        }
    }
}

struct Inner {
    session: Session,
    waiting: Waiting,
    /// Every server, and the error of the last attempt to connect to it.
    connect_errors: Vec<(String, Option<String>)>,
    /// Whether the driver has ended. Then nothing delivers the session's events.
    ended: bool,
    /// The newest time that the session was given.
    now: Duration,
    /// Wakes the driver, if it waits.
    driver: Option<Waker>,
    /// Whether the session has changed and the driver has not looked at it.
    changed: bool,
    /// How many requests were made since the driver took the session's bytes.
    made: usize,
}

/// What the driver and the handles of a session share.
pub(crate) struct SharedState {
    inner: Mutex<Inner>,
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

    pub(crate) fn unanswered_for(&self) -> Duration {
        self.lock().session.unanswered_for(self.now())
    }

    /// Changes the session and wakes the driver.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Session, Duration)) {
        let mut inner = self.lock();
        inner.now = self.now();
        let now = inner.now;
        change(&mut inner.session, now);
        inner.changed = true;
        wake(inner);
    }

    pub(crate) fn connect_errors(&self) -> Vec<(String, Option<String>)> {
        self.lock().connect_errors.clone()
    }

    pub(crate) fn unfinished_errors(&self) -> Vec<(String, String)> {
        let inner = self.lock();
        let searched = inner.session.transport().filter(|_| inner.session.is_searching());
        let unfinished = |at| if searched.is_some_and(|it| it.server == at) { NOT_FOUND } else { SILENT };
        let errors = inner.connect_errors.iter().cloned().enumerate();
        errors.map(|(at, (server, error))| (server, error.unwrap_or_else(|| unfinished(at).to_owned()))).collect()
    }

    pub(crate) fn unexplained(&self) -> Vec<usize> {
        let is_unexplained =
            |error: &Option<String>| error.as_deref().is_none_or(|why| [SILENT, CLOSED].contains(&why));
        let inner = self.lock();
        let errors = inner.connect_errors.iter().enumerate();
        errors.filter(|(_, (_, error))| is_unexplained(error)).map(|(at, _)| at).collect()
    }

    /// Passes a request to the session. The receiver gets the reply, always.
    pub(crate) fn send(
        &self,
        request: Request,
        watching: Option<WatchSender>,
        batched: bool,
    ) -> (RequestId, oneshot::Receiver<Result<Response, RequestError>>) {
        let (reply, received) = oneshot::channel();
        let mut inner = self.lock();
        let end = inner.session.end().map(RequestError::SessionOver);
        if let Some(error) = end.or(inner.ended.then_some(RequestError::DriverEnded)) {
            drop(inner);
            _ = reply.send(Err(error));
            return (RequestId(0), received);
        }
        let idle = !inner.session.has_outgoing();
        // Requests that leave together have one time, if the driver takes them as soon as it runs.
        if idle || inner.driver.is_some() {
            inner.now = self.now();
        }
        let now = inner.now;
        let id =
            if batched { inner.session.request_batched(request, now) } else { inner.session.request(request, now) };
        inner.waiting.replies.push_back(Some(reply));
        if let Some(watching) = watching {
            inner.waiting.watchers.insert(id, watching);
        }
        inner.made += 1;
        // A request that is not sent has an event, or it waits for a connection, or for the answer to another one.
        let silent = !inner.session.has_outgoing() && inner.session.held_back() == 0;
        inner.changed |= silent;
        // The driver knows already of what it has to send.
        if silent || idle && inner.session.has_outgoing() {
            wake(inner);
        }
        (id, received)
    }

    /// Removes a watch that has no receiver any more.
    pub(crate) fn unwatch(&self, id: RequestId) {
        let mut inner = self.lock();
        // The sender is dropped when the mutex is free, because a waker may call back.
        let watched = inner.waiting.watchers.remove(&id);
        if watched.is_some() {
            inner.now = self.now();
            let now = inner.now;
            inner.session.unwatch(id, now);
            inner.changed = true;
            wake(inner);
        }
    }
}

/// Longer than any process lives.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Releases the mutex, then wakes the driver if it waits.
fn wake(mut inner: MutexGuard<'_, Inner>) {
    let driver = inner.driver.take();
    drop(inner);
    if let Some(driver) = driver {
        driver.wake();
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
        let connect_errors = (0..connect.servers()).map(|server| (connect.name(server), None)).collect();
        let inner = Inner {
            session,
            waiting,
            connect_errors,
            ended: false,
            now: Duration::ZERO,
            driver: None,
            changed: false,
            made: 0,
        };
        let shared = Arc::new(SharedState { inner: Mutex::new(inner), origin: Instant::now() });
        (Driver { shared: shared.clone(), connect, states }, shared)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let (end, waiting, _driver) = {
            let mut inner = self.shared.lock();
            inner.ended = true;
            (inner.session.end(), std::mem::take(&mut inner.waiting), inner.driver.take())
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
        let mut received = None;
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
                    Some(WatchSender::Feed(feed)) => {
                        let at = *received.get_or_insert_with(|| Instant::now().into_std());
                        feed.push(FeedEvent::Fired { event: WatchEvent { kind, path }, at });
                        self.waiting.watchers.insert(id, WatchSender::Feed(feed));
                    }
                    None => {}
                },
                SessionEvent::WatchEnded { id } => {
                    deliveries.extend(self.waiting.watchers.remove(&id).map(Delivery::Ended));
                }
                SessionEvent::Connected { .. } => {
                    self.connect_errors.iter_mut().for_each(|(_, error)| *error = None);
                    self.waiting.tell_feeds(&FeedEvent::Connected);
                    deliveries.push(Delivery::ConnectionState(ConnectionState::Connected));
                }
                SessionEvent::Disconnected => {
                    self.waiting.tell_feeds(&FeedEvent::Disconnected);
                    deliveries.push(Delivery::ConnectionState(ConnectionState::Disconnected));
                }
                SessionEvent::Paused => deliveries.push(Delivery::ConnectionState(ConnectionState::Paused)),
                SessionEvent::Over(end) => {
                    // In the order in which they were set: the same history wakes the same waiters in the same order.
                    let mut ended: Vec<_> = self.waiting.watchers.drain().collect();
                    ended.sort_unstable_by_key(|(id, _)| *id);
                    deliveries.extend(ended.into_iter().map(|(_, sender)| Delivery::Ended(sender)));
                    deliveries.push(Delivery::ConnectionState(ConnectionState::Over(end)));
                }
            }
        }
    }

    /// Changes the session. Notes the reason if it gives up its transport.
    fn progress(&mut self, why: impl FnOnce() -> String, change: impl FnOnce(&mut Session)) {
        // A probe says nothing about the reason why its server does not accept the session.
        let before = self.session.transport().filter(|_| !self.session.is_probing());
        change(&mut self.session);
        let left = before.filter(|before| self.session.end().is_none() && self.session.transport() != Some(*before));
        if let Some((server, error)) = left.and_then(|left| self.connect_errors.get_mut(left.server)) {
            let why = why();
            debug!(%server, why, "connection failed");
            *error = Some(why);
        }
    }
}

/// An open connection, or one that is being opened.
enum Connection {
    None,
    Searching(Transport, Searching),
    Opening(Transport, Connecting),
    Open(Transport, Box<dyn Stream>),
}

impl Connection {
    fn transport(&self) -> Option<Transport> {
        match self {
            Connection::None => None,
            Connection::Searching(transport, _)
            | Connection::Opening(transport, _)
            | Connection::Open(transport, _) => Some(*transport),
        }
    }
}

/// The reason why the driver woke up.
enum WakeReason {
    Found(std::io::Result<Connecting>),
    Opened(std::io::Result<Box<dyn Stream>>),
    Read(std::io::Result<usize>),
    /// There are requests to send, and more may be made in a moment.
    Requests,
    Due,
    Changed,
}

/// The connection and its bytes.
struct Wire {
    connection: Connection,
    /// Bytes that the session has given out and that are not sent.
    unsent: BytesMut,
    /// Whether the connection has taken all bytes before those.
    flushed: bool,
    read: Vec<u8>,
    /// How many replies the driver has delivered since it took the session's bytes.
    delivered: usize,
    /// Whether the tasks that were ready have made their requests since the driver took the session's bytes.
    gathered: bool,
}

impl Driver {
    /// Drives the session until it is over.
    pub(crate) async fn run(self) {
        let Driver { shared, connect, states } = &self;
        let (connection, unsent, read) = (Connection::None, BytesMut::new(), vec![0_u8; READ]);
        let mut wire = Wire { connection, unsent, flushed: false, read, delivered: 0, gathered: false };
        let (mut deliveries, mut searches) = (Vec::new(), HashMap::new());
        let mut sleep = pin!(tokio::time::sleep(Duration::ZERO));
        let mut sleeps_until = Duration::ZERO;
        let mut is_closing = false;
        loop {
            let (wanted, deadline) = {
                let mut inner = shared.lock();
                inner.changed = false;
                inner.collect(&mut deliveries);
                (inner.session.transport(), inner.session.deadline())
            };
            for delivery in deliveries.drain(..) {
                match delivery {
                    Delivery::Reply(reply, result) => {
                        _ = reply.send(result);
                        wire.delivered += 1;
                    }
                    Delivery::Once(fired, watched) => _ = fired.send(watched),
                    Delivery::ConnectionState(state) => {
                        // What an earlier search finds may be out of date when this connection ends.
                        if state == ConnectionState::Connected {
                            searches.clear();
                        }
                        _ = states.send(state);
                    }
                    Delivery::Ended(sender) => drop(sender),
                }
            }
            let Some(deadline) = deadline else { return };
            if wire.connection.transport() != wanted {
                wire.unsent.clear();
                // A search may take longer than an attempt. The next attempt with the same server continues it.
                if let Connection::Searching(earlier, search) =
                    std::mem::replace(&mut wire.connection, Connection::None)
                {
                    searches.insert(earlier.server, search);
                }
                if let Some(transport) = wanted {
                    let begin = || connect.connect(transport.server);
                    let search = searches.remove(&transport.server).unwrap_or_else(begin);
                    wire.connection = Connection::Searching(transport, search);
                }
            }
            // Each reply moves the deadline. The timer is set only when it has elapsed or must elapse earlier.
            if deadline < sleeps_until || sleep.is_elapsed() {
                // A pause that a caller chose may be beyond the clock's range.
                let due = shared.origin.checked_add(deadline).unwrap_or_else(|| shared.origin + FOR_EVER);
                sleep.as_mut().reset(due);
                sleeps_until = deadline;
            }
            let reason = poll_fn(|context| match wire.poll(shared, context) {
                Poll::Pending => {
                    if !is_closing && wire.has_sent_the_close(shared) {
                        is_closing = true;
                        _ = states.send(ConnectionState::Closing);
                    }
                    sleep.as_mut().poll(context).map(|()| WakeReason::Due)
                }
                ready => ready,
            })
            .await;
            if matches!(reason, WakeReason::Requests) {
                wire.gathered = true;
                tokio::task::yield_now().await;
            }
            let looked = matches!(reason, WakeReason::Read(_) | WakeReason::Due);
            let mut inner = shared.lock();
            inner.now = shared.now();
            let now = inner.now;
            match reason {
                WakeReason::Requests | WakeReason::Changed | WakeReason::Due => {}
                WakeReason::Read(Ok(read)) if read > 0 => {
                    let why = || match refusal::decode(&wire.read[..read]) {
                        Some(why) => format!("refuses the client: {why}"),
                        None if TlsProblem::is_tls(&wire.read[..read]) => {
                            format!("answers, but not as ZooKeeper does: {}", TlsProblem::PortWithTls.text())
                        }
                        None => "answers, but not as ZooKeeper does".to_owned(),
                    };
                    inner.progress(why, |session| session.received(&wire.read[..read], now));
                }
                WakeReason::Read(end) => {
                    let connected = inner.session.is_connected();
                    let why = || match end {
                        Err(error) if connected || !is_close(&error) => breaks(&error),
                        Ok(_) if connected => "closes the connection".to_owned(),
                        _ => CLOSED.to_owned(),
                    };
                    inner.progress(why, |session| session.failed(now));
                    wire.connection = Connection::None;
                }
                WakeReason::Found(Ok(connecting)) => {
                    if let Connection::Searching(transport, _) = wire.connection {
                        inner.session.found(now);
                        wire.connection = Connection::Opening(transport, connecting);
                    }
                }
                WakeReason::Opened(Ok(stream)) => {
                    if let Connection::Opening(transport, _) = wire.connection {
                        inner.session.opened(now);
                        wire.connection = Connection::Open(transport, stream);
                    }
                }
                WakeReason::Found(Err(error)) | WakeReason::Opened(Err(error)) => {
                    inner.progress(|| error.to_string(), |session| session.failed(now));
                    wire.connection = Connection::None;
                }
            }
            // This runs even if the socket is always ready. A driver that is late, because a task has blocked its thread,
            // first reads what has arrived.
            if looked && now >= deadline {
                let why = if inner.session.is_searching() { NOT_FOUND } else { SILENT };
                inner.progress(|| why.to_owned(), |session| session.timeout(now));
            }
        }
    }
}

/// Says why a server has broken the connection.
fn breaks(error: &std::io::Error) -> String {
    #[cfg(feature = "tls")]
    if let Some(problem @ TlsProblem::ClientCertificate) = crate::tls::problem(error) {
        return format!("breaks the connection: {} ({error})", problem.text());
    }
    format!("breaks the connection ({error})")
}

impl Wire {
    /// Sends what the session has to send, and resolves to the next event of the connection or of the session. Dropping
    /// the future loses nothing.
    fn poll(&mut self, shared: &SharedState, context: &mut Context<'_>) -> Poll<WakeReason> {
        let changed = {
            let mut inner = shared.lock();
            if matches!(self.connection, Connection::Open(..)) && self.takes(&mut inner) {
                return Poll::Ready(WakeReason::Requests);
            }
            if inner.driver.as_ref().is_none_or(|driver| !driver.will_wake(context.waker())) {
                inner.driver = Some(context.waker().clone());
            }
            inner.changed
        };
        let progress = match &mut self.connection {
            Connection::None => Poll::Pending,
            Connection::Searching(_, search) => search.as_mut().poll(context).map(WakeReason::Found),
            Connection::Opening(_, dialing) => dialing.as_mut().poll(context).map(WakeReason::Opened),
            Connection::Open(_, stream) => {
                exchange(&mut **stream, &mut self.unsent, &mut self.flushed, &mut self.read, context)
                    .map(WakeReason::Read)
            }
        };
        // The bytes come first, so that frequent changes do not keep the driver from them.
        if progress.is_pending() && changed { Poll::Ready(WakeReason::Changed) } else { progress }
    }

    /// Whether the connection has taken the request to close the session.
    fn has_sent_the_close(&self, shared: &SharedState) -> bool {
        self.unsent.is_empty() && self.flushed && shared.session(Session::has_given_out_the_close)
    }

    /// Takes the session's bytes when the earlier ones are sent. Returns whether more requests may be made in a moment;
    /// then it takes nothing.
    fn takes(&mut self, inner: &mut Inner) -> bool {
        if !self.unsent.is_empty() || !inner.session.has_outgoing() {
            return false;
        }
        // A task that has got a reply, and one behind it in the runtime's queue, may make a request in a moment. One write
        // then sends them all. A request that is alone would only be late, and so would those of a task that has made
        // one for each of its replies.
        let in_flight = inner.session.in_flight();
        let complete = match in_flight {
            0 | 1 => self.delivered <= 1,
            _ => self.delivered > 0 && inner.made >= self.delivered && 2 * inner.made >= in_flight,
        };
        if !self.gathered && !complete {
            return true;
        }
        (self.delivered, self.gathered, inner.made) = (0, false, 0);
        if self.unsent.capacity() > KEPT {
            self.unsent = BytesMut::new();
        }
        // The write is outside of the mutex: a caller never waits for the kernel.
        std::mem::swap(&mut self.unsent, inner.session.outgoing());
        false
    }
}

/// Sends the bytes, and resolves when bytes were read or the connection ended.
fn exchange(
    stream: &mut dyn Stream,
    unsent: &mut BytesMut,
    flushed: &mut bool,
    buffer: &mut [u8],
    context: &mut Context<'_>,
) -> Poll<std::io::Result<usize>> {
    let mut read = ReadBuf::new(buffer);
    while !unsent.is_empty() {
        match Pin::new(&mut *stream).poll_write(context, unsent) {
            Poll::Ready(Ok(sent)) => unsent.advance(sent),
            // A server that has closed the connection may have said why before.
            Poll::Ready(Err(error)) => {
                let received = matches!(Pin::new(&mut *stream).poll_read(context, &mut read), Poll::Ready(Ok(())));
                let told = received && !read.filled().is_empty();
                return Poll::Ready(if told { Ok(read.filled().len()) } else { Err(error) });
            }
            Poll::Pending => break,
        }
    }
    // TLS keeps the last bytes until it is flushed. If this is pending, a later poll continues.
    *flushed = match Pin::new(&mut *stream).poll_flush(context) {
        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
        flush => flush.is_ready(),
    };
    ready!(Pin::new(&mut *stream).poll_read(context, &mut read))?;
    Poll::Ready(Ok(read.filled().len()))
}
