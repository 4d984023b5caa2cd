//! The worlds in which holders write into their records when they were granted the lock.
//!
//! Which grant comes late enough is a matter of time, which is not in the model: any hold may be one.

use lockkeeper_core::{Discipline, NodeFormat};

use super::witness::Witness::*;
use super::world::{Budget, Role, World};
use super::worlds::{LOCK, NO_FAULT, READ, WRITE, takes, world};

/// Holds whose records say when they began, beside every other write to a record and the faults that a write meets.
pub(crate) fn dated() -> Vec<World> {
    let dated = |name, roles: &[Role]| World {
        lag: 0,
        witnesses: vec![Dated],
        ..world(name, Discipline::SharedExclusive, roles)
    };
    vec![
        World {
            budget: Budget { dates: 1, cuts: 1, cancels: 1, ..NO_FAULT },
            ..dated("dated: a connection lost, a wait given up", &[LOCK; 3])
        },
        World {
            budget: Budget { dates: 1, asks: 1, refusals: 1, ..NO_FAULT },
            ..dated("dated: a revocation that is refused", &[LOCK; 3])
        },
        World {
            budget: Budget { dates: 1, words: 1, cuts: 1, ..NO_FAULT },
            lag: 1,
            ..dated("dated: a bare word, a connection lost, a follower behind", &[LOCK; 2])
        },
        World {
            node_format: NodeFormat::Recipe,
            budget: Budget { dates: 1, cuts: 1, reaps: 1, ..NO_FAULT },
            ..dated("dated: unprotected names, a connection lost, a parent reaped", &[LOCK; 3])
        },
        World {
            budget: Budget { dates: 1, cuts: 1, removals: 1, ..NO_FAULT },
            linger: true,
            ..dated("dated: an operator deletes a node, a connection lost", &[LOCK; 3])
        },
        World {
            neighbours: 2,
            budget: Budget { dates: 1, crashes: 1, ..NO_FAULT },
            ..dated("dated: two neighbours and a stranger, a crash", &[LOCK; 3])
        },
        World {
            records_behind: 1,
            budget: Budget { dates: 1, cancels: 1, ..NO_FAULT },
            ..dated("dated: records of releases, a wait given up", &[LOCK; 4])
        },
        World {
            budget: Budget { dates: 1, upgrades: 1, downgrades: 1, ..NO_FAULT },
            ..dated("dated: an upgrade and a downgrade", &[Role::Upgradeable, READ, WRITE])
        },
        World {
            budget: Budget { dates: 1, crashes: 1, ..NO_FAULT },
            lag: 0,
            ..world("dated: two permits, a crash", Discipline::Permits { permits: 2 }, &[takes(2), takes(1), takes(1)])
        },
    ]
}
