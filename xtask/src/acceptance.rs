//! `cargo xtask acceptance`: shows which tests cover which lines of `docs/acceptance/`.
//!
//! The pages list what the product must do, and the tests name the lines that they cover. The chore fails on a required
//! line without a test, a test that names an unknown line, and a line that is defined twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;

/// The directory of the pages.
const PAGES: &str = "docs/acceptance";
/// The directory of the tests.
const SOURCES: &str = "crates";

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Print only the lines without a test
    #[arg(long)]
    pub(crate) gaps: bool,
}

/// Prints the table; fails if it has a problem.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::default();
    let mut pages = Vec::new();
    for (name, text) in files(root, PAGES, "md")? {
        pages.extend(report.page(name.rsplit('/').next().unwrap_or(&name), &text));
    }
    for (name, text) in files(root, SOURCES, "rs")? {
        report.source(&name, &text);
    }
    for page in &pages {
        print!("{}\n\n", report.table(page, options.gaps));
    }
    if !report.problems.is_empty() {
        bail!("{}", report.problems.join("\n       "));
    }
    Ok(())
}

/// Returns the names and texts of all files of one kind below a directory, in order. The names are relative to the
/// root.
fn files(root: &Path, dir: &str, extension: &str) -> Result<Vec<(String, String)>> {
    let (mut found, mut left) = (Vec::new(), vec![root.join(dir)]);
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
            let path = entry?.path();
            // Crates built on their own keep their output beside their sources.
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                left.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                found.push((path.strip_prefix(root).unwrap_or(&path).display().to_string(), text));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Splits off the id at the beginning of a text: `C-01`, `B7`, `case_42`. An id has only one spelling, so that a search
/// finds every use; another spelling is an unknown line.
fn id(text: &str) -> Option<(&str, &str)> {
    let family = match text.as_bytes() {
        [b'c', b'a', b's', b'e', b'_', ..] => 5,
        [b'B', ..] => 1,
        [b'A'..=b'Z', b'-', ..] => 2,
        _ => return None,
    };
    let digits = text[family..].bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0).then(|| text.split_at(family + digits))
}

/// Reads the list that the text begins with, `C-01, C-03..C-05`; also returns the rest.
fn list(text: &str) -> (BTreeSet<String>, &str) {
    let (mut ids, mut rest) = (BTreeSet::new(), text);
    while let Some((first, after)) = id(rest) {
        ids.insert(first.to_owned());
        rest = after;
        if let Some((last, after)) = rest.strip_prefix("..").and_then(id) {
            let digits = first.find(|char: char| char.is_ascii_digit()).unwrap_or_default();
            let numbers = [first, last].map(|id| id[digits..].parse::<u32>().unwrap_or_default());
            let width = first.len() - digits;
            ids.extend((numbers[0]..=numbers[1]).map(|number| format!("{}{number:0width$}", &first[..digits])));
            rest = after;
        }
        // A list may continue in the next line.
        match rest.strip_prefix(',').map(str::trim_start) {
            Some(after) if id(after).is_some() => rest = after,
            _ => break,
        }
    }
    (ids, rest)
}

/// A page with lines.
#[derive(Default)]
struct Page {
    file: String,
    title: String,
    required: BTreeSet<String>,
    later: BTreeSet<String>,
    /// The page's reason why some lines are not required yet.
    why: String,
    lines: Vec<String>,
}

/// The tests of all lines.
#[derive(Default)]
struct Report {
    defined: BTreeSet<String>,
    /// The files and names of the tests that cover a line.
    shown: BTreeMap<String, BTreeSet<String>>,
    problems: Vec<String>,
}

impl Report {
    /// Reads a page; `None` if it has no lines.
    fn page(&mut self, file: &str, text: &str) -> Option<Page> {
        let mut page = Page { file: file.to_owned(), ..Page::default() };
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("# ") {
                heading.clone_into(&mut page.title);
            } else if let Some(text) = line.strip_prefix("Required: ") {
                page.required = list(text).0;
            } else if let Some((ids, why)) = line.strip_prefix("Later: ").map(list) {
                (page.later, page.why) = (ids, why.trim_matches([' ', '(', ')']).to_owned());
            } else if let Some((id, _)) = line.strip_prefix("- **").and_then(|rest| rest.split_once("**")) {
                page.lines.push(id.to_owned());
                if !self.defined.insert(id.to_owned()) {
                    self.problems.push(format!("{file}: {id} is defined twice"));
                }
            }
        }
        let Page { required, later, lines, .. } = &page;
        for id in required.union(later).filter(|id| !lines.contains(id)) {
            self.problems.push(format!("{file}: {id} is called required or later, and is not defined"));
        }
        if page.is_judged() {
            for id in lines.iter().filter(|id| required.contains(*id) == later.contains(*id)) {
                self.problems.push(format!("{file}: {id} must be either required or later"));
            }
        }
        (!lines.is_empty()).then_some(page)
    }

    /// Reads the tests of a source file, as rustfmt writes it. Every function of a test file counts, because macros
    /// create tests too; the compiler warns about a function that no test calls.
    fn source(&mut self, file: &str, text: &str) {
        let tests = if file.contains("tests") { text } else { text.split_once("\nmod tests").unwrap_or_default().1 };
        let mut docs = String::new();
        for line in tests.lines().map(str::trim_start) {
            if let Some(doc) = line.strip_prefix("///") {
                docs = docs + doc.trim_start() + "\n";
            } else if let Some(name) = function(line) {
                self.function(file, name, &std::mem::take(&mut docs));
            } else if !line.starts_with("#[") {
                docs.clear();
            }
        }
    }

    /// Records the lines that the name and the doc comment of a test name.
    fn function(&mut self, file: &str, name: &str, docs: &str) {
        let mut ids = BTreeSet::new();
        // `case_55_case_56_…` covers two lines.
        let mut words = name;
        while let Some((case, rest)) = id(words).filter(|_| words.starts_with("case_")) {
            words = rest.trim_start_matches('_');
            ids.insert(case.to_owned());
        }
        let mut docs = Some(docs);
        while let Some(text) = docs {
            let (listed, rest) = list(text);
            if !listed.is_empty() && !rest.starts_with(':') {
                self.problems
                    .push(format!("{file}: {name}: the ids that begin a line must end in a colon: {listed:?}"));
            }
            ids.extend(listed);
            docs = rest.split_once('\n').map(|(_, rest)| rest);
        }
        for id in ids {
            if !self.defined.contains(&id) {
                self.problems.push(format!("{file}: {name} names {id}, which no page defines"));
            }
            self.shown.entry(id).or_default().insert(format!("{file}: {name}"));
        }
    }

    /// Returns the lines of a page with the tests that cover them, or only the lines without a test. Records required
    /// lines without a test.
    fn table(&mut self, page: &Page, gaps: bool) -> String {
        let shown = |id: &String| self.shown.contains_key(id);
        let mut table = format!("{} ({}): ", page.title, page.file);
        table += &if page.is_judged() {
            let count = page.required.iter().filter(|id| shown(id)).count();
            format!("{count} of {} required lines shown", page.required.len())
        } else {
            format!("{} of {} shown", page.lines.iter().filter(|id| shown(id)).count(), page.lines.len())
        };
        if !page.later.is_empty() {
            table += &format!(", {} NOT YET REQUIRED: {}", page.later.len(), page.why);
        }
        for id in page.lines.iter().filter(|id| !gaps || !shown(id)) {
            let mut cells: Vec<&str> = self.shown.get(id).into_iter().flatten().map(String::as_str).collect();
            match (cells.is_empty(), page.later.contains(id)) {
                (false, false) => {}
                (false, true) => cells.insert(0, "later, and shown already"),
                (true, true) => cells.push("later"),
                (true, false) if page.required.contains(id) => {
                    self.problems.push(format!("{id} ({}) is required, and no test shows it", page.file));
                    cells.push("MISSING");
                }
                (true, false) => cells.push("-"),
            }
            table += &format!("\n  {id:<8} {}", cells.join(&format!("\n{:11}", "")));
        }
        table
    }
}

impl Page {
    /// Whether the page says which of its lines are required.
    fn is_judged(&self) -> bool {
        !self.required.is_empty() || !self.later.is_empty()
    }
}

/// Returns the name of the function that begins in this line, perhaps behind an attribute.
fn function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let is_word = |word: &str| word.starts_with("#[") || word.starts_with("pub") || matches!(word, "async" | "const");
    before.split_whitespace().all(is_word).then(|| rest.split(['(', '<']).next())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Locks\nRequired: C-01, C-02\nLater: C-03..C-04 (not built)\n- **C-01** a\n- **C-02** b\n- **C-03** c\n- **C-04** d";

    /// Returns the tables and the problems of these pages and a source.
    fn report(pages: &[(&str, &str)], source: &str) -> (String, Vec<String>) {
        let mut report = Report::default();
        let pages: Vec<Page> = pages.iter().filter_map(|(file, text)| report.page(file, text)).collect();
        report.source("tests/it.rs", source);
        let tables: Vec<_> = pages.iter().map(|page| report.table(page, false)).collect();
        (tables.join("\n").replace("tests/", ""), report.problems)
    }

    #[test]
    fn a_table_says_which_tests_show_a_line_and_what_comes_later() {
        let source = "/// C-01,\n/// C-02: x\n#[test]\nfn a() {}\n/// Words.\n/// C-01: y\n#[tokio::test(flavor = \"x\")]\n\
                      pub(crate) async fn case_02_case_03_b() {}\n/// C-04: z\n#[test] fn c() {}\n/// Like C-03: talk.\nfn d() {}";
        let cases = "# Cases\n- **case_01** a\n- **case_02** b\n- **case_03** c";
        let (table, problems) = report(&[("locks.md", PAGE), ("cases.md", cases)], source);
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            table,
            "Locks (locks.md): 2 of 2 required lines shown, 2 NOT YET REQUIRED: not built\n  C-01     it.rs: a\n           \
             it.rs: case_02_case_03_b\n  C-02     it.rs: a\n  C-03     later\n  C-04     later, and shown already\n           \
             it.rs: c\nCases (cases.md): 2 of 3 shown\n  case_01  -\n  case_02  it.rs: case_02_case_03_b\n  \
             case_03  it.rs: case_02_case_03_b"
        );
    }

    #[test]
    fn every_mistake_is_named() {
        let good = "/// C-01..C-02: x\n#[test]\nfn good() {}\n";
        for (source, say) in [
            ("/// C-09: x\n#[test]\nfn a() {}", "a names C-09, which no page defines"),
            ("/// C-1: x\n#[test]\nfn a() {}", "a names C-1, which no page defines"),
            ("/// C-01 is so\n#[test]\nfn a() {}", "must end in a colon"),
            ("/// C-01, and: x\n#[test]\nfn a() {}", "must end in a colon"),
            ("#[test]\nfn case_6_a() {}", "names case_6, which no page defines"),
        ] {
            let (_, problems) = report(&[("locks.md", PAGE)], &format!("{good}{source}"));
            assert!(problems.len() == 1 && problems[0].contains(say), "{source}: {problems:?}");
        }
        for (page, say) in [
            ("- **C-01** a\n- **C-01** b", "C-01 is defined twice"),
            ("Required: C-01, C-02\n- **C-01** a", "C-02 is called required or later, and is not defined"),
            ("Required: C-01\n- **C-01** a\n- **C-02** a", "C-02 must be either"),
            ("Required: C-01\nLater: C-01\n- **C-01** a", "C-01 must be either"),
        ] {
            let (_, problems) = report(&[("page.md", page)], "/// C-01: x\n#[test]\nfn good() {}\n");
            assert!(problems[0].starts_with("page.md: ") && problems[0].contains(say), "{page}: {problems:?}");
        }
        let (table, problems) = report(&[("locks.md", PAGE)], "/// C-01: x\n#[test]\nfn a() {}");
        assert_eq!(problems, ["C-02 (locks.md) is required, and no test shows it"]);
        assert!(table.contains("  C-02     MISSING"), "{table}");
    }
}
