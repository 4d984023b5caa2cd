//! The workloads with our locks.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lockkeeper::Lockkeeper;

pub(crate) struct Locks {
    keeper: Lockkeeper,
}

impl Locks {
    pub(crate) async fn connect(servers: &str) -> anyhow::Result<Self> {
        Ok(Locks { keeper: Lockkeeper::connect(servers).await? })
    }

    /// Each of `workers` takes and frees a lock of its own; a release is not waited for before the next acquire is sent.
    pub(crate) async fn cycles(&self, workers: usize, length: Duration) -> anyhow::Result<u64> {
        self.work(workers, length, |worker| format!("/bench/own-{worker}")).await
    }

    /// All of `workers` want one lock.
    pub(crate) async fn contended(&self, workers: usize, length: Duration) -> anyhow::Result<u64> {
        self.work(workers, length, |_| "/bench/shared".to_owned()).await
    }

    /// One task takes and frees one lock that its process keeps.
    pub(crate) async fn kept(&self, length: Duration) -> anyhow::Result<u64> {
        let lock = self.keeper.mutex("/bench/kept").keep();
        drop(lock.acquire().await?);
        let (until, mut cycles) = (Instant::now() + length, 0);
        while Instant::now() < until {
            drop(lock.acquire().await?);
            cycles += 1;
        }
        lock.give_up().await?;
        Ok(cycles)
    }

    async fn work(&self, workers: usize, length: Duration, path: fn(usize) -> String) -> anyhow::Result<u64> {
        let until = Instant::now() + length;
        let tasks = (0..workers).map(|worker| {
            let mutex = self.keeper.mutex(path(worker));
            tokio::spawn(async move {
                let mut cycles = 0;
                while Instant::now() < until {
                    drop(mutex.acquire().await?);
                    cycles += 1;
                }
                Ok::<u64, lockkeeper::error::AcquireError>(cycles)
            })
        });
        Ok(try_join_all(tasks).await?.into_iter().sum::<Result<u64, _>>()?)
    }

    pub(crate) async fn close(&self) {
        self.keeper.close().await;
    }
}
