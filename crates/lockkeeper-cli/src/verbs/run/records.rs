//! The records that `run` leaves in the history of its locks: of each hold, and of a request that was refused.
//!
//! They are additions. A server that refuses them, or does not answer, changes nothing else about the command.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use lockkeeper::error::{AdminError, SessionError};
use lockkeeper::{LockPath, Lockkeeper};
use lockkeeper_history::{Ending, LockUse, NewRefusal, Recorder, Recording, RefusalReason, Unrecorded, refused};
use lockkeeper_letters::retry::Cause;
use tokio::time::{Instant, timeout_at};

use super::unsent::{self, Unsent, UnsentRecord, UnsentRefusal};
use crate::child::CommandEnd;
use crate::exit::{Code, Failure};
use crate::held::Held;
use crate::waiting::Report;

/// Time limit for records that were not written with the release, and for refusals.
pub(crate) const WRITING: Duration = Duration::from_secs(1);

/// Maximum characters of a message that is kept for later.
const MESSAGE: usize = 200;

/// What records say of a command, and where they wait if no server takes them.
#[derive(Clone, Debug)]
pub(crate) struct RecordTerms {
    /// Whether there are records at all.
    pub history: bool,
    pub message: Option<String>,
    /// In which way the command uses its locks.
    pub used_as: LockUse,
    pub shelf: Option<Shelf>,
}

/// Where records wait that no server takes: this user's state directory, and the servers as they were written.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    pub dir: PathBuf,
    pub servers: String,
}

impl Shelf {
    fn keep(&self, records: impl IntoIterator<Item = UnsentRecord>) {
        let unsent = |record| Unsent { servers: self.servers.clone(), record };
        let unsent: Vec<_> = records.into_iter().map(unsent).collect();
        if !unsent.is_empty()
            && let Err(error) = unsent::keep(&self.dir, &unsent)
        {
            not_recorded(error);
        }
    }
}

/// The records of the holds of a command.
#[derive(Debug, Default)]
pub(crate) struct Records {
    recordings: Vec<Recording>,
    shelf: Option<Shelf>,
}

impl Records {
    /// Begins the records of these holds, unless the history is switched off.
    pub(crate) fn begin(terms: RecordTerms, keeper: &Lockkeeper, held: Held<'_>, report: &Report) -> Self {
        let mut recorder = Recorder::new(keeper).used_as(terms.used_as);
        if let Some(message) = terms.message {
            recorder = recorder.message(message);
        }
        let holdings = held.holdings().iter().filter(|_| terms.history);
        let begin = |hold| recorder.clone().after(report.seen(lockkeeper::Holding::path(hold))).begin(hold);
        Records { recordings: holdings.map(begin).collect(), shelf: terms.shelf }
    }

    /// Adds how the command has ended. Call it before the release.
    pub(crate) fn tell(&self, ended: &CommandEnd) {
        let mut ending = Ending::default().with_status(ended.status);
        // A command that was stopped in time has released a lock on which it could not rely.
        let stopped = || ended.why.as_deref().or(Some("it could not be relied on any more")).filter(|_| ended.stopped);
        if let Some(cause) = ended.cause.as_deref().or_else(stopped) {
            ending = ending.with_reason(cause);
        }
        if ended.paused {
            ending = ending.paused();
        }
        self.recordings.iter().for_each(|recording| recording.tell(ending.clone()));
    }

    /// Writes what the release has not written, for at most a second. What no server takes then is kept for a later command. Returns
    /// whether nothing is left.
    pub(crate) async fn finish(self) -> bool {
        let finish = |recording: Recording| recording.finish_within(WRITING);
        let all = futures_util::future::join_all(self.recordings.into_iter().map(finish)).await;
        let unrecorded: Vec<_> = all.into_iter().filter_map(Result::err).collect();
        let is_done = unrecorded.is_empty();
        let mut kept = Vec::new();
        for Unrecorded { problem, kept: hold, .. } in unrecorded {
            not_recorded(problem);
            kept.extend(hold.map(|hold| UnsentRecord::Hold { hold: Box::new(hold) }));
        }
        if let Some(shelf) = self.shelf {
            shelf.keep(kept);
        }
        is_done
    }
}

fn not_recorded(why: impl std::fmt::Display) {
    tracing::info!(%why, "the history of the lock lacks a record");
}

/// Records that a request for these locks was refused, until `end`.
pub(crate) async fn refuse(
    keeper: &Lockkeeper,
    paths: &[LockPath],
    (once, waited, terms): (bool, Duration, &RecordTerms),
    failure: &Failure,
    end: Instant,
) {
    let reason = match (failure.code, failure.cause) {
        (Code::NotAcquired, Cause::InstanceLock) if once => RefusalReason::Taken,
        (Code::NotAcquired, Cause::InstanceLock) => RefusalReason::GaveUp,
        (Code::NotAcquired, _) => RefusalReason::Withdrawn,
        (Code::Mismatch, _) => RefusalReason::Mismatch,
        _ => return,
    };
    let Some(path) = refused_one(paths, &failure.message) else { return };
    let mut refusal = NewRefusal::new(reason, waited);
    refusal.message.clone_from(&terms.message);
    refusal.used_as =
        if reason == RefusalReason::Mismatch { failure.used_as.as_deref().copied() } else { Some(terms.used_as) };
    if let Some(holder) = &failure.holder {
        refusal.holder = Some(holder.described.clone());
        refusal.holder_message.clone_from(&holder.message);
    }
    match timeout_at(end, refused(keeper, path, refusal)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => not_recorded(error),
        Err(_) => not_recorded("no server has answered in time"),
    }
}

/// Returns the one of these locks that was not granted: the message names it. The path of one may begin that of another.
fn refused_one<'a>(paths: &'a [LockPath], message: &str) -> Option<&'a LockPath> {
    let named = paths.iter().filter(|path| message.contains(path.as_str()));
    named.max_by_key(|path| path.as_str().len()).or(paths.first())
}

/// Keeps the refusal of a request for which no server was reachable, for the next `run` on the same servers.
pub(crate) fn keep(shelf: &Shelf, paths: &[LockPath], (waited, terms): (Duration, &RecordTerms)) {
    let at_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let refusal = |path: &LockPath| UnsentRefusal {
        path: path.to_string(),
        at_ms: u64::try_from(at_ms).unwrap_or(u64::MAX),
        pid: std::process::id(),
        waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        message: terms.message.as_ref().map(|message| message.chars().take(MESSAGE).collect()),
        used_as: Some(terms.used_as.to_string()),
    };
    shelf.keep(paths.iter().map(refusal).map(UnsentRecord::Refusal));
}

/// Sends what earlier commands could not, until `end`. What is not sent then is kept for the next one.
pub(crate) async fn send_kept(keeper: &Lockkeeper, shelf: &Shelf, end: Instant) {
    let unsent = unsent::take(&shelf.dir, &shelf.servers);
    if unsent.is_empty() {
        return;
    }
    let (mut holds, mut refusals) = (Vec::new(), Vec::new());
    for Unsent { record, .. } in &unsent {
        match record {
            UnsentRecord::Hold { hold } => holds.push(hold),
            UnsentRecord::Refusal(refusal) => refusals.push(refusal.clone()),
        }
    }
    let groups = unsent::groups(&refusals, SystemTime::now());
    let sent = groups.into_iter().map(|group| async move {
        let mut refusal = NewRefusal::new(RefusalReason::Unreachable, group.waited);
        (refusal.count, refusal.ago, refusal.over) = (group.count, group.ago, group.over);
        (refusal.message, refusal.pid) = (group.message, Some(group.pid));
        refusal.used_as = group.used_as.and_then(|used_as| used_as.parse().ok());
        refused(keeper, &group.path, refusal).await
    });
    let written = async {
        let holds = futures_util::future::try_join_all(holds.into_iter().map(|hold| hold.write(keeper)));
        tokio::try_join!(futures_util::future::try_join_all(sent), holds)
    };
    let is_sent = match timeout_at(end, written).await {
        Ok(Ok(_)) => true,
        // The next time will not be better.
        Ok(Err(AdminError::Session(SessionError::Refused { .. }))) => true,
        Ok(Err(_)) | Err(_) => false,
    };
    if !is_sent {
        shelf.keep(unsent.into_iter().map(|unsent| unsent.record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_of_the_lock_that_its_message_names() {
        let paths = ["/locks/a", "/locks/ab"].map(|path| LockPath::parse(path).unwrap());
        assert_eq!(refused_one(&paths, "/locks/ab is taken"), Some(&paths[1]));
        assert_eq!(refused_one(&paths, "/locks/a is taken"), Some(&paths[0]));
        assert_eq!(refused_one(&paths, "the servers are silent"), Some(&paths[0]));
    }
}
