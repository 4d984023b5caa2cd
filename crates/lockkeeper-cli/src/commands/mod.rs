//! One module for each verb.

pub(crate) mod breaking;
pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod dlq;
pub(crate) mod epoch;
pub(crate) mod fence;
pub(crate) mod init;
pub(crate) mod jobs;
pub(crate) mod lead;
pub(crate) mod list;
pub(crate) mod realms;
pub(crate) mod requests;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod why;
