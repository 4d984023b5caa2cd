//! The guarantees for ZooKeeper clients, request by request.

use std::time::Duration;

use lockkeeper_server::{Config, OpCode, Server};

use crate::client::*;

fn server() -> Server {
    wait(Server::ephemeral()).unwrap()
}

#[test]
fn a_session_opens_reads_writes_and_closes() {
    let server = server();
    let mut client = Client::connect_with(server.addr(), 100_000);
    assert_eq!(client.session.timeout, 2_000, "20 ticks at most");
    assert_eq!(client.create("/a", 0), Ok("/a".to_owned()));
    assert_eq!(client.create("/a", 0), Err(-110));
    assert_eq!(client.create("/a/e", 1), Ok("/a/e".to_owned()));
    assert_eq!(client.create("/a/e/x", 0), Err(-108));
    let (data, stat) = client.get("/a/e", false).unwrap();
    assert_eq!((data.unwrap().as_slice(), stat.owner), (&b"data"[..], client.session.id));
    client.ping();
    let id = client.session.id;
    client.close();
    let mut other = Client::connect_with(server.addr(), 0);
    assert_eq!(other.session.timeout, 200, "2 ticks at least");
    assert!(other.session.id > id);
    assert_eq!(other.exists("/a/e", false), None);
    assert_eq!(other.children("/", false).unwrap(), ["a", "zookeeper"]);
    wait(server.shutdown()).unwrap();
    other.expect_end();
}

#[test]
fn a_stat_shows_all_changes_of_a_node() {
    let server = server();
    let mut client = Client::connect(server.addr());
    let (_, born) = client.create2("/a", 0).unwrap();
    assert_eq!((born.version, born.cversion, born.aversion, born.owner), (0, 0, 0, 0));
    assert_eq!((born.data_length, born.num_children), (4, 0));
    assert_eq!((born.mzxid, born.pzxid, born.mtime), (born.czxid, born.czxid, born.ctime));
    client.create("/a/x", 0).unwrap();
    client.create("/a/y", 0).unwrap();
    assert_eq!(client.delete("/a/x"), 0);
    let deleted = client.last_zxid;
    assert_eq!(client.set("/a", b"longer"), 0);
    let now = client.exists("/a", false).unwrap();
    assert_eq!((now.czxid, now.ctime), (born.czxid, born.ctime));
    assert_eq!((now.version, now.data_length, now.num_children), (1, 6, 1));
    assert_eq!(now.cversion, 3, "two creates and a delete");
    assert_eq!((now.pzxid, now.mzxid), (deleted, deleted + 1));
    let root = client.exists("/", false).unwrap();
    assert_eq!((root.num_children, root.cversion), (2, 0), "/zookeeper was never created by a transaction");
}

#[test]
fn the_zxid_grows_by_one_with_every_transaction_also_a_failed_one() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.exists("/", false);
    let start = client.last_zxid;
    client.create("/a", 0).unwrap();
    assert_eq!(client.last_zxid, start + 1);
    assert_eq!(client.create("/a", 0), Err(-110));
    assert_eq!(client.last_zxid, start + 2);
    assert_eq!(client.delete("/b"), -101);
    assert_eq!(client.last_zxid, start + 3);
    client.ping();
    assert_eq!(client.call(SYNC, bytes().text("/")).text(), "/");
    assert_eq!(client.last_zxid, start + 3, "reads, pings and syncs use none");
    drop(Client::connect(server.addr()));
    client.exists("/", false);
    assert_eq!(client.last_zxid, start + 4, "a session's beginning is a transaction");
    assert_eq!(client.create("/f", 7), Err(-8));
    assert_eq!(client.call(CREATE, bytes().int(5)).error, -5);
    assert_eq!(client.last_zxid, start + 6, "a write has its number before it is looked at");
    assert_eq!(client.call(GET_DATA, bytes()).error, -5);
    assert_eq!(client.call(4711, bytes()).error, -6);
    assert_eq!(client.last_zxid, start + 6);
}

#[test]
fn errors_are_zookeepers() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    client.create("/a/b", 0).unwrap();
    assert_eq!(client.delete("/a"), -111);
    assert_eq!(client.create("/none/x", 0), Err(-101));
    assert_eq!(client.set("/none", b""), -101);
    assert_eq!(client.get("/none", false), Err(-101));
    assert_eq!(client.children("/none", false), Err(-101));
    assert_eq!(client.call(DELETE, bytes().text("/a/b").int(7)).error, -103);
    assert_eq!(client.call(SET_DATA, bytes().text("/a/b").buffer(b"").int(7)).error, -103);
    for special in ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"] {
        assert_eq!(client.delete(special), -8, "{special}");
    }
    assert_eq!(client.set("/zookeeper/config", b"x"), -102, "everyone may only read it");
    assert_eq!(client.create("/a/f", 7), Err(-8), "not a mode");
    for bad in ["", "a", "/a/", "//", "/a//b", "/a/..", "/./a", "/a\0b", "/\u{1}", "/\u{e000}"] {
        assert_eq!(client.create(bad, 0), Err(-8), "create {bad:?}");
        assert_eq!(client.delete(bad), -8, "delete {bad:?}");
        assert_eq!(client.set(bad, b""), -8, "set {bad:?}");
        assert_eq!(client.get(bad, true), Err(-8), "get {bad:?}");
        assert_eq!(client.call(EXISTS, bytes().text(bad).flag(true)).error, -8, "exists {bad:?}");
    }
    assert_eq!(server.stats().watches, 0);
}

#[test]
fn an_unsupported_operation_is_refused_and_the_connection_stays() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    // check alone, deleteContainer, and an unknown operation
    for opcode in [CHECK, 20, 4711] {
        assert_eq!(client.call(opcode, bytes().text("/a").int(0)).error, -6, "{opcode}");
    }
    for (scheme, id) in [("digest", "nohash"), ("auth", ""), ("ip", "here"), ("world", "nobody")] {
        let acl = |body: Bytes| body.acl(31, scheme, id);
        assert_eq!(client.call(CREATE, acl(bytes().text("/x").buffer(b"")).int(0)).error, -114, "{scheme}");
        assert_eq!(client.call(SET_ACL, acl(bytes().text("/a")).int(-1)).error, -114, "{scheme}");
    }
    assert_eq!(client.call(CREATE, bytes().text("/x").buffer(b"").int(0).int(0)).error, -114, "no entries at all");
    assert_eq!(client.exists("/x", false), None);
    assert_eq!(server.stats().unknown_requests, 1);
    let digest = bytes().int(0).text("kerberos").buffer(b"user:password");
    assert_eq!(client.call(AUTH, digest).error, -115);
    client.expect_end();
}

#[test]
fn an_access_list_of_everyone_is_kept_and_enforced() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    let read_only = bytes().text("/a").acl(1, "world", "anyone").int(0);
    assert_eq!(client.call(SET_ACL, read_only).stat().aversion, 1);
    assert_eq!(client.set("/a", b"x"), -102);
    assert_eq!(client.create("/a/b", 0), Err(-102));
    assert_eq!(client.get("/a", false).unwrap().1.aversion, 1);
    let mut acl = client.call(GET_ACL, bytes().text("/a"));
    assert_eq!((acl.int(), acl.int(), acl.text(), acl.text()), (1, 1, "world".to_owned(), "anyone".to_owned()));
    assert_eq!(acl.stat().aversion, 1);
    assert_eq!(client.call(SET_ACL, bytes().text("/a").open_acl().int(-1)).error, -102, "nobody is its administrator");
    assert_eq!(client.delete("/a"), 0, "deleting asks the parent");
}

#[test]
fn the_sequence_counts_creates_and_wraps_to_negative() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    client.create("/a/plain", 0).unwrap();
    assert_eq!(client.create("/a/s-", 2).unwrap(), "/a/s-0000000001");
    assert_eq!(client.create("/a/", 3).unwrap(), "/a/0000000002", "the name may be all number");
    client.delete("/a/s-0000000001");
    assert_eq!(client.create("/a/s-", 3).unwrap(), "/a/s-0000000003");
    assert!(wait(server.faults().set_child_counter("/a", i32::MAX - 1)).unwrap());
    let made: Vec<_> = (0..4).map(|_| client.create("/a/s-", 2).unwrap()).collect();
    assert_eq!(made, ["/a/s-2147483646", "/a/s-2147483647", "/a/s--2147483648", "/a/s--2147483647"]);
    assert!(wait(server.faults().set_child_counter("/a", -5)).unwrap());
    assert_eq!(client.create("/a/s-", 2).unwrap(), "/a/s--000000005");
    assert!(!wait(server.faults().set_child_counter("/none", 0)).unwrap());
}

#[test]
fn no_data_and_empty_data_differ() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(client.call(CREATE, bytes().text("/none").int(-1).open_acl().int(0)).error, 0);
    assert_eq!(client.call(CREATE, bytes().text("/empty").buffer(b"").open_acl().int(0)).error, 0);
    assert_eq!(client.get("/none", false).unwrap().0, None);
    assert_eq!(client.get("/empty", false).unwrap().0, Some(Vec::new()));
}

#[test]
fn ttl_requests_are_checked() {
    let server = server();
    let mut client = Client::connect(server.addr());
    let mut ttl = |flags, ttl| client.call(CREATE_TTL, bytes().create("/t-", b"", flags).long(ttl)).error;
    assert_eq!(ttl(5, 0), -8);
    assert_eq!(ttl(5, 1 << 40), -8);
    assert_eq!(ttl(0, 5), -8, "a mode without a time to live");
    assert_eq!(ttl(6, (1 << 40) - 1), 0);
    assert_eq!(client.call(CREATE, bytes().create("/u", b"", 5)).error, -8);
    assert_eq!(client.exists("/t-0000000000", false).unwrap().owner, 0);
}

#[test]
fn containers_go_after_their_last_child_and_ttl_nodes_after_their_time() {
    let config = Config::default()
        .with_tick(Duration::from_millis(20))
        .with_session_timeouts(Duration::from_secs(60)..=Duration::from_secs(60))
        .with_container_check(Duration::from_millis(20));
    let server = wait(Server::start(config)).unwrap();
    let mut client = Client::connect(server.addr());
    let mut created = client.call(CREATE_CONTAINER, bytes().create("/c", b"", 4));
    assert_eq!((created.text().as_str(), created.stat().owner), ("/c", 0));
    assert_eq!(client.call(CREATE_CONTAINER, bytes().create("/unused", b"", 4)).error, 0);
    assert_eq!(client.call(CREATE_TTL, bytes().create("/t", b"", 5).long(1)).error, 0);
    client.create("/c/x", 0).unwrap();
    until("the TTL node is removed", || client.exists("/t", false).is_none());
    assert!(client.exists("/c", true).is_some(), "it has a child");
    client.delete("/c/x");
    assert_eq!(client.event(), Event { kind: 2, path: "/c".to_owned() });
    assert!(client.exists("/unused", false).is_some(), "it never had a child");
}

#[test]
fn a_multi_is_all_or_nothing_and_each_operation_sees_those_before() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/m", 0).unwrap();
    let mut done = client.call(
        MULTI,
        bytes()
            .op(CREATE)
            .create("/m/a", b"1", 0)
            .op(CREATE2)
            .create("/m/s-", b"1", 2)
            .op(SET_DATA)
            .text("/m/a")
            .buffer(b"22")
            .int(0)
            .op(CHECK)
            .text("/m/a")
            .int(1)
            .op(DELETE)
            .text("/m/a")
            .int(1)
            .end(),
    );
    assert_eq!(done.error, 0);
    let mut header = |opcode: i32| assert_eq!((done.int(), done.flag(), done.int()), (opcode, false, 0));
    header(CREATE);
    assert_eq!(done.text(), "/m/a");
    let mut header = |opcode: i32| assert_eq!((done.int(), done.flag(), done.int()), (opcode, false, 0));
    header(CREATE2);
    assert_eq!(done.text(), "/m/s-0000000001");
    let stat = done.stat();
    assert_eq!((stat.czxid, stat.pzxid), (done.zxid, done.zxid));
    let mut header = |opcode: i32| assert_eq!((done.int(), done.flag(), done.int()), (opcode, false, 0));
    header(SET_DATA);
    assert_eq!(done.stat().version, 1);
    let mut header = |opcode: i32| assert_eq!((done.int(), done.flag(), done.int()), (opcode, false, 0));
    header(CHECK);
    header(DELETE);
    assert_eq!((done.int(), done.flag(), done.int()), (-1, true, -1));
    assert!(done.is_finished());
    assert_eq!(client.children("/m", false).unwrap(), ["s-0000000001"]);

    let before = client.exists("/m", true).unwrap();
    let mut failed = client.call(
        MULTI,
        bytes().op(CREATE).create("/m/b", b"", 0).op(DELETE).text("/none").int(-1).op(CHECK).text("/m").int(-1).end(),
    );
    assert_eq!(failed.error, 0, "the error is in the results");
    for expected in [0, -101, -2] {
        assert_eq!((failed.int(), failed.flag(), failed.int(), failed.int()), (-1, false, expected, expected));
    }
    assert_eq!((failed.int(), failed.flag(), failed.int()), (-1, true, -1));
    assert_eq!(client.exists("/m", false).unwrap(), before);
    assert!(client.events.is_empty());
    assert_eq!(client.create("/m/s-", 2).unwrap(), "/m/s-0000000002", "a failed multi uses no number");
}

#[test]
fn a_multi_read_answers_each_read_apart() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/m", 0).unwrap();
    let reads = bytes().op(GET_DATA).text("/m").flag(false).op(GET_CHILDREN).text("/none").flag(false);
    let mut read = client.call(MULTI_READ, reads.op(GET_CHILDREN).text("/").flag(false).end());
    assert_eq!((read.int(), read.flag(), read.int()), (GET_DATA, false, 0));
    assert_eq!(read.buffer().unwrap(), b"data");
    read.stat();
    assert_eq!((read.int(), read.flag(), read.int(), read.int()), (-1, false, -101, -101));
    assert_eq!((read.int(), read.flag(), read.int()), (GET_CHILDREN, false, 0));
    assert_eq!(read.texts(), ["m", "zookeeper"]);
    let mixed = bytes().op(GET_DATA).text("/m").flag(false).op(DELETE).text("/m").int(-1).end();
    assert_eq!(client.call(MULTI_READ, mixed.clone()).error, -5);
    assert_eq!(client.call(MULTI, mixed).error, -5);
    assert!(client.exists("/m", false).is_some());
}

#[test]
fn counting_reads_count() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    client.create("/a/b", 0).unwrap();
    client.create("/a/b/e", 1).unwrap();
    client.create("/f", 1).unwrap();
    assert_eq!(client.call(GET_ALL_CHILDREN_NUMBER, bytes().text("/a")).int(), 2);
    assert_eq!(client.call(GET_ALL_CHILDREN_NUMBER, bytes().text("/")).int(), 7);
    assert_eq!(client.call(GET_EPHEMERALS, bytes().text("/")).texts(), ["/a/b/e", "/f"]);
    assert_eq!(client.call(GET_EPHEMERALS, bytes().text("/a")).texts(), ["/a/b/e"]);
    let mut children = client.call(GET_CHILDREN2, bytes().text("/a").flag(false));
    assert_eq!((children.texts(), children.stat().num_children), (vec!["b".to_owned()], 1));
}

#[test]
fn requests_are_counted_exactly_by_the_time_they_are_answered() {
    let server = server();
    let mut client = Client::connect(server.addr());
    for n in 1..=50 {
        client.create("/n-", 2).unwrap();
        let stats = server.stats();
        assert_eq!((stats.requests(OpCode::Create), stats.requests(OpCode::CreateSession)), (n, 1));
        assert_eq!((stats.packets_received, stats.packets_sent), (n + 1, n + 1));
        assert_eq!((stats.nodes, stats.sessions, stats.connections), (4 + n, 1, 1));
        assert_eq!(stats.zxid, client.last_zxid);
    }
}
