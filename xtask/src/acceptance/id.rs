//! The ids of lines: `C-01`, `B7`, `case_42`, and lists of them.
//!
//! One spelling each, so that a search for an id finds all of it.

use std::fmt;

/// The name of one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    /// `C`, `B`, `case`.
    pub(super) family: String,
    number: u32,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family.as_str() {
            "B" => write!(f, "B{}", self.number),
            "case" => write!(f, "case_{:02}", self.number),
            family => write!(f, "{family}-{:02}", self.number),
        }
    }
}

/// Something that begins like an id and is not one, or not in its one spelling.
pub(super) type Mistake = String;

impl Id {
    /// Reads an id that is the whole of `text`.
    pub(super) fn parse(text: &str) -> Result<Id, Mistake> {
        match Id::first(text)? {
            Some((id, "")) => Ok(id),
            _ => Err(format!("{text:?} is no id; write C-01, B1 or case_01")),
        }
    }

    /// Reads the id that `text` begins with, and what follows it. `None` where it begins with none.
    pub(super) fn first(text: &str) -> Result<Option<(Id, &str)>, Mistake> {
        let family = ["case", "B"].into_iter().find(|family| {
            let after = text.strip_prefix(family).map(|rest| rest.strip_prefix('_').unwrap_or(rest));
            after.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
        let family = match family {
            Some(family) => family,
            None if text.starts_with(|c: char| c.is_ascii_uppercase()) && text[1..].starts_with('-') => &text[..1],
            None => return Ok(None),
        };
        let digits = text[family.len()..].trim_start_matches(['-', '_']);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let Ok(number) = digits[..end].parse() else {
            return Ok(None);
        };
        let id = Id { family: family.to_owned(), number };
        let (spelled, rest) = text.split_at(text.len() - digits.len() + end);
        if spelled != id.to_string() {
            return Err(format!("{spelled} is written {id}"));
        }
        Ok(Some((id, rest)))
    }

    /// Reads a list, `C-01, C-03..C-05`, and what follows it. `None` where `text` begins with no id.
    pub(super) fn list(text: &str) -> Result<Option<(Vec<Id>, &str)>, Mistake> {
        let mut ids = Vec::new();
        let mut rest = text;
        loop {
            let Some((first, after)) = Id::first(rest)? else {
                return if ids.is_empty() { Ok(None) } else { Err(format!("{rest:?} after a comma is no id")) };
            };
            rest = after;
            if let Some(after) = rest.strip_prefix("..") {
                let Some((last, after)) = Id::first(after)? else {
                    return Err(format!("{first}.. goes nowhere; write {first}..{}", first.next()));
                };
                if last.family != first.family || last <= first {
                    return Err(format!("{first}..{last} is no range"));
                }
                ids.extend((first.number..=last.number).map(|number| Id { number, ..first.clone() }));
                rest = after;
            } else {
                ids.push(first);
            }
            match rest.trim_start().strip_prefix(',') {
                Some(after) => rest = after.trim_start(),
                None => return Ok(Some((ids, rest))),
            }
        }
    }

    fn next(&self) -> Id {
        Id { number: self.number + 1, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Option<(Vec<String>, String)>, Mistake> {
        let read = Id::list(text)?;
        Ok(read.map(|(ids, rest)| (ids.iter().map(Id::to_string).collect(), rest.to_owned())))
    }

    #[test]
    fn ids_read_back_as_printed() {
        for text in ["C-01", "H-78", "N-100", "B1", "B16", "case_01", "case_58"] {
            assert_eq!(Id::parse(text).map(|id| id.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "C", "C-", "C-01x", "c-01", "CC-01", "case_", "Bcase", "B", "1"] {
            assert!(Id::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn another_spelling_is_a_mistake_that_names_the_right_one() {
        for (text, right) in [("C-1", "C-01"), ("B01", "B1"), ("case_1", "case_01"), ("C-001", "C-01"), ("B_1", "B1")] {
            assert_eq!(Id::first(text), Err(format!("{text} is written {right}")));
        }
    }

    #[test]
    fn lists_have_commas_and_ranges() {
        assert_eq!(list("C-01: x"), Ok(Some((vec!["C-01".into()], ": x".into()))));
        let expected = ["C-01", "C-03", "C-04", "C-05", "T-02", "B7"].map(str::to_owned).to_vec();
        assert_eq!(list("C-01, C-03..C-05,\n T-02, B7"), Ok(Some((expected, String::new()))));
        assert_eq!(list("An exclusive lock"), Ok(None));
        assert_eq!(list("Before all: C-01"), Ok(None));
        for bad in ["C-05..C-03", "C-01..T-03", "C-01..", "C-01, and", "C-01..x", "C-01..C-01"] {
            assert!(list(bad).is_err(), "{bad:?}");
        }
    }
}
