//! A contender: a process with the real library, which can be killed, stopped and disconnected.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use lockkeeper::error::{AcquireError, ConnectError, SessionError};
use lockkeeper::{Guard, Lockkeeper, NodeFormat};
use lockkeeper_fence::{FencedFile, FencingToken, FileError};
use lockkeeper_testkit::history::{Event, Grant, HoldId, Outcome, Share, What};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::judge::Word;
use crate::testbed::SESSION_TIMEOUT;
use crate::tools::{Log, now};

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
    // Every third contender.
    let careless = contender.is_multiple_of(3);
    let mut holds = 0;
    loop {
        sleep(Duration::from_millis(rng.u64(..30))).await;
        let place = rng.usize(..gates.len());
        let (lock, path, file) = &options.locks[place];
        let limit = (rng.u8(..3) == 0).then(|| Duration::from_millis(rng.u64(..4000)));
        let from = now();
        if from > options.until || options.over.exists() {
            break;
        }
        say(Word::Asking { lock: *lock, limit })?;
        let asked = ask(rng, &keeper, place, path, limit).await;
        let event = |from, what| Word::Did(Event { contender, lock: *lock, from, until: now(), what });
        let outcome = match asked {
            Some(Ok(granted)) => Ok(granted),
            Some(Err(AcquireError::Held { .. })) => Err(Outcome::Refused),
            Some(Err(AcquireError::Timeout { .. })) => Err(Outcome::TimedOut),
            Some(Err(error)) => {
                if !error.kind().is_retryable() {
                    say(Word::Unexpected(format!("contender {contender} at {path}: {error}")))?;
                }
                Err(Outcome::Failed(error.to_string()))
            }
            None => Err(Outcome::Dropped),
        };
        let (share, guard) = match outcome {
            Ok(granted) => granted,
            Err(outcome) => {
                say(event(from, What::Asked { limit, outcome }))?;
                continue;
            }
        };
        holds += 1;
        let hold = HoldId(u64::from(contender) << 32 | holds);
        let token = guard.fencing_token();
        let grant = Grant { hold, share, token: token.map(FencingToken::get), place: None };
        say(event(from, What::Asked { limit, outcome: Outcome::Granted(grant) }))?;
        // Sometimes longer than a session lives without its servers.
        let steps = if rng.u8(..20) == 0 { 120 } else { rng.u8(..6) };
        for _ in 0..steps {
            let from = now();
            let believed = guard.is_held();
            say(event(from, What::Looked { hold, held: believed }))?;
            // A careless contender writes after a loss too: the gate must reject that.
            if let (Share::Alone, Some(token), true) = (share, token, believed || careless) {
                let from = now();
                let (order, accepted) = write(&gates[place], file, token)?;
                say(event(from, What::Wrote { hold, token: token.get(), order, accepted }))?;
            }
            if !believed && !careless {
                break;
            }
            sleep(Duration::from_millis(rng.u64(1..40))).await;
        }
        let from = now();
        let confirmed = if rng.u8(..3) == 0 {
            drop(guard);
            false
        } else {
            guard.release().await.is_ok()
        };
        say(event(from, What::Released { hold, confirmed }))?;
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

async fn ask(
    rng: &mut fastrand::Rng,
    keeper: &Lockkeeper,
    place: usize,
    path: &str,
    limit: Option<Duration>,
) -> Option<Result<(Share, Guard), AcquireError>> {
    let (once, dropped) = (limit.is_none() && rng.u8(..4) == 0, rng.bool());
    macro_rules! ask {
        ($lock:expr, $share:expr) => {{
            let lock = $lock;
            match limit {
                Some(limit) if dropped => tokio::time::timeout(limit, lock.acquire()).await.ok(),
                Some(limit) => Some(lock.acquire().timeout(limit).await),
                None if once => Some(lock.try_acquire().await),
                None => Some(lock.acquire().await),
            }
            .map(|asked| asked.map(|guard| ($share, Guard::from(guard))))
        }};
    }
    match place {
        0 => ask!(keeper.mutex(path), Share::Alone),
        1 => ask!(keeper.mutex(path).node_format(NodeFormat::Recipe), Share::Alone),
        _ if rng.bool() => ask!(keeper.rwlock(path).read(), Share::Reads),
        _ => ask!(keeper.rwlock(path).write(), Share::Alone),
    }
}
