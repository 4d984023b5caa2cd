//! Encoding and decoding of fields that requests and responses share.

use bytes::{BufMut, BytesMut};

use crate::jute::{Malformed, Reader, put_len, put_text};
use crate::values::{Acl, AclId};

/// Reads an access list.
pub fn read_acl(reader: &mut Reader<'_>) -> Result<Vec<Acl>, Malformed> {
    reader.vector(12, |reader| {
        let perms = reader.i32()?;
        // Kazoo writes −1 as the length of an empty text. The server refuses an empty scheme or id if it is not valid.
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

/// Appends an access list.
pub fn put_acl(out: &mut BytesMut, acl: &[Acl]) {
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

/// Appends the header of an operation of a multi.
pub(crate) fn put_multi_header(out: &mut BytesMut, kind: i32, done: bool, error: i32) {
    out.put_i32(kind);
    out.put_u8(u8::from(done));
    out.put_i32(error);
}
