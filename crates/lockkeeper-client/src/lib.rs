//! A ZooKeeper client whose session is a state machine without I/O.
//!
//! [`Session`] is the machine: bytes and time in; bytes, events and deadlines out.

// ARCHITECTURE.md lists the layers of this crate.

mod client;
mod driver;
mod session;
mod types;
mod watches;

pub use client::{Client, PersistentWatcher, Watcher};
pub use lockkeeper_wire as wire;
pub use session::Session;
pub use types::{Config, ConnectionState, End, RequestError, RequestId, Resume, SessionEvent, Transport, WatchEvent};
