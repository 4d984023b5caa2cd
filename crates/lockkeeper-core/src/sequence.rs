//! The number ZooKeeper appends to a sequential node, and the order of such numbers across their wrap.
//!
//! The server counts the creates under one parent in a signed 32-bit integer and prints it with `%010d`, negative too
//! (ZOOKEEPER-4706, kazoo #730). After 2^31 creates the next number is −2147483648. Text order, `parse::<u32>` and plain
//! integer order all fail there. So order is serial-number order: the later number is ahead on the circle, within half of it.

use std::fmt;

/// The sequence number of a node: where its create stands among all creates under the same parent.
///
/// Not `Ord`: on a circle there is no total order of arbitrary numbers. A [`Queue`](crate::Queue) orders a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence(i32);

impl Sequence {
    /// The number as the server counts it.
    pub const fn new(count: i32) -> Self {
        Sequence(count)
    }

    /// The number as the server counts it.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// Reads a text that is a number as the server prints it, and nothing else.
    pub fn read(text: &str) -> Option<Sequence> {
        let sequence = Sequence(text.parse().ok()?);
        (sequence.to_string() == text).then_some(sequence)
    }

    /// Splits a node's name into what was asked for and the number the server appended.
    ///
    /// `None` if the name does not end as `%010d` prints: ten digits, or a minus and nine or ten of them. Nineteen
    /// digits (the 64-bit proposal of ZOOKEEPER-4706) are refused too, not cut: half of a number is another number.
    pub fn split(name: &str) -> Option<(&str, Sequence)> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let negative = name.len() > digits && name.as_bytes()[name.len() - digits - 1] == b'-';
        // "lock-0000000001" ends in a minus and ten digits too. The minus is a sign only where the number needs it: a
        // negative number of nine digits cannot be positive (`%010d` would have padded it), and one of ten digits is
        // at least 1000000000, which after a sign means −1000000000 or less.
        let start = match digits {
            9 if negative => name.len() - 10,
            10 if negative && !Self::minus_belongs_to_prefix(name) => name.len() - 11,
            10 => name.len() - 10,
            _ => return None,
        };
        let (prefix, number) = name.split_at(start);
        // A server counts to zero, never to minus zero.
        number.parse().ok().filter(|count| *count != 0 || digits == 10).map(|count| (prefix, Sequence(count)))
    }

    /// Returns the number of a contender's node, by its name in a queue. Beside the lock's path, the name is the number alone.
    pub fn of_node(name: &str) -> Option<Sequence> {
        Self::read(name).or_else(|| Self::split(name).map(|(_, sequence)| sequence))
    }

    /// Whether the minus before ten final digits ends the prefix (`lock-0000000001`) instead of signing the number.
    fn minus_belongs_to_prefix(name: &str) -> bool {
        let digits = &name[name.len() - 10..];
        let prefix = &name[..name.len() - 11];
        // A sign follows the prefix's own last character, which for every node format with a minus is that minus
        // ("lock--2147483648") or an underscore ("__lock__-2147483648").
        let follows_prefix = prefix.ends_with(['-', '_']) && digits.as_bytes()[0] != b'0';
        // Only the smallest number has more digits than fit without its sign: "nightly-2147483648".
        let signed = follows_prefix || digits.parse::<i32>().is_err();
        !signed
    }
}

/// As the server prints it: `%010d`.
impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_print_as_the_server_prints_them() {
        assert_eq!(Sequence(7).to_string(), "0000000007");
        assert_eq!(Sequence(i32::MAX).to_string(), "2147483647");
        assert_eq!(Sequence(i32::MIN).to_string(), "-2147483648");
        // Java's %010d counts the sign into the width.
        assert_eq!(Sequence(-5).to_string(), "-000000005");
    }

    /// D-15: also where the name is the number alone, and its minus is a sign.
    #[test]
    fn a_node_has_its_number_in_every_format() {
        for count in [0, 1, 999_999_999, 1_000_000_000, i32::MAX, i32::MIN, i32::MIN + 1, -1, -1_000_000_000] {
            for prefix in ["", "lock-", "__lock__", "A-"] {
                let name = format!("{prefix}{}", Sequence(count));
                assert_eq!(Sequence::of_node(&name), Some(Sequence(count)), "{name}");
            }
        }
        assert_eq!(Sequence::of_node("config"), None);
    }

    #[test]
    fn every_suffix_splits_off_again() {
        for count in [0, 1, 41, 999_999_999, 1_000_000_000, i32::MAX, i32::MIN, i32::MIN + 1, -1, -5, -1_000_000_000] {
            for prefix in ["lock-", "_c_x-lock-", "__lock__", "A-", "__READ__"] {
                let name = format!("{prefix}{}", Sequence(count));
                assert_eq!(Sequence::split(&name), Some((prefix, Sequence(count))), "{name}");
            }
        }
    }

    /// After a lock's own name, nothing tells whether the minus of other numbers is a sign.
    #[test]
    fn the_smallest_number_splits_off_any_name() {
        assert_eq!(Sequence::split("nightly-2147483648"), Some(("nightly", Sequence(i32::MIN))));
        assert_eq!(Sequence::split("nightly-2147483647"), Some(("nightly-", Sequence(i32::MAX))));
        assert_eq!(Sequence::split("nightly-2147483649"), None);
    }

    #[test]
    fn a_number_alone_reads_back() {
        for count in [0, 41, 999_999_999, i32::MAX, i32::MIN, -1, -5] {
            assert_eq!(Sequence::read(&Sequence(count).to_string()), Some(Sequence(count)));
        }
        for text in ["", "1", "+000000001", "00000000001", "-0000000005", "-000000000", "9999999999", "x0000000001"] {
            assert_eq!(Sequence::read(text), None, "{text}");
        }
    }

    #[test]
    fn an_invalid_suffix_is_refused() {
        for name in [
            "",
            "-",
            "lock-",
            "lock-1",
            "lock-000000001x",
            "lock-00000000000",
            "lock-0000000000000000001",
            "lock--000000000",
            "é",
        ] {
            assert_eq!(Sequence::split(name), None, "{name}");
        }
        // Ten digits that do not fit 32 bits were never printed by a server.
        assert_eq!(Sequence::split("lock-9999999999"), None);
    }
}
