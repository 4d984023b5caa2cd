//! Questions about the epoch of tokens, and raising it.

use lockkeeper_core::TokenEpoch;
use lockkeeper_session::ensemble::{EPOCH_NODE, OpError, linearizable};
use lockkeeper_session::epoch::{stated, unreadable};

use super::Admin;
use crate::error::{AdminError, SessionError, refused};

/// How often a change is retried if other clients change the epoch at the same moment.
const MAX_ATTEMPTS: usize = 10;

impl Admin {
    /// Returns the epoch of new tokens: 0 unless an operator has raised it.
    ///
    /// # Cost
    ///
    /// One round trip, and one from its server to the leader.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`SessionError::TokenEpoch`] if the node that states it cannot be read; otherwise the server cannot be reached.
    pub async fn token_epoch(&self) -> Result<TokenEpoch, AdminError> {
        let keeper = self.keeper.clone();
        self.keeper
            .sessions()
            .run_while_answered(async move {
                let (session, ensemble) = keeper.sessions().session(None).await?;
                // After the write, this session has seen every earlier change.
                ensemble.heartbeat().await.map_err(|fault| refused(EPOCH_NODE, fault))?;
                Ok(session.epoch().await?)
            })
            .await
    }

    /// The epoch as far as the session knows it: linearizable for callers behind an ordered write. No round trip,
    /// except in a session that was just opened.
    pub(crate) async fn known_epoch(&self) -> Result<TokenEpoch, AdminError> {
        let keeper = self.keeper.clone();
        self.keeper
            .sessions()
            .run_while_answered(async move { Ok(keeper.sessions().session(None).await?.0.epoch().await?) })
            .await
    }

    /// Raises the epoch to `epoch` unless it is already greater, and returns the epoch. It is never lowered.
    ///
    /// An operator calls this once after an ensemble was rebuilt empty, restored from a backup or replaced by another.
    /// Call it before the clients come back, with [`TokenEpoch::above`] the greatest token that a resource has seen.
    /// Open sessions notice the change; holders keep their tokens.
    ///
    /// # Cost
    ///
    /// Two round trips; more if others raise it at the same time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the change either done or not done.
    ///
    /// # Errors
    ///
    /// - [`SessionError::TokenEpoch`] if the node states something other than an epoch.
    /// - [`SessionError::Refused`] if the ACL does not let this client write it.
    /// - [`SessionError::ConnectionLost`]: the change may have been done; try again.
    pub async fn raise_token_epoch(&self, epoch: TokenEpoch) -> Result<TokenEpoch, AdminError> {
        self.on_session(move |ensemble| async move {
            for _ in 0..MAX_ATTEMPTS {
                let read = linearizable(&*ensemble, ensemble.epoch());
                let (node, _watcher) = read.await.map_err(|fault| refused(EPOCH_NODE, fault))?;
                let stated = stated(node.as_ref()).map_err(unreadable)?;
                if stated >= epoch {
                    return Ok(stated);
                }
                let data = epoch.to_string().into_bytes();
                match ensemble.set_epoch(data, node.map(|node| node.version)).await {
                    Ok(()) => {
                        tracing::warn!(target: "lockkeeper::audit", from = %stated, to = %epoch, "token epoch raised")
                    }
                    // Another client changed it at the same moment.
                    Err(OpError::NodeExists | OpError::BadVersion | OpError::NoNode) => {}
                    Err(fault) => return Err(refused(EPOCH_NODE, fault)),
                }
            }
            Err(SessionError::ConnectionLost { path: EPOCH_NODE.to_owned() }.into())
        })
        .await
    }
}
