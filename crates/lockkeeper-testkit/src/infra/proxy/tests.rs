//! Each fault, seen from both ends, with a server that answers by a script.

use std::io::ErrorKind;
use std::sync::Mutex;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::*;

/// A path on which the server sends a watch event before it answers.
const WATCHED: &str = "/watched";
/// A path on which the server never answers.
const UNANSWERED: &str = "/unanswered";

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_i32(payload.len() as i32);
    frame.put_slice(payload);
    frame.to_vec()
}

fn request(xid: i32, op: OpCode, path: &str) -> Vec<u8> {
    let mut payload = BytesMut::new();
    payload.put_i32(xid);
    payload.put_i32(op.as_i32());
    if op == OpCode::Multi {
        payload.put_slice(&[0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff]);
    }
    payload.put_i32(path.len() as i32);
    payload.put_slice(path.as_bytes());
    payload.put_slice(b"more that is not decoded");
    frame(&payload)
}

fn reply(xid: i32, zxid: i64) -> Vec<u8> {
    let mut payload = BytesMut::new();
    payload.put_i32(xid);
    payload.put_i64(zxid);
    payload.put_i32(0);
    frame(&payload)
}

fn event(path: &str) -> Vec<u8> {
    let mut payload = BytesMut::new();
    payload.put_i32(-1);
    payload.put_i64(-1);
    payload.put_i32(0);
    payload.put_i32(2);
    payload.put_i32(3);
    payload.put_i32(path.len() as i32);
    payload.put_slice(path.as_bytes());
    frame(&payload)
}

async fn read_frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut payload = vec![0; stream.read_u32().await? as usize];
    stream.read_exact(&mut payload).await?;
    Ok(payload)
}

/// A server that answers everything immediately with its own growing zxid, and records the requests.
struct Server {
    addr: SocketAddr,
    asked: Arc<Mutex<Vec<(i32, OpCode)>>>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn({
            let asked = Arc::clone(&asked);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(Self::serve(stream, Arc::clone(&asked)));
                }
            }
        });
        Self { addr, asked, task }
    }

    async fn serve(mut stream: TcpStream, asked: Arc<Mutex<Vec<(i32, OpCode)>>>) -> std::io::Result<()> {
        let mut word = [0; 4];
        if stream.peek(&mut word).await? == 4 && &word == b"ruok" {
            stream.read_exact(&mut word).await?;
            return stream.write_all(b"imok").await;
        }
        read_frame(&mut stream).await?;
        stream.write_all(&frame(b"welcome")).await?;
        let mut zxid = 0;
        loop {
            let payload = read_frame(&mut stream).await?;
            let mut body = &payload[..];
            let (xid, op) = (body.get_i32(), OpCode::from_i32(body.get_i32()).unwrap());
            let length = body.get_i32() as usize;
            let path = body.get(..length).unwrap_or_default();
            asked.lock().unwrap().push((xid, op));
            zxid += 1;
            if path == WATCHED.as_bytes() {
                stream.write_all(&event(WATCHED)).await?;
            }
            if path != UNANSWERED.as_bytes() {
                stream.write_all(&reply(xid, zxid)).await?;
            }
        }
    }

    fn asked(&self) -> Vec<(i32, OpCode)> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Client(TcpStream);

impl Client {
    /// Opens a connection and a session.
    async fn open(proxy: &Proxy) -> Self {
        let mut client = Self(TcpStream::connect(proxy.addr()).await.unwrap());
        client.0.write_all(&frame(b"hello")).await.unwrap();
        assert_eq!(read_frame(&mut client.0).await.unwrap(), b"welcome");
        client
    }

    async fn send(&mut self, xid: i32, op: OpCode, path: &str) {
        self.0.write_all(&request(xid, op, path)).await.unwrap();
    }

    /// Reads the next frame; returns its xid.
    async fn xid(&mut self) -> i32 {
        (&read_frame(&mut self.0).await.unwrap()[..]).get_i32()
    }

    /// Reads the rest; returns it, and how the connection ended.
    async fn rest(&mut self) -> (Vec<u8>, Option<ErrorKind>) {
        let mut rest = Vec::new();
        let error = self.0.read_to_end(&mut rest).await.err();
        (rest, error.map(|error| error.kind()))
    }
}

/// Returns how a connection ends that the proxy refuses. An immediate reset is reported by connect, a later one by the
/// first read; both happen.
async fn turned_away(proxy: &Proxy) -> ErrorKind {
    match TcpStream::connect(proxy.addr()).await {
        Ok(stream) => Client(stream).rest().await.1.expect("no server answers"),
        Err(error) => error.kind(),
    }
}

async fn world() -> (Server, Proxy) {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr).await;
    (server, proxy)
}

#[tokio::test]
async fn traffic_passes_unchanged_and_is_counted() {
    let (server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    // Two requests in one write, as from a client that does not wait: the proxy must separate them.
    let both = [request(1, OpCode::Create, "/a"), request(2, OpCode::Multi, "/b")].concat();
    client.0.write_all(&both).await.unwrap();
    for (xid, zxid) in [(1, 1), (2, 2)] {
        assert_eq!(frame(&read_frame(&mut client.0).await.unwrap()), reply(xid, zxid));
    }
    assert_eq!(server.asked(), [(1, OpCode::Create), (2, OpCode::Multi)]);

    let counts = proxy.wait_until(|counts| counts.delivered.of(OpCode::Multi) == 1).await;
    assert_eq!((counts.requested.total(), counts.forwarded.total()), (3, 3), "connect, create, multi");
    assert_eq!(counts.delivered.of_any(OpCode::CREATES), 1);
    assert_eq!((counts.accepted, counts.open), (1, 1));
    let seen = proxy.records().into_iter().find_map(|record| match record.what {
        What::Request { op: OpCode::Multi, path, .. } => path,
        _ => None,
    });
    assert_eq!(seen.as_deref(), Some("/b"), "a multi is about its first operation's path");
    let fresh = proxy.counts().since(&counts);
    assert_eq!((fresh.requested.total(), fresh.open), (0, 1));
}

#[tokio::test]
async fn a_request_cut_off_never_reaches_the_server() {
    let (server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    let rule = proxy.on(OpCode::Create).cut_before_request();
    client.send(1, OpCode::Exists, "/a").await;
    assert_eq!(client.xid().await, 1, "a cut also loses what is still on its way, so this comes first");
    client.send(2, OpCode::Create, "/a").await;
    assert_eq!(client.rest().await, (vec![], None));
    rule.fired().await;
    assert_eq!(server.asked(), [(1, OpCode::Exists)]);
    let mut again = Client::open(&proxy).await;
    again.send(3, OpCode::Create, "/a").await;
    assert_eq!(again.xid().await, 3, "a rule fires once");
}

#[tokio::test]
async fn a_request_torn_apart_never_reaches_the_server() {
    let (server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    let _rule = proxy.on(OpCode::Create).cut_inside_request(usize::MAX);
    client.send(1, OpCode::Create, "/a").await;
    assert_eq!(client.rest().await, (vec![], None));
    proxy.wait_until(|counts| counts.open == 0).await;
    assert_eq!(server.asked(), []);
    let fate = proxy.wait_for(|record| matches!(record.what, What::Request { xid: 1, .. })).await;
    assert!(matches!(fate.what, What::Request { fate: Fate::CutOff, .. }), "{fate:?}");
}

#[tokio::test]
async fn a_lost_reply_means_the_request_took_effect() {
    let (server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    let rule = proxy.on_any(OpCode::CREATES).by(Cut::Reset).cut_before_reply();
    client.send(1, OpCode::Create2, "/a").await;
    assert_eq!(client.rest().await, (vec![], Some(ErrorKind::ConnectionReset)));
    rule.fired().await;
    assert_eq!(server.asked(), [(1, OpCode::Create2)]);
    let counts = proxy.counts();
    assert_eq!(counts.answered.of(OpCode::Create2), 1);
    assert_eq!(counts.delivered.of(OpCode::Create2), 0);
}

#[tokio::test]
async fn a_cut_after_the_request_lets_it_take_effect() {
    for delay in [Duration::ZERO, Duration::from_millis(20)] {
        let (server, proxy) = world().await;
        let mut client = Client::open(&proxy).await;
        let rule = proxy.on(OpCode::Create).by(Cut::Reset).cut_after_request(delay);
        client.send(1, OpCode::Create, UNANSWERED).await;
        assert_eq!(client.rest().await, (vec![], Some(ErrorKind::ConnectionReset)));
        rule.fired().await;
        // The server may read it after the connection has ended.
        while server.asked() != [(1, OpCode::Create)] {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn the_nth_request_on_a_path_is_the_one_that_is_hit() {
    let (_server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    let _rule = proxy.on(OpCode::Delete).path("/locks/").nth(2).cut_after_reply();
    for (xid, path) in [(1, "/other"), (2, "/locks/a"), (3, "/other"), (4, "/locks/b"), (5, "/locks/c")] {
        client.send(xid, OpCode::Delete, path).await;
    }
    for xid in 1..=4 {
        assert_eq!(client.xid().await, xid);
    }
    assert_eq!(client.rest().await.0, b"");
}

#[tokio::test]
async fn a_rule_for_every_request_hits_again() {
    let (_server, proxy) = world().await;
    let _rule = proxy.on(OpCode::CreateSession).nth(2).every().cut_before_reply();
    Client::open(&proxy).await;
    for _ in 0..3 {
        let mut client = Client(TcpStream::connect(proxy.addr()).await.unwrap());
        client.0.write_all(&frame(b"hello")).await.unwrap();
        assert_eq!(client.rest().await, (vec![], None));
    }
    proxy.heal();
    Client::open(&proxy).await;
}

#[tokio::test]
async fn a_reply_can_be_torn_apart_or_replaced() {
    let (_server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    let garbage = proxy.on(OpCode::Exists).replace_reply(&b"\0\0\0\x02hi"[..]);
    let torn = proxy.on(OpCode::Create).cut_inside_reply(6);
    client.send(1, OpCode::Exists, "/a").await;
    assert_eq!(read_frame(&mut client.0).await.unwrap(), b"hi");
    garbage.fired().await;
    client.send(2, OpCode::Create, "/a").await;
    assert_eq!(client.rest().await, (reply(2, 2)[..6].to_vec(), None));
    torn.fired().await;
}

#[tokio::test]
async fn a_held_reply_holds_what_is_behind_it_and_nothing_else() {
    let (server, proxy) = world().await;
    let (mut client, mut other) = (Client::open(&proxy).await, Client::open(&proxy).await);
    let hold = proxy.on(OpCode::Create).hold_reply();
    client.send(1, OpCode::Create, "/a").await;
    hold.caught().await;
    client.send(2, OpCode::GetChildren, "/").await;
    other.send(3, OpCode::Create, "/b").await;
    assert_eq!(other.xid().await, 3);
    proxy.wait_until(|counts| counts.forwarded.of(OpCode::GetChildren) == 1).await;
    assert_eq!(proxy.counts().delivered.of(OpCode::GetChildren), 0);
    hold.release();
    assert_eq!((client.xid().await, client.xid().await), (1, 2));
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn a_held_request_waits_at_the_proxy() {
    let (server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    let hold = proxy.on(OpCode::Delete).hold_request();
    client.send(1, OpCode::Delete, "/a").await;
    hold.caught().await;
    assert_eq!(server.asked(), []);
    drop(hold);
    assert_eq!(client.xid().await, 1);
}

#[tokio::test]
async fn held_watch_events_come_before_what_follows_them() {
    let (_server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    let hold = proxy.hold_watch_events();
    client.send(1, OpCode::GetData, WATCHED).await;
    hold.caught().await;
    assert_eq!(proxy.counts().watch_events, 0);
    hold.release();
    assert_eq!((client.xid().await, client.xid().await), (-1, 1));
    let record = proxy.wait_for(|record| matches!(record.what, What::Watch { .. })).await;
    assert_eq!(record.what, What::Watch { event: 2, path: Some(WATCHED.into()), fate: Fate::Passed });
    let _rule = proxy.on_watch_event().cut_before_reply();
    client.send(2, OpCode::GetData, WATCHED).await;
    assert_eq!(client.rest().await.0, b"");
}

#[tokio::test]
async fn a_black_hole_is_silent_until_it_is_healed_by_a_reset() {
    let (server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    let mut untouched = Client::open(&proxy).await;
    proxy.black_hole();
    client.send(1, OpCode::Create, "/a").await;
    let mut newcomer = TcpStream::connect(proxy.addr()).await.unwrap();
    newcomer.write_all(&frame(b"hello")).await.unwrap();
    proxy.wait_until(|counts| counts.swallowed.total() == 2).await;
    assert_eq!(client.0.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(newcomer.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(server.asked(), []);
    proxy.heal();
    assert_eq!(client.rest().await, (vec![], Some(ErrorKind::ConnectionReset)));
    assert_eq!(Client(newcomer).rest().await, (vec![], Some(ErrorKind::ConnectionReset)));
    untouched.send(2, OpCode::Exists, "/a").await;
    assert_eq!(untouched.xid().await, 2, "a connection that lost nothing goes on");
}

#[tokio::test]
async fn a_stall_loses_nothing() {
    let (server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    proxy.stall_direction(Direction::ToClient);
    client.send(1, OpCode::Create, "/a").await;
    proxy.wait_until(|counts| counts.answered.of(OpCode::Create) == 1).await;
    assert_eq!(server.asked().len(), 1);
    proxy.stall();
    client.send(2, OpCode::Delete, "/a").await;
    proxy.wait_until(|counts| counts.requested.of(OpCode::Delete) == 1).await;
    assert_eq!(server.asked().len(), 1);
    assert_eq!(proxy.counts().delivered.of(OpCode::Create), 0);
    proxy.heal();
    assert_eq!((client.xid().await, client.xid().await), (1, 2));
}

#[tokio::test]
async fn cuts_are_seen_as_what_they_are_and_refusal_spares_the_open() {
    let (_server, proxy) = world().await;
    for (cut, seen) in [(Cut::Fin, None), (Cut::Reset, Some(ErrorKind::ConnectionReset))] {
        let mut client = Client::open(&proxy).await;
        proxy.cut(cut);
        assert_eq!(client.rest().await, (vec![], seen));
    }
    let mut open = Client::open(&proxy).await;
    proxy.refuse();
    assert_eq!(turned_away(&proxy).await, ErrorKind::ConnectionReset);
    proxy.wait_until(|counts| counts.refused == 1).await;
    open.send(1, OpCode::Exists, "/a").await;
    assert_eq!(open.xid().await, 1);
    proxy.heal();
    Client::open(&proxy).await;
}

#[tokio::test]
async fn a_reply_out_of_turn_is_placed_by_its_number() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for answer in [vec![], vec![], [frame(b"welcome"), reply(-2, 0), reply(7, 1)].concat()] {
            read_frame(&mut stream).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    let _rule = proxy.on(OpCode::Create).cut_before_reply();
    let mut client = Client(TcpStream::connect(proxy.addr()).await.unwrap());
    let all = [frame(b"hello"), request(7, OpCode::Create, "/a"), request(-2, OpCode::Ping, "")].concat();
    client.0.write_all(&all).await.unwrap();
    assert_eq!(read_frame(&mut client.0).await.unwrap(), b"welcome");
    assert_eq!(client.xid().await, -2, "the ping's reply is not taken for the create's");
    assert_eq!(client.rest().await.0, b"");
    server.await.unwrap();
}

#[tokio::test]
async fn words_and_other_protocols_pass_raw() {
    let (_server, proxy) = world().await;
    let mut client = Client(TcpStream::connect(proxy.addr()).await.unwrap());
    client.0.write_all(b"ruok").await.unwrap();
    assert_eq!(client.rest().await, (b"imok".to_vec(), None));
    proxy.wait_for(|record| matches!(record.what, What::Raw { direction: Direction::ToClient, length: 4, .. })).await;
}

#[tokio::test]
async fn a_dead_server_is_passed_on_and_another_can_take_its_place() {
    let (server, proxy) = world().await;
    // Bound but not listening: it refuses, and no other test's server can take the port.
    let dead = TcpSocket::new_v4().unwrap();
    dead.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    proxy.set_upstream(dead.local_addr().unwrap());
    assert_eq!(turned_away(&proxy).await, ErrorKind::ConnectionReset);
    proxy.set_upstream(server.addr);
    Client::open(&proxy).await;
}

/// A control that let one more frame pass would make every test that uses it unreliable.
#[tokio::test]
async fn nothing_slips_through_once_a_control_has_returned() {
    let (_server, proxy) = world().await;
    for round in 0..if crate::is_deep() { 50 } else { 12 } {
        let (mut from, mut to) = Client::open(&proxy).await.0.into_split();
        let drain = tokio::spawn(async move { tokio::io::copy(&mut from, &mut tokio::io::sink()).await });
        let flood = tokio::spawn(async move {
            let requests: Vec<u8> = (1..100).flat_map(|xid| request(xid, OpCode::Exists, "/a")).collect();
            while to.write_all(&requests).await.is_ok() {}
        });
        let start = proxy.counts();
        proxy.wait_until(|counts| counts.since(&start).delivered.total() > 10 * (round % 7)).await;
        match round % 3 {
            0 => proxy.black_hole(),
            1 => proxy.stall(),
            _ => proxy.cut(Cut::Fin),
        }
        let before = proxy.counts();
        match round % 3 {
            0 => proxy.wait_until(|counts| counts.since(&before).requested.total() > 10).await,
            1 => proxy.wait_until(|counts| counts.requested.total() > before.forwarded.total()).await,
            _ => proxy.wait_until(|counts| counts.open == 0).await,
        };
        let after = proxy.counts();
        assert_eq!((after.forwarded, after.delivered), (before.forwarded, before.delivered), "round {round}");
        proxy.heal();
        proxy.cut(Cut::Reset);
        proxy.wait_until(|counts| counts.open == 0).await;
        flood.await.unwrap();
        drop(drain.await.unwrap());
    }
}

#[tokio::test]
async fn a_dropped_proxy_closes_everything() {
    let (_server, proxy) = world().await;
    let mut client = Client::open(&proxy).await;
    drop(proxy);
    // Another test may have its port already; only its connections can be checked.
    client.rest().await;
}
