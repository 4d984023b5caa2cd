//! What the owner of a leased lock learns of its hold from each read of the record.

use lockkeeper_core::leased::{Held, Record};
use lockkeeper_core::{Loss, Revocation};

use super::{SeenRecord, ServerNow, Terms, hold_until_ms};

/// A hold, as its owner knows it. Each read of the record says how it goes on ([`OwnedHold::look`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnedHold {
    id: String,
    priority: i32,
    /// The end of the lease as this hold wrote it, which identifies the record as its own.
    until_ms: i64,
    /// The last read showed a requestor.
    wanted: bool,
    /// The preemption that was reported, by the time of its first request.
    told: Option<i64>,
    /// The requestor that was reported asked after the lease's end.
    lease_over: bool,
    /// The request to release the lock that was reported.
    asked: Option<Revocation>,
}

/// What a read of the record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The hold goes on.
    GoesOn(Extent, Vec<News>),
    /// It is over.
    Over {
        /// Why.
        loss: Loss,
        /// The owner that has preempted it, with its priority, if no read has shown its request.
        by: Option<(String, i32)>,
    },
}

/// How long a hold goes on without another read of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Until the server's clock may show this.
    pub until_ms: i64,
    /// After that, for as long as no client can have asked for the lock without the owner's knowledge: the owner has a notice.
    pub keeps: bool,
}

/// What the user of a hold is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A requestor wants the lock. This comes once for each preemption, however often a requestor is replaced by one of a higher
    /// priority.
    Preempted(Preempting),
    /// The requestor has given up, or an operator rejected it. The request to release that stands, if one does.
    NotPreempted(Option<Revocation>),
    /// A person asks for the release. This comes once, until it is answered.
    Asked(Revocation),
}

/// A requestor that wants the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preempting {
    /// Its user id.
    pub by: String,
    /// Its priority.
    pub priority: i32,
    /// When the owner was first asked, by the server's clock.
    pub since_ms: i64,
    /// How long the owner may clean up.
    pub cleanup_ms: i64,
    /// When the time for that ends, by the server's clock.
    pub cleaned_ms: i64,
    /// When the requestor's wait ends: then it takes the lock by force, or gives up.
    pub wanted_ms: i64,
    /// The lease is over, so the owner has only its notice.
    pub lease_over: bool,
}

impl OwnedHold {
    /// The hold of a client with these terms, whose lease ends at this time by the server's clock.
    pub fn new(terms: &Terms, until_ms: i64) -> Self {
        let (id, priority) = (terms.id.clone(), terms.priority);
        OwnedHold { id, priority, until_ms, wanted: false, told: None, lease_over: false, asked: None }
    }

    /// When the lease ends, by the server's clock. With the owner's id, this identifies the record.
    pub fn until_ms(&self) -> i64 {
        self.until_ms
    }

    /// The hold was renewed, and its lease ends then.
    pub fn renewed(&mut self, until_ms: i64) {
        self.until_ms = until_ms;
    }

    /// Whether the last read showed a requestor.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Whether a preemption was reported that goes on.
    pub fn is_preempted(&self) -> bool {
        self.told.is_some()
    }

    /// How a hold is lost that its owner gives up for the requestor.
    pub fn lost_to_requestor(&self) -> Loss {
        if self.lease_over { Loss::LeaseEnded } else { Loss::Preempted }
    }

    /// Whether the record shows this hold. It may show an end that a renewal has written whose reply was lost, one of `written_ms`:
    /// that is the hold's end from then on.
    pub fn is_shown(&mut self, record: &Record, written_ms: &[i64]) -> bool {
        let until_ms = hold_until_ms(record, &self.id, self.until_ms, written_ms);
        self.until_ms = until_ms.unwrap_or(self.until_ms);
        if until_ms.is_some() {
            self.wanted = record.request.as_ref().is_some_and(|request| request.id != self.id);
        }
        until_ms.is_some()
    }

    /// Takes in a read of the record. `session_ms`: the timeout of the owner's session, if the owner shows by it that it lives.
    pub fn look(&mut self, seen: SeenRecord<'_>, now: ServerNow, written_ms: &[i64], session_ms: i64) -> Shown {
        let Some(owner) = seen.record.owner.as_ref().filter(|owner| owner.id == self.id) else {
            return self.over(seen.record, now.latest_ms >= self.until_ms);
        };
        if !self.is_shown(seen.record, written_ms) {
            return Shown::Over { loss: Loss::Superseded, by: None };
        }
        let mut news = Vec::new();
        match seen.record.request.as_ref().filter(|_| self.wanted) {
            Some(request) if self.told != Some(request.since_ms) => {
                self.told = Some(request.since_ms);
                self.lease_over = now.latest_ms >= self.until_ms;
                let cleanup_ms = owner.cleanup_ms.max(0);
                let cleaned_ms = request.since_ms.saturating_add(cleanup_ms);
                news.push(News::Preempted(Preempting {
                    by: request.id.clone(),
                    priority: request.priority,
                    since_ms: request.since_ms,
                    cleanup_ms,
                    cleaned_ms,
                    wanted_ms: request.until_ms.unwrap_or(cleaned_ms),
                    lease_over: self.lease_over,
                }));
            }
            None if self.told.take().is_some() => news.push(News::NotPreempted(self.asked.clone())),
            _ => {}
        }
        let asked = owner.revocation.as_deref().filter(|revocation| revocation.refused.is_none());
        if self.asked.as_ref() != asked {
            self.asked = asked.cloned();
            news.extend(asked.cloned().map(News::Asked));
        }
        Shown::GoesOn(self.extent(seen, now, session_ms), news)
    }

    /// How long the hold goes on that this record shows.
    pub fn extent(&self, seen: SeenRecord<'_>, now: ServerNow, session_ms: i64) -> Extent {
        let notice_ms = seen.record.owner.as_ref().and_then(|owner| owner.notice_ms);
        let mut until_ms = self.until_ms;
        // A requestor that asks before the lease's end does not prolong the hold.
        if let Some(notice_ms) = notice_ms.filter(|_| self.wanted && now.latest_ms >= self.until_ms) {
            until_ms = until_ms.max(seen.modified_ms.saturating_add(notice_ms));
        }
        // A session with a longer timeout than that of the grant would be trusted for longer than the notice.
        let keeps = !self.wanted && notice_ms.is_some_and(|given| session_ms <= given);
        Extent { until_ms, keeps }
    }

    /// The lock has another owner, or none.
    fn over(&self, record: &Record, lease_over: bool) -> Shown {
        // The same lease with another owner: another user of this id has handed it over. A preemption may end in the
        // same millisecond, but not with the same priority.
        let same = |owner: &Held| (owner.until_ms, owner.priority) == (self.until_ms, self.priority);
        let (loss, by) = match &record.owner {
            Some(owner) if same(owner) => (Loss::Transferred, None),
            // The preemption may have been so fast that only its result was seen.
            Some(owner) if owner.priority > self.priority => {
                (Loss::Preempted, self.told.is_none().then(|| (owner.id.clone(), owner.priority)))
            }
            // The owner that took it by force has already released it. If the request is still there, it was not
            // served: an operator broke the lock.
            _ if self.wanted && record.request.is_none() => (Loss::Preempted, None),
            Some(_) if lease_over => (Loss::LeaseEnded, None),
            _ => (Loss::Removed, None),
        };
        Shown::Over { loss, by }
    }
}
