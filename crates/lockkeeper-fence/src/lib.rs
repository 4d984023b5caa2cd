//! Refuses stale fencing tokens at the resource that a lock protects.
//!
//! A lock cannot stop a process that is paused between the check and the step. The resource can stop it. Each holder sends the
//! fencing token of its hold, tokens grow from grant to grant, and the resource remembers the greatest one. This crate remembers
//! and compares tokens. It needs no ZooKeeper client and no runtime, so you can use it in the server of any resource.
//!
//! - [`TokenGate`]: one mark for each key, for resources in one process.
//! - [`FencedFile`]: a file, or anything that a file can represent, among the processes of a machine.
//! - `http` (feature `tower`): the header that carries a token, and a layer that checks it.
//!
//! ```
//! use lockkeeper_fence::{FencingToken, Refused, TokenGate};
//!
//! let gate = TokenGate::new();
//! let (paused, successor): (FencingToken, FencingToken) = ("4294967298".parse()?, "4294967305".parse()?);
//! {
//!     let _pass = gate.enter_blocking("catalogue", successor)?;
//!     // Change the catalogue here. The gate admits no other token while the pass exists.
//! }
//! match gate.enter_blocking("catalogue", paused) {
//!     Err(Refused::Stale { highest, .. }) => assert_eq!(highest, successor),
//!     other => panic!("the gate admitted a stale token: {other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

mod file;
mod gate;
#[cfg(feature = "tower")]
pub mod http;
#[cfg(feature = "persistent")]
mod marks;

pub use file::{FencedFile, FileError, FilePass};
pub use gate::{Enter, Pass, Refused, TokenGate};
pub use lockkeeper_core::{FencingToken, TokenEpoch, TokenError};
