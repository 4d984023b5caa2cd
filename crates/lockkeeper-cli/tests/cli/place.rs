//! This user's own server: started once, private, gone when idle, and what happens where it cannot be.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;

use crate::harness::{Home, Running, failure, is_alive, until};

#[test]
fn eight_first_commands_at_once_start_one_server() {
    let home = Home::new();
    let script = "echo in >> log; [ $(wc -l < log) -eq 1 ] || exit 9; sleep 0.02; rm log";
    let mut commands: Vec<Running> = (0..8).map(|_| home.spawn("a", &[], script)).collect();
    for command in &mut commands {
        let (code, text) = command.end();
        assert_eq!(code, Some(0), "{text}");
    }
    let servers = servers_of(&home.state());
    assert_eq!(servers.len(), 1, "{servers:?}");
    assert_eq!(home.server().map(|pid| pid.as_raw_nonzero().get()), servers.first().copied());
}

/// The pids of the servers that a directory has.
fn servers_of(state: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = command.split(|byte| *byte == 0).collect();
        if words.get(1) == Some(&b"__serve".as_slice()) && words.get(2) == Some(&state.to_str().unwrap().as_bytes()) {
            found.push(pid);
        }
    }
    found
}

#[test]
fn the_server_belongs_to_no_terminal_and_no_directory() {
    let home = Home::new();
    assert!(home.output(&["run", "a", "--", "true"]).status.success());
    let pid = home.server().unwrap();
    let proc = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
    assert_eq!(rustix::process::getsid(Some(pid)).unwrap(), pid);
    assert_eq!(std::fs::read_link(proc.join("cwd")).unwrap(), Path::new("/"));
    assert_eq!(std::fs::read_to_string(proc.join("comm")).unwrap(), "lockkeeper\n");
    assert_eq!(std::fs::read_link(proc.join("fd/0")).unwrap(), Path::new("/dev/null"));
    assert_eq!(std::fs::read_link(proc.join("fd/1")).unwrap(), Path::new("/dev/null"));
    assert_eq!(std::fs::read_link(proc.join("fd/2")).unwrap(), home.state().join("server.log"));
}

#[test]
fn the_state_directory_is_this_users_alone() {
    let home = Home::new();
    assert!(home.output(&["run", "a", "--", "true"]).status.success());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home.state()), 0o700);
    for file in ["secret", "endpoint", "server.log"] {
        assert_eq!(mode(&home.state().join(file)), 0o600, "{file}");
    }
}

#[test]
fn an_idle_server_ends_and_the_next_command_starts_another() {
    let home = Home::new();
    let run = || home.command(&["run", "a", "--", "true"]).env("LOCKKEEPER_IDLE_EXIT", "100ms").status().unwrap();
    assert!(run().success());
    let first = home.server().unwrap();
    until("it ends", || !is_alive(first));
    assert_eq!(home.server(), None);
    assert!(run().success());
}

#[test]
fn a_server_in_use_does_not_end() {
    let home = Home::new();
    let mut command = home.command(&["run", "a", "--", "sh", "-c", "echo up; cat"]);
    let mut running = Running::start(command.env("LOCKKEEPER_IDLE_EXIT", "100ms"));
    assert_eq!(running.line(), "up");
    let server = home.server().unwrap();
    // Ten of its looks.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(is_alive(server));
    running.close_stdin();
    assert!(running.wait().success());
}

#[test]
fn a_killed_server_is_replaced() {
    let home = Home::new();
    assert!(home.output(&["run", "a", "--", "true"]).status.success());
    let killed = home.server().unwrap();
    let address = |home: &Home| {
        let text = std::fs::read(home.state().join("endpoint")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["address"].clone()
    };
    let former = address(&home);
    rustix::process::kill_process(killed, Signal::KILL).unwrap();
    until("it is gone", || !is_alive(killed));
    assert!(home.output(&["run", "a", "--", "true"]).status.success());
    assert_ne!(home.server(), Some(killed));
    // Where sessions of the one before look for it.
    assert_eq!(address(&home), former);
}

#[test]
fn looking_starts_no_server() {
    let home = Home::new();
    let output = home.output(&["list"]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert_eq!(failure(&home.output(&["show", "a"])).0, Some(1));
    assert!(!home.state().exists());
}

/// A name, what is done to the state directory, and what is said of it.
type Case<'a> = (&'a str, &'a dyn Fn(&Path), &'a str);

#[test]
fn a_state_directory_that_cannot_be_used_is_named() {
    let cases: [Case<'_>; 4] = [
        ("a file", &|dir| std::fs::write(dir, "x").unwrap(), "/state"),
        ("another version", &|dir| data(dir, "format", "99\n"), "has format 99"),
        ("foreign files", &|dir| data(dir, "notes.txt", "x"), "holds files that are not a data directory's"),
        (
            "an open secret",
            &|dir| {
                data(dir, "../secret", "x");
                std::fs::set_permissions(dir.join("secret"), PermissionsExt::from_mode(0o644)).unwrap();
            },
            "lets others read it",
        ),
    ];
    for (case, prepare, say) in cases {
        let home = Home::new();
        prepare(&home.state());
        let (code, line) = failure(&home.output(&["run", "a", "--", "touch", "ran"]));
        assert_eq!(code, Some(73), "{case}: {line}");
        assert!(line.contains(say), "{case}: {line}");
        assert!(!home.file("ran").exists() && home.server().is_none(), "{case}");
    }
}

#[test]
fn a_state_directory_that_cannot_be_made_is_named() {
    let home = Home::new();
    let output = home.output(&["run", "a", "--state-dir", "/proc/lockkeeper", "--", "touch", "ran"]);
    let (code, line) = failure(&output);
    assert_eq!(code, Some(73), "{line}");
    assert!(line.contains("cannot make /proc/lockkeeper"), "{line}");
    assert!(!home.file("ran").exists());
}

#[test]
fn a_full_disk_is_named_and_no_server_stays() {
    // A limit on the size of files looks to a program like a disk without room.
    let home = Home::new();
    let limited = |command: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 8; exec {} {command}", crate::harness::BINARY);
        let mut shell = std::process::Command::new("sh");
        home.prepare(shell.args(["-c", &script]));
        failure(&shell.output().unwrap())
    };
    for command in ["run a -- touch ran", "serve --listen 127.0.0.1:0"] {
        let (code, line) = limited(command);
        assert_eq!(code, Some(73), "{command}: {line}");
        assert!(line.contains("no space left for "), "{command}: {line}");
    }
    assert!(!home.file("ran").exists() && home.server().is_none());
    // With room again, what is left does not stand in the way.
    let output = home.output(&["run", "a", "--", "true"]);
    assert!(output.status.success(), "{output:?}");
}

fn data(state: &Path, file: &str, text: &str) {
    std::fs::create_dir_all(state.join("data")).unwrap();
    std::fs::write(state.join("data").join(file), text).unwrap();
}

#[test]
fn without_a_home_directory_the_way_out_is_said() {
    let home = Home::new();
    let mut command = home.command(&["run", "a", "--", "true"]);
    let output = command.env_remove("LOCKKEEPER_STATE_DIR").env_remove("HOME").env_remove("XDG_STATE_HOME").output();
    let (code, line) = failure(&output.unwrap());
    assert_eq!(code, Some(73));
    assert!(line.contains("HOME is not set"), "{line}");
}
