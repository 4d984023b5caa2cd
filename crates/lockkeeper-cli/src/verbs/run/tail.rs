//! Passes a command's standard error on and keeps its last bytes.
//!
//! One thread reads the command's pipe and writes to our standard error before it reads more. So a slow reader slows
//! the command down, as without the pipe.
//!
//! Invariant: nothing that the command wrote before its end is missing, and processes that it left running cannot delay
//! [`Tail::end`].

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// The reader of a command's standard error.
#[derive(Debug)]
pub(crate) struct Tail {
    kept: Arc<Mutex<VecDeque<u8>>>,
    /// Closed when the command has ended.
    running: PipeWriter,
    thread: JoinHandle<()>,
}

impl Tail {
    /// Starts to pass on what is written to the returned pipe, and keeps its last `limit` bytes.
    pub(crate) fn start(limit: usize) -> std::io::Result<(Self, PipeWriter)> {
        let (source, sink) = std::io::pipe()?;
        let (ended, running) = std::io::pipe()?;
        fcntl_setfl(&source, fcntl_getfl(&source)? | OFlags::NONBLOCK)?;
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let keep = kept.clone();
        let thread = std::thread::Builder::new()
            .name("lockkeeper-tail".to_owned())
            .spawn(move || pass_on(source, &ended, &keep, limit))?;
        Ok((Tail { kept, running, thread }, sink))
    }

    /// Passes on what the command wrote before its end; returns the kept bytes.
    pub(crate) fn end(self) -> String {
        drop(self.running);
        // The thread catches its own errors, so it does not panic.
        _ = self.thread.join();
        let kept = std::mem::take(&mut *self.kept.lock().expect("held for a change only"));
        String::from_utf8_lossy(&Vec::from(kept)).into_owned()
    }
}

/// Copies until the command has ended and the pipe is empty, or until the pipe is closed.
fn pass_on(mut source: PipeReader, ended: &PipeReader, kept: &Mutex<VecDeque<u8>>, limit: usize) {
    let mut stops = SigSet::empty();
    // The command may own the terminal, and a message in the background must not stop us (`stty tostop`).
    stops.add(Signal::SIGTTOU);
    _ = stops.thread_block();
    let mut bytes = [0; 8192];
    let mut over = false;
    loop {
        match source.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => {
                keep(kept, &bytes[..count], limit);
                // If the reader of our standard error has gone, the bytes are still kept.
                _ = std::io::stderr().write_all(&bytes[..count]);
            }
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {
                if over {
                    return;
                }
                let mut both = [
                    PollFd::from_borrowed_fd(source.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
                ];
                _ = poll(&mut both, None);
                over = !both[1].revents().is_empty();
            }
            Err(_) => return,
        }
    }
}

fn keep(kept: &Mutex<VecDeque<u8>>, bytes: &[u8], limit: usize) {
    let mut kept = kept.lock().expect("held for a change only");
    kept.extend(&bytes[bytes.len().saturating_sub(limit)..]);
    let excess = kept.len().saturating_sub(limit);
    kept.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_in_order() {
        let kept = Mutex::default();
        for text in ["first ", "second ", "third"] {
            keep(&kept, text.as_bytes(), 9);
        }
        assert_eq!(Vec::from(kept.into_inner().unwrap()), b"ond third");
        let kept = Mutex::default();
        keep(&kept, b"0123456789", 4);
        assert_eq!(Vec::from(kept.into_inner().unwrap()), b"6789");
    }

    #[test]
    fn a_process_that_keeps_the_pipe_open_does_not_delay_the_end() {
        let (tail, mut sink) = Tail::start(4096).unwrap();
        sink.write_all(b"before the end\n").unwrap();
        assert_eq!(tail.end(), "before the end\n");
        drop(sink);
    }
}
