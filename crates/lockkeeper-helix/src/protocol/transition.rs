//! Decides one step from the record as it was read, one client's request, and the server's time: what to write, or why
//! not.
//!
//! One function covers every step, and is called again after each change. It keeps these promises, which the model checks. An
//! owner is replaced only when its lease is over, or when it has made room or named its successor. The one other case is the
//! stored requestor, when the wait is over. After its lease's end, only the stored requestor replaces a lazy owner, and only
//! when the request has been in the record for the owner's notice. A request is dropped only by its requestor, or by a strictly
//! higher one. It is also dropped when its requestor let its turn pass, or when the owner transfers the lock to its requestor.

use lockkeeper_core::leased::{Held, Record, Requested};

use crate::protocol::{ServerNow, Terms};

/// The settings that Helix's record leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// How long after a lease's end the lock is taken at the earliest, in milliseconds. This is the largest
    /// difference between the clocks of servers, and of clients that decide by their own clocks.
    pub skew_ms: i64,
    /// How long a requestor whose turn has come blocks other clients if it does not act, in milliseconds. It has a
    /// watch and a timer, so only a dead or disconnected requestor lets this time pass.
    pub grace_ms: i64,
}

impl Default for Rules {
    /// A second of skew, five of grace.
    fn default() -> Self {
        Rules { skew_ms: 1_000, grace_ms: 5_000 }
    }
}

/// The data that was read.
#[derive(Clone, Copy, Debug)]
pub struct SeenRecord<'a> {
    /// The record; a missing node is a free lock.
    pub record: &'a Record,
    /// When it was last written, by the server's clock in milliseconds since 1970.
    pub modified_ms: i64,
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wish<'a> {
    /// The lock; or, if the priority allows, to be next. Repeat it after each change and at the end of each wait.
    Acquire {
        /// When the own waiting timeout ends, by the server's clock in milliseconds since 1970; `i64::MAX` is never.
        give_up_ms: i64,
    },
    /// The lock if it is free now. It asks no owner to make room, and writes no request.
    Try,
    /// A new lease of a lock that the client holds.
    Renew,
    /// To transfer the lock as it is: the same lease, priority and cleanup, another owner. One step does it, so that no
    /// other client gets the lock in between. A requestor continues to wait for the same time.
    Transfer {
        /// The new owner.
        to: &'a str,
    },
    /// To refuse a request to release the lock.
    Refuse {
        /// The reason.
        reason: &'a str,
    },
    /// To give it up: the owner makes room, the requestor withdraws, any other client has nothing to do.
    Leave,
    /// To end an attempt: the requestor withdraws, and the owner makes room if the attempt made it the owner. Another
    /// hold of the same id stays.
    Withdraw {
        /// The ends of the leases that the attempt may have written.
        written_ms: &'a [i64],
    },
    /// Helix's unlock: the owner makes room. Any client frees a lock whose owner's lease is over, unless that owner is
    /// lazy, and must be asked first.
    Unlock,
}

impl Wish<'_> {
    /// Returns whether it is for a lock that the client does not hold yet.
    pub const fn is_for_the_lock(&self) -> bool {
        matches!(self, Wish::Acquire { .. } | Wish::Try)
    }
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The record to write, if the node still has the record that was read; `None` if there is nothing to write.
    pub record: Option<Record>,
    /// The client's state once that is written.
    pub answer: Answer,
}

/// The state of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It owns the lock until then, by the server's clock in milliseconds since 1970.
    Holds {
        /// The end of the lease.
        until_ms: i64,
    },
    /// It is the requestor, and waits for the owner no longer than until then.
    Waits {
        /// The end of the wait.
        until_ms: i64,
        /// The owner that it waits for.
        owner: Unfinished,
    },
    /// The owner's lease is over, but the owner keeps the lock until another client asks. It asked, and the lock is its
    /// own when the owner makes room, at the latest then.
    GivesNotice {
        /// When the notice ends.
        until_ms: i64,
    },
    /// The wait is over, the owner has not made room, and the client did not request force. The request is withdrawn.
    Unfinished(Unfinished),
    /// Another client owns the lock, as requested.
    Transferred,
    /// The client, as the owner, has answered the request to release the lock.
    Told,
    /// It neither owns nor requests the lock.
    Left {
        /// The owner whose ended lease was removed, if it was not this client.
        expired: Option<String>,
    },
}

/// An owner that has not made room yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unfinished {
    /// The owner.
    pub owner: String,
    /// Its message.
    pub message: Option<String>,
    /// Its priority.
    pub priority: i32,
    /// How long it has had since it was first asked, in milliseconds.
    pub elapsed_ms: i64,
    /// How long it may take, in milliseconds.
    pub allotted_ms: i64,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A client of the same or a higher priority owns the lock.
    Held(Held),
    /// A client of the same or a higher priority is next.
    Requested(Requested),
    /// The owner needs time for its cleanup, and the client has no time left to wait. Nothing was requested of the
    /// owner.
    Unfinished(Unfinished),
    /// The lock is not the client's.
    NotOwner {
        /// The owner.
        owner: Option<String>,
    },
    /// The client's lease is over, so there is nothing to transfer.
    LeaseOver {
        /// When it ended, by the server's clock in milliseconds since 1970.
        until_ms: i64,
    },
}

/// Decides one step. Pure: the same facts give the same step.
///
/// # Errors
/// A [`Refusal`]; the record stays as it is.
pub fn transition(
    seen: SeenRecord<'_>,
    me: &Terms,
    wish: Wish<'_>,
    now: ServerNow,
    rules: &Rules,
) -> Result<Transition, Refusal> {
    let facts = Facts { record: seen.record, modified_ms: seen.modified_ms, me, now, rules };
    match wish {
        Wish::Acquire { give_up_ms } => facts.acquire(give_up_ms),
        Wish::Try => facts.try_acquire(),
        Wish::Renew => facts.renew(),
        Wish::Transfer { to } => facts.transfer(to),
        Wish::Refuse { reason } => facts.refuse(reason),
        Wish::Leave => Ok(facts.leave(facts.owns())),
        // Each write of an owner ends its lease later than before, so the end says who wrote it.
        Wish::Withdraw { written_ms } => {
            Ok(facts.leave(facts.record.held_until_ms(&me.id).is_some_and(|end| written_ms.contains(&end))))
        }
        Wish::Unlock => facts.unlock(),
    }
}

/// Returns until when the request in the record counts, if the record does not change, by the server's clock in milliseconds since
/// 1970; `i64::MAX` without a request.
pub fn request_lapses_ms(seen: SeenRecord<'_>, me: &Terms, now: ServerNow, rules: &Rules) -> i64 {
    let facts = Facts { record: seen.record, modified_ms: seen.modified_ms, me, now, rules };
    seen.record.request.as_ref().map_or(i64::MAX, |request| facts.lapses_ms(request))
}

/// Returns the end of the hold of the client with this id, as the record shows it; `None` if the record does not show the
/// hold. The client knows that its hold ends at `until_ms`. `written_ms` are the ends that it may have written since, by
/// renewals whose replies were lost.
pub fn hold_until_ms(record: &Record, id: &str, until_ms: i64, written_ms: &[i64]) -> Option<i64> {
    record.held_until_ms(id).filter(|end| *end == until_ms || written_ms.contains(end))
}

struct Facts<'a> {
    record: &'a Record,
    modified_ms: i64,
    me: &'a Terms,
    now: ServerNow,
    rules: &'a Rules,
}

impl<'a> Facts<'a> {
    fn acquire(&self, give_up_ms: i64) -> Result<Transition, Refusal> {
        if self.owns() {
            return self.renew();
        }
        let Some(owner) = self.live_owner() else {
            return match (self.rival(), self.notice_over_ms()) {
                (Some(rival), _) if rival.priority >= self.me.priority => Err(Refusal::Requested(rival.clone())),
                (_, Some(until_ms)) => Ok(self.give_notice(until_ms)),
                (_, None) => Ok(self.take()),
            };
        };
        if self.me.priority <= owner.priority {
            return Err(Refusal::Held(owner.clone()));
        }
        if let Some(rival) = self.rival()
            && rival.priority >= self.me.priority
        {
            return Err(Refusal::Requested(rival.clone()));
        }
        self.preempt(owner, give_up_ms)
    }

    /// Takes the lock if [`Facts::acquire`] would take it now.
    fn try_acquire(&self) -> Result<Transition, Refusal> {
        let taken = self.acquire(i64::MAX)?;
        match &self.record.owner {
            Some(owner) if !matches!(taken.answer, Answer::Holds { .. }) => Err(Refusal::Held(owner.clone())),
            _ => Ok(taken),
        }
    }

    /// Asks an owner that keeps the lock after its lease's end, and takes the lock once the notice is over. Neither force
    /// nor a short wait makes the notice shorter: until its end, the owner may not know of the request.
    fn give_notice(&self, until_ms: i64) -> Transition {
        let mine = self.record.request.as_ref().filter(|request| request.id == self.me.id);
        if mine.is_some() && self.now.earliest_ms >= until_ms {
            return self.take();
        }
        let since_ms = self.request().map_or(self.now.latest_ms, |request| request.since_ms);
        let request = Requested {
            id: self.me.id.clone(),
            priority: self.me.priority,
            waiting_ms: self.me.stored_waiting_ms(),
            since_ms,
            until_ms: None,
        };
        // A request that is there stays as it is: another write would begin the notice again.
        let record = mine.is_none().then(|| Record { request: Some(request), ..self.record.clone() });
        Transition { record, answer: Answer::GivesNotice { until_ms } }
    }

    /// When the notice of a lazy owner is over, if a request is in the record from now on; `None` without such an owner.
    fn notice_over_ms(&self) -> Option<i64> {
        let notice_ms = self.record.owner.as_ref()?.notice_ms?;
        // Its own request is in the record even if others need not count it any more.
        let asked = self.request().or(self.record.request.as_ref().filter(|request| request.id == self.me.id));
        Some(match asked {
            // The request was written when the record was last written, or before.
            Some(_) => self.notice_end_ms(notice_ms),
            None => self.now.latest_ms.saturating_add(notice_ms).saturating_add(self.rules.skew_ms),
        })
    }

    /// Asks the owner to make room. Once the wait is over, takes the lock if that is allowed, or withdraws the request.
    fn preempt(&self, owner: &Held, give_up_ms: i64) -> Result<Transition, Refusal> {
        let me = self.me;
        // Counted from the first request: a chain of ever higher requestors cannot prolong the cleanup, nor cut it short.
        let since_ms = self.request().map_or(self.now.latest_ms, |request| request.since_ms);
        let cleanup_ms = owner.cleanup_ms.max(0);
        let cleaned_ms = since_ms.saturating_add(cleanup_ms);
        let until_ms = if me.wait_past_cleanup { give_up_ms } else { give_up_ms.min(cleaned_ms) };
        let unfinished = Unfinished {
            owner: owner.id.clone(),
            message: owner.message.clone(),
            priority: owner.priority,
            elapsed_ms: self.now.earliest_ms.saturating_sub(since_ms).max(0),
            allotted_ms: cleanup_ms,
        };
        let over = me.waiting_ms == Some(0) || self.now.earliest_ms >= until_ms;
        let yields = cleanup_ms == 0 || me.forceful;
        let mine = self.request().filter(|request| request.id == me.id);
        if mine.is_some() && (over || cleanup_ms == 0) {
            // The stored requestor's time has come.
            return Ok(if yields {
                self.take()
            } else {
                let record = Record { request: None, ..self.record.clone() };
                Transition { record: Some(record), answer: Answer::Unfinished(unfinished) }
            });
        }
        if over && !yields {
            return Err(Refusal::Unfinished(unfinished));
        }
        let request = Requested {
            id: me.id.clone(),
            priority: me.priority,
            waiting_ms: me.stored_waiting_ms(),
            since_ms,
            until_ms: Some(until_ms),
        };
        let record = (mine != Some(&request)).then(|| Record { request: Some(request), ..self.record.clone() });
        Ok(Transition { record, answer: Answer::Waits { until_ms, owner: unfinished } })
    }

    fn renew(&self) -> Result<Transition, Refusal> {
        let ended = self.now.latest_ms >= self.own()?.until_ms;
        if let Some(rival) = self.rival().filter(|_| ended) {
            // The lease's end is the requestor's turn, though it has not come to take it yet.
            return Err(Refusal::Requested(rival.clone()));
        }
        let request = self.rival().cloned();
        Ok(self.become_owner(request))
    }

    fn transfer(&self, to: &str) -> Result<Transition, Refusal> {
        let owner = self.record.owner.as_ref();
        if owner.is_some_and(|owner| owner.id == to) {
            // As after a write of our own whose reply was lost.
            return Ok(Transition { record: None, answer: Answer::Transferred });
        }
        let owner = self.own()?;
        // A lazy owner keeps the lock after that, until a client asks, and can transfer it.
        if self.now.latest_ms >= owner.until_ms && (owner.notice_ms.is_none() || self.rival().is_some()) {
            return Err(Refusal::LeaseOver { until_ms: owner.until_ms });
        }
        // Nobody relies on the lock until the new owner has come, so nobody needs a notice.
        let new_owner =
            Held { id: to.to_owned(), revocation: None, notice_ms: None, granted_by: None, ..owner.clone() };
        // The new owner no longer waits for the lock.
        let request = self.request().filter(|request| request.id != to).cloned();
        Ok(Transition { record: Some(Record { owner: Some(new_owner), request }), answer: Answer::Transferred })
    }

    fn refuse(&self, reason: &str) -> Result<Transition, Refusal> {
        let mut owner = self.own()?.clone();
        if let Some(revocation) = &mut owner.revocation {
            revocation.refuse(reason);
        }
        Ok(self.with_owner(owner))
    }

    fn with_owner(&self, owner: Held) -> Transition {
        let record = Record { owner: Some(owner), request: self.record.request.clone() };
        Transition { record: (record != *self.record).then_some(record), answer: Answer::Told }
    }

    fn leave(&self, makes_room: bool) -> Transition {
        let mut left = if makes_room { self.without_owner() } else { self.record.clone() };
        if left.request.as_ref().is_some_and(|request| request.id == self.me.id) {
            left.request = None;
        }
        Transition { record: (left != *self.record).then_some(left), answer: Answer::Left { expired: None } }
    }

    fn unlock(&self) -> Result<Transition, Refusal> {
        let Some(owner) = &self.record.owner else {
            return Ok(Transition { record: None, answer: Answer::Left { expired: None } });
        };
        // A lazy owner that was not asked may still rely on the lock.
        if !self.owns() && (self.live_owner().is_some() || owner.notice_ms.is_some()) {
            return Err(Refusal::NotOwner { owner: Some(owner.id.clone()) });
        }
        let expired = (!self.owns()).then(|| owner.id.clone());
        Ok(Transition { record: Some(self.without_owner()), answer: Answer::Left { expired } })
    }

    /// The record without the owner; the requestor, if it still counts, is next.
    fn without_owner(&self) -> Record {
        Record { owner: None, request: self.request().cloned() }
    }

    fn take(&self) -> Transition {
        self.become_owner(None)
    }

    fn become_owner(&self, request: Option<Requested>) -> Transition {
        let me = self.me;
        let ends_ms = self.now.latest_ms.saturating_add(me.lease_ms);
        // A new lease ends later, even in the same millisecond: its end distinguishes the new hold from the old one.
        let until_ms = self.own().map_or(ends_ms, |own| ends_ms.max(own.until_ms.saturating_add(1)));
        let owner = Held {
            id: me.id.clone(),
            message: me.message.clone(),
            until_ms,
            priority: me.priority,
            waiting_ms: me.stored_waiting_ms(),
            cleanup_ms: me.cleanup_ms,
            // A request to the current owner: a renewal does not answer it.
            revocation: self.own().ok().and_then(|owner| owner.revocation.clone()),
            notice_ms: me.notice_ms,
            granted_by: None,
        };
        Transition { record: Some(Record { owner: Some(owner), request }), answer: Answer::Holds { until_ms } }
    }

    fn owns(&self) -> bool {
        self.own().is_ok()
    }

    /// The client's own hold.
    fn own(&self) -> Result<&'a Held, Refusal> {
        self.hold_of(&self.me.id)
    }

    fn hold_of(&self, id: &str) -> Result<&'a Held, Refusal> {
        match &self.record.owner {
            Some(owner) if owner.id == id => Ok(owner),
            owner => Err(Refusal::NotOwner { owner: owner.as_ref().map(|owner| owner.id.clone()) }),
        }
    }

    /// The owner, unless its lease is certainly over.
    fn live_owner(&self) -> Option<&'a Held> {
        self.record.owner.as_ref().filter(|owner| self.now.earliest_ms < self.lease_over_ms(owner))
    }

    fn lease_over_ms(&self, owner: &Held) -> i64 {
        owner.until_ms.saturating_add(self.rules.skew_ms)
    }

    /// The request, unless its client has let its turn pass.
    fn request(&self) -> Option<&'a Requested> {
        self.record.request.as_ref().filter(|request| self.now.earliest_ms < self.lapses_ms(request))
    }

    /// When the client of a request lets its turn pass, if the record does not change.
    fn lapses_ms(&self, request: &Requested) -> i64 {
        let never = i64::MAX;
        let turn_ms = match &self.record.owner {
            None => self.modified_ms.min(request.until_ms.unwrap_or(never)),
            Some(owner) => {
                let over_ms = self.live_owner().is_none().then(|| self.lease_over_ms(owner).max(self.modified_ms));
                let cleaned_ms = request.since_ms.saturating_add(request.waiting_ms.min(owner.cleanup_ms).max(0));
                match (owner.notice_ms, over_ms) {
                    (None, Some(over_ms)) => over_ms.min(request.until_ms.unwrap_or(never)),
                    (None, None) => request.until_ms.unwrap_or(cleaned_ms),
                    // The notice of a lazy owner is part of the requestor's wait.
                    (Some(notice_ms), over_ms) => {
                        let wait_ms = request.until_ms.unwrap_or(cleaned_ms);
                        over_ms.unwrap_or(never).min(wait_ms).max(self.notice_end_ms(notice_ms))
                    }
                }
            }
        };
        turn_ms.saturating_add(self.rules.grace_ms)
    }

    /// When the notice ends that began when the record was last written.
    fn notice_end_ms(&self, notice_ms: i64) -> i64 {
        self.modified_ms.saturating_add(notice_ms).saturating_add(self.rules.skew_ms)
    }

    /// The request, if it counts and is another's.
    fn rival(&self) -> Option<&'a Requested> {
        self.request().filter(|request| request.id != self.me.id)
    }
}
