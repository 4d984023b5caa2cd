//! One change of one article under its lock. A save by a person is one change; so is each step of a bulk propagation.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::Lockkeeper;
use lockkeeper::contentserv::{MonitorError, MonitorLock};
use lockkeeper::deadletter::{FileSink, Letter, LetterRecord, Sink};
use serde::{Deserialize, Serialize};

use crate::article::{Article, Change};
use crate::shelf::{Shelf, ShelfError};

/// The class of a request; the foreground is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A person waits for it. One attempt.
    Foreground,
    /// No person waits for it. It is retried, and becomes a dead letter if no attempt succeeds.
    Background,
}

/// A change to make.
#[derive(Clone, Debug)]
pub struct Job {
    /// The client's name.
    pub who: String,
    /// Its class.
    pub class: Class,
    /// The article to change.
    pub article: String,
    /// The change.
    pub change: Change,
    /// How long each attempt waits for the lock.
    pub timeout: Duration,
    /// Maximum retries of background work.
    pub retries: u32,
    /// Whether to send the token to the shelf. Without it the shelf accepts stale writes.
    pub fenced: bool,
}

/// A report about the progress of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Report {
    /// The client asks for the lock.
    Asks {
        /// The class of the request.
        class: Class,
    },
    /// The client holds the lock and has read the article.
    Runs {
        /// The token of the hold.
        token: i64,
    },
    /// The change is saved.
    Done {
        /// The operation's id.
        operation: String,
        /// The token of the hold.
        token: i64,
        /// The number of changes of the article so far.
        revision: usize,
    },
    /// The attempt failed; another one follows.
    Retries {
        /// The number of the next attempt; the first one is 1.
        attempt: u32,
        /// The pause before it.
        after_ms: u64,
        /// Why the attempt failed.
        why: String,
    },
    /// The attempt failed, and it was the last one.
    GivesUp {
        /// The number of attempts.
        attempts: u32,
        /// The place of the dead letter, for background work.
        letter: Option<String>,
        /// Why the last attempt failed.
        why: String,
    },
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// The lock was not acquired or not released.
    #[error(transparent)]
    Lock(#[from] MonitorError),
    /// The shelf did not accept the write.
    #[error(transparent)]
    Shelf(#[from] ShelfError),
    /// The lock was lost before the write was confirmed. The outcome is unknown; the next attempt reads it.
    #[error("lost the lock of {0} before the write was confirmed")]
    Lost(String),
}

impl AttemptError {
    /// Returns whether another attempt may succeed.
    pub fn is_worth_another(&self) -> bool {
        match self {
            AttemptError::Lock(error) => !matches!(error, MonitorError::Other { .. }),
            AttemptError::Shelf(error) => matches!(error, ShelfError::Stale { .. }),
            AttemptError::Lost(_) => true,
        }
    }
}

/// Where the work is done.
#[derive(Clone, Debug)]
pub struct Place {
    /// The lock server.
    pub keeper: Lockkeeper,
    /// The articles.
    pub shelf: Shelf,
    /// The dead letters of background work that failed.
    pub letters: Arc<FileSink>,
}

impl Place {
    /// Makes the change, with one attempt in the foreground and up to `retries` more in the background.
    ///
    /// `work` runs between the read of the article and the write. This does not use `lockkeeper::retry`, which repeats only the
    /// attempt to acquire, never the work. This work may be repeated, because the article lists the operations that it contains. It
    /// must be repeated if the shelf has refused a stale write.
    ///
    /// # Cancel safety
    /// Dropping the future between two of its steps leaves the article unchanged and the lock free.
    ///
    /// # Errors
    /// Why the last attempt failed.
    pub async fn perform<W: Future<Output = ()>>(
        &self,
        job: &Job,
        work: impl Fn() -> W,
        report: impl Fn(Report),
    ) -> Result<Article, AttemptError> {
        use backon::BackoffBuilder;
        let retries = if job.class == Class::Background { job.retries } else { 0 };
        let pauses = backon::ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_jitter()
            .with_max_times(usize::try_from(retries).unwrap_or(usize::MAX));
        let mut pauses = pauses.build();
        let (mut attempt, first_ms) = (1, now_ms());
        loop {
            let error = match self.attempt(job, &work, &report).await {
                Ok((article, token)) => {
                    let operation = job.change.operation.clone();
                    report(Report::Done { operation, token, revision: article.revision() });
                    return Ok(article);
                }
                Err(error) => error,
            };
            let why = with_causes(&error);
            let pause = if error.is_worth_another() { pauses.next() } else { None };
            let Some(pause) = pause else {
                let letter = match job.class {
                    Class::Background => Some(self.keep(job, attempt, first_ms, &error).await),
                    Class::Foreground => None,
                };
                report(Report::GivesUp { attempts: attempt, letter, why });
                return Err(error);
            };
            attempt += 1;
            report(Report::Retries { attempt, after_ms: pause.as_millis() as u64, why });
            tokio::time::sleep(pause).await;
        }
    }

    /// Writes a dead letter for a person or a replay, and returns its place.
    async fn keep(&self, job: &Job, attempts: u32, first_ms: u64, error: &AttemptError) -> String {
        let change = &job.change;
        let mut letter = Letter::new(&change.operation, &job.article, format!("/{}", job.article));
        letter.lock_info = Some(format!("{}: Bulk Propagation", job.who));
        letter.payload = serde_json::json!({ "field": change.field, "value": change.value });
        (letter.attempts, letter.first_ms, letter.last_ms) = (attempts, first_ms, now_ms());
        letter.error = match error {
            AttemptError::Lock(MonitorError::InstanceLock { .. }) => "InstanceLock",
            AttemptError::Lock(MonitorError::SessionExpired { .. }) | AttemptError::Lost(_) => "SessionExpired",
            AttemptError::Lock(MonitorError::ConnectionLoss { .. }) => "ConnectionLoss",
            AttemptError::Lock(_) | AttemptError::Shelf(_) => "Other",
        }
        .to_owned();
        letter.detail = with_causes(error);
        match self.letters.append(&LetterRecord::Letter(Box::new(letter))).await {
            Ok(()) => self.letters.name(),
            Err(error) => format!("nowhere: {}", with_causes(&error)),
        }
    }

    async fn attempt<W: Future<Output = ()>>(
        &self,
        job: &Job,
        work: &impl Fn() -> W,
        report: &impl Fn(Report),
    ) -> Result<(Article, i64), AttemptError> {
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
        report(Report::Asks { class: job.class });
        lock.lock_with_timeout().await?;
        // Returning from this function releases the lock, unless it was unlocked before.
        let Some(token) = lock.token() else { return Err(AttemptError::Lost(job.article.clone())) };
        let before = match job.fenced {
            true => self.shelf.claim(&job.article, token).await?,
            false => self.shelf.get(&job.article).await?,
        };
        // The scenario may stop this process only from here on. In the middle of the claim, the process would also hold SQLite's
        // lock, which never expires.
        report(Report::Runs { token: token.get() });
        let after = if before.has(&job.change) {
            // An earlier attempt saved the change, but its reply was lost.
            before
        } else {
            let after = before.changed(&job.change, token.get(), &job.who);
            // A process that is stopped here for longer than its session timeout does not notice it.
            work().await;
            match job.fenced {
                true => self.shelf.put(&after, token).await?,
                false => self.shelf.put_unfenced(&after).await?,
            }
            after
        };
        // Check after the write: if the lock is still held now, the next holder sees the write.
        if !lock.is_held() {
            return Err(AttemptError::Lost(job.article.clone()));
        }
        match lock.unlock().await {
            // The end of the session released the lock instead. The change is saved: the lock was held when the write was confirmed.
            Ok(()) | Err(MonitorError::SessionExpired { .. } | MonitorError::ConnectionLoss { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok((after, token.get()))
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Returns an error with its causes, as one line of text.
pub fn with_causes(error: &dyn std::error::Error) -> String {
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
