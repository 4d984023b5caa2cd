//! Tells the causes of a late measurement apart: the measured code, or a machine without a free core.
//!
//! Beside each measurement of a time runs a control without our code. Nothing is subtracted. A miss counts as the
//! machine's only if its control missed the same limit too. Then the figure is void and is measured again. The same
//! applies to a figure about order that was wrong while no thread got a turn.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;

use super::bench::most;
use crate::process::{Process, Role};
use crate::tools::{load, now};

/// The number of controls beside a time. One control is not enough: others may get their turn later.
pub(super) const CONTROLS: usize = 3;

/// Reads the clock repeatedly, as a holder does, and prints the first time after a stop.
pub(crate) fn tick() {
    /// Far longer than a busy machine delays a thread, far shorter than a session lives.
    const STOPPED: Duration = Duration::from_secs(2);
    // Read before the output: its reader may stop this process immediately.
    let mut last = now();
    println!("ready");
    loop {
        std::thread::sleep(Duration::from_micros(500));
        let seen = now();
        if seen.saturating_sub(last) > STOPPED {
            return println!("{}", seen.as_nanos());
        }
        last = seen;
    }
}

/// Starts such a process, and returns when it runs.
pub(super) fn clock() -> Result<Process> {
    let mut clock = Role::Tick.start(&())?;
    clock.line()?;
    Ok(clock)
}

/// Times, each with its controls.
pub(super) struct Times {
    limit: Duration,
    pairs: Vec<(Duration, Duration)>,
}

impl Times {
    pub(super) fn within(limit: Duration) -> Times {
        Times { limit, pairs: Vec::new() }
    }

    pub(super) fn add(&mut self, measured: Duration, control: Duration) {
        self.pairs.push((measured, control));
    }

    pub(super) fn least(&self) -> Duration {
        self.pairs.iter().map(|(measured, _)| *measured).min().unwrap_or_default()
    }

    pub(super) fn most(&self) -> Duration {
        most(&self.pairs.iter().map(|(measured, _)| *measured).collect::<Vec<_>>())
    }

    fn most_of_controls(&self) -> Duration {
        most(&self.pairs.iter().map(|(_, control)| *control).collect::<Vec<_>>())
    }

    /// Returns the numbers of late times: caused by our code, and by the machine.
    fn late(&self) -> (usize, usize) {
        let late = self.pairs.iter().filter(|(measured, _)| *measured > self.limit);
        let machine = late.clone().filter(|(_, control)| *control > self.limit).count();
        (late.count() - machine, machine)
    }

    /// Whether every late time was caused by the machine.
    pub(super) fn kept(&self) -> bool {
        self.late().0 == 0
    }

    /// Whether the machine itself missed the limit.
    pub(super) fn void(&self) -> bool {
        self.late().1 > 0
    }

    /// Returns the controls as text, with the late times that the machine caused. `control` describes them.
    pub(super) fn words(&self, control: &str) -> String {
        let mut words = format!(" ({control}: at most {:.2?})", self.most_of_controls());
        if let (_, machine @ 1..) = self.late() {
            _ = write!(
                words,
                "; {machine} of {} late with their controls, MACHINE LOADED (load {})",
                self.pairs.len(),
                load()
            );
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_the_machines_only_with_its_control() {
        let times = |pairs: &[(u64, u64)]| {
            let mut times = Times::within(Duration::from_millis(5));
            pairs.iter().for_each(|(measured, control)| {
                times.add(Duration::from_millis(*measured), Duration::from_millis(*control));
            });
            times
        };
        assert!(times(&[(5, 1), (1, 90)]).kept());
        assert!(!times(&[(6, 5)]).kept());
        assert!(!times(&[(6, 1), (1, 6)]).kept(), "another time's control is no excuse");
        let loaded = times(&[(6, 7), (1, 1)]);
        assert!(loaded.void() && !times(&[(6, 1), (1, 6)]).void());
        assert!(loaded.kept() && loaded.words("x").contains("1 of 2 late with their controls, MACHINE LOADED"));
    }
}
