//! `cargo xtask acceptance`: which tests show which line of `docs/acceptance/`.
//!
//! The pages say what the product must do, and the tests name the lines that they show. It fails on a required line without a
//! test, a test that names an unknown line, and a line that is defined twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;

/// Where the lines are written.
const PAGES: &str = "docs/acceptance";
/// Where the tests are.
const SOURCES: &str = "crates";

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Prints only the lines without a test.
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

/// The names below the root and the texts of all files of one kind below a directory, in order.
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

/// What is wrong with a text, for people.
type Mistake = String;

/// The id of a line: `C-01`, `B7`, `case_42`. Each has one spelling, so that a search finds all of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    family: String,
    number: u32,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.family.as_str() {
            "B" => write!(f, "B{}", self.number),
            "case" => write!(f, "case_{:02}", self.number),
            family => write!(f, "{family}-{:02}", self.number),
        }
    }
}

impl Id {
    /// Reads the id that the text begins with; also returns the rest.
    fn first(text: &str) -> Result<Option<(Id, &str)>, Mistake> {
        let family = match text.as_bytes() {
            [b'c', b'a', b's', b'e', b'_' | b'0'..=b'9', ..] => "case",
            [b'B', b'_' | b'0'..=b'9', ..] => "B",
            [b'A'..=b'Z', b'-', ..] => &text[..1],
            _ => return Ok(None),
        };
        let digits = text[family.len()..].trim_start_matches(['-', '_']);
        let rest = digits.trim_start_matches(|char: char| char.is_ascii_digit());
        let Ok(number) = digits[..digits.len() - rest.len()].parse() else { return Ok(None) };
        let id = Id { family: family.to_owned(), number };
        let spelled = &text[..text.len() - rest.len()];
        if spelled == id.to_string() { Ok(Some((id, rest))) } else { Err(format!("{spelled} is written {id}")) }
    }

    /// Reads the list that the text begins with, `C-01, C-03..C-05`; also returns the rest.
    fn list(text: &str) -> Result<(BTreeSet<Id>, &str), Mistake> {
        let (mut ids, mut rest) = (BTreeSet::new(), text);
        loop {
            let Some((first, after)) = Id::first(rest)? else {
                return if ids.is_empty() {
                    Ok((ids, text))
                } else {
                    Err(format!("{rest:?} after a comma is not an id"))
                };
            };
            rest = after;
            let mut last = first.clone();
            if let Some(after) = rest.strip_prefix("..") {
                (last, rest) = Id::first(after)?.ok_or_else(|| format!("{first}.. has no end"))?;
                if last.family != first.family || last <= first {
                    return Err(format!("{first}..{last} is not a range"));
                }
            }
            ids.extend((first.number..=last.number).map(|number| Id { number, ..first.clone() }));
            match rest.trim_start().strip_prefix(',') {
                Some(after) => rest = after.trim_start(),
                None => return Ok((ids, rest)),
            }
        }
    }
}

/// A page with lines.
struct Page {
    file: String,
    title: String,
    required: BTreeSet<Id>,
    later: BTreeSet<Id>,
    /// Why some lines are not required yet, in the page's words.
    why: String,
    lines: BTreeSet<Id>,
}

/// The tests of all lines.
#[derive(Default)]
struct Report {
    defined: BTreeSet<Id>,
    /// The files and names of the tests that show a line.
    shown: BTreeMap<Id, BTreeSet<String>>,
    problems: Vec<Mistake>,
}

impl Report {
    /// Reads a page; `None` if it has no lines.
    fn page(&mut self, file: &str, text: &str) -> Option<Page> {
        let mut page = Page {
            file: file.to_owned(),
            title: String::new(),
            required: BTreeSet::new(),
            later: BTreeSet::new(),
            why: String::new(),
            lines: BTreeSet::new(),
        };
        for line in text.lines() {
            if let Err(mistake) = self.page_line(&mut page, line) {
                self.problems.push(format!("{file}: {mistake}"));
            }
        }
        for id in page.required.union(&page.later).filter(|id| !page.lines.contains(*id)) {
            self.problems.push(format!("{file}: {id} is called required or later, and is not defined"));
        }
        if !page.required.is_empty() || !page.later.is_empty() {
            for id in page.lines.iter().filter(|id| page.required.contains(*id) == page.later.contains(*id)) {
                self.problems.push(format!("{file}: {id} must be either required or later"));
            }
        }
        (!page.lines.is_empty()).then_some(page)
    }

    fn page_line(&mut self, page: &mut Page, line: &str) -> Result<(), Mistake> {
        let list = |text: &str| {
            let (ids, rest) = Id::list(text.trim())?;
            let why = rest.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
            match why {
                None if !rest.trim().is_empty() => {
                    Err(format!("{rest:?} is not a list of ids such as C-01, C-03..C-05 (why)"))
                }
                why => Ok((ids, why.unwrap_or_default().to_owned())),
            }
        };
        if let Some(heading) = line.strip_prefix("# ") {
            heading.clone_into(&mut page.title);
        } else if let Some(text) = line.strip_prefix("Required:") {
            page.required = list(text)?.0;
        } else if let Some(text) = line.strip_prefix("Later:") {
            (page.later, page.why) = list(text)?;
        } else if let Some((text, _)) = line.strip_prefix("- **").and_then(|rest| rest.split_once("**")) {
            let Some((id, "")) = Id::first(text)? else {
                return Err(format!("{text:?} is not an id such as C-01, B1 or case_01"));
            };
            page.lines.insert(id.clone());
            if !self.defined.insert(id.clone()) {
                return Err(format!("{id} is defined twice"));
            }
        }
        Ok(())
    }

    /// Reads a source file, as rustfmt writes it. A test is a function with an attribute such as `#[test]`, or one that the file
    /// gives to a macro such as `on_every_server!` or `for_kinds!`.
    fn source(&mut self, file: &str, text: &str) {
        let made_tests = text.split("\non_").chain(text.split("\nfor_")).skip(1).filter_map(|rest| {
            let (name, rest) = rest.split_once('!')?;
            name.chars().all(|char| char.is_alphanumeric() || char == '_').then(|| rest.split(");\n").next())?
        });
        let words = |text: &'_ str| {
            text.split(|char: char| !char.is_alphanumeric() && char != '_').map(str::to_owned).collect::<Vec<_>>()
        };
        let made_tests: BTreeSet<String> = made_tests.flat_map(words).collect();
        let (mut docs, mut is_test) = (Vec::new(), false);
        for line in text.lines().map(str::trim_start) {
            if let Some(doc) = line.strip_prefix("///") {
                docs.push(doc.trim_start());
                continue;
            }
            if let Some(attribute) = line.strip_prefix("#[") {
                let path = attribute.split(['(', ']']).next().unwrap_or_default();
                is_test |= path.rsplit("::").next() == Some("test");
                // Perhaps before a function on the same line.
                if !attribute.contains(" fn ") {
                    continue;
                }
            }
            if let Some(name) = function(line) {
                match self.function(file, name, &docs, is_test || made_tests.contains(name)) {
                    Ok(()) => {}
                    Err(mistake) => self.problems.push(format!("{file}: {name}: {mistake}")),
                }
            }
            docs.clear();
            is_test = false;
        }
    }

    fn function(&mut self, file: &str, name: &str, docs: &[&str], is_test: bool) -> Result<(), Mistake> {
        let ids = match named(name, docs) {
            // A comment of another function may begin with any words.
            Err(_) if !is_test => return Ok(()),
            ids => ids?,
        };
        if !is_test && let Some(id) = ids.first() {
            return Err(format!("names {id} and is not a test"));
        }
        for id in ids {
            if !self.defined.contains(&id) {
                self.problems.push(format!("{file}: {name} names {id}, which no page defines"));
            }
            self.shown.entry(id).or_default().insert(format!("{file}: {name}"));
        }
        Ok(())
    }

    /// The lines of a page with the tests that show them, or only those without. Notes a required line without a test.
    fn table(&mut self, page: &Page, gaps: bool) -> String {
        let mut rows = Vec::new();
        let is_shown = |id: &&Id| self.shown.contains_key(*id);
        let judged = !page.required.is_empty() || !page.later.is_empty();
        let counted = if judged { &page.required } else { &page.lines };
        let mut head = format!("{} ({}): ", page.title, page.file);
        head += &format!("{} of {} ", counted.iter().filter(is_shown).count(), counted.len());
        head += if judged { "required lines shown" } else { "shown" };
        if !page.later.is_empty() {
            head += &format!(", {} NOT YET REQUIRED: {}", page.later.len(), page.why);
        }
        rows.push(head);
        for id in &page.lines {
            let mut cells: Vec<&str> = self.shown.get(id).into_iter().flatten().map(String::as_str).collect();
            match (cells.is_empty(), page.required.contains(id), page.later.contains(id)) {
                (false, _, _) if gaps => continue,
                (false, _, false) => {}
                (false, _, true) => cells.insert(0, "later, and shown already"),
                (true, true, _) => {
                    self.problems.push(format!("{id} ({}) is required, and no test shows it", page.file));
                    cells.push("MISSING");
                }
                (true, _, true) => cells.push("later"),
                (true, ..) => cells.push("-"),
            }
            rows.push(format!("  {:<8} {}", id.to_string(), cells.join(&format!("\n{:11}", ""))));
        }
        rows.join("\n")
    }
}

/// The name of the function that the line begins.
fn function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let is_word =
        |word: &str| word.starts_with("#[") || word.starts_with("pub") || matches!(word, "async" | "const" | "unsafe");
    let name = rest.split(['(', '<']).next()?;
    (before.split_whitespace().all(is_word) && !name.contains(' ')).then_some(name)
}

/// The lines that a function's name and doc comment name.
fn named(name: &str, docs: &[&str]) -> Result<BTreeSet<Id>, Mistake> {
    let mut ids = BTreeSet::new();
    // `case_55_case_56_…` shows two.
    let mut words = name;
    while let Some((case, rest)) = Id::first(words)?.filter(|(id, _)| id.family == "case") {
        words = rest.strip_prefix('_').ok_or_else(|| format!("write {case}_ and what it claims"))?;
        ids.insert(case);
    }
    // A list may go on in the next line.
    let mut lines = docs.iter();
    while let Some(line) = lines.next() {
        let mut text = (*line).to_owned();
        while text.trim_end().ends_with(',') && Id::first(&text)?.is_some() {
            let Some(next) = lines.next() else { break };
            text = format!("{} {next}", text.trim_end());
        }
        let (listed, rest) = Id::list(&text)?;
        if let Some(first) = listed.first()
            && !rest.starts_with(':')
        {
            return Err(format!("the ids that begin a line of the comment ({first}, …) must end in a colon"));
        }
        ids.extend(listed);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Locks\nRequired: C-01, C-02\nLater: C-03..C-04 (not built)\n- **C-01** a\n- **C-02** b\n- **C-03** c\n- **C-04** d";

    /// The tables and the problems of these pages and a source.
    fn report(pages: &[(&str, &str)], source: &str) -> (String, Vec<Mistake>) {
        let mut report = Report::default();
        let pages: Vec<Page> = pages.iter().filter_map(|(file, text)| report.page(file, text)).collect();
        report.source("it.rs", source);
        let tables: Vec<_> = pages.iter().map(|page| report.table(page, false)).collect();
        (tables.join("\n"), report.problems)
    }

    #[test]
    fn a_table_says_which_tests_show_a_line_and_what_comes_later() {
        let source = "/// C-01, C-02: x\n#[test]\nfn a() {}\n/// Words.\n/// C-01: y\n#[tokio::test(flavor = \"x\")]\n\
                      pub(crate) async fn case_02_b() {}\n/// C-04: z\n#[test] fn c() {}\n/// Like C-03: talk.\n#[test]\nfn d() {}";
        let (table, problems) =
            report(&[("locks.md", PAGE), ("cases.md", "# Cases\n- **case_01** a\n- **case_02** b")], source);
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            table,
            "Locks (locks.md): 2 of 2 required lines shown, 2 NOT YET REQUIRED: not built\n  C-01     it.rs: a\n           \
             it.rs: case_02_b\n  C-02     it.rs: a\n  C-03     later\n  C-04     later, and shown already\n           it.rs: c\n\
             Cases (cases.md): 1 of 2 shown\n  case_01  -\n  case_02  it.rs: case_02_b"
        );
    }

    #[test]
    fn functions_that_a_macro_makes_tests_of_are_tests() {
        let source = "\non_every_server!(\n    case_01_case_02_dropped,\n);\n/// C-01: ours\nasync fn case_01_case_02_dropped(w: &W) {}\n\
                      \nfor_kinds!([read Read] shared);\n/// C-02,\n/// C-04: ours\nasync fn shared<W>(w: &W) {}\nasync fn helper() {}";
        let (table, problems) = report(&[("locks.md", PAGE), ("cases.md", "- **case_01** a\n- **case_02** b")], source);
        assert_eq!(problems, [""; 0]);
        assert_eq!(table.matches("case_01_case_02_dropped").count(), 3, "{table}");
        assert_eq!(table.matches(": shared").count(), 2, "{table}");
    }

    #[test]
    fn every_mistake_is_named() {
        let good = "/// C-01, C-02: x\n#[test]\nfn good() {}\n";
        for (source, say) in [
            ("/// C-09: x\n#[test]\nfn a() {}", "a names C-09, which no page defines"),
            ("/// C-01 is so\n#[test]\nfn a() {}", "must end in a colon"),
            ("/// C-1: x\n#[test]\nfn a() {}", "C-1 is written C-01"),
            ("/// B01: x\n#[test]\nfn a() {}", "B01 is written B1"),
            ("/// C-02..C-01: x\n#[test]\nfn a() {}", "C-02..C-01 is not a range"),
            ("/// C-01..T-03: x\n#[test]\nfn a() {}", "C-01..T-03 is not a range"),
            ("/// C-01..: x\n#[test]\nfn a() {}", "has no end"),
            ("/// C-01, and: x\n#[test]\nfn a() {}", "after a comma is not an id"),
            ("#[test]\nfn case_6_a() {}", "is written case_06"),
            ("#[test]\nfn case_06() {}", "write case_06_ and"),
            ("/// C-01: x\nfn a() {}", "names C-01 and is not a test"),
            ("/// C-01: x\n#[test]\nstruct A;\nfn case_06_forgotten() {}", "names case_06 and is not a test"),
        ] {
            let (_, problems) = report(&[("locks.md", PAGE)], &format!("{good}{source}"));
            assert!(problems.len() == 1 && problems[0].contains(say), "{source}: {problems:?}");
        }
        for (page, say) in [
            ("- **C-01** a\n- **C-01** b", "C-01 is defined twice"),
            ("Required: C-01, C-02\n- **C-01** a", "C-02 is called required or later, and is not defined"),
            ("Required: C-01\n- **C-01** a\n- **C-02** a", "C-02 must be either"),
            ("Required: C-01\nLater: C-01\n- **C-01** a", "C-01 must be either"),
            ("Required: all\n- **C-01** a", "is not a list"),
            ("- **C-01** a\n- **C-1** a", "is written C-01"),
            ("- **C-01** a\n- **c1** a", "is not an id"),
        ] {
            let (_, problems) = report(&[("page.md", page)], "/// C-01: x\n#[test]\nfn good() {}\n");
            assert!(problems[0].starts_with("page.md: ") && problems[0].contains(say), "{page}: {problems:?}");
        }
        let (table, problems) =
            report(&[("locks.md", PAGE), ("more.md", "- **C-01** x")], "/// C-01: x\n#[test]\nfn a() {}");
        assert_eq!(problems, ["more.md: C-01 is defined twice", "C-02 (locks.md) is required, and no test shows it"]);
        assert!(table.contains("  C-02     MISSING"), "{table}");
    }
}
