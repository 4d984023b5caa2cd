//! `lockkeeper why`: explains why a lock is not available now, and what to do about it.

use std::fmt::Write as _;
use std::time::Duration;

use clap::ValueEnum;
use lockkeeper::NodeFormat;
use lockkeeper::admin::{Broken, ContenderInfo, LockInfo};
use lockkeeper::engine::text::excerpt;
use lockkeeper::error::AdminError;
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_observe::deadlock::{Certainty, confirmed};
use lockkeeper_observe::history::History;
use lockkeeper_observe::servers::{self, SessionConnection, SessionConnections, Silence};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::advice::{Suggested, can_be_asked};
use crate::args::ask::ShowArgs;
use crate::args::run::NodeFormatArg;
use crate::atwork::AtWork;
use crate::commands::show::inquire_of;
use crate::evidence::{Evidence, is_used};
use crate::exit::{Failure, top};
use crate::liveline::whole;
use crate::output::{self, Printer};
use crate::place::Place;
use crate::presence::GONE;
use crate::screen::{INDENT, Size, wrapped_for_stdout};
use crate::servertime::ServerTime;
use crate::settings::{Settings, lock_path};
use crate::text::{SESSIONLESS, ahead, broken_line, permits, plain, stuck, term, wanted, when_ms, who_and};
use crate::views::{BrokenView, LockView};

/// Maximum contenders and nodes that are printed one by one.
const TOLD: usize = 10;

/// Maximum holders and nodes that are printed one by one on a terminal, so that the actions are on the same screen.
const TOLD_ON_A_SCREEN: usize = 2;

/// Minimum width of the column with the labels of the actions.
const LABELS: usize = 28;

/// How long all servers together have to say from where the sessions of the holders are connected.
const ASKING: Duration = Duration::from_millis(500);

#[derive(Serialize)]
struct Why<'a> {
    lock: LockView<'a>,
    broken: Vec<BrokenView<'a>>,
    /// How long half of the last recorded holds took at most.
    usual_ms: Option<u64>,
    /// How sure it is that the lock is part of a deadlock.
    deadlock: Option<Certainty>,
    /// The processes of the first holder, if they run on this machine.
    at_work: Option<&'a AtWork>,
    sessions: Vec<SessionView<'a>>,
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
pub(crate) async fn why(args: ShowArgs, mine: bool, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?;
    let settings = Settings::read(args.connect, printer)?.at([path.as_str()]).await?;
    let printer = &printer.at(&settings.place);
    let (at, place) = (path.clone(), &settings);
    // A server of this machine has its clock.
    let asks = !printer.is_json() && matches!(settings.place, Place::Ensemble(_));
    let answer = inquire_of(&settings, async move |keeper: Lockkeeper| {
        let admin = keeper.admin();
        let lock = match admin.show(at.as_str()).await {
            // The servers delete the node of a lock that nobody uses.
            Err(AdminError::NoSuchLock { .. }) => None,
            lock => Some(lock?),
        };
        let contended = lock.as_slice();
        let others = async {
            let time = match asks {
                true => ServerTime::ask(&admin, contended).await,
                false => ServerTime::of(contended),
            };
            let evidence = match &lock {
                Some(lock) => evidence(&keeper, lock).await?,
                None => Evidence::default(),
            };
            Ok::<_, Error>((admin.broken(at.as_str()).await?, time, evidence))
        };
        let (others, connections) = tokio::join!(others, connections(&keeper, place, contended));
        let (broken, time, evidence) = others?;
        Ok::<_, Error>((lock, broken, time, Evidence { connections, ..evidence }))
    });
    let (lock, mut broken, time, evidence) = answer.await?;
    broken.retain(|broken| broken.path == path.as_str());
    if printer.is_json() {
        let broken = broken.iter().map(BrokenView::of).collect();
        output::answer(
            &settings.place,
            &Why {
                lock: lock.as_ref().map_or_else(|| LockView::free(path.as_str()), LockView::of),
                broken,
                usual_ms: evidence.habits.usual().map(|usual| u64::try_from(usual.as_millis()).unwrap_or(u64::MAX)),
                deadlock: evidence.deadlocks.first().map(|deadlock| deadlock.certainty),
                at_work: evidence.at_work.as_ref(),
                sessions: evidence.connections.found.iter().map(SessionView::of).collect(),
            },
        )?;
    } else {
        printer.scope(&settings.place);
        time.note.iter().for_each(|note| printer.note(note));
        output::data(&match &lock {
            Some(lock) => text(lock, &broken, &args.name, (&time, &evidence), (args.all, mine), printer),
            None => wrapped_for_stdout(&unused(path.as_str(), &broken), INDENT),
        })?;
    }
    Ok(0)
}

/// The text about a lock without a node.
fn unused(path: &str, broken: &[Broken]) -> String {
    let mut text = format!(
        "{} is free: nobody holds it or waits; it has no node, because it was not used for a while, or never\n",
        plain(path)
    );
    if let Some(last) = broken.last() {
        // Writing to a string never fails.
        _ = writeln!(text, "broken before, last on {}", broken_line(last));
    }
    text
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
/// waits.
async fn evidence(keeper: &Lockkeeper, lock: &LockInfo) -> Result<Evidence, Error> {
    let entries = History::new(keeper).of(&lock.path).await?;
    if lock.waiters.is_empty() {
        return Ok(Evidence::of(lock, &entries, &[], Vec::new()));
    }
    let top = top(&lock.path);
    let admin = keeper.admin();
    let all = admin.survey(top).await?.locks;
    let deadlocks = confirmed(&admin, top, &all).await?;
    Ok(Evidence::of(lock, &entries, &all, deadlocks))
}

/// Asks the servers from where the holders' sessions are connected. What they do not say within [`ASKING`] is not known.
async fn connections(keeper: &Lockkeeper, settings: &Settings, lock: &[LockInfo]) -> SessionConnections {
    let holders = lock.iter().flat_map(|lock| &lock.holders).filter(|holder| !holder.session.is_none());
    let mut sessions: Vec<_> = holders.map(|holder| holder.session).collect();
    sessions.sort_by_key(|session| session.0);
    sessions.dedup();
    match &settings.place {
        Place::Ensemble(servers) if !sessions.is_empty() => {
            let (builder, own) = (settings.builder(), keeper.session_id());
            servers::connections(&builder, servers, &sessions, own, ASKING).await.unwrap_or_default()
        }
        // The server of this machine lists no clients.
        _ => SessionConnections::default(),
    }
}

fn text(
    lock: &LockInfo,
    broken: &[Broken],
    name: &str,
    (time, evidence): (&ServerTime, &Evidence),
    (all, mine): (bool, bool),
    printer: &Printer,
) -> String {
    // As it was typed, unless it would be read as an option.
    let name = if name.starts_with('-') { &lock.path } else { name };
    let screen = Screen::new(all);
    let mut state = state(lock, name, (time, evidence), screen.told, printer);
    evidence.lines(lock, time).iter().filter(|_| is_used(lock)).for_each(|line| state.push_str(&format!("  {line}\n")));
    if mine {
        let own = evidence.mine(lock, time);
        if own.is_empty() {
            state.push_str("no waiter is yours on this machine\n");
        }
        own.iter().take(screen.told).for_each(|line| state.push_str(&format!("{line}\n")));
        let more = own.len().saturating_sub(screen.told);
        if more > 0 {
            let all = printer.command(&Suggested::new(["why", name, "--mine", "--all"]), std::io::stdout());
            state.push_str(&format!("and {more} more of yours: {all}\n"));
        }
    }
    let state = wrapped_for_stdout(&state, INDENT);
    let last = broken.last().map_or_else(String::new, |last| format!("broken before, last on {}\n", broken_line(last)));
    let after = wrapped_for_stdout(&last, INDENT) + &actions(lock, name, screen.told, printer);
    let note = time.note.iter().map(|note| format!("lockkeeper: {note}\n")).collect::<String>();
    let room = screen.size.map(|size| size.less(&note).less(&state).less(&after));
    format!("{state}{}{after}", waiters(lock, name, (time, evidence), (room, screen.told), printer))
}

/// The holders of the lock, and what else is in the way.
fn state(
    lock: &LockInfo,
    name: &str,
    (time, evidence): (&ServerTime, &Evidence),
    told: usize,
    printer: &Printer,
) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    let path = plain(&lock.path);
    match lock.holders.as_slice() {
        [] if lock.lease.is_none() && lock.waiters.is_empty() => {
            _ = writeln!(text, "{path} is free: nobody holds it or waits")
        }
        [] => {
            let stuck = stuck(lock)
                .unwrap_or_else(|| "has no holder at this moment; the next waiter is about to get it".to_owned());
            _ = writeln!(text, "{path} {stuck}");
        }
        holders => {
            for (at, holder) in holders.iter().take(told).enumerate() {
                let is = if at == 0 { format!("{path} is held by") } else { "and by".to_owned() };
                _ = writeln!(text, "{is} {}", since(holder, time));
                if let Some(program) = holder.owner.as_ref().and_then(|owner| owner.program.as_deref()) {
                    _ = writeln!(text, "  which runs {}", plain(&excerpt(program)));
                }
                if let Some(session) = evidence.session(holder) {
                    _ = writeln!(text, "  {session}");
                }
                if let Some(traceparent) = holder.traceparent {
                    _ = writeln!(text, "  in trace {}, span {}", traceparent.trace_id(), traceparent.span_id());
                }
                if holder.process_has_ended() {
                    _ = writeln!(text, "  {GONE}");
                }
                // A word of a foreign client has no time.
                let asked = holder.revocation.as_ref().filter(|request| request.at_ms > 0);
                if let Some(at) = asked.and_then(|request| i64::try_from(request.at_ms).ok()) {
                    _ = writeln!(text, "  asked at {}, by the clock of who asked", when_ms(at));
                }
            }
            text.push_str(&rest(holders.len(), told, name, printer));
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
        _ = writeln!(text, "{SESSIONLESS}: {}", plain(&node.node_path(&lock.path)));
    }
    text
}

/// The line about the contenders that are left out, if there are any.
fn rest(count: usize, told: usize, name: &str, printer: &Printer) -> String {
    let show = || printer.command(&Suggested::new(["show", name, "--all"]), std::io::stdout());
    if count > told { format!("  and {} more: {}\n", count - told, show()) } else { String::new() }
}

/// The waiters that fit into this room on a terminal, or as many as are told.
fn waiters(
    lock: &LockInfo,
    name: &str,
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
    let rows = room.map_or(usize::MAX, |room| room.less(&text).less(&rest(count, 0, name, printer)).rows.max(1));
    let (mut used, mut shown) = (0, 0);
    for (at, waiter) in lock.waiters.iter().take(most).enumerate() {
        let mut entry = format!("  {}. {}, {} ahead\n", at + 1, since(waiter, time), ahead(lock, at));
        if waiter.process_has_ended() {
            entry.push_str(&format!("     {GONE}\n"));
        }
        let entry = wrapped_for_stdout(&entry, INDENT + 1);
        used += entry.lines().count();
        if shown > 0 && used > rows {
            break;
        }
        text.push_str(&entry);
        shown += 1;
    }
    text + &rest(count, shown, name, printer)
}

/// The possible actions. A command is not broken, so that it can be copied.
fn actions(lock: &LockInfo, name: &str, told: usize, printer: &Printer) -> String {
    let recipes = recipes(lock, name, told);
    if recipes.is_empty() {
        return String::new();
    }
    let columns = Size::of(std::io::stdout()).map_or(usize::MAX, |size| size.columns);
    let mut text = "possible actions, with your own COMMAND and WHY\n".to_owned();
    let width = recipes.iter().map(|(what, _)| what.width()).max().unwrap_or_default().max(LABELS);
    for (what, command) in recipes {
        let command = printer.command(&command, std::io::stdout());
        let line = format!("  {what:<width$} {command}");
        // Writing to a string never fails.
        _ = match line.width() > columns {
            true => writeln!(text, "  {what}\n    {command}"),
            false => writeln!(text, "{line}"),
        };
    }
    text
}

/// Returns the possible actions on a lock, each with its command.
fn recipes(lock: &LockInfo, name: &str, told: usize) -> Vec<(&'static str, Suggested)> {
    let removals = lock.sessionless.iter().take(told).map(|node| {
        let node = node.node_path(&lock.path);
        ("delete that node", Suggested::new(["break", name]).with(["--reason", "WHY", "--node", node.as_str()]))
    });
    let mut recipes: Vec<_> = removals.collect();
    let Some(first) = lock.holders.first() else { return recipes };
    let run = |options: &[&str]| Suggested::new(["run", name]).with(options).running(["COMMAND"]);
    if let Some(lease) = &lock.lease {
        // A lease has no queue: other contenders are refused until it is over.
        recipes.push(("if the lease is over", run(&["--lease", "10m"])));
        let next = lease.requestor.as_ref().map_or(lease.priority, |next| next.priority.max(lease.priority));
        if let Some(higher) = next.checked_add(1) {
            recipes.push(("preempt the owner", run(&["--lease", "10m", "--priority", &higher.to_string()])));
        }
    } else {
        let kind = kind(lock);
        let kind: Vec<_> = kind.iter().map(String::as_str).collect();
        if first.mode == "read" {
            let shared = [&kind[..], &["--shared"]].concat();
            recipes.push(("share it", run(&shared)));
        }
        recipes.push(("wait in the queue", run(&kind)));
        recipes.push(("wait at most 5 min", run(&[&kind[..], &["--wait", "5m"]].concat())));
    }
    recipes.push(("see all contenders", Suggested::new(["show", name, "--all"])));
    if lock.holders.iter().any(can_be_asked) {
        let ask = Suggested::new(["revoke", name]).with(["--reason", "WHY", "--wait", "1m"]);
        let all = if lock.holders.len() > 1 { "ask all holders to release it" } else { "ask the holder to release it" };
        recipes.push((all, ask.clone()));
        // One permit may be enough; one reader is not.
        let one = lock
            .holders
            .iter()
            .find(|holder| lock.holders.len() > 1 && holder.mode == "permits" && can_be_asked(holder));
        if let Some(one) = one {
            recipes.push(("ask one of them", ask.with(["--node", one.node_path(&lock.path).as_str()])));
        }
    }
    for (at, holder) in lock.holders.iter().take(told.min(TOLD)).enumerate() {
        let node = holder.node_path(&lock.path);
        let which = (lock.holders.len() > 1).then_some(["--node", node.as_str()]).into_iter().flatten();
        let take = Suggested::new(["break", name]).with(["--reason", "WHY"]).with(which);
        recipes.push((if at == 0 { "break the lock" } else { "break the next hold" }, take));
    }
    recipes
}

/// Returns the options with which a command joins the same queue.
fn kind(lock: &LockInfo) -> Vec<String> {
    let all = || lock.holders.iter().chain(&lock.waiters);
    if let Some(permits) = lock.permits {
        return vec!["--permits".to_owned(), permits.to_string()];
    }
    if let Some(class) = all().find_map(|contender| contender.class) {
        return vec!["--class".to_owned(), class.to_string()];
    }
    let Some(used) = all().map(|contender| NodeFormat::of_node(&contender.node)).next() else { return Vec::new() };
    let format = NodeFormatArg::value_variants().iter().find(|format| NodeFormat::from(**format) == used);
    match format {
        None | Some(NodeFormatArg::Curator) => Vec::new(),
        Some(format) => {
            let name = format.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned());
            vec!["--format".to_owned(), name]
        }
    }
}

/// `build@ci-7 (pid 4711) since 10:42:03, 12 min 03 s ago (nightly index)`
fn since(contender: &ContenderInfo, time: &ServerTime) -> String {
    who_and(contender, |then| time.ago(then).map_or_else(String::new, |ago| format!(", {} ago", whole(ago))))
}
