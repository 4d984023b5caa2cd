//! Leased locks with priorities, on one node shared with Apache Helix.
//!
//! A [`HelixLock`] is granted immediately or not at all, unless its priority is higher than the owner's. Then the owner
//! is asked to make room. It may clean up for as long as it declared, and then gives the lock up. The hold is a record,
//! not a node of the session. So it survives a lost session, and ends with its lease, its release or a preemption.
//!
//! [`lockkeeper_core::helix::transition`] makes all decisions; the code here carries them out under compare-and-set.

mod acquire;
pub(crate) mod admin;
mod approval;
mod error;
mod guard;
mod hold;
mod interface;
mod leases;
mod lock;
pub(crate) mod node;
mod pending;
mod place;
mod published;
mod recorder;
mod request;
mod status;
mod trust;
mod verdict;

pub use acquire::AcquireLease;
pub use approval::{CleanupAlert, Decided, Decision, TransferRule};
pub use error::{AcquireLeaseError, LeaseError};
pub use guard::{HelixGuard, Preemption};
pub use interface::LockOperations;
pub use lock::HelixLock;
pub use lockkeeper_core::helix::{
    EMERGENCY, Histogram, LockAttributes, RecordError, Scope, ScopeError, Statistics, Tally, Terms, TermsError,
};
pub use pending::TransferRequest;
pub use place::{Place, Unlocked};
pub use status::LockStatus;

pub use crate::registers::journal::{DecisionRecord, EmergencyRecord, TransferFacts};
