//! Runs the statements of docs/guide/fencing.md, exactly as written there, on real databases.
//!
//! `cargo xtask interop postgres` runs them on SQLite and on PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

const GUIDE: &str = include_str!("../../../docs/guide/fencing.md");

/// Returns the statement with this name in the guide.
fn statement(name: &str) -> &'static str {
    let start = format!("```sql\n-- {name}\n");
    let (_, rest) = GUIDE.split_once(&start).unwrap_or_else(|| panic!("{name} is not in the guide"));
    rest.split_once("```").unwrap().0.trim_end()
}

/// A change of an article behind the mark of a whole table; the article then has no mark of its own.
#[derive(Clone, Copy)]
enum Change<'a> {
    Delete(i64),
    Insert(i64, &'a str),
    Update(i64, &'a str),
}

const INSERT: &str = "INSERT INTO article (id, title, fence) VALUES ($1, $2, 0)";
// Parameters are numbered in order of appearance: to SQLite `$1` is a name, and the first name it sees is the first parameter.
const SET: &str = "UPDATE article SET title = $1 WHERE id = $2";
const DELETE: &str = "DELETE FROM article WHERE id = $1";
const READ: &str = "SELECT title, fence FROM article WHERE id = $1";

/// A connection to a database.
trait Database {
    /// Changes an article with a token, and returns the number of affected rows.
    fn update(&mut self, title: &str, token: i64, id: i64) -> u64;
    fn upsert(&mut self, id: i64, title: &str, token: i64) -> u64;
    /// Raises the mark of a resource and, unless that is refused, makes the change in the same transaction. Returns whether it did.
    fn behind_the_fence(&mut self, resource: &str, token: i64, change: Change<'_>) -> bool;
    /// Returns title and mark of an article.
    fn article(&mut self, id: i64) -> Option<(String, i64)>;
    /// Returns the mark of a resource.
    fn fence(&mut self, resource: &str) -> i64;
    /// Creates article 100 and the mark of `all`, both at 0, and records the titles of the article in the order of its changes.
    fn prepare_race(&mut self);
    /// Returns the recorded titles.
    fn titles(&mut self) -> Vec<i64>;
}

/// Smaller tokens change nothing; equal and greater ones do. A missing row is created, and a stale holder does not bring a deleted
/// row back.
fn smaller_tokens_are_refused(db: &mut impl Database) {
    assert_eq!(db.upsert(1, "first", 5), 1);
    assert_eq!(db.upsert(1, "again", 5), 1);
    assert_eq!(db.update("newer", 7, 1), 1);
    assert_eq!(db.update("stale", 6, 1), 0);
    assert_eq!(db.upsert(1, "stale", 6), 0);
    assert_eq!(db.article(1), Some(("newer".to_owned(), 7)));
    assert_eq!(db.update("nobody", 9, 2), 0);
    assert_eq!(db.upsert(3, "the last epoch's", i64::MAX), 1);
    assert_eq!(db.article(3).unwrap().1, i64::MAX);

    assert!(db.behind_the_fence("articles", 8, Change::Insert(4, "made")));
    assert!(db.behind_the_fence("articles", 8, Change::Update(4, "changed")));
    assert!(db.behind_the_fence("articles", 9, Change::Delete(4)));
    for change in [Change::Insert(4, "back"), Change::Insert(5, "new"), Change::Update(1, "stale"), Change::Delete(1)] {
        assert!(!db.behind_the_fence("articles", 8, change));
    }
    assert_eq!((db.article(4), db.article(5)), (None, None));
    assert_eq!(db.article(1), Some(("newer".to_owned(), 7)));
    // The resource of another lock.
    assert!(db.behind_the_fence("others", 1, Change::Insert(6, "other")));
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Update,
    Upsert,
    Fence,
}

impl Way {
    fn write(self, db: &mut impl Database, token: i64) -> bool {
        let title = token.to_string();
        match self {
            Way::Update => db.update(&title, token, 100) == 1,
            Way::Upsert => db.upsert(100, &title, token) == 1,
            Way::Fence => db.behind_the_fence("all", token, Change::Update(100, &title)),
        }
    }

    fn mark(self, db: &mut impl Database) -> i64 {
        match self {
            Way::Update | Way::Upsert => db.article(100).unwrap().1,
            Way::Fence => db.fence("all"),
        }
    }
}

/// Each writer takes a token and writes, while others may overtake it. No older write is accepted after a newer one, and at the end
/// the row is that of the newest token.
fn racing_writers<D: Database>(connect: impl Fn() -> D + Sync) {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 60;
    for way in [Way::Update, Way::Upsert, Way::Fence] {
        let (next, accepted) = (AtomicI64::new(1), Mutex::new(Vec::new()));
        connect().prepare_race();
        std::thread::scope(|scope| {
            for seed in 0..WRITERS {
                let (next, accepted, connect) = (&next, &accepted, &connect);
                scope.spawn(move || {
                    let (mut db, mut random) = (connect(), fastrand::Rng::with_seed(seed as u64));
                    for _ in 0..ROUNDS {
                        let token = next.fetch_add(1, Ordering::SeqCst);
                        for _ in 0..random.u8(0..20) {
                            std::thread::yield_now();
                        }
                        if way.write(&mut db, token) {
                            accepted.lock().unwrap().push(token);
                        } else {
                            assert!(way.mark(&mut db) > token, "{way:?}: {token} was refused without a greater mark");
                        }
                    }
                });
            }
        });
        let mut accepted = accepted.into_inner().unwrap();
        accepted.sort_unstable();
        let mut db = connect();
        let titles = db.titles();
        assert_eq!(titles, accepted, "{way:?}: an older token wrote after a newer one");
        let last = *accepted.last().unwrap();
        assert_eq!((db.article(100).unwrap().0, way.mark(&mut db)), (last.to_string(), last), "{way:?}");
    }
}

mod sqlite {
    use std::path::Path;
    use std::time::Duration;

    use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

    use super::*;

    struct Sqlite(Connection);

    fn open(path: &Path) -> Sqlite {
        let db = Connection::open(path).unwrap();
        db.busy_timeout(Duration::from_secs(60)).unwrap();
        // This does not test durability, and every commit would wait for the disk.
        db.execute_batch("PRAGMA synchronous = OFF").unwrap();
        Sqlite(db)
    }

    fn make(path: &Path) -> Sqlite {
        let db = open(path);
        db.0.execute_batch(statement("schema")).unwrap();
        db
    }

    impl Database for Sqlite {
        fn update(&mut self, title: &str, token: i64, id: i64) -> u64 {
            self.0.execute(statement("update"), params![title, token, id]).unwrap() as u64
        }

        fn upsert(&mut self, id: i64, title: &str, token: i64) -> u64 {
            self.0.execute(statement("upsert"), params![id, title, token]).unwrap() as u64
        }

        fn behind_the_fence(&mut self, resource: &str, token: i64, change: Change<'_>) -> bool {
            let begun = Transaction::new(&mut self.0, TransactionBehavior::Immediate).unwrap();
            if begun.execute(statement("raise"), params![resource, token]).unwrap() == 0 {
                return false;
            }
            let changed = match change {
                Change::Delete(id) => begun.execute(DELETE, params![id]),
                Change::Insert(id, title) => begun.execute(INSERT, params![id, title]),
                Change::Update(id, title) => begun.execute(SET, params![title, id]),
            };
            assert_eq!(changed.unwrap(), 1);
            begun.commit().unwrap();
            true
        }

        fn article(&mut self, id: i64) -> Option<(String, i64)> {
            self.0.query_row(READ, params![id], |row| Ok((row.get(0)?, row.get(1)?))).optional().unwrap()
        }

        fn fence(&mut self, resource: &str) -> i64 {
            let read = "SELECT token FROM fence WHERE resource = $1";
            self.0.query_row(read, params![resource], |row| row.get(0)).unwrap()
        }

        fn prepare_race(&mut self) {
            let race = "DROP TRIGGER IF EXISTS log; DROP TABLE IF EXISTS done; DELETE FROM article; DELETE FROM fence;
                CREATE TABLE done (at INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL);
                INSERT INTO article VALUES (100, '0', 0); INSERT INTO fence VALUES ('all', 0);
                CREATE TRIGGER log AFTER UPDATE ON article BEGIN INSERT INTO done (title) VALUES (NEW.title); END";
            self.0.execute_batch(race).unwrap();
        }

        fn titles(&mut self) -> Vec<i64> {
            let mut read = self.0.prepare("SELECT CAST(title AS INTEGER) FROM done ORDER BY at").unwrap();
            read.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        }
    }

    #[test]
    fn sqlite_refuses_smaller_tokens() {
        let dir = tempfile::tempdir().unwrap();
        smaller_tokens_are_refused(&mut make(&dir.path().join("db")));
    }

    #[test]
    fn sqlite_lets_no_older_writer_in_after_a_newer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        drop(make(&path));
        racing_writers(|| open(&path));
    }
}

#[cfg(deep)]
mod postgresql {
    use lockkeeper_testkit::postgres::Postgres;
    use postgres::{Client, NoTls};

    use super::*;

    struct Pg(Client);

    fn connect(server: &Postgres) -> Pg {
        Pg(Client::connect(&server.connect_string(), NoTls).unwrap())
    }

    fn start() -> Postgres {
        let server = Postgres::start().unwrap_or_else(|error| panic!("{error}"));
        connect(&server).0.batch_execute(statement("schema")).unwrap();
        server
    }

    impl Database for Pg {
        fn update(&mut self, title: &str, token: i64, id: i64) -> u64 {
            self.0.execute(statement("update"), &[&title, &token, &id]).unwrap()
        }

        fn upsert(&mut self, id: i64, title: &str, token: i64) -> u64 {
            self.0.execute(statement("upsert"), &[&id, &title, &token]).unwrap()
        }

        fn behind_the_fence(&mut self, resource: &str, token: i64, change: Change<'_>) -> bool {
            if let Change::Delete(id) = change {
                return self.0.execute(statement("delete (PostgreSQL)"), &[&resource, &token, &id]).unwrap() == 1;
            }
            let mut begun = self.0.transaction().unwrap();
            if begun.execute(statement("raise"), &[&resource, &token]).unwrap() == 0 {
                return false;
            }
            let changed = match change {
                Change::Delete(id) => begun.execute(DELETE, &[&id]),
                Change::Insert(id, title) => begun.execute(INSERT, &[&id, &title]),
                Change::Update(id, title) => begun.execute(SET, &[&title, &id]),
            };
            assert_eq!(changed.unwrap(), 1);
            begun.commit().unwrap();
            true
        }

        fn article(&mut self, id: i64) -> Option<(String, i64)> {
            self.0.query_opt(READ, &[&id]).unwrap().map(|row| (row.get(0), row.get(1)))
        }

        fn fence(&mut self, resource: &str) -> i64 {
            self.0.query_one("SELECT token FROM fence WHERE resource = $1", &[&resource]).unwrap().get(0)
        }

        fn prepare_race(&mut self) {
            let race = "DROP TABLE IF EXISTS done; DELETE FROM article; DELETE FROM fence;
                CREATE TABLE done (at BIGSERIAL, title TEXT NOT NULL);
                INSERT INTO article VALUES (100, '0', 0); INSERT INTO fence VALUES ('all', 0);
                CREATE OR REPLACE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO done (title) VALUES (NEW.title); RETURN NULL; END $$;
                CREATE OR REPLACE TRIGGER log AFTER UPDATE ON article FOR EACH ROW EXECUTE FUNCTION log()";
            self.0.batch_execute(race).unwrap();
        }

        /// The trigger takes its number while the row is locked.
        fn titles(&mut self) -> Vec<i64> {
            let rows = self.0.query("SELECT title::BIGINT FROM done ORDER BY at", &[]).unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    }

    #[test]
    fn postgresql_refuses_smaller_tokens() {
        let server = start();
        smaller_tokens_are_refused(&mut connect(&server));
    }

    #[test]
    fn postgresql_lets_no_older_writer_in_after_a_newer() {
        let server = start();
        racing_writers(|| connect(&server));
    }

    /// While the transaction of an older holder is open, a newer one waits for its end, and is accepted then.
    #[test]
    fn postgresql_keeps_a_newer_holder_waiting_for_an_older_ones_transaction() {
        let server = start();
        let (mut older, mut newer, mut watcher) = (connect(&server), connect(&server), connect(&server));
        let mut begun = older.0.transaction().unwrap();
        assert_eq!(begun.execute(statement("raise"), &[&"all", &1_i64]).unwrap(), 1);
        let waiting = std::thread::spawn(move || newer.behind_the_fence("all", 2, Change::Insert(1, "newer")));
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        while watcher.0.query_one(blocked, &[]).unwrap().get::<_, i64>(0) == 0 {
            std::thread::yield_now();
        }
        begun.execute(INSERT, &[&2_i64, &"older"]).unwrap();
        begun.commit().unwrap();
        assert!(waiting.join().unwrap());
        assert!(!older.behind_the_fence("all", 1, Change::Insert(3, "stale")));
    }
}
