//! `run --lease`: a lock for a time, taken from lower priorities and lost to higher ones.

use crate::harness::{Home, Served, failure, is_alive};

/// What waits until it is told to end, says so, and cleans up.
const CLEANS_UP: &str = "trap 'echo cleaned; exit 0' TERM; echo up; while :; do sleep 0.01; done";

#[test]
fn a_leased_lock_is_taken_or_not_at_once() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let mut first = home.spawn("a", &["--lease", "10m", "-m", "nightly index"], "echo $LOCKKEEPER_TOKEN; read line");
    let token: i64 = first.line().parse().unwrap();
    let (code, text) = failure(&home.output(&["run", "a", "--lease", "10m", "--", "true"]));
    assert_eq!(code, Some(75));
    assert!(text.contains("taken by") && text.contains("nightly index"), "{text}");
    first.close_stdin();
    assert_eq!(first.wait().code(), Some(1), "read at the end of the input");
    let next = home.output(&["run", "a", "--lease", "10m", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
    let next: i64 = String::from_utf8(next.stdout).unwrap().trim().parse().unwrap();
    assert!(next > token);
}

/// H-34, H-40: the command ends in its own time, and the other starts when it has.
#[test]
fn a_higher_priority_gets_the_lock_when_the_command_has_cleaned_up() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let mut low = home.spawn("a", &["--lease", "10m", "--priority", "1", "--cleanup", "10m"], CLEANS_UP);
    assert_eq!(low.line(), "up");
    let equal = home.output(&["run", "a", "--lease", "10m", "--priority", "1", "--", "true"]);
    assert_eq!(equal.status.code(), Some(75));
    let mut high = home.spawn("a", &["--lease", "10m", "--priority", "5"], "echo in; read line");
    assert_eq!(low.line(), "cleaned");
    assert_eq!(high.line(), "in");
    let (code, text) = low.end();
    assert_eq!(code, Some(79), "{text}");
    assert!(text.contains("with priority 5") && text.contains("SIGTERM"), "{text}");
}

/// H-56: whoever does not end in time is killed, and its group with it, before the other has waited longer than it would.
#[test]
fn a_command_that_will_not_end_is_killed_when_its_cleanup_time_is_over() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let script = "trap '' TERM; echo $$; sh -c 'echo $$; while :; do sleep 0.05; done'; true";
    let mut low = home.spawn("a", &["--lease", "10m", "--cleanup", "300ms"], script);
    let (command, grandchild) = (low.pid_line(), low.pid_line());
    let mut high = home.spawn("a", &["--lease", "10m", "--priority", "5", "--forceful"], "echo in; read line");
    assert_eq!(high.line(), "in");
    let (code, text) = low.end();
    assert_eq!(code, Some(79), "{text}");
    assert!(!is_alive(command) && !is_alive(grandchild));
}

/// H-53, H-54: the owner's command goes on.
#[test]
fn a_wait_that_is_over_says_who_has_not_cleaned_up() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let script = "trap '' TERM; echo up; read line";
    let mut low = home.spawn("a", &["--lease", "10m", "--cleanup", "10m"], script);
    assert_eq!(low.line(), "up");
    let args = ["run", "a", "--lease", "10m", "--priority", "5", "--waiting", "300ms", "--", "true"];
    let refused = home.output(&args);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(75), "{text}");
    assert!(text.contains("asked the owner") && text.contains("has not been finished"), "{text}");
    low.close_stdin();
    assert_eq!(low.wait().code(), Some(79), "it was asked to end, and ended");
}

/// H-16: nobody need have asked.
#[test]
fn the_end_of_the_lease_stops_the_command() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let mut running = home.spawn("a", &["--lease", "500ms"], CLEANS_UP);
    assert_eq!((running.line().as_str(), running.line().as_str()), ("up", "cleaned"));
    let (code, text) = running.end();
    assert_eq!(code, Some(76), "{text}");
    assert!(text.contains("its lease ends"), "{text}");
}

#[test]
fn what_belongs_to_a_lease_needs_one() {
    let home = Home::new();
    for args in [
        &["--priority", "1"][..],
        &["--cleanup", "1s"],
        &["--waiting", "1s"],
        &["--forceful"],
        &["--keep-node"],
        &["--lease", "1m", "--wait", "1s"],
        &["--lease", "0s"],
        &["--lease", "1m", "--priority", "2147483647"],
    ] {
        let output = home.output(&[&["run", "a"], args, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(64), "{args:?}: {output:?}");
    }
}
