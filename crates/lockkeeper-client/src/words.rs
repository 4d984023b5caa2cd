//! The four-letter words: questions that a server answers without a session.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[cfg(feature = "tls")]
use crate::problem::TlsProblem;
use crate::servers::{Connect, Stream};
#[cfg(feature = "tls")]
use crate::tls;

/// Maximum bytes of an answer that are read: a list of about 20 000 connections.
const MAX_ANSWER: u64 = 4 << 20;

/// Returns the server's answer to one of the four-letter words, for example `srvr`. An empty answer means that it closed the
/// connection.
///
/// The answer has no time limit. Dropping the future closes the connection.
///
/// # Errors
/// No connection was opened, or the server has refused the client's certificate, which TLS 1.3 says only after the handshake.
pub async fn ask(connect: &dyn Connect, server: usize, word: &str) -> io::Result<String> {
    ask_over(connect.connect(server).await?.await?, word).await
}

/// Returns the answer as [`ask`] does, over a connection that was just opened.
///
/// # Errors
/// The server has refused the client's certificate.
pub async fn ask_over(mut stream: Box<dyn Stream>, word: &str) -> io::Result<String> {
    let mut answer = Vec::new();
    let asked = async {
        stream.write_all(word.as_bytes()).await?;
        stream.flush().await?;
        (&mut stream).take(MAX_ANSWER).read_to_end(&mut answer).await
    };
    // A server may close the connection while it is asked; what it said before counts.
    let refusal = asked.await.err().and_then(|error| refusal(&error));
    match refusal.filter(|_| answer.is_empty()) {
        Some(refusal) => Err(refusal),
        None => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// Returns the error of a server that refuses the client's certificate; `None` for any other error.
fn refusal(error: &io::Error) -> Option<io::Error> {
    #[cfg(feature = "tls")]
    if tls::problem(error) == Some(TlsProblem::ClientCertificate) {
        return Some(tls::failed(error));
    }
    _ = error;
    None
}
