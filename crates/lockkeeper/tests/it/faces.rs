//! The library's faces beside the plain guard: several locks at once, locks as objects, asking a holder to let go.

mod access;
mod monitor;
mod objects;
mod revoking;
mod together;

/// Runs claims that know their kind of lock themselves, on every server.
macro_rules! on_every_server {
    ($($claim:ident),+ $(,)?) => {
        $crate::support::tests! { [native Native] $($claim)+ }
    };
}
pub(crate) use on_every_server;
