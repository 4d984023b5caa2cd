//! The lock's node: read it, write it under compare-and-set, delete it when the lock is free.
//!
//! A version alone does not identify a record, because a node that was deleted and created again starts at version 0
//! again. So every delete also writes the parent, and every write checks that the parent is unchanged since before the
//! record was read. The parent is a persistent node, so that its own version never starts again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::admin::{SessionId, TokenEpoch};
use lockkeeper::contest::is_contended_beside;
use lockkeeper::error::{AdminError, IncompatibleFormat, Mismatch, SessionError};
use lockkeeper::{FencingToken, Lockkeeper, NodeFormat};
use lockkeeper_core::leased::Record;
use lockkeeper_core::{Limit, PathRecord};
use lockkeeper_session::ensemble::{
    Children, Done, Ensemble, NodeKind, OpError, Reply, TxnStep, Watcher, above, make_path, zxid_of,
};
use lockkeeper_session::epoch::unreadable as no_epoch;
use lockkeeper_session::{LinkState, Session, Zxid};
use tokio::sync::oneshot;

use crate::protocol::{
    Answer, Refusal, Rules, SeenRecord, ServerClock, ServerNow, Terms, Wish, request_lapses_ms, transition,
};
use crate::trust::Versions;

/// The maximum age of an estimate of the server's time. Clock drift adds at most 300 ms each way to the uncertainty of
/// a round trip.
const CLOCK_AGE: Duration = Duration::from_secs(300);

/// The node's path and how it is kept.
#[derive(Clone, Debug)]
pub(crate) struct LockNode {
    pub(crate) path: String,
    pub(crate) rules: Rules,
    /// Keep the node of a free lock, as Helix does.
    keep: bool,
}

/// A reference to a session, which does not close before this is dropped.
pub(crate) struct SessionRef {
    pub(crate) session: Arc<Session>,
    ensemble: Arc<dyn Ensemble>,
    /// Another client may have written what this session has not seen yet.
    behind: bool,
    /// The ends of the leases that this client may have written for itself, without knowing it.
    written_ms: Vec<i64>,
    time: Arc<KnownTime>,
    _present: oneshot::Sender<()>,
}

/// What the newest session's own writes have shown of the server's time. All leased locks of a handle share it.
#[derive(Default)]
struct KnownTime(Mutex<Option<(SessionId, ServerClock)>>);

impl KnownTime {
    /// The clock as this session knows it.
    fn of(&self, session: &Session) -> Option<ServerClock> {
        let known = *self.0.lock().expect("held for a copy only");
        known.and_then(|(of, clock)| (of == session.id()).then_some(clock))
    }

    fn learn(&self, session: &Session, clock: ServerClock) {
        *self.0.lock().expect("held for a copy only") = Some((session.id(), clock));
    }
}

/// The record as read.
pub(crate) struct Look {
    pub(crate) record: Record,
    /// The epoch of a token for this record, or why it cannot be read.
    epoch: Result<TokenEpoch, String>,
    pub(crate) now: ServerNow,
    clock: ServerClock,
    /// When the record was last written, by the server's clock.
    pub(crate) modified_ms: i64,
    found: FoundRecord,
    /// The number of children of the node.
    children: usize,
    /// Fires at the next change; `None` if the node does not exist, or was written since.
    pub(crate) watcher: Option<Watcher>,
    /// This is the record that this client wrote since the read.
    pub(crate) written: bool,
}

/// The versions that a write must find unchanged.
struct FoundRecord {
    /// `None` if the node does not exist.
    version: Option<i32>,
    /// The transaction that wrote the record.
    zxid: Zxid,
    parent: Parent,
}

struct Parent {
    data: Vec<u8>,
    version: i32,
    children: usize,
}

/// The result of a step.
pub(crate) enum Stepped {
    /// Done, as read or by the write that followed.
    Done { answer: Answer, token: FencingToken, look: Box<Look> },
    /// The wish is refused.
    Refused(Refusal),
    /// To be retried: another client wrote first, or the result of the write is unknown.
    Again {
        /// Whether the write may have been done.
        written: bool,
    },
}

/// The notice that another client gives before it takes a lock that its owner keeps in this session. A hold is trusted for
/// less than the session's timeout after its last heartbeat.
pub(crate) fn notice_ms(session: &Session) -> i64 {
    i64::try_from(session.timeout().as_millis()).unwrap_or(i64::MAX)
}

/// Why a record was not read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// No session, or a refusal.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The node is not a leased lock's.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}

impl From<NodeError> for AdminError {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Session(error) => error.into(),
            NodeError::Mismatch(error) => error.into(),
        }
    }
}

/// Why a look at the lock's node failed.
pub(crate) enum LookError {
    /// Another try may succeed, in a new session if this one is over.
    Passing(OpError),
    /// Another try would fail too.
    Final(NodeError),
}

impl SessionRef {
    /// References the current session, or opens one if it is over.
    pub(crate) async fn take(keeper: &Lockkeeper) -> Result<SessionRef, SessionError> {
        let (session, ensemble) = keeper.sessions().session(None).await?;
        let (present, absent) = oneshot::channel::<()>();
        session.spawn(async move { _ = absent.await });
        let time = keeper.sessions().shared::<KnownTime>();
        Ok(SessionRef { session, ensemble, behind: true, written_ms: Vec::new(), time, _present: present })
    }

    /// The age of the session's oldest request without an answer.
    pub(crate) fn unanswered_for(&self) -> Duration {
        self.ensemble.unanswered_for()
    }

    /// Waits for a reply, but not beyond the session's end.
    async fn reply<T>(&self, reply: impl Future<Output = T>, over: impl FnOnce() -> T) -> T {
        tokio::select! {
            biased;
            reply = reply => reply,
            () = self.over() => over(),
        }
    }

    /// This session may be stale: the next read is preceded by an ordered write.
    pub(crate) fn distrust(&mut self) {
        self.behind = true;
    }

    /// Resolves when the session is over.
    pub(crate) async fn over(&self) {
        let mut link = self.session.link();
        _ = link.wait_for(|link| matches!(link.state, LinkState::Over(_))).await;
    }

    /// The ends of the leases that this client may have written for itself, without knowing it.
    pub(crate) fn written_ms(&self) -> &[i64] {
        &self.written_ms
    }

    /// Prepares for a retry, in a new session if this one is over.
    ///
    /// # Errors
    ///
    /// The failure itself if it is final, [`SessionError::Closed`], or a server's refusal. If the ensemble cannot be
    /// reached, this retries.
    pub(crate) async fn recover(&mut self, keeper: &Lockkeeper, failure: LookError) -> Result<(), NodeError> {
        self.behind = true;
        let fault = match failure {
            LookError::Passing(fault) => fault,
            LookError::Final(error) => return Err(error),
        };
        if fault == OpError::SessionOver {
            self.over().await;
        }
        while matches!(self.session.link().borrow().state, LinkState::Over(_)) {
            match SessionRef::take(keeper).await {
                Ok(session_ref) => {
                    *self = SessionRef { written_ms: std::mem::take(&mut self.written_ms), ..session_ref }
                }
                Err(error @ SessionError::Unreachable { .. }) => tracing::debug!(%error, "trying again"),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl LockNode {
    pub(crate) fn new(path: String, rules: Rules, keep: bool) -> Self {
        LockNode { path, rules, keep }
    }

    fn parent(&self) -> &str {
        above(&self.path)
    }

    /// Reads the record and watches it. One round trip; the first in a session takes two.
    ///
    /// # Errors
    ///
    /// [`LookError`] says whether another try may succeed.
    pub(crate) async fn look(&self, session_ref: &mut SessionRef) -> Result<Look, LookError> {
        let clock = match self.clock(session_ref).await {
            Ok(clock) => clock,
            Err(fault) => return Err(self.look_error(fault)),
        };
        let over = || Err(SessionError::ConnectionLost { path: self.path.clone() });
        let epoch = match session_ref.reply(session_ref.session.epoch(), over).await {
            Ok(epoch) => Ok(epoch),
            Err(SessionError::TokenEpoch { problem, .. }) => Err(problem),
            Err(_) => return Err(LookError::Passing(OpError::SessionOver)),
        };
        let ordered: Reply<()> = match session_ref.behind {
            true => session_ref.ensemble.heartbeat(),
            false => Box::pin(std::future::ready(Ok(()))),
        };
        // Read the parent first: then its version is not newer than the record.
        let parent = session_ref.ensemble.read(self.parent());
        let node = session_ref.ensemble.read_and_watch(&self.path);
        let replies = async { tokio::join!(biased; ordered, parent, node) };
        let over = || (Err(OpError::SessionOver), Err(OpError::SessionOver), Err(OpError::SessionOver));
        let (ordered, parent, node) = session_ref.reply(replies, over).await;
        if let Err(fault) = ordered {
            session_ref.behind = true;
            return Err(self.look_error(fault));
        }
        let parent = match parent {
            Ok(parent) => Parent { data: parent.data, version: parent.version, children: parent.children },
            // The parent can be missing only together with the lock's node; creating the node creates it.
            Err(OpError::NoNode) => Parent { data: Vec::new(), version: 0, children: 0 },
            Err(fault) => return Err(self.look_error(fault)),
        };
        let now = clock.at(session_ref.session.now());
        let look = match node {
            Ok((node, watcher)) => {
                let record = match Record::from_bytes(&node.data) {
                    Ok(record) => record,
                    // The path of a queue. Its contenders are the children, which are checked before the record is
                    // written.
                    Err(_) if PathRecord::limit(&node.data, node.version) != Limit::Foreign => Record::default(),
                    Err(problem) => {
                        return Err(LookError::Final(
                            Mismatch::NotARecord { path: self.path.clone(), problem: problem.to_string() }.into(),
                        ));
                    }
                };
                Look {
                    record,
                    epoch,
                    now,
                    clock,
                    modified_ms: node.mtime_ms,
                    found: FoundRecord { version: Some(node.version), zxid: node.mzxid, parent },
                    children: node.children,
                    watcher: Some(watcher),
                    written: false,
                }
            }
            Err(OpError::NoNode) => Look {
                record: Record::default(),
                epoch,
                now,
                clock,
                modified_ms: 0,
                found: FoundRecord { version: None, zxid: Zxid(0), parent },
                children: 0,
                watcher: None,
                written: false,
            },
            Err(fault) => return Err(self.look_error(fault)),
        };
        session_ref.behind = false;
        Ok(look)
    }

    /// Looks until a server answers, in a new session if this one is over.
    ///
    /// # Errors
    /// As [`SessionRef::recover`].
    pub(crate) async fn look_until_answered(
        &self,
        keeper: &Lockkeeper,
        session_ref: &mut SessionRef,
    ) -> Result<Look, NodeError> {
        loop {
            match self.look(session_ref).await {
                Ok(look) => return Ok(look),
                Err(failure) => session_ref.recover(keeper, failure).await?,
            }
        }
    }

    /// Why the wish would be refused, if it would be.
    pub(crate) fn refusal(&self, look: &Look, me: &Terms, wish: Wish<'_>) -> Option<Refusal> {
        let seen = look.seen();
        transition(seen, me, wish, look.now, &self.rules).err()
    }

    /// Until when the request in the record counts, by the server's clock.
    pub(crate) fn request_lapses_ms(&self, look: &Look, me: &Terms) -> i64 {
        let seen = look.seen();
        request_lapses_ms(seen, me, look.now, &self.rules)
    }

    /// Decides and writes once.
    pub(crate) async fn step(
        &self,
        session_ref: &mut SessionRef,
        look: Look,
        me: &Terms,
        wish: Wish<'_>,
    ) -> Result<Stepped, NodeError> {
        let seen = look.seen();
        let step = match transition(seen, me, wish, look.now, &self.rules) {
            Ok(step) => step,
            Err(refusal) => return Ok(Stepped::Refused(refusal)),
        };
        let epoch = match (&look.epoch, wish) {
            (Ok(epoch), _) => *epoch,
            (Err(problem), wish) if wish.is_for_the_lock() => return Err(no_epoch(problem.clone()).into()),
            // Its token was issued before.
            (Err(_), _) => TokenEpoch::default(),
        };
        let Some(mut record) = step.record else {
            let token = FencingToken::from_zxid(look.found.zxid).in_epoch(epoch);
            return Ok(Stepped::Done { answer: step.answer, token, look: Box::new(look) });
        };
        // A hold that continues keeps its token, whichever client writes the record.
        if let (Some(before), Some(after)) = (&look.record.owner, &mut record.owner)
            && before.id == after.id
            && (before.until_ms == after.until_ms || wish == Wish::Renew)
        {
            after.granted_by = look.record.granted_by(look.found.zxid.0);
        }
        let taken = record.held_until_ms(&me.id).filter(|end| look.record.held_until_ms(&me.id) != Some(*end));
        // Before the write, because this future may be dropped before the reply.
        session_ref.written_ms.extend(taken);
        let put = self.put(session_ref, &look.found, &record).await;
        if taken.is_some() && !matches!(put, Err(OpError::ConnectionLoss | OpError::SessionOver)) {
            session_ref.written_ms.pop();
        }
        match put {
            Ok(zxid) => {
                let (answer, token) = (step.answer, FencingToken::from_zxid(zxid).in_epoch(epoch));
                let look = Look { record, watcher: None, written: true, ..look };
                Ok(Stepped::Done { answer, token, look: Box::new(look) })
            }
            // Another client wrote first; this session has not seen its write.
            Err(OpError::BadVersion | OpError::NoNode | OpError::NodeExists) => {
                session_ref.behind = true;
                Ok(Stepped::Again { written: false })
            }
            Err(fault @ (OpError::ConnectionLoss | OpError::SessionOver)) => {
                session_ref.behind = true;
                tracing::debug!(path = %self.path, %fault, "the result of a write is unknown; reading again");
                Ok(Stepped::Again { written: true })
            }
            Err(fault) => Err(self.refused(&fault)),
        }
    }

    /// Fails if other clients lock the path with children of the node or with nodes beside it, because neither would see the other.
    /// One round trip, and none if there are no other nodes below and beside the node ([`Look::others`]).
    ///
    /// # Errors
    ///
    /// As [`LockNode::look`].
    pub(crate) async fn refuse_incompatible_formats(
        &self,
        session_ref: &mut SessionRef,
        (below, beside): (usize, usize),
    ) -> Result<(), LookError> {
        let ensemble = &session_ref.ensemble;
        let listed = async {
            match below {
                0 => Ok(None),
                _ => ensemble.list(&self.path).await.map(|Children { names, .. }| NodeFormat::of_line(&names)),
            }
        };
        let looks = async { tokio::join!(biased; listed, is_contended_beside(&**ensemble, &self.path, beside)) };
        let over = || (Err(OpError::SessionOver), Err(OpError::SessionOver));
        let (below, beside) = session_ref.reply(looks, over).await;
        let theirs = match (below, beside) {
            (Ok(Some(theirs)), _) => theirs,
            (Ok(None), Ok(true)) => NodeFormat::Numbered,
            (Ok(None), Ok(false)) => return Ok(()),
            (Err(fault), _) | (_, Err(fault)) => return Err(self.look_error(fault)),
        };
        let theirs = IncompatibleFormat::Named(theirs);
        Err(LookError::Final(Mismatch::Format { path: self.path.clone(), theirs }.into()))
    }

    /// Reads and decides until the wish is done or refused, for wishes that do not wait.
    pub(crate) async fn settle(&self, keeper: &Lockkeeper, me: &Terms, wish: Wish<'_>) -> Result<Stepped, NodeError> {
        let mut session_ref = SessionRef::take(keeper).await?;
        loop {
            let look = self.look_until_answered(keeper, &mut session_ref).await?;
            match self.step(&mut session_ref, look, me, wish).await? {
                Stepped::Again { .. } => {}
                settled => return Ok(settled),
            }
        }
    }

    /// Creates, writes or deletes the node if it is unchanged since the read. One round trip; more if the parent is
    /// missing.
    async fn put(&self, session_ref: &SessionRef, found: &FoundRecord, record: &Record) -> Result<Zxid, OpError> {
        let (ensemble, path, parent) = (&session_ref.ensemble, &self.path, self.parent().to_owned());
        let over = || Err(OpError::SessionOver);
        let Some(version) = found.version else {
            if record.is_free() {
                return Ok(found.zxid);
            }
            let create = || ensemble.create(path, record.to_bytes(), NodeKind::Persistent);
            let mut made = session_ref.reply(create(), over).await;
            if made == Err(OpError::NoNode) {
                let parents = make_path(&**ensemble, &parent, NodeKind::Persistent, Vec::new());
                session_ref.reply(parents, || Err(OpError::SessionOver)).await?;
                made = session_ref.reply(create(), over).await;
            }
            return made.map(|(_, zxid)| zxid);
        };
        let (version, parent_version) = (Some(version), Some(found.parent.version));
        let same = TxnStep::Check { path: parent.clone(), version: parent_version };
        let write = TxnStep::Write { path: path.clone(), data: record.to_bytes(), version };
        let zxid = |done: Vec<Done>| zxid_of(&done).unwrap_or(Zxid(0));
        let transact = async |steps| {
            let done = session_ref.reply(ensemble.transact(steps), || Err(OpError::SessionOver.into())).await;
            done.map(zxid).map_err(OpError::from)
        };
        if record.is_free() && !self.keep {
            let mark = TxnStep::Write { path: parent, data: found.parent.data.clone(), version: parent_version };
            let delete = TxnStep::Delete { path: path.clone(), version };
            match transact(vec![mark, delete]).await {
                // Other nodes are below it, or the parent is not writable: the record of a free lock does as well.
                Err(OpError::Refused(reason)) => tracing::debug!(%path, reason, "the node of a free lock is kept"),
                deleted => return deleted,
            }
        }
        transact(vec![same, write]).await
    }

    /// What the session knows of the server's time. If it knows nothing, a temporary node shows it: created, written
    /// and deleted in one round trip, and deleted with the session at the latest.
    async fn clock(&self, session_ref: &mut SessionRef) -> Result<ServerClock, OpError> {
        let session = session_ref.session.clone();
        if let Some(clock) = session_ref.time.of(&session).filter(|clock| clock.age(session.now()) < CLOCK_AGE) {
            return Ok(clock);
        }
        let id = uuid::Uuid::from_u128(session.unique_id());
        let probe = match self.parent() {
            "/" => format!("/lockkeeper-clock-{id}"),
            parent => format!("{parent}/lockkeeper-clock-{id}"),
        };
        let ensemble = session_ref.ensemble.clone();
        let mut parents_made = false;
        loop {
            let sent = session.now();
            let create = ensemble.create(&probe, Vec::new(), NodeKind::Ephemeral);
            let write = ensemble.write(&probe, Vec::new(), None);
            let replies = async { tokio::join!(biased; create, write, ensemble.delete(&probe, None)) };
            let over = || (Err(OpError::SessionOver), Err(OpError::SessionOver), Err(OpError::SessionOver));
            let (created, written, mut deleted) = session_ref.reply(replies, over).await;
            let heard = session.now();
            while deleted == Err(OpError::ConnectionLoss) {
                deleted = session_ref.reply(ensemble.delete(&probe, None), || Err(OpError::SessionOver)).await;
            }
            match (created, written) {
                (_, Ok(written)) => {
                    let clock = ServerClock::stamped(sent, heard, written.mtime_ms);
                    session_ref.time.learn(&session, clock);
                    return Ok(clock);
                }
                (Err(OpError::NoNode), _) if !parents_made => {
                    parents_made = true;
                    let parents = make_path(&*ensemble, self.parent(), NodeKind::Persistent, Vec::new());
                    session_ref.reply(parents, || Err(OpError::SessionOver)).await?;
                }
                (Err(fault), _) | (Ok(_), Err(fault)) => return Err(fault),
            }
        }
    }

    /// Classifies an operation's error: it may pass, or it is final.
    fn look_error(&self, fault: OpError) -> LookError {
        match fault {
            OpError::ConnectionLoss | OpError::SessionOver | OpError::NoNode => LookError::Passing(fault),
            fault => LookError::Final(self.refused(&fault)),
        }
    }

    fn refused(&self, fault: &OpError) -> NodeError {
        SessionError::Refused { path: self.path.clone(), reason: fault.to_string() }.into()
    }
}

impl Look {
    /// The numbers of nodes below the node, and beside it.
    pub(crate) fn others(&self) -> (usize, usize) {
        (self.children, self.found.parent.children.saturating_sub(usize::from(self.found.version.is_some())))
    }

    /// The versions that identify this record; unknown if it was written since.
    pub(super) fn versions(&self) -> Option<Versions> {
        let record = self.found.version.filter(|_| !self.written)?;
        Some(Versions { record, parent: self.found.parent.version })
    }

    /// What the protocol decides by.
    pub(crate) fn seen(&self) -> SeenRecord<'_> {
        SeenRecord { record: &self.record, modified_ms: self.modified_ms }
    }

    /// The time on the session's clock until which the server's clock shows at most `ms`.
    pub(crate) fn safe_until(&self, ms: i64) -> Duration {
        self.clock.safe_until(ms)
    }

    /// How long until the server's clock certainly shows `ms`; zero if it does already.
    pub(crate) fn until(&self, ms: i64) -> Duration {
        Duration::from_millis(u64::try_from(ms.saturating_sub(self.now.earliest_ms)).unwrap_or(0))
    }
}
