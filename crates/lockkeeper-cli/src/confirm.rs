//! Asks for a confirmation on the terminal before a change that cannot be undone.

use std::io::IsTerminal;

use crate::exit::{Code, Failure};
use crate::screen::{Size, wrapped};
use crate::streams::{self, STDERR};

/// Checks that a confirmation is possible: `yes` replaces it, otherwise there must be a terminal.
///
/// # Errors
/// There is no terminal, and `yes` is not set.
pub(crate) fn possible(what: &str, yes: bool) -> Result<(), Failure> {
    if yes || on_terminal() {
        return Ok(());
    }
    Err(Failure::new(Code::Usage, format!("{what} needs a confirmation, and there is no terminal to ask on"))
        .hint("add --yes to skip the question"))
}

/// Returns whether a person can be asked.
pub(crate) fn on_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks on the terminal. Every answer except a yes is a no; so is the end of the input.
pub(crate) fn agreed(question: &str) -> bool {
    let question = format!("{question} [y/N] ");
    STDERR.push(Size::of(std::io::stderr()).map_or_else(|| question.clone(), |it| wrapped(&question, it.columns, 0)));
    // A terminal that was closed gives no answer either.
    streams::flush();
    let mut answer = String::new();
    _ = std::io::stdin().read_line(&mut answer);
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
