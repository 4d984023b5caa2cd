//! Records that no server could take, because none was reachable: of requests that were refused, and of holds. They wait in the state
//! directory until the next `run` on the same servers.
//!
//! They are additions, as all records of the history: a file that cannot be written or read changes nothing else.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockkeeper::LockPath;
use lockkeeper::embedded::ServerDir;
use lockkeeper_history::KeptHold;
use lockkeeper_session::process::open_own;
use serde::{Deserialize, Serialize};

/// The name of the file.
const FILE: &str = "unsent.jsonl";

/// The file does not grow beyond this.
const MAX_BYTES: u64 = 64 * 1024;

/// A record that was not sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unsent {
    /// The servers, as they were written.
    pub servers: String,
    #[serde(flatten)]
    pub record: UnsentRecord,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum UnsentRecord {
    Hold { hold: Box<KeptHold> },
    Refusal(UnsentRefusal),
}

/// A request for which no server was reachable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnsentRefusal {
    pub path: String,
    /// When it was refused, in milliseconds since 1970 by this machine's clock.
    pub at_ms: u64,
    pub pid: u32,
    /// How long it had waited.
    pub waited_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// In which way the request used the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_as: Option<String>,
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
    pub used_as: Option<String>,
}

/// Keeps records until a server can take them.
pub(crate) fn keep(dir: &Path, unsent: &[Unsent]) -> std::io::Result<()> {
    // As the server of this user creates it, and not in a place that other users can change.
    ServerDir::new(dir).check().map_err(std::io::Error::other)?;
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut file = open_own(&dir.join(FILE), OpenOptions::new().create(true).append(true))?;
    let lines: String =
        unsent.iter().filter_map(|unsent| serde_json::to_string(unsent).ok()).map(|line| line + "\n").collect();
    if file.metadata()?.len() + lines.len() as u64 > MAX_BYTES {
        return Err(std::io::Error::other("there are too many"));
    }
    // One write, so that the lines of two processes do not mix.
    file.write_all(lines.as_bytes())
}

/// Takes the records for these servers out of the file; the others stay. Of two processes, one gets them.
pub(crate) fn take(dir: &Path, servers: &str) -> Vec<Unsent> {
    let mine = dir.join(format!("{FILE}.{}", std::process::id()));
    if std::fs::rename(dir.join(FILE), &mine).is_err() {
        return Vec::new();
    }
    let all = read(&mine);
    _ = std::fs::remove_file(&mine);
    let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|unsent| unsent.servers == servers);
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
pub(crate) fn groups(unsent: &[UnsentRefusal], now: SystemTime) -> Vec<Group> {
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
            used_as: last.used_as.clone(),
        })
    };
    paths.into_iter().filter_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &str, at_ms: u64) -> UnsentRefusal {
        UnsentRefusal { path: path.to_owned(), at_ms, pid: 7, waited_ms: 5, message: None, used_as: None }
    }

    fn unsent(servers: &str, refusal: UnsentRefusal) -> Unsent {
        Unsent { servers: servers.to_owned(), record: UnsentRecord::Refusal(refusal) }
    }

    fn hold() -> Unsent {
        let record = serde_json::json!({
            "servers": "zk1",
            "hold": {
                "path": "/locks/a",
                "record": {"lockkeeper": 1, "user": "a", "host": "b", "pid": 1, "waited_ms": 0, "held_ms": 9, "token": 7},
                "ended_ms": 5,
            },
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn records_wait_for_their_own_servers_and_are_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("state");
        assert_eq!(take(&dir, "zk1"), []);
        let (one, other) = (unsent("zk1", refusal("/locks/a", 1)), unsent("zk2", refusal("/locks/a", 2)));
        keep(&dir, &[one.clone(), hold(), other.clone()]).unwrap();
        std::fs::OpenOptions::new().append(true).open(dir.join(FILE)).unwrap().write_all(b"garbage\n{}\n").unwrap();
        assert_eq!(take(&dir, "zk1"), [one, hold()]);
        assert_eq!(take(&dir, "zk1"), []);
        assert_eq!(take(&dir, "zk2"), [other]);
    }

    #[test]
    fn the_file_does_not_grow_without_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let large = UnsentRefusal { message: Some("x".repeat(9_000)), ..refusal("/locks/a", 1) };
        let large = unsent("zk1", large);
        let kept = (0..20).take_while(|_| keep(dir.path(), std::slice::from_ref(&large)).is_ok()).count();
        assert_eq!(kept, 7);
    }

    #[test]
    fn the_refusals_of_a_lock_are_sent_together() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
        let all = [refusal("/locks/a", 10_000), refusal("/locks/a", 30_000), refusal("bad//path", 1)];
        let groups = groups(&all, now);
        let [group] = &groups[..] else { panic!("{groups:?}") };
        let secs = Duration::from_secs;
        assert_eq!((group.count, group.ago, group.over), (2, secs(30), secs(20)));
    }
}
