//! What owners of holds have recorded about the ends of them. Whoever knows the records says where they are and what they mean.

use std::fmt;
use std::sync::Arc;

use lockkeeper::FencingToken;
use lockkeeper::admin::{ContenderInfo, Owner};

use super::fact::End;

/// The end of a hold, as its owner has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEnd {
    /// The path of the lock.
    pub path: String,
    /// The owner.
    pub owner: Owner,
    /// The fencing token of the hold; `None` of permits.
    pub token: Option<FencingToken>,
    /// How it ended.
    pub how: End,
}

impl RecordedEnd {
    /// Whether it is that of the hold of this contender. Permits have no tokens; then it is that of the owner.
    pub(super) fn is_of(&self, lock: &str, contender: &ContenderInfo) -> bool {
        self.path == lock
            && match self.token {
                // What is seen of a contender may lack the epoch.
                Some(token) => contender.token.is_some_and(|other| token.below_epoch() == other.below_epoch()),
                None => contender.owner.as_ref() == Some(&self.owner),
            }
    }
}

/// Reads the record in a node: its path and its data.
type Read = dyn Fn(&str, &[u8]) -> Option<RecordedEnd> + Send + Sync;

/// Where owners record how their holds ended, and how such a record is read.
#[derive(Clone)]
pub(super) struct Records {
    /// The tree of the records. Each is two levels below.
    pub(super) root: String,
    read: Arc<Read>,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Records {
    pub(super) fn new(
        root: String,
        read: impl Fn(&str, &[u8]) -> Option<RecordedEnd> + Send + Sync + 'static,
    ) -> Records {
        Records { root, read: Arc::new(read) }
    }

    /// Whether this node may have a record. The node of a lock has none.
    pub(super) fn may_be_at(&self, node: &str) -> bool {
        node.matches('/').count() > self.root.matches('/').count() + 1
    }

    pub(super) fn read(&self, node: &str, data: &[u8]) -> Option<RecordedEnd> {
        (self.read)(node, data)
    }
}
