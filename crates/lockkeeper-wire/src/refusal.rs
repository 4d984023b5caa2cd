//! The line with which a server refuses a client of its Unix socket, because a limit is reached. It is not ZooKeeper's.
//!
//! The line comes in place of the first answer. Its first four bytes are no length of a frame, so a client that does not know it
//! gives the connection up. A client that has asked with a four-letter word reads it as the answer.

use bytes::{BufMut, BytesMut};

/// The beginning of the line.
const BEGINNING: &str = "refused: ";
/// The longest line that a client reads.
const LONGEST: usize = 512;

/// Appends the line.
pub fn encode(out: &mut BytesMut, why: &str) {
    out.put_slice(BEGINNING.as_bytes());
    out.put_slice(why.as_bytes());
    out.put_u8(b'\n');
}

/// Returns why the server refuses the client, if these are the first bytes that it has sent.
pub fn decode(received: &[u8]) -> Option<&str> {
    let line = &received[..received.len().min(LONGEST)];
    let why = std::str::from_utf8(line).ok()?.strip_prefix(BEGINNING)?.lines().next()?;
    (!why.contains(char::is_control)).then_some(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    #[test]
    fn a_refusal_is_read_as_it_is_written_and_is_no_frame() {
        let mut line = BytesMut::new();
        encode(&mut line, "uid 7 has 16 connections");
        assert_eq!(decode(&line), Some("uid 7 has 16 connections"));
        assert!(frame::first(&line, 64 << 20).is_err());
        for other in [&b""[..], b"imok", b"refused", b"refused: \x1b[2J\n", b"refused: \xff\n"] {
            assert_eq!(decode(other), None, "{other:?}");
        }
    }
}
