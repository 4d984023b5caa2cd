//! `lockkeeper lead`: stands as a candidate of an election again and again, so that one machine of several leads, and runs a command while
//! it does.

pub(crate) mod args;

use std::time::Duration;

use tokio::time::sleep;

pub(crate) use self::args::LeadArgs;
use crate::args::common::Common;
use crate::exit::{Code, Failure};
use crate::output::Printer;
use crate::service::{self, NotifyState};
use crate::signals::{self, ENDING, STOPPING, Signals};
use crate::verb::{Context, Verb};
use crate::verbs::run::args::{LockArgs, RunArgs, parse_run};
use crate::verbs::run::{LockedRun, Request};

impl Verb for LeadArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    fn takes_a_while(&self) -> bool {
        true
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        lead(self, context.printer).await
    }
}

/// Pause before another attempt to reach the servers.
const PAUSE: Duration = Duration::from_secs(1);

/// Stands by, leads, and stands by again; returns the exit status.
async fn lead(args: LeadArgs, printer: &Printer) -> Result<u8, Failure> {
    let mut signals = Signals::default();
    signals.add(ENDING)?;
    let (once, commands) = (args.once, args.around.clone());
    let run = Request::read(run_args(args)?, printer).await?.of_candidate();
    let printer = run.printer;
    let tell = |state| service::tell(&[state], &printer);
    let mut unreachable = String::new();
    let ended = loop {
        let mut locked = LockedRun { leader: Some(commands.clone()), ..LockedRun::default() };
        match run.run(&mut locked, &mut signals).await {
            Ok(_) if locked.demoted && !once && !signals.are_to_stop() => {
                tell(NotifyState::Status("standby"));
                // The next outage is another one.
                unreachable.clear();
            }
            // A standby machine outlasts its servers, and so does a former leader.
            Err(failure) if failure.code == Code::Unreachable && !signals.are_to_stop() => {
                tell(NotifyState::Status("no server answers; trying again"));
                if unreachable != failure.message {
                    printer.note(&format!("{}; trying again", failure.message));
                    unreachable = failure.message;
                }
                tokio::select! {
                    _ = locked.interrupted(&mut signals) => break Ok(0),
                    () = sleep(PAUSE) => {}
                }
            }
            Ok(status) if signals.are_to_stop() && is_of_a_stop(status) => break Ok(0),
            Ok(status) => break Ok(locked.own.map_or(status, |code| printer.ended(args::STATUSES, code))),
            Err(failure) => break Err(failure),
        }
    };
    tell(NotifyState::Stopping);
    ended
}

/// Whether a command that such a signal stops ends like this.
fn is_of_a_stop(status: u8) -> bool {
    STOPPING.iter().any(|signal| status == signals::status(signal.as_raw()))
}

/// Returns the same command line as one of `run`. Only the parser knows the defaults of the other options.
fn run_args(args: LeadArgs) -> Result<RunArgs, Failure> {
    // No `..`: the compiler asks for a decision about each new option.
    let LeadArgs {
        name,
        around: _,
        once: _,
        message,
        publish_command,
        on_revoke,
        grace,
        lock_delay,
        on_suspect,
        node_format,
        quiet,
        no_history,
        common,
        command,
    } = args;
    let words = [name.into(), "--".into()].into_iter().chain(command);
    let mut run = parse_run(words).map_err(|problem| Failure::new(Code::Usage, problem))?;
    run.kind.node_format = node_format;
    let lock = LockArgs { message, lock_delay, no_history, ..run.lock };
    Ok(RunArgs {
        lock,
        publish_command,
        on_revoke,
        yields: None,
        min_hold: None,
        grace,
        on_suspect,
        quiet,
        common,
        ..run
    })
}
