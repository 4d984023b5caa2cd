//! The contract of a lock: what holds for every kind of lock on every server, each rule written once.

mod asking;
mod breaking;
mod calling;
mod granting;
mod healthy;
mod leaving;
mod losing;
