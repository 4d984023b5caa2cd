//! The connections of the clients: lines in, lines out, within limits.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::conversation::{ClientId, To};
use crate::protocol::{BadLine, Event, MAX_LINE, Word, parse};

/// How many lines wait for a client that does not read. With more it is no client any more: what it knows of the hold is out of date.
const UNREAD: usize = 16;

/// How many words of a client wait for the holder. Further ones wait in the client's pipe.
const UNHEARD: usize = 16;

/// How long the last lines have until all clients have taken them.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What a client says.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Came,
    Word(Result<Word, BadLine>),
    /// Its words have ended; it may still read. Or it does not read, and is told nothing more.
    Left,
}

/// The connections to all clients of a hold.
#[derive(Debug)]
pub struct Clients {
    open: HashMap<ClientId, mpsc::Sender<String>>,
    left: VecDeque<ClientId>,
    said: mpsc::Receiver<(ClientId, Said)>,
    /// Each reader has a copy.
    says: mpsc::Sender<(ClientId, Said)>,
    writers: JoinSet<()>,
    count: u64,
    /// Where more clients come from.
    listener: Option<UnixListener>,
}

impl Default for Clients {
    fn default() -> Self {
        let (says, said) = mpsc::channel(UNHEARD);
        Clients {
            open: HashMap::new(),
            left: VecDeque::new(),
            said,
            says,
            writers: JoinSet::new(),
            count: 0,
            listener: None,
        }
    }
}

impl Clients {
    /// Adds a client that says its words on `input` and reads the events from `output`.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn add(
        &mut self,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> ClientId {
        self.count += 1;
        let client = ClientId(self.count);
        let (sender, lines) = mpsc::channel(UNREAD);
        self.open.insert(client, sender);
        // Those that have ended leave nothing.
        while self.writers.try_join_next().is_some() {}
        self.writers.spawn(write(lines, output));
        let says = self.says.clone();
        // It ends with its input, or when nobody hears it.
        tokio::spawn(async move {
            let mut input = BufReader::new(input);
            while let Some(line) = next_line(&mut input).await {
                let word = line.map_or_else(|()| Err(BadLine::too_long()), |line| parse(&line));
                if says.send((client, Said::Word(word))).await.is_err() {
                    return;
                }
            }
            _ = says.send((client, Said::Left)).await;
        });
        client
    }

    /// Lets more clients of this user come by a socket. It stays when the hold is over.
    pub fn listen(&mut self, listener: UnixListener) {
        self.listener = Some(listener);
    }

    /// Returns the clients that are there.
    pub(crate) fn all(&self) -> Vec<ClientId> {
        let mut all: Vec<_> = self.open.keys().copied().collect();
        all.sort();
        all
    }

    /// Returns what a client says next. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> (ClientId, Said) {
        if let Some(client) = self.left.pop_front() {
            return (client, Said::Left);
        }
        tokio::select! {
            biased;
            said = self.said.recv() => said.expect("one sender is kept here"),
            stream = accept(self.listener.as_ref()) => {
                let (input, output) = stream.into_split();
                (self.add(input, output), Said::Came)
            }
        }
    }

    pub(crate) fn tell(&mut self, to: To, event: &Event) {
        let line = event.line();
        let left = &mut self.left;
        self.open.retain(|client, lines| {
            let is_meant = to == To::All || to == To::One(*client);
            let is_told = !is_meant || lines.try_send(line.clone()).is_ok();
            if !is_told {
                left.push_back(*client);
            }
            is_told
        });
    }

    /// Lets the clients read the last lines, for at most a second. Dropping the future leaves the lines that were not read.
    pub(crate) async fn finish(mut self) {
        self.open.clear();
        _ = timeout(LAST_LINES, async { while self.writers.join_next().await.is_some() {} }).await;
    }
}

/// Waits for another client of this user. Without a listener, for ever. Dropping the future loses no client.
async fn accept(listener: Option<&UnixListener>) -> UnixStream {
    let own = rustix::process::geteuid().as_raw();
    while let Some(listener) = listener {
        match listener.accept().await {
            Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| peer.uid() == own) => return stream,
            Ok(_) => {}
            // Too many open files, for example: nobody else can come until some are closed.
            Err(_) => sleep(LAST_LINES).await,
        }
    }
    pending().await
}

/// Writes the lines until there are no more, or the reader has gone.
async fn write(mut lines: mpsc::Receiver<String>, mut output: impl AsyncWrite + Unpin) {
    while let Some(line) = lines.recv().await {
        if output.write_all(line.as_bytes()).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
    _ = output.shutdown().await;
}

/// Returns the next line without its end, or an error in place of one that is too long; `None` at the end of the input. It keeps no more
/// than the longest line. Dropping the future loses what was read of the line.
async fn next_line(input: &mut (impl AsyncBufRead + Unpin)) -> Option<Result<Vec<u8>, ()>> {
    let mut line = Some(Vec::new());
    let mut is_empty = true;
    loop {
        let Ok(part) = input.fill_buf().await else { return None };
        if part.is_empty() {
            return if is_empty { None } else { Some(line.ok_or(())) };
        }
        is_empty = false;
        let end = part.iter().position(|byte| *byte == b'\n');
        let piece = &part[..end.unwrap_or(part.len())];
        line = line.filter(|line: &Vec<u8>| line.len() + piece.len() <= MAX_LINE);
        if let Some(line) = &mut line {
            line.extend_from_slice(piece);
        }
        let used = piece.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Some(line.ok_or(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(text: &[u8]) -> Vec<Result<Vec<u8>, ()>> {
        let mut input = BufReader::with_capacity(7, text);
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input).await {
            lines.push(line);
        }
        lines
    }

    #[tokio::test]
    async fn a_long_line_is_one_error_and_the_lines_around_it_are_read() {
        let long = [b"a\n".to_vec(), vec![b'x'; MAX_LINE + 1], b"\nb".to_vec()].concat();
        assert_eq!(lines(&long).await, [Ok(b"a".to_vec()), Err(()), Ok(b"b".to_vec())]);
        let longest = [vec![b'x'; MAX_LINE], b"\n\n".to_vec()].concat();
        assert_eq!(lines(&longest).await, [Ok(vec![b'x'; MAX_LINE]), Ok(Vec::new())]);
        assert_eq!(lines(b"").await, []);
    }

    /// A client that does not read is none any more, and costs a bounded number of lines.
    #[tokio::test]
    async fn a_client_that_does_not_read_has_left() {
        let mut clients = Clients::default();
        let (output, unread) = tokio::io::duplex(16);
        let (input, _typed) = tokio::io::duplex(16);
        let client = clients.add(input, output);
        let mut told = 0;
        while clients.left.is_empty() {
            clients.tell(To::All, &Event::Wanted);
            told += 1;
            assert!(told <= UNREAD + 2, "{told}");
            tokio::task::yield_now().await;
        }
        assert!(matches!(clients.next().await, (left, Said::Left) if left == client));
        drop(unread);
    }
}
