//! Checks a lock's path before it is sent.
//!
//! The rules are those of ZooKeeper (`PathUtils.validatePath`). Checked here, an error names the value and the remedy. A
//! server would only answer "bad arguments". Two more rules are Lockkeeper's: no component has the form of a contender's
//! node, and no lock is below `/lockkeeper`.

use std::fmt;
use std::fmt::Write as _;

use thiserror::Error;

use crate::NodeFormat;
use crate::class::storable;

/// The maximum length of a path, in bytes: a thousandth of a frame, which has 1 MiB by default. A create and a listing each
/// send the path in one frame.
const MAX_PATH_BYTES: usize = 1024;

/// The node below which Lockkeeper keeps its own records.
const OWN_TREE: &str = "/lockkeeper";

/// An absolute path that ZooKeeper accepts, other than the root.
///
/// A lock's path often ends in a name from the user's data: the number of an article, the key of a customer. Pass such a
/// name to [`LockPath::join`], which escapes it:
///
/// ```
/// use lockkeeper_core::LockPath;
///
/// let articles = LockPath::parse("/articles")?;
/// assert_eq!(articles.join("4711")?.as_str(), "/articles/4711");
/// assert_eq!(articles.join("a/b")?.as_str(), "/articles/a%2Fb");
/// // This name has the form of a waiter's node of the lock "/articles".
/// assert_eq!(articles.join("lock-0000000000")?.as_str(), "/articles/%6Cock-0000000000");
/// # Ok::<(), lockkeeper_core::PathError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockPath(String);

/// Why a path is not valid for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PathError {
    /// The path is empty.
    #[error("a lock's path must not be empty; write one like /locks/nightly")]
    Empty,
    /// The path does not start with `/`.
    #[error("lock path {path:?} must start with '/', as in {suggestion:?}")]
    Relative {
        /// The value.
        path: String,
        /// The same path with a `/` in front.
        suggestion: String,
    },
    /// The path is the root, which contains the nodes of other applications.
    #[error("lock path \"/\" is the root of all nodes; choose one below it, like /locks/nightly")]
    Root,
    /// The path is too long.
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
        /// The value.
        path: String,
        /// The position, in bytes.
        at: usize,
    },
    /// The name of a lock below another node is empty.
    #[error("the name of a lock below {above:?} is empty; choose one, like nightly")]
    EmptyName {
        /// The path of the node above.
        above: String,
    },
    /// A component is `.` or `..`.
    #[error("lock path {path:?} has a relative component {component:?}; ZooKeeper has no directories to step through")]
    RelativeComponent {
        /// The value.
        path: String,
        /// The component.
        component: String,
    },
    /// A character is NUL, a control character, or another one that ZooKeeper does not store.
    #[error("lock path {path:?} has the character {character:?} at byte {at}, which ZooKeeper does not store")]
    BadCharacter {
        /// The value.
        path: String,
        /// The character.
        character: char,
        /// The position, in bytes.
        at: usize,
    },
    /// The path is below `/zookeeper`, which belongs to the server.
    #[error("lock path {path:?} is inside /zookeeper, which belongs to the server; choose another")]
    Reserved {
        /// The value.
        path: String,
    },
    /// The path is below `/lockkeeper`, where Lockkeeper keeps its own records.
    #[error("lock path {path:?} is inside /lockkeeper, where Lockkeeper keeps its own records; choose another")]
    OwnTree {
        /// The value.
        path: String,
    },
    /// The name of a lock whose nodes are beside its path has a `/`.
    #[error("lock name {name:?} has a '/', which ends the name of a node; move what is before it to the base path")]
    SlashInName {
        /// The value.
        name: String,
    },
    /// A component has the form of a contender's node, of a holder marker or of a tombstone. A lock on the path above would
    /// wait for it.
    #[error(
        "lock path {path:?} has the component {component:?}, which is the name of a contender's node in the {} format: \
         a lock on {above:?} would wait for it; rename it, or write {escaped:?} instead",
        format!("{format:?}").to_lowercase()
    )]
    Contender {
        /// The value.
        path: String,
        /// The component.
        component: String,
        /// The node format of that name.
        format: NodeFormat,
        /// The path above the component.
        above: String,
        /// The component as [`LockPath::join`] writes it.
        escaped: String,
    },
}

impl PathError {
    fn empty_name(above: &str) -> Self {
        PathError::EmptyName { above: if above.is_empty() { "/" } else { above }.to_owned() }
    }
}

impl LockPath {
    /// Parses the path of a lock.
    ///
    /// # Errors
    /// [`PathError`] names the value, the position and the remedy.
    pub fn parse(path: &str) -> Result<Self, PathError> {
        let checked = Self::parse_node(path)?;
        if path == OWN_TREE || path.strip_prefix(OWN_TREE).is_some_and(|rest| rest.starts_with('/')) {
            return Err(PathError::OwnTree { path: path.to_owned() });
        }
        let mut start = 1;
        for component in path[1..].split('/') {
            if let Some(format) = NodeFormat::of_line(&[component]) {
                let above = if start == 1 { "/" } else { &path[..start - 1] };
                return Err(PathError::Contender {
                    path: path.to_owned(),
                    component: component.to_owned(),
                    format,
                    above: above.to_owned(),
                    escaped: escape(component, false),
                });
            }
            start += component.len() + 1;
        }
        Ok(checked)
    }

    /// Parses the path of any node, for reads. It accepts also paths that no lock can have.
    ///
    /// # Errors
    /// As [`LockPath::parse`], except [`PathError::Contender`] and [`PathError::OwnTree`].
    pub fn parse_node(path: &str) -> Result<Self, PathError> {
        let owned = || path.to_owned();
        if path.is_empty() {
            return Err(PathError::Empty);
        }
        if path.len() > MAX_PATH_BYTES {
            let start = path.chars().take(40).collect();
            return Err(PathError::TooLong { bytes: path.len(), max: MAX_PATH_BYTES, start });
        }
        // Check the characters first: the error of a relative path repeats the path as a suggestion.
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

    /// Returns the path of `name` below this one. It accepts any name except the empty one. Two different names never give
    /// the same path.
    ///
    /// A valid component does not change. In other names, it replaces each byte of some characters by `%` and two
    /// hexadecimal digits. These are `%`, `/`, and the characters that ZooKeeper does not store. They are also the first
    /// character of a name with the form of a contender's node, and each `.` of the names `.` and `..`.
    ///
    /// # Errors
    /// [`PathError::EmptyName`] for an empty name; [`PathError::TooLong`] if the path is longer than 1024 bytes.
    pub fn join(&self, name: &str) -> Result<Self, PathError> {
        Self::joined(&self.0, name)
    }

    /// Returns the path of `name` below the root, escaped as by [`LockPath::join`]. The names `zookeeper` and `lockkeeper` are escaped too.
    ///
    /// # Errors
    /// As [`LockPath::join`].
    pub fn at_root(name: &str) -> Result<Self, PathError> {
        Self::joined("", name)
    }

    /// The path of `name` below the node `base`, as a foreign client writes it that only puts a `/` between the two.
    ///
    /// # Errors
    /// As [`LockPath::parse`]; [`PathError::EmptyName`] for an empty name; [`PathError::SlashInName`] if the name is several components.
    pub fn plain(base: &str, name: &str) -> Result<Self, PathError> {
        let base = base.trim_end_matches('/');
        if name.is_empty() {
            return Err(PathError::empty_name(base));
        }
        if name.contains('/') {
            return Err(PathError::SlashInName { name: name.to_owned() });
        }
        Self::parse(&format!("{base}/{name}"))
    }

    fn joined(above: &str, name: &str) -> Result<Self, PathError> {
        if name.is_empty() {
            return Err(PathError::empty_name(above));
        }
        let path = format!("{above}/{}", escape(name, above.is_empty()));
        if path.len() > MAX_PATH_BYTES {
            let start = path.chars().take(40).collect();
            return Err(PathError::TooLong { bytes: path.len(), max: MAX_PATH_BYTES, start });
        }
        Ok(LockPath(path))
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path of a child. `name` must come from a listing of this path or from a node format.
    pub fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    /// Returns the path of the node above; `None` if that is the root.
    pub fn parent(&self) -> Option<&str> {
        self.0.rfind('/').filter(|&at| at > 0).map(|at| &self.0[..at])
    }
}

/// Escapes a name for a path; see [`LockPath::join`]. No node format has a `%` in its names, so an escaped name is never a
/// contender's.
fn escape(name: &str, at_root: bool) -> String {
    let dots = matches!(name, "." | "..");
    let reserved = at_root && matches!(name, "zookeeper" | "lockkeeper");
    let taken = reserved || NodeFormat::of_line(&[name]).is_some();
    let mut escaped = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        if matches!(c, '%' | '/') || !storable(c) || dots || taken && at == 0 {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                write!(escaped, "%{byte:02X}").expect("a string takes any text");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
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

impl AsRef<str> for LockPath {
    fn as_ref(&self) -> &str {
        &self.0
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

    const UUID: &str = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d";

    /// Returns a name of each kind of node that counts in a queue, in every node format, also with numbers after the wrap.
    fn contenders() -> Vec<String> {
        let number = ["0000000000", "0000004711", "2147483647", "-2147483648", "-000000005"];
        let prefixes = [
            format!("_c_{UUID}-lock-"),
            format!("_c_{UUID}-d30000-lock-"),
            format!("_c_{UUID}-__READ__"),
            format!("_c_{UUID}-permits-3-"),
            "__WRIT__".to_owned(),
            "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__".to_owned(),
            "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__rlock__".to_owned(),
            "lock-".to_owned(),
            "read-".to_owned(),
            "write-".to_owned(),
            "A-".to_owned(),
            "backup-".to_owned(),
            "BACKGROUND-".to_owned(),
            "FG_B-".to_owned(),
        ];
        let numbered = prefixes.iter().flat_map(|prefix| number.map(|number| format!("{prefix}{number}")));
        numbered.chain(["privateLock".to_owned(), format!("_s_{UUID}-x-d30000")]).collect()
    }

    #[test]
    fn a_component_that_reads_as_a_contender_is_refused_wherever_it_stands() {
        for name in contenders() {
            for (path, above) in
                [(format!("/{name}"), "/"), (format!("/a/b/{name}"), "/a/b"), (format!("/a/{name}/b"), "/a")]
            {
                let error = LockPath::parse(&path).expect_err(&path);
                assert!(
                    matches!(&error, PathError::Contender { component, above: message, .. }
                        if *component == name && message == above),
                    "{error:?}"
                );
                let message = error.to_string();
                let component = format!("has the component {name:?}");
                assert!(message.contains(&component) && message.contains(" instead"), "{message}");
                assert_eq!(LockPath::parse_node(&path).map(|path| path.to_string()), Ok(path));
            }
        }
    }

    #[test]
    fn names_that_no_format_reads_stay_allowed() {
        for name in [
            "nightly-2024",
            "lock-1",
            "a-b",
            "lock-000000001",
            "lock-00000000000",
            "lock-9999999999",
            "2024010112",
            "nightly backups-2024010112",
            "a-b-0000000001",
            "abcdefghijklmnopqrstuvwxyz0123456-0000000001",
            "_c_x-lock-0000000000",
            "privatelock",
            "lock-0000000000.json",
            "read--0000000001",
        ] {
            let path = format!("/a/{name}");
            assert_eq!(LockPath::parse(&path).map(|path| path.to_string()), Ok(path.clone()));
            let joined = LockPath::parse("/a").and_then(|above| above.join(name));
            assert_eq!(joined.map(|path| path.to_string()), Ok(path));
        }
    }

    #[test]
    fn the_own_tree_is_not_to_be_locked_and_can_be_looked_at() {
        for path in ["/lockkeeper", "/lockkeeper/locks/x"] {
            assert_eq!(LockPath::parse(path), Err(PathError::OwnTree { path: path.to_owned() }));
            assert!(LockPath::parse_node(path).is_ok(), "{path}");
        }
        for path in ["/lockkeepers", "/a/lockkeeper", "/locks/lockkeeper"] {
            assert!(LockPath::parse(path).is_ok(), "{path}");
        }
    }

    fn unescape(component: &str) -> String {
        let (mut bytes, mut rest) = (Vec::new(), component.as_bytes());
        while let [first, after @ ..] = rest {
            (rest, _) = match (*first, after) {
                (b'%', [high, low, after @ ..]) => {
                    let digits = [*high, *low];
                    let digits = std::str::from_utf8(&digits).expect("ASCII");
                    (after, bytes.push(u8::from_str_radix(digits, 16).expect("two digits")))
                }
                (byte, after) => (after, bytes.push(byte)),
            };
        }
        String::from_utf8(bytes).expect("whole characters were escaped")
    }

    #[test]
    fn a_joined_name_is_one_component_and_reads_back() {
        let above = LockPath::parse("/a").expect("valid");
        let mut names = contenders();
        names.extend(
            [
                ".",
                "..",
                "...",
                "a/b",
                "/",
                "%",
                "50%",
                "%2F",
                "a\0b",
                "\u{85}",
                "\u{e000}",
                "😀",
                "ä b",
                "zookeeper",
                "lockkeeper",
            ]
            .map(str::to_owned),
        );
        for name in names {
            for joined in [above.join(&name), LockPath::at_root(&name)] {
                let joined = joined.expect(&name);
                assert_eq!(LockPath::parse(joined.as_str()).as_ref(), Ok(&joined), "{name:?}");
                let (_, component) = joined.as_str().rsplit_once('/').expect("absolute");
                assert_eq!(unescape(component), name);
            }
        }
        let empty = above.join("").expect_err("it has no name").to_string();
        assert_eq!(empty, "the name of a lock below \"/a\" is empty; choose one, like nightly");
        assert_eq!(LockPath::at_root(""), Err(PathError::EmptyName { above: "/".to_owned() }));
        assert!(matches!(above.join(&"x".repeat(MAX_PATH_BYTES)), Err(PathError::TooLong { .. })));
    }

    #[test]
    fn a_plain_name_stays_as_it_is_or_is_refused() {
        let plain = |base, name| LockPath::plain(base, name).map(|path| path.to_string());
        assert_eq!(plain("/a", "50%"), Ok("/a/50%".to_owned()));
        assert_eq!(plain("/a/", "lock-"), Ok("/a/lock-".to_owned()));
        assert_eq!(plain("/", "b"), Ok("/b".to_owned()));
        assert_eq!(plain("/a/", ""), Err(PathError::EmptyName { above: "/a".to_owned() }));
        assert_eq!(plain("/a", "b/c"), Err(PathError::SlashInName { name: "b/c".to_owned() }));
        for (base, name) in [("/a", ""), ("/a", ".."), ("a", "b"), ("/a//b", "c"), ("/a", "lock-0000000000")] {
            assert!(plain(base, name).is_err(), "{base:?} {name:?}");
        }
    }

    #[test]
    fn parent_of_a_top_level_lock_is_nothing() {
        assert_eq!(LockPath::parse("/a").expect("valid").parent(), None);
        assert_eq!(LockPath::parse("/a/b/c").expect("valid").parent(), Some("/a/b"));
    }
}
