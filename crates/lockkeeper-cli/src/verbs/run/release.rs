//! The release after the command: by this process, or to the owner that gets the lock next.

use std::time::Duration;

use lockkeeper::error::ReleaseError;
use lockkeeper::{Holding, Loss, MultiGuard};
use lockkeeper_helix::{HelixLock, LeaseError};
use lockkeeper_session::text::spell;
use tokio::time::timeout;

use crate::output::Printer;

/// Time limit for the release, including the end of the session.
pub(crate) const RELEASING: Duration = Duration::from_secs(5);

/// Returns the timeout of the session that holds the locks.
pub(crate) fn session_timeout(guard: &MultiGuard) -> Duration {
    guard.holdings().first().expect("the parser asks for a name").session_timeout()
}

/// Releases the lock; returns a message if there is something to report.
///
/// # Errors
/// The loss, if the lock was lost before: the command may have run beside another holder.
pub(crate) async fn release(guard: MultiGuard, locks: &str) -> Result<Option<String>, Loss> {
    let session_timeout = session_timeout(&guard);
    match timeout(RELEASING, guard.release()).await {
        Ok(Ok(())) => Ok(None),
        Ok(Err(ReleaseError::NotHeld { loss })) => Err(loss),
        Ok(Err(error)) if !matches!(error, ReleaseError::Timeout { .. }) => Ok(Some(format!("{locks}: {error}"))),
        Ok(Err(_)) | Err(_) => {
            let timeout = spell(session_timeout);
            Ok(Some(format!(
                "the release of {locks} was not confirmed; it is free when the session ends, about {timeout} after a server answers again"
            )))
        }
    }
}

/// The owner of the lock after this command.
pub(crate) struct HandoverTarget {
    pub(super) lock: HelixLock,
    pub(super) id: String,
}

impl HandoverTarget {
    /// Hands the lock over, within the time limits of [`release`].
    pub(crate) async fn hand_over(self, guard: MultiGuard, printer: &Printer) -> Result<Option<String>, Loss> {
        let session_timeout = session_timeout(&guard);
        match timeout(RELEASING.max(session_timeout), self.lock.transfer(&self.id)).await {
            Ok(Ok(())) => {
                printer.note(&format!(
                    "{} was handed to {}",
                    guard.holdings().first().map_or("", Holding::path),
                    self.id
                ));
                Ok(None)
            }
            Ok(Err(LeaseError::NotOwner { .. })) => {
                Err(guard.holdings().first().and_then(Holding::loss).unwrap_or(Loss::LeaseEnded))
            }
            Ok(Err(error)) => Ok(Some(format!("not handed to {}: {error}", self.id))),
            Err(_) => Ok(Some(format!("whether {} has the lock now is not known: no answer in time", self.id))),
        }
    }
}
