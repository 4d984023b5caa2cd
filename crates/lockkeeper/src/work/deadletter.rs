//! Work that was never granted its lock, kept until somebody does something about it.
//!
//! A lock call is one attempt; who wants more makes more of them ([`crate::work::retry`]). When these are used up too, the operation
//! must not vanish: it becomes a [`Letter`] in a [`Sink`]. Letters wait there to be read, replayed or dropped.
//!
//! What a sink keeps is a log of [`Record`]s, to which is only ever added: letters, and marks that say what became of them.
//! What stands is what [`fold`] makes of it, by operation id, so that it does not matter how often a record was added. That is
//! all a sink has to know:
//!
//! - **[`Sink::append`] has stored it when it says so**, as durably as the sink can: a letter that was acknowledged survives a
//!   crash of this process and of the machine. It may be called again with the same record, after an error or a dropped future.
//! - **[`Sink::records`] gives every record at least once**, a letter before its marks, and names what it cannot read instead of
//!   failing or leaving it out silently.
//! - **Many processes append at once.** None overwrites or tears what another has written.
//! - **What is stored is private**: letters carry command lines and payloads.
//!
//! [`FileSink`] is the sink that is always there. Another one needs no more than these two methods and a name.

mod file;
mod fold;
#[cfg(feature = "kafka")]
mod kafka;

use std::fmt;

use futures_util::future::BoxFuture;
use lockkeeper_core::Owner;
use serde::{Deserialize, Serialize};

pub use self::file::FileSink;
pub use self::fold::{Fate, Filed, fold};
#[cfg(feature = "kafka")]
pub use self::kafka::{Address as KafkaAddress, AddressError as KafkaAddressError, KafkaSink, TOPIC as KAFKA_TOPIC};

/// An operation that was given up because its lock was not granted in any attempt. It has not begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Letter {
    /// The operation's id. No other operation ever has it.
    pub operation: String,
    /// What was to be locked, in the caller's words.
    pub monitor_object: String,
    /// The lock's path.
    pub path: String,
    /// What the caller said about the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_info: Option<String>,
    /// The class that it asked in, where the lock has classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What is to be done, in a form of the caller's own.
    #[serde(default)]
    pub payload: serde_json::Value,
    /// How often the lock was asked for.
    pub attempts: u32,
    /// What the last attempt ended with: `InstanceLock`, `SessionExpired`, `ConnectionLoss`, or `Other`.
    pub error: String,
    /// The same with its circumstances, in one line.
    pub detail: String,
    /// Who held the lock at the end of the last attempt, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// When the first attempt began, in milliseconds since 1970 by the clock of its machine.
    pub first_ms: u64,
    /// When the last attempt ended, by the same clock.
    pub last_ms: u64,
    /// How long the attempts waited, all together, in milliseconds; the pauses between them not counted.
    pub waited_ms: u64,
    /// Who gave it up.
    pub owner: Owner,
}

impl Letter {
    /// A letter that says no more than what it is about. Its other fields are there to be set.
    pub fn new(operation: impl Into<String>, monitor_object: impl Into<String>, path: impl Into<String>) -> Self {
        Letter {
            operation: operation.into(),
            monitor_object: monitor_object.into(),
            path: path.into(),
            lock_info: None,
            class: None,
            payload: serde_json::Value::Null,
            attempts: 0,
            error: String::new(),
            detail: String::new(),
            behind: None,
            first_ms: 0,
            last_ms: 0,
            waited_ms: 0,
            owner: crate::identity::this_process(),
        }
    }
}

/// What became of a letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Mark {
    /// The operation of the letter.
    pub operation: String,
    /// What.
    pub event: Event,
    /// When, in milliseconds since 1970 by the clock of its machine.
    pub at_ms: u64,
    /// By whom.
    pub by: Owner,
}

impl Mark {
    /// A mark of now, by this process.
    pub fn new(operation: impl Into<String>, event: Event) -> Self {
        let (operation, at_ms) = (operation.into(), crate::clock::wall_clock_ms());
        Mark { operation, event, at_ms, by: crate::identity::this_process() }
    }
}

/// What can become of a letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// It is being done again. If nothing follows, nobody knows whether it was done.
    Begun,
    /// It was done.
    Replayed,
    /// It was tried again, and was not done; the letter stays.
    Failed {
        /// Why, in one line.
        why: String,
    },
    /// Nobody wants it any more.
    Dropped {
        /// Why, in one line.
        why: Option<String>,
    },
}

/// One entry of a sink's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// Something was given up.
    Letter(Box<Letter>),
    /// Something became of it.
    Mark(Mark),
}

impl Record {
    /// The operation that it is about.
    pub fn operation(&self) -> &str {
        match self {
            Record::Letter(letter) => &letter.operation,
            Record::Mark(mark) => &mark.operation,
        }
    }
}

/// What a sink has.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Records {
    /// Everything that could be read, a letter before its marks.
    pub records: Vec<Record>,
    /// What could not be read: where it is, and why.
    pub unreadable: Vec<String>,
}

/// A place for dead letters. What it has to keep stands at the top of [this module](self).
pub trait Sink: fmt::Debug + Send + Sync {
    /// What people call it: `file:/var/lib/app/dead-letters.jsonl`.
    fn name(&self) -> String;

    /// Adds a record, and returns once it is stored. Dropping the future may leave it stored or not; adding it again does no
    /// harm.
    fn append<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<(), SinkError>>;

    /// Everything that was added. Dropping the future changes nothing.
    fn records(&self) -> BoxFuture<'_, Result<Records, SinkError>>;
}

/// A sink cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("dead letters cannot be {what} {sink}")]
pub struct SinkError {
    /// The sink's name.
    pub sink: String,
    /// What was to be done: `kept in`, `read from`.
    pub what: &'static str,
    /// Why not.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}
