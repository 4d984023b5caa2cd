//! Requests that leave together, on the session's machine and on the embedded server.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_client::wire::request::{self, Packet};
use lockkeeper_client::wire::{
    Acl, ConnectResponse, Create, CreateMode, ErrorCode, OpResult, ReadOp, Request, Response, Stat, VersionedPath,
    WatchedPath, WriteOp, frame, response,
};
use lockkeeper_client::{Client, Config, RequestError, RequestId, Session, SessionEvent};
use lockkeeper_server::Server;

#[path = "batches/parents.rs"]
mod parents;

const NOW: Duration = Duration::from_secs(1);

/// A connected session, and a server that the test plays.
struct Stage(Session);

impl Stage {
    fn connected() -> Stage {
        let mut stage = Stage(Session::new(Config::new(Duration::from_secs(10)), 1, 1, NOW));
        stage.connect();
        stage
    }

    fn connect(&mut self) {
        while self.0.transport().is_none() {
            let due = self.0.deadline().unwrap();
            self.0.timeout(due);
        }
        self.0.opened(NOW);
        self.0.outgoing().clear();
        let mut bytes = BytesMut::new();
        let response = ConnectResponse { timeout_ms: 10_000, session: 7, password: [7; 16] };
        response::encode_connect(&mut bytes, &response, true);
        self.0.received(&bytes, NOW);
        while self.0.poll().is_some() {}
    }

    fn create(&mut self, parent: &str) -> RequestId {
        self.0.request_batched(Request::Create(create(parent)), NOW)
    }

    fn delete(&mut self, path: &str) -> RequestId {
        self.0.request_batched(Request::Delete(VersionedPath { path: path.to_owned(), version: -1 }), NOW)
    }

    fn list(&mut self, path: &str) -> RequestId {
        self.0.request_batched(Request::GetChildren2(WatchedPath { path: path.to_owned(), watch: false }), NOW)
    }

    /// Takes what the session sends now.
    fn sent(&mut self) -> Vec<(i32, Request)> {
        let mut bytes = self.0.outgoing().split();
        let mut requests = Vec::new();
        while let Some(payload) = frame::first(&bytes, 1 << 30).unwrap().map(<[u8]>::to_vec) {
            _ = bytes.split_to(4 + payload.len());
            match request::decode(&payload).unwrap() {
                Packet::Request { xid, request, .. } => requests.push((xid, request)),
                other => panic!("{other:?}"),
            }
        }
        requests
    }

    fn reply(&mut self, xid: i32, zxid: i64, result: Result<Response, ErrorCode>) {
        let mut bytes = BytesMut::new();
        response::encode(&mut bytes, xid, zxid, &result);
        self.0.received(&bytes, NOW);
    }

    fn results(&mut self) -> Vec<(RequestId, Result<Response, RequestError>)> {
        let events = std::iter::from_fn(|| self.0.poll());
        let replies = events.filter_map(|event| match event {
            SessionEvent::Reply { id, result, .. } => Some((id, result)),
            _ => None,
        });
        replies.collect()
    }
}

fn create(parent: &str) -> Create {
    Create::new(format!("{parent}/n-"), "", CreateMode::EphemeralSequential)
}

fn created(path: &str, czxid: i64) -> OpResult {
    OpResult::Created { path: path.into(), stat: Some(Stat { czxid, ..Stat::default() }) }
}

fn children(parents: &[&str]) -> Request {
    let both =
        |path: &&str| [ReadOp::GetChildren { path: (*path).to_owned() }, ReadOp::GetData { path: (*path).to_owned() }];
    Request::MultiRead(parents.iter().flat_map(both).collect())
}

fn listed(names: &[&str]) -> [OpResult; 2] {
    let names = names.iter().map(|name| (*name).into()).collect();
    [OpResult::Children(names), OpResult::Data { data: None, stat: Stat { data_length: 3, ..Stat::default() } }]
}

fn deleted() -> Response {
    Response::Done
}

#[test]
fn requests_of_one_moment_leave_as_a_transaction_and_a_read_behind_it() {
    let mut stage = Stage::connected();
    let (a, list_a) = (stage.create("/a"), stage.list("/a"));
    let (b, list_b) = (stage.create("/b"), stage.list("/b"));
    let c = stage.delete("/c/n-0");
    let sent = stage.sent();
    let ops = vec![
        WriteOp::Create(create("/a")),
        WriteOp::Create(create("/b")),
        WriteOp::Delete(VersionedPath { path: "/c/n-0".to_owned(), version: -1 }),
    ];
    let requests: Vec<_> = sent.iter().map(|(_, request)| request.clone()).collect();
    assert_eq!(requests, [Request::Multi(ops), children(&["/a", "/b"])]);

    // The second node's transaction is not named, as by some servers.
    let results = vec![created("/a/n-1", 5), created("/b/n-4", -1), OpResult::Deleted];
    stage.reply(sent[0].0, 5, Ok(Response::Multi(results)));
    let lists = [listed(&["n-1"]), listed(&["n-3", "n-4"])].concat();
    stage.reply(sent[1].0, 5, Ok(Response::Multi(lists)));
    let answers = stage.results();
    assert_eq!(answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [a, b, c, list_a, list_b]);
    for (answer, expected) in answers[..2].iter().zip(["/a/n-1", "/b/n-4"]) {
        match &answer.1 {
            Ok(Response::Created { path, stat: Some(stat) }) => assert_eq!((&**path, stat.czxid), (expected, 5)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answers[2].1, Ok(deleted()));
    match &answers[4].1 {
        Ok(Response::Children { names, stat: Some(stat) }) => assert_eq!((names.len(), stat.data_length), (2, 3)),
        other => panic!("{other:?}"),
    }
}

/// The first of a crowd learns its place before the crowd has entered.
#[test]
fn a_list_leaves_before_the_later_children_of_its_node() {
    let mut stage = Stage::connected();
    stage.create("/a");
    stage.list("/a");
    stage.create("/a");
    stage.create("/b");
    stage.create("/a");
    stage.list("/b");
    let sent: Vec<_> = stage.sent().into_iter().map(|(_, request)| request).collect();
    let create = |parent| Request::Create(create(parent));
    let both = Request::Multi(["/a", "/b"].map(self::create).map(WriteOp::Create).into());
    let list = |path: &str| Request::GetChildren2(WatchedPath { path: path.to_owned(), watch: false });
    assert_eq!(sent, [both, list("/a"), create("/a"), create("/a"), list("/b")]);
}

#[test]
fn a_request_that_is_alone_leaves_as_it_is() {
    let mut stage = Stage::connected();
    stage.create("/a");
    stage.list("/a");
    let requests: Vec<_> = stage.sent().into_iter().map(|(_, request)| request).collect();
    let list = Request::GetChildren2(WatchedPath { path: "/a".to_owned(), watch: false });
    assert_eq!(requests, [Request::Create(create("/a")), list]);
}

#[test]
fn a_node_gets_one_child_in_a_transaction_so_that_tokens_differ() {
    let mut stage = Stage::connected();
    for parent in ["/a", "/b", "/a", "/a", "/b"] {
        stage.create(parent);
    }
    let parents = |ops: &[WriteOp]| -> Vec<String> {
        let path = |op: &WriteOp| match op {
            WriteOp::Create(create) => create.path.clone(),
            other => panic!("{other:?}"),
        };
        ops.iter().map(path).collect()
    };
    let sent: Vec<_> = stage.sent().into_iter().map(|(_, request)| request).collect();
    match &sent[..] {
        [Request::Multi(first), Request::Multi(second), Request::Create(third)] => {
            assert_eq!(parents(first), ["/a/n-", "/b/n-"]);
            assert_eq!(parents(second), ["/a/n-", "/b/n-"]);
            assert_eq!(third.path, "/a/n-");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn while_transactions_are_under_way_later_requests_gather_and_any_other_request_takes_them_along() {
    let mut stage = Stage::connected();
    stage.create("/a");
    let first = stage.sent()[0].0;
    stage.create("/b");
    assert_eq!(stage.sent().len(), 1, "two may be under way");
    for parent in ["/c", "/d"] {
        stage.create(parent);
        assert_eq!(stage.sent(), [], "it waits");
    }
    let created = Response::Created { path: "/a/n-1".into(), stat: Some(Stat::default()) };
    stage.reply(first, 1, Ok(created));
    assert!(matches!(&stage.sent()[..], [(_, Request::Multi(ops))] if ops.len() == 2));
    stage.create("/e");
    assert_eq!(stage.sent(), []);
    stage.0.request(Request::Sync { path: "/".to_owned() }, NOW);
    assert!(matches!(&stage.sent()[..], [(_, Request::Create(_)), (_, Request::Sync { .. })]));
}

#[test]
fn one_bad_path_harms_no_other_request() {
    let mut stage = Stage::connected();
    let (a, bad, b) = (stage.create("/a"), stage.create("/none"), stage.create("/b"));
    let (list_a, list_b) = (stage.list("/a"), stage.list("/b"));
    let sent = stage.sent();
    let failed = vec![
        OpResult::RolledBack,
        OpResult::Failed(ErrorCode::NoAuth),
        OpResult::Failed(ErrorCode::RuntimeInconsistency),
    ];
    stage.reply(sent[0].0, 1, Ok(Response::Multi(failed)));
    assert_eq!(stage.results(), [(bad, Err(RequestError::Refused(ErrorCode::NoAuth)))]);
    let again = stage.sent();
    let requests: Vec<_> = again.iter().map(|(_, request)| request.clone()).collect();
    assert_eq!(requests, [Request::Create(create("/a")), Request::Create(create("/b"))]);
    // The lists do not show the nodes, so they are made again behind them.
    stage.reply(sent[1].0, 1, Ok(Response::Multi([listed(&[]), listed(&[])].concat())));
    assert_eq!(stage.results(), []);
    let lists = stage.sent();
    assert_eq!(lists[0].1, children(&["/a", "/b"]));
    for ((xid, _), zxid) in again.iter().zip(2..) {
        stage.reply(*xid, zxid, Ok(Response::Created { path: "/x/n-1".into(), stat: Some(Stat::default()) }));
    }
    stage.reply(lists[0].0, 3, Ok(Response::Multi([listed(&["n-1"]), listed(&["n-1"])].concat())));
    let answered: Vec<_> = stage.results().into_iter().map(|(id, result)| (id, result.is_ok())).collect();
    assert_eq!(answered, [a, b, list_a, list_b].map(|id| (id, true)));
}

/// The server may have carried it out: another create could leave a second node. And a server that has no time for one request
/// has none for two.
#[test]
fn an_error_that_is_no_refusal_of_a_transaction_is_that_of_each_of_its_requests() {
    for error in
        [ErrorCode::MarshallingError, ErrorCode::SystemError, ErrorCode::ThrottledOp, ErrorCode::OperationTimeout]
    {
        let mut stage = Stage::connected();
        let ids = [stage.create("/a"), stage.create("/b"), stage.delete("/c/n-0")];
        let list = stage.list("/a");
        let sent = stage.sent();
        stage.reply(sent[0].0, 1, Err(error));
        assert_eq!(stage.results(), ids.map(|id| (id, Err(RequestError::Refused(error)))));
        assert_eq!(stage.sent(), [], "{error:?}: made again");
        let children = Response::Children { names: vec!["n-1".into()], stat: Some(Stat::default()) };
        stage.reply(sent[1].0, 1, Ok(children.clone()));
        assert_eq!(stage.results(), [(list, Ok(children))]);
    }
}

#[test]
fn a_transaction_that_is_refused_as_a_whole_is_made_again_one_by_one() {
    for error in [ErrorCode::NoAuth, ErrorCode::QuotaExceeded, ErrorCode::EphemeralOnLocalSession] {
        let mut stage = Stage::connected();
        let ids = [stage.create("/a"), stage.create("/b")];
        let refused = stage.sent()[0].0;
        stage.reply(refused, 1, Err(error));
        assert_eq!(stage.results(), []);
        let again = stage.sent();
        assert!(matches!(&again[..], [(_, Request::Create(_)), (_, Request::Create(_))]), "{again:?}");
        again.iter().for_each(|(xid, _)| stage.reply(*xid, 1, Err(error)));
        assert_eq!(stage.results(), ids.map(|id| (id, Err(RequestError::Refused(error)))));
        assert_eq!(stage.sent(), []);
    }
}

/// A create that was answered as a delete, a result too few, and a rollback without a reason.
#[test]
fn results_of_other_operations_end_the_connection_and_nothing_panics() {
    let other: [Vec<OpResult>; 3] =
        [vec![OpResult::Deleted; 2], vec![created("/a/n-1", 1)], vec![created("/a/n-1", 1), OpResult::RolledBack]];
    for results in other {
        let mut stage = Stage::connected();
        let ids = ["/a", "/b"].map(|parent| stage.create(parent));
        let xid = stage.sent()[0].0;
        stage.reply(xid, 1, Ok(Response::Multi(results)));
        assert_eq!(stage.results(), ids.map(|id| (id, Err(RequestError::ConnectionLoss))));
        assert!(!stage.0.is_connected());
    }
}

#[test]
fn after_a_lost_connection_only_requests_that_had_left_are_in_doubt() {
    let mut stage = Stage::connected();
    let left: Vec<_> = ["/a", "/b"].map(|parent| stage.create(parent)).to_vec();
    stage.sent();
    let list = stage.list("/a");
    stage.sent();
    stage.create("/c");
    stage.sent();
    let (held, held_list) = (stage.create("/d"), stage.list("/d"));
    assert_eq!(stage.sent(), []);
    stage.0.failed(NOW);
    let lost: Vec<_> = stage.results().into_iter().collect();
    assert_eq!(lost.len(), 4);
    assert!(lost.iter().all(|(_, result)| *result == Err(RequestError::ConnectionLoss)));
    assert!([&left[..], &[list]].concat().iter().all(|id| lost.iter().any(|(lost, _)| lost == id)));
    stage.connect();
    let sent = stage.sent();
    assert!(matches!(&sent[..], [(_, Request::Create(_)), (_, Request::GetChildren2(_))]), "{sent:?}");
    stage.reply(sent[0].0, 9, Ok(Response::Created { path: "/d/n-1".into(), stat: Some(Stat::default()) }));
    stage.reply(sent[1].0, 9, Ok(Response::Children { names: vec![], stat: Some(Stat::default()) }));
    assert_eq!(stage.results().into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [held, held_list]);
}

#[test]
fn closing_sends_what_has_gathered_first() {
    let mut stage = Stage::connected();
    for parent in ["/a", "/b", "/c"] {
        stage.create(parent);
        stage.sent();
    }
    stage.0.close(NOW);
    assert!(matches!(&stage.sent()[..], [(_, Request::Create(_)), (_, Request::CloseSession)]));
}

/// A server before 3.6 answers ahead of its turn that it does not know the read, and closes the connection.
#[test]
fn a_server_that_cannot_list_together_is_asked_for_each_list_from_then_on() {
    let mut stage = Stage::connected();
    stage.list("/a");
    stage.list("/b");
    let sent = stage.sent();
    assert!(matches!(&sent[..], [(_, Request::MultiRead(_))]));
    stage.0.request(Request::Sync { path: "/".to_owned() }, NOW);
    let sync = stage.sent()[0].0;
    stage.reply(sync, 1, Err(ErrorCode::SystemError));
    stage.0.failed(NOW);
    stage.results();
    stage.connect();

    ["/a", "/b"].into_iter().for_each(|path| _ = stage.list(path));
    let sent = stage.sent();
    assert!(matches!(&sent[..], [(_, Request::MultiRead(_))]), "nothing says that the server does not know it");
    stage.create("/a");
    stage.sent();
    stage.list("/a");
    stage.list("/b");
    let refused = stage.sent()[0].0;
    stage.reply(refused, 1, Err(ErrorCode::Unimplemented));
    stage.0.failed(NOW);
    stage.results();
    stage.connect();
    stage.list("/a");
    stage.list("/b");
    assert!(matches!(&stage.sent()[..], [(_, Request::GetChildren2(_)), (_, Request::GetChildren2(_))]));
}

/// The refusal of the oldest request arrives in its turn.
#[test]
fn a_server_that_refuses_a_read_of_lists_in_its_turn_is_not_asked_for_one_again() {
    let mut stage = Stage::connected();
    stage.list("/a");
    stage.list("/b");
    let refused = stage.sent()[0].0;
    stage.reply(refused, 1, Err(ErrorCode::Unimplemented));
    let alone = [(); 2].map(|()| Request::GetChildren2(WatchedPath { path: String::new(), watch: false }));
    let kinds =
        |sent: Vec<(i32, Request)>| -> Vec<_> { sent.into_iter().map(|(_, request)| request.opcode()).collect() };
    assert_eq!(kinds(stage.sent()), alone.each_ref().map(Request::opcode));
    stage.0.failed(NOW);
    stage.results();
    stage.connect();
    stage.list("/a");
    stage.list("/b");
    assert_eq!(kinds(stage.sent()), alone.each_ref().map(Request::opcode));
}

#[test]
fn lists_of_one_path_that_leave_together_are_one_list() {
    let mut stage = Stage::connected();
    let (a, b) = ([stage.list("/a"), stage.list("/a")], stage.list("/b"));
    let sent = stage.sent();
    assert_eq!((sent.len(), &sent[0].1), (1, &children(&["/a", "/b"])));
    assert_eq!(stage.0.in_flight(), 3);
    stage.reply(sent[0].0, 1, Ok(Response::Multi([listed(&["n-1"]), listed(&[])].concat())));
    let names = |(id, result)| match result {
        Ok(Response::Children { names, .. }) => (id, names.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(stage.results().into_iter().map(names).collect::<Vec<_>>(), [(a[0], 1), (a[1], 1), (b, 0)]);

    let ids = [(); 3].map(|()| stage.list("/a"));
    let sent = stage.sent();
    assert!(matches!(&sent[..], [(_, Request::GetChildren2(_))]), "{sent:?}");
    stage.reply(sent[0].0, 1, Ok(Response::Children { names: vec!["n-1".into()], stat: Some(Stat::default()) }));
    assert_eq!(stage.results().into_iter().map(names).collect::<Vec<_>>(), ids.map(|id| (id, 1)));
    assert_eq!(stage.0.in_flight(), 0);
}

/// A queue has up to 10 000 waiters, and a longer one is known when it has been listed once. Apache's servers refuse requests
/// of a mebibyte.
#[test]
fn a_read_of_lists_and_its_response_fit_into_frames() {
    let frame = Config::new(NOW).max_frame;
    let name = "a-name-of-a-node-as-it-is-usual-with-sixty-bytes-of-length-0";
    for (longest, path_len, most) in
        [(0, 10, frame / (10_000 * 64)), (10_000, 10, 128), (30_000, 10, 128), (0, 20_000, 3)]
    {
        let mut stage = Stage::connected();
        stage.list("/long");
        let xid = stage.sent()[0].0;
        let names = vec![name.into(); longest];
        stage.reply(xid, 1, Ok(Response::Children { names, stat: Some(Stat::default()) }));
        (0..300).for_each(|at| _ = stage.list(&format!("/{at:0path_len$}")));
        let asked = stage.sent().into_iter().map(|(_, request)| match request {
            Request::MultiRead(ops) => ops.len() / 2,
            other => panic!("{other:?}"),
        });
        let asked: Vec<_> = asked.collect();
        assert_eq!(asked.iter().sum::<usize>(), 300);
        let fits = |lists: &usize| *lists <= most && lists * longest * (4 + name.len()) <= frame;
        assert!(asked.iter().all(fits), "{asked:?} for lists of {longest}");
    }
}

const TASKS: usize = 40;
const ROUNDS: usize = 25;

/// Runs tasks of one session, two of them on each node: a create, a list that must show it, and a delete. The transactions
/// that the creates name must be those of the nodes, and differ below one node. The tasks create the nodes when they are missing.
async fn check_that_each_task_gets_what_it_would_get_alone(servers: &str) {
    let (client, _states) = Client::open(servers.parse().unwrap(), Config::new(Duration::from_secs(10)));
    let base = format!("/batches-{}", std::process::id());
    client.create(&base, "", &[Acl::OPEN], CreateMode::Persistent).await.unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(create_list_delete(client.clone(), format!("{base}/{}", task / 2), task % 10 == 0)))
        .collect();
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.extend(task.await.unwrap());
    }
    assert_eq!(tokens.len(), TASKS * ROUNDS);
    assert_eq!(tokens.iter().collect::<BTreeSet<_>>().len(), tokens.len(), "each child has a transaction of its own");
    for parent in 0..TASKS / 2 {
        let parent = format!("{base}/{parent}");
        assert_eq!(client.children(&parent).await.unwrap().0, []);
        client.delete(&parent, None).await.unwrap();
    }
    client.delete(&base, None).await.unwrap();
    client.close();
}

/// `fails`: a delete that fails is made in each round, too.
async fn create_list_delete(client: Client, parent: String, fails: bool) -> Vec<(String, i64)> {
    let mut tokens = Vec::new();
    while tokens.len() < ROUNDS {
        let path = format!("{parent}/n-");
        let create = client.create_batched(&path, "", &[Acl::OPEN], CreateMode::EphemeralSequential);
        let list = client.children_batched(&parent);
        if fails {
            let none = client.delete_batched(&format!("{parent}/none"), None).await;
            assert_eq!(none, Err(RequestError::Refused(ErrorCode::NoNode)));
        }
        let created = create.await;
        let (path, stat) = match created {
            Err(RequestError::Refused(ErrorCode::NoNode)) => {
                let made = client.create_batched(&parent, "abc", &[Acl::OPEN], CreateMode::Container).await;
                assert!(matches!(made, Ok(_) | Err(RequestError::Refused(ErrorCode::NodeExists))), "{made:?}");
                continue;
            }
            created => created.unwrap(),
        };
        let (names, list_stat) = list.await.unwrap();
        assert!(names.iter().any(|name| path.ends_with(&**name)), "{path} in {names:?}");
        assert_eq!(list_stat.data_length, 3);
        let (_, stored) = client.get(&path).await.unwrap();
        assert_eq!(stored.czxid, stat.czxid, "the transaction that created {path}");
        tokens.push((parent.clone(), stat.czxid));
        client.delete_batched(&path, None).await.unwrap();
    }
    tokens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_session_get_what_each_would_get_alone() {
    let server = Server::ephemeral().await.unwrap();
    check_that_each_task_gets_what_it_would_get_alone(&server.connect_string()).await;
    let alone = TASKS * ROUNDS * 4;
    assert!(server.stats().packets_received < alone as u64, "{} requests", server.stats().packets_received);
}

/// `cargo xtask zookeeper test` starts the servers.
#[cfg(deep)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_session_get_from_apaches_servers_what_each_would_get_alone() {
    for servers in ["LOCKKEEPER_TEST_ZOOKEEPER", "LOCKKEEPER_TEST_ENSEMBLE"] {
        let servers = std::env::var(servers).expect("run `cargo xtask zookeeper test`");
        check_that_each_task_gets_what_it_would_get_alone(&servers).await;
    }
}
