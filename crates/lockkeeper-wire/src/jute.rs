//! Jute, ZooKeeper's encoding: big-endian integers, length-prefixed text and buffers, counted vectors.

use bytes::{BufMut, Bytes, BytesMut};

/// The bytes do not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("malformed frame")
    }
}

impl std::error::Error for Malformed {}

/// Reads values from the front of a frame.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
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

    /// Reads an `int`.
    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    /// Reads a `long`.
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    /// Reads a byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    /// Reads a `boolean`; every byte but 0 is true.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        self.u8().map(|byte| byte != 0)
    }

    /// Reads a `buffer`. Length −1 means that it is absent.
    pub fn buffer(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.i32()? {
            -1 => Ok(None),
            len => self.take(usize::try_from(len).map_err(|_| Malformed)?).map(Some),
        }
    }

    /// Reads a `buffer` into a copy. A reference of a few bytes would keep the whole receive buffer alive.
    pub fn data(&mut self) -> Result<Option<Bytes>, Malformed> {
        Ok(self.buffer()?.map(Bytes::copy_from_slice))
    }

    /// Reads a `ustring`, which must be present. Bytes that are not UTF-8 become U+FFFD, as in Java; no path may
    /// contain that.
    pub fn text(&mut self) -> Result<String, Malformed> {
        let bytes = self.buffer()?.ok_or(Malformed)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Reads a `vector`. Length −1 is an empty one. `min_len` is the minimum size of an element in bytes; it limits
    /// the allocation.
    pub fn vector<T>(
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

/// Lengths are signed 32-bit numbers. A frame with a longer value is itself too long, so [`crate::frame::put`] refuses it.
fn wire_len(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

/// Appends a `buffer`.
pub fn put_buffer(out: &mut BytesMut, bytes: Option<&[u8]>) {
    match bytes {
        None => out.put_i32(-1),
        Some(bytes) => {
            out.put_i32(wire_len(bytes.len()));
            out.put_slice(bytes);
        }
    }
}

/// Appends a `ustring`.
pub fn put_text(out: &mut BytesMut, text: &str) {
    put_buffer(out, Some(text.as_bytes()));
}

/// Appends the length of a `vector`.
pub fn put_len(out: &mut BytesMut, len: usize) {
    out.put_i32(wire_len(len));
}
