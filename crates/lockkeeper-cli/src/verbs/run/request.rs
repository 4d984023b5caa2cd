//! What `run` was asked for, checked before anything is sent.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use lockkeeper::admin::TraceParent;
use lockkeeper::error::{Misuse, misuse};
use lockkeeper::{Builder, LockPath, PriorityLock};
use lockkeeper_helix::Terms;
use lockkeeper_history::LockUse;
use lockkeeper_jobs::check_slot;
use lockkeeper_session::text::excerpt;

#[cfg(feature = "webhook")]
use super::alert::Webhook;
use super::args::{KindArgs, RunArgs};
use super::kind::Kind;
use super::lease::LeaseArgs;
use super::records::{RecordTerms, Shelf};
use super::retrying::RetryPolicy;
use crate::args::values::Waiting;
use crate::exit::{Code, Failure};
use crate::grace::Term;
use crate::output::Printer;
use crate::place::Place;
use crate::settings::{Settings, path_to_lock, state_dir, variable};

/// Maximum characters of a command line that are published.
const PUBLISHED_CHARS: usize = 200;

/// A command line of `run` with its settings, checked.
pub(crate) struct Request {
    /// The options; those of a job are filled in from the settings.
    pub(crate) args: RunArgs,
    /// In the order in which they are taken.
    pub(crate) paths: Vec<LockPath>,
    pub(crate) settings: Settings,
    pub(super) kind: Kind,
    /// Whether it gives up if the lock is taken.
    pub(crate) once: bool,
    /// Time limit for an attempt.
    pub(super) wait: Option<Duration>,
    pub(super) retries: RetryPolicy,
    /// Whether holds and refusals are recorded.
    pub(super) has_history: bool,
    /// Where refusals wait that no server can record.
    pub(super) shelf: Option<Shelf>,
    /// The caller's span in a distributed trace.
    pub(super) traceparent: Option<TraceParent>,
    #[cfg(feature = "webhook")]
    pub(super) webhook: Option<Webhook>,
    /// What readers of the lock's node see in place of the command.
    pub(crate) named: Option<String>,
    /// Prints with the place.
    pub(crate) printer: Printer,
}

impl Request {
    /// Reads the settings, and the routing data if they name its servers, once for any number of runs. Checks everything.
    ///
    /// Dropping the future leaves nothing behind but, for its timeout, a session that has no nodes.
    pub(crate) async fn read(args: RunArgs, printer: &Printer) -> Result<Self, Failure> {
        let paths = lock_paths(&args.names)?;
        if args.leased.lease.is_some() && paths.len() > 1 {
            return Err(Failure::new(Code::Usage, "--lease takes one lock"));
        }
        let settings =
            Settings::read(args.common.connect.clone(), printer)?.at(paths.iter().map(LockPath::as_str)).await?;
        let place = settings.place.clone();
        Request::checked(args, paths, settings, printer).map_err(|failure| failure.at(&place))
    }

    fn checked(
        mut args: RunArgs,
        paths: Vec<LockPath>,
        settings: Settings,
        printer: &Printer,
    ) -> Result<Self, Failure> {
        let printer = printer.at(&settings.place);
        check_wait_for_ever(&args.leased)?;
        if args.job.is_job() && paths.len() > 1 {
            return Err(Failure::new(Code::Usage, format!("a job has one lock, not {}", paths.len()))
                .hint("give one NAME, or leave out --once-per, --every or --slot"));
        }
        check_ids(&args.leased)?;
        // The timeout that a server grants is checked again when the lock is held.
        grace(&args, Term::Session(settings.all.session_timeout.value))?;
        for path in &paths {
            misuse::check_message(path.as_str(), args.lock.message.as_deref())?;
            args.job.slot.as_deref().map_or(Ok(()), |slot| check_slot(path.as_str(), slot))?;
        }
        let kind = Kind::of(&args.kind, &settings.all)?;
        check_yield(&args, kind, paths.len())?;
        let retries = RetryPolicy::of(&args, &settings)?;
        // A wait of zero is a try: no server could answer in no time.
        let wait = args.lock.wait.filter(|wait| !wait.is_zero()).or_else(|| match args.lock.wait {
            // The settings may contain a wait for the class. A leased lock is waited for only if that is asked for.
            None if !args.lock.once && args.leased.lease.is_none() => {
                task_timeout(&args.kind, &settings.all).or(retries.usual_wait())
            }
            _ => None,
        });
        args.job.settle(&settings.all.jobs);
        let has_history = settings.all.history.value && !args.lock.no_history;
        let shelf = match &settings.place {
            Place::Ensemble(servers) if has_history => {
                state_dir(&settings.all).ok().map(|dir| Shelf { dir, servers: servers.clone() })
            }
            _ => None,
        };
        Ok(Request {
            once: args.lock.once || (args.lock.wait.is_some() && wait.is_none()),
            traceparent: if args.lock.trace { traceparent(&printer) } else { None },
            #[cfg(feature = "webhook")]
            webhook: args.leased.alert_webhook.as_deref().map(Webhook::read).transpose()?,
            args,
            paths,
            settings,
            kind,
            wait,
            retries,
            has_history,
            shelf,
            named: None,
            printer,
        })
    }

    /// The same as a candidate of an election, which holds its lock while it leads.
    #[must_use]
    pub(crate) fn of_candidate(mut self) -> Self {
        if let Kind::Alone(node_format) = self.kind {
            self.kind = Kind::Leading(node_format);
        }
        self
    }

    /// Returns the path of the only lock, or of the first.
    pub(super) fn path(&self) -> &LockPath {
        self.paths.first().expect("the parser asks for a name")
    }

    /// `lock /locks/nightly (nightly index)`, `locks /locks/a, /locks/b`
    pub(crate) fn locks(&self) -> String {
        let paths: Vec<_> = self.paths.iter().map(LockPath::as_str).collect();
        let locks = format!("{} {}", if paths.len() == 1 { "lock" } else { "locks" }, paths.join(", "));
        match &self.args.lock.message {
            Some(message) => format!("{locks} ({})", excerpt(message)),
            None => locks,
        }
    }

    /// Returns what the records of this request and of its holds say.
    pub(crate) fn record_terms(&self) -> RecordTerms {
        let used_as = if self.args.leased.lease.is_some() { LockUse::Lease } else { self.kind.used_as() };
        let (message, shelf) = (self.args.lock.message.clone(), self.shelf.clone());
        RecordTerms { history: self.has_history, message, used_as, shelf }
    }

    /// Returns the options of a session, which names the program to readers of the lock's node.
    pub(super) fn builder(&self) -> Builder {
        self.settings.builder().program(self.program())
    }

    /// Returns the part of the command that readers of the lock's node see: the program's name. Arguments may be secrets.
    pub(super) fn program(&self) -> String {
        self.named.clone().unwrap_or_else(|| published(&self.args.command, self.args.publish_command))
    }

    /// Whether no setting limits the attempts to connect, so that a waiter keeps trying, also with new sessions.
    pub(super) fn tries_on(&self) -> bool {
        self.settings.all.reconnect().is_none()
    }

    /// Returns the session timeout that a person requested.
    pub(super) fn asked_timeout(&self) -> Option<Duration> {
        let timeout = &self.settings.all.session_timeout;
        timeout.is_given().then_some(timeout.value)
    }

    /// Returns how old a hold must be before it makes way, if it does.
    pub(super) fn min_hold(&self) -> Option<Duration> {
        self.args.yields.map(|_| self.args.min_hold.unwrap_or(PriorityLock::MIN_HOLD))
    }

    /// Returns the grace period before the end of a hold whose session has this timeout.
    pub(crate) fn grace(&self, session_timeout: Duration) -> Result<Duration, Failure> {
        grace(&self.args, Term::Fixed(session_timeout))
    }

    /// Prints that the lock is not acquired, unless that is no problem; returns the exit status.
    pub(super) fn not_acquired(&self, failure: &Failure) -> u8 {
        if self.args.reports_conflicts() {
            self.printer.failure(failure);
        }
        self.args.conflict_exit_code
    }
}

/// Checks that the command can make way, if it is to.
fn check_yield(args: &RunArgs, kind: Kind, locks: usize) -> Result<(), Failure> {
    let problem = match args.yields {
        None => return Ok(()),
        Some(_) if locks > 1 => "--yield takes one lock",
        Some(_) if !matches!(kind, Kind::Class { .. }) => "--yield needs a lock with classes",
        Some(_) => return Ok(()),
    };
    Err(Failure::new(Code::Usage, problem).hint("add --background, for one lock, or leave out --yield"))
}

/// Checks that an infinite wait for the cleanup is combined with nothing that begins when the wait ends.
fn check_wait_for_ever(leased: &LeaseArgs) -> Result<(), Failure> {
    let idle = match leased {
        LeaseArgs { waiting: Some(Waiting::Infinite), forceful: true, .. } => "--forceful",
        LeaseArgs { waiting: Some(Waiting::Infinite), ask: Some(_), .. } => "--ask",
        _ => return Ok(()),
    };
    let text = format!("--waiting infinite never ends, so {idle} has no effect");
    Err(Failure::new(Code::Usage, text).hint(format!("give --waiting a duration, or omit {idle}")))
}

/// Checks the owner's id, and the one that the lock is to be handed to.
fn check_ids(leased: &LeaseArgs) -> Result<(), Failure> {
    if let Some(id) = &leased.id {
        Terms::new(id, 1).check(false).map_err(Misuse::from)?;
    }
    if let Some(hand_to) = &leased.hand_to {
        let from = leased.id.as_deref().filter(|id| !id.is_empty()).unwrap_or("a new one");
        Terms::new(from, 1).check_transfer(hand_to).map_err(Misuse::from)?;
    }
    Ok(())
}

/// Returns how long requests of a class wait, according to the settings.
fn task_timeout(args: &KindArgs, settings: &lockkeeper_config::settings::Settings) -> Option<Duration> {
    match (args.foreground, args.background) {
        (true, _) => settings.foreground.timeout.value,
        (_, true) => settings.background.timeout.value,
        _ => None,
    }
}

/// Returns the grace period before the end of the hold, which is that of the lease if it is strict.
fn grace(args: &RunArgs, session: Term) -> Result<Duration, Failure> {
    let given = args.grace;
    let Some(lease) = args.leased.lease else { return session.grace(given) };
    let lease = Term::Lease(lease);
    if args.leased.is_strict() {
        return lease.grace(given);
    }
    let session = match session {
        Term::Session(timeout) if given.is_some_and(|given| given > lease.limit()) => Term::Fixed(timeout),
        session => session,
    };
    // Kept after its end, it ends with the session's trust. The remedy of the shorter term fits into both.
    let terms = if lease.limit() < session.limit() { [lease, session] } else { [session, lease] };
    Ok(terms[0].grace(given)?.min(terms[1].grace(given)?))
}

/// Returns the paths of these names, in the order in which the locks are taken.
pub(crate) fn lock_paths(names: &[String]) -> Result<Vec<LockPath>, Failure> {
    let mut paths = names.iter().map(|name| path_to_lock(name)).collect::<Result<Vec<_>, _>>()?;
    paths.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    match paths.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(misuse::twice(twice[0].as_str()).into()),
        None => Ok(paths),
    }
}

/// Returns the trace context that this process was started in. A bad one must not keep the command from running.
fn traceparent(printer: &Printer) -> Option<TraceParent> {
    const VARIABLE: &str = "TRACEPARENT";
    let text = variable(VARIABLE)?;
    let read = text.parse();
    if let Err(error) = &read {
        let text = excerpt(&text);
        printer.note(&format!("--trace has no effect: {VARIABLE} is {text:?}, {error}"));
    }
    read.ok()
}

/// The first characters of a command line, or of its program's name.
fn published(command: &[OsString], whole: bool) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let text = match words.first() {
        Some(program) if !whole => {
            let name = Path::new(program.as_ref()).file_name();
            name.map_or_else(|| program.to_string(), |name| name.to_string_lossy().into_owned())
        }
        _ => words.join(" "),
    };
    text.chars().take(PUBLISHED_CHARS).collect()
}
