//! The contract of a lock: rules that hold for every kind of lock on every server, each written once.

mod breaking;
mod calling;
mod granting;
mod healthy;
mod leaving;
mod losing;
mod queries;
