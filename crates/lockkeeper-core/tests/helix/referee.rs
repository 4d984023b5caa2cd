//! Judges the writes to a record: restates their rules in plain form, by a referee that knows the server's exact time.

use lockkeeper_core::helix::{Held, Record, Requested, Rules, Terms};

/// A broken promise.
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
        departure = Some(departed(old, before.request.as_ref(), (who, give_up_ms), now_ms)?);
    }
    // A revocation and the owner's answer to it change nothing.
    let silent = |owner: &Held| Held { revocation: None, ..owner.clone() };
    // An owner may name its successor, which gets the lock as it is. A lease that ends on the way is inherited as one
    // that is over.
    let heir = old.zip(new).is_some_and(|(old, new)| {
        old.id == who.id && new.id != old.id && silent(new) == Held { id: new.id.clone(), ..silent(old) }
    });
    if let Some(new) = new
        && Some(silent(new)) != old.map(silent)
        && new.id != who.id
        && !heir
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
            None if heir && new.is_some_and(|new| new.id == request.id) => {}
            None => return Err(REQUEST_FORGOTTEN),
        }
    } else if let Some(next) = &after.request
        && (next.id != who.id || old.is_none_or(|old| old.priority >= next.priority))
    {
        return Err(FORGED);
    }
    Ok(departure)
}

fn departed(
    old: &Held,
    request: Option<&Requested>,
    (who, give_up_ms): (&Terms, i64),
    now_ms: i64,
) -> Result<Departure, Foul> {
    if who.id == old.id {
        return Ok(Departure::Left);
    }
    if now_ms >= old.until_ms {
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
    let until = request.until_ms.unwrap_or(i64::MAX);
    match &record.owner {
        None => modified_ms.min(until),
        Some(owner) => {
            let over = owner.until_ms.saturating_add(rules.skew_ms).max(modified_ms);
            let cleaned = request.since_ms.saturating_add(request.waiting_ms.min(owner.cleanup_ms).max(0));
            over.min(request.until_ms.unwrap_or(cleaned))
        }
    }
}
