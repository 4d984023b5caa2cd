//! `cargo xtask acceptance`: shows which tests cover which lines of `docs/acceptance/`.
//!
//! The pages list what the product must do, and the tests name the lines that they cover. The chore fails on a line
//! without a test, on a test that names an unknown line, on a name at a function that is no test, and on a list of ids that it cannot
//! read. It reads the sources, as rustfmt leaves them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use xshell::{Shell, cmd};

use crate::workspace::shell;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Print only the lines without a test
    #[arg(long)]
    pub(crate) gaps: bool,
}

/// Prints the table; fails if it has a problem.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let sh = shell()?;
    let mut report = Report::default();
    let mut pages = Vec::new();
    for (name, text) in files(&sh, root, "docs/acceptance", "md")? {
        pages.push((report.page(&name, &text), name));
    }
    let sources = files(&sh, root, "crates", "rs")?;
    for (name, text) in &sources {
        report.list_claims(name, text);
    }
    for (name, text) in &sources {
        report.source(name, text);
    }
    for (lines, name) in &pages {
        // A reader may end early, and then only the problems are left to say.
        _ = io::stdout().write_all(report.table(name, lines, options.gaps).as_bytes());
    }
    if report.problems.is_empty() { Ok(()) } else { bail!("{}", report.problems.join("\n       ")) }
}

/// Returns the names and texts of git's files of one kind below a directory, in order. The names are relative to the root.
fn files(sh: &Shell, root: &Path, dir: &str, extension: &str) -> Result<Vec<(String, String)>> {
    let listed = cmd!(sh, "git ls-files --cached --others --exclude-standard {dir}").quiet().read()?;
    let mut names: Vec<_> = listed.lines().filter(|name| name.ends_with(&format!(".{extension}"))).collect();
    names.sort_unstable();
    let there = names.into_iter().filter(|name| root.join(name).exists());
    let read = |name: &str| fs::read_to_string(root.join(name)).with_context(|| format!("reading {name}"));
    there.map(|name| Ok((name.to_owned(), read(name)?))).collect()
}

/// Splits an id into its family and its number: `C-01`, `B7`, `case_42`. An id has only one spelling, so that a search finds
/// every use; another spelling is an unknown line.
fn id(word: &str) -> Option<(&str, &str)> {
    let (family, number) = word.split_at(word.find(|char: char| char.is_ascii_digit())?);
    let is_family = match family.as_bytes() {
        b"case_" | b"B" => true,
        [letter, b'-'] => letter.is_ascii_uppercase(),
        _ => false,
    };
    (is_family && number.bytes().all(|digit| digit.is_ascii_digit())).then_some((family, number))
}

/// Reads a list, `C-01, C-03..C-05`; `None` if it is none. A range that is backwards, of two families or spellings, or too long is no
/// range.
fn list(text: &str) -> Option<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once("..").unwrap_or((part, part));
        let ((family, from), (other, to)) = (id(first)?, id(last)?);
        let (least, most): (u16, u16) = (from.parse().ok()?, to.parse().ok()?);
        if family != other || from.len() > to.len() || most > 999 || (first != part && least >= most) {
            return None;
        }
        let width = from.len();
        ids.extend((least..=most).map(|number| format!("{family}{number:0width$}")));
        if !ids.contains(last) {
            return None;
        }
    }
    Some(ids)
}

/// The macros that make tests of claims.
const MACROS: [&str; 8] = [
    "on_every_server",
    "for_every_kind",
    "for_kinds",
    "on_the_embedded_server",
    "for_every_kind_embedded",
    "on_the_embedded_server_for",
    "on_every_record_server",
    "on_both_servers",
];

/// The tests of all lines.
#[derive(Default)]
struct Report {
    /// The claims of which a macro makes tests, with their packages.
    claims: BTreeSet<(String, String)>,
    defined: BTreeSet<String>,
    shown: BTreeMap<String, BTreeSet<String>>,
    problems: Vec<String>,
}

impl Report {
    /// Reads a page; returns the ids of its lines.
    fn page(&mut self, file: &str, text: &str) -> Vec<String> {
        let (mut required, mut lines) = (BTreeSet::new(), Vec::new());
        for line in text.lines() {
            if let Some(text) = line.strip_prefix("Required: ") {
                match list(text) {
                    Some(ids) => required = ids,
                    None => {
                        self.problems.push(format!("{file}: not a list of ids: {text:?}; write C-01, C-03..C-05"));
                    }
                }
            } else if let Some((id, _)) = line.strip_prefix("- **").and_then(|rest| rest.split_once("**")) {
                lines.push(id.to_owned());
                if !self.defined.insert(id.to_owned()) {
                    self.problems.push(format!("{file}: {id} is defined twice"));
                }
            }
        }
        for id in required.iter().filter(|id| !lines.contains(id)) {
            self.problems.push(format!("{file}: {id} is required, and is not defined"));
        }
        for id in lines.iter().filter(|id| !required.contains(*id)) {
            self.problems.push(format!("{file}: {id} is not among the required lines; add it to \"Required:\""));
        }
        lines
    }

    /// Reads the lists of claims that a source file gives to the macros that make tests: `for_every_kind!(a, b);`.
    fn list_claims(&mut self, file: &str, text: &str) {
        let package = file.split('/').nth(1).unwrap_or_default();
        for macro_name in MACROS {
            for call in text.split(&format!("{macro_name}!(")).skip(1) {
                let list = call.split(");").next().unwrap_or_default();
                let names = list.split(|char: char| !char.is_alphanumeric() && char != '_');
                self.claims.extend(names.map(|name| (package.to_owned(), name.to_owned())));
            }
        }
    }

    /// Reads the functions of a source file with their doc comments.
    fn source(&mut self, file: &str, text: &str) {
        let package = file.split('/').nth(1).unwrap_or_default();
        let (mut docs, mut is_test, mut is_ignored) = (String::new(), false, false);
        for line in text.lines().map(str::trim_start) {
            if let Some(text) = line.strip_prefix("///") {
                docs += text.trim();
                docs.push('\n');
                continue;
            }
            if line.starts_with("#[") {
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                is_ignored |= line.starts_with("#[ignore");
                continue;
            }
            let words = ["pub", "pub(crate)", "pub(super)", "async", "const", "unsafe"];
            let (before, after) = line.split_once("fn ").unwrap_or((line, ""));
            if before.split_whitespace().all(|word| words.contains(&word)) && !after.is_empty() {
                let name = after.split(|char: char| !char.is_alphanumeric() && char != '_').next().unwrap_or_default();
                let is_claim = self.claims.contains(&(package.to_owned(), name.to_owned()));
                self.function(file, name, &docs, (is_test && !is_ignored) || is_claim);
            }
            docs.clear();
            (is_test, is_ignored) = (false, false);
        }
    }

    /// Records the lines that the name and the doc comment of a function name.
    fn function(&mut self, file: &str, name: &str, docs: &str, is_test: bool) {
        let mut ids = BTreeSet::new();
        // `case_55_case_56_…` covers two lines.
        let mut words = name.split('_');
        while let (Some("case"), Some(number)) = (words.next(), words.next()) {
            ids.extend(list(&format!("case_{number}")).into_iter().flatten());
        }
        let mut rest = docs;
        while let Some((line, after)) = rest.split_once('\n') {
            if id(line.split([' ', ',', ':', '.']).next().unwrap_or_default()).is_some() {
                match rest.split_once(':').and_then(|(text, _)| list(text)) {
                    Some(listed) => ids.extend(listed),
                    None => self.problems.push(format!(
                        "{file}: {name}: not a list of ids that ends in a colon: {line:?}; write C-01, C-03..C-05:"
                    )),
                }
                // A list may continue in the next line.
                let more = rest.split(':').next().unwrap_or_default().matches('\n').count();
                rest = rest.splitn(more + 2, '\n').last().unwrap_or_default();
                continue;
            }
            rest = after;
        }
        for id in ids {
            if !is_test {
                self.problems.push(format!("{file}: {name} names {id} and is no test; name it at a test"));
            } else if !self.defined.contains(&id) {
                self.problems.push(format!("{file}: {name} names {id}, which no page defines"));
            } else {
                self.shown.entry(id).or_default().insert(format!("{file}: {name}"));
            }
        }
    }

    /// Returns the lines of a page with the tests that cover them, or only those without. Records lines without a test.
    fn table(&mut self, file: &str, lines: &[String], gaps: bool) -> String {
        let count = lines.iter().filter(|id| self.shown.contains_key(*id)).count();
        let mut table = format!("{file}: {count} of {} required lines shown\n", lines.len());
        for id in lines {
            let tests: Vec<_> = self.shown.get(id).into_iter().flatten().map(String::as_str).collect();
            if tests.is_empty() {
                self.problems.push(format!("{id} ({file}) is required, and no test shows it"));
            } else if !gaps {
                table += &format!("  {id:<8} {}\n", tests.join(&format!("\n{:11}", "")));
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Locks\nRequired: C-01..C-03\n- **C-01** a\n- **C-02** b\n- **C-03** c";

    /// Returns the table and the problems of a page and a source file.
    fn report(page: &str, source: &str) -> (String, Vec<String>) {
        let mut report = Report::default();
        let lines = report.page("page.md", page);
        report.list_claims("crates/x/it.rs", source);
        report.source("crates/x/it.rs", source);
        (report.table("page.md", &lines, false), report.problems)
    }

    #[test]
    fn a_table_says_which_tests_show_a_line() {
        let page = format!("{PAGE}\nRequired: C-01..C-03, case_02..case_03\n- **case_02** b\n- **case_03** c");
        let source = "for_kinds!([native Native] other, claim);\n/// C-01: a claim.\nasync fn claim(world: &World) {}\n/// C-01,\n/// C-02: x\n#[test]\nfn a() {}\nmod inner {\n    /// Words.\n    /// C-03: y\n    #[test]\n    \
                      pub(crate) async fn case_02_case_03_b() {}\n}\n/// Like C-03: talk.\nfn helper() {}";
        let (table, problems) = report(&page, source);
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            table,
            "page.md: 5 of 5 required lines shown\n  C-01     crates/x/it.rs: a\n           crates/x/it.rs: claim\n  C-02     crates/x/it.rs: a\n  \
             C-03     crates/x/it.rs: case_02_case_03_b\n  case_02  crates/x/it.rs: case_02_case_03_b\n  \
             case_03  crates/x/it.rs: case_02_case_03_b\n"
        );
    }

    #[test]
    fn every_mistake_is_named() {
        let good = "/// C-01..C-03: x\n#[test]\nfn good() {}\n";
        for (source, say) in [
            ("/// C-09: x\n#[test]\nfn a() {}", "a names C-09, which no page defines"),
            ("/// C-1: x\n#[test]\nfn a() {}", "a names C-1, which no page defines"),
            ("#[test]\nfn case_6_a() {}", "names case_6, which no page defines"),
            ("/// C-02: x\nfn helper() {}", "helper names C-02 and is no test; name it at a test"),
            ("/// C-02: x\n#[test]\n#[ignore]\nfn a() {}", "a names C-02 and is no test; name it at a test"),
            ("/// C-01 is so\n#[test]\nfn a() {}", "a: not a list of ids that ends in a colon: \"C-01 is so\""),
            ("/// C-01, and: x\n#[test]\nfn a() {}", "\"C-01, and: x\""),
            ("/// C-02..C-01: x\n#[test]\nfn a() {}", "\"C-02..C-01: x\""),
            ("/// C-02..C-02: x\n#[test]\nfn a() {}", "\"C-02..C-02: x\""),
            ("/// C-01..D-02: x\n#[test]\nfn a() {}", "\"C-01..D-02: x\""),
            ("/// C-01..C-2: x\n#[test]\nfn a() {}", "\"C-01..C-2: x\""),
            ("/// C-01..02: x\n#[test]\nfn a() {}", "\"C-01..02: x\""),
            ("/// C-01..: x\n#[test]\nfn a() {}", "\"C-01..: x\""),
            ("/// C-01, C-02..C-9999999999: x\n#[test]\nfn a() {}", "\"C-01, C-02..C-9999999999: x\""),
        ] {
            let (_, problems) = report(PAGE, &format!("{good}{source}"));
            assert!(problems.len() == 1 && problems[0].contains(say), "{source}: {problems:?}");
        }
        for (page, say) in [
            ("Required: C-01\n- **C-01** a\n- **C-01** b", "C-01 is defined twice"),
            ("Required: C-01, C-02\n- **C-01** a", "C-02 is required, and is not defined"),
            ("Required: C-01\n- **C-01** a\n- **C-02** a", "C-02 is not among the required lines"),
            ("- **C-01** a", "C-01 is not among the required lines"),
            ("Required: C-01, C-02..01\n- **C-01** a", "not a list of ids: \"C-01, C-02..01\""),
        ] {
            let (_, problems) = report(page, "/// C-01: x\n#[test]\nfn good() {}\n");
            assert!(problems[0].starts_with("page.md: ") && problems[0].contains(say), "{page}: {problems:?}");
        }
        let (table, problems) = report(PAGE, "/// C-01, C-03: x\n#[test]\nfn good() {}\n");
        assert_eq!(problems, ["C-02 (page.md) is required, and no test shows it"]);
        assert!(table.starts_with("page.md: 2 of 3 required lines shown\n"), "{table}");
    }
}
