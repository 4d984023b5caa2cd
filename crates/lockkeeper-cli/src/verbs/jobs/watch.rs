//! `lockkeeper jobs --watch`: the table on a terminal, drawn again after each change.

use std::collections::{BTreeMap, HashMap};
use std::future::{pending, poll_fn};
use std::io::IsTerminal;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::OptionFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use lockkeeper::admin::Follow;
use lockkeeper::error::AdminError;
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_history::{FollowRefusals, History};
use lockkeeper_jobs::{JobStatus, JobsAdmin, server_now_ms};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::args::JobsArgs;
use crate::advice::Suggested;
use crate::evidence::is_used;
use crate::exit::{Code, Failure};
use crate::inquiry::connect_to_ask;
use crate::jobsview::{self, JobView, Requests, is_idle};
use crate::output::{self, Printer};
use crate::place::realm;
use crate::screen::{Size, cut};
use crate::settings::{Part, Settings};
use crate::signals::Signals;
use crate::text::plain;

/// Pause before a failed question is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps the table up to date on a terminal.
pub(super) async fn watch(
    args: &JobsArgs,
    path: Option<&str>,
    parts: &[Part],
    printer: &Printer,
) -> Result<u8, Failure> {
    let [Part { settings, .. }] = parts else { return Err(one_realm(parts)) };
    if !std::io::stdout().is_terminal() {
        return Err(Failure::new(Code::Usage, "--watch needs a terminal, and standard output is none")
            .hint("leave out --watch, or use --json in a loop of your own"));
    }
    let mut signals = Signals::default();
    signals.add(&[Signal::INT, Signal::TERM, Signal::HUP])?;
    let keeper = connect_to_ask(settings).await?;
    let shown = tokio::select! {
        biased;
        _ = signals.next() => Ok(0),
        failure = follow(args, path, &keeper, settings) => Err(failure),
    };
    keeper.close().await;
    printer.scope(&settings.place);
    shown
}

/// Returns the failure of a command that can follow only one realm, with a command for each.
fn one_realm(parts: &[Part]) -> Failure {
    let realms: Vec<_> = parts.iter().filter_map(|part| part.realm.as_ref()).collect();
    let names: Vec<_> = realms.iter().map(|(prefix, servers)| realm(prefix, servers)).collect();
    let message = format!("--watch follows the jobs of one realm, and the realms are {}", names.join(", "));
    realms.iter().fold(Failure::new(Code::Usage, message), |failure, (_, servers)| {
        failure.advise("follow one of them", Suggested::new(["jobs", "--watch"]).at(servers))
    })
}

/// Prints the table at each change, and when the passing time changes it; returns the failure that ends it.
async fn follow(args: &JobsArgs, path: Option<&str>, keeper: &Lockkeeper, settings: &Settings) -> Failure {
    let mut resized = match signal(SignalKind::window_change()) {
        Ok(resized) => resized,
        Err(error) => return Failure::system("cannot wait for a change of the terminal's size", error),
    };
    let mut follow = JobsAdmin::new(keeper).follow(path.unwrap_or("/"));
    let mut requests = FollowRequests::new(keeper);
    let mut seen: Option<Seen> = None;
    let mut lost: Option<Error> = None;
    loop {
        let read = async {
            if lost.is_some() {
                sleep(RETRY).await;
            }
            let mut jobs = follow.next().await?;
            jobs.retain(|job| path.is_none_or(|path| job.path == path));
            Ok::<_, Error>(Seen { now_ms: server_now_ms(keeper).await?, at: Instant::now(), jobs })
        };
        let shown = async {
            let Some(seen) = &seen else { return pending().await };
            loop {
                let now_ms = seen.now_ms.saturating_add_unsigned(seen.at.elapsed().as_millis() as u64);
                let view = |job| JobView::of(job, now_ms, args.late).with_requests(requests.of(job));
                let views: Vec<_> = seen.jobs.iter().map(view).collect();
                let Some(size) = Size::of(std::io::stdout()) else { return pending().await };
                let last = match &lost {
                    Some(error) => cut(&plain(&format!("not up to date: {error}")), size.columns) + "\n",
                    None if views.is_empty() => {
                        cut(&plain(&format!("no job has run on {}", settings.place)), size.columns) + "\n"
                    }
                    None => String::new(),
                };
                // The cursor is below the text, so the last row stays free: otherwise the terminal scrolls.
                let room = Size { rows: size.rows.saturating_sub(1), ..size }.less(&last);
                let jobs = if views.is_empty() { String::new() } else { jobsview::screen(&views, room) };
                let jobs = output::shown(&jobs, &std::io::stdout());
                if let Err(failure) = output::data(&frame(&format!("{jobs}{last}"))) {
                    return failure;
                }
                let changes_in = views.iter().filter_map(JobView::changes_in).min();
                let passed = OptionFuture::from(changes_in.map(sleep));
                tokio::select! {
                    Some(()) = passed => {}
                    () = requests.next() => {}
                    _ = resized.recv() => {}
                }
            }
        };
        let read = tokio::select! {
            read = read => read,
            failure = shown => return failure,
        };
        match read {
            Ok(read) => {
                requests.follow(&read.jobs);
                (seen, lost) = (Some(read), None);
            }
            // The state on the screen is better than none.
            Err(error) if seen.is_some() && error.kind().is_retryable() => lost = Some(error),
            Err(error) => return Failure::from(error).scoped(&settings.place),
        }
    }
}

/// Returns a text for the screen, over the one before: each line replaces the one at its place, and the rows below are cleared.
fn frame(text: &str) -> String {
    // Each row is cleared before it is written: behind a whole line, the cursor still stands on the last column.
    let lines: String = text.split_inclusive('\n').map(|line| format!("\x1b[K{line}")).collect();
    format!("\x1b[H{lines}\x1b[J")
}

/// The jobs as they were read, with the servers' time at that moment.
struct Seen {
    jobs: Vec<JobStatus>,
    now_ms: i64,
    at: Instant,
}

/// The requests for each job that runs on no machine.
///
/// Each of these jobs costs eleven watches, and a read of its lock or of its history after each change. A history or a lock that this
/// user may not read is left out: the requests are an addition.
struct FollowRequests {
    keeper: Lockkeeper,
    changes: BTreeMap<String, BoxStream<'static, Option<Requests>>>,
    known: HashMap<String, Requests>,
}

impl FollowRequests {
    fn new(keeper: &Lockkeeper) -> Self {
        FollowRequests { keeper: keeper.clone(), changes: BTreeMap::new(), known: HashMap::new() }
    }

    /// Follows those of these jobs that run on no machine, and no others.
    fn follow(&mut self, jobs: &[JobStatus]) {
        let mut changes = std::mem::take(&mut self.changes);
        for job in jobs.iter().filter(|job| is_idle(job)) {
            let of = changes.remove(&job.path).unwrap_or_else(|| requests(&self.keeper, &job.path));
            self.changes.insert(job.path.clone(), of);
        }
        self.known.retain(|path, _| self.changes.contains_key(path));
    }

    /// Returns what is known of the requests for a job.
    fn of(&self, job: &JobStatus) -> Option<&Requests> {
        self.known.get(&job.path)
    }

    /// Returns when the requests for a job have changed.
    async fn next(&mut self) {
        poll_fn(|context| {
            let mut has_changed = false;
            for (path, changes) in &mut self.changes {
                while let Poll::Ready(Some(requests)) = changes.poll_next_unpin(context) {
                    has_changed = true;
                    match requests {
                        Some(requests) => self.known.insert(path.clone(), requests),
                        None => self.known.remove(path),
                    };
                }
            }
            if has_changed { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Returns the requests for a job: those of now, and again after each change; `None` at the end, if they cannot be read.
fn requests(keeper: &Lockkeeper, path: &str) -> BoxStream<'static, Option<Requests>> {
    let following = (History::new(keeper).follow_refusals(path), keeper.admin().follow(path).or_absent());
    let changes = stream::unfold(Some((following, None)), async |following| {
        let ((mut refusals, mut lock), known) = following?;
        loop {
            match next_requests(&mut refusals, &mut lock, known.as_ref()).await {
                Ok(requests) => {
                    return Some((Some(requests.clone()), Some(((refusals, lock), Some(requests)))));
                }
                Err(error) if Error::from(error.clone()).kind().is_retryable() => sleep(RETRY).await,
                Err(_) => return Some((None, None)),
            }
        }
    });
    changes.fuse().boxed()
}

/// Returns the requests for a job after the next change; without known ones, those of now.
async fn next_requests(
    refusals: &mut FollowRefusals,
    lock: &mut Follow,
    known: Option<&Requests>,
) -> Result<Requests, AdminError> {
    let Some(known) = known else {
        let (refused, lock) = tokio::try_join!(refusals.next(), lock.next())?;
        return Ok(Requests { refused, is_in_use: is_used(&lock) });
    };
    // The one that is dropped reads again with the next call.
    tokio::select! {
        refused = refusals.next() => Ok(Requests { refused: refused?, is_in_use: known.is_in_use }),
        lock = lock.next() => Ok(Requests { refused: known.refused.clone(), is_in_use: is_used(&lock?) }),
    }
}
