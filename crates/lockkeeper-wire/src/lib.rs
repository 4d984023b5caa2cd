//! ZooKeeper's client protocol as types and bytes, in both directions: requests of clients and responses of servers.
//!
//! A server decodes with [`request`] and encodes with [`response`]; a client does the opposite. Both use the same
//! types, so our client and our server cannot interpret a field differently. There is no I/O here: [`frame::first`]
//! takes frames from a buffer that the caller fills.
//!
//! Decoding never panics, and never allocates more than the frame could fill, for any bytes that a peer sends.
//!
//! ```
//! use bytes::BytesMut;
//! use lockkeeper_wire::{Request, WatchedPath, frame, request};
//!
//! let asked = Request::GetData(WatchedPath { path: "/locks".to_owned(), watch: true });
//! let mut sent = BytesMut::new();
//! request::encode(&mut sent, 7, &asked);
//!
//! let received = frame::first(&sent, 1 << 20).unwrap().expect("the whole frame is there");
//! assert!(matches!(request::decode(received), Ok(request::Packet::Request { xid: 7, request, .. }) if request == asked));
//! ```
//!
//! Source: `zookeeper.jute` and `ZooDefs.java` of Apache ZooKeeper 3.9.

mod codes;
pub mod digest_md5;
mod error_code;
mod fields;
pub mod frame;
pub mod jute;
mod message;
mod opcode;
pub mod refusal;
pub mod request;
pub mod response;
#[cfg(test)]
mod tests;
mod values;

pub use error_code::ErrorCode;
pub use fields::{put_acl, read_acl};
pub use jute::Malformed;
pub use message::{
    AUTH_XID, ConnectRequest, ConnectResponse, Create, EVENT_XID, OpResult, PING_XID, ReadOp, Request, Response,
    SetData, SetWatches, VersionedPath, WatchedPath, WriteOp,
};
pub use opcode::OpCode;
pub use values::{Acl, AclId, CreateMode, EventKind, Perms, Stat, WatchKind};
