//! The life of one hold: the wait, the hold, the release, and what the clients are told meanwhile.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream, StreamExt};
use lockkeeper::error::VerifyError;
use lockkeeper::guard::HoldState;
use lockkeeper::{Holding, Loss, MultiGuard, Revocation};
use tokio::time::sleep;

use crate::clients::{Clients, Said};
use crate::clock::now;
use crate::conversation::{Bound, ClientId, Conversation, Happened, Step};
use crate::protocol::{Event, HeldLock};
use crate::requests::{asked, wanted};

/// The queue ahead of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// The lock that is waited for.
    pub path: String,
    /// How many contenders are ahead.
    pub ahead: u64,
    /// Who holds it, for people.
    pub holder: Option<String>,
}

/// The locks that are to be held, as whoever asks for them sees to it.
pub trait Locks {
    /// Acquires all of them. An error is the last event: [`Event::Failed`].
    ///
    /// Dropping the future ends the wait; [`Locks::leave`] comes after it.
    fn acquire(&mut self) -> impl Future<Output = Result<MultiGuard, Event>>;

    /// Makes way with a hold, and waits until it is granted again. An error is the last event.
    ///
    /// Dropping the future ends the wait; [`Locks::leave`] comes after it.
    fn make_way(&mut self, guard: MultiGuard) -> impl Future<Output = Result<MultiGuard, Event>>;

    /// Called when the locks are held, and each time that they can be trusted for longer.
    fn trusted(&mut self, _guard: &MultiGuard) {}

    /// Returns a text about the bond that begins with the grant, if there is one.
    fn bond(&self) -> Option<String> {
        None
    }

    /// Called when the locks are lost, before the clients are told.
    fn lost(&mut self, _loss: Loss) {}

    /// Releases the locks: because a client has asked for that, or because what the hold was bound to has ended. Returns a text if no
    /// server has confirmed it, and the loss if the locks were lost before. Dropping the future does not cancel the release.
    fn release(&mut self, guard: MultiGuard, is_asked: bool) -> impl Future<Output = Result<Option<String>, Loss>>;

    /// Called at the end, also after a wait that was ended or has failed: leaves the queue, and tidies up. Dropping the future does not keep
    /// the place in the queue.
    fn leave(&mut self) -> impl Future<Output = ()>;
}

/// How a hold ended: what the clients were told last.
pub type LastEvent = Event;

/// What a hold consists of, beside its locks.
struct Parts<'a, W, B> {
    talk: Conversation,
    others: Others<'a, B>,
    /// The queue ahead, each time that it changes.
    waits: W,
    last: LastEvent,
}

/// The clients, and what the hold is bound to.
struct Others<'a, B> {
    clients: Clients,
    /// Resolves when the bond is over.
    bond: Pin<&'a mut B>,
    bond_is_over: bool,
}

/// What the holder does next.
#[derive(Debug)]
enum Next {
    Verify(ClientId),
    Refuse(String),
    MakeWay,
    /// Tells of the end of this time.
    Await(Duration),
    Release {
        is_asked: bool,
    },
    End,
}

/// Acquires locks for clients that speak the protocol, tells them until when the hold may be trusted, and releases it. Returns when the
/// hold is over and the clients had a second to read that, with the event that they were told last.
///
/// The hold ends when a client releases it, when the client that it is bound to leaves, when `bond` resolves, or when it is lost. Clients
/// that came by a socket are told of the end before the release, which waits until they have left, or at most until the time up to which
/// they trust the hold.
///
/// # Cost
///
/// That of the locks. For each `check` of a client one round trip.
///
/// # Cancel safety
///
/// Dropping the future drops the guard, which releases the locks in the background, or what `locks` does to acquire them.
pub async fn keep(
    locks: &mut impl Locks,
    waits: impl Stream<Item = Ahead> + Unpin,
    (clients, bound): (Clients, Bound),
    bond: impl Future<Output = ()>,
) -> LastEvent {
    let bond = pin!(bond);
    let talk = Conversation::new(bound);
    let others = Others { clients, bond, bond_is_over: false };
    let mut parts = Parts { talk, others, waits, last: Event::Released { message: None } };
    parts.greet();
    let mut making_way = None;
    loop {
        let granted = match making_way.take() {
            None => parts.wait(locks.acquire()).await,
            Some(guard) => parts.wait(locks.make_way(guard)).await,
        };
        let Some(guard) = granted else {
            parts.handle(Happened::Gone(Ok(None)));
            break;
        };
        match parts.hold(locks, guard).await {
            Held::MakesWay(guard) => making_way = Some(guard),
            Held::IsOver => break,
        }
    }
    tokio::join!(parts.remember(), locks.leave());
    let Parts { others, last, .. } = parts;
    others.clients.finish().await;
    last
}

impl<B: Future<Output = ()>> Others<'_, B> {
    /// Waits for what a client says, or for the end of the bond. Dropping the future loses nothing.
    async fn next(&mut self) -> Happened {
        tokio::select! {
            biased;
            () = self.bond.as_mut(), if !self.bond_is_over => {
                self.bond_is_over = true;
                Happened::BondEnded
            }
            (client, said) = self.clients.next() => match said {
                Said::Came => Happened::Came(client),
                Said::Word(word) => Happened::Said(client, word),
                Said::Left => Happened::Left(client),
            },
        }
    }
}

/// How the time between a grant and its end has ended.
enum Held {
    MakesWay(MultiGuard),
    IsOver,
}

impl<W: Stream<Item = Ahead> + Unpin, B: Future<Output = ()>> Parts<'_, W, B> {
    /// Greets the clients that are there.
    fn greet(&mut self) {
        for client in self.others.clients.all() {
            self.handle(Happened::Came(client));
        }
    }

    /// Tells the clients what there is to tell, and returns what is to be done.
    fn handle(&mut self, happened: Happened) -> Option<Next> {
        let mut next = None;
        for step in self.talk.handle(happened) {
            next = match step {
                Step::Tell(to, event) => {
                    self.others.clients.tell(to, &event);
                    if event.is_last() {
                        self.last = event;
                    }
                    continue;
                }
                Step::Verify(client) => Some(Next::Verify(client)),
                Step::Refuse(why) => Some(Next::Refuse(why)),
                Step::MakeWay => Some(Next::MakeWay),
                Step::Await(until) => Some(Next::Await(until)),
                Step::Release { is_asked } => Some(Next::Release { is_asked }),
                Step::End => Some(Next::End),
            };
        }
        next
    }

    /// Waits for the locks. `None` if the wait was ended.
    async fn wait(&mut self, acquiring: impl Future<Output = Result<MultiGuard, Event>>) -> Option<MultiGuard> {
        let mut acquiring = pin!(acquiring);
        loop {
            let happened = tokio::select! {
                biased;
                granted = acquiring.as_mut() => match granted {
                    Ok(guard) => return Some(guard),
                    Err(event) => Happened::NotAcquired(event),
                },
                Some(Ahead { path, ahead, holder }) = self.waits.next() => Happened::Waits { path, ahead, holder },
                happened = self.others.next() => happened,
            };
            if let Some(Next::Release { .. } | Next::End) = self.handle(happened) {
                return None;
            }
        }
    }

    /// Holds the locks until they are released or lost, or until the client makes way.
    async fn hold(&mut self, locks: &mut impl Locks, guard: MultiGuard) -> Held {
        locks.trusted(&guard);
        let held: Vec<HeldLock> = guard.holdings().iter().map(HeldLock::from).collect();
        if let Some(bond) = locks.bond() {
            self.talk.describe(bond);
        }
        let session_timeout = guard.holdings().iter().map(Holding::session_timeout).min().unwrap_or_default();
        self.handle(Happened::Acquired { locks: held, session_timeout, valid_until: valid_until(&guard) });
        match self.until_over(locks, &guard).await {
            Next::MakeWay => Held::MakesWay(guard),
            Next::Release { is_asked } => {
                let released = locks.release(guard, is_asked).await;
                self.handle(Happened::Gone(released));
                Held::IsOver
            }
            // It is lost: there is nothing to release, but a node that is left.
            _ => Held::IsOver,
        }
    }

    /// Tells whoever comes how the hold was lost, for as long as that is of interest.
    async fn remember(&mut self) {
        while self.talk.is_remembered() {
            let happened = self.others.next().await;
            if self.handle(happened).is_some() {
                return;
            }
        }
    }

    async fn until_over(&mut self, locks: &mut impl Locks, guard: &MultiGuard) -> Next {
        let mut checks = FuturesUnordered::new();
        let mut requests: HashMap<&str, Revocation> = HashMap::new();
        let (mut state, mut is_wanted) = (HoldState::Held, false);
        let mut ends: Option<Duration> = None;
        // Created before the trust is read, so that no heartbeat is missed.
        let mut renewed = pin!(guard.renewed());
        loop {
            let happened = tokio::select! {
                biased;
                now = guard.changed(state) => {
                    state = now;
                    if let HoldState::Lost(loss) = now {
                        locks.lost(loss);
                    }
                    Happened::State(now)
                }
                () = renewed.as_mut() => {
                    renewed.set(guard.renewed());
                    locks.trusted(guard);
                    Happened::Renewed { valid_until: valid_until(guard) }
                }
                (holding, request) = asked(guard.holdings(), &requests) => {
                    requests.insert(holding.path(), request.clone());
                    Happened::Asked { path: holding.path().to_owned(), request }
                }
                now = wanted(guard.holdings(), is_wanted) => {
                    is_wanted = now;
                    if !is_wanted {
                        continue;
                    }
                    Happened::Wanted
                }
                Some((client, answer)) = checks.next() => {
                    let problem = match answer {
                        Ok(()) => None,
                        // The state says so.
                        Err(VerifyError::Lost(_)) => continue,
                        Err(error) => Some(error.to_string()),
                    };
                    Happened::Verified { client, valid_until: valid_until(guard), problem }
                }
                happened = self.others.next() => happened,
                () = sleep(ends.unwrap_or_default().saturating_sub(now())), if ends.is_some() => Happened::TrustEnded,
            };
            match self.handle(happened) {
                None => {}
                Some(Next::Await(until)) => ends = Some(until),
                Some(Next::Verify(client)) => checks.push(async move { (client, guard.verify().await) }),
                Some(Next::Refuse(why)) => _ = guard.refuse_revocation(&shortened(why)),
                Some(next) => return next,
            }
        }
    }
}

/// Returns until when a hold can be trusted. The clock is read first: a stop of this process in between makes the time earlier.
fn valid_until(guard: &MultiGuard) -> Duration {
    let now = now();
    now + guard.valid_for()
}

/// Cuts a reason to what the node of a lock has room for.
fn shortened(mut why: String) -> String {
    const MAX: usize = 4096;
    why.truncate(why.floor_char_boundary(MAX));
    why
}
