//! Encoding and decoding of what servers send.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};

use crate::fields::{put_acl, put_multi_header, read_acl};
use crate::jute::{Malformed, Reader, put_buffer, put_len, put_text};
use crate::{ConnectResponse, EVENT_XID, ErrorCode, EventKind, OpCode, OpResult, Response, Stat, frame};

/// The protocol's number for the state of a client that is connected and may write.
const SYNC_CONNECTED: i32 = 3;

/// Appends the answer to a connect request.
pub fn encode_connect(out: &mut BytesMut, response: &ConnectResponse, has_read_only: bool) {
    let fields = |out: &mut BytesMut| {
        out.put_i32(0);
        out.put_i32(response.timeout_ms);
        out.put_i64(response.session);
        put_buffer(out, Some(&response.password));
        if has_read_only {
            out.put_u8(0);
        }
    };
    short(out, fields);
}

/// Appends a frame whose length has a small bound.
fn short(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let put = frame::put(out, body);
    debug_assert!(put.is_ok(), "a short frame");
}

fn header(out: &mut BytesMut, xid: i32, zxid: i64, error: i32) {
    out.put_i32(xid);
    out.put_i64(zxid);
    out.put_i32(error);
}

/// Appends the answer to an auth packet. It has no zxid, as with Apache's server.
pub fn encode_auth(out: &mut BytesMut, xid: i32, result: Result<(), ErrorCode>) {
    short(out, |out| header(out, xid, 0, result.err().map_or(0, ErrorCode::as_i32)));
}

/// Appends the answer to a step of a SASL exchange. It has no zxid.
///
/// An error has a body as well: an absent token. Java's client reads the token before it looks at the error
/// (`ClientCnxn`). Without a token it takes the connection for broken and retries forever.
pub fn encode_sasl(out: &mut BytesMut, xid: i32, result: Result<&[u8], ErrorCode>) {
    short(out, |out| {
        header(out, xid, 0, result.err().map_or(0, ErrorCode::as_i32));
        put_buffer(out, result.ok());
    });
}

/// Appends the reply to a request. A reply of 2 GiB becomes the error `MarshallingError`.
pub fn encode(out: &mut BytesMut, xid: i32, zxid: i64, result: &Result<Response, ErrorCode>) {
    let whole = |out: &mut BytesMut| match result {
        Err(error) => header(out, xid, zxid, error.as_i32()),
        Ok(response) => {
            // Doubling the buffer of a long answer again and again would take twice its size.
            out.reserve(16 + len_of(response));
            header(out, xid, zxid, 0);
            body(out, response);
        }
    };
    frame::put_or(out, whole, |out| header(out, xid, zxid, ErrorCode::MarshallingError.as_i32()));
}

/// Returns about how many bytes the body of a long answer has; 0 for the short ones.
fn len_of(response: &Response) -> usize {
    match response {
        Response::Data { data, .. } => data.as_ref().map_or(0, bytes::Bytes::len) + 128,
        Response::Children { names, .. } | Response::Ephemerals(names) => texts_len(names) + 128,
        Response::Multi(results) => {
            let len = |result: &OpResult| match result {
                OpResult::Data { data, .. } => data.as_ref().map_or(0, bytes::Bytes::len) + 96,
                OpResult::Children(names) => texts_len(names) + 16,
                OpResult::Created { path, .. } => path.len() + 96,
                OpResult::DataSet(_) => 96,
                _ => 16,
            };
            results.iter().map(len).sum::<usize>() + 16
        }
        _ => 0,
    }
}

fn texts_len(texts: &[Arc<str>]) -> usize {
    texts.iter().map(|text| 4 + text.len()).sum()
}

/// Appends a watch event.
pub fn encode_event(out: &mut BytesMut, zxid: i64, kind: EventKind, path: &str) {
    short(out, |out| {
        header(out, EVENT_XID, zxid, 0);
        out.put_i32(kind.as_i32());
        out.put_i32(SYNC_CONNECTED);
        put_text(out, path);
    });
}

fn body(out: &mut BytesMut, response: &Response) {
    match response {
        Response::Done => {}
        Response::WatchAdded => out.put_i32(0),
        Response::Identities(identities) => {
            put_len(out, identities.len());
            for (scheme, name) in identities {
                put_text(out, scheme);
                put_buffer(out, name.as_deref().map(str::as_bytes));
            }
        }
        Response::Created { path, stat } => {
            put_text(out, path);
            if let Some(stat) = stat {
                put_stat(out, stat);
            }
        }
        Response::Stat(stat) => put_stat(out, stat),
        Response::Data { data, stat } => {
            put_buffer(out, data.as_deref());
            put_stat(out, stat);
        }
        Response::Children { names, stat } => {
            put_texts(out, names);
            if let Some(stat) = stat {
                put_stat(out, stat);
            }
        }
        Response::Acl { acl, stat } => {
            put_acl(out, acl);
            put_stat(out, stat);
        }
        Response::Path(path) => put_text(out, path),
        Response::Ephemerals(paths) => put_texts(out, paths),
        Response::Count(count) => out.put_i32(*count),
        Response::Multi(results) => {
            for result in results {
                op_result(out, result);
            }
            put_multi_header(out, -1, true, -1);
        }
    }
}

fn op_result(out: &mut BytesMut, result: &OpResult) {
    let succeeded = |out: &mut BytesMut, opcode: OpCode| put_multi_header(out, opcode.as_i32(), false, 0);
    let failed = |out: &mut BytesMut, error: i32| {
        put_multi_header(out, -1, false, error);
        out.put_i32(error);
    };
    match result {
        OpResult::Created { path, stat: None } => {
            succeeded(out, OpCode::Create);
            put_text(out, path);
        }
        OpResult::Created { path, stat: Some(stat) } => {
            succeeded(out, OpCode::Create2);
            put_text(out, path);
            put_stat(out, stat);
        }
        OpResult::Deleted => succeeded(out, OpCode::Delete),
        OpResult::DataSet(stat) => {
            succeeded(out, OpCode::SetData);
            put_stat(out, stat);
        }
        OpResult::Checked => succeeded(out, OpCode::Check),
        OpResult::Data { data, stat } => {
            succeeded(out, OpCode::GetData);
            put_buffer(out, data.as_deref());
            put_stat(out, stat);
        }
        OpResult::Children(names) => {
            succeeded(out, OpCode::GetChildren);
            put_texts(out, names);
        }
        OpResult::RolledBack => failed(out, 0),
        OpResult::Failed(error) => failed(out, error.as_i32()),
    }
}

fn put_texts(out: &mut BytesMut, texts: &[Arc<str>]) {
    put_len(out, texts.len());
    for text in texts {
        put_text(out, text);
    }
}

fn put_stat(out: &mut BytesMut, stat: &Stat) {
    out.put_i64(stat.czxid);
    out.put_i64(stat.mzxid);
    out.put_i64(stat.ctime);
    out.put_i64(stat.mtime);
    out.put_i32(stat.version);
    out.put_i32(stat.cversion);
    out.put_i32(stat.aversion);
    out.put_i64(stat.ephemeral_owner);
    out.put_i32(stat.data_length);
    out.put_i32(stat.num_children);
    out.put_i64(stat.pzxid);
}

/// The header of every frame except the answer to a connect request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of the answered request, or [`EVENT_XID`].
    pub xid: i32,
    /// The newest transaction that the server had applied.
    pub zxid: i64,
    /// The error, if the request failed.
    pub error: Option<ErrorCode>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The kind of event; `None` for kinds that no server sends today.
    pub kind: Option<EventKind>,
    /// The node.
    pub path: String,
}

/// Decodes the first frame that a server sends.
///
/// # Errors
/// The frame is shorter than its fields, or the password does not have 16 bytes.
pub fn decode_connect(frame: &[u8]) -> Result<ConnectResponse, Malformed> {
    let mut reader = Reader::new(frame);
    let _protocol_version = reader.i32()?;
    let (timeout_ms, session) = (reader.i32()?, reader.i64()?);
    let password = reader.buffer()?.unwrap_or_default();
    // Apache's server sends an empty password, or 16 zeros, with an expired session.
    let password = if session == 0 { [0; 16] } else { password.try_into().map_err(|_| Malformed)? };
    // A read-only byte may follow. The client does not need it: its session may write.
    Ok(ConnectResponse { timeout_ms, session, password })
}

/// Decodes the header of any later frame, and leaves the reader at the body.
///
/// # Errors
/// The frame is shorter than a header.
pub fn decode_header(reader: &mut Reader<'_>) -> Result<Header, Malformed> {
    let (xid, zxid, error) = (reader.i32()?, reader.i64()?, reader.i32()?);
    Ok(Header { xid, zxid, error: (error != 0).then(|| ErrorCode::known_or_system(error)) })
}

/// Decodes the body of a watch event.
///
/// # Errors
/// The body is shorter than its fields.
pub fn decode_event(reader: &mut Reader<'_>) -> Result<WatchEvent, Malformed> {
    let (kind, _state) = (reader.i32()?, reader.i32()?);
    Ok(WatchEvent { kind: EventKind::from_i32(kind), path: reader.text()? })
}

/// Decodes the token of a SASL step.
///
/// # Errors
/// The body is shorter than its fields.
pub fn decode_sasl(reader: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    Ok(reader.buffer()?.unwrap_or_default().to_vec())
}

/// Decodes the body of the reply to a request with this operation code. A reply with an error has no body.
///
/// # Errors
/// The body does not fit the operation.
pub fn decode(opcode: OpCode, reader: &mut Reader<'_>) -> Result<Response, Malformed> {
    Ok(match opcode {
        OpCode::Create => Response::Created { path: read_path(reader)?, stat: None },
        OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => {
            Response::Created { path: read_path(reader)?, stat: Some(read_stat(reader)?) }
        }
        OpCode::Exists | OpCode::SetData | OpCode::SetAcl => Response::Stat(read_stat(reader)?),
        OpCode::GetData => Response::Data { data: reader.data()?, stat: read_stat(reader)? },
        OpCode::GetChildren => Response::Children { names: read_paths(reader)?, stat: None },
        OpCode::GetChildren2 => Response::Children { names: read_paths(reader)?, stat: Some(read_stat(reader)?) },
        OpCode::GetAcl => Response::Acl { acl: read_acl(reader)?.into(), stat: read_stat(reader)? },
        OpCode::Sync => Response::Path(reader.text()?),
        OpCode::GetEphemerals => Response::Ephemerals(read_paths(reader)?),
        OpCode::GetAllChildrenNumber => Response::Count(reader.i32()?),
        OpCode::Multi | OpCode::MultiRead => Response::Multi(read_op_results(reader)?),
        OpCode::WhoAmI => Response::Identities(reader.vector(8, |reader| {
            let scheme = reader.text()?;
            let name = reader.buffer()?.map(|name| String::from_utf8_lossy(name).into_owned());
            Ok((scheme, name))
        })?),
        OpCode::AddWatch => {
            reader.i32()?;
            Response::WatchAdded
        }
        OpCode::Delete
        | OpCode::Ping
        | OpCode::Check
        | OpCode::CheckWatches
        | OpCode::RemoveWatches
        | OpCode::SetWatches
        | OpCode::SetWatches2
        | OpCode::CloseSession
        | OpCode::Auth => Response::Done,
        OpCode::CreateSession | OpCode::Reconfig | OpCode::DeleteContainer | OpCode::Sasl => return Err(Malformed),
    })
}

fn read_path(reader: &mut Reader<'_>) -> Result<Arc<str>, Malformed> {
    reader.text().map(Arc::from)
}

fn read_paths(reader: &mut Reader<'_>) -> Result<Vec<Arc<str>>, Malformed> {
    reader.vector(4, read_path)
}

fn read_stat(reader: &mut Reader<'_>) -> Result<Stat, Malformed> {
    Ok(Stat {
        czxid: reader.i64()?,
        mzxid: reader.i64()?,
        ctime: reader.i64()?,
        mtime: reader.i64()?,
        version: reader.i32()?,
        cversion: reader.i32()?,
        aversion: reader.i32()?,
        ephemeral_owner: reader.i64()?,
        data_length: reader.i32()?,
        num_children: reader.i32()?,
        pzxid: reader.i64()?,
    })
}

fn read_op_results(reader: &mut Reader<'_>) -> Result<Vec<OpResult>, Malformed> {
    let mut results = Vec::new();
    loop {
        let (opcode, done, _error) = (reader.i32()?, reader.bool()?, reader.i32()?);
        if done {
            return Ok(results);
        }
        results.push(match OpCode::from_i32(opcode) {
            // An error's header has the operation code −1, and the body repeats the error.
            None if opcode == -1 => match reader.i32()? {
                0 => OpResult::RolledBack,
                error => OpResult::Failed(ErrorCode::known_or_system(error)),
            },
            Some(OpCode::Create) => OpResult::Created { path: read_path(reader)?, stat: None },
            Some(OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl) => {
                OpResult::Created { path: read_path(reader)?, stat: Some(read_stat(reader)?) }
            }
            Some(OpCode::Delete) => OpResult::Deleted,
            Some(OpCode::SetData) => OpResult::DataSet(read_stat(reader)?),
            Some(OpCode::Check) => OpResult::Checked,
            Some(OpCode::GetData) => OpResult::Data { data: reader.data()?, stat: read_stat(reader)? },
            Some(OpCode::GetChildren) => OpResult::Children(read_paths(reader)?),
            _ => return Err(Malformed),
        });
    }
}
