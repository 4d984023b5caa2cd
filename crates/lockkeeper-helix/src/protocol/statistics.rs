//! Counts the outcomes of leases, cleanups and preemptions, by lock and owner, and derives timeouts from them.
//!
//! The counts are pure sums: the counts of many processes add up to those of one process that saw everything. Only the
//! owners are limited: if there are more than a node has room for, those with the smallest counts are counted together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::protocol::Histogram;

/// Longest name of an owner, in bytes.
const NAME_BYTES: usize = 128;

/// Something that is counted. Times are milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measurement {
    /// An owner's hold has ended.
    Hold {
        /// How long it was.
        held_ms: u64,
        /// How long it might have been.
        lease_ms: u64,
        /// Its lease ended it, so it is unknown how long the work would have taken.
        overran: bool,
    },
    /// The cleanup of a preempted owner has ended, possibly after another owner got the lock.
    Cleanup {
        /// How long it took, from the first request.
        real_ms: u64,
        /// How long it might have taken.
        allotted_ms: u64,
        /// Whether it finished. Otherwise the loss of the lock cut it off, and it would have taken at least that long.
        finished: bool,
    },
    /// A requestor's wait for an owner to make room has ended.
    Preemption {
        /// How long it waited.
        waited_ms: u64,
        /// The outcome of the wait.
        outcome: PreemptionOutcome,
    },
}

/// The outcome of a preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PreemptionOutcome {
    /// The owner made room within its cleanup timeout.
    InTime,
    /// It made room, or its lease ended, after that timeout.
    Late,
    /// The lock was taken by force, or because a client approved that.
    Forced,
    /// The owner kept the lock.
    Refused,
}

/// The counts of one owner's holds, or of all owners' holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tally {
    /// How long holds were.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub held: Histogram,
    /// How long they might have been.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub leases: Histogram,
    /// How many were ended by their lease.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overran: u64,
    /// How long cleanups took that finished, those that finished late too.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub cleanups: Histogram,
    /// How long the other cleanups had taken when the loss of the lock cut them off. Each would have taken at least that long.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub cut_off: Histogram,
    /// How long all of them might have taken.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub allotted: Histogram,
    /// How many finished late.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overdue: u64,
    /// How long requestors waited for the owner to make room.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub waited: Histogram,
    /// How often the owner made room within the cleanup timeout.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_time: u64,
    /// How often the owner made room later.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late: u64,
    /// How often the lock was taken by force.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forced: u64,
    /// How often the owner kept the lock.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Tally {
    /// Counts one.
    pub fn record(&mut self, event: Measurement) {
        match event {
            Measurement::Hold { held_ms, lease_ms, overran } => {
                self.held.record(held_ms);
                self.leases.record(lease_ms);
                self.overran += u64::from(overran);
            }
            Measurement::Cleanup { real_ms, allotted_ms, finished } => {
                self.allotted.record(allotted_ms);
                if finished {
                    self.cleanups.record(real_ms);
                    self.overdue += u64::from(real_ms > allotted_ms);
                } else {
                    self.cut_off.record(real_ms);
                }
            }
            Measurement::Preemption { waited_ms, outcome } => {
                self.waited.record(waited_ms);
                *match outcome {
                    PreemptionOutcome::InTime => &mut self.in_time,
                    PreemptionOutcome::Late => &mut self.late,
                    PreemptionOutcome::Forced => &mut self.forced,
                    PreemptionOutcome::Refused => &mut self.refused,
                } += 1;
            }
        }
    }

    /// Adds the counts of another process.
    pub fn merge(&mut self, other: &Tally) {
        let Tally {
            held,
            leases,
            overran,
            cleanups,
            cut_off,
            allotted,
            overdue,
            waited,
            in_time,
            late,
            forced,
            refused,
        } = other;
        self.held.merge(held);
        self.leases.merge(leases);
        self.cleanups.merge(cleanups);
        self.cut_off.merge(cut_off);
        self.allotted.merge(allotted);
        self.waited.merge(waited);
        for (sum, more) in [
            (&mut self.overran, overran),
            (&mut self.overdue, overdue),
            (&mut self.in_time, in_time),
            (&mut self.late, late),
            (&mut self.forced, forced),
            (&mut self.refused, refused),
        ] {
            *sum = sum.saturating_add(*more);
        }
    }

    /// How many holds have ended.
    pub fn holds(&self) -> u64 {
        self.held.count()
    }

    /// How many requestors have waited for the owner to make room.
    pub fn preemptions(&self) -> u64 {
        self.waited.count()
    }

    /// The share of cleanups that finished within their timeout, 0 to 1, as their owners count it: a cleanup that was cut
    /// off did not finish. If no owner counts, as requestors saw it; they do not know of cleanups that continued after
    /// they had left. `None` if there were no cleanups.
    pub fn share_in_time(&self) -> Option<f64> {
        let finished = self.cleanups.count();
        let (good, all) = match finished.saturating_add(self.cut_off.count()) {
            0 => (self.in_time, self.preemptions()),
            all => (finished.saturating_sub(self.overdue), all),
        };
        (all > 0).then(|| good as f64 / all as f64)
    }

    /// A cleanup timeout that 95 of 100 finished cleanups would have kept, in milliseconds; `None` if none has finished.
    pub fn suggested_cleanup_ms(&self) -> Option<u64> {
        self.cleanups.quantile(950)
    }

    /// A lease that would have been enough for 99 of 100 holds, plus a tenth, in milliseconds; `None` if no hold has
    /// ended. If the lease cut off more holds than that, it is unknown how long they would have been: then twice the
    /// lease they had. At least 1, because a lease of zero is refused.
    pub fn suggested_lease_ms(&self) -> Option<u64> {
        let holds = self.holds();
        let known = self.held.quantile(990)?;
        let cut_off = self.overran.saturating_mul(100) > holds;
        let needed = known.saturating_add(known.div_ceil(10));
        let suggested = if cut_off { needed.max(self.leases.quantile(990)?.saturating_mul(2)) } else { needed };
        Some(suggested.max(1))
    }

    /// The total by which the owners with the smallest counts are found.
    fn weight(&self) -> u64 {
        let cleanups = self.cleanups.count().saturating_add(self.cut_off.count());
        self.holds().saturating_add(cleanups).saturating_add(self.preemptions())
    }
}

/// The counts of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Statistics {
    /// By owner, as [`owner_class`] names them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub owners: BTreeMap<String, Tally>,
    /// The owners for which there was no room.
    #[serde(default)]
    pub others: Tally,
}

impl Statistics {
    /// Counts one of this owner.
    pub fn record(&mut self, owner: &str, event: Measurement) {
        self.owners.entry(owner_class(owner)).or_default().record(event);
    }

    /// Adds the counts of another process.
    pub fn merge(&mut self, other: &Statistics) {
        for (owner, tally) in &other.owners {
            self.owners.entry(owner.clone()).or_default().merge(tally);
        }
        self.others.merge(&other.others);
    }

    /// Of all owners.
    pub fn total(&self) -> Tally {
        let mut total = self.others.clone();
        self.owners.values().for_each(|tally| total.merge(tally));
        total
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.others == Tally::default()
    }

    /// Merges the owners with the smallest counts until at most `owners` are listed. The total stays.
    pub fn fold_to(&mut self, owners: usize) {
        while self.owners.len() > owners {
            let least = self.owners.iter().min_by_key(|(_, tally)| tally.weight()).map(|(owner, _)| owner.clone());
            let Some(least) = least else { return };
            if let Some(tally) = self.owners.remove(&least) {
                self.others.merge(&tally);
            }
        }
    }
}

/// The name under which an owner is counted: its user id. Of a generated id, `HOST-PID-RANDOM`, it is the part that
/// stays the same from hold to hold: `HOST-*`. Cut at 128 bytes.
pub fn owner_class(id: &str) -> String {
    let name = &id[..id.floor_char_boundary(NAME_BYTES)];
    match generated(id) {
        Some(host) if host.len() <= name.len() => format!("{host}-*"),
        _ => name.to_owned(),
    }
}

/// The host in a generated id.
fn generated(id: &str) -> Option<&str> {
    const UUID: usize = 36;
    let at = id.len().checked_sub(UUID)?;
    let (rest, uuid) = (id.get(..at)?.strip_suffix('-')?, id.get(at..)?);
    let is_uuid = uuid.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    let (host, pid) = rest.rsplit_once('-')?;
    (is_uuid && !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit())).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(events: impl IntoIterator<Item = Measurement>) -> Tally {
        let mut tally = Tally::default();
        events.into_iter().for_each(|event| tally.record(event));
        tally
    }

    /// H-73: as the owners count, the late ones too.
    #[test]
    fn the_share_in_time_and_the_suggested_timeout_follow_from_the_cleanups() {
        let cleanup = |real_ms| Measurement::Cleanup { real_ms, allotted_ms: 100, finished: true };
        let counted = tally((1..=20).map(|tenth| cleanup(tenth * 10)));
        assert_eq!(counted.share_in_time(), Some(0.5));
        let suggested = counted.suggested_cleanup_ms().unwrap();
        assert!((190..=190 + 24).contains(&suggested), "{suggested}");
        // Cut off after a moment: not in time, and no reason to suggest less.
        let cut_off = Measurement::Cleanup { real_ms: 1, allotted_ms: 100, finished: false };
        assert_eq!((tally([cut_off]).share_in_time(), tally([cut_off]).suggested_cleanup_ms()), (Some(0.0), None));
        let both = tally([cleanup(90), cut_off, cut_off, cut_off]);
        assert_eq!((both.share_in_time(), both.suggested_cleanup_ms().unwrap() >= 90), (Some(0.25), true));
        assert_eq!((both.cut_off.count(), both.allotted.count(), both.overdue), (3, 4, 0));
        let seen = |outcome| Measurement::Preemption { waited_ms: 5, outcome };
        let unknown = tally([
            seen(PreemptionOutcome::InTime),
            seen(PreemptionOutcome::Late),
            seen(PreemptionOutcome::Forced),
            seen(PreemptionOutcome::Refused),
        ]);
        assert_eq!((unknown.preemptions(), unknown.share_in_time()), (4, Some(0.25)));
        assert_eq!((Tally::default().share_in_time(), Tally::default().suggested_cleanup_ms()), (None, None));
    }

    /// H-74: a hold that was cut off says only that the lease was too short.
    #[test]
    fn the_suggested_lease_follows_from_the_holds() {
        let hold = |held_ms, overran| Measurement::Hold { held_ms, lease_ms: 1_000, overran };
        let within = tally((0..100).map(|_| hold(400, false))).suggested_lease_ms().unwrap();
        assert!((440..=496).contains(&within), "{within}");
        let cut = tally([hold(1_000, true), hold(400, false)]).suggested_lease_ms().unwrap();
        assert!(cut >= 2_000, "{cut}");
        // One of a hundred may be cut off; of two, it is unknown how long they would have been.
        let of_a_hundred = |cut_off| {
            let holds = (0..100).map(|number| hold(400, number < cut_off));
            tally(holds).suggested_lease_ms().unwrap()
        };
        assert!(of_a_hundred(1) < 500 && of_a_hundred(2) >= 2_000);
        assert_eq!(tally((0..3).map(|_| hold(400, false))).holds(), 3);
        assert_eq!(tally([hold(0, false)]).suggested_lease_ms(), Some(1));
    }

    #[test]
    fn the_owners_with_the_smallest_counts_are_merged_and_the_total_stays() {
        let mut statistics = Statistics::default();
        assert!(statistics.is_empty());
        for (owner, holds) in [("a", 3), ("b", 1), ("c", 2)] {
            let counted = tally((0..holds).map(|_| Measurement::Hold { held_ms: 1, lease_ms: 9, overran: false }));
            statistics.owners.insert(owner.to_owned(), counted);
        }
        let total = statistics.total();
        assert_eq!(total.holds(), 6);
        statistics.fold_to(2);
        assert_eq!(statistics.owners.keys().collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!((statistics.others.holds(), statistics.total()), (1, total));
        statistics.fold_to(2);
        assert_eq!(statistics.owners.len(), 2);
        statistics.fold_to(0);
        assert!(statistics.owners.is_empty() && !statistics.is_empty());
    }

    #[test]
    fn owners_are_counted_by_what_stays_the_same() {
        assert_eq!(owner_class("rebalancer-3"), "rebalancer-3");
        assert_eq!(owner_class("ci-7-4711-0aa5bbcc-1234-4def-8abc-0123456789ab"), "ci-7-*");
        assert_eq!(owner_class("ci-7-x-0aa5bbcc-1234-4def-8abc-0123456789ab").len(), "ci-7-x-".len() + 36);
        assert_eq!(owner_class(&"é".repeat(100)).len(), 128);
        assert_eq!(owner_class(""), "");
    }
}
