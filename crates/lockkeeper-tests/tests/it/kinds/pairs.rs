//! One path that two clients lock in two ways: every pair, in both orders.

use std::time::Duration;

use lockkeeper::error::{AcquireError, Error, Mismatch};
use lockkeeper::{Lockkeeper, MultiGuard, NodeFormat, Request};
use lockkeeper_helix::{AcquireLeaseError, HelixLock};

use crate::support::{World, for_kinds};

for_kinds!(
    [every_pair Native]
    a_path_that_is_locked_in_one_way_refuses_or_queues_every_other,
);

/// A way to lock a path.
const WAYS: [&str; 13] = [
    "mutex",
    "kept",
    "read",
    "write",
    "upgradeable",
    "2 permits",
    "3 permits",
    "class",
    "recipe",
    "kazoo",
    "numbered",
    "latch",
    "lease",
];

/// What the second client gets: `+` it holds too, `w` it would wait, `x` its way is refused. A line for each first way, and in it a
/// letter for each second way, in the order of [`WAYS`].
#[rustfmt::skip]
const TABLE: [&str; 13] = [
    "w w w w w w w x x x x x x",
    "w w w w w w w x x x x x x",
    "w w + w + w w x x x x x x",
    "w w w w w w w x x x x x x",
    "w w w w w w w x x x x x x",
    "w w w w w + x x x x x x x",
    "w w w w w x + x x x x x x",
    "x x x x x x x w x x x x x",
    "w w w w w w w x w x x x x",
    "x x x x x x x x x w x x x",
    "x x x x x x x x x x w x x",
    "x x x x x x x x x x x w x",
    "x x x x x x x x x x x x w",
];

/// Two ways of locking do not see each other's nodes unless each looks for the other. Only readers, and takers of the same number of
/// permits, hold together.
async fn a_path_that_is_locked_in_one_way_refuses_or_queues_every_other(world: &World) {
    let (first, second) = (world.keeper().await, world.keeper().await);
    let mut table = Vec::new();
    for (row, held) in WAYS.iter().enumerate() {
        let mut line = Vec::new();
        for (column, asked) in WAYS.iter().enumerate() {
            let path = world.path(&format!("pair-{row}-{column}-of"));
            let guard = lock(&first, &path, held).await.unwrap();
            line.push(match lock(&second, &path, asked).await {
                Ok(both) => {
                    both.release().await.unwrap();
                    "+"
                }
                Err(Error::Acquire(AcquireError::Held { .. })) => "w",
                Err(Error::Acquire(AcquireError::Mismatch(_))) => "x",
                Err(Error::Product(error)) => match error.get() {
                    Some(AcquireLeaseError::Outranked { .. }) => "w",
                    Some(AcquireLeaseError::Mismatch(Mismatch::Format { .. })) => "x",
                    _ => panic!("{asked} behind {held}: {error}"),
                },
                Err(error) => panic!("{asked} behind {held}: {error}"),
            });
            assert!(guard.is_held(), "{asked} behind {held}");
            guard.release().await.unwrap();
        }
        table.push(line.join(" "));
    }
    assert_eq!(table, TABLE, "\n{}", table.join("\n"));
}

/// Tries to lock the path.
async fn lock(keeper: &Lockkeeper, path: &str, way: &str) -> Result<MultiGuard, Error> {
    let mutex = |node_format| keeper.mutex(path).node_format(node_format).try_acquire();
    match way {
        "mutex" => ask(keeper.mutex(path).try_acquire()).await,
        "kept" => ask(keeper.mutex(path).keep().try_acquire()).await,
        "read" => ask(keeper.rwlock(path).read().try_acquire()).await,
        "write" => ask(keeper.rwlock(path).write().try_acquire()).await,
        "upgradeable" => ask(keeper.rwlock(path).upgradeable().try_acquire()).await,
        "2 permits" => ask(keeper.semaphore(path, 2).try_acquire()).await,
        "3 permits" => ask(keeper.semaphore(path, 3).try_acquire()).await,
        "class" => ask(keeper.priority_lock(path).foreground().try_acquire()).await,
        "recipe" => ask(mutex(NodeFormat::Recipe)).await,
        "kazoo" => ask(mutex(NodeFormat::Kazoo)).await,
        "numbered" => ask(mutex(NodeFormat::Numbered)).await,
        "latch" => ask(mutex(NodeFormat::LeaderLatch)).await,
        "lease" => ask(HelixLock::new(keeper, path, Duration::from_secs(600)).try_acquire()).await,
        way => unreachable!("{way}"),
    }
}

async fn ask(request: impl Request) -> Result<MultiGuard, Error> {
    request.await.map(Into::into).map_err(Into::into)
}
