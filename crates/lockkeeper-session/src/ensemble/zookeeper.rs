//! The ensemble over TCP, with the crate `lockkeeper-client`.
//!
//! A session is over only when a server says so, or when it is closed. While no server can be reached, its client tries
//! again; how far a hold is trusted meanwhile is the business of the session's clock.

mod fault;
mod operations;
mod place;
mod setup;
mod states;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder, ExponentialBuilder};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper_client::wire::ErrorCode;
use lockkeeper_client::{Client, Config, Connect, ConnectionState, End, RequestError, Servers, TlsProblem};
use lockkeeper_core::{Loss, SessionId, Ticks};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use self::fault::told;
use self::operations::Operations;
pub(crate) use self::place::Locate;
#[cfg(feature = "embedded")]
pub(crate) use self::place::{Located, Locating};
use self::place::{Search, ServerPlace};
#[cfg(feature = "embedded")]
pub(crate) use self::setup::nodes_of_a_machine;
use self::states::{ASKING, States, states};
use crate::acl::LockAcl;
use crate::ensemble::{Connection, Network, OpError, Opened, Reconnect};
use crate::error::SessionError;
use crate::wait::passed;

/// The shortest pause between two rounds of tries.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// In how many rounds in a row every server must show a lasting mistake about TLS before the first session is given up. One name
/// may lead to several servers, and some of them may have no such mistake.
const MISTAKEN: u32 = 16;

/// Opens sessions with a list of servers.
pub(crate) struct ZooKeeper {
    pub(crate) servers: Servers,
    pub(crate) session_timeout: Duration,
    /// How often to retry; `None` means as often as there is time.
    pub(crate) reconnect: Option<Reconnect>,
    /// The credentials, one for each scheme.
    pub(crate) credentials: Vec<(String, Vec<u8>)>,
    /// The SASL user and the password.
    pub(crate) sasl: Option<(String, String)>,
    /// The access list of new nodes of locks.
    pub(crate) acl: LockAcl,
    /// Whether servers can authenticate this client, so that a list may name the creator of a node.
    pub(crate) authenticates: bool,
    /// Whether a missing chroot is created. If not, no session is opened.
    pub(crate) create_chroot: bool,
    /// Tasks that must finish even if no caller waits for them any more.
    pub(crate) tasks: TaskTracker,
    /// Finds the server before each connection, instead of `servers`.
    pub(crate) locate: Option<Arc<dyn Locate>>,
    /// Opens the connections of a simulation, instead of TCP connections to `servers`.
    pub(crate) simulated: Option<Arc<dyn Connect>>,
    /// Whether it has opened a session. Then TLS worked with these settings before. A mistake about TLS that shows later may pass, and
    /// no attempt ends early because of it.
    pub(crate) has_opened: AtomicBool,
}

/// A session that is being opened. Dropping it closes the session.
struct Opening {
    client: Client,
    /// The states of the connection while the session is opened.
    states: mpsc::UnboundedReceiver<ConnectionState>,
    /// The changes of the connection after that.
    connection: mpsc::UnboundedReceiver<Connection>,
    /// Why the server could not be found.
    search: Arc<Mutex<Search>>,
    started: Instant,
    patience: Duration,
}

impl Network for ZooKeeper {
    fn open(&self, patience: Duration) -> BoxFuture<'_, Result<Opened, SessionError>> {
        async move {
            let mut opening = self.start(patience);
            let deadline = opening.started.checked_add(patience);
            let opened = {
                let (client, limit) = (opening.client.clone(), ASKING.min(patience / 4));
                // A moment earlier, so that the deadline does not cut off the answers of the others.
                let before = deadline.map(|deadline| deadline - limit * 3 / 2);
                let asking = async {
                    passed(before).await;
                    let states = self.states(&client, limit).await;
                    passed(deadline).await;
                    states
                };
                // The next server that is tried may accept the session while the others are asked.
                tokio::select! {
                    biased;
                    opened = self.accepted(&mut opening) => Ok(opened),
                    states = asking => Err(states),
                    // The answers came too late.
                    () = passed(deadline) => Err(States::new()),
                }
            };
            match opened {
                Ok(opened) => opened?,
                Err(states) => return Err(self.unreachable(&opening.client, patience, &states)),
            }
            self.has_opened.store(true, Ordering::Relaxed);
            Ok(self.opened(opening))
        }
        .boxed()
    }

    fn servers(&self) -> String {
        self.servers.to_string()
    }
}

impl ZooKeeper {
    /// Starts the client of a session.
    fn start(&self, patience: Duration) -> Opening {
        let config = Config {
            credentials: self.credentials.clone(),
            sasl: self.sasl.clone(),
            pause: self.reconnect.map(|reconnect| reconnect.delay),
            ..Config::new(self.session_timeout)
        };
        let search = Arc::<Mutex<Search>>::default();
        let (client, states) = match (self.locate.clone(), self.simulated.clone()) {
            (None, None) => Client::open(self.servers.clone(), config),
            (None, Some(connect)) => Client::open_with(connect, config),
            (Some(locate), _) => {
                let place = ServerPlace { locate, name: self.servers.to_string(), search: search.clone() };
                Client::open_with(place, config)
            }
        };
        let ((early, receiver), (sender, connection)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        // It ends when the session is closed or over, also if no task waits for it any more.
        self.tasks.spawn(follow(states, early, sender, self.reconnect.is_some()));
        Opening { client, states: receiver, connection, search, started: Instant::now(), patience }
    }

    /// Waits until a server has accepted the session, and checks the chroot.
    async fn accepted(&self, opening: &mut Opening) -> Result<(), SessionError> {
        let (mut pauses, mut mistaken) = (self.pauses(), 0);
        loop {
            match opening.states.recv().await {
                Some(ConnectionState::Connected) => return self.check_chroot(opening).await,
                Some(ConnectionState::Disconnected | ConnectionState::Closing) => {}
                Some(ConnectionState::Paused) => {
                    let failure = opening.search.lock().expect("held for a change only").take_failure();
                    if let Some(error) = failure {
                        return Err(error);
                    }
                    let waited = opening.started.elapsed();
                    mistaken = if self.is_mistaken(&opening.client) { mistaken + 1 } else { 0 };
                    // Before the deadline, all retries are used up, or more would end the same way.
                    let Some(pause) = pauses.next().filter(|_| mistaken < MISTAKEN) else {
                        // No question either: the caller has chosen how often servers are connected to, or the reasons are known.
                        return Err(self.unreachable(&opening.client, waited, &States::new()));
                    };
                    // The nearer the deadline, the shorter the pauses, so that a server that starts just before it is
                    // found. A pause that the caller chose stays.
                    if self.reconnect.is_none() {
                        let left = opening.patience.saturating_sub(waited);
                        let longest = if mistaken > 0 { SHORTEST_PAUSE } else { (left / 2).max(SHORTEST_PAUSE) };
                        opening.client.pause_for(pause.min(longest));
                    }
                }
                Some(ConnectionState::Over(End::AuthFailed)) => return Err(self.auth_failed()),
                Some(ConnectionState::Over(End::AuthRequired)) => return Err(self.auth_required()),
                Some(ConnectionState::Over(_)) | None => {
                    return Err(self.unreachable(&opening.client, opening.started.elapsed(), &States::new()));
                }
            }
        }
    }

    /// Whether no session was ever opened, and the last attempt with each server showed a lasting mistake about TLS. The retries that
    /// the caller chose are all made.
    fn is_mistaken(&self, client: &Client) -> bool {
        let lasts = |error: String| TlsProblem::in_text(&error).is_some_and(TlsProblem::is_lasting);
        let has_opened = self.has_opened.load(Ordering::Relaxed);
        let may_end_early = !has_opened && self.reconnect.is_none();
        may_end_early && client.connect_errors().into_iter().all(|(_, error)| error.is_some_and(lasts))
    }

    /// The pauses between rounds. Every server is tried once before a retry, so the pauses are between complete rounds.
    fn pauses(&self) -> Box<dyn Iterator<Item = Duration> + Send + Sync> {
        match self.reconnect {
            Some(Reconnect { retries, delay }) => {
                Box::new(ConstantBuilder::new().with_delay(delay).with_max_times(retries as usize).build())
            }
            None => {
                let builder = ExponentialBuilder::default().with_jitter().without_max_times();
                Box::new(builder.with_min_delay(SHORTEST_PAUSE).with_max_delay(Duration::from_secs(1)).build())
            }
        }
    }

    /// Fails if the chroot does not exist. A typing mistake in it would select other locks than those of all other
    /// clients.
    ///
    /// Costs one round trip if there is a chroot.
    async fn check_chroot(&self, opening: &mut Opening) -> Result<(), SessionError> {
        let chroot = self.servers.chroot();
        if chroot.is_empty() || self.create_chroot {
            return Ok(());
        }
        let client = &opening.client;
        loop {
            // Sync first: this server may be stale if the chroot was just created. At a leader that can still miss the
            // create; then the user repeats the command.
            let (synced, stat) = tokio::join!(biased; client.sync("/"), client.exists("/"));
            let error = match synced.and(stat) {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => break,
                // This client may not learn whether it exists (3.9 asks for the right to read). The first request shows it.
                Err(RequestError::Refused(ErrorCode::NoAuth)) => return Ok(()),
                Err(error) => error,
            };
            match told(error).await {
                // The next one waits for a connection.
                OpError::ConnectionLoss => {}
                _ => {
                    return Err(match error {
                        RequestError::SessionOver(End::AuthFailed) => self.auth_failed(),
                        RequestError::SessionOver(End::AuthRequired) => self.auth_required(),
                        _ => self.unreachable(client, opening.started.elapsed(), &States::new()),
                    });
                }
            }
        }
        client.close();
        while opening.states.recv().await.is_some() {}
        Err(SessionError::NoChroot { servers: self.servers.endpoints(), chroot: chroot.to_owned() })
    }

    fn auth_failed(&self) -> SessionError {
        SessionError::AuthFailed { servers: self.servers.to_string() }
    }

    fn auth_required(&self) -> SessionError {
        SessionError::AuthRequired { servers: self.servers.to_string() }
    }

    /// Asks the servers that have given no reason for their states. A simulation has no servers to ask. Dropping the future
    /// closes the connections.
    async fn states(&self, client: &Client, limit: Duration) -> States {
        match self.simulated {
            None => states(&self.servers, client.unexplained(), limit).await,
            Some(_) => States::new(),
        }
    }

    /// Returns the error of a session that no server accepted. `states`: those of the servers, if they were asked.
    fn unreachable(&self, client: &Client, waited: Duration, states: &States) -> SessionError {
        let reasons = client.unfinished_errors().into_iter().enumerate().map(|(at, (server, error))| {
            let error = states.get(&at).copied().unwrap_or(&error);
            format!("{server} {error}")
        });
        let detail = reasons.collect::<Vec<_>>().join("; ");
        SessionError::Unreachable { servers: self.servers.to_string(), waited, detail }
    }

    /// Wraps a client whose session is open.
    fn opened(&self, opening: Opening) -> Opened {
        let Opening { client, connection, .. } = opening;
        let (session, timeout) = (SessionId(client.session()), client.session_timeout());
        // The own server, and one with a Unix socket, is Lockkeeper's: it has no followers.
        let is_ours = self.locate.is_some() || self.servers.is_unix();
        let ticks = if is_ours { Ticks::Five } else { Ticks::of(self.session_timeout, timeout) };
        let (chroot, acl, create_chroot) = (self.servers.chroot().to_owned(), self.acl.clone(), self.create_chroot);
        let signs = self.servers.is_unix();
        let authenticates = self.authenticates;
        let reads_together = Arc::new(AtomicBool::new(true));
        let operations =
            Operations { client, chroot, create_chroot, session, acl, authenticates, signs, reads_together };
        Opened { ensemble: Arc::new(operations), timeout, ticks, connection, anchor: None }
    }
}

/// Forwards all states to `early`, and what changes after the first connection to `sender`.
async fn follow(
    mut states: mpsc::UnboundedReceiver<ConnectionState>,
    early: mpsc::UnboundedSender<ConnectionState>,
    sender: mpsc::UnboundedSender<Connection>,
    counts_tries: bool,
) {
    let mut opened = false;
    while let Some(state) = states.recv().await {
        // An error: no task opens the session, or uses it, any more.
        _ = early.send(state);
        let change = match state {
            ConnectionState::Connected if !std::mem::replace(&mut opened, true) => continue,
            ConnectionState::Connected => Connection::Back,
            ConnectionState::Disconnected => Connection::Lost,
            ConnectionState::Paused if opened && counts_tries => Connection::TryFailed,
            ConnectionState::Paused => continue,
            ConnectionState::Closing => Connection::Closing,
            ConnectionState::Over(End::Expired) => Connection::Over(Loss::SessionExpired),
            ConnectionState::Over(End::AuthFailed) => Connection::Over(Loss::AuthFailed),
            ConnectionState::Over(End::AuthRequired) => Connection::Over(Loss::AuthRequired),
            ConnectionState::Over(End::Closed) => Connection::Over(Loss::Closed),
        };
        _ = sender.send(change);
    }
}

#[cfg(test)]
#[cfg(feature = "embedded")]
mod tests;
