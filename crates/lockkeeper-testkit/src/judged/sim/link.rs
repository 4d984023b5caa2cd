//! One direction of a connection: bytes arrive in order, in pieces, each after its delay.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep};

use super::faults::{Counts, Fault};

/// The sending end. A clone sends over the same link.
#[derive(Clone)]
pub(super) struct Inlet(Arc<Mutex<Link>>);

pub(super) struct Outlet {
    link: Arc<Mutex<Link>>,
    timer: Option<Pin<Box<Sleep>>>,
}

struct Link {
    /// The bytes on their way, each piece with the time of its arrival.
    pieces: VecDeque<(Instant, Bytes)>,
    /// When the last piece arrives.
    last: Instant,
    /// Nothing arrives before this time.
    silent_until: Instant,
    /// Nothing is sent any more: the end arrives behind the last piece.
    closed: bool,
    /// The other end never learns that the link has ended.
    severed: bool,
    reader: Option<Waker>,
    frames: Frames,
    counts: Counts,
}

/// Where in the frames the arrived bytes end.
#[derive(Default)]
struct Frames {
    /// The bytes of the length that have arrived.
    length: [u8; 4],
    filled: usize,
    /// The bytes of the payload that have not.
    left: usize,
}

impl Frames {
    fn arrived(&mut self, mut piece: &[u8]) {
        while let Some((byte, rest)) = piece.split_first() {
            if self.left > 0 {
                let (_, rest) = piece.split_at(self.left.min(piece.len()));
                self.left -= piece.len() - rest.len();
                piece = rest;
                continue;
            }
            self.length[self.filled] = *byte;
            self.filled += 1;
            if self.filled == self.length.len() {
                (self.left, self.filled) = (u32::from_be_bytes(self.length) as usize, 0);
            }
            piece = rest;
        }
    }

    fn is_inside(&self) -> bool {
        self.left > 0 || self.filled > 0
    }
}

pub(super) fn link(silent_until: Instant, counts: Counts) -> (Inlet, Outlet) {
    let (pieces, last) = (VecDeque::new(), Instant::now());
    let (closed, severed, reader, frames) = (false, false, None, Frames::default());
    let link = Link { pieces, last, silent_until, closed, severed, reader, frames, counts };
    let link = Arc::new(Mutex::new(link));
    (Inlet(link.clone()), Outlet { link, timer: None })
}

fn lock(link: &Mutex<Link>) -> MutexGuard<'_, Link> {
    link.lock().expect("a panic in the simulator ends the test anyway")
}

impl Inlet {
    /// Sends bytes that arrive after `delay`, or directly behind those before them.
    pub(super) fn send(&self, piece: Bytes, delay: Duration) {
        let mut link = lock(&self.0);
        if !link.closed {
            link.last = link.last.max(Instant::now() + delay);
            let piece = (link.last, piece);
            link.pieces.push_back(piece);
            link.wake();
        }
    }

    /// Returns the number of bytes on their way.
    pub(super) fn on_their_way(&self) -> usize {
        lock(&self.0).pieces.iter().map(|(_, piece)| piece.len()).sum()
    }

    /// Lets nothing arrive before this time. What is sent meanwhile arrives then, as TCP sends it again.
    pub(super) fn silence(&self, until: Instant) {
        let mut link = lock(&self.0);
        link.silent_until = link.silent_until.max(until);
    }

    /// Ends the link behind the bytes that were sent.
    pub(super) fn close(&self) {
        let mut link = lock(&self.0);
        link.closed = true;
        link.wake();
    }

    /// Whether the receiving end does not learn that the link has ended.
    pub(super) fn is_severed(&self) -> bool {
        lock(&self.0).severed
    }

    /// Ends the link behind the first `keep` bytes on their way, perhaps inside a frame. The others are lost.
    pub(super) fn cut(&self, mut keep: usize) {
        let mut link = lock(&self.0);
        let mut lost = 0;
        link.pieces.retain_mut(|(_, piece)| {
            lost += piece.len().saturating_sub(keep);
            piece.truncate(keep);
            keep -= piece.len();
            !piece.is_empty()
        });
        link.counts.add(Fault::LostBytes, lost);
        link.closed = true;
        link.wake();
    }

    /// Loses all bytes on their way and everything later. The receiving end does not learn that the link has ended.
    pub(super) fn sever(&self) {
        let mut link = lock(&self.0);
        let lost = link.pieces.drain(..).map(|(_, piece)| piece.len()).sum();
        link.counts.add(Fault::LostBytes, lost);
        (link.closed, link.severed) = (true, true);
    }
}

impl Link {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl Outlet {
    /// Returns the next piece when it has arrived; `None` behind the last one of a link that has ended.
    pub(super) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut link = lock(&self.link);
        loop {
            let now = Instant::now();
            let late = link.pieces.front().is_some_and(|(at, _)| *at < link.silent_until);
            let due = match link.pieces.front() {
                Some((at, _)) => (*at).max(link.silent_until),
                None if link.closed && !link.severed => link.silent_until,
                None => {
                    link.reader = Some(context.waker().clone());
                    return Poll::Pending;
                }
            };
            if due <= now {
                let piece = link.pieces.pop_front().map(|(_, piece)| piece);
                match &piece {
                    Some(piece) => link.frames.arrived(piece),
                    None => link.counts.add(Fault::CutInsideFrame, link.frames.is_inside().into()),
                }
                link.counts.add(Fault::LateBytes, late.into());
                return Poll::Ready(piece);
            }
            // A cut may end the wait earlier.
            link.reader = Some(context.waker().clone());
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            if timer.deadline() != due || timer.is_elapsed() {
                timer.as_mut().reset(due);
            }
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// As [`Outlet::poll_recv`]. Dropping the future loses nothing.
    pub(super) async fn recv(&mut self) -> Option<Bytes> {
        poll_fn(|context| self.poll_recv(context)).await
    }
}
