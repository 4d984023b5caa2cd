//! `lockkeeper server`: shows the server of this machine, stops it, starts it again, and copies its data.

mod args;
mod backup;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use lockkeeper::Builder;
use lockkeeper::admin::TokenEpoch;
use lockkeeper::embedded::{Endpoint, ServerDir, ServerError, StartLock};
use lockkeeper::error::EmbeddedError;
use lockkeeper_session::text::spell;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Serialize;
use tokio::time::{Instant, sleep};

pub(crate) use self::args::ServerArgs;
use self::args::ServerVerb;
use self::backup::Copied;
use crate::advice::Suggested;
use crate::args::common::Common;
use crate::control::{self, Report};
use crate::daemon;
use crate::exit::{Code, Failure};
use crate::liveline::whole;
use crate::local;
use crate::output::{self, Printer};
use crate::place::Place;
use crate::settings::Settings;
use crate::text::{counted, moment, plain};
use crate::verb::{Context, Verb};

impl Verb for ServerArgs {
    fn common(&self) -> Option<&Common> {
        Some(self.verb.common())
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        server(self, context.printer).await
    }
}

/// How long a service manager may take to start a shared server again, and the pause between looks.
const RESTARTED: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// What is done on one server.
struct Desk {
    home: ServerDir,
    place: Place,
    builder: Builder,
    printer: Printer,
}

/// Obeys the verb; returns the exit status.
async fn server(args: ServerArgs, printer: &Printer) -> Result<u8, Failure> {
    let settings = Settings::read(args.verb.common().connect.clone(), printer)?;
    let Place::Machine(home) = &settings.place else {
        return Err(Failure::new(Code::Usage, format!("{} is not a server of this machine", settings.place))
            .hint("leave out --servers and LOCKKEEPER_SERVERS, or name a directory with --state-dir or --machine"));
    };
    let (home, place, builder) = (home.clone(), settings.place.clone(), settings.builder());
    let desk = Desk { home, place, builder, printer: *printer };
    match args.verb {
        ServerVerb::Status { .. } => desk.status().await,
        ServerVerb::Stop { force, .. } => desk.stop(force).await,
        ServerVerb::Restart { .. } => desk.restart().await,
        ServerVerb::Backup { directory, .. } => desk.backup(&directory).await,
        ServerVerb::Restore { directory, force, .. } => desk.restore(&directory, force).await,
    }
}

/// The answer of `status`, as `--json` shows it. These fields are documented and stay.
#[derive(Default, Serialize)]
struct Status {
    running: bool,
    pid: Option<u32>,
    uid: Option<u32>,
    version: Option<String>,
    command_version: String,
    since: Option<String>,
    uptime_ms: Option<u64>,
    sessions: Option<u64>,
    contenders: Option<u64>,
    nodes: Option<u64>,
    directory: String,
    data_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Stopped {
    stopped: bool,
}

#[derive(Serialize)]
struct Restarted {
    version: Option<String>,
    paused_ms: u64,
}

#[derive(Serialize)]
struct BackedUp {
    directory: String,
    files: u64,
    bytes: u64,
    paused_ms: u64,
}

#[derive(Serialize)]
struct Restored {
    directory: String,
    kept: Option<String>,
    epoch: u32,
    above: i64,
}

impl Desk {
    async fn status(&self) -> Result<u8, Failure> {
        let directory = self.home.dir().display().to_string();
        let data_bytes = size(&self.data());
        let own = control::own_version().to_string();
        let Some(endpoint) = control::find(&self.home)? else {
            let status = Status { directory, data_bytes, command_version: own, ..Status::default() };
            let place = &self.place;
            self.say(&format!("{place} is not running (its directory is {})\n", status.directory), &status)?;
            return Ok(Code::Unreachable.status());
        };
        let (pid, report) = (endpoint.pid().await.ok().flatten(), self.report(&endpoint).await?);
        let Report { version, uptime, sessions, contenders, nodes } = report;
        let since = SystemTime::now().checked_sub(uptime).unwrap_or(SystemTime::UNIX_EPOCH);
        // The server has made its socket.
        let uid = endpoint.socket.metadata().ok().map(|socket| socket.uid());
        let status = Status {
            running: true,
            pid,
            uid,
            version: version.map(|version| version.to_string()),
            command_version: own,
            since: Timestamp::try_from(since).ok().map(|since| format!("{since:.0}")),
            uptime_ms: u64::try_from(uptime.as_millis()).ok(),
            sessions: Some(sessions),
            contenders: Some(contenders),
            nodes: Some(nodes),
            directory,
            data_bytes,
        };
        let shown = |number: Option<u32>| number.map_or_else(|| "unknown".to_owned(), |number| number.to_string());
        let text = format!(
            "{} is running\n  process    {} of user {}\n  version    {} (this command: {})\n  since      {} ({})\n  \
             sessions   {sessions}, with {}\n  directory  {}\n  data       {}, {}\n",
            self.place,
            shown(pid),
            shown(uid),
            status.version.as_deref().unwrap_or("unknown"),
            status.command_version,
            moment(since),
            whole(uptime),
            counted(contenders, "holder or waiter").replace("holder or waiters", "holders or waiters"),
            status.directory,
            counted(nodes, "node"),
            data_bytes.map_or_else(|| "of a size that this user may not see".to_owned(), crate::text::bytes),
        );
        self.say(&text, &status)?;
        Ok(0)
    }

    async fn stop(&self, force: bool) -> Result<u8, Failure> {
        control::check_owner(self.home.dir())?;
        let Some(endpoint) = control::find(&self.home)? else {
            self.say(&format!("{} is not running\n", self.place), &Stopped { stopped: false })?;
            return Ok(0);
        };
        // A server that does not answer is stopped only by force.
        if !force {
            let sessions = self.report(&endpoint).await?.sessions;
            let hint = match self.home.is_shared() {
                true => "end their commands, or use --force: their holders lose their locks; a restart keeps them",
                false => "their commands would start it again: end them first; a restart keeps their locks",
            };
            self.refuse_sessions(sessions, hint)?;
        }
        let _turn = control::start_lock(&self.home).await?;
        control::stop(&self.home, force).await?;
        self.say(&format!("{} is stopped\n", self.place), &Stopped { stopped: true })?;
        Ok(0)
    }

    async fn restart(&self) -> Result<u8, Failure> {
        control::check_owner(self.home.dir())?;
        if !self.runs().await? {
            return Err(local::not_running(&self.home));
        }
        let turn = control::start_lock(&self.home).await?;
        let Some(stopped) = control::stop(&self.home, false).await? else {
            return Err(local::not_running(&self.home));
        };
        let since = stopped.since;
        self.start_again(turn, stopped).await?;
        let paused_ms = millis(since);
        // A service manager may start another version than this one.
        let version = match control::find(&self.home)? {
            Some(endpoint) => self.report(&endpoint).await?.version.map(|version| version.to_string()),
            None => None,
        };
        self.say(
            &format!("{} was restarted, and was away for {}\n", self.place, spell(Duration::from_millis(paused_ms))),
            &Restarted { version, paused_ms },
        )?;
        Ok(0)
    }

    async fn backup(&self, directory: &Path) -> Result<u8, Failure> {
        control::check_owner(self.home.dir())?;
        let (directory, fresh) = self.new_directory(directory)?;
        let was_running = self.runs().await?;
        let turn = control::start_lock(&self.home).await?;
        let Some(stopped) = control::stop(&self.home, false).await? else {
            return Err(Failure::new(Code::Internal, format!("{} has no data to back up", self.home.dir().display())));
        };
        let since = stopped.since;
        // The copy is made durable later: the server is away for as short as possible.
        let copied = backup::copy(&self.data(), &fresh);
        let started = match was_running {
            true => self.start_again(turn, stopped).await,
            false => Ok(()),
        };
        let paused_ms = if was_running { millis(since) } else { 0 };
        let Copied { files, bytes } = copied?;
        backup::settle(&fresh, &directory).map_err(|error| {
            _ = std::fs::remove_dir_all(&fresh);
            Failure::new(Code::Internal, format!("cannot write {}: {error}", directory.display()))
        })?;
        started?;
        let name = directory.display().to_string();
        let away = match was_running {
            true => format!("; the server was away for {}", spell(Duration::from_millis(paused_ms))),
            false => String::new(),
        };
        let text = format!("{name}: {}, {}{away}\n", counted(files, "file"), crate::text::bytes(bytes));
        self.say(&text, &BackedUp { directory: name, files, bytes, paused_ms })?;
        Ok(0)
    }

    async fn restore(&self, directory: &Path, force: bool) -> Result<u8, Failure> {
        control::check_owner(self.home.dir())?;
        if !directory.join("format").is_file() {
            let message = format!("{} is not a backup: it has no file named format", directory.display());
            return Err(
                Failure::new(Code::Internal, message).hint("name the directory that lockkeeper server backup made")
            );
        }
        let turn = control::start_lock(&self.home).await?;
        let was_running = control::find(&self.home)?.is_some();
        let before = self.before(force).await?;
        // The backup is checked, and its epoch raised, before anything changes.
        let stage = ServerDir::new(self.home.dir().join("restore.new"));
        _ = std::fs::remove_dir_all(stage.dir());
        let changed = async {
            let epoch = self.prepare(&stage, directory, before).await?;
            // The server went on meanwhile.
            if was_running && self.before(force).await? >= epoch {
                let message = "the token epoch was raised meanwhile; nothing was done";
                return Err(Failure::new(Code::NotAcquired, message).hint("restore again"));
            }
            let stopped = control::stop(&self.home, false).await?;
            Ok((epoch, self.exchange(&stage), stopped))
        };
        let (epoch, exchanged, stopped) = match changed.await {
            Ok(changed) => changed,
            Err(failure) => {
                _ = std::fs::remove_dir_all(stage.dir());
                return Err(failure);
            }
        };
        let started = match stopped {
            Some(stopped) if was_running => self.start_again(turn, stopped).await,
            _ => Ok(()),
        };
        // After a failure, the data before may be in the stage.
        let kept = exchanged.map_err(|error| {
            Failure::new(Code::Internal, format!("cannot replace {}: {error}", self.data().display()))
        })?;
        _ = std::fs::remove_dir_all(stage.dir());
        let above = i64::from(epoch.get()) << 48;
        let kept = kept.map(|kept| kept.display().to_string());
        let before = kept.as_ref().map_or_else(String::new, |kept| format!("the data before it is in {kept}\n"));
        let directory = directory.display().to_string();
        let text = format!("restored from {directory}\n{before}token epoch {epoch}: tokens are above {above}\n");
        self.say(&text, &Restored { directory, kept, epoch: epoch.get(), above })?;
        started.map(|()| 0)
    }

    /// Returns the token epoch of the data that a restore replaces. Refuses open sessions unless `force`. Damaged data is
    /// replaced too, and a note says so.
    async fn before(&self, force: bool) -> Result<TokenEpoch, Failure> {
        let refuse = |sessions| match force {
            true => Ok(()),
            false => self.refuse_sessions(
                sessions,
                "end their commands, or use --force: they go on as they were at the backup, or lose their locks",
            ),
        };
        if let Some(endpoint) = control::find(&self.home)? {
            refuse(self.report(&endpoint).await?.sessions)?;
            return self.epoch(&self.home).await;
        }
        if !self.data().exists() {
            return Ok(TokenEpoch::default());
        }
        let hosted = match daemon::wait_to_host(&self.home).await {
            Ok(Some(hosted)) => hosted,
            Ok(None) => {
                let message = format!("{} was started just now; nothing was done", self.place);
                return Err(Failure::new(Code::Internal, message).hint("restore again"));
            }
            Err(error) if is_unreadable(&error) => {
                self.printer.note(&format!(
                    "the data cannot be read, so its token epoch is unknown: {error}; if it was raised after the backup, \
                     raise it again: lockkeeper admin epoch --above"
                ));
                return Ok(TokenEpoch::default());
            }
            Err(error) => return Err(error.into()),
        };
        let sessions = hosted.server().stats().sessions as u64;
        let epoch = self.epoch(&self.home).await;
        hosted.shutdown().await?;
        refuse(sessions)?;
        epoch
    }

    async fn epoch(&self, home: &ServerDir) -> Result<TokenEpoch, Failure> {
        let keeper = local::connect_running(home, &self.builder).await?;
        let epoch = keeper.admin().token_epoch().await;
        keeper.close().await;
        Ok(epoch?)
    }

    /// Copies a backup to a directory beside the data, and raises its epoch above both.
    async fn prepare(&self, stage: &ServerDir, backup: &Path, old: TokenEpoch) -> Result<TokenEpoch, Failure> {
        backup::make(stage.dir())?;
        let data = stage.dir().join("data");
        backup::copy(backup, &data)?;
        let raised = async {
            let hosted = stage.host().await.map_err(|error| match is_unreadable(&error) {
                // The hint of a server is about the data that it runs on.
                true => Failure::from(error).hint("nothing was changed; choose another backup"),
                false => error.into(),
            })?;
            let keeper = local::connect_running(stage, &self.builder).await?;
            let admin = keeper.admin();
            let raised = async {
                let last = admin.token_epoch().await?.max(old);
                let next = TokenEpoch::new(last.get() + 1);
                let next = next.ok_or_else(|| Failure::new(Code::Internal, format!("epoch {last} is the last one")))?;
                Ok::<_, Failure>(admin.raise_token_epoch(next).await?)
            };
            let raised = raised.await;
            keeper.close().await;
            hosted.shutdown().await?;
            raised
        };
        let raised = raised.await.map_err(|failure| Failure {
            message: format!("the backup {} cannot be used: {failure}", backup.display()),
            ..failure
        })?;
        // The server has synced what it wrote, not what was copied.
        backup::sync(&data)
            .map_err(|error| Failure::new(Code::Internal, format!("cannot write {}: {error}", data.display())))?;
        Ok(raised)
    }

    /// Puts the prepared data in the place of the present data, which keeps another name. Returns that name. At each moment
    /// there is data, so a server that is started meanwhile never begins with an empty store.
    fn exchange(&self, stage: &ServerDir) -> std::io::Result<Option<PathBuf>> {
        let (dir, data, fresh) = (self.home.dir(), self.data(), stage.dir().join("data"));
        let kept = if data.exists() {
            let kept = dir.join(format!("data.before-{}", Timestamp::now().strftime("%Y%m%dT%H%M%S.%3fZ")));
            let exchange = || renameat_with(CWD, &fresh, CWD, &data, RenameFlags::EXCHANGE);
            exchange()?;
            if let Err(error) = std::fs::rename(&fresh, &kept) {
                exchange()?;
                return Err(error);
            }
            Some(kept)
        } else {
            std::fs::rename(&fresh, &data)?;
            None
        };
        File::open(dir)?.sync_all()?;
        Ok(kept)
    }

    /// Starts this user's own server again, or waits until its service manager has started a shared one.
    async fn start_again(&self, turn: StartLock, stopped: control::Stopped) -> Result<(), Failure> {
        if !self.home.is_shared() {
            return control::start_again(&self.home, turn, stopped, self.printer).await;
        }
        drop((stopped, turn));
        let since = Instant::now();
        // The manager tells nobody here.
        while control::find(&self.home)?.is_none() {
            if since.elapsed() >= RESTARTED {
                return Err(Failure::new(Code::Unreachable, format!("{} was not started again", self.place))
                    .hint("its administrator or its service manager starts it: systemctl start lockkeeper"));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Returns whether the server runs.
    ///
    /// # Errors
    /// It does not answer: it would not end by itself.
    async fn runs(&self) -> Result<bool, Failure> {
        match control::find(&self.home)? {
            Some(endpoint) => self.report(&endpoint).await.map(|_| true),
            None => Ok(false),
        }
    }

    async fn report(&self, endpoint: &Endpoint) -> Result<Report, Failure> {
        control::report(endpoint).await.map_err(|error| {
            Failure::new(Code::Unreachable, format!("{} runs and does not answer: {error}", self.place))
                .advise("end it, by SIGKILL if it must", Suggested::new(["server", "stop", "--force"]))
        })
    }

    fn refuse_sessions(&self, sessions: u64, hint: &str) -> Result<(), Failure> {
        match sessions {
            0 => Ok(()),
            open => {
                let are = if open == 1 { "is" } else { "are" };
                let message = format!("{} {are} open on {}; nothing was done", counted(open, "session"), self.place);
                Err(Failure::new(Code::NotAcquired, message).hint(hint))
            }
        }
    }

    /// Returns the absolute name of a new directory, and the name that it has until it is complete.
    fn new_directory(&self, name: &Path) -> Result<(PathBuf, PathBuf), Failure> {
        let name =
            std::path::absolute(name).map_err(|error| Failure::system("cannot read the current directory", error))?;
        let refuse = |why: &str| Failure::new(Code::Internal, format!("{} {why}", name.display()));
        let Some(last) = name.file_name() else { return Err(refuse("is not a name for a new directory")) };
        if name.symlink_metadata().is_ok() {
            return Err(refuse("exists already; choose a new name"));
        }
        if name.starts_with(self.data()) {
            return Err(refuse("is inside the data of the server; choose another place"));
        }
        let mut fresh = last.to_owned();
        fresh.push(".new");
        Ok((name.clone(), name.with_file_name(fresh)))
    }

    fn data(&self) -> PathBuf {
        self.home.dir().join("data")
    }

    fn say(&self, text: &str, view: &impl Serialize) -> Result<(), Failure> {
        if self.printer.is_json() {
            return output::answer(&self.place, view);
        }
        let lines = text.lines().map(plain).map(|line| line + "\n");
        output::data(&lines.collect::<String>())
    }
}

/// Whether no version of the server, or not this one, can read the data.
fn is_unreadable(error: &EmbeddedError) -> bool {
    let EmbeddedError::Server(error) = error else { return false };
    matches!(**error, ServerError::Damaged { .. } | ServerError::Format { .. } | ServerError::Foreign { .. })
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Returns the size of the files in a directory, as far as they can be seen.
fn size(dir: &Path) -> Option<u64> {
    let files = match std::fs::read_dir(dir) {
        Ok(files) => files,
        Err(error) => return (error.kind() == std::io::ErrorKind::NotFound).then_some(0),
    };
    Some(files.flatten().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum())
}
