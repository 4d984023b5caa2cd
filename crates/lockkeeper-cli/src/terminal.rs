//! The controlling terminal, given to the command under the lock and taken back.
//!
//! The command runs in a process group of its own, and a terminal sends its keys and input to one group at a time. So
//! the command's group must own the terminal while it runs, as under a shell. Otherwise an editor, a password prompt
//! and Ctrl-C do not work.

use std::fs::File;
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Blockable};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use crate::ids::own_group;

/// The controlling terminal of this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    /// Its modes when it was ours.
    modes: Option<Termios>,
}

impl Terminal {
    /// Returns the controlling terminal, if there is one.
    pub(crate) fn controlling() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let modes = tcgetattr(&tty).ok();
        Some(Terminal { tty, modes })
    }

    /// Whether its keys and input go to our process group.
    pub(crate) fn is_ours(&self) -> bool {
        own_group().is_some_and(|group| self.belongs_to(group))
    }

    /// Whether its keys and input go to this group.
    pub(crate) fn belongs_to(&self, group: Pid) -> bool {
        tcgetpgrp(self.tty.as_fd()).is_ok_and(|foreground| foreground == group)
    }

    /// Directs its keys and input to a group.
    pub(crate) fn give(&self, group: Pid) {
        // The kernel stops a background group that does this with SIGTTOU, unless the signal is blocked.
        let mut asked = SigSet::empty();
        asked.add(Blockable::SIGTTOU);
        let Ok(before) = asked.thread_swap_mask(SigmaskHow::SIG_BLOCK) else {
            return;
        };
        // It fails if the terminal is closed or the group has ended: then there is nothing to direct.
        _ = tcsetpgrp(self.tty.as_fd(), group);
        _ = before.thread_set_mask();
    }

    /// Directs its keys and input to us, unless another group than `group` has taken them in the meantime.
    pub(crate) fn take_back(&self, group: Pid) {
        if let Some(own) = own_group().filter(|_| self.belongs_to(group)) {
            self.give(own);
        }
    }

    /// Restores its modes after a command that was killed with the terminal in raw mode.
    pub(crate) fn mend(&self) {
        if let Some(modes) = self.modes.as_ref().filter(|_| self.is_ours()) {
            _ = tcsetattr(self.tty.as_fd(), OptionalActions::Drain, modes);
        }
    }
}
