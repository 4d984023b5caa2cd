//! Tells whether any process of a group still runs.
//!
//! The kernel counts a zombie as a member until its parent has reaped it. The parent of an orphan is process 1, and in
//! many containers process 1 reaps nothing: a group that has ended would look alive forever. So where `/proc` shows the
//! members, their states decide.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

/// A process group under observation.
#[derive(Debug)]
pub(crate) struct Group {
    id: Pid,
    /// Members that ran at the last check. While one of them runs, no search for others is needed.
    #[cfg(target_os = "linux")]
    running: Vec<i32>,
}

impl Group {
    /// Returns the group with this id.
    pub(crate) fn of(id: Pid) -> Self {
        Group {
            id,
            #[cfg(target_os = "linux")]
            running: Vec::new(),
        }
    }

    /// Whether a member still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        match test_kill_process_group(self.id) {
            Err(Errno::SRCH) => false,
            // The group has a member. It may be a zombie, or a process of another user (`EPERM`).
            _ => self.runs(),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn runs(&mut self) -> bool {
        true
    }

    #[cfg(target_os = "linux")]
    fn runs(&mut self) -> bool {
        let id = self.id.as_raw_nonzero().get();
        self.running.retain(|member| proc::state_of(*member).is_some_and(|state| state.runs_in(id)));
        if !self.running.is_empty() || !proc::shows_all() {
            return true;
        }
        // A member may start another one that the first listing misses, and end before we read its state. The second
        // listing finds the other one.
        for _ in 0..2 {
            self.running = proc::members(id);
            if !self.running.is_empty() {
                return true;
            }
        }
        false
    }
}

/// Whether the first process of a group is known to have ended.
pub(crate) fn has_ended(leader: Pid) -> bool {
    #[cfg(target_os = "linux")]
    return proc::state_of(leader.as_raw_nonzero().get()).is_some_and(|state| !state.runs());
    #[cfg(not(target_os = "linux"))]
    return false;
}

/// Reads `/proc`.
#[cfg(target_os = "linux")]
mod proc {
    /// The fields of `/proc/PID/stat` that are needed.
    pub(super) struct State {
        letter: char,
        group: i32,
        threads: u32,
    }

    impl State {
        pub(super) fn parse(stat: &str) -> Option<Self> {
            // The second field is the program's name in parentheses, and the name may contain any character.
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
            let letter = fields.next()?.chars().next()?;
            // The fifth and the twentieth field.
            let group = fields.nth(1)?.parse().ok()?;
            let threads = fields.nth(14)?.parse().ok()?;
            Some(State { letter, group, threads })
        }

        /// Whether it runs. A process whose first thread has ended looks like a zombie while its other threads run.
        pub(super) fn runs(&self) -> bool {
            !matches!(self.letter, 'Z' | 'X' | 'x') || self.threads > 1
        }

        /// Whether it runs and is a member of the group.
        pub(super) fn runs_in(&self, group: i32) -> bool {
            self.group == group && self.runs()
        }
    }

    pub(super) fn state_of(pid: i32) -> Option<State> {
        State::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Whether `/proc` shows all processes. It does not if it belongs to another pid namespace, or hides the processes
    /// of other users.
    pub(super) fn shows_all() -> bool {
        let own = std::fs::read_link("/proc/self").ok().and_then(|own| own.to_str()?.parse().ok());
        own == Some(std::process::id()) && state_of(1).is_some()
    }

    /// Returns the members of a group that run.
    pub(super) fn members(group: i32) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| state_of(*pid).is_some_and(|state| state.runs_in(group))).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn states_are_read_whatever_the_program_is_called() {
            let stat = |letter, threads| {
                format!("17 (a) Z 9 (b) {letter} 1 42 40 0 -1 4 0 0 0 0 1 2 0 0 20 0 {threads} 0 100 0 0")
            };
            let runs = |letter, threads| State::parse(&stat(letter, threads)).is_some_and(|state| state.runs_in(42));
            assert!(runs('S', 1) && runs('R', 8) && runs('T', 1) && runs('Z', 2));
            assert!(!runs('Z', 1) && !runs('X', 1));
            assert!(State::parse(&stat('S', 1)).is_some_and(|state| !state.runs_in(40)));
            assert!(State::parse("").is_none() && State::parse("1 (x) S").is_none());
        }

        #[test]
        fn this_process_is_seen_to_run() {
            let own = i32::try_from(std::process::id()).unwrap();
            let group = rustix::process::getpgrp().as_raw_nonzero().get();
            assert!(shows_all() && members(group).contains(&own));
        }
    }
}
