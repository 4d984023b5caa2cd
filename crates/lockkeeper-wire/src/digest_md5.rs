//! SASL DIGEST-MD5 as ZooKeeper uses it (RFC 2831): the hashes that client and server compare.
//!
//! The server sends a challenge with a nonce. The client answers with a hash of its password and the nonce. The server
//! answers with another hash, which shows that it also knows the password.

use std::collections::BTreeMap;
use std::fmt::Write;

use md5::{Digest as _, Md5};

/// The service and host that ZooKeeper's clients and servers use.
pub const DIGEST_URI: &str = "zookeeper/zk-sasl-md5";
/// The realm of ZooKeeper's servers.
pub const REALM: &str = "zk-sasl-md5";
/// The count of uses of a nonce. It is always one, because a connection authenticates once.
pub const NONCE_COUNT: &str = "00000001";

/// The input of the hashes.
#[derive(Clone, Copy)]
pub struct Exchange<'a> {
    /// The user's name.
    pub user: &'a str,
    /// The user's password.
    pub password: &'a str,
    /// The realm of the challenge.
    pub realm: &'a str,
    /// The server's nonce.
    pub nonce: &'a str,
    /// The client's nonce.
    pub cnonce: &'a str,
    /// The user to act as, if the client names one.
    pub authzid: Option<&'a str>,
}

impl Exchange<'_> {
    /// Returns the client's proof that it knows the password.
    pub fn response(&self) -> String {
        self.proof("AUTHENTICATE")
    }

    /// Returns the server's last message, the proof that it knows the password.
    pub fn server_response(&self) -> String {
        format!("rspauth={}", self.proof(""))
    }

    fn proof(&self, method: &str) -> String {
        let Exchange { user, password, realm, nonce, cnonce, authzid } = self;
        let secret = Md5::digest([latin(user), latin(realm), latin(password)].join(&b':'));
        let authorization = authzid.map(|id| format!(":{id}")).unwrap_or_default();
        let session = [&secret[..], format!(":{nonce}:{cnonce}{authorization}").as_bytes()].concat();
        let (a1, a2) = (hex(&Md5::digest(session)), hex(&Md5::digest(format!("{method}:{DIGEST_URI}"))));
        hex(&Md5::digest(format!("{a1}:{nonce}:{NONCE_COUNT}:{cnonce}:auth:{a2}")))
    }
}

/// Returns the answer to a challenge, and the [`Exchange::server_response`] that must follow. Returns `None` if the
/// challenge is malformed. `cnonce` must be random.
pub fn answer(challenge: &[u8], user: &str, password: &str, cnonce: &str) -> Option<(Vec<u8>, String)> {
    let fields = fields(std::str::from_utf8(challenge).ok()?)?;
    let nonce = fields.get("nonce")?;
    let realm = fields.get("realm").map_or(REALM, String::as_str);
    let exchange = Exchange { user, password, realm, nonce, cnonce, authzid: None };
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let text = format!(
        r#"charset=utf-8,username="{}",realm="{}",nonce="{}",nc={NONCE_COUNT},cnonce="{}",digest-uri="{DIGEST_URI}",maxbuf=65536,response={},qop=auth"#,
        quoted(user),
        quoted(realm),
        quoted(nonce),
        quoted(cnonce),
        exchange.response()
    );
    Some((text.into_bytes(), exchange.server_response()))
}

/// RFC 2831 hashes a name in ISO 8859-1 if that can represent it.
fn latin(text: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Parses `name=value,name="quoted \"value\"",…`; returns `None` if the text is malformed or has a name twice.
pub fn fields(mut text: &str) -> Option<BTreeMap<&str, String>> {
    let mut fields = BTreeMap::new();
    loop {
        text = text.trim_start_matches([' ', '\t', ',']);
        if text.is_empty() {
            return Some(fields);
        }
        let (name, rest) = text.split_once('=')?;
        let mut value = String::new();
        text = if let Some(quoted) = rest.strip_prefix('"') {
            let mut chars = quoted.char_indices();
            loop {
                match chars.next()? {
                    (end, '"') => break &quoted[end + 1..],
                    (_, '\\') => value.push(chars.next()?.1),
                    (_, other) => value.push(other),
                }
            }
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            value.push_str(rest[..end].trim_end());
            &rest[end..]
        };
        let name = name.trim_end();
        if name.is_empty() || fields.insert(name, value).is_some() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 2831, section 4, hashed by our formula. Its realm and URI belong to another service.
    #[test]
    fn the_hashes_are_those_of_the_rfc() {
        let md5 = |bytes: &[u8]| hex(&Md5::digest(bytes));
        let secret = Md5::digest(b"chris:elwood.innosoft.com:secret");
        let a1 = md5(&[&secret[..], b":OA6MG9tEQGm2hh:OA6MHXh6VqTrRk"].concat());
        let a2 = md5(b"AUTHENTICATE:imap/elwood.innosoft.com");
        let response = md5(format!("{a1}:OA6MG9tEQGm2hh:00000001:OA6MHXh6VqTrRk:auth:{a2}").as_bytes());
        assert_eq!(response, "d388dad90d4bbd760a152321f2143af7");
    }

    #[test]
    fn an_answer_names_the_user_and_hashes_the_nonce() {
        let challenge = br#"realm="zk-sasl-md5",nonce="n",charset=utf-8,algorithm=md5-sess,qop="auth""#;
        let (text, expected) = answer(challenge, "jürgen", "geheim\"", "c").unwrap();
        let text = String::from_utf8(text).unwrap();
        let fields = fields(&text).unwrap();
        let exchange =
            Exchange { user: "jürgen", password: "geheim\"", realm: REALM, nonce: "n", cnonce: "c", authzid: None };
        assert_eq!((fields["username"].as_str(), fields["response"].as_str()), ("jürgen", &*exchange.response()));
        assert_eq!(expected, exchange.server_response());
        assert_eq!(answer(b"nonsense", "a", "b", "c"), None);
    }
}
