//! What a guard and its driver share: one hold, how far it may be trusted, and what happens when it is lost.
//!
//! Lost is final, and whoever waits for it is woken before anything else is done about it.

pub(crate) mod fenced;
pub(crate) mod guard;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockkeeper_core::{FencingToken, Grant, LockDelay, Loss, Revocation, Trust};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::error::ReleaseError;
use crate::session::Session;
use crate::session::watchdog::Ward;

/// How long a process that is about to be aborted waits for its log.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// What to do when a lock is lost, beside telling its guard.
///
/// For a handle's locks by [`Builder::on_lost`](crate::Builder::on_lost), for one by
/// [`Acquire::on_lost`](crate::Acquire::on_lost).
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// Nothing.
    #[default]
    Nothing,
    /// End the process with `abort`, after a line in the log: for programs whose every part rests on the lock. Not for locks
    /// that the program lost by closing its handle.
    Abort,
    /// Call this, on a thread of its own.
    Call(Arc<dyn Fn(&LostLock) + Send + Sync>),
}

impl OnLost {
    /// Calls `told` for each lock that is lost, on a thread of its own; it may block.
    pub fn call(told: impl Fn(&LostLock) + Send + Sync + 'static) -> Self {
        OnLost::Call(Arc::new(told))
    }
}

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OnLost::Nothing => "Nothing",
            OnLost::Abort => "Abort",
            OnLost::Call(_) => "Call",
        })
    }
}

/// A lock that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostLock {
    /// The lock.
    pub path: String,
    /// The fencing token of the hold, where its kind has one.
    pub token: Option<FencingToken>,
    /// Why.
    pub loss: Loss,
}

/// What a guard tells its driver. All guards gone asks for the release, without an answer.
#[derive(Debug)]
pub(crate) enum Request {
    /// Release, and confirm it.
    Release(oneshot::Sender<Result<(), ReleaseError>>),
    /// Read on in the place of the writer.
    Downgrade(oneshot::Sender<()>),
    /// Be alone.
    Upgrade(oneshot::Sender<()>),
    /// Never mind being alone.
    StayReader,
    /// Refuse the request to let go, for this reason.
    Refuse(String),
    /// The program is no longer at work: nobody may believe in the hold, so it goes.
    LetGo,
    /// Look whether the lock is held, and say so.
    Verify(oneshot::Sender<Result<(), String>>),
}

/// What is to be done about a hold, in its owner's words.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoldOptions {
    pub(crate) on_lost: OnLost,
    /// How often the owner says that it is at work.
    pub(crate) liveness: Option<Duration>,
    /// For how long nobody is to follow if it ends against its will.
    pub(crate) delay: Option<Duration>,
}

impl HoldOptions {
    /// The lock delay, where it is one.
    pub(crate) fn lock_delay(&self) -> Option<LockDelay> {
        LockDelay::new(self.delay?)
    }
}

/// The owner's word that it is at work, and until when that is good.
struct Liveness {
    every: Duration,
    /// Nanoseconds of the session's clock.
    until: AtomicU64,
}

/// What a hold stands and falls with.
enum TrustBasis {
    /// A node of the session.
    Session {
        session: Arc<Session>,
        /// How many of the session's deadlines had passed when it was granted.
        missed_deadlines: u32,
    },
    /// A record that outlives sessions, until its lease ends.
    Lease(watch::Sender<Lease>),
}

/// How a hold by a record stands.
#[derive(Clone)]
pub(crate) struct Lease {
    /// The session of now.
    pub(crate) session: Arc<Session>,
    /// The last moment of that session's clock at which the lease can be relied on.
    pub(crate) until: Duration,
    /// Whom the record names as the owner, and until when by the server's clock: by these two it is this hold's.
    pub(crate) owner: (String, i64),
    /// The versions of the record and of the node above it when that was last seen; unknown after a write of our own.
    pub(crate) versions: Option<Versions>,
}

/// What tells a record from any other: its version, and that of the node above it, which grows when the record is deleted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Versions {
    pub(crate) record: i32,
    pub(crate) parent: i32,
}

/// One hold.
pub(crate) struct Hold {
    pub(crate) path: String,
    /// It changes with a downgrade.
    node: Mutex<String>,
    /// The mark that a lock with classes is held by, beside the node.
    mark: Option<String>,
    pub(crate) token: FencingToken,
    /// Its kind has tokens.
    pub(crate) fences: bool,
    basis: TrustBasis,
    on_lost: OnLost,
    liveness: Option<Liveness>,
    loss: OnceLock<Loss>,
    pub(crate) lost: CancellationToken,
    /// The request to let go that was seen last.
    pub(crate) asked: watch::Sender<Option<Revocation>>,
    /// The way to whoever can let go of it. Weak: its guard's going is what asks for the release.
    requests: OnceLock<mpsc::WeakUnboundedSender<Request>>,
    ward: OnceLock<Ward>,
    /// Who wants to know some time before it is lost, and how long before.
    early: Mutex<Vec<(Duration, oneshot::Sender<()>)>>,
}

impl Hold {
    pub(crate) fn new(
        path: String,
        grant: Grant,
        mark: Option<String>,
        fences: bool,
        session: Arc<Session>,
        options: &HoldOptions,
    ) -> Arc<Hold> {
        let missed_deadlines = session.link().borrow().missed_deadlines;
        let Grant { name, token } = grant;
        Self::on(path, name, mark, token, fences, TrustBasis::Session { session, missed_deadlines }, options)
    }

    /// A hold by the record at `path`.
    pub(crate) fn leased(path: String, token: FencingToken, lease: Lease, options: &HoldOptions) -> Arc<Hold> {
        Self::on(path, String::new(), None, token, true, TrustBasis::Lease(watch::Sender::new(lease)), options)
    }

    fn on(
        path: String,
        node: String,
        mark: Option<String>,
        token: FencingToken,
        fences: bool,
        basis: TrustBasis,
        options: &HoldOptions,
    ) -> Arc<Hold> {
        let mut hold = Hold {
            path,
            node: Mutex::new(node),
            mark,
            token,
            fences,
            basis,
            on_lost: options.on_lost.clone(),
            liveness: None,
            loss: OnceLock::new(),
            lost: CancellationToken::new(),
            asked: watch::Sender::new(None),
            requests: OnceLock::new(),
            ward: OnceLock::new(),
            early: Mutex::default(),
        };
        if let Some(every) = options.liveness {
            let until = AtomicU64::new(nanos(hold.session().now() + every));
            hold.liveness = Some(Liveness { every, until });
        }
        let hold = Arc::new(hold);
        if let Some(ward) = hold.session().watch_over(&hold) {
            _ = hold.ward.set(ward);
        }
        hold
    }

    /// Whoever can let go of it is asked through this.
    pub(crate) fn can_ask(&self, requests: &mpsc::UnboundedSender<Request>) {
        _ = self.requests.set(requests.downgrade());
    }

    /// Goes on in another session, or with another end of the lease, or another version of the record.
    pub(crate) fn lease(&self, now: Lease) {
        if let TrustBasis::Lease(lease) = &self.basis {
            lease.send_replace(now);
        }
    }

    /// How its lease stands and goes on, where it has one.
    pub(crate) fn leases(&self) -> Option<watch::Receiver<Lease>> {
        match &self.basis {
            TrustBasis::Session { .. } => None,
            TrustBasis::Lease(lease) => Some(lease.subscribe()),
        }
    }

    /// The last moment of the session's clock at which a lease can be relied on.
    pub(crate) fn lease_until(&self) -> Duration {
        match &self.basis {
            TrustBasis::Session { .. } => Duration::MAX,
            TrustBasis::Lease(lease) => lease.borrow().until,
        }
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        match &self.basis {
            TrustBasis::Session { session, .. } => session.clone(),
            TrustBasis::Lease(lease) => lease.borrow().session.clone(),
        }
    }

    /// The nodes without which it is not held: its own, and the mark where there is one. Of a record there are none.
    pub(crate) fn nodes(&self) -> Vec<String> {
        match &self.basis {
            TrustBasis::Lease(_) => Vec::new(),
            TrustBasis::Session { .. } => {
                let names = std::iter::once(self.node()).chain(self.mark.clone());
                names.map(|name| format!("{}/{name}", self.path)).collect()
            }
        }
    }

    /// The name of the node that stands for it.
    pub(crate) fn node(&self) -> String {
        self.node.lock().expect("held for a copy only").clone()
    }

    /// It stands in another node from now on.
    pub(crate) fn moved_to(&self, node: String) {
        *self.node.lock().expect("held for a copy only") = node;
    }

    /// Marks it lost, and says so. The first reason stays.
    pub(crate) fn lose(&self, loss: Loss) {
        if self.mark(loss) {
            self.tell();
        }
    }

    /// Marks it lost; `true` if it was not before. Whoever waits for that is woken.
    fn mark(&self, loss: Loss) -> bool {
        let first = self.loss.set(loss).is_ok();
        self.lost.cancel();
        if first
            && loss == Loss::Unattended
            && let Some(requests) = self.requests.get().and_then(mpsc::WeakUnboundedSender::upgrade)
        {
            _ = requests.send(Request::LetGo);
        }
        first
    }

    /// Says that it was lost, and does what was asked for. A log may block.
    pub(crate) fn tell(&self) {
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
                    // A log that blocks does not keep the process alive.
                    _ = heard.recv_timeout(LAST_WORDS);
                }
                std::process::abort();
            }
            OnLost::Call(told) => {
                let (told, token) = (told.clone(), Some(token).filter(|_| self.fences));
                let lost = LostLock { path, token, loss };
                let calling =
                    std::thread::Builder::new().name("lockkeeper-on-lost".to_owned()).spawn(move || told(&lost));
                if let Err(error) = calling {
                    tracing::error!(path = %self.path, %error, "no thread to tell of a lost lock");
                }
            }
            OnLost::Nothing | OnLost::Abort => {}
        }
        tracing::warn!(path = %self.path, %node, %token, %loss, "lock lost");
    }

    /// What of that cannot wait for a thread.
    pub(crate) fn tell_tersely(&self) {
        if let (OnLost::Abort, Some(loss)) = (&self.on_lost, self.loss())
            && loss != Loss::Closed
        {
            std::process::abort();
        }
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.get().copied()
    }

    /// Marks it lost if its clock says that it is. Whether it is.
    pub(crate) fn judge(&self) -> bool {
        match self.trust() {
            Trust::Lost(loss) => self.lose(loss),
            Trust::Held { .. } | Trust::Suspected { .. } => return false,
        }
        true
    }

    /// The same in silence: `None` if it is held, else whether this call marked it lost.
    pub(crate) fn lapse(&self) -> Option<bool> {
        match self.trust() {
            Trust::Lost(loss) => Some(self.mark(loss)),
            Trust::Held { .. } | Trust::Suspected { .. } => {
                self.warn();
                None
            }
        }
    }

    /// How far it may be trusted now.
    pub(crate) fn trust(&self) -> Trust {
        if let Some(loss) = self.loss.get() {
            return Trust::Lost(*loss);
        }
        let trust = match &self.basis {
            TrustBasis::Session { session, missed_deadlines } => session.trust(*missed_deadlines),
            TrustBasis::Lease(lease) => {
                let lease = lease.borrow();
                lease.session.lease_trust(lease.until)
            }
        };
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

    /// When it is lost by the clock if nothing comes that keeps it.
    fn ends(&self) -> Duration {
        let ends = match &self.basis {
            TrustBasis::Session { session, missed_deadlines } => session.due(*missed_deadlines),
            TrustBasis::Lease(_) => self.lease_until(),
        };
        match &self.liveness {
            Some(liveness) => ends.min(Duration::from_nanos(liveness.until.load(Ordering::Relaxed))),
            None => ends,
        }
    }

    /// When it is to be looked at: when it would be lost, or somebody wants to know of that earlier.
    pub(crate) fn due(&self) -> Duration {
        let early = self.early.lock().expect("held for a change only");
        let margin = early.iter().map(|(margin, _)| *margin).max().unwrap_or_default();
        self.ends().saturating_sub(margin)
    }

    /// Tells those who want to know that early.
    fn warn(&self) {
        let left = self.ends().saturating_sub(self.session().now());
        let mut early = self.early.lock().expect("held for a change only");
        // Dropped, which is the word.
        early.retain(|(margin, told)| left > *margin && !told.is_closed());
    }

    /// Resolves when it may be trusted for no longer than `margin`, or is lost. Judged when this resolves: a heartbeat that is
    /// confirmed meanwhile makes it wait on. Dropping the future leaves nothing behind.
    pub(crate) async fn nearly_lost(&self, margin: Duration) {
        let Some(ward) = self.ward.get() else { return self.nearly_lost_by_timer(margin).await };
        while !self.lost.is_cancelled() && self.ends().saturating_sub(self.session().now()) > margin {
            let (told, warned) = oneshot::channel::<()>();
            self.early.lock().expect("held for a change only").push((margin, told));
            ward.look_by(self.due());
            tokio::select! {
                biased;
                () = self.lost.cancelled() => {}
                _ = warned => {}
            }
        }
    }

    /// The same where time is not the system's.
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

    /// Resolves when its state may be another than it was when this was called.
    pub(crate) fn state_changed(&self) -> impl Future<Output = ()> + '_ {
        let mut link = self.session().link();
        let mut lease = match &self.basis {
            TrustBasis::Lease(lease) => Some(lease.subscribe()),
            TrustBasis::Session { .. } => None,
        };
        async move {
            let moved = async {
                match &mut lease {
                    Some(lease) => _ = lease.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.lost.cancelled() => {}
                _ = link.changed() => {}
                () = moved => {}
            }
        }
    }

    /// Resolves when it may be trusted for longer than when this was called. Dropping the future leaves nothing behind.
    pub(crate) fn renewed(self: &Arc<Self>) -> impl Future<Output = ()> + use<> {
        // Now, so that no heartbeat between this call and the first poll is missed.
        let (mut proofs, lease) = (self.session().proofs(), self.leases());
        let (hold, before) = (self.clone(), self.trust().until());
        async move {
            let more = match lease {
                Some(mut lease) => lease.wait_for(|lease| lease.until > before).await.is_ok(),
                None => loop {
                    match proofs.changed().await {
                        Ok(()) if hold.trust().until() > before => break true,
                        Ok(()) => {}
                        Err(_) => break false,
                    }
                },
            };
            if !more {
                // The session has ended: nothing renews it.
                std::future::pending().await
            }
        }
    }

    /// The owner is at work.
    pub(crate) fn attend(&self) {
        if let Some(Liveness { every, until }) = &self.liveness {
            until.fetch_max(nanos(self.session().now() + *every), Ordering::Relaxed);
        }
    }
}

/// A time that no clock reaches is as good as 500 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
