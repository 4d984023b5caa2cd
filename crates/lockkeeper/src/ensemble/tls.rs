//! What a client checks of its servers, and shows of itself, in TLS 1.2 and 1.3.
//!
//! All of it is read and tried before the network: a wrong file is an error with a name, not a connection that never comes. A
//! server's certificate must bear the name by which the connect string calls it; there is no way to turn that off.

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

use crate::Error;

/// Whom a client trusts, and what it shows of itself. Give it to [`Builder::tls`](crate::Builder::tls).
///
/// Cheap to clone. `Debug` shows nothing of it.
#[derive(Clone)]
pub struct Tls {
    /// For the client crate, which makes its own configuration of it.
    options: zk::TlsOptions,
    /// The same, for asking a server why it opens no session.
    config: Arc<ClientConfig>,
    /// What `config` was made of, for another one with an identity.
    roots: Arc<RootCertStore>,
    has_identity: bool,
}

impl Tls {
    /// Trusts servers whose certificates lead to one of these: one or more of certificate authorities, in PEM.
    ///
    /// The system's own authorities are not trusted with them. Certificates are read now; a change of the file is seen by the
    /// next handle. The process's choice of cryptography for rustls is ring's unless the program has made another before.
    ///
    /// # Errors
    /// [`Error::InvalidTls`] when there is no certificate in it, or one that cannot be read.
    pub fn trusting(authorities: &[u8]) -> Result<Self, Error> {
        // The client crate takes the process's choice, and panics where two are compiled in and none is chosen.
        if CryptoProvider::get_default().is_none() {
            // Refused if another thread has chosen meanwhile, which is as good.
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

    /// Shows servers this certificate, the client's own first and its chain after it, and proves it with the key; both in PEM.
    ///
    /// Apache's servers ask for one unless told otherwise, and know the client by it under the scheme `x509`.
    ///
    /// # Errors
    /// [`Error::InvalidTls`] when one of them cannot be read or they do not belong together.
    pub fn with_identity(mut self, chain: &[u8], key: &[u8]) -> Result<Self, Error> {
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

    /// Whether a certificate could bear this name.
    pub(crate) fn can_name(host: &str) -> bool {
        ServerName::try_from(host).is_ok()
    }

    /// Whether servers that ask for a certificate learn who this is.
    pub(crate) fn has_identity(&self) -> bool {
        self.has_identity
    }

    pub(crate) fn options(&self) -> zk::TlsOptions {
        self.options.clone()
    }

    /// Shakes hands with whoever listens there, to see what comes of it.
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

fn bad(what: &str, why: &dyn fmt::Display) -> Error {
    Error::InvalidTls { problem: format!("{what} cannot be used: {why}") }
}

fn utf8(text: &[u8]) -> Result<&str, std::str::Utf8Error> {
    std::str::from_utf8(text)
}

/// All certificates of a PEM text, at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Err(error) => Err(error.to_string()),
        Ok(none) if none.is_empty() => Err("there is no certificate in it".to_owned()),
        Ok(certificates) => Ok(certificates),
    }
}
