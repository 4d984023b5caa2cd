//! The workloads with our locks.
//!
//! A release is not waited for before the next acquire is sent.

use std::time::{Duration, Instant};

use futures_util::future::{Either, try_join_all};
use lockkeeper::Lockkeeper;
use lockkeeper::error::AcquireError;

use crate::raw::is_write;

pub(crate) struct Locks {
    keeper: Lockkeeper,
}

/// What the tasks of a workload want all the time.
#[derive(Clone, Copy)]
pub(crate) enum Want {
    /// Each of so many tasks wants a lock of its own.
    Own(usize),
    /// Each of so many tasks wants the same lock.
    Shared(usize),
    /// Each of so many tasks wants to read nine times, and then to write, under the same lock.
    Reads(usize),
    /// The same, and the readers share a node.
    SharedReads(usize),
    /// One task wants one lock, which its process keeps.
    Kept,
}

impl Locks {
    pub(crate) async fn connect(servers: &str) -> anyhow::Result<Self> {
        Ok(Locks { keeper: Lockkeeper::connect(servers).await? })
    }

    /// Returns how often the tasks got what they want.
    pub(crate) async fn cycles(&self, want: Want, length: Duration) -> anyhow::Result<u64> {
        match want {
            Want::Own(tasks) => {
                let keeper = self.keeper.clone();
                self.work(tasks, length, move |task, _| keeper.mutex(format!("/bench/own-{task}")).acquire()).await
            }
            Want::Shared(tasks) => {
                let mutex = self.keeper.mutex("/bench/shared");
                self.work(tasks, length, move |_, _| mutex.acquire()).await
            }
            Want::Reads(tasks) => {
                let lock = self.keeper.rwlock("/bench/read");
                let read = move |task: usize, cycle: u64| match is_write(task, cycle) {
                    true => lock.write().acquire().any(),
                    false => lock.read().acquire().any(),
                };
                self.work(tasks, length, read).await
            }
            Want::SharedReads(tasks) => {
                let lock = self.keeper.rwlock("/bench/share");
                let reads = lock.read().share();
                let read = move |task: usize, cycle: u64| {
                    let (lock, reads) = (lock.clone(), reads.clone());
                    async move {
                        match is_write(task, cycle) {
                            true => lock.write().acquire().await.map(Either::Left),
                            false => reads.acquire().await.map(Either::Right),
                        }
                    }
                };
                self.work(tasks, length, read).await
            }
            Want::Kept => self.kept(length).await,
        }
    }

    async fn kept(&self, length: Duration) -> anyhow::Result<u64> {
        let lock = self.keeper.mutex("/bench/kept").keep();
        drop(lock.acquire().await?);
        let (until, mut cycles) = (Instant::now() + length, 0);
        while Instant::now() < until {
            drop(lock.acquire().await?);
            cycles += 1;
        }
        lock.release_kept().await?;
        Ok(cycles)
    }

    /// `acquire` gets the number of the task and that of its cycle.
    async fn work<F, G>(
        &self,
        tasks: usize,
        length: Duration,
        acquire: impl Fn(usize, u64) -> F + Clone + Send + 'static,
    ) -> anyhow::Result<u64>
    where
        F: IntoFuture<Output = Result<G, AcquireError>, IntoFuture: Send>,
    {
        let until = Instant::now() + length;
        let tasks = (0..tasks).map(|task| {
            let acquire = acquire.clone();
            tokio::spawn(async move {
                let mut cycles = 0;
                while Instant::now() < until {
                    drop(acquire(task, cycles).await?);
                    cycles += 1;
                }
                Ok::<u64, AcquireError>(cycles)
            })
        });
        Ok(try_join_all(tasks).await?.into_iter().sum::<Result<u64, _>>()?)
    }

    pub(crate) async fn close(&self) {
        self.keeper.close().await;
    }
}
