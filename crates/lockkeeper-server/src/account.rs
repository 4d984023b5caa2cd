//! Authentication of clients: passwords in plain text, and SASL DIGEST-MD5, which does not send the password.
//!
//! Both schemes are ZooKeeper's. `digest` hashes the client's text and accepts every text, because the access lists
//! hold the hash. SASL has a list of users.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockkeeper_wire::digest_md5::{self, DIGEST_URI, NONCE_COUNT, REALM, fields};
use sha1::{Digest as _, Sha1};

use crate::machine::identity::{Identity, same_bytes};

/// The superuser and the SASL users of a server.
///
/// `Debug` shows names, no passwords.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accounts {
    super_digest: Option<String>,
    users: BTreeMap<String, String>,
}

impl Accounts {
    /// Returns accounts without any user.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the superuser, who passes every access list: a digest identity (`user:base64 of the SHA-1 of
    /// user:password`).
    ///
    /// [`digest`] computes it; Apache's server calls it `superDigest`.
    #[must_use]
    pub fn with_super_digest(mut self, identity: impl Into<String>) -> Self {
        self.super_digest = Some(identity.into());
        self
    }

    /// Adds a SASL DIGEST-MD5 user; the scheme `sasl` exists if there is at least one.
    #[must_use]
    pub fn with_sasl_user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.users.insert(name.into(), password.into());
        self
    }

    /// Parses accounts, one per line: `super USER:HASH` or `sasl USER:PASSWORD`; `#` begins a comment line.
    ///
    /// # Errors
    /// The number of the first malformed line, from 1.
    pub fn parse(text: &str) -> Result<Self, usize> {
        let mut accounts = Self::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim_end_matches('\r');
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (kind, rest) = line.split_once(' ').ok_or(at + 1)?;
            let (user, proof) = rest.split_once(':').filter(|(user, _)| !user.is_empty()).ok_or(at + 1)?;
            accounts = match kind {
                "super" => accounts.with_super_digest(rest),
                "sasl" => accounts.with_sasl_user(user, proof),
                _ => return Err(at + 1),
            };
        }
        Ok(accounts)
    }

    /// Returns whether there are SASL users.
    pub(crate) fn has_sasl(&self) -> bool {
        !self.users.is_empty()
    }

    /// Returns the identities that a credential of the scheme `digest` proves.
    pub(crate) fn digest_identities(&self, proof: &[u8]) -> impl Iterator<Item = Identity> + use<> {
        let id = digest(proof);
        let superuser = self.super_digest.as_ref().is_some_and(|known| same_bytes(known.as_bytes(), id.as_bytes()));
        superuser.then(Identity::superuser).into_iter().chain([Identity::new(Identity::DIGEST, id)])
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let superuser = self.super_digest.as_ref().map(|id| id.split(':').next().unwrap_or_default());
        f.debug_struct("Accounts").field("super", &superuser).field("sasl", &self.users.keys()).finish()
    }
}

/// Returns the `digest` identity that `user:password` proves, as access lists contain it.
///
/// ```
/// assert_eq!(lockkeeper_server::digest(b"super:test"), "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
/// ```
pub fn digest(user_and_password: &[u8]) -> String {
    let user = user_and_password.split(|byte| *byte == b':').next().unwrap_or_default();
    format!("{}:{}", String::from_utf8_lossy(user), STANDARD.encode(Sha1::digest(user_and_password)))
}

/// A SASL exchange of one connection, after its challenge.
#[derive(Debug)]
pub(crate) struct Exchange {
    nonce: String,
}

/// The client's answer is wrong or malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAuthenticated;

impl Exchange {
    /// Begins an exchange; `random` must be unique.
    pub(crate) fn begin(random: [u8; 16]) -> Self {
        Self { nonce: STANDARD.encode(random) }
    }

    /// Returns the challenge for the client.
    pub(crate) fn challenge(&self) -> Vec<u8> {
        let nonce = &self.nonce;
        format!(r#"realm="{REALM}",nonce="{nonce}",charset=utf-8,algorithm=md5-sess,qop="auth""#).into_bytes()
    }

    /// Checks the client's answer. Returns the user, and the proof that this server also knows the password.
    pub(crate) fn finish(self, accounts: &Accounts, answer: &[u8]) -> Result<(Identity, Vec<u8>), NotAuthenticated> {
        let answer = std::str::from_utf8(answer).map_err(|_| NotAuthenticated)?;
        let fields = fields(answer).ok_or(NotAuthenticated)?;
        let field = |name: &str| fields.get(name).map(String::as_str);
        let expected = [
            ("nonce", self.nonce.as_str()),
            ("realm", REALM),
            ("digest-uri", DIGEST_URI),
            ("nc", NONCE_COUNT),
            ("qop", "auth"),
        ];
        // A client may omit only a field that has a default.
        let holds = |(name, value)| field(name).unwrap_or(if name == "qop" { "auth" } else { "" }) == value;
        let (Some(user), Some(cnonce), Some(response)) = (field("username"), field("cnonce"), field("response")) else {
            return Err(NotAuthenticated);
        };
        let password = accounts.users.get(user).filter(|_| expected.into_iter().all(holds)).ok_or(NotAuthenticated)?;
        let exchange = digest_md5::Exchange {
            user,
            password,
            realm: REALM,
            nonce: &self.nonce,
            cnonce,
            authzid: field("authzid"),
        };
        if !same_bytes(exchange.response().as_bytes(), response.as_bytes()) {
            return Err(NotAuthenticated);
        }
        Ok((Identity::new(Identity::SASL, user), exchange.server_response().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Accounts {
        Accounts::new().with_sasl_user("client1", "password1").with_sasl_user("jürgen", "geheim\"")
    }

    fn answer(challenge: &[u8], user: &str, password: &str) -> (Vec<u8>, String) {
        digest_md5::answer(challenge, user, password, "abc").unwrap()
    }

    #[test]
    fn user_and_server_authenticate_each_other() {
        for (user, password) in [("client1", "password1"), ("jürgen", "geheim\"")] {
            let exchange = Exchange::begin([7; 16]);
            let (answer, expected) = answer(&exchange.challenge(), user, password);
            let (identity, proof) = exchange.finish(&users(), &answer).unwrap();
            assert_eq!(identity, Identity::new("sasl", user));
            assert_eq!(String::from_utf8(proof).unwrap(), expected);
        }
    }

    #[test]
    fn a_wrong_password_another_nonce_or_nonsense_is_refused() {
        let refuses = |answer: &[u8]| Exchange::begin([7; 16]).finish(&users(), answer) == Err(NotAuthenticated);
        let challenge = Exchange::begin([7; 16]).challenge();
        assert!(refuses(&answer(&challenge, "client1", "password2").0));
        assert!(refuses(&answer(&challenge, "nobody", "password1").0));
        assert!(refuses(&answer(&Exchange::begin([8; 16]).challenge(), "client1", "password1").0), "a replay");
        let good = String::from_utf8(answer(&challenge, "client1", "password1").0).unwrap();
        assert!(!refuses(good.as_bytes()));
        assert!(refuses(b"") && refuses(b"\xff"));
        for bad in ["=", "=x", "username=\"", "username", "username=\"\\", "qop=auth"] {
            assert!(refuses(bad.as_bytes()), "{bad:?}");
            assert!(refuses(format!("{good},{bad}").as_bytes()), "{bad:?}");
        }
        assert!(refuses(good.replace("auth", "auth-int").as_bytes()));
    }

    #[test]
    fn accounts_are_read_line_by_line() {
        let text = "# who\n\nsuper super:hash=\nsasl client1:password1\r\nsasl jürgen:geheim\"\n";
        assert_eq!(Accounts::parse(text), Ok(users().with_super_digest("super:hash=")));
        for bad in ["admin a:b", "sasl ab", "sasl :b", "sasl"] {
            assert_eq!(Accounts::parse(&format!("# one\n{bad}\n")), Err(2), "{bad:?}");
        }
    }

    #[test]
    fn only_the_configured_digest_makes_a_superuser() {
        let accounts = Accounts::new().with_super_digest(digest(b"super:test"));
        let ids = |proof: &[u8]| accounts.digest_identities(proof).collect::<Vec<_>>();
        assert_eq!(ids(b"super:test").len(), 2);
        assert_eq!(ids(b"super:tes"), [Identity::new("digest", digest(b"super:tes"))]);
        assert!(!format!("{accounts:?}").contains("D/In"));
    }
}
