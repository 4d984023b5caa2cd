//! `lockkeeper server`: the server is shown, stopped and restarted, its data is backed up and restored, and a newer version
//! takes its place.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{BINARY, Home, Running, is_alive, names, refused, stop, text, until};

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn status(home: &Home) -> Value {
    json(&home.output(&["server", "status", "--json"]))
}

/// A command that holds lock `a` until its standard input is closed.
fn holder(home: &Home) -> Running {
    let mut holder = home.spawn("a", &[], "echo $LOCKKEEPER_TOKEN; cat");
    assert!(holder.line().parse::<i64>().is_ok());
    holder
}

fn token(home: &Home) -> i64 {
    let output = home.output(&["run", "t", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("{output:?}"))
}

/// Checks that the holder holds by the same grant, and ends as it should.
fn holds_on(home: &Home, mut holder: Running, token: &Value) {
    until("it holds", || home.count("a") == (1, 0));
    assert_eq!(home.show("a")["holders"][0]["token"], *token);
    holder.finish();
}

#[test]
fn the_status_of_a_server_is_for_people_and_programs() {
    let home = Home::new();
    let output = home.output(&["server", "status"]);
    assert_eq!(output.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&output.stdout).contains("is not running"), "{output:?}");
    let missing = status(&home);
    assert_eq!((&missing["running"], &missing["pid"]), (&false.into(), &Value::Null));

    let holder = holder(&home);
    let shown = status(&home);
    let server = home.server().unwrap().as_raw_nonzero().get();
    assert_eq!((&shown["running"], &shown["pid"]), (&true.into(), &server.into()));
    assert_eq!(shown["uid"], rustix::process::geteuid().as_raw());
    assert_eq!((&shown["version"], &shown["command_version"]), (&env!("CARGO_PKG_VERSION").into(), &shown["version"]));
    assert_eq!((&shown["sessions"], &shown["contenders"]), (&1.into(), &1.into()));
    assert!(shown["since"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{shown}");
    assert!(shown["data_bytes"].as_u64().unwrap() > 0 && shown["uptime_ms"].is_u64(), "{shown}");
    assert_eq!(shown["directory"], home.state().to_str().unwrap());
    assert_eq!(shown["scope"]["kind"], "own");
    let output = home.output(&["server", "status"]);
    let said = String::from_utf8_lossy(&output.stdout);
    names(&said, &[&format!("process    {server} of user"), "sessions   1, with 1"]);
    drop(holder);
}

#[test]
fn a_server_with_sessions_is_stopped_by_force_only() {
    let home = Home::new();
    names(&home.ok(&["server", "stop"]), &["is not running"]);
    let mut held = holder(&home);
    let server = home.server().unwrap();
    let hint = home.tells(&["server", "stop"], 75);
    // It names no command: one without the options of this place would restart another server.
    assert!(
        hint.contains("1 session is open")
            && hint.contains("; a restart keeps their locks\n")
            && !hint.contains("lockkeeper server"),
        "{hint}"
    );
    assert!(is_alive(server));
    held.finish();
    until("the session is closed", || status(&home)["sessions"] == 0);
    home.ok(&["server", "stop"]);
    until("it is gone", || !is_alive(server));
    assert_eq!(home.server(), None);

    let held = holder(&home);
    let (server, token) = (home.server().unwrap(), home.show("a")["holders"][0]["token"].clone());
    home.ok(&["server", "stop", "--force"]);
    until("it is gone", || !is_alive(server));
    holds_on(&home, held, &token);
}

/// Somebody has cleaned up, and the server still runs.
#[test]
fn a_server_whose_lock_was_removed_is_found_and_stopped() {
    let home = Home::new();
    let before = token(&home);
    let server = home.server().unwrap();
    std::fs::remove_file(home.state().join("data/lock")).unwrap();
    assert_eq!(status(&home)["running"], true);
    assert!(token(&home) > before);
    assert_eq!(home.server(), Some(server), "there is no other one");
    home.ok(&["server", "stop", "--force"]);
    assert!(!is_alive(server));
    let after = token(&home);
    assert!(after > before && home.server().is_some());
}

/// A stopped process takes no SIGTERM.
#[test]
fn a_server_that_hangs_is_stopped_by_force() {
    let home = Home::new();
    let before = token(&home);
    let server = home.server().unwrap();
    stop(server);
    for args in [&["run", "a", "--wait", "1s", "--", "true"][..], &["run", "a", "--try", "--", "true"]] {
        let said = home.tells(args, 69);
        assert!(said.contains(&format!("(pid {server}) runs and does not answer")), "{said}");
        assert!(said.contains("lockkeeper server stop --force"), "{said}");
    }
    // Neither waits for its end, which would not come.
    for args in [&["server", "restart"][..], &["server", "backup", "copy"]] {
        home.refuses(args, 69, "runs and does not answer");
    }
    home.ok(&["server", "stop", "--force"]);
    until("it is gone", || !is_alive(server));
    assert!(token(&home) > before);
}

#[test]
fn a_hold_survives_a_restart() {
    let home = Home::new();
    home.refuses(&["server", "restart"], 69, "not running");
    let held = holder(&home);
    let (server, token) = (home.server().unwrap(), home.show("a")["holders"][0]["token"].clone());
    let output = home.output(&["server", "restart", "--json"]);
    assert!(output.status.success(), "{output:?}");
    assert!(json(&output)["paused_ms"].is_u64());
    assert!(home.server().is_some_and(|now| now != server));
    holds_on(&home, held, &token);
}

#[test]
fn a_backup_keeps_holds_and_a_restore_brings_the_data_back_with_greater_tokens() {
    let home = Home::new();
    let dir = home.file("backup");
    let backup = dir.to_str().unwrap();
    let held = holder(&home);
    let (server, hold) = (home.server().unwrap(), home.show("a")["holders"][0]["token"].clone());
    let output = home.output(&["server", "backup", backup, "--json"]);
    assert!(output.status.success(), "{output:?}");
    assert!(json(&output)["files"].as_u64().unwrap() >= 2, "{output:?}");
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert!(dir.join("format").exists() && !dir.join("lock").exists() && !home.file("backup.new").exists());
    assert!(home.server().is_some_and(|now| now != server));
    holds_on(&home, held, &hold);

    // After the backup: a job has run, and more tokens were granted.
    home.ok(&["run", "job", "--slot", "later", "--", "true"]);
    let before = token(&home);
    until("no session is open", || status(&home)["sessions"] == 0);
    let output = home.output(&["server", "restore", backup, "--json"]);
    assert!(output.status.success(), "{output:?}");
    let restored = json(&output);
    let kept = PathBuf::from(restored["kept"].as_str().unwrap());
    assert!(kept.starts_with(home.state()) && kept.join("format").exists(), "{restored}");
    assert!(!home.state().join("restore.new").exists());
    assert_eq!(restored["epoch"], 1);
    assert!(token(&home) > before && before < restored["above"].as_i64().unwrap());
    // The job of after the backup is not in it.
    assert_eq!(home.output(&["jobs", "job"]).status.code(), Some(1));
    // A second restore raises the epoch above that of the data that it replaces, not only of the backup.
    until("no session is open", || status(&home)["sessions"] == 0);
    home.ok(&["server", "stop"]);
    let output = home.output(&["server", "restore", backup, "--json"]);
    assert_eq!(json(&output)["epoch"], 2, "{output:?}");
    assert_eq!(home.server(), None, "it did not run before");
}

#[test]
fn a_restore_over_open_sessions_needs_force_and_the_holder_learns_of_its_loss() {
    let home = Home::new();
    let dir = home.file("backup");
    let backup = dir.to_str().unwrap();
    token(&home);
    until("no session is open", || status(&home)["sessions"] == 0);
    home.ok(&["server", "backup", backup]);
    let mut held = holder(&home);
    home.refuses(&["server", "restore", backup], 75, "1 session is open");
    assert_eq!(home.count("a"), (1, 0));
    home.ok(&["server", "restore", backup, "--force"]);
    held.ends(76);
}

#[test]
fn what_cannot_be_backed_up_or_restored_is_named_and_nothing_changes() {
    let home = Home::new();
    home.refuses(&["server", "backup", "b"], 70, "no data to back up");
    token(&home);
    std::fs::create_dir(home.file("there")).unwrap();
    std::fs::write(home.file("file"), "x").unwrap();
    let data = home.state().join("data/b");
    for (to, say) in [
        (home.file("there"), "exists already"),
        (home.file("file"), "exists already"),
        (data, "inside the data"),
        (PathBuf::from("/nowhere/b"), "/nowhere/b"),
    ] {
        home.refuses(&["server", "backup", to.to_str().unwrap()], 70, say);
    }
    let others = home.file("b.new");
    std::fs::create_dir(&others).unwrap();
    std::fs::write(others.join("kept"), "x").unwrap();
    let line = home.failure(&["server", "backup", "b"], 70);
    assert!(line.contains("b.new") && others.join("kept").exists(), "{line}");
    let damaged = home.file("damaged");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::copy(home.state().join("data/format"), damaged.join("format")).unwrap();
    std::fs::write(damaged.join("state.redb"), "x".repeat(5_000)).unwrap();
    let newer = home.file("newer");
    std::fs::create_dir(&newer).unwrap();
    std::fs::write(newer.join("format"), "99\n").unwrap();
    until("no session is open", || status(&home)["sessions"] == 0);
    let server = home.server();
    for (from, say, hint) in [
        (home.file("none"), "not a backup", "that lockkeeper server backup made"),
        // Nothing is wrong with the data of the server.
        (damaged, "cannot be used", "choose another backup"),
        (newer, "format 99", "choose another backup"),
    ] {
        let output = home.output(&["server", "restore", from.to_str().unwrap()]);
        refused(&output, 70, say);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(hint) && !text.contains("empty"), "{text}");
    }
    assert!(server.is_some() && home.server() == server && !home.state().join("restore.new").exists());
    for verb in [&["status"][..], &["stop"], &["restart"], &["backup", "b"], &["restore", "b"]] {
        home.refuses(
            &[&["server"], verb, &["--servers", "zk1:2181"]].concat(),
            64,
            "zk1:2181 is not a server of this machine",
        );
    }
}

/// The store is in use for a moment, as by a command that looks for the server. Data that cannot be read is what a restore is for.
#[test]
fn a_restore_that_cannot_look_at_the_data_changes_nothing_and_damaged_data_is_replaced_and_kept() {
    let home = Home::new();
    token(&home);
    home.ok(&["server", "backup", "b"]);
    until("no session is open", || status(&home)["sessions"] == 0);
    home.ok(&["server", "stop"]);
    let lock = std::fs::File::open(home.state().join("data/lock")).unwrap();
    lock.lock_shared().unwrap();
    home.refuses(&["server", "restore", "b"], 70, "in use");
    drop(lock);
    assert_eq!(home.json(&["server", "restore", "b", "--json"])["epoch"], 1, "it was not restored before");
    std::fs::write(home.state().join("data/state.redb"), "x".repeat(5_000)).unwrap();
    home.failure(&["run", "a", "--", "true"], 70);
    home.tells_of(&["server", "restore", "b"], 0, "its token epoch is unknown");
    home.ok(&["run", "a", "--", "true"]);
}

#[test]
fn the_server_of_another_program_is_not_stopped() {
    let home = Home::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let keeper = runtime.block_on(lockkeeper::Lockkeeper::embedded(home.state())).unwrap();
    for verb in [&["stop", "--force"][..], &["restart"], &["backup", "b"]] {
        home.refuses(&[&["server"], verb].concat(), 77, "hosts the server");
    }
    assert!(!home.file("b").exists() && !home.file("b.new").exists());
    runtime.block_on(keeper.close());
}

#[test]
fn a_shared_server_is_shown_and_stopped_like_an_own_one() {
    let home = Home::new();
    let place = format!("--machine={}", home.file("shared").display());
    let mut served = Running::start(&mut home.command(&["serve", &place]));
    served.line();
    let shown = json(&home.output(&["server", "status", "--json", &place]));
    assert_eq!((&shown["running"], &shown["scope"]["kind"]), (&true.into(), &"machine".into()));
    home.ok(&["server", "stop", &place]);
    served.ends(0);
    assert_eq!(home.output(&["server", "status", &place]).status.code(), Some(69));
}

/// Copies this command and changes the version that it is of, in the whole file. Everything else is the same.
fn of_version(home: &Home, version: &str) -> PathBuf {
    let other = lockkeeper_server::VERSION.replace(env!("CARGO_PKG_VERSION"), version);
    assert_eq!(lockkeeper_server::VERSION.len(), other.len());
    let file = home.file(version);
    // A shell opens the copy: a process that another test starts would inherit it from this one, and keep it busy.
    let script = format!("LC_ALL=C sed 's/{}/{other}/g' {BINARY} > {}", lockkeeper_server::VERSION, file.display());
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    file
}

fn with(home: &Home, program: &Path, args: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    home.prepare(command.args(args));
    command
}

fn runs(home: &Home, program: &Path) {
    let output = with(home, program, &["run", "b", "--", "true"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_newer_command_takes_over_a_server_that_holds_nothing_and_an_older_one_never_does() {
    let home = Home::new();
    let (older, newer) = (of_version(&home, "0.0.1"), Path::new(BINARY));
    runs(&home, &older);
    let first = home.server().unwrap();
    assert_eq!((&status(&home)["version"], home.server()), (&"0.0.1".into(), Some(first)));
    runs(&home, newer);
    let second = home.server().unwrap();
    assert_ne!(first, second);
    assert_eq!(status(&home)["version"], env!("CARGO_PKG_VERSION"));
    runs(&home, &older);
    assert_eq!(home.server(), Some(second));
}

#[test]
fn a_newer_command_leaves_a_hold_to_an_older_server_which_ends_when_it_is_idle() {
    let home = Home::new();
    let older = of_version(&home, "0.0.1");
    let mut command = with(&home, &older, &["run", "a", "--", "sh", "-c", "echo holds; cat"]);
    let mut held = Running::start(command.env("LOCKKEEPER_IDLE_EXIT", "2s"));
    assert_eq!(held.line(), "holds");
    let first: Pid = home.server().unwrap();
    runs(&home, Path::new(BINARY));
    assert_eq!(home.server(), Some(first));
    held.finish();
    until("it ends", || !is_alive(first));
    assert!(text(&home.state().join("server.log")).contains("ended as asked: a newer version"));
    runs(&home, Path::new(BINARY));
    assert!(!home.state().join("handover").exists());
    _ = kill_process(home.server().unwrap(), Signal::TERM);
}
