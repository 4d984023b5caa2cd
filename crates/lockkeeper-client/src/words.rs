//! The four-letter words: questions that a server answers without a session.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::servers::Connect;

/// Maximum bytes of an answer that are read.
const MAX_ANSWER: u64 = 64 << 10;

/// Returns the server's answer to one of the four-letter words, for example `srvr`. An empty answer means that it closed the
/// connection.
///
/// The answer has no time limit. Dropping the future closes the connection.
///
/// # Errors
/// No connection was opened.
pub async fn ask(connect: &dyn Connect, server: usize, word: &str) -> io::Result<String> {
    let mut stream = connect.connect(server).await?.await?;
    let mut answer = Vec::new();
    // A server may close the connection while it is asked; what it said before counts.
    if stream.write_all(word.as_bytes()).await.is_ok() && stream.flush().await.is_ok() {
        _ = stream.take(MAX_ANSWER).read_to_end(&mut answer).await;
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
