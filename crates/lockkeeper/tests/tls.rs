//! Locks over TLS: the same locks, and a clear error when no session can be opened.
//!
//! `cargo xtask interop tls` runs them against Apache's server too.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, SystemTime};

use lockkeeper::acl::LockAcl;
use lockkeeper::error::{AcquireError, ConnectError, Misuse, SessionError};
use lockkeeper::{Builder, Lockkeeper, Tls};
use lockkeeper_server::{Config, Server};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// An authority that signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Returns a certificate for these hosts and this name, and its key, in PEM.
    fn certify(&self, hosts: &[&str], name: &str) -> (String, String) {
        let mut params =
            CertificateParams::new(hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn trust(&self) -> Tls {
        Tls::trusting(self.pem.as_bytes()).unwrap()
    }

    fn client(&self, name: &str) -> Tls {
        let (chain, key) = self.certify(&[], name);
        self.trust().with_identity(chain.as_bytes(), key.as_bytes()).unwrap()
    }

    /// Starts a server that requires a certificate of clients if `mutual`.
    async fn server(&self, hosts: &[&str], mutual: bool) -> Server {
        let (chain, key) = self.certify(hosts, "server");
        let (chain, key) = (chain.as_bytes(), key.as_bytes());
        let tls = match mutual {
            true => lockkeeper_server::Tls::mutual(chain, key, self.pem.as_bytes()),
            false => lockkeeper_server::Tls::from_pem(chain, key),
        };
        Server::start(Config::default().with_tls(tls.unwrap())).await.unwrap()
    }
}

const LOCAL: &[&str] = &["127.0.0.1", "localhost"];

/// A builder for connections that must succeed, also on a busy machine.
fn patient(tls: Tls) -> Builder {
    Lockkeeper::builder().tls(tls).connect_timeout(Duration::from_secs(30))
}

/// Returns the reason why a connection fails that must fail.
async fn refusal(tls: Option<Tls>, servers: String) -> String {
    let builder = Lockkeeper::builder().connect_timeout(Duration::from_secs(2));
    let builder = match tls {
        Some(tls) => builder.tls(tls),
        None => builder,
    };
    match builder.connect(&servers).await {
        Err(ConnectError::Session(SessionError::Unreachable { detail, .. })) => detail,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_lock_is_held_over_tls_and_outlives_a_broken_connection() {
    let authority = Authority::new("ours");
    let server = authority.server(LOCAL, false).await;
    let keeper = patient(authority.trust()).connect(&server.connect_string()).await.unwrap();
    let guard = keeper.mutex("/locks/a").acquire().await.unwrap();
    server.faults().cut_all().await.unwrap();
    assert!(keeper.mutex("/locks/a").try_acquire().await.is_err(), "the session must survive the reconnect");
    assert!(guard.is_held());
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(keeper.mutex("/locks/a").acquire().await.unwrap().token() > token);
    keeper.close().await;
    assert_eq!(server.stats().sessions, 0);
}

#[tokio::test]
async fn each_reason_for_a_failed_handshake_is_reported() {
    let (authority, stranger) = (Authority::new("ours"), Authority::new("theirs"));
    let server = authority.server(&["localhost"], false).await;
    let (plain, mutual) = (Server::ephemeral().await.unwrap(), authority.server(LOCAL, true).await);
    let (chain, key) = stranger.certify(&[], "build");
    let unknown = authority.trust().with_identity(chain.as_bytes(), key.as_bytes()).unwrap();
    let by_name = format!("localhost:{}", server.addr().port());
    // Each is told when the time to connect is over.
    let (issuer, name, _, no_tls, none, identity) = tokio::join!(
        refusal(Some(stranger.trust()), by_name),
        refusal(Some(authority.trust()), server.connect_string()),
        refusal(None, server.connect_string()),
        refusal(Some(authority.trust()), plain.connect_string()),
        refusal(Some(authority.trust()), mutual.connect_string()),
        refusal(Some(unknown), mutual.connect_string()),
    );
    assert!(issuer.contains("UnknownIssuer"), "{issuer}");
    assert!(name.contains("not valid for name \"127.0.0.1\""), "{name}");
    assert!(no_tls.contains("fails the TLS handshake"), "{no_tls}");
    assert!(none.contains("CertificateRequired"), "{none}");
    assert!(identity.contains("UnknownCA") || identity.contains("UnknownIssuer"), "{identity}");
    assert_eq!(server.stats().sessions, 0);
}

/// It is tried first, second or third: the order is random.
#[tokio::test]
async fn a_session_opens_if_one_server_of_three_has_a_certificate_that_is_trusted() {
    let (authority, stranger) = (Authority::new("ours"), Authority::new("theirs"));
    let good = authority.server(LOCAL, false).await;
    let bad = [authority.server(&["elsewhere"], false).await, stranger.server(LOCAL, false).await];
    let servers = format!("{},{},{}", bad[0].connect_string(), bad[1].connect_string(), good.connect_string());
    for _ in 0..5 {
        let keeper = patient(authority.trust()).connect(&servers).await.unwrap();
        keeper.mutex("/locks/a").acquire().await.unwrap().release().await.unwrap();
        keeper.close().await;
    }
}

/// By the clock of a machine that has just started, a certificate may not be valid yet.
#[tokio::test]
async fn a_server_whose_certificate_becomes_valid_later_is_waited_for() {
    let authority = Authority::new("ours");
    let mut params = CertificateParams::new(LOCAL.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>()).unwrap();
    params.not_before = (SystemTime::now() + Duration::from_secs(4)).into();
    let key = KeyPair::generate().unwrap();
    let chain = params.signed_by(&key, &authority.issuer).unwrap().pem();
    let tls = lockkeeper_server::Tls::from_pem(chain.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let server = Server::start(Config::default().with_tls(tls)).await.unwrap();
    patient(authority.trust()).connect(&server.connect_string()).await.unwrap().close().await;
}

/// Three clients have certificates, two of them with the same name. The access lists of their locks treat these two as
/// one user.
async fn check_that_certificates_are_credentials(authority: &Authority, servers: &str) {
    let of = async |name| patient(authority.client(name)).acl(LockAcl::Private).connect(servers).await.unwrap();
    let (build, again, other) = (of("build").await, of("build").await, of("other").await);
    let guard = build.mutex("/locks/a").acquire().await.unwrap();
    assert!(
        matches!(again.mutex("/locks/a").try_acquire().await, Err(AcquireError::Held { .. })),
        "the same certificate's name"
    );
    assert!(
        matches!(other.mutex("/locks/a").try_acquire().await, Err(AcquireError::Session(SessionError::Refused { .. }))),
        "another's"
    );
    guard.release().await.unwrap();
    again.mutex("/locks/a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_certificate_is_the_credential_of_an_access_list() {
    let authority = Authority::new("ours");
    let server = authority.server(LOCAL, true).await;
    let servers = server.connect_string();
    check_that_certificates_are_credentials(&authority, &servers).await;

    let nobody = Lockkeeper::builder().tls(authority.trust()).acl(LockAcl::Private).connect(&servers).await;
    assert!(
        matches!(nobody, Err(ConnectError::Misuse(Misuse { argument: "credential", .. }))),
        "a trusted authority is not an identity"
    );
}

#[tokio::test]
async fn invalid_certificates_and_keys_are_refused_before_anything_is_sent() {
    let authority = Authority::new("ours");
    let (chain, key) = authority.certify(&[], "a");
    let (_, other) = authority.certify(&[], "b");
    for pem in ["", "nonsense", &key, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(matches!(Tls::trusting(pem.as_bytes()), Err(Misuse { argument: "tls", .. })), "{pem}");
    }
    assert!(matches!(Tls::trusting(b"\xff\xfe"), Err(Misuse { argument: "tls", .. })));
    for (chain, key, what) in [
        ("", key.as_str(), "certificate"),
        (&key, &key, "certificate"),
        (&chain, "", "key"),
        (&chain, &chain, "key"),
        (&chain, &other, "certificate with this key"),
        (&key, &chain, "swap the two"),
        (&key, &key, "a key and no certificate"),
        (&chain, &chain, "a certificate and no key"),
    ] {
        match authority.trust().with_identity(chain.as_bytes(), key.as_bytes()) {
            Err(Misuse { argument: "tls", problem, .. }) => assert!(problem.contains(what), "{problem}"),
            other => panic!("{other:?}"),
        }
    }
    for servers in ["zk..example:2181", "good:2181,a..b", "[fe80::1%eth0]:2181"] {
        let refused = Lockkeeper::builder().tls(authority.trust()).connect(servers).await;
        assert!(
            matches!(refused, Err(ConnectError::Misuse(Misuse { argument: "servers", .. }))),
            "{servers}: {refused:?}"
        );
    }
    assert_eq!(format!("{:?}", authority.client("a")), "Tls(..)");
}

/// The same certificates, access list and names as on the embedded server.
#[cfg(deep)]
#[tokio::test]
async fn an_apache_server_treats_the_certificate_as_the_same_credential() {
    use lockkeeper_testkit::apache::{Apache, Options};

    let authority = Authority::new("ours");
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (chain, key) = authority.certify(LOCAL, "server");
    let (own, trusted) = (file("own.pem", &format!("{key}{chain}")), file("trusted.pem", &authority.pem));
    // The port is free until the server takes it, unless another process takes it first, as with every port chosen for another
    // process.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = [
        ("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory"),
        ("ssl.keyStore.location", &own),
        ("ssl.keyStore.type", "PEM"),
        ("ssl.trustStore.location", &trusted),
        ("ssl.trustStore.type", "PEM"),
    ];
    let options =
        options.iter().fold(Options::default(), |all, (key, value)| all.property(format!("zookeeper.{key}"), *value));
    let apache = tokio::task::spawn_blocking(move || {
        Apache::single(
            options.config("secureClientPort", port.to_string()).config("secureClientPortAddress", "127.0.0.1"),
        )
    });
    let apache = apache.await.unwrap().unwrap();
    let servers = format!("127.0.0.1:{port}");
    check_that_certificates_are_credentials(&authority, &servers).await;
    let detail = refusal(Some(authority.trust()), servers).await;
    assert!(detail.contains("ertificate"), "{detail}");
    drop(apache);
}
