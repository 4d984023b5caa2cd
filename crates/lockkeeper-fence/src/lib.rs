//! For the resource's side of a lock: refuse whoever comes with an older fencing token than has been seen.
//!
//! A lock cannot stop a process that is paused between looking at it and acting. The resource can: each holder brings the token
//! of its hold, tokens grow from grant to grant, and the resource remembers the greatest. This crate is what remembers and
//! compares, ready to use; it needs no ZooKeeper client and no runtime, so it can go into the server of any resource.
//!
//! - [`TokenGate`]: by key, for a resource in a process.
//! - [`FencedFile`]: a file, or whatever a file can stand for, among the processes of a machine.
//! - `http` (feature `tower`): the header that carries a token, and a layer that checks it.
//!
//! ```
//! use lockkeeper_fence::{FencingToken, Refused, TokenGate};
//!
//! let gate = TokenGate::new();
//! let (paused, successor): (FencingToken, FencingToken) = ("4294967298".parse()?, "4294967305".parse()?);
//! {
//!     let _pass = gate.enter_blocking("catalogue", successor)?;
//!     // Change the catalogue here: nobody else does while the pass is held.
//! }
//! match gate.enter_blocking("catalogue", paused) {
//!     Err(Refused::Stale { highest, .. }) => assert_eq!(highest, successor),
//!     other => panic!("a stale holder got in: {other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod file;
mod gate;
#[cfg(feature = "tower")]
pub mod http;
#[cfg(feature = "persistent")]
mod marks;

pub use file::{FencedFile, FileError, FilePass};
pub use gate::{Enter, Pass, Refused, TokenGate};
pub use lockkeeper_core::{FencingToken, TokenError};
