//! Auth packets, SASL exchanges, and clients that have not presented the secret.

use lockkeeper_wire::{ErrorCode, PING_XID, Request, Response, response};
use tracing::{debug, info};

use super::Engine;
use crate::account::{Accounts, Exchange};
use crate::config::Secret;
use crate::machine::identity::{same_bytes, shown};
use crate::machine::{ConnectionId, Identity};
use crate::net::peer::Peer;

impl Engine {
    pub(super) fn authenticate(&mut self, id: ConnectionId, xid: i32, scheme: &str, auth: &[u8]) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (address, half_open) = (peer.address, peer.half_open.is_some());
        let result = match scheme {
            Secret::SCHEME if self.config.secret.as_ref().is_some_and(|secret| same_bytes(secret.expose(), auth)) => {
                self.admit(id);
                Ok(())
            }
            _ if half_open => Err(ErrorCode::AuthFailed),
            // Every text is a valid password; the access lists decide which identity has permissions.
            Identity::DIGEST => {
                let mut proven = self.config.accounts.digest_identities(auth);
                proven.try_for_each(|identity| self.machine.identify(id, identity))
            }
            // The address is known already.
            "ip" => Ok(()),
            _ => Err(ErrorCode::AuthFailed),
        };
        match result {
            Ok(()) => debug!(client = %address, scheme, "authenticated"),
            Err(_) => self.tell_of_failure(address, scheme),
        }
        self.send(id, self.machine.zxid(), |out| response::encode_auth(out, xid, result));
        if result.is_err() {
            self.close(id);
        }
    }

    /// Begins the session of a half-open connection.
    fn admit(&mut self, id: ConnectionId) {
        let Some(place) = self.peers.get_mut(&id).and_then(|peer| peer.half_open.take()) else { return };
        self.half_open.leave(&place);
        self.stepping = true;
        let now = self.clock.now();
        self.machine.admit(id, now, &mut self.effects);
        self.introduce(id);
        self.carry_out();
    }

    fn tell_of_failure(&mut self, address: Peer, scheme: &str) {
        if let Some(left_out) = self.line() {
            info!(client = %address, scheme = shown(scheme), left_out, "authentication failed");
        }
    }

    /// Performs one step of SASL DIGEST-MD5: sends a challenge, or checks the answer to it.
    pub(super) fn sasl(&mut self, id: ConnectionId, xid: i32, token: &[u8]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let address = peer.address;
        let result = match peer.exchange.take() {
            _ if peer.half_open.is_some() => None,
            None => begin_exchange(&self.config.accounts)
                .map(|exchange| peer.exchange.insert(Box::new(exchange)).challenge()),
            Some(exchange) => exchange.finish(&self.config.accounts, token).ok().and_then(|(identity, proof)| {
                debug!(client = %address, user = identity.id, "authenticated");
                self.machine.identify(id, identity).ok().map(|()| proof)
            }),
        };
        let failed = result.is_none();
        if failed {
            self.tell_of_failure(address, Identity::SASL);
        }
        let result = result.as_deref().ok_or(ErrorCode::AuthFailed);
        self.send(id, self.machine.zxid(), |out| response::encode_sasl(out, xid, result));
        if failed {
            self.close(id);
        }
    }

    /// Answers pings of a client that has not presented the secret, and refuses everything else.
    pub(super) fn answer_untrusted(&mut self, id: ConnectionId, xid: i32, request: &Request) {
        let zxid = self.machine.zxid();
        if *request == Request::Ping {
            let pong = Ok(Response::Done);
            self.send(id, zxid, |out| response::encode(out, PING_XID, zxid, &pong));
        } else {
            self.send(id, zxid, |out| response::encode(out, xid, zxid, &Err(ErrorCode::NoAuth)));
            self.close(id);
        }
    }
}

/// Returns `None` if there are no SASL users or no random numbers.
fn begin_exchange(accounts: &Accounts) -> Option<Exchange> {
    let mut random = [0; 16];
    (accounts.has_sasl() && getrandom::fill(&mut random).is_ok()).then(|| Exchange::begin(random))
}
