//! The bytes of the log: one record per batch, and the check of a file's records.
//!
//! This has no I/O, so tests can try every cut and every flipped bit. A record is
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `LKr1` |
//! | 4..8 | CRC-32 of all bytes after it |
//! | 8..16 | length of the whole record, a multiple of 8 |
//! | 16..24 | the store's id |
//! | 24..32 | the number of the file |
//! | 32..40 | the number of the batch, one more than that of the batch before |
//! | 40.. | the batch: numbers, then changes, each after a tag; zeros fill the last 8 bytes |
//!
//! Invariant: only bytes that this store wrote into this file are accepted as a record. An older use of the file
//! leaves no valid records. A client's bytes cannot look like a record, because the client does not know the
//! store's id.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::BufMut;

use crate::store::batch::{Batch, StoredSession, Totals};
use lockkeeper_wire::jute::{Malformed, Reader};

const MARK: [u8; 4] = *b"LKr1";
const HEADER: usize = 40;
const ALIGN: usize = 8;

/// Tags of changes; a zero ends the changes.
const NODE: u8 = 1;
const NODE_GONE: u8 = 2;
const SESSION: u8 = 3;
const SESSION_GONE: u8 = 4;

/// The store and the file that a record belongs to.
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

/// A record with a valid checksum, of any origin.
#[derive(Clone, Copy, Debug)]
struct LogRecord<'a> {
    origin: Origin,
    number: u64,
    len: usize,
    payload: &'a [u8],
}

/// Returns the number in the 8 bytes at a position, which must exist.
fn number_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn origin_at(header: &[u8]) -> Origin {
    Origin { store_id: i64::from_be_bytes(number_at(header, 16).to_be_bytes()), log: number_at(header, 24) }
}

/// Returns the record at the front if it is complete and its origin is wanted.
fn read(bytes: &[u8], wanted: impl FnOnce(Origin) -> bool) -> Option<LogRecord<'_>> {
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
    (bytes[4..8] == checksum).then_some(LogRecord { origin, number, len, payload })
}

/// The end of the records of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The position after the last record.
    pub(super) at: usize,
    /// The position of the last record, if there is one.
    pub(super) last: Option<usize>,
    /// The number of the next record.
    pub(super) next: u64,
    /// Whether an incomplete record follows.
    pub(super) torn: bool,
}

/// Why the records of a file are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// The position of the damage.
    pub(super) at: usize,
    pub(super) what: String,
    /// The file is intact, but records before it are missing.
    pub(super) missing_before: bool,
}

/// Reads the records of a file from its front and passes each payload to `each`. The first record must have the number
/// `next`.
///
/// After the last record there may be anything but a record of this file. Examples are zeros, remains of an older
/// use, and a record that was being written when the power failed. Only the last record can be incomplete, because
/// each one is on the disk before the next one is begun.
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
            return damage(end.at, "the record belongs to another data directory".to_owned());
        }
        match record.origin.log {
            log if log < origin.log => break,
            log if log > origin.log => return damage(end.at, format!("the record belongs to file {log}")),
            _ if record.number != end.next => {
                let what = format!("record {} instead of record {}", record.number, end.next);
                return Err(Damage { at: end.at, what, missing_before: end.at == 0 && record.number > end.next });
            }
            _ => {}
        }
        if each(record.payload).is_err() {
            return damage(end.at, "the record has a valid checksum and invalid contents".to_owned());
        }
        end = End { at: end.at + record.len, last: Some(end.at), next: end.next + 1, torn: false };
    }
    let rest = &bytes[end.at..];
    // Usually only zeros follow.
    let mut later = (ALIGN..rest.len()).step_by(ALIGN).filter(|at| rest[*at..].starts_with(&MARK));
    if let Some(good) = later.find(|at| read(&rest[*at..], |other| other == origin).is_some()) {
        let what = format!("the record is unreadable, and a valid one follows at byte {}", end.at + good);
        return damage(end.at, what);
    }
    end.torn = rest.starts_with(&MARK) && (rest.len() < HEADER || origin_at(rest) == origin);
    Ok(end)
}

/// The changes of several batches: the last value of each node and session.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    pub(super) nodes: BTreeMap<&'a str, Option<&'a [u8]>>,
    pub(super) sessions: BTreeMap<i64, Option<StoredSession>>,
    /// Of the last batch, if there is one.
    pub(super) last: Option<Numbers>,
}

/// The other values of a batch at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) zxid: i64,
    pub(super) next_session: i64,
    pub(super) totals: Totals,
}

impl<'a> Changes<'a> {
    /// Returns the changes of one batch.
    pub(super) fn of(batch: &'a Batch) -> Self {
        let value = |range: &Option<std::ops::Range<usize>>| range.clone().map(|range| &batch.bytes[range]);
        let Batch { zxid, next_session, totals, .. } = *batch;
        Self {
            nodes: batch.nodes.iter().map(|(path, range)| (&**path, value(range))).collect(),
            sessions: batch.sessions.iter().copied().collect(),
            last: Some(Numbers { zxid, next_session, totals }),
        }
    }

    /// Adds the batch in a record's payload.
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

#[cfg(test)]
pub(crate) mod fuzzing {
    use super::{Batch, Changes, Origin, encode, scan};

    const ORIGIN: Origin = Origin { store_id: 5, log: 1 };

    /// Decodes a record's payload; returns how many nodes and sessions it changes.
    pub(crate) fn payload(bytes: &[u8]) -> Option<(usize, usize)> {
        let mut changes = Changes::default();
        changes.add(bytes).ok()?;
        Some((changes.nodes.len(), changes.sessions.len()))
    }

    /// Returns batches as a file.
    pub(crate) fn file(batches: &[Batch]) -> Vec<u8> {
        let mut bytes = Vec::new();
        batches.iter().zip(1..).for_each(|(batch, number)| encode(&mut bytes, ORIGIN, number, batch));
        bytes
    }

    /// Returns the accepted payloads of a file in order, or the position of the damage.
    pub(crate) fn accepted(bytes: &[u8]) -> Result<Vec<&[u8]>, usize> {
        let mut payloads = Vec::new();
        let end = scan(bytes, ORIGIN, 1, |payload| {
            payloads.push(payload);
            Ok(())
        });
        end.map(|_| payloads).map_err(|damage| damage.at)
    }
}
