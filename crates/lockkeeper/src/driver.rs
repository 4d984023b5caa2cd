//! Carries out what a contender asks for: the only effectful file of the lock protocol.
//!
//! One task per attempt, on the session's thread, from the create until the node is seen deleted or the session is over.
//! It *owns* every outcome; the caller only listens. So a caller that stops listening, at whatever moment, leaves nothing
//! behind: the task notices and leads the contender out (the create of `zookeeper-client`'s own lock, cancelled before its
//! reply, leaves its node for ever).

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::{
    Command, Contender, End, Event, Failure, Grant, Inspection, LinkState, Loss, Testimony, Trust, Zxid,
};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, trace, warn};

use crate::Error;
use crate::admin::ContenderInfo;
use crate::ensemble::{Ensemble, Fault, Fired, Kind, Reply, Watcher};
use crate::error::ReleaseError;
use crate::guard::{Guard, Hold, ReleaseRequest};
use crate::session::Session;

/// How old a node must be to be watched by its own maker.
///
/// The watch costs a read. It tells of an operator who deletes the node; a hold or wait this short is over before anyone
/// could.
const LINGER: Duration = Duration::from_millis(100);

/// How an attempt is to be made.
pub(crate) struct Attempt {
    pub(crate) path: String,
    /// Taken while the session was usable: were it over by now, the first operation says how it ended.
    pub(crate) ensemble: Arc<dyn Ensemble>,
    pub(crate) contender: Contender,
    pub(crate) payload: Vec<u8>,
    /// Leave at once if not first.
    pub(crate) once: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) started: Instant,
    /// When the timeout ends; without one, never.
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: Option<CancellationToken>,
    /// Whoever waits for the outcome.
    pub(crate) caller: oneshot::Sender<Result<Guard, Error>>,
}

/// The outcome of an operation in flight, as owned data.
enum Outcome {
    Entered(Result<(String, Zxid), Fault>, Result<Vec<String>, Fault>),
    ParentMade(Result<(), Fault>),
    Listed(Result<Vec<String>, Fault>),
    Inspected(Result<Inspection, Fault>),
    Watched(String, Result<Watcher, Fault>),
    Deleted(Result<(), Fault>),
}

/// Who is on the other end.
enum Caller {
    /// Somebody waits for the lock.
    Waiting(oneshot::Sender<Result<Guard, Error>>),
    /// Somebody waits to be told who has the lock instead.
    Refusing { caller: oneshot::Sender<Result<Guard, Error>>, ahead: usize },
    /// Somebody has the guard.
    Holding { hold: Arc<Hold>, release: oneshot::Receiver<ReleaseRequest> },
    /// Somebody waits for the release to be confirmed.
    Releasing { hold: Arc<Hold>, confirm: ReleaseRequest },
    /// Nobody.
    Gone,
}

/// What woke the driver.
enum Wake {
    Outcome(Outcome),
    Fired(String, Fired),
    Looked(Option<ContenderInfo>),
    Lingered,
    Deadline,
    Cancelled,
    CallerGone,
    Release(Option<ReleaseRequest>),
    LinkChanged,
    Closing,
}

struct Driver {
    path: String,
    session: Arc<Session>,
    ensemble: Arc<dyn Ensemble>,
    contender: Contender,
    payload: Vec<u8>,
    once: bool,
    timeout: Option<Duration>,
    started: Instant,
    deadline: Option<Instant>,
    cancel: Option<CancellationToken>,
    caller: Caller,
    /// The last refusal, for the caller.
    refusal: Option<String>,
    /// The node last known as the own one, for messages after it is gone.
    node: String,
    lingered: bool,
    /// The node first in line that was last read, or is being read, for the caller's error; and what it told.
    looked_for: Option<String>,
    looked_at: Option<ContenderInfo>,
}

/// Runs one attempt to its end.
pub(crate) async fn drive(attempt: Attempt, session: Arc<Session>) {
    let Attempt { path, ensemble, contender, payload, once, timeout, started, deadline, cancel, caller } = attempt;
    let driver = Driver {
        path,
        session,
        ensemble,
        contender,
        payload,
        once,
        timeout,
        started,
        deadline,
        cancel,
        caller: Caller::Waiting(caller),
        refusal: None,
        node: String::new(),
        lingered: false,
        looked_for: None,
        looked_at: None,
    };
    driver.run().await;
}

impl Driver {
    async fn run(mut self) {
        let mut flight: Option<BoxFuture<'static, Outcome>> = None;
        let mut look: Option<BoxFuture<'static, Option<ContenderInfo>>> = None;
        let mut watches: Vec<(String, Watcher)> = Vec::new();
        let mut link = self.session.link();
        let closing = self.session.closing();
        let mut close_seen = false;
        let linger = tokio::time::sleep_until(self.started + LINGER);
        tokio::pin!(linger);
        let mut ended = None;
        loop {
            if let Some(name) = self.wants_a_look() {
                look = Some(self.look(name));
                self.stop_if_once();
            }
            while let Some(command) = self.contender.next_command() {
                trace!(path = %self.path, id = %self.contender.id(), ?command);
                match command {
                    Command::Grant(grant) => self.hand_over(grant),
                    Command::End(end) => ended = Some(end),
                    other => flight = Some(self.start(other)),
                }
            }
            // A try that has left already still owes its caller the holder's name.
            if let Some(end) = ended.take_if(|_| look.is_none() || !matches!(self.caller, Caller::Refusing { .. })) {
                return self.finish(end);
            }
            // Biased, so that a simulation replays by its seed alone.
            let wake = tokio::select! {
                biased;
                () = closing.cancelled(), if !close_seen => Wake::Closing,
                _ = link.changed() => Wake::LinkChanged,
                outcome = optional(&mut flight) => Wake::Outcome(outcome),
                (name, fired) = first_fired(&mut watches) => Wake::Fired(name, fired),
                seen = optional(&mut look) => Wake::Looked(seen),
                wake = caller_stirs(&mut self.caller, self.deadline, self.cancel.as_ref()) => wake,
                () = &mut linger, if !self.lingered => Wake::Lingered,
            };
            match wake {
                Wake::Outcome(outcome) => {
                    flight = None;
                    self.settle(outcome, &mut watches);
                }
                Wake::Fired(name, fired) => {
                    trace!(path = %self.path, id = %self.contender.id(), node = %name, ?fired);
                    match fired {
                        Fired::Gone => self.contender.handle(Event::Gone(&name)),
                        Fired::Changed => self.contender.handle(Event::Changed(&name)),
                        Fired::SessionOver => {}
                    }
                }
                Wake::Looked(seen) => {
                    look = None;
                    self.looked_at = seen;
                    self.name_the_holder();
                }
                Wake::Lingered => {
                    self.lingered = true;
                    self.contender.handle(Event::Lingered);
                }
                Wake::Deadline => {
                    let error = self.timed_out();
                    self.give_up(error);
                }
                Wake::Cancelled => {
                    let error = Error::Cancelled { path: self.path.clone() };
                    self.give_up(error);
                }
                Wake::CallerGone => {
                    self.caller = Caller::Gone;
                    self.contender.handle(Event::Leave);
                }
                Wake::Release(request) => self.release(request),
                Wake::LinkChanged => self.judge_link(link.borrow_and_update().state),
                Wake::Closing => {
                    close_seen = true;
                    self.lose(Loss::Closed);
                    self.give_up(Error::Closed);
                }
            }
        }
    }

    /// Starts an operation; it is sent at the next poll.
    fn start(&self, command: Command) -> BoxFuture<'static, Outcome> {
        let child = |name: &str| format!("{}/{name}", self.path);
        let ensemble = &self.ensemble;
        match command {
            Command::Enter { prefix } => {
                let create = ensemble.create(&child(&prefix), self.payload.clone(), Kind::EphemeralSequential);
                let list = ensemble.list(&self.path);
                // Joined futures are polled in this order, so the two leave in one flight, the create first.
                async move {
                    let (created, listed) = tokio::join!(biased; create, list);
                    Outcome::Entered(created, listed)
                }
                .boxed()
            }
            Command::MakeParent => {
                let (ensemble, path) = (ensemble.clone(), self.path.clone());
                async move { Outcome::ParentMade(make_path(&*ensemble, &path).await) }.boxed()
            }
            Command::List => ensemble.list(&self.path).map(Outcome::Listed).boxed(),
            Command::Recover => {
                let (sync, list) = (ensemble.sync(&self.path), ensemble.list(&self.path));
                async move {
                    let (synced, listed) = tokio::join!(biased; sync, list);
                    Outcome::Listed(synced.and(listed))
                }
                .boxed()
            }
            Command::Inspect { name } => ensemble
                .read(&child(&name))
                .map(|read| {
                    Outcome::Inspected(read.map(|node| Inspection {
                        owner: node.owner,
                        czxid: node.czxid,
                        id: Testimony::read(&node.data).id(),
                        version: node.version,
                    }))
                })
                .boxed(),
            Command::Watch { name, kind: _ } => ensemble
                .read_and_watch(&child(&name))
                .map(|read| Outcome::Watched(name, read.map(|(_, watcher)| watcher)))
                .boxed(),
            Command::Delete { name, version } => ensemble.delete(&child(&name), version).map(Outcome::Deleted).boxed(),
            Command::Grant(_) | Command::End(_) => unreachable!("carried out where they are taken"),
        }
    }

    /// Tells the contender how an operation went.
    fn settle(&mut self, outcome: Outcome, watches: &mut Vec<(String, Watcher)>) {
        match outcome {
            Outcome::Entered(created, listed) => {
                if let Ok((name, _)) = &created {
                    self.node.clone_from(name);
                }
                let created = created.as_ref().map(|(name, zxid)| (name.as_str(), *zxid)).map_err(|f| self.failure(f));
                let listed = listed.as_deref().map_err(|f| self.failure(f));
                self.contender.handle(Event::Entered { created, listed });
            }
            Outcome::ParentMade(made) => {
                let made = made.map_err(|f| self.failure(&f));
                self.contender.handle(Event::ParentMade(made));
            }
            Outcome::Listed(listed) => {
                let listed = listed.as_deref().map_err(|f| self.failure(f));
                self.contender.handle(Event::Listed(listed));
            }
            Outcome::Inspected(seen) => {
                let seen = seen.map_err(|f| self.failure(&f));
                self.contender.handle(Event::Inspected(seen));
            }
            Outcome::Watched(name, watched) => {
                // The own node's first: if it and the blocker are both gone, it does not matter any more who was before.
                let at = if self.contender.node() == Some(&name) { 0 } else { watches.len() };
                let watched = watched.map(|watcher| watches.insert(at, (name, watcher))).map_err(|f| self.failure(&f));
                self.contender.handle(Event::Watched(watched));
            }
            Outcome::Deleted(deleted) => {
                let deleted = deleted.map_err(|f| self.failure(&f));
                self.contender.handle(Event::Deleted(deleted));
            }
        }
    }

    /// What a fault means to the contender; a refusal's words are kept for the caller.
    fn failure(&mut self, fault: &Fault) -> Failure {
        match fault {
            Fault::NoNode => Failure::NoNode,
            Fault::BadVersion => Failure::BadVersion,
            Fault::ConnectionLoss => Failure::ConnectionLoss,
            Fault::SessionOver => Failure::SessionOver,
            Fault::NodeExists | Fault::Unsupported | Fault::Refused(_) => {
                self.refusal = Some(fault.to_string());
                Failure::Refused
            }
        }
    }

    /// Gives the lock to the caller; if nobody takes it, leaves again.
    fn hand_over(&mut self, grant: Grant) {
        let caller = std::mem::replace(&mut self.caller, Caller::Gone);
        let Caller::Waiting(caller) = caller else {
            return self.contender.handle(Event::Leave);
        };
        self.node.clone_from(&grant.name);
        let (request, release) = oneshot::channel();
        let breaches = self.session.link().borrow().breaches;
        let hold = Hold::new(self.path.clone(), grant, self.session.clone(), breaches);
        debug!(path = %hold.path, node = %hold.node, token = %hold.token, "granted");
        self.caller = Caller::Holding { hold: hold.clone(), release };
        // A guard that nobody takes is dropped here, and asks for the release by that.
        _ = caller.send(Ok(Guard::new(hold, request)));
    }

    /// The attempt is over: whoever still waits for something learns how.
    fn finish(self, end: End) {
        let loss = session_loss(self.session.link().borrow().state);
        match self.caller {
            Caller::Waiting(caller) => {
                let path = self.path;
                let error = match end {
                    End::SessionOver => Error::SessionLost { path, loss },
                    End::Evicted => Error::Evicted { path, node: self.node },
                    End::ParentVanishes => Error::ParentVanishes { path },
                    End::Refused | End::Stuck | End::Left => {
                        Error::Refused { path, reason: self.refusal.unwrap_or_else(|| "no reason given".to_owned()) }
                    }
                };
                _ = caller.send(Err(error));
            }
            Caller::Holding { hold, .. } => {
                hold.lose(match end {
                    End::SessionOver => loss,
                    _ => Loss::Removed,
                });
            }
            Caller::Refusing { caller, ahead } => {
                _ = caller.send(Err(Error::Held { path: self.path, holder: None, ahead: Some(ahead) }));
            }
            Caller::Releasing { hold, confirm } => {
                _ = confirm.send(match (hold.loss(), end) {
                    (Some(before), _) => Err(ReleaseError::NotHeld { loss: before }),
                    (None, End::SessionOver) => Err(ReleaseError::NotHeld { loss }),
                    (None, End::Evicted) => Err(ReleaseError::NotHeld { loss: Loss::Removed }),
                    (None, End::Stuck) => Err(ReleaseError::Failed { reason: self.refusal.unwrap_or_default() }),
                    (None, End::Left | End::Refused | End::ParentVanishes) => Ok(()),
                });
            }
            Caller::Gone => {
                if end == End::Stuck {
                    warn!(path = %self.path, node = %self.node, reason = ?self.refusal,
                        "the server refuses to delete the lock's node; it stays until the session ends");
                }
            }
        }
    }

    /// The guard was released or dropped.
    fn release(&mut self, request: Option<ReleaseRequest>) {
        let caller = std::mem::replace(&mut self.caller, Caller::Gone);
        if let (Caller::Holding { hold, .. }, Some(confirm)) = (caller, request) {
            self.caller = Caller::Releasing { hold, confirm };
        }
        self.contender.handle(Event::Leave);
    }

    /// The caller gets an error now; the contender leaves in its own time.
    fn give_up(&mut self, error: Error) {
        if let Caller::Waiting(_) | Caller::Refusing { .. } = self.caller
            && let Caller::Waiting(caller) | Caller::Refusing { caller, .. } =
                std::mem::replace(&mut self.caller, Caller::Gone)
        {
            _ = caller.send(Err(error));
        }
        self.contender.handle(Event::Leave);
    }

    /// The hold, if there is one, is lost.
    fn lose(&mut self, loss: Loss) {
        match &self.caller {
            Caller::Holding { hold, .. } | Caller::Releasing { hold, .. } => hold.lose(loss),
            Caller::Waiting(_) | Caller::Refusing { .. } | Caller::Gone => {}
        }
    }

    /// The connection changed: holders may have lost, waiters go on as long as the session may live.
    fn judge_link(&mut self, state: LinkState) {
        if let Caller::Holding { hold, .. } = &self.caller
            && let Trust::Lost(loss) = hold.trust()
        {
            hold.lose(loss);
            // Should the session live on after all, the node must go: nobody believes in this hold any more.
            self.contender.handle(Event::Leave);
        }
        // Also when it is up again already: a break that came and went while nobody looked was one all the same.
        self.contender.handle(Event::Disconnected);
        if let LinkState::Over(loss) = state {
            self.lose(loss);
            self.contender.handle(Event::SessionOver);
        }
    }

    /// Whose node to read to tell who holds the lock, once for each that a listing shows: for the error of a try, or for that
    /// of a wait that is worth it.
    fn wants_a_look(&self) -> Option<String> {
        let worth_it = self.once || self.lingered && self.timeout.is_some();
        let waiting = matches!(self.caller, Caller::Waiting(_)) && worth_it;
        let first = &self.contender.place().filter(|_| waiting)?.first;
        (self.looked_for.as_ref() != Some(first)).then(|| first.clone())
    }

    fn look(&mut self, name: String) -> BoxFuture<'static, Option<ContenderInfo>> {
        let read = self.ensemble.read(&format!("{}/{name}", self.path));
        self.looked_for = Some(name.clone());
        self.looked_at = None;
        read.map(|node| node.ok().map(|node| ContenderInfo::read(name, &node))).boxed()
    }

    /// A try that was not first leaves at once; its caller hears who is.
    fn stop_if_once(&mut self) {
        let Some(ahead) = self.contender.place().map(|place| place.ahead).filter(|_| self.once) else {
            return;
        };
        self.caller = match std::mem::replace(&mut self.caller, Caller::Gone) {
            Caller::Waiting(caller) => Caller::Refusing { caller, ahead },
            other => other,
        };
        self.contender.handle(Event::Leave);
    }

    fn name_the_holder(&mut self) {
        if let Caller::Refusing { .. } = self.caller
            && let Caller::Refusing { caller, ahead } = std::mem::replace(&mut self.caller, Caller::Gone)
        {
            let holder = self.looked_at.take().map(Box::new);
            _ = caller.send(Err(Error::Held { path: self.path.clone(), holder, ahead: Some(ahead) }));
        }
    }

    fn timed_out(&mut self) -> Error {
        Error::Timeout {
            path: self.path.clone(),
            waited: self.timeout.unwrap_or_default(),
            holder: self.looked_at.take().map(Box::new),
            ahead: self.contender.place().map(|place| place.ahead),
        }
    }
}

fn session_loss(state: LinkState) -> Loss {
    match state {
        LinkState::Over(loss) => loss,
        _ => Loss::SessionExpired,
    }
}

/// The outcome of a future that may not be there; without one, never.
async fn optional<T>(slot: &mut Option<BoxFuture<'static, T>>) -> T {
    match slot {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// A watch that has fired, the foremost if several have, taken out.
async fn first_fired(watches: &mut Vec<(String, Watcher)>) -> (String, Fired) {
    let (at, fired) = std::future::poll_fn(|cx| {
        for (at, (_, watcher)) in watches.iter_mut().enumerate() {
            if let std::task::Poll::Ready(fired) = watcher.poll_unpin(cx) {
                return std::task::Poll::Ready((at, fired));
            }
        }
        std::task::Poll::Pending
    })
    .await;
    (watches.remove(at).0, fired)
}

/// When the deadline has passed; without one, never.
pub(crate) async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// When the token is cancelled; without one, never.
pub(crate) async fn cancelled(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}

/// What the other end does next.
async fn caller_stirs(caller: &mut Caller, deadline: Option<Instant>, cancel: Option<&CancellationToken>) -> Wake {
    match caller {
        Caller::Waiting(outcome) | Caller::Refusing { caller: outcome, .. } => {
            tokio::select! {
                biased;
                () = outcome.closed() => Wake::CallerGone,
                () = passed(deadline) => Wake::Deadline,
                () = cancelled(cancel) => Wake::Cancelled,
            }
        }
        Caller::Holding { release, .. } => Wake::Release(release.await.ok()),
        Caller::Releasing { .. } | Caller::Gone => std::future::pending().await,
    }
}

/// Makes `path` and what is missing above it, from the bottom up: where the deepest exists, nothing above is touched, so no
/// right is needed there.
///
/// Containers, so that a lock nobody uses any more goes away by itself; where the server knows none (before 3.5), nodes
/// that stay.
pub(crate) async fn make_path(ensemble: &dyn Ensemble, path: &str) -> Result<(), Fault> {
    let mut missing = vec![path];
    let mut kind = Kind::Container;
    while let Some(deepest) = missing.last() {
        let made: Reply<_> = ensemble.create(deepest, Vec::new(), kind);
        match made.await {
            Ok(_) | Err(Fault::NodeExists) => _ = missing.pop(),
            Err(Fault::Unsupported) if kind == Kind::Container => kind = Kind::Persistent,
            Err(Fault::NoNode) => match deepest.rfind('/') {
                // Bounded: each step is one component shorter.
                Some(at) if at > 0 && !missing.contains(&&deepest[..at]) => missing.push(&deepest[..at]),
                // Someone deletes what was just made; the caller counts how often.
                _ => return Err(Fault::NoNode),
            },
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}
