//! `lockkeeper observe` beside a campaign: it must see every grant, or say that it did not look.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use lockkeeper_testkit::end;
use lockkeeper_testkit::history::{Event, Outcome, What};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::judge::{Attempt, Word};
use super::plan::name;
use crate::site::Site;
use crate::tools::{lines, now};

/// How far the observer's times may be from those of the contenders, on a machine that is not late.
const TRAVEL: Duration = Duration::from_secs(1);

/// How much later an event of a server that stands still may come: the observer gives up a connection that is silent for two thirds
/// of its session timeout, and then reports a gap.
const SILENT: Duration = Duration::from_secs(20);

/// What is printed of the journal before and after a grant that it should have, in milliseconds: about a session.
const SESSION: u64 = 10_000;

/// A line of its journal.
#[derive(Clone, Deserialize, Serialize)]
struct Fact {
    at_ms: u64,
    fact: String,
    lock: Option<String>,
    who: Option<String>,
    since_ms: Option<u64>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

pub(super) struct Observer {
    child: Child,
    journal: PathBuf,
    /// Its memory at the start, in KiB.
    before: u64,
}

/// What it has seen.
pub(super) struct Seen {
    all: Vec<Fact>,
    granted: Vec<Fact>,
    /// Waits that ended while it was not known who held the lock: a hold with a holder marker may be over before that is read.
    undecided: Vec<Fact>,
    gaps: Vec<(u64, u64)>,
    /// Its memory at the start and at the end, in KiB.
    memory: (u64, u64),
    /// The time by the clock of the campaign at the beginning of 1970, negative.
    epoch: Duration,
}

impl Observer {
    /// Starts it, and returns when it observes.
    pub(super) fn start(site: &Site) -> Result<Observer> {
        let journal = site.file("observed");
        let mut command = site.command();
        // It is not one of the processes that must end by themselves.
        command.env_remove("LOCKKEEPER_STATE_DIR");
        command.args(["observe", "--listen", "127.0.0.1:0", "--journal"]).arg(&journal);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(fs::File::create(site.file("observer.stderr"))?)
            .spawn()
            .context("starting the observer")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        if line.is_empty() {
            end(&mut child);
            bail!("the observer has ended");
        }
        let before = memory(&child);
        Ok(Observer { child, journal, before })
    }

    /// Ends it as a person does, and reads its journal.
    pub(super) fn end(mut self) -> Result<Seen> {
        let memory = (self.before, memory(&self.child));
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        if !self.child.wait()?.success() {
            bail!("the observer did not end well");
        }
        let files = fs::read_dir(&self.journal).context("its journal")?;
        let mut files: Vec<_> = files.collect::<Result<_, _>>()?;
        files.sort_by_key(fs::DirEntry::file_name);
        let all: Vec<Fact> = files.iter().flat_map(|file| lines(&file.path())).collect();
        let (mut granted, mut undecided, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        for fact in &all {
            match (fact.fact.as_str(), fact.since_ms) {
                ("granted", _) => granted.push(fact.clone()),
                ("left_waiting", _) if fact.more.contains_key("about") => undecided.push(fact.clone()),
                ("gap", Some(since)) => gaps.push((since, fact.at_ms)),
                _ => {}
            }
        }
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.saturating_sub(now());
        Ok(Seen { all, granted, undecided, gaps, memory, epoch })
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// What a contender knows of one of its grants.
#[derive(Debug)]
struct Grant {
    pid: u32,
    lock: String,
    /// The times at which the observer may have seen it.
    times: RangeInclusive<u64>,
    /// How long after the start of the campaign it was.
    at: Duration,
}

impl Seen {
    /// Compares it with what the contenders did after `start`. `late` is how late the machine was. Prints the counts, and returns the
    /// grants that it should have seen.
    pub(super) fn missed(mut self, attempts: &[Attempt], start: Duration, late: Duration) -> Vec<String> {
        let slack = TRAVEL + late;
        let ms = |time: Duration| (self.epoch + time).as_millis() as u64;
        let mut grants = Vec::new();
        for attempt in attempts {
            let events = || {
                attempt
                    .lines
                    .iter()
                    .filter_map(|(_, word)| if let Word::Did(event) = word { Some(event) } else { None })
            };
            // A later use of a hold is no grant of the lock.
            let joins = |it: &Event| if let What::Joins { hold, .. } = it.what { Some(hold) } else { None };
            let later: HashSet<_> = events().filter_map(joins).collect();
            for event in events() {
                let What::Asked { outcome: Outcome::Granted(grant), .. } = &event.what else { continue };
                if later.contains(&grant.hold) {
                    continue;
                }
                let lock = format!("/locks/{}", name(event.lock as usize));
                let times = ms(event.from.saturating_sub(slack))..=ms(event.until + slack);
                grants.push(Grant { pid: attempt.pid, lock, times, at: event.until.saturating_sub(start) });
            }
        }
        let all = grants.len();
        let (in_gaps, mut missed) = self.unseen(grants);
        let unseen = missed.len();
        missed = unmatched(missed, &mut self.undecided, SILENT);
        let (before, after) = (self.memory.0 / 1024, self.memory.1 / 1024);
        println!(
            "observer: {} of {all} grants seen, {} in {} gaps, {} not decided, {} missed; {before} MiB at the start, {after} MiB at the end",
            all - in_gaps.len() - unseen,
            in_gaps.len(),
            self.gaps.len(),
            unseen - missed.len(),
            missed.len()
        );
        let text = |Grant { pid, lock, times, at }: Grant| {
            let around = times.start().saturating_sub(SESSION)..=times.end() + SESSION;
            let is_near =
                |fact: &&Fact| around.contains(&fact.at_ms) && fact.lock.as_ref().is_none_or(|other| *other == lock);
            println!("what the observer saw of {lock} around {}..{}:", times.start(), times.end());
            let near = self.all.iter().filter(is_near).filter_map(|fact| serde_json::to_string(fact).ok());
            near.for_each(|fact| println!("  {fact}"));
            format!("{:.1}: the observer did not see that pid {pid} was granted {lock}", at.as_secs_f64())
        };
        missed.into_iter().map(text).collect()
    }

    /// Returns the grants that were not seen: those in a gap, which need not be seen, and the others.
    fn unseen(&mut self, grants: Vec<Grant>) -> (Vec<Grant>, Vec<Grant>) {
        let is_in_gap =
            |grant: &Grant| self.gaps.iter().any(|(since, at)| since <= grant.times.end() && grant.times.start() <= at);
        let (mut in_gaps, mut others): (Vec<_>, Vec<_>) = grants.into_iter().partition(is_in_gap);
        // The others come first: otherwise a grant in a gap could take what was seen of a later one of the same process.
        others = unmatched(others, &mut self.granted, Duration::ZERO);
        in_gaps = unmatched(in_gaps, &mut self.granted, Duration::ZERO);
        others = unmatched(others, &mut self.granted, SILENT);
        (in_gaps, others)
    }
}

impl Grant {
    /// The facts that may be this grant: those of its process that were seen at its times, or `later`. The node of a short hold may be
    /// gone before it is read: then it is that of any process.
    fn fitting(&self, facts: &[Fact], later: Duration) -> Vec<usize> {
        let times = *self.times.start()..=self.times.end() + later.as_millis() as u64;
        let owner = format!("(pid {})", self.pid);
        let is_there = |fact: &Fact| times.contains(&fact.at_ms) && fact.lock.as_ref() == Some(&self.lock);
        let is_its = |fact: &Fact| fact.who.as_ref().is_some_and(|who| who.contains(&owner));
        let at = |is: &dyn Fn(&Fact) -> bool| {
            let facts = facts.iter().enumerate().filter(|(_, fact)| is_there(fact) && is(fact));
            facts.map(|(at, _)| at).collect::<Vec<_>>()
        };
        [at(&is_its), at(&|fact| fact.who.is_none())].concat()
    }
}

/// Gives a fact of its own to as many grants as possible, and takes these facts away. Returns the other grants. (Kuhn's matching.)
fn unmatched(grants: Vec<Grant>, facts: &mut Vec<Fact>, later: Duration) -> Vec<Grant> {
    let fits: Vec<_> = grants.iter().map(|grant| grant.fitting(facts, later)).collect();
    let mut of = vec![None; facts.len()];
    let has_one: Vec<_> =
        (0..grants.len()).map(|at| takes(at, &fits, &mut of, &mut vec![false; facts.len()])).collect();
    let mut of = of.into_iter();
    facts.retain(|_| of.next().flatten().is_none());
    grants.into_iter().zip(has_one).filter(|(_, has_one)| !has_one).map(|(grant, _)| grant).collect()
}

/// Takes a fact that fits for this grant; the one that has it takes another one, if it can.
fn takes(grant: usize, fits: &[Vec<usize>], of: &mut [Option<usize>], tried: &mut [bool]) -> bool {
    for &fact in &fits[grant] {
        if std::mem::replace(&mut tried[fact], true) {
            continue;
        }
        if of[fact].is_none_or(|other| takes(other, fits, of, tried)) {
            of[fact] = Some(grant);
            return true;
        }
    }
    false
}

/// The memory of a process, in KiB.
fn memory(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(at_ms: u64) -> Fact {
        let (lock, who) = (Some("/locks/a".to_owned()), Some("root@here (pid 7)".to_owned()));
        Fact { at_ms, fact: "granted".to_owned(), lock, who, since_ms: None, more: Map::new() }
    }

    fn grant(times: RangeInclusive<u64>) -> Grant {
        Grant { pid: 7, lock: "/locks/a".to_owned(), times, at: Duration::ZERO }
    }

    /// What an observer has seen that looked again from 5000 on.
    fn seen(granted: Vec<Fact>) -> Seen {
        Seen {
            all: vec![],
            granted,
            undecided: vec![],
            gaps: vec![(1000, 5000)],
            memory: (0, 0),
            epoch: Duration::ZERO,
        }
    }

    #[test]
    fn a_grant_in_a_gap_takes_nothing_that_was_seen_of_a_later_grant() {
        let grants = vec![grant(4000..=6000), grant(5100..=7100), grant(5400..=7400)];
        let (in_gaps, missed) = seen(vec![granted(6000), granted(6400)]).unseen(grants);
        assert_eq!((in_gaps.len(), missed.len()), (1, 0), "{missed:?}");
    }

    /// Otherwise the first would take what was seen of the second.
    #[test]
    fn a_grant_takes_what_is_of_any_process_if_its_own_was_another_one() {
        let any = Fact { who: None, ..granted(6_000) };
        let grants = vec![grant(5_100..=7_100), grant(6_200..=8_200)];
        let (_, missed) = seen(vec![any, granted(7_000)]).unseen(grants);
        assert_eq!(missed.len(), 0, "{missed:?}");
    }

    #[test]
    fn a_grant_outside_of_gaps_that_was_not_seen_is_missed() {
        let grants = vec![grant(4000..=6000), grant(5100..=7100), grant(40_000..=42_000)];
        let (in_gaps, missed) = seen(vec![granted(5500), granted(6000)]).unseen(grants);
        assert_eq!((in_gaps.len(), missed.len()), (0, 1), "{missed:?}");
    }
}
