//! The end of an attempt: why it leaves, and whether it can.

use crate::IncompatibleFormat;
use crate::protocol::End;

/// The reason for leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Leaving {
    /// The caller wants to leave.
    Asked,
    /// A clock has ended the hold as lost.
    Lost,
    /// Another client deleted its node, or its holder marker.
    Removed,
    /// The server refuses a request that the contender needs.
    Refused,
    /// The parent cannot be kept.
    ParentVanishes,
    /// There is no parent, and it makes none.
    NoParent,
    /// It was asked to withdraw before it was granted.
    Revoked,
    /// The path states another limit, or something else.
    LimitDiffers(Option<u32>),
    /// It had to get the lock immediately or not at all.
    Held { ahead: usize },
    /// The queue is longer than it accepts.
    TooManyAhead { ahead: usize },
    /// An earlier contender uses another node format.
    IncompatibleFormat(IncompatibleFormat),
}

impl Leaving {
    /// The end that the reason leads to, unless the session ends first or the server refuses to delete a node.
    fn end(self) -> End {
        match self {
            Leaving::Asked | Leaving::Lost => End::Left,
            Leaving::Removed => End::Removed,
            Leaving::Refused => End::Refused,
            Leaving::ParentVanishes => End::ParentVanishes,
            Leaving::NoParent => End::NoParent,
            Leaving::Revoked => End::Revoked,
            Leaving::LimitDiffers(stated) => End::LimitDiffers(stated),
            Leaving::Held { ahead } => End::Held { ahead },
            Leaving::TooManyAhead { ahead } => End::TooManyAhead { ahead },
            Leaving::IncompatibleFormat(theirs) => End::IncompatibleFormat(theirs),
        }
    }
}

/// How an attempt ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Exit {
    why: Option<Leaving>,
    pub(super) session_over: bool,
    /// The server refuses to delete a node.
    pub(super) stuck: bool,
    /// The number of deletes sent since it leaves, counted up to 2.
    deletes: u8,
    /// Another client deleted a node of the hold before the release did: near its end, the hold was not exclusive.
    late: bool,
    pub(super) ended: bool,
}

impl Exit {
    /// Leaves. The first reason stays.
    pub(super) fn leave(&mut self, why: Leaving) {
        _ = self.why.get_or_insert(why);
    }

    /// Counts a delete that is sent now.
    pub(super) fn count_delete(&mut self) {
        if self.is_leaving() {
            self.deletes = 2.min(self.deletes + 1);
        }
    }

    /// Whether no delete was sent. Then only another client can have deleted a node of this attempt.
    pub(super) fn is_before_deletes(&self) -> bool {
        self.deletes == 0
    }

    /// Whether one delete was sent, and no second one. If it finds no node, another client has deleted the node. A second delete may
    /// find none because the first one took effect, and only its reply was lost.
    pub(super) fn is_at_first_delete(&self) -> bool {
        self.deletes == 1
    }

    /// The hold ended before its release.
    pub(super) fn is_too_late(&mut self) {
        self.late = true;
    }

    /// The end that it leads to, once it leaves.
    pub(super) fn end(&self) -> Option<End> {
        match self.why? {
            Leaving::Asked if self.late => Some(End::Removed),
            why => Some(why.end()),
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.why.is_some()
    }

    /// Whether it leaves although its caller wants to keep the lock.
    pub(super) fn is_loss(&self) -> bool {
        !matches!(self.why, None | Some(Leaving::Asked))
    }
}
