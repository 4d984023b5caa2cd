//! The time under the locks: the command, and for `lockkeeper lead` the commands before and after it.

use std::ffi::{OsStr, OsString};

use lockkeeper::{Lockkeeper, MultiGuard};
use rustix::process::Signal;

use super::hold;
use crate::child::{CommandEnd, Extras, RunTerms};
use crate::exit::Failure;
use crate::held::Held;
use crate::output::Printer;
use crate::service::{self, NotifyState};
use crate::signals::{ENDING, STOPPING, Signals};

/// What is run under the locks, and how that ended.
#[derive(Debug, Default)]
pub(crate) struct LockedRun {
    /// The commands of a leader; `None` for `lockkeeper run`.
    pub leader: Option<LeaderCommands>,
    /// Whether it ended because the locks were lost or somebody asked for them, and not by itself.
    pub demoted: bool,
}

/// The shell commands around the command of a leader.
#[derive(Clone, Debug)]
pub(crate) struct LeaderCommands {
    pub on_promote: Option<OsString>,
    pub on_demote: Option<OsString>,
}

impl LockedRun {
    /// Waits for a signal that ends the wait for the locks.
    pub(crate) async fn interrupted(&self, signals: &mut Signals) -> Signal {
        let ending = if self.leader.is_some() { STOPPING } else { ENDING };
        loop {
            let signal = signals.next().await;
            if ending.contains(&signal) {
                return signal;
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
                let command = shell(&on_promote);
                let end = hold(&command, Some(keeper), held, signals, (terms.clone(), extras), printer).await;
                (end.map(Some), Extras::default())
            }
            None => (Ok(None), extras),
        };
        let ended = match promoted {
            Ok(Some(end)) if end.status != 0 || is_demoted(&end) || signals.are_to_stop() => {
                printer.note(&format!("the command is not run: --on-promote has ended with {}", end.status));
                Ok(end)
            }
            Ok(_) => hold(command, Some(keeper), held, signals, (terms.clone(), extras), printer).await,
            Err(failure) => Err(failure),
        };
        self.demoted = ended.as_ref().is_ok_and(is_demoted);
        if let Some(on_demote) = on_demote {
            // Not stopped by a loss: what it undoes must be undone all the more.
            let extras = Extras { described: guard.is_held().then_some(held), ..Extras::default() };
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
