//! What a holder says to its clients, and what it does for them: a state machine without I/O.
//!
//! The holder tells it what happens, and carries out its steps. Nothing else decides what a client is told, when the locks are released,
//! and how the hold ends.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper::guard::HoldState;
use lockkeeper::{Loss, Revocation};

use crate::clock::nanoseconds;
use crate::protocol::{BadLine, Event, HeldLock, Word};

/// A client, for as long as its connection lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub(crate) u64);

/// What a hold is bound to: it ends with that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// To this client.
    To(ClientId),
    /// To something else, which the text describes for people. Until the client that has asked for the lock says [`Word::Keep`], the hold
    /// is bound to that client. After a loss, whoever comes is told of it, until the bond is over or a client says [`Word::Release`].
    Otherwise {
        /// The client that has asked for the lock.
        starter: ClientId,
        /// The text.
        bond: String,
    },
}

/// Who is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    All,
    One(ClientId),
}

/// Something that happens to the hold, or that a client says. Times are those of [`now`](crate::now).
#[derive(Clone, Debug)]
pub(crate) enum Happened {
    /// The queue ahead, as it was seen last.
    Waits {
        path: String,
        ahead: u64,
        holder: Option<String>,
    },
    Acquired {
        locks: Vec<HeldLock>,
        session_timeout: Duration,
        valid_until: Duration,
    },
    /// The locks will not be held: the event says why.
    NotAcquired(Event),
    Renewed {
        valid_until: Duration,
    },
    State(HoldState),
    Asked {
        path: String,
        request: Revocation,
    },
    Wanted,
    Came(ClientId),
    Left(ClientId),
    Said(ClientId, Result<Word, BadLine>),
    /// The servers have answered the question of this client.
    Verified {
        client: ClientId,
        valid_until: Duration,
        problem: Option<String>,
    },
    /// What the hold is bound to has ended.
    BondEnded,
    /// The latest time that the clients were told has come.
    TrustEnded,
    /// The release is over: confirmed or not, with a text, or a loss was before it.
    Gone(Result<Option<String>, Loss>),
}

/// A step of the holder. It is carried out before the next thing is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tell(To, Event),
    Verify(ClientId),
    Refuse(String),
    MakeWay,
    /// Tells of the end of this time, the latest one that the clients were told. The hold is released when those who use it have left, or
    /// then: by then they have ended, even if they do not hear.
    Await(Duration),
    /// Releases the locks, or leaves the queue: because a client has asked for that, or because the bond is over.
    Release {
        is_asked: bool,
    },
    /// Says no more, and ends.
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Waiting {
        last: Option<Event>,
    },
    Held {
        locks: Vec<HeldLock>,
        session_timeout: Duration,
        suspected: bool,
    },
    /// It is released when those who use it have left.
    Ending {
        is_asked: bool,
    },
    Releasing,
    Over(Event),
}

/// How many questions of the clients the servers have not answered, at most.
const CHECKS: u32 = 16;

/// The conversation about one hold.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    phase: Phase,
    bound: Bound,
    /// The latest time that the clients were told.
    valid_until: Duration,
    /// The requests that are not answered, for clients that come later.
    asked: Vec<Event>,
    /// The clients that may use the hold: those that are there, and do not want its release.
    users: BTreeSet<ClientId>,
    /// Whether the client that has asked for the lock knows of the grant.
    is_kept: bool,
    /// How many questions the servers have not answered.
    checks: u32,
}

impl Conversation {
    /// Begins with a wait.
    pub(crate) const fn new(bound: Bound) -> Self {
        Conversation {
            phase: Phase::Waiting { last: None },
            bound,
            valid_until: Duration::ZERO,
            asked: Vec::new(),
            users: BTreeSet::new(),
            is_kept: false,
            checks: 0,
        }
    }

    /// Describes the bond anew, for clients that come later.
    pub(crate) fn describe(&mut self, text: String) {
        if let Bound::Otherwise { bond, .. } = &mut self.bound {
            *bond = text;
        }
    }

    /// Whether whoever comes is to be told how the hold was lost.
    pub(crate) const fn is_remembered(&self) -> bool {
        matches!((&self.phase, &self.bound), (Phase::Over(Event::Lost { .. }), Bound::Otherwise { .. })) && self.is_kept
    }

    /// Decides what follows.
    pub(crate) fn handle(&mut self, happened: Happened) -> Vec<Step> {
        let all = |event| vec![Step::Tell(To::All, event)];
        let ends_the_bond = matches!(&happened, Happened::Left(client) if self.is_bound_to(*client));
        let is_remembered = self.is_remembered();
        match &happened {
            Happened::Came(client) if matches!(self.phase, Phase::Waiting { .. } | Phase::Held { .. }) => {
                self.users.insert(*client);
            }
            Happened::Left(client) | Happened::Said(client, Ok(Word::Release)) => _ = self.users.remove(client),
            // It was that of this client's process.
            Happened::BondEnded => {
                if let Bound::To(client) = &self.bound {
                    self.users.remove(client);
                }
            }
            _ => {}
        }
        match (&mut self.phase, happened) {
            (_, Happened::Came(client)) => self.greet(client),
            (Phase::Over(_), Happened::BondEnded | Happened::Said(_, Ok(Word::Release))) if is_remembered => {
                vec![Step::End]
            }
            (Phase::Over(_), _) => Vec::new(),
            (Phase::Waiting { last }, Happened::Waits { path, ahead, holder }) => {
                let event = Event::Waiting { path, ahead, holder };
                if last.as_ref() == Some(&event) {
                    return Vec::new();
                }
                *last = Some(event.clone());
                all(event)
            }
            (Phase::Waiting { .. }, Happened::Acquired { locks, session_timeout, valid_until }) => {
                (self.valid_until, self.checks) = (valid_until, 0);
                let event = acquired(&locks, session_timeout, valid_until);
                self.phase = Phase::Held { locks, session_timeout, suspected: false };
                all(event)
            }
            (Phase::Waiting { .. } | Phase::Releasing, Happened::NotAcquired(event)) => self.end(event),
            (Phase::Held { suspected, .. }, Happened::Renewed { valid_until }) => {
                *suspected = false;
                if valid_until <= self.valid_until {
                    return Vec::new();
                }
                self.valid_until = valid_until;
                all(Event::Valid { valid_until_ns: nanoseconds(valid_until) })
            }
            (Phase::Held { .. } | Phase::Ending { .. } | Phase::Releasing, Happened::State(HoldState::Lost(loss))) => {
                self.end(Event::lost(loss))
            }
            (&mut Phase::Ending { is_asked }, Happened::TrustEnded) => self.release_now(is_asked),
            (&mut Phase::Ending { is_asked }, Happened::Left(_) | Happened::Said(_, Ok(Word::Release)))
                if self.users.is_empty() =>
            {
                self.release_now(is_asked)
            }
            (Phase::Held { suspected, .. }, Happened::State(HoldState::Suspected)) if !*suspected => {
                *suspected = true;
                all(Event::Suspected { valid_until_ns: nanoseconds(self.valid_until) })
            }
            (Phase::Held { suspected, .. }, Happened::State(HoldState::Held)) => {
                // The heartbeat that shows it is told as such.
                *suspected = false;
                Vec::new()
            }
            (Phase::Held { .. }, Happened::Asked { path, request }) => {
                let event = Event::asked(&path, &request);
                self.asked.retain(|asked| !is_about(asked, &path));
                self.asked.push(event.clone());
                all(event)
            }
            (Phase::Held { .. }, Happened::Wanted) => all(Event::Wanted),
            (Phase::Waiting { .. } | Phase::Held { .. }, Happened::BondEnded) => self.release(false),
            (Phase::Waiting { .. } | Phase::Held { .. }, Happened::Left(_)) if ends_the_bond => self.release(false),
            (_, Happened::Said(client, Err(bad))) => tell_error(client, bad.message, &bad.hint),
            (_, Happened::Said(client, Ok(word))) => self.obey(client, word),
            (Phase::Held { .. }, Happened::Verified { client, valid_until, problem: None }) => {
                self.checks = self.checks.saturating_sub(1);
                self.valid_until = self.valid_until.max(valid_until);
                let valid_until_ns = nanoseconds(self.valid_until);
                vec![Step::Tell(To::One(client), Event::Checked { valid_until_ns })]
            }
            (Phase::Held { .. }, Happened::Verified { client, problem: Some(problem), .. }) => {
                self.checks = self.checks.saturating_sub(1);
                tell_error(client, problem, "the hold goes on for as long as it may be trusted; ask again")
            }
            (Phase::Releasing, Happened::Gone(Ok(message))) => self.end(Event::Released { message }),
            (Phase::Releasing, Happened::Gone(Err(loss))) => self.end(Event::lost(loss)),
            // Of a phase that is over.
            _ => Vec::new(),
        }
    }

    /// Tells a client that comes what the others know.
    fn greet(&self, client: ClientId) -> Vec<Step> {
        let bond = match &self.bound {
            Bound::To(_) => None,
            Bound::Otherwise { bond, .. } => Some(bond.clone()),
        };
        let waits = bond.is_some() && matches!(self.phase, Phase::Waiting { .. });
        let mut events = vec![Event::hello(bond, waits)];
        match &self.phase {
            Phase::Waiting { last } => events.extend(last.clone()),
            Phase::Held { locks, session_timeout, suspected } => {
                let valid_until_ns = nanoseconds(self.valid_until);
                events.push(acquired(locks, *session_timeout, self.valid_until));
                events.extend(suspected.then_some(Event::Suspected { valid_until_ns }));
                events.extend(self.asked.iter().cloned());
            }
            Phase::Ending { .. } | Phase::Releasing => events.push(Event::Ending),
            Phase::Over(last) => events.push(last.clone()),
        }
        events.into_iter().map(|event| Step::Tell(To::One(client), event)).collect()
    }

    /// Whether the end of this client is that of the hold or of the wait.
    fn is_bound_to(&self, client: ClientId) -> bool {
        match &self.bound {
            Bound::To(one) => *one == client,
            Bound::Otherwise { starter, .. } => *starter == client && !self.is_kept,
        }
    }

    fn obey(&mut self, client: ClientId, word: Word) -> Vec<Step> {
        let is_held = matches!(self.phase, Phase::Held { .. });
        match word {
            Word::Release if matches!(self.phase, Phase::Ending { .. } | Phase::Releasing) => Vec::new(),
            Word::Release => self.release(true),
            Word::Keep if self.is_bound_to(client) && matches!(self.bound, Bound::Otherwise { .. }) => {
                self.is_kept = true;
                Vec::new()
            }
            Word::Keep => tell_error(client, "the hold is not this client's to keep".to_owned(), "leave the word out"),
            _ if !is_held => {
                let hint = "wait for the event \"acquired\"; {\"do\": \"release\"} ends the wait";
                tell_error(client, "the lock is not held".to_owned(), hint)
            }
            Word::Check if self.checks == CHECKS => {
                let hint = "wait for an answer before the next question";
                tell_error(client, format!("{CHECKS} questions are not answered yet"), hint)
            }
            Word::Check => {
                self.checks += 1;
                vec![Step::Verify(client)]
            }
            Word::Refuse { .. } if self.asked.is_empty() => {
                tell_error(client, "nobody asks for the lock".to_owned(), "refuse after the event \"asked\"")
            }
            Word::Refuse { why } => {
                self.asked.clear();
                vec![Step::Refuse(why)]
            }
            Word::MakeWay => {
                (self.phase, self.asked) = (Phase::Waiting { last: None }, Vec::new());
                vec![Step::MakeWay]
            }
        }
    }

    /// From here on, no client is told that the lock may be used.
    fn release(&mut self, is_asked: bool) -> Vec<Step> {
        if self.users.is_empty() || !matches!(self.phase, Phase::Held { .. }) {
            return self.release_now(is_asked);
        }
        self.phase = Phase::Ending { is_asked };
        vec![Step::Tell(To::All, Event::Ending), Step::Await(self.valid_until)]
    }

    fn release_now(&mut self, is_asked: bool) -> Vec<Step> {
        self.phase = Phase::Releasing;
        vec![Step::Release { is_asked }]
    }

    fn end(&mut self, event: Event) -> Vec<Step> {
        self.phase = Phase::Over(event.clone());
        vec![Step::Tell(To::All, event), Step::End]
    }
}

fn acquired(locks: &[HeldLock], session_timeout: Duration, valid_until: Duration) -> Event {
    let session_timeout_ms = u64::try_from(session_timeout.as_millis()).unwrap_or(u64::MAX);
    Event::acquired(locks, session_timeout_ms, nanoseconds(valid_until))
}

fn is_about(asked: &Event, lock: &str) -> bool {
    matches!(asked, Event::Asked { path, .. } if path == lock)
}

fn tell_error(client: ClientId, message: String, hint: &str) -> Vec<Step> {
    vec![Step::Tell(To::One(client), Event::Error { message, hint: hint.to_owned() })]
}

#[cfg(test)]
mod tests;
