//! A request to acquire a lock: its options, and the future that waits for the result.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::{
    AttemptId, Class, Contender, Discipline, LockPath, Loss, Mode, NodeFormat, TraceParent, excerpt,
};
use lockkeeper_session::ensemble::Ensemble;
use lockkeeper_session::text::typed;
use lockkeeper_session::wait::{TRY, cancelled};
use lockkeeper_session::{CancellationToken, Session, Sessions, latest};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::callbacks;
use crate::error::{AcquireError, Misuse, SessionError};
use crate::hold::guard::Guard;
use crate::hold::holding::Holding;
use crate::hold::on_lost::OnLost;
use crate::hold::spans::WaitRef;
use crate::hold::{AcquireReply, HoldOptions, telemetry};
use crate::keeper::Lockkeeper;
#[cfg(feature = "metrics")]
use crate::meters::Group;
use crate::meters::Meter;
use crate::queue::about::About;
use crate::queue::driver::{Attempt, drive};
use crate::queue::kept::{KeptHold, Limits};
use crate::queue::requeue::{Requeue, Requeued};

/// A kind of lock on a path: the rule of its queue, and how this client takes part in it.
#[derive(Clone, Debug)]
pub(crate) struct LockKind {
    pub(crate) path: LockPath,
    pub(crate) node_format: NodeFormat,
    pub(crate) discipline: Discipline,
    pub(crate) mode: Mode,
    /// Read with a writer's node, to be able to become the writer later.
    pub(crate) upgradeable: bool,
    /// After this wait, enter the queue again in this class.
    pub(crate) ageing: Option<(Duration, Class)>,
    /// Look also for contenders beside the path ([`NodeFormat::Numbered`]), if this node format has none there.
    pub(crate) looks_beside: bool,
    /// Create a missing node of the lock as a persistent node, not as a container.
    pub(crate) persistent: bool,
}

impl LockKind {
    pub(crate) fn exclusive(path: LockPath) -> Self {
        let (node_format, discipline, mode) = (NodeFormat::Curator, Discipline::SharedExclusive, Mode::Exclusive);
        LockKind {
            path,
            node_format,
            discipline,
            mode,
            upgradeable: false,
            ageing: None,
            looks_beside: false,
            persistent: false,
        }
    }

    fn contender(&self, id: AttemptId, session: lockkeeper_core::SessionId) -> Contender {
        if self.upgradeable {
            Contender::upgradeable(self.node_format, id, session)
        } else {
            Contender::new(self.discipline, self.node_format, self.mode, id, session)
        }
    }

    /// Fails if the path is in the realm of another handle, or if the node format has no names for this kind, before anything is sent.
    fn check(&self, keeper: &Lockkeeper) -> Result<(), Misuse> {
        keeper.check_path(self.path.as_str())?;
        if self.node_format.prefix(self.mode, AttemptId::new(0)).is_some() {
            return Ok(());
        }
        let (path, format) = (&self.path, self.node_format);
        Err(Misuse::new(
            "node format",
            format!("the node format {format:?} has no name for this kind of lock on {path}"),
        ))
    }
}

/// The maximum difference between two timers for one deadline.
const NEARLY: Duration = Duration::from_millis(20);

/// How old a hold is by default before it makes way. A foreground request waits for 2 s by default, and the holder needs time to reach a
/// place where it can stop.
pub(crate) const MIN_HOLD: Duration = Duration::from_secs(1);

/// The default of `max_waiters`.
const MAX_WAITERS: usize = 10_000;

/// A request for a lock that is not sent yet: await it, or set options first.
///
/// One deadline limits the whole call, including the time to open a session. It waits for ever without [`Acquire::timeout`]: a lock is often
/// waited for as long as its holder works, so no default would fit.
///
/// It implements [`IntoFuture`]. For a function that wants a future, such as `tokio::spawn` or `tokio::select!` with a variable, call
/// `.into_future()`.
///
/// # Cost
///
/// Without contention, one create and one list in one round trip. A request that waits adds one read, to watch its node. It adds
/// one more read to watch the node that it waits for, unless that is of the same session. A request right behind one of the same
/// session lists only after 100 ms, or after half of its timeout if that is earlier; further behind one that waits, also when that one
/// releases, unless another request of the session lists before. With a timeout, it also reads who holds then,
/// and again 200 ms before the deadline unless it waits for that contender's end. If that contender has left, it lists once more and
/// reads who holds now; with more than 100 contenders ahead it does not.
/// After a wait of more than a second, the hold writes into its node when it began, once it is 100 ms old, and watches the node
/// again. So does the waiter that watches this node. Neither the caller nor a release waits for that, except a release that comes
/// while the write is under way.
///
/// # Cancel safety
///
/// Dropping the future leaves the queue. The attempt runs on the session's thread and notices that its caller has gone.
/// It deletes its node, or releases the lock if it was just granted.
///
/// # Errors
///
/// [`AcquireError`] lists all causes. [`ErrorKind::is_retryable`](crate::error::ErrorKind::is_retryable) says which of
/// them may pass.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let request = keeper.mutex("/locks/nightly").acquire().timeout(Duration::from_secs(30)).message("nightly index");
/// let guard = request.await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is awaited"]
pub struct Acquire<G = Guard> {
    call: Call,
    /// Makes the guard of this kind of lock.
    guard: fn(Holding) -> G,
}

/// One call to acquire a lock, whatever guard it returns.
#[derive(Debug)]
struct Call {
    kind: Result<LockKind, AcquireError>,
    terms: CallOptions,
}

/// The options of a call.
#[derive(Clone, Debug)]
pub(crate) struct CallOptions {
    pub(super) keeper: Lockkeeper,
    once: bool,
    pub(super) timeout: Option<Duration>,
    /// When the call ends, if this is a part of a call that began earlier.
    until: Option<Instant>,
    pub(super) message: Option<String>,
    /// The nodes of holds that the caller keeps while it waits.
    pub(super) holds: Vec<String>,
    /// The caller's span in a distributed trace, or the text that is none.
    pub(super) traceparent: Option<Result<TraceParent, String>>,
    /// The span of the wait in this process.
    pub(super) span: WaitRef,
    pub(super) cancel: Option<CancellationToken>,
    create_parents: bool,
    max_waiters: usize,
    pub(super) options: HoldOptions,
    pub(super) requeue: Requeue,
    /// Whether this attempt continues an earlier one.
    requeued: bool,
    /// The runtime in which the caller awaits it.
    runtime: Option<Handle>,
    /// Whose hold it uses, if that has several uses in this process.
    uses: Option<Arc<KeptHold>>,
    /// Set to whether the attempt is known to wait for other contenders, if somebody must know.
    pub(super) waits: Option<Arc<latest::Sender<bool>>>,
}

impl<G> Acquire<G> {
    /// A request for `kind`. Awaiting the request reports an invalid `kind`.
    pub(crate) fn new(
        keeper: Lockkeeper,
        kind: Result<LockKind, AcquireError>,
        once: bool,
        guard: fn(Holding) -> G,
    ) -> Self {
        let (timeout, message, cancel, create_parents) = (None, None, None, true);
        let mode = kind.as_ref().map(|kind| kind.mode.label()).unwrap_or_default();
        let meter = Meter::new(mode, keeper.metrics_group());
        let options = HoldOptions { on_lost: keeper.on_lost().clone(), meter, ..HoldOptions::default() };
        let terms = CallOptions {
            keeper,
            once,
            timeout,
            until: None,
            message,
            holds: Vec::new(),
            traceparent: None,
            span: WaitRef::new(),
            cancel,
            create_parents,
            max_waiters: MAX_WAITERS,
            options,
            requeue: Requeue::default(),
            requeued: false,
            runtime: None,
            uses: None,
            waits: None,
        };
        Acquire { call: Call { kind, terms }, guard }
    }

    /// The same request again. It continues an earlier attempt if that was made.
    pub(crate) fn again(&self, requeued: bool) -> Self {
        let terms = CallOptions { requeued, ..self.call.terms.clone() };
        Acquire { call: Call { kind: self.call.kind.clone(), terms }, guard: self.guard }
    }

    /// The same request for a use of a hold that has several, if `uses` are given.
    pub(crate) fn among(mut self, uses: Option<Arc<KeptHold>>) -> Self {
        self.call.terms.uses = uses;
        self
    }

    /// What reports the result.
    pub(crate) fn meter(&self) -> &Meter {
        &self.call.terms.options.meter
    }

    /// Where it is made.
    pub(crate) fn keeper(&self) -> &Lockkeeper {
        &self.call.terms.keeper
    }

    /// What it does when its session ends.
    pub(crate) fn requeues(&self) -> &Requeue {
        &self.call.terms.requeue
    }

    /// How often a lost connection is retried before its caller gives up, if that is limited.
    pub(crate) fn retries(&self) -> Option<u32> {
        self.call.terms.keeper.sessions().retries()
    }

    /// The lock's path. An invalid argument is reported here instead of by awaiting the request.
    pub(crate) fn path(&self) -> Result<String, AcquireError> {
        let kind = self.call.kind.as_ref().map_err(AcquireError::clone)?;
        self.call.terms.check(kind)?;
        Ok(kind.path.to_string())
    }

    /// Returns what it requests, for the record of a request that was never granted. Sends nothing.
    pub fn about(&self) -> About {
        let kind = self.call.kind.as_ref().ok();
        let path = kind.map(|kind| kind.path.to_string()).unwrap_or_default();
        let class = kind.and_then(|kind| kind.mode.class()).map(|class| class.to_string());
        About { monitor_object: path.clone(), path, lock_info: self.call.terms.message.clone(), class }
    }

    /// Where the library's tasks for it run.
    pub(crate) fn sessions(&self) -> &Sessions {
        self.call.terms.keeper.sessions()
    }

    /// Converts to a request for a hold of any kind, so that locks of different kinds can be acquired in one call.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let mixed = [keeper.mutex("/a").acquire().any(), keeper.semaphore("/s", 3).acquire().any()];
    /// let all = keeper.multi_lock(mixed).await?;
    /// all.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn any(self) -> Acquire<Holding> {
        Acquire { call: self.call, guard: |holding| holding }
    }

    /// Fails after `timeout`, counted from when the request is awaited: with [`AcquireError::Timeout`], or with
    /// [`SessionError::Unreachable`] if no server answers. A timeout of zero tries once, as `try_acquire` does.
    ///
    /// A call that has no node in the queue yet fails with `Unreachable` after the connect timeout
    /// ([`Builder::connect_timeout`](crate::Builder::connect_timeout)), if that is shorter: no waiter is behind it then, and it can be
    /// made again.
    ///
    /// The call returns at its deadline even if the servers are silent; with a timeout of zero, after at most 2 s. Its node is then deleted in the background.
    /// If a server answers, this happens immediately. Otherwise it happens when the connection is back, or the
    /// servers delete the node when the session expires.
    ///
    /// The error is `Unreachable` if the connection is lost at the deadline, or if a request has had no answer for 2 s.
    /// It is also `Unreachable` if the call had no answer at all, and it, or another request of its session, has waited for
    /// one for 250 ms. A shorter silence may come from a busy server. To find out, a wait costs one more ordered write, 2.1 s before its deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use lockkeeper::error::{AcquireError, ErrorKind};
    ///
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// match keeper.mutex("/locks/nightly").acquire().timeout(Duration::from_secs(2)).await {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(AcquireError::Timeout { holder: Some(holder), .. }) => println!("{holder} has it"),
    ///     Err(error) if error.kind() == ErrorKind::Unavailable => println!("no server answers: {error}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.call.terms.timeout = Some(timeout);
        self
    }

    /// Limits this part of a call to the whole call's timeout and deadline.
    pub(crate) fn until(mut self, whole: Duration, deadline: Instant) -> Self {
        (self.call.terms.timeout, self.call.terms.until) = (Some(whole), Some(deadline));
        self
    }

    /// Sets a message for clients that ask who holds the lock. A message of more than 4096 bytes is
    /// [`AcquireError::Misuse`].
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.call.terms.message = Some(message.into());
        self
    }

    /// Says in the node that the caller keeps these holds until this request has ended, so that a ring of such waits is known to be
    /// a deadlock. They are named by their nodes ([`Holding::node`](crate::Holding::node)); only the first 16 are written. Requests for a lock that is
    /// [kept](crate::Mutex::keep) or shared in this process do not say it, because they may go on without their callers.
    ///
    /// # Cost
    ///
    /// The length of the paths in the node. No round trip.
    pub fn while_holding(mut self, nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.call.terms.holds.extend(nodes.into_iter().map(Into::into));
        self
    }

    /// Writes the caller's span in a distributed trace into the node, as the `traceparent` of
    /// [W3C Trace Context](https://www.w3.org/TR/trace-context/), so that the spans of those who wait for this hold can link to it.
    /// Everyone who may read the lock sees it ([`ContenderInfo::traceparent`](crate::admin::ContenderInfo::traceparent)). Requests
    /// for a lock that is [kept](crate::Mutex::keep) or shared in this process do not write it, because the hold outlives their
    /// traces. Without this call, nothing is written. A text that is not a `traceparent` is [`AcquireError::Misuse`].
    ///
    /// # Cost
    ///
    /// 73 bytes in the node. No round trip.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        let text = traceparent.into();
        self.call.terms.traceparent = Some(text.parse().map_err(|_| text));
        self
    }

    /// Sets the maximum number of contenders ahead; with more, the call fails with [`AcquireError::TooManyWaiters`].
    /// The default is 10 000.
    ///
    /// Every contender receives the listing of the queue in one packet. A packet of 1 MiB, the usual limit, holds about
    /// 17 700 names.
    pub fn max_waiters(mut self, waiters: usize) -> Self {
        self.call.terms.max_waiters = waiters;
        self
    }

    /// Fails with [`AcquireError::Cancelled`] when `token` is cancelled.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let stop = lockkeeper::CancellationToken::new();
    /// let waiting = keeper.mutex("/locks/nightly").acquire().cancel_on(stop.clone());
    /// // Elsewhere, when the program is to stop:
    /// stop.cancel();
    /// assert!(waiting.await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel_on(mut self, token: CancellationToken) -> Self {
        self.call.terms.cancel = Some(token);
        self
    }

    /// Sets whether a missing lock path is created; the default is `true`. With `false`, a missing path is
    /// [`AcquireError::NoSuchLock`], for ensembles in which an operator decides which locks exist.
    pub fn create_parents(mut self, create: bool) -> Self {
        self.call.terms.create_parents = create;
        self
    }

    /// Sets whether the request joins the queue again, with a new session, if its session expires before the grant; the
    /// default is `true`. With `false`, it fails with [`AcquireError::SessionLost`].
    ///
    /// The request loses its position, and other contenders may be granted the lock first. Its timeout and its
    /// cancellation go on. Without a timeout it also waits for the servers, unless
    /// [`Builder::reconnect`](crate::Builder::reconnect) limits that. A log event and [`Acquire::on_requeued`] report
    /// it. A hold never survives its session.
    ///
    /// # Cost
    ///
    /// A new session for all requests that lost theirs, then what the first attempt costs.
    pub fn requeue(mut self, again: bool) -> Self {
        self.call.terms.requeue.again = again;
        self
    }

    /// Calls `callback` each time the request joins the queue again, on a thread as [`OnLost::call`] describes; it may block. See
    /// [`Acquire::requeue`].
    pub fn on_requeued(mut self, callback: impl Fn(&Requeued) + Send + Sync + 'static) -> Self {
        self.call.terms.requeue.callback = Some(Arc::new(callback));
        self
    }

    /// Sets what happens when the lock is lost after the grant, instead of the setting of
    /// [`Builder::on_lost`](crate::Builder::on_lost).
    ///
    /// # Examples
    ///
    /// ```
    /// use lockkeeper::guard::OnLost;
    ///
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let tell = OnLost::call(|lost| eprintln!("{} is lost: {}", lost.path, lost.loss));
    /// let guard = keeper.mutex("/locks/nightly").acquire().on_lost(tell).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.call.terms.options.on_lost = on_lost;
        self
    }

    /// Labels the metrics of this request and its hold with `group="…"`, instead of the setting of
    /// [`Builder::metrics_group`](crate::Builder::metrics_group), which says what makes a good name.
    #[cfg(feature = "metrics")]
    pub fn metrics_group(mut self, group: impl Into<String>) -> Self {
        self.call.terms.options.meter.group = Group::named(group);
        self
    }

    /// Requires the program to call [`Holding::alive`] at least this often while it holds the lock. If it does not, the
    /// hold is lost as [`Unattended`](lockkeeper_core::Loss::Unattended), and the next waiter is granted the lock.
    ///
    /// Use it for work that may hang: without it, the session would keep the lock for as long as the process lives. The
    /// limit counts from the grant, by a clock that keeps running during suspend. No round trip. A limit of zero is
    /// [`AcquireError::Misuse`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let guard = keeper.mutex("/locks/nightly").acquire().with_liveness(Duration::from_secs(60)).await?;
    /// for step in 0..100 {
    ///     println!("step {step}");
    ///     guard.alive(); // at least once a minute
    /// }
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_liveness(mut self, limit: Duration) -> Self {
        self.call.terms.options.liveness = Some(limit);
        self
    }

    /// Lets the hold be asked to make way for requests of earlier classes, once it is a second old. It is for background work that can
    /// stop in between: see [`Holding::should_yield`] and [`Guard::yield_lock`]. Only a [`PriorityLock`](crate::PriorityLock) has classes.
    ///
    /// The hold itself looks for such requests, so it is also asked for those of foreign clients. Nobody takes the lock from it: it
    /// decides when to make way, or not to.
    ///
    /// # Cost
    ///
    /// For each hold that gets old enough: one listing of the queue with a watch, and one more listing each time that contenders have come
    /// or left meanwhile. For each request of an earlier class that is the first of the queue: one read of its node, and
    /// one request that removes the watch on the children. While one waits, nothing more is listed. A hold that is released before that costs nothing.
    ///
    /// # Errors
    ///
    /// The request fails with [`AcquireError::Misuse`] if the lock has no classes.
    pub fn yielding(self) -> Self {
        self.min_hold(MIN_HOLD)
    }

    /// As [`Acquire::yielding`], but the hold must be this old before it is asked. It is also the least that a background hold gets
    /// done between two requests of the foreground, however often those come. It should be well below the timeout of the
    /// foreground, which begins to wait later than the hold began.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.call.terms.options.min_hold = Some(min_hold);
        self
    }

    /// After a loss of this hold, keeps the lock unavailable for `delay`: longer than zero and at most 1 h, rounded up to whole
    /// milliseconds. A loss means that the process dies or is disconnected, or that the lock is broken. After a release, the next
    /// waiter is granted the lock immediately.
    ///
    /// Use it when work may still be on its way after the lock is free again, and the resource cannot check a
    /// [token](crate::Guard::token). All clients of this library respect the delay, whether they set one or not,
    /// including contenders that come after the loss. Foreign clients do not. The next contender counts the delay from
    /// when it first sees the tombstone. A waiter sees it immediately, a later contender when it joins the queue.
    ///
    /// An abandoned hold leaves one small node, a tombstone, until another contender requests the lock.
    ///
    /// # Cost
    ///
    /// One more write for each hold, and one more listing for the next contender.
    ///
    /// # Errors
    ///
    /// The request fails with [`AcquireError::Misuse`] if `delay` is out of range. It also fails if the lock is not
    /// a mutex, a shared lock or a semaphore in the node format [`Curator`](lockkeeper_core::NodeFormat::Curator).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let guard = keeper.mutex("/locks/nightly").acquire().lock_delay(Duration::from_secs(5)).await?;
    /// guard.release().await?; // after a release, nobody waits for the delay
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.call.terms.options.delay = Some(delay);
        self
    }

    /// Acquires the lock and blocks this thread until it is granted, for programs without async. Do not call it from
    /// async code.
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn wait(self) -> Result<G, AcquireError>
    where
        G: 'static,
    {
        let io = self.call.terms.keeper.sessions().clone();
        io.block_on(self.into_future())
    }
}

impl Call {
    /// Starts the attempt; the receiver waits for its result.
    fn start(self) -> oneshot::Receiver<Result<Holding, AcquireError>> {
        let (caller, outcome) = oneshot::channel();
        let Call { kind, mut terms } = self;
        let started = terms.keeper.sessions().clock().instant();
        terms.once |= terms.timeout.is_some_and(|timeout| timeout.is_zero());
        terms.timeout = terms.timeout.filter(|timeout| !timeout.is_zero()).or(terms.once.then_some(TRY));
        match kind.and_then(|kind| terms.check(&kind).map(|()| kind)) {
            Err(error) => _ = caller.send(Err(error)),
            Ok(kind) => {
                terms.runtime = Handle::try_current().ok();
                match terms.uses.take() {
                    Some(uses) => terms.share(&uses, kind, started, caller),
                    None => terms.begin(kind, started, caller),
                }
            }
        }
        outcome
    }
}

impl CallOptions {
    /// Checks everything that can be checked before anything is sent.
    fn check(&self, kind: &LockKind) -> Result<(), AcquireError> {
        self.keeper.sessions().check_process()?;
        if self.requeue.callback.is_some() {
            callbacks::prepare();
        }
        kind.check(&self.keeper)?;
        if self.uses.is_some() && kind.node_format.is_beside() {
            let problem =
                format!("a lock in the node format {:?} cannot be kept or shared: {}", kind.node_format, kind.path);
            let remedy = "use another node format, or acquire the lock for each use";
            return Err(Misuse::new("node format", problem).remedy(remedy).into());
        }
        crate::error::misuse::check_message(kind.path.as_str(), self.message.as_deref())?;
        if let Some(Err(given)) = &self.traceparent {
            let problem = format!("{:?} is not a traceparent of W3C Trace Context, for {}", excerpt(given), kind.path);
            let remedy = "pass 00-TRACE-SPAN-FLAGS with 32, 16 and 2 lower-case hexadecimal digits, not all of TRACE or SPAN \
                          zero; or leave out traceparent";
            return Err(Misuse::new("traceparent", problem).remedy(remedy).into());
        }
        if let Some(given) = self.options.delay {
            let named = kind.node_format.prefix_with(kind.mode, AttemptId::new(0), self.options.lock_delay());
            if self.options.lock_delay().is_none() || named.is_none() {
                let (path, format, given) = (&kind.path, kind.node_format, typed(given));
                let problem = format!(
                    "lock delay {given} is not supported for {path} with node format {format:?}: must be 1ms to 1h, \
                     Curator format"
                );
                let remedy = "set 1ms to 1h on a mutex, a reader, a writer or a semaphore in the node format Curator";
                return Err(Misuse::new("lock delay", problem).remedy(remedy).into());
            }
        }
        if self.options.min_hold.is_some() && kind.mode.class().is_none() {
            let problem = format!("a hold of {} cannot make way: the lock has no classes", kind.path);
            return Err(Misuse::new("yielding", problem).remedy("use a priority lock, or leave out yielding").into());
        }
        match self.options.liveness {
            Some(given) if given.is_zero() => {
                let (path, given) = (&kind.path, typed(given));
                let problem = format!("liveness limit {given} is not supported for {path}: must be longer than zero");
                let remedy = "choose a limit longer than the time between two calls of alive()";
                Err(Misuse::new("liveness", problem).remedy(remedy).into())
            }
            _ => Ok(()),
        }
    }

    /// Gets a use of a hold that has several.
    fn share(mut self, uses: &Arc<KeptHold>, kind: LockKind, started: Instant, caller: AcquireReply) {
        self.holds.clear();
        self.traceparent = None;
        let (path, once, deadline) = (kind.path.to_string(), self.once, self.deadline(started));
        let (node_format, timeout) = (kind.node_format, self.timeout);
        let limits = Limits { path, once, timeout, deadline, cancel: self.cancel.clone() };
        if uses.outlives_its_call(once) {
            (self.timeout, self.until, self.cancel) = (None, None, None);
        } else {
            self.until = deadline;
        }
        // The attempt begins when the call has its turn: what is judged by its age, such as silent servers, is not the call's age.
        let begin = move |(reply, waits)| {
            let begun = self.keeper.sessions().clock().instant();
            self.waits = Some(waits);
            self.begin(kind, begun, reply);
        };
        uses.acquire(limits, node_format, caller, begin);
    }

    fn begin(self, kind: LockKind, started: Instant, caller: AcquireReply) {
        let keeper = self.keeper.clone();
        match keeper.sessions().ready_session() {
            Some(ready) => self.contend(ready, kind, started, caller),
            None => keeper.sessions().spawn(self.open_and_contend(kind, started, caller)),
        }
    }

    /// Opens a session, then hands the attempt to it.
    async fn open_and_contend(self, kind: LockKind, started: Instant, mut caller: AcquireReply) {
        let path = kind.path.to_string();
        let session = tokio::select! {
            biased;
            () = caller.closed() => return,
            () = cancelled(self.cancel.as_ref()) => Err(AcquireError::Cancelled { path }),
            session = self.session(started) => session.map_err(AcquireError::from),
        };
        match session {
            Ok(ready) => self.contend(ready, kind, started, caller),
            // The session's deadline and this one may differ by a moment. Report the whole timeout as the time waited.
            Err(AcquireError::Session(SessionError::Unreachable { servers, waited, detail })) => {
                let over = self.timeout.filter(|timeout| waited + NEARLY >= *timeout);
                let waited = over.unwrap_or(waited);
                _ = caller.send(Err(SessionError::Unreachable { servers, waited, detail }.into()));
            }
            Err(error) => _ = caller.send(Err(error)),
        }
    }

    /// A session for an attempt. One that had a position in the queue waits for the servers as long as its position
    /// would have.
    async fn session(&self, started: Instant) -> Result<(Arc<Session>, Arc<dyn Ensemble>), SessionError> {
        let deadline = self.deadline(started);
        loop {
            match self.keeper.sessions().session(deadline).await {
                Err(SessionError::Unreachable { .. })
                    if self.waits_on() && deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                opened => return opened,
            }
        }
    }

    /// Whether only the deadline limits how long to wait for the servers.
    pub(super) fn waits_on(&self) -> bool {
        self.requeued && self.keeper.sessions().retries().is_none()
    }

    /// Makes another attempt, because the session of this one has expired. `placed` says whether it had a position.
    pub(super) fn rejoin(mut self, kind: LockKind, started: Instant, caller: AcquireReply, placed: bool) {
        if caller.is_closed() {
            return;
        }
        if placed {
            let (path, waited) = (kind.path.to_string(), started.elapsed());
            self.requeue.report(Requeued { path, loss: Loss::SessionExpired, waited });
            self.requeued = true;
        }
        let keeper = self.keeper.clone();
        keeper.sessions().spawn(self.open_and_contend(kind, started, caller));
    }

    /// When the timeout ends; `None` if that is beyond the clock's range.
    fn deadline(&self, started: Instant) -> Option<Instant> {
        self.until.or_else(|| started.checked_add(self.timeout?))
    }

    /// Hands the attempt to a session, whose thread runs it from here on.
    fn contend(
        self,
        (session, ensemble): (Arc<Session>, Arc<dyn Ensemble>),
        kind: LockKind,
        started: Instant,
        caller: AcquireReply,
    ) {
        if let Some(runtime) = &self.runtime {
            session.used_from(runtime.clone());
        }
        // Every attempt has a new id, which is never used in another session.
        let clock = self.keeper.sessions().clock();
        let (id, since_ms) = (AttemptId::new(clock.unique_id()), clock.wall_ms());
        let contender = kind.contender(id, session.id()).with_max_ahead(self.max_waiters);
        let contender = if self.once { contender.once() } else { contender };
        let contender = if self.create_parents { contender } else { contender.without_parents() };
        let contender = if kind.persistent { contender.with_persistent_parent() } else { contender };
        let contender = match self.options.lock_delay() {
            Some(delay) => contender.with_delay(delay),
            None => contender,
        };
        let ageing = kind.ageing.and_then(|(after, class)| Some((started.checked_add(after)?, class)));
        let deadline = self.deadline(started);
        let attempt = Attempt { kind, terms: self, ensemble, ageing, started, since_ms, deadline };
        let runner = session.clone();
        runner.spawn(drive(attempt, contender, session, caller));
    }

    /// The lock is granted. A hold ends with its session, and needs nothing of what only a waiting call does.
    pub(super) fn is_granted(&mut self) {
        self.requeue = Requeue { again: false, callback: None };
        self.runtime = None;
    }
}

impl<G: 'static> IntoFuture for Acquire<G> {
    type Output = Result<G, AcquireError>;
    type IntoFuture = BoxFuture<'static, Result<G, AcquireError>>;

    fn into_future(self) -> Self::IntoFuture {
        // Start here, not at the first poll: requests are sent in the order in which they are awaited or joined.
        let guard = self.guard;
        // A request that names no lock has no mode, and is refused before it counts as one.
        let call = self.call.kind.as_ref().ok().map(|kind| telemetry::Call::begin(kind.path.to_string(), self.meter()));
        let mut request = self.call;
        request.terms.span = call.as_ref().map(telemetry::Call::span).unwrap_or_default();
        let outcome = request.start().map(|reply| reply.unwrap_or(Err(SessionError::Closed.into())));
        let report = move |outcome: Result<Holding, AcquireError>| {
            let outcome = match call {
                Some(call) => call.end(outcome, |holding| holding),
                None => outcome,
            };
            outcome.map(guard)
        };
        outcome.map(report).boxed()
    }
}
