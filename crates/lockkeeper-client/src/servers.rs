//! The connect string, and connections to its servers.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};

use crate::chroot::Chroot;
use crate::local;
#[cfg(feature = "tls")]
use crate::tls::{self, Tls};

/// ZooKeeper's port: the default.
const DEFAULT_PORT: u16 = 2181;

/// A byte stream to a server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The result of [`Connect::connect`]: resolves when the server's address is known, with the connection that is to be opened.
pub type Searching = Pin<Box<dyn Future<Output = io::Result<Connecting>> + Send>>;

/// A connection that is being opened.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

/// Opens connections to a fixed number of servers. [`Servers`] does it for a connect string.
pub trait Connect: Send + Sync + 'static {
    /// Returns the number of servers; at least one.
    fn servers(&self) -> usize;

    /// Opens a connection to the server with this index, below [`Connect::servers`], in two steps. The first one finds the
    /// server's address. Its time does not count as the server's silence. The second one opens the connection. If the
    /// first step takes too long, the next attempt with the same server continues it, unless the session was connected
    /// meanwhile. The session drops a second step that takes too long.
    ///
    /// The text of an error completes a sentence that begins with the server: `refuses connections`.
    fn connect(&self, server: usize) -> Searching;

    /// Returns the server's name for messages.
    fn name(&self, server: usize) -> String;
}

impl<T: Connect + ?Sized> Connect for Arc<T> {
    fn servers(&self) -> usize {
        (**self).servers()
    }

    fn connect(&self, server: usize) -> Searching {
        (**self).connect(server)
    }

    fn name(&self, server: usize) -> String {
        (**self).name(server)
    }
}

/// The beginning of a connect string that names a Unix socket.
const UNIX: &str = "unix:";

/// A parsed connect string: `zk1:2181,zk2:2181,[2001:db8::1]:2181/app`, or `unix:/run/lockkeeper/socket`.
///
/// Servers are separated by commas; a port may be missing (2181). An IPv6 address is in brackets. The path after the
/// list is the chroot. The client adds it to the front of every path that it sends, and removes it from every path that
/// it returns. The session does not create the chroot's node.
///
/// Every attempt to connect resolves the server's name again, and tries its addresses in random order. With TLS, the
/// certificate must contain the host name of the connect string.
///
/// A Unix socket is one server of this machine: all behind `unix:` is its absolute path, and there is no chroot. On Linux
/// the path may have any length.
#[derive(Clone, Debug)]
pub struct Servers {
    endpoints: Vec<Endpoint>,
    pub(crate) chroot: Chroot,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

#[derive(Clone, Debug)]
enum Endpoint {
    /// Host and port. An IPv6 address has no brackets here.
    Net { host: String, port: u16 },
    /// A Unix socket of this machine.
    Unix(PathBuf),
}

/// A connect string that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid connect string {servers:?}: {problem}")]
pub struct InvalidServers {
    /// The connect string.
    pub servers: String,
    /// What is wrong with it.
    pub problem: String,
}

impl FromStr for Servers {
    type Err = InvalidServers;

    fn from_str(text: &str) -> Result<Servers, InvalidServers> {
        let invalid = |problem: String| InvalidServers { servers: text.to_owned(), problem };
        if let Some(path) = text.trim().strip_prefix(UNIX) {
            return match Path::new(path) {
                path if path.is_absolute() && path.file_name().is_some() => Ok(Servers::unix(path)),
                _ => Err(invalid(format!("{path:?} is no absolute path of a socket: write unix:/path"))),
            };
        }
        let (list, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        if list.ends_with(':') && path.starts_with("//") {
            return Err(invalid(format!("{list}// is the beginning of a URL: leave it out")));
        }
        // A comma is allowed in a name of a node; a list of servers behind it is a mistake.
        let servers = path.split_once(',').map(|(_, rest)| rest.split(',')).into_iter().flatten();
        let is_server = |part: &str| {
            let (server, _) = part.split_once('/').unwrap_or((part, ""));
            server.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
        };
        if servers.into_iter().any(is_server) {
            return Err(invalid(format!("{path:?} has servers behind a chroot: write the chroot once, at the end")));
        }
        if path.len() > 1 && path.ends_with('/') {
            return Err(invalid(format!("the chroot {path:?} ends with a slash: leave that out")));
        }
        let chroot = Chroot::new(path).map_err(|problem| invalid(format!("the chroot {path:?} {problem}")))?;
        let endpoints = list
            .split(',')
            .map(str::trim)
            .map(|server| server.parse().map_err(|problem: String| invalid(format!("{server:?} {problem}"))));
        Ok(Servers {
            endpoints: endpoints.collect::<Result<_, _>>()?,
            chroot,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        if text.is_empty() {
            return Err("is not a server: write host:port, several with commas between".to_owned());
        }
        if let Some(other) = text.chars().find(|c| c.is_whitespace() || ";|".contains(*c)) {
            return Err(format!("has {other:?} in it: write commas between servers"));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or("has '[' without ']'")?;
                // A zone such as `%eth0` is not part of the address.
                let digits = address.split_once('%').map_or(address, |(digits, _)| digits);
                digits.parse::<std::net::Ipv6Addr>().map_err(|_| "has no IPv6 address between the brackets")?;
                let port =
                    if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or("has text after ']'")?) };
                (address, port)
            }
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err("is an IPv6 address without brackets: write [address]:port".to_owned());
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
        if host.is_empty() || !host.chars().all(valid) {
            return Err("has no valid host name".to_owned());
        }
        let port = match port.filter(|port| !port.is_empty()).map(str::parse) {
            None => DEFAULT_PORT,
            Some(Ok(port)) if port > 0 => port,
            Some(_) => {
                return Err(format!("has the port {:?}: expected a number from 1 to 65535", port.unwrap_or_default()));
            }
        };
        Ok(Endpoint::Net { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Net { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Net { host, port } => write!(f, "{host}:{port}"),
            Endpoint::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.endpoints(), self.chroot())
    }
}

impl Servers {
    /// Returns the server behind the Unix socket at this path.
    pub fn unix(path: impl Into<PathBuf>) -> Servers {
        Servers {
            endpoints: vec![Endpoint::Unix(path.into())],
            chroot: Chroot::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Returns whether this is a Unix socket. Its server knows the user of each client from the kernel.
    pub fn is_unix(&self) -> bool {
        matches!(self.endpoints[..], [Endpoint::Unix(_)])
    }

    /// Returns the servers without the chroot.
    pub fn endpoints(&self) -> String {
        let endpoints: Vec<_> = self.endpoints.iter().map(Endpoint::to_string).collect();
        endpoints.join(",")
    }

    /// Returns the chroot: an absolute path, or the empty one.
    pub fn chroot(&self) -> &str {
        self.chroot.as_str()
    }

    /// Returns the same servers with TLS.
    ///
    /// # Errors
    /// [`InvalidServers`] if a host is not a name that a certificate can contain, or if this is a Unix socket.
    #[cfg(feature = "tls")]
    pub fn with_tls(mut self, tls: Tls) -> Result<Servers, InvalidServers> {
        let problem = self.endpoints.iter().find_map(|endpoint| match endpoint {
            Endpoint::Net { host, .. } if Tls::can_name(host) => None,
            Endpoint::Net { host, .. } => Some(format!("{host:?} is not a name that a certificate can contain")),
            Endpoint::Unix(_) => Some("a Unix socket has no TLS: leave the certificates out".to_owned()),
        });
        if let Some(problem) = problem {
            return Err(InvalidServers { servers: self.to_string(), problem });
        }
        self.tls = Some(tls);
        Ok(self)
    }
}

impl Connect for Servers {
    fn servers(&self) -> usize {
        self.endpoints.len()
    }

    fn connect(&self, server: usize) -> Searching {
        let endpoint = self.endpoints[server].clone();
        #[cfg(feature = "tls")]
        let tls = self.tls.clone();
        Box::pin(async move {
            let (host, port) = match endpoint {
                Endpoint::Net { host, port } => (host, port),
                Endpoint::Unix(path) => {
                    let connecting: Connecting = Box::pin(async move {
                        let stream = local::dial(&path).await.map_err(unreachable)?;
                        Ok(Box::new(stream) as Box<dyn Stream>)
                    });
                    return Ok(connecting);
                }
            };
            let addresses = lookup_host((host.as_str(), port)).await;
            let mut addresses: Vec<_> = addresses.map_err(unreachable)?.collect();
            fastrand::shuffle(&mut addresses);
            let connecting: Connecting = Box::pin(async move {
                let stream = dial(&addresses).await.map_err(unreachable)?;
                #[cfg(feature = "tls")]
                if let Some(config) = tls {
                    let secured = config.connect(&host, stream).await.map_err(|error| tls::failed(&error))?;
                    return Ok(Box::new(secured) as Box<dyn Stream>);
                }
                Ok(Box::new(stream) as Box<dyn Stream>)
            });
            Ok(connecting)
        })
    }

    fn name(&self, server: usize) -> String {
        self.endpoints[server].to_string()
    }
}

/// Opens a connection to the first of these addresses that accepts one. Dropping the future closes it.
async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addresses).await?;
    // Send each request immediately; do not wait for a full packet.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// What is said of a server that closes a connection before it has answered.
pub(crate) const CLOSED: &str = "closes the connection without an answer";

/// Whether the server has closed the connection: Linux reports that as a reset, or as a pipe without a reader.
pub fn is_close(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Returns the error with the words of a message about the server.
fn unreachable(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => io::Error::new(error.kind(), "refuses connections (nothing listens there)"),
        kind if is_close(&error) => io::Error::new(kind, CLOSED),
        kind => io::Error::new(kind, format!("cannot be reached ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        text.parse::<Servers>().map(|servers| servers.to_string()).map_err(|error| error.problem)
    }

    #[test]
    fn connect_strings_have_ports_addresses_and_a_chroot() {
        assert_eq!(read("zk1").unwrap(), "zk1:2181");
        assert_eq!(read("zk1:1, zk2:,10.0.0.7/app/locks").unwrap(), "zk1:1,zk2:2181,10.0.0.7:2181/app/locks");
        assert_eq!(read(" unix:/run/a,b:c ").unwrap(), "unix:/run/a,b:c");
        assert_eq!(read("[::1],[fe80::1%eth0]:7/").unwrap(), "[::1]:2181,[fe80::1%eth0]:7");
    }

    #[test]
    fn a_connection_that_is_reset_while_it_opens_was_closed_by_the_server() {
        for kind in [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe] {
            let error = unreachable(kind.into());
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, CLOSED));
        }
        assert!(unreachable(io::ErrorKind::HostUnreachable.into()).to_string().starts_with("cannot be reached ("));
    }

    #[tokio::test]
    async fn a_name_is_resolved_before_the_connection_is_opened() {
        // Nothing listens on port 1.
        let servers: Servers = "localhost:1,nowhere.invalid".parse().unwrap();
        let refused = servers.connect(0).await.unwrap().await.err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(servers.connect(1).await.is_err(), "the name does not exist");
    }

    #[test]
    fn an_invalid_connect_string_is_refused_with_its_reason() {
        for (text, problem) in [
            ("", "\"\" is not a server"),
            ("zk1,,zk2", "\"\" is not a server"),
            ("zk1:1/app,zk2:2/app", "has servers behind a chroot: write the chroot once, at the end"),
            ("zk1:1/app/", "the chroot \"/app/\" ends with a slash: leave that out"),
            ("zk 1", "has ' ' in it"),
            ("zk1:1;zk2:1", "has ';' in it: write commas"),
            ("zk://zk1:1", "zk:// is the beginning of a URL"),
            ("zk1!", "no valid host name"),
            ("zk1:0", "the port \"0\""),
            ("zk1:70000", "from 1 to 65535"),
            ("::1", "without brackets"),
            ("[::1", "without ']'"),
            ("[::1]2", "after ']'"),
            ("[zk1]:2", "no IPv6 address"),
            ("zk1//a", "empty"),
            ("zk1/a//b", "empty"),
            ("zk1/a/..", "\"..\""),
            ("unix:", "no absolute path"),
            ("unix:run/x", "write unix:/path"),
            ("unix:/", "no absolute path"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
