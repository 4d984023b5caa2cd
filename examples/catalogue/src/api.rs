//! The service: people save articles over HTTP, and start bulk propagations that workers carry out in the background.
//!
//! `PUT /articles/P1/title` with the new text answers when it is saved, within the time a person waits; it is served before all
//! of the background. `POST /propagate/price` changes a field of every article; `GET /articles` shows them.

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
use crate::work::{Class, Job, Place, Setback, said};

/// How many people may have saved so far: each gets a number, for the picture.
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

/// What a refused request is told.
#[derive(Debug, Serialize)]
struct Trouble {
    error: String,
}

impl IntoResponse for Setback {
    fn into_response(self) -> Response {
        let status = match &self {
            // Somebody else has it for longer than a person waits.
            Setback::Lock(MonitorError::InstanceLock { .. }) => StatusCode::SERVICE_UNAVAILABLE,
            Setback::Lock(MonitorError::Other { .. }) => StatusCode::BAD_REQUEST,
            Setback::Shelf(ShelfError::Stale { .. }) | Setback::Lost(_) => StatusCode::CONFLICT,
            Setback::Lock(_) | Setback::Shelf(_) => StatusCode::BAD_GATEWAY,
        };
        (status, Json(Trouble { error: said(&self) })).into_response()
    }
}

impl IntoResponse for ShelfError {
    fn into_response(self) -> Response {
        Setback::Shelf(self).into_response()
    }
}

impl Service {
    /// A service over these places; background work is tried again so often, and each change takes so long to make.
    pub fn new(place: Place, stage: Stage, retries: u32, takes: Duration) -> Self {
        Service { place, stage, retries, takes, counts: Arc::default(), work: Arc::default() }
    }

    /// What answers HTTP.
    pub fn router(self) -> Router {
        Router::new()
            .route("/articles", get(list))
            .route("/articles/{id}", get(show))
            .route("/articles/{id}/{field}", put(save))
            .route("/propagate/{field}", post(propagate))
            .with_state(self)
    }

    /// One worker: takes a step of a propagation after the other. Never returns; dropped between two steps it leaves
    /// nothing half done.
    pub async fn worker(self, number: u32) {
        let who = format!("worker {number}");
        loop {
            let next = self.counts.lock().unwrap_or_else(PoisonError::into_inner).queue.pop_front();
            let Some((article, change)) = next else {
                self.work.notified().await;
                continue;
            };
            let job = self.job(who.clone(), Class::Background, article, change);
            // What happened is in the scene, a failure too.
            drop(self.perform(job).await);
            // Whoever else sleeps may have missed that there is more.
            self.work.notify_one();
        }
    }

    fn job(&self, who: String, class: Class, article: String, change: Change) -> Job {
        Job { who, class, article, change, timeout: TASK_TIMEOUT, retries: self.retries, fenced: true }
    }

    async fn perform(&self, job: Job) -> Result<Article, Setback> {
        if !self.stage.watch().borrow().queues.contains_key(&job.article) {
            self.stage.follow(&job.article);
        }
        self.stage.change(|scene| scene.enters(&job.who, &job.article));
        let work = || tokio::time::sleep(self.takes);
        self.place.perform(&job, work, |told| self.stage.change(|scene| scene.told(&job.who, &told))).await
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
) -> Result<Json<Article>, Setback> {
    let number = {
        let mut counts = service.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.people += 1;
        counts.people
    };
    let job = service.job(format!("person {number}"), Class::Foreground, id, Change::new(&field, &value));
    service.perform(job).await.map(Json)
}

/// How much was begun.
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
