//! Refusals that no server could record, because none was reachable. They wait in the state directory until the next `run` on the
//! same servers.
//!
//! They are additions, as all records of the history: a file that cannot be written or read changes nothing else.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockkeeper::LockPath;
use lockkeeper::embedded::Home;
use lockkeeper::engine::process::open_own;
use serde::{Deserialize, Serialize};

/// The name of the file.
const FILE: &str = "refusals.jsonl";

/// The file does not grow beyond this.
const MAX_BYTES: u64 = 64 * 1024;

/// A refusal that was not sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unsent {
    /// The servers, as they were written.
    pub servers: String,
    pub path: String,
    /// When it was refused, in milliseconds since 1970 by this machine's clock.
    pub at_ms: u64,
    pub pid: u32,
    /// How long it had waited.
    pub waited_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The refusals of one lock that are sent together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub path: LockPath,
    pub pid: u32,
    pub count: u32,
    /// How long ago the last one was, and from the first to the last.
    pub ago: Duration,
    pub over: Duration,
    pub waited: Duration,
    pub message: Option<String>,
}

/// Keeps refusals until a server can record them.
pub(crate) fn keep(dir: &Path, refusals: &[Unsent]) -> std::io::Result<()> {
    // As the server of this user creates it, and not in a place that other users can change.
    Home::new(dir).check().map_err(std::io::Error::other)?;
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut file = open_own(&dir.join(FILE), OpenOptions::new().create(true).append(true))?;
    let lines: String =
        refusals.iter().filter_map(|refusal| serde_json::to_string(refusal).ok()).map(|line| line + "\n").collect();
    if file.metadata()?.len() + lines.len() as u64 > MAX_BYTES {
        return Err(std::io::Error::other("there are too many"));
    }
    // One write, so that the lines of two processes do not mix.
    file.write_all(lines.as_bytes())
}

/// Takes the refusals of these servers out of the file; the others stay. Of two processes, one gets them.
pub(crate) fn take(dir: &Path, servers: &str) -> Vec<Unsent> {
    let mine = dir.join(format!("{FILE}.{}", std::process::id()));
    if std::fs::rename(dir.join(FILE), &mine).is_err() {
        return Vec::new();
    }
    let all = read(&mine);
    _ = std::fs::remove_file(&mine);
    let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|refusal| refusal.servers == servers);
    if !others.is_empty() {
        _ = keep(dir, &others);
    }
    ours
}

fn read(file: &PathBuf) -> Vec<Unsent> {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Puts the refusals of each lock together.
pub(crate) fn groups(unsent: &[Unsent], now: SystemTime) -> Vec<Group> {
    let now_ms = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
    let mut paths: Vec<_> = unsent.iter().map(|refusal| &refusal.path).collect();
    paths.sort();
    paths.dedup();
    let group = |path: &String| {
        let of: Vec<_> = unsent.iter().filter(|refusal| refusal.path == *path).collect();
        let last = of.iter().max_by_key(|refusal| refusal.at_ms)?;
        let first = of.iter().map(|refusal| refusal.at_ms).min()?;
        Some(Group {
            path: LockPath::parse(path).ok()?,
            pid: last.pid,
            count: u32::try_from(of.len()).unwrap_or(u32::MAX),
            ago: Duration::from_millis(now_ms.saturating_sub(last.at_ms)),
            over: Duration::from_millis(last.at_ms - first),
            waited: Duration::from_millis(last.waited_ms),
            message: last.message.clone(),
        })
    };
    paths.into_iter().filter_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsent(servers: &str, path: &str, at_ms: u64) -> Unsent {
        Unsent { servers: servers.to_owned(), path: path.to_owned(), at_ms, pid: 7, waited_ms: 5, message: None }
    }

    #[test]
    fn refusals_wait_for_their_own_servers_and_are_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("state");
        assert_eq!(take(&dir, "zk1"), []);
        let (one, other) = (unsent("zk1", "/locks/a", 1), unsent("zk2", "/locks/a", 2));
        keep(&dir, &[one.clone(), other.clone()]).unwrap();
        std::fs::OpenOptions::new().append(true).open(dir.join(FILE)).unwrap().write_all(b"garbage\n{}\n").unwrap();
        assert_eq!(take(&dir, "zk1"), [one]);
        assert_eq!(take(&dir, "zk1"), []);
        assert_eq!(take(&dir, "zk2"), [other]);
    }

    #[test]
    fn the_file_does_not_grow_without_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let large = Unsent { message: Some("x".repeat(9_000)), ..unsent("zk1", "/locks/a", 1) };
        let kept = (0..20).take_while(|_| keep(dir.path(), std::slice::from_ref(&large)).is_ok()).count();
        assert_eq!(kept, 7);
    }

    #[test]
    fn the_refusals_of_a_lock_are_sent_together() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
        let all = [unsent("zk1", "/locks/a", 10_000), unsent("zk1", "/locks/a", 30_000), unsent("zk1", "bad//path", 1)];
        let groups = groups(&all, now);
        let [group] = &groups[..] else { panic!("{groups:?}") };
        let secs = Duration::from_secs;
        assert_eq!((group.count, group.ago, group.over), (2, secs(30), secs(20)));
    }
}
