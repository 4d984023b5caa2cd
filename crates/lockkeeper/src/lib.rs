//! Distributed locks that clean up after themselves and report how long they can be trusted.
//!
//! A [`Lockkeeper`] is connected to a ZooKeeper ensemble or, on a single machine, to an embedded server. It creates
//! locks; a held lock is a [`Guard`]. Dropping the guard releases the lock; awaiting
//! [`Guard::release`] also confirms the release. [`Holding`] says what is left if the process ends right after a drop.
//!
//! ```
//! use std::time::Duration;
//! use lockkeeper::Lockkeeper;
//! use lockkeeper::error::AcquireError;
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
//! // Another attempt fails, and the error names the holder.
//! match nightly.try_acquire().await {
//!     Err(AcquireError::Held { holder: Some(holder), .. }) => {
//!         assert_eq!(holder.message.as_deref(), Some("nightly index"));
//!     }
//!     other => panic!("two holders: {other:?}"),
//! }
//!
//! // Pass the token to the protected resource, which rejects smaller ones. Then a holder that was paused too long cannot
//! // overwrite what its successor wrote. Tokens grow from grant to grant.
//! let token = guard.token();
//! guard.release().await?;
//! let next = nightly.acquire().await?;
//! assert!(next.token() > token);
//!
//! // Read the holders and the waiters.
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
//! Inside one process, a mutex of the standard library or of tokio is a thousand times cheaper. If overlapping work
//! would only be wasted, not wrong, almost any lock will do. If it would be wrong, no lock alone is enough: see
//! [`Guard::token`].
//!
//! # Threads and runtimes
//!
//! Each [`Lockkeeper`] has one thread for its input and output. Your code does not run there. No future of this
//! crate needs a particular runtime, because a future only waits for a message from that thread. [`blocking`]
//! therefore only adds calls that block the caller's thread.
//!
//! # Paused time in tests
//!
//! In a test with tokio's paused time (`#[tokio::test(start_paused = true)]`), a future of this crate waits for a real
//! thread and a real server. tokio sees a runtime in which no task can run, and moves its clock to the next timer. So
//! `tokio::time::timeout(limit, lock.acquire())` fails at once, even if the lock is free. Use the deadline of the request,
//! which the library's thread measures in real time:
//!
//! ```no_run
//! # use std::time::Duration;
//! # async fn example(lock: lockkeeper::Mutex) -> Result<(), lockkeeper::error::AcquireError> {
//! let guard = lock.acquire().timeout(Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Holding::release_within`] and [`Lockkeeper::close_within`] do the same for a release and for the end. The test's clock also ends
//! a `tokio::time::sleep` beside a call of this crate too early. Call `tokio::time::resume` around such a part of the test.
//!
//! # Log events
//!
//! The library emits some of its log events ([`tracing`]) on its own thread, so your subscriber runs there. It must not block,
//! and neither must a recorder of metrics. A subscriber that writes to a pipe or a terminal can block for as long as the other end
//! does not read. Then the heartbeats stop and the locks are lost. Use a writer that never blocks, such as
//! `tracing_appender::non_blocking`.
//!
//! Each acquire of any kind of lock emits one event `acquired` of the level `DEBUG`, with `path`, `mode`, `waited_ms` and, if the hold
//! has one, `token`. It is emitted where your code awaits the acquire, so it is in your span.
//!
//! # Features
//!
//! `embedded` and `tls` are on by default. Every combination of features compiles.
//!
//! - `embedded`: `Lockkeeper::embedded` and the module `embedded`: a ZooKeeper-compatible server inside this process,
//!   for one machine.
//! - `tls`: TLS to the servers, with `Builder::tls`: rustls with ring.
//! - `metrics`: reports calls, waiters, hold times and losses of every kind of lock through the crate `metrics`. No label is a path; the
//!   program names a group, with `Builder::metrics_group` or `Acquire::metrics_group`. The guide's
//!   [page](https://github.com/lockkeeper/lockkeeper/blob/main/docs/guide/metrics.md) has the table.
//!
//! # Stability
//!
//! All items change as semantic versioning says. Some of them are types of `lockkeeper-session`, `lockkeeper-core`, `lockkeeper-client` and
//! `lockkeeper-server`; all crates of Lockkeeper are released together, with one version. The features `http` of `lockkeeper-observe` and
//! `kafka` of `lockkeeper-letters`, and `Observer::into_stream` of `lockkeeper-election`, show types of foreign crates below 1.0.
//!
//! # Your own recipe
//!
//! A [`Lockkeeper`] stands on the sessions of `lockkeeper-session`, and [`Lockkeeper::sessions`] returns them: operations, transactions and
//! watches of the same session, for what no lock of this crate does. [`hold`] has guards whose trust comes from elsewhere than a node of
//! a session, and [`contest`] decides who holds a lock from its nodes.
//!
//! # Guide
//!
//! The [guide](https://github.com/lockkeeper/lockkeeper/blob/main/docs/guide/README.md) has a page for each task: which
//! lock fits, what happens when a lock is lost, how a resource checks a token.
//!
//! # Names from untrusted input
//!
//! Every lock path is checked before anything is sent. Pass names from outside, such as the id of a request, to
//! [`LockPath::join`], never to `format!("/articles/{id}")`: a `/` in the name would select another lock. Names such as
//! `lock-0000000000` are rejected, because a lock on `/articles` would wait for such a node.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

pub mod admin;
mod broken;
mod callbacks;
mod contender;

pub mod contest;
mod grant;
pub mod hold;
mod identity;
pub mod journal;
mod keeper;
mod meters;
mod queue;
mod recipes;

pub mod blocking;
pub mod error;

pub use error::Error;
pub use hold::guard::{Guard, WriteGuard};
pub use hold::holding::Holding;
pub use keeper::Lockkeeper;
pub use keeper::builder::Builder;
pub use lockkeeper_core::{Class, FencingToken, LockPath, Loss, NodeFormat, Revocation};
#[cfg(feature = "tls")]
pub use lockkeeper_session::Tls;
#[cfg(feature = "embedded")]
pub use lockkeeper_session::embedded;
pub use lockkeeper_session::{CancellationToken, acl};
pub use queue::acquire::Acquire;
pub use queue::multi::MultiGuard;
pub use queue::mutex::Mutex;
pub use queue::priority::PriorityLock;
pub use queue::request::Request;
pub use queue::rwlock::RwLock;
pub use queue::semaphore::Semaphore;
pub use recipes::distributed::DistributedLock;

/// Guards of single kinds, what a guard says and does, and writes that take effect only while the lock is held.
pub mod guard {
    pub use crate::hold::fenced::{FencedWrite, FencedWritten};
    pub use crate::hold::guard::{Permit, UpgradeableGuard};
    pub use crate::hold::holding::HoldState;
    pub use crate::hold::on_lost::{LostLock, OnLost};
    pub use crate::hold::upgrade::{Upgrade, UpgradeError};
}

/// Requests for several locks, the two sides of a shared lock, what a request asks for, and what it reports.
pub mod request {
    pub use crate::queue::about::About;
    pub use crate::queue::multi::MultiAcquire;
    pub use crate::queue::requeue::Requeued;
    pub use crate::queue::rwlock::Access;
}

/// A lock cannot be used without a guard, nor after its release, nor for more than was granted.
///
/// A guard cannot be constructed:
/// ```compile_fail,E0423
/// let guard = lockkeeper::Guard(todo!());
/// ```
/// nor used after its release:
/// ```compile_fail,E0382
/// async fn done(guard: lockkeeper::Guard) {
///     let _ = guard.release().await;
///     guard.token();
/// }
/// ```
/// nor used by a writer after it became a reader:
/// ```compile_fail,E0382
/// async fn downgraded(guard: lockkeeper::WriteGuard) {
///     let reader = guard.downgrade().await;
///     guard.token();
/// }
/// ```
/// The compiler warns of a guard that is not bound to a name:
/// ```compile_fail
/// #![deny(unused_must_use)]
/// async fn unguarded(keeper: lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
///     keeper.mutex("/a").acquire().await?;
///     Ok(())
/// }
/// ```
/// For `let _`, which drops the guard immediately, the compiler has a lint that a crate must enable:
/// ```compile_fail
/// #![deny(let_underscore_drop)]
/// async fn unguarded(keeper: lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
///     let _ = keeper.mutex("/a").acquire().await?;
///     Ok(())
/// }
/// ```
/// A named guard passes both lints:
/// ```
/// #![deny(unused_must_use, let_underscore_drop)]
/// async fn guarded(keeper: lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
///     let _guard = keeper.mutex("/a").acquire().await?;
///     Ok(())
/// }
/// ```
/// A reader cannot become a writer, because two readers that both wait for it would deadlock:
/// ```compile_fail,E0599
/// async fn upgrade(keeper: lockkeeper::Lockkeeper) {
///     keeper.rwlock("/a").read().acquire().await.unwrap().upgrade().await;
/// }
/// ```
/// nor can it by a conversion, which only leads to a weaker guard:
/// ```compile_fail,E0277
/// fn pretend(reader: lockkeeper::Guard) -> lockkeeper::WriteGuard {
///     lockkeeper::WriteGuard::from(reader)
/// }
/// ```
/// nor with a function that is meant for this crate only:
/// ```compile_fail,E0624
/// fn pretend(reader: lockkeeper::Guard) -> lockkeeper::WriteGuard {
///     lockkeeper::WriteGuard::of(lockkeeper::Holding::from(reader))
/// }
/// ```
/// Permits have no order, so they have no token:
/// ```compile_fail,E0599
/// async fn order(keeper: lockkeeper::Lockkeeper) {
///     keeper.semaphore("/a", 3).acquire().await.unwrap().token();
/// }
/// ```
#[cfg(doctest)]
struct Case30NoWayInWithoutAGuard;
