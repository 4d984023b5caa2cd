//! `doctor` and `gc`: each trouble is found with the command that handles it, and nothing is found where nothing is wrong.

use serde_json::Value;
use zookeeper_client::CreateMode;

use crate::harness::{Home, Served, held, names, served, stderr, stdout, until};
use crate::plain::Plain;

/// Returns the exit code, and the findings as `SECTION SEVERITY TEXT`, of `doctor --json`.
fn doctor(home: &Home, args: &[&str]) -> (i32, Vec<String>) {
    let (code, answer) = diagnosis(home, args);
    let all = answer["places"].as_array().unwrap().iter().flat_map(|place| place["findings"].as_array().unwrap());
    let text = |finding: &Value| {
        ["section", "severity", "text"].map(|field| finding[field].as_str().unwrap().to_owned()).join(" ")
    };
    (code, all.map(text).collect())
}

fn diagnosis(home: &Home, args: &[&str]) -> (i32, Value) {
    let output = home.output(&[&["doctor", "--json"], args].concat());
    let answer = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (output.status.code().unwrap(), answer)
}

fn gc(home: &Home, args: &[&str]) -> Value {
    let output = home.output(&[&["admin", "gc", "--json"], args].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the paths that `gc` has put into a group.
fn of_group(answer: &Value, group: &str) -> Vec<String> {
    let nodes = answer["nodes"].as_array().unwrap().iter().filter(|node| node["group"] == group);
    nodes.map(|node| node["path"].as_str().unwrap().to_owned()).collect()
}

/// A server, and a foreign client that creates nodes on it.
struct Site {
    home: Home,
    served: Served,
    plain: Plain,
}

impl Site {
    fn new() -> Self {
        let (served, home) = served();
        let plain = Plain::connect(&served.address);
        plain.create("/locks", "");
        Site { home, served, plain }
    }

    /// Returns the paths below a node.
    fn nodes(&self, path: &str) -> Vec<String> {
        self.plain.names(path).iter().map(|name| format!("{path}/{name}").replace("//", "/")).collect()
    }
}

#[test]
fn nothing_is_wrong_where_nobody_has_used_a_lock() {
    let home = Home::new();
    let output = home.output(&["doctor"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).contains("does not run, and has no data"), "{output:?}");
    assert!(!home.state().exists(), "doctor has created the directory");
}

#[test]
fn nothing_is_wrong_with_a_server_that_holds_and_a_job_that_succeeds() {
    let home = Home::new();
    home.ok(&["run", "nightly", "--once-per", "day", "--", "true"]);
    let mut holder = home.holds("a", &[]);
    let output = home.output(&["doctor"]);
    let said = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!said.contains('!'), "{said}");
    for say in
        ["servers    ", "'s own server  alone  ", "\nlocks      1 lock in use below /locks\n", "\njobs       1 job\n"]
    {
        assert!(said.contains(say), "{say:?} is missing in {said}");
    }
    assert!(said.contains(&format!("{} (LOCKKEEPER_STATE_DIR)\n", home.state().display())), "{said}");
    // The server ends when nobody uses it. Its records are still read.
    holder.finish();
    home.ok(&["server", "stop"]);
    assert_eq!(doctor(&home, &[]), (0, vec![]));
}

#[test]
fn a_failed_job_is_serious_and_a_late_one_a_notice() {
    let home = Home::new();
    home.ok(&["run", "done", "--every", "1s", "--", "true"]);
    until("a whole period has passed", || doctor(&home, &[]).0 == 1);
    let (_, found) = doctor(&home, &[]);
    assert!(matches!(&found[..], [one] if one.starts_with("jobs notice done: silent: slot every 1s ")), "{found:?}");
    assert_eq!(home.output(&["run", "backup", "--once-per", "day", "--", "false"]).status.code(), Some(1));
    let (code, answer) = diagnosis(&home, &[]);
    assert_eq!((code, &answer["worst"]), (2, &"serious".into()));
    let first = &answer["places"][0]["findings"][0];
    assert!(first["text"].as_str().unwrap().starts_with("backup: failed"), "{first}");
    let command = first["command"].as_str().unwrap();
    assert!(command.starts_with("lockkeeper jobs /locks/backup --history"), "{command}");
}

#[test]
fn a_dead_letter_that_waits_is_a_notice() {
    let (home, _holder) = held("a", &[]);
    let run = ["run", "a", "--retries", "1", "--retry-delay", "1ms", "--dead-letter", "file", "--try", "--", "true"];
    assert!(!home.output(&run).status.success());
    let (code, found) = doctor(&home, &[]);
    assert_eq!(
        (code, &found[..]),
        (1, &["left notice 1 dead letter of this user, of commands that never got their lock".to_owned()][..])
    );
}

/// A holder that was killed: its lock delay keeps the waiter out. An owner of a lease that was killed: no session ends its hold. And an
/// owner whose lease another one wants.
#[test]
fn a_lost_hold_an_ended_lease_and_a_pending_decision_are_notices() {
    let home = Home::new();
    let delayed = ["--lock-delay", "10m", "--session-timeout", "1s"];
    let mut lost = home.spawn("lost", &delayed, "echo up; exec sleep 1000");
    let mut ended = home.spawn("ended", &["--lease", "1s"], "echo up; exec sleep 1000");
    let mut wanted = home.spawn("wanted", &["--lease", "10m", "--cleanup", "10m"], "trap '' TERM; echo up; cat");
    assert_eq!([lost.line(), ended.line(), wanted.line()], ["up", "up", "up"]);
    let _waiter = home.spawn("lost", &delayed, "true");
    let _asker =
        home.spawn("wanted", &["--lease", "10m", "--priority", "5", "--waiting", "100ms", "--ask", "10m"], "true");
    for running in [&mut lost, &mut ended] {
        running.kill();
    }
    let says = ["/locks/ended: the lease of ", "/locks/lost: the hold of ", "1 decision pending about leased locks"];
    until("all are found", || {
        let (_, found) = doctor(&home, &[]);
        says.iter().all(|say| found.iter().any(|finding| finding.contains(say)))
    });
    let output = home.output(&["doctor"]);
    let said = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    names(&said, &[" ago, and was not released", " was lost, and its lock delay runs"]);
    assert!(said.contains("\nunseen     whether the owners of leases are alive: a lease has no session\n"), "{said}");
}

#[test]
fn a_server_that_refuses_and_a_name_without_a_server_are_serious() {
    let home = Home::new();
    let (code, found) = doctor(&home, &["--servers", "127.0.0.1:1,nowhere.invalid:2181"]);
    assert_eq!(code, 2, "{found:?}");
    assert!(found[0].starts_with("servers serious 127.0.0.1:1 refuses connections"), "{found:?}");
    assert!(found[1].starts_with("servers serious nowhere.invalid:2181 cannot be reached"), "{found:?}");
    assert!(found[2].contains("no server is known to serve clients"), "{found:?}");
    let machine = format!("--machine={}", home.file("machine").display());
    let (code, found) = doctor(&home, &[&machine]);
    assert!(code == 2 && found[0].contains("this machine's server is not running"), "{found:?}");
    home.refuses(&["doctor", "--servers", "zk1,,zk2"], 64, "is not a server");
}

/// What is only looked at stays as it is: no directory of jobs or of the journal is created either.
#[test]
fn doctor_and_gc_create_no_node() {
    let site = Site::new();
    assert_eq!(site.nodes("/"), ["/locks", "/zookeeper"]);
    let mut holder = site.home.holds("a", &[]);
    until("the holder has made the place of its history", || site.nodes("/").contains(&"/lockkeeper".to_owned()));
    until("all of it", || !site.nodes("/lockkeeper").is_empty());
    let before = ["/", "/locks", "/locks/a", "/lockkeeper"].map(|path| site.nodes(path));
    for look in [
        &["doctor"][..],
        &["admin", "gc"],
        &["admin", "gc", "--empty", "--garbage", "--tombstones"],
        &["admin", "gc", "--log"],
    ] {
        site.home.ok(look);
    }
    let nothing = site.home.output(&["admin", "gc"]);
    assert!(nothing.stdout.is_empty() && stderr(&nothing).contains("nothing is left below /locks"), "{nothing:?}");
    assert_eq!(["/", "/locks", "/locks/a", "/lockkeeper"].map(|path| site.nodes(path)), before);
    holder.finish();
}

/// The same name on the servers and on this user's own server: two commands that do not exclude each other.
#[test]
fn a_lock_that_is_also_in_use_on_the_own_server_is_a_notice() {
    let site = Site::new();
    let _shared = site.home.holds("nightly", &[]);
    assert_eq!(doctor(&site.home, &[]).0, 0);
    assert!(!site.home.state().join("data").exists(), "doctor has started the own server");
    let mut command = site.home.command(&["run", "nightly", "--", "sh", "-c", "echo up; cat"]);
    let mut own = crate::harness::Running::start(command.env_remove("LOCKKEEPER_SERVERS"));
    assert_eq!(own.line(), "up");
    let (code, found) = doctor(&site.home, &[]);
    assert_eq!(code, 1, "{found:?}");
    assert!(
        found[0].starts_with("scope notice also in use on this user's own server")
            && found[0].ends_with("/locks/nightly"),
        "{found:?}"
    );
    let said = stdout(&site.home.output(&["doctor"]));
    let list = format!("lockkeeper list --state-dir {}", site.home.state().display());
    assert!(said.contains(&list), "{said}");
    assert!(said.contains(&format!("\nscope      {} (LOCKKEEPER_SERVERS)\n", site.served.address)), "{said}");
    own.finish();
}

/// The last use of a lock is dated by what happened later.
#[test]
fn gc_deletes_empty_nodes_that_are_unused_and_leaves_what_it_does_not_know() {
    let site = Site::new();
    for name in ["one", "two", "two/three", "used"] {
        site.plain.create(&format!("/locks/{name}"), "");
    }
    site.plain.create("/locks/README", "ask Ann");
    site.plain.create_as(CreateMode::Ephemeral, "/locks/used/lock-0000000000", "");
    let answer = gc(&site.home, &[]);
    assert_eq!(of_group(&answer, "recent"), ["/locks/one", "/locks/two/three"], "not unused for a day");
    assert_eq!(of_group(&answer, "note"), ["/locks/README"]);
    let answer = gc(&site.home, &["--older-than", "0s"]);
    assert_eq!((of_group(&answer, "empty").len(), &answer["deleted"]), (2, &serde_json::json!([])), "dry by default");
    let output = site.home.output(&["admin", "gc", "--older-than", "0s"]);
    assert!(stdout(&output).contains("\n  lockkeeper admin gc /locks --empty"), "{output:?}");
    let answer = gc(&site.home, &["--empty", "--older-than", "0s"]);
    assert_eq!(answer["deleted"], serde_json::json!(["/locks/one", "/locks/two/three"]));
    // It dates the deletions before it.
    site.plain.create_as(CreateMode::Ephemeral, "/locks/used/lock-0000000001", "");
    let answer = gc(&site.home, &["--older-than", "0s"]);
    // What was above a deleted node is empty now.
    assert_eq!((of_group(&answer, "empty"), of_group(&answer, "note").len()), (vec!["/locks/two".to_owned()], 1));
    let logged = site.home.ok(&["admin", "gc", "--log"]);
    assert!(
        logged.contains("  2 empty nodes deleted by ") && logged.ends_with(": /locks/one, /locks/two/three\n"),
        "{logged}"
    );
    let logged = site.home.json(&["admin", "gc", "two", "--log", "--json"]);
    assert_eq!(logged["cleanups"], serde_json::json!([]), "that was a command for /locks");
}

/// C-06: monitor objects are persistent, and stand at the root in Contentserv's deployments. Those that were not used for the given
/// time are found and deleted; one that is in use or has data stays, and so does what is deeper.
#[test]
fn gc_deletes_monitor_objects_that_were_unused_for_a_time() {
    let site = Site::new();
    for object in ["/P1", "/P2"] {
        site.home.ok(&["run", object, "--background", "--", "true"]);
    }
    site.plain.create("/P3", "ask Ann");
    site.plain.create("/other", "");
    site.plain.create("/other/program", "");
    let mut holder = site.home.holds("/P2", &["--foreground"]);
    for more in [&[][..], &["--empty"]] {
        site.home.refuses(&[&["admin", "gc", "/"], more].concat(), 64, "may be of another program");
    }
    let answer = gc(&site.home, &["/", "--objects"]);
    assert_eq!(of_group(&answer, "recent"), ["/P1"], "used less than a day ago");
    let answer = gc(&site.home, &["/", "--objects", "--empty"]);
    assert_eq!(answer["deleted"], serde_json::json!([]), "the age counts");
    names(
        &site.home.ok(&["admin", "gc", "/", "--objects", "--older-than", "0s"]),
        &["\n  lockkeeper admin gc / --objects --empty"],
    );
    let answer = gc(&site.home, &["/", "--objects", "--empty", "--older-than", "0s"]);
    assert_eq!(answer["deleted"], serde_json::json!(["/P1"]));
    assert_eq!(of_group(&answer, "note"), ["/P3"]);
    assert_eq!(site.nodes("/other"), ["/other/program"]);
    assert!(site.home.ok(&["admin", "gc", "/", "--log"]).ends_with(": /P1\n"));
    holder.finish();
}

/// The tombstone of a killed holder delays the next grant, and nobody waits for it.
#[test]
fn gc_deletes_a_tombstone_once_its_delay_has_passed_for_sure() {
    let home = Home::new();
    // The server's time is asked for where jobs are.
    home.ok(&["run", "job", "--once-per", "day", "--", "true"]);
    let mut holder = home.starts("a", &["--lock-delay", "1ms", "--session-timeout", "1s"], "echo up; exec sleep 1000");
    assert!(gc(&home, &[])["nodes"].as_array().unwrap().iter().all(|node| node["kind"] != "tombstone"), "it is held");
    let mut killed = home.starts("b", &["--lock-delay", "1h", "--session-timeout", "1s"], "echo up; exec sleep 1000");
    for running in [&mut holder, &mut killed] {
        running.kill();
    }
    until("both holds are abandoned", || {
        let answer = gc(&home, &[]);
        of_group(&answer, "tombstones").len() + of_group(&answer, "delaying").len() == 2
    });
    // A later transaction dates the loss.
    home.ok(&["jobs"]);
    until("one delay has passed", || of_group(&gc(&home, &[]), "tombstones").len() == 1);
    let (code, found) = doctor(&home, &[]);
    assert_eq!(
        (code, &found[..]),
        (1, &["left notice 1 tombstone past the lock delay: the next contender waits".to_owned()][..])
    );
    let answer = gc(&home, &["--tombstones"]);
    assert!(answer["deleted"][0].as_str().unwrap().starts_with("/locks/a/_s_"), "{answer}");
    let answer = gc(&home, &[]);
    assert_eq!((of_group(&answer, "tombstones").len(), of_group(&answer, "delaying").len()), (0, 1));
    assert!(home.ok(&["admin", "gc", "--log"]).contains("  1 tombstone deleted by "));
}

/// One realm is down: it is a finding, and the other one is shown.
#[test]
fn a_realm_that_is_down_is_a_finding_and_the_others_are_shown() {
    let site = Site::new();
    let realms = format!("[realms]\n\"/locks/a\" = \"{}\"\n\"/locks/b\" = \"127.0.0.1:1\"\n", site.served.address);
    let home = Home::new();
    std::fs::write(home.file("realms.toml"), realms).unwrap();
    let config = ["--config", "realms.toml"];
    let _holder = home.holds("a/x", &config);
    let (code, answer) = diagnosis(&home, &config);
    assert_eq!(code, 2, "{answer}");
    let [up, down] = &answer["places"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!(
        (&up["realm"], &up["locks"], up["findings"].as_array().unwrap().len()),
        (&"/locks/a".into(), &1.into(), 0)
    );
    assert_eq!((&down["realm"], &down["locks"]), (&"/locks/b".into(), &Value::Null));
    assert!(down["findings"][0]["text"].as_str().unwrap().contains("refuses connections"), "{down}");
    let said = stdout(&home.output(&[&["doctor"], &config[..]].concat()));
    assert!(said.contains(&format!("{} (realm /locks/a)\nservers    ", site.served.address)), "{said}");
    assert!(said.contains("127.0.0.1:1 (realm /locks/b)\nservers !! "), "{said}");
}

/// Three servers of Apache ZooKeeper, of which one is stopped, and then another one.
#[cfg(deep)]
#[test]
fn apaches_ensemble_without_one_server_is_serious_and_its_locks_are_still_seen() {
    use lockkeeper_testkit::apache::{Apache, Options};

    let apache = Apache::ensemble(3, Options::default()).unwrap();
    let home = Home::with_servers(&apache.connect_string());
    home.ok(&["run", "nightly", "--once-per", "day", "--", "true"]);
    assert_eq!(doctor(&home, &[]), (0, vec![]));
    let leader = apache.leader().unwrap();
    let stopped = (leader + 1) % 3;
    apache.kill(stopped);
    let (code, answer) = diagnosis(&home, &[]);
    let [finding] = &answer["places"][0]["findings"].as_array().unwrap()[..] else { panic!("{answer}") };
    let refuses = format!("{} refuses connections: nothing listens there", apache.addr(stopped));
    assert_eq!((code, &finding["text"]), (2, &format!("{refuses}: one more failure stops every lock").into()));
    assert!(answer["places"][0]["locks"] == 0 && answer["places"][0]["clock_ms"] == 0, "{answer}");
    apache.kill(leader);
    until("the last server has noticed", || {
        let (code, found) = doctor(&home, &[]);
        code == 2 && found.iter().any(|finding| finding.contains("runs and serves nobody"))
    });
}

/// Its followers keep on for 20 ticks, and no session opens meanwhile.
#[cfg(deep)]
#[test]
fn a_leader_of_apaches_that_hangs_is_missed_by_doctor_and_by_the_verb_that_fails() {
    use lockkeeper_testkit::apache::{Apache, Options};

    let options = Options::default().tick(std::time::Duration::from_secs(1)).config("syncLimit", "20");
    let apache = Apache::ensemble(3, options).unwrap();
    let home = Home::with_servers(&apache.connect_string());
    home.ok(&["run", "a", "--", "true"]);
    let leader = apache.leader().unwrap();
    apache.pause(leader);
    let (code, found) = doctor(&home, &[]);
    let list = home.output(&["list"]);
    apache.resume(leader);
    let serious = |text: &str| found.contains(&format!("servers serious {text}"));
    assert!(code == 2 && serious("no leader among the servers that answer: no lock is granted now"), "{found:?}");
    let hangs = format!("{} accepts connections and does not answer", apache.addr(leader));
    assert!(serious(&hangs), "it is no spare server: {found:?}");
    let (told, hint) = (String::from_utf8(list.stderr).unwrap(), "hint: see how each server is: lockkeeper doctor");
    assert_eq!(list.status.code(), Some(69), "{told}");
    let follows = "follows a leader and opens no session: does the leader answer?";
    names(&told, &[follows, hint]);
}

/// Each grant waits for the disks of a majority.
#[cfg(deep)]
#[test]
fn servers_of_apache_with_slow_disks_are_said_to_be_slow() {
    use lockkeeper_testkit::apache::{Apache, Options};

    let apache = Apache::ensemble(3, Options::default().tick(std::time::Duration::from_secs(1))).unwrap();
    let home = Home::with_servers(&apache.connect_string());
    let slow = apache.slow_fsync(std::time::Duration::from_millis(1_200)).unwrap();
    let (code, found) = doctor(&home, &[]);
    drop(slow);
    let says = "servers notice these servers answer slowly: a write took ";
    assert!(code == 1 && found.iter().any(|text| text.starts_with(says)), "{code} {found:?}");
}

#[cfg(deep)]
#[test]
fn a_server_of_apache_that_only_reads_is_said_to_be_one() {
    use lockkeeper_testkit::apache::{Apache, Options};

    let options = Options::default().property("readonlymode.enabled", "true");
    let apache = Apache::ensemble(3, options).unwrap();
    let home = Home::with_servers(&apache.connect_string());
    let leader = apache.leader().unwrap();
    apache.kill(leader);
    apache.kill((leader + 1) % 3);
    let last = apache.addr((leader + 2) % 3);
    let says = format!("{last} is cut off from a majority of the servers, and answers stale reads only");
    for verb in [&["list"][..], &["run", "a", "--wait", "2s", "--", "true"]] {
        until("it reads only, and says so", || {
            let output = home.output(verb);
            output.status.code() == Some(69) && String::from_utf8_lossy(&output.stderr).contains(&says)
        });
    }
}

/// Where nothing could be looked at, nothing is known.
#[test]
fn a_state_directory_that_cannot_be_read_is_not_said_to_be_without_locks() {
    let home = Home::new();
    std::fs::write(home.file("occupied"), "").unwrap();
    let path = home.file("occupied");
    let (code, found) = doctor(&home, &["--state-dir", path.to_str().unwrap()]);
    assert!(code == 2 && found.iter().any(|finding| finding.starts_with("servers ")), "{code} {found:?}");
}
