//! From where a session is connected, and when its server last answered it.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper::Builder;
use lockkeeper::admin::SessionId;
use lockkeeper::error::Misuse;
use lockkeeper_session::text::excerpt;
use serde::{Serialize, Serializer};
use tokio::time::Instant;

use crate::millis::whole_ms;

/// What servers know of the connections of some sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionConnections {
    /// The connections that were found.
    pub found: Vec<SessionConnection>,
    /// The servers that have listed their connections. A name may lead to several servers; one of them was asked.
    pub listed: Vec<String>,
    /// The servers that do not, because `cons` is not in their whitelist.
    pub refused: Vec<String>,
    /// The servers that have not answered in time, or something else.
    pub silent: Vec<String>,
}

impl SessionConnections {
    /// Returns the connection of a session, if it was found.
    pub fn of(&self, session: SessionId) -> Option<&SessionConnection> {
        self.found.iter().find(|connection| connection.session == session)
    }

    /// Returns whether every server has listed its connections.
    pub fn is_complete(&self) -> bool {
        !self.listed.is_empty() && self.refused.is_empty() && self.silent.is_empty()
    }
}

/// A connection of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConnection {
    /// The session.
    pub session: SessionId,
    /// The name of its server, as in the connect string.
    pub server: String,
    /// The address of the client as the server sees it, with its port; with characters that are safe to print.
    pub address: String,
    /// The time since the last answer to the client.
    pub silence: Silence,
}

/// The time since a server's last answer to a client. A client with nothing else to ask pings it within a third of the session's
/// timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Silence {
    /// It is at least this long.
    #[serde(rename = "silent_ms", serialize_with = "whole_ms")]
    pub at_least: Duration,
    /// Whether it is not longer either, apart from the time of a round trip. A server does not say what time it is: it is exact if the
    /// session of this question has the same server. Else it is counted from the server's last answer to any client.
    pub is_exact: bool,
    /// The timeout of the session, if the server says it.
    #[serde(rename = "timeout_ms", serialize_with = "some_ms", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

impl Silence {
    /// Whether it is longer than that of a client with nothing to ask.
    pub fn is_long(&self) -> bool {
        self.timeout.is_some_and(|timeout| self.at_least * 2 > timeout)
    }
}

fn some_ms<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => whole_ms(time, serializer),
        None => serializer.serialize_none(),
    }
}

/// A line of an answer to `cons`.
#[derive(Debug, PartialEq, Eq)]
struct ConsLine<'a> {
    session: SessionId,
    address: &'a str,
    /// When the server last answered it, in milliseconds of a clock without a known beginning.
    answered: u64,
    timeout: Option<Duration>,
}

/// Asks the servers of a connect string from where these sessions are connected, all servers at the same time, and for `patience` in
/// all. It returns as soon as all sessions are found. `own` is an open session of the caller, which a server has just answered.
///
/// Needs a tokio runtime with I/O and time.
///
/// # Cost
///
/// One connection and question to each server. The answer has about 180 bytes for each client of the server.
///
/// # Cancel safety
///
/// Dropping the future closes the connections.
///
/// # Errors
///
/// [`Misuse`] if `connect` would refuse the connect string or the options. A server that cannot be reached is no error.
pub async fn connections(
    builder: &Builder,
    servers: &str,
    sessions: &[SessionId],
    own: Option<SessionId>,
    patience: Duration,
) -> Result<SessionConnections, Misuse> {
    let each = &builder.clone().each_server(servers)?;
    let names = each.names();
    let deadline = Instant::now() + patience;
    let ask = async |server: usize| (server, each.ask(server, "cons", deadline).await);
    let mut answers: FuturesUnordered<_> = (0..names.len()).map(ask).collect();
    let mut told = SessionConnections::default();
    while told.found.len() < sessions.len()
        && let Some((server, answer)) = answers.next().await
    {
        let (answer, name) = (answer.map_or_else(|_| String::new(), |answer| answer.text), names[server].clone());
        told.found.extend(read(&answer, &name, sessions, own));
        match () {
            () if is_list(&answer) => told.listed.push(name),
            () if super::is_refused(&answer) => told.refused.push(name),
            () => told.silent.push(name),
        }
    }
    Ok(told)
}

/// Returns whether an answer is a whole list: at its end is an empty line.
fn is_list(answer: &str) -> bool {
    answer.ends_with("\n\n") && answer.starts_with(" /")
}

/// Returns the connections of these sessions to a server, by its answer to `cons`. Any text is fine.
fn read(answer: &str, server: &str, sessions: &[SessionId], own: Option<SessionId>) -> Vec<SessionConnection> {
    let lines: Vec<_> = answer.lines().filter_map(parse).collect();
    let last = lines.iter().map(|line| line.answered).max().unwrap_or(0);
    let is_exact = lines.iter().any(|line| Some(line.session) == own);
    let wanted = lines.iter().filter(|line| sessions.contains(&line.session));
    let connection = |line: &ConsLine<'_>| SessionConnection {
        session: line.session,
        server: server.to_owned(),
        address: excerpt(line.address).into_owned(),
        silence: Silence { at_least: Duration::from_millis(last - line.answered), is_exact, timeout: line.timeout },
    };
    wanted.map(connection).collect()
}

/// Parses ` /10.0.3.7:51234[1](queued=0,recved=20,sent=20,sid=0x10002a20fcd0000,lop=PING,est=1795799879524,..,lresp=44182931,..)`. A
/// connection without a session has no `sid`.
fn parse(line: &str) -> Option<ConsLine<'_>> {
    let (address, fields) = line.trim().strip_prefix('/')?.strip_suffix(')')?.rsplit_once('(')?;
    let value = |name: &str| fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    let session = u64::from_str_radix(value("sid")?.strip_prefix("0x")?, 16).ok()?;
    let address = address.strip_suffix(']')?.rsplit_once('[')?.0;
    let timeout = value("to").and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
    Some(ConsLine {
        session: SessionId(session.cast_signed()),
        address,
        answered: value("lresp")?.parse().ok()?,
        timeout,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = concat!(
        " /127.0.0.1:47440[1](queued=0,recved=20,sent=20,sid=0x10002a20fcd0000,lop=PING,est=1795799879524,to=30000,lcxid=0x12,\
         lzxid=0xc,lresp=44182931,llat=0,minlat=0,avglat=5,maxlat=31)\n",
        " /0:0:0:0:0:0:0:1:47441[1](queued=0,recved=20,sent=20,sid=0xff00000000000001,lop=PING,est=1795799879524,to=30000,\
         lcxid=0x12,lzxid=0xffffffffffffffff,lresp=44180931,llat=0,minlat=0,avglat=5,maxlat=31)\n",
        " /127.0.0.1:53862[0](queued=0,recved=1,sent=0)\n\n",
    );

    const FIRST: SessionId = SessionId(0x0100_02a2_0fcd_0000);
    const SECOND: SessionId = SessionId(-0xff_ffff_ffff_ffff);

    #[test]
    fn a_connection_is_read_with_its_address_and_the_time_since_its_last_answer() {
        let found = read(ANSWER, "zk1:2181", &[SECOND], Some(FIRST));
        let timeout = Some(Duration::from_secs(30));
        let silence = Silence { at_least: Duration::from_secs(2), is_exact: true, timeout };
        let address = "0:0:0:0:0:0:0:1:47441".to_owned();
        assert_eq!(found, [SessionConnection { session: SECOND, server: "zk1:2181".to_owned(), address, silence }]);
    }

    #[test]
    fn the_time_is_a_minimum_if_the_session_of_the_question_has_another_server() {
        let silence = |own| read(ANSWER, "zk1", &[FIRST, SECOND], own).into_iter().map(|it| it.silence);
        let timeout = Some(Duration::from_secs(30));
        let at_least = |secs| Silence { at_least: Duration::from_secs(secs), is_exact: false, timeout };
        assert!(silence(None).eq([at_least(0), at_least(2)]));
        assert!(silence(Some(SessionId(7))).eq([at_least(0), at_least(2)]));
    }

    /// An idle client pings three times within its timeout.
    #[test]
    fn a_silence_is_long_if_it_is_longer_than_half_of_the_timeout() {
        let long = |secs| {
            Silence { at_least: Duration::from_secs(secs), is_exact: false, timeout: Some(Duration::from_secs(30)) }
                .is_long()
        };
        assert_eq!([0, 3, 10, 15, 16].map(long), [false, false, false, false, true]);
        assert!(!Silence { at_least: Duration::from_secs(99), is_exact: false, timeout: None }.is_long());
    }

    #[test]
    fn other_text_is_no_list_and_has_no_connection() {
        let refused = "cons is not executed because it is not in the whitelist.\n";
        let cut = &ANSWER[..200];
        assert_eq!([ANSWER, refused, "", cut].map(is_list), [true, false, false, false]);
        for text in [refused, "", ")\n", " /(sid=0x1)\n", " /a[1](sid=0x1,lresp=-1)\n", " /a[1](sid=,lresp=1)\n"] {
            assert_eq!(read(text, "zk1", &[SessionId(1)], None), []);
        }
    }
}
