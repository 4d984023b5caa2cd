//! Paths that are in use in another way than a call states.

use lockkeeper_core::{IncompatibleFormat, NodeFormat};

use super::ErrorKind;
use super::text::permits_mismatch;

/// The path is in use in another way than the call states. All clients of a path must agree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// The path states another number of permits than this client, or is not a semaphore.
    #[error("{}", permits_mismatch(path, *ours, *stated))]
    Permits {
        /// The path of the semaphore.
        path: String,
        /// The number of permits that this client is configured with.
        ours: u32,
        /// The number that the path states; `None` if the node's data is not a semaphore's.
        stated: Option<u32>,
    },
    /// Earlier contenders use a node format on the path that is incompatible with this attempt's. Contenders of the
    /// two formats do not see each other, so two contenders would hold the lock.
    #[error("{path} is in use with an incompatible node format: {theirs}")]
    Format {
        /// The lock.
        path: String,
        /// The node format of the earlier contenders.
        theirs: IncompatibleFormat,
    },
    /// The node's data is not the record of a leased lock.
    #[error("{path}: {problem}")]
    NotARecord {
        /// The lock.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Mismatch {
    /// Returns [`ErrorKind::Mismatch`].
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::Mismatch
    }

    /// Returns a one-line suggestion of what to do, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Mismatch::Permits { stated: Some(stated), .. } => {
                Some(format!("all clients of the path must agree: configure {stated} permits, or use another path"))
            }
            Mismatch::Permits { .. } => Some("use a separate path for each semaphore".to_owned()),
            Mismatch::Format { theirs, .. } => Some(format!(
                "all clients of the path must use the same node format ({}); change this one, or use another path",
                match theirs {
                    IncompatibleFormat::Named(NodeFormat::Curator) => "NodeFormat::Curator",
                    IncompatibleFormat::Named(NodeFormat::Recipe) => "NodeFormat::Recipe",
                    IncompatibleFormat::Named(NodeFormat::Kazoo) => "NodeFormat::Kazoo",
                    IncompatibleFormat::Named(NodeFormat::LeaderLatch) => "NodeFormat::LeaderLatch",
                    IncompatibleFormat::Named(NodeFormat::Numbered) => "NodeFormat::Numbered",
                    IncompatibleFormat::Named(_) => "Lockkeeper::priority_lock",
                    _ => "HelixLock",
                }
            )),
            Mismatch::NotARecord { .. } => None,
        }
    }
}
