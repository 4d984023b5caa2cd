//! What caused a time that is too long: the code that was measured, or a machine without a free core.
//!
//! Beside each measurement of a time, a control without our code is measured at the same moment. Nothing is
//! subtracted. A miss is the machine's only where its control has missed the same limit too. Then the figure is void, and
//! measured once more; so is one about the order of things that was not kept while nobody had a turn.

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lockkeeper_testkit::chaos::now;

use super::most;
use super::process::Process;

/// How many controls there are beside a time: whether one gets its turn at once says little of the next.
pub(super) const CONTROLS: usize = 3;

/// A process that does nothing but read the clock; not for people.
#[derive(Debug, Args)]
pub(crate) struct Tick {}

impl Tick {
    /// Reads the clock again and again, as a holder does, and prints when it first could after being stopped.
    pub(crate) fn run(self) -> Result<()> {
        /// Far more than a busy machine lets anybody wait for a turn, far less than a session lives.
        const STOPPED: Duration = Duration::from_secs(2);
        // Looked at before it says so: whoever hears it may stop this process at once.
        let mut last = now();
        println!("ready");
        loop {
            std::thread::sleep(Duration::from_micros(500));
            let seen = now();
            if seen.saturating_sub(last) > STOPPED {
                println!("{}", seen.as_nanos());
                return Ok(());
            }
            last = seen;
        }
    }
}

/// Such a process, once it runs.
pub(super) fn clock() -> Result<Process> {
    let mut clock = Process::start(&["tick"])?;
    clock.line()?;
    Ok(clock)
}

/// A thread that looks at the clock each millisecond, and how long it had no turn.
pub(crate) struct Stalls(Arc<AtomicU64>);

impl Stalls {
    /// From now until this is dropped.
    pub(crate) fn watch() -> Stalls {
        let longest = Arc::new(AtomicU64::new(0));
        let seen = Arc::downgrade(&longest);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(longest) = seen.upgrade() {
                let gap = u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX);
                longest.fetch_max(gap, Ordering::Relaxed);
                last = Instant::now();
                drop(longest);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Stalls(longest)
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Times and their controls, each beside its own.
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

    /// Those beyond the limit: ours, and the machine's.
    fn late(&self) -> (usize, usize) {
        let late = self.pairs.iter().filter(|(measured, _)| *measured > self.limit);
        let machine = late.clone().filter(|(_, control)| *control > self.limit).count();
        (late.count() - machine, machine)
    }

    /// No time was too long that the machine is not to blame for.
    pub(super) fn kept(&self) -> bool {
        self.late().0 == 0
    }

    /// The machine itself has missed the limit.
    pub(super) fn void(&self) -> bool {
        self.late().1 > 0
    }

    /// The controls in words, and what the machine is to blame for. `control` is what they are.
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

/// How many wait for a turn on this machine, over the last minute.
pub(super) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
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
        assert!(!times(&[(6, 1), (1, 6)]).kept(), "another's control excuses nobody");
        let loaded = times(&[(6, 7), (1, 1)]);
        assert!(loaded.void() && !times(&[(6, 1), (1, 6)]).void());
        assert!(loaded.kept() && loaded.words("x").contains("1 of 2 late with their controls, MACHINE LOADED"));
    }
}
