//! Known failures of other lock systems. Each has a test with the case's number, which shows that Lockkeeper does not have it.

mod connections;
mod deadlines;
mod delays;
mod holders;
mod kinds;
mod nodes;
mod queues;
mod servers;
