//! `run --yield`: a command of the background makes way for the foreground, and is started again after it.

use crate::harness::{Home, Running, text, until};

/// Works until the file `done` exists. Asked to make way, it ends as if the signal had killed it.
const STEPS: &str =
    "trap 'echo paused; exit 138' USR1; echo up $LOCKKEEPER_TOKEN; until [ -e done ]; do sleep 0.02; done; echo end";

const YIELDS: [&str; 5] = ["--background", "--yield", "usr1", "--min-hold", "100ms"];

/// The token that a started command prints.
fn started(command: &mut Running) -> u64 {
    let line = command.line();
    line.strip_prefix("up ").and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

fn finish(home: &Home) {
    std::fs::write(home.file("done"), "").unwrap();
}

/// Scenario 3 of Contentserv's document, as commands.
#[test]
fn a_command_of_the_foreground_gets_the_lock_in_2_s_and_the_background_goes_on_ahead_of_the_others() {
    let home = Home::new();
    let mut bulk = home.spawn("a", &YIELDS, STEPS);
    let token = started(&mut bulk);
    let mut other = home.waits("a", &["--background"], "echo other");
    let saved = home.output(&["run", "a", "--foreground", "--wait", "2s", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
    assert!(saved.status.success(), "{saved:?}");
    let between: u64 = String::from_utf8(saved.stdout).unwrap().trim().parse().unwrap();
    assert_eq!(bulk.line(), "paused");
    let again = started(&mut bulk);
    assert!(token < between && between < again, "{token} {between} {again}");
    assert_eq!(home.count("a"), (1, 1), "the other background still waits");
    finish(&home);
    assert_eq!(bulk.line(), "end");
    let said = bulk.ends(0);
    assert!(said.contains("lock /locks/a is wanted by an earlier class; sending SIGUSR1 to the command"), "{said}");
    assert!(said.contains("lock /locks/a is held again; starting the command again"), "{said}");
    other.ends_after("other");
    let history = home.output(&["history", "a"]);
    let history = String::from_utf8(history.stdout).unwrap();
    assert_eq!(history.matches("released").count(), 4, "each part is a hold: {history}");
    assert_eq!(history.matches("exit status 138").count(), 1, "{history}");
}

/// A program that does not know the signal is killed by it. It never is a failed attempt, and leaves no dead letter.
#[test]
fn a_command_that_the_signal_kills_is_started_again_and_leaves_no_dead_letter() {
    let home = Home::new();
    let letters = format!("file:{}", home.file("letters").display());
    let kept = ["--retries", "1", "--dead-letter", &letters];
    let mut bulk = home.spawn(
        "a",
        &[&YIELDS[..], &kept].concat(),
        "echo up $LOCKKEEPER_TOKEN; until [ -e done ]; do sleep 0.02; done",
    );
    for _ in 0..2 {
        started(&mut bulk);
        home.ok(&["run", "a", "--foreground", "--wait", "10s", "--", "true"]);
    }
    started(&mut bulk);
    finish(&home);
    bulk.ends(0);
    let file = home.file("letters");
    assert!(!file.exists() || text(&file).is_empty());
}

#[test]
fn a_command_that_ends_with_another_status_is_not_started_again() {
    let home = Home::new();
    let mut bulk = home.spawn("a", &YIELDS, "trap 'exit 3' USR1; echo up 1; while :; do sleep 0.02; done");
    started(&mut bulk);
    home.ok(&["run", "a", "--foreground", "--wait", "10s", "--", "true"]);
    bulk.ends(3);
    assert_eq!(home.count("a"), (0, 0));
}

/// It would be killed by a signal for that.
#[test]
fn a_command_without_yield_or_within_its_minimum_is_not_signalled() {
    for args in [&["--background"][..], &["--background", "--yield", "USR1", "--min-hold", "1h"]] {
        let home = Home::new();
        let mut bulk = home.spawn("a", args, "echo up 1; until [ -e done ]; do sleep 0.02; done; echo end");
        started(&mut bulk);
        home.says(&["run", "a", "--foreground", "--wait", "1s", "--", "true"], 75);
        finish(&home);
        assert_eq!(bulk.line(), "end", "{args:?}");
        assert!(bulk.wait().success());
    }
}

#[test]
fn a_signal_ends_a_run_that_made_way_and_waits() {
    let home = Home::new();
    let mut bulk = home.spawn("a", &YIELDS, STEPS);
    started(&mut bulk);
    let mut save = home.spawn("a", &["--foreground"], "echo up 1; cat");
    assert_eq!(bulk.line(), "paused");
    started(&mut save);
    until("the background waits", || home.count("a") == (1, 1));
    bulk.signal(rustix::process::Signal::TERM);
    bulk.ends(143);
    until("it has left the queue", || home.count("a") == (1, 0));
    save.finish();
}

#[test]
fn only_one_lock_with_classes_makes_way() {
    let home = Home::new();
    for (args, problem) in [
        (&["a"][..], "--yield needs a lock with classes"),
        (&["a", "--permits", "2"], "--yield needs a lock with classes"),
        (&["a", "b", "--background"], "--yield takes one lock"),
        (&["a", "--once-per", "day"], "--yield needs a lock with classes"),
    ] {
        home.refuses(&[&["run"], args, &["--yield", "TERM", "--", "true"]].concat(), 64, problem);
    }
}
