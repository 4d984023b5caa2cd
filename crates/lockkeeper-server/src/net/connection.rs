//! One connection: frames from the socket to the engine, bytes from the outbox to the socket.
//!
//! The engine sends the bytes that a socket accepts immediately. This task sends the rest and reads the requests, both
//! at the same time. So a client that does not read is still served, and a client that does not send still gets its
//! events. The engine never waits for a socket. The task stops taking requests while too many answers wait or the next batch is
//! full, and a turn ends when its requests were much work. The work beyond that is a debt: until later turns have paid it, this
//! connection has its turns late, when all others had theirs, and one such connection only each time. So a client waits for one
//! long request of others at most, however many clients send such requests again and again.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep, sleep_until, timeout};
use tracing::{debug, warn};

use crate::machine::{ConnectionId, Identity};
use crate::net::engine::Engine;
use crate::net::engine::half_open::{self, HalfOpen};
#[cfg(feature = "faults")]
use crate::net::faults;
use crate::net::outbox::{Buffers, Outbox, READ_BYTES};
use crate::net::peer::Peer;
use crate::net::reports::Slices;
use crate::net::transport::{self, Opened, ReadHalf, WriteHalf};
use crate::net::words;
use lockkeeper_wire::{frame, jute::Malformed};

/// Time for the first frame of a connection, as in ZooKeeper.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the client to read the last answer before the socket is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// When the requests of a turn were so much work, the next ones wait for the next turn: about 1 ms.
const TURN: usize = 10_000;
/// The most that later turns pay: more than one request of the most work.
const MOST_DEBT: usize = 50 * TURN;

/// A request of at most so many bytes waits for the disk only when the next batch has twice as many bytes as make others wait: a
/// client that writes little does not wait in a row of clients that write much.
const SHORT: u32 = 4 << 10;

/// The socket of a new connection.
pub(crate) enum Socket {
    Tcp(TcpStream),
    /// With the user that the kernel names.
    Unix(UnixStream, u32),
}

/// Serves one client until it disconnects.
pub(crate) async fn serve(engine: Rc<RefCell<Engine>>, stream: Socket, address: Peer, max_frame: usize) {
    let half_open = engine.borrow_mut().begin_half_open(address);
    // Boxed like everything short-lived: there may be ten thousand of these tasks.
    let Some(accepted) = Box::pin(read_first_in_time(&engine, stream, address, half_open.as_deref())).await else {
        engine.borrow_mut().end_half_open(half_open.as_ref());
        return;
    };
    let Accepted { read, write, identity, received } = accepted;
    let (max_frame, greeting) = match &half_open {
        None => (max_frame, sleep(FIRST_FRAME_TIMEOUT)),
        Some(half_open) => (max_frame.min(half_open::MAX_FRAME), sleep_until(half_open.deadline)),
    };
    let greeting = Some(Box::pin(greeting));
    let (id, outbox) = engine.borrow_mut().accept(address, identity, write, half_open);
    let buffers = Rc::clone(engine.borrow().buffers());
    let mut receiving = Receiving {
        engine,
        id,
        outbox,
        buffers,
        read,
        rest: received,
        max_frame,
        worked: 0,
        debt: 0,
        is_late: false,
        greeting,
    };
    let ended = poll_fn(|cx| receiving.poll(cx)).await;
    let Receiving { engine, outbox, mut read, buffers, .. } = receiving;
    if let Err(error) = ended {
        if let Some(left_out) = engine.borrow_mut().line() {
            warn!(client = %address, %error, left_out, "closing a connection");
        }
    } else if outbox.is_closing() {
        Box::pin(close_gracefully(&outbox, &mut read, &buffers)).await;
    }
    // Send what was answered in this turn to a client that has already closed.
    outbox.send_now();
    outbox.drop_writer();
    engine.borrow_mut().disconnected(id);
}

/// A connection of a client, with the bytes received so far.
struct Accepted {
    read: ReadHalf,
    write: WriteHalf,
    identity: Option<Identity>,
    received: BytesMut,
}

/// Reads the first bytes, unless a half-open connection must end before.
async fn read_first_in_time(
    engine: &RefCell<Engine>,
    stream: Socket,
    address: Peer,
    half_open: Option<&HalfOpen>,
) -> Option<Accepted> {
    let first = read_first(engine, stream, address);
    match half_open {
        None => first.await,
        Some(half_open) => tokio::select! {
            accepted = first => accepted,
            () = half_open.over() => None,
        },
    }
}

/// Reads the first bytes. A four-letter word is answered here.
async fn read_first(engine: &RefCell<Engine>, stream: Socket, address: Peer) -> Option<Accepted> {
    if let Socket::Tcp(stream) = &stream
        && let Err(error) = stream.set_nodelay(true)
    {
        debug!(client = %address, %error, "cannot turn off delayed sending");
    }
    let Opened { mut read, mut write, identity } = match open(engine, stream).await {
        Ok(opened) => opened,
        Err(error) => {
            debug!(client = %address, %error, "the connection could not be opened");
            return None;
        }
    };
    let mut received = BytesMut::new();
    let buffers = Rc::clone(engine.borrow().buffers());
    let greeted = timeout(FIRST_FRAME_TIMEOUT, async {
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
        debug!(client = %address, "the client sent nothing");
        return None;
    }
    #[cfg(feature = "faults")]
    faults::thawed(engine).await;
    let answer = words::answer(&engine.borrow(), &received[..4], address);
    if let Some(answer) = answer {
        // A client that does not read gets only what fits into the socket's buffer.
        let _ = timeout(FIRST_FRAME_TIMEOUT, send_slices(engine, &mut write, answer)).await;
        return None;
    }
    Some(Accepted { read, write, identity, received })
}

/// Sends all slices of a report and then closes the sending half. Other connections are served between two slices.
/// Dropping the future leaves a part of the report sent.
async fn send_slices(engine: &RefCell<Engine>, write: &mut WriteHalf, mut report: Slices) -> io::Result<()> {
    let (mut slice, mut more) = (String::new(), true);
    while more {
        slice.clear();
        more = report(&engine.borrow(), &mut slice);
        let mut bytes = slice.as_bytes();
        while !bytes.is_empty() {
            let sent = poll_fn(|cx| write.poll_send(cx, bytes)).await?;
            bytes = &bytes[sent..];
        }
        yield_now().await;
    }
    poll_fn(|cx| write.poll_flush(cx)).await?;
    poll_fn(|cx| write.poll_finish(cx)).await
}

/// Sends what is queued on a closing connection, and gives the client time to read it.
async fn close_gracefully(outbox: &Outbox, read: &mut ReadHalf, buffers: &Buffers) {
    // The wait for the disk has no limit.
    let sent = poll_fn(|cx| {
        outbox.poll_task(cx, |cx| {
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
    sent.await;
    if outbox.is_aborted() {
        return;
    }
    let client_is_gone = poll_fn(|cx| {
        outbox.poll_task(cx, |cx| {
            if outbox.is_aborted() || matches!(outbox.poll_send(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(());
            }
            if outbox.is_done() {
                // Half-close and wait: closing a socket with unread requests would destroy the answers in flight.
                let _ = ready!(outbox.poll_finish(cx));
            }
            let ignored = &mut *buffers.received.borrow_mut();
            while !matches!(ready!(read.poll_receive(cx, ignored)), Ok(0) | Err(_)) {}
            Poll::Ready(())
        })
    });
    let _ = timeout(CLOSE_TIMEOUT, client_is_gone).await;
}

/// Opens the transport: TCP, TLS, or the Unix socket, which needs neither.
async fn open(engine: &RefCell<Engine>, stream: Socket) -> io::Result<Opened> {
    let stream = match stream {
        Socket::Tcp(stream) => stream,
        Socket::Unix(stream, uid) => return Ok(transport::local(stream, uid)),
    };
    #[cfg(feature = "tls")]
    {
        let tls = engine.borrow().config.tls.clone();
        if let Some(tls) = tls {
            return timeout(FIRST_FRAME_TIMEOUT, transport::secured(stream, &tls)).await?;
        }
    }
    #[cfg(not(feature = "tls"))]
    let _ = engine;
    Ok(transport::plain(stream))
}

/// A connection that is served.
struct Receiving {
    engine: Rc<RefCell<Engine>>,
    id: ConnectionId,
    outbox: Rc<Outbox>,
    buffers: Rc<Buffers>,
    read: ReadHalf,
    /// Received bytes that were not taken yet.
    rest: BytesMut,
    max_frame: usize,
    /// The work of the requests of this turn, and that of earlier ones that their turns did not cover.
    worked: usize,
    debt: usize,
    /// Whether this is a turn after all others had theirs.
    is_late: bool,
    /// The timer for the first frame. Boxed to free its memory afterwards.
    greeting: Option<Pin<Box<Sleep>>>,
}

impl Receiving {
    /// Resolves when the client has disconnected or sent a malformed frame, or when the connection closes.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outbox = Rc::clone(&self.outbox);
        outbox.poll_task(cx, |cx| {
            let turns = self.poll_turns(cx);
            if outbox.keeps_unfinished(self.rest.capacity()) {
                self.engine.borrow_mut().close_greediest();
            }
            if turns.is_pending() && outbox.is_closing() { Poll::Ready(Ok(())) } else { turns }
        })
    }

    fn poll_turns(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.greeting.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let (mut heard, mut more) = (false, false);
        if self.worked >= TURN {
            self.debt = (self.debt + self.worked).min(MOST_DEBT);
        }
        self.worked = 0;
        self.is_late = self.outbox.takes_late_turn();
        if self.is_late {
            self.debt = self.debt.saturating_sub(TURN);
        }
        loop {
            // The engine sends the answers of this turn after all connections were read. This sends what a socket did
            // not accept then.
            if (!heard || self.outbox.is_full())
                && !self.outbox.is_aborted()
                && matches!(self.outbox.poll_send(cx), Poll::Ready(Err(_)))
            {
                self.outbox.abort();
            }
            if self.outbox.is_closing() {
                return Poll::Ready(Ok(()));
            }
            if self.must_wait(&self.rest) {
                return Poll::Pending;
            }
            if self.is_turn_over() && !matches!(frame::first(&self.rest, self.max_frame), Ok(None)) {
                self.engine.borrow_mut().wait_for_a_late_turn(&self.outbox);
                return Poll::Pending;
            }
            if more {
                // One read per turn: other connections are waiting as well, and the answers go out first.
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

    /// Returns whether the request that begins with these bytes waits for room in the outbox or in the next batch, or because
    /// the server is frozen. The outbox wakes this task afterwards.
    fn must_wait(&self, request: &[u8]) -> bool {
        #[cfg(feature = "faults")]
        if self.engine.borrow().faults.is_frozen() {
            return true;
        }
        self.outbox.is_full() || self.engine.borrow_mut().waits_for_the_disk(&self.outbox, is_short(request))
    }

    /// Returns whether the next requests wait for the next turn.
    fn is_turn_over(&self) -> bool {
        self.worked >= TURN || (self.debt > 0 && !self.is_late)
    }

    /// Receives bytes, takes the complete frames, and returns the number of received bytes.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let buffers = Rc::clone(&self.buffers);
        let buffer = &mut *buffers.received.borrow_mut();
        let len = ready!(self.read.poll_receive(cx, buffer))?;
        // Frames hardly ever arrive in parts, so bytes are hardly ever copied.
        let taken = if self.rest.is_empty() { self.take_frames(&buffer[..len])? } else { 0 };
        self.rest.extend_from_slice(&buffer[taken..len]);
        Poll::Ready(Ok(len))
    }

    /// Takes the complete frames of earlier bytes; returns false if there is none.
    fn take_rest(&mut self) -> io::Result<bool> {
        let mut rest = std::mem::take(&mut self.rest);
        let taken = self.take_frames(&rest)?;
        rest.advance(taken);
        if !rest.is_empty() {
            self.rest = rest;
        }
        Ok(taken > 0)
    }

    /// Takes complete frames from the front while requests are accepted, and returns the number of their bytes.
    fn take_frames(&mut self, received: &[u8]) -> io::Result<usize> {
        let malformed = |Malformed| io::Error::new(io::ErrorKind::InvalidData, "malformed frame");
        let mut taken = 0;
        while !self.must_wait(&received[taken..])
            && !self.is_turn_over()
            && let Some(frame) = frame::first(&received[taken..], self.max_frame).map_err(malformed)?
        {
            taken += 4 + frame.len();
            self.take(frame).map_err(malformed)?;
        }
        Ok(taken)
    }

    fn take(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        #[cfg(feature = "faults")]
        let frame_faults = faults::frame_faults(&self.engine, self.id, frame);
        #[cfg(feature = "faults")]
        if !frame_faults.begin(&self.outbox) {
            return Ok(());
        }
        let taken = self.engine.borrow_mut().frame(self.id, frame);
        self.worked += self.engine.borrow_mut().take_work();
        #[cfg(feature = "faults")]
        frame_faults.end(&self.outbox);
        if self.greeting.is_some() && !self.engine.borrow().is_half_open(self.id) {
            (self.greeting, self.max_frame) = (None, self.engine.borrow().config.max_frame);
        }
        taken
    }
}

/// Returns whether the request that begins with these bytes is short, or they do not say its length yet.
fn is_short(request: &[u8]) -> bool {
    request.first_chunk().is_none_or(|len| u32::from_be_bytes(*len) <= SHORT)
}

#[cfg(test)]
mod tests {
    use lockkeeper_wire::{Acl, ConnectRequest, OpCode, Request, request};
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::config::Config;
    use crate::machine::{Machine, Owner, Tree, Txn, TxnOp, tests::config};
    use crate::net::engine::Clock;

    fn create(tree: &mut Tree, path: &str) {
        let (acl, data) = (Acl::OPEN, Some(Default::default()));
        let op = TxnOp::Create {
            path: path.into(),
            data,
            acl: [acl].into(),
            owner: Owner::None,
            parent_creates: 1,
            with_stat: false,
        };
        tree.apply(&Txn { zxid: 1, time_ms: 0, session: 0, op }, &mut Vec::new());
    }

    const NODES: usize = 1_000;

    /// Returns an engine with a subtree of [`NODES`] nodes, `/t`.
    fn engine() -> Rc<RefCell<Engine>> {
        let mut tree = Tree::new();
        create(&mut tree, "/t");
        (0..NODES).for_each(|node| create(&mut tree, &format!("/t/{node}")));
        let clock = Clock::start();
        let machine = Machine::new(config(), tree, 1, clock.now());
        Rc::new(RefCell::new(Engine::new(machine, clock, &Config::default(), None, false)))
    }

    /// Returns a connection, and the end of its client, which has sent its greeting and so many counts of the subtree.
    async fn counting(engine: &Rc<RefCell<Engine>>, requests: usize) -> (Receiving, UnixStream) {
        let (stream, mut client) = UnixStream::pair().unwrap();
        let Opened { read, write, .. } = transport::local(stream, 0);
        let (id, outbox) = engine.borrow_mut().accept(Peer::Local { uid: 0, pid: None }, None, write, None);
        let (engine, buffers) = (Rc::clone(engine), Rc::clone(engine.borrow().buffers()));
        let receiving = Receiving {
            engine,
            id,
            outbox,
            buffers,
            read,
            rest: BytesMut::new(),
            max_frame: 1_000,
            worked: 0,
            debt: 0,
            is_late: false,
            greeting: None,
        };
        let mut sent = BytesMut::new();
        request::encode_connect(&mut sent, &ConnectRequest::default());
        for xid in 0..requests {
            let count = Request::GetAllChildrenNumber { path: "/t".to_owned() };
            request::encode(&mut sent, i32::try_from(xid).unwrap(), &count);
        }
        assert!(sent.len() < READ_BYTES, "one read has all of them");
        client.write_all(&sent).await.unwrap();
        (receiving, client)
    }

    /// Polls a connection once; returns how many subtrees all connections have counted until now.
    async fn turn(receiving: &mut Receiving) -> usize {
        let ended = poll_fn(|cx| Poll::Ready(receiving.poll(cx).is_ready())).await;
        assert!(!ended);
        let counts = receiving.engine.borrow().counters.snapshot().requests(OpCode::GetAllChildrenNumber);
        usize::try_from(counts).unwrap()
    }

    /// Else one read of short requests would hold up all other connections for seconds.
    #[tokio::test]
    async fn requests_that_count_many_nodes_do_not_share_a_turn() {
        const REQUESTS: usize = 100;
        let engine = engine();
        let (mut receiving, _client) = counting(&engine, REQUESTS).await;
        let (mut answered, mut most) = (0, 0);
        while answered < REQUESTS {
            let now = turn(&mut receiving).await;
            most = most.max(now - answered);
            answered = now;
            engine.borrow_mut().work_in_the_background();
            yield_now().await;
        }
        assert!(most > 1 && most * NODES <= TURN, "{most} requests in one turn");
    }

    /// Else a client would wait for a turn of each of all greedy ones.
    #[tokio::test]
    async fn of_many_connections_with_long_requests_one_has_a_turn_when_all_others_had_theirs() {
        const GREEDY: usize = 10;
        let engine = engine();
        let mut greedy = Vec::new();
        for _ in 0..GREEDY {
            greedy.push(counting(&engine, 50).await);
        }
        // The first turn of each, which is over after some requests.
        let mut answered = 0;
        while answered < 4 * GREEDY {
            for (receiving, _) in &mut greedy {
                answered = turn(receiving).await;
            }
            yield_now().await;
        }
        for round in 0..20 {
            engine.borrow_mut().work_in_the_background();
            let before = answered;
            for (receiving, _) in &mut greedy {
                answered = turn(receiving).await;
            }
            assert!((1..=4).contains(&(answered - before)), "{} requests in round {round}", answered - before);
            // A client that asks for little has its turn in each round.
            let (mut quiet, _client) = counting(&engine, 1).await;
            while turn(&mut quiet).await == answered {
                yield_now().await;
            }
            answered += 1;
        }
    }
}
