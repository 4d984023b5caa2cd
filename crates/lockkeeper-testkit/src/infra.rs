//! Test infrastructure that knows no lock: processes, real servers, networks, and a proxy that breaks connections.

pub mod apache;
pub mod kafka;
pub mod net;
pub mod postgres;
mod process;
pub mod proxy;
mod stalls;

pub use process::{end, free_ports};
pub use stalls::Stalls;
