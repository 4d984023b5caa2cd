//! What is printed: for people or for machines, data on stdout and everything else on stderr.
//!
//! Messages, owners and node names are other people's text. Nothing of it reaches a terminal unescaped, or anyone who may
//! write to a lock's node could move the cursor, retitle the window or fake a line.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use lockkeeper::{Broken, ContenderInfo, LeaseInfo, LockInfo, Owner, RequestorInfo, Revocation};
use serde::Serialize;

use crate::advice::{PlaceOption, Suggested};
use crate::exit::{Code, Failure};
use crate::place::Place;
use crate::streams::STDERR;

/// Prints for people or for machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    json: bool,
    timed: bool,
    /// The options that say where the locks are, for the commands that are printed.
    place: &'static [PlaceOption],
    /// Where the locks are, once that is known.
    scope: Option<&'static ScopeView>,
}

/// An event, where the locks are, and the time, as far as the line has them.
#[derive(Serialize)]
struct Timed<'a> {
    #[serde(flatten)]
    event: &'a Event<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a ScopeView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Note { message: &'a str },
    Waiting { message: &'a str, lock: LockView<'a>, ahead: usize },
    Asked { message: &'a str, path: &'a str, request: RequestView<'a>, signal: Option<&'a str> },
    Error { exit_code: u8, message: &'a str, hint: Option<String>, commands: Vec<String> },
}

impl Printer {
    /// One or the other.
    pub(crate) const fn new(json: bool) -> Self {
        Printer { json, timed: false, place: &[], scope: None }
    }

    /// Says with each line on stderr when it was: for a log that is read later.
    pub(crate) const fn with_time(self) -> Self {
        Printer { timed: true, ..self }
    }

    /// For locks at this place.
    pub(crate) fn with_place(self, place: Vec<PlaceOption>) -> Self {
        // A process has one command line.
        Printer { place: Box::leak(place.into_boxed_slice()), ..self }
    }

    /// For events about locks at `place`: each one names it.
    pub(crate) fn at(self, place: &Place) -> Self {
        Printer { scope: Some(Box::leak(Box::new(ScopeView::of(place)))), ..self }
    }

    /// `, on root's own server`; empty unless the locks are at a server of this machine.
    pub(crate) fn on_place(self) -> String {
        let machine = self.scope.filter(|scope| scope.servers.is_none());
        machine.map_or_else(String::new, |scope| format!(", on {}", scope.name))
    }

    /// A command for a person to run, as it is printed.
    pub(crate) fn command(self, command: &Suggested) -> String {
        command.text(self.place)
    }

    /// Whether it prints for machines.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Says on stderr where an answer comes from, if that is not what `--servers` says: other users of this machine, and other
    /// machines, may have other locks of the same names.
    pub(crate) fn scope(self, place: &Place) {
        if let (false, Place::Machine(_)) = (self.json, place) {
            self.say(&format!("on {place}"));
        }
    }

    /// Says something on stderr.
    pub(crate) fn note(self, message: &str) {
        if self.json {
            self.event(&Event::Note { message });
        } else {
            self.say(message);
        }
    }

    /// Says whom this command waits for.
    pub(crate) fn waiting(self, message: &str, lock: &LockInfo, ahead: usize) {
        if self.json {
            self.event(&Event::Waiting { message, lock: LockView::of(lock), ahead });
        } else {
            self.say(message);
        }
    }

    /// Says who asks for a lock of the command's, and which signal it got.
    pub(crate) fn asked(self, path: &str, request: &Revocation, signal: Option<&str>, again: bool) {
        let why = request.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let told = match signal.filter(|_| !again) {
            Some(signal) => format!("{signal} sent to the command"),
            None if again => "the command was told before".to_owned(),
            None => "refused".to_owned(),
        };
        let signal = signal.filter(|_| !again);
        let message = format!("{} asks for {path}{why}: {told}", asker(request));
        if self.json {
            self.event(&Event::Asked { message: &message, path, request: RequestView::of(request), signal });
        } else {
            self.say(&message);
        }
    }

    /// Says why the command ends.
    pub(crate) fn failure(self, failure: &Failure) {
        let Failure { code, message, hint, advice, place, .. } = failure;
        let scope = place.as_deref().map(ScopeView::of);
        let commands: Vec<_> = advice.iter().map(|(_, command)| self.command(command)).collect();
        let advice = advice.iter().zip(&commands).map(|((what, _), command)| format!("{what}: {command}"));
        let hints: Vec<_> = hint.iter().cloned().chain(advice).collect();
        if self.json {
            let hint = (!hints.is_empty()).then(|| hints.join("; "));
            let event = Event::Error { exit_code: *code as u8, message, hint, commands };
            STDERR.push(self.event_line(&event, scope.as_ref().or(self.scope)));
        } else {
            // One piece, which no other line gets into. A command ends its line, to be copied.
            let hints: String = hints.iter().map(|hint| format!("  hint: {}\n", plain(hint))).collect();
            STDERR.push(format!("{}{hints}", self.line(message)));
        }
    }

    /// The line about lines that a slow or full stderr did not take.
    pub(crate) fn losses(self, lines: u64) -> String {
        let were = if lines == 1 { "1 line was".to_owned() } else { format!("{lines} lines were") };
        let message = format!("{were} not written: standard error was too slow or full");
        if self.json { self.event_line(&Event::Note { message: &message }, self.scope) } else { self.line(&message) }
    }

    fn say(self, message: &str) {
        STDERR.push(self.line(message));
    }

    fn event(self, event: &Event<'_>) {
        STDERR.push(self.event_line(event, self.scope));
    }

    /// `lockkeeper: …`, after the time where that is wanted.
    fn line(self, message: &str) -> String {
        let at = self.now().map_or_else(String::new, |at| format!("{at} "));
        format!("{at}lockkeeper: {}\n", plain(message))
    }

    fn event_line(self, event: &Event<'_>, scope: Option<&ScopeView>) -> String {
        json(&Timed { event, scope, at: self.now() }) + "\n"
    }

    /// Now, as log lines say it.
    fn now(self) -> Option<String> {
        self.timed.then(|| format!("{:.3}", Timestamp::now()))
    }
}

/// One JSON document in one line, without any character that a terminal would act upon.
fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("structs of strings and numbers always serialise");
    // serde_json escapes C0 only. The others stand in strings, nowhere else.
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_active(c) {
            _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Where an answer comes from, as `--json` shows it. These fields are documented and stay.
#[derive(Debug, Serialize)]
struct ScopeView {
    kind: &'static str,
    name: String,
    servers: Option<String>,
    directory: Option<String>,
}

impl ScopeView {
    fn of(place: &Place) -> Self {
        let (kind, servers, directory) = match place {
            Place::Ensemble(servers) => ("servers", Some(servers.clone()), None),
            Place::Machine(home) => {
                let kind = if home.is_shared() { "machine" } else { "own" };
                (kind, None, Some(home.dir().display().to_string()))
            }
        };
        ScopeView { kind, name: place.to_string(), servers, directory }
    }
}

/// An answer, and where it comes from.
#[derive(Serialize)]
struct Scoped<'a, T> {
    #[serde(flatten)]
    answer: &'a T,
    scope: ScopeView,
}

/// Prints an answer about locks as one JSON document on stdout, with where it comes from.
pub(crate) fn answer(place: &Place, answer: &impl Serialize) -> Result<(), Failure> {
    document(&Scoped { answer, scope: ScopeView::of(place) })
}

/// Prints one JSON document on stdout.
pub(crate) fn document(value: &impl Serialize) -> Result<(), Failure> {
    tolerate_closed(writeln!(io::stdout(), "{}", json(value)))
}

/// Prints text on stdout.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    tolerate_closed(io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()))
}

/// A reader that has seen enough is not an error.
pub(crate) fn tolerate_closed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(Code::Internal, format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Text of unknown origin in one line, with what a terminal would act upon made visible.
pub(crate) fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || c == '\t' || c == '\r' {
            safe.push(' ');
        } else if is_active(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// `1 node`, `2 nodes`
pub(crate) fn counted(count: impl Into<u64>, one: &str) -> String {
    match count.into() {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    }
}

/// Controls, and the marks that let text run backwards over its surroundings.
pub(crate) fn is_active(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The time of day, with the date if that is not today's.
pub(crate) fn moment(time: SystemTime) -> String {
    let Ok(time) = Timestamp::try_from(time) else {
        return "?".to_owned();
    };
    let zone = TimeZone::system();
    let (time, now) = (time.to_zoned(zone.clone()), Timestamp::now().to_zoned(zone));
    let format = if time.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    time.strftime(format).to_string()
}

/// `build@ci-7 (pid 4711), reading, since 10:42:03 (nightly index)`
pub(crate) fn who(contender: &ContenderInfo) -> String {
    let part = part(contender).map_or_else(String::new, |part| format!(", {part},"));
    let mut text = match contender.mode {
        // Its record does not say since when.
        "lease" => contender.described.clone(),
        _ => format!("{}{part} since {}", contender.described, moment(contender.since)),
    };
    if let Some(message) = &contender.message {
        _ = write!(text, " ({message})");
    }
    if let Some(request) = &contender.revocation {
        _ = write!(text, ", {}", standing(request));
    }
    plain(&text)
}

/// The full path of a contender's node, which for a lease is the lock's own.
fn node_path(path: &str, node: &str) -> String {
    if node.is_empty() { path.to_owned() } else { format!("{path}/{node}") }
}

/// `for a lease until 10:42:03 by the server's clock, with priority 1`
pub(crate) fn term(lease: &LeaseInfo) -> String {
    let end = match lease.until {
        Some(until) => format!("until {} by the server's clock", moment(until)),
        None => "without an end".to_owned(),
    };
    format!("for a lease {end}, with priority {}", lease.priority)
}

/// `wanted by online-1 with priority 5 since 10:42:03`
pub(crate) fn wanted(requestor: &RequestorInfo) -> String {
    let mut text =
        format!("wanted by {} with priority {} since {}", requestor.id, requestor.priority, moment(requestor.since));
    if let Some(until) = requestor.until {
        _ = write!(text, ", which waits until {}", moment(until));
    }
    plain(&text)
}

/// What part of the lock is held or asked for, where it is not all of it.
pub(crate) fn part(contender: &ContenderInfo) -> Option<String> {
    match (contender.mode, contender.permits, &contender.class) {
        (_, Some(permits), _) => Some(counted(permits, "permit")),
        (_, _, Some(class)) => Some(format!("class {class}")),
        ("read", ..) => Some("reading".to_owned()),
        ("write", ..) => Some("writing".to_owned()),
        _ => None,
    }
}

/// How many contenders are ahead of the waiter at this place among the waiters: all who hold the lock, and the waiters before it.
pub(crate) fn ahead(lock: &LockInfo, waiter: usize) -> usize {
    lock.holders.len() + waiter
}

/// `2 of 3 permits taken`
pub(crate) fn permits(lock: &LockInfo) -> Option<String> {
    let taken: u32 = lock.holders.iter().map(|holder| holder.permits.unwrap_or(1)).sum();
    lock.permits.map(|permits| format!("{taken} of {} taken", counted(permits, "permit")))
}

/// `asked to let go by ops@desk (pid 9): deploying`
pub(crate) fn standing(request: &Revocation) -> String {
    let mut text = format!("asked to let go by {}", asker(request));
    if let Some(reason) = &request.reason {
        _ = write!(text, ": {reason}");
    }
    if let Some(why) = &request.refused {
        _ = write!(text, "; refuses: {why}");
    }
    text
}

fn asker(request: &Revocation) -> String {
    request.by.as_ref().map_or_else(|| "someone unnamed".to_owned(), Owner::to_string)
}

/// `2026-11-20 10:42:03  /locks/nightly  build@ci-7 (pid 4711) removed by op@desk (pid 7): its host is gone`
pub(crate) fn broken_line(broken: &Broken) -> String {
    let at = Timestamp::try_from(broken.at).map(|at| at.to_zoned(TimeZone::system()));
    let at = at.map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string());
    let Broken { path, described, by, reason, .. } = broken;
    plain(&format!("{at}  {path}  {described} removed by {by}: {reason}"))
}

/// One who was removed from a lock, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct BrokenView<'a> {
    path: &'a str,
    node: String,
    held: bool,
    user: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    program: Option<&'a str>,
    described: &'a str,
    message: Option<&'a str>,
    since_ms: u64,
    token: Option<i64>,
    session: String,
    by: ByView<'a>,
    reason: &'a str,
    at: Option<String>,
    at_ms: i64,
}

#[derive(Serialize)]
pub(crate) struct ByView<'a> {
    user: &'a str,
    host: &'a str,
    pid: u32,
}

impl<'a> ByView<'a> {
    /// The view of one.
    pub(crate) fn of(owner: &'a Owner) -> Self {
        let Owner { user, host, pid, .. } = owner;
        ByView { user, host, pid: *pid }
    }
}

/// A request to let go, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct RequestView<'a> {
    by: Option<ByView<'a>>,
    reason: Option<&'a str>,
    at_ms: u64,
    refused: Option<&'a str>,
}

impl<'a> RequestView<'a> {
    fn of(request: &'a Revocation) -> Self {
        RequestView {
            by: request.by.as_ref().map(ByView::of),
            reason: request.reason.as_deref(),
            at_ms: request.at_ms,
            refused: request.refused.as_deref(),
        }
    }
}

impl<'a> BrokenView<'a> {
    /// The view of a record.
    pub(crate) fn of(broken: &'a Broken) -> Self {
        let owner = broken.owner.as_ref();
        let at = Timestamp::try_from(broken.at).ok();
        BrokenView {
            path: &broken.path,
            node: node_path(&broken.path, &broken.node),
            held: broken.held,
            user: owner.map(|owner| owner.user.as_str()),
            host: owner.map(|owner| owner.host.as_str()),
            pid: owner.map(|owner| owner.pid),
            program: owner.and_then(|owner| owner.program.as_deref()),
            described: &broken.described,
            message: broken.message.as_deref(),
            since_ms: broken.since_ms,
            token: broken.token.map(|token| token.get()),
            session: broken.session.to_string(),
            by: ByView::of(&broken.by),
            reason: &broken.reason,
            at: at.map(|at| at.to_string()),
            at_ms: at.map_or(0, Timestamp::as_millisecond),
        }
    }
}

/// One who holds or waits, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct ContenderView<'a> {
    node: String,
    mode: &'a str,
    /// Of a waiter.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<usize>,
    permits: Option<u32>,
    class: Option<String>,
    user: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    program: Option<&'a str>,
    described: &'a str,
    vanished: bool,
    message: Option<&'a str>,
    revocation: Option<RequestView<'a>>,
    since: Option<String>,
    since_ms: i64,
    token: Option<i64>,
    session: String,
}

/// A lock, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct LockView<'a> {
    path: &'a str,
    permits: Option<u32>,
    holders: Vec<ContenderView<'a>>,
    waiters: Vec<ContenderView<'a>>,
    unknown: &'a [String],
    lease: Option<LeaseView<'a>>,
}

/// What only a leased lock has, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct LeaseView<'a> {
    owner: Option<&'a str>,
    priority: i32,
    until: Option<String>,
    until_ms: Option<i64>,
    cleanup_ms: u64,
    requestor: Option<RequestorView<'a>>,
}

#[derive(Serialize)]
struct RequestorView<'a> {
    id: &'a str,
    priority: i32,
    since_ms: i64,
    until_ms: Option<i64>,
}

impl<'a> LeaseView<'a> {
    fn of(lease: &'a LeaseInfo) -> Self {
        let stamp = |time: SystemTime| Timestamp::try_from(time).ok();
        let until = lease.until.and_then(stamp);
        LeaseView {
            owner: lease.owner.as_deref(),
            priority: lease.priority,
            until: until.map(|until| until.to_string()),
            until_ms: until.map(Timestamp::as_millisecond),
            cleanup_ms: u64::try_from(lease.cleanup.as_millis()).unwrap_or(u64::MAX),
            requestor: lease.requestor.as_ref().map(|requestor| RequestorView {
                id: &requestor.id,
                priority: requestor.priority,
                since_ms: stamp(requestor.since).map_or(0, Timestamp::as_millisecond),
                until_ms: requestor.until.and_then(stamp).map(Timestamp::as_millisecond),
            }),
        }
    }
}

impl<'a> LockView<'a> {
    /// The view of a lock.
    pub(crate) fn of(lock: &'a LockInfo) -> Self {
        let view = |contender: &'a ContenderInfo| ContenderView::of(&lock.path, contender);
        let waits = |(at, waiter)| ContenderView { ahead: Some(ahead(lock, at)), ..view(waiter) };
        LockView {
            path: &lock.path,
            permits: lock.permits,
            holders: lock.holders.iter().map(view).collect(),
            waiters: lock.waiters.iter().enumerate().map(waits).collect(),
            unknown: &lock.unknown,
            lease: lock.lease.as_ref().map(LeaseView::of),
        }
    }
}

impl<'a> ContenderView<'a> {
    /// The view of one.
    pub(crate) fn of(path: &str, contender: &'a ContenderInfo) -> Self {
        let owner = contender.owner.as_ref();
        let since = Timestamp::try_from(contender.since).ok();
        ContenderView {
            node: contender.node_path(path),
            mode: contender.mode,
            ahead: None,
            permits: contender.permits,
            class: contender.class.map(|class| class.to_string()),
            user: owner.map(|owner| owner.user.as_str()),
            host: owner.map(|owner| owner.host.as_str()),
            pid: owner.map(|owner| owner.pid),
            program: owner.and_then(|owner| owner.program.as_deref()),
            described: &contender.described,
            vanished: contender.vanished,
            message: contender.message.as_deref(),
            revocation: contender.revocation.as_ref().map(RequestView::of),
            since: since.map(|since| since.to_string()),
            since_ms: since.map_or(0, Timestamp::as_millisecond),
            token: contender.token.map(|token| token.get()),
            // As ZooKeeper's own tools write it; a number of this size would lose digits in most JSON readers.
            session: contender.session.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_steer_a_terminal() {
        assert_eq!(plain("a\x1b[2Jb\u{9b}1m\u{202e}c\nd"), "a\\u{1b}[2Jb\\u{9b}1m\\u{202e}c d");
        assert_eq!(plain("nächtlicher Lauf 夜"), "nächtlicher Lauf 夜");
    }

    #[test]
    fn json_stays_json_and_passive() {
        let text = json(&"a\x1b\u{9b}\u{202e}\u{7f}\"é");
        assert_eq!(text, "\"a\\u001b\\u009b\\u202e\\u007f\\\"é\"");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), "a\x1b\u{9b}\u{202e}\u{7f}\"é");
    }
}
