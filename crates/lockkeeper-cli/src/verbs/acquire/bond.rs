//! What a hold is bound to: it ends with that.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper_session::process::ProcStat;
use lockkeeper_session::text::spell;
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};
use tokio::sync::Notify;

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
            let has_end = SystemTime::now().checked_add(time).is_some_and(|end| moment(end) != "?");
            let too_long = || unbound(&format!("--for {}: no clock shows its end", spell(time)));
            return has_end.then_some(Bond::Time(time)).ok_or_else(too_long);
        }
        if let Some(process) = process {
            let pid = Pid::from_raw(process).filter(|pid| process > 0 && runs(*pid));
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

    /// Watches it; the future resolves when it is over. A time begins when `held` is notified. Dropping the future leaves nothing behind.
    pub(super) fn watch(self, held: Arc<Notify>) -> Result<impl Future<Output = ()>, Failure> {
        let ended = match self {
            Bond::Time(_) => None,
            Bond::Process(pid) | Bond::Session(pid) => match until_ended(pid) {
                Ok(ended) => Some(ended),
                // It has ended since the check.
                Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => None,
                Err(error) => {
                    let process = pid.as_raw_nonzero();
                    return Err(unbound(&format!("the end of process {process} cannot be watched: {error}")));
                }
            },
        };
        Ok(async move {
            match (self, ended) {
                (Bond::Time(time), _) => {
                    held.notified().await;
                    tokio::time::sleep(time).await;
                }
                (_, Some(ended)) => _ = ended.await,
                (_, None) => {}
            }
        })
    }

    /// Returns it as a word for the keeper.
    pub(super) fn word(self) -> String {
        match self {
            Bond::Process(pid) => format!("process:{}", pid.as_raw_nonzero()),
            Bond::Session(pid) => format!("session:{}", pid.as_raw_nonzero()),
            Bond::Time(time) => format!("time:{}", time.as_nanos()),
        }
    }

    /// Reads such a word.
    pub(super) fn read(word: &str) -> Option<Self> {
        let (kind, number) = word.split_once(':')?;
        let pid = || Pid::from_raw(number.parse().ok()?);
        match kind {
            "process" => pid().map(Bond::Process),
            "session" => pid().map(Bond::Session),
            "time" => Some(Bond::Time(Duration::from_nanos(number.parse().ok()?))),
            _ => None,
        }
    }

    /// What it is before the grant: `until process 4711 (bash) ends`, `for 8h`
    pub(super) fn ahead(self) -> String {
        match self {
            Bond::Time(time) => format!("for {}", spell(time)),
            _ => self.text(),
        }
    }

    /// What it is from a grant of this moment on: `until process 4711 (bash) ends`, `until 18:00:00, for 8h`
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
