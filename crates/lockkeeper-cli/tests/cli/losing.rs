//! Locks that are lost while their command runs.

use std::io::BufRead;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lockkeeper_testkit::Stalls;
use lockkeeper_testkit::proxy::{Cut, Fate, OpCode, Proxy, What};
use rustix::process::{Signal, kill_process};

use crate::harness::{BINARY, Home, Running, SOON, Served, held, is_alive, names, served, until, watchdogs};

#[test]
fn case_45_a_killed_server_stops_the_whole_group_with_exit_76_and_a_command_may_clean_up() {
    let (mut served, home) = served();
    let script = "trap 'sleep 0.2; echo cleaned; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut cleaning = home.starts("b", &["--session-timeout", "10s"], script);
    let mut running = home.spawn("a", &["--session-timeout", "2s"], "echo $$; sh -c 'echo $$; exec sleep 1000'; true");
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    served.running.kill();
    let text = running.ends(76);
    // The command has ended in time, so what it did was under the lock.
    assert!(text.contains("lockkeeper: lock /locks/a can be relied on for"), "{text}");
    names(&text, &["(the connection is lost)", "stopping the command"]);
    assert!(text.contains("was not confirmed; it is free when the session ends"), "{text}");
    assert!(!is_alive(command) && !is_alive(grandchild));
    assert_eq!(cleaning.line(), "cleaned");
    cleaning.ends(76);
}

#[test]
fn case_45_a_stopped_server_stops_a_command_that_will_not_listen() {
    let (served, home) = served();
    let script = "trap '' TERM; echo $$; sh -c 'echo $$; while :; do sleep 0.05; done'; true";
    let mut running = home.spawn("a", &["--session-timeout", "8s", "--grace", "500ms"], script);
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    // The server is silent, not closed: only our own clock detects the loss.
    let stopped = Instant::now();
    served.running.signal(Signal::STOP);
    until("the group has ended", || !is_alive(command) && !is_alive(grandchild));
    let took = stopped.elapsed();
    let text = running.ends(76);
    // It is due at three quarters of the timeout after the last answer, which came before. No other contender gets the
    // lock earlier.
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(text.contains("no server answers") || text.contains("the connection is lost"), "{text}");
    served.running.signal(Signal::CONT);
}

/// One holder is cut off, the other contender is not: when the other's command runs, the first's group has ended.
#[test]
fn case_45_a_cut_off_holders_group_is_gone_before_the_next_command_starts() {
    let served = Served::start(&Home::new());
    let proxy = Proxy::start_blocking(served.address.parse().unwrap());
    let (cut_off, home) = (Home::with_servers(&proxy.connect_string()), Home::with_servers(&served.address));
    let script = "trap '' TERM; echo $$; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done'; true";
    let mut running = cut_off.spawn("a", &["--session-timeout", "8s", "--grace", "1s"], script);
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    let mut next = home.waits("a", &[], "echo in; read line");
    proxy.black_hole();
    assert_eq!(next.line(), "in");
    assert!(!is_alive(command) && !is_alive(grandchild), "two at work");
    running.ends(76);
}

/// Both signals are measured at both processes of the group. The deadline is that of the last request that was answered: a
/// hold may be relied on for 99 hundredths of three quarters of the session timeout.
#[test]
fn case_45_both_signals_come_by_the_deadline_of_the_last_answer() {
    let (timeout, grace) = (Duration::from_secs(16), Duration::from_secs(3));
    let served = Served::start(&Home::new());
    let (proxy, origin) = (Proxy::start_blocking(served.address.parse().unwrap()), Instant::now());
    let home = Home::with_servers(&proxy.connect_string());
    let signals = Signals::of_a_group(&home);
    let mut running = home.spawn("a", &["--session-timeout", "16s", "--grace", "3s"], Signals::SCRIPT);
    assert_eq!([signals.next().0, signals.next().0], ["up", "up"]);
    let stalls = Stalls::watch();
    proxy.black_hole();
    let ([(told, _), (word, term)], (end, kill)) = ([signals.next(), signals.next()], signals.next());
    assert_eq!((told.as_str(), word.as_str(), end.as_str()), ("term", "term", "ended"));
    running.ends(76);
    let due = origin + last_proof(&proxy) + timeout * 3 / 4 / 100 * 99;
    let late = |at: Instant, due: Instant| at.saturating_duration_since(due);
    let (early, most) = (late(due - grace, term), stalls.allow(Duration::ZERO));
    let (term, kill) = (late(term, due - grace), late(kill, due));
    println!("SIGTERM {term:?} late, SIGKILL {kill:?} late, at most {most:?}");
    assert!(term <= most, "SIGTERM {term:?} after the deadline less the grace period, at most {most:?}");
    assert!(early <= most, "SIGTERM {early:?} before the grace period");
    assert!(kill <= most, "SIGKILL {kill:?} after the deadline, at most {most:?}");
}

/// Returns when the last write that was answered had been sent, since the start of the proxy.
fn last_proof(proxy: &Proxy) -> Duration {
    let records = proxy.records();
    let written = |op: OpCode| op == OpCode::Check || OpCode::CREATES.contains(&op);
    let answered = records.iter().rev().find_map(|record| match record.what {
        What::Reply { xid, op, fate: Fate::Passed, .. } if written(op) => Some((record.connection, xid)),
        _ => None,
    });
    let (connection, answered) = answered.unwrap();
    let sent = records.iter().find(|record| {
        record.connection == connection && matches!(record.what, What::Request { xid, .. } if xid == answered)
    });
    sent.unwrap().at
}

/// When the signals reach each process of a group: both processes have the same pipe open, which ends with the last of them.
struct Signals(Receiver<(String, Instant)>);

impl Signals {
    /// The command of the group.
    const SCRIPT: &str = "exec 3>signals; trap 'echo term >&3' TERM
        sh -c 'trap \"echo term >&3\" TERM; sleep 1000 & echo up >&3; while :; do wait; sleep 0.05; done' &
        echo up >&3; while :; do wait; sleep 0.05; done";

    fn of_a_group(home: &Home) -> Signals {
        let pipe = home.file("signals");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let lines = std::io::BufReader::new(std::fs::File::open(pipe).unwrap()).lines();
            for line in lines.map(Result::unwrap).chain(["ended".to_owned()]) {
                _ = sender.send((line, Instant::now()));
            }
        });
        Signals(receiver)
    }

    fn next(&self) -> (String, Instant) {
        self.0.recv_timeout(SOON).expect("a signal")
    }
}

/// A group of two processes that ignore SIGTERM.
const DEAF: &str = "trap '' TERM; echo $$; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done'; true";

/// The session expires while lockkeeper is stopped; the watchdog ends the command before that.
#[test]
fn a_stopped_lockkeepers_group_is_gone_before_the_next_command_starts() {
    let (_served, home) = served();
    let mut running = home.spawn("a", &["--session-timeout", "4s"], DEAF);
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    let mut next = home.waits("a", &[], "echo in; read line");
    running.signal(Signal::STOP);
    assert_eq!(next.line(), "in");
    assert!(!is_alive(command) && !is_alive(grandchild), "two at work");
    running.signal(Signal::CONT);
    let text = running.ends(76);
    // One cause, the same for the end of the command and for the loss that follows from the stop.
    assert!(text.contains("lockkeeper was paused for too long (at least "), "{text}");
    assert!(!text.contains("no server was reached") && !text.contains("the session expired"), "{text}");
    assert!(text.contains("the watchdog ") && !text.contains("stopping the command"), "{text}");
}

/// The hold has ended by time as well when lockkeeper runs again. The break was first, and the record of the run says so too.
#[test]
fn a_break_that_a_stopped_lockkeeper_learns_of_late_is_the_cause() {
    let (_served, home) = served();
    for (name, job) in [("a", &[][..]), ("job", &["--slot", "1"])] {
        let mut running = home.spawn(name, &[&["--session-timeout", "6s"], job].concat(), DEAF);
        let command = running.pid_line();
        running.signal(Signal::STOP);
        home.ok(&["break", name, "--reason", "its host burns", "--yes"]);
        // By then, the hold has ended by lockkeeper's own clock.
        until("the watchdog has killed it", || !is_alive(command));
        running.signal(Signal::CONT);
        let text = running.ends(76);
        let told = text.lines().find(|line| line.contains(&format!("/locks/{name} was broken by ")));
        assert!(told.is_some_and(|line| line.ends_with(": its host burns")), "{text}");
        assert!(!text.contains("is lost: lockkeeper was paused"), "{text}");
    }
    let runs = home.ok(&["jobs", "job", "--history", "--json"]);
    assert!(runs.contains("broken by ") && !runs.contains("was paused"), "{runs}");
    // The watchdog ended the command long before lockkeeper could record that.
    for words in [&["jobs", "job", "--history"][..], &["jobs"]] {
        names(&home.ok(words), &[" at most "]);
    }
    names(
        &home.says(&["jobs", "--check"], 2),
        &[": slot 1 lost the lock; the command ended with signal ", ", recorded at "],
    );
}

/// The command is guarded again: after the end of lockkeeper, none of its processes is left. A watchdog that cannot live is not
/// started for ever.
#[test]
fn a_killed_watchdog_is_told_and_another_one_guards_the_command() {
    let home = Home::new();
    let replaced = "; another one guards the command now";
    let left = ", and no other one is started: if lockkeeper is killed or stopped from now on, processes of the command may run on without the lock";
    for (name, ends) in [("a", &[replaced][..]), ("b", &[replaced, replaced, replaced, left])] {
        let mut running = home.spawn(name, &["--json"], DEAF);
        let (command, grandchild) = (running.pid_line(), running.pid_line());
        for end in ends {
            let watchdog = watchdogs(running.pid())[0];
            kill_process(watchdog, Signal::KILL).unwrap();
            let line = running.told();
            let event: serde_json::Value = serde_json::from_str(&line).unwrap();
            let text = format!("the watchdog of the command (pid {}) has ended{end}", watchdog.as_raw_nonzero());
            assert_eq!((&event["event"], &event["message"]), (&"note".into(), &text.into()));
        }
        let guards = watchdogs(running.pid());
        assert_eq!(guards.len(), usize::from(ends.len() == 1));
        running.signal(Signal::KILL);
        until("the command has ended", || !is_alive(command));
        if guards.is_empty() {
            assert!(is_alive(grandchild), "the message says that it may run on");
            kill_process(grandchild, Signal::KILL).unwrap();
        }
        until("no process is left", || !is_alive(grandchild) && guards.iter().all(|guard| !is_alive(*guard)));
    }
}

/// There are too few open files for the start of a watchdog, and enough for that of the command.
#[test]
fn a_command_without_a_watchdog_is_said_to_have_none() {
    let (home, mut keeps) = held("server", &[]);
    let (mut unguarded, mut guarded) = (0, false);
    for files in 8..64 {
        let script = format!("ulimit -n {files}; exec {BINARY} run job --slot {files} -- sh -c 'echo up; cat'");
        let mut command = std::process::Command::new("sh");
        home.prepare(command.args(["-c", &script]));
        let mut running = Running::start(&mut command);
        if running.line() != "up" {
            let (code, text) = running.end();
            assert!(code != Some(0) && !text.contains("panicked"), "{files}: {text}");
            continue;
        }
        guarded = !watchdogs(running.pid()).is_empty();
        running.close_stdin();
        let text = running.ends(0);
        assert_eq!(text.contains("no watchdog of the command can be started (Too many open files"), !guarded, "{text}");
        if guarded {
            break;
        }
        unguarded += 1;
    }
    assert!(guarded && unguarded > 0, "{unguarded}");
    keeps.finish();
}

/// The new watchdog knows the group and its deadline.
#[test]
fn a_watchdog_that_replaces_another_one_ends_the_command_of_a_stopped_lockkeeper() {
    let home = Home::new();
    let mut running = home.spawn("a", &["--session-timeout", "6s"], DEAF);
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    kill_process(watchdogs(running.pid())[0], Signal::KILL).unwrap();
    let _told = running.told_of("another one guards the command now");
    running.signal(Signal::STOP);
    until("the new watchdog has killed the command", || !is_alive(command) && !is_alive(grandchild));
    running.signal(Signal::CONT);
    running.ends(76);
}

/// A lease ends by a clock that does not stop.
#[test]
fn a_stopped_lockkeepers_group_is_gone_before_its_lease_is_anybodys() {
    let (_served, home) = served();
    let mut running = home.spawn("a", &["--lease", "3s", "--session-timeout", "8s"], DEAF);
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    running.signal(Signal::STOP);
    let take = ["run", "a", "--lease", "10s", "--", "true"];
    until("the lease is over", || home.output(&take).status.success());
    assert!(!is_alive(command) && !is_alive(grandchild), "two at work");
    running.signal(Signal::CONT);
    running.ends(76);
}

/// Lockkeeper may be stopped between the grant and the start: the launcher checks the clock last.
#[test]
fn a_command_is_not_started_after_the_end_of_its_hold() {
    let home = Home::new();
    let parent = std::process::id().to_string();
    let far = u64::MAX.to_string();
    for (end, code, ran) in [("1", 76, false), (far.as_str(), 0, true)] {
        let output = home.output(&["__exec", &parent, "bg", end, "-", "touch", "ran"]);
        assert_eq!((output.status.code(), home.file("ran").exists()), (Some(code), ran), "{output:?}");
    }
}

/// The watchdog asks the command to end, and the command cleans up. Lockkeeper runs again before the lock is lost, and
/// reports it.
#[test]
fn a_command_that_the_watchdog_asked_to_end_ends_with_76() {
    let (_served, home) = served();
    let script = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut running = home.starts("a", &["--session-timeout", "6s"], script);
    running.signal(Signal::STOP);
    assert_eq!(running.line(), "told");
    running.signal(Signal::CONT);
    let text = running.ends(76);
    assert!(text.contains("the watchdog stopped the command") || text.contains("is lost"), "{text}");
    assert_eq!(home.count("a"), (0, 0));
}

#[test]
fn a_short_stop_of_lockkeeper_changes_nothing() {
    let home = Home::new();
    let mut running = home.starts("a", &["--session-timeout", "30s"], "echo up; read line; echo on; read line; exit 7");
    running.signal(Signal::STOP);
    std::io::Write::write_all(running.child.stdin.as_mut().unwrap(), b"go on\n").unwrap();
    assert_eq!(running.line(), "on");
    running.signal(Signal::CONT);
    running.close_stdin();
    assert_eq!(running.end(), (Some(7), String::new()));
}

/// The servers are away for a moment: with --on-suspect stop a command is stopped immediately, others run on.
#[test]
fn case_45_a_suspected_lock_stops_the_command_that_wants_it() {
    let served = Served::start(&Home::new());
    let proxy = Proxy::start_blocking(served.address.parse().unwrap());
    let home = Home::with_servers(&proxy.connect_string());
    let script = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut careful = home.spawn("careful", &["--on-suspect", "stop"], script);
    let mut patient = home.spawn("patient", &[], "echo up; read line");
    assert_eq!((careful.line().as_str(), patient.line().as_str()), ("up", "up"));
    proxy.refuse();
    proxy.cut(Cut::Reset);
    assert_eq!(careful.line(), "told");
    proxy.heal();
    names(&careful.ends(76), &["the connection is lost"]);
    until("it is held again", || home.count("patient") == (1, 0));
    patient.close_stdin();
    assert_eq!(patient.wait().code(), Some(1), "read at the end of the input");
}

/// Reported before the command starts: it could still run when the next contender gets the lock.
#[test]
fn case_45_a_grace_that_does_not_fit_is_refused_with_the_arithmetic() {
    let home = Home::new();
    for args in [
        &["--grace", "4s"][..],
        &["--grace", "1h"],
        &["--session-timeout", "2s", "--grace", "1s"],
        &["--session-timeout", "7200ms", "--grace", "4s"],
        &["--lease", "10100ms", "--grace", "6s"],
        &["--lease", "10s", "--grace", "6s"],
        &["--lease", "2s", "--grace", "6s"],
        &["--lease", "6s", "--grace", "4s"],
    ] {
        let text = home.tells(&[&["run", "a"], args, &["--", "true"]].concat(), 64);
        assert!(text.contains("does not fit into a"), "{text}");
        // Each remedy is accepted.
        let remedies = text.split("hint: give ").nth(1).and_then(|hint| hint.lines().next()).unwrap();
        for remedy in remedies.split(", or ") {
            let (option, value) = remedy.trim_end_matches(" or less").split_once(' ').unwrap();
            let mut again = [&["run", "a"], args].concat();
            if let Some(at) = again.iter().position(|word| *word == option) {
                again.drain(at..at + 2);
            }
            again.extend([option, value, "--servers", "127.0.0.1:1", "--", "true"]);
            let mut again = home.command(&again);
            again.env("LOCKKEEPER_CONNECTION_RETRY", "1").env("LOCKKEEPER_CONNECTION_DELAY", "10ms");
            assert_eq!(again.output().unwrap().status.code(), Some(69), "{again:?}");
        }
    }
    assert!(home.server().is_none(), "a server was started for it");
}

/// Both sessions are lost with its memory. It comes back before or after the end of the holder's command.
#[test]
fn case_15_a_waiter_outlasts_a_server_that_comes_back() {
    for (timeout, is_late) in [("2s", false), ("1s", true)] {
        let mut served = Served::start_to_end(&Home::new());
        let home = Home::with_servers(&served.address);
        let timeout = ["--session-timeout", timeout];
        let mut holder = home.starts("a", &timeout, "echo up; exec sleep 1000");
        let mut waiter = home.spawn("a", &timeout, "echo in");
        names(&waiter.told(), &["waiting for /locks/a"]);
        served.running.kill();
        if is_late {
            holder.ends(76);
        }
        let _again = Served::start_at(&Home::new(), &served.address);
        if !is_late {
            holder.ends(76);
        }
        assert_eq!(waiter.line(), "in");
        names(&waiter.ends(0), &["the position in the queue of /locks/a is lost"]);
    }
}
