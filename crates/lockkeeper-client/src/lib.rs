//! A ZooKeeper client whose session is a state machine without I/O.
//!
//! [`Session`] is the machine: bytes and time in; bytes, events and deadlines out. [`Client`] runs it over TCP, TLS or a
//! Unix socket, with a call for each operation.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use lockkeeper_client::wire::{Acl, CreateMode};
//! use lockkeeper_client::{Client, Config};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = "zk1:2181,zk2:2181,zk3:2181/app".parse()?;
//! let (client, mut states) = Client::open(servers, Config::new(Duration::from_secs(10)));
//! let (path, _) = client.create("/task-", "data", &[Acl::OPEN], CreateMode::EphemeralSequential).await?;
//! let (read, watcher) = client.get_and_watch(&path).await;
//! println!("{:?}, then {:?}", read?.0, watcher.await);
//! client.close();
//! while states.recv().await.is_some() {}
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod calls;
mod chroot;
mod client;
mod driver;
mod feed;
mod local;
mod problem;
mod servers;
mod session;
#[cfg(feature = "tls")]
mod tls;
mod types;
mod watches;
mod words;

pub use calls::{MultiError, Watched};
pub use client::{Client, PersistentWatcher, WatchFeed, Watcher};
pub use feed::FeedEvent;
pub use local::ShortPath;
pub use lockkeeper_wire as wire;
pub use problem::TlsProblem;
pub use servers::{Connect, Connecting, InvalidServers, Searching, Servers, Stream, is_close};
pub use session::Session;
#[cfg(feature = "tls")]
pub use tls::{InvalidTls, Tls};
pub use types::{Config, ConnectionState, End, RequestError, RequestId, Resume, SessionEvent, Transport, WatchEvent};
pub use words::{ask, ask_over};
