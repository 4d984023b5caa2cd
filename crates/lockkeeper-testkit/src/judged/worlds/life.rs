//! Runs a scenario: lives, faults and requests to release run concurrently. Time passes only when nothing else can
//! happen.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper::admin::{Broken, Owner};
use lockkeeper::error::{AcquireError, AdminError, Error, SessionError, WriteError};
use lockkeeper::guard::{FencedWrite, HoldState};
use lockkeeper::request::Access;
use lockkeeper::{CancellationToken, FencingToken, Guard, Holding, Lockkeeper, Loss};
use lockkeeper_election::{Demotion, Election};
use tokio::time::sleep;

use super::held::{Changed, Held, ask, candidate, change, each};
use super::{Act, Blow, Call, Change, End, Failure, Family, Problem, Ran, Scenario, Turn, Want};
use crate::judged::history::{Cause, Event, Grant, HoldId, Outcome, QueuePosition, Share, What, judge};
use crate::judged::sim::{Settings, Sim, Trouble};

/// The paths of the locks, by their numbers in the history. Most families have one.
pub(super) const LOCKS: [&str; 2] = ["/locks/simulated", "/locks/simulated2"];

/// The node that fenced writes change. Each one also creates a node below it.
const DATA: &str = "/data";

/// Time limit for waiters after the last fault: a longer wait would never end.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// Runs a scenario on this thread and judges its history.
pub fn run(scenario: &Scenario) -> Ran {
    let Lived { history, unexpected, .. } = simulate(live(scenario));
    let verdict = judge(&history, &scenario.promises());
    let mut problems: Vec<Problem> = unexpected.into_iter().map(Problem::Unexpected).collect();
    problems.extend(verdict.violations.into_iter().map(Problem::Broken));
    if problems.is_empty() { Ok(verdict.tally) } else { Err(Failure { problems, history }) }
}

/// What happened in a world.
pub(super) struct Lived {
    pub(super) history: Vec<Event>,
    /// Answers that no world may cause, and panics.
    pub(super) unexpected: Vec<String>,
    /// The world at its end.
    #[cfg_attr(not(test), allow(dead_code, reason = "only tests look at it"))]
    pub(super) sim: Sim,
}

/// Runs a scenario without judging it.
#[cfg(test)]
pub(super) fn lived(scenario: &Scenario) -> Lived {
    simulate(live(scenario))
}

/// Runs a world on this thread. Time passes only when nothing else can happen.
pub fn simulate<T>(world: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("an event loop can be made").block_on(world)
}

async fn live(scenario: &Scenario) -> Lived {
    let usual = Settings::default();
    let container_check = if scenario.lasting { Duration::from_secs(86_400) } else { usual.container_check };
    let slow = Duration::from_millis(scenario.slow);
    let fsync = usual.fsync.start + slow..usual.fsync.end + slow;
    let sim = Sim::new(scenario.noise, Settings { container_check, fsync, ..usual });
    let keeper = |handle| {
        // The same in every process, because the nodes name it.
        let owner = Owner { host: format!("host{handle}"), ..Owner::default() };
        let builder = Lockkeeper::builder().owner(owner).session_timeout(scenario.timeout());
        // With the slowest disks, the second attempt to connect succeeds after 12 s.
        builder.connect_timeout(scenario.timeout().max(Duration::from_secs(10))).simulated(sim.network())
    };
    sim.create(DATA);
    // A leader that fails loses what is not on the disks yet.
    sleep(Duration::from_secs(1) + slow).await;
    let handles: Vec<Handle> =
        (0..scenario.handles.max(1)).map(|at| Handle::new(keeper(at), scenario.family)).collect();
    let (lasting, hosts) = (scenario.lasting, handles.len());
    let noticed = scenario.noticed();
    // The process of the last contender, whose network has no faults.
    let last = Handle::new(keeper(hosts), scenario.family);
    // The process of those who ask for releases and break locks has the faults of the first handle.
    let pleader = Handle::new(keeper(hosts + 1), scenario.family);
    let world = World { sim: sim.clone(), lasting, hosts, noticed, record: Arc::default() };
    let observing = tokio::spawn({
        let (world, last) = (world.clone(), last.clone());
        async move {
            if last.family == Family::Elections {
                world.observe(&last).await
            }
        }
    });
    let mut tasks = Vec::new();
    for (at, turns) in scenario.lives.iter().enumerate() {
        let (world, handle, turns) = (world.clone(), handles[at % handles.len()].clone(), turns.clone());
        let contender = u32::try_from(at).unwrap_or(u32::MAX);
        tasks.push(tokio::spawn(async move {
            for turn in turns {
                world.turn(contender, &handle, turn).await?;
            }
            Ok(())
        }));
    }
    let (pleading, operator, pleas) = (world.clone(), pleader.keeper.clone(), scenario.pleas.clone());
    let pleading = tokio::spawn(async move {
        for plea in pleas {
            sleep(Duration::from_millis(plea.after)).await;
            pleading.plead(&operator, plea.act).await?;
        }
        Ok(())
    });
    tasks.push(pleading);
    for strike in &scenario.strikes {
        sleep(Duration::from_millis(strike.after)).await;
        world.strike(strike.blow);
    }
    let (mut unexpected, mut stuck) = (Vec::new(), false);
    for task in tasks {
        // After the last fault, every wait ends. All turns take minutes if each one waits for all others.
        let ended = tokio::time::timeout(PATIENCE, task).await;
        match ended {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err::<(), String>(what))) => unexpected.push(what),
            Ok(Err(panic)) => unexpected.push(panic.to_string()),
            Err(_) => {
                stuck = true;
                break;
            }
        }
    }
    if world.pending() == 0 && stuck {
        unexpected.push("a contender that has or had the lock waits for ever".to_owned());
    } else if !stuck {
        // The guards of a contender that panicked end here.
        world.record().inside.clear();
        for Handle { keeper, .. } in handles.into_iter().chain([pleader]) {
            if !keeper.close_within(PATIENCE).await {
                unexpected.push("a handle does not close".to_owned());
            }
        }
        // The nodes of a lost session are deleted with it.
        sleep(scenario.timeout() * 2).await;
        // An abandoned hold with a delay leaves a node until the next contender comes.
        // Another contender than all others, of the last host.
        let world = World { hosts: hosts + 1, ..world.clone() };
        let contender = u32::try_from(hosts + (hosts + 1) * scenario.lives.len()).unwrap_or(u32::MAX);
        if let Some(turn) = scenario.lives.iter().flatten().next() {
            let (call, change, end) = (Call::Wait, Change::None, End::Release);
            let turn = Turn { pause: 0, call, change, steps: 0, heeds: false, end, ..*turn };
            let ended = tokio::time::timeout(PATIENCE, world.turn(contender, &last, turn)).await;
            unexpected.extend(ended.unwrap_or(Ok(())).err());
            world.pending();
        }
        sleep(scenario.timeout()).await;
        observing.abort();
        world.look_back(&last.keeper).await;
        last.keeper.close().await;
        for (lock, path) in (0..).zip(LOCKS) {
            let mut nodes = sim.children(path);
            // The record of a leased lock is the node itself.
            let records = sim.children("/locks").into_iter().filter(|name| path.ends_with(&format!("/{name}")));
            nodes.extend(records.filter(|_| scenario.family == Family::Leased));
            world.add(0, lock, world.now(), What::LeftBehind { nodes });
        }
    }
    let history = std::mem::take(&mut world.record().events);
    unexpected.append(&mut world.record().unexpected);
    Lived { history, unexpected, sim }
}

/// A process: its session, and what its contenders have together.
#[derive(Clone)]
pub(super) struct Handle {
    pub(super) keeper: Lockkeeper,
    pub(super) family: Family,
    pub(super) kept: lockkeeper::Mutex,
    pub(super) joint: Access<Guard>,
}

impl Handle {
    fn new(keeper: Lockkeeper, family: Family) -> Self {
        let kept = keeper.mutex(LOCKS[0]).keep();
        let lock = keeper.rwlock(LOCKS[0]);
        let lock = if let Family::Shared(names) = family { lock.node_format(names.into()) } else { lock };
        Handle { joint: lock.read().share(), keeper, family, kept }
    }
}

#[derive(Clone)]
struct World {
    sim: Sim,
    lasting: bool,
    /// The number of handles: each is a host of its own.
    hosts: usize,
    /// How late a holder may learn that its hold was broken.
    noticed: Duration,
    record: Arc<Mutex<Record>>,
}

/// The holds of a fenced write with their locks and tokens, its times, and what the answer said.
type WriteMade = (Vec<(HoldId, u32, FencingToken)>, [Duration; 2], Option<bool>);

#[derive(Default)]
struct Record {
    events: Vec<Event>,
    last: Duration,
    next: u64,
    inside: BTreeMap<HoldId, Inside>,
    /// The holds that were found lost.
    lost: BTreeSet<HoldId>,
    /// The node and the token of each hold; another node after a change.
    nodes: Vec<(HoldId, (String, Option<FencingToken>))>,
    writes: Vec<WriteMade>,
    /// The breaks, and when the person had first looked at the lock.
    breaks: Vec<(Broken, Duration)>,
    /// The open requests: the contender, the time of the request, and the limit.
    asking: BTreeMap<u32, (Duration, Option<Duration>)>,
    /// Answers that no world may cause.
    unexpected: Vec<String>,
}

struct Inside {
    contender: u32,
    held: Held,
}

impl World {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("a panic in a world ends it anyway")
    }

    /// Returns the time, never the same twice, so that events of one moment keep their order.
    fn now(&self) -> Duration {
        let mut record = self.record();
        record.last = self.sim.elapsed().max(record.last + Duration::from_nanos(1));
        record.last
    }

    fn add(&self, contender: u32, lock: u32, from: Duration, what: What) {
        let until = self.now();
        self.record().events.push(Event { contender, lock, from, until, what });
    }

    /// Records the calls without an answer as pending.
    fn pending(&self) -> usize {
        let asking = std::mem::take(&mut self.record().asking);
        let stuck = asking.len();
        for (contender, (from, limit)) in asking {
            self.add(contender, 0, from, What::Asked { limit, outcome: Outcome::Pending });
        }
        stuck
    }

    fn strike(&self, blow: Blow) {
        let trouble = |host: usize, trouble| {
            self.sim.trouble(host % self.hosts, trouble);
            if host.is_multiple_of(self.hosts) {
                self.sim.trouble(self.hosts + 1, trouble);
            }
        };
        match blow {
            Blow::Cut(host) => trouble(host, Trouble::Cut),
            Blow::Silence(host, length) => trouble(host, Trouble::Silence(Duration::from_millis(length))),
            Blow::Slow(host, length) => trouble(host, Trouble::Slow(Duration::from_millis(length))),
            Blow::PingsOnly(host) => trouble(host, Trouble::PingsOnly),
            Blow::Server(server, length) => self.sim.server_fails(server, Duration::from_millis(length)),
            Blow::Leader(length) => self.sim.leader_fails(Duration::from_millis(length)),
            Blow::SlowDisk(delay, length) => {
                self.sim.slow_disk(Duration::from_millis(delay), Duration::from_millis(length));
            }
        }
    }

    async fn plead(&self, keeper: &Lockkeeper, act: Act) -> Result<(), String> {
        let (admin, path) = (keeper.admin(), LOCKS[self.sim.pick(LOCKS.len())]);
        let outcome = match act {
            Act::Revoke => admin.revoke(path, Some("because")).await.map(drop),
            Act::Break => {
                let from = self.sim.elapsed();
                let broken = admin.break_lock(path, "because").await;
                if let (Ok(broken), Some(seen)) = (&broken, self.sim.listed(self.hosts + 1, path, from)) {
                    self.record().breaks.push((broken.clone(), seen));
                }
                broken.map(drop)
            }
            Act::RevokeWaiter => match admin.show(path).await {
                Ok(seen) => match seen.waiters.first() {
                    Some(waiter) => admin.revoke_node(path, &waiter.node, None).await.map(drop),
                    None => Ok(()),
                },
                Err(error) => Err(error),
            },
            Act::Evict => match admin.show(path).await {
                Ok(seen) => {
                    let contenders: Vec<_> = seen.holders.iter().chain(&seen.waiters).collect();
                    match contenders.get(self.sim.pick(contenders.len().max(1))) {
                        Some(contender) => admin.evict(path, contender, "because").await.map(drop),
                        None => Ok(()),
                    }
                }
                Err(error) => Err(error),
            },
        };
        match outcome.map_err(Error::from) {
            Err(Error::Admin(
                AdminError::NoSuchLock { .. }
                | AdminError::NotContending { .. }
                | AdminError::NobodyHolds { .. }
                | AdminError::SeveralHold { .. },
            )) => Ok(()),
            Err(error) if !expected(&error) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    async fn turn(&self, contender: u32, handle: &Handle, turn: Turn) -> Result<(), String> {
        sleep(Duration::from_millis(turn.pause)).await;
        let limit = match turn.call {
            Call::Try | Call::Within(0) => Some(TRY),
            Call::Within(limit) | Call::Dropped(limit) => Some(Duration::from_millis(limit)),
            Call::Wait => None,
        };
        if turn.want == Want::Run {
            return self.run_for_office(contender, handle, (turn, limit)).await;
        }
        let from = self.now();
        self.record().asking.insert(contender, (from, limit));
        let asked = ask(handle, turn, format!("{contender}-{}", from.as_nanos())).await;
        self.record().asking.remove(&contender);
        let wanted = match turn.want {
            Want::Leased { priority, .. } => Some((priority, from)),
            Want::Foreground => Some((1, from)),
            // Until then, it is in the background.
            Want::Ageing(after) => Some((1, from + Duration::from_millis(after))),
            _ => None,
        };
        // A try of a leased lock asks no owner; one of the foreground is in the queue for a moment.
        let asks = turn.call != Call::Try || !matches!(turn.want, Want::Leased { .. });
        if let Some((priority, since)) = wanted.filter(|(_, since)| asks && *since < self.sim.elapsed()) {
            self.add(contender, 0, since, What::Wanted { priority });
        }
        let locks = match turn.want {
            Want::Both => 0..2,
            Want::Second => 1..2,
            _ => 0..1,
        };
        let several = locks.len() > 1;
        // Each of several locks is tried once.
        let limit = if turn.call == Call::Try && several { Some(TRY * 2) } else { limit };
        for lock in locks.clone().filter(|_| several) {
            self.add(contender, lock, from, What::Reserved);
        }
        let outcome = match asked {
            Some(Ok(held)) => {
                let hold = self.granted(contender, (from, limit), (held.holdings(), held.share()), turn.want);
                self.work(contender, hold, held, turn).await;
                return Ok(());
            }
            Some(Err(AcquireError::Held { .. })) => Outcome::Refused,
            Some(Err(AcquireError::Timeout { .. })) => Outcome::TimedOut,
            Some(Err(error)) if expected(&error.clone().into()) => Outcome::Failed(error.to_string()),
            Some(Err(error)) => return Err(error.to_string()),
            None => Outcome::Dropped,
        };
        for lock in locks {
            self.add(contender, lock, from, What::Asked { limit, outcome: outcome.clone() });
        }
        Ok(())
    }

    /// Records the grant of each lock of a guard. Returns the first of its holds.
    fn granted(
        &self,
        contender: u32,
        (from, limit): (Duration, Option<Duration>),
        (holdings, share): (&[Holding], Share),
        want: Want,
    ) -> HoldId {
        let first = {
            let mut record = self.record();
            let first = HoldId(record.next + 1);
            record.next += holdings.len() as u64;
            first
        };
        let holds = each(first, holdings);
        if want == Want::Both {
            let held = holds.iter().filter(|(.., holding)| holding.is_held()).count();
            self.add(contender, 0, from, What::Together { wanted: LOCKS.len(), held });
        }
        for (hold, lock, holding) in holds {
            let known = (holding.node(), holding.fencing_token());
            let first = self.record().nodes.iter().find(|(_, it)| *it == known).map(|(first, _)| *first);
            // The number of a node says more only if its parent lasts. A hold that made way has no other place than its number.
            let place = place(want, &known.0).filter(|_| self.lasting || want != Want::Background);
            let place = place.filter(|_| want != Want::Joint || first.is_some());
            let place = place.map(|it| QueuePosition { number: it.number.filter(|_| self.lasting), ..it });
            let place = if want == Want::Kept { Some(self.turn_of_use(contender, from)) } else { place };
            let grant = Grant { hold, share, token: known.1.map(FencingToken::get), place };
            self.add(contender, lock, from, What::Asked { limit, outcome: Outcome::Granted(grant) });
            match (first, want) {
                (Some(first), Want::Kept | Want::Joint) => self.add(contender, lock, from, What::Joins { hold, first }),
                (_, Want::Delayed(delay)) => {
                    let delay = Duration::from_millis(delay);
                    self.add(contender, lock, from, What::Delays { hold, delay });
                }
                (_, Want::Leased { .. }) => self.leased(contender, hold, from, want),
                _ => {}
            }
            self.record().nodes.push((hold, known));
            self.trust(contender, hold, lock, holding);
        }
        first
    }

    /// Returns the position of a use of a kept hold: a handle's uses come in the order of their calls.
    fn turn_of_use(&self, contender: u32, called: Duration) -> QueuePosition {
        let handle = u32::try_from(contender as usize % self.hosts).unwrap_or(u32::MAX);
        QueuePosition { class: FIRST_OF_USES.saturating_add(handle), number: i64::try_from(called.as_nanos()).ok() }
    }

    async fn work(&self, contender: u32, mut hold: HoldId, mut held: Held, turn: Turn) {
        for half in 0..2 {
            self.record().inside.insert(hold, Inside { contender, held });
            let steps = if half == 0 { turn.steps } else { turn.steps.min(3) };
            for _ in 0..steps {
                let held = self.look(hold);
                // One that does not heed makes way after its work, if a contender of an earlier class still waits then.
                let leaves = turn.heeds && (self.asked_back(hold) || half == 0 && self.makes_way(hold, turn.change));
                if !held || leaves {
                    break;
                }
                sleep(self.sim.within(&STEP)).await;
            }
            let Some(inside) = self.record().inside.remove(&hold) else { return };
            let from = self.now();
            held = match (inside.held, if half == 0 { turn.change } else { Change::None }) {
                (held, Change::Write(limit)) if held.share() == Share::Alone => {
                    let holds = held.each(hold).into_iter();
                    let holds = holds.filter_map(|(hold, lock, it)| Some((hold, lock, it.fencing_token()?))).collect();
                    self.write(holds, held.fenced_write(), limit).await;
                    held
                }
                (Held::Leased(guard), Change::Renew) => {
                    if guard.renew().await.is_ok() {
                        self.leased(contender, hold, from, turn.want);
                    }
                    Held::Leased(guard)
                }
                (Held::Alone(guard), Change::Yield) => match self.make_way(contender, hold, guard, turn.want).await {
                    Some((next, guard)) => {
                        hold = next;
                        Held::Alone(guard)
                    }
                    None => return,
                },
                (held, wanted) => match change(held, wanted).await {
                    Changed::Same(held) => return self.end(contender, hold, held, turn.end).await,
                    Changed::Lost => return,
                    Changed::Into(held) => {
                        let (share, token) = (held.share(), held.holding().fencing_token().map(FencingToken::get));
                        let known = (held.holding().node(), held.holding().fencing_token());
                        self.record().nodes.push((hold, known));
                        self.add(contender, 0, from, What::Changed { hold, share, token });
                        self.trust(contender, hold, 0, held.holding());
                        held
                    }
                },
            };
        }
        self.end(contender, hold, held, turn.end).await;
    }

    /// Records that a lease began, between `from` and now.
    fn leased(&self, contender: u32, hold: HoldId, from: Duration, want: Want) {
        let Want::Leased { lease, priority, strict } = want else { return };
        let (lease, now) = (Duration::from_millis(lease), self.now());
        // The owner knows the servers' clock as exactly as the servers answer.
        let ends = ((from + lease).saturating_sub(self.noticed), now + lease);
        self.add(contender, 0, from, What::Leased { hold, priority, strict, ends });
    }

    /// Runs with hooks, for one term at most.
    async fn run_for_office(
        &self,
        contender: u32,
        handle: &Handle,
        (turn, limit): (Turn, Option<Duration>),
    ) -> Result<(), String> {
        let from = self.now();
        self.record().asking.insert(contender, (from, limit));
        let candidate = candidate(handle, format!("{contender}-{}", from.as_nanos()));
        let stop = CancellationToken::new();
        // The hold, and when it began to step down.
        let term = Arc::new(Mutex::new(None::<(HoldId, Duration)>));
        let shared = || (self.clone(), term.clone(), stop.clone());
        let run = candidate.run(
            &stop,
            |leadership, demoted| {
                let (world, term, _) = shared();
                Box::pin(async move {
                    world.record().asking.remove(&contender);
                    let holding = std::slice::from_ref::<Holding>(leadership);
                    let hold = world.granted(contender, (from, None), (holding, Share::Alone), turn.want);
                    *term.lock().expect("no panic") = Some((hold, world.now()));
                    for _ in 0..turn.steps {
                        let (from, held) = (world.now(), leadership.is_leading());
                        world.add(contender, 0, from, What::Looked { hold, held });
                        if demoted.is_cancelled() {
                            break;
                        }
                        sleep(world.sim.within(&STEP)).await;
                    }
                })
            },
            |demotion| {
                let ((world, term, stop), held) = (shared(), !matches!(demotion, Demotion::Lost(_)));
                Box::pin(async move {
                    let from = world.now();
                    if let Some((hold, at)) = &mut *term.lock().expect("no panic") {
                        // Except after a loss, the candidate leads until this hook has ended.
                        world.add(contender, 0, from, What::Looked { hold: *hold, held });
                        *at = from;
                    }
                    stop.cancel();
                })
            },
        );
        let stopping = async {
            match turn.call {
                Call::Dropped(after) => sleep(Duration::from_millis(after)).await,
                _ => {
                    sleep(limit.unwrap_or(Duration::MAX)).await;
                    stop.cancel();
                    std::future::pending().await
                }
            }
        };
        let ended = tokio::select! {
            biased;
            ended = run => Some(ended),
            () = stopping => None,
        };
        self.record().asking.remove(&contender);
        let term = *term.lock().expect("no panic");
        let outcome = match (term, ended) {
            (Some((hold, at)), ended) => {
                let confirmed = matches!(ended, Some(Ok(())));
                self.add(contender, 0, at, What::Released { hold, confirmed });
                return Ok(());
            }
            (None, Some(Ok(()))) => Outcome::TimedOut,
            (None, Some(Err(error))) if expected(&error) => Outcome::Failed(error.to_string()),
            (None, Some(Err(error))) => return Err(error.to_string()),
            (None, None) => Outcome::Dropped,
        };
        // It is stopped then, which is no deadline of the call.
        self.add(contender, 0, from, What::Asked { limit: None, outcome });
        Ok(())
    }

    /// Records what an observer of the election reports.
    async fn observe(&self, handle: &Handle) {
        let mut observer = Election::new(&handle.keeper, LOCKS[0]).observe();
        loop {
            match observer.next().await {
                Ok(leader) => {
                    let token = leader.and_then(|leader| leader.token).map(FencingToken::get);
                    self.add(u32::MAX, 0, self.now(), What::Reported { token });
                }
                Err(error) if expected(&error) => sleep(Duration::from_secs(1)).await,
                Err(error) => return self.record().unexpected.push(error.to_string()),
            }
        }
    }

    fn makes_way(&self, hold: HoldId, change: Change) -> bool {
        let record = self.record();
        change == Change::Yield && record.inside.get(&hold).is_some_and(|inside| inside.held.holding().should_yield())
    }

    /// Makes way, if the hold is asked to. Returns the hold with which it goes on.
    async fn make_way(&self, contender: u32, hold: HoldId, guard: Guard, want: Want) -> Option<(HoldId, Guard)> {
        if !guard.should_yield() {
            return Some((hold, guard));
        }
        let from = self.now();
        self.record().asking.insert(contender, (from, None));
        let again = guard.yield_lock().await;
        self.record().asking.remove(&contender);
        self.add(contender, 0, from, What::Yielded { hold });
        match again {
            Ok(guard) => {
                let holding = std::slice::from_ref::<Holding>(&guard);
                Some((self.granted(contender, (from, None), (holding, Share::Alone), want), guard))
            }
            Err(error) => {
                // It waits without a limit, also if it only tried before.
                let limited = matches!(error, AcquireError::Held { .. } | AcquireError::Timeout { .. });
                if limited || !expected(&error.clone().into()) {
                    self.record().unexpected.push(error.to_string());
                }
                self.add(contender, 0, from, What::Asked { limit: None, outcome: Outcome::Failed(error.to_string()) });
                None
            }
        }
    }

    /// Writes the node of the data, if the lock is held. Another node shows afterwards whether it did.
    async fn write(&self, holds: Vec<(HoldId, u32, FencingToken)>, write: FencedWrite<'_>, limit: Option<u64>) {
        let Some((first, _, token)) = holds.first() else { return };
        let node = format!("{DATA}/{}", first.0);
        let write = write.set(DATA, token.to_string()).create(&node, "").into_future();
        let from = self.now();
        let answered = match limit {
            Some(limit) => tokio::time::timeout(Duration::from_millis(limit), write).await.ok(),
            None => Some(write.await),
        };
        let answer = match answered {
            Some(Ok(_)) => Some(true),
            Some(Err(WriteError::Lost { .. } | WriteError::NotSent { .. })) => Some(false),
            Some(Err(WriteError::Unknown { .. })) | None => None,
            Some(Err(error)) => {
                self.record().unexpected.push(error.to_string());
                return;
            }
        };
        let times = [from, self.now()];
        self.record().writes.push((holds, times, answer));
    }

    /// Records what the servers know at the end: the writes that took effect, and the holds that were broken.
    async fn look_back(&self, keeper: &Lockkeeper) {
        let written = self.sim.below(DATA);
        let writes = std::mem::take(&mut self.record().writes);
        for (holds, [from, until], answer) in writes {
            let node = holds.first().map(|(first, ..)| first.0.to_string()).unwrap_or_default();
            let done = written.iter().find(|(name, ..)| *name == node).map(|(_, txn, at)| (*txn, *at));
            for (hold, lock, token) in holds {
                let what = What::Fenced { hold, token: token.get(), answer, done };
                self.record().events.push(Event { contender: 0, lock, from, until, what });
            }
        }
        let broken: Vec<Broken> = match keeper.admin().broken("/").await {
            Ok(broken) => broken,
            Err(error) => return self.record().unexpected.push(error.to_string()),
        };
        let nodes = self.record().nodes.clone();
        let breaks = std::mem::take(&mut self.record().breaks);
        for (broken, seen) in breaks {
            let of = |(_, (node, token)): &&(HoldId, (String, _))| broken.removed(node, *token);
            let hold = nodes.iter().rfind(of);
            let lock = u32::from(broken.path == LOCKS[1]);
            let event = |(hold, _): &(HoldId, _)| Event {
                contender: 0,
                lock,
                from: seen,
                until: seen,
                what: What::Aimed { hold: *hold },
            };
            let event = hold.map(event);
            self.record().events.extend(event);
        }
        for (hold, (node, token)) in nodes {
            let is_lost = self.record().lost.contains(&hold);
            for broken in &broken {
                // In a lock with classes, one that was read as a waiter had no token yet.
                // It is not known which owner of a leased lock had no token.
                let is_any = LOCKS.contains(&node.as_str()) && broken.token.is_none();
                let token = token.filter(|_| (broken.held || !is_lost) && !is_any);
                // The node of a delay has the id of its hold's node.
                let what = match broken.node.strip_prefix("_s_").and_then(|rest| rest.get(..36)) {
                    Some(id) if node.contains(id) => What::Pardoned { hold },
                    None if broken.removed(&node, token) => What::Broken { hold, within: self.noticed },
                    _ => continue,
                };
                let from = self.sim.time_of(broken.at);
                let (lock, until) = (u32::from(broken.path == LOCKS[1]), from + Duration::from_millis(1));
                self.record().events.push(Event { contender: 0, lock, from, until, what });
            }
        }
    }

    /// Records how long a hold may be trusted.
    fn trust(&self, contender: u32, hold: HoldId, lock: u32, holding: &Holding) {
        let from = self.now();
        let (sure, left) = (holding.state() == HoldState::Held, holding.valid_for());
        self.add(contender, lock, from, What::Trusted { hold, sure, left });
        self.expect_suspicion(contender, hold, sure);
    }

    /// A hold must be suspected as soon as the client knows that it has no connection.
    fn expect_suspicion(&self, contender: u32, hold: HoldId, sure: bool) {
        let alone = self.sim.alone_for(contender as usize % self.hosts);
        if sure && alone > NOTICED {
            let problem = format!("{hold:?} is not suspected {alone:?} after its connection was lost");
            self.record().unexpected.push(problem);
        }
    }

    /// Does a step of work. Checks every hold, because a check certifies all earlier ones. Returns whether this one is
    /// still held.
    fn look(&self, own: HoldId) -> bool {
        let from = self.now();
        let (mut seen, mut ended) = (Vec::new(), Vec::new());
        {
            let record = &mut *self.record();
            for (first, inside) in &record.inside {
                for (hold, lock, holding) in inside.held.each(*first) {
                    let held = inside.held.is_believed(holding);
                    // A loss is recorded once.
                    let known = !held && !record.lost.insert(hold);
                    if let (Held::Leased(_), Some(loss), false) = (&inside.held, holding.loss(), known) {
                        ended.push((inside.contender, hold, loss));
                    }
                    let (sure, left) = (holding.state() == HoldState::Held, holding.valid_for());
                    seen.push((inside.contender, lock, *first, hold, (held, known), (sure, left)));
                }
            }
        }
        for (contender, hold, loss) in ended {
            let cause = match loss {
                Loss::LeaseEnded => Cause::LeaseEnded,
                Loss::Preempted => Cause::Preempted,
                _ => Cause::Other,
            };
            self.add(contender, 0, from, What::Ended { hold, cause });
        }
        let mut own_held = true;
        for (contender, lock, first, hold, (held, known), (sure, left)) in seen {
            self.add(contender, lock, from, What::Trusted { hold, sure, left });
            self.expect_suspicion(contender, hold, sure);
            own_held &= first != own || held;
            if !known {
                self.add(contender, lock, from, What::Looked { hold, held });
            }
        }
        own_held
    }

    fn asked_back(&self, hold: HoldId) -> bool {
        let record = self.record();
        let Some(inside) = record.inside.get(&hold) else { return false };
        if let Held::Leased(guard) = &inside.held {
            return guard.preempted_by().is_some();
        }
        let asked = inside.held.holding().revocation_requested().is_some();
        if asked && hold.0.is_multiple_of(2) {
            inside.held.holding().refuse_revocation("busy").expect("the text is short");
            return false;
        }
        asked
    }

    async fn end(&self, contender: u32, hold: HoldId, held: Held, end: End) {
        let from = self.now();
        let holds: Vec<_> = held.each(hold).into_iter().map(|(hold, lock, _)| (hold, lock)).collect();
        let confirmed = match end {
            End::Release => held.release().await,
            End::Drop => {
                drop(held);
                false
            }
            End::Forget => {
                use futures_util::FutureExt;
                held.release().now_or_never().unwrap_or(false)
            }
        };
        for (hold, lock) in holds {
            self.add(contender, lock, from, What::Released { hold, confirmed });
        }
    }
}

/// The time of a step of work.
const STEP: Range<Duration> = Duration::from_millis(1)..Duration::from_millis(300);

/// How much later than its client a hold may learn that the connection is lost.
const NOTICED: Duration = Duration::from_millis(1);

/// The class of the uses of the first handle's kept hold. Those of each later handle have one more.
const FIRST_OF_USES: u32 = 100;

/// How long a call may take that tries once.
const TRY: Duration = Duration::from_secs(2);

/// Returns the number at the end of a node's name, as a position.
fn place(want: Want, node: &str) -> Option<QueuePosition> {
    let number: i64 = node.get(node.len().checked_sub(10)?..)?.parse().ok()?;
    let (class, number) = match want {
        Want::Foreground => (1, Some(number)),
        Want::Background => (2, Some(number)),
        // It joins the second queue later than it asks.
        Want::Both => (3, Some(number)),
        // Its class changes while it waits; leases have no queue.
        Want::Ageing(_) | Want::Leased { .. } => return None,
        // Its hold may have been requested by another.
        Want::Joint => (4, None),
        // Its position is that of its call: see `World::turn_of_use`.
        Want::Kept => return None,
        Want::Read | Want::MayWrite | Want::Permits(_) => (0, None),
        Want::Lock | Want::Second | Want::Delayed(_) | Want::Campaign | Want::Stand | Want::Run => (0, Some(number)),
    };
    Some(QueuePosition { class, number })
}

/// Whether this world may cause this error.
fn expected(error: &Error) -> bool {
    matches!(
        error,
        Error::Session(SessionError::Unreachable { .. } | SessionError::ConnectionLost { .. })
            | Error::Acquire(
                AcquireError::Held { .. }
                    | AcquireError::Timeout { .. }
                    | AcquireError::SessionLost { .. }
                    | AcquireError::Evicted { .. }
                    | AcquireError::Revoked { .. }
            )
    )
}
