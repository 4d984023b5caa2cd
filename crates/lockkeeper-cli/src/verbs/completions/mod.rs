//! Completion in a shell.
//!
//! `lockkeeper completions SHELL` prints a script. For each word that is to be completed, the script asks `lockkeeper __complete SHELL
//! WORDS`. It leaves to the shell what the shell knows better: names of files, and the command behind `--`.
//!
//! Names of locks come from the servers. Nothing is started for them, created or said, and the shell waits for [`LIMIT`] at most.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use clap::builder::ValueHint;
use clap::{ArgMatches, FromArgMatches};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, complete};
use futures_util::future::join_all;
use lockkeeper::admin::LOCKS;
use lockkeeper_jobs::JobsAdmin;

use crate::args::connect::ConnectArgs;
use crate::args::values::Completes;
use crate::exit::Failure;
use crate::inquiry::connect_running;
use crate::output::{Printer, tolerate_closed};
use crate::settings::{Part, Settings, lock_path};
use crate::verb::{Context, Files, Verb};

/// The argument that starts this part of the program.
pub(crate) const WORD: &str = "__complete";

/// How long the servers have for the names of locks, in all.
const LIMIT: Duration = Duration::from_millis(300);

/// Tells the script that the shell completes a name of a file.
const FILES: &str = "<files>";

/// `lockkeeper completions`.
#[derive(Debug, clap::Args)]
#[command(add = Files(&[("~/.bashrc, ~/.zshrc, ~/.config/fish/config.fish", "where a shell reads the script")]), after_help = "\
Examples:
  lockkeeper completions bash > lockkeeper.bash")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// A shell that has a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Verb for CompletionsArgs {
    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        script(self.shell, &(context.definitions)())
    }
}

/// Prints the script of a shell.
fn script(shell: Shell, definitions: &clap::Command) -> Result<u8, Failure> {
    let script = match shell {
        Shell::Bash => include_str!("bash.sh"),
        Shell::Zsh => include_str!("zsh.sh"),
        Shell::Fish => include_str!("fish.fish"),
    };
    let verbs: Vec<_> =
        definitions.get_subcommands().filter(|verb| runs(verb)).map(|verb| verb.get_name().to_owned()).collect();
    tolerate_closed(std::io::stdout().write_all(script.replace("VERBS", &verbs.join("|")).as_bytes()))?;
    Ok(0)
}

/// Whether a command follows `--` in this verb.
fn runs(verb: &clap::Command) -> bool {
    verb.get_positionals().any(clap::Arg::is_last_set)
}

/// Prints what the last word can become, one a line: the whole word, a tab and a text about it.
pub(crate) fn main(mut words: impl Iterator<Item = OsString>, definitions: fn() -> clap::Command) -> ExitCode {
    let shell = words.next();
    let words: Vec<_> = words.collect();
    let Some(last) = words.len().checked_sub(1) else { return ExitCode::FAILURE };
    let mut prepared = prepared(definitions(), definitions, &words[..last]);
    let mut found = complete(&mut prepared, words.clone(), last, None).unwrap_or_default();
    // Without a dash, nobody looks for an option.
    if words[last].is_empty() && found.iter().any(|one| !is_option(one)) {
        found.retain(|one| !is_option(one));
    }
    let mut text = String::new();
    for one in found {
        let value = one.get_value().to_string_lossy();
        let help = one.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.lines().next().unwrap_or_default();
        // Writing to a string never fails.
        _ = match shell.as_deref().and_then(OsStr::to_str) {
            Some("bash") => writeln!(text, "{value}"),
            _ => writeln!(text, "{value}\t{help}"),
        };
    }
    // The script reads what there is.
    _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn is_option(candidate: &CompletionCandidate) -> bool {
    candidate.get_value().as_encoded_bytes().starts_with(b"-")
}

/// Adds to each argument what completes its values. `typed` are the words before the one that is completed.
fn prepared(command: clap::Command, all: fn() -> clap::Command, typed: &[OsString]) -> clap::Command {
    let typed = typed.to_vec();
    let command = command.mut_args(|arg| {
        let files = matches!(arg.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath);
        match arg.get::<Completes>().copied() {
            Some(Completes::Locks) => {
                let typed = typed.clone();
                arg.add(ArgValueCompleter::new(move |name: &OsStr| candidates(name, names(connect(all, &typed), name))))
            }
            Some(Completes::Nodes) => {
                let typed = typed.clone();
                arg.add(ArgValueCompleter::new(move |node: &OsStr| candidates(node, nodes(all, &typed))))
            }
            Some(Completes::Words(words)) => {
                let words = words.iter().map(|word| (*word).to_owned());
                let words: Vec<_> = words.collect();
                arg.add(ArgValueCompleter::new(move |word: &OsStr| candidates(word, words.clone())))
            }
            Some(Completes::TimeZones) => arg.add(ArgValueCompleter::new(|zone: &OsStr| {
                candidates(zone, jiff::tz::db().available().map(|zone| zone.to_string()))
            })),
            None if files => arg.add(ArgValueCompleter::new(|_: &OsStr| vec![CompletionCandidate::new(FILES)])),
            None => arg,
        }
    });
    let verbs: Vec<_> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    verbs.into_iter().fold(command, |command, verb| command.mut_subcommand(verb, |verb| prepared(verb, all, &typed)))
}

/// Returns those that begin as was typed.
fn candidates(typed: &OsStr, all: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    all.into_iter().filter(|one| one.starts_with(&*typed)).map(CompletionCandidate::new).collect()
}

/// Returns what was typed for the verb.
fn of_verb(all: fn() -> clap::Command, typed: &[OsString]) -> Option<ArgMatches> {
    let matches = all().ignore_errors(true).try_get_matches_from(typed).ok()?;
    std::iter::successors(Some(&matches), |matches| matches.subcommand().map(|(_, matches)| matches)).last().cloned()
}

/// Returns the options of the place that were typed.
fn connect(all: fn() -> clap::Command, typed: &[OsString]) -> ConnectArgs {
    of_verb(all, typed).and_then(|verb| ConnectArgs::from_arg_matches(&verb).ok()).unwrap_or_default()
}

/// Returns the names of the nodes of the lock that was typed.
fn nodes(all: fn() -> clap::Command, typed: &[OsString]) -> Vec<String> {
    // Without its value, the option would be a mistake.
    let typed = typed.strip_suffix(&[OsString::from("--node")]).unwrap_or(typed);
    let name = of_verb(all, typed).and_then(|verb| verb.try_get_one::<String>("name").ok().flatten().cloned());
    let Some(path) = name.and_then(|name| lock_path(&name).ok()) else { return Vec::new() };
    let connect = connect(all, typed);
    let mut nodes = gathered(move |told| async move {
        let settings = Settings::read(connect, &Printer::new(false)).ok()?.at([path.as_str()]).await.ok()?;
        let keeper = connect_running(&settings, &settings.builder().connect_timeout(LIMIT)).await.ok()?;
        let lock = keeper.admin().show(path.as_str()).await.ok()?;
        let all = lock.holders.into_iter().chain(lock.waiters).chain(lock.sessionless);
        for contender in all {
            told.send(contender.node).ok()?;
        }
        keeper.close().await;
        Some(())
    });
    nodes.retain(|node| is_plain(node));
    nodes
}

/// Returns what is told within the limit.
fn gathered<F: Future<Output = Option<()>>>(ask: impl FnOnce(Sender<String>) -> F + Send + 'static) -> Vec<String> {
    let end = Instant::now() + LIMIT;
    let (told, found) = channel();
    // A thread, because a lookup of a host may block. The process ends without it.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map(|runtime| runtime.block_on(ask(told)))
    });
    let mut all = Vec::new();
    // It ends when every session is closed.
    while let Ok(one) = found.recv_timeout(end.saturating_duration_since(Instant::now())) {
        all.push(one);
    }
    all
}

/// Returns the names of locks in use and of jobs, as somebody types them who began like this. A name with characters that mean
/// something to a shell is left out: another user may have chosen it.
fn names(connect: ConnectArgs, typed: &OsStr) -> Vec<String> {
    let Some(typed) = typed.to_str().map(str::to_owned) else { return Vec::new() };
    let below = match typed.rsplit_once('/') {
        Some(("", _)) => "/".to_owned(),
        Some((above, _)) if above.starts_with('/') => above.to_owned(),
        Some((above, _)) => format!("{LOCKS}/{above}"),
        None => LOCKS.to_owned(),
    };
    let names = gathered(move |told| async move { ask(connect, &below, &told).await });
    let relative = format!("{LOCKS}/");
    let name = |path: String| match path.strip_prefix(&relative) {
        Some(name) if !typed.starts_with('/') => name.to_owned(),
        _ => path,
    };
    let mut names: Vec<_> = names.into_iter().map(name).filter(|name| is_plain(name)).collect();
    names.sort();
    names.dedup();
    names
}

/// Whether every shell takes this word as it is.
fn is_plain(name: &str) -> bool {
    let in_words = |c: char| c.is_alphanumeric() || "/_.,:@%+-".contains(c);
    name.starts_with(|c: char| c.is_alphanumeric() || "/_.".contains(c)) && name.chars().all(in_words)
}

/// Tells the paths of all locks and jobs at and below `root`, of each realm as soon as it answers.
///
/// Dropping the future leaves, for its timeout, a session that has no nodes.
async fn ask(connect: ConnectArgs, root: &str, told: &Sender<String>) -> Option<()> {
    let settings = Settings::read(connect, &Printer::new(false)).ok()?;
    let parts = settings.parts(root).await.ok()?;
    join_all(parts.iter().map(|part| ask_part(part, told))).await;
    Some(())
}

async fn ask_part(part: &Part, told: &Sender<String>) -> Option<()> {
    let keeper = connect_running(&part.settings, &part.settings.builder().connect_timeout(LIMIT)).await.ok()?;
    let (admin, jobs) = (keeper.admin(), JobsAdmin::new(&keeper));
    let (locks, jobs) = tokio::join!(admin.list(&part.root), jobs.jobs(&part.root));
    let locks = locks.into_iter().flatten().map(|lock| lock.path);
    let jobs = jobs.into_iter().flatten().map(|job| job.path);
    for path in locks.chain(jobs).filter(|path| part.has(path)) {
        told.send(path).ok()?;
    }
    keeper.close().await;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[&str]) -> Vec<String> {
        let words: Vec<_> = std::iter::once("lockkeeper").chain(words.iter().copied()).map(OsString::from).collect();
        let last = words.len() - 1;
        let found = complete(
            &mut prepared(crate::args::definitions(), crate::args::definitions, &words[..last]),
            words,
            last,
            None,
        )
        .unwrap();
        found.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_values_of_options_are_those_that_the_parser_takes() {
        assert_eq!(found(&["run", "a", "--once-per", ""]), ["hour", "day", "week", "month"]);
        assert_eq!(found(&["run", "a", "--on-failure=k"]), ["--on-failure=keep"]);
        assert_eq!(found(&["run", "a", "--if-unreachable", "w"]), ["wait"]);
        assert_eq!(found(&["run", "a", "--on-revoke", "U"]), ["USR1", "USR2"]);
        assert_eq!(found(&["run", "a", "--config", "/e"]), [FILES]);
        assert_eq!(found(&["completions", ""])[..3], ["bash", "zsh", "fish"]);
        assert!(found(&["run", "a", "--time-zone", "Europe/Ber"]).iter().all(|zone| zone == "Europe/Berlin"));
        // Each word that is offered is taken.
        let mut left = vec![crate::args::definitions()];
        while let Some(command) = left.pop() {
            left.extend(command.get_subcommands().cloned());
            for arg in command.get_arguments() {
                let Some(Completes::Words(words)) = arg.get::<Completes>() else { continue };
                let alone = clap::Arg::new("value").value_parser(arg.get_value_parser().clone());
                let alone = clap::Command::new("one").no_binary_name(true).arg(alone);
                for word in *words {
                    assert!(alone.clone().try_get_matches_from([word]).is_ok(), "{arg} {word}");
                }
            }
        }
    }

    #[test]
    fn a_name_that_a_shell_would_read_otherwise_is_not_offered() {
        for plain in ["a", "a/b-c_d.e", "/app/x:1", "größe", "100%"] {
            assert!(is_plain(plain), "{plain}");
        }
        for other in ["", "-rf", "a b", "$(x)", "a;b", "~x", "a\nb", "a'b", "a\u{1b}", "%1", "a*", "=x", "a&b"] {
            assert!(!is_plain(other), "{other}");
        }
    }
}
