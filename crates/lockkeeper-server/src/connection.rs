//! One TCP connection: frames from the socket to the engine, bytes from the outbox to the socket.
//!
//! Receiving and sending go on side by side in one task, so that a client that does not read cannot keep the server from
//! hearing it, and one that does not speak cannot keep it from being told. Neither can slow down any other connection: the
//! reader stops taking requests while too many answers wait, and the engine never waits for a socket.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::codec::{Decoder, LengthDelimitedCodec};
use tracing::{debug, warn};

use crate::engine::Engine;
#[cfg(feature = "faults")]
use crate::faults;
use crate::machine::{ConnectionId, Identity};
use crate::outbox::Outbox;
use crate::stats::Counters;
use crate::transport::{self, Opened, Reader, Writer};
use crate::words;

/// A connection must show what it is within this, as with ZooKeeper.
const GREETING: Duration = Duration::from_secs(10);
/// After the last answer the client has this long to read it before the socket goes.
const FAREWELL: Duration = Duration::from_secs(1);
/// While more than this waits to be sent to a client, its next requests wait too.
const MAX_BACKLOG: usize = 1 << 20;

/// Serves one client until it goes.
pub(crate) async fn serve(engine: Rc<RefCell<Engine>>, stream: TcpStream, address: SocketAddr, max_frame: usize) {
    // Boxed like all that is not for long: there may be ten thousand of these tasks.
    let Some((mut incoming, write, identity)) = Box::pin(greet(&engine, stream, address, max_frame)).await else {
        return;
    };
    let (id, outbox) = engine.borrow_mut().accept(address, identity);
    let counters = engine.borrow().counters.clone();
    let mut sending = pin!(send_all(&counters, &outbox, write));
    // What a frame leads to goes out in the same turn: the sender is asked after the receiver.
    let mut sent = false;
    let stopped = tokio::select! {
        biased;
        () = outbox.ended.notified() => Ok(()),
        stopped = receive_all(&engine, id, &outbox, &mut incoming) => stopped,
        () = &mut sending => {
            sent = true;
            Ok(())
        }
    };
    if let Err(error) = stopped {
        warn!(client = %address, %error, "closing a connection");
    } else if outbox.is_closing() {
        let mut farewell = Box::pin(farewell(&outbox, &mut incoming.read));
        loop {
            tokio::select! {
                () = &mut farewell => break,
                () = &mut sending, if !sent => sent = true,
            }
        }
    }
    engine.borrow_mut().disconnected(id);
}

/// The receiving half of a connection with what has come and was not taken yet.
struct Incoming {
    read: Reader,
    buffer: BytesMut,
    framing: LengthDelimitedCodec,
}

/// Hears who is there: a client, or an operator who gets the answer at once.
async fn greet(
    engine: &RefCell<Engine>,
    stream: TcpStream,
    address: SocketAddr,
    max_frame: usize,
) -> Option<(Incoming, Writer, Option<Identity>)> {
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
    let mut buffer = BytesMut::new();
    let greeted = timeout(GREETING, async {
        while buffer.len() < 4 {
            if read.receive(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok::<_, io::Error>(())
    });
    if !matches!(greeted.await, Ok(Ok(()))) {
        debug!(client = %address, "gone without a word");
        return None;
    }
    #[cfg(feature = "faults")]
    faults::thawed(engine).await;
    let answer = words::answer(&engine.borrow(), &buffer[..4]);
    if let Some(answer) = answer {
        let _ = write.send(answer.as_bytes()).await;
        let _ = write.finish().await;
        return None;
    }
    Some((Incoming { read, buffer, framing: crate::wire::framing(max_frame) }, write, identity))
}

/// Gives a closing connection its time to send what is queued, and the client its time to read it.
async fn farewell(outbox: &Outbox, read: &mut Reader) {
    while outbox.held() > 0 && !outbox.is_aborted() {
        // The disk takes as long as it takes.
        sleep(FAREWELL / 10).await;
    }
    if outbox.is_aborted() {
        return;
    }
    let client_is_gone = async {
        let mut ignored = BytesMut::new();
        while !matches!(read.receive(&mut ignored).await, Ok(0) | Err(_)) {
            ignored.clear();
        }
    };
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

async fn receive_all(
    engine: &RefCell<Engine>,
    id: ConnectionId,
    outbox: &Rc<Outbox>,
    Incoming { read, buffer, framing }: &mut Incoming,
) -> io::Result<()> {
    // Boxed to be gone once the client has greeted.
    let mut greeting = Some(Box::pin(sleep(GREETING)));
    loop {
        while let Some(frame) = framing.decode(buffer)? {
            while outbox.backlog() > MAX_BACKLOG && !outbox.is_closing() {
                outbox.room.notified().await;
            }
            #[cfg(feature = "faults")]
            let fate = {
                faults::thawed(engine).await;
                faults::fate(engine, id, &frame)
            };
            #[cfg(feature = "faults")]
            if !fate.begin(outbox) {
                continue;
            }
            let taken = engine.borrow_mut().frame(id, &frame);
            #[cfg(feature = "faults")]
            fate.end(outbox);
            taken.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a frame that is not of the protocol"))?;
            greeting = None;
        }
        if buffer.is_empty() {
            *buffer = BytesMut::new();
        }
        let received = tokio::select! {
            received = read.receive(buffer) => received,
            () = until(greeting.as_mut()) => return Err(io::ErrorKind::TimedOut.into()),
        };
        match received {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Resolves with the timer, or never without one.
async fn until(timer: Option<&mut Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}

/// Sends what may be sent, until the client is gone or has been told everything.
async fn send_all(counters: &Counters, outbox: &Outbox, mut write: Writer) {
    loop {
        if let Some(bytes) = outbox.take() {
            counters.bytes_sent.fetch_add(bytes.len() as u64, Relaxed);
            if write.send(&bytes).await.is_err() {
                break;
            }
            outbox.room.notify_one();
        } else if outbox.is_done() {
            // Half-close and wait: closing a socket with unread requests in it would destroy the answers under way.
            let _ = write.finish().await;
            return;
        } else {
            outbox.wake.notified().await;
        }
    }
    outbox.abort();
}
