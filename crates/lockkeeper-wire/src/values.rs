//! Values that requests and responses share.

use crate::codes::codes;

/// A node's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stat {
    /// The transaction that created it.
    pub czxid: i64,
    /// The transaction that last set its data.
    pub mzxid: i64,
    /// When it was created, milliseconds since 1970.
    pub ctime: i64,
    /// When its data was last set, milliseconds since 1970.
    pub mtime: i64,
    /// How many times its data was set.
    pub version: i32,
    /// How many times its children changed: twice the creates less the current children.
    pub cversion: i32,
    /// How many times its access list was set.
    pub aversion: i32,
    /// The session that owns it, 0 if it is not ephemeral.
    pub ephemeral_owner: i64,
    /// Bytes of data.
    pub data_length: i32,
    /// Number of children.
    pub num_children: i32,
    /// The transaction that last added or removed a child.
    pub pzxid: i64,
}

/// One entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Acl {
    /// Bits of [`Perms`].
    pub perms: i32,
    /// The identity that gets them.
    pub id: AclId,
}

impl Acl {
    /// Everyone may do everything.
    pub const OPEN: Self = Self { perms: Perms::ALL, id: AclId::WorldAnyone };
    /// Everyone may read.
    pub const READ: Self = Self { perms: Perms::READ, id: AclId::WorldAnyone };
}

/// The identities that an entry of an access list matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AclId {
    /// `world:anyone`. Nearly every node has it, and this variant needs no allocation.
    WorldAnyone,
    /// Any other identity.
    Other {
        /// For example `digest`.
        scheme: String,
        /// For example `user:hash`.
        id: String,
    },
}

/// Permission bits.
#[derive(Debug)]
pub struct Perms;

impl Perms {
    /// Read data and list children.
    pub const READ: i32 = 1;
    /// Set data.
    pub const WRITE: i32 = 2;
    /// Create children.
    pub const CREATE: i32 = 4;
    /// Delete children.
    pub const DELETE: i32 = 8;
    /// Set the access list.
    pub const ADMIN: i32 = 16;
    /// All of them.
    pub const ALL: i32 = 31;
}

codes! {
    /// The kind of a node to create.
    pub enum CreateMode {
        /// Stays until deleted.
        Persistent = 0,
        /// Deleted with its session.
        Ephemeral = 1,
        /// Persistent, numbered by its parent.
        PersistentSequential = 2,
        /// Ephemeral, numbered by its parent.
        EphemeralSequential = 3,
        /// Removed some time after its last child.
        Container = 4,
        /// Removed when it has no children and was not written for its time to live.
        PersistentTtl = 5,
        /// As `PersistentTtl`, numbered by its parent.
        PersistentSequentialTtl = 6,
    }
}

impl CreateMode {
    /// Returns whether the parent numbers it.
    pub fn is_sequential(self) -> bool {
        matches!(self, Self::PersistentSequential | Self::EphemeralSequential | Self::PersistentSequentialTtl)
    }

    /// Returns whether it is deleted with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }

    /// Returns whether it has a time to live.
    pub fn is_ttl(self) -> bool {
        matches!(self, Self::PersistentTtl | Self::PersistentSequentialTtl)
    }
}

codes! {
    /// The kind of a watch.
    pub enum WatchKind {
        Child = 1,
        /// Left by `getData` and `exists`.
        Data = 2,
        Any = 3,
        /// Left by `addWatch`: a node and its list of children.
        Persistent = 4,
        /// Left by `addWatch`: a node and its descendants.
        PersistentRecursive = 5,
    }
}

codes! {
    /// What happened to a watched node.
    pub enum EventKind {
        Created = 1,
        Deleted = 2,
        /// Its data was set.
        DataChanged = 3,
        /// A child was created or deleted.
        ChildrenChanged = 4,
    }
}
