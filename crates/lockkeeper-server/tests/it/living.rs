//! Sessions: how they outlive connections, and how they end.

use std::time::{Duration, Instant};

use lockkeeper_server::faults::Faults;
use lockkeeper_server::{Config, Secret, Server};

use crate::client::*;

fn server() -> Server {
    wait(Server::ephemeral()).unwrap()
}

/// Starts a server whose time passes only when the test says so.
fn timeless() -> (Server, Faults) {
    let server = server();
    let faults = server.faults();
    wait(faults.freeze_time()).unwrap();
    (server, faults)
}

/// Case 14: a session expires never before its timeout, and at most a tick after it.
#[test]
fn a_silent_session_expires_in_its_tick_and_its_nodes_go() {
    let (server, faults) = timeless();
    let mut observer = Client::connect_with(server.addr(), 10_000);
    let mut silent = Client::connect_with(server.addr(), 600);
    silent.create("/e", 1).unwrap();
    wait(faults.advance_time(Duration::from_millis(500))).unwrap();
    silent.create("/p", 0).unwrap();
    wait(faults.advance_time(Duration::from_millis(599))).unwrap();
    observer.exists("/e", true).expect("expired early");
    let tick = Duration::from_millis(100);
    wait(faults.advance_time(tick + Duration::from_millis(1))).unwrap();
    let id = observer.session.id;
    assert_eq!(observer.event(), Event { kind: 2, path: "/e".to_owned() });
    assert!(observer.exists("/p", false).is_some());
    silent.expect_end();
    assert_eq!(wait(server.sessions()).unwrap(), [id]);
    assert!(Client::resume(server.addr(), &silent.session, 0).is_none(), "an expired session cannot be resumed");
}

#[test]
fn pings_keep_a_session_alive_and_a_broken_connection_does_not_end_it() {
    let (server, faults) = timeless();
    let mut client = Client::connect_with(server.addr(), 600);
    client.create("/e", 1).unwrap();
    for _ in 0..5 {
        wait(faults.advance_time(Duration::from_millis(500))).unwrap();
        client.ping();
    }
    let session = client.session.clone();
    let seen = client.last_zxid;
    drop(client);
    wait(faults.advance_time(Duration::from_millis(500))).unwrap();
    let mut client = Client::resume(server.addr(), &session, seen).unwrap();
    assert_eq!((client.session.id, &client.session.password), (session.id, &session.password));
    assert_eq!(client.exists("/e", false).unwrap().owner, session.id);
}

#[test]
fn a_wrong_password_does_not_resume_a_session_nor_disturb_it() {
    let server = server();
    let mut client = Client::connect(server.addr());
    let mut guess = client.session.clone();
    guess.password[3] ^= 1;
    assert!(Client::resume(server.addr(), &guess, 0).is_none());
    guess.password.clear();
    assert!(Client::resume(server.addr(), &guess, 0).is_none());
    guess.id = 4711;
    assert!(Client::resume(server.addr(), &guess, 0).is_none());
    client.ping();
}

#[test]
fn a_session_speaks_over_its_newest_connection_only() {
    let server = server();
    let mut old = Client::connect(server.addr());
    old.exists("/x", true);
    let mut new = Client::resume(server.addr(), &old.session, old.last_zxid).unwrap();
    assert_eq!(server.stats().watches, 0, "watches went with the old connection");
    // The client may see a closed socket already; only the server's state matters.
    let _ = write_frame(&mut old.stream, &bytes().int(9).int(CREATE).create("/ghost", b"", 1).0);
    old.expect_end();
    assert_eq!(new.exists("/ghost", false), None);
    until("one connection is left", || server.stats().connections == 1);
    assert_eq!(server.stats().sessions, 1);
}

#[test]
fn closing_a_session_removes_its_nodes_before_the_answer() {
    let server = server();
    let mut observer = Client::connect(server.addr());
    let mut client = Client::connect(server.addr());
    client.create("/e", 1).unwrap();
    client.create("/f-", 3).unwrap();
    let session = client.session.clone();
    client.close();
    assert_eq!(observer.children("/", false).unwrap(), ["zookeeper"]);
    assert!(Client::resume(server.addr(), &session, 0).is_none());
}

#[test]
fn an_operator_can_end_a_session() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/e", 1).unwrap();
    assert!(wait(server.faults().expire(client.session.id)).unwrap());
    assert!(!wait(server.faults().expire(client.session.id)).unwrap());
    client.expect_end();
    assert_eq!(Client::connect(server.addr()).exists("/e", false), None);
}

#[test]
fn a_client_that_has_seen_the_future_is_sent_away() {
    let server = server();
    let client = Client::connect(server.addr());
    let zxid = server.stats().zxid;
    assert!(Client::resume(server.addr(), &client.session, zxid + 1_000).is_none());
    assert!(Client::resume(server.addr(), &client.session, zxid).is_some());
}

#[test]
fn a_client_without_the_read_only_byte_is_answered_without_it() {
    let server = server();
    let mut stream = socket(server.addr());
    write_frame(&mut stream, &connect_frame(0, 1_000, 0, &[]).0).unwrap();
    assert_eq!(read_frame(&mut stream).unwrap().len(), 4 + 4 + 8 + 4 + 16);
    let mut stream = socket(server.addr());
    write_frame(&mut stream, &connect_frame(0, 1_000, 0, &[]).flag(true).0).unwrap();
    assert_eq!(read_frame(&mut stream).unwrap().len(), 4 + 4 + 8 + 4 + 16 + 1);
}

fn guarded() -> Server {
    let config = Config::default().with_tick(Duration::from_millis(100)).with_secret(Secret::new(*b"open sesame"));
    wait(Server::start(config)).unwrap()
}

fn present(secret: &[u8]) -> Bytes {
    bytes().int(0).text(Secret::SCHEME).buffer(secret)
}

#[test]
fn with_a_secret_other_clients_are_refused() {
    let server = guarded();
    let zxid = server.stats().zxid;
    let mut stranger = Client::connect(server.addr());
    stranger.ping();
    assert_eq!(stranger.call(CREATE, bytes().create("/a", b"", 0)).error, -102);
    stranger.expect_end();
    assert_eq!((server.stats().sessions, server.stats().zxid), (0, zxid), "without the secret there is no session");
    let mut reader = Client::connect(server.addr());
    assert_eq!(reader.call(GET_CHILDREN, bytes().text("/").flag(true)).error, -102);
    reader.expect_end();
    let mut guesser = Client::connect(server.addr());
    assert_eq!(guesser.call(AUTH, present(b"open sesamf")).error, -115);
    guesser.expect_end();
    let mut silent = Client::connect_with(server.addr(), 200);
    let opened = Instant::now();
    while opened.elapsed() < Duration::from_secs(10) {
        silent.send(PING, bytes());
        if silent.try_answer().is_err() {
            break;
        }
    }
    assert!(opened.elapsed() < Duration::from_secs(10), "pings do not keep a stranger's session alive");
    assert_eq!(server.stats().nodes, 4);
    assert_eq!(four_letters(server.addr(), "ruok"), "imok");
    assert!(four_letters(server.addr(), "srvr").contains("standalone"));
    assert_eq!(four_letters(server.addr(), "isro"), "rw");
    for word in ["stat", "mntr", "cons", "dirs", "dump", "wchs", "wchc", "wchp", "conf", "envi", "srst", "crst"] {
        assert!(four_letters(server.addr(), word).contains("not in the whitelist"));
    }
}

/// Without the secret, a client gets short frames, one scheme, a short time, and one of a few places.
#[test]
fn a_stranger_gets_little_before_the_secret_and_keeps_no_owner_out() {
    let server = guarded();
    for scheme in ["digest", "ip", "nonsense"] {
        let mut stranger = Client::connect(server.addr());
        assert_eq!(stranger.call(AUTH, bytes().int(0).text(scheme).buffer(b"user:password")).error, -115, "{scheme}");
        stranger.expect_end();
    }
    let mut stranger = Client::connect(server.addr());
    stranger.send(AUTH, present(&[7; 5_000]));
    stranger.expect_end();
    let mut crowd: Vec<_> = (0..200).map(|_| socket(server.addr())).collect();
    let mut owner = Client::connect(server.addr());
    assert_eq!(owner.call(AUTH, present(b"open sesame")).error, 0);
    assert_eq!(owner.call(CREATE, bytes().create("/long", &[7; 500_000], 0)).error, 0);
    until("only the newest strangers are left", || {
        let ended = |stream: &mut std::net::TcpStream| {
            stream.set_nonblocking(true).unwrap();
            !matches!(std::io::Read::read(stream, &mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        };
        crowd.retain_mut(|stream| !ended(stream));
        crowd.len() <= 64
    });
    until("and they have little time", || {
        let ended = |stream: &mut std::net::TcpStream| std::io::Read::read(stream, &mut [0]).is_ok();
        crowd.retain_mut(|stream| !ended(stream));
        crowd.is_empty()
    });
    owner.ping();
    assert_eq!(server.stats().sessions, 1);
}

#[test]
fn with_the_secret_everything_works_and_a_resumed_session_presents_it_again() {
    let server = guarded();
    let mut client = Client::connect(server.addr());
    assert_eq!(client.call(AUTH, present(b"open sesame")).error, 0);
    client.create("/e", 1).unwrap();
    let mut again = Client::resume(server.addr(), &client.session, client.last_zxid).unwrap();
    client.expect_end();
    assert_eq!(again.call(AUTH, present(b"open sesame")).error, 0);
    assert!(again.exists("/e", false).is_some());
    let mut forgetful = Client::resume(server.addr(), &again.session, 0).unwrap();
    assert_eq!(forgetful.call(EXISTS, bytes().text("/e").flag(false)).error, -102);
    forgetful.expect_end();
    until("the connection has ended", || server.stats().connections == 0);
    assert_eq!(server.stats().sessions, 1, "a resumed session outlives a connection that forgot");
}

#[test]
fn a_secret_is_never_shown() {
    let config = Config::default().with_secret(Secret::new(*b"open sesame"));
    assert!(!format!("{config:?}").contains("sesame"));
}
