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

use tokio_util::codec::LengthDelimitedCodec;

/// The xid of a reply to a ping, whatever the ping's was.
pub(crate) const PING_XID: i32 = -2;
/// The xid of a watch event.
pub(crate) const EVENT_XID: i32 = -1;

/// Frames as both directions have them: four bytes of length, then that many bytes.
pub(crate) fn framing(max_frame: usize) -> LengthDelimitedCodec {
    // A negative length is a huge unsigned one, so the limit refuses it too.
    LengthDelimitedCodec::builder().max_frame_length(max_frame).length_field_length(4).new_codec()
}
