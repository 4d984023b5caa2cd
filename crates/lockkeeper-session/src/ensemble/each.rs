//! The servers of a connect string, asked one by one with the four-letter words and without a session.

use std::io;
use std::time::Duration;

use lockkeeper_client::{Connect, TlsProblem, ask_over};
use tokio::time::{Instant, timeout_at};

use super::servers::Servers;

/// A record of TLS with half a handshake: a port for TLS answers with an alert, and another one in another way or not at all.
pub(crate) const HALF_A_HANDSHAKE: &str = "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00";

/// The servers of a connect string, to be asked one by one. Their futures need a tokio runtime with I/O and time.
#[derive(Clone, Debug)]
pub struct EachServer(Servers);

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its text; empty if the server closed the connection without an answer. At most 4 MiB are read.
    pub text: String,
    /// The time from the open connection to the end of the answer.
    pub took: Duration,
}

/// Why a server has no answer: how far the question came. The text of an error completes a sentence that begins with the server.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Its name leads to no address.
    #[error("{0}")]
    NotResolved(io::Error),
    /// No connection was opened, or its TLS handshake failed.
    #[error("{0}")]
    NotConnected(io::Error),
    /// It accepted the connection and did not answer by the deadline.
    #[error("accepts connections and does not answer")]
    Silent,
}

impl EachServer {
    pub(crate) fn new(servers: Servers) -> EachServer {
        EachServer(servers)
    }

    /// Returns the name and the port of each server, in the order of the connect string.
    pub fn names(&self) -> Vec<String> {
        (0..self.0.servers()).map(|server| self.0.name(server)).collect()
    }

    /// Asks the server with this index one of the four-letter words, over a connection of its own. Of a name with several addresses,
    /// one that accepts a connection is asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// [`Unanswered`], at the deadline at the latest.
    ///
    /// # Panics
    ///
    /// Panics if there is no server with this index.
    pub async fn ask(&self, server: usize, word: &str, deadline: Instant) -> Result<Answered, Unanswered> {
        let late = |what: &str| io::Error::new(io::ErrorKind::TimedOut, what.to_owned());
        let found = timeout_at(deadline, self.0.connect(server)).await;
        let opening = found
            .unwrap_or_else(|_| Err(late("has a name that no name server has resolved in time")))
            .map_err(Unanswered::NotResolved)?;
        let opened = timeout_at(deadline, opening).await;
        let stream = opened
            .unwrap_or_else(|_| Err(late("does not answer an attempt to connect")))
            .map_err(Unanswered::NotConnected)?;
        let asked = Instant::now();
        let answer = timeout_at(deadline, ask_over(stream, word)).await;
        let text = answer.map_err(|_| Unanswered::Silent)?.map_err(Unanswered::NotConnected)?;
        Ok(Answered { text, took: asked.elapsed() })
    }

    /// Returns whether the server answers the beginning of a TLS handshake as a port for TLS does. Only for a connect string without
    /// TLS: with TLS, each connection has its own handshake.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Panics
    ///
    /// Panics if there is no server with this index.
    pub async fn speaks_tls(&self, server: usize, deadline: Instant) -> bool {
        let answer = self.ask(server, HALF_A_HANDSHAKE, deadline).await;
        answer.is_ok_and(|answer| TlsProblem::is_tls(answer.text.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::ensemble::servers::parse;

    fn each(servers: &str) -> EachServer {
        EachServer::new(parse(servers).unwrap())
    }

    /// A port for TLS answers half a handshake with an alert; `srvr` is none, and it closes the connection.
    #[tokio::test]
    async fn a_port_for_tls_is_told_by_half_a_handshake() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let servers = each(&format!("{},127.0.0.1:1", listener.local_addr().unwrap()));
        let port = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut first = [0];
                _ = stream.read_exact(&mut first).await;
                if first == [0x16] {
                    _ = stream.write_all(&[0x15, 3, 3, 0, 2, 2, 70]).await;
                }
            }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        assert_eq!(servers.ask(0, "srvr", deadline).await.unwrap().text, "");
        assert!(servers.speaks_tls(0, deadline).await);
        assert!(matches!(servers.ask(1, "srvr", deadline).await, Err(Unanswered::NotConnected(_))));
        assert!(!servers.speaks_tls(1, deadline).await);
        port.abort();
    }

    #[tokio::test]
    async fn a_silent_server_is_told_from_a_name_without_an_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let servers = each(&format!("{},nowhere.invalid", listener.local_addr().unwrap()));
        let deadline = Instant::now() + Duration::from_millis(20);
        assert!(matches!(servers.ask(0, "srvr", deadline).await, Err(Unanswered::Silent)));
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(matches!(servers.ask(1, "srvr", deadline).await, Err(Unanswered::NotResolved(_))));
    }
}
