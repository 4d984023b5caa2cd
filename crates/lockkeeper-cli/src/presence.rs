//! Whether the process of a contender is still there, as far as this machine can see it.

use std::sync::LazyLock;

use lockkeeper::{Owner, this_process};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// What people read about such a process.
pub(crate) const GONE: &str = "its process is no longer on this machine; the node goes when its session ends";

/// This process, as nodes show it. The name of its user may come from a directory of users, so it is asked for once.
pub(crate) static HERE: LazyLock<Owner> = LazyLock::new(this_process);

/// Whether the owner names this machine and a process that is no longer there. Its node goes with its session.
///
/// A container with the name of its host and processes of its own would be taken for its host.
pub(crate) fn is_gone(owner: Option<&Owner>) -> bool {
    let Some(owner) = owner.filter(|owner| owner.host == HERE.host) else { return false };
    let pid = i32::try_from(owner.pid).ok().and_then(Pid::from_raw);
    // Any other answer comes from a process that exists.
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_process_of_this_machine_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let owner = |host: &str, pid| Owner { host: host.to_owned(), pid, ..Owner::default() };
        assert!(is_gone(Some(&owner(&HERE.host, child.id()))));
        assert!(!is_gone(Some(&owner("another", child.id()))));
        // Process 1 belongs to another user.
        assert!([1, std::process::id()].iter().all(|pid| !is_gone(Some(&owner(&HERE.host, *pid)))));
        assert!(
            !is_gone(Some(&owner(&HERE.host, 0))) && !is_gone(Some(&owner(&HERE.host, u32::MAX))) && !is_gone(None)
        );
    }
}
