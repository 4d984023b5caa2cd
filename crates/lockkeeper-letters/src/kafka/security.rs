//! How a sink reaches the brokers: with or without TLS, and with or without a login.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rdkafka::config::ClientConfig;

/// How a login proves its password (SASL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SaslMechanism {
    /// `PLAIN`: sends the password to the broker. Needs TLS.
    Plain,
    /// `SCRAM-SHA-256`.
    ScramSha256,
    /// `SCRAM-SHA-512`.
    ScramSha512,
}

impl fmt::Display for SaslMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
        })
    }
}

impl FromStr for SaslMechanism {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512];
        let found = all.into_iter().find(|mechanism| mechanism.to_string() == text);
        found.ok_or_else(|| "write PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512".to_owned())
    }
}

/// How a [`KafkaSink`](super::KafkaSink) reaches the brokers. The default is plain TCP without a login.
///
/// With TLS, a broker must prove the name or the address by which the sink reaches it.
///
/// ```
/// use lockkeeper_letters::{KafkaSecurity, SaslMechanism};
///
/// let security = KafkaSecurity::tls()
///     .authorities("/etc/kafka/ca.pem")
///     .login(SaslMechanism::ScramSha512, "letters", "secret");
/// assert!(!format!("{security:?}").contains("secret"));
/// ```
#[derive(Clone, Default)]
#[must_use = "the options do nothing until a sink is opened with them"]
pub struct KafkaSecurity {
    tls: Option<TlsFiles>,
    login: Option<Login>,
}

#[derive(Clone, Debug, Default)]
struct TlsFiles {
    authorities: Option<PathBuf>,
    /// The certificate and its key.
    own: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone)]
struct Login {
    mechanism: SaslMechanism,
    user: String,
    password: String,
}

/// A [`KafkaSecurity`] that no broker should be reached with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaSecurityError {
    /// Without TLS, everyone on the network could read the password.
    #[error("SASL PLAIN sends the password, so it needs TLS; use TLS, or SCRAM-SHA-256 or SCRAM-SHA-512")]
    PasswordInTheClear,
}

impl KafkaSecurity {
    /// Plain TCP without a login.
    pub fn plain() -> Self {
        KafkaSecurity::default()
    }

    /// TLS. The trusted authorities are those of this machine, unless [`KafkaSecurity::authorities`] names others.
    pub fn tls() -> Self {
        KafkaSecurity { tls: Some(TlsFiles::default()), login: None }
    }

    /// Trusts the authorities in this PEM file instead of those of this machine. Turns TLS on.
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.get_or_insert_default().authorities = Some(file.into());
        self
    }

    /// Presents this certificate to the brokers; `key` is its key. Both are PEM files. Turns TLS on.
    pub fn certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls.get_or_insert_default().own = Some((certificate.into(), key.into()));
        self
    }

    /// Logs in as this user. [`SaslMechanism::Plain`] needs TLS.
    pub fn login(mut self, mechanism: SaslMechanism, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some(Login { mechanism, user: user.into(), password: password.into() });
        self
    }

    /// Fails if the password would be readable on the network.
    pub(super) fn check(&self) -> Result<(), KafkaSecurityError> {
        match &self.login {
            Some(Login { mechanism: SaslMechanism::Plain, .. }) if self.tls.is_none() => {
                Err(KafkaSecurityError::PasswordInTheClear)
            }
            _ => Ok(()),
        }
    }

    /// Whether it is plain TCP without a login, which nothing can be wrong with.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none() && self.login.is_none()
    }

    /// Kafka's name for it, as in `security.protocol`.
    fn protocol(&self) -> &'static str {
        match (&self.tls, &self.login) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        }
    }

    /// Sets it for a client.
    pub(super) fn apply(&self, config: &mut ClientConfig) {
        config.set("security.protocol", self.protocol());
        let path = |path: &Path| path.display().to_string();
        if let Some(TlsFiles { authorities, own }) = &self.tls {
            // `probe` finds the authorities of this machine, wherever its distribution keeps them.
            config.set("ssl.ca.location", authorities.as_deref().map_or_else(|| "probe".to_owned(), path));
            if let Some((certificate, key)) = own {
                config.set("ssl.certificate.location", path(certificate)).set("ssl.key.location", path(key));
            }
        }
        if let Some(Login { mechanism, user, password }) = &self.login {
            config.set("sasl.mechanisms", mechanism.to_string());
            config.set("sasl.username", user).set("sasl.password", password);
        }
    }
}

/// Everything but the password.
impl fmt::Debug for KafkaSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let login = self.login.as_ref().map(|login| (login.mechanism, &login.user));
        f.debug_struct("KafkaSecurity").field("tls", &self.tls).field("login", &login).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_passwords_need_tls_and_are_never_shown() {
        let login = |security: KafkaSecurity, mechanism| security.login(mechanism, "ann", "hunter2");
        let open = login(KafkaSecurity::plain(), SaslMechanism::Plain);
        assert_eq!(open.check(), Err(KafkaSecurityError::PasswordInTheClear));
        assert!(!format!("{open:?}").contains("hunter2"));
        assert_eq!(login(KafkaSecurity::tls(), SaslMechanism::Plain).check(), Ok(()));
        assert_eq!(login(KafkaSecurity::plain(), SaslMechanism::ScramSha256).check(), Ok(()));
    }

    #[test]
    fn the_protocol_follows_from_tls_and_login() {
        let scram = |security: KafkaSecurity| security.login(SaslMechanism::ScramSha512, "ann", "p").protocol();
        let plain = KafkaSecurity::plain;
        assert_eq!((plain().protocol(), scram(plain())), ("plaintext", "sasl_plaintext"));
        let tls = || plain().authorities("/ca.pem");
        assert_eq!((tls().protocol(), scram(tls())), ("ssl", "sasl_ssl"));
    }

    #[test]
    fn mechanisms_have_kafkas_names() {
        for name in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
            assert_eq!(name.parse::<SaslMechanism>().unwrap().to_string(), name);
        }
        assert!("GSSAPI".parse::<SaslMechanism>().is_err());
    }
}
