//! Requests that servers answer by closing the connection: those beyond their `jute.maxbuffer`.

/// A request that is shorter ends no connection. Servers with a lower limit cannot serve sessions.
const SHORTEST: usize = 4096;
/// How many connections in a row end before a request is refused. A server that ends, or a broken network, ends one or two.
const CONNECTIONS: u32 = 3;

/// What suggests that requests are too large.
#[derive(Debug, Default)]
pub(super) struct TooLarge {
    /// How many connections in a row the servers have closed with such a request under way.
    closed: u32,
    /// The shortest of the longest requests of these connections.
    bytes: usize,
}

impl TooLarge {
    /// The server has closed the connection. `longest`: the length of the longest request without an answer.
    pub(super) fn closed(&mut self, longest: Option<usize>) {
        *self = match longest.filter(|bytes| *bytes >= SHORTEST) {
            None => TooLarge::default(),
            Some(bytes) if self.closed == 0 => TooLarge { closed: 1, bytes },
            Some(bytes) => TooLarge { closed: self.closed + 1, bytes: self.bytes.min(bytes) },
        };
    }

    /// A request of this length was answered.
    pub(super) fn answered(&mut self, bytes: usize) {
        if self.closed > 0 && bytes >= self.bytes {
            *self = TooLarge::default();
        }
    }

    /// Whether a request of this length is refused. The next one is not, in case that the servers take it by now.
    pub(super) fn refuses(&mut self, bytes: usize) -> bool {
        let refuses = self.closed >= CONNECTIONS && bytes >= self.bytes;
        if refuses {
            *self = TooLarge::default();
        }
        refuses
    }
}
