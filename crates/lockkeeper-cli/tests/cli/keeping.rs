//! `lockkeeper acquire`, `release`, `with-hold` and `holds`: a lock that is held from one command to the next.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{BINARY, Home, Running, failure, held, is_alive, until};

/// A process to which a hold is bound. It ends with the test, and the hold with it.
struct Anchor(Running);

impl Anchor {
    fn new() -> Self {
        Anchor(Running::start(&mut Command::new("cat")))
    }

    fn pid(&self) -> String {
        self.0.pid().as_raw_nonzero().to_string()
    }

    /// Acquires a lock; returns the id of the hold and its token.
    fn acquire(&self, home: &Home, args: &[&str]) -> (String, u64) {
        let pid = self.pid();
        let output = home.output(&[&["acquire"], args, &["--while", &pid, "--session-timeout", "2s"]].concat());
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let (id, token) = printed.trim_end().split_once(' ').unwrap();
        (id.to_owned(), token.parse().unwrap())
    }
}

/// Returns the ids of the holds.
fn holds(home: &Home) -> Vec<String> {
    let output = home.output(&["holds", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let holds: Value = serde_json::from_slice(&output.stdout).unwrap();
    holds["holds"].as_array().unwrap().iter().map(|hold| hold["hold"].as_str().unwrap().to_owned()).collect()
}

/// Returns the process that keeps the only hold of a lock.
fn keeper(home: &Home, name: &str) -> Pid {
    Pid::from_raw(home.show(name)["holders"][0]["pid"].as_i64().unwrap().try_into().unwrap()).unwrap()
}

fn is_free(home: &Home, name: &str) -> bool {
    home.count(name) == (0, 0)
}

#[test]
fn a_lock_is_held_over_several_commands_until_its_release() {
    let (home, anchor) = (Home::new(), Anchor::new());
    let (id, token) = anchor.acquire(&home, &["a", "--message", "migration"]);
    let shown = home.show("a");
    assert_eq!(shown["holders"][0]["token"], token);
    assert_eq!(shown["holders"][0]["message"], "migration");
    let runs = shown["holders"][0]["program"].as_str().unwrap();
    assert!(runs.contains(&id) && runs.contains(&format!("until process {} (cat) ends", anchor.pid())), "{runs}");
    assert_eq!(holds(&home), [id.as_str()]);
    let (code, line) = failure(&home.output(&["acquire", "a", "--try", "--while", &anchor.pid()]));
    assert!(code == Some(75) && line.contains("(migration)"), "{line}");
    let script = "echo $LOCKKEEPER_TOKEN $LOCKKEEPER_PATH; exit 7";
    let step = home.output(&["with-hold", &id, "--", "sh", "-c", script]);
    assert_eq!(String::from_utf8(step.stdout).unwrap(), format!("{token} /locks/a\n"));
    assert_eq!(step.status.code(), Some(7));
    assert_eq!(home.count("a"), (1, 0), "the hold goes on");
    assert!(home.output(&["release", &id]).status.success());
    assert!(is_free(&home, "a"));
    assert_eq!(holds(&home), [""; 0]);
    let history = String::from_utf8(home.output(&["history", "a"]).stdout).unwrap();
    assert!(history.contains("released"), "{history}");
}

/// What `--shell` prints is for eval; the next commands find the hold by the variable.
#[test]
fn a_shell_takes_the_id_and_the_token_and_names_neither() {
    let home = Home::new();
    let script = format!(
        "eval \"$({BINARY} acquire a --shell --while $$)\"; {BINARY} with-hold -- sh -c 'echo $LOCKKEEPER_TOKEN'; \
         echo $LOCKKEEPER_TOKEN; {BINARY} release; echo $?"
    );
    let mut shell = Command::new("sh");
    home.prepare(&mut shell);
    let output = shell.args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines[0] == lines[1] && lines[0].parse::<u64>().is_ok() && lines[2] == "0", "{printed}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("LOCKKEEPER_HOLD"), "no warning about the variable: {said}");
}

/// Whatever a hold is bound to, it ends with that, and the terminal's session is the default.
#[test]
fn a_hold_ends_with_its_bond() {
    let home = Home::new();
    let anchor = Anchor::new();
    anchor.acquire(&home, &["a"]);
    drop(anchor);
    until("the process has ended, and so has the hold", || is_free(&home, "a"));
    let timed = home.output(&["acquire", "b", "--for", "700ms", "--json"]);
    let timed: Value = serde_json::from_slice(&timed.stdout).unwrap();
    assert!(timed["bond"].as_str().unwrap().ends_with(", for 700 ms"), "{timed}");
    until("the time is over", || is_free(&home, "b"));
    let mut session = Command::new("setsid");
    home.prepare(&mut session);
    session.args(["sh", "-c", &format!("{BINARY} acquire c; read line")]);
    let mut session = Running::start(&mut session);
    assert!(!session.line().is_empty());
    assert_eq!(home.count("c"), (1, 0));
    session.close_stdin();
    session.wait();
    until("the session has ended", || is_free(&home, "c"));
    until("no keeper has left anything", || std::fs::read_dir(home.state().join("holds")).unwrap().next().is_none());
}

#[test]
fn without_a_session_that_lasts_another_bond_must_be_named() {
    let home = Home::new();
    let acquire = format!("{BINARY} acquire a");
    let rows = [
        (acquire.clone(), "this command leads it"),
        // The shell that leads the session has ended when the command starts.
        (format!("sh -c '(while kill -0 $$; do :; done 2> /dev/null; {acquire}) & exit'"), "which led it, has ended"),
    ];
    for (script, why) in rows {
        let mut session = Command::new("sh");
        home.prepare(&mut session);
        let mut session =
            session.args(["-c", &format!("exec setsid {script}")]).stderr(Stdio::piped()).spawn().unwrap();
        session.wait().unwrap();
        let said = std::io::read_to_string(session.stderr.take().unwrap()).unwrap();
        assert!(said.contains(why) && said.contains("with --while; or a time, with --for"), "{said}");
    }
    assert!(is_free(&home, "a"));
}

#[test]
fn a_wait_ends_with_the_command_that_waits() {
    let (home, anchor) = (Home::new(), Anchor::new());
    let (id, _) = anchor.acquire(&home, &["a"]);
    for signal in [Signal::INT, Signal::KILL] {
        let mut waiting = Running::start(&mut home.command(&["acquire", "a", "--for", "1h"]));
        until("it waits", || home.count("a") == (1, 1));
        waiting.signal(signal);
        waiting.wait();
        until("nobody waits", || home.count("a") == (1, 0));
    }
    assert_eq!(holds(&home), [id]);
}

/// Case by case: what happens to the keeper while a command runs under its hold. The command heeds no SIGTERM.
#[test]
fn a_command_under_a_hold_is_ended_with_it() {
    let home = Home::new();
    type End = fn(&Home);
    let ends: [(&str, End); 4] = [
        ("broken", |home| assert!(home.output(&["break", "a", "--reason", "x", "--yes"]).status.success())),
        ("released", |home| assert!(home.output(&["release", &holds(home)[0]]).status.success())),
        ("killed", |home| kill_process(keeper(home, "a"), Signal::KILL).unwrap()),
        ("stopped", |home| kill_process(keeper(home, "a"), Signal::STOP).unwrap()),
    ];
    for (what, end) in ends {
        let anchor = Anchor::new();
        let (id, _) = anchor.acquire(&home, &["a"]);
        let script = "trap '' TERM; echo $$; while :; do sleep 1; done";
        let mut command = home.command(&["with-hold", &id, "--grace", "200ms", "--", "sh", "-c", script]);
        let mut running = Running::start(&mut command);
        let (pid, keeper) = (running.pid_line(), keeper(&home, "a"));
        end(&home);
        let next = home.output(&["run", "a", "--session-timeout", "2s", "--", "true"]);
        assert!(next.status.success(), "{next:?}");
        // A lock that is broken is free at once; the command has the grace period.
        assert!(what == "broken" || !is_alive(pid), "{what}: it runs beside the next holder");
        assert_eq!(running.wait().code(), Some(76), "{what}");
        assert!(!is_alive(pid), "{what}");
        _ = kill_process(keeper, Signal::CONT);
        drop(anchor);
        until("the keeper has ended", || !is_alive(keeper));
    }
    assert_eq!(holds(&home), [""; 0]);
}

/// The command is stopped with the one that runs it, so neither hears of the end: they know when their trust is over.
#[test]
fn the_end_of_the_bond_waits_for_a_command_under_the_hold() {
    for stop in [false, true] {
        let (home, anchor) = (Home::new(), Anchor::new());
        let (id, _) = anchor.acquire(&home, &["a"]);
        let script = "trap '' TERM; echo $$; while :; do sleep 1; done";
        let mut command = home.command(&["with-hold", &id, "--grace", "300ms", "--", "sh", "-c", script]);
        let mut running = Running::start(&mut command);
        let pid = running.pid_line();
        if stop {
            running.signal(Signal::STOP);
        }
        drop(anchor);
        assert!(home.output(&["run", "a", "--", "true"]).status.success());
        assert!(!is_alive(pid), "it runs beside the next holder");
        running.signal(Signal::CONT);
        assert_eq!(running.wait().code(), Some(76));
        assert!(stop || running.told().contains("is being released"));
    }
}

#[test]
fn the_time_of_a_hold_begins_with_the_grant() {
    let (home, mut holder) = held("a", &[]);
    let mut waiting = Running::start(&mut home.command(&["acquire", "a", "--for", "1s", "--json"]));
    until("it waits", || home.count("a") == (1, 1));
    let listed = home.output(&["holds"]);
    assert!(String::from_utf8(listed.stdout).unwrap().contains("waits for its lock, for 1 s"));
    // Longer than the time of the hold.
    let waited = std::time::Instant::now() + std::time::Duration::from_millis(1200);
    until("it has waited", || std::time::Instant::now() > waited);
    assert_eq!(home.count("a"), (1, 1));
    holder.finish();
    assert!(waiting.line().contains("until "));
    assert_eq!(waiting.wait().code(), Some(0));
    assert_eq!(home.count("a"), (1, 0));
    until("the time is over", || is_free(&home, "a"));
}

#[test]
fn a_loss_is_told_to_whoever_comes_and_a_killed_keeper_is_named() {
    let (home, anchor) = (Home::new(), Anchor::new());
    let (id, _) = anchor.acquire(&home, &["a"]);
    assert!(home.output(&["break", "a", "--reason", "x", "--yes"]).status.success());
    until("it is lost", || {
        home.json(&["holds", "--json"])["holds"][0]["state"].as_str().unwrap().starts_with("lost: ")
    });
    let (code, line) = failure(&home.output(&["with-hold", &id, "--", "true"]));
    assert!(code == Some(76) && line.contains("is lost"), "{line}");
    let (code, line) = failure(&home.output(&["release", &id]));
    assert!(code == Some(76) && line.contains("lost before"), "{line}");
    until("nobody asks for it any more", || holds(&home).is_empty());

    let (id, _) = anchor.acquire(&home, &["a"]);
    kill_process(keeper(&home, "a"), Signal::KILL).unwrap();
    let (code, line) = failure(&home.output(&["release", &id]));
    assert!(code == Some(76) && line.contains("was killed"), "{line}");
    assert_eq!(failure(&home.output(&["release", &id])).0, Some(1));
}

#[test]
fn a_hold_that_cannot_be_printed_does_not_go_on() {
    let home = Home::new();
    let mut acquire = home.command(&["acquire", "a", "--for", "1h"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(acquire.stdout(full).status().unwrap().code(), Some(70));
    until("it is released", || is_free(&home, "a") && holds(&home).is_empty());
}

#[test]
fn a_hangup_ends_a_hold_and_a_release_is_a_document_for_programs() {
    let (home, anchor) = (Home::new(), Anchor::new());
    anchor.acquire(&home, &["a"]);
    kill_process(keeper(&home, "a"), Signal::HUP).unwrap();
    until("it is released", || is_free(&home, "a") && holds(&home).is_empty());
    let (id, _) = anchor.acquire(&home, &["a"]);
    assert_eq!(home.json(&["release", &id, "--json"])["hold"], id.as_str());
}

#[test]
fn what_it_cannot_do_is_refused_and_holds_nothing() {
    let home = Home::new();
    let ended = home.output(&["run", "gone", "--", "sh", "-c", "echo $$"]);
    let ended = String::from_utf8(ended.stdout).unwrap();
    let rows: &[(&[&str], i32, &str)] = &[
        (&["acquire", "a", "--while", ended.trim()], 64, ended.trim()),
        (&["acquire", "a", "--while", "0"], 64, "--while 0"),
        (&["acquire", "a", "--for", "0s"], 64, "0s"),
        (&["acquire", "a", "--for", "100000000000d"], 64, "no clock shows its end"),
        (&["acquire", "a", "--for", "1h", "--while", "2"], 64, "--while"),
        (&["acquire", "a", "--lease", "1m", "--cleanup", "1s", "--for", "1h"], 64, "--cleanup"),
        (&["acquire", "a//b", "--for", "1h"], 64, "extra '/'"),
        (&["acquire", "a", "--servers", "127.0.0.1:1", "--wait", "100ms", "--for", "1h"], 69, "127.0.0.1:1"),
        (&["release"], 64, "LOCKKEEPER_HOLD"),
        (&["release", "0123abcd"], 1, "0123abcd"),
        (&["release", "../../etc"], 1, "../../etc"),
        (&["with-hold", "0123abcd", "--", "true"], 1, "0123abcd"),
    ];
    for (args, status, named) in rows {
        let (code, line) = failure(&home.output(args));
        assert!(code == Some(*status) && line.contains(named), "{args:?}: {code:?} {line}");
    }
    assert!(is_free(&home, "a"));
    std::fs::set_permissions(home.state().join("holds"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, line) = failure(&home.output(&["acquire", "a", "--for", "1h"]));
    assert!(code == Some(77) && line.contains("can be entered by other users"), "{line}");
    assert!(is_free(&home, "a"));
}
