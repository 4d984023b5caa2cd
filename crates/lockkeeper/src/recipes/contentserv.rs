//! Contentserv's lock as its document has it: a monitor object, a text that says who asks, and four errors.
//!
//! Around [`PriorityLock`], which is the protocol. Here are only its words: `lock`, `lockWithTimeout` and `unlock` on an object,
//! the task timeouts of the two classes, and errors that each name the monitor object and the asker's text.

use std::time::Duration;

use lockkeeper_core::{Class, LockPath, Loss};
use thiserror::Error as ThisError;

use crate::error::{Error, ReleaseError};
use crate::hold::guard::run_until;
use crate::queue::priority::PriorityLock;
use crate::recipes::distributed::Slot;
use crate::session::context::Context;
use crate::wait::cancelled;
use crate::work::retry::About;

/// How long a request waits in [`MonitorLock::lock_with_timeout`] unless told otherwise, in either class.
pub const TASK_TIMEOUT: Duration = Duration::from_millis(2000);

/// One class of requests: the letters of its nodes, and how long [`MonitorLock::lock_with_timeout`] waits in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskClass {
    /// The letters; the lowest are served first.
    pub class: Class,
    /// The task timeout.
    pub timeout: Duration,
}

/// What foreground and background mean for those who share monitor objects: all of them must mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskClasses {
    /// Those for whom somebody waits.
    pub foreground: TaskClass,
    /// Bulk work.
    pub background: TaskClass,
}

/// As in the document: `A` and `B`, 2000 ms each.
impl Default for TaskClasses {
    fn default() -> Self {
        let class = |class| TaskClass { class, timeout: TASK_TIMEOUT };
        TaskClasses { foreground: class(Class::FOREGROUND), background: class(Class::BACKGROUND) }
    }
}

/// Why a monitor lock was not obtained, or not given back. After any of these the protected code must not run, or go on.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum MonitorError {
    /// The task timeout passed first. The request is withdrawn.
    #[error("unable to get the lock of {monitor_object:?} within the stipulated time, for {lock_info:?}")]
    InstanceLock {
        /// What was to be locked.
        monitor_object: String,
        /// Who asked.
        lock_info: String,
        /// Who held it, and for how long this waited.
        #[source]
        source: Box<Error>,
    },
    /// The session ended: while waiting, or while the lock was held.
    #[error("the session expired under the lock of {monitor_object:?}, for {lock_info:?}")]
    SessionExpired {
        /// What was to be locked.
        monitor_object: String,
        /// Who asked.
        lock_info: String,
        /// How it ended.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No server could be reached for too long.
    #[error("the connection was lost under the lock of {monitor_object:?}, for {lock_info:?}")]
    ConnectionLoss {
        /// What was to be locked.
        monitor_object: String,
        /// Who asked.
        lock_info: String,
        /// What came back.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The request's node is not there (any more): it was unlocked before, or taken away.
    #[error("there is no node to unlock for {monitor_object:?}, for {lock_info:?}")]
    NoNode {
        /// What was to be unlocked.
        monitor_object: String,
        /// Who asked.
        lock_info: String,
        /// How that is known.
        #[source]
        source: Box<ReleaseError>,
    },
    /// Something the document does not name: a bad monitor object, a refusal, a second lock by the same object.
    #[error("the lock of {monitor_object:?}, for {lock_info:?}")]
    Other {
        /// What was to be locked.
        monitor_object: String,
        /// Who asked.
        lock_info: String,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The class that a lock was made for.
#[derive(Clone, Copy, Debug)]
enum Chosen {
    Foreground,
    Background,
    Other(Class),
}

/// The lock of one monitor object. For the foreground unless told otherwise.
///
/// Not reentrant: a second `lock` by the same object is an error, not a wait for itself, also while the first still waits. Any
/// task or thread may unlock.
/// Dropping the object unlocks it in the background.
#[derive(Debug)]
pub struct MonitorLock {
    lock: PriorityLock,
    monitor_object: String,
    lock_info: String,
    classes: TaskClasses,
    chosen: Chosen,
    task_timeout: Option<Duration>,
    slot: Slot,
}

impl MonitorLock {
    pub(crate) fn on(context: &Context, lock_info: &str, monitor_object: &str) -> Self {
        MonitorLock {
            lock: PriorityLock::new(context.clone(), LockPath::at_root(monitor_object)),
            monitor_object: monitor_object.to_owned(),
            lock_info: lock_info.to_owned(),
            classes: TaskClasses::default(),
            chosen: Chosen::Foreground,
            task_timeout: None,
            slot: Slot::empty(context.clone()),
        }
    }

    /// What foreground and background are called and how long they wait, where that is not as in the document:
    /// `settings.task_classes()` has what the settings say.
    pub fn classes(mut self, classes: TaskClasses) -> Self {
        self.classes = classes;
        let chosen = self.chosen;
        self.choose(chosen)
    }

    /// For the foreground.
    pub fn foreground(self) -> Self {
        self.choose(Chosen::Foreground)
    }

    /// For the background.
    pub fn background(self) -> Self {
        self.choose(Chosen::Background)
    }

    /// For any class; it waits as long as the foreground does, unless told otherwise.
    pub fn class(self, class: Class) -> Self {
        self.choose(Chosen::Other(class))
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

    /// How long [`MonitorLock::lock_with_timeout`] waits, whatever the class says.
    pub fn task_timeout(mut self, timeout: Duration) -> Self {
        self.task_timeout = Some(timeout);
        self
    }

    /// Locks it, waiting as long as it takes. One attempt: whoever wants more makes more calls. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`MonitorError`], but for [`MonitorError::InstanceLock`].
    pub async fn lock(&self) -> Result<(), MonitorError> {
        let request = self.lock.acquire().message(&self.lock_info);
        self.slot.fill(request).await.map_err(|error| self.acquiring(error))
    }

    /// Locks it, waiting at most the task timeout, connecting included. One attempt. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`MonitorError::InstanceLock`] when the time is over; else as [`MonitorLock::lock`].
    pub async fn lock_with_timeout(&self) -> Result<(), MonitorError> {
        let timeout = self.task_timeout.unwrap_or_else(|| self.task_class().timeout);
        let request = self.lock.acquire().message(&self.lock_info).timeout(timeout);
        self.slot.fill(request).await.map_err(|error| self.acquiring(error))
    }

    /// Deletes the request's node and the holder's mark, in one transaction, and waits for the server to confirm it.
    /// Dropping the future does not call it back.
    ///
    /// # Errors
    /// [`MonitorError::NoNode`] if nothing of this object's was there to unlock; [`MonitorError::SessionExpired`] and
    /// [`MonitorError::ConnectionLoss`] if it was lost that way before.
    pub async fn unlock(&self) -> Result<(), MonitorError> {
        self.slot.clear(&self.monitor_object).await.map_err(|error| self.releasing(error))
    }

    /// Locks it within the task timeout, runs `work`, and unlocks. `work` is not begun after any error, and dropped at its
    /// next await if the lock is lost.
    ///
    /// # Errors
    /// As [`MonitorLock::lock_with_timeout`] and [`MonitorLock::unlock`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, MonitorError> {
        self.lock_with_timeout().await?;
        self.work(work).await
    }

    /// What this object asks for, for those who read of it later.
    pub(crate) fn about(&self) -> About {
        let (monitor_object, lock_info) = self.names();
        About { monitor_object, lock_info: Some(lock_info), ..self.lock.acquire().about() }
    }

    /// Runs `work` under what is held, and unlocks.
    pub(crate) async fn work<T>(&self, work: impl Future<Output = T>) -> Result<T, MonitorError> {
        let lost = self.slot.look(|slot| slot.as_ref().map(|guard| guard.lost_token()));
        let lost = async {
            cancelled(lost.as_ref()).await;
            self.slot.loss().unwrap_or(Loss::Closed)
        };
        let done = run_until(lost, work).await;
        let unlocked = self.unlock().await;
        match done {
            Ok(done) => unlocked.map(|()| done),
            Err(loss) => Err(self.releasing(ReleaseError::NotHeld { loss })),
        }
    }

    /// [`MonitorLock::lock_with_timeout`] on this thread, for programs without async.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn lock_with_timeout_blocking(&self) -> Result<(), MonitorError> {
        self.slot.block_on(self.lock_with_timeout())
    }

    /// [`MonitorLock::unlock`] on this thread, for programs without async.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn unlock_blocking(&self) -> Result<(), MonitorError> {
        self.slot.block_on(self.unlock())
    }

    /// Whether this object holds it right now. No round trip.
    pub fn is_held(&self) -> bool {
        self.slot.is_held()
    }

    /// The token of this object's hold, for the protected resource.
    pub fn token(&self) -> Option<lockkeeper_core::FencingToken> {
        self.slot.token()
    }

    fn names(&self) -> (String, String) {
        (self.monitor_object.clone(), self.lock_info.clone())
    }

    fn acquiring(&self, error: Error) -> MonitorError {
        let (monitor_object, lock_info) = self.names();
        match error {
            Error::Timeout { .. } => MonitorError::InstanceLock { monitor_object, lock_info, source: Box::new(error) },
            Error::SessionLost { loss: Loss::Unreachable, .. }
            | Error::ConnectionLost { .. }
            | Error::Unreachable { .. } => {
                MonitorError::ConnectionLoss { monitor_object, lock_info, source: Box::new(error) }
            }
            Error::SessionLost { loss: Loss::SessionExpired, .. } => {
                MonitorError::SessionExpired { monitor_object, lock_info, source: Box::new(error) }
            }
            error => MonitorError::Other { monitor_object, lock_info, source: Box::new(error) },
        }
    }

    fn releasing(&self, error: ReleaseError) -> MonitorError {
        let (monitor_object, lock_info) = self.names();
        match error {
            ReleaseError::NotLocked { .. } | ReleaseError::NotHeld { loss: Loss::Removed } => {
                MonitorError::NoNode { monitor_object, lock_info, source: Box::new(error) }
            }
            ReleaseError::NotHeld { loss: Loss::Unreachable } => {
                MonitorError::ConnectionLoss { monitor_object, lock_info, source: Box::new(error) }
            }
            ReleaseError::NotHeld { loss } if loss != Loss::AuthFailed => {
                MonitorError::SessionExpired { monitor_object, lock_info, source: Box::new(error) }
            }
            error => MonitorError::Other { monitor_object, lock_info, source: Box::new(error) },
        }
    }
}
