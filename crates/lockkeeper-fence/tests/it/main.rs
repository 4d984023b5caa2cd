//! Tests of the gates.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod file;
mod gate;
mod http;
