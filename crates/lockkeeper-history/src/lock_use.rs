//! In which way a lock is used.

use std::fmt;
use std::str::FromStr;

use lockkeeper::admin::LockInfo;
use lockkeeper::{Class, NodeFormat};
use serde::{Serialize, Serializer};

/// In which way a lock is used. Contenders that use it in different ways do not exclude each other, or are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockUse {
    /// Exclusively, or shared by readers, with nodes in this node format.
    Plain(NodeFormat),
    /// With this number of permits.
    Permits(u32),
    /// With classes; this is the class of the one that is described.
    Class(Class),
    /// As a leased lock.
    Lease,
}

/// The node formats, as the command's option `--format` names them.
const FORMATS: [(&str, NodeFormat); 5] = [
    ("curator", NodeFormat::Curator),
    ("recipe", NodeFormat::Recipe),
    ("kazoo", NodeFormat::Kazoo),
    ("leader-latch", NodeFormat::LeaderLatch),
    ("numbered", NodeFormat::Numbered),
];

impl LockUse {
    /// Returns how the contenders of this moment use a lock; `None` if it has none, and for the semaphore of a foreign client, which no
    /// other lock joins.
    pub fn of(lock: &LockInfo) -> Option<Self> {
        if lock.semaphore.is_some() {
            return None;
        }
        if lock.lease.is_some() {
            return Some(LockUse::Lease);
        }
        if let Some(permits) = lock.permits {
            return Some(LockUse::Permits(permits));
        }
        let mut all = lock.holders.iter().chain(&lock.waiters);
        let class = all.clone().find_map(|contender| contender.class);
        class.map(LockUse::Class).or_else(|| all.find_map(|contender| Self::of_node(&contender.node)))
    }

    /// Returns how the contender with this node uses its lock, by the name of the node; `None` if the name does not say it.
    pub fn of_node(name: &str) -> Option<Self> {
        let format = NodeFormat::of_node(name);
        let mode = format.parse(name)?.mode;
        match (mode.class(), mode.permits()) {
            (Some(class), _) => Some(LockUse::Class(class)),
            // The name says only how many it takes.
            (None, Some(_)) => None,
            (None, None) => Some(LockUse::Plain(format)),
        }
    }

    /// Returns in which way all of these use a lock, the newest first: that of the newest. `None` if there are none, or if one of them
    /// uses it in another way: then nothing shows which is right.
    pub fn agreed(uses: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut uses = uses.into_iter();
        let newest = uses.next()?;
        uses.all(|other| newest.is_same_way(other)).then_some(newest)
    }

    fn is_same_way(self, other: Self) -> bool {
        self == other || matches!((self, other), (LockUse::Class(_), LockUse::Class(_)))
    }
}

/// `kazoo`, `3 permits`, `class B`, `lease`
impl fmt::Display for LockUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockUse::Plain(format) => {
                let name = FORMATS.iter().find(|(_, known)| known == format).map_or("curator", |(name, _)| name);
                f.write_str(name)
            }
            LockUse::Permits(permits) => write!(f, "{permits} permits"),
            LockUse::Class(class) => write!(f, "class {class}"),
            LockUse::Lease => f.write_str("lease"),
        }
    }
}

/// A text that names no way to use a lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no way to use a lock")]
pub struct InvalidLockUse {
    /// The text.
    pub text: String,
}

impl FromStr for LockUse {
    type Err = InvalidLockUse;

    fn from_str(text: &str) -> Result<Self, InvalidLockUse> {
        let class = || text.strip_prefix("class ").and_then(|class| class.parse().ok()).map(LockUse::Class);
        let permits = || text.strip_suffix(" permits").and_then(|count| count.parse().ok()).map(LockUse::Permits);
        let plain = || FORMATS.iter().find(|(name, _)| *name == text).map(|(_, format)| LockUse::Plain(*format));
        let lease = (text == "lease").then_some(LockUse::Lease);
        lease.or_else(plain).or_else(permits).or_else(class).ok_or_else(|| InvalidLockUse { text: text.to_owned() })
    }
}

impl Serialize for LockUse {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_read_as_it_is_printed() {
        let plain = FORMATS.iter().map(|(_, format)| LockUse::Plain(*format));
        let others = [LockUse::Permits(3), LockUse::Class(Class::BACKGROUND), LockUse::Lease];
        for used_as in plain.chain(others) {
            assert_eq!(used_as.to_string().parse(), Ok(used_as));
        }
        for bad in ["", "permits", "x permits", "class ", "class a b", "Kazoo", "mutex"] {
            assert!(bad.parse::<LockUse>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_name_of_a_node_says_how_its_lock_is_used() {
        let id = "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d";
        let uuid = "6a58ee75-b8ac-4f38-a22d-2a2b3cf6e4f8";
        let plain = |format| Some(LockUse::Plain(format));
        for (name, used_as) in [
            (format!("{id}__lock__0000000001"), plain(NodeFormat::Kazoo)),
            (format!("{id}__rlock__0000000001"), plain(NodeFormat::Kazoo)),
            (format!("_c_{uuid}-lock-0000000001"), plain(NodeFormat::Curator)),
            (format!("_c_{uuid}-latch-0000000001"), plain(NodeFormat::LeaderLatch)),
            ("0000000001".to_owned(), plain(NodeFormat::Numbered)),
            ("B-0000000001".to_owned(), Some(LockUse::Class(Class::BACKGROUND))),
            (format!("_c_{uuid}-permits-1-0000000001"), None),
            ("privateLock".to_owned(), None),
            ("readme".to_owned(), None),
        ] {
            assert_eq!(LockUse::of_node(&name), used_as, "{name}");
        }
    }

    #[test]
    fn a_use_is_sure_only_if_all_that_is_known_agrees() {
        let (curator, kazoo) = (LockUse::Plain(NodeFormat::Curator), LockUse::Plain(NodeFormat::Kazoo));
        let (one, other) = (LockUse::Class(Class::BACKGROUND), LockUse::Class(Class::FOREGROUND));
        assert_eq!(LockUse::agreed([kazoo, kazoo]), Some(kazoo));
        assert_eq!(LockUse::agreed([one, other]), Some(one));
        assert_eq!(LockUse::agreed([kazoo, curator]), None);
        assert_eq!(LockUse::agreed([]), None);
    }
}
