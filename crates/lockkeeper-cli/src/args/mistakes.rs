//! Describes a mistake on the command line in a single line, with what to type instead.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::connect::ConnectArgs;
use super::values::before_command;
use crate::advice::{self, PlaceOption, Suggested};
use crate::exit::{Code, Failure};

/// The most letters in which a slip of the fingers differs from the word that was meant, and the longest word in which only one may
/// differ: half of `wait` is `init`.
const LETTERS: usize = 2;
const SHORT: usize = 4;

/// Turns the parser's many lines into a failure with one line and hints.
pub(super) fn failure(root: &clap::Command, error: &clap::Error, words: &[OsString]) -> Failure {
    let (command, verbs) = command_of(root, words);
    let help = |failure: Failure| {
        let help = verbs.iter().copied().chain(["--help"]);
        failure.advise("see all options", Suggested::new(help).elsewhere())
    };
    match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let all = command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
            let all: Vec<_> = all.map(clap::Command::get_name).collect();
            return help(Failure::new(Code::Usage, format!("the verb is missing: {}", all.join(", "))));
        }
        // Behind the name of a job, the parser takes a verb for a second one.
        ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict
            if error.kind() == ErrorKind::InvalidSubcommand || words.get(verbs.len() + 1).is_some_and(is_name) =>
        {
            let misspelt = || misspelt(command, &verbs, words).map(help);
            let failure = match &verbs[..] {
                [] | ["help"] if words.len() > 1 && words[0] == "help" => misspelt_help(root, &words[1..]).map(help),
                [] => instead(words).or_else(misspelt).or_else(|| verbless(words)),
                ["jobs"] => misspelt().or_else(|| verb_of_jobs(&words[1..])),
                _ => misspelt(),
            };
            if let Some(failure) = failure {
                return failure;
            }
        }
        _ => {}
    }
    let text = error.to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or(&text);
    let message = first.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    // The parser's tip to put a value behind `--` is wrong here: the words after it are the command under the lock.
    let tip = paragraphs.find_map(|paragraph| paragraph.trim().strip_prefix("tip: ").map(str::to_owned));
    // Nor does its measure of similar words know swapped letters: it offers --json for --reason.
    let tip = tip.filter(|tip| !tip.contains("as a value") && !tip.contains("similar"));
    let failure = Failure::new(Code::Usage, message);
    let separated = words.iter().any(|word| word == "--");
    let unknown = || match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(typed)) if error.kind() == ErrorKind::UnknownArgument => {
            of_another_verb(root, &verbs, typed).or_else(|| nearest(command, typed).map(did_you_mean))
        }
        _ => None,
    };
    if let ("run", ErrorKind::UnknownArgument, Some(ContextValue::String(typed))) =
        (verbs.first().copied().unwrap_or_default(), error.kind(), error.get(ContextKind::InvalidArg))
    {
        if typed == "-c" {
            return help(failure.advise("let a shell run it", shell(&words[1..])));
        }
        if let Some(meant) = of_flock(typed, words) {
            return help(failure.hint(meant));
        }
    }
    // An option that needs another one, and not the name of the lock.
    let is_alone = verbs == ["run"]
        && error.kind() == ErrorKind::MissingRequiredArgument
        && !matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::Strings(missing)) if missing.iter().any(|argument| argument.starts_with("<NAME>")));
    if is_alone && separated && is_typed(&["-v", "--verbose"], words) {
        return help(Failure {
            message: "--verbose is for jobs: it goes with --once-per, --every or --slot".to_owned(),
            ..failure.hint("leave it out: any other run says what it waits for; it is silent only with --quiet")
        });
    }
    if is_alone
        && separated
        && let Some((option, others)) = needs_another(words)
    {
        let message = format!("{option} needs {others}");
        return help(Failure { message, ..failure.hint(format!("add {others}, or leave {option} out")) });
    }
    if verbs == ["jobs", "import"] && error.kind() == ErrorKind::MissingRequiredArgument {
        return help(failure.hint("name the crontab, or - for standard input: crontab -l | lockkeeper jobs import -"));
    }
    help(match (error.kind(), tip, unknown()) {
        (_, _, Some(meant)) => failure.hint(meant),
        (ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument, ..) if verbs == ["run"] && !separated => {
            failure.advise("write -- before the command", separate(command, &words[1..]))
        }
        (_, None, None) if is_alone && is_typed(&["--reason"], words) => {
            failure.hint("--reason is for --emergency; to say why this command needs the lock, write --message TEXT")
        }
        (_, Some(tip), None) => failure.hint(tip.split_whitespace().collect::<Vec<_>>().join(" ")),
        (_, None, None) => failure,
    })
}

/// Returns the command that was probably meant, and the verbs that lead to it.
fn command_of<'a>(root: &'a clap::Command, words: &'a [OsString]) -> (&'a clap::Command, Vec<&'a str>) {
    let (mut command, mut verbs) = (root, Vec::new());
    for word in words {
        let Some(verb) = word.to_str().and_then(|word| command.find_subcommand(word)) else { break };
        verbs.push(verb.get_name());
        command = verb;
    }
    (command, verbs)
}

/// Returns what to write for an option of flock, and of programs like it.
fn of_flock(typed: &str, words: &[OsString]) -> Option<String> {
    let (option, joined) = typed.split_once('=').map_or((typed, None), |(option, value)| (option, Some(value)));
    let meant = match option {
        "-n" | "--nb" | "--nonblock" | "--nonblocking" | "--non-blocking" | "--nowait" | "--no-wait" => {
            Some("--try".to_owned())
        }
        "-w" | "--timeout" => {
            let text = before_command(words).iter().filter_map(|word| word.to_str());
            let glued = text.filter_map(|word| word.strip_prefix(option)).find(|value| !value.is_empty());
            let glued = glued.map(|value| value.trim_start_matches('='));
            let value = joined.or(glued).or_else(|| value_after(option, words));
            let value = value.filter(|value| value.starts_with(|c: char| c.is_ascii_digit())).unwrap_or("30s");
            // flock counts in seconds.
            let unit = if value.ends_with(|c: char| c.is_ascii_digit()) { "s" } else { "" };
            Some(format!("--wait {value}{unit}"))
        }
        "-E" => Some("--conflict-exit-code STATUS".to_owned()),
        "--retry" => {
            let count = joined.or_else(|| value_after(option, words)).filter(|count| count.parse::<u32>().is_ok());
            Some(format!("--retries {}", count.unwrap_or("COUNT")))
        }
        "-s" => Some("--shared".to_owned()),
        "-x" | "-e" | "--exclusive" => {
            return Some(format!("leave {option} out: a lock without --shared is exclusive"));
        }
        _ => None,
    };
    meant.map(|meant| format!("write {meant}"))
}

/// Options of `run` that need another one: one of those in the same row, with their values.
const NEEDS: &[(&[&str], &[&str])] = &[
    (
        &["--on-failure", "--on-crash", "--catch-up", "--if-unreachable", "--keep-output", "--keep-runs"],
        &["--once-per PERIOD", "--every DURATION", "--slot TEXT"],
    ),
    (&["--time-zone"], &["--once-per PERIOD"]),
    (&["--take"], &["--permits COUNT"]),
    (
        &[
            "--strict-lease",
            "--priority",
            "--emergency",
            "--waiting",
            "--cleanup",
            "--forceful",
            "--keep-node",
            "--id",
            "--hand-to",
            "--ask",
            "--stats",
        ],
        &["--lease DURATION"],
    ),
    (&["--alert-command", "--alert-webhook"], &["--ask DURATION"]),
    (&["--emergency"], &["--reason TEXT"]),
];

/// Returns an option of `run` that was typed without the one that it needs, and that one's name.
fn needs_another(words: &[OsString]) -> Option<(&'static str, String)> {
    NEEDS.iter().find_map(|(options, others)| {
        let typed = options.iter().find(|option| is_typed(&[option], words))?;
        let mut options = others.iter().filter_map(|other| other.split(' ').next());
        let names = match others {
            _ if options.any(|other| is_typed(&[other], words)) => return None,
            [one, another, last] => format!("{one}, {another} or {last}"),
            others => others.join(" or "),
        };
        Some((*typed, names))
    })
}

fn did_you_mean(option: &str) -> String {
    format!("did you mean --{option}?")
}

/// Returns the word after an option, before the command.
fn value_after<'a>(option: &str, words: &'a [OsString]) -> Option<&'a str> {
    let mut words = before_command(words).iter().filter_map(|word| word.to_str()).skip_while(|word| *word != option);
    words.nth(1)
}

/// Whether one of these options was typed for `run`.
fn is_typed(options: &[&str], words: &[OsString]) -> bool {
    let option = |word: &OsString| word.to_string_lossy().split('=').next().unwrap_or_default().to_owned();
    before_command(words).iter().any(|word| options.contains(&&*option(word)))
}

/// Returns the command line of `run` for one with flock's `-c SCRIPT`.
fn shell(words: &[OsString]) -> Suggested {
    let mut own = before_command(words).to_vec();
    let at = own.iter().position(|word| word == "-c").unwrap_or(own.len());
    let script = own.drain(at..(at + 2).min(own.len())).nth(1).unwrap_or_else(|| "SCRIPT".into());
    let (name, place) = (own.is_empty().then(|| OsString::from("NAME")), place_of(words));
    Suggested::new(["run"]).with(name).with(own).with(place).elsewhere().running([
        OsString::from("sh"),
        "-c".into(),
        script,
    ])
}

/// Returns the option that was probably meant: one that begins so, or a similar one.
fn nearest<'a>(command: &'a clap::Command, typed: &str) -> Option<&'a str> {
    let typed = typed.strip_prefix("--")?.split('=').next()?;
    let options = || command.get_arguments().filter_map(clap::Arg::get_long);
    let mut begun = options().filter(|option| option.starts_with(typed));
    match (begun.next(), begun.next()) {
        (Some(only), None) => Some(only),
        _ => similar(typed, options()),
    }
}

/// Returns the most similar word, if it is similar enough. The parser's own measure does not recognise two swapped letters.
fn similar<'a>(typed: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, word) = words.map(|word| (strsim::osa_distance(typed, word), word)).min()?;
    let length = typed.chars().count();
    let most = if length > SHORT { LETTERS } else { 1 };
    (distance <= most && 2 * distance <= length).then_some(word)
}

/// Returns a hint for an option that only other verbs have.
fn of_another_verb(root: &clap::Command, verbs: &[&str], typed: &str) -> Option<String> {
    let typed = typed.split('=').next()?;
    match (verbs, typed) {
        (["list"], "--all" | "-a") => return Some("to see locks outside of /locks too: lockkeeper list /".to_owned()),
        (["jobs"], "--all" | "-a") => return Some("without a NAME, it shows all jobs: lockkeeper jobs".to_owned()),
        _ => {}
    }
    let long = typed.strip_prefix("--")?;
    let visible = |command: &clap::Command| !command.is_hide_set();
    let has_it = |command: &&clap::Command| command.get_arguments().any(|option| option.get_long() == Some(long));
    let with_it = root.get_subcommands().filter(|command| visible(command)).flat_map(|command| {
        let own = std::iter::once(command).filter(has_it).map(|command| command.get_name().to_owned());
        let below = command.get_subcommands().filter(|below| visible(below)).filter(has_it);
        own.chain(below.map(move |below| format!("{} {}", command.get_name(), below.get_name())))
    });
    let with_it: Vec<_> = with_it.collect();
    (!with_it.is_empty()).then(|| format!("{typed} is an option of {}", with_it.join(", ")))
}

/// Returns a word, and the verb of this command that it was probably meant to be.
fn meant<'a>(command: &'a clap::Command, word: &'a OsStr) -> Option<(&'a str, &'a str)> {
    let typed = word.to_str().filter(|typed| !typed.starts_with('-'))?;
    let names = command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(clap::Command::get_name);
    similar(typed, names).filter(|meant| *meant != typed).map(|meant| (typed, meant))
}

/// Returns the failure for `help` of a verb with a slip of the fingers.
fn misspelt_help(root: &clap::Command, words: &[OsString]) -> Option<Failure> {
    let (command, verbs) = command_of(root, words);
    let (typed, meant) = meant(command, words.get(verbs.len())?)?;
    let right = Suggested::new(["help"]).with(verbs).with([meant]).elsewhere();
    Some(Failure::new(Code::Usage, format!("there is no verb {typed:?}")).advise("did you mean", right))
}

/// Returns the failure for a verb with a slip of the fingers, with the corrected command line.
fn misspelt(command: &clap::Command, verbs: &[&str], words: &[OsString]) -> Option<Failure> {
    let (typed, meant) = meant(command, words.get(verbs.len())?)?;
    let rest = &words[verbs.len() + 1..];
    // `lockkeeper ru -- make` is more probably a lock without a verb.
    let is_name = rest.first().is_some_and(|word| word == "--");
    let before = before_command(rest);
    let right = Suggested::new(verbs.iter().copied().chain([meant])).with(before).with(place_of(words)).elsewhere();
    let right = right.running(rest.iter().skip(before.len() + 1));
    let failure = Failure::new(Code::Usage, format!("there is no verb {typed:?}"));
    (!is_name).then(|| failure.advise("did you mean", right))
}

fn is_name(word: &OsString) -> bool {
    !word.to_string_lossy().starts_with('-')
}

/// Returns the failure for a verb that `jobs` does not have, in front of the name of a job.
fn verb_of_jobs(words: &[OsString]) -> Option<Failure> {
    let [typed, name, ..] = words else { return None };
    if !is_name(typed) || !is_name(name) {
        return None;
    }
    let place = place_of(words);
    let shown = Suggested::new(["jobs"]).with([name]).with(&place).elsewhere();
    let failure = Failure::new(Code::Usage, format!("jobs has no verb {:?}", typed.to_string_lossy()));
    let typed = typed.to_string_lossy();
    // Many type it, and there is no such verb.
    Some(match similar(&typed, ["history"].into_iter()).unwrap_or(&typed) {
        "run" | "start" | "add" | "create" => {
            let run = Suggested::new(["run"]).with([name]).with(["--once-per", "day"]).with(&place).elsewhere();
            failure.advise("run a command as a job", run.running(["COMMAND"])).advise(
                "let a slot that has ended run again",
                Suggested::new(["jobs", "rerun"]).with([name]).with(&place).elsewhere(),
            )
        }
        "history" | "log" | "logs" => failure.advise("list its runs", shown.with(["--history"])),
        "delete" | "remove" | "rm" => failure
            .advise("delete its records", Suggested::new(["jobs", "forget"]).with([name]).with(&place).elsewhere()),
        _ => failure.advise("see that job", shown),
    })
}

/// Returns the command line of `run` that was probably meant without `--`: the words after the first name are the
/// command.
fn separate(run: &clap::Command, words: &[OsString]) -> Suggested {
    let (mut at, mut named) = (0, None);
    while let Some(word) = words.get(at) {
        let text = word.to_string_lossy();
        if !text.starts_with('-') {
            match named {
                None => named = Some(at),
                Some(_) => break,
            }
        } else if !text.contains('=') {
            let option = run.get_arguments().find(|option| {
                let short = option.get_short().is_some_and(|short| *text == *format!("-{short}"));
                short || option.get_long().is_some_and(|long| text.strip_prefix("--") == Some(long))
            });
            // The value of an option is not a name.
            at += usize::from(option.is_some_and(|option| option.get_action().takes_values()));
        }
        at += 1;
    }
    let (typed, command) = words.split_at(at.min(words.len()));
    let name = named.is_none().then(|| OsString::from("NAME"));
    let suggested = Suggested::new(["run"]).with(name).with(typed).with(place_of(words)).elsewhere();
    if command.is_empty() { suggested.running(["COMMAND"]) } else { suggested.running(command) }
}

/// Returns the place that variables name, without the options that were typed. On a terminal, the next command has the same
/// variables.
fn place_of(words: &[OsString]) -> Vec<OsString> {
    if std::io::stderr().is_terminal() && !before_command(words).iter().any(|word| word == "--json") {
        return Vec::new();
    }
    let is_typed =
        |flag: &str| before_command(words).iter().any(|word| word.to_string_lossy().split('=').next() == Some(flag));
    let is_chosen = advice::WHERE.into_iter().any(is_typed);
    let place = advice::place(&ConnectArgs::default(), |name| std::env::var_os(name));
    let place = place
        .into_iter()
        .filter(|PlaceOption { flag, .. }| !(is_typed(flag) || is_chosen && advice::WHERE.contains(flag)));
    place.flat_map(|option| option.words()).collect()
}

/// Returns a hint for a verb of another program.
fn instead(words: &[OsString]) -> Option<Failure> {
    let (typed, rest) = words.split_first()?;
    let typed = typed.to_str()?;
    let (options, command) = match rest.iter().position(|word| word == "--") {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &[][..]),
    };
    let named = options.first().is_some_and(|word| !word.to_string_lossy().starts_with('-'));
    let name = (!named).then(|| OsString::from("NAME"));
    let place = place_of(words);
    let about = |verb: &str, name: Option<&OsString>| {
        let words = std::iter::once(OsStr::new(verb)).chain(name.map(OsString::as_os_str));
        Suggested::new(words).with(options).with(&place).elsewhere()
    };
    let run = |suggested: Suggested| match command {
        [] => suggested.running(["COMMAND"]),
        command => suggested.running(command),
    };
    let failure = Failure::new(Code::Usage, format!("there is no verb {typed:?}"));
    Some(match typed {
        "lock" | "take" | "exec" | "flock" | "wait" => {
            failure.advise("run a command under the lock", run(about("run", name.as_ref())))
        }
        "unlock" | "free" => failure
            .hint("a lock is released when the command under it ends")
            .advise("ask its holder", about("revoke", name.as_ref()))
            .advise("take it from its holder", about("break", name.as_ref()).with(["--reason", "WHY"])),
        "cancel" => failure.advise("ask its holder, or with --node a waiter", about("revoke", name.as_ref())),
        "kill" | "steal" | "force" => {
            failure.advise("take it from its holder", about("break", name.as_ref()).with(["--reason", "WHY"]))
        }
        "status" | "info" if named => failure.advise("see its holders and waiters", about("show", None)),
        "status" | "info" | "locks" => failure.advise("see which locks there are", about("list", None)),
        "watch" if named => failure.advise("follow its holds", about("history", None).with(["--follow"])),
        "watch" => failure
            .advise("see the locks as they change", about("list", None).with(["--watch"]))
            .advise("measure them", about("observe", None)),
        "rm" | "delete" | "remove" => failure
            .advise("take it from its holder", about("break", name.as_ref()).with(["--reason", "WHY"]))
            .advise(
                "delete the records of a job",
                Suggested::new(["jobs", "forget"]).with(name.as_ref()).with(options).with(&place).elsewhere(),
            )
            .advise(
                "list what is left of locks that nobody uses",
                Suggested::new(["admin", "gc"]).with(&place).elsewhere(),
            ),
        "log" => failure
            .advise("see the last holds", about("history", name.as_ref()))
            .advise("list the runs of a job", about("jobs", name.as_ref()).with(["--history"]))
            .advise("see what was broken, by whom and why", about("list", None).with(["--broken"]))
            .advise("see what was decided about leased locks", about("requests", None).with(["--decided"])),
        "check" | "diagnose" | "health" => failure.advise("look for trouble", about("doctor", None)),
        "clean" | "cleanup" | "prune" | "purge" => {
            failure.advise("list what is left of locks that nobody uses", about("admin", Some(&"gc".into())))
        }
        "start" | "server" => failure.advise("serve ZooKeeper clients of this machine", about("serve", None)),
        _ => return None,
    })
}

/// Returns a hint for the name of a lock without a verb, in front of a command.
fn verbless(words: &[OsString]) -> Option<Failure> {
    let typed = words.first()?.to_str()?;
    let before = before_command(words);
    let command = words.get(before.len() + 1..).filter(|command| !command.is_empty())?;
    let run = Suggested::new(["run"]).with(before).with(place_of(words)).elsewhere().running(command);
    let failure = Failure::new(Code::Usage, format!("there is no verb {typed:?}"));
    Some(failure.advise("run a command under that lock", run))
}
