//! The command as its users see it: the real binary, a state directory for every test, real signals.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod advice;
mod alive;
mod breaking;
mod ci_services;
mod completing;
mod config;
#[cfg(deep)]
mod counting;
mod daemon;
mod deadlocks;
mod deciding;
mod dlq;
mod doctor;
mod documents;
mod errors;
mod fencing;
mod first_page;
mod greedy;
mod guide_pictures;
mod harness;
mod healthy;
mod help;
mod history;
mod holding;
mod incidents;
mod input;
mod jobs;
#[cfg(deep)]
mod jobs_clock;
mod jobs_idle;
mod jobs_killed;
mod jobs_paused;
#[cfg(deep)]
mod jobs_pictures;
#[cfg(all(feature = "kafka", deep))]
mod kafka;
mod keeping;
mod kinds;
mod leading;
mod leasing;
mod limits;
mod looking;
mod losing;
mod moving;
mod nested;
mod observing;
mod pictures;
mod place;
mod plain;
mod real_work;
mod realms;
mod revoking;
mod running;
mod scope;
mod screens;
mod secured;
mod server;
mod serving;
mod several;
mod showing;
mod signals;
mod strangers;
mod streams;
mod terminal;
mod waiting;
mod watching;
mod yielding;
