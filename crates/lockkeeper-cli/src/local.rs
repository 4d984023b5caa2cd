//! Finds this user's own server, and starts it if it does not run.
//!
//! Starters take turns by a file lock. So of several first commands exactly one starts the server, and the others find
//! it ready. The same happens when a server ends while commands use it: each command that loses its connection looks
//! for the server, and the first one starts it again.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::embedded::{Endpoint, ServerDir, StartMode, StartServer};
use lockkeeper::error::{ConnectError, EmbeddedError, SessionError};
use lockkeeper::{Builder, Lockkeeper};
use lockkeeper_session::text::spell;
use tokio::time::Instant;

use crate::advice::{self, Suggested};
use crate::control;
use crate::exit::{Code, Failure};
use crate::output::Printer;
use crate::place::Place;
use crate::serverlog::{self, LOG};

/// Connects to the server of a home, and starts it if none runs. If the server ends before the session, it is started
/// again. Each start prints why the last server ended, unless it ended as it should.
///
/// Dropping the future leaves no session; a server that was being started stays.
pub(crate) async fn connect(home: &ServerDir, builder: &Builder, printer: &Printer) -> Result<Lockkeeper, Failure> {
    if home.is_shared() {
        // The administrator starts a shared server.
        return connect_running(home, builder).await;
    }
    // Called for its error messages; the connection would also start the server.
    let found = ensure(home, *printer).await?;
    join(home, builder, StartMode::Starting(starter(home.clone(), *printer)), found).await
}

/// Connects to the server of a home if one runs.
///
/// # Errors
/// [`not_running`] if no server runs.
pub(crate) async fn connect_running(home: &ServerDir, builder: &Builder) -> Result<Lockkeeper, Failure> {
    let found = control::find(home)?.ok_or_else(|| not_running(home))?;
    join(home, builder, StartMode::Never, found).await
}

/// Connects to the server of a home, and starts it if it ended because nobody used it. A home that never had a server has no
/// records: it gets none.
///
/// # Errors
/// [`not_running`] if no server runs, and none has data there.
pub(crate) async fn connect_to_records(
    home: &ServerDir,
    builder: &Builder,
    printer: &Printer,
) -> Result<Lockkeeper, Failure> {
    match home.dir().join("data").is_dir() {
        true => connect(home, builder, printer).await,
        false => connect_running(home, builder).await,
    }
}

/// Returns the failure for a home without a running server.
pub(crate) fn not_running(home: &ServerDir) -> Failure {
    let place = Place::Machine(home.clone());
    if home.dir().exists() && !home.dir().is_dir() {
        let message = format!("{place} cannot run: {} is not a directory", home.dir().display());
        return Failure::new(Code::Unreachable, message)
            .hint("choose a directory with --machine=DIR or --state-dir, or an ensemble with --servers");
    }
    let ended =
        serverlog::why_it_ended(&home.dir().join(LOG)).map_or_else(String::new, |why| format!("; it ended: {why}"));
    let message = format!("{place} is not running (its directory is {}){ended}", home.dir().display());
    let failure = Failure::new(Code::Unreachable, message);
    match home.is_shared() {
        true => failure.hint(format!(
            "the administrator of this machine starts it, as a service or with: lockkeeper serve {}",
            advice::machine(home)
        )),
        false => {
            let failure = failure
                .hint("lockkeeper run starts it; commands that hold a lock or wait start it again within a second");
            // Without data, there would be nothing to look at, so nothing starts it.
            match home.dir().join("data").is_dir() {
                true => failure.advise("start it and look how it is", Suggested::new(["doctor"])),
                false => failure,
            }
        }
    }
}

/// Starts the server again for a session that has lost it.
fn starter(home: ServerDir, printer: Printer) -> StartServer {
    Arc::new(move || {
        let home = home.clone();
        Box::pin(async move {
            let (servers, started) = (home.dir().display().to_string(), Instant::now());
            let start = tokio::task::spawn_blocking(move || control::start(&home, printer));
            let failure = match start.await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Failure { message, hint: Some(hint), .. })) => format!("{message} ({hint})"),
                Ok(Err(failure)) => failure.message,
                Err(error) => error.to_string(),
            };
            Err(SessionError::Unreachable { servers, waited: started.elapsed(), detail: failure })
        })
    })
}

/// Returns the failure of an attempt that ended without a session after this time. Asks the server, if one runs, whether it
/// answers at all. `detail` may be empty. Dropping the future leaves no connection.
pub(crate) async fn no_session(home: &ServerDir, waited: Duration, detail: &str) -> Failure {
    let waited = spell(waited);
    let place = Place::Machine(home.clone());
    let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
    let log = home.dir().join(LOG);
    let endpoint = match home.find() {
        Ok(Some(endpoint)) => endpoint,
        Ok(None) => {
            let message = format!("{place} does not run, and opened no session within {waited}{detail}");
            let failure = Failure::new(Code::Unreachable, message);
            return match serverlog::why_it_ended(&log) {
                Some(why) => failure.hint(format!("the last server ended: {why} (see {})", log.display())),
                None => failure,
            };
        }
        Err(error) => return error.into(),
    };
    let pid = match endpoint.pid().await {
        Ok(Some(pid)) => format!(" (pid {pid})"),
        _ => String::new(),
    };
    match control::answers(&endpoint).await {
        Err(error) if error.kind() == ErrorKind::QuotaExceeded => {
            Failure::new(Code::Unreachable, format!("{place}{pid} refuses this client: {error}"))
                .hint("end some, wait until some have ended, or ask who runs the server to raise the limit")
        }
        Ok(()) => Failure::new(Code::Unreachable, format!("{place}{pid} opened no session within {waited}{detail}"))
            .hint(format!("look into {}", log.display())),
        Err(_) => {
            let failure = Failure::new(Code::Unreachable, format!("{place}{pid} runs and does not answer"));
            match home.is_shared() {
                true => failure.hint(format!(
                    "its owner ends it, by SIGKILL if it must, with: lockkeeper server stop --force {}",
                    advice::machine(home)
                )),
                false => failure.advise(
                    "end it, by SIGKILL if it must; the next command starts another one",
                    Suggested::new(["server", "stop", "--force"]),
                ),
            }
        }
    }
}

async fn join(home: &ServerDir, builder: &Builder, hosting: StartMode, found: Endpoint) -> Result<Lockkeeper, Failure> {
    match builder.clone().embedded_at(home.clone(), hosting, Some(found)).await {
        Err(ConnectError::Session(SessionError::Unreachable { waited, detail, .. })) => {
            Err(no_session(home, waited, &detail).await)
        }
        Err(ConnectError::Session(SessionError::Embedded(EmbeddedError::NotRunning { .. }))) => Err(not_running(home)),
        other => Ok(other?),
    }
}

/// Returns the server of a home; starts it if none runs.
async fn ensure(home: &ServerDir, printer: Printer) -> Result<Endpoint, Failure> {
    if let Some(endpoint) = control::find(home)?
        && !control::hand_over(home, &endpoint, printer).await
    {
        return Ok(endpoint);
    }
    let home = home.clone();
    // On a separate thread, because it waits for files and processes. If this command ends first, the thread ends too.
    let started = tokio::task::spawn_blocking(move || ensure_blocking(&home, printer)).await;
    started.map_err(|error| Failure::system("starting the server failed", error))?
}

fn ensure_blocking(home: &ServerDir, printer: Printer) -> Result<Endpoint, Failure> {
    let dir = home.dir();
    let _turn = home.start_lock().map_err(|error| {
        Failure::new(Code::Internal, error.to_string())
            .hint("choose another directory: --state-dir, LOCKKEEPER_STATE_DIR; or an ensemble: --servers")
    })?;
    if let Some(endpoint) = control::find(home)? {
        return Ok(endpoint);
    }
    control::start(home, printer)?;
    control::find(home)?.ok_or_else(|| {
        Failure::new(Code::Internal, "the server ended as soon as it was started")
            .hint(format!("look into {}", dir.join(LOG).display()))
    })
}
