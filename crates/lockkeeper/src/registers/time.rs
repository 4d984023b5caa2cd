//! The servers' clock, read by a small write to a node that all clients share.

use super::{JOBS, records};
use crate::ensemble::{Ensemble, OpError};

/// Returns the servers' time, in milliseconds since 1970: the stamp of a small write. The first call in an ensemble creates the node
/// that it writes to, and its parent.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind but those nodes.
///
/// # Errors
///
/// As the write's.
pub async fn server_now_ms(ensemble: &dyn Ensemble) -> Result<i64, OpError> {
    loop {
        match known_server_now_ms(ensemble).await? {
            Some(now_ms) => return Ok(now_ms),
            None => records::make(ensemble, JOBS).await?,
        }
    }
}

/// Returns the same; `None` if the node that it writes to does not exist.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
///
/// # Errors
///
/// As the write's.
pub async fn known_server_now_ms(ensemble: &dyn Ensemble) -> Result<Option<i64>, OpError> {
    match ensemble.write(JOBS, Vec::new(), None).await {
        Err(OpError::NoNode) => Ok(None),
        written => Ok(Some(written?.mtime_ms)),
    }
}
