//! The bytes of a node, the same in the snapshot and in the log. They do not include its children, which have records
//! of their own.

use bytes::{BufMut, BytesMut};

use crate::machine::{AccessList, Node, Owner};
use lockkeeper_wire::jute::{self, Malformed, Reader};
use lockkeeper_wire::{Acl, put_acl, read_acl};

pub(crate) fn encode_node(out: &mut BytesMut, node: &Node) {
    let (tag, value) = match node.owner {
        Owner::None => (0, 0),
        Owner::Session(id) => (1, id),
        Owner::Container => (2, 0),
        Owner::Ttl(ms) => (3, ms),
    };
    out.put_u8(tag);
    out.put_i64(value);
    for number in [node.czxid, node.mzxid, node.pzxid, node.ctime, node.mtime] {
        out.put_i64(number);
    }
    for number in [node.version, node.aversion, node.creates] {
        out.put_i32(number);
    }
    // An empty list means the list that nearly every node has.
    let acl: &[Acl] = if *node.acl == [Acl::OPEN] { &[] } else { &node.acl };
    put_acl(out, acl);
    jute::put_buffer(out, node.data.as_deref());
}

/// `open` is the shared copy of the list that nearly every node has.
pub(crate) fn decode_node(bytes: &[u8], open: &AccessList) -> Result<Node, Malformed> {
    let mut reader = Reader::new(bytes);
    let tag = reader.u8()?;
    let value = reader.i64()?;
    let owner = match tag {
        0 => Owner::None,
        1 => Owner::Session(value),
        2 => Owner::Container,
        3 => Owner::Ttl(value),
        _ => return Err(Malformed),
    };
    let (czxid, mzxid, pzxid) = (reader.i64()?, reader.i64()?, reader.i64()?);
    let (ctime, mtime) = (reader.i64()?, reader.i64()?);
    let (version, aversion, creates) = (reader.i32()?, reader.i32()?, reader.i32()?);
    let acl = read_acl(&mut reader)?;
    let acl = if acl.is_empty() { open.clone() } else { AccessList::from(&acl[..]) };
    let data = reader.data()?;
    let children = Default::default();
    Ok(Node { data, acl, owner, czxid, mzxid, pzxid, ctime, mtime, version, aversion, creates, children })
}
