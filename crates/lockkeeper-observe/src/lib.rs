#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod deadlock;
#[cfg(feature = "http")]
pub mod http;
mod millis;
#[cfg(feature = "http")]
pub mod page;
pub mod servers;
pub mod table;
pub mod watch;

/// Compiles the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/observe-library.md")]
struct Guide;
