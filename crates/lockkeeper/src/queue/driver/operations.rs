//! Operations in progress: what a command requests from the ensemble, and what they return.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::{self, StreamExt};
use lockkeeper_core::leased::Record;
use lockkeeper_core::{
    Arrival, AttemptId, Command, Event, Failure, IncompatibleFormat, Inspection, Limit, Listing, NodeData, NodeFormat,
    PathMade, PathRecord, Payload, ReleaseRecord, ReleaseSeen, ReleaseWrite, TraceParent, Zxid, node_path,
};
use lockkeeper_session::ensemble::{
    Children, Done, Ensemble, Node, NodeKind, OpError, READS_IN_FLIGHT, Reply, TxnStep, Watcher, Written, above,
    linearizable, make_path, zxid_of,
};

use super::Attempt;
use crate::contender::ContenderInfo;
use crate::hold::WriteAgain;

/// A finished operation: the event for the contender, and what only the driver needs of it.
pub(super) struct Finished {
    pub(super) event: Event,
    pub(super) error: Option<OpError>,
    /// The watch that it has set, with the name of the watched child; empty for the children.
    pub(super) watch: Option<(String, Watcher)>,
    /// What [`Command::Inspect`] or [`Command::Look`] has read.
    pub(super) read: Option<Box<ContenderInfo>>,
    /// What the transaction of a release has written.
    pub(super) written: Option<Written>,
    /// Whether the transaction that deleted the node of the hold has written the note about it.
    pub(super) noted: bool,
    /// When the node was created that [`Command::Watch`] has read, in milliseconds since 1970 by the servers' clock.
    pub(super) created_ms: Option<i64>,
    /// The span of the contender whose node it has read.
    pub(super) traceparent: Option<TraceParent>,
}

impl Finished {
    fn new<T>(outcome: Result<T, OpError>, event: impl FnOnce(Result<T, Failure>) -> Event) -> Self {
        let (outcome, error) = split(outcome);
        Finished {
            event: event(outcome),
            error,
            watch: None,
            read: None,
            written: None,
            noted: false,
            created_ms: None,
            traceparent: None,
        }
    }

    fn entered(created: Result<(String, Zxid), OpError>, listed: Option<Result<Listing, OpError>>) -> Self {
        let (arrival, unlisted) = match listed {
            Some(Ok(listing)) => (Arrival::Listed(listing), None),
            Some(Err(error)) => (Arrival::Unknown, Some(error)),
            None => (Arrival::Unknown, None),
        };
        let finished = Self::new(created, |created| Event::Entered { created, arrival });
        Finished { error: finished.error.or(unlisted), ..finished }
    }

    fn inspected(
        name: String,
        read: Result<Node, OpError>,
        event: impl FnOnce(Result<Inspection, Failure>) -> Event,
    ) -> Self {
        let info = read.as_ref().ok().map(|node| Box::new(ContenderInfo::read(name, node)));
        let traceparent = info.as_ref().and_then(|info| info.traceparent);
        let read = read.map(|node| inspection(&node, &NodeData::read(&node.data)));
        Finished { read: info, traceparent, ..Self::new(read, event) }
    }

    /// The outcome of an operation that sets a watch on a child, or, without a name, on the children.
    fn watching<T>(
        name: String,
        outcome: Result<(T, Watcher), OpError>,
        event: impl FnOnce(Result<T, Failure>) -> Event,
    ) -> Self {
        let mut watch = None;
        let outcome = outcome.map(|(done, watcher)| {
            watch = Some((name, watcher));
            done
        });
        Finished { watch, ..Self::new(outcome, event) }
    }

    /// Whether a server answered.
    pub(super) fn is_answer(&self) -> bool {
        let created = matches!(self.event, Event::Entered { created: Ok(_), .. });
        created || !matches!(self.error, Some(OpError::ConnectionLoss | OpError::SessionOver))
    }
}

/// Separates what an operation's error means to the contender from the error.
fn split<T>(outcome: Result<T, OpError>) -> (Result<T, Failure>, Option<OpError>) {
    match outcome {
        Ok(done) => (Ok(done), None),
        Err(error) => (Err(failure(&error)), Some(error)),
    }
}

fn inspection(node: &Node, node_data: &NodeData) -> Inspection {
    Inspection {
        owner: node.owner,
        czxid: node.czxid,
        id: node_data.id(),
        version: node.version,
        granted: node_data.record().is_some_and(|record| record.granted),
        asked: node_data.revocation().map(Box::new),
    }
}

/// What a lock's path shows where the node format of the attempt has no nodes.
#[derive(Default)]
struct Elsewhere {
    /// The node format of the contenders there.
    format: Option<NodeFormat>,
    /// The size of the path's own data.
    data_len: usize,
}

/// Everything that an operation of one attempt needs.
pub(super) struct CommandRunner<'a> {
    pub(super) attempt: &'a Attempt,
    pub(super) id: AttemptId,
    /// When the lock was granted, in milliseconds since 1970 by the servers' clock.
    pub(super) granted_ms: Option<u64>,
    /// The caller's write in the transaction of its release, and what replaces it.
    pub(super) at_release: Option<(&'a TxnStep, WriteAgain)>,
    /// The note about the hold that the command ends.
    pub(super) note: Vec<TxnStep>,
}

impl CommandRunner<'_> {
    /// Adds a note to the transaction that deletes the node of a hold.
    pub(super) fn with_note(self, note: Vec<TxnStep>) -> Self {
        CommandRunner { note, ..self }
    }

    fn path(&self) -> &str {
        self.attempt.path()
    }

    /// The record of the own node.
    fn payload(&self) -> Payload {
        self.attempt.payload(self.id)
    }

    fn child(&self, name: &str) -> String {
        match self.attempt.kind.node_format {
            // The prefix of a sequential create is empty.
            NodeFormat::Numbered => format!("{}{name}", self.path()),
            _ => node_path(self.path(), name),
        }
    }

    /// Starts an operation; the next poll sends it.
    pub(super) fn start(&self, command: Command) -> BoxFuture<'static, Finished> {
        let ensemble = &self.attempt.ensemble;
        match command {
            Command::Enter { prefix, limit, alone, beside } => {
                let create =
                    ensemble.create(&self.child(&prefix), self.payload().to_bytes(), NodeKind::EphemeralSequential);
                let look = (!alone).then(|| self.look(limit, beside));
                let skip = self.path().len() - self.path().rfind('/').map_or(0, |at| at + 1);
                let skip = if self.attempt.kind.node_format.is_beside() { skip } else { 0 };
                // Joined futures are polled in this order, so both requests leave together, the create first.
                async move {
                    let (created, seen) = tokio::join!(biased; create, OptionFuture::from(look));
                    Finished::entered(created.map(|(name, zxid)| (name[skip..].to_owned(), zxid)), seen)
                }
                .boxed()
            }
            Command::MakeParent { stays, limit, count } => {
                let (ensemble, path) = (ensemble.clone(), self.attempt.kind.node_format.listed(self.path()).to_owned());
                let data = limit.map(|permits| PathRecord::new(permits).to_bytes()).unwrap_or_default();
                let kind = if stays { NodeKind::Persistent } else { NodeKind::Container };
                let count = (count && !self.attempt.kind.looks_beside).then(|| ensemble.count(above(self.path())));
                async move {
                    let made = make_path(&*ensemble, &path, kind, data);
                    let (made, above) = tokio::join!(biased; made, OptionFuture::from(count));
                    let made = made.and_then(|is_new| Ok(PathMade { is_new, children_above: above.transpose()? }));
                    Finished::new(made, Event::ParentMade)
                }
                .boxed()
            }
            Command::RemovePath => {
                let removed = ensemble.delete(self.path(), Some(0));
                removed.map(|removed| Finished::new(removed, Event::PathRemoved)).boxed()
            }
            Command::StoreLimit { permits, version } => {
                let data = PathRecord::new(permits).to_bytes();
                let write = ensemble.write(self.path(), data, Some(version));
                write.map(|written| Finished::new(written.map(drop), Event::LimitStored)).boxed()
            }
            Command::List { limit, watch: false, beside } => {
                self.look(limit, beside).map(|listed| Finished::new(listed, Event::Listed)).boxed()
            }
            Command::List { limit, watch: true, beside } => {
                let (list, limit) = (ensemble.list_and_watch(self.path()), self.limit(limit));
                let elsewhere = self.elsewhere(beside);
                async move {
                    let (listed, limit, elsewhere) = tokio::join!(biased; list, limit, elsewhere);
                    let listed = listed.and_then(|(names, watcher)| {
                        let other = elsewhere?.format.map(IncompatibleFormat::Named);
                        Ok((Listing { names, limit: limit?, other }, watcher))
                    });
                    Finished::watching(String::new(), listed, Event::Listed)
                }
                .boxed()
            }
            Command::Recover => {
                let ensemble = ensemble.clone();
                let look = self.look(false, false);
                async move { Finished::new(linearizable(&*ensemble, look).await, Event::Listed) }.boxed()
            }
            Command::ReadRelease { own } => {
                let seen = |(parent, own): (Node, Option<Node>)| ReleaseSeen {
                    last: ReleaseRecord::last(&parent.data, parent.version),
                    own: own.map(|node| node.czxid),
                };
                let read = ensemble.read_with_child(self.path(), &self.child(&own));
                read.map(move |read| Finished::new(read.map(seen), Event::ReleaseRead)).boxed()
            }
            Command::Inspect { name } => {
                let read = ensemble.read(&self.child(&name));
                read.map(|read| Finished::inspected(name, read, Event::Inspected)).boxed()
            }
            Command::Look { first, front } => {
                let read = ensemble.read(&self.child(&first));
                let front = front.map(|front| ensemble.read(&self.child(&front)));
                async move {
                    let (read, front) = tokio::join!(biased; read, OptionFuture::from(front));
                    let front =
                        front.and_then(Result::ok).map(|node| Box::new(inspection(&node, &NodeData::read(&node.data))));
                    Finished::inspected(first, read, |first| Event::Looked { first, front })
                }
                .boxed()
            }
            Command::Watch { name, kind: _ } => {
                let read = ensemble.read_and_watch(&self.child(&name));
                read.map(move |read| {
                    let (mut created_ms, mut traceparent) = (None, None);
                    let seen = read.map(|(node, watcher)| {
                        let node_data = NodeData::read(&node.data);
                        created_ms = Some(node.ctime_ms);
                        traceparent = node_data.record().and_then(|record| record.traceparent);
                        (inspection(&node, &node_data), watcher)
                    });
                    Finished { created_ms, traceparent, ..Finished::watching(name, seen, Event::Watched) }
                })
                .boxed()
            }
            Command::TakeHolderMarker { own, holder_marker } => {
                let check = TxnStep::Check { path: self.child(&own), version: None };
                let data = self.payload().to_bytes();
                let create = TxnStep::Create { path: self.child(&holder_marker), data, kind: NodeKind::Ephemeral };
                self.made(vec![check, create], Event::HolderMarkerTaken)
            }
            Command::Tombstone { own, tombstone } => {
                let check = TxnStep::Check { path: self.child(&own), version: None };
                let data = self.payload().to_bytes();
                let create = TxnStep::Create { path: self.child(&tombstone), data, kind: NodeKind::Persistent };
                self.made(vec![check, create], |made| Event::TombstoneMade(made.map(drop)))
            }
            Command::WriteRecord { name, granted, version, revocation } => {
                let (granted_ms, revocation) = (self.granted_ms, revocation.map(|asked| *asked));
                let record = Payload { granted, granted_ms, revocation, ..self.payload() };
                let write = ensemble.write(&self.child(&name), record.to_bytes(), Some(version));
                write.map(|written| Finished::new(written.map(|w| w.version), Event::RecordWritten)).boxed()
            }
            Command::Downgrade { from, into, revocation } => {
                let record = Payload { revocation: revocation.map(|asked| *asked), ..self.payload() };
                let create =
                    TxnStep::Create { path: self.child(&into), data: record.to_bytes(), kind: NodeKind::Ephemeral };
                let delete = TxnStep::Delete { path: self.child(&from), version: None };
                self.made(vec![create, delete], Event::Downgraded)
            }
            Command::Delete { name, version, holder_marker, write } => {
                let write = write.and_then(|write| match write {
                    ReleaseWrite::Callers => self.at_release.map(|(step, again)| (step.clone(), Some(again))),
                    ReleaseWrite::Record(record, version) => {
                        let (path, data) = (self.path().to_owned(), record.to_bytes());
                        Some((TxnStep::Write { path, data, version: Some(version) }, None))
                    }
                });
                let own = TxnStep::Delete { path: self.child(&name), version };
                let marker = holder_marker
                    .map(|(marker, version)| TxnStep::Delete { path: self.child(&marker), version: Some(version) });
                delete(ensemble.clone(), std::iter::once(own).chain(marker).collect(), write, self.note.clone())
            }
            Command::GiveUpHolderMarker { own, holder_marker, version } => {
                let check = TxnStep::Check { path: self.child(&own), version: None };
                let marker = TxnStep::Delete { path: self.child(&holder_marker), version: Some(version) };
                delete(ensemble.clone(), vec![check, marker], None, self.note.clone())
            }
            Command::Check { own, holder_marker } => {
                let check = TxnStep::Check { path: self.child(&own), version: None };
                let checked = ensemble.transact(vec![check]).map(|done| done.map(drop).map_err(OpError::from));
                let marker = holder_marker.map(|marker| ensemble.read(&self.child(&marker)));
                async move {
                    let (checked, marker) = tokio::join!(biased; checked, OptionFuture::from(marker));
                    let made = marker.map(|read| read.map(|node| node.czxid)).transpose();
                    Finished::new(checked.and(made), Event::Checked)
                }
                .boxed()
            }
            Command::Grant(_)
            | Command::Verified(_)
            | Command::Delay { .. }
            | Command::Revoke
            | Command::Contended(_)
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
        steps: Vec<TxnStep>,
        event: impl FnOnce(Result<Zxid, Failure>) -> Event + Send + 'static,
    ) -> BoxFuture<'static, Finished> {
        let created =
            steps.iter().find(|step| matches!(step, TxnStep::Create { .. })).map(|step| step.path().to_owned());
        let (made, ensemble) = (self.attempt.ensemble.transact(steps), self.attempt.ensemble.clone());
        let zxid = async move {
            match (zxid_of(&made.await?), created) {
                (Some(zxid), _) => Ok(zxid),
                (None, Some(path)) => Ok(ensemble.read(&path).await?.czxid),
                (None, None) => Err(OpError::ConnectionLoss),
            }
        };
        zxid.map(|made| Finished::new(made, event)).boxed()
    }

    /// Lists the queue, and then reads the parent's limit if it is wanted. If it is not wanted or missing, and the
    /// lock's path has data that may be a leased lock's record, reads that too.
    /// `beside`: looks beside the path too.
    fn look(&self, limit: bool, beside: bool) -> Reply<Listing> {
        let (list, limit) =
            (self.attempt.ensemble.list(self.attempt.kind.node_format.listed(self.path())), self.limit(limit));
        let elsewhere = self.elsewhere(beside);
        let (ensemble, path, node_format) =
            (self.attempt.ensemble.clone(), self.path().to_owned(), self.attempt.kind.node_format);
        async move {
            let (listed, limit, elsewhere) = tokio::join!(biased; list, limit, elsewhere);
            let (Children { names, data_len, .. }, limit, elsewhere) = (listed?, limit?, elsewhere?);
            // The data of the path itself, which in one node format is not the node that was listed.
            let data_len = if node_format.is_beside() { elsewhere.data_len } else { data_len };
            let leased = limit.is_none_or(|limit| limit == Limit::Foreign)
                && data_len >= Record::SHORTEST
                && Record::from_bytes(&ensemble.read(&path).await?.data).is_ok_and(|record| !record.is_free());
            let other = elsewhere.format.map(IncompatibleFormat::Named);
            let other = other.or(leased.then_some(IncompatibleFormat::Leased));
            Ok(Listing { names: node_format.names(&path, names), limit, other })
        }
        .boxed()
    }

    /// Looks for contenders of the path where this node format has none: below the path, or beside it.
    /// A lock that looks only beside a path that it makes needs no right to read there.
    fn elsewhere(&self, beside: bool) -> Reply<Elsewhere> {
        let place = match (self.attempt.kind.node_format.is_beside(), self.attempt.kind.looks_beside || beside) {
            (true, _) => self.path(),
            (false, true) => NodeFormat::Numbered.listed(self.path()),
            (false, false) => return std::future::ready(Ok(Elsewhere::default())).boxed(),
        };
        let (listed, path, beside) =
            (self.attempt.ensemble.list(place), self.path().to_owned(), self.attempt.kind.node_format.is_beside());
        let (ensemble, must_read) = (
            self.attempt.ensemble.clone(),
            self.attempt.kind.node_format.is_beside() || self.attempt.kind.looks_beside,
        );
        async move {
            match listed.await {
                Ok(Children { names, data_len, .. }) if beside => {
                    Ok(Elsewhere { format: NodeFormat::of_line(&names), data_len })
                }
                Ok(Children { names, .. }) => {
                    let theirs = has_contender_beside(&*ensemble, &path, names, must_read).await?;
                    Ok(Elsewhere { format: theirs.then_some(NodeFormat::Numbered), data_len: 0 })
                }
                Err(OpError::NoNode) => Ok(Elsewhere::default()),
                Err(OpError::Refused(_)) if !must_read => Ok(Elsewhere::default()),
                Err(fault) => Err(fault),
            }
        }
        .boxed()
    }

    fn limit(&self, wanted: bool) -> Reply<Option<Limit>> {
        if !wanted {
            return std::future::ready(Ok(None)).boxed();
        }
        let read = self.attempt.ensemble.read(self.path());
        read.map(|read| read.map(|node| Some(PathRecord::limit(&node.data, node.version)))).boxed()
    }
}

/// Returns whether a contender is beside the path ([`NodeFormat::Numbered`]), for a client that counted the children of the node above it.
/// One listing, and none if there are more than 1 000. A node that the client may not read does not count.
///
/// # Errors
///
/// Those of the listing and of the reads.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
pub async fn is_contended_beside(ensemble: &dyn Ensemble, path: &str, children_above: usize) -> Result<bool, OpError> {
    if children_above == 0 || !NodeFormat::lists_beside(children_above) {
        return Ok(false);
    }
    match ensemble.list(NodeFormat::Numbered.listed(path)).await {
        Ok(Children { names, .. }) => has_contender_beside(ensemble, path, names, false).await,
        Err(OpError::NoNode) => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// Whether a contender is beside the path, from a listing of the node above it.
///
/// A directory whose name ends in a number looks like a contender's node. Only the node has a session, so each is read.
/// `must_read`: a node that may not be read is an error.
async fn has_contender_beside(
    ensemble: &dyn Ensemble,
    path: &str,
    listed: Vec<String>,
    must_read: bool,
) -> Result<bool, OpError> {
    let alike = NodeFormat::Numbered.names(path, listed);
    let reads: Vec<_> = alike.iter().map(|number| ensemble.read(&node_path(path, number))).collect();
    let mut reads = stream::iter(reads).buffered(READS_IN_FLIGHT);
    while let Some(read) = reads.next().await {
        match read {
            Ok(node) if !node.owner.is_none() => return Ok(true),
            Ok(_) | Err(OpError::NoNode) => {}
            Err(OpError::Refused(_)) if !must_read => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(false)
}

/// Deletes nodes, and in the same transaction writes another node and a note. What cannot be written is left out, and the rest is
/// done without it. A transaction that is refused as a whole, as one that is too large for the servers, becomes the deletes alone.
fn delete(
    ensemble: Arc<dyn Ensemble>,
    deletes: Vec<TxnStep>,
    write: Option<(TxnStep, Option<WriteAgain>)>,
    note: Vec<TxnStep>,
) -> BoxFuture<'static, Finished> {
    if let ([TxnStep::Delete { path, version }], None, []) = (&deletes[..], &write, &note[..]) {
        return ensemble.delete(path, *version).map(|deleted| Finished::new(deleted, Event::Deleted)).boxed();
    }
    let steps: Vec<_> = deletes.iter().chain(write.iter().map(|(step, _)| step)).chain(&note).cloned().collect();
    let (noted, note_at) = (!note.is_empty(), deletes.len() + usize::from(write.is_some()));
    let done = ensemble.transact(steps);
    async move {
        match done.await {
            Ok(done) => {
                let written = done.into_iter().take(note_at).find_map(|done| match done {
                    Done::Written(written) => Some(written),
                    _ => None,
                });
                Finished { written, noted, ..Finished::new(Ok(()), Event::Deleted) }
            }
            Err(undone) => match undone.step {
                Some(at) if at >= note_at => delete(ensemble, deletes, write, Vec::new()).await,
                Some(at) if at >= deletes.len() => {
                    let again = match write {
                        Some((step, Some(again))) if undone.fault == OpError::BadVersion => {
                            let seen = ensemble.read(step.path()).await;
                            seen.ok().and_then(|seen| again(&seen, &step)).map(|step| (step, None))
                        }
                        _ => None,
                    };
                    delete(ensemble, deletes, again, note).await
                }
                None if matches!(undone.fault, OpError::Refused(_)) && (write.is_some() || noted) => {
                    delete(ensemble, deletes, None, Vec::new()).await
                }
                _ => Finished::new(Err(undone.fault), Event::Deleted),
            },
        }
    }
    .boxed()
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
