//! What `lockkeeper doctor` finds: pure functions from what was seen to findings. A new kind of trouble is a new function here, and a
//! line in [`all`].

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use lockkeeper::admin::{ContenderInfo, LockInfo, SessionId};
use lockkeeper_gc::Leftovers;
use lockkeeper_helix::TransferRequest;
use lockkeeper_history::{Flapping, Habits};
use lockkeeper_jobs::JobStatus;
use lockkeeper_observe::deadlock::{Certainty, Deadlock};
use lockkeeper_observe::servers::{Limits, ServerMode, ServerReport, ServerState};
use lockkeeper_observe::table::{LockRow, RowState};
use lockkeeper_session::text::spell;
use serde::Serialize;

use crate::advice::Suggested;
use crate::jobsview::{Health, JobView, Requests};
use crate::liveline::whole;
use crate::table::recorded;
use crate::text::{counted, moment, plain, revocation, who};

/// A session timeout from this one on is taken for five ticks of the servers, unless they grant more than requested.
const TRUSTED: Duration = Duration::from_secs(10);

/// How bad it is. A finding that is serious stops locks, or will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    Notice,
    Serious,
}

/// The part of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Section {
    Servers,
    Clock,
    Scope,
    Locks,
    Left,
    Jobs,
}

/// Something that a person should know, and the command that handles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub section: Section,
    pub severity: Severity,
    pub text: String,
    pub command: Option<Suggested>,
}

impl Finding {
    fn notice(section: Section, text: impl Into<String>) -> Self {
        Finding { section, severity: Severity::Notice, text: text.into(), command: None }
    }

    pub(crate) fn serious(section: Section, text: impl Into<String>) -> Self {
        Finding { severity: Severity::Serious, ..Finding::notice(section, text) }
    }

    fn with(self, command: Suggested) -> Self {
        Finding { command: Some(command), ..self }
    }
}

/// An empty node is no leftover before it was unused for this long: another contender may be about to come.
pub(crate) const UNUSED: Duration = Duration::from_secs(24 * 3600);

/// How many empty nodes are reported: each costs a listing of all locks two reads.
const MANY: usize = 1000;

/// Servers are said to be slow from this time on.
const SLOW: Duration = Duration::from_secs(1);

/// A smaller difference between the clocks is not reported.
const TOLERATED: Duration = Duration::from_secs(2);

/// How the servers' clock differs from this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Apart {
    /// It is ahead by at least this time.
    Ahead(Duration),
    /// It is behind by at least this time.
    Behind(Duration),
    /// They differ by no more than the answer took.
    Within(Duration),
}

impl Apart {
    /// The servers' clock showed `servers` in whole milliseconds, at some moment between two moments of this machine's.
    pub(crate) fn of(sent: SystemTime, servers: SystemTime, heard: SystemTime) -> Self {
        match (servers.duration_since(heard), sent.duration_since(servers + Duration::from_millis(1))) {
            (Ok(ahead), _) => Apart::Ahead(ahead),
            (_, Ok(behind)) => Apart::Behind(behind),
            _ => Apart::Within(heard.duration_since(sent).unwrap_or_default()),
        }
    }

    /// Whether it is reported.
    pub(crate) fn is_far(self) -> bool {
        match self {
            Apart::Ahead(by) | Apart::Behind(by) => by > TOLERATED,
            Apart::Within(_) => false,
        }
    }

    /// Returns the difference in milliseconds.
    pub(crate) fn ms(self) -> i64 {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        match self {
            Apart::Ahead(by) => ms(by),
            Apart::Behind(by) => -ms(by),
            Apart::Within(_) => 0,
        }
    }

    /// `the servers' clock is 5 min ahead of this machine's`
    pub(crate) fn text(self) -> String {
        match self {
            Apart::Ahead(by) => format!("the servers' clock is {} ahead of this machine's", spell(by)),
            Apart::Behind(by) => format!("the servers' clock is {} behind this machine's", spell(by)),
            Apart::Within(took) => format!("the servers' clock and this machine's agree to {}", spell(took)),
        }
    }
}

/// How long the servers took. What is missing was not measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// How long it took to open a session, or until an attempt ended that no server accepted.
    pub session: Option<Duration>,
    /// How long the session took for a write, which the leader orders.
    pub write: Option<Duration>,
}

/// What was seen of one place: an ensemble, or a server of this machine. What is missing was not seen.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Where locks were looked for.
    pub root: String,
    pub servers: Vec<ServerReport>,
    /// The session timeout that they grant to this client.
    pub session_timeout: Option<Duration>,
    pub times: Times,
    /// The servers that do not list their connections, if a holder has a session.
    pub without_cons: Vec<String>,
    /// The sessions of holders that no server has a connection to.
    pub unconnected: Vec<SessionId>,
    /// Why nothing else was seen.
    pub no_session: Option<(String, Option<Suggested>)>,
    pub clock: Option<Apart>,
    pub locks: Option<Vec<LockInfo>>,
    /// The names of locks that are also in use on this user's own server, and its directory.
    pub also: Option<(Vec<String>, Suggested)>,
    /// The deadlocks among them.
    pub deadlocks: Vec<Deadlock>,
    /// What the records of a lock show.
    pub habits: HashMap<String, Habits>,
    pub left: Option<Leftovers>,
    /// The jobs, with the servers' time.
    pub jobs: Option<(Vec<JobStatus>, i64)>,
    /// What is known of the requests for each job that does not run.
    pub asked: HashMap<String, Requests>,
    pub requests: Vec<TransferRequest>,
    /// The number of dead letters of this user that wait, and the command that lists them.
    pub letters: Option<(usize, Suggested)>,
    /// The servers' time, as far as it is known.
    pub now: Option<SystemTime>,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
}

/// Returns all findings, in the order of the screen.
pub(crate) fn all(facts: &Facts, late: Option<Duration>) -> Vec<Finding> {
    let mut found = servers(&facts.servers, facts.times);
    found.extend(slow(&facts.servers, facts.times));
    found.extend(facts.session_timeout.and_then(|timeout| few_ticks(&facts.servers, timeout)));
    if let Some((why, command)) = &facts.no_session {
        found.push(Finding { command: command.clone(), ..Finding::serious(Section::Servers, plain(why)) });
    }
    found.extend(facts.clock.and_then(clock));
    found.extend(facts.also.as_ref().and_then(|(names, list)| also(names, list)));
    found.extend(facts.deadlocks.iter().filter_map(|it| deadlock(it, &facts.root)));
    for lock in facts.locks.iter().flatten() {
        found.extend(about(lock, facts.now));
        found.extend(unconnected(lock, &facts.unconnected));
        let habits = facts.habits.get(&lock.path);
        found.extend(long(&LockRow::of(lock, facts.now, recorded(habits), &[])));
        let flapping = habits.and_then(|habits| habits.flapping.as_ref());
        found.extend(flapping.map(|it| flaps(&lock.path, it)));
    }
    if !facts.requests.is_empty() {
        let open = counted(facts.requests.len() as u64, "decision");
        let finding = Finding::notice(Section::Locks, format!("{open} pending about leased locks"));
        found.push(finding.with(Suggested::new(["requests", "/"])));
    }
    found.extend(facts.left.as_ref().into_iter().flat_map(|left| leftovers(left, &facts.root)));
    if let Some((count, list)) = facts.letters.as_ref().filter(|(count, _)| *count > 0) {
        let letters = counted(*count as u64, "dead letter");
        let text = format!("{letters} of this user, of commands that never got their lock");
        found.push(Finding::notice(Section::Left, text).with(list.clone()));
    }
    if let Some((jobs, now_ms)) = &facts.jobs {
        let view = |status| JobView::of(status, *now_ms, late);
        found.extend(jobs.iter().filter_map(|status| job(&view(status).with_requests(facts.asked.get(&status.path)))));
    }
    // The same severity in the order in which they were found.
    found.sort_by_key(|finding| (finding.section, std::cmp::Reverse(finding.severity)));
    found
}

/// Returns the end of a sentence about a server that serves no clients; `None` if it does, or if that is not known.
pub(crate) fn problem(state: &ServerState) -> Option<String> {
    Some(match state {
        ServerState::Serves(vitals) if vitals.mode == Some(ServerMode::ReadOnly) => {
            "is cut off from the other servers, and answers stale reads only".to_owned()
        }
        ServerState::Serves(_) | ServerState::NotAllowed => return None,
        ServerState::NoMajority => "runs and serves nobody: it has no majority of the servers, or has just started".to_owned(),
        ServerState::Refuses => "refuses connections: nothing listens there".to_owned(),
        ServerState::NotResolved { problem } | ServerState::NotReached { problem } => plain(problem),
        ServerState::Closes => {
            "closes connections at once: it has as many from this address as its limit allows, is stopping, or is no ZooKeeper server"
                .to_owned()
        }
        ServerState::NeedsTls => "has a port for TLS there, and this client has no TLS (--tls-ca)".to_owned(),
        ServerState::Silent => "accepts connections and does not answer".to_owned(),
        ServerState::Unknown { answer } => format!("is no ZooKeeper server: it answers {}", plain(answer)),
        _ => "is in an unknown state".to_owned(),
    })
}

/// Servers that serve, and take seconds.
fn slow(reports: &[ServerReport], times: Times) -> Option<Finding> {
    let write = times.write.filter(|time| *time >= SLOW)?;
    let (answer, which) = if reports.len() > 1 { ("answer", "these servers") } else { ("answers", "this server") };
    let text = format!("{which} {answer} slowly: a write took {}, and each grant needs one", spell(write));
    Some(Finding::notice(Section::Servers, text))
}

/// What the servers say of themselves, and what follows for a majority.
fn servers(reports: &[ServerReport], times: Times) -> Vec<Finding> {
    let name = |report: &ServerReport| plain(&report.name);
    let mode = |report: &ServerReport| report.state.vitals().and_then(|vitals| vitals.mode);
    let of = |wanted: ServerMode| reports.iter().filter(move |report| mode(report) == Some(wanted));
    let mut found = Vec::new();
    // Clients choose any of the servers, so these have different locks.
    let (alone, leaders) = (of(ServerMode::Standalone).count(), of(ServerMode::Leader).count());
    let (leads, follows) = (leaders > 0, of(ServerMode::Follower).count() > 0);
    if alone > 1 || leaders > 1 || (alone == 1 && (leads || follows)) {
        let several: Vec<_> = [ServerMode::Standalone, ServerMode::Leader].into_iter().flat_map(of).map(name).collect();
        found.push(Finding::serious(
            Section::Servers,
            format!("{} are not of one ensemble, so clients have different locks of the same name", several.join(", ")),
        ));
    }
    let members = reports.iter().filter_map(|report| report.limits.as_ref()).max_by_key(|limits| limits.members.len());
    let (strangers, down): (Vec<_>, Vec<_>) = reports
        .iter()
        .filter_map(|report| Some((report, problem(&report.state)?)))
        .partition(|(report, _)| members.is_some_and(|members| is_no_member(report, members)));
    for (report, problem) in &strangers {
        let listed: Vec<_> =
            members.iter().flat_map(|limits| &limits.members).map(|member| plain(&member.host)).collect();
        let text = format!(
            "{} {problem}; the ensemble lists no such member, only {}: correct --servers",
            name(report),
            listed.join(", ")
        );
        found.push(Finding::notice(Section::Servers, text));
    }
    // The leader may be a server that the connect string does not name; without one, no session opens.
    let is_leaderless = follows && !leads && times.session.is_some_and(|time| time >= SLOW);
    if is_leaderless {
        let text = match (times.write, times.session) {
            (Some(_), Some(waited)) => {
                format!("no leader among the servers that answered: a session was opened only after {}", spell(waited))
            }
            _ => "no leader among the servers that answer: no lock is granted now".to_owned(),
        };
        found.push(Finding::serious(Section::Servers, text));
    }
    let told = reports.iter().filter_map(|report| report.limits.as_ref()?.voters).max();
    // Without a membership, the servers of the connect string are taken for all.
    let named = reports.len() - strangers.len() - of(ServerMode::Observer).count();
    let voters = told.unwrap_or(named);
    // With those that say nothing, and those that the connect string does not name.
    let maybe_up = named - down.len() + voters.saturating_sub(named);
    let majority = voters / 2 + 1;
    let is_ensemble = reports.len() > 1 && alone == 0;
    let consequence = match is_ensemble {
        true if down.len() < reports.len() - strangers.len() && maybe_up < majority => ": no majority is left",
        true if maybe_up == majority && !is_leaderless => ": one more failure stops every lock",
        _ => "",
    };
    let is_spare = is_ensemble && maybe_up > majority;
    let severity = if is_spare { Severity::Notice } else { Severity::Serious };
    let findings = down.into_iter().map(|(report, problem)| Finding {
        severity,
        ..Finding::notice(Section::Servers, format!("{} {problem}{consequence}", name(report)))
    });
    found.extend(findings);
    found
}

/// Whether this server is surely none of these members: its name leads to no address and none of them has it, or none of those with its
/// name has its port.
fn is_no_member(report: &ServerReport, members: &Limits) -> bool {
    let Some((host, port)) = report.name.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)))
    else {
        return false;
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let has_host = members.members.iter().any(|member| member.host.eq_ignore_ascii_case(host));
    let is_nowhere = matches!(report.state, ServerState::NotResolved { .. });
    (has_host || is_nowhere) && members.lists(host, port) == Some(false)
}

/// A session timeout of fewer than five ticks of servers that have followers.
fn few_ticks(reports: &[ServerReport], timeout: Duration) -> Option<Finding> {
    let is_alone =
        |report: &ServerReport| report.state.vitals().is_some_and(|vitals| vitals.mode == Some(ServerMode::Standalone));
    let ticks = reports.iter().filter(|report| !is_alone(report)).filter_map(|report| report.limits.as_ref()?.tick_ms);
    let tick = Duration::from_millis(ticks.max()?);
    let enough = tick.checked_mul(5).filter(|enough| timeout < *enough)?;
    let (enough, is_trusted_for_less) = (enough.max(TRUSTED), timeout < TRUSTED);
    let consequence = match is_trusted_for_less {
        true => format!("so holds are trusted for 0.64 of it; from {} on, they are trusted for 0.74", spell(enough)),
        false => {
            format!("so a holder that is cut off may work on while the next one holds; use {} or more", spell(enough))
        }
    };
    let text = format!(
        "the session timeout of {} is shorter than five ticks of the servers (tickTime {}), {consequence}",
        spell(timeout),
        spell(tick)
    );
    let severity = if is_trusted_for_less { Severity::Notice } else { Severity::Serious };
    Some(Finding { severity, ..Finding::notice(Section::Servers, text) })
}

fn clock(apart: Apart) -> Option<Finding> {
    let text = || format!("{}: correct the one that is wrong", apart.text());
    apart.is_far().then(|| Finding::notice(Section::Clock, text()))
}

fn also(names: &[String], list: &Suggested) -> Option<Finding> {
    let first = names.first()?;
    let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
    let text = format!("also in use on this user's own server, as other locks: {}{more}", plain(first));
    Some(Finding::notice(Section::Scope, text).with(list.clone()))
}

/// A ring of waits. One that is only possible is no finding: processes with several threads have such rings all the time.
fn deadlock(deadlock: &Deadlock, root: &str) -> Option<Finding> {
    let command = Suggested::new(["deadlocks", root]);
    let finding = |what: &str| Finding::notice(Section::Locks, format!("{what}: {deadlock}")).with(command.clone());
    match deadlock.certainty {
        Certainty::Certain => Some(Finding { severity: Severity::Serious, ..finding("deadlock") }),
        Certainty::Likely => Some(finding("likely a deadlock")),
        _ => None,
    }
}

/// A hold that takes much longer than usual.
fn long(row: &LockRow<'_>) -> Option<Finding> {
    let is_long = row.states.iter().any(|state| matches!(state, RowState::Long { .. }));
    let (held, usual) = row.held.zip(row.usual).filter(|_| is_long)?;
    let least = if held.known().is_none() { "at least " } else { "" };
    let time = whole(held.at_least);
    let text = format!("{}: held for {least}{time}, usually {}", plain(&row.lock.path), spell(usual));
    Some(Finding::notice(Section::Locks, text).with(Suggested::new(["why", &row.lock.path])))
}

/// A lock that changes hands because its holders lose it.
fn flaps(path: &str, Flapping { changes, losses, .. }: &Flapping) -> Finding {
    let holds = counted(*changes as u64, "hold");
    let text = format!("{}: flaps: {losses} of its {holds} of the last hour were lost", plain(path));
    Finding::notice(Section::Locks, text).with(Suggested::new(["history", path]))
}

/// What is wrong with a lock.
fn about(lock: &LockInfo, now: Option<SystemTime>) -> Vec<Finding> {
    let (path, mut found) = (plain(&lock.path), Vec::new());
    let notice = |text: String| Finding::notice(Section::Locks, text);
    let why = || Suggested::new(["why", &lock.path]);
    let blocked = lock.waiters.iter().find_map(|waiter| Some((waiter, waiter.blocked_by.as_deref()?)));
    if let Some((waiter, node)) = blocked {
        let text =
            format!("{path}: {}, a foreign client, waits behind {}, which has no session", who(waiter), plain(node));
        found.push(Finding::serious(Section::Locks, text).with(Suggested::new([
            "admin",
            "gc",
            lock.path.as_str(),
            "--garbage",
        ])));
    } else if !lock.sessionless.is_empty() {
        let count = counted(lock.sessionless.len() as u64, "node");
        let text = format!("{path}: {count} of a contender, without a session: foreign clients would wait behind it");
        found.push(notice(text).with(Suggested::new(["admin", "gc", lock.path.as_str(), "--garbage"])));
    }
    for holder in &lock.holders {
        if holder.abandoned {
            if !lock.waiters.is_empty() {
                let text = format!("{path}: the hold of {} was lost, and its lock delay runs", described(holder));
                found.push(notice(text).with(why()));
            }
        } else if holder.process_has_ended() {
            let text = format!("{path}: the process of {} has ended, and its session not yet", described(holder));
            let node = holder.node_path(&lock.path);
            let take = ["break", &lock.path, "--node", &node, "--reason", "WHY"];
            found.push(notice(text).with(Suggested::new(take)));
        } else if let Some(request) = &holder.revocation {
            let text =
                format!("{path}: {} was {}, and holds on", described(holder), revocation(&crate::text::brief(request)));
            found.push(notice(text).with(why()));
        }
    }
    let over = lock.lease.as_ref().filter(|lease| lease.owner.is_some()).and_then(|lease| lease.until);
    if let Some(over) = over.and_then(|until| now?.duration_since(until).ok()).filter(|over| *over > TOLERATED) {
        let owner = lock.holders.first().map_or_else(String::new, described);
        let text = format!("{path}: the lease of {owner} ended {} ago, and was not released", whole(over));
        found.push(notice(text).with(why()));
    }
    found
}

/// Holders whose clients no server hears, on other machines than this one.
fn unconnected(lock: &LockInfo, sessions: &[SessionId]) -> Vec<Finding> {
    let is_gone = |holder: &&ContenderInfo| !holder.process_has_ended() && sessions.contains(&holder.session);
    let text = |holder: &ContenderInfo| {
        let (path, who) = (plain(&lock.path), described(holder));
        format!(
            "{path}: no server is connected to {who}, whose machine or network may be down; its session ends by its timeout"
        )
    };
    let finding = |holder| Finding::notice(Section::Locks, text(holder)).with(Suggested::new(["why", &lock.path]));
    lock.holders.iter().filter(is_gone).map(finding).collect()
}

fn described(contender: &ContenderInfo) -> String {
    plain(&crate::text::described(contender))
}

/// What is left of locks. `about` finds nodes without a session.
fn leftovers(left: &Leftovers, root: &str) -> Vec<Finding> {
    let empty = left.nodes.iter().filter(|node| node.is_unused(left.now_ms, UNUSED)).count();
    let overdue = left.nodes.iter().filter(|node| node.is_overdue(left.now_ms)).count();
    let gc = |option| Suggested::new(["admin", "gc", root, option]);
    let mut found = Vec::new();
    if empty >= MANY {
        let text = format!("{empty} empty nodes: each costs a listing of the locks two reads");
        found.push(Finding::notice(Section::Left, text).with(gc("--empty")));
    }
    if overdue > 0 {
        let text = format!("{} past the lock delay: the next contender waits", counted(overdue as u64, "tombstone"));
        found.push(Finding::notice(Section::Left, text).with(gc("--tombstones")));
    }
    found
}

/// A job that is not in order, whose last requests were refused, so that it did not run since, or whose pause has no end.
fn job(view: &JobView<'_>) -> Option<Finding> {
    let severity = match view.health() {
        Health::InOrder | Health::Late => Severity::Notice,
        Health::Failed => Severity::Serious,
    };
    let path = &view.job.path;
    let command = match (view.health(), view.refused) {
        (Health::InOrder, None) if view.is_paused_without_end() => Suggested::new(["jobs", "resume", path]),
        (Health::InOrder, None) => return None,
        (Health::InOrder | Health::Late, Some(refusal)) => Suggested::new(["why", path, "--at", &moment(refusal.last)]),
        _ => Suggested::new(["jobs", path, "--history"]),
    };
    Some(Finding { severity, ..Finding::notice(Section::Jobs, view.line()).with(command) })
}

#[cfg(test)]
mod tests;
