//! Encoding and decoding of what clients send.

use bytes::{BufMut, BytesMut};

use crate::fields::{put_acl, put_multi_header, read_acl};
use crate::jute::{Malformed, Reader, put_buffer, put_len, put_text};
use crate::{
    AUTH_XID, ConnectRequest, Create, CreateMode, ErrorCode, OpCode, ReadOp, Request, SetData, SetWatches,
    VersionedPath, WatchKind, WatchedPath, WriteOp, frame,
};

/// A frame of a client after the connect request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A request of the session.
    Request {
        /// Its number; the reply carries the same.
        xid: i32,
        /// Its operation code, as received.
        opcode: i32,
        request: Request,
    },
    /// A credential for this connection.
    Auth {
        /// Its number.
        xid: i32,
        /// The scheme, for example `digest`.
        scheme: String,
        /// The credential, for example `user:password`.
        auth: Vec<u8>,
    },
    /// One step of a SASL exchange for this connection.
    Sasl {
        /// Its number.
        xid: i32,
        /// The token of the client's mechanism.
        token: Vec<u8>,
    },
}

/// Decodes the first frame of a connection.
///
/// # Errors
/// The frame is shorter than its fields.
pub fn decode_connect(frame: &[u8]) -> Result<ConnectRequest, Malformed> {
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

/// Decodes any later frame. A request with a malformed body becomes [`Request::Refused`], so that it can be answered.
///
/// # Errors
/// The header is malformed, or the body of an auth or SASL packet.
pub fn decode(frame: &[u8]) -> Result<Packet, Malformed> {
    let mut reader = Reader::new(frame);
    let xid = reader.i32()?;
    let opcode = reader.i32()?;
    let known = OpCode::from_i32(opcode);
    if known == Some(OpCode::Auth) {
        let _kind = reader.i32()?;
        let scheme = reader.text()?;
        let auth = reader.buffer()?.unwrap_or_default().to_vec();
        return Ok(Packet::Auth { xid, scheme, auth });
    }
    if known == Some(OpCode::Sasl) {
        return Ok(Packet::Sasl { xid, token: reader.buffer()?.unwrap_or_default().to_vec() });
    }
    let refused = |error| Request::Refused { opcode, error };
    let request = match known {
        None => refused(ErrorCode::Unimplemented),
        Some(known) => body(known, &mut reader).unwrap_or_else(|Malformed| refused(ErrorCode::MarshallingError)),
    };
    Ok(Packet::Request { xid, opcode, request })
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
        OpCode::SetAcl => Request::SetAcl { path: reader.text()?, acl: read_acl(reader)?, version: reader.i32()? },
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
        // A server that is not part of an ensemble gives this answer.
        OpCode::Reconfig => refused(ErrorCode::ReconfigDisabled),
        // As a request of its own, `check` is not an operation of clients either.
        OpCode::Check | OpCode::DeleteContainer | OpCode::CreateSession | OpCode::Auth | OpCode::Sasl => {
            refused(ErrorCode::Unimplemented)
        }
    })
}

/// Returns `None` if all fields are readable but the mode is unknown.
fn create(opcode: OpCode, reader: &mut Reader<'_>) -> Result<Option<Create>, Malformed> {
    let path = reader.text()?;
    let data = reader.data()?;
    let acl = read_acl(reader)?;
    let mode = CreateMode::from_i32(reader.i32()?);
    let ttl_ms = if opcode == OpCode::CreateTtl { reader.i64()? } else { -1 };
    Ok(mode.map(|mode| Create { path, data, acl, mode, ttl_ms, opcode }))
}

/// Reads the header before an operation of a multi; `None` is the end.
fn multi_header(reader: &mut Reader<'_>) -> Result<Option<OpCode>, Malformed> {
    let opcode = reader.i32()?;
    let done = reader.bool()?;
    let _error = reader.i32()?;
    if done { Ok(None) } else { OpCode::from_i32(opcode).map(Some).ok_or(Malformed) }
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

fn write_ops(reader: &mut Reader<'_>) -> Result<Vec<WriteOp>, Malformed> {
    let mut ops = Vec::new();
    while let Some(opcode) = multi_header(reader)? {
        ops.push(match opcode {
            OpCode::Create | OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => {
                let mut create = create(opcode, reader)?.ok_or(Malformed)?;
                // As in Apache's `Op.create`, the mode of a create in a multi decides about its operation, and only a mode that has a
                // time to live keeps the one that was sent.
                if create.mode == CreateMode::Container {
                    create.opcode = OpCode::CreateContainer;
                } else if create.opcode == OpCode::CreateTtl && !create.mode.is_ttl() {
                    create.opcode = OpCode::Create;
                }
                if !create.mode.is_ttl() {
                    create.ttl_ms = -1;
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

/// Appends the first frame of a connection.
pub fn encode_connect(out: &mut BytesMut, connect: &ConnectRequest) {
    let fields = |out: &mut BytesMut| {
        out.put_i32(0);
        out.put_i64(connect.last_zxid_seen);
        out.put_i32(connect.timeout_ms);
        out.put_i64(connect.session);
        put_buffer(out, Some(&connect.password));
        if connect.has_read_only {
            out.put_u8(0);
        }
    };
    frame::put_or(out, fields, |_| {});
}

/// Appends a request. [`Request::Refused`] has an operation code and no body.
pub fn encode(out: &mut BytesMut, xid: i32, request: &Request) {
    put(out, xid, request.opcode(), |out| put_body(out, request));
}

/// Appends a [`Request::Multi`] of these operations.
pub fn encode_multi(out: &mut BytesMut, xid: i32, ops: &[WriteOp]) {
    put(out, xid, OpCode::Multi.as_i32(), |out| put_write_ops(out, ops));
}

/// Appends a [`Request::MultiRead`] that returns, for each node, its children, and then its data and stat.
pub fn encode_lists<'a>(out: &mut BytesMut, xid: i32, nodes: impl IntoIterator<Item = &'a str>) {
    put(out, xid, OpCode::MultiRead.as_i32(), |out| {
        for node in nodes {
            put_read_op(out, OpCode::GetChildren, node);
            put_read_op(out, OpCode::GetData, node);
        }
        put_multi_header(out, -1, true, -1);
    });
}

/// Appends a credential for this connection.
pub fn encode_auth(out: &mut BytesMut, scheme: &str, auth: &[u8]) {
    put(out, AUTH_XID, OpCode::Auth.as_i32(), |out| {
        out.put_i32(0);
        put_text(out, scheme);
        put_buffer(out, Some(auth));
    });
}

/// Appends one step of a SASL exchange.
pub fn encode_sasl(out: &mut BytesMut, xid: i32, token: &[u8]) {
    put(out, xid, OpCode::Sasl.as_i32(), |out| put_buffer(out, Some(token)));
}

/// Appends a frame with a header and a body. A body of 2 GiB is left out: a server answers that with
/// `MarshallingError`.
fn put(out: &mut BytesMut, xid: i32, opcode: i32, body: impl FnOnce(&mut BytesMut)) {
    let header = |out: &mut BytesMut| {
        out.put_i32(xid);
        out.put_i32(opcode);
    };
    let whole = |out: &mut BytesMut| {
        header(out);
        body(out);
    };
    frame::put_or(out, whole, header);
}

fn put_body(out: &mut BytesMut, request: &Request) {
    match request {
        Request::Create(create) => put_create(out, create),
        Request::Delete(VersionedPath { path, version }) => {
            put_text(out, path);
            out.put_i32(*version);
        }
        Request::Exists(watched)
        | Request::GetData(watched)
        | Request::GetChildren(watched)
        | Request::GetChildren2(watched) => put_watched_path(out, &watched.path, watched.watch),
        Request::SetData(set) => put_set_data(out, set),
        Request::GetAcl { path } | Request::GetAllChildrenNumber { path } | Request::Sync { path } => {
            put_text(out, path);
        }
        Request::GetEphemerals { prefix } => put_text(out, prefix),
        Request::SetAcl { path, acl, version } => {
            put_text(out, path);
            put_acl(out, acl);
            out.put_i32(*version);
        }
        Request::AddWatch { path, recursive } => {
            put_text(out, path);
            out.put_i32(i32::from(*recursive));
        }
        Request::CheckWatches { path, kind } | Request::RemoveWatches { path, kind } => {
            put_text(out, path);
            out.put_i32(kind.as_i32());
        }
        Request::Multi(ops) => put_write_ops(out, ops),
        Request::MultiRead(ops) => put_read_ops(out, ops),
        Request::SetWatches(watches) => put_watches(out, watches),
        Request::Ping | Request::WhoAmI | Request::CloseSession | Request::Refused { .. } => {}
    }
}

fn put_create(out: &mut BytesMut, create: &Create) {
    put_text(out, &create.path);
    put_buffer(out, create.data.as_deref());
    put_acl(out, &create.acl);
    out.put_i32(create.mode.as_i32());
    if create.opcode == OpCode::CreateTtl {
        out.put_i64(create.ttl_ms);
    }
}

fn put_set_data(out: &mut BytesMut, set: &SetData) {
    put_text(out, &set.path);
    put_buffer(out, set.data.as_deref());
    out.put_i32(set.version);
}

fn put_watched_path(out: &mut BytesMut, path: &str, watch: bool) {
    put_text(out, path);
    out.put_u8(u8::from(watch));
}

/// Appends the lists of a `setWatches`, or of a `setWatches2` if there are persistent watches.
fn put_watches(out: &mut BytesMut, watches: &SetWatches) {
    let SetWatches { relative_zxid, data, exist, child, persistent, recursive } = watches;
    out.put_i64(*relative_zxid);
    let lists = [data, exist, child, persistent, recursive];
    for paths in &lists[..if watches.has_persistent() { 5 } else { 3 }] {
        put_len(out, paths.len());
        for path in *paths {
            put_text(out, path);
        }
    }
}

fn put_write_ops(out: &mut BytesMut, ops: &[WriteOp]) {
    for op in ops {
        let opcode = match op {
            WriteOp::Create(create) => create.opcode,
            WriteOp::Delete(_) => OpCode::Delete,
            WriteOp::SetData(_) => OpCode::SetData,
            WriteOp::Check(_) => OpCode::Check,
        };
        put_multi_header(out, opcode.as_i32(), false, -1);
        match op {
            WriteOp::Create(create) => put_create(out, create),
            WriteOp::SetData(set) => put_set_data(out, set),
            WriteOp::Delete(VersionedPath { path, version }) | WriteOp::Check(VersionedPath { path, version }) => {
                put_text(out, path);
                out.put_i32(*version);
            }
        }
    }
    put_multi_header(out, -1, true, -1);
}

fn put_read_ops(out: &mut BytesMut, ops: &[ReadOp]) {
    for op in ops {
        let (opcode, path) = match op {
            ReadOp::GetData { path } => (OpCode::GetData, path),
            ReadOp::GetChildren { path } => (OpCode::GetChildren, path),
        };
        put_read_op(out, opcode, path);
    }
    put_multi_header(out, -1, true, -1);
}

fn put_read_op(out: &mut BytesMut, opcode: OpCode, path: &str) {
    put_multi_header(out, opcode.as_i32(), false, -1);
    put_watched_path(out, path, false);
}
