//! An embedded server that speaks the ZooKeeper protocol: one machine, one disk, no JVM.
//!
//! [`Server`] runs it, [`Config`] configures it. Any ZooKeeper client can use it. `docs/server.md` lists what it
//! supports and how it differs from Apache's server.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let server = lockkeeper_server::Server::ephemeral().await?;
//! println!("connect to {}", server.connect_string());
//! server.shutdown().await
//! # }).unwrap();
//! ```
//!
//! The state machine inside is pure: it takes typed requests and the time, and returns typed effects. The TCP server drives it,
//! and so does the simulator of the tests.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod account;
#[cfg(feature = "tls")]
mod certificate;
mod config;
mod error;
#[cfg(test)]
mod fuzz;
#[doc(hidden)]
pub mod machine;
mod net;
mod setters;
mod store;
#[cfg(feature = "tls")]
mod tls;

pub use account::{Accounts, digest};
pub use config::{Config, Secret, SharedNode, Storage, Words};
pub use error::ServerError;
pub use lockkeeper_wire::{Acl, AclId, OpCode, Perms};
pub use machine::limits::Limits;
pub use net::descriptors::raise_descriptor_limit;
#[cfg(feature = "faults")]
pub use net::faults;
pub use net::server::{DumpedNode, Server};
pub use net::stats::Stats;
pub use net::words::VERSION;
#[cfg(feature = "tls")]
pub use tls::Tls;
