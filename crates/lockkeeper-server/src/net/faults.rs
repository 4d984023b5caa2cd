//! Faults on demand, for tests of whatever uses a server.
//!
//! What a network, a disk or a stopped process does once a year, a test does here with one line, at the very frame where it
//! hurts. Everything happens on the server's thread between two steps, so a fault that has been asked for is in force when the
//! call returns.
//!
//! *What does my code do when the session expires?*
//!
//! ```
//! use std::time::Duration;
//! use zookeeper_client::{Acls, Client, CreateMode, Error};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let server = lockkeeper_server::Server::ephemeral().await?;
//! let client = Client::connect(&server.connect_string()).await?;
//! client.create("/me", b"", &CreateMode::Ephemeral.with_acls(Acls::anyone_all())).await?;
//!
//! server.faults().expire(client.session_id().0).await?;
//!
//! // The node is gone at once, for everyone. The client is told; so is your code, and here is what it must cope with.
//! let other = Client::connect(&server.connect_string()).await?;
//! assert!(other.check_stat("/me").await?.is_none());
//! assert_eq!(client.check_stat("/me").await, Err(Error::SessionExpired));
//!
//! // Or without an order: time passes, nobody pings, and the server decides as it would in the field.
//! let session = other.session_id().0;
//! server.faults().freeze_time().await?;
//! drop(other);
//! server.faults().advance_time(Duration::from_secs(60)).await?;
//! assert!(!server.sessions().await?.contains(&session));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::ServerError;
use crate::machine::ConnectionId;
use crate::net::command::Commands;
use crate::net::engine::Engine;
use crate::net::engine::faults::{Action, Plan};
use crate::net::outbox::Outbox;
use lockkeeper_wire::OpCode;

/// The faults of one server; from [`Server::faults`](crate::Server::faults).
#[derive(Clone, Debug)]
pub struct Faults {
    commands: Commands,
}

/// A fault that waits for its frame.
#[derive(Clone, Debug)]
pub struct Planned {
    fired: watch::Receiver<bool>,
}

impl Planned {
    /// Whether it has happened.
    pub fn has_fired(&self) -> bool {
        *self.fired.borrow()
    }

    /// Waits until it has happened; for ever, if the server stops before. Dropping the future leaves the fault planned.
    pub async fn fired(&mut self) {
        if self.fired.wait_for(|fired| *fired).await.is_err() {
            std::future::pending().await
        }
    }
}

/// All of these return once the fault is in force. Dropping such a future may leave it in force or not.
///
/// `nth` counts from 1 the frames of an operation that come after the call, over all connections; a connect request counts as
/// [`OpCode::CreateSession`].
///
/// # Errors
/// [`ServerError::Stopped`], each.
impl Faults {
    pub(crate) fn new(commands: Commands) -> Self {
        Self { commands }
    }

    async fn plan(&self, operation: OpCode, nth: u64, action: Action) -> Result<Planned, ServerError> {
        let (fire, fired) = watch::channel(false);
        let plan = Plan { operation, left: nth.max(1), action, fire };
        self.commands.run(move |engine| engine.faults.plans.push(plan)).await?;
        Ok(Planned { fired })
    }

    /// Ends a session as if its time were over; false if there is none.
    pub async fn expire(&self, session: i64) -> Result<bool, ServerError> {
        self.commands.run(move |engine| engine.expire(session)).await
    }

    /// Cuts the connection of a session; false if it has none. The session lives on until its timeout.
    pub async fn cut(&self, session: i64) -> Result<bool, ServerError> {
        self.commands
            .run(move |engine| {
                let connection = engine.machine.sessions().get(session).and_then(|session| session.connection);
                connection.is_some_and(|connection| engine.cut(connection))
            })
            .await
    }

    /// Cuts all connections; how many there were.
    pub async fn cut_all(&self) -> Result<usize, ServerError> {
        self.commands.run(Engine::cut_all).await
    }

    /// Cuts a connection in place of its `nth` request of this kind: the request is lost.
    pub async fn lose_request(&self, operation: OpCode, nth: u64) -> Result<Planned, ServerError> {
        self.plan(operation, nth, Action::LoseRequest).await
    }

    /// Carries out the `nth` request of this kind and cuts the connection in place of the answer: the reply is lost.
    pub async fn lose_reply(&self, operation: OpCode, nth: u64) -> Result<Planned, ServerError> {
        self.plan(operation, nth, Action::LoseReply).await
    }

    /// Carries out the `nth` request of this kind and says nothing; the connection lives on. No server that works does this: it
    /// shows what a client does with one that does not.
    pub async fn drop_reply(&self, operation: OpCode, nth: u64) -> Result<Planned, ServerError> {
        self.plan(operation, nth, Action::DropReply).await
    }

    /// Holds back the answer to the `nth` request of this kind, and with it everything after it on this connection. Answers
    /// on other connections overtake it.
    pub async fn delay_reply(&self, operation: OpCode, nth: u64, by: Duration) -> Result<Planned, ServerError> {
        self.plan(operation, nth, Action::DelayReply(by)).await
    }

    /// Stops the server as SIGSTOP would: connections stay, nothing is heard, answered or expired.
    pub async fn freeze(&self) -> Result<(), ServerError> {
        self.commands
            .run(|engine| {
                engine.faults.frozen = true;
                engine.hold_all(true);
            })
            .await
    }

    /// Lets a frozen server go on. Like any that was stopped, it hears what clients have sent before it expires a session.
    pub async fn thaw(&self) -> Result<(), ServerError> {
        self.commands
            .run(|engine| {
                if std::mem::take(&mut engine.faults.frozen) {
                    engine.faults.skipped_ticks += 1;
                    engine.hold_all(false);
                    engine.faults.thawed.notify_waiters();
                }
            })
            .await
    }

    /// Makes every fsync from now on take this much longer. Without a data directory there are none.
    pub async fn slow_fsync(&self, by: Duration) -> Result<(), ServerError> {
        self.commands.run(move |engine| engine.faults.slow_fsync = by).await
    }

    /// Lets the next fsync fail like this; the server then stops, as it must. Without a data directory there are none.
    pub async fn fail_fsync(&self, how: io::ErrorKind) -> Result<(), ServerError> {
        self.commands.run(move |engine| engine.faults.fail_fsync = Some(how)).await
    }

    /// Leaves out the next ticks: sessions expire that much later.
    pub async fn skip_ticks(&self, ticks: u32) -> Result<(), ServerError> {
        self.commands.run(move |engine| engine.faults.skipped_ticks += ticks).await
    }

    /// Stops the server's clock: no session expires, no container goes, until time is advanced or goes on.
    pub async fn freeze_time(&self) -> Result<(), ServerError> {
        self.commands.run(|engine| engine.clock.freeze()).await
    }

    /// Moves the server's clock, frozen or not, and does at once what has become due.
    pub async fn advance_time(&self, by: Duration) -> Result<(), ServerError> {
        self.commands
            .run(move |engine| {
                engine.clock.advance(by);
                engine.tick();
            })
            .await
    }

    /// Lets a frozen clock go on from where it stands.
    pub async fn resume_time(&self) -> Result<(), ServerError> {
        self.commands.run(|engine| engine.clock.resume()).await
    }
}

/// Waits while the server is frozen.
pub(crate) async fn thawed(engine: &RefCell<Engine>) {
    while engine.borrow().faults.frozen {
        let thawed = Rc::clone(&engine.borrow().faults.thawed);
        thawed.notified().await;
    }
}

/// What becomes of a frame besides being handled.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    lost: bool,
    muted: bool,
    closes: bool,
    held_for: Option<Duration>,
}

/// Decides a frame's fate, before it is handled.
pub(crate) fn fate(engine: &RefCell<Engine>, id: ConnectionId, frame: &[u8]) -> Fate {
    let mut engine = engine.borrow_mut();
    if engine.faults.plans.is_empty() {
        return Fate::default();
    }
    let opcode = || Some(i32::from_be_bytes(*frame.get(4..)?.first_chunk()?));
    let operation =
        if engine.has_greeted(id) { opcode().and_then(OpCode::from_i32) } else { Some(OpCode::CreateSession) };
    let Some(operation) = operation else { return Fate::default() };
    engine.faults.due(operation).into_iter().fold(Fate::default(), |fate, action| match action {
        Action::LoseRequest => Fate { lost: true, ..fate },
        Action::LoseReply => Fate { muted: true, closes: true, ..fate },
        Action::DropReply => Fate { muted: true, ..fate },
        Action::DelayReply(by) => Fate { held_for: Some(by), ..fate },
    })
}

impl Fate {
    /// Before the frame is handled; false if it is not to be.
    pub(crate) fn begin(&self, outbox: &Outbox) -> bool {
        if self.lost {
            outbox.abort();
            return false;
        }
        outbox.mute(self.muted);
        if self.held_for.is_some() {
            outbox.hold(true);
        }
        true
    }

    /// After it was handled.
    pub(crate) fn end(self, outbox: &Rc<Outbox>) {
        outbox.mute(false);
        if self.closes {
            outbox.close();
        }
        if let Some(by) = self.held_for {
            let outbox = Rc::clone(outbox);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(by).await;
                outbox.hold(false);
            });
        }
    }
}

/// Does to a commit what is in force, before it begins.
pub(crate) async fn before_commit(engine: &RefCell<Engine>) -> Result<(), ServerError> {
    let (slow, fail) = {
        let mut engine = engine.borrow_mut();
        (engine.faults.slow_fsync, engine.faults.fail_fsync.take())
    };
    if !slow.is_zero() {
        tokio::time::sleep(slow).await;
    }
    match fail {
        Some(kind) => Err(ServerError::disk("(a fault that a test asked for)".into(), kind.into())),
        None => Ok(()),
    }
}
