//! Holds of your own: a guard whose trust comes from elsewhere than a node of a session, such as a lease, and what is written when
//! a hold ends.
//!
//! [`Hold`] is the state that a guard and the task of its hold share: until when the hold can be trusted, and what happens when it is
//! lost.
//!
//! A loss is final. Tasks that wait for it are woken before anything else happens.

pub(crate) mod exit;
pub(crate) mod fenced;
pub(crate) mod guard;
pub(crate) mod holding;
pub(crate) mod note;
pub(crate) mod on_lost;
pub(crate) mod spans;
pub(crate) mod telemetry;
pub(crate) mod upgrade;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_channel::mpsc::UnboundedSender;
use lockkeeper_core::{FencingToken, Grant, LockDelay, Loss, Revocation, Trust, node_path};
use lockkeeper_session::ensemble::{Ensemble, Node, TxnStep, Written};
use lockkeeper_session::wait::or_never;
use lockkeeper_session::watchdog::{Expiring, Registration};
use lockkeeper_session::{CancellationToken, HeldRecord, Session, SessionTrust, TrustSource, latest};
use tokio::sync::{Notify, oneshot};

pub use self::holding::run_until;
pub use self::note::{HoldReport, Note, NoteSteps, NotedEnd};
pub use self::telemetry::Call;
use crate::callbacks;
use crate::error::{ReleaseError, WriteError};
use crate::hold::exit::Departure;
pub use crate::hold::exit::Leaving;
use crate::hold::guard::Guard;
use crate::hold::holding::Holding;
use crate::hold::on_lost::{LostCallback, LostLock, OnLost};
use crate::hold::spans::{HoldSpans, WaitRef};
pub use crate::meters::{Group, Meter};
pub use crate::recipes::distributed::GuardSlot;

/// Where the outcome of a request is sent.
pub(crate) type AcquireReply = oneshot::Sender<Result<holding::Holding, crate::error::AcquireError>>;

/// How long a process that is about to abort waits for its log.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Returns the write to make instead of this one, whose node has this other version now; `None` if there is none.
pub type WriteAgain = fn(&Node, &TxnStep) -> Option<TxnStep>;

/// A write in the transaction that deletes the node of a hold.
#[derive(Debug)]
pub struct AtRelease {
    /// The write.
    pub step: TxnStep,
    /// The write to try once more, if the node had another version.
    pub again: WriteAgain,
    /// Notified when the write is done; dropped if it is not done, or if that is unknown.
    pub written: oneshot::Sender<Written>,
}

/// A message from a guard to its driver. Dropping the guard requests the release without an answer.
#[derive(Debug)]
pub enum HoldRequest {
    /// Write this node in the transaction of the release that follows.
    WriteAtRelease(Box<AtRelease>),
    /// Write this note when the hold ends.
    Note(Box<Note>),
    /// Release, and confirm it.
    Release(oneshot::Sender<Result<(), ReleaseError>>),
    /// Become a reader in the writer's position.
    Downgrade(oneshot::Sender<()>),
    /// Become the writer.
    Upgrade(oneshot::Sender<()>),
    /// Cancel the upgrade and stay a reader.
    StayReader,
    /// Refuse the request to release the lock, for this reason.
    Refuse(Box<str>),
    /// Make way for the contenders of earlier classes, and acquire the lock again.
    Yield(Box<YieldRequest>),
    /// Check at the servers whether the lock is held.
    Verify(oneshot::Sender<Result<(), String>>),
}

/// A holder makes way, and waits for its next grant.
#[derive(Debug)]
pub struct YieldRequest {
    /// Where the next grant is sent.
    pub(crate) reply: AcquireReply,
    /// The span of the wait.
    pub(crate) span: WaitRef,
}

/// The caller's options for a hold.
#[derive(Clone, Debug, Default)]
pub struct HoldOptions {
    /// What happens when the hold is lost.
    pub on_lost: OnLost,
    /// How often the program must call `alive`.
    pub liveness: Option<Duration>,
    /// How long the lock stays unavailable after a loss.
    pub delay: Option<Duration>,
    /// How old the hold must be before it makes way for contenders of earlier classes, if it does.
    pub min_hold: Option<Duration>,
    /// Reports the request and its hold.
    pub meter: Meter,
}

impl HoldOptions {
    /// The lock delay, if it is valid.
    pub(crate) fn lock_delay(&self) -> Option<LockDelay> {
        LockDelay::new(self.delay?)
    }
}

/// The last call of `alive`, and until when it counts.
struct Liveness {
    every: Duration,
    /// Nanoseconds of the session's clock.
    until: AtomicU64,
}

/// One hold.
pub struct Hold {
    /// The path of its lock.
    pub path: String,
    /// It changes with a downgrade.
    node: Mutex<String>,
    /// The holder marker of a lock with classes, besides the node.
    holder_marker: Option<String>,
    pub(crate) token: FencingToken,
    /// Whether its kind has tokens.
    pub(crate) fences: bool,
    source: Arc<dyn TrustSource>,
    on_lost: OnLost,
    meter: Meter,
    /// When it began, by the session's clock.
    began: Duration,
    /// When it was lost, by the session's clock.
    lost_at: OnceLock<Duration>,
    /// Whether its duration is reported.
    reported: AtomicBool,
    liveness: Option<Liveness>,
    loss: OnceLock<Loss>,
    pub(crate) lost: CancellationToken,
    /// The latest request to release the lock.
    pub(crate) asked: latest::Sender<Option<Box<Revocation>>>,
    /// Whether a contender of an earlier class waits for it, and it is old enough to make way.
    pub(crate) contended: latest::Sender<bool>,
    /// Whether an upgrade is known to wait for readers ahead of it.
    pub(crate) waits_for_readers: AtomicBool,
    /// What a process that exits waits for.
    pub(crate) departure: Departure,
    /// Whether its owner has asked for the release.
    pub(crate) released: AtomicBool,
    /// Notified when the program has missed its liveness limit: the driver gives the lock up.
    pub unattended: Notify,
    /// How many fenced writes may still take effect.
    writes: AtomicUsize,
    ward: OnceLock<Registration>,
    /// Tasks to notify before the loss, each with how long before.
    early: Mutex<Vec<(Duration, oneshot::Sender<()>)>>,
    /// The spans of its guards.
    pub(crate) spans: HoldSpans,
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hold").field("path", &self.path).field("loss", &self.loss()).finish_non_exhaustive()
    }
}

impl Hold {
    pub(crate) fn new(
        path: String,
        grant: Grant,
        holder_marker: Option<String>,
        fences: bool,
        session: Arc<Session>,
        options: &HoldOptions,
    ) -> Arc<Hold> {
        let Grant { name, token } = grant;
        Self::on(path, name, holder_marker, token, fences, Arc::new(SessionTrust::new(session)), options)
    }

    /// A hold that is not a node of a session, but depends on this source of trust.
    pub fn trusting(
        path: String,
        token: FencingToken,
        source: Arc<dyn TrustSource>,
        options: &HoldOptions,
    ) -> Arc<Hold> {
        Self::on(path, String::new(), None, token, true, source, options)
    }

    fn on(
        path: String,
        node: String,
        holder_marker: Option<String>,
        token: FencingToken,
        fences: bool,
        source: Arc<dyn TrustSource>,
        options: &HoldOptions,
    ) -> Arc<Hold> {
        let mut hold = Hold {
            path,
            node: Mutex::new(node),
            holder_marker,
            token,
            fences,
            source,
            on_lost: options.on_lost.clone(),
            meter: options.meter.clone(),
            began: Duration::ZERO,
            lost_at: OnceLock::new(),
            reported: AtomicBool::new(false),
            liveness: None,
            loss: OnceLock::new(),
            lost: CancellationToken::new(),
            asked: latest::Sender::new(None),
            contended: latest::Sender::new(false),
            waits_for_readers: AtomicBool::new(false),
            departure: Departure::default(),
            released: AtomicBool::new(false),
            unattended: Notify::new(),
            writes: AtomicUsize::new(0),
            ward: OnceLock::new(),
            early: Mutex::default(),
            spans: HoldSpans::default(),
        };
        hold.began = hold.session().now();
        if let Some(every) = options.liveness {
            let until = AtomicU64::new(nanos(hold.began.saturating_add(every)));
            hold.liveness = Some(Liveness { every, until });
        }
        if matches!(hold.on_lost, OnLost::Call(_)) {
            callbacks::prepare();
        }
        let hold = Arc::new(hold);
        if let Some(ward) = hold.session().watch_over(hold.clone()) {
            _ = hold.ward.set(ward);
        }
        hold
    }

    /// The session that it depends on now.
    pub(crate) fn session(&self) -> Arc<Session> {
        self.source.session()
    }

    /// The record that it depends on, if it is not a node of the session.
    pub(crate) fn record(&self) -> Option<&dyn HeldRecord> {
        self.source.record()
    }

    /// The nodes that a hold without a record needs: its own, and the holder marker if there is one.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let names = std::iter::once(self.node()).chain(self.holder_marker.clone());
        names.map(|name| node_path(&self.path, &name)).collect()
    }

    /// The name of the node that represents it.
    pub(crate) fn node(&self) -> String {
        self.node.lock().expect("held for a copy only").clone()
    }

    /// Another node represents it from now on.
    pub(crate) fn moved_to(&self, node: String) {
        *self.node.lock().expect("held for a copy only") = node;
    }

    /// Marks it lost and reports the loss. The first reason stays.
    pub fn lose(&self, loss: Loss) {
        if self.mark(loss) {
            self.report_loss();
        }
    }

    /// Marks it lost and wakes the tasks that wait for the loss. Returns `true` if it was not lost before.
    fn mark(&self, loss: Loss) -> bool {
        let first = self.loss.set(loss).is_ok();
        if first {
            _ = self.lost_at.set(self.session().now());
        }
        self.lost.cancel();
        if first && loss == Loss::Unattended {
            self.unattended.notify_one();
        }
        first
    }

    /// Why it is lost; `None` if it is not known to be.
    pub fn loss(&self) -> Option<Loss> {
        self.loss.get().copied()
    }

    /// Marks it lost if its clock says so. Returns whether it is lost.
    pub fn judge(&self) -> bool {
        match self.trust() {
            Trust::Lost(loss) => self.lose(loss),
            Trust::Held { .. } | Trust::Suspected { .. } => return false,
        }
        true
    }

    /// Reports how long it lasted, if that is not reported yet: it is lost, or its guard ends.
    pub(crate) fn report_duration(&self) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            self.meter.held(self.session().now().saturating_sub(self.began));
        }
    }

    /// Tells the program the latest request to release the lock, if there is one.
    pub fn ask(&self, request: Option<Revocation>) {
        self.asked.send_replace(request.map(Box::new));
    }

    /// Waits until another client asks for the lock, and returns its request.
    pub(crate) async fn revocation(&self) -> Revocation {
        let mut asked = self.asked.subscribe();
        let seen = asked.wait_for(Option::is_some).await.ok().flatten();
        *seen.expect("the sender lives in this hold, and the value was seen")
    }

    /// Reports the wait for its lock after it made way.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// When it began, and how and when it was lost, if it was, by the session's clock.
    pub fn span(&self) -> (Duration, Option<(Loss, Duration)>) {
        (self.began, self.loss().zip(self.lost_at.get().copied()))
    }

    /// Until when it can be trusted.
    pub(crate) fn trust(&self) -> Trust {
        if let Some(loss) = self.loss.get() {
            return Trust::Lost(*loss);
        }
        let trust = self.source.trust();
        let Some(liveness) = &self.liveness else { return trust };
        let attended = Duration::from_nanos(liveness.until.load(Ordering::Relaxed));
        match trust {
            Trust::Held { .. } | Trust::Suspected { .. } if self.session().now() >= attended => {
                Trust::Lost(Loss::Unattended)
            }
            Trust::Held { until } => Trust::Held { until: until.min(attended) },
            Trust::Suspected { until } => Trust::Suspected { until: until.min(attended) },
            lost => lost,
        }
    }

    /// How long it can be trusted if its program reports progress in time.
    pub(crate) fn backed_for(&self) -> Duration {
        self.source.trust().until().saturating_sub(self.session().now())
    }

    /// When the clock ends it, unless something renews it first.
    pub fn ends(&self) -> Duration {
        let ends = self.source.ends();
        match &self.liveness {
            Some(liveness) => ends.min(Duration::from_nanos(liveness.until.load(Ordering::Relaxed))),
            None => ends,
        }
    }

    /// Notifies the tasks that asked to know before the loss.
    fn warn(&self) {
        let left = self.ends().saturating_sub(self.session().now());
        let mut early = self.early.lock().expect("held for a change only");
        // Dropping the sender is the notification.
        early.retain(|(margin, notify)| left > *margin && !notify.is_closed());
    }

    /// Resolves when the hold can be trusted for no longer than `margin`, or is lost. It checks again when it would
    /// resolve, so a heartbeat that was confirmed meanwhile prolongs the wait. Dropping the future leaves nothing
    /// behind.
    pub(crate) async fn nearly_lost(&self, margin: Duration) {
        let Some(ward) = self.ward.get() else { return self.nearly_lost_by_timer(margin).await };
        while !self.lost.is_cancelled() && self.ends().saturating_sub(self.session().now()) > margin {
            let (notify, warned) = oneshot::channel();
            self.early.lock().expect("held for a change only").push((margin, notify));
            let mut warning = Warning { hold: self, warned };
            ward.look_by(self.due());
            tokio::select! {
                biased;
                () = self.lost.cancelled() => {}
                _ = &mut warning.warned => {}
            }
        }
    }

    /// As `nearly_lost`, with a clock that is not the system's.
    async fn nearly_lost_by_timer(&self, margin: Duration) {
        loop {
            let left = self.ends().saturating_sub(self.session().now());
            if left <= margin || self.judge() {
                return;
            }
            let session = self.session();
            tokio::select! {
                biased;
                () = self.lost.cancelled() => {}
                () = session.after(left - margin) => {}
            }
        }
    }

    /// Resolves when its state may differ from that at the call.
    pub(crate) fn state_changed(&self) -> impl Future<Output = ()> + '_ {
        // In this order: a record that moves to another session in between is noticed.
        let (moved, mut link) = (self.moved(), self.session().link());
        async move {
            tokio::select! {
                biased;
                () = self.lost.cancelled() => {}
                _ = link.changed() => {}
                () = moved => {}
            }
        }
    }

    /// Resolves when it can be trusted for longer than at the call. Dropping the future leaves nothing behind.
    pub(crate) fn renewed(self: &Arc<Self>) -> impl Future<Output = ()> + use<> {
        // Subscribe now, so that no heartbeat between this call and the first poll is missed.
        let (mut moved, mut heartbeats) = (self.moved(), self.session().heartbeats());
        let (hold, before) = (self.clone(), self.trust().until());
        async move {
            while hold.trust().until() <= before {
                // An error means that the session has ended, so nothing of it renews the hold.
                let confirmed = async {
                    if heartbeats.changed().await.is_err() {
                        std::future::pending().await
                    }
                };
                tokio::select! {
                    biased;
                    () = confirmed => continue,
                    () = &mut moved => moved = hold.moved(),
                }
                // Another session may keep it now.
                heartbeats = hold.session().heartbeats();
            }
        }
    }

    /// Resolves at the next change of its record; never without one.
    fn moved(&self) -> impl Future<Output = ()> + Unpin + Send + use<> {
        or_never(self.record().map(HeldRecord::changed))
    }

    /// Counts a fenced write until [`Hold::write_ends`].
    pub(crate) fn write_begins(&self) {
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// A fenced write has this outcome. If that is unknown, the write is not over: only the delete of the hold's node ends it.
    pub(crate) fn write_ends<T>(&self, outcome: &Result<T, WriteError>) {
        if !matches!(outcome, Err(WriteError::Unknown { .. })) {
            self.writes.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether a fenced write may still take effect. Its caller may have dropped the future.
    pub(crate) fn may_still_write(&self) -> bool {
        self.writes.load(Ordering::Acquire) > 0
    }

    /// Returns what its task keeps until it has released the hold: a process that exits waits for a guard that was dropped until then,
    /// but no longer than 100 ms.
    pub fn leaving(&self) -> Leaving {
        self.departure.task()
    }

    /// The program is at work.
    pub(crate) fn attend(&self) {
        if let Some(Liveness { every, until }) = &self.liveness {
            until.fetch_max(nanos(self.session().now().saturating_add(*every)), Ordering::Relaxed);
        }
    }

    fn call(&self, callback: &LostCallback, loss: Loss) {
        let (callback, token) = (callback.clone(), Some(self.token).filter(|_| self.fences));
        let lost = LostLock { path: self.path.clone(), token, loss };
        callbacks::run(move || callback(&lost));
    }

    /// No work runs under the hold until [`Hold::attend_again`], so the program need not call `alive`.
    pub(crate) fn attend_later(&self) {
        if let Some(Liveness { until, .. }) = &self.liveness
            && !self.judge()
        {
            until.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Work begins after [`Hold::attend_later`].
    pub(crate) fn attend_again(&self) {
        if let Some(Liveness { every, until }) = &self.liveness {
            until.store(nanos(self.session().now().saturating_add(*every)), Ordering::Relaxed);
            self.ward.get().into_iter().for_each(|ward| ward.look_by(self.due()));
        }
    }
}

/// Times beyond the clock's range count as about 500 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The end of a wait for the notification before a loss. Dropping it removes the request for that.
struct Warning<'a> {
    hold: &'a Hold,
    warned: oneshot::Receiver<()>,
}

impl Drop for Warning<'_> {
    fn drop(&mut self) {
        self.warned.close();
        self.hold.early.lock().expect("held for a change only").retain(|(_, notify)| !notify.is_closed());
    }
}

impl Expiring for Hold {
    fn due(&self) -> Duration {
        let early = self.early.lock().expect("held for a change only");
        let margin = early.iter().map(|(margin, _)| *margin).max().unwrap_or_default();
        self.ends().saturating_sub(margin)
    }

    fn expire_if_due(&self) -> Option<bool> {
        match self.trust() {
            // After its release, only a server can say that it was lost before: the release reports that.
            Trust::Lost(loss) => Some(self.mark(loss) && !self.released.load(Ordering::Acquire)),
            Trust::Held { .. } | Trust::Suspected { .. } => {
                self.warn();
                None
            }
        }
    }

    fn report_loss(&self) {
        let Some(loss) = self.loss() else { return };
        let (path, node, token) = (self.path.clone(), self.node(), self.token);
        match &self.on_lost {
            OnLost::Abort if loss != Loss::Closed => {
                let (said, heard) = std::sync::mpsc::channel();
                let saying = std::thread::Builder::new().spawn(move || {
                    tracing::error!(%path, %node, %token, %loss, "lock lost; the process is aborted");
                    _ = said.send(());
                });
                if saying.is_ok() {
                    // A log that blocks must not keep the process alive.
                    _ = heard.recv_timeout(LAST_WORDS);
                }
                std::process::abort();
            }
            OnLost::Call(callback) => self.call(callback, loss),
            OnLost::Nothing | OnLost::Abort => {}
        }
        self.report_duration();
        self.spans.lost(loss);
        self.meter.lost(loss);
        tracing::warn!(path = %self.path, %node, %token, %loss, "lock lost");
    }

    fn report_without_blocking(&self) {
        match (&self.on_lost, self.loss()) {
            (OnLost::Abort, Some(loss)) if loss != Loss::Closed => std::process::abort(),
            (OnLost::Call(callback), Some(loss)) => self.call(callback, loss),
            _ => {}
        }
    }
}

/// Creates the guard of a hold that is not a node of a session ([`Hold::trusting`]). The task of the hold receives its requests.
///
/// Whoever creates such a hold answers for what its guard promises.
pub fn guard_of(hold: Arc<Hold>, requests: UnboundedSender<HoldRequest>) -> Guard {
    Guard::of(Holding::new(hold, requests))
}

/// Releases the lock as [`Holding::release`] does, and writes a node in the same transaction. Returns what was written; `None` if it
/// was not written, or if that is unknown.
///
/// If the node has another version than that of the step, it is read under the hold, and `again` says what to write instead. If the node
/// cannot be written, the lock is released without it.
///
/// # Cancel safety
///
/// Dropping the future does not cancel the release. The node is written with it, or not at all.
pub async fn release_and_write(
    hold: Holding,
    step: TxnStep,
    again: WriteAgain,
) -> (Result<(), ReleaseError>, Option<Written>) {
    let (written, mut write) = oneshot::channel();
    hold.request(HoldRequest::WriteAtRelease(Box::new(AtRelease { step, again, written })));
    let released = hold.release().await;
    (released, write.try_recv().ok())
}

/// Returns the state of a hold, which shows when it was lost, also after its guard is dropped.
pub fn state_of(hold: &Holding) -> Arc<Hold> {
    hold.state_of_hold()
}

/// Writes a note about a hold in the transaction that ends it. A later note replaces an earlier one.
///
/// The task of a leased lock writes no notes. It only reports the end of the hold.
pub fn note_end(hold: &Holding, note: Note) {
    hold.request(HoldRequest::Note(Box::new(note)));
}

/// Returns the operations of the session that granted the lock; `None` if that session is over.
///
/// A read of this session sees everything that earlier holders wrote.
pub fn ensemble_of(hold: &Holding) -> Option<Arc<dyn Ensemble>> {
    hold.session().ensemble()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use lockkeeper_server::{Config, Server};

    use crate::Lockkeeper;

    #[tokio::test]
    async fn a_dropped_wait_for_a_near_loss_leaves_nothing_behind() {
        let server = Server::start(Config::default()).await.unwrap();
        let keeper = Lockkeeper::builder().connect(&server.connect_string()).await.unwrap();
        let guard = keeper.mutex("/locks/waited-for").acquire().await.unwrap();
        let (margin, hold) = (guard.session_timeout() / 5, guard.hold());
        let requests = || hold.early.lock().unwrap().len();
        let mut other = Box::pin(guard.nearly_lost(margin));
        assert_eq!((&mut other).now_or_never(), None);
        for _ in 0..1000 {
            assert_eq!(guard.nearly_lost(margin).now_or_never(), None);
            assert_eq!(requests(), 1, "that of the other wait");
        }
        drop(other);
        assert_eq!(requests(), 0);
        guard.release().await.unwrap();
    }
}
