//! Jobs that run once per slot: the records of their runs, and the decision whether a host runs a slot.
//!
//! A job is a lock and a log of runs. A host decides while it holds the lock, and claims the slot in one transaction that also
//! checks its hold. Every time here is a stamp of the servers; a client's clock decides nothing. Which calendar period a time
//! belongs to is not decided here, because time zones come from files: [`ClaimTerms::slots`] has the result.

mod decision;
mod log;
mod pause;
mod rules;
mod run;

pub use decision::{ClaimTerms, SlotDecision};
pub use log::{Begin, Expected, JobLog, LogError, NoRerun};
pub use pause::{LeftOut, Pause};
pub use rules::{Rule, RuleError, Schedule, Slot};
pub use run::{EndKind, Resolution, RunEnd, RunRecord, RunSlot};

/// The number of runs, and of slots that a pause left out, that a log keeps by default.
pub const DEFAULT_RUNS: u32 = 100;

/// The maximum number of runs, and of slots that a pause left out, that a log keeps.
pub const MAX_RUNS: u32 = 1000;

/// The maximum number of missed slots that a claim looks back.
pub const MAX_SLOTS_BACK: u32 = 366;

/// The maximum size of the output that a record keeps, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 16 * 1024;
