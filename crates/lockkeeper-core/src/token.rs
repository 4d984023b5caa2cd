//! Numbers that the server hands out: transaction ids, session ids, and the fencing token made of the former.
//!
//! A fencing token is the zxid of the transaction that made the hold effective. It is never a sequence number, because the
//! sequence restarts when a parent is removed and created again. It is not the session id, which is not ordered (Junqueira,
//! "Note on fencing and distributed locks", 2016). The zxid grows for the life of the ensemble, across leader changes. An
//! ensemble that was rebuilt does not know the zxids of the ensemble before it; the [`TokenEpoch`] makes up for that. Both
//! together are one number, because databases, shells and other programs compare tokens. These have integers and know nothing
//! of Lockkeeper.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The id of a transaction: unique and growing over all transactions of one ensemble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Zxid(pub i64);

/// The id of a session. Not ordered: a larger one is not a later one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub i64);

impl SessionId {
    /// What servers state as the owner of a node that dies with no session.
    pub const NONE: SessionId = SessionId(0);

    /// Whether this is no session: the owner of a persistent node (0) or of a container (`i64::MIN`).
    ///
    /// The owner of a node with a time to live has 0xff in its highest byte. The sessions of a server with the id 255 have it too
    /// (ZooKeeper's `EphemeralType`), and a session must not be taken for none. So such a node counts until the server removes
    /// it.
    pub const fn is_none(self) -> bool {
        matches!(self.0, 0 | i64::MIN)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which life of an ensemble a token is of: 0 until an operator says otherwise, after it was rebuilt empty or restored.
///
/// Each is worth 2^48 transaction ids, which are 65 536 elections of a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct TokenEpoch(u16);

/// How many of a token's bits are below those of the epoch.
const EPOCH_SHIFT: u32 = 48;

impl TokenEpoch {
    /// The last one there is: a token stays below 2^63.
    pub const MAX: TokenEpoch = TokenEpoch(i16::MAX as u16);

    /// The epoch of this number; `None` beyond [`TokenEpoch::MAX`].
    pub fn new(number: u32) -> Option<Self> {
        u16::try_from(number).ok().map(TokenEpoch).filter(|epoch| *epoch <= Self::MAX)
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// The epoch of a token.
    pub const fn of(token: FencingToken) -> Self {
        // A token is below 2^63. One that has outgrown the room of its epoch counts to the next.
        TokenEpoch((token.0 >> EPOCH_SHIFT) as u16)
    }

    /// An epoch all of whose tokens are greater than `token`: the next one. `None` if there is none.
    pub fn above(token: FencingToken) -> Option<Self> {
        // Rounded down and one more: also where a token has outgrown the room of its epoch.
        Self::new(Self::of(token).get() + 1)
    }
}

/// The number is beyond the last epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no epoch: they go from 0 to 32767")]
pub struct EpochError(u32);

impl TryFrom<u32> for TokenEpoch {
    type Error = EpochError;

    fn try_from(number: u32) -> Result<Self, EpochError> {
        Self::new(number).ok_or(EpochError(number))
    }
}

impl From<TokenEpoch> for u32 {
    fn from(epoch: TokenEpoch) -> u32 {
        epoch.get()
    }
}

impl fmt::Display for TokenEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number that grows with every grant of a lock path: hand it to the resource, and let the resource refuse smaller ones.
///
/// Strictly greater than the token of every earlier grant of the same path, during the life of one ensemble. It is so beyond that
/// life once an operator has raised the [`TokenEpoch`] of an ensemble that was rebuilt or restored. Always positive, and it fits
/// a signed 64-bit column. What keeps numbers in floating point (JavaScript, awk) is exact below 2^53, which is epoch 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(i64);

impl FencingToken {
    /// The token of a hold that the transaction `zxid` made effective, in epoch 0.
    #[doc(hidden)]
    pub const fn from_zxid(zxid: Zxid) -> Self {
        FencingToken(zxid.0)
    }

    /// What is left of it without its epoch, to compare tokens of which either may lack the epoch.
    #[must_use]
    pub const fn below_epoch(self) -> i64 {
        self.0 << (i64::BITS - EPOCH_SHIFT)
    }

    /// The same hold's token in an epoch, the token being of epoch 0.
    #[must_use]
    pub const fn in_epoch(self, epoch: TokenEpoch) -> Self {
        // Added, not concatenated: a zxid that has outgrown its 48 bits continues to grow. The sum cannot overflow
        // before the last epoch is outgrown. From then on a token no longer grows: no check rejects it, but it
        // overtakes no other.
        FencingToken(self.0.saturating_add((epoch.0 as i64) << EPOCH_SHIFT))
    }

    /// The token as the number to send to a resource; it fits a signed 64-bit column.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The same as [`FencingToken::get`].
impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> i64 {
        token.0
    }
}

/// The text or number is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fencing token: 1 to 19 digits without a leading zero, below 2^63")]
pub struct TokenError(String);

/// Strict: text that is not exactly as [`FencingToken`] prints it is an error. A receiver that accepted it would fence with a
/// number that was never granted.
impl FromStr for FencingToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let is_plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_plain);
        // Only its start: it may be any text that a client sent.
        number.map(FencingToken).ok_or_else(|| TokenError(text.chars().take(40).collect()))
    }
}

/// For receivers that read it back from a column.
impl TryFrom<i64> for FencingToken {
    type Error = TokenError;

    fn try_from(number: i64) -> Result<Self, TokenError> {
        if number > 0 { Ok(FencingToken(number)) } else { Err(TokenError(number.to_string())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: i64) -> FencingToken {
        FencingToken::try_from(number).unwrap()
    }

    #[test]
    fn a_token_is_read_as_it_is_written_and_nothing_else_is_one() {
        for number in [1, 4_294_967_296, i64::MAX] {
            assert_eq!(number.to_string().parse(), Ok(token(number)));
            assert_eq!(i64::from(token(number)), number);
        }
        for text in ["", "0", "-1", "+1", "01", " 1", "1 ", "1.0", "0x1", "１", "9223372036854775808", "1\n2"] {
            assert_eq!(text.parse::<FencingToken>(), Err(TokenError(text.to_owned())));
        }
        assert!(FencingToken::try_from(0).is_err() && FencingToken::try_from(-1).is_err());
    }

    #[test]
    fn a_later_epochs_tokens_are_above_all_of_the_epochs_before() {
        let first = FencingToken::from_zxid(Zxid(1));
        for old in [1, (1 << 48) - 1, 1 << 48, 5 << 48, (5 << 48) + 7, i64::MAX - (1 << 48)] {
            let epoch = TokenEpoch::above(token(old)).unwrap();
            assert!(first.in_epoch(epoch) > token(old), "{old}");
        }
        assert_eq!(first.in_epoch(TokenEpoch::default()), first);
        assert_eq!(TokenEpoch::above(token(i64::MAX)), None);
        assert_eq!(TokenEpoch::new(32_768), None);
        assert_eq!(TokenEpoch::try_from(7).map(u32::from), Ok(7));
        assert_eq!(TokenEpoch::new(7).map(|epoch| epoch.to_string()).as_deref(), Some("7"));
        assert!(first.in_epoch(TokenEpoch::MAX) > first);
    }
}
