//! What a hold is bound to: it ends with that.

use std::time::{Duration, SystemTime};

use lockkeeper_session::process::ProcStat;
use lockkeeper_session::text::spell;
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

use crate::control::until_ended;
use crate::exit::{Code, Failure};
use crate::ids::leader_of;
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
        if let Some(process) = process {
            let pid = Pid::from_raw(process).filter(|pid| process > 1 && runs(*pid));
            return pid.map(Bond::Process).ok_or_else(|| unbound(&format!("--while {process}: no such process runs")));
        }
        let leader = leader_of(getpid()).map_err(|error| Failure::system("cannot find the session", error))?;
        let why = match leader {
            None => "the process that leads it is outside of this pid namespace".to_owned(),
            Some(leader) if leader == getpid() => "this command leads it, and ends now".to_owned(),
            Some(leader) if !runs(leader) => format!("process {}, which led it, has ended", leader.as_raw_nonzero()),
            Some(leader) => return Ok(Bond::Session(leader)),
        };
        Err(unbound(&format!("the hold cannot end with this session: {why}")))
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

fn runs(pid: Pid) -> bool {
    // EPERM: it runs, as another user. What has ended and was not reaped holds nothing.
    let has_ended = ProcStat::of(pid.as_raw_nonzero().get().unsigned_abs()).is_some_and(|process| !process.runs());
    test_kill_process(pid) != Err(Errno::SRCH) && !has_ended
}

fn unbound(why: &str) -> Failure {
    Failure::new(Code::Usage, why)
        .hint("name a process that runs, such as $$ in a shell, with --while; or a time, with --for")
}
