//! What a lock protects: a resource that refuses stale tokens and remembers what it was told.
//!
//! In this process, or for others over a socket: `KEY TOKEN WHAT` on a line, answered by `ok` or by why not. The record is made
//! while the gate's pass is held, so it is in the order in which the resource acted.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use lockkeeper_fence::{FencingToken, Refused, TokenGate};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Something that was done to the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Which part of the resource.
    pub key: String,
    /// By whose token.
    pub token: FencingToken,
    /// What.
    pub what: String,
}

/// A resource behind a gate. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    gate: TokenGate,
    record: Arc<Mutex<Record>>,
}

/// What a resource was told.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// What it did, in that order.
    pub accepted: Vec<Accepted>,
    /// What it refused, in the order of the answers.
    pub refused: Vec<Refused>,
}

impl Record {
    /// What was done by an older token after a newer one had been there: nothing, if the gate works.
    pub fn stale(&self) -> Vec<&Accepted> {
        let mut highest: HashMap<&str, FencingToken> = HashMap::new();
        let mut stale = Vec::new();
        for done in &self.accepted {
            let highest = highest.entry(&done.key).or_insert(done.token);
            *highest = done.token.max(*highest);
            if done.token < *highest {
                stale.push(done);
            }
        }
        stale
    }
}

impl Resource {
    /// Does something to the resource, if the token is not stale.
    ///
    /// # Errors
    /// The gate's refusal; it is recorded.
    pub async fn write(&self, key: &str, token: FencingToken, what: &str) -> Result<(), Refused> {
        let entered = self.gate.enter(key, token).await;
        let mut record = self.record.lock().expect("held for a change only");
        match entered {
            Ok(_pass) => {
                record.accepted.push(Accepted { key: key.to_owned(), token, what: what.to_owned() });
                Ok(())
            }
            Err(refused) => {
                record.refused.push(refused.clone());
                Err(refused)
            }
        }
    }

    /// What it was told so far.
    pub fn record(&self) -> Record {
        self.record.lock().expect("held for a look only").clone()
    }

    /// Serves other processes on loopback until the runtime ends; returns the address.
    ///
    /// # Errors
    /// No port is to be had.
    pub async fn serve(&self) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let resource = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let resource = resource.clone();
                // A client that goes away is no fault of the resource's.
                tokio::spawn(async move { _ = resource.attend(stream).await });
            }
        });
        Ok(address)
    }

    async fn attend(&self, stream: TcpStream) -> io::Result<()> {
        let (requests, mut answers) = stream.into_split();
        let mut requests = BufReader::new(requests).lines();
        while let Some(line) = requests.next_line().await? {
            let mut words = line.splitn(3, ' ');
            let (key, token, what) = (words.next(), words.next(), words.next().unwrap_or_default());
            let answer = match (key, token.map(str::parse)) {
                (Some(key), Some(Ok(token))) => match self.write(key, token, what).await {
                    Ok(()) => "ok\n".to_owned(),
                    Err(refused) => format!("{refused}\n"),
                },
                (_, Some(Err(error))) => format!("{error}\n"),
                _ => "KEY TOKEN WHAT, please\n".to_owned(),
            };
            answers.write_all(answer.as_bytes()).await?;
        }
        Ok(())
    }
}

/// Another process's way to a resource that is served.
#[derive(Debug)]
pub struct Remote(BufReader<TcpStream>);

impl Remote {
    /// Connects to what [`Resource::serve`] returned.
    ///
    /// # Errors
    /// Nobody is there.
    pub async fn connect(address: SocketAddr) -> io::Result<Remote> {
        Ok(Remote(BufReader::new(TcpStream::connect(address).await?)))
    }

    /// [`Resource::write`] from afar; `Ok(Err(why))` if it was refused.
    ///
    /// # Errors
    /// The connection broke; nobody knows whether it was done.
    pub async fn write(&mut self, key: &str, token: FencingToken, what: &str) -> io::Result<Result<(), String>> {
        self.0.write_all(format!("{key} {token} {what}\n").as_bytes()).await?;
        let mut answer = String::new();
        if self.0.read_line(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let answer = answer.trim_end();
        Ok(if answer == "ok" { Ok(()) } else { Err(answer.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: i64) -> FencingToken {
        FencingToken::try_from(number).expect("positive")
    }

    #[tokio::test]
    async fn what_was_done_is_recorded_in_order_and_what_was_not_beside_it() {
        let resource = Resource::default();
        let mut remote = Remote::connect(resource.serve().await.expect("a port")).await.expect("it listens");
        assert_eq!(remote.write("a", token(2), "two words").await.expect("it answers"), Ok(()));
        assert!(resource.write("a", token(1), "late").await.is_err());
        let refused = remote.write("a", token(1), "late").await.expect("it answers");
        assert_eq!(refused, Err("token 1 is stale: 2 has been seen".to_owned()));
        let record = resource.record();
        let done = Accepted { key: "a".to_owned(), token: token(2), what: "two words".to_owned() };
        assert_eq!((record.accepted.as_slice(), record.refused.len()), ([done].as_slice(), 2));
        assert!(record.stale().is_empty());
    }

    #[test]
    fn a_stale_write_in_a_record_is_found() {
        let done = |key: &str, number| Accepted { key: key.to_owned(), token: token(number), what: String::new() };
        let accepted = vec![done("a", 1), done("b", 1), done("a", 3), done("a", 3), done("b", 2), done("a", 2)];
        let record = Record { accepted, refused: Vec::new() };
        assert_eq!(record.stale(), [&done("a", 2)]);
    }
}
