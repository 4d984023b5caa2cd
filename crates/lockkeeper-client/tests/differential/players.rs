//! The two clients behind one face, so that one script can be played by both.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_client::wire::{Acl, Create, CreateMode, ErrorCode, EventKind, OpResult, VersionedPath, WriteOp};
use lockkeeper_client::wire::{SetData, Stat};
use lockkeeper_client::{Client, Config, MultiError, PersistentWatcher, RequestError, Watcher};
use zookeeper_client as zk;

/// Long enough that no ping is sent while a script waits for nothing.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);

/// A change of the tree.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Create(String, CreateMode),
    Set(String, u32, Option<i32>),
    Delete(String, Option<i32>),
    Check(String, i32),
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Write(Write),
    Multi(Vec<Write>),
    Get(String, bool),
    Exists(String, bool),
    Children(String, bool),
    Watch(String, bool),
    Acl(String),
    Ephemerals(String),
    Count(String),
    Sync(String),
}

/// What both clients can do. Results and events are text, in which equal things are equal.
pub(crate) trait Player {
    /// Makes a call. A watch that it leaves is kept under this number.
    async fn call(&mut self, number: usize, call: &Call) -> String;
    /// Drops the watch with this number.
    fn unwatch(&mut self, number: usize);
    /// Drops all persistent watches.
    fn drop_persistent(&mut self);
    /// Returns the watches that have fired since the last call: their numbers, and what happened.
    async fn events(&mut self) -> Vec<String>;
    /// Returns whether a request was answered.
    async fn answers(&mut self, path: &str) -> bool;
}

/// Polls a future once.
async fn now<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn told(number: usize, kind: &str, path: &str) -> String {
    format!("watch {number}: {kind} {path}")
}

fn listed(mut names: Vec<String>) -> String {
    names.sort();
    names.join(" ")
}

/// What does not differ from run to run.
fn shown(stat: &Stat) -> String {
    format!(
        "{} {} {} {} {} {} {} {}",
        stat.version,
        stat.cversion,
        stat.aversion,
        stat.ephemeral_owner != 0,
        stat.data_length,
        stat.num_children,
        stat.mzxid > stat.czxid,
        stat.pzxid > stat.czxid
    )
}

/// Our client.
pub(crate) struct Ours {
    pub(crate) client: Client,
    once: Vec<(usize, Watcher)>,
    always: Vec<(usize, PersistentWatcher)>,
}

impl Ours {
    pub(crate) fn open(addr: SocketAddr) -> Ours {
        let (client, _) = Client::open(addr.to_string().parse().unwrap(), Config::new(TIMEOUT));
        Ours { client, once: Vec::new(), always: Vec::new() }
    }

    /// Makes a change, as a session without watches does.
    pub(crate) async fn write(&self, write: &Write) -> String {
        match write.clone() {
            Write::Create(path, mode) => self
                .client
                .create(&path, "", &[Acl::OPEN], mode)
                .await
                .map(|(path, stat)| format!("{path} {}", shown(&stat))),
            Write::Set(path, data, version) => {
                self.client.set(&path, data.to_string(), version).await.map(|stat| shown(&stat))
            }
            Write::Delete(path, version) => self.client.delete(&path, version).await.map(|()| String::new()),
            Write::Check(..) => unreachable!("only in transactions"),
        }
        .unwrap_or_else(|error| failed(&error))
    }

    /// Describes a node and everything below it.
    pub(crate) async fn tree(&self, path: &str) -> Vec<String> {
        let (mut found, mut open) = (Vec::new(), vec![path.to_owned()]);
        while let Some(path) = open.pop() {
            // A node of a session that ends may go meanwhile.
            let Ok((data, stat)) = self.client.get(&path).await else { continue };
            found.push(format!("{path} {data:?} {}", shown(&stat)));
            let Ok((names, _)) = self.client.children(&path).await else { continue };
            open.extend(names.iter().map(|name| format!("{path}/{name}")));
        }
        found.sort();
        found
    }
}

fn failed(error: &RequestError) -> String {
    match error {
        RequestError::Refused(code) => format!("{code:?}"),
        RequestError::ConnectionLoss => "ConnectionLoss".to_owned(),
        other => panic!("{other:?}"),
    }
}

fn op(write: &Write) -> WriteOp {
    match write.clone() {
        Write::Create(path, mode) => WriteOp::Create(Create::new(path, "", mode)),
        Write::Set(path, data, version) => {
            WriteOp::SetData(SetData { path, data: Some(data.to_string().into()), version: version.unwrap_or(-1) })
        }
        Write::Delete(path, version) => WriteOp::Delete(VersionedPath { path, version: version.unwrap_or(-1) }),
        Write::Check(path, version) => WriteOp::Check(VersionedPath { path, version }),
    }
}

impl Player for Ours {
    async fn call(&mut self, number: usize, call: &Call) -> String {
        let result = match call {
            Call::Write(write) => return self.write(write).await,
            Call::Multi(writes) => match self.client.multi(writes.iter().map(op).collect()).await {
                Ok(results) => Ok(results.iter().map(result).collect::<Vec<_>>().join("; ")),
                Err(MultiError::Operation { index, error }) => Ok(format!("{index} {error:?}")),
                Err(MultiError::Request(error)) => Err(error),
            },
            Call::Get(path, false) => {
                self.client.get(path).await.map(|(data, stat)| format!("{data:?} {}", shown(&stat)))
            }
            Call::Get(path, true) => {
                let (result, watcher) = self.client.get_and_watch(path).await;
                if result.is_ok() {
                    self.once.push((number, watcher));
                }
                result.map(|(data, stat)| format!("{data:?} {}", shown(&stat)))
            }
            Call::Exists(path, false) => {
                self.client.exists(path).await.map(|stat| format!("{:?}", stat.as_ref().map(shown)))
            }
            Call::Exists(path, true) => {
                let (result, watcher) = self.client.exists_and_watch(path).await;
                if result.is_ok() {
                    self.once.push((number, watcher));
                }
                result.map(|stat| format!("{:?}", stat.as_ref().map(shown)))
            }
            Call::Children(path, watch) => {
                let result = if *watch {
                    let (result, watcher) = self.client.children_and_watch(path).await;
                    if result.is_ok() {
                        self.once.push((number, watcher));
                    }
                    result
                } else {
                    self.client.children(path).await
                };
                result.map(|(names, stat)| {
                    format!("{} {}", listed(names.iter().map(|name| name.to_string()).collect()), shown(&stat))
                })
            }
            Call::Watch(path, recursive) => self.client.watch(path, *recursive).await.map(|watcher| {
                self.always.push((number, watcher));
                String::new()
            }),
            Call::Acl(path) => self.client.acl(path).await.map(|(acl, stat)| format!("{} {}", acl.len(), shown(&stat))),
            Call::Ephemerals(path) => {
                let paths = self.client.ephemerals(path).await;
                paths.map(|paths| listed(paths.iter().map(|path| path.to_string()).collect()))
            }
            Call::Count(path) => self.client.count_descendants(path).await.map(|count| count.to_string()),
            Call::Sync(path) => self.client.sync(path).await.map(|()| String::new()),
        };
        result.unwrap_or_else(|error| failed(&error))
    }

    fn unwatch(&mut self, number: usize) {
        self.once.retain(|(kept, _)| *kept != number);
        self.always.retain(|(kept, _)| *kept != number);
    }

    fn drop_persistent(&mut self) {
        self.always.clear();
    }

    async fn events(&mut self) -> Vec<String> {
        let name = |kind| match kind {
            EventKind::Created => "created",
            EventKind::Deleted => "deleted",
            EventKind::DataChanged => "changed",
            EventKind::ChildrenChanged => "children",
        };
        let mut fired = Vec::new();
        for (number, mut watcher) in std::mem::take(&mut self.once) {
            match now(&mut watcher).await {
                Some(event) => {
                    let event = event.expect("the session lives");
                    fired.push(told(number, name(event.kind), &event.path));
                }
                None => self.once.push((number, watcher)),
            }
        }
        for (number, watcher) in &mut self.always {
            while let Some(event) = now(&mut Box::pin(watcher.next())).await {
                let event = event.expect("the session lives");
                fired.push(told(*number, name(event.kind), &event.path));
            }
        }
        fired
    }

    async fn answers(&mut self, path: &str) -> bool {
        self.client.get(path).await.is_ok()
    }
}

fn result(result: &OpResult) -> String {
    match result {
        OpResult::Created { path, .. } => format!("create {path}"),
        OpResult::Deleted => "delete".to_owned(),
        OpResult::DataSet(stat) => format!("set {}", shown(stat)),
        OpResult::Checked => "check".to_owned(),
        other => panic!("{other:?}"),
    }
}

type Once = Pin<Box<dyn Future<Output = zk::WatchedEvent>>>;

/// The crate `zookeeper-client`.
pub(crate) struct Theirs {
    client: zk::Client,
    once: Vec<(usize, Once)>,
    always: Vec<(usize, zk::PersistentWatcher)>,
}

impl Theirs {
    pub(crate) async fn open(addr: SocketAddr) -> Theirs {
        let client = zk::Client::connector().with_session_timeout(TIMEOUT).connect(&addr.to_string()).await.unwrap();
        Theirs { client, once: Vec::new(), always: Vec::new() }
    }
}

fn stat(stat: &zk::Stat) -> String {
    shown(&Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        pzxid: stat.pzxid,
        version: stat.version,
        cversion: stat.cversion,
        aversion: stat.aversion,
        ephemeral_owner: stat.ephemeral_owner,
        data_length: stat.data_length,
        num_children: stat.num_children,
        ..Stat::default()
    })
}

/// Our name of their error.
fn their(error: &zk::Error) -> String {
    let code = match error {
        zk::Error::ConnectionLoss => return "ConnectionLoss".to_owned(),
        zk::Error::NoNode => ErrorCode::NoNode,
        zk::Error::NodeExists => ErrorCode::NodeExists,
        zk::Error::NotEmpty => ErrorCode::NotEmpty,
        zk::Error::BadVersion => ErrorCode::BadVersion,
        zk::Error::NoChildrenForEphemerals => ErrorCode::NoChildrenForEphemerals,
        zk::Error::RuntimeInconsistent => ErrorCode::RuntimeInconsistency,
        other => panic!("{other:?}"),
    };
    format!("{code:?}")
}

fn options(mode: CreateMode) -> zk::CreateOptions<'static> {
    let mode = match mode {
        CreateMode::Persistent => zk::CreateMode::Persistent,
        CreateMode::Ephemeral => zk::CreateMode::Ephemeral,
        CreateMode::PersistentSequential => zk::CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential => zk::CreateMode::EphemeralSequential,
        CreateMode::Container => zk::CreateMode::Container,
        other => panic!("{other:?}"),
    };
    mode.with_acls(zk::Acls::anyone_all())
}

impl Theirs {
    async fn write(&self, write: &Write) -> Result<String, zk::Error> {
        Ok(match write {
            Write::Create(path, mode) => {
                let (created, sequence) = self.client.create(path, b"", &options(*mode)).await?;
                let sequence = if mode.is_sequential() { sequence.to_string() } else { String::new() };
                format!("{path}{sequence} {}", stat(&created))
            }
            Write::Set(path, data, version) => {
                stat(&self.client.set_data(path, data.to_string().as_bytes(), *version).await?)
            }
            Write::Delete(path, version) => self.client.delete(path, *version).await.map(|()| String::new())?,
            Write::Check(..) => unreachable!("only in transactions"),
        })
    }

    async fn multi(&self, writes: &[Write]) -> Result<String, zk::MultiWriteError> {
        let mut multi = self.client.new_multi_writer();
        for write in writes {
            match write {
                Write::Create(path, mode) => multi.add_create(path, b"", &options(*mode))?,
                Write::Set(path, data, version) => multi.add_set_data(path, data.to_string().as_bytes(), *version)?,
                Write::Delete(path, version) => multi.add_delete(path, *version)?,
                Write::Check(path, version) => multi.add_check_version(path, *version)?,
            }
        }
        let results = multi.commit().await?.into_iter().map(|result| match result {
            zk::MultiWriteResult::Create { path, .. } => format!("create {path}"),
            zk::MultiWriteResult::Delete => "delete".to_owned(),
            zk::MultiWriteResult::SetData { stat: set } => format!("set {}", stat(&set)),
            _ => "check".to_owned(),
        });
        Ok(results.collect::<Vec<_>>().join("; "))
    }

    async fn called(&mut self, number: usize, call: &Call) -> Result<String, zk::Error> {
        let data = |data: Vec<u8>| bytes::Bytes::from(data);
        Ok(match call {
            Call::Write(write) => self.write(write).await?,
            Call::Multi(writes) => match self.multi(writes).await {
                Ok(results) => results,
                Err(zk::MultiWriteError::OperationFailed { index, source }) => format!("{index} {}", their(&source)),
                Err(zk::MultiWriteError::RequestFailed { source }) => return Err(source),
            },
            Call::Get(path, false) => {
                let (read, node) = self.client.get_data(path).await?;
                format!("{:?} {}", data(read), stat(&node))
            }
            Call::Get(path, true) => {
                let (read, node, watcher) = self.client.get_and_watch_data(path).await?;
                self.once.push((number, Box::pin(watcher.changed())));
                format!("{:?} {}", data(read), stat(&node))
            }
            Call::Exists(path, false) => format!("{:?}", self.client.check_stat(path).await?.as_ref().map(stat)),
            Call::Exists(path, true) => {
                let (node, watcher) = self.client.check_and_watch_stat(path).await?;
                self.once.push((number, Box::pin(watcher.changed())));
                format!("{:?}", node.as_ref().map(stat))
            }
            Call::Children(path, false) => {
                let (names, node) = self.client.get_children(path).await?;
                format!("{} {}", listed(names), stat(&node))
            }
            Call::Children(path, true) => {
                let (names, node, watcher) = self.client.get_and_watch_children(path).await?;
                self.once.push((number, Box::pin(watcher.changed())));
                format!("{} {}", listed(names), stat(&node))
            }
            Call::Watch(path, recursive) => {
                let mode =
                    if *recursive { zk::AddWatchMode::PersistentRecursive } else { zk::AddWatchMode::Persistent };
                let watcher = self.client.watch(path, mode).await?;
                self.always.push((number, watcher));
                String::new()
            }
            Call::Acl(path) => {
                let (acl, node) = self.client.get_acl(path).await?;
                format!("{} {}", acl.len(), stat(&node))
            }
            Call::Ephemerals(path) => listed(self.client.list_ephemerals(path).await?),
            Call::Count(path) => self.client.count_descendants_number(path).await?.to_string(),
            Call::Sync(path) => self.client.sync(path).await.map(|()| String::new())?,
        })
    }
}

impl Player for Theirs {
    async fn call(&mut self, number: usize, call: &Call) -> String {
        self.called(number, call).await.unwrap_or_else(|error| their(&error))
    }

    fn unwatch(&mut self, number: usize) {
        self.once.retain(|(kept, _)| *kept != number);
        self.always.retain(|(kept, _)| *kept != number);
    }

    fn drop_persistent(&mut self) {
        self.always.clear();
    }

    async fn events(&mut self) -> Vec<String> {
        let name = |kind| match kind {
            zk::EventType::NodeCreated => Some("created"),
            zk::EventType::NodeDeleted => Some("deleted"),
            zk::EventType::NodeDataChanged => Some("changed"),
            zk::EventType::NodeChildrenChanged => Some("children"),
            // Their persistent watches also tell of the connection.
            zk::EventType::Session => None,
        };
        let mut fired = Vec::new();
        for (number, mut watcher) in std::mem::take(&mut self.once) {
            match now(&mut watcher).await {
                Some(event) => fired.extend(name(event.event_type).map(|name| told(number, name, &event.path))),
                None => self.once.push((number, watcher)),
            }
        }
        for (number, watcher) in &mut self.always {
            while let Some(event) = now(&mut Box::pin(watcher.changed())).await {
                fired.extend(name(event.event_type).map(|name| told(*number, name, &event.path)));
            }
        }
        fired
    }

    async fn answers(&mut self, path: &str) -> bool {
        self.client.get_data(path).await.is_ok()
    }
}
