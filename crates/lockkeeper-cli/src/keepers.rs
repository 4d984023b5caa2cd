//! The holds that outlive the command that acquired them: each has a keeper, a process with a socket in the state directory.
//!
//! The directory is this user's own, and only this user may enter it. Both sides check who is at the other end.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use lockkeeper_hold::Remote;
use tokio::net::UnixListener;
use tokio::time::timeout;

use crate::advice::Suggested;
use crate::args::connect::ConnectArgs;
use crate::exit::{Code, Failure};
use crate::output::Printer;
use crate::settings::{Settings, state_dir, variable};

/// The variable with the id of a hold, as `acquire --shell` sets it.
pub(crate) const HOLD: &str = "LOCKKEEPER_HOLD";

/// Time limit for a keeper to say how its hold is.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// How many letters an id has.
const ID: usize = 8;

/// The keepers of this user.
pub(crate) struct Keepers {
    dir: PathBuf,
}

impl Keepers {
    /// Returns those of the state directory that the options and settings name.
    pub(crate) fn of(connect: &ConnectArgs, printer: &Printer) -> Result<Self, Failure> {
        let (settings, _) = Settings::read_all(connect.clone(), printer)?;
        Ok(Keepers { dir: state_dir(&settings)?.join("holds") })
    }

    /// Creates the directory, and checks that it is this user's own.
    pub(crate) fn create(&self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::system(&format!("cannot use {}", self.dir.display()), error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(failed)?;
        let found = self.dir.symlink_metadata().map_err(failed)?;
        if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 || !found.is_dir() {
            let message = format!("{} can be entered by other users", self.dir.display());
            return Err(Failure::new(Code::Refused, message).hint("make it this user's own directory, with mode 0700"));
        }
        Ok(())
    }

    /// Returns a new id. No other hold has it.
    pub(crate) fn new_id(&self) -> String {
        loop {
            let id = format!("{:08x}", fastrand::u32(..));
            if !self.socket(&id).exists() {
                return id;
            }
        }
    }

    /// Serves the socket of a hold. It appears when it is served, so that one that refuses belongs to a keeper that was killed.
    pub(crate) fn serve(&self, id: &str) -> Result<UnixListener, Failure> {
        let (socket, new) = (self.socket(id), self.dir.join(format!("{id}.new")));
        let served = UnixListener::bind(&new).and_then(|listener| {
            std::fs::rename(&new, &socket)?;
            Ok(listener)
        });
        served.map_err(|error| {
            let is_too_long = error.kind() == ErrorKind::InvalidInput;
            let failure = Failure::system(&format!("cannot serve {}", socket.display()), error);
            if is_too_long { failure.hint("choose a shorter directory with --state-dir") } else { failure }
        })
    }

    /// Returns the path of a hold's socket.
    pub(crate) fn socket(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.sock"))
    }

    /// Returns the hold of an id, or of the variable.
    pub(crate) async fn find(&self, id: Option<&str>) -> Result<(String, Remote), Failure> {
        let Some(id) = id.map(str::to_owned).or_else(|| variable(HOLD)) else {
            return Err(Failure::new(Code::Usage, format!("no hold is named, and {HOLD} is not set"))
                .hint("name the id that lockkeeper acquire has printed")
                .advise("list the holds", Suggested::new(["holds"])));
        };
        let unknown = || {
            Failure::new(Code::NoSuchLock, format!("no hold of this user has the id {id:?}"))
                .hint("it is over, or is another user's")
                .advise("list the holds", Suggested::new(["holds"]))
        };
        if id.len() != ID || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(unknown());
        }
        match self.connect(&id).await {
            Ok(Some(remote)) => Ok((id, remote)),
            Ok(None) => Err(unknown()),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                Err(Failure::new(Code::Lost, format!("the keeper of the hold {id} was killed"))
                    .hint("the lock is free when its session ends"))
            }
            Err(error) => Err(Failure::system(&format!("cannot ask the keeper of {id}"), error)),
        }
    }

    /// Returns all holds, by their ids, and what is wrong with those of which nothing is known.
    pub(crate) async fn all(&self) -> Result<(Vec<(String, Remote)>, Vec<(String, std::io::Error)>), Failure> {
        let files = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Failure::system(&format!("cannot read {}", self.dir.display()), error));
            }
            files => files.into_iter().flatten().flatten(),
        };
        let ids = files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".sock")?.to_owned()));
        let mut ids: Vec<_> = ids.collect();
        ids.sort();
        let (mut all, mut silent) = (Vec::new(), Vec::new());
        let asked = join_all(ids.iter().map(|id| self.connect(id))).await;
        for (id, answer) in ids.into_iter().zip(asked) {
            match answer {
                Ok(Some(remote)) => all.push((id, remote)),
                Ok(None) => {}
                Err(error) => silent.push((id, error)),
            }
        }
        Ok((all, silent))
    }

    /// Connects to a keeper; `None` if there is none. One that was killed has left its socket, which is removed, and refuses.
    async fn connect(&self, id: &str) -> std::io::Result<Option<Remote>> {
        let socket = self.socket(id);
        match timeout(PATIENCE, Remote::connect(&socket)).await {
            Ok(Ok(remote)) => Ok(Some(remote)),
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                remove(&socket);
                Err(std::io::Error::new(error.kind(), "it was killed; its lock is free when its session ends"))
            }
            Ok(Err(error)) if [ErrorKind::NotFound, ErrorKind::UnexpectedEof].contains(&error.kind()) => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(std::io::Error::new(ErrorKind::TimedOut, "it does not answer")),
        }
    }
}

/// Removes a socket, if it is there.
pub(crate) fn remove(socket: &Path) {
    _ = std::fs::remove_file(socket);
}
