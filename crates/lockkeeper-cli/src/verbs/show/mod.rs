//! `lockkeeper show`: the holders and waiters of a lock, and other nodes at its path.

mod stats;

use std::fmt::Write as _;

use lockkeeper::admin::{ContenderInfo, LockInfo};
use lockkeeper::error::AdminError;
use lockkeeper_jobs::{JobsAdmin, Pause, RunRecord};
use lockkeeper_session::text::{excerpt, spell};
use serde::Serialize;

use crate::args::common::Common;
use crate::args::values::Completes;
use crate::colour::Severity;
use crate::evidence;
use crate::exit::Failure;
use crate::inquiry::inquire_of;
use crate::jobsview::{self, JobView};
use crate::output::{self, Printer};
use crate::presence::{GONE, HERE};
use crate::screen::{self, INDENT, Size};
use crate::servertime::ServerTime;
use crate::settings::{Settings, lock_path};
use crate::statuses::{Code, Status, Statuses, help};
use crate::text::{
    self, SESSIONLESS, ahead, described, held_by, part, permits, plain, revocation, since, stuck, term, wanted, who,
};
use crate::verb::{Context, Verb};

/// The exit statuses of `lockkeeper show`.
const STATUSES: &[Status] = &[
    (Code::Done, "printed; of --reset: deleted", ""),
    (
        Code::NoSuchLock,
        "there is no such lock; of --stats: there are no statistics of it",
        "`why` says that it is free",
    ),
];

/// `lockkeeper show`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "", "\
Examples:
  lockkeeper show nightly
  lockkeeper show nightly --json"))]
pub(crate) struct ShowArgs {
    /// The lock
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Print all holders and waiters: on a terminal not only what fits, and of why not only the first ten
    #[arg(long)]
    pub all: bool,
    /// Print how long a leased lock was held, and its timeouts: of commands with --stats, and of programs that publish theirs
    #[arg(long, conflicts_with = "all")]
    pub stats: bool,
    /// With --stats, delete the statistics of this lock
    #[arg(long, hide_short_help = true, requires = "stats")]
    pub reset: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for ShowArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        match self.stats {
            true => stats::stats(self, context.printer).await,
            false => show(self, context.printer).await,
        }
    }
}

/// Maximum nodes that are no contenders on the first screen.
const SOME: usize = 2;

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    lock: &'a LockInfo,
    /// The last run of the job with this lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run: Option<&'a RunRecord>,
    /// The pause of that job, if it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<&'a Pause>,
}

/// Shows a lock; returns the exit status.
async fn show(args: ShowArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?;
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let at = path.clone();
    let (lock, job) = inquire_of(&settings, async move |keeper| {
        let (admin, jobs) = (keeper.admin(), JobsAdmin::new(&keeper));
        let (lock, job) = tokio::join!(admin.show(at.as_str()), jobs.job(at.as_str()));
        // The records are an addition too.
        let mut lock = lock;
        if let Ok(lock) = &mut lock {
            _ = evidence::habits(&keeper, std::slice::from_mut(lock), None).await;
        }
        // What a job did is an addition: a client without the right to read the records still sees the lock.
        match (lock, job.ok().flatten()) {
            // The servers delete the node of a lock that nobody uses.
            (Err(AdminError::NoSuchLock { .. }), Some(job)) => Ok((None, Some(job))),
            (lock, job) => Ok::<_, AdminError>((Some(lock?), job)),
        }
    })
    .await?;
    let last = job.as_ref().and_then(jobsview::ended);
    let time = ServerTime::of(lock.as_slice());
    let pause = job.as_ref().and_then(|job| JobView::at(job, &time).pause());
    if printer.is_json() {
        let free = LockInfo::unused(path.as_str());
        output::answer(&settings.place, &Shown { lock: lock.as_ref().unwrap_or(&free), last_run: last, pause })?;
    } else {
        printer.scope(&settings.place);
        time.note.iter().for_each(|note| printer.note(note));
        let last = last.map_or_else(String::new, |run| format!("  last run {}\n", jobsview::outcome(run)));
        let last = last + &pause.map_or_else(String::new, |pause| format!("  {}\n", jobsview::paused(pause)));
        let Some(lock) = lock else {
            output::lines(&format!("{}\n  free\n{last}", plain(path.as_str())), INDENT)?;
            return Ok(0);
        };
        let whole = text(&lock) + &last;
        match Size::for_an_answer().filter(|_| !args.all) {
            Some(room) if !room.takes(&whole, INDENT) => output::styled(&first_screen(&lock, &last, room))?,
            _ => output::lines(&whole, INDENT)?,
        }
    }
    Ok(0)
}

/// The path, and the state if nobody holds the lock.
fn head(lock: &LockInfo) -> String {
    let mut text = plain(&lock.path);
    text.push('\n');
    // Writing to a string never fails.
    if let Some(permits) = permits(lock) {
        _ = writeln!(text, "  {permits}");
    }
    if lock.holders.is_empty() {
        match stuck(lock) {
            Some(stuck) => _ = writeln!(text, "  {}", Severity::Serious.paint(&stuck)),
            None if lock.lease.is_some() => text.push_str("  no holder at this moment\n"),
            None => text.push_str("  free\n"),
        }
    }
    text
}

/// What only a leased lock has.
fn lease(lock: &LockInfo) -> String {
    let Some(lease) = &lock.lease else { return String::new() };
    let mut text = format!("    held     {}\n", term(lease));
    if !lease.cleanup.is_zero() {
        _ = writeln!(text, "    cleanup  {}", spell(lease.cleanup));
    }
    if let Some(requestor) = &lease.requestor {
        _ = writeln!(text, "  {}", wanted(requestor));
    }
    text
}

/// Everything about a lock.
fn text(lock: &LockInfo) -> String {
    let mut text = head(lock);
    for (at, holder) in lock.holders.iter().enumerate() {
        contender(&mut text, held_by(at), &lock.path, holder);
    }
    text.push_str(&lease(lock));
    for (at, waiter) in lock.waiters.iter().enumerate() {
        contender(&mut text, &format!("waits {}.", at + 1), &lock.path, waiter);
        _ = writeln!(text, "    ahead    {}", ahead(lock, at));
    }
    text.extend(others(lock));
    text
}

/// The nodes that hold nothing and wait for nothing.
fn others(lock: &LockInfo) -> impl Iterator<Item = String> {
    let sessionless = lock.sessionless.iter();
    let sessionless = sessionless
        .map(|node| format!("  {}: {}\n", Severity::Notice.paint(SESSIONLESS), plain(&node.node_path(&lock.path))));
    let unknown = lock.unknown.iter();
    sessionless.chain(unknown.map(|name| format!("  not a contender: {}/{}\n", plain(&lock.path), plain(name))))
}

/// What fits on the screen: the holders, the first waiters, the first one of this user, and the last.
fn first_screen(lock: &LockInfo, last_run: &str, room: Size) -> String {
    let head = screen::wrapped(&head(lock), room.columns, INDENT);
    let mut tail = lease(lock) + last_run;
    let more = |count: usize| format!("  … {count} more: --all\n");
    tail.extend(others(lock).take(SOME));
    let left_out = others(lock).count().saturating_sub(SOME);
    if left_out > 0 {
        tail.push_str(&more(left_out));
    }
    let tail = screen::wrapped(&tail, room.columns, INDENT);
    let mut left = room.less(&head).less(&tail);
    let line = |role: &str, contender: &ContenderInfo| {
        screen::cut(&format!("  {role} {}", who(contender)), room.columns) + "\n"
    };
    let holders = match &lock.holders[..] {
        [holder] => {
            let mut text = String::new();
            contender(&mut text, held_by(0), &lock.path, &brief(holder));
            screen::wrapped(&text, room.columns, INDENT)
        }
        holders => {
            let rows = if lock.waiters.is_empty() { left.rows } else { left.rows / 2 };
            let holder = |at: usize| line(held_by(at), &holders[at]);
            some(holders, rows).into_iter().map(|entry| entry.map_or_else(more, holder)).collect()
        }
    };
    left = left.less(&holders);
    let waiter = |at: usize| line(&format!("waits {}.", at + 1), &lock.waiters[at]);
    let waiters = some(&lock.waiters, left.rows).into_iter().map(|entry| entry.map_or_else(more, waiter));
    format!("{head}{holders}{tail}{}", waiters.collect::<String>())
}

/// Returns the contenders for this many rows, by their places: the first ones, the first one of this user, and the last. `Err`: this
/// many are left out here.
fn some(contenders: &[ContenderInfo], rows: usize) -> Vec<Result<usize, usize>> {
    let count = contenders.len();
    if count <= rows {
        return (0..count).map(Ok).collect();
    }
    let last = count - 1;
    let first = rows.saturating_sub(2).max(1);
    let is_own = |contender: &ContenderInfo| {
        contender.owner.as_ref().is_some_and(|owner| (&owner.user, &owner.host) == (&HERE.user, &HERE.host))
    };
    let own = contenders.iter().position(is_own).filter(|at| *at >= first && *at < last && first > 1);
    let first = first - usize::from(own.is_some());
    let end: Vec<_> = own.into_iter().chain((last > first).then_some(last)).collect();
    let left_out = count - first - end.len();
    let more = (left_out > 0).then_some(Err(left_out));
    (0..first).map(Ok).chain(more).chain(end.into_iter().map(Ok)).collect()
}

/// The same contender with short texts.
fn brief(contender: &ContenderInfo) -> ContenderInfo {
    let mut brief = contender.clone();
    brief.described = described(contender).into_owned();
    brief.revocation = brief.revocation.as_ref().map(text::brief);
    if let Some(message) = &mut brief.message {
        *message = excerpt(message).into_owned();
    }
    if let Some(program) = brief.owner.as_mut().and_then(|owner| owner.program.as_mut()) {
        *program = excerpt(program).into_owned();
    }
    brief
}

fn contender(text: &mut String, role: &str, path: &str, contender: &ContenderInfo) {
    // Writing to a string never fails.
    let abandoned = if contender.abandoned { Severity::Notice } else { Severity::None };
    _ = writeln!(text, "  {role} {}{}", plain(&contender.described), abandoned.paint(&since(contender)));
    let coloured = |text: &mut String, name: &str, value: &str, colour: Severity| {
        _ = writeln!(text, "    {name:<8} {}", colour.paint(&plain(value)));
    };
    let detail = |text: &mut String, name: &str, value: &str| coloured(text, name, value, Severity::None);
    if let Some(part) = part(contender) {
        detail(text, "as", &part);
    }
    if let Some(message) = &contender.message {
        detail(text, "why", message);
    }
    if let Some(program) = contender.owner.as_ref().and_then(|owner| owner.program.as_deref()) {
        detail(text, if contender.abandoned { "ran" } else { "runs" }, program);
    }
    if contender.process_has_ended() {
        coloured(text, "gone", GONE, Severity::Serious);
    }
    if let Some(request) = &contender.revocation {
        coloured(text, "told", &revocation(request), Severity::Notice);
    }
    if let Some(token) = contender.token.filter(|_| contender.permits.is_none()) {
        detail(text, "token", &token.to_string());
    }
    detail(text, "node", &contender.node_path(path));
    if contender.mode != "lease" {
        // What is left of an abandoned hold ends with no session.
        let session = contender.session;
        detail(text, "session", &if session.is_none() { "none".to_owned() } else { session.to_string() });
    }
}
