//! One session of a ZooKeeper client as a state machine: bytes and time go in; bytes, events and deadlines come out.
//!
//! The machine has no socket, no clock and no task, so a simulator can cut a connection inside a frame and skip an
//! hour. Time is a [`Duration`] since an origin that the driver chooses; it must not go backwards.
//!
//! A driver does four things. It opens the transport that [`Session::transport`] asks for, and passes on the bytes in
//! both directions. It calls [`Session::timeout`] at [`Session::deadline`], and delivers the events of
//! [`Session::poll`] in their order.
//!
//! Invariants:
//! - The session is over in five cases only. A server reports that it has expired, refuses its credentials, or requires
//!   some that it does not have. The servers have provably lost transactions that it saw (probe.rs). Its owner closes it.
//! - Requests leave in the order in which they were made, and their replies are reported in that order. Only those of
//!   [`Session::request_batched`] may pass each other (batch.rs).
//! - An event is reported before the reply to any request that the server answered after it.
//! - A request that was sent and not answered before its connection ended is reported as
//!   [`RequestError::ConnectionLoss`]: the server may have carried it out. A request that was not sent yet waits for
//!   the next connection.
//! - The session never uses a server that has seen less than the session has, by replies and by events.
//! - No one-shot watch misses a change, even if the connection that sets the watches again is cut in between.

mod batch;
mod incoming;
mod patience;
mod probe;
mod too_large;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use lockkeeper_wire::{ConnectRequest, ErrorCode, Malformed, OpCode, PING_XID, Request, Response, frame, request};

use crate::types::{Config, End, RequestError, RequestId, Resume, SessionEvent, Transport};
use crate::watches::{Class, Watched, Watches};

use batch::{Batch, Gathered, UnderWay};
use probe::{Evidence, Probe};
use too_large::TooLarge;

/// The pause after the first failed round over all servers. Each further round doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest session timeout that a client can ask for, nearly 25 days.
const LONGEST_TIMEOUT_MS: i32 = i32::MAX;
const LONGEST_TIMEOUT: Duration = Duration::from_millis(LONGEST_TIMEOUT_MS as u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits before the next round over all servers.
    Pause {
        until: Duration,
    },
    /// Waits for the address of the server.
    Searching {
        until: Duration,
    },
    /// Waits for a transport, or for the answer to the connect request.
    Connecting {
        until: Duration,
    },
    /// A server has accepted the session; it checks the credentials or the SASL exchange is running.
    Login {
        until: Duration,
    },
    /// A server has accepted the session.
    Connected,
    Over(End),
}

/// A request that was sent.
#[derive(Debug)]
struct Sent {
    xid: i32,
    /// The newest request of the owner that was sent: this one or an earlier one.
    newest: RequestId,
    at: Duration,
    opcode: OpCode,
    purpose: Purpose,
    /// The length of its frame if it was sent for one owner; requests that leave together are short.
    bytes: usize,
    /// The server's refusal, if it has arrived ahead of the answers to earlier requests.
    refused: Option<ErrorCode>,
}

#[derive(Debug)]
enum Purpose {
    /// The owner's request, and the watch that it leaves when it is answered.
    Owner(RequestId, Option<(Arc<str>, Class)>),
    /// The owner's requests that may leave together.
    Batch(Batch),
    /// Sets watches again; whether they are persistent.
    Watches(bool),
    /// Removes a watch; its answer is ignored.
    Unwatch,
    /// Closes the session, or the session of a probe.
    Close,
    /// The write of a probe.
    Probe,
    /// A step of the SASL exchange, with the answer that the server must give, once that is known.
    Sasl(Option<String>),
}

#[derive(Debug)]
pub struct Session {
    config: Config,
    state: State,
    /// 0 before a server has assigned one.
    id: i64,
    password: [u8; 16],
    /// The requested timeout until a server has granted one.
    timeout: Duration,
    /// The newest transaction that a reply has named. Every event up to it has arrived before that reply.
    last_zxid: i64,
    /// The newest transaction that the session has seen, by a reply or by an event.
    newest_zxid: i64,
    /// Up to which transaction the watches have not missed an event, while they are being set again. A reply names a
    /// newer transaction before the server has looked at all of them.
    watched_zxid: Option<i64>,
    /// How many packets that set watches again have no answer yet.
    setting: usize,
    /// The order in which servers are tried, and the position in it.
    order: Vec<usize>,
    at: usize,
    /// How many rounds over all servers have failed since the last success.
    rounds: u32,
    attempt: u64,
    random: fastrand::Rng,
    received: BytesMut,
    outgoing: BytesMut,
    sent: VecDeque<Sent>,
    /// Requests that will leave together.
    gathered: Gathered,
    under_way: UnderWay,
    /// Whether the servers know the read of several lists.
    lists_together: bool,
    /// The length in bytes that a list of children counts with.
    longest_list: usize,
    /// The newest sent request that leaves a watch, until it is answered.
    watching: Option<RequestId>,
    /// Requests that wait for a connection.
    waiting: VecDeque<(RequestId, Request)>,
    watches: Watches,
    events: VecDeque<SessionEvent>,
    last_sent: Duration,
    last_received: Duration,
    /// When the first frame left after the last that arrived.
    asked_at: Option<Duration>,
    next_xid: i32,
    next_id: u64,
    newest_sent: RequestId,
    /// Whether the current connection has opened the session.
    opened_here: bool,
    /// Whether a server may be opening the session: the current connection has sent the connect request.
    asked: bool,
    /// How many of the credentials that the current connection has presented have no answer, while the session waits for
    /// these answers.
    presented: usize,
    /// When the owner stops waiting for the server's answer to the close.
    closing: Option<Duration>,
    /// Which requests are too large for the servers.
    too_large: TooLarge,
    /// What suggests that the servers have lost the session's history.
    evidence: Evidence,
    /// The probe that the current connection is for.
    probe: Option<Probe>,
}

impl Session {
    /// Creates a session with this number of servers that waits for its first connection. The session knows a server
    /// by its index. `seed` decides the order of the servers and the jitter of pauses.
    ///
    /// # Panics
    /// If there is no server.
    pub fn new(config: Config, servers: usize, seed: u64, now: Duration) -> Session {
        assert!(servers > 0, "a session needs a server");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut order: Vec<_> = (0..servers).collect();
        random.shuffle(&mut order);
        let resume = config.resume.clone();
        let (id, password, last_zxid) =
            resume.map_or((0, [0; 16], 0), |resume| (resume.session, resume.password, resume.last_zxid));
        let mut session = Session {
            state: State::Pause { until: now },
            id,
            password,
            timeout: config.session_timeout.min(LONGEST_TIMEOUT),
            last_zxid,
            newest_zxid: last_zxid,
            watched_zxid: None,
            setting: 0,
            order,
            at: 0,
            rounds: 0,
            attempt: 0,
            random,
            received: BytesMut::new(),
            outgoing: BytesMut::new(),
            sent: VecDeque::new(),
            gathered: Gathered::default(),
            under_way: UnderWay::default(),
            lists_together: true,
            longest_list: batch::LIST,
            watching: None,
            newest_sent: RequestId(0),
            waiting: VecDeque::new(),
            watches: Watches::default(),
            events: VecDeque::new(),
            last_sent: now,
            last_received: now,
            asked_at: None,
            next_xid: 0,
            next_id: 0,
            opened_here: false,
            asked: false,
            presented: 0,
            closing: None,
            too_large: TooLarge::default(),
            evidence: Evidence::new(now),
            probe: None,
            config,
        };
        session.attempt(now);
        session
    }

    /// Returns the session's id; 0 before a server has assigned one.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Returns the session timeout: the requested one until a server has granted one.
    pub fn session_timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the age of the oldest request that was sent and not answered; zero without one. Requests that wait to be sent do not
    /// count, so it is zero without a connection.
    pub fn unanswered_for(&self, now: Duration) -> Duration {
        self.sent.front().map_or(Duration::ZERO, |oldest| now.saturating_sub(oldest.at))
    }

    /// Returns what is needed to resume this session elsewhere; `None` before a server has accepted it.
    pub fn resume(&self) -> Option<Resume> {
        let (session, password, last_zxid) = (self.id, self.password, self.last_zxid);
        (session != 0).then_some(Resume { session, password, last_zxid })
    }

    /// Returns the number of watches.
    pub fn watches(&self) -> usize {
        self.watches.len()
    }

    /// Returns why the session is over, if it is.
    pub fn end(&self) -> Option<End> {
        match self.state {
            State::Over(end) => Some(end),
            _ => None,
        }
    }

    /// Returns the transport that the session needs; `None` while it pauses and when it is over. The driver drops any
    /// other one.
    pub fn transport(&self) -> Option<Transport> {
        match self.state {
            State::Searching { .. } | State::Connecting { .. } | State::Login { .. } | State::Connected => {
                Some(Transport { attempt: self.attempt, server: self.order[self.at] })
            }
            State::Pause { .. } | State::Over(_) => None,
        }
    }

    /// Returns whether a server has accepted the session over the current connection.
    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Reports that the transport is open.
    pub fn opened(&mut self, now: Duration) {
        self.found(now);
        if !matches!(self.state, State::Connecting { .. }) {
            return;
        }
        self.asked = true;
        let (last_zxid_seen, session, password) = match self.probe {
            Some(_) => (0, 0, [0; 16]),
            None => (self.newest_zxid, self.id, self.password),
        };
        let connect = ConnectRequest {
            last_zxid_seen,
            timeout_ms: i32::try_from(self.config.session_timeout.as_millis()).unwrap_or(LONGEST_TIMEOUT_MS),
            session,
            password: password.to_vec(),
            has_read_only: true,
        };
        request::encode_connect(&mut self.outgoing, &connect);
        (self.last_sent, self.last_received, self.asked_at) = (now, now, Some(now));
    }

    /// Reports that the transport could not be opened, or has ended.
    pub fn failed(&mut self, now: Duration) {
        if matches!(self.state, State::Connecting { .. }) && self.asked && self.received.is_empty() {
            self.evidence.refusals += 1;
        }
        if self.state == State::Connected {
            self.too_large.closed(self.sent.iter().map(|sent| sent.bytes).max());
        }
        self.give_up(now);
    }

    /// Gives up the transport.
    fn give_up(&mut self, now: Duration) {
        match self.state {
            State::Over(_) | State::Pause { .. } => {}
            State::Searching { .. } | State::Connecting { .. } | State::Login { .. } => {
                self.sent.clear();
                self.next_server(now);
            }
            State::Connected => {
                self.disconnect();
                self.evidence = Evidence::new(now);
                self.next_server(now);
            }
        }
    }

    /// Passes in bytes that arrived over the transport.
    pub fn received(&mut self, bytes: &[u8], now: Duration) {
        if self.transport().is_none() {
            return;
        }
        (self.last_received, self.asked_at) = (now, None);
        // Frames are handled where they are. Only an incomplete one at the end is kept.
        let mut earlier = std::mem::take(&mut self.received);
        let mut rest = bytes;
        if !earlier.is_empty() {
            earlier.extend_from_slice(bytes);
            rest = &earlier;
        }
        while self.transport().is_some() {
            let payload = match frame::first(rest, self.config.max_frame) {
                Ok(None) => {
                    let left = rest.len();
                    self.received = if earlier.is_empty() {
                        BytesMut::from(rest)
                    } else {
                        earlier.advance(earlier.len() - left);
                        earlier
                    };
                    return;
                }
                Ok(Some(payload)) => payload,
                Err(Malformed) => return self.give_up(now),
            };
            rest = &rest[4 + payload.len()..];
            let taken = match self.state {
                State::Connecting { .. } => self.accepted(payload, now),
                _ => self.frame(payload, now),
            };
            if taken.is_err() {
                return self.give_up(now);
            }
        }
    }

    /// Returns the bytes to send over the transport. The driver removes the bytes that it has sent.
    pub fn outgoing(&mut self) -> &mut BytesMut {
        if self.held_back() == 0 {
            self.leave_together();
        }
        &mut self.outgoing
    }

    /// Returns when the driver must call [`Session::timeout`] if nothing happens before; `None` when the session is
    /// over.
    pub fn deadline(&self) -> Option<Duration> {
        let due = match self.state {
            State::Over(_) => return None,
            State::Pause { until }
            | State::Searching { until }
            | State::Connecting { until }
            | State::Login { until } => until,
            State::Connected => {
                let ping = self.last_sent + self.ping_after();
                let answer = self.sent.front().map(|oldest| oldest.at + self.timeout);
                answer.into_iter().chain(self.silent_at()).fold(ping, Duration::min)
            }
        };
        Some(self.closing.map_or(due, |closing| due.min(closing)))
    }

    /// Passes in the time. An early call does no harm.
    pub fn timeout(&mut self, now: Duration) {
        if self.closing.is_some_and(|closing| now >= closing) {
            return self.over(End::Closed);
        }
        match self.state {
            State::Over(_) => {}
            State::Pause { until } if now >= until => self.attempt(now),
            State::Searching { until } | State::Connecting { until } | State::Login { until } if now >= until => {
                self.give_up(now);
            }
            State::Pause { .. } | State::Searching { .. } | State::Connecting { .. } | State::Login { .. } => {}
            State::Connected => {
                let silent = self.silent_at().is_some_and(|at| now >= at);
                // A server may answer pings and nothing else.
                let stuck = self.sent.front().is_some_and(|oldest| now >= oldest.at + self.timeout);
                if silent || stuck {
                    self.give_up(now);
                } else if now >= self.last_sent + self.ping_after() {
                    request::encode(&mut self.outgoing, PING_XID, &Request::Ping);
                    self.note_sent_at(now);
                }
            }
        }
    }

    fn note_sent_at(&mut self, at: Duration) {
        self.last_sent = self.last_sent.max(at);
        self.asked_at.get_or_insert(at);
    }

    /// Returns the next event.
    pub fn poll(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Changes the current pause between two rounds over all servers: the next round begins after this time. Without a
    /// pause, this does nothing.
    pub fn pause_for(&mut self, pause: Duration, now: Duration) {
        if let State::Pause { until } = &mut self.state {
            *until = now.saturating_add(pause);
        }
    }

    /// Adds a credential that this connection and every later one presents. If a server refuses it, the session is over
    /// with [`End::AuthFailed`].
    pub fn add_credential(&mut self, scheme: String, credential: Vec<u8>, now: Duration) {
        if self.state == State::Connected || self.presented > 0 {
            self.leave_together();
            request::encode_auth(&mut self.outgoing, &scheme, &credential);
            self.note_sent_at(now);
            self.presented += usize::from(self.presented > 0);
        }
        self.config.credentials.push((scheme, credential));
    }

    /// Makes a request. It is sent immediately or over the next connection; [`SessionEvent::Reply`] reports the result.
    ///
    /// Requests that the session itself makes are refused at once, with [`ErrorCode::BadArguments`]: pings, closing, and
    /// setting or removing watches.
    pub fn request(&mut self, request: Request, now: Duration) -> RequestId {
        let id = self.take_id();
        self.leave_together();
        match self.state {
            State::Over(end) => self.reply(id, Err(RequestError::SessionOver(end))),
            _ if self.closing.is_some() => self.reply(id, Err(RequestError::SessionOver(End::Closed))),
            _ if request.is_the_sessions_own() => {
                self.reply(id, Err(RequestError::Refused(ErrorCode::BadArguments)));
            }
            State::Connected => self.send(id, &request, now),
            State::Pause { .. } | State::Searching { .. } | State::Connecting { .. } | State::Login { .. } => {
                self.waiting.push_back((id, request));
            }
        }
        id
    }

    /// Removes the watch that this request left or will leave. Its events are not reported from now on.
    ///
    /// If this was the last watch of its kind at the path, a request of its own removes the server's watch as well.
    pub fn unwatch(&mut self, id: RequestId, now: Duration) {
        // Owners' requests are sent in the order of their ids.
        let at = self.sent.partition_point(|sent| sent.newest < id);
        let under_way = self.sent.get_mut(at).and_then(|sent| match &mut sent.purpose {
            Purpose::Owner(asked, watch) if *asked == id => watch.take(),
            _ => None,
        });
        if let Some((_, request)) = self.waiting.iter_mut().find(|(waiting, _)| *waiting == id) {
            request.forget_watch();
        }
        // A one-shot watch of an unanswered request stays at the server; its event has no receiver.
        let under_way = under_way.filter(|(path, class)| !class.is_one_shot() && !self.watches.has(path, *class));
        let Some((path, class)) = self.watches.remove(id).or(under_way) else { return };
        // Another unanswered request may leave a watch of this kind at the path, and that watch must stay.
        let renewed = self.watching.is_some()
            && self.sent.iter().any(|sent| match &sent.purpose {
                Purpose::Owner(_, Some((other, kind))) => *other == path && kind.kind() == class.kind(),
                _ => false,
            });
        if self.state == State::Connected && !renewed {
            let request = Request::RemoveWatches { path: path.to_string(), kind: class.kind() };
            self.push(&request, Purpose::Unwatch, now);
        }
    }

    /// Closes the session: earlier requests are carried out, then the server ends the session. [`SessionEvent::Over`] reports
    /// the end, at the latest after the session timeout.
    pub fn close(&mut self, now: Duration) {
        if self.closing.is_some() || matches!(self.state, State::Over(_)) {
            return;
        }
        self.closing = Some(now + self.timeout);
        match self.state {
            State::Connected => {
                self.leave_together();
                self.push(&Request::CloseSession, Purpose::Close, now);
            }
            // No server knows this session. If one is opening it, its answer gets the request to close.
            _ if self.is_unknown() && !self.asked => self.over(End::Closed),
            _ => {}
        }
    }

    /// Whether the driver has all bytes up to the request to close the session.
    pub fn has_given_out_the_close(&self) -> bool {
        let asked = self.sent.back().is_some_and(|sent| matches!(sent.purpose, Purpose::Close));
        asked && self.outgoing.is_empty()
    }

    /// Whether no server has assigned an id, and no request needs a server.
    fn is_unknown(&self) -> bool {
        self.id == 0 && self.waiting.is_empty()
    }

    /// Continues with the next server, after a pause if all have been tried.
    fn next_server(&mut self, now: Duration) {
        self.received.clear();
        self.outgoing.clear();
        (self.asked, self.presented) = (false, 0);
        if self.closing.is_some() && self.is_unknown() {
            return self.over(End::Closed);
        }
        match self.probe.take() {
            Some(Probe { lost: true }) => return self.over(End::Expired),
            Some(_) => {}
            None => {
                self.at += 1;
                if self.at < self.order.len() {
                    return self.attempt(now);
                }
                if self.must_probe(now) {
                    return self.begin_probe(now);
                }
            }
        }
        (self.at, self.evidence.refusals) = (0, 0);
        let longest = (FIRST_PAUSE * 2_u32.saturating_pow(self.rounds)).min(LONGEST_PAUSE);
        self.rounds = self.rounds.saturating_add(1);
        // Jitter: clients that lost the same server must not come back in the same moment.
        let jitter = longest.mul_f64(0.5 + self.random.f64() / 2.0);
        let pause = self.config.pause.unwrap_or(jitter);
        self.state = State::Pause { until: now.saturating_add(pause) };
        self.events.push_back(SessionEvent::Paused);
    }

    /// The connection has ended. The server may or may not have carried out what was sent.
    fn disconnect(&mut self) {
        self.events.push_back(SessionEvent::Disconnected);
        self.watching = None;
        self.waiting.extend(std::mem::take(&mut self.gathered).into_requests());
        self.under_way = UnderWay::default();
        for sent in std::mem::take(&mut self.sent) {
            let error = sent.refused.map_or(RequestError::ConnectionLoss, RequestError::Refused);
            match sent.purpose {
                Purpose::Owner(id, _) => self.reply(id, Err(error)),
                Purpose::Batch(batch) => batch.into_ids().into_iter().for_each(|id| self.reply(id, Err(error))),
                _ => {}
            }
        }
    }

    fn send(&mut self, id: RequestId, request: &Request, now: Duration) {
        let watch = request.watch().map(|(path, class)| (Arc::from(path), class));
        self.newest_sent = id;
        if watch.is_some() {
            self.watching = Some(id);
        }
        self.push(request, Purpose::Owner(id, watch), now);
    }

    fn take_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }

    fn take_xid(&mut self) -> i32 {
        self.next_xid = if self.next_xid == i32::MAX { 1 } else { self.next_xid + 1 };
        self.next_xid
    }

    fn push(&mut self, request: &Request, purpose: Purpose, now: Duration) {
        let xid = self.take_xid();
        let Some(opcode) = OpCode::from_i32(request.opcode()) else {
            if let Purpose::Owner(id, _) = purpose {
                self.reply(id, Err(RequestError::Refused(ErrorCode::Unimplemented)));
            }
            return;
        };
        let before = self.outgoing.len();
        request::encode(&mut self.outgoing, xid, request);
        let bytes = self.outgoing.len() - before;
        if let Purpose::Owner(id, _) = purpose
            && self.too_large.refuses(bytes)
        {
            self.outgoing.truncate(before);
            self.watching = self.watching.filter(|watching| *watching != id);
            return self.reply(id, Err(RequestError::TooLarge { bytes }));
        }
        self.sent.push_back(Sent { xid, newest: self.newest_sent, at: now, opcode, purpose, bytes, refused: None });
        self.note_sent_at(now);
    }

    fn reply(&mut self, id: RequestId, result: Result<Response, RequestError>) {
        self.events.push_back(SessionEvent::Reply { id, zxid: self.last_zxid, result });
    }

    fn over(&mut self, end: End) {
        // A session that its owner has closed may end as expired: the answer to the close was lost.
        let end = if self.closing.is_some() && end == End::Expired { End::Closed } else { end };
        self.state = State::Over(end);
        for sent in std::mem::take(&mut self.sent) {
            let ids = match sent.purpose {
                Purpose::Owner(id, _) => vec![id],
                Purpose::Batch(batch) => batch.into_ids(),
                _ => Vec::new(),
            };
            ids.into_iter().for_each(|id| self.reply(id, Err(RequestError::SessionOver(end))));
        }
        self.waiting.extend(std::mem::take(&mut self.gathered).into_requests());
        for (id, _) in std::mem::take(&mut self.waiting) {
            self.reply(id, Err(RequestError::SessionOver(end)));
        }
        self.watches = Watches::default();
        self.received = BytesMut::new();
        self.outgoing = BytesMut::new();
        self.events.push_back(SessionEvent::Over(end));
    }
}
