//! `lockkeeper hold`: holds locks for the process that has started it, and tells it line by line until when the hold may be trusted.

pub(crate) mod args;
mod ending;

use std::fs::File;
use std::io::IsTerminal;
use std::sync::Arc;

use futures_util::stream::poll_fn;
use lockkeeper::{Loss, MultiGuard};
use lockkeeper_hold::{Ahead, Bound, Clients, Event, Locks, keep};
use lockkeeper_letters::retry::Cause;
use rustix::process::{Signal, getppid};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinHandle;

pub(crate) use self::args::HoldArgs;
use self::args::take_names;
pub(crate) use self::ending::EndWith;
use self::ending::shrink_pipe;
use crate::args::common::Common;
use crate::control::until_ended;
use crate::exit::{Code, Failure};
use crate::held::Held;
use crate::output::Printer;
use crate::signals::Signals;
use crate::verb::{Context, Verb};
use crate::verbs::run::Request;
use crate::verbs::run::acquisition::{Acquisition, LEAVING};
use crate::verbs::run::records::Records;
use crate::verbs::run::release::{release, session_timeout};
use crate::waiting::Report;

/// The size of a pipe to the client, in bytes: about forty heartbeats. A client that reads none of them is as good as dead.
const PIPE: usize = 4096;

impl Verb for HoldArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    fn takes_a_while(&self) -> bool {
        true
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        hold(self, context.printer).await
    }
}

/// Holds the locks for the client; returns the exit status.
async fn hold(mut args: HoldArgs, printer: &Printer) -> Result<u8, Failure> {
    take_names("hold", &mut args.names, &mut args.command)?;
    args.leased.check_without_command("hold")?;
    // First: a parent that has ended since cannot be told from another one.
    let parent = getppid().map(until_ended);
    let mut clients = Clients::default();
    shrink_pipe(PIPE);
    let bound = Bound::To(clients.add(tokio::io::stdin(), tokio::io::stdout()));
    let mut signals = Signals::default();
    signals.catch(&[Signal::TERM, Signal::HUP, Signal::QUIT, Signal::INT])?;
    let bond = bond(&mut signals, parent.and_then(Result::ok));
    let (waits_to, mut waits) = mpsc::unbounded_channel();
    let request = match request(&args, printer).await {
        Ok(request) => request,
        Err(failure) => {
            let mut none = NotHeld::new(failed(&failure, false));
            return Ok(status(&keep(&mut none, poll_fn(|_| None.into()), (clients, bound), bond).await));
        }
    };
    let (request, end_with) = request;
    let mut locks = Coprocess::new(&request, waits_to, end_with);
    let waits = poll_fn(move |cx| waits.poll_recv(cx));
    Ok(status(&keep(&mut locks, waits, (clients, bound), bond).await))
}

/// Checks the request before anything is sent.
async fn request(args: &HoldArgs, printer: &Printer) -> Result<(Request, Option<EndWith>), Failure> {
    let end_with = args.end_with.map(EndWith::check).transpose()?;
    let mut request = Request::read(args.request(), printer).await?;
    let parent = getppid().map(|parent| std::fs::read_to_string(format!("/proc/{}/comm", parent.as_raw_nonzero())));
    request.named = parent.and_then(Result::ok).map(|name| name.trim().to_owned());
    Ok((request, end_with))
}

/// Resolves when a signal ends this process, or when the process that has started it has ended: a process that it has forked may keep
/// the pipe open. On a pipe, Ctrl-C is meant for that process, and does not end this one.
async fn bond(signals: &mut Signals, parent: Option<JoinHandle<()>>) {
    let is_typed = std::io::stdin().is_terminal();
    let signal = async { while signals.next().await == Signal::INT && !is_typed {} };
    let parent = async {
        match parent {
            Some(ended) => _ = ended.await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = signal => {}
        () = parent => {}
    }
}

/// The locks of a request that is wrong.
pub(crate) struct NotHeld(Option<Event>);

impl NotHeld {
    pub(crate) fn new(failed: Event) -> Self {
        NotHeld(Some(failed))
    }
}

impl Locks for NotHeld {
    async fn acquire(&mut self) -> Result<MultiGuard, Event> {
        Err(self.0.take().expect("asked for once"))
    }

    async fn make_way(&mut self, guard: MultiGuard) -> Result<MultiGuard, Event> {
        Ok(guard)
    }

    async fn release(&mut self, _: MultiGuard, _: bool) -> Result<Option<String>, Loss> {
        Ok(None)
    }

    async fn leave(&mut self) {}
}

/// The locks of a request, and the group that ends with them.
pub(crate) struct Coprocess<'a> {
    acquisition: Acquisition<'a>,
    records: Records,
    end_with: Option<EndWith>,
    /// Of a keeper: what is done at the grant.
    alone: Option<Alone>,
}

/// How a hold goes on without the command that has asked for it.
pub(crate) struct Alone {
    /// Is notified of the grant.
    pub(crate) held: Arc<Notify>,
    /// Describes the bond, which begins with the grant.
    pub(crate) bond: Box<dyn Fn() -> String>,
}

impl<'a> Coprocess<'a> {
    /// Begins with nothing sent. `waits` hears of the queue ahead.
    pub(crate) fn new(request: &'a Request, waits: UnboundedSender<Ahead>, end_with: Option<EndWith>) -> Self {
        let mut acquisition = Acquisition::new(request, false);
        acquisition.report = Report::to(waits);
        Coprocess { acquisition, records: Records::default(), end_with, alone: None }
    }

    /// Goes on without its starter when it holds the locks. It leaves the starter's standard error: a reader of that would wait for its end.
    #[must_use]
    pub(crate) fn going_on_alone(self, alone: Alone) -> Self {
        Coprocess { alone: Some(alone), ..self }
    }

    /// Begins the records of a hold, and sets its group's end.
    fn begin(&mut self, guard: &MultiGuard) -> Result<(), Failure> {
        let request = self.acquisition.request;
        let keeper = self.acquisition.keeper.as_ref().expect("it granted the lock");
        if let Some(end_with) = &mut self.end_with {
            end_with.begin(request.grace(session_timeout(guard))?)?;
        }
        if let Some(alone) = &self.alone {
            alone.held.notify_one();
            if let Ok(null) = File::options().write(true).open("/dev/null") {
                _ = rustix::stdio::dup2_stderr(null);
            }
        }
        self.records = Records::begin(request.record_terms(), keeper, Held::All(guard), &self.acquisition.report);
        Ok(())
    }

    async fn granted(&mut self, granted: Result<MultiGuard, Failure>) -> Result<MultiGuard, Event> {
        let once = self.acquisition.request.once;
        let begun = granted.and_then(|guard| self.begin(&guard).map(|()| guard));
        begun.map_err(|failure| failed(&failure, once))
    }
}

impl Locks for Coprocess<'_> {
    async fn acquire(&mut self) -> Result<MultiGuard, Event> {
        let granted = self.acquisition.attempts().await;
        self.granted(granted).await
    }

    async fn make_way(&mut self, guard: MultiGuard) -> Result<MultiGuard, Event> {
        // The client uses nothing while it waits.
        if let Some(end_with) = &mut self.end_with {
            end_with.dismiss();
        }
        let records = std::mem::take(&mut self.records);
        let (again, _) = tokio::join!(self.acquisition.make_way(guard), records.finish());
        self.granted(again).await
    }

    fn bond(&self) -> Option<String> {
        self.alone.as_ref().map(|alone| (alone.bond)())
    }

    fn trusted(&mut self, guard: &MultiGuard) {
        if let Some(end_with) = &mut self.end_with {
            end_with.trusted(guard);
        }
    }

    fn lost(&mut self, loss: Loss) {
        if let Some(end_with) = &mut self.end_with {
            end_with.lost(loss);
        }
    }

    async fn release(&mut self, guard: MultiGuard, is_asked: bool) -> Result<Option<String>, Loss> {
        if let Some(end_with) = self.end_with.as_mut().filter(|_| !is_asked) {
            end_with.stop(&guard).await;
        }
        let (request, target) = (self.acquisition.request, self.acquisition.handover_target());
        let released = match target.filter(|_| is_asked) {
            Some(target) => target.hand_over(guard, &request.printer).await,
            None => release(guard, &request.locks()).await,
        };
        self.acquisition.released = matches!(released, Ok(None));
        released
    }

    async fn leave(&mut self) {
        if let Some(end_with) = &mut self.end_with {
            end_with.outlast().await;
        }
        std::mem::take(&mut self.records).finish().await;
        self.acquisition.leave(LEAVING).await;
    }
}

/// Returns the last event of a request that was not granted.
pub(crate) fn failed(failure: &Failure, once: bool) -> Event {
    let why = match failure.code {
        Code::NotAcquired if failure.cause != Cause::InstanceLock => "withdrawn",
        Code::NotAcquired if once => "taken",
        Code::NotAcquired => "timeout",
        Code::Usage => "usage",
        Code::Mismatch => "mismatch",
        Code::Unreachable => "unreachable",
        Code::Refused => "refused",
        _ => "internal",
    };
    let (message, hint) = (failure.message.clone(), failure.hint.clone());
    Event::Failed { why: why.to_owned(), exit_code: failure.code.status(), message, hint }
}

/// Returns the exit status after the last event.
pub(crate) fn status(last: &Event) -> u8 {
    match last {
        Event::Failed { exit_code, .. } => *exit_code,
        Event::Lost { .. } => Code::Lost.status(),
        _ => Code::Done.status(),
    }
}
