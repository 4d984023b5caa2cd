//! Reads about locks: which locks exist, their holders and their waiters.
//!
//! A read consists of an ordered write, a listing behind it, and the reads that follow. Its result was true at some moment since
//! the call, however far this session's server lags behind the leader. Nothing here changes a node, except for a break
//! that a person requests (`breaking`).

pub(crate) mod contest;
pub(crate) mod questions;
pub(crate) mod revoke;

mod breaking;
mod copy;
mod describe;
mod epoch;
mod follow;
mod handle;
mod info;
mod lease;
mod setup;
mod time;

pub use copy::{Copied, CopyOptions};
pub use follow::Follow;
pub use handle::Admin;
pub use info::{Entries, LeaseInfo, LockInfo, LockListing, RequestorInfo, Unreadable};
pub use lockkeeper_core::leased::{LockAttributes, RecordError};
pub use lockkeeper_core::{Owner, SessionId, TokenEpoch, TraceParent};
pub use revoke::{Asked, RevokeAnswer};

pub use crate::acl::{SetUp, SharedNode};
pub use crate::broken::{Broken, Proof, Revoked};
pub use crate::contender::ContenderInfo;
pub use crate::ensemble::shared::LOCKS;
pub use crate::grant::{Grant, Held};
pub use crate::identity::this_process;
pub use crate::registers::REPLAYS;
