//! An election: a path that all candidates share.

use lockkeeper::error::{AdminError, Misuse};
use lockkeeper::{Error, Lockkeeper, NodeFormat};

use crate::candidate::Candidate;
use crate::observer::{Leader, Observer};

/// An election: a path that all candidates share. Cheap to clone.
///
/// # Examples
///
/// ```
/// use lockkeeper_election::Election;
///
/// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
/// let election = Election::new(keeper, "/elections/scheduler");
/// let leadership = election.candidate("machine-1").campaign().await?; // waits until it leads
/// println!("leads with token {}", leadership.token());
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until a candidate or an observer is made"]
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

    /// Sets the node format of this path. All candidates of a path must use the same one. Another one is
    /// [`Mismatch`](lockkeeper::error::Mismatch), except that a candidate in the format `Curator` waits behind one in the format
    /// [`Recipe`](NodeFormat::Recipe).
    ///
    /// A campaign in the format [`Numbered`](NodeFormat::Numbered) fails with [`Misuse`](lockkeeper::error::Misuse): its nodes are beside
    /// the path, where candidates in other formats do not look.
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
        let lock = match self.node_format {
            NodeFormat::Numbered => {
                let problem = "an election cannot have the node format Numbered: candidates in other formats do not see its nodes";
                Err(Misuse::new("node format", problem).remedy("use the default, or that of the foreign candidates"))
            }
            node_format => Ok(self.keeper.mutex(&self.path).node_format(node_format)),
        };
        Candidate::new(lock, id.into())
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
    pub fn observe(&self) -> Observer {
        Observer::new(self.keeper.admin().follow(&self.path).or_absent())
    }

    /// Returns the path.
    pub fn path(&self) -> &str {
        &self.path
    }
}
