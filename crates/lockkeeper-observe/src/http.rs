//! The HTTP service of an observation, for Prometheus and for programs. Read-only, and without a login: listen on loopback.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | the metrics, as OpenMetrics text |
//! | `/state.json` | all locks with contenders as they are now ([`Snapshot`](crate::watch::Snapshot)) |
//! | `/history.jsonl` | the journal, the oldest fact first, if there is one |
//! | `/healthz` | 200 while the changes of all trees are seen, 503 otherwise |
//!
//! The page for a browser is in [`page`](crate::page).
//!
//! There are at most 64 connections. One more takes the place of the one that has been silent for the longest time. A connection
//! ends when 10 s have passed without a whole request, or without the client reading its answer.
//!
//! A request that names another host than an address or `localhost` is refused, so that a web page of another site cannot read the
//! answers through its visitor's browser.

mod places;

use std::io;
use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use self::places::Places;
use crate::watch::{Journal, Observation};

/// The type of the metrics' text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How many bytes of the journal are read at once.
const PIECE: usize = 64 << 10;

/// How many clients read the journal at once: each has all its files open.
static READERS: Semaphore = Semaphore::const_new(4);

/// Returns the service of an observation. A program may add its own paths.
pub fn router(observation: Observation) -> Router {
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/state.json", get(state))
        .route("/history.jsonl", get(history))
        .route("/healthz", get(health));
    routes.with_state(observation)
}

/// Refuses requests that name another host than an address, `localhost` or one of `hosts`.
pub fn guarded(router: Router, hosts: Vec<String>) -> Router {
    router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let admitted = is_admitted(&request, &hosts);
        async move {
            if admitted {
                return next.run(request).await;
            }
            (StatusCode::MISDIRECTED_REQUEST, "this name of the machine is not allowed: use its address\n")
                .into_response()
        }
    }))
}

fn is_admitted(request: &Request, hosts: &[String]) -> bool {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = header.or_else(|| request.uri().authority().map(|authority| authority.as_str())) else {
        // HTTP/1.0 names none. A browser does.
        return true;
    };
    let is_address = host.parse::<SocketAddr>().is_ok() || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    is_address || name.eq_ignore_ascii_case("localhost") || hosts.iter().any(|host| name.eq_ignore_ascii_case(host))
}

/// Serves until the future is dropped.
///
/// # Errors
///
/// The listener failed.
pub async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    axum::serve(Places::new(listener), router).await
}

async fn metrics(State(observation): State<Observation>) -> Response {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], observation.metrics()).into_response()
}

async fn state(State(observation): State<Observation>) -> Response {
    match serde_json::to_string(&observation.snapshot()) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn health(State(observation): State<Observation>) -> Response {
    let trees = observation.trees();
    let lines: String = trees
        .iter()
        .map(|(root, connected)| format!("{root} {}\n", if *connected { "seen" } else { "not seen" }))
        .collect();
    let all = trees.iter().all(|(_, connected)| *connected);
    (if all { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, lines).into_response()
}

async fn history(State(observation): State<Observation>) -> Response {
    let Some(dir) = observation.journal_dir() else {
        return (StatusCode::NOT_FOUND, "this observer writes no journal\n").into_response();
    };
    let Ok(reader) = READERS.try_acquire() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many clients read the journal; try again later\n")
            .into_response();
    };
    // Opened at once: a file that gets another name meanwhile stays the same file.
    let files = tokio::task::spawn_blocking(move || {
        let files = Journal::files(&dir).into_iter().filter_map(|path| std::fs::File::open(path).ok());
        files.map(tokio::fs::File::from_std).rev().collect::<Vec<_>>()
    });
    let Ok(files) = files.await else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let pieces = stream::try_unfold((files, reader), |(mut files, reader)| async move {
        loop {
            let Some(file) = files.last_mut() else { return Ok::<_, io::Error>(None) };
            let mut piece = vec![0; PIECE];
            let read = file.read(&mut piece).await?;
            if read > 0 {
                piece.truncate(read);
                return Ok(Some((piece, (files, reader))));
            }
            files.pop();
        }
    });
    ([(header::CONTENT_TYPE, "application/jsonl")], Body::from_stream(pieces)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_known_names_are_admitted() {
        let admits = |host: &str| {
            let request = Request::builder().header(header::HOST, host).body(Body::empty()).unwrap();
            is_admitted(&request, &["zk1.example".to_owned()])
        };
        for host in
            ["127.0.0.1:9750", "10.0.0.7", "[::1]:9750", "[::1]", "localhost:9750", "LOCALHOST", "zk1.example:9750"]
        {
            assert!(admits(host), "{host}");
        }
        for host in ["evil.example", "evil.example:9750", "localhost.evil.example", "127.0.0.1.evil.example:80"] {
            assert!(!admits(host), "{host}");
        }
    }
}
