//! Reads about locks: which locks exist, their holders and their waiters.
//!
//! A read consists of an ordered write, a listing behind it, and the reads that follow. Its result was true at some moment since
//! the call, however far this session's server lags behind the leader. Nothing here changes a node, except for a break
//! that a person requests (`breaking`).

pub(crate) mod revoke;

mod breaking;
mod copy;
mod describe;
mod epoch;
mod follow;
#[cfg(feature = "jobs")]
mod follow_jobs;
mod handle;
mod info;
#[cfg(feature = "jobs")]
mod jobs;
mod lease;
mod questions;
mod setup;

pub use copy::{Copied, CopyOptions};
pub use follow::Follow;
#[cfg(feature = "jobs")]
pub use follow_jobs::FollowJobs;
pub use handle::Admin;
pub use info::{LeaseInfo, LockInfo, LockListing, RequestorInfo, Unreadable};
#[cfg(feature = "jobs")]
pub use jobs::{JobState, JobStatus, Resolve};
pub use lockkeeper_core::TokenEpoch;
pub use revoke::{Asked, RevokeAnswer};

pub use crate::acl::{SetUp, SharedNode};
pub use crate::broken::{Broken, Proof};
pub use crate::contender::ContenderInfo;
pub use crate::ensemble::shared::LOCKS;
pub use crate::registers::REPLAYS;
