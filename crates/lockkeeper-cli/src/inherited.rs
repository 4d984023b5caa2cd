//! What this user's server must not inherit from the command that starts it.
//!
//! The server serves all later commands too. The first command may be a job of low priority, with limits and with secrets
//! in its environment. Documented and kept: the control group, the CPU affinity, and the priority of I/O.

use std::process::Command;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit};

/// The variables that the server gets: what it reads, and what a program needs to start.
const VARIABLES: [&str; 8] =
    ["HOME", "PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "RUST_BACKTRACE", "LOCKKEEPER_IDLE_EXIT", "LOCKKEEPER_LOG"];

/// The limits that are raised, and their names and units. A hard limit of one of the first group is unusual, because by
/// default there is none: the server ends when it reaches the limit.
const ENDING: [(Resource, &str, &str); 4] = [
    (Resource::Cpu, "CPU time", " s"),
    (Resource::As, "address space", " bytes"),
    (Resource::Data, "memory", " bytes"),
    (Resource::Fsize, "file size", " bytes"),
];
const OTHERS: [Resource; 3] = [Resource::Nofile, Resource::Nproc, Resource::Rss];

/// Gives a program only the variables that the server needs.
pub(crate) fn few_variables(program: &mut Command) {
    program.env_clear();
    program.envs(VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
}

/// What cannot be reset.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Hard limits, by which the server will end. The command that starts it prints them.
    pub limits: Vec<String>,
    /// Other things that stay, which only the log says.
    pub others: Vec<String>,
}

/// Resets the umask, the nice value, the limits and the choice of the OOM killer of this process, which has one thread.
pub(crate) fn reset() -> Kept {
    let mut kept = Kept::default();
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    if nice != 0 && rustix::process::setpriority_process(None, 0).is_err() {
        kept.others.push(format!("the server keeps the nice value {nice} of the command that started it"));
    }
    for (resource, name, unit) in ENDING {
        if let Some(hard) = raise(resource) {
            kept.limits.push(format!(
                "the server keeps the hard limit of this command, {name} {hard}{unit}, and ends when it reaches that; \
                 start it without the limit: lockkeeper server restart"
            ));
        }
    }
    OTHERS.into_iter().for_each(|resource| _ = raise(resource));
    if let Err(error) = reset_oom() {
        kept.others.push(format!("the server keeps the oom_score_adj of the command that started it: {error}"));
    }
    kept
}

/// Raises the soft limit to the hard one, which is returned if there is one.
fn raise(resource: Resource) -> Option<u64> {
    let Rlimit { current, maximum } = rustix::process::getrlimit(resource);
    if current != maximum {
        // Every process may do this.
        _ = rustix::process::setrlimit(resource, Rlimit { current: maximum, maximum });
    }
    maximum
}

/// Makes the OOM killer treat this process as any other.
#[cfg(target_os = "linux")]
fn reset_oom() -> std::io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    match std::fs::read_to_string(FILE) {
        Ok(score) if score.trim() != "0" => std::fs::write(FILE, "0"),
        // No /proc, so nothing is known.
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn reset_oom() -> std::io::Result<()> {
    Ok(())
}
