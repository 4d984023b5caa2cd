//! `lockkeeper requests`, `approve`, `reject`: decide whether a requestor takes a leased lock from an owner that has
//! not cleaned up in time.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use lockkeeper::error::{AdminError, misuse};
use lockkeeper_helix::{
    Decision, DecisionRecord, EmergencyRecord, HelixAdmin, LeaseError, TransferFacts, TransferRequest,
};
use lockkeeper_session::text::spell;
use serde::Serialize;

use crate::advice::Suggested;
use crate::args::common::Common;
use crate::args::values::Completes;
use crate::exit::{Code, Failure};
use crate::inquiry::inquire_of;
use crate::liveline::whole;
use crate::output::{self, Printer};
use crate::realms::ask_each;
use crate::screen::{INDENT, wrapped_for_stdout};
use crate::settings::{Part, Settings, list_root, lock_path};
use crate::statuses::{Status, Statuses, help};
use crate::text::{moment, plain};
use crate::verb::{Context, Verb};
use crate::views::{ByView, FactsView};

/// The exit statuses of `lockkeeper requests`.
const STATUSES: &[Status] = &[
    (Code::Done, "decided", ""),
    (Code::NoSuchLock, "no such decision is pending", ""),
    (Code::Declined, "the request was decided before", ""),
    (Code::Usage, "several requests are pending: choose one with --id; or no reason", ""),
];

/// `lockkeeper requests`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "lockkeeper requests [PREFIX] [OPTIONS]\n       lockkeeper requests <VERB>",
    after_help = "\
Examples:
  lockkeeper requests
  lockkeeper requests team --decided"
)]
pub(crate) struct RequestsArgs {
    /// A decision.
    #[command(subcommand)]
    pub verb: Option<RequestsVerb>,
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// List the latest decisions and uses of --emergency instead, with their authors and reasons, the oldest first
    #[arg(long)]
    pub decided: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

/// What to do with a request.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum RequestsVerb {
    /// Decide that a leased lock is taken from its owner by force
    Approve(DecideArgs),
    /// Decide that the owner keeps a leased lock
    Reject(DecideArgs),
}

impl Verb for RequestsArgs {
    fn common(&self) -> Option<&Common> {
        match &self.verb {
            Some(RequestsVerb::Approve(args) | RequestsVerb::Reject(args)) => Some(&args.common),
            None => Some(&self.common),
        }
    }

    async fn obey(mut self, context: Context<'_>) -> Result<u8, Failure> {
        match self.verb.take() {
            Some(RequestsVerb::Approve(args)) => decide(args, true, context.printer).await,
            Some(RequestsVerb::Reject(args)) => decide(args, false, context.printer).await,
            None => requests(self, context.printer).await,
        }
    }
}

/// `lockkeeper requests approve` and `lockkeeper requests reject`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
The first answer counts. After an approval, the requestor takes the lock while its owner may still be at work: only a resource that \
checks LOCKKEEPER_TOKEN is safe then. To see earlier decisions: lockkeeper requests --decided.", "\
Examples:
  lockkeeper requests approve nightly --reason 'the owner hangs'
  lockkeeper requests reject nightly --reason 'the owner is nearly done'"))]
pub(crate) struct DecideArgs {
    /// The lock
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Record this reason; not empty, at most 1024 bytes
    #[arg(long, short, value_name = "TEXT")]
    pub reason: String,
    /// Decide this request, as requests prints it [default: the only one]
    #[arg(long, hide_short_help = true, value_name = "ID")]
    pub id: Option<String>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

/// The column of the values of an open decision.
const VALUES: usize = 12;

#[derive(Serialize)]
struct RequestsView<'a> {
    requests: Vec<WaitingView<'a>>,
}

#[derive(Serialize)]
struct DecisionsView<'a> {
    decisions: Vec<DecisionView<'a>>,
    emergencies: Vec<EmergencyView<'a>>,
}

/// Lists open decisions, or past ones; returns the exit status.
async fn requests(args: RequestsArgs, printer: &Printer) -> Result<u8, Failure> {
    let root = list_root(args.prefix.as_deref())?;
    let parts = Settings::read(args.common.connect, printer)?.parts(&root).await?;
    if args.decided {
        return list_decided(&parts, &root, printer).await;
    }
    let answers = ask_each(&parts, printer, async |part| {
        let printer = printer.at(&part.settings.place);
        let asked = async |keeper| HelixAdmin::new(&keeper).requests(&part.root).await;
        Ok((inquire_of(&part.settings, asked).await?, printer))
    })
    .await?;
    let source = answers.source();
    let waiting = answers.from.iter().flat_map(|(part, (waiting, printer))| {
        waiting.iter().filter(|request| part.has(&request.facts.path)).map(move |request| (request, printer))
    });
    let waiting: Vec<_> = waiting.collect();
    if printer.is_json() {
        let requests = waiting.iter().map(|(request, _)| WaitingView::of(request)).collect();
        output::answer(&source, &RequestsView { requests })?;
    } else if waiting.is_empty() {
        printer.note(&format!("no decision is open about locks at or below {root} on {source}"));
    } else {
        printer.scope(&source);
        output::data(&waiting.iter().map(|(request, printer)| described(request, printer)).collect::<String>())?;
    }
    answers.end(0, printer)
}

/// Lists past decisions and emergencies; returns the exit status.
async fn list_decided(parts: &[Part], root: &str, printer: &Printer) -> Result<u8, Failure> {
    let answers = ask_each(parts, printer, async |part| {
        inquire_of(&part.settings, async |keeper| {
            let admin = HelixAdmin::new(&keeper);
            Ok::<_, AdminError>((admin.decisions(&part.root).await?, admin.emergencies(&part.root).await?))
        })
        .await
    })
    .await?;
    let source = answers.source();
    let (mut decided, mut emergencies) = (Vec::new(), Vec::new());
    for (part, (decisions, requested)) in &answers.from {
        decided.extend(decisions.iter().filter(|decided| part.has(&decided.facts.path)));
        emergencies.extend(requested.iter().filter(|emergency| part.has(&emergency.path)));
    }
    if printer.is_json() {
        output::answer(
            &source,
            &DecisionsView {
                decisions: decided.into_iter().map(DecisionView::of).collect(),
                emergencies: emergencies.into_iter().map(EmergencyView::of).collect(),
            },
        )?;
    } else if decided.is_empty() && emergencies.is_empty() {
        printer.note(&format!(
            "no decision and no emergency was recorded recently about locks at or below {root} on {source}"
        ));
    } else {
        printer.scope(&source);
        let decided = decided.into_iter().map(|decided| (decided.at, decision_line(decided)));
        let emergencies = emergencies.into_iter().map(|emergency| (emergency.at, emergency_line(emergency)));
        let mut lines: Vec<_> = decided.chain(emergencies).collect();
        lines.sort_by_key(|(at, _)| *at);
        output::lines(&lines.iter().map(|(_, line)| format!("{line}\n")).collect::<String>(), INDENT)?;
    }
    answers.end(0, printer)
}

/// Records a decision; returns the exit status.
async fn decide(args: DecideArgs, approve: bool, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    if args.reason.trim().is_empty() {
        return Err(misuse::no_reason(&path).into());
    }
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let (at, id) = (path.clone(), args.id.clone());
    let asking = inquire_of(&settings, async move |keeper| {
        let admin = HelixAdmin::new(&keeper);
        let mut waiting = admin.requests(&at).await?;
        waiting.retain(|request| request.facts.path == at && id.as_ref().is_none_or(|id| *id == request.id));
        let [request] = &waiting[..] else { return Ok(Err((waiting, id))) };
        // The command itself decides, not on behalf of another.
        let (by, reason) = (String::new(), args.reason);
        let decision = if approve { Decision::Approve { by, reason } } else { Decision::Reject { by, reason } };
        admin.decide(request, decision).await.map(Ok)
    });
    let decided = match asking.await? {
        Ok(decided) => decided,
        Err((waiting, id)) if waiting.is_empty() => {
            let none: Failure = LeaseError::NoSuchRequest { path, id }.into();
            return Err(none.scoped(&settings.place));
        }
        Err((waiting, _)) => {
            let ids: Vec<_> = waiting.iter().map(|request| request.id.as_str()).collect();
            let problem = format!("{} decisions about {path} are open: {}", waiting.len(), ids.join(", "));
            return Err(Failure::new(Code::Usage, problem)
                .hint("choose one with --id")
                .advise("see them", Suggested::new(["requests", &path])));
        }
    };
    if printer.is_json() {
        output::answer(&settings.place, &DecisionView::of(&decided))?;
    } else {
        let TransferFacts { path, owner, requestor, .. } = &decided.facts;
        let on = printer.at(&settings.place).on_place();
        printer.note(&match approve {
            true => format!("{path}: {requestor} takes it from {owner}{on}"),
            false => format!("{path}: {owner} keeps it{on}"),
        });
    }
    Ok(0)
}

/// The facts of a request, and the commands that decide it.
fn described(request: &TransferRequest, printer: &Printer) -> String {
    let facts = &request.facts;
    let left = request.until.duration_since(SystemTime::now()).unwrap_or_default();
    let spelled = |ms| spell(Duration::from_millis(ms));
    let mut text = plain(&facts.path) + "\n";
    for (name, value) in [
        ("owner", with_reason(&facts.owner, facts.owner_priority, facts.owner_message.as_deref())),
        ("cleanup", format!("{} of {}", spelled(facts.elapsed_ms), spelled(facts.allotted_ms))),
        ("wanted by", with_reason(&facts.requestor, facts.requestor_priority, facts.requestor_message.as_deref())),
        ("from", request.by.to_string()),
        ("asked", format!("at {}", moment(request.since))),
        ("until", format!("{}, in {}; no answer is a no", moment(request.until), whole(left))),
        ("id", request.id.clone()),
    ] {
        // Writing to a string never fails.
        _ = writeln!(text, "  {name:<9} {}", plain(&value));
    }
    let decide =
        |(what, verb)| (what, Suggested::new(["requests", verb, &facts.path, "--id", &request.id, "--reason", "WHY"]));
    let actions = [("transfer the lock", "approve"), ("keep its owner", "reject")].map(decide);
    wrapped_for_stdout(&text, VALUES) + &printer.actions(&actions)
}

/// `batch-7 with priority 1 (nightly index)`
fn with_reason(id: &str, priority: i32, message: Option<&str>) -> String {
    let because = message.map(|message| format!(" ({message})")).unwrap_or_default();
    format!("{id} with priority {priority}{because}")
}

/// `2026-11-20 10:42:03  /locks/a  online-1 may take it from batch-7, says op@desk (pid 7): its host is gone`
fn decision_line(decided: &DecisionRecord) -> String {
    let at = to_the_second(decided.at);
    let TransferFacts { path, owner, requestor, .. } = &decided.facts;
    let may = if decided.approved { "may take it from" } else { "may not take it from" };
    let says = match (&decided.on_behalf_of, decided.by_rule) {
        (Some(rule), true) => format!("rule {rule:?} of {}{}", decided.by, decided.proof),
        (Some(who), false) => format!("{who}, asked by {}{}", decided.by, decided.proof),
        (None, _) => format!("{}{}", decided.by, decided.proof),
    };
    plain(&format!("{at}  {path}  {requestor} {may} {owner}, says {says}: {}", decided.reason))
}

/// `2026-11-20 10:42:03  /locks/a  online-1 requested it in an emergency, says op@desk (pid 7): the index is corrupt`
fn emergency_line(emergency: &EmergencyRecord) -> String {
    let EmergencyRecord { path, requestor, by, proof, reason, .. } = emergency;
    let at = to_the_second(emergency.at);
    plain(&format!("{at}  {path}  {requestor} requested it in an emergency, says {by}{proof}: {reason}"))
}

fn to_the_second(time: SystemTime) -> String {
    let at = Timestamp::try_from(time).map(|at| at.to_zoned(TimeZone::system()));
    at.map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// An open decision, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct WaitingView<'a> {
    id: &'a str,
    #[serde(flatten)]
    facts: FactsView<'a>,
    by: ByView<'a>,
    since_ms: i64,
    until_ms: i64,
}

/// A decision, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct DecisionView<'a> {
    #[serde(flatten)]
    facts: FactsView<'a>,
    approved: bool,
    by: ByView<'a>,
    by_rule: bool,
    on_behalf_of: Option<&'a str>,
    why: &'a str,
    at_ms: i64,
}

/// A request with the emergency priority, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct EmergencyView<'a> {
    path: &'a str,
    requestor: &'a str,
    message: Option<&'a str>,
    by: ByView<'a>,
    why: &'a str,
    at_ms: i64,
}

impl<'a> EmergencyView<'a> {
    fn of(emergency: &'a EmergencyRecord) -> Self {
        EmergencyView {
            path: &emergency.path,
            requestor: &emergency.requestor,
            message: emergency.message.as_deref(),
            by: ByView::proved(&emergency.by, emergency.proof),
            why: &emergency.reason,
            at_ms: millis(emergency.at),
        }
    }
}

fn millis(time: SystemTime) -> i64 {
    Timestamp::try_from(time).map_or(0, Timestamp::as_millisecond)
}

impl<'a> WaitingView<'a> {
    fn of(request: &'a TransferRequest) -> Self {
        WaitingView {
            id: &request.id,
            facts: FactsView::of(&request.facts),
            by: ByView::of(&request.by),
            since_ms: millis(request.since),
            until_ms: millis(request.until),
        }
    }
}

impl<'a> DecisionView<'a> {
    fn of(decided: &'a DecisionRecord) -> Self {
        DecisionView {
            facts: FactsView::of(&decided.facts),
            approved: decided.approved,
            by: ByView::proved(&decided.by, decided.proof),
            by_rule: decided.by_rule,
            on_behalf_of: decided.on_behalf_of.as_deref(),
            why: &decided.reason,
            at_ms: millis(decided.at),
        }
    }
}
