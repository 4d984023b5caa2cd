//! The servers' clock: that of every time in the records of jobs.

use lockkeeper::Lockkeeper;
use lockkeeper::error::{AdminError, refused};
use lockkeeper_session::records;

use super::stored::{self, ROOT};

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
pub async fn server_now_ms(keeper: &Lockkeeper) -> Result<i64, AdminError> {
    let ask = keeper.sessions().ask(move |ensemble| async move {
        stored::server_now_ms(&*ensemble).await.map_err(|fault| refused(ROOT, fault))
    });
    ask.await
}

/// Returns the time of the servers as [`server_now_ms`] does, and creates nothing: `None` if no job has ever run on these servers,
/// because then there is no node to write to.
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
pub async fn known_server_now_ms(keeper: &Lockkeeper) -> Result<Option<i64>, AdminError> {
    let ask = keeper.sessions().ask(move |ensemble| async move {
        records::server_now_ms(&*ensemble, ROOT).await.map_err(|fault| refused(ROOT, fault))
    });
    ask.await
}
