//! The states of servers that accept no session: without a majority, at their limit of connections, or hanging.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_client::{Connect, TlsProblem, ask, is_close};
use tokio::time::timeout;

use crate::ensemble::each::HALF_A_HANDSHAKE;

/// How long a server may take to answer the question about its state, if there is time.
pub(super) const ASKING: Duration = Duration::from_millis(300);

/// The word that asks for it. Apache's server answers it by default.
const WORD: &str = "srvr";

/// What is said of a server that closes connections.
const CLOSES: &str = "closes the connection without an answer: it has as many connections as its limit allows, or it is no ZooKeeper server";

/// The states of servers, by their places in the list. A state is the end of a sentence that begins with the server.
pub(super) type States = HashMap<usize, &'static str>;

/// Asks these servers, which have given no reason themselves. Each has this long to answer. Dropping the future closes the
/// connections.
pub(super) async fn states(servers: &impl Connect, which: Vec<usize>, limit: Duration) -> States {
    let asked = which.iter().map(async |server| {
        let question = async |text| timeout(limit, ask(servers, *server, text)).await.ok();
        // OpenSSL waits for the rest of a record that the word does not begin, so the word alone says nothing about its port.
        let (word, handshake) = tokio::join!(biased; question(WORD), question(HALF_A_HANDSHAKE));
        let is_silent = !matches!(&word, Some(Ok(answer)) if !answer.is_empty());
        match handshake {
            Some(Ok(answer)) if is_silent && TlsProblem::is_tls(answer.as_bytes()) => state(Some(Ok(answer))),
            _ => state(word),
        }
    });
    let answers = join_all(asked).await;
    which.iter().copied().zip(answers).filter_map(|(server, state)| Some((server, state?))).collect()
}

/// `answer`: `None` if there was none in time.
fn state(answer: Option<io::Result<String>>) -> Option<&'static str> {
    match answer {
        None => Some("does not answer"),
        // A connection that is closed as soon as it is open may not open at all.
        Some(Err(error)) if is_close(&error) => Some(CLOSES),
        // The next attempt of the session has the same error.
        Some(Err(_)) => None,
        Some(Ok(answer)) if TlsProblem::is_tls(answer.as_bytes()) => Some(TlsProblem::PortWithTls.text()),
        Some(Ok(answer)) if answer.is_empty() => Some(CLOSES),
        Some(Ok(answer)) if answer.contains("not currently serving requests") => {
            Some("runs and serves no requests: it has no majority of the servers")
        }
        Some(Ok(answer)) => answer.lines().find_map(|line| match line.trim() {
            "Mode: read-only" => Some("is cut off from a majority of the servers, and answers stale reads only"),
            "Mode: follower" => Some("follows a leader and opens no session: does the leader answer?"),
            _ => None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_server_that_answers_and_opens_no_session_says_why() {
        let answer = |mode: &str| {
            let answer =
                format!("Zookeeper version: 3.8.0\nLatency min/avg/max: 0/0.0/0\nMode: {mode}\nNode count: 5\n");
            state(Some(Ok(answer)))
        };
        let stale = Some("is cut off from a majority of the servers, and answers stale reads only");
        assert_eq!(answer("read-only"), stale);
        assert_eq!(answer("follower"), Some("follows a leader and opens no session: does the leader answer?"));
        // The session's own attempt knows more.
        assert_eq!(["leader", "standalone"].map(answer), [None; 2]);
    }

    #[test]
    fn a_connection_that_is_reset_was_closed_by_the_server() {
        let fails = |kind: ErrorKind| state(Some(Err(kind.into())));
        let closes = state(Some(Ok(String::new())));
        assert!(closes.is_some_and(|text| text.contains("as many connections as its limit allows")));
        assert_eq!([fails(ErrorKind::ConnectionReset), fails(ErrorKind::BrokenPipe)], [closes; 2]);
        assert_eq!(fails(ErrorKind::ConnectionRefused), None);
    }
}
