//! Faults on demand, for tests of programs that use a server.
//!
//! One line of a test causes a rare failure of a network, a disk or a process, at an exact frame. Each fault is set on
//! the server's thread between two steps, so it is in force when the call returns.
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
//! // Every client sees immediately that the node is deleted. The client gets the error that your code must handle.
//! let other = Client::connect(&server.connect_string()).await?;
//! assert!(other.check_stat("/me").await?.is_none());
//! assert_eq!(client.check_stat("/me").await, Err(Error::SessionExpired));
//!
//! // Or let time pass without pings: the server then expires the session itself.
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
    /// Returns whether it has happened.
    pub fn has_fired(&self) -> bool {
        *self.fired.borrow()
    }

    /// Waits until it has happened; forever if the server stops first. Dropping the future leaves the fault planned.
    pub async fn fired(&mut self) {
        if self.fired.wait_for(|fired| *fired).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Each of these returns when the fault is in force. If the future is dropped, the fault may be in force or not.
///
/// `nth` counts the frames of an operation after the call, from 1, over all connections. A connect request counts as
/// [`OpCode::CreateSession`].
///
/// # Errors
/// Each returns [`ServerError::Stopped`] if the server has stopped.
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

    /// Ends a session now, without waiting for its timeout; returns false if there is none.
    ///
    /// The order is another one than after a real expiry. The server deletes the session's nodes first, and the client learns of it
    /// when it connects again. So another client can be granted a lock before the old holder's guard reports the loss. To keep the
    /// order, [`freeze`](Faults::freeze) the server until the guard has reported the loss, then [`thaw`](Faults::thaw) it.
    pub async fn expire(&self, session: i64) -> Result<bool, ServerError> {
        self.commands.run(move |engine| engine.expire(session)).await
    }

    /// Sets the sequence number of a node's next child, so that a test can pass 2^31; returns false if there is no
    /// such node.
    pub async fn set_child_counter(&self, parent: &str, next: i32) -> Result<bool, ServerError> {
        let parent = parent.to_owned();
        self.commands.run(move |engine| engine.set_child_counter(&parent, next)).await
    }

    /// Cuts the connection of a session; returns false if it has none. The session lives on until its timeout.
    pub async fn cut(&self, session: i64) -> Result<bool, ServerError> {
        self.commands
            .run(move |engine| {
                let connection = engine.machine.sessions().get(session).and_then(|session| session.connection);
                connection.is_some_and(|connection| engine.cut(connection))
            })
            .await
    }

    /// Cuts all connections and returns their number.
    pub async fn cut_all(&self) -> Result<usize, ServerError> {
        self.commands.run(Engine::cut_all).await
    }

    /// Cuts the connection of the `nth` request of this kind instead of carrying the request out: the request is lost.
    pub async fn lose_request(&self, operation: OpCode, nth: u64) -> Result<Planned, ServerError> {
        self.plan(operation, nth, Action::LoseRequest).await
    }

    /// Carries out the `nth` request of this kind and cuts the connection instead of answering: the reply is lost.
    pub async fn lose_reply(&self, operation: OpCode, nth: u64) -> Result<Planned, ServerError> {
        self.plan(operation, nth, Action::LoseReply).await
    }

    /// Carries out the `nth` request of this kind and does not answer; the connection stays open. No correct server
    /// does this. It shows how a client copes with one that does.
    pub async fn drop_reply(&self, operation: OpCode, nth: u64) -> Result<Planned, ServerError> {
        self.plan(operation, nth, Action::DropReply).await
    }

    /// Delays the answer to the `nth` request of this kind, and everything after it on this connection. Answers on
    /// other connections overtake it.
    pub async fn delay_reply(&self, operation: OpCode, nth: u64, by: Duration) -> Result<Planned, ServerError> {
        self.plan(operation, nth, Action::DelayReply(by)).await
    }

    /// Freezes the server as SIGSTOP would: connections stay open, and the server reads, answers and expires nothing.
    pub async fn freeze(&self) -> Result<(), ServerError> {
        self.commands
            .run(|engine| {
                engine.faults.frozen = true;
                engine.hold_all(true);
            })
            .await
    }

    /// Ends a freeze. As after any pause, the server reads what clients have sent before it expires a session.
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

    /// Delays every fsync from now on by this time. Without a data directory there are no fsyncs.
    pub async fn slow_fsync(&self, by: Duration) -> Result<(), ServerError> {
        self.commands.run(move |engine| engine.faults.slow_fsync = by).await
    }

    /// Makes the next fsync fail with this error; the server then stops, as it must. Without a data directory there
    /// are no fsyncs.
    pub async fn fail_fsync(&self, how: io::ErrorKind) -> Result<(), ServerError> {
        self.commands.run(move |engine| engine.faults.fail_fsync = Some(how)).await
    }

    /// Skips the next ticks, so sessions expire later.
    pub async fn skip_ticks(&self, ticks: u32) -> Result<(), ServerError> {
        self.commands.run(move |engine| engine.faults.skipped_ticks += ticks).await
    }

    /// Stops the server's clock: no session expires and no container is removed until the time is advanced or resumed.
    pub async fn freeze_time(&self) -> Result<(), ServerError> {
        self.commands.run(|engine| engine.clock.freeze()).await
    }

    /// Advances the server's clock, frozen or not, and immediately does what is due.
    pub async fn advance_time(&self, by: Duration) -> Result<(), ServerError> {
        self.commands
            .run(move |engine| {
                engine.clock.advance(by);
                engine.tick();
            })
            .await
    }

    /// Resumes a frozen clock from its current time.
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

/// What happens to a frame besides being handled.
#[derive(Debug, Default)]
pub(crate) struct FrameFaults {
    lost: bool,
    muted: bool,
    closes: bool,
    held_for: Option<Duration>,
}

/// Returns the planned faults of a frame, before it is handled.
pub(crate) fn frame_faults(engine: &RefCell<Engine>, id: ConnectionId, frame: &[u8]) -> FrameFaults {
    let mut engine = engine.borrow_mut();
    if engine.faults.plans.is_empty() {
        return FrameFaults::default();
    }
    let opcode = || Some(i32::from_be_bytes(*frame.get(4..)?.first_chunk()?));
    let operation =
        if engine.has_greeted(id) { opcode().and_then(OpCode::from_i32) } else { Some(OpCode::CreateSession) };
    let Some(operation) = operation else { return FrameFaults::default() };
    engine.faults.due(operation).into_iter().fold(FrameFaults::default(), |faults, action| match action {
        Action::LoseRequest => FrameFaults { lost: true, ..faults },
        Action::LoseReply => FrameFaults { muted: true, closes: true, ..faults },
        Action::DropReply => FrameFaults { muted: true, ..faults },
        Action::DelayReply(by) => FrameFaults { held_for: Some(by), ..faults },
    })
}

impl FrameFaults {
    /// Starts the faults before the frame is handled; returns false if the frame must not be handled.
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

    /// Ends the faults after the frame was handled.
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

/// Applies the faults in force before a commit.
pub(crate) async fn before_commit(engine: &RefCell<Engine>) -> Result<(), ServerError> {
    let (slow, fail) = {
        let mut engine = engine.borrow_mut();
        (engine.faults.slow_fsync, engine.faults.fail_fsync.take())
    };
    if !slow.is_zero() {
        tokio::time::sleep(slow).await;
    }
    match fail {
        Some(kind) => Err(ServerError::disk("(a fault of a test)".into(), kind.into())),
        None => Ok(()),
    }
}
