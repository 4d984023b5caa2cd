//! The command as its users meet it: the real binary, its own state directory for every test, real signals.

mod harness;
mod input;
mod losing;
mod place;
mod running;
mod showing;
mod signals;
mod terminal;
mod waiting;
