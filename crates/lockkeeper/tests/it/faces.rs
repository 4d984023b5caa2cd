//! The library's faces beside the plain guard: several locks at once, locks as objects, asking a holder to let go.

mod access;
mod monitor;
mod objects;
mod revoking;
mod together;

/// Runs claims that know their kind of lock themselves, on every server.
macro_rules! on_every_server {
    ($($claim:ident),+ $(,)?) => { $(
        mod $claim {
            use $crate::support::{Kind, Site, run};

            #[test]
            fn embedded() {
                run(Kind::Native, Site::Embedded, super::$claim);
            }
            #[cfg(feature = "real-servers")]
            #[test]
            fn apache() {
                run(Kind::Native, Site::Apache, super::$claim);
            }
            #[cfg(feature = "real-servers")]
            #[test]
            fn ensemble() {
                run(Kind::Native, Site::Ensemble, super::$claim);
            }
        }
    )+ };
}
pub(crate) use on_every_server;
