//! What the classes are for: people save articles while bulk work runs on the same articles.
//!
//! 100 foreground saves a second over 200 articles, and 4 bulk propagations that each take the articles in turn. Once with the
//! classes, once with everybody in the foreground, in turn on the same server; what counts is how long a save waits for its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Lockkeeper, PriorityLock};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

const ARTICLES: u64 = 200;
const SAVES_A_SECOND: u64 = 100;
const BULKS: u64 = 4;

/// How many requests each bulk propagation has in the queue at a time.
const ABREAST: u64 = 25;

/// How long a save works, and a bulk's piece of one article.
const SAVE: Duration = Duration::from_millis(2);
const PIECE: Duration = Duration::from_millis(20);

/// How long saves waited for their locks, and how many pieces the bulks did.
#[derive(Default)]
pub(crate) struct Waits {
    pub(crate) saves: Vec<f64>,
    pub(crate) pieces: u64,
}

impl Waits {
    /// The wait, in milliseconds, that so many of a hundred saves do not exceed.
    pub(crate) fn quantile(&mut self, percent: usize) -> f64 {
        self.saves.sort_by(f64::total_cmp);
        let at = (self.saves.len() * percent / 100).min(self.saves.len().saturating_sub(1));
        self.saves.get(at).copied().unwrap_or(f64::NAN)
    }
}

/// One round. With `classes`, the bulk requests are background requests; without, all requests have one class.
pub(crate) async fn round(servers: &str, classes: bool, length: Duration) -> anyhow::Result<Waits> {
    let (people, bulk) = (Lockkeeper::connect(servers).await?, Lockkeeper::connect(servers).await?);
    let (over, pieces) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut bulks = JoinSet::new();
    for worker in 0..BULKS * ABREAST {
        let (keeper, over, pieces) = (bulk.clone(), over.clone(), pieces.clone());
        bulks.spawn(async move {
            // Each propagation goes through all the articles, its workers side by side.
            for at in worker % ABREAST * ARTICLES / ABREAST.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let lock = article(&keeper, at);
                let guard = if classes { lock.background() } else { lock.foreground() }.acquire().await?;
                sleep(PIECE).await;
                guard.release().await?;
                pieces.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    let mut saves: JoinSet<anyhow::Result<f64>> = JoinSet::new();
    let mut clock = interval(Duration::from_secs(1) / SAVES_A_SECOND as u32);
    clock.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let started = Instant::now();
    let mut at = 0;
    while started.elapsed() < length {
        clock.tick().await;
        // A step that has nothing to do with the bulks' order.
        at += 77;
        let lock = article(&people, at).foreground();
        saves.spawn(async move {
            let since = Instant::now();
            let guard = lock.acquire().await?;
            let waited = since.elapsed().as_secs_f64() * 1000.0;
            sleep(SAVE).await;
            guard.release().await?;
            Ok(waited)
        });
    }
    let mut waits = Waits::default();
    while let Some(saved) = saves.join_next().await {
        waits.saves.push(saved??);
    }
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = bulks.join_next().await {
        ended??;
    }
    waits.pieces = pieces.load(Ordering::Relaxed);
    people.close().await;
    bulk.close().await;
    Ok(waits)
}

fn article(keeper: &Lockkeeper, at: u64) -> PriorityLock {
    keeper.priority_lock(format!("/bench/articles/{}", at % ARTICLES))
}
