//! Puts records, the journal of breaks and what successors saw together. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::admin::{Broken, Owner, Revoked};
use lockkeeper::{FencingToken, Loss};
use lockkeeper_session::records;

use super::entry::{Entry, PastHold, Refusal};
use super::lock_use::LockUse;
use super::record::{HoldEnd, StoredBefore, StoredHold, StoredRefusal};
use super::store::{SLOTS, Stored, is_slot};
use crate::ROOT;

/// A record that was written within this time after the end of its hold was not held up.
const PROMPT: Duration = Duration::from_secs(1);

/// Returns the entries of a lock, the oldest first. Data that is no record is left out.
pub(super) fn entries(path: &str, stored: &Stored, breaks: Vec<Broken>, asked: Vec<Revoked>) -> Vec<Entry> {
    let mut holds = Vec::new();
    let mut entries = Vec::new();
    for (name, data, written_ms) in stored {
        if !is_slot(name) {
            entries.extend(refusal(path, data, *written_ms).map(Entry::Refused));
        } else if let Some(record) = StoredHold::read(data) {
            holds.push((hold(path, &record, *written_ms), record.before));
        }
    }
    holds.sort_by_key(|(hold, _)| (hold.granted, hold.token));
    // A write whose reply was lost may have been repeated.
    holds.dedup_by(|(later, _), (earlier, _)| match (later.token, earlier.token) {
        // Without tokens, the same times show it, unless the holds are short.
        (None, None) => later == earlier && later.held() >= Duration::from_secs(1),
        (later, earlier) => later == earlier,
    });
    let unrecorded = unrecorded(&holds, &breaks);
    let mut holds: Vec<_> = holds.into_iter().map(|(hold, _)| hold).chain(unrecorded).collect();
    for broken in breaks {
        let removed = holds.iter_mut().find(|hold| same(hold.token, broken.token));
        match removed.filter(|hold| broken.held && hold.end != HoldEnd::Released) {
            Some(hold) => {
                hold.end = HoldEnd::Broken;
                hold.reason = Some(format!("{}{}: {}", broken.by, broken.proof, broken.reason));
                hold.ended = broken.at;
            }
            None => entries.push(Entry::Broken(broken)),
        }
    }
    let ended_by_it =
        |asked: &Revoked| holds.iter().any(|hold| hold.end == HoldEnd::Revoked && same(hold.token, asked.token));
    entries.extend(asked.into_iter().filter(|asked| !ended_by_it(asked)).map(Entry::Asked));
    entries.extend(holds.into_iter().map(Entry::Hold));
    // Times are milliseconds; tokens grow.
    entries.sort_by_key(|entry| (entry.at(), entry.hold().map(|hold| (hold.granted, hold.token))));
    entries
}

/// Whether these are the tokens of the same hold. What a contender saw of another may lack the epoch.
fn same(one: Option<FencingToken>, other: Option<FencingToken>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one.below_epoch() == other.below_epoch())
}

/// Whether a hold with the first token began before the one with the second. Either may lack the epoch.
pub(super) fn is_before(one: FencingToken, other: FencingToken) -> bool {
    one.below_epoch() < other.below_epoch()
}

/// The end of a hold, as its owner has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedEnd {
    /// The path of the lock.
    pub path: String,
    /// The owner.
    pub owner: Owner,
    /// The fencing token of the hold; `None` of permits.
    pub token: Option<FencingToken>,
    /// How it ended.
    pub end: HoldEnd,
    /// How it was lost, if it was.
    pub loss: Option<Loss>,
    /// Who asked for it and why, or more about the loss.
    pub reason: Option<String>,
}

impl RecordedEnd {
    /// Reads the record in a node two levels below [`ROOT`]; `None` if it has none of a hold.
    pub fn read(node: &str, data: &[u8]) -> Option<Self> {
        let (lock, slot) = node.strip_prefix(ROOT)?.strip_prefix('/')?.split_once('/')?;
        let StoredHold { owner, token, end, loss, reason, .. } =
            is_slot(slot).then(|| StoredHold::read(data)).flatten()?;
        Some(RecordedEnd { path: records::lock_of(lock), owner, token, end, loss, reason })
    }

    /// Who asked for it and why, or how it was lost; empty if that is not recorded.
    pub fn why(&self) -> String {
        self.reason.clone().or_else(|| Some(self.loss?.to_string())).unwrap_or_default()
    }
}

fn hold(path: &str, record: &StoredHold, written_ms: i64) -> PastHold {
    // It was written right after its end, or late, if the servers did not answer. The time of the grant is known to a second only.
    let written = before(moment(written_ms), record.ago_ms);
    let stated = record.granted_ms.map(|granted| after(granted, record.held_ms));
    let is_late = |stated: &SystemTime| written.duration_since(*stated).is_ok_and(|late| late > PROMPT);
    let ended = stated.filter(is_late).unwrap_or(written);
    let granted = before(ended, record.held_ms);
    PastHold {
        path: path.to_owned(),
        described: record.owner.to_string(),
        owner: Some(record.owner.clone()),
        message: record.message.clone(),
        token: record.token,
        shared: record.shared,
        used_as: used_as(record.used_as.as_deref()),
        queued: Some(before(granted, record.waited_ms)),
        granted,
        ended,
        end: record.end,
        loss: record.loss,
        paused: record.paused,
        reason: record.reason.clone(),
        status: record.status,
    }
}

/// Returns the holds that only their successors have recorded.
///
/// If all records of the lock are in use, a hold that is older than the oldest of them may have had one.
fn unrecorded(holds: &[(PastHold, Option<StoredBefore>)], breaks: &[Broken]) -> Vec<PastHold> {
    let is_full = holds.len() >= SLOTS as usize;
    let oldest = holds.first().map_or(UNIX_EPOCH, |(hold, _)| hold.granted);
    let mut found: Vec<PastHold> = Vec::new();
    for (next, before) in holds {
        let Some(before) = before else { continue };
        let since = UNIX_EPOCH + Duration::from_millis(before.since_ms.min(u64::from(u32::MAX) * 4_000));
        let is_known = before.token.is_none()
            || holds.iter().any(|(hold, _)| same(hold.token, before.token))
            || breaks.iter().any(|broken| same(broken.token, before.token))
            || found.iter().any(|hold| same(hold.token, before.token));
        if is_known || next.shared || is_full && since < oldest {
            continue;
        }
        // It began when the recorded hold before it had ended, or later.
        let ends =
            holds.iter().filter(|(hold, _)| hold.token.zip(before.token).is_some_and(|(one, own)| is_before(one, own)));
        let earliest = ends.filter(|(hold, _)| !hold.shared).map(|(hold, _)| hold.ended).max();
        // The next hold that is known began when this one had ended, or later.
        let is_later = |hold: &PastHold| match hold.token.zip(before.token) {
            Some((token, own)) => is_before(own, token),
            None => hold.granted > since,
        };
        let after = holds.iter().filter(|(hold, _)| is_later(hold)).map(|(hold, _)| hold.granted).min();
        let described = match (&before.owner, &before.described) {
            (Some(owner), _) => owner.to_string(),
            (None, Some(described)) => described.clone(),
            (None, None) => "an unnamed owner".to_owned(),
        };
        found.push(PastHold {
            path: next.path.clone(),
            owner: before.owner.clone(),
            described,
            message: None,
            token: before.token,
            shared: false,
            // Otherwise the next one had been refused.
            used_as: next.used_as,
            queued: None,
            granted: earliest.map_or(since, |ended| ended.max(since)),
            ended: after.unwrap_or(next.granted),
            end: HoldEnd::Unrecorded,
            loss: None,
            paused: false,
            reason: None,
            status: None,
        });
    }
    found
}

fn refusal(path: &str, data: &[u8], written_ms: i64) -> Option<Refusal> {
    let record = StoredRefusal::read(data)?;
    let last = before(moment(written_ms), record.ago_ms);
    Some(Refusal {
        path: path.to_owned(),
        owner: record.owner,
        message: record.message,
        reason: record.reason,
        used_as: used_as(record.used_as.as_deref()),
        count: record.count,
        first: record.first_ms.map_or(last, moment).min(last),
        last,
        waited: Duration::from_millis(record.waited_ms),
        holder: record.holder,
        holder_message: record.holder_message,
    })
}

/// Text of a later version is not known here.
fn used_as(text: Option<&str>) -> Option<LockUse> {
    text?.parse().ok()
}

/// The time so many milliseconds after one of the servers. Any program may have written the numbers.
fn after(ms: u64, more_ms: u64) -> SystemTime {
    moment(i64::try_from(ms.saturating_add(more_ms)).unwrap_or(i64::MAX))
}

/// The time so many milliseconds before.
fn before(time: SystemTime, ms: u64) -> SystemTime {
    time.checked_sub(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

/// A time of the servers.
fn moment(ms: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Habits;

    fn names() -> impl Strategy<Value = String> {
        prop_oneof![
            (0..SLOTS).prop_map(|number| format!("{number:02}")),
            (0..8).prop_map(|number| format!("x{number}")),
        ]
    }

    /// Any bytes, and records with any numbers.
    fn data() -> impl Strategy<Value = Vec<u8>> {
        let hold = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(waited, held, ago, since)| {
            format!(
                r#"{{"lockkeeper":1,"user":"a","host":"b","pid":1,"waited_ms":{waited},"held_ms":{held},"ago_ms":{ago},"granted_ms":{ago},"token":7,"used_as":"kazoo",
                "end":"lost","before":{{"token":5,"since_ms":{since}}}}}"#
            )
        });
        let refusal = (any::<u64>(), any::<u32>(), any::<i64>()).prop_map(|(waited, count, first)| {
            format!(
                r#"{{"lockkeeper":1,"user":"a","host":"b","pid":1,"reason":"taken","waited_ms":{waited},"count":{count},
                "ago_ms":{waited},"first_ms":{first}}}"#
            )
        });
        prop_oneof![any::<Vec<u8>>(), hold.prop_map(String::into_bytes), refusal.prop_map(String::into_bytes),]
    }

    /// The servers were away for 20 s while the release was on its way.
    #[test]
    fn the_times_of_a_hold_are_its_own_and_not_those_of_a_late_write() {
        let record = StoredHold { held_ms: 17_000, granted_ms: Some(100_000), ..StoredHold::default() };
        let times = |written_ms| {
            let hold = hold("/locks/a", &record, written_ms);
            [hold.granted, hold.ended].map(|time| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis()))
        };
        assert_eq!(times(137_000), [100_000, 117_000]);
        // The servers' stamp is exact, and the time of the grant is not.
        assert_eq!(times(117_030), [100_030, 117_030]);
        assert_eq!(times(116_900), [99_900, 116_900], "the clock of another leader");
    }

    proptest! {
        /// Other programs may write anything, and a server may stamp it with any time.
        #[test]
        fn whatever_is_stored_is_read_and_shown(
            stored in prop::collection::vec((names(), data(), any::<i64>()), 0..8),
            now in any::<u32>(),
        ) {
            let entries = entries("/locks/a", &stored, Vec::new(), Vec::new());
            for entry in &entries {
                prop_assert!(serde_json::to_string(entry).is_ok());
                match entry {
                    Entry::Hold(hold) => _ = (hold.held(), hold.waited()),
                    Entry::Refused(refusal) => prop_assert!(refusal.asked() <= refusal.last && refusal.count > 0),
                    _ => {}
                }
            }
            _ = Habits::of(&entries, Some(UNIX_EPOCH + Duration::from_secs(now.into())));
        }
    }
}
