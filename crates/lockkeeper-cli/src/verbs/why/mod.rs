//! `lockkeeper why`: explains why a lock is not available now, and what to do about it.

mod past;

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use lockkeeper::admin::{Broken, ContenderInfo, LockInfo, SessionId};
use lockkeeper::error::AdminError;
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_history::{Entry, Habits, History, LockUse};
use lockkeeper_jobs::{JobState, JobsAdmin};
use lockkeeper_observe::deadlock::{Certainty, confirmed};
use lockkeeper_observe::servers::{self, SessionConnection, SessionConnections, Silence};
use lockkeeper_session::text::excerpt;
use serde::Serialize;

use crate::advice::{Action, LockCommands, Suggested, can_be_asked};
use crate::args::common::Common;
use crate::args::values::Completes;
use crate::atwork::AtWork;
use crate::colour::Severity;
use crate::evidence::{Evidence, is_used};
use crate::exit::{Failure, top};
use crate::inquiry::inquire_of;
use crate::jobsview::JobView;
use crate::liveline::whole;
use crate::output::{self, Printer};
use crate::pastview;
use crate::place::Place;
use crate::presence::GONE;
use crate::screen::{INDENT, Size, wrapped_for_stdout};
use crate::servertime::ServerTime;
use crate::settings::{Settings, lock_path};
use crate::statuses::{Code, Status, Statuses, help};
use crate::text::{SESSIONLESS, ahead, broken_line, held_by, permits, plain, stuck, term, wanted, when_ms, who_and};
use crate::verb::{Context, Verb};
use crate::views::BrokenView;

/// The exit statuses of `lockkeeper why`.
const STATUSES: &[Status] = &[(Code::Done, "printed", "also that the lock is free")];

/// `lockkeeper why`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "", "\
Examples:
  lockkeeper why nightly
  lockkeeper why nightly --mine
  lockkeeper why nightly --at 02:13"))]
pub(crate) struct WhyArgs {
    /// The lock
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Print all holders and waiters, not only the first ten
    #[arg(long)]
    pub all: bool,
    /// Also print the place of each waiter of this user on this machine, and about how long it still waits
    #[arg(long, conflicts_with = "at")]
    pub mine: bool,
    /// Explain what happened at this moment, from the history of the lock: 02:13, or '2026-11-24 02:13'
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for WhyArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        match self.at.clone() {
            Some(at) => past::why_at(self, &at, context.printer).await,
            None => why(self, context.printer).await,
        }
    }
}

/// Maximum contenders and nodes that are printed one by one.
const TOLD: usize = 10;

/// Maximum holders and nodes that are printed one by one on a terminal, so that the actions are on the same screen.
const TOLD_ON_A_SCREEN: usize = 2;

/// How long all servers together have to say from where the sessions of the holders are connected.
const ASKING: Duration = Duration::from_millis(500);

#[derive(Serialize)]
struct Why<'a> {
    lock: &'a LockInfo,
    broken: Vec<BrokenView<'a>>,
    /// How long half of the last recorded holds took at most.
    usual_ms: Option<u64>,
    /// How sure it is that the lock is part of a deadlock.
    deadlock: Option<Certainty>,
    /// The processes of the first holder, if they run on this machine.
    at_work: Option<&'a AtWork>,
    sessions: Vec<SessionView<'a>>,
    /// The records of the job of this name, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobView<'a>>,
}

/// The connection of a holder's session, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct SessionView<'a> {
    session: String,
    server: &'a str,
    address: &'a str,
    #[serde(flatten)]
    silence: Silence,
}

impl<'a> SessionView<'a> {
    fn of(connection: &'a SessionConnection) -> Self {
        let SessionConnection { session, server, address, silence } = connection;
        SessionView { session: session.to_string(), server, address, silence: *silence }
    }
}

/// Explains a lock; returns the exit status.
async fn why(args: WhyArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?;
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let printer = &printer.at(&settings.place);
    let (at, place) = (path.clone(), &settings);
    // A server of this machine has its clock.
    let asks = !printer.is_json() && matches!(settings.place, Place::Ensemble(_));
    let answer = inquire_of(&settings, async move |keeper: Lockkeeper| {
        let admin = keeper.admin();
        let mut lock = match admin.show(at.as_str()).await {
            // The servers delete the node of a lock that nobody uses.
            Err(AdminError::NoSuchLock { .. }) => None,
            lock => Some(lock?),
        };
        let sessions = sessions(lock.as_slice());
        let others = async {
            let time = match asks {
                true => ServerTime::ask(&admin, lock.as_slice()).await,
                false => ServerTime::of(lock.as_slice()),
            };
            let entries = History::new(&keeper).of(at.as_str()).await?;
            let evidence = match &mut lock {
                Some(lock) => evidence(&keeper, lock, &entries).await?,
                None => Evidence::default(),
            };
            Ok::<_, Error>((admin.broken(at.as_str()).await?, time, evidence, entries))
        };
        let jobs = JobsAdmin::new(&keeper);
        let (others, connections, job) =
            tokio::join!(others, connections(&keeper, place, &sessions), jobs.job(at.as_str()));
        let (broken, time, evidence, entries) = others?;
        // The records of a job are an addition, as in `show`.
        Ok::<_, Error>((lock, broken, time, Evidence { connections, ..evidence }, entries, job.ok().flatten()))
    });
    let (lock, mut broken, time, evidence, entries, job) = answer.await?;
    broken.retain(|broken| broken.path == path.as_str());
    if printer.is_json() {
        let broken = broken.iter().map(BrokenView::of).collect();
        output::answer(
            &settings.place,
            &Why {
                lock: lock.as_ref().unwrap_or(&LockInfo::unused(path.as_str())),
                broken,
                usual_ms: evidence.habits.usual().map(|usual| u64::try_from(usual.as_millis()).unwrap_or(u64::MAX)),
                deadlock: evidence.deadlocks.first().map(|deadlock| deadlock.certainty),
                at_work: evidence.at_work.as_ref(),
                sessions: evidence.connections.found.iter().map(SessionView::of).collect(),
                job: job.as_ref().map(|job| JobView::at(job, &time)),
            },
        )?;
    } else {
        printer.scope(&settings.place);
        time.note.iter().for_each(|note| printer.note(note));
        let used_as = lock.as_ref().and_then(LockUse::of);
        let commands = LockCommands::new(&args.name, path.as_str(), used_as, job.as_ref());
        let job = job.as_ref().map(|job| JobView::at(job, &time));
        let known = Known { broken: &broken, entries: &entries, job: job.as_ref(), place: &settings.place };
        output::styled(&match &lock {
            Some(lock) => text(lock, known, commands, (&time, &evidence), (args.all, args.mine), printer),
            None => {
                let free = free(path.as_str(), false, known) + &after(known);
                wrapped_for_stdout(&free, INDENT) + &written(&job_actions(known.job, commands), printer)
            }
        })?;
    }
    Ok(0)
}

/// What is known of a lock beside its contenders.
#[derive(Clone, Copy)]
struct Known<'a> {
    broken: &'a [Broken],
    entries: &'a [Entry],
    job: Option<&'a JobView<'a>>,
    place: &'a Place,
}

/// The text about a lock that nobody holds or waits for: where that is so, and what happened last.
fn free(path: &str, has_node: bool, known: Known<'_>) -> String {
    let Known { broken, entries, job, place } = known;
    let used_before = !entries.is_empty() || !broken.is_empty() || job.is_some_and(|job| job.job.last().is_some());
    let why = match (has_node, used_before) {
        (true, _) => "",
        (false, true) => "; it has no node there, because it was not used for a while",
        (false, false) => "; it has no node there, because it was not used for a while, or never",
    };
    let mut text = format!("{} is free: nobody holds it or waits on {}{why}\n", plain(path), plain(&place.to_string()));
    // Writing to a string never fails.
    if let Some(hold) = entries.iter().filter_map(Entry::hold).max_by_key(|hold| hold.ended) {
        let (now, who) = (SystemTime::now(), pastview::who(hold));
        let [from, to] = [hold.granted, hold.ended].map(|time| pastview::clock(time, now));
        let line = format!("last held by {who} from {from} to {to}, {}", pastview::ended(hold));
        _ = writeln!(text, "{}", plain(&line));
    }
    text
}

/// The lines after those about the contenders: how it was broken, and what its job does or waits for.
fn after(Known { broken, job, .. }: Known<'_>) -> String {
    let last = broken.last().map_or_else(String::new, |last| format!("broken before, last on {}\n", broken_line(last)));
    last + &job.map_or_else(String::new, job_line)
}

/// `it is a job, every 30s: failed: slot 2026-11-22 failed on db7 at 02:13 with exit status 3`
fn job_line(view: &JobView<'_>) -> String {
    let schedule = view.job.schedule.as_ref().map_or_else(String::new, |schedule| format!(", {schedule}"));
    format!("it is a job{}: {}\n", plain(&schedule), view.status())
}

/// Returns the possible actions on a job that are not those on its lock.
fn job_actions(job: Option<&JobView<'_>>, commands: LockCommands<'_>) -> Vec<Action> {
    let Some(view) = job else { return Vec::new() };
    let mut actions = vec![("see its runs", commands.of_job(&[]).with(["--history"]))];
    if view.paused {
        actions.push(("end its pause", commands.of_job(&["resume"])));
    } else if view.job.state == JobState::Kept {
        actions.push(("run the slot again", commands.of_job(&["resolve"]).with(["--again"])));
        actions.push(("or count it as done", commands.of_job(&["resolve"]).with(["--accept"])));
    } else {
        actions.extend(commands.run(&[]).map(|run| ("run its slot, if it is due", run)));
    }
    actions
}

/// The terminal of an answer, if it is one, and how many holders and nodes are printed one by one.
#[derive(Clone, Copy)]
struct Screen {
    size: Option<Size>,
    told: usize,
}

impl Screen {
    fn new(all: bool) -> Self {
        match Size::for_an_answer() {
            _ if all => Screen { size: None, told: usize::MAX },
            None => Screen { size: None, told: TOLD },
            size => Screen { size, told: TOLD_ON_A_SCREEN },
        }
    }
}

/// Reads what shows whether the holder is slow or stuck: the history, and the other locks below the same top-level node if somebody
/// waits. Notes at the holders what the history says of their grants.
async fn evidence(keeper: &Lockkeeper, lock: &mut LockInfo, entries: &[Entry]) -> Result<Evidence, Error> {
    Habits::of(entries, None).date(lock);
    if lock.waiters.is_empty() {
        return Ok(Evidence::of(lock, entries, &[], Vec::new()));
    }
    let top = top(&lock.path);
    let admin = keeper.admin();
    let all = admin.listing(top).await?.locks;
    let deadlocks = confirmed(&admin, top, &all).await?;
    Ok(Evidence::of(lock, entries, &all, deadlocks))
}

/// Returns the sessions of the holders.
fn sessions(lock: &[LockInfo]) -> Vec<SessionId> {
    let holders = lock.iter().flat_map(|lock| &lock.holders).filter(|holder| !holder.session.is_none());
    let mut sessions: Vec<_> = holders.map(|holder| holder.session).collect();
    sessions.sort_by_key(|session| session.0);
    sessions.dedup();
    sessions
}

/// Asks the servers from where these sessions are connected. What they do not say within [`ASKING`] is not known.
async fn connections(keeper: &Lockkeeper, settings: &Settings, sessions: &[SessionId]) -> SessionConnections {
    match &settings.place {
        Place::Ensemble(servers) if !sessions.is_empty() => {
            let (builder, own) = (settings.builder(), keeper.session_id());
            servers::connections(&builder, servers, sessions, own, ASKING).await.unwrap_or_default()
        }
        // The server of this machine lists no clients.
        _ => SessionConnections::default(),
    }
}

fn text(
    lock: &LockInfo,
    known: Known<'_>,
    commands: LockCommands<'_>,
    (time, evidence): (&ServerTime, &Evidence),
    (all, mine): (bool, bool),
    printer: &Printer,
) -> String {
    let screen = Screen::new(all);
    let mut state = state(lock, known, commands, (time, evidence), screen.told, printer);
    evidence.lines(lock, time).iter().filter(|_| is_used(lock)).for_each(|line| state.push_str(&format!("  {line}\n")));
    if mine {
        let own = evidence.mine(lock, time);
        if own.is_empty() {
            state.push_str("no waiter is yours on this machine\n");
        }
        own.iter().take(screen.told).for_each(|line| state.push_str(&format!("{line}\n")));
        let more = own.len().saturating_sub(screen.told);
        if more > 0 {
            let all = printer.command(&commands.about("why").with(["--mine", "--all"]), std::io::stdout());
            state.push_str(&format!("and {more} more of yours: {all}\n"));
        }
    }
    let state = wrapped_for_stdout(&state, INDENT);
    let mut actions = actions(lock, known.job, commands, screen.told);
    if !evidence.deadlocks.is_empty() {
        actions.insert(0, ("see what ends the deadlock", Suggested::new(["deadlocks", top(&lock.path)])));
    }
    let after = wrapped_for_stdout(&after(known), INDENT) + &written(&actions, printer);
    let note = time.note.iter().map(|note| format!("lockkeeper: {note}\n")).collect::<String>();
    let room = screen.size.map(|size| size.less(&note).less(&state).less(&after));
    format!("{state}{}{after}", waiters(lock, commands, (time, evidence), (room, screen.told), printer))
}

/// The holders of the lock, and what else is in the way.
fn state(
    lock: &LockInfo,
    known: Known<'_>,
    commands: LockCommands<'_>,
    (time, evidence): (&ServerTime, &Evidence),
    told: usize,
    printer: &Printer,
) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    let path = plain(&lock.path);
    match lock.holders.as_slice() {
        [] if lock.lease.is_none() && lock.waiters.is_empty() => text.push_str(&free(&lock.path, true, known)),
        [] => {
            let stuck = stuck(lock)
                .map(|stuck| Severity::Serious.paint(&stuck))
                .unwrap_or_else(|| "has no holder at this moment; the next waiter is about to get it".to_owned());
            _ = writeln!(text, "{path} {stuck}");
        }
        holders => {
            for (at, holder) in holders.iter().take(told).enumerate() {
                let of = if at == 0 { format!("{path} is ") } else { String::new() };
                _ = writeln!(text, "{of}{} {}", held_by(at), since(holder, time));
                if let Some(program) = holder.owner.as_ref().and_then(|owner| owner.program.as_deref()) {
                    let runs = if holder.abandoned { "ran" } else { "runs" };
                    _ = writeln!(text, "  which {runs} {}", plain(&excerpt(program)));
                }
                if let Some(session) = evidence.session(holder) {
                    _ = writeln!(text, "  {session}");
                }
                if let Some(traceparent) = holder.traceparent {
                    _ = writeln!(text, "  in trace {}, span {}", traceparent.trace_id(), traceparent.span_id());
                }
                if holder.process_has_ended() {
                    _ = writeln!(text, "  {}", Severity::Serious.paint(GONE));
                }
                // A word of a foreign client has no time.
                let asked = holder.revocation.as_ref().filter(|request| request.at_ms > 0);
                if let Some(at) = asked.and_then(|request| i64::try_from(request.at_ms).ok()) {
                    let asked = format!("asked at {}, by the clock of who asked", when_ms(at));
                    _ = writeln!(text, "  {}", Severity::Notice.paint(&asked));
                }
            }
            text.push_str(&rest(holders.len(), told, commands, printer));
        }
    }
    if let Some(lease) = &lock.lease {
        _ = writeln!(
            text,
            "held {}; a higher priority may take it, and after its end every contender may",
            term(lease)
        );
        if let Some(requestor) = &lease.requestor {
            _ = writeln!(text, "{}", wanted(requestor));
        }
    }
    if let Some(permits) = permits(lock) {
        _ = writeln!(text, "{permits}");
    }
    for node in lock.sessionless.iter().take(told) {
        _ = writeln!(text, "{}: {}", Severity::Notice.paint(SESSIONLESS), plain(&node.node_path(&lock.path)));
    }
    text
}

/// The line about the contenders that are left out, if there are any.
fn rest(count: usize, told: usize, commands: LockCommands<'_>, printer: &Printer) -> String {
    let show = || printer.command(&commands.about("show").with(["--all"]), std::io::stdout());
    if count > told { format!("  and {} more: {}\n", count - told, show()) } else { String::new() }
}

/// The waiters that fit into this room on a terminal, or as many as are told.
fn waiters(
    lock: &LockInfo,
    commands: LockCommands<'_>,
    (time, evidence): (&ServerTime, &Evidence),
    (room, told): (Option<Size>, usize),
    printer: &Printer,
) -> String {
    let count = lock.waiters.len();
    if count == 0 {
        return String::new();
    }
    let about = evidence.estimate(lock, count, time);
    let about = about.map_or_else(String::new, |about| format!(", and would wait {about}"));
    let mut text = wrapped_for_stdout(
        &format!("{count} waiting; a new contender has {} ahead{about}\n", ahead(lock, count)),
        INDENT,
    );
    let most = if room.is_some() { usize::MAX } else { told };
    // Without the first line and the one about the others.
    let rows = room.map_or(usize::MAX, |room| room.less(&text).less(&rest(count, 0, commands, printer)).rows.max(1));
    let (mut used, mut shown) = (0, 0);
    for (at, waiter) in lock.waiters.iter().take(most).enumerate() {
        let mut entry = format!("  {}. {}, {} ahead\n", at + 1, since(waiter, time), ahead(lock, at));
        if waiter.process_has_ended() {
            entry.push_str(&format!("     {}\n", Severity::Serious.paint(GONE)));
        }
        let entry = wrapped_for_stdout(&entry, INDENT + 1);
        used += entry.lines().count();
        if shown > 0 && used > rows {
            break;
        }
        text.push_str(&entry);
        shown += 1;
    }
    text + &rest(count, shown, commands, printer)
}

/// The possible actions as text.
fn written(actions: &[Action], printer: &Printer) -> String {
    match actions {
        [] => String::new(),
        _ => format!("possible actions, with your own COMMAND and WHY\n{}", printer.actions(actions)),
    }
}

/// Returns the possible actions on a lock, each with its command.
fn actions(lock: &LockInfo, job: Option<&JobView<'_>>, commands: LockCommands<'_>, told: usize) -> Vec<Action> {
    let removals = lock.sessionless.iter().take(told).map(|node| {
        let node = node.node_path(&lock.path);
        ("delete that node", commands.about("break").with(["--reason", "WHY", "--node", node.as_str()]))
    });
    let mut actions: Vec<_> = removals.collect();
    let Some(first) = lock.holders.first() else {
        actions.extend(job_actions(job, commands));
        return actions;
    };
    let mut run = |what, options: &[&str]| actions.extend(commands.run(options).map(|run| (what, run)));
    if lock.semaphore.is_some() {
        // Its layout is a foreign client's: no contender of Lockkeeper joins it.
    } else if let Some(lease) = &lock.lease {
        // A lease has no queue: other contenders are refused until it is over.
        run("if the lease is over", &[]);
        run("wait for the owner at most 10 min", &["--wait", "10m"]);
        let next = lease.requestor.as_ref().map_or(lease.priority, |next| next.priority.max(lease.priority));
        if let Some(higher) = next.checked_add(1) {
            run("preempt the owner", &["--priority", &higher.to_string()]);
        }
    } else if job.is_none() {
        if first.mode == "read" {
            run("share it", &["--shared"]);
        }
        run("wait in the queue", &[]);
        run("wait at most 5 min", &["--wait", "5m"]);
    }
    actions.extend(job_actions(job, commands));
    actions.push(("see all contenders", commands.about("show").with(["--all"])));
    if lock.holders.iter().any(can_be_asked) {
        let ask = commands.about("revoke").with(["--reason", "WHY", "--wait", "1m"]);
        let is_foreign = lock.lease.is_none() && lock.holders.iter().all(|holder| holder.owner.is_none());
        let all = match lock.holders.len() {
            _ if is_foreign => "ask, if its client listens",
            1 => "ask the holder to release it",
            _ => "ask all holders to release it",
        };
        actions.push((all, ask.clone()));
        // One permit may be enough; one reader is not.
        let one = lock
            .holders
            .iter()
            .find(|holder| lock.holders.len() > 1 && holder.mode == "permits" && can_be_asked(holder));
        if let Some(one) = one {
            actions.push(("ask one of them", ask.with(["--node", one.node_path(&lock.path).as_str()])));
        }
    }
    for (at, holder) in lock.holders.iter().take(told.min(TOLD)).enumerate() {
        let node = holder.node_path(&lock.path);
        let which = (lock.holders.len() > 1).then_some(["--node", node.as_str()]).into_iter().flatten();
        let take = commands.about("break").with(["--reason", "WHY"]).with(which);
        actions.push((if at == 0 { "break the lock" } else { "break the next hold" }, take));
    }
    actions
}

/// `build@ci-7 (pid 4711) since 10:42:03, 12 min 03 s ago (nightly index)`
fn since(contender: &ContenderInfo, time: &ServerTime) -> String {
    who_and(contender, |then| time.ago(then).map_or_else(String::new, |ago| format!(", {} ago", whole(ago))))
}
