//! The service: people save articles over HTTP, and start bulk propagations, which workers carry out in the background.
//!
//! `PUT /articles/P1/title` saves the new text and answers within the time that a person waits. It is served before all background
//! work. `POST /propagate/price` changes a field of every article. `GET /articles` lists them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use lockkeeper::contentserv::{MonitorError, TASK_TIMEOUT};
use serde::Serialize;
use tokio::sync::Notify;

use crate::article::{Article, Change};
use crate::shelf::ShelfError;
use crate::stage::Stage;
use crate::work::{AttemptError, Class, Job, Place, with_causes};

/// Numbers the people for the picture, and queues the work of the workers.
#[derive(Debug, Default)]
struct Counts {
    people: u32,
    queue: VecDeque<(String, Change)>,
}

/// The service and its workers.
#[derive(Clone, Debug)]
pub struct Service {
    place: Place,
    stage: Stage,
    retries: u32,
    takes: Duration,
    counts: Arc<Mutex<Counts>>,
    work: Arc<Notify>,
}

/// The body of an error response.
#[derive(Debug, Serialize)]
struct Trouble {
    error: String,
}

impl IntoResponse for AttemptError {
    fn into_response(self) -> Response {
        let status = match &self {
            // Another client held the lock for longer than a person waits.
            AttemptError::Lock(MonitorError::InstanceLock { .. }) => StatusCode::SERVICE_UNAVAILABLE,
            AttemptError::Lock(MonitorError::Other { .. }) => StatusCode::BAD_REQUEST,
            AttemptError::Shelf(ShelfError::Stale { .. }) | AttemptError::Lost(_) => StatusCode::CONFLICT,
            AttemptError::Lock(_) | AttemptError::Shelf(_) => StatusCode::BAD_GATEWAY,
        };
        (status, Json(Trouble { error: with_causes(&self) })).into_response()
    }
}

impl IntoResponse for ShelfError {
    fn into_response(self) -> Response {
        AttemptError::Shelf(self).into_response()
    }
}

impl Service {
    /// Makes a service for these places, with up to `retries` retries of background work and the duration `takes` of each change.
    pub fn new(place: Place, stage: Stage, retries: u32, takes: Duration) -> Self {
        Service { place, stage, retries, takes, counts: Arc::default(), work: Arc::default() }
    }

    /// Returns the HTTP routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/articles", get(list))
            .route("/articles/{id}", get(show))
            .route("/articles/{id}/{field}", put(save))
            .route("/propagate/{field}", post(propagate))
            .with_state(self)
    }

    /// Runs one worker, which executes one step of a propagation after the other. It never returns.
    ///
    /// # Cancel safety
    /// Dropping it between two steps leaves no step half done.
    pub async fn worker(self, number: u32) {
        let who = format!("worker {number}");
        loop {
            let next = self.counts.lock().unwrap_or_else(PoisonError::into_inner).queue.pop_front();
            let Some((article, change)) = next else {
                self.work.notified().await;
                continue;
            };
            let job = self.job(who.clone(), Class::Background, article, change);
            // The scene shows the outcome, also a failure.
            drop(self.perform(job).await);
            // Another sleeping worker may have missed that there is more work.
            self.work.notify_one();
        }
    }

    fn job(&self, who: String, class: Class, article: String, change: Change) -> Job {
        Job { who, class, article, change, timeout: TASK_TIMEOUT, retries: self.retries, fenced: true }
    }

    async fn perform(&self, job: Job) -> Result<Article, AttemptError> {
        if !self.stage.watch().borrow().queues.contains_key(&job.article) {
            self.stage.follow(&job.article);
        }
        self.stage.change(|scene| scene.enters(&job.who, &job.article));
        let work = || tokio::time::sleep(self.takes);
        self.place.perform(&job, work, |report| self.stage.change(|scene| scene.report(&job.who, &report))).await
    }
}

async fn list(State(service): State<Service>) -> Result<Json<Vec<Article>>, ShelfError> {
    service.place.shelf.list().await.map(Json)
}

async fn show(State(service): State<Service>, Path(id): Path<String>) -> Result<Json<Article>, ShelfError> {
    service.place.shelf.get(&id).await.map(Json)
}

async fn save(
    State(service): State<Service>,
    Path((id, field)): Path<(String, String)>,
    value: String,
) -> Result<Json<Article>, AttemptError> {
    let number = {
        let mut counts = service.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.people += 1;
        counts.people
    };
    let job = service.job(format!("person {number}"), Class::Foreground, id, Change::new(&field, &value));
    service.perform(job).await.map(Json)
}

/// The number of changes that were started.
#[derive(Debug, Serialize)]
struct Begun {
    articles: usize,
}

async fn propagate(
    State(service): State<Service>,
    Path(field): Path<String>,
    value: String,
) -> Result<(StatusCode, Json<Begun>), ShelfError> {
    let all = service.place.shelf.list().await?;
    let articles = all.len();
    let steps = all.into_iter().map(|article| (article.id, Change::new(&field, &value)));
    service.counts.lock().unwrap_or_else(PoisonError::into_inner).queue.extend(steps);
    service.work.notify_waiters();
    service.work.notify_one();
    Ok((StatusCode::ACCEPTED, Json(Begun { articles })))
}
