//! Histories of contenders, simulated or on real servers, and the judge of these histories.

pub mod history;
pub mod sim;
pub mod worlds;
