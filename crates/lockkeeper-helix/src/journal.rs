//! What the journal of interventions keeps about leased locks: decisions about forced transfers, and requests with the emergency
//! priority.

use std::time::SystemTime;

use lockkeeper::admin::{Owner, Proof};
use lockkeeper::journal::Entry;
use lockkeeper_session::text::unix_epoch;
use serde::{Deserialize, Serialize};

/// The facts about an owner that has not finished its cleanup in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TransferFacts {
    /// The path of the lock.
    pub path: String,
    /// The owner's user id.
    pub owner: String,
    /// The owner's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_message: Option<String>,
    /// The owner's priority.
    pub owner_priority: i32,
    /// How long the cleanup has run, in milliseconds.
    pub elapsed_ms: u64,
    /// How long the cleanup may take, in milliseconds.
    pub allotted_ms: u64,
    /// The requestor's user id.
    pub requestor: String,
    /// The requestor's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requestor_message: Option<String>,
    /// The requestor's priority.
    pub requestor_priority: i32,
}

/// A decision about taking a leased lock from an owner that has not finished its cleanup in time. Returned by
/// [`HelixAdmin::decisions`](crate::HelixAdmin::decisions).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DecisionRecord {
    /// The request that was decided.
    pub facts: TransferFacts,
    /// Whether the lock may be taken.
    pub approved: bool,
    /// The client that decided, as it says itself. If a rule decided, the process that applied it.
    pub by: Owner,
    /// Whether the server knows its user.
    #[serde(skip)]
    pub proof: Proof,
    /// The name of the rule, or the name that the deciding program gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// Whether a rule decided.
    #[serde(default)]
    pub by_rule: bool,
    /// The reason that it gave.
    #[serde(rename = "why")]
    pub reason: String,
    /// When, by the server's clock. Not stored in the record: the server's creation time of the record's node.
    #[serde(skip, default = "unix_epoch")]
    pub at: SystemTime,
}

/// A request for a leased lock with the emergency priority. Returned by
/// [`HelixAdmin::emergencies`](crate::HelixAdmin::emergencies).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EmergencyRecord {
    /// The path of the lock.
    pub path: String,
    /// The requestor's user id.
    pub requestor: String,
    /// The requestor's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The requestor's process, as it says itself.
    pub by: Owner,
    /// Whether the server knows its user.
    #[serde(skip)]
    pub proof: Proof,
    /// The reason that it gave.
    #[serde(rename = "why")]
    pub reason: String,
    /// When, by the server's clock. Not stored in the record: the server's creation time of the record's node.
    #[serde(skip, default = "unix_epoch")]
    pub at: SystemTime,
}

impl Entry for DecisionRecord {
    const KIND: &'static str = "decision";

    fn path(&self) -> &str {
        &self.facts.path
    }

    fn stamp(&mut self, proof: Proof, at: SystemTime) {
        (self.proof, self.at) = (proof, at);
    }
}

impl Entry for EmergencyRecord {
    const KIND: &'static str = "emergency";

    fn path(&self) -> &str {
        &self.path
    }

    fn stamp(&mut self, proof: Proof, at: SystemTime) {
        (self.proof, self.at) = (proof, at);
    }
}
