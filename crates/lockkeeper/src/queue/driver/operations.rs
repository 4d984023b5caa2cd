//! Operations in progress: what a command requests from the ensemble, and its outcome as owned data.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_core::helix::Record;
use lockkeeper_core::{Command, Failure, Inspection, Limit, Listing, NodeData, PathRecord, Payload, Zxid};

use crate::ensemble::paths::make_path;
use crate::ensemble::{Children, Ensemble, Kind, Node, OpError, Reply, Step, Watcher, linearizable, zxid_of};

/// The outcome of an operation.
pub(super) enum Outcome {
    Entered(Result<(String, Zxid), OpError>, Result<Seen, OpError>),
    ParentMade(Result<(), OpError>),
    LimitStored(Result<(), OpError>),
    Listed(Result<(Seen, Option<Watcher>), OpError>),
    Inspected(String, Result<Node, OpError>),
    Watched(String, Result<(Node, Watcher), OpError>),
    HolderMarkerTaken(Result<Zxid, OpError>),
    TombstoneMade(Result<(), OpError>),
    RecordWritten(Result<i32, OpError>),
    Downgraded(Result<Zxid, OpError>),
    Deleted(Result<(), OpError>),
}

impl Outcome {
    /// Whether the outcome proves that the session was alive when the operation was sent: a write that took effect
    /// does.
    pub(super) fn proves(&self) -> bool {
        match self {
            Outcome::Entered(created, _) => created.is_ok(),
            Outcome::HolderMarkerTaken(made) | Outcome::Downgraded(made) => made.is_ok(),
            Outcome::RecordWritten(written) => written.is_ok(),
            Outcome::LimitStored(done) | Outcome::Deleted(done) | Outcome::TombstoneMade(done) => done.is_ok(),
            Outcome::ParentMade(_) | Outcome::Listed(_) | Outcome::Inspected(..) | Outcome::Watched(..) => false,
        }
    }
}

impl Outcome {
    /// Returns the error of the operation.
    pub(super) fn fault(&self) -> Option<&OpError> {
        match self {
            Outcome::Entered(created, seen) => created.as_ref().err().or(seen.as_ref().err()),
            Outcome::HolderMarkerTaken(made) | Outcome::Downgraded(made) => made.as_ref().err(),
            Outcome::RecordWritten(written) => written.as_ref().err(),
            Outcome::ParentMade(done)
            | Outcome::LimitStored(done)
            | Outcome::Deleted(done)
            | Outcome::TombstoneMade(done) => done.as_ref().err(),
            Outcome::Listed(listed) => listed.as_ref().err(),
            Outcome::Inspected(_, read) => read.as_ref().err(),
            Outcome::Watched(_, read) => read.as_ref().err(),
        }
    }

    /// Whether a server answered.
    pub(super) fn is_answer(&self) -> bool {
        let created = matches!(self, Outcome::Entered(Ok(_), _));
        created || !matches!(self.fault(), Some(OpError::ConnectionLoss | OpError::SessionOver))
    }
}

/// The result of reading the parent.
pub(super) struct Seen {
    names: Vec<String>,
    limit: Option<Limit>,
    leased: bool,
}

impl Seen {
    pub(super) fn listing(&self) -> Listing<'_> {
        Listing { names: &self.names, limit: self.limit, leased: self.leased }
    }
}

pub(super) fn inspection(node: &Node) -> Inspection {
    let node_data = NodeData::read(&node.data);
    Inspection {
        owner: node.owner,
        czxid: node.czxid,
        id: node_data.id(),
        version: node.version,
        granted: node_data.record().is_some_and(|record| record.granted),
        asked: node_data.revocation(),
    }
}

/// Everything that an operation of one attempt needs.
pub(super) struct Operations<'a> {
    pub(super) ensemble: &'a Arc<dyn Ensemble>,
    pub(super) path: &'a str,
    pub(super) payload: &'a Payload,
}

impl Operations<'_> {
    fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Starts an operation; the next poll sends it.
    pub(super) fn start(&self, command: Command) -> BoxFuture<'static, Outcome> {
        let ensemble = self.ensemble;
        match command {
            Command::Enter { prefix, limit } => {
                let create = ensemble.create(&self.child(&prefix), self.payload.to_bytes(), Kind::EphemeralSequential);
                let look = self.look(ensemble.list(self.path), limit);
                // Joined futures are polled in this order, so both requests leave together, the create first.
                async move {
                    let (created, seen) = tokio::join!(biased; create, look);
                    Outcome::Entered(created, seen)
                }
                .boxed()
            }
            Command::MakeParent { stays, limit } => {
                let (ensemble, path) = (ensemble.clone(), self.path.to_owned());
                let data = limit.map(|permits| PathRecord::new(permits).to_bytes()).unwrap_or_default();
                let kind = if stays { Kind::Persistent } else { Kind::Container };
                async move { Outcome::ParentMade(make_path(&*ensemble, &path, kind, data).await) }.boxed()
            }
            Command::StoreLimit { permits, version } => {
                let data = PathRecord::new(permits).to_bytes();
                let write = ensemble.write(self.path, data, Some(version));
                write.map(|written| Outcome::LimitStored(written.map(drop))).boxed()
            }
            Command::List { limit, watch: false } => self
                .look(ensemble.list(self.path), limit)
                .map(|seen| Outcome::Listed(seen.map(|seen| (seen, None))))
                .boxed(),
            Command::List { limit, watch: true } => {
                let (list, limit) = (ensemble.list_and_watch(self.path), self.limit(limit));
                async move {
                    let (listed, limit) = tokio::join!(biased; list, limit);
                    Outcome::Listed(
                        listed.and_then(|(names, watcher)| {
                            Ok((Seen { names, limit: limit?, leased: false }, Some(watcher)))
                        }),
                    )
                }
                .boxed()
            }
            Command::Recover => {
                let ensemble = ensemble.clone();
                let look = self.look(ensemble.list(self.path), false);
                async move { Outcome::Listed(linearizable(&*ensemble, look).await.map(|seen| (seen, None))) }.boxed()
            }
            Command::Inspect { name } => {
                ensemble.read(&self.child(&name)).map(|read| Outcome::Inspected(name, read)).boxed()
            }
            Command::Watch { name, kind: _ } => {
                ensemble.read_and_watch(&self.child(&name)).map(|read| Outcome::Watched(name, read)).boxed()
            }
            Command::TakeHolderMarker { own, holder_marker } => {
                let check = Step::Check { path: self.child(&own), version: None };
                let data = self.payload.to_bytes();
                let create = Step::Create { path: self.child(&holder_marker), data, kind: Kind::Ephemeral };
                self.made(vec![check, create], Outcome::HolderMarkerTaken)
            }
            Command::Tombstone { own, tombstone } => {
                let check = Step::Check { path: self.child(&own), version: None };
                let data = self.payload.to_bytes();
                let create = Step::Create { path: self.child(&tombstone), data, kind: Kind::Persistent };
                self.made(vec![check, create], |made| Outcome::TombstoneMade(made.map(drop)))
            }
            Command::WriteRecord { name, granted, version, revocation } => {
                let record = Payload { granted, revocation: revocation.map(|asked| *asked), ..self.payload.clone() };
                let write = ensemble.write(&self.child(&name), record.to_bytes(), Some(version));
                write.map(|written| Outcome::RecordWritten(written.map(|w| w.version))).boxed()
            }
            Command::Downgrade { from, into, revocation } => {
                let record = Payload { revocation: revocation.map(|asked| *asked), ..self.payload.clone() };
                let create = Step::Create { path: self.child(&into), data: record.to_bytes(), kind: Kind::Ephemeral };
                let delete = Step::Delete { path: self.child(&from), version: None };
                self.made(vec![create, delete], Outcome::Downgraded)
            }
            Command::Delete { name, version, holder_marker: None } => {
                ensemble.delete(&self.child(&name), version).map(Outcome::Deleted).boxed()
            }
            Command::Delete { name, version, holder_marker: Some((holder_marker, holder_markers)) } => {
                let own = Step::Delete { path: self.child(&name), version };
                let holder_marker = Step::Delete { path: self.child(&holder_marker), version: Some(holder_markers) };
                let both = ensemble.transact(vec![own, holder_marker]);
                both.map(|deleted| Outcome::Deleted(deleted.map(drop).map_err(OpError::from))).boxed()
            }
            Command::Grant(_)
            | Command::Delay { .. }
            | Command::Revoke
            | Command::Upgraded
            | Command::Reads { .. }
            | Command::End(_) => {
                unreachable!("carried out where they are taken")
            }
        }
    }

    /// Runs a transaction that creates a node.
    fn made(
        &self,
        steps: Vec<Step>,
        outcome: impl FnOnce(Result<Zxid, OpError>) -> Outcome + Send + 'static,
    ) -> BoxFuture<'static, Outcome> {
        let created = steps.iter().find(|step| matches!(step, Step::Create { .. })).map(|step| step.path().to_owned());
        let (made, ensemble) = (self.ensemble.transact(steps), self.ensemble.clone());
        let zxid = async move {
            match (zxid_of(&made.await?), created) {
                (Some(zxid), _) => Ok(zxid),
                (None, Some(path)) => Ok(ensemble.read(&path).await?.czxid),
                (None, None) => Err(OpError::ConnectionLoss),
            }
        };
        zxid.map(outcome).boxed()
    }

    /// Reads a listing, and then the parent's limit if it is wanted. If it is not wanted or missing, and the parent has
    /// data that may be a leased lock's record, reads that too.
    fn look(&self, list: Reply<Children>, limit: bool) -> Reply<Seen> {
        let limit = self.limit(limit);
        let (ensemble, path) = (self.ensemble.clone(), self.path.to_owned());
        async move {
            let (listed, limit) = tokio::join!(biased; list, limit);
            let (Children { names, data_len }, limit) = (listed?, limit?);
            let leased = limit.is_none_or(|limit| limit == Limit::Foreign)
                && data_len >= Record::SHORTEST
                && Record::from_bytes(&ensemble.read(&path).await?.data).is_ok_and(|record| !record.is_free());
            Ok(Seen { names, limit, leased })
        }
        .boxed()
    }

    fn limit(&self, wanted: bool) -> Reply<Option<Limit>> {
        if !wanted {
            return std::future::ready(Ok(None)).boxed();
        }
        let read = self.ensemble.read(self.path);
        read.map(|read| read.map(|node| Some(PathRecord::limit(&node.data, node.version)))).boxed()
    }
}

/// Returns what an operation's error means to the contender. The end of the session is an event of its own.
pub(super) fn failure(fault: &OpError) -> Failure {
    match fault {
        OpError::NoNode => Failure::NoNode,
        OpError::NodeExists => Failure::NodeExists,
        OpError::BadVersion => Failure::BadVersion,
        OpError::ConnectionLoss | OpError::SessionOver => Failure::ConnectionLoss,
        OpError::Unsupported | OpError::Refused(_) => Failure::Refused,
    }
}
