//! TLS for clients: a certificate, a key, and nothing else to choose.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use crate::error::ServerError;

/// What a server shows of itself; clients are not asked for certificates. TLS 1.2 and 1.3.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
    /// Takes a certificate with its chain, the server's own first, and its key, both in PEM.
    ///
    /// # Errors
    /// [`ServerError::Tls`] when one of them cannot be read or they do not belong together.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, ServerError> {
        let fail = |what: &str, why: &dyn fmt::Display| ServerError::Tls { what: format!("{what}: {why}") };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(|error| fail("the certificate cannot be read", &error))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| fail("the key cannot be read", &error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| fail("the certificate cannot be used with this key", &error))?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.0.accept(stream).await
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}
