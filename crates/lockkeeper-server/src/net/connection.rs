//! One TCP connection: frames from the socket to the engine, bytes from the outbox to the socket.
//!
//! What a socket takes at once the engine sends; the rest waits here, beside what is still to be heard, so that a client that
//! does not read cannot keep the server from hearing it, and one that does not speak cannot keep it from being told. Neither
//! can slow down any other connection: the reader stops taking requests while too many answers wait, and the engine never
//! waits for a socket.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};
use tracing::{debug, warn};

use crate::machine::{ConnectionId, Identity};
use crate::net::engine::Engine;
#[cfg(feature = "faults")]
use crate::net::faults;
use crate::net::outbox::{Buffers, Outbox, READ_BYTES};
use crate::net::transport::{self, Opened, Reader, Writer};
use crate::net::words;
use lockkeeper_wire::{frame, jute::Malformed};

/// A connection must show what it is within this, as with ZooKeeper.
const GREETING: Duration = Duration::from_secs(10);
/// After the last answer the client has this long to read it before the socket goes.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves one client until it goes.
pub(crate) async fn serve(engine: Rc<RefCell<Engine>>, stream: TcpStream, address: SocketAddr, max_frame: usize) {
    // Boxed like all that is not for long: there may be ten thousand of these tasks.
    let Some(greeted) = Box::pin(greet(&engine, stream, address)).await else { return };
    let Greeted { read, write, identity, received } = greeted;
    let (id, outbox) = engine.borrow_mut().accept(address, identity, write);
    let buffers = Rc::clone(engine.borrow().buffers());
    let greeting = Some(Box::pin(sleep(GREETING)));
    let mut receiving = Receiving { engine, id, outbox, buffers, read, rest: received, max_frame, greeting };
    let ended = poll_fn(|cx| receiving.poll(cx)).await;
    let Receiving { engine, outbox, mut read, buffers, .. } = receiving;
    if let Err(error) = ended {
        warn!(client = %address, %error, "closing a connection");
    } else if outbox.is_closing() {
        Box::pin(farewell(&outbox, &mut read, &buffers)).await;
    }
    // What was answered in this very turn, to one who has asked and closed.
    outbox.send_now();
    outbox.hang_up();
    engine.borrow_mut().disconnected(id);
}

/// A connection of a client, with what it has said so far.
struct Greeted {
    read: Reader,
    write: Writer,
    identity: Option<Identity>,
    received: BytesMut,
}

/// Hears who is there: a client, or an operator who gets the answer at once.
async fn greet(engine: &RefCell<Engine>, stream: TcpStream, address: SocketAddr) -> Option<Greeted> {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(client = %address, %error, "cannot turn off delayed sending");
    }
    let Opened { mut read, mut write, identity } = match open(engine, stream).await {
        Ok(opened) => opened,
        Err(error) => {
            debug!(client = %address, %error, "no connection came of it");
            return None;
        }
    };
    let mut received = BytesMut::new();
    let buffers = Rc::clone(engine.borrow().buffers());
    let greeted = timeout(GREETING, async {
        while received.len() < 4 {
            let more = poll_fn(|cx| {
                let buffer = &mut *buffers.received.borrow_mut();
                let len = ready!(read.poll_receive(cx, buffer))?;
                received.extend_from_slice(&buffer[..len]);
                Poll::Ready(Ok::<_, io::Error>(len))
            });
            if more.await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
        }
        Ok(())
    });
    if !matches!(greeted.await, Ok(Ok(()))) {
        debug!(client = %address, "gone without a word");
        return None;
    }
    #[cfg(feature = "faults")]
    faults::thawed(engine).await;
    let answer = words::answer(&engine.borrow(), &received[..4], address);
    if let Some(answer) = answer {
        // Whoever asks and does not read gets no more than what fits into the socket.
        let _ = timeout(GREETING, tell(&mut write, answer.as_bytes())).await;
        return None;
    }
    Some(Greeted { read, write, identity, received })
}

/// Sends all of it and then the end.
async fn tell(write: &mut Writer, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = poll_fn(|cx| write.poll_send(cx, bytes)).await?;
        bytes = &bytes[sent..];
    }
    poll_fn(|cx| write.poll_flush(cx)).await?;
    poll_fn(|cx| write.poll_finish(cx)).await
}

/// Gives a closing connection its time to send what is queued, and the client its time to read it.
async fn farewell(outbox: &Outbox, read: &mut Reader, buffers: &Buffers) {
    // The disk takes as long as it takes.
    let told = poll_fn(|cx| {
        outbox.attend(cx, |cx| {
            if outbox.is_aborted() {
                return Poll::Ready(());
            }
            let gone = matches!(outbox.poll_send(cx), Poll::Ready(Err(_)));
            if gone {
                outbox.abort();
            }
            if gone || outbox.held() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
    });
    told.await;
    if outbox.is_aborted() {
        return;
    }
    let client_is_gone = poll_fn(|cx| {
        outbox.attend(cx, |cx| {
            if outbox.is_aborted() || matches!(outbox.poll_send(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(());
            }
            if outbox.is_done() {
                // Half-close and wait: closing a socket with unread requests in it would destroy the answers under way.
                let _ = ready!(outbox.poll_finish(cx));
            }
            let ignored = &mut *buffers.received.borrow_mut();
            while !matches!(ready!(read.poll_receive(cx, ignored)), Ok(0) | Err(_)) {}
            Poll::Ready(())
        })
    });
    let _ = timeout(FAREWELL, client_is_gone).await;
}

/// What the client's bytes go through.
async fn open(engine: &RefCell<Engine>, stream: TcpStream) -> io::Result<Opened> {
    #[cfg(feature = "tls")]
    {
        let tls = engine.borrow().config.tls.clone();
        if let Some(tls) = tls {
            return timeout(GREETING, transport::secured(stream, &tls)).await?;
        }
    }
    #[cfg(not(feature = "tls"))]
    let _ = engine;
    Ok(transport::plain(stream))
}

/// A connection while it is served.
struct Receiving {
    engine: Rc<RefCell<Engine>>,
    id: ConnectionId,
    outbox: Rc<Outbox>,
    buffers: Rc<Buffers>,
    read: Reader,
    /// What has come and was not taken yet.
    rest: BytesMut,
    max_frame: usize,
    /// Until the client has greeted. Boxed to be gone then.
    greeting: Option<Pin<Box<Sleep>>>,
}

impl Receiving {
    /// Resolves when the client is gone, may not go on, or is to be told no more than what is queued.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outbox = Rc::clone(&self.outbox);
        outbox.attend(cx, |cx| self.poll_turns(cx))
    }

    fn poll_turns(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.greeting.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let (mut heard, mut more) = (false, false);
        loop {
            // What is answered now the engine sends when all have been heard. Here goes what a socket has not taken then.
            if (!heard || self.outbox.is_full())
                && !self.outbox.is_aborted()
                && matches!(self.outbox.poll_send(cx), Poll::Ready(Err(_)))
            {
                self.outbox.abort();
            }
            if self.outbox.is_closing() {
                return Poll::Ready(Ok(()));
            }
            if self.is_held_up() {
                return Poll::Pending;
            }
            if more {
                // One read a turn: others have something to say, too, and what was answered goes first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            heard = true;
            if !self.rest.is_empty() && self.take_rest()? {
                more = true;
                continue;
            }
            match ready!(self.poll_receive(cx)) {
                Ok(0) => return Poll::Ready(Ok(())),
                Ok(len) => more = len >= READ_BYTES,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Whether requests wait: for room, or because the server is frozen. The outbox wakes this task when that ends.
    fn is_held_up(&self) -> bool {
        #[cfg(feature = "faults")]
        if self.engine.borrow().faults.is_frozen() {
            return true;
        }
        self.outbox.is_full()
    }

    /// Receives what there is, takes the whole frames of it, and says how much it was.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let buffers = Rc::clone(&self.buffers);
        let buffer = &mut *buffers.received.borrow_mut();
        let len = ready!(self.read.poll_receive(cx, buffer))?;
        // Hardly ever has a frame come in part, so hardly ever is anything copied.
        let taken = if self.rest.is_empty() { self.take_frames(&buffer[..len])? } else { 0 };
        self.rest.extend_from_slice(&buffer[taken..len]);
        Poll::Ready(Ok(len))
    }

    /// Takes the whole frames of what came before; false if there is none.
    fn take_rest(&mut self) -> io::Result<bool> {
        let mut rest = std::mem::take(&mut self.rest);
        let taken = self.take_frames(&rest)?;
        rest.advance(taken);
        if !rest.is_empty() {
            self.rest = rest;
        }
        Ok(taken > 0)
    }

    /// Takes whole frames from the front, as many as may be taken, and says how many bytes that was.
    fn take_frames(&mut self, received: &[u8]) -> io::Result<usize> {
        let malformed = |Malformed| io::Error::new(io::ErrorKind::InvalidData, "a frame that is not of the protocol");
        let mut taken = 0;
        while !self.is_held_up()
            && let Some(frame) = frame::first(&received[taken..], self.max_frame).map_err(malformed)?
        {
            taken += 4 + frame.len();
            self.take(frame).map_err(malformed)?;
        }
        Ok(taken)
    }

    fn take(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        #[cfg(feature = "faults")]
        let fate = faults::fate(&self.engine, self.id, frame);
        #[cfg(feature = "faults")]
        if !fate.begin(&self.outbox) {
            return Ok(());
        }
        let taken = self.engine.borrow_mut().frame(self.id, frame);
        #[cfg(feature = "faults")]
        fate.end(&self.outbox);
        self.greeting = None;
        taken
    }
}
