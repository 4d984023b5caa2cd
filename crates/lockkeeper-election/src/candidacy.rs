//! A candidacy: promotions and demotions as events, term after term.

use std::fmt;

use lockkeeper::error::{AcquireError, Misuse};
use lockkeeper::{Acquire, Error, FencingToken, Guard, Loss, Revocation};

use crate::leadership::{BoxFuture, Leadership};

/// What happened to a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It is elected: [`Candidacy::leadership`] is its leadership, with this token.
    Promoted(FencingToken),
    /// Somebody asks it to step down. It still leads: call [`Candidacy::resign`], or refuse with
    /// [`refuse_revocation`](lockkeeper::Holding::refuse_revocation).
    AskedToStepDown(Revocation),
    /// It has lost the leadership. The next call of [`Candidacy::next`] campaigns again.
    Demoted(Loss),
}

/// A candidate that campaigns again after each term. Created by
/// [`Candidate::stand`](crate::Candidate::stand). Dropping it withdraws the candidate, or resigns, in
/// the background.
pub struct Candidacy {
    request: Box<dyn Fn() -> Result<Acquire, Misuse> + Send + Sync>,
    stage: Stage,
}

enum Stage {
    Idle,
    Campaigning(BoxFuture<'static, Result<Guard, AcquireError>>),
    /// With the last request to step down that was reported.
    Leading(Leadership, Option<Revocation>),
}

impl Candidacy {
    pub(crate) fn new(request: impl Fn() -> Result<Acquire, Misuse> + Send + Sync + 'static) -> Self {
        Candidacy { request: Box::new(request), stage: Stage::Idle }
    }

    /// Waits for the next event. Campaigns if it does not lead, at the end of the queue.
    ///
    /// Keep polling it while it campaigns: the candidate may hold the lock already, and blocks the others.
    ///
    /// # Cost
    ///
    /// That of [`Candidate::campaign`](crate::Candidate::campaign) until it is elected; nothing while it leads.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event. The campaign goes on, with its position in the queue.
    ///
    /// # Errors
    ///
    /// As [`Candidate::campaign`](crate::Candidate::campaign). The next call campaigns again; after a [retryable](Error::is_retryable) error, pause before it.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            match &mut self.stage {
                Stage::Idle => self.stage = Stage::Campaigning(IntoFuture::into_future((self.request)()?)),
                Stage::Campaigning(campaign) => {
                    let elected = campaign.await;
                    self.stage = Stage::Idle;
                    let leadership = Leadership::new(elected?);
                    let token = leadership.token();
                    self.stage = Stage::Leading(leadership, None);
                    return Ok(Event::Promoted(token));
                }
                Stage::Leading(leadership, seen) => {
                    let loss = tokio::select! {
                        biased;
                        loss = leadership.lost() => loss,
                        asked = next_request(leadership, seen.as_ref()) => {
                            *seen = Some(asked.clone());
                            return Ok(Event::AskedToStepDown(asked));
                        }
                    };
                    self.stage = Stage::Idle;
                    return Ok(Event::Demoted(loss));
                }
            }
        }
    }

    /// Returns the leadership, from [`Event::Promoted`] until [`Event::Demoted`] or [`Candidacy::resign`]. It says itself whether it
    /// still [leads](Leadership::is_leading).
    pub fn leadership(&self) -> Option<&Leadership> {
        match &self.stage {
            Stage::Leading(leadership, _) => Some(leadership),
            Stage::Idle | Stage::Campaigning(_) => None,
        }
    }

    /// Resigns, if it leads. The next call of [`Candidacy::next`] campaigns again, at the end of the queue.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the resignation.
    ///
    /// # Errors
    ///
    /// As [`Leadership::resign`].
    pub async fn resign(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Leading(leadership, _) => leadership.resign().await,
            stage => {
                self.stage = stage;
                Ok(())
            }
        }
    }
}

/// Waits for a request to step down other than `seen`.
async fn next_request(leadership: &Leadership, seen: Option<&Revocation>) -> Revocation {
    match seen {
        Some(seen) => leadership.revocation_after(seen).await,
        None => leadership.revocation().await,
    }
}

impl fmt::Debug for Candidacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidacy").field("leadership", &self.leadership()).finish_non_exhaustive()
    }
}
