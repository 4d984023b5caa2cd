//! Checks that the definitions are consistent with each other and with the documents.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::Parser;
use clap::error::ErrorKind;

use super::{Args, Verb, run_alone};
use crate::args::connect::ConnectArgs;
use crate::verbs::serve::args::LimitArgs;

// The manual describes a build with the default features.
#[cfg(all(feature = "tls", feature = "top", feature = "webhook"))]
mod tables;

#[test]
fn definitions_are_consistent() {
    Args::command().debug_assert();
}

/// The first thing that people read. Alike verbs share a line.
#[test]
fn the_help_of_the_command_names_each_visible_verb_once_and_fits_a_small_terminal() {
    let text = crate::verbs::overview();
    assert!(text.lines().count() <= 24 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let lines = text.lines().filter_map(|line| line.strip_prefix("  "));
    let mut named: Vec<_> = lines.flat_map(|line| line.split("  ").next().unwrap().split(", ")).collect();
    named.sort_unstable();
    let root = Args::command();
    let mut verbs: Vec<_> =
        root.get_subcommands().filter(|verb| !verb.is_hide_set()).map(clap::Command::get_name).collect();
    verbs.sort_unstable();
    assert_eq!(named, verbs);
}

/// Returns every command with its help.
fn commands() -> Vec<clap::Command> {
    fn collect(command: &clap::Command, all: &mut Vec<clap::Command>) {
        command.get_subcommands().for_each(|verb| collect(verb, all));
        all.push(command.clone());
    }
    let mut command = Args::command();
    command.build();
    let mut all = Vec::new();
    collect(&command, &mut all);
    all
}

/// A paragraph that contains line breaks is wrapped a second time on a narrow terminal.
#[test]
fn help_is_broken_into_lines_once() {
    for command in commands() {
        let texts = [command.get_after_help(), command.get_after_long_help(), command.get_long_about()];
        for text in texts.into_iter().flatten().map(ToString::to_string) {
            let lines: Vec<_> = text.lines().collect();
            for pair in lines.windows(2) {
                let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
                assert!(!(is_text(pair[0]) && is_text(pair[1])), "{}: {pair:?}", command.get_name());
            }
            let wide = lines.iter().find(|line| line.starts_with(' ') && line.chars().count() > 80);
            assert_eq!(wide, None, "{}", command.get_name());
        }
    }
}

/// Returns the pages below a directory of the repository, in order.
fn pages(directory: &str) -> Vec<(PathBuf, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(directory);
    let mut pages: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages.into_iter().map(|page| (page.clone(), std::fs::read_to_string(&page).unwrap())).collect()
}

/// Returns the manual: the pages of the command, and that of its server.
fn manual() -> Vec<(PathBuf, String)> {
    let server = pages("docs").into_iter().filter(|(page, _)| page.ends_with("server.md"));
    pages("docs/commands").into_iter().chain(server).collect()
}

/// Returns the manual, README and the guide.
fn documents() -> Vec<(PathBuf, String)> {
    let readme = pages("").into_iter().filter(|(page, _)| page.ends_with("README.md"));
    readme.chain(pages("docs/commands")).chain(pages("docs/guide")).collect()
}

/// Whether a text names an option.
fn names(text: &str, option: &str) -> bool {
    let option = format!("--{option}");
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
    text.match_indices(&option).any(|(at, _)| ends(&text[at + option.len()..]))
}

/// The options of the place, which all verbs have, are in the page of all verbs, and the limits of the server in its own.
#[test]
fn the_page_of_each_verb_names_its_options_and_the_manual_no_other() {
    let pages = manual();
    let page = |name: &str| &pages.iter().find(|(path, _)| path.ends_with(name)).unwrap_or_else(|| panic!("{name}")).1;
    let limits = <LimitArgs as clap::Args>::augment_args(clap::Command::new("limits"));
    let place = <ConnectArgs as clap::Args>::augment_args(clap::Command::new("place"));
    let is_of = |option: &clap::Arg, others: &clap::Command| {
        others.get_arguments().any(|other| {
            other.get_long() == option.get_long()
                && other.get_help().map(ToString::to_string) == option.get_help().map(ToString::to_string)
        })
    };
    fn collect<'a>(command: &'a clap::Command, all: &mut Vec<&'a clap::Arg>) {
        all.extend(command.get_arguments().filter(|option| option.get_long().is_some() && !option.is_hide_set()));
        command.get_subcommands().for_each(|verb| collect(verb, all));
    }
    let mut root = Args::command();
    root.build();
    let (mut missing, mut known) = (Vec::new(), vec!["help", "version"]);
    for verb in root.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        let mut options = Vec::new();
        collect(verb, &mut options);
        for option in options {
            let name = option.get_long().unwrap();
            let place = match option {
                _ if name == "help" => "commands/README.md".to_owned(),
                option if is_of(option, &place) => "commands/README.md".to_owned(),
                option if is_of(option, &limits) => "docs/server.md".to_owned(),
                _ => format!("commands/{}.md", verb.get_name()),
            };
            if !names(page(&place), name) {
                missing.push(format!("{place}: --{name}"));
            }
            known.push(name);
        }
    }
    assert!(missing.is_empty(), "the manual lacks {missing:#?}");
    for (path, text) in pages.iter().filter(|(path, _)| !path.ends_with("docs/server.md")) {
        for (at, _) in text.match_indices("`--") {
            let option: String =
                text[at + 3..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            let family = option.ends_with('-') && known.iter().any(|known| known.starts_with(&option));
            assert!(known.contains(&option.as_str()) || family, "{} has --{option}", path.display());
        }
    }
}

/// Every command line in the documents and in the help can be parsed.
#[test]
fn examples_can_be_typed() {
    let mut examples = Vec::new();
    for (file, text) in documents() {
        let lines = text.lines().map(|line| line.trim().trim_start_matches("$ "));
        let inline = text.split('`').skip(1).step_by(2);
        let found = lines.chain(inline).filter(|line| line.starts_with("lockkeeper "));
        examples.extend(found.map(|line| (file.display().to_string(), line.to_owned())));
    }
    for command in commands() {
        let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
        let help = help.unwrap_or_default();
        let found = help.lines().map(str::trim).filter(|line| line.starts_with("lockkeeper "));
        examples.extend(found.map(|line| (command.get_name().to_owned(), line.to_owned())));
    }
    let (mut tried, mut refused) = (0, Vec::new());
    for (file, example) in examples {
        // Without the text beside the command line.
        let mut line = example.split("  ").next().unwrap_or_default().to_owned();
        for (placeholder, value) in [("TOKEN", "7"), ("ZXID", "7"), ("SHELL", "bash"), ("VERB", "run")] {
            line = line.replace(placeholder, value);
        }
        // A pattern, or a command line that is cut off.
        if line.contains(['…', '[', '{']) || line.contains("__watch") || line.contains("...") {
            continue;
        }
        let words = shlex::split(&line).unwrap_or_else(|| panic!("{file}: {example}"));
        let shells = words.iter().position(|word| ["#", "|", "<", ">"].contains(&word.as_str()));
        let words = &words[..shells.unwrap_or(words.len())];
        if words.iter().any(|word| word.contains('|')) {
            continue;
        }
        tried += 1;
        let parsed = Args::try_parse_from(words);
        let alone = run_alone(words[1..].iter().map(Into::into));
        match &parsed {
            Ok(Args { verb: Verb::Run(run) }) => assert_eq!(format!("{alone:?}"), format!("{:?}", Some(run)), "{line}"),
            _ => assert!(alone.is_none(), "{line}"),
        }
        if let Err(error) = parsed {
            let kind = error.kind();
            let fine = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
                // A sentence that names a verb, or a verb with its options.
                || kind == ErrorKind::MissingRequiredArgument
                || kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            if !fine {
                refused.push(format!("{file}: {example}: {error}"));
            }
        }
    }
    assert!(tried > 30 && refused.is_empty(), "{tried}: {refused:#?}");
}
