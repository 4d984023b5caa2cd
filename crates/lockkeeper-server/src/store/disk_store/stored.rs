//! A directory that an earlier build has stored, opened by the current one: a change of the encoding without a new number
//! of the format fails here.
//!
//! After a new number, write the files of that format with
//! `LOCKKEEPER_STORED=write cargo test -p lockkeeper-server --lib stored`, and read the text before you add it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::machine::{Node, Owner, Tree};
use crate::store::batch::Totals;
use crate::store::directory::FORMAT;
use lockkeeper_wire::{Acl, AclId, Perms};

const SECTOR: usize = 512;
const SESSION: i64 = 0x10_0000_0000_0001;

fn file(ending: &str) -> PathBuf {
    let name = format!("src/store/disk_store/stored/format-{FORMAT}.{ending}");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn fresh() -> StoredState {
    StoredState {
        tree: Tree::new(),
        sessions: Vec::new(),
        zxid: 7,
        next_session: SESSION,
        store_id: 0x1234_5678_9abc_def0,
    }
}

/// A node's path, owner, access list and data.
type StoredNode<'a> = (&'a str, Owner, &'a [Acl], Option<&'a [u8]>);

/// A batch of nodes with every kind of owner, access list and data, and of sessions.
fn batch(zxid: i64, nodes: &[StoredNode<'_>], sessions: &[i64], totals: Totals) -> Batch {
    let mut batch = Batch { zxid, next_session: SESSION + 2, totals, ..Batch::default() };
    for (path, owner, acl, data) in nodes {
        let node = Node {
            data: data.map(Bytes::copy_from_slice),
            acl: (*acl).into(),
            owner: *owner,
            czxid: zxid - 3,
            mzxid: zxid - 2,
            pzxid: zxid - 1,
            ctime: 1_700_000_000_000,
            mtime: 1_700_000_000_001 + zxid,
            version: 4,
            aversion: 5,
            // The next sequence number below it.
            creates: 6 + i32::try_from(zxid).unwrap(),
            children: Default::default(),
        };
        batch.put_node(Arc::from(*path), Some(&node));
    }
    batch.sessions =
        sessions.iter().map(|id| (*id, Some((Duration::from_millis(30_000 + zxid.unsigned_abs()), [9; 16])))).collect();
    batch
}

/// Fills a directory: the first batch is in the snapshot, the others are in the log.
fn fill(path: &Path) {
    let other = |scheme: &str, id: &str| AclId::Other { scheme: scheme.to_owned(), id: id.to_owned() };
    let lists = [
        Acl { perms: Perms::ALL, id: other("digest", "app:F6Y+U5gIoCbNNoLQExmvxRFeatA=") },
        Acl { perms: Perms::READ, id: other("ip", "10.0.0.0/8") },
    ];
    let open = [Acl::OPEN];
    let totals = |nodes: u64, sessions, data_bytes| Totals { nodes: 4 + nodes, sessions, data_bytes };
    let (mut store, _) = DiskStore::open(path, fresh).unwrap();
    let first: [StoredNode<'_>; 4] = [
        ("/plain", Owner::None, &open, Some(b"data")),
        ("/plain/ephemeral", Owner::Session(SESSION), &open, Some(b"")),
        ("/container", Owner::Container, &lists, None),
        ("/ttl", Owner::Ttl(86_400_000), &lists[1..], Some(&[0, 255, 10])),
    ];
    store.commit(&batch(100, &first, &[SESSION, SESSION + 1], totals(4, 2, 7))).unwrap();
    store.close();
    drop(store);
    let (mut store, _) = DiskStore::open(path, fresh).unwrap();
    let second: [StoredNode<'_>; 3] = [
        ("/plain", Owner::None, &lists[..1], Some(b"changed")),
        ("/zookeeper/quota/plain", Owner::None, &open, None),
        ("/zookeeper/quota/plain/zookeeper_limits", Owner::None, &open, Some(b"count=5,bytes=-1=;byteHardLimit=9")),
    ];
    store.commit(&batch(200, &second, &[], totals(6, 2, 43))).unwrap();
    let mut last = batch(300, &[], &[], totals(5, 1, 40));
    last.put_node(Arc::from("/ttl"), None);
    last.sessions.push((SESSION + 1, None));
    store.commit(&last).unwrap();
}

/// Everything that a store keeps, as text.
fn facts(state: &StoredState) -> String {
    let StoredState { tree, sessions, zxid, next_session, store_id } = state;
    let mut text = format!("zxid {zxid}\nnext session {next_session:#x}\nstore {store_id:#x}\n");
    for (id, timeout, password) in sessions {
        writeln!(text, "session {id:#x} {timeout:?} {password:?}").unwrap();
    }
    for (path, node) in tree.iter() {
        let Node { data, acl, owner, czxid, mzxid, pzxid, ctime, mtime, version, aversion, creates, .. } = node;
        writeln!(text, "{path}: {owner:?}, zxids {czxid} {mzxid} {pzxid}, times {ctime} {mtime}").unwrap();
        writeln!(text, "    versions {version} {aversion}, creates {creates}, {acl:?}, {data:?}").unwrap();
    }
    text
}

/// The files of a directory as bytes, without the sectors of zeros.
fn pack(path: &Path) -> Vec<u8> {
    let mut names: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let mut packed = Vec::new();
    for path in names {
        let bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let sectors: Vec<_> =
            bytes.chunks(SECTOR).enumerate().filter(|(_, sector)| sector.iter().any(|byte| *byte != 0)).collect();
        packed.extend_from_slice(format!("{name} {} {}\n", bytes.len(), sectors.len()).as_bytes());
        for (number, sector) in sectors {
            packed.extend_from_slice(&u32::try_from(number).unwrap().to_be_bytes());
            packed.extend_from_slice(sector);
            packed.resize(packed.len() + SECTOR - sector.len(), 0);
        }
    }
    packed
}

fn unpack(mut packed: &[u8], to: &Path) {
    while !packed.is_empty() {
        let end = packed.iter().position(|byte| *byte == b'\n').unwrap();
        let line: Vec<_> = std::str::from_utf8(&packed[..end]).unwrap().split(' ').collect();
        let (len, sectors): (usize, usize) = (line[1].parse().unwrap(), line[2].parse().unwrap());
        packed = &packed[end + 1..];
        let mut bytes = vec![0; len.next_multiple_of(SECTOR)];
        for _ in 0..sectors {
            let (number, rest) = packed.split_first_chunk().unwrap();
            let at = usize::try_from(u32::from_be_bytes(*number)).unwrap() * SECTOR;
            bytes[at..at + SECTOR].copy_from_slice(&rest[..SECTOR]);
            packed = &rest[SECTOR..];
        }
        std::fs::write(to.join(line[0]), &bytes[..len]).unwrap();
    }
}

#[test]
fn a_stored_directory_of_this_format_opens_with_all_that_it_has() {
    if std::env::var_os("LOCKKEEPER_STORED").is_some() {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path());
        std::fs::write(file("bin"), pack(directory.path())).unwrap();
        let (_, state) = DiskStore::open(directory.path(), fresh).unwrap();
        std::fs::write(file("txt"), facts(&state)).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    unpack(&std::fs::read(file("bin")).unwrap(), directory.path());
    let (mut store, state) = DiskStore::open(directory.path(), fresh).unwrap();
    let expected = std::fs::read_to_string(file("txt")).unwrap();
    assert_eq!(facts(&state), expected);
    // And after a fold by the current code.
    store.close();
    drop(store);
    let (_, state) = DiskStore::open(directory.path(), fresh).unwrap();
    assert_eq!(facts(&state), expected);
}
