//! Records requests that were refused.

use lockkeeper::error::AdminError;
use lockkeeper::{LockPath, Lockkeeper};
use lockkeeper_session::ensemble::{Ensemble, Node, NodeKind, OpError};
use std::time::{Duration, UNIX_EPOCH};

use super::lock_use::LockUse;
use super::record::{RefusalReason, StoredRefusal};
use super::store;
use crate::millis::millis;

/// Refusals of one machine within this time are one record.
const TOGETHER: Duration = Duration::from_secs(60);

/// How often a record is tried if other requests are refused at the same moment.
const MAX_ATTEMPTS: usize = 4;

/// A request that was refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewRefusal {
    /// Why.
    pub reason: RefusalReason,
    /// In which way the lock is used: by the request, or by those that it does not fit to ([`RefusalReason::Mismatch`]).
    pub used_as: Option<LockUse>,
    /// How long it waited.
    pub waited: Duration,
    /// Its message.
    pub message: Option<String>,
    /// Who held the lock.
    pub holder: Option<String>,
    /// The holder's message.
    pub holder_message: Option<String>,
    /// The process that was refused, if it was an earlier one of this user.
    pub pid: Option<u32>,
    /// How many there were.
    pub count: u32,
    /// How long ago the last one was, if it could not be recorded at once.
    pub ago: Duration,
    /// How long before the last one the first one was.
    pub over: Duration,
}

impl NewRefusal {
    /// Creates it.
    pub const fn new(reason: RefusalReason, waited: Duration) -> Self {
        let (ago, over) = (Duration::ZERO, Duration::ZERO);
        let (used_as, message, holder, holder_message, pid) = (None, None, None, None, None);
        NewRefusal { reason, used_as, waited, message, holder, holder_message, pid, count: 1, ago, over }
    }
}

/// Records that this process was refused the lock at `path`. Refusals of one machine for the same reason within a minute are counted
/// in one record.
///
/// # Cost
///
/// Two round trips: eight reads and one write. More if others are refused at the same moment.
///
/// # Errors
///
/// A server refuses the record, or no server answers.
pub async fn refused(keeper: &Lockkeeper, path: &LockPath, refusal: NewRefusal) -> Result<(), AdminError> {
    let (path, mut owner) = (keeper.path(path.as_str())?, keeper.owner().clone());
    let NewRefusal { reason, used_as, waited, message, holder, holder_message, pid, count, ago, over } = refusal;
    if let Some(pid) = pid {
        (owner.pid, owner.program) = (pid, None);
    }
    let first = i64::try_from((ago + over).as_millis()).unwrap_or(i64::MAX);
    let first_ms = local_now_ms().filter(|_| count > 1).map(|now| now.saturating_sub(first));
    let ago_ms = millis(ago);
    let record = StoredRefusal::new(owner, reason, waited);
    let used_as = used_as.map(|used_as| used_as.to_string());
    let record = StoredRefusal { used_as, message, holder, holder_message, count, ago_ms, first_ms, ..record };
    keeper
        .sessions()
        .ask(move |ensemble| async move {
            write(&*ensemble, &store::node(&path), record)
                .await
                .map_err(|fault| lockkeeper::error::refused(&path, fault))
        })
        .await
}

/// What to do with a new refusal.
#[derive(Debug, PartialEq, Eq)]
enum RefusalWrite {
    /// Count it in this record.
    Count { number: usize, version: i32, record: Box<StoredRefusal> },
    /// Write it in a new node.
    Create(usize),
    /// Write it in place of the oldest one.
    Replace { number: usize, version: i32 },
}

/// Chooses where a refusal is recorded. `now_ms` is the time. If this machine's clock is wrong, each refusal has a record of its own.
fn choose(seen: &[Option<Node>], refusal: &StoredRefusal, now_ms: Option<i64>) -> RefusalWrite {
    let together = millis(TOGETHER);
    for (number, node) in seen.iter().enumerate() {
        let Some(node) = node else { continue };
        let Some(record) = StoredRefusal::read(&node.data) else { continue };
        let first_ms = record.first_ms.unwrap_or(node.mtime_ms);
        let is_recent = now_ms.is_some_and(|now_ms| now_ms.abs_diff(first_ms) < together);
        let is_same = record.owner.host == refusal.owner.host
            && record.owner.user == refusal.owner.user
            && record.reason == refusal.reason;
        if is_same && is_recent && refusal.ago_ms == 0 {
            let count = record.count.saturating_add(refusal.count);
            let record = Box::new(StoredRefusal { count, first_ms: Some(first_ms), ..refusal.clone() });
            return RefusalWrite::Count { number, version: node.version, record };
        }
    }
    if let Some(number) = seen.iter().position(Option::is_none) {
        return RefusalWrite::Create(number);
    }
    let oldest = seen.iter().flatten().enumerate().min_by_key(|(_, node)| node.mzxid);
    oldest.map_or(RefusalWrite::Create(0), |(number, node)| RefusalWrite::Replace { number, version: node.version })
}

async fn write(ensemble: &dyn Ensemble, lock: &str, refusal: StoredRefusal) -> Result<(), OpError> {
    for _ in 0..MAX_ATTEMPTS {
        let seen = store::read_refusals(ensemble, lock).await?;
        let chosen = choose(&seen, &refusal, local_now_ms());
        let node = |number: usize| store::refusal(lock, u32::try_from(number).unwrap_or(0));
        let written = match &chosen {
            RefusalWrite::Count { number, version, record } => {
                ensemble.write(&node(*number), record.to_bytes(), Some(*version)).await.map(drop)
            }
            RefusalWrite::Replace { number, version } => {
                ensemble.write(&node(*number), refusal.to_bytes(), Some(*version)).await.map(drop)
            }
            RefusalWrite::Create(number) => {
                ensemble.create(&node(*number), refusal.to_bytes(), NodeKind::Persistent).await.map(drop)
            }
        };
        match (written, chosen) {
            (Err(OpError::NoNode), RefusalWrite::Create(_)) => store::make(ensemble, lock).await?,
            // Another refusal was recorded at this moment, or the records of the lock are deleted.
            (Err(OpError::BadVersion | OpError::NodeExists | OpError::NoNode), _) => {}
            (written, _) => return written,
        }
    }
    Err(OpError::BadVersion)
}

/// The time by this machine's clock: asking the servers would cost a write.
fn local_now_ms() -> Option<i64> {
    let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(now.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::admin::Owner;

    fn owner(host: &str) -> Owner {
        Owner { user: "root".to_owned(), host: host.to_owned(), ..Owner::default() }
    }

    fn refusal(host: &str) -> StoredRefusal {
        StoredRefusal::new(owner(host), RefusalReason::Taken, Duration::ZERO)
    }

    fn stored(record: &StoredRefusal, at_ms: i64) -> Option<Node> {
        Some(Node {
            data: record.to_bytes(),
            czxid: lockkeeper_session::Zxid(at_ms),
            mzxid: lockkeeper_session::Zxid(at_ms),
            pzxid: lockkeeper_session::Zxid(at_ms),
            ctime_ms: at_ms,
            mtime_ms: at_ms,
            version: 3,
            owner: lockkeeper::admin::SessionId::NONE,
            children: 0,
        })
    }

    #[test]
    fn refusals_of_one_machine_within_a_minute_are_counted_in_one_record() {
        let seen = [stored(&refusal("db1"), 1_000), stored(&refusal("db2"), 2_000), None];
        let RefusalWrite::Count { number: 1, version: 3, record } = choose(&seen, &refusal("db2"), Some(21_000)) else {
            panic!("it is counted");
        };
        assert_eq!((record.count, record.first_ms), (2, Some(2_000)));
        // A minute from the first one, however often it was counted.
        let again = StoredRefusal { count: 9, ..*record };
        let seen = [stored(&again, 61_000), None];
        assert_eq!(
            choose(&seen, &refusal("db2"), Some(61_999)),
            RefusalWrite::Count {
                number: 0,
                version: 3,
                record: Box::new(StoredRefusal { count: 10, first_ms: Some(2_000), ..refusal("db2") }),
            }
        );
        assert_eq!(choose(&seen, &refusal("db2"), Some(62_000)), RefusalWrite::Create(1));
    }

    #[test]
    fn another_reason_is_another_record_and_the_oldest_is_replaced() {
        let gave_up = StoredRefusal { reason: RefusalReason::GaveUp, ..refusal("db1") };
        let seen = [stored(&refusal("db1"), 5_000), stored(&refusal("db2"), 4_000)];
        assert_eq!(choose(&seen, &gave_up, Some(6_000)), RefusalWrite::Replace { number: 1, version: 3 });
        // What is no record counts as the oldest by its time.
        let foreign = Some(Node { data: b"x".to_vec(), ..stored(&refusal("a"), 1).expect("some") });
        assert_eq!(choose(&[foreign], &gave_up, None), RefusalWrite::Replace { number: 0, version: 3 });
    }
}
