//! Tools for testing Lockkeeper against simulated and real servers.
//!
//! Not published: it has code that only tests need. Test infrastructure that knows no lock is in `infra`. The
//! simulator and the judge of histories are in `judged`.

mod infra;
mod judged;

pub use infra::{Stalls, apache, end, free_ports, kafka, net, postgres, proxy};
pub use judged::{history, sim, worlds};

/// Returns whether tests run at their full size, as `cargo xtask deep` runs them.
pub fn is_deep() -> bool {
    std::env::var_os("LOCKKEEPER_DEEP").is_some()
}
