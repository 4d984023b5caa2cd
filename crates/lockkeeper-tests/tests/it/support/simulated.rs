//! Simulated time, which passes only when nothing else can happen: what is counted in it is exact.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use lockkeeper::Lockkeeper;
use lockkeeper_testkit::sim::{Settings, Sim};

/// Runs a test on a simulated server that is quick.
pub(crate) fn simulated<T: Future<Output = ()>>(test: impl FnOnce(Sim) -> T) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (quick, none) = (Duration::from_micros(100), Duration::ZERO);
    let settings = Settings { fsync: quick..2 * quick, lag: none..quick, ..Settings::default() };
    let test: LocalBoxFuture<'_, ()> = Box::pin(async { test(Sim::new(1, settings)).await });
    runtime.block_on(test);
}

/// A handle with a session of its own on this server.
pub(crate) fn simulated_keeper(sim: &Sim) -> Lockkeeper {
    Lockkeeper::builder().session_timeout(Duration::from_secs(10)).simulated(sim.network())
}
