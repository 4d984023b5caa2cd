//! Work under distributed locks, on the crate [`lockkeeper`]:
//!
//! - [`jobs`]: work that runs once per slot on a whole fleet, such as once per day, and the records of its runs;
//! - [`retry`]: attempts that are repeated;
//! - [`deadletter`]: the record of work that was never granted its lock;
//! - [`contentserv`]: Contentserv's monitor lock, a `synchronized` block on several machines.
//!
//! A program that only runs a job needs [`jobs::Job`]:
//!
//! ```no_run
//! # async fn example() -> Result<(), lockkeeper::Error> {
//! use lockkeeper_work::jobs::{Job, Slot};
//!
//! let keeper = lockkeeper::Lockkeeper::connect("zk1:2181,zk2:2181,zk3:2181").await?;
//! let job = Job::new(&keeper, "/jobs/nightly").once_per(Slot::Day).time_zone("Europe/Berlin");
//! let ran = job.run(async |_run| Ok::<_, std::io::Error>(())).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `kafka`: dead letters in a Kafka topic, with `deadletter::KafkaSink`. Builds librdkafka, which needs a C compiler and make.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

pub mod contentserv;
pub mod deadletter;
pub mod jobs;
pub mod retry;

/// Compiles the examples of the guide.
#[cfg(doctest)]
mod guide {
    #[cfg(feature = "kafka")]
    #[doc = include_str!("../../../docs/guide/dead-letters.md")]
    struct DeadLetters;
    #[doc = include_str!("../../../docs/guide/jobs-library.md")]
    struct Jobs;
}
