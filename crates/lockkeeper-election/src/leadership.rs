//! A leadership, and how it ends.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use lockkeeper::{Error, Guard, Holding, Loss, MultiGuard, Revocation};

/// A future in a box: what a hook returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A term as the leader. It is a [`Guard`]: `token()`, `valid_for()`, `lost()`, `fenced_write()` and all other calls of a guard work.
///
/// Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "the leadership ends at once unless it is bound to a name; `let _ = ..` binds nothing"]
pub struct Leadership(Guard);

impl Leadership {
    pub(crate) fn new(guard: Guard) -> Self {
        Leadership(guard)
    }

    /// Returns whether it leads now, by this process's own clock. `false` is final. No round trip.
    ///
    /// Check it before each step of the leader's work; each step should end within
    /// [`valid_for`](lockkeeper::Holding::valid_for).
    pub fn is_leading(&self) -> bool {
        self.0.is_held()
    }

    /// Waits until somebody asks the leader to step down, with `lockkeeper revoke` or
    /// [`Admin::revoke`](lockkeeper::admin::Admin::revoke). Never resolves if nobody asks. No round trip.
    ///
    /// Nothing is taken by force. To follow it, [resign](Leadership::resign); otherwise answer with
    /// [`refuse_revocation`](lockkeeper::Holding::refuse_revocation).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn asked_to_step_down(&self) -> Revocation {
        self.0.revocation().await
    }

    /// Resigns, and waits until the servers confirm it. The next candidate leads at once.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the resignation; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`](lockkeeper::error::ReleaseError): the leadership was lost before, or no server has confirmed its end within the
    /// session timeout. It ends with the session at the latest.
    pub async fn resign(self) -> Result<(), Error> {
        Ok(self.0.release().await?)
    }

    /// Resigns as [`Leadership::resign`] does, but waits for the confirmation for no longer than `timeout`.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the resignation; it only stops waiting for the confirmation.
    ///
    /// # Errors
    ///
    /// As [`Leadership::resign`].
    pub async fn resign_within(self, timeout: Duration) -> Result<(), Error> {
        Ok(self.0.release_within(timeout).await?)
    }

    /// Returns the guard, for code that takes one.
    pub fn into_guard(self) -> Guard {
        self.0
    }
}

/// For code that takes a hold of any kind. Dropping the hold resigns too.
impl From<Leadership> for Holding {
    fn from(leadership: Leadership) -> Holding {
        leadership.0.into()
    }
}

/// As the conversion to a [`Holding`].
impl From<Leadership> for MultiGuard {
    fn from(leadership: Leadership) -> MultiGuard {
        Holding::from(leadership).into()
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

/// Why a term ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Demotion {
    /// The leadership was lost. Another candidate may lead soon.
    Lost(Loss),
    /// Somebody asked the leader to step down. It still leads.
    Asked(Revocation),
    /// The program stops. It still leads.
    Stopped,
    /// The leader's work has ended. It still leads.
    Done,
}

impl fmt::Display for Demotion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Demotion::Lost(loss) => write!(f, "the leadership is lost: {loss}"),
            Demotion::Asked(asked) => write!(f, "asked to step down by {asked}"),
            Demotion::Stopped => f.write_str("the candidate stops"),
            Demotion::Done => f.write_str("the leader's work has ended"),
        }
    }
}
