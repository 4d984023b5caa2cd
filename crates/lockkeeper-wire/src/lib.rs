//! ZooKeeper's client protocol as types and bytes, in both directions: what clients send and what servers send.
//!
//! A server decodes with [`request`] and encodes with [`response`]; a client does the opposite. Both use the same records, so a
//! field cannot mean one thing to our client and another to our server. There is no I/O here: [`frame::first`] cuts frames from
//! a buffer that somebody else fills.
//!
//! Decoding never panics and never allocates more than the frame could fill, whatever the peer sends.
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

pub mod digest_md5;
pub mod frame;
pub mod jute;
mod opcode;
mod records;
pub mod request;
pub mod response;
#[cfg(test)]
mod tests;

pub use jute::Malformed;
pub use opcode::OpCode;
pub use records::{
    Acl, AclId, ConnectRequest, ConnectResponse, Create, CreateMode, ErrorCode, EventKind, OpResult, Perms, ReadOp,
    Request, Response, SetData, SetWatches, Stat, VersionedPath, WatchKind, WatchedPath, WriteOp,
};

/// The xid of a watch event.
pub const EVENT_XID: i32 = -1;
/// The xid of a ping and of its reply.
pub const PING_XID: i32 = -2;
/// The xid of an auth packet and of its reply.
pub const AUTH_XID: i32 = -4;
/// The xid of the first `setWatches` or `setWatches2` in Apache's clients; any other xid works as well.
pub const SET_WATCHES_XID: i32 = -8;
