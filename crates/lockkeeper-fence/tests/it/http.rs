//! The layer in front of a real HTTP server, with hand-written requests.

#![cfg(feature = "tower")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::get;
use lockkeeper_fence::TokenGate;
use lockkeeper_fence::http::FenceLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Records the bodies that the service wrote, and holds `/slow` until the test continues it.
#[derive(Clone, Default)]
struct Service {
    written: Arc<Mutex<Vec<String>>>,
    entered: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl Service {
    async fn start(&self, layer: FenceLayer) -> SocketAddr {
        let (plain, slow) = (self.clone(), self.clone());
        let write = async move |body: String| plain.written.lock().unwrap().push(body);
        let wait = async move |body: String| {
            slow.entered.notify_one();
            slow.go_on.notified().await;
            slow.written.lock().unwrap().push(body);
        };
        let router = Router::new()
            .route("/slow", get(async || "read").put(wait))
            .route("/{*rest}", get(async || "read").put(write.clone()).post(write.clone()).delete(write))
            .layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }
}

/// Sends a request and returns the whole response, headers included.
async fn ask(address: SocketAddr, line: &str, headers: &[&str], body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let request =
        format!("{line} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap()
}

#[tokio::test]
async fn a_stale_request_is_answered_412_with_the_newer_token_and_does_not_reach_the_service() {
    let service = Service::default();
    let address = service.start(FenceLayer::new(TokenGate::new())).await;
    let put = async |path: &str, token: &str, body: &str| {
        ask(address, &format!("PUT {path}"), &[&format!("Lockkeeper-Token: {token}")], body).await
    };
    assert_eq!(status(&put("/a", "7", "first").await), "200");
    assert_eq!(status(&put("/a", "7", "second").await), "200");
    let refused = put("/a?x=1", "6", "stale").await;
    assert_eq!(status(&refused), "412");
    assert!(refused.contains("\r\nlockkeeper-token: 7\r\n"), "{refused}");
    assert!(refused.ends_with("token 6 is stale: 7 has been seen\n"), "{refused}");
    // Another resource has its own mark.
    assert_eq!(status(&put("/b", "6", "other").await), "200");
    assert_eq!(status(&ask(address, "DELETE /a", &["lockkeeper-token: 6"], "").await), "412");
    assert_eq!(status(&ask(address, "GET /a", &[], "").await), "200");
    assert_eq!(*service.written.lock().unwrap(), ["first", "second", "other"]);
}

/// Otherwise a newer token through one spelling would not stop an older one through another.
#[tokio::test]
async fn a_path_has_one_mark_however_it_is_spelt() {
    let service = Service::default();
    let address = service.start(FenceLayer::new(TokenGate::new())).await;
    let put = async |path: &str, token: &str| {
        let answer = ask(address, &format!("PUT {path}"), &[&format!("Lockkeeper-Token: {token}")], "body").await;
        status(&answer).to_owned()
    };
    assert_eq!(put("/a/b%2Fc", "7").await, "200");
    for same in ["/a/b%2Fc/", "/a//b%2fc", "/%61/%62%2Fc", "/a/./b%2Fc?x", "/x/../a/b%2Fc", "/x/%2e%2E/a/b%2Fc"] {
        assert_eq!(put(same, "6").await, "412", "{same}");
    }
    for other in ["/a/b/c", "/a/b", "/a/b%252Fc", "/A/b%2Fc"] {
        assert_eq!(put(other, "6").await, "200", "{other}");
    }
}

#[tokio::test]
async fn a_request_without_exactly_one_token_is_refused() {
    let service = Service::default();
    let address = service.start(FenceLayer::by(TokenGate::new(), |_| "all".to_owned())).await;
    let missing = ask(address, "POST /a", &[], "body").await;
    assert_eq!(status(&missing), "428");
    assert!(missing.contains("needs the header lockkeeper-token"), "{missing}");
    let max = "9223372036854775807";
    for bad in ["0", "07", "-1", "+1", "1.5", "1 2", "0x10", "seven", "", "9223372036854775808", "7, 7", "٧"] {
        let answer = ask(address, "POST /a", &[&format!("lockkeeper-token: {bad}")], "body").await;
        assert_eq!(status(&answer), "400", "{bad:?}");
    }
    let twice = ask(address, "POST /a", &["lockkeeper-token: 7", "Lockkeeper-Token: 7"], "body").await;
    assert_eq!(status(&twice), "400");
    assert!(service.written.lock().unwrap().is_empty());
    assert_eq!(status(&ask(address, "POST /a", &[&format!("lockkeeper-token: {max}")], "body").await), "200");
    // All paths share one key.
    assert_eq!(status(&ask(address, "POST /b", &["lockkeeper-token: 7"], "body").await), "412");
}

/// If a request is still in progress when a newer one comes, it finishes first.
#[tokio::test]
async fn a_newer_request_waits_for_an_older_one_in_progress() {
    let service = Service::default();
    let gate = TokenGate::new();
    let address = service.start(FenceLayer::by(gate.clone(), |_| "all".to_owned())).await;
    let older = tokio::spawn(async move { ask(address, "PUT /slow", &["lockkeeper-token: 1"], "older").await });
    service.entered.notified().await;
    let newer = tokio::spawn(async move { ask(address, "PUT /a", &["lockkeeper-token: 2"], "newer").await });
    while gate.highest("all").map(|token| token.get()) != Some(2) {
        tokio::task::yield_now().await;
    }
    assert!(!newer.is_finished() && service.written.lock().unwrap().is_empty());
    service.go_on.notify_one();
    assert_eq!(status(&older.await.unwrap()), "200");
    assert_eq!(status(&newer.await.unwrap()), "200");
    assert_eq!(*service.written.lock().unwrap(), ["older", "newer"]);
}
