//! One call to acquire a lock: its options, and the future that listens for the outcome.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::{
    AttemptId, Class, Contender, Discipline, LockPath, MAX_MESSAGE_BYTES, Mode, NodeFormat, Payload,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::clock::wall_clock_ms;
use crate::ensemble::Ensemble;
use crate::error::check_length;
use crate::hold::HoldOptions;
use crate::hold::guard::sealed::Here;
use crate::hold::guard::{FromHolding, Guard, Holding};
use crate::queue::driver::{Attempt, drive};
use crate::session::context::Context;
use crate::session::on_lost::OnLost;
use crate::session::{Io, Session};
use crate::wait::cancelled;
use crate::work::retry::About;

/// What a lock is: a path and the rule of its queue, and how this process means to stand in it.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) path: LockPath,
    pub(crate) node_format: NodeFormat,
    pub(crate) discipline: Discipline,
    pub(crate) mode: Mode,
    /// Read with a writer's node, to become one later.
    pub(crate) upgradeable: bool,
    /// Enter anew in this class after so long a wait.
    pub(crate) ageing: Option<(Duration, Class)>,
}

impl Kind {
    /// A lock for one holder at a time.
    pub(crate) fn exclusive(path: LockPath) -> Self {
        let (node_format, discipline, mode) = (NodeFormat::Curator, Discipline::Exclusive, Mode::Exclusive);
        Kind { path, node_format, discipline, mode, upgradeable: false, ageing: None }
    }

    fn contender(&self, id: AttemptId, session: lockkeeper_core::SessionId) -> Contender {
        if self.upgradeable {
            Contender::upgradeable(self.node_format, id, session)
        } else {
            Contender::new(self.discipline.clone(), self.node_format, self.mode, id, session)
        }
    }

    /// Whether the node format has names for this kind; one that has not is said before anything is sent.
    fn check(&self) -> Result<(), Error> {
        if self.node_format.prefix(self.mode, AttemptId::new(0)).is_some() {
            return Ok(());
        }
        let (path, reason) =
            (self.path.to_string(), format!("the node format {:?} has no name for it", self.node_format));
        Err(Error::Refused { path, reason })
    }
}

/// How long a call waits for the servers that is to try once and was given no time: several times what an answer takes on a slow
/// disk or from another continent, and no longer than a caller bears that does not want to wait.
const TRY: Duration = Duration::from_secs(2);

/// What two timers for one deadline may differ by.
const NEARLY: Duration = Duration::from_millis(20);

/// Behind how many a call stands in line, unless told otherwise.
const MAX_WAITERS: usize = 10_000;

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
pub struct Acquire<G = Guard> {
    context: Context,
    kind: Result<Kind, Error>,
    once: bool,
    timeout: Option<Duration>,
    /// When it ends, where it is a part of a call that began before.
    until: Option<Instant>,
    message: Option<String>,
    cancel: Option<CancellationToken>,
    create_parents: bool,
    max_waiters: usize,
    options: HoldOptions,
    /// Where it is awaited.
    runtime: Option<Handle>,
    guard: PhantomData<fn() -> G>,
}

impl<G> Acquire<G> {
    /// A request for what `kind` says; where that is a mistake of the caller's, awaiting the request tells it.
    pub(crate) fn new(context: Context, kind: Result<Kind, Error>, once: bool) -> Self {
        let (timeout, message, cancel, create_parents) = (None, None, None, true);
        let options = HoldOptions { on_lost: context.on_lost().clone(), ..HoldOptions::default() };
        Acquire {
            context,
            kind,
            once,
            timeout,
            until: None,
            message,
            cancel,
            create_parents,
            max_waiters: MAX_WAITERS,
            options,
            runtime: None,
            guard: PhantomData,
        }
    }

    /// The lock's path; a mistake of the caller's is told here, once, instead of by awaiting the request.
    pub(crate) fn path(&mut self) -> Result<String, Error> {
        match &self.kind {
            Ok(kind) => kind.check().map(|()| kind.path.to_string()),
            Err(_) => std::mem::replace(&mut self.kind, Err(Error::Closed)).map(|kind| kind.path.to_string()),
        }
    }

    /// What it asks for, for those who read of it later.
    pub(crate) fn about(&self) -> About {
        let kind = self.kind.as_ref().ok();
        let path = kind.map(|kind| kind.path.to_string()).unwrap_or_default();
        let class = kind.and_then(|kind| match kind.mode {
            Mode::Class(class) => Some(class.to_string()),
            _ => None,
        });
        About { monitor_object: path.clone(), path, lock_info: self.message.clone(), class }
    }

    /// Where the library's tasks for it run.
    pub(crate) fn io(&self) -> &Arc<Io> {
        self.context.io()
    }

    /// The same request for a hold of no particular kind: to take locks of several kinds in one call.
    pub fn any(self) -> Acquire<Holding> {
        let Acquire {
            context,
            kind,
            once,
            timeout,
            until,
            message,
            cancel,
            create_parents,
            max_waiters,
            options,
            runtime,
            ..
        } = self;
        Acquire {
            context,
            kind,
            once,
            timeout,
            until,
            message,
            cancel,
            create_parents,
            max_waiters,
            options,
            runtime,
            guard: PhantomData,
        }
    }

    /// Gives up after `timeout`, counted from the moment the request is awaited: with [`Error::Timeout`], or with
    /// [`Error::Unreachable`] if no server answers by then. A timeout of zero tries once, as `try_acquire` does.
    ///
    /// The call returns at its deadline also if the servers are silent. Its node is deleted in the background: immediately if a
    /// server answers, otherwise when the connection is back, or by the servers when the session expires.
    ///
    /// The servers are `Unreachable` if the connection is lost at the deadline, if a request is without an answer for 2 s, or if a
    /// call of at least 250 ms had no answer at all. A shorter silence is a busy server's. So a wait costs one `sync` more, 2.1 s
    /// before its deadline.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// As a part of a call with this timeout, which ends then.
    pub(crate) fn until(mut self, whole: Duration, deadline: Instant) -> Self {
        (self.timeout, self.until) = (Some(whole), Some(deadline));
        self
    }

    /// Says why, for those who ask who holds the lock. One of more than 4096 bytes is [`Error::TooLong`].
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Gives up with [`Error::TooManyWaiters`] instead of standing in line behind more than so many; 10 000 unless set.
    ///
    /// Everyone's listing is one packet. One of 1 MiB, the usual limit, holds some 17 700 names: a longer line serves nobody.
    pub fn max_waiters(mut self, waiters: usize) -> Self {
        self.max_waiters = waiters;
        self
    }

    /// Gives up with [`Error::Cancelled`] when `token` is cancelled.
    pub fn cancel_on(mut self, token: CancellationToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// Whether the lock's path is made where it is missing, as it is unless set. With `false` a missing path is
    /// [`Error::NoSuchLock`]: for places where an operator decides which locks there are.
    pub fn create_parents(mut self, create: bool) -> Self {
        self.create_parents = create;
        self
    }

    /// What to do when the lock is lost once it is held, instead of what [`Builder::on_lost`](crate::Builder::on_lost) says.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.options.on_lost = on_lost;
        self
    }

    /// The program has to call [`Holding::alive`] at least this often while it holds the lock. Else the hold is
    /// [`Unattended`](lockkeeper_core::Loss::Unattended), and the lock goes to the next in line.
    ///
    /// For work that may hang: its session would keep the lock for as long as the process lives. Counted from the grant, by a
    /// clock that runs through suspend. Costs no round trip. A limit of nothing is
    /// [`Error::InvalidLiveness`].
    pub fn with_liveness(mut self, limit: Duration) -> Self {
        self.options.liveness = Some(limit);
        self
    }

    /// If this hold ends against its will (its process dies, is cut off, or somebody breaks the lock), nobody gets the lock
    /// before `delay` has passed: 1 ms to 1 h. After a release the next is let in at once.
    ///
    /// For work that may still be on its way when the lock is free again, and resources that cannot check a
    /// [token](crate::Guard::token). All clients of this library keep to it, whether they ask for one themselves or not, also those
    /// who come after the loss. Clients of other makes do not. The delay is counted by whoever is next, from when it first sees
    /// that the holder has vanished: a waiter at once, a newcomer from its coming.
    ///
    /// Costs one write more a hold; whoever follows lists once more. What is left by a holder that vanished is one small node,
    /// until somebody asks for the lock. For mutexes, readers and writers, and semaphores, in Curator's names; for others, and
    /// out of range, [`Error::InvalidLockDelay`].
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.options.delay = Some(delay);
        self
    }

    /// Waits on this thread, for programs without async. Not to be called from async code.
    ///
    /// # Errors
    /// As awaiting it.
    ///
    /// # Panics
    /// If called from within an async runtime's thread.
    #[track_caller]
    pub fn wait(self) -> Result<G, Error>
    where
        G: FromHolding,
    {
        let io = self.context.io().clone();
        io.block_on(self.into_future())
    }
}

/// What is sent is the same whatever guard comes of it.
impl Acquire<Holding> {
    /// Sends the request on its way; the receiver only listens.
    fn start(mut self) -> oneshot::Receiver<Result<Holding, Error>> {
        let (caller, outcome) = oneshot::channel();
        let started = Instant::now();
        self.once |= self.timeout.is_some_and(|timeout| timeout.is_zero());
        self.timeout = self.timeout.filter(|timeout| !timeout.is_zero()).or(self.once.then_some(TRY));
        let kind = std::mem::replace(&mut self.kind, Err(Error::Closed));
        match kind.and_then(|kind| self.check(&kind).map(|()| kind)) {
            Err(error) => _ = caller.send(Err(error)),
            Ok(kind) => {
                let context = self.context.clone();
                self.runtime = Handle::try_current().ok();
                match context.ready_session() {
                    Some(ready) => self.contend(ready, kind, started, caller),
                    None => context.spawn(self.open_and_contend(kind, started, caller)),
                }
            }
        }
        outcome
    }

    /// Everything that can be said to be wrong before anything is sent.
    fn check(&self, kind: &Kind) -> Result<(), Error> {
        self.context.check_process()?;
        kind.check()?;
        check_length("message", kind.path.as_str(), self.message.as_deref(), MAX_MESSAGE_BYTES)?;
        if let Some(given) = self.options.delay {
            let named = kind.node_format.prefix_with(kind.mode, AttemptId::new(0), self.options.lock_delay());
            if self.options.lock_delay().is_none() || named.is_none() {
                return Err(Error::InvalidLockDelay {
                    path: kind.path.to_string(),
                    given,
                    node_format: kind.node_format,
                });
            }
        }
        match self.options.liveness {
            Some(given) if given.is_zero() => Err(Error::InvalidLiveness { path: kind.path.to_string(), given }),
            _ => Ok(()),
        }
    }

    /// Opens a session, then hands the attempt to it.
    async fn open_and_contend(self, kind: Kind, started: Instant, mut caller: oneshot::Sender<Result<Holding, Error>>) {
        let path = kind.path.to_string();
        let session = tokio::select! {
            biased;
            () = caller.closed() => return,
            () = cancelled(self.cancel.as_ref()) => Err(Error::Cancelled { path }),
            session = self.context.session(self.deadline(started)) => session,
        };
        match session {
            Ok(ready) => self.contend(ready, kind, started, caller),
            // A moment before the deadline or after it, by its clock; what was waited is the timeout.
            Err(Error::Unreachable { servers, waited, detail }) => {
                let over = self.timeout.filter(|timeout| waited + NEARLY >= *timeout);
                _ = caller.send(Err(Error::Unreachable { servers, waited: over.unwrap_or(waited), detail }));
            }
            Err(error) => _ = caller.send(Err(error)),
        }
    }

    /// When the timeout ends. A timeout beyond the clock's end is none.
    fn deadline(&self, started: Instant) -> Option<Instant> {
        self.until.or_else(|| started.checked_add(self.timeout?))
    }

    /// Gives the attempt to a session, whose thread runs it from here on.
    fn contend(
        self,
        (session, ensemble): (Arc<Session>, Arc<dyn Ensemble>),
        kind: Kind,
        started: Instant,
        caller: oneshot::Sender<Result<Holding, Error>>,
    ) {
        let deadline = self.deadline(started);
        let Acquire { context, once, timeout, message, cancel, create_parents, max_waiters, options, runtime, .. } =
            self;
        if let Some(runtime) = runtime {
            session.used_from(runtime);
        }
        // A new id for every attempt: it lives and dies with this session.
        let id = AttemptId::new(uuid::Uuid::new_v4().as_u128());
        let payload = Payload::new(id, context.owner().clone(), message.as_deref(), wall_clock_ms());
        let contender = kind.contender(id, session.id()).with_max_ahead(max_waiters);
        let contender = if once { contender.once() } else { contender };
        let contender = match options.lock_delay() {
            Some(delay) => contender.with_delay(delay),
            None => contender,
        };
        let ageing = kind.ageing.and_then(|(after, class)| Some((started.checked_add(after)?, class)));
        let (path, permits) = (kind.path.to_string(), kind.discipline.permits());
        let mark = kind.discipline.holder_marker().map(str::to_owned);
        let attempt = Attempt {
            path,
            ensemble,
            payload,
            permits,
            mark,
            create_parents,
            max_waiters,
            once,
            ageing,
            timeout,
            servers: context.servers(),
            reconnect: context.reconnect_patience(),
            started,
            deadline,
            cancel,
            options,
        };
        let runner = session.clone();
        runner.spawn(drive(attempt, contender, session, caller));
    }
}

impl<G: FromHolding> IntoFuture for Acquire<G> {
    type Output = Result<G, Error>;
    type IntoFuture = BoxFuture<'static, Result<G, Error>>;

    fn into_future(self) -> Self::IntoFuture {
        // Started here, not at the first poll: requests are made in the order in which they are awaited or joined.
        let wrap = |holding| G::from_holding(holding, Here(()));
        self.any().start().map(move |outcome| outcome.unwrap_or(Err(Error::Closed)).map(wrap)).boxed()
    }
}
