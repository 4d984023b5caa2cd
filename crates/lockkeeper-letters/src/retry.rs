//! Retries for background work, and dead letters when the retries are used up.
//!
//! This is not a part of the locks: a lock call is one attempt, with one deadline and one node. Between two attempts
//! there is no node, so no contender waits behind a pausing one. Only the acquire is repeated, never the work. Work
//! that lost its lock may be half done, and only its owner knows whether it may be done again. Work that makes way in between
//! was granted the lock: it uses up no retry, and no dead letter is kept for it.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use lockkeeper::Lockkeeper;
//! use lockkeeper_letters::FileSink;
//! use lockkeeper_letters::retry::{Operation, Retrying};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let keeper = Lockkeeper::embedded(dir.path()).await?;
//! let letters = FileSink::new(dir.path().join("dead-letters.jsonl"));
//! let retrying = Retrying::new(&keeper, 5).delay(Duration::from_millis(500)).dead_letters(Arc::new(letters));
//!
//! let lock = keeper.priority_lock("/P1").background();
//! let operation = Operation::new("propagation-4711-P1").payload(serde_json::json!({ "article": "P1", "price": 7 }));
//! let guard = retrying.acquire(&operation, || lock.acquire().timeout(Duration::from_secs(2))).await?;
//! // Change P1.
//! guard.release().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};
use lockkeeper::error::{AcquireError, Error, ErrorKind};
pub use lockkeeper::request::About;
use lockkeeper::{Acquire, Lockkeeper, Loss};
use lockkeeper_session::Timer;
use lockkeeper_session::text::wall_clock_ms;
use serde_json::Value;
use tracing::{debug, warn};

use crate::{Letter, LetterRecord, Sink, SinkError};

/// The longest pause between two attempts, unless the first is longer.
const LONGEST: Duration = Duration::from_secs(30);

/// An operation to do under a lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "an operation does nothing until it is run"]
pub struct Operation {
    /// Its unique id, which its dead letter names. If an operation is given up again under the same id, it has another letter.
    pub id: String,
    /// The work to do, in the caller's own form. A replay uses it.
    pub payload: Value,
    /// The locked object, in the caller's words; by default that of the lock.
    pub monitor_object: Option<String>,
}

impl Operation {
    /// Creates an operation with this id.
    pub fn new(id: impl Into<String>) -> Self {
        Operation { id: id.into(), payload: Value::Null, monitor_object: None }
    }

    /// Creates an operation with a new unique id.
    pub fn unique() -> Self {
        Operation::new(uuid::Uuid::new_v4().to_string())
    }

    /// Sets the work to do. A replay uses it.
    pub fn payload(mut self, payload: impl Into<Value>) -> Self {
        self.payload = payload.into();
        self
    }
}

/// Why an attempt was not granted, by its consequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Not granted in time. Another attempt may succeed.
    InstanceLock,
    /// The session ended while the attempt waited. Another attempt may succeed.
    SessionExpired,
    /// The servers could not be reached. Another attempt may succeed.
    ConnectionLoss,
    /// A reason that another attempt would meet again: a refusal, a revoked wait, or a failure of this machine.
    Other,
    /// The caller's own doing: an invalid name, a number of permits that is not the lock's, a cancelled wait. No attempt
    /// follows and no letter is kept, because there is nothing to replay.
    Mistake,
}

impl Cause {
    /// Returns whether another attempt may succeed.
    pub const fn is_passing(self) -> bool {
        matches!(self, Cause::InstanceLock | Cause::SessionExpired | Cause::ConnectionLoss)
    }

    /// Returns the name that letters use, which is that of Contentserv's specification.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::InstanceLock => "InstanceLock",
            Cause::SessionExpired => "SessionExpired",
            Cause::ConnectionLoss => "ConnectionLoss",
            Cause::Other | Cause::Mistake => "Other",
        }
    }
}

/// The error of an attempt that was not granted.
pub trait NotGranted: fmt::Display {
    /// Returns why it was not granted.
    fn cause(&self) -> Cause;

    /// Returns the holder of the lock, if it is known.
    fn behind(&self) -> Option<String>;
}

/// Also the errors of products, such as those of leased locks and of monitor locks: what counts is the error of the library that they
/// come from.
impl<E: Clone + fmt::Display + Into<Error>> NotGranted for E {
    fn cause(&self) -> Cause {
        cause(&self.clone().into())
    }

    fn behind(&self) -> Option<String> {
        behind(&self.clone().into())
    }
}

fn cause(error: &Error) -> Cause {
    let origin = origin(error);
    let error = origin.as_ref().unwrap_or(error);
    match error.kind() {
        ErrorKind::Taken => Cause::InstanceLock,
        ErrorKind::Unavailable => match error {
            Error::Acquire(AcquireError::SessionLost { loss, .. }) if *loss != Loss::Unreachable => {
                Cause::SessionExpired
            }
            _ => Cause::ConnectionLoss,
        },
        ErrorKind::Cancelled | ErrorKind::Misuse => Cause::Mistake,
        // It states something else than the lock, such as another number of permits.
        _ if matches!(error, Error::Acquire(AcquireError::Mismatch(_))) => Cause::Mistake,
        _ => Cause::Other,
    }
}

fn behind(error: &Error) -> Option<String> {
    match error {
        Error::Acquire(AcquireError::Timeout { holder, .. } | AcquireError::Held { holder, .. }) => {
            holder.as_ref().map(ToString::to_string)
        }
        Error::Product(product) => product.holder().or_else(|| behind(&origin(error)?)),
        _ => None,
    }
}

/// Returns the error of the library that a product's error comes from, if it does.
fn origin(error: &Error) -> Option<Error> {
    let Error::Product(product) = error else { return None };
    let mut source = std::error::Error::source(product);
    while let Some(error) = source {
        if let Some(own) = unboxed::<Error>(error) {
            return Some(own.clone());
        }
        if let Some(own) = unboxed::<AcquireError>(error) {
            return Some(own.clone().into());
        }
        source = error.source();
    }
    None
}

/// Returns the error if it is of this type. A large one is in a box, which is another type.
fn unboxed<'e, E: std::error::Error + 'static>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e E> {
    error.downcast_ref().or_else(|| error.downcast_ref::<Box<E>>().map(|own| &**own))
}

/// An operation that was given up. It has not begun.
#[derive(Debug)]
#[non_exhaustive]
pub struct GivenUp<E> {
    /// The error of the last attempt.
    pub error: E,
    /// The number of attempts.
    pub attempts: u32,
    /// Whether it is kept.
    pub letter: Kept,
}

/// Whether an operation that was given up is kept as a dead letter.
#[derive(Debug)]
#[non_exhaustive]
pub enum Kept {
    /// Kept in this place, as [`Sink::append`] returned it: usually the name of the sink.
    In(String),
    /// Not kept: there is no sink, or nothing to replay.
    Nowhere,
    /// Not kept, because the sink failed: this error is the only trace of the operation.
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
        // The error's own text is part of this one's.
        self.error.source()
    }
}

/// How background work is retried, and where it is kept when the retries are used up. Cheap to clone.
#[derive(Clone)]
#[must_use = "nothing is retried until an operation is run"]
pub struct Retrying {
    /// The timers for the pauses; `None` means those of the tokio runtime that polls.
    timer: Option<Timer>,
    retries: u32,
    delay: Duration,
    sink: Option<Arc<dyn Sink>>,
}

impl fmt::Debug for Retrying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Retrying { timer: _, retries, delay, sink } = self;
        f.debug_struct("Retrying").field("retries", retries).field("delay", delay).field("sink", sink).finish()
    }
}

impl Retrying {
    /// Creates a policy of up to `1 + retries` attempts, as `elastic.request.retry.count` counts.
    pub fn new(keeper: &Lockkeeper, retries: u32) -> Self {
        Retrying { timer: Some(keeper.sessions().timer()), ..Retrying::on_tokio(retries) }
    }

    /// Creates a policy of up to `1 + retries` attempts without a handle, for attempts that connect as well. Its
    /// futures need a tokio runtime with timers.
    pub fn on_tokio(retries: u32) -> Self {
        Retrying { timer: None, retries, delay: Duration::from_secs(1), sink: None }
    }

    /// Sets the first pause; the default is 1 s. Each later pause is twice as long, up to 30 s or the first pause if
    /// that is longer. A random part of at most the same length is added. So requests that failed together are not
    /// retried together.
    pub fn delay(mut self, first: Duration) -> Self {
        self.delay = first;
        self
    }

    /// Sets the sink for operations that were never granted their lock.
    pub fn dead_letters(mut self, sink: Arc<dyn Sink>) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Requests a lock until it is granted or the retries are used up. Set a timeout on the request: without one, the
    /// first attempt has no time limit.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue and keeps no letter.
    ///
    /// # Errors
    ///
    /// [`GivenUp`] with the last attempt's error.
    pub async fn acquire<G: Send + 'static>(
        &self,
        operation: &Operation,
        mut request: impl FnMut() -> Acquire<G>,
    ) -> Result<G, GivenUp<AcquireError>> {
        let first = request();
        let about = first.about();
        let (mut attempts, mut next) = (Attempts::begin(self, operation, about), first);
        loop {
            let since = Instant::now();
            match next.await {
                Ok(guard) => return Ok(guard),
                Err(error) => attempts.failed(since, error).await?,
            }
            next = request();
        }
    }

    /// Locks an object that keeps its guard inside, such as a monitor lock, until it is granted or the retries are used up: calls `lock`
    /// for each attempt. Set a timeout on it, as for [`Retrying::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the attempt and keeps no letter.
    ///
    /// # Errors
    ///
    /// [`GivenUp`] with the last attempt's error.
    pub async fn lock<E: NotGranted, F: Future<Output = Result<(), E>>>(
        &self,
        operation: &Operation,
        about: About,
        mut lock: impl FnMut() -> F,
    ) -> Result<(), GivenUp<E>> {
        let mut attempts = Attempts::begin(self, operation, about);
        loop {
            let since = Instant::now();
            match lock().await {
                Ok(()) => return Ok(()),
                Err(error) => attempts.failed(since, error).await?,
            }
        }
    }

    /// Runs [`Retrying::lock`], and then `work`, which runs under the lock and unlocks. Work that has begun is never retried.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the attempt, or the work.
    ///
    /// # Errors
    ///
    /// [`RunError::GivenUp`] if the work has not begun, [`RunError::Lost`] if it has.
    pub async fn run<T, E: NotGranted, F: Future<Output = Result<(), E>>>(
        &self,
        operation: &Operation,
        about: About,
        lock: impl FnMut() -> F,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, RunError<E>> {
        self.lock(operation, about, lock).await.map_err(RunError::GivenUp)?;
        work.await.map_err(RunError::Lost)
    }

    /// Makes attempts of any kind until one is granted or the retries are used up.
    ///
    /// An attempt must only request the lock, not begin the work, because it is repeated after an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the attempt and keeps no letter.
    ///
    /// # Errors
    ///
    /// [`GivenUp`] with the last attempt's error.
    pub async fn attempt<T, E: NotGranted>(
        &self,
        operation: &Operation,
        about: About,
        mut attempt: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, GivenUp<E>> {
        let mut attempts = Attempts::begin(self, operation, about);
        loop {
            let since = Instant::now();
            match attempt().await {
                Ok(granted) => return Ok(granted),
                Err(error) => attempts.failed(since, error).await?,
            }
        }
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

/// The attempts of one operation so far.
struct Attempts<'a> {
    retrying: &'a Retrying,
    operation: &'a Operation,
    about: About,
    pauses: Box<dyn Iterator<Item = Duration> + Send + Sync>,
    first_ms: u64,
    waited: Duration,
    count: u32,
}

impl<'a> Attempts<'a> {
    fn begin(retrying: &'a Retrying, operation: &'a Operation, about: About) -> Self {
        let (pauses, first_ms) = (Box::new(retrying.pauses()), wall_clock_ms());
        Attempts { retrying, operation, about, pauses, first_ms, waited: Duration::ZERO, count: 0 }
    }

    /// The attempt that began then has failed. Pauses before the next one, or gives the operation up.
    async fn failed<E: NotGranted>(&mut self, since: Instant, error: E) -> Result<(), GivenUp<E>> {
        self.count += 1;
        self.waited += since.elapsed();
        let Some(pause) = self.pauses.next().filter(|_| error.cause().is_passing()) else {
            let letter = self.keep(&error).await;
            return Err(GivenUp { error, attempts: self.count, letter });
        };
        let (operation, path) = (&self.operation.id, &self.about.path);
        debug!(%operation, %path, attempts = self.count, %error, ?pause, "retrying");
        match &self.retrying.timer {
            Some(timer) => timer.after(pause).await,
            None => tokio::time::sleep(pause).await,
        }
        Ok(())
    }

    /// Keeps the operation as a dead letter, unless a replay would fail too.
    async fn keep<E: NotGranted>(&self, error: &E) -> Kept {
        let Some(sink) = self.retrying.sink.as_ref().filter(|_| error.cause() != Cause::Mistake) else {
            return Kept::Nowhere;
        };
        let (operation, about) = (self.operation, &self.about);
        let mut letter = Letter::new(&operation.id, about.monitor_object.clone(), about.path.clone());
        if let Some(object) = &operation.monitor_object {
            letter.monitor_object.clone_from(object);
        }
        letter.lock_info.clone_from(&about.lock_info);
        letter.class.clone_from(&about.class);
        letter.payload = operation.payload.clone();
        letter.attempts = self.count;
        letter.error = error.cause().name().to_owned();
        letter.detail = error.to_string();
        letter.behind = error.behind();
        letter.first_ms = self.first_ms;
        letter.last_ms = wall_clock_ms();
        letter.waited_ms = self.waited.as_millis() as u64;
        match sink.append(&LetterRecord::Letter(Box::new(letter))).await {
            Ok(place) => Kept::In(place),
            Err(failed) => {
                warn!(operation = %operation.id, %failed, cause = %failed.source, "a dead letter could not be kept");
                Kept::Failed(failed)
            }
        }
    }
}

/// Why work under a lock object did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// It has not begun.
    #[error(transparent)]
    GivenUp(GivenUp<E>),
    /// It has begun, or was even done, and the lock was lost meanwhile: it may have overlapped with other work.
    #[error(transparent)]
    Lost(E),
}

#[cfg(test)]
mod tests {
    use lockkeeper::error::{EmbeddedError, Mismatch, SessionError};

    use super::*;
    use crate::FileSink;

    /// A service spawns its background work.
    #[test]
    fn retried_work_can_be_spawned() {
        fn spawned<T: Send>(_: impl FnOnce() -> T) {}
        async fn run(keeper: Lockkeeper) {
            let (retrying, operation) = (Retrying::new(&keeper, 5), Operation::new("propagation"));
            let (lock, work) = (|| async { Ok::<_, AcquireError>(()) }, async { Ok(()) });
            _ = retrying.run(&operation, About::default(), lock, work).await;
            _ = retrying.acquire(&operation, || keeper.mutex("/a").acquire()).await;
        }
        let keeper: Option<Lockkeeper> = None;
        spawned(|| keeper.map(run));
    }

    #[tokio::test]
    async fn an_operation_that_met_trouble_of_the_machine_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let sink = Arc::new(FileSink::new(dir.path().join("letters.jsonl")));
        let retrying = Retrying::on_tokio(2).delay(Duration::ZERO).dead_letters(sink);
        let no_thread = || SessionError::Thread(Arc::new(std::io::Error::other("no thread")));
        let not_running = || SessionError::Embedded(EmbeddedError::NotRunning { dir: "/srv".into() });
        for (error, attempts) in [(no_thread(), 1), (not_running(), 3)] {
            let about = About::default();
            let attempt = async || Err::<(), _>(AcquireError::from(error.clone()));
            let given_up = retrying.attempt(&Operation::unique(), about, attempt).await.unwrap_err();
            assert!(matches!(given_up.letter, Kept::In(_)), "{given_up:?}");
            assert_eq!(given_up.attempts, attempts, "{given_up:?}");
        }
    }

    #[test]
    fn what_is_tried_again_is_what_the_kind_of_an_error_says() {
        let (path, text, waited) = (|| "/P1".to_owned(), || "text".to_owned(), Duration::from_secs(2));
        let lost = |loss| AcquireError::SessionLost { path: path(), loss };
        let all = [
            AcquireError::Held { path: path(), holder: None, ahead: None },
            AcquireError::Timeout { path: path(), waited, holder: None, ahead: None },
            AcquireError::TooManyWaiters { path: path(), ahead: 2, most: 1 },
            AcquireError::Cancelled { path: path() },
            AcquireError::NoSuchLock { path: path() },
            AcquireError::ParentVanishes { path: path() },
            AcquireError::AlreadyHeld { path: path() },
            lost(Loss::Unreachable),
            lost(Loss::SessionExpired),
            lost(Loss::AuthFailed),
            SessionError::ConnectionLost { path: path() }.into(),
            SessionError::Closed.into(),
            SessionError::Forked.into(),
            SessionError::Thread(Arc::new(std::io::Error::other("no thread"))).into(),
            SessionError::NoChroot { servers: text(), chroot: path() }.into(),
            SessionError::TokenEpoch { node: path(), problem: text() }.into(),
            SessionError::Embedded(EmbeddedError::NotRunning { dir: "/srv".into() }).into(),
            SessionError::Embedded(EmbeddedError::file("cannot read", "/srv", std::io::Error::other("disk"))).into(),
            Mismatch::NotARecord { path: path(), problem: text() }.into(),
        ];
        for error in all {
            assert_eq!(error.cause().is_passing(), error.kind().is_retryable(), "{error:?}");
            let caller = matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Misuse)
                || matches!(error, AcquireError::Mismatch(_));
            assert_eq!(error.cause() == Cause::Mistake, caller, "{error:?}");
        }
    }
}
