//! The state on the disk: a log of batches, and a snapshot that they are folded into.
//!
//! A data directory contains four things. `lock` is locked while a server runs. `format` is the version of the
//! layout, a number in text. `state.redb` is the snapshot. The others are the files of the log. A commit appends
//! one record. A file that has become long is folded into the snapshot on another thread while the next one is
//! written. A start reads the snapshot and then the records of the log.
//!
//! Invariant: a commit is complete on the disk when it returns. A start restores the state after some batch, and after
//! every batch that was committed.

mod batch;
mod directory;
mod disk_store;
mod folder;
mod guarded;
mod log;
mod node;
mod record;
mod snapshot;

pub(crate) use batch::{Batch, Store, StoredState, Totals};
pub(crate) use disk_store::DiskStore;
#[cfg(test)]
pub(crate) use node::{decode_node, encode_node};
#[cfg(test)]
pub(crate) use record::fuzzing;
