//! Leader election on [`lockkeeper`]: of the processes that could do some work, one at a time does it.
//!
//! An [`Election`] is a path that all candidates share. A [`Candidate`] campaigns and, once it is elected, has a [`Leadership`]. The
//! leadership is a lock's [`Guard`](lockkeeper::Guard): it says for how long it can be relied on, and its
//! [`token`](lockkeeper::Guard::token) grows with each election. An [`Observer`] says who leads without being a candidate.
//!
//! ```
//! use lockkeeper::{CancellationToken, Lockkeeper};
//! use lockkeeper_election::Election;
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let keeper = Lockkeeper::embedded(dir.path()).await?;
//! let election = Election::new(&keeper, "/elections/scheduler");
//! let leadership = election.candidate("machine-1").campaign().await?;
//! assert!(leadership.is_leading());
//! assert_eq!(election.leader().await?.expect("one leads").id(), "machine-1");
//! leadership.resign().await?;
//! assert!(election.leader().await?.is_none());
//!
//! // Or with hooks, term after term, until `stop` is cancelled.
//! let stop = CancellationToken::new();
//! # let (candidate, stopping) = (election.candidate("machine-1"), stop.clone());
//! let running = candidate.run(
//!     &stop,
//!     |leadership, demoted| {
//!         # stopping.cancel();
//!         Box::pin(async move {
//!             println!("leads with token {}", leadership.token());
//!             demoted.cancelled().await;
//!         })
//!     },
//!     |demotion| Box::pin(async move { println!("does not lead any more: {demotion}") }),
//! );
//! running.await?;
//! # keeper.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to learn of promotions and demotions | use |
//! |---|---|
//! | once, and decide yourself what follows | [`Candidate::campaign`] |
//! | as closures, one pair of calls for each term | [`Candidate::run`] |
//! | as events in a loop of your own | [`Candidate::stand`] |
//! | as a process that is no candidate | [`Election::observe`] |
//!
//! # What is guaranteed
//!
//! The servers elect one candidate at a time, in the order in which the candidates came. A leader whose session ends is demoted by its
//! own clock before another candidate can be elected. A process that was paused notices that late: send the token with every change,
//! and let the resource refuse smaller ones.
//!
//! # With Java and Python
//!
//! Candidates of Apache Curator and Kazoo can be candidates of the same election: [`Election::node_format`] says how.
//!
//! # Errors
//!
//! Every call returns [`lockkeeper::Error`], so one `#[from]` is enough.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

mod candidacy;
mod candidate;
mod election;
mod leadership;
mod observer;
mod terms;

pub use candidacy::{Candidacy, Event};
pub use candidate::Candidate;
pub use election::Election;
pub use leadership::{BoxFuture, Demotion, Leadership};
pub use observer::{Leader, Observer};

/// Compiles the examples of the README and of the guide.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide/election.md")]
    struct Guide;
}
