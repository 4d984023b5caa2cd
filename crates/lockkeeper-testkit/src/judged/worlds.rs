//! Seeded worlds: the real library over the simulated ensemble, everyone busy, and everything that can befall them.
//!
//! One seed is one [`Scenario`], a script of calls and faults; one scenario is one history, judged by
//! [`crate::judged::history`]. A script can be cut down, which a seed cannot: [`shrink`] makes a failing one as small as it gets, and
//! [`Failure::test`] prints it as a test to keep.

mod life;
mod shrink;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use lockkeeper::NodeFormat;
use serde::{Deserialize, Serialize};

use crate::judged::history::{Claim, Event, Promises, Tally, Violation};

pub use life::{run, simulate};
pub use shrink::shrink;

/// How long sessions live.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(6);

/// How many permits there are.
pub const PERMITS: u32 = 4;

/// Kinds of lock that share one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// Exclusive.
    Mutex(Names),
    /// Readers, writers, and readers that become writers.
    Shared(Names),
    /// Requests for one to all of four permits.
    Permits,
    /// Foreground, background, and background that ages.
    Classes,
}

impl Family {
    /// All there are.
    pub const ALL: [Family; 7] = [
        Family::Mutex(Names::Curator),
        Family::Shared(Names::Curator),
        Family::Permits,
        Family::Classes,
        Family::Mutex(Names::Recipe),
        Family::Shared(Names::Recipe),
        Family::Shared(Names::Kazoo),
    ];
}

/// Whose names the nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Names {
    /// With an id.
    Curator,
    /// Without.
    Recipe,
    /// With another's.
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
    /// What the delays of network, disks and servers follow from.
    pub noise: u64,
    /// What they contend for.
    pub family: Family,
    /// Whether the lock's node stays while nobody uses it, so that its numbers go on.
    pub lasting: bool,
    /// What each contender does. The n-th uses the n-th handle, and so on in turn.
    pub lives: Vec<Vec<Turn>>,
    /// How many handles there are, each with a session of its own.
    #[serde(default = "shared")]
    pub handles: usize,
    /// What befalls them, one after the other.
    pub strikes: Vec<Strike>,
    /// The pause between requests that ask holders, and all waiters, to release.
    pub pleas: Vec<Plea>,
}

/// One attempt to enter, work and leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// How long before it.
    pub pause: u64,
    /// What is asked for.
    pub want: Want,
    /// How.
    pub call: Call,
    /// Steps of work while it is held.
    pub steps: u8,
    /// What is made of the hold then.
    pub change: Change,
    /// Whether it releases on a revocation.
    pub heeds: bool,
    /// How it ends.
    pub end: End,
}

/// What is asked for, as far as its family has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// The lock, or to write.
    Lock,
    /// To read.
    Read,
    /// To read, and perhaps to write later.
    MayWrite,
    /// So many permits.
    Permits(u32),
    /// The lock, before the others.
    Foreground,
    /// The lock, behind the others.
    Background,
    /// The same for so long.
    Ageing(u64),
}

/// How it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// At once or not at all.
    Try,
    /// For as long as it takes.
    Wait,
    /// With a deadline.
    Within(u64),
    /// The caller goes away after so long.
    Dropped(u64),
}

/// What is made of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Nothing.
    None,
    /// A writer reads on.
    Down,
    /// A reader becomes a writer, within so long or as soon as may be.
    Up(Option<u64>),
}

/// How a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It is released, and that is awaited.
    Release,
    /// The guard is dropped.
    Drop,
    /// It is released, and nobody waits for it.
    Forget,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    /// How long after the one before.
    pub after: u64,
    /// What.
    pub blow: Blow,
}

/// What can go wrong. Sessions are counted from the newest, which are those that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blow {
    /// A session's connection is reset.
    Cut(usize),
    /// A session reaches nobody for so long, and nothing tells it so.
    Silence(usize, u64),
    /// A server fails for so long.
    Server(usize, u64),
    /// The leader fails, and there is none for so long.
    Leader(u64),
    /// Each write to disk takes so much longer, for so long.
    SlowDisk(u64, u64),
}

/// Somebody asks for the lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plea {
    /// How long after the one before.
    pub after: u64,
    /// Asks the first waiter to give up, instead of the holders to release.
    pub waiter: bool,
}

/// Several contenders share a handle, so that they share its session's troubles.
fn shared() -> usize {
    3
}

impl Scenario {
    /// The world of a seed. Every eighth is calm: there waits are judged by the millisecond, no hold may fall ill, and everybody
    /// has a session of his own, which no other's writes prove.
    pub fn of(seed: u64, family: Family) -> Scenario {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let calm = rng.u8(..8) == 0;
        let lives = (0..rng.usize(4..7)).map(|_| (0..rng.usize(8..24)).map(|_| Turn::draw(rng, family)).collect());
        let lives: Vec<_> = lives.collect();
        let mut strikes = Vec::new();
        let mut pleas = Vec::new();
        if !calm {
            strikes = (0..rng.usize(10..50)).map(|_| Strike::draw(rng)).collect();
        }
        if !matches!(family, Family::Mutex(_)) || rng.bool() {
            pleas =
                (0..rng.usize(..25)).map(|_| Plea { after: rng.u64(100..4000), waiter: rng.u8(..3) == 0 }).collect();
        }
        let handles = if calm { lives.len() } else { shared() };
        Scenario { noise: seed, family, lasting: rng.bool(), lives, handles, strikes, pleas }
    }

    /// A calm world of one queue: so many contenders come within moments, each in a session of its own, and hold the lock for up
    /// to two session timeouts; where they are more than ten, most of them for a moment only.
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
        Scenario { noise: seed, family, lasting: rng.bool(), handles: lives.len(), lives, strikes, pleas }
    }

    /// What it promises, given what it goes through.
    pub fn promises(&self) -> Promises {
        let lateness = Duration::from_millis(1);
        let calm = self.strikes.is_empty();
        let free = if calm { Duration::from_secs(1) } else { SESSION_TIMEOUT * 8 };
        let healthy = calm.then_some(SESSION_TIMEOUT);
        Promises { permits: PERMITS, lateness, abandoned: free, idle: free, healthy }
    }
}

impl Turn {
    fn draw(rng: &mut fastrand::Rng, family: Family) -> Turn {
        let want = match family {
            Family::Mutex(_) => Want::Lock,
            Family::Shared(_) => match rng.u8(..5) {
                0 | 1 => Want::Read,
                2 => Want::MayWrite,
                _ => Want::Lock,
            },
            Family::Permits => Want::Permits(rng.u32(1..=PERMITS)),
            Family::Classes => match rng.u8(..3) {
                0 => Want::Foreground,
                1 => Want::Background,
                _ => Want::Ageing(rng.u64(..2000)),
            },
        };
        let call = match rng.u8(..4) {
            0 => Call::Try,
            1 => Call::Within(rng.u64(..3000)),
            2 => Call::Dropped(rng.u64(..1000)),
            _ => Call::Wait,
        };
        let change = match (want, rng.u8(..4)) {
            (Want::MayWrite, 0) | (Want::Lock, 0 | 1) => Change::Down,
            (Want::MayWrite, 1 | 2) => Change::Up((rng.u8(..3) > 0).then(|| rng.u64(..2000))),
            _ => Change::None,
        };
        let end = match rng.u8(..6) {
            0 | 1 => End::Drop,
            2 => End::Forget,
            _ => End::Release,
        };
        // Now and then longer than a session lives without its server.
        let steps = if rng.u8(..10) == 0 { 60 } else { rng.u8(..5) };
        Turn { pause: rng.u64(1..300), want, call, steps, change, heeds: rng.bool(), end }
    }
}

impl Strike {
    fn draw(rng: &mut fastrand::Rng) -> Strike {
        let timeout = u64::try_from(SESSION_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        let blow = match rng.u8(..16) {
            0..=2 => Blow::Silence(rng.usize(..6), rng.u64(100..timeout * 2)),
            3 | 4 => Blow::Server(rng.usize(..3), rng.u64(10..timeout)),
            5 => Blow::Leader(rng.u64(20..2000)),
            6 => Blow::SlowDisk(rng.u64(50..1000), rng.u64(100..3000)),
            _ => Blow::Cut(rng.usize(..6)),
        };
        Strike { after: rng.u64(10..2000), blow }
    }
}

/// A world in which a promise was not kept.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was not kept.
    pub problems: Vec<Problem>,
    /// What happened.
    pub history: Vec<Event>,
}

/// What can be wrong with a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A promise was not kept.
    Broken(Violation),
    /// The library answered what nobody expects, or panicked.
    Unexpected(String),
}

impl Problem {
    /// What a smaller world must show as well to count as the same.
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
    /// The first thing that is wrong, of those that were found.
    pub fn first(&self) -> &Problem {
        self.problems.first().expect("a failure has a reason")
    }

    /// A test that replays a scenario, to be kept in `tests/it/simulation.rs`.
    pub fn test(&self, name: &str, scenario: &Scenario) -> String {
        let script = serde_json::to_string(scenario).expect("a script is plain data");
        let problem = self.first();
        format!("/// {problem}\n#[test]\nfn {name}() {{\n    replay(\n        r#\"{script}\"#,\n    );\n}}\n")
    }
}

/// How much went on in a world.
pub type Ran = Result<Tally, Failure>;
