//! The state on the disk.
//!
//! A data directory holds `lock` (held while a server runs), `format` (the layout's version, a number in text) and
//! `state.redb`. The database holds the present state, nodes by path and sessions by id, not a history: a commit rewrites
//! what changed, and starting is one scan with nothing to replay.
//!
//! Invariant: a commit is atomic and on the disk when it returns, so the database is always the state after some
//! transaction. A seal over all records is part of every commit; a start that finds it broken is refused, for a lock that is
//! remembered wrongly is worse than a server that is down.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
};

use crate::error::ServerError;
use crate::machine::{Node, Owner, Tree};
use crate::request::{Acl, AclId};
use crate::tree::Loader;
use crate::wire::jute::{self, Malformed, Reader};

/// The layout that this program writes. It also reads the one before, which has no seal, and makes it its own.
const FORMAT: u32 = 2;
const UNSEALED: u32 = 1;

const NODES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("nodes");
const SESSIONS: TableDefinition<'_, i64, (u64, [u8; 16])> = TableDefinition::new("sessions");
const META: TableDefinition<'_, &str, i64> = TableDefinition::new("meta");

const ZXID: &str = "zxid";
const NEXT_SESSION: &str = "next_session";
const STORE_ID: &str = "store_id";
/// Fingerprint of the other numbers and of what all records add up to.
const SEAL: &str = "seal";

/// How many records a chunk of a start takes, and how many chunks may wait to become part of the tree.
const CHUNK: usize = 512;
const CHUNKS: usize = 8;

/// The tree lives in memory, so the database's own cache has little to do.
const CACHE_BYTES: usize = 4 << 20;

/// Everything that a restart brings back.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) sessions: Vec<(i64, Duration, [u8; 16])>,
    pub(crate) zxid: i64,
    pub(crate) next_session: i64,
    pub(crate) store_id: i64,
}

/// A session's timeout and password.
pub(crate) type StoredSession = (Duration, [u8; 16]);

/// What changed since the batch before; values are the state at its end.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) zxid: i64,
    pub(crate) next_session: i64,
    /// Changed nodes, `None` if they are gone; ranges are of `bytes`.
    pub(crate) nodes: Vec<(Arc<str>, Option<Range<usize>>)>,
    /// Changed sessions, `None` if they have ended.
    pub(crate) sessions: Vec<(i64, Option<StoredSession>)>,
    /// All encoded nodes in one buffer.
    pub(crate) bytes: BytesMut,
}

impl Batch {
    pub(crate) fn put_node(&mut self, path: Arc<str>, node: Option<&Node>) {
        let range = node.map(|node| {
            let start = self.bytes.len();
            encode_node(&mut self.bytes, node);
            start..self.bytes.len()
        });
        self.nodes.push((path, range));
    }
}

/// Something that makes batches durable; a trait so that tests can let it fail.
pub(crate) trait Store: Send {
    /// Returns once the whole batch is on the disk. After an error the store must not be used again.
    fn commit(&mut self, batch: &Batch) -> Result<(), ServerError>;
}

/// A data directory in use.
#[derive(Debug)]
pub(crate) struct DiskStore {
    path: PathBuf,
    database: Database,
    store_id: i64,
    /// What the fingerprints of all records add up to.
    sum: u64,
    /// Released when the store is dropped, after the database.
    _lock: File,
}

impl DiskStore {
    /// Opens a data directory, making it if it is missing. `fresh` is the state of a new one.
    pub(crate) fn open(path: &Path, fresh: impl FnOnce() -> State) -> Result<(Self, State), ServerError> {
        let fail = |source| ServerError::disk(path.to_owned(), source);
        make_directory(path)?;
        let format = check_format(path)?;
        let lock = lock(path)?;
        if format.is_none() {
            refuse_foreign(path)?;
        }
        let file = path.join("state.redb");
        if format.is_some() && !file.try_exists().map_err(fail)? {
            return Err(ServerError::Damaged { path: path.to_owned(), what: "state.redb is missing".to_owned() });
        }
        let file = private_file(&file).map_err(fail)?;
        let open = || {
            let database = Database::builder()
                .set_cache_size(CACHE_BYTES)
                .create_file(file)
                .map_err(|error| database_error(path, error))?;
            let mut store = Self { path: path.to_owned(), database, store_id: 0, sum: 0, _lock: lock };
            let found = store.load(format != Some(UNSEALED)).map_err(|error| database_error(path, error))?;
            Ok((store, found.transpose()?))
        };
        // The database trusts its own pages, and panics over some that are damaged.
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(open));
        let (mut store, found) = opened.unwrap_or_else(|_| {
            Err(ServerError::Damaged { path: path.to_owned(), what: "state.redb cannot be read".to_owned() })
        })?;
        let state = match found {
            Some(state) => state,
            None if format.is_some() => return Err(store.damaged("state.redb is empty".to_owned())),
            None => {
                let state = fresh();
                store.create(&state)?;
                state
            }
        };
        if format == Some(UNSEALED) {
            let batch = Batch { zxid: state.zxid, next_session: state.next_session, ..Batch::default() };
            store.write(&batch).map_err(|error| database_error(path, error))?;
        }
        if format != Some(FORMAT) {
            write_format(path).map_err(fail)?;
        }
        Ok((store, state))
    }

    /// `None` if nothing was ever committed. Without a seal to find, what is there is believed.
    #[allow(clippy::type_complexity, reason = "the two layers of error have different makers")]
    fn load(&mut self, sealed: bool) -> Result<Option<Result<State, ServerError>>, redb::Error> {
        let read = self.database.begin_read()?;
        let meta = match read.open_table(META) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            other => other?,
        };
        let number = |key| -> Result<i64, redb::Error> { Ok(meta.get(key)?.map_or(0, |value| value.value())) };
        let (zxid, next_session, store_id) = (number(ZXID)?, number(NEXT_SESSION)?, number(STORE_ID)?);
        let mut sum = 0_u64;
        let mut sessions = Vec::new();
        for entry in read.open_table(SESSIONS)?.iter()? {
            let (id, value) = entry?;
            let (timeout_ms, password) = value.value();
            sum = sum.wrapping_add(session_print(id.value(), timeout_ms, &password));
            sessions.push((id.value(), Duration::from_millis(timeout_ms), password));
        }
        let nodes = read.open_table(NODES)?;
        // A damaged count must not be believed: no record is shorter than this.
        let room = self.path.join("state.redb").metadata()?.len() / 64;
        let expected = usize::try_from(nodes.len()?.min(room)).unwrap_or(0);
        let (tree, nodes_sum) = read_tree(&nodes, expected)?;
        let sum = sum.wrapping_add(nodes_sum);
        (self.sum, self.store_id) = (sum, store_id);
        let seal = meta.get(SEAL)?.map(|value| value.value());
        if sealed && seal != Some(self.seal(zxid, next_session, sum)) {
            let what = "the records in state.redb are not those that were committed".to_owned();
            return Ok(Some(Err(self.damaged(what))));
        }
        Ok(Some(match tree {
            Ok(tree) => Ok(State { tree, sessions, zxid, next_session, store_id }),
            Err(what) => Err(self.damaged(format!("state.redb: {what}"))),
        }))
    }

    fn damaged(&self, what: String) -> ServerError {
        ServerError::Damaged { path: self.path.clone(), what }
    }

    fn create(&mut self, state: &State) -> Result<(), ServerError> {
        let mut batch = Batch { zxid: state.zxid, next_session: state.next_session, ..Batch::default() };
        for (path, node) in state.tree.iter() {
            batch.put_node(Arc::clone(path), Some(node));
        }
        self.store_id = state.store_id;
        self.write(&batch).map_err(|error| database_error(&self.path, error))
    }

    fn seal(&self, zxid: i64, next_session: i64, sum: u64) -> i64 {
        let numbers = [zxid, next_session, self.store_id].map(i64::to_be_bytes);
        let seal = fingerprint([&numbers[0][..], &numbers[1], &numbers[2], &sum.to_be_bytes()]);
        i64::from_be_bytes(seal.to_be_bytes())
    }

    fn write(&mut self, batch: &Batch) -> Result<(), redb::Error> {
        let mut sum = self.sum;
        let mut write = self.database.begin_write()?;
        write.set_durability(Durability::Immediate)?;
        {
            let mut nodes = write.open_table(NODES)?;
            for (path, range) in &batch.nodes {
                let old = match range {
                    Some(range) => {
                        let value = &batch.bytes[range.clone()];
                        sum = sum.wrapping_add(node_print(path, value));
                        nodes.insert(&**path, value)?
                    }
                    None => nodes.remove(&**path)?,
                };
                sum = sum.wrapping_sub(old.map_or(0, |old| node_print(path, old.value())));
            }
            let mut sessions = write.open_table(SESSIONS)?;
            for (id, session) in &batch.sessions {
                let old = match session {
                    Some((timeout, password)) => {
                        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                        sum = sum.wrapping_add(session_print(*id, timeout_ms, password));
                        sessions.insert(id, (timeout_ms, *password))?
                    }
                    None => sessions.remove(id)?,
                };
                if let Some((timeout_ms, password)) = old.map(|old| old.value()) {
                    sum = sum.wrapping_sub(session_print(*id, timeout_ms, &password));
                }
            }
            let mut meta = write.open_table(META)?;
            meta.insert(ZXID, batch.zxid)?;
            meta.insert(NEXT_SESSION, batch.next_session)?;
            meta.insert(STORE_ID, self.store_id)?;
            meta.insert(SEAL, self.seal(batch.zxid, batch.next_session, sum))?;
        }
        write.commit()?;
        self.sum = sum;
        Ok(())
    }
}

impl Store for DiskStore {
    fn commit(&mut self, batch: &Batch) -> Result<(), ServerError> {
        self.write(batch).map_err(|error| database_error(&self.path, error))
    }
}

/// Reads all nodes, about `expected` of them: the tree, or what is wrong with it, and what their fingerprints add up to.
fn read_tree(nodes: &ReadOnlyTable<&str, &[u8]>, expected: usize) -> Result<(Result<Tree, String>, u64), redb::Error> {
    // Two halves of about the same work: reading and judging the records, and building the tree of them.
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
        let mut sum = 0_u64;
        let mut chunk = Vec::with_capacity(CHUNK);
        for entry in nodes.iter()? {
            let (path, value) = entry?;
            sum = sum.wrapping_add(node_print(path.value(), value.value()));
            let Ok(node) = decode_node(value.value(), &open) else {
                return Ok((Err(format!("node {} cannot be read", path.value())), sum));
            };
            chunk.push((Arc::from(path.value()), node));
            if chunk.len() == CHUNK {
                // Nobody takes it any more if the tree has failed already; the rest still counts for the seal.
                let _ = chunks.send(std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK)));
            }
        }
        let _ = chunks.send(chunk);
        drop(chunks);
        let tree = building.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((tree.map_err(|lost| format!("node {lost} has no place in the tree")), sum))
    })
}

fn database_error(path: &Path, error: impl Into<redb::Error>) -> ServerError {
    let path = path.to_owned();
    match error.into() {
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

fn make_directory(path: &Path) -> Result<(), ServerError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(ServerError::NotADirectory { path: path.to_owned() })
        }
        Err(error) => Err(ServerError::disk(path.to_owned(), error)),
        Ok(()) => Ok(()),
    }
}

/// A file that only this user can read, made if it is missing.
fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Which of the formats that can be read the directory says it has; `None` if it says nothing.
fn check_format(path: &Path) -> Result<Option<u32>, ServerError> {
    let found = match std::fs::read_to_string(path.join("format")) {
        Ok(found) => found.trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => "unreadable".to_owned(),
        Err(error) => return Err(ServerError::disk(path.to_owned(), error)),
    };
    let known = [UNSEALED, FORMAT].into_iter().find(|format| found == format.to_string());
    if known.is_some() {
        return Ok(known);
    }
    Err(ServerError::Format { path: path.to_owned(), found, supported: FORMAT })
}

fn lock(path: &Path) -> Result<File, ServerError> {
    let lock = private_file(&path.join("lock")).map_err(|error| ServerError::disk(path.to_owned(), error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(ServerError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(ServerError::disk(path.to_owned(), error)),
    }
}

/// Without a `format` file, only what an interrupted first start leaves may be there.
fn refuse_foreign(path: &Path) -> Result<(), ServerError> {
    let fail = |source| ServerError::disk(path.to_owned(), source);
    for entry in std::fs::read_dir(path).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name();
        if name != "lock" && name != "state.redb" && name != "format.new" {
            // Leave a directory that is not ours as it was found.
            let _ = std::fs::remove_file(path.join("lock"));
            return Err(ServerError::Foreign { path: path.to_owned() });
        }
    }
    Ok(())
}

/// Last, and at once: a directory with a `format` file is complete.
fn write_format(path: &Path) -> io::Result<()> {
    let new = path.join("format.new");
    let mut file = private_file(&new)?;
    file.set_len(0)?;
    writeln!(file, "{FORMAT}")?;
    file.sync_all()?;
    std::fs::rename(&new, path.join("format"))?;
    File::open(path)?.sync_all()
}

/// FNV-1a, 64 bits, of parts with their lengths: what a changed bit is found by, and quick for records this short.
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

pub(crate) fn encode_node(out: &mut BytesMut, node: &Node) {
    let (tag, value) = match node.owner {
        Owner::None => (0, 0),
        Owner::Session(id) => (1, id),
        Owner::Container => (2, 0),
        Owner::Ttl(ms) => (3, ms),
    };
    out.put_u8(tag);
    out.put_i64(value);
    for number in [node.czxid, node.mzxid, node.pzxid, node.ctime, node.mtime] {
        out.put_i64(number);
    }
    for number in [node.version, node.aversion, node.creates] {
        out.put_i32(number);
    }
    // No entries stands for the list that nearly every node has.
    let acl: &[Acl] = if *node.acl == [Acl::OPEN] { &[] } else { &node.acl };
    jute::put_len(out, acl.len());
    for Acl { perms, id } in acl {
        out.put_i32(*perms);
        let (scheme, id) = match id {
            AclId::WorldAnyone => ("world", "anyone"),
            AclId::Other { scheme, id } => (scheme.as_str(), id.as_str()),
        };
        jute::put_text(out, scheme);
        jute::put_text(out, id);
    }
    jute::put_buffer(out, node.data.as_deref());
}

/// `open` is the one copy of the list that nearly every node has.
pub(crate) fn decode_node(bytes: &[u8], open: &Arc<[Acl]>) -> Result<Node, Malformed> {
    let mut reader = Reader::new(bytes);
    let tag = reader.u8()?;
    let value = reader.i64()?;
    let owner = match tag {
        0 => Owner::None,
        1 => Owner::Session(value),
        2 => Owner::Container,
        3 => Owner::Ttl(value),
        _ => return Err(Malformed),
    };
    let (czxid, mzxid, pzxid) = (reader.i64()?, reader.i64()?, reader.i64()?);
    let (ctime, mtime) = (reader.i64()?, reader.i64()?);
    let (version, aversion, creates) = (reader.i32()?, reader.i32()?, reader.i32()?);
    let acl = reader.vector(12, |reader| {
        let perms = reader.i32()?;
        let (scheme, id) = (reader.text()?, reader.text()?);
        let id = if scheme == "world" && id == "anyone" { AclId::WorldAnyone } else { AclId::Other { scheme, id } };
        Ok(Acl { perms, id })
    })?;
    let acl = if acl.is_empty() { Arc::clone(open) } else { Arc::from(acl) };
    let data = reader.data()?;
    let children = Default::default();
    Ok(Node { data, acl, owner, czxid, mzxid, pzxid, ctime, mtime, version, aversion, creates, children })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> State {
        State { tree: Tree::new(), sessions: Vec::new(), zxid: 7, next_session: 3, store_id: 5 }
    }

    /// Makes a directory what the version before left: no seal.
    fn unseal(directory: &Path) {
        let database = Database::open(directory.join("state.redb")).unwrap();
        let write = database.begin_write().unwrap();
        write.open_table(META).unwrap().remove(SEAL).unwrap();
        write.commit().unwrap();
        std::fs::write(directory.join("format"), "1\n").unwrap();
    }

    #[test]
    fn data_of_the_version_before_is_taken_over_and_sealed() {
        let directory = tempfile::tempdir().unwrap();
        let open = || DiskStore::open(directory.path(), fresh);
        drop(open().unwrap());
        unseal(directory.path());
        for _ in 0..2 {
            let (_, state) = open().unwrap();
            assert_eq!((state.zxid, state.next_session, state.store_id, state.tree.len()), (7, 3, 5, 4));
            assert_eq!(std::fs::read_to_string(directory.path().join("format")).unwrap(), "2\n");
        }
    }

    #[test]
    fn a_record_or_number_that_was_not_committed_breaks_the_seal() {
        let changes: [fn(&redb::WriteTransaction); 4] = [
            |write| drop(write.open_table(META).unwrap().insert(ZXID, 8).unwrap()),
            |write| drop(write.open_table(META).unwrap().remove(SEAL).unwrap()),
            |write| drop(write.open_table(NODES).unwrap().remove("/zookeeper/config").unwrap()),
            |write| drop(write.open_table(SESSIONS).unwrap().insert(1, (1, [0; 16])).unwrap()),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let directory = tempfile::tempdir().unwrap();
            drop(DiskStore::open(directory.path(), fresh).unwrap());
            let database = Database::open(directory.path().join("state.redb")).unwrap();
            let write = database.begin_write().unwrap();
            change(&write);
            write.commit().unwrap();
            drop(database);
            let error = DiskStore::open(directory.path(), fresh).unwrap_err();
            assert!(matches!(error, ServerError::Damaged { .. }), "{at}: {error}");
        }
    }
}
