//! Every interleaving of small worlds: stateright explores the real `Contender` against a model of the znode tree.
//!
//! `tree` is what a server has of a lock's path, `world` the clients, sessions and connections with all that can happen to
//! them, `step` carries the contender's commands out, `claims` says what must always be so and what must be seen to happen.
//! Nothing of the protocol is here: a command is carried out as a driver would, and every decision is the contender's.
//!
//! Each world spends a small budget of faults and is explored to its end. That the claims can fail is shown by the seeded
//! mistakes: each breaks the carrying out of one command and is found.

#[path = "model/claims.rs"]
mod claims;
#[path = "model/step.rs"]
mod step;
#[path = "model/tree.rs"]
mod tree;
#[path = "model/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::time::Instant;

use claims::Witness::{self, *};
use claims::{EXCLUSION, NO_GHOST, NO_HERD, NO_LOST_WAKEUP, NOTHING_LEFT, OWN_NODES, SETTLES, SOMEONE_IN};
use lockkeeper_core::{Dialect, Discipline, End, Mode};
use stateright::{Checker, HasDiscoveries, Model, Path};
use world::{Action, Budget, Cut, Life, Mistake, Server, State, World};

const NO_FAULT: Budget =
    Budget { cuts: 0, crashes: 0, breaches: 0, closes: 0, returns: 0, cancels: 0, reaps: 0, evictions: 0, words: 0 };

/// The worlds in which every claim must hold. Four contenders wherever the number of faults leaves it finite in seconds.
fn worlds() -> Vec<World> {
    let usual = [OneWaitsWhileAnotherHolds, SecondGrant, Handover, QueueAtRest, AllGone, StaleView];
    let with = |more: &[Witness]| usual.iter().chain(more).copied().collect::<Vec<_>>();
    let readers = vec![Mode::Read, Mode::Write, Mode::Read, Mode::Write];
    vec![
        World {
            budget: Budget { cancels: 2, ..NO_FAULT },
            lag: 0,
            witnesses: [
                OneWaitsWhileAnotherHolds,
                SecondGrant,
                Handover,
                QueueAtRest,
                AllGone,
                WaiterLeft,
                LaterListing,
            ]
            .into(),
            ..World::new("four contenders, two waits given up", 4)
        },
        World {
            budget: Budget { crashes: 2, ..NO_FAULT },
            lag: 1,
            witnesses: with(&[GrantAfterTheHoldersCrash, LaterListing]),
            ..World::new("four contenders, two crashes", 4)
        },
        World {
            budget: Budget { cuts: 1, ..NO_FAULT },
            lag: 1,
            witnesses: with(&[LostCreateAdopted, DeleteRepeated]),
            ..World::new("four contenders, a connection lost", 4)
        },
        World {
            budget: Budget { cuts: 2, ..NO_FAULT },
            lag: 1,
            witnesses: with(&[LostCreateAdopted, DeleteRepeated]),
            ..World::new("three contenders, two connections lost", 3)
        },
        World {
            budget: Budget { cuts: 1, ..NO_FAULT },
            lag: 2,
            witnesses: with(&[LostCreateAdopted, DeleteRepeated]),
            ..World::new("three contenders, a connection lost, a follower two behind", 3)
        },
        World {
            budget: Budget { cuts: 1, crashes: 1, breaches: 1, cancels: 1, ..NO_FAULT },
            lag: 0,
            witnesses: [
                OneWaitsWhileAnotherHolds,
                LostCreateAdopted,
                DeleteRepeated,
                GrantAfterTheHoldersCrash,
                WaiterLeft,
                BackInTime,
            ]
            .into(),
            ..World::new("three contenders, one of each fault", 3)
        },
        World {
            budget: Budget { cuts: 1, cancels: 1, ..NO_FAULT },
            lag: 1,
            witnesses: with(&[LostCreateAdopted, DeleteRepeated, WaiterLeft, LaterListing]),
            ..World::new("three contenders, a connection lost, a wait given up", 3)
        },
        World {
            budget: Budget { cuts: 1, closes: 1, returns: 1, ..NO_FAULT },
            lag: 0,
            witnesses: [OneWaitsWhileAnotherHolds, OldNodeBesideTheReturned, LostCreateAdopted].into(),
            ..World::new("three contenders, one back with a new session and the same attempt", 3)
        },
        World {
            budget: Budget { cuts: 2, closes: 1, returns: 1, ..NO_FAULT },
            lag: 1,
            witnesses: [OneWaitsWhileAnotherHolds, OldNodeBesideTheReturned, LostCreateAdopted].into(),
            ..World::new("the same, two connections lost, a follower behind", 2)
        },
        World {
            budget: Budget { cuts: 1, breaches: 1, ..NO_FAULT },
            lag: 1,
            witnesses: with(&[BackInTime, ExpiredMeanwhile]),
            ..World::new("three contenders, a break that outlasts the session's trust", 3)
        },
        World {
            budget: Budget { cuts: 1, breaches: 1, ..NO_FAULT },
            lag: 0,
            witnesses: [OneWaitsWhileAnotherHolds, QueueAtRest, BackInTime, ExpiredMeanwhile].into(),
            ..World::new("four contenders, a break that outlasts the session's trust", 4)
        },
        World {
            discipline: Discipline::SharedExclusive,
            modes: readers,
            budget: Budget { cancels: 1, ..NO_FAULT },
            lag: 0,
            witnesses: [ReadersTogether, SecondGrant, Handover, QueueAtRest, AllGone, WaiterLeft].into(),
            ..World::new("two readers and two writers, a wait given up", 4)
        },
        World {
            dialect: Dialect::Recipe,
            budget: Budget { reaps: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![NumbersStartAgain, SecondGrant, Handover, QueueAtRest, AllGone],
            ..World::new("four contenders with unprotected names, a parent reaped", 4)
        },
        World {
            dialect: Dialect::Recipe,
            budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT },
            lag: 1,
            witnesses: with(&[NumbersStartAgain, LostCreateAdopted]),
            ..World::new("unprotected names, a connection lost, a parent reaped", 3)
        },
        World {
            dialect: Dialect::Recipe,
            budget: Budget { cuts: 1, words: 1, ..NO_FAULT },
            linger: true,
            lag: 1,
            witnesses: vec![LostCreateAdopted, WrittenNodeReleased, Handover, AllGone],
            ..World::new("unprotected names, a connection lost, a node written to", 2)
        },
        World {
            budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT },
            parent: false,
            lag: 0,
            witnesses: vec![NumbersStartAgain, LostCreateAdopted, SecondGrant, Handover, QueueAtRest, AllGone],
            ..World::new("three contenders, no parent at first, a connection lost, a parent reaped", 3)
        },
        World {
            budget: Budget { evictions: 1, ..NO_FAULT },
            linger: true,
            lag: 1,
            witnesses: with(&[Evicted]),
            ..World::new("three contenders, an operator deletes a node", 3)
        },
        World {
            budget: Budget { cuts: 1, evictions: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![Evicted, SecondGrant, Handover],
            ..World::new("three contenders, an operator deletes a node, a connection lost", 3)
        },
        World {
            budget: Budget { cuts: 1, crashes: 1, ..NO_FAULT },
            first: i32::MAX,
            lag: 0,
            witnesses: vec![WrapCrossed, SecondGrant, Handover, GrantAfterTheHoldersCrash, AllGone],
            ..World::new("four contenders across the end of the counter", 4)
        },
    ]
}

/// A counterexample, as something to read and to replay.
fn tell(path: Path<State, Action>) -> String {
    let last = path.last_state().clone();
    let steps: Vec<_> = path.into_actions().iter().map(|action| format!("    {action:?}")).collect();
    format!("{}\nleads to {last:#?}", steps.join("\n"))
}

/// Explores `world` to its end: every claim holds, every witness is seen. Says how many distinct states there are.
fn explore(world: World) -> usize {
    let name = world.name;
    let witnesses = world.witnesses.clone();
    let start = Instant::now();
    let checker = world.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states:>8} states, up to {:>2} steps deep, {:.1?}: {name}", checker.max_depth(), start.elapsed());
    let found = checker.discoveries();
    let (seen, broken): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(claim, _)| witnesses.iter().any(|witness| witness.says() == *claim));
    if let Some((claim, path)) = broken.into_iter().next() {
        panic!("in the world {name:?} it is not so that {claim}:\n{}", tell(path));
    }
    for witness in witnesses {
        let says = witness.says();
        assert!(seen.iter().any(|(claim, _)| *claim == says), "in the world {name:?} it was never seen that {says}");
    }
    states
}

/// Cases 2, 3, 6, 8, 9, 11, 15, 16, 18, 19, 20 and 23, and every mixture of them that a budget allows.
#[test]
fn every_interleaving_keeps_the_promises() {
    let states: usize = worlds().into_iter().map(explore).sum();
    println!("{states:>8} states in all");
    assert!(states >= 1_000_000, "only {states} distinct states were explored");
}

/// Explores a world with a mistake in it until the mistake shows in each of `claims`; without it, all is well.
fn is_found(world: impl Fn() -> World, claims: &[&'static str]) {
    explore(World { mistake: None, witnesses: Vec::new(), ..world() });
    let mistake = world().mistake.expect("the world has a mistake");
    for claim in claims {
        let wanted: BTreeSet<_> = world().witnesses.iter().map(|w| w.says()).chain([*claim]).collect();
        let checker = world().checker().finish_when(HasDiscoveries::AllOf(wanted.clone())).spawn_bfs().join();
        let mut found = checker.discoveries();
        for wanted in wanted {
            let path = found.remove(wanted).unwrap_or_else(|| panic!("{mistake:?} did not show in {wanted:?}"));
            println!("{mistake:?} shows in {wanted:?} within {} steps", path.into_actions().len() - 1);
        }
    }
}

#[test]
fn seeded_mistake_recovery_without_sync_is_found() {
    // A second node is made although the first stands. The contender finds and deletes such a stray while it waits; what
    // it cannot know without the sync is, on leaving, that there is none.
    let world = || World {
        mistake: Some(Mistake::NoSync),
        budget: Budget { cuts: 1, cancels: 1, ..NO_FAULT },
        witnesses: vec![StrayDeleted],
        ..World::new("recovery without sync", 2)
    };
    is_found(world, &[NOTHING_LEFT, NO_GHOST]);
}

#[test]
fn seeded_mistake_unprotected_create_is_found() {
    let world = || World {
        mistake: Some(Mistake::Unprotected),
        budget: Budget { cuts: 1, ..NO_FAULT },
        ..World::new("unprotected create", 2)
    };
    is_found(world, &[SOMEONE_IN, NO_GHOST]);
}

#[test]
fn seeded_mistake_listing_before_create_is_found() {
    let world = || World { mistake: Some(Mistake::ListBeforeCreate), lag: 0, ..World::new("listing before create", 2) };
    is_found(world, &[EXCLUSION]);
}

/// Correct, only dear: each going wakes everyone.
#[test]
fn seeded_mistake_watching_the_first_is_found() {
    let world = || World { mistake: Some(Mistake::WatchTheFirst), lag: 0, ..World::new("watch on the first", 3) };
    is_found(world, &[NO_HERD]);
}

#[test]
fn seeded_mistake_watching_the_wrong_node_is_found() {
    let world =
        || World { mistake: Some(Mistake::WatchTheNextYounger), lag: 0, ..World::new("watch on the next younger", 3) };
    is_found(world, &[NO_LOST_WAKEUP, SOMEONE_IN, SETTLES]);
}

/// Case 20.
#[test]
fn seeded_mistake_deleting_by_name_is_found() {
    let world = || World {
        mistake: Some(Mistake::DeleteByName),
        dialect: Dialect::Recipe,
        budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT },
        lag: 0,
        ..World::new("delete by name", 3)
    };
    is_found(world, &[OWN_NODES, EXCLUSION]);
}

/// Cases 2 and 3.
#[test]
fn seeded_mistake_adopting_a_node_of_another_session_is_found() {
    let world = || World {
        mistake: Some(Mistake::AdoptForeign),
        budget: Budget { cuts: 2, closes: 1, returns: 1, ..NO_FAULT },
        lag: 0,
        witnesses: vec![OldNodeBesideTheReturned],
        ..World::new("adoption without a look at the session", 2)
    };
    is_found(world, &[EXCLUSION]);
}

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

/// Found by the model. The reply to a delete is lost, the session moves to a server that has not applied the delete yet,
/// and there the node still looks like ours; meanwhile the parent is reaped and made again, and the name is another's.
#[test]
fn case_20_a_lost_delete_is_repeated_only_behind_a_sync() {
    use Server::{Follower, Leader};
    let world = World {
        dialect: Dialect::Recipe,
        budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT },
        lag: 1,
        ..World::new("a delete repeated on a stale look", 2)
    };
    let enter = [Action::Effect(0), Action::Effect(0)];
    let delete_and_lose = [Action::Leave(0), Action::Effect(0), Action::Cut(0, Cut::After)];
    let look_elsewhere = [Action::Reconnect(0, Follower), Action::Effect(0)];
    let parent_made_again = [Action::Reap, Action::Start(1, Leader), Action::Effect(1), Action::Effect(1)];
    let other_enters = [Action::Effect(1), Action::Effect(1)];
    let steps =
        [&[Action::Start(0, Leader)][..], &enter, &delete_and_lose, &look_elsewhere, &parent_made_again, &other_enters]
            .concat();
    let state = replay(&world, &steps);
    assert_eq!(state.clients[0].life, Life::Ended(End::Left));
    assert!(state.clients[1].says_it_holds());
    assert_eq!(state.leader.nodes.iter().map(|n| n.owner).collect::<Vec<_>>(), [1], "the other's node was deleted");
}
