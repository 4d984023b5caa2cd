//! The lines of the protocol, version 1. `docs/hold-protocol.md` describes them.

use lockkeeper::{Holding, Loss, Revocation};
use serde::{Deserialize, Serialize};

/// The version of the protocol that this crate speaks.
pub const PROTOCOL: u32 = 1;

/// The longest line that a client may write, in bytes, without its end.
pub const MAX_LINE: usize = 64 * 1024;

/// What a holder tells its client: one JSON object in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The first line.
    Hello {
        /// The version of the protocol.
        protocol: u32,
        /// The program that holds the lock, with its version.
        program: String,
        /// What the hold is bound to, for people, if it is not bound to this client.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bond: Option<String>,
        /// Whether the lock is not held yet. Only clients that come by a socket are told.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        waits: bool,
    },
    /// The lock is not held yet. It comes again when the queue ahead changes.
    Waiting {
        /// The lock that is waited for: one at a time.
        path: String,
        /// How many contenders are ahead.
        ahead: u64,
        /// Who holds it, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holder: Option<String>,
    },
    /// All locks are held.
    Acquired {
        /// Each lock, in the order of the paths.
        locks: Vec<HeldLock>,
        /// The only one, again.
        #[serde(flatten)]
        only: Option<HeldLock>,
        /// The timeout of the session that holds them, in milliseconds. A heartbeat is due each fifth of it.
        session_timeout_ms: u64,
        /// Until when the hold may be trusted, by [`now`](crate::now), in nanoseconds.
        valid_until_ns: u64,
    },
    /// A heartbeat was confirmed.
    Valid {
        /// Until when the hold may be trusted now.
        valid_until_ns: u64,
    },
    /// The servers do not answer. The hold may be trusted until the time that it was told last.
    Suspected {
        /// That time.
        valid_until_ns: u64,
    },
    /// The servers have confirmed that the locks are held: the answer to `check`.
    Checked {
        /// Until when the hold may be trusted now.
        valid_until_ns: u64,
    },
    /// Somebody asks for the lock.
    Asked {
        /// The lock.
        path: String,
        /// Who asks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Why, in their words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// A contender of an earlier class waits: the client may answer `make_way`.
    Wanted,
    /// The hold is to be released, as soon as those who use it have ended that and left. Only clients that come by a socket are told.
    Ending,
    /// The lock may be held by another contender. The last line.
    Lost {
        /// Why, as a word.
        why: String,
        /// Why, for people.
        message: String,
    },
    /// The locks are released, or the wait has ended. The last line.
    Released {
        /// If no server has confirmed that: when the lock will be free.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// The lock is not held, and will not be. The last line.
    Failed {
        /// Why, as a word.
        why: String,
        /// The exit status of the command.
        exit_code: u8,
        /// Why, for people.
        message: String,
        /// The remedy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
    /// A line of the client has no effect. Everything else goes on.
    Error {
        /// What is wrong with it.
        message: String,
        /// The remedy.
        hint: String,
    },
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// The lock's path.
    pub path: String,
    /// The node of this hold.
    pub node: String,
    /// The fencing token as a decimal number, because programs in JavaScript read a larger number than 2^53 inexactly. Permits have none.
    pub token: Option<String>,
}

impl From<&Holding> for HeldLock {
    fn from(holding: &Holding) -> Self {
        let token = holding.fencing_token().map(|token| token.to_string());
        HeldLock { path: holding.path().to_owned(), node: holding.node(), token }
    }
}

impl Event {
    /// Returns the first line of this program.
    pub(crate) fn hello(bond: Option<String>, waits: bool) -> Self {
        let program = format!("lockkeeper {}", env!("CARGO_PKG_VERSION"));
        Event::Hello { protocol: PROTOCOL, program, bond, waits }
    }

    pub(crate) fn acquired(locks: &[HeldLock], session_timeout_ms: u64, valid_until_ns: u64) -> Self {
        let only = match locks {
            [only] => Some(only.clone()),
            _ => None,
        };
        Event::Acquired { locks: locks.to_vec(), only, session_timeout_ms, valid_until_ns }
    }

    pub(crate) fn asked(path: &str, request: &Revocation) -> Self {
        let by = request.by.as_ref().map(ToString::to_string);
        Event::Asked { path: path.to_owned(), by, why: request.reason.clone() }
    }

    pub(crate) fn lost(loss: Loss) -> Self {
        Event::Lost { why: word(loss).to_owned(), message: loss.to_string() }
    }

    /// Whether no line follows.
    pub const fn is_last(&self) -> bool {
        matches!(self, Event::Lost { .. } | Event::Released { .. } | Event::Failed { .. })
    }

    /// Returns its line, with the end of the line.
    pub fn line(&self) -> String {
        line(self)
    }
}

/// Returns the word of the protocol for a loss.
const fn word(loss: Loss) -> &'static str {
    match loss {
        Loss::SessionExpired => "session_expired",
        Loss::Unreachable => "unreachable",
        Loss::Removed => "removed",
        Loss::AuthFailed | Loss::AuthRequired => "auth_failed",
        Loss::LeaseEnded => "lease_ended",
        Loss::Preempted => "preempted",
        _ => "other",
    }
}

/// What a client says: one JSON object in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Word {
    /// Releases the lock, or ends the wait for it.
    Release,
    /// Asks the servers whether the lock is held: one round trip.
    Check,
    /// Refuses the requests to release the lock.
    Refuse {
        /// Why; whoever asked reads it.
        why: String,
    },
    /// Makes way for a contender of an earlier class, and waits for the lock again.
    MakeWay,
    /// Of the client that has asked for a lock that is bound to something else: it knows of the grant, and the hold goes on without it.
    Keep,
}

impl Word {
    /// Returns its line, with the end of the line.
    pub fn line(&self) -> String {
        line(self)
    }
}

fn line(said: &impl Serialize) -> String {
    serde_json::to_string(said).expect("structs of texts and numbers always serialise") + "\n"
}

/// A line that is no word of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// What is wrong with it.
    pub message: String,
    /// The remedy.
    pub hint: String,
}

impl BadLine {
    pub(crate) fn too_long() -> Self {
        let message = format!("a line has more than {MAX_LINE} bytes");
        BadLine { message, hint: "write one JSON object in each line, and end the line with a newline".to_owned() }
    }
}

/// Reads a line of a client.
///
/// # Errors
///
/// It is no word of the protocol, or has more than [`MAX_LINE`] bytes.
pub fn parse(line: &[u8]) -> Result<Word, BadLine> {
    /// Characters of a line that an error repeats.
    const SHOWN: usize = 80;
    if line.len() > MAX_LINE {
        return Err(BadLine::too_long());
    }
    serde_json::from_slice(line).map_err(|error| {
        let shown: String = String::from_utf8_lossy(line).chars().take(SHOWN).collect();
        let (message, hint) = (
            format!("{shown:?} is no word of the protocol: {error}"),
            r#"write {"do": "release"}, {"do": "check"}, {"do": "refuse", "why": "TEXT"} or {"do": "make_way"}"#,
        );
        BadLine { message, hint: hint.to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_read_and_all_else_is_refused_with_its_text() {
        assert_eq!(parse(br#"{"do": "release"}"#), Ok(Word::Release));
        assert_eq!(parse(br#"{"do":"refuse","why":"busy"}"#), Ok(Word::Refuse { why: "busy".to_owned() }));
        // Fields of a later version.
        assert_eq!(parse(br#"{"do":"check","id":7}"#), Ok(Word::Check));
        for bad in [
            &b""[..],
            b"release",
            b"[]",
            br#"{"do":"relaese"}"#,
            br#"{"do":"refuse"}"#,
            br#"{"do":"refuse","why":7}"#,
            b"\xff",
        ] {
            let error = parse(bad).unwrap_err();
            let shown: String = String::from_utf8_lossy(bad).chars().take(12).collect();
            assert!(error.message.contains(&format!("{shown:?}")[1..=shown.len().min(3)]), "{error:?}");
        }
        assert!(parse(&vec![b' '; MAX_LINE + 1]).unwrap_err().message.contains("65536"));
    }

    #[test]
    fn the_fields_of_the_only_lock_are_beside_the_list() {
        let lock =
            |path: &str| HeldLock { path: path.to_owned(), node: format!("{path}/n-1"), token: Some("7".to_owned()) };
        let one = Event::acquired(&[lock("/a")], 30_000, 9);
        let text = r#"{"event":"acquired","locks":[{"path":"/a","node":"/a/n-1","token":"7"}],"path":"/a","node":"/a/n-1","token":"7","session_timeout_ms":30000,"valid_until_ns":9}"#;
        assert_eq!(one.line().trim_end(), text);
        let two = Event::acquired(&[lock("/a"), lock("/b")], 30_000, 9);
        for event in [one, two] {
            assert_eq!(serde_json::from_str::<Event>(&event.line()).unwrap(), event);
        }
    }
}
