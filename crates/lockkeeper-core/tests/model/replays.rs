//! The defects that the model has found, step by step: on each of these paths, an earlier contender broke a promise.

use lockkeeper_core::{Discipline, End, Mode, NodeFormat};

use super::client::Life;
use super::world::Action::{self, *};
use super::world::Server::{Follower, Leader};
use super::world::{Budget, Cut, Role, State, World};
use super::worlds::{BACKGROUND, NO_FAULT, READ, WRITE, classes_rule, takes, world};

/// Takes the steps of a counterexample as far as they can still happen, then lets the world come to rest.
fn replay(world: &World, steps: &[Action]) -> State {
    let mut state = world.initial();
    let mut enabled = Vec::new();
    for step in steps {
        enabled.clear();
        world.list_actions(&state, &mut enabled);
        assert!(enabled.contains(step), "{step:?} cannot happen; what can is {enabled:?}");
        state = world.after(&state, *step);
    }
    loop {
        enabled.clear();
        world.progress(&state, &mut enabled);
        let Some(step) = enabled.first() else { return state };
        state = world.after(&state, *step);
    }
}

/// A client enters: the create, and the listing behind it.
fn enters(i: u8) -> [Action; 3] {
    [Start(i, Leader), Effect(i), Effect(i)]
}

/// The reply to a delete is lost. The session moves to a server that has not applied the delete yet, where the node
/// still looks like ours. Meanwhile the parent is reaped and recreated, and another client's node has the name.
#[test]
fn case_20_a_lost_delete_is_repeated_only_behind_an_ordered_write() {
    let world = World {
        node_format: NodeFormat::Recipe,
        budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT },
        lag: 1,
        ..World::new("a delete repeated on a stale look", 2)
    };
    let delete_and_lose = [Leave(0), Effect(0), Cut(0, Cut::After)];
    let look_elsewhere = [Reconnect(0, Follower), Effect(0)];
    let parent_made_again = [Reap, Start(1, Leader), Effect(1), Effect(1)];
    let other_enters = [Effect(1), Effect(1)];
    let state = replay(
        &world,
        &[&enters(0)[..], &delete_and_lose, &look_elsewhere, &parent_made_again, &other_enters].concat(),
    );
    assert_eq!(state.clients[0].life, Life::Ended(End::Left));
    assert!(state.clients[1].says_it_holds());
    assert_eq!(state.leader.nodes.iter().map(|n| n.owner).collect::<Vec<_>>(), [1], "the other's node was deleted");
}

/// C enters behind A, which has all the permits. Before C lists, D enters behind C, lists, and watches C, which is
/// ahead of it. Then A leaves, and C's first listing grants. C never waited, but D waits for C's announcement.
#[test]
fn a_grant_by_the_first_listing_is_announced_to_earlier_listers() {
    let world = world("a listing overtaken", Discipline::Permits { permits: 2 }, &[takes(2), takes(1), takes(1)]);
    let world = World { lag: 0, ..world };
    let d_watches_c = [Start(1, Leader), Effect(1), Start(2, Leader), Effect(2), Effect(2), Effect(2)];
    let c_lists_when_a_is_gone = [Leave(0), Effect(0), Effect(1)];
    let state = replay(&world, &[&enters(0)[..], &d_watches_c, &c_lists_when_a_is_gone].concat());
    assert!(state.clients[1].says_it_holds());
    assert!(state.clients[2].says_it_holds(), "there is room for it, and no event wakes it");
}

/// The client deletes its own writer's node, and the watch on that node reports it before the reply does.
#[test]
fn a_downgrade_is_not_taken_for_a_removal() {
    let budget = Budget { downgrades: 1, cuts: 1, ..NO_FAULT };
    let world = || {
        let world = world("a watched writer reads on", Discipline::SharedExclusive, &[WRITE]);
        World { budget, linger: true, lag: 0, ..world }
    };
    let watches_itself = [Lingered(0), Effect(0), Downgrade(0)];
    for reply in [&[Effect(0)][..], &[Cut(0, Cut::After), Reconnect(0, Leader)]] {
        let state = replay(&world(), &[&enters(0)[..], &watches_itself, reply].concat());
        assert!(state.clients[0].says_it_holds(), "{:?}", state.clients[0].life);
        assert_eq!(state.clients[0].own().and_then(|own| own.mode), Some(Mode::Read));
    }
}

/// As soon as it asks to read, other readers may read beside it.
#[test]
fn a_writer_that_asks_to_read_on_is_not_alone() {
    let budget = Budget { downgrades: 1, ..NO_FAULT };
    let world = world("a writer reads on", Discipline::SharedExclusive, &[WRITE]);
    let world = World { budget, lag: 0, ..world };
    let mut state = world.initial();
    for action in enters(0) {
        state = world.after(&state, action);
    }
    assert!(state.clients[0].says_it_is_alone());
    assert!(!world.after(&state, Downgrade(0)).clients[0].says_it_is_alone());
}

/// The listing that was requested for an upgrade arrives when the reader no longer wants the upgrade.
#[test]
fn a_reader_that_gave_up_its_upgrade_is_not_told_that_it_is_alone() {
    let budget = Budget { upgrades: 1, stays: 1, ..NO_FAULT };
    let world = world("a change of mind", Discipline::SharedExclusive, &[READ, Role::Upgradeable]);
    let world = World { budget, lag: 0, ..world };
    let changes_its_mind = [Upgrade(1), StayReader(1), Effect(1)];
    let state = replay(&world, &[&enters(0)[..], &enters(1), &changes_its_mind].concat());
    assert!(state.clients[0].says_it_holds() && state.clients[1].says_it_holds());
    assert!(!state.clients[1].told_alone);
}

/// A bare word over the node of the old class erases its owner, but the contender still knows that it is its own.
#[test]
fn a_node_of_the_old_class_goes_whatever_is_written_on_it() {
    let budget = Budget { ages: 1, words: 1, ..NO_FAULT };
    let world = World { budget, lag: 0, ..world("a class left", classes_rule(), &[BACKGROUND, BACKGROUND]) };
    let holds = [Effect(0)];
    let waits = [Effect(1)];
    let mut state = world.initial();
    for action in [&enters(0)[..], &holds, &enters(1), &waits].concat() {
        state = world.after(&state, action);
    }
    let old = state.clients[1].own().expect("it waits");
    let steps = [&enters(0)[..], &holds, &enters(1), &waits, &[Age(1), Word(old)]].concat();
    let state = replay(&world, &steps);
    assert!(state.leader.get(old).is_none(), "it stands before everyone behind it for as long as the session lives");
}

/// N-31: a holder that refused one revocation is informed of the next.
#[test]
fn a_holder_that_refused_is_asked_again() {
    let budget = Budget { asks: 2, refusals: 1, ..NO_FAULT };
    let world = World { budget, linger: true, lag: 0, ..World::new("asked twice", 1) };
    let mut state = world.initial();
    for action in [&enters(0)[..], &[Lingered(0), Effect(0)]].concat() {
        state = world.after(&state, action);
    }
    let own = state.clients[0].own().expect("it holds");
    let asked = [Lingered(0), Effect(0), AskFor(own), Effect(0)];
    let refuses = [Refuse(0), Effect(0), Effect(0)];
    let state = replay(&world, &[&enters(0)[..], &asked, &refuses, &[AskFor(own)]].concat());
    assert!(state.clients[0].told, "it was not informed of the second");
}

/// The reply to a holder's delete is lost, the parent is reaped, and a stranger's node gets the name. A waiter of the holder's
/// session lists the stranger's node before the holder knows that its own is deleted. That end says nothing about the stranger.
#[test]
fn case_20_the_end_of_a_neighbour_says_nothing_about_a_stranger_of_the_same_name() {
    let world = World {
        node_format: NodeFormat::Recipe,
        neighbours: 2,
        budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT },
        lag: 0,
        ..World::new("a neighbour's name used again", 3)
    };
    let delete_and_lose = [Leave(0), Effect(0), Cut(0, Cut::After), Reconnect(0, Leader), Reap];
    let stranger_enters_first =
        [Start(1, Leader), Effect(1), Start(2, Leader), Effect(2), Effect(1), Effect(2), Effect(2)];
    let both_find_the_stranger = [Effect(0), Effect(1), Effect(1), Effect(0)];
    let neighbour_ends = [Hears(1), Effect(1), Effect(2), Hears(1)];
    let state = replay(
        &world,
        &[&enters(0)[..], &delete_and_lose, &stranger_enters_first, &both_find_the_stranger, &neighbour_ends].concat(),
    );
    assert!(state.clients[2].says_it_holds());
    assert!(!state.clients[1].says_it_holds(), "it holds beside the stranger");
}
