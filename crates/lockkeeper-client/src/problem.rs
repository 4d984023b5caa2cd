//! Mistakes about TLS, in the words in which [`Client::connect_errors`](crate::Client::connect_errors) tells them.

/// A mistake about TLS that keeps a server from accepting the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsProblem {
    /// The server's certificate leads to no authority that this client trusts.
    UnknownAuthority,
    /// The server's certificate has expired, or is not valid yet.
    NotValidNow,
    /// The server's certificate does not contain the name by which the server was reached.
    OtherName,
    /// The server requires a client certificate, and does not accept the one that it got, or got none.
    ClientCertificate,
    /// The server ended the handshake as a port without TLS does. A server with TLS may do so at its limit of connections.
    PortWithoutTls,
    /// The port uses TLS, and the client does not.
    PortWithTls,
}

impl TlsProblem {
    const ALL: [TlsProblem; 6] = [
        TlsProblem::UnknownAuthority,
        TlsProblem::NotValidNow,
        TlsProblem::OtherName,
        TlsProblem::ClientCertificate,
        TlsProblem::PortWithoutTls,
        TlsProblem::PortWithTls,
    ];

    /// Returns the end of a sentence about the server.
    pub const fn text(self) -> &'static str {
        match self {
            TlsProblem::UnknownAuthority => "its certificate is from an authority that is not trusted",
            TlsProblem::NotValidNow => "its certificate is not valid now",
            TlsProblem::OtherName => "its certificate is for another name",
            TlsProblem::ClientCertificate => "it requires a client certificate that it trusts",
            TlsProblem::PortWithoutTls => "its port may be one without TLS, or it takes no connection now",
            TlsProblem::PortWithTls => "its port is one for TLS",
        }
    }

    /// Whether another attempt with the same server ends the same way, as long as nobody changes a file or a setting. A certificate
    /// that is not valid now may be valid later, or once the clock of this machine is right.
    pub const fn is_lasting(self) -> bool {
        matches!(self, TlsProblem::UnknownAuthority | TlsProblem::OtherName | TlsProblem::PortWithTls)
    }

    /// Returns the problem that an error text tells. The reasons of several servers are one text, which the user reads, and the
    /// error of rustls is inside an `io::Error`.
    pub fn in_text(text: &str) -> Option<TlsProblem> {
        TlsProblem::ALL.into_iter().find(|problem| text.contains(problem.text()))
    }

    /// Returns whether an answer to a client without TLS is one of TLS: an alert, or a part of a handshake.
    pub fn is_tls(answer: &[u8]) -> bool {
        matches!(answer, [0x15 | 0x16, 3, ..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_found_in_its_own_text() {
        for problem in TlsProblem::ALL {
            assert_eq!(TlsProblem::in_text(&format!("zk1:2281 fails: {} (x)", problem.text())), Some(problem));
        }
        assert_eq!(TlsProblem::in_text("zk1:2181 refuses connections"), None);
    }
}
