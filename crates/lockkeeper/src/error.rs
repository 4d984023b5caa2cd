//! What can go wrong, told apart by what a caller would do about it.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::{ClassError, IncompatibleFormat, Loss, NodeFormat, PathError, Revocation};

use crate::admin::ContenderInfo;
use crate::ensemble::acl::LockAcl;

/// Why a lock was not acquired, or a question about locks not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path cannot be a lock's. Nothing was sent.
    #[error(transparent)]
    InvalidPath(#[from] PathError),
    /// The class cannot be one. Nothing was sent.
    #[error(transparent)]
    InvalidClass(#[from] ClassError),
    /// The number of permits cannot be had. Nothing was sent.
    #[error("cannot take {take} of the permits of {path}, of which there are to be {permits}: {problem}")]
    InvalidPermits {
        /// The semaphore.
        path: String,
        /// How many permits it has.
        permits: u32,
        /// How many were asked for.
        take: u32,
        /// What is wrong with that.
        problem: &'static str,
    },
    /// The path has another number of permits than this process thinks, or is no semaphore's.
    #[error("{}", permits_mismatch(path, *ours, *stated))]
    PermitsMismatch {
        /// The semaphore.
        path: String,
        /// How many this process thinks there are.
        ours: u32,
        /// How many the path states; `None` if its data is of another make.
        stated: Option<u32>,
    },
    /// Others came before this attempt who lock the path in a way in which neither sees the other: two would hold it.
    #[error("{path}: others lock it with {theirs}, and would not see this one")]
    IncompatibleFormat {
        /// The lock.
        path: String,
        /// How they do.
        theirs: IncompatibleFormat,
    },
    /// Somebody asked this attempt to withdraw before it was granted.
    #[error("the wait for {path} was called off by {by}")]
    Revoked {
        /// The lock.
        path: String,
        /// Who, and why.
        by: Box<Revocation>,
    },
    /// The object that was to lock it holds it, or another call of it is about to: it would wait for itself.
    #[error("{path} is held by this very object, or another call to lock it is under way")]
    AlreadyHeld {
        /// The lock.
        path: String,
    },
    /// One call asks for the same lock twice.
    #[error("{path} is asked for twice in one call, which would wait for itself")]
    Duplicate {
        /// The lock.
        path: String,
    },
    /// A call for several locks names none: a guard of nothing would protect nothing. Nothing was sent.
    #[error("multi_lock was given no lock; give it at least one request")]
    NoLocks,
    /// The session timeout is less than a millisecond, which servers would silently make their shortest. Nothing was sent.
    #[error("a session timeout of {} is not possible; choose at least 1ms, or leave it out", humantime::format_duration(*given))]
    InvalidSessionTimeout {
        /// What was given.
        given: Duration,
    },
    /// The connect string cannot be read. Nothing was sent.
    #[error("servers {servers:?}: {problem}")]
    InvalidServers {
        /// What was given.
        servers: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate or a key for TLS is of no use. Nothing was sent.
    #[error("TLS: {problem}")]
    InvalidTls {
        /// Which of them, and why.
        problem: String,
    },
    /// An access list for those with the same credential needs a credential. Nothing was sent.
    #[error("{acl:?} access lists need a credential that those who share the locks have in common")]
    NoCredential {
        /// What was asked for.
        acl: LockAcl,
    },
    /// No server answered: none opened a session, or the session's server was silent at the deadline. Nobody knows who holds the lock.
    #[error("no server answered within {}: {detail}", short(*waited))]
    Unreachable {
        /// The servers that were asked.
        servers: String,
        /// How long they were asked; for a call with a deadline, its timeout.
        waited: Duration,
        /// What came back from each.
        detail: String,
    },
    /// No realm has this path. Nothing was sent.
    #[error("no realm has {path}; there are {}", realms.join(", "))]
    Unroutable {
        /// The lock.
        path: String,
        /// The prefixes of the realms.
        realms: Vec<String>,
    },
    /// A realm of a routing cannot be one. Nothing was sent.
    #[error("realm {prefix:?}: {problem}")]
    InvalidRealm {
        /// Its prefix.
        prefix: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The servers refused this process's credentials.
    #[error("{servers} refused the credentials")]
    AuthFailed {
        /// Who was asked.
        servers: String,
    },
    /// The deadline passed first. Nothing of the attempt is left in the queue once the connection is back.
    #[error("waited {} for {path}{}", short(*waited), standing(holder.as_deref(), *ahead))]
    Timeout {
        /// The lock.
        path: String,
        /// The deadline, from the start of the call.
        waited: Duration,
        /// Who held it when last seen.
        holder: Option<Box<ContenderInfo>>,
        /// How many contenders were ahead when last seen, those that hold the lock included.
        ahead: Option<usize>,
    },
    /// Somebody else holds it, and the caller did not want to wait.
    #[error("{path} is taken{}", standing(holder.as_deref(), *ahead))]
    Held {
        /// The lock.
        path: String,
        /// Who holds it.
        holder: Option<Box<ContenderInfo>>,
        /// How many contenders were ahead, those that hold the lock included.
        ahead: Option<usize>,
    },
    /// The line is longer than the caller wants to stand in.
    #[error("{ahead} ahead in the queue of {path}, more than the {most} that max_waiters allows")]
    TooManyWaiters {
        /// The lock.
        path: String,
        /// How many contenders were ahead, those that hold the lock included.
        ahead: usize,
        /// How many it would have stood behind.
        most: usize,
    },
    /// The caller's token was cancelled.
    #[error("the wait for {path} was cancelled")]
    Cancelled {
        /// The lock.
        path: String,
    },
    /// The session ended before the lock was granted; the place in line is gone.
    #[error("the place in line for {path} is lost: {loss}")]
    SessionLost {
        /// The lock.
        path: String,
        /// How the session ended.
        loss: Loss,
    },
    /// Somebody deleted the waiting node.
    #[error("{}", evicted(path, node, by.as_deref()))]
    Evicted {
        /// The lock.
        path: String,
        /// The node.
        node: String,
        /// Who broke the wait and why, if it was broken with a reason.
        by: Option<Box<crate::admin::Broken>>,
    },
    /// A server refused an operation on the lock's nodes.
    #[error("the server refuses an operation on {path}: {reason}")]
    Refused {
        /// The lock.
        path: String,
        /// The server's words.
        reason: String,
    },
    /// The lock's parent node is deleted as often as it is made.
    #[error("the node {path} is deleted by someone as often as it is made")]
    ParentVanishes {
        /// The lock.
        path: String,
    },
    /// The connection was lost before the answer. A question changed nothing; whether a lock was broken,
    /// [`Admin::broken`](crate::Admin::broken) tells.
    #[error("the connection was lost before the answer about {path}")]
    ConnectionLost {
        /// The lock.
        path: String,
    },
    /// There is no such lock node.
    #[error("there is no lock at {path}")]
    NoSuchLock {
        /// The lock.
        path: String,
    },
    /// A lock is not broken, nor decided about, without a reason. Nothing was sent.
    #[error("what is done to {path} needs a reason: those who ask later read it")]
    NoReason {
        /// The lock.
        path: String,
    },
    /// A message or a reason is longer than what is stored. Nothing was sent.
    #[error("the {what} for {path} has {bytes} bytes, and at most {max} are stored; shorten it")]
    TooLong {
        /// Which text it is: `message` or `reason`.
        what: &'static str,
        /// The lock.
        path: String,
        /// How long it is.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The node of a foreign client, which knows no request to release the lock. Nothing was changed.
    #[error("{path} cannot be asked for: the client of its node {node} knows no such request")]
    CannotAsk {
        /// The lock.
        path: String,
        /// The node.
        node: String,
    },
    /// There is nobody to take the lock from.
    #[error("nobody holds {path}")]
    NobodyHolds {
        /// The lock.
        path: String,
    },
    /// More than one holds the lock, and which of them is to go was not said. Nothing was changed.
    #[error("{} hold {path} at once", holders.len())]
    SeveralHold {
        /// The lock.
        path: String,
        /// Who they are.
        holders: Vec<ContenderInfo>,
    },
    /// The node is not one that contends for the lock, or not any more. Nothing was changed.
    #[error("{node} does not contend for {path}")]
    NotContending {
        /// The lock.
        path: String,
        /// The node.
        node: String,
    },
    /// Somebody of the same or a higher priority owns the lock, or is to own it next. Nothing was asked of the owner.
    #[error("{path} is taken by {by} with priority {priority}{}", because(message.as_deref()))]
    Outranked {
        /// The lock.
        path: String,
        /// Who owns it, or comes next.
        by: String,
        /// Its priority.
        priority: i32,
        /// Why, in its words.
        message: Option<String>,
    },
    /// Somebody of a higher priority took this request's place.
    #[error("the request for {path} gave way to {by} with priority {priority}")]
    Preempted {
        /// The lock.
        path: String,
        /// Who came.
        by: String,
        /// Its priority.
        priority: i32,
    },
    /// The wait is over, the owner has not finished its cleanup, and force was not asked for. The owner keeps the lock.
    #[error(
        "cleanup of {path} has not been finished by its owner {owner} with priority {priority} after {} of {}{}",
        short(*elapsed), short(*allotted), because(message.as_deref())
    )]
    CleanupUnfinished {
        /// The lock.
        path: String,
        /// Who owns it.
        owner: String,
        /// Why, in its words.
        message: Option<String>,
        /// Its priority.
        priority: i32,
        /// How long it has been cleaning up.
        elapsed: Duration,
        /// How long it may.
        allotted: Duration,
    },
    /// The terms of a leased lock cannot be. Nothing was sent.
    #[error(transparent)]
    InvalidTerms(#[from] lockkeeper_core::helix::TermsError),
    /// The scope of a leased lock names nothing. Nothing was sent.
    #[error(transparent)]
    InvalidScope(#[from] lockkeeper_core::helix::ScopeError),
    /// The node holds something else than a leased lock's record.
    #[error("{path}: {problem}")]
    NotARecord {
        /// The lock.
        path: String,
        /// What is wrong with it.
        problem: lockkeeper_core::helix::RecordError,
    },
    /// The lock is not this owner's, or its lease is over: there is nothing to hand over. Nothing was changed.
    #[error("{path} is not {id}'s to hand over{}", owned_by(owner.as_deref()))]
    NotOwner {
        /// The lock.
        path: String,
        /// Who asked.
        id: String,
        /// Whose it is, if it is somebody else's.
        owner: Option<String>,
    },
    /// The hold is lost; there is nothing to renew.
    #[error("{path} is not held any more: {loss}")]
    LeaseLost {
        /// The lock.
        path: String,
        /// How it was lost.
        loss: Loss,
    },
    /// Nobody waits for this decision, or not any more. Nothing was changed.
    #[error("no decision about {path} is waited for{}", named(id.as_deref()))]
    NoSuchRequest {
        /// The lock.
        path: String,
        /// Which, if one was named.
        id: Option<String>,
    },
    /// Somebody has decided before. Nothing was changed.
    #[error("{path}: {} has {} already ({why})", by, if *approved { "approved" } else { "rejected" })]
    Decided {
        /// The lock.
        path: String,
        /// What was decided.
        approved: bool,
        /// Who decided.
        by: String,
        /// Why.
        why: String,
    },
    /// The epoch of tokens cannot be read, so nobody can be given a token that is certain to grow.
    #[error("{node}, which states the epoch of fencing tokens, cannot be used: {problem}")]
    TokenEpoch {
        /// The node.
        node: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The lock cannot be closed by its owner.
    #[error("please unlock {path} before closing it")]
    StillOwner {
        /// The lock.
        path: String,
    },
    /// This lock was closed.
    #[error("this lock on {path} is closed")]
    LockClosed {
        /// The lock.
        path: String,
    },
    /// This handle was closed.
    #[error("this Lockkeeper is closed")]
    Closed,
    /// This handle belongs to the process that this one was forked from.
    #[error("this Lockkeeper belongs to the process that this one was forked from")]
    Forked,
    /// A lock delay out of range, or in names that have no room for one. Nothing was sent.
    #[error("a lock delay of {} for {path} in the node format {node_format:?} cannot be had", humantime::format_duration(*given))]
    InvalidLockDelay {
        /// The lock.
        path: String,
        /// What was given.
        given: Duration,
        /// How the path's nodes are named.
        node_format: lockkeeper_core::NodeFormat,
    },
    /// A liveness limit that could not be kept. Nothing was sent.
    #[error("a liveness limit of {} for {path} cannot be kept", humantime::format_duration(*given))]
    InvalidLiveness {
        /// The lock.
        path: String,
        /// What was given.
        given: Duration,
    },
    /// The embedded server could not be started.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Server(#[from] lockkeeper_server::ServerError),
    /// A file of the embedded server's directory could not be used.
    #[error("{what} {}: {source}", file.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// With which file.
        file: std::path::PathBuf,
        /// How it failed.
        source: std::io::Error,
    },
    /// The chroot of the connect string does not exist. Nothing was created.
    #[error("the chroot {chroot} does not exist on {servers}")]
    NoChroot {
        /// Who was asked.
        servers: String,
        /// The chroot.
        chroot: String,
    },
    /// No server runs in the directory, and this client starts none.
    #[error("no server is running in {}", dir.display())]
    NotRunning {
        /// The server's directory.
        dir: std::path::PathBuf,
    },
    /// The operating system gave no thread.
    #[error("no thread for the session's input and output: {0}")]
    Thread(#[source] std::io::Error),
}

impl Error {
    /// Whether the same call may succeed later without anybody changing anything in it.
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

    /// What to do about it, where that can be said in a line.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::NoCredential { .. } => {
                Some("give one: Builder::credential(\"digest\", \"user:password\")".to_owned())
            }
            Error::Unreachable { servers, .. } => {
                Some(format!("check that a ZooKeeper server runs at {servers} and that this machine may reach it"))
            }
            Error::CleanupUnfinished { .. } => {
                Some("wait longer, wait past the cleanup, or take the lock by force".to_owned())
            }
            // No command here: only the caller knows which servers it is for.
            Error::Timeout { .. } | Error::Held { .. } | Error::SeveralHold { .. } | Error::NotContending { .. } => {
                Some("see who holds it and who waits, with Admin::show or with lockkeeper show".to_owned())
            }
            Error::NoSuchRequest { .. } => {
                Some("see what is to be decided, with Admin::requests or with lockkeeper requests".to_owned())
            }
            Error::Unroutable { .. } => Some("add a realm for it; the prefix / has all others".to_owned()),
            Error::TooManyWaiters { .. } => {
                Some("come back later, spread the work over several locks, or raise max_waiters".to_owned())
            }
            Error::SessionLost { .. } | Error::Evicted { .. } => Some("try again to stand in line anew".to_owned()),
            Error::PermitsMismatch { stated: Some(stated), .. } => {
                Some(format!("all who use the path must agree: ask for {stated} permits in all, or use another path"))
            }
            Error::IncompatibleFormat { theirs, .. } => Some(format!(
                "all who use the path must lock it in the same way ({}), or this one needs a path of its own",
                match theirs {
                    IncompatibleFormat::Named(NodeFormat::Curator) => "without --format and without a class",
                    IncompatibleFormat::Named(NodeFormat::Recipe) => "--format recipe",
                    IncompatibleFormat::Named(NodeFormat::Kazoo) => "--format kazoo",
                    IncompatibleFormat::Named(_) => "--foreground, --background or --class",
                    _ => "--lease",
                }
            )),
            Error::CannotAsk { .. } => Some(
                "ask its owner in another way, or break the lock: Admin::evict, lockkeeper break --node".to_owned(),
            ),
            Error::Forked => Some("connect after the fork, in the child".to_owned()),
            Error::InvalidLockDelay { .. } => Some(
                "give one from 1ms to 1h, to a mutex, a reader, a writer or a semaphore in Curator's names".to_owned(),
            ),
            Error::InvalidLiveness { .. } => {
                Some("choose one that is longer than the steps between two calls of alive(), 10ms or more".to_owned())
            }
            Error::TokenEpoch { node, .. } => {
                Some(format!("let everybody read {node}, and let it hold a number; without the node the epoch is 0"))
            }
            Error::NoChroot { chroot, .. } => {
                Some(format!("check the spelling of {chroot}; Builder::create_chroot(true) creates it"))
            }
            Error::PermitsMismatch { .. } => Some("use a path of its own for each semaphore".to_owned()),
            Error::Refused { .. } => Some("check the ACL of the lock's node and of those above it".to_owned()),
            #[cfg(feature = "embedded")]
            Error::Server(error) => Some(error.hint()),
            _ => None,
        }
    }
}

/// Whether this text can be stored whole.
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
    /// The lock was lost before; nothing was left to release.
    #[error("the lock was not held any more: {loss}")]
    NotHeld {
        /// How it was lost.
        loss: Loss,
    },
    /// The object that was to unlock it does not hold it.
    #[error("{path} is not locked by this object")]
    NotLocked {
        /// The lock.
        path: String,
    },
    /// A server refuses to delete the node. It stays until the session ends.
    #[error("the server refuses to delete the lock's node: {reason}")]
    Failed {
        /// The server's words.
        reason: String,
    },
}

/// Why what is held could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The deadline passed first. What was held is held still.
    #[error("waited {} for the readers of {path} to leave", short(*waited))]
    Timeout {
        /// The lock.
        path: String,
        /// The deadline.
        waited: Duration,
    },
    /// The lock was lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
}

/// Why it could not be proved that a lock is held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The lock is lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// A server does not answer the question. What is held is held still, as far as the clock knows.
    #[error("the server refuses to say whether {path} is held: {reason}")]
    Refused {
        /// The lock.
        path: String,
        /// The server's words.
        reason: String,
    },
}

/// Why a fenced write was not done, or may not have been. But for [`WriteError::Unknown`], nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The lock is not held any more.
    #[error("nothing was written: {path} is not held any more: {loss}")]
    Lost {
        /// The lock.
        path: String,
        /// How it was lost.
        loss: Loss,
    },
    /// The connection was lost before the reply, and did not come back while the hold could be trusted; or a server in trouble
    /// gave none. The write was done or not, once and by this hold or not at all; it is not sent again. Read the nodes to know.
    #[error("the reply was lost: the write under {path} may have been done or not")]
    Unknown {
        /// The lock.
        path: String,
    },
    /// The session of a leased lock broke before the write was sent. The lock may be held still: try again.
    #[error("nothing was written: the session under {path} is lost")]
    NotSent {
        /// The lock.
        path: String,
    },
    /// A node to set or delete, or the node above one to create, is not there.
    #[error("nothing was written: there is no node for {path}")]
    NoNode {
        /// The node.
        path: String,
    },
    /// A node to create is there.
    #[error("nothing was written: {path} exists")]
    NodeExists {
        /// The node.
        path: String,
    },
    /// A node's data has another version than it was to have.
    #[error("nothing was written: the data of {path} has not version {expected}")]
    BadVersion {
        /// The node.
        path: String,
        /// What it was to have.
        expected: i32,
    },
    /// A server refuses it.
    #[error("nothing was written: the server refuses it for {path}: {reason}")]
    Refused {
        /// The node.
        path: String,
        /// The server's words.
        reason: String,
    },
    /// The path cannot be a node's. Nothing was sent.
    #[error(transparent)]
    InvalidPath(#[from] PathError),
    /// It is more than a server takes in one request. Nothing was sent.
    #[error(
        "a write of {bytes} bytes is larger than the {max} that fit into one transaction; split it, or store the data elsewhere"
    )]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

fn evicted(path: &str, node: &str, by: Option<&crate::admin::Broken>) -> String {
    match by {
        Some(broken) => format!("the wait for {path} was broken by {}: {}", broken.by, broken.reason),
        None => format!("the waiting node {path}/{node} was deleted by someone else"),
    }
}

fn permits_mismatch(path: &str, ours: u32, stated: Option<u32>) -> String {
    match stated {
        Some(1) => format!("{path} has 1 permit, not {ours}"),
        Some(stated) => format!("{path} has {stated} permits, not {ours}"),
        None => format!("{path} is no semaphore's path: its data is of another make"),
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

/// A duration as people write it, without digits nobody needs.
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
    fn durations_are_told_without_digits_nobody_needs() {
        let told = |millis| short(Duration::from_millis(millis)).to_string();
        assert_eq!(told(7), "7ms");
        assert_eq!(told(996), "1s");
        assert_eq!(told(1_999), "2s");
        assert_eq!(told(30_000), "30s");
    }
}
