//! Tells whether any process of a group still runs.
//!
//! The kernel counts a zombie as a member until its parent has reaped it. The parent of an orphan is process 1, and in
//! many containers process 1 reaps nothing: a group that has ended would look alive forever. So where `/proc` shows the
//! members, their states decide.

use std::time::Duration;

use lockkeeper_hold::now;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};
use tokio::time::sleep;

/// Pause between two checks of a group. Its processes are not our children, so no signal reports their end.
const SURVIVORS: Duration = Duration::from_millis(10);

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

    /// Waits until no member runs any more, or until this instant of [`now`]. Returns whether none does. Dropping the future leaves
    /// the group as it is.
    pub(crate) async fn ends_by(&mut self, deadline: Duration) -> bool {
        while self.is_alive() {
            if now() >= deadline {
                return false;
            }
            sleep(SURVIVORS).await;
        }
        true
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
        self.running.retain(|member| proc::state_of(*member).is_some_and(|process| proc::runs_in(&process, id)));
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
    return {
        _ = leader;
        false
    };
}

#[cfg(target_os = "linux")]
mod proc {
    use lockkeeper_session::process::ProcStat;

    pub(super) fn state_of(pid: i32) -> Option<ProcStat> {
        ProcStat::of(pid.try_into().ok()?)
    }

    /// Whether it runs and is a member of the group.
    pub(super) fn runs_in(process: &ProcStat, group: i32) -> bool {
        process.group == group && process.runs()
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
        pids.filter(|pid| state_of(*pid).is_some_and(|process| runs_in(&process, group))).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn this_process_is_seen_to_run() {
            let own = i32::try_from(std::process::id()).unwrap();
            let group = state_of(own).unwrap().group;
            assert!(shows_all() && members(group).contains(&own));
        }
    }
}
