//! One call for a whole run: the claim, the work and the end.

use std::fmt::Display;

use lockkeeper::Loss;
use lockkeeper::hold::run_until;

use super::claim::{Claim, Skipped};
use super::error::JobError;
use super::job::Job;
use super::records::{EndKind, RunEnd};
use super::run::{NotRecorded, Run};

/// The result of [`Job::run`].
// Exhaustive on purpose: a caller that forgets an outcome would take undone work for done.
#[derive(Debug)]
#[must_use = "the work may have failed, may have lost the lock, or may not be recorded"]
pub enum Ran<T, E> {
    /// The work succeeded, and the records say so.
    Done(T),
    /// The work failed, and the records say so.
    Failed(E),
    /// The work has ended, but the records do not say so, or may not. If the run counts as crashed, [`Job::on_crash`] decides
    /// whether another host runs the slot again.
    Unrecorded {
        /// The result of the work.
        work: Result<T, E>,
        /// Why its end is not recorded.
        reason: NotRecorded,
    },
    /// The lock was lost, so the work was dropped at its next await. The run counts as crashed, whether or not its end is
    /// recorded.
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
            Err(loss) => RunEnd::of(EndKind::Lost).with_reason(loss.to_string()),
        };
        let recorded = run.finish(end).await.recorded;
        Ok(match (done, recorded) {
            (Err(loss), _) => Ran::Lost(loss),
            (Ok(work), Err(reason)) => Ran::Unrecorded { work, reason },
            (Ok(Ok(value)), Ok(())) => Ran::Done(value),
            (Ok(Err(error)), Ok(())) => Ran::Failed(error),
        })
    }
}
