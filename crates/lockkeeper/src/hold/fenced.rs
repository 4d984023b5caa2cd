//! Writes that take effect only while a lock is held, as the ensemble decides.
//!
//! The data is in the same ensemble as the lock. So one transaction can check that the nodes of the hold still exist,
//! and change the data. Nothing that a paused, disconnected or expired holder sends later passes that check. Invariant:
//! a transaction is sent once, in the session that created it. The result of a lost one is never guessed.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_all};
use lockkeeper_core::{LockPath, Loss};
use lockkeeper_session::ensemble::{Done, Ensemble, NodeKind, OpError, TxnError, TxnStep, above};
use tokio::sync::oneshot;

use crate::error::WriteError;
use crate::hold::Hold;
use crate::hold::holding::Holding;

/// The maximum size of one write: what a server accepts in one frame unless `jute.maxbuffer` differs, minus the
/// encoding around the data.
const MAX_BYTES: usize = 1024 * 1024 - 16 * 1024;

/// The encoded size of a step without its path and data: lengths, version, access list.
const STEP_BYTES: usize = 96;

/// A request to change nodes in one transaction if the lock is still held: all changes or none. Await it.
///
/// Created by [`Holding::fenced_write`] and [`MultiGuard::fenced_write`](crate::MultiGuard::fenced_write). Paths are
/// those of the handle: the chroot is prepended as it is to the lock's path. Without changes, it only checks at the
/// ensemble whether the lock is held.
///
/// While the connection is lost, the future waits, but no longer than the hold can be trusted ([`Holding::valid_for`]).
///
/// # Cost
///
/// One round trip and one write for the ensemble. A leased lock needs a second round trip if its record was written
/// just before.
///
/// # Cancel safety
///
/// Dropping the future does not cancel the write: it may take effect or not. A [`Holding::release`] that follows is
/// ordered behind it, so nothing is written after a release was confirmed, or after the lock was granted to another
/// contender, of this process or another one.
///
/// # Errors
///
/// [`WriteError`].
#[derive(Debug)]
#[must_use = "nothing is written before it is awaited"]
pub struct FencedWrite<'a> {
    holdings: Vec<&'a Holding>,
    steps: Vec<TxnStep>,
    /// The first invalid argument.
    mistake: Option<WriteError>,
}

/// The result of a fenced write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedWritten {
    versions: Vec<(String, i32)>,
    /// When the data was replaced, by the servers' clock.
    stamp_ms: Option<i64>,
}

impl FencedWritten {
    /// Returns the version of the data of a node that was set or created. A later [`FencedWrite::set_if`] can check it.
    pub fn version(&self, path: impl AsRef<str>) -> Option<i32> {
        let path = path.as_ref();
        self.versions.iter().rfind(|(written, _)| written == path).map(|(_, version)| *version)
    }

    /// Returns when data was replaced, in milliseconds since 1970 by the servers' clock; `None` if the write replaced no data.
    pub fn stamp_ms(&self) -> Option<i64> {
        self.stamp_ms
    }
}

impl Holding {
    /// Returns a builder for changes of nodes in the same ensemble. They take effect in one transaction, and only if
    /// this hold still exists at that moment. The ensemble's own order of events decides that, even if this process is
    /// paused for an hour before it sends the changes.
    ///
    /// ```no_run
    /// # async fn example(guard: lockkeeper::Guard) -> Result<(), Box<dyn std::error::Error>> {
    /// use lockkeeper::error::WriteError;
    ///
    /// match guard.fenced_write().set("/index/current", "2026-11").delete("/index/next").await {
    ///     Ok(written) => println!("now in version {:?}", written.version("/index/current")),
    ///     Err(WriteError::Lost { loss, .. }) => println!("nothing was written: {loss}"),
    ///     Err(WriteError::Unknown { .. }) => println!("read the nodes to know"),
    ///     Err(other) => return Err(other.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cost
    ///
    /// One round trip. [`FencedWrite`](crate::guard::FencedWrite) describes what dropping the future leaves behind, and
    /// [`WriteError`](crate::error::WriteError) the errors.
    ///
    /// Some node names carry no id: those of the node format `Recipe`, the holder marker of a lock with classes, and a
    /// leased lock's record. For these, a node that was deleted by hand and created again under the same name counts as
    /// this hold's.
    pub fn fenced_write(&self) -> FencedWrite<'_> {
        FencedWrite::new(vec![self])
    }
}

impl<'a> FencedWrite<'a> {
    pub(crate) fn new(holdings: Vec<&'a Holding>) -> Self {
        FencedWrite { holdings, steps: Vec::new(), mistake: None }
    }

    /// Replaces the data of a node.
    pub fn set(self, path: impl AsRef<str>, data: impl Into<Vec<u8>>) -> Self {
        let path = path.as_ref();
        let data = data.into();
        self.step(path, |path| TxnStep::Write { path, data, version: None })
    }

    /// Replaces the data of a node if it has this version.
    pub fn set_if(self, path: impl AsRef<str>, data: impl Into<Vec<u8>>, version: i32) -> Self {
        let path = path.as_ref();
        let data = data.into();
        self.step(path, |path| TxnStep::Write { path, data, version: Some(version) })
    }

    /// Creates a persistent node. Its parent must exist.
    pub fn create(self, path: impl AsRef<str>, data: impl Into<Vec<u8>>) -> Self {
        let path = path.as_ref();
        let data = data.into();
        self.step(path, |path| TxnStep::Create { path, data, kind: NodeKind::Persistent })
    }

    /// Deletes a node, which must have no children.
    pub fn delete(self, path: impl AsRef<str>) -> Self {
        let path = path.as_ref();
        self.step(path, |path| TxnStep::Delete { path, version: None })
    }

    /// Deletes a node if its data has this version.
    pub fn delete_if(self, path: impl AsRef<str>, version: i32) -> Self {
        let path = path.as_ref();
        self.step(path, |path| TxnStep::Delete { path, version: Some(version) })
    }

    /// Changes nothing, but makes all changes depend on this node's data having this version.
    pub fn check(self, path: impl AsRef<str>, version: i32) -> Self {
        let path = path.as_ref();
        self.step(path, |path| TxnStep::Check { path, version: Some(version) })
    }

    fn step(mut self, path: &str, step: impl FnOnce(String) -> TxnStep) -> Self {
        match LockPath::parse_node(path) {
            Ok(path) => self.steps.push(step(path.to_string())),
            Err(problem) => self.mistake = self.mistake.or(Some(problem.into())),
        }
        self
    }

    /// Makes the changes and blocks this thread until they are done, for programs without async.
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn wait(self) -> Result<FencedWritten, WriteError> {
        let session = self.holdings.first().expect("a guard has a hold").session();
        session.block_on(self.into_future())
    }

    /// Checks everything that can be checked before anything is sent.
    fn checked(self) -> Result<(Vec<Arc<Hold>>, Vec<TxnStep>), WriteError> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        if let Some(copy) = self.holdings.iter().find(|holding| holding.loss() == Some(Loss::Forked)) {
            return Err(WriteError::Lost { path: copy.path().to_owned(), loss: Loss::Forked });
        }
        let bytes = self.steps.iter().map(size).sum();
        if bytes > MAX_BYTES {
            return Err(WriteError::TooLarge { bytes, max: MAX_BYTES });
        }
        Ok((self.holdings.iter().map(|holding| holding.hold().clone()).collect(), self.steps))
    }
}

impl<'a> IntoFuture for FencedWrite<'a> {
    type Output = Result<FencedWritten, WriteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let (holds, steps) = match self.checked() {
            Ok(checked) => checked,
            Err(mistake) => return std::future::ready(Err(mistake)).boxed(),
        };
        let session = holds.first().expect("a guard has a hold").session();
        let (caller, outcome) = oneshot::channel();
        let path = holds[0].path.clone();
        // From now on, no contender may follow these holds before the delete of their nodes.
        holds.iter().for_each(|hold| hold.write_begins());
        // Runs to its end on the library's thread, whether the caller listens or not. The session does not close
        // before.
        session.spawn(async move {
            let wrote = write(&holds, &steps).await;
            holds.iter().for_each(|hold| hold.write_ends(&wrote));
            _ = caller.send(wrote);
        });
        async move { outcome.await.unwrap_or(Err(WriteError::Unknown { path })) }.boxed()
    }
}

fn size(step: &TxnStep) -> usize {
    let data = match step {
        TxnStep::Create { data, .. } | TxnStep::Write { data, .. } => data.len(),
        TxnStep::Check { .. } | TxnStep::Delete { .. } => 0,
    };
    step.path().len() + data + STEP_BYTES
}

/// What a write depends on: the nodes of each hold, or its record and the record's parent.
struct Bonds {
    checks: Vec<TxnStep>,
    /// For each check, the index of its hold.
    of: Vec<usize>,
}

/// Writes if everything is held.
async fn write(holds: &[Arc<Hold>], steps: &[TxnStep]) -> Result<FencedWritten, WriteError> {
    let mut doubted = false;
    loop {
        if let Some(lost) = holds.iter().find(|hold| hold.judge()) {
            return Err(gone(lost));
        }
        let session = holds[0].session();
        let Some(ensemble) = session.ensemble() else { return Err(over(&holds[0])) };
        // Reading a record may take time, but only while everything is held.
        let bonds = tokio::select! {
            biased;
            bonds = bind(&*ensemble, holds, doubted) => bonds?,
            lost = lost(holds) => return Err(gone(lost)),
        };
        let Some(Bonds { checks, of }) = bonds else { continue };
        let mut transaction = ensemble.transact(checks.iter().chain(steps).cloned().collect());
        let (sent, trusted) = (session.now(), trusted_until(holds));
        let done = tokio::select! {
            biased;
            done = &mut transaction => done,
            // The write may still be on its way. If it arrives, the ensemble judges it. Wait for the reply only if the
            // session lives, as far as it is known: then the reply comes right behind the event.
            lost = lost(holds) => {
                let unknown = WriteError::Unknown { path: lost.path.clone() };
                if lost.loss() != Some(Loss::Removed) {
                    return Err(unknown);
                }
                let left = trusted.saturating_sub(session.now());
                tokio::time::timeout(left, transaction).await.map_err(|_| unknown)?
            }
        };
        let TxnError { step, fault } = match done {
            Ok(done) => {
                session.confirmed(sent);
                return Ok(written(steps, &done[checks.len()..]));
            }
            Err(undone) => undone,
        };
        match step {
            Some(at) if at < checks.len() => {
                let hold = &holds[of[at]];
                if hold.record().is_none() {
                    // Its node is deleted, so this hold can no longer write, whatever the cause.
                    hold.lose(Loss::Removed);
                    return Err(gone(hold));
                }
                doubted = true;
            }
            Some(at) => return Err(refused(&steps[at - checks.len()], fault)),
            None => {
                return Err(match fault {
                    OpError::SessionOver => over(&holds[0]),
                    OpError::ConnectionLoss => WriteError::Unknown { path: holds[0].path.clone() },
                    fault => WriteError::Refused { path: holds[0].path.clone(), reason: fault.to_string() },
                });
            }
        }
    }
}

/// Until when all of them can be trusted without another heartbeat, on the session's clock.
fn trusted_until(holds: &[Arc<Hold>]) -> Duration {
    holds.iter().map(|hold| hold.trust().until()).min().unwrap_or(Duration::ZERO)
}

/// What the holds depend on now; `None` if that changed while it was read.
async fn bind(ensemble: &dyn Ensemble, holds: &[Arc<Hold>], doubted: bool) -> Result<Option<Bonds>, WriteError> {
    let mut bonds = Bonds { checks: Vec::new(), of: Vec::new() };
    for (at, hold) in holds.iter().enumerate() {
        let checks = match hold.record() {
            None => hold.nodes().into_iter().map(|path| TxnStep::Check { path, version: None }).collect(),
            Some(record) => match record.checks(ensemble, doubted).await.map_err(|fault| unread(hold, fault))? {
                Some(checks) => checks,
                None => return Ok(None),
            },
        };
        bonds.of.extend(std::iter::repeat_n(at, checks.len()));
        bonds.checks.extend(checks);
    }
    Ok(Some(bonds))
}

/// The record could not be read. Nothing was written yet.
fn unread(hold: &Hold, fault: OpError) -> WriteError {
    match fault {
        OpError::SessionOver | OpError::ConnectionLoss => over(hold),
        fault => WriteError::Refused { path: hold.path.clone(), reason: fault.to_string() },
    }
}

/// The first lost hold.
async fn lost(holds: &[Arc<Hold>]) -> &Arc<Hold> {
    let (_, at, _) = select_all(holds.iter().map(|hold| hold.lost.cancelled().boxed())).await;
    &holds[at]
}

fn gone(hold: &Hold) -> WriteError {
    WriteError::Lost { path: hold.path.clone(), loss: hold.loss().unwrap_or(Loss::Removed) }
}

/// The session has ended or is ending. A hold that is a node of it ends too, but a record does not.
fn over(hold: &Hold) -> WriteError {
    let path = hold.path.clone();
    match hold.record() {
        None => WriteError::Lost { path, loss: hold.loss().unwrap_or(Loss::SessionExpired) },
        Some(_) => WriteError::NotSent { path },
    }
}

/// The result, from the steps that leave data.
fn written(steps: &[TxnStep], done: &[Done]) -> FencedWritten {
    let version = |done: &Done| match done {
        Done::Created(_) => Some(0),
        Done::Written(written) => Some(written.version),
        Done::Checked | Done::Deleted => None,
    };
    let versions = steps.iter().zip(done).filter_map(|(step, done)| Some((step.path().to_owned(), version(done)?)));
    FencedWritten {
        versions: versions.collect(),
        stamp_ms: done.iter().find_map(|done| match done {
            Done::Written(written) => Some(written.mtime_ms),
            _ => None,
        }),
    }
}

/// Why a step of the caller could not be done.
fn refused(step: &TxnStep, fault: OpError) -> WriteError {
    let path = step.path().to_owned();
    match (fault, step) {
        (OpError::NoNode, TxnStep::Create { path, .. }) => WriteError::NoNode { path: above(path).to_owned() },
        (OpError::NoNode, _) => WriteError::NoNode { path },
        (OpError::NodeExists, _) => WriteError::NodeExists { path },
        (
            OpError::BadVersion,
            TxnStep::Check { version: Some(expected), .. }
            | TxnStep::Write { version: Some(expected), .. }
            | TxnStep::Delete { version: Some(expected), .. },
        ) => WriteError::BadVersion { path, expected: *expected },
        (fault, _) => WriteError::Refused { path, reason: fault.to_string() },
    }
}
