//! A ZooKeeper client whose session is a state machine without I/O.
//!
//! [`Session`] is the machine: bytes and time in; bytes, events and deadlines out.

// Layers, top first. A file imports from its own layer and from the layers below.
//
//     lib
//     client
//     session
//     watches
//     types

mod client;
mod session;
mod types;
mod watches;

pub use client::{Client, PersistentWatcher, State, Watched, Watcher};
pub use lockkeeper_wire as wire;
pub use session::Session;
pub use types::{Config, End, Event, RequestError, RequestId, Resume, Transport};
