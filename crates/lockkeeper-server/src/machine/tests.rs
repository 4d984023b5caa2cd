//! The machine alone: no sockets, no clock, many histories.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use lockkeeper_wire::OpCode;
use lockkeeper_wire::{Acl, Create, CreateMode, ReadOp, SetData, SetWatches, VersionedPath, WatchedPath};

/// A configuration with short times and without SASL and certificates.
pub(crate) fn config() -> MachineConfig {
    MachineConfig {
        tick: Duration::from_millis(100),
        session_timeouts: Duration::from_millis(200)..=Duration::from_secs(2),
        container_check: Duration::from_secs(1),
        container_unused: Duration::from_secs(5),
        next_session: 1,
        schemes: Schemes::default(),
        enforce_quotas: true,
        limits: Limits::default(),
    }
}

fn machine() -> Machine {
    Machine::new(config(), Tree::new(), 0, at(0))
}

fn at(ms: u64) -> Now {
    Now { monotonic: Duration::from_millis(ms), wall_ms: 1_000_000 + i64::try_from(ms).unwrap() }
}

fn connect(machine: &mut Machine, connection: u64) -> Vec<Effect> {
    let mut out = Vec::new();
    let request = ConnectRequest { timeout_ms: 1_000, ..ConnectRequest::default() };
    machine.connect(ConnectionId(connection), &request, [7; 16], true, at(0), &mut out);
    out
}

#[derive(Clone, Debug)]
enum Step {
    Connect(u64),
    Disconnect(u64),
    Request(u64, Request),
    Identify(u64, u8),
    Expire(i64),
    Wait(u64),
}

fn path() -> impl Strategy<Value = String> {
    proptest::sample::select(vec!["/a", "/b", "/a/a", "/a/b", "/b/a", "/a/a/a", "/", "/a/", "/zookeeper"])
        .prop_map(str::to_owned)
}

fn create() -> impl Strategy<Value = Create> {
    let modes = [
        CreateMode::Persistent,
        CreateMode::Ephemeral,
        CreateMode::EphemeralSequential,
        CreateMode::Container,
        CreateMode::PersistentTtl,
    ];
    (path(), 0..20_u8, proptest::sample::select(modes.to_vec()), any::<bool>()).prop_map(|(path, size, mode, stat)| {
        let mut create = Create::new(path, vec![1; size.into()], mode);
        if mode.is_ttl() {
            create.ttl_ms = 10;
            create.opcode = OpCode::CreateTtl;
        } else if !stat && mode != CreateMode::Container {
            create.opcode = OpCode::Create;
        }
        create
    })
}

fn write_op() -> impl Strategy<Value = WriteOp> {
    let versioned = || (path(), -1..3).prop_map(|(path, version)| VersionedPath { path, version });
    prop_oneof![
        3 => create().prop_map(WriteOp::Create),
        2 => versioned().prop_map(WriteOp::Delete),
        1 => (path(), -1..3).prop_map(|(path, version)| WriteOp::SetData(SetData { path, data: None, version })),
        1 => versioned().prop_map(WriteOp::Check),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let watched = || (path(), any::<bool>()).prop_map(|(path, watch)| WatchedPath { path, watch });
    prop_oneof![
        6 => write_op().prop_map(|op| match op {
            WriteOp::Create(create) => Request::Create(create),
            WriteOp::Delete(delete) => Request::Delete(delete),
            WriteOp::SetData(set) => Request::SetData(set),
            WriteOp::Check(_) => Request::Ping,
        }),
        3 => proptest::collection::vec(write_op(), 0..5).prop_map(Request::Multi),
        2 => watched().prop_map(Request::Exists),
        2 => watched().prop_map(Request::GetData),
        2 => watched().prop_map(Request::GetChildren2),
        1 => (path(), 0..4_i32).prop_map(|(path, entries)| {
            let acl = (1..=entries).map(|perms| Acl { perms, ..Acl::OPEN }).chain([Acl::OPEN]).collect();
            Request::SetAcl { path, acl, version: -1 }
        }),
        1 => path().prop_map(|path| Request::AddWatch { path, recursive: true }),
        1 => path().prop_map(|path| Request::RemoveWatches { path, kind: WatchKind::PersistentRecursive }),
        1 => Just(Request::CloseSession),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..4_u64).prop_map(Step::Connect),
        1 => (0..4_u64).prop_map(Step::Disconnect),
        12 => (0..4_u64, request()).prop_map(|(connection, request)| Step::Request(connection, request)),
        1 => (0..4_u64, 0..3_u8).prop_map(|(connection, who)| Step::Identify(connection, who)),
        1 => (1..6_i64).prop_map(Step::Expire),
        1 => (0..3_000_u64).prop_map(Step::Wait),
    ]
}

/// Everything that a client can see of a tree.
fn contents(tree: &Tree) -> Vec<(Arc<str>, Node)> {
    tree.iter().map(|(path, node)| (Arc::clone(path), node.clone())).collect()
}

proptest! {
    /// For any requests: the tree stays consistent, a copy that applies the transactions equals the original, a failed
    /// request changes nothing, watchers get the event of every change before they can read it, and the same steps
    /// have the same effects.
    #[test]
    fn any_history_keeps_the_promises(steps in proptest::collection::vec(step(), 1..80)) {
        let mut machine = machine();
        let mut twin = machine.clone();
        let mut follower = Tree::new();
        let (mut out, mut twin_out) = (Vec::new(), Vec::new());
        let mut now = 0;
        let mut zxid = 0;
        // The last known state of each node that a connection watches: (mzxid, pzxid).
        let mut watched: BTreeMap<(ConnectionId, String), Node> = BTreeMap::new();
        for step in steps {
            let before = contents(machine.tree());
            if let Step::Wait(ms) = step {
                now += ms;
            }
            for (machine, out) in [(&mut machine, &mut out), (&mut twin, &mut twin_out)] {
                out.clear();
                match &step {
                    Step::Connect(id) => {
                        machine.disconnected(ConnectionId(*id));
                        let request = ConnectRequest { timeout_ms: 1_000, ..ConnectRequest::default() };
                        machine.connect(ConnectionId(*id), &request, [7; 16], true, at(now), out);
                    }
                    Step::Disconnect(id) => machine.disconnected(ConnectionId(*id)),
                    Step::Request(id, request) => machine.request(ConnectionId(*id), 1, request.clone(), at(now), out),
                    Step::Identify(id, who) => {
                        let identity = Identity::new("digest", "x".repeat(usize::from(*who)));
                        machine.identify(ConnectionId(*id), identity).unwrap();
                    }
                    Step::Expire(session) => { machine.expire(*session, at(now), out); }
                    Step::Wait(_) => machine.tick(at(now), out),
                }
            }
            prop_assert_eq!(&out, &twin_out);
            if let Step::Connect(id) | Step::Disconnect(id) = &step {
                watched.retain(|(connection, _), _| connection != &ConnectionId(*id));
            }
            let mut failed = true;
            for effect in &out {
                match effect {
                    Effect::Committed(txn) => {
                        prop_assert_eq!(txn.zxid, zxid + 1);
                        zxid = txn.zxid;
                        failed &= matches!(txn.op, TxnOp::Failed(_));
                        follower.apply(txn, &mut Vec::new());
                    }
                    Effect::Event { connection, path, .. } => {
                        watched.remove(&(*connection, path.to_string()));
                    }
                    Effect::Close { connection, .. } => watched.retain(|(watcher, _), _| watcher != connection),
                    Effect::Reply { result: Ok(Response::Multi(results)), .. } => {
                        let any = results.iter().any(|result| matches!(result, OpResult::Failed(_)));
                        prop_assert_eq!(any, failed && !results.is_empty());
                    }
                    Effect::Reply { .. }
                    | Effect::Connected { .. }
                    | Effect::Counted { .. }
                    | Effect::QuotaExceeded { .. }
                    | Effect::Refused { .. } => {}
                }
            }
            machine.tree().assert_consistent();
            prop_assert_eq!(machine.cost(), machine.recounted());
            prop_assert_eq!(contents(machine.tree()), contents(&follower));
            if failed {
                prop_assert_eq!(before, contents(machine.tree()));
            }
            // While a data watch has not fired, the node is as it was when the watch was set.
            for ((connection, path), node) in &watched {
                prop_assert!(machine.watches().contains(*connection, path, WatchKind::Data));
                prop_assert_eq!(machine.tree().get(path).map(|node| node.mzxid), Some(node.mzxid));
            }
            if let Step::Request(id, Request::GetData(WatchedPath { path, watch: true })) = &step
                && let Some(node) = machine.tree().get(path)
                && machine.session_of(ConnectionId(*id)).is_some()
            {
                watched.insert((ConnectionId(*id), path.clone()), node.clone());
            }
            for (session, _) in machine.tree().iter().filter_map(|(_, node)| match node.owner {
                Owner::Session(id) => Some((id, ())),
                _ => None,
            }) {
                prop_assert!(machine.sessions().get(session).is_some(), "a node outlived its session");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever clients ask for, nodes and watches never exceed the budget, and less of something makes room for more of
    /// another thing.
    #[test]
    fn no_history_exceeds_the_budget(steps in proptest::collection::vec(step(), 1..120)) {
        let limits = Limits::default().with_data_bytes(1_500);
        let mut machine = Machine::new(MachineConfig { limits, ..config() }, Tree::new(), 0, at(0));
        let (mut out, mut now) = (Vec::new(), 0);
        for step in steps {
            match step {
                Step::Connect(id) => {
                    machine.disconnected(ConnectionId(id));
                    let request = ConnectRequest { timeout_ms: 1_000, ..ConnectRequest::default() };
                    machine.connect(ConnectionId(id), &request, [7; 16], true, at(now), &mut out);
                }
                Step::Disconnect(id) => machine.disconnected(ConnectionId(id)),
                Step::Request(id, request) => machine.request(ConnectionId(id), 1, request, at(now), &mut out),
                Step::Identify(id, who) => {
                    let identity = Identity::new("digest", "x".repeat(100 + usize::from(who)));
                    let _ = machine.identify(ConnectionId(id), identity);
                }
                Step::Expire(session) => _ = machine.expire(session, at(now), &mut out),
                Step::Wait(ms) => {
                    now += ms;
                    machine.tick(at(now), &mut out);
                }
            }
            let kept = machine.tree().cost() + machine.watches().cost();
            prop_assert!(kept <= limits.data_bytes, "{kept} bytes");
            prop_assert_eq!(machine.cost(), machine.recounted());
        }
    }
}

/// Names, access lists, watched paths, identities and sessions count as data does.
#[test]
fn everything_that_clients_can_make_longer_counts_in_the_budget() {
    let limits = Limits::default().with_data_bytes(10_000);
    let long = "n".repeat(10_000);
    let user = |n| lockkeeper_wire::AclId::Other { scheme: "digest".to_owned(), id: format!("{n:0100}:x") };
    let entries: Vec<Acl> = (1..100).map(|perms| Acl { perms, id: user(perms) }).collect();
    let create = |path: String, data: String| Create::new(path, data, CreateMode::Persistent);
    let watch = |path: &str| WatchedPath { path: path.to_owned(), watch: true };
    let set_watches = SetWatches { exist: vec![format!("/{long}")], ..SetWatches::default() };
    let greedy = [
        Request::Create(create("/a".to_owned(), long.clone())),
        Request::Create(create(format!("/{long}"), String::new())),
        Request::Create(Create { acl: entries.clone(), ..create("/a".to_owned(), String::new()) }),
        Request::SetAcl { path: "/".to_owned(), acl: entries, version: -1 },
        Request::Exists(watch(&format!("/{long}"))),
        Request::AddWatch { path: format!("/{long}"), recursive: false },
        Request::SetWatches(set_watches),
    ];
    for request in greedy {
        let mut machine = Machine::new(MachineConfig { limits, ..config() }, Tree::new(), 0, at(0));
        connect(&mut machine, 1);
        let mut out = Vec::new();
        machine.request(ConnectionId(1), 5, request.clone(), at(0), &mut out);
        let Some(Effect::Reply { result, .. }) = out.pop() else { panic!("{out:?}") };
        assert_eq!(result, Err(ErrorCode::QuotaExceeded), "{:.80}", format!("{request:?}"));
        assert!(machine.cost() <= limits.data_bytes);
    }
    // Sessions and identities are never refused for it, so they take the room of nodes.
    let mut machine = Machine::new(MachineConfig { limits, ..config() }, Tree::new(), 0, at(0));
    (1..100).for_each(|connection| drop(connect(&mut machine, connection)));
    machine.identify(ConnectionId(1), Identity::new("digest", "x".repeat(1_000))).unwrap();
    assert_eq!((machine.sessions().len(), machine.cost()), (99, machine.tree().cost() + 99 * 200 + 1_070));
    let mut out = Vec::new();
    machine.request(ConnectionId(1), 5, Request::Create(create("/a".to_owned(), String::new())), at(0), &mut out);
    assert!(matches!(out.pop(), Some(Effect::Reply { result: Err(ErrorCode::QuotaExceeded), .. })));
}

#[test]
fn a_connection_proves_sixteen_short_identities_at_most() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let mut identify = |id: String| machine.identify(ConnectionId(1), Identity::new("digest", id));
    assert_eq!(identify("x".repeat(1_024)), Err(ErrorCode::AuthFailed));
    assert!((0..16).all(|who| identify(format!("{who}")) == Ok(())));
    assert_eq!(identify("0".to_owned()), Ok(()), "it is known");
    assert_eq!(identify("one more".to_owned()), Err(ErrorCode::AuthFailed));
}

/// Deleting makes room, so a client must get a session. A client that holds a lock must keep its session, its identity
/// and its watches, whoever has spent the budget meanwhile.
#[test]
fn a_spent_budget_refuses_growth_and_nothing_that_clients_live_on() {
    let create = |path: &str, len| Request::Create(Create::new(path, vec![7; len], CreateMode::Persistent));
    let delete = |path: &str| Request::Delete(VersionedPath { path: path.to_owned(), version: -1 });
    let ask = |machine: &mut Machine, connection, request| {
        let mut out = Vec::new();
        machine.request(ConnectionId(connection), 2, request, at(0), &mut out);
        let Some(Effect::Reply { result, .. }) = out.pop() else { panic!("{out:?}") };
        result.err()
    };
    let mut before = machine();
    connect(&mut before, 1);
    ["/a", "/b"].iter().for_each(|path| assert_eq!(ask(&mut before, 1, create(path, 1_000)), None));
    // Exactly full, and far above a limit that was set later.
    for data_bytes in [before.cost(), 2_000] {
        let limits = Limits::default().with_data_bytes(data_bytes);
        let mut machine = Machine::new(MachineConfig { limits, ..config() }, before.tree().clone(), 9, at(0));
        machine.restore_session(1, Duration::from_secs(1), [7; 16], at(0));
        assert!(machine.cost() >= data_bytes && machine.tree().len() == 6);

        let resume = ConnectRequest { session: 1, password: vec![7; 16], timeout_ms: 900, ..ConnectRequest::default() };
        machine.connect(ConnectionId(1), &resume, [0; 16], true, at(0), &mut Vec::new());
        assert_eq!(machine.identify(ConnectionId(1), Identity::new("digest", "user:hash")), Ok(()));
        let watches = SetWatches { data: vec!["/a".to_owned()], relative_zxid: 9, ..SetWatches::default() };
        assert_eq!(ask(&mut machine, 1, Request::SetWatches(watches)), None, "{data_bytes}");
        assert!(machine.watches().contains(ConnectionId(1), "/a", WatchKind::Data));

        connect(&mut machine, 2);
        assert!(machine.session_of(ConnectionId(2)).is_some(), "{data_bytes}: a new session");
        let promised = ConnectRequest { timeout_ms: 900, ..ConnectRequest::default() };
        machine.connect(ConnectionId(3), &promised, [7; 16], false, at(0), &mut Vec::new());
        machine.admit(ConnectionId(3), at(0), &mut Vec::new());
        assert!(machine.session_of(ConnectionId(3)).is_some(), "{data_bytes}: a session with the secret");

        assert_eq!(ask(&mut machine, 2, create("/c", 1)), Some(ErrorCode::QuotaExceeded));
        assert_eq!(ask(&mut machine, 2, delete("/a")), None);
        assert_eq!(ask(&mut machine, 2, create("/c", 1)), None, "{data_bytes}: there is room again");
    }
}

/// Otherwise watches that were accepted could not be set again after a restart.
#[test]
fn watches_of_all_kinds_share_half_of_the_budget() {
    let limits = Limits::default().with_data_bytes(2_000);
    let watch = |at: usize| Request::Exists(WatchedPath { path: format!("/{at}"), watch: true });
    let again = |at: usize| Request::SetWatches(SetWatches { exist: vec![format!("/{at}")], ..SetWatches::default() });
    for request in [watch as fn(usize) -> Request, again] {
        let mut machine = Machine::new(MachineConfig { limits, ..config() }, Tree::new(), 0, at(0));
        connect(&mut machine, 1);
        (0..20).for_each(|at_path| machine.request(ConnectionId(1), 2, request(at_path), at(0), &mut Vec::new()));
        assert_eq!(machine.watches().len(), 9, "of 102 bytes");
    }
}

/// Asking for the same node again and again costs one answer at most, and the error says so.
#[test]
fn a_long_answer_is_refused_before_it_is_built() {
    let limits = Limits::default().with_answer_bytes(100_000);
    let mut machine = Machine::new(MachineConfig { limits, ..config() }, Tree::new(), 0, at(0));
    connect(&mut machine, 1);
    let create = |path: String, data: usize| Create::new(path, vec![7; data], CreateMode::Persistent);
    let big = create("/big".to_owned(), 40_000);
    machine.request(ConnectionId(1), 1, Request::Create(big), at(0), &mut Vec::new());
    for child in 0..1_000 {
        let child = create(format!("/big/{child:060}"), 0);
        machine.request(ConnectionId(1), 2, Request::Create(child), at(0), &mut Vec::new());
    }
    let path = || "/big".to_owned();
    let reads = |op: fn(String) -> ReadOp, count| Request::MultiRead((0..count).map(|_| op(path())).collect());
    let data = |path| ReadOp::GetData { path };
    let names = |path| ReadOp::GetChildren { path };
    for (request, fits) in [
        (Request::GetData(WatchedPath { path: path(), watch: false }), true),
        (Request::GetChildren2(WatchedPath { path: path(), watch: false }), true),
        (reads(data, 2), true),
        (reads(names, 1), true),
        (reads(data, 2_200), false),
        (reads(names, 2_200), false),
    ] {
        let (mut sent, mut out) = (bytes::BytesMut::new(), Vec::with_capacity(1));
        let taken = allocation_counter::measure(|| {
            machine.request(ConnectionId(1), 3, request.clone(), at(0), &mut out);
            let Some(Effect::Reply { xid, zxid, result, .. }) = out.first() else { panic!("{out:?}") };
            lockkeeper_wire::response::encode(&mut sent, *xid, *zxid, result);
        });
        let Some(Effect::Reply { result, .. }) = out.pop() else { panic!() };
        assert_eq!(result.err(), (!fits).then_some(ErrorCode::MarshallingError), "{:.60}", format!("{request:?}"));
        // The parts, the encoded answer, and the copy of the request.
        let most = 2 * 100_000 + 2_200 * 40;
        assert!(taken.bytes_max <= most && sent.len() <= 100_000, "{} bytes", taken.bytes_max);
    }
    machine.set_room(1_000);
    let mut out = Vec::new();
    machine.request(ConnectionId(1), 4, reads(data, 1), at(0), &mut out);
    assert!(matches!(out[..], [Effect::Reply { result: Err(ErrorCode::MarshallingError), .. }]), "others wait");
}

/// A client without the secret has no session: nothing is made durable for it, and no id of another one is given away.
#[test]
fn a_promised_session_begins_with_the_secret() {
    let mut machine = machine();
    let hello = ConnectRequest { timeout_ms: 1_000, ..ConnectRequest::default() };
    let mut out = Vec::new();
    for connection in [1, 2] {
        machine.connect(ConnectionId(connection), &hello, [7; 16], false, at(0), &mut out);
    }
    let ids: Vec<i64> = out
        .drain(..)
        .map(|effect| match effect {
            Effect::Connected { response, zxid: 0, .. } => response.session,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((ids, machine.sessions().len(), machine.zxid()), (vec![1, 2], 0, 0));
    machine.request(ConnectionId(2), 1, Request::Ping, at(0), &mut out);
    assert_eq!(out, [], "no request without a session");
    machine.admit(ConnectionId(2), at(0), &mut out);
    assert!(matches!(out[..], [Effect::Committed(Txn { zxid: 1, session: 2, .. })]), "{out:?}");
    assert_eq!(machine.session_of(ConnectionId(2)), Some(2));
    machine.disconnected(ConnectionId(1));
    machine.admit(ConnectionId(1), at(0), &mut out);
    assert_eq!(machine.sessions().len(), 1, "its client has left");
}

#[test]
fn effects_of_a_write_come_in_the_order_that_keeps_the_promises() {
    let mut machine = machine();
    connect(&mut machine, 1);
    connect(&mut machine, 2);
    let mut out = Vec::new();
    let watch = Request::Exists(WatchedPath { path: "/a".to_owned(), watch: true });
    machine.request(ConnectionId(2), 9, watch, at(0), &mut out);
    out.clear();
    let create = Request::Create(Create::new("/a", "", CreateMode::Ephemeral));
    machine.request(ConnectionId(1), 5, create, at(0), &mut out);
    let [Effect::Committed(txn), Effect::Event { connection, zxid: 3, .. }, Effect::Reply { xid: 5, zxid: 3, .. }] =
        &out[..]
    else {
        panic!("{out:?}");
    };
    assert_eq!((txn.zxid, *connection), (3, ConnectionId(2)));
}

#[test]
fn an_expired_session_hears_of_its_end_and_not_of_its_own_nodes() {
    let mut machine = machine();
    let [_, Effect::Connected { response, .. }] = &connect(&mut machine, 1)[..] else { panic!() };
    connect(&mut machine, 2);
    let mut out = Vec::new();
    let create = Request::Create(Create::new("/a", "", CreateMode::Ephemeral));
    machine.request(ConnectionId(1), 1, create, at(0), &mut out);
    for connection in [1, 2] {
        let watch = Request::Exists(WatchedPath { path: "/a".to_owned(), watch: true });
        machine.request(ConnectionId(connection), 2, watch, at(0), &mut out);
    }
    out.clear();
    assert!(machine.expire(response.session, at(10), &mut out));
    let [Effect::Committed(_), Effect::Event { connection, .. }, Effect::Close { connection: closed, reason }] =
        &out[..]
    else {
        panic!("{out:?}");
    };
    assert_eq!((*connection, *closed, *reason), (ConnectionId(2), ConnectionId(1), CloseReason::SessionExpired));
    assert_eq!(machine.watches().len(), 0);
}

/// A client that resumes a session must not get the one of another client.
#[test]
fn ids_of_sessions_grow_and_those_of_restored_ones_are_not_given_again() {
    let mut machine = machine();
    let second = Duration::from_secs(1);
    for connection in [1, 2] {
        connect(&mut machine, connection);
    }
    assert_eq!([1, 2].map(|connection| machine.session_of(ConnectionId(connection))), [Some(1), Some(2)]);
    assert_eq!((machine.next_session(), machine.zxid()), (3, 2), "each start of a session is a transaction");
    for (restored, next) in [(7, 8), (5, 8)] {
        machine.restore_session(restored, second, [7; 16], at(500));
        assert_eq!(machine.next_session(), next);
    }
    connect(&mut machine, 3);
    assert_eq!(machine.session_of(ConnectionId(3)), Some(8));
    // Its client could not reach the server before: the whole timeout counts from now.
    machine.tick(at(1_400), &mut Vec::new());
    assert!(machine.sessions().get(7).is_some() && machine.sessions().get(1).is_none());
    machine.tick(at(1_700), &mut Vec::new());
    assert!(machine.sessions().get(7).is_none());
}

#[test]
fn a_request_over_a_replaced_connection_has_no_effect() {
    let mut machine = machine();
    let [_, Effect::Connected { response, .. }] = &connect(&mut machine, 1)[..] else { panic!() };
    let resume = ConnectRequest {
        session: response.session,
        password: response.password.to_vec(),
        timeout_ms: 1_000,
        ..ConnectRequest::default()
    };
    let mut out = Vec::new();
    machine.connect(ConnectionId(2), &resume, [0; 16], true, at(10), &mut out);
    assert_eq!(out[0], Effect::Close { connection: ConnectionId(1), reason: CloseReason::Replaced });
    out.clear();
    let create = Request::Create(Create::new("/a", "", CreateMode::Persistent));
    machine.request(ConnectionId(1), 5, create, at(10), &mut out);
    assert_eq!(out, []);
    machine.disconnected(ConnectionId(1));
    assert_eq!(machine.sessions().get(response.session).unwrap().connection, Some(ConnectionId(2)));
}

/// The password resumes the session, so no log may show it.
#[test]
fn a_session_is_described_without_its_password() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let text = format!("{:?}", machine.sessions());
    assert!(text.contains("timeout: 1s") && text.contains("ConnectionId(1)"), "{text}");
    assert!(!text.contains("password") && !text.contains("7, 7"), "{text}");
}

/// As Apache 3.9.5 does, also where there is no subtree.
#[test]
fn a_quota_counts_the_subtree_that_it_finds() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let mut create = |path: &str, data: &'static str| {
        let create = Request::Create(Create::new(path, data, CreateMode::Persistent));
        machine.request(ConnectionId(1), 5, create, at(0), &mut Vec::new());
    };
    create("/a", "four");
    create("/a/b", "two");
    for path in ["/zookeeper/quota/a", "/zookeeper/quota/none"] {
        create(path, "");
        create(&format!("{path}/zookeeper_stats"), "");
    }
    create("/zookeeper/quota/a/zookeeper_limits", "count=9,bytes=99");
    create("/a/c", "x");
    let stats = |path| machine.tree().get(&quota::stats_node(path)).and_then(|node| node.data.clone());
    assert_eq!(stats("/a").as_deref(), Some(&b"count=3,bytes=8"[..]));
    assert_eq!(stats("/none").as_deref(), Some(&b"count=0,bytes=0"[..]));
    let bytes: u64 =
        machine.tree().iter().map(|(_, node)| node.data.as_ref().map_or(0, |data| data.len() as u64)).sum();
    assert_eq!(machine.tree().approximate_bytes(), bytes, "the stats nodes count too");
}

#[test]
fn the_operations_of_a_transaction_count_together_for_a_quota() {
    for limits in ["countHardLimit=3", "byteHardLimit=3"] {
        let mut machine = machine();
        connect(&mut machine, 1);
        let create = |path: &str, data: &'static str| Create::new(path, data, CreateMode::Persistent);
        for (path, data) in [("/a", ""), ("/zookeeper/quota/a", ""), ("/zookeeper/quota/a/zookeeper_stats", "")] {
            machine.request(ConnectionId(1), 1, Request::Create(create(path, data)), at(0), &mut Vec::new());
        }
        let set = Request::Create(create("/zookeeper/quota/a/zookeeper_limits", limits));
        machine.request(ConnectionId(1), 1, set, at(0), &mut Vec::new());
        let mut transact = |paths: &[&str]| {
            let ops = paths.iter().map(|path| WriteOp::Create(create(path, "x"))).collect();
            machine.request(ConnectionId(1), 2, Request::Multi(ops), at(0), &mut Vec::new());
            machine.tree().get("/a").map(|node| node.children.len())
        };
        assert_eq!(transact(&["/a/1", "/a/2", "/a/3", "/a/4"]), Some(0), "{limits}");
        assert_eq!(transact(&["/a/1", "/a/2"]), Some(2), "{limits}");
    }
}

/// The request alone decides which node is a container, whatever its mode, as in Apache's server.
#[test]
fn an_empty_container_goes_with_the_next_check_and_not_before_it() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let mut out = Vec::new();
    for mode in [CreateMode::Container, CreateMode::Persistent, CreateMode::Ephemeral] {
        for (path, opcode) in
            [(format!("/{mode:?}"), OpCode::CreateContainer), (format!("/plain-{mode:?}"), OpCode::Create2)]
        {
            let create = Create { opcode, ..Create::new(path.clone(), "", mode) };
            machine.request(ConnectionId(1), 1, Request::Create(create), at(0), &mut out);
            let child = Create::new(format!("{path}/child"), "", CreateMode::Persistent);
            machine.request(ConnectionId(1), 2, Request::Create(child), at(0), &mut out);
            let delete = VersionedPath { path: format!("{path}/child"), version: -1 };
            machine.request(ConnectionId(1), 3, Request::Delete(delete), at(0), &mut out);
        }
    }
    let containers =
        |machine: &Machine| ["/Container", "/Persistent", "/Ephemeral"].map(|path| machine.tree().get(path).is_some());
    machine.tick(at(999), &mut out);
    assert_eq!(containers(&machine), [true; 3]);
    machine.tick(at(1_000), &mut out);
    assert_eq!(containers(&machine), [false; 3]);
    let plain = ["/plain-Container", "/plain-Persistent", "/plain-Ephemeral"];
    assert!(plain.iter().all(|path| machine.tree().get(path).is_some()));
}

#[test]
fn a_transaction_deletes_children_and_then_their_parent() {
    for children in 1..4 {
        let mut machine = machine();
        connect(&mut machine, 1);
        let create = |path: String| WriteOp::Create(Create::new(path, "", CreateMode::Persistent));
        let delete = |path: String| WriteOp::Delete(VersionedPath { path, version: -1 });
        let paths: Vec<_> = (0..children).map(|child| format!("/a/{child}")).collect();
        let mut ops = vec![create("/a".to_owned())];
        ops.extend(paths.iter().cloned().map(create));
        machine.request(ConnectionId(1), 1, Request::Multi(ops), at(0), &mut Vec::new());
        assert_eq!(machine.tree().get("/a").map(|node| node.children.len()), Some(children));
        let last = paths.len() - 1;
        let transact = |machine: &mut Machine, deleted: &[String]| {
            let ops = deleted.iter().cloned().chain(["/a".to_owned()]).map(delete).collect();
            machine.request(ConnectionId(1), 2, Request::Multi(ops), at(0), &mut Vec::new());
            machine.tree().get("/a").is_some()
        };
        assert!(transact(&mut machine, &paths[..last]), "a child is left");
        assert!(!transact(&mut machine, &paths));
    }
}

#[test]
fn a_lagging_copy_of_the_tree_answers_from_its_own_past() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let lagging = machine.tree().clone();
    let mut out = Vec::new();
    let create = Request::Create(Create::new("/a", "", CreateMode::Persistent));
    machine.request(ConnectionId(1), 5, create, at(0), &mut out);
    let read = Request::Exists(WatchedPath { path: "/a".to_owned(), watch: false });
    let answer = |tree| answer(tree, 1, &Identities::default(), &read, 1_000, &mut Work::default());
    assert_eq!(answer(&lagging), Some(Err(ErrorCode::NoNode)));
    assert!(matches!(answer(machine.tree()), Some(Ok(Response::Stat(_)))));
}

/// Sets watches as a client does that has seen the changes up to `seen`; returns the effects.
fn set_watches(machine: &mut Machine, seen: i64, paths: &[&str]) -> Vec<Effect> {
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    let request = SetWatches { relative_zxid: seen, data: paths.clone(), child: paths, ..SetWatches::default() };
    let mut out = Vec::new();
    machine.request(ConnectionId(1), 5, Request::SetWatches(request), at(0), &mut out);
    out
}

/// It would take the event for another change, and read again for nothing.
#[test]
fn a_client_that_has_seen_the_last_change_of_a_node_gets_no_event_of_it() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let create = Request::Create(Create::new("/a", "", CreateMode::Persistent));
    machine.request(ConnectionId(1), 5, create, at(0), &mut Vec::new());
    let created = machine.zxid();
    let events = |out: &[Effect]| out.iter().filter(|effect| matches!(effect, Effect::Event { .. })).count();
    let out = set_watches(&mut machine, created, &["/a"]);
    assert_eq!((events(&out), machine.watches().len()), (0, 2), "{out:?}");
    let out = set_watches(&mut machine, created - 1, &["/a"]);
    assert_eq!(events(&out), 2, "its data and its list are new: {out:?}");
}

#[test]
fn watches_are_set_up_to_the_limit() {
    let limits = Limits { watches: 4, ..Limits::default() };
    let mut machine = Machine::new(MachineConfig { limits, ..config() }, Tree::new(), 0, at(0));
    connect(&mut machine, 1);
    for (paths, refused) in [(&["/", "/zookeeper", "/zookeeper/quota"][..], true), (&["/", "/zookeeper"], false)] {
        let seen = machine.zxid();
        let out = set_watches(&mut machine, seen, paths);
        let Some(Effect::Reply { result, .. }) = out.last() else { panic!("{out:?}") };
        assert_eq!(*result == Err(ErrorCode::QuotaExceeded), refused, "{out:?}");
    }
    assert_eq!(machine.watches().len(), 4);
}

/// The driver logs it, and may leave some out: a client can cause as many as it likes.
#[test]
fn each_crossing_of_a_soft_limit_is_an_effect() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let mut out = Vec::new();
    let quota =
        ["/a", "/zookeeper/quota/a", "/zookeeper/quota/a/zookeeper_stats", "/zookeeper/quota/a/zookeeper_limits"];
    for (path, data) in quota.into_iter().zip(["", "", "", "count=2"]) {
        let create = Create::new(path, data, CreateMode::Persistent);
        machine.request(ConnectionId(1), 1, Request::Create(create), at(0), &mut out);
    }
    let create = |path: &str| WriteOp::Create(Create::new(path, "x", CreateMode::Persistent));
    let delete = |path: &str| WriteOp::Delete(VersionedPath { path: path.to_owned(), version: -1 });
    for (ops, crossings) in [
        (vec![create("/a/1")], 0),
        (vec![create("/a/2")], 1),
        (vec![create("/a/3")], 0),
        (vec![delete("/a/3"), delete("/a/2"), create("/a/2"), delete("/a/2"), create("/a/2")], 2),
    ] {
        out.clear();
        machine.request(ConnectionId(1), 1, Request::Multi(ops), at(0), &mut out);
        let exceeded = Effect::QuotaExceeded { path: "/a".into(), nodes: 3, bytes: 2 };
        assert_eq!(out.iter().filter(|effect| **effect == exceeded).count(), crossings, "{out:?}");
    }
}

/// A client may write any number into a stats node, and the server counts on from there.
#[test]
fn the_numbers_of_a_quota_stop_at_the_largest_and_the_smallest() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let create = |path: &str, data: &'static str| WriteOp::Create(Create::new(path, data, CreateMode::Persistent));
    let delete = |path: &str| WriteOp::Delete(VersionedPath { path: path.to_owned(), version: -1 });
    let mut transact = |ops| {
        let mut out = Vec::new();
        machine.request(ConnectionId(1), 1, Request::Multi(ops), at(0), &mut out);
        assert!(matches!(out[0], Effect::Committed(Txn { op: TxnOp::Multi(_), .. })), "{out:?}");
        let stats = machine.tree().get(&quota::stats_node("/a")).and_then(|node| node.data.clone());
        String::from_utf8(stats.unwrap().to_vec()).unwrap()
    };
    let (stats, limits) = (quota::stats_node("/a"), quota::limits_node("/a"));
    transact(vec![create("/a", ""), create("/zookeeper/quota/a", ""), create(&stats, ""), create(&limits, "")]);
    for (number, more, less) in [
        (i64::MAX, format!("count={0},bytes={0}", i64::MAX), format!("count={0},bytes={0}", i64::MAX - 2)),
        (i64::MIN, format!("count={0},bytes={0}", i64::MIN + 2), format!("count={0},bytes={0}", i64::MIN)),
    ] {
        let data = Some(format!("count={number},bytes={number}").into());
        transact(vec![WriteOp::SetData(SetData { path: stats.clone(), data, version: -1 })]);
        assert_eq!(transact(vec![create("/a/1", "x"), create("/a/2", "x")]), more);
        assert_eq!(transact(vec![delete("/a/1"), delete("/a/2")]), less);
    }
}

/// Carries out a request of connection 1; returns its answer and its work.
fn ask(machine: &mut Machine, request: Request) -> (Result<Response, ErrorCode>, usize) {
    let mut out = Vec::new();
    machine.take_work();
    machine.request(ConnectionId(1), 1, request, at(0), &mut out);
    let Some(Effect::Reply { result, .. }) = out.pop() else { panic!("no answer") };
    (result, machine.take_work())
}

/// Returns the error of the first operation that a transaction failed with.
fn failed((result, _): (Result<Response, ErrorCode>, usize)) -> Option<ErrorCode> {
    let Ok(Response::Multi(results)) = result else { panic!("{result:?}") };
    results.into_iter().find_map(|result| match result {
        OpResult::Failed(error) => Some(error),
        _ => None,
    })
}

/// Creates a node with a list of as many entries as it may have, which name others.
fn create_closed(machine: &mut Machine, path: &str) {
    let strangers = (0..identity::ENTRIES - 1).map(|n| Acl {
        perms: lockkeeper_wire::Perms::ALL,
        id: lockkeeper_wire::AclId::Other { scheme: "ip".to_owned(), id: format!("10.0.0.{n}") },
    });
    let own = Acl { perms: lockkeeper_wire::Perms::ALL & !lockkeeper_wire::Perms::READ, ..Acl::OPEN };
    let acl = strangers.chain([own]).collect();
    let closed = Create { acl, ..Create::new(path, "", CreateMode::Persistent) };
    assert!(ask(machine, Request::Create(closed)).0.is_ok());
}

/// A read of a node that a client may not read compares its whole access list and gets an answer of a few bytes. So a request of 160 kB
/// took seconds, in which no other client was served.
#[test]
fn a_read_of_many_operations_ends_when_it_has_compared_too_many_entries() {
    let mut machine = machine();
    connect(&mut machine, 1);
    create_closed(&mut machine, "/closed");
    let mut reads = |count, path: &str| {
        let reads = (0..count).map(|_| ReadOp::GetData { path: path.to_owned() }).collect();
        let (result, work) = ask(&mut machine, Request::MultiRead(reads));
        assert!(work < work::MOST + 200, "{work}");
        result
    };
    assert!(reads(2_200, "/closed").is_ok());
    assert_eq!(reads(2_400, "/closed"), Err(ErrorCode::MarshallingError));
    // About as many as fit into a frame.
    assert!(reads(45_000, "/").is_ok() && reads(30_000, "/none").is_ok());
}

/// The operations of a transaction have the budget of any other request.
#[test]
fn a_transaction_is_refused_before_it_takes_too_much_work() {
    let mut machine = machine();
    connect(&mut machine, 1);
    create_closed(&mut machine, "/closed");
    let delete = |path: String| WriteOp::Delete(VersionedPath { path, version: -1 });
    let create = |path: String, data| WriteOp::Create(Create::new(path, vec![7; data], CreateMode::Persistent));
    let mut transact = |ops: Vec<WriteOp>| {
        let zxid = machine.zxid();
        let (result, work) = ask(&mut machine, Request::Multi(ops));
        assert!(work < work::MOST + 200 && machine.zxid() == zxid + 1, "{work}");
        failed((result, work))
    };
    // About as many as fit into a frame.
    assert_eq!(transact((0..11_000).map(|n| create(format!("/n{n}"), 0)).collect()), None);
    assert_eq!(transact((0..11_000).map(|n| delete(format!("/n{n}"))).collect()), None);
    // Each one compares a long list.
    let creates = |count| (0..count).map(|n| create(format!("/closed/{count}-{n}"), 0)).collect();
    assert_eq!((transact(creates(1_900)), transact(creates(2_100))), (None, Some(ErrorCode::QuotaExceeded)));
    // Each one makes the next batch longer by the data of its parent.
    (0..40).for_each(|n| assert_eq!(transact(vec![create(format!("/big{n}"), 1_000_000)]), None));
    let below = |count| (0..count).map(|n| create(format!("/big{n}/{count}"), 0)).collect();
    assert_eq!((transact(below(4)), transact(below(40))), (None, Some(ErrorCode::QuotaExceeded)));
    // Each one counts all nodes of a subtree.
    let stats = || create(quota::stats_node("/closed"), 0);
    assert_eq!(transact(vec![create("/zookeeper/quota/closed".to_owned(), 0)]), None);
    let again = |count| -> Vec<_> {
        std::iter::repeat_with(|| [stats(), delete(quota::stats_node("/closed"))]).take(count).flatten().collect()
    };
    assert_eq!((transact(again(10)), transact(again(100))), (None, Some(ErrorCode::QuotaExceeded)));
}

/// A transaction of 828 kB made 36 000 events for each of 900 clients: 5.6 GB, and nobody was served for a minute.
#[test]
fn a_transaction_with_too_many_events_is_refused_and_changes_nothing() {
    const CLIENTS: u64 = 900;
    let set = |count| {
        let set = SetData { path: "/w".to_owned(), data: None, version: -1 };
        Request::Multi(vec![WriteOp::SetData(set); count])
    };
    let everything = |kind: fn(&str) -> Request| {
        let mut machine = machine();
        connect(&mut machine, 1);
        ask(&mut machine, Request::Create(Create::new("/w", "", CreateMode::Persistent))).0.unwrap();
        for client in 2..2 + CLIENTS {
            connect(&mut machine, client);
            machine.request(ConnectionId(client), 1, kind("/w"), at(0), &mut Vec::new());
        }
        machine
    };
    let persistent = |path: &str| Request::AddWatch { path: path.to_owned(), recursive: false };
    let above = |_: &str| Request::AddWatch { path: "/".to_owned(), recursive: true };
    for kind in [persistent as fn(&str) -> Request, above] {
        let mut machine = everything(kind);
        assert_eq!(failed(ask(&mut machine, set(80))), None);
        let mut refused = None;
        let taken = allocation_counter::measure(|| refused = failed(ask(&mut machine, set(36_000))));
        assert_eq!(refused, Some(ErrorCode::QuotaExceeded));
        assert!(taken.bytes_max < 36_000 * 1_000, "{} bytes", taken.bytes_max);
        assert_eq!(machine.tree().get("/w").map(|node| node.version), Some(80));
    }
    // A watch that fires once is counted once.
    let once = |path: &str| Request::GetData(WatchedPath { path: path.to_owned(), watch: true });
    let mut machine = everything(once);
    assert_eq!(failed(ask(&mut machine, set(10_000))), None);
}

/// A thousand waiters of a lock, each of which watches the one before it and the list, may all be deleted at once.
#[test]
fn a_transaction_may_delete_a_thousand_contenders_that_are_watched() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let create = |path: String| Request::Create(Create::new(path, "", CreateMode::Persistent));
    ask(&mut machine, create("/lock".to_owned())).0.unwrap();
    for n in 0..1_000 {
        connect(&mut machine, 2 + n);
        ask(&mut machine, create(format!("/lock/{n}"))).0.unwrap();
        let watch = WatchedPath { path: format!("/lock/{}", n.saturating_sub(1)), watch: true };
        let list = WatchedPath { path: "/lock".to_owned(), watch: true };
        for request in [Request::GetData(watch), Request::GetChildren(list)] {
            machine.request(ConnectionId(2 + n), 1, request, at(0), &mut Vec::new());
        }
        machine.request(
            ConnectionId(2 + n),
            1,
            Request::AddWatch { path: "/".to_owned(), recursive: n < 3 },
            at(0),
            &mut Vec::new(),
        );
    }
    let delete = |n| WriteOp::Delete(VersionedPath { path: format!("/lock/{n}"), version: -1 });
    assert_eq!(failed(ask(&mut machine, Request::Multi((0..1_000).map(delete).collect()))), None);
}

/// Counts the sessions, the nodes and the watches that are left, and the most work of a slice, until nothing is put off.
fn slices(machine: &mut Machine, now: Now) -> (usize, usize) {
    let (mut out, mut slices, mut most) = (Vec::new(), 0, 0);
    while machine.has_put_off() {
        machine.take_work();
        machine.go_on(now, &mut out);
        machine.tree().assert_consistent();
        (slices, most) = (slices + 1, most.max(machine.take_work()));
    }
    (slices, most)
}

/// Else the end of a time to live, of many sessions, or of a connection with many watches stopped all clients for a second.
#[test]
fn what_the_server_does_by_itself_is_done_in_slices() {
    const NODES: usize = 3_000;
    let mut machine = machine();
    connect(&mut machine, 1);
    for n in 0..NODES {
        let mut ttl = Create::new(format!("/ttl-{n}"), "", CreateMode::PersistentTtl);
        (ttl.ttl_ms, ttl.opcode) = (1, OpCode::CreateTtl);
        ask(&mut machine, Request::Create(ttl)).0.unwrap();
        let lasting = Create {
            ttl_ms: 1 << 30,
            opcode: OpCode::CreateTtl,
            ..Create::new(format!("/n-{n}"), "", CreateMode::PersistentTtl)
        };
        ask(&mut machine, Request::Create(lasting)).0.unwrap();
    }
    let before = machine.tree().len();
    machine.tick(at(1_000), &mut Vec::new());
    let first = before - machine.tree().len();
    assert!(first < NODES / 2, "{first} in the first slice");
    let (count, most) = slices(&mut machine, at(1_000));
    assert!(count > 5 && most < SLICE + REAPED * 100, "{count} slices, {most}");
    assert_eq!(machine.tree().len(), before - NODES);

    // Sessions end one by one, each as a whole.
    let (first, create) = (10_000, |n| Request::Create(Create::new(format!("/e-{n}"), "", CreateMode::Ephemeral)));
    for session in first..first + 1_000 {
        connect(&mut machine, session);
        for n in 0..2 {
            machine.request(ConnectionId(session), 1, create(2 * session + n), at(1_000), &mut Vec::new());
        }
    }
    let before = machine.sessions().len();
    machine.tick(at(1_500), &mut Vec::new());
    assert_eq!((machine.sessions().len(), machine.has_put_off()), (before - 1, false), "the first one has expired");
    machine.tick(at(10_000), &mut Vec::new());
    assert!(machine.sessions().len() > 100 && machine.has_put_off());
    let late = machine.sessions().iter().last().map(|(id, _)| id).unwrap();
    let nodes = machine.tree().ephemerals_of(late);
    assert_eq!(nodes, 2, "no session has ended in part");
    assert!(machine.sessions.touch(late, Duration::from_secs(10)));
    let (count, most) = slices(&mut machine, at(10_000));
    assert!(count > 2 && most < SLICE + 1_000, "{count} slices, {most}");
    assert_eq!((machine.sessions().len(), machine.tree().ephemeral_count()), (1, 2), "its client was heard meanwhile");
}

/// The nodes of a session end in one transaction, so that no client sees a part of them.
#[test]
fn a_session_has_no_more_ephemeral_nodes_than_can_end_at_once() {
    let limits = Limits::default().with_ephemerals(3);
    let mut machine = Machine::new(MachineConfig { limits, ..config() }, Tree::new(), 0, at(0));
    connect(&mut machine, 1);
    let create = |n: usize| Create::new(format!("/{n}"), "", CreateMode::Ephemeral);
    let delete = |n: usize| VersionedPath { path: format!("/{n}"), version: -1 };
    let multi = |count| Request::Multi((0..count).map(|n| WriteOp::Create(create(n))).collect());
    assert_eq!(failed(ask(&mut machine, multi(4))), Some(ErrorCode::QuotaExceeded));
    assert_eq!(failed(ask(&mut machine, multi(3))), None);
    let mut out = Vec::new();
    machine.request(ConnectionId(1), 1, Request::Create(create(3)), at(0), &mut out);
    assert_eq!(out[0], Effect::Refused { connection: ConnectionId(1), limit: Limit::Ephemerals });
    assert!(matches!(out.last(), Some(Effect::Reply { result: Err(ErrorCode::QuotaExceeded), .. })));
    ask(&mut machine, Request::Delete(delete(0))).0.unwrap();
    assert!(ask(&mut machine, Request::Create(create(3))).0.is_ok());
    // Others are not concerned, and neither are nodes that stay.
    connect(&mut machine, 2);
    machine.request(ConnectionId(2), 1, Request::Create(create(7)), at(0), &mut Vec::new());
    ask(&mut machine, Request::Create(Create::new("/p", "", CreateMode::Persistent))).0.unwrap();
    assert_eq!(machine.tree().ephemeral_count(), 4);
}

/// The end of a session cannot be refused, so clients that would get too many events at once are disconnected instead.
#[test]
fn the_end_of_a_session_sends_a_bounded_number_of_events() {
    const CLIENTS: u64 = 400;
    let mut machine = machine();
    connect(&mut machine, 1);
    let create = |n| WriteOp::Create(Create::new(format!("/{n}"), "", CreateMode::Ephemeral));
    assert_eq!(failed(ask(&mut machine, Request::Multi((0..2_000).map(create).collect()))), None);
    for client in 2..2 + CLIENTS {
        connect(&mut machine, client);
        let watch = Request::AddWatch { path: "/".to_owned(), recursive: true };
        machine.request(ConnectionId(client), 1, watch, at(0), &mut Vec::new());
    }
    let mut out = Vec::new();
    machine.request(ConnectionId(1), 1, Request::CloseSession, at(0), &mut out);
    let events = out.iter().filter(|effect| matches!(effect, Effect::Event { .. })).count();
    let cut = |effect: &&Effect| matches!(effect, Effect::Close { reason: CloseReason::TooManyEvents, .. });
    let cut = out.iter().filter(cut).count();
    assert_eq!(machine.tree().ephemeral_count(), 0);
    assert!((60_000..150_000).contains(&events) && (1..=400).contains(&cut), "{events} events, {cut} closed");
    // Those that are not closed got all events.
    let whole = usize::try_from(CLIENTS).unwrap() - cut;
    assert_eq!(machine.watches().len(), whole);
    assert!(machine.take_work() < 2 * work::MOST);
}

#[test]
fn a_path_has_a_length_and_a_depth() {
    let limits = Limits::default().with_path_bytes(30).with_path_depth(3);
    let mut machine = Machine::new(MachineConfig { limits, ..config() }, Tree::new(), 0, at(0));
    connect(&mut machine, 1);
    let create = |path: &str, mode| Request::Create(Create::new(path, "", mode));
    let (long, deep) = (format!("/{}", "n".repeat(29)), "/a/b/c");
    for path in ["/a", "/a/b", deep, &long] {
        assert!(ask(&mut machine, create(path, CreateMode::Persistent)).0.is_ok(), "{path}");
    }
    for (path, mode, limit) in [
        ("/a/b/c/d", CreateMode::Persistent, Limit::PathDepth),
        (&format!("{long}n")[..], CreateMode::Persistent, Limit::PathBytes),
        // With its number.
        (&long[..21], CreateMode::PersistentSequential, Limit::PathBytes),
    ] {
        let mut out = Vec::new();
        machine.request(ConnectionId(1), 1, create(path, mode), at(0), &mut out);
        assert_eq!(out[0], Effect::Refused { connection: ConnectionId(1), limit }, "{path}");
        assert!(matches!(out.last(), Some(Effect::Reply { result: Err(ErrorCode::QuotaExceeded), .. })));
    }
    // Nor can it be watched, unless the node is there from before.
    let exists = |path: &str| Request::Exists(WatchedPath { path: path.to_owned(), watch: true });
    let again = |path: &str| Request::SetWatches(SetWatches { exist: vec![path.to_owned()], ..SetWatches::default() });
    for request in [exists as fn(&str) -> Request, again] {
        assert_eq!(ask(&mut machine, request(&"/n".repeat(40))).0, Err(ErrorCode::QuotaExceeded));
    }
    let limits = Limits::default().with_path_bytes(5);
    let mut later = Machine::new(MachineConfig { limits, ..config() }, machine.tree().clone(), 9, at(0));
    connect(&mut later, 1);
    assert!(
        ask(&mut later, exists(deep)).0.is_ok()
            && ask(&mut later, Request::Delete(VersionedPath { path: long, version: -1 })).0.is_ok()
    );
}

/// The driver ends the turn of a client whose requests are much work.
#[test]
fn a_request_tells_its_work() {
    let mut machine = machine();
    connect(&mut machine, 1);
    let create = |path: String| Request::Create(Create::new(path, "", CreateMode::Ephemeral));
    let mut work = |request| ask(&mut machine, request).1;
    let place = ["/t", "/zookeeper/quota/t"].map(|path| Create::new(path, "", CreateMode::Persistent));
    work(Request::Multi(place.map(WriteOp::Create).into()));
    (0..100).for_each(|node| assert!(work(create(format!("/t/{node}"))) < 50));
    let exists = WatchedPath { path: "/t".to_owned(), watch: false };
    assert!(work(Request::Exists(exists)) < 20);
    assert!(work(Request::GetAllChildrenNumber { path: "/t".to_owned() }) >= 300);
    assert!(work(create(quota::stats_node("/t"))) >= 600, "the new stats node counts the subtree");
    assert!(work(Request::GetEphemerals { prefix: "/none".to_owned() }) < 20);
    assert!(work(Request::GetEphemerals { prefix: "/".to_owned() }) >= 100);
}
