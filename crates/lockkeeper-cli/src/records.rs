//! The records that `run` leaves in the history of its locks: of each hold, and of a request that was refused.
//!
//! They are additions. A server that refuses them, or does not answer, changes nothing else about the command.

use std::path::Path;
use std::time::{Duration, SystemTime};

use lockkeeper::error::{AdminError, SessionError};
use lockkeeper::{LockPath, Lockkeeper};
use lockkeeper_observe::history::{Ending, NewRefusal, Recorder, Recording, RefusalReason, refused};
use lockkeeper_work::retry::Cause;
use tokio::time::{Instant, timeout, timeout_at};

use crate::child::CommandEnd;
use crate::exit::{Code, Failure};
use crate::held::Held;
use crate::unsent::{self, Unsent};
use crate::waiting::Report;

/// Time limit for records that were not written with the release, and for refusals.
pub(crate) const WRITING: Duration = Duration::from_secs(1);

/// Maximum characters of a message that is kept for later.
const MESSAGE: usize = 200;

/// The records of the holds of a command.
#[derive(Debug, Default)]
pub(crate) struct Records(Vec<Recording>);

impl Records {
    /// Begins the records of these holds, unless the history is switched off.
    pub(crate) fn begin(
        history: bool,
        keeper: &Lockkeeper,
        held: Held<'_>,
        (message, report): (Option<&str>, &Report),
    ) -> Self {
        let mut recorder = Recorder::new(keeper);
        if let Some(message) = message {
            recorder = recorder.message(message);
        }
        let holdings = held.holdings().iter().filter(|_| history);
        Records(holdings.map(|hold| recorder.clone().after(report.seen(hold.path())).begin(hold)).collect())
    }

    /// Adds how the command has ended. Call it before the release.
    pub(crate) fn tell(&self, ended: &CommandEnd) {
        let mut ending = Ending::default().with_status(ended.status);
        if let Some(cause) = &ended.cause {
            ending = ending.with_why(cause);
        }
        if ended.paused {
            ending = ending.paused();
        }
        self.0.iter().for_each(|recording| recording.tell(ending.clone()));
    }

    /// Writes what the release has not written, for at most a second.
    pub(crate) async fn finish(self) {
        let all = futures_util::future::join_all(self.0.into_iter().map(Recording::finish));
        match timeout(WRITING, all).await {
            Ok(written) => written.into_iter().filter_map(Result::err).for_each(not_recorded),
            Err(_) => not_recorded("no server has answered in time"),
        }
    }
}

fn not_recorded(why: impl std::fmt::Display) {
    tracing::info!(%why, "the history of the lock lacks a record");
}

/// Records that a request for these locks was refused, until `end`.
pub(crate) async fn refuse(
    keeper: &Lockkeeper,
    paths: &[LockPath],
    (once, waited, message): (bool, Duration, Option<&str>),
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
    refusal.message = message.map(str::to_owned);
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
pub(crate) fn keep(dir: &Path, servers: &str, paths: &[LockPath], (waited, message): (Duration, Option<&str>)) {
    let at_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let refusal = |path: &LockPath| Unsent {
        servers: servers.to_owned(),
        path: path.to_string(),
        at_ms: u64::try_from(at_ms).unwrap_or(u64::MAX),
        pid: std::process::id(),
        waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        message: message.map(|message| message.chars().take(MESSAGE).collect()),
    };
    if let Err(error) = unsent::keep(dir, &paths.iter().map(refusal).collect::<Vec<_>>()) {
        not_recorded(error);
    }
}

/// Sends what earlier commands could not, until `end`. What is not sent then is kept for the next one.
pub(crate) async fn send_kept(keeper: &Lockkeeper, dir: &Path, servers: &str, end: Instant) {
    let unsent = unsent::take(dir, servers);
    if unsent.is_empty() {
        return;
    }
    let groups = unsent::groups(&unsent, SystemTime::now());
    let sent = groups.into_iter().map(|group| async move {
        let mut refusal = NewRefusal::new(RefusalReason::Unreachable, group.waited);
        (refusal.count, refusal.ago, refusal.over) = (group.count, group.ago, group.over);
        (refusal.message, refusal.pid) = (group.message, Some(group.pid));
        refused(keeper, &group.path, refusal).await
    });
    let is_sent = match timeout_at(end, futures_util::future::try_join_all(sent)).await {
        Ok(Ok(_)) => true,
        // The next time will not be better.
        Ok(Err(AdminError::Session(SessionError::Refused { .. }))) => true,
        Ok(Err(_)) | Err(_) => false,
    };
    if !is_sent && let Err(error) = unsent::keep(dir, &unsent) {
        not_recorded(error);
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
