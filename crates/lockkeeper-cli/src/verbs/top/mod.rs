//! `lockkeeper top`: the locks on a terminal, as they change, with what a person can do about them.

mod app;
mod draw;

use std::io::IsTerminal;
use std::time::Duration;

use anstream::adapter::strip_str;
use crossterm::event::{Event, EventStream};
use futures_util::stream::StreamExt;
use lockkeeper::Builder;
use lockkeeper::admin::{Admin, Owner};
use lockkeeper_history::{Entry, Flapping};
use lockkeeper_observe::servers;
use ratatui::DefaultTerminal;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::app::{App, Reaction, Target, Task};
use self::draw::{Details, Lane, Screen};
use crate::args::connect::ConnectArgs;
use crate::args::values::Completes;
use crate::exit::{Code, Failure};
use crate::inquiry::{inquire, inquire_of};
use crate::live::{Pace, follow};
use crate::output::Printer;
use crate::pastview::{self, Row};
use crate::place::Place;
use crate::settings::{Part, Settings, list_root};
use crate::statuses::{Status, Statuses, help};
use crate::text::plain;
use crate::verb::{Context, Verb};
use crate::verbs::doctor::{self, ASKING};
use crate::verbs::history::{self, Answer};
use crate::verbs::list::ListOrder;

/// The exit statuses of `lockkeeper top`.
const STATUSES: &[Status] = &[
    (Code::Done, "a key ended it", ""),
    (Code::Usage, "standard input or standard output is no terminal", "or the command line or a setting is wrong"),
    (Code::Unreachable, "no server was reachable", ""),
];

/// `lockkeeper top`.
#[cfg(feature = "top")]
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "", "\
Examples:
  lockkeeper top
  lockkeeper top team --sort rate"))]
pub(crate) struct TopArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// Sort by this at first, as the keys w, h, r and n do later
    #[arg(long, value_name = "BY", value_enum, default_value = "wait")]
    pub sort: ListOrder,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

impl Verb for TopArgs {
    fn connect(&self) -> Option<&ConnectArgs> {
        Some(&self.connect)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        top(self, context.printer).await
    }
}

/// What a task has found out.
enum Found {
    /// The result of an action.
    Said(String),
    Details(Details),
}

/// Shows the locks until a person leaves; returns the exit status.
async fn top(args: TopArgs, printer: &Printer) -> Result<u8, Failure> {
    let root = list_root(args.prefix.as_deref())?;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::new(Code::Usage, "top needs a terminal")
            .hint("lockkeeper list prints the same table; list --json is for programs"));
    }
    let parts = Settings::read(args.connect, printer)?.parts(&root).await?;
    let mut terminal = ratatui::try_init().map_err(|error| Failure::system("cannot use the terminal", error))?;
    let ended = show(&parts, App::new(args.sort), (&mut terminal, *printer)).await;
    ratatui::restore();
    ended
}

async fn show(
    parts: &[Part],
    mut app: App,
    (terminal, printer): (&mut DefaultTerminal, Printer),
) -> Result<u8, Failure> {
    let source = source(parts);
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (told, mut snapshots) = watch::channel(None);
    let (again, woken) = watch::channel(());
    let (found, mut results) = mpsc::unbounded_channel();
    let (unwatched, mut unwatched_now) = watch::channel(false);
    let mut following = std::pin::pin!(follow(parts, &told, woken, || _ = unwatched.send_replace(true)));
    let mut tasks = futures_util::stream::FuturesUnordered::new();
    let mut keys = EventStream::new();
    // The ages grow without a change of the locks.
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut details = None;
    let (mut pace, mut updating) = (Pace::new(), None);
    loop {
        let begun = updating.take().unwrap_or_else(Instant::now);
        let screen = Screen { app: &app, source: &source, details: details.as_ref(), colours, printer };
        terminal.draw(|frame| screen.draw(frame)).map_err(|error| Failure::system("cannot use the terminal", error))?;
        pace.done(begun);
        tokio::select! {
            biased;
            key = keys.next() => {
                let Some(Ok(event)) = key else { return Ok(0) };
                let Event::Key(key) = event else { continue };
                match app.key(key) {
                    Reaction::Quit => return Ok(0),
                    Reaction::Draw => {}
                    Reaction::Ask(task) => {
                        details = None;
                        tasks.push(carry_out(parts, *task, found.clone()));
                    }
                }
                // The table is read again by each action, where no change wakes it.
                if *unwatched_now.borrow() {
                    _ = again.send(());
                }
            }
            Some(()) = tasks.next(), if !tasks.is_empty() => {}
            Some(result) = results.recv() => match result {
                Found::Said(said) => app.said = Some(said),
                Found::Details(found) => details = Some(found),
            },
            changed = async { pace.due().await; snapshots.changed().await } => {
                updating = Some(Instant::now());
                if changed.is_ok() && let Some(snapshot) = snapshots.borrow_and_update().clone() {
                    app.update(snapshot);
                }
            }
            Ok(()) = unwatched_now.changed() => {
                app.said = Some("these servers have no watch of a tree (ZooKeeper 3.6): any key reads again".to_owned());
            }
            () = &mut following => return Ok(0),
            _ = async { pace.due().await; seconds.tick().await } => {}
        }
    }
}

/// `root's own server`; the servers of several realms.
fn source(parts: &[Part]) -> String {
    let names: Vec<_> = parts.iter().map(|part| part.settings.place.to_string()).collect();
    names.join(", ")
}

/// Carries out what a person asked for, and tells the result.
async fn carry_out(parts: &[Part], task: Task, told: mpsc::UnboundedSender<Found>) {
    let result = match task {
        Task::Revoke(target) => Found::Said(
            at(parts, target, async |admin, Target { path, contender, reason }| {
                admin.revoke_node(&path, &contender.node, Some(&reason)).await?;
                Ok(format!("asked {} to release {path}", contender.described))
            })
            .await,
        ),
        Task::Break(target) => Found::Said(
            at(parts, target, async |admin, Target { path, contender, reason }| {
                let broken = admin.evict(&path, &contender, &reason).await?;
                Ok(format!("{} was taken from {}", broken.path, broken.described))
            })
            .await,
        ),
        Task::History(path) => Found::Details(past(parts, &path).await),
        Task::Servers => Found::Details(servers(parts).await),
    };
    // Nobody listens after the last key.
    _ = told.send(result);
}

/// Reads the history of a lock.
async fn past(parts: &[Part], path: &str) -> Details {
    let Some(part) = part_of(parts, path) else { return Details::default() };
    let answer = inquire_of(&part.settings, async |keeper| history::ask(&keeper, path).await).await;
    let Answer { entries, lock, now } = match answer {
        Ok(answer) => answer,
        Err(failure) => return Details { lines: vec![failure.message], ..Details::default() },
    };
    let held = lock.iter().flat_map(|lock| &lock.holders);
    let rows: Vec<_> = held.clone().map(|it| Row::held_now(path, it, now)).chain(entries.iter().map(Row::of)).collect();
    let mut lines = vec!["nothing is recorded about it".to_owned()];
    if !rows.is_empty() {
        lines = pastview::table(rows, false, None).lines().map(|line| strip_str(line).to_string()).collect();
    }
    if let Some(flapping) = Flapping::of(&entries, now) {
        lines.extend(pastview::flapping(&flapping).lines().map(str::to_owned));
    }
    let mut lanes: Vec<Lane> = Vec::new();
    let mut add = |who: String, from, to, lost| match lanes.iter_mut().find(|lane| lane.who == who) {
        Some(lane) => lane.holds.push((from, to, lost)),
        None => lanes.push(Lane { who, holds: vec![(from, to, lost)] }),
    };
    held.filter_map(|it| Some((it, it.granted?)))
        .for_each(|(it, from)| add(lane_of(it.owner.as_ref(), &it.described), from, now, false));
    for hold in entries.iter().filter_map(Entry::hold) {
        add(lane_of(hold.owner.as_ref(), &hold.described), hold.granted, hold.ended, hold.is_loss());
    }
    Details { lines, lanes, now: Some(now) }
}

/// The name of a holder's lane: each run of a command is another process, so the machine and the user name it.
fn lane_of(owner: Option<&Owner>, described: &str) -> String {
    match owner {
        Some(owner) => plain(&format!("{} {}", owner.host, owner.user)),
        None => plain(described),
    }
}

/// Asks each server how it is.
async fn servers(parts: &[Part]) -> Details {
    let mut lines = Vec::new();
    for part in parts {
        let settings = &part.settings;
        let asked = match &settings.place {
            Place::Ensemble(servers) => servers::ask(&settings.builder(), servers, ASKING).await,
            Place::Machine(home) => match home.find() {
                Ok(Some(endpoint)) => servers::ask(&Builder::default(), &endpoint.connect_string(), ASKING).await,
                _ => Ok(Vec::new()),
            },
        };
        match asked {
            Ok(reports) if reports.is_empty() => lines.push(format!("{} does not run", settings.place)),
            Ok(reports) => lines.extend(reports.iter().map(|report| doctor::about(report, &settings.place))),
            Err(error) => lines.push(error.to_string()),
        }
    }
    Details { lines, ..Details::default() }
}

/// Does something at the servers of a lock, and says how it ended.
async fn at(
    parts: &[Part],
    target: Target,
    act: impl AsyncFnOnce(Admin, Target) -> Result<String, lockkeeper::error::AdminError>,
) -> String {
    let Some(part) = part_of(parts, &target.path) else { return format!("{} is in no realm", target.path) };
    match inquire(&part.settings, async |admin| act(admin, target).await).await {
        Ok(said) => said,
        Err(failure) => failure.message,
    }
}

/// Returns the part that has a lock: the one with the longest root.
fn part_of<'a>(parts: &'a [Part], path: &str) -> Option<&'a Part> {
    let has =
        |part: &&Part| part.has(path) && (part.root == "/" || lockkeeper_session::ensemble::is_below(path, &part.root));
    parts.iter().filter(has).max_by_key(|part| part.root.len())
}
