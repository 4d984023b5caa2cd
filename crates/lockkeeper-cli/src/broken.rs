//! Prints the author and the reason of a break of this command's lock.

use std::time::Duration;

use lockkeeper::{FencingToken, Lockkeeper};
use tokio::time::timeout;

use crate::held::Held;
use crate::output::Printer;

/// Time limit for reading the records of breaks. A process that was paused connects first.
const JOURNAL: Duration = Duration::from_secs(5);

/// How often the records are asked for: the connection, and then the session, of a process that was paused may end meanwhile.
const TRIES: usize = 3;

/// A break of a hold, as its record says.
#[derive(Debug)]
pub(crate) struct Break {
    path: String,
    /// `broken by root@ci-7: its host burns`
    text: String,
}

/// A hold, as the record of a break names it: the lock, the node, the token.
pub(crate) type HeldNode = (String, String, Option<FencingToken>);

/// Returns the holds of a guard.
pub(crate) fn holds(guard: Held<'_>) -> Vec<HeldNode> {
    let holds = guard.holdings().iter();
    holds.map(|hold| (hold.path().to_owned(), hold.node(), hold.fencing_token())).collect()
}

/// Returns which of these holds were broken, as the records say; none if no server answers in time. Dropping the future leaves nothing
/// behind.
pub(crate) async fn breaks(keeper: &Lockkeeper, held: Vec<HeldNode>) -> Vec<Break> {
    let mut found = Vec::new();
    let read = async {
        for (path, node, token) in held {
            let admin = keeper.admin();
            let mut broken = admin.broken(&path).await;
            for _ in 1..TRIES {
                if broken.is_err() {
                    broken = admin.broken(&path).await;
                }
            }
            let broken = broken.unwrap_or_default();
            if let Some(broken) = broken.iter().rev().find(|broken| broken.removed(&node, token)) {
                let text = format!("broken by {}{}: {}", broken.by, broken.proof, broken.reason);
                found.push(Break { path, text });
            }
        }
    };
    _ = timeout(JOURNAL, read).await;
    found
}

/// Prints these breaks, with their authors and reasons. Returns the text about the first one.
pub(crate) fn tell(breaks: &[Break], printer: Printer) -> Option<String> {
    for Break { path, text } in breaks {
        printer.note(&format!("{path} was {text}"));
    }
    breaks.first().map(|first| first.text.clone())
}

/// Prints the author and the reason if a record says that one of these holds was broken. Dropping the future leaves nothing behind.
pub(crate) async fn tell_author(keeper: &Lockkeeper, held: Vec<HeldNode>, printer: Printer) {
    tell(&breaks(keeper, held).await, printer);
}
