//! Holds as bars on a time axis, one lane for each holder. Without I/O and without a clock.

use std::collections::HashMap;

use lockkeeper::admin::ContenderInfo;
use lockkeeper_session::ensemble::is_below;
use lockkeeper_session::text::plain;

use crate::watch::recent::{Blind, PastHold};
use crate::watch::{LockGlance, Moment};

/// The length of the axis. A bar is at least one unit wide.
pub(super) const UNITS: i64 = 1_000;

/// The name of a contender whose node does not name it.
pub(super) const UNNAMED: &str = "an unnamed client";

/// A part of the axis, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) from: i64,
    pub(super) to: i64,
}

/// The holds of one holder, or of several processes with one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) who: String,
    /// Holds that are over.
    pub(super) past: Vec<Bar>,
    /// Holds that last.
    pub(super) now: Vec<Bar>,
    /// Where holds were lost.
    pub(super) lost: Vec<i64>,
    pub(super) holds: usize,
    pub(super) losses: usize,
    held_ms: i64,
}

/// How long the axis is, in minutes. It is shorter than an hour while the observer runs for a shorter time.
const MINUTES: [i64; 3] = [4, 20, 60];

/// The time until now: the last hour, or the time since the observer's start with something before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    until: Moment,
    minutes: i64,
}

impl Axis {
    pub(super) fn new(now: Moment) -> Self {
        let fits = |minutes: &i64| now.ms <= minutes * 60_000;
        Axis { until: now, minutes: MINUTES.into_iter().find(fits).unwrap_or(60) }
    }

    /// The names of the ends of its quarters.
    pub(super) fn ticks(self) -> [String; 5] {
        [4, 3, 2, 1, 0].map(|quarters| match self.minutes * quarters / 4 {
            0 => "now".to_owned(),
            60 => "1 h ago".to_owned(),
            minutes => format!("{minutes} min ago"),
        })
    }

    /// Where this time is, in units; earlier times are at its begin.
    fn at(self, ms: i64) -> i64 {
        let window = self.minutes * 60_000;
        let ago = self.until.ms.saturating_sub(ms).clamp(0, window);
        UNITS - ago * UNITS / window
    }

    fn bar(self, from_ms: i64, to_ms: i64) -> Bar {
        let from = self.at(from_ms).min(UNITS - 1);
        Bar { from, to: self.at(to_ms).max(from + 1) }
    }

    /// The lanes of a lock: those that hold it now first, then those that held it longest.
    pub(super) fn lanes(self, lock: &LockGlance) -> Vec<Lane> {
        let mut lanes: HashMap<String, Lane> = HashMap::new();
        for hold in &lock.past.holds {
            let lane = lanes.entry(name(hold.contender.who.as_deref().unwrap_or_default())).or_default();
            lane.add(self, hold);
        }
        for holder in &lock.lock.holders {
            let lane = lanes.entry(name(&holder.described)).or_default();
            lane.add_now(self, holder);
        }
        let mut lanes: Vec<_> = lanes.into_iter().map(|(who, lane)| Lane { who, ..lane }).collect();
        for lane in &mut lanes {
            join(&mut lane.past);
            join(&mut lane.now);
            lane.lost.dedup();
        }
        lanes.sort_by(|one, other| {
            let key = |lane: &Lane| (lane.now.is_empty(), -lane.held_ms);
            key(one).cmp(&key(other)).then_with(|| one.who.cmp(&other.who))
        });
        lanes
    }

    /// Where it is not known what happened to a lock: before the observer's start, before what is kept, and in gaps.
    pub(super) fn unknown<'g>(self, lock: &LockGlance, gaps: impl IntoIterator<Item = &'g Blind>) -> Vec<Bar> {
        let begin = self.until.ms - self.minutes * 60_000;
        let since = lock.past.holds_since_ms.max(0);
        let mut bars: Vec<_> = (since > begin).then(|| self.bar(begin, since)).into_iter().collect();
        let gaps = gaps.into_iter().filter(|gap| is_below(&lock.lock.path, gap.root.trim_end_matches('/')));
        bars.extend(gaps.map(|gap| self.bar(gap.since.ms, gap.until.map_or(self.until.ms, |until| until.ms))));
        join(&mut bars);
        bars
    }
}

impl Lane {
    fn add(&mut self, axis: Axis, hold: &PastHold) {
        let held = i64::try_from(hold.held.as_millis()).unwrap_or(i64::MAX);
        let bar = axis.bar(hold.ended.ms.saturating_sub(held), hold.ended.ms);
        self.past.push(bar);
        self.holds += 1;
        self.held_ms = self.held_ms.saturating_add(held);
        if hold.how.is_loss() {
            self.losses += 1;
            self.lost.push(bar.to);
        }
    }

    fn add_now(&mut self, axis: Axis, holder: &ContenderInfo) {
        let since = holder.observed.map_or(axis.until, |it| axis.until.of_wall(it.since));
        self.now.push(axis.bar(since.ms, axis.until.ms));
        self.holds += 1;
        self.held_ms = self.held_ms.saturating_add(axis.until.ms - since.ms);
    }
}

/// The name of a lane: a holder without its process, because a command has another process each time.
fn name(who: &str) -> String {
    let who = plain(if who.is_empty() { UNNAMED } else { who });
    match who.strip_suffix(')').and_then(|rest| rest.rsplit_once(" (pid ")) {
        Some((name, pid)) if !name.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()) => name.to_owned(),
        _ => who,
    }
}

/// Joins bars that touch.
fn join(bars: &mut Vec<Bar>) {
    bars.sort_unstable_by_key(|bar| (bar.from, bar.to));
    bars.dedup_by(|next, bar| {
        let touches = next.from <= bar.to;
        bar.to = if touches { bar.to.max(next.to) } else { bar.to };
        touches
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper::admin::{LockInfo, Observed};

    use super::*;
    use crate::watch::recent::Past;
    use crate::watch::{Contender, End, Since};

    const NOW: Moment = Moment { ms: 7_200_000, wall_ms: 1_764_200_000_000 };

    fn hold(who: &str, ended_ago_s: i64, held_s: u64, how: End) -> PastHold {
        let ended = Moment { ms: NOW.ms - ended_ago_s * 1_000, wall_ms: 0 };
        let (who, message, session) = (Some(who.to_owned()), None, None);
        let contender =
            Contender { lock: "/locks/a".into(), node: "/n".into(), who, message, mode: "exclusive", session };
        PastHold { contender: contender.into(), held: Duration::from_secs(held_s), ended, how, about: false }
    }

    fn lock(holds: Vec<PastHold>, holders: &[(&str, u64)]) -> LockGlance {
        let holder = |(who, since_s): &(&str, u64)| {
            let mut info = ContenderInfo::unread(String::new());
            info.described = (*who).to_owned();
            info.observed = Some(Observed { since: NOW.wall_time() - Duration::from_secs(*since_s), about: false });
            info
        };
        let mut lock = LockInfo::unused("/locks/a");
        lock.holders = holders.iter().map(holder).collect();
        let past = Past { holds, holds_since_ms: i64::MIN, ..Past::default() };
        LockGlance { lock, since: Since::default(), past }
    }

    #[test]
    fn the_processes_of_one_user_on_one_machine_share_a_lane() {
        let holds = vec![
            hold("root@db7 (pid 1)", 1_800, 360, End::Released),
            hold("root@db7 (pid 2)", 900, 36, End::SessionOver),
            hold("root@db9 (pid 2)", 10, 1, End::Unknown),
        ];
        let lanes = Axis::new(NOW).lanes(&lock(holds, &[("root@db1 (pid 9)", 90_000)]));
        let names: Vec<_> = lanes.iter().map(|lane| (lane.who.as_str(), lane.holds, lane.losses)).collect();
        assert_eq!(names, [("root@db1", 1, 0), ("root@db7", 2, 1), ("root@db9", 1, 0)]);
        assert_eq!(lanes[0].now, [Bar { from: 0, to: UNITS }], "the hold began before the axis");
        assert_eq!(lanes[1].past, [Bar { from: 400, to: 500 }, Bar { from: 740, to: 750 }]);
        assert_eq!(lanes[1].lost, [750]);
    }

    #[test]
    fn short_holds_are_seen_and_a_lane_has_no_more_bars_than_units() {
        let holds = (0..=3_600).map(|ago| hold("x", ago, 0, End::Released)).collect();
        let lanes = Axis::new(NOW).lanes(&lock(holds, &[]));
        assert_eq!((lanes[0].holds, lanes[0].past.as_slice()), (3_601, &[Bar { from: 0, to: UNITS }][..]));
        let one = Axis::new(NOW).lanes(&lock(vec![hold("x", 0, 0, End::Released)], &[]));
        assert_eq!(one[0].past, [Bar { from: UNITS - 1, to: UNITS }]);
    }

    #[test]
    fn what_is_not_known_is_marked() {
        let gap = |root: &str, ago_s: i64| Blind {
            root: root.into(),
            since: Moment { ms: NOW.ms - ago_s * 1_000, wall_ms: 0 },
            until: None,
        };
        let mut lock = lock(vec![], &[]);
        assert_eq!(Axis::new(NOW).unknown(&lock, &[gap("/other", 100)]), []);
        assert_eq!(Axis::new(NOW).unknown(&lock, &[gap("/locks", 36)]), [Bar { from: 990, to: UNITS }]);
        lock.past.holds_since_ms = NOW.ms - 1_800_000;
        assert_eq!(Axis::new(NOW).unknown(&lock, &[]), [Bar { from: 0, to: 500 }]);
        // The observer runs for a minute.
        lock.past.holds_since_ms = i64::MIN;
        assert_eq!(Axis::new(Moment { ms: 60_000, wall_ms: 0 }).unknown(&lock, &[]), [Bar { from: 0, to: 750 }]);
        assert_eq!(
            Axis::new(Moment { ms: 60_000, wall_ms: 0 }).ticks().join(" "),
            "4 min ago 3 min ago 2 min ago 1 min ago now"
        );
    }

    #[test]
    fn only_a_process_is_cut_off_a_name() {
        assert_eq!(name("ann@db1 (pid 12)"), "ann@db1");
        assert_eq!(name("(pid 12)"), "(pid 12)");
        assert_eq!(name("x (pid a)"), "x (pid a)");
        assert_eq!(name(""), UNNAMED);
    }
}
