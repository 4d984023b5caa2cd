//! `lockkeeper show`: the holders and waiters of a lock, and other nodes at its path.

use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper::admin::{Admin, ContenderInfo, LockInfo};
use lockkeeper::embedded::Home;
use lockkeeper::error::AdminError;
use lockkeeper::{Builder, Lockkeeper, spell};

use crate::args::ask::ShowArgs;
use crate::exit::Failure;
use crate::jobsview;
use crate::local;
use crate::output::{self, Printer};
use crate::place::Place;
use crate::presence::GONE;
use crate::servertime::ServerTime;
use crate::settings::{Settings, lock_path};
use crate::text::{SESSIONLESS, ahead, part, permits, plain, revocation, since, stuck, term, wanted};
use crate::views::LockView;
use crate::waiting;

/// Shows a lock; returns the exit status.
pub(crate) async fn show(args: ShowArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?;
    let settings = Settings::read(args.connect, printer)?.at([path.as_str()])?;
    let at = path.clone();
    let (lock, job) = inquire(&settings, async move |admin| {
        let (lock, job) = tokio::join!(admin.show(at.as_str()), admin.job(at.as_str()));
        // What a job did is an addition: a client without the right to read the records still sees the lock.
        match (lock, job.ok().flatten()) {
            // The servers delete the node of a lock that nobody uses.
            (Err(AdminError::NoSuchLock { .. }), Some(job)) => Ok((None, Some(job))),
            (lock, job) => Ok((Some(lock?), job)),
        }
    })
    .await?;
    let last = job.as_ref().and_then(jobsview::ended);
    if printer.is_json() {
        let view = lock.as_ref().map_or_else(|| LockView::free(path.as_str()), LockView::of);
        output::answer(&settings.place, &view.with_last_run(last))?;
    } else {
        printer.scope(&settings.place);
        ServerTime::of(lock.as_slice()).note.iter().for_each(|note| printer.note(note));
        let mut text = lock.as_ref().map_or_else(|| format!("{}\n  free\n", plain(path.as_str())), text);
        if let Some(run) = last {
            _ = writeln!(text, "  last run {}", jobsview::outcome(run));
        }
        output::data(&text)?;
    }
    Ok(0)
}

/// Runs a query in a session of its own. It starts no server.
///
/// # Errors
/// [`local::not_running`], if the place is this user's own server and it does not run.
pub(crate) async fn inquire<T>(
    settings: &Settings,
    question: impl AsyncFnOnce(Admin) -> Result<T, AdminError>,
) -> Result<T, Failure> {
    ask(connect_running(settings, &settings.builder()).await?, settings, question).await
}

/// The same for what the server keeps while nobody uses it: this user's own server is started if it has data.
pub(crate) async fn inquire_records<T>(
    settings: &Settings,
    printer: &Printer,
    question: impl AsyncFnOnce(Admin) -> Result<T, AdminError>,
) -> Result<T, Failure> {
    ask(connect_to_records(settings, printer).await?, settings, question).await
}

async fn ask<T>(
    keeper: Lockkeeper,
    settings: &Settings,
    question: impl AsyncFnOnce(Admin) -> Result<T, AdminError>,
) -> Result<T, Failure> {
    let answer = question(keeper.admin()).await;
    keeper.close().await;
    answer.map_err(|error| Failure::from(error).scoped(&settings.place))
}

/// Opens a session; like [`inquire_records`], it starts this user's own server if that has data.
pub(crate) async fn connect_to_records(settings: &Settings, printer: &Printer) -> Result<Lockkeeper, Failure> {
    let builder = settings.builder();
    connect_with(settings, &builder, async |home| local::connect_to_records(home, &builder, printer).await).await
}

/// Returns the session timeout that the server grants.
pub(crate) async fn inquire_session_timeout(settings: &Settings) -> Result<Option<Duration>, Failure> {
    let keeper = connect_running(settings, &settings.builder()).await?;
    let timeout = keeper.session_timeout();
    keeper.close().await;
    Ok(timeout)
}

/// Opens a session; like [`inquire`], it starts no server.
pub(crate) async fn connect_running(settings: &Settings, builder: &Builder) -> Result<Lockkeeper, Failure> {
    connect_with(settings, builder, async |home| local::connect_running(home, builder).await).await
}

/// Opens a session: with an ensemble, or with the server of this machine as `to_home` does.
pub(crate) async fn connect_with(
    settings: &Settings,
    builder: &Builder,
    to_home: impl AsyncFnOnce(&Home) -> Result<Lockkeeper, Failure>,
) -> Result<Lockkeeper, Failure> {
    waiting::connecting(&settings.place.to_string(), Some(settings.connect_timeout()), async {
        match &settings.place {
            Place::Ensemble(servers) => Ok(builder.clone().connect(servers).await?),
            Place::Machine(home) => to_home(home).await,
        }
    })
    .await
}

fn text(lock: &LockInfo) -> String {
    let mut text = plain(&lock.path);
    text.push('\n');
    if let Some(permits) = permits(lock) {
        _ = writeln!(text, "  {permits}");
    }
    if lock.holders.is_empty() {
        match stuck(lock) {
            Some(stuck) => _ = writeln!(text, "  {stuck}"),
            None if lock.lease.is_some() => text.push_str("  no holder at this moment\n"),
            None => text.push_str("  free\n"),
        }
    }
    for (at, holder) in lock.holders.iter().enumerate() {
        contender(&mut text, if at == 0 { "held by" } else { "and by" }, &lock.path, holder);
    }
    if let Some(lease) = &lock.lease {
        _ = writeln!(text, "    held     {}", term(lease));
        if !lease.cleanup.is_zero() {
            _ = writeln!(text, "    cleanup  {}", spell(lease.cleanup));
        }
        if let Some(requestor) = &lease.requestor {
            _ = writeln!(text, "  {}", wanted(requestor));
        }
    }
    for (at, waiter) in lock.waiters.iter().enumerate() {
        contender(&mut text, &format!("waits {}.", at + 1), &lock.path, waiter);
        _ = writeln!(text, "    ahead    {}", ahead(lock, at));
    }
    for node in &lock.sessionless {
        _ = writeln!(text, "  {SESSIONLESS}: {}", plain(&node.node_path(&lock.path)));
    }
    for name in &lock.unknown {
        _ = writeln!(text, "  not a contender: {}/{}", plain(&lock.path), plain(name));
    }
    text
}

fn contender(text: &mut String, role: &str, path: &str, contender: &ContenderInfo) {
    // Writing to a string never fails.
    _ = writeln!(text, "  {role} {}{}", plain(&contender.described), since(contender));
    let detail = |text: &mut String, name: &str, value: &str| {
        _ = writeln!(text, "    {name:<8} {}", plain(value));
    };
    if let Some(part) = part(contender) {
        detail(text, "as", &part);
    }
    if let Some(message) = &contender.message {
        detail(text, "why", message);
    }
    if let Some(program) = contender.owner.as_ref().and_then(|owner| owner.program.as_deref()) {
        detail(text, "runs", program);
    }
    if contender.process_has_ended() {
        detail(text, "gone", GONE);
    }
    if let Some(request) = &contender.revocation {
        detail(text, "told", &revocation(request));
    }
    if let Some(token) = contender.token.filter(|_| contender.permits.is_none()) {
        detail(text, "token", &token.to_string());
    }
    detail(text, "node", &contender.node_path(path));
    if contender.mode != "lease" {
        detail(text, "session", &contender.session.to_string());
    }
}
