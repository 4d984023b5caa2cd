//! What a waiting command tells: who holds the lock, since when, from where, why, and how many are ahead.
//!
//! One live line where stderr is a terminal, one plain line otherwise, nothing at all for a wait too short to read about.

use std::convert::Infallible;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockkeeper::{ContenderInfo, LockInfo, Lockkeeper};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::output::{Printer, plain, who};

/// A shorter wait is not worth a word.
const SHORT: Duration = Duration::from_millis(250);

/// How long until a question that failed is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// Tells whom this process waits for until it is dropped.
pub(crate) async fn tell(keeper: &Lockkeeper, path: &str, started: Instant, printer: Printer) -> Infallible {
    sleep(SHORT).await;
    if !printer.is_json() && std::io::stderr().is_terminal() {
        live(keeper, path, started).await
    } else {
        let (lock, ahead) = standing(keeper, path).await;
        printer.waiting(&line(keeper, &lock, ahead), &lock, ahead);
        std::future::pending().await
    }
}

/// The lock at the first moment at which somebody else is in the way.
async fn standing(keeper: &Lockkeeper, path: &str) -> (LockInfo, usize) {
    let mut follow = keeper.admin().follow(path);
    loop {
        match follow.next().await {
            Ok(lock) => {
                if let Some(ahead) = ahead(keeper, &lock).filter(|ahead| *ahead > 0) {
                    return (lock, ahead);
                }
            }
            Err(_) => sleep(RETRY).await,
        }
    }
}

/// Keeps one line of a terminal up to date.
async fn live(keeper: &Lockkeeper, path: &str, started: Instant) -> Infallible {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    // Cut to the terminal's width, so that it stays one line.
    bar.set_style(ProgressStyle::with_template("{wide_msg}").expect("a template known when this was written"));
    let _wiped = Wiped(&bar);
    let mut follow = keeper.admin().follow(path);
    let mut text = format!("waiting for {}", plain(path));
    let mut clock = interval(Duration::from_secs(1));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut answering = true;
    loop {
        tokio::select! {
            next = follow.next(), if answering => match next {
                Ok(lock) => text = line(keeper, &lock, ahead(keeper, &lock).unwrap_or(0)),
                Err(_) => answering = false,
            },
            _ = clock.tick() => answering = true,
        }
        bar.set_message(format!("{text}; {}s", started.elapsed().as_secs()));
        bar.tick();
    }
}

/// Wipes the line when the wait ends in whatever way.
struct Wiped<'a>(&'a ProgressBar);

impl Drop for Wiped<'_> {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// How many stand before this process; `None` if it is not in the queue.
fn ahead(keeper: &Lockkeeper, lock: &LockInfo) -> Option<usize> {
    let is_me = |contender: &ContenderInfo| contender.owner.as_ref() == Some(keeper.owner());
    let mut all = lock.holders.iter().chain(&lock.waiters);
    all.position(is_me)
}

/// `waiting for /locks/nightly: held by build@ci-7 (pid 4711) since 10:42:03 (nightly index), 3 ahead`
fn line(keeper: &Lockkeeper, lock: &LockInfo, ahead: usize) -> String {
    let mut text = format!("waiting for {}", plain(&lock.path));
    let other = |contender: &&ContenderInfo| contender.owner.as_ref() != Some(keeper.owner());
    if let Some(holder) = lock.holders.iter().find(other) {
        text.push_str(": held by ");
        text.push_str(&who(holder));
    }
    if ahead > 1 {
        text.push_str(&format!(", {ahead} ahead"));
    }
    text
}
