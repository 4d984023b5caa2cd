//! The topic: sends messages in one transaction, and reads messages.
//!
//! Every call blocks, for at most [`DEADLINE`].

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};

use super::failure::ForwardFailure;
use super::security::KafkaSecurity;
use super::spool::{Intent, SpoolEntry};
use crate::LetterRecord;

/// The time limit of a call: longer than brokers need to elect a leader, shorter than people wait.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

/// How long to wait for any broker to answer.
const REACH: Duration = Duration::from_secs(10);

/// How long brokers wait for the end of a transaction before they abort it. Other readers are blocked meanwhile.
const TRANSACTION_MS: &str = "20000";
/// A message that was not acknowledged by then fails its transaction; shorter than the former, as Kafka requires.
const MESSAGE_MS: &str = "15000";

/// How often to check for the end of another transaction: brokers do not notify.
const LOOK: Duration = Duration::from_millis(50);

const ENTRY: &str = "lockkeeper-entry";
const OPERATION: &str = "lockkeeper-operation";

/// The brokers and the topic.
#[derive(Debug)]
pub(super) struct Topic {
    brokers: String,
    name: String,
    security: KafkaSecurity,
    said: LastFailure,
}

/// Why the last connection to a broker failed, which the errors of the client do not say: a refused password, for example. Each
/// client has a clone.
#[derive(Clone, Debug, Default)]
struct LastFailure(Arc<Mutex<Option<String>>>);

impl LastFailure {
    fn look(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for LastFailure {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(?level, facility, message, "librdkafka");
        if facility == "FAIL" {
            *self.look() = Some(reason(message).to_owned());
        }
    }
}

impl ConsumerContext for LastFailure {}

impl ProducerContext for LastFailure {
    type DeliveryOpaque = ();

    // The commit of the transaction reports it.
    fn delivery(&self, _: &DeliveryResult<'_>, _opaque: ()) {}
}

/// What a line of the client says about a connection, without its thread: `[thrd:…]: ssl://a:9093/1: Connect to …`.
fn reason(line: &str) -> &str {
    line.strip_prefix("[thrd:").and_then(|rest| Some(rest.split_once("]: ")?.1)).unwrap_or(line)
}

/// The sender of a spool. Registering another one for the same spool ends it.
pub(super) struct TopicSender {
    producer: ThreadedProducer<LastFailure>,
}

#[derive(Debug)]
pub(super) struct FoundLetter {
    /// Its id, if a Lockkeeper sink sent it.
    pub(super) entry: Option<String>,
    pub(super) payload: Vec<u8>,
    /// Its place, for people.
    pub(super) place: String,
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

impl Topic {
    pub(super) fn new(brokers: &str, name: &str, security: KafkaSecurity) -> Self {
        let said = LastFailure::default();
        Topic { brokers: brokers.to_owned(), name: name.to_owned(), security, said }
    }

    /// Fails if the brokers must not or cannot be reached with this security. Sends nothing.
    pub(super) fn check(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.security.check()?;
        if !self.security.is_plain() {
            // Creating a client reads the files.
            self.consumer("read_committed")?;
        }
        Ok(())
    }

    /// Adds why the last connection failed to an error of the client, if that is known.
    pub(super) fn explain(&self, failure: ForwardFailure) -> ForwardFailure {
        match (failure, self.said.look().take()) {
            (ForwardFailure::Kafka(error), Some(said)) => ForwardFailure::Connection { error, said },
            (failure, _) => failure,
        }
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("client.id", "lockkeeper");
        // Retry brokers that were down after one second, not ten.
        config.set("reconnect.backoff.max.ms", "1000");
        // The default follows the logger of another crate, which is usually none: then `LastFailure` would hear nothing.
        config.set_log_level(RDKafkaLogLevel::Info);
        self.security.apply(&mut config);
        config
    }

    fn consumer(&self, isolation: &str) -> KafkaResult<BaseConsumer<LastFailure>> {
        let mut config = self.config();
        // Reading needs a group name; nothing is ever committed under it.
        config.set("group.id", "lockkeeper-dead-letters").set("enable.auto.commit", "false");
        config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
        config.set("isolation.level", isolation);
        config.create_with_context(self.said.clone())
    }

    /// Whether the brokers answer, so that a caller in a hurry does not wait.
    pub(super) fn reach(&self, deadline: Instant) -> KafkaResult<()> {
        self.partitions(&self.consumer("read_uncommitted")?, deadline).map(drop)
    }

    /// Registers as the sender of the spool with this identity. This ends what another sender had under way, one way or
    /// the other.
    pub(super) fn sender(&self, spool: &str, deadline: Instant) -> KafkaResult<TopicSender> {
        let mut config = self.config();
        config.set("transactional.id", format!("lockkeeper-{}-{spool}", self.name));
        config.set("transaction.timeout.ms", TRANSACTION_MS).set("message.timeout.ms", MESSAGE_MS);
        // Java clients spread keys this way, so that all messages of one object are in one partition, whichever client
        // wrote them.
        config.set("partitioner", "murmur2_random");
        let producer: ThreadedProducer<LastFailure> = config.create_with_context(self.said.clone())?;
        producer.init_transactions(left(deadline))?;
        Ok(TopicSender { producer })
    }

    /// The partitions; none if the topic does not exist.
    fn partitions(&self, consumer: &BaseConsumer<LastFailure>, deadline: Instant) -> KafkaResult<Vec<i32>> {
        let metadata = consumer.fetch_metadata(Some(&self.name), left(deadline).min(REACH))?;
        let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == self.name) else {
            return Ok(Vec::new());
        };
        match topic.error().map(RDKafkaErrorCode::from) {
            None => Ok(topic.partitions().iter().map(|partition| partition.id()).collect()),
            Some(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition) => Ok(Vec::new()),
            Some(code) => Err(KafkaError::MetadataFetch(code)),
        }
    }

    /// The current end of each partition, including messages under way. A missing topic is created.
    pub(super) fn ends(&self, deadline: Instant) -> KafkaResult<Intent> {
        let consumer = self.consumer("read_uncommitted")?;
        let mut partitions = self.partitions(&consumer, deadline)?;
        if partitions.is_empty() {
            self.make(deadline)?;
            while partitions.is_empty() && !left(deadline).is_zero() {
                std::thread::sleep(LOOK);
                partitions = self.partitions(&consumer, deadline)?;
            }
        }
        let mut ends = BTreeMap::new();
        for partition in partitions {
            let (_, end) = self.watermarks(&consumer, partition, deadline)?;
            ends.insert(partition, end);
        }
        Ok(Intent { ends })
    }

    /// The first offset of a partition, and the end. A partition that was just created, or whose broker has just failed,
    /// gets a leader first.
    fn watermarks(
        &self,
        consumer: &BaseConsumer<LastFailure>,
        partition: i32,
        deadline: Instant,
    ) -> KafkaResult<(i64, i64)> {
        loop {
            let found = consumer.fetch_watermarks(&self.name, partition, left(deadline));
            let code = found.as_ref().err().and_then(KafkaError::rdkafka_error_code);
            let no_leader =
                matches!(code, Some(RDKafkaErrorCode::NotLeaderForPartition | RDKafkaErrorCode::LeaderNotAvailable));
            if !no_leader || left(deadline).is_zero() {
                return found;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn make(&self, deadline: Instant) -> KafkaResult<()> {
        let admin: AdminClient<LastFailure> = self.config().create_with_context(self.said.clone())?;
        // As many partitions and copies as the brokers' defaults.
        let topic = NewTopic::new(&self.name, -1, TopicReplication::Fixed(-1));
        let topic = topic.set("retention.ms", "-1").set("cleanup.policy", "delete");
        let options = AdminOptions::new().request_timeout(Some(left(deadline)));
        // The answer comes from the client's own thread: a runtime without reactor or timer is enough.
        let here = tokio::runtime::Builder::new_current_thread().build();
        let here = here.map_err(|error| KafkaError::AdminOpCreation(error.to_string()))?;
        let made = here.block_on(admin.create_topics([&topic], &options))?;
        match made.into_iter().next() {
            Some(Err((_, code))) if code != RDKafkaErrorCode::TopicAlreadyExists => Err(KafkaError::AdminOp(code)),
            _ => Ok(()),
        }
    }

    pub(super) fn read_all(&self) -> KafkaResult<Vec<FoundLetter>> {
        self.read(&Intent::default(), &BTreeMap::new(), Instant::now() + DEADLINE)
    }

    /// All committed messages between these ends and the current ones. Waits for other transactions in between.
    pub(super) fn read_since(&self, since: &Intent, deadline: Instant) -> KafkaResult<Vec<FoundLetter>> {
        let now = self.ends(deadline)?;
        self.read(since, &now.ends, deadline)
    }

    /// Reads from these ends at least up to those.
    fn read(&self, since: &Intent, up_to: &BTreeMap<i32, i64>, deadline: Instant) -> KafkaResult<Vec<FoundLetter>> {
        let consumer = self.consumer("read_committed")?;
        let mut assignment = TopicPartitionList::new();
        let mut open = HashSet::new();
        for partition in self.partitions(&consumer, deadline)? {
            // Up to the point where all transactions are over.
            let (first, mut stable) = self.watermarks(&consumer, partition, deadline)?;
            while up_to.get(&partition).is_some_and(|end| stable < *end) {
                if left(deadline).is_zero() {
                    return Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::OperationTimedOut));
                }
                std::thread::sleep(LOOK);
                (_, stable) = self.watermarks(&consumer, partition, deadline)?;
            }
            // A topic that was created again ends before that, and is read from its beginning.
            let from = since.ends.get(&partition).copied().filter(|end| (first..=stable).contains(end));
            assignment.add_partition_offset(&self.name, partition, Offset::Offset(from.unwrap_or(first)))?;
            open.insert(partition);
        }
        consumer.assign(&assignment)?;
        let mut found = Vec::new();
        while !open.is_empty() {
            match consumer.poll(left(deadline)) {
                Some(Ok(message)) => found.push(read(&message)),
                Some(Err(KafkaError::PartitionEOF(partition))) => drop(open.remove(&partition)),
                Some(Err(error)) if is_passing(&error) && !left(deadline).is_zero() => {}
                Some(Err(error)) => return Err(error),
                None => return Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut)),
            }
        }
        Ok(found)
    }
}

#[cfg(all(test, deep))]
impl Topic {
    /// A message of a foreign client.
    pub(super) fn send_foreign(&self, payload: &[u8]) {
        let producer: ThreadedProducer<LastFailure> =
            self.config().create_with_context(self.said.clone()).expect("a good configuration");
        let message = BaseRecord::<[u8], [u8]>::to(&self.name).payload(payload);
        producer.send(message).map_err(|(error, _)| error).expect("room for one message");
        producer.flush(DEADLINE).expect("the broker runs");
    }
}

/// The errors of a connection that the client is about to open again.
fn is_passing(error: &KafkaError) -> bool {
    matches!(
        error,
        KafkaError::MessageConsumption(
            RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::Resolve
        )
    )
}

fn read(message: &impl Message) -> FoundLetter {
    let entry = message.headers().and_then(|headers| {
        let entry = headers.iter().find(|header| header.key == ENTRY)?;
        String::from_utf8(entry.value?.to_vec()).ok()
    });
    FoundLetter {
        entry,
        payload: message.payload().unwrap_or_default().to_vec(),
        place: format!("{}[{}]@{}", message.topic(), message.partition(), message.offset()),
    }
}

impl TopicSender {
    /// Sends these in one transaction, and returns when it is committed. After an error, it is unknown whether it is,
    /// until the next sender has registered.
    pub(super) fn send(&self, topic: &Topic, entries: &[SpoolEntry], deadline: Instant) -> KafkaResult<()> {
        self.begin(topic, entries)?;
        // The commit sends remaining messages first, and fails if any message did.
        self.producer.commit_transaction(left(deadline))
    }

    /// Commits what `begin` has begun.
    #[cfg(all(test, deep))]
    pub(super) fn commit(&self) -> KafkaResult<()> {
        self.producer.commit_transaction(DEADLINE)
    }

    /// As `send`, without the commit.
    pub(super) fn begin(&self, topic: &Topic, entries: &[SpoolEntry]) -> KafkaResult<()> {
        self.producer.begin_transaction()?;
        for SpoolEntry { name, record } in entries {
            let key = match record {
                LetterRecord::Letter(letter) => &letter.monitor_object,
                LetterRecord::Mark(mark) => &mark.operation,
            };
            let payload = serde_json::to_vec(record).expect("records of strings and numbers always serialise");
            let headers = OwnedHeaders::new()
                .insert(Header { key: ENTRY, value: Some(name) })
                .insert(Header { key: OPERATION, value: Some(record.operation()) });
            let message = BaseRecord::to(&topic.name).key(key).payload(&payload).headers(headers);
            self.producer.send(message).map_err(|(error, _)| error)?;
        }
        Ok(())
    }

    /// Waits until everything sent so far has arrived, uncommitted. Only tests use it.
    #[cfg(all(test, deep))]
    pub(super) fn flush(&self) {
        self.producer.flush(DEADLINE).expect("the broker runs");
    }
}

impl std::fmt::Debug for TopicSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TopicSender").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod line_tests {
    #[test]
    fn a_line_about_a_connection_is_told_without_its_thread() {
        let line = "[thrd:ssl://[::1]:9093/bootstrap]: ssl://[::1]:9093/bootstrap: SSL handshake failed";
        assert_eq!(super::reason(line), "ssl://[::1]:9093/bootstrap: SSL handshake failed");
        assert_eq!(super::reason("no broker"), "no broker");
    }
}
