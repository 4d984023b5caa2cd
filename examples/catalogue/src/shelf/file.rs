//! The shelf on one machine: SQLite, which many processes may open, with the fencing mark as a column.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::ShelfError;
use crate::article::Article;

/// How long a statement waits for a statement of another process. Each takes well under a millisecond.
const BUSY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct File {
    connection: Arc<Mutex<Connection>>,
    place: String,
}

impl File {
    pub(super) fn open(place: &str) -> Result<Self, ShelfError> {
        let broken = |error: rusqlite::Error| ShelfError::Broken { place: place.to_owned(), what: error.to_string() };
        let connection = Connection::open(Path::new(place)).map_err(broken)?;
        connection.busy_timeout(BUSY).map_err(broken)?;
        connection.pragma_update(None, "journal_mode", "wal").map_err(broken)?;
        connection
            .execute_batch(
                "CREATE TABLE IF NOT EXISTS articles (
                     id    TEXT PRIMARY KEY,
                     fence INTEGER NOT NULL,
                     body  TEXT NOT NULL
                 ) STRICT",
            )
            .map_err(broken)?;
        Ok(File { connection: Arc::new(Mutex::new(connection)), place: place.to_owned() })
    }

    pub(super) fn claim(&self, id: &str, token: i64) -> Result<Article, ShelfError> {
        let blank = serde_json::to_string(&Article::blank(id)).map_err(|error| self.broken(error))?;
        let body: Option<String> = self
            .connection()
            .query_row(
                "INSERT INTO articles (id, fence, body) VALUES (?1, ?2, ?3)
                 ON CONFLICT (id) DO UPDATE SET fence = excluded.fence WHERE fence <= excluded.fence
                 RETURNING body",
                params![id, token, blank],
                |row| row.get(0),
            )
            .optional()
            .map_err(|error| self.broken(error))?;
        let body = body.ok_or_else(|| ShelfError::Stale { article: id.to_owned(), token })?;
        serde_json::from_str(&body).map_err(|error| self.broken(error))
    }

    pub(super) fn put(&self, article: &Article, token: i64) -> Result<(), ShelfError> {
        let body = serde_json::to_string(article).map_err(|error| self.broken(error))?;
        let written = self
            .connection()
            .execute(
                "UPDATE articles SET body = ?3, fence = ?2 WHERE id = ?1 AND fence <= ?2",
                params![article.id, token, body],
            )
            .map_err(|error| self.broken(error))?;
        match written {
            0 => Err(ShelfError::Stale { article: article.id.clone(), token }),
            _ => Ok(()),
        }
    }

    pub(super) fn put_unfenced(&self, article: &Article) -> Result<(), ShelfError> {
        let body = serde_json::to_string(article).map_err(|error| self.broken(error))?;
        let written = self.connection().execute(
            "INSERT INTO articles (id, fence, body) VALUES (?1, 0, ?2) ON CONFLICT (id) DO UPDATE SET body = ?2",
            params![article.id, body],
        );
        written.map(drop).map_err(|error| self.broken(error))
    }

    pub(super) fn get(&self, id: &str) -> Result<Article, ShelfError> {
        let body: Option<String> = self
            .connection()
            .query_row("SELECT body FROM articles WHERE id = ?1", [id], |row| row.get(0))
            .optional()
            .map_err(|error| self.broken(error))?;
        body.map_or_else(
            || Ok(Article::blank(id)),
            |body| serde_json::from_str(&body).map_err(|error| self.broken(error)),
        )
    }

    pub(super) fn list(&self) -> Result<Vec<Article>, ShelfError> {
        let connection = self.connection();
        let mut all = connection.prepare("SELECT body FROM articles").map_err(|error| self.broken(error))?;
        let bodies = all.query_map([], |row| row.get::<_, String>(0)).map_err(|error| self.broken(error))?;
        bodies
            .map(|body| {
                let body = body.map_err(|error| self.broken(error))?;
                serde_json::from_str(&body).map_err(|error| self.broken(error))
            })
            .collect()
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn broken(&self, error: impl std::fmt::Display) -> ShelfError {
        ShelfError::Broken { place: self.place.clone(), what: error.to_string() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]
mod tests {
    use super::*;
    use crate::article::Change;

    #[test]
    fn an_overtaken_holder_neither_writes_nor_claims() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = File::open(dir.path().join("articles").to_str().unwrap()).unwrap();
        let old = shelf.claim("P1", 5).unwrap();
        // The next holder has only claimed the article. That is enough.
        let new = shelf.claim("P1", 7).unwrap();
        let change = Change::new("title", "late");
        assert!(matches!(shelf.put(&old.changed(&change, 5, "old"), 5), Err(ShelfError::Stale { token: 5, .. })));
        assert!(matches!(shelf.claim("P1", 6), Err(ShelfError::Stale { token: 6, .. })));
        shelf.put(&new.changed(&Change::new("title", "new"), 7, "new"), 7).unwrap();
        assert_eq!(shelf.get("P1").unwrap().fields["title"], "new");
        assert_eq!(shelf.get("P2").unwrap(), Article::blank("P2"));
    }
}
