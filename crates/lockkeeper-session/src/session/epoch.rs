//! The epoch of tokens: it makes the tokens of a rebuilt or restored ensemble greater than those issued before.
//!
//! One node states it, outside any chroot, because transaction ids belong to the whole ensemble. Each session reads it
//! once, right after it is opened, and watches it; so it costs no round trip unless it changes. A server
//! reports a change to a session before it answers any later write of that session. So a grant behind the operator's
//! write waits for the new epoch instead of getting a token of the old one.

use std::sync::{Arc, Weak};

use lockkeeper_core::TokenEpoch;

use crate::cancel::CancellationToken;
use crate::ensemble::{EPOCH_NODE, Ensemble, Fired, Node, OpError};
use crate::error::SessionError;
use crate::latest;

/// What a session knows of the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Not known: it is being read.
    Unknown,
    /// This is it.
    Epoch(TokenEpoch),
    /// The node cannot be read, or does not state an epoch.
    Unreadable(String),
    /// The servers do not let this session read it.
    Refused(String),
    /// The session is over.
    Over,
}

/// The epoch that the node states.
pub fn stated(node: Option<&Node>) -> Result<TokenEpoch, String> {
    let Some(node) = node else { return Ok(TokenEpoch::default()) };
    let text = String::from_utf8_lossy(&node.data);
    let number = text.trim_ascii().parse::<u32>().ok().and_then(TokenEpoch::new);
    number.ok_or_else(|| {
        format!("{:?} is not an epoch: write a number from 0 to 32767", text.chars().take(40).collect::<String>())
    })
}

/// Keeps `known` up to date until the session ends. Calls `changed` after each change.
pub(crate) async fn follow(
    ensemble: Weak<dyn Ensemble>,
    known: Arc<latest::Sender<Known>>,
    closing: CancellationToken,
    changed: impl Fn(),
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
                    changed();
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
                    changed();
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
    changed();
}

/// The error for a grant without a token.
pub fn unreadable(problem: String) -> SessionError {
    SessionError::TokenEpoch { node: EPOCH_NODE.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(data: &str) -> Node {
        let (czxid, mzxid, owner) = (lockkeeper_core::Zxid(1), lockkeeper_core::Zxid(1), lockkeeper_core::SessionId(0));
        Node { data: data.into(), czxid, mzxid, pzxid: czxid, ctime_ms: 0, mtime_ms: 0, version: 0, owner, children: 0 }
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
