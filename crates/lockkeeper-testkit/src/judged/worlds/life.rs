//! Runs a scenario: lives, faults and requests to release run concurrently. Time passes only when nothing else can
//! happen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper::admin::Owner;
use lockkeeper::error::{AcquireError, AdminError, Error, SessionError};
use lockkeeper::guard::{HoldState, Permit, UpgradeableGuard};
use lockkeeper::{Class, FencingToken, Guard, Holding, Lockkeeper, WriteGuard};
use tokio::time::sleep;

use super::{Blow, Call, Change, End, Failure, Family, PERMITS, Problem, Ran, Scenario, Turn, Want};
use crate::judged::history::{Event, Grant, HoldId, Outcome, QueuePosition, Share, What, judge};
use crate::judged::sim::{Settings, Sim, Trouble};

const LOCK: &str = "/locks/simulated";

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
    let keepers: Vec<Lockkeeper> = (0..scenario.handles.max(1)).map(keeper).collect();
    let (family, lasting, hosts) = (scenario.family, scenario.lasting, keepers.len());
    let world = World { sim: sim.clone(), family, lasting, hosts, record: Arc::default() };
    let mut tasks = Vec::new();
    for (at, turns) in scenario.lives.iter().enumerate() {
        let (world, keeper, turns) = (world.clone(), keepers[at % keepers.len()].clone(), turns.clone());
        let contender = u32::try_from(at).unwrap_or(u32::MAX);
        tasks.push(tokio::spawn(async move {
            for turn in turns {
                world.turn(contender, &keeper, turn).await?;
            }
            Ok(())
        }));
    }
    let (pleading, keeper, pleas) = (world.clone(), keepers[0].clone(), scenario.pleas.clone());
    let pleading = tokio::spawn(async move {
        for plea in pleas {
            sleep(Duration::from_millis(plea.after)).await;
            pleading.plead(&keeper, plea.waiter).await?;
        }
        Ok(())
    });
    tasks.push(pleading);
    for strike in &scenario.strikes {
        sleep(Duration::from_millis(strike.after)).await;
        world.strike(strike.blow);
    }
    let mut unexpected = Vec::new();
    for task in tasks {
        // After the last fault, every wait ends. All turns take minutes if each one waits for all others.
        let ended = tokio::time::timeout(PATIENCE, task).await;
        match ended {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err::<(), String>(what))) => unexpected.push(what),
            Ok(Err(panic)) => unexpected.push(panic.to_string()),
            Err(_) => break,
        }
    }
    let stuck = world.pending();
    if stuck == 0 {
        for keeper in keepers {
            keeper.close().await;
        }
        // The nodes of a lost session are deleted with it.
        sleep(scenario.timeout() * 2).await;
        let nodes = sim.children(LOCK);
        world.add(0, world.now(), What::LeftBehind { nodes });
    }
    let history = std::mem::take(&mut world.record().events);
    unexpected.append(&mut world.record().unexpected);
    Lived { history, unexpected, sim }
}

#[derive(Clone)]
struct World {
    sim: Sim,
    family: Family,
    lasting: bool,
    /// The number of handles: each is a host of its own.
    hosts: usize,
    record: Arc<Mutex<Record>>,
}

#[derive(Default)]
struct Record {
    events: Vec<Event>,
    last: Duration,
    next: u64,
    inside: BTreeMap<HoldId, Inside>,
    /// The open requests: the contender, the time of the request, and the limit.
    asking: BTreeMap<u32, (Duration, Option<Duration>)>,
    /// Answers that no world may cause.
    unexpected: Vec<String>,
}

struct Inside {
    contender: u32,
    held: Held,
    lost: bool,
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

    fn add(&self, contender: u32, from: Duration, what: What) {
        let until = self.now();
        self.record().events.push(Event { contender, lock: 0, from, until, what });
    }

    /// Records the calls without an answer as pending.
    fn pending(&self) -> usize {
        let asking = std::mem::take(&mut self.record().asking);
        let stuck = asking.len();
        for (contender, (from, limit)) in asking {
            self.add(contender, from, What::Asked { limit, outcome: Outcome::Pending });
        }
        stuck
    }

    fn strike(&self, blow: Blow) {
        let trouble = |host: usize, trouble| self.sim.trouble(host % self.hosts, trouble);
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

    async fn plead(&self, keeper: &Lockkeeper, waiter: bool) -> Result<(), String> {
        let admin = keeper.admin();
        let outcome = if waiter {
            match admin.show(LOCK).await {
                Ok(seen) => match seen.waiters.first() {
                    Some(waiter) => admin.revoke_node(LOCK, &waiter.node, None).await.map(drop),
                    None => Ok(()),
                },
                Err(error) => Err(error),
            }
        } else {
            admin.revoke(LOCK, Some("because")).await.map(drop)
        };
        match outcome.map_err(Error::from) {
            Err(Error::Admin(AdminError::NoSuchLock { .. } | AdminError::NotContending { .. })) => Ok(()),
            Err(error) if !expected(&error) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    async fn turn(&self, contender: u32, keeper: &Lockkeeper, turn: Turn) -> Result<(), String> {
        sleep(Duration::from_millis(turn.pause)).await;
        let limit = match turn.call {
            Call::Try | Call::Within(0) => Some(TRY),
            Call::Within(limit) | Call::Dropped(limit) => Some(Duration::from_millis(limit)),
            Call::Wait => None,
        };
        let from = self.now();
        self.record().asking.insert(contender, (from, limit));
        let asked = self.ask(keeper, turn).await;
        self.record().asking.remove(&contender);
        let outcome = match asked {
            Some(Ok(held)) => {
                let hold = {
                    let mut record = self.record();
                    record.next += 1;
                    HoldId(record.next)
                };
                let place = if self.lasting { place(turn.want, &held.holding().node()) } else { None };
                let grant = Grant { hold, share: held.share(), token: held.token().map(FencingToken::get), place };
                self.add(contender, from, What::Asked { limit, outcome: Outcome::Granted(grant) });
                self.trust(contender, hold, held.holding());
                self.work(contender, hold, held, turn).await;
                return Ok(());
            }
            Some(Err(AcquireError::Held { .. })) => Outcome::Refused,
            Some(Err(AcquireError::Timeout { .. })) => Outcome::TimedOut,
            Some(Err(error)) if expected(&error.clone().into()) => Outcome::Failed(error.to_string()),
            Some(Err(error)) => return Err(error.to_string()),
            None => Outcome::Dropped,
        };
        self.add(contender, from, What::Asked { limit, outcome });
        Ok(())
    }

    async fn ask(&self, keeper: &Lockkeeper, turn: Turn) -> Option<Result<Held, AcquireError>> {
        match self.family {
            Family::Mutex(names) => {
                let lock = keeper.mutex(LOCK).node_format(names.into());
                answer(turn.call, |once| if once { lock.try_acquire() } else { lock.acquire() }, Held::Alone).await
            }
            Family::Shared(names) => {
                let lock = keeper.rwlock(LOCK).node_format(names.into());
                match turn.want {
                    Want::Read => {
                        let read = lock.read();
                        let ask = |once| if once { read.try_acquire() } else { read.acquire() };
                        answer(turn.call, ask, Held::Reads).await
                    }
                    Want::MayWrite => {
                        let may = lock.upgradeable();
                        let ask = |once| if once { may.try_acquire() } else { may.acquire() };
                        answer(turn.call, ask, Held::MayWrite).await
                    }
                    _ => {
                        let write = lock.write();
                        let ask = |once| if once { write.try_acquire() } else { write.acquire() };
                        answer(turn.call, ask, Held::Writes).await
                    }
                }
            }
            Family::Permits => {
                let take = if let Want::Permits(take) = turn.want { take } else { 1 };
                let lock = keeper.semaphore(LOCK, PERMITS);
                let ask = |once| if once { lock.try_acquire_many(take) } else { lock.acquire_many(take) };
                answer(turn.call, ask, |permit| Held::Permits(take, permit)).await
            }
            Family::Classes => {
                let lock = keeper.priority_lock(LOCK);
                let lock = match turn.want {
                    Want::Background => lock.background(),
                    Want::Ageing(after) => lock.background().ageing(Duration::from_millis(after), Class::FOREGROUND),
                    _ => lock.foreground(),
                };
                answer(turn.call, |once| if once { lock.try_acquire() } else { lock.acquire() }, Held::Alone).await
            }
        }
    }

    async fn work(&self, contender: u32, hold: HoldId, mut held: Held, turn: Turn) {
        let short = Duration::from_millis(1)..Duration::from_millis(300);
        for half in 0..2 {
            self.record().inside.insert(hold, Inside { contender, held, lost: false });
            let steps = if half == 0 { turn.steps } else { turn.steps.min(3) };
            for _ in 0..steps {
                let held = self.look(hold);
                let heeds = turn.heeds && self.asked_back(hold);
                if !held || heeds {
                    break;
                }
                sleep(self.sim.within(&short)).await;
            }
            let Some(inside) = self.record().inside.remove(&hold) else { return };
            let from = self.now();
            held = match change(inside.held, if half == 0 { turn.change } else { Change::None }).await {
                Changed::Same(held) => {
                    return self.end(contender, hold, held, turn.end).await;
                }
                Changed::Into(held) => held,
                Changed::Lost => return,
            };
            let (share, token) = (held.share(), held.token().map(FencingToken::get));
            self.add(contender, from, What::Changed { hold, share, token });
            self.trust(contender, hold, held.holding());
        }
    }

    /// Records how long a hold may be trusted.
    fn trust(&self, contender: u32, hold: HoldId, holding: &Holding) {
        let from = self.now();
        let (sure, left) = (holding.state() == HoldState::Held, holding.valid_for());
        self.add(contender, from, What::Trusted { hold, sure, left });
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
        let (mut seen, mut trusted) = (Vec::new(), Vec::new());
        for (hold, inside) in &mut self.record().inside {
            let held = inside.held.holding().is_held();
            if held || !inside.lost {
                seen.push((inside.contender, *hold, held));
            }
            inside.lost |= !held;
            let (sure, left) = (inside.held.holding().state() == HoldState::Held, inside.held.holding().valid_for());
            trusted.push((inside.contender, *hold, sure, left));
        }
        for (contender, hold, sure, left) in trusted {
            self.add(contender, from, What::Trusted { hold, sure, left });
            self.expect_suspicion(contender, hold, sure);
        }
        let mut own_held = false;
        for (contender, hold, held) in seen {
            own_held |= hold == own && held;
            self.add(contender, from, What::Looked { hold, held });
        }
        own_held
    }

    fn asked_back(&self, hold: HoldId) -> bool {
        let record = self.record();
        let Some(inside) = record.inside.get(&hold) else { return false };
        let asked = inside.held.holding().revocation_requested().is_some();
        if asked && hold.0.is_multiple_of(2) {
            inside.held.holding().refuse_revocation("busy").expect("the text is short");
            return false;
        }
        asked
    }

    async fn end(&self, contender: u32, hold: HoldId, held: Held, end: End) {
        let from = self.now();
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
        self.add(contender, from, What::Released { hold, confirmed });
    }
}

/// How much later than its client a hold may learn that the connection is lost.
const NOTICED: Duration = Duration::from_millis(1);

/// How long a call may take that tries once.
const TRY: Duration = Duration::from_secs(2);

/// Returns the number at the end of a node's name, as a position.
fn place(want: Want, node: &str) -> Option<QueuePosition> {
    let number: i64 = node.get(node.len().checked_sub(10)?..)?.parse().ok()?;
    let class = match want {
        Want::Foreground => 1,
        Want::Background => 2,
        // Its class changes while it waits; readers and permits have no order of their own.
        Want::Ageing(_) | Want::Read | Want::MayWrite | Want::Permits(_) => return None,
        Want::Lock => 0,
    };
    Some(QueuePosition { class, number: Some(number) })
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

/// Acquires as the script says; `None`: the caller dropped the call.
async fn answer<G: 'static>(
    call: Call,
    acquire: impl Fn(bool) -> lockkeeper::Acquire<G>,
    held: impl FnOnce(G) -> Held,
) -> Option<Result<Held, AcquireError>> {
    let answered = match call {
        Call::Try => Some(acquire(true).await),
        Call::Wait => Some(acquire(false).await),
        Call::Within(limit) => Some(acquire(false).timeout(Duration::from_millis(limit)).await),
        Call::Dropped(after) => tokio::time::timeout(Duration::from_millis(after), acquire(false)).await.ok(),
    };
    answered.map(|answered| answered.map(held))
}

#[derive(Debug)]
enum Held {
    Alone(Guard),
    Reads(Guard),
    Writes(WriteGuard),
    MayWrite(UpgradeableGuard),
    Permits(u32, Permit),
}

impl Held {
    fn share(&self) -> Share {
        match self {
            Held::Alone(_) | Held::Writes(_) => Share::Alone,
            Held::Reads(_) | Held::MayWrite(_) => Share::Reads,
            Held::Permits(take, _) => Share::Permits(*take),
        }
    }

    fn holding(&self) -> &Holding {
        match self {
            Held::Alone(guard) | Held::Reads(guard) => guard,
            Held::Writes(guard) => guard,
            Held::MayWrite(guard) => guard,
            Held::Permits(_, permit) => permit,
        }
    }

    fn token(&self) -> Option<FencingToken> {
        self.holding().fencing_token()
    }

    /// Releases; returns whether that is confirmed. The hold may have been lost before, which is no error of the
    /// library.
    async fn release(self) -> bool {
        let released = match self {
            Held::Alone(guard) | Held::Reads(guard) => guard.release().await,
            Held::Writes(guard) => guard.release().await,
            Held::MayWrite(guard) => guard.release().await,
            Held::Permits(_, permit) => permit.release().await,
        };
        released.is_ok()
    }
}

/// The result of a change of a hold.
enum Changed {
    Same(Held),
    Into(Held),
    Lost,
}

async fn change(held: Held, change: Change) -> Changed {
    match (held, change) {
        (Held::Writes(guard), Change::Down) => {
            guard.downgrade().await.map_or(Changed::Lost, |guard| Changed::Into(Held::Reads(guard)))
        }
        (Held::MayWrite(guard), Change::Down) => {
            guard.downgrade().await.map_or(Changed::Lost, |guard| Changed::Into(Held::Reads(guard)))
        }
        (Held::MayWrite(guard), Change::Up(patience)) => {
            let upgrade = guard.upgrade();
            let upgraded = match patience {
                Some(patience) => upgrade.timeout(Duration::from_millis(patience)).await,
                None => upgrade.await,
            };
            match upgraded {
                Ok(guard) => Changed::Into(Held::Writes(guard)),
                Err(error) => Changed::Same(Held::MayWrite(error.guard)),
            }
        }
        (held, _) => Changed::Same(held),
    }
}
