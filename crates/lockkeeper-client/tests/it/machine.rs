//! The session's machine against a server that a test plays by hand, frame by frame.

use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_client::wire::request::{self, Packet};
use lockkeeper_client::wire::{
    ConnectRequest, ConnectResponse, ErrorCode, EventKind, OpResult, PING_XID, Request, Response, SetData, Stat,
    WatchedPath, WriteOp, frame, response,
};
use lockkeeper_client::{Config, End, RequestError, RequestId, Session, SessionEvent};

#[path = "machine/patience.rs"]
mod patience;

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

/// The answer to a probe's write.
fn checked() -> Response {
    Response::Multi(vec![OpResult::Checked])
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

/// A server closes the connection on a request that is larger than its limit.
#[test]
fn a_request_on_which_three_servers_in_a_row_close_the_connection_is_refused() {
    let write = |bytes| {
        let (path, data) = ("/a".to_owned(), Some(vec![7; bytes].into()));
        Request::Multi(vec![WriteOp::SetData(SetData { path, data, version: -1 })])
    };
    let lost = Some(RequestError::ConnectionLoss);
    let mut stage = Stage::new();
    let mut refused = Vec::new();
    for attempt in 0..8 {
        stage.accept();
        // Small requests are answered meanwhile.
        let small = stage.ask(write(10));
        let (xid, _) = stage.requests().pop().unwrap();
        stage.reply(xid, 6, Ok(Response::Multi(Vec::new())));
        let large = stage.ask(write(20_000 + attempt % 2));
        let is_sent = !stage.requests().is_empty();
        if is_sent {
            stage.cut();
        }
        let results = stage.results();
        assert_eq!(results[0], (small, None));
        assert_eq!(results[1].0, large);
        match is_sent {
            true => assert_eq!(results[1].1, lost),
            false => refused.push((attempt, results[1].1.as_ref().unwrap().to_string())),
        }
        if !is_sent {
            stage.cut();
        }
    }
    let attempts: Vec<_> = refused.iter().map(|(attempt, _)| *attempt).collect();
    assert_eq!(attempts, [3, 7], "{refused:?}");
    assert!(refused[0].1.contains("on a request of 20") && refused[0].1.contains("jute.maxbuffer"), "{refused:?}");
}

/// Other requests end with the connections as well, but the servers answer those of their size in between.
#[test]
fn requests_that_the_servers_answer_in_between_are_not_refused() {
    let mut stage = Stage::new();
    for attempt in 0..9 {
        stage.accept();
        let (path, data) = ("/a".to_owned(), Some(vec![7; 20_000].into()));
        let large = stage.ask(Request::Multi(vec![WriteOp::SetData(SetData { path, data, version: -1 })]));
        let (xid, _) = stage.requests().pop().expect("it is sent");
        if attempt % 3 == 2 {
            stage.reply(xid, 6, Ok(Response::Multi(Vec::new())));
            assert_eq!(stage.results().pop(), Some((large, None)));
        }
        stage.cut();
    }
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
    // A server that examines requests has proved itself. One with nothing but errors of its own has not.
    for (answer, quickly) in [
        (Err(ErrorCode::SystemError), false),
        (Err(ErrorCode::NoNode), true),
        (Ok(Response::Path("/".to_owned())), true),
    ] {
        stage.accept();
        stage.ask(sync());
        let xid = stage.requests()[0].0;
        stage.reply(xid, 6, answer.clone());
        let cut = stage.now;
        stage.cut();
        while stage.session.transport().is_none() {
            stage.now = stage.session.deadline().unwrap();
            stage.session.timeout(stage.now);
        }
        let pause = stage.now - cut;
        assert_eq!(pause <= Duration::from_millis(50), quickly, "{pause:?} after {answer:?}");
    }
}

/// The server says so to every client without SASL, before anything else, and closes the connection.
#[test]
fn a_server_that_requires_authentication_ends_the_session() {
    for ping in [false, true] {
        let mut stage = Stage::new();
        stage.accept();
        let ids = [sync(), sync()].map(|request| stage.ask(request));
        let xid = if ping { PING_XID } else { stage.requests()[0].0 };
        stage.reply(xid, 0, Err(ErrorCode::SessionClosedRequireSaslAuth));
        let over = Some(RequestError::SessionOver(End::AuthRequired));
        assert_eq!(stage.results(), ids.map(|id| (id, over)));
        assert_eq!((stage.session.end(), stage.session.transport()), (Some(End::AuthRequired), None));
    }
}

/// With `zookeeper.enableEagerACLCheck`, a server refuses a write itself while an earlier one is under way.
#[test]
fn a_refusal_ahead_of_its_turn_is_reported_in_its_turn() {
    let lost = Some(RequestError::ConnectionLoss);
    let refused = Some(RequestError::Refused(ErrorCode::NoAuth));
    for cut in [false, true] {
        let mut stage = Stage::new();
        stage.accept();
        let ids = [sync(), sync(), sync(), sync()].map(|request| stage.ask(request));
        let xids: Vec<i32> = stage.requests().iter().map(|(xid, _)| *xid).collect();
        for early in [2, 1] {
            stage.reply(xids[early], 0, Err(ErrorCode::NoAuth));
        }
        assert!(stage.session.is_connected() && stage.results().is_empty());
        let results = if cut {
            stage.cut();
            [lost, refused, refused, lost]
        } else {
            stage.reply(xids[0], 6, Ok(Response::Path("/".to_owned())));
            stage.reply(xids[3], 6, Ok(Response::Path("/".to_owned())));
            [None, refused, refused, None]
        };
        assert_eq!(stage.results(), ids.into_iter().zip(results).collect::<Vec<_>>());
    }
    // An answer of the leader that is not in turn shows that the connection is useless.
    let mut stage = Stage::new();
    stage.accept();
    stage.ask(sync());
    stage.ask(sync());
    let xid = stage.requests()[1].0;
    stage.reply(xid, 6, Err(ErrorCode::NoAuth));
    assert!(!stage.session.is_connected());
}

/// The process was stopped for a while, so it has sent no ping: it asks the server before it calls it silent.
#[test]
fn a_stalled_client_asks_its_server_before_it_leaves_it() {
    for answers in [true, false] {
        let mut stage = Stage::new();
        stage.accept();
        stage.now += TIMEOUT * 4 / 5;
        stage.session.timeout(stage.now);
        assert_eq!(stage.frames().len(), 1, "a ping");
        let (asked, mut bytes) = (stage.now, BytesMut::new());
        if answers {
            response::encode(&mut bytes, PING_XID, 0, &Ok(Response::Done));
            stage.session.received(&bytes, stage.now);
            assert_eq!(stage.session.deadline(), Some(asked + TIMEOUT / 10), "the next ping");
        } else {
            while stage.session.transport().is_some() {
                stage.now = stage.session.deadline().unwrap();
                stage.session.timeout(stage.now);
            }
            assert_eq!(stage.now - asked, TIMEOUT * 3 / 10, "as long as every other request may take");
        }
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
        assert!(!stage.session.is_connected(), "the server has not accepted the credential");
    }
    let mut accepted = BytesMut::new();
    response::encode_auth(&mut accepted, lockkeeper_wire::AUTH_XID, Ok(()));
    stage.session.received(&accepted, stage.now);
    assert!(stage.session.is_connected());
}

#[test]
fn the_pause_after_a_round_can_be_changed() {
    let mut stage = Stage::new();
    for pause in [Duration::ZERO, Duration::from_secs(7)] {
        stage.cut();
        assert!(stage.events().contains(&SessionEvent::Paused));
        stage.session.pause_for(pause, stage.now);
        assert_eq!((stage.session.transport(), stage.session.deadline()), (None, Some(stage.now + pause)));
        stage.now += pause;
        stage.session.timeout(stage.now);
        assert!(stage.session.transport().is_some());
    }
}

/// Otherwise the server would keep a session that has no owner until it expires.
#[test]
fn a_session_that_a_server_is_opening_is_closed_there() {
    let mut stage = Stage::new();
    stage.open();
    stage.session.close(stage.now);
    assert_eq!(stage.session.end(), None);
    stage.answer_connect(ID, 10_000);
    let requests: Vec<_> = stage.requests().into_iter().map(|(_, request)| request).collect();
    assert_eq!(requests, [Request::CloseSession]);
    // No server has opened it.
    let mut stage = Stage::new();
    stage.open();
    stage.session.close(stage.now);
    stage.cut();
    assert_eq!(stage.session.end(), Some(End::Closed));
}

/// Goes through rounds in which every server closes the connection after the connect request, until a probe begins.
/// Answers the probe's connect request. Returns the xid of the probe's write.
fn probe(stage: &mut Stage) -> i32 {
    for _ in 0..1_000 {
        let connect = stage.open();
        if connect.session == 0 {
            assert_eq!((connect.last_zxid_seen, &connect.password[..]), (0, &[0; 16][..]));
            stage.answer_connect(ID + 5, 10_000);
            let requests = stage.requests();
            assert!(
                matches!(&requests[..], [(_, Request::Multi(ops))] if matches!(ops[..], [WriteOp::Check(_)])),
                "{requests:?}"
            );
            return requests[0].0;
        }
        stage.cut();
    }
    panic!("no probe");
}

/// Answers the close of the probe's session.
fn end_probe(stage: &mut Stage) {
    let requests = stage.requests();
    assert!(matches!(requests[..], [(_, Request::CloseSession)]), "{requests:?}");
    stage.reply(requests[0].0, 3, Ok(Response::Done));
}

/// A session with these servers that has seen transaction 50 and then lost its connection.
fn refused(servers: usize) -> Stage {
    let mut stage = Stage::new();
    stage.session = Session::new(Config::new(TIMEOUT), servers, 1, stage.now);
    stage.accept();
    stage.watch("/a", 50);
    stage.cut();
    stage.events();
    stage
}

#[test]
fn a_session_whose_history_the_servers_have_lost_is_over() {
    let mut stage = refused(1);
    let lost = stage.now;
    let waits = stage.ask(sync());
    let xid = probe(&mut stage);
    assert!(stage.now >= lost + TIMEOUT, "it waits for a server for a session timeout: {:?}", stage.now - lost);
    stage.reply(xid, 2, Ok(checked()));
    assert_eq!(stage.session.end(), None, "the probe's session is closed first");
    end_probe(&mut stage);
    assert_eq!(stage.session.end(), Some(End::Expired));
    assert_eq!(stage.results(), [(waits, Some(RequestError::SessionOver(End::Expired)))]);
}

#[test]
fn a_session_whose_servers_are_only_behind_lives_on() {
    let mut stage = refused(1);
    for _ in 0..3 {
        let begin = stage.now;
        let xid = probe(&mut stage);
        assert!(stage.now >= begin + TIMEOUT, "a probe opens a session, so the next one waits");
        stage.reply(xid, 51, Ok(checked()));
        end_probe(&mut stage);
        assert_eq!(stage.session.end(), None);
    }
    assert_eq!(stage.accept().last_zxid_seen, 50, "a probe's transactions are not the session's");
    assert_eq!(stage.session.id(), ID);
    assert!(matches!(&stage.requests()[..], [(_, Request::SetWatches(packet))] if packet.relative_zxid == 50));
}

#[test]
fn a_probe_follows_only_if_every_server_has_refused_the_session() {
    let mut stage = refused(2);
    let mut refusals = 0;
    while stage.now < Duration::from_secs(100) {
        let connect = stage.open();
        assert_ne!(connect.session, 0, "a probe");
        if stage.session.transport().unwrap().server == 0 {
            refusals += 1;
            stage.cut();
        } else {
            // This server is silent.
            stage.now = stage.session.deadline().unwrap();
            stage.session.timeout(stage.now);
        }
    }
    assert!(refusals > 5, "{refusals}");
    probe(&mut stage);
}

#[test]
fn a_probe_that_is_cut_or_refused_proves_nothing_and_the_next_one_asks_another_server() {
    let mut stage = refused(2);
    let mut asked = Vec::new();
    for end in 0..5 {
        let xid = probe(&mut stage);
        asked.push(stage.session.transport().unwrap().server);
        match end {
            // So does a server by itself that refuses a write for which the client has no right.
            4 => {
                stage.reply(xid, 0, Err(ErrorCode::NoAuth));
                end_probe(&mut stage);
            }
            0 => stage.cut(),
            1 => stage.session.timeout(stage.session.deadline().unwrap()),
            2 => {
                // Such an answer is not ordered by the leader, and its zxid means nothing.
                stage.reply(xid, 0, Err(ErrorCode::SessionClosedRequireSaslAuth));
                end_probe(&mut stage);
            }
            _ => {
                stage.reply(xid, 2, Err(ErrorCode::SystemError));
                stage.cut();
            }
        }
        assert_eq!(stage.session.end(), None, "{end}");
    }
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), 2, "every probe asked the same server");
    // A verdict counts even if the answer to the close is lost.
    let xid = probe(&mut stage);
    stage.reply(xid, 2, Ok(Response::Multi(vec![OpResult::Failed(ErrorCode::NoAuth)])));
    stage.cut();
    assert_eq!(stage.session.end(), Some(End::Expired));
}

#[test]
fn a_probe_presents_the_credentials() {
    let mut stage =
        Stage::with(Config { credentials: vec![("digest".to_owned(), b"u:p".to_vec())], ..Config::new(TIMEOUT) });
    let mut accepted = BytesMut::new();
    response::encode_auth(&mut accepted, lockkeeper_wire::AUTH_XID, Ok(()));
    stage.accept();
    stage.session.received(&accepted, stage.now);
    stage.frames();
    stage.watch("/a", 50);
    stage.cut();
    while stage.open().session != 0 {
        stage.cut();
    }
    stage.answer_connect(ID + 5, 10_000);
    let sent = stage.frames();
    assert!(matches!(request::decode(&sent[0]), Ok(Packet::Auth { .. })) && sent.len() == 1);
    stage.session.received(&accepted, stage.now);
    let xid = stage.requests()[0].0;
    stage.reply(xid, 50, Ok(checked()));
    end_probe(&mut stage);
    assert_eq!(stage.session.end(), Some(End::Expired), "the write is not newer than what the session saw");
}

#[test]
fn a_watch_is_not_removed_at_the_server_while_another_request_may_leave_it_again() {
    let read = || Request::GetData(WatchedPath { path: "/a".to_owned(), watch: true });
    let mut stage = Stage::new();
    stage.accept();
    let first = stage.watch("/a", 1);
    let second = stage.ask(read());
    let xid = stage.requests()[0].0;
    stage.session.unwatch(first, stage.now);
    assert_eq!(stage.requests(), []);
    stage.reply(xid, 2, Ok(Response::Data { data: None, stat: Stat::default() }));
    stage.session.unwatch(second, stage.now);
    assert!(matches!(&stage.requests()[..], [(_, Request::RemoveWatches { path, .. })] if path == "/a"));
    // The removal is not answered yet.
    stage.ask(sync());
    stage.requests();
    stage.session.unwatch(second, stage.now);
    assert_eq!(stage.requests(), [], "it is removed once");
}

#[test]
fn a_persistent_watch_that_ends_before_its_answer_is_removed_at_the_server() {
    let add = |path: &str| Request::AddWatch { path: path.to_owned(), recursive: false };
    let mut stage = Stage::new();
    stage.accept();
    stage.ask(sync());
    let ids = ["/a", "/b", "/c"].map(|path| stage.ask(add(path)));
    stage.requests();
    for (id, path) in ids.into_iter().zip(["/a", "/b", "/c"]).rev() {
        stage.session.unwatch(id, stage.now);
        let removed = stage.requests();
        assert!(
            matches!(&removed[..], [(_, Request::RemoveWatches { path: gone, .. })] if gone == path),
            "{removed:?}"
        );
    }
}
