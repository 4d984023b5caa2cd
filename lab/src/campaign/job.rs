//! The command under the lock: it works for a while and logs what it sees and when, with one write per line.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use lockkeeper_fence::{FencedFile, FencingToken, FileError};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval, sleep_until};

use super::judge::Word;
use super::plan::OnTerm;
use crate::process::Role;
use crate::tools::{Log, now};

/// The interval of its log lines.
const TICK: Duration = Duration::from_millis(10);

/// The work of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    /// The file of its log.
    pub log: PathBuf,
    pub work: Duration,
    pub status: u8,
    pub(super) on_term: OnTerm,
    /// Whether a second process works too.
    pub second: bool,
    /// One file per lock, with a number that is incremented under the lock.
    pub counter: Vec<PathBuf>,
    /// A planted mistake: the work runs in a process that cannot be stopped.
    pub flees: bool,
    /// A planted mistake: all holds have the same token.
    pub one_token: bool,
}

impl Work {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        if std::mem::take(&mut self.flees) {
            // The session's first process is `setsid` itself, so a signal to this group does not reach it.
            let status = Command::new("setsid")
                .arg("--wait")
                .arg(std::env::current_exe()?)
                .args(Role::Job.words(&self))
                .status()?;
            return Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)));
        }
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(self.work())
    }

    async fn work(self) -> Result<ExitCode> {
        let mut log = Log::open(&self.log).context("opening the log")?;
        let mut say = |word: Word| log.say(&(now(), word));
        let mut term = (self.on_term != OnTerm::Dies).then(|| signal(SignalKind::terminate())).transpose()?;
        let token = std::env::var("LOCKKEEPER_TOKEN").unwrap_or_default();
        let tokens_seen: Vec<&str> = token.lines().map(|token| if self.one_token { "7" } else { token }).collect();
        let tokens = tokens_seen.iter().map(|token| token.parse()).collect::<Result<Vec<FencingToken>, _>>()?;
        let pid = i32::try_from(std::process::id())?;
        let node = std::env::var("LOCKKEEPER_NODE").unwrap_or_default();
        say(Word::Begin { pid, node, tokens: tokens_seen.iter().filter_map(|token| token.parse().ok()).collect() })?;
        let mut second = match self.second {
            true => {
                let log = self.log.with_extension("second");
                let second = Work { log, second: false, counter: vec![], status: 0, ..self.clone() };
                Some(Role::Job.command(&second)?.spawn()?)
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
                    say(Word::Read(place, number))?;
                    Some(number)
                }
                Err(FileError::Refused { .. }) => None,
                Err(error) => return Err(error.into()),
            });
        }
        let mut end = Instant::now() + self.work;
        let mut ticks = interval(TICK);
        loop {
            tokio::select! {
                biased;
                () = sleep_until(end) => break,
                Some(()) = async { term.as_mut()?.recv().await } => {
                    say(Word::Told)?;
                    if let OnTerm::Finishes(after) = self.on_term {
                        end = end.min(Instant::now() + after);
                    }
                }
                _ = ticks.tick() => say(Word::Tick)?,
            }
        }
        for (place, ((gate, token), read)) in gates.iter().zip(&read).enumerate() {
            let Some(number) = read else { continue };
            match gate.replace(*token, format!("{}\n", number + 1)) {
                Ok(()) => say(Word::Wrote(place, number + 1))?,
                Err(FileError::Refused { .. }) => say(Word::Refused)?,
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(second) = &mut second {
            second.wait()?;
        }
        say(Word::End)?;
        Ok(ExitCode::from(self.status))
    }
}
