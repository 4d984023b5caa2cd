//! The tables of docs/commands and docs/server.md, generated from the definitions of the command line.
//!
//! In a page, `<!-- table: KIND WORDS -->` begins a table and `<!-- end of table -->` ends it. To rewrite them all:
//! `LOCKKEEPER_BLESS=1 cargo test -p lockkeeper-cli tables`.

use std::fmt::Write as _;
use std::path::PathBuf;

use lockkeeper_config::settings::Key;

use super::manual;
use crate::args::definitions;
use crate::statuses::{self, Statuses};
use crate::verbs::run::args::VARIABLES;

/// The text before and after the name of a table.
const BEGIN: (&str, &str) = ("<!-- table: ", " -->\n");
const END: &str = "<!-- end of table -->\n";

#[test]
fn the_tables_of_the_manual_are_those_of_the_definitions() {
    for (path, text) in manual() {
        let (mut made, mut rest) = (String::new(), text.as_str());
        while let Some((before, after)) = rest.split_once(BEGIN.0) {
            let (words, after) = after.split_once(BEGIN.1).expect("the beginning of a table ends in its line");
            let (_, after) = after.split_once(END).unwrap_or_else(|| panic!("the table {words:?} has no end"));
            made += &format!("{before}{}{words}{}{}{END}", BEGIN.0, BEGIN.1, table(words));
            rest = after;
        }
        made += rest;
        let page = path.display();
        if std::env::var_os("LOCKKEEPER_BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        } else if let Some((is, should)) = text.lines().zip(made.lines()).find(|(is, should)| is != should) {
            panic!("{page} has\n{is}\nand should have\n{should}\nrun it with LOCKKEEPER_BLESS=1 to rewrite the tables");
        } else {
            assert_eq!(text, made);
        }
    }
}

/// So a new verb, a new option and a new exit status have their place in the manual.
#[test]
fn the_page_of_each_verb_has_its_head_and_all_its_tables() {
    fn check(command: &clap::Command, words: &str, page: &(PathBuf, String), limits: &str, missing: &mut Vec<String>) {
        let mut needed = vec![format!("head {words}")];
        if command.get::<Statuses>().is_some() {
            needed.push(format!("statuses {words}"));
        }
        if command.has_subcommands() {
            needed.push(format!("verbs {words}"));
        }
        let listed: Vec<_> = command.get_arguments().filter(|option| is_listed(option)).collect();
        // A table with the row of `--json` alone would say nothing.
        let is_alone = |option: &clap::Arg| {
            option.get_long() == Some("json")
                && !listed.iter().any(|other| other.get_long() != Some("json") && other.get_help_heading().is_none())
        };
        for option in listed.iter().filter(|option| !is_alone(option)) {
            let heading = option.get_help_heading().map_or_else(String::new, |heading| format!(" / {heading}"));
            needed.push(format!("options {words}{heading}"));
        }
        needed.dedup();
        // The options of the place are in the page of all verbs. Verbs with the same options may share a table.
        needed.retain(|words| !words.ends_with(PLACE) && !page.1.contains(&table(words)));
        needed.retain(|words| !limits.contains(&table(words)));
        missing.extend(needed.iter().map(|words| format!("{}: {words}", page.0.display())));
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
            check(verb, &format!("{words} {}", verb.get_name()), page, limits, missing);
        }
    }
    let (pages, mut missing) = (manual(), Vec::new());
    let limits = pages.iter().find(|(path, _)| path.ends_with("docs/server.md")).unwrap();
    let mut root = definitions();
    root.build();
    for verb in root.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        let name = verb.get_name();
        match pages.iter().find(|(path, _)| path.ends_with(format!("commands/{name}.md"))) {
            Some(page) => check(verb, name, page, &limits.1, &mut missing),
            None => missing.push(format!("docs/commands/{name}.md")),
        }
    }
    assert!(missing.is_empty(), "the manual lacks {missing:#?}; write them empty, and LOCKKEEPER_BLESS=1 fills them");
}

/// The end of the name of the table with the options of the place.
const PLACE: &str = " / Where the locks are";

fn is_listed(option: &clap::Arg) -> bool {
    option.get_long().is_some_and(|long| long != "help") && !option.is_hide_set()
}

/// Returns a table: `verbs`, `verbs VERB`, `head VERB..`, `options VERB..`, `options VERB.. / HEADING`, `statuses` (of a verb that has none
/// of its own), `statuses VERB..`, `settings`, `variables`, `variables of the command`.
fn table(words: &str) -> String {
    if words == "variables of the command" {
        return variables(VARIABLES);
    }
    if words == "settings" {
        return settings();
    }
    let (kind, of) = words.split_once(' ').unwrap_or((words, ""));
    let (verbs, heading) = of.split_once(" / ").map_or((of, None), |(verbs, heading)| (verbs, Some(heading)));
    let mut root = definitions();
    root.build();
    let verb = verbs.split_whitespace().fold(&root, |command, verb| {
        command.find_subcommand(verb).unwrap_or_else(|| panic!("{words:?}: there is no verb {verb}"))
    });
    match kind {
        "verbs" => verbs_of(verb, of.is_empty()),
        "head" => head(verb),
        "options" => options_of(verb, heading),
        "statuses" => statuses_of(verb),
        "variables" if of.is_empty() => variables(&OTHERS),
        _ => panic!("{words:?} is no table"),
    }
}

/// Returns what begins the part of a verb: what it does, how it is used, and its examples.
fn head(verb: &clap::Command) -> String {
    let does = verb.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = verb.clone().term_width(120).render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines().map(|line| format!("usage: {}\n", line.trim()));
    let help = verb.get_after_long_help().or(verb.get_after_help()).map_or_else(String::new, ToString::to_string);
    let examples = help.split("\n\n").filter_map(|text| text.strip_prefix("Examples:\n"));
    let examples = examples.flat_map(str::lines).map(|line| format!("{}\n", line.trim()));
    let (usage, examples) = (usage.collect::<String>(), examples.collect::<String>());
    let examples = if examples.is_empty() { String::new() } else { format!("\n```sh\n{examples}```\n") };
    format!("{}.\n\n```text\n{usage}```\n{examples}", cell(&does))
}

/// Returns the verbs of a command. Those of the main command have pages.
fn verbs_of(command: &clap::Command, has_pages: bool) -> String {
    let mut table = "| verb | does |\n|---|---|\n".to_owned();
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        let does = verb.get_about().map(ToString::to_string).unwrap_or_default();
        let names: Vec<_> = verb.get_positionals().filter(|argument| !argument.is_last_set()).map(argument).collect();
        let names = names.iter().map(|name| format!(" {name}")).collect::<String>();
        let name = verb.get_name();
        let (before, after) = if has_pages { ("[", format!("]({name}.md)")) } else { ("", String::new()) };
        _ = writeln!(table, "| {before}`{name}{names}`{after} | {} |", cell(&does));
    }
    table
}

fn argument(argument: &clap::Arg) -> String {
    let name = argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
    let name = name.to_uppercase();
    let many = argument.get_num_args().is_some_and(|count| count.max_values() > 1);
    let name = if many { format!("{name}…") } else { name };
    if argument.is_required_set() { name } else { format!("[{name}]") }
}

fn options_of(command: &clap::Command, heading: Option<&str>) -> String {
    let mut table = "| option | means | default |\n|---|---|---|\n".to_owned();
    let options = command.get_arguments().filter(|option| is_listed(option) && option.get_help_heading() == heading);
    let mut count = 0;
    for option in options {
        let (means, default) = description(option);
        let (spelling, default) = (spelling(option).replace('|', "\\|"), cell(&default));
        let default = if default.is_empty() { default } else { format!("{default} ") };
        _ = writeln!(table, "| `{spelling}` | {} | {default}|", cell(&means));
        count += 1;
    }
    assert!(count > 0, "{} has no options under {heading:?}", command.get_name());
    table
}

/// `-m, --message TEXT`, `--machine[=DIR]`, `--on-suspect wait|stop`
fn spelling(option: &clap::Arg) -> String {
    let short = option.get_short().map_or_else(String::new, |short| format!("-{short}, "));
    let long = option.get_long().unwrap_or_default();
    let text = format!("{short}--{long}");
    if !option.get_action().takes_values() {
        return text;
    }
    let shown = !option.is_hide_possible_values_set();
    let values: Vec<_> = option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let name = option.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
    let value = if shown && !values.is_empty() { values.join("|") } else { name };
    match option.get_num_args().is_some_and(|count| count.min_values() == 0) {
        true => format!("{text}[={value}]"),
        false => format!("{text} {value}"),
    }
}

/// Returns the help of an option, and its default with its variable.
fn description(option: &clap::Arg) -> (String, String) {
    let short = option.get_help().map(ToString::to_string).unwrap_or_default();
    let long = option.get_long_help().map(ToString::to_string).unwrap_or_else(|| short.clone());
    let (mut means, mut default) = (long.split("\n\n").collect::<Vec<_>>().join(". "), Vec::new());
    for mark in ["env: ", "default: "] {
        while let Some((before, rest)) = means.clone().split_once(&format!("[{mark}")) {
            let (value, after) = rest.split_once(']').expect("a mark ends");
            default.push(if mark == "env: " { format!("`{value}`") } else { value.to_owned() });
            means = format!("{}{after}", before.trim_end());
        }
    }
    let given = option.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy()));
    default.extend(given.filter(|_| option.get_action().takes_values()));
    if option.is_required_set() {
        default.push("required".to_owned());
    }
    (means, default.join("; "))
}

/// Returns the exit codes of a verb.
fn statuses_of(verb: &clap::Command) -> String {
    let own = statuses::of(verb);
    let listed = if own.is_empty() { statuses::USUAL } else { own };
    let rows = listed.iter().map(|(code, means, more)| {
        let more = if more.is_empty() { String::new() } else { format!("; {}", cell(more)) };
        format!("| {} | {}{more} |\n", code.status(), cell(means))
    });
    let rows = rows.collect::<String>();
    format!("| status | means |\n|---|---|\n{rows}")
}

/// The help of each verb with exit codes of its own has them, and no other help has any.
#[test]
fn exit_codes_are_in_the_help_of_their_verbs() {
    fn check(command: &clap::Command, found: &mut usize) {
        let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
        let (name, lines) = (command.get_name(), statuses::lines(statuses::of(command)));
        let help = help.unwrap_or_default();
        assert_eq!(help.contains("Exit status:"), !lines.is_empty(), "{name}");
        assert!(help.contains(&lines), "{name}: {help}");
        *found += usize::from(command.get::<Statuses>().is_some());
        command.get_subcommands().for_each(|verb| check(verb, found));
    }
    let mut found = 0;
    check(&definitions(), &mut found);
    assert!(found > 20, "{found}");
}

/// Returns text for one cell. A word that begins like an option becomes code, unless it is code already.
fn cell(text: &str) -> String {
    let mut in_code = false;
    let words = text.split_whitespace().map(|word| {
        let was_in_code = in_code;
        in_code ^= word.matches('`').count() % 2 == 1;
        let start = word.len() - word.trim_start_matches('(').len();
        let end = word.trim_end_matches([',', '.', ';', ':', ')']).len().max(start);
        let (before, option, after) = (&word[..start], &word[start..end], &word[end..]);
        let is_option = option.len() > 2 && option.starts_with("--") && !was_in_code && !in_code;
        if is_option { format!("{before}`{option}`{after}") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Variables that are not settings, beside those of a command under a lock.
const OTHERS: [(&str, &str); 5] = [
    ("LOCKKEEPER_CONFIG", "`--config`"),
    ("LOCKKEEPER_PROPERTIES", "`--properties`, with `:` between several"),
    ("LOCKKEEPER_HOLD", "the hold of `release` and `with-hold`; `acquire --shell` sets it"),
    ("LOCKKEEPER_IDLE_EXIT", "how long this user's server stays without a session; read when it is started"),
    (
        "LOCKKEEPER_LOG",
        "what to log on standard error, such as `debug` or `lockkeeper=trace`; without it, `serve` logs warnings; for `server.log`, read when the server is started",
    ),
];

#[test]
fn every_variable_that_lockkeeper_knows_is_in_the_manual() {
    let mut known = lockkeeper_config::settings::known_variables();
    known.retain(|name| !Key::ALL.iter().any(|key| key.variable() == *name));
    let mut named: Vec<_> = VARIABLES.iter().chain(&OTHERS).map(|(name, _)| (*name).to_owned()).collect();
    known.sort();
    named.sort();
    assert_eq!(known, named);
}

fn variables(list: &[(&str, &str)]) -> String {
    let rows = list.iter().map(|(name, is)| format!("| `{name}` | {is} |\n"));
    format!("| variable | is |\n|---|---|\n{}", rows.collect::<String>())
}

fn settings() -> String {
    let mut table =
        "| key | is | counts in | property | default | with a properties file |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for key in Key::ALL {
        let row = key.row();
        let text = |text: &str| if text.is_empty() { String::new() } else { format!("{text} ") };
        let property = key.property().map_or_else(String::new, |name| format!("`{name}` "));
        let is = cell(key.is().trim_end_matches('.'));
        let (alone, properties) = (text(row.default), text(row.contentserv));
        _ = writeln!(table, "| `{}` | {is} | {} | {property}| {alone}| {properties}|", key.name(), cell(row.counts));
    }
    table
}
