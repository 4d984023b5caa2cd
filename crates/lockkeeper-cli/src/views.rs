//! Locks, contenders and requests, as `--json` shows them. The fields are documented and stay.

use std::time::SystemTime;

use jiff::Timestamp;
use lockkeeper::Revocation;
use lockkeeper::admin::{Asked, Broken, ContenderInfo, LeaseInfo, LockInfo, Owner, Proof, Revoked, TraceParent};
use lockkeeper_helix::TransferFacts;
use lockkeeper_jobs::RunRecord;
use serde::Serialize;

use crate::text::{ahead, node_path};

/// A contender that was removed from a lock, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct BrokenView<'a> {
    path: &'a str,
    node: String,
    held: bool,
    user: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    program: Option<&'a str>,
    described: &'a str,
    message: Option<&'a str>,
    since_ms: u64,
    token: Option<i64>,
    session: String,
    by: ByView<'a>,
    reason: &'a str,
    at: Option<String>,
    at_ms: i64,
}

#[derive(Serialize)]
pub(crate) struct ByView<'a> {
    user: &'a str,
    host: &'a str,
    pid: u32,
    /// The user that the server knows from the kernel, if it proves that.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
}

impl<'a> ByView<'a> {
    /// Returns the view of an owner.
    pub(crate) fn of(owner: &'a Owner) -> Self {
        let Owner { user, host, pid, .. } = owner;
        ByView { user, host, pid: *pid, uid: None }
    }

    /// Returns the view of the writer of a record.
    pub(crate) fn proved(owner: &'a Owner, proof: Proof) -> Self {
        let uid = match proof {
            Proof::User(uid) => Some(uid),
            _ => None,
        };
        ByView { uid, ..ByView::of(owner) }
    }
}

/// A revoke request, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct RequestView<'a> {
    by: Option<ByView<'a>>,
    reason: Option<&'a str>,
    at_ms: u64,
    refused: Option<&'a str>,
}

impl<'a> RequestView<'a> {
    pub(crate) fn of(request: &'a Revocation) -> Self {
        RequestView {
            by: request.by.as_ref().map(ByView::of),
            reason: request.reason.as_deref(),
            at_ms: request.at_ms,
            refused: request.refused.as_deref(),
        }
    }
}

impl<'a> BrokenView<'a> {
    /// Returns the view of a record.
    pub(crate) fn of(broken: &'a Broken) -> Self {
        let owner = broken.owner.as_ref();
        let at = Timestamp::try_from(broken.at).ok();
        BrokenView {
            path: &broken.path,
            node: node_path(&broken.path, &broken.node),
            held: broken.held,
            user: owner.map(|owner| owner.user.as_str()),
            host: owner.map(|owner| owner.host.as_str()),
            pid: owner.map(|owner| owner.pid),
            program: owner.and_then(|owner| owner.program.as_deref()),
            described: &broken.described,
            message: broken.message.as_deref(),
            since_ms: broken.since_ms,
            token: broken.token.map(|token| token.get()),
            session: broken.session.to_string(),
            by: ByView::proved(&broken.by, broken.proof),
            reason: &broken.reason,
            at: at.map(|at| at.to_string()),
            at_ms: at.map_or(0, Timestamp::as_millisecond),
        }
    }
}

/// A recorded request to release a lock, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct AskedView<'a> {
    path: &'a str,
    node: String,
    user: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    described: &'a str,
    token: Option<i64>,
    by: ByView<'a>,
    reason: Option<&'a str>,
    at_ms: i64,
}

impl<'a> AskedView<'a> {
    /// Returns the view of a record.
    pub(crate) fn of(asked: &'a Revoked) -> Self {
        let owner = asked.owner.as_ref();
        AskedView {
            path: &asked.path,
            node: node_path(&asked.path, &asked.node),
            user: owner.map(|owner| owner.user.as_str()),
            host: owner.map(|owner| owner.host.as_str()),
            pid: owner.map(|owner| owner.pid),
            described: &asked.described,
            token: asked.token.map(|token| token.get()),
            by: ByView::proved(&asked.by, asked.proof),
            reason: asked.reason.as_deref(),
            at_ms: Timestamp::try_from(asked.at).map_or(0, Timestamp::as_millisecond),
        }
    }
}

/// A holder or waiter, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct ContenderView<'a> {
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
    process_gone: bool,
    message: Option<&'a str>,
    revocation: Option<RequestView<'a>>,
    since: Option<String>,
    since_ms: i64,
    granted: Option<String>,
    granted_ms: Option<i64>,
    /// The bounds of the time of the grant, if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    granted_after_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    granted_before_ms: Option<i64>,
    token: Option<i64>,
    session: String,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    holds: &'a [String],
    blocked_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<TraceParent>,
}

/// A lock, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct LockView<'a> {
    path: &'a str,
    permits: Option<u32>,
    holders: Vec<ContenderView<'a>>,
    waiters: Vec<ContenderView<'a>>,
    sessionless: Vec<ContenderView<'a>>,
    unknown: &'a [String],
    lease: Option<LeaseView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run: Option<&'a RunRecord>,
}

/// The fields that only a leased lock has, as `--json` shows them. These fields are documented and stay.
#[derive(Serialize)]
struct LeaseView<'a> {
    #[serde(flatten)]
    lease: &'a LeaseInfo,
    until: Option<String>,
}

impl<'a> LeaseView<'a> {
    fn of(lease: &'a LeaseInfo) -> Self {
        let until = lease.until.and_then(|until| Timestamp::try_from(until).ok());
        LeaseView { lease, until: until.map(|until| until.to_string()) }
    }
}

impl<'a> LockView<'a> {
    /// Returns the view of a lock.
    pub(crate) fn of(lock: &'a LockInfo) -> Self {
        let view = |contender: &'a ContenderInfo| ContenderView::of(&lock.path, contender);
        let waits = |(at, waiter)| ContenderView { ahead: Some(ahead(lock, at)), ..view(waiter) };
        LockView {
            path: &lock.path,
            permits: lock.permits,
            holders: lock.holders.iter().map(view).collect(),
            waiters: lock.waiters.iter().enumerate().map(waits).collect(),
            sessionless: lock.sessionless.iter().map(view).collect(),
            unknown: &lock.unknown,
            lease: lock.lease.as_ref().map(LeaseView::of),
            last_run: None,
        }
    }

    /// Returns the view of a lock whose path has no node.
    pub(crate) fn free(path: &'a str) -> Self {
        let (holders, waiters, sessionless) = (Vec::new(), Vec::new(), Vec::new());
        LockView { path, permits: None, holders, waiters, sessionless, unknown: &[], lease: None, last_run: None }
    }

    /// Adds the last run of the job with this lock.
    pub(crate) fn with_last_run(self, last_run: Option<&'a RunRecord>) -> Self {
        LockView { last_run, ..self }
    }
}

impl<'a> ContenderView<'a> {
    /// Returns the view of a contender that was asked to release.
    pub(crate) fn of_asked(path: &str, asked: &'a Asked) -> Self {
        ContenderView { process_gone: asked.process_had_ended(), ..ContenderView::of(path, asked.contender()) }
    }

    /// Returns the view of a contender.
    pub(crate) fn of(path: &str, contender: &'a ContenderInfo) -> Self {
        let owner = contender.owner.as_ref();
        let since = Timestamp::try_from(contender.since).ok();
        let stamp = |time: Option<SystemTime>| time.and_then(|time| Timestamp::try_from(time).ok());
        let granted = stamp(contender.granted);
        ContenderView {
            node: contender.node_path(path),
            mode: contender.mode,
            ahead: None,
            permits: contender.permits,
            class: contender.class.map(|class| class.to_string()),
            user: owner.map(|owner| owner.user.as_str()),
            host: owner.map(|owner| owner.host.as_str()),
            pid: owner.map(|owner| owner.pid),
            program: owner.and_then(|owner| owner.program.as_deref()),
            described: &contender.described,
            abandoned: contender.abandoned,
            process_gone: contender.process_has_ended(),
            message: contender.message.as_deref(),
            revocation: contender.revocation.as_ref().map(RequestView::of),
            since: since.map(|since| since.to_string()),
            since_ms: since.map_or(0, Timestamp::as_millisecond),
            granted: granted.map(|granted| granted.to_string()),
            granted_ms: granted.map(Timestamp::as_millisecond),
            granted_after_ms: stamp(contender.granted_after).map(Timestamp::as_millisecond),
            granted_before_ms: stamp(contender.granted_before).map(Timestamp::as_millisecond),
            token: contender.token.map(|token| token.get()),
            // In the format of ZooKeeper's own tools; most JSON readers would lose digits of a number of this size.
            session: contender.session.to_string(),
            holds: &contender.holds,
            blocked_by: contender.blocked_by.as_deref(),
            traceparent: contender.traceparent,
        }
    }
}

/// The subject of a decision, as `--json` and alerts show it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct FactsView<'a> {
    path: &'a str,
    owner: &'a str,
    owner_message: Option<&'a str>,
    owner_priority: i32,
    elapsed_ms: u64,
    allotted_ms: u64,
    requestor: &'a str,
    requestor_message: Option<&'a str>,
    requestor_priority: i32,
}

impl<'a> FactsView<'a> {
    pub(crate) fn of(facts: &'a TransferFacts) -> Self {
        FactsView {
            path: &facts.path,
            owner: &facts.owner,
            owner_message: facts.owner_message.as_deref(),
            owner_priority: facts.owner_priority,
            elapsed_ms: facts.elapsed_ms,
            allotted_ms: facts.allotted_ms,
            requestor: &facts.requestor,
            requestor_message: facts.requestor_message.as_deref(),
            requestor_priority: facts.requestor_priority,
        }
    }
}
