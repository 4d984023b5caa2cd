//! Public failures of other lock systems, each kept out of ours by a test that carries its number.

mod connections;
mod crowds;
mod deadlines;
mod delays;
mod holders;
mod kinds;
mod nodes;
mod servers;
