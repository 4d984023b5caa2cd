//! Dialects: how the nodes of one lock path are named, and which of its children count.
//!
//! A path has one dialect, shared by all who use it, so that a Rust, a Java and a Python client stand in one queue.
//! Children of another shape are never counted: a foreign node must not block a lock for ever, nor be deleted by it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::Sequence;

/// The id of one attempt to enter a queue, written into the node's name or data.
///
/// It outlives a lost reply: after a connection loss the attempt looks for its own id before it creates again
/// (ZooKeeper's recipes, "Recoverable Errors and the GUID"). A new session takes a new id, so that a dying node of the
/// old one is never taken for ours (CURATOR-498).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(u128);

/// Not a uuid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not an attempt's id: expected 32 hexadecimal digits in groups of 8-4-4-4-12")]
pub struct ParseIdError(String);

impl AttemptId {
    /// An id of these bits; the caller sees to it that they are unique (a random uuid's are).
    pub const fn new(bits: u128) -> Self {
        AttemptId(bits)
    }
}

/// As a uuid: lower case, hyphenated.
impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0;
        let (p1, p2, p3) = (b >> 96, (b >> 80) & 0xffff, (b >> 64) & 0xffff);
        write!(f, "{p1:08x}-{p2:04x}-{p3:04x}-{:04x}-{:012x}", (b >> 48) & 0xffff, b & 0xffff_ffff_ffff)
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for AttemptId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        Self::read(text.as_bytes()).ok_or_else(|| ParseIdError(text.chars().take(60).collect()))
    }
}

impl AttemptId {
    const LEN: usize = 36;

    /// One pass and no allocation: a long queue's listing has thousands of these.
    fn read(text: &[u8]) -> Option<Self> {
        if text.len() != Self::LEN {
            return None;
        }
        let mut bits = 0u128;
        for (i, byte) in text.iter().enumerate() {
            if let 8 | 13 | 18 | 23 = i {
                if *byte != b'-' {
                    return None;
                }
                continue;
            }
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                b'A'..=b'F' => byte - b'A' + 10,
                _ => return None,
            };
            bits = bits << 4 | u128::from(digit);
        }
        Some(AttemptId(bits))
    }
}

/// What a contender asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Nobody beside me.
    Exclusive,
    /// Other readers beside me, no writer.
    Read,
    /// This many of the path's permits.
    Permits(u32),
    /// Nobody beside me; a lower class goes first.
    Class(u8),
}

/// How the nodes of one path are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `_c_<uuid>-lock-0000000001`, `_c_<uuid>-__READ__…`, `_c_<uuid>-__WRIT__…`: Apache Curator's, and ours.
    ///
    /// Protected: the attempt's id is in the name, so a node whose create reply was lost is found by one listing.
    #[default]
    Curator,
    /// `lock-0000000001`, `read-…`, `write-…`: ZooKeeper's recipe document, as plain clients write it.
    ///
    /// Not protected: an attempt recognises its own node by the data only, and a name may be used again after the parent
    /// was recreated. So looking for an own node costs one read a candidate, and a release one read more.
    Recipe,
}

/// A child's name, read in a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeName {
    /// The attempt that made the node, where the name tells.
    pub id: Option<AttemptId>,
    /// What it asks for.
    pub mode: Mode,
    /// Its place among all creates under the parent.
    pub sequence: Sequence,
}

const PROTECTION: &str = "_c_";

impl Dialect {
    /// Whether a name carries its attempt's id and is therefore never used twice.
    pub const fn protects(self) -> bool {
        matches!(self, Dialect::Curator)
    }

    /// The markers of this dialect, each with what it asks for.
    const fn markers(self) -> &'static [(&'static str, Mode)] {
        match self {
            Dialect::Curator => &[("lock-", Mode::Exclusive), ("__WRIT__", Mode::Exclusive), ("__READ__", Mode::Read)],
            Dialect::Recipe => &[("lock-", Mode::Exclusive), ("write-", Mode::Exclusive), ("read-", Mode::Read)],
        }
    }

    /// The name to ask a sequential create for; the server appends the number.
    ///
    /// `None` if this dialect has no name for `mode`.
    pub fn prefix(self, mode: Mode, id: AttemptId) -> Option<String> {
        let (marker, _) = self.markers().iter().find(|(_, m)| *m == mode)?;
        Some(match self {
            Dialect::Curator => format!("{PROTECTION}{id}-{marker}"),
            Dialect::Recipe => (*marker).to_owned(),
        })
    }

    /// Reads a child's name. `None`: not of this dialect, never to be counted.
    ///
    /// Curator nodes count with and without protection: its own recipes sort by what follows the marker.
    pub fn parse(self, name: &str) -> Option<NodeName> {
        let (prefix, sequence) = Sequence::split(name)?;
        let (id, marker) = match (self, prefix.strip_prefix(PROTECTION)) {
            (Dialect::Curator, Some(rest)) => {
                let (id, rest) = rest.split_at_checked(AttemptId::LEN)?;
                (Some(AttemptId::read(id.as_bytes())?), rest.strip_prefix('-')?)
            }
            _ => (None, prefix),
        };
        let (_, mode) = self.markers().iter().find(|(m, _)| *m == marker)?;
        Some(NodeName { id, mode: *mode, sequence })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: AttemptId = AttemptId::new(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

    #[test]
    fn ids_read_back_as_printed() {
        assert_eq!(ID.to_string(), "01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!(ID.to_string().parse(), Ok(ID));
        assert_eq!("01234567-89AB-CDEF-0123-456789ABCDEF".parse(), Ok(ID));
        for bad in ["", "01234567", "01234567-89ab-cdef-0123-456789abcdeg", "0123456789abcdef0123456789abcdef----"] {
            assert!(bad.parse::<AttemptId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn printed_names_read_back() {
        for dialect in [Dialect::Curator, Dialect::Recipe] {
            for mode in [Mode::Exclusive, Mode::Read] {
                for count in [0, i32::MAX, i32::MIN, -5] {
                    let sequence = Sequence::new(count);
                    let name = format!("{}{sequence}", dialect.prefix(mode, ID).expect("both dialects name both"));
                    let id = dialect.protects().then_some(ID);
                    assert_eq!(dialect.parse(&name), Some(NodeName { id, mode, sequence }), "{name}");
                }
            }
        }
    }

    #[test]
    fn modes_without_a_name_have_none() {
        assert_eq!(Dialect::Recipe.prefix(Mode::Class(0), ID), None);
        assert_eq!(Dialect::Curator.prefix(Mode::Permits(2), ID), None);
    }
}
