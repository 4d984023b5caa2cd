//! What the command ends with: its exit codes, and a failure as people and scripts get to see it.
//!
//! The codes are those of sysexits.h where that has a word for it, so that they stay clear of what commands under a lock
//! use themselves (small numbers) and of what a shell reports (126 and above).

use std::fmt;

use lockkeeper::retry::{Cause, Refusal};
use lockkeeper::{Error, IncompatibleFormat, Loss, NodeFormat, PathError};
use lockkeeper_server::ServerError;

use crate::advice::{Suggested, can_be_asked};
use crate::place::Place;

/// Why the command itself ended, as an exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// There is no such lock, nobody to take it from, or nobody agreed: nothing was changed.
    NoSuchLock = 1,
    /// A holder that was asked to release refused.
    Declined = 2,
    /// The command line or a setting is wrong; nothing was done.
    Usage = 64,
    /// No server could be reached.
    Unreachable = 69,
    /// The operating system or the program itself failed.
    Internal = 70,
    /// The embedded server cannot use its directory, its disk or its address.
    CannotServe = 73,
    /// The lock was not acquired: it is taken, or the wait was over.
    NotAcquired = 75,
    /// The lock was lost while the command ran.
    Lost = 76,
    /// A server refused.
    Refused = 77,
    /// The lock is not what the command line says it is.
    Mismatch = 78,
    /// Somebody of a higher priority took the lock while the command ran.
    Preempted = 79,
    /// The session expired while the command waited, and the time was over.
    SessionExpired = 80,
    /// When the lock was to be unlocked, its node was not there any more.
    NoNode = 81,
    /// The command cannot be executed.
    NotExecutable = 126,
    /// The command was not found.
    NotFound = 127,
}

/// The exit statuses of `run` that are lockkeeper's own, what they mean, and more about that. Help and docs/command.md are made
/// of it.
pub(crate) const STATUSES: [(Code, &str, &str); 13] = [
    (
        Code::Usage,
        "the command line or a setting is wrong; nothing was done",
        "so it is if this `run` would wait for a lock of the `run` around it",
    ),
    (Code::Unreachable, "no server was reachable, or none answered by the end of the wait", ""),
    (Code::Internal, "the operating system or lockkeeper failed", ""),
    (Code::CannotServe, "the embedded server cannot use its directory, disk or address", ""),
    (
        Code::NotAcquired,
        "not acquired: taken (--try), --wait is over, or the wait was cancelled",
        "`revoke --node` cancels a wait, and so does deleting the waiting node",
    ),
    (Code::Lost, "the lock was lost while the command ran", "the command was stopped, or had just ended"),
    (Code::Refused, "the server refused", ""),
    (
        Code::Mismatch,
        "the lock is in use in another way, or the chroot does not exist",
        "another number of permits, another kind of lock, or another node format",
    ),
    (Code::Preempted, "a higher priority took the leased lock", "the command was stopped, or had just ended"),
    (
        Code::SessionExpired,
        "the session expired while waiting",
        "only if `connection.retry` or `connection.delay` is set; otherwise `run` joins the queue again",
    ),
    (
        Code::NoNode,
        "the command has ended, and there was no node left to unlock",
        "it was removed at the end, or a contender of a higher priority took the leased lock and released it before `run` saw that",
    ),
    (Code::NotExecutable, "the command cannot be executed", "no permission, or its interpreter is missing"),
    (Code::NotFound, "the command was not found", ""),
];

/// The lines of these statuses in a help text.
pub(crate) fn statuses() -> String {
    let lines = STATUSES.iter().map(|(code, means, _)| format!("  {:>3}  {means}", *code as u8));
    lines.collect::<Vec<_>>().join("\n")
}

/// The end of a command that did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub code: Code,
    /// What happened, as a single line.
    pub message: String,
    /// What to do about it, as a single line.
    pub hint: Option<String>,
    /// What to run about it: what that does, and the command.
    pub advice: Vec<(&'static str, Suggested)>,
    /// What follows from it for another attempt at the lock.
    pub cause: Cause,
    /// The holder of the lock, if it is known.
    pub behind: Option<String>,
    /// Where the locks are, if that was known.
    pub place: Option<Box<Place>>,
}

impl Refusal for Failure {
    fn cause(&self) -> Cause {
        self.cause
    }

    fn behind(&self) -> Option<String> {
        self.behind.clone()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    /// A failure without a hint.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let cause = match code {
            Code::NotAcquired => Cause::InstanceLock,
            Code::Unreachable => Cause::ConnectionLoss,
            Code::Usage => Cause::Mistake,
            _ => Cause::Other,
        };
        let message = message.into();
        Failure { code, message, hint: None, advice: Vec::new(), cause, behind: None, place: None }
    }

    /// Says what to do about it.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what to run about it, in a few words and as a command.
    #[must_use]
    pub(crate) fn advise(mut self, what: &'static str, command: Suggested) -> Self {
        self.advice.push((what, command));
        self
    }

    /// Says where the locks are.
    #[must_use]
    pub(crate) fn at(self, place: &Place) -> Self {
        Failure { place: Some(Box::new(place.clone())), ..self }
    }

    /// Names the server of this machine in a refusal or a "nobody holds": other users of this machine, and other machines, may
    /// have other locks of the same names.
    #[must_use]
    pub(crate) fn scoped(mut self, place: &Place) -> Self {
        let about_locks = matches!(self.code, Code::NoSuchLock | Code::NotAcquired | Code::Mismatch);
        let name = place.to_string();
        if about_locks && matches!(place, Place::Machine(_)) && !self.message.contains(&name) {
            self.message = format!("{} (on {name})", self.message);
        }
        self
    }

    /// The operating system refused something that should always work.
    pub(crate) fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Failure::new(Code::Internal, format!("{what}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidPath(_)
            | Error::InvalidClass(_)
            | Error::InvalidTerms(_)
            | Error::InvalidPermits { .. }
            | Error::InvalidLockDelay { .. }
            | Error::InvalidLiveness { .. }
            | Error::InvalidServers { .. }
            | Error::InvalidTls { .. }
            | Error::Duplicate { .. }
            | Error::TooLong { .. }
            | Error::NoCredential { .. } => Code::Usage,
            Error::PermitsMismatch { .. }
            | Error::IncompatibleFormat { .. }
            | Error::TokenEpoch { .. }
            | Error::NoChroot { .. } => Code::Mismatch,
            Error::Unreachable { .. }
            | Error::ConnectionLost { .. }
            | Error::SessionLost { loss: Loss::Unreachable, .. } => Code::Unreachable,
            Error::SessionLost { loss: Loss::AuthFailed, .. } => Code::Refused,
            Error::SessionLost { .. } => Code::SessionExpired,
            Error::AuthFailed { .. } | Error::Refused { .. } | Error::CannotAsk { .. } => Code::Refused,
            Error::Timeout { .. }
            | Error::Held { .. }
            | Error::TooManyWaiters { .. }
            | Error::Cancelled { .. }
            | Error::Evicted { .. }
            | Error::Revoked { .. }
            | Error::Outranked { .. }
            | Error::Preempted { .. }
            | Error::CleanupUnfinished { .. }
            | Error::ParentVanishes { .. } => Code::NotAcquired,
            Error::NoSuchLock { .. } | Error::NobodyHolds { .. } | Error::NotContending { .. } => Code::NoSuchLock,
            Error::NoReason { .. }
            | Error::SeveralHold { .. }
            | Error::InvalidRealm { .. }
            | Error::Unroutable { .. } => Code::Usage,
            Error::NoSuchRequest { .. } => Code::NoSuchLock,
            Error::Decided { .. } => Code::Declined,
            Error::Server(_) | Error::File { .. } => Code::CannotServe,
            _ => Code::Internal,
        };
        let hint = match &error {
            Error::NoChroot { chroot, .. } => {
                Some(format!("check the spelling of {chroot}; if it is new, create it with --create-chroot"))
            }
            Error::InvalidServers { .. } => Some("write them as zk1:2181,zk2:2181,zk3:2181/app".to_owned()),
            Error::InvalidTls { .. } if !cfg!(feature = "tls") => {
                Some("install a lockkeeper that has it: cargo install lockkeeper-cli --features tls".to_owned())
            }
            Error::AuthFailed { .. } => Some("this server answers only to the user who started it".to_owned()),
            Error::File { .. } => {
                Some("mend that, or choose another directory, with --machine=DIR or --state-dir".to_owned())
            }
            // What to run about these is said below.
            Error::Timeout { .. } | Error::Held { .. } | Error::NotContending { .. } | Error::NoSuchRequest { .. } => {
                None
            }
            Error::SeveralHold { .. } => Some("choose one with --node".to_owned()),
            Error::CannotAsk { .. } => None,
            Error::IncompatibleFormat { theirs, .. } => Some(format!(
                "all clients of the path must use the same node format: {}; change this command, or use another path",
                match theirs {
                    IncompatibleFormat::Named(NodeFormat::Curator) => "no --format and no class",
                    IncompatibleFormat::Named(NodeFormat::Recipe) => "--format recipe",
                    IncompatibleFormat::Named(NodeFormat::Kazoo) => "--format kazoo",
                    IncompatibleFormat::Named(_) => "--foreground, --background or --class",
                    _ => "--lease",
                }
            )),
            Error::PermitsMismatch { stated: Some(stated), .. } => {
                Some(format!("all users of the path must agree: use --permits {stated}, or another name"))
            }
            Error::CleanupUnfinished { .. } => {
                Some("wait longer with --waiting, ask operators with --ask, or take it with --forceful".to_owned())
            }
            error => error.hint(),
        };
        let mut message = error.to_string();
        if let Error::Timeout { holder: Some(holder), .. } | Error::Held { holder: Some(holder), .. } = &error {
            // Since when by this machine's clock and zone, as show has it.
            message = message.replace(&holder.to_string(), &crate::text::who(holder));
        }
        let (cause, behind) = (error.cause(), error.behind());
        let failure = Failure { code, message, hint, advice: Vec::new(), cause, behind, place: None };
        match &error {
            Error::InvalidTls { .. } if cfg!(feature = "tls") => {
                failure.advise("see which files are set, and where", Suggested::new(["config"]))
            }
            Error::NoSuchLock { path } => {
                failure.advise("see which locks there are", Suggested::new(["list", top(path)]))
            }
            Error::Timeout { path, holder, .. } | Error::Held { path, holder, .. } => {
                let failure = failure.advise("see who is in the way", Suggested::new(["why", path]));
                match holder {
                    Some(holder) if !can_be_asked(holder) => failure,
                    _ => failure.advise("ask for it", Suggested::new(["revoke", path])),
                }
            }
            Error::Outranked { path, .. } | Error::Preempted { path, .. } | Error::CleanupUnfinished { path, .. } => {
                failure.advise("see who is in the way", Suggested::new(["why", path]))
            }
            Error::CannotAsk { path, .. } => failure.advise("see who holds it", Suggested::new(["why", path])),
            Error::SeveralHold { path, .. } => failure.advise("see their nodes", Suggested::new(["show", path])),
            Error::NotContending { path, .. }
            | Error::TooManyWaiters { path, .. }
            | Error::IncompatibleFormat { path, .. } => {
                failure.advise("see its holders and waiters", Suggested::new(["show", path]))
            }
            Error::Evicted { path, .. } => {
                failure.advise("see who removed it and why", Suggested::new(["list", path, "--broken"]))
            }
            Error::NoSuchRequest { path, .. } => {
                failure.advise("see the open decisions", Suggested::new(["requests", top(path)]))
            }
            _ => failure,
        }
    }
}

/// What to list to find a lock that is not at `path`: what is beside it at the top.
fn top(path: &str) -> &str {
    let end = path.get(1..).and_then(|rest| rest.find('/')).map_or(path.len(), |at| at + 1);
    &path[..end]
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        Failure::new(Code::Usage, error.to_string())
            .hint("a lock's name is like nightly or team/nightly, or an absolute path like /locks/nightly")
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let hint = error.hint();
        Failure::new(Code::CannotServe, error.to_string()).hint(hint)
    }
}
