//! Carries a tracker's requests to the servers, and the servers' events to the tracker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};
use lockkeeper::admin::{Broken, Walk, is_of_records, walk};
use lockkeeper::contest::own_place_of;
use lockkeeper::error::SessionError;
use lockkeeper::{Lockkeeper, NodeFormat, journal};
use lockkeeper_session::Session;
use lockkeeper_session::ensemble::{Ensemble, Node, OpError, READS_IN_FLIGHT, TreeChange, TreeEvent, TreeWatch};

use super::fact::{GapCause, Moment};
use super::observation::{Observation, Tree};
use super::records::{RecordedEnd, Records};
use super::tracker::{Tracker, Wanted};

/// How many events wait for the observer before it misses some: about 10 MB of paths.
const EVENTS: usize = 65_536;

/// How many events are handled before the observer's other work.
const BATCH: usize = 1_024;

/// The pause before the next try after no session could be opened at once.
const PAUSE: Duration = Duration::from_secs(1);

/// How long after an answer the next question is sent that proves that all changes were seen.
const PROOFS: Duration = Duration::from_secs(5);

/// How many events of the journal of breaks wait for the observer.
const JOURNAL_EVENTS: usize = 1_024;

/// How many events of the records of ends wait for the observer. Those that it misses leave ends unexplained.
const RECORD_EVENTS: usize = 16_384;

/// Tells a tracker what explains how a hold ended.
type Explanation = Box<dyn FnOnce(&mut Tracker, Moment) + Send>;

/// Why a tree cannot be observed at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// The servers do not know persistent recursive watches.
    #[error("{servers} cannot be observed: it needs ZooKeeper 3.6 or later")]
    Unsupported {
        /// The servers.
        servers: String,
    },
    /// The path is not one of the handle's.
    #[error(transparent)]
    Misuse(#[from] lockkeeper::error::Misuse),
    /// No session can be opened, and trying again does not help.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Observes the locks of one tree, with one session.
pub struct Observer {
    keeper: Lockkeeper,
    tree: Tree,
    excluded: Arc<[String]>,
    /// Where owners record how their holds ended.
    records: Option<Records>,
}

/// The end of a session's service.
enum Interrupted {
    /// The session is over, or a connection broke at the wrong moment.
    Over,
    Failed(ObserveError),
}

impl From<OpError> for Interrupted {
    fn from(_: OpError) -> Self {
        Interrupted::Over
    }
}

impl Observer {
    /// Creates the observer of the locks at and below `root`, which may be `/`. What it sees is in `observation`. It leaves out the paths at
    /// and below `excluded`, which may belong to another realm.
    ///
    /// Contenders beside `root` itself, in the node format [`Numbered`](lockkeeper::NodeFormat::Numbered), are outside of the tree.
    ///
    /// # Errors
    ///
    /// `root` is no path of this handle.
    pub fn new(
        keeper: &Lockkeeper,
        root: &str,
        excluded: impl IntoIterator<Item = impl Into<String>>,
        observation: &Observation,
    ) -> Result<Self, ObserveError> {
        let excluded: Vec<String> = excluded.into_iter().map(Into::into).collect();
        let keeper = keeper.clone();
        let root = if root == "/" { root.to_owned() } else { keeper.path(root)? };
        let servers = keeper.sessions().servers().to_string();
        let tree = observation.add_tree(&root, excluded.clone(), servers);
        Ok(Observer { keeper, tree, excluded: excluded.into(), records: None })
    }

    /// Lets the observer read how owners record the ends of their holds, in the nodes below `root`. `read` gets the path and the data of
    /// such a node, and returns the end that it records, if any. The servers' events do not tell a release from a loss, so without
    /// records more holds end in a way that is [`End::Unknown`](super::End::Unknown). No request before [`Observer::run`].
    #[must_use]
    pub fn with_records(
        mut self,
        root: impl Into<String>,
        read: impl Fn(&str, &[u8]) -> Option<RecordedEnd> + Send + Sync + 'static,
    ) -> Self {
        self.records = Some(Records::new(root.into(), read));
        self
    }

    /// Notes that the servers were not reached at the start: a gap begins, and [`Observer::run`] ends it when it reaches them. Give it a
    /// handle of [`Builder::connect_lazy`](lockkeeper::Builder::connect_lazy). No request.
    pub fn begin_unreached(&self) {
        self.tree.lose(GapCause::NotReached);
    }

    /// Observes until the future is dropped. A lost connection or session is a gap, which is noted, and it goes on.
    ///
    /// Needs a tokio runtime.
    ///
    /// # Cost
    ///
    /// At the start and after each gap, one listing for each node that is no contender, and one read for each contender. Then one read for
    /// each new contender, for each change of the data of a node, and for each record of a hold ([`Observer::with_records`]). Once in 5 s a write that changes nothing: the events about all
    /// earlier writes come before its answer, so a gap begins when the last one was sent that was answered.
    ///
    /// # Errors
    ///
    /// The tree cannot be observed at all. While no server can be reached, it waits.
    pub async fn run(self) -> Result<std::convert::Infallible, ObserveError> {
        loop {
            let opening = self.keeper.clone();
            let opened = self.keeper.sessions().run(async move { opening.sessions().session(None).await }).await;
            let error = match opened {
                Ok((session, ensemble)) => match self.serve(&session, ensemble).await {
                    Interrupted::Over => None,
                    Interrupted::Failed(error) => return Err(error),
                },
                Err(error @ (SessionError::Unreachable { .. } | SessionError::ConnectionLost { .. })) => Some(error),
                Err(error) => return Err(error.into()),
            };
            self.tree.lose(GapCause::Disconnected);
            if let Some(error) = error {
                tracing::debug!(%error, "no session");
            }
            // A server may end each session at once.
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Observes with one session until it is over.
    async fn serve(&self, session: &Arc<Session>, ensemble: Arc<dyn Ensemble>) -> Interrupted {
        if let Ok(epoch) = session.epoch().await {
            self.tree.seen(|seen| seen.tracker.epoch = epoch);
        }
        match self.watch(&ensemble).await {
            Ok(never) => match never {},
            Err(interrupted) => interrupted,
        }
    }

    async fn watch(&self, ensemble: &Arc<dyn Ensemble>) -> Result<std::convert::Infallible, Interrupted> {
        let set = async |path: &str, capacity| match ensemble.watch_tree(path, capacity).await {
            Err(OpError::Unsupported) => {
                let servers = self.keeper.sessions().servers().to_string();
                Err(Interrupted::Failed(ObserveError::Unsupported { servers }))
            }
            watch => Ok(watch?),
        };
        let mut serving = Serving {
            tree: &self.tree,
            excluded: &self.excluded,
            ensemble,
            events: set(self.tree.root(), EVENTS).await?,
            journal: set(journal::ROOT, JOURNAL_EVENTS).await?,
            recorded: match &self.records {
                Some(records) => Some((records, set(&records.root, RECORD_EVENTS).await?)),
                None => None,
            },
            reads: FuturesUnordered::new(),
            wanted: VecDeque::new(),
            entries: FuturesUnordered::new(),
            walk: None,
            has_caught_up: false,
            proof: None,
            proves_at: tokio::time::Instant::now(),
        };
        serving.walk();
        loop {
            serving.step().await?;
        }
    }
}

/// What is under way with one session.
struct Serving<'a> {
    tree: &'a Tree,
    excluded: &'a Arc<[String]>,
    ensemble: &'a Arc<dyn Ensemble>,
    events: TreeWatch,
    /// The journal of breaks, which says why a contender went.
    journal: TreeWatch,
    /// The records in which owners say how their holds ended.
    recorded: Option<(&'a Records, TreeWatch)>,
    reads: FuturesUnordered<BoxFuture<'static, (Wanted, Result<Node, OpError>)>>,
    wanted: VecDeque<Wanted>,
    entries: FuturesUnordered<BoxFuture<'static, Option<Explanation>>>,
    walk: Option<BoxFuture<'static, Result<Walk, OpError>>>,
    /// Whether all contenders that the first walk has found were read.
    has_caught_up: bool,
    /// The question that proves that all changes were seen until it was sent.
    proof: Option<(Moment, BoxFuture<'static, Result<(), OpError>>)>,
    /// When the next one is sent.
    proves_at: tokio::time::Instant,
}

impl Serving<'_> {
    /// Begins a walk over the tree.
    fn walk(&mut self) {
        self.reads.clear();
        self.wanted.clear();
        self.has_caught_up = false;
        self.tree.begin_walk();
        self.walk = Some(walk_tree(self.ensemble.clone(), self.tree.root().to_owned(), self.excluded.clone()).boxed());
    }

    /// Waits for the next thing that happens, and handles it.
    async fn step(&mut self) -> Result<(), Interrupted> {
        self.wanted.extend(self.tree.seen(|seen| seen.tracker.take_wanted()));
        while self.reads.len() < READS_IN_FLIGHT
            && let Some(wanted) = self.wanted.pop_front()
        {
            let read = self.ensemble.read(&wanted.path);
            self.reads.push(async move { (wanted, read.await) }.boxed());
        }
        if !self.has_caught_up && self.walk.is_none() && self.reads.is_empty() {
            self.has_caught_up = true;
            self.tree.catch_up();
        }
        let settles = if self.entries.is_empty() { self.tree.settles_at() } else { None };
        let settled = OptionFuture::from(settles.map(|at| tokio::time::sleep_until(at.into())));
        let recorded = OptionFuture::from(self.recorded.as_mut().map(|(_, events)| events.next()));
        let is_proving = self.proof.is_some();
        let proved = OptionFuture::from(self.proof.as_mut().map(|(_, answer)| answer));
        tokio::select! {
            // A reply comes after the events about the changes that it shows.
            biased;
            event = self.events.next() => {
                let first = event.ok_or(Interrupted::Over)?;
                self.take(first)?;
            }
            event = self.journal.next() => self.take_journal(event.ok_or(Interrupted::Over)?),
            Some(event) = recorded => self.take_record(event.ok_or(Interrupted::Over)?),
            Some(explanation) = self.entries.next() => {
                explanation.into_iter().for_each(|explanation| self.tree.change(explanation));
            }
            Some((wanted, node)) = self.reads.next() => self.answer(wanted, node),
            Some(found) = OptionFuture::from(self.walk.as_mut()) => {
                self.walk = None;
                match found {
                    Ok(walk) => self.tree.change(|tracker, now| tracker.end_walk(&walk, now)),
                    // A server in trouble. If the connection is lost, an event says so, and another walk begins when it is back.
                    Err(OpError::ConnectionLoss) => self.walk(),
                    // The events end.
                    Err(OpError::SessionOver) => {}
                    Err(fault) => {
                        let (path, reason) = (self.tree.root().to_owned(), fault.to_string());
                        let error = SessionError::Refused { path, reason };
                        return Err(Interrupted::Failed(error.into()));
                    }
                }
            }
            Some(answer) = proved => {
                let proof = self.proof.take().filter(|_| answer.is_ok());
                // If the connection was lost before the answer came, that event is here by now. It takes the proof away.
                if let Some(event) = self.events.next().now_or_never() {
                    self.proof = proof.map(|(sent, _)| (sent, std::future::ready(answer).boxed()));
                    return self.take(event.ok_or(Interrupted::Over)?);
                }
                if let Some((sent, _)) = proof {
                    self.tree.seen(|seen| seen.tracker.prove(sent));
                }
                self.proves_at = tokio::time::Instant::now() + PROOFS;
            }
            () = tokio::time::sleep_until(self.proves_at), if !is_proving && self.walk.is_none() => {
                self.proof = Some((self.tree.now(), self.ensemble.heartbeat().boxed()));
            }
            Some(()) = settled => self.tree.change(|tracker, now| tracker.settle(now)),
        }
        Ok(())
    }

    /// Handles an event, and those that have arrived with it.
    fn take(&mut self, first: TreeEvent) -> Result<(), Interrupted> {
        let mut next = Some(first);
        let mut batch = Vec::new();
        while let Some(event) = next.take() {
            match event {
                TreeEvent::Changed { path, change, at } => batch.push((path, change, at)),
                other => {
                    self.apply(&mut batch);
                    self.interrupt(&other);
                }
            }
            if batch.len() < BATCH {
                next = match self.events.next().now_or_never() {
                    Some(None) => return Err(Interrupted::Over),
                    Some(event) => event,
                    None => None,
                };
            }
        }
        self.apply(&mut batch);
        Ok(())
    }

    fn apply(&mut self, batch: &mut Vec<(Arc<str>, TreeChange, Instant)>) {
        if !batch.is_empty() {
            self.tree.apply(&std::mem::take(batch));
        }
    }

    /// Handles what interrupts the events.
    fn interrupt(&mut self, event: &TreeEvent) {
        match event {
            TreeEvent::Disconnected => {
                self.walk = None;
                self.proof = None;
                self.proves_at = tokio::time::Instant::now();
                self.reads.clear();
                self.wanted.clear();
                self.tree.lose(GapCause::Disconnected);
            }
            TreeEvent::Reconnected => self.walk(),
            TreeEvent::Missed(events) => {
                self.tree.lose(GapCause::Missed { events: *events });
                self.walk();
            }
            TreeEvent::Changed { .. } => {}
        }
    }

    /// Handles an event of the journal. It explains ends, so what it misses leaves some unexplained.
    fn take_journal(&mut self, event: TreeEvent) {
        if let TreeEvent::Changed { path, change: TreeChange::Created, .. } = event
            && path.rsplit('/').next().is_some_and(|name| name.starts_with("break-"))
        {
            let read = self.ensemble.read(&path);
            let entry = async move {
                let broken: Broken = serde_json::from_slice(&read.await.ok()?.data).ok()?;
                Some(Box::new(move |tracker: &mut Tracker, now| tracker.broke(&broken, now)) as Explanation)
            };
            self.entries.push(entry.boxed());
        }
    }

    /// Handles an event of the records. A record is written into a node that exists.
    fn take_record(&mut self, event: TreeEvent) {
        if let TreeEvent::Changed { path, change: TreeChange::Written, .. } = event
            && let Some((records, _)) = &self.recorded
            && records.may_be_at(&path)
        {
            let (read, records) = (self.ensemble.read(&path), Records::clone(records));
            let entry = async move {
                let end = records.read(&path, &read.await.ok()?.data)?;
                Some(Box::new(move |tracker: &mut Tracker, now| tracker.recorded(end, now)) as Explanation)
            };
            self.entries.push(entry.boxed());
        }
    }

    fn answer(&mut self, wanted: Wanted, node: Result<Node, OpError>) {
        match node {
            Ok(node) => self.tree.change(|tracker, now| tracker.answer(&wanted, Some(&node), now)),
            Err(OpError::NoNode) => self.tree.change(|tracker, now| tracker.answer(&wanted, None, now)),
            // A server in trouble. If the connection is lost, an event says so, and a walk asks again.
            Err(OpError::ConnectionLoss) => self.wanted.push_back(wanted),
            Err(OpError::SessionOver) => {}
            Err(_) => self.tree.change(|tracker, now| tracker.refuse(&wanted, now)),
        }
    }
}

/// Lists all nodes of a tree that are no contenders. The reads of this session are not older than the watch.
async fn walk_tree(ensemble: Arc<dyn Ensemble>, root: String, excluded: Arc<[String]>) -> Result<Walk, OpError> {
    let is_inside = |path: &str| path != "/zookeeper" && !is_of_records(path) && excluded.iter().all(|it| it != path);
    // The others with the name of a contender are read when the tracker has found them.
    let may_be_directory = |path: &str| {
        let format = own_place_of(path).map(|(_, name)| NodeFormat::of_node(&name));
        format.is_some_and(|format| !format.foreign_clients_wait_for_any_node())
    };
    walk(&*ensemble, &root, is_inside, may_be_directory).await
}
