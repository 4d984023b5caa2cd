//! The library against servers. One binary, so that it links once.

#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

mod cases;
mod contract;
mod counts;
mod dated;
mod embedded;
mod epoch;
mod examples;
mod exits;
mod far;
mod fenced;
mod foreign;
mod helix;
mod interfaces;
mod jobs;
mod jobs_simulated;
mod kinds;
mod last_looks;
mod own_recipes;
mod recipes;
mod retrying;
mod settings;
mod simulation;
mod spans;
mod support;
mod trust;
mod work;
