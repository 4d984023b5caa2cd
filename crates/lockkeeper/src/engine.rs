//! What jobs, leased locks and other products are built from that have a crate of their own. **Unstable:** unlike the rest of this
//! crate, it may change in any release. A program that only uses locks needs nothing of it.
//!
//! - [`session`]: what the locks of a [`Lockkeeper`](crate::Lockkeeper) share. [`Context::ask`](session::Context::ask) runs a question
//!   with the operations of its session, [`Context::run`](session::Context::run) a task without one. Their futures need a tokio
//!   runtime, so run them there: that is the library's own thread.
//! - [`ensemble`]: reads, writes, watches and transactions, the linearizable read, and paths.
//! - [`hold`]: a hold with its own [`TrustSource`](hold::TrustSource), such as a lease, its guard, and what is written with its end.
//! - [`queue`]: what the nodes of a lock say about its contenders.
//! - [`registers`]: the records below `/lockkeeper`, and a leased lock's.
//! - [`wait`], [`text`], [`process`], [`latest`]: waits that have a deadline, words for people, this process and its user, and a
//!   value that wakes its listeners.

use std::pin::Pin;

/// A future in a box, which can be sent to another thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub mod session {
    //! A handle's session, its thread, its clocks.

    use std::sync::Arc;

    pub use lockkeeper_core::{Link, LinkState};

    use crate::Lockkeeper;
    pub use crate::clock::Clock;
    use crate::ensemble::Ensemble;
    use crate::hold::holding::Holding;
    pub use crate::registers::time::{known_server_now_ms, server_now_ms};
    use crate::session::Io;
    pub use crate::session::context::Context;
    pub use crate::session::epoch::unreadable as no_epoch;
    pub use crate::session::process::Owned;
    pub use crate::session::{KeepTrusted, Session};

    /// Returns the state that the locks of a handle share: its session, its thread, its owner.
    pub fn context(keeper: &Lockkeeper) -> Context {
        keeper.context().clone()
    }

    /// Returns the operations of the session that granted the lock; `None` if that session is over.
    ///
    /// A read of this session sees everything that earlier holders wrote.
    pub fn ensemble_of(hold: &Holding) -> Option<Arc<dyn Ensemble>> {
        hold.session().ensemble()
    }

    /// The timers of the library's own thread: they run whichever runtime polls, or none. Cheap to clone.
    #[derive(Clone)]
    pub struct Timer(Arc<Io>);

    impl Timer {
        /// Returns the timers of a handle. They do not keep its session open.
        pub fn of(keeper: &Lockkeeper) -> Timer {
            Timer(keeper.context().io().clone())
        }

        /// Resolves after `pause`.
        ///
        /// # Cancel safety
        ///
        /// Dropping the future leaves nothing behind.
        pub async fn after(&self, pause: std::time::Duration) {
            self.0.after(pause).await;
        }
    }
}

pub mod ensemble {
    //! The operations of a session's ensemble, and of each of its servers.

    pub use lockkeeper_core::{Zxid, node_path};

    pub use crate::ensemble::each::{Answered, EachServer, Unanswered};
    pub use crate::ensemble::paths::{above, is_below, make_path};
    pub use crate::ensemble::{
        Children, Done, Ensemble, Fired, Node, NodeKind, OpError, READS_IN_FLIGHT, Reply, TreeChange, TreeEvent,
        TreeWatch, TxnError, TxnStep, Watcher, Written, linearizable, refused, zxid_of,
    };
    use crate::error::Misuse;
    use crate::keeper::builder::Builder;

    /// Fails if a connect string is not valid.
    ///
    /// # Errors
    ///
    /// [`Misuse`] with the mistake.
    pub fn check_servers(servers: &str) -> Result<(), Misuse> {
        crate::ensemble::servers::parse(servers).map(drop)
    }

    /// Returns the servers of a connect string, to be asked one by one and without a session. They are reached as
    /// [`Builder::connect`] reaches them, with its TLS.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if `connect` would refuse the connect string or the options.
    pub fn each_server(builder: &Builder, servers: &str) -> Result<EachServer, Misuse> {
        builder.clone().each_server(servers)
    }
}

pub mod hold {
    //! Holds whose trust comes from elsewhere than a session, guards of them, and what is written when a hold ends.

    use std::sync::Arc;

    use futures_channel::mpsc::UnboundedSender;
    pub use lockkeeper_core::Trust;
    use tokio::sync::oneshot;

    use crate::ensemble::{TxnStep, Written};
    use crate::error::ReleaseError;
    pub use crate::hold::account::Call;
    use crate::hold::guard::Guard;
    use crate::hold::holding::Holding;
    pub use crate::hold::holding::run_until;
    pub use crate::hold::note::{HoldReport, Note, NoteSteps, NotedEnd};
    pub use crate::hold::trust::{HeldRecord, TrustSource};
    pub use crate::hold::{AtRelease, Hold, HoldOptions, HoldRequest, YieldRequest};
    pub use crate::meters::{Group, Meter};
    pub use crate::queue::acquire::MIN_HOLD;
    pub use crate::recipes::distributed::GuardSlot;
    pub use crate::session::exit::Leaving;

    /// Creates the guard of a hold that is not a node of a session ([`Hold::trusting`]). The task of the hold receives its requests.
    ///
    /// Whoever creates such a hold answers for what its guard promises.
    pub fn guard_of(hold: Arc<Hold>, requests: UnboundedSender<HoldRequest>) -> Guard {
        Guard::of(Holding::new(hold, requests))
    }

    /// Releases the lock as [`Holding::release`] does, and writes a node in the same transaction. Returns what was written; `None` if it
    /// was not written, or if that is unknown.
    ///
    /// If the node cannot be written, the lock is released without it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release. The node is written with it, or not at all.
    pub async fn release_and_write(hold: Holding, step: TxnStep) -> (Result<(), ReleaseError>, Option<Written>) {
        let (written, mut write) = oneshot::channel();
        hold.request(HoldRequest::WriteAtRelease(Box::new(AtRelease { step, written })));
        let released = hold.release().await;
        (released, write.try_recv().ok())
    }

    /// Returns the state of a hold, which shows when it was lost, also after its guard is dropped.
    pub fn state_of(hold: &Holding) -> Arc<Hold> {
        hold.state_of_hold()
    }

    /// Writes a note about a hold in the transaction that ends it. A later note replaces an earlier one.
    ///
    /// The task of a leased lock writes no notes. It only reports the end of the hold.
    pub fn note_end(hold: &Holding, note: Note) {
        hold.request(HoldRequest::Note(Box::new(note)));
    }
}

pub mod queue {
    //! What the nodes of a lock say: who contends for it, in which format, since when.

    pub use lockkeeper_core::{
        AttemptId, ForeignSemaphore, HOLDER_MARKER, LastRelease, Limit, PathRecord, ReleaseRecord, Sequence, Tombstone,
        is_active,
    };
    use lockkeeper_core::{LockPath, NodeData, PathError};

    use crate::Lockkeeper;
    pub use crate::admin::contest::{
        Contest, Marker, Roles, attempt_of, contender, created_by, format_of, may_be_directory, place_of,
    };
    pub use crate::contender::LEASE;
    use crate::ensemble::Node;
    use crate::queue::about::About;
    use crate::queue::acquire::Acquire;
    pub use crate::queue::driver::operations::is_contended_beside;
    use crate::queue::priority::PriorityLock;

    /// Returns the lock that a request asks for, in the words of its caller.
    pub fn about<G>(request: &Acquire<G>) -> About {
        request.about()
    }

    /// Returns whether the process that a contender's node names has ended on this machine. `false` if this process cannot know.
    pub fn process_has_ended(node: &Node) -> bool {
        let process = NodeData::read(&node.data).record().and_then(|record| record.process);
        process.as_ref().is_some_and(crate::identity::has_ended)
    }

    /// Returns the lock with classes at a path that was made from another name, or why there is none. As
    /// [`Lockkeeper::priority_lock`], it sends nothing, and the acquire reports an invalid path.
    pub fn priority_lock(keeper: &Lockkeeper, path: Result<LockPath, PathError>) -> PriorityLock {
        PriorityLock::new(keeper.context().clone(), path)
    }
}

pub mod registers {
    //! The records below `/lockkeeper`, and the record of a leased lock.

    pub use lockkeeper_core::leased;

    pub use crate::admin::questions::OURS;
    pub use crate::ensemble::shared::JOBS;
    pub use crate::registers::{HISTORY, REQUESTS, STATISTICS, journal, records};
}

pub mod wait {
    //! Waits that have a deadline, and how long a server may be silent.

    pub use lockkeeper_core::Silence;

    pub use crate::wait::{TRY, cancelled, judged_at, or_never, passed, reply};
}

pub mod text {
    //! Names, times and durations in words for people.

    pub use lockkeeper_core::{excerpt, plain, spell};

    pub use crate::clock::{as_millis, moment, typed, unix_epoch, wall_clock_ms};
}

pub mod process {
    //! This process, its user, and files that only the user may have written.

    pub use crate::ownership::{group_name, open_own, other_replacer, other_writer, read_credentials, user_name};
    pub use crate::procstat::ProcStat;
}

/// A value that wakes its listeners when it changes, in the order in which they wait, so that a seed of the simulator gives one history.
pub mod latest {
    pub use crate::latest::{Closed, Receiver, Sender};
}
