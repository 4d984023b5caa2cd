//! The worlds in which holders want a proof of their holds, or write in the transactions of their releases.

use lockkeeper_core::Discipline;

use super::witness::Witness::*;
use super::world::{Budget, Role, World};
use super::worlds::{BACKGROUND, FOREGROUND, LOCK, NO_FAULT, READ, WRITE, classes_rule, world};

/// Proofs beside what changes the nodes of a hold, and writes beside what passes the lock on.
pub(crate) fn holders() -> Vec<World> {
    let shared = |name, roles: &[Role]| world(name, Discipline::SharedExclusive, roles);
    vec![
        World {
            budget: Budget { proofs: 1, removals: 1, cuts: 1, ..NO_FAULT },
            linger: true,
            lag: 1,
            witnesses: vec![Proved, Disproved],
            ..shared("proofs: an operator deletes a node, a connection lost", &[LOCK; 2])
        },
        World {
            budget: Budget { proofs: 2, downgrades: 1, cuts: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![Proved, LostDowngrade],
            ..shared("proofs: a writer that reads on, a connection lost", &[WRITE, READ])
        },
        World {
            budget: Budget { proofs: 1, removals: 1, cuts: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: vec![Proved, Disproved],
            ..world("proofs: classes, an operator deletes a node", classes_rule(), &[BACKGROUND, FOREGROUND])
        },
        World {
            neighbours: 2,
            budget: Budget { release_writes: 1, cuts: 1, crashes: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![NeighbourReleased, SecondGrant, Unlisted, WroteAtRelease],
            ..shared("writes with releases: two neighbours, a connection lost, a crash", &[LOCK; 3])
        },
        World {
            records_behind: 1,
            budget: Budget { release_writes: 1, cuts: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![RecordGrants, SecondGrant, LaterListing, WroteAtRelease],
            ..shared("writes with releases: records of releases, a connection lost", &[LOCK; 4])
        },
    ]
}
