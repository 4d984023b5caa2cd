//! Dead letters: work that was never granted its lock, kept until an operator handles it.
//!
//! A lock call is one attempt; callers that want more use [`retry`]. When the retries are used up too, the
//! operation must not vanish: it becomes a [`Letter`] in a [`Sink`]. Letters wait there until they are read, replayed
//! or dropped.
//!
//! A sink keeps a log of [`LetterRecord`]s, to which records are only added: letters, and marks that say what happened to
//! them. [`fold`] derives the current state from it by the letters' ids, so a record may be added more than once. An operation that is
//! given up again has another letter. That is all that a sink must guarantee:
//!
//! - **[`Sink::append`] returns only after the record is stored**, as durably as the sink can. An acknowledged letter
//!   survives a crash of this process and of the machine. It may be called again with the same record, after an error
//!   or a dropped future.
//! - **[`Sink::records`] returns every record at least once**, a letter before its marks. It names what it cannot read,
//!   instead of failing or silently leaving it out.
//! - **Many processes append at the same time.** None overwrites or tears what another has written.
//! - **Stored records are private**: letters contain command lines and payloads. Where other users may write,
//!   [`Records::foreign`] says so, because a replay runs what a letter contains.
//!
//! [`FileSink`] is always available. Another sink needs only these two methods and a name.
//!
//! # Features
//!
//! - `kafka`: dead letters in a Kafka topic, with `KafkaSink`. Builds librdkafka, which needs a C compiler and make.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

mod file;
mod fold;
#[cfg(feature = "kafka")]
mod kafka;
mod record;
pub mod retry;
mod sink;

pub use self::file::FileSink;
pub use self::fold::{Fate, Filed, fold};
#[cfg(feature = "kafka")]
pub use self::kafka::{Address as KafkaAddress, AddressError as KafkaAddressError, KafkaSink, TOPIC as KAFKA_TOPIC};
#[cfg(feature = "kafka")]
pub use self::kafka::{KafkaSecurity, KafkaSecurityError, SaslMechanism};
pub use self::record::{Letter, LetterEvent, LetterRecord, Mark};
pub use self::sink::{Records, Sink, SinkError};

/// Compiles the examples of the README and of the guide.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[cfg(feature = "kafka")]
    #[doc = include_str!("../../../docs/guide/dead-letters.md")]
    struct Guide;
}
