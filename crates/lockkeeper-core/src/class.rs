//! Classes of a priority queue: a lower class is granted first, in any order of arrival.
//!
//! A class is the text that its nodes' names begin with. The order of classes is the order of those names, because the foreign
//! clients that share a path sort the names (Contentserv's `A-` before `B-`).

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A class: the text before the `-` of a name. The lowest class is granted first.
///
/// It is filled up with `-`, which follows it in a name. So the order of classes is the order of the names that they begin:
/// `A!-0000000001` comes before `A-0000000001`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class([u8; Class::MAX_LEN]);

const END: u8 = b'-';

const fn of_letter(letter: u8) -> Class {
    let mut bytes = [END; Class::MAX_LEN];
    bytes[0] = letter;
    Class(bytes)
}

/// Why a text is not a class.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{class:?} is not a class: {reason}; a class is 1 to 32 bytes without -, / and %, such as A, B or FOREGROUND")]
pub struct ClassError {
    class: String,
    reason: &'static str,
}

impl Class {
    /// The maximum length of a class, in bytes: a listing contains it once for each contender.
    pub const MAX_LEN: usize = 32;

    /// Contentserv's foreground, `A`.
    pub const FOREGROUND: Class = of_letter(b'A');

    /// Contentserv's background, `B`.
    pub const BACKGROUND: Class = of_letter(b'B');

    /// Returns the class of this text.
    ///
    /// # Errors
    /// [`ClassError`] if it is empty or longer than 32 bytes, or has a character that cannot be in it. A `-` ends a class, a `/`
    /// ends a name, and a `%` escapes a name that reads as a contender's. ZooKeeper does not store some others. Blanks are
    /// refused too, because they cannot be seen at the end of a setting. `lock`, `read` and `write` are no classes, because the
    /// nodes of the recipes' locks begin so, and these locks have no classes.
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
        let refused = |c: &char| matches!(c, '-' | '/' | '%') || c.is_whitespace() || !storable(*c);
        match letters.chars().find(refused) {
            Some('-') => refuse("a - separates the class from the number"),
            Some('/') => refuse("a / separates the names of a path"),
            Some('%') => refuse("a % escapes a character in a path"),
            Some(c) if c.is_whitespace() => refuse("it has a blank"),
            Some(_) => refuse("it has a character that ZooKeeper does not store"),
            None => {
                let mut bytes = [END; Self::MAX_LEN];
                bytes[..letters.len()].copy_from_slice(letters.as_bytes());
                Ok(Class(bytes))
            }
        }
    }

    /// Returns its text.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|byte| *byte == END).unwrap_or(Self::MAX_LEN);
        std::str::from_utf8(&self.0[..len]).expect("made of a text without the END")
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

/// Whether ZooKeeper's `PathUtils` accepts a character: no NUL, no control characters (C0, C1), no private use. It looks at
/// UTF-16 units and refuses surrogates, so it accepts only characters of the basic plane.
pub(crate) fn storable(c: char) -> bool {
    !matches!(c, '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-41: one class.
    #[test]
    fn an_invalid_class_is_refused_with_its_reason() {
        for (bad, why) in [
            ("", "empty"),
            ("A-B", "a -"),
            ("A/B", "a /"),
            ("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456", "too long"),
            ("A%", "a %"),
            ("A ", "a blank"),
            ("A\u{1}", "not store"),
            ("lock", "without classes"),
        ] {
            let error = Class::new(bad).expect_err(bad).to_string();
            assert!(error.contains(why) && error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn a_class_is_printed_by_its_name() {
        assert_eq!(
            (Class::FOREGROUND.to_string(), format!("{:?}", Class::FOREGROUND)),
            ("A".into(), "Class(A)".into())
        );
    }

    /// C-09: the order of the classes is that of the names.
    #[test]
    fn classes_are_ordered_as_the_names_they_begin() {
        let mut names =
            ["B", "A", "AB", "Z", "a", "10", "FG", "A!", "A.", "A_", "FG_B", "FOREGROUND", "BACKGROUND", "Ä", "Ж"]
                .map(|c| (Class::new(c).expect(c), format!("{c}-0000000001")));
        names.sort_by_key(|(class, _)| *class);
        assert!(names.is_sorted_by_key(|(_, name)| name.clone()), "{names:?}");
        assert_eq!(Class::new("A"), Ok(Class::FOREGROUND));
        assert_eq!(Class::new("B"), Ok(Class::BACKGROUND));
    }
}
