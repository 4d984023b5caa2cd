//! Marks on disk: a table in one file. Each write is durable before it counts.

use std::io;
use std::path::Path;

use lockkeeper_core::FencingToken;
use redb::{Database, ReadableDatabase, TableDefinition};

/// The greatest token seen, for each key.
const MARKS: TableDefinition<'_, &str, i64> = TableDefinition::new("lockkeeper-fence-1");

pub(crate) struct Marks(Database);

impl Marks {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let failed = |error: redb::Error| {
            let what = format!("opening the gate's marks in {}: {error}", path.display());
            match error {
                redb::Error::Io(source) => io::Error::new(source.kind(), what),
                redb::Error::DatabaseAlreadyOpen => io::Error::new(io::ErrorKind::ResourceBusy, what),
                _ => io::Error::new(io::ErrorKind::InvalidData, what),
            }
        };
        let marks = Marks(Database::create(path).map_err(|error| failed(error.into()))?);
        marks.create_table().map_err(failed)?;
        Ok(marks)
    }

    fn create_table(&self) -> Result<(), redb::Error> {
        let writing = self.0.begin_write()?;
        writing.open_table(MARKS)?;
        writing.commit()?;
        Ok(())
    }

    pub(crate) fn read(&self, key: &str) -> Result<Option<FencingToken>, String> {
        let read = || -> Result<Option<i64>, redb::Error> {
            Ok(self.0.begin_read()?.open_table(MARKS)?.get(key)?.map(|mark| mark.value()))
        };
        let mark = read().map_err(|error| error.to_string())?;
        mark.map(FencingToken::try_from).transpose().map_err(|error| error.to_string())
    }

    pub(crate) fn write(&self, key: &str, token: FencingToken) -> Result<(), String> {
        let write = || -> Result<(), redb::Error> {
            let writing = self.0.begin_write()?;
            writing.open_table(MARKS)?.insert(key, token.get())?;
            writing.commit()?;
            Ok(())
        };
        write().map_err(|error| error.to_string())
    }

    pub(crate) fn remove(&self, key: &str) -> Result<(), String> {
        let remove = || -> Result<(), redb::Error> {
            let writing = self.0.begin_write()?;
            writing.open_table(MARKS)?.remove(key)?;
            writing.commit()?;
            Ok(())
        };
        remove().map_err(|error| error.to_string())
    }
}
