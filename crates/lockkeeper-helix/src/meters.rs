//! The metrics of leased locks, besides those of every kind of lock.

use metrics::{Unit, describe_histogram};

pub(crate) const LEASE: &str = "lockkeeper_lease_seconds";
pub(crate) const LEASE_HELD: &str = "lockkeeper_lease_held_seconds";
pub(crate) const CLEANUP: &str = "lockkeeper_cleanup_seconds";
pub(crate) const PREEMPTION_WAIT: &str = "lockkeeper_preemption_wait_seconds";

/// Tells the exporter what each metric means, and its unit.
pub(crate) fn describe() {
    describe_histogram!(LEASE_HELD, Unit::Seconds, "How long leased locks were held, by owner");
    describe_histogram!(LEASE, Unit::Seconds, "The leases of leased locks, with their renewals, by owner");
    describe_histogram!(CLEANUP, Unit::Seconds, "How long the cleanups of preempted owners took, by owner");
    describe_histogram!(
        PREEMPTION_WAIT,
        Unit::Seconds,
        "How long calls waited for the cleanup of an owner, by that owner"
    );
}
