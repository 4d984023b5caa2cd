//! Standard output and standard error without a reader, closed or full: none of them disturbs a hold.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Home, Served, held, refused, until, without_scope, without_time};

/// Returns a full pipe. It takes more only when a reader reads.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(writer.as_fd()).unwrap();
    fcntl_setfl(writer.as_fd(), flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() || writer.write(b".").is_ok() {}
    fcntl_setfl(writer.as_fd(), flags).unwrap();
    (reader, writer)
}

/// Returns a pipe whose reader has gone.
fn closed_pipe() -> PipeWriter {
    std::io::pipe().unwrap().1
}

fn ends(mut child: Child) -> Option<i32> {
    let mut status = None;
    until("the command ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

/// Returns `lockkeeper ARGS` with the most verbose log on this standard error.
fn loud(home: &Home, args: &[&str], stderr: impl Into<Stdio>) -> Command {
    let mut command = home.command(args);
    command.env("LOCKKEEPER_LOG", "trace").stdin(Stdio::null()).stderr(stderr);
    command
}

#[test]
fn an_unread_standard_error_does_not_disturb_a_hold() {
    let home = Home::new();
    let (_reader, full) = full_pipe();
    let mut held = loud(&home, &["run", "a", "--session-timeout", "2s", "--", "sh", "-c", "sleep 3; exit 7"], full);
    let held = held.stdout(Stdio::null()).spawn().unwrap();
    // Longer than the session timeout, which shows that its heartbeats continue.
    assert_eq!(ends(held), Some(7));
    assert_eq!(home.count("a"), (0, 0));
}

#[test]
fn a_standard_error_that_is_closed_does_not_disturb_a_hold() {
    let home = Home::new();
    let args = ["run", "a", "--session-timeout", "2s", "--", "sh", "-c", "sleep 3; exit 7"];
    let held = loud(&home, &args, closed_pipe()).stdout(Stdio::null()).spawn().unwrap();
    assert_eq!(ends(held), Some(7));
    assert_eq!(home.count("a"), (0, 0));
    // The log goes to a reader that leaves after a line.
    let mut gone = loud(&home, &args, Stdio::piped()).spawn().unwrap();
    let mut byte = [0];
    gone.stderr.take().unwrap().read_exact(&mut byte).unwrap();
    assert_eq!(ends(gone), Some(7));
}

#[test]
fn a_full_standard_error_does_not_delay_a_signal() {
    let (home, mut holder) = held("a", &[]);
    let (_reader, full) = full_pipe();
    let waiter = loud(&home, &["run", "a", "--", "touch", "ran"], full).spawn().unwrap();
    until("it waits", || home.count("a") == (1, 1));
    kill_process(Pid::from_child(&waiter), Signal::TERM).unwrap();
    assert_eq!(ends(waiter), Some(128 + 15));
    assert_eq!(home.count("a"), (1, 0));
    holder.close_stdin();
    assert!(holder.wait().success() && !home.file("ran").exists());
}

#[test]
fn a_command_that_cannot_run_frees_its_lock_with_an_unread_standard_error() {
    let home = Home::new();
    let (_reader, full) = full_pipe();
    let run = loud(&home, &["run", "a", "--", "no-such-command"], full).spawn().unwrap();
    assert_eq!(ends(run), Some(127));
    assert_eq!(home.count("a"), (0, 0));
}

#[test]
fn serve_serves_and_stops_with_unread_output() {
    let home = Home::new();
    for closed in [false, true] {
        // The port of a server that prints it.
        let Served { mut running, address } = Served::start(&home);
        running.signal(Signal::TERM);
        running.wait();
        let ((_out, stdout), (_err, stderr)) = (full_pipe(), full_pipe());
        let (stdout, stderr) = if closed { (closed_pipe(), closed_pipe()) } else { (stdout, stderr) };
        let serve = loud(&home, &["serve", "--memory", "--listen", &address], stderr).stdout(stdout).spawn().unwrap();
        let user = Home::with_servers(&address);
        user.ok(&["run", "a", "--", "true"]);
        kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
        assert_eq!(ends(serve), Some(0), "closed: {closed}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let (home, mut holder) = held("a", &[]);
    for args in [
        &["list"][..],
        &["list", "--json"],
        &["list", "/locks"],
        &["show", "a"],
        &["why", "a"],
        &["run", "--help"],
        &["config"],
        &["admin", "epoch"],
        &["--help"],
    ] {
        let mut command = home.command(args);
        let output = command.stdin(Stdio::null()).stdout(closed_pipe()).output().unwrap();
        assert_eq!((output.status.code(), without_scope(&output).as_str()), (Some(0), ""), "{args:?}");
        let both = loud(&home, args, closed_pipe()).stdout(closed_pipe()).spawn().unwrap();
        assert_eq!(ends(both), Some(0), "{args:?}");
    }
    holder.finish();
}

#[test]
fn a_full_disk_is_told_for_data_and_tolerated_for_messages() {
    let home = Home::new();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let run = loud(&home, &["run", "a", "--", "sh", "-c", "exit 7"], full()).spawn().unwrap();
    assert_eq!(ends(run), Some(7));
    for args in [
        &["config"][..],
        &["help"],
        &["help", "run"],
        &["--help"],
        &["run", "-h"],
        &["run", "--help"],
        &["--version"],
        &["version"],
        &["man"],
    ] {
        let output = home.command(args).stdin(Stdio::null()).stdout(full()).output().unwrap();
        refused(&output, 70, "cannot write to standard output: No space left on device");
    }
}

#[test]
fn a_log_has_times_and_no_colours() {
    let (home, mut holder) = held("a", &[]);
    let mut command = home.command(&["run", "a", "--wait", "3s", "--", "true"]);
    let output = command.env("LOCKKEEPER_LOG", "debug").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains('\x1b'), "{text}");
    for line in text.lines().filter(|line| !line.starts_with("  hint: ")) {
        assert_ne!(without_time(line), line, "no time in {line:?} of {text}");
    }
    assert!(text.contains("Z lockkeeper: waiting for /locks/a: held by "), "{text}");
    let output = home.output(&["run", "a", "--json", "--try", "--", "true"]);
    let event: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(event["at"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{event}");
    // Output that is read immediately, or by a program, has no time.
    assert!(String::from_utf8(home.output(&["show", "b"]).stderr).unwrap().starts_with("lockkeeper: "));
    holder.finish();
}
