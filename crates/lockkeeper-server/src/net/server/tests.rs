//! Tests of a server with disks that are slow, full or broken.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::OpCode;

#[path = "../../../tests/it/client.rs"]
#[allow(dead_code, reason = "shared with the integration tests, which use all of it")]
mod client;

use client::*;

/// Commits when the test says so, with the result that the test gives.
struct Gate(Receiver<Result<(), ServerError>>);

impl Store for Gate {
    fn commit(&mut self, _: &Batch) -> Result<(), ServerError> {
        // The test may have ended.
        self.0.recv().unwrap_or(Ok(()))
    }
}

fn gated() -> (Server, Sender<Result<(), ServerError>>) {
    gated_with(crate::Limits::default())
}

fn gated_with(limits: crate::Limits) -> (Server, Sender<Result<(), ServerError>>) {
    let (open, gate) = channel();
    let config = Config::default().with_limits(limits).with_tick(Duration::from_millis(100)).with_session_timeouts(
        Duration::from_secs(60)..=Duration::from_secs(60), // no test here is about expiry
    );
    (wait(Server::start_on(config, Box::new(Gate(gate)))).unwrap(), open)
}

fn connected(server: &Server, open: &Sender<Result<(), ServerError>>) -> Client {
    open.send(Ok(())).unwrap();
    Client::connect(server.addr())
}

/// Returns whether an answer arrives without the disk. This is the only wait for a time: on a slow machine
/// the test may pass wrongly, but it cannot fail wrongly.
fn is_answered(client: &Client) -> bool {
    client.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let heard = client.stream.peek(&mut [0]).is_ok();
    client.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    heard
}

#[test]
fn nothing_is_visible_before_it_is_durable() {
    let (server, open) = gated();
    let (mut writer, mut reader) = (connected(&server, &open), connected(&server, &open));
    assert!(reader.exists("/a", true).is_none());
    let asked = server.stats().requests(OpCode::Exists);
    writer.send(CREATE, bytes().create("/a", b"", 0));
    until("the create is applied", || server.stats().nodes == 5);
    reader.send(EXISTS, bytes().text("/a").flag(false));
    until("the read is answered, but not told", || server.stats().requests(OpCode::Exists) > asked);
    assert!(!is_answered(&writer), "an answer before its fsync");
    assert!(!is_answered(&reader), "an event or a read that shows what can still be lost");
    assert_eq!(server.stats().outstanding, 3);
    open.send(Ok(())).unwrap();
    assert_eq!(writer.answer().error, 0);
    assert_eq!(reader.event().path, "/a");
    assert_eq!(reader.answer().error, 0);
    assert_eq!(server.stats().outstanding, 0);
}

#[test]
fn reads_do_not_wait_for_a_disk_that_has_nothing_to_do() {
    let (server, open) = gated();
    let mut client = connected(&server, &open);
    for _ in 0..100 {
        client.children("/", false).unwrap();
    }
    assert_eq!(server.stats().commits, 1);
}

/// While one batch is being written, the next one collects.
#[test]
fn writes_that_come_during_a_commit_share_the_next_one() {
    let (server, open) = gated();
    let mut client = connected(&server, &open);
    let first = client.send(CREATE, bytes().create("/first", b"", 0));
    until("the first is on its way", || server.stats().nodes == 5);
    for _ in 0..64 {
        client.send(CREATE, bytes().create("/n-", b"", 2));
    }
    until("the others are applied", || server.stats().nodes == 69);
    open.send(Ok(())).unwrap();
    assert_eq!(client.answer().xid, first);
    open.send(Ok(())).unwrap();
    for _ in 0..64 {
        assert_eq!(client.answer().error, 0);
    }
    assert!(server.stats().commits <= 4, "the session, the first, and at most two groups: {}", server.stats().commits);
}

/// Clients that read nothing must not make reads of others fail, and what they leave waiting must go on when they are gone.
#[test]
fn a_crowd_that_reads_no_answers_delays_reads_of_others_and_fails_none() {
    let (server, open) = gated_with(crate::Limits::default().with_answer_bytes(2_000_000));
    let mut client = connected(&server, &open);
    // The longest that fits into a frame.
    let len = 1_048_575 - 8 - bytes().create("/big", &[], 0).0.len();
    for (path, len) in [("/big", len), ("/small", 100_000)] {
        open.send(Ok(())).unwrap();
        assert_eq!(client.call(CREATE, bytes().create(path, &vec![7; len], 0)).error, 0);
    }
    let crowded = || wait(server.commands.run(|engine| engine.buffers().are_crowded())).unwrap();
    let mut crowd = Vec::new();
    let mut more = 4;
    while more > 0 {
        more -= usize::from(crowded());
        let mut silent = connected(&server, &open);
        for _ in 0..32 {
            silent.send(GET_DATA, bytes().text("/big").flag(false));
        }
        crowd.push(silent);
        assert!(crowd.len() < 100, "the answers take no room");
    }
    for _ in 0..20 {
        client.send(GET_DATA, bytes().text("/big").flag(false));
    }
    for _ in 0..20 {
        assert_eq!(client.answer().error, 0);
    }
    // An answer that waits for the disk, and a request that waits for room until the crowd is gone.
    let asked = server.stats().requests(OpCode::GetData);
    client.send(SET_DATA, bytes().text("/big").buffer(b"").int(-1));
    for _ in 0..3 {
        client.send(GET_DATA, bytes().text("/small").flag(false));
    }
    until("one answer waits for the disk", || server.stats().requests(OpCode::GetData) > asked);
    drop(crowd);
    until("the crowd is gone", || !crowded());
    open.send(Ok(())).unwrap();
    for _ in 0..4 {
        assert_eq!(client.answer().error, 0);
    }
}

/// Each sends all but the last byte of a request.
#[test]
fn unfinished_requests_take_a_bounded_memory_and_the_longest_ones_go() {
    let server = wait(Server::start(Config::default().with_max_frame(100_000))).unwrap();
    let begun = |len: usize| {
        let mut client = Client::connect_with(server.addr(), 40_000);
        let frame = [&100_000_i32.to_be_bytes()[..], &vec![7; len]].concat();
        // The server may have closed it.
        let _ = std::io::Write::write_all(&mut client.stream, &frame);
        client
    };
    let modest = begun(1_000);
    let greedy: Vec<_> = (0..200).map(|_| begun(99_999)).collect();
    until("some are closed", || server.stats().connections < 200);
    assert_eq!(server.stats().sessions, 201, "no session has ended");
    let unfinished = wait(server.commands.run(|engine| engine.buffers().unfinished())).unwrap();
    assert!(unfinished <= 64 * (100_000 + (32 << 10)), "{unfinished}");
    modest.stream.set_nonblocking(true).unwrap();
    let end = modest.stream.peek(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::WouldBlock), "the connection with a short one stays");
    drop(greedy);
    until("their memory is free", || {
        wait(server.commands.run(|engine| engine.buffers().unfinished())).unwrap() < 10_000
    });
}

/// A full disk: nothing is acknowledged that is not on it, the clients are disconnected, and the owner gets the
/// reason.
#[test]
fn a_disk_that_fails_stops_the_server_without_a_false_answer() {
    let (server, open) = gated();
    let mut writer = connected(&server, &open);
    let mut other = connected(&server, &open);
    writer.send(CREATE, bytes().create("/lost", b"", 0));
    until("the create is applied", || server.stats().nodes == 5);
    other.send(EXISTS, bytes().text("/lost").flag(false));
    let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
    open.send(Err(ServerError::disk("/data".into(), full))).unwrap();
    assert!(writer.try_answer().is_err(), "an answer to a write that never became durable");
    assert!(other.try_answer().is_err(), "a read shows what never became durable");
    let why = wait(server.stopped());
    assert_eq!(why.to_string(), "no space left for /data");
    assert!(why.hint().contains("no acknowledged write is lost"));
    assert!(std::net::TcpStream::connect(server.addr()).is_err(), "the port is closed");
    assert!(matches!(wait(server.shutdown()), Err(ServerError::Stopped)));
}

/// The last answers of a stopping server are durable, too.
#[test]
fn a_shutdown_waits_for_the_disk() {
    let (server, open) = gated();
    let mut writer = connected(&server, &open);
    writer.send(CREATE, bytes().create("/a", b"", 0));
    until("the create is applied", || server.stats().nodes == 5);
    let stopping = std::thread::spawn(move || wait(server.shutdown()));
    assert!(!is_answered(&writer));
    open.send(Ok(())).unwrap();
    assert_eq!(writer.answer().error, 0);
    stopping.join().unwrap().unwrap();
}

/// The changes of half a step must not become visible or durable: the server stops with an error.
#[test]
fn a_bug_in_a_step_stops_the_server() {
    let (server, open) = gated();
    let mut client = connected(&server, &open);
    let mut unlucky = connected(&server, &open);
    unlucky.send(crate::net::engine::PANICS_IN_TESTS, bytes());
    unlucky.expect_end();
    client.expect_end();
    assert!(matches!(*wait(server.stopped()), ServerError::Bug));
    assert_eq!(server.stats().commits, 2, "the two sessions and nothing after");
}

#[test]
fn a_dropped_server_frees_its_port() {
    let server = wait(Server::ephemeral()).unwrap();
    let addr = server.addr();
    let mut client = Client::connect(addr);
    drop(server);
    client.expect_end();
    drop(wait(Server::start(Config::default().with_listen(addr))).unwrap());
}

/// The file of a server that was killed, or any other file, is replaced.
#[test]
fn a_socket_is_served_beside_an_address_and_is_gone_with_the_server() {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let nowhere = Config { listen: None, ..Config::default() };
    assert!(matches!(wait(Server::start(nowhere)), Err(ServerError::Nowhere)));
    let server = wait(Server::start(Config::default().with_socket(&path, 0o640))).unwrap();
    assert_eq!((server.listens_on(), server.connect_string()), (None, format!("unix:{}", path.display())));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    let word = |word: &str| {
        let (mut stream, mut answer) = (UnixStream::connect(&path).unwrap(), String::new());
        stream.write_all(word.as_bytes()).unwrap();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert_eq!(word("ruok"), "imok");
    wait(server.shutdown()).unwrap();
    assert!(!path.exists() && !dir.path().join("socket.new").exists());

    let both = Config::default().with_socket(&path, 0o600).with_listen("127.0.0.1:0".parse().unwrap());
    let server = wait(Server::start(both)).unwrap();
    Client::connect(server.addr());
    assert_eq!(word("ruok"), "imok");
}

/// Otherwise a few that come and go would keep the places, and an admitted client would lose its connection to a crowd.
#[test]
fn a_place_for_strangers_is_free_again_however_its_connection_goes_on() {
    use crate::config::Secret;
    let config = Config::default().with_secret(Secret::new(*b"open sesame"));
    let server = wait(Server::start(config)).unwrap();
    let present = |secret: &[u8]| bytes().int(0).text(Secret::SCHEME).buffer(secret);
    let silent = socket(server.addr());
    let greeted = Client::connect(server.addr());
    let mut refused = Client::connect(server.addr());
    assert_eq!(refused.call(AUTH, present(b"a guess")).error, -115);
    let mut owner = Client::connect(server.addr());
    assert_eq!(owner.call(AUTH, present(b"open sesame")).error, 0);
    drop((silent, greeted, refused));
    until("no place is taken", || wait(server.commands.run(|engine| engine.half_open())).unwrap() == 0);
    owner.ping();
}
