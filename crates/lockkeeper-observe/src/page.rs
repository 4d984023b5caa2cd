//! The web page of an observation, for a browser. Read-only, and without a login: listen on loopback, and use
//! [`http::guarded`](crate::http::guarded).
//!
//! | path | answer |
//! |---|---|
//! | `/` | the locks that are waited for most, with their last hour, the deadlocks and the jobs |
//! | `/lock?path=PATH` | one lock: its queue, its last holds, who waits |
//! | `/events` | an event for each change, at most one in a second |
//! | `/page.css`, `/page.js` | parts of the page |
//!
//! The server renders the page as a whole, so it works without scripts. A script shows the changes. Nothing comes from another host.

mod jobs;
mod lanes;
mod parts;
mod rings;
mod view;

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{self, Stream};
use percent_encoding::percent_decode_str;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::watch::Observation;
pub use parts::Command;

/// Maximum locks on the page. The rest are counted.
const LOCKS: usize = 100;

/// Maximum holders, waiters and holds of a lock that are gone through for the page of all locks.
const EACH: usize = 500;

/// The same for the page of one lock.
const EACH_OF_ONE: usize = 1_000;

/// Maximum pages that follow the changes.
const FOLLOWERS: usize = 64;

/// The shortest time between two events. All pages get them at the same moments, so that one drawing serves them.
const PAUSE: Duration = Duration::from_secs(1);

/// After this time without a change, the page is drawn again: ages grow, and bars move.
const REFRESH: Duration = Duration::from_secs(15);

/// The pause after which a stream of events without an event has a comment.
const ALIVE: Duration = Duration::from_secs(5);

/// What a page may load: only its own parts. No other site may show it in a frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[derive(Clone)]
struct Page {
    observation: Observation,
    command: Arc<Command>,
    followers: Arc<Semaphore>,
    ticks: Ticks,
    /// The page of all locks, and the tick after which it was drawn.
    drawn: Arc<Mutex<(u32, Bytes)>>,
}

/// The moments of events: one each [`PAUSE`].
#[derive(Clone, Copy, Debug)]
struct Ticks(Instant);

impl Ticks {
    /// The number of the last one.
    fn last(self) -> u32 {
        u32::try_from(self.0.elapsed().as_millis() / PAUSE.as_millis()).unwrap_or(u32::MAX - 1) + 1
    }

    fn next(self) -> Instant {
        self.0 + PAUSE * self.last()
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").finish_non_exhaustive()
    }
}

/// Returns the page of an observation. It shows the commands that tell more, which `command` makes of their words: a program knows how
/// it reaches the servers.
pub fn router(observation: Observation, command: impl Fn(&[&str]) -> String + Send + Sync + 'static) -> Router {
    let followers = Arc::new(Semaphore::new(FOLLOWERS));
    let (ticks, drawn) = (Ticks(Instant::now()), Arc::default());
    let page = Page { observation, command: Arc::new(command), followers, ticks, drawn };
    let part = |kind: &'static str, text: &'static str| get(async move || ([(header::CONTENT_TYPE, kind)], text));
    let routes = Router::new()
        .route("/", get(all))
        .route("/lock", get(one))
        .route("/events", get(events))
        .route("/page.css", part("text/css; charset=utf-8", include_str!("page/page.css")))
        .route("/page.js", part("text/javascript; charset=utf-8", include_str!("page/page.js")));
    routes.layer(middleware::map_response(with_headers)).with_state(page)
}

async fn with_headers(mut response: Response) -> Response {
    const HEADERS: [(HeaderName, &str); 5] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn all(State(page): State<Page>) -> Response {
    let tick = page.ticks.last();
    let mut drawn = page.drawn.lock().unwrap_or_else(PoisonError::into_inner);
    // An event about a later change comes with the next tick.
    if drawn.0 != tick {
        let glance = page.observation.glance(LOCKS, EACH);
        *drawn = (tick, view::all(&glance, &*page.command).into_string().into());
    }
    Html(drawn.1.clone()).into_response()
}

async fn one(State(page): State<Page>, RawQuery(query): RawQuery) -> Response {
    match query.as_deref().and_then(path_of) {
        Some(path) => {
            let glance = page.observation.glance_at(&path, EACH_OF_ONE);
            Html(view::one(&glance, &*page.command).into_string()).into_response()
        }
        None => (StatusCode::BAD_REQUEST, "the address of a lock's page is /lock?path=PATH\n").into_response(),
    }
}

/// Returns the path that a query names.
fn path_of(query: &str) -> Option<String> {
    let encoded = query.split('&').find_map(|part| part.strip_prefix("path="))?;
    let path = percent_decode_str(encoded).decode_utf8().ok()?;
    path.starts_with('/').then(|| path.into_owned())
}

async fn events(State(page): State<Page>) -> Response {
    let Ok(permit) = page.followers.clone().try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages follow the changes\n").into_response();
    };
    let events = events_of(page.observation.changes(), page.ticks);
    let held = stream::unfold((Box::pin(events), permit), async |(mut events, permit)| {
        let event = futures_util::StreamExt::next(&mut events).await?;
        Some((event, (events, permit)))
    });
    // The connection of a silent client would end.
    Sse::new(held).keep_alive(KeepAlive::new().interval(ALIVE)).into_response()
}

/// An event soon, because the page may be older than this stream, and then one for each change.
fn events_of(changes: watch::Receiver<u64>, ticks: Ticks) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold((changes, false), move |(mut changes, has_begun)| async move {
        if has_begun {
            tokio::select! {
                changed = changes.changed() => changed.ok()?,
                () = sleep(REFRESH) => {}
            }
        }
        sleep_until(ticks.next()).await;
        let version = *changes.borrow_and_update();
        Some((Ok(Event::default().data(version.to_string())), (changes, true)))
    })
}

#[cfg(test)]
pub(crate) mod tests;
