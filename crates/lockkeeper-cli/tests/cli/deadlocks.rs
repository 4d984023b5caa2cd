//! `deadlocks`, the state of a lock in `list`, and `run --deadlock fail`.

use serde_json::Value;

use crate::harness::{BINARY, Home, Running, served, until};

/// A run of `outer` whose command takes `inner` when a line comes.
fn nested(home: &Home, outer: &str, inner: &[&str]) -> Running {
    let script = format!("echo up; read line; exec {BINARY} run {} -- echo in", inner.join(" "));
    let running = home.starts(outer, &[], &script);
    running
}

fn go_on(running: &mut Running) {
    std::io::Write::write_all(running.child.stdin.as_mut().unwrap(), b"go on\n").unwrap();
}

fn found(home: &Home) -> (Option<i32>, Value) {
    let output = home.output(&["deadlocks", "--json"]);
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

/// Also several locks of one run: it holds the first one while it waits for the next.
#[test]
fn a_ring_of_nested_runs_is_certain_and_the_printed_command_ends_it() {
    let home = Home::new();
    let mut first = nested(&home, "a", &["b"]);
    let mut second = nested(&home, "b", &["c"]);
    assert_eq!(found(&home).0, Some(0));
    let mut third = home.starts("c", &[], "echo up; read line; exec cat");
    go_on(&mut first);
    until("the first waits", || home.count("b") == (1, 1));
    go_on(&mut second);
    until("the second waits", || home.count("c") == (1, 1));
    assert_eq!(found(&home).0, Some(0), "a chain is no ring");
    third.close_stdin();
    let mut third = nested(&home, "d", &["a"]);
    assert_eq!(second.line(), "in");
    assert_eq!(first.line(), "in");
    go_on(&mut third);
    assert_eq!(third.line(), "in", "the chain has ended by itself");

    let mut first = nested(&home, "a", &["b", "--message", "second"]);
    let mut second = nested(&home, "c", &["a"]);
    let mut third = nested(&home, "b", &["0", "c"]);
    for (running, lock) in [(&mut first, "b"), (&mut second, "a"), (&mut third, "c")] {
        go_on(running);
        until("it waits", || home.count(lock) == (1, 1));
    }
    let (code, json) = found(&home);
    let ring = json["deadlocks"][0]["ring"].as_array().unwrap();
    assert_eq!((code, &json["deadlocks"][0]["certainty"], ring.len()), (Some(2), &"certain".into(), 3), "{json}");
    let locks = |of: &str| ring.iter().map(|party| party[of]["path"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(
        (locks("holds"), locks("waits")),
        (vec!["/locks/b", "/locks/c", "/locks/a"], vec!["/locks/c", "/locks/a", "/locks/b"])
    );
    let list = home.ok(&["list"]);
    assert_eq!(list.matches("deadlock #1").count(), 3, "{list}");

    let text = home.says(&["deadlocks"], 2);
    assert!(text.starts_with("#1  certain: 3 contenders wait for each other in a ring since "), "{text}");
    assert!(text.contains(" holds /locks/a since ") && text.contains(" (second)\n"), "{text}");
    let (_, command) = text.lines().last().unwrap().split_once("lockkeeper ").unwrap();
    let words = shlex::split(command).unwrap();
    home.ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
    until("it has ended", || found(&home).0 == Some(0));
    for mut running in [first, second, third] {
        running.wait();
    }
}

#[test]
fn the_run_that_closes_a_ring_gives_up_if_it_is_asked_to_and_the_others_go_on() {
    let home = Home::new();
    for fails in [&["--deadlock", "fail"][..], &["--deadlock", "fail", "--slot", "1"]] {
        let mut first = nested(&home, "a", &["b"]);
        let mut last = nested(&home, "b", &[&["a"], fails].concat());
        go_on(&mut first);
        until("the first waits", || home.count("b") == (1, 1));
        go_on(&mut last);
        let said = last.ends(75);
        assert!(
            said.contains("deadlock: ") && said.contains(" holds /locks/b and waits for /locks/a, which "),
            "{said}"
        );
        assert_eq!(first.line(), "in");
        assert!(first.wait().success());
    }
}

/// They say nothing about their holds, so their sessions do.
#[test]
fn foreign_clients_are_likely_parties_and_a_session_with_several_waits_a_possible_one() {
    let (served, home) = served();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let node = |lock: &str, number: u32| format!("/locks/{lock}/a5bc3cd3b2f34e29a4f4c2d1e2f3a4b5__lock__{number:010}");
    let clients = runtime.block_on(async {
        use zookeeper_client::{Acls, Client, CreateMode};
        let one = Client::connect(&served.address).await.unwrap();
        let other = Client::connect(&served.address).await.unwrap();
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        _ = one.create("/locks", b"", &persistent).await;
        for lock in ["x", "y", "z"] {
            one.create(&format!("/locks/{lock}"), b"", &persistent).await.unwrap();
        }
        one.create(&node("x", 0), b"10.0.0.1", &ephemeral).await.unwrap();
        other.create(&node("y", 0), b"10.0.0.2", &ephemeral).await.unwrap();
        one.create(&node("y", 1), b"10.0.0.1", &ephemeral).await.unwrap();
        other.create(&node("x", 1), b"10.0.0.2", &ephemeral).await.unwrap();
        (one, other)
    });
    let certainty = || {
        let (code, json) = found(&home);
        (code, json["deadlocks"][0]["certainty"].as_str().map(str::to_owned))
    };
    assert_eq!(certainty(), (Some(1), Some("likely".to_owned())));
    let text = home.says(&["deadlocks"], 1);
    assert!(text.contains(", session 0x") && text.contains("lockkeeper break /locks/"), "{text}");
    runtime.block_on(async {
        use zookeeper_client::{Acls, CreateMode};
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        clients.1.create(&node("z", 0), b"10.0.0.2", &ephemeral).await.unwrap();
        clients.0.create(&node("z", 1), b"10.0.0.1", &ephemeral).await.unwrap();
    });
    assert_eq!(certainty(), (Some(1), Some("possible".to_owned())));
}

#[test]
fn a_directory_without_locks_and_a_bad_one_get_an_answer() {
    let home = Home::new();
    home.ok(&["run", "a", "--", "true"]);
    let output = home.output(&["deadlocks", "team"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    home.failure(&["deadlocks", "a//b"], 64);
}
