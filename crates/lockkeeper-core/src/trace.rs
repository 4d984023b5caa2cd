//! The place of a program in a distributed trace: the header `traceparent` of W3C Trace Context.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A span of a distributed trace, as the `traceparent` of [W3C Trace Context](https://www.w3.org/TR/trace-context/) names it.
///
/// A text of a later version of the format is read as far as this version defines it, and written again in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

/// A text is not a `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent of W3C Trace Context, such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
#[non_exhaustive]
pub struct TraceParentError;

impl TraceParent {
    /// The trace, as 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// The span in the trace, as 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span_id)
    }

    /// Reads the field of a record. A bad value counts as none: it is for people, and no lock depends on it.
    pub(crate) fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(value.as_str().and_then(|text| text.parse().ok()))
    }
}

/// Reads exactly `digits` lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_hex = text.len() == digits && text.bytes().all(is_digit);
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

impl FromStr for TraceParent {
    type Err = TraceParentError;

    fn from_str(text: &str) -> Result<Self, TraceParentError> {
        let mut parts = text.splitn(5, '-');
        let mut next = |digits| parts.next().and_then(|part| hex(part, digits)).ok_or(TraceParentError);
        let (version, trace_id, span_id, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        // Later versions may add parts.
        if version == 0xff || (version == 0 && parts.next().is_some()) || trace_id == 0 || span_id == 0 {
            return Err(TraceParentError);
        }
        let narrow = (u64::try_from(span_id), u8::try_from(flags));
        let (Ok(span_id), Ok(flags)) = narrow else { return Err(TraceParentError) };
        Ok(TraceParent { trace_id, span_id, flags })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_standard_reads_back() {
        let read: TraceParent = EXAMPLE.parse().unwrap();
        assert_eq!(read.to_string(), EXAMPLE);
        assert_eq!(read.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(read.span_id(), "00f067aa0ba902b7");
    }

    #[test]
    fn a_later_version_is_read_as_far_as_this_one_goes() {
        let later = EXAMPLE.replacen("00-", "cc-", 1);
        assert_eq!(format!("{later}-what-else").parse(), EXAMPLE.parse::<TraceParent>());
        assert_eq!(later.parse(), EXAMPLE.parse::<TraceParent>());
    }

    #[test]
    fn what_the_standard_forbids_is_refused() {
        let [zero_trace, zero_span] = [("4bf92f3577b34da6a3ce929d0e0e4736", 32), ("00f067aa0ba902b7", 16)]
            .map(|(id, digits)| EXAMPLE.replace(id, &"0".repeat(digits)));
        let (upper, more) = (EXAMPLE.to_uppercase(), format!("{EXAMPLE}-01"));
        let (spaced, signed) = (format!(" {EXAMPLE}"), EXAMPLE.replace("-01", "-+1"));
        let invalid = EXAMPLE.replacen("00-", "ff-", 1);
        let texts = [&zero_trace, &zero_span, &upper, &more, &spaced, &signed, &invalid, "", "00", &EXAMPLE[..54]];
        for text in texts {
            assert_eq!(text.parse::<TraceParent>(), Err(TraceParentError), "{text:?}");
        }
    }
}
