//! The place of a command's locks: an ensemble, or a server of this machine.

use std::fmt;

use lockkeeper::embedded::Home;

use crate::presence::HERE;

/// The place of the locks.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// An ensemble, with its connect string.
    Ensemble(String),
    /// A server of this machine: this user's own server, or the one that all users share.
    Machine(Home),
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
