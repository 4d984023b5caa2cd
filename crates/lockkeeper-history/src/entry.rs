//! What the history says about a lock.

use std::time::{Duration, SystemTime};

use lockkeeper::admin::{Broken, Grant, Held, Owner, Revoked};
use lockkeeper::{FencingToken, Loss};
use lockkeeper_session::text::as_millis;
use serde::{Serialize, Serializer};

use super::lock_use::LockUse;
use super::record::{HoldEnd, RefusalReason};
use crate::millis::whole_ms;

/// A hold that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PastHold {
    /// The path of the lock.
    pub path: String,
    /// The holder; `None` for a foreign client whose node names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The holder as one line of text, or what a foreign client's node showed.
    pub described: String,
    /// Its message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The fencing token, if the kind of lock has tokens and it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<FencingToken>,
    /// Whether others may have held the lock at the same time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// In which way it used the lock, if that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_as: Option<LockUse>,
    /// When it joined the queue, by the servers' clock; `None` if that is not known.
    #[serde(rename = "queued_ms", serialize_with = "some_millis", skip_serializing_if = "Option::is_none")]
    pub queued: Option<SystemTime>,
    /// When it was granted the lock, by the servers' clock. Without a record of its own ([`HoldEnd::Unrecorded`]), the earliest time
    /// that is possible: when it joined the queue, or when the recorded hold before it ended.
    #[serde(rename = "granted_ms", serialize_with = "as_millis")]
    pub granted: SystemTime,
    /// When it ended, by the servers' clock. Without a record of its own, the latest time that is possible: when the next holder with a
    /// record was granted the lock.
    #[serde(rename = "ended_ms", serialize_with = "as_millis")]
    pub ended: SystemTime,
    /// How it ended.
    pub end: HoldEnd,
    /// How it was lost, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Whether its process was stopped, or its machine too busy, when it was lost.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Who asked for the lock or broke it, and why; or more about the loss.
    #[serde(rename = "why", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The exit status of the command that ran under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u8>,
}

impl PastHold {
    /// Returns how long it was held. Without a record of its own, the longest time that is possible.
    pub fn held(&self) -> Duration {
        self.ended.duration_since(self.granted).unwrap_or_default()
    }

    /// Returns how long it was held: the shortest and the longest time that are possible.
    pub fn bounds(&self) -> Held {
        let latest = (self.end != HoldEnd::Unrecorded).then_some(self.granted);
        Grant::between(self.granted, latest).held(self.ended)
    }

    /// Returns how long its contender waited; `None` if that is not known.
    pub fn waited(&self) -> Option<Duration> {
        self.queued.map(|queued| self.granted.duration_since(queued).unwrap_or_default())
    }

    /// Returns whether it is recorded that it ended without a release.
    pub fn is_loss(&self) -> bool {
        matches!(self.end, HoldEnd::Lost | HoldEnd::Broken)
    }

    /// Returns whether it is recorded that its holder released it.
    pub fn is_release(&self) -> bool {
        matches!(self.end, HoldEnd::Released | HoldEnd::Revoked)
    }
}

/// Requests of one machine that were refused within about a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Refusal {
    /// The path of the lock.
    pub path: String,
    /// The process of the last one.
    pub owner: Owner,
    /// Its message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Why it was refused.
    pub reason: RefusalReason,
    /// In which way the lock was used, if that is recorded: by the request, or by those that it did not fit to
    /// ([`RefusalReason::Mismatch`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_as: Option<LockUse>,
    /// How many there were.
    pub count: u32,
    /// When the first one was refused, by the servers' clock.
    #[serde(rename = "first_ms", serialize_with = "as_millis")]
    pub first: SystemTime,
    /// When the last one was refused, by the servers' clock.
    #[serde(rename = "last_ms", serialize_with = "as_millis")]
    pub last: SystemTime,
    /// How long the last one waited.
    #[serde(rename = "waited_ms", serialize_with = "whole_ms")]
    pub waited: Duration,
    /// Who held the lock then, as the last one saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The holder's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_message: Option<String>,
}

impl Refusal {
    /// Returns when the last of them asked.
    pub fn asked(&self) -> SystemTime {
        self.last.checked_sub(self.waited).unwrap_or(self.last)
    }
}

/// Something that happened to a lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Entry {
    /// A hold.
    Hold(PastHold),
    /// Refused requests.
    Refused(Refusal),
    /// A contender that somebody removed, and whose hold is not recorded.
    Broken(#[serde(serialize_with = "broken")] Broken),
    /// A request to release the lock, if the hold did not end with it.
    Asked(#[serde(serialize_with = "asked")] Revoked),
}

impl Entry {
    /// Returns the path of its lock.
    pub fn path(&self) -> &str {
        match self {
            Entry::Hold(hold) => &hold.path,
            Entry::Refused(refusal) => &refusal.path,
            Entry::Broken(broken) => &broken.path,
            Entry::Asked(asked) => &asked.path,
        }
    }

    /// Returns when it ended, or happened, by the servers' clock.
    pub fn at(&self) -> SystemTime {
        match self {
            Entry::Hold(hold) => hold.ended,
            Entry::Refused(refusal) => refusal.last,
            Entry::Broken(broken) => broken.at,
            Entry::Asked(asked) => asked.at,
        }
    }

    /// Returns in which way its lock was used, if that is recorded.
    pub fn used_as(&self) -> Option<LockUse> {
        match self {
            Entry::Hold(hold) => hold.used_as,
            Entry::Refused(refusal) => refusal.used_as,
            Entry::Broken(_) | Entry::Asked(_) => None,
        }
    }

    /// Returns the hold, if it is one.
    pub fn hold(&self) -> Option<&PastHold> {
        match self {
            Entry::Hold(hold) => Some(hold),
            _ => None,
        }
    }
}

/// An entry of the journal, with its time.
#[derive(Serialize)]
struct Timed<'a, T> {
    #[serde(flatten)]
    entry: &'a T,
    #[serde(rename = "at_ms", serialize_with = "as_millis")]
    at: SystemTime,
}

fn broken<S: Serializer>(broken: &Broken, serializer: S) -> Result<S::Ok, S::Error> {
    Timed { entry: broken, at: broken.at }.serialize(serializer)
}

fn asked<S: Serializer>(asked: &Revoked, serializer: S) -> Result<S::Ok, S::Error> {
    Timed { entry: asked, at: asked.at }.serialize(serializer)
}

fn some_millis<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => as_millis(time, serializer),
        None => serializer.serialize_none(),
    }
}
