//! What a command does to the server of a home: starts it, asks how it is, stops it, and puts another one in its place.
//!
//! Invariant: a command that changes the server has the turn to start it, and while the server is stopped it has the lock
//! of the store. So no other command or program starts one meanwhile, and there are never two servers of one store.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::embedded::{Endpoint, ServerDir, StartLock};
use lockkeeper_server::VERSION;
use lockkeeper_session::process::open_own;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use semver::Version;
use tokio::time::{Instant, timeout};

use crate::advice::Suggested;
use crate::daemon::{self, Readiness};
use crate::exit::{self, Code, Failure};
use crate::inherited;
use crate::output::Printer;
use crate::program::{not_started, this_program};

/// Time limit for a server to write what it has and to end.
const ENDING: Duration = Duration::from_secs(30);

/// The same for a server that is then killed. It loses nothing that it has acknowledged.
const BEFORE_KILL: Duration = Duration::from_secs(5);

/// Time limit for a server to answer a command that could do without.
const PATIENCE: Duration = Duration::from_millis(250);

/// How a running server is.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Its version; `None` if it is of another kind.
    pub version: Option<Version>,
    pub uptime: Duration,
    pub sessions: u64,
    /// The nodes that end with a session: those of holders and waiters.
    pub contenders: u64,
    pub nodes: u64,
}

/// Returns the server that runs in a home.
///
/// # Errors
/// The directory cannot be used; the hint depends on whose directory it is.
pub(crate) fn find(home: &ServerDir) -> Result<Option<Endpoint>, Failure> {
    home.find().map_err(|error| exit::of_home(home, error))
}

/// Asks a server how it is. Dropping the future leaves no connection.
pub(crate) async fn report(endpoint: &Endpoint) -> std::io::Result<Report> {
    let answer = endpoint.ask("mntr").await?;
    let value = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
    let number = |name: &str| value(name).and_then(|number| number.parse().ok()).unwrap_or(0);
    Ok(Report {
        version: value("zk_version").and_then(version),
        uptime: Duration::from_millis(number("zk_uptime")),
        sessions: number("zk_global_sessions"),
        contenders: number("zk_ephemerals_count"),
        nodes: number("zk_znode_count"),
    })
}

/// Asks a server whether it answers at all. Dropping the future leaves no connection.
///
/// # Errors
/// It does not answer in time, or refuses this client.
pub(crate) async fn answers(endpoint: &Endpoint) -> std::io::Result<()> {
    timeout(PATIENCE, endpoint.ask("ruok")).await?.map(|_| ())
}

/// Returns the version of lockkeeper in a server's version.
fn version(text: &str) -> Option<Version> {
    Version::parse(text.split_once("-lockkeeper-")?.1.split([',', ' ']).next()?).ok()
}

/// Returns the version of this program.
pub(crate) fn own_version() -> Version {
    version(VERSION).expect("the version of a package is a semantic version")
}

/// Puts a server of this program's version in the place of an older one. Returns whether the older one was stopped.
///
/// It does so at once if no client holds a lock or waits for one. Otherwise it asks the server to end as soon as no
/// session is open; the next command starts a newer one. A newer server stays. Nothing here is necessary for the command:
/// after a failure, it uses the server as it is.
///
/// Dropping the future leaves the older server, or none, or the newer one.
pub(crate) async fn hand_over(home: &ServerDir, endpoint: &Endpoint, printer: Printer) -> bool {
    // Nearly always it is of this version, which its file says without a question to it.
    let told = std::fs::read_to_string(home.dir().join(daemon::RUNS)).ok();
    if told.and_then(|text| Version::parse(text.trim()).ok()).is_some_and(|version| version >= own_version()) {
        return false;
    }
    let Ok(Ok(found)) = timeout(PATIENCE, report(endpoint)).await else { return false };
    if !is_older(&found) || !matches!(process(home, endpoint).await, Ok(Some(_))) {
        return false;
    }
    if found.contenders > 0 {
        // If it is there, another command has asked.
        _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(home.dir().join(daemon::HANDOVER));
        return false;
    }
    let Ok(turn) = start_lock(home).await else { return false };
    // Another command may have had the turn before.
    let still = async { report(&home.find().ok()??).await.ok() };
    if !still.await.is_some_and(|found| is_older(&found) && found.contenders == 0) {
        return false;
    }
    let Ok(Some(stopped)) = stop(home, false).await else { return false };
    // If it does not start, the caller tries again and says why.
    _ = start_again(home, turn, stopped, printer).await;
    true
}

fn is_older(found: &Report) -> bool {
    found.version.as_ref().is_some_and(|version| *version < own_version())
}

/// Waits for the right to start the server. Dropping the future leaves a thread that waits for it, and gives it back.
pub(crate) async fn start_lock(home: &ServerDir) -> Result<StartLock, Failure> {
    let home = home.clone();
    let turn = tokio::task::spawn_blocking(move || home.start_lock()).await;
    Ok(turn.map_err(|error| Failure::system("cannot wait for the turn", error))??)
}

/// The store of a home without a server. Until the drop, no server can be started there.
#[derive(Debug)]
pub(crate) struct Stopped {
    _lock: File,
    /// When the server got the signal to stop.
    pub since: Instant,
}

/// Stops the server, and returns when everything that it acknowledged is on disk; `None` if there is no store. The caller
/// has the turn. With `kill`, a server that does not end by itself is killed.
///
/// Dropping the future leaves a server that is ending.
pub(crate) async fn stop(home: &ServerDir, kill: bool) -> Result<Option<Stopped>, Failure> {
    let since = Instant::now();
    let server = match find(home)? {
        Some(endpoint) => process(home, &endpoint).await?,
        None => None,
    };
    let file = home.dir().join("data").join("lock");
    let failed = |error| Failure::new(Code::Internal, format!("cannot lock {}: {error}", file.display()));
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let lock = match OpenOptions::new().read(true).custom_flags(no_link).open(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => match server {
            // Somebody has removed the lock of a running server, whose end nothing else shows. The next server makes another one.
            Some(server) => return stop_unlocked(server, &file, kill, since).await.map(Some),
            None => return Ok(None),
        },
        lock => lock.map_err(failed)?,
    };
    if let Some(server) = server {
        signal(server, Signal::TERM)?;
    }
    // On a thread that may block: the server's release of the lock is the only event of its end.
    let mut waiting = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock));
    let mut ended = timeout(if kill { BEFORE_KILL } else { ENDING }, &mut waiting).await;
    if let (Err(_), true, Some(server)) = (&ended, kill, server) {
        signal(server, Signal::KILL)?;
        ended = timeout(ENDING, waiting).await;
    }
    match ended {
        Ok(Ok(lock)) => Ok(Some(Stopped { _lock: lock.map_err(failed)?, since })),
        Ok(Err(error)) => Err(Failure::system("cannot wait for the end of the server", error)),
        Err(_) => {
            let message =
                format!("{} is still in use {ENDING:?} after its server got the signal to stop", file.display());
            Err(Failure::new(Code::Internal, message)
                .advise("kill the server", Suggested::new(["server", "stop", "--force"])))
        }
    }
}

/// Stops a server whose lock somebody has removed, and locks a new one in its place. Dropping the future leaves a server that is
/// ending, and a thread that waits for that.
async fn stop_unlocked(server: Pid, file: &Path, kill: bool, since: Instant) -> Result<Stopped, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(
            Code::Internal,
            format!("cannot wait for the end of the server without {}: {error}", file.display()),
        )
    };
    let mut ended = until_ended(server).map_err(failed)?;
    signal(server, Signal::TERM)?;
    if timeout(if kill { BEFORE_KILL } else { ENDING }, &mut ended).await.is_err() {
        if !kill {
            let message = format!("the server still runs {ENDING:?} after it got the signal to stop");
            return Err(Failure::new(Code::Internal, message)
                .advise("kill the server", Suggested::new(["server", "stop", "--force"])));
        }
        signal(server, Signal::KILL)?;
        _ = timeout(ENDING, ended).await;
    }
    let lock =
        open_own(file, OpenOptions::new().read(true).write(true).create(true).truncate(false)).map_err(failed)?;
    lock.lock().map_err(failed)?;
    Ok(Stopped { _lock: lock, since })
}

/// Waits for the end of a process that is no child, on a thread that may block.
#[cfg(target_os = "linux")]
pub(crate) fn until_ended(process: Pid) -> std::io::Result<tokio::task::JoinHandle<()>> {
    use rustix::event::{PollFd, PollFlags, poll};
    let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())?;
    Ok(tokio::task::spawn_blocking(move || {
        while matches!(poll(&mut [PollFd::new(&process, PollFlags::IN)], None), Err(Errno::INTR)) {}
    }))
}

/// The same for systems that have no event for it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn until_ended(process: Pid) -> std::io::Result<tokio::task::JoinHandle<()>> {
    Ok(tokio::spawn(async move {
        while rustix::process::test_kill_process(process).is_ok() {
            tokio::time::sleep(PATIENCE).await;
        }
    }))
}

fn signal(server: Pid, signal: Signal) -> Result<(), Failure> {
    match rustix::process::kill_process(server, signal) {
        // It has just ended by itself.
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => {
            let message = format!("cannot stop process {}: {error}", server.as_raw_nonzero());
            Err(Failure::new(Code::Refused, message))
        }
    }
}

/// Starts this user's own server again after a stop. Dropping the future leaves a server that starts.
pub(crate) async fn start_again(
    home: &ServerDir,
    turn: StartLock,
    stopped: Stopped,
    printer: Printer,
) -> Result<(), Failure> {
    drop(stopped);
    let home = home.clone();
    let started = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        start(&home, printer)
    });
    started.await.map_err(|error| Failure::system("starting the server failed", error))?
}

/// Starts this user's own server and returns when it is ready. The caller has the turn. Blocks this thread.
pub(crate) fn start(home: &ServerDir, printer: Printer) -> Result<(), Failure> {
    let failed = |error| Failure::system("cannot start this user's server", error);
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    // The server inherits only this pipe. With our standard output, it would keep `lockkeeper run x -- true | cat`
    // waiting.
    let mut server = this_program(daemon::WORD);
    inherited::few_variables(&mut server);
    server.arg(home.dir()).stdin(Stdio::null());
    server.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let mut child = server.spawn().map_err(|error| not_started("cannot start this user's server", error))?;
    // `server` holds the other end of the pipe.
    drop(server);
    let mut reader = BufReader::new(reader);
    let mut answer = String::new();
    reader.read_line(&mut answer).map_err(failed)?;
    match serde_json::from_str(&answer) {
        Ok(Readiness::Ready { notes }) => {
            notes.iter().for_each(|note| printer.note(note));
            // If the server ends before this command, it would stay as a zombie. Without a thread it does.
            let reap = std::thread::Builder::new().name("lockkeeper-reap".to_owned());
            _ = reap.spawn(move || child.wait());
            Ok(())
        }
        Ok(Readiness::Failed { message, hint }) => {
            _ = child.wait();
            let failure = Failure::new(Code::Internal, format!("cannot start this user's server: {message}"));
            Err(Failure { hint, ..failure })
        }
        Err(_) => {
            // It wrote something else, or nothing: in both cases it is ending.
            _ = reader.read_to_string(&mut answer);
            let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let said = answer.split_whitespace().collect::<Vec<_>>().join(" ");
            Err(Failure::new(Code::Internal, format!("this user's server ended with {how}: {said}")))
        }
    }
}

/// Returns the process of the server, which must be a server and nothing else; `None` if it has just ended.
///
/// # Errors
/// The home belongs to another user, or another program hosts the server.
async fn process(home: &ServerDir, endpoint: &Endpoint) -> Result<Option<Pid>, Failure> {
    check_owner(home.dir())?;
    let pid = match endpoint.pid().await {
        Ok(pid) => pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)),
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => return Ok(None),
        Err(error) => {
            let message = format!("cannot ask for the process behind {}: {error}", endpoint.socket.display());
            return Err(Failure::new(Code::Internal, message));
        }
    };
    let Some(pid) = pid else {
        return Err(Failure::new(Code::Refused, "the server's process cannot be seen from here")
            .hint("it runs in another container: run this there"));
    };
    let number = pid.as_raw_nonzero();
    let command = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
    let word = if home.is_shared() { "serve" } else { daemon::WORD };
    if command.split(|byte| *byte == 0).skip(1).any(|found| found == word.as_bytes()) {
        return Ok(Some(pid));
    }
    let name = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    Err(Failure::new(Code::Refused, format!("process {number} ({}) hosts the server", name.trim()))
        .hint("it is a part of that program, and ends with it"))
}

/// Refuses the home of another user: what a command leaves there would not be that user's.
pub(crate) fn check_owner(dir: &Path) -> Result<(), Failure> {
    let owner = match dir.metadata() {
        Ok(found) => found.uid(),
        // There is none yet.
        Err(_) => return Ok(()),
    };
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(Failure::new(Code::Refused, format!("{} belongs to user {owner}", dir.display()))
        .hint(format!("run this as that user, with sudo -u '#{owner}' before it; a service is stopped by its manager")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_servers_are_compared_as_versions() {
        let parsed = |text: &str| version(text).map(|version| version.to_string());
        assert_eq!(parsed("3.9.5-lockkeeper-0.10.0-rc.1").as_deref(), Some("0.10.0-rc.1"));
        assert_eq!(parsed("3.9.5-lockkeeper-0.1.0, built on x").as_deref(), Some("0.1.0"));
        assert_eq!(parsed("3.9.5-f0fdd5c"), None);
        assert!(version("3.9.5-lockkeeper-0.9.0") < version("3.9.5-lockkeeper-0.10.0"));
        assert!(version("3.9.5-lockkeeper-0.10.0-rc.1") < version("3.9.5-lockkeeper-0.10.0"));
    }
}
