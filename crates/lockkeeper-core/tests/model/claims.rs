//! The claims that must always be true. The witnesses and the seeded mistakes show that they are not empty.

use lockkeeper_core::{Class, Discipline, End, Limit, Mode};
use stateright::{Model, Property};

use super::client::{Client, FencedWrite, Life};
use super::step::says_it_left;
use super::tree::{NOBODY, Name, Node, Tree, hash};
use super::world::{Action, Held, Role, State, World};

pub(crate) const EXCLUSION: &str = "the holders may hold together";
pub(crate) const ENTITLED: &str = "each holder is granted the lock by what the leader has";
pub(crate) const NODE_STANDS: &str = "the server of a new holder shows its node";
pub(crate) const TOKENS: &str = "tokens grow from grant to grant";
pub(crate) const WRITES_IN_TIME: &str = "no fenced write takes effect after a later holder is granted the lock";
pub(crate) const VERIFIED: &str = "a proof of a hold says whether the leader has its nodes";
pub(crate) const WRITTEN: &str = "what a caller bound to its release is written when that is over";
pub(crate) const NOTHING_LEFT: &str = "a contender that has left has no node";
pub(crate) const NO_GHOST: &str = "at rest each node belongs to a waiter or a holder";
pub(crate) const NO_LOST_WAKEUP: &str =
    "at rest no contender waits that could hold, and each waiter watches a node ahead of it";
pub(crate) const SOMEONE_IN: &str = "at rest a contender holds if any wants to";
pub(crate) const OWN_NODES: &str = "no client deletes the node of another session";
pub(crate) const NO_HERD: &str = "each deletion wakes one waiter of each class, or the readers behind one writer";
pub(crate) const IN_TURN: &str =
    "within a class the holder marker is taken in order, by a contender that was first while the marker was free";
pub(crate) const ASKED: &str =
    "at rest each holder knows of its revocation, its node names it, and no waiter has a revocation";
pub(crate) const NO_DEAD_END: &str = "each attempt ends in a way that its world allows";
pub(crate) const LATE_ENOUGH: &str = "no contender holds beside a lost hold before the delay is over";
pub(crate) const TOLD_TO_YIELD: &str =
    "at rest each hold that makes way knows whether a contender of an earlier class waits";
pub(crate) const IN_ITS_PLACE: &str = "a hold that made way continues only after the contenders that it made way for";
pub(crate) const YIELDS_BOUNDED: &str = "a hold makes way at most once for each contender of an earlier class";
pub(crate) const SETTLES: &str = "without faults, each contender gets the lock and leaves";

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
            Property::always(ENTITLED, entitled),
            Property::always(NODE_STANDS, |_, state: &State| !state.granted_to_none),
            Property::always(TOKENS, |_, state: &State| !state.token_went_back),
            Property::always(WRITES_IN_TIME, |_, state: &State| !state.wrote_late),
            Property::always(VERIFIED, |_, state: &State| !state.misjudged),
            Property::always(WRITTEN, written),
            Property::always(NOTHING_LEFT, nothing_left),
            Property::always(NO_GHOST, at_rest::<NoGhost>),
            Property::always(NO_LOST_WAKEUP, at_rest::<NoLostWakeup>),
            Property::always(SOMEONE_IN, at_rest::<SomeoneIn>),
            Property::always(OWN_NODES, |_, state: &State| !state.deleted_foreign),
            Property::always(NO_HERD, no_herd),
            Property::always(IN_TURN, in_turn),
            Property::always(ASKED, at_rest::<Asked>),
            Property::always(NO_DEAD_END, no_dead_end),
            Property::always(LATE_ENOUGH, late_enough),
            Property::always(TOLD_TO_YIELD, at_rest::<ToldToYield>),
            Property::always(IN_ITS_PLACE, |_, state: &State| !state.pushed_in),
            Property::always(YIELDS_BOUNDED, yields_bounded),
            Property::always(SETTLES, settles),
        ];
        properties.extend(self.witnesses.iter().map(|witness| Property::sometimes(witness.says(), witness.look())));
        properties
    }
}

impl State {
    /// Returns the holders: clients that say they hold, in a live session. If operators delete nodes, the node must
    /// exist too: a client whose node was deleted hears of it a little later, and its token is worthless by then.
    pub(crate) fn holders(&self, world: &World) -> Vec<usize> {
        let stands = |client: &Client| {
            let node = client.own().is_some_and(|own| self.leader.get(own).is_some());
            let ours = |holder_marker: &Node| holder_marker.owner == client.session;
            node && (world.discipline.holder_marker().is_none() || self.leader.holder_marker().is_some_and(ours))
        };
        let holds = |client: &Client| {
            client.says_it_holds() && !self.is_expired(client.session) && (world.budget.removals == 0 || stands(client))
        };
        (0..self.clients.len()).filter(|i| holds(&self.clients[*i])).collect()
    }

    /// Whether nothing more happens by itself.
    pub(crate) fn is_at_rest(&self, world: &World) -> bool {
        self.newborn.is_none() && self.pending.is_empty() && {
            let mut actions = Vec::new();
            world.progress(self, &mut actions);
            actions.is_empty()
        }
    }
}

/// Returns how many permits the mode takes, where permits are counted.
fn permits(mode: Option<Mode>) -> u32 {
    mode.and_then(Mode::permits).unwrap_or(1)
}

impl World {
    /// Returns the mode that client `i` requests.
    fn mode(&self, i: usize) -> Mode {
        match self.roles[i] {
            Role::Enters(mode) | Role::Tries(mode) => mode,
            Role::Upgradeable => Mode::Write,
            Role::Dissents(_) => Mode::Permits(1),
            Role::Plain(class) | Role::Yields(class) => Mode::Class(class),
        }
    }

    /// Whether no client ever holds beside another, and none comes in front of another.
    fn is_exclusive(&self) -> bool {
        (0..self.roles.len()).all(|i| self.mode(i) == Mode::Exclusive)
    }

    /// Whether client `i` takes part as a reader: as a holder by what it knows of its hold, otherwise by what it
    /// requests.
    pub(crate) fn reads(&self, state: &State, i: usize) -> bool {
        let client = &state.clients[i];
        match self.roles[i] {
            _ if client.says_it_holds() => !client.says_it_is_alone() && !client.told_alone,
            role => matches!(role, Role::Enters(Mode::Read) | Role::Tries(Mode::Read) | Role::Upgradeable),
        }
    }

    /// The discipline's rule, restated as simply as possible: by what this server has, is client `i` granted the lock?
    fn lets_in(&self, state: &State, tree: &Tree, i: usize) -> bool {
        let session = state.clients[i].session;
        let queue = tree.queue();
        // A neighbour that has released never holds again, though its node still exists.
        let neighbour = |n: &Node| {
            let mut released = state.clients.iter().take(usize::from(self.neighbours)).filter(|c| c.passed_on);
            i < usize::from(self.neighbours) && released.any(|c| c.session == n.owner)
        };
        let queue: Vec<_> = queue.into_iter().filter(|n| !neighbour(n)).collect();
        let Some(position) = queue.iter().position(|n| n.owner == session) else { return false };
        let older = &queue[..position];
        // A writer that read on before it abandoned its hold blocks new readers; the readers that read beside it stay.
        let reads_on = self.reads(state, i) && state.clients[i].says_it_holds();
        let mut abandoned = tree.abandoned().filter(|_| !reads_on);
        match &self.discipline {
            Discipline::SharedExclusive if self.reads(state, i) => {
                older.iter().copied().chain(abandoned).all(|n| n.name.mode == Some(Mode::Read))
            }
            Discipline::SharedExclusive => older.is_empty() && abandoned.next().is_none(),
            Discipline::Permits { permits: limit } => {
                queue[..=position].iter().copied().chain(abandoned).map(|n| permits(n.name.mode)).sum::<u32>() <= *limit
            }
            Discipline::Classes => tree.holder_marker().is_some_and(|holder_marker| holder_marker.owner == session),
        }
    }

    /// Whether the waiting client `i` could get what it waits for, if the leader had this tree.
    fn could_go_on(&self, state: &State, tree: &Tree, i: usize) -> bool {
        match &self.discipline {
            Discipline::Classes => {
                let first = tree.queue().first().is_some_and(|n| n.owner == state.clients[i].session);
                first && tree.holder_marker().is_none()
            }
            Discipline::SharedExclusive if state.clients[i].upgrading => {
                tree.queue().first().is_some_and(|n| n.owner == state.clients[i].session)
            }
            _ => self.lets_in(state, tree, i),
        }
    }
}

fn exclusion(world: &World, state: &State) -> bool {
    let holders = state.holders(world);
    match &world.discipline {
        Discipline::Classes => holders.len() <= 1,
        Discipline::SharedExclusive => holders.len() <= 1 || holders.iter().all(|i| world.reads(state, *i)),
        Discipline::Permits { permits: limit } => {
            holders.iter().map(|i| permits(Some(world.mode(*i)))).sum::<u32>() <= *limit
        }
    }
}

/// After a loss, the delay is over before a contender holds that could not have held together with the lost hold.
fn late_enough(world: &World, state: &State) -> bool {
    let holders = state.holders(world);
    let holders = holders.iter().filter(|i| state.clients[**i].granted_by.is_some());
    match &world.discipline {
        Discipline::Permits { permits: limit } => {
            let held: u32 = holders.map(|i| permits(Some(world.mode(*i)))).sum();
            let cooling = state.cooling.iter().flatten();
            let cooling = cooling.map(|held| if let Held::Permits(permits) = held { *permits } else { 1 });
            held + cooling.sum::<u32>() <= *limit
        }
        _ => {
            let mut cooling = state.cooling.iter().enumerate().filter_map(|(i, held)| Some((i, (*held)?)));
            cooling.all(|(gone, held)| {
                let beside = |i: &usize| held == Held::Reading && world.reads(state, *i);
                holders.clone().all(|i| *i == gone || beside(i))
            })
        }
    }
}

fn entitled(world: &World, state: &State) -> bool {
    state.holders(world).into_iter().all(|i| world.lets_in(state, &state.leader, i))
}

fn written(_: &World, state: &State) -> bool {
    state.clients.iter().all(|c| c.write != FencedWrite::AtRelease || c.life != Life::Ended(End::Left))
}

fn nothing_left(_: &World, state: &State) -> bool {
    let mut gone = state.clients.iter().filter(|c| says_it_left(c.life));
    gone.all(|c| state.leader.nodes.iter().all(|n| n.owner != c.session))
        && state.clients.iter().enumerate().all(|(i, c)| {
            // A client that released what it held leaves no tombstone either.
            let let_go = c.life == Life::Ended(End::Left) && !c.past.was_overdue && state.cooling[i].is_none();
            !let_go || state.leader.nodes.iter().all(|n| !n.name.tombstone || n.name.id != Some(i as u8))
        })
}

/// A claim about states in which nothing moves any more.
trait AtRest {
    fn holds(world: &World, state: &State) -> bool;
}

fn at_rest<Claim: AtRest>(world: &World, state: &State) -> bool {
    Claim::holds(world, state) || !state.is_at_rest(world)
}

struct NoGhost;

impl AtRest for NoGhost {
    fn holds(_: &World, state: &State) -> bool {
        state.leader.nodes.iter().all(|n| {
            // A tombstone stays until a contender comes; a persistent node that no client made stays for ever.
            if n.owner == NOBODY {
                return true;
            }
            let mut owners = state.clients.iter().filter(|c| c.is_live() && c.session == n.owner && !c.left);
            owners.any(|c| if n.name.is_holder_marker() { c.says_it_holds() } else { c.own() == Some(n.name) })
        })
    }
}

struct NoLostWakeup;

impl AtRest for NoLostWakeup {
    fn holds(world: &World, state: &State) -> bool {
        let queue = state.leader.queue();
        let place = |name: Name| queue.iter().position(|n| n.name == name);
        (0..state.clients.len()).filter(|i| state.clients[*i].waits()).all(|i| {
            let client = &state.clients[i];
            let from_before = |watched: Name| match (place(watched), client.own().and_then(place)) {
                (Some(watched), Some(own)) => watched < own,
                // An operator deleted the own node. A waiter learns that once it has waited for a while, or when its watch fires.
                (Some(_), None) => !client.lingered,
                _ => (watched.is_holder_marker() || watched.tombstone) && state.leader.get(watched).is_some(),
            };
            let watch = client.watches[..2].iter().flatten().any(|watch| from_before(watch.target));
            let hears = client.neighbour.is_some_and(from_before) || client.children.is_some();
            !world.could_go_on(state, &state.leader, i) && (watch || hears)
        })
    }
}

struct SomeoneIn;

impl AtRest for SomeoneIn {
    fn holds(world: &World, state: &State) -> bool {
        !state.clients.iter().any(Client::wants_in) || !state.holders(world).is_empty()
    }
}

struct Asked;

impl AtRest for Asked {
    fn holds(world: &World, state: &State) -> bool {
        // A client that does not watch its node does not know of the revocation yet.
        !world.linger
            || state.clients.iter().enumerate().all(|(i, client)| {
                let Some(node) = client.own().and_then(|own| state.leader.get(own)) else { return true };
                let heard = !node.data.asked || client.told;
                heard && (client.says_it_holds() && node.data.id == Some(i as u8) || !node.data.asked)
            })
    }
}

struct ToldToYield;

impl AtRest for ToldToYield {
    fn holds(world: &World, state: &State) -> bool {
        let yields = |(i, client): &(usize, &Client)| {
            matches!(world.roles[*i], Role::Yields(_)) && client.says_it_holds() && client.yield_due
        };
        state.clients.iter().enumerate().filter(yields).all(|(_, client)| {
            let class = client.own().and_then(|own| own.class());
            let queue = state.leader.queue();
            client.contended == queue.iter().any(|n| n.name.class() < class && n.owner != NOBODY)
        })
    }
}

/// The background is not starved: each time that a hold makes way, another contender of an earlier class had come.
fn yields_bounded(world: &World, state: &State) -> bool {
    state.clients.iter().enumerate().filter(|(_, client)| client.past.yielded > 0).all(|(i, client)| {
        let earlier = |j: &usize| world.mode(*j).class() < world.mode(i).class();
        let came = |j: &usize| state.clients[*j].life != Life::Unborn;
        usize::from(client.past.yielded) <= (0..state.clients.len()).filter(|j| earlier(j) && came(j)).count()
    })
}

/// Whether each node, and the set of children, has at most one watching client in each class.
///
/// The client that holds the last watch on a node is the one behind it. A client that came in front of that client
/// since then (with a lower class) watches the same node for its own class.
fn no_herd(world: &World, state: &State) -> bool {
    let ours = |i: usize, client: &Client| {
        client.waits() && client.server.is_some() && !matches!(world.roles[i], Role::Plain(_))
    };
    let mut seen: Vec<(Option<Name>, Option<Class>)> = Vec::new();
    for (i, client) in state.clients.iter().enumerate().filter(|(i, client)| ours(*i, client)) {
        let Some(own) = client.own().filter(|own| state.leader.get(*own).is_some()) else { continue };
        let nodes = client.watches[..2].iter().flatten().map(|watch| Some(watch.target));
        for watched in nodes.chain(client.children.map(|_| None)) {
            let entry = (watched, own.class());
            // The readers that a writer blocks wake together.
            let writer = watched.is_some_and(|name| name.mode == Some(Mode::Write));
            if world.discipline == Discipline::SharedExclusive && writer && world.reads(state, i) {
                continue;
            }
            if seen.contains(&entry) {
                // While a change is on its way, two clients may believe that they have the same position.
                return !world.is_exclusive() && !state.is_at_rest(world);
            }
            seen.push(entry);
        }
    }
    true
}

fn in_turn(world: &World, state: &State) -> bool {
    let by_holder_marker = world.discipline.holder_marker().is_some();
    !state.overtook && (!by_holder_marker || state.holders(world).into_iter().all(|i| state.clients[i].was_first))
}

fn no_dead_end(world: &World, state: &State) -> bool {
    let budget = &world.budget;
    state.clients.iter().enumerate().all(|(i, client)| match client.life {
        Life::Ended(End::Stuck | End::Refused | End::ParentVanishes | End::NoParent | End::IncompatibleFormat(_)) => {
            false
        }
        Life::Ended(End::Held { .. }) => matches!(world.roles[i], Role::Tries(_)),
        Life::Ended(End::TooManyAhead { .. }) => false,
        Life::Ended(End::Removed) => budget.removals > 0,
        Life::Ended(End::Revoked) => budget.words + budget.asks > 0,
        Life::Ended(End::LimitDiffers(stated)) => {
            let ours =
                if let Role::Dissents(permits) = world.roles[i] { Some(permits) } else { world.discipline.limit() };
            let disagree = world.roles.iter().any(|role| matches!(role, Role::Dissents(_)));
            stated != ours && (disagree || world.limit == Limit::Foreign)
        }
        _ => true,
    })
}

/// With no further fault and no newcomer, every contender in the queue gets the lock, holders leave, and nothing
/// remains.
///
/// The check is expensive, so it runs for only one state in sixteen. The states' hashes decide for which, the same in
/// every run.
fn settles(world: &World, state: &State) -> bool {
    const ENOUGH: usize = 400;
    if state.newborn.is_some() || !hash(state).is_multiple_of(16) {
        return true;
    }
    let mut state = state.clone();
    let mut actions = Vec::new();
    for step in 0..ENOUGH {
        actions.clear();
        world.progress(&state, &mut actions);
        if actions.is_empty() {
            let holder = state.clients.iter().position(|c| c.says_it_holds() && !c.upgrading);
            // A hold that makes way does so whenever it can, and is continued all the same.
            let yields = |i: &usize| state.budget.yields > 0 && state.clients[*i].contended;
            actions.extend(holder.map(|i| if yields(&i) { Action::Yield(i as u8) } else { Action::Leave(i as u8) }));
        }
        if actions.is_empty() {
            return state.leader.nodes.iter().all(|n| n.owner == NOBODY) && !state.clients.iter().any(Client::is_live);
        }
        state = world.after(&state, actions[step % actions.len()]);
    }
    false
}
