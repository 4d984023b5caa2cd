//! `lockkeeper jobs`: what ran, where, when, how long, and how it ended.

use std::future::pending;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::time::Duration;

use jiff::tz::TimeZone;
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_work::jobs::{JobError, JobState, JobStatus, JobsAdmin, NoRerun, Resolve, RunRecord, Schedule};
use rustix::process::Signal;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::advice::Suggested;
use crate::args::jobs::{ForgetArgs, ImportArgs, JobsArgs, JobsVerb, RerunArgs, ResolveArgs};
use crate::commands::realms::ask_each;
use crate::commands::show::{connect_to_records, inquire_records};
use crate::crontab::{self, Format};
use crate::exit::{Code, Failure};
use crate::jobsview::{self, Health, JobView};
use crate::output::{self, Printer};
use crate::place::realm;
use crate::screen::{Size, cut};
use crate::settings::{Part, Settings, lock_path};
use crate::signals::Signals;
use crate::text::plain;

/// Pause of `--watch` before a failed question is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// The PATH of a crontab that sets none.
const PATH_OF_CRON: &str = "/usr/bin:/bin";

/// Shows jobs, or obeys another verb; returns the exit status.
pub(crate) async fn jobs(mut args: JobsArgs, printer: &Printer) -> Result<u8, Failure> {
    match args.verb.take() {
        Some(JobsVerb::Import(args)) => import(args, *printer),
        Some(JobsVerb::Resolve(args)) => resolve(args, printer).await,
        Some(JobsVerb::Rerun(args)) => rerun(args, printer).await,
        Some(JobsVerb::Forget(args)) => forget(args, printer).await,
        None => show(args, printer).await,
    }
}

#[derive(Serialize)]
struct JobsDocument<'a> {
    now_ms: i64,
    jobs: Vec<&'a JobView<'a>>,
}

async fn show(mut args: JobsArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = args.name.as_deref().map(lock_path).transpose()?.map(|path| path.to_string());
    let settings = Settings::read(args.connect.clone(), printer)?;
    args.late = args.late.or(settings.all.jobs.late.value);
    let parts = match &path {
        Some(path) => {
            let mut parts = settings.at([path.as_str()])?.parts(path)?;
            // Realms below the path have other jobs.
            parts.retain(|part| part.root == *path);
            parts
        }
        None => settings.parts("/")?,
    };
    if args.watch {
        return watch(&args, path.as_deref(), &parts, printer).await;
    }
    let answers = ask_each(&parts, printer, async |part| {
        inquire_records(&part.settings, printer, async |keeper| {
            let admin = JobsAdmin::new(&keeper);
            let mut jobs: Vec<_> = match &path {
                Some(path) => admin.job(path).await?.into_iter().collect(),
                None => admin.jobs(&part.root).await?,
            };
            jobs.retain(|job| part.has(&job.path));
            // Without a job there is nothing to compare with the time.
            let now_ms = if jobs.is_empty() { 0 } else { keeper.admin().server_now_ms().await? };
            Ok::<_, Error>((jobs, now_ms))
        })
        .await
    })
    .await?;
    let source = answers.source();
    let now_ms = answers.from.iter().map(|(_, (_, now_ms))| *now_ms).max().unwrap_or_default();
    let views =
        answers.from.iter().flat_map(|(_, (jobs, now_ms))| jobs.iter().map(|job| JobView::of(job, *now_ms, args.late)));
    let mut views: Vec<_> = views.collect();
    views.sort_by(|one, other| one.job.path.cmp(&other.job.path));
    if let (Some(path), []) = (&path, &views[..]) {
        return Err(not_recorded(path).scoped(&parts[0].settings.place));
    }
    if let Some(file) = &args.prometheus {
        write_whole(file, &jobsview::prometheus(&views))?;
        return answers.end(0, printer);
    }
    let worst = views.iter().map(JobView::health).max().unwrap_or(Health::InOrder);
    let status = match worst {
        _ if !args.check => 0,
        Health::InOrder => 0,
        Health::Late => 1,
        Health::Failed => 2,
    };
    let shown = views.iter().filter(|job| !args.check || job.health() != Health::InOrder);
    if printer.is_json() {
        output::answer(&source, &JobsDocument { now_ms, jobs: shown.collect() })?;
    } else if args.check {
        output::data(&shown.map(|job| job.line() + "\n").collect::<String>())?;
    } else if let ([view], true) = (&views[..], args.history) {
        printer.scope(&source);
        output::data(&jobsview::history(view.job, columns()))?;
    } else if views.is_empty() {
        printer.note(&format!("no job has run on {source}"));
    } else {
        printer.scope(&source);
        output::data(&jobsview::table(&views, columns()))?;
    }
    answers.end(status, printer)
}

fn not_recorded(path: &str) -> Failure {
    Failure::new(Code::NoSuchLock, format!("no run of {path} as a job is recorded"))
        .hint("an attempt that did not get the lock leaves no record")
        .advise("see which jobs there are", Suggested::new(["jobs"]))
}

/// Returns the columns of standard output, if that is a terminal.
fn columns() -> Option<usize> {
    Size::of(std::io::stdout()).map(|size| size.columns)
}

/// Keeps the table up to date on a terminal.
async fn watch(args: &JobsArgs, path: Option<&str>, parts: &[Part], printer: &Printer) -> Result<u8, Failure> {
    let [Part { settings, .. }] = parts else { return Err(one_realm(parts)) };
    if !std::io::stdout().is_terminal() {
        return Err(Failure::new(Code::Usage, "--watch needs a terminal, and standard output is none")
            .hint("leave out --watch, or use --json in a loop of your own"));
    }
    let mut signals = Signals::default();
    signals.add(&[Signal::INT, Signal::TERM, Signal::HUP])?;
    let keeper = connect_to_records(settings, printer).await?;
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
    let admin = keeper.admin();
    let mut follow = JobsAdmin::new(keeper).follow(path.unwrap_or("/"));
    let mut seen: Option<Seen> = None;
    let mut lost: Option<Error> = None;
    loop {
        let read = async {
            if lost.is_some() {
                sleep(RETRY).await;
            }
            let mut jobs = follow.next().await?;
            jobs.retain(|job| path.is_none_or(|path| job.path == path));
            Ok::<_, Error>(Seen { now_ms: admin.server_now_ms().await?, at: Instant::now(), jobs })
        };
        let shown = async {
            let Some(seen) = &seen else { return pending().await };
            loop {
                let now_ms = seen.now_ms.saturating_add_unsigned(seen.at.elapsed().as_millis() as u64);
                let views: Vec<_> = seen.jobs.iter().map(|job| JobView::of(job, now_ms, args.late)).collect();
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
                if let Err(failure) = output::data(&frame(&format!("{jobs}{last}"))) {
                    return failure;
                }
                let passed = async {
                    match views.iter().filter_map(JobView::changes_in).min() {
                        Some(time) => sleep(time).await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    () = passed => {}
                    _ = resized.recv() => {}
                }
            }
        };
        let read = tokio::select! {
            read = read => read,
            failure = shown => return failure,
        };
        match read {
            Ok(read) => (seen, lost) = (Some(read), None),
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

/// Replaces a file in one step, so that no reader sees a part of it.
fn write_whole(file: &Path, text: &str) -> Result<(), Failure> {
    if file == Path::new("-") {
        return output::data(text);
    }
    let failed = |error| Failure::system(&format!("cannot write {}", file.display()), error);
    let name = file
        .file_name()
        .ok_or_else(|| Failure::new(Code::Usage, format!("{} is not the name of a file", file.display())))?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    let beside = file.with_file_name(beside);
    let written = std::fs::File::create(&beside)
        .and_then(|mut new| new.write_all(text.as_bytes()).and_then(|()| new.sync_all()))
        .and_then(|()| std::fs::rename(&beside, file));
    written.map_err(|error| {
        _ = std::fs::remove_file(&beside);
        failed(error)
    })
}

async fn resolve(args: ResolveArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    let settings = Settings::read(args.connect, printer)?.at([path.as_str()])?;
    let how = if args.again { Resolve::RunAgain } else { Resolve::Accept };
    let deciding = decide(&settings, printer, &path, async |admin: &JobsAdmin| admin.resolve(&path, how).await);
    let (run, job) = deciding.await?;
    let next = if args.again { who_runs(&job) } else { "it counts as done" };
    decided(&settings, &path, &run, next, printer)
}

async fn rerun(args: RerunArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    let settings = Settings::read(args.connect, printer)?.at([path.as_str()])?;
    let deciding =
        decide(&settings, printer, &path, async |admin: &JobsAdmin| admin.rerun(&path, args.slot.as_deref()).await);
    let (run, job) = deciding.await?;
    decided(&settings, &path, &run, who_runs(&job), printer)
}

/// Makes a decision about a run of a job; returns the run, and the job before.
async fn decide(
    settings: &Settings,
    printer: &Printer,
    path: &str,
    decision: impl AsyncFnOnce(&JobsAdmin) -> Result<RunRecord, JobError>,
) -> Result<(RunRecord, JobStatus), Failure> {
    let asked = async |keeper: Lockkeeper| {
        let admin = JobsAdmin::new(&keeper);
        let Some(job) = admin.job(path).await? else { return Ok(None) };
        Ok::<_, JobError>(Some((decision(&admin).await, job)))
    };
    let asked = inquire_records(settings, printer, asked).await?;
    let (run, job) = asked.ok_or_else(|| not_recorded(path).scoped(&settings.place))?;
    let error = match run {
        Ok(run) => return Ok((run, job)),
        Err(error) => error,
    };
    let runs =
        matches!(error, JobError::NoRerun { why: NoRerun::Running { .. }, .. } | JobError::NothingToDecide { .. });
    let failure = match job.last().filter(|_| runs && job.process_gone) {
        Some(run) => not_expired(path, run),
        None => error.into(),
    };
    Err(failure.scoped(&settings.place))
}

/// Returns the failure for a run whose process has ended on this machine. The servers learn that when its session expires; until
/// then, the run counts as one that goes on.
fn not_expired(path: &str, run: &RunRecord) -> Failure {
    let message = format!(
        "{path}: nothing was changed: the process of slot {} on {} has ended, but its session has not expired yet",
        run.slot.name, run.by
    );
    Failure::new(Code::NoSuchLock, message)
        .hint("wait until it has expired")
        .advise("or remove that holder", Suggested::new(["break", path, "--reason", "WHY"]))
}

/// Returns which machine runs a slot of the job again.
fn who_runs(job: &JobStatus) -> &'static str {
    match job.schedule {
        Some(Schedule::Text { .. }) => "the next machine that asks for it runs it again",
        _ => "the next machine that asks runs it again",
    }
}

/// A decision about a run, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct DecidedView<'a> {
    path: &'a str,
    run: &'a RunRecord,
}

fn decided(settings: &Settings, path: &str, run: &RunRecord, next: &str, printer: &Printer) -> Result<u8, Failure> {
    if printer.is_json() {
        output::answer(&settings.place, &DecidedView { path, run })?;
    } else {
        printer.note(&format!("{path}, slot {}: {next}", run.slot.name));
    }
    Ok(0)
}

/// A job whose records were deleted, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct ForgottenView<'a> {
    path: &'a str,
}

async fn forget(args: ForgetArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    let settings = Settings::read(args.connect, printer)?.at([path.as_str()])?;
    let at = path.clone();
    let forgetting = async move |keeper: Lockkeeper| {
        let admin = JobsAdmin::new(&keeper);
        let job = admin.job(&at).await?;
        let running = job.filter(|job| job.state == JobState::Running);
        match running.as_ref().and_then(|job| Some((job.last()?, job.process_gone))) {
            Some((run, gone)) => Ok(Err((run.clone(), gone))),
            None => admin.forget(&at).await.map(Ok),
        }
    };
    match inquire_records(&settings, printer, forgetting).await? {
        Ok(true) if printer.is_json() => output::answer(&settings.place, &ForgottenView { path: &path })?,
        Ok(true) => printer.note(&format!("the records of {path} are deleted")),
        Ok(false) => {
            return Err(Failure::new(Code::NoSuchLock, format!("{path} has no records")).scoped(&settings.place));
        }
        Err((run, true)) => return Err(not_expired(&path, &run).scoped(&settings.place)),
        Err((run, false)) => {
            let message = format!("the records of {path} stay: slot {} is running on {}", run.slot.name, run.by);
            return Err(Failure::new(Code::NoSuchLock, message)
                .hint("wait for its end, which nothing would record otherwise")
                .advise("ask it to end", Suggested::new(["revoke", path.as_str()]))
                .scoped(&settings.place));
        }
    }
    Ok(0)
}

fn import(args: ImportArgs, printer: Printer) -> Result<u8, Failure> {
    let read = if args.file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(&args.file)
    };
    let file = args.file.display();
    let bytes = read.map_err(|error| Failure::new(Code::Usage, format!("cannot read the crontab {file}: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::new(Code::Usage, format!("the crontab {file} is not UTF-8")).hint("convert it with iconv")
    })?;
    let of_system = args.file == Path::new("/etc/crontab") || args.file.parent() == Some(Path::new("/etc/cron.d"));
    let format = if args.system || of_system { Format::System } else { Format::User };
    let zone = TimeZone::system();
    let program = program(&text);
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_user = |word: &str| word == "root" || users.lines().any(|user| user.split(':').next() == Some(word));
    let made = crontab::rewrite(&text, format, zone.iana_name(), is_user, |name, options| {
        let words = ["run", name].into_iter().chain(options.split(' '));
        let command = printer.whole_command(&Suggested::new(words));
        format!("{program}{}", command.strip_prefix("lockkeeper").unwrap_or(&command))
    });
    output::data(&made.text)?;
    for (number, note) in &made.notes {
        printer.note(&format!("line {number}: {note}"));
    }
    if args.connect.servers.is_none() && made.jobs > 0 && crate::settings::variable("LOCKKEEPER_SERVERS").is_none() {
        printer.note("without --servers, the jobs run once per user and machine, not once on all machines");
    }
    Ok(if made.left > 0 { Code::NoSuchLock as u8 } else { 0 })
}

/// Returns the word that starts lockkeeper from this crontab: cron does not use the PATH of a shell.
fn program(crontab: &str) -> String {
    let path = crontab.lines().rev().find_map(|line| line.trim().strip_prefix("PATH"));
    let path = path.and_then(|rest| rest.trim_start().strip_prefix('=')).map(str::trim).unwrap_or(PATH_OF_CRON);
    let found = std::env::split_paths(path.trim_matches(['"', '\''])).any(|dir| dir.join("lockkeeper").is_file());
    match std::env::current_exe() {
        Ok(this) if !found => crate::advice::quoted(this.as_os_str()),
        _ => "lockkeeper".to_owned(),
    }
}
