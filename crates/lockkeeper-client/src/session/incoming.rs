//! What the session does with the frames of a server.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_wire::jute::Reader;
use lockkeeper_wire::response::Header;
use lockkeeper_wire::{
    AUTH_XID, ConnectResponse, EVENT_XID, ErrorCode, EventKind, Malformed, OpCode, PING_XID, Request, Response,
    digest_md5, request, response,
};

use super::{Purpose, Sent, Session, State};
use crate::types::{End, RequestError, SessionEvent};
use crate::watches::Class;

impl Session {
    /// Handles the answer to the connect request.
    pub(super) fn accepted(&mut self, payload: &[u8], now: Duration) -> Result<(), Malformed> {
        let ConnectResponse { timeout_ms, session, password } = response::decode_connect(payload)?;
        if self.probe.is_some() {
            if session == 0 {
                return Err(Malformed);
            }
            // Each probe opens a session, so the next one has to wait.
            self.evidence.since = now;
        } else {
            if session == 0 {
                self.over(End::Expired);
                return Ok(());
            }
            // No server gives a session another id, or no time.
            let timeout = u64::try_from(timeout_ms).ok().filter(|timeout| *timeout > 0).ok_or(Malformed)?;
            if self.id != 0 && self.id != session {
                return Err(Malformed);
            }
            self.opened_here = self.id == 0;
            (self.id, self.password) = (session, password);
            self.timeout = Duration::from_millis(timeout);
            self.closing = self.closing.map(|closing| closing.min(now + self.timeout));
        }
        if self.config.sasl.is_some() {
            self.state = State::Login { until: now + self.timeout / 3 };
            // ZooKeeper's client begins with an empty token; the server answers with its challenge.
            self.login_step(&[], None, now);
        } else {
            self.present(now);
        }
        Ok(())
    }

    /// A server has accepted the session, and the user if SASL is used. Presents the credentials: the session is not
    /// connected before the server has accepted them.
    fn present(&mut self, now: Duration) {
        for (scheme, credential) in &self.config.credentials {
            request::encode_auth(&mut self.outgoing, scheme, credential);
            self.presented += 1;
        }
        if self.presented == 0 {
            return self.established(now);
        }
        self.state = State::Login { until: now + self.timeout / 3 };
        self.note_sent_at(now);
    }

    /// A server has accepted the session and the credentials.
    fn established(&mut self, now: Duration) {
        if self.probe.is_some() {
            return self.probe_history(now);
        }
        self.state = State::Connected;
        self.events.push_back(SessionEvent::Connected { server: self.order[self.at], opened: self.opened_here });
        let packets = self.watches.set_again(self.watched_zxid.unwrap_or(self.last_zxid));
        self.setting = packets.len();
        self.watched_zxid = packets.first().map(|packet| packet.relative_zxid);
        for packet in packets {
            let purpose = Purpose::Watches(packet.has_persistent());
            self.push(&Request::SetWatches(packet), purpose, now);
        }
        for (id, request) in std::mem::take(&mut self.waiting) {
            self.send(id, &request, now);
        }
        if self.closing.is_some() {
            self.push(&Request::CloseSession, Purpose::Close, now);
        }
    }

    /// Sends a step of the SASL exchange.
    fn login_step(&mut self, token: &[u8], expected: Option<String>, now: Duration) {
        let xid = self.take_xid();
        request::encode_sasl(&mut self.outgoing, xid, token);
        let (newest, purpose) = (self.newest_sent, Purpose::Sasl(expected));
        self.sent.push_back(Sent { xid, newest, at: now, opcode: OpCode::Sasl, purpose, bytes: 0, refused: None });
        self.note_sent_at(now);
    }

    /// Handles the server's answer to a step.
    fn logged_in(&mut self, expected: Option<String>, token: &[u8], now: Duration) {
        match (expected, &self.config.sasl) {
            (Some(expected), _) if expected.as_bytes() == token => self.present(now),
            (None, Some((user, password))) => {
                let cnonce = format!("{:032x}", self.random.u128(..));
                match digest_md5::answer(token, user, password, &cnonce) {
                    Some((answer, expected)) => self.login_step(&answer, Some(expected), now),
                    None => self.over(End::AuthFailed),
                }
            }
            // A server that does not know the password is not the right server.
            _ => self.over(End::AuthFailed),
        }
    }

    /// Handles any later frame.
    pub(super) fn frame(&mut self, payload: &[u8], now: Duration) -> Result<(), Malformed> {
        let mut reader = Reader::new(payload);
        let header = response::decode_header(&mut reader)?;
        // The server says so to every request, ahead of its turn, and closes the connection. So would the next one.
        if header.error == Some(ErrorCode::SessionClosedRequireSaslAuth) && self.probe.is_none() {
            self.over(End::AuthRequired);
            return Ok(());
        }
        match header.xid {
            EVENT_XID => {
                let event = response::decode_event(&mut reader)?;
                // Servers before 3.9 name no transaction here. Other events of the same one may still follow, so this is
                // not a `last_zxid`.
                self.newest_zxid = self.newest_zxid.max(header.zxid);
                if let Some(kind) = event.kind {
                    self.fire(kind, &event.path);
                }
                return Ok(());
            }
            PING_XID => {
                self.rounds = 0;
                return Ok(());
            }
            AUTH_XID => {
                if header.error.is_some() {
                    self.over(End::AuthFailed);
                } else if self.presented > 0 {
                    self.presented -= 1;
                    if self.presented == 0 {
                        self.established(now);
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        if self.sent.front().is_none_or(|oldest| oldest.xid != header.xid) {
            return self.refused_early(header);
        }
        let sent = self.sent.pop_front().ok_or(Malformed)?;
        self.answered(sent, header, reader, now)?;
        // The refusals that have come early are in turn now.
        while self.sent.front().is_some_and(|oldest| oldest.refused.is_some())
            && let Some(sent) = self.sent.pop_front()
        {
            let header = Header { xid: sent.xid, zxid: 0, error: sent.refused };
            self.answered(sent, header, Reader::new(&[]), now)?;
        }
        Ok(())
    }

    /// Handles the answer to the oldest request.
    fn answered(&mut self, sent: Sent, header: Header, mut reader: Reader<'_>, now: Duration) -> Result<(), Malformed> {
        if self.probe.is_some() && !matches!(sent.purpose, Purpose::Sasl(_)) {
            self.probed(&sent.purpose, header, now);
            return Ok(());
        }
        self.last_zxid = self.last_zxid.max(header.zxid);
        self.newest_zxid = self.newest_zxid.max(self.last_zxid);
        self.too_large.answered(sent.bytes);
        match sent.purpose {
            // The server has ended the session. It would say so again to the next connection.
            _ if header.error == Some(ErrorCode::SessionExpired) => {
                self.sent.push_front(sent);
                self.over(End::Expired);
                return Ok(());
            }
            Purpose::Owner(id, watch) => {
                if self.watching == Some(id) {
                    self.watching = None;
                }
                let result = match header.error {
                    // The session has moved to another server, so this connection is useless.
                    Some(ErrorCode::SessionMoved) => {
                        self.reply(id, Err(RequestError::ConnectionLoss));
                        return Err(Malformed);
                    }
                    Some(error) => Err(RequestError::Refused(error)),
                    None => match response::decode(sent.opcode, &mut reader) {
                        Ok(response) => Ok(response),
                        Err(Malformed) => {
                            self.reply(id, Err(RequestError::ConnectionLoss));
                            return Err(Malformed);
                        }
                    },
                };
                if let Some((path, class)) = watch.and_then(|watch| Self::left(watch, &result)) {
                    self.watches.add(&path, class, id);
                }
                self.reply(id, result);
            }
            Purpose::Batch(batch) => {
                let result = match header.error {
                    Some(ErrorCode::SessionMoved) => Err(Malformed),
                    Some(error) => Ok(Err(error)),
                    None => response::decode(sent.opcode, &mut reader).map(Ok),
                };
                match result {
                    Ok(result) => self.batch_answered(batch, header.zxid, result, now)?,
                    Err(Malformed) => return self.unreadable(batch.into_ids()),
                }
            }
            Purpose::Watches(persistent) => match header.error {
                None => self.watches_set(),
                Some(ErrorCode::Unimplemented) if persistent => {
                    self.end_persistent();
                    self.watches_set();
                }
                // A connection without the watches is useless.
                Some(_) => return Err(Malformed),
            },
            Purpose::Unwatch => {}
            Purpose::Sasl(_) if header.error.is_some() => self.over(End::AuthFailed),
            Purpose::Sasl(expected) => {
                let token = response::decode_sasl(&mut reader)?;
                self.logged_in(expected, &token, now);
            }
            Purpose::Close => self.over(End::Closed),
            // `probed` has handled it.
            Purpose::Probe => {}
        }
        // Only now the server has proved to be useful: one that accepts sessions and then fails is not tried in a
        // tight loop, nor one that answers with nothing but errors of its own.
        if self.probe.is_none() && header.error.is_none_or(ErrorCode::is_refusal) {
            self.rounds = 0;
        }
        Ok(())
    }

    /// Handles the refusal of a request that is not the oldest one.
    ///
    /// Apache's server answers a request that it does not know ahead of its turn (`UnimplementedRequestProcessor`), and then
    /// closes the connection. With `zookeeper.enableEagerACLCheck`, the connected server itself refuses a write for which the
    /// client has no right (`ZooKeeperServer.authWriteRequest`). It does not wait for the answers to earlier writes, and
    /// names no transaction.
    fn refused_early(&mut self, header: Header) -> Result<(), Malformed> {
        let sent = self.sent.iter_mut().find(|sent| sent.xid == header.xid && sent.refused.is_none());
        let (Some(sent), Some(error)) = (sent, header.error) else { return Err(Malformed) };
        match error {
            ErrorCode::NoAuth | ErrorCode::InvalidAcl if header.zxid == 0 => {
                // It is reported when the earlier ones are answered.
                sent.refused = Some(error);
                return Ok(());
            }
            ErrorCode::Unimplemented => match sent.purpose {
                Purpose::Owner(..) => sent.refused = Some(error),
                Purpose::Watches(true) => self.end_persistent(),
                Purpose::Batch(_) => self.lists_together = false,
                _ => {}
            },
            _ => {}
        }
        // Everything without an answer is reported as lost.
        Err(Malformed)
    }

    /// Notes the answer to a packet that set watches again.
    fn watches_set(&mut self) {
        self.setting -= 1;
        if self.setting == 0 {
            self.watched_zxid = None;
        }
    }

    /// A server older than 3.6 has no persistent watches. They end, because the session could not notice their events.
    fn end_persistent(&mut self) {
        let ended = self.watches.remove_persistent();
        self.events.extend(ended.into_iter().map(|id| SessionEvent::WatchEnded { id }));
    }

    /// Returns the watch that a request with this result has left.
    fn left((path, class): (Arc<str>, Class), result: &Result<Response, RequestError>) -> Option<(Arc<str>, Class)> {
        match (class, result) {
            (_, Ok(_)) => Some((path, if class == Class::Exist { Class::Data } else { class })),
            (Class::Exist, Err(RequestError::Refused(ErrorCode::NoNode))) => Some((path, class)),
            (_, Err(_)) => None,
        }
    }

    fn fire(&mut self, kind: EventKind, path: &str) {
        let fired = self.watches.fire(kind, path);
        if fired.is_empty() {
            return;
        }
        let path: Arc<str> = Arc::from(path);
        self.events.extend(fired.into_iter().map(|id| SessionEvent::Watch { id, kind, path: path.clone() }));
    }
}
