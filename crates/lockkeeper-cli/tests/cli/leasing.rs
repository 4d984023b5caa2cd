//! `run --lease`: a lock with a lease, taken from lower priorities and lost to higher ones.

use rustix::process::test_kill_process;

use crate::harness::{Home, Running, failure, is_alive, names, served, until, until_it_is};

/// A script that waits for SIGTERM, prints that, and cleans up.
const CLEANS_UP: &str = "trap 'echo cleaned; exit 0' TERM; echo up; while :; do sleep 0.01; done";

#[test]
fn a_leased_lock_is_taken_or_not_at_once() {
    let (_served, home) = served();
    let mut first = home.spawn("a", &["--lease", "10m", "-m", "nightly index"], "echo $LOCKKEEPER_TOKEN; read line");
    let token: i64 = first.line().parse().unwrap();
    names(
        &home.failure(&["run", "a", "--lease", "10m", "--", "true"], 75),
        &["is held or requested by", "nightly index"],
    );
    first.close_stdin();
    assert_eq!(first.wait().code(), Some(1), "read at the end of the input");
    let next = home.output(&["run", "a", "--lease", "10m", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
    let next: i64 = String::from_utf8(next.stdout).unwrap().trim().parse().unwrap();
    assert!(next > token);
}

/// `--wait` is the time limit for owners of every priority: it ends with 75, and a release in time ends the wait.
#[test]
fn wait_is_the_time_limit_of_a_leased_lock() {
    let (_served, home) = served();
    let mut first = home.holds("a", &["--lease", "10m", "--priority", "3"]);
    names(&home.failure(&["run", "a", "--lease", "10m", "--wait", "1s", "--", "true"], 75), &["waited ", "/locks/a"]);
    let mut next = home.spawn("a", &["--lease", "10m", "--wait", "10m"], "echo in; cat");
    // The waiter has opened its session before the owner ends, or comes to a free lock: both must get it.
    first.finish();
    assert_eq!(next.line(), "in");
    // A lease that is over ends the wait as well, although its command runs on.
    let mut lapsing = home.starts("b", &["--lease", "1s", "--priority", "3"], "echo up; exec sleep 1000");
    let mut after = home.spawn("b", &["--lease", "10m", "--wait", "10m"], "echo in; cat");
    assert_eq!(after.line(), "in");
    lapsing.ends(76);
    for mut held in [next, after] {
        held.finish();
    }
}

/// H-34, H-40: the command ends in its own time, and then the other one starts.
#[test]
fn a_higher_priority_gets_the_lock_when_the_command_has_cleaned_up() {
    let (_served, home) = served();
    let mut low = home.starts("a", &["--lease", "10m", "--priority", "1", "--cleanup", "10m"], CLEANS_UP);
    home.says(&["run", "a", "--lease", "10m", "--priority", "1", "--", "true"], 75);
    // A try asks nobody.
    let tried = home.output(&["run", "a", "--try", "--lease", "10m", "--priority", "5", "--", "true"]);
    let (code, text) = failure(&tried);
    assert_eq!(code, Some(75), "{text}");
    assert!(text.contains("with priority 1") && is_alive(low.pid()), "{text}");
    let mut high = home.spawn("a", &["--lease", "10m", "--priority", "5"], "echo in; read line");
    assert_eq!(low.line(), "cleaned");
    assert_eq!(high.line(), "in");
    let text = low.ends(76);
    assert!(text.contains("/locks/a is asked for, preempted by ") && !text.contains("unnamed"), "{text}");
    names(&text, &["with priority 5", "SIGTERM"]);
}

/// The record says that it was preempted, whether its lockkeeper first learns of the command's end or of the new owner.
#[test]
fn a_preempted_command_without_cleanup_time_always_ends_with_79() {
    let (_served, home) = served();
    for _ in 0..8 {
        let mut low = home.starts("a", &["--lease", "10m", "--cleanup", "0s"], "echo up; exec sleep 1000");
        let mut high = home.spawn("a", &["--lease", "10m", "--priority", "5"], "echo in; read line");
        assert_eq!(high.line(), "in");
        low.ends(76);
        high.close_stdin();
        high.wait();
    }
}

/// H-56: a command that does not end in time is killed with its group, before the requestor's wait ends.
#[test]
fn a_command_that_will_not_end_is_killed_when_its_cleanup_time_is_over() {
    let (_served, home) = served();
    let script = "trap '' TERM; echo $$; sh -c 'echo $$; while :; do sleep 0.05; done'; true";
    let mut low = home.spawn("a", &["--lease", "10m", "--cleanup", "300ms"], script);
    let (command, grandchild) = (low.pid_line(), low.pid_line());
    let mut high = home.spawn("a", &["--lease", "10m", "--priority", "5", "--forceful"], "echo in; read line");
    assert_eq!(high.line(), "in");
    low.ends(76);
    assert!(!is_alive(command) && !is_alive(grandchild));
}

/// As in a container whose process 1 reaps nothing: the orphans of a dead group stay zombies, and count as ended.
///
/// This test starts itself as the process that adopts orphans and does not reap them.
#[test]
fn a_group_of_zombies_does_not_keep_the_lock() {
    const ROLE: &str = "LOCKKEEPER_TEST_ADOPTS_ORPHANS";
    const READY: &str = "LOCKKEEPER_TEST_READY";
    if let (Ok(servers), Some(ready)) = (std::env::var(ROLE), std::env::var_os(READY)) {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let home = Home::with_servers(&servers);
        let args = ["--lease", "10m", "--cleanup", "10m"];
        let mut low = home.spawn("a", &args, "sh -c 'sleep 1000 & echo $!'; echo up; exec sleep 1000");
        let orphan = low.pid_line();
        assert_eq!(low.line(), "up");
        // It is our child now.
        until_it_is(orphan, "sleep");
        std::fs::write(ready, "").unwrap();
        assert_eq!(low.wait().code(), Some(76));
        assert!(!is_alive(orphan) && test_kill_process(orphan).is_ok(), "it is no zombie");
        return;
    }
    let (served, home) = served();
    let mut adopter = std::process::Command::new(std::env::current_exe().unwrap());
    adopter.args(["--exact", "leasing::a_group_of_zombies_does_not_keep_the_lock"]).env(ROLE, &served.address);
    let mut adopter = Running::start(adopter.env(READY, home.file("ready")));
    until("it is held", || home.file("ready").exists());
    let asked = std::time::Instant::now();
    let mut high = home.spawn("a", &["--lease", "10m", "--priority", "5"], "echo in");
    assert_eq!(high.line(), "in");
    assert!(asked.elapsed() < std::time::Duration::from_secs(60), "{:?} of a cleanup time of 10 min", asked.elapsed());
    adopter.ends(0);
}

/// H-53, H-54: the owner's command runs on.
#[test]
fn a_wait_that_is_over_says_who_has_not_cleaned_up() {
    let (_served, home) = served();
    let script = "trap '' TERM; echo up; read line";
    let mut low = home.starts("a", &["--lease", "10m", "--cleanup", "10m"], script);
    let args = ["run", "a", "--lease", "10m", "--priority", "5", "--waiting", "2s", "--", "true"];
    names(&home.tells(&args, 75), &["asked the owner", "has not finished the cleanup"]);
    // The request is withdrawn: the command is not killed for it any more, and its own status counts.
    let _said = low.told_of("is not wanted any more");
    low.close_stdin();
    assert_eq!(low.wait().code(), Some(1), "read at the end of the input");
}

/// H-28: an emergency preempts every owner, and any machine can read who used it and why.
#[test]
fn an_emergency_is_recorded_with_its_reason() {
    let (_served, home) = served();
    let mut low = home.starts("a", &["--lease", "10m", "--priority", "2147483646"], "echo up; exec sleep 1000");
    let args = ["--lease", "10m", "--id", "sre", "--emergency", "--reason", "the index is corrupt"];
    let mut urgent = home.spawn("a", &args, "echo in; cat");
    assert_eq!(urgent.line(), "in");
    // The record shows the new owner for as long as it holds. After its release, the owner before it would find only that
    // its own hold is gone.
    low.ends(76);
    urgent.finish();
    names(&home.ok(&["requests", "--decided"]), &["sre requested it in an emergency", "the index is corrupt"]);
    let json = home.output(&["requests", "a", "--decided", "--json"]);
    let recorded: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&recorded["decisions"], recorded["emergencies"].as_array().unwrap().len()),
        (&serde_json::json!([]), 1)
    );
    let first = &recorded["emergencies"][0];
    assert_eq!((&first["path"], &first["requestor"]), (&"/locks/a".into(), &"sre".into()));
    assert_eq!(first["why"], "the index is corrupt");
}

/// H-15: with --strict-lease or --keep-node, the lease ends without a request.
#[test]
fn the_end_of_a_strict_lease_stops_the_command() {
    let (_served, home) = served();
    for strict in ["--strict-lease", "--keep-node"] {
        let mut running = home.spawn(strict.trim_start_matches('-'), &["--lease", "4s", strict], CLEANS_UP);
        assert_eq!((running.line().as_str(), running.line().as_str()), ("up", "cleaned"));
        names(&running.ends(76), &["its lease ends"]);
    }
    // A command that nobody asks ends as if its lease still ran.
    home.ok(&["run", "a", "--lease", "500ms", "--", "sleep", "1"]);
    assert_eq!(home.count("a"), (0, 0));
}

/// The owner of a leased lock, its end and its requestor are shown as those of any lock.
#[test]
fn a_leased_lock_is_shown_listed_and_explained() {
    let (_served, home) = served();
    let low = ["--lease", "10m", "--id", "batch-1", "--cleanup", "10m", "--priority", "2", "-m", "nightly index"];
    let mut holder = home.starts("a", &low, "trap 'echo told' TERM; echo up; while :; do read line && exit; done");
    let shown = home.show("a");
    assert_eq!((&shown["holders"][0]["described"], &shown["holders"][0]["mode"]), (&"batch-1".into(), &"lease".into()));
    assert_eq!(
        (&shown["holders"][0]["node"], &shown["holders"][0]["message"]),
        (&"/locks/a".into(), &"nightly index".into())
    );
    assert_eq!((&shown["lease"]["owner"], &shown["lease"]["priority"]), (&"batch-1".into(), &2.into()));
    assert!(shown["lease"]["until_ms"].as_i64() > Some(1_600_000_000_000), "{shown}");
    let mut high = home.spawn("a", &["--lease", "10m", "--id", "online-1", "--priority", "5"], "echo in");
    assert_eq!(holder.line(), "told");
    until("the request shows", || home.show("a")["lease"]["requestor"]["id"] == "online-1");
    for verb in ["show", "why", "list"] {
        let args = if verb == "list" { vec![verb] } else { vec![verb, "a"] };
        let text = home.ok(&args);
        let holder = if verb == "list" { "a     batch-1 " } else { "held by batch-1" };
        for say in [holder, "by the server's clock", "with priority 2", "wanted by online-1 with priority 5"] {
            assert!(text.contains(say), "{verb}: {say:?} is missing in {text}");
        }
    }
    use std::io::Write;
    holder.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    assert_eq!(high.line(), "in");
    high.wait();
    holder.wait();
}

/// case_35: hands the lock from command to command, with no other holder between them.
#[test]
fn a_command_hands_its_lock_to_the_next() {
    let (_served, home) = served();
    home.ok(&["run", "a", "--lease", "10m", "--id", "build", "--hand-to", "deploy", "--", "true"]);
    assert_eq!(home.show("a")["lease"]["owner"], "deploy");
    home.says(&["run", "a", "--lease", "10m", "--", "true"], 75);
    home.ok(&["run", "a", "--lease", "10m", "--id", "deploy", "--", "true"]);
    assert_eq!(home.count("a"), (0, 0));
    // Without a lock to hand over, nothing happens.
    let failed = home.output(&["run", "a", "--lease", "10m", "--id", "build", "--hand-to", "deploy", "--", "false"]);
    assert_eq!((failed.status.code(), home.count("a")), (Some(1), (0, 0)));
    home.refuses(
        &["run", "a", "--lease", "10m", "--id", "build", "--hand-to", "build", "--", "true"],
        64,
        "has the lock already",
    );
}

/// H-73, H-74: holds are counted if that is requested, and any machine can print the counts.
#[test]
fn lease_statistics_are_printed() {
    let (_served, home) = served();
    home.ok(&["run", "a", "--lease", "10m", "--", "true"]);
    let (code, line) = failure(&home.output(&["show", "--stats", "a"]));
    assert_eq!((code, line.as_str()), (Some(1), "/locks/a has no statistics"));
    for _ in 0..2 {
        home.ok(&["run", "a", "--lease", "10m", "--id", "x", "--stats", "--", "true"]);
    }
    let mut low = home.starts("a", &["--lease", "10m", "--id", "x", "--cleanup", "10m", "--stats"], CLEANS_UP);
    let args = ["run", "a", "--lease", "10m", "--id", "y", "--priority", "5", "--stats", "--", "true"];
    home.ok(&args);
    low.ends(76);
    let stats = home.json(&["show", "--stats", "a", "--json"]);
    let total = &stats["total"];
    assert_eq!((&total["holds"], &total["preemptions"], &total["cleanups"]), (&4.into(), &1.into(), &1.into()));
    assert_eq!((&total["in_time"], &total["share_in_time"]), (&1.into(), &1.0.into()));
    assert!(
        total["suggested_cleanup_ms"].as_u64() < Some(600_000) && total["lease_ms"]["p50"].as_u64() >= Some(600_000)
    );
    let owners: Vec<_> = stats["owners"].as_array().unwrap().iter().map(|owner| owner["owner"].to_string()).collect();
    assert_eq!(owners, ["\"x\"", "\"y\""]);
    let text = home.ok(&["show", "--stats", "a"]);
    for say in ["/locks/a", "4     holds", "suggested lease", "suggested cleanup", "1 in time, 0 late, 0 by force"] {
        assert!(text.contains(say), "{say:?} is missing in {text}");
    }
    // Nothing to clean up is in time.
    let mut low = home.starts("b", &["--lease", "10m", "--id", "x", "--stats"], CLEANS_UP);
    let args = ["run", "b", "--lease", "10m", "--id", "y", "--priority", "5", "--stats", "--", "true"];
    home.ok(&args);
    low.ends(76);
    let stats = home.json(&["show", "--stats", "b", "--json"]);
    assert_eq!((&stats["total"]["in_time"], &stats["total"]["share_in_time"]), (&1.into(), &1.0.into()));
    // A cleanup that force cut off has not finished, and no suggestion comes from it.
    let mut low = home.starts(
        "c",
        &["--lease", "10m", "--id", "x", "--cleanup", "10m", "--stats"],
        "echo up; trap '' TERM; read line",
    );
    let args = ["run", "c", "--lease", "10m", "--id", "y", "--priority", "5", "--waiting", "100ms", "--forceful"];
    home.ok(&[&args[..], &["--", "true"]].concat());
    low.ends(76);
    let stats = home.json(&["show", "--stats", "c", "--json"]);
    let total = &stats["total"];
    assert_eq!((&total["cleanups"], &total["cut_off"], &total["share_in_time"]), (&0.into(), &1.into(), &0.0.into()));
    assert!(total["suggested_cleanup_ms"].is_null(), "{total}");
    let text = home.ok(&["show", "--stats", "c"]);
    assert!(text.contains("1     cut-off cleanup") && !text.contains("suggested cleanup"), "{text}");
    home.ok(&["show", "--stats", "a", "--reset"]);
    assert_eq!(home.output(&["show", "--stats", "a"]).status.code(), Some(1));
}

#[test]
fn lease_options_need_a_lease() {
    let home = Home::new();
    // With an infinite wait, nothing begins at its end.
    for idle in [&["--forceful"][..], &["--ask", "1s"]] {
        let args = [&["run", "a", "--lease", "1m", "--waiting", "infinite"], idle, &["--", "true"]].concat();
        home.refuses(&args, 64, "has no effect");
    }
    for args in [
        &["--priority", "1"][..],
        &["--cleanup", "1s"],
        &["--waiting", "1s"],
        &["--forceful"],
        &["--keep-node"],
        &["--strict-lease"],
        &["--id", "x"],
        &["--hand-to", "x"],
        &["--ask", "1s"],
        &["--stats"],
        &["--lease", "1m", "--alert-command", "true"],
        &["--lease", "1m", "--ask", "1s", "--forceful"],
        &["--lease", "0s"],
        &["--lease", "1m", "--priority", "2147483647"],
        &["--lease", "1m", "--emergency"],
        &["--lease", "1m", "--emergency", "--reason", " "],
        &["--lease", "1m", "--reason", "x"],
        &["--lease", "1m", "--emergency", "--reason", "x", "--priority", "1"],
    ] {
        home.says(&[&["run", "a"], args, &["--", "true"]].concat(), 64);
    }
}
