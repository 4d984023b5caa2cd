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

pub(crate) use crate::ensemble::shared::JOBS;

/// Every register, and the directory of the replays' locks.
pub(crate) const ALL: [&str; 5] = [journal::ROOT, JOBS, REPLAYS, requests::ROOT, statistics::ROOT];

/// The directory of the locks of replays of dead letters.
pub const REPLAYS: &str = "/lockkeeper/replays";
