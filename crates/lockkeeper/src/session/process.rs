//! Which process a thing belongs to: a forked child has copies of everything, and owns none of it.
//!
//! In the child there is no thread of ours, the sockets are the parent's, and a mutex may have been copied while it was locked.
//! So nothing that was made before the fork is used there, nor taken apart: what a child drops is forgotten.

use std::ops::Deref;

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The one that runs this.
    ///
    /// A system call, 0.1 µs: nothing that a program can know without `unsafe` tells a fork apart for less.
    pub(crate) fn current() -> Self {
        Process(std::process::id())
    }

    /// Whether it is the one that runs this.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// Something of one process, of which a forked child has a copy that does nothing when dropped.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    /// `None` only while it is dropped.
    value: Option<T>,
    process: Process,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Owned { value: Some(value), process: Process::current() }
    }

    /// Whether this process made it, and is not a child of that one.
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_current()
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken by nobody but drop")
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            std::mem::forget(self.value.take());
        }
    }
}
