//! Jute, ZooKeeper's encoding: big-endian integers, length-prefixed text and buffers, counted vectors.

use bytes::{BufMut, Bytes, BytesMut};

/// The bytes do not say what they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads values off the front of a frame.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        self.u8().map(|byte| byte != 0)
    }

    /// A buffer; −1 as length means that there is none.
    pub(crate) fn buffer(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.i32()? {
            -1 => Ok(None),
            len => self.take(usize::try_from(len).map_err(|_| Malformed)?).map(Some),
        }
    }

    /// Data to keep: copied, or a few bytes would hold on to the whole receive buffer.
    pub(crate) fn data(&mut self) -> Result<Option<Bytes>, Malformed> {
        Ok(self.buffer()?.map(Bytes::copy_from_slice))
    }

    /// Text that must be there. Bytes that are not UTF-8 become U+FFFD, as in Java, which no path may contain.
    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let bytes = self.buffer()?.ok_or(Malformed)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// A vector; −1 as length is an empty one. `min_len` is what an element takes at least, which bounds the allocation.
    pub(crate) fn vector<T>(
        &mut self,
        min_len: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let len = match self.i32()? {
            -1 => return Ok(Vec::new()),
            len => usize::try_from(len).map_err(|_| Malformed)?,
        };
        if len.checked_mul(min_len).is_none_or(|bytes| bytes > self.rest.len()) {
            return Err(Malformed);
        }
        (0..len).map(|_| element(self)).collect()
    }
}

/// Lengths on the wire are signed 32-bit; nothing that passed the frame limit or was read from the tree exceeds that.
fn wire_len(len: usize) -> i32 {
    i32::try_from(len).expect("no value in a tree of bounded frames is 2 GiB long")
}

pub(crate) fn put_buffer(out: &mut BytesMut, bytes: Option<&[u8]>) {
    match bytes {
        None => out.put_i32(-1),
        Some(bytes) => {
            out.put_i32(wire_len(bytes.len()));
            out.put_slice(bytes);
        }
    }
}

pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    put_buffer(out, Some(text.as_bytes()));
}

pub(crate) fn put_len(out: &mut BytesMut, len: usize) {
    out.put_i32(wire_len(len));
}
