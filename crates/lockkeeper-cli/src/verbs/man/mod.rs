//! Manual pages, generated from the definitions of the command line.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap_mangen::roff::{Roff, bold, roman};

use crate::advice::Suggested;
use crate::exit::{Code, Failure};
use crate::output;
use crate::statuses::{self, EXIT_STATUS, Statuses, USUAL};
use crate::verb::{Context, Files, Sets, Verb};
use crate::verbs::neighbours;

/// `lockkeeper man`.
#[derive(Debug, clap::Args)]
#[command(add = Files(&[("~/.local/share/man/man1", "where man(1) finds the pages of this user")]), after_help = "\
Examples:
  lockkeeper man run | man -l -
  lockkeeper man --directory ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The verb of the page, with a second verb as in dlq replay [default: the main page]
    #[arg(value_name = "VERB")]
    pub verb: Vec<String>,
    /// Write all pages into this directory; create it if it is missing
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    pub directory: Option<PathBuf>,
}

/// `lockkeeper version`.
#[derive(Debug, clap::Args)]
pub(crate) struct VersionArgs {}

impl Verb for ManArgs {
    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        man((context.definitions)(), self)
    }
}

impl Verb for VersionArgs {
    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        version((context.definitions)())
    }
}

/// A page, and the pages that belong to it.
struct Page {
    command: clap::Command,
    see_also: Vec<String>,
}

/// Verbs of other groups that belong to each other.
const ALSO: [(&str, &[&str]); 3] = [("run", &["jobs", "dlq"]), ("jobs", &["run"]), ("dlq", &["run"])];

/// The sections behind that of the exit statuses.
const LATER: [&str; 2] = [".SH VERSION", ".SH AUTHORS"];

/// What begins the examples of a help text.
const EXAMPLES: &str = "Examples:";

/// Prints a manual page, or writes them all.
fn man(command: clap::Command, args: ManArgs) -> Result<u8, Failure> {
    let all = pages(command);
    if let Some(directory) = args.directory {
        let failed = |what: &Path, error| Failure::system(&format!("cannot write {}", what.display()), error);
        std::fs::create_dir_all(&directory).map_err(|error| failed(&directory, error))?;
        for page in all {
            let file = directory.join(format!("{}.1", page_name(&page.command)));
            output::replace(&file, &rendered(page)?)?;
        }
        return Ok(0);
    }
    let words: Vec<_> = std::iter::once("lockkeeper").chain(args.verb.iter().map(String::as_str)).collect();
    let name = words.join("-");
    match all.into_iter().find(|page| page_name(&page.command) == name) {
        Some(page) => print(&rendered(page)?),
        None => Err(Failure::new(Code::Usage, format!("there is no page for {:?}", args.verb.join(" ")))
            .advise("see all verbs", Suggested::new(["--help"]).elsewhere())),
    }
}

/// Prints the version.
fn version(command: clap::Command) -> Result<u8, Failure> {
    print(command.render_version().as_bytes())
}

/// Returns the pages. A verb without exit statuses of its own has those of the verb above it.
fn pages(command: clap::Command) -> Vec<Page> {
    fn collect(command: &clap::Command, statuses: Option<&Statuses>, mut see_also: Vec<String>, pages: &mut Vec<Page>) {
        let statuses = command.get().or(statuses);
        let verbs: Vec<_> = command.get_subcommands().filter(|verb| !verb.is_hide_set()).collect();
        let is_root = !page_name(command).contains('-');
        for verb in &verbs {
            let beside = verbs.iter().map(|verb| verb.get_name()).filter(|name| *name != verb.get_name() && !is_root);
            let near = if is_root { neighbours(verb.get_name()) } else { Vec::new() };
            let also = ALSO.iter().filter(|(name, _)| is_root && *name == verb.get_name());
            let near = near.into_iter().chain(also.flat_map(|(_, names)| *names).map(|name| (*name).to_owned()));
            let near = near.chain(beside.map(str::to_owned)).map(|name| format!("{}-{name}", page_name(command)));
            let all = std::iter::once(page_name(command).to_owned()).chain(near).collect();
            collect(verb, statuses, all, pages);
        }
        see_also.extend(verbs.iter().map(|verb| page_name(verb).to_owned()));
        // A page also has the options that the short help omits; without this, the renderer omits their text.
        let mut command = command.clone().mut_args(|option| option.hide_short_help(false));
        if let Some(statuses) = statuses {
            command = command.add(*statuses);
        }
        pages.push(Page { command, see_also });
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, None, Vec::new(), &mut pages);
    pages
}

/// Returns the name of a command's page: `lockkeeper`, `lockkeeper-run`, `lockkeeper-dlq-replay`.
fn page_name(page: &clap::Command) -> &str {
    page.get_display_name().unwrap_or_else(|| page.get_name())
}

/// Returns a page. The renderer would put all text behind the options into one section and fill its lines.
fn rendered(page: Page) -> Result<Vec<u8>, Failure> {
    let Page { command: page, see_also } = page;
    let failed = |error| Failure::system("cannot make the page", error);
    let source = format!("lockkeeper {}", env!("CARGO_PKG_VERSION"));
    let help = page.get_after_long_help().or(page.get_after_help()).map_or_else(String::new, ToString::to_string);
    let (statuses, others): (Vec<_>, Vec<_>) = help.split("\n\n").partition(|text| text.starts_with(EXIT_STATUS));
    let mut section = exit_statuses(&page, statuses.first().copied().unwrap_or_default());
    let (examples, notes): (Vec<_>, Vec<_>) = others.into_iter().partition(|text| text.starts_with(EXAMPLES));
    // In the order of man-pages(7).
    let variables = environment(&page);
    section.control("SH", ["ENVIRONMENT"]);
    if variables.iter().any(|(_, means)| means.starts_with("as --")) {
        section.text([roman("An option is stronger than its variable.")]);
    }
    entries(&mut section, &variables);
    section.control("SH", ["FILES"]);
    entries(&mut section, &files(&page));
    prose(&mut section, "NOTES", &notes);
    let examples: Vec<_> = examples.iter().filter_map(|text| Some(text.split_once('\n')?.1)).collect();
    prose(&mut section, "EXAMPLES", &examples);
    section.control("SH", ["SEE ALSO"]);
    let see_also: Vec<_> = see_also.iter().map(|page| format!("{page}(1)")).collect();
    section.text([roman(see_also.join(", "))]);
    let page = page.after_help(Resettable::Reset).after_long_help(Resettable::Reset);
    let mut text = Vec::new();
    clap_mangen::Man::new(page).source(source).render(&mut text).map_err(failed)?;
    // The usual order of sections.
    let later = text
        .split_inclusive(|byte| *byte == b'\n')
        .scan(0, |at, line| Some((std::mem::replace(at, *at + line.len()), line)));
    let later = later.into_iter().find(|(_, line)| LATER.iter().any(|heading| line.starts_with(heading.as_bytes())));
    let at = later.map_or(text.len(), |(at, _)| at);
    let mut statuses = Vec::new();
    section.to_writer(&mut statuses).map_err(failed)?;
    text.splice(at..at, statuses);
    Ok(text)
}

/// Returns the section about the exit statuses of a page. `help` is what its help says about them.
fn exit_statuses(page: &clap::Command, help: &str) -> Roff {
    let mut roff = Roff::default();
    roff.control("SH", ["EXIT STATUS"]);
    let intro = help.lines().next().unwrap_or_default().trim_start_matches(EXIT_STATUS).trim();
    if !intro.is_empty() {
        roff.text([roman(intro)]);
    }
    let own = statuses::of(page);
    let listed = if own.is_empty() { USUAL } else { own };
    // A verb without the options of the place asks no server.
    let asks = |code: Code| !matches!(code, Code::Unreachable | Code::Refused);
    let listed = listed.iter().filter(|(code, ..)| !own.is_empty() || has_place(page) || asks(*code));
    for (code, means, detail) in listed {
        let detail = if detail.is_empty() { String::new() } else { format!("; {detail}") };
        roff.control("TP", []);
        roff.text([bold(code.status().to_string())]);
        roff.text([roman(format!("{means}{detail}").replace('`', ""))]);
    }
    roff
}

/// Adds paragraphs of a help text. Indented lines stay as they are.
fn prose(roff: &mut Roff, heading: &str, paragraphs: &[&str]) {
    if !paragraphs.is_empty() {
        roff.control("SH", [heading]);
    }
    for paragraph in paragraphs {
        roff.control("PP", []);
        for lines in
            paragraph.lines().collect::<Vec<_>>().chunk_by(|one, other| one.starts_with(' ') == other.starts_with(' '))
        {
            let is_literal = lines.first().is_some_and(|line| line.starts_with(' '));
            if is_literal {
                roff.control("nf", []);
            }
            lines.iter().for_each(|line| _ = roff.text([roman(*line)]));
            if is_literal {
                roff.control("fi", []);
            }
        }
    }
}

/// Adds names with what they are.
fn entries(roff: &mut Roff, entries: &[(String, String)]) {
    for (name, means) in entries {
        roff.control("TP", []);
        roff.text([bold(name.as_str())]);
        roff.text([roman(means.as_str())]);
    }
}

/// Whether a verb, or a verb of it, has the options of the place.
fn has_place(command: &clap::Command) -> bool {
    command.get_arguments().any(|option| option.get_long() == Some("config"))
        || command.get_subcommands().any(has_place)
}

/// Returns the variables of a verb and of its verbs: those in the marks of the options, and those that it sets.
fn environment(page: &clap::Command) -> Vec<(String, String)> {
    fn collect(command: &clap::Command, is_page: bool, found: &mut Vec<(String, String)>) {
        for option in command.get_arguments() {
            let help = option.get_help().map(ToString::to_string).unwrap_or_default();
            let text = option.get_long_help().map_or_else(|| help.clone(), ToString::to_string);
            let (Some(long), Some((_, rest))) = (option.get_long(), text.split_once("[env: ")) else { continue };
            let variable = rest.split(']').next().unwrap_or_default().to_owned();
            // The page has the options of its own verb.
            let means =
                help.split(" [").next().filter(|_| !is_page).map_or_else(String::new, |help| format!(": {help}"));
            if !found.iter().any(|(known, _)| *known == variable) {
                found.push((variable, format!("as --{long}{means}")));
            }
        }
        command.get_subcommands().for_each(|verb| collect(verb, false, found));
    }
    let mut found = Vec::new();
    collect(page, true, &mut found);
    let sets = page.get::<Sets>().map_or(&[][..], |sets| sets.0);
    found.extend(sets.iter().map(|(name, is)| ((*name).to_owned(), format!("set for COMMAND: {}", unmarked(is)))));
    if has_place(page) {
        let means =
            "every other setting has a variable too: lockkeeper config shows its name, its value and its origin";
        found.push(("LOCKKEEPER_...".to_owned(), means.to_owned()));
    }
    found.push(("NO_COLOR".to_owned(), "no colours, also on a terminal".to_owned()));
    found
}

/// Returns a text without the marks of code and of links.
fn unmarked(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let plain = parts.fold(first, |plain, part| plain + part.split_once(')').map_or(part, |(_, after)| after));
    plain.replace(['[', '`'], "")
}

/// Returns the files of a verb: the settings and the directories of the servers, and its own.
fn files(page: &clap::Command) -> Vec<(String, String)> {
    const PLACE: [(&str, &str); 4] = [
        ("/etc/lockkeeper/config.toml", "the settings of this machine"),
        ("~/.config/lockkeeper/config.toml", "the settings of this user"),
        ("~/.local/state/lockkeeper", "the data, the log and the socket of this user's own server"),
        ("/var/lib/lockkeeper", "the same of the server that all users of this machine share"),
    ];
    let place = PLACE.iter().filter(|_| has_place(page));
    let own = page.get::<Files>().map_or(&[][..], |files| files.0);
    place.chain(own).map(|(name, is)| ((*name).to_owned(), (*is).to_owned())).collect()
}

fn print(text: &[u8]) -> Result<u8, Failure> {
    crate::output::tolerate_closed(std::io::stdout().write_all(text))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the name of each page, and its text.
    fn texts() -> Vec<(String, String)> {
        let all = pages(crate::args::definitions()).into_iter();
        let text = |page| String::from_utf8(rendered(page).unwrap()).unwrap();
        all.map(|page| (page_name(&page.command).to_owned(), text(page))).collect()
    }

    /// Returns the text of one page.
    fn page(name: &str) -> String {
        texts().into_iter().find(|(page, _)| page == name).unwrap_or_else(|| panic!("{name}")).1
    }

    /// Returns a section without the marks of the format.
    fn section(text: &str, heading: &str) -> Option<String> {
        let found = text.split(".SH ").find(|section| section.lines().next().unwrap().trim_matches('"') == heading)?;
        Some(found.split_once('\n').unwrap().1.replace("\\-", "-").replace("\\fB", "").replace("\\fR", ""))
    }

    #[test]
    fn every_verb_has_a_page() {
        let texts = texts();
        let names: Vec<_> = texts.iter().map(|(name, _)| name).collect();
        for name in ["lockkeeper", "lockkeeper-run", "lockkeeper-dlq-replay", "lockkeeper-serve"] {
            assert!(names.iter().any(|page| *page == name), "{name} is missing in {names:?}");
        }
        for (name, text) in &texts {
            assert!(text.contains(&format!(".TH {name} 1")) && text.contains("SYNOPSIS"), "{name}: {text}");
            // Each option and argument has a description in the next line.
            let lines: Vec<_> = text.lines().collect();
            let bare = lines.windows(3).find(|lines| lines[0] == ".TP" && lines[2].is_empty());
            assert_eq!(bare, None, "{name}");
        }
    }

    #[test]
    fn every_page_has_all_sections_with_their_entries() {
        for (name, text) in texts() {
            for heading in ["EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "SEE ALSO"] {
                let found = section(&text, heading).unwrap_or_else(|| panic!("{name} has no {heading}: {text}"));
                assert!(!found.trim().is_empty(), "{name}: {heading} is empty");
            }
            let examples = section(&text, "EXAMPLES").unwrap();
            assert!(examples.contains("\n  lockkeeper ") || examples.contains(" | lockkeeper "), "{name}: {examples}");
            assert!(section(&text, "ENVIRONMENT").unwrap().contains("NO_COLOR"), "{name}");
        }
    }

    /// The definitions of a verb name the variables of its options.
    #[test]
    fn every_page_names_the_variables_of_its_options_and_no_others() {
        for page in pages(crate::args::definitions()) {
            let (name, mut marks, has_place) =
                (page_name(&page.command).to_owned(), std::collections::BTreeSet::new(), has_place(&page.command));
            let mut help = page.command.clone().term_width(1000).render_long_help().to_string();
            for verb in page.command.get_subcommands() {
                help += &verb.clone().term_width(1000).render_long_help().to_string();
                help.extend(
                    verb.get_subcommands().map(|verb| verb.clone().term_width(1000).render_long_help().to_string()),
                );
            }
            marks.extend(help.split("[env: ").skip(1).map(|rest| rest.split(']').next().unwrap().to_owned()));
            let sets = page.command.get::<Sets>().map_or(&[][..], |sets| sets.0);
            marks.extend(sets.iter().map(|(name, _)| (*name).to_owned()));
            marks.extend(has_place.then(|| "LOCKKEEPER_...".to_owned()));
            marks.insert("NO_COLOR".to_owned());
            let text = section(&String::from_utf8(rendered(page).unwrap()).unwrap(), "ENVIRONMENT").unwrap();
            let named: std::collections::BTreeSet<_> =
                text.split(".TP\n").skip(1).map(|entry| entry.lines().next().unwrap().to_owned()).collect();
            assert_eq!(named, marks, "{name}");
        }
    }

    #[test]
    fn a_page_has_its_examples_line_by_line_and_names_its_neighbours() {
        let text = page("lockkeeper-jobs-import");
        for says in [
            ".SH EXAMPLES\n",
            ".nf\n  crontab \\-l | lockkeeper jobs import",
            ".SH ENVIRONMENT\n",
            ".SH FILES\n",
            "lockkeeper\\-jobs(1)",
        ] {
            assert!(text.contains(says), "{says:?} is missing in {text}");
        }
        assert!(!text.contains("EXTRA"));
        for (name, others) in [
            ("", &["run", "man"][..]),
            ("-list", &["show", "why", "top"]),
            ("-revoke", &["break", "requests"]),
            ("-jobs", &["run", "jobs-import"]),
            ("-run", &["jobs", "lead"]),
            ("-serve", &["server", "admin"]),
            ("-jobs-resolve", &["jobs", "jobs-rerun"]),
        ] {
            let see_also = section(&page(&format!("lockkeeper{name}")), "SEE ALSO").unwrap();
            for other in others {
                assert!(see_also.contains(&format!("lockkeeper-{other}(1)")), "{name}: {see_also}");
            }
            assert!(!see_also.contains(&format!("lockkeeper{name}(1)")), "{name} names itself: {see_also}");
        }
    }

    /// A verb of a verb ends as the other verbs beside it, and a verb that asks no server names none.
    #[test]
    fn a_page_has_the_exit_statuses_that_its_verb_can_end_with() {
        let statuses = |name: &str| section(&page(name), "EXIT STATUS").unwrap();
        assert!(statuses("lockkeeper-dlq-replay").contains("at least one letter was not done"));
        assert!(statuses("lockkeeper-server-stop").contains("sessions are open"));
        assert!(!statuses("lockkeeper-man").contains("69") && statuses("lockkeeper-config").contains("69"));
    }

    #[test]
    fn every_page_has_the_exit_statuses_in_a_section_of_their_own() {
        for (name, text) in texts() {
            let section = text.split(".SH ").find(|section| section.starts_with("\"EXIT STATUS\"\n"));
            let section = section.unwrap_or_else(|| panic!("{name}: {text}"));
            assert!(section.contains(".TP\n\\fB64\\fR\n") || section.contains(".TP\n\\fB0\\fR\n"), "{name}: {section}");
            assert!(!text.to_lowercase().contains("exit status:"), "{name}: {text}");
            let before = &text[..text.find(".SH \"EXIT STATUS\"").unwrap()];
            assert!(LATER.iter().all(|later| !before.contains(later)), "{name}: {text}");
        }
        let text = page("lockkeeper-run");
        for (code, means, _) in crate::verbs::run::args::STATUSES {
            let means = means.replace('-', "\\-");
            assert!(text.contains(&format!(".TP\n\\fB{}\\fR\n{means}", code.status())), "{means} is missing in {text}");
        }
    }
}
