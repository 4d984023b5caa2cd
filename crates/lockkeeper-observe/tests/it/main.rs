//! Tests of the crate's public face, in one program so that it links once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod browser;
mod grants;
mod observer;
mod servers;
mod tracker;
