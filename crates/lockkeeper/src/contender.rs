//! What the library says about one contender of a lock.

use std::fmt;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    AttemptId, Class, FencingToken, NodeFormat, Owner, ProcessInstance, Revocation, SessionId, Sessionless,
    TraceParent, Zxid, excerpt, node_path, plain,
};
use serde::{Serialize, Serializer};

use crate::clock::{as_millis, as_some_millis};
use crate::identity;

/// The mode of a leased lock's owner, which distinguishes it from the contenders of a queue.
pub const LEASE: &str = "lease";

/// A contender of a lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ContenderInfo {
    /// The name of its node; empty for the owner of a leased lock, whose node is the lock's own.
    pub node: String,
    /// The mode: `exclusive`, `write`, `read`, `permits`, `class`, and `lease` of the owner of a leased lock.
    pub mode: &'static str,
    /// The number of permits of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// Its class, if the lock has classes.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub class: Option<Class>,
    /// Its owner, as far as the node says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The owner as one line of text, or what a foreign client's node shows.
    pub described: String,
    /// Its message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The request to release the lock, and the refusal if it refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revocation: Option<Revocation>,
    /// When its node was created, by the server's clock. For a leased lock, when its record was last written. For an abandoned
    /// hold, when the hold began; when it was lost is not known.
    #[serde(serialize_with = "as_millis", rename = "since_ms")]
    pub since: SystemTime,
    /// When it was granted the lock, by the server's clock. A holder of this library that waited for more than a second writes that
    /// into its record 0.1 s after the grant; without such a record, this is `since`, which is right to a second, except for that
    /// 0.1 s, and for a holder that is stopped and cannot write. `None` for waiters,
    /// abandoned holds and owners of leased locks. Also `None` for a holder that is a foreign client, and for one that
    /// [`Follow`](crate::admin::Follow) has seen waiting until its record says it, and in the node format
    /// [`LeaderLatch`](crate::NodeFormat::LeaderLatch).
    #[serde(serialize_with = "as_some_millis", rename = "granted_ms", skip_serializing_if = "Option::is_none")]
    pub granted: Option<SystemTime>,
    /// Its session; 0 for the owner of a leased lock, which survives sessions.
    pub session: SessionId,
    /// Whether its hold is abandoned: it was lost, and the lock stays unavailable until its lock delay has passed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub abandoned: bool,
    /// The fencing token of its hold; a waiter has the one that its hold will have. The holder of a lock with classes
    /// has the token of the holder marker. `None` for permits, which have no order, and for the owner of a leased lock if a
    /// foreign client has written the record since the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<FencingToken>,
    /// The path of the node without a session that this waiter is behind. Its client is a foreign one, which waits until
    /// somebody deletes that node ([`LockInfo::sessionless`](crate::admin::LockInfo::sessionless)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// The paths of the nodes of other holds that its caller keeps while it waits for this lock
    /// ([`Acquire::while_holding`](crate::Acquire::while_holding)).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<String>,
    /// The span of its caller in a distributed trace ([`Acquire::traceparent`](crate::Acquire::traceparent)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// Its node is a writer's, and it reads until it is upgraded.
    #[serde(skip)]
    pub(crate) reads: bool,
    /// An earlier look has seen it wait.
    #[serde(skip)]
    pub(crate) waited: bool,
    /// The id of its attempt, if the node has one.
    #[serde(skip)]
    pub(crate) id: Option<AttemptId>,
    /// The transaction that created its node; 0 for the owner of a leased lock.
    #[serde(skip)]
    pub(crate) czxid: Zxid,
    /// The process whose session has its node, if the node tells it apart.
    #[serde(skip)]
    pub(crate) process: Option<ProcessInstance>,
}

fn as_text<S: Serializer>(class: &Option<Class>, serializer: S) -> Result<S::Ok, S::Error> {
    match class {
        Some(class) => serializer.collect_str(class),
        None => serializer.serialize_none(),
    }
}

impl ContenderInfo {
    /// Returns the full path of its node in the lock at `path`.
    pub fn node_path(&self, path: impl AsRef<str>) -> String {
        node_path(path.as_ref(), &self.node)
    }

    /// Whether this node without a session blocks it; see [`Sessionless::blocks`].
    pub(crate) fn is_blocked_by(&self, node: &Sessionless) -> bool {
        node.blocks(self.owner.is_some(), self.czxid)
    }

    /// Notes that it holds the lock.
    pub(crate) fn holds(&mut self) {
        let at_once = self.dates_grants() && !self.waited && !self.abandoned;
        self.granted = self.granted.or(at_once.then_some(self.since));
    }

    /// Notes that it waits for the lock.
    pub(crate) fn waits(&mut self) {
        (self.granted, self.waited) = (None, true);
    }

    /// Whether its record may soon say when it was granted the lock.
    pub(crate) fn is_undated(&self) -> bool {
        self.granted.is_none() && self.waited && self.dates_grants()
    }

    /// Whether it writes into its record when it was granted the lock, unless that was at once.
    fn dates_grants(&self) -> bool {
        self.owner.is_some() && NodeFormat::of_node(&self.node).allows_new_data()
    }

    /// Returns when it joined the queue. `None` if its record shows that it was granted the lock within a second, so that it hardly waited;
    /// in the node format `LeaderLatch` no record shows that. Also `None` for owners of leased locks and for abandoned holds, whose [`since`](ContenderInfo::since) means something else.
    pub fn queued_since(&self) -> Option<SystemTime> {
        let at_once = self.granted.is_some_and(|granted| granted <= self.since + Duration::from_secs(1));
        (!at_once && !self.abandoned && !self.is_leased()).then_some(self.since)
    }

    /// Returns whether its process has ended on this machine. Its node goes when the session ends.
    ///
    /// `false` if this process cannot know it: on another machine, in another container, on another system than Linux, and for
    /// foreign clients and leases. Reads a few files of `/proc`; no request.
    pub fn process_has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(identity::has_ended)
    }

    /// Returns whether its process runs on this machine now. `false` if this process cannot know it, as of
    /// [`process_has_ended`](ContenderInfo::process_has_ended). Reads a few files of `/proc`; no request.
    pub fn process_runs_here(&self) -> bool {
        self.process.as_ref().is_some_and(identity::runs_here)
    }

    /// Whether it owns a leased lock.
    pub(crate) fn is_leased(&self) -> bool {
        self.mode == LEASE
    }
}

/// `build@ci-7 (pid 4711) since 2026-11-20T10:42:03Z: nightly index`; after the time, `, queued since 2026-11-20T10:40:11Z` if it
/// waited for more than a second, and only that if it is not known when it was granted the lock.
impl fmt::Display for ContenderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.described))?;
        let time = humantime::format_rfc3339_seconds;
        // The record of a lease does not say since when.
        if self.abandoned {
            write!(f, ", held since {}; when it was abandoned is not known", time(self.since))?;
        } else if let Some(granted) = self.granted.filter(|_| !self.is_leased()) {
            write!(f, " since {}", time(granted))?;
        }
        if let Some(since) = self.queued_since() {
            write!(f, ", queued since {}", time(since))?;
        }
        match &self.message {
            Some(message) => write!(f, ": {}", plain(&excerpt(message))),
            None => Ok(()),
        }
    }
}
