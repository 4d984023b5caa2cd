//! A host that is killed at any request of its run: the claim, the record of the end, and everything around them.

use std::thread::scope;

use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::proxy::{OpCode, Proxy, What};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Home, Running, Served, held, names, until};

/// All requests but pings.
const REQUESTS: [OpCode; 13] = [
    OpCode::Create,
    OpCode::Create2,
    OpCode::Delete,
    OpCode::Exists,
    OpCode::GetData,
    OpCode::SetData,
    OpCode::GetChildren,
    OpCode::GetChildren2,
    OpCode::Sync,
    OpCode::Multi,
    OpCode::Check,
    OpCode::RemoveWatches,
    OpCode::CloseSession,
];

/// Where the host is killed: before the n-th of these requests about its job reaches the server, or before its reply arrives.
#[derive(Clone, Copy, Debug)]
struct Moment {
    op: OpCode,
    nth: u64,
    is_sent: bool,
}

/// Returns the requests of a run about its job, each with its number among those of its kind. On a machine that is busy, another
/// run may have a few more or fewer, and not in this order.
fn requests(served: &Served) -> Vec<(OpCode, u64)> {
    let home = Home::new();
    let proxy = Proxy::start_blocking(served.address.parse().unwrap());
    home.ok(&["run", "plain", "--slot", "1", "--servers", &proxy.connect_string(), "--", "true"]);
    let mut all: Vec<(OpCode, u64)> = Vec::new();
    for record in proxy.records() {
        let What::Request { op, path, .. } = record.what else { continue };
        let is_its = op == OpCode::CloseSession || path.is_some_and(|path| path.contains("plain"));
        if is_its && REQUESTS.contains(&op) {
            let before = all.iter().filter(|(other, _)| *other == op).count();
            all.push((op, before as u64 + 1));
        }
    }
    all
}

/// Kills a host at this moment, then runs the slot on another one. Returns what the records show, or `None` if the run had
/// no such request.
fn killed(served: &Served, rule: &str, moment: Moment) -> Option<Value> {
    let home = Home::with_servers(&served.address);
    let proxy = Proxy::start_blocking(served.address.parse().unwrap());
    let Moment { op, nth, is_sent } = moment;
    let name = format!("{rule}-{op:?}-{nth}-{is_sent}");
    let on = proxy.on(op).nth(nth);
    let on = if op == OpCode::CloseSession { on } else { on.path(&name) };
    let held = if is_sent { on.hold_reply() } else { on.hold_request() };
    let args = ["run", &name, "--slot", "1", "--on-crash", rule, "--session-timeout", "2s"];
    let work = ["--", "sh", "-c", "echo x >> ran"];
    let mut host = Running::start(
        home.command(&[&args[..], &["--servers", &proxy.connect_string()], &work].concat())
            .env_remove("LOCKKEEPER_SERVERS"),
    );
    let mut ended = false;
    until("the moment comes, or the host ends", || {
        ended = host.child.try_wait().unwrap().is_some();
        ended || held.has_caught()
    });
    if !held.has_caught() {
        return None;
    }
    // Some requests are not waited for: the host may have ended well.
    if host.child.try_wait().unwrap().is_none() {
        host.signal(Signal::KILL);
    }
    host.wait();
    // The request or the reply stays where it is.
    let other = home.output(&[&args[..], &work].concat());
    let runs = std::fs::read_to_string(home.file("ran")).unwrap_or_default().lines().count();
    let document = home.json(&["jobs", &name, "--json"]);
    let job = document["jobs"][0].clone();
    let what = format!("{rule}, {moment:?}: {runs} runs, {other:?}, {job:#}");
    let records = job["runs"].as_array().unwrap();
    let ends: Vec<_> = records.iter().map(|record| record["end"]["kind"].as_str().unwrap_or("none")).collect();
    // Each claim has one record with an end, and nothing is half.
    match (&ends[..], rule) {
        // The host did not claim, or it recorded its end.
        (["succeeded"], _) => assert!(runs == 1 && job["state"] == "ok" && other.status.code() == Some(0), "{what}"),
        (["crashed"], "next") => assert!(runs <= 1 && other.status.code() == Some(0), "{what}"),
        (["crashed"], "keep") => {
            assert!(runs <= 1 && job["state"] == "kept" && other.status.code() == Some(82), "{what}");
        }
        (["crashed", "succeeded"], "retry") => {
            assert!((1..=2).contains(&runs) && job["state"] == "ok" && records[1]["attempt"] == 2, "{what}");
        }
        _ => panic!("{what}"),
    }
    drop(held);
    Some(job)
}

/// At most once with `next` and `keep`, at least once with `retry`.
#[test]
fn a_kill_at_any_request_of_a_run_keeps_the_promise_of_the_rule() {
    let served = Served::start(&Home::new());
    let moments = [false, true].map(|is_sent| ["next", "retry", "keep"].map(|rule| (rule, is_sent)));
    // Each rule with each kind of moment, or only as many as show every promise once.
    let moments = if is_deep() { moments.as_flattened() } else { &moments.as_flattened()[3..5] };
    let requests = requests(&served);
    let counts = scope(|threads| {
        let all: Vec<_> = moments
            .iter()
            .map(|(rule, is_sent)| {
                let (served, requests) = (&served, &requests);
                threads.spawn(move || {
                    let moments = requests.iter().map(|(op, nth)| Moment { op: *op, nth: *nth, is_sent: *is_sent });
                    let jobs: Vec<_> = moments.filter_map(|moment| killed(served, rule, moment)).collect();
                    let crashed = jobs.iter().filter(|job| job["runs"][0]["end"]["kind"] == "crashed").count();
                    (jobs.len(), crashed)
                })
            })
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for (kills, crashed) in counts {
        // The acquire, the claim and the record are among them, and some kills are between the claim and the record.
        assert!(kills > 4 && crashed > 0 && crashed < kills, "{kills} kills, {crashed} crashed: {requests:?}");
    }
}

/// The same machine knows it at once; the servers know it when the session expires.
#[test]
fn a_job_whose_process_was_killed_on_this_machine_is_shown_so_before_its_session_expires() {
    let (home, mut killed) = held("a", &["--slot", "1", "--session-timeout", "40s"]);
    let shown = || {
        let output = home.output(&["jobs", "a", "--json"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["jobs"][0].clone()
    };
    assert_eq!(shown()["process_gone"], false);
    killed.kill();
    let job = shown();
    assert_eq!((&job["state"], &job["process_gone"]), (&"running".into(), &true.into()), "{job}");
    names(&home.ok(&["jobs", "a"]), &["its process is no longer on this machine"]);
    for words in [&["forget", "a"][..], &["rerun", "a"], &["rerun", "a", "1"], &["resolve", "a", "--accept"]] {
        let output = home.output(&[&["jobs"], words].concat());
        let (code, line) = crate::harness::failure(&output);
        assert!(
            code == Some(1) && line.contains("has ended, but its session has not expired yet"),
            "{words:?}: {line}"
        );
        let hints = String::from_utf8(output.stderr).unwrap();
        assert!(hints.contains("lockkeeper break /locks/a --reason WHY") && !hints.contains("revoke"), "{hints}");
    }
    let next = home.output(&["run", "a", "--slot", "1", "--try", "-v", "--", "true"]);
    let told = String::from_utf8(next.stderr).unwrap();
    assert!(told.contains("its process is no longer on this machine") && !told.contains("running on"), "{told}");
}
