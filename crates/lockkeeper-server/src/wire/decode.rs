//! What clients send.

use crate::opcode::OpCode;
use crate::request::{
    Acl, AclId, ConnectRequest, Create, CreateMode, ErrorCode, ReadOp, Request, SetData, SetWatches, VersionedPath,
    WatchKind, WatchedPath, WriteOp,
};

use super::jute::{Malformed, Reader};

/// A frame after the connect request.
#[derive(Debug)]
pub(crate) enum Frame {
    /// A request for the machine.
    Request {
        /// Its number.
        xid: i32,
        /// Its operation, as received.
        opcode: i32,
        /// What it asks.
        request: Request,
    },
    /// Proof of who is speaking, for the connection itself.
    Auth {
        /// Its number.
        xid: i32,
        /// How it is proved.
        scheme: String,
        /// The proof.
        auth: Vec<u8>,
    },
    /// One step of a SASL exchange, for the connection itself.
    Sasl {
        /// Its number.
        xid: i32,
        /// What the client's mechanism has to say.
        token: Vec<u8>,
    },
}

/// Decodes the first frame of a connection.
pub(crate) fn connect_request(frame: &[u8]) -> Result<ConnectRequest, Malformed> {
    let mut reader = Reader::new(frame);
    let _protocol_version = reader.i32()?;
    let last_zxid_seen = reader.i64()?;
    let timeout_ms = reader.i32()?;
    let session = reader.i64()?;
    let password = reader.buffer()?.unwrap_or_default().to_vec();
    // Clients before 3.4 do not send the read-only byte. Its value does not matter: this server is never read-only.
    let has_read_only = !reader.is_empty();
    Ok(ConnectRequest { last_zxid_seen, timeout_ms, session, password, has_read_only })
}

/// Decodes any other frame; an error means that not even the header could be read.
pub(crate) fn request(frame: &[u8]) -> Result<Frame, Malformed> {
    let mut reader = Reader::new(frame);
    let xid = reader.i32()?;
    let opcode = reader.i32()?;
    let known = OpCode::from_i32(opcode);
    if known == Some(OpCode::Auth) {
        let _kind = reader.i32()?;
        let scheme = reader.text()?;
        let auth = reader.buffer()?.unwrap_or_default().to_vec();
        return Ok(Frame::Auth { xid, scheme, auth });
    }
    if known == Some(OpCode::Sasl) {
        return Ok(Frame::Sasl { xid, token: reader.buffer()?.unwrap_or_default().to_vec() });
    }
    let refused = |error| Request::Refused { opcode, error };
    let request = match known {
        None => refused(ErrorCode::Unimplemented),
        Some(known) => body(known, &mut reader).unwrap_or_else(|Malformed| refused(ErrorCode::MarshallingError)),
    };
    Ok(Frame::Request { xid, opcode, request })
}

fn body(opcode: OpCode, reader: &mut Reader<'_>) -> Result<Request, Malformed> {
    let refused = |error| Request::Refused { opcode: opcode.as_i32(), error };
    Ok(match opcode {
        OpCode::Create | OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => {
            match create(opcode, reader)? {
                Some(create) => Request::Create(create),
                None => refused(ErrorCode::BadArguments),
            }
        }
        OpCode::Delete => Request::Delete(versioned_path(reader)?),
        OpCode::Exists => Request::Exists(watched_path(reader)?),
        OpCode::GetData => Request::GetData(watched_path(reader)?),
        OpCode::SetData => Request::SetData(set_data(reader)?),
        OpCode::GetAcl => Request::GetAcl { path: reader.text()? },
        OpCode::SetAcl => Request::SetAcl { path: reader.text()?, acl: acl(reader)?, version: reader.i32()? },
        OpCode::GetChildren => Request::GetChildren(watched_path(reader)?),
        OpCode::GetChildren2 => Request::GetChildren2(watched_path(reader)?),
        OpCode::GetAllChildrenNumber => Request::GetAllChildrenNumber { path: reader.text()? },
        OpCode::GetEphemerals => {
            let prefix = reader.buffer()?.map(String::from_utf8_lossy).unwrap_or_default().into_owned();
            Request::GetEphemerals { prefix }
        }
        OpCode::Sync => Request::Sync { path: reader.text()? },
        OpCode::Ping => Request::Ping,
        OpCode::Multi => Request::Multi(write_ops(reader)?),
        OpCode::MultiRead => Request::MultiRead(read_ops(reader)?),
        OpCode::SetWatches => Request::SetWatches(SetWatches {
            relative_zxid: reader.i64()?,
            data: reader.vector(4, Reader::text)?,
            exist: reader.vector(4, Reader::text)?,
            child: reader.vector(4, Reader::text)?,
            ..SetWatches::default()
        }),
        OpCode::SetWatches2 => Request::SetWatches(SetWatches {
            relative_zxid: reader.i64()?,
            data: reader.vector(4, Reader::text)?,
            exist: reader.vector(4, Reader::text)?,
            child: reader.vector(4, Reader::text)?,
            persistent: reader.vector(4, Reader::text)?,
            recursive: reader.vector(4, Reader::text)?,
        }),
        OpCode::AddWatch => {
            let path = reader.text()?;
            match reader.i32()? {
                mode @ (0 | 1) => Request::AddWatch { path, recursive: mode == 1 },
                _ => refused(ErrorCode::MarshallingError),
            }
        }
        OpCode::WhoAmI => Request::WhoAmI,
        OpCode::CheckWatches | OpCode::RemoveWatches => {
            let path = reader.text()?;
            match WatchKind::from_i32(reader.i32()?) {
                None => refused(ErrorCode::MarshallingError),
                Some(kind) if opcode == OpCode::CheckWatches => Request::CheckWatches { path, kind },
                Some(kind) => Request::RemoveWatches { path, kind },
            }
        }
        OpCode::CloseSession => Request::CloseSession,
        // What a server that is not part of an ensemble says.
        OpCode::Reconfig => refused(ErrorCode::ReconfigDisabled),
        // `check` on its own is not an operation of clients either.
        OpCode::Check | OpCode::DeleteContainer | OpCode::CreateSession | OpCode::Auth | OpCode::Sasl => {
            refused(ErrorCode::Unimplemented)
        }
    })
}

/// `None` if all fields could be read but the mode is not one.
fn create(opcode: OpCode, reader: &mut Reader<'_>) -> Result<Option<Create>, Malformed> {
    let path = reader.text()?;
    let data = reader.data()?;
    let acl = acl(reader)?;
    let mode = CreateMode::from_flags(reader.i32()?);
    let ttl_ms = if opcode == OpCode::CreateTtl { reader.i64()? } else { -1 };
    Ok(mode.map(|mode| Create { path, data, acl, mode, ttl_ms, opcode }))
}

fn acl(reader: &mut Reader<'_>) -> Result<Vec<Acl>, Malformed> {
    reader.vector(12, |reader| {
        let perms = reader.i32()?;
        // Kazoo writes an empty text as none; what may not be empty is refused as an access list.
        let scheme = reader.buffer()?.unwrap_or_default();
        let id = reader.buffer()?.unwrap_or_default();
        let id = if scheme == b"world" && id == b"anyone" {
            AclId::WorldAnyone
        } else {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            AclId::Other { scheme: text(scheme), id: text(id) }
        };
        Ok(Acl { perms, id })
    })
}

fn versioned_path(reader: &mut Reader<'_>) -> Result<VersionedPath, Malformed> {
    Ok(VersionedPath { path: reader.text()?, version: reader.i32()? })
}

fn watched_path(reader: &mut Reader<'_>) -> Result<WatchedPath, Malformed> {
    Ok(WatchedPath { path: reader.text()?, watch: reader.bool()? })
}

fn set_data(reader: &mut Reader<'_>) -> Result<SetData, Malformed> {
    Ok(SetData { path: reader.text()?, data: reader.data()?, version: reader.i32()? })
}

/// The header before each operation of a multi; `None` is the end.
fn multi_header(reader: &mut Reader<'_>) -> Result<Option<OpCode>, Malformed> {
    let opcode = reader.i32()?;
    let done = reader.bool()?;
    let _error = reader.i32()?;
    if done { Ok(None) } else { OpCode::from_i32(opcode).map(Some).ok_or(Malformed) }
}

fn write_ops(reader: &mut Reader<'_>) -> Result<Vec<WriteOp>, Malformed> {
    let mut ops = Vec::new();
    while let Some(opcode) = multi_header(reader)? {
        ops.push(match opcode {
            OpCode::Create | OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => {
                let mut create = create(opcode, reader)?.ok_or(Malformed)?;
                if create.mode == CreateMode::Container {
                    create.opcode = OpCode::CreateContainer;
                }
                WriteOp::Create(create)
            }
            OpCode::Delete => WriteOp::Delete(versioned_path(reader)?),
            OpCode::SetData => WriteOp::SetData(set_data(reader)?),
            OpCode::Check => WriteOp::Check(versioned_path(reader)?),
            _ => return Err(Malformed),
        });
    }
    Ok(ops)
}

fn read_ops(reader: &mut Reader<'_>) -> Result<Vec<ReadOp>, Malformed> {
    let mut ops = Vec::new();
    while let Some(opcode) = multi_header(reader)? {
        let WatchedPath { path, .. } = match opcode {
            OpCode::GetData | OpCode::GetChildren => watched_path(reader)?,
            _ => return Err(Malformed),
        };
        ops.push(if opcode == OpCode::GetData { ReadOp::GetData { path } } else { ReadOp::GetChildren { path } });
    }
    Ok(ops)
}
