//! What can go wrong with a server, each with what to do about it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a server did not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another program listens there.
    #[error("address {address} is in use")]
    AddressInUse {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// Listening failed for another reason.
    #[error("cannot listen on {address}: {}", source.kind())]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The address can be reached from other machines, and nobody said that this is wanted.
    #[error("address {address} is reachable from other machines")]
    NotLoopback {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// The path leads to something other than a directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory may not be read or written.
    #[error("no permission to use {}", path.display())]
    NoPermission {
        /// What was to be opened.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A server is running on this directory.
    #[error("data directory {} is in use by another process", path.display())]
    InUse {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory was written by another version, or is not one of ours.
    #[error("data directory {} has format {found}, this program reads format {supported}", path.display())]
    Format {
        /// The data directory.
        path: PathBuf,
        /// What its `format` file says.
        found: String,
        /// What this program reads.
        supported: u32,
    },
    /// The directory holds files but no `format` file.
    #[error("{} holds files that are not a data directory's", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// There is no room on the disk.
    #[error("no space left for {}", path.display())]
    DiskFull {
        /// The data directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Reading or writing failed.
    #[error("cannot use {}: {source}", path.display())]
    Disk {
        /// The data directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The stored state contradicts itself.
    #[error("the data in {} is damaged: {what}", path.display())]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The system refused a thread, a runtime or random numbers.
    #[error("the system refused {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The certificate or the key of a server with TLS is of no use.
    #[cfg(feature = "tls")]
    #[error("{what}")]
    Tls {
        /// Which of them, and why.
        what: String,
    },
    /// The server met a bug of its own and stopped before it could do harm.
    #[error("the server stopped because of a bug in it")]
    Bug,
    /// The server has stopped, so it cannot do what was asked.
    #[error("the server has stopped")]
    Stopped,
}

impl ServerError {
    /// What to do about it, in one line.
    pub fn hint(&self) -> String {
        match self {
            Self::AddressInUse { address } => {
                format!(
                    "stop the program that listens on port {}, or choose another port (0 takes a free one)",
                    address.port()
                )
            }
            Self::Listen { .. } => "choose an address of this machine and a port above 1023".to_owned(),
            Self::NotLoopback { .. } => {
                "listen on 127.0.0.1, or allow remote clients explicitly, with TLS unless the network is yours"
                    .to_owned()
            }
            Self::NotADirectory { .. } => "choose another path or move the file away".to_owned(),
            Self::NoPermission { path, .. } => {
                format!("run as the owner of {}, or choose another data directory", path.display())
            }
            Self::InUse { .. } => "stop the other server, or choose another data directory".to_owned(),
            Self::Format { found, supported, .. } => match found.parse::<u32>() {
                Ok(found) if found > *supported => {
                    "use the newer version that wrote it, or an empty directory".to_owned()
                }
                _ => "use the version that wrote it, or an empty directory".to_owned(),
            },
            Self::Foreign { .. } => "choose an empty or new directory".to_owned(),
            Self::DiskFull { path, .. } => {
                format!(
                    "free some space on the disk of {} and start again: nothing acknowledged is lost",
                    path.display()
                )
            }
            Self::Disk { .. } => "check the disk and the system's log, then start again".to_owned(),
            Self::Damaged { .. } => {
                "restore the directory from a backup, or start with an empty one: all locks are then free".to_owned()
            }
            Self::System { .. } => "raise this process's limits (ulimit -a)".to_owned(),
            #[cfg(feature = "tls")]
            Self::Tls { .. } => {
                "give a certificate with its chain and the key that belongs to it, both in PEM".to_owned()
            }
            Self::Bug => "start it again, and report what it printed: nothing acknowledged is lost".to_owned(),
            Self::Stopped => "start it again".to_owned(),
        }
    }

    /// Sorts an I/O error on the data directory into what an operator would do about it.
    pub(crate) fn disk(path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::NoPermission { path, source },
            io::ErrorKind::NotADirectory => Self::NotADirectory { path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::DiskFull { path, source }
            }
            _ => Self::Disk { path, source },
        }
    }
}
