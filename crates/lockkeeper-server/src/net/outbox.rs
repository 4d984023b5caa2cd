//! The bytes that wait to be sent on one connection, and what all connections keep together.
//!
//! All frames to a client pass through here in order. A frame that must wait for a transaction stays until that is
//! durable, and so does everything after it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};

use crate::net::transport::WriteHalf;

/// While more bytes than this wait to be sent to a client, its next requests wait too. The second one is for a crowd.
const MAX_BACKLOG: usize = 1 << 20;
const MAX_CROWDED_BACKLOG: usize = 64 << 10;
/// Maximum bytes that wait for all clients together, in answers of the longest length. Above it, clients are a crowd:
/// answers are no longer than that with the data of one node, and clients with too many waiting events are disconnected.
const MAX_LONG_ANSWERS: usize = 4;
/// The most that an answer with the data of a node has besides what fits into a frame.
const STAT: usize = 128;
/// Maximum bytes that are kept of unfinished requests of all clients together, in requests of the longest length. Above it,
/// the connection that keeps most is closed.
const MAX_LONG_REQUESTS: usize = 64;
/// Maximum bytes per read.
pub(crate) const READ_BYTES: usize = 32 << 10;
/// Maximum number of empty queues that are kept for reuse, and their maximum capacity.
const SPARES: usize = 64;
const SPARE_BYTES: usize = 16 << 10;
const SPARE_MARKS: usize = 256;

/// Buffers that all connections of a thread share: idle connections have none, and busy ones need no allocation.
pub(crate) struct Buffers {
    /// The buffer of a read, whose bytes are used immediately.
    pub(crate) received: RefCell<Box<[u8]>>,
    #[allow(clippy::vec_box, reason = "the very boxes that queues have, so that one moves without an allocation")]
    spare: RefCell<Vec<Box<Content>>>,
    /// Bytes that wait to be sent, on all connections.
    queued: Cell<usize>,
    /// Maximum bytes of one answer, and of one in a crowd.
    longest: usize,
    short: usize,
    /// Bytes that were received and are no whole request, on all connections, and their maximum.
    unfinished: Cell<usize>,
    max_unfinished: usize,
}

impl Buffers {
    /// Creates buffers for answers of this length to requests of this length.
    pub(crate) fn new(longest: usize, max_frame: usize) -> Self {
        let max_unfinished = max_frame.saturating_add(READ_BYTES).saturating_mul(MAX_LONG_REQUESTS);
        Self { longest, short: max_frame.saturating_add(STAT), max_unfinished, ..Self::default() }
    }

    /// Returns how many bytes are kept of unfinished requests.
    #[cfg(test)]
    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.get()
    }

    fn max_queued(&self) -> usize {
        self.longest.saturating_mul(MAX_LONG_ANSWERS)
    }

    /// Returns whether so many bytes wait for all clients that each may have few only.
    pub(crate) fn are_crowded(&self) -> bool {
        self.queued.get() > self.max_queued()
    }

    /// Returns how long the next answer may be, because others wait.
    pub(crate) fn room(&self) -> usize {
        self.max_queued().saturating_sub(self.queued.get()).max(self.short)
    }

    fn changed(&self, before: usize, after: usize) {
        self.queued.set((self.queued.get() + after).saturating_sub(before));
    }
}

impl Default for Buffers {
    fn default() -> Self {
        let received = RefCell::new(vec![0; READ_BYTES].into());
        Self {
            received,
            spare: RefCell::default(),
            queued: Cell::new(0),
            longest: usize::MAX,
            short: usize::MAX,
            unfinished: Cell::new(0),
            max_unfinished: usize::MAX,
        }
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

/// Bytes up to `end` may be sent when `zxid` is durable.
#[derive(Debug)]
struct Mark {
    zxid: i64,
    end: u64,
    frames: WaitingFrames,
}

/// Waiting frames, and when their requests arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitingFrames {
    pub(crate) frames: u64,
    /// The time of the first one, of the last one, and the sum of all times.
    pub(crate) first: Duration,
    pub(crate) last: Duration,
    pub(crate) sum: Duration,
}

impl WaitingFrames {
    pub(crate) fn since(moment: Duration) -> Self {
        Self { frames: 1, first: moment, last: moment, sum: moment }
    }

    fn add(&mut self, later: Self) {
        *self = Self {
            frames: self.frames + later.frames,
            first: if self.frames == 0 { later.first } else { self.first },
            last: later.last,
            sum: self.sum + later.sum,
        };
    }
}

/// Queued bytes.
#[derive(Debug, Default)]
struct Content {
    bytes: BytesMut,
    marks: VecDeque<Mark>,
}

#[derive(Debug, Default)]
struct Queue {
    /// None while nothing is queued: most connections are idle.
    content: Option<Box<Content>>,
    /// Stream positions: everything before `taken` has been handed to the socket, everything before `released` may be.
    taken: u64,
    released: u64,
}

impl Queue {
    fn len(&self) -> usize {
        self.content.as_ref().map_or(0, |content| content.bytes.len())
    }

    #[cfg(feature = "faults")]
    fn end(&self) -> u64 {
        self.taken + self.len() as u64
    }
}

/// Whether and how a connection is closing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Closing {
    #[default]
    Not,
    /// Nothing more is accepted in either direction; queued bytes are still sent.
    AfterQueued,
    /// Queued bytes are discarded.
    Immediately,
}

/// The result of queueing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    /// The length of the frame; 0 if it was discarded.
    pub(crate) bytes: usize,
    /// Whether it waits for the disk.
    pub(crate) waits: bool,
}

/// The sending side of a connection, shared by the engine and the connection's task.
///
/// The engine sends what a socket accepts immediately. The task sends the rest, because only the task waits: for the
/// socket, and for [`Outbox::wake`].
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: RefCell<Queue>,
    /// None before there is a socket and after it was dropped.
    writer: RefCell<Option<WriteHalf>>,
    buffers: Rc<Buffers>,
    ending: Cell<Closing>,
    /// Whether new frames are discarded; for faults.
    muted: Cell<bool>,
    /// Bytes from this stream position on are held back; for faults.
    held_at: Cell<Option<u64>>,
    /// The connection's task, and whether it waits. A running task sees the changes itself.
    task: RefCell<Option<Waker>>,
    asleep: Cell<bool>,
    /// Whether the task has left requests because the outbox was full. Perhaps it no longer is: the crowd may be gone.
    stalled: Cell<bool>,
    /// Whether the engine has this outbox in its list of sendable ones.
    sendable_marked: Cell<bool>,
    /// Whether the engine has it in its list of those that wait for a late turn, and whether the task has got one.
    waits_for_turn: Cell<bool>,
    has_late_turn: Cell<bool>,
    /// Whether the engine has it in its list of those that wait until the disk takes the next batch.
    waits_for_disk: Cell<bool>,
    /// Bytes that the task keeps of unfinished requests.
    unfinished: Cell<usize>,
    pub(crate) sent: Cell<u64>,
    pub(crate) received: Cell<u64>,
}

impl Outbox {
    pub(crate) fn new(writer: WriteHalf, buffers: Rc<Buffers>) -> Self {
        let mut outbox = Self::default();
        (outbox.writer, outbox.buffers) = (RefCell::new(Some(writer)), buffers);
        outbox
    }

    /// Queues a frame that answers a request received at `since`, and that may be sent when `zxid` is durable. Does
    /// not send it.
    ///
    /// Requests wait while the outbox is full, but events do not. If too many of them wait, the connection is cut before
    /// one more is encoded: its client reconnects and sets its watches again.
    pub(crate) fn push(&self, zxid: i64, durable: i64, since: Duration, encode: impl FnOnce(&mut BytesMut)) -> Pushed {
        if self.is_closing() || self.muted.get() {
            return Pushed { bytes: 0, waits: false };
        }
        let waiting = self.queue.borrow().len();
        let crowded = self.buffers.are_crowded();
        if waiting > MAX_BACKLOG && (crowded || waiting - MAX_BACKLOG > self.buffers.longest) {
            self.abort();
            return Pushed { bytes: 0, waits: false };
        }
        let queue = &mut *self.queue.borrow_mut();
        let content = queue.content.get_or_insert_with(|| self.buffers.spare.borrow_mut().pop().unwrap_or_default());
        let before = content.bytes.len();
        encode(&mut content.bytes);
        self.sent.set(self.sent.get() + 1);
        let bytes = content.bytes.len() - before;
        self.buffers.changed(before, content.bytes.len());
        let end = queue.taken + content.bytes.len() as u64;
        if zxid <= durable && content.marks.is_empty() {
            queue.released = end;
            return Pushed { bytes, waits: false };
        }
        match content.marks.back_mut() {
            // Zxids only grow along the queue, so no frame overtakes an earlier one.
            Some(last) if last.zxid >= zxid => {
                last.end = end;
                last.frames.add(WaitingFrames::since(since));
            }
            _ => content.marks.push_back(Mark { zxid, end, frames: WaitingFrames::since(since) }),
        }
        Pushed { bytes, waits: true }
    }

    /// Releases the frames that wait for transactions up to `durable`, and returns them. Does not send them.
    pub(crate) fn release(&self, durable: i64) -> WaitingFrames {
        let queue = &mut *self.queue.borrow_mut();
        let mut released = WaitingFrames::default();
        let Some(content) = &mut queue.content else { return released };
        while let Some(mark) = content.marks.front().filter(|mark| mark.zxid <= durable) {
            queue.released = mark.end;
            released.add(mark.frames);
            content.marks.pop_front();
        }
        released
    }

    /// Marks it as sendable until the engine sends; returns whether it was not marked before.
    pub(crate) fn mark_sendable(&self) -> bool {
        !self.sendable_marked.replace(true)
    }

    /// Marks it as waiting for a late turn; returns whether it was not marked before.
    pub(crate) fn wait_for_turn(&self) -> bool {
        !self.waits_for_turn.replace(true)
    }

    /// Gives the task a late turn.
    pub(crate) fn give_late_turn(&self) {
        self.waits_for_turn.set(false);
        self.has_late_turn.set(true);
        self.wake();
    }

    /// Takes the late turn, if the task has got one.
    pub(crate) fn takes_late_turn(&self) -> bool {
        self.has_late_turn.take()
    }

    /// Marks it as waiting for the disk; returns whether it was not marked before.
    pub(crate) fn wait_for_disk(&self) -> bool {
        !self.waits_for_disk.replace(true)
    }

    /// Lets the task go on, because the disk has taken a batch.
    pub(crate) fn disk_is_ready(&self) {
        self.waits_for_disk.set(false);
        self.wake();
    }

    /// Sends what the socket accepts immediately; the rest is for the connection's task.
    pub(crate) fn send_now(&self) {
        self.sendable_marked.set(false);
        let left = self.send_with(|writer, bytes| Poll::Ready(writer.try_send(bytes)));
        if self.stalled.get() || self.is_closing() || !matches!(left, Poll::Ready(Ok(()))) {
            self.wake();
        }
    }

    /// Sends everything that may be sent.
    pub(crate) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.send_with(|writer, bytes| writer.poll_send(cx, bytes)))?;
        match &mut *self.writer.borrow_mut() {
            Some(writer) => writer.poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn send_with(
        &self,
        mut send: impl FnMut(&mut WriteHalf, &[u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        // After an abort nothing more may be sent, because the session may use another connection already.
        if !self.is_aborted()
            && let Some(writer) = &mut *self.writer.borrow_mut()
        {
            while self.sendable() > 0 {
                let sent = {
                    let queue = self.queue.borrow();
                    let bytes = queue.content.as_ref().map_or(&[][..], |content| &content.bytes[..self.sendable()]);
                    ready!(send(writer, bytes))?
                };
                if sent == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.taken(sent);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns how many bytes may be sent now.
    fn sendable(&self) -> usize {
        let queue = self.queue.borrow();
        let until = self.held_at.get().map_or(queue.released, |held| queue.released.min(held));
        usize::try_from(until.saturating_sub(queue.taken)).expect("the bytes are in memory")
    }

    /// Removes the first bytes, which were sent.
    fn taken(&self, len: usize) {
        let queue = &mut *self.queue.borrow_mut();
        let Some(content) = &mut queue.content else { return };
        queue.taken += len as u64;
        self.buffers.changed(len, 0);
        if content.bytes.len() > len {
            content.bytes.advance(len);
        } else if let Some(mut empty) = queue.content.take() {
            let mut spare = self.buffers.spare.borrow_mut();
            // An advance makes the front unusable until the next reservation, so it reduces the capacity.
            let small = empty.bytes.capacity() <= SPARE_BYTES && empty.marks.capacity() <= SPARE_MARKS;
            if small && spare.len() < SPARES {
                empty.bytes.clear();
                empty.marks.clear();
                spare.push(empty);
            }
        }
    }

    /// Closes the sending half.
    pub(crate) fn poll_finish(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.writer.borrow_mut() {
            Some(writer) => writer.poll_finish(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Drops the socket, even if the outbox is still referenced.
    pub(crate) fn drop_writer(&self) {
        self.abort();
        *self.writer.borrow_mut() = None;
    }

    /// Returns whether so many bytes wait that requests must wait too. If so, the next bytes that are sent wake the task.
    pub(crate) fn is_full(&self) -> bool {
        let max = if self.buffers.are_crowded() { MAX_CROWDED_BACKLOG } else { MAX_BACKLOG };
        let full = self.queue.borrow().len() > max;
        self.stalled.set(full);
        full
    }

    /// Notes how many bytes the task keeps of unfinished requests. Returns whether all connections together keep too many.
    pub(crate) fn keeps_unfinished(&self, bytes: usize) -> bool {
        // The bytes of a closing connection are about to be freed.
        let bytes = if self.is_closing() { 0 } else { bytes };
        let before = self.unfinished.replace(bytes);
        let all = self.buffers.unfinished.get() + bytes - before;
        self.buffers.unfinished.set(all);
        all > self.buffers.max_unfinished
    }

    /// Returns how many bytes the task keeps of unfinished requests.
    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.get()
    }

    /// Returns how many frames wait for the disk.
    pub(crate) fn held(&self) -> u64 {
        let queue = self.queue.borrow();
        queue.content.as_ref().map_or(0, |content| content.marks.iter().map(|mark| mark.frames.frames).sum())
    }

    /// Starts or stops discarding new frames.
    #[cfg(feature = "faults")]
    pub(crate) fn mute(&self, muted: bool) {
        self.muted.set(muted);
    }

    /// Holds back the frames from now on, or releases them.
    #[cfg(feature = "faults")]
    pub(crate) fn hold(&self, held: bool) {
        let end = self.queue.borrow().end();
        self.held_at.set(held.then(|| self.held_at.get().unwrap_or(end)));
        self.wake();
    }

    /// Closes the connection after the queued frames.
    pub(crate) fn close(&self) {
        self.end(Closing::AfterQueued);
    }

    /// Closes the connection immediately.
    pub(crate) fn abort(&self) {
        self.end(Closing::Immediately);
    }

    fn end(&self, ending: Closing) {
        if self.ending.get() < ending {
            self.ending.set(ending);
            self.wake();
        }
    }

    /// Returns whether nothing more is accepted.
    pub(crate) fn is_closing(&self) -> bool {
        self.ending.get() != Closing::Not
    }

    /// Returns whether it closes immediately.
    pub(crate) fn is_aborted(&self) -> bool {
        self.ending.get() == Closing::Immediately
    }

    /// Returns whether the last byte was sent after a close.
    pub(crate) fn is_done(&self) -> bool {
        self.is_closing() && self.queue.borrow().len() == 0
    }

    /// Polls on behalf of the connection's task. If the poll is pending, every change of the outbox wakes the task.
    pub(crate) fn poll_task<T>(&self, cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        self.asleep.set(false);
        let polled = poll(cx);
        if polled.is_pending() {
            let task = &mut *self.task.borrow_mut();
            if !task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                *task = Some(cx.waker().clone());
            }
            self.asleep.set(true);
        }
        polled
    }

    fn wake(&self) {
        if self.asleep.replace(false)
            && let Some(task) = &*self.task.borrow()
        {
            task.wake_by_ref();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.buffers.changed(self.queue.borrow().len(), 0);
        self.keeps_unfinished(0);
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

    fn with_buffers(buffers: &Rc<Buffers>) -> Outbox {
        let mut outbox = Outbox::default();
        outbox.buffers = Rc::clone(buffers);
        outbox
    }

    #[test]
    fn a_client_that_reads_no_events_is_cut_before_they_take_more_than_an_answer() {
        let buffers = Rc::new(Buffers::new(3 * MAX_BACKLOG, MAX_BACKLOG));
        let outbox = with_buffers(&buffers);
        let mut pushed = 0;
        while !outbox.is_aborted() {
            outbox.push(1, 1, Duration::ZERO, |out| out.extend_from_slice(&[7; 1 << 16]));
            pushed += 1;
            assert!(buffers.queued.get() <= 4 * MAX_BACKLOG + (1 << 16), "{pushed}");
        }
        assert!(pushed > 48, "the limit is not reached by one answer");
    }

    #[test]
    fn many_unread_answers_make_the_next_ones_short_until_their_clients_are_gone() {
        let buffers = Rc::new(Buffers::new(2 * MAX_BACKLOG, MAX_BACKLOG));
        let outboxes: Vec<_> = (0..4).map(|_| with_buffers(&buffers)).collect();
        for outbox in &outboxes {
            outbox.push(1, 1, Duration::ZERO, |out| out.resize(2 * MAX_BACKLOG, 7));
        }
        assert_eq!(buffers.room(), MAX_BACKLOG + STAT);
        outboxes[0].push(1, 1, Duration::ZERO, |out| out.extend_from_slice(b"event"));
        assert!(!outboxes[0].is_aborted());
        outboxes[0].push(1, 1, Duration::ZERO, |out| out.extend_from_slice(b"one more"));
        assert!(outboxes[0].is_aborted());
        drop(outboxes);
        assert_eq!((buffers.queued.get(), buffers.room()), (0, 8 * MAX_BACKLOG));
    }

    /// Takes the bytes that may be sent.
    fn take(outbox: &Outbox) -> Option<Vec<u8>> {
        let len = outbox.sendable();
        let bytes = outbox.queue.borrow().content.as_ref().map(|content| content.bytes[..len].to_vec());
        outbox.taken(len);
        bytes.filter(|bytes| !bytes.is_empty())
    }

    #[test]
    fn nothing_overtakes_a_frame_that_waits_for_the_disk() {
        let outbox = Outbox::default();
        push(&outbox, 1, 1, "a");
        push(&outbox, 2, 1, "b");
        push(&outbox, 2, 1, "c");
        push(&outbox, 3, 1, "d");
        assert_eq!(take(&outbox).as_deref(), Some(&b"a"[..]));
        assert_eq!(take(&outbox), None);
        assert_eq!(outbox.held(), 3);
        let ms = Duration::from_millis;
        assert_eq!(outbox.release(2), WaitingFrames { frames: 2, first: ms(2), last: ms(2), sum: ms(4) });
        assert_eq!(take(&outbox).as_deref(), Some(&b"bc"[..]));
        outbox.close();
        push(&outbox, 3, 3, "never");
        assert!(!outbox.is_done());
        assert_eq!(outbox.release(3).frames, 1);
        assert_eq!(take(&outbox).as_deref(), Some(&b"d"[..]));
        assert!(outbox.is_done());
    }

    /// Returns an outbox with a socket, and the client's end of it.
    async fn connected() -> (Outbox, tokio::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (read, write) = listener.accept().await.unwrap().0.into_split();
        write.writable().await.unwrap();
        drop(read);
        (Outbox::new(WriteHalf::Plain(write), Rc::default()), client)
    }

    #[tokio::test]
    async fn durable_frames_are_sent_immediately_but_not_after_an_abort() {
        use tokio::io::AsyncReadExt;
        for (aborted, expected) in [(false, "told"), (true, "")] {
            let (outbox, mut client) = connected().await;
            push(&outbox, 2, 1, "told");
            outbox.send_now();
            if aborted {
                outbox.abort();
            }
            assert_eq!(outbox.release(2).frames, 1);
            outbox.send_now();
            outbox.drop_writer();
            let mut received = String::new();
            client.read_to_string(&mut received).await.unwrap();
            assert_eq!(received, expected);
        }
    }

    #[test]
    fn an_idle_connection_keeps_no_buffer_and_the_next_one_uses_it() {
        let outbox = Outbox::default();
        push(&outbox, 1, 1, "a");
        assert!(take(&outbox).is_some());
        assert!(outbox.queue.borrow().content.is_none());
        let next = with_buffers(&outbox.buffers);
        assert_eq!(outbox.buffers.spare.borrow().len(), 1);
        push(&next, 1, 1, "b");
        assert_eq!(outbox.buffers.spare.borrow().len(), 0);
        assert_eq!(take(&next).as_deref(), Some(&b"b"[..]));
    }
}
