//! The history of holds: who held a lock, for how long, how each hold ended, and who was refused.
//!
//! # What is kept
//!
//! The records of a lock are below `/lockkeeper/history`, in a node named after the lock. It has at most 16 records of holds and 8 of
//! refusals; a new one replaces the oldest. At most 1 024 locks have records. Beyond that, those without a hold for the
//! longest time are deleted. A record has about 250 bytes; 10 KiB is the most that is read.
//!
//! A program asks for the record of a hold after its grant:
//!
//! ```no_run
//! # async fn example(keeper: lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
//! use lockkeeper_history::{History, Recorder};
//!
//! let guard = keeper.mutex("/locks/nightly").acquire().await?;
//! Recorder::new(&keeper).message("nightly index").record(&guard);
//! // The work. The release writes the record, also if the guard is dropped.
//! guard.release().await?;
//! for entry in History::new(&keeper).of("/locks/nightly").await? {
//!     println!("{entry:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What it costs
//!
//! [`Recorder::record`] reads two nodes in the background, and then the record travels in the transaction that releases the lock: no
//! request more, about 0.1 ms. Each of the first 16 records of a lock creates its node in the background too. A hold
//! that ends before the reads are answered, and one that is lost, is written by requests of its own. If such a record comes between
//! the reads and the release of the next hold, that release takes one round trip more.
//!
//! # Whose words they are
//!
//! What a record says is the claim of its writer. Every client that may contend for the lock may write it. Times are the servers':
//! a record has durations, and the server's stamp says when it was written.

use lockkeeper_session::ensemble::NodeKind;

mod entry;
mod flapping;
mod habits;
mod kept;
mod lock_use;
mod merge;
mod millis;
mod read;
mod record;
mod recorder;
mod refusals;
mod store;

pub use entry::{Entry, PastHold, Refusal};
pub use flapping::{Flapping, LikelyCause};
pub use habits::Habits;
pub use kept::KeptHold;
pub use lock_use::{InvalidLockUse, LockUse};
pub use merge::RecordedEnd;
pub use read::{Follow, FollowRefusals, History, HistoryError};
pub use record::{HoldEnd, RefusalReason};
pub use recorder::{Ending, Recorder, Recording, Unrecorded};
pub use refusals::{NewRefusal, refused};

/// The parent of all records.
pub const ROOT: &str = "/lockkeeper/history";

/// The nodes below `/lockkeeper` that it keeps records in, for [`Admin::set_up`](lockkeeper::admin::Admin::set_up).
pub const REGISTERS: [(&str, NodeKind); 1] = [(ROOT, NodeKind::Shared)];

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
