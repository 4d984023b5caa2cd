//! The servers of an ensemble, one by one.
//!
//! [`ask`] sends each server of a connect string the four-letter word `srvr`, all at the same time and without a session, so the
//! answers also say why no session can be opened. It tells apart what looks the same to a session: a server that does not run,
//! one without a majority, one at its limit of connections, and a port for TLS. [`connections`] asks them with `cons` from where
//! sessions are connected.

mod connections;

use std::io::ErrorKind;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::Builder;
use lockkeeper::error::Misuse;
use lockkeeper_session::ensemble::{Answered, EachServer, Unanswered};
use lockkeeper_session::text::excerpt;
use serde::{Serialize, Serializer};
use tokio::time::{Instant, timeout_at};

pub use self::connections::{SessionConnection, SessionConnections, Silence, connections};

/// A server of a connect string, and what it answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerReport {
    /// Its name and port, as in the connect string. The name may lead to several servers; one of them was asked.
    pub name: String,
    /// What it answered.
    #[serde(flatten)]
    pub state: ServerState,
    /// Its limits; `None` if it did not tell them, because the word `conf` is not in its whitelist.
    pub limits: Option<Limits>,
}

/// What a server answered to `srvr`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServerState {
    /// It serves clients.
    Serves(Vitals),
    /// It runs and serves no client: it has no majority of the servers, or has just started.
    NoMajority,
    /// It runs, but `srvr` is not in its whitelist, so nothing else is known.
    NotAllowed,
    /// It refuses connections: nothing listens there.
    Refuses,
    /// Its name leads to no address.
    NotResolved {
        /// The end of a sentence about the server.
        problem: String,
    },
    /// No connection could be opened, or its TLS handshake failed.
    NotReached {
        /// The end of a sentence about the server.
        problem: String,
    },
    /// It accepted the connection and closed it without an answer: it has as many connections from this address as its limit allows,
    /// it is stopping, or it is no ZooKeeper server.
    Closes,
    /// Its port is one for TLS, and the client has no TLS.
    NeedsTls,
    /// It accepted the connection and did not answer in time.
    Silent,
    /// It answered something that is no answer to `srvr`.
    Unknown {
        /// The beginning of its answer, with characters that are safe to print.
        answer: String,
    },
}

/// The part that a server plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ServerMode {
    /// It leads an ensemble.
    Leader,
    /// It follows the leader, and votes.
    Follower,
    /// It follows the leader without a vote.
    Observer,
    /// It is alone.
    Standalone,
    /// It is cut off from the majority, and answers only clients that want stale reads. It grants no lock.
    ReadOnly,
}

/// How a server is, by its own account.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Vitals {
    /// Its part; `None` if it told an unknown one.
    pub mode: Option<ServerMode>,
    /// Its version, without the hash of its build.
    pub version: String,
    /// How long it took to answer requests since its start or the last reset of its statistics.
    pub latency: Option<Latency>,
    /// How long it took to answer this question, from the open connection to the end of the answer.
    #[serde(rename = "round_trip_ms", serialize_with = "milliseconds")]
    pub round_trip: Duration,
    /// Its open connections. Apache's servers count that of the question.
    pub connections: Option<u64>,
    /// Its last transaction.
    pub zxid: Option<u64>,
    /// The number of its nodes.
    pub nodes: Option<u64>,
}

/// Times of answers, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The shortest.
    pub min: f64,
    /// The mean.
    pub avg: f64,
    /// The longest.
    pub max: f64,
}

/// The limits of a server, by its answer to `conf`. `None`: it did not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// How many connections it takes from one address; 0 is no limit.
    pub connections_per_address: Option<u64>,
    /// Its tick, in milliseconds.
    pub tick_ms: Option<u64>,
    /// The shortest session timeout that it grants, in milliseconds.
    pub min_session_ms: Option<u64>,
    /// The longest session timeout that it grants, in milliseconds.
    pub max_session_ms: Option<u64>,
    /// The number of servers with a vote; `None` also if it is alone, and before ZooKeeper 3.5.
    pub voters: Option<usize>,
    /// The members of its ensemble, with and without a vote; none if it is alone, and before ZooKeeper 3.5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
}

/// A member of an ensemble, as its configuration names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The host under which the other members reach it.
    pub host: String,
    /// The port for clients, if the configuration names it for all members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_port: Option<u16>,
}

impl Limits {
    /// Returns whether one of the members may be the server with this host and port; `None` if they are not known. A member may have other
    /// names, so a name that leads to an address says nothing here.
    pub fn lists(&self, host: &str, port: u16) -> Option<bool> {
        let is_at = |member: &Member| {
            member.host.eq_ignore_ascii_case(host) && member.client_port.is_none_or(|of_clients| of_clients == port)
        };
        (!self.members.is_empty()).then(|| self.members.iter().any(is_at))
    }
}

fn milliseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64() * 1e3)
}

impl ServerState {
    /// Returns how the server is, if it serves clients.
    pub fn vitals(&self) -> Option<&Vitals> {
        match self {
            ServerState::Serves(vitals) => Some(vitals),
            _ => None,
        }
    }

    /// Returns whether a session with it is worth a try.
    pub fn may_serve(&self) -> bool {
        match self {
            ServerState::Serves(vitals) => vitals.mode != Some(ServerMode::ReadOnly),
            ServerState::NotAllowed | ServerState::Unknown { .. } => true,
            ServerState::NoMajority
            | ServerState::Silent
            | ServerState::Refuses
            | ServerState::NotResolved { .. }
            | ServerState::NotReached { .. }
            | ServerState::Closes
            | ServerState::NeedsTls => false,
        }
    }
}

/// Asks each server of a connect string how it is, all at the same time, for `patience` in all. They are reached as
/// [`Builder::connect`] reaches them, with its TLS.
///
/// Needs a tokio runtime with I/O and time.
///
/// # Cost
///
/// Two connections and questions to each server that serves, one after the other. A server that has not answered after half of
/// `patience`, or closes the connection, gets half a TLS handshake, unless TLS is used; it logs a warning if it knows no TLS.
///
/// # Cancel safety
///
/// Dropping the future closes the connections.
///
/// # Errors
///
/// [`Misuse`] if `connect` would refuse the connect string or the options. A server that cannot be reached is no error.
pub async fn ask(builder: &Builder, servers: &str, patience: Duration) -> Result<Vec<ServerReport>, Misuse> {
    let each = builder.clone().each_server(servers)?;
    let started = Instant::now();
    let (early, deadline) = (started + patience / 2, started + patience);
    let asked = each.names().into_iter().enumerate().map(|(server, name)| {
        let each = &each;
        async move {
            let state = ask_one(each, server, early, deadline).await;
            let limits = match state.vitals() {
                Some(_) => each.ask(server, "conf", deadline).await.ok().and_then(|answer| limits(&answer.text)),
                None => None,
            };
            ServerReport { name, state, limits }
        }
    });
    Ok(join_all(asked).await)
}

async fn ask_one(each: &EachServer, server: usize, early: Instant, deadline: Instant) -> ServerState {
    let mut word = std::pin::pin!(each.ask(server, "srvr", deadline));
    // OpenSSL waits for the rest of a record that the word does not begin, so a port for TLS may be silent.
    let (answer, is_tls) = match timeout_at(early, &mut word).await {
        Ok(answer) => (answer, None),
        Err(_) => {
            let (answer, is_tls) = tokio::join!(word, each.speaks_tls(server, deadline));
            (answer, Some(is_tls))
        }
    };
    let state = state(answer);
    let is_doubtful = matches!(state, ServerState::Closes | ServerState::Silent);
    let is_tls = match is_tls {
        Some(is_tls) => is_tls,
        None => is_doubtful && each.speaks_tls(server, deadline).await,
    };
    if is_doubtful && is_tls { ServerState::NeedsTls } else { state }
}

fn state(answer: Result<Answered, Unanswered>) -> ServerState {
    match answer {
        Ok(Answered { text, took }) => read(&text, took),
        Err(Unanswered::Silent) => ServerState::Silent,
        Err(Unanswered::NotResolved(error)) => ServerState::NotResolved { problem: error.to_string() },
        Err(Unanswered::NotConnected(error)) => match error.kind() {
            ErrorKind::ConnectionRefused => ServerState::Refuses,
            // It closed the connection so soon that connecting failed: Linux reports a pipe or a reset, not a refusal.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ServerState::Closes,
            _ => ServerState::NotReached { problem: error.to_string() },
        },
    }
}

/// Reads an answer to `srvr`. Any text is fine.
fn read(answer: &str, round_trip: Duration) -> ServerState {
    if answer.is_empty() {
        return ServerState::Closes;
    }
    // The alert of a port for TLS.
    if matches!(answer.as_bytes(), [0x15 | 0x16, 3, ..]) {
        return ServerState::NeedsTls;
    }
    if is_refused(answer) {
        return ServerState::NotAllowed;
    }
    if answer.contains("not currently serving requests") {
        return ServerState::NoMajority;
    }
    let value = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim);
    let Some(full) = value("Zookeeper version") else {
        return ServerState::Unknown { answer: excerpt(answer.trim()).into_owned() };
    };
    let hexadecimal = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    ServerState::Serves(Vitals {
        mode: value("Mode").and_then(mode),
        version: excerpt(version(full)).into_owned(),
        latency: value("Latency min/avg/max").and_then(latency),
        round_trip,
        connections: value("Connections").and_then(|number| number.parse().ok()),
        zxid: value("Zxid").and_then(hexadecimal),
        nodes: value("Node count").and_then(|number| number.parse().ok()),
    })
}

/// Returns whether a server has refused a word.
fn is_refused(answer: &str) -> bool {
    answer.contains("is not executed because it is not in the whitelist")
}

fn mode(text: &str) -> Option<ServerMode> {
    Some(match text {
        "leader" => ServerMode::Leader,
        "follower" => ServerMode::Follower,
        "observer" => ServerMode::Observer,
        "standalone" => ServerMode::Standalone,
        "read-only" => ServerMode::ReadOnly,
        _ => return None,
    })
}

/// `3.8.0` of `3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25 08:49 UTC`.
fn version(full: &str) -> &str {
    let version = full.split(',').next().unwrap_or(full).trim();
    // Debian builds it outside of a repository, and leaves `${mvngit.commit.id}` there.
    let is_hash =
        |end: &str| end.starts_with("${") || (end.len() >= 7 && end.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match version.rsplit_once('-') {
        Some((version, end)) if is_hash(end) => version,
        _ => version,
    }
}

/// Reads `0/0.25/4`.
fn latency(text: &str) -> Option<Latency> {
    let numbers: Vec<f64> = text.split('/').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [min, avg, max] => Some(Latency { min, avg, max }),
        _ => None,
    }
}

/// Reads an answer to `conf`; `None` for any other text.
fn limits(answer: &str) -> Option<Limits> {
    let value = |name: &str| answer.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| value(name).and_then(|number| number.trim().parse().ok());
    // `server.1=zk1:2888:3888:participant;0.0.0.0:2181`
    let is_voter = |line: &&str| line.starts_with("server.") && !line.contains(":observer");
    let voters = answer.lines().filter(is_voter).count();
    let members = answer.lines().filter(|line| line.starts_with("server.")).filter_map(member).collect();
    value("clientPort")?;
    Some(Limits {
        connections_per_address: number("maxClientCnxns"),
        tick_ms: number("tickTime"),
        min_session_ms: number("minSessionTimeout"),
        max_session_ms: number("maxSessionTimeout"),
        voters: (voters > 0).then_some(voters),
        members,
    })
}

/// Reads `server.1=zk1:2888:3888:participant;0.0.0.0:2181`.
fn member(line: &str) -> Option<Member> {
    let (_, value) = line.trim().split_once('=')?;
    let (quorum, clients) = value.split_once(';').map_or((value, None), |(quorum, clients)| (quorum, Some(clients)));
    // An IPv6 address is in brackets.
    let host = match quorum.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => quorum.split_once(':')?.0,
    };
    let client_port = clients.and_then(|clients| clients.rsplit(':').next()?.parse().ok());
    (!host.is_empty()).then(|| Member { host: host.to_owned(), client_port })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(2);

    fn serves(answer: &str) -> Vitals {
        match read(answer, TOOK) {
            ServerState::Serves(vitals) => vitals,
            state => panic!("{state:?}"),
        }
    }

    fn latency(min: f64, avg: f64, max: f64) -> Option<Latency> {
        Some(Latency { min, avg, max })
    }

    #[test]
    fn answers_of_every_release_are_read() {
        let old = serves(
            "Zookeeper version: 3.4.13-2d71af4dbe22557fda74f9a9b4309b15a7487f03, built on 06/29/2018 04:05 GMT\n\
             Latency min/avg/max: 0/1/27\nReceived: 62\nSent: 61\nConnections: 3\nOutstanding: 0\nZxid: 0x50000000a\n\
             Mode: follower\nNode count: 4\n",
        );
        assert_eq!((old.mode, &*old.version), (Some(ServerMode::Follower), "3.4.13"));
        assert_eq!((old.connections, old.zxid, old.nodes), (Some(3), Some(0x5_0000_000a), Some(4)));
        assert_eq!(old.latency, latency(0.0, 1.0, 27.0));
        let beta = serves(
            "Zookeeper version: 3.5.4-beta-7f51e5b68cf2f80176ff944a9ebd2abbc65e7327, built on 05/11/2018 16:27 GMT\n\
             Latency min/avg/max: 0/0/0\nReceived: 1\nSent: 0\nConnections: 1\nOutstanding: 0\nZxid: 0x100000000\n\
             Mode: leader\nNode count: 5\nProposal sizes last/min/max: -1/-1/-1\n",
        );
        assert_eq!((beta.mode, &*beta.version), (Some(ServerMode::Leader), "3.5.4-beta"));
        let new = serves(
            "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2023-12-16 16:02 UTC\n\
             Latency min/avg/max: 0/0.2549/16\nReceived: 254\nSent: 253\nConnections: 812\nOutstanding: 0\nZxid: 0x9\n\
             Mode: observer\nNode count: 5\n",
        );
        assert_eq!((new.mode, new.connections), (Some(ServerMode::Observer), Some(812)));
        assert_eq!(new.latency, latency(0.0, 0.2549, 16.0));
        let latest = serves(
            "Zookeeper version: 3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee, built on 2024-10-17 23:21 UTC\n\
             READ-ONLY mode; serving only read-only clients\nLatency min/avg/max: 0/0.0/0\nReceived: 1\nSent: 0\n\
             Connections: 1\nOutstanding: 0\nZxid: 0x0\nMode: read-only\nNode count: 5\n",
        );
        assert_eq!((latest.mode, &*latest.version), (Some(ServerMode::ReadOnly), "3.9.3"));
        let own = serves(
            "Zookeeper version: 3.9.5-lockkeeper-0.1.0\nLatency min/avg/max: 0/0.1432/3\nReceived: 9\nSent: 8\n\
             Connections: 2\nOutstanding: 0\nZxid: 0x19c1d\nMode: standalone\nNode count: 6\n",
        );
        assert_eq!((own.mode, &*own.version), (Some(ServerMode::Standalone), "3.9.5-lockkeeper-0.1.0"));
    }

    #[test]
    fn a_server_that_does_not_serve_says_why() {
        assert_eq!(read("This ZooKeeper instance is not currently serving requests\n", TOOK), ServerState::NoMajority);
        let refused = "srvr is not executed because it is not in the whitelist.\n";
        assert_eq!(read(refused, TOOK), ServerState::NotAllowed);
        assert_eq!(read("", TOOK), ServerState::Closes);
        assert_eq!(read("\x15\x03\x03\0\x02\x02F", TOOK), ServerState::NeedsTls);
        let other = read("HTTP/1.1 400 Bad Request\r\n\x1b[2J", TOOK);
        assert!(matches!(&other, ServerState::Unknown { answer } if answer.starts_with("HTTP/1.1 400")), "{other:?}");
    }

    #[test]
    fn a_server_that_closes_a_connection_before_it_is_used_is_not_out_of_reach() {
        let of = |kind: ErrorKind| state(Err(Unanswered::NotConnected(kind.into())));
        assert_eq!(of(ErrorKind::BrokenPipe), ServerState::Closes);
        assert_eq!(of(ErrorKind::ConnectionReset), ServerState::Closes);
        assert_eq!(of(ErrorKind::ConnectionRefused), ServerState::Refuses);
        assert!(matches!(of(ErrorKind::HostUnreachable), ServerState::NotReached { .. }));
    }

    #[test]
    fn parts_of_an_answer_that_cannot_be_read_are_not_known() {
        let odd = serves("Zookeeper version: \nLatency min/avg/max: 1/2\nConnections: many\nZxid: 9\nMode: queen\n");
        let unknown = Vitals {
            mode: None,
            version: String::new(),
            latency: None,
            round_trip: TOOK,
            connections: None,
            zxid: None,
            nodes: None,
        };
        assert_eq!(odd, unknown);
    }

    #[test]
    fn the_limits_are_those_of_conf_if_it_is_answered() {
        let answer = "clientPort=2181\nsecureClientPort=-1\ndataDir=/data/version-2\ntickTime=2000\nmaxClientCnxns=60\n\
                      minSessionTimeout=4000\nmaxSessionTimeout=40000\nserverId=1\nelectionAlg=3\nmembership: \n\
                      server.1=zk1:2888:3888:participant;0.0.0.0:2181\nserver.2=zk2:2888:3888:participant;0.0.0.0:2181\n\
                      server.3=zk3:2888:3888:observer;0.0.0.0:2181\nversion=0\n";
        let told = limits(answer).unwrap();
        assert_eq!(
            (told.connections_per_address, told.min_session_ms, told.max_session_ms),
            (Some(60), Some(4000), Some(40_000))
        );
        assert_eq!(told.tick_ms, Some(2000));
        assert_eq!(told.voters, Some(2));
        let lists =
            [("zk3", 2181), ("ZK1", 2181), ("zk1", 1), ("zk9", 2181)].map(|(host, port)| told.lists(host, port));
        assert_eq!(lists, [Some(true), Some(true), Some(false), Some(false)]);
        let addresses = "clientPort=1\nserver.1=[::1]:2888:3888:participant\nserver.2=10.0.0.2:2888:3888\n";
        let lists = [("::1", 7), ("10.0.0.2", 7)].map(|(host, port)| limits(addresses).unwrap().lists(host, port));
        assert_eq!(lists, [Some(true); 2], "no port for clients is known");
        assert_eq!(Limits::default().lists("zk1", 1), None);
        let alone = limits("clientPort=0\ntickTime=500\nmaxClientCnxns=0\n").unwrap();
        assert_eq!((alone.connections_per_address, alone.min_session_ms, alone.voters), (Some(0), None, None));
        assert_eq!(limits("conf is not executed because it is not in the whitelist.\n"), None);
    }
}
