//! This user's own server: found where it runs, started where it does not.
//!
//! Starters line up at a file lock, so of any number of first commands exactly one starts the server, and the others find it
//! ready when their turn comes. The lock goes with its process, whatever becomes of that.

use std::fs::{DirBuilder, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::embedded::{Endpoint, Home};
use lockkeeper::{Builder, Error, Lockkeeper};
use tokio::time::sleep;

use crate::daemon::{self, Readiness};
use crate::exit::{Code, Failure};
use crate::launcher::this_program;

/// How often to look whether the server that does not answer has been replaced.
const RECONSIDER: Duration = Duration::from_millis(200);

/// Connects to the server of a home, starting it if none runs.
pub(crate) async fn connect(home: &Home, builder: &Builder) -> Result<Lockkeeper, Failure> {
    loop {
        let endpoint = ensure(home).await?;
        if let Some(keeper) = join(home, &endpoint, builder).await? {
            return Ok(keeper);
        }
    }
}

/// Connects to the server of a home if one runs.
pub(crate) async fn connect_running(home: &Home, builder: &Builder) -> Result<Option<Lockkeeper>, Failure> {
    while let Some(endpoint) = home.find()? {
        if let Some(keeper) = join(home, &endpoint, builder).await? {
            return Ok(Some(keeper));
        }
    }
    Ok(None)
}

/// Connects to a server that was found; `None` if it is not the home's any more.
async fn join(home: &Home, endpoint: &Endpoint, builder: &Builder) -> Result<Option<Lockkeeper>, Failure> {
    let address = endpoint.address.to_string();
    let connecting = builder.clone().secret(&endpoint.secret).connect(&address);
    tokio::pin!(connecting);
    loop {
        tokio::select! {
            connected = &mut connecting => return match connected {
                Ok(keeper) => Ok(Some(keeper)),
                Err(Error::Unreachable { waited, .. }) => {
                    let waited = humantime::format_duration(Duration::from_millis(waited.as_millis() as u64));
                    let Endpoint { address, pid, .. } = endpoint;
                    Err(Failure::new(
                        Code::Unreachable,
                        format!("this user's server at {address} (pid {pid}) opened no session within {waited}"),
                    )
                    .hint(format!("look into {}; end it with: kill {pid}", home.dir().join(daemon::LOG).display())))
                }
                Err(error) => Err(error.into()),
            },
            // It may be on its way out: then its successor answers elsewhere.
            () = sleep(RECONSIDER) => if home.find()?.is_none_or(|now| now != *endpoint) {
                return Ok(None);
            },
        }
    }
}

/// The server of a home, started if none runs.
async fn ensure(home: &Home) -> Result<Endpoint, Failure> {
    if let Some(endpoint) = home.find()? {
        return Ok(endpoint);
    }
    let home = home.clone();
    // On a thread of its own, for it waits for files and processes. If this command ends first, the thread just ends.
    let started = tokio::task::spawn_blocking(move || ensure_blocking(&home)).await;
    started.map_err(|error| Failure::system("starting the server failed", error))?
}

fn ensure_blocking(home: &Home) -> Result<Endpoint, Failure> {
    let dir = home.dir();
    let cannot = |what: &str, error: std::io::Error| {
        Failure::new(Code::CannotServe, format!("cannot {what} {}: {}", dir.display(), error))
            .hint("choose another directory: --state-dir, LOCKKEEPER_STATE_DIR; or an ensemble: --servers")
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| cannot("make", error))?;
    let turn = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join("starting"))
        .map_err(|error| cannot("write in", error))?;
    turn.lock().map_err(|error| cannot("lock a file in", error))?;
    if let Some(endpoint) = home.find()? {
        return Ok(endpoint);
    }
    start(home)?;
    home.find()?.ok_or_else(|| {
        Failure::new(Code::CannotServe, "the server ended as soon as it was started")
            .hint(format!("look into {}", dir.join(daemon::LOG).display()))
    })
}

/// Starts the server and returns when it is ready.
fn start(home: &Home) -> Result<(), Failure> {
    let failed = |error| Failure::system("cannot start this user's server", error);
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    // Nothing of ours but this pipe: with our standard output it would keep `lockkeeper run x -- true | cat` waiting.
    let mut server = this_program(daemon::WORD);
    server.arg(home.dir()).stdin(Stdio::null());
    server.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let mut child = server.spawn().map_err(failed)?;
    // It holds the pipe's other end.
    drop(server);
    let mut reader = BufReader::new(reader);
    let mut answer = String::new();
    reader.read_line(&mut answer).map_err(failed)?;
    match serde_json::from_str(&answer) {
        Ok(Readiness::Ready) => Ok(()),
        Ok(Readiness::Failed { message, hint }) => {
            _ = child.wait();
            let failure = Failure::new(Code::CannotServe, format!("cannot start this user's server: {message}"));
            Err(Failure { hint, ..failure })
        }
        Err(_) => {
            // It has written something else, or nothing: both mean that it is ending.
            _ = reader.read_to_string(&mut answer);
            let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let said = answer.split_whitespace().collect::<Vec<_>>().join(" ");
            Err(Failure::new(Code::CannotServe, format!("this user's server ended with {how}: {said}")))
        }
    }
}
