use std::collections::HashMap;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use lockkeeper_client::RequestError;
use lockkeeper_client::wire::ErrorCode;
use lockkeeper_server::{Config, Server};
use lockkeeper_testkit::proxy::{Cut, OpCode, Proxy};

use super::fault::{connection_lives, fault};
use super::place::{Locate, Located, Locating};
use super::*;
use crate::ensemble::servers::parse;
use crate::ensemble::{Fired, NodeKind, TxnStep, Watcher};
use crate::error::SessionError;

/// If one of these counted as a refusal of a delete, the node would stay at the head of the queue as long as the
/// session lives.
#[test]
fn an_error_of_a_server_in_trouble_is_not_a_refusal() {
    for code in [
        ErrorCode::MarshallingError,
        ErrorCode::SessionMoved,
        ErrorCode::NotReadOnly,
        ErrorCode::ThrottledOp,
        ErrorCode::SystemError,
        ErrorCode::RuntimeInconsistency,
        ErrorCode::OperationTimeout,
    ] {
        let error = RequestError::Refused(code);
        assert_eq!(fault(error), OpError::ConnectionLoss, "{error}");
        assert!(connection_lives(error), "{error}");
    }
    assert!(!connection_lives(RequestError::ConnectionLoss));
    assert!(matches!(fault(RequestError::Refused(ErrorCode::NoAuth)), OpError::Refused(_)));
}

/// A server that examined the request would refuse it again, and the error says why.
#[test]
fn a_refusal_says_why_and_an_end_is_the_end_of_the_session() {
    for (code, reason) in [
        (ErrorCode::NoAuth, "not authorized"),
        (ErrorCode::InvalidAcl, "invalid access list"),
        (ErrorCode::NoChildrenForEphemerals, "an ephemeral node cannot have children"),
        (ErrorCode::NotEmpty, "the node has children"),
        (ErrorCode::QuotaExceeded, "the quota of the path is exceeded"),
        (ErrorCode::BadArguments, "invalid arguments"),
        (
            ErrorCode::EphemeralOnLocalSession,
            "a local session cannot have ephemeral nodes; set localSessionsUpgradingEnabled=true on the servers",
        ),
    ] {
        assert_eq!(fault(RequestError::Refused(code)), OpError::Refused(reason.to_owned()), "{code:?}");
    }
    for (code, meaning) in [
        (ErrorCode::NoNode, OpError::NoNode),
        (ErrorCode::NodeExists, OpError::NodeExists),
        (ErrorCode::BadVersion, OpError::BadVersion),
        (ErrorCode::SessionExpired, OpError::SessionOver),
        (ErrorCode::AuthFailed, OpError::SessionOver),
        (ErrorCode::SessionClosedRequireSaslAuth, OpError::SessionOver),
        (ErrorCode::Unimplemented, OpError::Unsupported),
    ] {
        assert_eq!(fault(RequestError::Refused(code)), meaning, "{code:?}");
    }
}

/// The answer about the chroot decides, not the first connection.
#[tokio::test]
async fn a_chroot_is_looked_for_until_there_is_an_answer() {
    let server = Server::start(Config::default()).await.unwrap();
    let other = open(&server.connect_string()).await;
    other.ensemble.create("/there", Vec::new(), NodeKind::Persistent).await.unwrap();
    for chroot in ["/there", "/missing"] {
        let proxy = Proxy::start(server.addr()).await;
        let cut = proxy.on(OpCode::Exists).cut_before_reply();
        let servers = format!("{}{chroot}", proxy.connect_string());
        let opened = network(&servers, Duration::from_secs(40)).open(Duration::from_secs(30)).await;
        assert!(cut.has_fired());
        match opened {
            Ok(_) => assert_eq!(chroot, "/there"),
            Err(SessionError::NoChroot { chroot: named, .. }) => {
                assert_eq!((chroot, named.as_str()), ("/missing", chroot))
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Where a search for a server ends.
struct Found(Result<&'static str, SessionError>);

impl Locate for Found {
    fn locate(self: Arc<Self>) -> Locating {
        let Found(found) = self.as_ref();
        let located = found.clone().map(|servers| Located { servers: parse(servers).unwrap() });
        std::future::ready(located).boxed()
    }
}

/// More tries would find the same.
#[tokio::test]
async fn a_search_that_fails_ends_the_attempt_to_connect() {
    let failure = SessionError::AuthFailed { servers: "this one".to_owned() };
    let mut network = network("127.0.0.1:2", Duration::from_secs(40));
    network.locate = Some(Arc::new(Found(Err(failure.clone()))));
    let error = network.open(Duration::from_secs(30)).await.err().unwrap();
    assert_eq!(error.to_string(), failure.to_string());
    // A server that was found and does not answer is tried again, and is called as the user calls it.
    network.locate = Some(Arc::new(Found(Ok("127.0.0.1:1"))));
    match network.open(Duration::from_millis(300)).await.err().unwrap() {
        SessionError::Unreachable { detail, .. } => assert!(detail.contains("127.0.0.1:2 "), "{detail}"),
        error => panic!("{error:?}"),
    }
}

/// Returns the address of a port for TLS: it answers every client without TLS with an alert.
fn port_for_tls() -> String {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map(Result::unwrap) {
            if connection.read(&mut [0; 64]).is_ok() {
                _ = connection.write_all(&[0x15, 3, 3, 0, 2, 2, 50]);
            }
        }
    });
    address
}

/// Returns the address of a port for TLS that answers as OpenSSL does: it waits for the head of a record, ends a connection whose
/// first bytes are of no record, and answers a handshake that it does not understand with an alert.
fn port_of_openssl() -> String {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map(Result::unwrap) {
            std::thread::spawn(move || {
                let mut head = [0; 5];
                if connection.read_exact(&mut head).is_ok() && head.starts_with(&[0x16, 3]) {
                    _ = connection.write_all(&[0x15, 3, 3, 0, 2, 2, 50]);
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_port_for_tls_that_does_not_answer_the_question_about_its_state_is_reported_as_one() {
    let network = network(&port_of_openssl(), Duration::from_secs(40));
    match network.open(Duration::from_secs(2)).await.err().unwrap() {
        SessionError::Unreachable { detail, .. } => {
            assert_eq!(TlsProblem::in_text(&detail), Some(TlsProblem::PortWithTls), "{detail}");
        }
        error => panic!("{error:?}"),
    }
}

/// A server that takes no connection now may take one later, and an operator who renews certificates replaces each one in turn.
#[tokio::test]
async fn a_lasting_mistake_about_tls_on_every_server_ends_only_the_attempt_to_open_the_first_session() {
    let waited = async |servers: &str, has_opened: bool, patience: Duration| {
        let network = network(servers, Duration::from_secs(40));
        network.has_opened.store(has_opened, Ordering::Relaxed);
        match network.open(patience).await.err().unwrap() {
            SessionError::Unreachable { waited, detail, .. } => {
                assert_eq!(TlsProblem::in_text(&detail), Some(TlsProblem::PortWithTls), "{detail}");
                waited
            }
            error => panic!("{error:?}"),
        }
    };
    let (mistaken, whole, short) = (port_for_tls(), Duration::from_secs(30), Duration::from_millis(1500));
    assert!(waited(&mistaken, false, whole).await < whole / 2);
    assert_eq!(waited(&mistaken, true, short).await, short);
    assert_eq!(waited(&format!("{mistaken},127.0.0.1:1"), false, short).await, short);
}

#[tokio::test]
async fn a_lasting_mistake_about_tls_leaves_the_callers_own_number_of_retries_as_it_is() {
    let (retries, delay) = (2 * MISTAKEN, Duration::from_millis(10));
    let mut network = network(&port_for_tls(), Duration::from_secs(40));
    network.reconnect = Some(Reconnect { retries, delay });
    match network.open(Duration::from_secs(30)).await.err().unwrap() {
        SessionError::Unreachable { waited, .. } => assert!(waited >= retries * delay, "{waited:?}"),
        error => panic!("{error:?}"),
    }
}

/// Not as a chroot that is missing, whichever the server says first.
#[tokio::test]
async fn a_refused_credential_is_reported_while_the_chroot_is_looked_for() {
    let server = Server::start(Config::default()).await.unwrap();
    let proxy = Proxy::start(server.addr()).await;
    let held = proxy.on(OpCode::Auth).hold_request();
    let mut network = network(&format!("{}/missing", proxy.connect_string()), Duration::from_secs(40));
    network.credentials = vec![("nonsense".to_owned(), b"us:secret".to_vec())];
    let (opened, ()) = tokio::join!(network.open(Duration::from_secs(30)), async {
        held.caught().await;
        held.release();
    });
    assert!(matches!(opened.err(), Some(SessionError::AuthFailed { .. })));
}

/// A session that watches thousands of nodes, and one that changes them.
struct Crowd {
    server: Server,
    proxy: Proxy,
    opened: Opened,
    other: Opened,
    watches: FuturesUnordered<BoxFuture<'static, (usize, Fired)>>,
}

fn path(node: usize) -> String {
    format!("/crowd/as-long-as-the-path-of-a-lock-with-the-name-of-a-contender-{node:036}")
}

async fn open(servers: &str) -> Opened {
    open_for(servers, Duration::from_secs(40)).await
}

async fn open_for(servers: &str, session_timeout: Duration) -> Opened {
    network(servers, session_timeout).open(Duration::from_secs(30)).await.unwrap()
}

fn network(servers: &str, session_timeout: Duration) -> ZooKeeper {
    ZooKeeper {
        servers: parse(servers).unwrap(),
        session_timeout,
        reconnect: None,
        credentials: Vec::new(),
        sasl: None,
        acl: LockAcl::Open,
        authenticates: false,
        tasks: TaskTracker::new(),
        locate: None,
        simulated: None,
        has_opened: AtomicBool::default(),
        create_chroot: false,
    }
}

impl Crowd {
    async fn of(nodes: usize) -> Crowd {
        let tick = Duration::from_millis(100);
        let config = Config::default().with_tick(tick).with_session_timeouts(tick * 2..=Duration::from_secs(60));
        let server = Server::start(config).await.unwrap();
        let proxy = Proxy::start(server.addr()).await;
        let (opened, other) = (open(&proxy.connect_string()).await, open(&server.connect_string()).await);
        other.ensemble.create("/crowd", Vec::new(), NodeKind::Persistent).await.unwrap();
        let names: Vec<usize> = (0..nodes).collect();
        for some in names.chunks(1_000) {
            let create =
                |node: &usize| TxnStep::Create { path: path(*node), data: Vec::new(), kind: NodeKind::Persistent };
            other.ensemble.transact(some.iter().map(create).collect()).await.unwrap();
        }
        opened.ensemble.heartbeat().await.unwrap();
        let watching = stream::iter(names).map(|node| {
            let read = opened.ensemble.read_and_watch(&path(node));
            async move { Ok::<_, OpError>((node, read.await?.1)) }
        });
        let watches: Vec<(usize, Watcher)> = watching.buffer_unordered(1_000).try_collect().await.unwrap();
        let watches = watches.into_iter().map(|(node, watcher)| watcher.map(move |fired| (node, fired)).boxed());
        let watches: FuturesUnordered<_> = watches.collect();
        assert_eq!(server.stats().watches, nodes as u64);
        Crowd { server, proxy, opened, other, watches }
    }

    /// Cuts the connection and keeps it cut.
    async fn away(&mut self) {
        self.proxy.refuse();
        self.proxy.cut(Cut::Reset);
        assert_eq!(self.opened.connection.recv().await, Some(Connection::Lost));
    }

    async fn back(&mut self) {
        self.proxy.heal();
        assert_eq!(self.opened.connection.recv().await, Some(Connection::Back));
    }

    /// The next `count` events.
    async fn fired(&mut self, count: usize) -> HashMap<usize, Fired> {
        self.watches.by_ref().take(count).collect().await
    }

    /// Runs the watchers until the server has this many watches, and none has fired.
    async fn watched(&mut self, count: usize) {
        while self.server.stats().watches != count as u64 {
            tokio::select! {
                fired = self.watches.next() => panic!("{fired:?}"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    }

    async fn delete(&self, node: usize) {
        self.other.ensemble.delete(&path(node), None).await.unwrap();
    }

    async fn write(&self, node: usize) {
        self.other.ensemble.write(&path(node), vec![1], None).await.unwrap();
    }
}

/// 10 000 watches (100 000 with LOCKKEEPER_DEEP) survive two reconnects: they report changes made meanwhile and later
/// changes, and nothing else, in the same session. No node is read again.
#[tokio::test]
async fn case_37_many_thousand_watches_are_set_again_after_a_reconnect() {
    let nodes = if std::env::var_os("LOCKKEEPER_DEEP").is_some() { 100_000 } else { 10_000 };
    let mut crowd = Crowd::of(nodes).await;
    let reads = crowd.proxy.counts().requested.of(OpCode::GetData);
    for turn in 0..2 {
        let [gone, changed, anew, later, last] = [0, 1, 2, 3, 4].map(|node| turn * 10 + node * (nodes / 5 - 1));
        crowd.away().await;
        crowd.delete(gone).await;
        crowd.write(changed).await;
        crowd.delete(anew).await;
        crowd.other.ensemble.create(&path(anew), Vec::new(), NodeKind::Persistent).await.unwrap();
        crowd.back().await;
        let expected = HashMap::from([(gone, Fired::Gone), (changed, Fired::Changed), (anew, Fired::Changed)]);
        assert_eq!(crowd.fired(3).await, expected);
        crowd.watched(nodes - turn * 5 - 3).await;
        crowd.delete(later).await;
        crowd.write(last).await;
        assert_eq!(crowd.fired(2).await, HashMap::from([(later, Fired::Gone), (last, Fired::Changed)]));
    }
    assert_eq!(crowd.proxy.counts().requested.of(OpCode::GetData), reads);
}

/// A session that expires while its client is removed is over for all watchers and callers.
#[tokio::test]
async fn a_crowded_session_that_expires_while_away_is_over() {
    let mut crowd = Crowd::of(2_000).await;
    crowd.away().await;
    let asked = crowd.opened.ensemble.read(&path(1));
    assert!(crowd.server.faults().expire(crowd.opened.ensemble.session().0).await.unwrap());
    crowd.proxy.heal();
    assert_eq!(crowd.opened.connection.recv().await, Some(Connection::Over(Loss::SessionExpired)));
    assert_eq!(asked.await, Err(OpError::SessionOver));
    assert!(crowd.fired(2_000).await.values().all(|fired| *fired == Fired::SessionOver));
}

/// A session that is closed while its client is removed is closed when a server can be reached, long before it expires.
#[tokio::test]
async fn a_crowded_session_that_is_closed_while_away_is_closed() {
    let mut crowd = Crowd::of(2_000).await;
    crowd.away().await;
    crowd.watches.clear();
    crowd.opened.ensemble = crowd.other.ensemble.clone();
    crowd.proxy.heal();
    assert_eq!(crowd.opened.connection.recv().await, Some(Connection::Back));
    let mut change = crowd.opened.connection.recv().await;
    if change == Some(Connection::Closing) {
        change = crowd.opened.connection.recv().await;
    }
    assert_eq!(change, Some(Connection::Over(Loss::Closed)));
    assert_eq!(crowd.server.sessions().await.unwrap(), [crowd.other.ensemble.session().0]);
}

/// A server that answers only pings would keep the session and its nodes alive without progress.
#[tokio::test]
async fn a_session_whose_requests_are_not_answered_goes_on_elsewhere() {
    let tick = Duration::from_millis(100);
    let config = Config::default().with_tick(tick).with_session_timeouts(tick * 2..=Duration::from_secs(60));
    let server = Server::start(config).await.unwrap();
    let mut opened = open_for(&server.connect_string(), Duration::from_secs(1)).await;
    let session = opened.ensemble.session();
    let made = opened.ensemble.create("/a", Vec::new(), NodeKind::Ephemeral).await.unwrap();
    let (node, watcher) = opened.ensemble.read_and_watch("/a").await.unwrap();
    assert_eq!(node.czxid, made.1);
    let mut dropped = server.faults().drop_reply(lockkeeper_server::OpCode::Delete, 1).await.unwrap();
    assert_eq!(opened.ensemble.delete("/a", None).await, Err(OpError::ConnectionLoss));
    dropped.fired().await;
    assert_eq!(opened.connection.recv().await, Some(Connection::Lost));
    assert_eq!(opened.connection.recv().await, Some(Connection::Back));
    assert_eq!(opened.ensemble.delete("/a", None).await, Err(OpError::NoNode));
    assert_eq!(watcher.await, Fired::Gone);
    assert_eq!((opened.ensemble.session(), server.stats().sessions), (session, 1));
}

/// No server has said that the session is over, so it may live.
#[tokio::test]
async fn only_a_server_says_that_a_session_has_expired() {
    let server = Server::start(Config::default().with_tick(Duration::from_millis(100))).await.unwrap();
    let proxy = Proxy::start(server.addr()).await;
    let mut opened = open_for(&proxy.connect_string(), Duration::from_secs(1)).await;
    let asked = opened.ensemble.read("/");
    proxy.refuse();
    proxy.cut(Cut::Reset);
    assert_eq!(opened.connection.recv().await, Some(Connection::Lost));
    let waited = tokio::time::timeout(Duration::from_secs(3), opened.connection.recv()).await;
    assert!(waited.is_err(), "no server was asked: {waited:?}");
    proxy.heal();
    assert_eq!(opened.connection.recv().await, Some(Connection::Over(Loss::SessionExpired)));
    assert_eq!(asked.await, Err(OpError::SessionOver));
}

/// Servers give every session its full timeout after a restart, however long that took.
#[tokio::test]
async fn a_session_goes_on_after_an_outage_longer_than_its_timeout() {
    let session_timeout = Duration::from_secs(2);
    let dir = tempfile::tempdir().unwrap();
    let config = Config::default().with_tick(Duration::from_millis(100)).with_directory(dir.path());
    let server = Server::start(config.clone()).await.unwrap();
    let address = server.addr();
    let mut opened = open_for(&server.connect_string(), session_timeout).await;
    let session = opened.ensemble.session();
    opened.ensemble.create("/a", Vec::new(), NodeKind::Ephemeral).await.unwrap();
    let (_, watcher) = opened.ensemble.read_and_watch("/a").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(opened.connection.recv().await, Some(Connection::Lost));
    let reading = tokio::spawn(opened.ensemble.read("/a"));
    tokio::time::sleep(session_timeout * 5 / 2).await;
    let server = Server::start(config.with_listen(address)).await.unwrap();
    assert_eq!(opened.connection.recv().await, Some(Connection::Back));
    // An operation under way may fail with a lost connection, never with the end of the session.
    assert!(!matches!(reading.await.unwrap(), Err(OpError::SessionOver)));
    assert_eq!(opened.ensemble.read("/a").await.unwrap().owner, session);
    opened.ensemble.delete("/a", None).await.unwrap();
    assert_eq!((watcher.await, server.stats().sessions), (Fired::Gone, 1));
}

/// The servers are tried until the deadline, more and more often, so that one that starts just before it is found.
#[tokio::test]
async fn servers_are_tried_until_the_deadline() {
    use tokio::io::AsyncReadExt;

    let patience = Duration::from_secs(5);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let network = network(&listener.local_addr().unwrap().to_string(), Duration::from_secs(1));
    let started = Instant::now();
    let mut last_try = Duration::ZERO;
    let accepting = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut word = [0; 4];
            // Closed without an answer.
            if stream.read_exact(&mut word).await.is_ok() {
                last_try = started.elapsed();
            }
        }
    };
    let error = tokio::select! {
        error = network.open(patience) => error.err(),
        () = accepting => None,
    };
    assert!(started.elapsed() >= patience, "given up after {:?}", started.elapsed());
    // A busy machine delays a try by some hundred milliseconds.
    assert!(last_try >= patience - Duration::from_secs(1), "last tried after {last_try:?}");
    match error {
        Some(SessionError::Unreachable { waited, detail, .. }) => {
            assert_eq!(waited, patience);
            assert!(detail.contains("closes the connection"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
}

/// The servers are asked without a session, and each one is named with its own cause.
#[tokio::test]
async fn servers_that_accept_no_session_are_told_apart() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listen = || async { tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap() };
    let (minority, full, hanging) = (listen().await, listen().await, listen().await);
    let closed = listen().await.local_addr().unwrap();
    let addresses = [&minority, &full, &hanging].map(|listener| listener.local_addr().unwrap());
    let serving = async {
        let minority = async {
            loop {
                let (mut stream, _) = minority.accept().await.unwrap();
                let mut word = [0; 4];
                _ = stream.read_exact(&mut word).await;
                if word == *b"srvr" {
                    _ = stream.write_all(b"This ZooKeeper instance is not currently serving requests\n").await;
                }
            }
        };
        let full = async {
            loop {
                drop(full.accept().await.unwrap());
            }
        };
        // The kernel accepts for the third one, which reads nothing.
        tokio::join!(minority, full)
    };
    let [minority_at, full_at, hanging_at] = addresses;
    let servers = format!("{minority_at},{full_at},{hanging_at},{closed}");
    let network = network(&servers, Duration::from_secs(4));
    let error = tokio::select! {
        opened = network.open(Duration::from_secs(2)) => opened.err().unwrap(),
        _ = serving => unreachable!(),
    };
    let SessionError::Unreachable { detail, .. } = error else { panic!("{error:?}") };
    for told in [
        format!("{minority_at} runs and serves no requests: it has no majority of the servers"),
        format!("{full_at} closes the connection without an answer: it has as many connections as its limit allows"),
        format!("{hanging_at} does not answer"),
        format!("{closed} refuses connections (nothing listens there)"),
    ] {
        assert!(detail.contains(&told), "{told:?} is missing in {detail}");
    }
}
