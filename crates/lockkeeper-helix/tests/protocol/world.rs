//! Three clients, one record, and every event that can happen between them.

use lockkeeper_core::leased::Record;
use lockkeeper_helix::protocol::{
    Answer, Extent, OwnedHold, Refusal, Rules, SeenRecord, ServerNow, Shown, Terms, Transition, Wish, transition,
};
use stateright::{Model, Property};

use crate::referee::{self, Departure, Foul, judge};

pub(crate) const ONE_OWNER: &str = "a client that relies on the lock owns it";
pub(crate) const BELIEVES: &str = "a client that was granted the lock has written the record";
pub(crate) const KEEPS: &str = "a client gives up no lock that it owns";
pub(crate) const GETS_IN: &str = "the highest priority gets the lock";
pub(crate) const PRIORITIES: &str = "three priorities";
pub(crate) const EQUALS: &str = "two equals above one, none forceful";
pub(crate) const LAZY: &str = "an owner that keeps an ended lease, and one that asks for it";
pub(crate) const RENEWED: &str = "a renewal, two lost replies";
pub(crate) const HANDED_OVER: &str = "three priorities, the lock is handed over, a lost reply";

pub(crate) const SETTLES: &str = "no client waits for ever";

/// An event that must occur, so that the claims are not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Witness {
    /// A requestor replaced an owner whose time for the cleanup was over.
    Forced,
    /// A requestor was replaced by one of higher priority.
    Displaced,
    /// An owner made room and its requestor got the lock.
    HandedOver,
    /// A lease that was over was taken.
    LeaseTaken,
    /// A write whose reply was lost was found done.
    Repeated,
    /// Another client got a dead requestor's place.
    Swept,
    /// A wait ended before the owner had made room.
    Unfinished,
    /// An owner transferred the lock.
    Transferred,
    /// The client that was named the new owner came and held the lock.
    Inherited,
    /// An owner that no client asked relied on the lock after its lease's end.
    Kept,
}

impl Witness {
    const ALL: [Witness; 10] = [
        Witness::Forced,
        Witness::Displaced,
        Witness::HandedOver,
        Witness::LeaseTaken,
        Witness::Repeated,
        Witness::Swept,
        Witness::Unfinished,
        Witness::Transferred,
        Witness::Inherited,
        Witness::Kept,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Witness::Forced => "seen: forced",
            Witness::Displaced => "seen: displaced",
            Witness::HandedOver => "seen: handed over",
            Witness::LeaseTaken => "seen: an ended lease taken",
            Witness::Repeated => "seen: a lost write found done",
            Witness::Swept => "seen: a dead requestor swept away",
            Witness::Unfinished => "seen: a cleanup not finished",
            Witness::Transferred => "seen: handed to a named owner",
            Witness::Inherited => "seen: held by whom it was handed to",
            Witness::Kept => "seen: an ended lease kept",
        }
    }
}

/// A seeded mistake in how decisions are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A force counts as done, whatever the result of its write.
    ForceUnchecked,
    /// A requestor's write that takes the lock after its owner made room counts as done, whatever its result.
    CleanupUnchecked,
    /// A request that is not lower than the client's own is ignored.
    RequestOverwritten,
    /// The owner's unlock writes a free lock's record.
    WipedByUnlock,
    /// A new requestor restarts the count.
    CountRestarted,
    /// A transfer writes a record without the request.
    WipedByTransfer,
    /// The old owner continues after a transfer as if it still held the lock.
    HeldOn,
    /// A lazy owner is not given its notice.
    NoNotice,
    /// A lazy owner goes on without looking at the record that has changed.
    LookedAway,
    /// An owner forgets the lease that it may have written when the reply was lost.
    RenewalForgotten,
}

impl Mistake {
    /// Returns the name of the world in which the mistake does harm.
    pub(crate) fn shown_in(self) -> &'static str {
        match self {
            Mistake::RequestOverwritten => EQUALS,
            Mistake::WipedByTransfer | Mistake::HeldOn => HANDED_OVER,
            Mistake::NoNotice | Mistake::LookedAway => LAZY,
            Mistake::RenewalForgotten => RENEWED,
            _ => PRIORITIES,
        }
    }
}

/// The number of faults that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub losses: u8,
    pub crashes: u8,
    pub renewals: u8,
    pub transfers: u8,
    pub cancels: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub name: &'static str,
    pub clients: Vec<Terms>,
    pub budget: Budget,
    /// The client that must get the lock, if it lives.
    pub gets_in: Option<usize>,
    /// The client that takes the lock only if it is free.
    pub tries: Option<usize>,
    pub witnesses: Vec<Witness>,
    pub mistake: Option<Mistake>,
    /// How far a client's estimate of the server's time may be wrong, in each direction.
    pub blur_ms: i64,
    pub rules: Rules,
    /// The time until which clients arrive.
    pub ask_by_ms: i64,
    /// The time until which they may be slow.
    pub end_ms: i64,
}

impl Default for World {
    fn default() -> Self {
        World {
            name: "",
            clients: Vec::new(),
            budget: Budget { losses: 0, crashes: 0, renewals: 0, transfers: 0, cancels: 0 },
            gets_in: Some(2),
            tries: None,
            witnesses: Vec::new(),
            mistake: None,
            blur_ms: 0,
            rules: Rules { skew_ms: 1, grace_ms: 1 },
            ask_by_ms: 2,
            end_ms: 6,
        }
    }
}

/// The phase of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// It has not asked yet.
    Idle,
    /// It is about to read and decide.
    Looking(Wish<'static>),
    /// Its write is on the way. The write takes effect if the record is still the one that was read.
    Writing {
        wish: Wish<'static>,
        current: bool,
        record: Box<Record>,
        answer: Answer,
        again: bool,
    },
    /// It waits for a change of the record that it has seen, or for the end of its wait.
    Waiting {
        wish: Wish<'static>,
        current: bool,
        until_ms: i64,
    },
    /// A reply said that it owns the lock.
    Holding {
        owned: OwnedHold,
        /// Until when it goes on, as far as it knows.
        until_ms: i64,
        /// Of a lazy owner: when it was last sure that the record had not changed since it saw no request in it.
        unasked_ms: Option<i64>,
        current: bool,
    },
    Done,
    Refused,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub phase: Phase,
    /// By the rules, another client got the lock while this one held it, and this one has not noticed yet.
    pub displaced: bool,
    /// A reply to it was lost.
    unsure: bool,
    /// While it renews its hold: the hold, and the ends that it may have written, because the replies were lost.
    renewing: Option<(OwnedHold, Vec<i64>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub record: Record,
    modified_ms: i64,
    now_ms: i64,
    clients: Vec<Client>,
    budget: Budget,
    foul: Option<Foul>,
    false_belief: bool,
    seen: Option<Witness>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Tick,
    Ask(usize),
    /// The client reads and decides.
    Look(usize),
    /// The write reaches the server, and the reply reaches the client.
    Write(usize),
    /// The write reaches the server or not, and the client gets no reply.
    Lose(usize, bool),
    Renew(usize),
    /// To the client that is named second.
    Transfer(usize, usize),
    Unlock(usize),
    /// A heartbeat shows a lazy owner that the record has not changed.
    Prove(usize),
    Cancel(usize),
    /// An owner reads the record that has changed.
    Notice(usize),
    Crash(usize),
}

impl World {
    fn now(&self, state: &State) -> ServerNow {
        ServerNow { earliest_ms: state.now_ms - self.blur_ms, latest_ms: state.now_ms + self.blur_ms }
    }

    /// Reads and decides, as a driver would.
    fn look(&self, state: &mut State, at: usize) -> Option<()> {
        let me = &self.clients[at];
        let wish = match state.clients[at].phase {
            Phase::Looking(wish) | Phase::Waiting { wish, .. } => wish,
            _ => return None,
        };
        if let Some((owned, written_ms)) = &mut state.clients[at].renewing {
            let written_ms = if self.mistake == Some(Mistake::RenewalForgotten) { &[][..] } else { written_ms };
            if !owned.is_shown(&state.record, written_ms) {
                // Without transfers, only the owner itself writes that it owns the lock.
                let owned = state.record.held_until_ms(&me.id).is_some();
                state.foul = state.foul.or((owned && self.budget.transfers == 0).then_some(KEEPS));
                state.clients[at].phase = Phase::Done;
                return Some(());
            }
        }
        let mut read = state.record.clone();
        if self.mistake == Some(Mistake::RequestOverwritten)
            && read.owner.as_ref().is_some_and(|owner| owner.id != me.id)
            && read.request.as_ref().is_some_and(|request| request.id != me.id)
        {
            read.request = None;
        }
        if let (Some(Mistake::NoNotice), Some(owner)) = (self.mistake, &mut read.owner) {
            owner.notice_ms = None;
        }
        let seen = SeenRecord { record: &read, modified_ms: state.modified_ms };
        let now = self.now(state);
        let unsure = state.clients[at].unsure;
        state.clients[at].phase = match transition(seen, me, wish, now, &self.rules) {
            Ok(Transition { record: Some(mut record), answer }) => {
                if let (Some(Mistake::WipedByUnlock), Wish::Leave) = (self.mistake, wish) {
                    record.request = None;
                }
                if let (Some(Mistake::WipedByTransfer), Wish::Transfer { .. }) = (self.mistake, wish) {
                    record.request = None;
                }
                if self.mistake == Some(Mistake::CountRestarted)
                    && let (Some(old), Some(new)) = (&state.record.request, &mut record.request)
                    && old.id != new.id
                {
                    new.since_ms = now.latest_ms;
                }
                let again = unsure && read.owner.as_ref().is_some_and(|owner| owner.id == me.id);
                Phase::Writing { wish, current: true, record: Box::new(record), answer, again }
            }
            Ok(Transition { record: None, answer }) => self.answered(state, at, wish, &answer),
            Err(_) if matches!(wish, Wish::Renew | Wish::Transfer { .. }) => Phase::Done,
            Err(
                Refusal::Unfinished(_)
                | Refusal::Held(_)
                | Refusal::Requested(_)
                | Refusal::NotOwner { .. }
                | Refusal::LeaseOver { .. },
            ) => Phase::Refused,
        };
        Some(())
    }

    fn answered(&self, state: &State, at: usize, wish: Wish<'static>, answer: &Answer) -> Phase {
        let holding = |until_ms| {
            let mut owned = match &state.clients[at].renewing {
                Some((owned, _)) => owned.clone(),
                None => OwnedHold::new(&self.clients[at], until_ms),
            };
            owned.renewed(until_ms);
            // A lazy owner reads the record at once.
            match self.clients[at].notice_ms {
                Some(_) => self.looked(state, at, owned),
                None => Phase::Holding { owned, until_ms, unasked_ms: None, current: true },
            }
        };
        match *answer {
            Answer::Holds { until_ms } => holding(until_ms),
            Answer::Waits { until_ms, .. } | Answer::GivesNotice { until_ms } => {
                Phase::Waiting { wish, current: true, until_ms }
            }
            Answer::Unfinished(_) => Phase::Refused,
            Answer::Transferred if self.mistake == Some(Mistake::HeldOn) => holding(i64::MAX),
            Answer::Left { .. } | Answer::Transferred | Answer::Told => Phase::Done,
        }
    }

    /// The owner reads the record.
    fn looked(&self, state: &State, at: usize, mut owned: OwnedHold) -> Phase {
        let seen = SeenRecord { record: &state.record, modified_ms: state.modified_ms };
        let session_ms = self.clients[at].notice_ms.unwrap_or(i64::MAX);
        match owned.look(seen, self.now(state), &[], session_ms) {
            Shown::Over { .. } => Phase::Done,
            Shown::GoesOn(Extent { until_ms, keeps }, _) => {
                Phase::Holding { owned, until_ms, unasked_ms: keeps.then_some(state.now_ms), current: true }
            }
        }
    }

    /// Lets a write arrive; `heard` is whether the client learns the result.
    fn arrive(&self, state: &mut State, at: usize, heard: bool) -> Option<()> {
        let Phase::Writing { wish, current: done, record, answer, again } = state.clients[at].phase.clone() else {
            return None;
        };
        if done {
            self.apply(state, at, wish, *record);
        }
        let unchecked = match self.mistake {
            Some(Mistake::ForceUnchecked) => state.record.owner.is_some(),
            Some(Mistake::CleanupUnchecked) => true,
            _ => false,
        };
        let holds = matches!(answer, Answer::Holds { .. });
        state.clients[at].phase = match (heard, done) {
            (false, _) => {
                state.clients[at].unsure = true;
                Phase::Looking(wish)
            }
            (true, true) => {
                match answer {
                    Answer::Unfinished(_) => state.seen = Some(Witness::Unfinished),
                    Answer::Holds { .. } if again => state.seen = Some(Witness::Repeated),
                    _ => {}
                }
                self.answered(state, at, wish, &answer)
            }
            (true, false) if holds && unchecked => {
                state.false_belief = true;
                self.answered(state, at, wish, &answer)
            }
            (true, false) => Phase::Looking(wish),
        };
        Some(())
    }

    fn apply(&self, state: &mut State, at: usize, wish: Wish<'static>, record: Record) {
        let who = &self.clients[at];
        let give_up_ms = if let Wish::Acquire { give_up_ms } = wish { give_up_ms } else { i64::MAX };
        let before = std::mem::replace(&mut state.record, record);
        let old = before.owner.as_ref().and_then(|owner| self.clients.iter().position(|terms| terms.id == owner.id));
        match judge(&before, state.modified_ms, &state.record, (who, give_up_ms), state.now_ms, &self.rules) {
            Err(foul) => state.foul = Some(foul),
            Ok(departure) => {
                // What an owner may do after its lease's end, it knows itself.
                if let Some(old) =
                    old.filter(|&old| departure.is_some_and(|how| how != Departure::Expired) && old != at)
                {
                    state.clients[old].displaced = true;
                }
                let request = before.request.as_ref();
                let owned = state.record.owner.as_ref().is_some_and(|owner| owner.id == who.id);
                let swept = request.is_some_and(|request| request.id != who.id && request.priority >= who.priority);
                let renewed = before.owner.as_ref().is_some_and(|owner| owner.id == who.id);
                state.seen = match departure {
                    Some(Departure::Left) if matches!(wish, Wish::Transfer { .. }) => Some(Witness::Transferred),
                    None if renewed && matches!(wish, Wish::Acquire { .. }) && !state.clients[at].unsure => {
                        Some(Witness::Inherited)
                    }
                    Some(Departure::Forced) => Some(Witness::Forced),
                    Some(Departure::Expired) if owned => Some(Witness::LeaseTaken),
                    _ if swept && state.record.request.as_ref() != request => Some(Witness::Swept),
                    None if owned && before.owner.is_none() && request.is_some_and(|request| request.id == who.id) => {
                        Some(Witness::HandedOver)
                    }
                    None if request.is_some_and(|request| request.id != who.id)
                        && state.record.request.as_ref().is_some_and(|request| request.id == who.id) =>
                    {
                        Some(Witness::Displaced)
                    }
                    _ => state.seen,
                };
            }
        }
        state.modified_ms = state.now_ms;
        for (client, terms) in state.clients.iter_mut().zip(&self.clients) {
            match &mut client.phase {
                Phase::Writing { current, .. } | Phase::Waiting { current, .. } => *current = false,
                // The state of an owner that is not lazy stays as it is, for fewer states.
                Phase::Holding { current, .. } => *current &= terms.notice_ms.is_none(),
                _ => {}
            }
        }
    }

    /// Whether a client would rely on its lock at this moment.
    fn relies(&self, state: &State, at: usize) -> bool {
        let client = &state.clients[at];
        let Phase::Holding { until_ms, unasked_ms, .. } = client.phase else { return false };
        let notice_ms = self.clients[at].notice_ms.unwrap_or(0);
        let kept = unasked_ms.is_some_and(|unasked| state.now_ms < unasked + notice_ms);
        (self.now(state).latest_ms < until_ms || kept) && !client.displaced
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client { phase: Phase::Idle, displaced: false, unsure: false, renewing: None };
        vec![State {
            record: Record::default(),
            modified_ms: 0,
            now_ms: 0,
            clients: vec![client; self.clients.len()],
            budget: self.budget,
            foul: None,
            false_belief: false,
            seen: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, client) in state.clients.iter().enumerate() {
            let alive = !matches!(client.phase, Phase::Done | Phase::Refused | Phase::Dead | Phase::Idle);
            match &client.phase {
                Phase::Idle if state.now_ms <= self.ask_by_ms => actions.push(Action::Ask(at)),
                Phase::Looking(_) => {
                    actions.push(Action::Look(at));
                    if client.renewing.as_ref().is_some_and(|(_, written_ms)| !written_ms.is_empty()) {
                        actions.push(Action::Unlock(at));
                    }
                }
                Phase::Writing { .. } => {
                    actions.push(Action::Write(at));
                    if state.budget.losses > 0 {
                        actions.extend([Action::Lose(at, true), Action::Lose(at, false)]);
                    }
                }
                Phase::Waiting { current, until_ms, .. } => {
                    if !current || self.now(state).earliest_ms >= *until_ms {
                        actions.push(Action::Look(at));
                    } else if state.record.owner.as_ref().filter(|owner| owner.notice_ms.is_none()).is_some_and(
                        |owner| self.now(state).earliest_ms >= owner.until_ms.saturating_add(self.rules.skew_ms),
                    ) {
                        // The end of the owner's lease is a deadline too.
                        actions.push(Action::Look(at));
                    }
                    if state.budget.cancels > 0 {
                        actions.push(Action::Cancel(at));
                    }
                }
                Phase::Holding { unasked_ms, current, .. } => {
                    actions.push(Action::Unlock(at));
                    let sure = *current || self.mistake == Some(Mistake::LookedAway);
                    if sure && unasked_ms.is_some_and(|unasked| unasked < state.now_ms) {
                        actions.push(Action::Prove(at));
                    }
                    if state.budget.renewals > 0 {
                        actions.push(Action::Renew(at));
                    }
                    if state.budget.transfers > 0 {
                        let others = (0..self.clients.len()).filter(|to| *to != at);
                        actions.extend(others.map(|to| Action::Transfer(at, to)));
                    }
                    if client.displaced || (!current && self.clients[at].notice_ms.is_some()) {
                        actions.push(Action::Notice(at));
                    }
                }
                Phase::Idle | Phase::Done | Phase::Refused | Phase::Dead => {}
            }
            if alive && state.budget.crashes > 0 {
                actions.push(Action::Crash(at));
            }
        }
        // Clients may be slow until then. Afterwards time passes only if a client waits for it.
        let waits = state.clients.iter().any(|client| matches!(client.phase, Phase::Waiting { .. }));
        if state.now_ms < self.end_ms
            || (waits && actions.iter().all(|action| matches!(action, Action::Crash(_) | Action::Cancel(_))))
        {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.seen = None;
        let latest_ms = self.now(&state).latest_ms;
        match action {
            Action::Tick => state.now_ms += 1,
            Action::Ask(at) => {
                let give_up_ms = self.clients[at].waiting_ms.map_or(i64::MAX, |waiting| latest_ms + waiting);
                let tries = self.tries == Some(at);
                let wish = if tries { Wish::Try } else { Wish::Acquire { give_up_ms } };
                state.clients[at].phase = Phase::Looking(wish);
            }
            Action::Look(at) => self.look(&mut state, at)?,
            Action::Write(at) => self.arrive(&mut state, at, true)?,
            Action::Lose(at, arrives) => {
                state.budget.losses -= 1;
                let Client { phase, renewing, .. } = &mut state.clients[at];
                if let (Phase::Writing { record, .. }, Some((_, written_ms))) = (phase, renewing) {
                    written_ms.extend(record.held_until_ms(&self.clients[at].id));
                }
                if arrives {
                    self.arrive(&mut state, at, false)?;
                } else if let Phase::Writing { wish, .. } = state.clients[at].phase {
                    state.clients[at].phase = Phase::Looking(wish);
                }
            }
            Action::Renew(at) => {
                state.budget.renewals -= 1;
                if let Phase::Holding { owned, .. } = &state.clients[at].phase {
                    state.clients[at].renewing = Some((owned.clone(), Vec::new()));
                }
                state.clients[at].phase = Phase::Looking(Wish::Renew);
            }
            Action::Transfer(at, to) => {
                state.budget.transfers -= 1;
                let to = ["a", "b", "c"].into_iter().find(|id| *id == self.clients[to].id)?;
                state.clients[at].phase = Phase::Looking(Wish::Transfer { to });
            }
            Action::Unlock(at) => state.clients[at].phase = Phase::Looking(Wish::Leave),
            Action::Cancel(at) => {
                state.budget.cancels -= 1;
                state.clients[at].phase = Phase::Looking(Wish::Leave);
            }
            Action::Notice(at) => {
                let Phase::Holding { owned, .. } = &state.clients[at].phase else { return None };
                state.clients[at].phase = self.looked(&state, at, owned.clone());
            }
            Action::Prove(at) => {
                let now_ms = state.now_ms;
                if let Phase::Holding { owned, unasked_ms, .. } = &mut state.clients[at].phase {
                    *unasked_ms = Some(now_ms);
                    state.seen = (now_ms >= owned.until_ms()).then_some(Witness::Kept);
                }
            }
            Action::Crash(at) => {
                state.budget.crashes -= 1;
                state.clients[at].phase = Phase::Dead;
            }
        }
        for client in &mut state.clients {
            if !matches!(client.phase, Phase::Looking(_) | Phase::Writing { .. }) {
                client.renewing = None;
            }
        }
        if let Action::Write(at) | Action::Notice(at) = action {
            // Without transfers, only the owner itself writes that it owns the lock.
            let owns = state.record.held_until_ms(&self.clients[at].id).is_some() && self.budget.transfers == 0;
            let gives_up = owns && state.clients[at].phase == Phase::Done;
            state.foul = state.foul.or(gives_up.then_some(KEEPS));
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always(ONE_OWNER, |world, state| {
                (0..state.clients.len())
                    .filter(|&at| world.relies(state, at))
                    .all(|at| state.record.owner.as_ref().is_some_and(|owner| owner.id == world.clients[at].id))
            }),
            Property::<Self>::always(BELIEVES, |_, state| !state.false_belief),
            Property::<Self>::always(KEEPS, |_, state| state.foul != Some(KEEPS)),
            Property::<Self>::always(GETS_IN, |world, state| {
                world.gets_in.is_none_or(|at| state.clients[at].phase != Phase::Refused)
            }),
            // Checked where nothing more can happen, not even the passing of time.
            Property::<Self>::eventually(SETTLES, |_, state| {
                let settled =
                    |client: &Client| matches!(client.phase, Phase::Idle | Phase::Done | Phase::Refused | Phase::Dead);
                state.clients.iter().all(settled)
            }),
            Property::<Self>::always(referee::OWNER_REPLACED, |_, state| state.foul != Some(referee::OWNER_REPLACED)),
            Property::<Self>::always(referee::REQUEST_FORGOTTEN, |_, state| {
                state.foul != Some(referee::REQUEST_FORGOTTEN)
            }),
            Property::<Self>::always(referee::COUNT_RESTARTED, |_, state| state.foul != Some(referee::COUNT_RESTARTED)),
            Property::<Self>::always(referee::FORGED, |_, state| state.foul != Some(referee::FORGED)),
        ];
        properties.extend(Witness::ALL.into_iter().filter(|witness| self.witnesses.contains(witness)).map(|witness| {
            let seen: fn(&World, &State) -> bool = match witness {
                Witness::Forced => |_, state| state.seen == Some(Witness::Forced),
                Witness::Displaced => |_, state| state.seen == Some(Witness::Displaced),
                Witness::HandedOver => |_, state| state.seen == Some(Witness::HandedOver),
                Witness::LeaseTaken => |_, state| state.seen == Some(Witness::LeaseTaken),
                Witness::Repeated => |_, state| state.seen == Some(Witness::Repeated),
                Witness::Swept => |_, state| state.seen == Some(Witness::Swept),
                Witness::Unfinished => |_, state| state.seen == Some(Witness::Unfinished),
                Witness::Transferred => |_, state| state.seen == Some(Witness::Transferred),
                Witness::Inherited => |_, state| state.seen == Some(Witness::Inherited),
                Witness::Kept => |_, state| state.seen == Some(Witness::Kept),
            };
            Property::<Self>::sometimes(witness.name(), seen)
        }));
        properties
    }
}
