//! The process group that is ended with a hold, and what a hold is bound to.

use std::time::Duration;

use lockkeeper::{Loss, MultiGuard};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, setpgid, test_kill_process_group};

use crate::exit::{Code, Failure};
use crate::group::Group;
use crate::ids;
use crate::output::Printer;
use crate::supervision::{Event, Supervision};
use crate::watchdog::{self, Watchdog};

/// How long a group that got SIGKILL has until it is gone. A process in the kernel, as on a disk that hangs, goes on no step of its own.
const DYING: Duration = Duration::from_secs(1);

/// A process group that ends in time before the next holder of the locks can begin, as the command of `run` does.
pub(crate) struct EndWith {
    group: Pid,
    /// While the locks are held.
    guarded: Option<(Supervision, Watchdog)>,
}

impl EndWith {
    /// Checks the id of a process whose group is to be ended.
    pub(super) fn check(process: i32) -> Result<Self, Failure> {
        let wrong = |what: &str| {
            Failure::new(Code::Usage, format!("--end-with {process}: {what}"))
                .hint("name a process of this user that runs, such as $$ in a shell")
        };
        let pid = Pid::from_raw(process).filter(|_| process > 1).ok_or_else(|| wrong("no process of a user"))?;
        let group = ids::group_of(pid).map_err(|error| match error {
            Errno::SRCH => wrong("no such process runs"),
            error => wrong(&error.to_string()),
        })?;
        let group =
            group.ok_or_else(|| wrong("its process group is that of a process outside of this pid namespace"))?;
        test_kill_process_group(group).map_err(|_| wrong("this user may not end it"))?;
        if Some(group) == ids::own_group() {
            // The release comes after the end of the group.
            setpgid(None, None).map_err(|error| Failure::system("cannot leave the process group", error))?;
        }
        Ok(EndWith { group, guarded: None })
    }

    /// Begins with a hold whose end the group must not outlive.
    pub(super) fn begin(&mut self, grace: Duration) -> Result<(), Failure> {
        let watchdog = Watchdog::start_for(self.group);
        let watchdog = watchdog.map_err(|error| Failure::system("cannot start the watchdog of the group", error))?;
        self.guarded = Some((Supervision::new(watchdog::now(), grace, None), watchdog));
        Ok(())
    }

    /// Tells the watchdog until when the locks can be trusted. It ends the group before that.
    pub(super) fn trusted(&mut self, guard: &MultiGuard) {
        let Some((supervision, watchdog)) = &mut self.guarded else { return };
        // Read first: a stop of this process between the two reads makes the deadline earlier, not later.
        let now = watchdog::now();
        if watchdog.has_ended()
            && let Ok(another) = Watchdog::start_for(self.group)
        {
            *watchdog = another;
        }
        if let Some(deadline) = supervision.deadline(now + guard.valid_for()) {
            watchdog.until(deadline);
        }
    }

    /// Lets the watchdog end the group after a loss.
    pub(super) fn lost(&mut self, why: Loss) {
        if let Some((_, watchdog)) = &self.guarded {
            let watchdog_acted = watchdog.has_acted();
            self.end(Event::Lost { why, watchdog_acted, suspended: false });
        }
    }

    /// Lets the watchdog end the group before a release that the client has not asked for.
    pub(super) async fn stop(&mut self, guard: &MultiGuard) {
        self.end(Event::Unreliable { left: guard.valid_for() });
        self.outlast().await;
    }

    fn end(&mut self, event: Event) {
        let Some((supervision, watchdog)) = &mut self.guarded else { return };
        _ = supervision.handle(event, watchdog::now());
        if let Some(kill) = supervision.kill_at() {
            watchdog.end_by(kill);
        }
    }

    /// Waits until the group has ended, if it is to end, and dismisses the watchdog. Dropping the future leaves the group to the watchdog.
    pub(super) async fn outlast(&mut self) {
        let Some((supervision, _)) = &self.guarded else { return };
        if let Some(kill) = supervision.kill_at() {
            let mut group = Group::of(self.group);
            if !group.ends_by(kill).await {
                _ = kill_process_group(self.group, Signal::KILL);
                group.ends_by(kill + DYING).await;
            }
        }
        self.dismiss();
    }

    /// Lets the group go on after the hold.
    pub(super) fn dismiss(&mut self) {
        if let Some((_, watchdog)) = self.guarded.take() {
            drop(watchdog.dismiss(Printer::new(true)));
        }
    }
}

/// Makes the pipe on standard output hold only a few lines, so that a client that does not read is noticed.
pub(super) fn shrink_pipe(bytes: usize) {
    #[cfg(target_os = "linux")]
    // It fails if it is no pipe.
    let _ = rustix::pipe::fcntl_setpipe_size(rustix::stdio::stdout(), bytes);
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}
