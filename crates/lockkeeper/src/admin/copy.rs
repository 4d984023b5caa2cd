//! Copies a tree to other servers: from an embedded server to an ensemble, and back.
//!
//! What lasts is copied, with its data and its access list; what ends with a session is counted and left out, for sessions do
//! not move. Parents come before children, each node by one create of its own, so there is no half of a node anywhere and a
//! copy that was interrupted goes on where it stopped. Before the first node is made, all of them have been compared, and the
//! tokens too: the servers that are copied to must give greater ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use lockkeeper_core::{FencingToken, LockPath, TokenEpoch, Zxid};
use serde::Serialize;

use super::Admin;
use crate::Error;
use crate::ensemble::{EPOCH_NODE, Ensemble, Kind, OpError, READS_IN_FLIGHT, Whole, refused};

/// How many conflicts are told by name.
const NAMED: usize = 20;

/// How often a node is read again that changes between the reading of its data and that of its access list.
const MAX_ATTEMPTS: usize = 10;

/// Servers' own, and the epoch of tokens, which only ever grows and is no part of a tree.
const LEFT_OUT: [&str; 2] = ["/zookeeper", EPOCH_NODE];

/// What to copy, and how; see [`Admin::copy_to`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CopyOptions {
    /// The nodes to copy, with all below them, and their parents where those are missing; everything, where none is given.
    pub paths: Vec<String>,
    /// Replace the data and the access lists of nodes that are there with others.
    pub overwrite: bool,
    /// Compare, and change nothing.
    pub dry_run: bool,
}

/// What a copy came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Copied {
    /// Whether the nodes were made. Not in a dry run, nor where there are conflicts or tokens would fall.
    pub done: bool,
    /// How many nodes were made; of a dry run, would be.
    pub created: u64,
    /// How many were there with other data or another access list and were replaced; of a dry run, would be.
    pub replaced: u64,
    /// How many were there already, just as they are.
    pub same: u64,
    /// How many end with a session, and were left out.
    pub ephemeral: u64,
    /// How many are there with other content. Nothing is copied unless they may be replaced.
    pub conflicting: u64,
    /// The first of these.
    pub conflicts: Vec<String>,
    /// Transactions at the source while it was read. With none, the copy is of one moment. Some are sessions that come and go.
    pub meanwhile: u64,
    /// How many nodes have changed since the reading began. If there are any, copy again when nobody writes any more.
    pub changed: u64,
    /// No token that the source has given is greater.
    pub source_token: Option<FencingToken>,
    /// Every token that the target gives from now on is greater.
    pub target_token: Option<FencingToken>,
}

impl Copied {
    /// Whether the target's tokens would not all be greater than those of the source. Then the target's epoch is to be raised:
    /// [`Admin::raise_token_epoch`] with [`TokenEpoch::above`] the source's.
    pub fn tokens_fall(&self) -> bool {
        self.target_token < self.source_token
    }
}

/// One side.
struct Side {
    ensemble: Arc<dyn Ensemble>,
    epoch: TokenEpoch,
}

impl Side {
    /// The id of a transaction of this moment. An ephemeral node, deleted at once, for no other reply tells the servers' count.
    async fn now(&self) -> Result<Zxid, Error> {
        let path = format!("/lockkeeper-copy-{}", uuid::Uuid::new_v4());
        let made = self.ensemble.create(&path, Vec::new(), Kind::Ephemeral).await;
        let (_, zxid) = made.map_err(|fault| refused(&path, fault))?;
        // Should the connection be lost, it ends with the session.
        _ = self.ensemble.delete(&path, None).await;
        Ok(zxid)
    }

    fn token(&self, zxid: Zxid) -> FencingToken {
        FencingToken::from_zxid(zxid).in_epoch(self.epoch)
    }

    /// A node with everything that a copy needs, of one moment.
    async fn whole(&self, path: &str) -> Result<Option<Whole>, Error> {
        for _ in 0..MAX_ATTEMPTS {
            match self.ensemble.read_whole(path).await {
                Ok(Some(whole)) if whole.is_masked() => {
                    let reason = "only who has ADMIN rights on it is shown its access list whole: copy as one who has, or as the \
                                  servers' super user";
                    return Err(Error::Refused { path: path.to_owned(), reason: reason.to_owned() });
                }
                Ok(Some(whole)) => return Ok(Some(whole)),
                Ok(None) => {}
                Err(OpError::NoNode) => return Ok(None),
                Err(fault) => return Err(refused(path, fault)),
            }
        }
        Err(Error::Refused { path: path.to_owned(), reason: "it changes all the time: stop who writes it".to_owned() })
    }
}

/// What is to be done about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Replace,
    Same,
    Conflict,
    /// It ends with a session.
    Leave,
    /// It was made after the copy had begun, perhaps by the copy itself, where both sides are one ensemble.
    Late,
    /// Every server has one of its own.
    Root,
}

/// A node that was seen.
struct Seen {
    path: String,
    step: Step,
    /// When it changed last, itself or its children.
    latest: Zxid,
    /// The paths below it.
    below: Vec<String>,
}

impl Admin {
    /// Copies nodes to other servers: those that last, with data and access lists. Nodes that end with a session are counted and
    /// left out, so locks are not held at the target; `/zookeeper`, with its quotas, and the epoch of tokens are left out.
    ///
    /// Two passes over the source. The first compares and changes nothing; the second is made only where there is no conflict
    /// and the target's tokens are above the source's. Copying again is harmless: what is the same stays. At most 64 nodes are in
    /// flight; memory holds them and the names beside a line of descent. Three reads a node and pass at the source, two at the
    /// target, and one create for each that is missing. To learn where their counts stand, it makes an ephemeral node at the root
    /// of each side, and deletes it.
    ///
    /// Both sides must be reached with rights to read all that is copied, and to make it. An access list is copied as it is, with the
    /// names in it; where that has digests of passwords it takes ADMIN rights too, for servers show them to nobody else.
    ///
    /// Dropping the future leaves what was copied so far; the node under way is made whole or not.
    ///
    /// # Errors
    /// [`Error::InvalidPath`]; [`Error::NoSuchLock`] for a path that the source does not have; [`Error::Refused`] with the path and
    /// the server's word; [`Error::ConnectionLost`]: copy again.
    pub async fn copy_to(&self, target: &Admin, options: &CopyOptions) -> Result<Copied, Error> {
        let paths = match options.paths.as_slice() {
            [] => vec!["/".to_owned()],
            some => some
                .iter()
                .map(|path| {
                    if path == "/" { Ok(path.clone()) } else { LockPath::parse_node(path).map(|path| path.to_string()) }
                })
                .collect::<Result<_, _>>()?,
        };
        let (source_epoch, target_epoch) = (self.token_epoch().await?, target.token_epoch().await?);
        let (target, options) = (target.clone(), options.clone());
        self.on_session(move |ensemble| async move {
            let source = Side { ensemble, epoch: source_epoch };
            target
                .on_session(move |ensemble| async move {
                    let target = Side { ensemble, epoch: target_epoch };
                    Copying { source, target, paths, overwrite: options.overwrite }.all(options.dry_run).await
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
}

impl Copying {
    async fn all(&self, dry_run: bool) -> Result<Copied, Error> {
        for side in [&self.source, &self.target] {
            // A session may be at a server that lags behind.
            side.ensemble.sync("/").await.map_err(|fault| refused("/", fault))?;
        }
        let start = self.source.now().await?;
        let mut told = self.pass(start, false).await?;
        told.target_token = Some(self.target.token(self.target.now().await?));
        let mut end = self.source.now().await?;
        told.source_token = Some(self.source.token(end));
        // Of our own: one node goes, the next one comes.
        let mut own = 2;
        if !dry_run && told.conflicting == 0 && !told.tokens_fall() {
            told = self.pass(start, true).await?;
            end = self.source.now().await?;
            own += 2;
            // Looked at again: who was not stopped may have taken locks meanwhile.
            told.source_token = Some(self.source.token(end));
            told.target_token = Some(self.target.token(self.target.now().await?));
            told.done = told.conflicting == 0;
        }
        told.meanwhile = u64::try_from(end.0 - start.0 - own).unwrap_or(0);
        Ok(told)
    }

    /// Walks the source once, parents first.
    async fn pass(&self, start: Zxid, write: bool) -> Result<Copied, Error> {
        let mut told = Copied::default();
        for path in self.above() {
            let seen = self.node(path.clone(), start, write).await?.ok_or(Error::NoSuchLock { path })?;
            told.count(&seen, start);
        }
        let given: BTreeSet<&str> = self.paths.iter().map(String::as_str).collect();
        let mut left: Vec<String> = self.paths.clone();
        while !left.is_empty() {
            // From the end, so that what was found last is walked first: a tree is deep at one place at a time.
            let batch = left.split_off(left.len().saturating_sub(READS_IN_FLIGHT));
            let mut seen = stream::iter(batch)
                .map(|path| async move { (path.clone(), self.node(path, start, write).await) })
                .buffer_unordered(READS_IN_FLIGHT);
            while let Some((path, seen)) = seen.next().await {
                match seen? {
                    Some(seen) => {
                        told.count(&seen, start);
                        left.extend(seen.below);
                    }
                    None if given.contains(path.as_str()) => return Err(Error::NoSuchLock { path }),
                    // Gone since its parent was listed.
                    None => told.changed += 1,
                }
            }
        }
        Ok(told)
    }

    /// The parents of what is copied, from the top, each once, without those that are copied anyway.
    fn above(&self) -> Vec<String> {
        let parents: BTreeSet<&str> = self
            .paths
            .iter()
            .flat_map(|path| path.match_indices('/').map(|(at, _)| &path[..at]))
            .filter(|parent| !parent.is_empty() && !self.paths.iter().any(|path| is_below(parent, path)))
            .collect();
        parents.into_iter().map(str::to_owned).collect()
    }

    /// Compares a node with the target's, and makes it there if it may be written; `None` if the source has none.
    async fn node(&self, path: String, start: Zxid, write: bool) -> Result<Option<Seen>, Error> {
        if path == "/" {
            let listed = self.source.ensemble.list(&path).await.map_err(|fault| refused(&path, fault))?;
            return Ok(Some(Seen { step: Step::Root, latest: Zxid(0), below: below("", listed.names), path }));
        }
        let Some(whole) = self.source.whole(&path).await? else { return Ok(None) };
        let aside = match () {
            () if whole.ephemeral => Some(Step::Leave),
            () if whole.czxid > start => Some(Step::Late),
            () => None,
        };
        if let Some(step) = aside {
            return Ok(Some(Seen { step, latest: whole.latest, below: Vec::new(), path }));
        }
        let names = match self.source.ensemble.list(&path).await {
            Ok(listed) => listed.names,
            Err(OpError::NoNode) => return Ok(None),
            Err(fault) => return Err(refused(&path, fault)),
        };
        let mut step = self.compare(&path, &whole).await?;
        if write {
            match step {
                Step::Create => match self.target.ensemble.create_whole(&path, whole.clone()).await {
                    Ok(()) => {}
                    // By somebody else, or by us before the reply was lost.
                    Err(OpError::NodeExists) => step = self.compare(&path, &whole).await?,
                    Err(fault) => return Err(refused(&path, fault)),
                },
                Step::Replace => self
                    .target
                    .ensemble
                    .replace_whole(&path, whole.clone())
                    .await
                    .map_err(|fault| refused(&path, fault))?,
                Step::Same | Step::Conflict | Step::Leave | Step::Late | Step::Root => {}
            }
        }
        Ok(Some(Seen { step, latest: whole.latest, below: below(&path, names), path }))
    }

    async fn compare(&self, path: &str, whole: &Whole) -> Result<Step, Error> {
        Ok(match self.target.whole(path).await? {
            None => Step::Create,
            Some(there) if there.is_as(whole) => Step::Same,
            // What ends with somebody's session is somebody's.
            Some(there) if self.overwrite && !there.ephemeral => Step::Replace,
            Some(_) => Step::Conflict,
        })
    }
}

impl Copied {
    fn count(&mut self, seen: &Seen, start: Zxid) {
        // The root changes by what we make there ourselves.
        if seen.latest > start {
            self.changed += 1;
        }
        match seen.step {
            Step::Create => self.created += 1,
            Step::Replace => self.replaced += 1,
            Step::Same => self.same += 1,
            Step::Conflict => {
                self.conflicting += 1;
                if self.conflicts.len() < NAMED {
                    self.conflicts.push(seen.path.clone());
                }
            }
            Step::Leave => self.ephemeral += 1,
            // Has changed, then.
            Step::Late | Step::Root => {}
        }
    }
}

fn is_below(path: &str, root: &str) -> bool {
    root == "/" || path == root || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
}

/// The paths of children, without what is never copied.
fn below(path: &str, names: Vec<String>) -> Vec<String> {
    let paths = names.into_iter().map(|name| format!("{path}/{name}"));
    paths.filter(|path| !LEFT_OUT.contains(&path.as_str()) && !path.starts_with("/lockkeeper-copy-")).collect()
}
