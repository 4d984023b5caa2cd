//! Prints the author and the reason of a break of this command's lock, or of its wait.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use lockkeeper::admin::{Broken, SessionId};
use lockkeeper::request::Requeued;
use lockkeeper::{FencingToken, Lockkeeper};
use tokio::sync::mpsc;
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

/// Returns the records about a lock; none if they cannot be read.
async fn records(keeper: &Lockkeeper, path: &str) -> Vec<Broken> {
    let admin = keeper.admin();
    let mut broken = admin.broken(path).await;
    for _ in 1..TRIES {
        if broken.is_err() {
            broken = admin.broken(path).await;
        }
    }
    broken.unwrap_or_default()
}

/// Returns which of these holds were broken, as the records say; none if no server answers in time. Dropping the future leaves nothing
/// behind.
pub(crate) async fn breaks(keeper: &Lockkeeper, held: Vec<HeldNode>) -> Vec<Break> {
    let mut found = Vec::new();
    let read = async {
        for (path, node, token) in held {
            let broken = records(keeper, &path).await;
            if let Some(broken) = broken.iter().rev().find(|broken| broken.removed(&node, token)) {
                found.push(Break { path, text: by(broken) });
            }
        }
    };
    _ = timeout(JOURNAL, read).await;
    found
}

/// Returns what the records say about the wait of this session for a lock, if they say that it was broken; none if no server answers
/// in time. Dropping the future leaves nothing behind.
pub(crate) async fn of_wait(keeper: &Lockkeeper, path: &str, session: Option<SessionId>) -> Option<String> {
    let session = session?;
    let records = timeout(JOURNAL, records(keeper, path)).await.ok()?;
    // A waiter that was granted the lock while it was paused does not know that.
    let broken = records.into_iter().rev().find(|broken| broken.session == session)?;
    Some(format!("the wait for {path} was {}", by(&broken)))
}

/// `broken by root@host (verified): its host is gone`
fn by(broken: &Broken) -> String {
    format!("broken by {}{}: {}", broken.by, broken.proof, broken.reason)
}

/// Positions in queues that are lost while the command waits.
pub(crate) struct LostPositions {
    lost: mpsc::UnboundedSender<String>,
    paths: mpsc::UnboundedReceiver<String>,
    printer: Printer,
}

impl LostPositions {
    pub(crate) fn new(printer: Printer) -> Self {
        let (lost, paths) = mpsc::unbounded_channel();
        LostPositions { lost, paths, printer }
    }

    /// Returns the report about each of them.
    pub(crate) fn report(&self) -> impl Fn(&Requeued) + Send + Sync + 'static {
        let (lost, printer) = (self.lost.clone(), self.printer);
        move |Requeued { path, loss, .. }| {
            printer.note(&format!("the position in the queue of {path} is lost: {loss}; joining the queue again"));
            // Its receiver lives as long as the wait.
            _ = lost.send(path.clone());
        }
    }

    /// Prints who broke a wait whose position is lost, if a record says so. Dropping the future leaves nothing behind.
    pub(crate) async fn tell_authors(&mut self, keeper: &Lockkeeper) -> Infallible {
        let mut session = keeper.session_id();
        while let Some(path) = self.paths.recv().await {
            if let Some(broken) = of_wait(keeper, &path, session).await {
                self.printer.note(&broken);
            }
            session = keeper.session_id();
        }
        pending().await
    }
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
