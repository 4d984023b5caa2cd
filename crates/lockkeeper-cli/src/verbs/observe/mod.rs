//! `lockkeeper observe`: what happens to all locks, as metrics, as a page and as a journal.

mod jobs;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, OptionFuture, join_all, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use lockkeeper::Lockkeeper;
use lockkeeper_history::HoldEnd;
use lockkeeper_observe::deadlock::Search;
use lockkeeper_observe::watch::{
    End, GapCause, Journal, Limits, Notice, Observation, ObserveError, Observer, Options, RecordedEnd,
};
use lockkeeper_observe::{http, page};
use lockkeeper_session::text::spell;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::advice::Suggested;
use crate::args::common::Common;
use crate::args::values::Completes;
use crate::exit::{Code, Failure};
use crate::inquiry::connect_running;
use crate::output::Printer;
use crate::place::{Place, realm};
use crate::service::{self, NotifyState};
use crate::settings::{Part, Settings, list_root};
use crate::signals::{STOPPING, Signals};
use crate::statuses::{Status, Statuses, help};
use crate::streams;
use crate::text::{counted, plain};
use crate::verb::{Context, Files, Verb};

/// The exit statuses of `lockkeeper observe`.
const STATUSES: &[Status] = &[
    (Code::Done, "SIGTERM, SIGINT or SIGQUIT has ended it", ""),
    (Code::Usage, "the command line or a setting is wrong", ""),
    (Code::Unreachable, "no server was reachable at the start, in no realm", "later it waits for the servers"),
    (Code::Internal, "it cannot listen, or cannot use the directory of the journal", ""),
    (Code::Refused, "the servers refuse, or are older than ZooKeeper 3.6", ""),
];

/// `lockkeeper observe`.
#[derive(Debug, clap::Args)]
#[command(add = Files(&[("DIR/history.jsonl", "the journal, in the directory of --journal")]))]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
It needs ZooKeeper 3.6 or later, sees foreign clients too, and changes nothing.", "\
Examples:
  lockkeeper observe --servers zk1:2181,zk2:2181 --journal /var/lib/observe
  lockkeeper observe / --listen 0.0.0.0:9750 --allow-remote"))]
pub(crate) struct ObserveArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// Serve HTTP here
    ///
    /// It has a web page, /metrics, /state.json, /history.jsonl and /healthz. Port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9750")]
    pub listen: SocketAddr,
    /// Allow an address that other machines can reach; everyone there can read which locks exist and who holds them
    #[arg(long, hide_short_help = true)]
    pub allow_remote: bool,
    /// Accept this name of the machine in HTTP requests, besides addresses and localhost; can be repeated
    #[arg(long, hide_short_help = true, value_name = "NAME")]
    pub host: Vec<String>,
    /// Write what happens into this directory [default: nowhere]
    ///
    /// The file is history.jsonl. With the older ones, it has at most 256 MiB.
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
    /// Maximum locks, and maximum contenders, that are observed; further ones are left out
    #[arg(long, hide_short_help = true, value_name = "NUMBER", default_value_t = 100_000)]
    pub max_locks: usize,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for ObserveArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    fn takes_a_while(&self) -> bool {
        true
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        observe(self, context.printer).await
    }
}

/// How long the realms that were reached at the start wait for the others, and how long the sessions have to close at the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// A search for deadlocks is not made again before this many times as long as it took.
const SHARE: u32 = 10;

/// Observes until a signal ends it; returns the exit status.
async fn observe(args: ObserveArgs, printer: &Printer) -> Result<u8, Failure> {
    let mut signals = Signals::default();
    signals.add(STOPPING)?;
    let root = list_root(args.prefix.as_deref())?;
    let parts = Settings::read(args.common.connect.clone(), printer)?.parts(&root).await?;
    let listener = listen(&args).await?;
    let journal = args.journal.as_deref().map(Journal::open).transpose();
    let journal = journal.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    let limits = Limits { locks: args.max_locks, contenders: args.max_locks };
    let observation = Observation::new(Options { journal, limits });
    let connected = tokio::select! {
        connected = connect(&parts, printer) => connected?,
        _ = signals.next() => return Ok(0),
    };
    let mut keepers = Vec::new();
    let mut observers = Vec::new();
    for (part, Connected { keeper, is_reached }) in parts.iter().zip(connected) {
        observers.push(observer(&keeper, part, &observation, is_reached)?);
        keepers.push(keeper);
    }
    let address = listener.local_addr().map_err(|error| Failure::system("cannot listen", error))?;
    // The only line of data: the address for clients.
    streams::STDOUT.push(format!("http://{address}\n"));
    // A page is read on other terminals too, so its commands have all options of the place.
    let named = *printer;
    let command = move |words: &[&str]| named.whole_command(&Suggested::new(words));
    let pages = page::router(observation.clone(), command);
    let router = http::guarded(http::router(observation.clone()).merge(pages), args.host.clone());
    let jobs = keepers.iter().zip(&parts).map(|(keeper, part)| jobs::show(keeper, part, &observation).boxed());
    service::tell(&[NotifyState::Ready], printer);
    let ended = tokio::select! {
        failure = select_all(observers) => Err(failure.0),
        served = http::serve(listener, router) => Err(match served {
            Ok(()) => Failure::new(Code::Internal, "the HTTP service has ended"),
            Err(error) => Failure::system("cannot serve HTTP", error),
        }),
        never = print_notices(&observation, printer) => match never {},
        (never, ..) = select_all(jobs) => match never {},
        () = watch_deadlocks(&observation) => Err(Failure::new(Code::Internal, "the search for deadlocks has ended")),
        _ = signals.next() => Ok(0),
    };
    service::tell(&[NotifyState::Stopping], printer);
    observation.stop();
    // The sessions have no nodes. Without an answer they end by themselves.
    _ = timeout(PATIENCE, join_all(keepers.into_iter().map(async |keeper| keeper.close().await))).await;
    ended
}

/// The handle of one part.
struct Connected {
    keeper: Lockkeeper,
    /// Whether it has a session. Otherwise the handle opens one as soon as it can.
    is_reached: bool,
}

/// Opens a session with each part. A realm that cannot be reached is said, and comes later. The others do not wait for it.
///
/// # Errors
/// No part can be reached, or another failure than that.
async fn connect(parts: &[Part], printer: &Printer) -> Result<Vec<Connected>, Failure> {
    let connecting = parts
        .iter()
        .enumerate()
        .map(async |(at, part)| (at, connect_running(&part.settings, &part.settings.builder()).await));
    let mut connecting: FuturesUnordered<_> = connecting.collect();
    let mut connected: Vec<_> = parts.iter().map(|_| None).collect();
    let mut until = None;
    loop {
        let patience = OptionFuture::from(until.map(sleep_until));
        tokio::select! {
            biased;
            answer = connecting.next() => match answer {
                Some((at, keeper)) => {
                    if keeper.is_ok() {
                        until.get_or_insert_with(|| Instant::now() + PATIENCE);
                    }
                    connected[at] = Some(keeper);
                }
                None => break,
            },
            Some(()) = patience => break,
        }
    }
    let is_any_reached = until.is_some();
    let late = |part: &Part, why: String| match (&part.settings.place, &part.realm) {
        (Place::Ensemble(servers), Some((prefix, _))) => {
            let keeper = part.settings.builder().connect_lazy(servers);
            let keeper = keeper.map_err(|error| Failure::from(error).at(&part.settings.place))?;
            printer.note(&format!("{} is not observed until it can be reached: {why}", realm(prefix, servers)));
            Ok(Connected { keeper, is_reached: false })
        }
        _ => Err(Failure::system("cannot observe", why)),
    };
    let all = parts.iter().zip(connected).map(|(part, connected)| match connected {
        Some(Ok(keeper)) => Ok(Connected { keeper, is_reached: true }),
        Some(Err(failure)) if is_any_reached && failure.code == Code::Unreachable => late(part, failure.message),
        Some(Err(failure)) => Err(failure),
        None => late(part, format!("no session in the first {}", spell(PATIENCE))),
    });
    all.collect()
}

/// Opens the address of the HTTP service.
async fn listen(args: &ObserveArgs) -> Result<TcpListener, Failure> {
    if !args.listen.ip().is_loopback() && !args.allow_remote {
        let message = format!("{} can be reached from other machines, and the service has no login", args.listen);
        return Err(Failure::new(Code::Usage, message).hint("listen on 127.0.0.1, or add --allow-remote"));
    }
    TcpListener::bind(args.listen).await.map_err(|error| {
        Failure::new(Code::Internal, format!("cannot listen on {}: {error}", args.listen))
            .hint("choose another address with --listen; port 0 takes a free port")
    })
}

/// Returns the observer of one part of the locks. It resolves only if the part cannot be observed.
fn observer(
    keeper: &Lockkeeper,
    part: &Part,
    observation: &Observation,
    is_reached: bool,
) -> Result<BoxFuture<'static, Failure>, Failure> {
    let place = part.settings.place.clone();
    let observer = Observer::new(keeper, &part.root, part.others(), observation).map_err(unobserved)?;
    let observer = observer.with_records(lockkeeper_history::ROOT, recorded_end);
    if !is_reached {
        observer.begin_unreached();
    }
    let failed = async move {
        match observer.run().await {
            Ok(never) => match never {},
            Err(error) => unobserved(error).at(&place),
        }
    };
    Ok(failed.boxed())
}

/// Reads how the owner of a hold has recorded its end.
pub(crate) fn recorded_end(node: &str, data: &[u8]) -> Option<RecordedEnd> {
    let record = lockkeeper_history::RecordedEnd::read(node, data)?;
    let how = match record.end {
        HoldEnd::Released => End::Released,
        HoldEnd::Revoked => End::Revoked { by: record.why() },
        HoldEnd::Lost => End::Lost { why: record.why() },
        _ => End::Unknown,
    };
    Some(RecordedEnd { path: record.path, owner: record.owner, token: record.token, how })
}

pub(crate) fn unobserved(error: ObserveError) -> Failure {
    match error {
        ObserveError::Misuse(error) => error.into(),
        ObserveError::Session(error) => lockkeeper::Error::from(error).into(),
        error => Failure::new(Code::Refused, error.to_string()),
    }
}

/// Searches for rings of waits after changes. A ring counts if it is there twice, a second apart.
async fn watch_deadlocks(observation: &Observation) {
    let (mut changes, mut search) = (observation.changes(), Search::default());
    loop {
        let begun = Instant::now();
        let lasting = search.lasting(&observation.waited_for());
        let is_settled = search.is_settled(&lasting);
        observation.set_deadlocks(lasting);
        sleep((begun.elapsed() * SHARE).max(Duration::from_secs(1))).await;
        if is_settled && changes.changed().await.is_err() {
            return;
        }
    }
}

/// Prints each notice.
async fn print_notices(observation: &Observation, printer: &Printer) -> Infallible {
    loop {
        printer.note(&text(&observation.next_notice().await));
    }
}

/// One line about a notice.
pub(crate) fn text(notice: &Notice) -> String {
    match notice {
        Notice::Started { root, servers, totals } => {
            let mut text = format!(
                "observing {} on {servers}: {} in use, {} waiting",
                plain(root),
                counted(totals.in_use as u64, "lock"),
                totals.waiters,
            );
            for (count, what) in [(totals.empty, "empty"), (totals.garbage, "nodes without a session")] {
                if count > 0 {
                    text.push_str(&format!(", {count} {what}"));
                }
            }
            if totals.unreadable > 0 {
                text.push_str(&format!("; {} cannot be read", counted(totals.unreadable as u64, "node")));
            }
            text
        }
        Notice::Lost { root, servers, cause } => match cause {
            GapCause::Missed { events } => {
                format!("{events} changes of {} were missed, because this observer was too slow", plain(root))
            }
            GapCause::NotReached => format!("{servers} cannot be reached: changes of {} are not seen", plain(root)),
            _ => format!("the connection to {servers} is lost: changes of {} are not seen", plain(root)),
        },
        Notice::Back { root, gap, .. } => {
            format!("changes of {} are seen again, after a gap of {}", plain(root), spell(*gap))
        }
        Notice::LeftOut { root } => {
            format!("{} has more locks or contenders than --max-locks: some are not observed", plain(root))
        }
        Notice::JournalFailed(error) => format!("the journal cannot be written: {error}"),
        Notice::JournalWorks => "the journal is written again".to_owned(),
        _ => String::new(),
    }
}
