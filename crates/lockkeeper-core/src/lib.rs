//! The lock protocols of Lockkeeper, as state machines without I/O.
//!
//! A [`Contender`] gets what happened ([`Event`]) and returns what to do next ([`Command`]). It never touches a socket, a
//! clock or a log; this crate's `Cargo.toml` has nothing it could do that with. So the model checker in `tests/model.rs`
//! explores the code that runs in production, not a copy of it.
//!
//! Where to start reading: [`Discipline::decide`] answers who blocks whom in a [`Queue`]. [`Contender`] is the protocol around
//! that one question. [`leased`] is the record of a leased lock, whose protocol is in the crate `lockkeeper-helix`. [`NodeFormat`] says
//! how the nodes of a path are named. [`SessionClock`] judges how long a session may be trusted.

#![warn(missing_docs)]

mod attempt;
mod class;
mod contender;
mod discipline;
mod hold;
mod kept;
pub mod leased;
mod local;
mod mode;
mod naming;
mod path;
mod payload;
mod process;
mod protocol;
mod queue;
mod semaphore;
mod sequence;
mod sessionless;
mod silence;
mod text;
mod token;
mod tombstone;
mod trace;

pub use attempt::{AttemptId, ParseIdError};
pub use class::{Class, ClassError};
pub use contender::Contender;
pub use discipline::{Discipline, Verdict, Watch};
pub use hold::{Link, LinkState, Loss, SessionClock, Ticks, Trust};
pub use kept::{CallNumber, HoldNumber, KeptCommand, KeptEvent, KeptQueue, UsePolicy};
pub use local::{LocalKey, LocalQueue, LocalState};
pub use mode::Mode;
pub use naming::{HOLDER_MARKER, IncompatibleFormat, NodeFormat, NodeName, node_path};
pub use path::{LockPath, PathError};
pub use payload::{
    LastRelease, Limit, MAX_MESSAGE_BYTES, NodeData, Owner, PathRecord, Payload, ReleaseRecord, Revocation,
};
pub use process::{ProcessInstance, ProcessState};
pub use protocol::{
    Arrival, Ask, Command, End, Event, Failure, Grant, Inspection, Listing, PathMade, QueuePlace, ReleaseSeen,
    ReleaseWrite, WatchKind,
};
pub use queue::{Entry, Queue};
pub use semaphore::{CURATOR_LEASES, CURATOR_LOCK, ForeignSemaphore, KAZOO_LOCK, SemaphoreNode};
pub use sequence::Sequence;
pub use sessionless::Sessionless;
pub use silence::Silence;
#[doc(hidden)]
pub use text::{excerpt, is_active, plain, spell};
pub use token::{EpochError, FencingToken, SessionId, TokenEpoch, TokenError, Zxid};
pub use tombstone::{LockDelay, Tombstone};
pub use trace::{TraceParent, TraceParentError};
