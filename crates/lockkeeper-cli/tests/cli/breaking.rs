//! `break` and `why`: shows the holder that blocks a lock, and takes the lock from it.

use crate::harness::{Home, held, is_alive, names, served, until};
use crate::incidents::foreign::{Foreign, Nodes};

/// N-22, T-10: the holder's command is stopped, the next one runs, and the record keeps the author and the reason.
#[test]
fn case_56_break_stops_the_holder_lets_the_next_in_and_stays_to_be_read() {
    let home = Home::new();
    let mut holder = home.spawn("nightly", &["-m", "nightly index"], "echo $LOCKKEEPER_TOKEN; exec sleep 1000");
    let token: i64 = holder.line().parse().unwrap();
    let mut next = home.waits("nightly", &[], "echo $LOCKKEEPER_TOKEN");

    let text = home.tells(&["break", "nightly", "--reason", "its host burns", "--yes"], 0);
    assert!(!text.contains("it is not told"), "{text}");
    let pid = format!("(pid {})", holder.pid().as_raw_nonzero());
    assert!(text.starts_with("lockkeeper: /locks/nightly was taken from ") && text.contains(&pid), "{text}");
    let text = holder.ends(76);
    assert!(text.contains("the node was deleted by someone else"), "{text}");
    let told = text.lines().find(|line| line.contains("/locks/nightly was broken by "));
    assert!(told.is_some_and(|line| line.ends_with(": its host burns")), "{text}");
    assert!(next.line().parse::<i64>().unwrap() > token);
    assert!(next.wait().success());

    let text = home.ok(&["list", "--broken"]);
    assert!(
        text.contains("  /locks/nightly  ") && text.contains(&pid) && text.ends_with(": its host burns\n"),
        "{text}"
    );
    let listed = home.json(&["list", "nightly", "--broken", "--json"]);
    let broken = &listed["broken"][0];
    assert_eq!(
        (listed["broken"].as_array().unwrap().len(), &broken["token"], &broken["held"]),
        (1, &token.into(), &true.into())
    );
    assert_eq!((&broken["message"], &broken["reason"]), (&"nightly index".into(), &"its host burns".into()));
    for field in ["user", "host"] {
        assert!(broken["by"][field].as_str().is_some_and(|text| !text.is_empty()), "{broken}");
    }
    assert!(broken["at"].as_str().unwrap().starts_with("20") && broken["at_ms"].as_i64().unwrap() > 1_600_000_000_000);
    let text = home.ok(&["why", "nightly"]);
    assert!(text.starts_with("/locks/nightly is free") && text.contains("its host burns"), "{text}");
    let output = home.output(&["list", "other", "--broken"]);
    assert!(output.status.success() && output.stdout.is_empty());
}

#[test]
fn a_broken_holder_reads_who_broke_it_while_its_command_still_runs() {
    let home = Home::new();
    let script = "trap '' TERM; echo $$; cat; while :; do sleep 0.01; done";
    let mut holder = home.spawn("a", &["--session-timeout", "60s", "--grace", "12s"], script);
    let command = holder.pid_line();
    home.ok(&["break", "a", "--reason", "its host burns", "--yes"]);
    let line = holder.told_of("/locks/a was broken by ");
    assert!(line.ends_with(": its host burns\n") && is_alive(command), "{line}");
    rustix::process::kill_process_group(command, rustix::process::Signal::KILL).unwrap();
    let (code, text) = holder.end();
    assert!(code == Some(76) && !text.contains("was broken by"), "told twice: {text}");
}

/// Removes a waiter by the node that `show` prints; its command ends with 75.
#[test]
fn break_removes_the_one_that_was_named() {
    let (home, mut holder) = held("a", &[]);
    let mut waiter = home.waits("a", &[], "touch ran");
    let node = home.show("a")["waiters"][0]["node"].as_str().unwrap().to_owned();
    let broken = home.json(&["break", "a", "--node", &node, "-r", "in the way", "-y", "--json"]);
    assert_eq!((&broken["node"], &broken["held"]), (&node.clone().into(), &false.into()));
    names(&waiter.ends(75), &["the wait for /locks/a was broken by ", ": in the way (on "]);
    assert_eq!(home.count("a"), (1, 0));
    assert!(!home.file("ran").exists());
    home.refuses(&["break", "a", "--node", &node, "-r", "again", "-y"], 1, "is not a contender of /locks/a (on ");
    holder.finish();
}

/// Nothing is broken by mistake: without a reason, without a confirmation, or without a contender.
#[test]
fn break_refuses_mistakes() {
    let home = Home::new();
    home.failure(&["break", "a", "-r", "x", "-y"], 69);
    home.ok(&["run", "b", "--", "true"]);
    let line = home.failure(&["break", "a", "-r", "x", "-y"], 1);
    assert!(line.starts_with("there is no lock at /locks/a (on "), "{line}");
    let mut holder = home.holds("a", &[]);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["break", "a"], 64, "required arguments were not provided: --reason"),
        (&["break", "a", "-r", " ", "-y"], 64, "an intervention on /locks/a needs a reason"),
        (&["break", "a", "-r", "x"], 64, "there is no terminal to ask on"),
        (&["break", "a//b", "-r", "x", "-y"], 64, "empty component"),
        (&["break", "c", "-r", "x", "-y"], 1, "there is no lock at /locks/c"),
        (&["break", "a", "--node", "config", "-r", "x", "-y"], 1, "config is not a contender of /locks/a"),
    ];
    for (args, expected, say) in cases {
        home.refuses(args, expected, say);
    }
    assert_eq!(home.count("a"), (1, 0));
    holder.finish();
    let line = home.failure(&["break", "a", "-r", "x", "-y"], 1);
    assert!(line.starts_with("no contender holds /locks/a"), "{line}");
    assert!(home.output(&["list", "--broken"]).stdout.is_empty());
}

/// N-22, T-10: prints the holder, since when, the contenders ahead, and what to do.
#[test]
fn case_55_why_names_the_holder_and_the_possible_actions() {
    let (home, mut holder) = held("nightly", &["-m", "nightly index"]);
    let mut waiters = Vec::new();
    for at in 1..=11 {
        waiters.push(home.spawn("nightly", &["-m", &format!("number {at}.")], "true"));
        until("it waits", || home.count("nightly") == (1, at));
    }
    let text = home.ok(&["why", "nightly"]);
    let pid = holder.pid().as_raw_nonzero();
    for say in [
        "/locks/nightly is held by ",
        &format!("(pid {pid})"),
        " (nightly index)",
        "which runs sh\n",
        "11 waiting; a new contender has 12 ahead",
        "\n  10. ",
        "(number 10.)",
        "and 1 more: lockkeeper show nightly",
        "lockkeeper break nightly --reason",
    ] {
        assert!(text.contains(say), "{say:?} is missing in {text}");
    }
    assert!(!text.contains("number 11."), "{text}");
    let told = home.json(&["why", "nightly", "--json"]);
    assert_eq!((&told["lock"]["holders"][0]["pid"], &told["broken"]), (&pid.get().into(), &serde_json::json!([])));
    holder.close_stdin();
    for waiter in &mut waiters {
        waiter.ends(0);
    }
    assert!(holder.wait().success());
    let text = home.ok(&["why", "nightly"]);
    let lines: Vec<_> = text.lines().collect();
    let [free, last] = lines[..] else { panic!("{text}") };
    assert!(free.starts_with("/locks/nightly is free: nobody holds it or waits on ") && !free.contains(';'), "{text}");
    assert!(last.starts_with("last held by ") && last.ends_with(", released"), "{text}");
    // The servers delete the node of a lock that nobody uses, so such a lock looks like one that was never used.
    let text = home.ok(&["why", "other"]);
    assert!(text.starts_with("/locks/other is free: nobody holds it or waits on "), "{text}");
    assert!(text.ends_with("; it has no node there, because it was not used for a while, or never\n"), "{text}");
    let told = home.json(&["why", "other", "--json"]);
    assert_eq!((&told["lock"]["path"], &told["lock"]["holders"]), (&"/locks/other".into(), &serde_json::json!([])));
}

/// Nothing tells it that its node, or one in its way, was removed. The incidents have the node without a session.
#[test]
fn a_foreign_client_behind_a_node_without_a_session_is_named_to_a_waiter_and_is_not_told_of_a_break() {
    let (served, home) = served();
    let mut foreign = Nodes::connect(&served.address, "kazoo");
    let without = foreign.leave_behind("a");
    foreign.join("a");
    let mut waiter = home.spawn("a", &["--format", "kazoo"], "echo in");
    names(&waiter.told(), &["waiting for /locks/a: ", &without, "nobody holds it: 10.0.3.7, writing, queued since "]);
    home.ok(&["break", "a", "--node", &without, "--reason", "left by a script", "--yes"]);
    let told = home.tells(&["break", "a", "--reason", "it hangs", "--yes"], 0);
    names(&told, &["it is not told, its session goes on, and it may work on"]);
    waiter.ends_after("in");
}
