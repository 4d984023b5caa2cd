//! A catalogue that many change at once: people who save an article, and workers that propagate a change over all of them.
//!
//! Both take the article's lock first, people in the foreground, workers in the background. The lock keeps them in order; that
//! nobody who was paused for too long overwrites what came after is the shelf's doing, which refuses a smaller fencing
//! token. `cargo run -p catalogue` shows it with real processes, which it pauses and kills.

pub mod actor;
pub mod api;
pub mod article;
pub mod picture;
pub mod scenarios;
pub mod scene;
pub mod shelf;
pub mod stage;
pub mod work;
