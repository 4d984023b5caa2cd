//! The operations of ZooKeeper as typed calls.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_wire::{
    Acl, Create, CreateMode, ErrorCode, OpCode, OpResult, ReadOp, Request, Response, SetData, Stat, VersionedPath,
    WatchedPath, WriteOp,
};

use crate::client::{Client, Reply, Watcher};
use crate::types::RequestError;

/// Why a transaction has no results. Nothing of it was carried out, unless the request's error says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MultiError {
    /// One of its operations failed, so the server carried out none.
    #[error("operation {index} of the transaction failed: the server answered {error:?}")]
    Operation {
        /// The operation's index.
        index: usize,
        error: ErrorCode,
    },
    /// The whole request has no response.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// The reply and the watch that a call has left.
pub type Watched<T> = (Result<T, RequestError>, Watcher);

/// Returns the number that the protocol uses: −1 matches every version.
fn number(version: Option<i32>) -> i32 {
    version.unwrap_or(-1)
}

fn watched(path: &str, watch: bool) -> WatchedPath {
    WatchedPath { path: path.to_owned(), watch }
}

/// A call's reply, and how to take its fields. It can be polled without pinning it first.
struct Call<T> {
    reply: Reply,
    take: fn(Response) -> T,
}

impl<T> Future for Call<T> {
    type Output = Result<T, RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.reply).poll(context).map(|result| result.map(self.take))
    }
}

/// Takes the fields of a response. A response is decoded by the operation of its request, so it always fits.
macro_rules! fields {
    ($response:expr, $pattern:pat => $fields:expr) => {
        match $response {
            $pattern => $fields,
            other => unreachable!("{other:?} belongs to another operation"),
        }
    };
}

fn created(response: Response) -> (Arc<str>, Stat) {
    fields!(response, Response::Created { path, stat: Some(stat) } => (path, stat))
}

fn stat(response: Response) -> Stat {
    fields!(response, Response::Stat(stat) => stat)
}

fn data(response: Response) -> (Bytes, Stat) {
    fields!(response, Response::Data { data, stat } => (data.unwrap_or_default(), stat))
}

fn children(response: Response) -> (Vec<Arc<str>>, Stat) {
    fields!(response, Response::Children { names, stat: Some(stat) } => (names, stat))
}

fn results(response: Response) -> Vec<OpResult> {
    fields!(response, Response::Multi(results) => results)
}

/// A missing node is an answer to `exists`.
fn existing(result: Result<Response, RequestError>) -> Result<Option<Stat>, RequestError> {
    match result {
        Err(RequestError::Refused(ErrorCode::NoNode)) => Ok(None),
        other => other.map(|response| Some(stat(response))),
    }
}

/// The typed calls. Each one sends its request when it is called, even if the future is never polled, and so in the order
/// of the calls.
///
/// # Errors
/// [`RequestError`] for every call. A call that needs a newer server ends with [`ErrorCode::Unimplemented`]. An Apache
/// server then closes the connection. The requests that are under way end with [`RequestError::ConnectionLoss`].
///
/// # Cancel safety
/// Dropping the future does not cancel the request. A watch that it would leave is removed.
///
/// # Cost
/// One round trip for each call; calls that do not wait for each other share it. Until the reply, a call uses about 300
/// bytes beside the request and the response.
impl Client {
    /// Creates a node. Returns its path, with the digits of a sequential node, and its stat (`create2`).
    ///
    /// A [`CreateMode::Container`] is removed some time after its last child. For the modes with a time to live use
    /// [`Client::create_with_ttl`].
    ///
    /// # Errors
    /// Refused with `NodeExists`, `NoNode` (the parent is missing), `NoChildrenForEphemerals`, `InvalidAcl`, `NoAuth`,
    /// `QuotaExceeded`; `BadArguments` for an invalid path, or a mode with a time to live.
    ///
    /// After [`RequestError::ConnectionLoss`] the node may exist. Only the owner of an ephemeral node, or data that
    /// identifies the request, can tell.
    ///
    /// # Cancel safety
    /// The node is created even if the future is dropped.
    pub fn create<D: Into<Bytes>>(
        &self,
        path: &str,
        data: D,
        acl: &[Acl],
        mode: CreateMode,
    ) -> impl Future<Output = Result<(Arc<str>, Stat), RequestError>> + Send + use<D> {
        let create = Create { acl: acl.to_vec(), ..Create::new(path, data, mode) };
        self.call(Request::Create(create), created)
    }

    /// As [`Client::create`], but the request may leave together with other batched ones: the creates and deletes as one
    /// transaction, the lists as one read. If one of them fails, only that one ends with an error; the others are made again.
    ///
    /// This is for requests of tasks that do not wait for each other. While two transactions are under way, it waits until one
    /// is answered. Of the stat, only the transaction that created the node is always known.
    ///
    /// # Errors
    /// As [`Client::create`].
    ///
    /// # Cancel safety
    /// As [`Client::create`].
    ///
    /// # Cost
    /// At most one round trip more than [`Client::create`], or four if another one of them fails, and less work for the servers.
    pub fn create_batched<D: Into<Bytes>>(
        &self,
        path: &str,
        data: D,
        acl: &[Acl],
        mode: CreateMode,
    ) -> impl Future<Output = Result<(Arc<str>, Stat), RequestError>> + Send + use<D> {
        let create = Create { acl: acl.to_vec(), ..Create::new(path, data, mode) };
        Call { reply: self.send_batched(Request::Create(create)), take: created }
    }

    /// As [`Client::delete`], but batched as [`Client::create_batched`].
    ///
    /// # Errors
    /// As [`Client::delete`].
    ///
    /// # Cancel safety
    /// As [`Client::delete`].
    pub fn delete_batched(
        &self,
        path: &str,
        version: Option<i32>,
    ) -> impl Future<Output = Result<(), RequestError>> + Send + use<> {
        let delete = VersionedPath { path: path.to_owned(), version: number(version) };
        Call { reply: self.send_batched(Request::Delete(delete)), take: |_| () }
    }

    /// As [`Client::children`], but batched as [`Client::create_batched`]. It shows every batched create and delete that was
    /// called before.
    ///
    /// # Errors
    /// As [`Client::children`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn children_batched(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<Arc<str>>, Stat), RequestError>> + Send + use<> {
        Call { reply: self.send_batched(Request::GetChildren2(watched(path, false))), take: children }
    }

    /// Creates a persistent node that the server removes when it has no children and was not written for `ttl`
    /// (`createTTL`). Returns as [`Client::create`].
    ///
    /// # Errors
    /// As [`Client::create`]; `Unimplemented` if the server's extended types are off, which is Apache's default.
    ///
    /// # Cancel safety
    /// As [`Client::create`].
    pub fn create_with_ttl<D: Into<Bytes>>(
        &self,
        path: &str,
        data: D,
        acl: &[Acl],
        sequential: bool,
        ttl: Duration,
    ) -> impl Future<Output = Result<(Arc<str>, Stat), RequestError>> + Send + use<D> {
        let mode = if sequential { CreateMode::PersistentSequentialTtl } else { CreateMode::PersistentTtl };
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let create = Create::new(path, data, mode);
        let create = Create { acl: acl.to_vec(), ttl_ms, opcode: OpCode::CreateTtl, ..create };
        self.call(Request::Create(create), created)
    }

    /// Deletes a node without children, if it has this version.
    ///
    /// # Errors
    /// Refused with `NoNode`, `NotEmpty`, `BadVersion`, `NoAuth`. After [`RequestError::ConnectionLoss`] the node may be
    /// deleted.
    ///
    /// # Cancel safety
    /// The node is deleted even if the future is dropped.
    pub fn delete(
        &self,
        path: &str,
        version: Option<i32>,
    ) -> impl Future<Output = Result<(), RequestError>> + Send + use<> {
        let delete = VersionedPath { path: path.to_owned(), version: number(version) };
        self.call(Request::Delete(delete), |_| ())
    }

    /// Returns a node's data and stat. The data is a copy of its own, so it does not keep a larger buffer alive.
    ///
    /// # Errors
    /// Refused with `NoNode`, `NoAuth`.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn get(&self, path: &str) -> impl Future<Output = Result<(Bytes, Stat), RequestError>> + Send + use<> {
        self.call(Request::GetData(watched(path, false)), data)
    }

    /// As [`Client::get`], and leaves a watch for the next change of the data, or the deletion. A failed call leaves none.
    ///
    /// # Cancel safety
    /// Dropping the future, or the watcher, removes the watch.
    pub fn get_and_watch(&self, path: &str) -> impl Future<Output = Watched<(Bytes, Stat)>> + Send + use<> {
        self.call_and_watch(Request::GetData(watched(path, true)), |result| result.map(data))
    }

    /// Returns a node's stat, or `None` if there is no node.
    ///
    /// # Errors
    /// None but those of every call.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn exists(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, RequestError>> + Send + use<> {
        let reply = self.request(Request::Exists(watched(path, false)));
        async move { existing(reply.await) }
    }

    /// As [`Client::exists`], and leaves a watch: for the next change of the data or the deletion if the node exists, else
    /// for its creation.
    ///
    /// # Cancel safety
    /// Dropping the future, or the watcher, removes the watch.
    pub fn exists_and_watch(&self, path: &str) -> impl Future<Output = Watched<Option<Stat>>> + Send + use<> {
        self.call_and_watch(Request::Exists(watched(path, true)), existing)
    }

    /// Returns the names of a node's children, in no order that is the same for all servers, and the node's stat.
    ///
    /// # Errors
    /// Refused with `NoNode`, `NoAuth`. A list longer than the frame limit ends the connection.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn children(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<Arc<str>>, Stat), RequestError>> + Send + use<> {
        self.call(Request::GetChildren2(watched(path, false)), children)
    }

    /// As [`Client::children`], and leaves a watch for the next change of the list, or the deletion of the node.
    ///
    /// # Cancel safety
    /// Dropping the future, or the watcher, removes the watch.
    pub fn children_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Watched<(Vec<Arc<str>>, Stat)>> + Send + use<> {
        self.call_and_watch(Request::GetChildren2(watched(path, true)), |result| result.map(children))
    }

    /// Replaces a node's data, if it has this version. Returns the new stat.
    ///
    /// # Errors
    /// Refused with `NoNode`, `BadVersion`, `NoAuth`, `QuotaExceeded`. After [`RequestError::ConnectionLoss`] the data may
    /// be replaced.
    ///
    /// # Cancel safety
    /// The data is replaced even if the future is dropped.
    pub fn set<D: Into<Bytes>>(
        &self,
        path: &str,
        data: D,
        version: Option<i32>,
    ) -> impl Future<Output = Result<Stat, RequestError>> + Send + use<D> {
        let set = SetData { path: path.to_owned(), data: Some(data.into()), version: number(version) };
        self.call(Request::SetData(set), stat)
    }

    /// Carries out all operations in one transaction, or none of them. Returns one result for each.
    ///
    /// # Errors
    /// [`MultiError`]. After [`RequestError::ConnectionLoss`] the transaction may be carried out.
    ///
    /// # Cancel safety
    /// The transaction is carried out even if the future is dropped.
    pub fn multi(&self, ops: Vec<WriteOp>) -> impl Future<Output = Result<Vec<OpResult>, MultiError>> + Send + use<> {
        let reply = self.call(Request::Multi(ops), results);
        async move {
            let results = reply.await?;
            // The operations before the one that failed are rolled back, those after it are not tried.
            let failed = results.iter().enumerate().find_map(|(index, result)| match result {
                OpResult::Failed(error) => Some((index, *error)),
                _ => None,
            });
            failed.map_or(Ok(results), |(index, error)| Err(MultiError::Operation { index, error }))
        }
    }

    /// Answers several reads from one state of the tree (`multiRead`, servers of 3.6 and later). Each result may be an
    /// [`OpResult::Failed`] without an effect on the others.
    ///
    /// # Errors
    /// `Unimplemented` by an older server.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn multi_read(
        &self,
        ops: Vec<ReadOp>,
    ) -> impl Future<Output = Result<Vec<OpResult>, RequestError>> + Send + use<> {
        self.call(Request::MultiRead(ops), results)
    }

    /// Waits until this session sees everything that was committed before the server received the call. Reads that are
    /// called later, before or after the reply, see it.
    ///
    /// A `sync` is no write: a leader that has lost its followers without knowing it may answer. A read is linearizable
    /// only behind a write.
    ///
    /// # Errors
    /// None but those of every call.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn sync(&self, path: &str) -> impl Future<Output = Result<(), RequestError>> + Send + use<> {
        self.call(Request::Sync { path: path.to_owned() }, |_| ())
    }

    /// Returns a node's access list and stat.
    ///
    /// # Errors
    /// Refused with `NoNode`, `NoAuth`.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn acl(&self, path: &str) -> impl Future<Output = Result<(Arc<[Acl]>, Stat), RequestError>> + Send + use<> {
        self.call(
            Request::GetAcl { path: path.to_owned() },
            |response| fields!(response, Response::Acl { acl, stat } => (acl, stat)),
        )
    }

    /// Replaces a node's access list, if the list has this version ([`Stat::aversion`]). Returns the new stat.
    ///
    /// # Errors
    /// Refused with `NoNode`, `BadVersion`, `InvalidAcl`, `NoAuth`. After [`RequestError::ConnectionLoss`] the list may be
    /// replaced.
    ///
    /// # Cancel safety
    /// The list is replaced even if the future is dropped.
    pub fn set_acl(
        &self,
        path: &str,
        acl: &[Acl],
        version: Option<i32>,
    ) -> impl Future<Output = Result<Stat, RequestError>> + Send + use<> {
        let request = Request::SetAcl { path: path.to_owned(), acl: acl.to_vec(), version: number(version) };
        self.call(request, stat)
    }

    /// Returns the schemes and names of this connection's identities (`whoAmI`, servers of 3.7 and later). The superuser
    /// has no name.
    ///
    /// # Errors
    /// `Unimplemented` by an older server.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn who_am_i(&self) -> impl Future<Output = Result<Vec<(String, Option<String>)>, RequestError>> + Send + use<> {
        self.call(Request::WhoAmI, |response| fields!(response, Response::Identities(identities) => identities))
    }

    /// Returns the number of a node's descendants (`getAllChildrenNumber`, servers of 3.6 and later).
    ///
    /// # Errors
    /// Refused with `NoNode`, `NoAuth`; `Unimplemented` by an older server.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn count_descendants(&self, path: &str) -> impl Future<Output = Result<i32, RequestError>> + Send + use<> {
        self.call(
            Request::GetAllChildrenNumber { path: path.to_owned() },
            |response| fields!(response, Response::Count(count) => count),
        )
    }

    /// Returns the paths of this session's ephemeral nodes that begin with `prefix` (`getEphemerals`, servers of 3.6 and
    /// later).
    ///
    /// # Errors
    /// `Unimplemented` by an older server.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn ephemerals(&self, prefix: &str) -> impl Future<Output = Result<Vec<Arc<str>>, RequestError>> + Send + use<> {
        self.call(
            Request::GetEphemerals { prefix: prefix.to_owned() },
            |response| fields!(response, Response::Ephemerals(paths) => paths),
        )
    }

    fn call<T>(
        &self,
        request: Request,
        take: fn(Response) -> T,
    ) -> impl Future<Output = Result<T, RequestError>> + Send + use<T> {
        let reply = self.send(request, None).1;
        Call { reply, take }
    }

    fn call_and_watch<T>(
        &self,
        request: Request,
        take: fn(Result<Response, RequestError>) -> Result<T, RequestError>,
    ) -> impl Future<Output = Watched<T>> + Send + use<T> {
        let reply = self.request_and_watch(request);
        async move {
            let (result, watcher) = reply.await;
            (take(result), watcher)
        }
    }
}
