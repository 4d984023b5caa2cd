//! Whatever a stranger can send and whatever a disk can give back, changed at random: no panic, no hang, no growth.
//!
//! Every target starts from a corpus, `fuzz/corpus/TARGET/*`, and keeps an input when it leads to an outcome of a shape that
//! was not seen before; so it finds its way into the depth of a format without instruments in the compiler. `cargo test` runs
//! each target for a moment, `cargo xtask fuzz --seconds 60` for as long as wanted. An input that fails is printed as what to
//! add to the corpus.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio_util::codec::Decoder;

use crate::account::{Accounts, Exchange};
use crate::error::ServerError;
use crate::identity::Schemes;
use crate::limits::Limits;
use crate::machine::{ConnectionId, Effect, Machine, MachineConfig, Now, Tree};
use crate::request::{Acl, ConnectRequest};
use crate::store::{self, Batch, DiskStore, State, fuzzing};
use crate::wire::{self, Frame};

/// How many inputs a target gets in plain `cargo test`.
const INPUTS: u32 = 3_000;
/// No input may keep the server busy for longer; a thousandth of it is usual.
const HANG: Duration = Duration::from_secs(5);
/// How many inputs are kept, and how long they may get.
const POOL: usize = 2_000;
const LONGEST: usize = 4_096;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "nothing in {}", directory.display());
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Runs a target on its corpus and on changed copies. It tells the shape of what came of an input.
fn fuzz(target: &str, inputs: u32, mut one: impl FnMut(&[u8]) -> u64) {
    let setting = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = setting("LOCKKEEPER_SEED").unwrap_or(1);
    let time = setting("LOCKKEEPER_FUZZ_SECONDS").map(Duration::from_secs);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut pool, mut shapes, mut count) = (corpus(target), HashSet::new(), 0_u32);
    let seeds = pool.len();
    let began = Instant::now();
    loop {
        let at = count as usize;
        let input = if at < seeds { pool[at].clone() } else { changed(&mut rng, &pool) };
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| one(&input)));
        let shape = outcome.unwrap_or_else(|panic| {
            println!("{target}, seed {seed}, this input fails: printf '{}'", escaped(&input));
            resume_unwind(panic)
        });
        assert!(started.elapsed() < HANG, "{target}: {:?} for printf '{}'", started.elapsed(), escaped(&input));
        if shapes.insert(shape) && at >= seeds && pool.len() < POOL {
            pool.push(input);
        }
        count += 1;
        let over = time.map_or(count >= inputs, |time| began.elapsed() >= time);
        if over && count as usize >= seeds {
            break;
        }
    }
    if time.is_some() {
        // Past the runner's capture, which is for failures.
        let _ =
            writeln!(std::io::stderr(), "{target}: {count} inputs, {} shapes of outcome, seed {seed}", shapes.len());
    }
}

fn escaped(input: &[u8]) -> String {
    input.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// A copy of one of them with a few changes.
fn changed(rng: &mut fastrand::Rng, pool: &[Vec<u8>]) -> Vec<u8> {
    let mut input = pool[rng.usize(..pool.len())].clone();
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(..=input.len());
        match rng.u8(..8) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => input[at] = [0, 1, 2, 0x7f, 0x80, 0xff, b'/', rng.u8(..)][rng.usize(..8)],
            // Lengths, counts and codes are numbers of 32 bits.
            2 | 3 if at + 4 <= input.len() => {
                let len = i32::try_from(input.len()).unwrap();
                let number = [-1, 0, 1, 2, len, len - 4, i32::MAX, i32::MIN, rng.i32(-12..110), rng.i32(..)];
                input[at..at + 4].copy_from_slice(&number[rng.usize(..10)].to_be_bytes());
            }
            4 => input.truncate(at),
            5 => drop(input.drain(at..(at + rng.usize(..9)).min(input.len()))),
            6 => {
                let other = &pool[rng.usize(..pool.len())];
                let from = rng.usize(..=other.len());
                let piece = other[from..(from + rng.usize(..65)).min(other.len())].to_vec();
                input.splice(at..at, piece);
            }
            _ => {
                let other = &pool[rng.usize(..pool.len())];
                input.truncate(at);
                input.extend_from_slice(&other[rng.usize(..=other.len())..]);
            }
        }
    }
    input.truncate(LONGEST);
    input
}

/// What kinds of things a value is made of, its numbers and texts aside.
fn shape(value: &impl Debug) -> u64 {
    let text = format!("{value:?}");
    let mut hasher = DefaultHasher::new();
    for byte in text.bytes().filter(|byte| byte.is_ascii_uppercase() || b"[{(-".contains(byte)).take(300) {
        byte.hash(&mut hasher);
    }
    hasher.finish()
}

#[test]
fn connect() {
    fuzz("connect", INPUTS, |input| shape(&wire::connect_request(input)));
}

#[test]
fn request() {
    fuzz("request", INPUTS, |input| {
        let decoded = wire::request(input);
        // Nothing of it is larger than the frame allows for, whatever its counts claim.
        assert!(format!("{decoded:?}").len() <= 1_000 + 100 * input.len());
        shape(&decoded)
    });
}

#[test]
fn frames() {
    const MOST: usize = 200;
    fuzz("frames", INPUTS, |input| {
        let (mut framing, mut buffer, mut lengths) = (wire::framing(MOST), BytesMut::new(), Vec::new());
        let mut sizes = input.iter().map(|byte| usize::from(byte % 64) + 1);
        let mut rest = input;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
            buffer.extend_from_slice(now);
            rest = later;
            loop {
                match framing.decode(&mut buffer) {
                    Ok(Some(frame)) => lengths.push(frame.len()),
                    Ok(None) => break,
                    Err(_) => return shape(&(lengths.len(), "Error")),
                }
            }
            assert!(buffer.len() <= MOST + 64 + 4 && lengths.iter().all(|len| *len <= MOST));
        }
        lengths.len().min(20) as u64
    });
}

/// Frames of two clients, each behind a byte that says whose and one that says how long, carried out by the machine.
#[test]
fn machine() {
    let limits = Limits::default().with_nodes(40).with_watches(30).with_data_bytes(5_000).with_sessions(3);
    let config = MachineConfig {
        tick: Duration::from_millis(100),
        session_timeouts: Duration::from_millis(200)..=Duration::from_secs(2),
        container_check: Duration::from_secs(1),
        container_unused: Duration::from_secs(5),
        next_session: 1,
        schemes: Schemes { sasl: true, x509: true },
        enforce_quotas: true,
        limits,
    };
    fuzz("machine", INPUTS, |input| {
        let mut now = Now { monotonic: Duration::ZERO, wall_ms: 1_000_000 };
        let mut machine = Machine::new(config.clone(), Tree::new(), 0, now);
        let (mut effects, mut all, mut sent) = (Vec::new(), Vec::new(), BytesMut::new());
        let mut connected = [false; 2];
        let mut rest = input;
        while let [who, len, more @ ..] = rest {
            let (frame, more) = more.split_at(usize::from(*len).min(more.len()));
            rest = more;
            let (who, connection) = (usize::from(who % 2), ConnectionId(u64::from(who % 2) + 1));
            if !std::mem::replace(&mut connected[who], true) {
                let hello = ConnectRequest { timeout_ms: 1_000, ..ConnectRequest::default() };
                machine.connect(connection, &hello, [7; 16], now, &mut effects);
            }
            match wire::request(frame) {
                Ok(Frame::Request { xid, request, .. }) => {
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
            for effect in effects.drain(..) {
                match &effect {
                    Effect::Reply { xid, zxid, result, .. } => wire::reply(&mut sent, *xid, *zxid, result),
                    Effect::Event { kind, path, event_zxid, .. } => wire::event(&mut sent, *event_zxid, *kind, path),
                    Effect::Close { connection, .. } => {
                        machine.disconnected(*connection);
                        connected[usize::try_from(connection.0 - 1).unwrap()] = false;
                    }
                    Effect::Committed(_) | Effect::Connected { .. } => {}
                }
                all.push(shape(&effect));
            }
            machine.tree().assert_consistent();
            assert!(machine.tree().len() <= limits.nodes && machine.watches().len() <= limits.watches);
            assert!(machine.tree().approximate_bytes() <= limits.data_bytes && machine.sessions().len() <= 3);
        }
        let mut hasher = DefaultHasher::new();
        all.iter().take(12).for_each(|effect| effect.hash(&mut hasher));
        hasher.finish()
    });
}

#[test]
fn sasl() {
    let accounts = Accounts::new().with_sasl_user("client1", "password1");
    fuzz("sasl", INPUTS, |input| {
        let outcome = Exchange::begin([7; 16]).finish(&accounts, input);
        assert!(outcome.is_err(), "nobody guesses a digest of a nonce");
        shape(&Accounts::parse(&String::from_utf8_lossy(input)).is_ok())
    });
}

/// A stored node: what can be read is written in the same way again.
#[test]
fn record() {
    let open: Arc<[Acl]> = Arc::from([Acl::OPEN]);
    fuzz("record", INPUTS, |input| {
        let Ok(node) = store::decode_node(input, &open) else { return 0 };
        let mut again = BytesMut::new();
        store::encode_node(&mut again, &node);
        assert_eq!(store::decode_node(&again, &open).as_ref(), Ok(&node));
        shape(&node)
    });
}

/// What stands in a record of the log.
#[test]
fn log_record() {
    fuzz("log_record", INPUTS, |input| {
        shape(&fuzzing::payload(input).map(|(nodes, sessions)| (nodes > 0, sessions > 0)))
    });
}

/// A file of the log, as places and values of bytes to change in one, and a last byte that says how much of it is left: what
/// is believed is what was written, up to some record.
#[test]
fn log() {
    let batch = |zxid| {
        let mut batch = Batch { zxid, ..Batch::default() };
        Tree::new().iter().for_each(|(path, node)| batch.put_node(Arc::clone(path), Some(node)));
        batch.sessions = vec![(zxid, Some((Duration::from_secs(1), [7; 16]))), (1, None)];
        batch
    };
    let whole = fuzzing::file(&[batch(1), batch(2), batch(3)]);
    let written = fuzzing::believed(&whole).unwrap();
    assert_eq!(written.len(), 3);
    fuzz("log", INPUTS, |input| {
        let mut damaged = whole.clone();
        let places = input.chunks_exact(3);
        let keep = places.remainder().last().map_or(256, |left| usize::from(*left) + 1);
        for place in places {
            damaged[usize::from(u16::from_be_bytes([place[0], place[1]])) % whole.len()] ^= place[2];
        }
        damaged.truncate(whole.len() * keep / 256);
        match fuzzing::believed(&damaged) {
            Ok(believed) => {
                assert!(written.starts_with(&believed));
                believed.len() as u64
            }
            Err(at) => 10 + at as u64,
        }
    });
}

/// A whole snapshot, as places and values of bytes to change in one: opened as it was committed, or refused by name.
#[test]
fn snapshot() {
    let fresh = || State { tree: Tree::new(), sessions: Vec::new(), zxid: 7, next_session: 3, store_id: 5 };
    let directory = tempfile::tempdir().unwrap();
    drop(DiskStore::open(directory.path(), fresh).unwrap());
    let file = directory.path().join("state.redb");
    let whole = std::fs::read(&file).unwrap();
    // The first pages are where everything hangs.
    let used = whole.len().min(64 << 10);
    let expected = Tree::new();
    // Each takes as long as a start: a million times what a frame does.
    fuzz("snapshot", 200, |input| {
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
