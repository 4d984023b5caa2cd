//! Fencing over HTTP: a header that carries the token, and a layer that refuses stale requests to a service.
//!
//! A request that changes something carries `Lockkeeper-Token: N`, the token as it is printed: 1 to 19 digits, no sign, no leading
//! zero, once. If the server has seen a greater token for the same resource, it answers 412 Precondition Failed, with that token in
//! the same header. It answers 428 Precondition Required if the header is missing, and 400 if its value is not a token. A client
//! that gets 412 has lost its lock: it must not try again with the same token.
//!
//! The client needs one line: `request.header(lockkeeper_fence::http::HEADER, guard.token().get())`.
//!
//! **Put the layer behind authentication.** It believes the tokens: a client that may send a request that changes something can
//! raise a mark to the end, and then every right token is refused until [`TokenGate::forget`]. With one mark for each path, such a
//! client can also add marks without a limit.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use lockkeeper_core::FencingToken;
use tower_layer::Layer;
use tower_service::Service;

use crate::{Refused, TokenGate};

/// The header that carries the token, in requests and in refusals.
pub const HEADER: HeaderName = HeaderName::from_static("lockkeeper-token");

/// Why the token of a request cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The header is missing.
    #[error("a request that changes something needs the header {HEADER}: the fencing token of the sender's hold")]
    Missing,
    /// The header occurs more than once, so the meant value is unknown.
    #[error("the header {HEADER} occurs more than once; send it once")]
    Repeated,
    /// The value is not a token.
    #[error("the header {HEADER} is not a fencing token: 1 to 19 digits without a leading zero, below 2^63")]
    Malformed,
}

/// Reads the token of a request, with the strict syntax of this module.
///
/// # Errors
/// The header does not occur exactly once, or its value is not a token.
pub fn token(headers: &http::HeaderMap) -> Result<FencingToken, HeaderError> {
    let mut values = headers.get_all(HEADER).iter();
    let value = values.next().ok_or(HeaderError::Missing)?;
    if values.next().is_some() {
        return Err(HeaderError::Repeated);
    }
    value.to_str().ok().and_then(|text| text.parse().ok()).ok_or(HeaderError::Malformed)
}

/// Returns the key of the resource that a request changes. Requests with the same key share a mark.
type KeyOf = dyn Fn(&http::request::Parts) -> String + Send + Sync;

/// Puts a gate in front of a service. A request that changes something passes if no newer token was seen for the same resource.
///
/// `GET`, `HEAD`, `OPTIONS` and `TRACE` pass without a token. The layer keeps the pass until the service has answered. So the
/// request of a newer holder waits for the older requests that are in progress. If a client disconnects, its request and its pass
/// are dropped. What the service has done until then is not undone.
#[derive(Clone)]
pub struct FenceLayer {
    gate: TokenGate,
    key: Arc<KeyOf>,
}

impl FenceLayer {
    /// Makes a layer with one mark for each path: the resource is [the path of the request](path_key), without the query.
    ///
    /// The gate keeps a mark for each path of a request, also if the service answers 404. If your paths are not a fixed set, use
    /// [`FenceLayer::by`], or put the layer on the routes that exist.
    pub fn new(gate: TokenGate) -> Self {
        Self::by(gate, |request| path_key(request.uri.path()))
    }

    /// Makes a layer that gets the resource from `key`: for example one lock for a whole service, or one for each tenant.
    pub fn by(gate: TokenGate, key: impl Fn(&http::request::Parts) -> String + Send + Sync + 'static) -> Self {
        FenceLayer { gate, key: Arc::new(key) }
    }
}

/// Returns one key for all spellings of a path: `/a`, `/a/`, `//a`, `/./a`, `/b/../a` and `/%61` are `/a`.
///
/// `%2F` and `%25` stay, because a decoded slash or percent sign would be another path.
pub fn path_key(path: &str) -> String {
    let mut segments: Vec<String> = Vec::new();
    for segment in path.split('/') {
        let segment = decoded(segment.as_bytes());
        match segment.as_str() {
            "" | "." => {}
            ".." => _ = segments.pop(),
            _ => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

/// Decodes what need not be encoded, and encodes everything else alike.
fn decoded(mut rest: &[u8]) -> String {
    let mut text = String::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        let hex = |at: usize| after.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let (byte, is_encoded) = match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => ((high * 16 + low) as u8, true),
            _ => (*first, false),
        };
        rest = if is_encoded { &after[2..] } else { after };
        let keeps = byte.is_ascii_graphic() && !(is_encoded && matches!(byte, b'/' | b'%'));
        match keeps {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

impl std::fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FenceLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fence<S>;

    fn layer(&self, inner: S) -> Fence<S> {
        Fence { inner, layer: self.clone() }
    }
}

/// A service behind a gate, made by [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct Fence<S> {
    inner: S,
    layer: FenceLayer,
}

impl<S, B, R> Service<Request<B>> for Fence<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String> + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Use the service that is ready; its clone may not be ready (tower's documentation of `Service::poll_ready`).
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let FenceLayer { gate, key } = self.layer.clone();
        Box::pin(async move {
            if [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(request.method()) {
                return inner.call(request).await;
            }
            let (parts, body) = request.into_parts();
            let token = match token(&parts.headers) {
                Ok(token) => token,
                Err(error) => return Ok(unreadable(&error)),
            };
            match gate.enter(&key(&parts), token).await {
                Ok(_pass) => inner.call(Request::from_parts(parts, body)).await,
                Err(refused) => Ok(refusal(&refused)),
            }
        })
    }
}

fn unreadable<R: From<String>>(error: &HeaderError) -> Response<R> {
    let status = match error {
        HeaderError::Missing => StatusCode::PRECONDITION_REQUIRED,
        HeaderError::Repeated | HeaderError::Malformed => StatusCode::BAD_REQUEST,
    };
    answer(status, error.to_string())
}

fn refusal<R: From<String>>(refused: &Refused) -> Response<R> {
    match refused {
        Refused::Stale { highest, .. } => {
            let mut response = answer(StatusCode::PRECONDITION_FAILED, refused.to_string());
            response.headers_mut().insert(HEADER, HeaderValue::from(highest.get()));
            response
        }
        // The details of this failure are not for the client.
        Refused::NotStored { .. } => {
            answer(StatusCode::SERVICE_UNAVAILABLE, "the mark of the token cannot be stored".to_owned())
        }
    }
}

fn answer<R: From<String>>(status: StatusCode, text: String) -> Response<R> {
    let mut response = Response::new(R::from(text + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
