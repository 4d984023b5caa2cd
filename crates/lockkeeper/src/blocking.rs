//! Calls for programs without async.
//!
//! This is not another implementation. Every call runs on the session's own thread, and a blocking call only blocks the
//! caller's thread until the call is done. The usual calls have a blocking form of their own: `wait` on a request, and
//! methods whose names end in `_blocking`. For all other calls, such as those of a `Job`, of
//! [`Admin`](crate::admin::Admin) or of a guard, there is [`Lockkeeper::block_on`](crate::Lockkeeper::block_on).
//!
//! `realms` and `settings` connect with async calls only: make them on a runtime of your own.
//!
//! A guard that is dropped is released, also at the end of `main`: the process then waits for the servers, but no longer than 100 ms.
//! [`Holding`](crate::Holding) lists the exceptions. To know that the lock is free, release the guard or close the handle before
//! `main` returns, as below.
//!
//! ```no_run
//! let keeper = lockkeeper::blocking::connect("127.0.0.1:2181")?;
//! let guard = keeper.mutex("/locks/nightly").acquire().wait()?;
//! println!("holding with token {}", guard.token());
//! keeper.block_on(guard.verify())?;
//! guard.release_blocking()?;
//! keeper.close_blocking();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::Lockkeeper;
use crate::error::ConnectError;

/// Connects to an ensemble as [`Lockkeeper::connect`] does, and blocks this thread until it has.
///
/// # Errors
///
/// As [`Lockkeeper::connect`].
///
/// # Panics
///
/// Panics if called on a thread of an async runtime.
#[track_caller]
pub fn connect(servers: &str) -> Result<Lockkeeper, ConnectError> {
    Lockkeeper::builder().connect_blocking(servers)
}

/// Uses the embedded server of a directory as [`Lockkeeper::embedded`] does, and blocks this thread until it can.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let keeper = lockkeeper::blocking::embedded(dir.path())?;
/// keeper.mutex("/locks/nightly").acquire().wait()?.release_blocking()?;
/// keeper.close_blocking();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As [`Lockkeeper::embedded`].
///
/// # Panics
///
/// Panics if called on a thread of an async runtime.
#[cfg(feature = "embedded")]
#[track_caller]
pub fn embedded(dir: impl Into<std::path::PathBuf>) -> Result<Lockkeeper, ConnectError> {
    Lockkeeper::builder().embedded_blocking(dir)
}
