//! Tools for testing Lockkeeper against real sockets and real servers.
//!
//! Not published: what a test needs and a user never does lives here, so that the library carries none of it. Nothing in
//! here knows how a lock works, only how ZooKeeper's wire, servers and processes behave.

pub mod apache;
pub mod proxy;
pub mod resource;
pub mod sim;
