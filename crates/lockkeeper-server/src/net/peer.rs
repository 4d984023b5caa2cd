//! Who is at the other end of a connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The other end of a connection. Shown as an address, or as the user and the process behind a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A client on the network.
    Net(SocketAddr),
    /// A client on this machine's Unix socket, as the kernel names it.
    Local {
        uid: u32,
        /// Its process, if this process can see it.
        pid: Option<i32>,
    },
}

/// What a peer's connections are counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    Net(IpAddr),
    User(u32),
}

/// Returns whether a user of this machine may do with a server what its own user may.
pub(crate) fn is_trusted(uid: u32) -> bool {
    [0, own_uid()].contains(&uid)
}

/// Returns the user who runs this server.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Peer {
    /// Returns its address on the network. A listener for IPv6 and IPv4 names a client of IPv4 by an IPv6 address; this returns
    /// the client's own one.
    pub(crate) fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Net(address) => Some(address.ip().to_canonical()),
            Self::Local { .. } => None,
        }
    }

    /// Returns what its connections are counted under.
    pub(crate) fn origin(self) -> Origin {
        match self {
            Self::Net(address) => Origin::Net(address.ip().to_canonical()),
            Self::Local { uid, .. } => Origin::User(uid),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(address) => write!(f, "{address}"),
            Self::Local { uid, pid: Some(pid) } => write!(f, "uid={uid},pid={pid}"),
            Self::Local { uid, pid: None } => write!(f, "uid={uid}"),
        }
    }
}
