//! The identity of one attempt.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The id of one attempt to enter a queue, written into the node's name or data.
///
/// It outlives a lost reply. After a connection loss, the attempt looks for its own id before it creates again
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

    pub(crate) const fn bits(self) -> u128 {
        self.0
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
    pub(crate) const LEN: usize = 36;

    /// One pass and no allocation: a long queue's listing has thousands of these.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const ID: AttemptId = AttemptId::new(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

    #[test]
    fn ids_read_back_as_printed() {
        assert_eq!(ID.to_string(), "01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!(format!("{ID:?}"), ID.to_string(), "in failures of tests and in logs, too");
        assert_eq!(ID.to_string().parse(), Ok(ID));
        assert_eq!("01234567-89AB-CDEF-0123-456789ABCDEF".parse(), Ok(ID));
        for bad in ["", "01234567", "01234567-89ab-cdef-0123-456789abcdeg", "0123456789abcdef0123456789abcdef----"] {
            assert!(bad.parse::<AttemptId>().is_err(), "{bad}");
        }
    }
}
