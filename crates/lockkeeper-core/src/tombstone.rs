//! Lock delay: after a loss, the lock stays unavailable for a while.
//!
//! A disconnected holder may still be at work, or its last write on the way, when the lock is free again. If that would
//! do harm and the resource cannot check tokens, the next contender waits for a while (Burrows, "The Chubby lock
//! service", section 2.4). After a release it is granted immediately.
//!
//! A contender distinguishes a loss from a release as follows. Before a hold begins, the holder creates a second node
//! that does not end with the session, its *tombstone*. A release deletes both in one transaction. So a tombstone
//! without its holder's node shows, in every later listing, that the hold was abandoned. It is then first in the queue,
//! like a contender. The contender that it blocks deletes it when the delay has passed since that contender first saw
//! it. (The delay is not counted from the loss: no server records the time of a loss, and a longer wait does no harm.)

use std::fmt;
use std::time::Duration;

use crate::{AttemptId, Mode};

/// How long the lock stays unavailable after a loss: 1 ms to 1 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockDelay(u32);

impl LockDelay {
    /// The shortest.
    pub const MILLISECOND: LockDelay = LockDelay(1);
    /// The longest: a mistake should not close a lock for a day.
    pub const MAX: Duration = Duration::from_secs(3600);

    /// A delay, to the millisecond above; `None` where it is none, or over an hour.
    pub fn new(delay: Duration) -> Option<Self> {
        let millis = delay.as_nanos().div_ceil(1_000_000);
        u32::try_from(millis).ok().filter(|millis| *millis > 0 && delay <= Self::MAX).map(LockDelay)
    }

    /// As a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }

    /// Reads `d30000-…` exactly as printed.
    pub(crate) fn split(text: &str) -> Option<(Self, &str)> {
        let (word, rest) = text.split_once('-')?;
        Some((Self::read(word)?, rest))
    }

    fn read(word: &str) -> Option<Self> {
        let digits = word.strip_prefix('d')?;
        let canonical = !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        Self::new(Duration::from_millis(digits.parse().ok().filter(|_| canonical)?))
    }
}

/// `d30000`
impl fmt::Display for LockDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "d{}", self.0)
    }
}

/// The content of a tombstone's name.
///
/// `_s_<uuid>-x-d30000`: no foreign client has names of this shape. By its first letter, Curator orders it behind all
/// contenders, so it does not block Curator's own; Kazoo does not count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tombstone {
    /// The attempt whose hold it belongs to.
    pub id: AttemptId,
    /// What the attempt held.
    pub mode: Mode,
    /// The delay, which starts once the hold is abandoned.
    pub delay: LockDelay,
}

const MARK: &str = "_s_";

impl Tombstone {
    /// The node's name; `None` if a hold in this mode leaves no tombstone.
    pub fn name(&self) -> Option<String> {
        Some(format!("{MARK}{}-{}-{}", self.id, self.mode.letters()?, self.delay))
    }

    /// Reads a child's name; exactly as printed, so that one name is read one way.
    pub fn read(name: &str) -> Option<Self> {
        let (id, rest) = name.strip_prefix(MARK)?.split_at_checked(AttemptId::LEN)?;
        let (held, delay) = rest.strip_prefix('-')?.split_once('-')?;
        let read = Tombstone { id: id.parse().ok()?, mode: Mode::from_letters(held)?, delay: LockDelay::read(delay)? };
        (read.name().as_deref() == Some(name)).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeFormat;

    const ID: AttemptId = AttemptId::new(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

    fn delay(millis: u64) -> LockDelay {
        LockDelay::new(Duration::from_millis(millis)).expect("in range")
    }

    #[test]
    fn delays_are_read_as_they_are_printed() {
        assert_eq!(LockDelay::split("d30000-lock-"), Some((delay(30_000), "lock-")));
        for bad in ["d0-", "d030-", "d-", "30-", "d3600001-", "d+3-", "d30", "d99999999999-"] {
            assert_eq!(LockDelay::split(bad), None, "{bad}");
        }
        assert_eq!(LockDelay::new(Duration::ZERO), None);
        assert_eq!(LockDelay::new(LockDelay::MAX + Duration::from_nanos(1)), None);
        assert_eq!(LockDelay::new(Duration::from_micros(1)), Some(delay(1)), "never shorter than asked for");
    }

    #[test]
    fn contenders_say_their_delay_where_other_makers_do_not_look() {
        let prefix = NodeFormat::Curator.prefix_with(Mode::Exclusive, ID, Some(delay(30_000))).expect("has room");
        assert_eq!(prefix, format!("_c_{ID}-d30000-lock-"));
        let name = NodeFormat::Curator.parse(&format!("{prefix}0000000007")).expect("is ours");
        assert_eq!((name.id, name.mode, name.delay), (Some(ID), Mode::Exclusive, Some(delay(30_000))));
        for other in [NodeFormat::Recipe, NodeFormat::Kazoo, NodeFormat::Contentserv] {
            assert_eq!(other.prefix_with(Mode::Exclusive, ID, Some(delay(1))), None);
        }
    }

    #[test]
    fn tombstones_read_back_and_are_no_contenders() {
        for mode in [Mode::Exclusive, Mode::Write, Mode::Read, Mode::Permits(3)] {
            let tombstone = Tombstone { id: ID, mode, delay: delay(1_500) };
            let name = tombstone.name().expect("has one");
            assert_eq!(NodeFormat::Curator.tombstone(&name), Some(tombstone), "{name}");
            for node_format in NodeFormat::ALL {
                assert_eq!(node_format.parse(&name), None, "{name}");
            }
            // Curator looks for these in any child's name, and takes what follows for its number.
            assert!(!["lock-", "__READ__", "__WRIT__"].iter().any(|marker| name.contains(marker)), "{name}");
            assert!(name.as_str() > "9999999999", "sorted before Curator's numbers, it would block its clients");
        }
        for bad in ["_s_", "_s_x", &format!("_s_{ID}-p0-d1"), &format!("_s_{ID}-x-d01"), &format!("_s_{ID}-x-d1-")] {
            assert_eq!(Tombstone::read(bad), None, "{bad}");
        }
    }
}
