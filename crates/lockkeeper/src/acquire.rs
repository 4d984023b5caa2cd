//! One call to acquire a lock: its options, and the future that listens for the outcome.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::{AttemptId, Contender, Dialect, Discipline, LockPath, Mode, PathError, Payload};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::driver::{Attempt, cancelled, drive, passed};
use crate::ensemble::Ensemble;
use crate::guard::Guard;
use crate::keeper::{Lockkeeper, wall_clock_ms};
use crate::session::Session;

/// What a lock is: a path and the rule of its queue.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) path: Result<LockPath, PathError>,
    pub(crate) dialect: Dialect,
    pub(crate) discipline: Discipline,
    pub(crate) mode: Mode,
}

/// A request for a lock, not yet made: await it, or give it options first.
///
/// The whole call is bounded by one deadline, opening a session included. When uncontended it costs one create and one list
/// in one round trip.
///
/// # Cancel safety
/// Dropping the future at any moment leaves the queue: the attempt runs on the session's thread, notices that nobody
/// listens, and deletes its node, or releases the lock if it had just been granted.
#[derive(Debug)]
#[must_use = "a request does nothing until it is awaited"]
pub struct Acquire {
    keeper: Lockkeeper,
    kind: Kind,
    once: bool,
    timeout: Option<Duration>,
    message: Option<String>,
    cancel: Option<CancellationToken>,
}

impl Acquire {
    pub(crate) fn new(keeper: Lockkeeper, kind: Kind, once: bool) -> Self {
        Acquire { keeper, kind, once, timeout: None, message: None, cancel: None }
    }

    /// Gives up after `timeout`, counted from the moment the request is awaited, with [`Error::Timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Says why, for those who ask who holds the lock. Cut at 4096 bytes.
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Gives up with [`Error::Cancelled`] when `token` is cancelled.
    pub fn cancel_on(mut self, token: CancellationToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// Waits on this thread, for programs without async. Not to be called from async code.
    ///
    /// # Errors
    /// As awaiting it.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    pub fn wait(self) -> Result<Guard, Error> {
        let io = self.keeper.io().clone();
        io.block_on(self.into_future())
    }

    /// Sends the request on its way; the receiver only listens.
    fn start(self) -> oneshot::Receiver<Result<Guard, Error>> {
        let (caller, outcome) = oneshot::channel();
        let started = Instant::now();
        match &self.kind.path {
            Err(error) => _ = caller.send(Err(error.clone().into())),
            Ok(path) => {
                let path = path.to_string();
                let keeper = self.keeper.clone();
                match keeper.ready_session() {
                    Some(ready) => self.contend(ready, path, started, caller),
                    None => keeper.spawn(self.open_and_contend(path, started, caller)),
                }
            }
        }
        outcome
    }

    /// Opens a session, then hands the attempt to it.
    async fn open_and_contend(self, path: String, started: Instant, mut caller: oneshot::Sender<Result<Guard, Error>>) {
        let session = tokio::select! {
            biased;
            () = caller.closed() => return,
            () = cancelled(self.cancel.as_ref()) => Err(Error::Cancelled { path: path.clone() }),
            session = self.keeper.session(self.timeout) => session,
            () = passed(self.deadline(started)) => {
                let waited = self.timeout.unwrap_or_default();
                Err(Error::Timeout { path: path.clone(), waited, holder: None, ahead: None })
            }
        };
        match session {
            Ok(ready) => self.contend(ready, path, started, caller),
            Err(error) => _ = caller.send(Err(error)),
        }
    }

    /// When the timeout ends. A timeout beyond the clock's end is none.
    fn deadline(&self, started: Instant) -> Option<Instant> {
        self.timeout.and_then(|timeout| started.checked_add(timeout))
    }

    /// Gives the attempt to a session, whose thread runs it from here on.
    fn contend(
        self,
        (session, ensemble): (Arc<Session>, Arc<dyn Ensemble>),
        path: String,
        started: Instant,
        caller: oneshot::Sender<Result<Guard, Error>>,
    ) {
        let deadline = self.deadline(started);
        let Acquire { keeper, kind, once, timeout, message, cancel } = self;
        // A new id for every attempt: it lives and dies with this session.
        let id = AttemptId::new(uuid::Uuid::new_v4().as_u128());
        let payload = Payload::new(id, keeper.owner().clone(), message.as_deref(), wall_clock_ms()).to_bytes();
        let contender = Contender::new(kind.discipline, kind.dialect, kind.mode, id, session.id());
        let attempt = Attempt { path, ensemble, contender, payload, once, timeout, started, deadline, cancel, caller };
        let runner = session.clone();
        runner.spawn(drive(attempt, session));
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard, Error>;
    type IntoFuture = BoxFuture<'static, Result<Guard, Error>>;

    fn into_future(self) -> Self::IntoFuture {
        // Started here, not at the first poll: requests are made in the order in which they are awaited or joined.
        self.start().map(|outcome| outcome.unwrap_or(Err(Error::Closed))).boxed()
    }
}
