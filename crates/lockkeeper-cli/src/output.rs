//! Output for people and for machines: data on stdout and everything else on stderr.
//!
//! All text passes through [`plain`] or is escaped as JSON.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anstream::adapter::strip_str;
use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use jiff::Timestamp;
use lockkeeper::Revocation;
use lockkeeper::admin::{LockInfo, RequestJson};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::advice::{self, Action, PlaceOption, Suggested};
use crate::colour::Severity;
use crate::exit::{Code, Failure};
use crate::place::{Place, Source};
use crate::screen::{Size, hint_columns, wrapped, wrapped_for_stdout};
use crate::statuses::{self, Status};
use crate::streams::STDERR;
use crate::text::{asker, is_active, plain, trimmed};

const HINT: &str = "  hint: ";

/// The least width of what a command does, before the command.
const LABELS: usize = 28;

/// Prints for people or for machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    json: bool,
    timed: bool,
    /// The options that name the place of the locks. Printed commands repeat them.
    place: &'static [PlaceOption],
    /// The place of the locks, once it is known.
    scope: Option<&'static ScopeView>,
}

/// An event with its place and its time, if they are known.
#[derive(Serialize)]
struct Timed<'a> {
    #[serde(flatten)]
    event: &'a LogEvent<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a ScopeView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum LogEvent<'a> {
    Note { message: &'a str },
    Waiting { message: &'a str, lock: &'a LockInfo, ahead: usize },
    Acquired { message: &'a str, paths: Vec<&'a str>, waited_ms: u64 },
    Asked { message: &'a str, path: &'a str, request: RequestJson<'a>, signal: Option<&'a str> },
    Error { exit_code: u8, message: &'a str, hint: Option<String>, commands: Vec<String> },
}

impl Printer {
    /// Returns a printer that prints JSON or text.
    pub(crate) const fn new(json: bool) -> Self {
        Printer { json, timed: false, place: &[], scope: None }
    }

    /// Adds the time to each line on stderr, for a log that is read later.
    pub(crate) const fn with_time(self) -> Self {
        Printer { timed: true, ..self }
    }

    /// Sets the options of the place, which printed commands repeat.
    pub(crate) fn with_place(self, place: Vec<PlaceOption>) -> Self {
        // A process has one command line.
        Printer { place: Box::leak(place.into_boxed_slice()), ..self }
    }

    /// Sets the place of the locks, which each event names.
    pub(crate) fn at(self, place: &Place) -> Self {
        let scope = Some(&*Box::leak(Box::new(ScopeView::from(place))));
        match place {
            Place::Ensemble(_) => Printer { scope, ..self },
            // A printed command would be refused with them.
            Place::Machine(_) => Printer { scope, ..self.with_place(advice::on_this_machine(self.place)) },
        }
    }

    /// Returns `, on root's own server`; empty unless the locks are on a server of this machine.
    pub(crate) fn on_place(self) -> String {
        let machine = self.scope.filter(|scope| scope.servers.is_none());
        machine.map_or_else(String::new, |scope| format!(", on {}", scope.name))
    }

    /// Returns a command for a person to run, as text for this stream. On a terminal, the next command has the same variables, so
    /// the text leaves out what they say.
    pub(crate) fn command(self, command: &Suggested, stream: impl IsTerminal) -> String {
        match !self.json && stream.is_terminal() {
            true => command.text(self.place.iter().filter(|option| !option.of_variable)),
            false => self.whole_command(command),
        }
    }

    /// Returns a command for another place than this terminal, as text.
    pub(crate) fn whole_command(self, command: &Suggested) -> String {
        command.text(self.place)
    }

    /// Returns the lines of commands that help, each behind what it does. A command is not broken, so that it can be copied: on a terminal,
    /// one that does not fit beside what it does has a line of its own.
    pub(crate) fn actions(self, actions: &[Action]) -> String {
        let columns = Size::of(io::stdout()).map_or(usize::MAX, |size| size.columns);
        let width = actions.iter().map(|(what, _)| what.width()).max().unwrap_or_default().max(LABELS);
        let line = |(what, command): &Action| {
            let command = self.command(command, io::stdout());
            let line = format!("  {what:<width$} {command}\n");
            if line.trim_end().width() > columns { format!("  {what}\n    {command}\n") } else { line }
        };
        actions.iter().map(line).collect()
    }

    /// Whether the output is JSON.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints on stderr where an answer comes from, unless it comes from one ensemble. Other users of this machine, and
    /// other machines, may have other locks of the same names.
    pub(crate) fn scope(self, place: impl Into<ScopeView>) {
        let scope = place.into();
        if !self.json && scope.kind != SERVERS {
            self.say(&format!("on {}", scope.name));
        }
    }

    /// Prints a message on stderr.
    pub(crate) fn note(self, message: &str) {
        if self.json {
            self.event(&LogEvent::Note { message: &trimmed(message) });
        } else {
            self.say(message);
        }
    }

    /// Prints which contenders this command waits for.
    pub(crate) fn waiting(self, message: &str, lock: &LockInfo, ahead: usize) {
        if self.json {
            self.event(&LogEvent::Waiting { message, lock, ahead });
        } else {
            self.say(message);
        }
    }

    /// Prints that the wait has ended with the locks.
    pub(crate) fn acquired(self, message: &str, paths: Vec<&str>, waited: Duration) {
        if self.json {
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            self.event(&LogEvent::Acquired { message, paths, waited_ms });
        } else {
            self.say(message);
        }
    }

    /// Prints who asks for a lock of the command's, and which signal the command got.
    pub(crate) fn asked(self, path: &str, request: &Revocation, signal: Option<&str>, again: bool) {
        let why = request.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let consequence = match signal.filter(|_| !again) {
            Some(signal) => format!("{signal} sent to the command"),
            None if again => "the command got its signal before".to_owned(),
            None => "refused".to_owned(),
        };
        let signal = signal.filter(|_| !again);
        // A request for a leased lock names its requestor in the reason.
        let message = match (&request.by, &request.reason) {
            (None, Some(reason)) => format!("{path} is asked for, {reason}: {consequence}"),
            _ => format!("{} asks for {path}{why}: {consequence}", asker(request)),
        };
        if self.json {
            self.event(&LogEvent::Asked { message: &message, path, request: RequestJson::of(request), signal });
        } else {
            self.say(&message);
        }
    }

    /// Prints for machines that this verb ends with a status of its own. For people, the cause was printed when it happened. Returns the
    /// status.
    pub(crate) fn ended(self, verb: &[Status], code: Code) -> u8 {
        if self.json {
            let (message, commands) = (statuses::meaning(verb, code), Vec::new());
            self.event(&LogEvent::Error { exit_code: code.status(), message, hint: None, commands });
        }
        code.status()
    }

    /// Prints why the command ends.
    pub(crate) fn failure(self, failure: &Failure) {
        let Failure { code, message, hint, advice, place, .. } = failure;
        let scope = place.as_deref().map(ScopeView::from);
        let printer = place.as_deref().map_or(self, |place| self.at(place));
        // A command that is not printed whole would be another one.
        let advice = advice.iter().map(|(what, command)| (*what, printer.command(command, io::stderr())));
        let advice: Vec<_> = advice.filter(|(_, command)| trimmed(command) == *command).collect();
        let hint = hint.as_deref().map(trimmed);
        if self.json {
            let hints: Vec<_> = hint
                .map(String::from)
                .into_iter()
                .chain(advice.iter().map(|(what, command)| format!("{what}: {command}")))
                .collect();
            let commands = advice.into_iter().map(|(_, command)| command).collect();
            let hint = (!hints.is_empty()).then(|| hints.join("; "));
            let event = LogEvent::Error { exit_code: code.status(), message: &trimmed(message), hint, commands };
            STDERR.push(self.event_line(&event, scope.as_ref().or(self.scope)));
        } else {
            // One write, so that no other line gets between. A command is at the end of its line, so that it can be
            // copied.
            let columns = hint_columns(io::stderr());
            let hint = hint.map(|hint| hint_text(&plain(&hint), columns));
            let advice = advice.iter().map(|(what, command)| command_hint(what, &plain(command), columns));
            let hints: String = hint.into_iter().chain(advice).collect();
            let line = Severity::Serious.paint(self.line(message).trim_end());
            STDERR.push(format!("{}\n{hints}", shown(&line, &io::stderr())));
        }
    }

    /// Returns the line about lines that standard error was too slow or too full to take.
    pub(crate) fn losses(self, lines: u64) -> String {
        let were = if lines == 1 { "1 line was".to_owned() } else { format!("{lines} lines were") };
        let message = format!("{were} not written: standard error was too slow or full");
        if self.json { self.event_line(&LogEvent::Note { message: &message }, self.scope) } else { self.line(&message) }
    }

    fn say(self, message: &str) {
        STDERR.push(self.line(message));
    }

    fn event(self, event: &LogEvent<'_>) {
        STDERR.push(self.event_line(event, self.scope));
    }

    /// Returns `lockkeeper: …`, after the time if it is wanted.
    fn line(self, message: &str) -> String {
        let at = self.now().map_or_else(String::new, |at| format!("{at} "));
        format!("{at}lockkeeper: {}\n", plain(&trimmed(message)))
    }

    fn event_line(self, event: &LogEvent<'_>, scope: Option<&ScopeView>) -> String {
        json(&Timed { event, scope, at: self.now() }) + "\n"
    }

    /// Returns the time in the format of log lines.
    fn now(self) -> Option<String> {
        self.timed.then(|| format!("{:.3}", Timestamp::now()))
    }
}

/// Returns the line of a hint, or several on a terminal. A command at its end is not broken. It is found by its text: it may be
/// one of another program, or only a part of one.
fn hint_text(hint: &str, columns: Option<usize>) -> String {
    let command = [": lockkeeper ", ": cargo ", ": -- "].iter().find_map(|start| hint.find(start));
    match command {
        Some(at) => command_hint(&hint[..at], &hint[at + 2..], columns),
        None => wrapped(&format!("{HINT}{hint}\n"), columns.unwrap_or(usize::MAX), HINT.len()),
    }
}

/// Returns the line of a hint that ends with a command. If it does not fit, the command has a line of its own.
fn command_hint(what: &str, command: &str, columns: Option<usize>) -> String {
    let line = format!("{HINT}{what}: {command}");
    match columns {
        Some(columns) if line.width() > columns => {
            let what = wrapped(&format!("{HINT}{what}:\n"), columns, HINT.len());
            format!("{what}{:indent$}{command}\n", "", indent = 4)
        }
        _ => line + "\n",
    }
}

/// Writes a JSON document as a single line, without any character that a terminal would interpret.
fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("structs of strings and numbers always serialise");
    // serde_json escapes C0 only. The other characters occur only within strings.
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

/// The kind of a scope that is an ensemble.
const SERVERS: &str = "servers";

/// The place of an answer, as `--json` shows it. These fields are documented and stay.
#[derive(Debug, Serialize)]
pub(crate) struct ScopeView {
    kind: &'static str,
    name: String,
    servers: Option<String>,
    directory: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    realms: Vec<RealmView>,
}

/// A realm that has answered.
#[derive(Debug, Serialize)]
struct RealmView {
    prefix: String,
    servers: String,
}

impl From<&Source> for ScopeView {
    fn from(source: &Source) -> Self {
        let realms = match source {
            Source::One(place) => return place.into(),
            Source::Realms(realms) => realms.iter().cloned().map(|(prefix, servers)| RealmView { prefix, servers }),
        };
        ScopeView { kind: "realms", name: source.to_string(), servers: None, directory: None, realms: realms.collect() }
    }
}

impl From<&Place> for ScopeView {
    fn from(place: &Place) -> Self {
        let (kind, servers, directory) = match place {
            Place::Ensemble(servers) => (SERVERS, Some(servers.clone()), None),
            Place::Machine(home) => {
                let kind = if home.is_shared() { "machine" } else { "own" };
                (kind, None, Some(home.dir().display().to_string()))
            }
        };
        ScopeView { kind, name: place.to_string(), servers, directory, realms: Vec::new() }
    }
}

/// An answer with its place.
#[derive(Serialize)]
struct Scoped<'a, T> {
    #[serde(flatten)]
    answer: &'a T,
    scope: ScopeView,
}

/// Prints an answer about locks as one JSON document on stdout, with its place.
pub(crate) fn answer(place: impl Into<ScopeView>, answer: &impl Serialize) -> Result<(), Failure> {
    document(&Scoped { answer, scope: place.into() })
}

/// Prints one JSON document on stdout.
pub(crate) fn document(value: &impl Serialize) -> Result<(), Failure> {
    tolerate_closed(writeln!(io::stdout(), "{}", json(value)))
}

/// Prints text with styles on stdout as [`styled`] does; wraps its lines if that is a terminal. The lines after a break begin with `indent` spaces.
pub(crate) fn lines(text: &str, indent: usize) -> Result<(), Failure> {
    styled(&wrapped_for_stdout(text, indent))
}

/// Prints text on stdout.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    tolerate_closed(io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()))
}

/// Prints text with styles on stdout, and without them if that is no terminal that shows them, or if a variable says so.
pub(crate) fn styled(text: &str) -> Result<(), Failure> {
    data(&shown(text, &io::stdout()))
}

/// Returns a text with the styles that a stream shows.
pub(crate) fn shown<'a>(text: &'a str, stream: &impl RawStream) -> Cow<'a, str> {
    match AutoStream::choice(stream) {
        ColorChoice::Never => strip_str(text).to_string().into(),
        _ => text.into(),
    }
}

/// Whether the reader of standard output has closed the pipe.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Replaces a file in one step, so that no reader sees a part of it. Everyone may read it.
pub(crate) fn replace(file: &Path, contents: &[u8]) -> Result<(), Failure> {
    let failed = |error| Failure::system(&format!("cannot write {}", file.display()), error);
    if file.file_name().is_none() {
        return Err(Failure::new(Code::Usage, format!("{} is not the name of a file", file.display())));
    }
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Created exclusively under a random name, so that no planted link is followed. The exporter runs as another user.
    let mut builder = tempfile::Builder::new();
    builder.prefix(".lockkeeper-").suffix(".new");
    let mut new = builder.tempfile_in(dir).map_err(failed)?;
    let written = new.write_all(contents).and_then(|()| {
        new.as_file().set_permissions(PermissionsExt::from_mode(0o644))?;
        new.as_file().sync_all()
    });
    written.map_err(failed)?;
    new.persist(file).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Whether a write has found that the reader of standard output has closed the pipe: there is no one to print more for.
pub(crate) fn is_reader_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}

/// Ignores a closed pipe: its reader has read enough.
pub(crate) fn tolerate_closed(written: io::Result<()>) -> Result<(), Failure> {
    if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        READER_GONE.store(true, Ordering::Relaxed);
    }
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(Code::Internal, format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_json_and_passive() {
        let text = json(&"a\x1b\u{9b}\u{202e}\u{7f}\"é");
        assert_eq!(text, "\"a\\u001b\\u009b\\u202e\\u007f\\\"é\"");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), "a\x1b\u{9b}\u{202e}\u{7f}\"é");
    }
}
