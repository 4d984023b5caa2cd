//! A question on the terminal before something that cannot be undone.

use std::io::IsTerminal;

use crate::exit::{Code, Failure};
use crate::streams::{self, STDERR};

/// Whether it may go on: with `yes` it need not ask, otherwise there must be a terminal.
///
/// # Errors
/// There is none.
pub(crate) fn possible(what: &str, yes: bool) -> Result<(), Failure> {
    if yes || (std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(());
    }
    Err(Failure::new(Code::Usage, format!("{what} asks before it acts, and there is no terminal to ask on"))
        .hint("add --yes to do it without a question"))
}

/// Asks on the terminal. Anything but a yes is a no, the end of the input too.
pub(crate) fn agreed(question: &str) -> bool {
    STDERR.push(format!("{question} [y/N] "));
    // A terminal that is gone gives no answer either.
    streams::flush();
    let mut answer = String::new();
    _ = std::io::stdin().read_line(&mut answer);
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
