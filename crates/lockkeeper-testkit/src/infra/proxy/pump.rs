//! Carries the bytes of one connection, frame by frame, through the gate and the rules.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use lockkeeper_wire::response;
use rustix::net::Shutdown;
use tokio::net::{TcpListener, TcpStream};

use super::Cut;
use super::frame::{Piece, Reader, Reply, Request};
use super::installed::{Armed, Fault};
use super::record::{Direction, Fate, What};
use super::shared::{Connection, Ends, Gate, InFlight, Mode, Shared, State};

/// Accepts connections until the runtime is dropped.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // An error concerns only the connection that was being accepted; its client has gone already.
        let Ok((client, _)) = listener.accept().await else { continue };
        let admitted = shared.change(|state| {
            if state.mode == Mode::Refuse {
                state.counts.refused += 1;
                return None;
            }
            let id = state.next_connection;
            state.next_connection += 1;
            state.counts.accepted += 1;
            state.counts.open += 1;
            state.connections.insert(id, Connection::default());
            state.record(id, What::Opened);
            Some((id, (state.mode != Mode::BlackHole).then_some(state.upstream)))
        });
        match admitted {
            None => close(client, Cut::Reset),
            Some((id, upstream)) => {
                tokio::spawn(Pump { shared: Arc::clone(&shared), id }.run(client, upstream));
            }
        }
    }
}

/// Closes a socket in this way.
fn close(socket: TcpStream, how: Cut) {
    // Errors are ignored: they mean that the peer has closed it already.
    match how {
        Cut::Reset => drop(socket.set_zero_linger()),
        // A close with unread bytes would reset the connection, so the end of the stream is sent first.
        Cut::Fin => drop(rustix::net::shutdown(&socket, Shutdown::Write)),
    }
}

/// Never returns, for a pump that has closed its own gate: the connection's task drops it.
async fn never<T>() -> T {
    std::future::pending().await
}

/// One connection: its state is in `shared` under `id`.
struct Pump {
    shared: Arc<Shared>,
    id: u64,
}

impl Pump {
    async fn run(self, client: TcpStream, upstream: Option<SocketAddr>) {
        let cut = self.shared.until(|state| state.connections.get(&self.id)?.cut);
        let (ends, server) = {
            let mut server = None;
            let ends = tokio::select! {
                biased;
                ends = cut => ends,
                ends = self.carry(&client, upstream, &mut server) => ends,
            };
            (ends, server)
        };
        close(client, ends.client);
        if let Some(server) = server {
            close(server, ends.server);
        }
        self.shared.change(|state| {
            state.connections.remove(&self.id);
            state.counts.open -= 1;
            state.record(self.id, What::Closed);
        });
    }

    /// Carries bytes until both ends are done or one fails; returns how to close the rest.
    async fn carry(&self, client: &TcpStream, upstream: Option<SocketAddr>, server: &mut Option<TcpStream>) -> Ends {
        let reset = Ends { client: Cut::Reset, server: Cut::Reset };
        let Some(upstream) = upstream else {
            return match self.swallow(client).await {
                Ok(()) => Ends { client: Cut::Fin, server: Cut::Fin },
                Err(_) => reset,
            };
        };
        let Ok(connected) = TcpStream::connect(upstream).await else { return reset };
        let server = &*server.insert(connected);
        // Requests and replies must travel immediately, not when a buffer is full. A dead socket returns an error when
        // it is used.
        let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
        match tokio::try_join!(self.requests(client, server), self.replies(server, client)) {
            Ok(_) => Ends { client: Cut::Fin, server: Cut::Fin },
            Err(_) => reset,
        }
    }

    /// Reads and drops everything, for a connection that was opened into a black hole.
    async fn swallow(&self, client: &TcpStream) -> io::Result<()> {
        self.shared.change(|state| self.spoil(state));
        let mut reader = Reader::default();
        let mut first = true;
        while let Some(piece) = reader.next(client).await? {
            self.shared.change(|state| match Self::parse_request(&piece, &mut first) {
                Some(request) => {
                    state.counts.request(&request);
                    self.note_request(state, &request, Fate::Swallowed);
                }
                None => self.note_raw(state, Direction::ToServer, &piece, Fate::Swallowed),
            });
        }
        // The client has closed, but a black hole does not pass that on: the connection stays until the proxy cuts it.
        never().await
    }

    /// Carries requests to the server.
    async fn requests(&self, client: &TcpStream, server: &TcpStream) -> io::Result<()> {
        let mut reader = Reader::default();
        let mut first = true;
        while let Some(piece) = reader.next(client).await? {
            let Some(request) = Self::parse_request(&piece, &mut first) else {
                self.send(server, Direction::ToServer, piece.bytes(), |state, fate| {
                    self.note_raw(state, Direction::ToServer, &piece, fate);
                })
                .await?;
                continue;
            };
            let armed = self.shared.change(|state| {
                state.counts.request(&request);
                state.arm(Some(request.op), request.path.as_deref())
            });
            self.request(server, piece.bytes(), request, armed).await?;
        }
        self.finish(server, Direction::ToServer).await
    }

    async fn request(
        &self,
        server: &TcpStream,
        frame: &[u8],
        request: Request,
        armed: Option<Armed>,
    ) -> io::Result<()> {
        let (now, later) = match armed {
            Some(armed) if armed.fault.is_on_request() => (Some(armed), None),
            later => (None, later),
        };
        match now.as_ref().map(|armed| &armed.fault) {
            Some(Fault::CutBeforeRequest) => return self.cut_off_request(now, &request).await,
            Some(Fault::CutInsideRequest { bytes }) => {
                let torn = &frame[..*bytes.min(&(frame.len() - 1))];
                self.send(server, Direction::ToServer, torn, |_, _| {}).await?;
                return self.cut_off_request(now, &request).await;
            }
            Some(Fault::HoldRequest) => self.hold(now.as_ref()).await,
            _ => {}
        }
        let mut in_flight = Some(InFlight { request, fault: later });
        self.send(server, Direction::ToServer, frame, |state, fate| {
            let Some(in_flight) = in_flight.take() else { return };
            self.note_request(state, &in_flight.request, fate);
            if fate == Fate::Passed {
                state.counts.forwarded.add(in_flight.request.op);
                if let Some(connection) = state.connections.get_mut(&self.id) {
                    connection.in_flight.push_back(in_flight);
                }
            }
        })
        .await?;
        if let Some(Armed { id, fault: Fault::CutAfterRequest { delay }, by }) = now {
            // The server's end is closed, never reset: a reset could destroy the request that was just written.
            let (shared, connection) = (Arc::clone(&self.shared), self.id);
            let cut = move || {
                shared.change(|state| {
                    state.cut(connection, Ends { client: by, server: Cut::Fin });
                    state.fired(id);
                });
            };
            if delay.is_zero() {
                cut();
            } else {
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    cut();
                });
            }
        }
        Ok(())
    }

    /// Carries replies to the client.
    async fn replies(&self, server: &TcpStream, client: &TcpStream) -> io::Result<()> {
        let mut reader = Reader::default();
        let mut first = true;
        while let Some(piece) = reader.next(server).await? {
            let reply = match &piece {
                Piece::Frame(frame) => Reply::parse(frame, std::mem::take(&mut first)),
                Piece::Raw(_) => None,
            };
            let (armed, what) = self.shared.change(|state| self.place(state, &piece, reply));
            self.reply(client, piece.bytes(), armed, what).await?;
        }
        self.finish(client, Direction::ToClient).await
    }

    /// Finds the request that a server's frame answers, and the fault that waits for it.
    fn place(&self, state: &mut State, piece: &Piece, reply: Option<Reply>) -> (Option<Armed>, What) {
        let fate = Fate::Passed;
        match reply {
            Some(Reply::Watch { event, path }) => (state.arm(None, path.as_deref()), What::Watch { event, path, fate }),
            Some(Reply::Answer { xid, zxid, err }) => {
                let answered = state.connections.get_mut(&self.id).and_then(|connection| {
                    // By number, not by order: servers answer pings and credentials out of order.
                    let index = connection.in_flight.iter().position(|waiting| waiting.request.xid == xid)?;
                    connection.in_flight.remove(index)
                });
                let Some(InFlight { request: Request { op, path, .. }, fault }) = answered else {
                    return (None, What::Raw { direction: Direction::ToClient, length: piece.bytes().len(), fate });
                };
                state.counts.answered.add(op);
                (fault, What::Reply { xid, op, path, zxid, err, fate })
            }
            None => (None, What::Raw { direction: Direction::ToClient, length: piece.bytes().len(), fate }),
        }
    }

    async fn reply(&self, client: &TcpStream, frame: &[u8], armed: Option<Armed>, what: What) -> io::Result<()> {
        let mut bytes = frame;
        let mut passed = Fate::Passed;
        let mut refusal = BytesMut::new();
        match armed.as_ref().map(|armed| &armed.fault) {
            Some(Fault::CutBeforeReply) => return self.cut_off_reply(armed.as_ref(), what).await,
            Some(Fault::CutInsideReply { bytes }) => {
                let torn = &frame[..*bytes.min(&(frame.len() - 1))];
                self.send(client, Direction::ToClient, torn, |_, _| {}).await?;
                return self.cut_off_reply(armed.as_ref(), what).await;
            }
            Some(Fault::HoldReply) => self.hold(armed.as_ref()).await,
            Some(Fault::ReplaceReply { with }) => (bytes, passed) = (with, Fate::Replaced),
            Some(Fault::RefuseReply { error }) => {
                if let What::Reply { xid, .. } = what {
                    response::encode(&mut refusal, xid, 0, &Err(*error));
                    (bytes, passed) = (&refusal, Fate::Replaced);
                }
            }
            _ => {}
        }
        let mut what = Some(what);
        self.send(client, Direction::ToClient, bytes, |state, fate| {
            let Some(what) = what.take() else { return };
            let fate = if fate == Fate::Passed { passed } else { fate };
            match &what {
                What::Reply { op, .. } if fate == Fate::Passed => state.counts.delivered.add(*op),
                What::Watch { .. } if fate == Fate::Passed => state.counts.watch_events += 1,
                _ => {}
            }
            if fate == Fate::Replaced
                && let Some(armed) = &armed
            {
                state.fired(armed.id);
            }
            state.record(self.id, with_fate(what, fate));
        })
        .await?;
        if let Some(Armed { id, fault: Fault::CutAfterReply, by }) = armed {
            return self.cut(id, by, |_| {}).await;
        }
        Ok(())
    }

    /// Writes all of `bytes`, as far as the gate allows; calls `note` once with the decision, under the lock.
    async fn send(
        &self,
        to: &TcpStream,
        direction: Direction,
        mut bytes: &[u8],
        note: impl FnOnce(&mut State, Fate),
    ) -> io::Result<()> {
        let mut note = Some(note);
        let mut changes = self.shared.changes();
        loop {
            let gate = {
                let mut state = self.shared.look();
                let gate = state.gate(self.id, direction);
                match gate {
                    Gate::Open => match to.try_write(bytes) {
                        Ok(written) => {
                            bytes = &bytes[written..];
                            if let Some(note) = note.take() {
                                note(&mut state, Fate::Passed);
                            }
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    },
                    Gate::Swallow => {
                        self.spoil(&mut state);
                        bytes = &[];
                        if let Some(note) = note.take() {
                            note(&mut state, Fate::Swallowed);
                        }
                    }
                    Gate::Wait | Gate::Closed => {}
                }
                gate
            };
            if note.is_none() && bytes.is_empty() {
                self.shared.change(|_| {});
                return Ok(());
            }
            // The loop checks a changed gate again, and waits for a full socket.
            tokio::select! {
                changed = changes.changed() => changed.expect("the sender lives in self.shared"),
                writable = to.writable(), if gate == Gate::Open => writable?,
            }
        }
    }

    /// Passes on the end of a stream when the gate is open.
    async fn finish(&self, to: &TcpStream, direction: Direction) -> io::Result<()> {
        self.shared.until(|state| (state.gate(self.id, direction) == Gate::Open).then_some(())).await;
        Ok(rustix::net::shutdown(to, Shutdown::Write)?)
    }

    /// Waits until the hold is released or removed.
    async fn hold(&self, armed: Option<&Armed>) {
        let Some(&Armed { id, .. }) = armed else { return };
        self.shared.change(|state| state.fired(id));
        self.shared
            .until(|state| state.rules.iter().find(|rule| rule.id == id).is_none_or(|rule| rule.released).then_some(()))
            .await;
    }

    async fn cut_off_request(&self, armed: Option<Armed>, request: &Request) -> io::Result<()> {
        let Some(Armed { id, by, .. }) = armed else { return Ok(()) };
        self.cut(id, by, |state| self.note_request(state, request, Fate::CutOff)).await
    }

    async fn cut_off_reply(&self, armed: Option<&Armed>, what: What) -> io::Result<()> {
        let Some(&Armed { id, by, .. }) = armed else { return Ok(()) };
        self.cut(id, by, |state| state.record(self.id, with_fate(what, Fate::CutOff))).await
    }

    /// Cuts this connection for a rule, and does not return.
    async fn cut<T>(&self, rule: u64, by: Cut, note: impl FnOnce(&mut State)) -> T {
        self.shared.change(|state| {
            note(state);
            state.cut(self.id, Ends { client: by, server: Cut::Fin });
            state.fired(rule);
        });
        never().await
    }

    fn parse_request(piece: &Piece, first: &mut bool) -> Option<Request> {
        match piece {
            Piece::Frame(frame) => Request::parse(frame, std::mem::take(first)),
            Piece::Raw(_) => None,
        }
    }

    fn spoil(&self, state: &mut State) {
        if let Some(connection) = state.connections.get_mut(&self.id) {
            connection.spoiled = true;
        }
    }

    fn note_request(&self, state: &mut State, request: &Request, fate: Fate) {
        let Request { xid, op, path, parts } = request.clone();
        if fate == Fate::Swallowed {
            state.counts.swallowed.add(op);
        }
        state.record(self.id, What::Request { xid, op, path, fate });
        for (op, path) in parts {
            state.record(self.id, What::Part { op, path });
        }
    }

    fn note_raw(&self, state: &mut State, direction: Direction, piece: &Piece, fate: Fate) {
        state.record(self.id, What::Raw { direction, length: piece.bytes().len(), fate });
    }
}

/// Returns the event with this fate.
fn with_fate(mut what: What, decided: Fate) -> What {
    match &mut what {
        What::Request { fate, .. } | What::Reply { fate, .. } | What::Watch { fate, .. } | What::Raw { fate, .. } => {
            *fate = decided;
        }
        What::Opened | What::Closed | What::Part { .. } => {}
    }
    what
}
