//! Where the articles are: the resource that the locks protect, and the one that has the last word.
//!
//! A lock cannot stop a process that was paused between looking at its guard and writing. The shelf can: each write carries
//! the token of its hold, and a write with a smaller token than the article has seen is refused. That works only if the
//! shelf *has seen* the newer token, so whoever gets the lock claims the article before reading it.

#[cfg(feature = "search")]
mod engine;
mod file;

use lockkeeper::FencingToken;

use crate::article::Article;

/// Why the shelf did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    /// The hold is over, though its holder did not know: a later one has been here.
    #[error("article {article} refuses token {token}: a later holder has been here")]
    Stale {
        /// Which article.
        article: String,
        /// The token that came too late.
        token: i64,
    },
    /// No such kind of shelf in this build.
    #[error("{url} is a search engine, and this is a build without: add --features search")]
    NoEngine {
        /// What was given.
        url: String,
    },
    /// The shelf could not be asked, or did not understand.
    #[error("the shelf at {place}: {what}")]
    Broken {
        /// Where it is.
        place: String,
        /// What went wrong.
        what: String,
    },
}

/// A shelf of articles: a file on this machine, or a search engine.
#[derive(Clone, Debug)]
pub enum Shelf {
    /// SQLite, for one machine with nothing installed.
    File(file::File),
    /// OpenSearch.
    #[cfg(feature = "search")]
    Engine(engine::Engine),
}

impl Shelf {
    /// Opens it: an `http://` address is a search engine, anything else a file, which is made if it is not there.
    ///
    /// # Errors
    /// When it cannot be reached or opened.
    pub async fn open(place: &str) -> Result<Self, ShelfError> {
        if place.starts_with("http://") || place.starts_with("https://") {
            #[cfg(feature = "search")]
            return engine::Engine::open(place).await.map(Shelf::Engine);
            #[cfg(not(feature = "search"))]
            return Err(ShelfError::NoEngine { url: place.to_owned() });
        }
        file::File::open(place).map(Shelf::File)
    }

    /// Makes this token the smallest that may write the article, and gives the article as it then is.
    ///
    /// # Errors
    /// [`ShelfError::Stale`] if a later one has been here.
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
    /// [`ShelfError::Stale`] if a later one has been here.
    pub async fn put(&self, article: &Article, token: FencingToken) -> Result<(), ShelfError> {
        match self {
            Shelf::File(file) => file.put(article, token.get()),
            #[cfg(feature = "search")]
            Shelf::Engine(engine) => engine.put(article, token.get()).await,
        }
    }

    /// Writes it without a word about tokens, as those do who trust their lock alone. For the comparison.
    ///
    /// # Errors
    /// When the shelf cannot be written.
    pub async fn put_unfenced(&self, article: &Article) -> Result<(), ShelfError> {
        match self {
            Shelf::File(file) => file.put_unfenced(article),
            #[cfg(feature = "search")]
            Shelf::Engine(engine) => engine.put_unfenced(article).await,
        }
    }

    /// The article, blank if nobody has written it.
    ///
    /// # Errors
    /// When the shelf cannot be read.
    pub async fn get(&self, id: &str) -> Result<Article, ShelfError> {
        match self {
            Shelf::File(file) => file.get(id),
            #[cfg(feature = "search")]
            Shelf::Engine(engine) => Ok(engine.get(id).await?.unwrap_or_else(|| Article::blank(id))),
        }
    }

    /// All that were written, by id.
    ///
    /// # Errors
    /// When the shelf cannot be read.
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
