//! Shrinks a failing script until no part of it can be removed.

use super::{Call, Change, End, Scenario};

/// Maximum scripts that are tried.
const BUDGET: usize = 2_000;

/// How many kinds of noise a smaller script is tried with: every removed request changes all delays.
const NOISES: u64 = 4;

/// Returns the smallest script found that still `fails`, starting from one that does.
///
/// Removes contenders, turns, faults and requests, in halves, quarters and one by one, then simplifies the rest.
pub fn shrink(scenario: &Scenario, mut fails: impl FnMut(&Scenario) -> bool) -> Scenario {
    let mut search = Search { best: scenario.clone(), tried: 0, fails: &mut fails };
    loop {
        let before = search.best.clone();
        search.thin(|scenario| &mut scenario.lives);
        search.thin(|scenario| &mut scenario.strikes);
        search.thin(|scenario| &mut scenario.pleas);
        for life in 0..search.best.lives.len() {
            search.thin(|scenario| &mut scenario.lives[life]);
        }
        for life in 0..search.best.lives.len() {
            for turn in 0..search.best.lives[life].len() {
                search.simplify(|scenario| scenario.lives[life][turn].pause = 0);
                search.simplify(|scenario| scenario.lives[life][turn].steps = scenario.lives[life][turn].steps.min(1));
                search.simplify(|scenario| scenario.lives[life][turn].change = Change::None);
                search.simplify(|scenario| scenario.lives[life][turn].call = Call::Wait);
                search.simplify(|scenario| scenario.lives[life][turn].heeds = false);
                search.simplify(|scenario| scenario.lives[life][turn].end = End::Release);
            }
        }
        if search.best == before || search.tried >= BUDGET {
            return search.best;
        }
    }
}

struct Search<'f> {
    best: Scenario,
    tried: usize,
    fails: &'f mut dyn FnMut(&Scenario) -> bool,
}

impl Search<'_> {
    /// Whether this script fails too, with any noise; then it becomes the best so far.
    fn take(&mut self, mut candidate: Scenario) -> bool {
        for noise in 0..NOISES {
            if self.tried >= BUDGET {
                return false;
            }
            self.tried += 1;
            candidate.noise = self.best.noise.wrapping_add(noise);
            if (self.fails)(&candidate) {
                self.best = candidate;
                return true;
            }
        }
        false
    }

    /// Removes parts of a list, from the whole list down to single elements.
    fn thin<T>(&mut self, list: impl Fn(&mut Scenario) -> &mut Vec<T>) {
        let mut size = list(&mut self.best).len();
        while size > 0 {
            let mut at = 0;
            while at < list(&mut self.best).len() {
                let mut candidate = self.best.clone();
                let shorter = list(&mut candidate);
                shorter.drain(at..(at + size).min(shorter.len()));
                if !self.take(candidate) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    fn simplify(&mut self, change: impl Fn(&mut Scenario)) {
        let mut candidate = self.best.clone();
        change(&mut candidate);
        if candidate != self.best {
            self.take(candidate);
        }
    }
}
