//! What the library says about one contender of a lock.

use std::fmt;
use std::time::SystemTime;

use lockkeeper_core::{AttemptId, Class, FencingToken, Owner, Revocation, SessionId};
use serde::{Serialize, Serializer};

use crate::clock::as_millis;

/// How a leased lock's owner is told apart from those who stand in a queue.
pub(crate) const LEASE: &str = "lease";

/// One who holds a lock or waits for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ContenderInfo {
    /// Its node's name; empty where it is the lock's own node, as of a leased lock's owner.
    pub node: String,
    /// What it asks for: `exclusive`, `write`, `read`, `permits`, `class`; of a leased lock's owner, `lease`.
    pub mode: &'static str,
    /// How many permits, where it asks for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// Its class, where the lock has classes.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub class: Option<Class>,
    /// Who stands behind it, as far as the node tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The same in one line; of other makers' nodes, what can be told of them.
    pub described: String,
    /// Why, in its own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Who asks it to let go, and its refusal if it has refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revocation: Option<Revocation>,
    /// Since when its node stands, by the server's clock. Of a leased lock, when its record was last written.
    #[serde(serialize_with = "as_millis", rename = "since_ms")]
    pub since: SystemTime,
    /// The session it lives and dies with; 0 of a leased lock's owner, which outlives sessions.
    pub session: SessionId,
    /// It has vanished: its hold ended against its will, and nobody follows it before its lock delay is over.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub vanished: bool,
    /// The token of its hold; for a waiter, the one it will have. A class's holder has that of its mark. `None` of a leased lock's
    /// owner if a foreign client has written the record since the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<FencingToken>,
    /// The id of its attempt, where the node has one.
    #[serde(skip)]
    pub(crate) id: Option<AttemptId>,
}

fn as_text<S: Serializer>(class: &Option<Class>, serializer: S) -> Result<S::Ok, S::Error> {
    match class {
        Some(class) => serializer.collect_str(class),
        None => serializer.serialize_none(),
    }
}

impl ContenderInfo {
    /// The full path of its node, in the lock at `path`.
    pub fn node_path(&self, path: &str) -> String {
        match self.node.as_str() {
            "" => path.to_owned(),
            node => format!("{path}/{node}"),
        }
    }

    /// Whether it owns a leased lock.
    pub(crate) fn is_leased(&self) -> bool {
        self.mode == LEASE
    }
}

/// `build@ci-7 (pid 4711) since 2026-11-20T10:42:03Z: nightly index`
impl fmt::Display for ContenderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.described)?;
        // A lease's record does not say since when.
        if !self.is_leased() {
            write!(f, " since {}", humantime::format_rfc3339_seconds(self.since))?;
        }
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
}
