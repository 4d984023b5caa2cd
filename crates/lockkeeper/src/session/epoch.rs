//! The epoch of tokens: it makes the tokens of a rebuilt or restored ensemble greater than those issued before.
//!
//! One node states it, outside any chroot, because transaction ids belong to the whole ensemble. Each session reads it
//! once, while its first lock is being acquired, and watches it; so it costs no round trip unless it changes. A server
//! reports a change to a session before it answers any later write of that session. So a grant behind the operator's
//! write waits for the new epoch instead of getting a token of the old one.

use std::sync::{Arc, Weak};

use lockkeeper_core::TokenEpoch;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::admin::{Admin, LockInfo};
use crate::contender::ContenderInfo;
use crate::ensemble::{EPOCH_NODE, Ensemble, Fired, Node, OpError, refused};

/// How often a change is retried if other clients change the epoch at the same moment.
const MAX_ATTEMPTS: usize = 10;

/// What a session knows of the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Not known: it is being read.
    Unknown,
    /// This epoch.
    Epoch(TokenEpoch),
    /// The node cannot be read, or does not state an epoch.
    Unreadable(String),
    /// The servers do not let this session read it.
    Refused(String),
    /// The session is over.
    Over,
}

/// The epoch that the node states.
fn stated(node: Option<&Node>) -> Result<TokenEpoch, String> {
    let Some(node) = node else { return Ok(TokenEpoch::default()) };
    let text = String::from_utf8_lossy(&node.data);
    let number = text.trim_ascii().parse::<u32>().ok().and_then(TokenEpoch::new);
    number.ok_or_else(|| {
        format!("{:?} is not an epoch: write a number from 0 to 32767", text.chars().take(40).collect::<String>())
    })
}

/// Keeps `known` up to date until the session ends. Calls `told` after each change.
pub(crate) async fn follow(
    ensemble: Weak<dyn Ensemble>,
    known: Arc<watch::Sender<Known>>,
    closing: CancellationToken,
    told: impl Fn(),
) {
    let learn = async {
        loop {
            let Some(reply) = ensemble.upgrade().map(|ensemble| ensemble.epoch()) else { return };
            match reply.await {
                Ok((node, watcher)) => {
                    known.send_replace(match stated(node.as_ref()) {
                        Ok(epoch) => Known::Epoch(epoch),
                        Err(problem) => Known::Unreadable(problem),
                    });
                    told();
                    if watcher.await == Fired::SessionOver {
                        return;
                    }
                    known.send_replace(Known::Unknown);
                }
                Err(OpError::SessionOver) => return,
                // The next read waits for the connection.
                Err(OpError::ConnectionLoss) => {}
                Err(fault) => {
                    known.send_replace(Known::Refused(fault.to_string()));
                    told();
                    return;
                }
            }
        }
    };
    tokio::select! {
        biased;
        // No operation under way may keep the session open.
        () = closing.cancelled() => {}
        () = learn => {}
    }
    known.send_if_modified(|known| match known {
        Known::Unknown => {
            *known = Known::Over;
            true
        }
        _ => false,
    });
    told();
}

/// The error for a grant without a token.
pub(crate) fn unreadable(problem: String) -> Error {
    Error::TokenEpoch { node: EPOCH_NODE.to_owned(), problem }
}

impl ContenderInfo {
    fn in_epoch(&mut self, epoch: TokenEpoch) {
        self.token = self.token.map(|token| token.in_epoch(epoch));
    }
}

impl LockInfo {
    /// Applies the epoch; as read, tokens have epoch 0.
    pub(crate) fn in_epoch(mut self, epoch: TokenEpoch) -> Self {
        self.holders.iter_mut().chain(&mut self.waiters).for_each(|contender| contender.in_epoch(epoch));
        self
    }
}

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
    /// [`Error::TokenEpoch`] if the node that states it cannot be read; otherwise the server cannot be reached.
    pub async fn token_epoch(&self) -> Result<TokenEpoch, Error> {
        let context = self.context.clone();
        self.context
            .run(async move {
                let (session, ensemble) = context.session(None).await?;
                // After the sync, this session has seen every earlier change.
                ensemble.sync("/").await.map_err(|fault| refused(EPOCH_NODE, fault))?;
                session.epoch().await
            })
            .await
    }

    /// The epoch as far as the session knows it: linearizable for callers behind a sync. No round trip, except in a
    /// session that was just opened.
    pub(crate) async fn known_epoch(&self) -> Result<TokenEpoch, Error> {
        let context = self.context.clone();
        self.context.run_while_answered(async move { context.session(None).await?.0.epoch().await }).await
    }

    /// Raises the epoch to `epoch` unless it is already greater, and returns the epoch. It is never lowered.
    ///
    /// An operator calls this once after an ensemble was rebuilt empty, restored from a backup or replaced by another,
    /// before the clients come back: with [`TokenEpoch::above`] the greatest token that a resource has seen. Open
    /// sessions notice the change; holders keep their tokens.
    ///
    /// # Cost
    ///
    /// Two to four round trips.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the change either done or not done.
    ///
    /// # Errors
    ///
    /// - [`Error::TokenEpoch`] if the node states something other than an epoch.
    /// - [`Error::Refused`] if the ACL does not let this client write it.
    /// - [`Error::ConnectionLost`]: the change may have been done; try again.
    pub async fn raise_token_epoch(&self, epoch: TokenEpoch) -> Result<TokenEpoch, Error> {
        self.on_session(move |ensemble| async move {
            for _ in 0..MAX_ATTEMPTS {
                ensemble.sync("/").await.map_err(|fault| refused(EPOCH_NODE, fault))?;
                let (node, _watcher) = ensemble.epoch().await.map_err(|fault| refused(EPOCH_NODE, fault))?;
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
            Err(Error::ConnectionLost { path: EPOCH_NODE.to_owned() })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(data: &str) -> Node {
        let (czxid, mzxid, owner) = (lockkeeper_core::Zxid(1), lockkeeper_core::Zxid(1), lockkeeper_core::SessionId(0));
        Node { data: data.into(), czxid, mzxid, ctime_ms: 0, mtime_ms: 0, version: 0, owner, children: 0 }
    }

    #[test]
    fn an_epoch_is_a_number_and_other_data_is_not_epoch_0() {
        assert_eq!(stated(None), Ok(TokenEpoch::default()));
        assert_eq!(stated(Some(&node("3"))).map(TokenEpoch::get), Ok(3));
        assert_eq!(stated(Some(&node(" 12\n"))).map(TokenEpoch::get), Ok(12));
        for data in ["", "three", "-1", "32768", "1 2"] {
            let problem = stated(Some(&node(data))).unwrap_err();
            assert!(problem.contains(data) && problem.contains("32767"), "{problem}");
        }
    }
}
