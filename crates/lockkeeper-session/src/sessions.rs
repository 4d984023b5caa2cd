//! The sessions of one program on one ensemble: the one that is open, and the next one when it has ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkeeper_core::{LinkState, Loss, SessionId};
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::time::Instant;

use crate::cancel::CancellationToken;
use crate::clock::Clock;
use crate::ensemble::{Ensemble, Network, OpError, Reconnect};
use crate::error::SessionError;
use crate::process::Owned;
use crate::session::{Io, Session};
use crate::type_map::TypeMap;
use crate::wait::passed;

/// How long before a deadline an attempt to open a session ends, so that its own error arrives before the deadline
/// does.
const MOMENT: Duration = Duration::from_millis(20);

/// The pause before the next session if the servers have ended the last one because it had not authenticated.
const REFUSED: Duration = Duration::from_secs(1);

/// Whether the servers have ended the session because it had not authenticated.
fn needs_login(session: &Session) -> bool {
    session.link().borrow().state == LinkState::Over(Loss::AuthRequired)
}

/// The sessions of one program on one ensemble. Cheap to clone: all clones share one session and one thread for its input and
/// output.
///
/// When the session has ended, the next call opens another one. The session is closed when the last clone and the last [`Session`] are
/// dropped, and its ephemeral nodes are deleted then.
///
/// [`Sessions::connect`] returns them, and `Lockkeeper::sessions` those of a handle. Futures that are given to [`Sessions::ask`],
/// [`Sessions::run`], [`Sessions::run_while_answered`] and [`Sessions::spawn`] run on the thread that keeps the session alive. They must not
/// block.
#[derive(Clone)]
pub struct Sessions {
    inner: Arc<Inner>,
}

struct Inner {
    network: Owned<Box<dyn Network>>,
    /// The servers, for messages.
    servers: Arc<str>,
    connect_timeout: Duration,
    reconnect: Option<Reconnect>,
    clock: Clock,
    io: Owned<Arc<Io>>,
    /// The session that was opened last.
    session: Owned<Mutex<Option<Arc<Session>>>>,
    /// Locked while a session is being opened, so that all callers that need one share it.
    opening: AsyncMutex<()>,
    closed: CancellationToken,
    shared: Owned<TypeMap>,
    /// Whether calls wait for the first session until their own deadline, and it is not open yet.
    is_lazy: AtomicBool,
}

impl Sessions {
    /// Opens nothing; the first call does.
    pub(crate) fn new(
        network: Box<dyn Network>,
        io: Arc<Io>,
        clock: Clock,
        connect_timeout: Duration,
        reconnect: Option<Reconnect>,
    ) -> Sessions {
        Sessions {
            inner: Arc::new(Inner {
                servers: network.servers().into(),
                network: Owned::new(network),
                connect_timeout,
                reconnect,
                clock,
                io: Owned::new(io),
                session: Owned::new(Mutex::new(None)),
                opening: AsyncMutex::new(()),
                closed: CancellationToken::new(),
                shared: Owned::new(TypeMap::default()),
                is_lazy: AtomicBool::new(false),
            }),
        }
    }

    /// Lets calls wait for the first session until their own deadline, not for the connect timeout. Sends nothing.
    pub fn wait_for_the_first_session(&self) {
        self.inner.is_lazy.store(true, Ordering::Relaxed);
    }

    /// Closes the session and ends all calls that wait for one. Returns when the session has ended; unless `confirmed`,
    /// already when the servers are asked to end it. Returns `false` if that takes longer than the timeout. Its tasks
    /// ([`Session::spawn`]) end first, but they have no longer than the session timeout.
    ///
    /// All clones are closed. A later call fails with [`SessionError::Closed`].
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the close. Without a connection, the servers end the session after its timeout.
    pub async fn close(&self, confirmed: bool, timeout: Option<Duration>) -> bool {
        let inner = self.inner.clone();
        let deadline = timeout.and_then(|timeout| inner.clock.instant().checked_add(timeout));
        let closed = self.run(async move {
            inner.closed.cancel();
            // It stays until it has ended: a caller may stop waiting, and call again.
            let session = inner.session.lock().expect("held for a look only").clone();
            let Some(session) = session else { return Ok(true) };
            tokio::select! {
                biased;
                () = session.close(confirmed) => {
                    _ = inner.session.lock().expect("held for a change only").take();
                    Ok::<_, SessionError>(true)
                }
                () = passed(deadline) => Ok(false),
            }
        });
        // An error means that the thread has ended, and the session with it.
        closed.await.unwrap_or(true)
    }

    /// Returns the timers of the sessions' thread.
    pub fn timer(&self) -> Timer {
        Timer(Arc::clone(&self.inner.io))
    }

    /// Runs `question` on the thread of the sessions and returns a future of its result, which any runtime, or none, can await. Sends
    /// nothing by itself.
    ///
    /// It has no limit: while no server answers, it waits. [`Sessions::run_while_answered`] has one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `question` at its next await.
    ///
    /// # Errors
    ///
    /// Those of `question`; [`SessionError::Forked`] in a child of the process that created the sessions; [`SessionError::Closed`] if the
    /// thread has ended.
    pub fn run<T: Send + 'static, E: From<SessionError> + Send + 'static>(
        &self,
        question: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> impl Future<Output = Result<T, E>> + Send + 'static {
        let (mut asker, answer) = oneshot::channel();
        let ours = self.check_process();
        if ours.is_ok() {
            // Without its type, or the compiler would make the whole runtime for each kind of question in each program.
            let task: BoxFuture<'static, ()> = Box::pin(async move {
                tokio::select! {
                    biased;
                    () = asker.closed() => {}
                    answered = question => drop(asker.send(answered)),
                }
            });
            self.spawn(task);
        }
        async move {
            ours?;
            answer.await.unwrap_or_else(|_| Err(SessionError::Closed.into()))
        }
    }

    /// Runs `question` as [`Sessions::run`] does, for as long as servers answer: for a call that has no timeout of its own, and that
    /// repeats operations after lost connections or waits for a watch.
    ///
    /// # Cost
    ///
    /// Nothing for a short call. A call that waits sends a heartbeat, which is a write, after each half of the sum of the session timeout
    /// and the connect timeout: every 20 s by default.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `question` at its next await.
    ///
    /// # Errors
    ///
    /// As [`Sessions::run`]. [`SessionError::Unreachable`] when no server has answered for the session timeout and the connect timeout
    /// together. [`SessionError::Closed`] when the sessions are closed.
    pub fn run_while_answered<T: Send + 'static, E: From<SessionError> + Send + 'static>(
        &self,
        question: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> impl Future<Output = Result<T, E>> + Send + 'static {
        let sessions = self.clone();
        self.run(async move {
            tokio::select! {
                biased;
                answered = question => answered,
                // It may wait for a change, and its use of the session would delay the close.
                () = sessions.inner.closed.cancelled() => Err(SessionError::Closed.into()),
                silence = sessions.silence() => Err(silence.into()),
            }
        })
    }

    /// Runs `question` with the operations of the current session, or of a new one if it has ended. Otherwise as
    /// [`Sessions::run_while_answered`].
    ///
    /// # Cost
    ///
    /// That of `question`, and of a session if none is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `question` at its next await. An operation that was sent may happen.
    ///
    /// # Errors
    ///
    /// Those of `question`, of [`Sessions::open`] and of [`Sessions::run_while_answered`].
    pub async fn ask<T, E, F, Fut>(&self, question: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<SessionError> + Send + 'static,
        F: FnOnce(Arc<dyn Ensemble>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let sessions = self.clone();
        self.run_while_answered(async move {
            let (_session, ensemble) = sessions.session(None).await?;
            question(ensemble).await
        })
        .await
    }

    /// Resolves with [`SessionError::Unreachable`] when no server has answered for the session timeout and the connect
    /// timeout together, or up to half as long again.
    ///
    /// Asks for heartbeats only after half of that time. Dropping the future ends the heartbeats. Runs on the thread of the sessions,
    /// as in [`Sessions::run`].
    pub async fn silence(&self) -> SessionError {
        loop {
            let session = self.ready_session().map(|(session, _)| session);
            let timeout = session.as_ref().map_or(Duration::ZERO, |session| session.timeout());
            let (since, patience) = (Instant::now(), timeout.saturating_add(self.inner.connect_timeout));
            drop(session);
            tokio::time::sleep(patience / 2).await;
            let (answered, detail) = match self.ready_session().map(|(session, _)| session) {
                Some(session) => {
                    let (mut heartbeats, _dependant) = (session.heartbeats(), session.keep_trusted());
                    let answer = tokio::time::timeout(patience / 2, heartbeats.changed()).await;
                    let is_connected = session.link().borrow().connected;
                    let detail = if is_connected { "a request was not answered" } else { "the connection is lost" };
                    (answer.is_ok(), detail)
                }
                None => {
                    tokio::time::sleep(patience / 2).await;
                    (self.ready_session().is_some(), "there is no session")
                }
            };
            if !answered {
                return SessionError::Unreachable {
                    servers: self.servers().to_string(),
                    waited: since.elapsed(),
                    detail: detail.to_owned(),
                };
            }
        }
    }

    /// Fails in a forked child of the process that created the handle.
    pub fn check_process(&self) -> Result<(), SessionError> {
        if self.inner.io.is_ours() { Ok(()) } else { Err(SessionError::Forked) }
    }

    /// Runs a task on the thread of the sessions. The thread ends after it. The session does not wait for it: [`Session::spawn`] does.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.io.spawn(task);
    }

    /// Returns the clock of the sessions. In a simulation, it is the simulation's.
    pub fn clock(&self) -> Clock {
        self.inner.clock
    }

    /// Returns a token that is cancelled when the sessions are closed.
    pub fn closed(&self) -> CancellationToken {
        self.inner.closed.clone()
    }

    /// Blocks the calling thread until the future resolves, such as one of [`Sessions::ask`]: for programs without async.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn block_on<T>(&self, outcome: impl Future<Output = T>) -> T {
        self.inner.io.block_on(outcome)
    }

    /// Returns how often a lost connection is retried before a call that waits gives up; `None` means until a server says that the
    /// session is over.
    pub fn retries(&self) -> Option<u32> {
        self.inner.reconnect.map(|reconnect| reconnect.retries)
    }

    /// Returns how long servers are tried.
    pub fn connect_timeout(&self) -> Duration {
        self.inner.connect_timeout
    }

    /// Returns the current session with its operations, if it is usable now. Sends nothing.
    ///
    /// Both are returned together: if the session ends the next moment, its operations still say how, without another
    /// look-up.
    pub fn ready_session(&self) -> Option<(Arc<Session>, Arc<dyn Ensemble>)> {
        let session = self.inner.session.lock().expect("held for a look only").clone()?;
        let ensemble = session.ensemble()?;
        Some((session, ensemble))
    }

    /// Returns the current session with its operations, or a new one if it has ended. Tries until `deadline` or for the connect timeout,
    /// whichever is shorter; for the first session of [`Sessions::connect_lazy`], until `deadline` if there is one. Runs on the thread of
    /// the sessions, as in [`Sessions::run`]; elsewhere use [`Sessions::open`].
    ///
    /// # Cost
    ///
    /// Nothing is sent if a session is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As [`Sessions::open`].
    pub async fn session(&self, deadline: Option<Instant>) -> Result<(Arc<Session>, Arc<dyn Ensemble>), SessionError> {
        let (inner, started) = (&self.inner, Instant::now());
        let is_lazy = inner.is_lazy.load(Ordering::Relaxed);
        // Another call may wait for the first session for longer than this one wants to.
        let deadline = deadline.or_else(|| started.checked_add(inner.connect_timeout).filter(|_| is_lazy));
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let opening = async {
            let _one_at_a_time = inner.opening.lock().await;
            if let Some(ready) = self.ready_session() {
                return Ok(ready);
            }
            // The servers would open the next one too, and end it with the first request.
            if inner.session.lock().expect("held for a look only").as_deref().is_some_and(needs_login) {
                tokio::time::sleep(REFUSED).await;
            }
            let patience = left().map(|left| left.saturating_sub(MOMENT.min(left / 2)));
            let limit = if is_lazy { Duration::MAX } else { inner.connect_timeout };
            let patience = patience.map_or(inner.connect_timeout, |patience| patience.min(limit));
            let opened = match inner.network.open(patience).await {
                Err(SessionError::Unreachable { servers, detail, .. }) if left().is_some_and(|left| left <= MOMENT) => {
                    passed(deadline).await;
                    Err(SessionError::Unreachable { servers, waited: started.elapsed(), detail })
                }
                opened => opened,
            }?;
            inner.is_lazy.store(false, Ordering::Relaxed);
            let ensemble = opened.ensemble.clone();
            let session = Session::start(Arc::clone(&inner.io), inner.clock, opened);
            // The previous session is over. Drop it outside the lock, because its end takes time.
            let before = inner.session.lock().expect("held for a look only").replace(session.clone());
            drop(before);
            Ok((session, ensemble))
        };
        tokio::select! {
            biased;
            () = inner.closed.cancelled() => Err(SessionError::Closed),
            opened = opening => opened,
            () = passed(deadline) => {
                let detail = "no session was opened in time".to_owned();
                Err(SessionError::Unreachable { servers: self.servers().to_string(), waited: started.elapsed(), detail })
            }
        }
    }

    /// Returns the current session with its operations, or a new one if it has ended. Tries for the connect timeout. Any runtime, or
    /// none, can await it.
    ///
    /// The session stays open while the program has this value, a clone of these sessions or a task of the session.
    ///
    /// # Cost
    ///
    /// Nothing is sent if a session is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`SessionError::Unreachable`] with the reason of each server if no session was opened within the connect timeout;
    /// [`SessionError::AuthFailed`] and [`SessionError::AuthRequired`] if the servers refuse the credentials;
    /// [`SessionError::NoChroot`]; [`SessionError::Closed`] if these sessions are closed.
    pub async fn open(&self) -> Result<(Arc<Session>, Arc<dyn Ensemble>), SessionError> {
        let sessions = self.clone();
        self.run(async move { sessions.session(None).await }).await
    }

    /// Returns the operations of the current session, or of a new one if it has ended, as [`Sessions::session`] does.
    ///
    /// # Cost
    ///
    /// Nothing is sent if a session is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As [`Sessions::open`].
    pub async fn ensemble(&self) -> Result<Arc<dyn Ensemble>, SessionError> {
        Ok(self.session(None).await?.1)
    }

    /// Proves that the session is alive, and returns its id. Opens a session if there is none. Runs on the thread of the sessions, as in
    /// [`Sessions::run`].
    ///
    /// # Cost
    ///
    /// One heartbeat, which is a write; again after a lost connection, for no longer than the connect timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As [`Sessions::open`].
    pub async fn check(&self) -> Result<SessionId, SessionError> {
        let started = Instant::now();
        let deadline = started.checked_add(self.inner.connect_timeout);
        loop {
            let (session, ensemble) = self.session(deadline).await?;
            let sent = session.now();
            let answered = tokio::select! {
                biased;
                answered = ensemble.heartbeat() => answered,
                () = passed(deadline) => Err(OpError::ConnectionLoss),
            };
            match answered {
                Ok(()) => {
                    session.confirmed(sent);
                    return Ok(session.id());
                }
                // Ask again when the connection is back or the session's end is known here too.
                Err(OpError::ConnectionLoss | OpError::SessionOver)
                    if deadline.is_none_or(|deadline| Instant::now() < deadline) =>
                {
                    let mut link = session.link();
                    tokio::select! {
                        biased;
                        _ = link.wait_for(|link| link.connected || matches!(link.state, LinkState::Over(_))) => {}
                        () = passed(deadline) => {}
                    }
                    tokio::time::sleep(MOMENT).await;
                    if needs_login(&session) {
                        return Err(SessionError::AuthRequired { servers: self.servers().to_string() });
                    }
                }
                Err(fault) => {
                    let (servers, detail) = (self.servers().to_string(), fault.to_string());
                    return Err(SessionError::Unreachable { servers, waited: started.elapsed(), detail });
                }
            }
        }
    }

    /// Returns the one value of this type, created when it is first asked for: what all users of one kind share.
    /// Called on the thread of the sessions only: a forked child may have a locked copy of the mutex, but has no such thread.
    pub fn shared<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.inner.shared.get()
    }

    /// Returns the servers, for messages.
    pub fn servers(&self) -> Arc<str> {
        self.inner.servers.clone()
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("servers", &self.inner.servers).finish_non_exhaustive()
    }
}

/// The timers of the sessions' own thread: they run whichever runtime polls, or none. Cheap to clone; a timer keeps no session open.
#[derive(Clone)]
pub struct Timer(Arc<Io>);

impl Timer {
    /// Resolves after `pause`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn after(&self, pause: Duration) {
        self.0.after(pause).await;
    }
}
