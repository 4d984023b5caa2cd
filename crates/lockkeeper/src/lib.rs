//! Distributed locks that say how long they may be trusted.
//!
//! TODO: doc
#![warn(missing_docs)]

mod acquire;
mod admin;
mod clock;
mod driver;
mod error;
mod guard;
mod identity;
mod keeper;
mod mutex;
mod servers;
mod session;
mod zookeeper;

pub mod blocking;
#[cfg(feature = "embedded")]
pub mod embedded;
#[doc(hidden)]
pub mod ensemble;

pub use acquire::Acquire;
pub use admin::{Admin, ContenderInfo, Follow, LockInfo};
pub use error::{Error, ReleaseError};
pub use guard::{Guard, HoldState};
pub use keeper::{Builder, Lockkeeper};
pub use lockkeeper_core::{Dialect, FencingToken, LockPath, Loss, Owner, PathError, SessionId};
pub use mutex::Mutex;
