//! File descriptors: how many connections fit, and what happens to a connection for which there is none.

use std::fs::File;
use std::io;
use std::time::Duration;

use tokio::time::timeout;

/// Descriptors that are kept for the store, the operators' HTTP port and the program around the server.
#[cfg(unix)]
const RESERVE: usize = 64;

/// Raises the limit of open files to the hard one. A program that runs a server calls it first, because each connection
/// needs a descriptor and the usual soft limit is 1 024.
pub fn raise_descriptor_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        // Where it may not be raised, fewer connections fit.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Returns how many of the wanted connections fit into the limit of open files, with a reserve for the store.
pub(crate) fn connections_that_fit(wanted: usize) -> usize {
    #[cfg(unix)]
    {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        match limit.and_then(|limit| usize::try_from(limit).ok()) {
            None => wanted,
            Some(limit) => wanted.min(fit(limit.saturating_sub(open))),
        }
    }
    #[cfg(not(unix))]
    wanted
}

/// With very few free descriptors, half of them is for connections.
#[cfg(unix)]
fn fit(free: usize) -> usize {
    free.saturating_sub(RESERVE).max(free / 2).max(1)
}

/// A descriptor that is given up in order to accept and close a connection for which there is none. Otherwise the
/// connection would wait in the listener's queue, and its client with it.
#[derive(Debug)]
pub(crate) struct Spare(Option<File>);

impl Spare {
    pub(crate) fn new() -> Self {
        Self(open())
    }

    /// Accepts a connection and closes it. Waits a moment if that is not possible either, because then nothing is until
    /// some descriptor is closed. Dropping the future leaves at most one connection unanswered.
    pub(crate) async fn refuse<T>(&mut self, accept: impl Future<Output = io::Result<T>>) {
        const MOMENT: Duration = Duration::from_millis(100);
        self.0 = None;
        let refused = timeout(MOMENT, accept).await;
        self.0 = open();
        if matches!(refused, Ok(Err(_))) {
            tokio::time::sleep(MOMENT).await;
        }
    }
}

fn open() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_reserve_for_the_store() {
        assert_eq!([1_000, 128, 100, 2, 0].map(fit), [936, 64, 50, 1, 1]);
        assert!(connections_that_fit(usize::MAX) < usize::MAX / 2 && connections_that_fit(1) == 1);
    }
}
