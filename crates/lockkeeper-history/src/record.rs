//! The data of one record: of a hold, or of refused requests.

use std::time::Duration;

use lockkeeper::admin::Owner;
use lockkeeper::{FencingToken, Loss};
use serde::{Deserialize, Serialize};

use crate::millis::millis;

/// The version of the format that this code writes.
const VERSION: u32 = 1;

/// The most that is read. Records are much smaller; other programs may have written anything.
const MAX_BYTES: usize = 10 * 1024;

/// The longest text of a record, in bytes.
const MAX_TEXT: usize = 240;

/// The longest name of a user, a machine or a program, in bytes.
const MAX_NAME: usize = 64;

/// How a hold ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HoldEnd {
    /// The holder released the lock.
    #[default]
    Released,
    /// The holder released the lock after somebody had asked for it.
    Revoked,
    /// The holder lost the lock.
    Lost,
    /// Somebody removed the holder.
    Broken,
    /// The next holder saw it end, and it left no record: its session ended, or its client keeps no history.
    Unrecorded,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RefusalReason {
    /// The lock was taken, and the request did not wait.
    Taken,
    /// The lock was not granted within the time of the request.
    GaveUp,
    /// The lock was in use in another way.
    Mismatch,
    /// No server could be reached.
    Unreachable,
    /// Somebody asked the waiter to withdraw, or removed it.
    Withdrawn,
}

/// The record of a hold. Its times are durations before the moment at which it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredHold {
    pub(super) lockkeeper: u32,
    #[serde(flatten)]
    pub(super) owner: Owner,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<FencingToken>,
    /// Whether others may have held the lock at the same time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) shared: bool,
    /// In which way it used the lock, as [`LockUse`](super::LockUse) is printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) used_as: Option<String>,
    pub(super) waited_ms: u64,
    pub(super) held_ms: u64,
    /// When it was granted the lock, in milliseconds since 1970 by the servers' clock, if that is known. The write of the record may have
    /// waited for the servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) granted_ms: Option<u64>,
    /// How long before the write the hold ended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) ago_ms: u64,
    #[serde(default, skip_serializing_if = "is_released")]
    pub(super) end: HoldEnd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) loss: Option<Loss>,
    /// Whether the process was stopped or its machine was too busy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) paused: bool,
    /// Who asked for it and why, or more about the loss.
    #[serde(rename = "why", default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The exit status of the command that ran under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u8>,
    /// The holder that this one saw before its own grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<StoredBefore>,
}

/// The holder before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredBefore {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<Owner>,
    /// What the node of a foreign client shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) described: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<FencingToken>,
    /// When it was granted the lock, or joined the queue, in milliseconds since 1970 by the servers' clock.
    pub(super) since_ms: u64,
}

/// The record of requests of one machine that were refused within a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredRefusal {
    pub(super) lockkeeper: u32,
    #[serde(flatten)]
    pub(super) owner: Owner,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    pub(super) reason: RefusalReason,
    /// In which way the lock was used, as [`LockUse`](super::LockUse) is printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) used_as: Option<String>,
    /// How long the last one waited.
    pub(super) waited_ms: u64,
    /// Who held the lock, as the last one saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) holder_message: Option<String>,
    pub(super) count: u32,
    /// How long before the write the last one was refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) ago_ms: u64,
    /// When the first one was refused, in milliseconds since 1970 by the servers' clock; absent for a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) first_ms: Option<i64>,
}

impl StoredHold {
    /// The bytes to store. Long texts are cut.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut record = StoredHold { lockkeeper: VERSION, ..self.clone() };
        record.shorten();
        serde_json::to_vec(&record).expect("a struct of strings and numbers always serialises")
    }

    /// Reads a record; `None` for any other data, and for a later version.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let mut record: StoredHold = parse(data)?;
        record.shorten();
        (record.lockkeeper == VERSION).then_some(record)
    }

    fn shorten(&mut self) {
        shorten_owner(&mut self.owner);
        self.message.iter_mut().chain(&mut self.reason).for_each(|text| shorten(text, MAX_TEXT));
        self.used_as.iter_mut().for_each(|text| shorten(text, MAX_NAME));
        if let Some(before) = &mut self.before {
            before.owner.iter_mut().for_each(shorten_owner);
            before.described.iter_mut().for_each(|text| shorten(text, MAX_NAME));
        }
    }
}

impl StoredRefusal {
    pub(super) fn new(owner: Owner, reason: RefusalReason, waited: Duration) -> Self {
        let (message, used_as, holder, holder_message, first_ms) = (None, None, None, None, None);
        let waited_ms = millis(waited);
        StoredRefusal {
            lockkeeper: VERSION,
            owner,
            message,
            reason,
            used_as,
            waited_ms,
            holder,
            holder_message,
            count: 1,
            ago_ms: 0,
            first_ms,
        }
    }

    /// The bytes to store. Long texts are cut.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut record = self.clone();
        record.shorten();
        serde_json::to_vec(&record).expect("a struct of strings and numbers always serialises")
    }

    /// Reads a record; `None` for any other data, and for a later version.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let mut record: StoredRefusal = parse(data)?;
        record.shorten();
        record.count = record.count.max(1);
        (record.lockkeeper == VERSION).then_some(record)
    }

    fn shorten(&mut self) {
        shorten_owner(&mut self.owner);
        let texts = self.message.iter_mut().chain(&mut self.holder).chain(&mut self.holder_message);
        texts.for_each(|text| shorten(text, MAX_TEXT));
        self.used_as.iter_mut().for_each(|text| shorten(text, MAX_NAME));
    }
}

fn parse<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Option<T> {
    if data.is_empty() || data.len() > MAX_BYTES {
        return None;
    }
    serde_json::from_slice(data).ok()
}

fn shorten_owner(owner: &mut Owner) {
    let names = [&mut owner.user, &mut owner.host].into_iter().chain(&mut owner.program);
    names.for_each(|name| shorten(name, MAX_NAME));
}

fn shorten(text: &mut String, max: usize) {
    text.truncate(text.floor_char_boundary(max));
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_released(end: &HoldEnd) -> bool {
    *end == HoldEnd::Released
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        serde_json::from_str(r#"{"user":"root","host":"db1","pid":5746,"program":"sh"}"#).expect("an owner")
    }

    #[test]
    fn a_record_is_read_as_it_is_written_and_is_small() {
        let token = Some("4294967398".parse().expect("a token"));
        let plain = StoredHold { lockkeeper: 1, owner: owner(), token, waited_ms: 169_000, ..StoredHold::default() };
        let lost = StoredHold {
            end: HoldEnd::Lost,
            loss: Some(Loss::SessionExpired),
            paused: true,
            reason: Some("lockkeeper was paused for too long (6.1 s)".to_owned()),
            before: Some(StoredBefore { owner: Some(owner()), token, since_ms: 1_764_000_000_000, described: None }),
            ..plain.clone()
        };
        for (record, most) in [(plain, 150), (lost, 400)] {
            let data = record.to_bytes();
            assert_eq!(StoredHold::read(&data), Some(record));
            assert!(data.len() <= most, "{} bytes: {}", data.len(), String::from_utf8_lossy(&data));
        }
    }

    #[test]
    fn other_data_and_later_versions_are_no_records() {
        let later = br#"{"lockkeeper":2,"user":"a","host":"b","pid":1,"waited_ms":0,"held_ms":0}"#;
        let large = vec![b' '; MAX_BYTES + 1];
        for data in [&b""[..], b"x", b"{}", b"\xff\xfe", later, &large] {
            assert_eq!(StoredHold::read(data), None);
            assert_eq!(StoredRefusal::read(data), None);
        }
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let message = Some("ä".repeat(1000));
        let record = StoredHold { owner: owner(), message, reason: Some("x".repeat(5000)), ..StoredHold::default() };
        let read = StoredHold::read(&record.to_bytes()).expect("a record");
        assert_eq!(read.message.map(|text| text.len()), Some(MAX_TEXT));
        assert_eq!(read.reason.map(|text| text.len()), Some(MAX_TEXT));
    }
}
