//! Sessions that only ask: for each question one, which is closed after it.

use std::time::Duration;

use lockkeeper::admin::Admin;
use lockkeeper::embedded::ServerDir;
use lockkeeper::error::AdminError;
use lockkeeper::{Builder, Lockkeeper};

use crate::exit::Failure;
use crate::place::Place;
use crate::settings::Settings;
use crate::{local, waiting};

/// Runs a query in a session of its own, as [`connect_to_ask`] opens it.
///
/// # Errors
/// [`local::not_running`], if the place is this user's own server, it does not run, and it has no data.
pub(crate) async fn inquire<T>(
    settings: &Settings,
    question: impl AsyncFnOnce(Admin) -> Result<T, AdminError>,
) -> Result<T, Failure> {
    inquire_of(settings, async |keeper: Lockkeeper| question(keeper.admin()).await).await
}

/// The same with a handle, for the admin calls of a product.
pub(crate) async fn inquire_of<T, E>(
    settings: &Settings,
    question: impl AsyncFnOnce(Lockkeeper) -> Result<T, E>,
) -> Result<T, Failure>
where
    Failure: From<E>,
{
    let keeper = connect_to_ask(settings).await?;
    let answer = question(keeper.clone()).await;
    keeper.close().await;
    answer.map_err(|error| Failure::from(error).scoped(&settings.place))
}

/// Opens a session to ask for what the server keeps. It starts this user's own server if that has data: it ended because nobody used it.
/// Without data there is nothing to ask for, and nothing is started.
pub(crate) async fn connect_to_ask(settings: &Settings) -> Result<Lockkeeper, Failure> {
    let builder = settings.builder();
    let to_home = async |home: &ServerDir| local::connect_to_records(home, &builder, &settings.printer).await;
    connect_with(settings, &builder, to_home).await
}

/// Returns the session timeout that the server grants.
pub(crate) async fn inquire_session_timeout(settings: &Settings) -> Result<Option<Duration>, Failure> {
    let keeper = connect_running(settings, &settings.builder()).await?;
    let timeout = keeper.session_timeout();
    keeper.close().await;
    Ok(timeout)
}

/// Opens a session, and starts no server.
pub(crate) async fn connect_running(settings: &Settings, builder: &Builder) -> Result<Lockkeeper, Failure> {
    connect_with(settings, builder, async |home| local::connect_running(home, builder).await).await
}

/// Opens a session: with an ensemble, or with the server of this machine as `to_home` does.
pub(crate) async fn connect_with(
    settings: &Settings,
    builder: &Builder,
    to_home: impl AsyncFnOnce(&ServerDir) -> Result<Lockkeeper, Failure>,
) -> Result<Lockkeeper, Failure> {
    waiting::connecting(&settings.place.to_string(), Some(settings.connect_timeout()), async {
        match &settings.place {
            Place::Ensemble(servers) => {
                builder.clone().connect(servers).await.map_err(|error| Failure::from(error).at(&settings.place))
            }
            Place::Machine(home) => to_home(home).await,
        }
    })
    .await
}
