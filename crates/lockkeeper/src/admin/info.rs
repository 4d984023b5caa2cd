//! What `Admin` says about locks.

use std::time::{Duration, SystemTime};

use lockkeeper_core::TokenEpoch;
use lockkeeper_session::text::{as_millis, as_some_millis};
use serde::{Serialize, Serializer};

use crate::contender::ContenderInfo;

/// A lock and its contenders. As JSON it has the fields that the command prints with `--json`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its path.
    pub path: String,
    /// The number of permits of a semaphore.
    pub permits: Option<u32>,
    /// Whose semaphore it is, if it is one of foreign clients: `curator` or `kazoo`. Its holders are its leases, its waiters those that ask
    /// for one. Curator's semaphores say nowhere how many permits they have.
    pub semaphore: Option<&'static str>,
    /// The holders.
    pub holders: Vec<ContenderInfo>,
    /// The waiters, in the order of the queue.
    pub waiters: Vec<ContenderInfo>,
    /// Nodes with the name of a contender and without a session, in the order of the queue. Contenders of this library skip
    /// them. Foreign clients may wait behind them ([`ContenderInfo::blocked_by`]) until somebody deletes them:
    /// [`Admin::evict`](crate::admin::Admin::evict).
    pub sessionless: Vec<ContenderInfo>,
    /// Children that are not contenders; they are ignored.
    pub unknown: Vec<String>,
    /// How many contenders have entered since the lock's node was created, and when that was. `None` if the contenders' nodes are not
    /// below the lock's node, and from calls that do not say it.
    pub entries: Option<Entries>,
    /// The record of a leased lock; its owner is in `holders` too.
    pub lease: Option<LeaseInfo>,
}

impl LockInfo {
    /// A lock without contenders.
    #[doc(hidden)]
    pub fn unused(path: &str) -> Self {
        let (holders, waiters, sessionless, unknown) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (permits, semaphore, entries, lease) = (None, None, None, None);
        LockInfo { path: path.to_owned(), permits, semaphore, holders, waiters, sessionless, unknown, entries, lease }
    }

    /// The path of the node without a session for which all its waiters wait: nobody holds it, and the first one is behind that node.
    #[doc(hidden)]
    pub fn blocked_by(&self) -> Option<&str> {
        self.waiters.first().filter(|_| self.holders.is_empty())?.blocked_by.as_deref()
    }

    /// Whether its children show no holder and no waiter.
    pub(crate) fn is_quiet(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// Whether a listing shows it: it has a holder, a waiter, a node without a session, or the record of a lease.
    #[doc(hidden)]
    pub fn is_listed(&self) -> bool {
        !self.is_quiet() || !self.sessionless.is_empty() || self.lease.is_some()
    }

    /// Applies the epoch; as read, tokens have epoch 0.
    #[doc(hidden)]
    #[must_use]
    pub fn in_epoch(mut self, epoch: TokenEpoch) -> Self {
        for contender in self.holders.iter_mut().chain(&mut self.waiters) {
            contender.token = contender.token.map(|token| token.in_epoch(epoch));
        }
        self
    }
}

/// How many contenders have entered a lock. The servers count them, of any client, so nothing is stored for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Entries {
    /// How many nodes have been created below the lock's node.
    pub count: u32,
    /// When the lock's node was created, by the server's clock. The servers delete a node that was not used for some time.
    #[serde(rename = "since_ms", serialize_with = "as_millis")]
    pub since: SystemTime,
}

impl Entries {
    /// Creates it.
    #[doc(hidden)]
    pub const fn new(count: u32, since: SystemTime) -> Self {
        Entries { count, since }
    }
}

/// What only a leased lock has: terms, an expiry, and a requestor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The owner's user id; `None` while the previous owner has made room and the requestor has not taken the lock yet.
    pub owner: Option<String>,
    /// The owner's priority; only a higher one can take the lock while the lease runs.
    pub priority: i32,
    /// When the lease expires, by the server's clock; `None` means never. An expired owner keeps the lock until another
    /// client requests it.
    #[serde(flatten, serialize_with = "super::json::until")]
    pub until: Option<SystemTime>,
    /// How long the owner may clean up when it is preempted.
    #[serde(rename = "cleanup_ms", serialize_with = "duration_ms")]
    pub cleanup: Duration,
    /// The requestor that asked the owner to clean up.
    pub requestor: Option<RequestorInfo>,
}

/// A requestor that asked a leased lock's owner to make room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RequestorInfo {
    /// Its user id.
    pub id: String,
    /// Its priority.
    pub priority: i32,
    /// When the owner was first asked, by the server's clock.
    #[serde(rename = "since_ms", serialize_with = "as_millis")]
    pub since: SystemTime,
    /// When its wait ends at the latest: then it takes the lock by force or gives up. `None` means no limit, or that the record does
    /// not say it.
    #[serde(rename = "until_ms", serialize_with = "as_some_millis")]
    pub until: Option<SystemTime>,
}

fn duration_ms<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// The locks of a part of the tree, and the nodes that could not be read. Returned by [`Admin::listing`](crate::admin::Admin::listing).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LockListing {
    /// The locks with holders, waiters or nodes without a session, by path.
    pub locks: Vec<LockInfo>,
    /// The nodes that this client has no right to read, by path. Locks at and below them are missing in `locks`.
    pub unreadable: Vec<Unreadable>,
}

/// A node that this client has no right to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unreadable {
    /// Its path.
    pub path: String,
    /// The server's reason.
    pub reason: String,
}
