//! TLS: the same protocol inside, and nothing for whoever comes without.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_server::{Config, Server, ServerError, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
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
async fn who_speaks_plainly_or_trusts_another_gets_nothing() {
    let (trusted, chain, key) = certificate();
    let tls = Tls::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let server = Server::start(Config::default().with_tls(tls)).await.unwrap();
    let mut plain = TcpStream::connect(server.addr()).await.unwrap();
    plain.write_all(b"srvr").await.unwrap();
    plain.write_all(&[0; 64]).await.unwrap();
    let mut told = Vec::new();
    // A TLS alert or nothing at all, but no word of the server's.
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
}
