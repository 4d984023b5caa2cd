//! `list`, `show` and `serve` as people and programs read them.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::{BINARY, Home, Running, check_shape, failure, held, names, refused, served, until};
use crate::incidents::foreign::{Foreign, Nodes};
use crate::plain::Plain;

/// docs/commands/lock.schema.json. The harness checks each answer of `show` in the other tests.
#[test]
fn every_answer_about_a_lock_has_the_shape_of_the_schema() {
    let home = Home::new();
    let kinds = [
        ("plain", &["-m", "x"][..], &[][..]),
        ("classes", &["--background"], &["--foreground"]),
        ("permits", &["--permits", "2", "--take", "2"], &["--permits", "2"]),
        ("leased", &["--lease", "1h"], &["--lease", "1h", "--wait", "1h"]),
    ];
    let running: Vec<_> = kinds
        .iter()
        .map(|(name, holds, waits)| {
            let holder = home.starts(name, holds, "echo up; exec cat");
            let waiter = home.spawn(name, waits, "true");
            until("it waits", || *name == "leased" || home.count(name) == (1, 1));
            (holder, waiter)
        })
        .collect();
    let answer = |args: &[&str]| -> serde_json::Value { home.json(args) };
    let listed = answer(&["list", "--json"]);
    let listed = listed["locks"].as_array().unwrap();
    assert_eq!(listed.len(), kinds.len());
    listed.iter().for_each(check_shape);
    for (name, ..) in kinds {
        check_shape(&answer(&["show", name, "--json"]));
        check_shape(&answer(&["why", name, "--json"])["lock"]);
    }
    check_shape(&answer(&["why", "unused", "--json"])["lock"]);
    drop(running);
}

#[test]
fn case_55_case_56_show_names_who_holds_and_who_waits() {
    let home = Home::new();
    let mut holder = home.spawn("nightly", &["-m", "nightly index"], "echo $LOCKKEEPER_TOKEN; cat");
    let token = holder.line();
    let mut waiter = home.waits("nightly", &["-m", "me too"], "true");
    let lock = home.show("nightly");
    assert_eq!(lock["path"], "/locks/nightly");
    let first = &lock["holders"][0];
    assert_eq!(first["pid"], holder.pid().as_raw_nonzero().get());
    assert_eq!(first["message"], "nightly index");
    assert_eq!(first["token"].to_string(), token);
    assert_eq!(first["program"], "sh");
    assert!(first["session"].as_str().unwrap().starts_with("0x"), "{first}");
    for field in ["user", "host", "since", "node"] {
        assert!(first[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {first}");
    }
    let since = first["since_ms"].as_u64().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(now - since < 600_000, "{since}");
    assert_eq!(lock["waiters"][0]["pid"], waiter.pid().as_raw_nonzero().get());
    assert_eq!(lock["waiters"][0]["message"], "me too");
    // The same for people.
    let text = home.ok(&["show", "nightly"]);
    for say in [format!("(pid {})", holder.pid().as_raw_nonzero()), "nightly index".into(), "waits 1.".into(), token] {
        assert!(text.contains(&say), "{say:?} is missing in {text}");
    }
    let text = home.ok(&["list"]);
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["LOCK", "HOLDER", "HELD", "USUAL", "WAITING", "OLDEST", "/H", "STATE"]);
    let who = format!("{}@{}", first["user"].as_str().unwrap(), first["host"].as_str().unwrap());
    assert_eq!((lines[1][0], lines[1][1], lines[1][4], lines[1][6]), ("nightly", &*who, "1", "2"), "{text}");
    assert!(text.ends_with("(nightly index)\n"), "{text}");
    holder.close_stdin();
    assert!(holder.wait().success() && waiter.wait().success());
}

/// A person who looks reads since when the lock is held, and not since when its holder waited for it.
#[test]
fn a_holder_that_waited_is_shown_since_its_grant_and_a_foreign_client_since_it_queued() {
    let (served, home) = served();
    let mut first = home.holds("nightly", &[]);
    let mut second = home.waits("nightly", &[], "echo up; cat");
    let lock = home.show("nightly");
    let (held, waits) = (&lock["holders"][0], &lock["waiters"][0]);
    // Nobody has left the queue since the second came.
    assert_eq!([&held["granted_after_ms"], &held["granted_before_ms"]], [&held["since_ms"], &waits["since_ms"]]);
    assert!(waits["granted"].is_null() && waits["granted_ms"].is_null(), "{waits}");
    let queued = waits["since_ms"].as_u64().unwrap();
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    until("it has waited for more than a second", || now() - queued > 1_500);
    first.finish();
    assert_eq!(second.line(), "up");
    until("its record says when it was granted the lock", || {
        let held = &home.show("nightly")["holders"][0];
        held["since_ms"].as_u64() == Some(queued) && held["granted_ms"].as_u64() > Some(queued + 1_000)
    });
    let [mut foreign, mut second_foreign] = ["curator"; 2].map(|format| Nodes::connect(&served.address, format));
    foreign.join("foreign");
    second_foreign.join("foreign");
    let text = |args: &[&str]| home.ok(args);
    for (args, says) in [
        (&["show", "nightly"][..], ") since "),
        (&["why", "nightly"], "s ago, queued since "),
        (&["run", "nightly", "--try", "--", "true"], ""),
    ] {
        let text = match args[0] {
            "run" => failure(&home.output(args)).1,
            _ => text(args),
        };
        names(&text, &[says, " since ", ", queued since "]);
    }
    // The second was granted the lock after the first has left.
    foreign.leave();
    for verb in ["show", "why"] {
        let text = text(&[verb, "foreign"]);
        assert!(text.contains("held by 10.0.3.7, queued since "), "{text}");
    }
    let row = text(&["list", "foreign"]);
    let row: Vec<_> = row.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..2], ["foreign", "10.0.3.7"]);
    assert!(row[2].starts_with('<'), "nobody knows since when it holds the lock: {row:?}");
    let second_holds = &home.show("foreign")["holders"][0];
    assert!(second_holds["granted_ms"].is_null() && second_holds["granted_after_ms"] == second_holds["since_ms"]);
    second.finish();
}

/// Everyone who reaches the servers can read the nodes, and a password may be among the arguments.
#[test]
fn arguments_are_not_published_unasked() {
    let (served, home) = served();
    let start = |args: &[&str]| {
        let command = ["--", "sh", "-c", "trap '' TERM; echo up; cat", "--password=hunter2"];
        let mut holder = Running::start(&mut home.command(&[&["run"], args, &command].concat()));
        assert_eq!(holder.line(), "up");
        holder
    };
    let mut holders: Vec<_> = [
        &["plain"][..],
        &["shared", "--shared"],
        &["permits", "--permits", "2"],
        &["class", "--background"],
        &["lease", "--lease", "10m", "--stats", "--cleanup", "10m"],
        &["several", "of-them"],
    ]
    .iter()
    .map(|args| start(args))
    .collect();
    // A waiter, and a requestor that asks operators: the nodes of both contain everything known about the holder.
    let waiter = home.spawn("plain", &[], "true # hunter2");
    let asking = ["--lease", "10m", "--priority", "5", "--waiting", "100ms", "--ask", "10m"];
    let asker = home.spawn("lease", &asking, "true # hunter2");
    until("it waits", || home.count("plain") == (1, 1));
    until("operators are asked", || !home.output(&["requests"]).stdout.is_empty());
    home.ok(&["break", "shared", "-r", "in the way", "-y"]);
    let stored = || {
        let tree = Plain::connect(&served.address).tree();
        tree.into_iter().map(|(path, data)| format!("{path} {data}\n")).collect::<String>()
    };
    let text = stored();
    names(&text, &["/locks/plain/", "in the way"]);
    assert!(text.contains("\"sh\"") && !text.contains("hunter2"), "{text}");
    holders.push(start(&["asked", "--publish-command"]));
    let text = stored();
    assert_eq!(text.matches("hunter2").count(), 1, "{text}");
    assert_eq!(home.show("asked")["holders"][0]["program"], "sh -c trap '' TERM; echo up; cat --password=hunter2");
    drop((waiter, asker));
    holders.iter_mut().for_each(Running::close_stdin);
}

#[test]
fn a_free_lock_is_shown_and_an_unknown_one_is_a_failure() {
    let home = Home::new();
    home.ok(&["run", "a", "--", "true"]);
    let output = home.output(&["show", "a"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"/locks/a\n  free\n".as_slice()));
    let line = home.failure(&["show", "b"], 1);
    assert!(line.starts_with("there is no lock at /locks/b (on "), "{line}");
    let output = home.output(&["list"]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8(output.stderr).unwrap().contains("has a holder or a waiter"));
    let listed = home.json(&["list", "--json"]);
    assert_eq!(listed["locks"], serde_json::json!([]));
}

/// The node of a killed process stands until its session ends; nobody should look for that process.
#[test]
fn a_contender_whose_process_is_gone_is_shown_as_gone() {
    let (home, mut holder) = held("a", &["--session-timeout", "40s"]);
    let mut waiter = home.waits("a", &["--session-timeout", "40s"], "true");
    let gone = || {
        let lock = home.show("a");
        let text = |verb| {
            let text = home.ok(&[verb, "a"]);
            text.matches("no longer on this machine").count()
        };
        let json = ["holders", "waiters"].map(|of| lock[of][0]["process_gone"].as_bool().unwrap());
        (json, text("show"), text("why"))
    };
    assert_eq!(gone(), ([false, false], 0, 0));
    waiter.kill();
    assert_eq!(gone(), ([false, true], 1, 1));
    holder.kill();
    assert_eq!(gone(), ([true, true], 2, 2));
}

/// A container may have the name of its host. The number of a process in it says nothing outside.
#[test]
fn a_holder_in_another_namespace_of_processes_is_not_said_to_be_gone() {
    let home = Home::new();
    home.ok(&["run", "a", "--", "true"]);
    let free = (2..).find(|pid| !Path::new(&format!("/proc/{pid}")).exists()).unwrap();
    // Numbers are given in order.
    let shell = format!("i=2; while [ $i -lt {free} ]; do true & wait; i=$((i+1)); done; \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--", "sh", "-c", &shell, "sh"]);
    command.args([BINARY, "run", "a", "--", "sh", "-c", "echo up; cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    home.prepare(&mut command);
    let mut holder = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        let mut why = String::new();
        holder.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        holder.wait().unwrap();
        assert!(why.contains("unshare"), "{why}");
        eprintln!("NOT TESTED: a holder in another namespace of processes, which only root may make: {why}");
        return;
    }
    let lock = home.show("a");
    let held = &lock["holders"][0];
    assert_eq!(held["pid"], free, "outside, no process has its number: {lock}");
    assert_eq!(held["process_gone"], false, "{lock}");
    for verb in ["show", "why"] {
        let text = home.ok(&[verb, "a"]);
        assert!(!text.contains("no longer on this machine"), "{text}");
    }
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
}

#[test]
fn text_of_others_is_shown_without_its_control_characters() {
    let (home, mut holder) = held("a", &["-m", "evil\x1b]0;title\x07\u{9b}2J\u{202e}"]);
    for args in [["show", "a"].as_slice(), &["list"], &["show", "a", "--json"], &["list", "--json"]] {
        let text = home.ok(args);
        let active = text.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(active, None, "{text:?}");
        assert!(text.contains("evil"), "{text:?}");
    }
    let (_, line) = failure(&home.output(&["run", "a", "--try", "--", "true"]));
    assert!(!line.contains('\x1b') && line.contains("evil"), "{line:?}");
    holder.finish();
}

#[test]
fn serve_says_where_and_what_it_is_and_stops_cleanly() {
    for signal in [Signal::INT, Signal::TERM] {
        let machine = Home::new();
        let data = machine.file("data");
        let args = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
        let mut serving = Running::start(&mut machine.command(&args));
        let home = Home::with_servers(&serving.line());
        home.ok(&["run", "a", "--", "true"]);
        serving.signal(signal);
        names(&serving.ends(0), &["not an ensemble", data.to_str().unwrap()]);
    }
}

/// If a user types `/ap` for `/app`, the locks there exclude no other client.
#[test]
fn a_chroot_is_part_of_the_connect_string_and_refused_where_it_does_not_exist() {
    let (served, root) = served();
    let home = Home::with_servers(&format!("{}/team/app", served.address));
    for question in [&["run", "a", "--", "touch", "ran"][..], &["list"], &["show", "a"], &["why", "a"]] {
        let output = home.output(question);
        refused(&output, 64, &format!("the chroot /team/app does not exist on {}", served.address));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--create-chroot"), "{output:?}");
    }
    assert!(!home.file("ran").exists());
    assert_eq!(root.count("/team/app/locks/a"), (0, 0));
    // A command that only reads creates nothing, even with this option.
    home.ok(&["list", "--create-chroot"]);
    home.failure(&["list"], 64);

    home.ok(&["run", "a", "--create-chroot", "--", "true"]);
    home.ok(&["run", "a", "--", "true"]);
    home.ok(&["list"]);
    root.ok(&["show", "/team/app/locks/a"]);
}

#[test]
fn a_trace_is_shown_only_if_it_was_asked_for() {
    const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let home = Home::new();
    let start = |name: &str, options: &[&str], traceparent: &str| {
        let mut command =
            home.command(&[&["run", name], options, &["--", "sh", "-c", "echo $TRACEPARENT; cat"]].concat());
        Running::start(command.env("TRACEPARENT", traceparent).stderr(Stdio::piped()))
    };
    let why = |name: &str| home.ok(&["why", name]);
    let shown = |name: &str| home.show(name)["holders"][0]["traceparent"].clone();
    let bad = "00-1-2-03";
    let cases = [
        ("traced", &["--trace"][..], TRACEPARENT, Some(TRACEPARENT), ""),
        ("silent", &[], TRACEPARENT, None, ""),
        ("job", &["--trace", "--once-per", "day"], TRACEPARENT, Some(TRACEPARENT), ""),
        ("bad", &["--trace"], bad, None, "--trace has no effect: TRACEPARENT is \"00-1-2-03\", not a traceparent"),
    ];
    for (name, options, given, written, said) in cases {
        let mut holder = start(name, options, given);
        assert_eq!(holder.line(), given, "{name}: the command gets it unchanged");
        assert_eq!(shown(name).as_str(), written, "{name}");
        let line = "  in trace 4bf92f3577b34da6a3ce929d0e0e4736, span 00f067aa0ba902b7\n";
        assert_eq!(why(name).contains(line), written.is_some(), "{name}: {}", why(name));
        let output = {
            holder.close_stdin();
            holder.output()
        };
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && errors.contains(said), "{name}: {errors}");
        assert_eq!(errors.contains("trace"), !said.is_empty(), "{name}: {errors}");
    }
}
