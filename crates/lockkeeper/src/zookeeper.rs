//! The ensemble over TCP, by the crate `zookeeper-client`.
//!
//! That crate sends a request when its future is made and never reorders; here futures are made on their first poll, so the
//! order of first polls is the order on the wire. Paths get the connect string's chroot in front here and lose it nowhere
//! else: the client's own chroot cannot make itself when it is missing.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder, ExponentialBuilder, Retryable};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::{Loss, SessionId, Zxid};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;
use zookeeper_client as zk;

use crate::Error;
use crate::acl::LockAcl;
use crate::ensemble::{
    Children, Connection, Done, Ensemble, Fault, Fired, Kind, Network, Node, Opened, Reply, Step, Undone, Watcher,
    Written,
};
use crate::epoch;
use crate::keeper::Reconnect;
use crate::servers::Servers;

/// The longest session timeout that the protocol can ask for: milliseconds in 32 bits.
const LONGEST_SESSION: Duration = Duration::from_millis(i32::MAX as u64);

/// What mode and access list a node is made with.
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

/// Whoever has the creator's credential may do anything, anyone may look.
const VISIBLE: [zk::Acl; 2] =
    [zk::Acl::new_const(zk::Permission::ALL, "auth", ""), zk::Acl::new_const(zk::Permission::READ, "world", "anyone")];

/// Opens sessions with a list of servers.
#[derive(Debug)]
pub(crate) struct ZooKeeper {
    pub(crate) servers: Servers,
    pub(crate) session_timeout: Duration,
    /// How often to try again, if not as often as there is time for.
    pub(crate) reconnect: Option<Reconnect>,
    /// What this process proves itself with, each for a scheme.
    pub(crate) credentials: Vec<(String, Vec<u8>)>,
    /// Who may use the nodes that are made.
    pub(crate) acl: LockAcl,
    /// What must come to its end, also when nobody waits for it any more.
    pub(crate) tasks: TaskTracker,
}

impl Network for ZooKeeper {
    fn open(&self, patience: Duration) -> BoxFuture<'_, Result<Opened, Error>> {
        async move {
            let started = tokio::time::Instant::now();
            let attempt = || self.connect();
            let retried = attempt.retry(self.rounds()).when(|error| !matches!(error, zk::Error::AuthFailed));
            // A part of the patience is kept for finding out why.
            let questions = (patience / 4).min(Duration::from_millis(500));
            match tokio::time::timeout(patience - questions, retried).await {
                Ok(Ok(client)) => Ok(opened(client, self.servers.chroot().to_owned(), self.acl)),
                Ok(Err(zk::Error::AuthFailed)) => Err(Error::AuthFailed { servers: self.servers.to_string() }),
                // All tries used up, or all the time.
                Ok(Err(_)) => Err(self.unreachable(started.elapsed(), questions).await),
                Err(_) => Err(self.unreachable(patience, questions).await),
            }
        }
        .boxed()
    }
}

impl ZooKeeper {
    /// The pauses between tries. Every server was tried once before a retry, so they are between whole rounds.
    fn rounds(&self) -> Box<dyn Iterator<Item = Duration> + Send + Sync> {
        match self.reconnect {
            Some(Reconnect { retries, delay }) => {
                Box::new(ConstantBuilder::new().with_delay(delay).with_max_times(retries as usize).build())
            }
            None => Box::new(
                ExponentialBuilder::default()
                    .with_min_delay(Duration::from_millis(20))
                    .with_max_delay(Duration::from_secs(1))
                    .with_jitter()
                    .without_max_times()
                    .build(),
            ),
        }
    }

    async fn unreachable(&self, waited: Duration, questions: Duration) -> Error {
        Error::Unreachable { servers: self.servers.to_string(), waited, detail: self.servers.diagnose(questions).await }
    }

    /// Tries every server once. Dropping the future leaves no session behind.
    ///
    /// In a task of its own: given up between the server's opening of the session and its answer, the session would stay
    /// until it expires, and with short timeouts call after call would leave one.
    async fn connect(&self) -> Result<zk::Client, zk::Error> {
        let timeout = self.session_timeout.min(LONGEST_SESSION);
        let mut connector = zk::Client::connector().with_session_timeout(timeout).with_fail_eagerly();
        for (scheme, credential) in &self.credentials {
            connector = connector.with_auth(scheme, credential);
        }
        let endpoints = self.servers.endpoints();
        #[cfg(feature = "tls")]
        let tls = self.servers.tls().cloned();
        let (sender, connected) = oneshot::channel();
        self.tasks.spawn(async move {
            #[cfg(feature = "tls")]
            let connected = match tls {
                Some(tls) => connector.with_tls(tls.options()).secure_connect(&endpoints).await,
                None => connector.connect(&endpoints).await,
            };
            #[cfg(not(feature = "tls"))]
            let connected = connector.connect(&endpoints).await;
            if let Err(Ok(unwanted)) = sender.send(connected) {
                close(unwanted).await;
            }
        });
        connected.await.unwrap_or(Err(zk::Error::ClientClosed))
    }
}

/// Closes a session and waits until the server knows, or it has expired.
async fn close(client: zk::Client) {
    let mut states = client.state_watcher();
    drop(client);
    while let zk::SessionState::Disconnected | zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly =
        states.changed().await
    {}
}

/// Wraps a connected client and forwards what its connection goes through.
fn opened(client: zk::Client, chroot: String, acl: LockAcl) -> Opened {
    let timeout = client.session_timeout();
    let (sender, connection) = mpsc::unbounded_channel();
    let mut states = client.state_watcher();
    tokio::spawn(async move {
        loop {
            let change = match states.changed().await {
                zk::SessionState::Disconnected => Connection::Lost,
                zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly => Connection::Back,
                zk::SessionState::Expired => Connection::Over(Loss::SessionExpired),
                zk::SessionState::AuthFailed => Connection::Over(Loss::AuthFailed),
                zk::SessionState::Closed => Connection::Over(Loss::Closed),
            };
            if sender.send(change).is_err() || matches!(change, Connection::Over(_)) {
                return;
            }
        }
    });
    let session = SessionId(client.session_id().0);
    Opened {
        ensemble: Arc::new(Client { client: Arc::new(client), chroot, session, acl }),
        timeout,
        connection,
        anchor: None,
    }
}

struct Client {
    client: Arc<zk::Client>,
    chroot: String,
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

    /// Runs `operation` on the client and the full path, from the reply's first poll on.
    fn reply<T, F, Fut>(&self, path: &str, operation: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<zk::Client>, String) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        self.reply_at(self.full(path), operation)
    }

    /// The same on a path as the server knows it.
    fn reply_at<T, F, Fut>(&self, path: String, operation: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<zk::Client>, String) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        let client = self.client.clone();
        async move {
            match operation(client, path).await {
                Ok(reply) => Ok(reply),
                Err(error) => Err(told(&error).await),
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
        let chroot = (path.rfind('/') == Some(0) && !self.chroot.is_empty()).then(|| self.chroot.clone());
        self.reply(path, move |client, path| async move {
            let mut created = client.create(&path, &data, &options).await;
            // Right below the chroot only the chroot itself can be missing. It stays: an operator named it.
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
        let client = self.client.clone();
        let transaction = async move {
            let mut writer = client.new_multi_writer();
            for (step, path) in steps.iter().zip(&full) {
                match step {
                    Step::Check { version, .. } => writer.add_check_version(path, version.unwrap_or(-1)),
                    Step::Create { data, kind, .. } => writer.add_create(path, data, &options(*kind, acl)),
                    Step::Write { data, version, .. } => writer.add_set_data(path, data, *version),
                    Step::Delete { version, .. } => writer.add_delete(path, *version),
                }?;
            }
            let done = writer.commit().await?.into_iter().map(|done| match done {
                zk::MultiWriteResult::Create { stat, .. } => {
                    Done::Created((!stat.is_invalid()).then_some(Zxid(stat.czxid)))
                }
                zk::MultiWriteResult::SetData { stat } => Done::Written(written(&stat)),
                zk::MultiWriteResult::Delete => Done::Deleted,
                // A check; the client may come to know of more.
                _ => Done::Checked,
            });
            Ok(done.collect())
        };
        async move {
            match transaction.await {
                Ok(done) => Ok(done),
                Err(error) => {
                    let (step, error) = match error {
                        zk::MultiWriteError::OperationFailed { index, source } => (Some(index), source),
                        zk::MultiWriteError::RequestFailed { source } => (None, source),
                    };
                    Err(Undone { step, fault: told(&error).await })
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
            Ok((names, fired(watcher)))
        })
    }

    fn read(&self, path: &str) -> Reply<Node> {
        self.reply(path, |client, path| async move {
            let (data, stat) = client.get_data(&path).await?;
            Ok(node(data, &stat))
        })
    }

    fn read_and_watch(&self, path: &str) -> Reply<(Node, Watcher)> {
        self.reply(path, |client, path| async move {
            let (data, stat, watcher) = client.get_and_watch_data(&path).await?;
            Ok((node(data, &stat), fired(watcher)))
        })
    }

    fn epoch(&self) -> Reply<(Option<Node>, Watcher)> {
        self.reply_at(epoch::NODE.to_owned(), |client, path| async move {
            loop {
                // Mostly it is not there, and this is all that is asked.
                let (stat, watcher) = client.check_and_watch_stat(&path).await?;
                if stat.is_none() {
                    return Ok((None, fired(watcher)));
                }
                match client.get_and_watch_data(&path).await {
                    Ok((data, stat, watcher)) => return Ok((Some(node(data, &stat)), fired(watcher))),
                    Err(zk::Error::NoNode) => {}
                    Err(error) => return Err(error),
                }
            }
        })
    }

    fn set_epoch(&self, data: Vec<u8>, version: Option<i32>) -> Reply<()> {
        // Everybody must be able to read it, or nobody else gets a token.
        let acl = if self.acl == LockAcl::Open { LockAcl::Open } else { LockAcl::Visible };
        let stays = options(Kind::Persistent, acl);
        self.reply_at(epoch::NODE.to_owned(), move |client, path| async move {
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

    fn prove(&self) -> Reply<()> {
        // A delete that cannot succeed. The leader proposes a failed write like any other, so that all servers count it
        // (PrepRequestProcessor makes an error transaction of it), and it leaves nothing and wakes nobody. Should anybody
        // make the node, the version protects it.
        self.reply(&format!("/{NOBODYS}"), |client, path| async move {
            match client.delete(&path, Some(i32::MAX)).await {
                Ok(()) | Err(zk::Error::NoNode | zk::Error::BadVersion | zk::Error::NoAuth | zk::Error::NotEmpty) => {
                    Ok(())
                }
                Err(error) => Err(error),
            }
        })
    }

    fn sync(&self, path: &str) -> Reply<()> {
        self.reply(path, |client, path| async move { client.sync(&path).await })
    }
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

fn fired(watcher: zk::OneshotWatcher) -> Watcher {
    async move {
        match watcher.changed().await.event_type {
            zk::EventType::NodeDeleted => Fired::Gone,
            zk::EventType::Session => Fired::SessionOver,
            _ => Fired::Changed,
        }
    }
    .boxed()
}

/// What an error means, told after a pause where a server in trouble would be asked as fast as it answers.
async fn told(error: &zk::Error) -> Fault {
    let fault = fault(error);
    if fault == Fault::ConnectionLoss && connection_stands(error) {
        tracing::debug!(%error, "the server is in trouble; trying again");
        tokio::time::sleep(TROUBLED).await;
    }
    fault
}

/// What an error of the client means for the protocol.
fn fault(error: &zk::Error) -> Fault {
    match error {
        zk::Error::NoNode => Fault::NoNode,
        zk::Error::NodeExists => Fault::NodeExists,
        zk::Error::BadVersion => Fault::BadVersion,
        zk::Error::SessionExpired | zk::Error::ClientClosed | zk::Error::AuthFailed => Fault::SessionOver,
        zk::Error::Unimplemented => Fault::Unsupported,
        // The server looked at the request and said no, and would say so again.
        zk::Error::NoAuth
        | zk::Error::InvalidAcl
        | zk::Error::NoChildrenForEphemerals
        | zk::Error::NotEmpty
        | zk::Error::QuotaExceeded
        | zk::Error::BadArguments(_) => Fault::Refused(error.to_string()),
        // Everything else says that something went wrong, not that the request is wrong: a server that loses its leader, or is
        // shutting down, answers with a marshalling error, a moved session or a code of its own. Taken for a refusal, that
        // would leave a node behind for good. So it may have happened, and is looked for again.
        _ => Fault::ConnectionLoss,
    }
}

/// The name of a node that is not there.
const NOBODYS: &str = "lockkeeper-heartbeat";

/// How long to wait before an operation is tried again on a connection that still stands, so that a server in trouble is not
/// asked as fast as it answers.
const TROUBLED: Duration = Duration::from_millis(50);

/// Whether the connection still stands although the operation has failed with [`Fault::ConnectionLoss`].
fn connection_stands(error: &zk::Error) -> bool {
    !matches!(error, zk::Error::ConnectionLoss | zk::Error::Custom(_) | zk::Error::UnexpectedError(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A delete answered with one of these left its node at the head of the queue for as long as the session lived.
    #[test]
    fn trouble_of_a_server_is_no_refusal() {
        for error in [
            zk::Error::MarshallingError,
            zk::Error::SessionMoved,
            zk::Error::NotReadOnly,
            zk::Error::Throttled,
            zk::Error::UnexpectedErrorCode(-1),
            zk::Error::RuntimeInconsistent,
            zk::Error::Timeout,
        ] {
            assert_eq!(fault(&error), Fault::ConnectionLoss, "{error}");
            assert!(connection_stands(&error), "{error}");
        }
        assert!(!connection_stands(&zk::Error::ConnectionLoss));
        assert!(matches!(fault(&zk::Error::NoAuth), Fault::Refused(_)));
    }
}
