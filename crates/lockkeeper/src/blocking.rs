//! The queue locks and the lock objects for programs without async.
//!
//! Not another implementation: every call runs on the session's own thread anyway, so waiting for its outcome on this one is
//! all there is to add. A leased lock ([`helix`](crate::helix)) has async calls only.
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

/// [`Lockkeeper::connect`] on this thread.
///
/// # Errors
/// As [`Lockkeeper::connect`].
///
/// # Panics
/// If called from within an async runtime's thread.
pub fn connect(servers: &str) -> Result<Lockkeeper, Error> {
    Lockkeeper::builder().connect_blocking(servers)
}
