//! The one-time set-up of the nodes that all clients share.

use lockkeeper_session::acl::{LockAcl, SharedNode};
use lockkeeper_session::ensemble::{EPOCH_NODE, LOCKS, NodeKind, OWN_TREE};

use super::{Admin, REGISTERS};
use crate::error::{AdminError, refused};

impl Admin {
    /// Creates the nodes that all clients share: `/locks`, `/lockkeeper` and the registers below it, and, without a chroot, the
    /// epoch. `registers` are those of the products in use, each with its kind; this crate's own are created in any case. With [`Builder::create_chroot`](crate::Builder::create_chroot), creates a missing chroot first.
    ///
    /// An administrator calls it once, before any client uses the servers. Whatever the lists of the clients' locks are
    /// ([`Builder::acl`](crate::Builder::acl)), the shared nodes then have the list of the administrator.
    ///
    /// Without `acl`, new nodes let every client contend, and only this client's credentials administrate; existing ones stay as
    /// they are. Without a credential, everyone may do anything in new nodes. With `acl`, new and existing nodes get that list, with
    /// three exceptions. In `/lockkeeper`, entries without the right to administrate only let their clients create and read. In registers
    /// of the kind [`NodeKind::SharedByWriters`], entries without the right to write only let them read. Everyone may read the epoch, and only entries with the
    /// right to administrate let their clients write it. Nodes below the shared ones keep their lists.
    ///
    /// # Cost
    ///
    /// Two round trips for each node, and two more for one that exists and gets the list.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves some of the nodes set up. Calling it again sets up the others.
    ///
    /// # Errors
    ///
    /// [`SessionError::Refused`](crate::error::SessionError::Refused) if a node's list does not let this client change the list, or
    /// the parent's list does not let it create the node; the nodes before it are set up. Otherwise, no server can be reached.
    pub async fn set_up(
        &self,
        acl: Option<LockAcl>,
        registers: &[(&'static str, NodeKind)],
    ) -> Result<Vec<SharedNode>, AdminError> {
        let mut registers = [&REGISTERS[..], registers].concat();
        registers.sort_unstable_by_key(|(path, _)| *path);
        registers.dedup_by_key(|(path, _)| *path);
        self.on_session(move |ensemble| async move {
            let mut nodes = Vec::new();
            let shared = |path| (path, NodeKind::Shared);
            let parents = [LOCKS, OWN_TREE].map(shared);
            for (path, kind) in parents.into_iter().chain(registers).chain([shared(EPOCH_NODE)]) {
                let node = ensemble.set_up(path, kind, acl.as_ref()).await.map_err(|fault| refused(path, fault))?;
                nodes.extend(node);
            }
            Ok(nodes)
        })
        .await
    }
}
