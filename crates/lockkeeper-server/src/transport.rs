//! What a connection's bytes go through: TCP as it is, or TLS over it.
//!
//! Both halves work at the same time and neither knows which it is. Dropping a pending read loses no byte.

use std::io;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
#[cfg(feature = "tls")]
use tokio_rustls::server::TlsStream;

use crate::identity::Identity;

/// What one read takes.
const READ_BYTES: usize = 4 << 10;

/// The receiving half.
#[derive(Debug)]
pub(crate) enum Reader {
    Plain(OwnedReadHalf),
    #[cfg(feature = "tls")]
    Tls(Box<tokio::io::ReadHalf<TlsStream<TcpStream>>>),
}

/// The sending half.
#[derive(Debug)]
pub(crate) enum Writer {
    Plain(OwnedWriteHalf),
    #[cfg(feature = "tls")]
    Tls(Box<tokio::io::WriteHalf<TlsStream<TcpStream>>>),
}

/// Both halves, and who is at the other end where the transport can tell.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) read: Reader,
    pub(crate) write: Writer,
    pub(crate) identity: Option<Identity>,
}

/// A plain connection.
pub(crate) fn plain(stream: TcpStream) -> Opened {
    let (read, write) = stream.into_split();
    Opened { read: Reader::Plain(read), write: Writer::Plain(write), identity: None }
}

/// A TLS connection after its handshake.
#[cfg(feature = "tls")]
pub(crate) async fn secured(stream: TcpStream, tls: &crate::tls::Tls) -> io::Result<Opened> {
    let (stream, identity) = tls.accept(stream).await?;
    let (read, write) = tokio::io::split(stream);
    Ok(Opened { read: Reader::Tls(Box::new(read)), write: Writer::Tls(Box::new(write)), identity })
}

impl Reader {
    /// Reads what there is, at least one byte unless the client has closed.
    pub(crate) async fn receive(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Plain(read) => receive_plain(read, buffer).await,
            #[cfg(feature = "tls")]
            Self::Tls(read) => {
                use tokio::io::AsyncReadExt;
                buffer.reserve(READ_BYTES);
                match read.read_buf(buffer).await {
                    // Many clients close without saying so in TLS; frames have lengths, so nothing can be cut off unseen.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                    result => result,
                }
            }
        }
    }
}

async fn receive_plain(read: &mut OwnedReadHalf, buffer: &mut BytesMut) -> io::Result<usize> {
    loop {
        read.readable().await?;
        // Only now: an idle connection holds no buffer.
        buffer.reserve(READ_BYTES);
        match read.try_read_buf(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if buffer.is_empty() {
                    *buffer = BytesMut::new();
                }
            }
            result => return result,
        }
    }
}

impl Writer {
    /// Sends all of it.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(write) => write.write_all(bytes).await,
            #[cfg(feature = "tls")]
            Self::Tls(write) => {
                write.write_all(bytes).await?;
                write.flush().await
            }
        }
    }

    /// Tells the client that nothing more comes.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(write) => write.shutdown().await,
            #[cfg(feature = "tls")]
            Self::Tls(write) => write.shutdown().await,
        }
    }
}
