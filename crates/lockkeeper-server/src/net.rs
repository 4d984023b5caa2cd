//! The server around the machine: sockets, the disk's thread, and the interfaces for owners and operators.

mod admin;
mod command;
mod connection;
pub(crate) mod descriptors;
mod disk;
mod engine;
mod exceeded;
#[cfg(feature = "faults")]
pub mod faults;
mod outbox;
mod peer;
mod quiet;
mod reports;
pub(crate) mod server;
pub(crate) mod stats;
mod transport;
pub(crate) mod words;
