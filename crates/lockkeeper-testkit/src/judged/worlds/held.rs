//! The kinds of holds: how a turn acquires, changes and releases each.

use std::time::Duration;

use futures_util::FutureExt;
use lockkeeper::error::AcquireError;
use lockkeeper::guard::{FencedWrite, Permit, UpgradeableGuard};
use lockkeeper::{Class, Error, Guard, Holding, MultiGuard, Request, WriteGuard};
use lockkeeper_election::{Candidacy, Candidate, Election, Event, Leadership};
use lockkeeper_helix::{AcquireLeaseError, HelixGuard, HelixLock};

use super::life::{Handle, LOCKS};
use super::{Call, Change, Family, PERMITS, Turn, Want};
use crate::judged::history::{HoldId, Share};

/// The least age of a hold that makes way.
const MIN_HOLD: Duration = Duration::from_millis(50);

/// How long the owner of a leased lock may clean up.
const CLEANUP: Duration = Duration::from_secs(2);

/// Acquires what a turn wants, under a name of its own; `None`: the caller dropped the call.
pub(super) async fn ask(handle: &Handle, turn: Turn, name: String) -> Option<Result<Held, AcquireError>> {
    let (keeper, path) = (&handle.keeper, LOCKS[0]);
    match (handle.family, turn.want) {
        (Family::Several, Want::Both) => {
            let both = |once: bool| {
                let mut requests = LOCKS.map(|path| keeper.mutex(path).acquire());
                if turn.pause.is_multiple_of(2) {
                    requests.reverse();
                }
                let both = keeper.multi_lock(requests);
                if once { both.timeout(Duration::ZERO) } else { both }
            };
            answer(turn.call, both, Held::Several).await
        }
        (Family::Mutex(_) | Family::Several | Family::Delayed | Family::Kept, want) => {
            let lock = match (handle.family, want) {
                (Family::Mutex(names), _) => keeper.mutex(path).node_format(names.into()),
                (_, Want::Second) => keeper.mutex(LOCKS[1]),
                (_, Want::Kept) => handle.kept.clone(),
                _ => keeper.mutex(path),
            };
            let ask = |once| {
                let request = if once { lock.try_acquire() } else { lock.acquire() };
                match want {
                    Want::Delayed(delay) => request.lock_delay(Duration::from_millis(delay)),
                    _ => request,
                }
            };
            answer(turn.call, ask, Held::Alone).await
        }
        (Family::Shared(names), want) => {
            let lock = keeper.rwlock(path).node_format(names.into());
            match want {
                Want::Read | Want::Joint => {
                    let read = if want == Want::Joint { handle.joint.clone() } else { lock.read() };
                    let ask = |once| if once { read.try_acquire() } else { read.acquire() };
                    answer(turn.call, ask, Held::Reads).await
                }
                Want::MayWrite => {
                    let may = lock.upgradeable();
                    let ask = |once| if once { may.try_acquire() } else { may.acquire() };
                    answer(turn.call, ask, Held::MayWrite).await
                }
                _ => {
                    let write = lock.write();
                    let ask = |once| if once { write.try_acquire() } else { write.acquire() };
                    answer(turn.call, ask, Held::Writes).await
                }
            }
        }
        (Family::Permits, want) => {
            let take = if let Want::Permits(take) = want { take } else { 1 };
            let lock = keeper.semaphore(path, PERMITS);
            let ask = |once| if once { lock.try_acquire_many(take) } else { lock.acquire_many(take) };
            answer(turn.call, ask, |permit| Held::Permits(take, permit)).await
        }
        (Family::Classes, want) => {
            let lock = keeper.priority_lock(path);
            let lock = match want {
                Want::Background => lock.background(),
                Want::Ageing(after) => lock.background().ageing(Duration::from_millis(after), Class::FOREGROUND),
                _ => lock.foreground(),
            };
            let ask = |once| {
                let request = if once { lock.try_acquire() } else { lock.acquire() };
                if turn.change == Change::Yield { request.min_hold(MIN_HOLD) } else { request }
            };
            answer(turn.call, ask, Held::Alone).await
        }
        (Family::Leased, want) => lease(handle, turn, want, name).await,
        (Family::Elections, want) => campaign(candidate(handle, name), turn.call, want).await,
    }
}

async fn lease(handle: &Handle, turn: Turn, want: Want, name: String) -> Option<Result<Held, AcquireError>> {
    let Want::Leased { lease, priority, strict } = want else { return None };
    let lock = HelixLock::new(&handle.keeper, LOCKS[0], Duration::from_millis(lease));
    let lock = lock.user_id(name).priority(priority);
    let lock = if strict { lock.strict() } else { lock };
    // An owner without a time for its cleanup is preempted before it knows.
    let lock = lock.cleanup(CLEANUP);
    let lock = if turn.heeds { lock.cleanup_by_guard() } else { lock };
    let ask = |once| match turn.call {
        _ if once => lock.try_acquire(),
        // The others fail if the lock has an owner of the same or a higher priority.
        Call::Wait | Call::Dropped(_) => lock.acquire().wait_for_every_owner(),
        _ => lock.acquire(),
    };
    let refused = |error| match error {
        AcquireLeaseError::Session(error) => error.into(),
        AcquireLeaseError::Timeout { path, waited } => {
            AcquireError::Timeout { path, waited, holder: None, ahead: None }
        }
        AcquireLeaseError::Outranked { path, .. }
        | AcquireLeaseError::Preempted { path, .. }
        | AcquireLeaseError::CleanupUnfinished { path, .. } => AcquireError::Held { path, holder: None, ahead: None },
        error => panic!("{error}"),
    };
    Some(answer(turn.call, ask, Held::Leased).await?.map_err(refused))
}

pub(super) fn candidate(handle: &Handle, name: String) -> Candidate {
    Election::new(&handle.keeper, LOCKS[0]).candidate(name)
}

async fn campaign(candidate: Candidate, call: Call, want: Want) -> Option<Result<Held, AcquireError>> {
    let (candidate, dropped) = match call {
        Call::Try => (candidate.with(|request| request.timeout(Duration::ZERO)), None),
        Call::Within(limit) => (candidate.with(move |request| request.timeout(Duration::from_millis(limit))), None),
        Call::Dropped(after) => (candidate, Some(Duration::from_millis(after))),
        Call::Wait => (candidate, None),
    };
    let lead = async {
        if want == Want::Campaign {
            return Ok(Held::Leads(candidate.campaign().await?));
        }
        let mut candidacy = candidate.stand();
        let first = candidacy.next().await?;
        assert!(matches!(first, Event::Promoted(_)), "{first:?}");
        Ok(Held::Stands(Box::new(candidacy)))
    };
    let led = match dropped {
        Some(after) => tokio::time::timeout(after, lead).await.ok()?,
        None => lead.await,
    };
    Some(led.map_err(|error| match error {
        Error::Acquire(error) => error,
        Error::Session(error) => error.into(),
        error => panic!("{error}"),
    }))
}

/// Acquires as the script says; `None`: the caller dropped the call.
async fn answer<R: Request>(
    call: Call,
    acquire: impl Fn(bool) -> R,
    held: impl FnOnce(R::Guard) -> Held,
) -> Option<Result<Held, R::Error>> {
    let answered = match call {
        Call::Try => Some(acquire(true).await),
        Call::Wait => Some(acquire(false).await),
        Call::Within(limit) => Some(acquire(false).timeout(Duration::from_millis(limit)).await),
        Call::Dropped(after) => tokio::time::timeout(Duration::from_millis(after), acquire(false)).await.ok(),
    };
    answered.map(|answered| answered.map(held))
}

#[derive(Debug)]
pub(super) enum Held {
    Alone(Guard),
    Reads(Guard),
    Writes(WriteGuard),
    MayWrite(UpgradeableGuard),
    Permits(u32, Permit),
    Several(MultiGuard),
    Leased(HelixGuard),
    Leads(Leadership),
    Stands(Box<Candidacy>),
}

impl Held {
    pub(super) fn share(&self) -> Share {
        match self {
            Held::Reads(_) | Held::MayWrite(_) => Share::Reads,
            Held::Permits(take, _) => Share::Permits(*take),
            _ => Share::Alone,
        }
    }

    /// The holds: several, if the guard is one of several locks.
    pub(super) fn holdings(&self) -> &[Holding] {
        match self {
            Held::Several(guard) => guard.holdings(),
            one => std::slice::from_ref(one.holding()),
        }
    }

    pub(super) fn each(&self, first: HoldId) -> Vec<(HoldId, u32, &Holding)> {
        each(first, self.holdings())
    }

    /// Whether its user may rely on this hold: the hold says so, or the guard of several locks does.
    pub(super) fn is_believed(&self, holding: &Holding) -> bool {
        match self {
            Held::Several(guard) => guard.is_held() || holding.is_held(),
            Held::Leads(leadership) => leadership.is_leading(),
            Held::Stands(candidacy) => candidacy.leadership().is_some_and(Leadership::is_leading),
            _ => holding.is_held(),
        }
    }

    /// The first hold.
    pub(super) fn holding(&self) -> &Holding {
        match self {
            Held::Alone(guard) | Held::Reads(guard) => guard,
            Held::Writes(guard) => guard,
            Held::MayWrite(guard) => guard,
            Held::Permits(_, permit) => permit,
            Held::Several(guard) => &guard.holdings()[0],
            Held::Leased(guard) => guard,
            Held::Leads(leadership) => leadership,
            Held::Stands(candidacy) => candidacy.leadership().expect("it was promoted and not demoted"),
        }
    }

    pub(super) fn fenced_write(&self) -> FencedWrite<'_> {
        match self {
            Held::Several(guard) => guard.fenced_write(),
            one => one.holding().fenced_write(),
        }
    }

    /// Releases; returns whether that is confirmed. The hold may have been lost before, which is no error of the
    /// library.
    pub(super) async fn release(self) -> bool {
        let released = match self {
            Held::Leads(leadership) => return leadership.resign().await.is_ok(),
            Held::Stands(mut candidacy) => {
                let loss = candidacy.leadership().and_then(|leadership| leadership.loss());
                let demoted = match candidacy.next().now_or_never() {
                    Some(Ok(Event::Demoted(loss))) => Some(loss),
                    _ => None,
                };
                assert_eq!(demoted, loss, "each loss is reported, and nothing else");
                return loss.is_none() && candidacy.resign().await.is_ok();
            }
            Held::Leased(guard) => guard.release().await,
            Held::Alone(guard) | Held::Reads(guard) => guard.release().await,
            Held::Writes(guard) => guard.release().await,
            Held::MayWrite(guard) => guard.release().await,
            Held::Permits(_, permit) => permit.release().await,
            Held::Several(guard) => guard.release().await,
        };
        released.is_ok()
    }
}

/// Each hold with its identity and the number of its lock. The first of them has this identity.
pub(super) fn each(first: HoldId, holdings: &[Holding]) -> Vec<(HoldId, u32, &Holding)> {
    let number = |holding: &Holding| u32::from(holding.path() == LOCKS[1]);
    (first.0..).zip(holdings).map(|(hold, holding)| (HoldId(hold), number(holding), holding)).collect()
}

/// The result of a change of a hold.
pub(super) enum Changed {
    Same(Held),
    Into(Held),
    Lost,
}

pub(super) async fn change(held: Held, change: Change) -> Changed {
    match (held, change) {
        (Held::Writes(guard), Change::Down) => {
            guard.downgrade().await.map_or(Changed::Lost, |guard| Changed::Into(Held::Reads(guard)))
        }
        (Held::MayWrite(guard), Change::Down) => {
            guard.downgrade().await.map_or(Changed::Lost, |guard| Changed::Into(Held::Reads(guard)))
        }
        (Held::MayWrite(guard), Change::Up(patience)) => {
            let upgrade = guard.upgrade();
            let upgraded = match patience {
                Some(patience) => upgrade.timeout(Duration::from_millis(patience)).await,
                None => upgrade.await,
            };
            match upgraded {
                Ok(guard) => Changed::Into(Held::Writes(guard)),
                Err(error) => Changed::Same(Held::MayWrite(error.guard)),
            }
        }
        (held, _) => Changed::Same(held),
    }
}
