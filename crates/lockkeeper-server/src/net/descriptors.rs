//! File descriptors: how many connections fit, and what happens to a connection for which there is none.

use std::fs::File;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::timeout;

/// Descriptors that are kept for the store, the operators' HTTP port and the program around the server.
const RESERVE: usize = 64;

/// Raises the limit of open files to the hard one. A program that runs a server calls it first, because each connection
/// needs a descriptor and the usual soft limit is 1 024.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not be raised, fewer connections fit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Returns how many of the wanted connections fit into the limit of open files, with a reserve for the store.
pub(crate) fn connections_that_fit(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    match limit.and_then(|limit| usize::try_from(limit).ok()) {
        None => wanted,
        Some(limit) => wanted.min(fit(limit.saturating_sub(open))),
    }
}

/// With very few free descriptors, half of them is for connections.
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

    /// Handles an error of accept. If there is no descriptor, it accepts the next connection and closes it. Waits a moment
    /// if that is not possible either, or if the system has no memory, because the next attempt would fail at once. Any
    /// other error is that of a connection that has ended. Dropping the future leaves at most one connection unanswered.
    pub(crate) async fn failed<T>(&mut self, error: &io::Error, accept: impl Future<Output = io::Result<T>>) {
        const MOMENT: Duration = Duration::from_millis(100);
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => {
                self.0 = None;
                let refused = timeout(MOMENT, accept).await;
                self.0 = open();
                if matches!(refused, Ok(Err(_))) {
                    tokio::time::sleep(MOMENT).await;
                }
            }
            Some(Errno::NOBUFS | Errno::NOMEM) => tokio::time::sleep(MOMENT).await,
            _ => {}
        }
    }
}

fn open() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_reserve_for_the_store() {
        assert_eq!([1_000, 128, 100, 2, 0].map(fit), [936, 64, 50, 1, 1]);
        assert!(connections_that_fit(usize::MAX) < usize::MAX / 2 && connections_that_fit(1) == 1);
    }

    /// The next one may be healthy.
    #[tokio::test]
    async fn only_a_missing_descriptor_closes_the_next_connection() {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        for (failure, closes) in [
            (error(Errno::MFILE), true),
            (error(Errno::NFILE), true),
            (error(Errno::CONNABORTED), false),
            (error(Errno::PERM), false),
            (error(Errno::NOMEM), false),
            (io::ErrorKind::Other.into(), false),
        ] {
            let mut accepted = false;
            let accept = async {
                accepted = true;
                Ok(())
            };
            Spare::new().failed(&failure, accept).await;
            assert_eq!(accepted, closes, "{failure}");
        }
    }
}
