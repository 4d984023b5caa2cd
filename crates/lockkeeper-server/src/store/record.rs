//! The log as bytes: one record a batch, and the judgement of what a file holds.
//!
//! Pure on purpose: every cut and every flipped bit can be tried without a disk. A record is
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `LKr1` |
//! | 4..8 | CRC-32 of everything behind it |
//! | 8..16 | length of the whole record, a multiple of 8 |
//! | 16..24 | the store's id |
//! | 24..32 | the number of the file |
//! | 32..40 | the number of the batch, one more than that of the batch before |
//! | 40.. | the batch: numbers, then changes, each behind a tag; zeros fill up the last 8 bytes |
//!
//! Invariant: nothing is taken for a record that this store did not write into this very file. So what an earlier use of the
//! file has left is no record, nor are a client's bytes that look like one: it does not know the store's id.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::BufMut;

use crate::store::batch::{Batch, StoredSession, Totals};
use lockkeeper_wire::jute::{Malformed, Reader};

const MARK: [u8; 4] = *b"LKr1";
const HEADER: usize = 40;
const ALIGN: usize = 8;

/// Tags of changes; zeros to the end are none.
const NODE: u8 = 1;
const NODE_GONE: u8 = 2;
const SESSION: u8 = 3;
const SESSION_GONE: u8 = 4;

/// Which file of which store a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) store_id: i64,
    pub(super) log: u64,
}

/// Appends a batch as a record.
pub(super) fn encode(out: &mut Vec<u8>, origin: Origin, number: u64, batch: &Batch) {
    let start = out.len();
    out.put_slice(&MARK);
    out.put_bytes(0, 12);
    out.put_i64(origin.store_id);
    out.put_u64(origin.log);
    out.put_u64(number);
    out.put_i64(batch.zxid);
    out.put_i64(batch.next_session);
    for total in [batch.totals.nodes, batch.totals.sessions, batch.totals.data_bytes] {
        out.put_u64(total);
    }
    for (path, range) in &batch.nodes {
        out.put_u8(if range.is_some() { NODE } else { NODE_GONE });
        put_bytes(out, path.as_bytes());
        if let Some(range) = range {
            put_bytes(out, &batch.bytes[range.clone()]);
        }
    }
    for (id, session) in &batch.sessions {
        out.put_u8(if session.is_some() { SESSION } else { SESSION_GONE });
        out.put_i64(*id);
        if let Some((timeout, password)) = session {
            out.put_u64(millis(*timeout));
            put_bytes(out, password);
        }
    }
    out.resize(start + (out.len() - start).next_multiple_of(ALIGN), 0);
    let len = (out.len() - start) as u64;
    out[start + 8..start + 16].copy_from_slice(&len.to_be_bytes());
    let checksum = crc32fast::hash(&out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&checksum.to_be_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = i32::try_from(bytes.len()).expect("no value in a tree of bounded frames is 2 GiB long");
    out.put_i32(len);
    out.put_slice(bytes);
}

pub(super) fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}

/// A record whose checksum is right, whosever it is.
#[derive(Clone, Copy, Debug)]
struct Record<'a> {
    origin: Origin,
    number: u64,
    len: usize,
    payload: &'a [u8],
}

/// The number of 8 bytes at a place that is known to be there.
fn number_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn origin_at(header: &[u8]) -> Origin {
    Origin { store_id: i64::from_be_bytes(number_at(header, 16).to_be_bytes()), log: number_at(header, 24) }
}

/// The record at the front, if there is a whole one of whom `wanted` says so.
fn read(bytes: &[u8], wanted: impl FnOnce(Origin) -> bool) -> Option<Record<'_>> {
    if !bytes.starts_with(&MARK) || bytes.len() < HEADER {
        return None;
    }
    let origin = origin_at(bytes);
    let len = usize::try_from(number_at(bytes, 8)).ok()?;
    if len < HEADER || len % ALIGN != 0 || len > bytes.len() || !wanted(origin) {
        return None;
    }
    let checksum = crc32fast::hash(&bytes[8..len]).to_be_bytes();
    let (number, payload) = (number_at(bytes, 32), &bytes[HEADER..len]);
    (bytes[4..8] == checksum).then_some(Record { origin, number, len, payload })
}

/// Where the records of a file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The first byte behind the last record.
    pub(super) at: usize,
    /// Where the last record begins, if there is one.
    pub(super) last: Option<usize>,
    /// The number that the next record bears.
    pub(super) next: u64,
    /// What follows is the beginning of a record that did not get to its end.
    pub(super) torn: bool,
}

/// Why the records of a file cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// The first byte of what is wrong.
    pub(super) at: usize,
    pub(super) what: String,
    /// The file as such is whole: what is missing should have come before it.
    pub(super) missing_before: bool,
}

/// Reads the records of a file from its front, the first with the number `next`, and tells each.
///
/// Behind the last one there may be anything but a record of this file: zeros, what an earlier use has left, or a record that
/// was being written when the power went. Only the last can be one of those, because each is on the disk before the next one
/// is begun.
pub(super) fn scan<'a>(
    bytes: &'a [u8],
    origin: Origin,
    next: u64,
    mut each: impl FnMut(&'a [u8]) -> Result<(), Malformed>,
) -> Result<End, Damage> {
    let damage = |at, what: String| Err(Damage { at, what, missing_before: false });
    let mut end = End { at: 0, last: None, next, torn: false };
    loop {
        let rest = &bytes[end.at..];
        let Some(record) = read(rest, |_| true) else { break };
        if record.origin.store_id != origin.store_id {
            return damage(end.at, "the record is of another data directory".to_owned());
        }
        match record.origin.log {
            log if log < origin.log => break,
            log if log > origin.log => return damage(end.at, format!("the record is of file {log}")),
            _ if record.number != end.next => {
                let what = format!("record {} where record {} should be", record.number, end.next);
                return Err(Damage { at: end.at, what, missing_before: end.at == 0 && record.number > end.next });
            }
            _ => {}
        }
        if each(record.payload).is_err() {
            return damage(end.at, "the record says what no record says".to_owned());
        }
        end = End { at: end.at + record.len, last: Some(end.at), next: end.next + 1, torn: false };
    }
    let rest = &bytes[end.at..];
    // Whole pages of zeros are the usual case.
    let mut later = (ALIGN..rest.len()).step_by(ALIGN).filter(|at| rest[*at..].starts_with(&MARK));
    if let Some(good) = later.find(|at| read(&rest[*at..], |other| other == origin).is_some()) {
        let what = format!("no record can be read, and a good one follows at byte {}", end.at + good);
        return damage(end.at, what);
    }
    end.torn = rest.starts_with(&MARK) && (rest.len() < HEADER || origin_at(rest) == origin);
    Ok(end)
}

/// What a number of batches has changed: the value of each node and session at their end.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    pub(super) nodes: BTreeMap<&'a str, Option<&'a [u8]>>,
    pub(super) sessions: BTreeMap<i64, Option<StoredSession>>,
    /// Of the last batch, if there is one.
    pub(super) last: Option<Numbers>,
}

/// What a batch says of the state at its end, besides what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) zxid: i64,
    pub(super) next_session: i64,
    pub(super) totals: Totals,
}

impl<'a> Changes<'a> {
    /// What one batch changes.
    pub(super) fn of(batch: &'a Batch) -> Self {
        let value = |range: &Option<std::ops::Range<usize>>| range.clone().map(|range| &batch.bytes[range]);
        let Batch { zxid, next_session, totals, .. } = *batch;
        Self {
            nodes: batch.nodes.iter().map(|(path, range)| (&**path, value(range))).collect(),
            sessions: batch.sessions.iter().copied().collect(),
            last: Some(Numbers { zxid, next_session, totals }),
        }
    }

    /// Adds the batch of a record.
    pub(super) fn add(&mut self, payload: &'a [u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(payload);
        let (zxid, next_session) = (reader.i64()?, reader.i64()?);
        let mut total = || reader.i64().map(|number| u64::from_be_bytes(number.to_be_bytes()));
        let totals = Totals { nodes: total()?, sessions: total()?, data_bytes: total()? };
        while !reader.is_empty() {
            match reader.u8()? {
                0 => break,
                tag @ (NODE | NODE_GONE) => {
                    let path = reader.buffer()?.ok_or(Malformed)?;
                    let path = std::str::from_utf8(path).map_err(|_| Malformed)?;
                    let value = if tag == NODE { Some(reader.buffer()?.ok_or(Malformed)?) } else { None };
                    self.nodes.insert(path, value);
                }
                SESSION => {
                    let id = reader.i64()?;
                    let timeout_ms = u64::from_be_bytes(reader.i64()?.to_be_bytes());
                    let password = reader.buffer()?.ok_or(Malformed)?.try_into().map_err(|_| Malformed)?;
                    self.sessions.insert(id, Some((Duration::from_millis(timeout_ms), password)));
                }
                SESSION_GONE => {
                    self.sessions.insert(reader.i64()?, None);
                }
                _ => return Err(Malformed),
            }
        }
        self.last = Some(Numbers { zxid, next_session, totals });
        Ok(())
    }
}

#[cfg(test)]
mod tests;

/// For the fuzzer.
#[cfg(test)]
pub(crate) mod fuzzing {
    use super::{Batch, Changes, Origin, encode, scan};

    const ORIGIN: Origin = Origin { store_id: 5, log: 1 };

    /// Reads bytes as a record's batch: how many nodes and sessions it changes.
    pub(crate) fn payload(bytes: &[u8]) -> Option<(usize, usize)> {
        let mut changes = Changes::default();
        changes.add(bytes).ok()?;
        Some((changes.nodes.len(), changes.sessions.len()))
    }

    /// Batches as a file.
    pub(crate) fn file(batches: &[Batch]) -> Vec<u8> {
        let mut bytes = Vec::new();
        batches.iter().zip(1..).for_each(|(batch, number)| encode(&mut bytes, ORIGIN, number, batch));
        bytes
    }

    /// The believed payloads of a file, in order, or where it is damaged.
    pub(crate) fn believed(bytes: &[u8]) -> Result<Vec<&[u8]>, usize> {
        let mut payloads = Vec::new();
        let end = scan(bytes, ORIGIN, 1, |payload| {
            payloads.push(payload);
            Ok(())
        });
        end.map(|_| payloads).map_err(|damage| damage.at)
    }
}
