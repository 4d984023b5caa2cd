//! Calls for programs without async.
//!
//! This is not another implementation. Every call runs on the session's own thread, and a blocking call only blocks the
//! caller's thread until the call is done. The usual calls have a blocking form of their own: `wait` on a request, and
//! methods whose names end in `_blocking`. For all other calls, such as those of a `Job`, of
//! [`Admin`](crate::admin::Admin) or of a guard, there is [`Lockkeeper::block_on`](crate::Lockkeeper::block_on).
//!
//! `embedded`, `realms` and `settings` connect with async calls only: make them on a runtime of your own.
//!
//! ```no_run
//! let keeper = lockkeeper::blocking::connect("127.0.0.1:2181")?;
//! let guard = keeper.mutex("/locks/nightly").acquire().wait()?;
//! println!("holding with token {}", guard.token());
//! keeper.block_on(guard.verify())?;
//! guard.release_blocking()?;
//! let leased = keeper.helix_lock("/locks/leased", std::time::Duration::from_secs(60));
//! leased.acquire().wait()?.release_blocking()?;
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
pub fn connect(servers: &str) -> Result<Lockkeeper, ConnectError> {
    Lockkeeper::builder().connect_blocking(servers)
}
