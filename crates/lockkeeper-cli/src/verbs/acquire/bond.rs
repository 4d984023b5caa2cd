//! What a hold is bound to: it ends with that.

use std::time::{Duration, SystemTime};

use lockkeeper_session::text::spell;
use rustix::process::{Pid, getsid};

use crate::control::until_ended;
use crate::exit::{Code, Failure};
use crate::text::moment;

/// A process, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bond {
    Process(Pid),
    /// The session of the terminal, by the process that leads it.
    Session(Pid),
    Time(Duration),
}

impl Bond {
    /// Returns the bond that the options name, or this session.
    pub(super) fn of(process: Option<i32>, time: Option<Duration>) -> Result<Self, Failure> {
        if let Some(time) = time {
            return Ok(Bond::Time(time));
        }
        let bond = match process {
            Some(process) => {
                let pid = Pid::from_raw(process).filter(|_| process > 1);
                Bond::Process(pid.ok_or_else(|| ended(process, "--while"))?)
            }
            None => Bond::Session(getsid(None).map_err(|error| Failure::system("cannot find the session", error))?),
        };
        bond.check()?;
        Ok(bond)
    }

    /// Checks that the process runs.
    fn check(self) -> Result<(), Failure> {
        let (pid, option) = match self {
            Bond::Process(pid) => (pid, "--while"),
            Bond::Session(pid) => (pid, "the session's process"),
            Bond::Time(_) => return Ok(()),
        };
        // EPERM: it runs, as another user.
        match rustix::process::test_kill_process(pid) {
            Err(rustix::io::Errno::SRCH) => Err(ended(pid.as_raw_nonzero().get(), option)),
            _ => Ok(()),
        }
    }

    /// Waits until it is over. Dropping the future leaves nothing behind.
    pub(super) async fn over(self) {
        match self {
            Bond::Time(time) => tokio::time::sleep(time).await,
            Bond::Process(pid) | Bond::Session(pid) => {
                // It may have ended since the check.
                if let Ok(ended) = until_ended(pid) {
                    _ = ended.await;
                }
            }
        }
    }

    /// Returns it as a word for the keeper.
    pub(super) fn word(self) -> String {
        match self {
            Bond::Process(pid) => format!("process:{}", pid.as_raw_nonzero()),
            Bond::Session(pid) => format!("session:{}", pid.as_raw_nonzero()),
            Bond::Time(time) => format!("time:{}", time.as_millis()),
        }
    }

    /// Reads such a word.
    pub(super) fn read(word: &str) -> Option<Self> {
        let (kind, number) = word.split_once(':')?;
        let pid = || Pid::from_raw(number.parse().ok()?);
        match kind {
            "process" => pid().map(Bond::Process),
            "session" => pid().map(Bond::Session),
            "time" => Some(Bond::Time(Duration::from_millis(number.parse().ok()?))),
            _ => None,
        }
    }

    /// `until process 4711 (bash) ends`, `until 18:00:00, for 8h`
    pub(super) fn text(self) -> String {
        let named = |pid: Pid| {
            let number = pid.as_raw_nonzero();
            let name = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
            if name.is_empty() { number.to_string() } else { format!("{number} ({})", name.trim()) }
        };
        match self {
            Bond::Process(pid) => format!("until process {} ends", named(pid)),
            Bond::Session(pid) => format!("until the session of process {} ends", named(pid)),
            Bond::Time(time) => match SystemTime::now().checked_add(time) {
                Some(end) => format!("until {}, for {}", moment(end), spell(time)),
                None => format!("for {}", spell(time)),
            },
        }
    }
}

fn ended(process: i32, option: &str) -> Failure {
    Failure::new(Code::Usage, format!("{option} {process}: no such process runs"))
        .hint("name a process that runs, such as $$ in a shell, with --while; or a time, with --for")
}
