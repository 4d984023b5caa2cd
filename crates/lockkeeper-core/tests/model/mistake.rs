//! The mistakes that are planted in worlds, to show that they are found.

/// A mistake that a driver could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(deep), allow(dead_code, reason = "some are planted by `cargo xtask deep` alone"))]
pub(crate) enum Mistake {
    /// `Recover` lists without the ordered write.
    NoOrderedWrite,
    /// The create asks for a name without the attempt's id.
    Unprotected,
    /// The listing is taken before the create.
    ListBeforeCreate,
    /// The first node of the queue is watched instead of the blocker.
    WatchTheFirst,
    /// The next younger node is watched instead of the blocker.
    WatchTheNextYounger,
    /// A read of the own node is answered from memory, and the delete uses the name alone.
    DeleteByName,
    /// A read of a node reports the reader's session as its owner.
    AdoptForeign,
    /// The first waiter for permits does not watch the children. It watches the node as many places ahead as there are
    /// permits.
    WatchOnePlace,
    /// No grant is written to the own node.
    NoAnnouncement,
    /// No holder marker blocks any contender.
    NoHolderMarker,
    /// A read of the holder marker is answered from memory.
    HolderMarkerByName,
    /// A writer's node is named like a mutex's: its deletion is taken for the end of the hold.
    WritersLookExclusive,
    /// A node's name does not contain the lock delay.
    DelayNotInNames,
    /// A client leaves a hold that its clock has ended as if its caller had released it.
    LossLooksLikeLeaving,
    /// Listings are taken without the tombstones.
    TombstonesUnseen,
    /// Each release is reported to neighbours, also if the hold was not alone or a write of its holder may still take effect.
    AllPassOn,
    /// No contender knows that its caller writes in the transaction of the release.
    ReleaseWriteUnsaid,
    /// A client without a connection takes the report of a neighbour's release.
    HearsWithoutConnection,
    /// No client hears of the end of a neighbour that has not released.
    EndsUnheard,
    /// A client takes any neighbour in the queue for the one with the number before its own.
    BehindAnyNumber,
    /// Each neighbour that releases says that it watched its node.
    SaysItWatched,
    /// Each contender that deletes its node records that as the release of a holder.
    RecordsEachEnd,
    /// A contender takes any record for the one of the node before its own.
    AnyRecordCounts,
    /// The read of a record shows the own node from memory.
    OwnNodeUnread,
    /// The check of a hold is answered by the server of the session, without an order among the writes.
    CheckUnordered,
    /// A look at the first of the queue reports that it is deleted.
    LookFindsNothing,
    /// No holder hears that other children come.
    NewcomersUnheard,
}
