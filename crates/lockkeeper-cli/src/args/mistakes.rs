//! Describes a mistake on the command line in a single line, with what to type instead.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::connect::ConnectArgs;
use super::values::before_command;
use crate::advice::{self, PlaceOption, Suggested};
use crate::exit::{Code, Failure};

/// Two options that differ in this many letters or more are probably different options.
const LETTERS: usize = 2;

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
        ErrorKind::InvalidSubcommand if verbs.is_empty() => {
            if let Some(failure) = instead(words) {
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
    let tip = tip.filter(|tip| !tip.contains("as a value"));
    let failure = Failure::new(Code::Usage, message);
    let separated = words.iter().any(|word| word == "--");
    let unknown = || match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(typed)) if error.kind() == ErrorKind::UnknownArgument => nearest(command, typed),
        _ => None,
    };
    if let ("run", ErrorKind::UnknownArgument, Some(ContextValue::String(typed))) =
        (verbs.first().copied().unwrap_or_default(), error.kind(), error.get(ContextKind::InvalidArg))
        && let Some(meant) = of_flock(typed, words)
    {
        return help(failure.hint(format!("write {meant}")));
    }
    help(match (error.kind(), tip, unknown()) {
        (_, _, Some(meant)) => failure.hint(format!("did you mean --{meant}?")),
        (ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument, ..) if verbs == ["run"] && !separated => {
            failure.advise("write -- before the command", separate(command, &words[1..]))
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

/// Returns the option of `run` for one of flock, and of programs like it.
fn of_flock(typed: &str, words: &[OsString]) -> Option<String> {
    let (option, joined) = typed.split_once('=').map_or((typed, None), |(option, value)| (option, Some(value)));
    match option {
        "-n" | "--nb" | "--nonblock" | "--nonblocking" | "--non-blocking" | "--nowait" | "--no-wait" => {
            Some("--try".to_owned())
        }
        "-w" | "--timeout" => {
            let words = before_command(words).iter().filter_map(|word| word.to_str());
            let (mut after, text) = (words.clone().skip_while(|word| *word != option).skip(1), words);
            let glued = text.filter_map(|word| word.strip_prefix(option)).find(|value| !value.is_empty());
            let value = joined.or_else(|| glued.map(|value| value.trim_start_matches('='))).or_else(|| after.next());
            let value = value.filter(|value| value.starts_with(|c: char| c.is_ascii_digit())).unwrap_or("30s");
            // flock counts in seconds.
            let unit = if value.ends_with(|c: char| c.is_ascii_digit()) { "s" } else { "" };
            Some(format!("--wait {value}{unit}"))
        }
        "-E" => Some("--conflict-exit-code STATUS".to_owned()),
        "-s" => Some("--shared".to_owned()),
        _ => None,
    }
}

/// Returns the option that was probably meant. The parser's own measure does not recognise two swapped letters.
fn nearest<'a>(command: &'a clap::Command, typed: &str) -> Option<&'a str> {
    let typed = typed.strip_prefix("--")?.split('=').next()?;
    let options = command.get_arguments().filter_map(clap::Arg::get_long);
    let (distance, option) = options.map(|option| (strsim::osa_distance(typed, option), option)).min()?;
    (distance <= LETTERS && distance < typed.chars().count()).then_some(option)
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
    place.flat_map(PlaceOption::words).collect()
}

/// Returns a hint for a verb of another program, and for a missing verb.
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
        "lock" | "acquire" | "hold" | "take" | "exec" => {
            failure.advise("run a command under the lock", run(about("run", name.as_ref())))
        }
        "unlock" | "release" | "free" => failure
            .hint("a lock is released when the command under it ends")
            .advise("ask its holder", about("revoke", name.as_ref()))
            .advise("take it from its holder", about("break", name.as_ref()).with(["--reason", "WHY"])),
        "kill" | "steal" | "force" => {
            failure.advise("take it from its holder", about("break", name.as_ref()).with(["--reason", "WHY"]))
        }
        "status" | "info" if named => failure.advise("see its holders and waiters", about("show", None)),
        "status" | "info" | "locks" | "top" => failure.advise("see which locks there are", about("list", None)),
        "history" | "log" => failure
            .advise("see what was broken, by whom and why", about("list", None).with(["--broken"]))
            .advise("see what was decided about leased locks", about("requests", None).with(["--decided"])),
        "start" | "server" => failure.advise("serve ZooKeeper clients of this machine", about("serve", None)),
        // A name without a verb.
        _ if !command.is_empty() => {
            let words = [&[OsString::from("run")], before_command(words)].concat();
            let failure = Failure::new(Code::Usage, format!("there is no verb {typed:?}"));
            failure.advise("run a command under that lock", run(Suggested::new(words).with(&place).elsewhere()))
        }
        _ => return None,
    })
}
