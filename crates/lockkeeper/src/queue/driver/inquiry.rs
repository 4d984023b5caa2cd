//! The reads behind the caller's error: the holder, the client that removed the node, and how the session ended.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::{End, Link, LinkState, QueuePlace, node_path};

use super::Driver;
use super::attempt::Looked;
use super::operations::inspection;
use super::state::FirstOfQueue;
use crate::broken::Broken;
use crate::contender::ContenderInfo;
use crate::ensemble::{Node, OpError};
use crate::latest;
use crate::registers::journal;
use crate::wait::passed;

impl Driver {
    /// Finds out why a waiter's node is deleted: another client deleted it, or the session ended and the server
    /// reported its nodes first.
    ///
    /// This takes one round trip, or longer while the connection is lost, but never goes past the deadline. A holder
    /// instead learns of its loss immediately, whatever the cause.
    async fn look_closer(&self, end: End) -> End {
        if end != End::Removed || !self.caller.is_waiting() {
            return end;
        }
        let session_lives = async {
            loop {
                match self.attempt.ensemble.heartbeat().await {
                    Err(OpError::SessionOver) => return false,
                    // The next check waits until the connection is back or the session is over.
                    Err(OpError::ConnectionLoss) => {}
                    _ => return true,
                }
            }
        };
        tokio::select! {
            biased;
            lives = session_lives => if lives { End::Removed } else { End::SessionOver },
            () = passed(self.attempt.deadline) => End::Removed,
        }
    }

    /// Finds out more about the end of the attempt, for the caller's error.
    pub(super) async fn explain(&mut self, end: End, link: &mut latest::Receiver<Link>) -> End {
        let end = self.look_closer(end).await;
        if end == End::Removed && self.caller.is_waiting() {
            self.broken = self.who_broke_it().await;
        }
        if end == End::SessionOver {
            self.learn_how_it_ended(link).await;
        }
        end
    }

    /// Waits until it is known why the session is over. An operation may fail a moment before the session's own task
    /// learns the reason.
    async fn learn_how_it_ended(&self, link: &mut latest::Receiver<Link>) {
        tokio::select! {
            biased;
            _ = link.wait_for(|link| matches!(link.state, LinkState::Over(_))) => {}
            () = passed(self.attempt.deadline) => {}
        }
    }

    /// Returns who removed the waiter's node, and why. Does not go past the deadline.
    async fn who_broke_it(&self) -> Option<Box<Broken>> {
        let path = &self.attempt.path;
        let node = node_path(path, &self.node);
        tokio::select! {
            biased;
            broken = journal::who_removed(&*self.attempt.ensemble, path, &node) => broken,
            () = passed(self.attempt.deadline) => None,
        }
    }

    /// Returns the node to read to find the holder's name, once for each node that a listing shows. The error of a long
    /// enough wait uses it. (A try's contender reads that node itself.)
    pub(super) fn wants_a_look(&self) -> Option<QueuePlace> {
        let worth_it = self.lingered && self.attempt.timeout.is_some() && !self.contender.is_once();
        let place = self.contender.place().filter(|_| self.caller.is_waiting() && worth_it)?;
        (self.first.node.as_ref() != Some(&place.first)).then(|| place.clone())
    }

    /// Returns the node to read again when the caller soon stops waiting. Not the one whose end this waiter waits for: that one is
    /// still the first.
    pub(super) fn may_have_another_holder(&self) -> Option<QueuePlace> {
        let place = self.contender.place().filter(|_| self.caller.is_waiting())?;
        (self.contender.waits_for() != Some(&*place.first)).then(|| place.clone())
    }

    /// Reads the first of the queue.
    pub(super) fn look(&mut self, place: QueuePlace) -> BoxFuture<'static, Looked> {
        let QueuePlace { first, front, ahead: _, blocks_first: _ } = place;
        let child = |name: &str| self.attempt.ensemble.read(&node_path(&self.attempt.path, name));
        let (read, front) = (child(&first), front.map(|front| child(&front)));
        if self.first.node.as_ref() != Some(&first) {
            self.first = FirstOfQueue { node: Some(first.clone()), ..FirstOfQueue::default() };
        }
        async move {
            let front = async {
                match front {
                    Some(read) => read.await.ok(),
                    None => None,
                }
            };
            let (first_node, front) = match tokio::join!(biased; read, front) {
                (Ok(first_node), front) => (first_node, front),
                (Err(fault), _) => return Looked { gone: fault == OpError::NoNode, name: first, ..Looked::default() },
            };
            let behind = |front: Node| !inspection(&front).is_same_attempt(&inspection(&first_node));
            Looked {
                info: Some(Box::new(ContenderInfo::read(first.clone(), &first_node))),
                gone: false,
                sessionless: first_node.owner.is_none().then_some(first_node.czxid),
                holder_behind: front.is_some_and(behind),
                name: first,
            }
        }
        .boxed()
    }
}
