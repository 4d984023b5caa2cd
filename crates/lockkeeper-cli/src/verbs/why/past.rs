//! `lockkeeper why --at`: explains a lock at a moment that is over, from its history.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use lockkeeper::Error;
use lockkeeper::admin::{ContenderInfo, ContenderJson, Grant, LockInfo};
use lockkeeper::error::AdminError;
use lockkeeper_history::{Entry, History, HoldEnd, LockUse, PastHold, Refusal};
use lockkeeper_jobs::{JobStatus, JobsAdmin, RunRecord};
use lockkeeper_session::text::{excerpt, spell};
use serde::Serialize;

use super::WhyArgs;
use crate::advice::{LockCommands, Suggested};
use crate::exit::{Code, Failure};
use crate::inquiry::inquire_of;
use crate::jobsview;
use crate::output::{self, Printer};
use crate::pastview::{self, EntryView, clock};
use crate::screen::{INDENT, wrapped_for_stdout};
use crate::settings::{Settings, lock_path};
use crate::text::plain;
use crate::typedtime::{self, Nearest};

/// What happened this long before or after the moment belongs to it.
const AROUND: Duration = Duration::from_secs(5 * 60);

/// A moment is this long: people write whole seconds.
const MOMENT: Duration = Duration::from_secs(1);

/// As many entries around the moment are printed, those that are nearest to it.
const SHOWN: usize = 10;

/// On so many days, and on half of the days that are known, a machine must have asked at this time to be expected.
const DAYS: usize = 3;

/// As many holds of a lock are kept.
const KEPT: usize = 16;

/// Explains a lock at a moment; returns the exit status.
pub(crate) async fn why_at(args: WhyArgs, at: &str, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?;
    let at = moment(at, &Zoned::now())?;
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let printer = &printer.at(&settings.place);
    let of = path.to_string();
    let (entries, lock, job) = inquire_of(&settings, async move |keeper| {
        let (history, admin, jobs) = (History::new(&keeper), keeper.admin(), JobsAdmin::new(&keeper));
        let (entries, lock, job) = tokio::join!(history.of(&of), admin.show(&of), jobs.job(&of));
        let lock = match lock {
            // The servers delete the node of a lock that nobody uses.
            Err(AdminError::NoSuchLock { .. }) => None,
            lock => Some(lock?),
        };
        // The records of a job are an addition, as in `show`.
        Ok::<_, Error>((entries?, lock, job.ok().flatten()))
    })
    .await?;
    let past = Past::at(&entries, lock.as_ref(), job.as_ref(), at);
    if printer.is_json() {
        output::answer(&settings.place, &past.view(path.as_str()))?;
    } else {
        printer.scope(&settings.place);
        let commands = LockCommands::new(&args.name, path.as_str(), used_as(&entries, lock.as_ref()), job.as_ref());
        let job = job.as_ref().map_or_else(String::new, |job| run_at(job, at));
        let text = wrapped_for_stdout(&(past.text(path.as_str()) + &job), INDENT);
        output::data(&(text + &past.advice(commands, printer)))?;
    }
    Ok(0)
}

/// In which way a lock is used: as its contenders of this moment do, and otherwise as all of its records say.
fn used_as(entries: &[Entry], lock: Option<&LockInfo>) -> Option<LockUse> {
    // The newest is the last one.
    let recorded = || LockUse::agreed(entries.iter().rev().filter_map(Entry::used_as));
    lock.and_then(LockUse::of).or_else(recorded)
}

/// Returns the moment that a person means: a time of day is the last one before now.
fn moment(text: &str, now: &Zoned) -> Result<SystemTime, Failure> {
    let text = text.trim();
    let at = typedtime::moment(text, now, Nearest::Before);
    let failure = |problem: &str| {
        Failure::new(Code::Usage, format!("{text:?} {problem}"))
            .hint("write a time of day, as 02:13, or a date and a time, as '2026-11-24 02:13'")
    };
    match at {
        Some(at) if at > now.timestamp() => Err(failure("is in the future")),
        Some(at) => Ok(at.into()),
        None => Err(failure("is no time")),
    }
}

/// What is known of a lock at a moment.
struct Past<'a> {
    at: SystemTime,
    /// The holds of that moment that are over.
    holders: Vec<&'a PastHold>,
    /// The holders of that moment that hold the lock still.
    still: Vec<&'a ContenderInfo>,
    /// What began, ended or was refused around the moment, the oldest first.
    around: Vec<&'a Entry>,
    /// Machines that usually ask at this time of day and did not, with the number of days and of all days.
    absent: Vec<(String, usize, usize)>,
    next: Option<&'a PastHold>,
    /// The holder of this moment that was granted the lock after that one.
    next_still: Option<&'a ContenderInfo>,
    /// The run of a job that went on at that moment, or began shortly before it and crashed.
    run: Option<&'a RunRecord>,
    /// The run of a job that began next.
    next_run: Option<&'a RunRecord>,
    /// The request around the moment that saw a holder, the nearest one.
    seen: Option<&'a Refusal>,
    /// Whether a request came after the moment and those around it.
    asked_later: bool,
    /// The last hold before the moment whose command succeeded.
    last_success: Option<&'a PastHold>,
    /// The moment is before the oldest record, and older ones are not kept.
    before_records: Option<SystemTime>,
}

#[derive(Serialize)]
struct PastView<'a> {
    path: &'a str,
    at_ms: i64,
    /// When the records begin, if the moment is before that.
    known_since_ms: Option<i64>,
    holders: Vec<EntryView<'a>>,
    still_held_by: Vec<ContenderJson<'a>>,
    around: Vec<EntryView<'a>>,
    absent: Vec<AbsentView<'a>>,
    next: Option<EntryView<'a>>,
    last_success: Option<EntryView<'a>>,
}

#[derive(Serialize)]
struct AbsentView<'a> {
    host: &'a str,
    days: usize,
    of_days: usize,
}

impl<'a> Past<'a> {
    fn at(entries: &'a [Entry], lock: Option<&'a LockInfo>, job: Option<&'a JobStatus>, at: SystemTime) -> Self {
        let holds = || entries.iter().filter_map(Entry::hold);
        let is_around = |time: SystemTime| distance(time, at) <= AROUND;
        let around = entries.iter().filter(|entry| match entry {
            Entry::Hold(hold) => hold.queued.is_some_and(is_around) || is_around(hold.granted),
            Entry::Refused(refusal) => {
                is_around(refusal.asked()) || is_around(refusal.last) || (refusal.first..=refusal.last).contains(&at)
            }
            other => is_around(other.at()),
        });
        let around: Vec<_> = around.collect();
        let last = at + AROUND;
        let holders = lock.iter().flat_map(|lock| &lock.holders);
        let oldest = holds().map(|hold| hold.granted).min();
        let refusals = around.iter().filter_map(|entry| match entry {
            Entry::Refused(refusal) if refusal.holder.is_some() => Some(refusal),
            _ => None,
        });
        let seen = refusals.min_by_key(|refusal| distance(refusal.last, at));
        let runs = || job.into_iter().flat_map(|job| &job.runs);
        let goes_on = |run: &&RunRecord| {
            let start = run.start_ms.unwrap_or(i64::MAX);
            // Nobody knows when a crash was.
            let end = run.end_ms.unwrap_or_else(|| start.saturating_add(millis(AROUND)));
            start < ms(at + MOMENT) && ms(at) < end
        };
        Past {
            at,
            holders: holds().filter(|hold| hold.granted < at + MOMENT && at < hold.ended).collect(),
            still: holders.filter(|holder| holder.grant().is_some_and(|grant| grant.earliest < at + MOMENT)).collect(),
            absent: absent(entries, &around, at),
            around,
            next_still: holders_after(lock, at),
            run: runs().rev().find(goes_on),
            next_run: runs().find(|run| run.start_ms.is_some_and(|start| start >= ms(at + MOMENT))),
            seen,
            next: holds().filter(|hold| hold.granted >= at + MOMENT).min_by_key(|hold| hold.granted),
            asked_later: entries.iter().any(|entry| match entry {
                Entry::Hold(hold) => hold.queued.unwrap_or(hold.granted) > last,
                other => other.at() > last,
            }),
            last_success: holds()
                .filter(|hold| hold.ended <= at && hold.status == Some(0) && !hold.is_loss())
                .max_by_key(|hold| hold.ended),
            before_records: oldest.filter(|oldest| *oldest > at && holds().count() >= KEPT),
        }
    }

    fn view(&self, path: &'a str) -> PastView<'_> {
        let hold = |hold: &&'a PastHold| EntryView::hold(hold);
        PastView {
            path,
            at_ms: ms(self.at),
            known_since_ms: self.before_records.map(ms),
            holders: self.holders.iter().map(hold).collect(),
            still_held_by: self.still.iter().map(|holder| holder.json(path)).collect(),
            around: self.around.iter().filter_map(|entry| EntryView::of(entry)).collect(),
            absent: self
                .absent
                .iter()
                .map(|(host, days, of_days)| AbsentView { host, days: *days, of_days: *of_days })
                .collect(),
            next: self.next.as_ref().map(hold),
            last_success: self.last_success.as_ref().map(hold),
        }
    }

    fn text(&self, path: &str) -> String {
        let now = SystemTime::now();
        let at = |time| clock(time, now);
        let mut text = format!("{} at {}\n", plain(path), at(self.at));
        let mut shown = self.around.clone();
        shown.sort_by_key(|entry| distance(time_of(entry), self.at));
        let left_out = shown.split_off(shown.len().min(SHOWN)).len();
        shown.sort_by_key(|entry| time_of(entry));
        for entry in shown {
            let (who, what) = match entry {
                Entry::Hold(hold) => (pastview::who(hold), ran(hold)),
                Entry::Refused(refusal) => {
                    let times = if refusal.count > 1 { format!(" ({} x)", refusal.count) } else { String::new() };
                    let what = format!("NOT RUN: {}{times}", pastview::why_refused(refusal));
                    (pastview::brief(Some(&refusal.owner), ""), what)
                }
                Entry::Broken(broken) => {
                    let what = format!("removed by {}: {}", broken.by, excerpt(&broken.reason));
                    (pastview::brief(broken.owner.as_ref(), &broken.described), what)
                }
                Entry::Asked(asked) => {
                    (pastview::brief(asked.owner.as_ref(), &asked.described), pastview::was_asked(asked))
                }
                _ => continue,
            };
            // Writing to a string never fails.
            _ = writeln!(text, "{}  {}  {}", at(time_of(entry)), plain(&who), plain(&what));
        }
        if left_out > 0 {
            _ = writeln!(text, "and {left_out} more within 5 min");
        }
        for (host, days, of) in &self.absent {
            let host = plain(host);
            _ = writeln!(
                text,
                "{}  {host}  did not ask, as it did on {days} of the {of} days that are recorded",
                at(self.at)
            );
        }
        for hold in &self.holders {
            let message = hold.message.as_ref().map_or_else(String::new, |message| format!(" ({})", excerpt(message)));
            let within = if hold.bounds().known().is_none() { "for a time within " } else { "" };
            let line = format!(
                "{}, {within}{} to {}{message}, {}",
                hold.described,
                at(hold.granted),
                at(hold.ended),
                pastview::ended(hold)
            );
            _ = writeln!(text, "holder    {}", plain(&line));
        }
        for holder in &self.still {
            let grant = holder.grant();
            let later = if grant.and_then(Grant::known).is_none() { " or later" } else { "" };
            let since = grant.map_or_else(String::new, |grant| at(grant.earliest) + later);
            let message =
                holder.message.as_ref().map_or_else(String::new, |message| format!(" ({})", excerpt(message)));
            _ = writeln!(
                text,
                "holder    {}",
                plain(&format!("{}, since {since}, and still{message}", holder.described))
            );
        }
        if self.holders.is_empty() && self.still.is_empty() {
            _ = writeln!(text, "holder    {}", plain(&self.unrecorded_holder()));
        }
        if self.still.is_empty() {
            _ = writeln!(text, "then      {}", plain(&self.then()));
        }
        if let Some(last) = self.last_success {
            _ = writeln!(text, "last ok   {} by {}", at(last.granted), plain(&last.described));
        }
        text
    }

    /// Who held the lock, if no hold of that moment is recorded: other records may show it.
    fn unrecorded_holder(&self) -> String {
        let now = SystemTime::now();
        if let Some(run) = self.run {
            return format!("{}, slot {}: {}", run.by, run.slot.name, jobsview::outcome(run));
        }
        if let Some((refusal, holder)) = self.seen.and_then(|refusal| Some((refusal, refusal.holder.as_ref()?))) {
            let (host, at) = (&refusal.owner.host, clock(refusal.last, now));
            return format!("{}, as {host} saw at {at}; no record says from when to when", excerpt(holder));
        }
        match self.before_records {
            Some(oldest) => format!("not known: the records go back to {}", clock(oldest, now)),
            None => "none is recorded: it was free, or its holder keeps no history, as foreign clients".to_owned(),
        }
    }

    /// Who held the lock next.
    fn then(&self) -> String {
        let at = |time| clock(time, SystemTime::now());
        let hold = self.next.map(|next| (next.granted, next.described.as_str(), ""));
        let still = self.next_still.and_then(|next| Some((next.granted?, next.described.as_str(), ", and still")));
        let run = self.next_run.and_then(|run| Some((of_ms(run.start_ms?), run.by.to_string())));
        // A hold says more than the run of a job that began with it.
        let first = hold.into_iter().chain(still).min_by_key(|(granted, ..)| *granted);
        match (first, run) {
            (Some((granted, who, more)), run) if run.as_ref().is_none_or(|(start, _)| granted <= *start + MOMENT) => {
                format!("held by {who} from {}{more}", at(granted))
            }
            (_, Some((start, who))) => format!("held by {who} from {}, for a run of its job", at(start)),
            _ if self.asked_later => "not held again; later requests were refused".to_owned(),
            _ => "nobody is recorded to have asked again".to_owned(),
        }
    }

    /// The commands that help.
    fn advice(&self, commands: LockCommands<'_>, printer: &Printer) -> String {
        let command = |command: &Suggested| printer.command(command, std::io::stdout());
        let refused = self.around.iter().any(|entry| matches!(entry, Entry::Refused(_)));
        let mut lines = Vec::new();
        if refused || !self.absent.is_empty() {
            lines.extend(commands.run(&[]).map(|run| command(&run)));
            lines.extend(commands.as_job().map(|job| command(&job) + "  # runs once, whichever machine asks"));
        }
        lines.push(command(&commands.about("history")));
        let mut text = String::new();
        for (at, line) in lines.iter().enumerate() {
            // Writing to a string never fails.
            _ = writeln!(text, "{}  {line}", if at == 0 { "do" } else { "  " });
        }
        text
    }
}

/// The holder that was granted the lock after this moment.
fn holders_after(lock: Option<&LockInfo>, at: SystemTime) -> Option<&ContenderInfo> {
    let after = lock.into_iter().flat_map(|lock| &lock.holders);
    let after = after.filter(|holder| holder.granted.is_some_and(|granted| granted >= at + MOMENT));
    after.min_by_key(|holder| holder.granted)
}

/// `RUN: waited 2 s, held 3 min 02 s, released`
fn ran(hold: &PastHold) -> String {
    let waited = hold.waited().filter(|waited| *waited >= Duration::from_secs(1));
    let waited = waited.map_or_else(String::new, |waited| format!("waited {}, ", spell(waited)));
    let what = if hold.end == HoldEnd::Unrecorded { "held it" } else { "RUN" };
    let most = if hold.bounds().known().is_none() { "at most " } else { "" };
    format!("{what}: {waited}held {most}{}, {}", spell(hold.held()), pastview::ended(hold))
}

/// Returns the line about the run of a job that was due or ran around the moment.
fn run_at(job: &JobStatus, at: SystemTime) -> String {
    let at = ms(at);
    let around = i64::try_from(AROUND.as_millis()).unwrap_or(i64::MAX);
    let covers = |run: &&lockkeeper_jobs::RunRecord| {
        run.slot.start_ms <= at && run.slot.end_ms.is_some_and(|end| at < end)
            || run.start_ms.is_some_and(|start| start - around <= at && at <= run.end_ms.unwrap_or(start) + around)
    };
    match job.runs.iter().rev().find(covers) {
        Some(run) => format!("job       slot {}: {}\n", plain(&run.slot.name), plain(&jobsview::outcome(run))),
        None => match job.left_out.iter().rev().find(|left| (left.at_ms - at).abs() <= around) {
            Some(left) => format!("job       slot {}: {}\n", plain(&left.slot.name), plain(&jobsview::left_out(left))),
            None => "job       no run of this time is recorded\n".to_owned(),
        },
    }
}

/// Returns the machines that asked at this time of day on several earlier days, and not around the moment.
fn absent(entries: &[Entry], around: &[&Entry], at: SystemTime) -> Vec<(String, usize, usize)> {
    let zone = TimeZone::system();
    let zoned = |time: SystemTime| Timestamp::try_from(time).ok().map(|time| time.to_zoned(zone.clone()));
    let Some(then) = zoned(at) else { return Vec::new() };
    let mut days: BTreeMap<String, BTreeSet<Date>> = BTreeMap::new();
    for (host, time) in entries.iter().filter_map(request) {
        let Some(time) = zoned(time).filter(|time| time.date() < then.date()) else { continue };
        let same = time.date().to_datetime(then.time()).to_zoned(zone.clone());
        let Ok(same) = same else { continue };
        if distance(same.timestamp().into(), time.timestamp().into()) <= AROUND {
            days.entry(host).or_default().insert(time.date());
        }
    }
    let all = days.values().flatten().collect::<BTreeSet<_>>().len();
    let here: BTreeSet<_> = around.iter().filter_map(|entry| request(entry)).map(|(host, _)| host).collect();
    let usual = days.iter().map(|(host, days)| (host.clone(), days.len(), all));
    usual.filter(|(host, days, all)| *days >= DAYS && days * 2 >= *all && !here.contains(host)).collect()
}

/// When a request came, or a contender was removed.
fn time_of(entry: &Entry) -> SystemTime {
    match entry {
        Entry::Hold(hold) => hold.queued.unwrap_or(hold.granted),
        Entry::Refused(refusal) => refusal.asked(),
        other => other.at(),
    }
}

/// The machine of a request, and when it asked.
fn request(entry: &Entry) -> Option<(String, SystemTime)> {
    match entry {
        Entry::Hold(hold) => Some((hold.owner.as_ref()?.host.clone(), hold.queued.unwrap_or(hold.granted))),
        Entry::Refused(refusal) => Some((refusal.owner.host.clone(), refusal.asked())),
        _ => None,
    }
}

fn distance(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|error| error.duration())
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// A time in milliseconds since 1970.
fn of_ms(ms: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

fn ms(time: SystemTime) -> i64 {
    Timestamp::try_from(time).map_or(0, Timestamp::as_millisecond)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Zoned {
        "2026-11-25T10:00:00[UTC]".parse().unwrap()
    }

    fn means(text: &str) -> String {
        match moment(text, &now()) {
            Ok(at) => Timestamp::try_from(at).unwrap().to_string(),
            Err(failure) => failure.message,
        }
    }

    #[test]
    fn a_time_of_day_is_the_last_one_and_a_date_is_that_date() {
        assert_eq!(means("02:13"), "2026-11-25T02:13:00Z");
        assert_eq!(means("10:00:01"), "2026-11-24T10:00:01Z");
        assert_eq!(means("2026-11-24 02:13"), "2026-11-24T02:13:00Z");
        assert_eq!(means("2026-11-24T02:13:05+01:00"), "2026-11-24T01:13:05Z");
        assert_eq!(means("2026-11-25 10:01"), "\"2026-11-25 10:01\" is in the future");
        assert_eq!(means("2026-11-26 02:13"), "\"2026-11-26 02:13\" is in the future");
        assert_eq!(means("yesterday"), "\"yesterday\" is no time");
        assert_eq!(means("25:00"), "\"25:00\" is no time");
    }
}
