//! Seeded worlds: the real library over the simulated ensemble, with busy contenders and every possible fault.
//!
//! One seed is one [`Scenario`], a script of calls and faults. One scenario gives one history, which
//! [`crate::judged::history`] judges. A script, unlike a seed, can be made smaller: [`shrink`] makes a failing one as
//! small as possible, and [`Failure::test`] prints it as a test to keep.

mod held;
mod life;
mod shrink;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use lockkeeper::NodeFormat;
use serde::{Deserialize, Serialize};

use crate::judged::history::{Claim, Event, Health, Promises, Tally, Violation};

pub use life::{run, simulate};
pub use shrink::shrink;

/// The session timeout of most worlds, and the shortest one.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(6);

/// The longest session timeout: the library's default.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What an answer takes beside the disk: two messages in pieces, the usual write, and the lag of a server.
const OVERHEAD: Duration = Duration::from_millis(150);

/// The longest lease, in milliseconds.
const LONGEST_LEASE: u64 = 15_000;

/// How long after a lease its lock is free for certain: the lock's skew, and the time of a request.
const PAST_LEASE: u64 = 3_000;

/// The longest lock delay, in milliseconds.
const LONGEST_DELAY: u64 = 8_000;

/// The number of permits.
pub const PERMITS: u32 = 4;

/// Kinds of lock that share one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    Mutex(Names),
    /// Readers, also those of a handle together, writers, and readers that become writers.
    Shared(Names),
    /// Requests for one to all of four permits.
    Permits,
    /// Foreground, background that may make way, and background that ages.
    Classes,
    /// The uses of a lock that each handle keeps, and others.
    Kept,
    /// One of two locks, or both in one call.
    Several,
    /// Holds with a lock delay, and others.
    Delayed,
    /// Leased locks with priorities.
    Leased,
    /// An election: candidates that campaign once, that follow the events of a candidacy, and that run with hooks.
    Elections,
}

impl Family {
    pub const ALL: [Family; 12] = [
        Family::Mutex(Names::Curator),
        Family::Shared(Names::Curator),
        Family::Permits,
        Family::Classes,
        Family::Mutex(Names::Recipe),
        Family::Shared(Names::Recipe),
        Family::Shared(Names::Kazoo),
        Family::Kept,
        Family::Several,
        Family::Delayed,
        Family::Leased,
        Family::Elections,
    ];
}

/// The node format of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Names {
    /// Curator's names, with an id.
    Curator,
    /// The recipes' names, without an id.
    Recipe,
    /// Kazoo's names, with another id.
    Kazoo,
}

impl From<Names> for NodeFormat {
    fn from(names: Names) -> NodeFormat {
        match names {
            Names::Curator => NodeFormat::Curator,
            Names::Recipe => NodeFormat::Recipe,
            Names::Kazoo => NodeFormat::Kazoo,
        }
    }
}

/// The script of one world. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// The seed of the delays of network, disks and servers.
    pub noise: u64,
    /// The kinds of lock.
    pub family: Family,
    /// Whether the lock's node stays while no contender uses it, so that its numbers keep growing.
    pub lasting: bool,
    /// The turns of each contender. The contenders use the handles in turn.
    pub lives: Vec<Vec<Turn>>,
    /// The number of handles, each with a session of its own.
    #[serde(default = "shared")]
    pub handles: usize,
    #[serde(default = "shortest")]
    pub timeout: u64,
    /// How much longer each write to disk takes, at all times.
    #[serde(default)]
    pub slow: u64,
    /// The faults, one after the other.
    pub strikes: Vec<Strike>,
    /// The requests to holders and waiters to release, one after the other.
    pub pleas: Vec<Plea>,
}

/// One attempt to acquire, work and release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The pause before it.
    pub pause: u64,
    pub want: Want,
    /// The kind of call.
    pub call: Call,
    /// Steps of work during the hold.
    pub steps: u8,
    /// The change of the hold after the work.
    pub change: Change,
    /// Whether it releases on a revocation.
    pub heeds: bool,
    /// How the hold ends.
    pub end: End,
}

/// A requested kind, as far as the family has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// The lock, or to write.
    Lock,
    Read,
    /// To read, and perhaps to write later.
    MayWrite,
    Permits(u32),
    /// The lock, before the others.
    Foreground,
    /// The lock, behind the others.
    Background,
    /// The lock, behind the others until this time has passed.
    Ageing(u64),
    /// A use of the lock that the handle keeps.
    Kept,
    /// To read, in one hold with the other readers of the handle.
    Joint,
    /// The second lock.
    Second,
    /// Both locks.
    Both,
    /// The lock, with this lock delay.
    Delayed(u64),
    /// The lock, for this time at least, with this priority.
    Leased {
        lease: u64,
        priority: i32,
        strict: bool,
    },
    /// To lead, in a term of its own.
    Campaign,
    /// To lead, as the events of a candidacy say.
    Stand,
    /// To lead, with hooks.
    Run,
}

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// A try, which does not wait.
    Try,
    /// A wait without a limit.
    Wait,
    /// A wait with a deadline.
    Within(u64),
    /// A call that is dropped after this time.
    Dropped(u64),
}

/// A change of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// No change.
    None,
    /// A writer becomes a reader.
    Down,
    /// A reader becomes a writer, within this time or without a limit.
    Up(Option<u64>),
    /// A hold that is exclusive writes a node, if it is still held. The call is dropped after this time, if there is one.
    Write(Option<u64>),
    /// A hold in the background makes way, if it is asked to.
    Yield,
    /// A leased hold begins a new lease.
    Renew,
}

/// How a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It is released, and the release is awaited.
    Release,
    /// The guard is dropped.
    Drop,
    /// It is released, and the release is not awaited.
    Forget,
}

/// A fault with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    /// The time since the one before.
    pub after: u64,
    pub blow: Blow,
}

/// A fault. Handles are counted from 0, and again from 0 behind the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blow {
    /// A handle's connections are reset, and some bytes on their way are lost.
    Cut(usize),
    /// A handle reaches no server for this time, without notice.
    Silence(usize, u64),
    /// A handle's connections are slow for this time.
    Slow(usize, u64),
    /// The servers of a handle's connections answer pings and nothing else.
    PingsOnly(usize),
    /// A server fails for this time.
    Server(usize, u64),
    /// The leader fails, and there is none for this time.
    Leader(u64),
    /// Each write to disk takes longer by the first time; this lasts for the second time.
    SlowDisk(u64, u64),
}

/// A request to release, or a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plea {
    /// The time since the one before.
    pub after: u64,
    pub act: Act,
}

/// What a person does to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// Asks the holders to release.
    Revoke,
    /// Asks the first waiter to give up.
    RevokeWaiter,
    /// Breaks the lock, if it has one holder.
    Break,
    /// Removes a holder or a waiter.
    Evict,
}

/// Returns the default number of handles: several contenders share a handle, and so its session's faults.
fn shared() -> usize {
    3
}

/// Returns the default session timeout.
fn shortest() -> u64 {
    millis(SESSION_TIMEOUT)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Scenario {
    /// Returns the world of a seed. Every eighth world is calm: waits are judged by the millisecond, every hold must
    /// stay healthy, and each contender has a session of its own, which no writes of other contenders keep trusted. In half of the
    /// calm worlds, each write takes a fifth of the session timeout, which is less than the quarter that the contract allows.
    pub fn of(seed: u64, family: Family) -> Scenario {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let calm = rng.u8(..8) == 0;
        let timeout = if rng.bool() { shortest() } else { rng.u64(shortest()..=millis(LONGEST_TIMEOUT)) };
        let slow = if calm && rng.bool() { timeout / 5 - millis(OVERHEAD) } else { 0 };
        let lives = (0..rng.usize(4..7)).map(|_| (0..rng.usize(8..24)).map(|_| Turn::draw(rng, family)).collect());
        let lives: Vec<_> = lives.collect();
        let mut strikes = Vec::new();
        let mut pleas = Vec::new();
        if !calm {
            strikes = (0..rng.usize(10..50)).map(|_| Strike::draw(rng, timeout)).collect();
        }
        if !matches!(family, Family::Mutex(_)) || rng.bool() {
            pleas = (0..rng.usize(..25)).map(|_| Plea::draw(rng)).collect();
        }
        // Contenders that share a hold share a handle.
        let together = matches!(family, Family::Kept | Family::Shared(_)) && rng.bool();
        let handles = match (together, calm) {
            // Several wait for a use of one handle's hold at once.
            (true, _) => rng.usize(1..=shared()),
            (false, true) => lives.len(),
            (false, false) => shared(),
        };
        Scenario { noise: seed, family, lasting: rng.bool(), lives, handles, timeout, slow, strikes, pleas }
    }

    /// Returns a calm world of one queue: this many contenders arrive within moments, each with a session of its own,
    /// and hold the lock for up to two session timeouts. If they are more than ten, most of them hold it only briefly.
    pub fn queue(seed: u64, family: Family, contenders: usize) -> Scenario {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut life = |_| {
            let longest = if contenders <= 10 || rng.u8(..20) == 0 { 80 } else { 2 };
            let steps = rng.u8(..=longest);
            let call = Call::Wait;
            vec![Turn { pause: rng.u64(1..1000), call, steps, end: End::Release, ..Turn::draw(rng, family) }]
        };
        let lives: Vec<_> = (0..contenders).map(&mut life).collect();
        let (strikes, pleas) = (Vec::new(), Vec::new());
        let (handles, timeout) = (lives.len(), shortest());
        Scenario { noise: seed, family, lasting: rng.bool(), handles, lives, timeout, slow: 0, strikes, pleas }
    }

    /// Returns the promises of this world, which depend on its faults.
    pub fn promises(&self) -> Promises {
        let lateness = Duration::from_millis(1);
        let calm = self.strikes.is_empty();
        // The first contender needs up to nine writes, one after the other: its session, the nodes above its own, its own and a
        // heartbeat, each create once more behind its parent's.
        let writes = Duration::from_millis(self.slow) * 12;
        let free = if calm { Duration::from_secs(1) + writes } else { self.timeout() * 8 };
        // With slow writes, each heartbeat is confirmed later.
        let timeout = self.timeout();
        let later = if self.slow > 0 { timeout * 24 / 100 } else { timeout / 3 };
        let healthy = calm.then(|| Health { start: timeout / 2, later });
        let leased = if self.family == Family::Leased { LONGEST_LEASE + PAST_LEASE } else { 0 };
        let abandoned = free + Duration::from_millis(leased);
        Promises { permits: PERMITS, lateness, abandoned, idle: free, healthy, every: None }
    }
}

impl Scenario {
    /// Returns how late a holder may learn that its hold was broken.
    fn noticed(&self) -> Duration {
        if self.strikes.is_empty() {
            // While servers answer, a hold looks at its node again when it is 0.1 s old.
            Duration::from_millis(500 + self.slow * 3)
        } else if self.family == Family::Leased {
            // Without a connection, a leased hold lasts as long as its lease.
            self.timeout().max(Duration::from_millis(LONGEST_LEASE))
        } else {
            self.timeout()
        }
    }

    /// Returns the session timeout.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout)
    }
}

impl Turn {
    fn draw(rng: &mut fastrand::Rng, family: Family) -> Turn {
        let want = match family {
            Family::Mutex(_) => Want::Lock,
            Family::Shared(_) => match rng.u8(..6) {
                0 => Want::Read,
                1 | 2 => Want::Joint,
                3 => Want::MayWrite,
                _ => Want::Lock,
            },
            Family::Permits => Want::Permits(rng.u32(1..=PERMITS)),
            Family::Classes => match rng.u8(..3) {
                0 => Want::Foreground,
                1 => Want::Background,
                _ => Want::Ageing(rng.u64(..2000)),
            },
            Family::Kept => {
                if rng.u8(..3) == 0 {
                    Want::Lock
                } else {
                    Want::Kept
                }
            }
            Family::Several => match rng.u8(..4) {
                0 => Want::Lock,
                1 => Want::Second,
                _ => Want::Both,
            },
            Family::Delayed => {
                if rng.bool() {
                    Want::Lock
                } else {
                    Want::Delayed(rng.u64(1..LONGEST_DELAY))
                }
            }
            Family::Leased => {
                let lease = if rng.bool() { rng.u64(200..2_000) } else { rng.u64(1..LONGEST_LEASE) };
                Want::Leased { lease, priority: rng.i32(0..3), strict: rng.bool() }
            }
            Family::Elections => match rng.u8(..3) {
                0 => Want::Campaign,
                1 => Want::Stand,
                _ => Want::Run,
            },
        };
        let call = match rng.u8(..4) {
            0 => Call::Try,
            1 => Call::Within(rng.u64(..3000)),
            2 => Call::Dropped(rng.u64(..1000)),
            _ => Call::Wait,
        };
        let change = match (want, rng.u8(..4)) {
            (Want::MayWrite, 0) | (Want::Lock, 0) => Change::Down,
            (Want::MayWrite, 1 | 2) => Change::Up((rng.u8(..3) > 0).then(|| rng.u64(..2000))),
            (Want::Background | Want::Ageing(_), 0 | 1) => Change::Yield,
            (Want::Leased { .. }, 0) => Change::Renew,
            (Want::Read | Want::MayWrite | Want::Joint | Want::Permits(_), _) => Change::None,
            (_, 2 | 3) => Change::Write(rng.bool().then(|| rng.u64(..30))),
            _ => Change::None,
        };
        let end = match rng.u8(..6) {
            0 | 1 => End::Drop,
            2 => End::Forget,
            _ => End::Release,
        };
        // Sometimes longer than a session lives without its server.
        let steps = if rng.u8(..10) == 0 { 60 } else { rng.u8(..5) };
        Turn { pause: rng.u64(1..300), want, call, steps, change, heeds: rng.bool(), end }
    }
}

impl Plea {
    fn draw(rng: &mut fastrand::Rng) -> Plea {
        let act = match rng.u8(..6) {
            0 | 1 => Act::RevokeWaiter,
            2 => Act::Break,
            3 => Act::Evict,
            _ => Act::Revoke,
        };
        Plea { after: rng.u64(100..4000), act }
    }
}

impl Strike {
    fn draw(rng: &mut fastrand::Rng, timeout: u64) -> Strike {
        let blow = match rng.u8(..16) {
            0..=2 => Blow::Silence(rng.usize(..6), rng.u64(100..timeout * 2)),
            3 | 4 => Blow::Server(rng.usize(..3), rng.u64(10..timeout)),
            // One election in four may take longer than a session timeout.
            5 => {
                let longest = if rng.u8(..4) == 0 { timeout * 2 } else { 2000 };
                Blow::Leader(rng.u64(20..longest))
            }
            6 => Blow::SlowDisk(rng.u64(50..1000), rng.u64(100..3000)),
            7 => Blow::Slow(rng.usize(..6), rng.u64(100..3000)),
            8 => Blow::PingsOnly(rng.usize(..6)),
            _ => Blow::Cut(rng.usize(..6)),
        };
        Strike { after: rng.u64(10..2000), blow }
    }
}

/// A world in which a promise was not kept.
#[derive(Clone, Debug)]
pub struct Failure {
    pub problems: Vec<Problem>,
    pub history: Vec<Event>,
}

/// A problem of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A promise was not kept.
    Broken(Violation),
    /// The library gave an unexpected answer, or panicked.
    Unexpected(String),
}

impl Problem {
    /// Returns the claim that a smaller world must also break to count as the same failure.
    pub fn claim(&self) -> Option<Claim> {
        match self {
            Problem::Broken(violation) => Some(violation.claim),
            Problem::Unexpected(_) => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Broken(violation) => violation.fmt(f),
            Problem::Unexpected(what) => write!(f, "unexpected: {what}"),
        }
    }
}

impl Failure {
    /// Returns the first problem that was found.
    pub fn first(&self) -> &Problem {
        self.problems.first().expect("a failure has a reason")
    }

    /// Returns a test that replays a scenario, to be kept in `tests/it/simulation.rs`.
    pub fn test(&self, name: &str, scenario: &Scenario) -> String {
        let script = serde_json::to_string(scenario).expect("a script is plain data");
        let problem = self.first();
        format!("/// {problem}\n#[test]\nfn {name}() {{\n    replay(\n        r#\"{script}\"#,\n    );\n}}\n")
    }
}

/// The numbers of judged events of a world, or its failure.
pub type Ran = Result<Tally, Failure>;
