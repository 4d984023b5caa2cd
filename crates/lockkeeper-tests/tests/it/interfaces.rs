//! The library's other interfaces: several locks in one call, locks as objects, and asking a holder to release.

mod access;
mod copying;
mod documents;
mod handle;
mod kept;
mod metrics;
mod monitor;
mod multi_lock;
mod objects;
mod revoking;
mod shared_reads;
mod texts;

/// Runs claims that choose their kind of lock themselves, on every server.
macro_rules! on_every_server {
    ($($claim:ident),+ $(,)?) => {
        $crate::support::tests! { [native Native] $($claim)+ }
    };
}
pub(crate) use on_every_server;
