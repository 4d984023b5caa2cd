//! Tests of the server over TCP, with a client of our own and a foreign one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
#[cfg(target_os = "linux")]
mod device;
mod faults;
mod foreign;
mod hostile;
mod identity;
mod limits;
mod living;
mod operator;
mod persistent;
mod protocol;
mod secured;
mod storage;
mod watching;
