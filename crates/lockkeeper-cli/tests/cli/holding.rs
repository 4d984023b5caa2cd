//! `lockkeeper hold`: a lock for the program that starts it, by the hold protocol. Each line is checked against the protocol's schema.

use std::io::Write;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::harness::{Home, Running, Schema, failure, is_alive, until};

/// A child that holds a lock.
struct Holder(Running);

impl Holder {
    fn start(home: &Home, args: &[&str]) -> Self {
        let mut holder = Holder(Running::start(&mut home.command(&[&["hold"], args].concat())));
        assert_eq!(holder.next()["protocol"], 1);
        holder
    }

    /// Starts one that gets its lock at once.
    fn held(home: &Home, args: &[&str]) -> (Self, Value) {
        let mut holder = Holder::start(home, args);
        let acquired = holder.next();
        assert_eq!(acquired["event"], "acquired", "{acquired}");
        (holder, acquired)
    }

    /// Returns the next event.
    fn next(&mut self) -> Value {
        thread_local! {
            static SCHEMA: Schema = Schema::new(include_str!("../../../../docs/hold-protocol.schema.json"));
        }
        let line = self.0.line();
        let event = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        SCHEMA.with(|schema| schema.check(&event));
        event
    }

    /// Returns the next event of this kind. Only heartbeats may come before it.
    fn expect(&mut self, event: &str) -> Value {
        loop {
            let next = self.next();
            if next["event"] == event {
                return next;
            }
            assert!(["valid", "suspected"].contains(&next["event"].as_str().unwrap()), "{next} before {event}");
        }
    }

    fn say(&mut self, word: &str) {
        writeln!(self.0.child.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    /// Ends the hold, and returns its last event and the exit status.
    fn released(mut self) {
        self.say(r#"{"do": "release"}"#);
        assert_eq!(self.expect("released"), json!({"event": "released"}));
        assert_eq!(self.0.wait().code(), Some(0));
    }

    fn pid(&self) -> Pid {
        self.0.pid()
    }
}

fn token(acquired: &Value) -> u64 {
    acquired["token"].as_str().unwrap().parse().unwrap()
}

fn boottime() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

fn valid_until(event: &Value) -> u64 {
    event["valid_until_ns"].as_u64().unwrap()
}

#[test]
fn a_program_learns_its_token_and_until_when_it_may_trust_and_releases() {
    let home = Home::new();
    let (mut holder, acquired) =
        Holder::held(&home, &["a", "--session-timeout", "2s", "--message", "migration", "--json"]);
    let (now, first) = (boottime(), valid_until(&acquired));
    assert!(first > now && first < now + 2_000_000_000, "{first} at {now}");
    let shown = home.show("a");
    assert_eq!(
        (&shown["holders"][0]["message"], &shown["holders"][0]["token"]),
        (&json!("migration"), &json!(token(&acquired)))
    );
    assert_eq!(acquired["node"], shown["holders"][0]["node"]);
    let valid = holder.expect("valid");
    assert!(valid_until(&valid) > first);
    holder.say(r#"{"do": "check"}"#);
    assert!(valid_until(&holder.expect("checked")) > valid_until(&valid));
    let mut other = Holder::start(&home, &["a", "--try"]);
    let failed = other.next();
    assert!(failed["event"] == "failed" && failed["why"] == "taken" && failed["exit_code"] == 75, "{failed}");
    assert!(failed["message"].as_str().unwrap().contains("(migration)"), "{failed}");
    holder.released();
    // A program puts the name behind the options, whatever it begins with.
    let (holder, later) = Holder::held(&home, &["--wait", "1m", "--", "a"]);
    assert!(token(&later) > token(&acquired));
    holder.released();
}

#[test]
fn a_wait_is_told_and_ends_with_the_grant_the_limit_or_the_programs_word() {
    let home = Home::new();
    let (first, _) = Holder::held(&home, &["a"]);
    let mut waiting = Holder::start(&home, &["a"]);
    let told = waiting.next();
    assert!(told["event"] == "waiting" && told["ahead"] == 1 && told["path"] == "/locks/a", "{told}");
    assert!(told["holder"].as_str().unwrap().contains(&format!("(pid {})", first.pid().as_raw_nonzero())), "{told}");
    // Nothing is held yet.
    waiting.say(r#"{"do": "check"}"#);
    assert!(waiting.expect("error")["message"].as_str().unwrap().contains("is not held"));
    let mut late = Holder::start(&home, &["a", "--wait", "300ms"]);
    while late.next()["event"] != "failed" {}
    assert_eq!(late.0.wait().code(), Some(75));
    let mut gives_up = Holder::start(&home, &["a"]);
    gives_up.expect("waiting");
    gives_up.say(r#"{"do": "release"}"#);
    gives_up.expect("released");
    until("it has left the queue", || home.count("a") == (1, 1));
    first.released();
    waiting.expect("acquired");
    waiting.released();
    until("nobody holds it", || home.count("a") == (0, 0));
}

/// The program that has started the holder is killed, while a process that it has forked keeps the pipe open.
#[test]
fn the_lock_is_free_when_the_input_ends_or_the_program_is_killed() {
    let home = Home::new();
    let (mut holder, _) = Holder::held(&home, &["a"]);
    holder.0.close_stdin();
    holder.expect("released");
    assert_eq!(holder.0.wait().code(), Some(0));
    let script = format!("sleep 100 <&0 & echo $!; {} hold a", crate::harness::BINARY);
    let mut shell = std::process::Command::new("sh");
    home.prepare(&mut shell);
    let mut program = Running::start(shell.args(["-c", &format!("{script}; true")]));
    let forked = program.pid_line();
    until("it holds the lock", || home.count("a") == (1, 0));
    program.child.kill().unwrap();
    until("the lock is free", || home.count("a") == (0, 0));
    assert!(is_alive(forked));
    kill_process(forked, Signal::KILL).unwrap();
}

#[test]
fn every_kind_of_run_is_a_kind_of_hold() {
    let home = Home::new();
    for (kind, others) in
        [(&["--shared"][..], 2), (&["--permits", "2"], 2), (&["--foreground"], 1), (&["--lease", "10s"], 1)]
    {
        let name = format!("k{}", kind[0]);
        let args = [&[name.as_str(), "--try"], kind].concat();
        let holders: Vec<_> = (0..others).map(|_| Holder::held(&home, &args)).collect();
        assert!(
            holders.iter().all(|(_, acquired)| acquired["token"].is_null() == (kind[0] == "--permits")),
            "{kind:?}"
        );
        holders.into_iter().for_each(|(holder, _)| holder.released());
    }
    let (holder, acquired) = Holder::held(&home, &["b", "a"]);
    let locks = acquired["locks"].as_array().unwrap();
    assert_eq!([&locks[0]["path"], &locks[1]["path"]], [&json!("/locks/a"), &json!("/locks/b")]);
    assert!(acquired["token"].is_null() && locks.iter().all(|lock| lock["token"].is_string()), "{acquired}");
    holder.released();
}

#[test]
fn a_program_of_the_background_makes_way_and_holds_again() {
    let home = Home::new();
    let (mut bulk, first) = Holder::held(&home, &["a", "--background", "--yield", "--min-hold", "50ms"]);
    let mut urgent = Holder::start(&home, &["a", "--foreground"]);
    bulk.expect("wanted");
    bulk.say(r#"{"do": "make_way"}"#);
    let between = loop {
        let event = urgent.next();
        if event["event"] == "acquired" {
            break event;
        }
    };
    bulk.expect("waiting");
    urgent.released();
    let again = bulk.expect("acquired");
    assert!(token(&first) < token(&between) && token(&between) < token(&again));
    bulk.released();
}

#[test]
fn a_request_reaches_the_program_and_its_refusal_reaches_who_asked() {
    let home = Home::new();
    let (mut holder, _) = Holder::held(&home, &["a"]);
    let revoke = Running::start(&mut home.command(&["revoke", "a", "--reason", "deploy", "--wait", "1m"]));
    let asked = holder.expect("asked");
    assert!(asked["path"] == "/locks/a" && asked["why"] == "deploy", "{asked}");
    assert!(asked["by"].as_str().unwrap().contains(&format!("(pid {})", revoke.pid().as_raw_nonzero())), "{asked}");
    holder.say(r#"{"do": "refuse", "why": "until five"}"#);
    let refused = revoke.output();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("until five"));
    holder.released();
}

/// Whatever a line contains, it costs an answer, and the hold goes on.
#[test]
fn a_bad_line_is_answered_with_its_text_and_the_remedy_and_releases_nothing() {
    let home = Home::new();
    let (mut holder, _) = Holder::held(&home, &["a"]);
    let long = "x".repeat(64 * 1024 + 1);
    for (line, named) in [
        ("release", "\"release\""),
        (r#"{"do": "relaese"}"#, "relaese"),
        (r#"{"do": 7}"#, "7"),
        (r#"{"release": true}"#, "do"),
        (r#"{"do": "refuse"}"#, "why"),
        (r#"{"do": "refuse", "why": 7}"#, "7"),
        (r#"{"do": "refuse", "why": "x"}"#, "nobody asks"),
        ("", "\"\""),
        (&long, "65536"),
    ] {
        holder.say(line);
        let error = holder.expect("error");
        assert!(error["message"].as_str().unwrap().contains(named), "{error}");
        assert!(!error["hint"].as_str().unwrap().is_empty());
    }
    holder.0.child.stdin.as_mut().unwrap().write_all(b"\xff\xfe\n").unwrap();
    holder.expect("error");
    assert_eq!(home.count("a"), (1, 0));
    holder.released();
}

#[test]
fn a_wrong_request_is_an_event_and_an_exit_status_and_holds_nothing() {
    let home = Home::new();
    let ended = home.output(&["run", "gone", "--", "sh", "-c", "echo $$"]);
    let ended = String::from_utf8(ended.stdout).unwrap();
    let rows: &[(&[&str], i32, &str)] = &[
        (&["a//b"], 64, "extra '/'"),
        (&["a", "a"], 64, "/locks/a"),
        (&["a", "--yield"], 64, "--background"),
        (&["a", "--end-with", ended.trim()], 64, ended.trim()),
        (&["a", "--end-with", "1"], 64, "--end-with 1"),
        (&["a", "--servers", "127.0.0.1:1", "--wait", "100ms"], 69, "127.0.0.1:1"),
    ];
    for (args, code, named) in rows {
        let mut holder = Holder::start(&home, args);
        let failed = holder.next();
        assert!(failed["event"] == "failed" && failed["exit_code"] == *code, "{args:?}: {failed}");
        assert!(failed.to_string().contains(named), "{args:?}: {failed}");
        assert_eq!(holder.0.wait().code(), Some(*code), "{args:?}");
    }
    let (code, line) = failure(&home.output(&["hold", "a", "--", "b"]));
    assert!(code == Some(64) && line.contains("hold runs no command"), "{line}");
    let (code, line) = failure(&home.output(&["hold"]));
    assert!(code == Some(64) && line.contains("name of the lock is missing"), "{line}");
    let (code, line) = failure(&home.output(&["hold", "a", "--wait", "soon"]));
    assert!(code == Some(64) && line.contains("soon"), "{line}");
    assert_eq!(home.count("a"), (0, 0));
}

#[test]
fn a_broken_lock_is_said_to_be_lost_at_once() {
    let home = Home::new();
    let (mut holder, _) = Holder::held(&home, &["a"]);
    assert!(home.output(&["break", "a", "--reason", "it hangs", "--yes"]).status.success());
    assert_eq!(holder.expect("lost")["why"], "removed");
    assert_eq!(holder.0.wait().code(), Some(76));
}

/// While the holder is stopped, the program reads nothing: the time that it knows has passed before another contender holds the lock.
#[test]
fn a_stopped_holder_is_past_its_last_word_when_the_next_one_holds() {
    let home = Home::new();
    let (mut holder, _) = Holder::held(&home, &["a", "--session-timeout", "2s"]);
    holder.expect("valid");
    holder.0.signal(Signal::STOP);
    let mut next = Holder::start(&home, &["a", "--session-timeout", "2s"]);
    while next.next()["event"] != "acquired" {}
    // The grant came before the event.
    let granted = boottime();
    holder.0.signal(Signal::CONT);
    let mut last = 0;
    let lost = loop {
        let event = holder.next();
        match event["event"].as_str().unwrap() {
            "lost" => break event,
            "valid" => last = valid_until(&event),
            _ => {}
        }
    };
    assert!(last < granted, "trusted until {last}, and the next one held at {granted}");
    assert_eq!(holder.0.wait().code(), Some(76), "{lost}");
    next.released();
}

/// A keyboard's Ctrl-C is meant for the program; its end is the holder's.
#[test]
fn an_interrupt_is_the_programs_own_and_a_termination_releases() {
    let home = Home::new();
    let (mut holder, _) = Holder::held(&home, &["a", "--session-timeout", "2s"]);
    holder.0.signal(Signal::INT);
    holder.expect("valid");
    holder.expect("valid");
    holder.0.signal(Signal::TERM);
    holder.expect("released");
    assert_eq!(holder.0.wait().code(), Some(0));
    assert_eq!(home.count("a"), (0, 0));
}

/// A group of processes, killed with the test.
struct Victims(Running);

impl Victims {
    /// Starts a shell with a child, in a group of their own. Neither heeds SIGTERM.
    fn start(home: &Home) -> (Self, [Pid; 2]) {
        use std::os::unix::process::CommandExt;
        let mut shell = std::process::Command::new("sh");
        home.prepare(&mut shell);
        let script = "trap '' TERM; echo $$; sleep 1000 & echo $!; wait; wait";
        shell.args(["-c", script]).stdin(Stdio::null()).process_group(0);
        let mut running = Running::start(&mut shell);
        let pids = [running.pid_line(), running.pid_line()];
        (Victims(running), pids)
    }
}

impl Drop for Victims {
    fn drop(&mut self) {
        _ = kill_process_group(self.0.pid(), Signal::KILL);
    }
}

/// Case by case: what happens to the holder, and whether the group of the process ends with it. It heeds no SIGTERM.
#[test]
fn a_group_that_ends_with_the_hold_is_gone_before_the_next_holder() {
    let home = Home::new();
    type End = fn(&Home, &mut Holder);
    let ends: [(&str, End, bool); 6] = [
        (
            "its lock is broken",
            |home, _| assert!(home.output(&["break", "a", "--reason", "x", "--yes"]).status.success()),
            true,
        ),
        ("it is killed", |_, holder| holder.0.child.kill().unwrap(), true),
        ("it is stopped", |_, holder| holder.0.signal(Signal::STOP), true),
        ("its input ends", |_, holder| holder.0.close_stdin(), true),
        ("it gets SIGTERM", |_, holder| holder.0.signal(Signal::TERM), true),
        ("it is released", |_, holder| holder.say(r#"{"do": "release"}"#), false),
    ];
    for (what, end, ends_group) in ends {
        let (victims, pids) = Victims::start(&home);
        let pid = victims.0.pid().as_raw_nonzero().to_string();
        let (mut holder, _) =
            Holder::held(&home, &["a", "--session-timeout", "2s", "--grace", "200ms", "--end-with", &pid]);
        let mut next = Holder::start(&home, &["a", "--session-timeout", "2s"]);
        end(&home, &mut holder);
        while next.next()["event"] != "acquired" {}
        // A broken lock is free at once; its group has the grace period.
        if what != "its lock is broken" {
            assert_eq!(pids.map(is_alive), [!ends_group; 2], "{what}");
        }
        until("the group is as it should be", || pids.map(is_alive) == [!ends_group; 2]);
        _ = kill_process(holder.pid(), Signal::CONT);
        next.released();
    }
}

#[test]
fn a_group_outlives_the_wait_of_a_program_that_makes_way_and_ends_with_the_next_hold() {
    let home = Home::new();
    let (victims, pids) = Victims::start(&home);
    let pid = victims.0.pid().as_raw_nonzero().to_string();
    let ends = ["--session-timeout", "2s", "--grace", "200ms", "--end-with", &pid];
    let (mut bulk, _) =
        Holder::held(&home, &[&["a", "--background", "--yield", "--min-hold", "50ms"], &ends[..]].concat());
    let mut urgent = Holder::start(&home, &["a", "--foreground"]);
    bulk.expect("wanted");
    bulk.say(r#"{"do": "make_way"}"#);
    while urgent.next()["event"] != "acquired" {}
    let over = boottime() + 2_000_000_000;
    until("the time of the hold before is over", || boottime() > over);
    assert_eq!(pids.map(is_alive), [true; 2], "while it waits");
    bulk.expect("waiting");
    urgent.released();
    bulk.expect("acquired");
    assert_eq!(pids.map(is_alive), [true; 2], "when it holds again");
    bulk.0.close_stdin();
    until("the group ends with the hold", || pids.map(is_alive) == [false; 2]);
}

/// The programs of docs/examples/hold, which work in steps under a lock. `cargo xtask interop hold` says which languages there are.
#[cfg(deep)]
mod clients {
    use std::process::Command;

    use super::*;

    #[test]
    fn in_python() {
        keeps_its_word(&["python3", "work.py"]);
    }

    #[test]
    fn in_node() {
        keeps_its_word(&["node", "work.mjs"]);
    }

    #[test]
    fn in_go() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("work");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).args(["work.go", "hold.go"]).current_dir(EXAMPLES);
        assert!(build.status().unwrap().success());
        keeps_its_word(&[program.to_str().unwrap()]);
    }

    const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/hold");

    fn command(home: &Home, program: &[&str], args: &[&str]) -> Command {
        let mut command = Command::new(program[0]);
        home.prepare(&mut command);
        command.args(&program[1..]).args(args).current_dir(EXAMPLES).env("LOCKKEEPER", crate::harness::BINARY);
        command
    }

    fn ended(output: &std::process::Output) -> (Option<i32>, String) {
        (output.status.code(), String::from_utf8(output.stderr.clone()).unwrap())
    }

    fn keeps_its_word(program: &[&str]) {
        let home = Home::new();
        let output = command(&home, program, &["a", "--session-timeout", "2s"]).output().unwrap();
        let steps = String::from_utf8(output.stdout).unwrap();
        let token = steps.rsplit(' ').next().unwrap().trim_end();
        let all: String = (1..=5).map(|step| format!("step {step} with token {token}\n")).collect();
        assert!(output.status.success() && steps == all && token.parse::<u64>().is_ok(), "{steps}{:?}", output.stderr);
        assert_eq!(home.count("a"), (0, 0));

        let (holder, acquired) = Holder::held(&home, &["a", "--message", "migration"]);
        assert!(self::token(&acquired) > token.parse().unwrap());
        let (code, told) = ended(&command(&home, program, &["a", "--try"]).output().unwrap());
        assert!(code == Some(75) && told.contains("(migration)"), "{told}");
        holder.released();
        let (code, told) = ended(&command(&home, program, &["a", "--wait", "soon"]).output().unwrap());
        assert!(code == Some(64) && told.contains("soon"), "{told}");

        // It is stopped during a step, so that the lock is broken before the last one.
        let mut working = Running::start(&mut command(&home, program, &["a"]));
        assert!(working.line().starts_with("step 1 with token "));
        working.signal(Signal::STOP);
        assert!(home.output(&["break", "a", "--reason", "it hangs", "--yes"]).status.success());
        working.signal(Signal::CONT);
        let output = working.output();
        let (code, told) = ended(&output);
        assert!(code == Some(76) && told.contains("the lock is lost"), "{told}");
        assert!(!String::from_utf8(output.stdout).unwrap().contains("step 5"));

        let mut working = Running::start(&mut command(&home, program, &["a"]));
        assert!(working.line().starts_with("step 1 with token "));
        working.child.kill().unwrap();
        until("the lock is free", || home.count("a") == (0, 0));
    }
}
