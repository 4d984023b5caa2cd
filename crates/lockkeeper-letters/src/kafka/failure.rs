//! Why records cannot be forwarded.

use std::io;

use rdkafka::error::KafkaError;

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardFailure {
    /// The spool cannot be used.
    #[error("the spool: {0}")]
    Spool(#[from] io::Error),
    /// The brokers refused it or could not be reached.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// The same, with what the client said last about its connections.
    #[error("{error}: {said}")]
    Connection {
        /// The error.
        error: KafkaError,
        /// Why a connection failed.
        said: String,
    },
    /// A test ends the pass.
    #[cfg(all(test, deep))]
    #[error("died here")]
    Died,
}
