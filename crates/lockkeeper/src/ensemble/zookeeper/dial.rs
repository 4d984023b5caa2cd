//! Connects clients to sessions, new ones and those of a previous client, and follows the changes of their connections.
//!
//! The client crate starts a task for each client. This module keeps a handle to it, because nothing else ends a client
//! without ending its session.

use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures_util::future::BoxFuture;
use lockkeeper_core::Loss;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use zookeeper_client as zk;

use super::carrier::{Carrier, Progress};
use crate::ensemble::Connection;
use crate::ensemble::servers::Servers;
use crate::error::SessionError;

/// The longest session timeout that the protocol can request: milliseconds in 32 bits.
const LONGEST_SESSION: Duration = Duration::from_millis(i32::MAX as u64);

/// Finds a server that may have moved or ended since the last connection, and starts it if necessary.
pub(crate) trait Locate: Send + Sync {
    /// Returns where the server is now. Called before each connection. Dropping the future leaves a server that was
    /// being started.
    fn locate(&self) -> BoxFuture<'_, Result<Located, SessionError>>;
}

/// Where a server is, and the secret to present to it.
pub(crate) struct Located {
    pub(crate) servers: Servers,
    pub(crate) credentials: Vec<(String, Vec<u8>)>,
}

/// The maximum time without an answer on a connection, while it is opened and later.
///
/// The client crate (0.11.2) uses two fifths of the session timeout, which is 12 s by default: a server that accepts a
/// connection while it starts, and forgets it, would block a client for that long.
const SILENCE: Duration = Duration::from_secs(4);

/// The parameters of a connection.
#[derive(Clone)]
pub(super) struct Dial {
    pub(super) servers: Servers,
    pub(super) session_timeout: Duration,
    pub(super) credentials: Vec<(String, Vec<u8>)>,
    /// Finds the server before each connection; `None` for servers with fixed addresses.
    pub(super) locate: Option<Arc<dyn Locate>>,
    /// Tasks that must finish even if no caller waits for them any more.
    pub(super) tasks: TaskTracker,
}

/// The pauses between rounds of tries that continue until the deadline.
pub(super) fn pauses() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(20))
        .with_max_delay(Duration::from_secs(1))
        .with_jitter()
        .without_max_times()
}

/// Keeps the handle of the task that a client starts.
#[derive(Default)]
struct Spawner(Mutex<Option<AbortHandle>>);

impl spawns_core::Spawn for Spawner {
    fn spawn(&self, task: spawns_core::Task) {
        let task = tokio::spawn(Box::into_pin(task.future)).abort_handle();
        *self.0.lock().expect("held for a change only") = Some(task);
    }
}

/// The limit of [`SILENCE`], if it is shorter than the client crate's own.
fn silence(session_timeout: Duration) -> Option<Duration> {
    (session_timeout / 5 * 2 > SILENCE).then_some(SILENCE)
}

impl Dial {
    /// The parameters with the server's current address.
    ///
    /// # Errors
    ///
    /// The server cannot be found or started.
    pub(super) async fn located(&self) -> Result<Dial, SessionError> {
        let Some(locate) = &self.locate else { return Ok(self.clone()) };
        let Located { servers, credentials } = locate.locate().await?;
        Ok(Dial { servers, credentials, ..self.clone() })
    }

    /// Whether a client with these parameters sends pings as often as holds rely on: every 3/20 of the granted timeout.
    ///
    /// It sends them every 3/8 of the silence limit. It ignores a limit above 3/5 of the granted timeout.
    pub(super) fn suits(&self, granted: Duration) -> bool {
        silence(self.session_timeout).is_none_or(|silence| silence <= granted * 2 / 5 || silence > granted * 3 / 5)
    }

    /// Tries every server once to open a new session or to continue that of a previous client. Dropping the future
    /// leaves no session behind.
    ///
    /// It runs in a separate task: a try cancelled between the server's opening of the session and its answer would
    /// leave the session until it expires, and with short timeouts every call would leave one.
    pub(super) async fn connect(
        &self,
        session: Option<zk::SessionInfo>,
    ) -> Result<(zk::Client, AbortHandle), zk::Error> {
        let timeout = self.session_timeout.min(LONGEST_SESSION);
        let mut connector = zk::Client::connector().with_session_timeout(timeout).with_fail_eagerly();
        if let Some(silence) = silence(timeout) {
            connector = connector.with_connection_timeout(silence);
        }
        if let Some(session) = session {
            connector = connector.with_session(session);
        }
        for (scheme, credential) in &self.credentials {
            connector = connector.with_auth(scheme, credential);
        }
        let endpoints = self.servers.endpoints();
        #[cfg(feature = "tls")]
        let tls = self.servers.tls().cloned();
        let (sender, connected) = oneshot::channel();
        self.tasks.spawn(async move {
            let spawner = Spawner::default();
            let connecting = async {
                #[cfg(feature = "tls")]
                if let Some(tls) = tls {
                    return connector.with_tls(tls.options()).secure_connect(&endpoints).await;
                }
                connector.connect(&endpoints).await
            };
            let mut connecting = pin!(connecting);
            let connected = std::future::poll_fn(|context| {
                let _scope = spawns_core::enter(&spawner);
                connecting.as_mut().poll(context)
            });
            let connected = connected.await.map(|client| {
                let task = spawner.0.lock().expect("held for a change only").take();
                (client, task.expect("a client that is connected has started its task"))
            });
            if let Err(Ok((unwanted, _))) = sender.send(connected) {
                close(unwanted).await;
            }
        });
        connected.await.unwrap_or(Err(zk::Error::ClientClosed))
    }

    /// Takes a session over from a client that was removed. The new client never shows anything older than the previous
    /// one saw.
    ///
    /// # Errors
    ///
    /// [`Loss::SessionExpired`] only if a server says so. [`Loss::Unreachable`] after 1.4 session timeouts without a
    /// server.
    async fn take_over(&self, session: &zk::SessionInfo, timeout: Duration) -> Result<(zk::Client, AbortHandle), Loss> {
        let trying = async {
            for pause in pauses().build() {
                let connected = match self.located().await {
                    Ok(dial) => dial.connect(Some(session.clone())).await,
                    Err(error) => {
                        tracing::warn!(%error, session = %session.id(), "the server cannot be restarted; retrying");
                        tokio::time::sleep(pause).await;
                        continue;
                    }
                };
                match connected {
                    // This server may be stale compared with the previous one, and the new client does not know what
                    // was seen there.
                    Ok((client, task)) => match tokio::time::timeout(timeout / 3, client.sync("/")).await {
                        Ok(Ok(())) => return Ok((client, task)),
                        // Do not drop the client: that would close the session.
                        Ok(Err(_)) | Err(_) => task.abort(),
                    },
                    Err(zk::Error::SessionExpired | zk::Error::SessionMoved) => return Err(Loss::SessionExpired),
                    Err(zk::Error::AuthFailed) => return Err(Loss::AuthFailed),
                    Err(_) => {}
                }
                tokio::time::sleep(pause).await;
            }
            Err(Loss::Unreachable)
        };
        // As long as a client of the crate would try.
        tokio::time::timeout(timeout * 7 / 5, trying).await.unwrap_or(Err(Loss::Unreachable))
    }

    /// Reports the changes of the session's connection until the session is over. `states` is its client's.
    pub(super) async fn follow(
        self,
        carrier: Weak<Carrier>,
        mut states: zk::StateWatcher,
        timeout: Duration,
        sender: mpsc::UnboundedSender<Connection>,
    ) {
        let mut connected = true;
        loop {
            let since = Instant::now();
            let seen = next(&mut states, &carrier, timeout, connected).await;
            let change = match seen {
                Some(zk::SessionState::Disconnected) | None => Connection::Lost,
                Some(zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly) => Connection::Back,
                // This late, it may be the client crate's own guess; only a server knows.
                Some(zk::SessionState::Expired) if !connected && since.elapsed() >= patience(timeout) => {
                    Connection::Over(Loss::Unreachable)
                }
                Some(zk::SessionState::Expired) => Connection::Over(Loss::SessionExpired),
                Some(zk::SessionState::AuthFailed) => Connection::Over(Loss::AuthFailed),
                Some(zk::SessionState::Closed) => Connection::Over(Loss::Closed),
            };
            let was_connected = std::mem::replace(&mut connected, change == Connection::Back);
            let parted = carrier
                .upgrade()
                .filter(|_| change == Connection::Lost)
                // A server that may move or must be started is not where the client would look for it.
                .and_then(|carrier: Arc<Carrier>| carrier.part(seen.is_none() || self.locate.is_some()));
            // Report a lost connection once.
            let told = was_connected || change != Connection::Lost;
            if told && sender.send(change).is_err() || matches!(change, Connection::Over(_)) {
                return;
            }
            let Some(session) = parted else { continue };
            match seen {
                None if was_connected => {
                    tracing::warn!(session = %session.id(), "a server answers pings but no requests; connecting to another");
                }
                None => {
                    tracing::debug!(session = %session.id(), "no connection for so long that the client would give the session up; replacing it");
                }
                Some(_) if self.locate.is_some() => {
                    tracing::debug!(session = %session.id(), "looking for the server; starting it if it does not run");
                }
                Some(_) => {
                    tracing::debug!(session = %session.id(), "the session has more watches than the client can set again; replacing it");
                }
            }
            let next = match self.take_over(&session, timeout).await {
                Ok((client, task)) => {
                    states = client.state_watcher();
                    match carrier.upgrade() {
                        Some(carrier) => {
                            carrier.go_on(client, task);
                            connected = true;
                            Connection::Back
                        }
                        None => {
                            close(client).await;
                            Connection::Over(Loss::Closed)
                        }
                    }
                }
                Err(loss) => {
                    if let Some(carrier) = carrier.upgrade() {
                        carrier.end();
                    }
                    Connection::Over(loss)
                }
            };
            if sender.send(next).is_err() || matches!(next, Connection::Over(_)) {
                return;
            }
        }
    }
}

/// How long a client may be without a connection before another takes its session over.
///
/// The client crate (0.11.2) reports a session as expired when it has had no answer for 1.4 session timeouts, whatever
/// the servers say. It notices a silent connection within 0.4 of them, so this is well before.
fn patience(session_timeout: Duration) -> Duration {
    session_timeout * 3 / 4
}

/// The next change of the connection. `None` if the client must be replaced: requests were not answered for a session
/// timeout on a connection that is not lost, or there was no connection for [`patience`].
async fn next(
    states: &mut zk::StateWatcher,
    carrier: &Weak<Carrier>,
    session_timeout: Duration,
    connected: bool,
) -> Option<zk::SessionState> {
    let (mut changed, mut progress) = (pin!(states.changed()), Progress::default());
    let look = if connected { session_timeout / 2 } else { patience(session_timeout) };
    loop {
        tokio::select! {
            biased;
            state = &mut changed => return Some(state),
            () = tokio::time::sleep(look) => {
                // Three samples span a session timeout.
                if !connected || carrier.upgrade().is_some_and(|carrier| carrier.is_stuck(&mut progress, 3)) {
                    return None;
                }
            }
        }
    }
}

/// Closes a session and waits until the server has confirmed it or the session has expired.
pub(super) async fn close(client: zk::Client) {
    let mut states = client.state_watcher();
    drop(client);
    while let zk::SessionState::Disconnected | zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly =
        states.changed().await
    {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_as_frequent_as_holds_rely_on() {
        let asked = |secs| {
            let (servers, tasks) = ("127.0.0.1:1".parse().unwrap(), TaskTracker::new());
            Dial { servers, session_timeout: Duration::from_secs(secs), credentials: Vec::new(), locate: None, tasks }
        };
        let granted = Duration::from_millis;
        assert!(asked(30).suits(granted(30_000)) && asked(30).suits(granted(10_000)));
        assert!(!asked(30).suits(granted(9_999)) && !asked(30).suits(granted(6_667)), "pings every 1.5 s are too few");
        assert!(asked(30).suits(granted(6_000)), "the client crate takes two fifths of it by itself");
        assert!(asked(10).suits(granted(8_000)) && asked(2).suits(granted(60_000)));
    }
}
