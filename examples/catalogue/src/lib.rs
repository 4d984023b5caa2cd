//! A catalogue with many writers: people save an article, and workers propagate a change over all articles.
//!
//! Both acquire the article's lock first, people in the foreground class, workers in the background class. The lock keeps them in
//! order. The shelf refuses smaller fencing tokens, so a client that was paused for too long cannot overwrite newer changes.
//! `cargo run -p catalogue` shows this with real processes, which it pauses and kills.

pub mod actor;
pub mod api;
pub mod article;
pub mod picture;
pub mod scenarios;
pub mod scene;
pub mod shelf;
pub mod stage;
pub mod work;
