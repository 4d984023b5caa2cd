//! Contentserv's four errors as exit statuses; each message names the lock and the request's message.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use lockkeeper_testkit::proxy::{OpCode, Proxy, What};
use rustix::process::Signal;

use crate::harness::{Home, Running, names, served, until};

/// A command whose settings limit the attempts to connect.
fn run(home: &Home, more: &[&str], script: &str) -> Command {
    let args = [&["run", "P1", "--foreground", "--message", "Save Content"], more, &["--", "sh", "-c", script]];
    let mut command = home.command(&args.concat());
    command.env("LOCKKEEPER_CONNECTION_RETRY", "1").env("LOCKKEEPER_CONNECTION_DELAY", "10ms");
    command
}

fn holder(home: &Home) -> Running {
    let mut holder = Running::start(&mut run(home, &[], "echo up; cat"));
    assert_eq!(holder.line(), "up");
    holder
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
    names(line, &["/locks/P1", "Save Content"]);
}

/// C-27, C-33, C-34: a lock that is not granted in time ends with 75.
#[test]
fn not_in_time_is_75() {
    let (_served, home) = served();
    let mut holder = holder(&home);
    names_it(&Running::start(&mut run(&home, &["--wait", "2s"], "touch ran")).ends(75));
    assert!(!home.file("ran").exists());
    holder.finish();
}

/// C-31, C-33, C-34: no reachable server after all attempts ends with 69.
#[test]
fn no_server_after_all_tries_is_69() {
    let home = Home::with_servers("127.0.0.1:1");
    names_it(&Running::start(&mut run(&home, &[], "touch ran")).ends(69));
    assert!(!home.file("ran").exists());
}

/// C-30, C-33, C-34: a session that expired in the queue ends with 69 if a setting limits the attempts to connect. If the wait was broken
/// while its process was paused, `run` says so, whether it joins the queue again or ends.
#[test]
fn a_session_that_ended_in_the_queue_is_80() {
    let (served, home) = served();
    let mut holder = holder(&home);
    for (is_broken, joins_again) in [(false, false), (true, false), (true, true)] {
        let mut waiting = run(&home, &["--session-timeout", "2s"], "touch ran");
        match joins_again {
            true => waiting.env_remove("LOCKKEEPER_CONNECTION_RETRY").env_remove("LOCKKEEPER_CONNECTION_DELAY"),
            false => waiting.env("LOCKKEEPER_CONNECTION_RETRY", "1000"),
        };
        let mut waiting = Running::start(&mut waiting);
        until("it waits", || home.count("P1") == (1, 1));
        waiting.signal(Signal::STOP);
        if is_broken {
            let node = home.show("P1")["waiters"][0]["node"].as_str().unwrap().to_owned();
            home.ok(&["break", "P1", "--node", &node, "--reason", "it hangs", "--yes"]);
        }
        until("its session is over", || sessions(&served.address) == 1);
        waiting.signal(Signal::CONT);
        let told = if joins_again {
            let told = waiting.told_of("was broken by ");
            waiting.signal(Signal::TERM);
            waiting.wait();
            told
        } else {
            waiting.ends(69)
        };
        assert!(is_broken || told.contains("Save Content"), "{told}");
        assert!(
            !is_broken || told.contains("the wait for /locks/P1 was broken by ") && told.contains(": it hangs"),
            "{told}"
        );
        assert!(told.contains("/locks/P1") && !home.file("ran").exists(), "{told}");
    }
    holder.finish();
}

/// C-32, C-33: a missing node at the release ends with 81.
#[test]
fn nothing_there_to_unlock_is_81() {
    let (served, home) = served();
    let proxy = Proxy::start_blocking(served.address.parse().unwrap());
    let mut holder = holder(&Home::with_servers(&proxy.connect_string()));
    // It watches its node after a while, and looks for its mark later.
    let watched =
        |what: &What| matches!(what, What::Reply { op: OpCode::GetData, path: Some(path), .. } if path.contains("P1"));
    until("it watches its node", || proxy.records().iter().any(|record| watched(&record.what)));
    // The holder gets no event before it asks for the release itself.
    let untold = proxy.hold_watch_events();
    home.ok(&["break", "P1", "--yes", "--reason", "test"]);
    let looks = || proxy.counts().requested.of(OpCode::GetData);
    let before = looks();
    holder.close_stdin();
    until("it looks for its mark", || looks() > before);
    untold.release();
    names_it(&holder.ends(76));
}
