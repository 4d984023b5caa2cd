//! Contentserv's lock as its specification describes it: a monitor object, a text that names the requestor, and four
//! errors.
//!
//! It wraps [`PriorityLock`], which is the protocol, and adds only the interface: `lock`, `lockWithTimeout` and
//! `unlock` on an object, the task timeouts of the two classes, and errors that name the monitor object and the
//! requestor's text.

#![warn(missing_docs)]

use lockkeeper::error::{AcquireError, Error, ErrorKind, ProductError, ReleaseError, SessionError};
use lockkeeper::hold::{GuardSlot, run_until};
use lockkeeper::request::About;
use lockkeeper::{Acquire, Class, LockPath, Lockkeeper, Loss, PriorityLock, Revocation};
use std::io;
use std::time::Duration;
use thiserror::Error as ThisError;

/// The default timeout of [`MonitorLock::lock_with_timeout`], for both classes.
pub const TASK_TIMEOUT: Duration = Duration::from_millis(2000);

/// One class of requests: the letters of its nodes, and the timeout of [`MonitorLock::lock_with_timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskClass {
    /// The letters; the lowest are served first.
    pub class: Class,
    /// The task timeout.
    pub timeout: Duration,
}

impl TaskClass {
    /// Creates a class of requests.
    pub fn new(class: Class, timeout: Duration) -> Self {
        TaskClass { class, timeout }
    }
}

/// The meaning of foreground and background. All clients that share monitor objects must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskClasses {
    /// Requests for which a user waits.
    pub foreground: TaskClass,
    /// Bulk work.
    pub background: TaskClass,
}

impl TaskClasses {
    /// Creates the meaning of both.
    pub fn new(foreground: TaskClass, background: TaskClass) -> Self {
        TaskClasses { foreground, background }
    }
}

/// The defaults of the specification: `A` and `B`, 2000 ms each.
impl Default for TaskClasses {
    fn default() -> Self {
        let class = |class| TaskClass { class, timeout: TASK_TIMEOUT };
        TaskClasses { foreground: class(Class::FOREGROUND), background: class(Class::BACKGROUND) }
    }
}

/// Why a monitor lock was not acquired or not released. After any of these errors, the protected code must not run or
/// continue.
#[derive(Clone, Debug, ThisError)]
#[non_exhaustive]
pub enum MonitorError {
    /// The task timeout passed first. The request is withdrawn.
    #[error("could not acquire the lock of {monitor_object:?} within the task timeout, for {lock_info:?}")]
    InstanceLock {
        /// The monitor object.
        monitor_object: String,
        /// The requestor's text.
        lock_info: String,
        /// The holder, and how long the request waited.
        #[source]
        source: Box<AcquireError>,
    },
    /// The session ended while the request waited or while the lock was held.
    #[error("the session ended while it waited for or held the lock of {monitor_object:?}, for {lock_info:?}")]
    SessionExpired {
        /// The monitor object.
        monitor_object: String,
        /// The requestor's text.
        lock_info: String,
        /// How it ended.
        #[source]
        source: Box<Error>,
    },
    /// No server could be reached for too long.
    #[error("the connection was lost while it waited for or held the lock of {monitor_object:?}, for {lock_info:?}")]
    ConnectionLoss {
        /// The monitor object.
        monitor_object: String,
        /// The requestor's text.
        lock_info: String,
        /// The cause.
        #[source]
        source: Box<Error>,
    },
    /// The request's node does not exist (any more): it was unlocked before, or another client deleted it.
    #[error("there is no node to unlock for {monitor_object:?}, for {lock_info:?}")]
    NoNode {
        /// The monitor object.
        monitor_object: String,
        /// The requestor's text.
        lock_info: String,
        /// The cause.
        #[source]
        source: Box<ReleaseError>,
    },
    /// An error that the specification does not name: an invalid monitor object, a refusal, a second lock by the same
    /// object.
    #[error("the lock of {monitor_object:?} failed, for {lock_info:?}")]
    Other {
        /// The monitor object.
        monitor_object: String,
        /// The requestor's text.
        lock_info: String,
        /// The cause.
        #[source]
        source: Box<Error>,
    },
}

impl MonitorError {
    /// Returns what a caller does about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            MonitorError::InstanceLock { source, .. } => source.kind(),
            MonitorError::SessionExpired { source, .. }
            | MonitorError::ConnectionLoss { source, .. }
            | MonitorError::Other { source, .. } => source.kind(),
            MonitorError::NoNode { source, .. } => source.kind(),
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one: that of its cause.
    pub fn hint(&self) -> Option<String> {
        match self {
            MonitorError::InstanceLock { source, .. } => source.hint(),
            MonitorError::SessionExpired { source, .. }
            | MonitorError::ConnectionLoss { source, .. }
            | MonitorError::Other { source, .. } => source.hint(),
            MonitorError::NoNode { .. } => None,
        }
    }
}

/// The result is [`Error::Product`], which keeps the object and the requestor's text.
impl From<MonitorError> for Error {
    fn from(error: MonitorError) -> Self {
        Error::Product(ProductError::new(error.kind(), error.hint(), error))
    }
}

/// For code whose other errors are those of files and sockets. The result keeps this error as its source, and has its kind:
///
/// | error | kind |
/// |---|---|
/// | [`MonitorError::InstanceLock`] | [`TimedOut`](io::ErrorKind::TimedOut) |
/// | [`MonitorError::SessionExpired`] | [`ConnectionAborted`](io::ErrorKind::ConnectionAborted) |
/// | [`MonitorError::ConnectionLoss`] | [`NotConnected`](io::ErrorKind::NotConnected) |
/// | [`MonitorError::NoNode`] | [`NotFound`](io::ErrorKind::NotFound) |
/// | [`MonitorError::Other`] | that of its [`ErrorKind`] |
impl From<MonitorError> for io::Error {
    fn from(error: MonitorError) -> Self {
        let kind = match &error {
            MonitorError::InstanceLock { .. } => io::ErrorKind::TimedOut,
            MonitorError::SessionExpired { .. } => io::ErrorKind::ConnectionAborted,
            MonitorError::ConnectionLoss { .. } => io::ErrorKind::NotConnected,
            MonitorError::NoNode { .. } => io::ErrorKind::NotFound,
            MonitorError::Other { source, .. } => source.kind().into(),
        };
        io::Error::new(kind, error)
    }
}

/// The class of a lock object.
#[derive(Clone, Copy, Debug)]
enum Chosen {
    Foreground,
    Background,
    Other(Class),
}

/// The lock of one monitor object. The default class is the foreground.
///
/// It is not reentrant: a second `lock` by the same object is an error, also while the first one still waits. Any task
/// or thread may unlock. Dropping the object unlocks it in the background.
#[derive(Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct MonitorLock {
    lock: PriorityLock,
    monitor_object: String,
    lock_info: String,
    classes: TaskClasses,
    chosen: Chosen,
    task_timeout: Option<Duration>,
    /// How old a hold must be before it makes way, if it does.
    min_hold: Option<Duration>,
    slot: GuardSlot,
}

impl MonitorLock {
    /// Creates the lock of `monitor_object`. `lock_info` names the requestor; other clients can read it while the
    /// request exists. Sends nothing.
    ///
    /// The monitor object is any text except the empty one. Its node has the name that
    /// [`LockPath::at_root`](lockkeeper::LockPath::at_root) returns. In this name, a `/` becomes `%2F` and a `%` becomes
    /// `%25`, so that different objects have different nodes.
    pub fn new(lock_info: &str, keeper: &Lockkeeper, monitor_object: &str) -> Self {
        MonitorLock {
            lock: PriorityLock::at(keeper, LockPath::at_root(monitor_object)),
            monitor_object: monitor_object.to_owned(),
            lock_info: lock_info.to_owned(),
            classes: TaskClasses::default(),
            chosen: Chosen::Foreground,
            task_timeout: None,
            min_hold: None,
            slot: GuardSlot::new(keeper),
        }
    }

    /// Sets the letters and the timeouts of foreground and background if they differ from the specification:
    /// `settings.task_classes()` returns those of the settings.
    pub fn classes(mut self, classes: TaskClasses) -> Self {
        self.classes = classes;
        let chosen = self.chosen;
        self.choose(chosen)
    }

    /// Selects the foreground.
    pub fn foreground(self) -> Self {
        self.choose(Chosen::Foreground)
    }

    /// Selects the background.
    pub fn background(self) -> Self {
        self.choose(Chosen::Background)
    }

    /// Selects any class. Its default timeout is that of the foreground.
    pub fn class(self, class: Class) -> Self {
        self.choose(Chosen::Other(class))
    }

    /// Sets whether a missing node of the monitor object is created as a container (`true`) or as a persistent node
    /// (`false`, the default and the specification's). See [`PriorityLock::container`]; `settings.monitor_container` is
    /// the one of the settings.
    pub fn container(mut self, container: bool) -> Self {
        self.lock = self.lock.container(container);
        self
    }

    fn choose(mut self, chosen: Chosen) -> Self {
        self.chosen = chosen;
        let class = self.task_class().class;
        self.lock = self.lock.class(class);
        self
    }

    fn task_class(&self) -> TaskClass {
        match self.chosen {
            Chosen::Foreground => self.classes.foreground,
            Chosen::Background => self.classes.background,
            Chosen::Other(class) => TaskClass { class, timeout: self.classes.foreground.timeout },
        }
    }

    /// Sets the timeout of [`MonitorLock::lock_with_timeout`], whatever the class.
    pub fn task_timeout(mut self, timeout: Duration) -> Self {
        self.task_timeout = Some(timeout);
        self
    }

    /// Lets the holds of this object be asked to make way for earlier classes, once they are a second old:
    /// [`MonitorLock::should_yield`]. See [`Acquire::yielding`], also for the cost.
    pub fn yielding(self) -> Self {
        self.min_hold(PriorityLock::MIN_HOLD)
    }

    /// As [`MonitorLock::yielding`], with another minimum: see [`Acquire::min_hold`].
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = Some(min_hold);
        self
    }

    /// Acquires the lock and waits until it is granted. One attempt. For another attempt, call it again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// [`MonitorError`], except [`MonitorError::InstanceLock`].
    pub async fn lock(&self) -> Result<(), MonitorError> {
        self.lock_with(|request| request).await
    }

    /// Acquires the lock with the options of an [`Acquire`]. One attempt. The message is the text that names the
    /// requestor, unless the options set another one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// As [`MonitorLock::lock`]; [`MonitorError::InstanceLock`] after a timeout of the options.
    pub async fn lock_with(&self, options: impl FnOnce(Acquire) -> Acquire) -> Result<(), MonitorError> {
        // The end of the session has an error of its own, and a caller that retries decides.
        let request = self.lock.acquire().message(&self.lock_info).requeue(false);
        let request = options(match self.min_hold {
            Some(min_hold) => request.min_hold(min_hold),
            None => request,
        });
        self.slot.fill(request).await.map_err(|error| self.acquiring(error))
    }

    /// Acquires the lock and waits for at most the task timeout, including the time to connect. One attempt.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// [`MonitorError::InstanceLock`] after the timeout; otherwise as [`MonitorLock::lock`].
    pub async fn lock_with_timeout(&self) -> Result<(), MonitorError> {
        let timeout = self.timeout();
        self.lock_with(|request| request.timeout(timeout)).await
    }

    fn timeout(&self) -> Duration {
        self.task_timeout.unwrap_or_else(|| self.task_class().timeout)
    }

    /// Returns a request for this lock, for [`Lockkeeper::multi_lock`] and other code that takes requests. It has the class,
    /// the requestor's text and the task timeout of this object, and its guard is the caller's: this object does not keep
    /// it, and [`MonitorLock::unlock`] does not release it.
    ///
    /// In a `multi_lock`, one deadline limits the whole call, and the timeouts of its parts do not count:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockkeeper::Lockkeeper;
    /// use lockkeeper_contentserv::MonitorLock;
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let keeper = Lockkeeper::embedded(dir.path()).await?;
    /// let article = MonitorLock::new("Type Switch", &keeper, "P1");
    /// let picture = MonitorLock::new("Type Switch", &keeper, "M7");
    /// let both = keeper.multi_lock([article.acquire().any(), picture.acquire().any()]);
    /// let guard = both.timeout(Duration::from_secs(2)).await?;
    /// // Change both.
    /// guard.release().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire(&self) -> Acquire {
        self.lock.acquire().message(&self.lock_info).timeout(self.timeout())
    }

    /// Deletes the request's node and the holder marker in one transaction, and waits until the server confirms it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the unlock; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// [`MonitorError::NoNode`] if this object has nothing to unlock; [`MonitorError::SessionExpired`] and
    /// [`MonitorError::ConnectionLoss`] if the lock was lost that way before.
    pub async fn unlock(&self) -> Result<(), MonitorError> {
        self.slot.clear(&self.monitor_object).await.map_err(|error| self.releasing(error))
    }

    /// Returns whether a request of the foreground, or of another earlier class, waits for the lock that this object holds and may give up
    /// ([`MonitorLock::yielding`]). No round trip. See
    /// [`Holding::should_yield`](lockkeeper::Holding::should_yield).
    pub fn should_yield(&self) -> bool {
        self.slot.look(|slot| slot.as_ref().is_some_and(|guard| guard.should_yield()))
    }

    /// Makes way if [`MonitorLock::should_yield`] says so, and otherwise returns immediately. Deletes the holder marker and keeps
    /// the request's node. When it returns, the object holds the lock again: right after the foreground, and before the other
    /// requests of its class, also those of foreign clients. The new hold has a greater [token](MonitorLock::token). One attempt, without
    /// the task timeout. See [`Guard::yield_lock`](lockkeeper::Guard::yield_lock), also for its cost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue; the object is then unlocked.
    ///
    /// # Errors
    ///
    /// As [`MonitorLock::lock`]. The object is then unlocked.
    pub async fn yield_lock(&self) -> Result<(), MonitorError> {
        self.slot.yield_lock(&self.monitor_object).await.map_err(|error| self.acquiring(error))
    }

    /// Acquires the lock within the task timeout, runs `work`, and unlocks. `work` does not start after an error, and
    /// it is dropped at its next await if the lock is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue, or drops `work`. The object then keeps the lock until it is unlocked or
    /// dropped.
    ///
    /// # Errors
    ///
    /// As [`MonitorLock::lock_with_timeout`] and [`MonitorLock::unlock`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, MonitorError> {
        self.lock_with_timeout().await?;
        self.run_locked(work).await
    }

    /// Returns what it requests, for a dead letter.
    pub fn about(&self) -> About {
        let (monitor_object, lock_info) = self.names();
        About { monitor_object, lock_info: Some(lock_info), ..self.lock.acquire().about() }
    }

    /// Runs `work` under the hold that a call of `lock` has acquired, and unlocks. `work` is dropped at its next await if the lock is
    /// lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The object then keeps the lock until it is unlocked or dropped.
    ///
    /// # Errors
    ///
    /// As [`MonitorLock::unlock`], and for a lock that was lost meanwhile.
    pub async fn run_locked<T>(&self, work: impl Future<Output = T>) -> Result<T, MonitorError> {
        // It follows the hold if the work makes way.
        let done = run_until(self.slot.lost(), work).await;
        let unlocked = self.unlock().await;
        match done {
            Ok(done) => unlocked.map(|()| done),
            Err(loss) => Err(self.releasing(ReleaseError::NotHeld { loss })),
        }
    }

    /// Calls [`MonitorLock::lock_with_timeout`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`MonitorLock::lock_with_timeout`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn lock_with_timeout_blocking(&self) -> Result<(), MonitorError> {
        self.slot.block_on(self.lock_with_timeout())
    }

    /// Calls [`MonitorLock::unlock`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Errors
    ///
    /// As [`MonitorLock::unlock`].
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn unlock_blocking(&self) -> Result<(), MonitorError> {
        self.slot.block_on(self.unlock())
    }

    /// Returns whether this object holds the lock now. No round trip.
    pub fn is_held(&self) -> bool {
        self.slot.is_held()
    }

    /// Returns the token of this object's hold, to pass to the protected resource.
    pub fn token(&self) -> Option<lockkeeper::FencingToken> {
        self.slot.token()
    }

    /// Waits until another client asks the holder to release the lock, and returns its request; see
    /// [`Holding::revocation`](lockkeeper::Holding::revocation). Waits for ever if this object does not hold the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the request to the next call.
    pub async fn revocation(&self) -> Revocation {
        self.slot.revocation().await
    }

    /// Returns the request of another client to release the lock, if there is one that was not refused. No round trip.
    pub fn revocation_requested(&self) -> Option<Revocation> {
        self.slot.look(|slot| slot.as_ref().and_then(|guard| guard.revocation_requested()))
    }

    fn names(&self) -> (String, String) {
        (self.monitor_object.clone(), self.lock_info.clone())
    }

    fn acquiring(&self, error: AcquireError) -> MonitorError {
        let (monitor_object, lock_info) = self.names();
        match error {
            AcquireError::Timeout { .. } | AcquireError::Held { .. } => {
                MonitorError::InstanceLock { monitor_object, lock_info, source: Box::new(error) }
            }
            AcquireError::SessionLost { loss: Loss::Unreachable, .. }
            | AcquireError::Session(SessionError::ConnectionLost { .. } | SessionError::Unreachable { .. }) => {
                MonitorError::ConnectionLoss { monitor_object, lock_info, source: Box::new(error.into()) }
            }
            AcquireError::SessionLost { loss: Loss::SessionExpired, .. } => {
                MonitorError::SessionExpired { monitor_object, lock_info, source: Box::new(error.into()) }
            }
            error => MonitorError::Other { monitor_object, lock_info, source: Box::new(error.into()) },
        }
    }

    fn releasing(&self, error: ReleaseError) -> MonitorError {
        let (monitor_object, lock_info) = self.names();
        match error {
            ReleaseError::NotLocked { .. } | ReleaseError::NotHeld { loss: Loss::Removed } => {
                MonitorError::NoNode { monitor_object, lock_info, source: Box::new(error) }
            }
            ReleaseError::NotHeld { loss: Loss::Unreachable } | ReleaseError::Timeout { .. } => {
                MonitorError::ConnectionLoss { monitor_object, lock_info, source: Box::new(error.into()) }
            }
            ReleaseError::NotHeld { loss } if !matches!(loss, Loss::AuthFailed | Loss::AuthRequired) => {
                MonitorError::SessionExpired { monitor_object, lock_info, source: Box::new(error.into()) }
            }
            error => MonitorError::Other { monitor_object, lock_info, source: Box::new(error.into()) },
        }
    }
}

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller with one error type for all calls gets back what a call of a monitor lock returned.
    #[test]
    fn the_error_of_a_monitor_lock_is_found_in_an_error_of_the_library() {
        let (path, text) = (|| "/P1".to_owned(), || "Bulk Propagation".to_owned());
        let waited = Duration::from_secs(2);
        let timeout = AcquireError::Timeout { path: path(), waited, holder: None, ahead: None };
        let timeout =
            MonitorError::InstanceLock { monitor_object: path(), lock_info: text(), source: Box::new(timeout) };
        let lost = SessionError::ConnectionLost { path: path() };
        let lost =
            MonitorError::ConnectionLoss { monitor_object: path(), lock_info: text(), source: Box::new(lost.into()) };
        for (own, kind) in [(timeout, ErrorKind::Taken), (lost, ErrorKind::Unavailable)] {
            let error = Error::from(own.clone());
            assert_eq!((error.to_string(), error.hint()), (own.to_string(), own.hint()));
            assert_eq!((own.kind(), error.kind()), (kind, kind));
            let Error::Product(error) = error else { panic!("{error:?}") };
            assert!(error.get::<MonitorError>().is_some());
        }
    }

    #[test]
    fn an_error_of_a_monitor_lock_is_an_io_error_of_a_fitting_kind() {
        let names = || ("P1".to_owned(), "Save Content".to_owned());
        let of = |make: fn((String, String)) -> MonitorError| io::Error::from(make(names()));
        let timeout = of(|(monitor_object, lock_info)| {
            let source =
                AcquireError::Timeout { path: "/P1".to_owned(), waited: TASK_TIMEOUT, holder: None, ahead: None };
            MonitorError::InstanceLock { monitor_object, lock_info, source: Box::new(source) }
        });
        let lost = of(|(monitor_object, lock_info)| {
            let source = Box::new(SessionError::ConnectionLost { path: "/P1".to_owned() }.into());
            MonitorError::ConnectionLoss { monitor_object, lock_info, source }
        });
        let expired = of(|(monitor_object, lock_info)| {
            let source = Box::new(ReleaseError::NotHeld { loss: Loss::SessionExpired }.into());
            MonitorError::SessionExpired { monitor_object, lock_info, source }
        });
        let unlocked = of(|(monitor_object, lock_info)| {
            let source = Box::new(ReleaseError::NotLocked { path: "/P1".to_owned() });
            MonitorError::NoNode { monitor_object, lock_info, source }
        });
        let kinds = [timeout, lost, expired, unlocked].map(|error| {
            assert!(error.get_ref().is_some_and(|own| own.is::<MonitorError>()), "{error:?}");
            assert!(error.to_string().contains("P1"), "{error}");
            error.kind()
        });
        use io::ErrorKind::{ConnectionAborted, NotConnected, NotFound, TimedOut};
        assert_eq!(kinds, [TimedOut, NotConnected, ConnectionAborted, NotFound]);
    }

    /// C-27, C-28: a class that is neither foreground nor background has the foreground's timeout, also if the classes are set later.
    /// A timeout of the object is before all of them.
    #[tokio::test]
    async fn each_class_has_its_task_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Lockkeeper::embedded(dir.path()).await.unwrap();
        let lock = || MonitorLock::new("Save Content", &keeper, "P1");
        let second = Duration::from_secs(1);
        let class = |name: &str| Class::new(name).unwrap();
        let classes = TaskClasses::new(TaskClass::new(class("F"), 3 * second), TaskClass::new(class("G"), 7 * second));
        for (lock, letters, timeout) in [
            (lock().classes(classes), "F", 3),
            (lock().background().classes(classes), "G", 7),
            (lock().classes(classes).background().foreground(), "F", 3),
            (lock().class(class("Z")).classes(classes), "Z", 3),
            (lock().classes(classes).class(class("Z")), "Z", 3),
            (lock().background().class(class("Z")), "Z", 2),
            (lock().background().classes(classes).task_timeout(5 * second), "G", 5),
            (lock().task_timeout(5 * second).class(class("Z")), "Z", 5),
        ] {
            assert_eq!((lock.task_class().class, lock.timeout()), (class(letters), timeout * second), "{lock:?}");
            lock.lock_with_timeout().await.unwrap();
            let shown = keeper.admin().show("/P1").await.unwrap();
            assert!(shown.holders[0].node.starts_with(&format!("{letters}-")), "{:?}", shown.holders);
            lock.unlock().await.unwrap();
        }
    }

    /// C-32, C-33: an unlock says what became of the lock before. Only a refusal has no error of the specification.
    #[tokio::test]
    async fn an_unlock_after_each_loss_fails_with_the_error_of_the_specification() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Lockkeeper::embedded(dir.path()).await.unwrap();
        let lock = MonitorLock::new("Save Content", &keeper, "P1");
        let named = |error| match lock.releasing(error) {
            MonitorError::NoNode { .. } => "no node",
            MonitorError::ConnectionLoss { .. } => "connection",
            MonitorError::SessionExpired { .. } => "session",
            MonitorError::Other { .. } => "other",
            error => panic!("{error:?}"),
        };
        for (loss, name) in [
            (Loss::Removed, "no node"),
            (Loss::Unreachable, "connection"),
            (Loss::SessionExpired, "session"),
            (Loss::Closed, "session"),
            (Loss::Forked, "session"),
            (Loss::Unattended, "session"),
            (Loss::AuthFailed, "other"),
            (Loss::AuthRequired, "other"),
        ] {
            assert_eq!(named(ReleaseError::NotHeld { loss }), name, "{loss:?}");
        }
        let path = || "/P1".to_owned();
        assert_eq!(named(ReleaseError::NotLocked { path: path() }), "no node");
        assert_eq!(named(ReleaseError::Timeout { path: path(), waited: TASK_TIMEOUT }), "connection");
        assert_eq!(named(ReleaseError::Failed { reason: "the node has children".to_owned() }), "other");
    }

    /// C-34: work that ends is no success if its lock could not be unlocked: another client may have worked at the same time.
    #[tokio::test]
    async fn work_whose_unlock_fails_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Lockkeeper::embedded(dir.path()).await.unwrap();
        let lock = MonitorLock::new("Save Content", &keeper, "P1");
        assert_eq!(lock.run(async { 7 }).await.unwrap(), 7);
        let outcome = lock.run(async { lock.unlock().await.unwrap() }).await;
        assert!(matches!(outcome, Err(MonitorError::NoNode { .. })), "{outcome:?}");
    }

    #[tokio::test]
    async fn a_held_monitor_lock_hears_that_another_client_asks_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Lockkeeper::embedded(dir.path()).await.unwrap();
        let lock = MonitorLock::new("Bulk Propagation", &keeper, "P1").background();
        let (admin, long) = (keeper.admin(), Duration::from_secs(60));
        lock.lock().await.unwrap();
        assert_eq!(lock.revocation_requested(), None);
        let (asked, revocation) =
            tokio::join!(admin.revoke("/P1", Some("release day")), tokio::time::timeout(long, lock.revocation()));
        assert_eq!(asked.unwrap().len(), 1);
        let revocation = revocation.unwrap();
        assert_eq!(revocation.reason.as_deref(), Some("release day"));
        assert_eq!(lock.revocation_requested(), Some(revocation));
        lock.unlock().await.unwrap();
        assert_eq!(lock.revocation_requested(), None);
    }
}
