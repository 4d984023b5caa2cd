//! Prints the author and the reason of a break of this command's lock.

use std::time::Duration;

use lockkeeper::{FencingToken, Lockkeeper};
use tokio::time::timeout;

use crate::held::Held;
use crate::output::Printer;

/// Time limit for reading the records of breaks.
const JOURNAL: Duration = Duration::from_secs(1);

/// A hold, as the record of a break names it: the lock, the node, the token.
pub(crate) type HeldNode = (String, String, Option<FencingToken>);

/// Returns the holds of a guard.
pub(crate) fn holds(guard: Held<'_>) -> Vec<HeldNode> {
    let holds = guard.holdings().iter();
    holds.map(|hold| (hold.path().to_owned(), hold.node(), hold.fencing_token())).collect()
}

/// Prints the author and the reason if a record says that one of these holds was broken, and returns them. Dropping the future
/// leaves nothing behind.
pub(crate) async fn tell_author(keeper: &Lockkeeper, held: Vec<HeldNode>, printer: Printer) -> Option<String> {
    let mut author = None;
    let report = async {
        for (path, node, token) in &held {
            let Ok(broken) = keeper.admin().broken(path).await else { continue };
            if let Some(broken) = broken.iter().rev().find(|broken| broken.removed(node, *token)) {
                let text = format!("broken by {}{}: {}", broken.by, broken.proof, broken.reason);
                printer.note(&format!("{path} was {text}"));
                author.get_or_insert(text);
            }
        }
    };
    // Without an answer in time, only the loss is printed.
    _ = timeout(JOURNAL, report).await;
    author
}
