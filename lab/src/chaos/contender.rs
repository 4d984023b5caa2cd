//! A contender: a process with the real library, which can be killed, stopped and disconnected.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use lockkeeper::error::{AcquireError, ConnectError, SessionError};
use lockkeeper::{Guard, Holding, Lockkeeper, NodeFormat, WriteGuard};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::log::{Line, log_of, number, over, resource};
use super::{LOCKS, SESSION_TIMEOUT};
use crate::tools::{Log, now};
use lockkeeper_fence::{FencedFile, FencingToken, FileError};
use lockkeeper_testkit::history::{Event, Grant, HoldId, Outcome, Share, What};

/// What a contender needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Contender {
    /// The directory of the logs and of the resources.
    pub(super) dir: PathBuf,
    /// The number of the contender.
    pub(super) contender: u32,
    /// The connect string of the servers.
    pub(super) servers: String,
    /// The seed of its actions.
    pub(super) seed: u64,
}

enum Held {
    Alone(Guard),
    Writes(WriteGuard),
    Reads(Guard),
}

impl Held {
    fn holding(&self) -> &Holding {
        match self {
            Held::Alone(guard) | Held::Reads(guard) => guard,
            Held::Writes(guard) => guard,
        }
    }

    async fn release(self) -> bool {
        match self {
            Held::Alone(guard) | Held::Reads(guard) => guard.release().await.is_ok(),
            Held::Writes(guard) => guard.release().await.is_ok(),
        }
    }
}

impl Contender {
    /// Contends until the end of the run.
    pub(crate) fn run(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(live(self))
    }
}

async fn live(options: &Contender) -> Result<()> {
    let mut log = Log::open(&log_of(&options.dir, options.contender))?;
    let resources = LOCKS.map(|lock| {
        let file = resource(&options.dir, lock);
        (file.clone(), FencedFile::new(file).any_epoch())
    });
    let rng = &mut fastrand::Rng::with_seed(options.seed);
    let contender = options.contender;
    let keeper = loop {
        let builder = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).connect_timeout(SESSION_TIMEOUT);
        match builder.connect(&options.servers).await {
            Ok(keeper) => break keeper,
            Err(ConnectError::Session(SessionError::Unreachable { .. })) => {}
            Err(error) => return Ok(log.say(&Line::Unexpected(format!("connecting: {error}")))?),
        }
    };
    // Every third contender.
    let careless = contender.is_multiple_of(3);
    let mut holds = 0;
    loop {
        sleep(Duration::from_millis(rng.u64(..30))).await;
        let lock = rng.u32(..u32::try_from(LOCKS.len()).unwrap_or(1));
        let limit = (rng.u8(..3) == 0).then(|| Duration::from_millis(rng.u64(..4000)));
        let from = now();
        if over(&options.dir).exists() {
            break;
        }
        log.say(&Line::Asking { lock, from, limit })?;
        let asked = ask(rng, &keeper, lock, limit).await;
        let event = |from, what| Line::Event(Event { contender, lock, from, until: now(), what });
        let outcome = match asked {
            Some(Ok(held)) => Ok(held),
            Some(Err(AcquireError::Held { .. })) => Err(Outcome::Refused),
            Some(Err(AcquireError::Timeout { .. })) => Err(Outcome::TimedOut),
            Some(Err(error)) => {
                if !error.kind().is_retryable() {
                    log.say(&Line::Unexpected(format!("contender {contender} at {}: {error}", LOCKS[lock as usize])))?;
                }
                Err(Outcome::Failed(error.to_string()))
            }
            None => Err(Outcome::Dropped),
        };
        let held = match outcome {
            Ok(held) => held,
            Err(outcome) => {
                log.say(&event(from, What::Asked { limit, outcome }))?;
                continue;
            }
        };
        holds += 1;
        let hold = HoldId(u64::from(contender) << 32 | holds);
        let token = held.holding().fencing_token();
        let share = if let Held::Reads(_) = held { Share::Reads } else { Share::Alone };
        let grant = Grant { hold, share, token: token.map(FencingToken::get), place: None };
        log.say(&event(from, What::Asked { limit, outcome: Outcome::Granted(grant) }))?;
        // Sometimes longer than a session lives without its servers.
        let steps = if rng.u8(..20) == 0 { 120 } else { rng.u8(..6) };
        for _ in 0..steps {
            let from = now();
            let believed = held.holding().is_held();
            log.say(&event(from, What::Looked { hold, held: believed }))?;
            // A careless contender writes after a loss too: the gate must reject that.
            if let (Share::Alone, Some(token), true) = (share, token, believed || careless) {
                let (from, (file, gate)) = (now(), &resources[lock as usize]);
                let (order, accepted) = write(gate, file, token)?;
                log.say(&event(from, What::Wrote { hold, token: token.get(), order, accepted }))?;
            }
            if !believed && !careless {
                break;
            }
            sleep(Duration::from_millis(rng.u64(1..40))).await;
        }
        let from = now();
        let confirmed = if rng.u8(..3) == 0 {
            drop(held);
            false
        } else {
            held.release().await
        };
        log.say(&event(from, What::Released { hold, confirmed }))?;
    }
    keeper.close().await;
    Ok(())
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

async fn ask(
    rng: &mut fastrand::Rng,
    keeper: &Lockkeeper,
    lock: u32,
    limit: Option<Duration>,
) -> Option<Result<Held, AcquireError>> {
    let path = LOCKS[lock as usize];
    let (once, dropped) = (limit.is_none() && rng.u8(..4) == 0, rng.bool());
    macro_rules! ask {
        ($lock:expr, $held:path) => {{
            let lock = $lock;
            match limit {
                Some(limit) if dropped => tokio::time::timeout(limit, lock.acquire()).await.ok(),
                Some(limit) => Some(lock.acquire().timeout(limit).await),
                None if once => Some(lock.try_acquire().await),
                None => Some(lock.acquire().await),
            }
            .map(|asked| asked.map($held))
        }};
    }
    match lock {
        0 => ask!(keeper.mutex(path), Held::Alone),
        1 => ask!(keeper.mutex(path).node_format(NodeFormat::Recipe), Held::Alone),
        _ if rng.bool() => ask!(keeper.rwlock(path).read(), Held::Reads),
        _ => ask!(keeper.rwlock(path).write(), Held::Writes),
    }
}
