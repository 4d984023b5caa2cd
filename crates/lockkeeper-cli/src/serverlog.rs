//! The log of this user's server: `server.log`, and `server.log.1` with what was before.
//!
//! The first is the log of the running server, or of the last one. It becomes the second when another server starts, and when
//! it has reached its limit. A line near its end says how the server ended. If there is no such line, the server was killed, or
//! it crashed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::streams::STDERR;

/// The file in the home that gets the server's messages.
pub(crate) const LOG: &str = "server.log";

/// The file with the messages before those.
const FORMER: &str = "server.log.1";

/// Maximum bytes in each of the files, plus one line.
const LIMIT: i64 = 4 << 20;

/// How much of the end of a log is looked at for its last line.
const TAIL: u64 = 4 << 10;

/// Maximum characters of that line in a message.
const SHOWN: usize = 300;

/// The beginnings of the line about the end, after the time.
const ENDED_CLEANLY: &str = "ended as asked: ";
const ENDED: &str = "ended: ";

/// Writes standard error to a new log, and returns why the last server ended, unless it ended as it should.
pub(crate) fn open(dir: &Path) -> io::Result<Option<String>> {
    let log = dir.join(LOG);
    let why = why_it_ended(&log).map(|why| format!("the server ended: {why} (see {})", dir.join(FORMER).display()));
    let dir = dir.to_owned();
    renew(&dir)?;
    STDERR.watch_by(move || {
        if rustix::fs::fstat(rustix::stdio::stderr()).is_ok_and(|log| log.st_size >= LIMIT) && renew(&dir).is_err() {
            // The limit comes first. Standard error appends, so it goes on at the new end.
            _ = rustix::fs::ftruncate(rustix::stdio::stderr(), 0);
        }
    });
    Ok(why)
}

/// Writes the line of a server that ends because it was asked to, or because it is not used.
pub(crate) fn ends_as_asked(how: &str) {
    line(ENDED_CLEANLY, how);
}

/// Writes the line of a server that fails.
pub(crate) fn ends(why: &str) {
    line(ENDED, why);
}

fn line(begin: &str, text: &str) {
    // Not an event of the log, which a filter could drop.
    STDERR.push(format!("{:.3} {begin}{}\n", Timestamp::now(), text.replace('\n', " ")));
}

/// Keeps the log as the former one, and writes standard error to a new one.
fn renew(dir: &Path) -> io::Result<()> {
    let log: PathBuf = dir.join(LOG);
    match std::fs::rename(&log, dir.join(FORMER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // A new file: a link of this name is not followed.
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&log)?;
    Ok(rustix::stdio::dup2_stderr(file)?)
}

/// Returns why the server of a log ended; `None` if it ended as it should, or if there was none.
pub(crate) fn why_it_ended(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    // The server itself may log a little more while it ends.
    for line in tail.lines().rev() {
        let (_time, said) = line.split_once(' ').unwrap_or_default();
        if said.starts_with(ENDED_CLEANLY) {
            return None;
        }
        if let Some(why) = said.strip_prefix(ENDED) {
            return Some(why.to_owned());
        }
    }
    // A full disk takes no last line either.
    let why = "it was killed, it crashed, or its disk was full";
    let last = tail.lines().rev().find(|line| !line.trim().is_empty());
    Some(match last.map(|last| last.chars().take(SHOWN).collect::<String>()) {
        Some(last) => format!("{why}; the last line of its log is {last:?}"),
        None => why.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_says_why_the_server_ended() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join(LOG);
        assert_eq!(why_it_ended(&log), None);
        let why = |text: &str| {
            std::fs::write(&log, text).unwrap();
            why_it_ended(&log)
        };
        assert_eq!(why("T started\nT ended as asked: signal 15\n"), None);
        assert_eq!(why("T ended as asked: signal 15\nT stopped\n"), None);
        assert_eq!(
            why("T ended as asked: signal 15\nT ended: the last write failed\n").as_deref(),
            Some("the last write failed")
        );
        assert_eq!(why("T ended: the disk is full\n").as_deref(), Some("the disk is full"));
        let crashed =
            why("T a client said: ended as asked: x\nT thread main panicked at a.rs:1:1:\nno luck\n").unwrap();
        assert!(crashed.contains("it crashed") && crashed.contains("\"no luck\""), "{crashed}");
        for empty in ["", "\n \n"] {
            assert_eq!(why(empty).as_deref(), Some("it was killed, it crashed, or its disk was full"));
        }
        let long = why(&"x".repeat(100_000)).unwrap();
        assert!(long.len() < 2 * SHOWN, "{}", long.len());
    }
}
