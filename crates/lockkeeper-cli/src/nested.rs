//! A `run` inside a `run`: the inner one does not wait for a lock that an outer one holds.
//!
//! The outer `run` releases when its command has ended, and the command waits for the inner `run`. So an inner `run`
//! that waits for a lock of the outer one waits for itself. The outer one puts the nodes of its holds into the
//! environment. A node is one hold of one lock on one ensemble. So an ended hold, or a lock of the same name on another
//! ensemble, is not mistaken for it.

use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::select_all;
use lockkeeper::admin::{LockInfo, SessionId};
use lockkeeper::error::AcquireError;
use lockkeeper::{LockPath, Lockkeeper, Loss};
use lockkeeper_hold::HeldLock;
use lockkeeper_observe::deadlock;
use tokio::time::timeout;

use crate::advice::Suggested;
use crate::broken;
use crate::exit::{Code, Failure};
use crate::settings;
use crate::waiting::{looks, own_place};

/// The variable with the nodes of all holds that a command runs under, one per line.
const HELD: &str = "LOCKKEEPER_HELD";

const REMEDY: &str = "the command holds the lock already: leave out the inner lockkeeper run, or give it another lock";

/// Sets the variable for a command: the nodes of these locks, and those of outer commands.
pub(crate) fn tell_held(command: &mut Command, locks: &[HeldLock]) {
    let nodes = held().into_iter().chain(locks.iter().map(|lock| lock.node.clone()));
    command.env(HELD, nodes.collect::<Vec<_>>().join("\n"));
}

/// Returns the nodes of all holds that this process runs under.
pub(crate) fn held() -> Vec<String> {
    settings::variable(HELD).map_or_else(Vec::new, |nodes| nodes.lines().map(str::to_owned).collect())
}

/// Resolves when this process waits for a lock that an outer `run` holds, and could wait forever. Dropping the future
/// leaves nothing behind.
pub(crate) async fn waits_for_itself(keeper: &Lockkeeper, paths: &[LockPath]) -> Failure {
    let held = held();
    let below = |path: &LockPath| {
        held.iter().any(|node| node.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/')))
    };
    let mut looks =
        select_all(paths.iter().filter(|path| below(path)).map(|path| looks(keeper, path.as_str()).boxed()));
    while let Some(lock) = looks.next().await {
        if let Some(at) = own_place(keeper, &lock)
            && let Some(node) = blocks_itself(&lock, at, &held)
        {
            let path = &lock.path;
            return Failure::new(
                Code::Usage,
                format!("{path} is held by the lockkeeper run that this one runs under, so this one would wait forever (node {node})"),
            )
            .hint(REMEDY);
        }
    }
    std::future::pending().await
}

/// Resolves when this process has closed a ring of waits: it waits for a lock, and a holder of it waits for a lock that this process or
/// an outer `run` holds. Dropping the future leaves nothing behind.
pub(crate) async fn closes_a_ring(keeper: &Lockkeeper, paths: &[LockPath]) -> Failure {
    if paths.len() < 2 && held().is_empty() {
        return std::future::pending().await;
    }
    let deadlock = deadlock::closed(keeper, paths).await;
    let failure = Failure::new(Code::NotAcquired, format!("deadlock: {deadlock}"));
    let hint = "take the locks in one lockkeeper run, or always in the same order";
    failure.hint(hint).advise("to see all deadlocks", Suggested::new(["deadlocks"]))
}

/// Returns the failure of an attempt that did not wait. If an outer `run` holds the lock, asking it to release would end this
/// command.
pub(crate) fn taken(error: impl Into<lockkeeper::Error>) -> Failure {
    let error = error.into();
    let is_outer = matches!(
        &error,
        lockkeeper::Error::Acquire(AcquireError::Held { path, holder: Some(holder), .. }
            | AcquireError::Timeout { path, holder: Some(holder), .. }) if held().contains(&holder.node_path(path))
    );
    let failure = Failure::from(error);
    if !is_outer {
        return failure;
    }
    let message = format!("{}; that is the lockkeeper run that this one runs under", failure.message);
    Failure { message, advice: Vec::new(), ..failure }.hint(REMEDY)
}

/// Returns the failure of a wait in this session. If the session expired, the wait may have been broken before. The records are read
/// for no longer than `limit`.
pub(crate) async fn failed_wait(
    error: AcquireError,
    keeper: &Lockkeeper,
    session: Option<SessionId>,
    limit: Option<Duration>,
) -> Failure {
    let broken = match &error {
        AcquireError::SessionLost { path, loss: Loss::SessionExpired } => {
            timeout(limit.unwrap_or(Duration::MAX), broken::of_wait(keeper, path, session)).await.ok().flatten()
        }
        _ => None,
    };
    let failure = taken(error);
    match broken {
        Some(broken) => Failure { message: format!("{broken}; its session has expired since"), ..failure },
        None => failure,
    }
}

/// Returns the node of an outer hold that blocks the waiter at the position `at`.
fn blocks_itself(lock: &LockInfo, at: usize, held: &[String]) -> Option<String> {
    let outer: Vec<_> = lock.holders.iter().filter(|holder| held.contains(&holder.node_path(&lock.path))).collect();
    let node = outer.first()?.node_path(&lock.path);
    if let (Some(all), Some(asked)) = (lock.permits, lock.waiters.get(at)?.permits) {
        // Other holders may release their permits.
        let kept: u32 = outer.iter().map(|holder| holder.permits.unwrap_or(1)).sum();
        if asked <= all.saturating_sub(kept) {
            return None;
        }
    }
    Some(node)
}
