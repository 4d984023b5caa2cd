//! Distributed locks that leave nothing behind and say how long they may be trusted.
//!
//! A [`Lockkeeper`] is connected to a ZooKeeper ensemble, or to an embedded server where one machine is enough. It hands out
//! locks; a lock that is held is a [`Guard`]. Dropping the guard releases it, awaiting [`Guard::release`] confirms that.
//!
//! ```
//! use std::time::Duration;
//! use lockkeeper::{Error, Lockkeeper};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! // An embedded server in this directory; on a fleet: Lockkeeper::connect("zk1:2181,zk2:2181,zk3:2181").
//! let dir = tempfile::tempdir()?;
//! let keeper = Lockkeeper::embedded(dir.path()).await?;
//!
//! let nightly = keeper.mutex("/locks/nightly");
//! let guard = nightly.acquire().timeout(Duration::from_secs(5)).message("nightly index").await?;
//! assert!(guard.is_held());
//!
//! // Somebody else is refused, and told who has it.
//! match nightly.try_acquire().await {
//!     Err(Error::Held { holder: Some(holder), .. }) => assert_eq!(holder.message.as_deref(), Some("nightly index")),
//!     other => panic!("two holders: {other:?}"),
//! }
//!
//! // The token goes to the protected resource, which refuses smaller ones: a holder that was paused too long cannot
//! // undo what its successor did. Tokens grow from grant to grant.
//! let token = guard.token();
//! guard.release().await?;
//! let next = nightly.acquire().await?;
//! assert!(next.token() > token);
//!
//! // Who holds it, who waits?
//! let info = keeper.admin().show("/locks/nightly").await?;
//! assert_eq!((info.holders.len(), info.waiters.len()), (1, 0));
//! keeper.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When to use something else
//!
//! Inside one process a mutex of the standard library or of tokio is a thousand times cheaper. If overlapping work would only
//! be wasted, not wrong, almost any lock will do. If it would be wrong, no lock alone is enough: see [`Guard::token`].
//!
//! # What runs where
//!
//! Each [`Lockkeeper`] has one thread for its input and output. No code of yours runs there, and no future of this crate
//! needs a particular runtime: awaiting one only listens for what that thread will say. [`blocking`] therefore only adds calls
//! that wait on the caller's thread.
//!
//! Log events ([`tracing`]) are the exception: some are emitted on that thread, so your subscriber runs there. It must not
//! block. A subscriber that writes to a pipe or a terminal can block for as long as nobody reads, and then the heartbeats stop
//! and the locks are lost. Give it a writer that never blocks, such as `tracing_appender::non_blocking`.
//!
//! # Features
//!
//! `embedded` and `settings` are on unless `default-features = false`. Every set of these compiles.
//!
//! - `embedded`: `Lockkeeper::embedded` and the module `embedded`: a ZooKeeper-compatible server inside this process, for one
//!   machine.
//! - `settings`: the module `settings`: settings from files, the environment and a program's own flags.
//! - `tls`: TLS to the servers, `Builder::tls`. Builds a library of cryptography in C.
//! - `metrics`: hands what leased locks count to the facade of the crate `metrics`.
//! - `kafka`: dead letters in a Kafka topic, `deadletter::KafkaSink`. Builds librdkafka, which needs a C compiler and make.
//!
//! # Names from outside
//!
//! A lock's path is checked before anything is sent. A name that comes from outside, such as the id of a request, belongs to
//! [`LockPath::join`], never to `format!("/articles/{id}")`: a `/` in it would name another lock, and a name such as
//! `lock-0000000000` is refused because a lock on `/articles` would wait for it.

#![warn(missing_docs)]

mod admin;
mod clock;
mod error;
mod hold;
mod identity;
mod keeper;
mod lease;
mod queue;
mod recipes;
mod session;
mod work;

pub mod blocking;
#[cfg(feature = "embedded")]
pub mod embedded;
#[doc(hidden)]
pub mod ensemble;
pub mod realms;
#[cfg(feature = "settings")]
pub mod settings;

pub use admin::revoke::{Answer, Asked};
pub use admin::{
    Admin, Broken, ContenderInfo, Copied, CopyOptions, DecisionRecord, Follow, LeaseInfo, LockInfo, RequestorInfo,
    Survey, TransferFacts, TransferRequest, Unreadable,
};
pub use ensemble::acl::LockAcl;
#[cfg(feature = "tls")]
pub use ensemble::tls::Tls;
pub use error::{ChangeError, Error, ReleaseError, VerifyError, WriteError};
pub use hold::fenced::{FencedWrite, FencedWritten};
pub use hold::guard::{FromHolding, Guard, HoldState, Holding, Permit, UpgradeableGuard, WriteGuard};
pub use hold::{LostLock, OnLost};
pub use identity::this_process;
pub use keeper::{Builder, Lockkeeper};
pub use lockkeeper_core::{
    Class, ClassError, FencingToken, IncompatibleFormat, LockPath, Loss, NodeFormat, Owner, PathError, Revocation,
    SessionId, TokenEpoch,
};
pub use queue::acquire::Acquire;
pub use queue::multi::{MultiAcquire, MultiGuard};
pub use queue::mutex::Mutex;
pub use queue::priority::PriorityLock;
pub use queue::rwlock::{Access, RwLock};
pub use queue::semaphore::Semaphore;
pub use recipes::contentserv;
pub use recipes::distributed::DistributedLock;
pub use work::{deadletter, retry};

/// Leased locks with priorities, on nodes shared with Apache Helix.
pub mod helix {
    pub use crate::lease::*;
}

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The guide's examples compile.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/README.md")]
    struct Guide;
    #[doc = include_str!("../../../docs/guide/exclusive.md")]
    struct Exclusive;
    #[doc = include_str!("../../../docs/guide/shared.md")]
    struct Shared;
    #[doc = include_str!("../../../docs/guide/permits.md")]
    struct Permits;
    #[doc = include_str!("../../../docs/guide/priority.md")]
    struct Priority;
    #[doc = include_str!("../../../docs/guide/several.md")]
    struct Several;
    #[doc = include_str!("../../../docs/guide/losing.md")]
    struct Losing;
    #[doc = include_str!("../../../docs/guide/asking.md")]
    struct Asking;
    #[doc = include_str!("../../../docs/guide/objects.md")]
    struct Objects;
    #[doc = include_str!("../../../docs/guide/helix.md")]
    struct Helix;
    #[cfg(feature = "kafka")]
    #[doc = include_str!("../../../docs/guide/dead-letters.md")]
    struct DeadLetters;
    #[cfg(feature = "settings")]
    #[doc = include_str!("../../../docs/guide/synchronized.md")]
    struct Synchronized;
    #[doc = include_str!("../../../docs/guide/fencing.md")]
    struct Fencing;
}

/// There is no way in without a guard, none to stay without one, and none to more than was granted.
///
/// A guard cannot be made:
/// ```compile_fail,E0423
/// let guard = lockkeeper::Guard(todo!());
/// ```
/// nor used when it was given back:
/// ```compile_fail,E0382
/// async fn done(guard: lockkeeper::Guard) {
///     let _ = guard.release().await;
///     guard.token();
/// }
/// ```
/// nor, by a writer, when it became a reader's:
/// ```compile_fail,E0382
/// async fn downgraded(guard: lockkeeper::WriteGuard) {
///     let reader = guard.downgrade().await;
///     guard.token();
/// }
/// ```
/// A guard that is bound to nothing is told by the compiler:
/// ```compile_fail
/// #![deny(unused_must_use)]
/// async fn unguarded(keeper: lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
///     keeper.mutex("/a").acquire().await?;
///     Ok(())
/// }
/// ```
/// For `let _`, which drops it at once, the compiler has a lint that is off unless a crate turns it on:
/// ```compile_fail
/// #![deny(let_underscore_drop)]
/// async fn unguarded(keeper: lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
///     let _ = keeper.mutex("/a").acquire().await?;
///     Ok(())
/// }
/// ```
/// and a named guard passes both:
/// ```
/// #![deny(unused_must_use, let_underscore_drop)]
/// async fn guarded(keeper: lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
///     let _guard = keeper.mutex("/a").acquire().await?;
///     Ok(())
/// }
/// ```
/// A reader cannot become a writer, where another reader could want the same:
/// ```compile_fail,E0599
/// async fn upgrade(keeper: lockkeeper::Lockkeeper) {
///     keeper.rwlock("/a").read().acquire().await.unwrap().upgrade(None).await;
/// }
/// ```
/// neither by a method meant for this crate:
/// ```compile_fail,E0061
/// use lockkeeper::FromHolding;
/// fn pretend(reader: lockkeeper::Guard) -> lockkeeper::WriteGuard {
///     lockkeeper::WriteGuard::from_holding(reader.into_holding())
/// }
/// ```
/// Permits are in no order, so they have no token:
/// ```compile_fail,E0599
/// async fn order(keeper: lockkeeper::Lockkeeper) {
///     keeper.semaphore("/a", 3).acquire().await.unwrap().token();
/// }
/// ```
#[cfg(doctest)]
struct Case30NoWayInWithoutAGuard;
