//! Contentserv's four errors as exit statuses; each message names the lock and the request's message.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use lockkeeper_testkit::proxy::{OpCode, Proxy, What};
use rustix::process::Signal;

use crate::harness::{Home, Running, Served, failure, until};

fn run(home: &Home, servers: &str, more: &[&str], script: &str) -> Command {
    let args = [&["run", "P1", "--foreground", "--message", "Save Content", "--servers", servers], more];
    let mut command = home.command(&[&args.concat()[..], &["--", "sh", "-c", script]].concat());
    command.env("LOCKKEEPER_CONNECTION_RETRY", "1").env("LOCKKEEPER_CONNECTION_DELAY", "10ms");
    command
}

/// Returns the number of open sessions.
fn sessions(address: &str) -> usize {
    let (mut server, mut answer) = (TcpStream::connect(address).unwrap(), String::new());
    server.write_all(b"mntr").unwrap();
    server.read_to_string(&mut answer).unwrap();
    let count = answer.lines().find_map(|line| line.strip_prefix("zk_global_sessions\t"));
    count.unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
}

fn names_it(line: &str) {
    assert!(line.contains("/locks/P1") && line.contains("Save Content"), "{line}");
}

/// C-27, C-33, C-34: a lock that is not granted in time ends with 75.
#[test]
fn not_in_time_is_75() {
    let home = Home::new();
    let served = Served::start(&home);
    let mut holder = Running::start(&mut run(&home, &served.address, &[], "echo up; cat"));
    assert_eq!(holder.line(), "up");
    let mut late = Running::start(&mut run(&home, &served.address, &["--wait", "2s"], "touch ran"));
    let line = late.ends(75);
    names_it(&line);
    assert!(!home.file("ran").exists());
    holder.close_stdin();
    holder.wait();
}

/// C-31, C-33, C-34: no reachable server after all attempts ends with 69.
#[test]
fn no_server_after_all_tries_is_69() {
    let home = Home::new();
    let (code, line) = failure(&run(&home, "127.0.0.1:1", &[], "touch ran").output().unwrap());
    assert_eq!(code, Some(69), "{line}");
    names_it(&line);
    assert!(!home.file("ran").exists());
}

/// C-30, C-33, C-34: a session that expired in the queue ends with 69 if a setting limits the attempts to connect.
#[test]
fn a_session_that_ended_in_the_queue_is_80() {
    let home = Home::new();
    let served = Served::start(&home);
    let mut holder = Running::start(&mut run(&home, &served.address, &[], "echo up; cat"));
    assert_eq!(holder.line(), "up");
    let more = ["--session-timeout", "2s"];
    let mut waiting = run(&home, &served.address, &more, "touch ran");
    let mut waiting = Running::start(waiting.env("LOCKKEEPER_CONNECTION_RETRY", "1000"));
    let waiters = || {
        let lock = home.json(&["show", "P1", "--json", "--servers", &served.address]);
        lock["waiters"].as_array().unwrap().len()
    };
    until("it waits", || waiters() == 1);
    waiting.signal(Signal::STOP);
    until("its session is over", || waiters() == 0);
    waiting.signal(Signal::CONT);
    let line = waiting.ends(69);
    names_it(&line);
    assert!(!home.file("ran").exists());
    holder.close_stdin();
    holder.wait();
}

/// The wait was broken while its process was paused, and the session expired after that. `run` says so, whether it joins the queue
/// again or ends.
#[test]
fn a_wait_that_was_broken_while_it_was_paused_says_by_whom_and_why() {
    let home = Home::new();
    let served = Served::start(&home);
    let mut holder = Running::start(&mut run(&home, &served.address, &[], "echo up; cat"));
    assert_eq!(holder.line(), "up");
    let show = |kind: &str| {
        let lock = home.json(&["show", "P1", "--json", "--servers", &served.address]);
        lock[kind].as_array().unwrap().clone()
    };
    for joins_again in [false, true] {
        let mut waiting = run(&home, &served.address, &["--session-timeout", "2s"], "touch ran");
        match joins_again {
            true => waiting.env_remove("LOCKKEEPER_CONNECTION_RETRY").env_remove("LOCKKEEPER_CONNECTION_DELAY"),
            false => waiting.env("LOCKKEEPER_CONNECTION_RETRY", "1000"),
        };
        let mut waiting = Running::start(&mut waiting);
        until("it waits", || show("waiters").len() == 1);
        waiting.signal(Signal::STOP);
        let node = show("waiters")[0]["node"].as_str().unwrap().to_owned();
        let words = ["break", "P1", "--node", &node, "--reason", "it hangs", "--yes", "--servers", &served.address];
        home.ok(&words);
        until("its session is over", || sessions(&served.address) == 1);
        waiting.signal(Signal::CONT);
        let told = if joins_again {
            let told = waiting.told_of("was broken by ");
            waiting.signal(Signal::TERM);
            waiting.wait();
            told
        } else {
            let told = waiting.ends(69);
            told
        };
        assert!(told.contains("the wait for /locks/P1 was broken by ") && told.contains(": it hangs"), "{told}");
        assert!(!home.file("ran").exists());
    }
    holder.close_stdin();
    holder.wait();
}

/// C-32, C-33: a missing node at the release ends with 81.
#[test]
fn nothing_there_to_unlock_is_81() {
    let home = Home::new();
    let served = Served::start(&home);
    let proxy = Proxy::start_blocking(served.address.parse().unwrap());
    let mut holder = Running::start(&mut run(&home, &proxy.connect_string(), &[], "echo up; cat"));
    assert_eq!(holder.line(), "up");
    // It watches its node after a while, and looks for its mark later.
    let watched =
        |what: &What| matches!(what, What::Reply { op: OpCode::GetData, path: Some(path), .. } if path.contains("P1"));
    until("it watches its node", || proxy.records().iter().any(|record| watched(&record.what)));
    // The holder gets no event before it asks for the release itself.
    let untold = proxy.hold_watch_events();
    home.ok(&["break", "P1", "--yes", "--reason", "test", "--servers", &served.address]);
    let looks = || proxy.counts().requested.of(OpCode::GetData);
    let before = looks();
    holder.close_stdin();
    until("it looks for its mark", || looks() > before);
    untold.release();
    let line = holder.ends(76);
    names_it(&line);
}
