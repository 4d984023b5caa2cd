//! Tests of the protocol's parts, in one program so that it links once; model.rs is another one, with an allocator of its own.

mod anything_told;
mod foreign_names;
mod properties;
