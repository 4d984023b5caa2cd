//! The queue locks and the lock objects for programs without async.
//!
//! This is not another implementation: every call runs on the session's own thread anyway, and these calls only block
//! the caller's thread until it is done. A leased lock ([`helix`](crate::helix)) has only async calls.
//!
//! ```no_run
//! let keeper = lockkeeper::blocking::connect("127.0.0.1:2181")?;
//! let guard = keeper.mutex("/locks/nightly").acquire().wait()?;
//! println!("holding with token {}", guard.token());
//! guard.release_blocking()?;
//! keeper.close_blocking();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::{Error, Lockkeeper};

/// Connects to an ensemble as [`Lockkeeper::connect`] does, and blocks this thread until it has.
///
/// # Errors
///
/// As [`Lockkeeper::connect`].
///
/// # Panics
///
/// Panics if called on a thread of an async runtime.
pub fn connect(servers: &str) -> Result<Lockkeeper, Error> {
    Lockkeeper::builder().connect_blocking(servers)
}
