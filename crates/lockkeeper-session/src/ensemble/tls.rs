//! What a client verifies of its servers, and presents of itself.

use std::fmt;
use std::path::PathBuf;

use lockkeeper_client::{InvalidTls, Servers, Tls as ClientTls};

use crate::error::Misuse;

/// The certificate authorities that a client trusts, and its own certificate. Pass it to `Options::tls`, or to `Builder::tls` of
/// `lockkeeper`.
///
/// Cheap to clone. `Debug` shows none of its content. A server's certificate must contain the name that the connect
/// string uses; this check cannot be turned off.
#[derive(Clone)]
pub struct Tls(pub(crate) ClientTls);

impl Tls {
    /// Trusts servers whose certificates lead to one of these certificate authorities, in PEM.
    ///
    /// The system's authorities are not trusted in addition.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if there is no certificate, or one that cannot be read.
    pub fn trusting(authorities: &[u8]) -> Result<Self, Misuse> {
        ClientTls::trusting(authorities).map(Tls).map_err(misuse)
    }

    /// Trusts the certificate authorities of this file, as [`Tls::trusting`]. Every connection reads the file again, so
    /// that a new authority is trusted, and a removed one is not, without a restart. While the file cannot be used,
    /// connections use the authorities before it.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the file cannot be read, or its content cannot be used.
    pub fn trusting_file(authorities: impl Into<PathBuf>) -> Result<Self, Misuse> {
        ClientTls::trusting_file(authorities).map(Tls).map_err(misuse)
    }

    /// Presents this client certificate, with its chain after it, and its key; both in PEM.
    ///
    /// Apache's servers request a certificate by default, and identify the client by it under the scheme `x509`.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the certificate or the key cannot be read, or if they do not match.
    pub fn with_identity(self, chain: &[u8], key: &[u8]) -> Result<Self, Misuse> {
        self.0.with_identity(chain, key).map(Tls).map_err(misuse)
    }

    /// Presents the client certificate and the key of these files, as [`Tls::with_identity`]. Every connection reads the
    /// files again, so that a renewed certificate is used without a restart.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if a file cannot be read, or its content cannot be used.
    pub fn with_identity_files(self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, Misuse> {
        self.0.with_identity_files(chain, key).map(Tls).map_err(misuse)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The same servers with TLS.
pub(crate) fn secured(servers: Servers, tls: Tls) -> Result<Servers, Misuse> {
    servers.with_tls(tls.0).map_err(|error| Misuse::servers(&error.servers, &error.problem))
}

fn misuse(error: InvalidTls) -> Misuse {
    Misuse::tls(&error.to_string())
}
