//! What happened to the locks of a tree.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper::admin::SessionId;
use serde::{Serialize, Serializer};

use crate::millis::whole_ms;

/// A moment by the observer's clocks. Durations are between monotonic times, so that a step of the wall clock does not change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Milliseconds since the observer's start; negative before it.
    pub ms: i64,
    /// Milliseconds since 1970.
    pub wall_ms: i64,
}

impl Moment {
    /// The time since an earlier moment; zero if that one is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_millis(u64::try_from(self.ms - earlier.ms).unwrap_or(0))
    }

    /// It by the wall clock.
    pub fn wall_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(u64::try_from(self.wall_ms).unwrap_or(0))
    }

    /// An earlier moment by the wall clock as it is now.
    pub(super) fn wall_time_of(self, earlier: Moment) -> SystemTime {
        self.of_wall_ms(self.wall_ms - (self.ms - earlier.ms)).wall_time()
    }

    /// The moment of this wall time, as seen now. A time in the future, of a clock that is ahead, counts as now.
    pub(crate) fn of_wall(self, wall: SystemTime) -> Moment {
        self.of_wall_ms(wall.duration_since(UNIX_EPOCH).map_or(0, as_ms))
    }

    /// The same for milliseconds since 1970.
    pub(super) fn of_wall_ms(self, wall_ms: i64) -> Moment {
        let wall_ms = wall_ms.min(self.wall_ms);
        Moment { ms: self.ms - (self.wall_ms - wall_ms), wall_ms }
    }
}

fn as_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The observer's clock.
#[derive(Clone, Copy, Debug)]
pub struct ObserverClock(Instant);

impl ObserverClock {
    /// Starts it.
    #[expect(clippy::new_without_default, reason = "its start is a moment, not a value")]
    pub fn new() -> Self {
        ObserverClock(Instant::now())
    }

    /// The moment now.
    pub fn now(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { ms: as_ms(self.0.elapsed()), wall_ms: as_ms(wall) }
    }

    /// The moment of this earlier time.
    pub(super) fn moment(&self, at: Instant, now: Moment) -> Moment {
        let ms = as_ms(at.saturating_duration_since(self.0)).min(now.ms);
        Moment { ms, wall_ms: now.wall_ms - (now.ms - ms) }
    }

    /// When this moment is, by the clock of the operating system.
    pub fn instant(&self, ms: i64) -> Instant {
        self.0 + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }
}

/// A contender of a lock, as far as its node says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Contender {
    /// The path of the lock.
    pub lock: Arc<str>,
    /// The path of its node.
    pub node: Arc<str>,
    /// The owner as one line of text, or what a foreign client's node shows. `None` if the node was deleted before it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Its message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What it asks for: `exclusive`, `write`, `read`, `permits`, `class` or `lease`.
    pub mode: &'static str,
    /// Its session; `None` if unknown, and for the owner of a leased lock.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub session: Option<SessionId>,
}

/// How a hold or a wait ended, as far as the servers' nodes show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum End {
    /// The contender gave it up, or another client deleted its node: the session of the contender lived on.
    Released,
    /// It gave it up while its node had a request to do so.
    Revoked {
        /// The requester and the reason.
        by: String,
    },
    /// A person removed it.
    Broken {
        /// The person, as the journal says.
        by: String,
        /// The reason.
        reason: String,
    },
    /// Its owner lost it, and has recorded that ([`RecordedEnd`](super::RecordedEnd)).
    Lost {
        /// The cause.
        why: String,
    },
    /// Its session is over. Without a tombstone, this is only likely: all contenders of the session, two or more, went in the same
    /// moment, and they are of a foreign client.
    SessionOver,
    /// Another owner took a leased lock.
    TakenOver,
    /// It was released, or its session is over: the servers' events do not tell them apart, and its owner has not recorded its end yet.
    Unknown,
}

impl End {
    /// The word for it, as in metrics and JSON.
    pub fn word(&self) -> &'static str {
        match self {
            End::Released => "released",
            End::Revoked { .. } => "revoked",
            End::Broken { .. } => "broken",
            End::Lost { .. } => "lost",
            End::SessionOver => "session_over",
            End::TakenOver => "taken_over",
            End::Unknown => "unknown",
        }
    }

    /// Whether the hold is known to have ended without a release.
    pub fn is_loss(&self) -> bool {
        matches!(self, End::Broken { .. } | End::Lost { .. } | End::SessionOver | End::TakenOver)
    }
}

/// Why changes were not seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum GapCause {
    /// The connection to the servers was lost.
    Disconnected,
    /// The observer was too slow, and this many events were dropped.
    Missed {
        /// How many.
        events: u64,
    },
    /// The observer did not run.
    NotRunning,
    /// The observer ran, and has not reached the servers since its start.
    NotReached,
}

impl GapCause {
    /// Whether it is a gap although nothing was seen before it.
    pub(crate) const fn is_before_the_first_walk(&self) -> bool {
        matches!(self, GapCause::NotRunning | GapCause::NotReached)
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fact {
    /// When, by the observer's clock.
    #[serde(rename = "at_ms", serialize_with = "wall")]
    pub at: Moment,
    /// What.
    #[serde(flatten)]
    pub what: What,
    /// Whether its times are not exact: it began before the observer's start or during a gap. Then they are the server's times of the
    /// nodes, or those at which the observer first saw it. So a hold whose grant was not seen took this long or longer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub about: bool,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum What {
    /// A contender joined the queue of a lock.
    Entered {
        /// The contender.
        #[serde(flatten)]
        contender: Arc<Contender>,
    },
    /// It was granted the lock.
    Granted {
        /// The contender.
        #[serde(flatten)]
        contender: Arc<Contender>,
        /// How long it had waited.
        #[serde(rename = "waited_ms", serialize_with = "whole_ms")]
        waited: Duration,
        /// Whether its hold was found: the grant itself was not seen.
        #[serde(skip)]
        found: bool,
    },
    /// Its hold ended.
    Ended {
        /// The contender.
        #[serde(flatten)]
        contender: Arc<Contender>,
        /// How long it had held the lock.
        #[serde(rename = "held_ms", serialize_with = "whole_ms")]
        held: Duration,
        /// How the hold ended.
        #[serde(flatten)]
        how: End,
    },
    /// The end of a hold that was [`End::Unknown`] is known now, because its owner has recorded it. It ended earlier.
    Explained {
        /// The contender.
        #[serde(flatten)]
        contender: Arc<Contender>,
        /// How the hold ended.
        #[serde(flatten)]
        how: End,
    },
    /// It left the queue without the lock.
    LeftWaiting {
        /// The contender.
        #[serde(flatten)]
        contender: Arc<Contender>,
        /// How long it had waited.
        #[serde(rename = "waited_ms", serialize_with = "whole_ms")]
        waited: Duration,
        /// How the wait ended.
        #[serde(flatten)]
        how: End,
    },
    /// Changes were not seen, until now. What happened meanwhile is known only as far as the nodes show it.
    Gap {
        /// The tree.
        root: Arc<str>,
        /// Since when.
        #[serde(rename = "since_ms", serialize_with = "wall")]
        since: Moment,
        /// The cause.
        #[serde(flatten)]
        cause: GapCause,
    },
    /// The observer ended as it should. What happens from now on is not seen.
    Stopped {},
}

impl What {
    /// The path of the lock that it is about, if it is about one.
    pub fn lock(&self) -> Option<&Arc<str>> {
        match self {
            What::Entered { contender }
            | What::Granted { contender, .. }
            | What::Ended { contender, .. }
            | What::Explained { contender, .. }
            | What::LeftWaiting { contender, .. } => Some(&contender.lock),
            What::Gap { .. } | What::Stopped {} => None,
        }
    }
}

/// As the other commands print it: a number of 64 bits is not exact in every reader of JSON.
fn as_text<S: Serializer>(session: &Option<SessionId>, serializer: S) -> Result<S::Ok, S::Error> {
    match session {
        Some(session) => serializer.collect_str(session),
        None => serializer.serialize_none(),
    }
}

fn wall<S: Serializer>(moment: &Moment, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(moment.wall_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_one_flat_object() {
        let contender = Contender {
            lock: "/locks/a".into(),
            node: "/locks/a/lock-0000000001".into(),
            who: Some("10.0.0.1".to_owned()),
            message: None,
            mode: "exclusive",
            session: Some(SessionId(7)),
        };
        let held = Duration::from_millis(30);
        let what = What::Ended { contender: Arc::new(contender), held, how: End::Revoked { by: "ann".to_owned() } };
        let fact = Fact { at: Moment { ms: 5, wall_ms: 1_000 }, what, about: false };
        assert_eq!(
            serde_json::to_value(&fact).unwrap(),
            serde_json::json!({
                "at_ms": 1000, "fact": "ended", "lock": "/locks/a", "node": "/locks/a/lock-0000000001", "who": "10.0.0.1",
                "mode": "exclusive", "session": "0x7", "held_ms": 30, "end": "revoked", "by": "ann",
            })
        );
    }

    #[test]
    fn a_time_of_a_clock_that_is_ahead_is_now() {
        let now = Moment { ms: 50, wall_ms: 10_000 };
        assert_eq!(now.of_wall(UNIX_EPOCH + Duration::from_millis(20_000)), now);
        assert_eq!(now.of_wall(UNIX_EPOCH + Duration::from_millis(9_000)), Moment { ms: -950, wall_ms: 9_000 });
    }
}
