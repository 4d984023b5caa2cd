//! An embedded server that speaks the ZooKeeper protocol: one machine, one disk, no JVM.
//!
//! [`Server`] runs it, [`Config`] says how. Any ZooKeeper client can use it; what it speaks and where it differs from
//! Apache's server is in `docs/server.md`.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let server = lockkeeper_server::Server::ephemeral().await?;
//! println!("connect to {}", server.connect_string());
//! server.shutdown().await
//! # }).unwrap();
//! ```
//!
//! The state machine inside, [`machine::Machine`], is pure: it takes typed requests and the time and answers with typed
//! effects. The TCP server drives it, and so can a simulator.

mod account;
mod admin;
#[cfg(feature = "tls")]
mod certificate;
mod config;
mod connection;
mod disk;
mod engine;
mod error;
#[cfg(feature = "faults")]
pub mod faults;
#[cfg(test)]
mod fuzz;
mod identity;
mod limits;
pub mod machine;
mod outbox;
mod path;
mod prepare;
mod query;
mod quota;
mod server;
mod sessions;
mod stats;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod transport;
mod tree;
mod txn;
mod watches;
mod words;

pub use account::{Accounts, digest};
pub use config::{Config, Secret, Storage};
pub use error::ServerError;
pub use limits::Limits;
pub use lockkeeper_wire::OpCode;
pub use server::{DumpedNode, Server};
pub use stats::Stats;
#[cfg(feature = "tls")]
pub use tls::Tls;
