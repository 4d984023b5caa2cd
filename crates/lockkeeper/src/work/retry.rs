//! Background work is tried again, and kept as a dead letter when that was in vain.
//!
//! Here and not in the locks: a lock call is one attempt, with one deadline and one node. Between two attempts there is no node,
//! so nobody waits behind somebody who is pausing. Only asking is repeated, never the work: what was lost while it ran may have
//! been half done, and whether it may be done again is its owner's to know.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use lockkeeper::Lockkeeper;
//! use lockkeeper::contentserv::MonitorLock;
//! use lockkeeper::deadletter::FileSink;
//! use lockkeeper::retry::{Operation, Retrying};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let keeper = Lockkeeper::embedded(dir.path()).await?;
//! let letters = FileSink::new(dir.path().join("dead-letters.jsonl"));
//! let retrying = Retrying::new(&keeper, 5).delay(Duration::from_millis(500)).dead_letters(Arc::new(letters));
//!
//! let lock = MonitorLock::new("Bulk Propagation", &keeper, "P1").background();
//! let operation = Operation::new("propagation-4711-P1").payload(serde_json::json!({ "article": "P1", "price": 7 }));
//! retrying.run(&operation, &lock, async { /* change P1 */ }).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};
use lockkeeper_core::Loss;
use serde_json::Value;
use tracing::{debug, warn};

use crate::clock::wall_clock_ms;
use crate::error::Error;
use crate::hold::guard::FromHolding;
use crate::queue::acquire::Acquire;
use crate::recipes::contentserv::{MonitorError, MonitorLock};
use crate::session::Io;
use crate::session::context::Context;
use crate::work::deadletter::{Letter, Record, Sink, SinkError};

/// The longest pause between two attempts, unless the first is longer.
const LONGEST: Duration = Duration::from_secs(30);

/// Something to be done under a lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Operation {
    /// Its id, which no other operation ever has: dead letters are told apart by it.
    pub id: String,
    /// What is to be done, in the caller's own form, for whoever replays it.
    pub payload: Value,
    /// What is to be locked, in the caller's words; the lock's own unless set.
    pub monitor_object: Option<String>,
}

impl Operation {
    /// An operation of this id.
    pub fn new(id: impl Into<String>) -> Self {
        Operation { id: id.into(), payload: Value::Null, monitor_object: None }
    }

    /// One of an id that nobody has.
    pub fn unique() -> Self {
        Operation::new(uuid::Uuid::new_v4().to_string())
    }

    /// Says what is to be done, for whoever replays it.
    pub fn payload(mut self, payload: impl Into<Value>) -> Self {
        self.payload = payload.into();
        self
    }
}

/// The lock that an operation asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// What is to be locked, in the caller's words.
    pub monitor_object: String,
    /// The lock's path.
    pub path: String,
    /// What the caller says about it.
    pub lock_info: Option<String>,
    /// The class that it asks in, where the lock has classes.
    pub class: Option<String>,
}

/// Why an attempt was not granted, by what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Not in time. Another attempt may do better.
    InstanceLock,
    /// The session ended while it waited. Another attempt may do better.
    SessionExpired,
    /// The servers were not to be reached. Another attempt may do better.
    ConnectionLoss,
    /// Something that another attempt would meet again: a refusal, somebody who called the wait off.
    Other,
    /// The caller's own doing: a bad name, a cancelled wait. No attempt follows, and no letter: there is nothing to replay.
    Mistake,
}

impl Cause {
    /// Whether another attempt may do better.
    pub const fn is_passing(self) -> bool {
        matches!(self, Cause::InstanceLock | Cause::SessionExpired | Cause::ConnectionLoss)
    }

    /// As letters call it: by the names of Contentserv's document.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::InstanceLock => "InstanceLock",
            Cause::SessionExpired => "SessionExpired",
            Cause::ConnectionLoss => "ConnectionLoss",
            Cause::Other | Cause::Mistake => "Other",
        }
    }
}

/// An error of an attempt that was not granted.
pub trait Refusal: fmt::Display {
    /// Why it was not.
    fn cause(&self) -> Cause;

    /// Who held the lock, as far as that is known.
    fn behind(&self) -> Option<String>;
}

impl Refusal for Error {
    fn cause(&self) -> Cause {
        match self {
            Error::Timeout { .. }
            | Error::Held { .. }
            | Error::Outranked { .. }
            | Error::Preempted { .. }
            | Error::CleanupUnfinished { .. } => Cause::InstanceLock,
            Error::SessionLost { loss: Loss::Unreachable, .. }
            | Error::Unreachable { .. }
            | Error::ConnectionLost { .. } => Cause::ConnectionLoss,
            Error::SessionLost { loss: Loss::AuthFailed, .. } => Cause::Other,
            Error::SessionLost { .. } => Cause::SessionExpired,
            Error::AuthFailed { .. }
            | Error::Refused { .. }
            | Error::Evicted { .. }
            | Error::Revoked { .. }
            | Error::NoSuchLock { .. }
            | Error::ParentVanishes { .. } => Cause::Other,
            _ => Cause::Mistake,
        }
    }

    fn behind(&self) -> Option<String> {
        match self {
            Error::Timeout { holder, .. } | Error::Held { holder, .. } => holder.as_ref().map(ToString::to_string),
            Error::Outranked { by, .. } | Error::Preempted { by, .. } => Some(by.clone()),
            Error::CleanupUnfinished { owner, .. } => Some(owner.clone()),
            _ => None,
        }
    }
}

impl Refusal for MonitorError {
    fn cause(&self) -> Cause {
        match self {
            MonitorError::InstanceLock { .. } => Cause::InstanceLock,
            MonitorError::SessionExpired { .. } => Cause::SessionExpired,
            MonitorError::ConnectionLoss { .. } => Cause::ConnectionLoss,
            MonitorError::NoNode { .. } => Cause::Mistake,
            MonitorError::Other { source, .. } => source.downcast_ref().map_or(Cause::Mistake, Error::cause),
        }
    }

    fn behind(&self) -> Option<String> {
        match self {
            MonitorError::InstanceLock { source, .. } => source.behind(),
            _ => None,
        }
    }
}

/// An operation that was given up: it has not begun.
#[derive(Debug)]
#[non_exhaustive]
pub struct GivenUp<E> {
    /// What the last attempt ended with.
    pub error: E,
    /// How many there were.
    pub attempts: u32,
    /// Whether it is kept.
    pub letter: Kept,
}

/// Whether an operation that was given up is kept as a dead letter.
#[derive(Debug)]
pub enum Kept {
    /// In the sink of this name.
    In(String),
    /// No: there is no sink, or nothing that could be replayed.
    Nowhere,
    /// It should be, and the sink failed: nobody else knows of the operation now.
    Failed(SinkError),
}

impl<E: fmt::Display> fmt::Display for GivenUp<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = if self.attempts == 1 { "attempt" } else { "attempts" };
        write!(f, "given up after {} {times}: {}", self.attempts, self.error)?;
        match &self.letter {
            Kept::In(sink) => write!(f, "; kept as a dead letter in {sink}"),
            Kept::Nowhere => Ok(()),
            Kept::Failed(error) => write!(f, "; not even kept: {error}: {}", error.source),
        }
    }
}

impl<E: std::error::Error> std::error::Error for GivenUp<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The error's own text is in ours.
        self.error.source()
    }
}

/// How background work is tried again, and where it goes when that was in vain. Cheap to clone.
#[derive(Clone)]
pub struct Retrying {
    /// Whose timers pauses are taken with; without one, those of the tokio runtime that polls.
    io: Option<Arc<Io>>,
    retries: u32,
    delay: Duration,
    sink: Option<Arc<dyn Sink>>,
}

impl fmt::Debug for Retrying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Retrying { io: _, retries, delay, sink } = self;
        f.debug_struct("Retrying").field("retries", retries).field("delay", delay).field("sink", sink).finish()
    }
}

impl Retrying {
    pub(crate) fn on(context: &Context, retries: u32) -> Self {
        Retrying { io: Some(context.io().clone()), ..Retrying::on_tokio(retries) }
    }

    /// Tries up to `1 + retries` times before there is a handle, for attempts that connect as well. Its futures need a tokio runtime with timers.
    pub fn on_tokio(retries: u32) -> Self {
        Retrying { io: None, retries, delay: Duration::from_secs(1), sink: None }
    }

    /// The first pause, 1 s unless set. Each is twice as long as the one before, up to 30 s (or this, if it is longer), and up
    /// to as much again at random, so that those who were refused together do not come back together.
    pub fn delay(mut self, first: Duration) -> Self {
        self.delay = first;
        self
    }

    /// Where operations go that were never granted.
    pub fn dead_letters(mut self, sink: Arc<dyn Sink>) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Asks for a lock until it is granted or the retries are used up. Give the request a timeout: without one the first attempt
    /// waits as long as it takes.
    ///
    /// Dropping the future leaves the queue, if it stands in one, and keeps no letter.
    ///
    /// # Errors
    /// [`GivenUp`] with the last attempt's error.
    pub async fn acquire<G: FromHolding>(
        &self,
        operation: &Operation,
        mut request: impl FnMut() -> Acquire<G>,
    ) -> Result<G, GivenUp<Error>> {
        let first = request();
        let about = first.about();
        let mut first = Some(first);
        self.attempt(operation, about, async || first.take().unwrap_or_else(&mut request).await).await
    }

    /// Locks a monitor object, each attempt within its task timeout, until it is granted or the retries are used up.
    ///
    /// Dropping the future leaves the queue, if it stands in one, and keeps no letter.
    ///
    /// # Errors
    /// [`GivenUp`] with the last attempt's error.
    pub async fn lock(&self, operation: &Operation, lock: &MonitorLock) -> Result<(), GivenUp<MonitorError>> {
        self.attempt(operation, lock.about(), async || lock.lock_with_timeout().await).await
    }

    /// [`Retrying::lock`], the work, and [`MonitorLock::unlock`]. The work is not begun unless it was granted, and dropped at its
    /// next await if the lock is lost; what was begun is never tried again.
    ///
    /// # Errors
    /// [`RunError::GivenUp`] if it was not begun, [`RunError::Lost`] if it was.
    pub async fn run<T>(
        &self,
        operation: &Operation,
        lock: &MonitorLock,
        work: impl Future<Output = T>,
    ) -> Result<T, RunError> {
        self.lock(operation, lock).await.map_err(RunError::GivenUp)?;
        lock.work(work).await.map_err(RunError::Lost)
    }

    /// Makes attempts of any kind until one is granted or the retries are used up.
    ///
    /// An attempt asks, and no more: it is made again after an error, so it must not begin the work.
    ///
    /// # Errors
    /// [`GivenUp`] with the last attempt's error.
    pub async fn attempt<T, E: Refusal>(
        &self,
        operation: &Operation,
        about: About,
        mut attempt: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, GivenUp<E>> {
        let (first_ms, mut waited, mut attempts) = (wall_clock_ms(), Duration::ZERO, 0);
        let mut pauses = self.pauses();
        let error = loop {
            attempts += 1;
            let since = Instant::now();
            let error = match attempt().await {
                Ok(granted) => return Ok(granted),
                Err(error) => error,
            };
            waited += since.elapsed();
            match pauses.next().filter(|_| error.cause().is_passing()) {
                Some(pause) => {
                    debug!(operation = %operation.id, path = %about.path, attempts, %error, ?pause, "trying again");
                    match &self.io {
                        Some(io) => io.after(pause).await,
                        None => tokio::time::sleep(pause).await,
                    }
                }
                None => break error,
            }
        };
        let letter = match &self.sink {
            Some(sink) if error.cause() != Cause::Mistake => {
                let mut letter = Letter::new(&operation.id, about.monitor_object, about.path);
                if let Some(object) = &operation.monitor_object {
                    letter.monitor_object.clone_from(object);
                }
                letter.lock_info = about.lock_info;
                letter.class = about.class;
                letter.payload = operation.payload.clone();
                letter.attempts = attempts;
                letter.error = error.cause().name().to_owned();
                letter.detail = error.to_string();
                letter.behind = error.behind();
                letter.first_ms = first_ms;
                letter.last_ms = wall_clock_ms();
                letter.waited_ms = waited.as_millis() as u64;
                match sink.append(&Record::Letter(Box::new(letter))).await {
                    Ok(()) => Kept::In(sink.name()),
                    Err(failed) => {
                        warn!(operation = %operation.id, %failed, cause = %failed.source, "a dead letter is lost");
                        Kept::Failed(failed)
                    }
                }
            }
            _ => Kept::Nowhere,
        };
        Err(GivenUp { error, attempts, letter })
    }

    fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        ExponentialBuilder::default()
            .with_min_delay(self.delay)
            .with_max_delay(LONGEST.max(self.delay))
            .with_jitter()
            .with_max_times(self.retries as usize)
            .build()
    }
}

/// Why work under a monitor object did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was not begun.
    #[error(transparent)]
    GivenUp(GivenUp<MonitorError>),
    /// It was begun, or even done, and the lock was lost meanwhile: it may have run beside another.
    #[error(transparent)]
    Lost(MonitorError),
}
