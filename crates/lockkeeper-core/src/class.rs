//! Classes of a priority queue: a lower class goes first, whatever the order of arrival.
//!
//! A class is the letters that its nodes' names begin with, and the order of classes is the order of those letters, because
//! the foreign clients that share a path sort the names (Contentserv's `A-` before `B-`).

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The letters before the `-` of a name; the lowest goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class([u8; Class::MAX_LEN]);

/// Not a class.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{class:?} is not a class: {reason}; a class is 1 to 8 ASCII letters or digits, such as A, B or C")]
pub struct ClassError {
    class: String,
    reason: &'static str,
}

impl Class {
    /// The longest class, in bytes: a queue's listing carries it once a contender.
    pub const MAX_LEN: usize = 8;

    /// Contentserv's foreground, `A`.
    pub const FOREGROUND: Class = Class(*b"A\0\0\0\0\0\0\0");

    /// Contentserv's background, `B`.
    pub const BACKGROUND: Class = Class(*b"B\0\0\0\0\0\0\0");

    /// The class of these letters.
    ///
    /// # Errors
    /// If there are none or over eight, or one is no ASCII letter or digit: a `-` ends a class, a `/` a name, and characters
    /// that sort before the `-` would turn the order of the classes round for those who sort whole names. Nor are `lock`, `read`
    /// and `write` classes: so begin the nodes of the recipes' locks, which know of no classes.
    pub fn new(letters: &str) -> Result<Class, ClassError> {
        let refuse = |reason| Err(ClassError { class: letters.chars().take(60).collect(), reason });
        if let "lock" | "read" | "write" = letters {
            return refuse("so begin the nodes of locks without classes");
        }
        match letters.len() {
            0 => return refuse("it is empty"),
            1..=Self::MAX_LEN => {}
            _ => return refuse("it is too long"),
        }
        match letters.bytes().find(|byte| !byte.is_ascii_alphanumeric()) {
            Some(b'-') => refuse("a - separates the class from the number"),
            Some(b'/') => refuse("a / separates the names of a path"),
            Some(_) => refuse("it has other characters"),
            None => {
                let mut bytes = [0; Self::MAX_LEN];
                bytes[..letters.len()].copy_from_slice(letters.as_bytes());
                Ok(Class(bytes))
            }
        }
    }

    /// Its letters.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(Self::MAX_LEN);
        std::str::from_utf8(&self.0[..len]).expect("made of ASCII only")
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Class({self})")
    }
}

impl FromStr for Class {
    type Err = ClassError;

    fn from_str(letters: &str) -> Result<Self, ClassError> {
        Class::new(letters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What C-41 asks of one class.
    #[test]
    fn an_invalid_class_is_refused_with_its_reason() {
        for (bad, why) in [
            ("", "empty"),
            ("A-B", "a -"),
            ("A/B", "a /"),
            ("ABCDEFGHI", "too long"),
            ("Ä", "other"),
            ("lock", "without classes"),
        ] {
            let error = Class::new(bad).expect_err(bad).to_string();
            assert!(error.contains(why) && error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    /// C-09: the order of the classes is that of the names.
    #[test]
    fn classes_are_ordered_as_the_names_they_begin() {
        let mut names =
            ["B", "A", "AB", "Z", "a", "10", "FG"].map(|c| (Class::new(c).expect(c), format!("{c}-0000000001")));
        names.sort_by_key(|(class, _)| *class);
        assert!(names.is_sorted_by_key(|(_, name)| name.clone()), "{names:?}");
        assert_eq!(Class::new("A"), Ok(Class::FOREGROUND));
        assert_eq!(Class::new("B"), Ok(Class::BACKGROUND));
    }
}
