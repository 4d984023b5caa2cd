//! This user's server as a background process: `lockkeeper __serve DIR`, started by the first command that needs it.
//!
//! It belongs to no terminal and no command: it leaves the session that started it and closes everything that it
//! inherited. It ends when no session was open for a while, and only then removes its socket. If it is stopped while
//! sessions are open, a command with a session starts it again.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper::embedded::{RunningServer, ServerDir};
use lockkeeper::error::EmbeddedError;
use lockkeeper_server::ServerError;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::control::own_version;
use crate::exit::{Code, Failure};
use crate::inherited::{self, Kept};
use crate::serverlog;
use crate::settings;
use crate::signals::Signals;
use crate::streams::{self, STDERR};

/// The argument that starts this part of the program.
pub(crate) const WORD: &str = "__serve";

/// The file in the home by which a command of a newer version asks the server to end when no session is open.
pub(crate) const HANDOVER: &str = "handover";

/// The file in the home with the version of the server that runs there.
pub(crate) const RUNS: &str = "version";

/// Time that the server stays without a session.
const IDLE_EXIT: Duration = Duration::from_secs(600);

/// Time limit for the previous server to release the store.
const PREDECESSOR: Duration = Duration::from_secs(5);

/// Time to wait, after the socket is hidden, for clients that have connected just before.
const LATECOMERS: Duration = Duration::from_millis(500);

/// The line that reports to the process that started it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Readiness {
    /// Its socket is in its directory, and it answers.
    Ready {
        /// What the command that started it should print.
        notes: Vec<String>,
    },
    /// It cannot serve.
    Failed {
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
}

/// Serves until no client has needed the server for a while.
pub(crate) fn main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(dir) = words.next() else {
        return ExitCode::from(Code::Usage.status());
    };
    let outcome = detach().and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::system("cannot start an event loop", error))?;
        runtime.block_on(serve(&ServerDir::new(dir), inherited::reset()))
    });
    streams::flush();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let code = failure.code.status();
            report(&Readiness::Failed { message: failure.message, hint: failure.hint });
            ExitCode::from(code)
        }
    }
}

/// Detaches from the command that started this process. Nothing else runs in this process yet.
pub(crate) fn detach() -> Result<(), Failure> {
    std::env::set_current_dir("/").map_err(|error| Failure::system("cannot leave the directory", error))?;
    leave_session()
}

/// The same, in the directory where this process is.
pub(crate) fn leave_session() -> Result<(), Failure> {
    name();
    // It fails only for the leader of a group. The starter does not make this process one.
    _ = rustix::process::setsid();
    // The starter may have inherited descriptors itself: of a lock file, or of a pipe that another program reads to its
    // end.
    // On Linux, /dev/fd is a link to the first, which a small root may lack.
    let open = std::fs::read_dir("/proc/self/fd").or_else(|_| std::fs::read_dir("/dev/fd"));
    let open = open.map_err(|error| Failure::system("cannot list open files", error))?;
    let open: Vec<i32> = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // One of them belonged to the listing itself, and is closed already.
        _ = nix::unistd::close(descriptor);
    }
    Ok(())
}

/// Sets the name that `ps` shows: the program's, not that of the link by which it was started.
fn name() {
    #[cfg(target_os = "linux")]
    // It cannot fail for a valid string.
    let _ = rustix::thread::set_name(c"lockkeeper");
}

async fn serve(home: &ServerDir, kept: Kept) -> Result<(), Failure> {
    let mut signals = Signals::default();
    // Also those that the command ignored: `nohup`, and a shell's background jobs, do that for themselves only.
    signals.catch(&[Signal::TERM, Signal::INT, Signal::HUP])?;
    let idle_exit = match settings::variable("LOCKKEEPER_IDLE_EXIT") {
        Some(text) => humantime::parse_duration(&text)
            .map_err(|error| Failure::new(Code::Usage, format!("LOCKKEEPER_IDLE_EXIT is {text:?}: {error}")))?,
        None => IDLE_EXIT,
    };
    // Until the log is known to be this server's, its lines wait. Standard error is the starter's pipe.
    STDERR.hold();
    streams::log(&settings::variable("LOCKKEEPER_LOG").unwrap_or_else(|| "info".to_owned()));
    let Some(hosted) = wait_to_host(home).await? else {
        report(&Readiness::Ready { notes: Vec::new() });
        return Ok(());
    };
    // The request was for the server before.
    let handover = home.dir().join(HANDOVER);
    _ = std::fs::remove_file(&handover);
    // Without it, commands ask the server.
    _ = std::fs::write(home.dir().join(RUNS), own_version().to_string());
    let unwritable = |error| {
        let log = home.dir().join(serverlog::LOG);
        Failure::new(Code::Internal, format!("cannot write {}: {error}", log.display()))
    };
    let former = serverlog::open(home.dir()).map_err(unwritable)?;
    STDERR.release();
    streams::report_panics();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "started");
    kept.limits.iter().chain(&kept.others).for_each(|kept| tracing::warn!("{kept}"));
    report(&Readiness::Ready { notes: former.into_iter().chain(kept.limits).collect() });
    // The starter reads no further. /dev/null, which always exists, replaces the pipe.
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        _ = rustix::stdio::dup2_stdout(null);
    }
    tokio::select! {
        error = hosted.server().stopped() => {
            serverlog::ends(&error.to_string());
            return Err(Failure::new(Code::Internal, error.to_string()));
        }
        signal = signals.next() => serverlog::ends_as_asked(&format!("signal {}", signal.as_raw())),
        why = idle(&hosted, &handover, idle_exit) => serverlog::ends_as_asked(why),
    }
    // The next server reads the last line as soon as it has the store.
    streams::flush();
    hosted.shutdown().await.inspect_err(|error| serverlog::ends(&error.to_string()))?;
    Ok(())
}

/// Hosts the server of a home, once the server before it has released the store; `None` if another process hosts it already.
/// Dropping the future leaves no server.
pub(crate) async fn wait_to_host(home: &ServerDir) -> Result<Option<RunningServer>, EmbeddedError> {
    let deadline = Instant::now() + PREDECESSOR;
    loop {
        match home.host().await {
            Ok(hosted) => return Ok(Some(hosted)),
            // A server that is ending removes its socket before it releases the store.
            Err(EmbeddedError::Server(error))
                if matches!(*error, ServerError::InUse { .. }) && Instant::now() < deadline =>
            {
                if home.find()?.is_some() {
                    return Ok(None);
                }
                sleep(Duration::from_millis(10)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns why, when the server should end and its socket is removed: no client has used it for `patience`, or none uses it
/// now and there is a request for a newer version.
async fn idle(hosted: &RunningServer, handover: &Path, patience: Duration) -> &'static str {
    let used = || {
        let stats = hosted.server().stats();
        stats.sessions > 0 || stats.connections > 0
    };
    let socket = &hosted.endpoint().socket;
    let hidden = socket.with_extension("idle");
    let mut since = Instant::now();
    loop {
        // Polls: a check is a few loads, and the server offers no subscription to this.
        sleep((patience / 4).clamp(Duration::from_millis(10), Duration::from_secs(15))).await;
        if used() {
            since = Instant::now();
        }
        if !used() && !hosted.can_be_found() {
            return "its socket was removed";
        }
        let asked = !used() && handover.exists();
        if (since.elapsed() < patience && !asked) || std::fs::rename(socket, &hidden).is_err() {
            continue;
        }
        sleep(LATECOMERS).await;
        if !used() {
            _ = std::fs::remove_file(&hidden);
            return if asked { "a newer version asked for its place" } else { "no session was open for a while" };
        }
        _ = std::fs::rename(&hidden, socket);
        since = Instant::now();
    }
}

fn report(readiness: &Readiness) {
    let line = serde_json::to_string(readiness).expect("strings always serialise");
    // It fails if the starter was killed.
    _ = writeln!(std::io::stdout(), "{line}");
}
