//! A client in a separate process, which can be stopped and killed.
//!
//! It reports its progress on standard output, one line of JSON at a time.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use futures_util::FutureExt;
use lockkeeper::Lockkeeper;
use lockkeeper::deadletter::FileSink;
use lockkeeper::error::ConnectError;
use tokio::io::AsyncReadExt;

use crate::article::Change;
use crate::shelf::Shelf;
use crate::work::{Class, Job, Place, Report};

/// Where the locks and the articles are.
#[derive(Clone, Debug, Args)]
pub struct Places {
    /// The directory of an embedded lock server.
    #[arg(long, value_name = "DIR")]
    pub locks: Option<String>,
    /// Or ZooKeeper servers: host:port,host:port/chroot.
    #[arg(long, value_name = "SERVERS", conflicts_with = "locks", env = "LOCKKEEPER_SERVERS")]
    pub servers: Option<String>,
    /// The shelf with the articles: a file, or the address of a search engine.
    #[arg(long, value_name = "FILE|URL", env = "LOCKKEEPER_SEARCH")]
    pub shelf: Option<String>,
    /// The file of the dead letters (default: a temporary file).
    #[arg(long, value_name = "FILE")]
    pub letters: Option<PathBuf>,
    /// Session timeout: how long the locks of a dead process stay taken.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    pub session: Duration,
}

/// The smallest session timeout of a client whose expiry is not part of the scenario, so that a busy machine does not cost it its
/// lock.
const STEADY: Duration = Duration::from_secs(20);

impl Places {
    /// Returns the same places, with a session timeout for clients that must not lose a lock.
    pub fn steady(&self) -> Places {
        Places { session: self.session.max(STEADY), ..self.clone() }
    }

    /// Opens the shelf and connects to the lock server.
    ///
    /// # Errors
    /// One of them cannot be reached.
    pub async fn open(&self, program: &str) -> anyhow::Result<Place> {
        let shelf = Shelf::open(self.shelf.as_deref().unwrap_or_default()).await?;
        let keeper = self.keeper(program).await.context("connecting to the lock server")?;
        let letters = self.letters.clone().unwrap_or_else(|| "dead-letters.jsonl".into());
        Ok(Place { keeper, shelf, letters: Arc::new(FileSink::new(letters)) })
    }

    async fn keeper(&self, program: &str) -> Result<Lockkeeper, ConnectError> {
        let builder = Lockkeeper::builder().program(program).session_timeout(self.session);
        match (&self.servers, &self.locks) {
            (Some(servers), _) => builder.connect(servers).await,
            (None, Some(dir)) => builder.embedded(dir).await,
            (None, None) => builder.connect("localhost:2181").await,
        }
    }

    /// Returns the same as command line arguments.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![format!("--session={}ms", self.session.as_millis())];
        arguments.extend(self.letters.as_ref().map(|file| format!("--letters={}", file.display())));
        for (flag, value) in [("--locks", &self.locks), ("--servers", &self.servers), ("--shelf", &self.shelf)] {
            arguments.extend(value.as_ref().map(|value| format!("{flag}={value}")));
        }
        arguments
    }
}

/// What a client does.
#[derive(Clone, Debug, Args)]
pub struct Actor {
    /// Its name.
    #[arg(long)]
    pub name: String,
    /// The class of its requests.
    #[arg(long, value_enum)]
    pub class: Class,
    /// The article to change.
    #[arg(long)]
    pub article: String,
    /// The number of changes.
    #[arg(long, default_value_t = 1)]
    pub times: u32,
    /// Duration of each change (default: until standard input ends).
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub takes: Option<Duration>,
    /// Maximum wait of each attempt for the lock.
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Maximum retries of background work.
    #[arg(long, default_value_t = 0)]
    pub retries: u32,
    /// Write without the token.
    #[arg(long)]
    pub unfenced: bool,
}

impl Actor {
    /// Returns the same as command line arguments.
    pub fn arguments(&self) -> Vec<String> {
        let class = match self.class {
            Class::Foreground => "foreground",
            Class::Background => "background",
        };
        let millis = |duration: Duration| format!("{}ms", duration.as_millis());
        let mut arguments = vec![
            format!("--name={}", self.name),
            format!("--class={class}"),
            format!("--article={}", self.article),
            format!("--times={}", self.times),
            format!("--timeout={}", millis(self.timeout)),
            format!("--retries={}", self.retries),
        ];
        arguments.extend(self.takes.map(|takes| format!("--takes={}", millis(takes))));
        arguments.extend(self.unfenced.then(|| "--unfenced".to_owned()));
        arguments
    }

    /// Makes the changes and reports the progress.
    ///
    /// # Errors
    /// It cannot connect, or the last attempt of a change failed.
    pub async fn run(self, places: &Places) -> anyhow::Result<()> {
        let place = places.open(&self.name).await?;
        // The first change that works reads this to its end; for later changes it has ended already.
        let input_ended = async {
            // An unreadable input counts as ended: no message can come.
            drop(tokio::io::stdin().read_to_end(&mut Vec::new()).await);
        }
        .shared();
        let work = || async {
            match self.takes {
                Some(takes) => tokio::time::sleep(takes).await,
                None => input_ended.clone().await,
            }
        };
        let mut failed = None;
        for n in 1..=self.times {
            let job = Job {
                who: self.name.clone(),
                class: self.class,
                article: self.article.clone(),
                change: Change::new("title", &format!("{} by {}, change {n}", self.article, self.name)),
                timeout: self.timeout,
                retries: self.retries,
                fenced: !self.unfenced,
            };
            if let Err(error) = place.perform(&job, work, |report| print(&report)).await {
                failed = Some(error);
            }
        }
        place.keeper.close().await;
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

fn print(report: &Report) {
    let line = serde_json::to_string(report).expect("texts and numbers always serialise");
    // The process that started this one may have ended, so a failure is ignored.
    drop(writeln!(std::io::stdout(), "{line}"));
}
