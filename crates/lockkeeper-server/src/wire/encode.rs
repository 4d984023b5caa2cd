//! What the server sends, written straight into a connection's buffer.

use bytes::{BufMut, BytesMut};

use crate::opcode::OpCode;
use crate::request::{Acl, AclId, ConnectResponse, ErrorCode, EventKind, OpResult, Response, Stat};

use super::EVENT_XID;
use super::jute::{put_buffer, put_len, put_text};

/// The protocol's number for a client that is connected and may write.
const SYNC_CONNECTED: i32 = 3;

/// Writes a frame around what `body` writes.
fn frame(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_i32(0);
    body(out);
    let len = i32::try_from(out.len() - start - 4).expect("no answer from a tree in memory is 2 GiB long");
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}

/// Answers a connect request.
pub(crate) fn connect_response(out: &mut BytesMut, response: &ConnectResponse, has_read_only: bool) {
    frame(out, |out| {
        out.put_i32(0);
        out.put_i32(response.timeout_ms);
        out.put_i64(response.session);
        put_buffer(out, Some(&response.password));
        if has_read_only {
            out.put_u8(0);
        }
    });
}

fn header(out: &mut BytesMut, xid: i32, zxid: i64, error: i32) {
    out.put_i32(xid);
    out.put_i64(zxid);
    out.put_i32(error);
}

/// Answers an auth packet; ZooKeeper tells no zxid here.
pub(crate) fn auth_reply(out: &mut BytesMut, xid: i32, result: Result<(), ErrorCode>) {
    frame(out, |out| header(out, xid, 0, result.err().map_or(0, ErrorCode::as_i32)));
}

/// Answers a step of a SASL exchange; no zxid here either. An error has a body, too, a token that is none: Java's client reads one
/// before it looks for an error (ClientCnxn), and without it takes the answer for a broken connection and tries again for ever.
pub(crate) fn sasl_reply(out: &mut BytesMut, xid: i32, result: Result<&[u8], ErrorCode>) {
    frame(out, |out| {
        header(out, xid, 0, result.err().map_or(0, ErrorCode::as_i32));
        put_buffer(out, result.ok());
    });
}

/// Answers a request.
pub(crate) fn reply(out: &mut BytesMut, xid: i32, zxid: i64, result: &Result<Response, ErrorCode>) {
    frame(out, |out| match result {
        Err(error) => header(out, xid, zxid, error.as_i32()),
        Ok(response) => {
            header(out, xid, zxid, 0);
            body(out, response);
        }
    });
}

/// Tells of a change.
pub(crate) fn event(out: &mut BytesMut, zxid: i64, kind: EventKind, path: &str) {
    frame(out, |out| {
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
            multi_header(out, -1, true, -1);
        }
    }
}

fn multi_header(out: &mut BytesMut, kind: i32, done: bool, error: i32) {
    out.put_i32(kind);
    out.put_u8(u8::from(done));
    out.put_i32(error);
}

fn op_result(out: &mut BytesMut, result: &OpResult) {
    let succeeded = |out: &mut BytesMut, opcode: OpCode| multi_header(out, opcode.as_i32(), false, 0);
    let failed = |out: &mut BytesMut, error: i32| {
        multi_header(out, -1, false, error);
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

fn put_texts(out: &mut BytesMut, texts: &[std::sync::Arc<str>]) {
    put_len(out, texts.len());
    for text in texts {
        put_text(out, text);
    }
}

fn put_acl(out: &mut BytesMut, acl: &[Acl]) {
    put_len(out, acl.len());
    for Acl { perms, id } in acl {
        out.put_i32(*perms);
        let (scheme, id) = match id {
            AclId::WorldAnyone => ("world", "anyone"),
            AclId::Other { scheme, id } => (scheme.as_str(), id.as_str()),
        };
        put_text(out, scheme);
        put_text(out, id);
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
