//! Reads the pages: which lines there are, and which of them must be shown by now.

use std::collections::{BTreeMap, BTreeSet};

use super::id::{Id, Mistake};

/// One page with lines.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) file: String,
    pub(super) title: String,
    /// Whether each line is required by now.
    pub(super) lines: BTreeMap<Id, bool>,
    /// Whether the page says which lines are required; one that does not is a plain collection.
    pub(super) judged: bool,
    /// Why some come later, in the page's words.
    pub(super) later: Option<String>,
}

impl Page {
    /// Reads a page; `None` if it has no lines.
    pub(super) fn read(file: &str, text: &str) -> Result<Option<Page>, Mistake> {
        let at = |mistake| format!("{file}: {mistake}");
        let mut title = String::new();
        let (mut required, mut later) = (None, None);
        let mut why = None;
        let mut lines = BTreeMap::new();
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("# ") {
                heading.clone_into(&mut title);
            } else if let Some(list) = line.strip_prefix("Required:") {
                required = Some(whole_list(list).map_err(at)?.0);
            } else if let Some(list) = line.strip_prefix("Later:") {
                let (ids, rest) = whole_list(list).map_err(at)?;
                (later, why) = (Some(ids), rest);
            } else if let Some((id, _)) = line.strip_prefix("- **").and_then(|rest| rest.split_once("**")) {
                let id = Id::parse(id).map_err(at)?;
                if lines.insert(id.clone(), false).is_some() {
                    return Err(at(format!("{id} is defined twice")));
                }
            }
        }
        if lines.is_empty() {
            return Ok(None);
        }
        let judged = required.is_some() || later.is_some();
        let (required, later) = (required.unwrap_or_default(), later.unwrap_or_default());
        for id in required.iter().chain(&later) {
            if !lines.contains_key(id) {
                return Err(at(format!("{id} is called required or later, and not defined")));
            }
        }
        for (id, is_required) in &mut lines {
            *is_required = required.contains(id);
            if judged && *is_required == later.contains(id) {
                return Err(at(format!("{id} must be either required or later, and not both")));
            }
        }
        Ok(Some(Page { file: file.to_owned(), title, lines, judged, later: why }))
    }
}

/// A list, perhaps none, and what stands behind it in parentheses.
fn whole_list(text: &str) -> Result<(BTreeSet<Id>, Option<String>), Mistake> {
    let text = text.trim();
    let (ids, rest) = Id::list(text)?.unwrap_or((Vec::new(), text));
    let rest = rest.trim();
    match rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(why) => Ok((ids.into_iter().collect(), Some(why.to_owned()))),
        None if rest.is_empty() => Ok((ids.into_iter().collect(), None)),
        None => Err(format!("{rest:?} is no list of ids; write C-01, C-03..C-05 (why)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Result<Vec<(String, bool)>, Mistake> {
        let page = Page::read("page.md", text)?.expect("a page with lines");
        Ok(page.lines.iter().map(|(id, required)| (id.to_string(), *required)).collect())
    }

    #[test]
    fn lines_are_required_or_come_later() {
        let text = "# Title\n\nRequired: C-01, C-03\nLater: C-02 (not built yet)\n\n- **C-01** a\n- **C-02** b\n- **C-03** c\n";
        let page = Page::read("page.md", text).unwrap().unwrap();
        assert_eq!((page.title.as_str(), page.later.as_deref(), page.judged), ("Title", Some("not built yet"), true));
        let expected = [("C-01".to_owned(), true), ("C-02".to_owned(), false), ("C-03".to_owned(), true)];
        assert_eq!(lines(text).unwrap(), expected);
    }

    #[test]
    fn a_page_that_contradicts_itself_is_refused() {
        for (text, say) in [
            ("- **C-01** a\n- **C-01** b", "C-01 is defined twice"),
            ("Required: C-02\n- **C-01** a", "C-02 is called required or later, and not defined"),
            ("Required: C-01\n- **C-01** a\n- **C-02** a", "C-02 must be either"),
            ("Required: C-01\nLater: C-01\n- **C-01** a", "C-01 must be either"),
            ("Required: all\n- **C-01** a", "is no list"),
            ("- **C-1** a", "is written C-01"),
        ] {
            let mistake = lines(text).expect_err(text);
            assert!(mistake.starts_with("page.md: ") && mistake.contains(say), "{mistake}");
        }
    }

    #[test]
    fn a_page_without_lines_or_without_a_judgement_is_fine() {
        assert!(Page::read("page.md", "# Text\n\n- a list\n").unwrap().is_none());
        assert!(!Page::read("page.md", "- **case_01** a").unwrap().unwrap().judged);
    }
}
