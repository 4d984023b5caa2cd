//! Errors of the embedded server and of its directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper_server::ServerError;

use super::kind::ErrorKind;

/// Why the embedded server, or the one in a directory, cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// The embedded server did not start.
    #[error(transparent)]
    Server(Arc<ServerError>),
    /// A file in the embedded server's directory cannot be used.
    #[error("{what} {}: {cause}", file.display())]
    File {
        /// The operation that failed.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// The cause, which is part of the text.
        cause: Arc<std::io::Error>,
    },
    /// No server runs in the directory, and this client does not start one.
    #[error("no server is running in {}", dir.display())]
    NotRunning {
        /// The server's directory.
        dir: PathBuf,
    },
}

impl EmbeddedError {
    /// Creates the error of a file or directory that cannot be used. `what` is what failed, as in `cannot read`.
    pub fn file(what: &'static str, file: impl AsRef<Path>, cause: std::io::Error) -> Self {
        EmbeddedError::File { what, file: file.as_ref().to_owned(), cause: Arc::new(cause) }
    }

    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            EmbeddedError::NotRunning { .. } => ErrorKind::Unavailable,
            EmbeddedError::Server(_) | EmbeddedError::File { .. } => ErrorKind::System,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            EmbeddedError::Server(error) => Some(error.hint()),
            EmbeddedError::NotRunning { .. } => {
                Some("start a server there, or connect with a call that starts one".to_owned())
            }
            EmbeddedError::File { .. } => None,
        }
    }
}

impl From<ServerError> for EmbeddedError {
    fn from(error: ServerError) -> Self {
        EmbeddedError::Server(Arc::new(error))
    }
}
