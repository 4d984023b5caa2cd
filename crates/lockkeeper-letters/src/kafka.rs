//! Dead letters in a Kafka topic, through a spool on this machine's disk.
//!
//! A letter counts as kept once it is synced in the [spool](spool). From there a thread of the sink forwards it,
//! immediately if the brokers answer, otherwise as soon as they do. Other processes with the same spool forward it too.
//! Each forwarding is one Kafka transaction, so that a letter is in the topic once, whichever process dies at any time:
//!
//! 1. The spool itself lists what must be sent. Before sending, the *start of the search* for a later recovery is
//!    written to the spool: the end of each partition, the [intent](spool::Intent).
//! 2. Everything is sent in one transaction and committed. Only then are the records deleted from the spool, and after
//!    them the intent.
//! 3. A process that finds an intent does not know how that transaction ended. Registering under the spool's
//!    transactional id ends it. The brokers finish what was committed, and abort what was not. They refuse whatever
//!    its sender still has under way (KIP-98). Then the process reads the topic from the intent's ends, and deletes
//!    from the spool what it finds.
//!
//! Reading back alone would not be enough: what a dead process had passed to the kernel could arrive after it. Nor
//! would idempotence alone, which ends with the process.

mod address;
mod failure;
mod forward;
mod security;
mod shared;
mod spool;
#[cfg(all(test, deep))]
mod tests;
mod topic;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

pub use self::address::{Address, AddressError, TOPIC};
use self::forward::Forwarder;
pub use self::security::{KafkaSecurity, KafkaSecurityError, SaslMechanism};
use self::shared::Shared;
use self::spool::Spool;
use self::topic::Topic;
use super::sink::apart;
use super::{LetterRecord, Records, Sink, SinkError};

/// How long [`Sink::append`] waits for the brokers once the record is in the spool.
const PATIENCE: Duration = Duration::from_secs(5);

/// Dead letters in a Kafka topic. Needs the feature `kafka`.
///
/// A record is one JSON message, like a line of a [`FileSink`](super::FileSink). The key of a letter is its monitor
/// object, the key of a mark its operation. The header `lockkeeper-entry` has an id of the message,
/// `lockkeeper-operation` the operation. Readers must read only committed messages (`isolation.level=read_committed`,
/// which is not every client's default): an aborted transaction leaves messages that do not count.
///
/// A missing topic is created and kept forever (`retention.ms=-1`). An existing topic keeps its own settings. It must
/// not be compacted, because a key has many letters.
///
/// A spool belongs to one topic. All processes of a machine may share it. Put it on a disk that survives a restart of
/// the machine.
#[derive(Debug)]
pub struct KafkaSink {
    shared: Arc<Shared>,
    /// Runs from the first letter on, and while the spool has any.
    forwarder: Mutex<Option<Forwarder>>,
}

impl KafkaSink {
    /// Opens a sink for this address, over plain TCP, with its spool in this directory, which is created if it is
    /// missing. Letters that other processes left there are forwarded from now on.
    ///
    /// # Errors
    ///
    /// The spool cannot be read or created.
    pub fn open(address: Address, spool: impl Into<PathBuf>) -> Result<Self, SinkError> {
        Self::open_with(address, spool, KafkaSecurity::plain(), PATIENCE)
    }

    /// Opens a sink that reaches the brokers with TLS or with a login, as `security` says.
    ///
    /// # Errors
    ///
    /// As [`KafkaSink::open`]. A [`KafkaSecurityError`], or that a file of `security` cannot be read or is not what it
    /// should be. The brokers are not asked: they see a wrong password with the first letter, which then waits in the
    /// spool.
    pub fn open_secured(
        address: Address,
        spool: impl Into<PathBuf>,
        security: KafkaSecurity,
    ) -> Result<Self, SinkError> {
        Self::open_with(address, spool, security, PATIENCE)
    }

    /// Opens a sink with a limit on how long [`Sink::append`] waits for the brokers once the record is safe in the
    /// spool. The default is 5 s.
    ///
    /// # Errors
    ///
    /// As [`KafkaSink::open_secured`].
    pub fn open_with(
        address: Address,
        spool: impl Into<PathBuf>,
        security: KafkaSecurity,
        patience: Duration,
    ) -> Result<Self, SinkError> {
        let name = address.to_string();
        let topic = Topic::new(&address.brokers, &address.topic, security);
        topic.check().map_err(|source| SinkError::new(name.clone(), "kept in", source))?;
        let failed = |source: std::io::Error| SinkError::new(name, "kept in", source);
        let spool = Spool::open(spool.into()).map_err(failed)?;
        let sink =
            KafkaSink { shared: Arc::new(Shared { address, spool, topic, patience }), forwarder: Mutex::default() };
        if sink.waiting()? > 0 {
            sink.forwarder()?;
        }
        Ok(sink)
    }

    /// Returns how many records are still in the spool, not in the topic. Reads a directory.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn waiting(&self) -> Result<usize, SinkError> {
        let entries = self.shared.spool.names().map_err(|source| self.shared.failed("read from", source))?;
        Ok(entries.len())
    }

    /// Returns the spool's directory.
    pub fn spool(&self) -> &Path {
        self.shared.spool.dir()
    }

    /// Forwards everything in the spool now, and returns how many records that were.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the forwarding.
    ///
    /// # Errors
    ///
    /// The brokers' error, or that none could be reached within 30 s. Nothing is lost then.
    pub fn forward(&self) -> BoxFuture<'static, Result<usize, SinkError>> {
        self.shared.apart("kept in", |shared| {
            let mut sender = None;
            forward::pass(shared, &mut sender, &mut |_| Ok(()))
        })
    }

    /// The channel that wakes the thread, which is started if necessary.
    fn forwarder(&self) -> Result<mpsc::Sender<forward::PassReply>, SinkError> {
        let mut forwarder = self.forwarder.lock().unwrap_or_else(PoisonError::into_inner);
        if forwarder.is_none() {
            *forwarder =
                Some(Forwarder::start(self.shared.clone()).map_err(|source| self.shared.failed("kept in", source))?);
        }
        Ok(forwarder.as_ref().expect("started above").wake.clone())
    }
}

impl Shared {
    fn failed(&self, what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SinkError {
        SinkError::new(self.address.to_string(), what, source)
    }

    /// Runs `work` on a separate thread, because files and brokers block. Dropping the future leaves the thread to
    /// finish.
    fn apart<T: Send + 'static>(
        self: &Arc<Self>,
        what: &'static str,
        work: impl FnOnce(&Shared) -> Result<T, failure::ForwardFailure> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, SinkError>> {
        let (shared, sink) = (self.clone(), self.address.to_string());
        apart("lockkeeper-kafka", (sink, what), move || work(&shared).map_err(|failure| shared.topic.explain(failure)))
    }
}

impl Sink for KafkaSink {
    fn name(&self) -> String {
        self.shared.address.to_string()
    }

    fn append<'a>(&'a self, record: &'a LetterRecord) -> BoxFuture<'a, Result<String, SinkError>> {
        let wake = match self.forwarder() {
            Ok(wake) => wake,
            Err(error) => return std::future::ready(Err(error)).boxed(),
        };
        let record = record.clone();
        self.shared.apart("kept in", move |shared| {
            shared.spool.add(&record)?;
            // It is kept. The rest only finds out whether it is in the topic already.
            let (sender, forwarded) = mpsc::channel();
            let (sink, spool) = (shared.address.to_string(), shared.spool.dir().display().to_string());
            let in_spool = format!("the spool {spool}, until a process that uses the spool reaches {sink}");
            let reply = match wake.send(sender) {
                Ok(()) if shared.patience.is_zero() => return Ok(in_spool),
                Ok(()) => forwarded.recv_timeout(shared.patience).map_err(|_| "no answer yet".to_owned()),
                Err(_) => Err("its thread has ended".to_owned()),
            };
            if let Err(reason) | Ok(Err(reason)) = reply {
                tracing::warn!(operation = record.operation(), %sink, %spool, %reason, "dead letter waits in the spool");
                return Ok(in_spool);
            }
            Ok(sink)
        })
    }

    fn records(&self) -> BoxFuture<'_, Result<Records, SinkError>> {
        self.shared.apart("read from", |shared| {
            // The spool first: a record that is forwarded meanwhile is then returned twice, not left out.
            let mut unreadable = Vec::new();
            let spooled = shared.spool.read(&mut unreadable)?;
            let messages = shared.topic.read_all()?;
            let (mut letters, mut marks) = (Vec::new(), Vec::new());
            let mut sort = |record| match record {
                LetterRecord::Letter(_) => letters.push(record),
                LetterRecord::Mark(_) => marks.push(record),
            };
            for message in messages {
                match serde_json::from_slice(&message.payload) {
                    Ok(record) => sort(record),
                    Err(error) => unreadable.push(format!("{}: {error}", message.place)),
                }
            }
            spooled.into_iter().for_each(|entry| sort(entry.record));
            // Marks of one letter have one key, so they are in order already.
            letters.append(&mut marks);
            // A topic does not record the author of a message, whoever may write it.
            let foreign = vec![format!("{} may be written by others", shared.address)];
            Ok(Records { records: letters, unreadable, foreign })
        })
    }
}
