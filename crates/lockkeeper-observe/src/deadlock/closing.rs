//! Finds out whether a request of this process has closed a ring.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;
use lockkeeper::Lockkeeper;
use lockkeeper::admin::{Admin, ContenderInfo};
use lockkeeper::error::AdminError;

use super::{Certainty, Deadlock, deadlocks};

/// A wait that is shorter is no deadlock. Longer than the difference between two clients that come at the same time.
const SHORT: Duration = Duration::from_secs(1);

/// Resolves when a request of this handle that waits for one of these locks is the last wait of a [certain](Certainty::Certain) ring. Whoever
/// then drops the request ends the deadlock.
///
/// A ring is closed by its last wait, because a contender waits for those that came before it. So each request looks once, a second
/// after it began to wait, and the request that came last finds the ring. It sees the locks below the same top-level nodes as `paths`, such as `/locks`.
///
/// ```no_run
/// # async fn example(keeper: &lockkeeper::Lockkeeper, outer: &lockkeeper::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// let acquire = keeper.mutex("/locks/orders").acquire().while_holding([outer.node()]);
/// let guard = tokio::select! {
///     guard = acquire.into_future() => guard?,
///     deadlock = lockkeeper_observe::deadlock::closed(keeper, &["/locks/orders"]) => return Err(deadlock.to_string().into()),
/// };
/// # drop(guard); Ok(()) }
/// ```
///
/// # Cost
///
/// As [`Admin::follow`] until the request has its node; then once what [`deadlocks`] costs.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
pub async fn closed(keeper: &Lockkeeper, paths: &[impl AsRef<str>]) -> Deadlock {
    if paths.is_empty() {
        return std::future::pending().await;
    }
    select_all(paths.iter().map(|path| closed_at(keeper, path.as_ref()).boxed_local())).await.0
}

async fn closed_at(keeper: &Lockkeeper, path: &str) -> Deadlock {
    let (admin, is_own) = (keeper.admin(), |it: &ContenderInfo| it.owner.as_ref() == Some(keeper.owner()));
    let mut follow = admin.follow(path).or_absent();
    loop {
        match follow.next().await {
            Ok(lock) if lock.waiters.iter().any(is_own) => {}
            Ok(_) => continue,
            Err(_) => {
                // The request itself reports servers that do not answer.
                tokio::time::sleep(SHORT).await;
                continue;
            }
        }
        tokio::time::sleep(SHORT).await;
        let own = |deadlock: &Deadlock| {
            let last = deadlock.ring.first().map(|party| &party.waits);
            deadlock.certainty == Certainty::Certain && last.is_some_and(|it| it.path == path && is_own(&it.contender))
        };
        match around(&admin, path).await {
            Ok(found) => match found.into_iter().find(own) {
                Some(deadlock) => return deadlock,
                None => return std::future::pending().await,
            },
            // The session may be a new one, with a new node.
            Err(_) => continue,
        }
    }
}

/// The deadlocks of the locks below the top-level node of this path, and of those of the holds of its waiters.
async fn around(admin: &Admin, path: &str) -> Result<Vec<Deadlock>, AdminError> {
    let lock = admin.show(path).await?;
    let kept = lock.waiters.iter().flat_map(|waiter| &waiter.holds);
    let roots: BTreeSet<_> = kept.map(String::as_str).chain([path]).filter_map(top).collect();
    match roots.into_iter().collect::<Vec<_>>()[..] {
        [root] => deadlocks(admin, root).await,
        _ => deadlocks(admin, "/").await,
    }
}

fn top(path: &str) -> Option<&str> {
    let rest = path.strip_prefix('/')?;
    Some(&path[..1 + rest.find('/').unwrap_or(rest.len())])
}
