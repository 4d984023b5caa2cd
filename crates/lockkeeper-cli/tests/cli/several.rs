//! Several locks for one command: all of them, or none.

use crate::harness::{Home, Running, held, until, without_time};

#[test]
fn all_are_held_and_told_in_the_order_of_their_paths() {
    let home = Home::new();
    let script = "echo $LOCKKEEPER_PATH; echo $LOCKKEEPER_TOKEN; echo \"$LOCKKEEPER_NODE\"; cat";
    let args = ["run", "b", "/app/c", "a", "--message", "moving", "--", "sh", "-c", script];
    let mut running = Running::start(&mut home.command(&args));
    assert_eq!(running.line(), "/app/c /locks/a /locks/b");
    let tokens = running.line();
    let tokens: Vec<_> = tokens.split(' ').collect();
    for (name, token) in ["/app/c", "a", "b"].iter().zip(&tokens) {
        let lock = home.show(name);
        let holder = &lock["holders"][0];
        assert_eq!((holder["token"].to_string().as_str(), &holder["message"]), (*token, &"moving".into()), "{name}");
        assert_eq!(holder["node"], running.line());
    }
    assert_eq!(tokens.len(), 3);
    running.finish();
    for name in ["/app/c", "a", "b"] {
        assert_eq!(home.count(name), (0, 0));
    }
}

#[test]
fn case_52_if_one_is_taken_none_is_held() {
    let (home, mut holder) = held("b", &[]);
    let line = home.failure(&["run", "a", "b", "c", "--try", "--", "touch", "ran"], 75);
    assert!(line.starts_with("/locks/b is taken: held by "), "{line}");
    // Long enough to take the first one, and to print that it waits.
    let told = home.tells(&["run", "c", "b", "a", "--wait", "2s", "--", "touch", "ran"], 75);
    let waited = told.lines().map(without_time).find(|line| line.starts_with("lockkeeper: waited "));
    assert!(waited.is_some_and(|line| line.contains(" for /locks/b: last seen held by ")), "{told}");
    assert_eq!((home.count("a"), home.count("b"), home.count("c")), ((0, 0), (1, 0), (0, 0)));
    assert!(!home.file("ran").exists());
    holder.finish();
}

/// The line names the lock that the command waits for, not one that it holds or has not requested yet.
#[test]
fn each_wait_is_told_for_the_lock_it_is_for() {
    let home = Home::new();
    let mut holders: Vec<_> = ["a", "c"].iter().map(|name| home.spawn(name, &["-m", name], "echo up; cat")).collect();
    for holder in &mut holders {
        assert_eq!(holder.line(), "up");
    }
    let script = ["--", "sh", "-c", "echo in"];
    let mut waiter = Running::start(&mut home.command(&[&["run", "c", "b", "a"], script.as_slice()].concat()));
    for (holder, name) in holders.iter_mut().zip(["a", "c"]) {
        let line = waiter.told();
        assert!(without_time(&line).starts_with(&format!("lockkeeper: waiting for /locks/{name}: held by ")), "{line}");
        assert!(line.contains(&format!("({name}), on ")), "{line}");
        holder.close_stdin();
    }
    assert_eq!(waiter.line(), "in");
    let (code, rest) = waiter.end();
    let rest = without_time(&rest);
    assert!(code == Some(0) && rest.starts_with("lockkeeper: acquired /locks/a, /locks/b, /locks/c after "), "{rest}");
    for holder in &mut holders {
        assert!(holder.wait().success());
    }
}

/// After the loss of one lock the command is stopped, and the others are released.
#[test]
fn the_loss_of_one_stops_the_command_and_frees_the_others() {
    let home = Home::new();
    let args = ["run", "a", "b", "--", "sh", "-c", "echo up; exec sleep 1000"];
    let mut running = Running::start(&mut home.command(&args));
    assert_eq!(running.line(), "up");
    home.ok(&["break", "b", "--reason", "test", "--yes"]);
    let text = running.ends(76);
    assert!(without_time(&text).starts_with("lockkeeper: lock /locks/b is lost: "), "{text}");
    until("the other is free", || home.count("a") == (0, 0));
}

/// Each lock has the kind that the flags name.
#[test]
fn kinds_go_for_all_of_them() {
    let (home, mut holder) = held("a", &["--shared"]);
    home.ok(&["run", "a", "b", "--shared", "--try", "--", "true"]);
    assert_eq!(home.output(&["run", "a", "b", "--try", "--", "true"]).status.code(), Some(75));
    holder.finish();
}
