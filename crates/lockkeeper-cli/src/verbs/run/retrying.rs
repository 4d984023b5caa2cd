//! Retries of a command, and its dead letter after the last one.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::MultiGuard;
use lockkeeper_contentserv::TASK_TIMEOUT;
use lockkeeper_letters::Sink;
use lockkeeper_letters::retry::{About, Kept, Operation, Retrying};
use lockkeeper_session::text::spell;

use super::args::RunArgs;
use crate::advice::Suggested;
use crate::exit::{Code, Failure};
use crate::letters::{self, CommandLine};
use crate::settings::Settings;

/// How often to retry, and what to do after the last attempt.
pub(crate) struct RetryPolicy {
    retries: u32,
    delay: Duration,
    letters: Option<(Arc<dyn Sink>, CommandLine)>,
    /// The options with which `dlq` finds the letters.
    letters_at: Vec<OsString>,
}

impl RetryPolicy {
    /// Reads the options. The settings apply only to the background class, which no person waits for.
    pub(crate) fn of(args: &RunArgs, settings: &Settings) -> Result<Self, Failure> {
        let background = args.kind.background;
        let set = &settings.all;
        let retries = args.lock.retries.unwrap_or(if background { set.retries.value } else { 0 });
        if let (Some(delay), 0) = (args.lock.retry_delay, retries) {
            let message =
                format!("--retry-delay {} is not used without retries", lockkeeper_session::text::typed(delay));
            return Err(Failure::new(Code::Usage, message).hint("add --retries COUNT, or leave out --retry-delay"));
        }
        let delay = args.lock.retry_delay.unwrap_or(set.retry_delay.value);
        let place = args.dead_letter.as_ref().or(set.dead_letter.value.as_ref().filter(|_| background));
        let mut policy =
            RetryPolicy { retries, delay, letters: None, letters_at: letters::options(args.dead_letter.as_deref()) };
        if let Some(place) = place {
            let sink = letters::open(place, settings)?;
            // Checked now, not at the end of a long wait.
            let waits = args.lock.wait.is_some() || args.lock.once;
            let wait = lockkeeper_session::text::typed(set.background.timeout.value.unwrap_or(TASK_TIMEOUT));
            let line = CommandLine::typed(&args.common.connect, settings, Some(wait.as_str()).filter(|_| !waits))?;
            policy.letters = Some((sink, line));
        }
        Ok(policy)
    }

    /// Returns how long an attempt waits by default. An attempt without a limit would be the only one.
    pub(crate) fn usual_wait(&self) -> Option<Duration> {
        (self.retries > 0 || self.letters.is_some()).then_some(TASK_TIMEOUT)
    }

    /// Makes attempts until the lock is granted or the retries are used up. Tells of each attempt that another one follows.
    pub(crate) async fn run(
        &self,
        about: About,
        tell: impl Fn(&str),
        mut attempt: impl AsyncFnMut() -> Result<MultiGuard, Failure>,
    ) -> Result<MultiGuard, Failure> {
        let mut retrying = Retrying::on_tokio(self.retries).delay(self.delay);
        let mut operation = Operation::unique();
        if let Some((sink, typed)) = &self.letters {
            retrying = retrying.dead_letters(sink.clone());
            let payload =
                serde_json::to_value(typed).map_err(|error| Failure::system("cannot store the command line", error))?;
            operation = operation.payload(payload);
        }
        let mut number = 0;
        let told = async || {
            number += 1;
            let ended = attempt().await;
            if let Err(failure) = &ended
                && number <= self.retries
                && failure.cause.is_passing()
            {
                let (all, delay) = (self.retries + 1, spell(self.delay));
                tell(&format!("attempt {number} of {all} ended: {failure}; the next one begins after {delay} or more"));
            }
            ended
        };
        let given_up = match retrying.attempt(&operation, about, told).await {
            Ok(guard) => return Ok(guard),
            Err(given_up) => given_up,
        };
        let mut failure = given_up.error;
        if given_up.attempts > 1 {
            failure.message = format!("given up after {} attempts: {}", given_up.attempts, failure.message);
        }
        match given_up.letter {
            Kept::In(place) => {
                failure.message = format!("{}; kept as the dead letter {} in {place}", failure.message, operation.id);
                let foreign = match &self.letters {
                    Some((sink, _)) => letters::is_foreign(&**sink).await,
                    None => false,
                };
                let replay = Suggested::new(["dlq", "replay", &operation.id]).with(foreign.then_some("--foreign"));
                let replay = replay.with(self.letters_at.clone());
                (failure.hint, failure.advice) = (None, vec![("try it again", replay)]);
            }
            Kept::Failed(error) => {
                let message = format!("{}; and no dead letter was kept: {error}: {}", failure.message, error.source);
                return Err(Failure::new(Code::Internal, message));
            }
            _ if self.letters.is_some() => {
                failure.message =
                    format!("{}; no dead letter is kept, because another attempt fails too", failure.message);
            }
            _ => {}
        }
        Err(failure)
    }
}
