//! Sets up the nodes that all clients share, and says what a refusal there means.

use futures_util::FutureExt;
use lockkeeper_client::wire::{Acl, CreateMode, ErrorCode, Perms};
use lockkeeper_client::{Client, RequestError};
#[cfg(feature = "embedded")]
use lockkeeper_server::SharedNode as SharedOnServer;

use super::operations::{MissingChroot, Operations, UID, full, grant, list};
use crate::acl::{AclEntry, AclList, LockAcl, REGISTERS, SetUp, SharedNode};
#[cfg(feature = "embedded")]
use crate::ensemble::shared::{LOCKS, OWN_TREE};
use crate::ensemble::shared::{is_shared, list_of, needed};
use crate::ensemble::{EPOCH_NODE, NodeKind, OpError, Reply};
use crate::error::NOT_OPEN;
use crate::process::user_name;

/// The nodes that all users of a machine share, as its server creates them: everyone contends, and only the user who runs the server
/// administrates. Nobody else may delete `/locks` or a register. `registers`: the nodes below `/lockkeeper`, each with its kind.
#[cfg(feature = "embedded")]
pub(crate) fn nodes_of_a_machine(registers: &[(&str, NodeKind)]) -> Vec<SharedOnServer> {
    let contend = LockAcl::open_to_contend();
    let (top, read) = (contend.limited_to(REGISTERS, 'a'), contend.limited_to("r", 'a'));
    let own = [("/", top), ("/zookeeper", read.clone()), ("/zookeeper/quota", read)];
    let of_all = |path| (path, NodeKind::Shared);
    let shared = [LOCKS, OWN_TREE].map(of_all).into_iter().chain(registers.iter().copied()).chain([of_all(EPOCH_NODE)]);
    let shared = shared.map(|(path, kind)| (path, list_of(&contend, path, kind)));
    let node =
        |(path, acl): (&str, LockAcl)| SharedOnServer { path: path.to_owned(), data: data_of(path), acl: list(&acl) };
    own.into_iter().chain(shared).map(node).collect()
}

/// The data of a new shared node.
fn data_of(path: &str) -> Vec<u8> {
    if path == EPOCH_NODE { b"0".to_vec() } else { Vec::new() }
}

/// The users of this machine who may change a list, for people.
fn administrators(list: &LockAcl) -> String {
    let LockAcl::List(AclList(entries)) = list else { return String::new() };
    let users = entries.iter().filter(|entry| entry.scheme == UID && entry.perms.contains('a'));
    let users: Vec<_> = users.filter_map(|entry| Some(user_name(entry.id.parse().ok()?))).collect();
    if users.is_empty() { String::new() } else { format!(" ({} may change it)", users.join(", ")) }
}

/// A list as the server shows it.
fn shown(acl: &[Acl]) -> LockAcl {
    let letters =
        [(Perms::CREATE, 'c'), (Perms::DELETE, 'd'), (Perms::READ, 'r'), (Perms::WRITE, 'w'), (Perms::ADMIN, 'a')];
    let entry = |entry: &Acl| {
        let (perms, grant) = (entry.perms, grant(entry));
        let perms = letters.iter().filter(|(bit, _)| perms & bit != 0).map(|(_, letter)| letter).collect();
        AclEntry { scheme: grant.scheme, id: grant.id, perms }
    };
    LockAcl::List(AclList(acl.iter().map(entry).collect()))
}

/// The list of a node, if the server shows it to this client.
async fn read(client: &Client, path: &str) -> Result<Option<LockAcl>, RequestError> {
    match client.acl(path).await {
        Ok((acl, _)) => Ok(Some(shown(&acl))),
        Err(RequestError::Refused(ErrorCode::NoAuth)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Operations {
    /// Creates a shared node, or gives it the list, and reads its list.
    pub(super) fn set_up_shared(&self, path: &str, kind: NodeKind, acl: Option<&LockAcl>) -> Reply<Option<SharedNode>> {
        if path == EPOCH_NODE && !self.chroot.is_empty() {
            return std::future::ready(Ok(None)).boxed();
        }
        let new = match acl {
            Some(acl) => acl.clone(),
            None if self.authenticates => LockAcl::open_to_contend(),
            None => LockAcl::Open,
        };
        // An empty directory of all locks can be deleted by everyone who may delete in the chroot.
        let chroot = self.missing_chroot_with(path, || new.limited_to(REGISTERS, 'a'));
        let (new, is_asked) = (list(&list_of(&new, path, kind)), acl.is_some());
        self.reply(path, move |client, path| async move {
            let made =
                MissingChroot::create(chroot, &client, &path, data_of(&path), &new, CreateMode::Persistent).await;
            let (set_up, acl) = match made {
                Ok(_) => (SetUp::Created, read(&client, &path).await?),
                // A server looks at the right to create before it looks whether the node exists.
                Err(refused @ RequestError::Refused(ErrorCode::NodeExists | ErrorCode::NoAuth)) => {
                    let before = match read(&client, &path).await {
                        Err(RequestError::Refused(ErrorCode::NoNode)) => return Err(refused),
                        before => before?,
                    };
                    if is_asked {
                        client.set_acl(&path, &new, None).await?;
                        let after = read(&client, &path).await?;
                        let same = before.is_some() && before == after;
                        (if same { SetUp::Unchanged } else { SetUp::Changed }, after)
                    } else {
                        (SetUp::Unchanged, before)
                    }
                }
                Err(error) => return Err(error),
            };
            let is_open = acl.as_ref().is_some_and(|acl| acl.gives_everyone(needed(&path)));
            Ok(Some(SharedNode { path, set_up, acl: acl.map(LockAcl::without_hashes), is_open }))
        })
    }

    /// The reply of an operation that needs rights to the node at `path`. If all clients share the node, a refusal says which ones
    /// its list admits.
    pub(super) fn explained<T: Send + 'static>(&self, path: &str, reply: Reply<T>) -> Reply<T> {
        if !is_shared(path) {
            return reply;
        }
        let (client, chroot, path) = (self.client.clone(), self.chroot.clone(), path.to_owned());
        async move {
            match reply.await {
                Err(fault) => Err(Self::explain(&client, &chroot, &path, fault).await),
                reply => reply,
            }
        }
        .boxed()
    }

    /// The fault of an operation that needs rights to the node at `path`, which all clients may share.
    pub(super) async fn explain(client: &Client, chroot: &str, path: &str, fault: OpError) -> OpError {
        match fault {
            OpError::Refused(reason) if is_shared(path) => {
                let list = match read(client, path).await {
                    Ok(Some(list)) if list.gives_everyone(needed(path)) => return OpError::Refused(reason),
                    Ok(Some(list)) => {
                        let who = administrators(&list);
                        format!("its list is {}{who}", list.without_hashes())
                    }
                    Ok(None) | Err(_) => "its list is not shown to this client".to_owned(),
                };
                OpError::Refused(format!("{reason}; {} {NOT_OPEN}: {list}", full(chroot, path)))
            }
            fault => fault,
        }
    }
}
