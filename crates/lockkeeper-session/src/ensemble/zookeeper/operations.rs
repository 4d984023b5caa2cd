//! The operations of a session over TCP.
//!
//! The client sends a request when its call is made, and never reorders requests. Here the calls are made on the first
//! poll, so the order of first polls is the order on the wire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use lockkeeper_client::wire::{
    Acl, AclId, Create, CreateMode, ErrorCode, EventKind, OpResult, Perms, ReadOp, SetData, Stat, VersionedPath,
    WriteOp,
};
use lockkeeper_client::{Client, FeedEvent, MultiError, RequestError, WatchFeed, Watcher as ClientWatcher};
use lockkeeper_core::{SessionId, Zxid};

use super::fault::{TROUBLED, at_node, connection_lives, told};
use crate::acl::{AclEntry, AclList, LockAcl, SharedNode};
use crate::ensemble::paths::above;
use crate::ensemble::shared::{self, OWN_TREE};
use crate::ensemble::{
    AclGrant, Children, Copies, Done, EPOCH_NODE, Ensemble, Fired, Node, NodeKind, NodeWithAcl, Proof, Reply,
    TreeChange, TreeEvent, TreeWatch, TxnError, TxnStep, Watcher, Written,
};

/// The scheme of the user that a server of this machine knows from the kernel. No client can give a node another user's.
pub(super) const UID: &str = "uid";

/// The mode of a new node.
fn mode(kind: NodeKind) -> CreateMode {
    match kind {
        NodeKind::EphemeralSequential => CreateMode::EphemeralSequential,
        NodeKind::Ephemeral => CreateMode::Ephemeral,
        NodeKind::Container | NodeKind::SharedContainer => CreateMode::Container,
        NodeKind::Persistent | NodeKind::Record | NodeKind::Shared | NodeKind::SharedByWriters => {
            CreateMode::Persistent
        }
    }
}

/// The access list of a new node.
pub(super) fn list(acl: &LockAcl) -> Vec<Acl> {
    let creator = || Acl { perms: Perms::ALL, id: AclId::Other { scheme: "auth".to_owned(), id: String::new() } };
    match acl {
        LockAcl::Open => vec![Acl::OPEN],
        // Clients with the creator's credential may do anything; all others may read.
        LockAcl::Visible => vec![creator(), Acl::READ],
        LockAcl::Private => vec![creator()],
        LockAcl::List(AclList(entries)) => entries.iter().map(named).collect(),
    }
}

/// The access list of a new node of this kind. `signs` says whether the server knows the user of this client.
///
/// A record has the creator's identity, which no other client can give a node, and nobody may write to it.
fn list_of(acl: &LockAcl, path: &str, kind: NodeKind, signs: bool) -> Vec<Acl> {
    match kind {
        NodeKind::Shared | NodeKind::SharedContainer | NodeKind::SharedByWriters => {
            return list(&shared::list_of(&acl.shared(), path, kind));
        }
        NodeKind::Record if signs => {}
        _ => return list(acl),
    }
    let creator = AclId::Other { scheme: "auth".to_owned(), id: String::new() };
    let readers = list(acl).into_iter().map(|entry| entry.id).chain([creator]);
    readers.map(|id| Acl { perms: Perms::READ, id }).collect()
}

/// Who created a node with this list.
fn proved(acl: &[Acl]) -> Proof {
    let mut users = acl.iter().filter_map(|entry| match &entry.id {
        AclId::Other { scheme, id } if scheme == UID => Some(id.parse()),
        _ => None,
    });
    match (users.next(), users.next()) {
        (Some(Ok(user)), None) if acl.iter().all(|entry| entry.perms & !Perms::READ == 0) => Proof::User(user),
        _ => Proof::Missing,
    }
}

/// An entry as the server reads it.
fn named(entry: &AclEntry) -> Acl {
    let bits = entry.perms.chars().map(|letter| match letter {
        'c' => Perms::CREATE,
        'd' => Perms::DELETE,
        'r' => Perms::READ,
        'w' => Perms::WRITE,
        _ => Perms::ADMIN,
    });
    Acl { perms: bits.fold(0, |perms, bit| perms | bit), id: id(&entry.scheme, &entry.id) }
}

pub(super) struct Operations {
    pub(super) client: Client,
    /// Of the connect string; the client adds it to every path.
    pub(super) chroot: String,
    pub(super) create_chroot: bool,
    pub(super) session: SessionId,
    pub(super) acl: LockAcl,
    /// Whether the server can authenticate this client, so that a list may name the creator of a node.
    pub(super) authenticates: bool,
    /// Whether the server knows the users of its clients.
    pub(super) signs: bool,
    /// Whether the server reads several nodes at once. One that does not ends the connection when it is asked.
    pub(super) reads_together: Arc<AtomicBool>,
}

/// The path as the server knows it.
pub(super) fn full(chroot: &str, path: &str) -> String {
    match (chroot, path) {
        ("", path) => path.to_owned(),
        (chroot, "/") => chroot.to_owned(),
        (chroot, path) => format!("{chroot}{path}"),
    }
}

/// Creates a persistent node and its missing parents, from the bottom up: no right is needed above a parent that exists.
async fn create_with_parents(client: &Client, path: &str, acl: &[Acl]) -> Result<(), RequestError> {
    let mut missing = vec![path];
    while let Some(deepest) = missing.last() {
        match client.create(deepest, "", acl, CreateMode::Persistent).await {
            Ok(_) | Err(RequestError::Refused(ErrorCode::NodeExists)) => _ = missing.pop(),
            Err(error @ RequestError::Refused(ErrorCode::NoNode)) => match deepest.rfind('/') {
                // Bounded: each step is one component shorter.
                Some(at) if at > 0 && !missing.contains(&&deepest[..at]) => missing.push(&deepest[..at]),
                // Someone deletes what was just made.
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Creates a node. Sequential ones leave together, and so do containers, because one is created when it was missing. Others often
/// exist already, and would make the others wait.
async fn create(
    client: &Client,
    path: &str,
    data: Vec<u8>,
    acl: &[Acl],
    mode: CreateMode,
) -> Result<(Arc<str>, Stat), RequestError> {
    match mode {
        CreateMode::EphemeralSequential | CreateMode::Container => client.create_batched(path, data, acl, mode).await,
        _ => client.create(path, data, acl, mode).await,
    }
}

/// A chroot that may be created.
pub(super) struct MissingChroot {
    path: String,
    acl: Vec<Acl>,
}

impl MissingChroot {
    /// Creates a node; creates the chroot first if it is missing.
    pub(super) async fn create(
        this: Option<MissingChroot>,
        client: &Client,
        path: &str,
        data: Vec<u8>,
        acl: &[Acl],
        mode: CreateMode,
    ) -> Result<(Arc<str>, Stat), RequestError> {
        let Some(chroot) = this else { return create(client, path, data, acl, mode).await };
        match create(client, path, data.clone(), acl, mode).await {
            Err(RequestError::Refused(ErrorCode::NoNode)) => {
                // Persistent, because an operator named it.
                create_with_parents(&client.without_chroot(), &chroot.path, &chroot.acl).await?;
                create(client, path, data, acl, mode).await
            }
            created => created,
        }
    }
}

/// Resolves when the client's watch fires.
fn watcher(watcher: ClientWatcher) -> Watcher {
    let fired = watcher.map(|event| match event.map(|event| event.kind) {
        None => Fired::SessionOver,
        Some(EventKind::Deleted) => Fired::Gone,
        Some(_) => Fired::Changed,
    });
    fired.boxed()
}

impl Operations {
    /// The chroot, if it may be created and can be the missing parent of a node to create. All clients share it.
    fn missing_chroot(&self, path: &str) -> Option<MissingChroot> {
        self.missing_chroot_with(path, || self.acl.shared())
    }

    /// The same, with this list.
    pub(super) fn missing_chroot_with(&self, path: &str, acl: impl FnOnce() -> LockAcl) -> Option<MissingChroot> {
        // Directly below the chroot, only the chroot itself can be missing.
        let directly_below = path.rfind('/') == Some(0) && !self.chroot.is_empty();
        let missing = || MissingChroot { path: self.chroot.clone(), acl: list(&acl()) };
        (directly_below && self.create_chroot).then(missing)
    }

    /// Runs `operation` on the client and the path when the reply is first polled.
    pub(super) fn reply<T, F, Fut>(&self, path: &str, operation: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(Client, String) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, RequestError>> + Send + 'static,
    {
        let reply = reply_at(self.client.clone(), path.to_owned(), full(&self.chroot, path), operation);
        self.explained(path, reply)
    }

    /// As `reply`, with a path outside the chroot.
    fn reply_outside<T, F, Fut>(&self, path: &str, operation: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(Client, String) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, RequestError>> + Send + 'static,
    {
        reply_at(self.client.without_chroot(), path.to_owned(), path.to_owned(), operation)
    }
}

/// Runs `operation` when the reply is first polled. `full` is the path as the server knows it.
fn reply_at<T, F, Fut>(client: Client, path: String, full: String, operation: F) -> Reply<T>
where
    T: Send + 'static,
    F: FnOnce(Client, String) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, RequestError>> + Send + 'static,
{
    async move {
        match operation(client, path).await {
            Ok(reply) => Ok(reply),
            Err(error) => Err(at_node(told(error).await, &full)),
        }
    }
    .boxed()
}

impl Ensemble for Operations {
    fn session(&self) -> SessionId {
        self.session
    }

    fn unanswered_for(&self) -> Duration {
        self.client.unanswered_for()
    }

    fn create(&self, path: &str, data: Vec<u8>, kind: NodeKind) -> Reply<(String, Zxid)> {
        let (acl, chroot) = (list_of(&self.acl, path, kind, self.signs), self.missing_chroot(path));
        let made =
            reply_at(self.client.clone(), path.to_owned(), full(&self.chroot, path), move |client, path| async move {
                let (made, stat) = MissingChroot::create(chroot, &client, &path, data, &acl, mode(kind)).await?;
                let name = made.rsplit('/').next().unwrap_or(&made).to_owned();
                Ok((name, Zxid(stat.czxid)))
            });
        // The right to create belongs to the parent.
        self.explained(above(path), made)
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        self.reply(path, move |client, path| async move { client.delete_batched(&path, version).await })
    }

    fn write(&self, path: &str, data: Vec<u8>, version: Option<i32>) -> Reply<Written> {
        self.reply(path, move |client, path| async move { Ok(written(&client.set(&path, data, version).await?)) })
    }

    fn transact(&self, steps: Vec<TxnStep>) -> Reply<Vec<Done>, TxnError> {
        let (client, acl, chroot) = (self.client.clone(), self.acl.clone(), self.chroot.clone());
        let signs = self.signs;
        async move {
            let paths: Vec<String> = steps.iter().map(|step| step.path().to_owned()).collect();
            let creates: Vec<bool> = steps.iter().map(|step| matches!(step, TxnStep::Create { .. })).collect();
            let ops = steps.into_iter().map(|step| write_op(step, &acl, signs)).collect();
            let (step, error) = match client.multi(ops).await {
                Ok(done) => return Ok(done.into_iter().map(done_by).collect()),
                Err(MultiError::Operation { index, error }) => (Some(index), RequestError::Refused(error)),
                Err(MultiError::Request(error)) => (None, error),
            };
            let fault = told(error).await;
            let refused_at = step.and_then(|step| Some((paths.get(step)?, creates.get(step)?)));
            let Some((path, creates)) = refused_at else { return Err(TxnError { step, fault }) };
            let fault = at_node(fault, &full(&chroot, path));
            // The right to create belongs to the parent.
            let needs = if *creates { above(path) } else { path };
            Err(TxnError { step, fault: Operations::explain(&client, &chroot, needs, fault).await })
        }
        .boxed()
    }

    fn list(&self, path: &str) -> Reply<Children> {
        self.reply(path, |client, path| async move {
            let (names, stat) = client.children_batched(&path).await?;
            // The servers count each creation and each deletion (ZooKeeper's `DataNode.copyStat`).
            let changes = i64::from(stat.cversion) + i64::from(stat.num_children);
            Ok(Children {
                names: owned(&names),
                data_len: usize::try_from(stat.data_length).unwrap_or(0),
                created: u32::try_from(changes / 2).unwrap_or(0),
                ctime_ms: stat.ctime,
                changed: Zxid(stat.pzxid),
            })
        })
    }

    fn list_and_watch(&self, path: &str) -> Reply<(Vec<String>, Watcher)> {
        self.reply(path, |client, path| async move {
            let (read, watch) = client.children_and_watch(&path).await;
            Ok((owned(&read?.0), watcher(watch)))
        })
    }

    fn watch_creation(&self, path: &str) -> Reply<Option<Watcher>> {
        self.reply(path, |client, path| async move {
            let (exists, watch) = client.exists_and_watch(&path).await;
            Ok(exists?.is_none().then(|| watcher(watch)))
        })
    }

    fn read(&self, path: &str) -> Reply<Node> {
        self.reply(path, |client, path| async move {
            let (data, stat) = client.get(&path).await?;
            Ok(node(data.into(), &stat))
        })
    }

    fn count(&self, path: &str) -> Reply<usize> {
        self.reply(path, |client, path| async move {
            let children = client.exists(&path).await?.map_or(0, |stat| stat.num_children);
            Ok(usize::try_from(children).unwrap_or(0))
        })
    }

    fn read_with_child(&self, path: &str, child: &str) -> Reply<(Node, Option<Node>)> {
        let (together, child) = (self.reads_together.clone(), child.to_owned());
        self.reply(path, |client, path| async move {
            let mut both = None;
            if together.load(Ordering::Relaxed) {
                let reads = [&path, &child].map(|path| ReadOp::GetData { path: path.clone() });
                match client.multi_read(reads.into()).await {
                    Err(RequestError::Refused(ErrorCode::Unimplemented)) => together.store(false, Ordering::Relaxed),
                    results => both = <[OpResult; 2]>::try_from(results?).ok(),
                }
            }
            let [parent, child] = match both {
                Some(both) => both.map(node_read),
                None => {
                    let (parent, child) = tokio::join!(biased; client.get(&path), client.get(&child));
                    [parent, child].map(|read| read.map(|(data, stat)| node(data.into(), &stat)))
                }
            };
            match child {
                Err(RequestError::Refused(ErrorCode::NoNode)) => Ok((parent?, None)),
                child => Ok((parent?, Some(child?))),
            }
        })
    }

    fn proof(&self, path: &str) -> Reply<Proof> {
        if !self.signs {
            return std::future::ready(Ok(Proof::Unknown)).boxed();
        }
        self.reply(path, |client, path| async move { Ok(proved(&client.acl(&path).await?.0)) })
    }

    fn read_and_watch(&self, path: &str) -> Reply<(Node, Watcher)> {
        self.reply(path, |client, path| async move {
            let (read, watch) = client.get_and_watch(&path).await;
            let (data, stat) = read?;
            Ok((node(data.into(), &stat), watcher(watch)))
        })
    }

    fn may_have_followers(&self) -> Reply<bool> {
        self.reply_outside("/zookeeper/config", |client, path| async move {
            match client.get(&path).await {
                Ok((data, _)) => Ok(!data.is_empty()),
                // ZooKeeper before 3.5, or an access list.
                Err(RequestError::Refused(_)) => Ok(true),
                Err(error) => Err(error),
            }
        })
    }

    fn epoch(&self) -> Reply<(Option<Node>, Watcher)> {
        self.reply_outside(EPOCH_NODE, |client, path| async move {
            loop {
                // Usually it does not exist, and this is the only request.
                let (stat, watch) = client.exists_and_watch(&path).await;
                if stat?.is_none() {
                    return Ok((None, watcher(watch)));
                }
                let (read, watch) = client.get_and_watch(&path).await;
                match read {
                    Ok((data, stat)) => return Ok((Some(node(data.into(), &stat)), watcher(watch))),
                    Err(RequestError::Refused(ErrorCode::NoNode)) => {}
                    Err(error) => return Err(error),
                }
            }
        })
    }

    fn set_epoch(&self, data: Vec<u8>, version: Option<i32>) -> Reply<()> {
        // All clients must be able to read it; without it they get no token.
        let (acl, shared) =
            (list(&self.acl.of_epoch()), list(&shared::list_of(&self.acl.shared(), OWN_TREE, NodeKind::Shared)));
        self.reply_outside(EPOCH_NODE, move |client, path| async move {
            if version.is_some() {
                return client.set(&path, data, version).await.map(drop);
            }
            match client.create(&path, data.clone(), &acl, CreateMode::Persistent).await {
                Err(RequestError::Refused(ErrorCode::NoNode)) => {
                    create_with_parents(&client, above(&path), &shared).await?;
                    client.create(&path, data, &acl, CreateMode::Persistent).await.map(drop)
                }
                made => made.map(drop),
            }
        })
    }

    fn set_up(&self, path: &str, kind: NodeKind, acl: Option<&LockAcl>) -> Reply<Option<SharedNode>> {
        self.set_up_shared(path, kind, acl)
    }

    fn watch_tree(&self, path: &str, capacity: usize) -> Reply<TreeWatch> {
        self.reply(path, move |client, path| async move { Ok(tree_watch(client.feed(&path, true, capacity).await?)) })
    }

    fn copies(&self) -> Option<&dyn Copies> {
        Some(self)
    }

    fn heartbeat(&self) -> Reply<()> {
        // A transaction of one check. The leader proposes every transaction, also one whose check fails, so a majority
        // orders it (PrepRequestProcessor gives it a zxid before it looks at its operations). It changes nothing and
        // triggers no watch. A single write would not do: with `zookeeper.enableEagerACLCheck`, the connected server itself
        // answers NoAuth, and it may be cut off from the others. It examines no transaction ahead of the leader.
        self.reply("/", |client, path| async move {
            match client.multi(vec![WriteOp::Check(VersionedPath { path, version: -1 })]).await {
                Ok(_) | Err(MultiError::Operation { .. }) => Ok(()),
                // The transaction was refused as a whole, and perhaps not ordered. It is not repeated at once.
                Err(MultiError::Request(error)) => {
                    if connection_lives(error) {
                        tokio::time::sleep(TROUBLED).await;
                    }
                    Err(error)
                }
            }
        })
    }
}

/// The changes of a tree.
fn tree_watch(feed: WatchFeed) -> TreeWatch {
    stream::unfold(feed, |mut feed| async move { feed.next().await.map(|event| (event, feed)) })
        .filter_map(async |event| {
            Some(match event {
                FeedEvent::Disconnected => TreeEvent::Disconnected,
                FeedEvent::Connected => TreeEvent::Reconnected,
                FeedEvent::Missed(events) => TreeEvent::Missed(events),
                FeedEvent::Fired { event, at } => {
                    let change = match event.kind {
                        EventKind::Created => TreeChange::Created,
                        EventKind::Deleted => TreeChange::Deleted,
                        EventKind::DataChanged => TreeChange::Written,
                        // A recursive watch has the children's own events instead.
                        EventKind::ChildrenChanged => return None,
                    };
                    TreeEvent::Changed { path: event.path, change, at }
                }
            })
        })
        .boxed()
}

impl Copies for Operations {
    fn read_whole(&self, path: &str) -> Reply<Option<NodeWithAcl>> {
        self.reply(path, |client, path| async move {
            let ((data, stat), (acl, later)) =
                futures_util::future::try_join(client.get(&path), client.acl(&path)).await?;
            let same = (stat.czxid, stat.version, stat.aversion) == (later.czxid, later.version, later.aversion);
            Ok(same.then(|| NodeWithAcl {
                data: data.into(),
                // A user of this machine is nobody on another server, which would refuse the list.
                acl: acl.iter().map(grant).filter(|grant| grant.scheme != UID || acl.len() == 1).collect(),
                ephemeral: stat.ephemeral_owner != 0,
                czxid: Zxid(stat.czxid),
                latest: Zxid(later.mzxid.max(later.pzxid)),
            }))
        })
    }

    fn create_whole(&self, path: &str, whole: NodeWithAcl) -> Reply<()> {
        let chroot = self.missing_chroot(path);
        self.reply(path, move |client, path| async move {
            let acl: Vec<_> = whole.acl.iter().map(entry).collect();
            let made = MissingChroot::create(chroot, &client, &path, whole.data, &acl, CreateMode::Persistent);
            made.await.map(drop)
        })
    }

    fn replace_whole(&self, path: &str, whole: NodeWithAcl) -> Reply<()> {
        self.reply(path, move |client, path| async move {
            client.set(&path, whole.data, None).await?;
            let acl: Vec<_> = whole.acl.iter().map(entry).collect();
            client.set_acl(&path, &acl, None).await.map(drop)
        })
    }
}

pub(super) fn grant(entry: &Acl) -> AclGrant {
    let (scheme, id) = match &entry.id {
        AclId::WorldAnyone => ("world", "anyone"),
        AclId::Other { scheme, id } => (scheme.as_str(), id.as_str()),
    };
    let permissions = u8::try_from(entry.perms & Perms::ALL).unwrap_or(0);
    AclGrant { scheme: scheme.to_owned(), id: id.to_owned(), permissions }
}

fn entry(grant: &AclGrant) -> Acl {
    Acl { perms: i32::from(grant.permissions), id: id(&grant.scheme, &grant.id) }
}

/// [`AclId::WorldAnyone`] is sent as `world` and `anyone` too.
fn id(scheme: &str, id: &str) -> AclId {
    match (scheme, id) {
        ("world", "anyone") => AclId::WorldAnyone,
        (scheme, id) => AclId::Other { scheme: scheme.to_owned(), id: id.to_owned() },
    }
}

fn owned(names: &[Arc<str>]) -> Vec<String> {
    names.iter().map(|name| name.as_ref().to_owned()).collect()
}

fn node(data: Vec<u8>, stat: &Stat) -> Node {
    Node {
        data,
        czxid: Zxid(stat.czxid),
        mzxid: Zxid(stat.mzxid),
        pzxid: Zxid(stat.pzxid),
        ctime_ms: stat.ctime,
        mtime_ms: stat.mtime,
        version: stat.version,
        owner: SessionId(stat.ephemeral_owner),
        children: usize::try_from(stat.num_children).unwrap_or(0),
    }
}

fn written(stat: &Stat) -> Written {
    Written { version: stat.version, mzxid: Zxid(stat.mzxid), mtime_ms: stat.mtime }
}

fn write_op(step: TxnStep, acl: &LockAcl, signs: bool) -> WriteOp {
    let at = |path, version: Option<i32>| VersionedPath { path, version: version.unwrap_or(-1) };
    match step {
        TxnStep::Check { path, version } => WriteOp::Check(at(path, version)),
        TxnStep::Create { path, data, kind } => {
            WriteOp::Create(Create { acl: list_of(acl, &path, kind, signs), ..Create::new(path, data, mode(kind)) })
        }
        TxnStep::Write { path, data, version } => {
            WriteOp::SetData(SetData { path, data: Some(data.into()), version: version.unwrap_or(-1) })
        }
        TxnStep::Delete { path, version } => WriteOp::Delete(at(path, version)),
    }
}

/// A node of a read of several.
fn node_read(result: OpResult) -> Result<Node, RequestError> {
    match result {
        OpResult::Data { data, stat } => Ok(node(data.unwrap_or_default().into(), &stat)),
        OpResult::Failed(error) => Err(RequestError::Refused(error)),
        _ => Err(RequestError::Refused(ErrorCode::MarshallingError)),
    }
}

/// What an operation of a transaction did.
fn done_by(result: OpResult) -> Done {
    match result {
        // Servers with ZOOKEEPER-4026 or ZOOKEEPER-4667 return −1.
        OpResult::Created { stat, .. } => {
            Done::Created(stat.filter(|stat| stat.czxid != -1).map(|stat| Zxid(stat.czxid)))
        }
        OpResult::DataSet(stat) => Done::Written(written(&stat)),
        OpResult::Deleted => Done::Deleted,
        _ => Done::Checked,
    }
}
