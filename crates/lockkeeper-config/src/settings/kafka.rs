//! The settings of Kafka: how the brokers of dead letters are reached.

use std::fmt;
use std::path::PathBuf;

use super::keys::Key;
use super::layers::{Given, Layers};
use super::read::{Wrong, absolute, shown, take};
use super::setting::Setting;

/// The mechanisms of a login.
const MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// How the Kafka brokers of dead letters are reached. The settings fit together: a login has a mechanism, a user and a password file,
/// and only TLS has files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KafkaSettings {
    /// Whether there is TLS, and a login.
    pub security_protocol: Setting<KafkaProtocol>,
    /// The trusted certificate authorities, in PEM; `None` means those of this machine.
    pub ca: Setting<Option<PathBuf>>,
    /// The client certificate, in PEM.
    pub cert: Setting<Option<PathBuf>>,
    /// Its key, in PEM.
    pub key: Setting<Option<PathBuf>>,
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub sasl_mechanism: Setting<Option<String>>,
    /// The user of the login.
    pub user: Setting<Option<String>>,
    /// The file with the password.
    pub password_file: Setting<Option<PathBuf>>,
}

/// Kafka's `security.protocol`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KafkaProtocol {
    /// Neither TLS nor a login.
    #[default]
    Plaintext,
    /// TLS.
    Ssl,
    /// A login without TLS.
    SaslPlaintext,
    /// TLS and a login.
    SaslSsl,
}

impl KafkaProtocol {
    /// Returns whether connections are encrypted.
    pub const fn has_tls(self) -> bool {
        matches!(self, KafkaProtocol::Ssl | KafkaProtocol::SaslSsl)
    }

    /// Returns whether there is a login.
    pub const fn has_login(self) -> bool {
        matches!(self, KafkaProtocol::SaslPlaintext | KafkaProtocol::SaslSsl)
    }
}

/// Kafka's names in small letters, such as `sasl_ssl`.
impl fmt::Display for KafkaProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KafkaProtocol::Plaintext => "plaintext",
            KafkaProtocol::Ssl => "ssl",
            KafkaProtocol::SaslPlaintext => "sasl_plaintext",
            KafkaProtocol::SaslSsl => "sasl_ssl",
        })
    }
}

shown!(KafkaProtocol);

/// Reads the settings of Kafka, and checks them against each other.
pub(super) fn kafka(layers: &mut Layers) -> KafkaSettings {
    let l = &mut *layers;
    let settings = KafkaSettings {
        security_protocol: take(l, Key::KafkaSecurityProtocol, KafkaProtocol::Plaintext, protocol),
        ca: take(l, Key::KafkaCa, None, |given| absolute(given).map(Some)),
        cert: take(l, Key::KafkaCert, None, |given| absolute(given).map(Some)),
        key: take(l, Key::KafkaKey, None, |given| absolute(given).map(Some)),
        sasl_mechanism: take(l, Key::KafkaSaslMechanism, None, |given| mechanism(given).map(Some)),
        user: take(l, Key::KafkaUser, None, |given| user(given).map(Some)),
        password_file: take(l, Key::KafkaPasswordFile, None, |given| absolute(given).map(Some)),
    };
    // What could not be read is reported already, and the rest would be reported for the wrong reason.
    if !layers.faults.iter().any(|fault| fault.key.starts_with("kafka.") || fault.key.contains("_KAFKA_")) {
        belong_together(settings.security_protocol.value, layers);
    }
    settings
}

/// The files of TLS need TLS, and what names the user needs a login; a login needs all that names the user.
fn belong_together(protocol: KafkaProtocol, layers: &mut Layers) {
    let last = |key| layers.given.iter().rfind(|given| given.key == key);
    let mut faults = Vec::new();
    let mut refuse = |given: &Given, problem: String, remedy: String| faults.push(given.fault(problem).remedy(remedy));
    for key in [Key::KafkaCa, Key::KafkaCert, Key::KafkaKey] {
        if let Some(given) = last(key).filter(|_| !protocol.has_tls()) {
            let problem = format!("{:?} has no effect with the security protocol {protocol}", given.text);
            refuse(given, problem, format!("set {} to ssl or sasl_ssl", Key::KafkaSecurityProtocol.name()));
        }
    }
    for (key, other) in [(Key::KafkaCert, Key::KafkaKey), (Key::KafkaKey, Key::KafkaCert)] {
        if let (Some(given), None, true) = (last(key), last(other), protocol.has_tls()) {
            let problem = format!("{:?} cannot be used without {}", given.text, other.name());
            refuse(given, problem, format!("set {} or {} too", other.name(), other.variable()));
        }
    }
    let login = [Key::KafkaSaslMechanism, Key::KafkaUser, Key::KafkaPasswordFile];
    for key in login {
        match (last(key), protocol.has_login()) {
            (Some(given), false) => {
                let problem = format!("{:?} has no effect with the security protocol {protocol}", given.text);
                refuse(given, problem, format!("set {} to sasl_ssl", Key::KafkaSecurityProtocol.name()));
            }
            (None, true) => {
                let given = last(Key::KafkaSecurityProtocol).expect("the default protocol has no login");
                let problem = format!("{:?} needs {}", given.text, key.name());
                refuse(given, problem, format!("set {} or {} too", key.name(), key.variable()));
            }
            _ => {}
        }
    }
    if let Some(given) = last(Key::KafkaSaslMechanism)
        && given.text.eq_ignore_ascii_case(MECHANISMS[0])
        && protocol == KafkaProtocol::SaslPlaintext
    {
        let problem = "PLAIN sends the password, and sasl_plaintext does not encrypt it".to_owned();
        refuse(given, problem, "use sasl_ssl, or SCRAM-SHA-256 or SCRAM-SHA-512".to_owned());
    }
    layers.faults.extend(faults);
}

/// Kafka's own files write names in capitals.
fn protocol(given: &Given) -> Result<KafkaProtocol, Wrong> {
    let all = [KafkaProtocol::Plaintext, KafkaProtocol::Ssl, KafkaProtocol::SaslPlaintext, KafkaProtocol::SaslSsl];
    let found = all.into_iter().find(|protocol| protocol.to_string().eq_ignore_ascii_case(&given.text));
    found.ok_or_else(|| {
        let problem = format!("{:?} is not a security protocol", given.text);
        (problem, "write plaintext, ssl, sasl_plaintext or sasl_ssl".to_owned())
    })
}

fn mechanism(given: &Given) -> Result<String, Wrong> {
    let found = MECHANISMS.into_iter().find(|name| name.eq_ignore_ascii_case(&given.text));
    found.map(str::to_owned).ok_or_else(|| {
        let problem = format!("{:?} is not a mechanism that lockkeeper has", given.text);
        (problem, "write PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512".to_owned())
    })
}

fn user(given: &Given) -> Result<String, Wrong> {
    match given.text.as_str() {
        "" => Err(("is empty".to_owned(), "write the name of the user".to_owned())),
        name => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::error::Origin;
    use crate::settings::layers::Unit;

    /// The mistakes in these settings.
    fn faults(given: &[(Key, &str)]) -> Vec<String> {
        let given = given.iter().map(|(key, text)| {
            let (written, text) = (key.name().to_owned(), (*text).to_owned());
            Given { key: *key, origin: Origin::Flag(written.clone()), written, text, unit: Unit::Written }
        });
        let mut layers = Layers { given: given.collect(), ..Layers::default() };
        kafka(&mut layers);
        layers.faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn combinations_that_kafka_clusters_have_are_taken() {
        let protocol = |name| (Key::KafkaSecurityProtocol, name);
        let login =
            |mechanism| [(Key::KafkaSaslMechanism, mechanism), (Key::KafkaUser, "ann"), (Key::KafkaPasswordFile, "/p")];
        assert_eq!(faults(&[]), [""; 0]);
        assert_eq!(faults(&[protocol("ssl")]), [""; 0]);
        let own = [(Key::KafkaCa, "/ca"), (Key::KafkaCert, "/c"), (Key::KafkaKey, "/k")];
        assert_eq!(faults(&[&[protocol("SSL")][..], &own].concat()), [""; 0]);
        for mechanism in ["PLAIN", "SCRAM-SHA-256", "scram-sha-512"] {
            assert_eq!(faults(&[&[protocol("SASL_SSL")][..], &login(mechanism)].concat()), [""; 0], "{mechanism}");
        }
        assert_eq!(faults(&[&[protocol("sasl_plaintext")][..], &login("SCRAM-SHA-256")].concat()), [""; 0]);
    }

    #[test]
    fn what_does_not_belong_together_names_the_key_and_what_to_write() {
        let protocol = |name| (Key::KafkaSecurityProtocol, name);
        for (given, says) in [
            (vec![protocol("tls")], "write plaintext, ssl, sasl_plaintext or sasl_ssl"),
            (vec![(Key::KafkaCa, "/ca")], "\"/ca\" has no effect with the security protocol plaintext"),
            (vec![(Key::KafkaUser, "ann")], "\"ann\" has no effect with the security protocol plaintext"),
            (vec![protocol("ssl"), (Key::KafkaCert, "/c")], "\"/c\" cannot be used without kafka.key"),
            (vec![protocol("ssl"), (Key::KafkaKey, "/k")], "\"/k\" cannot be used without kafka.cert"),
            (vec![protocol("ssl"), (Key::KafkaPasswordFile, "/p")], "set kafka.security_protocol to sasl_ssl"),
            (
                vec![protocol("sasl_ssl"), (Key::KafkaSaslMechanism, "PLAIN"), (Key::KafkaUser, "ann")],
                "\"sasl_ssl\" needs kafka.password_file",
            ),
            (
                vec![
                    protocol("sasl_plaintext"),
                    (Key::KafkaSaslMechanism, "PLAIN"),
                    (Key::KafkaUser, "ann"),
                    (Key::KafkaPasswordFile, "/p"),
                ],
                "PLAIN sends the password",
            ),
            (vec![protocol("sasl_ssl"), (Key::KafkaSaslMechanism, "GSSAPI")], "\"GSSAPI\" is not a mechanism"),
        ] {
            let faults = faults(&given);
            assert!(faults.len() == 1 && faults[0].contains(says), "{says}: {faults:?}");
        }
    }
}
