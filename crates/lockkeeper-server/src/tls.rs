//! TLS for clients: the server's certificate, and which clients are accepted.
//!
//! Versions, ciphers and checks are those of rustls; nothing else can be configured.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::certificate;
use crate::error::ServerError;
use crate::machine::identity::Identity;

/// The server's certificate for TLS 1.2 and 1.3, and the authorities for clients' certificates.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    asks_for_certificates: bool,
}

impl Tls {
    /// Takes a certificate chain, the server's own certificate first, and its key, both in PEM. Clients need no
    /// certificate.
    ///
    /// # Errors
    /// [`ServerError::Tls`] if one of them cannot be read or they do not belong together.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, ServerError> {
        Self::new(certificates, key, None)
    }

    /// As [`Tls::from_pem`], but accepts only clients with a certificate that leads to one of `authorities` (PEM).
    ///
    /// A client's identity is the subject of its certificate under the scheme `x509`, as Apache's server writes it:
    /// most specific part first, for example `CN=build,OU=ci,O=Acme`.
    ///
    /// # Errors
    /// [`ServerError::Tls`] if one of them cannot be read or they do not belong together.
    pub fn mutual(certificates: &[u8], key: &[u8], authorities: &[u8]) -> Result<Self, ServerError> {
        Self::new(certificates, key, Some(authorities))
    }

    fn new(certificates: &[u8], key: &[u8], authorities: Option<&[u8]>) -> Result<Self, ServerError> {
        let fail = |what: &str, why: &dyn fmt::Display| ServerError::Tls { what: format!("{what}: {why}") };
        let chain = read_all(certificates).map_err(|error| fail("the certificate cannot be read", &error))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| fail("the key cannot be read", &error))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| fail("TLS cannot be used", &error))?;
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let unusable =
                    |why: &dyn fmt::Display| fail("the authorities for clients' certificates cannot be used", why);
                let mut roots = RootCertStore::empty();
                for certificate in read_all(authorities).map_err(|error| unusable(&error))? {
                    roots.add(certificate).map_err(|error| unusable(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(|error| unusable(&error))?)
            }
        };
        let config = builder
            .with_single_cert(chain, key)
            .map_err(|error| fail("the certificate cannot be used with this key", &error))?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), asks_for_certificates: authorities.is_some() })
    }

    /// Returns whether clients have identities of the scheme `x509`.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        self.asks_for_certificates
    }

    /// Performs the handshake. Returns the client's identity if a certificate was required.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Option<Identity>)> {
        let stream = self.acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let identity = shown.map(|own| certificate::identity(own)).transpose();
        Ok((stream, identity.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?))
    }
}

fn read_all(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, impl fmt::Display> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("asks_for_certificates", &self.asks_for_certificates).finish_non_exhaustive()
    }
}
