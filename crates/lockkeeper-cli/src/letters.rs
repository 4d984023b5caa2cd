//! Stores for dead letters, and the command lines in the letters.
//!
//! A letter of this command records what was typed, not what it meant, together with the place of the locks. So a
//! replay runs the same command line again, under the same lock, even if the environment has changed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(feature = "kafka")]
use lockkeeper_config::settings::KafkaSettings;
use lockkeeper_config::settings::Key;
use lockkeeper_letters::{FileSink, Sink};
#[cfg(feature = "kafka")]
use lockkeeper_letters::{KafkaAddress, KafkaSecurity, KafkaSink, SaslMechanism};
#[cfg(feature = "kafka")]
use lockkeeper_session::process::read_credentials;
use serde::{Deserialize, Serialize};

use crate::advice::absolute;
use crate::args::connect::ConnectArgs;
use crate::exit::{Code, Failure};
use crate::place::Place;
use crate::settings::{Settings, state_dir, variable};

/// The file in the state directory.
const FILE: &str = "dead-letters.jsonl";

/// The directory in the state directory for records that could not be forwarded to a topic yet, with one directory per
/// address.
#[cfg(feature = "kafka")]
const SPOOL: &str = "spool";

/// Returns the options with which a printed command finds these dead letters, if a flag or a variable named them. A
/// file of settings is among the options of the place.
pub(crate) fn options(typed: Option<&str>) -> Vec<OsString> {
    let Some(place) = typed.map(str::to_owned).or_else(|| variable(&Key::DeadLetter.variable())) else {
        return Vec::new();
    };
    let place = match place.strip_prefix("file:") {
        Some(file) => {
            let mut place = OsString::from("file:");
            place.push(absolute(file.into()));
            place
        }
        None => place.into(),
    };
    vec!["--dead-letter".into(), place]
}

/// Returns whether a replay of this store needs `--foreign`. A topic is not read for that: its broker may not answer.
pub(crate) async fn is_foreign(sink: &dyn Sink) -> bool {
    sink.name().starts_with("kafka:") || sink.records().await.is_ok_and(|read| !read.foreign.is_empty())
}

/// Returns the first directory above a file that is missing. None is created: it may be a slip of the fingers.
fn missing_directory(file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).take_while(|dir| !dir.exists()).last()
}

/// Opens a store for dead letters: `file`, `file:PATH`, `kafka:HOST:PORT/TOPIC`.
pub(crate) fn open(place: &str, settings: &Settings) -> Result<Arc<dyn Sink>, Failure> {
    match place.split_once(':') {
        None if place == "file" => Ok(Arc::new(FileSink::new(state_dir(&settings.all)?.join(FILE)))),
        Some(("file", path)) if !path.is_empty() => {
            // A replay works in another directory.
            let path = std::path::absolute(path)
                .map_err(|error| Failure::system("cannot read the current directory", error))?;
            if let Some(dir) = missing_directory(&path) {
                let message = format!("{place}: there is no directory {} for dead letters", dir.display());
                return Err(Failure::new(Code::Usage, message).hint("correct the path, or create the directory"));
            }
            Ok(Arc::new(FileSink::new(path)))
        }
        Some(("kafka", _)) => kafka(place, settings),
        _ => Err(Failure::new(Code::Usage, format!("{place:?} is not a place for dead letters")).hint(
            "write file:PATH, file for the one in the state directory, or kafka:HOST:PORT/TOPIC for a Kafka topic",
        )),
    }
}

#[cfg(feature = "kafka")]
fn kafka(place: &str, settings: &Settings) -> Result<Arc<dyn Sink>, Failure> {
    let address: KafkaAddress = place
        .parse()
        .map_err(|error: lockkeeper_letters::KafkaAddressError| Failure::new(Code::Usage, error.to_string()))?;
    // Each topic has its own spool, so the whole address is the name.
    let name = address.to_string().replace('%', "%25").replace('/', "%2F");
    let spool = state_dir(&settings.all)?.join(SPOOL).join(name);
    Ok(Arc::new(KafkaSink::open_secured(address, spool, security(&settings.all.kafka)?)?))
}

/// Returns how the brokers are reached. The settings have been checked against each other.
#[cfg(feature = "kafka")]
fn security(kafka: &KafkaSettings) -> Result<KafkaSecurity, Failure> {
    for file in [&kafka.ca, &kafka.cert, &kafka.key].into_iter().filter_map(|file| file.value.as_ref()) {
        // OpenSSL's own message does not name the file.
        if let Err(error) = std::fs::File::open(file) {
            return Err(Failure::new(Code::Usage, format!("cannot read {}: {error}", file.display())));
        }
    }
    let mut security =
        if kafka.security_protocol.value.has_tls() { KafkaSecurity::tls() } else { KafkaSecurity::plain() };
    if let Some(ca) = &kafka.ca.value {
        security = security.authorities(ca);
    }
    if let (Some(cert), Some(key)) = (&kafka.cert.value, &kafka.key.value) {
        security = security.certificate(cert, key);
    }
    if let (Some(mechanism), Some(user), Some(file)) =
        (&kafka.sasl_mechanism.value, &kafka.user.value, &kafka.password_file.value)
    {
        let mechanism: SaslMechanism =
            mechanism.parse().map_err(|error: String| Failure::new(Code::Usage, format!("{mechanism}: {error}")))?;
        let text = read_credentials("kafka.password_file", file)?;
        // An editor ends the line; a password has no other line.
        let password = text.strip_suffix('\n').unwrap_or(&text);
        if password.is_empty() || password.contains('\n') {
            let problem = format!("{} has no password: it is not one line", file.display());
            return Err(Failure::new(Code::Usage, problem).hint("write the password, and nothing else, into the file"));
        }
        security = security.login(mechanism, user, password);
    }
    Ok(security)
}

#[cfg(not(feature = "kafka"))]
fn kafka(place: &str, _: &Settings) -> Result<Arc<dyn Sink>, Failure> {
    Err(Failure::new(
        Code::Usage,
        format!("{place:?} is a Kafka topic, and this lockkeeper was built without support for Kafka"),
    )
    .hint(
        "no package has it: build it from the source, in a checkout, with cargo install --locked --path crates/lockkeeper-cli \
         --features kafka",
    ))
}

/// A command line of `run`, as a letter stores it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CommandLine {
    /// The directory in which it was typed.
    pub directory: PathBuf,
    /// The words before the `--`, without the options of retries, and with the place of the locks.
    pub run: Vec<String>,
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// Options that concern the attempts, not the replay, and the one in whose place the servers of the lock are written. Each has a value.
const OF_ATTEMPTS: &[&str] = &["--retries", "--retry-delay", "--dead-letter", "--jitter", "--routing-servers"];

impl CommandLine {
    /// Returns this process's command line, with `--wait` added if `wait` is given.
    pub(crate) fn typed(connect: &ConnectArgs, settings: &Settings, wait: Option<&str>) -> Result<Self, Failure> {
        let words = std::env::args_os().skip(2).map(OsString::into_string).collect::<Result<Vec<_>, _>>();
        let words = words.map_err(|word| {
            Failure::new(Code::Usage, format!("{word:?} is not UTF-8, so a dead letter cannot contain it"))
        })?;
        let (before, command) = match words.iter().position(|word| word == "--") {
            Some(at) => (&words[..at], &words[at + 1..]),
            None => (&words[..], &[][..]),
        };
        let mut run = Vec::new();
        let mut before = before.iter();
        while let Some(word) = before.next() {
            if OF_ATTEMPTS.contains(&word.as_str()) {
                before.next();
            } else if !OF_ATTEMPTS
                .iter()
                .any(|option| word.strip_prefix(option).is_some_and(|rest| rest.starts_with('=')))
            {
                run.push(word.clone());
            }
        }
        match &settings.place {
            Place::Ensemble(servers) if connect.get(Key::Servers).is_none() => {
                run.extend(["--servers".to_owned(), servers.clone()])
            }
            Place::Machine(home) if home.is_shared() && connect.get(Key::Machine).is_none() => {
                run.push(format!("--machine={}", utf8(home.dir())?));
            }
            Place::Machine(home) if !home.is_shared() && connect.get(Key::StateDir).is_none() => {
                run.extend(["--state-dir".to_owned(), utf8(home.dir())?]);
            }
            _ => {}
        }
        if let Some(wait) = wait {
            run.extend(["--wait".to_owned(), wait.to_owned()]);
        }
        let directory =
            std::env::current_dir().map_err(|error| Failure::system("cannot read the current directory", error))?;
        utf8(&directory)?;
        Ok(CommandLine { directory, run, command: command.to_vec() })
    }

    /// Returns the words after `lockkeeper run`.
    pub(crate) fn words(&self) -> impl Iterator<Item = OsString> {
        let words = self.run.iter().map(String::as_str).chain(["--"]);
        words.chain(self.command.iter().map(String::as_str)).map(OsString::from)
    }
}

fn utf8(path: &Path) -> Result<String, Failure> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Failure::new(Code::Usage, format!("{} is not UTF-8, so a dead letter cannot contain it", path.display()))
    })
}
