//! What shows whether a holder is slow or stuck, and how long a wait may take: for `lockkeeper why`.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use lockkeeper::admin::{ContenderInfo, LockInfo, LockListing, Unreadable};
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_history::{Entry, Habits, History, PastHold};
use lockkeeper_observe::deadlock::{Certainty, Deadlock, confirmed};
use lockkeeper_observe::servers::{SessionConnection, SessionConnections};
use lockkeeper_session::text::spell;

use crate::atwork::AtWork;
use crate::colour::Severity;
use crate::liveline::whole;
use crate::presence::HERE;
use crate::servertime::ServerTime;
use crate::settings::Part;
use crate::text::{counted, plain};

/// A machine is slow if half of its holds take at least this many times as long as half of the others'; of two holds, both.
const SLOWER: u32 = 3;

/// So many holds say something.
const ENOUGH: usize = 3;

/// So many holds of one machine say something about it: of many machines, few holds of each are recorded.
const ENOUGH_OF_ONE: usize = 2;

/// The longest text about other locks.
const OTHERS: usize = 3;

/// What is known about a lock beside its queue.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub habits: Habits,
    pub pace: Pace,
    pub slow: Option<Slow>,
    /// The rings that the lock is part of.
    pub deadlocks: Vec<Deadlock>,
    /// Other locks of its holders, with how many wait for each.
    pub others: Vec<(String, usize)>,
    /// The processes of its first holder, if they run on this machine.
    pub at_work: Option<AtWork>,
    /// What the servers say of the sessions of its holders.
    pub connections: SessionConnections,
}

/// The locks of a part at one moment, and what else is known of them.
pub(crate) struct Look {
    pub locks: Vec<LockInfo>,
    pub unreadable: Vec<Unreadable>,
    pub deadlocks: Vec<Deadlock>,
    /// What the records of a lock show.
    pub habits: HashMap<String, Habits>,
    pub time: ServerTime,
}

impl Look {
    /// Reads them, and notes at the holders what the records say of their grants.
    ///
    /// # Errors
    /// The server refuses the reads or cannot be reached.
    pub(crate) async fn at(keeper: &Lockkeeper, part: &Part) -> Result<Self, Error> {
        let admin = keeper.admin();
        let LockListing { mut locks, unreadable, .. } = admin.listing(part.root.as_str()).await?;
        let time = ServerTime::at(&part.settings.place, &admin, &locks).await;
        let habits = habits(keeper, &mut locks, time.now).await?;
        let deadlocks = confirmed(&admin, &part.root, &locks).await?;
        Ok(Look { locks, unreadable, deadlocks, habits, time })
    }
}

/// A machine whose holds take longer than those of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slow {
    pub host: String,
    /// How many of the recorded holds are its.
    pub holds: usize,
    /// How long half of them took at most, and half of the others'.
    pub half: Duration,
    pub others: Duration,
}

/// How long the holds that were released took: what a sum of such holds is to be expected from. A few long ones make most of a sum, which
/// the half of the holds does not show.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pace {
    /// How many are recorded.
    holds: usize,
    mean: Duration,
    /// The standard deviation.
    deviation: Duration,
    /// The means of the holds of each machine.
    by_host: HashMap<String, Duration>,
}

impl Pace {
    /// The machine of each hold, and how long it took.
    fn of(holds: &[(String, Duration)]) -> Self {
        let mean = |times: &[Duration]| {
            let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
            times.iter().sum::<Duration>().checked_div(count).unwrap_or_default()
        };
        let mut by_host: HashMap<&str, Vec<Duration>> = HashMap::new();
        for (host, held) in holds.iter().filter(|(host, _)| !host.is_empty()) {
            by_host.entry(host).or_default().push(*held);
        }
        let all: Vec<_> = holds.iter().map(|(_, held)| *held).collect();
        let overall = mean(&all);
        let squares = all.iter().map(|time| time.abs_diff(overall).as_secs_f64().powi(2)).sum::<f64>();
        let degrees = all.len().saturating_sub(1).max(1) as f64;
        Pace {
            holds: all.len(),
            mean: overall,
            deviation: Duration::try_from_secs_f64((squares / degrees).sqrt()).unwrap_or_default(),
            by_host: by_host.into_iter().map(|(host, times)| (host.to_owned(), mean(&times))).collect(),
        }
    }

    /// How long this contender is expected to hold the lock: as its machine did before, and otherwise as all did.
    fn expected(&self, contender: &ContenderInfo) -> Duration {
        let host = contender.owner.as_ref().map_or("", |owner| owner.host.as_str());
        self.by_host.get(host).copied().unwrap_or(self.mean)
    }

    /// The standard error of the sum of so many holds: they differ from the mean, and so does the mean of the few that are recorded.
    fn spread(&self, holds: usize) -> Duration {
        let (holds, known) = (holds as f64, self.holds.max(1) as f64);
        self.deviation.mul_f64((holds + holds * holds / known).sqrt())
    }
}

/// Returns the time that half of these, in increasing order, take at most.
fn half(durations: &[Duration]) -> Option<Duration> {
    durations.get(durations.len().checked_sub(1)? / 2).copied()
}

impl Evidence {
    /// Gathers what the history and the other locks show.
    pub(crate) fn of(lock: &LockInfo, entries: &[Entry], all: &[LockInfo], deadlocks: Vec<Deadlock>) -> Self {
        let holds = entries.iter().filter_map(Entry::hold).filter(|hold| hold.is_release());
        let host = |hold: &'_ PastHold| hold.owner.as_ref().map_or_else(String::new, |owner| owner.host.clone());
        let holds: Vec<_> = holds.map(|hold| (host(hold), hold.held())).collect();
        let concerns = |it: &Deadlock| it.certainty != Certainty::Possible && it.involves(&lock.path);
        let deadlocks = deadlocks.into_iter().filter(concerns).collect();
        let is_same = |one: &ContenderInfo, other: &ContenderInfo| {
            let is_session = one.session == other.session && !one.session.is_none();
            is_session || one.owner.is_some() && one.owner == other.owner
        };
        let shares_a_holder = |other: &&LockInfo| {
            let mut theirs = other.holders.iter();
            other.path != lock.path && theirs.any(|it| lock.holders.iter().any(|holder| is_same(holder, it)))
        };
        let others = all.iter().filter(|other| !other.waiters.is_empty()).filter(shares_a_holder);
        let others = others.map(|other| (other.path.clone(), other.waiters.len())).collect();
        let at_work = lock.holders.first().and_then(AtWork::of);
        Evidence {
            habits: Habits::of(entries, None),
            pace: Pace::of(&holds),
            slow: slow(&holds),
            deadlocks,
            others,
            at_work,
            ..Evidence::default()
        }
    }

    /// `session 0x10002a20fcd0000 answered 1 s ago, from 10.0.3.7:51234`, if the servers say so. A server answers a client whenever
    /// that asks, so this is also when the client was last heard.
    pub(crate) fn session(&self, holder: &ContenderInfo) -> Option<String> {
        let session = holder.session;
        if session.is_none() {
            return None;
        }
        let Some(SessionConnection { address, silence, .. }) = self.connections.of(session) else {
            let listed = plain(&self.connections.listed.join(", "));
            let is_known = self.connections.is_complete();
            return is_known.then(|| format!("session {session} has no connection to {listed}"));
        };
        let ago = rough(silence.at_least);
        Some(match silence.is_exact {
            true => format!("session {session} answered {ago} ago, from {address}"),
            // An idle client pings a few times within its timeout, so that much silence is no trouble.
            false if silence.is_long() => {
                let timeout =
                    silence.timeout.map_or_else(String::new, |timeout| format!(" (timeout {})", spell(timeout)));
                format!("session {session}{timeout} has not answered for {ago} or longer, connected from {address}")
            }
            false => format!("session {session} is connected from {address}"),
        })
    }

    /// Returns about how long it takes until the holder and this many waiters have held the lock: `about 2 min, give or take 20 s`. Nobody
    /// knows when a holder ends that holds for longer than usual: `about 2 min after its holder has ended`.
    ///
    /// Only for a lock that one contender holds at a time.
    pub(crate) fn estimate(&self, lock: &LockInfo, waiters: usize, time: &ServerTime) -> Option<String> {
        let pace = Some(&self.pace).filter(|pace| pace.holds >= ENOUGH)?;
        let contenders = || lock.holders.iter().chain(&lock.waiters);
        if lock.permits.is_some() || lock.lease.is_some() || contenders().any(|it| it.mode == "read") {
            return None;
        }
        let held = lock.holders.first().and_then(|holder| Some((time.ago(holder.granted?)?, pace.expected(holder))));
        let of_waiters = lock.waiters.iter().take(waiters).map(|waiter| pace.expected(waiter)).sum::<Duration>();
        let about = |all: Duration| match pace.spread(waiters) {
            // A small one is nothing that a wait depends on.
            spread if spread * 10 > all => format!("about {}, give or take {}", rough(all), rough(spread)),
            _ => format!("about {}", rough(all)),
        };
        Some(match held {
            _ if lock.holders.is_empty() => about(of_waiters),
            Some((held, expected)) if held < expected => about(of_waiters + (expected - held)),
            _ if waiters == 0 => "until its holder has ended".to_owned(),
            _ => format!("{} after its holder has ended", about(of_waiters)),
        })
    }

    /// The lines about the holder, without an indentation.
    pub(crate) fn lines(&self, lock: &LockInfo, time: &ServerTime) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some(usual), Some(longest)) = (self.habits.usual(), self.habits.durations.last()) {
            let count = counted(self.habits.durations.len() as u64, "recorded hold");
            let mut line = format!("usually {} (half of the last {count}), at most {}", spell(usual), spell(*longest));
            let held = lock.holders.first().and_then(|holder| Some(holder.grant()?.held(time.now?)));
            let enough = self.habits.usual_of_enough().filter(|usual| *usual > Duration::ZERO);
            if let (Some(held), Some(usual)) = (held.filter(|held| held.at_least > *longest), enough) {
                let times = (held.at_least.as_secs_f64() / usual.as_secs_f64()).floor();
                let least = if held.known().is_none() { "at least " } else { "" };
                let long = Severity::Notice.paint(&format!("this one takes {least}{times:.0} times as long"));
                line.push_str(&format!("; {long}"));
            }
            lines.push(line);
        }
        // They stand below all holders.
        let whose = if lock.holders.len() > 1 { "the first holder: " } else { "" };
        let at_work = self.at_work.iter().flat_map(|it| it.lines(SystemTime::now()));
        lines.extend(at_work.map(|line| format!("{whose}{line}")));
        if let Some(Slow { host, holds, half, others }) = &self.slow {
            let count = counted(*holds as u64, "recorded hold");
            lines.push(plain(&format!(
                "slow: {host}, usually {} in {count}; the others usually {}",
                spell(*half),
                spell(*others)
            )));
        }
        for (path, waiters) in self.others.iter().take(OTHERS) {
            lines.push(plain(&format!("it also holds {path}, for which {waiters} wait")));
        }
        let more = self.others.len().saturating_sub(OTHERS);
        if more > 0 {
            lines.push(format!("and {} more that others wait for", counted(more as u64, "lock")));
        }
        for deadlock in &self.deadlocks {
            let sure = match deadlock.certainty {
                Certainty::Certain => Severity::Serious.paint("deadlock"),
                _ => Severity::Notice.paint("likely a deadlock"),
            };
            lines.push(format!("{sure}: {deadlock}"));
        }
        lines
    }

    /// The lines about the waiters of this user on this machine.
    pub(crate) fn mine(&self, lock: &LockInfo, time: &ServerTime) -> Vec<String> {
        let is_mine = |waiter: &ContenderInfo| {
            waiter.owner.as_ref().is_some_and(|it| (&it.user, &it.host) == (&HERE.user, &HERE.host))
        };
        let mine = lock.waiters.iter().enumerate().filter(|(_, waiter)| is_mine(waiter));
        let line = |(at, waiter): (usize, &ContenderInfo)| {
            let pid = waiter.owner.as_ref().map_or(0, |owner| owner.pid);
            let waited =
                time.ago(waiter.since).map_or_else(String::new, |waited| format!(", waited {}", whole(waited)));
            let about = self.estimate(lock, at, time);
            let about = about.map_or_else(String::new, |about| format!("; to go: {about}"));
            format!("yours (pid {pid}): place {} of {}{waited}{about}", at + 1, lock.waiters.len())
        };
        mine.map(line).collect()
    }
}

/// Whole seconds, unless it is shorter.
fn rough(time: Duration) -> String {
    if time < Duration::from_secs(1) { spell(time) } else { whole(time) }
}

pub(crate) fn is_used(lock: &LockInfo) -> bool {
    !lock.holders.is_empty() || !lock.waiters.is_empty()
}

/// Returns what the records of each lock in use show, and notes at its holders what they say of their grants.
pub(crate) async fn habits(
    keeper: &Lockkeeper,
    locks: &mut [LockInfo],
    now: Option<SystemTime>,
) -> Result<HashMap<String, Habits>, Error> {
    let used: Vec<_> = locks.iter().filter(|lock| is_used(lock)).map(|lock| lock.path.clone()).collect();
    let habits = History::new(keeper).habits(&used, now).await?;
    for lock in locks {
        habits.get(&lock.path).iter().for_each(|habits| habits.date(lock));
    }
    Ok(habits)
}

/// The machine whose holds take clearly longer than those of all others.
fn slow(holds: &[(String, Duration)]) -> Option<Slow> {
    let mut by_host: HashMap<&str, Vec<Duration>> = HashMap::new();
    for (host, held) in holds {
        by_host.entry(host).or_default().push(*held);
    }
    let slowest = by_host.iter_mut().filter_map(|(host, own)| {
        own.sort();
        Some((*host, own.len(), half(own)?)).filter(|(host, count, _)| *count >= ENOUGH_OF_ONE && !host.is_empty())
    });
    let (host, count, own) = slowest.max_by_key(|(host, _, half)| (*half, *host))?;
    let mut others: Vec<_> = by_host.into_iter().filter(|(other, _)| *other != host).flat_map(|(_, it)| it).collect();
    others.sort();
    let theirs = half(&others).filter(|_| others.len() >= ENOUGH)?;
    let is_slow = own >= theirs.saturating_mul(SLOWER) && own >= Duration::from_millis(100);
    is_slow.then(|| Slow { host: host.to_owned(), holds: count, half: own, others: theirs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_half_of_an_even_number_is_the_lower_one() {
        let secs = |all: &[u64]| all.iter().map(|secs| Duration::from_secs(*secs)).collect::<Vec<_>>();
        assert_eq!(
            [half(&secs(&[])), half(&secs(&[3])), half(&secs(&[1, 5, 9, 20]))],
            [None, Some(Duration::from_secs(3)), Some(Duration::from_secs(5))]
        );
    }

    /// The recorded holds of ten machines: nine hold the lock for a second, and one for eleven.
    fn one_slow_machine(of_each: usize) -> Vec<(String, Duration)> {
        let secs = |number| if number == 9 { 11 } else { 1 };
        let hold = |number| (format!("db{number}"), Duration::from_secs(secs(number)));
        (0..10 * of_each).map(|number| hold(number % 10)).collect()
    }

    /// Half of the holds take a second, and the sum of ten of them is 20 s.
    #[test]
    fn the_time_to_go_is_the_sum_of_what_the_machines_ahead_usually_take() {
        let pace = Pace::of(&one_slow_machine(1));
        let secs = Duration::from_secs;
        assert_eq!((pace.mean, pace.by_host["db9"], pace.by_host["db0"]), (secs(2), secs(11), secs(1)));
        assert!(pace.spread(10) > secs(10) && pace.spread(10) < secs(20), "{:?}", pace.spread(10));
        assert_eq!(Pace::of(&one_slow_machine(1)[..9]).spread(10), Duration::ZERO, "they all take the same");
    }

    #[test]
    fn one_slow_machine_of_ten_is_named_by_its_two_recorded_holds() {
        assert_eq!(slow(&one_slow_machine(1)), None);
        let found = slow(&one_slow_machine(2)).map(|slow| (slow.host, slow.holds));
        assert_eq!(found, Some(("db9".to_owned(), 2)));
    }
}
