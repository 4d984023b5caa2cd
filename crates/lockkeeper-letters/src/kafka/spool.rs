//! Records on this machine's disk until they are in the topic: a directory with one file for each.
//!
//! A file is written under another name, synced and renamed, so there are only complete files. Many processes add at
//! once and none waits for another. This is not the file of a [`FileSink`](crate::FileSink), from
//! which a record could not be removed. A process that removes records holds the spool's lock.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_session::process::open_own;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::LetterRecord;

/// The ending of a record's file; other files are not records.
const ENTRY: &str = "record";
const INTENT: &str = "intent";
const IDENTITY: &str = "id";
const LOCK: &str = "lock";

/// A record with its name in the spool, which is also its id in the topic.
#[derive(Debug)]
pub(super) struct SpoolEntry {
    pub(super) name: String,
    pub(super) record: LetterRecord,
}

/// Where to search for a transaction that was under way: the end of each partition when it began. A partition that is
/// missing here is read from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Intent {
    pub(super) ends: BTreeMap<i32, i64>,
}

#[derive(Debug)]
pub(super) struct Spool {
    dir: PathBuf,
}

/// The right to remove records. It ends with the process.
#[derive(Debug)]
pub(super) struct SpoolTurn<'a> {
    spool: &'a Spool,
    _lock: File,
}

impl Spool {
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Spool { dir })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Adds a record and returns when it is on disk.
    pub(super) fn add(&self, record: &LetterRecord) -> io::Result<()> {
        // Ordered by time, so that they are sent roughly in order; the rest makes them unique.
        static TURN: AtomicU64 = AtomicU64::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let name = format!("{:013}-{turn:06}-{}", lockkeeper_session::text::wall_clock_ms(), Uuid::new_v4().simple());
        self.write(&format!("{name}.{ENTRY}"), record)
    }

    /// The names of all records, the oldest first.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = PathBuf::from(entry?.file_name());
            if path.extension().is_some_and(|ending| ending == ENTRY) {
                names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// All records that can be read, the oldest first. A record that another process removes meanwhile may be missing.
    pub(super) fn read(&self, unreadable: &mut Vec<String>) -> io::Result<Vec<SpoolEntry>> {
        let mut entries = Vec::new();
        for name in self.names()? {
            match self.get(&format!("{name}.{ENTRY}")) {
                Ok(Some(record)) => entries.push(SpoolEntry { name, record }),
                Ok(None) => {}
                Err(error) => unreadable.push(format!("{}/{name}.{ENTRY}: {error}", self.dir.display())),
            }
        }
        Ok(entries)
    }

    /// Waits for the turn of this process.
    pub(super) fn turn(&self) -> io::Result<SpoolTurn<'_>> {
        let lock = open_own(&self.dir.join(LOCK), private().create(true).truncate(false))?;
        lock.lock()?;
        Ok(SpoolTurn { spool: self, _lock: lock })
    }

    fn get<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let mut bytes = Vec::new();
        match File::open(self.dir.join(name)) {
            Ok(mut file) => file.read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(serde_json::from_slice(&bytes)?))
    }

    /// Writes a complete file and returns when it is on disk.
    fn write(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let aside = self.dir.join(format!("{name}.new-{}", Uuid::new_v4().simple()));
        let written = (|| {
            let mut file = private().create_new(true).open(&aside)?;
            file.write_all(&serde_json::to_vec(value)?)?;
            file.sync_data()?;
            fs::rename(&aside, self.dir.join(name))
        })();
        if written.is_err() {
            _ = fs::remove_file(&aside);
        }
        written?;
        self.sync()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// A new name or a deletion is durable once the directory is synced.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }
}

impl SpoolTurn<'_> {
    /// The identity of this spool's sender, which never changes.
    pub(super) fn identity(&self) -> io::Result<String> {
        if let Some(identity) = self.spool.get(IDENTITY)? {
            return Ok(identity);
        }
        let identity = Uuid::new_v4().simple().to_string();
        self.spool.write(IDENTITY, &identity)?;
        Ok(identity)
    }

    /// The transaction that was begun and not ended, if there is one.
    pub(super) fn intent(&self) -> io::Result<Option<Intent>> {
        self.spool.get(INTENT)
    }

    pub(super) fn intend(&self, intent: &Intent) -> io::Result<()> {
        self.spool.write(INTENT, intent)
    }

    /// Removes records that are in the topic.
    pub(super) fn take_out<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> io::Result<()> {
        for name in names {
            self.spool.remove(&format!("{name}.{ENTRY}"))?;
        }
        self.spool.sync()
    }

    /// The transaction has ended, and no record of the topic is left in the spool.
    pub(super) fn ended(&self) -> io::Result<()> {
        self.spool.remove(INTENT)?;
        self.spool.sync()
    }
}

/// Files that only their owner can access.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Letter;

    #[test]
    fn added_records_are_read_in_order_until_they_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::open(dir.path().join("deep/spool")).unwrap();
        let record = |operation: &str| LetterRecord::Letter(Box::new(Letter::new(operation, "P1", "/P1")));
        for operation in ["a", "b", "c"] {
            spool.add(&record(operation)).unwrap();
        }
        // A half-written file of a crash is not a record.
        fs::write(spool.dir().join("0.record.new-x"), "{").unwrap();
        fs::write(spool.dir().join("0.record"), "{").unwrap();
        let mut unreadable = Vec::new();
        let entries = spool.read(&mut unreadable).unwrap();
        let operations: Vec<_> = entries.iter().map(|entry| entry.record.operation()).collect();
        assert_eq!(operations, ["a", "b", "c"]);
        assert!(matches!(&unreadable[..], [problem] if problem.contains("0.record")), "{unreadable:?}");

        let turn = spool.turn().unwrap();
        turn.take_out([entries[1].name.as_str()]).unwrap();
        assert_eq!(spool.read(&mut Vec::new()).unwrap().len(), 2);
        assert_eq!(turn.identity().unwrap(), turn.identity().unwrap());
        let intent = Intent { ends: BTreeMap::from([(0, 7)]) };
        turn.intend(&intent).unwrap();
        assert_eq!(turn.intent().unwrap(), Some(intent));
        turn.ended().unwrap();
        assert_eq!(turn.intent().unwrap(), None);
    }
}
