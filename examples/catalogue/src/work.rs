//! One change of one article under its lock: what a request of a person does, and each step of a bulk propagation.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::Lockkeeper;
use lockkeeper::contentserv::{MonitorError, MonitorLock};
use lockkeeper::deadletter::{FileSink, Letter, Record, Sink};
use serde::{Deserialize, Serialize};

use crate::article::{Article, Change};
use crate::shelf::{Shelf, ShelfError};

/// Who is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A person waits for it. One attempt.
    Foreground,
    /// Nobody does. Tried again, and a dead letter in the end.
    Background,
}

/// A change that is to be made.
#[derive(Clone, Debug)]
pub struct Job {
    /// Whose it is.
    pub who: String,
    /// Who is served first.
    pub class: Class,
    /// Which article.
    pub article: String,
    /// What is to change.
    pub change: Change,
    /// How long each attempt waits for the lock.
    pub timeout: Duration,
    /// How often background work is tried again.
    pub retries: u32,
    /// Whether the shelf is told the token. Without it stale writes get through.
    pub fenced: bool,
}

/// How it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Told {
    /// It asks for the lock.
    Asks {
        /// In this class.
        class: Class,
    },
    /// It has the lock, and the article under it.
    Runs {
        /// The token of the hold.
        token: i64,
    },
    /// It is in.
    Done {
        /// The operation.
        operation: String,
        /// Under which hold.
        token: i64,
        /// How often the article was changed by now.
        revision: usize,
    },
    /// The attempt came to nothing; there will be another.
    Retries {
        /// Which attempt is next, the first being 1.
        attempt: u32,
        /// After how long.
        after_ms: u64,
        /// What went wrong.
        why: String,
    },
    /// There will be no other.
    GivesUp {
        /// How many there were.
        attempts: u32,
        /// Where the dead letter is, for background work.
        letter: Option<String>,
        /// What went wrong last.
        why: String,
    },
}

/// Why an attempt came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Setback {
    /// The lock was not to be had, or not given back.
    #[error(transparent)]
    Lock(#[from] MonitorError),
    /// The shelf did not take it.
    #[error(transparent)]
    Shelf(#[from] ShelfError),
    /// The lock was lost before the write was known to be in time: the outcome is open, and the next attempt will see.
    #[error("lost the lock of {0} before the write was confirmed")]
    Lost(String),
}

impl Setback {
    /// Whether another attempt may do better.
    pub fn is_worth_another(&self) -> bool {
        match self {
            Setback::Lock(error) => !matches!(error, MonitorError::Other { .. }),
            Setback::Shelf(error) => matches!(error, ShelfError::Stale { .. }),
            Setback::Lost(_) => true,
        }
    }
}

/// Where the work is done.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where the locks are.
    pub keeper: Lockkeeper,
    /// Where the articles are.
    pub shelf: Shelf,
    /// Where background work goes that was given up.
    pub letters: Arc<FileSink>,
}

impl Place {
    /// Makes the change; `work` is what goes on between the last look at the lock and the write. Not by `lockkeeper::retry`, which repeats the asking and never the work: this work may be repeated,
    /// for the article says which operations are in it, and it must be when the shelf has refused a stale write.
    ///
    /// One attempt in the foreground, as many as allowed in the background. Dropping the future between two of its steps leaves the article as it was, and the lock free.
    ///
    /// # Errors
    /// Why the last attempt failed.
    pub async fn perform<W: Future<Output = ()>>(
        &self,
        job: &Job,
        work: impl Fn() -> W,
        tell: impl Fn(Told),
    ) -> Result<Article, Setback> {
        use backon::BackoffBuilder;
        let retries = if job.class == Class::Background { job.retries } else { 0 };
        let pauses = backon::ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_jitter()
            .with_max_times(usize::try_from(retries).unwrap_or(usize::MAX));
        let mut pauses = pauses.build();
        let (mut attempt, first_ms) = (1, now_ms());
        loop {
            let setback = match self.attempt(job, &work, &tell).await {
                Ok((article, token)) => {
                    let operation = job.change.operation.clone();
                    tell(Told::Done { operation, token, revision: article.revision() });
                    return Ok(article);
                }
                Err(setback) => setback,
            };
            let why = said(&setback);
            let pause = if setback.is_worth_another() { pauses.next() } else { None };
            let Some(pause) = pause else {
                let letter = match job.class {
                    Class::Background => Some(self.keep(job, attempt, first_ms, &setback).await),
                    Class::Foreground => None,
                };
                tell(Told::GivesUp { attempts: attempt, letter, why });
                return Err(setback);
            };
            attempt += 1;
            tell(Told::Retries { attempt, after_ms: pause.as_millis() as u64, why });
            tokio::time::sleep(pause).await;
        }
    }

    /// Keeps a letter of what was given up, for a person or a replay; says where.
    async fn keep(&self, job: &Job, attempts: u32, first_ms: u64, setback: &Setback) -> String {
        let change = &job.change;
        let mut letter = Letter::new(&change.operation, &job.article, format!("/{}", job.article));
        letter.lock_info = Some(format!("{}: Bulk Propagation", job.who));
        letter.payload = serde_json::json!({ "field": change.field, "value": change.value });
        (letter.attempts, letter.first_ms, letter.last_ms) = (attempts, first_ms, now_ms());
        letter.error = match setback {
            Setback::Lock(MonitorError::InstanceLock { .. }) => "InstanceLock",
            Setback::Lock(MonitorError::SessionExpired { .. }) | Setback::Lost(_) => "SessionExpired",
            Setback::Lock(MonitorError::ConnectionLoss { .. }) => "ConnectionLoss",
            Setback::Lock(_) | Setback::Shelf(_) => "Other",
        }
        .to_owned();
        letter.detail = said(setback);
        match self.letters.append(&Record::Letter(Box::new(letter))).await {
            Ok(()) => self.letters.name(),
            Err(error) => format!("nowhere: {}", said(&error)),
        }
    }

    async fn attempt<W: Future<Output = ()>>(
        &self,
        job: &Job,
        work: &impl Fn() -> W,
        tell: &impl Fn(Told),
    ) -> Result<(Article, i64), Setback> {
        let what = match job.class {
            Class::Foreground => "Save Article",
            Class::Background => "Bulk Propagation",
        };
        let lock = MonitorLock::new(&format!("{}: {what}", job.who), &self.keeper, &job.article);
        let lock = match job.class {
            Class::Foreground => lock.foreground(),
            Class::Background => lock.background(),
        };
        let lock = lock.task_timeout(job.timeout);
        tell(Told::Asks { class: job.class });
        lock.lock_with_timeout().await?;
        // Leaving this function frees the lock, if it was not unlocked before.
        let Some(token) = lock.token() else { return Err(Setback::Lost(job.article.clone())) };
        let before = match job.fenced {
            true => self.shelf.claim(&job.article, token).await?,
            false => self.shelf.get(&job.article).await?,
        };
        // Only now may it be stopped to see what becomes of it: in the middle of the claim it would have SQLite's lock
        // with it, which no lease ends.
        tell(Told::Runs { token: token.get() });
        let after = if before.has(&job.change) {
            // An earlier attempt got through and could not be told.
            before
        } else {
            let after = before.changed(&job.change, token.get(), &job.who);
            // A process that is stopped here, for longer than its session lives, notices nothing.
            work().await;
            match job.fenced {
                true => self.shelf.put(&after, token).await?,
                false => self.shelf.put_unfenced(&after).await?,
            }
            after
        };
        // Only now: a write that came while the lock was held is there for whoever has it next.
        if !lock.is_held() {
            return Err(Setback::Lost(job.article.clone()));
        }
        match lock.unlock().await {
            // Freed by the session's end instead, with the change in: it was held when the write was confirmed.
            Ok(()) | Err(MonitorError::SessionExpired { .. } | MonitorError::ConnectionLoss { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok((after, token.get()))
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// An error with its causes, in one line.
pub fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(&format!(": {inner_text}"));
        }
        cause = inner.source();
    }
    text
}
