//! One call for a whole run: the claim, the work and the end.

use std::fmt::Display;

use lockkeeper_core::Loss;
use lockkeeper_core::jobs::{EndKind, RunEnd};
use tracing::warn;

use super::claim::{Claim, Skipped};
use super::job::Job;
use super::run::Run;
use crate::error::JobError;
use crate::hold::holding::run_until;

/// The result of [`Job::run`].
#[derive(Debug)]
pub enum Ran<T, E> {
    /// The work succeeded.
    Done(T),
    /// The work failed.
    Failed(E),
    /// The lock was lost, so the work was dropped at its next await.
    Lost(Loss),
    /// This host ran nothing.
    Skipped(Skipped),
}

impl Job {
    /// Claims the slot of now, runs `work` if this host got it, and records the end.
    ///
    /// On a loss of the lock, `work` is dropped at its next await, and the run counts as crashed ([`EndKind::Lost`]). A panic of
    /// `work` also counts as a crash.
    ///
    /// # Cost
    ///
    /// As [`Job::claim`] and [`Run::finish`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. A claimed run then counts as crashed.
    ///
    /// # Errors
    ///
    /// As [`Job::claim`]. An error of `work` is [`Ran::Failed`].
    pub async fn run<T, E: Display>(
        &self,
        work: impl AsyncFnOnce(&Run) -> Result<T, E>,
    ) -> Result<Ran<T, E>, JobError> {
        let run = match self.claim().await? {
            Claim::Run(run) => run,
            Claim::Skipped(skipped) => return Ok(Ran::Skipped(skipped)),
        };
        let done = run_until(run.guard().lost(), work(&run)).await;
        let end = match &done {
            Ok(Ok(_)) => RunEnd::succeeded(),
            Ok(Err(error)) => RunEnd::failed(error.to_string()),
            Err(loss) => RunEnd::of(EndKind::Lost).with_why(loss.to_string()),
        };
        let finished = run.finish(end).await;
        if !finished.recorded {
            warn!(path = %self.path.as_ref().map_or("", |path| path.as_str()), slot = %finished.record.slot.name,
                "the end of a run was not recorded");
        }
        Ok(match done {
            Ok(Ok(value)) => Ran::Done(value),
            Ok(Err(error)) => Ran::Failed(error),
            Err(loss) => Ran::Lost(loss),
        })
    }
}
