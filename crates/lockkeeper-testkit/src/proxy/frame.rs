//! Reads just enough of ZooKeeper's wire format to place a fault at an exact frame.
//!
//! A frame is a 4-byte length and a payload. Only headers and the leading path are decoded; everything is passed on byte
//! for byte, so the proxy cannot change what it carries. What does not look like frames travels raw.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::net::TcpStream;

/// The longest frame taken for one; a greater length means that this is another protocol (or a four-letter word).
const FRAME_LIMIT: i32 = 64 << 20;

/// The xid of a reply that is a watch event.
const WATCH_XID: i32 = -1;

/// What a request asks for.
///
/// The two ends of a session are listed too: [`OpCode::Connect`] stands for the opening ConnectRequest and its response,
/// so a rule can be placed there like anywhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OpCode {
    /// The first frame of a connection: opens a session or resumes one. It has no opcode on the wire.
    Connect,
    /// create.
    Create,
    /// delete.
    Delete,
    /// exists.
    Exists,
    /// getData.
    GetData,
    /// setData.
    SetData,
    /// getACL.
    GetAcl,
    /// setACL.
    SetAcl,
    /// getChildren, without the parent's stat.
    GetChildren,
    /// sync.
    Sync,
    /// ping.
    Ping,
    /// getChildren2, with the parent's stat.
    GetChildren2,
    /// check of a version, on its own.
    Check,
    /// multi.
    Multi,
    /// create2, which answers with a stat.
    Create2,
    /// reconfig.
    Reconfig,
    /// checkWatches.
    CheckWatches,
    /// removeWatches.
    RemoveWatches,
    /// createContainer.
    CreateContainer,
    /// createTTL.
    CreateTtl,
    /// multiRead.
    MultiRead,
    /// auth.
    Auth,
    /// setWatches, sent on reconnect.
    SetWatches,
    /// sasl.
    Sasl,
    /// getEphemerals.
    GetEphemerals,
    /// getAllChildrenNumber.
    GetAllChildrenNumber,
    /// setWatches2, sent on reconnect when there are persistent watches.
    SetWatches2,
    /// addWatch.
    AddWatch,
    /// whoAmI.
    WhoAmI,
    /// closeSession.
    CloseSession,
    /// One this list does not know.
    Other(i32),
}

/// Opcode and number on the wire; [`OpCode::Connect`] borrows the number that servers use for it in their logs.
const NUMBERS: &[(OpCode, i32)] = &[
    (OpCode::Connect, -10),
    (OpCode::Create, 1),
    (OpCode::Delete, 2),
    (OpCode::Exists, 3),
    (OpCode::GetData, 4),
    (OpCode::SetData, 5),
    (OpCode::GetAcl, 6),
    (OpCode::SetAcl, 7),
    (OpCode::GetChildren, 8),
    (OpCode::Sync, 9),
    (OpCode::Ping, 11),
    (OpCode::GetChildren2, 12),
    (OpCode::Check, 13),
    (OpCode::Multi, 14),
    (OpCode::Create2, 15),
    (OpCode::Reconfig, 16),
    (OpCode::CheckWatches, 17),
    (OpCode::RemoveWatches, 18),
    (OpCode::CreateContainer, 19),
    (OpCode::CreateTtl, 21),
    (OpCode::MultiRead, 22),
    (OpCode::Auth, 100),
    (OpCode::SetWatches, 101),
    (OpCode::Sasl, 102),
    (OpCode::GetEphemerals, 103),
    (OpCode::GetAllChildrenNumber, 104),
    (OpCode::SetWatches2, 105),
    (OpCode::AddWatch, 106),
    (OpCode::WhoAmI, 107),
    (OpCode::CloseSession, -11),
];

impl OpCode {
    /// Every way to make a node, for rules and counts that do not care which one the client chose.
    pub const CREATES: &'static [Self] = &[Self::Create, Self::Create2, Self::CreateContainer, Self::CreateTtl];

    /// Both ways to list a node's children.
    pub const LISTS: &'static [Self] = &[Self::GetChildren, Self::GetChildren2];

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> i32 {
        if let Self::Other(number) = self {
            return number;
        }
        NUMBERS.iter().find(|(op, _)| *op == self).map_or(0, |(_, number)| *number)
    }
}

impl From<i32> for OpCode {
    fn from(number: i32) -> Self {
        NUMBERS.iter().find(|(_, n)| *n == number).map_or(Self::Other(number), |(op, _)| *op)
    }
}

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
    /// The next piece, or `None` at the end of the stream. Cancel-safe: what has been read stays in the buffer.
    pub(super) async fn next(&mut self, from: &TcpStream) -> io::Result<Option<Piece>> {
        // A peer that floods keeps the socket ready for ever; without this, a cut would never get its turn.
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

/// What a client's frame says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) xid: i32,
    pub(super) op: OpCode,
    pub(super) path: Option<String>,
}

impl Request {
    /// Decodes a frame; `first` is the ConnectRequest, which has no header. `None` when it is too short to have one.
    pub(super) fn parse(frame: &[u8], first: bool) -> Option<Self> {
        if first {
            return Some(Self { xid: 0, op: OpCode::Connect, path: None });
        }
        let mut body = frame.get(4..)?;
        let (xid, op) = (body.try_get_i32().ok()?, OpCode::from(body.try_get_i32().ok()?));
        // The operations inside a multi each follow a header of type, done and error; the first one's path stands for all.
        if matches!(op, OpCode::Multi | OpCode::MultiRead) {
            body = body.get(9..).unwrap_or_default();
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
                | OpCode::Other(_)
        );
        let path = if starts_with_path { string(&mut body) } else { None };
        Some(Self { xid, op, path })
    }
}

/// What a server's frame says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Answers the request of the same xid; the ConnectResponse counts as the answer to xid 0.
    Answer { xid: i32, zxid: i64, err: i32 },
    /// A watch event: its type's number and the path it is about.
    Watch { event: i32, path: Option<String> },
}

impl Reply {
    /// Decodes a frame; `first` is the ConnectResponse, which has no header. `None` when it is too short to have one.
    pub(super) fn parse(frame: &[u8], first: bool) -> Option<Self> {
        if first {
            return Some(Self::Answer { xid: 0, zxid: 0, err: 0 });
        }
        let mut body = frame.get(4..)?;
        let (xid, zxid, err) = (body.try_get_i32().ok()?, body.try_get_i64().ok()?, body.try_get_i32().ok()?);
        if xid != WATCH_XID {
            return Some(Self::Answer { xid, zxid, err });
        }
        let (event, _state) = (body.try_get_i32().ok()?, body.try_get_i32().ok()?);
        Some(Self::Watch { event, path: string(&mut body) })
    }
}

/// A length-prefixed string, or `None` when there is none here.
fn string(body: &mut &[u8]) -> Option<String> {
    let length = usize::try_from(body.try_get_i32().ok()?).ok()?;
    String::from_utf8(body.get(..length)?.to_vec()).ok()
}

impl Piece {
    pub(super) fn bytes(&self) -> &Bytes {
        match self {
            Self::Frame(bytes) | Self::Raw(bytes) => bytes,
        }
    }
}
