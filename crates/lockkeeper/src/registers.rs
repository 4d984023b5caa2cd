//! Side trees below `/lockkeeper`: the journal, the runs of jobs, and the names of the others.
//!
//! A lock's own node has none of them.

pub mod journal;
pub mod records;
pub(crate) mod time;

pub(crate) use records::make;

pub(crate) use crate::ensemble::shared::JOBS;

/// Every register, and the directory of the replays' locks.
pub(crate) const ALL: [&str; 6] = [journal::ROOT, HISTORY, JOBS, REPLAYS, REQUESTS, STATISTICS];

/// The parent of the pending decisions about leased locks.
pub const REQUESTS: &str = "/lockkeeper/requests";

/// The parent of the records of past holds.
pub const HISTORY: &str = "/lockkeeper/history";

/// The parent of the statistics of leased locks.
pub const STATISTICS: &str = "/lockkeeper/stats";

/// The directory of the locks of replays of dead letters.
pub const REPLAYS: &str = "/lockkeeper/replays";
