//! Dead letters in a file, one line of JSON each.
//!
//! Records are only appended, under a lock file that all processes of the machine use, and synced before a letter
//! counts as kept. A record that does not fit on the disk is removed again. A line that a crash has torn stays and is
//! reported; the next one begins on a new line. A file that has grown too large is rotated to a numbered name. Once there
//! are eight, each rotation deletes the oldest ones, up to the first that has an unsettled letter. A torn line is not JSON and
//! was never kept, so it is deleted with its file. A line of JSON that is not understood may be a letter of a newer
//! version, so it keeps its file.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use lockkeeper_session::process::{open_own, other_replacer, other_writer};
use rustix::fs::OFlags;
use serde::de::IgnoredAny;

use super::sink::apart;
use super::{LetterRecord, Records, Sink, SinkError, fold};

/// The size at which a file is rotated: about ten thousand letters.
const LARGE: u64 = 16 << 20;

/// How many rotated files are kept before settled ones are deleted.
const ASIDE: usize = 8;

/// Dead letters in a file of this machine, which many processes may use at once. Readable only by its owner.
///
/// The file must be on a disk on which file locks work for all its users: a local disk, not a network disk.
#[derive(Clone, Debug)]
#[must_use = "a sink does nothing until it is written or read"]
pub struct FileSink {
    path: PathBuf,
    large: u64,
}

impl FileSink {
    /// Returns the sink of the file at `path`. The first letter creates the file and its directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FileSink { path: path.into(), large: LARGE }
    }

    /// Sets the size in bytes at which the file is rotated; the default is 16 MiB.
    pub fn rotate_at(mut self, bytes: u64) -> Self {
        self.large = bytes;
        self
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on a separate thread, because files block. Dropping the future leaves the thread to finish.
    fn apart<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&FileSink) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, SinkError>> {
        let sink = self.clone();
        apart("lockkeeper-file", (self.name(), what), move || work(&sink))
    }

    /// The file beside the sink's file with this ending.
    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    /// Waits for this process's turn. The lock ends with the file, whatever happens to the process.
    fn turn(&self, exclusive: bool) -> io::Result<File> {
        let mut options = private();
        // Not `open_own`: root reads the letters of others. It is opened by whoever reads the letters, so a planted link must not create a file elsewhere.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        let turn = options.create(true).truncate(false).open(self.beside(".lock"))?;
        if exclusive { turn.lock() } else { turn.lock_shared() }?;
        Ok(turn)
    }

    /// Fails if something else than a file is there. Reading it might not end.
    fn check_kind(&self) -> io::Result<()> {
        match fs::metadata(&self.path) {
            Ok(metadata) if !metadata.is_file() => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is no regular file: name another one for dead letters",
            )),
            _ => Ok(()),
        }
    }

    fn append_now(&self, line: &str) -> io::Result<()> {
        self.check_kind()?;
        if let Some(dir) = self.dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let _turn = self.turn(true)?;
        self.put_aside()?;
        let is_new = !self.path.exists();
        let mut file = open_own(&self.path, OpenOptions::new().read(true).create(true).append(true))?;
        let mut text = String::new();
        let length = file.seek(SeekFrom::End(0))?;
        if length > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                text.push('\n');
            }
        }
        text.push_str(line);
        text.push('\n');
        if let Err(error) = file.write_all(text.as_bytes()) {
            // A part of it may be written, as on a full disk.
            _ = file.set_len(length);
            return Err(error);
        }
        file.sync_data()?;
        if is_new {
            self.sync_dir()?;
        }
        Ok(())
    }

    fn dir(&self) -> Option<&Path> {
        self.path.parent().filter(|dir| !dir.as_os_str().is_empty())
    }

    /// A new name is durable once its directory is synced.
    fn sync_dir(&self) -> io::Result<()> {
        File::open(self.dir().unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Rotates the file if it is large, and deletes rotated files in which everything is settled.
    fn put_aside(&self) -> io::Result<()> {
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.len() >= self.large => {}
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        let aside = self.aside()?;
        let next = aside.last().map_or(1, |(number, _)| number + 1);
        fs::rename(&self.path, self.beside(&format!(".{next}")))?;
        self.sync_dir()?;
        if aside.len() < ASIDE {
            return Ok(());
        }
        let settled: std::collections::HashSet<_> = fold(self.read_now()?.records)
            .into_iter()
            .filter(|filed| filed.fate.is_settled())
            .map(|filed| filed.letter.id)
            .collect();
        // From the oldest on: a letter comes before its marks, which mean nothing without it.
        for (_, path) in aside {
            let mut read = Records::default();
            let all_understood = read_file(&path, &mut read)?;
            let unsettled = read.records.iter().any(|record| match record {
                LetterRecord::Letter(letter) => !settled.contains(&letter.id),
                LetterRecord::Mark(_) => false,
            });
            if unsettled || !all_understood {
                break;
            }
            fs::remove_file(&path)?;
        }
        Ok(())
    }

    /// The rotated files, the oldest first.
    fn aside(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let dir = self.dir().unwrap_or(Path::new("."));
        let Some(name) = self.path.file_name().map(OsStr::as_bytes) else {
            return Ok(Vec::new());
        };
        let mut aside = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let other = entry.file_name();
            let number = other.as_bytes().strip_prefix(name).and_then(|rest| rest.strip_prefix(b"."));
            let number =
                number.and_then(|number| str::from_utf8(number).ok()).filter(|number| !number.starts_with('+'));
            aside.extend(number.and_then(|number| number.parse().ok()).map(|number| (number, entry.path())));
        }
        aside.sort_unstable();
        Ok(aside)
    }

    fn read_now(&self) -> io::Result<Records> {
        let mut read = Records::default();
        read.foreign.extend(other_replacer(self.dir().unwrap_or(Path::new(".")))?);
        for (_, path) in self.aside()? {
            read_file(&path, &mut read)?;
        }
        if self.path.exists() {
            read_file(&self.path, &mut read)?;
        }
        Ok(read)
    }
}

impl Sink for FileSink {
    fn name(&self) -> String {
        format!("file:{}", self.path.display())
    }

    fn append<'a>(&'a self, record: &'a LetterRecord) -> BoxFuture<'a, Result<String, SinkError>> {
        let line = serde_json::to_string(record).expect("records of strings and numbers always serialise");
        self.apart("kept in", move |sink| sink.append_now(&line).map(|()| sink.name()))
    }

    fn records(&self) -> BoxFuture<'_, Result<Records, SinkError>> {
        self.apart("read from", |sink| {
            if sink.dir().is_some_and(|dir| !dir.exists()) {
                return Ok(Records::default());
            }
            sink.check_kind()?;
            let _turn = sink.turn(false)?;
            sink.read_now()
        })
    }
}

/// Files that only their owner can access.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// Adds the records of a file. Returns whether every line is a record or torn.
fn read_file(path: &Path, read: &mut Records) -> io::Result<bool> {
    let mut all_understood = true;
    let (mut bytes, mut file) = (Vec::new(), File::open(path)?);
    read.foreign.extend(other_writer(&file.metadata()?).map(|how| format!("{} {how}", path.display())));
    file.read_to_end(&mut bytes)?;
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(record) => read.records.push(record),
            Err(error) => {
                read.unreadable.push(format!("{}:{}: {error}", path.display(), at + 1));
                all_understood &= serde_json::from_slice::<IgnoredAny>(line).is_err();
            }
        }
    }
    Ok(all_understood)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{Letter, LetterEvent, Mark};

    fn letter(operation: &str) -> LetterRecord {
        LetterRecord::Letter(Box::new(Letter::new(operation, "P1", "/P1")))
    }

    fn mark(letter: &LetterRecord, event: LetterEvent) -> LetterRecord {
        let LetterRecord::Letter(letter) = letter else { panic!("{letter:?} is no letter") };
        LetterRecord::Mark(Mark::new(letter, event))
    }

    fn sink() -> (tempfile::TempDir, FileSink) {
        let dir = tempfile::tempdir().unwrap();
        let sink = FileSink::new(dir.path().join("deep/dead-letters.jsonl"));
        (dir, sink)
    }

    fn block<T>(outcome: impl Future<Output = T>) -> T {
        // No reactor: the sink must work without one.
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(outcome)
    }

    fn append(sink: &FileSink, record: &LetterRecord) {
        block(sink.append(record)).unwrap();
    }

    #[test]
    fn kept_records_are_read_again_and_are_private() {
        let (dir, sink) = sink();
        assert_eq!(block(sink.records()).unwrap(), Records::default());
        assert!(!dir.path().join("deep").exists(), "looking makes nothing");
        let records = [letter("a"), mark(&letter("a"), LetterEvent::Failed { reason: "x\ny".to_owned() })];
        records.iter().for_each(|record| append(&sink, record));
        assert_eq!(block(sink.records()).unwrap().records, records);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(sink.path()), mode(sink.path().parent().unwrap())), (0o600, 0o700));
        // What another program has made keeps its mode.
        fs::set_permissions(sink.path(), Permissions::from_mode(0o644)).unwrap();
        append(&sink, &letter("b"));
        assert_eq!(mode(sink.path()), 0o644);
    }

    /// Another user may have planted the link, and may read or change what it leads to.
    #[test]
    fn a_letter_is_not_appended_through_a_link_nor_to_a_file_with_several_names() {
        let (dir, sink) = sink();
        fs::create_dir(sink.dir().unwrap()).unwrap();
        let kept = dir.path().join("kept");
        fs::write(&kept, "content").unwrap();
        fs::set_permissions(&kept, Permissions::from_mode(0o644)).unwrap();
        for (plant, says) in [
            (Box::new(|| std::os::unix::fs::symlink(&kept, sink.path())) as Box<dyn Fn() -> io::Result<()>>, "a link"),
            (Box::new(|| fs::hard_link(&kept, sink.path())), "several names"),
        ] {
            plant().unwrap();
            let refused = format!("{:?}", block(sink.append(&letter("a"))).unwrap_err());
            assert!(refused.contains(says), "{refused}");
            fs::remove_file(sink.path()).unwrap();
        }
        let mode = fs::metadata(&kept).unwrap().permissions().mode() & 0o777;
        assert_eq!((fs::read_to_string(&kept).unwrap().as_str(), mode), ("content", 0o644));
    }

    /// Another user may have planted it in a directory that was open to others.
    #[test]
    fn a_link_in_place_of_the_lock_file_is_not_followed() {
        let (dir, sink) = sink();
        fs::create_dir(sink.dir().unwrap()).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, sink.beside(".lock")).unwrap();
        block(sink.records()).unwrap_err();
        block(sink.append(&letter("a"))).unwrap_err();
        assert!(!elsewhere.exists() && !sink.path().exists());
    }

    #[test]
    fn a_torn_line_is_reported_and_spoils_no_other() {
        let (_dir, sink) = sink();
        let [a, b] = ["a", "b"].map(letter);
        append(&sink, &a);
        let mut file = OpenOptions::new().append(true).open(sink.path()).unwrap();
        file.write_all(b"{\"letter\":{\"operation\":\"torn").unwrap();
        append(&sink, &b);
        let read = block(sink.records()).unwrap();
        assert_eq!(read.records, [a, b]);
        assert!(matches!(&read.unreadable[..], [problem] if problem.contains("dead-letters.jsonl:2: ")), "{read:?}");
    }

    /// As on a full disk. The limit is one of the process, so the writer is a process of its own.
    #[test]
    fn a_record_that_does_not_fit_leaves_nothing_of_itself() {
        const FILE: &str = "LOCKKEEPER_TEST_LIMITED";
        let [small, large] = ["small".to_owned(), "large".repeat(2000)].map(|operation| letter(&operation));
        if let Some(path) = std::env::var_os(FILE) {
            let sink = FileSink::new(path);
            append(&sink, &small);
            block(sink.append(&large)).unwrap_err();
            return append(&sink, &small);
        }
        let (_dir, sink) = sink();
        let limited = std::process::Command::new("sh")
            .args(["-c", r#"trap "" XFSZ; ulimit -f 8 && exec "$@""#, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "file::tests::a_record_that_does_not_fit_leaves_nothing_of_itself"])
            .env(FILE, sink.path())
            .output()
            .unwrap();
        assert!(limited.status.success(), "{limited:?}");
        let read = block(sink.records()).unwrap();
        assert_eq!((read.records.len(), read.unreadable), (2, Vec::new()));
    }

    /// With the deletion of settled files, after so many rotations.
    fn rotate_often(sink: &FileSink) {
        for at in 0..2 * ASIDE {
            let letter = letter(&format!("{at}"));
            append(sink, &letter);
            append(sink, &mark(&letter, LetterEvent::Dropped { reason: None }));
        }
    }

    #[test]
    fn a_torn_line_does_not_keep_its_file() {
        let (_dir, sink) = sink();
        let sink = sink.rotate_at(1);
        let first = letter("first");
        append(&sink, &first);
        let mut file = OpenOptions::new().append(true).open(sink.path()).unwrap();
        file.write_all(b"{\"letter\":{\"operation\":\"torn").unwrap();
        rotate_often(&sink);
        let read = block(sink.records()).unwrap();
        assert!(sink.beside(".1").exists() && read.records.contains(&first), "its letter waits");
        assert_eq!(read.unreadable.len(), 1, "{read:?}");
        append(&sink, &mark(&first, LetterEvent::Replayed));
        rotate_often(&sink);
        assert!(!sink.beside(".1").exists(), "everything in it was settled");
        assert!(block(sink.records()).unwrap().unreadable.is_empty());
    }

    /// A newer version may have written it.
    #[test]
    fn a_whole_line_that_is_not_understood_keeps_its_file() {
        let (_dir, sink) = sink();
        let sink = sink.rotate_at(1);
        fs::create_dir(sink.dir().unwrap()).unwrap();
        fs::write(sink.path(), "{\"epistle\":{\"operation\":\"later\"}}\n").unwrap();
        rotate_often(&sink);
        assert!(sink.beside(".1").exists());
        assert_eq!(block(sink.records()).unwrap().unreadable.len(), 1);
    }

    /// Not every file system has such names.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_whose_name_is_not_text_loses_no_letter_when_it_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let sink = FileSink::new(dir.path().join(OsStr::from_bytes(b"letters-\xff"))).rotate_at(1);
        let letters = ["a", "b", "c", "d"].map(letter);
        letters.iter().for_each(|letter| append(&sink, letter));
        assert_eq!(block(sink.records()).unwrap().records, letters);
    }

    /// As `/dev/null`, whose mode every program on the machine depends on.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_no_regular_file_is_refused_and_left_alone() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let (_dir, sink) = sink();
        fs::create_dir(sink.dir().unwrap()).unwrap();
        mknodat(CWD, sink.path(), FileType::Fifo, Mode::from(0o644), 0).unwrap();
        let mode = || fs::metadata(sink.path()).unwrap().permissions().mode();
        let before = mode();
        let refused = format!("{:?}", block(sink.append(&letter("a"))).unwrap_err());
        assert!(refused.contains("no regular file"), "{refused}");
        block(sink.records()).unwrap_err();
        assert_eq!(mode(), before);
        assert!(!sink.beside(".lock").exists());
    }

    #[test]
    fn many_writers_lose_nothing_and_tear_nothing() {
        let (_dir, sink) = sink();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                // A separate sink for each, as separate processes have.
                let sink = FileSink::new(sink.path()).rotate_at(4000);
                scope.spawn(move || (0..10).for_each(|at| append(&sink, &letter(&format!("{writer}-{at}")))));
            }
        });
        let read = block(sink.records()).unwrap();
        assert_eq!((fold(read.records).len(), read.unreadable.len()), (80, 0));
        assert!(sink.aside().unwrap().len() > 2);
    }

    #[test]
    fn a_rotated_file_is_deleted_only_once_it_is_settled() {
        let (_dir, sink) = sink();
        let sink = sink.rotate_at(1);
        let [first, second, again] = ["first", "second", "first"].map(letter);
        append(&sink, &first);
        append(&sink, &second);
        append(&sink, &mark(&first, LetterEvent::Replayed));
        let open = |sink: &FileSink| {
            let filed = fold(block(sink.records()).unwrap().records);
            filed
                .into_iter()
                .filter(|filed| !filed.fate.is_settled())
                .map(|filed| filed.letter.operation)
                .collect::<Vec<_>>()
        };
        for at in 0..20 {
            let letter = letter(&format!("{at}"));
            append(&sink, &letter);
            append(&sink, &mark(&letter, LetterEvent::Dropped { reason: None }));
        }
        assert_eq!(open(&sink), ["second"]);
        let oldest = sink.beside(".1");
        assert!(!oldest.exists(), "everything in it was settled");
        assert!(sink.beside(".2").exists(), "its letter waits");
        append(&sink, &mark(&second, LetterEvent::Replayed));
        append(&sink, &again);
        append(&sink, &letter("very last"));
        assert!(!sink.beside(".2").exists());
        assert_eq!(open(&sink), ["first", "very last"]);
    }
}
