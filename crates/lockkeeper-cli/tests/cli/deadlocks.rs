//! `deadlocks`, the state of a lock in `list`, and `run --deadlock fail`.

use serde_json::Value;

use crate::harness::{BINARY, Home, Running, names, served, until};
use crate::incidents::foreign::{Foreign, Nodes};

/// A run of `outer` whose command takes `inner` when a line comes.
fn nested(home: &Home, outer: &str, inner: &[&str]) -> Running {
    let script = format!("echo up; read line; exec {BINARY} run {} -- echo in", inner.join(" "));
    home.starts(outer, &[], &script)
}

fn go_on(running: &mut Running) {
    std::io::Write::write_all(running.child.stdin.as_mut().unwrap(), b"go on\n").unwrap();
}

fn found(home: &Home) -> (Option<i32>, Value) {
    let output = home.output(&["deadlocks", "--json"]);
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

/// The incidents have one.
#[test]
fn a_chain_of_nested_runs_is_no_ring_and_ends_by_itself() {
    let home = Home::new();
    let mut first = nested(&home, "a", &["b"]);
    let mut second = nested(&home, "b", &["c"]);
    assert_eq!(found(&home).0, Some(0));
    let mut third = home.holds("c", &[]);
    go_on(&mut first);
    until("the first waits", || home.count("b") == (1, 1));
    go_on(&mut second);
    until("the second waits", || home.count("c") == (1, 1));
    assert_eq!(found(&home).0, Some(0), "a chain is no ring");
    third.finish();
    let mut fourth = nested(&home, "d", &["a"]);
    assert_eq!((second.line().as_str(), first.line().as_str()), ("in", "in"));
    go_on(&mut fourth);
    assert_eq!(fourth.line(), "in");
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
        names(&last.ends(75), &["deadlock: ", " holds /locks/b and waits for /locks/a, which "]);
        first.ends_after("in");
    }
}

/// They say nothing about their holds, so their sessions do.
#[test]
fn foreign_clients_are_likely_parties_and_a_session_with_several_waits_a_possible_one() {
    let (served, home) = served();
    let [mut one, mut other] = ["kazoo"; 2].map(|format| Nodes::connect(&served.address, format));
    one.join("x");
    other.join("y");
    one.join("y");
    other.join("x");
    let certainty = || {
        let (code, json) = found(&home);
        (code, json["deadlocks"][0]["certainty"].as_str().map(str::to_owned))
    };
    assert_eq!(certainty(), (Some(1), Some("likely".to_owned())));
    names(&home.says(&["deadlocks"], 1), &[", session 0x", "lockkeeper break /locks/"]);
    other.join("z");
    one.join("z");
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
