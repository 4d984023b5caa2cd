//! Copies a tree to other servers: from an embedded server to an ensemble, and back.
//!
//! Persistent nodes are copied with their data and access lists. Ephemeral nodes are counted and left out, because
//! sessions are not copied. Parents come before children, and each node is created in one step. So there is never half
//! a node, and an interrupted copy can be continued. Before the first node is created, all nodes have been compared,
//! and the tokens too: the target servers must issue greater ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use lockkeeper_core::{FencingToken, LockPath, TokenEpoch, Zxid};
use lockkeeper_session::ensemble::{
    Copies, EPOCH_NODE, Ensemble, NodeKind, NodeWithAcl, OpError, READS_IN_FLIGHT, is_below,
};
use serde::Serialize;

use super::Admin;
use crate::error::{AdminError, SessionError, refused};

/// How many conflicts are reported by path.
const NAMED: usize = 20;

/// How often a node is read again if it changes between the reads of its data and of its access list.
const MAX_ATTEMPTS: usize = 10;

/// The servers' own nodes, and the epoch of tokens, which only grows and is not part of a tree.
const LEFT_OUT: [&str; 2] = ["/zookeeper", EPOCH_NODE];

/// What to copy, and how; see [`Admin::copy_to`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CopyOptions {
    /// The nodes to copy, with everything below them, and their missing parents; empty means everything.
    pub paths: Vec<String>,
    /// Replace the data and the access lists of target nodes that differ.
    pub overwrite: bool,
    /// Below these nodes, those that the target already has stay as they are: records that both have written.
    pub keep: Vec<String>,
    /// Compare only; change nothing.
    pub dry_run: bool,
}

/// The result of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Copied {
    /// Whether the nodes were created. `false` for a dry run, and if there are conflicts or the tokens would fall.
    pub done: bool,
    /// How many nodes were created; if [`done`](Copied::done) is `false`, how many would be.
    pub created: u64,
    /// How many nodes had other data or another access list and were replaced; in a dry run, how many would be.
    pub replaced: u64,
    /// How many nodes were already identical.
    pub same: u64,
    /// How many nodes are ephemeral and were left out.
    pub ephemeral: u64,
    /// How many target nodes have other content. Unless they may be replaced, nothing is copied.
    pub conflicting: u64,
    /// The paths of the first of these.
    pub conflicts: Vec<String>,
    /// How many transactions the source processed during the copy. With zero, the copy shows one moment. Some of them
    /// are sessions that open and close.
    pub meanwhile: u64,
    /// How many nodes changed since the copy began. If there are any, copy again when no client writes any more.
    pub changed: u64,
    /// The upper bound of the tokens that the source has issued.
    pub source_token: Option<FencingToken>,
    /// Every token that the target issues from now on is greater than this one.
    pub target_token: Option<FencingToken>,
}

impl Copied {
    /// Returns whether some of the target's tokens would not be greater than those of the source. Then raise the
    /// target's epoch with [`Admin::raise_token_epoch`] to [`TokenEpoch::above`] the source's.
    pub fn tokens_fall(&self) -> bool {
        self.target_token < self.source_token
    }
}

/// The source or the target.
struct Side {
    ensemble: Arc<dyn Ensemble>,
    epoch: TokenEpoch,
}

impl Side {
    /// The id of a current transaction. Creates and deletes an ephemeral node, because no other reply shows the
    /// servers' counter.
    async fn now(&self) -> Result<Zxid, AdminError> {
        let path = format!("/lockkeeper-copy-{}", uuid::Uuid::new_v4());
        let made = self.ensemble.create(&path, Vec::new(), NodeKind::Ephemeral).await;
        let (_, zxid) = made.map_err(|fault| refused(&path, fault))?;
        // If the connection is lost, the node is deleted with the session.
        _ = self.ensemble.delete(&path, None).await;
        Ok(zxid)
    }

    fn token(&self, zxid: Zxid) -> FencingToken {
        FencingToken::from_zxid(zxid).in_epoch(self.epoch)
    }

    /// The operations of a copy.
    fn copies(&self, path: &str) -> Result<&dyn Copies, AdminError> {
        self.ensemble.copies().ok_or_else(|| refused(path, OpError::Unsupported))
    }

    /// A node with everything that a copy needs, read consistently.
    async fn whole(&self, path: &str) -> Result<Option<NodeWithAcl>, AdminError> {
        for _ in 0..MAX_ATTEMPTS {
            match self.copies(path)?.read_whole(path).await {
                Ok(Some(whole)) if whole.is_masked() => {
                    let reason = "only who has ADMIN rights on it is shown its access list whole: copy as one who has, or as the \
                                  servers' super user";
                    return Err(SessionError::Refused { path: path.to_owned(), reason: reason.to_owned() }.into());
                }
                Ok(Some(whole)) => return Ok(Some(whole)),
                Ok(None) => {}
                Err(OpError::NoNode) => return Ok(None),
                Err(fault) => return Err(refused(path, fault)),
            }
        }
        Err(SessionError::Refused {
            path: path.to_owned(),
            reason: "it keeps changing: stop the client that writes it".to_owned(),
        }
        .into())
    }
}

/// What to do with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyStep {
    Create,
    Replace,
    Same,
    Conflict,
    Leave,
    /// It was created after the copy began, perhaps by the copy itself if both sides are one ensemble.
    Late,
    /// Every server has its own.
    Root,
}

/// A node that was read.
struct SourceNode {
    path: String,
    step: CopyStep,
    /// The last change of the node or of its children.
    latest: Zxid,
    /// The paths of its children.
    below: Vec<String>,
}

impl Admin {
    /// Copies persistent nodes to other servers, with data and access lists. Ephemeral nodes are counted and left out,
    /// so no locks are held at the target. `/zookeeper`, with its quotas, and the epoch of tokens are left out too. A record of a hold
    /// that the target has already stays as it is there.
    ///
    /// The copy makes two passes over the source. The first compares and changes nothing. The second runs only if there
    /// is no conflict and the target's tokens are greater than the source's. A repeated copy is harmless: identical
    /// nodes are skipped.
    ///
    /// Both clients need the rights to read, and to create, everything that is copied. An access list is copied as it
    /// is, with the names in it. If it contains password digests, the copy also needs ADMIN rights, because servers
    /// show digests only with them.
    ///
    /// # Cost
    ///
    /// For each node, three reads per pass at the source, two at the target, and one create if it is missing. At most
    /// 64 nodes are in flight; memory holds these and the names beside one path of the tree. To read the transaction
    /// counters, the copy creates and deletes an ephemeral node at the root of each side.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves what was copied so far. A node that is being created is created completely or not at
    /// all.
    ///
    /// # Errors
    ///
    /// - [`AdminError::Misuse`] for an invalid path, before anything is sent.
    /// - [`AdminError::NoSuchLock`] if the source does not have a path.
    /// - [`SessionError::Refused`] with the path and the server's reason.
    /// - [`SessionError::ConnectionLost`]: copy again.
    pub async fn copy_to(&self, target: &Admin, options: &CopyOptions) -> Result<Copied, AdminError> {
        let parse = |path: &String| match path.as_str() {
            "/" => Ok(path.clone()),
            path => LockPath::parse_node(path).map(|path| path.to_string()),
        };
        let paths = match options.paths.as_slice() {
            [] => vec!["/".to_owned()],
            some => outermost(some.iter().map(parse).collect::<Result<_, _>>()?),
        };
        let (source_epoch, target_epoch) = (self.token_epoch().await?, target.token_epoch().await?);
        let (target, options) = (target.clone(), options.clone());
        self.on_session(move |ensemble| async move {
            let source = Side { ensemble, epoch: source_epoch };
            target
                .on_session(move |ensemble| async move {
                    let target = Side { ensemble, epoch: target_epoch };
                    Copying { source, target, paths, overwrite: options.overwrite, keep: options.keep }
                        .all(options.dry_run)
                        .await
                })
                .await
        })
        .await
    }
}

struct Copying {
    source: Side,
    target: Side,
    paths: Vec<String>,
    overwrite: bool,
    keep: Vec<String>,
}

impl Copying {
    async fn all(&self, dry_run: bool) -> Result<Copied, AdminError> {
        for side in [&self.source, &self.target] {
            // The session's server may be stale.
            side.ensemble.heartbeat().await.map_err(|fault| refused("/", fault))?;
        }
        let start = self.source.now().await?;
        let mut copied = self.pass(start, false).await?;
        copied.target_token = Some(self.target.token(self.target.now().await?));
        let mut end = self.source.now().await?;
        copied.source_token = Some(self.source.token(end));
        // The copy's own transactions: after each pass, one node is deleted and the next one created.
        let mut own = 2;
        if !dry_run && copied.conflicting == 0 && !copied.tokens_fall() {
            copied = self.pass(start, true).await?;
            end = self.source.now().await?;
            own = 4;
            // Compare the tokens again, because clients that were not stopped may have acquired locks meanwhile.
            copied.source_token = Some(self.source.token(end));
            copied.target_token = Some(self.target.token(self.target.now().await?));
            copied.done = copied.conflicting == 0;
        }
        copied.meanwhile = u64::try_from(end.0 - start.0 - own).unwrap_or(0);
        Ok(copied)
    }

    /// Walks the source once, parents first.
    async fn pass(&self, start: Zxid, write: bool) -> Result<Copied, AdminError> {
        let mut copied = Copied::default();
        for path in self.above() {
            let seen = self.node(path.clone(), start, write).await?.ok_or(AdminError::NoSuchLock { path })?;
            copied.count(&seen, start);
        }
        let given: BTreeSet<&str> = self.paths.iter().map(String::as_str).collect();
        let mut left: Vec<String> = self.paths.clone();
        while !left.is_empty() {
            // From the end, so that the nodes found last come first; this bounds the memory.
            let batch = left.split_off(left.len().saturating_sub(READS_IN_FLIGHT));
            let mut seen = stream::iter(batch)
                .map(|path| async move { (path.clone(), self.node(path, start, write).await) })
                .buffer_unordered(READS_IN_FLIGHT);
            while let Some((path, seen)) = seen.next().await {
                match seen? {
                    Some(seen) => {
                        copied.count(&seen, start);
                        left.extend(seen.below);
                    }
                    None if given.contains(path.as_str()) => return Err(AdminError::NoSuchLock { path }),
                    // Deleted since its parent was listed.
                    None => copied.changed += 1,
                }
            }
        }
        Ok(copied)
    }

    /// The parents of the copied nodes, from the top, each once.
    fn above(&self) -> Vec<String> {
        let parents: BTreeSet<&str> = self
            .paths
            .iter()
            .flat_map(|path| path.match_indices('/').map(|(at, _)| &path[..at]))
            .filter(|parent| !parent.is_empty())
            .collect();
        parents.into_iter().map(str::to_owned).collect()
    }

    /// Compares a node with the target's and creates it there if `write` is set; `None` if the source does not have it.
    async fn node(&self, path: String, start: Zxid, write: bool) -> Result<Option<SourceNode>, AdminError> {
        if path == "/" {
            let listed = self.source.ensemble.list(&path).await.map_err(|fault| refused(&path, fault))?;
            return Ok(Some(SourceNode {
                step: CopyStep::Root,
                latest: Zxid(0),
                below: below("", listed.names),
                path,
            }));
        }
        let Some(whole) = self.source.whole(&path).await? else { return Ok(None) };
        let aside = match () {
            () if whole.ephemeral => Some(CopyStep::Leave),
            () if whole.czxid > start => Some(CopyStep::Late),
            () => None,
        };
        if let Some(step) = aside {
            return Ok(Some(SourceNode { step, latest: whole.latest, below: Vec::new(), path }));
        }
        let names = match self.source.ensemble.list(&path).await {
            Ok(listed) => listed.names,
            Err(OpError::NoNode) => return Ok(None),
            Err(fault) => return Err(refused(&path, fault)),
        };
        let mut step = self.compare(&path, &whole).await?;
        if write {
            match step {
                CopyStep::Create => match self.target.copies(&path)?.create_whole(&path, whole.clone()).await {
                    Ok(()) => {}
                    // Created by another client, or by this one before the reply was lost.
                    Err(OpError::NodeExists) => step = self.compare(&path, &whole).await?,
                    Err(fault) => return Err(refused(&path, fault)),
                },
                CopyStep::Replace => self
                    .target
                    .copies(&path)?
                    .replace_whole(&path, whole.clone())
                    .await
                    .map_err(|fault| refused(&path, fault))?,
                CopyStep::Same | CopyStep::Conflict | CopyStep::Leave | CopyStep::Late | CopyStep::Root => {}
            }
        }
        Ok(Some(SourceNode { step, latest: whole.latest, below: below(&path, names), path }))
    }

    async fn compare(&self, path: &str, whole: &NodeWithAcl) -> Result<CopyStep, AdminError> {
        Ok(match self.target.whole(path).await? {
            None => CopyStep::Create,
            Some(there) if there.same_content(whole) => CopyStep::Same,
            Some(_) if self.keep.iter().any(|root| is_below(path, root)) => CopyStep::Same,
            // Never replace an ephemeral node: it belongs to a session.
            Some(there) if self.overwrite && !there.ephemeral => CopyStep::Replace,
            Some(_) => CopyStep::Conflict,
        })
    }
}

impl Copied {
    fn count(&mut self, seen: &SourceNode, start: Zxid) {
        // The copy's own nodes change the root.
        if seen.latest > start {
            self.changed += 1;
        }
        match seen.step {
            CopyStep::Create => self.created += 1,
            CopyStep::Replace => self.replaced += 1,
            CopyStep::Same => self.same += 1,
            CopyStep::Conflict => {
                self.conflicting += 1;
                if self.conflicts.len() < NAMED {
                    self.conflicts.push(seen.path.clone());
                }
            }
            CopyStep::Leave => self.ephemeral += 1,
            // Counted as changed.
            CopyStep::Late | CopyStep::Root => {}
        }
    }
}

/// The paths without those below another: a node is copied, and counted, once.
fn outermost(paths: BTreeSet<String>) -> Vec<String> {
    let stays = |path: &&String| !paths.iter().any(|root| root != *path && is_below(path, root.trim_end_matches('/')));
    paths.iter().filter(stays).cloned().collect()
}

/// The paths of the children, without those that are never copied.
fn below(path: &str, names: Vec<String>) -> Vec<String> {
    let paths = names.into_iter().map(|name| format!("{path}/{name}"));
    paths.filter(|path| !LEFT_OUT.contains(&path.as_str()) && !path.starts_with("/lockkeeper-copy-")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_fall_if_the_source_has_issued_one_that_the_target_will_not_exceed() {
        let token = |zxid| Some(FencingToken::from_zxid(Zxid(zxid)));
        let falls = |source, target| {
            Copied { source_token: token(source), target_token: token(target), ..Copied::default() }.tokens_fall()
        };
        assert!(falls(8, 7));
        // Every token of the target is greater than its bound from now on.
        assert!(!falls(7, 7) && !falls(7, 8));
    }
}
