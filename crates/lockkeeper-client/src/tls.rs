//! What a client verifies of its servers, and presents of itself, in TLS 1.2 and 1.3 by rustls with ring.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};
use tracing::warn;

use crate::problem::TlsProblem;

/// The certificate authorities that a client trusts, and its own certificate. Pass it to
/// [`Servers::with_tls`](crate::Servers::with_tls).
///
/// Cheap to clone. `Debug` shows none of its content.
#[derive(Clone)]
pub struct Tls {
    files: Files,
    current: Arc<Mutex<Current>>,
}

/// The files that every connection reads again.
#[derive(Clone, Default)]
struct Files {
    authorities: Option<PathBuf>,
    /// A certificate with its chain, and its key.
    identity: Option<(PathBuf, PathBuf)>,
}

/// The PEM texts of a configuration.
#[derive(Clone, PartialEq, Eq)]
struct Material {
    authorities: Vec<u8>,
    identity: Option<Identity>,
}

/// A certificate, the chain of its authorities, and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
struct Identity {
    chain: Vec<u8>,
    key: Vec<u8>,
}

/// What was read last, and the configuration with it.
#[derive(Clone)]
struct Current {
    material: Material,
    config: Arc<ClientConfig>,
}

/// A certificate or key that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be used: {problem}")]
pub struct InvalidTls {
    /// What cannot be used.
    pub what: String,
    /// Why.
    pub problem: String,
}

fn invalid(what: impl Into<String>, problem: impl fmt::Display) -> InvalidTls {
    InvalidTls { what: what.into(), problem: problem.to_string() }
}

/// Returns the mistake that ended a handshake, or the connection after it.
pub(crate) fn problem(error: &io::Error) -> Option<TlsProblem> {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(error)) => match error {
            // An authority with the name of another one, such as its successor, has signed it.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Some(TlsProblem::UnknownAuthority),
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Some(TlsProblem::NotValidNow),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Some(TlsProblem::OtherName)
            }
            _ => None,
        },
        Some(Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA,
        )) => Some(TlsProblem::ClientCertificate),
        // The server has read a handshake as a frame's length, or has answered in plain text.
        Some(Error::InvalidMessage(_)) => Some(TlsProblem::PortWithoutTls),
        None if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            Some(TlsProblem::PortWithoutTls)
        }
        _ => None,
    }
}

/// Returns the error of a failed handshake with the words of a message about the server.
pub(crate) fn failed(error: &io::Error) -> io::Error {
    io::Error::other(match problem(error) {
        Some(problem) => format!("fails the TLS handshake: {} ({error})", problem.text()),
        None => format!("fails the TLS handshake ({error})"),
    })
}

impl Tls {
    /// Trusts servers whose certificates lead to one of these certificate authorities, in PEM, and no others: the
    /// system's authorities are not used.
    ///
    /// # Errors
    /// [`InvalidTls`] if there is no certificate, or one that cannot be read.
    pub fn trusting(authorities: &[u8]) -> Result<Tls, InvalidTls> {
        Tls::new(Files::default(), Material { authorities: authorities.to_vec(), identity: None })
    }

    /// Trusts the certificate authorities of this file, as [`Tls::trusting`].
    ///
    /// Every connection reads the file again, so that a new authority is trusted, and a removed one is not, without a
    /// restart. While the file cannot be used, connections use the authorities before it. An open connection stays open.
    ///
    /// # Errors
    /// [`InvalidTls`] if the file cannot be read, or its content cannot be used.
    pub fn trusting_file(authorities: impl Into<PathBuf>) -> Result<Tls, InvalidTls> {
        let file = authorities.into();
        let material = Material { authorities: read(&file)?, identity: None };
        Tls::new(Files { authorities: Some(file), identity: None }, material)
    }

    /// Presents this client certificate, with the chain of its authorities after it, and its key; both in PEM.
    ///
    /// # Errors
    /// [`InvalidTls`] if the certificate or the key cannot be read, or if they do not match.
    pub fn with_identity(self, chain: &[u8], key: &[u8]) -> Result<Tls, InvalidTls> {
        let identity = Identity { chain: chain.to_vec(), key: key.to_vec() };
        self.presenting(identity, None)
    }

    /// Presents the client certificate and the key of these files; both in PEM, as [`Tls::with_identity`].
    ///
    /// Every connection reads the files again, so that a renewed certificate is used without a restart. While the files
    /// cannot be used, for example because one of them is not replaced yet, connections use the certificate before it.
    /// An open connection keeps the certificate with which it was opened.
    ///
    /// # Errors
    /// [`InvalidTls`] if a file cannot be read, or its content cannot be used.
    pub fn with_identity_files(self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Tls, InvalidTls> {
        let (chain, key) = (chain.into(), key.into());
        self.presenting(Identity::read(&chain, &key)?, Some((chain, key)))
    }

    fn presenting(self, identity: Identity, files: Option<(PathBuf, PathBuf)>) -> Result<Tls, InvalidTls> {
        let Current { material, .. } = self.current();
        Tls::new(Files { identity: files, ..self.files }, Material { identity: Some(identity), ..material })
    }

    fn new(files: Files, material: Material) -> Result<Tls, InvalidTls> {
        let config = material.configured()?;
        Ok(Tls { files, current: Arc::new(Mutex::new(Current { material, config })) })
    }

    /// Returns whether it has a client certificate.
    pub fn has_identity(&self) -> bool {
        self.current().material.identity.is_some()
    }

    /// Returns whether a certificate can contain this name.
    pub(crate) fn can_name(host: &str) -> bool {
        ServerName::try_from(host).is_ok()
    }

    /// Performs the handshake. The server's certificate must contain this name.
    pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let config = if self.files.authorities.is_none() && self.files.identity.is_none() {
            self.current().config
        } else {
            let tls = self.clone();
            // A file system may block.
            tokio::task::spawn_blocking(move || tls.renewed()).await.map_err(io::Error::other)?
        };
        TlsConnector::from(config).connect(name, stream).await
    }

    fn current(&self) -> Current {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the configuration with what is in the files now.
    fn renewed(&self) -> Arc<ClientConfig> {
        let before = self.current();
        let renewed = self.files.read(&before.material).and_then(|material| match material == before.material {
            true => Ok(before.clone()),
            false => Ok(Current { config: material.configured()?, material }),
        });
        match renewed {
            Ok(renewed) => {
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = renewed.clone();
                renewed.config
            }
            Err(error) => {
                warn!(%error, "the changed TLS files are not used");
                before.config
            }
        }
    }
}

impl Files {
    /// Returns the material with the texts that are in the files now.
    fn read(&self, before: &Material) -> Result<Material, InvalidTls> {
        let Material { mut authorities, mut identity } = before.clone();
        if let Some(file) = &self.authorities {
            authorities = read(file)?;
        }
        if let Some((chain, key)) = &self.identity {
            identity = Some(Identity::read(chain, key)?);
        }
        Ok(Material { authorities, identity })
    }
}

fn read(file: &Path) -> Result<Vec<u8>, InvalidTls> {
    std::fs::read(file).map_err(|error| invalid(file.display().to_string(), error))
}

impl Identity {
    fn read(chain: &Path, key: &Path) -> Result<Identity, InvalidTls> {
        Ok(Identity { chain: read(chain)?, key: read(key)? })
    }
}

impl Material {
    /// Returns the configuration of rustls.
    fn configured(&self) -> Result<Arc<ClientConfig>, InvalidTls> {
        let what = "the certificates of authorities";
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authorities, what)? {
            roots.add(certificate).map_err(|problem| invalid(what, problem))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|problem| invalid("TLS", problem))?
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { chain, key }) => {
                if holds(chain, "PRIVATE KEY-----") && !holds(chain, CERTIFICATE) && holds(key, CERTIFICATE) {
                    let problem = "it is a key, and what was given as its key is a certificate; swap the two";
                    return Err(invalid("the client's certificate", problem));
                }
                let chain = certificates(chain, "the client's certificate")?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|problem| match holds(key, CERTIFICATE) {
                    true => invalid("the client's key", "it contains a certificate and no key"),
                    false => invalid("the client's key", problem),
                })?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|problem| invalid("the client's certificate with this key", problem))?
            }
        };
        Ok(Arc::new(config))
    }
}

/// The end of the line before a certificate in PEM.
const CERTIFICATE: &str = "BEGIN CERTIFICATE-----";

/// Whether a text in PEM contains these characters.
fn holds(pem: &[u8], text: &str) -> bool {
    pem.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Returns all certificates of a PEM text, at least one.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, InvalidTls> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|problem| invalid(what, problem))?;
    match (read.is_empty(), holds(pem, "PRIVATE KEY-----")) {
        (false, _) => Ok(read),
        (true, true) => Err(invalid(what, "it contains a key and no certificate")),
        (true, false) => Err(invalid(what, "it contains no certificate")),
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}
