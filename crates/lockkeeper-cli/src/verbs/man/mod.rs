//! Manual pages, generated from the definitions of the command line.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap_mangen::roff::{Roff, bold, roman};

use crate::advice::Suggested;
use crate::exit::{Code, Failure};
use crate::output;
use crate::statuses::{self, EXIT_STATUS, Status, USUAL};
use crate::verb::{Context, Verb};

/// `lockkeeper man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
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

/// The sections behind that of the exit statuses.
const LATER: [&str; 2] = [".SH VERSION", ".SH AUTHORS"];

/// What begins the examples of a help text.
const EXAMPLES: &str = "Example";

/// Prints a manual page, or writes them all.
fn man(command: clap::Command, args: ManArgs) -> Result<u8, Failure> {
    let all = pages(command);
    if let Some(directory) = args.directory {
        let failed = |what: &Path, error| Failure::system(&format!("cannot write {}", what.display()), error);
        std::fs::create_dir_all(&directory).map_err(|error| failed(&directory, error))?;
        for page in all {
            let file = directory.join(format!("{}.1", page_name(&page)));
            output::replace(&file, &rendered(page)?)?;
        }
        return Ok(0);
    }
    let words: Vec<_> = std::iter::once("lockkeeper").chain(args.verb.iter().map(String::as_str)).collect();
    let name = words.join("-");
    match all.into_iter().find(|page| page_name(page) == name) {
        Some(page) => print(&rendered(page)?),
        None => Err(Failure::new(Code::Usage, format!("there is no page for {:?}", args.verb.join(" ")))
            .advise("see all verbs", Suggested::new(["--help"]).elsewhere())),
    }
}

/// Prints the version.
fn version(command: clap::Command) -> Result<u8, Failure> {
    print(command.render_version().as_bytes())
}

/// Returns the commands that have a manual page.
fn pages(command: clap::Command) -> Vec<clap::Command> {
    fn collect(command: &clap::Command, pages: &mut Vec<clap::Command>) {
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).for_each(|verb| collect(verb, pages));
        // A page also has the options that the short help omits; without this, the renderer omits their text.
        pages.push(command.clone().mut_args(|option| option.hide_short_help(false)));
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages);
    pages
}

/// Returns the name of a command's page: `lockkeeper`, `lockkeeper-run`, `lockkeeper-dlq-replay`.
fn page_name(page: &clap::Command) -> &str {
    page.get_display_name().unwrap_or_else(|| page.get_name())
}

/// Returns a page. The renderer would put all text behind the options into one section and fill its lines.
fn rendered(page: clap::Command) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::system("cannot make the page", error);
    let source = format!("lockkeeper {}", env!("CARGO_PKG_VERSION"));
    let help = page.get_after_long_help().or(page.get_after_help()).map_or_else(String::new, ToString::to_string);
    let (statuses, others): (Vec<_>, Vec<_>) = help.split("\n\n").partition(|text| text.starts_with(EXIT_STATUS));
    let own = statuses::of(&page);
    let name = page_name(&page).to_owned();
    let verbs: Vec<_> =
        page.get_subcommands().filter(|verb| !verb.is_hide_set()).map(|verb| page_name(verb).to_owned()).collect();
    let mut section = exit_statuses(own, statuses.first().copied().unwrap_or_default());
    let (examples, notes): (Vec<_>, Vec<_>) = others.into_iter().partition(|text| text.starts_with(EXAMPLES));
    prose(&mut section, "NOTES", &notes);
    prose(&mut section, "EXAMPLES", &examples);
    surroundings(&mut section, &name, &verbs);
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

/// Returns the section about the exit statuses of a page. `own` are those of its verb, and `help` is what its help says about them.
fn exit_statuses(own: &[Status], help: &str) -> Roff {
    let mut roff = Roff::default();
    roff.control("SH", ["EXIT STATUS"]);
    let intro = help.lines().next().unwrap_or_default().trim_start_matches(EXIT_STATUS).trim();
    if !intro.is_empty() {
        roff.text([roman(intro)]);
    }
    let entries = if own.is_empty() { USUAL } else { own };
    for (code, means, detail) in entries {
        let detail = if detail.is_empty() { String::new() } else { format!("; {detail}") };
        roff.control("TP", []);
        roff.text([bold((code.status()).to_string())]);
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

/// Adds what is the same for every page, and the pages that belong to it.
fn surroundings(roff: &mut Roff, page: &str, verbs: &[String]) {
    let mut entries = |heading: &str, entries: &[(&str, &str)]| {
        roff.control("SH", [heading]);
        for (name, means) in entries {
            roff.control("TP", []);
            roff.text([bold(*name)]);
            roff.text([roman(*means)]);
        }
    };
    entries(
        "ENVIRONMENT",
        &[
            (
                "LOCKKEEPER_SERVERS",
                "the servers, as --servers names them; lockkeeper config shows every setting, its variable and its value",
            ),
            ("LOCKKEEPER_STATE_DIR", "the directory of this user's own server"),
            ("LOCKKEEPER_CONFIG", "a settings file that is read beside the usual ones"),
            ("NO_COLOR", "no colours, also on a terminal"),
        ],
    );
    entries(
        "FILES",
        &[
            ("/etc/lockkeeper/config.toml", "the settings of this machine"),
            ("~/.config/lockkeeper/config.toml", "the settings of this user"),
            ("~/.local/state/lockkeeper", "the data, the log and the socket of this user's own server"),
        ],
    );
    roff.control("SH", ["SEE ALSO"]);
    let above = page.rsplit_once('-').map(|(above, _)| above.to_owned());
    let pages: Vec<_> = above.iter().chain(verbs).map(|page| format!("{page}(1)")).collect();
    roff.text([roman(pages.join(", "))]);
}

fn print(text: &[u8]) -> Result<u8, Failure> {
    crate::output::tolerate_closed(std::io::stdout().write_all(text))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page() {
        let pages = || pages(crate::args::definitions());
        let names: Vec<_> = pages().iter().map(|page| page_name(page).to_owned()).collect();
        for name in ["lockkeeper", "lockkeeper-run", "lockkeeper-dlq-replay", "lockkeeper-serve"] {
            assert!(names.iter().any(|page| page == name), "{name} is missing in {names:?}");
        }
        for page in pages() {
            let name = page_name(&page).to_owned();
            let text = String::from_utf8(rendered(page).unwrap()).unwrap();
            assert!(text.contains(&format!(".TH {name} 1")) && text.contains("SYNOPSIS"), "{name}: {text}");
            // Each option and argument has a description in the next line.
            let lines: Vec<_> = text.lines().collect();
            let bare = lines.windows(3).find(|lines| lines[0] == ".TP" && lines[2].is_empty());
            assert_eq!(bare, None, "{name}");
        }
    }

    #[test]
    fn a_page_has_its_examples_line_by_line_and_names_its_surroundings() {
        let page = |name: &str| {
            let found = pages(crate::args::definitions()).into_iter().find(|page| page_name(page) == name);
            String::from_utf8(rendered(found.unwrap()).unwrap()).unwrap()
        };
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
        assert!(!text.contains("EXTRA") && page("lockkeeper").contains("lockkeeper\\-run(1)"));
    }

    #[test]
    fn every_page_has_the_exit_statuses_in_a_section_of_their_own() {
        for page in pages(crate::args::definitions()) {
            let name = page_name(&page).to_owned();
            let text = String::from_utf8(rendered(page).unwrap()).unwrap();
            let section = text.split(".SH ").find(|section| section.starts_with("\"EXIT STATUS\"\n"));
            let section = section.unwrap_or_else(|| panic!("{name}: {text}"));
            assert!(section.contains(".TP\n\\fB64\\fR\n") || section.contains(".TP\n\\fB0\\fR\n"), "{name}: {section}");
            assert!(!text.to_lowercase().contains("exit status:"), "{name}: {text}");
            let before = &text[..text.find(".SH \"EXIT STATUS\"").unwrap()];
            assert!(LATER.iter().all(|later| !before.contains(later)), "{name}: {text}");
        }
        let run = pages(crate::args::definitions()).into_iter().find(|page| page_name(page) == "lockkeeper-run");
        let text = String::from_utf8(rendered(run.unwrap()).unwrap()).unwrap();
        for (code, means, _) in crate::verbs::run::args::STATUSES {
            let means = means.replace('-', "\\-");
            assert!(text.contains(&format!(".TP\n\\fB{}\\fR\n{means}", code.status())), "{means} is missing in {text}");
        }
    }
}
