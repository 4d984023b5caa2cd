//! A double barrier: its participants begin together, and nobody goes on before all have finished.

use std::sync::Arc;

use lockkeeper_session::ensemble::{Ensemble, NodeKind, OpError, make_path, until_answered};
use lockkeeper_session::error::SessionError;
use lockkeeper_session::{Session, Sessions};

/// Where `size` participants meet. Each round has a path of its own.
#[derive(Clone)]
pub struct DoubleBarrier {
    sessions: Sessions,
    path: String,
    size: usize,
}

/// A participant that has entered. The others wait for it until it leaves, is dropped, or its session ends.
pub struct Participant {
    barrier: DoubleBarrier,
    session: Arc<Session>,
    name: String,
}

impl DoubleBarrier {
    pub fn new(sessions: &Sessions, path: &str, size: usize) -> DoubleBarrier {
        DoubleBarrier { sessions: sessions.clone(), path: path.to_owned(), size }
    }

    /// Waits until all participants have come. Dropping the future deletes this participant's node. If the session ends, or no
    /// server answers, the call fails.
    pub async fn enter(&self) -> Result<Participant, SessionError> {
        let barrier = self.clone();
        let entering = self.sessions.run_while_answered(async move {
            let (session, ensemble) = barrier.sessions.session(None).await?;
            let name = format!("{:032x}-participant", barrier.sessions.clock().unique_id());
            // From here on, its drop deletes the node.
            let participant = Participant { barrier, session, name };
            let met = participant.meet(&*ensemble).await;
            met.map(|()| participant)
        });
        entering.await
    }

    async fn wait_for_the_others(&self, participant: Participant) -> Result<(), OpError> {
        let ensemble = participant.session.ensemble().ok_or(OpError::SessionOver)?;
        let (own, mut participant) = (participant.name.clone(), Some(participant));
        loop {
            let names = match until_answered(|| ensemble.list(&self.path)).await {
                Err(OpError::NoNode) => return Ok(()),
                listed => listed?.names,
            };
            let mut others: Vec<_> = names.iter().filter(|name| *name != READY).collect();
            others.sort();
            // The first one waits for the last one, and all others have their node deleted and wait for the first one.
            let awaited = match (others.first(), others.last()) {
                (Some(first), Some(last)) if **first == own && first != last => self.node(last),
                (Some(first), _) if **first != own => {
                    drop(participant.take());
                    self.node(first)
                }
                _ if others.len() == names.len() => return Ok(()),
                _ => break,
            };
            let changed = match until_answered(|| ensemble.read_and_watch(&awaited)).await {
                Err(OpError::NoNode) => continue,
                watched => watched?.1,
            };
            changed.await.in_session()?;
        }
        match until_answered(|| ensemble.delete(&self.node(READY), None)).await {
            Ok(()) | Err(OpError::NoNode) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn node(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

/// The node that the last participant to come creates.
const READY: &str = "ready";

impl Participant {
    async fn meet(&self, ensemble: &dyn Ensemble) -> Result<(), SessionError> {
        let (node, ready) = (self.barrier.node(&self.name), self.barrier.node(READY));
        let wait = async {
            until_answered(|| make_path(ensemble, &node, NodeKind::Ephemeral, Vec::new())).await?;
            let there = until_answered(|| ensemble.list(&self.barrier.path)).await?;
            if there.names.iter().filter(|name| *name != READY).count() >= self.barrier.size {
                return until_answered(|| make_path(ensemble, &ready, NodeKind::Persistent, Vec::new()))
                    .await
                    .map(drop);
            }
            if let Some(created) = until_answered(|| ensemble.watch_creation(&ready)).await? {
                created.await.in_session()?;
            }
            Ok(())
        };
        wait.await.map_err(|error| error.on(&self.barrier.path))
    }

    /// Waits until all participants have left. Dropping the future deletes this participant's node, if it is there still. If the
    /// session ends, or no server answers, the call fails.
    pub async fn leave(self) -> Result<(), SessionError> {
        let (barrier, sessions) = (self.barrier.clone(), self.barrier.sessions.clone());
        let leaving = sessions.run_while_answered(async move {
            let left = barrier.wait_for_the_others(self).await;
            left.map_err(|error| error.on(&barrier.path))
        });
        leaving.await
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.session.delete_soon(self.barrier.node(&self.name));
    }
}
