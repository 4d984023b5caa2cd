//! Requests to release a lock: the holder sees the requestor and its reason, and releases the lock or refuses.
//!
//! Nothing is taken by force. A foreign holder gets the request in the form that it understands. That is a word in
//! place of its data, as in ZooKeeper's recipe "Revocable Shared Locks" and Curator's `Revoker`. The data of this
//! library's nodes is extended, not replaced, so that the request does not erase the owner.

use std::time::Duration;

use lockkeeper_core::leased::Record;
use lockkeeper_core::{AttemptId, ForeignSemaphore, MAX_MESSAGE_BYTES, NodeData, NodeFormat, Revocation, Zxid};
use lockkeeper_session::ensemble::{Ensemble, Node, OpError, Proof, TxnStep, above, linearizable};
use lockkeeper_session::text::unix_epoch;
use lockkeeper_session::wait::passed;

use super::{Admin, lease};
use crate::broken::Revoked;
use crate::contender::ContenderInfo;
use crate::error::{AdminError, Misuse, SessionError, refused};
use crate::journal;

/// How often a node is read again because another client wrote it meanwhile, before the request fails.
const MAX_ATTEMPTS: usize = 16;

/// The answer of a holder to a request to release the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RevokeAnswer {
    /// Its node is deleted: it released the lock, or its session ended.
    Released,
    /// It refuses, for this reason.
    Refused(String),
    /// No answer within the time.
    None,
}

/// A request to release the lock that was sent to one contender. Returned by [`Admin::revoke`].
///
/// Dropping it does not withdraw the request.
#[derive(Clone, Debug)]
pub struct Asked {
    admin: Admin,
    path: String,
    contender: ContenderInfo,
    had_ended: bool,
    /// The node that was asked, if it still existed.
    czxid: Option<Zxid>,
}

impl Asked {
    /// Returns the contender that was asked, with this request as its revocation if its node has room for one.
    pub fn contender(&self) -> &ContenderInfo {
        &self.contender
    }

    /// Returns whether its process had ended on this machine before the request was sent, so that nobody could obey it. As
    /// [`ContenderInfo::process_has_ended`], but at that moment: a holder that obeys may end right after.
    pub const fn process_had_ended(&self) -> bool {
        self.had_ended
    }

    /// Waits for the answer, for at most `timeout`, also while no server answers. May be called again. A `timeout` of zero leaves no
    /// time for a round trip.
    ///
    /// # Cost
    ///
    /// A watch, no polling; one ordered write and one read for each change of the node.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The connection is lost, or the server refuses the read.
    pub async fn answer(&self, timeout: Duration) -> Result<RevokeAnswer, AdminError> {
        let Some(czxid) = self.czxid else { return Ok(RevokeAnswer::Released) };
        let (path, contender) = (self.path.clone(), self.contender.clone());
        let deadline = self.admin.keeper().sessions().clock().instant().checked_add(timeout);
        let (keeper, sessions) = (self.admin.keeper(), self.admin.keeper().sessions().clone());
        let answer = async move {
            let (_session, ensemble) = sessions.session(None).await?;
            let at = contender.node_path(&path);
            loop {
                // This session may differ from the one that sent the request, at a server that does not have the
                // node yet.
                let (node, changed) = match linearizable(&*ensemble, ensemble.read_and_watch(&at)).await {
                    Ok(read) => read,
                    Err(OpError::NoNode) => return Ok(RevokeAnswer::Released),
                    Err(fault) => return Err(refused(&path, fault)),
                };
                if node.czxid != czxid {
                    return Ok(RevokeAnswer::Released);
                }
                let record = match contender.is_leased() {
                    true => match owner_of(&node, &contender.described) {
                        Some(revocation) => revocation,
                        None => return Ok(RevokeAnswer::Released),
                    },
                    false => NodeData::read(&node.data).record().and_then(|record| record.revocation.clone()),
                };
                if let Some(why) = record.and_then(|revocation| revocation.refused) {
                    return Ok(RevokeAnswer::Refused(why));
                }
                _ = changed.await;
            }
        };
        keeper
            .sessions()
            .run_while_answered(async move {
                tokio::select! {
                    biased;
                    answer = answer => answer,
                    // Also while the session's server is silent, or another one is searched for.
                    () = passed(deadline) => Ok(RevokeAnswer::None),
                }
            })
            .await
    }
}

impl Admin {
    /// Asks all holders of the lock at `path` to release it, and returns them; an empty list if the lock is free. A
    /// later request replaces a pending one, and the holder is notified again.
    ///
    /// # Cost
    ///
    /// That of [`Admin::show`], and a read and a write for each holder. The same transaction writes a record of the request,
    /// [`Admin::revoked`], if this client may; the journal of these records is listed once more to keep it small.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave some of the holders asked.
    ///
    /// # Errors
    ///
    /// [`AdminError::NoSuchLock`] if the path has no node. [`AdminError::CannotAsk`] if a foreign client does not understand such
    /// requests, or if the node format is [`LeaderLatch`](crate::NodeFormat::LeaderLatch). [`SessionError::Refused`] if an ACL forbids the write; for a
    /// foreign client also that of the record, because the request takes the place of what its node says. [`AdminError::Misuse`] if the reason has more than 4096
    /// bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use lockkeeper::admin::RevokeAnswer;
    ///
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// for asked in keeper.admin().revoke("/locks/nightly", Some("deploying")).await? {
    ///     match asked.answer(Duration::from_secs(30)).await? {
    ///         RevokeAnswer::Released => println!("{} has released", asked.contender()),
    ///         answer => println!("{}: {answer:?}", asked.contender()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn revoke(&self, path: impl AsRef<str>, reason: Option<&str>) -> Result<Vec<Asked>, AdminError> {
        let path = path.as_ref();
        let holders = self.show(path).await?.holders;
        let mut asked = Vec::with_capacity(holders.len());
        for holder in holders {
            asked.push(self.ask(path, holder, reason).await?);
        }
        Ok(asked)
    }

    /// Asks one contender, given by its node's name: a holder to release the lock, a waiter to withdraw. Otherwise as
    /// [`Admin::revoke`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the contender asked or not asked.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotContending`] if there is no such contender; otherwise as [`Admin::revoke`].
    pub async fn revoke_node(
        &self,
        path: impl AsRef<str>,
        node: &str,
        reason: Option<&str>,
    ) -> Result<Asked, AdminError> {
        let path = path.as_ref();
        let info = self.show(path).await?;
        let contender = info.holders.into_iter().chain(info.waiters).find(|contender| contender.node == node);
        match contender {
            Some(contender) => self.ask(path, contender, reason).await,
            None => Err(AdminError::NotContending { path: path.to_owned(), node: node.to_owned() }),
        }
    }

    async fn ask(&self, path: &str, mut contender: ContenderInfo, reason: Option<&str>) -> Result<Asked, AdminError> {
        let path = self.path(path)?;
        Misuse::check_length("reason", &path, reason, MAX_MESSAGE_BYTES)?;
        let clock = self.keeper().sessions().clock();
        let id = clock.unique_id();
        let request = Revocation::new(AttemptId::new(id), self.owner().clone(), reason, clock.wall_ms());
        // One request has one record, however often it is sent.
        let record = (uuid::Uuid::from_u128(id), self.record(&path, &contender, reason));
        // A lease does not name its process.
        let (at, to, had_ended) = (path.clone(), contender.clone(), contender.process_has_ended());
        let put =
            self.on_session(move |ensemble| async move { put(&*ensemble, at, &to, (request, record)).await }).await?;
        let czxid = put.map(|(czxid, written)| {
            contender.revocation = written.or(contender.revocation.take());
            czxid
        });
        // A node that is gone needs nobody to obey.
        let had_ended = had_ended && czxid.is_some();
        Ok(Asked { admin: self.clone(), path, contender, had_ended, czxid })
    }

    /// Returns the requests to release a lock at or below `root`, the oldest first. `root` may be `/`. The last 256 of all locks are
    /// kept, and only requests of Lockkeeper's clients.
    ///
    /// # Cost
    ///
    /// As [`Admin::broken`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As [`Admin::broken`].
    pub async fn revoked(&self, root: impl AsRef<str>) -> Result<Vec<Revoked>, AdminError> {
        journal::entries_below(self.keeper(), root.as_ref()).await
    }

    /// The record of a request to this contender.
    fn record(&self, path: &str, contender: &ContenderInfo, reason: Option<&str>) -> Revoked {
        Revoked {
            path: path.to_owned(),
            node: contender.node.clone(),
            owner: contender.owner.clone(),
            described: contender.described.clone(),
            token: contender.token,
            by: self.owner().clone(),
            proof: Proof::default(),
            reason: reason.map(str::to_owned),
            at: unix_epoch(),
        }
    }
}

/// The request that this owner of a leased lock was sent; `None` if it is not the owner any more.
fn owner_of(node: &Node, id: &str) -> Option<Option<Revocation>> {
    let owner = Record::from_bytes(&node.data).ok()?.owner?;
    (owner.id == id).then_some(owner.revocation.map(|revocation| *revocation))
}

/// Writes the request into the node of a contender, or into the record of a leased lock. Returns which node that was, with the request if
/// its record has it, or `None` if it was deleted, or if the lock has another owner.
async fn put(
    ensemble: &dyn Ensemble,
    path: String,
    to: &ContenderInfo,
    (request, (id, record_of_it)): (Revocation, (uuid::Uuid, Revoked)),
) -> Result<Option<(Zxid, Option<Revocation>)>, AdminError> {
    let at = to.node_path(&path);
    for _ in 0..MAX_ATTEMPTS {
        // Read the parent of a record first: then its version is not newer than the record.
        let parent = async { if to.is_leased() { ensemble.read(above(&path)).await.map(Some) } else { Ok(None) } };
        let both = async { tokio::join!(biased; parent, ensemble.read(&at)) };
        let (parent, node) = match both.await {
            (Ok(parent), Ok(node)) => (parent, node),
            (Err(OpError::NoNode), _) | (_, Err(OpError::NoNode)) => return Ok(None),
            // The next read waits for the connection.
            (Err(OpError::ConnectionLoss), _) | (_, Err(OpError::ConnectionLoss)) => continue,
            (Err(fault), _) | (_, Err(fault)) => return Err(refused(&path, fault)),
        };
        let (steps, written, replaces) = if let Some(parent) = parent {
            let Some(mut record) = lease::read(&node) else { return Ok(None) };
            if !record.ask(&to.described, &request, node.mzxid.0) {
                return Ok(None);
            }
            (lease::rewrite(&path, &record, node.version, parent.version).into(), Some(request.clone()), false)
        } else {
            let Some((data, written)) = asked(&path, &to.node, &node.data, &request)? else {
                return Ok(Some((node.czxid, None)));
            };
            // A word takes the place of what the client wrote, so a record must say who it is.
            let replaces = written.is_none() && !node.data.is_empty();
            (vec![TxnStep::Write { path: at.clone(), data, version: Some(node.version) }], written, replaces)
        };
        let done = match replaces {
            true => journal::transact_recorded(ensemble, steps, (id, &record_of_it)).await,
            false => journal::transact(ensemble, steps, (id, &record_of_it)).await,
        };
        match done {
            Ok(()) => return Ok(Some((node.czxid, written))),
            // Another client wrote meanwhile, or deleted the node. After a lost reply, the same request is written once more.
            Err(OpError::BadVersion | OpError::NoNode | OpError::ConnectionLoss) => {}
            Err(fault) => return Err(refused(&path, fault)),
        }
    }
    let reason =
        format!("{} is written to as often as it is read", if to.is_leased() { "the record" } else { &to.node });
    Err(SessionError::Refused { path, reason }.into())
}

/// The data of a node with a request, and the request if that is a record.
type WithRequest = (Vec<u8>, Option<Revocation>);

/// The data of a contender's node with the request; `None` if the node has one already.
fn asked(path: &str, name: &str, data: &[u8], request: &Revocation) -> Result<Option<WithRequest>, AdminError> {
    let format = NodeFormat::of_node(name);
    let cannot = || AdminError::CannotAsk { path: path.to_owned(), node: name.to_owned() };
    if !format.allows_new_data() || ForeignSemaphore::read(name).is_some() {
        return Err(cannot());
    }
    Ok(match NodeData::read(data) {
        NodeData::Record(mut record) => {
            record.revocation = Some(request.clone());
            Some((record.to_bytes(), Some(request.clone())))
        }
        NodeData::Revoked => None,
        _ => Some((format.revocation_word().ok_or_else(cannot)?.as_bytes().to_vec(), None)),
    })
}
