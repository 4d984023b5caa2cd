//! What the library says about one contender of a lock.

mod node;

use std::fmt;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    AttemptId, Class, FencingToken, NodeFormat, Owner, ProcessInstance, Revocation, SessionId, Sessionless,
    TraceParent, Zxid, excerpt, node_path, plain,
};
use lockkeeper_session::text::as_millis;
use serde::Serialize;

use crate::grant::Grant;
use crate::identity;

/// A shorter wait is not mentioned.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// The mode of a leased lock's owner, which distinguishes it from the contenders of a queue.
pub const LEASE: &str = "lease";

/// Since when a contender holds a lock or waits for it, as an observer of its tree saw it, by the observer's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Observed {
    /// When it was granted the lock, or when it joined the queue.
    #[serde(rename = "observed_since_ms", serialize_with = "as_millis")]
    pub since: SystemTime,
    /// Whether that is not exact, because the observer did not see it happen. A holder has held the lock since then or longer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub about: bool,
}

/// A contender of a lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ContenderInfo {
    /// The name of its node; empty for the owner of a leased lock, whose node is the lock's own.
    pub node: String,
    /// The mode: `exclusive`, `write`, `read`, `permits`, `class`, and `lease` of the owner of a leased lock.
    pub mode: &'static str,
    /// The number of permits of a semaphore.
    pub permits: Option<u32>,
    /// Its class, if the lock has classes.
    pub class: Option<Class>,
    /// Its owner, as far as the node says.
    pub owner: Option<Owner>,
    /// The owner as one line of text, or what a foreign client's node shows.
    pub described: String,
    /// Its message.
    pub message: Option<String>,
    /// The request to release the lock, and the refusal if it refused.
    pub revocation: Option<Revocation>,
    /// When its node was created, by the server's clock. For a leased lock, when its record was last written. For an abandoned
    /// hold, when the hold began; when it was lost is not known.
    pub since: SystemTime,
    /// When it was granted the lock, by the server's clock, if that is known: from a record, or because its queue has not changed
    /// since it came. A holder of this library that waited for more than a second writes a record 0.1 s after the grant, others when
    /// they have held for 10 s. `None` for waiters, abandoned holds and owners of leased locks, and for a holder whose grant is
    /// not known: [`ContenderInfo::grant`] bounds it.
    pub granted: Option<SystemTime>,
    /// For a holder whose grant is not known: it was granted the lock then or later.
    pub granted_after: Option<SystemTime>,
    /// For a holder whose grant is not known: it was granted the lock then or before. `None` if only the present bounds it.
    pub granted_before: Option<SystemTime>,
    /// Its session; 0 for the owner of a leased lock, which survives sessions.
    pub session: SessionId,
    /// Whether its hold is abandoned: it was lost, and the lock stays unavailable until its lock delay has passed.
    pub abandoned: bool,
    /// The fencing token of its hold; a waiter has the one that its hold will have. The holder of a lock with classes
    /// has the token of the holder marker. `None` for permits, which have no order, and for the owner of a leased lock if a
    /// foreign client has written the record since the grant.
    pub token: Option<FencingToken>,
    /// The path of the node without a session that this waiter is behind. Its client is a foreign one, which waits until
    /// somebody deletes that node ([`LockInfo::sessionless`](crate::admin::LockInfo::sessionless)).
    pub blocked_by: Option<String>,
    /// The paths of the nodes of other holds that its caller keeps while it waits for this lock
    /// ([`Acquire::while_holding`](crate::Acquire::while_holding)).
    pub holds: Vec<String>,
    /// The span of its caller in a distributed trace ([`Acquire::traceparent`](crate::Acquire::traceparent)).
    pub traceparent: Option<TraceParent>,
    /// What an observer of its tree has seen of it. `None` from calls that read the lock.
    pub observed: Option<Observed>,
    /// Its node is a writer's, and it reads until it is upgraded.
    pub(crate) reads: bool,
    /// The id of its attempt, if the node has one.
    #[doc(hidden)]
    pub id: Option<AttemptId>,
    /// The transaction that created its node; 0 for the owner of a leased lock.
    #[doc(hidden)]
    pub czxid: Zxid,
    /// The process whose session has its node, if the node tells it apart.
    pub(crate) process: Option<ProcessInstance>,
}

impl ContenderInfo {
    /// Returns the full path of its node in the lock at `path`.
    pub fn node_path(&self, path: impl AsRef<str>) -> String {
        node_path(path.as_ref(), &self.node)
    }

    /// Whether this holder marker is that of a contender. One without an id may be that of any contender of its session.
    pub(crate) fn marks(&self, contender: &ContenderInfo) -> bool {
        match self.id {
            Some(id) => contender.id == Some(id),
            None => contender.session == self.session,
        }
    }

    /// Whether the node of a foreign client says only that somebody asks it to release.
    #[doc(hidden)]
    pub fn is_bare_request(&self) -> bool {
        self.owner.is_none() && self.revocation.as_ref().is_some_and(|asked| asked.by.is_none())
    }

    /// Whether this node without a session blocks it; see [`Sessionless::blocks`].
    pub(crate) fn is_blocked_by(&self, node: &Sessionless) -> bool {
        node.blocks(self.owner.is_some(), self.czxid)
    }

    /// Notes that it holds the lock. `settled`: when its queue has changed last, if that is known.
    pub(crate) fn holds(&mut self, settled: Option<SystemTime>) {
        // A node that is not read does not say when it was created.
        if !self.abandoned && !self.is_leased() && self.czxid != Zxid(0) {
            self.set_grant(Grant::of(self.since, self.granted, settled));
        }
    }

    fn set_grant(&mut self, grant: Grant) {
        self.granted = grant.known();
        let bounds = self.granted.is_none().then_some(grant);
        (self.granted_after, self.granted_before) =
            (bounds.map(|grant| grant.earliest), bounds.and_then(|grant| grant.latest));
    }

    /// When it was granted the lock: a moment or bounds. `None` for waiters, abandoned holds and owners of leased locks.
    pub fn grant(&self) -> Option<Grant> {
        let bounds = || Some(Grant::between(self.granted_after?, self.granted_before));
        self.granted.map(Grant::at).or_else(bounds)
    }

    /// Notes that the hold before its own ended at `ended`: it was granted the lock then or later. Changes nothing if its grant
    /// is known, or if it may have held the lock beside that hold.
    pub fn held_after(&mut self, ended: SystemTime) {
        let alone = matches!(self.mode, "exclusive" | "write" | "class");
        if let (Some(grant), true) = (self.grant(), alone) {
            self.set_grant(grant.after(ended));
        }
    }

    /// Notes that it waits for the lock.
    pub(crate) fn waits(&mut self) {
        (self.granted, self.granted_after, self.granted_before) = (None, None, None);
    }

    /// Whether it holds the lock, and its record does not say since when. If it waited, the record soon will.
    pub(crate) fn is_undated(&self) -> bool {
        self.granted_after.is_some() && self.owner.is_some() && NodeFormat::of_node(&self.node).allows_new_data()
    }

    /// Returns when it joined the queue. `None` if it was granted the lock within a second, so that it hardly waited. Also `None` for owners of leased locks and for abandoned holds, whose [`since`](ContenderInfo::since) means something else.
    pub fn queued_since(&self) -> Option<SystemTime> {
        let at_once =
            self.grant().and_then(|grant| grant.latest).is_some_and(|latest| latest <= self.since + SHORT_WAIT);
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

    /// ` since 10:42:00` if it is known to a second when it was granted the lock; otherwise the bounds that say more than when its node
    /// was created: `, held since 10:42:00 at the earliest, and since 10:42:07 at the latest`. `time` is the text of a moment.
    #[doc(hidden)]
    pub fn bounds(&self, time: impl Fn(SystemTime) -> String) -> Option<String> {
        let Grant { earliest, latest } = self.grant()?;
        let is_close = |latest: SystemTime| latest.duration_since(earliest).is_ok_and(|apart| apart < SHORT_WAIT);
        let latest = latest.map(|latest| (is_close(latest), time(latest)));
        Some(match latest {
            Some((true, _)) => format!(" since {}", time(earliest)),
            Some((false, latest)) if earliest > self.since => {
                format!(", held since {} at the earliest, and since {latest} at the latest", time(earliest))
            }
            Some((false, latest)) => format!(", held since {latest} at the latest"),
            None if earliest > self.since => format!(", held since {} at the earliest", time(earliest)),
            None => return None,
        })
    }

    /// Whether it owns a leased lock.
    pub(crate) fn is_leased(&self) -> bool {
        self.mode == LEASE
    }
}

/// `build@ci-7 (pid 4711) since 2026-11-20T10:42:03Z: nightly index`; after the time, `, queued since 2026-11-20T10:40:11Z` if it
/// waited for more than a second. If it is not known when it was granted the lock, only the latter, and the bounds that are closer:
/// `, held since 2026-11-20T10:42:00Z at the earliest, queued since 2026-11-20T10:40:11Z`.
impl fmt::Display for ContenderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.described))?;
        let time = humantime::format_rfc3339_seconds;
        // The record of a lease does not say since when.
        if self.abandoned {
            write!(f, ", held since {}; when it was abandoned is not known", time(self.since))?;
        } else if let Some(bounds) = self.bounds(|moment| time(moment).to_string()) {
            f.write_str(&bounds)?;
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
