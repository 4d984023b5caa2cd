//! Auth packets and SASL exchanges, and what is kept from those who have not presented the secret.

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
            // Whoever it is knows a password; which one is for the access lists to say.
            Identity::DIGEST => {
                for identity in self.config.accounts.digest_identities(auth) {
                    self.machine.identify(id, identity);
                }
                Ok(())
            }
            // Known anyway.
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

    /// One step of SASL DIGEST-MD5: a challenge for whoever comes without an exchange, a verdict for its answer.
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

    /// Someone who has not presented the secret may keep quiet company, but not for longer than a session timeout.
    pub(super) fn answer_stranger(&mut self, id: ConnectionId, xid: i32, request: &Request) {
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

/// `None` without users to ask for, or without random numbers to ask with.
fn begin_exchange(accounts: &Accounts) -> Option<Exchange> {
    let mut random = [0; 16];
    (accounts.has_sasl() && getrandom::fill(&mut random).is_ok()).then(|| Exchange::begin(random))
}
