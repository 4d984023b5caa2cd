//! Side trees below `/lockkeeper`: the journal, the pending decisions, the runs of jobs, and the statistics of a fleet.
//!
//! A lock's own node has none of them. Both protocols write them; `admin` reads them.

#[cfg(feature = "jobs")]
pub(crate) mod jobs;
pub(crate) mod journal;
mod records;
pub(crate) mod requests;
pub(crate) mod statistics;

pub(crate) use records::make;

/// The parent of the logs of all jobs.
pub(crate) const JOBS: &str = "/lockkeeper/jobs";
