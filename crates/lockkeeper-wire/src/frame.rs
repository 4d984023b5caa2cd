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

/// Appends a frame with the payload that `body` writes.
///
/// # Panics
/// If the payload is 2 GiB or longer.
pub fn put(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_i32(0);
    body(out);
    let len = i32::try_from(out.len() - start - 4).expect("a frame is shorter than 2 GiB");
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}
