//! The identity of this process in the nodes that it creates.

use std::fs::{read_link, read_to_string};

use lockkeeper_core::{Owner, ProcessInstance, ProcessState};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use lockkeeper_session::process::ProcStat;

/// Returns the user, machine, process id and program that the nodes of this process name as their owner.
pub fn this_process() -> Owner {
    let program = std::env::args_os().next().map(|path| {
        let name = std::path::Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| path.to_string_lossy().into_owned())
    });
    Owner {
        // A container may have no name for its user.
        user: whoami::username().unwrap_or_else(|_| format!("uid {}", rustix::process::geteuid().as_raw())),
        host: gethostname::gethostname().to_string_lossy().into_owned(),
        pid: std::process::id(),
        program,
    }
}

/// Returns what tells this process from all others. `None` where the operating system does not say it, as only Linux does, and where
/// `/proc` shows the numbers of another namespace.
pub(crate) fn this_instance() -> Option<ProcessInstance> {
    let pid = std::process::id();
    if read_link("/proc/self").ok()?.to_str()? != pid.to_string() {
        return None;
    }
    let boot = read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = |kind: &str| Some(read_link(format!("/proc/self/ns/{kind}")).ok()?.to_str()?.to_owned());
    // An older kernel has no namespaces of time, which shift the start.
    let (pids, times) = (namespace("pid")?, namespace("time").unwrap_or_default());
    match state(pid) {
        ProcessState::Runs { started } => Some(ProcessInstance::new(boot.trim(), &[&pids, &times], pid, started)),
        ProcessState::Ended | ProcessState::Unknown => None,
    }
}

/// Returns whether this process has ended, as far as the current one can see. `false` if it cannot.
pub(crate) fn has_ended(process: &ProcessInstance) -> bool {
    this_instance().is_some_and(|here| process.has_ended(&here, state(process.pid)))
}

/// Returns whether this process runs on this machine, as far as the current one can see. `false` if it cannot.
pub(crate) fn runs_here(process: &ProcessInstance) -> bool {
    let runs = || state(process.pid) == ProcessState::Runs { started: process.started };
    this_instance().is_some_and(|here| here.place == process.place) && runs()
}

/// Returns what the machine says of a process number.
fn state(pid: u32) -> ProcessState {
    let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // Files of other users may be hidden; their processes are not.
    if known.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH)) {
        return ProcessState::Ended;
    }
    match ProcStat::of(pid) {
        Some(stat) if stat.runs() => ProcessState::Runs { started: stat.started },
        Some(_) => ProcessState::Ended,
        None => ProcessState::Unknown,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn a_process_that_runs_and_one_that_cannot_be_known_have_not_ended() {
        let here = this_instance().unwrap();
        assert!(!has_ended(&here));
        let later = ProcessInstance { started: here.started + 1, ..here };
        assert!(has_ended(&later), "its number is used again");
        assert!(!has_ended(&ProcessInstance { place: here.place + 1, ..later }), "another machine");
        assert!(
            !has_ended(&ProcessInstance { pid: 0, ..here }) && !has_ended(&ProcessInstance { pid: u32::MAX, ..here })
        );
    }

    #[test]
    fn a_process_has_ended_before_its_parent_has_noticed_it() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let ProcessState::Runs { started } = state(child.id()) else { panic!("it does not run") };
        let process = ProcessInstance { pid: child.id(), started, ..this_instance().unwrap() };
        assert!(!has_ended(&process));
        drop(child.stdin.take());
        let pid = Pid::from_child(&child);
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert!(has_ended(&process), "it is a zombie");
        child.wait().unwrap();
        assert!(has_ended(&process));
    }
}
