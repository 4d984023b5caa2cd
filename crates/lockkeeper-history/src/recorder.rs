//! Records holds as they end.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockkeeper::admin::{ContenderInfo, Owner};
use lockkeeper::error::{AdminError, SessionError};
use lockkeeper::hold::{Hold, HoldReport, Note, NotedEnd};
use lockkeeper::{FencingToken, Holding, Lockkeeper, Loss, NodeFormat};
use lockkeeper_core::Sequence;
use lockkeeper_session::Clock;
use lockkeeper_session::ensemble::{OpError, TxnStep, linearizable};
use tokio::sync::oneshot;

use super::kept::KeptHold;
use super::lock_use::LockUse;
use super::record::{HoldEnd, StoredBefore, StoredHold};
use super::store::{self, Slot};
use crate::millis::millis;

/// Records holds when they end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    keeper: Lockkeeper,
    message: Option<String>,
    used_as: Option<LockUse>,
    before: Option<Box<ContenderInfo>>,
}

/// What only the program knows about the end of a hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ending {
    /// The exit status of the command that ran under the lock.
    pub status: Option<u8>,
    /// More about a loss than the library knows, such as who broke the lock.
    pub reason: Option<String>,
    /// Whether the process was stopped, or its machine too busy.
    pub paused: bool,
}

impl Ending {
    /// Sets the exit status of the command.
    #[must_use]
    pub fn with_status(mut self, status: u8) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets more about a loss. More than 240 bytes are cut.
    #[must_use]
    pub fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Says that the process was stopped, or its machine too busy.
    #[must_use]
    pub fn paused(mut self) -> Self {
        self.paused = true;
        self
    }
}

/// A hold that is recorded when it ends. Dropping this changes nothing.
#[derive(Debug)]
pub struct Recording {
    keeper: Lockkeeper,
    recorded: Arc<Recorded>,
    ended: oneshot::Receiver<NotedEnd>,
    /// Resolves when the node of the record exists, or cannot be made.
    prepared: oneshot::Receiver<()>,
}

/// What is known of a hold while it lasts.
#[derive(Debug)]
struct Recorded {
    path: String,
    /// The node of its records.
    lock: String,
    owner: Owner,
    message: Option<String>,
    token: Option<FencingToken>,
    shared: bool,
    used_as: Option<LockUse>,
    before: Option<Box<ContenderInfo>>,
    hold: Arc<Hold>,
    /// What was known when the recording began.
    begun: Mutex<oneshot::Receiver<HoldReport>>,
    /// What was known when the release was sent last, and when that was, by the clock of the sessions.
    leaving: Mutex<Option<(HoldReport, Duration)>>,
    clock: Clock,
    /// The node of the record, once it exists.
    slot: OnceLock<Slot>,
    ending: Mutex<Ending>,
}

impl Recorder {
    /// Creates the recorder. Sends nothing.
    pub fn new(keeper: &Lockkeeper) -> Self {
        Recorder { keeper: keeper.clone(), message: None, used_as: None, before: None }
    }

    /// Sets the message of the records: why the program holds the lock. More than 240 bytes are cut.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Sets in which way the holds use their locks. Without it, the names of their nodes say it, except for permits and leases.
    #[must_use]
    pub fn used_as(mut self, used_as: LockUse) -> Self {
        self.used_as = Some(used_as);
        self
    }

    /// Names the holder that the program has seen last while it waited. The library itself looks only for a request with a timeout.
    ///
    /// If that holder leaves no record, the history shows it from this one.
    #[must_use]
    pub fn after(mut self, holder: Option<ContenderInfo>) -> Self {
        self.before = holder.map(Box::new);
        self
    }

    /// Records this hold when it ends, however that is: with its release, when its guard is dropped, or after its loss.
    ///
    /// The release never fails because of the record. A record that cannot be written is logged at the level `debug`.
    ///
    /// # Cost
    ///
    /// Two reads in the background, one after the other; for each of the first 16 holds of a lock one create more. The record travels in the transaction of
    /// the release. A hold that ends before the read is answered, and one that is lost, costs three round trips in the background: two reads and a write.
    pub fn record(&self, hold: &Holding) {
        let recording = self.begin(hold);
        let keeper = recording.keeper.clone();
        keeper.sessions().spawn(async move {
            if let Err(error) = recording.written().await {
                tracing::debug!(%error, "a hold is not recorded");
            }
        });
    }

    /// As [`Recorder::record`], for a program that says more about the end of the hold, and waits for the record:
    /// [`Recording::finish`] or [`Recording::finish_within`]. Without that call, a hold that is lost is not recorded.
    pub fn begin(&self, hold: &Holding) -> Recording {
        let keeper = self.keeper.clone();
        // The node of a hold may be beside the lock's path.
        let node = hold.node();
        let (told, begun) = oneshot::channel();
        let name = node.strip_prefix(hold.path()).unwrap_or(&node).trim_start_matches('/').to_owned();
        let mode = NodeFormat::of_node(&name).parse(&name).map(|name| name.mode);
        let shared = mode.is_some_and(|mode| mode.reads() || mode.permits().is_some());
        let recorded = Arc::new(Recorded {
            path: hold.path().to_owned(),
            lock: store::node(hold.path()),
            owner: keeper.owner().clone(),
            message: self.message.clone(),
            token: hold.fencing_token(),
            shared,
            used_as: self.used_as.or_else(|| LockUse::of_node(&name)),
            before: self.before.clone(),
            hold: lockkeeper::hold::state_of(hold),
            begun: Mutex::new(begun),
            leaving: Mutex::default(),
            clock: keeper.sessions().clock(),
            slot: OnceLock::new(),
            ending: Mutex::default(),
        });
        let (ended, end) = oneshot::channel();
        let (ready, prepared) = oneshot::channel();
        let noted = recorded.clone();
        lockkeeper::hold::note_end(
            hold,
            Note { steps: Box::new(move |report| noted.steps(report)), begun: Some(told), ended },
        );
        if let Some(ensemble) = lockkeeper::hold::ensemble_of(hold) {
            let (recorded, beside) = (recorded.clone(), Sequence::of_node(&name).filter(|_| shared));
            keeper.sessions().spawn(async move {
                #[allow(clippy::cast_sign_loss, reason = "only the position on the circle counts")]
                let beside = beside.map(|number| number.get() as u32);
                if let Ok(slot) = store::next_slot(&*ensemble, &recorded.lock, beside).await {
                    _ = recorded.slot.set(slot);
                }
                drop(ready);
            });
        }
        Recording { keeper, recorded, ended: end, prepared }
    }
}

impl Recorded {
    fn steps(&self, report: &HoldReport) -> Vec<TxnStep> {
        self.leaves(report, self.clock.now());
        let slot = self.slot.get();
        slot.map_or_else(Vec::new, |slot| store::steps(&self.lock, slot, self.record(report).to_bytes()))
    }

    /// Notes what is known of its end at this moment.
    fn leaves(&self, report: &HoldReport, at: Duration) {
        *self.leaving.lock().expect("held for a change only") = Some((report.clone(), at));
    }

    /// The record to keep if no server takes it; `None` if nothing is known of the hold.
    fn kept(&self) -> Option<KeptHold> {
        let (leaving, now) = (self.leaving.lock().expect("held for a look only").clone(), self.clock.now());
        let (report, ended_ago) = match leaving {
            Some((report, at)) => (report.clone(), report.ended_ago + now.saturating_sub(at)),
            // No release was sent, because the lock was lost before.
            None => {
                let begun = self.begun.lock().expect("held for a look only").try_recv().ok()?;
                let (began, lost) = self.hold.span();
                let ended = lost.map_or(now, |(_, at)| at);
                let (held, loss) = (ended.saturating_sub(began), lost.map(|(loss, _)| loss));
                (HoldReport { held, loss, ..begun }, now.saturating_sub(ended))
            }
        };
        Some(KeptHold::new(self.path.clone(), self.record(&report), ended_ago))
    }

    fn record(&self, report: &HoldReport) -> StoredHold {
        let Ending { status, reason, paused } = self.ending.lock().expect("held for a change only").clone();
        let asked = report.revocation.as_ref();
        // A hold that was handed over has ended as its owner wanted.
        let loss = report.loss.filter(|loss| *loss != Loss::Transferred);
        let end = match (loss, asked) {
            (Some(_), _) => HoldEnd::Lost,
            (None, Some(_)) => HoldEnd::Revoked,
            (None, None) => HoldEnd::Released,
        };
        let before = self.before.as_ref().or(report.before.as_ref()).map(|before| StoredBefore {
            owner: before.owner.clone(),
            described: before.owner.is_none().then(|| before.described.clone()),
            token: before.token,
            since_ms: since_epoch_ms(before.granted.unwrap_or(before.since)),
        });
        StoredHold {
            owner: self.owner.clone(),
            message: self.message.clone(),
            token: self.token,
            shared: self.shared,
            used_as: self.used_as.map(|used_as| used_as.to_string()),
            waited_ms: millis(report.waited),
            held_ms: millis(report.held),
            granted_ms: report.granted_ms,
            ago_ms: millis(report.ended_ago),
            end,
            loss,
            paused: paused && end == HoldEnd::Lost,
            reason: if end == HoldEnd::Revoked { asked.map(ToString::to_string) } else { reason },
            status,
            before,
            ..StoredHold::default()
        }
    }
}

/// A hold whose record is not written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unrecorded {
    /// Why.
    pub problem: String,
    /// The record, if another attempt may succeed and the end of the hold is known.
    pub kept: Option<KeptHold>,
}

impl Recording {
    /// Says what only the program knows about the end. Call it before the release.
    pub fn tell(&self, ending: Ending) {
        *self.recorded.ending.lock().expect("held for a change only") = ending;
    }

    /// Waits until the hold is recorded. Call it after the release, or after a loss.
    ///
    /// # Cost
    ///
    /// None if the record was written with the release; otherwise three round trips: two reads and a write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the write of a record that was not written with the release.
    ///
    /// # Errors
    ///
    /// A server refuses the record, or no server answers.
    pub async fn finish(self) -> Result<(), AdminError> {
        let keeper = self.keeper.clone();
        keeper.sessions().run_while_answered(self.written()).await
    }

    /// As [`Recording::finish`], for at most this long. If no server takes the record in time, the caller gets it, to keep it until one
    /// does ([`KeptHold::write`]).
    ///
    /// # Cost
    ///
    /// As [`Recording::finish`].
    ///
    /// # Cancel safety
    ///
    /// As [`Recording::finish`].
    ///
    /// # Errors
    ///
    /// The record is not written, as far as is known.
    pub async fn finish_within(self, limit: Duration) -> Result<(), Unrecorded> {
        let recorded = self.recorded.clone();
        match tokio::time::timeout(limit, self.finish()).await {
            Ok(Ok(())) => Ok(()),
            // Another time, the server would say the same.
            Ok(Err(error @ AdminError::Session(SessionError::Refused { .. }))) => {
                Err(Unrecorded { problem: error.to_string(), kept: None })
            }
            Ok(Err(error)) => Err(Unrecorded { problem: error.to_string(), kept: recorded.kept() }),
            Err(_) => Err(Unrecorded { problem: "no server has answered in time".to_owned(), kept: recorded.kept() }),
        }
    }

    async fn written(self) -> Result<(), AdminError> {
        let Recording { keeper, recorded, ended, prepared } = self;
        let Ok(NotedEnd { report, written, at }) = ended.await else { return Ok(()) };
        recorded.leaves(&report, at);
        if written {
            return Ok(());
        }
        // The session of the hold may still be at work for the record.
        _ = prepared.await;
        let ensemble = keeper.sessions().ensemble().await?;
        let data = || {
            let ended_ago = report.ended_ago + keeper.sessions().clock().now().saturating_sub(at);
            recorded.record(&HoldReport { ended_ago, ..report.clone() }).to_bytes()
        };
        // The last transaction of the hold may have been done although its reply was lost.
        let write = linearizable(&*ensemble, store::write(&*ensemble, &recorded.lock, data));
        write.await.map_err(|fault: OpError| lockkeeper::error::refused(&recorded.lock, fault))
    }
}

/// A time in milliseconds since 1970.
fn since_epoch_ms(time: std::time::SystemTime) -> u64 {
    millis(time.duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO))
}
