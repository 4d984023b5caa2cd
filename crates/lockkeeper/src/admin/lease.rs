//! Leased locks in admin reads: what their record says.
//!
//! The record's owner is returned as a holder, so that a caller sees the holder of any kind of lock. [`LeaseInfo`]
//! has what only a lease has. Times are the server's: a client's clock does not decide whether a lease has expired.

use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::leased::{Held, Record, Requested};
use lockkeeper_core::{FencingToken, Zxid};
use lockkeeper_session::ensemble::{Node, TxnStep, above};
use lockkeeper_session::text::moment;

use super::info::{LeaseInfo, RequestorInfo};
use crate::contender::{ContenderInfo, LEASE};
use crate::contest::Leased;

impl LeaseInfo {
    fn of(record: &Record) -> Self {
        let owner = record.owner.as_ref();
        LeaseInfo {
            owner: owner.map(|owner| owner.id.clone()),
            priority: owner.map_or(0, |owner| owner.priority),
            until: owner.and_then(|owner| moment(owner.until_ms)),
            cleanup: Duration::from_millis(owner.map_or(0, |owner| u64::try_from(owner.cleanup_ms).unwrap_or(0))),
            requestor: record.request.as_ref().map(RequestorInfo::of),
        }
    }
}

impl RequestorInfo {
    fn of(request: &Requested) -> Self {
        RequestorInfo {
            id: request.id.clone(),
            priority: request.priority,
            since: moment(request.since_ms).unwrap_or(UNIX_EPOCH),
            until: request.until_ms.and_then(moment),
        }
    }
}

/// The owner of a record as a holder. Its node is the lock's own, so its name is empty.
fn holder(seen: &Node, record: &Record, owner: &Held) -> ContenderInfo {
    let revocation = owner.revocation.as_deref().cloned();
    ContenderInfo {
        mode: LEASE,
        described: owner.id.clone(),
        message: owner.message.clone(),
        revocation,
        since: moment(seen.mtime_ms).unwrap_or(UNIX_EPOCH),
        token: record.granted_by(seen.mzxid.0).map(|zxid| FencingToken::from_zxid(Zxid(zxid))),
        ..ContenderInfo::unread(String::new())
    }
}

/// The record in a node; `None` if the node is empty, has other data, or the lock is free.
pub(super) fn read(seen: &Node) -> Option<Record> {
    if seen.data.is_empty() {
        return None;
    }
    Record::from_bytes(&seen.data).ok().filter(|record| !record.is_free())
}

/// The steps that write the record at a path, if its node and the parent still have these versions: a record in a node that was created
/// again may have the same version, and each delete of a record also writes the parent.
pub(super) fn rewrite(path: &str, record: &Record, version: i32, parent: i32) -> [TxnStep; 2] {
    [
        TxnStep::Check { path: above(path).to_owned(), version: Some(parent) },
        TxnStep::Write { path: path.to_owned(), data: record.to_bytes(), version: Some(version) },
    ]
}

/// What the node at a lock's path says of a lease; `None` if it has other data, or the lock is free.
pub(crate) fn leased(seen: &Node) -> Option<Leased> {
    let record = read(seen)?;
    let owner = record.owner.as_ref().map(|owner| holder(seen, &record, owner));
    Some(Leased { owner, lease: LeaseInfo::of(&record) })
}
