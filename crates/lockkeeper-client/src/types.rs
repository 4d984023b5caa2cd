//! What a session is opened with, and what it reports.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_wire::{ErrorCode, EventKind, Response};

/// The number of a request, and of the watch that it may leave. Never used twice in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a session is opened with.
#[derive(Clone)]
pub struct Config {
    /// How many servers there are; the machine knows them by their index. At least one.
    pub servers: usize,
    /// The session timeout to ask for; the server may grant another.
    pub session_timeout: Duration,
    /// What every connection presents before its first request: scheme and credential.
    pub credentials: Vec<(String, Vec<u8>)>,
    /// The user and password of SASL DIGEST-MD5, which every connection proves before anything else.
    pub sasl: Option<(String, String)>,
    /// The longest frame to accept, in bytes; a longer one ends the connection.
    pub max_frame: usize,
    /// The session to resume, instead of a new one.
    pub resume: Option<Resume>,
}

impl Config {
    /// A new session of this timeout with this many servers.
    pub fn new(servers: usize, session_timeout: Duration) -> Config {
        Config { servers, session_timeout, credentials: Vec::new(), sasl: None, max_frame: 64 << 20, resume: None }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schemes: Vec<_> = self.credentials.iter().map(|(scheme, _)| scheme).collect();
        f.debug_struct("Config")
            .field("servers", &self.servers)
            .field("session_timeout", &self.session_timeout)
            .field("credentials", &schemes)
            .finish_non_exhaustive()
    }
}

/// What it takes to resume a session. Whoever has it can take the session over.
#[derive(Clone, PartialEq, Eq)]
pub struct Resume {
    /// The session's id.
    pub session: i64,
    /// Its password.
    pub password: [u8; 16],
    /// The newest transaction that it has seen.
    pub last_zxid: i64,
}

impl fmt::Debug for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resume").field("session", &format_args!("{:#x}", self.session)).finish_non_exhaustive()
    }
}

/// Why a session is over. Final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// A server said that the session has expired.
    #[error("the session has expired")]
    Expired,
    /// A server refused a credential.
    #[error("the server refused the credentials")]
    AuthFailed,
    /// Its owner closed it.
    #[error("the session is closed")]
    Closed,
}

/// Why a request has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The server refused it. It was not carried out.
    #[error("the server answered {0:?}")]
    Refused(ErrorCode),
    /// The connection ended before the reply. It may have been carried out.
    #[error("the connection was lost before the reply")]
    ConnectionLoss,
    /// The session was over before the reply.
    #[error(transparent)]
    SessionOver(End),
}

/// What the session has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server has accepted the session.
    Connected {
        /// Its index.
        server: usize,
        /// Whether this connection opened the session; otherwise it resumed it.
        opened: bool,
    },
    /// The connection ended. The session may live on.
    Disconnected,
    /// The session is over. Every request has been told; no watch will fire. Nothing follows.
    Over(End),
    /// A request has its outcome.
    Reply {
        /// Which one.
        id: RequestId,
        /// The newest transaction that the server had applied; the last known one where no server replied.
        zxid: i64,
        /// The outcome.
        result: Result<Response, RequestError>,
    },
    /// A watch fired.
    Watch {
        /// The request that left it.
        id: RequestId,
        /// What happened.
        kind: EventKind,
        /// Where: for a recursive watch the node itself.
        path: Arc<str>,
    },
}

/// The transport that the session wants now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Grows with each one, so that a driver sees when the one it has is to be dropped.
    pub attempt: u64,
    /// The server's index.
    pub server: usize,
}
