//! Work that runs once per slot on a whole fleet, and the records of its runs.
//!
//! A slot is a calendar period, a time since the last start, or a text. Every host calls [`Job::run`] (or [`Job::claim`]); one of them
//! runs the slot, and the others learn that it is done. The time is that of the servers: a host whose clock is wrong changes nothing.
//!
//! ```no_run
//! # async fn example(keeper: lockkeeper::Lockkeeper) -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper_jobs::{Job, Ran, Slot};
//!
//! let job = Job::new(&keeper, "/jobs/nightly").once_per(Slot::Day).time_zone("Europe/Berlin");
//! match job.run(async |run| make_report(&run.slot().name).await).await? {
//!     Ran::Done(()) => println!("done"),
//!     Ran::Failed(error) => println!("failed: {error}"),
//!     Ran::Unrecorded { work, reason } => println!("ended ({work:?}), but the records may show a crash: {reason}"),
//!     Ran::Lost(loss) => println!("stopped: {loss}"),
//!     Ran::Skipped(skipped) => println!("{skipped}"),
//! }
//! # Ok(())
//! # }
//! # async fn make_report(day: &str) -> Result<(), std::io::Error> { Ok(()) }
//! ```
//!
//! # The slot of a host
//!
//! A host gets the lock at the job's path as any other contender. While another host runs the job, it waits. Its slot is that of
//! the moment at which the servers created its node, not of the moment of the grant. A host that asked on Monday and waited past
//! midnight learns that Monday is done. A slot that is older than the newest run is never run.
//!
//! # At most once, at least once
//!
//! The claim and the check of the hold are one transaction, and so are the record of the end and the release. If a host crashes
//! between the two, it is unknown how much of the work is done. [`Job::on_crash`] decides: [`Rule::Next`] never runs the slot
//! again, so the work is done **at most once**. [`Rule::Retry`] runs it again on the next host that asks before the next slot begins,
//! or later with [`Job::catch_up`]; then it is done **at least once**.
//! [`Rule::Keep`] stops the job until a person decides with [`JobsAdmin::resolve`].
//! [`JobsAdmin::rerun`] lets a slot run again that has ended, also with success. [`JobsAdmin::pause`] keeps all hosts from beginning a
//! run, until a time or until [`JobsAdmin::resume`].
//!
//! # Where the records are
//!
//! Each job has one persistent node below `/lockkeeper/jobs`, of at most 256 KiB. The lock's own node has only contenders, as other
//! locks have. A later version's records are never overwritten.

#![warn(missing_docs)]

use lockkeeper_session::ensemble::NodeKind;

mod admin;
mod calendar;
mod claim;
mod error;
mod expect;
mod follow;
mod job;
pub mod records;
mod run;
mod stored;
mod time;
mod work;

pub use self::admin::{JobState, JobStatus, JobsAdmin, Resolve};
pub use self::claim::{Claim, Skipped};
pub use self::error::JobError;
pub use self::follow::FollowJobs;
pub use self::job::{Job, check_slot};
pub use self::records::{
    EndKind, Expected, JobLog, LeftOut, LogError, NoRerun, Pause, Resolution, Rule, RuleError, RunEnd, RunRecord,
    RunSlot, Schedule, Slot,
};
pub use self::run::{FinishedRun, NotRecorded, Run};
pub use self::time::{known_server_now_ms, server_now_ms};
pub use self::work::Ran;

/// The nodes below `/lockkeeper` that it keeps records in, for [`Admin::set_up`](lockkeeper::admin::Admin::set_up). The first is the
/// one that [`server_now_ms`] writes to.
pub const REGISTERS: [(&str, NodeKind); 1] = [(stored::ROOT, NodeKind::SharedByWriters)];

/// Compiles the examples of the README and of the guide.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide/jobs-library.md")]
    struct Guide;
}
