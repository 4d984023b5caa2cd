//! What a waiting command tells: who holds the lock, since when, from where, why, and how many are ahead.
//!
//! One live line where stderr is a terminal, one plain line otherwise, nothing at all for a wait too short to read about.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io::IsTerminal;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, select_all};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockkeeper::{ContenderInfo, LockInfo, LockPath, Lockkeeper};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::output::{Printer, permits, plain, who};

/// A shorter wait is not worth a word.
const SHORT: Duration = Duration::from_millis(250);

/// How long until a question that failed is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// Tells whom this process waits for until it is dropped.
pub(crate) async fn tell(keeper: &Lockkeeper, paths: &[LockPath], started: Instant, printer: Printer) -> Infallible {
    sleep(SHORT).await;
    let mut looks = select_all(paths.iter().map(|path| looks(keeper, path.as_str()).boxed()));
    if !printer.is_json() && std::io::stderr().is_terminal() {
        return live(keeper, paths, &mut looks, started).await;
    }
    // Of several locks one is waited for at a time: a line for each of them.
    let mut told = HashSet::new();
    while let Some(lock) = looks.next().await {
        if let Some(ahead) = ahead(keeper, &lock).filter(|ahead| *ahead > 0)
            && told.insert(lock.path.clone())
        {
            printer.waiting(&line(keeper, &lock, ahead), &lock, ahead);
            if told.len() == paths.len() {
                break;
            }
        }
    }
    std::future::pending().await
}

/// What a lock looks like now and after each change.
fn looks<'a>(keeper: &Lockkeeper, path: &'a str) -> impl Stream<Item = LockInfo> + 'a {
    stream::unfold(keeper.admin().follow(path), |mut follow| async {
        loop {
            match follow.next().await {
                Ok(lock) => return Some((lock, follow)),
                Err(_) => sleep(RETRY).await,
            }
        }
    })
}

/// Keeps one line of a terminal up to date.
async fn live(
    keeper: &Lockkeeper,
    paths: &[LockPath],
    looks: &mut (impl Stream<Item = LockInfo> + Unpin),
    started: Instant,
) -> Infallible {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    // Cut to the terminal's width, so that it stays one line.
    bar.set_style(ProgressStyle::with_template("{wide_msg}").expect("a template known when this was written"));
    let _wiped = Wiped(&bar);
    let names: Vec<_> = paths.iter().map(|path| plain(path.as_str())).collect();
    let mut text = format!("waiting for {}", names.join(", "));
    let mut clock = interval(Duration::from_secs(1));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(lock) = looks.next() => {
                // Where it is not in line it holds the lock, or has not come to it yet.
                if let Some(ahead) = ahead(keeper, &lock) {
                    text = line(keeper, &lock, ahead);
                }
            }
            _ = clock.tick() => {}
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

/// How many hold the lock or stand before this process; `None` if it does not wait for this lock.
fn ahead(keeper: &Lockkeeper, lock: &LockInfo) -> Option<usize> {
    let is_me = |contender: &ContenderInfo| contender.owner.as_ref() == Some(keeper.owner());
    lock.waiters.iter().position(is_me).map(|at| lock.holders.len() + at)
}

/// `waiting for /locks/nightly: held by build@ci-7 (pid 4711) since 10:42:03 (nightly index), 3 ahead`
fn line(keeper: &Lockkeeper, lock: &LockInfo, ahead: usize) -> String {
    let mut text = format!("waiting for {}", plain(&lock.path));
    let mut others = lock.holders.iter().filter(|holder| holder.owner.as_ref() != Some(keeper.owner()));
    if let Some(holder) = others.next() {
        text.push_str(": held by ");
        text.push_str(&who(holder));
        let more = others.count();
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
    }
    if let Some(permits) = permits(lock) {
        text.push_str(&format!(", {permits}"));
    }
    if ahead > 1 {
        text.push_str(&format!(", {ahead} ahead"));
    }
    text
}
