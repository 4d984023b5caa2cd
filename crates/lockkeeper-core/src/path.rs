//! Checks a lock's path before anything of it reaches the network.
//!
//! The rules are ZooKeeper's own (`PathUtils.validatePath`), applied here so that a mistake is named with the value and
//! the remedy instead of coming back as "bad arguments" from a server.

use std::fmt;

use thiserror::Error;

/// Longest path accepted, in bytes. A listing and a create carry the path in one frame of 1 MiB by default; a path of
/// this length leaves all but a thousandth of it to the rest.
const MAX_PATH_BYTES: usize = 1024;

/// An absolute path that ZooKeeper accepts, other than the root.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockPath(String);

/// Why a path cannot be a lock's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PathError {
    /// Nothing was given.
    #[error("a lock's path must not be empty; write one like /locks/nightly")]
    Empty,
    /// It does not start at the root.
    #[error("lock path {path:?} must start with '/', as in {suggestion:?}")]
    Relative {
        /// What was given.
        path: String,
        /// The same from the root.
        suggestion: String,
    },
    /// The root itself holds other applications' nodes.
    #[error("lock path \"/\" is the root of all nodes; choose one below it, like /locks/nightly")]
    Root,
    /// Over the limit.
    #[error("lock path of {bytes} bytes is longer than the {max} allowed (it starts {start:?})")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
        /// Its first characters.
        start: String,
    },
    /// Two slashes in a row, or one at the end.
    #[error("lock path {path:?} has an empty component at byte {at}; remove the extra '/'")]
    EmptyComponent {
        /// What was given.
        path: String,
        /// Where, in bytes.
        at: usize,
    },
    /// `.` or `..`.
    #[error("lock path {path:?} has a relative component {component:?}; ZooKeeper has no directories to step through")]
    RelativeComponent {
        /// What was given.
        path: String,
        /// The component.
        component: String,
    },
    /// NUL, a control character, or one outside what ZooKeeper stores.
    #[error("lock path {path:?} has the character {character:?} at byte {at}, which ZooKeeper does not store")]
    BadCharacter {
        /// What was given.
        path: String,
        /// The character.
        character: char,
        /// Where, in bytes.
        at: usize,
    },
    /// Below `/zookeeper`, which is the server's.
    #[error("lock path {path:?} is inside /zookeeper, which belongs to the server; choose another")]
    Reserved {
        /// What was given.
        path: String,
    },
}

impl LockPath {
    /// Checks `path`.
    ///
    /// # Errors
    /// [`PathError`] names the value, the place and the remedy.
    pub fn parse(path: &str) -> Result<Self, PathError> {
        let owned = || path.to_owned();
        if path.is_empty() {
            return Err(PathError::Empty);
        }
        if path.len() > MAX_PATH_BYTES {
            let start = path.chars().take(40).collect();
            return Err(PathError::TooLong { bytes: path.len(), max: MAX_PATH_BYTES, start });
        }
        // Characters before structure: a relative path with a NUL in it is first of all unusable as a suggestion.
        if let Some((at, character)) = path.char_indices().find(|&(_, c)| !storable(c)) {
            return Err(PathError::BadCharacter { path: owned(), character, at });
        }
        if !path.starts_with('/') {
            return Err(PathError::Relative { path: owned(), suggestion: format!("/{path}") });
        }
        if path == "/" {
            return Err(PathError::Root);
        }
        let mut at = 1;
        for component in path[1..].split('/') {
            match component {
                "" => return Err(PathError::EmptyComponent { path: owned(), at: at - 1 }),
                "." | ".." => {
                    return Err(PathError::RelativeComponent { path: owned(), component: component.to_owned() });
                }
                _ => at += component.len() + 1,
            }
        }
        if path == "/zookeeper" || path.starts_with("/zookeeper/") {
            return Err(PathError::Reserved { path: owned() });
        }
        Ok(LockPath(owned()))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of a child: `name` must be a name that a listing of this path showed or that a dialect printed.
    pub fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    /// The node above the lock's, where that is not the root.
    pub fn parent(&self) -> Option<&str> {
        self.0.rfind('/').filter(|&at| at > 0).map(|at| &self.0[..at])
    }
}

/// What ZooKeeper's `PathUtils` lets through: no NUL, no C0 or C1 controls, no private use; and, as it looks at UTF-16 units and
/// refuses surrogates, nothing beyond the basic plane.
fn storable(c: char) -> bool {
    !matches!(c, '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{10ffff}')
}

impl fmt::Display for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for LockPath {
    type Err = PathError;

    fn from_str(path: &str) -> Result<Self, PathError> {
        LockPath::parse(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_paths_pass_unchanged() {
        for path in ["/a", "/locks/nightly", "/locks/ümläut/名前", "/a/..b", "/a/.b", "/zookeeperish"] {
            assert_eq!(LockPath::parse(path).map(|p| p.to_string()), Ok(path.to_owned()));
        }
    }

    #[test]
    fn bad_paths_are_named_with_value_and_place() {
        let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
        let cases: [(&str, &str); 11] = [
            ("", "must not be empty"),
            ("nightly", "must start with '/', as in \"/nightly\""),
            ("/", "root of all nodes"),
            ("/a//b", "empty component at byte 2"),
            ("/a/", "empty component at byte 2"),
            ("/a/../b", "relative component \"..\""),
            ("/a/./b", "relative component \".\""),
            ("/a\0b", "at byte 2"),
            ("/a😀", "at byte 2"),
            ("/zookeeper/quota", "belongs to the server"),
            (&long, "1025 bytes"),
        ];
        for (path, say) in cases {
            let error = LockPath::parse(path).expect_err(path).to_string();
            assert!(error.contains(say), "{path:?} gave {error:?}");
        }
    }

    #[test]
    fn parent_of_a_top_level_lock_is_nothing() {
        assert_eq!(LockPath::parse("/a").expect("valid").parent(), None);
        assert_eq!(LockPath::parse("/a/b/c").expect("valid").parent(), Some("/a/b"));
    }
}
