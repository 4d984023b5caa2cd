//! How long the session waits for its servers.

use std::collections::VecDeque;
use std::time::Duration;

use lockkeeper_client::Config;
use lockkeeper_client::wire::{Request, Response, VersionedPath};

use super::{ID, Stage};

/// As Apache's server does: it answers a write after a quarter of the timeout, and nothing else of the session before.
#[test]
fn a_server_that_answers_within_a_quarter_keeps_its_connection() {
    for timeout in [6, 10, 30].map(Duration::from_secs) {
        let mut stage = Stage::with(Config::new(timeout));
        stage.open();
        stage.answer_connect(ID, i32::try_from(timeout.as_millis()).unwrap());
        let (begin, mut answers) = (stage.now, VecDeque::<(Duration, i32)>::new());
        let (mut beat, mut written) = (begin, 0);
        while stage.now < begin + timeout * 10 {
            let answer = answers.front().map_or(Duration::MAX, |(due, _)| *due);
            stage.now = stage.session.deadline().unwrap().min(beat).min(answer);
            if stage.now == answer {
                let (_, xid) = answers.pop_front().unwrap();
                stage.reply(xid, 6, Ok(Response::Done));
            } else if stage.now == beat {
                stage.ask(Request::Delete(VersionedPath { path: "/beat".to_owned(), version: -1 }));
                beat += timeout / 5;
                written += 1;
            } else {
                stage.session.timeout(stage.now);
            }
            for (xid, request) in stage.requests() {
                let takes = if request == Request::Ping { Duration::ZERO } else { timeout / 4 };
                let before = answers.back().map_or(Duration::ZERO, |(due, _)| *due);
                answers.push_back((before.max(stage.now + takes), xid));
            }
            assert!(stage.session.is_connected(), "{timeout:?}: given up after {:?}", stage.now - begin);
        }
        let lost = stage.results().into_iter().filter(|(_, error)| error.is_some()).count();
        assert!(lost == 0 && written >= 50, "{timeout:?}: {lost} of {written} writes are lost");
    }
}

#[test]
fn a_silent_server_is_left_after_two_fifths_of_the_timeout() {
    for timeout in [6, 10, 30].map(Duration::from_secs) {
        let mut stage = Stage::new();
        stage.open();
        stage.answer_connect(ID, i32::try_from(timeout.as_millis()).unwrap());
        let begin = stage.now;
        while stage.session.transport().is_some() {
            stage.now = stage.session.deadline().unwrap();
            stage.session.timeout(stage.now);
        }
        assert_eq!(stage.now - begin, timeout * 2 / 5);
        assert!(stage.frames().is_empty(), "the pings went to the connection that was left");
    }
}

#[test]
fn each_round_gives_a_server_twice_the_time() {
    let mut stage = Stage::with(Config::new(Duration::from_secs(30)));
    let mut given = Vec::new();
    for _ in 0..5 {
        stage.open();
        let opened = stage.now;
        stage.now = stage.session.deadline().unwrap();
        stage.session.timeout(stage.now);
        given.push((stage.now - opened).as_secs());
    }
    assert_eq!(given, [4, 8, 16, 30, 30]);
}

/// The first of two name servers does not answer, so the resolver asks the second one after 5 s.
#[test]
fn the_search_for_an_address_does_not_count_as_the_servers_silence() {
    let mut stage = Stage::with(Config::new(Duration::from_secs(30)));
    let attempt = stage.session.transport();
    stage.now += Duration::from_secs(5);
    stage.session.timeout(stage.now);
    assert!(stage.session.is_searching() && stage.session.transport() == attempt);
    stage.session.found(stage.now);
    stage.now += Duration::from_millis(3_900);
    stage.session.timeout(stage.now);
    stage.accept();
    assert!(stage.session.is_connected() && stage.session.transport() == attempt);
}

/// A name that is never resolved does not keep the session from its other servers.
#[test]
fn a_search_that_takes_too_long_ends_the_attempt() {
    let mut stage = Stage::with(Config::new(Duration::from_secs(30)));
    let mut given = Vec::new();
    for _ in 0..4 {
        while stage.session.transport().is_none() {
            stage.now = stage.session.deadline().unwrap();
            stage.session.timeout(stage.now);
        }
        given.push((stage.session.deadline().unwrap() - stage.now).as_secs());
        stage.now = stage.session.deadline().unwrap();
        stage.session.timeout(stage.now);
    }
    assert_eq!(given, [10, 20, 30, 30]);
}

/// A client can ask for 2^31 - 1 milliseconds at most, and the server may never answer.
#[test]
fn the_longest_session_timeout_is_the_longest_that_the_protocol_has() {
    let mut stage = Stage::with(Config::new(Duration::MAX));
    assert_eq!(stage.session.session_timeout(), Duration::from_millis(i32::MAX as u64));
    assert_eq!(stage.open().timeout_ms, i32::MAX);
    for _ in 0..50 {
        stage.now = stage.session.deadline().unwrap();
        stage.session.timeout(stage.now);
    }
    assert_eq!(stage.accept().timeout_ms, i32::MAX);
}

#[test]
fn the_oldest_request_without_an_answer_has_an_age() {
    let mut stage = Stage::new();
    let age = |stage: &Stage| stage.session.unanswered_for(stage.now);
    stage.session.request(Request::Sync { path: "/".to_owned() }, stage.now);
    stage.accept();
    let sent = stage.now;
    stage.now += Duration::from_millis(300);
    stage.session.request(Request::Sync { path: "/".to_owned() }, stage.now);
    assert_eq!(age(&stage), stage.now - sent, "the first, from when it was sent");
    stage.cut();
    assert_eq!(age(&stage), Duration::ZERO, "nothing is under way without a connection");
}
