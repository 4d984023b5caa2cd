//! Records of holds that no server has taken yet.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::Lockkeeper;
use lockkeeper::error::AdminError;
use lockkeeper_session::ensemble::linearizable;
use serde::{Deserialize, Serialize};

use super::record::StoredHold;
use super::store;
use crate::millis::millis;

/// The record of a hold whose end no server has taken, because none answered. A program keeps it and writes it later, also in another
/// process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptHold {
    path: String,
    record: StoredHold,
    /// When the hold ended, in milliseconds since 1970 by this machine's clock.
    ended_ms: u64,
}

impl KeptHold {
    pub(super) fn new(path: String, record: StoredHold, ended_ago: Duration) -> Self {
        KeptHold { path, record, ended_ms: now_ms().saturating_sub(millis(ended_ago)) }
    }

    /// Writes the record. Its times are those of the hold.
    ///
    /// # Cost
    ///
    /// Three round trips: two reads and a write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the write, unless it was sent.
    ///
    /// # Errors
    ///
    /// The path is not one of the handle's, a server refuses the record, or no server answers.
    pub async fn write(&self, keeper: &Lockkeeper) -> Result<(), AdminError> {
        let (path, kept) = (keeper.path(&self.path)?, self.clone());
        keeper
            .sessions()
            .ask(move |ensemble| async move {
                let data = || {
                    let ago_ms = now_ms().saturating_sub(kept.ended_ms);
                    StoredHold { ago_ms, ..kept.record.clone() }.to_bytes()
                };
                let lock = store::node(&path);
                let write = linearizable(&*ensemble, store::write(&*ensemble, &lock, data));
                write.await.map_err(|fault| lockkeeper::error::refused(&path, fault))
            })
            .await
    }
}

fn now_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
