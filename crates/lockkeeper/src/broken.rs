//! What the journal says about a contender that a person removed.

use std::time::SystemTime;

use lockkeeper_core::{FencingToken, Owner, SessionId};
use serde::{Deserialize, Serialize};

/// One who was removed from a lock by a person, as [`Admin::broken`](crate::Admin::broken) remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Broken {
    /// The lock.
    pub path: String,
    /// The node that was deleted.
    pub node: String,
    /// Whether it held the lock; otherwise it stood in line.
    pub held: bool,
    /// Who stood behind it, as far as its node told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The same in one line; of other makers' nodes, what could be told of them.
    pub described: String,
    /// Why it had asked for the lock, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Since when its node had stood, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    /// The session that it belonged to.
    pub session: SessionId,
    /// The token of its hold, or for a waiter the one that it would have had. The next holder's is greater. `None` if it was not
    /// known, as of [`ContenderInfo::token`](crate::ContenderInfo::token).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<FencingToken>,
    /// Who broke it.
    pub by: Owner,
    /// Why, in their words.
    pub reason: String,
    /// When, by the server's clock. Not in the record: the server's own time of the record's node.
    #[serde(skip, default = "crate::clock::unix_epoch")]
    pub at: SystemTime,
}

impl Broken {
    /// Whether it is the end of the hold or wait with this node, given with its full path, and this token where it has one: by that a
    /// holder that finds its node removed tells who did it.
    pub fn removed(&self, node: &str, token: Option<FencingToken>) -> bool {
        let own = match self.node.as_str() {
            // A leased lock has one node, whoever holds it.
            "" => self.path == node,
            name => node.strip_prefix(&self.path).and_then(|rest| rest.strip_prefix('/')) == Some(name),
        };
        own && self.token.zip(token).is_none_or(|(its, ours)| its == ours)
    }
}
