//! The state on the disk: a log of batches, and a snapshot that they are folded into.
//!
//! A data directory holds `lock` (held while a server runs), `format` (the layout's version, a number in text), `state.redb`
//! (the snapshot) and the files of the log behind it. A commit appends one record; a file that has become long is folded into
//! the snapshot on another thread while the next one is written. A start reads the snapshot and what the log adds to it.
//!
//! Invariant: a commit is on the disk when it returns, whole; what a start brings back is the state after some batch, and after
//! every one that was committed.

mod batch;
mod directory;
mod disk_store;
mod folder;
mod log;
mod node;
mod record;
mod snapshot;

pub(crate) use batch::{Batch, State, Store, Totals};
pub(crate) use disk_store::DiskStore;
#[cfg(test)]
pub(crate) use node::{decode_node, encode_node};
#[cfg(test)]
pub(crate) use record::fuzzing;
