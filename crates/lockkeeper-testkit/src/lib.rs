//! Tools for testing Lockkeeper against simulated and real servers.
//!
//! Not published: code that only tests need is here, so that the library does not carry it. Test infrastructure that knows no
//! lock is in `infra`; the simulator, chaos and their judge are in `judged`, which uses `infra`.

mod infra;
mod judged;

pub use infra::{apache, jvm, kafka, net, postgres, proxy, search};
pub use judged::{chaos, history, sim, worlds};
