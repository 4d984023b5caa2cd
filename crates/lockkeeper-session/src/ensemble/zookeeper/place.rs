//! Connections to a server that may move, and that must be started if it does not run.

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use lockkeeper_client::{Connect, Searching, Servers};

use crate::error::SessionError;

/// Finds a server that may have moved or ended since the last connection, and starts it if necessary.
pub(crate) trait Locate: Send + Sync {
    /// Returns where the server is now. Called before each connection. Dropping the future leaves a server that was
    /// being started.
    fn locate(self: Arc<Self>) -> Locating;
}

/// The result of [`Locate::locate`].
pub(crate) type Locating = BoxFuture<'static, Result<Located, SessionError>>;

/// Where a server is.
#[derive(Clone)]
pub(crate) struct Located {
    pub(crate) servers: Servers,
}

/// The place of such a server.
pub(super) struct ServerPlace {
    pub(super) locate: Arc<dyn Locate>,
    pub(super) name: String,
    pub(super) search: Arc<Mutex<Search>>,
}

/// What is known of the place.
#[derive(Default)]
pub(super) struct Search {
    /// The search under way. It outlives an attempt to connect, because starting a server may take longer.
    under_way: Option<Shared<Locating>>,
    /// Why the last search failed.
    failure: Option<SessionError>,
}

impl Search {
    /// Takes the failure of the last search.
    pub(super) fn take_failure(&mut self) -> Option<SessionError> {
        self.failure.take()
    }
}

impl Connect for ServerPlace {
    fn servers(&self) -> usize {
        1
    }

    fn connect(&self, _server: usize) -> Searching {
        let search = self.search.clone();
        let locating = {
            let mut search = search.lock().expect("held for a change only");
            search.under_way.get_or_insert_with(|| self.locate.clone().locate().shared()).clone()
        };
        Box::pin(async move {
            let located = locating.await;
            {
                let mut search = search.lock().expect("held for a change only");
                search.under_way = None;
                search.failure = located.as_ref().err().cloned();
            }
            let Located { servers } = located.map_err(|error| {
                tracing::debug!(%error, "the server cannot be found or started");
                io::Error::other(format!("cannot be found or started ({error})"))
            })?;
            servers.connect(0).await
        })
    }

    fn name(&self, _server: usize) -> String {
        self.name.clone()
    }
}
