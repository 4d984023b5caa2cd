//! Checks that the definitions are consistent with each other and with the documents.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::Parser;
use clap::error::ErrorKind;

use super::{Args, Verb, run_alone};
use crate::verbs::serve::args::LimitArgs;

// The manual describes a build with the default features.
#[cfg(all(feature = "tls", feature = "top", feature = "webhook"))]
mod tables;

#[test]
fn definitions_are_consistent() {
    Args::command().debug_assert();
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

/// Returns the manual, README and the guide.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = std::fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let pages = guide.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let files = [root.join("README.md"), root.join("docs/command.md")].into_iter().chain(pages);
    files.map(|file| (file.clone(), std::fs::read_to_string(&file).unwrap())).collect()
}

#[test]
fn the_manual_names_every_option_and_no_other() {
    let (_, manual) = documents().remove(1);
    let commands = commands();
    let known: Vec<_> =
        commands.iter().flat_map(clap::Command::get_arguments).filter_map(clap::Arg::get_long).collect();
    let named = |option: &str| {
        let option = format!("--{option}");
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
        manual.match_indices(&option).any(|(at, _)| ends(&manual[at + option.len()..]))
    };
    // The limits of the server are in docs/server.md.
    let limits = <LimitArgs as clap::Args>::augment_args(clap::Command::new("limits"));
    let elsewhere = |option: &str| limits.get_arguments().any(|limit| limit.get_long() == Some(option));
    let missing: Vec<_> = known.iter().filter(|option| !elsewhere(option) && !named(option)).collect();
    assert!(missing.is_empty(), "{missing:?} is missing in docs/command.md");
    for (at, _) in manual.match_indices("`--") {
        let option: String = manual[at + 3..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        // An option of cargo, not of lockkeeper.
        let family = option.ends_with('-') && known.iter().any(|known| known.starts_with(&option));
        assert!(known.contains(&option.as_str()) || family || option == "features", "docs/command.md has --{option}");
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
