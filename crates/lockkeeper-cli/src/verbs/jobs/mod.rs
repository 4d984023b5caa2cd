//! `lockkeeper jobs`: what ran, where, when, how long, and how it ended.

mod args;
mod crontab;
mod watch;

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};

use futures_util::stream::{self, StreamExt};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use lockkeeper::embedded::ServerDir;
use lockkeeper::error::{AdminError, misuse};
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_config::settings::Key;
use lockkeeper_history::History;
use lockkeeper_jobs::{
    Job, JobError, JobState, JobStatus, JobsAdmin, NoRerun, Pause, Resolve, RunRecord, Schedule, server_now_ms,
};
use serde::Serialize;

pub(crate) use self::args::JobsArgs;
use self::args::{ExpectArgs, ForgetArgs, ImportArgs, JobsVerb, PauseArgs, RerunArgs, ResolveArgs, ResumeArgs};
use self::crontab::Format;
use crate::advice::Suggested;
use crate::args::common::Common;
use crate::args::connect::ConnectArgs;
use crate::evidence::is_used;
use crate::exit::{Code, Failure};
use crate::inquiry::{connect_with, inquire_of};
use crate::jobsview::{self, Health, JobView, Requests, is_idle};
use crate::local;
use crate::output::{self, Printer};
use crate::realms::ask_each;
use crate::screen::Size;
use crate::servertime::ServerTime;
use crate::settings::{Settings, lock_path, path_to_lock};
use crate::text::{counted, when_ms};
use crate::typedtime::{self, Nearest};
use crate::verb::{Context, Verb};

impl Verb for JobsArgs {
    fn common(&self) -> Option<&Common> {
        self.common()
    }

    fn connect(&self) -> Option<&ConnectArgs> {
        match &self.verb {
            Some(JobsVerb::Import(args)) => Some(&args.connect),
            _ => self.common().map(|common| &common.connect),
        }
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        jobs(self, context.printer).await
    }
}

/// Maximum looks at locks in flight.
const LOOKS: usize = 64;

/// The PATH of a crontab that sets none.
const PATH_OF_CRON: &str = "/usr/bin:/bin";

/// Shows jobs, or obeys another verb; returns the exit status.
async fn jobs(mut args: JobsArgs, printer: &Printer) -> Result<u8, Failure> {
    match args.verb.take() {
        Some(JobsVerb::Import(args)) => import(args, *printer),
        Some(JobsVerb::Resolve(args)) => resolve(args, printer).await,
        Some(JobsVerb::Rerun(args)) => rerun(args, printer).await,
        Some(JobsVerb::Pause(args)) => pause(args, printer).await,
        Some(JobsVerb::Resume(args)) => resume(args, printer).await,
        Some(JobsVerb::Expect(args)) => expect(args, printer).await,
        Some(JobsVerb::Forget(args)) => forget(args, printer).await,
        None => show(args, printer).await,
    }
}

/// What one realm answered.
struct Seen {
    jobs: Vec<JobStatus>,
    now_ms: i64,
    asked: HashMap<String, Requests>,
    note: Option<String>,
    /// How many requests were refused, if one lock was asked for and it has no job.
    refused: u32,
}

#[derive(Serialize)]
struct JobsDocument<'a> {
    now_ms: i64,
    jobs: Vec<&'a JobView<'a>>,
}

async fn show(mut args: JobsArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = args.name.as_deref().map(lock_path).transpose()?.map(|path| path.to_string());
    let settings = Settings::read(args.common.connect.clone(), printer)?;
    args.late = args.late.or(settings.all.jobs.late.value);
    let parts = match &path {
        Some(path) => {
            let mut parts = settings.at([path.as_str()]).await?.parts(path).await?;
            // Realms below the path have other jobs.
            parts.retain(|part| part.root == *path);
            parts
        }
        None => settings.parts("/").await?,
    };
    if args.watch {
        return watch::watch(&args, path.as_deref(), &parts, printer).await;
    }
    let answers = ask_each(&parts, printer, async |part| {
        inquire_of(&part.settings, async |keeper| {
            let admin = JobsAdmin::new(&keeper);
            let mut jobs: Vec<_> = match &path {
                Some(path) => admin.job(path).await?.into_iter().collect(),
                None => admin.jobs(&part.root).await?,
            };
            jobs.retain(|job| part.has(&job.path));
            // Without a job there is nothing to compare with the time.
            let sent = SystemTime::now();
            let now_ms = if jobs.is_empty() { 0 } else { server_now_ms(&keeper).await? };
            let note = ServerTime::answered_now(now_ms, sent).note.filter(|_| !jobs.is_empty());
            let asked = requests(&keeper, &jobs).await;
            let refused = match &path {
                Some(path) if jobs.is_empty() => refusals(&keeper, path).await,
                _ => 0,
            };
            Ok::<_, Error>(Seen { jobs, now_ms, asked, note, refused })
        })
        .await
    })
    .await?;
    let source = answers.source();
    let now_ms = answers.from.iter().map(|(_, seen)| seen.now_ms).max().unwrap_or_default();
    let views = answers.from.iter().flat_map(|(_, Seen { jobs, now_ms, asked, .. })| {
        jobs.iter().map(|job| JobView::of(job, *now_ms, args.late).with_requests(asked.get(&job.path)))
    });
    let mut views: Vec<_> = views.collect();
    views.sort_by(|one, other| one.job.path.cmp(&other.job.path));
    if let (Some(path), []) = (&path, &views[..]) {
        let refused = answers.from.iter().map(|(_, seen)| seen.refused).sum();
        let failure = match refused {
            0 => not_recorded(path),
            _ => only_refused(path, refused),
        };
        return Err(failure.scoped(&parts[0].settings.place));
    }
    if let Some(file) = &args.prometheus {
        write_whole(file, &jobsview::prometheus(&views))?;
        return answers.end(0, printer);
    }
    let mut notes: Vec<_> = answers.from.iter().filter_map(|(_, seen)| seen.note.as_ref()).collect();
    notes.dedup();
    notes.iter().filter(|_| !printer.is_json()).for_each(|note| printer.note(note));
    let worst = views.iter().map(JobView::health).max().unwrap_or(Health::InOrder);
    let status = match worst {
        _ if !args.check => 0,
        Health::InOrder => 0,
        Health::Late => 1,
        Health::Failed => 2,
    };
    let shown = views.iter().filter(|job| !args.check || job.health() != Health::InOrder || job.paused);
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
        output::styled(&jobsview::table(&views, columns()))?;
    }
    answers.end(status, printer)
}

/// Returns what is known of the requests for each job that runs on no machine now. Nothing, where the history or the lock cannot be
/// read: it is an addition.
pub(crate) async fn requests(keeper: &Lockkeeper, jobs: &[JobStatus]) -> HashMap<String, Requests> {
    let paths: Vec<_> = jobs.iter().filter(|job| is_idle(job)).map(|job| job.path.clone()).collect();
    if paths.is_empty() {
        return HashMap::new();
    }
    let (history, admin) = (History::new(keeper), keeper.admin());
    let Ok(refusals) = history.refusals(&paths).await else { return HashMap::new() };
    let looks = paths.into_iter().map(|path| {
        let (admin, refused) = (&admin, refusals.iter().filter(|refusal| refusal.path == path));
        let refused: Vec<_> = refused.cloned().collect();
        async move {
            let is_in_use = match admin.show(&path).await {
                Ok(lock) => is_used(&lock),
                Err(AdminError::NoSuchLock { .. }) => false,
                Err(_) => return None,
            };
            Some((path, Requests { refused, is_in_use }))
        }
    });
    stream::iter(looks).buffered(LOOKS).filter_map(std::future::ready).collect().await
}

/// Returns how many requests for the lock were refused, as far as that can be read.
async fn refusals(keeper: &Lockkeeper, path: &str) -> u32 {
    let refused = History::new(keeper).refusals(&[path.to_owned()]).await.unwrap_or_default();
    refused.iter().map(|refusal| refusal.count).sum()
}

fn only_refused(path: &str, refused: u32) -> Failure {
    let (requests, were) = (counted(refused, "request"), if refused == 1 { "was" } else { "were" });
    let message = format!("no run of {path} as a job is recorded: {requests} for its lock {were} refused");
    Failure::new(Code::NoSuchLock, message)
        .advise("see who asked, and why each was refused", Suggested::new(["history", path]))
        .advise("see which jobs there are", Suggested::new(["jobs"]))
}

fn not_recorded(path: &str) -> Failure {
    Failure::new(Code::NoSuchLock, format!("no run of {path} as a job is recorded"))
        .advise("if it should run, say so", Suggested::new(["jobs", "expect", path, "--once-per", "day"]))
        .advise("see which jobs there are", Suggested::new(["jobs"]))
}

/// Returns the columns of standard output, if that is a terminal.
fn columns() -> Option<usize> {
    Size::of(std::io::stdout()).map(|size| size.columns)
}

/// Replaces a file in one step, so that no reader sees a part of it.
fn write_whole(file: &Path, text: &str) -> Result<(), Failure> {
    if file == Path::new("-") {
        return output::data(text);
    }
    output::replace(file, text.as_bytes())
}

async fn resolve(args: ResolveArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let how = if args.again { Resolve::RunAgain } else { Resolve::Accept };
    let deciding = decide(&settings, &path, async |admin: &JobsAdmin| admin.resolve(&path, how).await);
    let (run, job) = deciding.await?;
    let next = if args.again { who_runs(&job) } else { "it counts as done" };
    decided(&settings, &path, &run, next, printer)
}

async fn rerun(args: RerunArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let deciding = decide(&settings, &path, async |admin: &JobsAdmin| admin.rerun(&path, args.slot.as_deref()).await);
    let (run, job) = deciding.await?;
    decided(&settings, &path, &run, who_runs(&job), printer)
}

/// Makes a decision about a run of a job; returns the run, and the job before.
async fn decide(
    settings: &Settings,
    path: &str,
    decision: impl AsyncFnOnce(&JobsAdmin) -> Result<RunRecord, JobError>,
) -> Result<(RunRecord, JobStatus), Failure> {
    let asked = async |keeper: Lockkeeper| {
        let admin = JobsAdmin::new(&keeper);
        let Some(job) = admin.job(path).await? else { return Ok(None) };
        Ok::<_, JobError>(Some((decision(&admin).await, job)))
    };
    let asked = inquire_of(settings, asked).await?;
    let (run, job) = asked.ok_or_else(|| not_recorded(path).scoped(&settings.place))?;
    let error = match run {
        Ok(run) => return Ok((run, job)),
        Err(error) => error,
    };
    let runs =
        matches!(error, JobError::NoRerun { reason: NoRerun::Running { .. }, .. } | JobError::NothingToDecide { .. });
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

/// When a pause ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    After(Duration),
    At(Timestamp),
}

/// Reads the end of a pause.
fn until(text: &str, now: &Zoned) -> Result<Until, Failure> {
    let text = text.trim();
    let failure = |problem: &str| {
        Failure::new(Code::Usage, format!("{text:?} {problem}"))
            .hint("write a duration, as 2h, a time of day, as 06:00, or a date and a time, as '2026-11-24 06:00'")
    };
    match (humantime::parse_duration(text), typedtime::moment(text, now, Nearest::After)) {
        (Ok(Duration::ZERO), _) => Err(failure("is not in the future")),
        (Ok(duration), _) => Ok(Until::After(duration)),
        (_, Some(at)) if at <= now.timestamp() => Err(failure("is in the past")),
        (_, Some(at)) => Ok(Until::At(at)),
        (Err(_), None) => Err(failure("is no time")),
    }
}

/// A job that was paused or goes on, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct PausedView<'a> {
    path: &'a str,
    pause: &'a Pause,
}

async fn pause(args: PauseArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    let reason = misuse::check_reason(&path, &args.reason).map_err(Error::from)?;
    let until = args.until.as_deref().map(|text| until(text, &Zoned::now())).transpose()?;
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let pausing = async |keeper: Lockkeeper| {
        let admin = JobsAdmin::new(&keeper);
        let Some(job) = admin.job(&path).await? else { return Ok(None) };
        let until_ms = match until {
            Some(Until::After(time)) => {
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                Some(server_now_ms(&keeper).await?.saturating_add_unsigned(ms))
            }
            Some(Until::At(at)) => Some(at.as_millisecond()),
            None => None,
        };
        Ok::<_, Error>(Some((admin.pause(&path, &reason, until_ms).await?, job)))
    };
    let paused = inquire_of(&settings, pausing).await?;
    let (pause, job) = paused.ok_or_else(|| not_recorded(&path).scoped(&settings.place))?;
    if printer.is_json() {
        output::answer(&settings.place, &PausedView { path: &path, pause: &pause })?;
        return Ok(0);
    }
    let goes_on = match job.last().filter(|_| job.state == JobState::Running) {
        Some(run) => format!("; the run of slot {} on {} goes on", run.slot.name, run.by),
        None => String::new(),
    };
    let printer = printer.at(&settings.place);
    match pause.until_ms {
        Some(until) => printer.note(&format!("{path} is paused until {}{goes_on}", when_ms(until))),
        None => {
            printer.note(&format!("{path} is paused{goes_on}"));
            let resume = printer.command(&Suggested::new(["jobs", "resume", &path]), std::io::stderr());
            printer
                .note(&format!("the pause has no end, and no machine runs the job before somebody says so: {resume}"));
        }
    }
    Ok(0)
}

async fn resume(args: ResumeArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let resuming = async |keeper: Lockkeeper| match JobsAdmin::new(&keeper).resume(&path).await {
        Err(JobError::NoRecords { .. }) => Ok(None),
        resumed => resumed.map(Some),
    };
    let resumed = inquire_of(&settings, resuming).await?;
    let pause = resumed.ok_or_else(|| not_recorded(&path).scoped(&settings.place))?;
    if printer.is_json() {
        output::answer(&settings.place, &PausedView { path: &path, pause: &pause })?;
    } else {
        printer.note(&format!("{path} is not paused any more: the next machine that asks runs its slot"));
    }
    Ok(0)
}

/// A job that is expected to run, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct ExpectedView<'a> {
    path: &'a str,
    /// Whether it had no records before.
    created: bool,
}

async fn expect(args: ExpectArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = path_to_lock(&args.name)?.to_string();
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let zone = args.time_zone.unwrap_or_else(|| settings.all.jobs.time_zone.value.clone());
    let (on_failure, on_crash) = (settings.all.jobs.on_failure.value, settings.all.jobs.on_crash.value);
    let builder = settings.builder();
    let to_home = async |home: &ServerDir| local::connect(home, &builder, printer).await;
    let keeper = connect_with(&settings, &builder, to_home).await?;
    let expecting = async {
        let job = Job::new(&keeper, &path).on_failure(on_failure).on_crash(on_crash);
        let job = match (args.once_per, args.every) {
            (Some(per), _) => job.once_per(per).time_zone(zone),
            (None, every) => job.every(every.unwrap_or_default()),
        };
        job.expect().await
    };
    let created = expecting.await;
    keeper.close().await;
    let created = created.map_err(|error| Failure::from(error).scoped(&settings.place))?;
    if printer.is_json() {
        output::answer(&settings.place, &ExpectedView { path: &path, created })?;
    } else if created {
        printer.note(&format!(
            "{path} is expected to run; lockkeeper jobs calls it late after a whole slot without a run"
        ));
    } else {
        printer.note(&format!("{path} has records already, which say when it is due; nothing was changed"));
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
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
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
    match inquire_of(&settings, forgetting).await? {
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
    if made.jobs > 0 {
        printer.note(
            "each job runs on one of all machines, and its name is a guess: check the names, and keep the old line for \
             what each machine must do by itself",
        );
    }
    for (number, note) in &made.notes {
        printer.note(&format!("line {number}: {note}"));
    }
    if args.connect.get(Key::Servers).is_none()
        && made.jobs > 0
        && crate::settings::variable("LOCKKEEPER_SERVERS").is_none()
    {
        printer.note("without --servers, the jobs run once per user and machine, not once on all machines");
    }
    Ok(if made.left > 0 { Code::NoSuchLock.status() } else { 0 })
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
