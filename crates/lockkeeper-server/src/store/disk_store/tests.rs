//! Directories after crashes and with damaged files.

use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redb::{Database, WriteTransaction};

use super::*;
use crate::machine::{Node, Owner, Tree};
use crate::store::batch::{StoredSession, Totals};
use crate::store::directory::{STATE_NEW, log_name};
use crate::store::snapshot::{BATCH, LOG, META, NODES, SEAL, SESSIONS, ZXID};
use lockkeeper_wire::Acl;

/// So small that a few batches make a file long.
const SMALL: Sizes = Sizes { chunk: 1 << 10, long: 4 << 10, most: 16 << 10 };

pub(super) fn fresh() -> StoredState {
    StoredState { tree: Tree::new(), sessions: Vec::new(), zxid: 7, next_session: 3, store_id: 5 }
}

fn open(directory: &Path) -> Result<(DiskStore, StoredState), ServerError> {
    DiskStore::open_sized(directory, SMALL, fresh)
}

/// Opens a store that folds only when the test says so.
fn open_unfolded(directory: &Path) -> (DiskStore, StoredState) {
    DiskStore::open_sized(directory, Sizes::default(), fresh).unwrap()
}

/// Returns the path of the file with this number.
fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(log_name(number))
}

fn node(data: Vec<u8>, zxid: i64) -> Node {
    let acl = [Acl::OPEN].into();
    let (czxid, mzxid, pzxid) = (zxid, zxid, zxid);
    let data = Some(Bytes::from(data));
    let children = Default::default();
    let (version, aversion, creates) = (0, 0, 0);
    Node {
        data,
        acl,
        owner: Owner::None,
        czxid,
        mzxid,
        pzxid,
        ctime: 1,
        mtime: 2,
        version,
        aversion,
        creates,
        children,
    }
}

/// The expected contents of a store. Each batch changes, creates and removes a node, and the same with sessions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model {
    zxid: i64,
    nodes: BTreeMap<String, Vec<u8>>,
    sessions: BTreeMap<i64, StoredSession>,
    /// Additional bytes of a node.
    size: usize,
}

impl Model {
    fn new() -> Self {
        Self { zxid: 7, nodes: BTreeMap::new(), sessions: BTreeMap::new(), size: 0 }
    }

    pub(super) fn sized(size: usize) -> Self {
        Self { size, ..Self::new() }
    }

    pub(super) fn of(state: &StoredState) -> Self {
        let nodes = state.tree.iter().filter(|(path, _)| path.len() > 1 && !path.starts_with("/zookeeper"));
        let nodes = nodes.map(|(path, node)| (path.to_string(), node.data().unwrap().to_vec())).collect();
        let sessions = state.sessions.iter().map(|(id, timeout, password)| (*id, (*timeout, *password))).collect();
        Self { zxid: state.zxid, nodes, sessions, size: 0 }
    }

    pub(super) fn has(&self, found: &Self) -> bool {
        Self { size: 0, ..self.clone() } == *found
    }

    pub(super) fn is(&self, state: &StoredState) {
        state.tree.assert_consistent();
        assert_eq!(Self { size: 0, ..self.clone() }, Self::of(state));
        assert_eq!((state.store_id, state.next_session), (5, self.next_session()));
    }

    fn next_session(&self) -> i64 {
        3.max(self.zxid - 4)
    }

    pub(super) fn step(&mut self) -> Batch {
        self.zxid += 1;
        let zxid = self.zxid;
        let mut batch = Batch { zxid, next_session: self.next_session(), ..Batch::default() };
        let mut put = |path: String, data: Vec<u8>| {
            batch.put_node(Arc::from(&*path), Some(&node(data.clone(), zxid)));
            self.nodes.insert(path, data);
        };
        put("/a".to_owned(), format!("{zxid}").into_bytes());
        put(format!("/a/{zxid}"), vec![7; usize::try_from(zxid % 50).unwrap() + self.size]);
        let gone = format!("/a/{}", zxid - 3);
        if self.nodes.remove(&gone).is_some() {
            batch.put_node(Arc::from(gone), None);
        }
        let session = (Duration::from_millis(zxid.unsigned_abs()), [3; 16]);
        batch.sessions = vec![(zxid, Some(session)), (zxid - 2, None)];
        self.sessions.insert(zxid, session);
        self.sessions.remove(&(zxid - 2));
        batch.totals = Totals {
            nodes: 4 + self.nodes.len() as u64,
            sessions: self.sessions.len() as u64,
            data_bytes: self.nodes.values().map(|data| data.len() as u64).sum(),
        };
        batch
    }

    pub(super) fn commit(&mut self, store: &mut DiskStore, batches: usize) {
        for _ in 0..batches {
            store.commit(&self.step()).unwrap();
        }
    }
}

fn logs(directory: &Path) -> Vec<u64> {
    directory::logs(&Directory::make(directory).unwrap()).unwrap()
}

fn settled(store: &mut DiskStore) {
    if matches!(store.folding, Folding::Running) {
        let result = store.folder.wait();
        store.folded(result).unwrap();
    }
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

fn refusal(directory: &Path) -> String {
    match open(directory).map(|(_, state)| Model::of(&state)) {
        Err(ServerError::Damaged { path, what }) if path == directory => what,
        other => panic!("{other:?}"),
    }
}

fn change(directory: &Path, change: impl FnOnce(&WriteTransaction)) {
    let database = Database::open(directory.join(STATE)).unwrap();
    let write = database.begin_write().unwrap();
    change(&write);
    write.commit().unwrap();
}

#[test]
fn a_record_or_number_that_was_not_committed_breaks_a_seal() {
    let changes: [fn(&WriteTransaction); 6] = [
        |write| drop(write.open_table(META).unwrap().insert(ZXID, 8).unwrap()),
        |write| drop(write.open_table(META).unwrap().insert(LOG, 2).unwrap()),
        |write| drop(write.open_table(META).unwrap().insert(BATCH, 1).unwrap()),
        |write| drop(write.open_table(META).unwrap().remove(SEAL).unwrap()),
        |write| drop(write.open_table(NODES).unwrap().remove("/zookeeper/config").unwrap()),
        |write| drop(write.open_table(SESSIONS).unwrap().insert(1, (1, [0; 16])).unwrap()),
    ];
    for broken in changes {
        let directory = tempfile::tempdir().unwrap();
        drop(open(directory.path()).unwrap());
        change(directory.path(), broken);
        assert!(refusal(directory.path()).contains("state.redb"));
    }
}

#[test]
fn an_interrupted_first_start_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    let format = directory.path().join("format");
    std::fs::remove_file(&format).unwrap();
    Model::new().is(&open(directory.path()).unwrap().1);
    std::fs::remove_file(&format).unwrap();
    std::fs::remove_file(directory.path().join(STATE)).unwrap();
    std::fs::write(directory.path().join(STATE_NEW), "a part of a snapshot").unwrap();
    Model::new().is(&open(directory.path()).unwrap().1);
}

/// Files become long, are folded and reused. A crash must leave the state after the last batch.
#[test]
fn every_batch_survives_a_crash_at_any_time_of_a_fold() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let mut folded = 0;
    for round in 0..40 {
        // Dropped without a close, as after a crash.
        let (mut store, state) = open(directory.path()).unwrap();
        model.is(&state);
        model.commit(&mut store, round);
        folded = folded.max(store.log.number());
        if round % 10 == 0 {
            store.close();
            drop(store);
            let (store, state) = open(directory.path()).unwrap();
            model.is(&state);
            assert_eq!((store.log.len(), logs(directory.path()).len()), (0, 1), "the log is folded");
        }
    }
    assert!(folded > 5, "{folded}");
}

/// Each step of a fold as the last one before a crash.
#[test]
fn a_crash_at_any_step_of_a_fold_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let (mut store, _) = open_unfolded(directory.path());
    model.commit(&mut store, 10);
    let at_rest = copy(directory.path());
    let older = model.clone();
    store.rotate().unwrap();
    settled(&mut store);
    model.commit(&mut store, 10);
    assert_eq!(logs(directory.path()), [2, 3], "the first file is reused as the third");
    let done = copy(directory.path());
    drop(store);

    let new_file_without_a_record = copy(at_rest.path());
    std::fs::write(path(new_file_without_a_record.path(), 2), b"").unwrap();
    older.is(&open(new_file_without_a_record.path()).unwrap().1);

    let new_file_with_a_piece_of_a_record = copy(at_rest.path());
    let written = std::fs::read(path(done.path(), 2)).unwrap();
    std::fs::write(path(new_file_with_a_piece_of_a_record.path(), 2), &written[..60]).unwrap();
    older.is(&open(new_file_with_a_piece_of_a_record.path()).unwrap().1);

    let not_folded = copy(at_rest.path());
    std::fs::copy(path(done.path(), 2), path(not_folded.path(), 2)).unwrap();
    let (mut store, state) = open(not_folded.path()).unwrap();
    model.is(&state);
    settled(&mut store);
    assert_eq!(logs(not_folded.path()), [2, 3], "the interrupted fold is completed");

    let not_removed = copy(done.path());
    std::fs::remove_file(path(not_removed.path(), 3)).unwrap();
    std::fs::copy(path(at_rest.path(), 1), path(not_removed.path(), 1)).unwrap();
    let (mut store, state) = open(not_removed.path()).unwrap();
    model.is(&state);
    settled(&mut store);
    assert_eq!(logs(not_removed.path()), [2, 3], "the fold is repeated");

    model.is(&open(done.path()).unwrap().1);
}

#[test]
fn remains_of_an_older_use_of_a_file_are_not_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let (mut store, _) = open_unfolded(directory.path());
    model.commit(&mut store, 30);
    store.rotate().unwrap();
    settled(&mut store);
    model.commit(&mut store, 1);
    store.rotate().unwrap();
    settled(&mut store);
    assert_eq!(store.log.number(), 3);
    for _ in 0..3 {
        model.commit(&mut store, 1);
        let copy = copy(directory.path());
        assert!(path(copy.path(), 3).metadata().unwrap().len() > 4_000, "it is a reused file");
        let (_, state) = open(copy.path()).unwrap();
        model.is(&state);
    }
}

#[test]
fn missing_and_foreign_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let (mut store, _) = open_unfolded(directory.path());
    model.commit(&mut store, 10);
    let before = copy(directory.path());
    store.rotate().unwrap();
    settled(&mut store);
    model.commit(&mut store, 10);
    store.rotate().unwrap();
    model.commit(&mut store, 1);
    settled(&mut store);
    drop(store);
    assert_eq!(logs(directory.path()), [3, 4]);

    std::fs::rename(path(directory.path(), 3), directory.path().join("elsewhere")).unwrap();
    assert_eq!(refusal(directory.path()), "log.0000000003 is missing");
    std::fs::rename(path(directory.path(), 4), path(directory.path(), 3)).unwrap();
    Model::of(&open(directory.path()).unwrap().1);

    // An old snapshot with much later files.
    std::fs::rename(directory.path().join("elsewhere"), path(before.path(), 3)).unwrap();
    assert_eq!(refusal(before.path()), "log.0000000002 is missing");
    std::fs::rename(path(before.path(), 3), path(before.path(), 2)).unwrap();
    assert_eq!(refusal(before.path()), "log.0000000002 at byte 0: the record belongs to file 3");
    std::fs::remove_file(path(before.path(), 2)).unwrap();

    let stranger = tempfile::tempdir().unwrap();
    let foreign = || StoredState { store_id: 6, ..fresh() };
    let (mut store, _) = DiskStore::open_sized(stranger.path(), SMALL, foreign).unwrap();
    store.commit(&Model::new().step()).unwrap();
    std::fs::copy(path(stranger.path(), 1), path(before.path(), 1)).unwrap();
    assert_eq!(refusal(before.path()), "log.0000000001 at byte 0: the record belongs to another data directory");
}

#[test]
fn missing_records_between_two_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let (mut store, _) = open_unfolded(directory.path());
    model.commit(&mut store, 5);
    let cut_here = store.log.len();
    model.commit(&mut store, 1);
    let before = copy(directory.path());
    store.rotate().unwrap();
    settled(&mut store);
    model.commit(&mut store, 1);
    std::fs::copy(path(directory.path(), 2), path(before.path(), 2)).unwrap();
    model.is(&open_unfolded(copy(before.path()).path()).1);
    let file = File::options().write(true).open(path(before.path(), 1)).unwrap();
    file.set_len(cut_here).unwrap();
    assert_eq!(refusal(before.path()), format!("log.0000000001 at byte {cut_here}: records are missing"));
}

/// A batch that does not fit the state: a bug, or damage that no checksum detected.
#[test]
fn a_log_that_does_not_fit_the_committed_state_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let (mut store, _) = open(directory.path()).unwrap();
    let mut batch = model.step();
    batch.nodes.pop();
    store.commit(&batch).unwrap();
    store.close();
    drop(store);
    // It is refused both when it is folded and when it is read.
    assert!(refusal(directory.path()).starts_with("state.redb and the log together differ in size"));
}

/// Returns where each record of the first file ends.
fn written(directory: &Path, batches: usize, size: usize) -> Vec<(u64, Model)> {
    let mut model = Model::sized(size);
    let (mut store, _) = open_unfolded(directory);
    let mut ends = vec![(0, model.clone())];
    for _ in 0..batches {
        model.commit(&mut store, 1);
        ends.push((store.log.len(), model.clone()));
    }
    ends
}

/// `LOCKKEEPER_CUTS=all` cuts a log of 1 MB at every byte; `cargo xtask crash --cuts` does.
#[test]
fn a_log_cut_anywhere_opens_to_the_state_after_its_last_whole_record() {
    let every = std::env::var_os("LOCKKEEPER_CUTS").is_some();
    let directory = tempfile::tempdir().unwrap();
    let (batches, size) = if every { (520, 1_800) } else { (12, 0) };
    let ends = written(directory.path(), batches, size);
    let file = path(directory.path(), 1);
    let whole = std::fs::read(&file).unwrap();
    let len = usize::try_from(ends.last().unwrap().0).unwrap();
    assert!(!every || len >= 1 << 20);
    let near = |at: usize| ends.iter().any(|(end, _)| (at as u64).abs_diff(*end) < 2 || at as u64 == end + 41);
    let began = Instant::now();
    let mut cuts = 0_u64;
    for at in (0..=len).rev().filter(|at| every || near(*at) || at % 211 == 0) {
        // Only the bytes that the cut before has removed are written again.
        let left = usize::try_from(file.metadata().unwrap().len()).unwrap().min(at);
        let mut cut = File::options().write(true).open(&file).unwrap();
        cut.set_len(left as u64).unwrap();
        cut.seek(SeekFrom::End(0)).unwrap();
        cut.write_all(&whole[left..at]).unwrap();
        drop(cut);
        let (_, state) = open_unfolded(directory.path());
        let (end, expected) = ends.iter().rev().find(|(end, _)| *end <= at as u64).unwrap();
        expected.is(&state);
        assert_eq!(file.metadata().unwrap().len(), *end, "the incomplete record is removed");
        cuts += 1;
        if cuts.is_multiple_of(100_000) {
            println!("{cuts} of {len} cuts in {:.0?}", began.elapsed());
        }
    }
    println!("a log of {len} bytes was cut at {cuts} places in {:.0?}", began.elapsed());
}

#[test]
fn a_flipped_bit_in_the_log_is_refused_by_name_and_place_or_removed_but_never_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let ends = written(directory.path(), 12, 0);
    let file = path(directory.path(), 1);
    let whole = std::fs::read(&file).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    let (_, before_the_last) = &ends[ends.len() - 2];
    let mut refused = 0;
    for _ in 0..150 {
        let mut flipped = whole.clone();
        let at = rng.usize(..usize::try_from(ends[12].0).unwrap() + 64);
        flipped[at] ^= 1 << rng.u8(..8);
        std::fs::write(&file, &flipped).unwrap();
        match open(directory.path()) {
            Ok((_, state)) => match at as u64 {
                at if at >= ends[12].0 => ends[12].1.is(&state),
                at => {
                    assert!(at >= ends[11].0, "byte {at}");
                    before_the_last.is(&state);
                }
            },
            Err(ServerError::Damaged { what, .. }) => {
                let start = ends.iter().rev().find(|(end, _)| *end <= at as u64).unwrap().0;
                assert!(what.starts_with(&format!("log.0000000001 at byte {start}: ")), "{what}");
                refused += 1;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(refused > 50, "{refused}");
}

/// The log continues while the snapshot cannot grow, up to its own limit. Then the commit fails because the disk is
/// full.
#[test]
fn a_disk_too_full_to_fold_stops_nothing_until_the_log_is_at_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let (mut store, _) = open(directory.path()).unwrap();
    let full = || ServerError::disk(PathBuf::new(), std::io::ErrorKind::StorageFull.into());
    model.commit(&mut store, 5);
    store.rotate().unwrap();
    store.folder.wait().unwrap();
    // As if the fold had returned this.
    store.folded(Err(full())).unwrap();
    let Folding::Full { again } = store.folding else { panic!() };
    while store.log.len() < again {
        assert!(matches!(store.folding, Folding::Full { .. }));
        model.commit(&mut store, 1);
    }
    model.commit(&mut store, 1);
    settled(&mut store);
    assert!(matches!(store.folding, Folding::Done), "the fold was retried, and the disk has room now");
    model.commit(&mut store, 200);
    drop(store);
    model.is(&open(directory.path()).unwrap().1);

    let (mut store, _) = open(directory.path()).unwrap();
    settled(&mut store);
    store.sizes.long = u64::MAX;
    while store.log.len() < SMALL.most {
        model.commit(&mut store, 1);
    }
    assert!(matches!(store.folded(Err(full())), Err(ServerError::DiskFull { .. })));
}

#[test]
fn the_log_never_exceeds_its_limits() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let (mut store, _) = open(directory.path()).unwrap();
    let mut most = 0;
    for _ in 0..600 {
        model.commit(&mut store, 1);
        let bytes = logs(directory.path()).into_iter().filter_map(|log| path(directory.path(), log).metadata().ok());
        most = most.max(bytes.map(|file| file.len()).sum());
    }
    assert!(most <= 2 * SMALL.most + SMALL.long + 2 * SMALL.chunk, "{most}");
    assert!(store.log.number() > 5);
    let read = Database::open(directory.path().join(STATE));
    assert!(read.is_err(), "the snapshot stays open");
}

#[test]
fn the_log_is_the_users_own() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = open(directory.path()).unwrap();
    Model::new().commit(&mut store, 100);
    for log in logs(directory.path()) {
        assert_eq!(path(directory.path(), log).metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// An orderly stop gives the disk all but the records, and the first record of a start needs a chunk again. So a start on a
/// disk that is full to the last chunk fails.
#[test]
fn a_start_after_an_orderly_stop_takes_one_chunk_of_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let allocated = || {
        let len = |log| path(directory.path(), log).metadata().unwrap().len();
        logs(directory.path()).into_iter().map(len).sum::<u64>()
    };
    let (mut store, _) = open(directory.path()).unwrap();
    Model::new().commit(&mut store, 3);
    store.close();
    drop(store);
    assert_eq!(allocated(), 0);
    let (mut store, mut state) = open(directory.path()).unwrap();
    assert_eq!(allocated(), 0);
    let raised = state.raise_zxid(1_800_000_000_000).expect("the clock gives a greater number");
    store.commit(&raised).unwrap();
    assert_eq!(allocated(), SMALL.chunk);
}
