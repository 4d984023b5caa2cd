//! The locks of a tree as they change, for screens that stay.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::{OptionFuture, join_all};
use lockkeeper::admin::LockInfo;
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_history::Habits;
use lockkeeper_observe::deadlock::{Deadlock, Search};
use lockkeeper_observe::table::LockRow;
use lockkeeper_observe::watch::{Notice, Observation, ObserveError, Observer, Options, View};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::evidence::{Look, habits};
use crate::exit::Failure;
use crate::inquiry::connect_to_ask;
use crate::place::Place;
use crate::servertime::ServerTime;
use crate::settings::Part;
use crate::table::recorded;
use crate::verbs::observe::{recorded_end, text, unobserved};

/// The shortest time between two looks at the changes, and between two drawings of them.
const PAUSE: Duration = Duration::from_millis(250);

/// Neither is done again before this many times as long as it took.
const SHARE: u32 = 20;

/// How long after a failure the next try begins.
const RETRY: Duration = Duration::from_secs(1);

/// How long after a search for rings the next one is made that confirms them.
const CONFIRMING: Duration = Duration::from_secs(1);

/// How long the difference between the clocks counts that the servers have told.
const ASKED: Duration = Duration::from_secs(60);

/// When something may be done again that took some time, so that it takes a bounded share of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(Instant);

impl Pace {
    /// It may be done now.
    pub(crate) fn new() -> Self {
        Pace(Instant::now())
    }

    /// Notes that it was done since then.
    pub(crate) fn done(&mut self, begun: Instant) {
        let now = Instant::now();
        self.0 = now + ((now - begun) * SHARE).max(PAUSE);
    }

    /// Resolves when it may be done again. Dropping the future leaves nothing behind.
    pub(crate) async fn due(self) {
        sleep_until(self.0).await;
    }
}

/// A lock, and what its records show.
#[derive(Debug)]
pub(crate) struct Shown {
    pub lock: LockInfo,
    pub habits: Option<Habits>,
}

/// The locks at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub locks: Vec<Arc<Shown>>,
    pub deadlocks: Vec<Deadlock>,
    /// Why a part of the locks is missing, or may be out of date.
    pub failures: Vec<String>,
    time: Option<Arc<(ServerTime, Instant)>>,
}

impl Snapshot {
    fn of<'s>(states: impl IntoIterator<Item = &'s PartState>) -> Self {
        let mut snapshot = Snapshot::default();
        for state in states {
            snapshot.locks.extend(state.locks.iter().cloned());
            snapshot.deadlocks.extend(state.deadlocks.iter().cloned());
            let failures = [&state.failure, &state.lost, &state.left_out];
            snapshot.failures.extend(failures.into_iter().flatten().cloned());
            snapshot.time = state.time.clone().or(snapshot.time);
        }
        snapshot
    }

    /// Returns the servers' time now, if it is known.
    pub(crate) fn now(&self) -> Option<SystemTime> {
        let (time, at) = self.time.as_deref()?;
        time.now.map(|now| now + at.elapsed())
    }

    /// What to say about this machine's clock.
    pub(crate) fn note(&self) -> Option<&str> {
        self.time.as_deref()?.0.note.as_deref()
    }

    /// Returns the row of each lock, which says nothing about it before [`judge`](crate::table::judge).
    pub(crate) fn rows(&self) -> Vec<LockRow<'_>> {
        let now = self.now();
        let all = self.locks.iter().map(AsRef::as_ref);
        all.map(|Shown { lock, habits }| LockRow::measured(lock, now, recorded(habits.as_ref()))).collect()
    }
}

/// What is known of one part; its default: nothing yet.
#[derive(Clone, Debug, Default)]
struct PartState {
    locks: Vec<Arc<Shown>>,
    deadlocks: Vec<Deadlock>,
    time: Option<Arc<(ServerTime, Instant)>>,
    /// Why it could not be read the last time.
    failure: Option<String>,
    /// Why changes are not seen.
    lost: Option<String>,
    /// Why some locks are missing.
    left_out: Option<String>,
    /// Whether its locks were read, or could not be.
    is_known: bool,
}

/// One part, and how its changes are noticed.
struct Source<'p> {
    part: &'p Part,
    keeper: Option<Lockkeeper>,
    told: watch::Sender<PartState>,
}

/// The locks that one observer sees.
struct Seen<'s> {
    keeper: &'s Lockkeeper,
    view: View,
    changes: watch::Receiver<u64>,
    locks: BTreeMap<Arc<str>, Arc<Shown>>,
    search: Search,
    /// When the last search for rings was made, if another one is to confirm what it has found.
    unconfirmed: Option<Instant>,
    time: Option<Arc<(ServerTime, Instant)>>,
}

impl Source<'_> {
    /// Follows the changes, and tells them.
    async fn run(mut self, again: watch::Receiver<()>, unwatched: impl Fn()) -> Infallible {
        loop {
            let failure = match self.observe(again.clone(), &unwatched).await {
                Ok(never) => match never {},
                Err(failure) => failure.message,
            };
            // What was seen before is still the best that is known.
            self.told.send_modify(|state| (state.failure, state.is_known) = (Some(failure), true));
            sleep(RETRY).await;
        }
    }

    async fn observe(&mut self, again: watch::Receiver<()>, unwatched: &impl Fn()) -> Result<Infallible, Failure> {
        let part = self.part;
        let keeper = match self.keeper.clone() {
            Some(keeper) => keeper,
            None => connect_to_ask(&part.settings).await?,
        };
        self.keeper = Some(keeper.clone());
        let observation = Observation::new(Options::default());
        let observer = Observer::new(&keeper, &part.root, part.others(), &observation).map_err(unobserved)?;
        let observer = observer.with_records(lockkeeper_history::ROOT, recorded_end);
        let seen = Seen {
            keeper: &keeper,
            view: observation.view(),
            changes: observation.changes(),
            locks: BTreeMap::new(),
            search: Search::default(),
            unconfirmed: None,
            time: None,
        };
        let ended = tokio::select! {
            ended = observer.run() => ended,
            never = self.note(&observation) => match never {},
            failed = self.tell(seen) => match failed {
                Ok(never) => match never {},
                Err(error) => return Err(Failure::from(error).scoped(&part.settings.place)),
            },
        };
        match ended {
            Ok(never) => match never {},
            Err(ObserveError::Unsupported { .. }) => {
                unwatched();
                self.read_when_asked(&keeper, again).await
            }
            Err(error) => Err(unobserved(error).at(&part.settings.place)),
        }
    }

    /// Tells what an observer sees.
    async fn tell(&self, mut seen: Seen<'_>) -> Result<Infallible, Error> {
        let mut pace = Pace::new();
        loop {
            seen.changes.borrow_and_update();
            let begun = Instant::now();
            match seen.view.refresh() {
                Some(changed) => {
                    seen.take(self.part, changed).await?;
                    self.told.send_modify(|state| seen.show(state));
                }
                // Its end is a change.
                None => seen.unconfirmed = None,
            }
            pace.done(begun);
            pace.due().await;
            if seen.view.is_late() {
                continue;
            }
            let confirms = OptionFuture::from(seen.unconfirmed.map(|at| sleep_until(at + CONFIRMING)));
            tokio::select! {
                _ = seen.changes.changed() => {}
                Some(()) = confirms => {}
            }
        }
    }

    /// Tells what an observer says of its connection.
    async fn note(&self, observation: &Observation) -> Infallible {
        loop {
            let notice = observation.next_notice().await;
            self.told.send_modify(|state| match &notice {
                Notice::Lost { .. } => (state.lost, state.is_known) = (Some(text(&notice)), true),
                Notice::Back { .. } | Notice::Started { .. } => state.lost = None,
                Notice::LeftOut { .. } => {
                    state.left_out = Some("too many locks or contenders: some are not shown".to_owned());
                }
                _ => {}
            });
        }
    }

    /// Reads the locks now and whenever it is asked to, at servers that have no watch of a tree.
    async fn read_when_asked(
        &self,
        keeper: &Lockkeeper,
        mut again: watch::Receiver<()>,
    ) -> Result<Infallible, Failure> {
        loop {
            let look = Look::at(keeper, self.part).await;
            let Look { locks, deadlocks, mut habits, time, .. } =
                look.map_err(|error| Failure::from(error).scoped(&self.part.settings.place))?;
            let shown = |lock: LockInfo| Arc::new(Shown { habits: habits.remove(&lock.path), lock });
            let locks = locks.into_iter().filter(|lock| self.part.has(&lock.path)).map(shown).collect();
            let time = Some(Arc::new((time, Instant::now())));
            self.told.send_replace(PartState { locks, deadlocks, time, is_known: true, ..PartState::default() });
            if again.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

impl Seen<'_> {
    /// Takes in the locks that have changed, and reads what their nodes do not show.
    async fn take(&mut self, part: &Part, changed: BTreeMap<Arc<str>, Option<LockInfo>>) -> Result<(), Error> {
        let admin = self.keeper.admin();
        let mut locks = Vec::new();
        for (path, lock) in changed {
            match lock {
                Some(lock) => locks.push(lock),
                None => _ = self.locks.remove(&path),
            }
        }
        let mut locks = admin.recall(locks).await?;
        let time = self.ask_time(part, &locks).await;
        if locks.is_empty() {
            return Ok(());
        }
        let mut habits = habits(self.keeper, &mut locks, time).await?;
        for lock in locks {
            let habits = habits.remove(&lock.path);
            self.locks.insert(lock.path.as_str().into(), Arc::new(Shown { lock, habits }));
        }
        Ok(())
    }

    /// Returns the servers' time now. The servers are asked again after a minute, if a lock changes.
    async fn ask_time(&mut self, part: &Part, changed: &[LockInfo]) -> Option<SystemTime> {
        let is_known = self.time.as_ref().is_some_and(|time| time.1.elapsed() < ASKED);
        let known = || self.locks.values().map(|shown| &shown.lock).chain(changed).collect::<Vec<_>>();
        let place = &part.settings.place;
        let stays = matches!(place, Place::Ensemble(_)) && (changed.is_empty() || is_known);
        if !stays {
            let time = ServerTime::at(place, &self.keeper.admin(), &known()).await;
            self.time = Some(Arc::new((time, Instant::now())));
        }
        let (time, at) = self.time.as_deref()?;
        time.now.map(|now| now + at.elapsed())
    }

    /// Shows what is known now.
    fn show(&mut self, state: &mut PartState) {
        if self.unconfirmed.is_none_or(|at| at.elapsed() >= CONFIRMING) {
            let lasting = self.search.lasting(self.locks.values().map(|shown| &shown.lock));
            self.unconfirmed = (!self.search.is_settled(&lasting)).then(Instant::now);
            state.deadlocks = lasting;
        }
        state.locks = self.locks.values().cloned().collect();
        state.time.clone_from(&self.time);
        (state.failure, state.is_known) = (None, true);
    }
}

/// Follows the locks of these parts, and tells them when they have changed. Ends when nobody listens.
///
/// An [`Observer`] of each part sees the changes through one watch of the tree, and reads what has changed. `unwatched` is called once for each part
/// whose servers have no such watch: then the locks are read when `again` asks for it. Between two looks at the changes it pauses for some times
/// as long as a look takes, so that many changes cost a bounded share of this process and of the servers.
///
/// Dropping the future leaves nothing behind.
pub(crate) async fn follow(
    parts: &[Part],
    told: &watch::Sender<Option<Arc<Snapshot>>>,
    again: watch::Receiver<()>,
    unwatched: impl Fn(),
) {
    let (sources, mut states): (Vec<_>, Vec<_>) = parts
        .iter()
        .map(|part| {
            let (told, state) = watch::channel(PartState::default());
            (Source { part, keeper: None, told }, state)
        })
        .unzip();
    let running = join_all(sources.into_iter().map(|source| source.run(again.clone(), &unwatched)));
    let telling = async {
        loop {
            let known: Vec<_> = states.iter_mut().map(|state| state.borrow_and_update().clone()).collect();
            if known.iter().all(|state| state.is_known) && told.send(Some(Arc::new(Snapshot::of(&known)))).is_err() {
                return;
            }
            let changed = states.iter_mut().map(|state| Box::pin(state.changed()));
            if futures_util::future::select_all(changed).await.0.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = told.closed() => {}
        () = telling => {}
        _ = running => {}
    }
}
