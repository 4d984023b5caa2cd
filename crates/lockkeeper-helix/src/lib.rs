//! Leased locks with priorities, on one node shared with Apache Helix.
//!
//! A [`HelixLock`] is granted immediately or not at all, unless its priority is higher than the owner's. Then the owner
//! is asked to make room. It may clean up for as long as it declared, and then gives the lock up. The hold is a record,
//! not a node of the session. So it survives a lost session, and ends with its lease, its release or a preemption.
//!
//! ```no_run
//! # async fn example() -> Result<(), lockkeeper::Error> {
//! use std::time::Duration;
//! use lockkeeper_helix::HelixLock;
//!
//! let keeper = lockkeeper::Lockkeeper::connect("zk1:2181,zk2:2181,zk3:2181").await?;
//! let guard = HelixLock::new(&keeper, "/locks/rebalance", Duration::from_secs(3600)).user_id("rebalancer").acquire().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`protocol::transition`] makes all decisions; the rest of this crate carries them out under compare-and-set. [`HelixAdmin`] has what
//! operators do about leased locks alone; [`Admin`](lockkeeper::admin::Admin) shows, asks and breaks them as it does all others.
//!
//! # Features
//!
//! - `metrics`: hold times, leases, cleanups and preemptions, as histograms. The guide's page about metrics has the table.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

use lockkeeper_session::ensemble::NodeKind;

mod acquire;
mod admin;
mod approval;
mod error;
mod guard;
mod hold;
mod interface;
mod journal;
mod leases;
mod location;
mod lock;
#[cfg(feature = "metrics")]
mod meters;
mod node;
mod pending;
pub mod protocol;
mod published;
mod queue_lock;
mod recorder;
mod request;
pub mod routing;
mod status;
mod trust;
mod verdict;

pub use acquire::AcquireLease;
pub use admin::HelixAdmin;
pub use approval::{CleanupAlert, Decided, Decision, TransferRule};
pub use error::{AcquireLeaseError, LeaseError};
pub use guard::{HelixGuard, Preemption};
pub use interface::LockOperations;
pub use journal::{DecisionRecord, EmergencyRecord, TransferFacts};
pub use location::{LockLocation, Unlocked};
pub use lock::HelixLock;
pub use lockkeeper::admin::{LockAttributes, RecordError};
pub use pending::TransferRequest;
pub use protocol::{EMERGENCY, Histogram, Scope, ScopeError, Statistics, Tally, Terms, TermsError};
pub use queue_lock::QueueLock;
pub use status::LockStatus;

/// The nodes below `/lockkeeper` that leased locks keep records in, for [`Admin::set_up`](lockkeeper::admin::Admin::set_up).
pub const REGISTERS: [(&str, NodeKind); 2] = [(pending::ROOT, NodeKind::Shared), (published::ROOT, NodeKind::Shared)];
pub use tokio::sync::watch::Receiver as WatchReceiver;
