//! The output of a waiting command: the lock's holder with its time, host and reason, and how many contenders are
//! ahead.
//!
//! It is one live line if stderr is a terminal, and otherwise a few plain lines, with one at the end of the wait. A short wait
//! prints nothing.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, select_all};
use lockkeeper::admin::{ContenderInfo, LockInfo};
use lockkeeper::error::AdminError;
use lockkeeper::{LockPath, Lockkeeper, NodeFormat};
use lockkeeper_hold::Ahead;
use lockkeeper_session::text::spell;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until};

use crate::args::values::Waiting;
use crate::liveline::{LiveLine, progress};
use crate::output::Printer;
use crate::text::{self, held_by, permits, plain, who};

/// A shorter wait prints nothing.
const SHORT: Duration = Duration::from_millis(250);

/// Pause before a failed question is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// A log gets a line at the latest this long after the line before; of a long queue, later.
const SILENCE: Duration = Duration::from_secs(60);

/// The longest time without a line, and what each contender ahead adds to it: all waiters of a queue list it for their lines.
const LONGEST_SILENCE: Duration = Duration::from_secs(300);
const SILENCE_OF_EACH: Duration = Duration::from_millis(500);

/// Pause between two looks for a log, for each contender ahead. A look reads all of them.
const PAUSE: Duration = Duration::from_secs(5);

/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

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
        limit.map_or_else(String::new, |limit| format!(", for at most {}", spell(limit)))
    }
}

/// A line of a log about a wait.
#[derive(Debug)]
struct Line {
    /// The lock and the number of contenders ahead, as they were seen last.
    lock: LockInfo,
    ahead: usize,
    /// The number in the last line, and when that was printed.
    told: Option<(usize, Instant)>,
}

/// Whether a line is due: the first one, or the number has halved since `told`, or no line came for long.
fn is_due(ahead: usize, told: Option<(usize, Instant)>, now: Instant) -> bool {
    told.is_none_or(|(before, at)| ahead * 2 <= before || now >= at + silence(ahead))
}

/// How long a log is silent at most, with so many contenders ahead.
fn silence(ahead: usize) -> Duration {
    times(SILENCE_OF_EACH, ahead).clamp(SILENCE, LONGEST_SILENCE)
}

fn times(duration: Duration, count: usize) -> Duration {
    duration.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Takes those out of a lock that have left since it was seen, by the names of the nodes that are there now. Returns how many are still
/// ahead of the waiter at this position.
fn without_those_that_left(lock: &mut LockInfo, place: usize, names: &HashSet<String>) -> usize {
    let own = lock.waiters.get(place).map(|own| own.node.clone());
    lock.holders.retain(|holder| names.contains(&holder.node));
    lock.waiters.retain(|waiter| names.contains(&waiter.node));
    let place = lock.waiters.iter().position(|waiter| Some(&waiter.node) == own.as_ref()).unwrap_or(0);
    text::ahead(lock, place).max(1)
}

/// Notes who has left a queue since it was seen, with one listing. Without an answer, nothing is noted.
///
/// Dropping the future leaves nothing behind.
async fn look_at_names(keeper: &Lockkeeper, line: &mut Line) {
    let Some(place) = own_place(keeper, &line.lock) else { return };
    let (path, format) = (line.lock.path.clone(), NodeFormat::of_node(&line.lock.waiters[place].node));
    let listing = keeper.sessions().ask(move |ensemble| async move {
        let listed = ensemble.list(format.listed(&path)).await;
        let listed = listed.map_err(|fault| lockkeeper::error::refused(&path, fault))?;
        Ok::<_, AdminError>(format.names(&path, listed.names).into_iter().collect())
    });
    if let Ok(names) = listing.await {
        line.ahead = without_those_that_left(&mut line.lock, place, &names);
    }
}

/// Returns the state of a lock now and after changes, and how many contenders are ahead; `None` if this process does not wait for it.
///
/// Between two looks there is a pause, because each look reads the whole queue, and every contender in it may look.
fn paced<'a>(keeper: &'a Lockkeeper, path: &'a str) -> impl Stream<Item = (LockInfo, Option<usize>)> + 'a {
    let start = (looks(keeper, path).boxed(), Duration::ZERO);
    stream::unfold(start, move |(mut looks, before)| async move {
        sleep(before).await;
        let lock = looks.next().await?;
        let ahead = ahead(keeper, &lock).filter(|ahead| *ahead > 0);
        // This process has not requested the lock yet if it never waited for it, and otherwise holds it.
        let after = ahead.map_or(before.min(PAUSE), pause);
        Some(((lock, ahead), (looks, after)))
    })
}

/// How long to wait before the next look.
fn pause(ahead: usize) -> Duration {
    times(PAUSE, ahead).min(LONGEST_PAUSE)
}

/// What is printed about a wait.
#[derive(Debug)]
pub(crate) struct Report {
    quiet: bool,
    /// Who hears of the queue ahead in place of a person.
    listener: Option<UnboundedSender<Ahead>>,
    /// Whether a line of a log said that this process waits. Then another line says that the locks are acquired.
    told: AtomicBool,
    /// The holder that was seen last, and its lock.
    holder: Mutex<Option<(String, ContenderInfo)>>,
}

impl Report {
    /// Creates a report that prints nothing if it is `quiet`.
    pub(crate) const fn new(quiet: bool) -> Self {
        Report { quiet, listener: None, told: AtomicBool::new(false), holder: Mutex::new(None) }
    }

    /// Creates a report that prints nothing, and tells this listener of the queue ahead.
    pub(crate) fn to(listener: UnboundedSender<Ahead>) -> Self {
        Report { listener: Some(listener), ..Report::new(true) }
    }

    /// Whether nothing is printed.
    pub(crate) const fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints that the locks are acquired, if a line of a log said that this process waits for them.
    pub(crate) fn acquired(&self, paths: &[LockPath], started: Instant, printer: Printer) {
        if self.told.swap(false, Ordering::Relaxed) {
            let paths: Vec<_> = paths.iter().map(LockPath::as_str).collect();
            let waited = started.elapsed();
            printer.acquired(&format!("acquired {} after {}", paths.join(", "), spell(waited)), paths, waited);
        }
    }

    /// Returns the holder of a lock that was seen last.
    pub(crate) fn seen(&self, path: &str) -> Option<ContenderInfo> {
        let holder = self.holder.lock().expect("held for a look only");
        holder.as_ref().filter(|(of, _)| of == path).map(|(_, holder)| holder.clone())
    }

    fn ahead_of(&self, lock: &LockInfo, ahead: usize) -> Ahead {
        let holder = self.seen(&lock.path).map(|holder| who(&holder));
        Ahead { path: lock.path.clone(), ahead: ahead as u64, holder }
    }

    /// Notes the holder of a lock.
    fn sees(&self, keeper: &Lockkeeper, lock: &LockInfo) {
        if let Some(holder) = lock.holders.iter().find(|holder| holder.owner.as_ref() != Some(keeper.owner())) {
            *self.holder.lock().expect("held for a change only") = Some((lock.path.clone(), holder.clone()));
        }
    }

    fn waiting(&self, text: &str, lock: &LockInfo, ahead: usize, printer: Printer) {
        self.told.store(true, Ordering::Relaxed);
        printer.waiting(text, lock, ahead);
    }

    /// Prints which contenders this process waits for, until it is dropped.
    ///
    /// A terminal has one line that changes. A log gets a line at the beginning of the wait for each lock, when the number of
    /// contenders ahead has halved, and at the latest a minute after the line before; with more than 120 ahead, at most 5 min after it.
    pub(crate) async fn run(
        &self,
        keeper: &Lockkeeper,
        paths: &[LockPath],
        wait: Wait,
        printer: Printer,
    ) -> Infallible {
        if let Some(listener) = &self.listener {
            let mut looks = select_all(paths.iter().map(|path| paced(keeper, path.as_str()).boxed()));
            while let Some((lock, ahead)) = looks.next().await {
                if let Some(ahead) = ahead {
                    self.sees(keeper, &lock);
                    _ = listener.send(self.ahead_of(&lock, ahead));
                }
            }
        }
        if self.quiet {
            return pending().await;
        }
        sleep(SHORT).await;
        if !printer.is_json()
            && let Some(line) = LiveLine::on_terminal()
        {
            let mut looks = select_all(paths.iter().map(|path| looks(keeper, path.as_str()).boxed()));
            return self.live(keeper, paths, &mut looks, wait, (line, printer)).await;
        }
        let mut looks = select_all(paths.iter().map(|path| paced(keeper, path.as_str()).boxed()));
        let mut last: Option<Line> = None;
        loop {
            let silence = last.as_ref().and_then(|line| Some(line.told?.1 + silence(line.ahead)));
            tokio::select! {
                biased;
                Some((lock, ahead)) = looks.next() => {
                    let Some(ahead) = ahead else { continue };
                    self.sees(keeper, &lock);
                    // A request for several locks waits for one lock at a time.
                    let told = last.filter(|line| line.lock.path == lock.path).and_then(|line| line.told);
                    last = Some(Line { lock, ahead, told });
                }
                // Between two looks, a listing shows who has left.
                () = sleep_until(silence.unwrap_or_else(Instant::now)), if silence.is_some() => {
                    if let Some(line) = &mut last {
                        look_at_names(keeper, line).await;
                    }
                }
            }
            if let Some(line) = &mut last
                && is_due(line.ahead, line.told, Instant::now())
            {
                let (who, many) = describe(keeper, &line.lock, line.ahead, printer);
                let end = if line.told.is_none() { wait.at_most() } else { format!("; {}", wait.progress()) };
                self.waiting(&format!("{who}{many}{end}"), &line.lock, line.ahead, printer);
                line.told = Some((line.ahead, Instant::now()));
            }
        }
    }

    /// Keeps one line of a terminal up to date.
    async fn live(
        &self,
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
                        self.sees(keeper, &lock);
                        text = describe(keeper, &lock, ahead, printer);
                    }
                }
                _ = clock.tick() => {}
            }
            let (who, many) = &text;
            line.show(who, &format!("{many}; {}", wait.progress()));
        }
    }

    /// Prints the owner that a leased lock waits for, and the longest time that the wait takes, until it is dropped.
    ///
    /// `waiting` is the requested wait, `ask` how long operators are asked after it.
    pub(crate) async fn run_lease(
        &self,
        keeper: &Lockkeeper,
        path: &str,
        (waiting, ask): (Option<Waiting>, Option<Duration>),
        printer: Printer,
    ) -> Infallible {
        if self.quiet && self.listener.is_none() {
            return pending().await;
        }
        let started = Instant::now();
        let lock = loop {
            match keeper.admin().show(path).await {
                Ok(lock) => break lock,
                Err(_) => sleep(RETRY).await,
            }
        };
        if let Some(listener) = &self.listener {
            self.sees(keeper, &lock);
            _ = listener.send(self.ahead_of(&lock, 1));
            return pending().await;
        }
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
            self.waiting(&format!("{holder}{}; asked the owner to clean up", wait.at_most()), &lock, 1, printer);
            return pending().await;
        };
        sleep(SHORT).await;
        let mut clock = seconds();
        loop {
            line.show(&holder, &format!("; {}", wait.progress()));
            clock.tick().await;
        }
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
        text.push_str(&format!(": {} {}", held_by(0), who(holder)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gets_a_line_when_the_number_has_halved_and_at_the_latest_after_a_minute_or_few() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        assert!(is_due(9, None, start));
        for (ahead, told, seconds, due) in [
            (9, 9, 1, false),
            (5, 9, 1, false),
            (4, 9, 1, true),
            (1, 2, 1, true),
            (1, 1, 59, false),
            (1, 1, 60, true),
            (260, 260, 129, false),
            (260, 260, 130, true),
            (9_000, 9_000, 300, true),
        ] {
            assert_eq!(is_due(ahead, Some((told, start)), start + second * seconds), due, "{ahead} of {told}");
        }
        assert_eq!((pause(2), pause(1000)), (PAUSE * 2, LONGEST_PAUSE));
    }
}
