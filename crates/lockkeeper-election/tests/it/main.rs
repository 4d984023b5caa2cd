//! Elections: ours alone, and together with Curator's and Kazoo's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod election;
mod election_interop;
