//! The snapshot: nodes by path, sessions by id and a few numbers in a redb database, `state.redb`.
//!
//! It is the state after some batch and contains the number of that batch. The later batches of the log can be folded
//! into it, or read after it.
//!
//! Invariant: a fold is atomic and on the disk when it returns, so the database is always the state after a batch.
//! Every fold writes a seal over all records. A start refuses a broken seal, because a lock with wrong data is worse
//! than a server that is down.
//!
//! Invariant: a fold never changes a file that may differ from what the system has in memory of it. It writes a new
//! file instead, and the old one stays as it is until the new one is on the disk.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    TableDefinition, WriteTransaction,
};

use crate::error::ServerError;
use crate::machine::tree::Loader;
use crate::machine::{AccessList, Node, Tree};
use crate::store::batch::{StoredSession, StoredState, Totals};
use crate::store::directory::{Files, STATE, STATE_NEW, has};
use crate::store::guarded::{Backend, Guarded};
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

const WRONG_RECORDS: &str = "the records in state.redb differ from the committed ones";
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

/// An open database. Dropping it writes nothing.
#[derive(Debug)]
struct Opened {
    database: Database,
    file: Arc<Guarded>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // redb would record its free pages, and an error of that would be lost. The next start finds them again.
        self.file.refuse();
    }
}

#[derive(Debug)]
pub(super) struct Snapshot {
    files: Arc<dyn Files>,
    /// `None` after an error, because the database's state in memory may then differ from the disk.
    opened: Option<Opened>,
    marks: Marks,
    /// Whether the file may differ from what the system has in memory of it. The next fold then writes a new file.
    doubtful: bool,
}

impl Snapshot {
    /// Opens the database. Returns whether there is one and anything was ever committed to it.
    pub(super) fn open(files: Arc<dyn Files>) -> Result<(Self, bool), ServerError> {
        let mut snapshot = Self { files, opened: None, marks: Marks::default(), doubtful: false };
        let exists = has(&*snapshot.files, STATE).map_err(|source| snapshot.error(source.into()))?;
        let found = exists && snapshot.reopen()?;
        Ok((snapshot, found))
    }

    /// Makes the next fold write a new file.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// Opens the database and reads the committed numbers. Returns whether there are any. This writes nothing.
    fn reopen(&mut self) -> Result<bool, ServerError> {
        let Some((marks, log_seal)) = self.read_marks().map_err(|error| self.error(error))? else { return Ok(false) };
        if log_seal != Some(marks.log_seal()) {
            return Err(self.damaged("the numbers in state.redb differ from the committed ones".to_owned()));
        }
        self.marks = marks;
        Ok(true)
    }

    /// Opens the database and returns the committed numbers and their seal.
    fn read_marks(&mut self) -> Result<Option<(Marks, Option<i64>)>, redb::Error> {
        self.opened = None;
        self.files.forget(STATE)?;
        let file = Guarded::held(self.files.open(STATE)?);
        if file.len()? == 0 {
            return Ok(None);
        }
        let checked = Rc::new(Cell::new(false));
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES).set_repair_callback({
            let checked = Rc::clone(&checked);
            move |_| checked.set(true)
        });
        let database = builder.create_with_backend(Backend(Arc::clone(&file)))?;
        let opened = self.opened.insert(Opened { database, file });
        if !checked.get() {
            // If the header says that redb has closed the file, redb trusts its list of free pages, which our seal does not
            // cover: with a damaged list it would write over records. This compares all checksums and makes the list again
            // from the records. Otherwise redb has just done so.
            opened.database.check_integrity()?;
        }
        let read = opened.database.begin_read()?;
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
    pub(super) fn load(&self, newer: &Changes<'_>) -> Result<StoredState, ServerError> {
        let (sealed, seal, sessions, (tree, nodes_sum)) = self.read(newer).map_err(|error| self.error(error))?;
        let sum = signed(unsigned(sealed).wrapping_add(nodes_sum));
        if seal != Some(self.marks.seal(sum)) {
            return Err(self.damaged(WRONG_RECORDS.to_owned()));
        }
        let tree = tree.map_err(|what| self.damaged(format!("state.redb: {what}")))?;
        let Marks { zxid, next_session, store_id, .. } = self.marks;
        let (zxid, next_session) = newer.last.map_or((zxid, next_session), |last| (last.zxid, last.next_session));
        let state = StoredState { tree, sessions, zxid, next_session, store_id };
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
        let opened = self.opened()?;
        let read = opened.database.begin_read()?;
        let (sum, seal, sessions) = read_sessions(&read, newer)?;
        let sessions = sessions.into_iter().map(|(id, (timeout, password))| (id, timeout, password)).collect();
        let nodes = read.open_table(NODES)?;
        // A damaged count must not cause a large allocation: no record is shorter than 64 bytes.
        let room = opened.file.len()? / 64;
        let expected = usize::try_from(nodes.len()?.min(room)).unwrap_or(0).saturating_add(newer.nodes.len());
        Ok((signed(sum), seal, sessions, read_tree(&nodes, expected, newer)?))
    }

    /// Writes the first state.
    pub(super) fn create(&mut self, changes: &Changes<'_>, store_id: i64, log: u64) -> Result<(), ServerError> {
        self.opened = None;
        self.marks = Marks { store_id, ..Marks::default() };
        let written = self.write_new(changes, log, 0);
        self.written(written)
    }

    /// Adds changes to the snapshot, which then ends with `batch`; `log` is the first file after it.
    ///
    /// After an error either all changes or none are in the snapshot, and the same changes may be folded again.
    pub(super) fn fold(&mut self, changes: &Changes<'_>, log: u64, batch: u64) -> Result<(), ServerError> {
        if self.opened.is_none() && !self.reopen()? {
            return Err(self.damaged("state.redb is empty".to_owned()));
        }
        let written = if self.doubtful { self.write_new(changes, log, batch) } else { self.write(changes, log, batch) };
        self.written(written)
    }

    fn written(&mut self, written: Result<Result<Marks, String>, redb::Error>) -> Result<(), ServerError> {
        match written {
            Ok(Ok(marks)) => {
                self.marks = marks;
                self.doubtful = false;
                Ok(())
            }
            Ok(Err(what)) => Err(self.damaged(what)),
            Err(error) => {
                self.doubtful |= self.opened.as_ref().is_some_and(|opened| opened.file.is_doubtful());
                self.opened = None;
                Err(self.error(error))
            }
        }
    }

    /// Adds changes to the file. Writes nothing and returns why if the numbers of records would differ from those of the
    /// server.
    fn write(&self, changes: &Changes<'_>, log: u64, batch: u64) -> Result<Result<Marks, String>, redb::Error> {
        let opened = self.opened()?;
        opened.file.release()?;
        let write = begin(&opened.database)?;
        let mut sum = unsigned(self.marks.sum);
        {
            let mut nodes = write.open_table(NODES)?;
            for (number, (path, value)) in changes.nodes.iter().enumerate() {
                rest(number);
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
        }
        self.commit(write, sum, changes, log, batch)
    }

    /// Writes the records of the file, if there is one, and the changes to a new file, which then takes its place.
    fn write_new(&mut self, changes: &Changes<'_>, log: u64, batch: u64) -> Result<Result<Marks, String>, redb::Error> {
        if has(&*self.files, STATE_NEW)? {
            self.files.remove(STATE_NEW)?;
        }
        let written = self.write_whole(changes, log, batch).and_then(|written| {
            let (opened, marks) = match written {
                Ok(written) => written,
                Err(what) => return Ok(Err(what)),
            };
            self.files.rename(STATE_NEW, STATE)?;
            self.files.sync()?;
            self.opened = Some(opened);
            Ok(Ok(marks))
        });
        if !matches!(written, Ok(Ok(_))) {
            // It would only take room.
            let _ = self.files.remove(STATE_NEW);
        }
        written
    }

    fn write_whole(
        &self,
        changes: &Changes<'_>,
        log: u64,
        batch: u64,
    ) -> Result<Result<(Opened, Marks), String>, redb::Error> {
        let file = Guarded::written(self.files.open(STATE_NEW)?);
        let mut builder = Database::builder();
        let database = builder.set_cache_size(CACHE_BYTES).create_with_backend(Backend(Arc::clone(&file)))?;
        let new = Opened { database, file };
        let write = begin(&new.database)?;
        let mut sum = 0_u64;
        {
            let mut nodes = write.open_table(NODES)?;
            let mut number = 0;
            let mut put = |path: &str, value: Option<&[u8]>| -> Result<(), redb::Error> {
                let Some(value) = value else { return Ok(()) };
                number += 1;
                rest(number);
                sum = sum.wrapping_add(node_print(path, value));
                nodes.insert(path, value)?;
                Ok(())
            };
            let sessions = match &self.opened {
                None => {
                    changes.nodes.iter().try_for_each(|(path, value)| put(path, *value))?;
                    changes.sessions.iter().filter_map(|(id, session)| Some((*id, (*session)?))).collect()
                }
                Some(old) => {
                    let read = old.database.begin_read()?;
                    let (sessions_sum, seal, sessions) = read_sessions(&read, changes)?;
                    let nodes_sum = merge(&read.open_table(NODES)?, changes, put)?;
                    if seal != Some(self.marks.seal(signed(sessions_sum.wrapping_add(nodes_sum)))) {
                        return Ok(Err(WRONG_RECORDS.to_owned()));
                    }
                    sessions
                }
            };
            let mut table = write.open_table(SESSIONS)?;
            for (id, (timeout, password)) in &sessions {
                let timeout_ms = millis(*timeout);
                sum = sum.wrapping_add(session_print(*id, timeout_ms, password));
                table.insert(id, (timeout_ms, *password))?;
            }
        }
        Ok(self.commit(write, sum, changes, log, batch)?.map(|marks| (new, marks)))
    }

    /// Commits the records with the numbers. Writes nothing and returns why if they do not fit the server's.
    fn commit(
        &self,
        write: WriteTransaction,
        sum: u64,
        changes: &Changes<'_>,
        log: u64,
        batch: u64,
    ) -> Result<Result<Marks, String>, redb::Error> {
        let Marks { zxid, next_session, store_id, .. } = self.marks;
        let Numbers { zxid, next_session, .. } =
            changes.last.unwrap_or(Numbers { zxid, next_session, totals: Totals::default() });
        let expected = changes.last.map(|last| (last.totals.nodes, last.totals.sessions));
        let counted = (write.open_table(NODES)?.len()?, write.open_table(SESSIONS)?.len()?);
        if expected.is_some_and(|expected| expected != counted) {
            return Ok(Err(WRONG_TOTALS.to_owned()));
        }
        let marks = Marks { zxid, next_session, store_id, sum: signed(sum), log: signed(log), batch: signed(batch) };
        {
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
        Ok(Ok(marks))
    }

    fn opened(&self) -> Result<&Opened, redb::Error> {
        self.opened.as_ref().ok_or(redb::Error::PreviousIo)
    }

    pub(super) fn damaged(&self, what: String) -> ServerError {
        ServerError::Damaged { path: self.files.path().to_owned(), what }
    }

    fn error(&self, error: redb::Error) -> ServerError {
        let path = self.files.path().to_owned();
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

fn begin(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut write = database.begin_write()?;
    write.set_durability(Durability::Immediate)?;
    Ok(write)
}

/// Lets concurrent commits go first after every few records.
fn rest(number: usize) {
    if number % 64 == 63 {
        std::thread::yield_now();
    }
}

/// Returns the sum of the sessions' fingerprints, the seal, and the sessions with the changes of the log applied.
#[allow(clippy::type_complexity, reason = "used by two functions")]
fn read_sessions(
    read: &ReadTransaction,
    newer: &Changes<'_>,
) -> Result<(u64, Option<i64>, BTreeMap<i64, StoredSession>), redb::Error> {
    let seal = read.open_table(META)?.get(SEAL)?.map(|value| value.value());
    let mut sum = 0_u64;
    let mut sessions = BTreeMap::new();
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
    Ok((sum, seal, sessions))
}

/// Passes the nodes to `each` in order, with the changes of the log applied; `None` for those that are gone. Returns the
/// sum of the fingerprints of the nodes in the table.
fn merge(
    nodes: &ReadOnlyTable<&str, &[u8]>,
    newer: &Changes<'_>,
    mut each: impl FnMut(&str, Option<&[u8]>) -> Result<(), redb::Error>,
) -> Result<u64, redb::Error> {
    let mut sum = 0_u64;
    let mut newer = newer.nodes.iter().peekable();
    for entry in nodes.iter()? {
        let (path, value) = entry?;
        let (path, value) = (path.value(), value.value());
        sum = sum.wrapping_add(node_print(path, value));
        while let Some((path, value)) = newer.next_if(|(newer, _)| **newer < path) {
            each(path, *value)?;
        }
        match newer.next_if(|(newer, _)| **newer == path) {
            Some((path, value)) => each(path, *value)?,
            None => each(path, Some(value))?,
        }
    }
    newer.try_for_each(|(path, value)| each(path, *value))?;
    Ok(sum)
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
        let open = AccessList::from([Acl::OPEN]);
        let mut loader = Loader::new(expected, open.clone());
        let (chunks, inbox) = mpsc::sync_channel::<Vec<(Arc<str>, Node)>>(CHUNKS);
        let building = std::thread::Builder::new().spawn_scoped(scope, move || {
            for (path, node) in inbox.into_iter().flatten() {
                loader.add(path, node)?;
            }
            loader.finish()
        })?;
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut unreadable = None;
        let sum = merge(nodes, newer, |path, value| {
            let Some(value) = value else { return Ok(()) };
            let Ok(node) = decode_node(value, &open) else {
                unreadable.get_or_insert_with(|| format!("node {path} cannot be read"));
                return Ok(());
            };
            chunk.push((Arc::from(path), node));
            if chunk.len() == CHUNK {
                // The receiver is gone if building the tree has failed; the remaining records still count for the
                // seal.
                let _ = chunks.send(std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK)));
            }
            Ok(())
        })?;
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
