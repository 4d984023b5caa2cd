//! TLS between the client and the embedded server.

#![cfg(feature = "tls")]

use std::time::Duration;

use lockkeeper_client::{Client, Config, ConnectionState, Servers, Tls};
use lockkeeper_server::Server;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

const TIMEOUT: Duration = Duration::from_secs(10);

/// An authority that issues certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns a certificate for this host, or for this user, and its key.
    fn issue(&self, host: &str, user: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, user);
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

async fn server(authority: &Authority, host: &str) -> (Server, Servers) {
    let (certificate, key) = authority.issue(host, "server");
    let tls = lockkeeper_server::Tls::mutual(certificate.as_bytes(), key.as_bytes(), authority.pem().as_bytes());
    let server = Server::start(lockkeeper_server::Config::default().with_tls(tls.unwrap())).await.unwrap();
    let servers = format!("localhost:{}", server.addr().port()).parse().unwrap();
    (server, servers)
}

/// Returns the user as which the server knows this connection.
async fn user(client: &Client) -> String {
    let identities = client.who_am_i().await.unwrap();
    identities.into_iter().find(|(scheme, _)| scheme == "x509").unwrap().1.unwrap()
}

#[tokio::test]
async fn a_renewed_certificate_is_used_by_the_next_connection() {
    let authority = Authority::new();
    let (_server, servers) = server(&authority, "localhost").await;
    let directory = tempfile::tempdir().unwrap();
    let files = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
    let write = |(certificate, key): (String, String)| {
        std::fs::write(&files[0], certificate).unwrap();
        std::fs::write(&files[1], key).unwrap();
    };
    write(authority.issue("a", "first"));
    let tls = Tls::trusting(authority.pem().as_bytes()).unwrap().with_identity_files(&files[0], &files[1]).unwrap();
    let servers = servers.with_tls(tls).unwrap();
    let open = || Client::open(servers.clone(), Config::new(TIMEOUT)).0;
    let client = open();
    assert!(user(&client).await.contains("first"));
    // The certificate is replaced, the key is not yet.
    std::fs::write(&files[0], authority.issue("a", "half").0).unwrap();
    assert!(user(&open()).await.contains("first"));
    write(authority.issue("a", "second"));
    assert!(user(&open()).await.contains("second"));
    assert!(user(&client).await.contains("first"), "an open connection keeps its certificate");
}

/// Waits for a connection; returns the error of the first attempt that fails instead.
async fn connects(servers: &Servers) -> Result<(), String> {
    let (client, mut states) = Client::open(servers.clone(), Config::new(TIMEOUT));
    let connected = loop {
        tokio::select! {
            biased;
            state = states.recv() => match state {
                Some(ConnectionState::Connected) => break Ok(()),
                Some(_) => {}
                None => panic!("the driver has ended"),
            },
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
        if let Some(error) = client.connect_errors().remove(0).1 {
            break Err(error);
        }
    };
    client.close();
    while states.recv().await.is_some() {}
    connected
}

#[tokio::test]
async fn a_changed_file_of_authorities_is_used_by_the_next_connection() {
    let (old, new) = (Authority::new(), Authority::new());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, old.pem()).unwrap();
    let tls = Tls::trusting_file(&file).unwrap();
    let mut running = Vec::new();
    let mut servers = Vec::new();
    for authority in [&old, &new] {
        let (certificate, key) = authority.issue("localhost", "server");
        let secured = lockkeeper_server::Tls::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
        let server = Server::start(lockkeeper_server::Config::default().with_tls(secured)).await.unwrap();
        let address: Servers = format!("localhost:{}", server.addr().port()).parse().unwrap();
        servers.push(address.with_tls(tls.clone()).unwrap());
        running.push(server);
    }
    let trusted = async || [connects(&servers[0]).await.is_ok(), connects(&servers[1]).await.is_ok()];
    assert_eq!(trusted().await, [true, false]);
    std::fs::write(&file, format!("{}{}", old.pem(), new.pem())).unwrap();
    assert_eq!(trusted().await, [true, true]);
    std::fs::write(&file, new.pem()).unwrap();
    assert_eq!(trusted().await, [false, true]);
    for unusable in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&file, unusable).unwrap();
        assert_eq!(trusted().await, [false, true], "the authorities before it");
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(trusted().await, [false, true], "the authorities before it");
    let error = connects(&servers[0]).await.unwrap_err();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_server_with_another_name_or_authority_is_not_used() {
    let authority = Authority::new();
    let trusting = |authority: &Authority| {
        let (certificate, key) = authority.issue("a", "user");
        let tls = Tls::trusting(authority.pem().as_bytes()).unwrap();
        tls.with_identity(certificate.as_bytes(), key.as_bytes()).unwrap()
    };
    for (name, trusted) in [("elsewhere", &authority), ("localhost", &Authority::new())] {
        let (_server, servers) = server(&authority, name).await;
        let servers = servers.with_tls(trusting(trusted)).unwrap();
        let (client, mut states) = Client::open(servers, Config::new(TIMEOUT));
        let error = loop {
            match client.connect_errors().remove(0).1 {
                Some(error) => break error,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert!(error.contains("certificate"), "{error}");
        client.close();
        while let Some(state) = states.recv().await {
            assert_ne!(state, ConnectionState::Connected);
        }
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let tls = Tls::trusting(authority.pem().as_bytes()).unwrap();
    let error = tls.clone().with_identity_files("/none/cert.pem", "/none/key.pem").unwrap_err();
    assert_eq!(error.what, "/none/cert.pem");
    assert_eq!(Tls::trusting_file("/none/ca.pem").unwrap_err().what, "/none/ca.pem");
    assert!(Tls::trusting(b"nothing").is_err());
    let ((certificate, _), (_, other)) = (authority.issue("a", "a"), authority.issue("b", "b"));
    assert!(tls.with_identity(certificate.as_bytes(), other.as_bytes()).is_err(), "the key of another certificate");
}
