//! `lockkeeper doctor`: one screen of what is wrong, with the commands that help.

mod findings;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use jiff::Timestamp;
use lockkeeper::admin::{Admin, LOCKS, LockInfo};
use lockkeeper::embedded::ServerDir;
use lockkeeper::error::ErrorKind;
use lockkeeper::{Builder, Error, Lockkeeper};
use lockkeeper_config::settings::Origin;
use lockkeeper_gc::leftovers;
use lockkeeper_helix::HelixAdmin;
use lockkeeper_jobs::{JobsAdmin, known_server_now_ms};
use lockkeeper_letters::fold;
use lockkeeper_observe::deadlock::confirmed;
use lockkeeper_observe::servers::{self, ServerMode, ServerReport, Vitals};
use lockkeeper_session::text::spell;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use self::findings::{Apart, Facts, Finding, Section, Severity, UNUSED};
use crate::advice::Suggested;
use crate::args::common::Common;
use crate::args::values::Completes;
use crate::colour::Severity as Colour;
use crate::evidence::{habits, is_used};
use crate::exit::{Code, Failure};
use crate::inquiry::{connect_running, connect_to_ask};
use crate::jobsview::JobView;
use crate::output::{self, Printer, ScopeView};
use crate::place::{Place, Source, realm};
use crate::screen::{Size, wrapped};
use crate::servertime::ServerTime;
use crate::settings::{Part, Settings, list_root, state_dir};
use crate::statuses::{Status, Statuses, help};
use crate::text::{counted, plain};
use crate::verb::{Context, Verb};
use crate::verbs::admin::gc::{Group, time_of};
use crate::verbs::jobs;
use crate::{control, letters, local, registers};

/// The exit statuses of `lockkeeper doctor`.
const STATUSES: &[Status] = &[
    (Code::Done, "there is no finding", ""),
    (Code::NoSuchLock, "there are notices, and no serious finding", ""),
    (Code::Declined, "there is a serious finding", "also if no server can be reached, or a realm"),
];

/// `lockkeeper doctor`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
Each finding begins with !! if it is serious, or with ! if it is a notice, and ends with the command that handles it. The last lines \
say what the command could not see.", "\
Examples:
  lockkeeper doctor
  lockkeeper doctor team --json"))]
pub(crate) struct DoctorArgs {
    /// Where to look for locks: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for DoctorArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        doctor(self, context.printer).await
    }
}

/// How long all servers together have to answer.
pub(crate) const ASKING: Duration = Duration::from_secs(3);

/// A server's slowest request is shown from this many milliseconds on.
const SLOW_MS: f64 = 1e3;

/// The columns of a section's name, and of the mark of a finding.
const NAME: usize = 8;
const INDENT: usize = 11;

/// Looks for trouble; returns the exit status.
async fn doctor(args: DoctorArgs, printer: &Printer) -> Result<u8, Failure> {
    let settings = Settings::read(args.common.connect, printer)?;
    let late = settings.all.jobs.late.value;
    let letters = waiting_letters(&settings).await;
    // Without a prefix, all jobs and all realms, wherever they are, and the locks below /locks.
    let parts = match &args.prefix {
        Some(prefix) => settings.parts(&list_root(Some(prefix))?).await?,
        None => settings.parts("/").await?,
    };
    let locks = |part: &Part| match &args.prefix {
        None if part.root == "/" => LOCKS.to_owned(),
        _ => part.root.clone(),
    };
    let mut seen = Vec::new();
    for (part, facts) in parts.iter().zip(join_all(parts.iter().map(|part| examine(part, locks(part)))).await) {
        seen.push((part, facts?));
    }
    // They are this user's, whatever the realm.
    if let Some((_, facts)) = seen.first_mut() {
        match letters {
            Ok(letters) => facts.letters = Some(letters),
            Err(unseen) => facts.unseen.push(unseen),
        }
    }
    let found: Vec<_> = seen.iter().map(|(part, facts)| (*part, facts, findings::all(facts, late))).collect();
    let worst = found.iter().flat_map(|(.., found)| found).map(|finding| finding.severity).max();
    let status = match worst {
        None => Code::Done,
        Some(Severity::Notice) => Code::NoSuchLock,
        Some(Severity::Serious) => Code::Declined,
    };
    let source = match &parts[..] {
        [part] => Source::One(part.settings.place.clone()),
        several => Source::Realms(several.iter().filter_map(|part| part.realm.clone()).collect()),
    };
    if printer.is_json() {
        let places = found.iter().map(|(part, facts, found)| PlaceView::of(part, facts, found, printer));
        output::answer(&source, &DoctorView { worst, places: places.collect() })?;
    } else {
        printer.scope(&source);
        let columns = Size::of(std::io::stdout()).map(|size| size.columns);
        let mut text = String::new();
        for (part, facts, found) in &found {
            if let Some((prefix, servers)) = part.realm.as_ref().filter(|_| parts.len() > 1) {
                text.push_str(&wrapped(
                    &format!("{}\n", plain(&realm(prefix, servers))),
                    columns.unwrap_or(usize::MAX),
                    4,
                ));
            }
            text.push_str(&screen(part, facts, found, (columns, printer)));
        }
        output::styled(&text)?;
    }
    Ok(status as u8)
}

/// Sees what can be seen of a place.
///
/// # Errors
/// The settings are wrong. A place that cannot be reached is no error.
async fn examine(part: &Part, root: String) -> Result<Facts, Failure> {
    let settings = &part.settings;
    let mut facts = Facts { root, ..Facts::default() };
    let mut started = Instant::now();
    let connected = match &settings.place {
        Place::Ensemble(servers) => {
            facts.servers = servers::ask(&settings.builder(), servers, ASKING).await?;
            if !facts.servers.iter().any(|report| report.state.may_serve()) {
                facts.no_session =
                    Some(("no server is known to serve clients, so nothing else was asked".to_owned(), None));
                return Ok(facts);
            }
            started = Instant::now();
            connect_running(settings, &settings.builder()).await
        }
        Place::Machine(home) => match control::find(home) {
            Err(failure) => Err(failure),
            // It would have nothing to say.
            Ok(None) if !home.is_shared() && is_absent(&home.dir().join("data")) => return Ok(facts),
            Ok(_) => connect_to_ask(settings).await,
        },
    };
    let waited = started.elapsed();
    let keeper = match connected {
        Ok(keeper) => {
            facts.times.session = Some(waited);
            keeper
        }
        // The chroot of one realm hides no other realm.
        Err(failure) if part.realm.is_none() && matches!(failure.code, Code::Usage | Code::Mismatch) => {
            return Err(failure);
        }
        Err(failure) => {
            let hint = failure.hint.map_or_else(String::new, |hint| format!("; {hint}"));
            // A refusal says nothing about how long the servers take.
            facts.times.session = (failure.code == Code::Unreachable).then_some(waited);
            // Its own name is no advice.
            let commands = failure.advice.into_iter().map(|(_, command)| command);
            let command = commands.into_iter().find(|command| !command.is(&["doctor"]));
            facts.no_session = Some((format!("{}{hint}", failure.message), command));
            return Ok(facts);
        }
    };
    if let Place::Machine(home) = &settings.place
        && let Ok(Some(endpoint)) = home.find()
    {
        facts.servers = servers::ask(&Builder::default(), &endpoint.connect_string(), ASKING).await?;
    }
    facts.session_timeout = keeper.session_timeout();
    look(&keeper, part, &mut facts).await;
    if let Place::Ensemble(servers) = &settings.place {
        let holders = facts.locks.iter().flatten().flat_map(|lock| &lock.holders).filter(|it| !it.session.is_none());
        let sessions: Vec<_> = holders.map(|holder| holder.session).collect();
        if !sessions.is_empty() {
            let asked = servers::connections(&settings.builder(), servers, &sessions, None, ASKING).await?;
            if asked.is_complete() {
                facts.unconnected = sessions.into_iter().filter(|session| asked.of(*session).is_none()).collect();
            }
            facts.without_cons = asked.refused;
        }
    }
    keeper.close().await;
    let names: Vec<_> =
        facts.locks.iter().flatten().filter(|lock| is_used(lock)).map(|lock| lock.path.clone()).collect();
    if !names.is_empty() {
        match also(settings, names).await {
            Ok(also) => facts.also = also,
            Err(failure) => facts.unseen.push(format!("this user's own server: {}", failure.message)),
        }
    }
    Ok(facts)
}

/// Whether nothing is there. A directory that this user may not read, or a file in place of one of those above, is something else.
fn is_absent(dir: &Path) -> bool {
    std::fs::metadata(dir).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Reads the locks, the leftovers and the jobs in a session.
async fn look(keeper: &Lockkeeper, part: &Part, facts: &mut Facts) {
    let (admin, root) = (keeper.admin(), facts.root.clone());
    match &part.settings.place {
        // Its server has the same clock.
        Place::Machine(_) => facts.now = Some(SystemTime::now()),
        Place::Ensemble(_) => time(&admin, facts).await,
    }
    let locks = admin.listing(&root).await.map(|mut listing| {
        listing.locks.retain(|lock| part.has(&lock.path));
        listing.unreadable.retain(|node| part.has(&node.path));
        listing
    });
    match locks {
        Ok(mut listing) => {
            let unreadable = listing.unreadable.iter().map(|node| format!("{}: {}", node.path, node.reason));
            facts.unseen.extend(unreadable);
            if listing.locks.iter().any(|lock| lock.lease.is_some()) {
                facts.unseen.push("whether the owners of leases are alive: a lease has no session".to_owned());
            }
            match confirmed(&admin, &root, &listing.locks).await {
                Ok(deadlocks) => facts.deadlocks = deadlocks,
                Err(error) => unseen(facts, "deadlocks", error),
            }
            let now = facts.now.or_else(|| ServerTime::of(&listing.locks).now);
            match habits(keeper, &mut listing.locks, now).await {
                Ok(habits) => facts.habits = habits,
                Err(error) => unseen(facts, "how long holds usually take, and which locks flap", error),
            }
            facts.locks = Some(listing.locks);
        }
        // Without the locks, nothing else is worth a try.
        Err(error) => {
            facts.no_session = Some((format!("the locks cannot be read: {error}"), None));
            return;
        }
    }
    match leftovers(keeper, &root, &registers::paths(), time_of(&part.settings.place)).await {
        Ok(mut left) => {
            left.nodes.retain(|node| part.has(&node.path));
            facts.left = Some(left);
        }
        Err(error) => unseen(facts, "leftovers", error),
    }
    match JobsAdmin::new(keeper).jobs(&part.root).await {
        Ok(mut jobs) => {
            jobs.retain(|job| part.has(&job.path));
            facts.asked = jobs::requests(keeper, &jobs).await;
            let now = Timestamp::try_from(facts.now.unwrap_or_else(SystemTime::now));
            facts.jobs = Some((jobs, now.map_or(0, Timestamp::as_millisecond)));
        }
        Err(error) => unseen(facts, "jobs", error),
    }
    match HelixAdmin::new(keeper).requests(&part.root).await {
        Ok(mut requests) => {
            requests.retain(|request| part.has(&request.facts.path));
            facts.requests = requests;
        }
        Err(error) => unseen(facts, "decisions about leased locks", error),
    }
}

/// Compares the servers' clock with this machine's, by a write, and notes how long that takes.
async fn time(admin: &Admin, facts: &mut Facts) {
    let (sent, asked) = (SystemTime::now(), Instant::now());
    let answer = known_server_now_ms(admin.keeper()).await;
    // The leader orders the write even if it finds no node.
    facts.times.write = answer.is_ok().then(|| asked.elapsed());
    match answer {
        Ok(Some(ms)) => {
            let now = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0));
            (facts.clock, facts.now) = (Some(Apart::of(sent, now, SystemTime::now())), Some(now));
        }
        Ok(None) => facts.unseen.push("the servers' clock: no job ever ran, and doctor creates no node".to_owned()),
        Err(error) => facts.unseen.push(format!("the servers' clock, so this machine's counts for jobs: {error}")),
    }
}

/// Notes what could not be read.
fn unseen(facts: &mut Facts, what: &str, error: impl Into<Error>) {
    let error = error.into();
    let why = if error.kind() == ErrorKind::Refused { "the server refuses the read: " } else { "" };
    facts.unseen.push(format!("{what}: {why}{error}"));
}

/// Returns the names of these locks that are also in use on this user's own server, if that runs and is another place, and the command
/// that lists its locks.
async fn also(settings: &Settings, names: Vec<String>) -> Result<Option<(Vec<String>, Suggested)>, Failure> {
    let home = match &settings.place {
        Place::Machine(home) if !home.is_shared() => return Ok(None),
        // A user without a directory has no server.
        _ => match state_dir(&settings.all) {
            Ok(dir) => ServerDir::new(dir),
            Err(_) => return Ok(None),
        },
    };
    let Some(endpoint) = crate::control::find(&home)? else { return Ok(None) };
    if matches!(&settings.place, Place::Ensemble(servers) if *servers == endpoint.connect_string()) {
        return Ok(None);
    }
    let keeper = local::connect_running(&home, &settings.builder()).await?;
    let locks = keeper.admin().list("/").await;
    keeper.close().await;
    let is_same = |lock: &LockInfo| is_used(lock) && names.contains(&lock.path);
    let same = locks?.into_iter().filter(is_same).map(|lock| lock.path).collect();
    let list = Suggested::new(["list", "--state-dir"]).with([home.dir().as_os_str()]).elsewhere();
    Ok(Some((same, list)))
}

/// Returns the number of dead letters that wait, and the command that lists them.
///
/// # Errors
/// Why it is not known.
async fn waiting_letters(settings: &Settings) -> Result<(usize, Suggested), String> {
    let place = settings.all.dead_letter.value.clone().unwrap_or_else(|| "file".to_owned());
    // Its broker may not answer.
    if place.starts_with("kafka:") {
        return Err(format!("dead letters in {place}"));
    }
    let sink = letters::open(&place, settings).map_err(|failure| format!("dead letters: {}", failure.message))?;
    let read = sink.records().await.map_err(|error| format!("dead letters: {error}"))?;
    let waiting = fold(read.records).iter().filter(|filed| !filed.fate.is_settled()).count();
    Ok((waiting, Suggested::new(["dlq", "list"]).with(letters::options(None))))
}

/// Returns where the place of the locks was set.
fn origin(part: &Part) -> &Origin {
    let all = &part.settings.all;
    match (&part.realm, &part.settings.place) {
        (Some((prefix, _)), _) => {
            let realm = all.realms.iter().find(|realm| realm.value.prefix == *prefix);
            realm.map_or(&all.servers.origin, |realm| &realm.origin)
        }
        (None, Place::Ensemble(_)) => &all.servers.origin,
        (None, Place::Machine(home)) if home.is_shared() => &all.machine.origin,
        (None, Place::Machine(_)) => &all.state_dir.origin,
    }
}

/// `zk1:2181  leader  3.8.0  3 ms, 812 connections, at most 60 from an address, slowest request 12 s`
fn server(report: &ServerReport, place: &Place) -> Option<String> {
    let Vitals { mode, version, latency, round_trip, connections, .. } = report.state.vitals()?;
    let mode = match mode {
        Some(ServerMode::Leader) => "leader",
        Some(ServerMode::Follower) => "follower",
        Some(ServerMode::Observer) => "observer",
        Some(ServerMode::Standalone) => "alone",
        Some(ServerMode::ReadOnly) => "read-only",
        _ => "serves",
    };
    let name = match place {
        Place::Ensemble(_) => plain(&report.name),
        // The scope names the directory of its socket.
        Place::Machine(_) => plain(&place.to_string()),
    };
    let mut text = format!("{name}  {mode}  {version}  {} ms", round(round_trip.as_secs_f64() * 1e3));
    // Writing to a string never fails.
    if let Some(connections) = connections {
        _ = write!(text, ", {}", counted(*connections, "connection"));
    }
    if let Some(most) =
        report.limits.as_ref().and_then(|limits| limits.connections_per_address).filter(|most| *most > 0)
    {
        _ = write!(text, ", at most {most} from an address");
    }
    if let Some(slowest) = latency.map(|latency| latency.max).filter(|max| *max >= SLOW_MS) {
        _ = write!(text, ", slowest request {}", spell(Duration::from_secs_f64(slowest / 1e3)));
    }
    Some(text)
}

/// `0.3`, `16`
fn round(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.1}").trim_end_matches(".0").to_owned() } else { format!("{ms:.0}") }
}

/// Returns a line about a server, also if it does not serve.
#[cfg(feature = "top")]
pub(crate) fn about(report: &ServerReport, place: &Place) -> String {
    let serves = server(report, place);
    serves.unwrap_or_else(|| match findings::problem(&report.state) {
        Some(problem) => format!("{}  {problem}", plain(&report.name)),
        None => format!("{}  does not say how it is", plain(&report.name)),
    })
}

/// What is seen of a section, without the findings.
fn lines(section: Section, part: &Part, facts: &Facts) -> Vec<String> {
    let none = |what: &str| vec![format!("not known: {what}")];
    match section {
        Section::Servers if facts.servers.is_empty() && facts.no_session.is_none() => {
            vec![format!("{} does not run, and has no data: no lock was ever used", part.settings.place)]
        }
        Section::Servers => facts.servers.iter().filter_map(|report| server(report, &part.settings.place)).collect(),
        Section::Clock => match (facts.clock, &part.settings.place) {
            // The finding says it.
            (Some(apart), _) if apart.is_far() => Vec::new(),
            (Some(apart), _) => vec![apart.text()],
            (None, Place::Machine(_)) => vec!["this machine's own".to_owned()],
            (None, Place::Ensemble(_)) => none("the servers were not asked"),
        },
        Section::Scope => {
            let place = &part.settings.place;
            let from = match origin(part) {
                Origin::Default => "the default".to_owned(),
                origin => origin.to_string(),
            };
            let at = match place {
                Place::Ensemble(servers) => servers.clone(),
                Place::Machine(home) => format!("{place}, {}", home.dir().display()),
            };
            vec![plain(&format!("{at} ({from})"))]
        }
        Section::Locks => match &facts.locks {
            Some(locks) => {
                let used = locks.iter().filter(|lock| is_used(lock)).count();
                let waiters = locks.iter().map(|lock| lock.waiters.len()).sum::<usize>();
                let used = if used == 0 { "no lock".to_owned() } else { counted(used as u64, "lock") };
                let waiting = if waiters == 0 { String::new() } else { format!(", {waiters} waiting") };
                vec![format!("{used} in use below {}{waiting}", plain(&facts.root))]
            }
            None if facts.servers.is_empty() && facts.no_session.is_none() => Vec::new(),
            None => none("there is no session"),
        },
        Section::Left => left(facts).into_iter().collect(),
        Section::Jobs => match &facts.jobs {
            Some((jobs, _)) if jobs.is_empty() => Vec::new(),
            Some((jobs, now_ms)) => {
                let views = jobs.iter().map(|job| JobView::of(job, *now_ms, None));
                // A pause without an end is a finding.
                let paused = views.filter(|view| view.paused && !view.is_paused_without_end()).map(|view| view.line());
                std::iter::once(counted(jobs.len() as u64, "job")).chain(paused).collect()
            }
            None => Vec::new(),
        },
    }
}

/// `1500 empty nodes, 2 tombstones, 1 note`
fn left(facts: &Facts) -> Option<String> {
    let left = facts.left.as_ref()?;
    let of = |groups: &[Group]| {
        left.nodes.iter().filter(|node| groups.contains(&Group::of(node, left.now_ms, UNUSED))).count()
    };
    let counts = [
        (of(&[Group::Empty]), "empty node unused for a day", "empty nodes unused for a day"),
        (of(&[Group::Recent]), "empty node, perhaps used within a day", "empty nodes, perhaps used within a day"),
        (of(&[Group::Garbage]), "node of a contender without a session", "nodes of contenders without a session"),
        (of(&[Group::Tombstones, Group::Delaying]), "tombstone", "tombstones"),
        (of(&[Group::Note]), "node with data of others", "nodes with data of others"),
    ];
    let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
    let texts: Vec<_> =
        counts.map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many })).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// The sections of a place, with the findings.
fn screen(part: &Part, facts: &Facts, found: &[Finding], (columns, printer): (Option<usize>, &Printer)) -> String {
    let printer = printer.at(&part.settings.place);
    let mut text = String::new();
    let sections = [
        (Section::Servers, "servers"),
        (Section::Clock, "clock"),
        (Section::Scope, "scope"),
        (Section::Locks, "locks"),
        (Section::Left, "left"),
        (Section::Jobs, "jobs"),
    ];
    for (section, name) in sections {
        let mut name = name;
        let mut line = |severity: Option<Severity>, line: &str| {
            let (mark, colour) = match severity {
                Some(Severity::Serious) => ("!!", Colour::Serious),
                Some(Severity::Notice) => ("!", Colour::Notice),
                None => ("", Colour::None),
            };
            let (gap, mark) = (" ".repeat(INDENT - NAME - mark.len()), colour.paint(mark));
            let line = format!("{:<NAME$}{mark}{gap}{line}\n", std::mem::take(&mut name));
            columns.map_or_else(|| line.clone(), |columns| wrapped(&line, columns, INDENT))
        };
        text.extend(lines(section, part, facts).iter().map(|seen| line(None, seen)));
        for Finding { severity, text: what, command, .. } in found.iter().filter(|finding| finding.section == section) {
            let mark = Some(*severity);
            let command = command.as_ref().map(|command| printer.command(command, std::io::stdout()));
            let is_wide =
                |command: &String| columns.is_some_and(|columns| INDENT + what.width() + 2 + command.width() > columns);
            text.push_str(&match command {
                None => line(mark, what),
                // A command is not broken, so that it can be copied.
                Some(command) if is_wide(&command) => format!("{}{:INDENT$}{command}\n", line(mark, what), ""),
                Some(command) => line(mark, &format!("{what}  {command}")),
            });
        }
    }
    for (at, unseen) in unseen_of(facts).into_iter().enumerate() {
        let line = format!("{:<NAME$}{:<3}{}\n", if at == 0 { "unseen" } else { "" }, "", plain(&unseen));
        text.push_str(&columns.map_or_else(|| line.clone(), |columns| wrapped(&line, columns, INDENT)));
    }
    text
}

/// Returns everything that could not be seen.
fn unseen_of(facts: &Facts) -> Vec<String> {
    let names = |reports: Vec<&ServerReport>| {
        reports.into_iter().map(|report| report.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut unseen = facts.unseen.clone();
    let silent: Vec<_> =
        facts.servers.iter().filter(|report| report.state == servers::ServerState::NotAllowed).collect();
    if !silent.is_empty() {
        unseen.push(format!("the state of {}: srvr is not in the whitelist", names(silent)));
    }
    let unlimited: Vec<_> =
        facts.servers.iter().filter(|report| report.state.vitals().is_some() && report.limits.is_none()).collect();
    if !unlimited.is_empty() {
        unseen.push(format!("the limits of {}: conf is not in the whitelist", names(unlimited)));
    }
    if !facts.without_cons.is_empty() {
        let names = facts.without_cons.join(", ");
        unseen.push(format!("from where holders are connected to {names}: cons is not in the whitelist"));
    }
    let has_followers = facts
        .servers
        .iter()
        .filter_map(|report| report.state.vitals()?.mode)
        .any(|mode| matches!(mode, ServerMode::Follower | ServerMode::Observer));
    if has_followers {
        unseen.push("the clocks of followers: only the leader dates nodes".to_owned());
    }
    unseen
}

/// What `doctor` has found, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct DoctorView<'a> {
    worst: Option<Severity>,
    places: Vec<PlaceView<'a>>,
}

#[derive(Serialize)]
struct PlaceView<'a> {
    place: ScopeView,
    realm: Option<&'a str>,
    origin: String,
    servers: &'a [ServerReport],
    clock_ms: Option<i64>,
    session_ms: Option<f64>,
    write_ms: Option<f64>,
    locks: Option<usize>,
    findings: Vec<FindingView<'a>>,
    unseen: Vec<String>,
}

#[derive(Serialize)]
struct FindingView<'a> {
    section: Section,
    severity: Severity,
    text: &'a str,
    command: Option<String>,
}

impl<'a> PlaceView<'a> {
    fn of(part: &'a Part, facts: &'a Facts, found: &'a [Finding], printer: &Printer) -> Self {
        let printer = printer.at(&part.settings.place);
        let findings = found.iter().map(|finding| FindingView {
            section: finding.section,
            severity: finding.severity,
            text: &finding.text,
            command: finding.command.as_ref().map(|command| printer.whole_command(command)),
        });
        PlaceView {
            place: (&part.settings.place).into(),
            realm: part.realm.as_ref().map(|(prefix, _)| prefix.as_str()),
            origin: origin(part).to_string(),
            servers: &facts.servers,
            clock_ms: facts.clock.map(Apart::ms),
            session_ms: facts.times.session.map(|time| time.as_secs_f64() * 1e3),
            write_ms: facts.times.write.map(|time| time.as_secs_f64() * 1e3),
            locks: facts.locks.as_ref().map(Vec::len),
            findings: findings.collect(),
            unseen: unseen_of(facts),
        }
    }
}
