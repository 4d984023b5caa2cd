//! The epoch of tokens: what an ensemble that was rebuilt or restored is told of the numbers its forerunner gave out.
//!
//! A node of its own states it, outside any chroot, for transaction ids are the whole ensemble's. Each session reads it once,
//! while its first lock is on its way, and watches it; so it costs no round trip where it does not change. A server tells a
//! session of a change before it answers any write of the session's that came after, so a grant behind the operator's write
//! waits for the new epoch instead of getting a token of the old one.

use std::sync::{Arc, Weak};

use lockkeeper_core::TokenEpoch;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::admin::{Admin, LockInfo};
use crate::contender::ContenderInfo;
use crate::ensemble::{EPOCH_NODE, Ensemble, Fired, Node, OpError, refused};

/// How often a change is tried again when others change it at the same moment.
const MAX_ATTEMPTS: usize = 10;

/// What a session knows of the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Not yet, or not any more: it is being read.
    Unknown,
    /// This one.
    Epoch(TokenEpoch),
    /// The node cannot be read, or does not state one.
    Unreadable(String),
    /// The servers do not let this session ask.
    Refused(String),
    /// Nothing will be learnt: the session is over.
    Over,
}

/// What the node states.
fn stated(node: Option<&Node>) -> Result<TokenEpoch, String> {
    let Some(node) = node else { return Ok(TokenEpoch::default()) };
    let text = String::from_utf8_lossy(&node.data);
    let number = text.trim_ascii().parse::<u32>().ok().and_then(TokenEpoch::new);
    number.ok_or_else(|| {
        format!("{:?} is no epoch: write a number from 0 to 32767", text.chars().take(40).collect::<String>())
    })
}

/// Keeps `known` up to date until the session ends. `told` is called after each change.
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
                // The next one waits for the connection.
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
        // Nothing under way may keep the session open.
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

/// Why no token can be given.
pub(crate) fn unreadable(problem: String) -> Error {
    Error::TokenEpoch { node: EPOCH_NODE.to_owned(), problem }
}

impl ContenderInfo {
    fn in_epoch(&mut self, epoch: TokenEpoch) {
        self.token = self.token.map(|token| token.in_epoch(epoch));
    }
}

impl LockInfo {
    /// As read, tokens are of epoch 0.
    pub(crate) fn in_epoch(mut self, epoch: TokenEpoch) -> Self {
        self.holders.iter_mut().chain(&mut self.waiters).for_each(|contender| contender.in_epoch(epoch));
        self
    }
}

impl Admin {
    /// The epoch that new tokens are of: 0 unless somebody has raised it by now. One round trip, and its server's to the leader.
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// [`Error::TokenEpoch`] if the node that states it cannot be read; or no server.
    pub async fn token_epoch(&self) -> Result<TokenEpoch, Error> {
        let context = self.context.clone();
        self.context
            .run(async move {
                let (session, ensemble) = context.session(None).await?;
                // Behind it, this session has heard that there is another one.
                ensemble.sync("/").await.map_err(|fault| refused(EPOCH_NODE, fault))?;
                session.epoch().await
            })
            .await
    }

    /// The same as far as the session has heard: as of now for who asks behind a sync. No round trip but for a session just opened.
    pub(crate) async fn known_epoch(&self) -> Result<TokenEpoch, Error> {
        let context = self.context.clone();
        self.context.run_while_answered(async move { context.session(None).await?.0.epoch().await }).await
    }

    /// Sees to it that the epoch is `epoch` or a later one, and returns which: it is never lowered.
    ///
    /// For an operator, once, after an ensemble was rebuilt empty, restored from a backup, or replaced by another, and before
    /// those who hold locks come back: with [`TokenEpoch::above`] the greatest token that a resource has seen. Sessions that are
    /// open hear of it; who holds a lock keeps its token. Two to four round trips. Dropping the future leaves it done or not.
    ///
    /// # Errors
    /// [`Error::TokenEpoch`] if the node states something else than an epoch; [`Error::Refused`] where the ACL does not let this
    /// process write it; [`Error::ConnectionLost`]: it may have been done, try again.
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
                    // Somebody else did something at the same moment.
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
    fn an_epoch_is_a_number_and_what_is_not_is_no_epoch_0() {
        assert_eq!(stated(None), Ok(TokenEpoch::default()));
        assert_eq!(stated(Some(&node("3"))).map(TokenEpoch::get), Ok(3));
        assert_eq!(stated(Some(&node(" 12\n"))).map(TokenEpoch::get), Ok(12));
        for data in ["", "three", "-1", "32768", "1 2"] {
            let problem = stated(Some(&node(data))).unwrap_err();
            assert!(problem.contains(data) && problem.contains("32767"), "{problem}");
        }
    }
}
