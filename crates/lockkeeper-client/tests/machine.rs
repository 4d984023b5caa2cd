//! The session's machine against a server that a test plays by hand, frame by frame.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_client::wire::request::{self, Packet};
use lockkeeper_client::wire::{
    ConnectRequest, ConnectResponse, ErrorCode, EventKind, Request, Response, Stat, WatchedPath, frame, response,
};
use lockkeeper_client::{Config, End, RequestError, RequestId, Session, SessionEvent};

const TIMEOUT: Duration = Duration::from_secs(10);
const ID: i64 = 0x77;

/// A session and the time.
struct Stage {
    session: Session,
    now: Duration,
}

impl Stage {
    fn new() -> Stage {
        Stage::with(Config::new(TIMEOUT))
    }

    fn with(config: Config) -> Stage {
        let now = Duration::from_secs(1);
        Stage { session: Session::new(config, 1, 1, now), now }
    }

    /// Opens a transport. Returns the connect request.
    fn open(&mut self) -> ConnectRequest {
        while self.session.transport().is_none() {
            self.now = self.session.deadline().unwrap();
            self.session.timeout(self.now);
        }
        self.session.opened(self.now);
        request::decode_connect(&self.frames()[0]).unwrap()
    }

    /// Opens a transport, and accepts the session.
    fn accept(&mut self) -> ConnectRequest {
        let connect = self.open();
        self.answer_connect(ID, 10_000);
        connect
    }

    fn answer_connect(&mut self, session: i64, timeout_ms: i32) {
        let mut bytes = BytesMut::new();
        let response = ConnectResponse { timeout_ms, session, password: [7; 16] };
        response::encode_connect(&mut bytes, &response, true);
        self.session.received(&bytes, self.now);
    }

    fn cut(&mut self) {
        self.session.failed(self.now);
    }

    /// Takes the frames that the session sends.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut sent = self.session.outgoing().split();
        let mut frames = Vec::new();
        while let Some(payload) = frame::first(&sent, 1 << 30).unwrap().map(<[u8]>::to_vec) {
            _ = sent.split_to(4 + payload.len());
            frames.push(payload);
        }
        frames
    }

    /// Takes the requests that the session sends, with their xids.
    fn requests(&mut self) -> Vec<(i32, Request)> {
        let frames = self.frames();
        let read = frames.iter().filter_map(|frame| match request::decode(frame).unwrap() {
            Packet::Request { xid, request, .. } => Some((xid, request)),
            _ => None,
        });
        read.collect()
    }

    fn reply(&mut self, xid: i32, zxid: i64, result: Result<Response, ErrorCode>) {
        let mut bytes = BytesMut::new();
        response::encode(&mut bytes, xid, zxid, &result);
        self.session.received(&bytes, self.now);
    }

    fn event(&mut self, zxid: i64, kind: EventKind, path: &str) {
        let mut bytes = BytesMut::new();
        response::encode_event(&mut bytes, zxid, kind, path);
        self.session.received(&bytes, self.now);
    }

    fn ask(&mut self, request: Request) -> RequestId {
        self.session.request(request, self.now)
    }

    /// Leaves this watch over the open connection; the server answers with this zxid.
    fn watch(&mut self, path: &str, zxid: i64) -> RequestId {
        let id = self.ask(Request::GetData(WatchedPath { path: path.to_owned(), watch: true }));
        let xid = self.requests().pop().unwrap().0;
        self.reply(xid, zxid, Ok(Response::Data { data: None, stat: Stat::default() }));
        id
    }

    fn add_watch(&mut self, path: &str, zxid: i64) -> RequestId {
        let id = self.ask(Request::AddWatch { path: path.to_owned(), recursive: true });
        let xid = self.requests().pop().unwrap().0;
        self.reply(xid, zxid, Ok(Response::WatchAdded));
        id
    }

    fn events(&mut self) -> Vec<SessionEvent> {
        std::iter::from_fn(|| self.session.poll()).collect()
    }

    /// Takes the results of requests, in their order.
    fn results(&mut self) -> Vec<(RequestId, Option<RequestError>)> {
        let events = self.events().into_iter();
        let results = events.filter_map(|event| match event {
            SessionEvent::Reply { id, result, .. } => Some((id, result.err())),
            _ => None,
        });
        results.collect()
    }
}

fn sync() -> Request {
    Request::Sync { path: "/".to_owned() }
}

fn relative(request: &Request) -> i64 {
    match request {
        Request::SetWatches(packet) => packet.relative_zxid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cut_between_two_packets_of_watches_loses_no_change() {
    let mut stage = Stage::new();
    stage.accept();
    for at in 0..3_000 {
        stage.watch(&format!("/a-path-of-some-length/that-fills-the-packets/quite-quickly/{at:010}"), 5);
    }
    stage.cut();
    stage.accept();
    let packets = stage.requests();
    assert!(packets.len() > 1 && packets.iter().all(|(_, packet)| relative(packet) == 5));
    // The first answer names a transaction whose changes the server has not compared with the second packet.
    stage.reply(packets[0].0, 90, Ok(Response::Done));
    stage.cut();
    assert_eq!(stage.accept().last_zxid_seen, 90);
    let packets = stage.requests();
    assert!(packets.iter().all(|(_, packet)| relative(packet) == 5), "the second packet misses changes");
    for (xid, _) in &packets {
        stage.reply(*xid, 91, Ok(Response::Done));
    }
    stage.cut();
    stage.accept();
    assert!(stage.requests().iter().all(|(_, packet)| relative(packet) == 91), "all watches were set at 91");
}

#[test]
fn a_session_does_not_go_back_behind_an_event() {
    let mut stage = Stage::new();
    stage.accept();
    stage.watch("/a", 5);
    stage.watch("/b", 5);
    stage.event(9, EventKind::DataChanged, "/a");
    stage.cut();
    assert_eq!(stage.accept().last_zxid_seen, 9);
    // Another event of transaction 9 may be missing.
    assert_eq!(relative(&stage.requests()[0].1), 5);
}

#[test]
fn a_server_without_persistent_watches_ends_them_and_keeps_the_others() {
    for early in [false, true] {
        let mut stage = Stage::new();
        stage.accept();
        stage.watch("/a", 5);
        let persistent = stage.add_watch("/a", 5);
        stage.cut();
        stage.accept();
        let packets = stage.requests();
        assert_eq!(packets.len(), 2, "one packet for each generation of servers");
        if !early {
            stage.reply(packets[0].0, 6, Ok(Response::Done));
        }
        stage.reply(packets[1].0, 6, Err(ErrorCode::Unimplemented));
        assert!(stage.events().contains(&SessionEvent::WatchEnded { id: persistent }));
        // Apache's server closes the connection after such an answer.
        stage.cut();
        stage.accept();
        let again = stage.requests();
        assert!(matches!(&again[..], [(_, Request::SetWatches(packet))] if packet.data == ["/a"]), "{again:?}");
        assert_eq!(stage.session.end(), None);
    }
}

#[test]
fn an_unknown_operation_is_refused_and_everything_else_is_lost() {
    let mut stage = Stage::new();
    stage.accept();
    let [before, unknown, after] = [sync(), Request::WhoAmI, sync()].map(|request| stage.ask(request));
    let xid = stage.requests()[1].0;
    stage.reply(xid, 6, Err(ErrorCode::Unimplemented));
    let lost = Some(RequestError::ConnectionLoss);
    let refused = Some(RequestError::Refused(ErrorCode::Unimplemented));
    assert_eq!(stage.results(), [(before, lost), (unknown, refused), (after, lost)]);
}

#[test]
fn an_expired_session_is_over_with_the_first_server_that_says_so() {
    let mut stage = Stage::new();
    stage.accept();
    let [first, second] = [sync(), sync()].map(|request| stage.ask(request));
    let xid = stage.requests()[0].0;
    stage.reply(xid, 6, Err(ErrorCode::SessionExpired));
    let over = Some(RequestError::SessionOver(End::Expired));
    assert_eq!(stage.results(), [(first, over), (second, over)]);
    assert_eq!(stage.session.end(), Some(End::Expired));
}

#[test]
fn the_rest_of_a_connection_is_ignored_when_the_session_has_moved() {
    let mut stage = Stage::new();
    stage.session = Session::new(Config::new(TIMEOUT), 2, 1, stage.now);
    stage.accept();
    let [first, second] = [sync(), sync()].map(|request| stage.ask(request));
    let mut bytes = BytesMut::new();
    let xids: Vec<_> = stage.requests().iter().map(|(xid, _)| *xid).collect();
    response::encode(&mut bytes, xids[0], 6, &Err(ErrorCode::SessionMoved));
    response::encode(&mut bytes, xids[1], 6, &Ok(Response::Path("/".to_owned())));
    let before = stage.session.transport().unwrap();
    stage.session.received(&bytes, stage.now);
    let lost = Some(RequestError::ConnectionLoss);
    assert_eq!(stage.results(), [(first, lost), (second, lost)]);
    let after = stage.session.transport().unwrap();
    assert!(after.attempt == before.attempt + 1 && after.server != before.server, "{before:?}, then {after:?}");
    stage.accept();
    assert_eq!(stage.session.end(), None);
}

#[test]
fn a_closed_session_that_has_expired_meanwhile_is_closed() {
    let mut stage = Stage::new();
    stage.accept();
    stage.session.close(stage.now);
    stage.cut();
    stage.open();
    stage.answer_connect(0, 0);
    assert_eq!(stage.session.end(), Some(End::Closed));
}

#[test]
fn a_server_with_another_session_or_without_a_timeout_is_left() {
    let mut stage = Stage::new();
    stage.open();
    stage.answer_connect(ID, 0);
    stage.accept();
    stage.cut();
    stage.open();
    stage.answer_connect(ID + 1, 10_000);
    assert_eq!((stage.session.id(), stage.session.end()), (ID, None));
    stage.accept();
    assert_eq!(stage.session.end(), None);
}

#[test]
fn a_server_that_accepts_and_then_fails_is_tried_with_growing_pauses() {
    let mut stage = Stage::new();
    let begin = stage.now;
    for _ in 0..20 {
        stage.accept();
        stage.cut();
    }
    assert!(stage.now - begin > Duration::from_secs(8), "{:?} for 20 attempts", stage.now - begin);
    // A server that answers has proved itself.
    stage.accept();
    stage.ask(sync());
    let xid = stage.requests()[0].0;
    stage.reply(xid, 6, Ok(Response::Path("/".to_owned())));
    let cut = stage.now;
    stage.cut();
    stage.accept();
    assert!(stage.now - cut <= Duration::from_millis(50), "{:?}", stage.now - cut);
}

#[test]
fn a_silent_server_is_left_after_the_configured_time() {
    let silent_for = Duration::from_secs(2);
    for (max_silence, left_after) in [(silent_for, silent_for), (Duration::MAX, TIMEOUT * 2 / 5)] {
        let mut stage = Stage::with(Config { max_silence, ..Config::new(TIMEOUT) });
        stage.accept();
        let begin = stage.now;
        while stage.session.transport().is_some() {
            stage.now = stage.session.deadline().unwrap();
            stage.session.timeout(stage.now);
        }
        assert_eq!(stage.now - begin, left_after);
        assert!(stage.frames().is_empty(), "the pings went to the connection that was left");
    }
}

#[test]
fn the_sessions_own_requests_are_refused() {
    let mut stage = Stage::new();
    stage.accept();
    let refused = Some(RequestError::Refused(ErrorCode::BadArguments));
    for request in [Request::Ping, Request::CloseSession, Request::SetWatches(Default::default())] {
        let id = stage.ask(request);
        assert_eq!(stage.results(), [(id, refused)]);
    }
    assert!(stage.requests().is_empty());
}

#[test]
fn an_added_credential_is_presented_now_and_by_every_later_connection() {
    let mut stage = Stage::new();
    stage.accept();
    stage.session.add_credential("digest".to_owned(), b"u:p".to_vec(), stage.now);
    for _ in 0..3 {
        let sent = stage.frames();
        assert!(
            matches!(request::decode(&sent[0]), Ok(Packet::Auth { scheme, auth, .. }) if scheme == "digest" && auth == b"u:p")
        );
        stage.cut();
        stage.accept();
    }
}
