//! The servers' clock.

use super::Admin;
use crate::ensemble::refused;
use crate::ensemble::shared::JOBS;
use crate::error::AdminError;
use crate::registers::time::{known_server_now_ms, server_now_ms};

impl Admin {
    /// Returns the time of the servers, in milliseconds since 1970: the clock of every time in the records of jobs.
    ///
    /// # Cost
    ///
    /// One round trip and one small write. The first call in an ensemble has two more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the write or cannot be reached.
    pub async fn server_now_ms(&self) -> Result<i64, AdminError> {
        self.on_session(
            move |ensemble| async move { server_now_ms(&*ensemble).await.map_err(|fault| refused(JOBS, fault)) },
        )
        .await
    }

    /// Returns the time of the servers as [`Admin::server_now_ms`] does, and creates nothing: `None` if no job has ever run on these
    /// servers, because then there is no node to write to.
    ///
    /// # Cost
    ///
    /// One round trip and one small write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the write or cannot be reached.
    pub async fn known_server_now_ms(&self) -> Result<Option<i64>, AdminError> {
        self.on_session(move |ensemble| async move {
            known_server_now_ms(&*ensemble).await.map_err(|fault| refused(JOBS, fault))
        })
        .await
    }
}
