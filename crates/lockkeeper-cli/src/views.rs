//! Records about locks, as `--json` shows them; a lock is JSON itself. The fields are documented and stay.

use jiff::Timestamp;
use lockkeeper::admin::{Broken, Owner, Proof, Revoked};
use lockkeeper_helix::TransferFacts;
use serde::Serialize;

use crate::text::node_path;

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
