//! TLS: the same protocol inside, and no answer without it.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_server::{Config, Server, ServerError, Tls};
use rcgen::{BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::client::*;

fn certificate() -> (CertificateDer<'static>, String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    (made.cert.der().clone(), made.cert.pem(), made.signing_key.serialize_pem())
}

async fn connect(server: &Server, trusted: CertificateDer<'static>) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.addr()).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

async fn send(stream: &mut TlsStream<TcpStream>, body: &[u8]) {
    stream.write_all(&u32::try_from(body.len()).unwrap().to_be_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream.flush().await.unwrap();
}

async fn receive(stream: &mut TlsStream<TcpStream>) -> Vec<u8> {
    let len = stream.read_u32().await.unwrap();
    let mut body = vec![0; len as usize];
    stream.read_exact(&mut body).await.unwrap();
    body
}

#[tokio::test]
async fn a_session_works_inside_tls_with_frames_of_any_size() {
    let (trusted, chain, key) = certificate();
    let tls = Tls::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let server = Server::start(Config::default().with_tls(tls)).await.unwrap();
    let mut stream = connect(&server, trusted).await.unwrap();
    send(&mut stream, &connect_frame(0, 10_000, 0, &[0; 16]).flag(false).0).await;
    assert_ne!(receive(&mut stream).await[8..16], [0; 8], "a session");
    let data = vec![7; 900_000];
    send(&mut stream, &bytes().int(1).int(CREATE).create("/big", &data, 0).0).await;
    assert_eq!(receive(&mut stream).await[12..16], [0; 4]);
    send(&mut stream, &bytes().int(2).int(GET_DATA).text("/big").flag(false).0).await;
    let answer = receive(&mut stream).await;
    assert_eq!(answer[20..20 + data.len()], data);
    send(&mut stream, &bytes().int(3).int(CLOSE_SESSION).0).await;
    assert_eq!(receive(&mut stream).await.len(), 16);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "and an end in TLS, too");
    while server.stats().connections > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_plain_client_and_one_that_trusts_another_authority_get_no_answer() {
    let (trusted, chain, key) = certificate();
    let tls = Tls::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let server = Server::start(Config::default().with_tls(tls)).await.unwrap();
    let mut plain = TcpStream::connect(server.addr()).await.unwrap();
    plain.write_all(b"srvr").await.unwrap();
    plain.write_all(&[0; 64]).await.unwrap();
    let mut told = Vec::new();
    // A TLS alert or nothing, but no frame of the server.
    let _ = plain.read_to_end(&mut told).await;
    assert!(!String::from_utf8_lossy(&told).contains("ookeeper"));
    assert!(connect(&server, certificate().0).await.is_err(), "not the certificate it trusts");
    connect(&server, trusted).await.unwrap();
    assert_eq!(server.stats().sessions, 0);
}

#[test]
fn a_certificate_or_key_of_no_use_is_refused_with_a_way_out() {
    let ((_, chain, key), (_, _, other)) = (certificate(), certificate());
    for (chain, key) in [("", key.as_str()), (&chain, ""), (&chain, &other), (&key, &chain), ("nonsense", "nonsense")] {
        let error = Tls::from_pem(chain.as_bytes(), key.as_bytes()).unwrap_err();
        assert!(matches!(error, ServerError::Tls { .. }) && !error.hint().is_empty(), "{error}");
    }
    for authorities in ["", "nonsense", &key] {
        let error = Tls::mutual(chain.as_bytes(), key.as_bytes(), authorities.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("authorities"), "{error}");
    }
}

/// A certificate authority, with certificates for servers and clients.
struct Authority(Issuer<'static, KeyPair>, String);

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self(Issuer::new(params, key), certificate)
    }

    /// A certificate for `localhost`, and its key.
    fn certify(&self, name: &str) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Acme, Inc.");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }
}

/// Connects with or without a certificate.
async fn introduce(
    server: &Server,
    trusted: &Authority,
    own: Option<(Certificate, KeyPair)>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.1.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .unwrap(),
    };
    let stream = TcpStream::connect(server.addr()).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // In TLS 1.3 a client learns that its certificate is refused only when it writes or reads.
    let greeting = connect_frame(0, 10_000, 0, &[0; 16]).flag(false).0;
    stream.write_u32(greeting.len().try_into().unwrap()).await?;
    stream.write_all(&greeting).await?;
    stream.flush().await?;
    let len = stream.read_u32().await?;
    stream.read_exact(&mut vec![0; len as usize]).await?;
    Ok(stream)
}

async fn call(stream: &mut TlsStream<TcpStream>, op: i32, body: Bytes) -> (i32, Vec<u8>) {
    send(stream, &bytes().int(1).int(op).0.into_iter().chain(body.0).collect::<Vec<_>>()).await;
    let answer = receive(stream).await;
    (i32::from_be_bytes(answer[12..16].try_into().unwrap()), answer[16..].to_vec())
}

/// The same result as Apache's `X509AuthenticationProvider` has with a client's certificate.
#[tokio::test]
async fn a_certificate_is_an_identity_of_access_lists() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (chain, key) = authority.certify("server");
    let (chain, key) = (chain.pem(), key.serialize_pem());
    let tls = Tls::mutual(chain.as_bytes(), key.as_bytes(), authority.1.as_bytes()).unwrap();
    let server = Server::start(Config::default().with_tls(tls)).await.unwrap();
    assert!(introduce(&server, &authority, None).await.is_err(), "nobody");
    assert!(introduce(&server, &authority, Some(stranger.certify("build"))).await.is_err(), "another authority's");

    let mut build = introduce(&server, &authority, Some(authority.certify("build"))).await.unwrap();
    let mut other = introduce(&server, &authority, Some(authority.certify("other"))).await.unwrap();
    let node = |path: &str, scheme: &str, id: &str| {
        bytes().text(path).buffer(b"data").int(1).int(31).text(scheme).text(id).int(0)
    };
    assert_eq!(call(&mut build, CREATE, node("/auth", "auth", "")).await.0, 0);
    assert_eq!(call(&mut other, CREATE, node("/named", "x509", r"CN=build,O=Acme\, Inc.")).await.0, 0);
    for path in ["/auth", "/named"] {
        let read = || bytes().text(path).flag(false);
        assert_eq!(call(&mut build, GET_DATA, read()).await.0, 0, "{path}");
        assert_eq!(call(&mut other, GET_DATA, read()).await.0, -102, "{path}");
    }
    let (_, list) = call(&mut build, GET_ACL, bytes().text("/auth")).await;
    let expected = bytes().int(1).int(31).text("x509").text(r"CN=build,O=Acme\, Inc.").0;
    assert_eq!(list[..expected.len()], expected);
    assert_eq!(call(&mut build, CREATE, node("/bad", "x509", "build")).await.0, -114, "no name of a certificate's");
    let (error, who) = call(&mut build, WHO_AM_I, bytes()).await;
    assert_eq!(error, 0);
    assert_eq!(who, bytes().int(2).text("ip").text("127.0.0.1").text("x509").text(r"CN=build,O=Acme\, Inc.").0);
}
