//! Proofs of who a client is: passwords sent as they are, and SASL DIGEST-MD5, which sends none.
//!
//! Both are ZooKeeper's: `digest` hashes whatever the client sends and believes it, for the access lists hold the hash; SASL
//! knows its users beforehand.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockkeeper_wire::digest_md5::{self, DIGEST_URI, NONCE_COUNT, REALM, fields};
use sha1::{Digest as _, Sha1};

use crate::machine::identity::{Identity, same_bytes};

/// Who may use a server besides everyone.
///
/// `Debug` shows names, no passwords.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accounts {
    super_digest: Option<String>,
    users: BTreeMap<String, String>,
}

impl Accounts {
    /// Nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets whoever proves this digest identity (`user:base64 of the SHA-1 of user:password`) past every access list.
    ///
    /// [`digest`] computes it; Apache's server calls it `superDigest`.
    #[must_use]
    pub fn with_super_digest(mut self, identity: impl Into<String>) -> Self {
        self.super_digest = Some(identity.into());
        self
    }

    /// Adds a user of SASL DIGEST-MD5; with the first one the scheme `sasl` exists.
    #[must_use]
    pub fn with_sasl_user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.users.insert(name.into(), password.into());
        self
    }

    /// Reads them from text, one a line: `super USER:HASH` or `sasl USER:PASSWORD`; `#` begins a comment line.
    ///
    /// # Errors
    /// The number of the first line that is neither, from 1.
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

    /// Whether there are users of SASL.
    pub(crate) fn has_sasl(&self) -> bool {
        !self.users.is_empty()
    }

    /// Whom a proof of the scheme `digest` makes a client.
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

/// The identity of the scheme `digest` that `user:password` proves, as it stands in access lists.
///
/// ```
/// assert_eq!(lockkeeper_server::digest(b"super:test"), "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
/// ```
pub fn digest(user_and_password: &[u8]) -> String {
    let user = user_and_password.split(|byte| *byte == b':').next().unwrap_or_default();
    format!("{}:{}", String::from_utf8_lossy(user), STANDARD.encode(Sha1::digest(user_and_password)))
}

/// A SASL exchange of one connection, from its challenge on.
#[derive(Debug)]
pub(crate) struct Exchange {
    nonce: String,
}

/// The proof does not hold, or is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unproven;

impl Exchange {
    /// Begins an exchange; `random` must never have been used before.
    pub(crate) fn begin(random: [u8; 16]) -> Self {
        Self { nonce: STANDARD.encode(random) }
    }

    /// What the client must answer.
    pub(crate) fn challenge(&self) -> Vec<u8> {
        let nonce = &self.nonce;
        format!(r#"realm="{REALM}",nonce="{nonce}",charset=utf-8,algorithm=md5-sess,qop="auth""#).into_bytes()
    }

    /// Checks the answer; gives the user and the proof that this server knows the password, too.
    pub(crate) fn finish(self, accounts: &Accounts, answer: &[u8]) -> Result<(Identity, Vec<u8>), Unproven> {
        let answer = std::str::from_utf8(answer).map_err(|_| Unproven)?;
        let fields = fields(answer).ok_or(Unproven)?;
        let field = |name: &str| fields.get(name).map(String::as_str);
        let expected = [
            ("nonce", self.nonce.as_str()),
            ("realm", REALM),
            ("digest-uri", DIGEST_URI),
            ("nc", NONCE_COUNT),
            ("qop", "auth"),
        ];
        // A client may leave out only what has a default.
        let holds = |(name, value)| field(name).unwrap_or(if name == "qop" { "auth" } else { "" }) == value;
        let (Some(user), Some(cnonce), Some(response)) = (field("username"), field("cnonce"), field("response")) else {
            return Err(Unproven);
        };
        let password = accounts.users.get(user).filter(|_| expected.into_iter().all(holds)).ok_or(Unproven)?;
        let exchange = digest_md5::Exchange {
            user,
            password,
            realm: REALM,
            nonce: &self.nonce,
            cnonce,
            authzid: field("authzid"),
        };
        if !same_bytes(exchange.response().as_bytes(), response.as_bytes()) {
            return Err(Unproven);
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
    fn a_user_proves_itself_and_the_server_does_so_too() {
        for (user, password) in [("client1", "password1"), ("jürgen", "geheim\"")] {
            let exchange = Exchange::begin([7; 16]);
            let (answer, expected) = answer(&exchange.challenge(), user, password);
            let (identity, proof) = exchange.finish(&users(), &answer).unwrap();
            assert_eq!(identity, Identity::new("sasl", user));
            assert_eq!(String::from_utf8(proof).unwrap(), expected);
        }
    }

    #[test]
    fn a_wrong_password_another_nonce_or_nonsense_proves_nothing() {
        let refuses = |answer: &[u8]| Exchange::begin([7; 16]).finish(&users(), answer) == Err(Unproven);
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
    fn a_digest_makes_a_superuser_only_of_whom_it_names() {
        let accounts = Accounts::new().with_super_digest(digest(b"super:test"));
        let ids = |proof: &[u8]| accounts.digest_identities(proof).collect::<Vec<_>>();
        assert_eq!(ids(b"super:test").len(), 2);
        assert_eq!(ids(b"super:tes"), [Identity::new("digest", digest(b"super:tes"))]);
        assert!(!format!("{accounts:?}").contains("D/In"));
    }
}
