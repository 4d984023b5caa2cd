//! What waits to be sent on one connection.
//!
//! Everything a client is told goes through here in order. A frame that presupposes a transaction stays until that
//! transaction is durable, and with it everything behind it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

/// Bytes up to `end` may go once `zxid` is durable.
#[derive(Debug)]
struct Mark {
    zxid: i64,
    end: u64,
    frames: Waited,
}

/// Frames that wait, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waited {
    pub(crate) frames: u64,
    /// The first one's moment, the last one's, and all of them added up.
    pub(crate) first: Duration,
    pub(crate) last: Duration,
    pub(crate) sum: Duration,
}

impl Waited {
    fn since(moment: Duration) -> Self {
        Self { frames: 1, first: moment, last: moment, sum: moment }
    }

    /// Adds some that began later.
    fn add(&mut self, later: Self) {
        *self = Self {
            frames: self.frames + later.frames,
            first: if self.frames == 0 { later.first } else { self.first },
            last: later.last,
            sum: self.sum + later.sum,
        };
    }
}

#[derive(Debug, Default)]
struct Queue {
    bytes: BytesMut,
    /// Stream positions: everything before `taken` has been handed to the socket, before `released` may be.
    taken: u64,
    released: u64,
    marks: VecDeque<Mark>,
}

impl Queue {
    fn end(&self) -> u64 {
        self.taken + self.bytes.len() as u64
    }
}

/// How far a connection is from its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    #[default]
    Not,
    /// Nothing more is accepted, in either direction; what is queued is still sent.
    AfterTheLast,
    /// Whatever is queued is lost.
    Now,
}

/// The sending side of a connection, between the engine and the task that writes.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: RefCell<Queue>,
    ending: Cell<Ending>,
    /// Whatever is queued now is forgotten instead; for faults.
    muted: Cell<bool>,
    /// Nothing at or after this stream position goes; for faults.
    held_at: Cell<Option<u64>>,
    /// The connection has begun to end; heard by its one reader.
    pub(crate) ended: Notify,
    /// Something may be sent, or the connection is to be closed.
    pub(crate) wake: Notify,
    /// Something has been sent.
    pub(crate) room: Notify,
    pub(crate) sent: Cell<u64>,
    pub(crate) received: Cell<u64>,
}

impl Outbox {
    /// Queues a frame that may go once `zxid` is durable, and answers what came in at `since`; true if it has to wait.
    pub(crate) fn push(&self, zxid: i64, durable: i64, since: Duration, encode: impl FnOnce(&mut BytesMut)) -> bool {
        if self.is_closing() || self.muted.get() {
            return false;
        }
        let queue = &mut *self.queue.borrow_mut();
        encode(&mut queue.bytes);
        self.sent.set(self.sent.get() + 1);
        let end = queue.end();
        if zxid <= durable && queue.marks.is_empty() {
            queue.released = end;
            self.wake.notify_one();
            return false;
        }
        match queue.marks.back_mut() {
            // Numbers only grow along the queue, so a later frame never goes before an earlier one.
            Some(last) if last.zxid >= zxid => {
                last.end = end;
                last.frames.add(Waited::since(since));
            }
            _ => queue.marks.push_back(Mark { zxid, end, frames: Waited::since(since) }),
        }
        true
    }

    /// Lets go what presupposes nothing after `durable`, and tells how much that is.
    pub(crate) fn release(&self, durable: i64) -> Waited {
        let queue = &mut *self.queue.borrow_mut();
        let mut released = Waited::default();
        while let Some(mark) = queue.marks.front().filter(|mark| mark.zxid <= durable) {
            queue.released = mark.end;
            released.add(mark.frames);
            queue.marks.pop_front();
        }
        if released.frames > 0 {
            self.wake.notify_one();
        }
        released
    }

    /// Takes what may be sent now.
    pub(crate) fn take(&self) -> Option<Bytes> {
        let queue = &mut *self.queue.borrow_mut();
        let until = self.held_at.get().map_or(queue.released, |held| queue.released.min(held));
        let len = usize::try_from(until.saturating_sub(queue.taken)).expect("the bytes are in memory");
        if len == 0 {
            return None;
        }
        queue.taken = until;
        if queue.bytes.len() == len {
            // Idle connections keep no buffer.
            return Some(std::mem::take(&mut queue.bytes).freeze());
        }
        Some(queue.bytes.split_to(len).freeze())
    }

    /// How many bytes are queued.
    pub(crate) fn backlog(&self) -> usize {
        self.queue.borrow().bytes.len()
    }

    /// How many frames wait for the disk.
    pub(crate) fn held(&self) -> u64 {
        self.queue.borrow().marks.iter().map(|mark| mark.frames.frames).sum()
    }

    /// Forgets what is queued from now on, or no longer.
    #[cfg(feature = "faults")]
    pub(crate) fn mute(&self, muted: bool) {
        self.muted.set(muted);
    }

    /// Keeps back what is queued from now on, or lets it go.
    #[cfg(feature = "faults")]
    pub(crate) fn hold(&self, held: bool) {
        let end = self.queue.borrow().end();
        self.held_at.set(held.then(|| self.held_at.get().unwrap_or(end)));
        self.wake.notify_one();
    }

    /// Ends the connection after what is queued now.
    pub(crate) fn close(&self) {
        self.end(Ending::AfterTheLast);
    }

    /// Ends the connection at once.
    pub(crate) fn abort(&self) {
        self.end(Ending::Now);
    }

    fn end(&self, ending: Ending) {
        if self.ending.get() < ending {
            self.ending.set(ending);
            self.ended.notify_one();
            self.wake.notify_one();
        }
    }

    /// Whether nothing more is accepted.
    pub(crate) fn is_closing(&self) -> bool {
        self.ending.get() != Ending::Not
    }

    /// Whether it ends at once.
    pub(crate) fn is_aborted(&self) -> bool {
        self.ending.get() == Ending::Now
    }

    /// Whether the last byte has been taken after a close.
    pub(crate) fn is_done(&self) -> bool {
        self.is_closing() && self.queue.borrow().bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(outbox: &Outbox, zxid: i64, durable: i64, text: &'static str) {
        outbox.push(zxid, durable, Duration::from_millis(zxid.unsigned_abs()), |out| {
            out.extend_from_slice(text.as_bytes())
        });
    }

    #[test]
    fn nothing_overtakes_a_frame_that_waits_for_the_disk() {
        let outbox = Outbox::default();
        push(&outbox, 1, 1, "a");
        push(&outbox, 2, 1, "b");
        push(&outbox, 2, 1, "c");
        push(&outbox, 3, 1, "d");
        assert_eq!(outbox.take().as_deref(), Some(&b"a"[..]));
        assert_eq!(outbox.take(), None);
        assert_eq!(outbox.held(), 3);
        let ms = Duration::from_millis;
        assert_eq!(outbox.release(2), Waited { frames: 2, first: ms(2), last: ms(2), sum: ms(4) });
        assert_eq!(outbox.take().as_deref(), Some(&b"bc"[..]));
        outbox.close();
        push(&outbox, 3, 3, "never");
        assert!(!outbox.is_done());
        assert_eq!(outbox.release(3).frames, 1);
        assert_eq!(outbox.take().as_deref(), Some(&b"d"[..]));
        assert!(outbox.is_done());
    }
}
