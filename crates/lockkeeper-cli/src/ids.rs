//! The process group and the session of a process. Both may be those of a process outside of this pid namespace, as in
//! a container that `nsenter` has entered. The kernel then says 0, which is nobody's id, and which rustix takes for one.

use nix::unistd;
use rustix::io::Errno;
use rustix::process::Pid;

/// Returns the process group of this process.
pub(crate) fn own_group() -> Option<Pid> {
    Pid::from_raw(unistd::getpgrp().as_raw())
}

/// Returns the process group of a process.
pub(crate) fn group_of(process: Pid) -> Result<Option<Pid>, Errno> {
    id(unistd::getpgid(Some(unistd::Pid::from_raw(process.as_raw_nonzero().get()))))
}

/// Returns the process that leads the session of a process, or that did: it may have ended.
pub(crate) fn leader_of(process: Pid) -> Result<Option<Pid>, Errno> {
    id(unistd::getsid(Some(unistd::Pid::from_raw(process.as_raw_nonzero().get()))))
}

fn id(answer: nix::Result<unistd::Pid>) -> Result<Option<Pid>, Errno> {
    answer.map(|pid| Pid::from_raw(pid.as_raw())).map_err(|error| Errno::from_raw_os_error(error as i32))
}
