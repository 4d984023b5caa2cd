//! Every change of a tree of locks, seen with one watch.
//!
//! One persistent recursive watch shows the nodes of every client come and go: also those of Curator and Kazoo, without a write and
//! without asking anything of them. It needs ZooKeeper 3.6 or later, or this project's own server.
//!
//! - [`Tracker`] is pure: events, listings and reads go in; facts come out.
//! - [`Observer`] carries out what a tracker needs, with a session of its own.
//! - [`View`] hands on each lock that changes, in the shape of all other reads.
//! - [`Observation`] is what observers have seen: the state, a [`Journal`] on disk and, with the feature `http`, metrics.

mod fact;
#[cfg(feature = "http")]
mod jobs;
mod journal;
#[cfg(feature = "http")]
mod metrics;
mod observation;
mod observer;
#[cfg(feature = "http")]
pub(crate) mod recent;
mod records;
mod tracker;
mod view;

pub use fact::{Contender, End, Fact, GapCause, Moment, ObserverClock, What};
#[cfg(feature = "http")]
pub use jobs::{JobHealth, JobLine, Jobs};
pub use journal::{Journal, JournalError};
#[cfg(all(test, feature = "http"))]
pub(crate) use observation::glance::tests::busy;
#[cfg(feature = "http")]
pub(crate) use observation::glance::{Glance, LockGlance};
pub use observation::{Notice, Observation, Options, Snapshot, TreeState};
pub use observer::{ObserveError, Observer};
pub use records::RecordedEnd;
pub use tracker::{Limits, Since, Totals, Tracker, Wanted};
pub use view::View;
