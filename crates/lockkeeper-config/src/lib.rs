//! Settings for programs on the crate [`lockkeeper`], and locks on several ensembles:
//!
//! - [`settings`]: files, environment variables and flags in layers;
//! - [`realms`]: which ensemble has which paths.

#![warn(missing_docs)]

pub mod realms;
pub mod settings;

/// Compiles the examples of the guide.
#[cfg(doctest)]
mod guide {
    // It is the page of `lockkeeper-helix`, which does not depend on this crate.
    #[doc = include_str!("../../../docs/guide/helix.md")]
    struct Helix;

    #[doc = include_str!("../../../docs/guide/synchronized.md")]
    struct Synchronized;
}
