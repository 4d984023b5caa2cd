//! The acquisition: the attempts to get the requested locks, within their deadline, and what is said of the wait.

use std::ops::ControlFlow;
use std::time::Duration;

use lockkeeper::error::Misuse;
use lockkeeper::{Acquire, Error, Holding, LockPath, Lockkeeper, MultiGuard};
use lockkeeper_helix::{AcquireLeaseError, Decision, HelixGuard, HelixLock, LockStatus, Preemption};
use lockkeeper_letters::retry::{About, Cause};
use lockkeeper_session::text::{excerpt, spell};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::LockedRun;
use super::alert::Alerts;
use super::args::OnDeadlock;
use super::kind::Kind;
use super::lease::LeaseArgs;
use super::records;
use super::release::HandoverTarget;
use super::request::Request;
use crate::advice::Suggested;
use crate::args::values::Waiting;
use crate::broken::LostPositions;
use crate::exit::{Code, Failure};
use crate::local;
use crate::nested;
use crate::place::Place;
use crate::service::{self, NotifyState};
use crate::signals::{self, Signals};
use crate::waiting::{self, Report, Wait};
use crate::watchdog::{self, Watchdog};

/// How long before the end of the wait an attempt to open a session ends, at most.
const MOMENT: Duration = Duration::from_millis(250);

/// Time limit for leaving the queue after a signal ended the wait.
pub(crate) const LEAVING: Duration = Duration::from_secs(2);

/// Time limit for leaving the queue after the wait is over.
const LEAVING_LATE: Duration = Duration::from_secs(1);

/// The attempts to get the requested locks, and the session in which they are made.
pub(crate) struct Acquisition<'a> {
    pub(crate) request: &'a Request,
    /// Whether the service manager is told when it waits.
    stands_by: bool,
    pub(super) started: Instant,
    pub(super) deadline: Option<Instant>,
    /// The session timeout that a person requested, until the granted one is compared with it.
    asked_timeout: Option<Duration>,
    /// What is printed about the wait.
    pub(crate) report: Report,
    /// Kept here, not in the future of the attempt: after that is dropped, the contender can still leave the queue.
    pub(crate) keeper: Option<Lockkeeper>,
    /// The requested leased lock, and the preemption of the granted one.
    lock: Option<HelixLock>,
    pub(super) preemption: Option<watch::Receiver<Option<Preemption>>>,
    /// The watchdog of the command, until the command is started.
    pub(super) watchdog: Option<Watchdog>,
    /// Whether the servers have confirmed the release: nothing that others wait for is left.
    pub(crate) released: bool,
}

impl<'a> Acquisition<'a> {
    /// Begins with nothing sent. `stands_by`: the service manager is told when it waits.
    pub(crate) fn new(request: &'a Request, stands_by: bool) -> Self {
        Acquisition {
            request,
            stands_by,
            started: Instant::now(),
            deadline: None,
            asked_timeout: request.asked_timeout(),
            report: Report::new(request.args.quiet),
            keeper: None,
            lock: None,
            preemption: None,
            watchdog: None,
            released: false,
        }
    }

    /// Acquires the locks, with all attempts and their records. Breaks with the exit status if they are not acquired, or if a signal
    /// ended the wait.
    pub(super) async fn acquire(
        &mut self,
        locked: &LockedRun,
        signals: &mut Signals,
    ) -> Result<ControlFlow<u8, MultiGuard>, Failure> {
        let outcome = tokio::select! {
            biased;
            signal = locked.interrupted(signals) => Err(signal),
            acquired = self.attempts() => Ok(acquired),
        };
        match outcome {
            Ok(Ok(guard)) => Ok(ControlFlow::Continue(guard)),
            Ok(Err(failure)) if failure.code == Code::NotAcquired => {
                Ok(ControlFlow::Break(self.request.not_acquired(&failure)))
            }
            Ok(Err(failure)) => Err(failure),
            Err(signal) => {
                self.leave(LEAVING).await;
                Ok(ControlFlow::Break(signals::status(signal.as_raw())))
            }
        }
    }

    /// Makes all attempts. If the last one fails, it is recorded, and the queue is left.
    ///
    /// Dropping the future leaves the place in the queue to [`Acquisition::leave`].
    pub(crate) async fn attempts(&mut self) -> Result<MultiGuard, Failure> {
        let Request { retries, printer, .. } = self.request;
        let (about, is_quiet) = (self.about(), self.report.is_quiet());
        let tell = |text: &str| {
            if !is_quiet {
                printer.note(text);
            }
        };
        match retries.run(about, tell, async || self.attempt().await).await {
            Ok(guard) => {
                self.report.acquired(&self.request.paths, self.started, *printer);
                Ok(guard)
            }
            Err(failure) => {
                self.give_up(&failure, async |attempts, end| attempts.record_refusal(&failure, end).await).await;
                Err(failure)
            }
        }
    }

    /// Makes way after the command has ended for that, and waits until the lock is granted again.
    pub(crate) async fn make_way(&mut self, guard: MultiGuard) -> Result<MultiGuard, Failure> {
        let keeper = self.keeper.clone().expect("it granted the lock");
        let wait = Wait { started: Instant::now(), limit: None };
        let outcome = tokio::select! {
            biased;
            outcome = guard.yield_lock() => outcome,
            never = self.report.run(&keeper, &self.request.paths, wait, self.request.printer) => match never {},
        };
        outcome.map_err(|error| {
            let failure = self.named(error.into());
            let message = format!("the command made way, and is not started again: {}", failure.message);
            Failure { message, ..failure }
        })
    }

    pub(super) async fn attempt(&mut self) -> Result<MultiGuard, Failure> {
        // A sum that is too large means no limit.
        self.deadline = self.request.wait.and_then(|wait| Instant::now().checked_add(wait));
        let outcome = self.acquire_once().await.map_err(|failure| self.named(failure));
        if let Err(failure) = &outcome
            && failure.cause != Cause::InstanceLock
        {
            // The next server may be another one, at another place.
            let recorded = failure.code != Code::Unreachable;
            self.give_up(failure, async |attempts, end| {
                if recorded {
                    attempts.record_refusal(failure, end).await;
                }
            })
            .await;
        }
        outcome
    }

    /// Adds what is missing in a failure about the locks: their names, and the message of this command. A mistake in the command
    /// line, and servers that refuse every lock, are not about these locks.
    pub(super) fn named(&self, mut failure: Failure) -> Failure {
        let names_it = self.request.paths.iter().any(|path| failure.message.contains(path.as_str()));
        match &self.request.args.lock.message {
            _ if !names_it && failure.code == Code::Unreachable => {
                failure.message = format!("{}: {}", self.request.locks(), failure.message);
            }
            Some(message) if names_it && failure.code != Code::Usage => {
                failure.message = format!("{}; asked for: {:?}", failure.message, excerpt(message));
            }
            _ => {}
        }
        failure.scoped(&self.request.settings.place)
    }

    /// Returns a description of the request, for its dead letter.
    pub(super) fn about(&self) -> About {
        let paths: Vec<_> = self.request.paths.iter().map(LockPath::as_str).collect();
        let class = match self.request.kind {
            Kind::Class { class, .. } => Some(class.to_string()),
            _ => None,
        };
        About {
            monitor_object: paths.join(", "),
            path: paths.join(", "),
            lock_info: self.request.args.lock.message.clone(),
            class,
        }
    }

    /// Waits in the queue until the lock is granted or the deadline has passed.
    async fn acquire_once(&mut self) -> Result<MultiGuard, Failure> {
        let keeper = match self.keeper.clone() {
            // The session of an earlier attempt that was not granted in time.
            Some(keeper) => keeper,
            None => {
                // A process takes about as long to start as a server to answer: the command need not wait for one after
                // the other.
                let has_command = !self.request.args.command.is_empty();
                let watchdog = async { if has_command { Watchdog::start().ok() } else { None } };
                let (connected, watchdog) = tokio::join!(self.connect(), watchdog);
                self.watchdog = watchdog;
                connected?
            }
        };
        self.keeper = Some(keeper.clone());
        if self.stands_by {
            service::tell(&[NotifyState::Ready, NotifyState::Status("standby")], &self.request.printer);
        }
        self.tell_granted_timeout(&keeper);
        let reaping = watchdog::reap(self.watchdog.as_ref().map(Watchdog::pid));
        if let Some(lease) = self.request.args.leased.lease {
            let leased = tokio::select! {
                biased;
                leased = self.lease(&keeper, lease) => leased,
                never = reaping => match never {},
            };
            let guard = leased.map_err(|error| self.not_leased(error))?;
            self.preemption = Some(guard.follow_preemption());
            return Ok(guard.into());
        }
        let (session, mut lost) = (keeper.session_id(), LostPositions::new(self.request.printer));
        let requests = self.requests(&keeper, &lost).map_err(Error::from)?;
        let mut acquire = keeper.multi_lock(requests);
        if let Some(remaining) = self.remaining() {
            acquire = acquire.timeout(remaining);
        }
        // Each attempt has its own time; without a limit the line shows the whole wait.
        let attempt = self.deadline.zip(self.request.wait).and_then(|(deadline, wait)| deadline.checked_sub(wait));
        let wait = Wait { started: attempt.unwrap_or(self.started), limit: self.request.wait };
        let outcome = tokio::select! {
            biased;
            outcome = IntoFuture::into_future(acquire) => outcome,
            // A try does not wait.
            failure = nested::waits_for_itself(&keeper, &self.request.paths), if !self.request.once => return Err(failure),
            failure = nested::closes_a_ring(&keeper, &self.request.paths), if self.request.args.lock.deadlock == OnDeadlock::Fail => return Err(failure),
            never = self.report.run(&keeper, &self.request.paths, wait, self.request.printer) => match never {},
            never = lost.tell_authors(&keeper) => match never {},
            never = reaping => match never {},
        };
        match outcome {
            Ok(guard) => Ok(guard),
            Err(error) => Err(nested::failed_wait(error, &keeper, session, self.remaining()).await),
        }
    }

    /// Returns the request for each lock.
    fn requests(&self, keeper: &Lockkeeper, lost: &LostPositions) -> Result<Vec<Acquire<Holding>>, Misuse> {
        let Request { args, kind, once, traceparent, .. } = self.request;
        let held = nested::held();
        let request = |path: &LockPath| {
            let request = kind.request(keeper, path.as_str(), *once)?;
            let mut request = request.requeue(self.request.tries_on()).on_requeued(lost.report()).while_holding(&held);
            if let Some(min_hold) = self.request.min_hold() {
                request = request.min_hold(min_hold);
            }
            if let Some(delay) = args.lock.lock_delay {
                request = request.lock_delay(delay);
            }
            if let Some(message) = &args.lock.message {
                request = request.message(message);
            }
            if let Some(traceparent) = traceparent {
                request = request.traceparent(traceparent.to_string());
            }
            Ok(request)
        };
        self.request.paths.iter().map(request).collect()
    }

    /// Returns the failure of a request for a leased lock. If the owner keeps the lock by a decision, it says whose that is.
    fn not_leased(&self, error: AcquireLeaseError) -> Failure {
        let unfinished = matches!(error, AcquireLeaseError::CleanupUnfinished { .. });
        let failure = Failure::from(error);
        let decided = self.lock.as_ref().filter(|_| unfinished).and_then(|lock| lock.decisions().pop());
        let Some(decision) = decided.map(|decided| decided.decision) else { return failure };
        let has_answer = decision != Decision::no_answer();
        let Decision::Reject { by, reason: why } = decision else { return failure };
        let (decision, hint) = match by.as_str() {
            _ if !has_answer => (format!("nobody decided about the transfer: {why}"), "ask for longer with --ask"),
            // A decision has no effect before it is recorded.
            "nobody" => (why, "ask again"),
            _ => (format!("the transfer was rejected by {by}: {why}"), "talk to them"),
        };
        let message = format!("{}; {decision}", failure.message);
        Failure { message, ..failure }.hint(format!("{hint}, wait longer with --waiting, or take it with --forceful"))
    }

    /// Acquires the lock for `lease`, and preempts a lower owner if necessary.
    async fn lease(&mut self, keeper: &Lockkeeper, lease: Duration) -> Result<HelixGuard, AcquireLeaseError> {
        let LeaseArgs { priority, waiting, cleanup, forceful, keep_node, ask, stats, .. } = self.request.args.leased;
        let path = self.request.path().as_str();
        let mut lock = HelixLock::new(keeper, path, lease).priority(priority).cleanup(cleanup).cleanup_by_guard();
        lock = match waiting {
            Some(Waiting::Limit(limit)) => lock.waiting(limit),
            Some(Waiting::Infinite) => lock.wait_past_cleanup(),
            // `--wait` is the limit of the whole wait, unless something else happens when the cleanup time ends.
            None if self.request.wait.is_some() && !forceful && ask.is_none() => lock.wait_past_cleanup(),
            None => lock,
        };
        if let Some(reason) = self.request.args.leased.reason.as_ref().filter(|_| self.request.args.leased.emergency) {
            lock = lock.emergency(reason);
        }
        if let Some(message) = &self.request.args.lock.message {
            lock = lock.message(message);
        }
        lock = lock.forceful(forceful);
        if keep_node {
            lock = lock.keep_node();
        }
        if self.request.args.leased.is_strict() {
            lock = lock.strict();
        }
        if let Some(id) = &self.request.args.leased.id {
            lock = lock.user_id(id);
        }
        if stats {
            lock = lock.publish_statistics();
        }
        for rule in &self.request.settings.all.transfers {
            lock = lock.transfer_rule(rule.value.clone());
        }
        if let Some(ask) = ask {
            lock = lock.ask_operators(ask);
            let alerts = Alerts {
                command: self.request.args.leased.alert_command.clone(),
                #[cfg(feature = "webhook")]
                webhook: self.request.webhook.clone(),
                printer: self.request.printer,
            };
            lock = lock.on_unfinished(ask, move |alert| {
                let [approve, reject] = ["approve", "reject"].map(|verb| {
                    let id = alert.request.iter().flat_map(|id| ["--id", id]);
                    let decide = Suggested::new(["requests", verb, &alert.path]).with(id).with(["--reason", "WHY"]);
                    alerts.printer.whole_command(&decide)
                });
                alerts.printer.note(&format!(
                    "{} has not cleaned up {}; asking operators: transfer the lock: {approve}; keep its owner: {reject}",
                    alert.owner, alert.path
                ));
                alerts.clone().raise(alert)
            });
        }
        self.lock = Some(lock.clone());
        let mut status = lock.follow_status();
        let asked = async {
            // An error means that the lock object is closed; the acquire says so.
            _ = status.wait_for(|status| *status == LockStatus::Pending).await;
            self.report.run_lease(keeper, path, (waiting, ask), self.request.printer).await
        };
        let mut request = if self.request.once { lock.try_acquire() } else { lock.acquire() };
        // One deadline, for the owners of any priority.
        if let Some(remaining) = self.remaining() {
            request = request.wait_for_every_owner().timeout(remaining);
        }
        tokio::select! {
            biased;
            acquired = request.into_future() => acquired,
            never = asked => match never {},
        }
    }

    /// Prints once that the servers grant another session timeout than the requested one. The granted one determines
    /// when the lock is free after a crash, and how long a hold can be relied on.
    pub(super) fn tell_granted_timeout(&mut self, keeper: &Lockkeeper) {
        let Some(granted) = keeper.session_timeout() else { return };
        if let Some(asked) = self.asked_timeout.take().filter(|asked| *asked != granted) {
            let [granted, asked] = [granted, asked].map(spell);
            self.request
                .printer
                .note(&format!("the servers grant a session timeout of {granted}, not the requested {asked}"));
        }
    }

    /// Opens a session. Dropping the future cancels that.
    pub(super) async fn connect(&self) -> Result<Lockkeeper, Failure> {
        let connecting = self.connect_quietly();
        if self.request.printer.is_json() || self.report.is_quiet() {
            return connecting.await;
        }
        waiting::connecting(&self.request.settings.place.to_string(), Some(self.connect_limit()), connecting).await
    }

    /// Returns how long to try to reach a server.
    fn connect_limit(&self) -> Duration {
        match self.remaining() {
            // The wait is the limit, unless a setting limits the attempts to connect.
            Some(remaining) if self.request.tries_on() => remaining,
            Some(remaining) => remaining.min(self.request.settings.connect_timeout()),
            None => self.request.settings.connect_timeout(),
        }
    }

    async fn connect_quietly(&self) -> Result<Lockkeeper, Failure> {
        let patience = self.connect_limit();
        // The wait may be over, which the tries notice.
        let builder = self.request.builder().connect_timeout(patience.max(Duration::from_millis(1)));
        match &self.request.settings.place {
            Place::Ensemble(servers) => Ok(builder.connect(servers).await?),
            Place::Machine(home) => {
                let Some(remaining) = self.remaining() else {
                    return local::connect(home, &builder, &self.request.printer).await;
                };
                // The attempt ends a moment earlier, and its error says why the server opened no session.
                let moment = MOMENT.min(remaining / 10);
                let builder = builder
                    .connect_timeout(patience.min(remaining).saturating_sub(moment).max(Duration::from_millis(1)));
                let connecting = local::connect(home, &builder, &self.request.printer);
                match timeout(remaining, connecting).await {
                    Ok(connected) => connected,
                    // Of a wait that short, nothing is left.
                    Err(_) => Err(local::no_session(home, remaining.max(Duration::from_millis(1)), "").await),
                }
            }
        }
    }

    /// Returns the owner that gets the lock if the command succeeds.
    pub(crate) fn handover_target(&self) -> Option<HandoverTarget> {
        let (lock, id) = (self.lock.clone()?, self.request.args.leased.hand_to.clone()?);
        Some(HandoverTarget { lock, id })
    }

    pub(super) fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Records that the request was refused, if it was and the servers answer before `end`.
    pub(super) async fn record_refusal(&self, failure: &Failure, end: Instant) {
        let (waited, terms) = (self.started.elapsed(), self.request.record_terms());
        match (&self.keeper, &terms.shelf) {
            _ if !terms.history => {}
            (_, Some(shelf)) if failure.code == Code::Unreachable => {
                // A standby machine tries on.
                if self.stands_by {
                    return;
                }
                records::keep(shelf, &self.request.paths, (waited, &terms));
            }
            (Some(keeper), _) => {
                let refusal =
                    records::refuse(keeper, &self.request.paths, (self.request.once, waited, &terms), failure, end);
                tokio::join!(self.send_kept(end), refusal);
            }
            _ => {}
        }
    }

    /// Sends the records that earlier commands could not send, until `end`.
    pub(super) async fn send_kept(&self, end: Instant) {
        if let (Some(keeper), Some(shelf)) = (&self.keeper, &self.request.shelf) {
            records::send_kept(keeper, shelf, end).await;
        }
    }

    /// Writes records of a failure, leaves the queue and closes the session, all within the time that [`leaving`] allows.
    /// `records` gets the end of that time.
    pub(super) async fn give_up(&mut self, failure: &Failure, records: impl AsyncFnOnce(&Self, Instant)) {
        let end = Instant::now() + leaving(failure);
        records(self, end).await;
        self.leave(end.saturating_duration_since(Instant::now())).await;
    }

    /// Leaves the queue and closes the session, within `patience`.
    pub(crate) async fn leave(&mut self, patience: Duration) {
        if let Some(lock) = self.lock.take() {
            // Counts that are not written in time are dropped.
            _ = lock.flush_statistics(patience).await;
        }
        if let Some(keeper) = self.keeper.take() {
            if self.released {
                // The next holder need not wait for the end of this session, and neither need this command.
                _ = timeout(patience, keeper.close_unconfirmed()).await;
            } else {
                // If the close is not confirmed in time, the end of the session removes the node.
                _ = timeout(patience, keeper.close()).await;
            }
        }
        // If there is no command, its watchdog ends here.
        self.watchdog = None;
    }
}

/// Returns how long to try to record this failure and to leave the queue. It comes at the deadline if there is one.
pub(crate) fn leaving(failure: &Failure) -> Duration {
    match failure.code {
        // No server confirms anything: the node is deleted with the session.
        Code::Unreachable => Duration::ZERO,
        _ => LEAVING_LATE,
    }
}
