use lockkeeper_observe::servers::{Limits, Member, Vitals};

use super::*;

/// A server in this state.
fn report(name: &str, state: ServerState) -> ServerReport {
    ServerReport { name: name.to_owned(), state, limits: None }
}

/// A server that serves, in this mode.
fn serves(name: &str, mode: ServerMode) -> ServerReport {
    let vitals = Vitals {
        mode: Some(mode),
        version: "3.8.0".to_owned(),
        latency: None,
        round_trip: Duration::from_millis(2),
        connections: None,
        zxid: None,
        nodes: None,
    };
    report(name, ServerState::Serves(vitals))
}

fn refuses(name: &str) -> ServerReport {
    report(name, ServerState::Refuses)
}

fn leads(name: &str) -> ServerReport {
    serves(name, ServerMode::Leader)
}

fn follows(name: &str) -> ServerReport {
    serves(name, ServerMode::Follower)
}

/// The findings about these servers, each with its mark before it.
fn told(reports: &[ServerReport]) -> Vec<String> {
    told_with(reports, Times::default())
}

/// The same with what their answers took.
fn told_with(reports: &[ServerReport], times: Times) -> Vec<String> {
    let mark = |severity| if severity == Severity::Serious { "!!" } else { "!" };
    let found = servers(reports, times).into_iter().chain(slow(reports, times));
    found.map(|finding| format!("{} {}", mark(finding.severity), finding.text)).collect()
}

const NO_TEXT: [String; 0] = [];

#[test]
fn servers_that_serve_are_no_finding() {
    assert_eq!(told(&[serves("zk1:1", ServerMode::Standalone)]), NO_TEXT);
    assert_eq!(
        told(&[leads("zk1:1"), follows("zk2:1"), follows("zk3:1"), serves("zk4:1", ServerMode::Observer)]),
        NO_TEXT
    );
    assert_eq!(told(&[report("zk1:1", ServerState::NotAllowed)]), NO_TEXT, "it is not known");
}

#[test]
fn a_stopped_server_is_as_serious_as_its_consequence() {
    let three = [leads("zk1:1"), follows("zk2:1"), refuses("zk3:1")];
    assert_eq!(
        told(&three),
        ["!! zk3:1 refuses connections: nothing listens there: one more failure stops every lock"]
    );
    let five = [leads("zk1:1"), follows("zk2:1"), follows("zk3:1"), follows("zk4:1"), refuses("zk5:1")];
    assert_eq!(told(&five), ["! zk5:1 refuses connections: nothing listens there"]);
    let cut_off =
        [report("zk1:1", ServerState::NoMajority), refuses("zk2:1"), report("zk3:1", ServerState::NotAllowed)];
    let told = told(&cut_off);
    assert!(
        told.len() == 2 && told.iter().all(|text| text.starts_with("!!") && text.ends_with(": no majority is left"))
    );
}

/// Its followers serve until they miss it, and no session opens meanwhile.
#[test]
fn followers_without_a_leader_grant_no_lock() {
    let hangs = [follows("zk1:1"), follows("zk2:1"), report("zk3:1", ServerState::Silent)];
    let waited = |session: u64, write| Times { session: Some(Duration::from_secs(session)), write };
    let silent = "!! zk3:1 accepts connections and does not answer";
    let none = "!! no leader among the servers that answer: no lock is granted now";
    assert_eq!(told_with(&hangs, waited(10, None)), [none, silent]);
    let write = Some(Duration::from_millis(2));
    let later = "!! no leader among the servers that answered: a session was opened only after 16 s";
    assert_eq!(told_with(&hangs, waited(16, write)), [later, silent]);
    // A server that the connect string does not name leads.
    let consequence = format!("{silent}: one more failure stops every lock");
    assert_eq!(told_with(&hangs, waited(0, write)), [consequence]);
    assert_eq!(told_with(&[follows("zk1:1"), follows("zk2:1")], waited(0, write)), NO_TEXT);
}

#[test]
fn servers_that_take_a_second_for_a_write_are_slow() {
    let took = |ms| Times { session: Some(Duration::ZERO), write: Some(Duration::from_millis(ms)) };
    let reports = [leads("zk1:1"), follows("zk2:1"), follows("zk3:1")];
    let slow = "! these servers answer slowly: a write took 1.8 s, and each grant needs one";
    assert_eq!(told_with(&reports, took(1_800)), [slow]);
    assert_eq!(told_with(&reports, took(999)), NO_TEXT);
    let alone = [serves("zk1:1", ServerMode::Standalone)];
    assert!(told_with(&alone, took(2_000))[0].starts_with("! this server answers slowly: a write took 2 s"));
}

/// The connect string may name some of the servers. Their membership says how many there are.
#[test]
fn servers_that_the_connect_string_does_not_name_may_run() {
    let membership = Some(Limits { voters: Some(5), ..Limits::default() });
    let some = [ServerReport { limits: membership, ..leads("zk1:1") }, follows("zk2:1"), refuses("zk3:1")];
    assert_eq!(told(&some), ["! zk3:1 refuses connections: nothing listens there"]);
}

/// A misspelt name takes no part in a majority.
#[test]
fn a_name_that_is_no_member_of_the_ensemble_is_a_mistake_and_no_failure() {
    let member = |host: &str| Member { host: host.to_owned(), client_port: Some(2181) };
    let members = ["zk1", "zk2", "zk3"].map(member).to_vec();
    let limits = || Some(Limits { voters: Some(3), members: members.clone(), ..Limits::default() });
    let leader = || ServerReport { limits: limits(), ..leads("zk1:2181") };
    let problem = "cannot be reached (Name or service not known)".to_owned();
    let unknown = report("nohost:2181", ServerState::NotResolved { problem: problem.clone() });
    let lists = "the ensemble lists no such member, only zk1, zk2, zk3: correct --servers";
    assert_eq!(told(&[leader(), unknown]), [format!("! nohost:2181 {problem}; {lists}")]);
    let wrong_port = refuses("zk2:1");
    assert_eq!(told(&[leader(), wrong_port]), [format!("! zk2:1 refuses connections: nothing listens there; {lists}")]);
    // A member is down, also under a name that the ensemble does not use.
    let serious =
        |name: &str| format!("!! {name} refuses connections: nothing listens there: one more failure stops every lock");
    for name in ["zk2:2181", "10.0.0.2:2181"] {
        assert_eq!(told(&[leader(), refuses(name)]), [serious(name)]);
    }
}

#[test]
fn the_only_server_and_the_last_ones_are_serious() {
    assert_eq!(told(&[refuses("zk1:1")]), ["!! zk1:1 refuses connections: nothing listens there"]);
    let all = [refuses("zk1:1"), refuses("zk2:1"), refuses("zk3:1")];
    assert!(told(&all).iter().all(|text| text.starts_with("!!")));
    for (state, say) in [
        (ServerState::NoMajority, "serves nobody"),
        (ServerState::Closes, "as many from this address as its limit allows"),
        (ServerState::NeedsTls, "a port for TLS"),
        (ServerState::Silent, "does not answer"),
        (ServerState::NotResolved { problem: "cannot be reached\u{1b}".to_owned() }, "cannot be reached\\u{1b}"),
        (ServerState::Unknown { answer: "HTTP".to_owned() }, "no ZooKeeper server: it answers HTTP"),
    ] {
        let told = told(&[report("zk1:1", state)]);
        assert!(told.len() == 1 && told[0].starts_with("!! zk1:1 ") && told[0].contains(say), "{told:?}");
    }
}

/// Each client chooses one of the servers, so two of them may hold the same lock.
#[test]
fn servers_of_several_ensembles_are_serious() {
    let alone = |name| serves(name, ServerMode::Standalone);
    for several in [vec![alone("zk1:1"), alone("zk2:1")], vec![alone("zk1:1"), leads("zk2:1"), follows("zk3:1")]] {
        let told = told(&several);
        assert_eq!(told, ["!! zk1:1, zk2:1 are not of one ensemble, so clients have different locks of the same name"]);
    }
    assert_eq!(told(&[leads("zk1:1"), leads("zk2:1")]).len(), 1);
}

#[test]
fn a_session_timeout_of_few_ticks_is_told_with_a_longer_one() {
    let tick = |ms, server| ServerReport { limits: Some(Limits { tick_ms: Some(ms), ..Limits::default() }), ..server };
    let told = |tick_ms, timeout| {
        let three = [tick(tick_ms, leads("zk1:1")), follows("zk2:1"), follows("zk3:1")];
        few_ticks(&three, Duration::from_secs(timeout)).map(|finding| (finding.severity, finding.text))
    };
    let (severity, text) = told(2000, 4).unwrap();
    assert_eq!(severity, Severity::Notice);
    assert_eq!(
        text,
        "the session timeout of 4 s is shorter than five ticks of the servers (tickTime 2 s), so holds are trusted for 0.64 of it; from 10 s on, they are trusted for 0.74"
    );
    let (severity, text) = told(5000, 12).unwrap();
    assert_eq!(severity, Severity::Serious);
    assert!(
        text.ends_with("so a holder that is cut off may work on while the next one holds; use 25 s or more"),
        "{text}"
    );
    assert_eq!([told(2000, 10), told(500, 4)], [None, None]);
    let alone = tick(2000, serves("zk1:1", ServerMode::Standalone));
    assert_eq!(few_ticks(&[alone], Duration::from_secs(4)), None, "it has no followers");
    assert_eq!(few_ticks(&[leads("zk1:1")], Duration::from_secs(4)), None, "it is not known");
}

#[test]
fn a_clock_that_differs_by_more_than_two_seconds_is_a_notice() {
    let at = |secs: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
    let apart = |servers| Apart::of(at(1_000), at(servers), at(1_010));
    assert_eq!(apart(1_005), Apart::Within(Duration::from_secs(10)), "a slow answer is no difference");
    assert_eq!([apart(998), apart(1_012)].map(clock), [None, None]);
    let ahead = clock(apart(1_310)).unwrap();
    assert_eq!(
        (ahead.severity, &*ahead.text),
        (Severity::Notice, "the servers' clock is 5 min ahead of this machine's: correct the one that is wrong")
    );
    // The servers' clock is in whole milliseconds: it may have shown any part of the last one.
    let behind = Duration::from_millis(299_999);
    assert_eq!(apart(700), Apart::Behind(behind));
    assert!(clock(apart(700)).unwrap().text.starts_with("the servers' clock is 5 min behind this machine's"));
    let same = at(1_000) + Duration::from_micros(900);
    assert_eq!(Apart::of(same, at(1_000), same), Apart::Within(Duration::ZERO), "the same millisecond");
    assert_eq!([apart(700).ms(), apart(1_005).ms(), apart(1_310).ms()], [-299_999, 0, 300_000]);
}

#[test]
fn findings_come_in_the_order_of_the_screen_and_the_serious_ones_first() {
    let facts = Facts {
        servers: vec![leads("zk1:1"), refuses("zk2:1"), refuses("zk3:1")],
        no_session: Some(("no server is reachable".to_owned(), None)),
        clock: Some(Apart::Ahead(Duration::from_secs(60))),
        letters: Some((2, Suggested::new(["dlq", "list"]))),
        also: Some((vec!["/locks/a".to_owned(), "/locks/b".to_owned()], Suggested::new(["list"]))),
        ..Facts::default()
    };
    let found = all(&facts, None);
    let sections: Vec<_> = found.iter().map(|finding| finding.section).collect();
    use Section::{Clock, Left, Scope, Servers};
    assert_eq!(sections, [Servers, Servers, Servers, Clock, Scope, Left]);
    assert_eq!(found[4].text, "also in use on this user's own server, as other locks: /locks/a and 1 more");
    assert_eq!(found[5].text, "2 dead letters of this user, of commands that never got their lock");
    assert_eq!(all(&Facts { letters: Some((0, Suggested::new(["dlq"]))), ..Facts::default() }, None), []);
}
