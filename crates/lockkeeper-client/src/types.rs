//! The options of a session, and its events.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_wire::{ErrorCode, EventKind, Response};

/// The number of a request, and of the watch that it may leave. Numbers are unique in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The options of a session.
#[derive(Clone)]
pub struct Config {
    /// The requested session timeout; the server may grant another.
    pub session_timeout: Duration,
    /// Credentials that every connection presents before its first request: scheme and credential. The session is
    /// connected when the server has accepted them, which costs a round trip.
    pub credentials: Vec<(String, Vec<u8>)>,
    /// The SASL DIGEST-MD5 user and password that every connection proves first.
    pub sasl: Option<(String, String)>,
    /// The pause between two rounds over all servers; `None` means pauses that grow from 50 ms to 1 s, with jitter.
    pub pause: Option<Duration>,
    /// Maximum length of a frame in bytes; a longer one ends the connection.
    pub max_frame: usize,
    /// The session to resume; `None` opens a new one.
    pub resume: Option<Resume>,
}

impl Config {
    /// Returns the options for a new session with this timeout, without credentials.
    pub fn new(session_timeout: Duration) -> Config {
        let (credentials, sasl, resume) = (Vec::new(), None, None);
        Config { session_timeout, credentials, sasl, pause: None, max_frame: 64 << 20, resume }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schemes: Vec<_> = self.credentials.iter().map(|(scheme, _)| scheme).collect();
        f.debug_struct("Config")
            .field("session_timeout", &self.session_timeout)
            .field("credentials", &schemes)
            .finish_non_exhaustive()
    }
}

/// The credentials of a session. Everyone who has them can take the session over.
#[derive(Clone, PartialEq, Eq)]
pub struct Resume {
    /// The session's id.
    pub session: i64,
    pub password: [u8; 16],
    /// The newest transaction that the session has seen.
    pub last_zxid: i64,
}

impl fmt::Debug for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resume").field("session", &format_args!("{:#x}", self.session)).finish_non_exhaustive()
    }
}

/// Why a session is over. It cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// A server reported that the session has expired, or the servers have lost transactions that the session saw.
    #[error("the session has expired")]
    Expired,
    /// A server refused a credential.
    #[error("the server refused the credentials")]
    AuthFailed,
    /// A server accepts only clients that have authenticated, by SASL or by another scheme of its settings, and this
    /// session has not.
    #[error("the server accepts only clients that have authenticated, by SASL unless its settings name another scheme")]
    AuthRequired,
    /// The owner closed it.
    #[error("the session is closed")]
    Closed,
}

/// Why a request has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The server answered with an error. It was not carried out if that [is a refusal](ErrorCode::is_refusal); after any
    /// other error, it may have been.
    #[error("the server answered {0:?}")]
    Refused(ErrorCode),
    /// The connection ended before the reply. It may have been carried out.
    #[error("the connection was lost before the reply")]
    ConnectionLoss,
    /// It was not sent: servers have closed three connections in a row while a request of this size had no answer. The next one is
    /// sent again.
    #[error("servers close the connection on a request of {bytes} bytes; raise jute.maxbuffer on the servers")]
    TooLarge {
        /// The size of the request.
        bytes: usize,
    },
    /// The session was over before the reply.
    #[error(transparent)]
    SessionOver(End),
    /// The runtime of the session's driver ended before the reply. The request may have been carried out.
    #[error("the runtime of the session has ended")]
    DriverEnded,
}

/// What a session reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A server has accepted the session.
    Connected {
        /// The server's index.
        server: usize,
        /// Whether this connection opened the session; otherwise it resumed it.
        opened: bool,
    },
    /// The connection ended. The session may live on.
    Disconnected,
    /// Every server was tried. After a pause, the session tries them all again; [`Session::pause_for`](crate::Session::pause_for)
    /// changes the pause.
    Paused,
    /// The session is over. Every request has its reply, and no watch will fire. No event follows.
    Over(End),
    /// A request has its result.
    Reply {
        id: RequestId,
        /// The newest transaction that the server had applied; the last known one if no server replied.
        zxid: i64,
        result: Result<Response, RequestError>,
    },
    /// A watch fired.
    Watch {
        /// The request that left the watch.
        id: RequestId,
        /// What happened.
        kind: EventKind,
        /// The path of the node. For a recursive watch this may be a node below the watched path.
        path: Arc<str>,
    },
    /// A watch has ended without an event, because the session has moved to a server that does not know its kind.
    WatchEnded {
        /// The request that left the watch.
        id: RequestId,
    },
}

/// The transport that the session needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Grows with each transport, so that the driver knows when to drop the one it has.
    pub attempt: u64,
    /// The server's index.
    pub server: usize,
}

/// State of the session's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// A server has accepted the session.
    Connected,
    /// The connection ended; the session may live on.
    Disconnected,
    /// Every server was tried. After a pause, the session tries them all again; [`Client::pause_for`](crate::Client::pause_for)
    /// changes the pause, and [`Client::connect_errors`](crate::Client::connect_errors) has the reasons.
    Paused,
    /// The connection has taken the request to close the session, and everything before it. The answer follows, unless the
    /// connection ends.
    Closing,
    /// The session is over. Nothing follows.
    Over(End),
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub kind: EventKind,
    /// Path of the node.
    pub path: Arc<str>,
}
