//! The connect string: checked before anything is sent, and diagnosed when no server answers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lockkeeper_core::LockPath;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

#[cfg(feature = "tls")]
use crate::ensemble::tls::Tls;
use crate::error::Misuse;

/// ZooKeeper's port, the default of a server without one.
const DEFAULT_PORT: u16 = 2181;

/// A parsed connect string: `zk1:2181,zk2:2181,zk3:2181/chroot`.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    /// Host and port of each; an IPv6 host is in brackets.
    endpoints: Vec<String>,
    /// Empty, or an absolute path.
    chroot: String,
    /// How to verify them, if they use TLS.
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl FromStr for Servers {
    type Err = Misuse;

    fn from_str(text: &str) -> Result<Self, Misuse> {
        let bad = |problem: String| Misuse::servers(text, &problem);
        let (list, chroot) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let chroot = match chroot {
            "" | "/" => String::new(),
            path => LockPath::parse_node(path).map_err(|error| bad(format!("its chroot: {error}")))?.to_string(),
        };
        let endpoints = list
            .split(',')
            .map(|server| endpoint(server.trim()).map_err(|problem| bad(format!("{server:?} {problem}"))))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Servers {
            endpoints,
            chroot,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }
}

/// Checks one `host[:port]`.
fn endpoint(server: &str) -> Result<String, String> {
    if server.is_empty() {
        return Err("is not a server: write host:port, several with commas between".to_owned());
    }
    // In brackets, or without brackets but with several colons: an IPv6 address.
    let (host, port) = match server.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((address, rest))) => (format!("[{address}]"), rest.strip_prefix(':').unwrap_or(rest)),
        Some(None) => return Err("has '[' but no ']'".to_owned()),
        None if server.matches(':').count() > 1 => {
            return Err("is an IPv6 address without brackets: write [address]:port".to_owned());
        }
        None => match server.split_once(':') {
            Some((host, port)) => (host.to_owned(), port),
            None => (server.to_owned(), ""),
        },
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']' | '%');
    if host.is_empty() || !host.chars().all(fits) {
        return Err("has no valid host name".to_owned());
    }
    let port = match port {
        "" => DEFAULT_PORT,
        text => match text.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(format!("has the port {text:?}: expected a number from 1 to 65535")),
        },
    };
    Ok(format!("{host}:{port}"))
}

impl Servers {
    /// The servers without the chroot, as the client crate expects them.
    pub(crate) fn endpoints(&self) -> String {
        self.endpoints.join(",")
    }

    /// The prefix of every path.
    pub(crate) fn chroot(&self) -> &str {
        &self.chroot
    }

    /// The same servers with TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn secured(mut self, tls: Tls) -> Result<Self, Misuse> {
        if let Some(bad) = self.endpoints.iter().find(|endpoint| !Tls::can_name(host(endpoint))) {
            let problem = format!("{:?} is not a name that a certificate can contain", host(bad));
            return Err(Misuse::servers(&self.to_string(), &problem));
        }
        self.tls = Some(tls);
        Ok(self)
    }

    #[cfg(feature = "tls")]
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Asks all servers in parallel why they could not be used, for at most `patience`. Returns one line.
    pub(crate) async fn diagnose(&self, patience: Duration) -> String {
        let questions = self.endpoints.iter().map(async |endpoint| {
            let answer = tokio::time::timeout(patience, self.ask(endpoint)).await;
            format!("{endpoint} {}", answer.as_deref().unwrap_or("does not answer"))
        });
        futures_util::future::join_all(questions).await.join("; ")
    }

    /// What one address answers to a connection.
    async fn ask(&self, endpoint: &str) -> String {
        let stream = match TcpStream::connect(endpoint).await {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                return "refuses connections (nothing listens there)".to_owned();
            }
            Err(error) => return format!("cannot be reached ({error})"),
            Ok(stream) => stream,
        };
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return match tls.connect(host(endpoint), stream).await {
                Ok(stream) => diagnose(stream).await,
                Err(error) => format!("fails the TLS handshake ({error})"),
            };
        }
        diagnose(stream).await
    }
}

/// The host of an endpoint; an IPv6 address without its brackets.
#[cfg(feature = "tls")]
fn host(endpoint: &str) -> &str {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// What one address answers to `ruok`.
async fn diagnose(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let mut reply = Vec::new();
    let asked = async {
        stream.write_all(b"ruok").await?;
        stream.flush().await?;
        stream.take(64).read_to_end(&mut reply).await
    };
    match asked.await {
        _ if reply == b"imok" => "is ZooKeeper, but opened no session".to_owned(),
        Ok(0) => "closes the connection without an answer".to_owned(),
        Ok(_) => "answers, but not as ZooKeeper does".to_owned(),
        Err(error) => format!("breaks the connection ({error})"),
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.endpoints(), self.chroot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_strings_read_as_zookeeper_users_write_them() {
        let show = |text: &str| text.parse::<Servers>().map(|s| s.to_string()).map_err(|e| e.to_string());
        assert_eq!(show("zk1"), Ok("zk1:2181".into()));
        assert_eq!(show("zk1:1, zk2/app/locks"), Ok("zk1:1,zk2:2181/app/locks".into()));
        assert_eq!(show("[::1]:2182/"), Ok("[::1]:2182".into()));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, say) in [
            ("", "\"\" is not a server"),
            ("zk1,,zk2", "\"\" is not a server"),
            ("zk1:", "ok"),
            ("zk1:0", "\"0\": expected a number from 1"),
            ("zk1:http", "\"http\""),
            ("zk1:70000", "\"70000\""),
            ("::1", "without brackets"),
            ("[::1", "no ']'"),
            ("zk 1:2181", "no valid host name"),
            ("zk1:2181//x", "empty component"),
            ("/x", "\"\" is not a server"),
        ] {
            match text.parse::<Servers>() {
                Ok(_) => assert_eq!(say, "ok", "{text}"),
                Err(error) => assert!(error.to_string().contains(say), "{text}: {error}"),
            }
        }
    }
}
