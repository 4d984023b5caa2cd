//! The limits of connections and sessions, as a refused client and the log read them.

use std::fmt;

use crate::net::peer;

/// Each user of the machine may have one part in so many of the connections, and of the sessions.
const SHARE: usize = 4;

/// Returns how many of `limit` connections or sessions a user of the Unix socket may have. The server's own user and root may
/// have all.
pub(crate) fn share(uid: u32, limit: usize) -> usize {
    if peer::is_trusted(uid) { limit } else { (limit / SHARE).max(1) }
}

/// A limit that one more connection or session would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    what: &'static str,
    flag: &'static str,
    limit: usize,
    /// The user whose share it is.
    uid: Option<u32>,
}

impl Exceeded {
    pub(crate) fn connections(limit: usize) -> Self {
        Self { what: "connections", flag: "--max-connections", limit, uid: None }
    }

    /// Of one address, or of one user of the Unix socket.
    pub(crate) fn of_address(limit: usize) -> Self {
        Self { what: "connections from one address", flag: "--max-connections-per-address", limit, uid: None }
    }

    pub(crate) fn sessions(limit: usize) -> Self {
        Self { what: "sessions", flag: "--max-sessions", limit, uid: None }
    }

    pub(crate) fn of_user(self, uid: u32) -> Self {
        Self { uid: Some(uid), ..self }
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, flag, limit, uid } = self;
        match uid {
            None => write!(f, "there are {limit} {what}, and {flag} allows no more"),
            Some(uid) => {
                let share = share(*uid, *limit);
                write!(f, "uid {uid} has {share} {what}, its share: a quarter of the {limit} that {flag} allows")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_limit_its_value_and_the_flag() {
        let stranger = peer::own_uid().wrapping_add(54_321);
        let all = Exceeded::connections(80);
        assert_eq!(all.to_string(), "there are 80 connections, and --max-connections allows no more");
        let own =
            format!("uid {stranger} has 20 connections, its share: a quarter of the 80 that --max-connections allows");
        assert_eq!(all.of_user(stranger).to_string(), own);
        let address = "there are 9 connections from one address, and --max-connections-per-address allows no more";
        assert_eq!(Exceeded::of_address(9).to_string(), address);
        assert_eq!([share(stranger, 3), share(stranger, 4), share(stranger, 9)], [1, 1, 2]);
        assert_eq!([share(0, 9), share(peer::own_uid(), 9)], [9, 9]);
    }
}
