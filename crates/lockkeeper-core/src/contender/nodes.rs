//! The nodes of the attempt: which of them exist, and which are certainly ours.

use super::{AttemptTerms, Contender, Flight, Leaving};
use crate::protocol::{Command, Failure, Inspection, PathMade};
use crate::{Entry, Queue, Zxid};

/// How often a parent that was removed is created again before the attempt gives up.
///
/// The reaper of container nodes deletes a parent at most once a check (a minute by default). A second miss in a row
/// already means that someone deletes it on purpose.
const MAX_PARENTS_MADE: u8 = 10;

/// What is known of the own node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Own {
    /// No create was sent, or none took effect.
    None,
    /// A create was sent and its reply lost: there may be a node.
    Doubtful,
    Node {
        name: String,
        czxid: Zxid,
    },
}

/// The nodes of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Nodes {
    pub(super) own: Own,
    /// Nodes that may be of this attempt and must be looked at, the oldest last.
    suspects: Vec<String>,
    /// Nodes of this attempt besides the own one, with the transactions that created them, to be deleted.
    strays: Vec<(String, Zxid)>,
    /// It was once unknown whether a create took effect: a second node may turn up, so the contender looks again when
    /// it leaves.
    pub(super) doubted: bool,
    pub(super) parent_missing: bool,
    parents_made: u8,
    /// The own node is old enough for a watch, even if the contender never waited.
    pub(super) lingered: bool,
    /// The own node is watched.
    pub(super) watched: bool,
    /// The unprotected own node was just seen to be ours, with this version of its data.
    verified: Option<i32>,
    /// The reply to a delete was lost: what this server shows may be older than that delete.
    pub(super) delete_doubted: bool,
}

impl Nodes {
    pub(super) const NONE: Nodes = Nodes {
        own: Own::None,
        suspects: Vec::new(),
        strays: Vec::new(),
        doubted: false,
        parent_missing: false,
        parents_made: 0,
        lingered: false,
        watched: false,
        verified: None,
        delete_doubted: false,
    };

    /// The own node's name, while there is one.
    pub(super) fn name(&self) -> Option<&str> {
        match &self.own {
            Own::Node { name, .. } => Some(name),
            Own::None | Own::Doubtful => None,
        }
    }

    /// The transaction that created the own node.
    pub(super) fn own_czxid(&self) -> Option<Zxid> {
        match self.own {
            Own::Node { czxid, .. } => Some(czxid),
            Own::None | Own::Doubtful => None,
        }
    }

    pub(super) fn own_is(&mut self, name: String, czxid: Zxid) {
        self.own = Own::Node { name, czxid };
    }

    /// The own node is one of those to be deleted, and the next one is not created yet.
    pub(super) fn own_is_stray(&mut self) {
        if let Own::Node { name, czxid } = std::mem::replace(&mut self.own, Own::None) {
            self.strays.push((name, czxid));
        }
        self.watched = false;
    }

    /// The own node was replaced by this one, which was not read yet.
    pub(super) fn replaced_by(&mut self, name: String) {
        self.own = Own::None;
        self.suspects.push(name);
    }

    /// An own node does not exist any more.
    pub(super) fn forget(&mut self, name: &str) {
        self.strays.retain(|(stray, _)| stray != name);
        if self.name() == Some(name) {
            self.own = Own::None;
        }
    }

    /// It is unknown whether a create took effect.
    fn doubt(&mut self) {
        self.own = Own::Doubtful;
        self.doubted = true;
    }

    /// A second node of this attempt, from a create whose reply was lost, would block us from the front for ever.
    pub(super) fn suspect_second(&mut self, terms: &AttemptTerms, queue: &Queue<'_>) {
        if self.doubted {
            let own = self.name();
            let second = |e: &&Entry<'_>| e.id == Some(terms.id) && Some(e.name) != own;
            self.suspects = oldest_last(queue, second);
        }
    }

    /// Looks in a linearizable listing for nodes of this attempt.
    pub(super) fn search(&mut self, terms: &AttemptTerms, names: &[String]) {
        let mine = |e: &&Entry<'_>| match e.id {
            Some(id) => id == terms.id,
            // Only the data of an unprotected node identifies its owner.
            None => !terms.node_format.protects() && e.mode == terms.mode,
        };
        self.suspects = oldest_last(&Queue::read(terms.node_format, names), mine);
        if self.own == Own::Doubtful {
            // Decided, unless an inspection finds the node: nothing sent before the ordered write can still take effect.
            self.own = Own::None;
        }
    }

    /// A linearizable listing decides which of the nodes exist whose delete's reply was lost.
    pub(super) fn settle_deletes(&mut self, exists: impl Fn(&str) -> bool) {
        if std::mem::take(&mut self.delete_doubted) {
            self.strays.retain(|(stray, _)| exists(stray));
            if self.name().is_some_and(|own| !exists(own)) {
                self.own = Own::None;
            }
        }
    }

    /// Counts a suspect as this attempt's node, after a read: adopts the first one, and keeps each other one as a stray.
    /// Returns whether it was adopted.
    pub(super) fn adopt(&mut self, name: String, czxid: Zxid) -> bool {
        match &self.own {
            Own::Node { name: own, .. } if *own == name => false,
            Own::Node { .. } => {
                self.strays.push((name, czxid));
                false
            }
            Own::None | Own::Doubtful => {
                self.own_is(name, czxid);
                self.watched = false;
                true
            }
        }
    }

    /// Whether this node, which has the own name, is the own node. A name without an id may be used again.
    pub(super) fn is_own(&self, seen: &Inspection) -> bool {
        matches!(&self.own, Own::Node { czxid, .. } if *czxid == seen.czxid)
    }

    /// The transaction that created the own node or the stray of this name.
    fn czxid(&self, name: &str) -> Option<Zxid> {
        match &self.own {
            Own::Node { name: own, czxid } if own == name => Some(*czxid),
            _ => self.strays.iter().find(|(stray, _)| stray == name).map(|(_, czxid)| *czxid),
        }
    }
}

/// The names of the entries that pass, the oldest last.
fn oldest_last(queue: &Queue<'_>, passes: impl Fn(&&Entry<'_>) -> bool) -> Vec<String> {
    queue.entries().iter().rev().filter(passes).map(|e| e.name.to_owned()).collect()
}

impl Contender {
    /// Whether no node of the attempt exists.
    pub(crate) fn has_no_node(&self) -> bool {
        self.nodes.own == Own::None && self.nodes.strays.is_empty()
    }

    /// The outcome of the create.
    pub(super) fn created(&mut self, created: Result<(String, Zxid), Failure>) {
        match created {
            Ok((name, czxid)) => self.nodes.own_is(name, czxid),
            Err(Failure::NoNode) if !self.terms.makes_parents => self.exit.leave(Leaving::NoParent),
            Err(Failure::NoNode) if self.nodes.parents_made < MAX_PARENTS_MADE => self.nodes.parent_missing = true,
            Err(Failure::NoNode) => self.exit.leave(Leaving::ParentVanishes),
            Err(Failure::ConnectionLoss) => self.nodes.doubt(),
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.exit.leave(Leaving::Refused),
        }
    }

    pub(super) fn parent_made(&mut self, outcome: Result<PathMade, Failure>) {
        self.flight = None;
        if let Ok(made) = outcome {
            self.path_made(made);
        }
        match outcome {
            // The parent was created, or one of its ancestors was deleted meanwhile: the next create shows which.
            Ok(_) | Err(Failure::NoNode) => {
                self.nodes.parent_missing = false;
                self.nodes.parents_made += 1;
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.exit.leave(Leaving::Refused),
        }
    }

    /// The next command about nodes in doubt: which are ours, and are there too many?
    pub(super) fn settle_nodes(&mut self) -> Option<Command> {
        if let Some(name) = self.nodes.suspects.pop() {
            self.flight = Some(Flight::Inspect(name.clone()));
            return Some(Command::Inspect { name });
        }
        if let Some((name, _)) = self.nodes.strays.last() {
            return Some(self.delete(name.clone()));
        }
        if self.nodes.own == Own::Doubtful {
            self.flight = Some(Flight::Recover);
            return Some(Command::Recover);
        }
        None
    }

    /// The read of a suspect is repeated.
    pub(super) fn suspect_again(&mut self, name: String) {
        self.nodes.suspects.push(name);
    }

    /// The own node or a stray was read before its delete.
    pub(super) fn verify(&mut self, name: &str, outcome: Result<Inspection, Failure>) {
        match outcome {
            Ok(seen) if self.nodes.czxid(name) == Some(seen.czxid) && seen.owner == self.terms.session => {
                self.nodes.verified = Some(seen.version);
            }
            Ok(_) | Err(Failure::NoNode) => {
                if self.node() == Some(name) {
                    self.node_missing();
                }
                self.nodes.forget(name);
            }
            Err(Failure::ConnectionLoss) => {}
            Err(Failure::Refused | Failure::BadVersion | Failure::NodeExists) => self.exit.stuck = true,
        }
    }

    /// Deletes one of our nodes; with the own node also the own holder marker, if there is one.
    ///
    /// A name without an id may belong to another contender by now: the parent was removed, recreated, and counts from
    /// zero. So read the node before each delete, and bind the delete to what was read. The holder marker is such a
    /// name. While the marker is the very node that we created, the parent was not recreated either, so one read is
    /// enough for both. (A client that breaks our hold must delete the holder marker and our node in one transaction.
    /// Otherwise the next holder's marker may exist by the time of our delete, and look the same.)
    pub(super) fn delete(&mut self, name: String) -> Command {
        let with_holder_marker = self.node() == Some(&name) && self.marker.is_ours();
        if self.terms.node_format.protects() && !with_holder_marker {
            return self.delete_node(name, None);
        }
        if self.nodes.delete_doubted {
            return self.settle();
        }
        if with_holder_marker {
            return match self.verified_holder_marker() {
                Ok(holder_marker) => {
                    self.flight = Some(Flight::Delete { name: name.clone(), holder_marker: true });
                    let write = self.release_write();
                    Command::Delete { name, version: None, holder_marker: Some(holder_marker), write }
                }
                Err(look) => look,
            };
        }
        match self.nodes.verified.take() {
            Some(version) => self.delete_node(name, Some(version)),
            None => {
                self.flight = Some(Flight::Verify(name.clone()));
                Command::Inspect { name }
            }
        }
    }

    fn delete_node(&mut self, name: String, version: Option<i32>) -> Command {
        let write = self.release_write().filter(|_| self.node() == Some(&name));
        self.flight = Some(Flight::Delete { name: name.clone(), holder_marker: false });
        Command::Delete { name, version, holder_marker: None, write }
    }
}
