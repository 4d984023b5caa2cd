//! `cargo xtask acceptance`: shows which tests cover which lines of `docs/acceptance/`.
//!
//! The pages list what the product must do, and the tests name the lines that they cover. The chore fails on a line
//! without a test, on a test that names an unknown line, on a name at a function that is no test, and on a list of ids
//! that it cannot read.

mod features;
mod functions;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::workspace::{metadata, shell};
use functions::{Cfg, Function, Source};

/// The directory of the pages.
const PAGES: &str = "docs/acceptance";
/// The directory of the tests.
const SOURCES: &str = "crates";
/// The greatest number of an id, so that a range with a typing error has an end.
const LAST: u32 = 999;

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Print only the lines without a test, and those that are shown only behind a feature
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
    let (mut tree, roots) = (Tree::default(), features::roots(metadata(&shell()?, &["--no-deps", "--offline"])?));
    for (name, text) in files(root, SOURCES, "rs")? {
        let file = root.join(&name).canonicalize().with_context(|| format!("finding {name}"))?;
        let first = roots.iter().find(|root| root.file == file);
        tree.add(&file, &name, &text, first)?;
    }
    report.sources(tree);
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

/// Reads the list that the text begins with, `C-01, C-03..C-05`; also returns the rest. A range that is no range stays
/// at the beginning of the rest.
fn list(text: &str) -> (BTreeSet<String>, &str) {
    let (mut ids, mut rest) = (BTreeSet::new(), text);
    while let Some((first, after)) = id(rest) {
        let Some((range, after)) = range(first, after) else { break };
        ids.extend(range);
        // A list may continue in the next line.
        match after.strip_prefix(',').map(str::trim_start) {
            Some(next) if id(next).is_some() => rest = next,
            _ => return (ids, after),
        }
    }
    (ids, rest)
}

/// Returns the ids from this one to the end of the range, if one follows; `None` if it is backwards, of two families or
/// spellings, too long, or has no end.
fn range<'a>(first: &str, after: &'a str) -> Option<(Vec<String>, &'a str)> {
    let Some(rest) = after.strip_prefix("..") else { return Some((vec![first.to_owned()], after)) };
    let (last, after) = id(rest)?;
    let (family, digits) = first.split_at(first.find(|char: char| char.is_ascii_digit())?);
    let [from, to] = [digits, last.strip_prefix(family)?].map(|number| number.parse::<u32>().ok());
    let (from, to) = (from?, to.filter(|to| *to <= LAST)?);
    let ids: Vec<_> = (from..=to).map(|number| format!("{family}{number:0width$}", width = digits.len())).collect();
    (ids.len() > 1 && ids.last().is_some_and(|id| id == last)).then_some((ids, after))
}

/// A page with lines.
#[derive(Default)]
struct Page {
    file: String,
    title: String,
    required: BTreeSet<String>,
    lines: Vec<String>,
}

/// The source files, until it is known which macros make tests and which files are behind features.
#[derive(Default)]
struct Tree {
    files: Vec<File>,
}

/// A source file of the tree.
struct File {
    name: String,
    path: PathBuf,
    source: Source,
    /// The features that are on in its crate, if it is the crate's first file; with them, those that it needs.
    root: Option<(BTreeSet<String>, BTreeSet<String>)>,
}

impl Tree {
    fn add(&mut self, path: &Path, name: &str, text: &str, root: Option<&features::Root>) -> Result<()> {
        self.files.push(File {
            name: name.to_owned(),
            path: path.to_owned(),
            source: Source::read(path, text, root.is_some())?,
            root: root.map(|root| (root.on.clone(), root.required.clone())),
        });
        Ok(())
    }

    /// Returns every function with its file and the features that must be turned on for it.
    fn functions(mut self) -> Vec<(String, Function, BTreeSet<String>)> {
        let makers = functions::makers(self.files.iter().map(|file| &file.source));
        // From the first files downwards: a file is behind what the file that declares it is behind.
        let mut reached: BTreeMap<PathBuf, (BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
        let mut left: Vec<(PathBuf, BTreeSet<String>, BTreeSet<String>)> = Vec::new();
        for file in &self.files {
            if let Some((on, required)) = &file.root {
                left.push((file.path.clone(), on.clone(), required.difference(on).cloned().collect()));
            }
        }
        while let Some((path, on, behind)) = left.pop() {
            let Some(file) = self.files.iter().find(|file| file.path == path) else { continue };
            for (candidates, cfg) in &file.source.modules {
                let behind = &behind | &missing(cfg, &on);
                left.extend(candidates.iter().map(|path| (path.clone(), on.clone(), behind.clone())));
            }
            // A file that two crates share counts where it needs less.
            let less = reached.get(&path).is_none_or(|(_, other)| behind.len() < other.len());
            if less {
                reached.insert(path, (on, behind));
            }
        }
        let mut functions = Vec::new();
        for file in &mut self.files {
            file.source.made(&makers);
            let (on, behind) = reached.get(&file.path).cloned().unwrap_or_default();
            for mut function in std::mem::take(&mut file.source.functions) {
                if !reached.contains_key(&file.path) {
                    function.no_test = Some("is in a file of no crate");
                }
                let behind = &behind | &missing(&function.cfg, &on);
                functions.push((file.name.clone(), function, behind));
            }
        }
        functions
    }
}

/// Returns the features that these conditions need and that are off.
fn missing(cfg: &[Cfg], on: &BTreeSet<String>) -> BTreeSet<String> {
    cfg.iter().flat_map(|cfg| cfg.missing(on)).collect()
}

/// The tests of all lines.
#[derive(Default)]
struct Report {
    defined: BTreeSet<String>,
    /// The files and names of the tests that cover a line, and the features that each one needs.
    shown: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
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
                let (ids, rest) = list(text);
                page.required = ids;
                if !rest.is_empty() {
                    self.problems.push(format!("{file}: not a list of ids: {rest:?}; write C-01, C-03..C-05"));
                }
            } else if let Some((id, _)) = line.strip_prefix("- **").and_then(|rest| rest.split_once("**")) {
                page.lines.push(id.to_owned());
                if !self.defined.insert(id.to_owned()) {
                    self.problems.push(format!("{file}: {id} is defined twice"));
                }
            }
        }
        let Page { required, lines, .. } = &page;
        for id in required.iter().filter(|id| !lines.contains(id)) {
            self.problems.push(format!("{file}: {id} is required, and is not defined"));
        }
        for id in lines.iter().filter(|id| !required.contains(*id)) {
            self.problems.push(format!("{file}: {id} is not among the required lines; add it to \"Required:\""));
        }
        (!lines.is_empty()).then_some(page)
    }

    /// Reads the tests of all source files.
    fn sources(&mut self, tree: Tree) {
        for (file, function, behind) in tree.functions() {
            self.function(&file, &function, &behind);
        }
    }

    /// Records the lines that the name and the doc comment of a test name.
    fn function(&mut self, file: &str, function: &Function, behind: &BTreeSet<String>) {
        let Function { name, docs, no_test, .. } = function;
        let mut ids = BTreeSet::new();
        // `case_55_case_56_…` covers two lines.
        let mut words = name.as_str();
        while let Some((case, rest)) = id(words).filter(|_| words.starts_with("case_")) {
            words = rest.trim_start_matches('_');
            ids.insert(case.to_owned());
        }
        let mut docs = Some(docs.as_str());
        while let Some(text) = docs {
            let (listed, rest) = list(text);
            if (!listed.is_empty() || id(rest).is_some()) && !rest.starts_with(':') {
                let line = text.lines().next().unwrap_or_default();
                self.problems.push(format!(
                    "{file}: {name}: not a list of ids that ends in a colon: {line:?}; write C-01, C-03..C-05:"
                ));
            }
            ids.extend(listed);
            docs = rest.split_once('\n').map(|(_, rest)| rest);
        }
        for id in ids {
            if let Some(why) = no_test {
                self.problems.push(format!("{file}: {name} names {id} and {why}; name it at a test"));
                continue;
            }
            if !self.defined.contains(&id) {
                self.problems.push(format!("{file}: {name} names {id}, which no page defines"));
            }
            self.shown.entry(id).or_default().insert(format!("{file}: {name}"), behind.clone());
        }
    }

    /// Returns the features that a line's tests need; `None` if one of them runs without, or if there are no tests.
    fn only_behind(&self, id: &str) -> Option<Vec<String>> {
        let tests = self.shown.get(id)?;
        let features = tests.values().map(|behind| behind.iter().cloned().collect::<Vec<_>>().join(" and "));
        tests.values().all(|behind| !behind.is_empty()).then(|| features.collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Returns the lines of a page with the tests that cover them, or only the lines without a test. Records lines
    /// without a test.
    fn table(&mut self, page: &Page, gaps: bool) -> String {
        let count = page.lines.iter().filter(|id| self.shown.contains_key(*id)).count();
        let mut table = format!("{} ({}): {count} of {} required lines shown", page.title, page.file, page.lines.len());
        for id in &page.lines {
            let only = self.only_behind(id);
            let mut cells: Vec<String> = Vec::new();
            for (test, behind) in self.shown.get(id).into_iter().flatten() {
                let features: Vec<_> = behind.iter().map(String::as_str).collect();
                cells.push(if features.is_empty() {
                    test.clone()
                } else {
                    format!("{test} (behind {})", features.join(", "))
                });
            }
            if cells.is_empty() {
                self.problems.push(format!("{id} ({}) is required, and no test shows it", page.file));
                cells.push("MISSING".to_owned());
            } else if let Some(features) = only {
                cells.insert(0, format!("ONLY BEHIND A FEATURE: {}", features.join(", or ")));
            } else if gaps {
                continue;
            }
            table += &format!("\n  {id:<8} {}", cells.join(&format!("\n{:11}", "")));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Locks\nRequired: C-01..C-03\n- **C-01** a\n- **C-02** b\n- **C-03** c";

    /// Returns the tables and the problems of these pages and source files. `it.rs` is the first file of a crate whose
    /// feature `on` is on.
    fn report(pages: &[(&str, &str)], sources: &[(&str, &str)], gaps: bool) -> (String, Vec<String>) {
        let mut report = Report::default();
        let pages: Vec<Page> = pages.iter().filter_map(|(file, text)| report.page(file, text)).collect();
        let mut tree = Tree::default();
        for (file, text) in sources {
            let on = BTreeSet::from(["on".to_owned()]);
            let root = features::Root { file: file.into(), required: BTreeSet::new(), on };
            tree.add(Path::new(file), file, text, Some(&root).filter(|_| *file == "it.rs")).unwrap();
        }
        report.sources(tree);
        let tables: Vec<_> = pages.iter().map(|page| report.table(page, gaps)).collect();
        (tables.join("\n"), report.problems)
    }

    #[test]
    fn a_table_says_which_tests_show_a_line() {
        let source = "/// C-01,\n/// C-02: x\n#[test]\nfn a() {}\n/// Words.\n/// C-01: y\n#[tokio::test(flavor = \"x\")]\n\
                      pub(crate) async fn case_02_case_03_b() {}\nmod inner { /// C-03: z\n#[test] fn c() {} }\n/// Like C-03: talk.\nfn d() {}";
        let cases = "# Cases\nRequired: case_02..case_03\n- **case_02** b\n- **case_03** c";
        let (table, problems) = report(&[("locks.md", PAGE), ("cases.md", cases)], &[("it.rs", source)], false);
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            table,
            "Locks (locks.md): 3 of 3 required lines shown\n  C-01     it.rs: a\n           it.rs: case_02_case_03_b\n  \
             C-02     it.rs: a\n  C-03     it.rs: c\nCases (cases.md): 2 of 2 required lines shown\n  case_02  \
             it.rs: case_02_case_03_b\n  case_03  it.rs: case_02_case_03_b"
        );
    }

    #[test]
    fn a_macro_that_makes_tests_makes_a_function_a_test() {
        let macros = "macro_rules! tests { ($($claim:ident)+) => { $( mod $claim { #[test] fn one() {} } )+ }; }\n\
                      macro_rules! on_all { ($($claim:ident),+) => { tests! { $($claim)+ } }; }\n\
                      macro_rules! other { ($($claim:ident),+) => {}; }\nmod claims;\nmod more;";
        let claims = "on_all!(a, b);\n/// C-01: x\nfn a() {}\n/// C-02: x\nasync fn b(world: &World) {}";
        let more = "other!(c);\n/// C-03: x\nfn c() {}\nproptest! { /// C-03: x\n#[test] fn d(x in 0..1) {} }";
        let sources = [("it.rs", macros), ("claims.rs", claims), ("more.rs", more)];
        let (table, problems) = report(&[("locks.md", PAGE)], &sources, false);
        assert_eq!(problems, ["more.rs: c names C-03 and is no test; name it at a test"]);
        assert!(table.contains("C-01     claims.rs: a\n  C-02     claims.rs: b\n  C-03     more.rs: d"), "{table}");
    }

    #[test]
    fn a_line_that_is_shown_only_behind_a_feature_is_named() {
        let first = "#[cfg(real_servers)]\nmod servers;\nmod plain;\n#[cfg(any(test, feature = \"no\"))]\n/// C-03: x\n#[test] fn c() {}";
        let servers = "/// C-01, C-02: x\n#[test]\nfn a() {}\n/// C-03: x\n#[test]\nfn b() {}";
        let plain = "/// C-02: x\n#[cfg(all(feature = \"on\", not(real_servers)))]\n#[test]\nfn d() {}\n\
                     /// C-01: x\n#[test]\n#[cfg(all(feature = \"on\", feature = \"kafka\"))]\nfn e() {}";
        let sources = [("it.rs", first), ("servers.rs", servers), ("plain.rs", plain)];
        let (table, problems) = report(&[("locks.md", PAGE)], &sources, true);
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            table,
            "Locks (locks.md): 3 of 3 required lines shown\n  C-01     ONLY BEHIND A FEATURE: kafka, or real_servers\n           \
             plain.rs: e (behind kafka)\n           servers.rs: a (behind real_servers)"
        );
    }

    #[test]
    fn a_line_that_loses_its_test_is_missing() {
        let shown = "/// C-01, C-03: x\n#[test]\nfn a() {}";
        for (source, more) in [
            (shown.to_owned(), ""),
            (
                format!("{shown}\n/// C-02: x\n#[test]\n#[ignore]\nfn b() {{}}"),
                "it.rs: b names C-02 and is ignored; name it at a test",
            ),
            (format!("{shown}\n/// C-02: x\nfn b() {{}}"), "it.rs: b names C-02 and is no test; name it at a test"),
            (format!("{shown}\n#[test]\nfn b() {{ /// C-02: x\n#[test]\nfn inner() {{}} }}"), ""),
        ] {
            let (table, problems) = report(&[("locks.md", PAGE)], &[("it.rs", &source)], true);
            let mut expected = vec![more, "C-02 (locks.md) is required, and no test shows it"];
            expected.retain(|problem| !problem.is_empty());
            assert_eq!(problems, expected, "{source}");
            assert!(table.contains("2 of 3 required lines shown\n  C-02     MISSING"), "{table}");
        }
        let unreached = [("it.rs", shown), ("old.rs", "/// C-02: x\n#[test]\nfn b() {}")];
        let (_, problems) = report(&[("locks.md", PAGE)], &unreached, true);
        assert_eq!(problems[0], "old.rs: b names C-02 and is in a file of no crate; name it at a test");
    }

    #[test]
    fn every_mistake_is_named() {
        let good = "/// C-01..C-03: x\n#[test]\nfn good() {}\n";
        for (source, say) in [
            ("/// C-09: x\n#[test]\nfn a() {}", "a names C-09, which no page defines"),
            ("/// C-1: x\n#[test]\nfn a() {}", "a names C-1, which no page defines"),
            ("#[test]\nfn case_6_a() {}", "names case_6, which no page defines"),
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
            let (_, problems) = report(&[("locks.md", PAGE)], &[("it.rs", &format!("{good}{source}"))], false);
            assert!(problems.len() == 1 && problems[0].contains(say), "{source}: {problems:?}");
        }
        for (page, say) in [
            ("Required: C-01\n- **C-01** a\n- **C-01** b", "C-01 is defined twice"),
            ("Required: C-01, C-02\n- **C-01** a", "C-02 is required, and is not defined"),
            ("Required: C-01\n- **C-01** a\n- **C-02** a", "C-02 is not among the required lines"),
            ("- **C-01** a", "C-01 is not among the required lines"),
            ("Required: C-01, C-02..01\n- **C-01** a", "not a list of ids: \"C-02..01\""),
        ] {
            let (_, problems) =
                report(&[("page.md", page)], &[("it.rs", "/// C-01: x\n#[test]\nfn good() {}\n")], false);
            assert!(problems[0].starts_with("page.md: ") && problems[0].contains(say), "{page}: {problems:?}");
        }
    }
}
