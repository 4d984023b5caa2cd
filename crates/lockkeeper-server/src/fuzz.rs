//! Fuzz targets for everything that a client can send and a disk can return: no panic, no hang, no unbounded memory.
//!
//! Every target starts from a corpus and keeps an input if its result has a new shape. This way it reaches the depth
//! of a format without instrumentation by the compiler. `cargo test` runs each target for a moment, `cargo xtask fuzz
//! --seconds 60` for a given time, each in its own process. `rig` defines what counts as a failure, and
//! CONTRIBUTING.md lists the faults that were planted to see each target find one.

mod rig;

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use lockkeeper_wire::{Acl, ConnectRequest, OpCode, Request, frame, jute::Reader, request, request::Packet, response};

use self::rig::Target;
use crate::account::{Accounts, Exchange};
use crate::error::ServerError;
use crate::machine::identity::Schemes;
use crate::machine::limits::Limits;
use crate::machine::{ConnectionId, Effect, Machine, MachineConfig, Now, Owner, Tree, Txn, TxnOp};
use crate::store::{self, Batch, DiskStore, StoredState, fuzzing};

/// Hashes the structure of a value without its numbers and texts.
fn shape(value: &impl Debug) -> u64 {
    let text = format!("{value:?}");
    let mut hasher = DefaultHasher::new();
    for byte in text.bytes().filter(|byte| byte.is_ascii_uppercase() || b"[{(-".contains(byte)).take(300) {
        byte.hash(&mut hasher);
    }
    hasher.finish()
}

fn nothing(_input: &[u8]) -> u64 {
    0
}

/// Returns whether the requests of a conversation are made as long as a frame may be.
fn is_long(conversation: &[u8]) -> bool {
    conversation.first().is_some_and(|first| *first >= 0xfe)
}

fn anywhere(_input: &[u8]) -> Vec<usize> {
    Vec::new()
}

/// Returns where the frames of a conversation begin, and where the conversation ends.
fn frames_of_conversation(input: &[u8]) -> Vec<usize> {
    let mut starts = vec![0];
    while let Some(len) = starts.last().and_then(|start| input.get(start + 1)) {
        starts.push((starts[starts.len() - 1] + 2 + usize::from(*len)).min(input.len()));
    }
    starts
}

/// A target with small inputs and small results.
fn small(name: &'static str) -> Target {
    Target { name, inputs: 3_000, memory: 32 << 10, more: nothing, cuts: anywhere }
}

/// A target whose inputs are decoded, printed or carried out.
fn large(name: &'static str) -> Target {
    Target { name, inputs: 3_000, memory: 512 << 10, more: nothing, cuts: anywhere }
}

/// A decoded connect request must be the same after it was encoded and decoded again.
#[test]
fn connect() {
    rig::fuzz(&small("connect"), |input| {
        let decoded = request::decode_connect(input);
        if let Ok(connect) = &decoded {
            let again = reencoded(|out| request::encode_connect(out, connect));
            assert!(request::decode_connect(&again) == decoded, "another connect request");
        }
        shape(&decoded)
    });
}

/// A decoded frame must be the same after it was encoded and decoded again.
#[test]
fn request() {
    rig::fuzz(&large("request"), |input| {
        let decoded = request::decode(input);
        // The size of the result is bounded by the frame, whatever counts the frame claims.
        assert!(format!("{decoded:?}").len() <= 1_000 + 100 * input.len());
        if let Ok(packet) = &decoded {
            let again = reencoded(|out| match packet {
                Packet::Request { xid, request, .. } => request::encode(out, *xid, request),
                Packet::Auth { scheme, auth, .. } => request::encode_auth(out, scheme, auth),
                Packet::Sasl { xid, token } => request::encode_sasl(out, *xid, token),
            });
            assert_same(packet, &request::decode(&again).expect("it was encoded"));
        }
        shape(&decoded)
    });
}

/// Returns the payload of the frame that `encode` appends.
fn reencoded(encode: impl FnOnce(&mut BytesMut)) -> Vec<u8> {
    let mut frame = BytesMut::new();
    encode(&mut frame);
    let payload = frame::first(&frame, usize::MAX).unwrap().expect("a whole frame").to_vec();
    assert_eq!(payload.len() + 4, frame.len(), "more than one frame");
    payload
}

/// Fails if a packet differs from the one that it was encoded from.
fn assert_same(packet: &Packet, again: &Packet) {
    match (packet, again) {
        (
            Packet::Request { xid, request: Request::Refused { opcode, .. }, .. },
            Packet::Request { xid: later_xid, request: Request::Refused { opcode: later, .. }, .. },
        ) => {
            // It is encoded without its body, which may be the reason for another error.
            assert_eq!((xid, opcode), (later_xid, later));
        }
        (Packet::Request { xid, request, .. }, Packet::Request { xid: later_xid, request: later, .. }) => {
            // The operation code may differ: `setWatches2` without persistent watches is encoded as `setWatches`.
            assert_eq!((xid, request), (later_xid, later));
        }
        // Clients give all credentials the same number.
        (Packet::Auth { scheme, auth, .. }, Packet::Auth { scheme: later_scheme, auth: later, .. }) => {
            assert_eq!((scheme, auth), (later_scheme, later));
        }
        _ => assert_eq!(packet, again),
    }
}

/// What a server may send to our client: a byte selects the operation of the answered request, the body follows. A decoded
/// response must be the same after it was encoded and decoded again.
#[test]
fn response() {
    rig::fuzz(&large("response"), |input| {
        let Some((opcode, body)) = input.split_first() else { return 0 };
        let opcode = OpCode::ALL[usize::from(*opcode) % OpCode::ALL.len()];
        let decoded = response::decode(opcode, &mut Reader::new(body));
        assert!(format!("{decoded:?}").len() <= 1_000 + 100 * input.len());
        if let Ok(decoded) = &decoded {
            let mut again = BytesMut::new();
            response::encode(&mut again, 1, 1, &Ok(decoded.clone()));
            let mut reader = Reader::new(frame::first(&again, usize::MAX).unwrap().unwrap());
            response::decode_header(&mut reader).unwrap();
            assert_eq!(response::decode(opcode, &mut reader).as_ref(), Ok(decoded));
        }
        // The frames that do not depend on the operation.
        let mut reader = Reader::new(body);
        let header = response::decode_header(&mut reader);
        let event = response::decode_event(&mut reader);
        let token = response::decode_sasl(&mut Reader::new(body)).is_ok();
        shape(&(opcode, decoded, header, event, token, response::decode_connect(body)))
    });
}

/// Every operation with a body of its own has an input in the corpus.
#[test]
fn the_corpus_has_every_request() {
    let corpus = rig::corpus("request");
    let starts = |code: i32| corpus.iter().any(|input| input.get(4..8) == Some(&code.to_be_bytes()[..]));
    let missing: Vec<_> = OpCode::ALL.into_iter().filter(|op| !starts(*op as i32)).collect();
    // The connect request, which opens a session, has a target of its own and no operation code.
    assert_eq!(missing, [OpCode::CreateSession]);
}

#[test]
fn frames() {
    const MOST: usize = 200;
    rig::fuzz(&small("frames"), |input| {
        let (mut buffer, mut lengths) = (BytesMut::new(), Vec::new());
        let mut sizes = input.iter().map(|byte| usize::from(byte % 64) + 1);
        let mut rest = input;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
            buffer.extend_from_slice(now);
            rest = later;
            loop {
                match frame::first(&buffer, MOST).map(|frame| frame.map(<[u8]>::len)) {
                    Ok(Some(len)) => {
                        buffer.advance(4 + len);
                        lengths.push(len);
                    }
                    Ok(None) => break,
                    Err(_) => return shape(&(lengths.len(), "Error")),
                }
            }
            assert!(buffer.len() <= MOST + 64 + 4 && lengths.iter().all(|len| *len <= MOST));
        }
        lengths.len().min(20) as u64
    });
}

/// Returns a tree with a node of much data and one of long names, `/b` and `/l`.
fn with_big_nodes() -> Tree {
    let mut tree = Tree::new();
    let paths = [("/b".to_owned(), 2_000), ("/l".to_owned(), 0), (format!("/l/{}", "l".repeat(1_000)), 0)];
    for (at, (path, data)) in paths.into_iter().enumerate() {
        let op = TxnOp::Create {
            path: path.into(),
            data: Some(vec![7; data].into()),
            acl: [Acl::OPEN].into(),
            owner: Owner::None,
            parent_creates: 1,
            with_stat: false,
        };
        let zxid = i64::try_from(at).unwrap();
        tree.apply(&Txn { zxid, time_ms: 0, session: 0, op }, &mut Vec::new());
    }
    tree
}

/// Returns a request whose operations or watches are repeated until it is about as long as a frame may be.
fn lengthened(request: Request) -> Request {
    fn filled<T: Clone>(parts: Vec<T>, times: usize) -> Vec<T> {
        let count = parts.len() * times;
        parts.into_iter().cycle().take(count).collect()
    }
    let times = (1 << 20) / reencoded(|out| request::encode(out, 1, &request)).len();
    match request {
        Request::Multi(ops) => Request::Multi(filled(ops, times)),
        Request::MultiRead(ops) => Request::MultiRead(filled(ops, times)),
        Request::SetWatches(mut watches) => {
            let kinds = [&mut watches.data, &mut watches.exist, &mut watches.child];
            for paths in kinds.into_iter().chain([&mut watches.persistent, &mut watches.recursive]) {
                *paths = filled(std::mem::take(paths), times);
            }
            Request::SetWatches(watches)
        }
        other => other,
    }
}

/// The machine carries out frames of two clients. A byte before each frame selects the client, another one gives the
/// length. If the first byte is one of the two largest, the requests are as long as a frame may be. No request takes more
/// work than it may.
#[test]
fn machine() {
    let small = Limits::default().with_nodes(14).with_watches(4).with_data_bytes(9_000).with_sessions(3);
    // Some requests of a few bytes have answers near this limit.
    let small = small.with_answer_bytes(5_000);
    let big = Limits::default().with_nodes(100_000).with_watches(1_000).with_data_bytes(8 << 20).with_sessions(3);
    // A second each without optimisation.
    let mut long_ones = if rig::is_timed() { u32::MAX } else { 20 };
    rig::fuzz(
        &Target { cuts: frames_of_conversation, more: |input| u64::from(is_long(input)) << 28, ..large("machine") },
        |input| {
            let is_long = is_long(input) && long_ones > 0;
            long_ones -= u32::from(is_long);
            let limits = if is_long { big } else { small };
            let config = MachineConfig {
                schemes: Schemes { sasl: true, x509: true },
                limits,
                ..crate::machine::tests::config()
            };
            let mut now = Now { monotonic: Duration::ZERO, wall_ms: 1_000_000 };
            let mut machine = Machine::new(config.clone(), with_big_nodes(), 0, now);
            let (mut effects, mut all, mut sent) = (Vec::new(), Vec::new(), BytesMut::new());
            let (mut connected, mut most) = ([false; 2], (0, 0, 0));
            let mut rest = input;
            while let [who, len, more @ ..] = rest {
                let (frame, more) = more.split_at(usize::from(*len).min(more.len()));
                rest = more;
                let (who, connection) = (usize::from(who % 2), ConnectionId(u64::from(who % 2) + 1));
                if !std::mem::replace(&mut connected[who], true) {
                    let hello = ConnectRequest { timeout_ms: 1_000, ..ConnectRequest::default() };
                    machine.connect(connection, &hello, [7; 16], true, now, &mut effects);
                }
                match request::decode(frame) {
                    Ok(Packet::Request { xid, request, .. }) => {
                        let request = if is_long { lengthened(request) } else { request };
                        machine.request(connection, xid, request, now, &mut effects);
                    }
                    Ok(_) => {}
                    Err(_) => {
                        machine.disconnected(connection);
                        connected[who] = false;
                    }
                }
                now.monotonic += Duration::from_millis(u64::from(*len));
                now.wall_ms += i64::from(*len);
                machine.tick(now, &mut effects);
                let work = machine.take_work();
                // The request, the events that it was not refused for, and a slice.
                assert!(work <= 1_050_000, "{work} units of work");
                for effect in effects.drain(..) {
                    match &effect {
                        Effect::Reply { xid, zxid, result, .. } => {
                            let before = sent.len();
                            response::encode(&mut sent, *xid, *zxid, result);
                            assert!(sent.len() - before <= limits.answer_bytes + 100, "a long answer");
                        }
                        Effect::Event { kind, path, event_zxid, .. } => {
                            response::encode_event(&mut sent, *event_zxid, *kind, path)
                        }
                        Effect::Close { connection, .. } => {
                            machine.disconnected(*connection);
                            connected[usize::try_from(connection.0 - 1).unwrap()] = false;
                        }
                        Effect::Committed(_)
                        | Effect::Counted { .. }
                        | Effect::Connected { .. }
                        | Effect::QuotaExceeded { .. }
                        | Effect::Refused { .. } => {}
                    }
                    // The text of a long one has many megabytes.
                    all.push(if is_long { 0 } else { shape(&effect) });
                }
                if is_long {
                    sent.clear();
                }
                machine.tree().assert_consistent();
                let sizes = (machine.watches().len(), machine.tree().len(), machine.sessions().len());
                most = most.max(sizes);
                assert!(machine.tree().len() <= limits.nodes && machine.watches().len() <= limits.watches);
                // The server itself updates the few bytes of a quota's numbers.
                assert!(machine.tree().cost() <= limits.data_bytes + 100 && machine.sessions().len() <= 3);
                assert!(machine.watches().cost() <= limits.data_bytes / 2);
                assert_eq!(machine.cost(), machine.recounted());
            }
            let mut hasher = DefaultHasher::new();
            all.iter().take(6).for_each(|effect| effect.hash(&mut hasher));
            // Prefer inputs that approach the limits.
            most.hash(&mut hasher);
            hasher.finish()
        },
    );
}

#[test]
fn sasl() {
    let accounts = Accounts::new().with_sasl_user("client1", "password1");
    rig::fuzz(&large("sasl"), |input| {
        let outcome = Exchange::begin([7; 16]).finish(&accounts, input);
        assert!(outcome.is_err(), "a random input cannot be a digest of the nonce");
        shape(&Accounts::parse(&String::from_utf8_lossy(input)))
    });
}

/// A stored node: every readable node can be written and read again, whatever its data is.
#[test]
fn record() {
    let open = [Acl::OPEN].into();
    rig::fuzz(&large("record"), |input| {
        let Ok(mut node) = store::decode_node(input, &open) else { return 0 };
        for data in [node.data.clone(), Some(Bytes::copy_from_slice(input)), None] {
            node.data = data;
            let mut again = BytesMut::new();
            store::encode_node(&mut again, &node);
            assert_eq!(store::decode_node(&again, &open).as_ref(), Ok(&node));
        }
        shape(&node)
    });
}

/// The payload of a record of the log.
#[test]
fn log_record() {
    rig::fuzz(&large("log_record"), |input| {
        shape(&fuzzing::payload(input).map(|(nodes, sessions)| (nodes > 0, sessions > 0)))
    });
}

/// A file of the log. The input lists places and values of bytes to change, and a last byte says how much of the file
/// is kept. The records that are read must be those that were written, up to some record.
#[test]
fn log() {
    let batch = |zxid| {
        let mut batch = Batch { zxid, ..Batch::default() };
        Tree::new().iter().for_each(|(path, node)| batch.put_node(Arc::clone(path), Some(node)));
        batch.sessions = vec![(zxid, Some((Duration::from_secs(1), [7; 16]))), (1, None)];
        batch
    };
    let whole = fuzzing::file(&[batch(1), batch(2), batch(3)]);
    let written = fuzzing::accepted(&whole).unwrap();
    assert_eq!(written.len(), 3);
    rig::fuzz(&large("log"), |input| {
        let mut damaged = whole.clone();
        let places = input.chunks_exact(3);
        let keep = places.remainder().last().map_or(256, |left| usize::from(*left) + 1);
        for place in places {
            damaged[usize::from(u16::from_be_bytes([place[0], place[1]])) % whole.len()] ^= place[2];
        }
        damaged.truncate(whole.len() * keep / 256);
        match fuzzing::accepted(&damaged) {
            Ok(accepted) => {
                assert!(written.starts_with(&accepted));
                accepted.len() as u64
            }
            Err(at) => 10 + at as u64,
        }
    });
}

/// A whole snapshot. The input lists places and values of bytes to change. The store opens it as it was committed, or
/// refuses it by name.
#[test]
fn snapshot() {
    let fresh = || StoredState { tree: Tree::new(), sessions: Vec::new(), zxid: 7, next_session: 3, store_id: 5 };
    let directory = tempfile::tempdir().unwrap();
    drop(DiskStore::open(directory.path(), fresh).unwrap());
    let file = directory.path().join("state.redb");
    let whole = std::fs::read(&file).unwrap();
    // The first pages contain the structure of the database.
    let used = whole.len().min(64 << 10);
    let expected = Tree::new();
    // redb panics over some damaged pages. With backtraces, the first panic loads all debug information: 55 MB.
    let traced = std::env::var_os("RUST_BACKTRACE").is_some_and(|traced| traced != "0");
    // Before redb panics over the number of bits in a bitmap, it reserves the memory for that many bits, at most half
    // a gigabyte, and does not touch it. The number has 32 bits (redb 4.4, `U64GroupedBitmap::to_vec`).
    let memory = (512 << 20) + if traced { 128 << 20 } else { 16 << 20 };
    // Each input takes as long as a start of the server: a million times the time of a frame.
    rig::fuzz(&Target { name: "snapshot", inputs: 200, memory, more: nothing, cuts: anywhere }, |input| {
        let mut damaged = whole.clone();
        for place in input.chunks_exact(3).take(8) {
            damaged[usize::from(u16::from_be_bytes([place[0], place[1]])) % used] ^= place[2];
        }
        std::fs::write(&file, &damaged).unwrap();
        match DiskStore::open(directory.path(), fresh) {
            Ok((_, state)) => {
                assert_eq!((state.zxid, state.next_session, state.store_id), (7, 3, 5));
                assert!(state.tree.iter().eq(expected.iter()) && state.sessions.is_empty());
                0
            }
            Err(ServerError::Damaged { path, .. }) => u64::from(path == directory.path()),
            Err(error) => panic!("{error:?}"),
        }
    });
}
