//! The particular rules of each kind of lock, request by request and node by node.

mod classes;
mod fairness;
mod pairs;
mod permits;
mod plain;
mod revoking;
mod sessionless;
mod sharing;
mod wakeups;
mod yielding;
