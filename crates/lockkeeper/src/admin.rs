//! Reads about locks: which locks exist, their holders and their waiters.
//!
//! A read consists of an ordered write, a listing behind it, and the reads that follow. Its result was true at some moment since
//! the call, however far this session's server lags behind the leader. Nothing here changes a node, except for a break
//! that a person requests (`breaking`).

use lockkeeper_core::NodeData;
use lockkeeper_session::ensemble::{Node, NodeKind};

pub(crate) mod questions;
pub(crate) mod revoke;

mod breaking;
mod copy;
mod epoch;
mod follow;
mod handle;
mod info;
mod json;
mod lease;
mod read;
mod setup;

pub use copy::{Copied, CopyOptions};
pub use follow::Follow;
pub use handle::Admin;
pub use info::{Entries, LeaseInfo, LockInfo, LockListing, RequestorInfo, Unreadable};
#[doc(hidden)]
pub use json::{ContenderJson, RequestJson};
pub(crate) use lease::leased;
pub use lockkeeper_core::leased::{LockAttributes, RecordError};
pub use lockkeeper_core::{Owner, SessionId, TokenEpoch, TraceParent};
pub use questions::is_of_records;
pub use read::{Walk, walk};
pub use revoke::{Asked, RevokeAnswer};

pub use crate::broken::{Broken, Revoked};
pub use crate::contender::{ContenderInfo, LEASE, Observed};
pub use crate::grant::{Grant, Held};
pub use crate::identity::this_process;
pub use lockkeeper_session::acl::{SetUp, SharedNode};
pub use lockkeeper_session::ensemble::LOCKS;
pub use lockkeeper_session::ensemble::Proof;

/// Returns whether the process that a contender's node names has ended on this machine. `false` if this process cannot know.
pub fn process_has_ended(node: &Node) -> bool {
    let process = NodeData::read(&node.data).record().and_then(|record| record.process);
    process.as_ref().is_some_and(crate::identity::has_ended)
}

/// The directory of the locks that products take for their own work, such as the replay of a dead letter.
pub const OWN_LOCKS: &str = "/lockkeeper/locks";

/// The nodes below `/lockkeeper` that this crate uses itself: the journal, and the locks of products.
pub const REGISTERS: [(&str, NodeKind); 2] = [(crate::journal::ROOT, NodeKind::Shared), (OWN_LOCKS, NodeKind::Shared)];
