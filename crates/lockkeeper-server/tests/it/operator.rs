//! What an operator is told.

use std::time::Duration;

use lockkeeper_server::Server;

use crate::client::*;

fn server() -> Server {
    wait(Server::ephemeral()).unwrap()
}

#[test]
fn four_letter_words_answer_operators() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/e", 1).unwrap();
    client.exists("/e", true);
    assert_eq!(four_letters(server.addr(), "ruok"), "imok");
    let srvr = four_letters(server.addr(), "srvr");
    assert!(srvr.starts_with("Zookeeper version: 3.9.") && srvr.contains("\nMode: standalone\n"), "{srvr}");
    assert!(srvr.contains("\nZxid: 0x2\nMode: standalone\nNode count: 5\n"), "{srvr}");
    let stat = four_letters(server.addr(), "stat");
    assert!(
        stat.contains(&format!(" /{}[1](queued=0,recved=3,sent=3)\n", client.stream.local_addr().unwrap())),
        "{stat}"
    );
    let mntr = four_letters(server.addr(), "mntr");
    for line in ["zk_server_state\tstandalone", "zk_znode_count\t5", "zk_watch_count\t1", "zk_ephemerals_count\t1"] {
        assert!(mntr.lines().any(|have| have == line), "{line} in {mntr}");
    }
}

#[test]
fn every_word_is_answered_as_programs_expect_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = lockkeeper_server::Config::default().with_directory(directory.path());
    let server = wait(Server::start(config)).unwrap();
    let ask = |word| four_letters(server.addr(), word);
    let mut client = Client::connect(server.addr());
    let session = client.session.id;
    client.create("/a", 0).unwrap();
    client.create("/a/e", 1).unwrap();
    client.exists("/a", true);
    client.children("/a", true).unwrap();
    client.exists("/later", true);
    assert_eq!(ask("isro"), "rw");
    assert!(ask("envi").starts_with("Environment:\nzookeeper.version=3.9."));
    let conf = ask("conf");
    for line in
        [format!("clientPort={}", server.addr().port()), "tickTime=2000".into(), "maxSessionTimeout=40000".into()]
    {
        assert!(conf.lines().any(|have| have == line), "{line} in {conf}");
    }
    assert!(conf.contains(&format!("dataDir={}\n", directory.path().display())));
    let cons = ask("cons");
    let expected =
        format!(" /{}[1](queued=0,recved=6,sent=6,sid={session:#x},lop=EXIS,est=", client.stream.local_addr().unwrap());
    assert!(cons.starts_with(&expected) && cons.ends_with(",to=10000,lcxid=0x5)\n\n"), "{cons}");
    let dump = ask("dump");
    assert!(dump.starts_with("SessionTracker dump:\nSession Sets (1)/(1):\n1 expire in "), "{dump}");
    assert!(
        dump.ends_with(&format!(
            ":\n\t{session:#x}\nephemeral nodes dump:\nSessions with Ephemerals (1):\n{session:#x}:\n\t/a/e\n"
        )),
        "{dump}"
    );
    assert_eq!(ask("wchs"), "1 connections watching 2 paths\nTotal watches:3\n");
    assert_eq!(ask("wchc"), format!("{session:#x}\n\t/a\n\t/later\n"));
    assert_eq!(ask("wchp"), format!("/a\n\t{session:#x}\n/later\n\t{session:#x}\n"));
    assert_eq!(ask("crst"), "Connection stats reset.\n");
    assert!(ask("cons").contains("(queued=0,recved=0,sent=0,sid="));
}

/// Times are of answers: one that waits for the disk has taken a moment, and a reset forgets it.
#[test]
fn latencies_are_measured_and_reset() {
    let directory = tempfile::tempdir().unwrap();
    let server = wait(Server::start(lockkeeper_server::Config::default().with_directory(directory.path()))).unwrap();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    let stats = server.stats();
    assert!(stats.latency_min <= stats.latency_mean && stats.latency_mean <= stats.latency_max, "{stats:?}");
    assert!(stats.latency_max > Duration::ZERO, "no disk is that fast");
    assert!(four_letters(server.addr(), "srvr").contains("\nLatency min/avg/max: "));
    assert_eq!(four_letters(server.addr(), "srst"), "Server stats reset.\n");
    let stats = server.stats();
    assert_eq!((stats.latency_max, stats.packets_received), (Duration::ZERO, 1), "the word itself is the first packet");
}
