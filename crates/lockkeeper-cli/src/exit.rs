//! Failures as people and scripts see them.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lockkeeper::acl::LockAcl;
use lockkeeper::admin::ContenderInfo;
use lockkeeper::embedded::ServerDir;
use lockkeeper::error::{
    AcquireError, AdminError, ConnectError, EmbeddedError, ErrorKind, IncompatibleFormat, Mismatch, Misuse, PathError,
    ProductError, SessionError, TlsProblem,
};
use lockkeeper::{Error, Loss, NodeFormat};
use lockkeeper_helix::{AcquireLeaseError, LeaseError};
use lockkeeper_history::LockUse;
use lockkeeper_jobs::JobError;
use lockkeeper_letters::retry::{Cause, NotGranted};
use lockkeeper_server::ServerError;
use lockkeeper_session::process::{group_name, user_name};

use crate::advice::{Action, Suggested, can_be_asked};
use crate::place::Place;
use crate::serverlog::{self, LOG};
pub(crate) use crate::statuses::Code;

/// What the library says of a list that a server refuses.
const INVALID_LIST: &str = "invalid access list";

/// The verb that sets up whole servers.
const INIT: [&str; 2] = ["admin", "init"];

#[derive(Debug)]
pub(crate) struct Failure {
    pub code: Code,
    /// The problem, in a single line.
    pub message: String,
    /// The remedy, in a single line.
    pub hint: Option<String>,
    /// Commands that help.
    pub advice: Vec<Action>,
    /// Whether the hint is the library's about servers that do not answer. [`Failure::at`] has a better one for an ensemble, and
    /// [`Failure::scoped`] for a server of this machine.
    pub of_any_server: bool,
    /// What the failure means for another attempt at the lock.
    pub cause: Cause,
    /// The holder of the lock, if it is known.
    pub behind: Option<Box<str>>,
    /// The holder as the library has seen it.
    pub holder: Option<Box<ContenderInfo>>,
    /// In which way others use the lock, if the request does not fit to it and that is known.
    pub used_as: Option<Box<LockUse>>,
    /// The place of the locks, if it is known.
    pub place: Option<Box<Place>>,
}

impl NotGranted for Failure {
    fn cause(&self) -> Cause {
        self.cause
    }

    fn behind(&self) -> Option<String> {
        self.behind.clone().map(String::from)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    /// Returns a failure without a hint.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let cause = match code {
            Code::NotAcquired => Cause::InstanceLock,
            Code::Unreachable => Cause::ConnectionLoss,
            Code::Usage => Cause::Mistake,
            _ => Cause::Other,
        };
        let message = message.into();
        let (hint, advice, of_any_server) = (None, Vec::new(), false);
        Failure {
            code,
            message,
            hint,
            advice,
            of_any_server,
            cause,
            behind: None,
            holder: None,
            used_as: None,
            place: None,
        }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        (self.hint, self.of_any_server) = (Some(hint.into()), false);
        self
    }

    /// Adds a command that helps, with a short label.
    #[must_use]
    pub(crate) fn advise(mut self, what: &'static str, command: Suggested) -> Self {
        self.advice.push((what, command));
        self
    }

    /// Adds the place of the locks.
    #[must_use]
    pub(crate) fn at(mut self, place: &Place) -> Self {
        if let Place::Ensemble(servers) = place {
            if std::mem::take(&mut self.of_any_server) {
                self.hint = None;
                self = self.advise("see how each server is", Suggested::new(["doctor"]));
            }
            // With realms, it is refused without servers.
            let named = |command: Suggested| if command.is(&INIT) { command.at(servers) } else { command };
            self.advice = self.advice.into_iter().map(|(what, command)| (what, named(command))).collect();
        }
        if let Place::Machine(_) = place
            && let Some((what, command)) = self.advice.iter_mut().find(|(_, command)| command.is(&INIT))
        {
            // The kernel names the users of the socket, so there is no credential.
            *what = "let all users contend, as root or as the user who runs the server";
            *command = Suggested::new(INIT).with(["--acl", &LockAcl::open_to_contend().to_string()]);
        }
        Failure { place: Some(Box::new(place.clone())), ..self }
    }

    /// Names the server of this machine in failures about locks: other users of this machine, and other machines, may
    /// have other locks of the same names.
    #[must_use]
    pub(crate) fn scoped(self, place: &Place) -> Self {
        let mut scoped = self.at(place);
        let Place::Machine(home) = place else { return scoped };
        let about_locks = matches!(scoped.code, Code::NoSuchLock | Code::NotAcquired | Code::Mismatch);
        let name = place.to_string();
        if about_locks && !scoped.message.contains(&name) {
            scoped.message = format!("{} (on {name})", scoped.message);
        }
        if scoped.of_any_server {
            let log = home.dir().join(LOG);
            let status = "lockkeeper server status says how it is now";
            scoped.hint = Some(match serverlog::why_it_ended(&log) {
                Some(why) if !matches!(home.find(), Ok(Some(_))) => format!("it ended: {why} (see {})", log.display()),
                _ => format!("{status}; its log is {}", log.display()),
            });
        }
        scoped
    }

    /// Returns the failure of a system call that should always work.
    pub(crate) fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Failure::new(Code::Internal, format!("{what}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut message = error.to_string();
        let mut seen = None;
        if let Error::Acquire(
            AcquireError::Timeout { holder: Some(holder), .. } | AcquireError::Held { holder: Some(holder), .. },
        ) = &error
        {
            // The time in this machine's clock and zone, as show prints it.
            message = message.replace(&holder.to_string(), &crate::text::who(holder));
            seen = Some(holder.clone());
        }
        let (code, hint, advice) = (code(&error), hint(&error), advice(&error));
        let of_any_server =
            matches!(&error, Error::Session(error @ SessionError::Unreachable { .. }) if error.tls_problem().is_none());
        Failure {
            code,
            message,
            hint,
            advice,
            of_any_server,
            cause: error.cause(),
            behind: error.behind().map(String::into_boxed_str),
            holder: seen,
            used_as: used_as(&error).map(Box::new),
            place: None,
        }
    }
}

/// Returns in which way others use a lock to which a request does not fit.
fn used_as(error: &Error) -> Option<LockUse> {
    let mismatch = match error {
        Error::Acquire(AcquireError::Mismatch(mismatch)) | Error::Admin(AdminError::Mismatch(mismatch)) => mismatch,
        Error::Product(error) => match (error.get(), error.get()) {
            (Some(AcquireLeaseError::Mismatch(mismatch)), _) | (_, Some(LeaseError::Mismatch(mismatch))) => mismatch,
            _ => return None,
        },
        _ => return None,
    };
    match mismatch {
        Mismatch::Format { theirs: IncompatibleFormat::Leased, .. } => Some(LockUse::Lease),
        // A name says which class only of a contender.
        Mismatch::Format { theirs: IncompatibleFormat::Named(NodeFormat::Contentserv), .. } => None,
        Mismatch::Format { theirs: IncompatibleFormat::Named(format), .. } => Some(LockUse::Plain(*format)),
        Mismatch::Permits { stated, .. } => stated.map(LockUse::Permits),
        _ => None,
    }
}

/// Converts each error type of the library's calls.
macro_rules! from_errors {
    ($($error:ty),+) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Error::from(error).into()
            }
        })+
    };
}
from_errors!(AcquireError, AdminError, ConnectError, EmbeddedError, LeaseError, Misuse);

/// The owner is what a letter of this operation names.
impl From<AcquireLeaseError> for Failure {
    fn from(error: AcquireLeaseError) -> Self {
        Failure { behind: error.behind().map(String::into_boxed_str), ..Error::from(error).into() }
    }
}

/// Returns the exit status: that of the error's kind, except for a few errors with their own.
fn code(error: &Error) -> Code {
    match error {
        Error::Acquire(AcquireError::SessionLost { loss, .. })
            if !matches!(loss, Loss::Unreachable | Loss::AuthFailed | Loss::AuthRequired) =>
        {
            Code::Unreachable
        }
        Error::Product(error) if matches!(error.get(), Some(LeaseError::Decided { .. })) => Code::Declined,
        Error::Session(SessionError::Embedded(EmbeddedError::Server(_) | EmbeddedError::File { .. })) => Code::Internal,
        Error::Session(SessionError::Closed) => Code::Internal,
        error => match error.kind() {
            ErrorKind::Taken | ErrorKind::Withdrawn | ErrorKind::Cancelled => Code::NotAcquired,
            ErrorKind::Unavailable => Code::Unreachable,
            ErrorKind::Lost => Code::Lost,
            ErrorKind::NotFound => Code::NoSuchLock,
            ErrorKind::Mismatch => Code::Mismatch,
            ErrorKind::Refused => Code::Refused,
            ErrorKind::Misuse => Code::Usage,
            _ => Code::Internal,
        },
    }
}

/// Returns the remedy, in terms of the command's options. [`advice`] returns the commands that help.
fn hint(error: &Error) -> Option<String> {
    let hint = match error {
        Error::Misuse(Misuse { argument: "servers", .. }) => "write them as zk1:2181,zk2:2181,zk3:2181/app",
        Error::Misuse(Misuse { argument: "tls", .. }) if !cfg!(feature = "tls") => {
            "install a lockkeeper with the default features: cargo install --locked --path crates/lockkeeper-cli"
        }
        Error::Misuse(Misuse { argument: "auth file" | "webhook file" | "private file", remedy, .. }) => {
            return remedy.clone();
        }
        Error::Misuse(Misuse { argument: "credential", .. }) => "name a file with credentials with --auth-file",
        Error::Session(SessionError::NoChroot { chroot, .. }) => {
            return Some(format!("check the spelling of {chroot}; if it is new, create it with --create-chroot"));
        }
        Error::Session(SessionError::AuthFailed { .. }) => "check the credentials of --auth-file",
        Error::Session(SessionError::AuthRequired { .. })
        | Error::Acquire(AcquireError::SessionLost { loss: Loss::AuthRequired, .. }) => {
            "write the line `sasl USER PASSWORD` into a file and name the file with --auth-file"
        }
        Error::Session(SessionError::Embedded(EmbeddedError::File { file, cause, .. }))
            if cause.kind() == io::ErrorKind::PermissionDenied && other_owner(file).is_some() =>
        {
            return other_owner(file);
        }
        Error::Session(SessionError::Embedded(EmbeddedError::File { .. })) => {
            "correct that, or choose another directory with --machine=DIR or --state-dir"
        }
        Error::Acquire(AcquireError::Mismatch(mismatch)) | Error::Admin(AdminError::Mismatch(mismatch)) => {
            return hint_of_mismatch(mismatch);
        }
        Error::Product(error) => return hint_of_lease(error),
        Error::Misuse(Misuse { argument: "lock delay", .. }) => {
            "write --lock-delay with 1ms to 1h, and without --format, --foreground, --background, --class and --lease"
        }
        Error::Acquire(AcquireError::TooManyWaiters { .. }) => "try again later, or spread the work over several locks",
        Error::Admin(AdminError::SeveralHold { .. }) => "choose one with --node",
        Error::Session(error) if error.tls_problem().is_some() => hint_about_tls(error.tls_problem()?),
        Error::Session(error) if error.needs_set_up() => "a client that may administrate that node opens it",
        Error::Session(SessionError::Refused { reason, .. })
        | Error::Acquire(AcquireError::Session(SessionError::Refused { reason, .. }))
            if reason.starts_with(INVALID_LIST) =>
        {
            "correct --acl or the setting acl: the servers know other schemes than this list names, or read its names in another way"
        }
        // These name no call of the library.
        Error::Misuse(_) | Error::Session(_) => return error.hint(),
        Error::Acquire(AcquireError::SessionLost { .. } | AcquireError::Evicted { .. }) => {
            "run it again to enter the queue again"
        }
        // Any other hint of the library is for programs.
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Returns the remedy after a call of a leased lock.
fn hint_of_lease(error: &ProductError) -> Option<String> {
    match (error.get(), error.get()) {
        (Some(AcquireLeaseError::Mismatch(mismatch)), _) | (_, Some(LeaseError::Mismatch(mismatch))) => {
            hint_of_mismatch(mismatch)
        }
        (Some(AcquireLeaseError::CleanupUnfinished { elapsed, allotted, .. }), _) if elapsed >= allotted => {
            Some("ask operators with --ask, or take it with --forceful".to_owned())
        }
        (Some(AcquireLeaseError::CleanupUnfinished { .. }), _) => {
            Some("wait longer with --waiting, ask operators with --ask, or take it with --forceful".to_owned())
        }
        _ => None,
    }
}

/// Returns whose directory keeps this process out, if it is another user's: the deepest one that this process can see.
fn other_owner(file: &Path) -> Option<String> {
    let (dir, found) = visible(file)?;
    (found.uid() != rustix::process::geteuid().as_raw()).then(|| {
        let (dir, name) = (dir.display(), user_name(found.uid()));
        format!("{dir} belongs to {name}: correct HOME, or choose a directory of your own with --state-dir")
    })
}

/// Returns the deepest directory above a file that this process can see.
fn visible(file: &Path) -> Option<(&Path, Metadata)> {
    file.ancestors().skip(1).find_map(|dir| Some((dir, dir.metadata().ok()?)))
}

/// Returns the failure to use a home's directory. The directory of this machine's server is the administrator's: a user who chose
/// another one would have other locks.
pub(crate) fn of_home(home: &ServerDir, error: EmbeddedError) -> Failure {
    let hint = match &error {
        EmbeddedError::File { file, cause, .. }
            if home.is_shared() && cause.kind() == io::ErrorKind::PermissionDenied =>
        {
            // The library refuses a directory with a text of its own.
            Some(if cause.raw_os_error().is_some() {
                kept_out(file)
            } else {
                "correct that, or name another directory with --machine=DIR, the same for all users of this machine"
                    .to_owned()
            })
        }
        _ => None,
    };
    let failure = Failure::from(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Says who may enter the directory that keeps this process from a file.
fn kept_out(file: &Path) -> String {
    let ask = "ask the administrator of this machine";
    let Some((dir, found)) = visible(file) else { return ask.to_owned() };
    let (mode, owner) = (found.mode() & 0o777, user_name(found.uid()));
    let may = match (mode & 0o001 != 0, mode & 0o010 != 0) {
        (true, _) => return ask.to_owned(),
        (false, true) => format!("{owner} and the group {} may enter {}", group_name(found.gid()), dir.display()),
        (false, false) => format!("only {owner} may enter {}", dir.display()),
    };
    format!("{may} (mode {mode:03o}): {ask}")
}

const fn hint_about_tls(problem: TlsProblem) -> &'static str {
    match problem {
        TlsProblem::UnknownAuthority => {
            "name the file with the authority that has issued the server's certificate with --tls-ca"
        }
        TlsProblem::NotValidNow => {
            "renew the server's certificate, or correct the clock of this machine; no option accepts an expired one"
        }
        TlsProblem::OtherName => {
            "name the server in --servers as its certificate does, or issue a certificate with the name in --servers"
        }
        TlsProblem::ClientCertificate => {
            "name a certificate that the servers trust with --tls-cert, and its key with --tls-key"
        }
        TlsProblem::PortWithoutTls => {
            "if the port is one without TLS, name the servers' port for TLS in --servers, or leave out --tls-ca and the setting tls.ca"
        }
        _ => "connect by TLS with --tls-ca, or name the servers' port without TLS in --servers",
    }
}

/// Returns how to use a path as its other clients do.
fn hint_of_mismatch(mismatch: &Mismatch) -> Option<String> {
    match mismatch {
        Mismatch::Format { theirs, .. } => {
            let same = match theirs {
                IncompatibleFormat::Named(NodeFormat::Curator) => {
                    "no --format and no class, and the same --permits if they hold permits"
                }
                IncompatibleFormat::Named(NodeFormat::Recipe) => "--format recipe",
                IncompatibleFormat::Named(NodeFormat::Kazoo) => "--format kazoo",
                IncompatibleFormat::Named(NodeFormat::LeaderLatch) => "--format leader-latch",
                IncompatibleFormat::Named(NodeFormat::Numbered) => "--format numbered",
                IncompatibleFormat::Named(_) => "--foreground, --background or --class",
                _ => "--lease",
            };
            Some(format!(
                "all clients of the path must use the same node format: {same}; change this command, or use another path"
            ))
        }
        Mismatch::Permits { stated: Some(stated), .. } => Some(format!(
            "all clients of the path must agree: use --permits {stated}, or another name; servers forget the number a few minutes \
                 after the last use"
        )),
        other => other.hint(),
    }
}

/// Returns the commands that help: what each one does, and the command.
fn advice(error: &Error) -> Vec<(&'static str, Suggested)> {
    let why = |path: &str| ("see who is in the way", Suggested::new(["why", path]));
    let show = |path: &str| ("see its holders and waiters", Suggested::new(["show", path]));
    let one = match error {
        Error::Misuse(Misuse { argument: "tls", .. }) if cfg!(feature = "tls") => {
            ("see which files are set, and where", Suggested::new(["config"]))
        }
        Error::Session(error) if error.needs_set_up() => {
            let list = LockAcl::open_to_contend().to_string();
            // The list gives its rights to the credentials of the command; those that were refused do not help.
            ("let all clients contend", Suggested::new(INIT).with(["--acl", &list, "--auth-file", "FILE"]))
        }
        Error::Acquire(error) => match error {
            AcquireError::Timeout { path, holder, .. } | AcquireError::Held { path, holder, .. } => {
                return [why(path)].into_iter().chain(asking(path, holder.as_deref())).collect();
            }
            AcquireError::TooManyWaiters { path, .. } | AcquireError::Mismatch(Mismatch::Format { path, .. }) => {
                show(path)
            }
            AcquireError::Evicted { path, .. } => {
                ("see who removed it and why", Suggested::new(["list", path, "--broken"]))
            }
            AcquireError::NoSuchLock { path } => ("see which locks there are", Suggested::new(["list", top(path)])),
            _ => return Vec::new(),
        },
        Error::Product(error) => match error.get() {
            Some(
                AcquireLeaseError::Outranked { path, .. }
                | AcquireLeaseError::Preempted { path, .. }
                | AcquireLeaseError::CleanupUnfinished { path, .. }
                | AcquireLeaseError::Timeout { path, .. },
            ) => why(path),
            Some(AcquireLeaseError::Mismatch(Mismatch::Format { path, .. })) => show(path),
            _ if let Some(LeaseError::NoSuchRequest { path, .. }) = error.get() => {
                ("see the open decisions", Suggested::new(["requests", top(path)]))
            }
            _ => match error.get() {
                Some(
                    JobError::NothingToDecide { path } | JobError::NoRerun { path, .. } | JobError::NotPaused { path },
                ) => ("see its runs", Suggested::new(["jobs", path.as_str(), "--history"])),
                _ => return Vec::new(),
            },
        },
        Error::Admin(error) => match error {
            AdminError::NoSuchLock { path } => ("see which locks there are", Suggested::new(["list", top(path)])),
            AdminError::CannotAsk { path, .. } => ("see who holds it", Suggested::new(["why", path])),
            AdminError::SeveralHold { path, .. } => ("see their nodes", Suggested::new(["show", path])),
            AdminError::NotContending { path, .. } => show(path),
            _ => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    vec![one]
}

/// Returns the command that asks for a taken lock, or removes a holder whose process has ended. It says so if it may ask several
/// holders.
fn asking(path: &str, holder: Option<&ContenderInfo>) -> Option<(&'static str, Suggested)> {
    let ask = Suggested::new(["revoke", path]);
    // Perhaps nobody holds it.
    let holder = holder?;
    if holder.process_has_ended() {
        return Some(("remove that holder, whose process has ended", removing(path, holder)));
    }
    let asking = match holder.mode {
        // One permit may be enough.
        "permits" => ("ask that holder to release it", ask.with(["--node", &holder.node_path(path)])),
        // One reader is not enough.
        "read" => ("ask all its holders to release it", ask),
        _ => ("ask the holder to release it", ask),
    };
    can_be_asked(holder).then_some(asking)
}

/// Returns the command that removes a contender.
pub(crate) fn removing(path: &str, contender: &ContenderInfo) -> Suggested {
    Suggested::new(["break", path]).with(["--reason", "WHY", "--node", &contender.node_path(path)])
}

/// Returns the path of the top-level node of a lock, below which its neighbours are.
pub(crate) fn top(path: &str) -> &str {
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
        let (code, hint) = match error {
            ServerError::NotLoopback { .. } => (
                Code::Usage,
                "listen on 127.0.0.1, or add --allow-remote, with --tls-cert unless you trust the network".to_owned(),
            ),
            _ => (Code::Internal, error.hint()),
        };
        Failure::new(code, error.to_string()).hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library's own hints name its calls, which a person at a terminal cannot write.
    #[test]
    fn hints_of_a_path_in_other_use_name_flags_whichever_call_failed() {
        let leased = || Mismatch::Format { path: "/a".to_owned(), theirs: IncompatibleFormat::Leased };
        let library = leased().hint().unwrap();
        assert!(library.contains("HelixLock"), "{library}");
        let errors: [Error; 4] = [
            AcquireError::Mismatch(leased()).into(),
            AcquireLeaseError::Mismatch(leased()).into(),
            AdminError::Mismatch(leased()).into(),
            LeaseError::Mismatch(leased()).into(),
        ];
        for error in errors {
            let hint = hint(&error).unwrap();
            assert!(hint.contains("--lease") && !hint.contains("HelixLock"), "{hint}");
        }
    }

    /// (tests/cli/advice.rs pastes the commands that ask known holders.)
    #[test]
    fn nobody_is_asked_to_release_a_lock_whose_holder_is_not_known() {
        assert!(asking("/a", None).is_none());
    }

    /// The server of this machine has a log, and nobody named it. The hint of the command itself knows more.
    #[test]
    fn a_server_that_does_not_answer_has_the_hint_of_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let machine = Place::Machine(lockkeeper::embedded::ServerDir::new(directory.path()));
        let ensemble = Place::Ensemble("zk1:2181".to_owned());
        let failure = || {
            let (servers, detail) = ("zk1:2181".to_owned(), "zk1:2181 does not answer".to_owned());
            Failure::from(Error::from(SessionError::Unreachable { servers, waited: std::time::Duration::ZERO, detail }))
        };
        let hint = |failure: Failure, place: &Place| failure.scoped(place).hint.unwrap_or_default();
        let log = directory.path().join(LOG).display().to_string();
        assert_eq!(hint(failure(), &machine), format!("lockkeeper server status says how it is now; its log is {log}"));
        assert_eq!(hint(failure(), &ensemble), "");
        let advice = failure().scoped(&ensemble).advice;
        assert_eq!(advice, [("see how each server is", Suggested::new(["doctor"]))]);
        assert_eq!(hint(failure().hint("wait"), &machine), "wait");
    }

    /// (Root may read everything, so a test as root sees no such refusal, and only root can give a directory away.)
    #[test]
    fn a_directory_of_another_user_is_said_to_be_theirs() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("socket");
        assert_eq!(other_owner(&file), None);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(directory.path(), Some(41_234), None).unwrap();
            let hint = other_owner(&file.join("below")).unwrap();
            let whose = format!("{} belongs to user 41234: correct HOME, or", directory.path().display());
            assert!(hint.starts_with(&whose), "{hint}");
        }
    }

    /// `max_waiters` is an option of the library only.
    #[test]
    fn hints_offer_only_what_the_command_has() {
        let error = AcquireError::TooManyWaiters { path: "/a".to_owned(), ahead: 3, most: 2 };
        assert!(!hint(&error.into()).unwrap().contains("max_waiters"));
    }
}
