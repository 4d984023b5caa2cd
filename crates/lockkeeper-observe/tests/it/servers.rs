//! The state of each server, told by the server itself: the embedded one, and Apache's in the states that an operator must tell apart.

use std::time::Duration;

use lockkeeper::Builder;
use lockkeeper::embedded::{Config, Server, Words, server_config};
use lockkeeper_observe::servers::{ServerMode, ServerReport, ServerState, ask};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Far above what an answer takes; a server that is silent is asked for a shorter time.
const PATIENCE: Duration = Duration::from_secs(60);

async fn asked(servers: &str, patience: Duration) -> Vec<ServerReport> {
    ask(&Builder::default(), servers, patience).await.unwrap()
}

/// A server of one machine that answers these words, on a free port.
fn with_words(words: Words) -> Config {
    server_config().with_listen(([127, 0, 0, 1], 0).into()).with_words(words)
}

#[tokio::test]
async fn the_embedded_server_says_how_it_is_and_what_its_limits_are() {
    let config = with_words(Words::default());
    let server = Server::start(config).await.unwrap();
    let reports = asked(&format!("{},127.0.0.1:1,nowhere.invalid/app", server.connect_string()), PATIENCE).await;
    let names: Vec<_> = reports.iter().map(|report| report.name.as_str()).collect();
    assert_eq!(names, [&server.connect_string(), "127.0.0.1:1", "nowhere.invalid:2181"]);
    let vitals = reports[0].state.vitals().unwrap();
    assert_eq!(vitals.mode, Some(ServerMode::Standalone));
    assert!(vitals.version.contains("-lockkeeper-"), "{vitals:?}");
    assert!(vitals.latency.is_some() && vitals.connections.is_some() && vitals.nodes.is_some(), "{vitals:?}");
    let limits = reports[0].limits.as_ref().unwrap();
    assert_eq!((limits.min_session_ms, limits.max_session_ms, limits.voters), (Some(1_000), Some(60_000), None));
    assert_eq!(limits.connections_per_address, Some(0), "no limit");
    assert_eq!(reports[1].state, ServerState::Refuses);
    assert!(matches!(reports[2].state, ServerState::NotResolved { .. }), "{:?}", reports[2]);
    assert!(reports.iter().map(|report| report.state.may_serve()).eq([true, false, false]));
}

#[tokio::test]
async fn a_server_whose_whitelist_lacks_the_words_is_told_from_one_that_does_not_run() {
    let config = with_words("ruok".parse().unwrap());
    let server = Server::start(config).await.unwrap();
    let reports = asked(&server.connect_string(), PATIENCE).await;
    assert_eq!((&reports[0].state, &reports[0].limits), (&ServerState::NotAllowed, &None));
}

/// A port for TLS answers half a handshake with an alert. To anything else, one program closes the connection, and another waits for the
/// rest of a record. A third port speaks no TLS, and closes each connection.
#[tokio::test]
async fn a_port_for_tls_is_told_from_a_port_that_closes_each_connection() {
    let mut servers = Vec::new();
    for (is_patient, is_tls) in [(false, true), (true, true), (false, false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        servers.push(listener.local_addr().unwrap().to_string());
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut first = [0];
                _ = stream.read_exact(&mut first).await;
                match first {
                    [0x16] if is_tls => _ = stream.write_all(&[0x15, 3, 3, 0, 2, 2, 50]).await,
                    _ if is_patient => open.push(stream),
                    _ => {}
                }
            }
        });
    }
    let reports = asked(&servers.join(","), Duration::from_secs(1)).await;
    let states: Vec<_> = reports.into_iter().map(|report| report.state).collect();
    assert_eq!(states, [ServerState::NeedsTls, ServerState::NeedsTls, ServerState::Closes]);
}

/// Servers of Apache ZooKeeper, each test with its own.
#[cfg(deep)]
mod apache {
    use std::net::TcpStream;

    use lockkeeper_testkit::apache::{Apache, Options};

    use super::*;

    /// How long a server that is silent is asked.
    const SOON: Duration = Duration::from_secs(2);

    /// Starts servers on a thread that may block, as long as they take.
    async fn start(size: usize, options: Options) -> Apache {
        let starting = tokio::task::spawn_blocking(move || match size {
            1 => Apache::single(options),
            size => Apache::ensemble(size, options),
        });
        starting.await.unwrap().unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_single_server_at_its_limit_of_connections_is_told_from_a_silent_one() {
        let apache = start(1, Options::default().config("maxClientCnxns", "2")).await;
        let servers = apache.connect_string();
        let reports = asked(&servers, PATIENCE).await;
        let vitals = reports[0].state.vitals().unwrap();
        assert_eq!(vitals.mode, Some(ServerMode::Standalone));
        assert!(vitals.version.split('.').all(|part| part.parse::<u32>().is_ok()), "{vitals:?}");
        let places: Vec<_> = (0..2).map(|_| TcpStream::connect(apache.addr(0)).unwrap()).collect();
        // The server counts a connection a moment after it was opened.
        loop {
            match &asked(&servers, PATIENCE).await[0].state {
                ServerState::Closes => break,
                ServerState::Serves(_) => {}
                state => panic!("{state:?}"),
            }
        }
        drop(places);
        apache.pause(0);
        assert_eq!(asked(&servers, SOON).await[0].state, ServerState::Silent);
        apache.resume(0);
    }

    /// The same limit of connections, the words of `conf`, and one server after the other is stopped.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_ensemble_tells_its_leader_its_stopped_server_and_that_it_has_no_majority() {
        let options = Options::default().config("maxClientCnxns", "60").config("4lw.commands.whitelist", "srvr, conf");
        let apache = start(3, options).await;
        let servers = apache.connect_string();
        let reports = asked(&servers, PATIENCE).await;
        let modes: Vec<_> = reports.iter().filter_map(|report| report.state.vitals()?.mode).collect();
        let leads = |mode: &&ServerMode| **mode == ServerMode::Leader;
        assert_eq!((modes.len(), modes.iter().filter(leads).count()), (3, 1), "{modes:?}");
        for report in &reports {
            let limits = report.limits.as_ref().unwrap();
            assert_eq!((limits.connections_per_address, limits.voters), (Some(60), Some(3)), "{report:?}");
        }
        let follower = modes.iter().position(|mode| *mode == ServerMode::Follower).unwrap();
        apache.kill(follower);
        assert_eq!(asked(&servers, PATIENCE).await[follower].state, ServerState::Refuses);
        let leader = apache.leader().unwrap();
        apache.kill(leader);
        let last = (0..3).find(|server| ![follower, leader].contains(server)).unwrap();
        loop {
            match &asked(&servers, PATIENCE).await[last].state {
                ServerState::NoMajority => break,
                // It has not noticed yet that its leader has ended.
                ServerState::Serves(_) | ServerState::Closes => {}
                state => panic!("{state:?}"),
            }
        }
    }
}
