//! Incidents of operations: each is staged with real processes, named by the verbs, and ended by the command that a verb has printed.
//! Each runs on a server of this machine, and on three of Apache's.

pub(crate) mod foreign;

use std::io::Write;
use std::process::Output;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use self::foreign::{Foreign, Nodes};
use crate::harness::{BINARY, Home, Running, is_alive, names, served, until};

/// How many wait in a long queue.
const MANY: usize = 12;

/// A job that ends when its run does.
const SLEEPS: &str = "echo up; exec sleep 1000";

/// Runs the first printed command that begins with these words, as a person does who pastes the line: `COMMAND` becomes `true`. A break
/// asks that person, who says yes.
fn follow(home: &Home, text: &str, begins: &str) -> Output {
    let begins = format!("lockkeeper {begins}");
    let at = text.find(&begins).unwrap_or_else(|| panic!("{begins:?} is not printed in {text}"));
    let line = text[at..].lines().next().unwrap();
    let mut words = shlex::split(line).unwrap_or_else(|| panic!("a shell cannot read {line:?}"));
    words.iter_mut().filter(|word| *word == "COMMAND").for_each(|word| *word = "true".to_owned());
    if words[1] == "break" {
        words.push("--yes".to_owned());
    }
    home.output(&words[1..].iter().map(String::as_str).collect::<Vec<_>>())
}

/// The same for a command that must succeed.
fn solve(home: &Home, text: &str, begins: &str) -> String {
    let output = follow(home, text, begins);
    assert!(output.status.success(), "{begins}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A run whose command takes another lock when a line comes.
fn nested(home: &Home, outer: &[&str], inner: &str) -> Running {
    home.starts(outer[0], &outer[1..], &format!("echo up; read line; exec {BINARY} run {inner} -- echo in"))
}

fn go_on(running: &mut Running) {
    running.child.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
}

fn first_holder(home: &Home, name: &str) -> Value {
    home.show(name)["holders"][0].clone()
}

/// Many wait behind one that takes longer than the others did.
fn a_hot_lock(home: &Home) {
    for _ in 0..3 {
        home.ok(&["run", "hot/import", "--", "true"]);
    }
    let mut slow = home.starts("hot/import", &["-m", "a very large file"], SLEEPS);
    let mut waiters: Vec<_> = (0..MANY).map(|_| home.spawn("hot/import", &[], "true")).collect();
    until("all wait", || home.count("hot/import") == (1, MANY));
    let mut cool = home.holds("hot/a", &[]);
    let mut one = home.waits("hot/a", &[], "true");

    let list = home.ok(&["list", "hot", "--sort", "wait"]);
    let order: Vec<_> = list.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(order, ["LOCK", "hot/import", "hot/a"], "{list}");
    names(list.lines().nth(1).unwrap(), &[&format!("  {MANY}  "), "(a very large file)"]);
    let why = || home.ok(&["why", "hot/import", "--mine"]);
    until("it takes longer than ever", || why().contains(" times as long"));
    let why = solve(home, &why(), "why hot/import --mine --all");
    names(
        &why,
        &[
            &format!("held by {}", first_holder(home, "hot/import")["user"].as_str().unwrap()),
            "  usually ",
            " (half of the last 3 recorded holds), at most ",
            &format!("{MANY} waiting; a new contender has {} ahead, and would wait about ", MANY + 1),
            " after its holder has ended",
        ],
    );
    for waiter in &waiters {
        names(&why, &[&format!("yours (pid {}): place ", waiter.pid().as_raw_nonzero())]);
    }
    names(&why, &[&format!(": place 1 of {MANY}, waited "), "; to go: until its holder has ended\n"]);

    solve(home, &why, "revoke hot/import");
    slow.ends(128 + 15);
    assert!(waiters.iter_mut().all(|waiter| waiter.wait().success()));
    assert_eq!(home.count("hot/import"), (0, 0));
    cool.close_stdin();
    assert!(cool.wait().success() && one.wait().success());
}

/// A job hangs, and its shell ignores the request to end.
fn a_job_that_ignores_the_request(home: &Home) {
    let script = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    let mut deaf = home.starts("deaf/reindex", &["-m", "full reindex", "--grace", "200ms"], script);
    let mut next = home.waits("deaf/reindex", &[], "echo in");
    let why = home.ok(&["why", "deaf/reindex"]);
    let asked = follow(home, &why.replace("--wait 1m", "--wait 100ms"), "revoke deaf/reindex");
    assert_eq!(asked.status.code(), Some(75), "{asked:?}");

    names(&home.ok(&["list", "deaf"]), &["  asked to release by "]);
    let doctor = home.says(&["doctor", "deaf"], 1);
    names(&doctor, &["/locks/deaf/reindex: ", " was asked to release by ", ", and holds on"]);
    let why = solve(home, &doctor, "why /locks/deaf/reindex");
    names(&why, &["(full reindex)", ", asked to release by ", ": WHY\n", "  asked at "]);
    names(&why, &[" processes are on this machine, ", " of processor time\n", "\n1 waiting; "]);

    solve(home, &why, "break /locks/deaf/reindex");
    assert_eq!(next.line(), "in");
    names(&deaf.ends(76), &["/locks/deaf/reindex was broken by "]);
    assert!(next.wait().success());
    home.ok(&["doctor", "deaf"]);
}

/// Two runs and a foreign client take the same locks in different orders.
fn a_ring_with_a_foreign_client(home: &Home, foreign: &mut dyn Foreign) {
    let format = foreign.format();
    foreign.join("mixed/stock");
    until("it holds the first", || home.count("mixed/stock") == (1, 0));
    let its_name = first_holder(home, "mixed/stock")["described"].clone();
    let mut first = nested(home, &["mixed/accounts", "--format", format], "mixed/orders");
    let mut second = nested(home, &["mixed/orders"], &format!("mixed/stock --format {format}"));
    go_on(&mut first);
    go_on(&mut second);
    until("both wait", || home.count("mixed/orders") == (1, 1) && home.count("mixed/stock") == (1, 1));
    home.ok(&["deadlocks", "mixed"]);
    foreign.join("mixed/accounts");
    until("it waits", || home.count("mixed/accounts") == (1, 1));

    let its_name = its_name.as_str().unwrap();
    let doctor = home.says(&["doctor", "mixed"], 1);
    names(&doctor, &["likely a deadlock: ", its_name]);
    names(&home.ok(&["why", "mixed/orders"]), &["  likely a deadlock: "]);
    let list = home.ok(&["list", "mixed"]);
    assert_eq!(list.matches("likely deadlock #1").count(), 3, "{list}");
    let found = follow(home, &doctor, "deadlocks");
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let ring = String::from_utf8(found.stdout).unwrap();
    names(
        &ring,
        &[
            "#1  likely: 3 contenders wait for each other in a ring",
            &format!("{its_name} holds /locks/mixed/stock"),
            ", session 0x",
        ],
    );

    // The foreign client does not look for requests, so one of the runs is asked.
    solve(home, &ring, "revoke /locks/mixed/");
    until("it has ended", || home.output(&["deadlocks", "mixed"]).status.code() == Some(0));
    until("the foreign client has its locks", || first_holder(home, "mixed/accounts")["described"] == its_name);
    foreign.leave();
    for mut running in [first, second] {
        running.wait();
    }
    home.ok(&["doctor", "mixed"]);
}

/// Three runs whose commands take the next lock. The last one takes two, and holds the first while it waits for the second.
fn a_ring_of_nested_runs(home: &Home) {
    let mut runs =
        [("a", "b", "b --message second"), ("c", "a", "a"), ("b", "c", "0 nested/c")].map(|(outer, inner, takes)| {
            let outer = format!("nested/{outer}");
            (
                nested(home, &[&outer, "-m", &format!("holder of {outer}")], &format!("nested/{takes}")),
                format!("nested/{inner}"),
            )
        });
    for (running, inner) in &mut runs {
        go_on(running);
        until("it waits", || home.count(inner) == (1, 1));
    }
    let json = serde_json::from_str::<Value>(&home.says(&["deadlocks", "nested", "--json"], 2)).unwrap();
    let ring = json["deadlocks"][0]["ring"].as_array().unwrap();
    assert_eq!((&json["deadlocks"][0]["certainty"], ring.len()), (&"certain".into(), 3), "{json}");
    let locks = |of: &str| ring.iter().map(|party| party[of]["path"].to_string()).collect::<String>();
    assert_eq!(locks("holds").replace("/locks/nested/", ""), "\"b\"\"c\"\"a\"");
    assert_eq!(locks("waits").replace("/locks/nested/", ""), "\"c\"\"a\"\"b\"");
    let list = home.ok(&["list", "nested"]);
    assert_eq!(list.matches("deadlock #1").count(), 3, "{list}");
    let doctor = home.says(&["doctor", "nested"], 2);
    names(&doctor, &["!! deadlock: "]);
    names(
        &home.ok(&["why", "nested/b"]),
        &["  deadlock: ", "  see what ends the deadlock", "lockkeeper deadlocks /locks"],
    );
    let found = follow(home, &doctor, "deadlocks");
    assert_eq!(found.status.code(), Some(2), "{found:?}");
    let ring = String::from_utf8(found.stdout).unwrap();
    names(
        &ring,
        &[
            "#1  certain: 3 contenders wait for each other in a ring since ",
            " holds /locks/nested/a since ",
            " (second)\n",
        ],
    );

    solve(home, &ring, "revoke /locks/nested/");
    until("it has ended", || home.output(&["deadlocks", "nested"]).status.code() == Some(0));
    let ended: Vec<_> = runs.iter_mut().map(|(running, _)| running.wait().code().unwrap()).collect();
    assert_eq!(ended.iter().filter(|code| **code == 0).count(), 2, "one of three gave way: {ended:?}");
    home.ok(&["doctor", "nested"]);
}

/// The holder is killed by a signal that no process can handle. Its session lives for another minute.
fn a_killed_holder(home: &Home) {
    let mut killed = home.starts("killed/copy", &["--session-timeout", "60s"], SLEEPS);
    let mut next = home.waits("killed/copy", &[], "echo in");
    killed.kill();

    names(&home.ok(&["list", "killed"]), &["  its process has ended, its session not yet"]);
    let why = home.ok(&["why", "killed/copy"]);
    names(&why, &["\n  its process is no longer on this machine; the node goes when its session ends\n"]);
    assert!(!why.contains("ask the holder"), "nobody is left who could answer: {why}");
    let doctor = home.says(&["doctor", "killed"], 1);
    names(&doctor, &["/locks/killed/copy: the process of ", " has ended, and its session not yet"]);

    solve(home, &doctor, "break /locks/killed/copy");
    next.ends_after("in");
    home.ok(&["doctor", "killed"]);
}

/// Somebody created a node by hand. A foreign client waits behind it for ever: it is no holder.
fn a_node_without_a_session(home: &Home, servers: &str, foreign: &mut dyn Foreign, verb: &str) {
    let name = format!("left/{verb}");
    let node = Nodes::connect(servers, foreign.format()).leave_behind(&name);
    let path = format!("/locks/{name}");
    names(&home.says(&["doctor", "left"], 1), &[&format!("  !  {path}: 1 node of a contender, without a session")]);
    foreign.join(&name);
    until("it waits", || home.count(&name) == (0, 1));
    let lock = home.show(&name);
    let its_name = lock["waiters"][0]["described"].as_str().unwrap().to_owned();
    assert_eq!(
        (&lock["sessionless"][0]["node"], &lock["waiters"][0]["blocked_by"]),
        (&node.as_str().into(), &node.as_str().into())
    );
    names(&home.ok(&["list", "left"]), &["  nobody ", &format!("blocked by a node without a session: {node}")]);
    let doctor = home.says(&["doctor", "left"], 2);
    names(&doctor, &[&format!("!! {path}: {its_name}"), &format!(" waits behind {node}, which has no session")]);
    for verb in ["show", "why"] {
        let text = home.ok(&[verb, &name]);
        names(&text, &[&path, &format!(" nobody holds it: {its_name}"), &node]);
        assert!(!text.contains("held by"), "{text}");
    }
    let why = home.ok(&["why", &name]);

    match verb {
        "doctor" => {
            for unasked in [&["left"][..], &["left", "--empty", "--tombstones"]] {
                let listed = home.json(&[&["admin", "gc", "--json"], unasked].concat());
                let found = &listed["nodes"][0];
                assert_eq!((&found["group"], &found["path"]), (&"garbage".into(), &node.as_str().into()), "{listed}");
                assert_eq!(listed["deleted"], Value::Array(Vec::new()), "it is not asked for");
            }
            solve(home, &doctor, &format!("admin gc {path} --garbage"));
            names(&home.ok(&["list", "--broken"]), &["lockkeeper admin gc --garbage: it has no session"]);
        }
        _ => {
            names(&why, &[&format!("lockkeeper break {name} --reason WHY --node {node}")]);
            solve(home, &why, &format!("break {name}"));
            names(&home.ok(&["list", &name, "--broken"]), &[&path, ": WHY\n"]);
        }
    }
    assert_eq!(home.count(&name), (1, 0));
    assert_eq!(first_holder(home, &name)["described"], *its_name);
    home.ok(&["doctor", "left"]);
    foreign.leave();
}

/// The machines of a leader stand still again and again, for longer than its session lives.
fn a_leader_that_flaps(home: &Home) {
    let (short, long) = (["--session-timeout", "4s"], ["--session-timeout", "60s"]);
    let mut leader = home.starts("flap/leader", &short, SLEEPS);
    // The last one keeps the lock, also on a machine that is busy.
    for timeout in [&short, &short, &long] {
        let mut next = home.waits("flap/leader", timeout, SLEEPS);
        leader.signal(Signal::STOP);
        assert_eq!(next.line(), "up");
        leader.signal(Signal::CONT);
        leader.ends(76);
        leader = next;
    }
    let history = || home.ok(&["history", "flap/leader"]);
    until("each loss is recorded by its loser", || history().contains("the losses: 3 paused\n"));
    names(&home.ok(&["list", "flap"]), &["  flaps: 3 of 3 holds lost"]);
    let doctor = home.says(&["doctor", "flap"], 1);
    names(&doctor, &["/locks/flap/leader: flaps: 3 of its 3 holds of the last hour were lost  "]);
    let history = solve(home, &doctor, "history /locks/flap/leader");
    names(&history, &["FLAPPING: 3 holds in the last hour, 3 of them lost. ", "(holds now)"]);
    assert_eq!(history.matches("lost: lockkeeper was paused for too long").count(), 3, "{history}");
    names(&history, &["are stopped or starved; a longer --session-timeout hides it\n"]);

    // That is tried: the new leader outlives what ends the session of another one.
    let told = home.ok(&["why", "flap/leader"]);
    solve(home, &told, "revoke flap/leader");
    leader.wait();
    let mut patient = home.starts("flap/leader", &long, SLEEPS);
    let mut other = home.starts("flap/other", &short, SLEEPS);
    for running in [&patient, &other] {
        running.signal(Signal::STOP);
    }
    until("the other is lost", || home.count("flap/other") == (0, 0));
    for running in [&patient, &other] {
        running.signal(Signal::CONT);
    }
    other.ends(76);
    assert_eq!(first_holder(home, "flap/leader")["pid"], patient.pid().as_raw_nonzero().get());
    solve(home, &told, "revoke flap/leader");
    patient.wait();
}

/// In the morning, last night's job has not run: somebody did it by hand, and still held the lock.
fn a_job_that_did_not_run(home: &Home) {
    let mut rerun = home.starts("night/backup", &["-m", "manual rerun by ann"], "echo up; read line; true");
    let nightly = ["run", "night/backup", "--once-per", "day", "--try", "--", "true"];
    assert_eq!(home.output(&nightly).status.code(), Some(75));
    rerun.finish();

    names(&home.ok(&["jobs"]), &["night/backup  refused  ", "refused on ", ": taken by ", ", manual rerun by ann"]);
    let doctor = home.says(&["doctor", "night"], 1);
    names(&doctor, &["night/backup: refused; ", ": taken by "]);
    let why = solve(home, &doctor, "why /locks/night/backup --at ");
    let pid = format!("(pid {})", rerun.pid().as_raw_nonzero());
    names(&why, &["  NOT RUN: taken by ", &pid, "\nholder    ", " (manual rerun by ann), released\n"]);
    names(&why, &["then      nobody is recorded to have asked again\n"]);

    solve(home, &why, "run /locks/night/backup --once-per day");
    names(&home.ok(&["jobs"]), &["night/backup  ok  "]);
    names(&solve(home, &doctor, "why /locks/night/backup --at "), &["\njob       slot "]);
    home.ok(&["jobs", "--check"]);
    home.ok(&["doctor", "night"]);
}

#[test]
fn a_hot_lock_with_a_slow_holder_is_the_first_of_the_list_and_each_waiter_has_its_place() {
    a_hot_lock(&Home::new());
}

#[test]
fn a_job_that_ignores_a_request_is_named_with_who_asked_and_when_and_a_break_ends_it() {
    a_job_that_ignores_the_request(&Home::new());
}

#[test]
fn a_ring_with_a_foreign_client_is_likely_and_a_request_to_a_run_ends_it() {
    let (served, home) = served();
    a_ring_with_a_foreign_client(&home, &mut Nodes::connect(&served.address, "kazoo"));
}

#[test]
fn a_ring_of_runs_is_certain_and_a_request_to_one_ends_it() {
    a_ring_of_nested_runs(&Home::new());
}

#[test]
fn a_killed_holder_is_named_while_its_session_lives_and_a_break_frees_the_lock() {
    a_killed_holder(&Home::new());
}

#[test]
fn a_node_without_a_session_is_named_with_who_waits_behind_it_and_deleted() {
    let (served, home) = served();
    for (format, verb) in [("kazoo", "doctor"), ("curator", "why")] {
        a_node_without_a_session(&home, &served.address, &mut Nodes::connect(&served.address, format), verb);
    }
}

#[test]
fn a_leader_that_flaps_is_named_with_the_cause_and_the_hint_holds() {
    a_leader_that_flaps(&Home::new());
}

#[test]
fn last_nights_job_that_did_not_run_is_explained_in_the_morning_and_run() {
    a_job_that_did_not_run(&Home::new());
}

/// Nobody uses it, so nothing has started it again.
#[test]
fn an_own_server_that_was_killed_is_named_and_started_again() {
    let home = Home::new();
    home.ok(&["run", "backup", "--once-per", "day", "--", "true"]);
    let pid = home.server().unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    until("it has ended", || !is_alive(pid));
    assert!(home.state().join("socket").exists(), "it had no time to remove it");
    let look = home.output(&["why", "backup"]);
    assert_eq!(look.status.code(), Some(0), "{look:?}");
    names(&String::from_utf8(look.stderr).unwrap(), &["lockkeeper: the server ended: it was killed"]);
    let doctor = home.output(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");
    names(&String::from_utf8(doctor.stdout).unwrap(), &["'s own server  alone  ", "\njobs       1 job\n"]);
    home.ok(&["list"]);
    assert!(home.server().is_some_and(|now| now != pid));
    home.ok(&["run", "a", "--", "true"]);
}

/// The same on Apache's servers, of which one is stopped in the end.
#[cfg(deep)]
#[test]
fn each_incident_on_apaches_ensemble() {
    use lockkeeper_testkit::apache::{Apache, Options};

    let apache = Apache::ensemble(3, Options::default()).unwrap();
    let servers = apache.connect_string();
    let home = Home::with_servers(&servers);
    a_hot_lock(&home);
    a_job_that_ignores_the_request(&home);
    a_ring_of_nested_runs(&home);
    a_killed_holder(&home);
    a_leader_that_flaps(&home);
    a_job_that_did_not_run(&home);

    let mut holder = home.holds("night/backup", &[]);
    let stopped = (apache.leader().unwrap() + 1) % 3;
    apache.kill(stopped);
    let doctor = home.says(&["doctor"], 2);
    let refuses = format!("!! {} refuses connections: nothing listens there", apache.addr(stopped));
    names(&doctor, &[&refuses, ": one more failure stops every lock"]);
    assert_eq!(home.count("night/backup"), (1, 0));
    apache.restart(stopped).unwrap();
    until("doctor finds nothing", || home.output(&["doctor"]).status.code() == Some(0));
    holder.finish();
}

/// The incidents of foreign clients, with their own programs, on the server of this machine and on Apache's ensemble.
#[cfg(deep)]
fn beside(program: fn(&str) -> foreign::Program) {
    use lockkeeper_testkit::apache::{Apache, Options};

    let incidents = |home: &Home, servers: &str| {
        a_ring_with_a_foreign_client(home, &mut program(servers));
        for verb in ["doctor", "why"] {
            a_node_without_a_session(home, servers, &mut program(servers), verb);
        }
    };
    let (served, home) = served();
    incidents(&home, &served.address);
    let apache = Apache::ensemble(3, Options::default()).unwrap();
    let servers = apache.connect_string();
    incidents(&Home::with_servers(&servers), &servers);
}

#[cfg(deep)]
#[test]
fn a_ring_with_kazoo_and_a_node_in_its_way_are_named_and_ended() {
    beside(foreign::Program::kazoo);
}

#[cfg(deep)]
#[test]
fn a_ring_with_curator_and_a_node_in_its_way_are_named_and_ended() {
    beside(foreign::Program::curator);
}
