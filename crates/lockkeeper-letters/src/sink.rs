//! What a sink does.

use std::fmt;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::record::LetterRecord;

/// The content of a sink.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Records {
    /// All records that could be read, a letter before its marks.
    pub records: Vec<LetterRecord>,
    /// The places that could not be read, each with the reason.
    pub unreadable: Vec<String>,
    /// The places in which other users may have put records, each with the reason. A letter from there need not be of a process of
    /// this user, so its work must not be run unseen.
    pub foreign: Vec<String>,
}

/// A place for dead letters. [This crate](crate) describes what it must guarantee.
pub trait Sink: fmt::Debug + Send + Sync {
    /// Returns its name for people: `file:/var/lib/app/dead-letters.jsonl`.
    fn name(&self) -> String;

    /// Adds a record, and returns once it is stored. Returns where it is now, for people: that is the name of the sink, unless the
    /// record waits in another place until it can be forwarded. Dropping the future leaves it stored or not; adding it again
    /// does no harm.
    fn append<'a>(&'a self, record: &'a LetterRecord) -> BoxFuture<'a, Result<String, SinkError>>;

    /// Returns all records. Dropping the future changes nothing.
    fn records(&self) -> BoxFuture<'_, Result<Records, SinkError>>;
}

/// A sink cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("dead letters cannot be {what} {sink}")]
#[non_exhaustive]
pub struct SinkError {
    /// The sink's name.
    pub sink: String,
    /// The operation: `kept in`, `read from`.
    pub what: &'static str,
    /// The cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl SinkError {
    /// Creates the error of the sink with this name, whose operation, such as `kept in` or `read from`, failed for this cause.
    pub fn new(
        sink: impl Into<String>,
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        SinkError { sink: sink.into(), what, source: source.into() }
    }
}

/// Runs `work` on a separate thread of this name, because files and brokers block. Dropping the future leaves the thread to
/// finish.
pub(super) fn apart<T, E>(
    thread: &str,
    (sink, what): (String, &'static str),
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> BoxFuture<'static, Result<T, SinkError>>
where
    T: Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    let (sender, done) = oneshot::channel();
    let started = std::thread::Builder::new().name(thread.to_owned()).spawn(move || {
        // The caller may have gone, which changes nothing.
        _ = sender.send(work());
    });
    async move {
        match started {
            Ok(_) => match done.await {
                Ok(outcome) => outcome.map_err(|source| SinkError::new(sink, what, source)),
                Err(_) => Err(SinkError::new(sink, what, "its thread has panicked")),
            },
            Err(error) => Err(SinkError::new(sink, what, error)),
        }
    }
    .boxed()
}
