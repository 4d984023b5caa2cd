//! Errors of the library, grouped by what a caller does about them.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::{ClassError, IncompatibleFormat, Loss, NodeFormat, PathError, Revocation};

use crate::acl::LockAcl;
use crate::broken::Broken;
use crate::contender::ContenderInfo;

/// An error of an acquire, of a connect or of an admin call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path is not a valid lock path. Nothing was sent.
    #[error(transparent)]
    InvalidPath(#[from] PathError),
    /// The class name is not valid. Nothing was sent.
    #[error(transparent)]
    InvalidClass(#[from] ClassError),
    /// The number of permits is not possible. Nothing was sent.
    #[error("cannot take {take} of {permits} permits of {path}: {problem}")]
    InvalidPermits {
        /// The path of the semaphore.
        path: String,
        /// How many permits it has.
        permits: u32,
        /// The number of permits that were requested.
        take: u32,
        /// The reason.
        problem: &'static str,
    },
    /// The path states another number of permits than this client, or is not a semaphore.
    #[error("{}", permits_mismatch(path, *ours, *stated))]
    PermitsMismatch {
        /// The path of the semaphore.
        path: String,
        /// The number of permits that this client is configured with.
        ours: u32,
        /// The number that the path states; `None` if the node's data is not a semaphore's.
        stated: Option<u32>,
    },
    /// Earlier contenders use a node format on the path that is incompatible with this attempt's: the two formats do
    /// not see each other, so two contenders would hold the lock.
    #[error("{path} is in use with an incompatible node format: {theirs}")]
    IncompatibleFormat {
        /// The lock.
        path: String,
        /// The node format of the earlier contenders.
        theirs: IncompatibleFormat,
    },
    /// Another client asked this attempt to withdraw before the lock was granted.
    #[error("the wait for {path} was revoked by {by}")]
    Revoked {
        /// The lock.
        path: String,
        /// The requestor and its reason.
        by: Box<Revocation>,
    },
    /// The object already holds the lock, or another call of the same object is acquiring it. The call would wait for
    /// itself.
    #[error("{path} is already held by this object, or another call of it is acquiring the lock")]
    AlreadyHeld {
        /// The lock.
        path: String,
    },
    /// One call requests the same lock twice.
    #[error("{path} is requested twice in one call, which would wait for itself; request each lock once")]
    Duplicate {
        /// The lock.
        path: String,
    },
    /// A call for several locks has no requests. Nothing was sent.
    #[error("multi_lock has no requests; give it at least one")]
    NoLocks,
    /// The session timeout is shorter than 1 ms. Servers would silently replace it by their minimum. Nothing was sent.
    #[error("session timeout {} is not supported: must be at least 1ms, or unset", humantime::format_duration(*given))]
    InvalidSessionTimeout {
        /// The given timeout.
        given: Duration,
    },
    /// The connect string is not valid. Nothing was sent.
    #[error("servers {servers:?}: {problem}")]
    InvalidServers {
        /// The given connect string.
        servers: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate or a key for TLS cannot be used. Nothing was sent.
    #[error("TLS: {problem}")]
    InvalidTls {
        /// The certificate or key, and the reason.
        problem: String,
    },
    /// This kind of access list needs a credential, and the client has none. Nothing was sent.
    #[error("access lists of kind {acl:?} need a credential that all clients of the locks share")]
    NoCredential {
        /// The requested kind of access list.
        acl: LockAcl,
    },
    /// No server opened a session before the deadline, or the session's server did not answer before it. The holder is
    /// unknown.
    #[error("no server answered within {}: {detail}", short(*waited))]
    Unreachable {
        /// The servers that were tried.
        servers: String,
        /// How long they were tried. For a call with a deadline, its timeout.
        waited: Duration,
        /// The result of each server.
        detail: String,
    },
    /// No realm covers this path. Nothing was sent.
    #[error("no realm covers {path}; the realms are {}", realms.join(", "))]
    Unroutable {
        /// The lock.
        path: String,
        /// The prefixes of the realms.
        realms: Vec<String>,
    },
    /// A configured realm is not valid. Nothing was sent.
    #[error("realm {prefix:?}: {problem}")]
    InvalidRealm {
        /// Its prefix.
        prefix: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The servers rejected this client's credentials.
    #[error("{servers} rejected the credentials")]
    AuthFailed {
        /// The servers that were tried.
        servers: String,
    },
    /// The deadline passed before the lock was granted. The attempt's nodes are deleted as soon as the connection
    /// allows it.
    #[error("waited {} for {path}{}", short(*waited), standing(holder.as_deref(), *ahead))]
    Timeout {
        /// The lock.
        path: String,
        /// The timeout, counted from the start of the call.
        waited: Duration,
        /// The holder, as last seen.
        holder: Option<Box<ContenderInfo>>,
        /// The number of contenders ahead, as last seen; it includes the holders.
        ahead: Option<usize>,
    },
    /// Another contender holds the lock, and the caller did not want to wait.
    #[error("{path} is taken{}", standing(holder.as_deref(), *ahead))]
    Held {
        /// The lock.
        path: String,
        /// The holder.
        holder: Option<Box<ContenderInfo>>,
        /// The number of contenders ahead; it includes the holders.
        ahead: Option<usize>,
    },
    /// The queue is longer than the caller's limit.
    #[error("{ahead} contenders are ahead in the queue of {path}; max_waiters allows {most}")]
    TooManyWaiters {
        /// The lock.
        path: String,
        /// The number of contenders ahead; it includes the holders.
        ahead: usize,
        /// The limit.
        most: usize,
    },
    /// The caller's cancellation token was cancelled.
    #[error("the wait for {path} was cancelled")]
    Cancelled {
        /// The lock.
        path: String,
    },
    /// The session ended before the lock was granted, and the position in the queue with it.
    #[error("the position in the queue of {path} is lost: {loss}")]
    SessionLost {
        /// The lock.
        path: String,
        /// How the session ended.
        loss: Loss,
    },
    /// Another client deleted the waiter's node.
    #[error("{}", evicted(path, node, by.as_deref()))]
    Evicted {
        /// The lock.
        path: String,
        /// The node.
        node: String,
        /// The client that broke the wait and its reason, if it gave one.
        by: Option<Box<Broken>>,
    },
    /// A server refused an operation on the lock's nodes.
    #[error("the server refused an operation on {path}: {reason}")]
    Refused {
        /// The lock.
        path: String,
        /// The server's reason.
        reason: String,
    },
    /// Another client deletes the lock's parent node each time that this one creates it.
    #[error("another client keeps deleting the node {path}, which this one creates")]
    ParentVanishes {
        /// The lock.
        path: String,
    },
    /// The connection was lost before the answer. A read changed nothing; after a break,
    /// [`Admin::broken`](crate::Admin::broken) shows whether it took effect.
    #[error("the connection was lost before the answer about {path}")]
    ConnectionLost {
        /// The lock.
        path: String,
    },
    /// The lock node does not exist.
    #[error("there is no lock at {path}")]
    NoSuchLock {
        /// The lock.
        path: String,
    },
    /// A break or a decision needs a reason. Nothing was sent.
    #[error("an intervention on {path} needs a reason: it is recorded for those who ask later")]
    NoReason {
        /// The lock.
        path: String,
    },
    /// A message or a reason is longer than the limit. Nothing was sent.
    #[error("the {what} for {path} has {bytes} bytes; the limit is {max}; shorten it")]
    TooLong {
        /// Which text it is: `message`, `reason` or `refusal`.
        what: &'static str,
        /// The lock.
        path: String,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The node belongs to a foreign client that does not understand requests to release the lock. Nothing was changed.
    #[error("the client of node {node} of {path} does not understand requests to release the lock")]
    CannotAsk {
        /// The lock.
        path: String,
        /// The node.
        node: String,
    },
    /// The lock has no holder.
    #[error("nobody holds {path}")]
    NobodyHolds {
        /// The lock.
        path: String,
    },
    /// The lock has several holders, and the call did not name one. Nothing was changed.
    #[error("{path} has {} holders; name one of them", holders.len())]
    SeveralHold {
        /// The lock.
        path: String,
        /// The holders.
        holders: Vec<ContenderInfo>,
    },
    /// The node is not a contender of the lock, or not any more. Nothing was changed.
    #[error("node {node} is not a contender of {path}")]
    NotContending {
        /// The lock.
        path: String,
        /// The node.
        node: String,
    },
    /// A client of the same or a higher priority owns the lock or will own it next. The owner was not asked.
    #[error("{path} is held or requested by {by} with priority {priority}{}", because(message.as_deref()))]
    Outranked {
        /// The lock.
        path: String,
        /// The owner or the next owner.
        by: String,
        /// Its priority.
        priority: i32,
        /// Its message.
        message: Option<String>,
    },
    /// A request of a higher priority replaced this one.
    #[error("the request for {path} was replaced by {by} with priority {priority}")]
    Preempted {
        /// The lock.
        path: String,
        /// The owner of the other request.
        by: String,
        /// Its priority.
        priority: i32,
    },
    /// The wait ended before the owner finished its cleanup, and the request did not force it. The owner keeps the
    /// lock.
    #[error(
        "owner {owner} with priority {priority} has not finished the cleanup of {path} after {} of {}{}",
        short(*elapsed), short(*allotted), because(message.as_deref())
    )]
    CleanupUnfinished {
        /// The lock.
        path: String,
        /// The owner.
        owner: String,
        /// Its message.
        message: Option<String>,
        /// Its priority.
        priority: i32,
        /// How long the cleanup has run.
        elapsed: Duration,
        /// How long the cleanup may take.
        allotted: Duration,
    },
    /// The terms of a leased lock are not valid. Nothing was sent.
    #[error(transparent)]
    InvalidTerms(#[from] lockkeeper_core::helix::TermsError),
    /// The scope of a leased lock is not valid. Nothing was sent.
    #[error(transparent)]
    InvalidScope(#[from] lockkeeper_core::helix::ScopeError),
    /// The node's data is not the record of a leased lock.
    #[error("{path}: {problem}")]
    NotARecord {
        /// The lock.
        path: String,
        /// What is wrong with it.
        problem: lockkeeper_core::helix::RecordError,
    },
    /// The lock belongs to another owner, or its lease has expired, so it cannot be handed over. Nothing was changed.
    #[error("{id} cannot hand over {path}, which it does not own{}", owned_by(owner.as_deref()))]
    NotOwner {
        /// The lock.
        path: String,
        /// The client that wanted to hand it over.
        id: String,
        /// The owner, if it is another client.
        owner: Option<String>,
    },
    /// The hold is lost and cannot be renewed.
    #[error("{path} is no longer held: {loss}")]
    LeaseLost {
        /// The lock.
        path: String,
        /// How it was lost.
        loss: Loss,
    },
    /// No request waits for this decision, or not any more. Nothing was changed.
    #[error("no pending request for a decision about {path}{}", named(id.as_deref()))]
    NoSuchRequest {
        /// The lock.
        path: String,
        /// The id, if the call named one.
        id: Option<String>,
    },
    /// The request is already decided. Nothing was changed.
    #[error("{path}: {} already {} the request ({why})", by, if *approved { "approved" } else { "rejected" })]
    Decided {
        /// The lock.
        path: String,
        /// The decision.
        approved: bool,
        /// The client that decided.
        by: String,
        /// Its reason.
        why: String,
    },
    /// The epoch of fencing tokens cannot be read, so no token is certain to be greater than those before.
    #[error("the epoch of fencing tokens in {node} cannot be used: {problem}")]
    TokenEpoch {
        /// The node.
        node: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The owner cannot close the lock while it holds it.
    #[error("{path} is still held; unlock it before closing it")]
    StillOwner {
        /// The lock.
        path: String,
    },
    /// The lock object is closed.
    #[error("this lock object for {path} is closed")]
    LockClosed {
        /// The lock.
        path: String,
    },
    /// The handle is closed.
    #[error("this Lockkeeper is closed")]
    Closed,
    /// The handle belongs to the parent of this forked process.
    #[error("this Lockkeeper belongs to the parent of this forked process")]
    Forked,
    /// The lock delay is out of range, or the node format does not support one. Nothing was sent.
    #[error(
        "lock delay {} is not supported for {path} with node format {node_format:?}: must be 1ms to 1h, Curator format",
        humantime::format_duration(*given)
    )]
    InvalidLockDelay {
        /// The lock.
        path: String,
        /// The given delay.
        given: Duration,
        /// The node format of the path.
        node_format: lockkeeper_core::NodeFormat,
    },
    /// The liveness limit is too short. Nothing was sent.
    #[error("liveness limit {} is not supported for {path}: must be longer than zero", humantime::format_duration(*given))]
    InvalidLiveness {
        /// The lock.
        path: String,
        /// The given limit.
        given: Duration,
    },
    /// The embedded server did not start.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Server(#[from] lockkeeper_server::ServerError),
    /// A file in the embedded server's directory cannot be used.
    #[error("{what} {}: {source}", file.display())]
    File {
        /// The operation that failed.
        what: &'static str,
        /// The file.
        file: std::path::PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The chroot of the connect string does not exist. Nothing was created.
    #[error("the chroot {chroot} does not exist on {servers}")]
    NoChroot {
        /// The servers that were asked.
        servers: String,
        /// The chroot.
        chroot: String,
    },
    /// No server runs in the directory, and this client does not start one.
    #[error("no server is running in {}", dir.display())]
    NotRunning {
        /// The server's directory.
        dir: std::path::PathBuf,
    },
    /// The operating system could not create a thread.
    #[error("cannot create the thread for the session's input and output: {0}")]
    Thread(#[source] std::io::Error),
}

impl Error {
    /// Returns whether the same call may succeed later without a change to its arguments.
    pub fn is_retryable(&self) -> bool {
        if let Error::SessionLost { loss: Loss::AuthFailed, .. } = self {
            return false;
        }
        matches!(
            self,
            Error::Unreachable { .. }
                | Error::Timeout { .. }
                | Error::Held { .. }
                | Error::TooManyWaiters { .. }
                | Error::SessionLost { .. }
                | Error::ConnectionLost { .. }
                | Error::Evicted { .. }
                | Error::Revoked { .. }
                | Error::Outranked { .. }
                | Error::Preempted { .. }
                | Error::CleanupUnfinished { .. }
        )
    }

    /// Returns a one-line suggestion of what to do, if there is one. It names calls of this library, not options of the
    /// command.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::NoCredential { .. } => {
                Some("set one with Builder::credential(\"digest\", \"user:password\")".to_owned())
            }
            Error::Unreachable { servers, .. } => {
                Some(format!("check that a ZooKeeper server runs at {servers} and that this machine can reach it"))
            }
            Error::CleanupUnfinished { .. } => {
                Some("wait longer, longer than the cleanup may take, or force the acquire".to_owned())
            }
            // Only the caller knows which servers a command would have to name.
            Error::Timeout { .. } | Error::Held { .. } | Error::SeveralHold { .. } | Error::NotContending { .. } => {
                Some("see the holders and the waiters with Admin::show".to_owned())
            }
            Error::NoSuchRequest { .. } => Some("see the pending requests with Admin::requests".to_owned()),
            Error::Unroutable { .. } => Some("add a realm for the path; the prefix / covers all paths".to_owned()),
            Error::TooManyWaiters { .. } => {
                Some("try again later, spread the work over several locks, or raise max_waiters".to_owned())
            }
            Error::SessionLost { .. } | Error::Evicted { .. } => Some("try again to enter the queue again".to_owned()),
            Error::PermitsMismatch { stated: Some(stated), .. } => {
                Some(format!("all clients of the path must agree: configure {stated} permits, or use another path"))
            }
            Error::IncompatibleFormat { theirs, .. } => Some(format!(
                "all clients of the path must use the same node format ({}); change this one, or use another path",
                match theirs {
                    IncompatibleFormat::Named(NodeFormat::Curator) => "NodeFormat::Curator",
                    IncompatibleFormat::Named(NodeFormat::Recipe) => "NodeFormat::Recipe",
                    IncompatibleFormat::Named(NodeFormat::Kazoo) => "NodeFormat::Kazoo",
                    IncompatibleFormat::Named(_) => "Lockkeeper::priority_lock",
                    _ => "Lockkeeper::helix_lock",
                }
            )),
            Error::CannotAsk { .. } => {
                Some("ask its owner in another way, or break the lock with Admin::evict".to_owned())
            }
            Error::Forked => Some("connect in the child, after the fork".to_owned()),
            Error::InvalidLockDelay { .. } => Some(
                "set 1ms to 1h on a mutex, a reader, a writer or a semaphore in the node format Curator".to_owned(),
            ),
            Error::InvalidLiveness { .. } => {
                Some("choose a limit longer than the time between two calls of alive()".to_owned())
            }
            Error::TokenEpoch { node, .. } => Some(format!(
                "give all clients read access to {node} and let it contain a number; without the node the epoch is 0"
            )),
            Error::NoChroot { chroot, .. } => {
                Some(format!("check the spelling of {chroot}; Builder::create_chroot(true) creates it"))
            }
            Error::PermitsMismatch { .. } => Some("use a separate path for each semaphore".to_owned()),
            Error::Refused { .. } => Some("check the ACL of the lock's node and of its parents".to_owned()),
            #[cfg(feature = "embedded")]
            Error::Server(error) => Some(error.hint()),
            _ => None,
        }
    }
}

/// Fails if this text is longer than `max` bytes.
pub(crate) fn check_length(what: &'static str, path: &str, text: Option<&str>, max: usize) -> Result<(), Error> {
    match text.map(str::len).filter(|bytes| *bytes > max) {
        Some(bytes) => Err(Error::TooLong { what, path: path.to_owned(), bytes, max }),
        None => Ok(()),
    }
}

/// Why a release could not be confirmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lock was lost earlier; there was nothing to release.
    #[error("the lock was no longer held: {loss}")]
    NotHeld {
        /// How it was lost.
        loss: Loss,
    },
    /// The object does not hold the lock.
    #[error("this object does not hold {path}")]
    NotLocked {
        /// The lock.
        path: String,
    },
    /// A server refused to delete the node. It stays until the session ends.
    #[error("the server refused to delete the lock's node: {reason}")]
    Failed {
        /// The server's reason.
        reason: String,
    },
}

/// Why an upgrade or a downgrade of a hold failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The deadline passed first. The hold is unchanged.
    #[error("waited {} for the readers of {path} to release", short(*waited))]
    Timeout {
        /// The lock.
        path: String,
        /// The timeout.
        waited: Duration,
    },
    /// The lock was lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
}

/// Why the servers could not confirm that the lock is held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The lock is lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// A server refused the request. As far as the clock shows, the lock is still held.
    #[error("the server refused to confirm the hold of {path}: {reason}")]
    Refused {
        /// The lock.
        path: String,
        /// The server's reason.
        reason: String,
    },
}

/// Why a fenced write failed or has an unknown result. Except for [`WriteError::Unknown`], nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The lock is no longer held.
    #[error("nothing was written: {path} is no longer held: {loss}")]
    Lost {
        /// The lock.
        path: String,
        /// How it was lost.
        loss: Loss,
    },
    /// The result is unknown: the connection was lost before the reply and did not come back while the hold was
    /// trusted, or a server in trouble did not reply. The write took effect once, while this hold held the lock, or not
    /// at all. It is not sent again. Read the nodes to find out.
    #[error("the reply was lost: it is unknown whether the write under {path} took effect; read the nodes to find out")]
    Unknown {
        /// The lock.
        path: String,
    },
    /// The session of a leased lock was lost before the write was sent. The lock may still be held: try again.
    #[error("nothing was written: the session for {path} was lost; try again")]
    NotSent {
        /// The lock.
        path: String,
    },
    /// A node to set or to delete does not exist, or the parent of a node to create does not exist.
    #[error("nothing was written: node {path} does not exist")]
    NoNode {
        /// The node.
        path: String,
    },
    /// A node to create exists.
    #[error("nothing was written: node {path} exists")]
    NodeExists {
        /// The node.
        path: String,
    },
    /// A node's data has another version than the expected one.
    #[error("nothing was written: the data of {path} does not have version {expected}")]
    BadVersion {
        /// The node.
        path: String,
        /// The expected version.
        expected: i32,
    },
    /// A server refused the write.
    #[error("nothing was written: the server refused the write to {path}: {reason}")]
    Refused {
        /// The node.
        path: String,
        /// The server's reason.
        reason: String,
    },
    /// The path is not a valid node path. Nothing was sent.
    #[error(transparent)]
    InvalidPath(#[from] PathError),
    /// The write is larger than a server accepts in one request. Nothing was sent.
    #[error("a write of {bytes} bytes exceeds the {max} bytes of a transaction; split it, or store the data elsewhere")]
    TooLarge {
        /// The size of the write.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

fn evicted(path: &str, node: &str, by: Option<&Broken>) -> String {
    match by {
        Some(broken) => format!("the wait for {path} was broken by {}: {}", broken.by, broken.reason),
        None => format!("the waiter's node {path}/{node} was deleted by someone else"),
    }
}

fn permits_mismatch(path: &str, ours: u32, stated: Option<u32>) -> String {
    match stated {
        Some(1) => format!("{path} has 1 permit, not {ours}"),
        Some(stated) => format!("{path} has {stated} permits, not {ours}"),
        None => format!("{path} is not a semaphore: its data is something else"),
    }
}

/// ", held by build@ci-7 (pid 4711) since … (nightly index), 2 ahead".
fn standing(holder: Option<&ContenderInfo>, ahead: Option<usize>) -> impl fmt::Display {
    let mut text = String::new();
    if let Some(holder) = holder {
        text.push_str(": held by ");
        text.push_str(&holder.to_string());
    }
    if let Some(ahead) = ahead.filter(|ahead| *ahead > 1) {
        text.push_str(&format!(", {ahead} ahead"));
    }
    text
}

/// " as 0aa5…".
fn named(id: Option<&str>) -> impl fmt::Display {
    id.map(|id| format!(" as {id}")).unwrap_or_default()
}

/// ": it is a's".
fn owned_by(owner: Option<&str>) -> impl fmt::Display {
    owner.map(|owner| format!(": it is {owner}'s")).unwrap_or_default()
}

/// " (nightly index)".
fn because(message: Option<&str>) -> impl fmt::Display {
    message.map(|message| format!(" ({message})")).unwrap_or_default()
}

/// Rounds a duration for people.
fn short(duration: Duration) -> humantime::FormattedDuration {
    let millis = duration.as_millis() as u64;
    let fine = match millis {
        0..100 => 1,
        100..1_000 => 10,
        1_000..10_000 => 100,
        _ => 1_000,
    };
    humantime::format_duration(Duration::from_millis((millis + fine / 2) / fine * fine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_for_people() {
        let text = |millis| short(Duration::from_millis(millis)).to_string();
        assert_eq!(text(7), "7ms");
        assert_eq!(text(996), "1s");
        assert_eq!(text(1_999), "2s");
        assert_eq!(text(30_000), "30s");
    }
}
