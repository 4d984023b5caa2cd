//! What a client verifies of its servers, and presents of itself, in TLS 1.2 and 1.3 by rustls with ring.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tracing::warn;

/// The certificate authorities that a client trusts, and its own certificate. Pass it to
/// [`Servers::with_tls`](crate::Servers::with_tls).
///
/// Cheap to clone. `Debug` shows none of its content.
#[derive(Clone)]
pub struct Tls {
    roots: Arc<RootCertStore>,
    config: Arc<ClientConfig>,
    files: Option<Arc<Files>>,
}

/// A certificate, the chain of its authorities, and its key, in PEM.
#[derive(PartialEq, Eq)]
struct Identity {
    chain: Vec<u8>,
    key: Vec<u8>,
}

/// An identity whose files may change.
struct Files {
    chain: PathBuf,
    key: PathBuf,
    /// What was read last, and the configuration with it.
    current: Mutex<(Identity, Arc<ClientConfig>)>,
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

impl Tls {
    /// Trusts servers whose certificates lead to one of these certificate authorities, in PEM, and no others: the
    /// system's authorities are not used.
    ///
    /// # Errors
    /// [`InvalidTls`] if there is no certificate, or one that cannot be read.
    pub fn trusting(authorities: &[u8]) -> Result<Tls, InvalidTls> {
        let what = "the certificates of authorities";
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authorities, what)? {
            roots.add(certificate).map_err(|problem| invalid(what, problem))?;
        }
        let roots = Arc::new(roots);
        Ok(Tls { config: configured(&roots, None)?, roots, files: None })
    }

    /// Presents this client certificate, with the chain of its authorities after it, and its key; both in PEM.
    ///
    /// # Errors
    /// [`InvalidTls`] if the certificate or the key cannot be read, or if they do not match.
    pub fn with_identity(mut self, chain: &[u8], key: &[u8]) -> Result<Tls, InvalidTls> {
        let identity = Identity { chain: chain.to_vec(), key: key.to_vec() };
        (self.config, self.files) = (configured(&self.roots, Some(&identity))?, None);
        Ok(self)
    }

    /// Presents the client certificate and the key of these files; both in PEM, as [`Tls::with_identity`].
    ///
    /// Every connection reads the files again, so that a renewed certificate is used without a restart. While the files
    /// cannot be used, for example because one of them is not replaced yet, connections use the certificate before it.
    /// An open connection keeps the certificate with which it was opened.
    ///
    /// # Errors
    /// [`InvalidTls`] if a file cannot be read, or its content cannot be used.
    pub fn with_identity_files(
        mut self,
        chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Result<Tls, InvalidTls> {
        let (chain, key) = (chain.into(), key.into());
        let identity = Identity::read(&chain, &key)?;
        self.config = configured(&self.roots, Some(&identity))?;
        let current = Mutex::new((identity, self.config.clone()));
        self.files = Some(Arc::new(Files { chain, key, current }));
        Ok(self)
    }

    /// Returns whether a certificate can contain this name.
    pub(crate) fn can_name(host: &str) -> bool {
        ServerName::try_from(host).is_ok()
    }

    /// Performs the handshake. The server's certificate must contain this name.
    pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let config = match &self.files {
            None => self.config.clone(),
            Some(files) => {
                let (files, roots) = (files.clone(), self.roots.clone());
                // A file system may block.
                tokio::task::spawn_blocking(move || files.renewed(&roots)).await.map_err(io::Error::other)?
            }
        };
        TlsConnector::from(config).connect(name, stream).await
    }
}

impl Files {
    /// Returns the configuration with the certificate that is in the files now.
    fn renewed(&self, roots: &Arc<RootCertStore>) -> Arc<ClientConfig> {
        let read = Identity::read(&self.chain, &self.key);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed = read.and_then(|identity| match identity == current.0 {
            true => Ok(None),
            false => configured(roots, Some(&identity)).map(|config| Some((identity, config))),
        });
        match renewed {
            Ok(None) => {}
            Ok(Some(renewed)) => *current = renewed,
            Err(error) => warn!(%error, "the changed client certificate is not used"),
        }
        current.1.clone()
    }
}

impl Identity {
    fn read(chain: &PathBuf, key: &PathBuf) -> Result<Identity, InvalidTls> {
        let read = |path: &PathBuf| std::fs::read(path).map_err(|error| invalid(path.display().to_string(), error));
        Ok(Identity { chain: read(chain)?, key: read(key)? })
    }
}

/// Returns the configuration of rustls.
fn configured(roots: &Arc<RootCertStore>, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, InvalidTls> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|problem| invalid("TLS", problem))?
        .with_root_certificates(roots.clone());
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { chain, key }) => {
            let chain = certificates(chain, "the client's certificate")?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|problem| invalid("the client's key", problem))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|problem| invalid("the client's certificate with this key", problem))?
        }
    };
    Ok(Arc::new(config))
}

/// Returns all certificates of a PEM text, at least one.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, InvalidTls> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|problem| invalid(what, problem))?;
    if read.is_empty() { Err(invalid(what, "it contains no certificate")) } else { Ok(read) }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}
