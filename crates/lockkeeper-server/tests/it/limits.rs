//! Limits on what clients can create: the server's limits, and quotas, which clients set.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_server::{Config, Limits, Server};

use crate::client::*;

const QUOTA_EXCEEDED: i32 = -125;

fn server(config: Config) -> Server {
    wait(Server::start(config.with_tick(Duration::from_millis(100)))).unwrap()
}

fn limited(limits: Limits) -> Server {
    server(Config::default().with_limits(limits))
}

/// Returns what a server without clients counts.
fn own_bytes() -> u64 {
    let server = limited(Limits::default());
    let mntr = four_letters(server.addr(), "mntr");
    let kept = mntr.lines().find_map(|line| line.strip_prefix("zk_kept_bytes\t"));
    kept.unwrap().parse().unwrap()
}

fn create_with(client: &mut Client, path: &str, data: &[u8]) -> i32 {
    client.call(CREATE, bytes().create(path, data, 0)).error
}

fn text(client: &mut Client, path: &str) -> String {
    String::from_utf8(client.get(path, false).unwrap().0.unwrap()).unwrap()
}

#[test]
fn nodes_and_data_beyond_the_limit_are_refused_and_deleting_makes_room() {
    // The server's own nodes, the session, and the names of two nodes.
    let server = limited(Limits::default().with_nodes(6).with_data_bytes(100 + own_bytes() + 200 + 2 * 3));
    let mut client = Client::connect(server.addr());
    assert_eq!(create_with(&mut client, "/a", &[7; 60]), 0);
    assert_eq!(create_with(&mut client, "/b", &[7; 60]), QUOTA_EXCEEDED);
    assert_eq!(create_with(&mut client, "/b", &[7; 40]), 0);
    assert_eq!(create_with(&mut client, "/c", b""), QUOTA_EXCEEDED, "a seventh node");
    assert_eq!(client.set("/a", &[7; 61]), QUOTA_EXCEEDED);
    assert_eq!(client.set("/a", &[7; 59]), 0);
    let create = |bytes: Bytes, path| bytes.op(CREATE).create(path, b"", 0);
    let answer = client.call(MULTI, create(bytes().op(DELETE).text("/b").int(-1), "/c").end());
    assert_eq!(answer.error, 0);
    assert_eq!(client.children("/", false).unwrap(), ["a", "c", "zookeeper"], "a multi is judged by what it leaves");
    let mut answer = client.call(MULTI, create(create(bytes(), "/d"), "/e").end());
    assert_eq!((answer.int(), answer.flag(), answer.int(), answer.int()), (-1, false, QUOTA_EXCEEDED, QUOTA_EXCEEDED));
}

#[test]
fn a_read_that_could_leave_no_watch_is_refused() {
    let server = limited(Limits::default().with_watches(2));
    let mut client = Client::connect(server.addr());
    for path in ["/a", "/b"] {
        assert!(client.exists(path, true).is_none());
    }
    let mut other = Client::connect(server.addr());
    assert_eq!(other.call(GET_CHILDREN, bytes().text("/").flag(true)).error, QUOTA_EXCEEDED);
    assert_eq!(other.call(ADD_WATCH, bytes().text("/").int(0)).error, QUOTA_EXCEEDED);
    let lists = bytes().long(0).texts(&["/"]).texts(&[]).texts(&[]);
    assert_eq!(other.call(SET_WATCHES, lists).error, QUOTA_EXCEEDED);
    assert!(other.children("/", false).is_ok());
    assert_eq!(server.stats().watches, 2);
    client.close();
    assert!(other.children("/", true).is_ok());
}

/// Silent connections count as well: each has a socket.
#[test]
fn connections_beyond_the_limit_are_closed_at_once() {
    let server = limited(Limits::default().with_connections(10, 2));
    let silent = socket(server.addr());
    let mut client = Client::connect(server.addr());
    let mut third = socket(server.addr());
    assert_eq!(std::io::Read::read(&mut third, &mut [0]).unwrap_or(0), 0);
    client.ping();
    drop(silent);
    until("there is room again", || {
        Client::open_if_let(server.addr()).is_some_and(|mut client| {
            client.ping();
            true
        })
    });
}

/// A client that looks whether somebody listens, and then connects, is one connection.
#[test]
fn a_connection_that_its_client_has_closed_does_not_count() {
    let server = limited(Limits::default().with_connections(10, 1));
    for _ in 0..200 {
        drop(socket(server.addr()));
        until_closed(server.addr());
        Client::connect(server.addr()).ping();
        until_closed(server.addr());
    }
}

/// Waits until the kernel knows on the server's side that the clients have closed their connections: a busy one delivers that late.
fn until_closed(server: SocketAddr) {
    /// The state in the fourth column.
    const ESTABLISHED: &str = "01";
    let own = format!(":{:04X}", server.port());
    let is_open = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        columns.get(1).is_some_and(|local| local.ends_with(&own)) && columns.get(3) == Some(&ESTABLISHED)
    };
    // Without the file, the kernel is another one.
    while std::fs::read_to_string("/proc/net/tcp").is_ok_and(|open| open.lines().any(is_open)) {
        std::thread::yield_now();
    }
}

#[test]
fn sessions_beyond_the_limit_get_none_and_the_others_live() {
    let server = limited(Limits::default().with_sessions(1));
    let mut client = Client::connect(server.addr());
    assert!(Client::open(socket(server.addr()), 0, 10_000, 0, &[0; 16]).is_none());
    client.ping();
    let mut again = Client::resume(server.addr(), &client.session, client.last_zxid).expect("it is the same session");
    again.ping();
    again.close();
    Client::connect(server.addr());
}

/// Creates a quota as ZooKeeper's command line does.
fn set_quota(client: &mut Client, path: &str, limits: &str) {
    let mut parent = "/zookeeper/quota".to_owned();
    for name in path.split('/').skip(1) {
        parent = format!("{parent}/{name}");
        assert_eq!(create_with(client, &parent, b""), 0);
    }
    assert_eq!(create_with(client, &format!("{parent}/zookeeper_limits"), limits.as_bytes()), 0);
    assert_eq!(create_with(client, &format!("{parent}/zookeeper_stats"), b"count=0,bytes=0"), 0);
}

#[test]
fn a_quota_counts_what_its_path_holds_also_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let config = || Config::default().with_directory(directory.path());
    let mut held = String::new();
    for round in 0..2 {
        let server = server(config());
        let mut client = Client::connect(server.addr());
        let stats = "/zookeeper/quota/a/zookeeper_stats";
        if round == 0 {
            assert_eq!(create_with(&mut client, "/a", b"1234"), 0);
            assert_eq!(create_with(&mut client, "/a/b", b"12"), 0);
            set_quota(&mut client, "/a", "count=2,bytes=-1");
            assert_eq!(text(&mut client, stats), "count=2,bytes=6");
            assert_eq!(create_with(&mut client, "/a/b/c", b"1"), 0, "a soft limit is only told in the log");
            assert_eq!(text(&mut client, stats), "count=3,bytes=7");
            assert_eq!(client.set("/a", b""), 0);
            assert_eq!(client.create("/a/b/e", 1).map(|_| text(&mut client, stats)), Ok("count=4,bytes=7".to_owned()));
            assert_eq!(client.delete("/a/b/c"), 0);
            let (data, stat) = client.get(stats, false).unwrap();
            held = String::from_utf8(data.unwrap()).unwrap();
            assert_eq!((held.as_str(), stat.version, stat.mzxid), ("count=3,bytes=6", 0, stat.czxid));
        } else {
            assert_eq!(text(&mut client, stats), held);
            assert_eq!(client.delete("/a/b/e"), 0);
            assert_eq!(text(&mut client, stats), "count=2,bytes=2");
        }
        wait(server.shutdown()).unwrap();
    }
}

#[test]
fn a_hard_limit_is_enforced_if_configured() {
    for enforced in [false, true] {
        let server = server(Config::default().enforce_quotas(enforced));
        let mut client = Client::connect(server.addr());
        assert_eq!(create_with(&mut client, "/a", b""), 0);
        set_quota(&mut client, "/a", "count=-1,bytes=-1=;byteHardLimit=5;countHardLimit=2");
        let expected = if enforced { QUOTA_EXCEEDED } else { 0 };
        assert_eq!(create_with(&mut client, "/a/b", b"12345"), 0);
        assert_eq!(create_with(&mut client, "/a/c", b""), expected);
        assert_eq!(client.set("/a/b", b"123456"), expected);
        assert_eq!(create_with(&mut client, "/elsewhere", b"123456"), 0);
        if enforced {
            assert_eq!(client.set("/a/b", b"1"), 0, "less is always allowed");
            let two = bytes().op(SET_DATA).text("/a").buffer(b"123").int(-1).op(SET_DATA).text("/a/b").buffer(b"123");
            let mut answer = client.call(MULTI, two.int(-1).end());
            assert_eq!((answer.int(), answer.flag(), answer.int(), answer.int()), (-1, false, 0, 0), "rolled back");
            assert_eq!((answer.int(), answer.flag(), answer.int()), (-1, false, QUOTA_EXCEEDED), "together too much");
        }
    }
}
