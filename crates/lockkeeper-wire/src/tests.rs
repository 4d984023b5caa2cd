use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::jute::Reader;
use crate::{
    Acl, AclId, ConnectRequest, ConnectResponse, Create, CreateMode, ErrorCode, EventKind, OpCode, OpResult, ReadOp,
    Request, Response, SetData, SetWatches, Stat, VersionedPath, WatchKind, WatchedPath, WriteOp, frame, request,
    response,
};

const MOST: usize = 1 << 20;

fn path() -> impl Strategy<Value = String> {
    "(/[a-zä0-9_-]{1,8}){1,3}"
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    option::of(vec(any::<u8>(), 0..20).prop_map(Bytes::from))
}

fn acl() -> impl Strategy<Value = Vec<Acl>> {
    let id = prop_oneof![
        Just(AclId::WorldAnyone),
        ("[a-z]{1,6}", "[a-z:]{0,9}").prop_map(|(scheme, id)| AclId::Other { scheme, id }),
    ];
    vec((0..32_i32, id).prop_map(|(perms, id)| Acl { perms, id }), 0..3)
}

fn stat() -> impl Strategy<Value = Stat> {
    let longs = (any::<i64>(), any::<i64>(), any::<i64>(), any::<i64>(), any::<i64>(), any::<i64>());
    let ints = (any::<i32>(), any::<i32>(), any::<i32>(), any::<i32>(), any::<i32>());
    (longs, ints).prop_map(|((czxid, mzxid, ctime, mtime, ephemeral_owner, pzxid), ints)| {
        let (version, cversion, aversion, data_length, num_children) = ints;
        Stat {
            czxid,
            mzxid,
            ctime,
            mtime,
            version,
            cversion,
            aversion,
            ephemeral_owner,
            data_length,
            num_children,
            pzxid,
        }
    })
}

fn create() -> impl Strategy<Value = Create> {
    let kind = prop_oneof![
        (0..4_i32).prop_map(|flags| (OpCode::Create, flags, -1)),
        (0..4_i32).prop_map(|flags| (OpCode::Create2, flags, -1)),
        Just((OpCode::CreateContainer, 4, -1)),
        (5..7_i32, 1..i64::MAX).prop_map(|(flags, ttl)| (OpCode::CreateTtl, flags, ttl)),
    ];
    (path(), data(), acl(), kind).prop_map(|(path, data, acl, (opcode, flags, ttl_ms))| {
        let mode = CreateMode::from_i32(flags).unwrap();
        Create { path, data, acl, mode, ttl_ms, opcode }
    })
}

fn versioned() -> impl Strategy<Value = VersionedPath> {
    (path(), any::<i32>()).prop_map(|(path, version)| VersionedPath { path, version })
}

fn watched() -> impl Strategy<Value = WatchedPath> {
    (path(), any::<bool>()).prop_map(|(path, watch)| WatchedPath { path, watch })
}

fn set_data() -> impl Strategy<Value = SetData> {
    (path(), data(), any::<i32>()).prop_map(|(path, data, version)| SetData { path, data, version })
}

fn set_watches() -> impl Strategy<Value = SetWatches> {
    let list = || vec(path(), 0..3);
    (any::<i64>(), list(), list(), list(), list(), list()).prop_map(
        |(relative_zxid, data, exist, child, persistent, recursive)| SetWatches {
            relative_zxid,
            data,
            exist,
            child,
            persistent,
            recursive,
        },
    )
}

fn write_op() -> impl Strategy<Value = WriteOp> {
    prop_oneof![
        create().prop_map(WriteOp::Create),
        versioned().prop_map(WriteOp::Delete),
        set_data().prop_map(WriteOp::SetData),
        versioned().prop_map(WriteOp::Check),
    ]
}

fn read_op() -> impl Strategy<Value = ReadOp> {
    prop_oneof![path().prop_map(|path| ReadOp::GetData { path }), path().prop_map(|path| ReadOp::GetChildren { path }),]
}

fn watch_kind() -> impl Strategy<Value = WatchKind> {
    (1..6_i32).prop_map(|number| WatchKind::from_i32(number).unwrap())
}

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        create().prop_map(Request::Create),
        versioned().prop_map(Request::Delete),
        watched().prop_map(Request::Exists),
        watched().prop_map(Request::GetData),
        watched().prop_map(Request::GetChildren),
        watched().prop_map(Request::GetChildren2),
        set_data().prop_map(Request::SetData),
        path().prop_map(|path| Request::GetAcl { path }),
        (path(), acl(), any::<i32>()).prop_map(|(path, acl, version)| Request::SetAcl { path, acl, version }),
        (path(), any::<bool>()).prop_map(|(path, recursive)| Request::AddWatch { path, recursive }),
        Just(Request::WhoAmI),
        path().prop_map(|path| Request::GetAllChildrenNumber { path }),
        path().prop_map(|prefix| Request::GetEphemerals { prefix }),
        path().prop_map(|path| Request::Sync { path }),
        Just(Request::Ping),
        vec(write_op(), 0..4).prop_map(Request::Multi),
        vec(read_op(), 0..4).prop_map(Request::MultiRead),
        set_watches().prop_map(Request::SetWatches),
        (path(), watch_kind()).prop_map(|(path, kind)| Request::CheckWatches { path, kind }),
        (path(), watch_kind()).prop_map(|(path, kind)| Request::RemoveWatches { path, kind }),
        Just(Request::CloseSession),
    ]
}

fn node_path() -> impl Strategy<Value = Arc<str>> {
    path().prop_map(Arc::from)
}

fn error() -> impl Strategy<Value = ErrorCode> {
    proptest::sample::select(ErrorCode::ALL.to_vec())
}

fn op_result() -> impl Strategy<Value = OpResult> {
    prop_oneof![
        (node_path(), option::of(stat())).prop_map(|(path, stat)| OpResult::Created { path, stat }),
        Just(OpResult::Deleted),
        stat().prop_map(OpResult::DataSet),
        Just(OpResult::Checked),
        (data(), stat()).prop_map(|(data, stat)| OpResult::Data { data, stat }),
        vec(node_path(), 0..3).prop_map(OpResult::Children),
        Just(OpResult::RolledBack),
        error().prop_map(OpResult::Failed),
    ]
}

/// A response, and an operation that it answers.
fn any_response() -> impl Strategy<Value = (OpCode, Response)> {
    prop_oneof![
        node_path().prop_map(|path| (OpCode::Create, Response::Created { path, stat: None })),
        (node_path(), stat()).prop_map(|(path, stat)| (OpCode::Create2, Response::Created { path, stat: Some(stat) })),
        Just((OpCode::Delete, Response::Done)),
        Just((OpCode::AddWatch, Response::WatchAdded)),
        vec(("[a-z]{1,6}", option::of("[a-z]{0,6}")), 0..3)
            .prop_map(|identities| (OpCode::WhoAmI, Response::Identities(identities))),
        stat().prop_map(|stat| (OpCode::Exists, Response::Stat(stat))),
        (data(), stat()).prop_map(|(data, stat)| (OpCode::GetData, Response::Data { data, stat })),
        vec(node_path(), 0..3).prop_map(|names| (OpCode::GetChildren, Response::Children { names, stat: None })),
        (vec(node_path(), 0..3), stat())
            .prop_map(|(names, stat)| (OpCode::GetChildren2, Response::Children { names, stat: Some(stat) })),
        (acl(), stat()).prop_map(|(acl, stat)| (OpCode::GetAcl, Response::Acl { acl: acl.into(), stat })),
        path().prop_map(|path| (OpCode::Sync, Response::Path(path))),
        vec(node_path(), 0..3).prop_map(|paths| (OpCode::GetEphemerals, Response::Ephemerals(paths))),
        any::<i32>().prop_map(|count| (OpCode::GetAllChildrenNumber, Response::Count(count))),
        vec(op_result(), 0..4).prop_map(|results| (OpCode::Multi, Response::Multi(results))),
    ]
}

proptest! {
    #[test]
    fn random_bytes_never_panic_a_decoder(bytes in vec(any::<u8>(), 0..300)) {
        let _ = request::decode_connect(&bytes);
        let _ = request::decode(&bytes);
        let _ = response::decode_connect(&bytes);
        let _ = response::decode_header(&mut Reader::new(&bytes));
        let _ = response::decode_event(&mut Reader::new(&bytes));
        let _ = response::decode_sasl(&mut Reader::new(&bytes));
    }

    /// Random bytes seldom pass as a header, so these have the header of a real operation.
    #[test]
    fn random_bodies_never_panic_a_decoder(
        opcode in proptest::sample::select(OpCode::ALL.to_vec()),
        body in vec(prop_oneof![Just(0_u8), Just(1), Just(255), any::<u8>()], 0..200),
    ) {
        let mut frame = vec![0, 0, 0, 7];
        frame.extend(opcode.as_i32().to_be_bytes());
        frame.extend(&body);
        let _ = request::decode(&frame);
        let _ = response::decode(opcode, &mut Reader::new(&body));
    }

    #[test]
    fn a_request_is_decoded_as_it_was_encoded(xid in any::<i32>(), asked in any_request()) {
        let mut bytes = BytesMut::new();
        request::encode(&mut bytes, xid, &asked);
        let payload = frame::first(&bytes, MOST).unwrap().unwrap();
        prop_assert_eq!(payload.len() + 4, bytes.len());
        match request::decode(payload).unwrap() {
            request::Packet::Request { xid: number, opcode, request } => {
                prop_assert_eq!((number, opcode, request), (xid, asked.opcode(), asked));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_response_is_decoded_as_it_was_encoded(
        xid in any::<i32>(),
        zxid in any::<i64>(),
        (opcode, answer) in any_response(),
    ) {
        let mut bytes = BytesMut::new();
        response::encode(&mut bytes, xid, zxid, &Ok(answer.clone()));
        let mut reader = Reader::new(frame::first(&bytes, MOST).unwrap().unwrap());
        let header = response::decode_header(&mut reader).unwrap();
        prop_assert_eq!(header, response::Header { xid, zxid, error: None });
        prop_assert_eq!(response::decode(opcode, &mut reader).unwrap(), answer);
        prop_assert!(reader.is_empty(), "bytes follow the response");
    }

    #[test]
    fn the_connect_frames_are_decoded_as_they_were_encoded(
        (last_zxid_seen, timeout_ms, session) in (any::<i64>(), any::<i32>(), any::<i64>()),
        (password, has_read_only) in (any::<[u8; 16]>(), any::<bool>()),
    ) {
        let connect =
            ConnectRequest { last_zxid_seen, timeout_ms, session, password: password.to_vec(), has_read_only };
        let mut bytes = BytesMut::new();
        request::encode_connect(&mut bytes, &connect);
        let decoded = request::decode_connect(frame::first(&bytes, MOST).unwrap().unwrap());
        prop_assert_eq!(decoded.as_ref(), Ok(&connect));

        let password = if session == 0 { [0; 16] } else { password };
        let accepted = ConnectResponse { timeout_ms, session, password };
        bytes.clear();
        response::encode_connect(&mut bytes, &accepted, has_read_only);
        let decoded = response::decode_connect(frame::first(&bytes, MOST).unwrap().unwrap());
        prop_assert_eq!(decoded.as_ref(), Ok(&accepted));
    }

    #[test]
    fn a_frame_is_returned_only_when_it_is_complete(payload in vec(any::<u8>(), 0..40), given in 0..44_usize) {
        let mut bytes = BytesMut::new();
        frame::put(&mut bytes, |out| out.extend_from_slice(&payload)).unwrap();
        let whole = given >= bytes.len();
        let received = &bytes[..given.min(bytes.len())];
        let first = frame::first(received, 40).unwrap();
        prop_assert_eq!(first, whole.then_some(&payload[..]));
        if received.len() >= 4 && !payload.is_empty() {
            prop_assert!(frame::first(received, payload.len() - 1).is_err());
        }
    }
}

#[test]
fn errors_and_events_are_decoded_as_they_were_encoded() {
    for error in ErrorCode::ALL {
        let mut bytes = BytesMut::new();
        response::encode(&mut bytes, 3, 9, &Err(error));
        let mut reader = Reader::new(frame::first(&bytes, MOST).unwrap().unwrap());
        let header = response::Header { xid: 3, zxid: 9, error: Some(error) };
        assert_eq!(response::decode_header(&mut reader), Ok(header));
        assert!(reader.is_empty());
    }
    for kind in [EventKind::Created, EventKind::Deleted, EventKind::DataChanged, EventKind::ChildrenChanged] {
        let mut bytes = BytesMut::new();
        response::encode_event(&mut bytes, 9, kind, "/a");
        let mut reader = Reader::new(frame::first(&bytes, MOST).unwrap().unwrap());
        let header = response::Header { xid: crate::EVENT_XID, zxid: 9, error: None };
        assert_eq!(response::decode_header(&mut reader), Ok(header));
        let event = response::WatchEvent { kind: Some(kind), path: "/a".to_owned() };
        assert_eq!(response::decode_event(&mut reader), Ok(event));
    }
}

/// As in Apache's `Op.create`: only a mode with a time to live keeps the one that a multi sends.
#[test]
fn a_create_in_a_multi_has_the_operation_of_its_mode() {
    let decoded = |mode: CreateMode, ttl_ms| {
        let sent = Create { ttl_ms, opcode: OpCode::CreateTtl, ..Create::new("/a", "data", mode) };
        let mut bytes = BytesMut::new();
        request::encode(&mut bytes, 1, &Request::Multi(vec![WriteOp::Create(sent)]));
        match request::decode(frame::first(&bytes, MOST).unwrap().unwrap()).unwrap() {
            request::Packet::Request { request: Request::Multi(ops), .. } => match &ops[..] {
                [WriteOp::Create(create)] => (create.mode, create.opcode, create.ttl_ms),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let container = (CreateMode::Container, OpCode::CreateContainer, -1);
    assert_eq!(decoded(CreateMode::Container, 5), container);
    assert_eq!(decoded(CreateMode::Persistent, 5), (CreateMode::Persistent, OpCode::Create, -1));
    assert_eq!(decoded(CreateMode::PersistentTtl, 5), (CreateMode::PersistentTtl, OpCode::CreateTtl, 5));
}

#[test]
fn auth_and_sasl_are_decoded_as_they_were_encoded() {
    let mut bytes = BytesMut::new();
    request::encode_auth(&mut bytes, "digest", b"user:secret");
    match request::decode(frame::first(&bytes, MOST).unwrap().unwrap()).unwrap() {
        request::Packet::Auth { xid: crate::AUTH_XID, scheme, auth } => {
            assert_eq!((scheme.as_str(), &auth[..]), ("digest", &b"user:secret"[..]));
        }
        other => panic!("{other:?}"),
    }
    bytes.clear();
    request::encode_sasl(&mut bytes, 5, b"token");
    match request::decode(frame::first(&bytes, MOST).unwrap().unwrap()).unwrap() {
        request::Packet::Sasl { xid: 5, token } => assert_eq!(token, b"token"),
        other => panic!("{other:?}"),
    }
    bytes.clear();
    response::encode_sasl(&mut bytes, 5, Ok(b"challenge"));
    let mut reader = Reader::new(frame::first(&bytes, MOST).unwrap().unwrap());
    assert_eq!(response::decode_header(&mut reader), Ok(response::Header { xid: 5, zxid: 0, error: None }));
    assert_eq!(response::decode_sasl(&mut reader).unwrap(), b"challenge");
}
