//! What each verb has: its options, and what it does.

use std::future::Future;

use crate::args::common::Common;
use crate::args::connect::ConnectArgs;
use crate::exit::Failure;
use crate::output::Printer;

/// What a verb works with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    /// Prints its messages.
    pub printer: &'a Printer,
    /// Returns the definitions of all verbs and options.
    pub definitions: fn() -> clap::Command,
}

/// The files of a verb beside those of the place, as its definition carries them: the name, and what the file is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files(pub &'static [(&'static str, &'static str)]);

impl clap::builder::CommandExt for Files {}

/// The variables that a verb sets for its command, as its definition carries them. The texts have marks of Markdown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sets(pub &'static [(&'static str, &'static str)]);

impl clap::builder::CommandExt for Sets {}

/// A verb. Its options implement it; a row in [`crate::verbs`] makes it known.
pub(crate) trait Verb: clap::Args {
    /// What it takes as most verbs do.
    fn common(&self) -> Option<&Common> {
        None
    }

    /// Whether the output is JSON.
    fn json(&self) -> bool {
        self.common().is_some_and(|common| common.json)
    }

    /// The options that name the place of the locks.
    fn connect(&self) -> Option<&ConnectArgs> {
        self.common().map(|common| &common.connect)
    }

    /// Whether it runs for long, so that people read its messages later, in a log.
    fn takes_a_while(&self) -> bool {
        false
    }

    /// Does what was asked; returns the exit status.
    fn obey(self, context: Context<'_>) -> impl Future<Output = Result<u8, Failure>>;
}
