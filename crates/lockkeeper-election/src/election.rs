//! An election: a path that all candidates share.

use lockkeeper::error::AdminError;
use lockkeeper::{Error, Lockkeeper, NodeFormat};

use crate::candidate::Candidate;
use crate::observer::{Leader, Observer};

/// An election: a path that all candidates share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Election {
    keeper: Lockkeeper,
    path: String,
    node_format: NodeFormat,
}

impl Election {
    /// Returns the election at `path`, an absolute path such as `/elections/scheduler`. Sends nothing; the first call reports an
    /// invalid path.
    pub fn new(keeper: &Lockkeeper, path: impl Into<String>) -> Self {
        Election { keeper: keeper.clone(), path: path.into(), node_format: NodeFormat::default() }
    }

    /// Sets the node format of this path. All candidates of a path must use the same one; another one is
    /// [`Mismatch`](lockkeeper::error::Mismatch).
    ///
    /// | the others | format |
    /// |---|---|
    /// | `lockkeeper`, `lockkeeper lead`, Curator's `LeaderSelector` | [`NodeFormat::Curator`], the default |
    /// | Curator's `LeaderLatch` | [`NodeFormat::LeaderLatch`] |
    /// | Kazoo's `Election` | [`NodeFormat::Kazoo`] |
    ///
    /// A foreign candidate writes its id alone into its node; [`Leader::id`] returns it. A candidate of this crate writes a record, in
    /// JSON, whose field `message` is the id: that is what Curator's `getLeader().getId()` and Kazoo's `contenders()` return of it.
    /// Nobody can ask the leader of an election in the format `LeaderLatch` to step down, because a `LeaderLatch` behind it would not
    /// notice its end afterwards.
    pub fn node_format(mut self, node_format: NodeFormat) -> Self {
        self.node_format = node_format;
        self
    }

    /// Returns a candidate. Its `id` is what observers and `lockkeeper show` see; at most 4096 bytes. Two candidates may have the
    /// same one. Sends nothing.
    pub fn candidate(&self, id: impl Into<String>) -> Candidate {
        Candidate::new(self.keeper.mutex(&self.path).node_format(self.node_format), id.into())
    }

    /// Returns the leader of this moment; `None` if nobody leads, also before the first candidate.
    ///
    /// # Cost
    ///
    /// One round trip for an ordered write and a listing, and one for the candidates' nodes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As [`Admin::show`](lockkeeper::admin::Admin::show).
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        match self.keeper.admin().show(&self.path).await {
            Ok(election) => Ok(Leader::of(election)),
            Err(AdminError::NoSuchLock { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns an observer, which says who leads after each change. Sends nothing.
    ///
    /// An election in the node format [`Numbered`](NodeFormat::Numbered) has no node before its first candidate, so it must have one at
    /// the first call of [`Observer::next`].
    pub fn observe(&self) -> Observer {
        Observer::new(self.keeper.admin().follow(&self.path).or_absent())
    }

    /// Returns the path.
    pub fn path(&self) -> &str {
        &self.path
    }
}
