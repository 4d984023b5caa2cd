//! The transport of a connection: plain TCP, TLS, or this machine's Unix socket.
//!
//! Both halves can be used at the same time. Nothing here waits or has a buffer, so an idle plain connection has none.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixStream, unix};
#[cfg(feature = "tls")]
use tokio_rustls::server::TlsStream;

use crate::machine::identity::Identity;

#[derive(Debug)]
pub(crate) enum ReadHalf {
    Plain(OwnedReadHalf),
    Local(unix::OwnedReadHalf),
    #[cfg(feature = "tls")]
    Tls(Box<tokio::io::ReadHalf<TlsStream<TcpStream>>>),
}

#[derive(Debug)]
pub(crate) enum WriteHalf {
    Plain(OwnedWriteHalf),
    Local(unix::OwnedWriteHalf),
    #[cfg(feature = "tls")]
    Tls(Box<tokio::io::WriteHalf<TlsStream<TcpStream>>>),
}

/// Both halves, and the client's identity if the transport has proved one.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) read: ReadHalf,
    pub(crate) write: WriteHalf,
    pub(crate) identity: Option<Identity>,
}

pub(crate) fn plain(stream: TcpStream) -> Opened {
    let (read, write) = stream.into_split();
    Opened { read: ReadHalf::Plain(read), write: WriteHalf::Plain(write), identity: None }
}

/// A connection of this machine's Unix socket, from a process of the user with this id.
pub(crate) fn local(stream: UnixStream, uid: u32) -> Opened {
    let (read, write) = stream.into_split();
    let identity = Some(Identity::new(Identity::UID, uid.to_string()));
    Opened { read: ReadHalf::Local(read), write: WriteHalf::Local(write), identity }
}

/// A TLS connection after its handshake.
#[cfg(feature = "tls")]
pub(crate) async fn secured(stream: TcpStream, tls: &crate::tls::Tls) -> io::Result<Opened> {
    let (stream, identity) = tls.accept(stream).await?;
    let (read, write) = tokio::io::split(stream);
    Ok(Opened { read: ReadHalf::Tls(Box::new(read)), write: WriteHalf::Tls(Box::new(write)), identity })
}

impl ReadHalf {
    /// Reads available bytes into the front of `buffer` and returns their number; 0 if the client has closed.
    pub(crate) fn poll_receive(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let read = match self {
            Self::Plain(read) => Pin::new(read).poll_read(cx, &mut buffer),
            Self::Local(read) => Pin::new(read).poll_read(cx, &mut buffer),
            #[cfg(feature = "tls")]
            Self::Tls(read) => Pin::new(read).poll_read(cx, &mut buffer),
        };
        match ready!(read) {
            // Many clients close TLS without a close message. Frames have lengths, so a truncation is noticed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(0)),
            result => Poll::Ready(result.map(|()| buffer.filled().len())),
        }
    }
}

impl WriteHalf {
    /// Sends what the socket accepts immediately, and returns the number of bytes. An error means only that the task
    /// that waits for this half must try.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(write) => write.try_write(bytes),
            Self::Local(write) => write.try_write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Sends some of the bytes and returns their number.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.half().poll_write(cx, bytes)
    }

    /// Flushes what was sent.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half().poll_flush(cx)
    }

    /// Closes the sending half.
    pub(crate) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half().poll_shutdown(cx)
    }

    fn half(&mut self) -> Pin<&mut (dyn AsyncWrite + Unpin)> {
        match self {
            Self::Plain(write) => Pin::new(write),
            Self::Local(write) => Pin::new(write),
            #[cfg(feature = "tls")]
            Self::Tls(write) => Pin::new(write),
        }
    }
}
