//! The protocol's operation codes.
//!
//! The list includes operations that the embedded server answers with `Unimplemented`, so that counters and logs can
//! name them.

use crate::codes::codes;

codes! {
    /// An operation of the protocol.
    pub enum OpCode {
        CloseSession = -11,
        CreateSession = -10,
        Create = 1,
        Delete = 2,
        Exists = 3,
        GetData = 4,
        SetData = 5,
        GetAcl = 6,
        SetAcl = 7,
        GetChildren = 8,
        Sync = 9,
        Ping = 11,
        GetChildren2 = 12,
        Check = 13,
        Multi = 14,
        Create2 = 15,
        Reconfig = 16,
        CheckWatches = 17,
        RemoveWatches = 18,
        CreateContainer = 19,
        DeleteContainer = 20,
        CreateTtl = 21,
        MultiRead = 22,
        Auth = 100,
        SetWatches = 101,
        Sasl = 102,
        GetEphemerals = 103,
        GetAllChildrenNumber = 104,
        SetWatches2 = 105,
        AddWatch = 106,
        WhoAmI = 107,
    }
}

impl OpCode {
    /// The operations that create a node.
    pub const CREATES: &'static [Self] = &[Self::Create, Self::Create2, Self::CreateContainer, Self::CreateTtl];

    /// The operations that list the children of a node, or of several.
    pub const LISTS: &'static [Self] = &[Self::GetChildren, Self::GetChildren2, Self::MultiRead];

    /// Returns whether it may change the tree, and so takes part in the order of transactions.
    pub fn is_write(self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::Create2
                | Self::CreateContainer
                | Self::CreateTtl
                | Self::Delete
                | Self::SetData
                | Self::SetAcl
                | Self::Multi
                | Self::Reconfig
        )
    }

    /// Returns its index in [`OpCode::ALL`].
    pub fn slot(self) -> usize {
        Self::ALL.binary_search(&self).expect("ALL lists every variant in order, see the test")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_found_by_its_number() {
        for (slot, op) in OpCode::ALL.into_iter().enumerate() {
            assert_eq!(OpCode::from_i32(op.as_i32()), Some(op));
            assert_eq!(op.slot(), slot);
        }
        assert_eq!(OpCode::from_i32(0), None);
        assert_eq!(OpCode::from_i32(10), None);
    }
}
