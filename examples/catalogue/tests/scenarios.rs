//! The example on one machine without other software, as a person runs it.

#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::process::Command;

/// Every scenario fails if an expected event does not happen, so exit status 0 means that all were shown.
#[test]
fn the_example_plays_all_its_scenarios_with_nothing_installed() {
    let played = Command::new(env!("CARGO_BIN_EXE_catalogue"))
        .args(["play", "--plain"])
        .env_remove("LOCKKEEPER_SERVERS")
        .env_remove("LOCKKEEPER_SEARCH")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&played.stdout);
    assert!(played.status.success(), "{}\n{output}", String::from_utf8_lossy(&played.stderr));
    assert!(output.contains("has privateLock, A-"), "{output}");
}
