//! What any call can meet: no session, no reply, or a refusal.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_client::TlsProblem;
use lockkeeper_core::spell;

#[cfg(feature = "embedded")]
use super::embedded::EmbeddedError;
use super::kind::ErrorKind;
use super::misuse::{Misuse, from_misuse};
use crate::acl::LockAcl;

/// What a client without credentials does about servers that require some.
pub const AUTHENTICATE: &str = "set the user and the password with Builder::sasl or in the file of Builder::auth_file";

/// Why the servers did not carry out a request. Every call can meet these.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No server opened a session before the deadline, or the session's server did not answer before it. The holder is
    /// unknown.
    #[error("no server answered within {}: {detail}", spell(*waited))]
    Unreachable {
        /// The servers that were tried.
        servers: String,
        /// How long they were tried: for the timeout of the call or for the connect timeout, whichever was shorter, or for as long
        /// as a server that had answered before was silent.
        waited: Duration,
        /// The result of each server.
        detail: String,
    },
    /// The connection was lost before the answer, or the session has ended. A read changed nothing; a write may have happened.
    /// After a break of a lock, `Admin::broken` shows whether it took effect.
    #[error("the connection was lost before the answer about {path}")]
    ConnectionLost {
        /// The node or the lock.
        path: String,
    },
    /// A server refused an operation on a node.
    #[error("the server refused an operation on {path}: {reason}")]
    Refused {
        /// The node or the lock.
        path: String,
        /// The server's reason.
        reason: String,
    },
    /// The servers rejected this client's credentials.
    #[error("{servers} rejected the credentials")]
    AuthFailed {
        /// The servers that were tried.
        servers: String,
    },
    /// The servers accept only clients that have authenticated, and this client presents nothing of that kind.
    #[error("{servers} accepts only clients that have authenticated, by SASL unless its settings name another scheme")]
    AuthRequired {
        /// The servers that were tried.
        servers: String,
    },
    /// The chroot of the connect string does not exist. Nothing was created.
    #[error("the chroot {chroot} does not exist on {servers}")]
    NoChroot {
        /// The servers that were asked.
        servers: String,
        /// The chroot.
        chroot: String,
    },
    /// The epoch of fencing tokens cannot be read, so no token is certain to be greater than those before.
    #[error("the epoch of fencing tokens in {node} cannot be used: {problem}")]
    TokenEpoch {
        /// The node.
        node: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The embedded server or its directory cannot be used.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// The operating system could not create a thread.
    #[error("cannot create the thread for the session's input and output: {0}")]
    Thread(Arc<std::io::Error>),
    /// The handle is closed.
    #[error("this Lockkeeper is closed")]
    Closed,
    /// The handle belongs to the parent of this forked process.
    #[error("this Lockkeeper belongs to the parent of this forked process")]
    Forked,
}

/// How a handle of an embedded server names it; the directory follows.
pub(crate) const EMBEDDED_SERVER: &str = "the server of ";

/// What a refusal says about a node that all clients share, if its list keeps some of them out.
pub(crate) const NOT_OPEN: &str = "is shared by all clients but not open to all";

impl SessionError {
    pub(crate) fn thread(error: std::io::Error) -> Self {
        SessionError::Thread(Arc::new(error))
    }

    /// Whether the servers refused because the list of a node that all clients share keeps this client out.
    /// `Admin::set_up` of `lockkeeper`, by a client that may administrate the node, gives it another list.
    pub fn needs_set_up(&self) -> bool {
        // By its text: between the refused request and this error, a reason is carried as text.
        matches!(self, SessionError::Refused { reason, .. } if reason.contains(NOT_OPEN))
    }

    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            SessionError::Unreachable { .. } | SessionError::ConnectionLost { .. } => ErrorKind::Unavailable,
            SessionError::Refused { .. } | SessionError::AuthFailed { .. } | SessionError::AuthRequired { .. } => {
                ErrorKind::Refused
            }
            SessionError::NoChroot { .. } | SessionError::TokenEpoch { .. } => ErrorKind::Mismatch,
            #[cfg(feature = "embedded")]
            SessionError::Embedded(error) => error.kind(),
            SessionError::Thread(_) => ErrorKind::System,
            SessionError::Closed => ErrorKind::Cancelled,
            SessionError::Forked => ErrorKind::Misuse,
        }
    }

    /// Returns the mistake about TLS that kept the servers from opening a session, if there is one.
    pub fn tls_problem(&self) -> Option<TlsProblem> {
        match self {
            SessionError::Unreachable { detail, .. } => TlsProblem::in_text(detail),
            _ => None,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one.
    pub fn hint(&self) -> Option<String> {
        if let Some(problem) = self.tls_problem() {
            return Some(hint_about_tls(problem).to_owned());
        }
        match self {
            SessionError::Unreachable { servers, .. } if servers.starts_with(EMBEDDED_SERVER) => {
                Some(format!("check that the process that hosts {servers} is not suspended or overloaded"))
            }
            SessionError::Unreachable { servers, .. } if servers.starts_with("unix:") => {
                Some(format!("check that the process that serves {servers} runs, and is not suspended or overloaded"))
            }
            SessionError::Unreachable { servers, .. } => {
                Some(format!("check that a ZooKeeper server runs at {servers} and that this machine can reach it"))
            }
            SessionError::Refused { .. } if self.needs_set_up() => Some(format!(
                "a client that may administrate that node gives it the list {} (Admin::set_up)",
                LockAcl::open_to_contend()
            )),
            SessionError::Refused { .. } => Some("check the ACL of the lock's node and of its parents".to_owned()),
            SessionError::AuthRequired { .. } => Some(AUTHENTICATE.to_owned()),
            SessionError::NoChroot { chroot, .. } => {
                Some(format!("check the spelling of {chroot}; Builder::create_chroot(true) creates it"))
            }
            SessionError::TokenEpoch { node, .. } => Some(format!(
                "give all clients read access to {node} and let it contain a number; without the node the epoch is 0"
            )),
            #[cfg(feature = "embedded")]
            SessionError::Embedded(error) => error.hint(),
            SessionError::Forked => Some("connect in the child, after the fork".to_owned()),
            SessionError::ConnectionLost { .. }
            | SessionError::AuthFailed { .. }
            | SessionError::Thread(_)
            | SessionError::Closed => None,
        }
    }
}

const fn hint_about_tls(problem: TlsProblem) -> &'static str {
    match problem {
        TlsProblem::UnknownAuthority => {
            "trust the authority that has issued the server's certificate: Tls::trusting_file"
        }
        TlsProblem::NotValidNow => "renew the server's certificate, or correct the clock of this machine",
        TlsProblem::OtherName => {
            "name the server as its certificate does, or issue a certificate with the name in the connect string"
        }
        TlsProblem::ClientCertificate => "present a certificate that the servers trust: Tls::with_identity_files",
        TlsProblem::PortWithoutTls => {
            "if the port is one without TLS, name the servers' port for TLS, or connect without Builder::tls"
        }
        _ => "connect by TLS with Builder::tls, or name the servers' port without TLS",
    }
}

/// Why sessions were not connected.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connect string, a directory, a certificate, a credential, a timeout or a realm cannot be used. Nothing was sent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// No session was opened.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl ConnectError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            ConnectError::Misuse(error) => error.kind(),
            ConnectError::Session(error) => error.kind(),
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            ConnectError::Misuse(error) => error.hint(),
            ConnectError::Session(error) => error.hint(),
        }
    }
}

from_misuse!(ConnectError);

#[cfg(feature = "embedded")]
impl From<EmbeddedError> for ConnectError {
    fn from(error: EmbeddedError) -> Self {
        ConnectError::Session(error.into())
    }
}
