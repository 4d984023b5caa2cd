//! Tools for testing Lockkeeper against real sockets and real servers.
//!
//! Not published: what a test needs and a user never does lives here, so that the library carries none of it. Nothing in
//! here knows how a lock works, only how ZooKeeper's wire, servers and processes behave, and how
//! to run the others that stand beside a lock: a broker, a search engine.

pub mod apache;
pub mod chaos;
pub mod history;
pub mod jvm;
pub mod kafka;
pub mod net;
pub mod postgres;
mod process;
pub mod proxy;
pub mod search;
pub mod sim;
pub mod worlds;
