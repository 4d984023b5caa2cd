//! Identities of clients and their permissions.

use lockkeeper_server::{Accounts, Config, Server, digest};

use crate::client::*;

const NO_AUTH: i32 = -102;
const INVALID_ACL: i32 = -114;
const AUTH_FAILED: i32 = -115;

fn server() -> Server {
    let accounts = Accounts::new().with_super_digest(digest(b"super:test")).with_sasl_user("client1", "password1");
    let config = Config::default().with_tick(std::time::Duration::from_millis(100)).with_accounts(accounts);
    wait(Server::start(config)).unwrap()
}

fn auth(client: &mut Client, scheme: &str, proof: &[u8]) -> i32 {
    client.call(AUTH, bytes().int(0).text(scheme).buffer(proof)).error
}

fn create(client: &mut Client, path: &str, acl: &[(i32, &str, &str)]) -> i32 {
    let list = bytes().text(path).buffer(b"data").int(i32::try_from(acl.len()).unwrap());
    let list = acl.iter().fold(list, |bytes, (perms, scheme, id)| bytes.int(*perms).text(scheme).text(id));
    client.call(CREATE, list.int(0)).error
}

fn acl(client: &mut Client, path: &str) -> Result<Vec<(i32, String, String)>, i32> {
    let mut answer = client.call(GET_ACL, bytes().text(path));
    if answer.error != 0 {
        return Err(answer.error);
    }
    let list = (0..answer.int()).map(|_| (answer.int(), answer.text(), answer.text())).collect();
    answer.stat();
    assert!(answer.is_finished());
    Ok(list)
}

fn entry(perms: i32, scheme: &str, id: &str) -> (i32, String, String) {
    (perms, scheme.to_owned(), id.to_owned())
}

/// Every operation that an access list can forbid is refused without an identity and allowed to the identity in the
/// list.
#[test]
fn an_access_list_is_enforced_for_every_operation() {
    let server = server();
    let mut owner = Client::connect(server.addr());
    let mut stranger = Client::connect(server.addr());
    assert_eq!(auth(&mut owner, "digest", b"me:secret"), 0);
    assert_eq!(auth(&mut stranger, "digest", b"me:guess"), 0, "every text proves some identity");
    assert_eq!(create(&mut owner, "/p", &[(31, "auth", "")]), 0);
    owner.create("/p/c", 0).unwrap();
    let multi = |body: Bytes, op| bytes().op(op).0.into_iter().chain(body.0).chain(bytes().end().0).collect();
    let multi = |body, op| Bytes(multi(body, op));
    let requests: Vec<(i32, Bytes, bool)> = vec![
        (EXISTS, bytes().text("/p").flag(false), true),
        (GET_DATA, bytes().text("/p").flag(false), true),
        (GET_ACL, bytes().text("/p"), true),
        (GET_CHILDREN, bytes().text("/p").flag(false), true),
        (GET_CHILDREN2, bytes().text("/p").flag(false), true),
        (GET_ALL_CHILDREN_NUMBER, bytes().text("/p"), true),
        (SET_DATA, bytes().text("/p").buffer(b"").int(-1), true),
        (CREATE, bytes().create("/p/d", b"", 0), true),
        (SET_ACL, bytes().text("/p").acl(31, "auth", "").int(-1), true),
        (DELETE, bytes().text("/p/c").int(-1), true),
        (MULTI, multi(bytes().text("/p").int(-1), CHECK), false),
        (MULTI_READ, multi(bytes().text("/p").flag(false), GET_DATA), false),
    ];
    for (opcode, body, whole) in requests {
        let mut refused = stranger.call(opcode, body.clone());
        if whole {
            assert_eq!(refused.error, NO_AUTH, "operation {opcode}");
        } else {
            assert_eq!(refused.error, 0);
            assert_eq!((refused.int(), refused.flag(), refused.int()), (-1, false, NO_AUTH), "operation {opcode}");
        }
        let mut allowed = owner.call(opcode, body);
        assert_eq!(allowed.error, 0, "operation {opcode}");
        if !whole {
            assert_eq!((allowed.int(), allowed.flag(), allowed.int()).2, 0, "operation {opcode}");
        }
    }
    assert_eq!(stranger.delete("/p/d"), NO_AUTH);
}

#[test]
fn a_list_is_stored_without_repetitions_and_auth_as_the_identities() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(create(&mut client, "/a", &[(31, "auth", "")]), INVALID_ACL, "nobody yet");
    assert_eq!(auth(&mut client, "digest", b"me:secret"), 0);
    let me = digest(b"me:secret");
    assert_eq!(create(&mut client, "/a", &[(31, "auth", "x"), (1, "world", "anyone"), (31, "digest", &me)]), 0);
    let expected = vec![entry(31, "digest", &me), entry(1, "world", "anyone")];
    assert_eq!(acl(&mut client, "/a"), Ok(expected));
    let mut other = Client::connect(server.addr());
    let masked = vec![entry(31, "digest", "me:x"), entry(1, "world", "anyone")];
    assert_eq!(acl(&mut other, "/a"), Ok(masked), "the hash is for those who may change it");
    let none_for_empty = bytes().text("/b").buffer(b"").int(1).int(31).text("auth").int(-1).int(0);
    assert_eq!(client.call(CREATE, none_for_empty).error, 0);
    for bad in [(1, "digest", "nohash"), (1, "ip", "here"), (1, "x509", "CN=me"), (1, "world", "me")] {
        assert_eq!(create(&mut client, "/bad", &[bad]), INVALID_ACL, "{bad:?}");
    }
}

#[test]
fn an_address_is_an_identity_that_needs_no_proof() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(create(&mut client, "/here", &[(31, "ip", "127.0.0.0/8")]), 0);
    assert_eq!(create(&mut client, "/there", &[(31, "ip", "10.0.0.0/8")]), 0);
    assert!(client.get("/here", false).is_ok());
    assert_eq!(client.get("/there", false), Err(NO_AUTH));
}

#[test]
fn the_superuser_passes_every_list() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(create(&mut client, "/a", &[(31, "digest", "nobody:x")]), 0);
    assert_eq!(client.get("/a", false), Err(NO_AUTH));
    assert_eq!(auth(&mut client, "digest", b"super:tes"), 0);
    assert_eq!(client.get("/a", false), Err(NO_AUTH));
    assert_eq!(auth(&mut client, "digest", b"super:test"), 0);
    assert!(client.get("/a", false).is_ok());
}

#[test]
fn who_am_i_returns_the_identities() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(auth(&mut client, "digest", b"me:secret"), 0);
    assert_eq!(auth(&mut client, "digest", b"super:test"), 0);
    let mut answer = client.call(WHO_AM_I, bytes());
    let names: Vec<_> = (0..answer.int()).map(|_| (answer.text(), answer.buffer())).collect();
    let name = |scheme: &str, name: Option<&str>| (scheme.to_owned(), name.map(|name| name.as_bytes().to_vec()));
    let expected =
        [name("ip", Some("127.0.0.1")), name("digest", Some("me")), name("super", None), name("digest", Some("super"))];
    assert_eq!(names, expected);
    assert!(answer.is_finished());
}

/// Identities belong to a connection: after a session moves, the client must prove them again.
#[test]
fn a_resumed_session_has_no_identity_until_it_authenticates() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(auth(&mut client, "digest", b"me:secret"), 0);
    assert_eq!(create(&mut client, "/a", &[(31, "auth", "")]), 0);
    let mut again = Client::resume(server.addr(), &client.session, client.last_zxid).unwrap();
    assert_eq!(again.get("/a", false), Err(NO_AUTH));
    assert_eq!(auth(&mut again, "digest", b"me:secret"), 0);
    assert!(again.get("/a", false).is_ok());
}

#[test]
fn a_client_that_may_not_read_a_node_gets_no_event_of_it() {
    let server = server();
    let mut owner = Client::connect(server.addr());
    let mut stranger = Client::connect(server.addr());
    assert_eq!(auth(&mut owner, "digest", b"me:secret"), 0);
    assert_eq!(stranger.call(ADD_WATCH, bytes().text("/").int(1)).error, 0);
    assert_eq!(create(&mut owner, "/secret", &[(31, "auth", "")]), 0);
    owner.create("/open", 0).unwrap();
    assert_eq!(owner.delete("/secret"), 0);
    assert_eq!(owner.delete("/open"), 0);
    stranger.ping();
    let events: Vec<_> = stranger.events.iter().map(|(_, event)| (event.kind, event.path.as_str())).collect();
    assert_eq!(events, [(1, "/open"), (2, "/open")]);
}

#[test]
fn an_unknown_scheme_ends_the_connection() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(auth(&mut client, "kerberos", b"me"), AUTH_FAILED);
    client.expect_end();
}

#[test]
fn a_failed_sasl_exchange_ends_the_connection() {
    let server = server();
    let mut client = Client::connect(server.addr());
    let challenge = client.call(SASL, bytes().buffer(b"")).buffer().unwrap();
    assert!(String::from_utf8(challenge).unwrap().starts_with("realm=\"zk-sasl-md5\",nonce="));
    let mut refused = client.call(SASL, bytes().buffer(b"username=\"client1\""));
    assert_eq!((refused.error, refused.buffer()), (AUTH_FAILED, None), "a token, for Java's client reads one");
    client.expect_end();
    let without = wait(Server::ephemeral()).unwrap();
    let mut client = Client::connect(without.addr());
    assert_eq!(client.call(SASL, bytes().buffer(b"")).error, AUTH_FAILED, "nobody to be");
    client.expect_end();
    let mut client = Client::connect(without.addr());
    assert_eq!(create(&mut client, "/a", &[(31, "sasl", "client1")]), INVALID_ACL);
}

#[test]
fn reconfiguring_is_refused_as_by_any_server_that_is_alone() {
    let server = server();
    let mut client = Client::connect(server.addr());
    assert_eq!(client.call(RECONFIG, bytes().int(-1).int(-1).int(-1).long(-1)).error, -123);
}

/// On such a listener the kernel names a client of IPv4 by an IPv6 address.
#[test]
fn a_client_of_ipv4_has_its_own_address_also_on_a_listener_for_both() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6");
        return;
    }
    let config = Config::default().with_listen("[::]:0".parse().unwrap()).allow_remote(true);
    let server = wait(Server::start(config)).unwrap();
    let here = std::net::SocketAddr::from(([127, 0, 0, 1], server.addr().port()));
    let mut client = Client::connect(here);
    for (path, id, expected) in [
        ("/own", "127.0.0.1", Ok(())),
        ("/net", "127.0.0.0/8", Ok(())),
        ("/mapped", "::ffff:127.0.0.1", Ok(())),
        ("/mapped-net", "::ffff:127.0.0.0/104", Ok(())),
        ("/other", "127.0.0.2", Err(NO_AUTH)),
    ] {
        assert_eq!(create(&mut client, path, &[(31, "ip", id)]), 0);
        assert_eq!(client.get(path, false).map(|_| ()), expected, "{path}");
    }
}
