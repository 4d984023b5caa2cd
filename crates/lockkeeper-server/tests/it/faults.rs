//! Each fault has its documented effect, at the right frame.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use lockkeeper_server::faults::{Faults, Planned};
use lockkeeper_server::{Config, OpCode, Server, ServerError};

use crate::client::*;

fn server() -> (Server, Faults) {
    let server = wait(Server::ephemeral()).unwrap();
    let faults = server.faults();
    (server, faults)
}

fn durable() -> (Server, Faults, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let server = wait(Server::start(Config::default().with_directory(directory.path()))).unwrap();
    let faults = server.faults();
    (server, faults, directory)
}

#[test]
fn a_lost_request_never_happened_and_a_lost_reply_did() {
    let (server, faults) = server();
    let plan = |reply: bool| {
        let operation = OpCode::Create;
        wait(async {
            if reply { faults.lose_reply(operation, 2).await } else { faults.lose_request(operation, 2).await }
        })
    };
    for (reply, path) in [(false, "/request"), (true, "/reply")] {
        let mut client = Client::connect(server.addr());
        let planned = plan(reply).unwrap();
        client.create("/first-", 2).unwrap();
        assert!(!planned.has_fired());
        assert!(
            client.try_call(CREATE, bytes().create(path, b"", 1)).is_err(),
            "the connection is cut in place of an answer"
        );
        assert!(planned.has_fired());
        let mut again = Client::resume(server.addr(), &client.session, client.last_zxid).unwrap();
        assert_eq!(again.exists(path, false).is_some(), reply);
        assert!(again.create("/third-", 2).is_ok(), "once");
    }
}

#[test]
fn a_plan_for_connect_requests_meets_a_resumed_session() {
    let (server, faults) = server();
    let client = Client::connect(server.addr());
    let planned = wait(faults.lose_request(OpCode::CreateSession, 1)).unwrap();
    assert!(Client::resume(server.addr(), &client.session, 0).is_none());
    assert!(planned.has_fired());
    assert!(Client::resume(server.addr(), &client.session, 0).is_some());
}

#[test]
fn a_dropped_reply_leaves_the_connection_and_the_next_answer_comes() {
    let (server, faults) = server();
    let mut client = Client::connect(server.addr());
    let mut planned: Planned = wait(faults.drop_reply(OpCode::SetData, 1)).unwrap();
    client.create("/a", 0).unwrap();
    client.send(SET_DATA, bytes().text("/a").buffer(b"set").int(-1));
    let xid = client.send(GET_DATA, bytes().text("/a").flag(false));
    let mut answer = client.answer();
    assert_eq!((answer.xid, answer.buffer()), (xid, Some(b"set".to_vec())));
    wait(planned.fired());
}

#[test]
fn a_delayed_reply_is_overtaken_on_other_connections_but_not_on_its_own() {
    let (server, faults) = server();
    let (mut slow, mut other) = (Client::connect(server.addr()), Client::connect(server.addr()));
    let delay = Duration::from_millis(300);
    wait(faults.delay_reply(OpCode::Create, 1, delay)).unwrap();
    let sent = Instant::now();
    let create = slow.send(CREATE, bytes().create("/a", b"", 0));
    slow.send(PING, bytes());
    until("the create is visible to others", || other.exists("/a", false).is_some());
    assert_eq!((slow.answer().xid, slow.answer().xid), (create, -2));
    assert!(sent.elapsed() >= delay);
}

#[test]
fn a_cut_connection_is_not_a_lost_session() {
    let (server, faults) = server();
    let mut client = Client::connect(server.addr());
    client.create("/e", 1).unwrap();
    assert!(wait(faults.cut(client.session.id)).unwrap());
    client.expect_end();
    assert!(!wait(faults.cut(4711)).unwrap());
    let mut again = Client::resume(server.addr(), &client.session, client.last_zxid).unwrap();
    assert!(again.exists("/e", false).is_some());
    assert_eq!(wait(faults.cut_all()).unwrap(), 1);
    again.expect_end();
}

/// As after SIGCONT: the server reads what clients have sent before it expires a session.
#[test]
fn a_frozen_server_is_silent_and_expires_no_session_when_it_resumes() {
    let (server, faults) = server();
    let mut client = Client::connect_with(server.addr(), 200);
    wait(faults.freeze()).unwrap();
    client.send(PING, bytes());
    client.stream.set_read_timeout(Some(Duration::from_millis(600))).unwrap();
    let error = client.try_answer().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    wait(faults.thaw()).unwrap();
    assert_eq!(client.answer().xid, -2);
    client.ping();
}

#[test]
fn a_slow_disk_delays_writes_and_not_reads() {
    let (server, faults, _directory) = durable();
    let (mut writer, mut reader) = (Client::connect(server.addr()), Client::connect(server.addr()));
    // The disk is slower than a busy machine; a read does not wait for it.
    let slow = Duration::from_secs(2);
    wait(faults.slow_fsync(slow)).unwrap();
    let start = Instant::now();
    reader.children("/", false).unwrap();
    let read = start.elapsed();
    writer.create("/a", 0).unwrap();
    assert!(start.elapsed() - read >= slow && read < slow, "a read took {read:?}");
}

#[test]
fn a_failed_fsync_stops_the_server_before_it_acknowledges() {
    let (server, faults, directory) = durable();
    let mut client = Client::connect(server.addr());
    client.create("/kept", 0).unwrap();
    wait(faults.fail_fsync(ErrorKind::StorageFull)).unwrap();
    assert!(client.try_call(CREATE, bytes().create("/lost", b"", 0)).is_err());
    assert!(matches!(*wait(server.stopped()), ServerError::DiskFull { .. }));
    assert!(matches!(wait(faults.freeze()), Err(ServerError::Stopped)));
    drop(server);
    let server = wait(Server::start(Config::default().with_directory(directory.path()))).unwrap();
    assert_eq!(Client::connect(server.addr()).children("/", false).unwrap(), ["kept", "zookeeper"]);
}

/// A day passes immediately, and every deadline in it is handled.
#[test]
fn time_can_be_frozen_and_advanced() {
    let (server, faults) = server();
    wait(faults.freeze_time()).unwrap();
    let mut client = Client::connect_with(server.addr(), 1_000);
    client.create("/e", 1).unwrap();
    let mut watcher = Client::connect_with(server.addr(), 2_000);
    assert!(watcher.exists("/e", true).is_some());
    wait(faults.advance_time(Duration::from_millis(900))).unwrap();
    assert!(watcher.exists("/e", false).is_some());
    wait(faults.advance_time(Duration::from_millis(200))).unwrap();
    assert_eq!(watcher.event(), Event { kind: 2, path: "/e".to_owned() });
    client.expect_end();
    watcher.ping();
    wait(faults.resume_time()).unwrap();
    drop(watcher);
    until("time goes on by itself", || server.stats().sessions == 0);
}

#[test]
fn skipped_ticks_expire_no_session() {
    let (server, faults) = server();
    wait(faults.skip_ticks(u32::MAX)).unwrap();
    let client = Client::connect_with(server.addr(), 200);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(wait(server.sessions()).unwrap(), [client.session.id]);
    assert!(wait(faults.expire(client.session.id)).unwrap());
    assert_eq!(wait(server.sessions()).unwrap(), [0_i64; 0]);
}
