//! Reads just enough of ZooKeeper's wire format to place a fault at an exact frame.
//!
//! A frame is a 4-byte length and a payload. Only headers and the leading path are decoded. Every byte is passed on
//! unchanged, so the proxy cannot change what it carries. Bytes that are not frames are passed on raw.

use std::io;

use bytes::{Bytes, BytesMut};
use lockkeeper_wire::request::{self, Packet};
use lockkeeper_wire::{EVENT_XID, OpCode, ReadOp, WriteOp, jute};
use tokio::net::TcpStream;

/// Maximum length of a frame; a greater length means that this is another protocol (or a four-letter word).
const FRAME_LIMIT: i32 = 64 << 20;

/// One piece of a byte stream.
#[derive(Debug)]
pub(super) enum Piece {
    /// A whole frame, its length included.
    Frame(Bytes),
    /// Bytes that are no frame: another protocol, or the torn end of a stream.
    Raw(Bytes),
}

/// Cuts a byte stream into frames; once a length is implausible, everything after it is raw.
#[derive(Debug, Default)]
pub(super) struct Reader {
    buffer: BytesMut,
    raw: bool,
}

impl Reader {
    /// Returns the next piece, or `None` at the end of the stream. Cancel-safe: bytes that were read stay in the
    /// buffer.
    pub(super) async fn next(&mut self, from: &TcpStream) -> io::Result<Option<Piece>> {
        // A fast peer keeps the socket ready forever; without this, a cut would never be executed.
        tokio::task::coop::consume_budget().await;
        loop {
            if let Some(piece) = self.take() {
                return Ok(Some(piece));
            }
            from.readable().await?;
            match from.try_read_buf(&mut self.buffer) {
                Ok(0) => {
                    let rest = self.buffer.split().freeze();
                    return Ok((!rest.is_empty()).then_some(Piece::Raw(rest)));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self) -> Option<Piece> {
        if !self.raw {
            let length = self.buffer.get(..4)?.try_into().map(i32::from_be_bytes).expect("four bytes were taken");
            if (0..=FRAME_LIMIT).contains(&length) {
                let end = 4 + length as usize;
                return (self.buffer.len() >= end).then(|| Piece::Frame(self.buffer.split_to(end).freeze()));
            }
            self.raw = true;
        }
        (!self.buffer.is_empty()).then(|| Piece::Raw(self.buffer.split().freeze()))
    }
}

/// The decoded part of a client's frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) xid: i32,
    pub(super) op: OpCode,
    pub(super) path: Option<String>,
    /// The operations of a multi.
    pub(super) parts: Vec<(OpCode, String)>,
}

/// Returns the operations of a multi.
fn parts(frame: &[u8]) -> Vec<(OpCode, String)> {
    let request = match frame.get(4..).map(request::decode) {
        Some(Ok(Packet::Request { request, .. })) => request,
        _ => return Vec::new(),
    };
    match request {
        lockkeeper_wire::Request::Multi(ops) => ops.into_iter().map(write_part).collect(),
        lockkeeper_wire::Request::MultiRead(ops) => ops.into_iter().map(read_part).collect(),
        _ => Vec::new(),
    }
}

fn write_part(op: WriteOp) -> (OpCode, String) {
    match op {
        WriteOp::Create(create) => (create.opcode, create.path),
        WriteOp::Delete(delete) => (OpCode::Delete, delete.path),
        WriteOp::SetData(set) => (OpCode::SetData, set.path),
        WriteOp::Check(check) => (OpCode::Check, check.path),
    }
}

fn read_part(op: ReadOp) -> (OpCode, String) {
    match op {
        ReadOp::GetData { path } => (OpCode::GetData, path),
        ReadOp::GetChildren { path } => (OpCode::GetChildren, path),
    }
}

impl Request {
    /// Decodes a frame; `first` is the ConnectRequest, which has no header. `None` if the header cannot be read.
    ///
    /// A multi that only checks the root counts as [`OpCode::Check`]: it is a heartbeat, and servers know no other such
    /// request.
    pub(super) fn parse(frame: &[u8], first: bool) -> Option<Self> {
        if first {
            return Some(Self { xid: 0, op: OpCode::CreateSession, path: None, parts: Vec::new() });
        }
        let mut body = jute::Reader::new(frame.get(4..)?);
        let (xid, op) = (body.i32().ok()?, OpCode::from_i32(body.i32().ok()?)?);
        let mut parts_of_it = Vec::new();
        // In a multi, each operation follows a header of type, done and error; the path of the first one stands for
        // all.
        if matches!(op, OpCode::Multi | OpCode::MultiRead) {
            _ = (body.i32(), body.bool(), body.i32());
            parts_of_it = parts(frame);
        }
        let starts_with_path = !matches!(
            op,
            OpCode::Ping
                | OpCode::Auth
                | OpCode::SetWatches
                | OpCode::SetWatches2
                | OpCode::Sasl
                | OpCode::Reconfig
                | OpCode::WhoAmI
                | OpCode::CloseSession
        );
        let path = if starts_with_path { body.text().ok() } else { None };
        let is_heartbeat = matches!(&parts_of_it[..], [(OpCode::Check, path)] if path == "/");
        let op = if is_heartbeat { OpCode::Check } else { op };
        Some(Self { xid, op, path, parts: parts_of_it })
    }
}

/// The decoded part of a server's frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The answer to the request with the same xid; the ConnectResponse counts as the answer to xid 0.
    Answer { xid: i32, zxid: i64, err: i32 },
    /// A watch event: the number of its type, and its path.
    Watch { event: i32, path: Option<String> },
}

impl Reply {
    /// Decodes a frame; `first` is the ConnectResponse, which has no header. `None` if it is too short for one.
    pub(super) fn parse(frame: &[u8], first: bool) -> Option<Self> {
        if first {
            return Some(Self::Answer { xid: 0, zxid: 0, err: 0 });
        }
        let mut body = jute::Reader::new(frame.get(4..)?);
        let (xid, zxid, err) = (body.i32().ok()?, body.i64().ok()?, body.i32().ok()?);
        if xid != EVENT_XID {
            return Some(Self::Answer { xid, zxid, err });
        }
        let (event, _state) = (body.i32().ok()?, body.i32().ok()?);
        Some(Self::Watch { event, path: body.text().ok() })
    }
}

impl Piece {
    pub(super) fn bytes(&self) -> &Bytes {
        match self {
            Self::Frame(bytes) | Self::Raw(bytes) => bytes,
        }
    }
}
