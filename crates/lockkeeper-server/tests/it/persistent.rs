//! Persistent watches.

use lockkeeper_server::Server;

use crate::client::*;

const CREATED: i32 = 1;
const DELETED: i32 = 2;
const CHANGED: i32 = 3;
const CHILDREN: i32 = 4;

const PERSISTENT: i32 = 0;
const RECURSIVE: i32 = 1;

fn server() -> Server {
    wait(Server::ephemeral()).unwrap()
}

fn watch(client: &mut Client, path: &str, mode: i32) {
    let mut answer = client.call(ADD_WATCH, bytes().text(path).int(mode));
    assert_eq!((answer.error, answer.int()), (0, 0), "the answer says twice that it went well");
    assert!(answer.is_finished());
}

/// Creates `/a` and `/a/b`, changes both, and deletes them.
fn live(client: &mut Client) {
    client.create("/a", 0).unwrap();
    client.create("/a/b", 0).unwrap();
    assert_eq!((client.set("/a/b", b""), client.set("/a", b"")), (0, 0));
    assert_eq!((client.delete("/a/b"), client.delete("/a")), (0, 0));
}

fn events(client: &mut Client) -> Vec<(i32, String)> {
    client.ping();
    client.events.drain(..).map(|(_, event)| (event.kind, event.path)).collect()
}

fn expected(events: &[(i32, &str)]) -> Vec<(i32, String)> {
    events.iter().map(|(kind, path)| (*kind, (*path).to_owned())).collect()
}

#[test]
fn a_persistent_watch_tells_of_each_change_of_a_node_and_its_children() {
    let server = server();
    let mut client = Client::connect(server.addr());
    watch(&mut client, "/a", PERSISTENT);
    let life = [(CREATED, "/a"), (CHILDREN, "/a"), (CHANGED, "/a"), (CHILDREN, "/a"), (DELETED, "/a")];
    for _ in 0..2 {
        live(&mut client);
        assert_eq!(events(&mut client), expected(&life));
    }
}

#[test]
fn a_recursive_watch_tells_of_each_change_of_a_node_at_or_below_it() {
    let server = server();
    let mut client = Client::connect(server.addr());
    watch(&mut client, "/", RECURSIVE);
    let life =
        [(CREATED, "/a"), (CREATED, "/a/b"), (CHANGED, "/a/b"), (CHANGED, "/a"), (DELETED, "/a/b"), (DELETED, "/a")];
    for _ in 0..2 {
        live(&mut client);
        assert_eq!(events(&mut client), expected(&life));
    }
}

#[test]
fn a_persistent_watch_goes_when_it_is_removed() {
    let server = server();
    let mut client = Client::connect(server.addr());
    for (mode, kind) in [(PERSISTENT, 4), (RECURSIVE, 5)] {
        watch(&mut client, "/a", mode);
        let named = || bytes().text("/a").int(kind);
        assert_eq!(client.call(CHECK_WATCHES, bytes().text("/a").int(2)).error, -121, "no one-shot watch");
        assert_eq!(client.call(CHECK_WATCHES, named()).error, 0);
        assert_eq!(client.call(REMOVE_WATCHES, named()).error, 0);
        assert_eq!(client.call(REMOVE_WATCHES, named()).error, -121);
    }
    live(&mut client);
    assert_eq!(events(&mut client), []);
    assert_eq!(server.stats().watches, 0);
}

#[test]
fn persistent_watches_come_back_with_set_watches2_and_tell_of_nothing_missed() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/b", 0).unwrap();
    let set = |client: &mut Client| {
        let lists = bytes().long(client.last_zxid).texts(&["/b"]).texts(&["/later"]).texts(&["/"]);
        let answer = client.call(SET_WATCHES2, lists.texts(&["/a"]).texts(&["/b"]));
        assert_eq!((answer.error, answer.is_finished()), (0, true));
    };
    set(&mut client);
    assert_eq!(server.stats().watches, 5);
    let mut again = Client::resume(server.addr(), &client.session, client.last_zxid).unwrap();
    let mut other = Client::connect(server.addr());
    live(&mut other);
    assert_eq!(other.set("/b", b"missed"), 0);
    set(&mut again);
    assert_eq!(events(&mut again), expected(&[(CHANGED, "/b"), (CHILDREN, "/")]), "one-shot watches only");
    live(&mut other);
    let life = [(CREATED, "/a"), (CHILDREN, "/a"), (CHANGED, "/a"), (CHILDREN, "/a"), (DELETED, "/a")];
    assert_eq!(events(&mut again), expected(&life));
    assert_eq!(other.set("/b", b""), 0);
    assert_eq!(events(&mut again), expected(&[(CHANGED, "/b")]));
}

#[test]
fn a_mode_or_path_that_is_none_leaves_no_watch() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(client.call(ADD_WATCH, bytes().text("/a").int(2)).error, -5);
    assert_eq!(client.call(ADD_WATCH, bytes().text("a").int(0)).error, -8);
    assert_eq!(server.stats().watches, 0);
}
