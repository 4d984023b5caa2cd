//! The place of a command's locks: an ensemble, or a server of this machine.

use std::fmt;

use lockkeeper::embedded::ServerDir;

use crate::presence::HERE;

/// The place of the locks.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// An ensemble, with its connect string.
    Ensemble(String),
    /// A server of this machine: this user's own server, or the one that all users share.
    Machine(ServerDir),
}

/// Where an answer comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// One ensemble or server.
    One(Place),
    /// Several realms, each with its prefix and its servers.
    Realms(Vec<(String, String)>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::One(place) => place.fmt(f),
            Source::Realms(realms) => {
                let names: Vec<_> = realms.iter().map(|(prefix, servers)| realm(prefix, servers)).collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

/// `zk-a1:2181,zk-a2:2181 (realm /locks/search)`
pub(crate) fn realm(prefix: &str, servers: &str) -> String {
    format!("{servers} (realm {prefix})")
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Ensemble(servers) => f.write_str(servers),
            Place::Machine(home) if home.is_shared() => f.write_str("this machine's server"),
            Place::Machine(_) => write!(f, "{}'s own server", HERE.user),
        }
    }
}
