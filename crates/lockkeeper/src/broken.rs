//! What the journal says about a contender that a person removed, and whose word that is.

use std::time::SystemTime;

use lockkeeper_core::{FencingToken, NodeFormat, Owner, SessionId, node_path};
use lockkeeper_session::ensemble::Proof;
use serde::{Deserialize, Serialize};

/// A contender that a person removed from a lock. Returned by [`Admin::broken`](crate::admin::Admin::broken).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Broken {
    /// The path of the lock.
    pub path: String,
    /// The node that was deleted.
    pub node: String,
    /// Whether it held the lock; otherwise it was a waiter.
    pub held: bool,
    /// Its owner, as far as its node said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The owner as one line of text, or what a foreign client's node showed. Print it with `{:?}`, which escapes it.
    pub described: String,
    /// Its message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When its node was created, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    /// Its session.
    pub session: SessionId,
    /// The token of its hold; a waiter has the one that its hold would have had. The next holder's is greater. `None`
    /// if it was unknown, as in [`ContenderInfo::token`](crate::admin::ContenderInfo::token).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<FencingToken>,
    /// The client that broke the lock, as it says itself.
    pub by: Owner,
    /// Whether the server knows its user.
    #[serde(skip)]
    pub proof: Proof,
    /// The reason that it gave. Print it with `{:?}`, which escapes it.
    pub reason: String,
    /// When, by the server's clock. Not stored in the record: the server's creation time of the record's node.
    #[serde(skip, default = "lockkeeper_session::text::unix_epoch")]
    pub at: SystemTime,
}

impl Broken {
    /// Returns whether this break ended the hold or wait with this node, given by its full path, and this token if it
    /// has one. A holder whose node was removed finds out this way which client did it. All holds of a leased lock have one
    /// node, so a break of such a lock without a token is not said to have ended any of them.
    pub fn removed(&self, node: &str, token: Option<FencingToken>) -> bool {
        if node_path(&self.path, &self.node) != node {
            return false;
        }
        match (NodeFormat::of_node(&self.node).parse(&self.node), self.token, token) {
            // No other attempt has this name.
            (Some(name), ..) if name.id.is_some() => true,
            // An earlier node had this name. A writer that became a reader has a token older than its node.
            (Some(_), Some(its), Some(ours)) => its >= ours,
            // A leased lock has one node, whichever client holds it.
            (None, Some(its), Some(ours)) => its == ours,
            // This was its requestor, or an owner whose token could not be read: perhaps another one.
            (None, None, Some(_)) => false,
            _ => true,
        }
    }
}

/// A request to release a lock, as the journal keeps it. Returned by [`Admin::revoked`](crate::admin::Admin::revoked).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Revoked {
    /// The path of the lock.
    pub path: String,
    /// The node that was asked.
    pub node: String,
    /// Its owner, as far as its node said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The owner as one line of text, or what a foreign client's node showed. Print it with `{:?}`, which escapes it.
    pub described: String,
    /// The token of its hold; a waiter has the one that its hold would have had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<FencingToken>,
    /// The client that asked, as it says itself.
    pub by: Owner,
    /// Whether the server knows its user.
    #[serde(skip)]
    pub proof: Proof,
    /// The reason that it gave. Print it with `{:?}`, which escapes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When, by the server's clock. Not stored in the record: the server's creation time of the record's node.
    #[serde(skip, default = "lockkeeper_session::text::unix_epoch")]
    pub at: SystemTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(held: bool, token: Option<FencingToken>) -> Broken {
        Broken {
            path: "/locks/a".to_owned(),
            node: String::new(),
            held,
            owner: None,
            described: String::new(),
            message: None,
            since_ms: 0,
            session: SessionId(1),
            token,
            by: Owner::default(),
            proof: Proof::default(),
            reason: String::new(),
            at: SystemTime::UNIX_EPOCH,
        }
    }

    /// All of them have the node of the lock.
    #[test]
    fn a_break_of_a_leased_lock_ended_no_hold_with_another_token_or_one_that_may_be_another() {
        let token = |number| Some(FencingToken::try_from(number).unwrap());
        let ended = |broken: Broken| broken.removed("/locks/a", token(7));
        assert_eq!((ended(broken(true, token(7))), ended(broken(true, token(6)))), (true, false));
        assert_eq!((ended(broken(true, None)), ended(broken(false, None))), (false, false));
    }
}
