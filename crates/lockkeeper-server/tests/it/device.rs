//! A real filesystem whose device has less room than the filesystem believes, as a thin volume has.
//!
//! Only root can set this up, so it runs when `cargo xtask crash` asks for it.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::*;
use crate::storage::Victim;

/// How many nodes of [`NODE`] bytes are created while the device is full.
const NODES: usize = 60;
const NODE: usize = 400_000;
/// With this many of them, a file of the log is long.
const RECORDS: usize = 42;

/// Runs a program of the system and returns what it printed.
fn system(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// An ext4 filesystem on a loop device, whose blocks are in a small filesystem in memory.
struct Thin {
    place: tempfile::TempDir,
    device: String,
}

impl Thin {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name).display().to_string();
        std::fs::create_dir(path("memory")).unwrap();
        std::fs::create_dir(path("files")).unwrap();
        system("mount", &["-t", "tmpfs", "-o", "size=128m", "tmpfs", &path("memory")]);
        let disk = std::fs::File::create(path("memory/disk")).unwrap();
        disk.set_len(512 << 20).unwrap();
        let device = system("losetup", &["--find", "--show", &path("memory/disk")]);
        let thin = Self { place, device };
        // Nothing is written later that the filesystem needs for itself.
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        system("mkfs.ext4", &["-q", "-N", "64", "-E", options, &thin.device]);
        thin.mount();
        thin
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn mount(&self) {
        system("mount", &["-t", "ext4", &self.device, &self.path("files").display().to_string()]);
    }

    fn unmount(&self) {
        system("umount", &[&self.path("files").display().to_string()]);
    }

    /// Takes all room that the device has left, except for this many bytes.
    fn fill(&self, but: u64) {
        let filler = std::fs::File::create(self.path("memory/filler")).unwrap();
        let mut end = 0;
        while let Ok(written) = filler.write_at(&[1; 4096], end) {
            end += written as u64;
        }
        filler.set_len(end - but).unwrap();
    }

    fn make_room(&self) {
        std::fs::remove_file(self.path("memory/filler")).unwrap();
    }
}

impl Drop for Thin {
    fn drop(&mut self) {
        // What is not mounted any more is an error that does not matter.
        let _ = Command::new("umount").args([self.path("files"), self.path("memory")]).output();
        let _ = Command::new("losetup").args(["--detach", &self.device]).output();
        let _ = Command::new("umount").arg(self.path("memory")).output();
    }
}

/// The variable with the file for the warnings of a server.
const WARNINGS: &str = "LOCKKEEPER_TEST_WARNINGS";

/// Writes this process's warnings to a file, if the variable has one.
pub(crate) fn keep_warnings() {
    if let Some(path) = std::env::var_os(WARNINGS) {
        let file = std::fs::File::options().create(true).append(true).open(path).unwrap();
        tracing::subscriber::set_global_default(Warnings(file)).unwrap();
    }
}

struct Warnings(std::fs::File);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text.push_str(&format!("{field}: {value:?}, "));
        });
        writeln!(&self.0, "{text}").unwrap();
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// The numbers of the log's files.
fn logs(data: &Path) -> Vec<String> {
    let names = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut logs: Vec<_> = names.filter(|name| name.starts_with("log.")).collect();
    logs.sort();
    logs
}

/// While the device is full, the fsync of a fold fails and the log still works, because its blocks exist. What the
/// system then has in memory of the snapshot is not on the disk.
#[test]
fn a_fold_that_failed_on_a_full_device_loses_nothing_acknowledged() {
    if std::env::var_os("LOCKKEEPER_DEVICE").is_some() {
        survive("the next fold of the same server", false);
        survive("the fold of the next server", true);
    }
}

fn survive(what: &str, restart: bool) {
    let thin = Thin::new();
    let data = thin.path("files/data");
    let mut server = Serving::start(&data);
    server.call("empty", CREATE, bytes().create("/much", b"", 0));
    server.call("empty", CREATE, bytes().create("/small", b"", 0));
    // Three files of the log become long, are folded and are used again, so their blocks exist. Then the current file has
    // one record.
    for (file, records) in [("log.0000000001", RECORDS + 1), ("log.0000000002", RECORDS), ("log.0000000003", RECORDS)] {
        for _ in 0..records {
            server.overwrite("room");
        }
        until("the file is folded", || !logs(&data).iter().any(|log| log == file));
    }
    // A file of the log grows by a chunk before it is folded. A fold needs much more.
    thin.fill(1 << 20);
    let mut acknowledged = Vec::new();
    while acknowledged.len() < NODES {
        acknowledged.push(server.call("full", CREATE, bytes().create("/n-", &[7; NODE], 2)).text());
    }
    let warnings = thin.path("warnings");
    until("the fold fails", || {
        server.call("full", SET_DATA, bytes().text("/small").buffer(b"").int(-1));
        std::fs::read_to_string(&warnings).is_ok_and(|text| text.contains("cannot be folded"))
    });
    let unfolded = logs(&data);
    if restart {
        server.victim.kill();
        thin.make_room();
        server = Serving::start(&data);
    } else {
        thin.make_room();
    }
    while logs(&data).contains(&unfolded[0]) {
        server.overwrite("room again");
    }
    // It reports what failed while the device was full.
    let _ = Command::new("sync").arg("-f").arg(thin.path("files")).output();
    server.victim.kill();
    thin.unmount();
    thin.mount();
    let mut server = Serving::start(&data);
    let there = acknowledged.iter().filter(|path| server.client.exists(path, false).is_some()).count();
    server.victim.kill();
    println!("{what}: {there} of {NODES} nodes that were acknowledged on a full device are there");
    assert_eq!(there, NODES);
}

/// A server in a process of its own, and a client of it.
struct Serving {
    victim: Victim,
    client: Client,
}

impl Serving {
    fn start(data: &Path) -> Self {
        let warnings = data.ancestors().nth(2).unwrap().join("warnings");
        let victim = Victim::start(data, &format!("{WARNINGS}={} exec \"$@\"", warnings.display()));
        let client = Client::connect_with(victim.addr, 600_000);
        Self { victim, client }
    }

    fn call(&mut self, when: &str, operation: i32, body: Bytes) -> Answer {
        let answer = self.client.try_call(operation, body);
        let answer = answer.unwrap_or_else(|_| panic!("{when}: {:?}", self.victim.said()));
        assert_eq!(answer.error, 0, "{when}");
        answer
    }

    fn overwrite(&mut self, when: &str) {
        self.call(when, SET_DATA, bytes().text("/much").buffer(&[7; NODE]).int(-1));
    }
}
