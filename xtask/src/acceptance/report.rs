//! Lays tests beside lines: the table, and what is wrong with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::id::Id;
use super::pages::Page;
use super::sources::Test;

/// The lines of all pages with the tests that show them.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pages: &'a [Page],
    shown: BTreeMap<&'a Id, Vec<&'a Test>>,
    /// What must be mended, one line each.
    pub(super) problems: Vec<String>,
}

impl<'a> Report<'a> {
    /// Compares pages and tests. `problems` are those already found in reading them.
    pub(super) fn new(pages: &'a [Page], tests: &'a [Test], mut problems: Vec<String>) -> Self {
        let mut defined: BTreeMap<&Id, &Page> = BTreeMap::new();
        for page in pages {
            for id in page.lines.keys() {
                if let Some(other) = defined.insert(id, page) {
                    problems.push(format!("{id} is defined in {} and in {}", other.file, page.file));
                }
            }
        }
        let mut shown: BTreeMap<&Id, Vec<&Test>> = BTreeMap::new();
        for test in tests {
            for id in &test.shows {
                if !defined.contains_key(id) {
                    problems.push(format!("{}: {} names {id}, which no page defines", test.file, test.function));
                }
                let by = shown.entry(id).or_default();
                if !by.iter().any(|other| std::ptr::eq(*other, test)) {
                    by.push(test);
                }
            }
        }
        for page in pages {
            for (id, required) in &page.lines {
                if *required && !shown.contains_key(id) {
                    problems.push(format!("{id} ({}) is required, and no test shows it", page.file));
                }
            }
        }
        Report { pages, shown, problems }
    }

    /// The table, or only its gaps.
    pub(super) fn table(&self, gaps: bool) -> String {
        let mut text = String::new();
        for page in self.pages {
            // Writing to a string never fails.
            _ = writeln!(text, "{} ({}): {}", page.title, page.file, self.summary(page));
            for (id, required) in &page.lines {
                let tests = self.shown.get(id).map_or(&[][..], Vec::as_slice);
                let remark = match (tests.is_empty(), page.judged, required) {
                    (true, true, true) => "MISSING",
                    (true, true, false) => "later",
                    (true, false, _) => "-",
                    (false, true, false) => "later, and shown already",
                    (false, ..) => "",
                };
                if gaps && !tests.is_empty() {
                    continue;
                }
                let mut told = tests.iter().map(|test| format!("{}: {}", test.file, test.function)).collect::<Vec<_>>();
                if !remark.is_empty() {
                    told.insert(0, remark.to_owned());
                }
                _ = writeln!(text, "  {:<8} {}", id.to_string(), told.join(&format!("\n{:11}", "")));
            }
            text.push('\n');
        }
        text
    }

    fn summary(&self, page: &Page) -> String {
        let shown = |wanted: Option<bool>| {
            let is_wanted = |required: &bool| wanted.is_none_or(|wanted| *required == wanted);
            let lines: Vec<&Id> =
                page.lines.iter().filter(|(_, required)| is_wanted(required)).map(|(id, _)| id).collect();
            let shown = lines.iter().filter(|id| self.shown.contains_key(**id)).count();
            format!("{shown} of {}", lines.len())
        };
        if !page.judged {
            return format!("{} shown", shown(None));
        }
        let mut text = format!("{} required lines shown", shown(Some(true)));
        let later = page.lines.values().filter(|required| !**required).count();
        if later > 0 {
            let why = page.later.as_deref().map_or_else(String::new, |why| format!(": {why}"));
            _ = write!(text, ", {later} NOT YET REQUIRED{why}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acceptance::sources;

    const PAGE: &str = "# Locks\nRequired: C-01, C-02\nLater: C-03, C-04 (not built)\n- **C-01** a\n- **C-02** b\n- **C-03** c\n- **C-04** d";
    const CASES: &str = "# Cases\n- **case_01** a\n- **case_02** b";

    fn report(pages: &[(&str, &str)], source: &str, check: impl FnOnce(&Report<'_>)) {
        let pages: Vec<Page> = pages.iter().map(|(file, text)| Page::read(file, text).unwrap().unwrap()).collect();
        let (tests, problems) = sources::read("it.rs", source).unwrap();
        check(&Report::new(&pages, &tests, problems));
    }

    #[test]
    fn a_complete_table_has_no_problem_and_says_what_comes_later() {
        let source = "/// C-01, C-02: x\n#[test] fn a() {}\n/// C-01: y\n#[test] fn case_02_b() {}\n/// C-04: z\n#[test] fn c() {}";
        report(&[("locks.md", PAGE), ("cases.md", CASES)], source, |report| {
            assert_eq!(report.problems, [""; 0]);
            let table = report.table(false);
            for line in [
                "Locks (locks.md): 2 of 2 required lines shown, 2 NOT YET REQUIRED: not built",
                "  C-01     it.rs: a\n           it.rs: case_02_b",
                "  C-02     it.rs: a",
                "  C-03     later",
                "  C-04     later, and shown already\n           it.rs: c",
                "Cases (cases.md): 1 of 2 shown",
                "  case_01  -",
                "  case_02  it.rs: case_02_b",
            ] {
                assert!(table.contains(line), "{line:?} is not in\n{table}");
            }
            assert!(!report.table(true).contains("it.rs"));
        });
    }

    #[test]
    fn a_gap_an_unknown_line_and_a_double_one_are_problems() {
        report(&[("locks.md", PAGE)], "/// C-01, C-09: x\n#[test] fn a() {}", |report| {
            let expected =
                ["it.rs: a names C-09, which no page defines", "C-02 (locks.md) is required, and no test shows it"];
            assert_eq!(report.problems, expected);
            assert!(report.table(true).contains("  C-02     MISSING"));
        });
        report(&[("locks.md", PAGE), ("more.md", PAGE)], "/// C-01, C-02: x\n#[test] fn a() {}", |report| {
            assert_eq!(report.problems.len(), 4, "{:?}", report.problems);
            assert_eq!(report.problems[0], "C-01 is defined in locks.md and in more.md");
        });
    }
}
