//! The snapshot: nodes by path, sessions by id and a few numbers in a redb database, `state.redb`.
//!
//! It is the state after some batch and contains the number of that batch. The later batches of the log can be folded
//! into it, or read after it.
//!
//! Invariant: a fold is atomic and on the disk when it returns, so the database is always the state after a batch.
//! Every fold writes a seal over all records. A start refuses a broken seal, because a lock with wrong data is worse
//! than a server that is down.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
};

use crate::error::ServerError;
use crate::machine::tree::Loader;
use crate::machine::{Node, Tree};
use crate::store::batch::{State, StoredSession, Totals};
use crate::store::directory::{STATE, private_file};
use crate::store::node::decode_node;
use crate::store::record::{Changes, Numbers, millis};
use lockkeeper_wire::Acl;

pub(super) const NODES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("nodes");
pub(super) const SESSIONS: TableDefinition<'_, i64, (u64, [u8; 16])> = TableDefinition::new("sessions");
pub(super) const META: TableDefinition<'_, &str, i64> = TableDefinition::new("meta");

pub(super) const ZXID: &str = "zxid";
const NEXT_SESSION: &str = "next_session";
const STORE_ID: &str = "store_id";
/// The sum of the fingerprints of all records.
const SUM: &str = "sum";
/// The fingerprint of the numbers above and of the sum.
pub(super) const SEAL: &str = "seal";
/// The first file of the log after the snapshot, and the number of the last batch in the snapshot.
pub(super) const LOG: &str = "log";
pub(super) const BATCH: &str = "batch";
/// The fingerprint of those two, the sum and the seal. It is checked before the records are read.
const LOG_SEAL: &str = "log_seal";

const WRONG_TOTALS: &str = "state.redb and the log together differ in size from the committed state";

/// Maximum records in a chunk during a start, and maximum chunks that wait to be added to the tree.
const CHUNK: usize = 512;
const CHUNKS: usize = 8;

/// The tree is in memory, so the database needs little cache.
const CACHE_BYTES: usize = 4 << 20;

/// The numbers in the snapshot.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    zxid: i64,
    next_session: i64,
    store_id: i64,
    sum: i64,
    log: i64,
    batch: i64,
}

impl Marks {
    fn seal(&self, sum: i64) -> i64 {
        let numbers = [self.zxid, self.next_session, self.store_id, sum].map(i64::to_be_bytes);
        signed(fingerprint(numbers.iter().map(|number| &number[..])))
    }

    fn log_seal(&self) -> i64 {
        let numbers = [self.log, self.batch, self.sum, self.seal(self.sum)].map(i64::to_be_bytes);
        signed(fingerprint(numbers.iter().map(|number| &number[..])))
    }
}

fn signed(number: u64) -> i64 {
    i64::from_be_bytes(number.to_be_bytes())
}

fn unsigned(number: i64) -> u64 {
    u64::from_be_bytes(number.to_be_bytes())
}

/// An open snapshot.
#[derive(Debug)]
pub(super) struct Snapshot {
    directory: PathBuf,
    /// `None` after an error, because the database's state in memory may then differ from the disk.
    database: Option<Database>,
    marks: Marks,
}

impl Snapshot {
    /// Opens the database, or creates an empty one. Returns whether anything was ever committed to it.
    pub(super) fn open(directory: &Path) -> Result<(Self, bool), ServerError> {
        let mut snapshot = Self { directory: directory.to_owned(), database: None, marks: Marks::default() };
        let found = snapshot.reopen().map_err(|error| snapshot.error(error))?;
        if let Some((marks, log_seal)) = found {
            if log_seal != Some(marks.log_seal()) {
                return Err(snapshot.damaged("the numbers in state.redb differ from the committed ones".to_owned()));
            }
            snapshot.marks = marks;
        }
        Ok((snapshot, found.is_some()))
    }

    /// Reads the committed numbers and their seal.
    fn reopen(&mut self) -> Result<Option<(Marks, Option<i64>)>, redb::Error> {
        let file = private_file(&self.directory.join(STATE))?;
        let mut database = Database::builder().set_cache_size(CACHE_BYTES).create_file(file)?;
        // After an orderly stop redb trusts its list of free pages, which our seal does not cover: with a damaged list it
        // would write over records. This compares all checksums and makes the list again from the records.
        database.check_integrity()?;
        let read = database.begin_read()?;
        self.database = Some(database);
        let meta = match read.open_table(META) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            other => other?,
        };
        let number = |key| -> Result<Option<i64>, redb::Error> { Ok(meta.get(key)?.map(|value| value.value())) };
        let marks = Marks {
            zxid: number(ZXID)?.unwrap_or(0),
            next_session: number(NEXT_SESSION)?.unwrap_or(0),
            store_id: number(STORE_ID)?.unwrap_or(0),
            sum: number(SUM)?.unwrap_or(0),
            log: number(LOG)?.unwrap_or(0),
            batch: number(BATCH)?.unwrap_or(0),
        };
        Ok(Some((marks, number(LOG_SEAL)?)))
    }

    pub(super) fn store_id(&self) -> i64 {
        self.marks.store_id
    }

    /// Returns the first file of the log after the snapshot.
    pub(super) fn log(&self) -> u64 {
        unsigned(self.marks.log)
    }

    /// Returns the number of the last batch in the snapshot.
    pub(super) fn batch(&self) -> u64 {
        unsigned(self.marks.batch)
    }

    /// Reads the whole state, with the changes of the log applied.
    pub(super) fn load(&self, newer: &Changes<'_>) -> Result<State, ServerError> {
        let (sealed, seal, sessions, (tree, nodes_sum)) = self.read(newer).map_err(|error| self.error(error))?;
        let sum = signed(unsigned(sealed).wrapping_add(nodes_sum));
        if seal != Some(self.marks.seal(sum)) {
            return Err(self.damaged("the records in state.redb differ from the committed ones".to_owned()));
        }
        let tree = tree.map_err(|what| self.damaged(format!("state.redb: {what}")))?;
        let Marks { zxid, next_session, store_id, .. } = self.marks;
        let (zxid, next_session) = newer.last.map_or((zxid, next_session), |last| (last.zxid, last.next_session));
        let state = State { tree, sessions, zxid, next_session, store_id };
        if newer.last.is_some_and(|last| last.totals != state.totals()) {
            return Err(self.damaged(WRONG_TOTALS.to_owned()));
        }
        Ok(state)
    }

    /// Returns the sum of the sessions' fingerprints, the seal, the sessions, and the result of [`read_tree`].
    #[allow(clippy::type_complexity, reason = "used once")]
    fn read(
        &self,
        newer: &Changes<'_>,
    ) -> Result<(i64, Option<i64>, Vec<(i64, Duration, [u8; 16])>, (Result<Tree, String>, u64)), redb::Error> {
        let read = self.database()?.begin_read()?;
        let seal = read.open_table(META)?.get(SEAL)?.map(|value| value.value());
        let mut sum = 0_u64;
        let mut sessions: std::collections::BTreeMap<i64, StoredSession> = Default::default();
        for entry in read.open_table(SESSIONS)?.iter()? {
            let (id, value) = entry?;
            let (timeout_ms, password) = value.value();
            sum = sum.wrapping_add(session_print(id.value(), timeout_ms, &password));
            sessions.insert(id.value(), (Duration::from_millis(timeout_ms), password));
        }
        for (id, session) in &newer.sessions {
            match session {
                Some(session) => drop(sessions.insert(*id, *session)),
                None => drop(sessions.remove(id)),
            }
        }
        let sessions = sessions.into_iter().map(|(id, (timeout, password))| (id, timeout, password)).collect();
        let nodes = read.open_table(NODES)?;
        // A damaged count must not cause a large allocation: no record is shorter than 64 bytes.
        let room = self.directory.join(STATE).metadata()?.len() / 64;
        let expected = usize::try_from(nodes.len()?.min(room)).unwrap_or(0).saturating_add(newer.nodes.len());
        Ok((signed(sum), seal, sessions, read_tree(&nodes, expected, newer)?))
    }

    /// Writes the first state.
    pub(super) fn create(&mut self, changes: &Changes<'_>, store_id: i64, log: u64) -> Result<(), ServerError> {
        self.marks.store_id = store_id;
        self.fold(changes, log, 0)
    }

    /// Adds changes to the snapshot, which then ends with `batch`; `log` is the first file after it.
    ///
    /// After an error either all changes or none are in the snapshot, and the same changes may be folded again.
    pub(super) fn fold(&mut self, changes: &Changes<'_>, log: u64, batch: u64) -> Result<(), ServerError> {
        if self.database.is_none() {
            let found = self.reopen().map_err(|error| self.error(error))?;
            let Some((marks, _)) = found else { return Err(self.damaged("state.redb is empty".to_owned())) };
            self.marks = marks;
        }
        match self.write(changes, log, batch) {
            Ok(Some(marks)) => {
                self.marks = marks;
                Ok(())
            }
            Ok(None) => Err(self.damaged(WRONG_TOTALS.to_owned())),
            Err(error) => {
                self.database = None;
                Err(self.error(error))
            }
        }
    }

    /// Writes nothing and returns `None` if the numbers of records would differ from those of the server.
    fn write(&self, changes: &Changes<'_>, log: u64, batch: u64) -> Result<Option<Marks>, redb::Error> {
        let mut sum = unsigned(self.marks.sum);
        let mut write = self.database()?.begin_write()?;
        write.set_durability(Durability::Immediate)?;
        let Marks { zxid, next_session, store_id, .. } = self.marks;
        let Numbers { zxid, next_session, .. } =
            changes.last.unwrap_or(Numbers { zxid, next_session, totals: Totals::default() });
        let marks;
        {
            let mut nodes = write.open_table(NODES)?;
            for (number, (path, value)) in changes.nodes.iter().enumerate() {
                if number % 64 == 63 {
                    // Let concurrent commits go first.
                    std::thread::yield_now();
                }
                let old = match value {
                    Some(value) => {
                        sum = sum.wrapping_add(node_print(path, value));
                        nodes.insert(path, value)?
                    }
                    None => nodes.remove(path)?,
                };
                sum = sum.wrapping_sub(old.map_or(0, |old| node_print(path, old.value())));
            }
            let mut sessions = write.open_table(SESSIONS)?;
            for (id, session) in &changes.sessions {
                let old = match session {
                    Some((timeout, password)) => {
                        let timeout_ms = millis(*timeout);
                        sum = sum.wrapping_add(session_print(*id, timeout_ms, password));
                        sessions.insert(id, (timeout_ms, *password))?
                    }
                    None => sessions.remove(id)?,
                };
                if let Some((timeout_ms, password)) = old.map(|old| old.value()) {
                    sum = sum.wrapping_sub(session_print(*id, timeout_ms, &password));
                }
            }
            let expected = changes.last.map(|last| (last.totals.nodes, last.totals.sessions));
            let counted = (nodes.len()?, sessions.len()?);
            if expected.is_some_and(|expected| expected != counted) {
                return Ok(None);
            }
            marks = Marks { zxid, next_session, store_id, sum: signed(sum), log: signed(log), batch: signed(batch) };
            let mut meta = write.open_table(META)?;
            meta.insert(ZXID, marks.zxid)?;
            meta.insert(NEXT_SESSION, marks.next_session)?;
            meta.insert(STORE_ID, marks.store_id)?;
            meta.insert(SUM, marks.sum)?;
            meta.insert(SEAL, marks.seal(marks.sum))?;
            meta.insert(LOG, marks.log)?;
            meta.insert(BATCH, marks.batch)?;
            meta.insert(LOG_SEAL, marks.log_seal())?;
        }
        write.commit()?;
        Ok(Some(marks))
    }

    fn database(&self) -> Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::PreviousIo)
    }

    pub(super) fn damaged(&self, what: String) -> ServerError {
        ServerError::Damaged { path: self.directory.clone(), what }
    }

    fn error(&self, error: redb::Error) -> ServerError {
        let path = self.directory.clone();
        match error {
            redb::Error::DatabaseAlreadyOpen => ServerError::InUse { path },
            redb::Error::Io(source)
                if matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                ServerError::Damaged { path, what: format!("state.redb: {source}") }
            }
            redb::Error::Io(source) => ServerError::disk(path, source),
            other => ServerError::Damaged { path, what: format!("state.redb: {other}") },
        }
    }
}

/// Reads about `expected` nodes, with the changes of the log applied. Returns the tree or the inconsistency, and the
/// sum of the fingerprints of the nodes in the snapshot.
fn read_tree(
    nodes: &ReadOnlyTable<&str, &[u8]>,
    expected: usize,
    newer: &Changes<'_>,
) -> Result<(Result<Tree, String>, u64), redb::Error> {
    // Two threads with about the same amount of work: one reads and checks the records, the other builds the tree.
    std::thread::scope(|scope| {
        let open: Arc<[Acl]> = Arc::from([Acl::OPEN]);
        let mut loader = Loader::new(expected, Arc::clone(&open));
        let (chunks, inbox) = mpsc::sync_channel::<Vec<(Arc<str>, Node)>>(CHUNKS);
        let building = std::thread::Builder::new().spawn_scoped(scope, move || {
            for (path, node) in inbox.into_iter().flatten() {
                loader.add(path, node)?;
            }
            loader.finish()
        })?;
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut unreadable = None;
        let mut add = |path: &str, value: Option<&[u8]>| {
            let Some(value) = value else { return };
            let Ok(node) = decode_node(value, &open) else {
                unreadable.get_or_insert_with(|| format!("node {path} cannot be read"));
                return;
            };
            chunk.push((Arc::from(path), node));
            if chunk.len() == CHUNK {
                // The receiver is gone if building the tree has failed; the remaining records still count for the
                // seal.
                let _ = chunks.send(std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK)));
            }
        };
        let mut sum = 0_u64;
        let mut newer = newer.nodes.iter().peekable();
        for entry in nodes.iter()? {
            let (path, value) = entry?;
            let (path, value) = (path.value(), value.value());
            sum = sum.wrapping_add(node_print(path, value));
            while let Some((path, value)) = newer.next_if(|(newer, _)| **newer < path) {
                add(path, *value);
            }
            match newer.next_if(|(newer, _)| **newer == path) {
                Some((path, value)) => add(path, *value),
                None => add(path, Some(value)),
            }
        }
        for (path, value) in newer {
            add(path, *value);
        }
        let _ = chunks.send(chunk);
        drop(chunks);
        let tree = building.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let tree = match unreadable {
            Some(what) => Err(what),
            None => tree.map_err(|lost| format!("node {lost} has no parent in the tree")),
        };
        Ok((tree, sum))
    })
}

/// FNV-1a, 64 bits, over the parts and their lengths. It detects changed bits and is fast for short records.
fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    parts.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        let len = part.len().to_be_bytes();
        part.iter().fold(len.iter().fold(hash, step), step)
    })
}

fn node_print(path: &str, value: &[u8]) -> u64 {
    fingerprint([path.as_bytes(), value])
}

fn session_print(id: i64, timeout_ms: u64, password: &[u8; 16]) -> u64 {
    fingerprint([&id.to_be_bytes()[..], &timeout_ms.to_be_bytes(), password])
}
