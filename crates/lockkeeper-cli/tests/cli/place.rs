//! This user's own server: it is started once, is private, and ends when idle. And its failures.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;

use crate::harness::{Home, Running, failure, is_alive, names, until};

#[test]
fn eight_first_commands_at_once_start_one_server() {
    let home = Home::new();
    let script = "echo in >> log; [ $(wc -l < log) -eq 1 ] || exit 9; sleep 0.02; rm log";
    let mut commands: Vec<Running> = (0..8).map(|_| home.spawn("a", &[], script)).collect();
    for command in &mut commands {
        command.ends(0);
    }
    let servers = servers_of(&home.state());
    assert_eq!(servers.len(), 1, "{servers:?}");
    assert_eq!(home.server().map(|pid| pid.as_raw_nonzero().get()), servers.first().copied());
}

/// Returns the pids of the servers of a directory.
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

/// A person removes the whole state directory while its server runs, and the next command makes a new one.
#[test]
fn a_server_without_its_directory_ends_and_leaves_the_socket_of_the_next_one() {
    let home = Home::new();
    let mut command = home.command(&["run", "a", "--", "sh", "-c", "echo up; cat"]);
    let mut running = Running::start(command.env("LOCKKEEPER_IDLE_EXIT", "1s"));
    assert_eq!(running.line(), "up");
    let first = home.server().unwrap();
    std::fs::remove_dir_all(home.state()).unwrap();
    let mut command = home.command(&["run", "a", "--", "sh", "-c", "echo up; cat"]);
    let mut next = Running::start(command.env("LOCKKEEPER_IDLE_EXIT", "1h"));
    assert_eq!(next.line(), "up");
    let second = home.server().unwrap();
    assert_ne!(first, second);
    running.close_stdin();
    running.wait();
    until("it ends", || !is_alive(first));
    assert!(home.state().join("socket").exists(), "the socket of the next server");
    home.ok(&["run", "b", "--", "true"]);
    next.finish();
}

#[test]
fn a_server_in_use_does_not_end() {
    let home = Home::new();
    let mut command = home.command(&["run", "a", "--", "sh", "-c", "echo up; cat"]);
    let mut running = Running::start(command.env("LOCKKEEPER_IDLE_EXIT", "100ms"));
    assert_eq!(running.line(), "up");
    let server = home.server().unwrap();
    // Ten checks of the server.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(is_alive(server));
    running.finish();
}

/// No running server is another answer than a lock without holders.
#[test]
fn queries_start_no_server_where_none_has_data_and_the_ended_one_where_it_has() {
    let home = Home::new();
    let questions: [&[&str]; 9] = [
        &["list"],
        &["list", "--broken"],
        &["show", "a"],
        &["why", "a"],
        &["revoke", "a"],
        &["deadlocks"],
        &["history", "a"],
        &["admin", "gc", "--log"],
        &["jobs"],
    ];
    for question in questions {
        let line = home.failure(question, 69);
        assert!(line.contains("own server is not running"), "{question:?}: {line}");
        assert!(line.contains(home.state().to_str().unwrap()), "{question:?}: {line}");
    }
    let output = home.output(&["list", "--json"]);
    let event: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((output.status.code(), &event["exit_code"]), (Some(69), &69.into()));
    assert!(output.stdout.is_empty());
    assert!(!home.state().exists());
    // A server without locks gives another answer, also if it has ended meanwhile, because nobody used it.
    home.ok(&["run", "a", "--", "true"]);
    for question in questions {
        home.ok(&["server", "stop"]);
        let output = home.output(question);
        let expected = if question[0] == "revoke" { 1 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{question:?}: {output:?}");
    }
    let output = home.output(&["list"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("has a holder or a waiter"), "{output:?}");
}

/// A holder and a waiter whose server is about to end.
struct Busy {
    home: Home,
    holder: Running,
    waiter: Running,
    server: rustix::process::Pid,
    token: serde_json::Value,
}

impl Busy {
    fn new() -> Self {
        let home = Home::new();
        let mut holder = home.spawn("a", &[], "echo holds; cat");
        assert_eq!(holder.line(), "holds");
        let waiter = home.waits("a", &[], "echo granted");
        let server = home.server().unwrap();
        let token = home.show("a")["holders"][0]["token"].clone();
        Busy { home, holder, waiter, server, token }
    }

    /// Checks that another server runs, the holder holds by the same grant, and the waiter is next.
    fn goes_on(mut self) {
        until("another server answers", || self.home.count("a") == (1, 1));
        assert_ne!(self.home.server(), Some(self.server));
        assert_eq!(self.home.show("a")["holders"][0]["token"], self.token);
        self.holder.close_stdin();
        self.holder.ends(0);
        let (code, text) = self.waiter.end();
        assert_eq!((code, self.waiter.line().as_str()), (Some(0), "granted"), "{text}");
    }
}

/// After a logout or a crash, commands that use the server start it again.
#[test]
fn a_server_that_ends_in_use_comes_back_and_holds_and_waits_go_on() {
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let busy = Busy::new();
        rustix::process::kill_process(busy.server, signal).unwrap();
        until("it is gone", || !is_alive(busy.server));
        until("another one runs", || busy.home.server().is_some_and(|now| now != busy.server));
        busy.goes_on();
    }
}

/// A program that uses the directory hosts the server; when the program ends, a waiting command starts it again.
#[test]
fn a_program_and_a_command_share_this_users_own_server() {
    let home = Home::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (keeper, guard) = runtime.block_on(async {
        let keeper = lockkeeper::Lockkeeper::embedded(home.state()).await.unwrap();
        let guard = keeper.mutex("/locks/a").acquire().await.unwrap();
        (keeper, guard)
    });
    let mut waiter = home.waits("a", &[], "echo granted");
    runtime.block_on(async {
        guard.release().await.unwrap();
        keeper.close().await;
        drop(keeper);
    });
    let (code, text) = waiter.end();
    assert_eq!((code, waiter.line().as_str()), (Some(0), "granted"), "{text}");
    home.ok(&["run", "a", "--try", "--", "true"]);
}

/// A name, a change of the state directory, and the expected message.
type Case<'a> = (&'a str, &'a dyn Fn(&Path), &'a str);

#[test]
fn a_state_directory_that_cannot_be_used_is_named() {
    let cases: [Case<'_>; 4] = [
        ("a file", &|dir| std::fs::write(dir, "x").unwrap(), "/state is not a directory"),
        ("another version", &|dir| data(dir, "format", "99\n"), "has format 99"),
        ("foreign files", &|dir| data(dir, "notes.txt", "x"), "holds files that are not a data directory's"),
        (
            "open to others",
            &|dir| {
                std::fs::create_dir(dir).unwrap();
                std::fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).unwrap();
                std::fs::set_permissions(dir.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
            },
            "chmod go-w",
        ),
    ];
    for (case, prepare, say) in cases {
        let home = Home::new();
        prepare(&home.state());
        home.refuses(&["run", "a", "--", "touch", "ran"], 70, say);
        assert!(!home.file("ran").exists() && home.server().is_none(), "{case}");
    }
}

/// Nothing can start there, and other modes would harm a device.
#[test]
fn a_place_that_is_no_directory_is_said_to_be_none() {
    let home = Home::new();
    std::fs::write(home.file("file"), "x").unwrap();
    for option in ["--state-dir=/dev/null", "--machine=/dev/null", "--state-dir=file"] {
        for args in [&["list"][..], &["show", "a"], &["jobs"]] {
            let text = home.tells(&[args, &[option]].concat(), 69);
            let told = text.contains(" is not a directory") && text.contains("choose a");
            assert!(told && !text.contains("starts it") && !text.contains("chmod"), "{args:?} {option}: {text}");
        }
    }
    let run = |dir| home.tells(&["run", "a", "--state-dir", dir, "--", "touch", "ran"], 70);
    names(&run("/proc/lockkeeper"), &["cannot make /proc/lockkeeper"]);
    let text = run("/dev/null");
    assert!(!home.file("ran").exists());
    names(&text, &["/dev/null is not a directory"]);
    assert!(text.contains("choose another directory") && !text.contains("chmod"), "{text}");
}

#[test]
fn a_full_disk_is_named_and_no_server_stays() {
    // To a program, a limit on the size of files looks like a full disk.
    let home = Home::new();
    let limited = |command: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 8; exec {} {command}", crate::harness::BINARY);
        let mut shell = std::process::Command::new("sh");
        home.prepare(shell.args(["-c", &script]));
        failure(&shell.output().unwrap())
    };
    for command in ["run a -- touch ran", "serve --listen 127.0.0.1:0"] {
        let (code, line) = limited(command);
        assert_eq!(code, Some(70), "{command}: {line}");
        assert!(line.contains("no space left for "), "{command}: {line}");
    }
    assert!(!home.file("ran").exists() && home.server().is_none());
    // With room again, leftover files do no harm.
    home.ok(&["run", "a", "--", "true"]);
}

/// The disk becomes full while the server runs, so the command that finds it loses its session and starts it again.
#[test]
fn a_disk_that_becomes_full_behind_a_running_server_is_named() {
    use rustix::process::{Resource, Rlimit, prlimit};
    let home = Home::new();
    let limited = |limit: &str, command: &str| {
        let script = format!("trap '' XFSZ; {limit} exec {} {command}", crate::harness::BINARY);
        let mut shell = std::process::Command::new("sh");
        home.prepare(shell.args(["-c", &script]));
        shell.output().unwrap()
    };
    assert!(limited("", "run a -- true").status.success());
    let full = Rlimit { current: Some(100), maximum: Some(100) };
    prlimit(home.server(), Resource::Fsize, full).unwrap();
    let output = limited("ulimit -f 1;", "run a --wait 20s -- touch ran");
    let (code, line) = failure(&output);
    assert!(matches!(code, Some(69 | 70)), "{line}");
    assert!(line.contains("no space left for "), "{line}");
    // In the message of 69, and in the hint of 73.
    assert!(String::from_utf8_lossy(&output.stderr).contains("free space on the disk of "), "{output:?}");
    assert!(!line.contains("ZooKeeper") && !home.file("ran").exists(), "{line}");
}

fn data(state: &Path, file: &str, text: &str) {
    std::fs::create_dir_all(state.join("data")).unwrap();
    std::fs::write(state.join("data").join(file), text).unwrap();
}

#[test]
fn a_directory_behind_a_bare_machine_option_is_refused_with_what_to_write() {
    let home = Home::new();
    let dir = home.state().parent().unwrap().display().to_string();
    for words in [&["run", "a", "--machine", &dir, "--", "touch", "ran"][..], &["list", "--machine", &dir]] {
        names(&home.tells(words, 64), &[&format!("write --machine={dir}")]);
    }
}

#[test]
fn the_variable_of_the_machines_server_is_an_absolute_path() {
    let home = Home::new();
    for words in [&["run", "a", "--", "touch", "ran"][..], &["list"]] {
        let output = home.command(words).env("LOCKKEEPER_MACHINE", "true").output().unwrap();
        let told = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(output.status.code() == Some(64) && told.contains("true is not an absolute path"), "{told}");
        assert!(told.contains("write /var/lib/lockkeeper"), "{told}");
    }
    assert!(!home.file("true").exists() && !home.file("ran").exists());
}
