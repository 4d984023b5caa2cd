//! Creates below nodes that are missing, in transactions.

use std::collections::BTreeSet;

use lockkeeper_client::RequestError;
use lockkeeper_client::wire::{
    Create, CreateMode, ErrorCode, OpResult, ReadOp, Request, Response, Stat, VersionedPath, WriteOp,
};

use super::{NOW, Stage, create, created};

/// Locks that are new come together, so one read asks for all their parents.
#[test]
fn creates_without_a_parent_fail_together_and_the_others_leave_as_a_transaction() {
    let mut stage = Stage::connected();
    let (a, none, gone, b) = (stage.create("/a"), stage.create("/none"), stage.create("/gone"), stage.create("/b"));
    let (delete, list) = (stage.delete("/a/n-0"), stage.list("/a"));
    let sent = stage.sent();
    let unknown = || OpResult::Failed(ErrorCode::RuntimeInconsistency);
    let no_node = |id| (id, Err(RequestError::Refused(ErrorCode::NoNode)));
    let failed = vec![OpResult::RolledBack, OpResult::Failed(ErrorCode::NoNode), unknown(), unknown(), unknown()];
    stage.reply(sent[0].0, 1, Ok(Response::Multi(failed)));
    assert_eq!(stage.results(), [no_node(none)]);
    let look = stage.sent();
    let data = |path: &str| ReadOp::GetData { path: path.to_owned() };
    assert_eq!(look[0].1, Request::MultiRead(vec![data("/a"), data("/gone"), data("/b"), data("/")]));
    stage.reply(sent[1].0, 1, Ok(Response::Children { names: vec![], stat: Some(Stat::default()) }));
    let early = stage.sent();
    let exists = || OpResult::Data { data: None, stat: Stat::default() };
    let parents = vec![exists(), OpResult::Failed(ErrorCode::NoNode), exists(), exists()];
    stage.reply(look[0].0, 1, Ok(Response::Multi(parents)));
    assert_eq!(stage.results(), [no_node(gone)]);
    let again = stage.sent();
    let ops = vec![
        WriteOp::Create(create("/a")),
        WriteOp::Create(create("/b")),
        WriteOp::Delete(VersionedPath { path: "/a/n-0".to_owned(), version: -1 }),
    ];
    assert_eq!(again[0].1, Request::Multi(ops));
    // The list left before that transaction, so it is made once more.
    stage.reply(early[0].0, 1, Ok(Response::Children { names: vec![], stat: Some(Stat::default()) }));
    let late = stage.sent();
    let done = vec![created("/a/n-1", 2), created("/b/n-1", 2), OpResult::Deleted];
    stage.reply(again[0].0, 2, Ok(Response::Multi(done)));
    stage.reply(late[0].0, 2, Ok(Response::Children { names: vec!["n-1".into()], stat: Some(Stat::default()) }));
    let answered: Vec<_> = stage.results().into_iter().map(|(id, result)| (id, result.is_ok())).collect();
    assert_eq!(answered, [a, b, delete, list].map(|id| (id, true)));
}

/// A parent that is deleted after the read.
#[test]
fn after_one_read_of_the_parents_the_creates_leave_alone() {
    let mut stage = Stage::connected();
    let (none, a) = (stage.create("/none"), stage.create("/a"));
    let others = [stage.create("/b"), stage.create("/c")];
    let unknown = || OpResult::Failed(ErrorCode::RuntimeInconsistency);
    let no_node = |id| (id, Err(RequestError::Refused(ErrorCode::NoNode)));
    let failed = vec![OpResult::Failed(ErrorCode::NoNode), unknown(), unknown(), unknown()];
    let sent = stage.sent();
    stage.reply(sent[0].0, 1, Ok(Response::Multi(failed)));
    let look = stage.sent();
    let exists = || OpResult::Data { data: None, stat: Stat::default() };
    stage.reply(look[0].0, 1, Ok(Response::Multi(vec![exists(), exists(), exists()])));
    let again = stage.sent();
    let failed = vec![OpResult::Failed(ErrorCode::NoNode), unknown(), unknown()];
    stage.reply(again[0].0, 2, Ok(Response::Multi(failed)));
    assert_eq!(stage.results(), [none, a].map(no_node));
    let alone = stage.sent();
    assert!(matches!(&alone[..], [(_, Request::Create(_)), (_, Request::Create(_))]), "{alone:?}");
    for (xid, _) in alone {
        stage.reply(xid, 3, Ok(Response::Created { path: "/x/n-1".into(), stat: Some(Stat::default()) }));
    }
    let answered: Vec<_> = stage.results().into_iter().map(|(id, result)| (id, result.is_ok())).collect();
    assert_eq!(answered, others.map(|id| (id, true)));
}

#[test]
fn without_a_read_of_the_parents_the_creates_leave_alone_unless_the_server_is_too_busy() {
    for error in [ErrorCode::Unimplemented, ErrorCode::NoAuth, ErrorCode::ThrottledOp] {
        let mut stage = Stage::connected();
        let (_, a, b) = (stage.create("/none"), stage.create("/a"), stage.create("/b"));
        let unknown = || OpResult::Failed(ErrorCode::RuntimeInconsistency);
        let failed = vec![OpResult::Failed(ErrorCode::NoNode), unknown(), unknown()];
        let sent = stage.sent();
        stage.reply(sent[0].0, 1, Ok(Response::Multi(failed)));
        stage.results();
        let look = stage.sent();
        assert!(matches!(&look[..], [(_, Request::MultiRead(_))]), "{look:?}");
        stage.reply(look[0].0, 1, Err(error));
        let (results, again) = (stage.results(), stage.sent());
        if error == ErrorCode::ThrottledOp {
            assert_eq!((results, again), ([a, b].map(|id| (id, Err(RequestError::Refused(error)))).to_vec(), vec![]));
        } else {
            assert!(matches!(&again[..], [(_, Request::Create(_)), (_, Request::Create(_))]), "{error:?}: {again:?}");
        }
    }
}

/// A server with the nodes of these paths.
fn serve(nodes: &mut BTreeSet<String>, request: &Request) -> Result<Response, ErrorCode> {
    fn fails(nodes: &BTreeSet<String>, create: &Create) -> Option<ErrorCode> {
        let (parent, _) = create.path.rsplit_once('/').unwrap();
        match create.mode {
            CreateMode::Container => nodes.contains(&create.path).then_some(ErrorCode::NodeExists),
            _ => (!nodes.contains(parent)).then_some(ErrorCode::NoNode),
        }
    }
    let listed = |path: &String| if nodes.contains(path) { Ok(vec![]) } else { Err(ErrorCode::NoNode) };
    match request {
        Request::Create(create) => {
            if let Some(error) = fails(nodes, create) {
                return Err(error);
            }
            nodes.insert(create.path.clone());
            Ok(Response::Created { path: create.path.as_str().into(), stat: Some(Stat::default()) })
        }
        Request::Multi(ops) => {
            let creates = ops.iter().map(|op| if let WriteOp::Create(create) = op { create } else { panic!("{op:?}") });
            let errors: Vec<_> = creates.clone().map(|create| fails(nodes, create)).collect();
            let results = match errors.iter().position(Option::is_some) {
                Some(at) => {
                    let failed = |(i, error): (usize, Option<ErrorCode>)| match i.cmp(&at) {
                        std::cmp::Ordering::Less => OpResult::RolledBack,
                        std::cmp::Ordering::Equal => OpResult::Failed(error.unwrap()),
                        std::cmp::Ordering::Greater => OpResult::Failed(ErrorCode::RuntimeInconsistency),
                    };
                    errors.into_iter().enumerate().map(failed).collect()
                }
                None => {
                    nodes.extend(creates.clone().map(|create| create.path.clone()));
                    creates.map(|create| created(&create.path, 1)).collect()
                }
            };
            Ok(Response::Multi(results))
        }
        Request::MultiRead(ops) => {
            let read = |op: &ReadOp| match op {
                ReadOp::GetChildren { path } => listed(path).map_or_else(OpResult::Failed, OpResult::Children),
                ReadOp::GetData { path } => {
                    let data = OpResult::Data { data: None, stat: Stat::default() };
                    listed(path).map_or_else(OpResult::Failed, |_| data)
                }
            };
            Ok(Response::Multi(ops.iter().map(read).collect()))
        }
        Request::GetChildren2(list) => {
            listed(&list.path).map(|names| Response::Children { names, stat: Some(Stat::default()) })
        }
        other => panic!("{other:?}"),
    }
}

/// One lock for each entity: the parent of almost every lock is missing.
#[test]
fn locks_without_parents_that_gather_cost_a_few_requests_for_each_batch() {
    const LOCKS: usize = 1000;
    let mut stage = Stage::connected();
    let mut nodes: BTreeSet<String> = ["/slow".to_owned()].into();
    let mut waiting = Vec::new();
    for _ in 0..2 {
        stage.create("/slow");
        waiting.extend(stage.sent());
    }
    let mut creates = std::collections::BTreeMap::new();
    for lock in 0..LOCKS {
        let path = format!("/lock-{lock}");
        creates.insert(stage.create(&path), path.clone());
        stage.list(&path);
    }
    assert_eq!(stage.sent(), [], "they gather behind slow writes");
    let (mut requests, mut containers, mut locked) = (0, std::collections::BTreeMap::new(), 0);
    while !waiting.is_empty() {
        requests += waiting.len();
        for (xid, request) in std::mem::take(&mut waiting) {
            let reply = serve(&mut nodes, &request);
            stage.reply(xid, 1, reply);
            for (id, result) in stage.results() {
                if let Some(path) = creates.remove(&id) {
                    match result {
                        Ok(_) => locked += 1,
                        Err(error) => {
                            assert_eq!(error, RequestError::Refused(ErrorCode::NoNode));
                            let container = Create::new(path.clone(), "", CreateMode::Container);
                            let id = stage.0.request_batched(Request::Create(container), NOW);
                            containers.insert(id, path);
                        }
                    }
                } else if let Some(path) = containers.remove(&id) {
                    result.unwrap();
                    creates.insert(stage.create(&path), path.clone());
                    stage.list(&path);
                }
            }
            waiting.extend(stage.sent());
        }
    }
    assert_eq!((locked, nodes.len()), (LOCKS, 1 + 1 + 2 * LOCKS));
    println!("{requests} requests for {LOCKS} locks");
    assert!(requests < LOCKS / 5, "{requests} requests for {LOCKS} locks");
}
