//! One session, and the thread that runs its input and output.
//!
//! The thread is the library's own: a user's busy runtime cannot starve heartbeats, and `Drop` works outside any
//! runtime. User code never runs on it.
//!
//! A session ends when its last user (the sessions' last clone, the value of a recipe) is dropped, and not before all its tasks have
//! ended: [`TaskTracker`] counts them. This replaces the janitor of other libraries: the task that created a
//! node also sees it deleted.

pub mod epoch;
pub(crate) mod lag;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use lockkeeper_core::{Link, LinkState, Loss, SessionClock, SessionId, Ticks, TokenEpoch, Trust};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::cancel::CancellationToken;
use crate::clock::Clock;
use crate::ensemble::{Connection, EPOCH_NODE, Ensemble, OpError, Opened, Reply, until_answered};
use crate::error::SessionError;
use crate::latest;
use crate::session::lag::Lag;
use crate::type_map::TypeMap;
use crate::watchdog::{Expiring, Registration, Watchdog};

/// Where the library's tasks run.
pub(crate) struct Io {
    handle: Handle,
    /// Cancelled when the thread is no longer needed; it ends once its tasks have ended.
    stop: CancellationToken,
    tasks: TaskTracker,
    /// The watchdog thread, if time is the system's.
    watchdog: Option<Watchdog>,
}

impl Io {
    pub(crate) fn thread() -> Result<Arc<Io>, SessionError> {
        let watchdog = Some(Watchdog::start().map_err(SessionError::thread)?);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(SessionError::thread)?;
        let io = Io::new(runtime.handle().clone(), watchdog);
        let (stop, tasks) = (io.stop.clone(), io.tasks.clone());
        // The thread gets the runtime once it runs: a runtime must not be dropped here, in the caller's async code.
        let (runtime_for, its_runtime) = std::sync::mpsc::sync_channel::<tokio::runtime::Runtime>(1);
        let started = std::thread::Builder::new().name("lockkeeper-io".to_owned()).spawn(move || {
            let Ok(runtime) = its_runtime.recv() else { return };
            runtime.block_on(async {
                stop.cancelled().await;
                tasks.close();
                tasks.wait().await;
            });
        });
        if let Err(error) = started {
            runtime.shutdown_background();
            return Err(SessionError::thread(error));
        }
        runtime_for.send(runtime).expect("the thread waits for it");
        Ok(io)
    }

    /// Uses a runtime that someone else drives: a simulator's.
    pub(crate) fn here(handle: Handle) -> Arc<Io> {
        Self::new(handle, None)
    }

    fn new(handle: Handle, watchdog: Option<Watchdog>) -> Arc<Io> {
        Arc::new(Io { handle, stop: CancellationToken::new(), tasks: TaskTracker::new(), watchdog })
    }

    /// Blocks the calling thread until the future resolves. The future must be woken by another thread: the library's
    /// own or a timer's.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub(crate) fn block_on<T>(&self, outcome: impl Future<Output = T>) -> T {
        assert!(
            !in_async_code(),
            "a blocking call of Lockkeeper was made in async code, where it would stop the runtime's other tasks: \
             await the async call instead, or make this one in tokio::task::spawn_blocking"
        );
        self.handle.block_on(outcome)
    }

    /// Resolves after this time, in any runtime. Dropping the future ends the timer.
    pub(crate) fn after(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        let (mut asker, passed) = oneshot::channel::<()>();
        self.handle.spawn(async move {
            tokio::select! {
                biased;
                () = asker.closed() => {}
                () = tokio::time::sleep(time) => drop(asker),
            }
        });
        async move { _ = passed.await }
    }

    /// The tasks that the thread waits for before it ends.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Runs a task that the thread waits for before it ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.handle);
    }
}

/// Whether this thread runs a task of tokio at the moment. tokio's blocking threads, and threads within
/// `block_in_place`, may block. Only a task has a limited budget, and only this budget distinguishes a task from those
/// threads. A budget is a byte.
fn in_async_code() -> bool {
    (0..=u8::MAX).any(|_| tokio::task::coop::consume_budget().now_or_never().is_none())
}

impl Drop for Io {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Asks the server whether it may have followers, and trusts the session for longer if not. Dropping the future leaves nothing behind.
async fn look_for_followers(ensemble: Weak<dyn Ensemble>, life: Arc<Life>, closing: CancellationToken) {
    let look = async {
        while let Some(reply) = ensemble.upgrade().map(|ensemble| ensemble.may_have_followers()) {
            match reply.await {
                Ok(false) => return life.learn(|clock, _| clock.without_followers()),
                // The next look waits for the connection.
                Err(OpError::ConnectionLoss) => {}
                Ok(true) | Err(_) => {
                    debug!(
                        "the session timeout may be only two ticks of the servers, so holds are trusted for less of it"
                    );
                    return;
                }
            }
        }
    };
    tokio::select! {
        biased;
        // No operation under way may keep the session open.
        () = closing.cancelled() => {}
        () = look => {}
    }
}

/// What is known of how long a session lives, shared by everything that depends on it.
struct Life {
    session_clock: Mutex<SessionClock>,
    clock: Clock,
    /// Notified of changes of the state, not of every heartbeat: there may be many listeners.
    link: latest::Sender<Link>,
    /// The number of dependants, which need the session to be trusted at all times.
    dependants: AtomicUsize,
    /// The supervisor has seen a dependant, so its next heartbeat has a time. Most dependants come then and need not wake it.
    beats: AtomicBool,
    /// Wakes the supervisor: a heartbeat is needed.
    wanted: Notify,
    /// Notified of every confirmed heartbeat and write, for grants that wait for a later one.
    heartbeats: latest::Sender<()>,
    lag: Lag,
}

impl Life {
    /// Changes the clock, and notifies the listeners if the state changed.
    fn learn<T>(&self, change: impl FnOnce(&mut SessionClock, Duration) -> T) -> T {
        let mut clock = self.session_clock.lock().expect("held for a change only");
        let result = change(&mut clock, self.clock.now());
        drop(clock);
        // Read again while the state is locked: a thread that learned earlier must not put its state over a later one.
        self.link.send_if_modified(|known| {
            let link = self.session_clock.lock().expect("held for a look only").link();
            std::mem::replace(known, link) != link
        });
        result
    }

    fn look<T>(&self, look: impl FnOnce(&SessionClock, Duration) -> T) -> T {
        look(&self.session_clock.lock().expect("held for a look only"), self.clock.now())
    }

    /// A heartbeat or another write that was sent at `sent` was confirmed just now.
    fn confirmed(&self, sent: Duration) {
        self.learn(|clock, now| clock.confirmed(sent, now));
        self.heartbeats.send_replace(());
    }
}

/// While it lives, heartbeats keep the session trusted at all times. Dropping it ends them, unless another one lives.
pub struct KeepTrusted(Arc<Life>);

impl Drop for KeepTrusted {
    fn drop(&mut self) {
        self.0.dependants.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A session on an ensemble. [`Sessions::open`](crate::Sessions::open) returns it. It is closed when its last user has dropped it and its
/// tasks have ended, or by [`Sessions::close`](crate::Sessions::close).
///
/// Its times are durations since a fixed origin, by a clock that runs while the machine is suspended: [`Session::now`].
pub struct Session {
    id: SessionId,
    timeout: Duration,
    /// Weak: the supervisor and the tasks keep it alive, so that the session can close while it has users.
    ensemble: Weak<dyn Ensemble>,
    life: Arc<Life>,
    contenders: TaskTracker,
    shared: TypeMap,
    /// Cancelled to end the session: its tasks end, then it closes.
    closing: CancellationToken,
    /// Cancelled once the request to close it is sent.
    close_sent: CancellationToken,
    /// Cancelled once it is closed or over.
    closed: CancellationToken,
    io: Arc<Io>,
    /// The epoch of its tokens.
    epoch: Arc<latest::Sender<epoch::Known>>,
}

impl Session {
    /// Starts the tasks of a session that was just opened.
    pub(crate) fn start(io: Arc<Io>, clock: Clock, opened: Opened) -> Arc<Session> {
        let Opened { ensemble, timeout, ticks, connection, anchor } = opened;
        let session_clock = SessionClock::connected(timeout, ticks);
        let link = latest::Sender::new(session_clock.link());
        let (dependants, beats) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (wanted, heartbeats) = (Notify::new(), latest::Sender::new(()));
        let lag = Lag::default();
        let life = Arc::new(Life {
            session_clock: Mutex::new(session_clock),
            clock,
            link,
            dependants,
            beats,
            wanted,
            heartbeats,
            lag,
        });
        let (closing, close_sent, closed) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let contenders = TaskTracker::new();
        info!(session = %ensemble.session(), timeout_ms = timeout.as_millis() as u64, "session opened");
        let supervisor = Supervisor {
            ensemble: Some(ensemble.clone()),
            life: life.clone(),
            connection,
            closing: closing.clone(),
            close_sent: close_sent.clone(),
            contenders: contenders.clone(),
            patience: timeout,
        };
        if ticks == Ticks::Two {
            io.spawn(look_for_followers(Arc::downgrade(&ensemble), life.clone(), closing.clone()));
        }
        let epoch = Arc::new(latest::Sender::new(epoch::Known::Unknown));
        let waiting = life.clone();
        // A user that waits for the epoch listens to this channel anyway.
        let changed = move || waiting.link.send_modify(|_| {});
        io.spawn(epoch::follow(Arc::downgrade(&ensemble), epoch.clone(), closing.clone(), changed));
        let done = closed.clone();
        io.spawn(async move {
            supervisor.run().await;
            drop(anchor);
            done.cancel();
        });
        let session = Session {
            id: ensemble.session(),
            timeout,
            ensemble: Arc::downgrade(&ensemble),
            life,
            contenders,
            shared: TypeMap::default(),
            closing,
            close_sent,
            closed,
            io,
            epoch,
        };
        Arc::new(session)
    }

    /// Blocks the calling thread until the future resolves.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn block_on<T>(&self, outcome: impl Future<Output = T>) -> T {
        self.io.block_on(outcome)
    }

    /// Resolves after this time, in any runtime. Dropping the future ends the timer.
    pub fn after(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        self.io.after(time)
    }

    /// Runs a task on the thread of the sessions; the session does not close before it ends. A task listens to [`Session::closing`], and
    /// ends soon after that: the close waits for it, but no longer than the session timeout. It must not block.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.contenders.spawn_on(task, &self.io.handle);
    }

    /// Deletes an ephemeral node of this session without waiting: for the `Drop` of what the node stands for. Returns at once. The
    /// session's thread deletes it, after every operation that was polled before, and repeats that after a lost connection. If the
    /// session ends first, the servers delete the node.
    ///
    /// # Cost
    ///
    /// One write. Nothing is sent if the session is closing or over.
    pub fn delete_soon(&self, path: impl Into<String>) {
        let Some(ensemble) = self.ensemble() else { return };
        let (path, closing) = (path.into(), self.closing());
        self.spawn(async move {
            _ = closing.run_until_cancelled(until_answered(|| ensemble.delete(&path, None))).await;
        });
    }

    /// Returns the one value of this type in this session, created when it is first asked for: what its users of one kind share.
    pub fn shared<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.shared.get()
    }

    /// Returns its id, which is the owner of its ephemeral nodes.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns its timeout, as agreed with the server.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns its operations, or `None` if it is closing or over. Do not keep them in a value that lives on: the session does not close
    /// while they exist.
    pub fn ensemble(&self) -> Option<Arc<dyn Ensemble>> {
        self.ensemble.upgrade().filter(|_| self.is_usable())
    }

    /// Follows its state: whether a server is connected, and whether it is trusted, overdue or over. Changes with the connection and with
    /// the session's end, not with every heartbeat.
    pub fn link(&self) -> latest::Receiver<Link> {
        self.life.link.subscribe()
    }

    /// Returns the current time of the clock by which the session is trusted.
    pub fn now(&self) -> Duration {
        self.life.clock.now()
    }

    /// Returns a new id, which follows from the seed in a simulation.
    pub fn unique_id(&self) -> u128 {
        self.life.clock.unique_id()
    }

    /// Reports that a write that was sent at `sent` was answered just now: it proves that the session is alive, as a heartbeat does.
    pub fn confirmed(&self, sent: Duration) {
        self.life.confirmed(sent);
    }

    /// Follows the confirmed heartbeats and writes.
    pub fn heartbeats(&self) -> latest::Receiver<()> {
        self.life.heartbeats.subscribe()
    }

    /// Returns whether a hold that was granted at `granted` may be returned to the caller now: the session is trusted, and was confirmed
    /// late enough. If not, a heartbeat is sent as soon as a server is connected, for a caller that has a [`KeepTrusted`].
    /// [`Session::heartbeats`] changes when it is confirmed.
    pub fn is_fresh(&self, granted: Duration) -> bool {
        let fresh = self.life.look(|clock, now| clock.is_fresh(granted, now));
        if !fresh {
            self.life.learn(SessionClock::tick);
            self.life.wanted.notify_one();
        }
        fresh
    }

    /// Keeps the session trusted at all times until the value is dropped.
    ///
    /// # Cost
    ///
    /// A heartbeat, which is a write, every fifth of the session timeout, however many such values there are.
    pub fn keep_trusted(&self) -> KeepTrusted {
        self.life.dependants.fetch_add(1, Ordering::SeqCst);
        if !self.life.beats.load(Ordering::SeqCst) {
            self.life.wanted.notify_one();
        }
        KeepTrusted(self.life.clone())
    }

    /// Returns what is known of the epoch of its tokens. The link's next change announces more. Sends nothing.
    pub fn known_epoch(&self) -> epoch::Known {
        self.epoch.borrow().clone()
    }

    /// Returns the epoch of its tokens; waits for it in a session that was just opened. Sends nothing: each session reads the epoch once
    /// and watches it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`SessionError::TokenEpoch`] if the node cannot be read or states no epoch; [`SessionError::ConnectionLost`] if the session ends.
    pub async fn epoch(&self) -> Result<TokenEpoch, SessionError> {
        let mut known = self.epoch.subscribe();
        match known.wait_for(|known| *known != epoch::Known::Unknown).await.unwrap_or(epoch::Known::Over) {
            epoch::Known::Epoch(epoch) => Ok(epoch),
            epoch::Known::Unreadable(problem) | epoch::Known::Refused(problem) => Err(epoch::unreadable(problem)),
            epoch::Known::Unknown | epoch::Known::Over => {
                Err(SessionError::ConnectionLost { path: EPOCH_NODE.to_owned() })
            }
        }
    }

    /// Returns a token that is cancelled when the session begins to close.
    pub fn closing(&self) -> CancellationToken {
        self.closing.clone()
    }

    /// Returns until when a hold that was granted when `missed_deadlines` deadlines had passed can be trusted. No round trip.
    pub fn trust(&self, missed_deadlines: u32) -> Trust {
        self.life.look(|clock, now| clock.trust(missed_deadlines, now))
    }

    /// Registers the runtime whose tasks hold something. With each heartbeat it gets an empty task, which shows how late it runs its tasks.
    pub fn used_from(&self, runtime: Handle) {
        self.life.lag.of(runtime);
    }

    /// Returns how late that runtime last ran a task.
    pub fn runtime_lag(&self) -> Option<Duration> {
        self.life.lag.last(self.life.clock)
    }

    /// Returns when a hold that was granted when `missed_deadlines` deadlines had passed is lost, unless a heartbeat is
    /// confirmed before.
    pub fn due(&self, missed_deadlines: u32) -> Duration {
        self.life.look(|clock, _| clock.due(missed_deadlines))
    }

    /// Puts a hold under the watchdog, if there is one.
    pub fn watch_over(&self, hold: Arc<dyn Expiring>) -> Option<Registration> {
        self.io.watchdog.as_ref().map(|watchdog| watchdog.watch(hold))
    }

    /// Whether it can take a new user.
    fn is_usable(&self) -> bool {
        !self.closing.is_cancelled() && !matches!(self.life.link.borrow().state, LinkState::Over(_))
    }

    /// Ends it: its tasks end, holds are lost, then the server closes the session. Returns when the server
    /// has confirmed that; unless `confirmed`, already when the request is sent.
    pub(crate) async fn close(&self, confirmed: bool) {
        self.closing.cancel();
        tokio::select! {
            biased;
            () = self.closed.cancelled() => {}
            () = self.close_sent.cancelled(), if !confirmed => {}
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Derives from the connection how far holders can trust the session, sends heartbeats, and closes the session in the
/// end.
struct Supervisor {
    /// Dropped to close the session.
    ensemble: Option<Arc<dyn Ensemble>>,
    life: Arc<Life>,
    connection: mpsc::UnboundedReceiver<Connection>,
    closing: CancellationToken,
    close_sent: CancellationToken,
    contenders: TaskTracker,
    /// How long its tasks may take to end; after that, the server deletes its nodes anyway.
    patience: Duration,
}

impl Supervisor {
    async fn run(mut self) {
        let closing = self.closing.clone();
        let contenders = self.contenders.clone();
        let patience = self.patience;
        let mut leaving = std::pin::pin!(async move {
            closing.cancelled().await;
            contenders.close();
            tokio::time::timeout(patience, contenders.wait()).await.is_ok()
        });
        let life = self.life.clone();
        let mut connected = true;
        // The heartbeat under way, and when it was sent.
        let mut beat: Option<(Duration, Reply<()>)> = None;
        loop {
            let (mut pause, mut deadline) = (None, None);
            // In this order: a dependant that comes now is seen, or it sees that nobody has seen it.
            life.beats.store(false, Ordering::SeqCst);
            if life.dependants.load(Ordering::SeqCst) > 0 {
                life.beats.store(true, Ordering::SeqCst);
                let (now, until, next) = life.look(|clock, now| (now, clock.until(), Self::next_beat(clock)));
                deadline = (life.link.borrow().state != LinkState::Overdue).then(|| until.saturating_sub(now));
                pause = (connected && beat.is_none()).then(|| next.saturating_sub(now));
            }
            tokio::select! {
                biased;
                change = self.connection.recv() => {
                    if change == Some(Connection::Closing) {
                        self.close_sent.cancel();
                        continue;
                    }
                    connected = matches!(change, Some(Connection::Back));
                    if self.follow(change) {
                        break;
                    }
                    // The answer to a request on the old connection says nothing about the new one.
                    beat = self.beat().filter(|_| connected && life.dependants.load(Ordering::Relaxed) > 0);
                }
                () = tokio::time::sleep(deadline.unwrap_or_default()), if deadline.is_some() => life.learn(SessionClock::tick),
                outcome = async { beat.as_mut().expect("looked at before").1.as_mut().await }, if beat.is_some() => {
                    if let Some((sent, _)) = beat.take().filter(|_| outcome.is_ok()) {
                        life.confirmed(sent);
                    }
                    life.lag.measure(life.clock, self.patience / 10);
                }
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {
                    // A write may have been confirmed meanwhile, and the dependants may have gone.
                    let is_due = life.look(|clock, now| Self::next_beat(clock) <= now);
                    beat = if is_due && life.dependants.load(Ordering::Relaxed) > 0 { self.beat() } else { None };
                }
                () = life.wanted.notified() => {
                    if beat.is_none() && connected && !life.look(SessionClock::is_trusted) {
                        beat = self.beat();
                    }
                }
                all_left = &mut leaving, if self.ensemble.is_some() => {
                    if !all_left {
                        warn!("tasks of the session did not end in time; the session's end removes their nodes");
                    }
                    // Dropping the last handle closes the session; its end arrives through `connection`.
                    self.ensemble = None;
                    beat = None;
                    life.learn(|clock, _| clock.over(Loss::Closed));
                }
            }
        }
    }

    /// When the next heartbeat is due, counted from the last confirmed one.
    fn next_beat(clock: &SessionClock) -> Duration {
        (clock.until() + clock.heartbeat()).saturating_sub(clock.validity())
    }

    fn beat(&self) -> Option<(Duration, Reply<()>)> {
        let ensemble = self.ensemble.as_ref()?;
        Some((self.life.clock.now(), ensemble.heartbeat()))
    }

    /// Processes one change of the connection; `true` if it was the last.
    fn follow(&mut self, change: Option<Connection>) -> bool {
        let over = match change {
            Some(Connection::Lost | Connection::TryFailed | Connection::Back | Connection::Closing) => None,
            Some(Connection::Over(loss)) => Some(loss),
            None => Some(Loss::Closed),
        };
        self.life.learn(|clock, now| {
            clock.tick(now);
            match (change, over) {
                (_, Some(loss)) => clock.over(loss),
                (Some(Connection::Back), _) => clock.reconnected(),
                (Some(Connection::TryFailed), _) => clock.try_failed(),
                _ => clock.disconnected(),
            }
        });
        // After all listeners are notified, because writing to a log may block.
        log(change, over);
        over.is_some()
    }
}

fn log(change: Option<Connection>, over: Option<Loss>) {
    match (change, over) {
        (_, Some(loss)) => info!(%loss, "session over"),
        (Some(Connection::Back), _) => debug!("connection back"),
        (Some(Connection::TryFailed), _) => debug!("no server accepts the session"),
        _ => debug!("connection lost; holds are suspected"),
    }
}
