//! Side trees below `/lockkeeper`: the journal, the pending decisions, and the statistics of a fleet.
//!
//! A lock's own node has none of them. Both protocols write them; `admin` reads them.

pub(crate) mod journal;
mod records;
pub(crate) mod requests;
pub(crate) mod statistics;

pub(crate) use records::make;
