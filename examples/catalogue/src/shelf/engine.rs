//! The shelf in OpenSearch: the token is the document's external version, so the engine itself refuses a stale holder.
//!
//! `external_gte` accepts the current version and any larger one, so a holder may write several times.

use opensearch::http::StatusCode;
use opensearch::http::response::Response;
use opensearch::http::transport::Transport;
use opensearch::indices::IndicesRefreshParts;
use opensearch::params::VersionType;
use opensearch::{GetParts, IndexParts, OpenSearch, SearchParts};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::ShelfError;
use crate::article::Article;

/// The index of the articles.
const INDEX: &str = "articles";
/// The engine's own limit for one page; more than the example ever has.
const PAGE: i64 = 10_000;

#[derive(Clone, Debug)]
pub struct Engine {
    client: OpenSearch,
    place: String,
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "_source")]
    source: Article,
}

#[derive(Deserialize)]
struct Found {
    hits: Hits,
}

#[derive(Deserialize)]
struct Hits {
    hits: Vec<Document>,
}

impl Engine {
    pub(super) async fn open(place: &str) -> Result<Self, ShelfError> {
        let broken =
            |error: opensearch::Error| ShelfError::Broken { place: place.to_owned(), what: with_causes(&error) };
        let client = OpenSearch::new(Transport::single_node(place).map_err(broken)?);
        client.ping().send().await.and_then(Response::error_for_status_code).map_err(broken)?;
        Ok(Engine { client, place: place.to_owned() })
    }

    /// Writes the document unchanged with our token as its version. From then on the engine accepts no smaller token. A stale write
    /// between the read and this write is undone by it. Its client has not reported that write as done, because every writer checks
    /// its guard again after the write.
    pub(super) async fn claim(&self, id: &str, token: i64) -> Result<Article, ShelfError> {
        let article = self.get(id).await?.unwrap_or_else(|| Article::blank(id));
        self.put(&article, token).await?;
        Ok(article)
    }

    pub(super) async fn put(&self, article: &Article, token: i64) -> Result<(), ShelfError> {
        let request = self.client.index(IndexParts::IndexId(INDEX, &article.id));
        let request = request.version(token).version_type(VersionType::ExternalGte).body(article);
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        if response.status_code() == StatusCode::CONFLICT {
            return Err(ShelfError::Stale { article: article.id.clone(), token });
        }
        response.error_for_status_code().map(drop).map_err(|error| self.broken(&error))
    }

    pub(super) async fn put_unfenced(&self, article: &Article) -> Result<(), ShelfError> {
        let response = self.client.index(IndexParts::IndexId(INDEX, &article.id)).body(article).send().await;
        response.and_then(Response::error_for_status_code).map(drop).map_err(|error| self.broken(&error))
    }

    pub(super) async fn get(&self, id: &str) -> Result<Option<Article>, ShelfError> {
        let response =
            self.client.get(GetParts::IndexId(INDEX, id)).send().await.map_err(|error| self.broken(&error))?;
        if response.status_code() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        self.read::<Document>(response).await.map(|document| Some(document.source))
    }

    pub(super) async fn list(&self) -> Result<Vec<Article>, ShelfError> {
        // A search sees only refreshed documents; a get sees every write immediately.
        let refreshed = self.client.indices().refresh(IndicesRefreshParts::Index(&[INDEX])).send().await;
        if refreshed.map_err(|error| self.broken(&error))?.status_code() == StatusCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        let response = self.client.search(SearchParts::Index(&[INDEX])).size(PAGE).send().await;
        let response = response.map_err(|error| self.broken(&error))?;
        self.read::<Found>(response).await.map(|found| found.hits.hits.into_iter().map(|hit| hit.source).collect())
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, ShelfError> {
        let response = response.error_for_status_code().map_err(|error| self.broken(&error))?;
        response.json().await.map_err(|error| self.broken(&error))
    }

    fn broken(&self, error: &opensearch::Error) -> ShelfError {
        ShelfError::Broken { place: self.place.clone(), what: with_causes(error) }
    }
}

/// Returns the error with its causes.
fn with_causes(error: &opensearch::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}
