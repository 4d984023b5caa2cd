//! The protocol's bytes.
//!
//! Decoding never panics and never allocates more than the frame it reads could fill, whatever a peer sends. What cannot
//! be decoded becomes a refusal that can be answered, except a frame too short for its own header.

mod decode;
mod encode;
pub(crate) mod jute;
#[cfg(test)]
mod tests;

pub(crate) use decode::{Frame, connect_request, request};
pub(crate) use encode::{auth_reply, connect_response, event, reply, sasl_reply};

use jute::Malformed;

/// The xid of a reply to a ping, whatever the ping's was.
pub(crate) const PING_XID: i32 = -2;
/// The xid of a watch event.
pub(crate) const EVENT_XID: i32 = -1;

/// The frame at the front of what came in, without the four bytes that tell its length; `None` until all of it is there.
///
/// # Errors
/// It is longer than a frame may be, which shows before it is there.
pub(crate) fn first_frame(received: &[u8], max_frame: usize) -> Result<Option<&[u8]>, Malformed> {
    let Some((len, rest)) = received.split_first_chunk() else { return Ok(None) };
    // A negative length is a huge unsigned one, so the limit refuses it too.
    let len = usize::try_from(u32::from_be_bytes(*len)).map_err(|_| Malformed)?;
    if len > max_frame { Err(Malformed) } else { Ok(rest.get(..len)) }
}
