//! The exit codes of the command: what each of them means in each verb.
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
    /// The embedded server cannot use its directory, its disk or its address; `fence` cannot use its file.
    CannotServe = 73,
    /// The lock was not acquired: it is taken, or the wait is over.
    NotAcquired = 75,
    /// The lock was lost while the command ran, or a later hold has already used the resource.
    Lost = 76,
    Refused = 77,
    /// The lock is used in another way than the command line says.
    Mismatch = 78,
    /// A contender of a higher priority took the lock while the command ran.
    Preempted = 79,
    /// The session expired during the wait, and the time limit was reached.
    SessionExpired = 80,
    /// At the release, the lock's node did not exist any more.
    NoNode = 81,
    /// An earlier run of the job failed, and a person must decide.
    Kept = 82,
    /// The command of a job succeeded, but its end is not in the records, or may not be.
    NotRecorded = 83,
    /// The command ran for longer than its limit.
    TooLong = 124,
    /// The command cannot be executed.
    NotExecutable = 126,
    /// The command was not found.
    NotFound = 127,
}

/// What a code means in a verb, and a detail that only the manual has.
pub(crate) type Status = (Code, &'static str, &'static str);

/// The exit codes of each verb. Every verb ends with 64 if the command line or a setting is wrong. Help and docs/command.md are
/// generated from this table.
pub(crate) const STATUSES: &[(&str, &[Status])] = &[
    (
        "run",
        &[
            (
                Code::Usage,
                "the command line or a setting is wrong; nothing was done",
                "also if this `run` would wait for a lock that the `run` around it holds",
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
                "it was removed at the end; or a higher priority took the leased lock, and released it before `run` noticed",
            ),
            (
                Code::Kept,
                "an earlier run of the job failed or crashed, and a person must decide",
                "only with --on-failure keep or --on-crash keep; lockkeeper jobs resolve decides",
            ),
            (
                Code::NotRecorded,
                "the command of a job succeeded, but the records may show a crash",
                "no server confirmed the end, or the records were changed meanwhile; under --on-crash retry, another machine may run the slot again",
            ),
            (Code::TooLong, "the command ran for longer than --max-run, and was stopped", "the status of timeout(1)"),
            (Code::NotExecutable, "the command cannot be executed", "no permission, or its interpreter is missing"),
            (Code::NotFound, "the command was not found", ""),
        ],
    ),
    (
        "lead",
        &[
            (Code::Done, "SIGTERM, SIGINT or SIGQUIT has ended lead, and its command if one ran", ""),
            (Code::Usage, "the command line or a setting is wrong; nothing was done", ""),
            (Code::Internal, "the operating system or lockkeeper failed", ""),
            (Code::CannotServe, "the embedded server cannot use its directory, disk or address", ""),
            (
                Code::NotAcquired,
                "the wait was cancelled",
                "`revoke --node` cancels a wait, and so does deleting the waiting node",
            ),
            (Code::Lost, "the leadership was lost, with --once or after SIGTERM, SIGINT or SIGQUIT", ""),
            (Code::Refused, "the server refused", ""),
            (Code::Mismatch, "other candidates use another node format, or the chroot does not exist", ""),
            (
                Code::SessionExpired,
                "the session expired while waiting",
                "only if `connection.retry` or `connection.delay` is set; otherwise `lead` joins the queue again",
            ),
            (Code::NoNode, "the command has ended, and its node was removed before", ""),
            (Code::NotExecutable, "the command cannot be executed", "no permission, or its interpreter is missing"),
            (Code::NotFound, "the command was not found", ""),
        ],
    ),
    (
        "top",
        &[
            (Code::Done, "a key ended it", ""),
            (
                Code::Usage,
                "standard input or standard output is no terminal",
                "or the command line or a setting is wrong",
            ),
            (Code::Unreachable, "no server was reachable", ""),
        ],
    ),
    (
        "deadlocks",
        &[
            (Code::Done, "there is no deadlock", ""),
            (Code::NoSuchLock, "there are only likely or possible ones", ""),
            (Code::Declined, "there is a certain one", ""),
            (Code::Unreachable, "no server was reachable", ""),
        ],
    ),
    ("show", SHOWN),
    ("why", SHOWN),
    ("history", &[(Code::Done, "printed, even if nothing is recorded", "")]),
    (
        "doctor",
        &[
            (Code::Done, "there is no finding", ""),
            (Code::NoSuchLock, "there are notices, and no serious finding", ""),
            (Code::Declined, "there is a serious finding", "also if no server can be reached, or a realm"),
        ],
    ),
    (
        "gc",
        &[
            (Code::Done, "listed, or deleted", ""),
            (Code::NoSuchLock, "some nodes changed after they were listed, and stay", ""),
            (Code::Refused, "the server refused", "what was deleted before is recorded"),
        ],
    ),
    (
        "break",
        &[
            (Code::Done, "the contender was removed", ""),
            (
                Code::NoSuchLock,
                "nothing was broken",
                "there is no such lock, it has no holder, the node is not a contender, or the answer to the question was not yes",
            ),
        ],
    ),
    (
        "revoke",
        &[
            (Code::Done, "asked; with --wait, all of them have released the lock", ""),
            (Code::NoSuchLock, "there is no contender to ask", ""),
            (Code::Declined, "with --wait: at least one of them refused", ""),
            (Code::NotAcquired, "with --wait: not all of them answered in time", ""),
            (Code::Refused, "the server refused, or a foreign client knows no such request", ""),
        ],
    ),
    ("approve", DECIDED),
    ("reject", DECIDED),
    ("stats", &[(Code::Done, "printed, or reset", ""), (Code::NoSuchLock, "there are no statistics of this lock", "")]),
    (
        "dlq",
        &[
            (Code::Done, "done; of replay: every named letter was done, each command with 0", ""),
            (Code::NoSuchLock, "there is no such letter, or it was replayed or dropped before", ""),
            (Code::Usage, "the command line or a setting is wrong", ""),
            (Code::Internal, "the letters cannot be read or written", ""),
            (
                Code::NotAcquired,
                "of replay: at least one letter was not done and stays",
                "also if the answer to the question was not yes",
            ),
            (Code::Refused, "of replay: other users may have written the letters; see --foreign", ""),
        ],
    ),
    (
        "jobs",
        &[
            (
                Code::Done,
                "printed; with --check, every job is in order",
                "a job whose records cannot be read is printed as `unreadable`, and the others as they are",
            ),
            (Code::NoSuchLock, "there is no such job; with --check, a job is late", ""),
            (
                Code::Declined,
                "with --check: a job failed, is unreadable, or waits for a person",
                "a failure that a person accepted does not count",
            ),
            (Code::Unreachable, "no server was reachable", ""),
        ],
    ),
    ("jobs resolve", &[(Code::Done, "decided", ""), (Code::NoSuchLock, "no run of the job waits for a decision", "")]),
    ("jobs expect", &[(Code::Done, "the job has records, from now on or since before", "")]),
    (
        "jobs forget",
        &[(Code::Done, "the records are deleted", ""), (Code::NoSuchLock, "the job has no records, or is running", "")],
    ),
    (
        "jobs import",
        &[
            (Code::Done, "every command is one of lockkeeper now, or was one before", ""),
            (Code::NoSuchLock, "some lines are not rewritten, as the notes say", ""),
        ],
    ),
    (
        "jobs rerun",
        &[
            (Code::Done, "the slot runs again", ""),
            (
                Code::NoSuchLock,
                "it never ran, runs now or waits, or a later slot of --once-per ran",
                "also if another slot of the job runs now",
            ),
        ],
    ),
    (
        "fence",
        &[
            (Code::Done, "FILE was replaced; with a command, the status is that of the command", ""),
            (Code::NoSuchLock, "of --reset: nothing was changed: the answer to the question was not yes", ""),
            (
                Code::Usage,
                "the command line is wrong, or there is no token",
                "also if there are tokens of several locks, or standard input is FILE or closed",
            ),
            (
                Code::CannotServe,
                "FILE or FILE.fence cannot be used",
                "for example because it is a link, a device or a directory, or FILE is itself the mark of a gate",
            ),
            (Code::NotAcquired, "another process was behind the gate until --wait was over", ""),
            (Code::Lost, "the token is stale; nothing was changed", ""),
            (Code::Mismatch, "the token is more than one epoch above the greatest; nothing was changed", ""),
        ],
    ),
    (
        "epoch",
        &[
            (Code::Done, "printed, or raised", ""),
            (Code::NoSuchLock, "nothing was changed: the answer to the question was not yes", ""),
            (Code::Usage, "the command line is wrong, or there is no terminal to ask on", ""),
            (Code::Mismatch, "the node of the epoch holds no number", ""),
        ],
    ),
    (
        "observe",
        &[
            (Code::Done, "SIGTERM, SIGINT or SIGQUIT has ended it", ""),
            (Code::Usage, "the command line or a setting is wrong", ""),
            (Code::Unreachable, "no server was reachable at the start, in no realm", "later it waits for the servers"),
            (Code::CannotServe, "it cannot listen, or cannot use the directory of the journal", ""),
            (Code::Refused, "the servers refuse, or are older than ZooKeeper 3.6", ""),
        ],
    ),
    (
        "init",
        &[
            (Code::Done, "set up; of existing nodes, the lists are as asked", ""),
            (Code::Refused, "the server refused", "the nodes before the refused one are set up"),
            (
                Code::Mismatch,
                "without --acl: a kept list keeps clients out, or lets all administrate",
                "the latter only if this command has credentials",
            ),
        ],
    ),
    (
        "copy",
        &[
            (Code::Done, "copied; with --dry-run, nothing prevents a copy", ""),
            (Code::Mismatch, "nothing was copied: other content at the target, or tokens would fall", ""),
        ],
    ),
    (
        "server",
        &[
            (Code::Done, "done; of status: the server runs", ""),
            (
                Code::Usage,
                "the command line or a setting is wrong; nothing was done",
                "also if the place is an ensemble",
            ),
            (Code::Unreachable, "the server is not running, does not answer, or was not started again", ""),
            (Code::CannotServe, "a directory, a backup or the data cannot be used", ""),
            (Code::NotAcquired, "of stop and restore: sessions are open, so nothing was done", "`--force` does it"),
            (Code::Refused, "the server belongs to another user or to another program", ""),
        ],
    ),
];

/// The exit codes of `show` and `why`.
const SHOWN: &[Status] = &[
    (Code::Done, "printed", ""),
    (Code::NoSuchLock, "of `show`: there is no such lock", "`why` says that it is free"),
];

/// The exit codes of `approve` and `reject`.
const DECIDED: &[Status] = &[
    (Code::Done, "decided", ""),
    (Code::NoSuchLock, "no such decision is pending", ""),
    (Code::Declined, "the request was decided before", ""),
    (Code::Usage, "several requests are pending: choose one with --id; or no reason", ""),
];

/// Returns the exit codes of a verb.
pub(crate) fn of(verb: &str) -> &'static [Status] {
    STATUSES.iter().find(|(name, _)| *name == verb).map_or(&[], |(_, statuses)| statuses)
}

/// Returns what a code means in a verb.
pub(crate) fn meaning(verb: &str, code: Code) -> &'static str {
    of(verb).iter().find(|(listed, ..)| *listed == code).map_or("", |(_, meaning, _)| meaning)
}

/// Returns the lines of a verb's exit codes for its help text.
pub(crate) fn lines(verb: &str) -> String {
    let statuses = of(verb);
    let width = if statuses.iter().any(|(code, ..)| *code as u8 >= 100) { 3 } else { 2 };
    let lines = statuses.iter().map(|(code, means, _)| format!("  {:>width$}  {means}", *code as u8));
    lines.collect::<Vec<_>>().join("\n")
}

/// How the paragraph about exit codes begins.
pub(crate) const EXIT_STATUS: &str = "Exit status:";

/// Returns a help text with a verb's exit codes, between the paragraphs before them and after them.
pub(crate) fn help(verb: &str, before: &str, after: &str) -> String {
    let statuses = format!("{EXIT_STATUS}\n{}", lines(verb));
    let paragraphs = [before, &statuses, after].into_iter().filter(|text| !text.is_empty());
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
