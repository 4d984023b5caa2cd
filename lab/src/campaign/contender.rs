//! A contender: a process with the real library, which can be killed, stopped and disconnected.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use lockkeeper::error::{AcquireError, ConnectError, Error, ErrorKind, SessionError, WriteError};
use lockkeeper::request::Access;
use lockkeeper::{Guard, Holding, Lockkeeper, Loss, MultiGuard, Mutex, NodeFormat, Request};
use lockkeeper_election::{Election, Leadership};
use lockkeeper_fence::{FencedFile, FencingToken, FileError};
use lockkeeper_helix::{AcquireLeaseError, HelixGuard, HelixLock};
use lockkeeper_testkit::history::{Event, Grant, HoldId, Outcome, Share, What};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::judge::Word;
use crate::testbed::SESSION_TIMEOUT;
use crate::tools::{Log, now};

/// The delay of a hold of the first lock that has one.
const DELAY: Duration = Duration::from_secs(1);

/// A lease, and how long its owner may clean up.
const LEASE: Duration = Duration::from_secs(3);
const CLEANUP: Duration = Duration::from_secs(1);

/// What a contender needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Contender {
    pub(super) contender: u32,
    /// The connect string of the servers.
    pub(super) servers: String,
    /// The seed of its actions.
    pub(super) seed: u64,
    /// The file of its log.
    pub(super) log: PathBuf,
    /// The locks: their numbers, their paths, and the files with the numbers that their holders increment, behind gates.
    pub(super) locks: Vec<(u32, String, PathBuf)>,
    /// The time after which it requests no lock.
    pub(super) until: Duration,
    /// The file that exists when no contender requests a lock any more.
    pub(super) over: PathBuf,
}

impl Contender {
    /// Contends until the end of the run.
    pub(crate) fn run(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(live(self))
    }
}

async fn live(options: &Contender) -> Result<()> {
    let mut log = Log::open(&options.log)?;
    let mut say = |word: Word| log.say(&(now(), word));
    let gates: Vec<_> = options.locks.iter().map(|(.., file)| FencedFile::new(file).any_epoch()).collect();
    let rng = &mut fastrand::Rng::with_seed(options.seed);
    let contender = options.contender;
    let keeper = loop {
        let builder = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).connect_timeout(SESSION_TIMEOUT);
        match builder.connect(&options.servers).await {
            Ok(keeper) => break keeper,
            Err(ConnectError::Session(SessionError::Unreachable { .. })) => {}
            Err(error) => return Ok(say(Word::Unexpected(format!("connecting: {error}")))?),
        }
    };
    let mut locks = Locks::new(&keeper, options);
    // Every third contender.
    let careless = contender.is_multiple_of(3);
    let mut holds = 0;
    loop {
        sleep(Duration::from_millis(rng.u64(..30))).await;
        let wanted = ChaosLock::ALL[rng.usize(..ChaosLock::ALL.len())];
        let limit = (rng.u8(..3) == 0).then(|| Duration::from_millis(rng.u64(..4000)));
        let from = now();
        if from > options.until || options.over.exists() {
            break;
        }
        if wanted == ChaosLock::Mutex && rng.u8(..10) == 0 {
            if let Err(error) = locks.break_mutex().await {
                say(Word::Unexpected(format!("contender {contender} breaks: {error}")))?;
            }
            continue;
        }
        let (lock, path, _) = &options.locks[wanted as usize];
        say(Word::Asking { lock: *lock, limit })?;
        let asked = locks.ask(rng, wanted, limit).await;
        let event = |lock: &u32, from, what| Word::Did(Event { contender, lock: *lock, from, until: now(), what });
        let outcome = match asked {
            Some(Ok(held)) => Ok(held),
            Some(Err(AcquireError::Held { .. })) => Err(Outcome::Refused),
            Some(Err(AcquireError::Timeout { .. })) => Err(Outcome::TimedOut),
            Some(Err(error)) => {
                // A person broke it before its caller knew of the grant.
                let is_broken = matches!(error, AcquireError::Evicted { .. });
                if !error.kind().is_retryable() && !is_broken {
                    say(Word::Unexpected(format!("contender {contender} at {path}: {error}")))?;
                }
                Err(Outcome::Failed(error.to_string()))
            }
            None => Err(Outcome::Dropped),
        };
        let held = match outcome {
            Ok(held) => held,
            Err(outcome) => {
                say(event(lock, from, What::Asked { limit, outcome }))?;
                continue;
            }
        };
        let share = held.share;
        let mut uses: Vec<Use> = Vec::new();
        for holding in held.holdings() {
            holds += 1;
            let hold = HoldId(u64::from(contender) << 32 | holds);
            let at = options.locks.iter().position(|(_, path, _)| path == holding.path()).unwrap_or(wanted as usize);
            let token = holding.fencing_token();
            let grant = Grant { hold, share, token: token.map(FencingToken::get), place: None };
            let lock = &options.locks[at].0;
            say(event(lock, from, What::Asked { limit, outcome: Outcome::Granted(grant) }))?;
            if let Some(first) = locks.first_use((holding.node(), token), hold) {
                say(event(lock, from, What::Joins { hold, first }))?;
            }
            if let Some(delay) = held.delay {
                say(event(lock, from, What::Delays { hold, delay }))?;
            }
            uses.push(Use { hold, at, token, version: None });
        }
        let granted = now();
        // Sometimes longer than a session lives without its servers.
        let steps = if rng.u8(..20) == 0 { 120 } else { rng.u8(..6) };
        'steps: for _ in 0..steps {
            for (own, holding) in uses.iter_mut().zip(held.holdings()) {
                let ((lock, _, file), hold, from) = (&options.locks[own.at], own.hold, now());
                let believed = holding.is_held();
                say(event(lock, from, What::Looked { hold, held: believed }))?;
                // A careless contender writes after a loss too: the gate must reject that.
                if let (Share::Alone, Some(token), true) = (share, own.token, believed || careless) {
                    let from = now();
                    let (order, accepted) = write(&gates[own.at], file, token)?;
                    say(event(lock, from, What::Wrote { hold, token: token.get(), order, accepted }))?;
                    if let Err(what) = own.write_fenced(holding).await {
                        say(Word::Unexpected(format!("contender {contender} at {}: {what}", holding.path())))?;
                    }
                }
                if holding.loss() == Some(Loss::Removed) {
                    // A person broke the lock: the holder learns of that later than the next one.
                    say(event(lock, granted, What::Excused { hold, beside: None }))?;
                    // A break leaves no delay.
                    say(event(lock, granted, What::Pardoned { hold }))?;
                }
                if !believed && !careless {
                    break 'steps;
                }
            }
            if held.should_yield() {
                break;
            }
            sleep(Duration::from_millis(rng.u64(1..40))).await;
        }
        let from = now();
        let confirmed = match rng.u8(..3) {
            0 => {
                drop(held);
                false
            }
            _ => held.release().await,
        };
        for Use { hold, at, .. } in uses {
            say(event(&options.locks[at].0, from, What::Released { hold, confirmed }))?;
        }
    }
    keeper.close().await;
    Ok(())
}

/// Reads the number in a file; 0 if nothing has written to it.
pub(super) fn number(file: &Path) -> u64 {
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Increments a number under a token; returns the number, and whether the gate accepted the token.
fn write(gate: &FencedFile, file: &Path, token: FencingToken) -> Result<(u64, bool)> {
    let write = || {
        drop(gate.enter(token)?);
        let order = number(file) + 1;
        gate.replace(token, order.to_string()).map(|()| order)
    };
    match write() {
        Ok(order) => Ok((order, true)),
        Err(FileError::Refused { .. }) => Ok((0, false)),
        Err(error) => Err(error.into()),
    }
}

/// The kinds of locks, each with a lock of its own, in the order of [`Contender::locks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChaosLock {
    /// A mutex, sometimes with a lock delay. It is broken now and then.
    Mutex,
    /// The same with names that carry no id.
    Recipe,
    /// Readers and writers. Readers of a process share a node, or not.
    Readers,
    /// A mutex that is kept between two uses.
    Kept,
    /// A mutex that is acquired alone, or together with the first.
    Second,
    /// Foreground and background.
    Classes,
    Leased,
    Election,
}

impl ChaosLock {
    pub(super) const ALL: [ChaosLock; 8] = [
        ChaosLock::Mutex,
        ChaosLock::Recipe,
        ChaosLock::Readers,
        ChaosLock::Kept,
        ChaosLock::Second,
        ChaosLock::Classes,
        ChaosLock::Leased,
        ChaosLock::Election,
    ];
}

/// A hold while it is used.
struct Use {
    hold: HoldId,
    /// The number of its lock.
    at: usize,
    token: Option<FencingToken>,
    /// The version of the node that its last fenced write has left.
    version: Option<i32>,
}

impl Use {
    /// Writes a node if the lock is held. Nobody else writes it meanwhile, because a write of an earlier hold can take effect no more.
    async fn write_fenced(&mut self, holding: &Holding) -> Result<(), String> {
        let (node, text) = (data(holding.path()), holding.fencing_token().map(|token| token.to_string()));
        let (write, text) = (holding.fenced_write(), text.unwrap_or_default());
        let written = match self.version {
            Some(version) => write.set_if(&node, text.clone(), version).await,
            None => write.set(&node, text.clone()).await,
        };
        let written = match written {
            Err(WriteError::NoNode { .. }) => holding.fenced_write().create(&node, text).await,
            written => written,
        };
        match written {
            Ok(written) => self.version = written.version(&node),
            // It may have taken effect, or not.
            Err(WriteError::Unknown { .. }) => self.version = None,
            Err(WriteError::Lost { .. } | WriteError::NotSent { .. }) => {}
            Err(error) if error.kind().is_retryable() => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }
}

/// The node that the fenced writes of this lock's holders change.
fn data(lock: &str) -> String {
    format!("/fenced-{}", lock.rsplit('/').next().unwrap_or_default())
}

/// A hold of any kind, or several.
struct Held {
    guard: AnyGuard,
    share: Share,
    delay: Option<Duration>,
}

enum AnyGuard {
    One(Guard),
    Several(MultiGuard),
    Leased(HelixGuard),
    Leads(Leadership),
}

impl Held {
    fn alone(guard: AnyGuard) -> Self {
        Held { guard, share: Share::Alone, delay: None }
    }

    fn holdings(&self) -> &[Holding] {
        match &self.guard {
            AnyGuard::One(guard) => std::slice::from_ref(guard),
            AnyGuard::Several(guard) => guard.holdings(),
            AnyGuard::Leased(guard) => std::slice::from_ref(guard),
            AnyGuard::Leads(leadership) => std::slice::from_ref(leadership),
        }
    }

    fn should_yield(&self) -> bool {
        matches!(&self.guard, AnyGuard::One(guard) if guard.should_yield())
    }

    /// Releases, and says whether that is confirmed. One of the background makes way for the foreground first.
    async fn release(self) -> bool {
        match self.guard {
            AnyGuard::One(guard) if guard.should_yield() => match guard.yield_lock().await {
                Ok(again) => again.release().await.is_ok(),
                Err(_) => false,
            },
            AnyGuard::One(guard) => guard.release().await.is_ok(),
            AnyGuard::Several(guard) => guard.release().await.is_ok(),
            AnyGuard::Leased(guard) => guard.release().await.is_ok(),
            AnyGuard::Leads(leadership) => leadership.resign().await.is_ok(),
        }
    }
}

/// The locks of a process.
struct Locks<'a> {
    keeper: &'a Lockkeeper,
    paths: Vec<&'a str>,
    kept: Mutex,
    shared: Access<Guard>,
    user: String,
    /// The first use of each hold, by its node and its token: all holds of a leased lock have one node.
    first_uses: HashMap<(String, Option<FencingToken>), HoldId>,
}

impl<'a> Locks<'a> {
    fn new(keeper: &'a Lockkeeper, options: &'a Contender) -> Self {
        let paths: Vec<_> = options.locks.iter().map(|(_, path, _)| path.as_str()).collect();
        let kept = keeper.mutex(paths[ChaosLock::Kept as usize]).keep();
        let shared = keeper.rwlock(paths[ChaosLock::Readers as usize]).read().share();
        // As the observer shows processes.
        let user = format!("contender {} (pid {})", options.contender, std::process::id());
        Locks { keeper, paths, kept, shared, user, first_uses: HashMap::new() }
    }

    /// The first use of the hold with this node and this token, if this is a later one.
    fn first_use(&mut self, known: (String, Option<FencingToken>), hold: HoldId) -> Option<HoldId> {
        let first = *self.first_uses.entry(known).or_insert(hold);
        (first != hold).then_some(first)
    }

    /// Removes the holder of the first lock. Nobody may hold it, and no server may answer.
    async fn break_mutex(&self) -> Result<(), String> {
        match self.keeper.admin().break_lock(self.paths[ChaosLock::Mutex as usize], "chaos").await {
            Err(error) if error.kind() != ErrorKind::NotFound && !error.kind().is_retryable() => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    async fn ask(
        &self,
        rng: &mut fastrand::Rng,
        wanted: ChaosLock,
        limit: Option<Duration>,
    ) -> Option<Result<Held, AcquireError>> {
        let (keeper, path) = (self.keeper, self.paths[wanted as usize]);
        let (once, dropped) = (limit.is_none() && rng.u8(..4) == 0, rng.bool());
        macro_rules! ask {
            ($lock:expr) => {{
                let lock = $lock;
                let ask = |once| if once { lock.try_acquire() } else { lock.acquire() };
                answer(limit, once, dropped, ask).await
            }};
        }
        let one = |guard| Held::alone(AnyGuard::One(guard));
        match wanted {
            ChaosLock::Mutex => {
                let (lock, delay) = (keeper.mutex(path), (rng.u8(..4) == 0).then_some(DELAY));
                let ask = |once| {
                    let request = if once { lock.try_acquire() } else { lock.acquire() };
                    if let Some(delay) = delay { request.lock_delay(delay) } else { request }
                };
                answer(limit, once, dropped, ask).await.map(|asked| asked.map(|guard| Held { delay, ..one(guard) }))
            }
            ChaosLock::Recipe => ask!(keeper.mutex(path).node_format(NodeFormat::Recipe)).map(|asked| asked.map(one)),
            ChaosLock::Kept => ask!(&self.kept).map(|asked| asked.map(one)),
            ChaosLock::Readers if rng.bool() => {
                let read = if rng.bool() { self.shared.clone() } else { keeper.rwlock(path).read() };
                ask!(read).map(|asked| asked.map(|guard| Held { share: Share::Reads, ..one(guard) }))
            }
            ChaosLock::Readers => ask!(keeper.rwlock(path).write()).map(|asked| asked.map(|guard| one(guard.into()))),
            ChaosLock::Second if rng.bool() => ask!(keeper.mutex(path)).map(|asked| asked.map(one)),
            ChaosLock::Second => {
                let mut paths = [ChaosLock::Mutex, ChaosLock::Second].map(|lock| self.paths[lock as usize]);
                if rng.bool() {
                    paths.reverse();
                }
                let ask = |once| {
                    let both = keeper.multi_lock(paths.map(|path| keeper.mutex(path).acquire()));
                    if once { both.timeout(Duration::ZERO) } else { both }
                };
                let asked = answer(limit, once, dropped, ask).await;
                asked.map(|asked| asked.map(|guard| Held::alone(AnyGuard::Several(guard))))
            }
            ChaosLock::Classes if rng.bool() => {
                ask!(keeper.priority_lock(path).foreground()).map(|asked| asked.map(one))
            }
            ChaosLock::Classes => {
                let lock = keeper.priority_lock(path).background();
                let ask = |once| {
                    let request = if once { lock.try_acquire() } else { lock.acquire() };
                    request.min_hold(Duration::from_millis(20))
                };
                answer(limit, once, dropped, ask).await.map(|asked| asked.map(one))
            }
            ChaosLock::Leased => {
                let lock = HelixLock::new(keeper, path, LEASE).user_id(&self.user).cleanup(CLEANUP).cleanup_by_guard();
                let ask = |once| if once { lock.try_acquire() } else { lock.acquire().wait_for_every_owner() };
                let asked = answer(limit, once, dropped, ask).await;
                let failed = |error| match error {
                    AcquireLeaseError::Session(error) => error.into(),
                    AcquireLeaseError::Timeout { path, waited } => {
                        AcquireError::Timeout { path, waited, holder: None, ahead: None }
                    }
                    error => AcquireError::Held { path: error.to_string(), holder: None, ahead: None },
                };
                asked.map(|asked| asked.map(|guard| Held::alone(AnyGuard::Leased(guard))).map_err(failed))
            }
            ChaosLock::Election => {
                let candidate = Election::new(keeper, path).candidate(self.user.clone());
                let candidate = match limit.or(once.then_some(Duration::ZERO)) {
                    Some(limit) if !dropped => candidate.with(move |request| request.timeout(limit)),
                    _ => candidate,
                };
                let campaign = candidate.campaign();
                let led = match limit {
                    Some(limit) if dropped => tokio::time::timeout(limit, campaign).await.ok()?,
                    _ => campaign.await,
                };
                let led = led.map(|leadership| Held::alone(AnyGuard::Leads(leadership)));
                Some(led.map_err(|error| match error {
                    Error::Acquire(error) => error,
                    Error::Session(error) => error.into(),
                    error => panic!("{error}"),
                }))
            }
        }
    }
}

/// Acquires; `None`: the caller dropped the call.
async fn answer<R: Request>(
    limit: Option<Duration>,
    once: bool,
    dropped: bool,
    ask: impl Fn(bool) -> R,
) -> Option<Result<R::Guard, R::Error>> {
    match limit {
        Some(limit) if dropped => tokio::time::timeout(limit, ask(false)).await.ok(),
        Some(limit) => Some(ask(false).timeout(limit).await),
        None => Some(ask(once).await),
    }
}
