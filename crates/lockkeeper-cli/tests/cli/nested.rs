//! `run` inside `run`: refuses a command that would wait for itself, and no other one.

use std::process::Output;

use crate::harness::{BINARY, Home, Served, refused, until};

/// Runs `run ARGS -- lockkeeper run INNER -- sh -c SCRIPT`.
fn nested(home: &Home, outer: &[&str], inner: &[&str], script: &str) -> Output {
    home.output(&[&["run"], outer, &["--", BINARY, "run"], inner, &["--", "sh", "-c", script]].concat())
}

#[test]
fn a_nested_run_that_would_wait_for_itself_is_refused_at_once() {
    let home = Home::new();
    for (outer, inner) in [
        (&["a"][..], &["a"][..]),
        (&["a"], &["a", "--wait", "5m"]),
        (&["a"], &["b", "a"]),
        (&["a", "b"], &["b"]),
        (&["r", "--shared"], &["r", "--exclusive"]),
        (&["r"], &["r", "--shared"]),
        (&["p", "--permits", "3", "--take", "2"], &["p", "--permits", "3", "--take", "2"]),
        (&["c", "--background"], &["c", "--foreground"]),
        (&["k", "--format", "kazoo"], &["k", "--format", "kazoo"]),
    ] {
        refused(&nested(&home, outer, inner, "touch ran"), 64, "this one would wait forever");
        assert!(!home.file("ran").exists());
        let name = outer[0];
        assert_eq!(home.count(name), (0, 0), "{name}");
    }
    // Two levels up.
    let middle = ["run", "a", "--", BINARY, "run", "b", "--", BINARY, "run", "a", "--", "true"];
    home.failure(&middle, 64);
}

/// It does not wait, so it fails as usual. To ask the holder would end its own command.
#[test]
fn a_nested_try_says_that_its_own_outer_run_holds_the_lock() {
    let home = Home::new();
    for job in [&[][..], &["--slot", "1"]] {
        let output = nested(&home, &["a"], &[&["a", "--try"], job].concat(), "touch ran");
        refused(&output, 75, "; that is the lockkeeper run that this one runs under");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains("revoke") && text.contains("hint: the command holds the lock already"), "{text}");
    }
    // Another run holds it.
    let _other = home.holds("b", &[]);
    let text = String::from_utf8(nested(&home, &["a"], &["b", "--try"], "true").stderr).unwrap();
    assert!(text.contains("lockkeeper revoke ") && !text.contains("runs under"), "{text}");
}

/// The outer command holds, a writer waits behind it, and the inner command waits behind the writer.
#[test]
fn a_nested_reader_behind_a_writer_that_waits_for_the_outer_one_is_refused() {
    let home = Home::new();
    let script = format!("echo up; read line; exec {BINARY} run r --shared -- true");
    let mut outer = home.starts("r", &["--shared"], &script);
    let mut writer = home.waits("r", &["--exclusive"], "echo in");
    std::io::Write::write_all(outer.child.stdin.as_mut().unwrap(), b"go on\n").unwrap();
    outer.ends(64);
    assert_eq!(writer.line(), "in");
}

#[test]
fn a_nested_run_that_can_go_on_does() {
    let (home, machine) = (Home::new(), Home::new());
    let served = Served::start(&machine);
    for (outer, inner) in [
        (&["a"][..], &["b"][..]),
        (&["a"], &["a/b"]),
        (&["r", "--shared"], &["r", "--shared"]),
        (&["p", "--permits", "3", "--take", "2"], &["p", "--permits", "3"]),
        // The same name on other servers is another lock.
        (&["a"], &["a", "--servers", &served.address]),
    ] {
        let output = nested(&home, outer, inner, "exit 7");
        assert_eq!(output.status.code(), Some(7), "{outer:?} {inner:?}: {output:?}");
    }
    // Permits of other holders are released at some time.
    let mut other = home.holds("p", &["--permits", "3"]);
    let script = format!("echo up; exec {BINARY} run p --permits 3 --take 2 -- true");
    let mut outer = home.starts("p", &["--permits", "3"], &script);
    until("the inner one waits", || home.count("p") == (2, 1));
    other.close_stdin();
    outer.ends(0);
    // A process that an outer hold left behind, after the end of that hold.
    let script = format!("sh -c 'sleep 0.3; exec {BINARY} run l -- touch later' >/dev/null 2>&1 &");
    home.ok(&["run", "l", "--", "sh", "-c", &script]);
    until("it runs later", || home.file("later").exists());
}
