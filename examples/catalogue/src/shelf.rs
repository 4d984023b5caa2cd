//! The shelf stores the articles: it is the resource that the locks protect, and it decides which writes count.
//!
//! A lock cannot stop a process that was paused between the check of its guard and the write. The shelf can: each write carries the
//! token of its hold, and the shelf refuses a token smaller than the greatest one that the article has seen. That works only if the
//! shelf *has seen* the newer token. So a new holder claims the article before it reads it.

#[cfg(feature = "search")]
mod engine;
mod file;

use lockkeeper::FencingToken;

use crate::article::Article;

/// Why the shelf refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    /// The hold was lost, although its holder did not know: a later holder has been here.
    #[error("article {article} refuses token {token}: a later holder has been here")]
    Stale {
        /// The article.
        article: String,
        /// The stale token.
        token: i64,
    },
    /// This build does not support this kind of shelf.
    #[error("{url} is a search engine, which this build does not support: build with --features search")]
    NoEngine {
        /// The given address.
        url: String,
    },
    /// The shelf could not be reached, or answered with an error.
    #[error("the shelf at {place}: {what}")]
    Broken {
        /// The shelf's place.
        place: String,
        /// The error.
        what: String,
    },
}

/// A shelf of articles: a file on this machine, or a search engine.
#[derive(Clone, Debug)]
pub enum Shelf {
    /// SQLite, for one machine without other software.
    File(file::File),
    /// OpenSearch.
    #[cfg(feature = "search")]
    Engine(engine::Engine),
}

impl Shelf {
    /// Opens a shelf. An `http://` address is a search engine; anything else is a file, which is created if it is missing.
    ///
    /// # Errors
    /// The shelf cannot be reached or opened.
    pub async fn open(place: &str) -> Result<Self, ShelfError> {
        if place.starts_with("http://") || place.starts_with("https://") {
            #[cfg(feature = "search")]
            return engine::Engine::open(place).await.map(Shelf::Engine);
            #[cfg(not(feature = "search"))]
            return Err(ShelfError::NoEngine { url: place.to_owned() });
        }
        file::File::open(place).map(Shelf::File)
    }

    /// Makes this token the smallest that may write the article, and returns the article.
    ///
    /// # Errors
    /// [`ShelfError::Stale`] if a later holder has been here.
    pub async fn claim(&self, id: &str, token: FencingToken) -> Result<Article, ShelfError> {
        match self {
            Shelf::File(file) => file.claim(id, token.get()),
            #[cfg(feature = "search")]
            Shelf::Engine(engine) => engine.claim(id, token.get()).await,
        }
    }

    /// Writes the article.
    ///
    /// # Errors
    /// [`ShelfError::Stale`] if a later holder has been here.
    pub async fn put(&self, article: &Article, token: FencingToken) -> Result<(), ShelfError> {
        match self {
            Shelf::File(file) => file.put(article, token.get()),
            #[cfg(feature = "search")]
            Shelf::Engine(engine) => engine.put(article, token.get()).await,
        }
    }

    /// Writes the article without a token, as clients do that trust only their lock. Used for comparison.
    ///
    /// # Errors
    /// The shelf cannot be written.
    pub async fn put_unfenced(&self, article: &Article) -> Result<(), ShelfError> {
        match self {
            Shelf::File(file) => file.put_unfenced(article),
            #[cfg(feature = "search")]
            Shelf::Engine(engine) => engine.put_unfenced(article).await,
        }
    }

    /// Returns the article, blank if it was never written.
    ///
    /// # Errors
    /// The shelf cannot be read.
    pub async fn get(&self, id: &str) -> Result<Article, ShelfError> {
        match self {
            Shelf::File(file) => file.get(id),
            #[cfg(feature = "search")]
            Shelf::Engine(engine) => Ok(engine.get(id).await?.unwrap_or_else(|| Article::blank(id))),
        }
    }

    /// Returns all articles that were written, ordered by id.
    ///
    /// # Errors
    /// The shelf cannot be read.
    pub async fn list(&self) -> Result<Vec<Article>, ShelfError> {
        let mut all = match self {
            Shelf::File(file) => file.list()?,
            #[cfg(feature = "search")]
            Shelf::Engine(engine) => engine.list().await?,
        };
        all.retain(|article| article.revision() > 0);
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }
}
