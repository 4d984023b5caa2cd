//! Locks as JSON, in one shape: that of the command's `--json`, of what an observer serves, and of programs that serialise a [`LockInfo`].
//! The fields are documented with the command, and stay.

use std::fmt::Write as _;
use std::time::SystemTime;

use lockkeeper_core::{Owner, Revocation, TraceParent};
use lockkeeper_session::text::as_millis_since_1970 as ms;
use serde::{Serialize, Serializer};

use super::info::{Entries, LeaseInfo, LockInfo};
use crate::contender::{ContenderInfo, Observed};

#[derive(Serialize)]
struct LockJson<'a> {
    path: &'a str,
    permits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    semaphore: Option<&'a str>,
    holders: Vec<ContenderJson<'a>>,
    waiters: Vec<ContenderJson<'a>>,
    sessionless: Vec<ContenderJson<'a>>,
    unknown: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Entries>,
    lease: Option<&'a LeaseInfo>,
}

impl Serialize for LockInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        LockJson::of(self).serialize(serializer)
    }
}

impl<'a> LockJson<'a> {
    fn of(lock: &'a LockInfo) -> Self {
        let json = |contender: &'a ContenderInfo| contender.json(&lock.path);
        let waits = |(at, waiter)| ContenderJson { ahead: Some(lock.holders.len() + at), ..json(waiter) };
        LockJson {
            path: &lock.path,
            permits: lock.permits,
            semaphore: lock.semaphore,
            holders: lock.holders.iter().map(json).collect(),
            waiters: lock.waiters.iter().enumerate().map(waits).collect(),
            sessionless: lock.sessionless.iter().map(json).collect(),
            unknown: &lock.unknown,
            entries: lock.entries,
            lease: lock.lease.as_ref(),
        }
    }
}

/// A contender of a lock. Created by [`ContenderInfo::json`].
#[derive(Serialize)]
pub struct ContenderJson<'a> {
    node: String,
    mode: &'a str,
    /// Set for a waiter.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<usize>,
    permits: Option<u32>,
    class: Option<String>,
    user: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    program: Option<&'a str>,
    described: &'a str,
    abandoned: bool,
    /// Whether its process has ended on this machine.
    pub process_gone: bool,
    message: Option<&'a str>,
    revocation: Option<RequestJson<'a>>,
    since: Option<String>,
    since_ms: u64,
    granted: Option<String>,
    granted_ms: Option<u64>,
    /// The bounds of the time of the grant, if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    granted_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    granted_before_ms: Option<u64>,
    #[serde(flatten)]
    observed: Option<Observed>,
    token: Option<i64>,
    /// In the format of ZooKeeper's own tools; most readers of JSON would lose digits of a number of this size.
    session: String,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    holds: &'a [String],
    blocked_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<TraceParent>,
}

impl ContenderInfo {
    /// Returns it as JSON shows a contender of the lock at this path. Reads a few files of `/proc`; no request.
    #[doc(hidden)]
    pub fn json(&self, lock: &str) -> ContenderJson<'_> {
        let owner = self.owner.as_ref();
        ContenderJson {
            node: self.node_path(lock),
            mode: self.mode,
            ahead: None,
            permits: self.permits,
            class: self.class.map(|class| class.to_string()),
            user: owner.map(|owner| owner.user.as_str()),
            host: owner.map(|owner| owner.host.as_str()),
            pid: owner.map(|owner| owner.pid),
            program: owner.and_then(|owner| owner.program.as_deref()),
            described: &self.described,
            abandoned: self.abandoned,
            process_gone: self.process_has_ended(),
            message: self.message.as_deref(),
            revocation: self.revocation.as_ref().map(RequestJson::of),
            since: text(self.since),
            since_ms: ms(self.since),
            granted: self.granted.and_then(text),
            granted_ms: self.granted.map(ms),
            granted_after_ms: self.granted_after.map(ms),
            granted_before_ms: self.granted_before.map(ms),
            observed: self.observed,
            token: self.token.map(|token| token.get()),
            session: self.session.to_string(),
            holds: &self.holds,
            blocked_by: self.blocked_by.as_deref(),
            traceparent: self.traceparent,
        }
    }
}

/// A request to release a lock.
#[derive(Serialize)]
pub struct RequestJson<'a> {
    by: Option<By<'a>>,
    reason: Option<&'a str>,
    at_ms: u64,
    refused: Option<&'a str>,
}

#[derive(Serialize)]
struct By<'a> {
    user: &'a str,
    host: &'a str,
    pid: u32,
}

impl<'a> RequestJson<'a> {
    /// Returns a request as JSON.
    pub fn of(request: &'a Revocation) -> Self {
        let Revocation { by, reason, at_ms, refused, .. } = request;
        let by = by.as_ref().map(|Owner { user, host, pid, .. }| By { user, host, pid: *pid });
        RequestJson { by, reason: reason.as_deref(), at_ms: *at_ms, refused: refused.as_deref() }
    }
}

#[derive(Serialize)]
struct Until {
    until: Option<String>,
    until_ms: Option<u64>,
}

/// The end of a lease, as text and as a number.
pub(super) fn until<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    Until { until: time.and_then(text), until_ms: time.map(ms) }.serialize(serializer)
}

/// `2026-11-20T10:42:03.5Z`
fn text(time: SystemTime) -> Option<String> {
    let mut text = String::new();
    // It has no text for a time after the year 9999.
    write!(text, "{}", humantime::format_rfc3339_millis(time)).ok()?;
    let digits = text.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.').len();
    text.truncate(digits);
    Some(text + "Z")
}
