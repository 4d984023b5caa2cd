//! The facts on disk: one JSON object a line, in a bounded number of files.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use lockkeeper_session::process::open_own;
use serde::Serialize;

/// The file that is written. Older ones have a number: `history.1.jsonl` is the newest of them.
const NAME: &str = "history.jsonl";

/// The next one, until the file that is full has a number.
const NEXT: &str = "history.jsonl.next";

/// How many files there are at most.
const FILES: u64 = 8;

/// Maximum bytes of all files together.
const MAX_BYTES: u64 = 256 << 20;

/// How much of the end of a file is read to find the last line.
const TAIL: u64 = 64 << 10;

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Another process writes it.
    #[error("another observer writes the journal in {}", dir.display())]
    InUse {
        /// Its directory.
        dir: PathBuf,
    },
    /// The file system failed.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A journal in a directory, which one process writes. It is locked until this is dropped.
///
/// A line is given to the operating system at once. A power failure may lose the last ones.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    file: File,
    bytes: u64,
    /// Maximum bytes of one file.
    max: u64,
    /// Lines that could not be written since the last one that was.
    lost: u64,
    /// Whether a part of a line may be at the end of the file.
    is_torn: bool,
    last_ms: Option<i64>,
    _lock: File,
}

/// Lines that are missing at this place of the journal.
#[derive(Serialize)]
struct NotWritten {
    fact: &'static str,
    lines: u64,
}

impl Journal {
    /// Opens the journal in this directory, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// The directory cannot be used, or another process uses it.
    pub fn open(dir: &Path) -> Result<Journal, JournalError> {
        Journal::open_with(dir, MAX_BYTES)
    }

    fn open_with(dir: &Path, max_bytes: u64) -> Result<Journal, JournalError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| JournalError::Io { path, source }
        };
        // The facts have the messages of users.
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir))?;
        let (lock_path, path) = (dir.join("lock"), dir.join(NAME));
        let lock = open_own(&lock_path, OpenOptions::new().create(true).append(true)).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(JournalError::InUse { dir: dir.to_owned() }),
            Err(std::fs::TryLockError::Error(source)) => return Err(failed(&lock_path)(source)),
        }
        let (file, bytes) = append(&path).map_err(failed(&path))?;
        let (mut last_ms, is_torn) = last_line(&path).map_err(failed(&path))?;
        if bytes == 0 {
            last_ms = last_line(&numbered(dir, 1)).ok().and_then(|(last, _)| last);
        }
        let max = max_bytes / FILES;
        Ok(Journal { dir: dir.to_owned(), file, bytes, max, lost: 0, is_torn, last_ms, _lock: lock })
    }

    /// When the last fact of an earlier run was written, in milliseconds since 1970.
    pub fn last_ms(&self) -> Option<i64> {
        self.last_ms
    }

    /// Writes an object as one line.
    ///
    /// # Errors
    ///
    /// The first error since the last line that was written. The line is lost, and so are later ones until one can be written. That one
    /// follows a line that counts the lost ones.
    pub fn write(&mut self, fact: &impl Serialize) -> Result<(), JournalError> {
        let result = self.try_write(fact);
        match result {
            Ok(()) => Ok(()),
            Err(source) => {
                self.lost += 1;
                if self.lost > 1 {
                    return Ok(());
                }
                Err(JournalError::Io { path: self.dir.join(NAME), source })
            }
        }
    }

    /// Whether the last line could not be written.
    pub fn has_failed(&self) -> bool {
        self.lost > 0
    }

    fn try_write(&mut self, fact: &impl Serialize) -> io::Result<()> {
        let mut text = if self.is_torn { "\n".to_owned() } else { String::new() };
        if self.lost > 0 {
            text.push_str(&serde_json::to_string(&NotWritten { fact: "not_written", lines: self.lost })?);
            text.push('\n');
        }
        text.push_str(&serde_json::to_string(fact)?);
        text.push('\n');
        if self.bytes > 0 && self.bytes + text.len() as u64 > self.max {
            self.rotate()?;
        }
        // One write, so that a reader sees whole lines.
        let written = self.file.write_all(text.as_bytes());
        self.is_torn = written.is_err();
        written?;
        self.bytes += text.len() as u64;
        self.lost = 0;
        Ok(())
    }

    /// Begins a new file. One that fails is tried again from where it stopped, and removes no other file.
    fn rotate(&mut self) -> io::Result<()> {
        let (path, next) = (self.dir.join(NAME), self.dir.join(NEXT));
        // First what may fail for want of space or files.
        let (file, bytes) = append(&next)?;
        if path.try_exists()? {
            let free = (1..FILES - 1).find(|number| !numbered(&self.dir, *number).exists()).unwrap_or(FILES - 1);
            for number in (1..free).rev() {
                std::fs::rename(numbered(&self.dir, number), numbered(&self.dir, number + 1))?;
            }
            std::fs::rename(&path, numbered(&self.dir, 1))?;
        }
        std::fs::rename(&next, &path)?;
        (self.file, self.bytes) = (file, bytes);
        Ok(())
    }

    /// Its files that exist, the oldest first.
    pub fn files(dir: &Path) -> Vec<PathBuf> {
        let numbered = (1..FILES).rev().map(|number| numbered(dir, number));
        numbered.chain([dir.join(NAME)]).filter(|path| path.exists()).collect()
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn numbered(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("history.{number}.jsonl"))
}

fn append(path: &Path) -> io::Result<(File, u64)> {
    let file = open_own(path, OpenOptions::new().create(true).append(true))?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

/// The time in the last whole line of a file, and whether a part of a line is behind it.
fn last_line(path: &Path) -> io::Result<(Option<i64>, bool)> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    let is_torn = tail.last().is_some_and(|byte| *byte != b'\n');
    let time = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).ok()?.get("at_ms")?.as_i64();
    Ok((tail.split(|byte| *byte == b'\n').rev().find_map(time), is_torn))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: i64) -> serde_json::Value {
        serde_json::json!({"at_ms": at, "fact": "entered", "lock": "/locks/a"})
    }

    fn all(dir: &Path) -> Vec<i64> {
        let text: String = Journal::files(dir).iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        let times =
            text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["at_ms"].as_i64());
        times.collect()
    }

    #[test]
    fn the_files_together_are_bounded_and_the_oldest_facts_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open_with(dir.path(), 8 * 200).unwrap();
        (0..500).for_each(|at| journal.write(&line(at)).unwrap());
        let left = all(dir.path());
        assert!(left.len() < 40 && *left.last().unwrap() == 499, "{left:?}");
        assert!(left.windows(2).all(|pair| pair[1] == pair[0] + 1), "{left:?}");
        let bytes: u64 = Journal::files(dir.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
        assert!(bytes <= 8 * 200, "{bytes}");
    }

    #[test]
    fn a_journal_that_cannot_make_a_new_file_keeps_its_facts_and_goes_on_when_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open_with(dir.path(), 8 * 200).unwrap();
        (0..500).for_each(|at| journal.write(&line(at)).unwrap());
        std::fs::create_dir(dir.path().join(NEXT)).unwrap();
        let mut kept = Vec::new();
        let failed = (500..600).find(|at| {
            kept = all(dir.path());
            journal.write(&line(*at)).is_err()
        });
        assert!(failed.is_some());
        (600..620).for_each(|at| journal.write(&line(at)).unwrap());
        assert!(journal.has_failed());
        assert_eq!(all(dir.path()), kept);
        std::fs::remove_dir(dir.path().join(NEXT)).unwrap();
        journal.write(&line(620)).unwrap();
        assert!(!journal.has_failed());
        let (last, left) = all(dir.path()).split_last().map(|(last, left)| (*last, left.to_vec())).unwrap();
        assert!(last == 620 && kept.ends_with(&left) && left.len() + 10 > kept.len(), "{kept:?} {left:?}");
    }

    #[test]
    fn a_journal_whose_file_was_removed_keeps_the_others_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open_with(dir.path(), 8 * 200).unwrap();
        (0..500).for_each(|at| journal.write(&line(at)).unwrap());
        let path = dir.path().join(NAME);
        std::fs::remove_file(&path).unwrap();
        let kept = all(dir.path());
        let written = (500..600).find(|at| {
            journal.write(&line(*at)).unwrap();
            path.exists()
        });
        assert_eq!(all(dir.path()), [kept, vec![written.unwrap()]].concat());
    }

    #[test]
    fn a_rotation_goes_on_where_the_last_one_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open_with(dir.path(), 8 * 200).unwrap();
        (0..500).for_each(|at| journal.write(&line(at)).unwrap());
        // It stopped after the third file was moved.
        std::fs::remove_file(numbered(dir.path(), 3)).unwrap();
        let kept = all(dir.path());
        (500..600).find(|at| {
            journal.write(&line(*at)).unwrap();
            numbered(dir.path(), 3).exists()
        });
        assert!(all(dir.path()).starts_with(&kept));
    }

    #[test]
    fn a_journal_goes_on_behind_a_torn_line_and_knows_when_it_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        assert_eq!(journal.last_ms(), None);
        assert!(matches!(Journal::open(dir.path()), Err(JournalError::InUse { .. })));
        journal.write(&line(7)).unwrap();
        drop(journal);
        let path = dir.path().join(NAME);
        let mut text = std::fs::read(&path).unwrap();
        text.extend(b"{\"at_ms\": 9, \"fa");
        std::fs::write(&path, text).unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        assert_eq!(journal.last_ms(), Some(7));
        journal.write(&line(11)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with(&format!("\"fa\n{}\n", line(11))), "{text}");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        journal.file = File::open(dir.path().join(NAME)).unwrap();
        journal.write(&line(1)).unwrap_err();
        journal.write(&line(2)).unwrap();
        assert!(journal.has_failed());
        journal.file = append(&dir.path().join(NAME)).unwrap().0;
        journal.write(&line(3)).unwrap();
        let text = std::fs::read_to_string(dir.path().join(NAME)).unwrap();
        assert_eq!(text, format!("\n{{\"fact\":\"not_written\",\"lines\":2}}\n{}\n", line(3)));
    }
}
