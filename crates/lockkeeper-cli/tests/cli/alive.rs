//! What `why` shows of a holder that may be stuck: whether its session answers, and when its job last wrote something.

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Home, Served, names, until};
use crate::incidents::foreign::{Foreign, Nodes};

/// Checks what is said of a run that answers, that is stopped, and that is killed; then of a foreign client.
fn sessions_are_seen(servers: &str) {
    let home = Home::with_servers(servers);
    let holder = home.holds("reindex", &[]);
    let answer = home.json(&["why", "reindex", "--json"]);
    let (session, seen) = (answer["lock"]["holders"][0]["session"].as_str().unwrap(), &answer["sessions"][0]);
    assert_eq!((&seen["session"], answer["sessions"].as_array().unwrap().len()), (&session.into(), 1));
    let address = seen["address"].as_str().unwrap();
    assert!(address.starts_with("127.0.0.1:") && servers.contains(seen["server"].as_str().unwrap()), "{seen}");
    let is_alone = !servers.contains(',');
    assert!(seen["is_exact"] == is_alone || !is_alone, "a single server is that of the question, too: {seen}");
    let text = home.ok(&["why", "reindex"]);
    assert!(text.contains(&format!("\n  session {session} ")), "{text}");
    assert!(text.contains(&format!(" from {address}\n")), "{text}");
    // Its session stays open for a while, and nothing is heard of it.
    holder.signal(Signal::STOP);
    if is_alone {
        until("it is seen to be silent", || {
            home.json(&["why", "reindex", "--json"])["sessions"][0]["silent_ms"].as_u64() > Some(1_000)
        });
    }
    holder.signal(Signal::KILL);
    let gone = format!("\n  session {session} has no connection to {}", servers.split('/').next().unwrap());
    let gone = gone.replace(',', ", ");
    until("it has no connection", || home.ok(&["why", "reindex"]).contains(&gone));
    let mut foreign = Nodes::connect(servers, "curator");
    foreign.join("stock");
    names(&home.ok(&["why", "stock"]), &[" from 127.0.0.1:", "\n  session 0x"]);
    let doctor = || String::from_utf8(home.output(&["doctor"]).stdout).unwrap();
    assert!(!doctor().contains("no server is connected to"));
    // Its machine is gone; its session lives for a while.
    drop(foreign);
    let gone = "/locks/stock: no server is connected to 10.0.3.7, whose machine or network may be down";
    until("doctor names it", || doctor().contains(gone));
}

#[test]
fn the_session_of_a_holder_is_seen_at_a_server_that_lists_its_clients() {
    let served = Served::start_with(&Home::new(), "127.0.0.1:0", &["--words", "all"]);
    sessions_are_seen(&served.address);
}

#[test]
fn nothing_is_said_of_sessions_where_the_servers_do_not_list_their_clients_and_doctor_says_so() {
    let served = Served::start_with(&Home::new(), "127.0.0.1:0", &["--words", "srvr,conf"]);
    let home = Home::with_servers(&served.address);
    let _holder = home.holds("reindex", &[]);
    let text = home.ok(&["why", "reindex"]);
    assert!(!text.contains("session"), "{text}");
    assert_eq!(home.json(&["why", "reindex", "--json"])["sessions"], Value::Array(Vec::new()));
    let doctor = home.ok(&["doctor"]);
    let unseen = format!("from where holders are connected to {}: cons is not in the whitelist", served.address);
    assert!(doctor.contains(&unseen), "{doctor}");
}

/// The file is that of a job with a redirected output; a pipe says nothing.
#[cfg(target_os = "linux")]
#[test]
fn the_last_output_of_a_job_on_this_machine_is_the_last_write_of_its_file() {
    let home = Home::new();
    let log = home.file("x.log");
    let script = format!("echo up; exec 2>{}; echo started >&2; cat", log.display());
    let mut holders = [("reindex", script.as_str()), ("import", "echo up; cat")].map(|it| home.spawn(it.0, &[], it.1));
    assert!(holders.iter_mut().all(|holder| holder.line() == "up"));
    until("it has written", || std::fs::read_to_string(&log).is_ok_and(|text| text == "started\n"));
    let hours = std::time::SystemTime::now() - std::time::Duration::from_secs(3 * 3600 + 1);
    std::fs::File::options().write(true).open(&log).unwrap().set_modified(hours).unwrap();
    let text = home.ok(&["why", "reindex"]);
    let path = log.canonicalize().unwrap();
    assert!(text.contains(&format!("\n  its output was last written 3 h ago ({})\n", path.display())), "{text}");
    let at_work = &home.json(&["why", "reindex", "--json"])["at_work"];
    let written = hours.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert_eq!(at_work["output"]["written_ms"], written, "{at_work}");
    let other = home.json(&["why", "import", "--json"]);
    assert!(other["at_work"]["output"].is_null() && other["at_work"]["processes"].as_u64() > Some(1), "{other}");
}

#[cfg(deep)]
mod apache {
    use lockkeeper_testkit::apache::{Apache, Options};

    #[test]
    fn the_session_of_a_holder_is_seen_at_a_single_server() {
        let apache = Apache::single(Options::default()).unwrap();
        super::sessions_are_seen(&apache.connect_string());
    }

    #[test]
    fn the_session_of_a_holder_is_seen_at_each_server_of_an_ensemble() {
        let apache = Apache::ensemble(3, Options::default()).unwrap();
        super::sessions_are_seen(&apache.connect_string());
    }
}
