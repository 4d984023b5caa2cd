//! This process, its user and its files. Which process a value belongs to: a forked child has copies of everything and owns nothing.
//!
//! The child does not have the library's thread, the sockets are the parent's, and a mutex may have been copied while
//! it was locked. So the child neither uses nor destroys anything that was created before the fork: what it drops is
//! forgotten.

use std::ops::{Deref, DerefMut};

pub use crate::ownership::{group_name, open_own, other_replacer, other_writer, read_credentials, user_name};
pub use crate::procstat::ProcStat;

/// The process that created a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The current process.
    ///
    /// One system call, 0.1 µs: without `unsafe`, no cheaper way detects a fork.
    pub fn current() -> Self {
        Process(std::process::id())
    }

    /// Whether it is the current process.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// A value of one process. Dropping the copy in a forked child does nothing.
#[derive(Debug)]
pub struct Owned<T> {
    /// `None` only while it is dropped.
    value: Option<T>,
    process: Process,
}

impl<T> Owned<T> {
    /// The value belongs to the current process.
    pub fn new(value: T) -> Self {
        Owned { value: Some(value), process: Process::current() }
    }

    /// Whether this process created it, and not its parent before a fork.
    pub fn is_ours(&self) -> bool {
        self.process.is_current()
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("only drop takes it")
    }
}

impl<T> DerefMut for Owned<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("only drop takes it")
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            std::mem::forget(self.value.take());
        }
    }
}
