//! What a client verifies of its servers, and presents of itself, in TLS 1.2 and 1.3.
//!
//! Everything is parsed and tried before anything is sent: an invalid file is an error that names it, not a connection
//! that never opens. A server's certificate must contain the name that the connect string uses; this check cannot be
//! turned off.

use std::fmt;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use zookeeper_client as zk;

use crate::error::Misuse;

/// The certificate authorities that a client trusts, and its own certificate. Pass it to
/// [`Builder::tls`](crate::Builder::tls).
///
/// Cheap to clone. `Debug` shows none of its content.
#[derive(Clone)]
pub struct Tls {
    /// For the client crate, which builds its own configuration from it.
    options: zk::TlsOptions,
    /// For the diagnosis of a server that does not open a session.
    config: Arc<ClientConfig>,
    /// The roots of `config`, to build another one with a client certificate.
    roots: Arc<RootCertStore>,
    has_identity: bool,
}

impl Tls {
    /// Trusts servers whose certificates lead to one of these certificate authorities, in PEM.
    ///
    /// The system's authorities are not trusted in addition. The certificates are read now; a later change of the file
    /// affects only new handles. If the program has not installed a cryptography provider for rustls, this installs
    /// ring's.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if there is no certificate, or one that cannot be read.
    pub fn trusting(authorities: &[u8]) -> Result<Self, Misuse> {
        // The client crate uses the process's provider, and panics if two are compiled in and none is installed.
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread has installed one meanwhile, which serves as well.
            _ = ring::default_provider().install_default();
        }
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authorities).map_err(|why| bad("the certificates of authorities", &why))? {
            roots.add(certificate).map_err(|why| bad("a certificate of an authority", &why))?;
        }
        let text = utf8(authorities).map_err(|why| bad("the certificates of authorities", &why))?;
        let options =
            zk::TlsOptions::new().with_pem_ca(text).map_err(|why| bad("the certificates of authorities", &why))?;
        let config = ClientConfig::builder().with_root_certificates(roots.clone()).with_no_client_auth();
        Ok(Tls { options, config: Arc::new(config), roots: Arc::new(roots), has_identity: false })
    }

    /// Presents this client certificate, with its chain after it, and its key; both in PEM.
    ///
    /// Apache's servers request a certificate by default, and identify the client by it under the scheme `x509`.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the certificate or the key cannot be read, or if they do not match.
    pub fn with_identity(mut self, chain: &[u8], key: &[u8]) -> Result<Self, Misuse> {
        let certificates = certificates(chain).map_err(|why| bad("the client's certificate", &why))?;
        let private = PrivateKeyDer::from_pem_slice(key).map_err(|why| bad("the client's key", &why))?;
        let config = ClientConfig::builder()
            .with_root_certificates(self.roots.clone())
            .with_client_auth_cert(certificates, private)
            .map_err(|why| bad("the client's certificate with this key", &why))?;
        let chain = utf8(chain).map_err(|why| bad("the client's certificate", &why))?;
        let key = utf8(key).map_err(|why| bad("the client's key", &why))?;
        self.options =
            self.options.with_pem_identity(chain, key).map_err(|why| bad("the client's certificate or key", &why))?;
        self.config = Arc::new(config);
        self.has_identity = true;
        Ok(self)
    }

    /// Whether a certificate can contain this name.
    pub(crate) fn can_name(host: &str) -> bool {
        ServerName::try_from(host).is_ok()
    }

    /// Whether it has a client certificate.
    pub(crate) fn has_identity(&self) -> bool {
        self.has_identity
    }

    pub(crate) fn options(&self) -> zk::TlsOptions {
        self.options.clone()
    }

    /// Tries a TLS handshake to diagnose a server.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> std::io::Result<impl AsyncRead + AsyncWrite + Unpin + use<>> {
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        TlsConnector::from(self.config.clone()).connect(name, stream).await
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

fn bad(what: &str, why: &dyn fmt::Display) -> Misuse {
    Misuse::tls(&format!("{what} cannot be used: {why}"))
}

fn utf8(text: &[u8]) -> Result<&str, std::str::Utf8Error> {
    std::str::from_utf8(text)
}

/// All certificates of a PEM text, at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Err(error) => Err(error.to_string()),
        Ok(none) if none.is_empty() => Err("it contains no certificate".to_owned()),
        Ok(certificates) => Ok(certificates),
    }
}
