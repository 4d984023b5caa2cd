//! Breaking a lock: a person deletes the node of its holder, or of one in line, and says why.
//!
//! For the holder that hangs, or whose machine nobody can reach while its session lives on. The deletion and its record are one
//! transaction: no break without a record, no record without a break. Whoever is removed is told so (`Loss::Removed`,
//! `Error::Evicted`), but what it does at this moment is not undone: the next holder's token fences it where tokens are looked at.

use std::time::SystemTime;

use lockkeeper_core::{HOLDER_MARKER, LockPath};
use tracing::warn;

use super::{Admin, LockInfo, describe, lease};
use crate::Error;
use crate::broken::Broken;
use crate::clock::as_millis_since_1970;
use crate::contender::ContenderInfo;
use crate::ensemble::paths::above;
use crate::ensemble::{Ensemble, OpError, Step, refused, synced};
use crate::error::check_length;
use crate::registers::journal::{self, Entry};
use crate::registers::make;
use crate::session::context::Context;

/// Longest reason kept, in bytes.
const MAX_REASON_BYTES: usize = 1024;

/// How often it is tried again when something changed between the look and the deletion, or the connection was lost.
const MAX_ATTEMPTS: usize = 10;

/// Who is to go.
enum Whom {
    /// The only one who holds it.
    Holder,
    /// This one, if it still is the one that was seen.
    This(Box<ContenderInfo>),
}

impl Admin {
    /// Breaks the lock at `path`: deletes the node of whoever holds it.
    ///
    /// The holder is told that it lost the lock; it may still be at work for as long as it does not look. `reason` is for those
    /// who ask later: it is kept with who broke it, who was removed and when ([`Admin::broken`]), and logged with the
    /// target `lockkeeper::audit`. At most 1024 bytes.
    ///
    /// Costs what [`Admin::show`] costs and five round trips. Dropping the future leaves it done or not done; either way a break
    /// and its record go together.
    ///
    /// # Errors
    /// [`Error::NoReason`] for an empty reason, [`Error::TooLong`] for one of more than 1024 bytes; [`Error::NobodyHolds`]; [`Error::SeveralHold`] for a lock that is shared: choose
    /// one and [`Admin::evict`] it; [`Error::NoSuchLock`]; [`Error::Refused`] where the ACL does not let this process delete.
    pub async fn break_lock(&self, path: &str, reason: &str) -> Result<Broken, Error> {
        self.remove(path, Whom::Holder, reason).await
    }

    /// Removes one contender from the lock at `path`, whether it holds or waits: one that [`Admin::show`] has shown, and nobody
    /// who came since.
    ///
    /// A waiter's call ends with [`Error::Evicted`]. Reason, record, cost and cancel safety are those of [`Admin::break_lock`].
    ///
    /// # Errors
    /// [`Error::NotContending`] if it is not, or no longer, there, or is a node that is no contender's; otherwise as
    /// [`Admin::break_lock`].
    pub async fn evict(&self, path: &str, contender: &ContenderInfo, reason: &str) -> Result<Broken, Error> {
        self.remove(path, Whom::This(Box::new(contender.clone())), reason).await
    }

    /// Who was removed from locks at and below `root` by [`Admin::break_lock`] and [`Admin::evict`], the oldest first; of the last
    /// 224 to 256 entries in the ensemble, [`Admin::decisions`] included. `root` may be `/`.
    ///
    /// Costs a sync and a listing in flight together, then one read an entry. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// A refusal by the server, or no server.
    pub async fn broken(&self, root: &str) -> Result<Vec<Broken>, Error> {
        let root = if root == "/" { String::new() } else { LockPath::parse_node(root)?.to_string() };
        self.on_session(move |ensemble| async move {
            let entries = journal::entries(&*ensemble).await.map_err(|fault| refused(journal::ROOT, fault))?;
            let broken = entries.into_iter().filter_map(Entry::into_break);
            Ok(broken.filter(|broken| is_below(&root, &broken.path)).collect())
        })
        .await
    }

    async fn remove(&self, path: &str, whom: Whom, reason: &str) -> Result<Broken, Error> {
        let path = LockPath::parse_node(path)?;
        let reason = reason_for(path.as_str(), reason)?;
        let context = self.context.clone();
        self.context.run_while_answered(async move { remove(&context, path.as_str(), &whom, &reason).await }).await
    }
}

/// A reason as it is kept.
pub(super) fn reason_for(path: &str, reason: &str) -> Result<String, Error> {
    let reason = reason.trim();
    if reason.is_empty() {
        return Err(Error::NoReason { path: path.to_owned() });
    }
    check_length("reason", path, Some(reason), MAX_REASON_BYTES)?;
    Ok(reason.to_owned())
}

/// Whether a lock is at or below this path, which is empty for the root.
pub(super) fn is_below(root: &str, path: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Removes a contender, and comes back when its record stands.
async fn remove(context: &Context, path: &str, whom: &Whom, reason: &str) -> Result<Broken, Error> {
    let id = uuid::Uuid::new_v4();
    let mut sent = false;
    for _ in 0..MAX_ATTEMPTS {
        let (session, ensemble) = context.session(None).await?;
        let ensemble = &*ensemble;
        // What stands in the journal is what happened, whatever became of the reply.
        if sent {
            match journal::find(ensemble, id).await {
                Ok(Some(Entry::Break(broken))) => {
                    journal::prune(ensemble).await;
                    warn!(
                        target: "lockkeeper::audit",
                        %path, node = %broken.node, held = broken.held, removed = %broken.described, token = ?broken.token,
                        by = %broken.by, %reason, "lock broken"
                    );
                    return Ok(broken);
                }
                Ok(_) => sent = false,
                Err(OpError::ConnectionLoss | OpError::SessionOver) => continue,
                Err(fault) => return Err(refused(path, fault)),
            }
        }
        let Target { contender, held, version, mark, freed } = look(ensemble, path, whom).await?;
        let at = contender.node_path(path);
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
            by: context.owner().clone(),
            reason: reason.to_owned(),
            at: SystemTime::UNIX_EPOCH,
        };
        let mut steps = vec![journal::step(id, &Entry::Break(broken))];
        match freed {
            // In the node: who shares it with Helix must not find it made anew. The next to release it deletes it.
            Some(Freed { data, parent }) => steps.extend([
                Step::Check { path: above(path).to_owned(), version: Some(parent) },
                Step::Write { path: path.to_owned(), data, version: Some(version) },
            ]),
            None => steps.push(Step::Delete { path: at, version: Some(version) }),
        }
        steps.extend(
            mark.map(|version| Step::Delete { path: format!("{path}/{HOLDER_MARKER}"), version: Some(version) }),
        );
        match ensemble.transact(steps).await.map_err(OpError::from) {
            Ok(_) | Err(OpError::ConnectionLoss | OpError::SessionOver | OpError::NodeExists) => sent = true,
            // It has gone, which the next look shows; or nobody has broken anything before.
            Err(OpError::NoNode) => match make(ensemble, journal::ROOT).await {
                Ok(()) | Err(OpError::ConnectionLoss | OpError::SessionOver) => {}
                Err(fault) => return Err(refused(journal::ROOT, fault)),
            },
            // Somebody wrote to its node since the look.
            Err(OpError::BadVersion) => {}
            Err(fault) => return Err(refused(path, fault)),
        }
    }
    Err(Error::ConnectionLost { path: path.to_owned() })
}

/// One who is to go, as it was seen.
struct Target {
    contender: ContenderInfo,
    held: bool,
    /// The version of its node's data; the deletion is bound to it.
    version: i32,
    /// The same of the mark that it holds by, where its lock has one. A holder of ours takes it away itself when its node goes;
    /// one of another make may not notice before its session ends.
    mark: Option<i32>,
    /// What is to stand in the lock's own node instead, where it has a lease.
    freed: Option<Freed>,
}

/// A leased lock's record without its owner.
struct Freed {
    data: Vec<u8>,
    /// The version of the node above: a record in a node that was made anew has the same versions.
    parent: i32,
}

async fn look(ensemble: &dyn Ensemble, path: &str, whom: &Whom) -> Result<Target, Error> {
    let names = synced(ensemble, path, ensemble.list(path)).await.map_err(|fault| refused(path, fault))?.names;
    let mut lock = describe(ensemble, path, names, &mut Default::default()).await;
    if lock.is_quiet() {
        // The one above first: then its version is no newer than the record.
        let above = ensemble.read(above(path)).await.map_err(|fault| refused(path, fault))?;
        if let Some((seen, mut record)) = lease::record(ensemble, path).await {
            lease::tell(&mut lock, &seen, &record);
            let (contender, held) = choose(lock, whom)?;
            record.owner = None;
            let freed = Some(Freed { data: record.to_bytes(), parent: above.version });
            return Ok(Target { version: seen.version, contender, held, mark: None, freed });
        }
    }
    let (contender, held) = choose(lock, whom)?;
    let gone = || Error::NotContending { path: path.to_owned(), node: contender.node.clone() };
    let seen = match ensemble.read(&format!("{path}/{}", contender.node)).await {
        Ok(seen) => seen,
        Err(OpError::NoNode) => return Err(gone()),
        Err(fault) => return Err(refused(path, fault)),
    };
    if !is_the_same(&ContenderInfo::read(contender.node.clone(), &seen), &contender) {
        return Err(gone());
    }
    let mark = match held {
        true => match ensemble.read(&format!("{path}/{HOLDER_MARKER}")).await {
            Ok(mark) => (mark.owner == contender.session).then_some(mark.version),
            Err(OpError::NoNode) => None,
            Err(fault) => return Err(refused(path, fault)),
        },
        false => None,
    };
    Ok(Target { version: seen.version, contender, held, mark, freed: None })
}

fn choose(mut lock: LockInfo, whom: &Whom) -> Result<(ContenderInfo, bool), Error> {
    let path = lock.path;
    match whom {
        Whom::Holder => match lock.holders.len() {
            0 => Err(Error::NobodyHolds { path }),
            1 => Ok((lock.holders.remove(0), true)),
            _ => Err(Error::SeveralHold { path, holders: lock.holders }),
        },
        Whom::This(wanted) => {
            let holders = lock.holders.into_iter().map(|holder| (holder, true));
            let waiters = lock.waiters.into_iter().map(|waiter| (waiter, false));
            let found = holders.chain(waiters).find(|(contender, _)| is_the_same(contender, wanted));
            found.ok_or_else(|| Error::NotContending { path, node: wanted.node.clone() })
        }
    }
}

/// Names without an id are used again once the parent was made anew; the session and the time tell two users of one apart.
/// A lease is its owner's, however often the record is written.
fn is_the_same(one: &ContenderInfo, other: &ContenderInfo) -> bool {
    if one.is_leased() {
        return other.is_leased() && one.described == other.described;
    }
    (&one.node, one.session, one.since) == (&other.node, other.session, other.since)
}
