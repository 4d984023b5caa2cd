//! Frames: a length of four bytes, then the payload.

use bytes::{BufMut, BytesMut};

use crate::Malformed;

/// Returns the payload of the frame at the front of `received`, or `None` if the frame is incomplete.
///
/// # Errors
/// The length is negative or above `max_frame`. This is detected as soon as the first four bytes have arrived.
pub fn first(received: &[u8], max_frame: usize) -> Result<Option<&[u8]>, Malformed> {
    let Some((len, rest)) = received.split_first_chunk() else { return Ok(None) };
    // A negative length is a huge unsigned one, so the limit refuses it too.
    let len = usize::try_from(u32::from_be_bytes(*len)).map_err(|_| Malformed)?;
    if len > max_frame { Err(Malformed) } else { Ok(rest.get(..len)) }
}

/// The longest payload: lengths are signed numbers of 32 bits.
const LONGEST: usize = i32::MAX as usize;

/// A frame would be longer than the protocol can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Appends a frame with the payload that `body` writes.
///
/// # Errors
/// The payload is 2 GiB or longer. Nothing is appended then.
pub fn put(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) -> Result<(), TooLong> {
    put_up_to(LONGEST, out, body)
}

/// Appends a frame with a payload of at most `most` bytes.
fn put_up_to(most: usize, out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) -> Result<(), TooLong> {
    let start = out.len();
    out.put_i32(0);
    body(out);
    let len = out.len() - start - 4;
    match i32::try_from(len) {
        Ok(number) if len <= most => {
            out[start..start + 4].copy_from_slice(&number.to_be_bytes());
            Ok(())
        }
        _ => {
            out.truncate(start);
            Err(TooLong)
        }
    }
}

/// Appends a frame with this payload, or with `instead` if the payload is 2 GiB or longer. `instead` must be short.
pub(crate) fn put_or(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut), instead: impl FnOnce(&mut BytesMut)) {
    if put(out, body).is_err() {
        let _ = put(out, instead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_too_long_leaves_nothing_behind() {
        let mut out = BytesMut::new();
        assert_eq!(put_up_to(3, &mut out, |out| out.put_slice(b"abc")), Ok(()));
        assert_eq!(put_up_to(3, &mut out, |out| out.put_slice(b"abcd")), Err(TooLong));
        assert_eq!(&out[..], b"\0\0\0\x03abc");
    }
}
