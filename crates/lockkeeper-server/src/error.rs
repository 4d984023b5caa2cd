//! The errors of a server, each with a hint.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a server did not start, or stopped without a request to do so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another program listens on the address.
    #[error("address {address} is in use")]
    AddressInUse {
        /// The configured address.
        address: SocketAddr,
    },
    /// Listening failed for another reason.
    #[error("cannot listen on {address}: {}", source.kind())]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The Unix socket cannot be made.
    #[error("cannot make the socket {}: {cause}", path.display())]
    Socket {
        path: PathBuf,
        /// The system's error, which is part of the text.
        cause: io::Error,
    },
    /// The configuration names neither an address nor a socket.
    #[error("the server has neither an address nor a socket")]
    Nowhere,
    /// The address can be reached from other machines, and the configuration does not allow this.
    #[error("address {address} is reachable from other machines")]
    NotLoopback {
        /// The configured address.
        address: SocketAddr,
    },
    /// The path leads to something other than a directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The data directory.
        path: PathBuf,
    },
    /// The process has no permission to read or write the directory.
    #[error("no permission to use {}", path.display())]
    NoPermission {
        /// The path that could not be opened.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory is on a file system that is mounted for reading only.
    #[error("{} is on a file system that is mounted read-only", path.display())]
    ReadOnly {
        /// The data directory.
        path: PathBuf,
    },
    /// Another server uses this directory.
    #[error("data directory {} is in use by another server", path.display())]
    InUse {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory was written by a version with another format.
    #[error("data directory {} has format {found}, this program reads format {supported}", path.display())]
    Format {
        /// The data directory.
        path: PathBuf,
        /// The format in its `format` file.
        found: String,
        /// The format that this program reads.
        supported: u32,
    },
    /// The directory contains files but no `format` file.
    #[error("{} holds files that are not a data directory's", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// The disk is full.
    #[error("no space left for {}", path.display())]
    DiskFull {
        /// The data directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Reading or writing failed for another reason.
    #[error("cannot read or write {}: {cause}", path.display())]
    Disk {
        /// The data directory.
        path: PathBuf,
        /// The system's error, which is part of the text.
        cause: io::Error,
    },
    /// The stored state is inconsistent.
    #[error("the data in {} is damaged: {what}", path.display())]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// The file, the place and the inconsistency.
        what: String,
    },
    /// The system refused a thread, a runtime or random numbers.
    #[error("the system refused {what}")]
    System {
        /// The refused resource.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The certificate or the key of a server with TLS cannot be used.
    #[cfg(feature = "tls")]
    #[error("{what}")]
    Tls {
        /// The file and the reason.
        what: String,
    },
    /// The server found a bug in itself and stopped to prevent damage.
    #[error("the server stopped because of a bug in it")]
    Bug,
    /// The server has stopped, so it cannot carry out the request.
    #[error("the server has stopped")]
    Stopped,
}

impl ServerError {
    /// Returns a one-line hint for the operator.
    pub fn hint(&self) -> String {
        match self {
            Self::AddressInUse { address } => {
                format!(
                    "stop the program that listens on port {}, or choose another port (0 takes a free one)",
                    address.port()
                )
            }
            Self::Listen { .. } => "choose an address of this machine and a port above 1023".to_owned(),
            Self::Socket { .. } => "choose a directory of this user, with a path of at most 100 bytes".to_owned(),
            Self::Nowhere => "choose an address to listen on, or a socket".to_owned(),
            Self::NotLoopback { .. } => {
                "listen on 127.0.0.1, or allow remote clients explicitly, with TLS unless you trust the network"
                    .to_owned()
            }
            Self::NotADirectory { .. } => "choose another path or move the file away".to_owned(),
            Self::NoPermission { path, .. } => {
                format!("run as the owner of {}, or choose another data directory", path.display())
            }
            Self::ReadOnly { .. } => "mount it for writing, or choose another data directory".to_owned(),
            Self::InUse { .. } => "stop the other server, or choose another data directory".to_owned(),
            Self::Format { found, supported, .. } => match found.parse::<u32>() {
                Ok(found) if found > *supported => {
                    "use the newer version that wrote it, or an empty directory".to_owned()
                }
                _ => "use the version that wrote it, or an empty directory".to_owned(),
            },
            Self::Foreign { .. } => "choose an empty or new directory".to_owned(),
            Self::DiskFull { path, .. } => {
                format!("free space on the disk of {} and start again; no acknowledged write is lost", path.display())
            }
            Self::Disk { .. } => "check the disk and the system's log, then start again".to_owned(),
            Self::Damaged { .. } => {
                "restore the directory from a backup, or start with an empty one, in which no lock is held".to_owned()
            }
            Self::System { .. } => "raise this process's limits (ulimit -a)".to_owned(),
            #[cfg(feature = "tls")]
            Self::Tls { .. } => {
                "give a certificate with its chain and the key that belongs to it, both in PEM".to_owned()
            }
            Self::Bug => "start it again and report its output; no acknowledged write is lost".to_owned(),
            Self::Stopped => "start it again".to_owned(),
        }
    }

    /// Maps an I/O error of the data directory to the error with the right hint.
    pub(crate) fn disk(path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NoPermission { path, source },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::NotADirectory => Self::NotADirectory { path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::DiskFull { path, source }
            }
            _ => Self::Disk { path, cause: source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The owner of the directory could not write there either.
    #[test]
    fn a_read_only_file_system_is_named() {
        let error = ServerError::disk("/data".into(), io::ErrorKind::ReadOnlyFilesystem.into());
        assert_eq!(error.to_string(), "/data is on a file system that is mounted read-only");
        assert!(!error.hint().contains("run as"), "{}", error.hint());
    }
}
