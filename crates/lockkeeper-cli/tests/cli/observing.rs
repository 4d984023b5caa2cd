//! `observe`: what happens to all locks, as metrics, as a page and as a journal.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::Value;
use zookeeper_client::CreateMode;

use crate::harness::{BINARY, Home, Running, Served, failure, names, served, text, until};
use crate::plain::Plain;

struct Observing {
    running: Running,
    address: String,
}

impl Observing {
    fn start(home: &Home, args: &[&str]) -> Self {
        let observing = Observing::begin(home, args);
        until("it sees the tree", || observing.get("/healthz").0 == 200);
        observing
    }

    /// Starts one that may not see everything.
    fn begin(home: &Home, args: &[&str]) -> Self {
        let mut running = Running::start(&mut home.command(&[&["observe", "--listen", "127.0.0.1:0"], args].concat()));
        let address = running.line().strip_prefix("http://").expect("an address").to_owned();
        Observing { running, address }
    }

    /// Ends it by this signal; returns its standard error.
    fn end(&mut self, signal: Signal) -> String {
        self.running.signal(signal);
        self.running.ends(0)
    }

    /// Returns the status and the body of an answer.
    fn get(&self, path: &str) -> (u16, String) {
        self.get_as(path, &self.address)
    }

    fn get_as(&self, path: &str, host: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Returns the value of a series; 0 without it.
    fn metric(&self, series: &str) -> f64 {
        let text = self.get("/metrics").1;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// Services are killed if they end too late: in Kubernetes after 30 s.
#[test]
fn a_signal_ends_an_observer_while_its_servers_are_away() {
    let machine = Home::new();
    let served = Served::start_with(&machine, "127.0.0.1:0", &["--max-session-timeout", "1h"]);
    let home = Home::with_servers(&served.address);
    let mut observing = Observing::start(&home, &["--session-timeout", "1h"]);
    drop(served);
    until("it sees nothing", || observing.get("/healthz").0 == 503);
    observing.end(Signal::TERM);
}

#[test]
fn runs_are_counted_and_their_facts_are_in_the_journal() {
    let (_served, home) = served();
    let mut observing = Observing::start(&home, &["--journal", "j"]);
    let state = || serde_json::from_str::<Value>(&observing.get("/state.json").1).unwrap();
    // The record of an end is about an owner, whom the observer knows from the node: it must be read before it is deleted.
    let is_read = |lock: &str, role: &str| {
        let locks = state()["locks"].as_array().unwrap().clone();
        locks.iter().any(|it| {
            it["path"] == lock && it[role][0]["described"].as_str().is_some_and(|who| who != "an unnamed client")
        })
    };
    for _ in 0..3 {
        let mut quick = home.holds("quick", &[]);
        until("the holder is read", || is_read("/locks/quick", "holders"));
        quick.finish();
    }
    let mut holder = home.holds("slow", &["-m", "nightly index"]);
    let mut waiter = home.spawn("slow", &[], "true");
    until("one waits", || observing.metric("lockkeeper_waiters{lock=\"/locks/slow\"}") == 1.0);
    until("both are read", || is_read("/locks/slow", "holders") && is_read("/locks/slow", "waiters"));
    let state = state();
    let slow = &state["locks"][0];
    assert_eq!((slow["path"].as_str(), slow["waiters"].as_array().unwrap().len()), (Some("/locks/slow"), 1));
    assert_eq!(slow["holders"][0]["message"], "nightly index");
    holder.close_stdin();
    assert!(holder.wait().success() && waiter.wait().success());
    for (lock, holds) in [("quick", 3.0), ("slow", 2.0)] {
        let series = format!("lockkeeper_hold_seconds_count{{lock=\"/locks/{lock}\"}}");
        until("the holds are counted", || observing.metric(&series) == holds);
        assert_eq!(observing.metric(&series.replace("hold", "wait")), holds);
    }
    assert_eq!(observing.metric("lockkeeper_empty{root=\"/locks\"}"), 2.0);
    // Only the records of the history say that: each run ends its session.
    let released = || observing.get("/history.jsonl").1.matches("\"end\":\"released\"").count();
    until("each is known to be released", || released() == 5);
    let served_journal = observing.get("/history.jsonl").1;
    assert_eq!(observing.get_as("/metrics", "evil.example").0, 421);
    names(&observing.end(Signal::TERM), &["lockkeeper: observing /locks on "]);
    let journal = text(&home.file("j/history.jsonl"));
    let facts: Vec<Value> = journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |fact: &str| facts.iter().filter(|line| line["fact"] == fact).count();
    assert_eq!(["entered", "granted", "ended", "stopped", "gap"].map(count), [5, 5, 5, 1, 0], "{journal}");
    // The service has given what was there then.
    assert!(served_journal.lines().count() >= 15 && served_journal.contains("\"fact\":\"ended\""), "{served_journal}");
}

/// One shape in JSON, also of a semaphore of Curator's clients. Only the observer knows since when it has seen a contender hold or wait.
#[test]
fn an_observer_serves_each_lock_as_show_and_list_print_it() {
    let (served, home) = served();
    let plain = Plain::connect(&served.address);
    for path in ["/locks", "/locks/pool", "/locks/pool/leases", "/locks/pool/locks"] {
        plain.create(path, "");
    }
    let lease = "/locks/pool/leases/_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lease-";
    plain.create_as(CreateMode::EphemeralSequential, lease, "10.0.0.7");
    let observing = Observing::start(&home, &[]);
    let mut holder = home.holds("slow", &["-m", "nightly index"]);
    let mut waiter = home.spawn("slow", &[], "true");
    let without = |mut lock: Value, keys: &[&str]| {
        keys.iter().for_each(|key| _ = lock.as_object_mut().unwrap().remove(*key));
        lock
    };
    for name in ["slow", "pool"] {
        let path = format!("/locks/{name}");
        let of = |answer: &Value| answer["locks"].as_array().unwrap().iter().find(|it| it["path"] == path).cloned();
        let columns =
            ["held_ms", "held_at_least_ms", "held_at_most_ms", "usual_ms", "oldest_wait_ms", "per_hour", "states"];
        until("the observer serves what the others print", || {
            let shown = without(home.show(name), &["scope"]);
            let listed = home.json(&["list", "--json"]);
            let listed = of(&listed).map(|lock| without(lock, &columns));
            let served = of(&serde_json::from_str(&observing.get("/state.json").1).unwrap()).map(|mut lock| {
                for role in ["holders", "waiters"] {
                    for contender in lock[role].as_array_mut().unwrap() {
                        assert!(contender["observed_since_ms"].is_u64(), "{contender}");
                        *contender = without(contender.take(), &["observed_since_ms", "about"]);
                    }
                }
                lock
            });
            listed.as_ref() == Some(&shown) && served == Some(shown)
        });
    }
    assert_eq!(home.show("pool")["semaphore"], "curator");
    assert_eq!(home.show("slow")["entries"]["count"], 2);
    holder.close_stdin();
    assert!(holder.wait().success() && waiter.wait().success());
}

/// Each of two runs waits for the lock of the other one.
#[test]
fn the_page_has_the_deadlock_and_the_commands_that_show_the_same() {
    let (served, home) = served();
    let mut observing = Observing::start(&home, &[]);
    assert!(observing.get("/").1.contains("No lock is in use"));
    let nested = |outer: &str, inner: &str| {
        let script = format!("echo up; read line; exec {BINARY} run '{inner}' -- true");
        home.starts(outer, &["-m", "<b>nightly</b>"], &script)
    };
    let mut runs = [nested("a", "b c"), nested("b c", "a")];
    for run in &mut runs {
        run.child.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
    }
    until("the deadlock is shown", || observing.get("/").1.contains("Deadlock 1: certain"));
    let (status, page) = observing.get("/lock?path=/locks/b%20c");
    assert_eq!(status, 200);
    let place = format!("--servers {}", served.address);
    for command in ["why '/locks/b c'", "history '/locks/b c'", "deadlocks"] {
        let shown = page.split("<code>").find(|code| code.starts_with(&format!("lockkeeper {command} ")));
        assert!(shown.is_some_and(|shown| shown.contains(&place)), "{command}: {page}");
    }
    names(&page, &["&lt;b&gt;nightly&lt;/b&gt;", "<td>waits</td>"]);
    assert_eq!(observing.get_as("/", "evil.example").0, 421);
    assert_eq!(observing.metric("lockkeeper_deadlocks"), 1.0);
    for mut run in runs {
        run.signal(Signal::TERM);
        run.wait();
    }
    until("the deadlock is over", || observing.metric("lockkeeper_deadlocks") == 0.0);
    observing.end(Signal::TERM);
}

/// The one that fails is first. The other one never ran, and its request is refused.
#[test]
fn the_page_has_the_jobs_with_those_that_are_not_in_order_first() {
    let (_served, home) = served();
    home.ok(&["jobs", "expect", "nightly", "--once-per", "day"]);
    let observing = Observing::start(&home, &[]);
    until("the job is shown", || observing.get("/").1.contains("never ran"));
    let daily = |name: &str, command: &[&str]| {
        home.output(&[&["run", name, "--once-per", "day", "--"], command].concat()).status.code()
    };
    assert_eq!((daily("archive", &["true"]), daily("backup", &["sh", "-c", "exit 3"])), (Some(0), Some(3)));
    let _holder = home.holds("nightly", &["-m", "manual rerun"]);
    assert_eq!(home.output(&["run", "nightly", "--once-per", "day", "--try", "--", "true"]).status.code(), Some(75));
    until("the refused request is shown", || observing.get("/").1.contains(">refused<"));
    let page = observing.get("/").1;
    let jobs = page.split("id=\"job-list\"").nth(1).unwrap().split("</table>").next().unwrap();
    let at = |text: &str| jobs.find(text).unwrap_or_else(|| panic!("{text} is missing in {jobs}"));
    let places = [at("/locks/backup<"), at(">failed<"), at("/locks/nightly<"), at(">refused<"), at("/locks/archive<")];
    assert!(places.is_sorted() && at(">ok<") > places[4], "{jobs}");
    names(jobs, &["failed with exit status 3", "lockkeeper jobs /locks/backup --history"]);
    home.ok(&["jobs", "forget", "backup"]);
    until("it is not shown any more", || !observing.get("/").1.contains("/locks/backup --history"));
}

/// Each realm is observed, and each has its line and its tree. The commands of the page have the settings with the realms.
#[test]
fn all_realms_are_observed_and_the_outage_of_one_is_its_own() {
    let (machines, home) = ([Home::new(), Home::new()], Home::new());
    let [first, second] = machines.each_ref().map(Served::start_to_end);
    let realms = format!("[realms]\n\"/locks/a\" = \"{}\"\n\"/locks/b\" = \"{}\"\n", first.address, second.address);
    std::fs::write(home.file("realms.toml"), realms).unwrap();
    let mut observing = Observing::start(&home, &["--config", "realms.toml", "--journal", "j"]);
    let servers = [first.address.clone(), second.address.clone()];
    let mut holders = ["a/x", "b/x"].map(|name| home.holds(name, &["--config", "realms.toml"]));
    for name in ["a/x", "b/x"] {
        until("its holder is seen", || {
            observing.get("/").1.contains(&format!("lockkeeper why /locks/{name} --config"))
        });
    }
    drop(second);
    until("one realm is not seen", || observing.get("/healthz").0 == 503);
    assert_eq!(observing.get("/healthz").1, "/locks/a seen\n/locks/b not seen\n");
    holders[0].close_stdin();
    assert!(holders[0].wait().success());
    let series = "lockkeeper_hold_seconds_count{lock=\"/locks/a/x\"}";
    until("the end of a hold in the other one is seen", || observing.metric(series) == 1.0);
    // Another server begins at its address, without what the first one had.
    let _again = Served::start_with(&machines[1], &servers[1], &["--first-zxid", "1000000"]);
    until("it sees the tree again", || observing.get("/healthz").0 == 200);
    assert_eq!(observing.metric("lockkeeper_gaps_total{root=\"/locks/b\",why=\"disconnected\"}"), 1.0);
    home.ok(&["run", "b/quick", "--config", "realms.toml", "--", "true"]);
    until("the hold is seen", || observing.metric("lockkeeper_hold_seconds_count{lock=\"/locks/b/quick\"}") == 1.0);
    let said = observing.end(Signal::INT);
    let count = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    assert_eq!([count("is lost"), count("are seen again")], [1, 1], "{said}");
    let journal = text(&home.file("j/history.jsonl"));
    assert_eq!(journal.matches("\"fact\":\"gap\"").count(), 1, "{journal}");
    for (root, servers) in [("/locks/a", &servers[0]), ("/locks/b", &servers[1])] {
        assert!(said.contains(&format!("observing {root} on {servers}: ")), "{said}");
    }
    assert!(
        said.contains(&format!("the connection to {} is lost: changes of /locks/b are not seen", servers[1])),
        "{said}"
    );
}

/// One realm comes after the observer: it is said at the start, it is a gap, and it is observed from then on. Without any realm there is
/// nothing to observe.
#[test]
fn a_realm_that_is_down_at_the_start_is_joined_when_it_comes() {
    let (machines, home) = ([Home::new(), Home::new()], Home::new());
    let [first, second] = machines.each_ref().map(Served::start_to_end);
    let late = second.address.clone();
    let realms = format!("[realms]\n\"/locks/a\" = \"{}\"\n\"/locks/b\" = \"{late}\"\n", first.address);
    std::fs::write(home.file("realms.toml"), realms).unwrap();
    let config = ["--config", "realms.toml"];
    drop(second);
    let args = [&["--journal", "j"], &config[..]].concat();
    let mut observing = Observing::begin(&home, &args);
    until("one realm is seen", || observing.get("/healthz").1 == "/locks/a seen\n/locks/b not seen\n");
    let _holder = home.holds("a/x", &config);
    until("its holder is seen", || observing.metric("lockkeeper_holders{lock=\"/locks/a/x\"}") == 1.0);
    let _second = Served::start_at(&machines[1], &late);
    until("the other realm is seen, too", || observing.get("/healthz").0 == 200);
    let _other = home.holds("b/x", &config);
    until("its holder is seen", || observing.metric("lockkeeper_holders{lock=\"/locks/b/x\"}") == 1.0);
    let series = "lockkeeper_gaps_total{root=\"/locks/b\",why=\"not_reached\"}";
    assert_eq!(
        observing.metric(series),
        1.0,
        "{}\n{}",
        observing.get("/metrics").1,
        text(&home.file("j/history.jsonl"))
    );
    assert!(text(&home.file("j/history.jsonl")).contains("\"why\":\"not_reached\""));
    let said = observing.end(Signal::TERM);
    for line in [
        format!("{late} (realm /locks/b) is not observed until it can be reached: "),
        format!("{late} cannot be reached: changes of /locks/b are not seen"),
        "changes of /locks/b are seen again, after a gap of ".to_owned(),
        format!("observing /locks/b on {late}: "),
    ] {
        assert!(said.contains(&line), "{line:?} is missing in {said}");
    }
    std::fs::write(home.file("gone.toml"), "[realms]\n\"/a\" = \"127.0.0.1:1\"\n\"/b\" = \"127.0.0.1:1\"\n").unwrap();
    home.failure(&["observe", "--listen", "127.0.0.1:0", "/", "--config", "gone.toml"], 69);
}

#[test]
fn what_it_cannot_do_is_refused() {
    let home = Home::new();
    let refused = |args: &[&str]| failure(&home.output(&[&["observe"], args].concat()));
    let (code, line) = refused(&["--listen", "0.0.0.0:0"]);
    assert_eq!(code, Some(64), "{line}");
    assert!(line.contains("the service has no login"), "{line}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, line) = refused(&["--listen", &taken.local_addr().unwrap().to_string()]);
    assert_eq!(code, Some(70), "{line}");
    let (code, line) = refused(&["--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(69), "{line}");
    assert!(line.contains("is not running"), "{line}");
}

#[cfg(deep)]
mod apache {
    use lockkeeper_testkit::apache::{Apache, Options};

    use super::*;

    /// One after the other is killed and started again, so each connection of the observer is lost once. Every hold is counted, and times
    /// that were not seen are gaps.
    #[test]
    fn an_ensemble_is_observed_on_while_each_of_its_servers_is_killed_once() {
        let apache = Apache::ensemble(3, Options::default()).unwrap();
        let home = Home::with_servers(&apache.connect_string());
        let mut observing = Observing::start(&home, &["--journal", "j"]);
        let holds = || observing.metric("lockkeeper_hold_seconds_count{lock=\"/locks/quick\"}");
        for server in 0..3 {
            apache.kill(server);
            home.ok(&["run", "quick", "--wait", "1m", "--", "true"]);
            until("it sees the tree", || observing.get("/healthz").0 == 200);
            home.ok(&["run", "quick", "--wait", "1m", "--", "true"]);
            apache.restart(server).unwrap();
        }
        // A hold within a gap is not seen.
        until("the others are seen", || holds() >= 3.0);
        let gaps = observing.metric("lockkeeper_gaps_total{root=\"/locks\",why=\"disconnected\"}");
        assert!((1.0..=6.0).contains(&gaps), "{gaps}");
        let said = observing.end(Signal::TERM);
        let count = |what: &str| said.lines().filter(|line| line.contains(what)).count();
        assert_eq!((count("is lost"), count("are seen again")), (gaps as usize, gaps as usize), "{said}");
    }
}
