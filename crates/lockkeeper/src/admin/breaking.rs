//! Breaking a lock: a person deletes the node of a contender and gives a reason.
//!
//! Use it for a holder that hangs, or whose machine is unreachable while its session lives on. The deletion and its
//! record are one transaction: there is no break without a record and no record without a break. The removed client
//! sees `Loss::Removed` or `AcquireError::Evicted`. What it does at that moment is not undone; the next holder's token
//! fences it if the resource checks tokens.

use std::time::SystemTime;

use lockkeeper_core::HOLDER_MARKER;
use lockkeeper_core::leased::Record;
use lockkeeper_session::ensemble::{Ensemble, NodeKind, OpError, Proof, TxnStep, above};
use lockkeeper_session::records::make;
use lockkeeper_session::text::as_millis_since_1970;
use tracing::warn;

use super::{Admin, LockInfo, lease, read};
use crate::broken::Broken;
use crate::contender::ContenderInfo;
use crate::error::{AdminError, SessionError, refused};
use crate::journal;
use crate::keeper::Lockkeeper;

/// How often a break is retried after a change between the read and the deletion, or after a lost connection.
const MAX_ATTEMPTS: usize = 10;

impl Admin {
    /// Breaks the lock at `path`: deletes the node of its holder.
    ///
    /// The holder learns that it lost the lock by a message from its server, and the next waiter is granted the lock without waiting for
    /// that. So the holder may continue to work until the message has arrived and it checks its guard. A hold whose request
    /// is younger than 100 ms may not watch its node yet: until then, its checks say that the lock is held, except
    /// [`Holding::verify`](crate::Holding::verify). `reason` is recorded with the client that broke the lock, the removed contender and the time ([`Admin::broken`]), and logged
    /// with the target `lockkeeper::audit`. It has at most 1024 bytes.
    ///
    /// # Cost
    ///
    /// That of [`Admin::show`] and five round trips; for a lock with classes, three more, of which one is a write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the break either done or not done; in both cases the break and its record go
    /// together.
    ///
    /// # Errors
    ///
    /// - [`AdminError::Misuse`] if the reason is empty or has more than 1024 bytes.
    /// - [`AdminError::NobodyHolds`] if the lock is free, [`AdminError::NoSuchLock`] if its node does not exist.
    /// - [`AdminError::NotContending`] if the holder released the lock before its node could be deleted. Its successor is spared.
    /// - [`AdminError::SeveralHold`] if the lock is shared: choose one holder and call [`Admin::evict`].
    /// - [`SessionError::Refused`] if the ACL does not let this client delete the node.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let broken = keeper.admin().break_lock("/locks/nightly", "its host is gone").await?;
    /// println!("{:?} was removed; the resource must reject tokens up to {:?}", broken.described, broken.token);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn break_lock(&self, path: impl AsRef<str>, reason: &str) -> Result<Broken, AdminError> {
        let path = path.as_ref();
        self.remove(path, None, reason).await
    }

    /// Removes one contender, a holder or a waiter, from the lock at `path`, or a node without a session
    /// ([`LockInfo::sessionless`]). It removes exactly the one that [`Admin::show`] returned, not a later one.
    ///
    /// A waiter's call fails with [`AcquireError::Evicted`](crate::error::AcquireError::Evicted). Reason, record, cost
    /// and cancel safety are those of [`Admin::break_lock`].
    ///
    /// # Errors
    ///
    /// [`AdminError::NotContending`] if the node does not exist any more or is not a contender's; otherwise as
    /// [`Admin::break_lock`].
    pub async fn evict(
        &self,
        path: impl AsRef<str>,
        contender: &ContenderInfo,
        reason: &str,
    ) -> Result<Broken, AdminError> {
        let path = path.as_ref();
        self.remove(path, Some(contender.clone()), reason).await
    }

    /// Returns the contenders that [`Admin::break_lock`] and [`Admin::evict`] removed from locks at and below `root`,
    /// the oldest first. `root` may be `/`. The ensemble keeps the last 224 to 256 of them.
    ///
    /// # Cost
    ///
    /// An ordered write and a listing in one round trip, then one read for each entry of the journal; on a server of this
    /// machine two.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the read or cannot be reached.
    pub async fn broken(&self, root: impl AsRef<str>) -> Result<Vec<Broken>, AdminError> {
        journal::entries_below(&self.keeper, root.as_ref()).await
    }

    async fn remove(&self, path: &str, whom: Option<ContenderInfo>, reason: &str) -> Result<Broken, AdminError> {
        let path = self.path(path)?;
        let reason = crate::error::misuse::check_reason(&path, reason)?;
        let keeper = self.keeper.clone();
        self.keeper.sessions().run_while_answered(async move { remove(&keeper, &path, whom, &reason).await }).await
    }
}

/// Removes this contender, or the only holder, and returns once its record exists.
async fn remove(
    keeper: &Lockkeeper,
    path: &str,
    mut whom: Option<ContenderInfo>,
    reason: &str,
) -> Result<Broken, AdminError> {
    let id = uuid::Uuid::from_u128(keeper.sessions().clock().unique_id());
    let mut sent = false;
    for _ in 0..MAX_ATTEMPTS {
        let (session, ensemble) = keeper.sessions().session(None).await?;
        let ensemble = &*ensemble;
        // The journal shows what happened, whatever happened to the reply.
        if sent {
            match journal::find::<Broken>(ensemble, id).await {
                Ok(Some(broken)) => {
                    journal::prune(ensemble).await;
                    warn!(
                        target: "lockkeeper::audit",
                        %path, node = %broken.node, held = broken.held, removed = %broken.described, token = ?broken.token,
                        by = format!("{}{}", broken.by, broken.proof), %reason, "lock broken"
                    );
                    return Ok(broken);
                }
                Ok(_) => sent = false,
                Err(OpError::ConnectionLoss | OpError::SessionOver) => continue,
                Err(fault) => return Err(refused(path, fault)),
            }
        }
        let lock = read::lock(ensemble, path).await.map_err(|fault| refused(path, fault))?;
        let (contender, held) = choose(lock, whom.as_ref())?;
        let removal = removal(ensemble, path, &contender, held).await?;
        // The reason is about this contender, not about a later holder.
        whom = Some(contender.clone());
        let epoch = session.epoch().await?;
        let broken = Broken {
            path: path.to_owned(),
            node: contender.node.clone(),
            held,
            owner: contender.owner,
            described: contender.described,
            message: contender.message,
            since_ms: as_millis_since_1970(contender.since),
            session: contender.session,
            token: contender.token.map(|token| token.in_epoch(epoch)),
            by: keeper.owner().clone(),
            proof: Proof::default(),
            reason: reason.to_owned(),
            at: SystemTime::UNIX_EPOCH,
        };
        let steps = [vec![journal::step(id, &broken)], removal].concat();
        match ensemble.transact(steps).await.map_err(OpError::from) {
            Ok(_) | Err(OpError::ConnectionLoss | OpError::SessionOver | OpError::NodeExists) => sent = true,
            // The node was deleted, which the next read shows; or the journal does not exist yet.
            Err(OpError::NoNode) => match make(ensemble, journal::ROOT, NodeKind::Shared).await {
                Ok(()) | Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
                Err(fault) => return Err(refused(journal::ROOT, fault)),
            },
            // Another client wrote to the node since the read.
            Err(OpError::BadVersion) => {}
            Err(fault) => return Err(refused(path, fault)),
        }
    }
    Err(SessionError::ConnectionLost { path: path.to_owned() }.into())
}

/// The steps that remove a contender, if it is still the one that was chosen.
async fn removal(
    ensemble: &dyn Ensemble,
    path: &str,
    contender: &ContenderInfo,
    held: bool,
) -> Result<Vec<TxnStep>, AdminError> {
    let gone = || AdminError::NotContending { path: path.to_owned(), node: contender.node.clone() };
    let read = async |node: &str| match ensemble.read(node).await {
        Err(OpError::NoNode) => Err(gone()),
        read => read.map_err(|fault| refused(path, fault)),
    };
    let at = contender.node_path(path);
    if contender.is_leased() {
        // Read the parent first: then its version is not newer than the record.
        let parent = read(above(path)).await?;
        let seen = read(&at).await?;
        let owned = |record: &Record| record.owner.as_ref().is_some_and(|owner| owner.id == contender.described);
        let mut record = lease::read(&seen).filter(owned).ok_or_else(gone)?;
        record.owner = None;
        // Keep the node, because Helix clients that share it must not find it created again. The next release deletes it.
        return Ok(lease::rewrite(path, &record, seen.version, parent.version).into());
    }
    let seen = read(&at).await?;
    if !is_the_same(&ContenderInfo::read(contender.node.clone(), &seen), contender) {
        return Err(gone());
    }
    let mut steps = vec![TxnStep::Delete { path: at, version: Some(seen.version) }];
    // A holder of this library deletes its marker itself when its node is deleted; a foreign client may not notice before its session
    // ends.
    if held && let Some(version) = marker_of(ensemble, path, contender).await.map_err(|fault| refused(path, fault))? {
        steps.push(TxnStep::Delete { path: format!("{path}/{HOLDER_MARKER}"), version: Some(version) });
    }
    Ok(steps)
}

/// The version of the holder marker's data, if it is the marker of this contender.
///
/// A holder that makes way deletes its marker and keeps its node, so the next marker may be that of another hold. A new marker has version
/// 0, so the marker is written before: no later one has the version that is returned, unless that one is to be broken too.
async fn marker_of(ensemble: &dyn Ensemble, path: &str, holder: &ContenderInfo) -> Result<Option<i32>, OpError> {
    let marker = format!("{path}/{HOLDER_MARKER}");
    loop {
        let seen = match ensemble.read(&marker).await {
            Ok(seen) if ContenderInfo::read(HOLDER_MARKER.to_owned(), &seen).marks(holder) => seen,
            Ok(_) | Err(OpError::NoNode) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        if seen.version > 0 {
            return Ok(Some(seen.version));
        }
        match ensemble.write(&marker, seen.data, Some(seen.version)).await {
            // Another client may have deleted it or written to it: the next read shows that.
            Ok(_) | Err(OpError::NoNode | OpError::BadVersion) => {}
            // To delete it takes another right than to write to it.
            Err(OpError::Refused(_)) => return Ok(Some(seen.version)),
            Err(fault) => return Err(fault),
        }
    }
}

/// The contender of a lock that is meant, and whether it holds.
fn choose(mut lock: LockInfo, whom: Option<&ContenderInfo>) -> Result<(ContenderInfo, bool), AdminError> {
    let path = lock.path;
    let Some(wanted) = whom else {
        return match lock.holders.len() {
            0 => Err(AdminError::NobodyHolds { path }),
            1 => Ok((lock.holders.remove(0), true)),
            _ => Err(AdminError::SeveralHold { path, holders: lock.holders }),
        };
    };
    let holders = lock.holders.into_iter().map(|holder| (holder, true));
    let others = lock.waiters.into_iter().chain(lock.sessionless).map(|other| (other, false));
    let found = holders.chain(others).find(|(contender, _)| is_the_same(contender, wanted));
    found.ok_or_else(|| AdminError::NotContending { path, node: wanted.node.clone() })
}

/// Names without an id are used again once the parent was created again; the transaction that created the node distinguishes two
/// contenders of one name. A lease belongs to its owner, however often the record is written.
fn is_the_same(one: &ContenderInfo, other: &ContenderInfo) -> bool {
    if one.is_leased() {
        return other.is_leased() && one.described == other.described;
    }
    (&one.node, one.czxid) == (&other.node, other.czxid)
}
