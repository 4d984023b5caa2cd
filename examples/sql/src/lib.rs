//! The statements of docs/guide/fencing.md: tests/sql.rs runs them, as they are written there, on SQLite and PostgreSQL.
