//! Auth packets, SASL exchanges, and clients that have not presented the secret.

use lockkeeper_wire::{ErrorCode, PING_XID, Request, Response, response};
use tracing::{debug, info};

use super::Engine;
use crate::account::{Accounts, Exchange};
use crate::config::Secret;
use crate::machine::identity::same_bytes;
use crate::machine::{ConnectionId, Identity};

impl Engine {
    pub(super) fn authenticate(&mut self, id: ConnectionId, xid: i32, scheme: &str, auth: &[u8]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let result = match scheme {
            // Every text is a valid password; the access lists decide which identity has permissions.
            Identity::DIGEST => {
                for identity in self.config.accounts.digest_identities(auth) {
                    self.machine.identify(id, identity);
                }
                Ok(())
            }
            // The address is known already.
            "ip" => Ok(()),
            Secret::SCHEME if self.config.secret.as_ref().is_some_and(|secret| same_bytes(secret.expose(), auth)) => {
                peer.trusted = true;
                Ok(())
            }
            _ => Err(ErrorCode::AuthFailed),
        };
        match result {
            Ok(()) => debug!(client = %peer.address, scheme, "authenticated"),
            Err(_) => info!(client = %peer.address, scheme, "authentication failed"),
        }
        self.send(id, self.machine.zxid(), |out| response::encode_auth(out, xid, result));
        if result.is_err() {
            self.close(id);
        }
    }

    /// Performs one step of SASL DIGEST-MD5: sends a challenge, or checks the answer to it.
    pub(super) fn sasl(&mut self, id: ConnectionId, xid: i32, token: &[u8]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let result = match peer.exchange.take() {
            None => begin_exchange(&self.config.accounts)
                .map(|exchange| peer.exchange.insert(Box::new(exchange)).challenge()),
            Some(exchange) => exchange.finish(&self.config.accounts, token).ok().map(|(identity, proof)| {
                debug!(client = %peer.address, user = identity.id, "authenticated");
                self.machine.identify(id, identity);
                proof
            }),
        };
        let failed = result.is_none();
        if failed {
            info!(client = %peer.address, scheme = Identity::SASL, "authentication failed");
        }
        let result = result.as_deref().ok_or(ErrorCode::AuthFailed);
        self.send(id, self.machine.zxid(), |out| response::encode_sasl(out, xid, result));
        if failed {
            self.close(id);
        }
    }

    /// Answers pings of a client that has not presented the secret, and refuses everything else. Its session ends with
    /// its connection.
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
