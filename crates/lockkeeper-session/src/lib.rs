#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

pub mod acl;
mod cancel;
mod clock;
mod credentials;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod ensemble;
pub mod error;
pub mod latest;
mod options;
mod ownership;
pub mod process;
mod procstat;
pub mod records;
mod session;
mod sessions;
mod trust;
mod type_map;
pub mod wait;
pub mod watchdog;

pub use cancel::CancellationToken;
pub use clock::Clock;
#[cfg(feature = "tls")]
pub use ensemble::tls::Tls;
pub use lockkeeper_core::{Link, LinkState, Loss, SessionId, Silence, TokenEpoch, Trust, Zxid, node_path};
pub use options::{Options, TlsFiles};
pub use session::{KeepTrusted, Session, epoch};
pub use sessions::{Sessions, Timer};
pub use trust::{HeldRecord, SessionTrust, TrustSource};

/// Names, times and durations in words for people and in records.
pub mod text {
    pub use lockkeeper_core::{excerpt, is_active, plain, spell};

    pub use crate::clock::{as_millis, as_millis_since_1970, as_some_millis, moment, typed, unix_epoch, wall_clock_ms};
}
