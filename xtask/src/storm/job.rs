//! The command under the lock: it works for a while and logs what it sees and when, with one write per line.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lockkeeper_fence::{FencedFile, FencingToken, FileError};
use rustix::time::{ClockId, clock_gettime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval, sleep_until};

/// The interval of its log lines.
const TICK: Duration = Duration::from_millis(10);

/// Returns the time, by a clock that all processes share and that runs while the machine sleeps.
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A job of the storm; not for people.
#[derive(Clone, Debug, Args)]
pub(crate) struct Working {
    /// The file of its log.
    #[arg(long)]
    log: PathBuf,
    /// The milliseconds of its work.
    #[arg(long)]
    work: u64,
    #[arg(long)]
    status: u8,
    /// The milliseconds that it continues after SIGTERM.
    #[arg(long)]
    finishes: Option<u64>,
    /// Whether it ignores SIGTERM.
    #[arg(long)]
    ignores: bool,
    /// Whether a second process works too.
    #[arg(long)]
    second: bool,
    /// One file per lock, with a number that is incremented under the lock.
    #[arg(long)]
    counter: Vec<PathBuf>,
    /// A planted mistake: the work runs in a process that cannot be stopped.
    #[arg(long)]
    flees: bool,
    /// A planted mistake: all holds have the same token.
    #[arg(long)]
    one_token: bool,
}

impl Working {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        if std::mem::take(&mut self.flees) {
            // The session's first process is `setsid` itself, so a signal to this group does not reach it.
            let status = self.again(Command::new("setsid").arg("--wait").arg(std::env::current_exe()?))?.wait()?;
            return Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)));
        }
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(self.work())
    }

    /// Starts the same job again.
    fn again(&self, command: &mut Command) -> Result<Child> {
        command.arg("storm-job").arg("--log").arg(&self.log).args(["--work", &self.work.to_string()]);
        command.args(["--status", &self.status.to_string()]);
        command.args(self.finishes.iter().flat_map(|millis| ["--finishes".to_owned(), millis.to_string()]));
        command.args(self.ignores.then_some("--ignores")).args(self.second.then_some("--second"));
        command.args(self.one_token.then_some("--one-token"));
        for counter in &self.counter {
            command.arg("--counter").arg(counter);
        }
        command.spawn().context("starting a second process")
    }

    async fn work(self) -> Result<ExitCode> {
        let mut log = File::options().append(true).create(true).open(&self.log).context("opening the log")?;
        let mut say = |what: String| log.write_all(format!("{} {what}\n", now().as_nanos()).as_bytes());
        let listens = self.ignores || self.finishes.is_some();
        let mut term = listens.then(|| signal(SignalKind::terminate())).transpose()?;
        let token = std::env::var("LOCKKEEPER_TOKEN").unwrap_or_default();
        let told: Vec<&str> = token.lines().map(|token| if self.one_token { "7" } else { token }).collect();
        let tokens = told.iter().map(|token| token.parse()).collect::<Result<Vec<FencingToken>, _>>()?;
        say(format!("begin {} {}", std::process::id(), told.join(",")))?;
        let mut second = match self.second {
            true => {
                let log = self.log.with_extension("second");
                let second = Working { log, second: false, counter: vec![], status: 0, ..self.clone() };
                Some(second.again(&mut Command::new(std::env::current_exe()?))?)
            }
            false => None,
        };
        let gates: Vec<_> =
            self.counter.iter().zip(&tokens).map(|(file, token)| (FencedFile::new(file), *token)).collect();
        let mut read = Vec::new();
        for (place, (gate, token)) in gates.iter().enumerate() {
            read.push(match gate.enter(*token) {
                Ok(_pass) => {
                    let number: u64 = std::fs::read_to_string(&self.counter[place])?.trim().parse()?;
                    say(format!("read {place} {number}"))?;
                    Some(number)
                }
                Err(FileError::Refused { .. }) => None,
                Err(error) => return Err(error.into()),
            });
        }
        let mut end = Instant::now() + Duration::from_millis(self.work);
        let mut ticks = interval(TICK);
        loop {
            tokio::select! {
                biased;
                () = sleep_until(end) => break,
                Some(()) = async { term.as_mut()?.recv().await } => {
                    say("told".to_owned())?;
                    if let Some(millis) = self.finishes {
                        end = end.min(Instant::now() + Duration::from_millis(millis));
                    }
                }
                _ = ticks.tick() => say("tick".to_owned())?,
            }
        }
        for (place, ((gate, token), read)) in gates.iter().zip(&read).enumerate() {
            let Some(number) = read else { continue };
            match gate.replace(*token, format!("{}\n", number + 1)) {
                Ok(()) => say(format!("wrote {place} {}", number + 1))?,
                Err(FileError::Refused { .. }) => say(format!("refused {place}"))?,
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(second) = &mut second {
            second.wait()?;
        }
        say("end".to_owned())?;
        Ok(ExitCode::from(self.status))
    }
}
