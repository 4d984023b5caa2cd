//! What is printed: for people or for machines, data on stdout and everything else on stderr.
//!
//! Messages, owners and node names are other people's text. Nothing of it reaches a terminal unescaped, or anyone who may
//! write to a lock's node could move the cursor, retitle the window or fake a line.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use lockkeeper::{Broken, ContenderInfo, LockInfo, Owner};
use serde::Serialize;

use crate::exit::{Code, Failure};

/// Prints for people or for machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    json: bool,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Note { message: &'a str },
    Waiting { message: &'a str, lock: LockView<'a>, ahead: usize },
    Error { exit_code: u8, message: &'a str, hint: Option<&'a str> },
}

impl Printer {
    /// One or the other.
    pub(crate) const fn new(json: bool) -> Self {
        Printer { json }
    }

    /// Whether it prints for machines.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Says something on stderr.
    pub(crate) fn note(self, message: &str) {
        if self.json {
            event(&Event::Note { message });
        } else {
            say(message);
        }
    }

    /// Says whom this command waits for.
    pub(crate) fn waiting(self, message: &str, lock: &LockInfo, ahead: usize) {
        if self.json {
            event(&Event::Waiting { message, lock: LockView::of(lock), ahead });
        } else {
            say(message);
        }
    }

    /// Says why the command ends.
    pub(crate) fn failure(self, failure: &Failure) {
        let Failure { code, message, hint } = failure;
        if self.json {
            event(&Event::Error { exit_code: *code as u8, message, hint: hint.as_deref() });
        } else {
            say(message);
            if let Some(hint) = hint {
                // Not through `say`: it is a second line of the same.
                _ = writeln!(io::stderr(), "  hint: {}", plain(hint));
            }
        }
    }
}

fn say(message: &str) {
    // With stderr closed there is nobody to tell.
    _ = writeln!(io::stderr(), "lockkeeper: {}", plain(message));
}

fn event(event: &Event<'_>) {
    _ = writeln!(io::stderr(), "{}", json(event));
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

/// Controls, and the marks that let text run backwards over its surroundings.
fn is_active(c: char) -> bool {
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

/// `build@ci-7 (pid 4711) since 10:42:03 (nightly index)`
pub(crate) fn who(contender: &ContenderInfo) -> String {
    let mut text = format!("{} since {}", contender.described, moment(contender.since));
    if let Some(message) = &contender.message {
        _ = write!(text, " ({message})");
    }
    plain(&text)
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
    token: i64,
    session: String,
    by: ByView<'a>,
    reason: &'a str,
    at: Option<String>,
    at_ms: i64,
}

#[derive(Serialize)]
struct ByView<'a> {
    user: &'a str,
    host: &'a str,
    pid: u32,
}

impl<'a> BrokenView<'a> {
    /// The view of a record.
    pub(crate) fn of(broken: &'a Broken) -> Self {
        let owner = broken.owner.as_ref();
        let Owner { user, host, pid, .. } = &broken.by;
        let at = Timestamp::try_from(broken.at).ok();
        BrokenView {
            path: &broken.path,
            node: format!("{}/{}", broken.path, broken.node),
            held: broken.held,
            user: owner.map(|owner| owner.user.as_str()),
            host: owner.map(|owner| owner.host.as_str()),
            pid: owner.map(|owner| owner.pid),
            program: owner.and_then(|owner| owner.program.as_deref()),
            described: &broken.described,
            message: broken.message.as_deref(),
            since_ms: broken.since_ms,
            token: broken.token.get(),
            session: broken.session.to_string(),
            by: ByView { user, host, pid: *pid },
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
    user: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    program: Option<&'a str>,
    described: &'a str,
    message: Option<&'a str>,
    since: Option<String>,
    since_ms: i64,
    token: i64,
    session: String,
}

/// A lock, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
pub(crate) struct LockView<'a> {
    path: &'a str,
    holders: Vec<ContenderView<'a>>,
    waiters: Vec<ContenderView<'a>>,
    unknown: &'a [String],
}

impl<'a> LockView<'a> {
    /// The view of a lock.
    pub(crate) fn of(lock: &'a LockInfo) -> Self {
        let view = |contenders: &'a [ContenderInfo]| {
            contenders.iter().map(|contender| ContenderView::of(&lock.path, contender)).collect()
        };
        LockView {
            path: &lock.path,
            holders: view(&lock.holders),
            waiters: view(&lock.waiters),
            unknown: &lock.unknown,
        }
    }
}

impl<'a> ContenderView<'a> {
    fn of(path: &str, contender: &'a ContenderInfo) -> Self {
        let owner = contender.owner.as_ref();
        let since = Timestamp::try_from(contender.since).ok();
        ContenderView {
            node: format!("{path}/{}", contender.node),
            mode: contender.mode,
            user: owner.map(|owner| owner.user.as_str()),
            host: owner.map(|owner| owner.host.as_str()),
            pid: owner.map(|owner| owner.pid),
            program: owner.and_then(|owner| owner.program.as_deref()),
            described: &contender.described,
            message: contender.message.as_deref(),
            since: since.map(|since| since.to_string()),
            since_ms: since.map_or(0, Timestamp::as_millisecond),
            token: contender.token.get(),
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
