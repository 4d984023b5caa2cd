//! How long things took: counts in steps of an eighth, so that many years of them fit into a small node.
//!
//! The sum of two histograms equals that of all values that went into both, in any order. So each process counts
//! for itself and adds its counts to the stored ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Steps between a power of two and the next; as many small numbers are counted exactly.
const STEPS: u64 = 8;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// Longer than this, 34 years, counts as this.
const LONGEST_MS: u64 = 1 << 40;

/// Counts of durations in milliseconds. At most 305 different ones, whatever went in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    counts: BTreeMap<u16, u64>,
}

impl Histogram {
    /// Counts one.
    pub fn record(&mut self, ms: u64) {
        *self.counts.entry(step(ms)).or_default() += 1;
    }

    /// Adds what another one has counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (step, count) in &other.counts {
            let sum = self.counts.entry(*step).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The time that so many of a thousand did not exceed, in milliseconds. It is never less than the true one, and at most an
    /// eighth more. It is exact below 8 ms. `None` of nothing. More than a thousand counts as a thousand.
    pub fn quantile(&self, per_mille: u16) -> Option<u64> {
        // Of ten the median is the fifth, and 950 of a thousand the tenth. In whole numbers, for 0.55 × 20 is a bit more than 11.
        let rank = (u128::from(per_mille.min(1000)) * u128::from(self.count())).div_ceil(1000).max(1);
        let mut seen = 0;
        for (step, count) in &self.counts {
            seen += u128::from(*count);
            if seen >= rank {
                return Some(longest(*step));
            }
        }
        None
    }
}

/// The step that a duration falls into.
fn step(ms: u64) -> u16 {
    let ms = ms.min(LONGEST_MS);
    if ms < STEPS {
        return ms as u16;
    }
    let octave = ms.ilog2() - STEP_BITS;
    // The leading bit is the octave's; the three after it tell the eighth.
    (u64::from(octave) * STEPS + (ms >> octave)) as u16
}

/// The longest duration that falls into a step.
fn longest(step: u16) -> u64 {
    let step = u64::from(step);
    if step < STEPS {
        return step;
    }
    // A record of a foreign client may have any number.
    let octave = (step / STEPS - 1).min(40);
    (((step % STEPS + STEPS + 1) << octave) - 1).min(LONGEST_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_without_a_gap() {
        let mut last = 0;
        for ms in 0..100_000 {
            let step = step(ms);
            assert!(step == last || step == last + 1, "{ms}");
            assert!(longest(step) >= ms && longest(step) <= ms + ms / 8, "{ms}: {}", longest(step));
            last = step;
        }
        assert!(step(u64::MAX) <= 304, "{}", step(u64::MAX));
        assert_eq!(longest(step(u64::MAX)), LONGEST_MS);
        assert_eq!(longest(u16::MAX), LONGEST_MS);
    }

    #[test]
    fn of_nothing_there_is_no_quantile() {
        assert_eq!((Histogram::default().quantile(500), Histogram::default().is_empty()), (None, true));
        let mut one = Histogram::default();
        one.record(3);
        assert!(!one.is_empty());
        assert_eq!((one.quantile(0), one.quantile(1000), one.quantile(7000)), (Some(3), Some(3), Some(3)));
    }
}
