//! What a sink keeps.

use lockkeeper::admin::Owner;
use serde::{Deserialize, Serialize};

/// An operation that was given up because its lock was not granted in any attempt. It has not begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Letter {
    /// The unique id of this letter. An operation that is given up again has another letter.
    pub id: String,
    /// The id of the operation.
    pub operation: String,
    /// The locked object, in the caller's words.
    pub monitor_object: String,
    /// The lock's path.
    pub path: String,
    /// The caller's text about the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_info: Option<String>,
    /// The class of the request, if the lock has classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The work to do, in the caller's own form.
    #[serde(default)]
    pub payload: serde_json::Value,
    /// The number of attempts.
    pub attempts: u32,
    /// The error of the last attempt: `InstanceLock`, `SessionExpired`, `ConnectionLoss`, or `Other`.
    pub error: String,
    /// The same error with its details as one line.
    pub detail: String,
    /// The holder at the end of the last attempt, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// When the first attempt began, in milliseconds since 1970 by the clock of its machine.
    pub first_ms: u64,
    /// When the last attempt ended, by the same clock.
    pub last_ms: u64,
    /// How long all attempts waited together, in milliseconds, without the pauses between them.
    pub waited_ms: u64,
    /// The process that gave it up.
    pub owner: Owner,
}

impl Letter {
    /// Creates a letter with a new id and these fields; the others are set by the caller.
    pub fn new(operation: impl Into<String>, monitor_object: impl Into<String>, path: impl Into<String>) -> Self {
        Letter {
            id: uuid::Uuid::new_v4().to_string(),
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
            owner: lockkeeper::admin::this_process(),
        }
    }
}

/// What happened to a letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Mark {
    /// The id of the letter.
    pub letter: String,
    /// The operation of the letter.
    pub operation: String,
    /// The event.
    pub event: LetterEvent,
    /// When, in milliseconds since 1970 by the clock of its machine.
    pub at_ms: u64,
    /// The process that did it.
    pub by: Owner,
}

impl Mark {
    /// Creates a mark of this letter with the current time and this process.
    pub fn new(letter: &Letter, event: LetterEvent) -> Self {
        let Letter { id, operation, .. } = letter.clone();
        Mark {
            letter: id,
            operation,
            event,
            at_ms: lockkeeper_session::text::wall_clock_ms(),
            by: lockkeeper::admin::this_process(),
        }
    }
}

/// An event in the life of a letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LetterEvent {
    /// It is being replayed. If no further mark follows, it is unknown whether it was done.
    Begun,
    /// It was done.
    Replayed,
    /// It was replayed and failed; the letter stays.
    Failed {
        /// The reason as one line.
        #[serde(rename = "why")]
        reason: String,
    },
    /// It is no longer wanted.
    Dropped {
        /// The reason as one line.
        #[serde(rename = "why")]
        reason: Option<String>,
    },
}

/// One entry of a sink's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LetterRecord {
    /// An operation was given up.
    Letter(Box<Letter>),
    /// An event of a letter.
    Mark(Mark),
}

impl LetterRecord {
    /// Returns the id of its operation.
    pub fn operation(&self) -> &str {
        match self {
            LetterRecord::Letter(letter) => &letter.operation,
            LetterRecord::Mark(mark) => &mark.operation,
        }
    }
}
