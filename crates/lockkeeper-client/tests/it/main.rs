//! Tests of the client, in one program so that it links once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batches;
mod calls;
mod machine;
mod narrow;
mod resume;
mod searching;
mod server;
mod tls;
mod worlds;
