//! The output of a waiting command: the lock's holder with its time, host and reason, and how many contenders are
//! ahead.
//!
//! It is one live line if stderr is a terminal, and one plain line otherwise. A short wait prints nothing.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, select_all};
use lockkeeper::admin::{ContenderInfo, LockInfo};
use lockkeeper::{LockPath, Lockkeeper};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep};

use crate::args::values::Waiting;
use crate::liveline::{LiveLine, progress, spell};
use crate::output::Printer;
use crate::text::{self, permits, plain, who};

/// A shorter wait prints nothing.
const SHORT: Duration = Duration::from_millis(250);

/// Pause before a failed question is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// When a wait began, and how long it may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub started: Instant,
    pub limit: Option<Duration>,
}

impl Wait {
    /// `4 s of 8 s`
    fn progress(self) -> String {
        progress(self.started.elapsed(), self.limit)
    }

    /// `, for at most 8 s`
    fn at_most(self) -> String {
        // An owner without a cleanup gives the lock up immediately.
        let limit = self.limit.filter(|limit| !limit.is_zero());
        limit.map_or_else(String::new, |limit| format!(", for at most {}", spell(limit, true)))
    }
}

/// Prints which contenders this process waits for, until it is dropped.
pub(crate) async fn report(keeper: &Lockkeeper, paths: &[LockPath], wait: Wait, printer: Printer) -> Infallible {
    sleep(SHORT).await;
    let mut looks = select_all(paths.iter().map(|path| looks(keeper, path.as_str()).boxed()));
    if !printer.is_json()
        && let Some(line) = LiveLine::on_terminal()
    {
        return live(keeper, paths, &mut looks, wait, (line, printer)).await;
    }
    // A request for several locks waits for one lock at a time: one line for each of them.
    let mut reported = HashSet::new();
    while let Some(lock) = looks.next().await {
        if let Some(ahead) = ahead(keeper, &lock).filter(|ahead| *ahead > 0)
            && reported.insert(lock.path.clone())
        {
            let (who, many) = describe(keeper, &lock, ahead, printer);
            printer.waiting(&format!("{who}{many}{}", wait.at_most()), &lock, ahead);
            if reported.len() == paths.len() {
                break;
            }
        }
    }
    std::future::pending().await
}

/// Prints the owner that a leased lock waits for, and the longest time that the wait takes, until it is dropped.
///
/// `waiting` is the requested wait, `ask` how long operators are asked after it.
pub(crate) async fn report_lease(
    keeper: &Lockkeeper,
    path: &str,
    (waiting, ask): (Option<Waiting>, Option<Duration>),
    printer: Printer,
) -> Infallible {
    let started = Instant::now();
    let lock = loop {
        match keeper.admin().show(path).await {
            Ok(lock) => break lock,
            Err(_) => sleep(RETRY).await,
        }
    };
    let cleanup = lock.lease.as_ref().map(|lease| lease.cleanup);
    let limit = match waiting {
        Some(Waiting::Infinite) => None,
        Some(Waiting::Limit(limit)) => Some(cleanup.map_or(limit, |cleanup| limit.min(cleanup))),
        None => cleanup,
    };
    let wait = Wait { started, limit: limit.map(|limit| limit.saturating_add(ask.unwrap_or_default())) };
    let (holder, _) = describe(keeper, &lock, 1, printer);
    let line = LiveLine::on_terminal().filter(|_| !printer.is_json());
    let Some(mut line) = line else {
        printer.waiting(&format!("{holder}{}; asked the owner to clean up", wait.at_most()), &lock, 1);
        return std::future::pending().await;
    };
    sleep(SHORT).await;
    let mut clock = seconds();
    loop {
        line.show(&holder, &format!("; {}", wait.progress()));
        clock.tick().await;
    }
}

/// Keeps one line of a terminal up to date while a connection is made, if that takes a while.
///
/// Dropping the future drops `connecting` and wipes the line.
pub(crate) async fn connecting<T>(to: &str, limit: Option<Duration>, connecting: impl Future<Output = T>) -> T {
    let wait = Wait { started: Instant::now(), limit };
    let report = async {
        sleep(SHORT).await;
        let Some(mut line) = LiveLine::on_terminal() else { return };
        let mut clock = seconds();
        loop {
            line.show(&format!("connecting to {}", plain(to)), &format!("; {}", wait.progress()));
            clock.tick().await;
        }
    };
    tokio::select! {
        biased;
        connected = connecting => connected,
        never = async { report.await; std::future::pending().await } => never,
    }
}

/// Returns a clock that ticks now and each second.
fn seconds() -> Interval {
    let mut clock = interval(Duration::from_secs(1));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    clock
}

/// Returns the state of a lock now and after each change.
pub(crate) fn looks<'a>(keeper: &Lockkeeper, path: &'a str) -> impl Stream<Item = LockInfo> + 'a {
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
    wait: Wait,
    (mut line, printer): (LiveLine, Printer),
) -> Infallible {
    let names: Vec<_> = paths.iter().map(|path| plain(path.as_str())).collect();
    let mut text = (format!("waiting for {}", names.join(", ")), String::new());
    let mut clock = seconds();
    loop {
        tokio::select! {
            Some(lock) = looks.next() => {
                // Without a position in the queue, this process holds the lock or has not requested it yet.
                if let Some(ahead) = ahead(keeper, &lock) {
                    text = describe(keeper, &lock, ahead, printer);
                }
            }
            _ = clock.tick() => {}
        }
        let (who, many) = &text;
        line.show(who, &format!("{many}; {}", wait.progress()));
    }
}

/// Returns how many contenders are ahead of this process; `None` if it does not wait for this lock.
fn ahead(keeper: &Lockkeeper, lock: &LockInfo) -> Option<usize> {
    own_place(keeper, lock).map(|at| text::ahead(lock, at))
}

/// Returns the position of this process among the waiters, from 0.
pub(crate) fn own_place(keeper: &Lockkeeper, lock: &LockInfo) -> Option<usize> {
    let is_me = |contender: &ContenderInfo| contender.owner.as_ref() == Some(keeper.owner());
    lock.waiters.iter().position(is_me)
}

/// Returns the lock with its holder, and how many contenders are ahead: `waiting for /locks/nightly: held by build@ci-7
/// (pid 4711) since 10:42:03 (nightly index), on root's own server` and `, 3 ahead`.
fn describe(keeper: &Lockkeeper, lock: &LockInfo, ahead: usize, printer: Printer) -> (String, String) {
    let mut text = format!("waiting for {}", plain(&lock.path));
    let mut others = lock.holders.iter().filter(|holder| holder.owner.as_ref() != Some(keeper.owner()));
    if let Some(stuck) = text::stuck(lock) {
        text.push_str(": ");
        text.push_str(&stuck);
    } else if let Some(holder) = others.next() {
        text.push_str(": held by ");
        text.push_str(&who(holder));
        let more = others.count();
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
    }
    text.push_str(&plain(&printer.on_place()));
    let mut many = permits(lock).map_or_else(String::new, |permits| format!(", {permits}"));
    if ahead > 1 {
        many.push_str(&format!(", {ahead} ahead"));
    }
    (text, many)
}
