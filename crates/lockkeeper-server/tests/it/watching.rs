//! Watches: which client gets which event, once, and in which order.

use lockkeeper_server::Server;

use crate::client::*;

const CREATED: i32 = 1;
const DELETED: i32 = 2;
const CHANGED: i32 = 3;
const CHILDREN: i32 = 4;

fn event(kind: i32, path: &str) -> Event {
    Event { kind, path: path.to_owned() }
}

fn server() -> Server {
    wait(Server::ephemeral()).unwrap()
}

#[test]
fn each_watch_fires_once_for_its_change() {
    let server = server();
    let mut watcher = Client::connect(server.addr());
    let mut writer = Client::connect(server.addr());
    assert_eq!(watcher.exists("/a", true), None);
    writer.create("/a", 0).unwrap();
    assert_eq!(watcher.event(), event(CREATED, "/a"));
    writer.set("/a", b"1");
    watcher.get("/a", true).unwrap();
    watcher.children("/a", true).unwrap();
    writer.set("/a", b"2");
    writer.set("/a", b"3");
    writer.create("/a/b", 0).unwrap();
    writer.create("/a/c", 0).unwrap();
    assert_eq!([watcher.event(), watcher.event()], [event(CHANGED, "/a"), event(CHILDREN, "/a")]);
    watcher.exists("/a/b", true).unwrap();
    watcher.children("/a/b", true).unwrap();
    watcher.children("/a", true).unwrap();
    writer.delete("/a/b");
    assert_eq!([watcher.event(), watcher.event()], [event(DELETED, "/a/b"), event(CHILDREN, "/a")]);
    watcher.ping();
    assert!(watcher.events.is_empty(), "{:?}", watcher.events);
    assert_eq!((server.stats().watches, server.stats().events_sent), (0, 5));
}

#[test]
fn a_failed_read_leaves_no_watch_unless_it_waits_for_the_creation() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(client.get("/none", true), Err(-101));
    assert_eq!(client.children("/none", true), Err(-101));
    assert_eq!(server.stats().watches, 0);
    client.exists("/none", true);
    assert_eq!(server.stats().watches, 1);
}

/// The event arrives before the first answer that shows the change, even if the session itself made the change.
#[test]
fn an_event_comes_before_any_answer_that_shows_the_change() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    let mut writer = Client::connect(server.addr());
    for round in 0..200 {
        let (_, before) = client.get("/a", true).unwrap();
        // The other client's write and our reads race. No read may show the write before the event.
        writer.send(SET_DATA, bytes().text("/a").buffer(b"x").int(-1));
        let seen = loop {
            let (_, stat) = client.get("/a", false).unwrap();
            if stat.version != before.version {
                break stat.version;
            }
        };
        assert_eq!((seen, client.events.len()), (before.version + 1, 1), "round {round}");
        client.events.clear();
        writer.answer();
    }
    client.get("/a", true).unwrap();
    let answers = client.answers;
    client.set("/a", b"own");
    assert_eq!(client.events, [(answers, event(CHANGED, "/a"))], "before the answer to the write itself");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = server();
    let mut client = Client::connect(server.addr());
    let sent: Vec<i32> = (0..300)
        .map(|n| match n % 3 {
            0 => client.send(CREATE, bytes().create("/n-", b"", 2)),
            1 => client.send(GET_CHILDREN, bytes().text("/").flag(false)),
            _ => client.send(DELETE, bytes().text("/none").int(-1)),
        })
        .collect();
    let mut zxid = 0;
    for (n, xid) in sent.into_iter().enumerate() {
        let mut answer = client.answer();
        assert_eq!(answer.xid, xid);
        assert!(answer.zxid >= zxid);
        zxid = answer.zxid;
        if n % 3 == 1 {
            assert_eq!(answer.texts().len(), n / 3 + 2, "a read sees all writes sent before it");
        }
    }
}

#[test]
fn watches_are_checked_and_removed() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    client.get("/a", true).unwrap();
    client.children("/a", true).unwrap();
    let (child, data, any) = (1, 2, 3);
    let mut ask = |opcode, kind| client.call(opcode, bytes().text("/a").int(kind)).error;
    assert_eq!([ask(CHECK_WATCHES, child), ask(CHECK_WATCHES, data), ask(CHECK_WATCHES, any)], [0, 0, 0]);
    assert_eq!(ask(REMOVE_WATCHES, child), 0);
    assert_eq!([ask(CHECK_WATCHES, child), ask(REMOVE_WATCHES, child)], [-121, -121]);
    assert_eq!([ask(REMOVE_WATCHES, any), ask(REMOVE_WATCHES, any)], [0, -121]);
    assert_eq!([ask(REMOVE_WATCHES, 4), ask(REMOVE_WATCHES, 99)], [-121, -5], "none of this kind, no such kind");
    client.set("/a", b"x");
    assert!(client.events.is_empty());
    assert_eq!(server.stats().watches, 0);
}

/// Case 15: a client that was disconnected gets the events that it missed, and no others.
#[test]
fn set_watches_after_a_reconnect_fires_what_was_missed() {
    let server = server();
    let mut writer = Client::connect(server.addr());
    for path in ["/same", "/changed", "/deleted", "/parent", "/quiet"] {
        writer.create(path, 0).unwrap();
    }
    let mut client = Client::connect(server.addr());
    client.exists("/", false);
    let (session, seen) = (client.session.clone(), client.last_zxid);
    drop(client);
    writer.set("/changed", b"x");
    writer.delete("/deleted");
    writer.create("/parent/child", 0).unwrap();
    writer.create("/created", 0).unwrap();
    let mut client = Client::resume(server.addr(), &session, seen).unwrap();
    let watches = bytes()
        .long(seen)
        .texts(&["/same", "/changed", "/deleted"])
        .texts(&["/created", "/still-missing"])
        .texts(&["/parent", "/quiet", "/deleted"]);
    let xid = client.send(SET_WATCHES, watches);
    let answer = client.answer();
    assert_eq!((answer.xid, answer.error), (xid, 0));
    let events: Vec<Event> = client.events.drain(..).map(|(_, event)| event).collect();
    let expected = [
        event(CHANGED, "/changed"),
        event(DELETED, "/deleted"),
        event(CREATED, "/created"),
        event(CHILDREN, "/parent"),
        event(DELETED, "/deleted"),
    ];
    assert_eq!(events, expected);
    assert_eq!(server.stats().watches, 3);
    writer.set("/same", b"x");
    writer.create("/still-missing", 0).unwrap();
    writer.create("/quiet/x", 0).unwrap();
    let fired = [client.event(), client.event(), client.event()];
    assert_eq!(fired, [event(CHANGED, "/same"), event(CREATED, "/still-missing"), event(CHILDREN, "/quiet")]);
}

#[test]
fn watches_go_with_their_connection() {
    let server = server();
    let mut client = Client::connect(server.addr());
    for n in 0..1_000 {
        client.exists(&format!("/{n}"), true);
    }
    assert_eq!(server.stats().watches, 1_000);
    drop(client);
    until("no watch is left", || server.stats().watches == 0);
}
