//! Revoke: the signal to the command, the answer to the asker, and no force.

use lockkeeper_testkit::proxy::{OpCode, Proxy};
use serde_json::Value;

use crate::harness::{Home, Running, held, is_alive, names, served, stderr, until};

/// T-27: for every kind the holder's command gets the signal within a second, and its end ends the hold.
#[test]
fn a_request_signals_the_command_within_a_second_whatever_the_kind() {
    let home = Home::new();
    let kinds: [&[&str]; 7] = [
        &[],
        &["--exclusive"],
        &["--shared"],
        &["--permits", "2"],
        &["--background"],
        &["--format", "recipe"],
        &["--format", "kazoo"],
    ];
    for (at, kind) in kinds.iter().enumerate() {
        let name = format!("k{at}");
        let script = "trap 'date +%s%3N; exit 9' TERM; echo up; while :; do sleep 0.01; done";
        let mut holder = home.starts(&name, &[*kind, &["--json"]].concat(), script);
        home.ok(&["revoke", &name, "--reason", "deploying", "--wait", "30s"]);
        let told: u64 = holder.line().parse().unwrap();
        let text = holder.ends(9);
        let event: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!((&event["event"], &event["signal"]), (&"asked".into(), &"SIGTERM".into()), "{text}");
        assert_eq!(
            (&event["path"], &event["request"]["reason"]),
            (&format!("/locks/{name}").into(), &"deploying".into())
        );
        let asked = event["request"]["at_ms"].as_u64().unwrap();
        assert!(told.saturating_sub(asked) < 1000, "{kind:?}: {} ms", told - asked);
        assert_eq!(home.count(&name), (0, 0));
    }
}

/// Someone who wants one permit would otherwise end all holders without knowing it.
#[test]
fn a_request_to_several_holders_says_so_and_how_to_ask_one() {
    let home = Home::new();
    let mut holders: Vec<_> =
        (0..2).map(|_| home.spawn("p", &["--permits", "2"], "echo up; exec sleep 1000")).collect();
    assert!(holders.iter_mut().all(|holder| holder.line() == "up"));
    let lock = home.show("p");
    let nodes = lock["holders"].as_array().unwrap().iter().map(|holder| holder["node"].as_str().unwrap());
    let text = stderr(&home.output(&["revoke", "p", "--wait", "30s"]));
    let advice = "all 2 holders were asked; to ask one of them: lockkeeper revoke /locks/p --node /locks/p/";
    let mut names = nodes.map(|node| node.rsplit('/').next().unwrap());
    assert!(names.any(|name| text.contains(&format!("{advice}{name}"))), "{text}");
    holders.iter_mut().for_each(|holder| _ = holder.wait());
    let mut holder = home.starts("p", &["--permits", "2"], "echo up; exec sleep 1000");
    let text = stderr(&home.output(&["revoke", "p", "--wait", "30s"]));
    assert!(!text.contains("holders were asked"), "{text}");
    holder.wait();
}

/// The whole group gets the signal; the exit status is the command's, as with a signal from any other process.
#[test]
fn a_command_that_knows_of_nothing_is_ended_and_the_next_runs() {
    let home = Home::new();
    let mut holder = home.spawn("a", &["-m", "long"], "echo $$; sh -c 'echo $$; exec sleep 1000'; true");
    let (command, grandchild) = (holder.pid_line(), holder.pid_line());
    let mut next = home.spawn("a", &[], "echo in");
    let output = home.output(&["revoke", "a", "-r", "deploying", "--wait", "30s"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let who = format!("(pid {})", holder.pid().as_raw_nonzero());
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("lockkeeper: asked ") && lines[0].contains(" to release /locks/a, on "), "{text}");
    assert!(lines[0].contains(&who) && lines[0].contains("(long)"), "{text}");
    // Since when it holds the lock is not said: a holder that has just been granted it has the time of its queue only.
    assert!(!lines[0].contains(" since "), "{text}");
    assert!(lines[1].contains(&who) && lines[1].ends_with(" has released it"), "{text}");
    let text = holder.ends(128 + 15);
    assert!(text.ends_with(" asks for /locks/a (deploying): SIGTERM sent to the command\n"), "{text}");
    next.ends_after("in");
    assert!(!is_alive(command) && !is_alive(grandchild));
}

/// No process is left that could release the lock: its session ends.
#[test]
fn a_holder_whose_process_has_ended_is_not_said_to_release() {
    let (_served, home) = served();
    let mut holder = home.starts("a", &["--session-timeout", "10s"], "echo up; exec sleep 1000");
    holder.kill();
    let output = home.output(&["revoke", "a", "--wait", "60s"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].contains(" cannot release /locks/a") && lines.len() == 2, "{text}");
    assert!(lines[1].contains("the session of ") && lines[1].contains(" has ended"), "{text}");
}

/// The first holder obeys and ends while the others are still being asked. Its end is its answer, and no reason why it cannot release.
#[test]
fn a_holder_that_obeys_before_all_are_asked_is_not_said_to_have_ended_before() {
    let (served, home) = served();
    // The records of revokes have their place.
    home.ok(&["admin", "init"]);
    for json in [false, true] {
        let mut holders: Vec<_> = (0..2).map(|_| home.starts("a", &["--shared"], "echo up; exec sleep 1000")).collect();
        let proxy = Proxy::start_blocking(served.address.parse().unwrap());
        let second = proxy.on(OpCode::Multi).nth(2).hold_request();
        let address = proxy.connect_string();
        let args = ["revoke", "a", "--wait", "60s", "--servers", &address];
        let args = [&args[..], if json { &["--json"] } else { &[] }].concat();
        let asker = Running::start(home.command(&args).env_remove("LOCKKEEPER_SERVERS"));
        until("one of two holders has ended", || holders.iter_mut().any(|it| it.child.try_wait().unwrap().is_some()));
        until("the second request is under way", || second.has_caught());
        second.release();
        let output = asker.output();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        if json {
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            for asked in report["asked"].as_array().unwrap() {
                let told = (&asked["process_gone"], &asked["answer"]);
                assert_eq!(told, (&false.into(), &"released".into()), "{report}");
            }
        } else {
            assert!(!text.contains("cannot release") && !text.contains("the session of"), "{text}");
            assert_eq!(text.matches(" has released it").count(), 2, "{text}");
        }
        holders.iter_mut().for_each(|holder| _ = holder.wait());
    }
}

/// T-25: the command chooses the time: it finishes its step, and then the lock is free.
#[test]
fn the_signal_can_be_chosen() {
    let home = Home::new();
    for (signal, number) in [("USR1", 10), ("usr2", 12), ("HUP", 1), ("INT", 2), ("TERM", 15)] {
        let script = format!("trap 'echo told; read end; exit 7' {number}; echo up; while :; do sleep 0.01; done");
        let mut holder = home.starts("a", &["--on-revoke", signal], &script);
        home.ok(&["revoke", "a"]);
        assert_eq!(holder.line(), "told");
        let lock = home.show("a");
        let asked = &lock["holders"][0]["revocation"];
        assert_eq!((&asked["reason"], &asked["refused"]), (&Value::Null, &Value::Null), "{lock}");
        assert!(asked["by"]["pid"].is_u64() && asked["at_ms"].is_u64(), "{lock}");
        for verb in ["show", "why", "list"] {
            names(&home.ok(&[verb, "a"]), &["asked to release by "]);
        }
        holder.close_stdin();
        assert_eq!(holder.wait().code(), Some(7));
        assert_eq!(home.count("a"), (0, 0));
    }
}

/// T-28: nothing is taken by force, and the asker learns that the lock was not released.
#[test]
fn a_command_that_stays_keeps_the_lock() {
    let home = Home::new();
    let mut holder = home.starts("a", &[], "trap 'echo told' TERM; echo up; until [ -e stop ]; do sleep 0.01; done");
    let output = home.output(&["revoke", "a", "--wait", "300ms"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(75), "{text}");
    assert!(text.contains("no answer within 300 ms from "), "{text}");
    assert_eq!(holder.line(), "told");
    assert_eq!(home.count("a"), (1, 0));
    std::fs::write(home.file("stop"), "").unwrap();
    assert!(holder.wait().success());
}

/// Each asker gets the refusal as an answer.
#[test]
fn a_command_that_is_not_to_be_disturbed_refuses() {
    let home = Home::new();
    let mut holder = home.starts("a", &["--on-revoke", "ignore"], "trap 'echo told' TERM; echo up; cat; echo end");
    for reason in ["first", "second"] {
        let output = home.output(&["revoke", "a", "--reason", reason, "--wait", "30s", "--json"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let asked = &report["asked"][0];
        assert_eq!((&report["path"], &asked["answer"]), (&"/locks/a".into(), &"refused".into()), "{report}");
        // The request that this command sent, not the one before it.
        assert_eq!(asked["revocation"]["reason"], reason, "{report}");
        assert!(asked["refusal"].as_str().unwrap().contains("--on-revoke ignore"), "{report}");
        assert_eq!(asked["pid"], holder.pid().as_raw_nonzero().get());
    }
    home.tells_of(&["revoke", "a", "--wait", "30s"], 2, " refuses: ");
    names(&home.ok(&["show", "a"]), &["; refuses: its command ignores requests"]);
    holder.close_stdin();
    assert_eq!(holder.line(), "end");
    names(&holder.ends(0), &[" asks for /locks/a (second): refused\n"]);
}

/// A waiter that is asked withdraws, and prints who asked.
#[test]
fn a_waiter_withdraws() {
    let (home, mut holder) = held("a", &[]);
    let mut waiter = home.waits("a", &[], "touch ran");
    let node = home.show("a")["waiters"][0]["node"].as_str().unwrap().to_owned();
    let output = home.output(&["revoke", "a", "--node", &node, "-r", "not today", "--wait", "30s", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["asked"][0]["node"], &report["asked"][0]["answer"]), (&node.into(), &"released".into()));
    names(&waiter.ends(75), &["the wait for /locks/a was revoked by ", "not today"]);
    assert!(!home.file("ran").exists());
    holder.finish();
}

#[test]
fn a_command_with_several_locks_gets_a_request_for_each() {
    let home = Home::new();
    let script = "trap 'echo told; n=x$n' USR1; echo up; while [ \"$n\" != xx ]; do sleep 0.01; done; exit 5";
    let args = ["run", "b", "c", "--on-revoke", "USR1", "--", "sh", "-c", script];
    let mut both = Running::start(&mut home.command(&args));
    assert_eq!(both.line(), "up");
    for name in ["c", "b"] {
        home.ok(&["revoke", name]);
        assert_eq!(both.line(), "told");
    }
    both.ends(5);
}

#[test]
fn a_lock_without_holders_has_no_contender_to_ask() {
    let home = Home::new();
    // A revoke does not start a server.
    home.failure(&["revoke", "a"], 69);
    assert!(home.server().is_none());
    home.ok(&["run", "b", "--", "true"]);
    let line = home.failure(&["revoke", "a"], 1);
    assert!(line.starts_with("there is no lock at /locks/a (on "), "{line}");
    home.ok(&["run", "a", "--", "true"]);
    let line = home.failure(&["revoke", "a"], 1);
    assert!(line.starts_with("no contender holds /locks/a (on "), "{line}");
    let mut holder = home.starts("a", &[], "echo up; exec sleep 1000");
    home.refuses(&["revoke", "a", "--node", "other"], 1, "node other is not a contender of /locks/a");
    assert_eq!(home.show("a")["holders"][0]["revocation"], Value::Null);
    // A reason that says nothing is none.
    home.ok(&["revoke", "a", "--reason", " "]);
    let text = holder.end().1;
    assert!(text.contains(" asks for /locks/a: SIGTERM sent to the command"), "{text}");
}

/// The later reason replaces the first; the command gets one signal.
#[test]
fn a_second_request_is_told_with_its_own_reason() {
    let home = Home::new();
    let script = "trap 'echo told' TERM; echo up; while [ ! -e done ]; do sleep 0.01; done";
    let mut holder = home.starts("a", &[], script);
    home.ok(&["revoke", "a", "--reason", "first"]);
    assert_eq!(holder.line(), "told");
    home.ok(&["revoke", "a", "--reason", "second"]);
    assert_eq!(home.show("a")["holders"][0]["revocation"]["reason"], "second");
    let mut said = String::new();
    while !said.contains("(second)") {
        use std::io::BufRead;
        assert_ne!(holder.stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    assert!(said.contains("asks for /locks/a (first): SIGTERM sent to the command"), "{said}");
    assert!(said.contains("asks for /locks/a (second): the command got its signal before"), "{said}");
    std::fs::write(home.file("done"), "").unwrap();
    holder.ends(0);
}
