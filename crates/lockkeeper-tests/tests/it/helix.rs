//! Helix's lock: what it promises, on every server.
//!
//! Such a lock has one kind, so each claim runs once on each server. A test waits for a short lease's end by its
//! condition, never by a sleep: until the lock is granted, or until the server's clock shows the time.

mod approval;
mod basic;
mod cleanup;
#[cfg(deep)]
mod clocks;
mod faults;
mod losses;
mod priority;
mod realms;
mod requests;
mod routing;
mod statistics;
mod timeouts;
mod transfers;

use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper_core::leased::Record;
use lockkeeper_helix::{AcquireLeaseError, HelixGuard, HelixLock, LockAttributes};

use crate::support::{Waiter, World, eventually};

/// Makes tests of claims: `<claim>::record::<server>`.
macro_rules! on_every_record_server {
    ($($claim:ident),+ $(,)?) => {
        // The world's own kind is not used: the record is the only lock of these claims.
        $crate::support::for_kinds! { [record Native] $($claim),+ }
    };
}
pub(crate) use on_every_record_server;

/// Long enough that it does not end on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// This world's lock for a client with this id.
pub(crate) fn lock(world: &World, keeper: &Lockkeeper, id: &str) -> HelixLock {
    HelixLock::new(keeper, world.lock(), LONG).user_id(id).skew(Duration::ZERO)
}

/// Reads the record from the server.
async fn stored(world: &World) -> Record {
    match world.observer.get_data(&world.lock()).await {
        Ok((data, _)) => Record::from_bytes(&data).unwrap(),
        Err(zookeeper_client::Error::NoNode) => Record::default(),
        Err(error) => panic!("{error}"),
    }
}

async fn info(world: &World) -> LockAttributes {
    stored(world).await.info()
}

/// Reads the server's clock from the timestamp of a write.
async fn server_time(world: &World) -> i64 {
    let scratch = world.path("time");
    if !world.exists(&scratch).await {
        world.make(&scratch).await;
    }
    world.observer.set_data(&scratch, b"", None).await.unwrap().mtime
}

/// Waits until the record shows a request of this client.
pub(crate) async fn requested_by(world: &World, id: &str) {
    eventually(&format!("a request by {id}"), async || info(world).await.requestor_id == id).await;
}

async fn owned_by(world: &World, id: &str) {
    eventually(&format!("owned by {id}"), async || info(world).await.owner == id).await;
}

/// Acquires in a task of its own.
pub(crate) fn ask(lock: &HelixLock) -> Waiter<HelixGuard, AcquireLeaseError> {
    Waiter::spawn(lock.acquire())
}
