//! What an attempt asks for, and the names that follow from it.

use crate::{AttemptId, Discipline, LockDelay, Mode, NodeFormat, Queue, Sequence, SessionId, Tombstone, Verdict};

/// How many contenders must be ahead before the record of a release is worth a read and a write. A name takes about 60 bytes of
/// a listing, and a read takes 150.
const MANY_AHEAD: usize = 16;

/// What an attempt asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AttemptTerms {
    pub(super) discipline: Discipline,
    pub(super) node_format: NodeFormat,
    pub(super) mode: Mode,
    /// Its node is a writer's, and it wants to read beside the readers ahead of it.
    pub(super) reads_early: bool,
    pub(super) id: AttemptId,
    pub(super) session: SessionId,
    /// How long the lock stays unavailable after a loss.
    pub(super) delay: Option<LockDelay>,
    /// It gets the lock immediately or leaves.
    pub(super) once: bool,
    /// It leaves if more than so many are ahead.
    pub(super) max_ahead: usize,
    /// It creates a missing parent.
    pub(super) makes_parents: bool,
    /// The parent that it creates is persistent, not a container.
    pub(super) parent_stays: bool,
    /// It uses records of releases if at least so many are ahead.
    pub(super) many_ahead: usize,
}

impl AttemptTerms {
    /// # Panics
    /// If the node format has no name for `mode`: which modes a lock's face offers is fixed where the face is written.
    pub(super) fn new(
        discipline: Discipline,
        node_format: NodeFormat,
        mode: Mode,
        id: AttemptId,
        session: SessionId,
    ) -> Self {
        assert!(node_format.prefix(mode, id).is_some(), "{node_format:?} has no name for {mode:?}");
        AttemptTerms {
            discipline,
            node_format,
            mode,
            reads_early: false,
            id,
            session,
            delay: None,
            once: false,
            max_ahead: usize::MAX,
            makes_parents: true,
            parent_stays: node_format.is_beside(),
            many_ahead: MANY_AHEAD,
        }
    }

    /// Judges the own node by a listing, as what the attempt wants to be now.
    pub(super) fn decide<'a>(&self, queue: &Queue<'a>, own: &str) -> Verdict<'a> {
        match self.reads_early {
            true => self.discipline.decide_as_reader(queue, own),
            false => self.discipline.decide(queue, own),
        }
    }

    /// The name to create for a node of this mode.
    pub(super) fn prefix(&self, mode: Mode) -> String {
        let prefix = self.node_format.prefix_with(mode, self.id, self.delay);
        prefix.expect("checked when the contender was made, and a node format that names writers names readers")
    }

    /// The name of the reader's node in the place of the writer's node `writer`.
    pub(super) fn reader_name(&self, writer: &str) -> String {
        let prefix = self.prefix(Mode::Read);
        let (_, sequence) = Sequence::split(writer).expect("the server numbered it");
        format!("{prefix}{sequence}")
    }

    /// The name of the own tombstone for a hold in this mode, if the hold has a lock delay.
    pub(super) fn tombstone(&self, mode: Mode) -> Option<String> {
        Tombstone { id: self.id, mode, delay: self.delay? }.name()
    }

    /// Whether its queue has classes, and with them a holder marker and holds that make way.
    pub(super) fn has_classes(&self) -> bool {
        self.discipline.holder_marker().is_some()
    }

    /// The name of the holder marker, by an attempt that takes it.
    pub(super) fn holder_marker(&self) -> String {
        self.discipline.holder_marker().expect("only a discipline with a holder marker says to take it").to_owned()
    }

    pub(super) fn is_holder_marker(&self, name: &str) -> bool {
        self.discipline.holder_marker() == Some(name)
    }
}
