//! A ZooKeeper client whose session is a state machine without I/O.
//!
//! [`Session`] is the machine: bytes and time in; bytes, events and deadlines out.

mod client;
mod session;
mod watches;

pub use client::{Client, PersistentWatcher, State, Watched, Watcher};
pub use lockkeeper_wire as wire;
pub use session::{Config, End, Event, RequestError, RequestId, Resume, Session, Transport};
