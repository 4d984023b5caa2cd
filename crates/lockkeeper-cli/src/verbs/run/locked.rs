//! The time under the locks: the command, and for `lockkeeper lead` the commands before and after it.

use std::ffi::{OsStr, OsString};

use lockkeeper::{Lockkeeper, MultiGuard};
use rustix::process::Signal;

use super::hold;
use crate::child::{self, CommandEnd, Extras, RunTerms};
use crate::exit::{Code, Failure};
use crate::held::Held;
use crate::output::Printer;
use crate::service::{self, NotifyState};
use crate::signals::{ENDING, RELOADING, STOPPING, Signals};

/// The shell commands around the command of a leader.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct LeaderCommands {
    /// Run this shell command before COMMAND; if it fails, resign and end with its status
    #[arg(long, value_name = "COMMAND")]
    pub on_promote: Option<OsString>,
    /// Run this shell command when COMMAND has ended, before this machine resigns
    ///
    /// At most once for each leadership, also if --on-promote failed; not if lockkeeper is killed or the machine fails. The next
    /// machine waits for it, unless the leadership is lost.
    #[arg(long, value_name = "COMMAND")]
    pub on_demote: Option<OsString>,
}

/// What is run under the locks, and how that ended.
#[derive(Debug, Default)]
pub(crate) struct LockedRun {
    /// The commands of a leader; `None` for `lockkeeper run`.
    pub leader: Option<LeaderCommands>,
    /// Whether it ended because the locks were lost or somebody asked for them, and not by itself.
    pub demoted: bool,
    /// Whether the locks were still held when the command had ended and --on-demote was started.
    pub outlived: bool,
    /// The exit status, if it is one of lockkeeper's own.
    pub own: Option<Code>,
}

impl LockedRun {
    /// Notes that the exit status is one of lockkeeper's own; returns it.
    pub(super) fn end_with(&mut self, code: Code) -> u8 {
        self.own = Some(code);
        code.status()
    }

    /// Waits for a signal that ends the wait for the locks.
    pub(crate) async fn interrupted(&self, signals: &mut Signals) -> Signal {
        let ending = if self.leader.is_some() { STOPPING } else { ENDING };
        loop {
            let signal = signals.next().await;
            if ending.contains(&signal) {
                return signal;
            }
            if signal == Signal::TSTP {
                // It has been caught since the first command ran.
                child::suspend();
            }
        }
    }

    /// Runs the commands; returns how the last one before that of --on-demote ended.
    pub(super) async fn run(
        &mut self,
        command: &[OsString],
        (keeper, guard): (&Lockkeeper, &MultiGuard),
        signals: &mut Signals,
        (terms, extras): (RunTerms, Extras<'_>),
        printer: Printer,
    ) -> Result<CommandEnd, Failure> {
        let held = Held::All(guard);
        let Some(LeaderCommands { on_promote, on_demote }) = self.leader.clone() else {
            return hold(command, Some(keeper), held, signals, (terms, extras), printer).await;
        };
        service::tell(&[NotifyState::Status("leader")], &printer);
        // The first command gets the watchdog that was started before the grant.
        let (promoted, extras) = match on_promote {
            Some(on_promote) => {
                let (command, extras) = (shell(&on_promote), Extras { withheld: RELOADING, ..extras });
                let end = hold(&command, Some(keeper), held, signals, (terms.clone(), extras), printer).await;
                (end.map(Some), Extras::default())
            }
            None => (Ok(None), extras),
        };
        let ended = match promoted {
            Ok(Some(end)) if end.status != 0 || is_demoted(&end) || signals.are_to_stop() => {
                let why = match &end {
                    _ if end.loss.is_some() => "the leadership is lost".to_owned(),
                    _ if end.stopped => "the leadership cannot be relied on".to_owned(),
                    _ if end.why.is_some() => "this machine is asked to step down".to_owned(),
                    _ if signals.are_to_stop() => "a signal ends lockkeeper".to_owned(),
                    _ => format!("--on-promote has ended with {}", end.status),
                };
                printer.note(&format!("the command is not run: {why}"));
                Ok(end)
            }
            Ok(_) => hold(command, Some(keeper), held, signals, (terms.clone(), extras), printer).await,
            Err(failure) => Err(failure),
        };
        self.demoted = ended.as_ref().is_ok_and(is_demoted);
        let is_held = guard.is_held();
        if !is_held {
            service::tell(&[NotifyState::Status("standby")], &printer);
        }
        if let Some(on_demote) = on_demote {
            self.outlived = is_held;
            // Not stopped by a loss or a signal: what it undoes must be undone all the more.
            let extras = Extras { described: is_held.then_some(held), withheld: ENDING, ..Extras::default() };
            let end = hold(&shell(&on_demote), None, Held::Nothing, signals, (terms, extras), printer).await?;
            if end.status != 0 {
                printer.note(&format!("--on-demote has ended with {}", end.status));
            }
        }
        ended
    }
}

/// Whether the locks were lost, or somebody asked for them. A signal such as SIGHUP may have come long before the end.
fn is_demoted(end: &CommandEnd) -> bool {
    end.loss.is_some() || end.stopped || end.why.is_some()
}

fn shell(command: &OsStr) -> Vec<OsString> {
    vec!["sh".into(), "-c".into(), command.to_owned()]
}
