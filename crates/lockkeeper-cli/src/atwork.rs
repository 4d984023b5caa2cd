//! What this machine shows of the processes of a holder: whether they work, and when their output was last written.

use std::fs::{File, metadata, read_dir, read_link, read_to_string};
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use lockkeeper::admin::ContenderInfo;
use lockkeeper_session::process::ProcStat;
use lockkeeper_session::text::spell;
use serde::{Serialize, Serializer};

use crate::text::plain;

/// The most processes that are looked at: a process that starts others without an end is not followed further.
const MOST: usize = 10_000;

/// The processes of a holder, as `--json` shows them. These fields are documented and stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AtWork {
    /// How many they are: the holder's process and those below it.
    processes: usize,
    state: &'static str,
    /// The processor time that they and their ended children have used.
    cpu_ms: u64,
    output: Option<Output>,
    /// The file whose last line is of Lockkeeper itself. When the processes wrote there is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_output: Option<Output>,
}

/// The file that a process has as its standard output or standard error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Output {
    path: String,
    #[serde(rename = "written_ms", serialize_with = "unix_ms")]
    written: SystemTime,
}

fn unix_ms<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    Timestamp::try_from(*time).ok().map(Timestamp::as_millisecond).serialize(serializer)
}

impl AtWork {
    /// Returns what can be seen of a holder's processes; `None` if they are not known to run on this machine.
    pub(crate) fn of(holder: &ContenderInfo) -> Option<Self> {
        let pid = holder.owner.as_ref().filter(|_| holder.process_runs_here())?.pid;
        let processes = below(pid);
        let has = |state: char| processes.iter().any(|(_, stat)| stat.state == state);
        let what = [('R', "running"), ('D', "waiting for a disk"), ('T', "stopped")];
        let ticks: u64 = processes.iter().map(|(_, stat)| stat.ticks).sum();
        let outputs = processes.iter().flat_map(|(pid, _)| [1, 2].map(|fd| output(*pid, fd))).flatten();
        let (own, others): (Vec<_>, Vec<_>) = outputs.partition(|(_, is_own)| *is_own);
        let newest = |outputs: Vec<(Output, bool)>| {
            outputs.into_iter().map(|(output, _)| output).max_by_key(|output| output.written)
        };
        (!processes.is_empty()).then(|| AtWork {
            processes: processes.len(),
            state: what.into_iter().find(|(state, _)| has(*state)).map_or("sleeping", |(_, what)| what),
            cpu_ms: ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1),
            output: newest(others),
            own_output: newest(own),
        })
    }

    /// `its 3 processes are on this machine, one running, with 12 s of processor time`, and the time of the last output if that is
    /// known.
    pub(crate) fn lines(&self, now: SystemTime) -> Vec<String> {
        let AtWork { processes, state, cpu_ms, output, own_output } = self;
        let count = match processes {
            1 => "its process is".to_owned(),
            count => format!("its {count} processes are"),
        };
        let which = if *processes > 1 && *state != "sleeping" { "one " } else { "" };
        let used = spell(Duration::from_millis(*cpu_ms));
        let mut lines = vec![format!("{count} on this machine, {which}{state}, with {used} of processor time")];
        lines.extend(output.as_ref().map(|Output { path, written }| {
            let ago = now.duration_since(*written).unwrap_or_default();
            format!("its output was last written {} ago ({})", spell(ago), plain(path))
        }));
        lines.extend(own_output.as_ref().map(|Output { path, written }| {
            let ago = now.duration_since(*written).unwrap_or_default();
            let ago = spell(ago);
            format!("the last line of its output is lockkeeper's own, written {ago} ago ({})", plain(path))
        }));
        lines
    }
}

/// Returns a process and all below it, without daemons: those have a session of their own, as this user's own server.
fn below(pid: u32) -> Vec<(u32, ProcStat)> {
    let session = ProcStat::of(pid).map(|stat| stat.session);
    let (mut seen, mut left) = (Vec::new(), vec![pid]);
    while let Some(pid) = left.pop() {
        let Some(stat) = ProcStat::of(pid).filter(|stat| Some(stat.session) == session) else { continue };
        seen.push((pid, stat));
        if seen.len() >= MOST {
            break;
        }
        // Each thread has its own children.
        let threads = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children = threads.map(|thread| read_to_string(thread.path().join("children")).unwrap_or_default());
        left.extend(children.flat_map(|children| numbers(&children)));
    }
    seen
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Returns the file of a descriptor. A pipe, a terminal or a socket does not say when it was written, and the files of a process of
/// another user are hidden. Also returns whether its last line is of Lockkeeper itself.
fn output(pid: u32, fd: u32) -> Option<(Output, bool)> {
    let file = format!("/proc/{pid}/fd/{fd}");
    let seen = metadata(&file).ok().filter(|seen| seen.is_file())?;
    let path = read_link(&file).ok()?;
    // Opened again: the offset of the process stays.
    let is_own = File::open(&file).is_ok_and(|file| ends_with_own_line(&file, seen.len()));
    Some((Output { path: path.to_string_lossy().into_owned(), written: seen.modified().ok()? }, is_own))
}

/// The most that is read of a file.
const TAIL: u64 = 4096;

/// Whether the last line of a file of this length is a message of Lockkeeper.
fn ends_with_own_line(file: &File, length: u64) -> bool {
    let mut tail = vec![0; usize::try_from(length.min(TAIL)).unwrap_or(0)];
    if file.read_exact_at(&mut tail, length.saturating_sub(TAIL)).is_err() {
        return false;
    }
    let tail = String::from_utf8_lossy(&tail);
    tail.trim_end().lines().last().is_some_and(|line| line.starts_with("lockkeeper: "))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_a_file_says_when_a_process_wrote_its_last_output() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = File::create(&path).unwrap();
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        file.set_modified(before).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file).spawn().unwrap();
        let seen = [1, 2].map(|fd| output(child.id(), fd));
        let pids: Vec<_> = below(std::process::id()).into_iter().map(|(pid, _)| pid).collect();
        let (parent, started) = (pids.contains(&std::process::id()), pids.contains(&child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        let path = path.canonicalize().unwrap().to_string_lossy().into_owned();
        assert_eq!(seen, [None, Some((Output { path, written: before }, false))]);
        assert!(parent && started, "a child of any thread is seen: {pids:?}");
    }

    /// A command and the lockkeeper that runs it often share a log.
    #[test]
    fn a_last_line_of_lockkeeper_is_not_taken_for_output_of_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let is_own = |text: &str| {
            std::fs::write(&path, text).unwrap();
            ends_with_own_line(&File::open(&path).unwrap(), text.len() as u64)
        };
        let long = format!("{}\n", "x".repeat(10_000));
        assert!(is_own("step 1\nlockkeeper: SIGTERM sent to the command\n"));
        assert!(is_own(&format!("{long}lockkeeper: SIGTERM sent to the command\n")));
        for text in ["", "step 1\n", "lockkeeper: SIGTERM sent to the command\nstep 2\n", "xlockkeeper: \n", &long] {
            assert!(!is_own(text), "{text:?}");
        }
    }

    #[test]
    fn the_lines_say_what_the_processes_do() {
        let written = SystemTime::UNIX_EPOCH;
        let output = Some(Output { path: "/var/log/x\n.log".to_owned(), written });
        let own_output = Some(Output { path: "/var/log/x.err".to_owned(), written });
        let many = AtWork { processes: 3, state: "running", cpu_ms: 12_000, output, own_output };
        assert_eq!(
            many.lines(written + Duration::from_secs(3 * 3600)),
            [
                "its 3 processes are on this machine, one running, with 12 s of processor time",
                "its output was last written 3 h ago (/var/log/x .log)",
                "the last line of its output is lockkeeper's own, written 3 h ago (/var/log/x.err)",
            ]
        );
        let one = AtWork { processes: 1, state: "stopped", cpu_ms: 0, output: None, own_output: None };
        assert_eq!(one.lines(written), ["its process is on this machine, stopped, with 0 s of processor time"]);
    }
}
