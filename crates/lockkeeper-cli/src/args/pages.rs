//! Manual pages and completion scripts, generated from the definitions of the command line.

use std::io::Write;
use std::path::Path;

use super::ask::ManArgs;
use crate::advice::Suggested;
use crate::exit::{Code, Failure};

/// Prints a completion script.
pub(crate) fn completions(mut command: clap::Command, shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "lockkeeper", &mut script);
    print(&script)
}

/// Prints a manual page, or writes them all.
pub(crate) fn man(command: clap::Command, args: ManArgs) -> Result<u8, Failure> {
    let all = pages(command);
    if let Some(directory) = args.directory {
        let failed = |what: &Path, error| Failure::system(&format!("cannot write {}", what.display()), error);
        std::fs::create_dir_all(&directory).map_err(|error| failed(&directory, error))?;
        for page in all {
            let file = directory.join(format!("{}.1", page_name(&page)));
            std::fs::write(&file, rendered(page)?).map_err(|error| failed(&file, error))?;
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
pub(crate) fn version(command: clap::Command) -> Result<u8, Failure> {
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

fn rendered(page: clap::Command) -> Result<Vec<u8>, Failure> {
    let source = format!("lockkeeper {}", env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(page).source(source);
    page.render(&mut text).map_err(|error| Failure::system("cannot make the page", error))?;
    Ok(text)
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
}
