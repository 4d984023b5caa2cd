//! A candidate: its id, its options, and how it campaigns.

use std::fmt;
use std::sync::Arc;

use lockkeeper::error::Misuse;
use lockkeeper::{Acquire, CancellationToken, Error, Mutex};

use crate::candidacy::Candidacy;
use crate::leadership::{BoxFuture, Demotion, Leadership};
use crate::terms;

/// Options of a request, for each campaign.
type Options = Arc<dyn Fn(Acquire) -> Acquire + Send + Sync>;

/// A candidate of an election. Created by [`Election::candidate`](crate::Election::candidate); cheap to clone. A clone is another candidate with the same id.
#[derive(Clone)]
#[must_use = "a candidate does nothing until it campaigns, stands or runs"]
pub struct Candidate {
    /// An election cannot use every node format.
    lock: Result<Mutex, Misuse>,
    id: String,
    options: Option<Options>,
}

impl Candidate {
    pub(crate) fn new(lock: Result<Mutex, Misuse>, id: String) -> Self {
        Candidate { lock, id, options: None }
    }

    /// Sets options of the library's request, for each campaign: a timeout, a lock delay after a loss, what happens on a loss.
    ///
    /// With a timeout, [`Candidate::run`] leaves the queue when the time is over, and joins it again at its end.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use lockkeeper_election::Election;
    /// # fn example(election: Election) {
    /// let candidate = election.candidate("machine-1").with(|request| request.lock_delay(Duration::from_secs(5)));
    /// # }
    /// ```
    pub fn with(mut self, options: impl Fn(Acquire) -> Acquire + Send + Sync + 'static) -> Self {
        self.options = Some(Arc::new(options));
        self
    }

    /// Returns its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Waits until it is elected.
    ///
    /// Without a timeout, it also waits through sessions that expire meanwhile; each costs it its position. Needs no particular
    /// runtime: without async, call [`Lockkeeper::block_on`](lockkeeper::Lockkeeper::block_on) with it.
    ///
    /// # Cost
    ///
    /// One round trip if nobody leads: a create and a listing. Otherwise two reads more, and one listing more when the candidate ahead
    /// ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the candidate: its node is deleted in the background.
    ///
    /// # Errors
    ///
    /// Those of [`AcquireError`](lockkeeper::error::AcquireError). [`Error::is_retryable`] says whether campaigning again may succeed.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        Ok(Leadership::new(self.request()?.await?))
    }

    /// Returns the candidacy, which reports promotions and demotions as events, and campaigns again after each term.
    pub fn stand(&self) -> Candidacy {
        let candidate = self.clone();
        Candidacy::new(move || candidate.request())
    }

    /// Campaigns, and calls the hooks for each term, until `stop` is cancelled. Needs a tokio runtime; its future can be spawned. A hook
    /// is a closure such as `|leadership, demoted| Box::pin(async move { .. })`.
    ///
    /// A term begins with `promoted`, which does the leader's work, and ends with `demoted`. Each is called once for each term. Then
    /// the candidate resigns, and stands again at the end of the queue.
    ///
    /// | the term ends because | the token that `promoted` got | its future | `demoted` is called |
    /// |---|---|---|---|
    /// | it returns | is cancelled | has ended | while it still leads |
    /// | somebody asks the leader to step down, or `stop` is cancelled | is cancelled | goes on until it ends | while it still leads |
    /// | the leadership is lost | is cancelled | is dropped at its next await | after the loss |
    ///
    /// A loss is noticed before another candidate can lead, unless the node was deleted (`lockkeeper break`) or this process was paused:
    /// then only the fencing token protects. Work that does not await goes on, and so do tasks of its own: give them the cancellation
    /// token. If the leadership is lost while `promoted` ends its work, its future is dropped.
    ///
    /// `demoted` has no time limit. Except after a loss, this candidate leads until `demoted` has ended, and the next one waits. When
    /// `promoted` returns, the candidate campaigns again without a pause. Work that fails can end `run` only by cancelling `stop`.
    ///
    /// An error that may pass, such as servers that do not answer, is no end: the candidate tries again after 1 s.
    ///
    /// # Cost
    ///
    /// For each term that of [`Candidate::campaign`], and one round trip for the resignation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work at once and, in the background, resigns or withdraws the candidate. `demoted` is not called.
    ///
    /// # Errors
    ///
    /// The first error of a campaign that is not [retryable](Error::is_retryable). After `stop`, also
    /// [`ReleaseError`](lockkeeper::error::ReleaseError) if no server confirms that the leadership is over.
    pub async fn run(
        &self,
        stop: &CancellationToken,
        promoted: impl for<'a> FnMut(&'a Leadership, CancellationToken) -> BoxFuture<'a, ()> + Send,
        demoted: impl for<'a> FnMut(&'a Demotion) -> BoxFuture<'a, ()> + Send,
    ) -> Result<(), Error> {
        terms::run(|| self.request(), stop, promoted, demoted).await
    }

    /// Returns the library's request to be elected, for a caller that waits for it in a way of its own. Without an id, it says none. Sends
    /// nothing.
    ///
    /// # Errors
    ///
    /// The election cannot use its node format.
    pub fn request(&self) -> Result<Acquire, Misuse> {
        let mut request = self.lock.clone()?.acquire();
        if !self.id.is_empty() {
            request = request.message(&self.id);
        }
        Ok(match &self.options {
            Some(options) => options(request),
            None => request,
        })
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("lock", &self.lock).field("id", &self.id).finish_non_exhaustive()
    }
}
