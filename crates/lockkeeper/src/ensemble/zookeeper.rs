//! The ensemble over TCP, with the crate `zookeeper-client`.
//!
//! That crate sends a request when its future is created, and never reorders requests. Here the futures are created on
//! the first poll, so the order of first polls is the order on the wire. Only this module adds and removes the chroot
//! of the connect string: the client crate's own chroot can neither be checked nor created if it is missing.

mod carrier;
mod dial;
mod fault;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::{SessionId, Zxid};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use zookeeper_client as zk;

use self::carrier::{Carried, Carrier};
pub(crate) use self::dial::Locate;
#[cfg(feature = "embedded")]
pub(crate) use self::dial::Located;
use self::dial::{Dial, pauses};
use self::fault::{at_node, told};
use crate::acl::LockAcl;
use crate::ensemble::servers::Servers;
use crate::ensemble::{
    Children, Copies, Done, EPOCH_NODE, Ensemble, Grant, Kind, Network, Node, Opened, Reconnect, Reply, Step, Undone,
    Watcher, Whole, Written,
};
use crate::error::SessionError;

/// The mode and the access list of a new node.
fn options(kind: Kind, acl: LockAcl) -> zk::CreateOptions<'static> {
    let mode = match kind {
        Kind::EphemeralSequential => zk::CreateMode::EphemeralSequential,
        Kind::Ephemeral => zk::CreateMode::Ephemeral,
        Kind::Container => zk::CreateMode::Container,
        Kind::Persistent => zk::CreateMode::Persistent,
    };
    mode.with_acls(match acl {
        LockAcl::Open => zk::Acls::anyone_all(),
        LockAcl::Visible => zk::Acls::new(const { &VISIBLE }),
        LockAcl::Private => zk::Acls::creator_all(),
    })
}

/// Clients with the creator's credential may do anything; all others may read.
const VISIBLE: [zk::Acl; 2] =
    [zk::Acl::new_const(zk::Permission::ALL, "auth", ""), zk::Acl::new_const(zk::Permission::READ, "world", "anyone")];

/// The shortest pause between two rounds of tries.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// Opens sessions with a list of servers.
pub(crate) struct ZooKeeper {
    pub(crate) servers: Servers,
    pub(crate) session_timeout: Duration,
    /// How often to retry; `None` means as often as there is time.
    pub(crate) reconnect: Option<Reconnect>,
    /// The credentials, one for each scheme.
    pub(crate) credentials: Vec<(String, Vec<u8>)>,
    /// The access list of new nodes.
    pub(crate) acl: LockAcl,
    /// Whether a missing chroot is created. If not, no session is opened.
    pub(crate) create_chroot: bool,
    /// Tasks that must finish even if no caller waits for them any more.
    pub(crate) tasks: TaskTracker,
    /// Finds the server before each connection, instead of `servers`.
    pub(crate) locate: Option<Arc<dyn Locate>>,
}

/// Why one try to open a session failed.
enum Refusal {
    /// The servers refused it or could not be reached.
    Connecting(zk::Error),
    /// Another try would fail too.
    Final(SessionError),
}

/// A connected client, how it was connected, and its task.
type Connected = (Dial, zk::Client, AbortHandle);

impl From<zk::Error> for Refusal {
    fn from(error: zk::Error) -> Self {
        Refusal::Connecting(error)
    }
}

impl Network for ZooKeeper {
    fn open(&self, patience: Duration) -> BoxFuture<'_, Result<Opened, SessionError>> {
        async move {
            let started = Instant::now();
            let mut tries = pin!(self.tries(started, patience));
            let told = |tried: Result<_, SessionError>| match tried {
                Ok((dial, client, task)) => Ok(self.opened(dial, client, task)),
                Err(error) => Err(error),
            };
            // The diagnosis runs in parallel with the last tries, so that a server that starts meanwhile is used.
            let questions = (patience / 4).min(Duration::from_millis(500));
            let tried_early = tokio::select! {
                biased;
                tried = &mut tries => Some(tried),
                () = tokio::time::sleep(patience - questions) => None,
            };
            match tried_early {
                Some(Some(tried)) => return told(tried),
                // All retries are used up before the deadline.
                Some(None) => return Err(self.unreachable(started.elapsed(), self.servers.diagnose(questions).await)),
                None => {}
            }
            let diagnosed = async {
                tokio::join!(self.servers.diagnose(questions), tokio::time::sleep_until(started + patience)).0
            };
            let mut diagnosed = pin!(diagnosed);
            tokio::select! {
                biased;
                tried = &mut tries => match tried {
                    Some(tried) => told(tried),
                    None => Err(self.unreachable(patience, diagnosed.await)),
                },
                detail = &mut diagnosed => Err(self.unreachable(patience, detail)),
            }
        }
        .boxed()
    }

    fn servers(&self) -> String {
        self.servers.to_string()
    }
}

impl ZooKeeper {
    /// Tries all servers, round after round, until one opens a session or another try would fail too; `None` if the
    /// retries are used up.
    async fn tries(&self, started: Instant, patience: Duration) -> Option<Result<Connected, SessionError>> {
        let dial = self.dial();
        let mut pauses = self.rounds();
        loop {
            match self.try_once(&dial).await {
                Ok(connected) => return Some(Ok(connected)),
                Err(Refusal::Final(error)) => return Some(Err(error)),
                Err(Refusal::Connecting(zk::Error::AuthFailed)) => {
                    return Some(Err(SessionError::AuthFailed { servers: self.servers.to_string() }));
                }
                Err(Refusal::Connecting(error)) => tracing::debug!(%error, "no server opened a session"),
            }
            let left = patience.saturating_sub(started.elapsed());
            // The nearer the deadline, the shorter the pauses, so that a server that starts just before it is found.
            let pause = pauses.next()?;
            let pause = if self.reconnect.is_some() { pause } else { pause.min((left / 2).max(SHORTEST_PAUSE)) };
            tokio::time::sleep(pause).await;
        }
    }

    /// Tries every server once; once more if a server grants so short a timeout that pings would be too rare.
    async fn try_once(&self, dial: &Dial) -> Result<Connected, Refusal> {
        let (mut dial, mut located) = (dial.clone(), dial.located().await.map_err(Refusal::Final)?);
        let (mut client, mut task) = located.connect(None).await?;
        if !dial.suits(client.session_timeout()) {
            dial.session_timeout = client.session_timeout();
            located.session_timeout = dial.session_timeout;
            self.tasks.spawn(dial::close(client));
            (client, task) = located.connect(None).await?;
        }
        match self.check_chroot(&client).await {
            Ok(()) => Ok((dial, client, task)),
            Err(refusal) => {
                dial::close(client).await;
                Err(refusal)
            }
        }
    }

    /// The pauses between rounds. Every server is tried once before a retry, so the pauses are between complete rounds.
    fn rounds(&self) -> Box<dyn Iterator<Item = Duration> + Send + Sync> {
        match self.reconnect {
            Some(Reconnect { retries, delay }) => {
                Box::new(ConstantBuilder::new().with_delay(delay).with_max_times(retries as usize).build())
            }
            None => Box::new(pauses().build()),
        }
    }

    fn unreachable(&self, waited: Duration, detail: String) -> SessionError {
        SessionError::Unreachable { servers: self.servers.to_string(), waited, detail }
    }

    fn dial(&self) -> Dial {
        let ZooKeeper { servers, session_timeout, credentials, tasks, locate, .. } = self;
        let (servers, credentials, tasks) = (servers.clone(), credentials.clone(), tasks.clone());
        Dial { servers, session_timeout: *session_timeout, credentials, tasks, locate: locate.clone() }
    }

    /// Fails if the chroot does not exist. A typing mistake in it would select other locks than those of all other
    /// clients.
    ///
    /// Costs one round trip if there is a chroot.
    async fn check_chroot(&self, client: &zk::Client) -> Result<(), Refusal> {
        let chroot = self.servers.chroot();
        if chroot.is_empty() || self.create_chroot {
            return Ok(());
        }
        // Sync first: this server may be stale if the chroot was just created. At a leader that can still miss the
        // create; then the user repeats the command.
        let (synced, stat) = tokio::join!(biased; client.sync(chroot), client.check_stat(chroot));
        synced?;
        match stat? {
            Some(_) => Ok(()),
            None => {
                let (servers, chroot) = (self.servers.endpoints(), chroot.to_owned());
                Err(Refusal::Final(SessionError::NoChroot { servers, chroot }))
            }
        }
    }

    /// Wraps a connected client and forwards the changes of its connection.
    fn opened(&self, dial: Dial, client: zk::Client, task: AbortHandle) -> Opened {
        let (session, timeout, states) =
            (SessionId(client.session_id().0), client.session_timeout(), client.state_watcher());
        let (sender, connection) = mpsc::unbounded_channel();
        let (chroot, acl, create_chroot) = (self.servers.chroot().to_owned(), self.acl, self.create_chroot);
        let carrier = Carrier::new(client, task);
        tokio::spawn(dial.follow(Arc::downgrade(&carrier), states, timeout, sender));
        let client = Client { carrier, chroot, create_chroot, session, acl };
        Opened { ensemble: Arc::new(client), timeout, connection, anchor: None }
    }
}

struct Client {
    carrier: Arc<Carrier>,
    chroot: String,
    create_chroot: bool,
    session: SessionId,
    acl: LockAcl,
}

impl Client {
    /// The path as the server knows it.
    fn full(&self, path: &str) -> String {
        match (self.chroot.as_str(), path) {
            ("", path) => path.to_owned(),
            (chroot, "/") => chroot.to_owned(),
            (chroot, path) => format!("{chroot}{path}"),
        }
    }

    /// The chroot, if it may be created and can be the missing parent of a node to create.
    fn missing_chroot(&self, path: &str) -> Option<String> {
        // Directly below the chroot, only the chroot itself can be missing.
        let directly_below = path.rfind('/') == Some(0) && !self.chroot.is_empty();
        (directly_below && self.create_chroot).then(|| self.chroot.clone())
    }

    /// Runs `operation` on the client and the full path when the reply is first polled.
    fn reply<T, F, Fut>(&self, path: &str, operation: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Carried>, String) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        self.reply_at(self.full(path), operation)
    }

    /// As `reply`, with a path as the server knows it.
    fn reply_at<T, F, Fut>(&self, path: String, operation: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Carried>, String) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        let carrier = self.carrier.clone();
        async move {
            let carried = carrier.client().await?;
            match carried.count(operation(Arc::clone(&carried), path.clone())).await {
                Ok(reply) => Ok(reply),
                Err(error) => Err(at_node(told(&error).await, &path)),
            }
        }
        .boxed()
    }
}

impl Ensemble for Client {
    fn session(&self) -> SessionId {
        self.session
    }

    fn create(&self, path: &str, data: Vec<u8>, kind: Kind) -> Reply<(String, Zxid)> {
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        let (options, chroots) = (options(kind, self.acl), options(Kind::Persistent, self.acl));
        let chroot = self.missing_chroot(path);
        self.reply(path, move |client, path| async move {
            let mut created = client.create(&path, &data, &options).await;
            // Persistent, because an operator named it.
            if let (Err(zk::Error::NoNode), Some(chroot)) = (&created, chroot) {
                client.mkdir(&chroot, &chroots).await?;
                created = client.create(&path, &data, &options).await;
            }
            let (stat, sequence) = created?;
            let name = match kind {
                Kind::EphemeralSequential => format!("{name}{sequence}"),
                Kind::Ephemeral | Kind::Container | Kind::Persistent => name,
            };
            Ok((name, Zxid(stat.czxid)))
        })
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        self.reply(path, move |client, path| async move { client.delete(&path, version).await })
    }

    fn write(&self, path: &str, data: Vec<u8>, version: Option<i32>) -> Reply<Written> {
        self.reply(path, move |client, path| async move {
            let stat = client.set_data(&path, &data, version).await?;
            Ok(written(&stat))
        })
    }

    fn transact(&self, steps: Vec<Step>) -> Reply<Vec<Done>, Undone> {
        let acl = self.acl;
        let full: Vec<String> = steps.iter().map(|step| self.full(step.path())).collect();
        let carrier = self.carrier.clone();
        async move {
            let client = carrier.client().await?;
            match client.count(transaction(&client, &steps, &full, acl)).await {
                Ok(done) => Ok(done),
                Err(error) => {
                    let (step, error) = match error {
                        zk::MultiWriteError::OperationFailed { index, source } => (Some(index), source),
                        zk::MultiWriteError::RequestFailed { source } => (None, source),
                    };
                    let fault = told(&error).await;
                    let refused_at = step.and_then(|step| full.get(step));
                    Err(Undone { step, fault: refused_at.map_or(fault.clone(), |path| at_node(fault, path)) })
                }
            }
        }
        .boxed()
    }

    fn list(&self, path: &str) -> Reply<Children> {
        self.reply(path, |client, path| async move {
            let (names, stat) = client.get_children(&path).await?;
            Ok(Children { names, data_len: usize::try_from(stat.data_length).unwrap_or(0) })
        })
    }

    fn list_and_watch(&self, path: &str) -> Reply<(Vec<String>, Watcher)> {
        self.reply(path, |client, path| async move {
            let (names, watcher) = client.list_and_watch_children(&path).await?;
            Ok((names, client.watching(&path, watcher).once()))
        })
    }

    fn read(&self, path: &str) -> Reply<Node> {
        self.reply(path, |client, path| async move {
            let (data, stat) = client.get_data(&path).await?;
            Ok(node(data, &stat))
        })
    }

    fn read_and_watch(&self, path: &str) -> Reply<(Node, Watcher)> {
        let carrier = Arc::downgrade(&self.carrier);
        self.reply(path, |client, path| async move {
            let (data, stat, watcher) = client.get_and_watch_data(&path).await?;
            Ok((node(data, &stat), client.watching(&path, watcher).of_node(carrier, path, &stat)))
        })
    }

    fn epoch(&self) -> Reply<(Option<Node>, Watcher)> {
        self.reply_at(EPOCH_NODE.to_owned(), |client, path| async move {
            loop {
                // Usually it does not exist, and this is the only request.
                let (stat, watcher) = client.check_and_watch_stat(&path).await?;
                if stat.is_none() {
                    return Ok((None, client.watching(&path, watcher).once()));
                }
                match client.get_and_watch_data(&path).await {
                    Ok((data, stat, watcher)) => {
                        return Ok((Some(node(data, &stat)), client.watching(&path, watcher).once()));
                    }
                    Err(zk::Error::NoNode) => {}
                    Err(error) => return Err(error),
                }
            }
        })
    }

    fn set_epoch(&self, data: Vec<u8>, version: Option<i32>) -> Reply<()> {
        // All clients must be able to read it; without it they get no token.
        let acl = if self.acl == LockAcl::Open { LockAcl::Open } else { LockAcl::Visible };
        let stays = options(Kind::Persistent, acl);
        self.reply_at(EPOCH_NODE.to_owned(), move |client, path| async move {
            if version.is_some() {
                return client.set_data(&path, &data, version).await.map(drop);
            }
            match client.create(&path, &data, &stays).await {
                Err(zk::Error::NoNode) => {
                    let (above, _) = path.rsplit_once('/').unwrap_or_default();
                    client.mkdir(above, &stays).await?;
                    client.create(&path, &data, &stays).await.map(drop)
                }
                made => made.map(drop),
            }
        })
    }

    fn copies(&self) -> Option<&dyn Copies> {
        Some(self)
    }

    fn prove(&self) -> Reply<()> {
        // A delete that cannot succeed. The leader proposes a failed write like any other, so a majority orders it
        // (PrepRequestProcessor turns it into an error transaction). It leaves nothing behind and triggers no watch. If
        // a client creates the node, the version protects it.
        self.reply(&format!("/{NOBODYS}"), |client, path| async move {
            match client.delete(&path, Some(i32::MAX)).await {
                Ok(()) | Err(zk::Error::NoNode | zk::Error::BadVersion | zk::Error::NoAuth | zk::Error::NotEmpty) => {
                    Ok(())
                }
                Err(error) => Err(error),
            }
        })
    }
}

impl Copies for Client {
    fn read_whole(&self, path: &str) -> Reply<Option<Whole>> {
        self.reply(path, |client, path| async move {
            let ((data, stat), (acl, later)) =
                futures_util::future::try_join(client.get_data(&path), client.get_acl(&path)).await?;
            let same = (stat.czxid, stat.version, stat.aversion) == (later.czxid, later.version, later.aversion);
            Ok(same.then(|| Whole {
                data,
                acl: acl.iter().map(grant).collect(),
                ephemeral: stat.ephemeral_owner != 0,
                czxid: Zxid(stat.czxid),
                latest: Zxid(later.mzxid.max(later.pzxid)),
            }))
        })
    }

    fn create_whole(&self, path: &str, whole: Whole) -> Reply<()> {
        let chroot = self.missing_chroot(path);
        let chroots = options(Kind::Persistent, self.acl);
        self.reply(path, move |client, path| async move {
            let Whole { data, acl, .. } = whole;
            let acl: Vec<_> = acl.iter().map(entry).collect();
            let options = zk::CreateMode::Persistent.with_acls(zk::Acls::new(&acl));
            match (client.create(&path, &data, &options).await, chroot) {
                (Err(zk::Error::NoNode), Some(chroot)) => {
                    client.mkdir(&chroot, &chroots).await?;
                    client.create(&path, &data, &options).await.map(drop)
                }
                (made, _) => made.map(drop),
            }
        })
    }

    fn replace_whole(&self, path: &str, whole: Whole) -> Reply<()> {
        self.reply(path, move |client, path| async move {
            let Whole { data, acl, .. } = whole;
            client.set_data(&path, &data, None).await?;
            let acl: Vec<_> = acl.iter().map(entry).collect();
            client.set_acl(&path, &acl, None).await.map(drop)
        })
    }
}

/// Each permission and its bit in ZooKeeper's protocol.
const PERMISSIONS: [(zk::Permission, u8); 5] = [
    (zk::Permission::READ, 1),
    (zk::Permission::WRITE, 2),
    (zk::Permission::CREATE, 4),
    (zk::Permission::DELETE, 8),
    (zk::Permission::ADMIN, 16),
];

fn grant(entry: &zk::Acl) -> Grant {
    let had = PERMISSIONS.iter().filter(|(permission, _)| entry.permission().has(*permission));
    let permissions = had.fold(0, |bits, (_, bit)| bits | bit);
    Grant { scheme: entry.scheme().to_owned(), id: entry.id().to_owned(), permissions }
}

fn entry(grant: &Grant) -> zk::Acl {
    let had = PERMISSIONS.iter().filter(|(_, bit)| grant.permissions & bit != 0);
    let permission = had.fold(zk::Permission::NONE, |all, (permission, _)| all | *permission);
    zk::Acl::new(permission, zk::AuthId::new(&grant.scheme, &grant.id))
}

fn node(data: Vec<u8>, stat: &zk::Stat) -> Node {
    Node {
        data,
        czxid: Zxid(stat.czxid),
        mzxid: Zxid(stat.mzxid),
        ctime_ms: stat.ctime,
        mtime_ms: stat.mtime,
        version: stat.version,
        owner: SessionId(stat.ephemeral_owner),
        children: usize::try_from(stat.num_children).unwrap_or(0),
    }
}

fn written(stat: &zk::Stat) -> Written {
    Written { version: stat.version, mzxid: Zxid(stat.mzxid), mtime_ms: stat.mtime }
}

/// Sends a transaction and returns what its steps did. `full` are their paths as the server knows them.
async fn transaction(
    client: &zk::Client,
    steps: &[Step],
    full: &[String],
    acl: LockAcl,
) -> Result<Vec<Done>, zk::MultiWriteError> {
    let mut writer = client.new_multi_writer();
    for (step, path) in steps.iter().zip(full) {
        match step {
            Step::Check { version, .. } => writer.add_check_version(path, version.unwrap_or(-1)),
            Step::Create { data, kind, .. } => writer.add_create(path, data, &options(*kind, acl)),
            Step::Write { data, version, .. } => writer.add_set_data(path, data, *version),
            Step::Delete { version, .. } => writer.add_delete(path, *version),
        }?;
    }
    let done = writer.commit().await?.into_iter().map(|done| match done {
        zk::MultiWriteResult::Create { stat, .. } => Done::Created((!stat.is_invalid()).then_some(Zxid(stat.czxid))),
        zk::MultiWriteResult::SetData { stat } => Done::Written(written(&stat)),
        zk::MultiWriteResult::Delete => Done::Deleted,
        // A check; the client crate may add more kinds.
        _ => Done::Checked,
    });
    Ok(done.collect())
}

/// The name of a node that does not exist.
const NOBODYS: &str = "lockkeeper-heartbeat";

#[cfg(test)]
#[cfg(feature = "embedded")]
mod tests;
