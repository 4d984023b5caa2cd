//! What must always be so, and what must be seen to happen for that to mean anything.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;

use lockkeeper_core::{Discipline, End, Mode};
use stateright::{Model, Property};

use super::step::says_it_left;
use super::tree::Name;
use super::world::{Action, Client, Life, Server, State, World};

pub(crate) const EXCLUSION: &str = "at most one holds, or readers together";
pub(crate) const NODE_STANDS: &str = "a grant's node is there on the server of the one who is granted";
pub(crate) const TOKENS: &str = "tokens grow from grant to grant";
pub(crate) const NOTHING_LEFT: &str = "who has left has left nothing behind";
pub(crate) const NO_GHOST: &str = "at rest every node belongs to one who waits or holds";
pub(crate) const NO_LOST_WAKEUP: &str = "at rest whoever waits watches an older node that is there";
pub(crate) const SOMEONE_IN: &str = "at rest someone holds if anyone wants to";
pub(crate) const OWN_NODES: &str = "nobody deletes the node of another session";
pub(crate) const NO_HERD: &str = "one going wakes at most one";
pub(crate) const NO_DEAD_END: &str = "no attempt is stuck or refused";
pub(crate) const SETTLES: &str = "left alone, everyone gets in and goes";

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.list_actions(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.after(state, action))
    }

    fn properties(&self) -> Vec<Property<World>> {
        let mut properties = vec![
            Property::always(EXCLUSION, exclusion),
            Property::always(NODE_STANDS, |_, state: &State| !state.granted_to_none),
            Property::always(TOKENS, |_, state: &State| !state.token_went_back),
            Property::always(NOTHING_LEFT, nothing_left),
            Property::always(NO_GHOST, no_ghost),
            Property::always(NO_LOST_WAKEUP, no_lost_wakeup),
            Property::always(SOMEONE_IN, someone_in),
            Property::always(OWN_NODES, |_, state: &State| !state.deleted_foreign),
            Property::always(NO_HERD, no_herd),
            Property::always(NO_DEAD_END, no_dead_end),
            Property::always(SETTLES, settles),
        ];
        properties.extend(self.witnesses.iter().map(|w| Property::sometimes(w.says(), LOOKS[*w as usize])));
        properties
    }
}

impl State {
    /// Who holds: says so, in a session that lives. Where an operator deletes nodes, the node must be there too: the one
    /// whose node was taken hears of it a little later, and its token is worth nothing by then.
    pub(crate) fn holders(&self, world: &World) -> Vec<usize> {
        let holds = |client: &Client| {
            client.says_it_holds()
                && !self.is_expired(client.session)
                && (world.budget.evictions == 0 || client.own().is_some_and(|own| self.leader.get(own).is_some()))
        };
        (0..self.clients.len()).filter(|i| holds(&self.clients[*i])).collect()
    }

    /// Nothing happens any more by itself.
    pub(crate) fn is_at_rest(&self, world: &World) -> bool {
        self.newborn.is_none() && self.pending.is_empty() && {
            let mut actions = Vec::new();
            world.progress(self, &mut actions);
            actions.is_empty()
        }
    }
}

fn exclusion(world: &World, state: &State) -> bool {
    let holders = state.holders(world);
    let reads = |i: &usize| world.modes[*i] == Mode::Read;
    holders.len() <= 1 || (world.discipline == Discipline::SharedExclusive && holders.iter().all(reads))
}

fn nothing_left(_: &World, state: &State) -> bool {
    let mut gone = state.clients.iter().filter(|c| says_it_left(c.life));
    gone.all(|c| state.leader.nodes.iter().all(|n| n.owner != c.session))
}

fn no_ghost(world: &World, state: &State) -> bool {
    let accounted = |owner: u8, name: Name| {
        let mut clients = state.clients.iter();
        clients.any(|c| c.is_live() && c.session == owner && !c.left && c.own() == Some(name))
    };
    !state.is_at_rest(world) || state.leader.nodes.iter().all(|n| accounted(n.owner, n.name))
}

fn no_lost_wakeup(world: &World, state: &State) -> bool {
    let waits_for_an_older = |client: &Client| {
        let tree = client.server.map(|server| state.tree(server))?;
        let watched = tree.get(client.watches[0]?.target)?;
        let own = tree.get(client.own()?)?;
        (watched.czxid < own.czxid).then_some(())
    };
    !state.is_at_rest(world) || state.clients.iter().all(|c| !c.wants_in() || waits_for_an_older(c).is_some())
}

fn someone_in(world: &World, state: &State) -> bool {
    !state.is_at_rest(world) || !state.clients.iter().any(Client::wants_in) || !state.holders(world).is_empty()
}

/// Readers of one writer wake together, and should; all others one by one.
fn no_herd(world: &World, state: &State) -> bool {
    if world.discipline != Discipline::Exclusive {
        return true;
    }
    let mut watched = state.clients.iter().filter_map(|client| {
        let own = client.own().filter(|own| !client.left && state.leader.get(*own).is_some());
        own.and(client.server).and(client.watches[0]).map(|watch| watch.target)
    });
    let mut seen = Vec::new();
    watched.all(|name| {
        !seen.contains(&name) && {
            seen.push(name);
            true
        }
    })
}

fn no_dead_end(world: &World, state: &State) -> bool {
    state.clients.iter().all(|client| match client.life {
        Life::Ended(End::Stuck | End::Refused | End::ParentVanishes) => false,
        Life::Ended(End::Evicted) => world.budget.evictions > 0,
        _ => true,
    })
}

/// With no further fault and no newcomer, everyone who is in line comes to hold, holders leave, and nothing remains.
///
/// Dear to check, so only one state in sixteen is: which ones is decided by their hashes, the same in every run.
fn settles(world: &World, state: &State) -> bool {
    const ENOUGH: usize = 400;
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    if state.newborn.is_some() || !hasher.finish().is_multiple_of(16) {
        return true;
    }
    let mut state = state.clone();
    let mut actions = Vec::new();
    for step in 0..ENOUGH {
        actions.clear();
        world.progress(&state, &mut actions);
        if actions.is_empty() {
            let holder = state.clients.iter().position(Client::says_it_holds);
            actions.extend(holder.map(|i| Action::Leave(i as u8)));
        }
        if actions.is_empty() {
            return state.leader.nodes.is_empty() && !state.clients.iter().any(Client::is_live);
        }
        state = world.after(&state, actions[step % actions.len()]);
    }
    false
}

/// Something that must be seen to happen: without it, a claim that nothing bad happens would say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Witness {
    OneWaitsWhileAnotherHolds,
    SecondGrant,
    Handover,
    LaterListing,
    GrantAfterTheHoldersCrash,
    LostCreateAdopted,
    WaiterLeft,
    QueueAtRest,
    AllGone,
    StaleView,
    NumbersStartAgain,
    OldNodeBesideTheReturned,
    DeleteRepeated,
    StrayDeleted,
    WrapCrossed,
    ReadersTogether,
    Evicted,
    WrittenNodeReleased,
    BackInTime,
    ExpiredMeanwhile,
}

use Witness::*;

type Look = fn(&World, &State) -> bool;

const LOOKS: [Look; Witness::COUNT] = [
    look::<0>, look::<1>, look::<2>, look::<3>, look::<4>, look::<5>, look::<6>, look::<7>, look::<8>, look::<9>,
    look::<10>, look::<11>, look::<12>, look::<13>, look::<14>, look::<15>, look::<16>, look::<17>, look::<18>,
    look::<19>,
];

/// Looks for a witness until it was seen once; the checker keeps the path to that state.
fn look<const WITNESS: usize>(world: &World, state: &State) -> bool {
    let seen = &world.seen[WITNESS];
    !seen.load(Ordering::Relaxed) && Witness::ALL[WITNESS].shows(world, state) && !seen.swap(true, Ordering::Relaxed)
}

impl Witness {
    pub(crate) const COUNT: usize = 20;

    const ALL: [Witness; Witness::COUNT] = [
        OneWaitsWhileAnotherHolds,
        SecondGrant,
        Handover,
        LaterListing,
        GrantAfterTheHoldersCrash,
        LostCreateAdopted,
        WaiterLeft,
        QueueAtRest,
        AllGone,
        StaleView,
        NumbersStartAgain,
        OldNodeBesideTheReturned,
        DeleteRepeated,
        StrayDeleted,
        WrapCrossed,
        ReadersTogether,
        Evicted,
        WrittenNodeReleased,
        BackInTime,
        ExpiredMeanwhile,
    ];

    pub(crate) const fn says(self) -> &'static str {
        match self {
            OneWaitsWhileAnotherHolds => "one waits while another holds",
            SecondGrant => "the lock is granted again after a release",
            Handover => "a holder's going grants with no second listing",
            LaterListing => "a second listing grants",
            GrantAfterTheHoldersCrash => "the lock is granted after its holder crashed",
            LostCreateAdopted => "a node whose create's reply was lost is adopted and comes to hold",
            WaiterLeft => "a waiter leaves while another holds",
            QueueAtRest => "two wait behind a holder and nothing moves",
            AllGone => "everyone was in, everyone is gone, no node is left",
            StaleView => "a waiter's server still shows a blocker that is gone",
            NumbersStartAgain => "the parent was made again and a later token has an earlier number",
            OldNodeBesideTheReturned => "a client is back while the node of its old session stands",
            DeleteRepeated => "a delete whose reply was lost is repeated and finds nothing",
            StrayDeleted => "a second node of one attempt is found and deleted",
            WrapCrossed => "a holder's number is the largest, the next waiter's the smallest",
            ReadersTogether => "two readers hold while a writer waits",
            Evicted => "one whose node was deleted is told so while another holds",
            BackInTime => "a waiter is overdue, comes back, and is granted the lock",
            ExpiredMeanwhile => "one whose session expired unheard is told so while another holds",
            WrittenNodeReleased => "a node that somebody wrote to is released by its owner",
        }
    }

    fn shows(self, world: &World, state: &State) -> bool {
        let clients = || state.clients.iter();
        let held = || clients().any(Client::says_it_holds);
        let ended = |c: &Client| matches!(c.life, Life::Ended(_));
        match self {
            OneWaitsWhileAnotherHolds => held() && clients().any(|c| c.wants_in() && c.watches[0].is_some()),
            SecondGrant => held() && clients().any(|c| c.life == Life::Ended(End::Left) && c.granted_by.is_some()),
            Handover => clients().any(|c| c.says_it_holds() && c.granted_by == Some(super::world::GrantedBy::Handover)),
            LaterListing => {
                clients().any(|c| c.says_it_holds() && c.granted_by == Some(super::world::GrantedBy::LaterListing))
            }
            GrantAfterTheHoldersCrash => held() && clients().any(|c| c.life == Life::Crashed { holding: true }),
            LostCreateAdopted => clients().any(|c| c.adopted && c.says_it_holds()),
            WaiterLeft => held() && clients().any(|c| c.life == Life::Ended(End::Left) && c.granted_by.is_none()),
            QueueAtRest => held() && clients().filter(|c| c.wants_in()).count() >= 2 && state.is_at_rest(world),
            AllGone => {
                state.leader.nodes.is_empty() && clients().all(|c| ended(c) && (c.left || c.granted_by.is_some()))
            }
            StaleView => clients().any(|c| {
                let stale = |name| state.follower.get(name).is_some() && state.leader.get(name).is_none();
                c.wants_in()
                    && c.server == Some(Server::Follower)
                    && c.watches[0].is_some_and(|watch| stale(watch.target))
            }),
            NumbersStartAgain => held() && state.leader.nodes.iter().any(|n| n.name.seq == 0 && n.czxid > 1),
            OldNodeBesideTheReturned => {
                let old = |i: usize| state.leader.nodes.iter().any(|n| usize::from(n.owner) == i);
                clients().enumerate().any(|(i, c)| c.returned && c.is_live() && old(i))
            }
            DeleteRepeated => clients().any(|c| c.delete_repeated && ended(c)),
            StrayDeleted => clients().any(|c| c.stray_deleted),
            WrapCrossed => {
                let seqs: Vec<_> = state.leader.nodes.iter().map(|n| n.name.seq).collect();
                held() && seqs.starts_with(&[i32::MAX, i32::MIN])
            }
            ReadersTogether => state.holders(world).len() == 2 && clients().any(|c| c.watches[0].is_some()),
            Evicted => held() && clients().any(|c| c.life == Life::Ended(End::Evicted)),
            BackInTime => clients().any(|c| c.says_it_holds() && c.was_overdue),
            ExpiredMeanwhile => held() && clients().any(|c| c.was_overdue && c.life == Life::Ended(End::SessionOver)),
            WrittenNodeReleased => clients().any(|c| c.word_seen && c.life == Life::Ended(End::Left)),
        }
    }
}
