//! The judge: finds the violations of the promises in a history.
//!
//! Times are bounds, so each rule reports only certain violations. A hold was certainly believed from the end of the
//! first check that found it held until the beginning of the last one, because a loss is final.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::{Cause, Event, Grant, HoldId, Outcome, QueuePosition, Share, What};

/// The promises that depend on the kinds of the locks and the faults of their world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promises {
    /// The number of permits.
    pub permits: u32,
    /// How much later than its deadline a call may return.
    pub lateness: Duration,
    /// How long a release without a confirmation may block other contenders.
    pub abandoned: Duration,
    /// How long a lock may stay free while a contender waits for it.
    pub idle: Duration,
    /// In a world without faults of servers and clocks: no hold is lost or nearly lost there.
    pub healthy: Option<Health>,
    /// The shortest time from one run of a job to the next, if a slot is no time of the calendar.
    pub every: Option<Duration>,
}

/// For how long a hold can be trusted at least.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    pub start: Duration,
    /// At every later moment.
    pub later: Duration,
}

/// The name of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// Contenders that believe at the same time that they hold may hold together.
    Exclusion,
    /// A contender that lost its lock by a fault ends its work in time.
    EndsInTime,
    /// No contender believes in an older hold after another one believed in a newer one.
    OldAfterNew,
    LossIsFinal,
    /// A healthy hold stays healthy: it starts with half of the session timeout, and is neither lost, suspected nor nearly lost.
    Healthy,
    /// A resource that checks tokens accepts no token that is older than one it has seen.
    Fencing,
    /// No update of a resource is lost.
    NoLostUpdate,
    /// Tokens grow from grant to grant.
    Tokens,
    /// First come, first served within a class.
    Order,
    /// A break spares the successor of the holder that was seen.
    Removed,
    /// A wait ends at its deadline, neither earlier nor later.
    Deadline,
    /// The exit status of a command fits the events.
    Status,
    End,
    /// A waiter is woken when the lock is free.
    WakeUp,
    /// No node and no process is left.
    NoOrphan,
    /// Each slot of a job runs exactly once.
    Once,
    /// Of several locks in one call, all are granted or none.
    AllOrNone,
    /// After a loss, the lock stays unavailable for the hold's delay.
    Delay,
    /// A hold makes way for contenders of earlier classes alone.
    Yield,
    /// A leased hold lasts as long as its lease, unless a request of a higher priority ends it.
    Lease,
    /// An observer reports the leaders in their order, and the last one.
    Report,
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub claim: Claim,
    /// The number of the lock.
    pub lock: u32,
    pub detail: String,
    /// The contenders that it concerns, if they are known.
    pub contenders: Vec<u32>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at lock {}: {}", self.claim, self.lock, self.detail)
    }
}

/// The numbers of judged events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that were granted.
    pub grants: usize,
    /// Calls that were not granted.
    pub refusals: usize,
    /// Checks that found a lock held.
    pub looks: usize,
    /// Checks of how long a hold may be trusted.
    pub trusts: usize,
    /// Holds that were lost.
    pub losses: usize,
    pub changes: usize,
    /// Writes that a resource accepted.
    pub accepted: usize,
    /// Writes that a resource rejected.
    pub refused: usize,
    /// Writes that were accepted under an older token than an earlier one.
    pub stale: usize,
}

impl Tally {
    /// Adds the numbers of another history.
    pub fn add(&mut self, other: Tally) {
        self.grants += other.grants;
        self.refusals += other.refusals;
        self.looks += other.looks;
        self.trusts += other.trusts;
        self.losses += other.losses;
        self.changes += other.changes;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.stale += other.stale;
    }
}

/// The result of a judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The violations; empty if every promise was kept.
    pub violations: Vec<Violation>,
    /// The numbers of judged events.
    pub tally: Tally,
}

/// Judges a history. The order of its events does not matter.
pub fn judge(events: &[Event], promises: &Promises) -> Verdict {
    let mut locks: BTreeMap<u32, Vec<&Event>> = BTreeMap::new();
    let mut absences: BTreeMap<u32, Absences> = BTreeMap::new();
    for event in events {
        match event.what {
            What::Stopped => absences.entry(event.contender).or_default().stopped.push((event.from, event.until)),
            What::Died => absences.entry(event.contender).or_default().dead = true,
            _ => locks.entry(event.lock).or_default().push(event),
        }
    }
    let mut verdict = Verdict::default();
    for (lock, events) in locks {
        let mut case = Case { lock, promises, absences: &absences, verdict: &mut verdict, holds: BTreeMap::new() };
        case.gather(&events);
        case.calls(&events);
        case.exclusion();
        case.old_after_new();
        case.healthy(&events);
        case.writes(&events);
        case.fenced(&events);
        case.broken();
        case.aimed(&events);
        case.delays();
        case.yields(&events);
        case.patience();
        case.leases(&events);
        case.reports(&events);
        case.tokens();
        case.order();
        case.overtaken(&events);
        case.wake_ups(&events);
        case.slots(&events);
    }
    verdict
}

/// The times when a contender could not run.
#[derive(Default)]
struct Absences {
    stopped: Vec<(Duration, Duration)>,
    dead: bool,
}

/// The part of a hold between two changes.
struct Stretch {
    share: Share,
    token: Option<i64>,
    /// The time when the contender certainly believed in it.
    believed: Option<(Duration, Duration)>,
}

/// A hold, assembled from its events.
struct Hold {
    contender: u32,
    asked: Duration,
    granted: Duration,
    place: Option<QueuePosition>,
    stretches: Vec<Stretch>,
    /// When a check found it lost.
    lost: Option<Duration>,
    /// When it ended, and whether that was confirmed.
    over: (Duration, bool),
    /// From when until when it may be believed beside another hold, or beside any.
    excuses: Vec<(Duration, Duration, Option<HoldId>)>,
    /// The first use of the same hold, if this is a later one.
    joins: Option<HoldId>,
    delay: Duration,
    /// When somebody ended the delay.
    pardoned: Option<Duration>,
    /// When somebody broke it, and until when it may be believed at most.
    broken: Option<(Duration, Duration)>,
    /// Its last lease: the priority, whether it ends with the lease, and the bounds of its end.
    lease: Option<(i32, bool, (Duration, Duration))>,
}

impl Hold {
    fn first(&self) -> &Stretch {
        &self.stretches[0]
    }

    /// The time of the last belief; the grant, if there was none.
    fn last_belief(&self) -> Duration {
        self.stretches.iter().filter_map(|stretch| stretch.believed).map(|(_, last)| last).fold(self.granted, Ord::max)
    }

    /// The time, but not after somebody broke it.
    fn unless_broken(&self, at: Duration) -> Duration {
        self.broken.map_or(at, |(broken, _)| at.min(broken))
    }
}

pub(super) struct Case<'a> {
    lock: u32,
    pub(super) promises: &'a Promises,
    absences: &'a BTreeMap<u32, Absences>,
    verdict: &'a mut Verdict,
    holds: BTreeMap<HoldId, Hold>,
}

impl Case<'_> {
    pub(super) fn accuse(&mut self, claim: Claim, detail: String) {
        self.accuse_of(claim, detail, &[]);
    }

    fn accuse_of(&mut self, claim: Claim, detail: String, holds: &[HoldId]) {
        let contenders = holds.iter().map(|hold| self.holds.get(hold).map_or(0, |hold| hold.contender)).collect();
        self.verdict.violations.push(Violation { claim, lock: self.lock, detail, contenders });
    }

    /// Returns until when a hold may be believed beside another one, if that began before `at`.
    fn excuse(&self, own: HoldId, other: HoldId, at: Duration) -> Option<Duration> {
        let excuses = self.holds[&own].excuses.iter();
        let since = excuses.filter(|(from, _, beside)| *from <= at && beside.is_none_or(|beside| beside == other));
        since.map(|(_, until, _)| *until).max()
    }

    /// Whether a hold with excuses has one for each hold beside which `is_wrong`, which was not over when both were believed.
    fn is_explained(&self, own: HoldId, is_wrong: impl Fn(&Hold) -> bool) -> bool {
        let at = |hold: &Hold| hold.first().believed.map_or(hold.granted, |(first, _)| first);
        let hold = &self.holds[&own];
        let mut others = self.holds.iter().filter(|(id, other)| **id != own && is_wrong(other));
        let is_excused = |id, at| self.excuse(own, id, at).is_some_and(|until| at <= until);
        !hold.excuses.is_empty() && others.all(|(id, other)| is_excused(*id, at(hold).max(at(other))))
    }

    fn gather(&mut self, events: &[&Event]) {
        for event in events {
            let What::Asked { outcome: Outcome::Granted(grant), .. } = event.what else { continue };
            let Grant { hold, share, token, place } = grant;
            let stretches = vec![Stretch { share, token, believed: None }];
            let over = (event.until, false);
            let known = Hold {
                contender: event.contender,
                asked: event.from,
                granted: event.until,
                place,
                stretches,
                lost: None,
                over,
                excuses: Vec::new(),
                joins: None,
                delay: Duration::ZERO,
                pardoned: None,
                broken: None,
                lease: None,
            };
            self.holds.insert(hold, known);
        }
        // The actions of one contender on one hold happen in sequence.
        let mut later: Vec<&&Event> = events.iter().collect();
        later.sort_by_key(|event| event.from);
        for event in later {
            let of = match event.what {
                What::Looked { hold, .. } | What::Changed { hold, .. } | What::Released { hold, .. } => hold,
                What::Excused { hold, .. }
                | What::Pardoned { hold }
                | What::Joins { hold, .. }
                | What::Delays { hold, .. } => hold,
                What::Broken { hold, .. } | What::Yielded { hold } | What::Leased { hold, .. } => hold,
                _ => continue,
            };
            let Some(hold) = self.holds.get_mut(&of) else { continue };
            let mut undead = None;
            match event.what {
                What::Excused { beside, .. } => {
                    hold.excuses.push((event.from, event.until, beside));
                    continue;
                }
                What::Joins { first, .. } => {
                    hold.joins = Some(first);
                    continue;
                }
                What::Pardoned { .. } => {
                    hold.pardoned = Some(event.from);
                    continue;
                }
                What::Delays { delay, .. } => {
                    hold.delay = delay;
                    continue;
                }
                What::Leased { priority, strict, ends, .. } => {
                    hold.lease = Some((priority, strict, ends));
                    continue;
                }
                What::Broken { within, .. } => {
                    hold.excuses.push((event.from, event.until + within, None));
                    hold.broken = Some((event.until, event.until + within));
                    continue;
                }
                What::Yielded { .. } => {
                    hold.over.0 = hold.over.0.max(event.from);
                    continue;
                }
                What::Looked { held: true, .. } => {
                    self.verdict.tally.looks += 1;
                    undead = hold.lost.filter(|lost| *lost < event.from);
                    let stretch = hold.stretches.last_mut().expect("a hold begins with a stretch");
                    let (first, _) = stretch.believed.unwrap_or((event.until, event.from));
                    stretch.believed = Some((first, event.from));
                }
                What::Looked { held: false, .. } if hold.lost.is_none() => {
                    self.verdict.tally.losses += 1;
                    hold.lost = Some(event.until);
                }
                What::Changed { share, token, .. } => {
                    self.verdict.tally.changes += 1;
                    hold.stretches.push(Stretch { share, token, believed: None });
                }
                What::Released { confirmed, .. } => hold.over.1 |= confirmed,
                _ => {}
            }
            hold.over.0 = hold.over.0.max(event.until);
            if let Some(lost) = undead {
                self.accuse(Claim::LossIsFinal, format!("{of:?} was lost at {lost:?} and held at {:?}", event.from));
            }
        }
    }

    fn calls(&mut self, events: &[&Event]) {
        for event in events {
            let (limit, outcome) = match &event.what {
                What::Asked { limit, outcome } => (limit, outcome),
                What::LeftBehind { nodes } if !nodes.is_empty() => {
                    self.accuse(Claim::NoOrphan, format!("left behind: {nodes:?}"));
                    continue;
                }
                What::Together { wanted, held } if held < wanted => {
                    self.accuse(Claim::AllOrNone, format!("{} got {held} of {wanted} locks", event.contender));
                    continue;
                }
                _ => continue,
            };
            match outcome {
                Outcome::Granted(_) => self.verdict.tally.grants += 1,
                _ => self.verdict.tally.refusals += 1,
            }
            let absent = self.absences.get(&event.contender);
            if *outcome == Outcome::Pending {
                if !absent.is_some_and(|absent| absent.dead) {
                    self.accuse(Claim::End, format!("{} has waited since {:?}", event.contender, event.from));
                }
                continue;
            }
            let stopped = absent.map_or(Duration::ZERO, |absent| overlap(&absent.stopped, event.from, event.until));
            let took = event.until.saturating_sub(event.from).saturating_sub(stopped);
            if let Some(limit) = limit
                && took > limit.saturating_add(self.promises.lateness)
            {
                let who = event.contender;
                self.accuse(
                    Claim::Deadline,
                    format!("{who} asked at {:?} for {limit:?} and waited {took:?}", event.from),
                );
            }
        }
    }

    /// At no time do contenders believe that they hold together if they may not.
    fn exclusion(&mut self) {
        let mut believed: Vec<(Duration, Duration, Share, HoldId)> = Vec::new();
        for (id, hold) in &self.holds {
            for stretch in &hold.stretches {
                if let Some((from, until)) = stretch.believed
                    && from <= until
                {
                    believed.push((from, until, stretch.share, *id));
                }
            }
        }
        believed.sort_by_key(|(from, ..)| *from);
        let mut inside: Vec<(Duration, Duration, Share, HoldId)> = Vec::new();
        let mut accused = BTreeSet::new();
        for next in believed {
            let (at, _, share, id) = next;
            inside.retain(|(_, until, ..)| *until >= at);
            // Beside an excused hold, others are counted without it until its excuse ends.
            let (mut beside, mut late) = (vec![next], Vec::new());
            for other in &inside {
                let bounds = [(next, *other), (*other, next)]
                    .map(|(own, other)| Some((self.excuse(own.3, other.3, at)?, own, other.3)))
                    .into_iter()
                    .flatten();
                match bounds.max_by_key(|(bound, own, _)| (bound.saturating_sub(own.1), *bound)) {
                    None => beside.push(*other),
                    Some((bound, own, beside)) if own.1 > bound && self.excludes(share, other.2) => {
                        late.push((own.3, beside, own.1 - bound));
                    }
                    Some((bound, ..)) if at > bound => beside.push(*other),
                    Some(_) => {}
                }
            }
            for (own, beside, by) in late {
                let detail = format!("{own:?} had to end {by:?} before it did, beside {beside:?}");
                self.accuse_of(Claim::EndsInTime, detail, &[own, beside]);
            }
            let (mut alone, mut reads, mut permits) = (0_u32, 0_u32, 0_u32);
            for (_, _, share, _) in &beside {
                match share {
                    Share::Alone => alone += 1,
                    Share::Reads => reads += 1,
                    Share::Permits(take) => permits += take,
                }
            }
            let too_many = alone > 1 || alone == 1 && reads + permits > 0 || permits > self.promises.permits;
            if too_many && accused.insert(id) {
                let holds: Vec<_> = beside.iter().map(|hold| hold.3).collect();
                self.accuse_of(Claim::Exclusion, format!("at {at:?} these believe: {beside:?}"), &holds);
            }
            inside.push(next);
        }
    }

    fn excludes(&self, a: Share, b: Share) -> bool {
        match (a, b) {
            (Share::Reads, Share::Reads) => false,
            (Share::Permits(a), Share::Permits(b)) => a + b > self.promises.permits,
            _ => true,
        }
    }

    /// From the newest token to the oldest: finds the first belief in any newer hold, and in any newer hold that is
    /// alone.
    fn old_after_new(&mut self) {
        type First = Option<(Duration, HoldId)>;
        let mut by_token: Vec<(i64, Share, Duration, Duration, HoldId)> = Vec::new();
        for (id, hold) in &self.holds {
            for stretch in &hold.stretches {
                if let (Some(token), Some((first, last))) = (stretch.token, stretch.believed) {
                    by_token.push((token, stretch.share, first, last, *id));
                }
            }
        }
        by_token.sort_by_key(|(token, ..)| std::cmp::Reverse(*token));
        let (mut any, mut alone): (First, First) = (None, None);
        for same in by_token.chunk_by(|one, other| one.0 == other.0) {
            for (token, share, _, last, id) in same {
                let newer = if *share == Share::Alone { any } else { alone };
                let is_wrong = |other: &Hold| {
                    let newer =
                        |it: &Stretch| it.token > Some(*token) && it.believed.is_some_and(|(first, _)| first < *last);
                    other.stretches.iter().any(|it| newer(it) && (*share == Share::Alone || it.share == Share::Alone))
                };
                if let Some((first, other)) = newer
                    && *last > first
                    && !self.is_explained(*id, is_wrong)
                {
                    let detail =
                        format!("{id:?} (token {token}) at {last:?}, the newer {other:?} at {first:?} already");
                    self.accuse_of(Claim::OldAfterNew, detail, &[*id, other]);
                }
            }
            for (_, share, first, _, id) in same {
                let earlier = |known: First| match known {
                    Some(known) if known.0 <= *first => Some(known),
                    _ => Some((*first, *id)),
                };
                any = earlier(any);
                if *share == Share::Alone {
                    alone = earlier(alone);
                }
            }
        }
    }

    /// While servers answer and clocks run, no hold is lost.
    fn healthy(&mut self, events: &[&Event]) {
        let Some(Health { start, later }) = self.promises.healthy else { return };
        let lost: Vec<_> = self
            .holds
            .iter()
            .filter(|(_, hold)| hold.broken.is_none() && hold.lease.is_none())
            .filter_map(|(id, hold)| Some((*id, hold.lost?)))
            .collect();
        for (id, lost) in lost {
            self.accuse(Claim::Healthy, format!("{id:?} was lost at {lost:?}"));
        }
        let mut events = events.to_vec();
        events.sort_by_key(|event| event.from);
        let mut begun = BTreeSet::new();
        for event in events {
            let (id, sure, left) = match event.what {
                What::Changed { hold, .. } => {
                    begun.remove(&hold);
                    continue;
                }
                What::Trusted { hold, sure, left } => (hold, sure, left),
                _ => continue,
            };
            if self
                .holds
                .get(&id)
                .is_some_and(|hold| hold.lease.is_some() || hold.unless_broken(event.until) < event.until)
            {
                continue;
            }
            self.verdict.tally.trusts += 1;
            // A later use of a hold begins with what the hold has.
            let is_new = self.holds.get(&id).is_none_or(|hold| hold.joins.is_none());
            let least = if begun.insert(id) && is_new { start } else { later };
            if !sure || left < least {
                let how = if sure { "trusted" } else { "suspected" };
                self.accuse(Claim::Healthy, format!("{id:?} is {how} for {left:?} at {:?}, not {least:?}", event.from));
            }
        }
    }

    /// Checks the writes in the resource's own order.
    fn writes(&mut self, events: &[&Event]) {
        let mut writes = Vec::new();
        for event in events {
            if let What::Wrote { hold, token, order, accepted } = event.what {
                writes.push((order, hold, token, accepted));
            }
        }
        writes.sort_by_key(|(order, ..)| *order);
        let mut newest: Option<(i64, HoldId)> = None;
        let mut last = None;
        for (order, hold, token, accepted) in writes {
            if !accepted {
                self.verdict.tally.refused += 1;
                continue;
            }
            self.verdict.tally.accepted += 1;
            if let Some((_, by)) = last.replace((order, hold)).filter(|(known, _)| *known == order) {
                self.accuse_of(Claim::NoLostUpdate, format!("{by:?} and {hold:?} both wrote {order}"), &[by, hold]);
            }
            match newest {
                Some((seen, by)) if token < seen => {
                    self.verdict.tally.stale += 1;
                    let detail = format!("write {order} of {hold:?} under {token} after one of {by:?} under {seen}");
                    self.accuse_of(Claim::Fencing, detail, &[hold, by]);
                }
                _ => newest = Some((token, hold)),
            }
        }
        self.reads(events);
    }

    /// A fenced write takes effect only while the hold stands, in the servers' own order. Tokens of later ones never fall.
    fn fenced(&mut self, events: &[&Event]) {
        let mut newest: Option<(i64, i64, HoldId)> = None;
        let mut done_ones = Vec::new();
        for event in events {
            let What::Fenced { hold, token, answer, done } = event.what else { continue };
            match (answer, done) {
                (Some(true), None) => {
                    self.accuse_of(Claim::NoLostUpdate, format!("a write of {hold:?} is lost"), &[hold])
                }
                (Some(false), Some(_)) => {
                    self.accuse_of(Claim::Fencing, format!("a refused write of {hold:?} took effect"), &[hold]);
                }
                (_, None) => self.verdict.tally.refused += 1,
                (_, Some((txn, at))) => done_ones.push((txn, at, token, hold)),
            }
        }
        done_ones.sort_unstable();
        for (txn, at, token, id) in done_ones {
            self.verdict.tally.accepted += 1;
            let after = |other: Duration| at > other;
            let Some(own) = self.holds.get(&id) else { continue };
            let over = own.over.1 && after(own.over.0) || own.broken.is_some_and(|(broken, _)| after(broken));
            let next = |(other, next): (&HoldId, &Hold)| {
                let is_newer = next.first().share == Share::Alone && next.first().token > Some(token);
                (is_newer && after(next.granted)).then_some(*other)
            };
            let next = self.holds.iter().find_map(next);
            match newest.filter(|(_, newer, _)| token < *newer).map(|(.., by)| by).or(next) {
                Some(by) => {
                    self.verdict.tally.stale += 1;
                    let detail = format!("{id:?} wrote in {txn:#x} at {at:?} under {token}, after {by:?}");
                    self.accuse_of(Claim::Fencing, detail, &[id, by]);
                }
                None if over => {
                    self.accuse_of(Claim::Fencing, format!("{id:?} wrote at {at:?}, after its end"), &[id]);
                }
                None => newest = Some((txn, token, id)),
            }
        }
    }

    /// A holder learns in time that its hold was broken.
    fn broken(&mut self) {
        let late = |(id, hold): (&HoldId, &Hold)| {
            let (broken, until) = hold.broken?;
            (hold.last_belief() > until).then(|| (*id, broken, hold.last_belief()))
        };
        for (id, broken, believed) in self.holds.iter().filter_map(late).collect::<Vec<_>>() {
            self.accuse_of(
                Claim::EndsInTime,
                format!("{id:?}, broken at {broken:?}, is believed at {believed:?}"),
                &[id],
            );
        }
    }

    /// A break removes the holder that was seen, or none: another hold was not believed between the look and the grant.
    fn aimed(&mut self, events: &[&Event]) {
        for event in events {
            let What::Aimed { hold: id } = event.what else { continue };
            let Some(aimed) = self.holds.get(&id).filter(|hold| hold.lease.is_none()) else { continue };
            let is_another = |(other, it): &(&HoldId, &Hold)| {
                let uses_another = it.joins.unwrap_or(**other) != aimed.joins.unwrap_or(id);
                let excludes = self.excludes(it.first().share, aimed.first().share) && it.stretches.len() == 1;
                let last = it.unless_broken(it.last_belief());
                // A hold that is released may still have its node while the next one of its process holds.
                let earlier = it.granted < event.from && event.from < last && last < aimed.granted;
                uses_another && excludes && earlier
            };
            let Some((seen, _)) = self.holds.iter().find(is_another) else { continue };
            let (seen, at) = (*seen, event.from);
            let detail = format!("{id:?} was broken for a look at {at:?}, when {seen:?} held");
            self.accuse_of(Claim::Removed, detail, &[id, seen]);
        }
    }

    /// After a loss, no other contender is granted the lock before the delay has passed since the last belief.
    fn delays(&mut self) {
        let mut early = Vec::new();
        for (id, hold) in self.holds.iter().filter(|(_, hold)| hold.delay > Duration::ZERO && hold.lost.is_some()) {
            let last = hold.unless_broken(hold.last_belief());
            let over = (last + hold.delay).min(hold.pardoned.unwrap_or(Duration::MAX));
            let is_early = |other: &Hold| other.granted > last && other.granted < over;
            let others = self.holds.iter().filter(|(other, _)| *other != id);
            early
                .extend(others.filter(|(_, other)| is_early(other)).map(|(other, it)| (*id, last, *other, it.granted)));
        }
        for (id, last, other, granted) in early {
            let detail = format!("{other:?} was granted the lock at {granted:?}, {id:?} was lost after {last:?}");
            self.accuse_of(Claim::Delay, detail, &[id, other]);
        }
    }

    /// In a world without faults, a hold makes way only if a contender of an earlier class waits, or has just left. It continues only
    /// behind all those that waited when it made way.
    fn yields(&mut self, events: &[&Event]) {
        // As long as a contender needs to enter the queue, or its end to be known.
        let notice = self.promises.idle / 3;
        for event in events.iter().filter(|_| self.promises.healthy.is_some()) {
            let What::Yielded { hold } = event.what else { continue };
            let others = || events.iter().filter(|it| it.contender != event.contender);
            let wanted = || others().filter(|it| matches!(it.what, What::Wanted { .. }));
            let is_served = |it: &Event| {
                let mut own = self.holds.values().filter(|hold| hold.contender == it.contender);
                own.any(|hold| hold.asked <= it.from && it.from < hold.granted && it.until <= hold.granted)
            };
            let waits = |it: &&&Event| {
                let since_left = if is_served(it) { Duration::ZERO } else { notice };
                it.from < event.from && it.until + since_left > event.from
            };
            // One that ages may be in the foreground when it continues.
            let has_made_way =
                |it: &&&Event| matches!(it.what, What::Yielded { .. }) && it.from < event.from && it.until > event.from;
            if !wanted().any(|it| waits(&it)) && !others().any(|it| has_made_way(&it)) {
                let detail = format!("{hold:?} made way at {:?} for no contender", event.from);
                self.accuse_of(Claim::Yield, detail, &[hold]);
                continue;
            }
            let continues =
                |(_, next): &(&HoldId, &Hold)| next.contender == event.contender && next.asked == event.from;
            let Some((next, granted)) = self.holds.iter().find(continues).map(|(id, next)| (*id, next.granted)) else {
                continue;
            };
            let is_passed = |it: &&&Event| it.from + notice < event.from && it.until > granted + notice;
            if let Some(passed) = wanted().find(is_passed) {
                let (who, since) = (passed.contender, passed.from);
                let detail = format!(
                    "{hold:?} made way at {:?}, {next:?} was granted the lock at {granted:?}, while {who} waited since {since:?}",
                    event.from
                );
                self.accuse_of(Claim::Yield, detail, &[hold, next]);
            }
        }
    }

    /// In a world without faults, a contender that waits is served before those of its class, and of later ones, that ask long after it.
    fn patience(&mut self) {
        if self.promises.healthy.is_none() {
            return;
        }
        let mut passed = Vec::new();
        for (id, hold) in &self.holds {
            let Some(QueuePosition { class, number }) = hold.place else { continue };
            // A later use of a hold has the place of the first, if it was requested before that was granted, or before the process can have
            // looked for other contenders.
            let idle = self.promises.idle;
            if hold.joins.is_some_and(|first| self.holds[&first].granted + idle >= hold.asked) {
                continue;
            }
            let waits = |(_, first): &(&HoldId, &Hold)| {
                let Some(QueuePosition { class: earlier, number: its }) = first.place else { return false };
                let since = first.asked + self.promises.idle;
                let came = match earlier == class {
                    // A hold that made way keeps its number.
                    true => since < hold.asked && (its.is_none() || number.is_none() || its < number),
                    false => since < hold.asked || earlier > 0 && since < hold.granted,
                };
                let excludes = self.excludes(first.first().share, hold.first().share);
                earlier <= class && earlier <= 2 && excludes && came && first.granted > hold.granted
            };
            passed.extend(self.holds.iter().find(waits).map(|(first, _)| (*id, hold.granted, *first)));
        }
        for (id, granted, first) in passed {
            let detail = format!("{id:?} was granted the lock at {granted:?}, while {first:?} waited longer");
            self.accuse_of(Claim::Order, detail, &[id, first]);
        }
    }

    /// A leased hold is not believed after its lease if it ends with that. It is preempted only for a request of a higher priority.
    /// In a world without faults, nothing else ends it before the end of its lease; after that, only a request does.
    fn leases(&mut self, events: &[&Event]) {
        let mut wrong = Vec::new();
        for (id, hold) in &self.holds {
            if let Some((_, true, (_, latest))) = hold.lease
                && hold.last_belief() > latest
            {
                wrong.push((*id, format!("is believed at {:?}, after its lease", hold.last_belief())));
            }
        }
        for event in events {
            let What::Ended { hold: id, cause } = event.what else { continue };
            let Some(hold) = self.holds.get(&id) else { continue };
            let Some((own, strict, (earliest, _))) = hold.lease else { continue };
            let is_asked = |above: i32| {
                let is_asked = |it: &&Event| {
                    // A call that was dropped withdraws its request some time later.
                    let meanwhile = it.from < event.until && it.until + self.promises.idle > hold.granted;
                    let higher = matches!(it.what, What::Wanted { priority } if priority >= above);
                    meanwhile && higher && it.contender != event.contender
                };
                events.iter().any(is_asked)
            };
            let calm = self.promises.healthy.is_some() && hold.broken.is_none();
            let is_over_at_grant = earliest <= hold.granted || self.promises.idle > Duration::from_millis(1_500);
            let early = event.until < earliest;
            let is_right = match cause {
                Cause::Preempted => is_asked(own.saturating_add(1)),
                // Where a write takes long, a lease may be over at the grant.
                Cause::LeaseEnded => !calm || !early && (strict || is_over_at_grant || is_asked(i32::MIN)),
                Cause::Other => !calm,
            };
            if !is_right {
                wrong.push((id, format!("is lost at {:?}: {cause:?}, its lease ends at {earliest:?}", event.until)));
            }
        }
        for (id, what) in wrong {
            self.accuse_of(Claim::Lease, format!("{id:?} {what}"), &[id]);
        }
    }

    /// An observer reports each leader once, in the order of their terms; the last report is that nobody leads.
    fn reports(&mut self, events: &[&Event]) {
        let reported = |event: &&&Event| matches!(event.what, What::Reported { .. });
        let mut reports: Vec<_> = events.iter().filter(reported).collect();
        reports.sort_by_key(|event| event.from);
        let (mut newest, mut before) = (None, Some(i64::MIN));
        for event in reports {
            let What::Reported { token } = event.what else { continue };
            if token == before || token.is_some() && token <= newest {
                self.accuse(Claim::Report, format!("{token:?} at {:?}, after {before:?} and {newest:?}", event.from));
            }
            (newest, before) = (newest.max(token), token);
        }
        self.unreported(events);
        if let Some(leader) = before.filter(|leader| *leader > i64::MIN) {
            self.accuse(Claim::Report, format!("at the end, {leader} is reported"));
        }
    }

    /// In a world without faults, a leader is reported as long as it leads, from soon after its election.
    fn unreported(&mut self, events: &[&Event]) {
        let reports = |token: Option<i64>, by: Duration| {
            events.iter().any(|it| it.what == What::Reported { token } && it.from <= by)
        };
        let observed = events.iter().any(|it| matches!(it.what, What::Reported { .. }));
        if !observed || self.promises.healthy.is_none() {
            return;
        }
        let missed = |(_, hold): &(&HoldId, &Hold)| {
            let by = hold.granted + self.promises.idle;
            hold.unless_broken(hold.last_belief()) > by && !reports(hold.first().token, by)
        };
        if let Some((id, granted)) = self.holds.iter().find(missed).map(|(id, hold)| (*id, hold.granted)) {
            let detail = format!("{id:?}, elected at {granted:?}, is not reported for {:?}", self.promises.idle);
            self.accuse_of(Claim::Report, detail, &[id]);
        }
    }

    /// Who reads a resource under a hold sees every write that ended before that hold.
    fn reads(&mut self, events: &[&Event]) {
        for event in events {
            let What::Read { hold, order: read } = event.what else { continue };
            let Some(begun) = self.holds.get(&hold).map(|hold| hold.granted) else { continue };
            let missed = events.iter().find_map(|event| match event.what {
                What::Wrote { hold, order, accepted: true, .. } if event.until < begun && order > read => {
                    Some((order, hold))
                }
                _ => None,
            });
            if let Some((order, by)) = missed {
                let detail = format!("{hold:?} read {read} after {by:?} had written {order}");
                self.accuse_of(Claim::NoLostUpdate, detail, &[hold, by]);
            }
        }
    }

    /// A contender that asked after the grant of another one has a greater token, and so has one that believed after the other's
    /// last belief.
    fn tokens(&mut self) {
        self.tokens_grow(|hold| Some((hold.asked, hold.granted)));
        self.tokens_grow(|hold| hold.first().believed.filter(|(first, last)| first <= last));
    }

    /// `times`: from when a token must be greater than those that were given before it, and from when a token was given.
    fn tokens_grow(&mut self, times: impl Fn(&Hold) -> Option<(Duration, Duration)>) {
        let mut asked: Vec<(Duration, i64, Share, HoldId)> = Vec::new();
        let mut granted: Vec<(Duration, i64, Share, HoldId)> = Vec::new();
        for (id, hold) in &self.holds {
            if let (Some(token), Some((from, until))) = (hold.first().token, times(hold)) {
                asked.push((from, token, hold.first().share, *id));
                granted.push((until, token, hold.first().share, *id));
            }
        }
        asked.sort_by_key(|(at, ..)| *at);
        granted.sort_by_key(|(at, ..)| *at);
        let mut granted = granted.into_iter().peekable();
        let (mut any, mut alone) = ((i64::MIN, HoldId(0)), (i64::MIN, HoldId(0)));
        for (at, token, share, id) in asked {
            while let Some((_, earlier, its, by)) = granted.next_if(|(known, ..)| *known < at) {
                any = any.max((earlier, by));
                if its == Share::Alone {
                    alone = alone.max((earlier, by));
                }
            }
            let (earlier, by) = if share == Share::Alone { any } else { alone };
            let is_wrong = |other: &Hold| {
                let before = times(other).is_some_and(|(_, until)| until < at);
                let alone = share == Share::Alone || other.first().share == Share::Alone;
                before && alone && other.first().token.is_some_and(|earlier| token <= earlier)
            };
            let is_one = |own: HoldId| self.holds[&own].joins.unwrap_or(own);
            let fell = token < earlier || token == earlier && is_one(id) != is_one(by);
            if fell && !self.is_explained(id, is_wrong) {
                let detail = format!("{id:?} has {token} from {at:?}, {by:?} had {earlier} before");
                self.accuse_of(Claim::Tokens, detail, &[id, by]);
            }
        }
    }

    /// Of two exclusive holds from one queue, the one that joined first is granted first.
    fn order(&mut self) {
        let mut places: Vec<(u32, i64, Duration, Duration, HoldId)> = Vec::new();
        for (id, hold) in &self.holds {
            if let (Some(QueuePosition { class, number: Some(number) }), Share::Alone, Some((first, last))) =
                (hold.place, hold.first().share, hold.first().believed)
            {
                places.push((class, number, first, hold.unless_broken(last), *id));
            }
        }
        places.sort_by_key(|(class, number, ..)| (*class, std::cmp::Reverse(*number)));
        for class in places.chunk_by(|one, other| one.0 == other.0) {
            let mut later: Option<(Duration, HoldId)> = None;
            // A hold that made way has the number of the one before.
            for same in class.chunk_by(|one, other| one.1 == other.1) {
                for (_, number, _, last, id) in same {
                    if let Some((before, other)) = later
                        && before < *last
                    {
                        let detail =
                            format!("{id:?} (number {number}) at {last:?}, {other:?} behind it at {before:?} already");
                        self.accuse_of(Claim::Order, detail, &[*id, other]);
                    }
                }
                for (_, _, first, _, id) in same {
                    later = match later {
                        Some(known) if known.0 <= *first => Some(known),
                        _ => Some((*first, *id)),
                    };
                }
            }
        }
    }

    /// A contender that was seen waiting is served before those of its class, and of later ones, that asked after that.
    fn overtaken(&mut self, events: &[&Event]) {
        for event in events {
            let What::Waited { class, kept, exact, slack } = event.what else { continue };
            let by = self.holds.iter().find(|(_, hold)| {
                let slack = if exact && hold.first().share == Share::Alone { Duration::ZERO } else { slack };
                let behind = hold.place.is_some_and(|place| place.class >= class) && hold.asked > event.from;
                behind && hold.granted <= kept && hold.granted + slack < event.until
            });
            if let Some((by, hold)) = by {
                let contenders = vec![event.contender, hold.contender];
                let detail = format!(
                    "{} waited at {:?}; {by:?} asked after that and was served first",
                    event.contender, event.from
                );
                self.verdict.violations.push(Violation { claim: Claim::Order, lock: self.lock, detail, contenders });
            }
        }
    }

    /// While a contender waits that gets the lock in the end, the lock is not free for long.
    fn wake_ups(&mut self, events: &[&Event]) {
        let mut taken: Vec<(Duration, Duration)> = Vec::new();
        for hold in self.holds.values() {
            let (over, confirmed) = hold.over;
            let over = match hold.broken {
                Some((broken, _)) => broken + hold.delay,
                None if confirmed => over,
                None => over + self.promises.abandoned + hold.delay,
            };
            taken.push((hold.granted, over.max(hold.granted)));
        }
        // A delay is counted again when the contender that counts it leaves.
        let is_abandoned = |hold: &&Hold| hold.lost.is_some() || hold.broken.is_some();
        let delays: Vec<_> = self.holds.values().filter(is_abandoned).map(|hold| (hold.granted, hold.delay)).collect();
        let delay =
            |at| delays.iter().filter(|(since, _)| *since < at).map(|(_, delay)| *delay).max().unwrap_or_default();
        for event in events {
            if event.what == What::Reserved {
                taken.push((event.from, event.until));
            }
            if let What::Asked { outcome, .. } = &event.what
                && !matches!(outcome, Outcome::Granted(_) | Outcome::Pending)
            {
                taken.push((event.until, event.until + self.promises.abandoned + delay(event.until)));
            }
        }
        taken.sort();
        let mut waits: Vec<(Duration, Duration, HoldId)> =
            self.holds.iter().map(|(id, hold)| (hold.asked, hold.granted, *id)).collect();
        waits.sort();
        for (asked, granted, id) in waits {
            // Who comes after an abandoned hold counts its delay.
            let mut free_since = asked + delay(asked);
            let mut longest = Duration::ZERO;
            for (from, until) in &taken {
                if *from >= granted {
                    break;
                }
                if *until > free_since {
                    longest = longest.max(from.saturating_sub(free_since));
                    free_since = *until;
                }
            }
            longest = longest.max(granted.saturating_sub(free_since));
            if longest > self.promises.idle {
                let detail =
                    format!("{id:?} asked at {asked:?}, granted at {granted:?}, free meanwhile for {longest:?}");
                self.accuse(Claim::WakeUp, detail);
            }
        }
    }
}

/// Returns how much of a time range lies within others, which do not overlap.
fn overlap(others: &[(Duration, Duration)], from: Duration, until: Duration) -> Duration {
    others.iter().map(|other| other.1.min(until).saturating_sub(other.0.max(from))).sum()
}
