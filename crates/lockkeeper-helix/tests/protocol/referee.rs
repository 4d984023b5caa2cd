//! Judges the writes to a record: restates their rules in plain form, by a referee that knows the server's exact time.

use lockkeeper_core::leased::{Held, Record, Requested};
use lockkeeper_helix::protocol::{Rules, Terms};

pub(crate) type Foul = &'static str;

pub(crate) const OWNER_REPLACED: Foul = "an owner was replaced before its time";
pub(crate) const REQUEST_FORGOTTEN: Foul = "a request was forgotten";
pub(crate) const COUNT_RESTARTED: Foul = "the count of the cleanup time was restarted";
pub(crate) const FORGED: Foul = "a client wrote for another client";

/// How an owner stopped being the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// It released the lock, or transferred it to the client that it named.
    Left,
    /// Its lease was over.
    Expired,
    /// The stored requestor's wait was over.
    Forced,
}

/// Whether `who`, whose wait ends at `give_up_ms`, may change `before`, written at `modified_ms`, into `after` when the
/// server's clock shows `now_ms`.
pub(crate) fn judge(
    before: &Record,
    modified_ms: i64,
    after: &Record,
    (who, give_up_ms): (&Terms, i64),
    now_ms: i64,
    rules: &Rules,
) -> Result<Option<Departure>, Foul> {
    let mut departure = None;
    let (old, new) = (before.owner.as_ref(), after.owner.as_ref());
    if let Some(old) = old.filter(|old| new.is_none_or(|new| new.id != old.id)) {
        departure = Some(departed(old, before.request.as_ref(), (who, give_up_ms), modified_ms, now_ms)?);
    }
    // A revocation and the owner's answer to it change nothing.
    let silent = |owner: &Held| Held { revocation: None, ..owner.clone() };
    // An owner may name its successor, which gets the lock as it is. A lease that ends on the way is inherited as one
    // that is over.
    let transferred = old.zip(new).is_some_and(|(old, new)| {
        old.id == who.id
            && new.id != old.id
            && silent(new) == Held { id: new.id.clone(), notice_ms: None, ..silent(old) }
    });
    if let Some(new) = new
        && Some(silent(new)) != old.map(silent)
        && new.id != who.id
        && !transferred
    {
        return Err(FORGED);
    }
    if let Some(request) = &before.request {
        let stale = now_ms >= turn_ms(before, modified_ms, request, rules).saturating_add(rules.grace_ms);
        match &after.request {
            Some(next) if next == request => {}
            Some(next) if next.id != who.id => return Err(FORGED),
            // Only a request of higher priority replaces it, and inherits its count.
            Some(next) if next.id != request.id && !stale && next.priority <= request.priority => {
                return Err(REQUEST_FORGOTTEN);
            }
            Some(next) if !stale && next.since_ms != request.since_ms => return Err(COUNT_RESTARTED),
            Some(_) => {}
            None if request.id == who.id || stale => {}
            None if new.is_some_and(|new| new.id == who.id) && who.priority > request.priority => {}
            None if transferred && new.is_some_and(|new| new.id == request.id) => {}
            None => return Err(REQUEST_FORGOTTEN),
        }
    } else if let Some(next) = &after.request
        && (next.id != who.id
            || old.is_none_or(|old| old.priority >= next.priority && !keeps_an_ended_lease(old, now_ms)))
    {
        return Err(FORGED);
    }
    Ok(departure)
}

/// Whether any client may ask this owner to make room, whatever its priority.
fn keeps_an_ended_lease(owner: &Held, now_ms: i64) -> bool {
    owner.notice_ms.is_some() && now_ms >= owner.until_ms
}

fn departed(
    old: &Held,
    request: Option<&Requested>,
    (who, give_up_ms): (&Terms, i64),
    modified_ms: i64,
    now_ms: i64,
) -> Result<Departure, Foul> {
    if who.id == old.id {
        return Ok(Departure::Left);
    }
    let asked = request.is_some_and(|request| request.id == who.id);
    let noticed = old.notice_ms.is_none_or(|notice_ms| asked && now_ms >= modified_ms.saturating_add(notice_ms));
    if now_ms >= old.until_ms && noticed {
        return Ok(Departure::Expired);
    }
    let Some(request) = request.filter(|request| request.id == who.id && who.priority > old.priority) else {
        return Err(OWNER_REPLACED);
    };
    let cleaned = !who.wait_past_cleanup && now_ms >= request.since_ms.saturating_add(old.cleanup_ms.max(0));
    let waited = who.waiting_ms == Some(0) || now_ms >= give_up_ms;
    match old.cleanup_ms <= 0 || (who.forceful && (cleaned || waited)) {
        true => Ok(Departure::Forced),
        false => Err(OWNER_REPLACED),
    }
}

/// Returns the latest time at which a requestor must act.
fn turn_ms(record: &Record, modified_ms: i64, request: &Requested, rules: &Rules) -> i64 {
    let Some(owner) = &record.owner else { return modified_ms.min(request.until_ms.unwrap_or(i64::MAX)) };
    let over = owner.until_ms.saturating_add(rules.skew_ms).max(modified_ms);
    let cleaned = request.since_ms.saturating_add(request.waiting_ms.min(owner.cleanup_ms).max(0));
    match owner.notice_ms {
        None => over.min(request.until_ms.unwrap_or(cleaned)),
        // A lazy owner's notice is part of the wait.
        Some(notice_ms) => {
            let noticed = modified_ms.saturating_add(notice_ms).saturating_add(rules.skew_ms);
            over.min(request.until_ms.unwrap_or(cleaned)).max(noticed)
        }
    }
}
