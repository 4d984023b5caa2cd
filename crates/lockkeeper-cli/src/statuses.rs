//! The exit statuses of the command.
//!
//! The codes are those of sysexits.h where it has a suitable one, and 124 as of timeout(1). They differ from those of commands
//! under a lock (small numbers) and of shells (126 and above).

/// The reason why the command ended, as an exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// Everything that was asked for is done.
    Done = 0,
    /// There was no such lock, no holder, or no confirmation: nothing was changed.
    NoSuchLock = 1,
    /// A holder that was asked to release refused.
    Declined = 2,
    /// The command line or a setting is wrong; nothing was done.
    Usage = 64,
    /// No server was reachable.
    Unreachable = 69,
    /// The operating system or the program itself failed.
    Internal = 70,
    /// The lock was not acquired: it is taken, or the wait is over.
    NotAcquired = 75,
    /// The lock was lost while the command ran or at its end, or a later hold has already used the resource.
    Lost = 76,
    Refused = 77,
    /// The lock is used in another way than the command line says: to a script, a mistake in the command line.
    Mismatch = 78,
    /// An earlier run of the job failed, and a person must decide.
    Kept = 82,
    /// The command ran for longer than its limit.
    TooLong = 124,
    /// The command cannot be executed.
    NotExecutable = 126,
    /// The command was not found.
    NotFound = 127,
}

impl Code {
    /// Returns the code with this exit status that another process of lockkeeper ended with.
    pub(crate) fn of(status: u8) -> Option<Self> {
        let all = [Code::Usage, Code::Unreachable, Code::Internal, Code::NotAcquired, Code::Lost, Code::Refused];
        all.into_iter().find(|code| code.status() == status)
    }

    /// Returns the exit status.
    pub(crate) const fn status(self) -> u8 {
        match self {
            Code::Mismatch => Code::Usage as u8,
            code => code as u8,
        }
    }
}

/// What a code means in a verb, and a detail that only the manual has. Help and docs/commands are generated from these. Every verb ends
/// with 64 if the command line or a setting is wrong.
pub(crate) type Status = (Code, &'static str, &'static str);

/// The exit statuses of a verb, as its definition carries them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statuses(pub &'static [Status]);

impl clap::builder::CommandExt for Statuses {}

/// The row of most verbs for a failure that is nobody's mistake.
pub(crate) const INTERNAL: Status =
    (Code::Internal, "the operating system, lockkeeper or the embedded server failed", "");

/// The row of most verbs for what the servers do not allow.
pub(crate) const REFUSED: Status = (Code::Refused, "the server refused", "");

/// The exit statuses of a verb that names none.
pub(crate) const USUAL: &[Status] = &[
    (Code::Done, "done", ""),
    (Code::Usage, "the command line or a setting is wrong; nothing was done", ""),
    (Code::Unreachable, "no server was reachable", ""),
    INTERNAL,
    REFUSED,
];

/// Returns the exit statuses of a verb; none if it has the usual ones.
pub(crate) fn of(verb: &clap::Command) -> &'static [Status] {
    verb.get::<Statuses>().map_or(&[], |statuses| statuses.0)
}

/// Returns what a code means in a verb with these exit statuses.
pub(crate) fn meaning(statuses: &[Status], code: Code) -> &'static str {
    statuses.iter().find(|(listed, ..)| *listed == code).map_or("", |(_, meaning, _)| meaning)
}

/// Returns the lines of exit statuses for a help text.
pub(crate) fn lines(statuses: &[Status]) -> String {
    let width = if statuses.iter().any(|(code, ..)| code.status() >= 100) { 3 } else { 2 };
    let lines = statuses.iter().map(|(code, means, _)| format!("  {:>width$}  {means}", code.status()));
    lines.collect::<Vec<_>>().join("\n")
}

/// How the paragraph about exit statuses begins.
pub(crate) const EXIT_STATUS: &str = "Exit status:";

/// Returns a help text with these exit statuses, between the paragraphs before them and after them.
pub(crate) fn help(statuses: &[Status], before: &str, after: &str) -> String {
    let statuses = format!("{EXIT_STATUS}\n{}", lines(statuses));
    let paragraphs = [before, &statuses, after].into_iter().filter(|text| !text.is_empty());
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
