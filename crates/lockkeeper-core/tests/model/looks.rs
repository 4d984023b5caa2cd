//! The worlds in which waiters look again who holds the lock, because their callers soon stop waiting.
//!
//! When a deadline is near is a matter of time, which is not in the model: a waiter may look at any moment.

use lockkeeper_core::{Discipline, NodeFormat};

use super::witness::Witness::*;
use super::world::{Budget, Role, World};
use super::worlds::{BACKGROUND, FOREGROUND, LOCK, NO_FAULT, READ, WRITE, classes_rule, takes, world};

/// Looks beside the faults that a listing meets, in each discipline.
pub(crate) fn looking() -> Vec<World> {
    let looking = |name, discipline, roles: &[Role]| World {
        lag: 0,
        witnesses: vec![LookedAgain],
        ..world(name, discipline, roles)
    };
    let shared = Discipline::SharedExclusive;
    vec![
        World {
            budget: Budget { looks: 2, cancels: 1, ..NO_FAULT },
            ..looking("looks: four contenders, a wait given up", shared, &[LOCK; 4])
        },
        World {
            budget: Budget { looks: 1, cuts: 1, crashes: 1, ..NO_FAULT },
            lag: 1,
            ..looking("looks: a connection lost, a crash, a follower behind", shared, &[LOCK; 3])
        },
        World {
            node_format: NodeFormat::Recipe,
            budget: Budget { looks: 1, cuts: 1, reaps: 1, ..NO_FAULT },
            ..looking("looks: unprotected names, a connection lost, a parent reaped", shared, &[LOCK; 3])
        },
        World {
            neighbours: 2,
            budget: Budget { looks: 1, cancels: 1, removals: 1, ..NO_FAULT },
            linger: true,
            ..looking("looks: two neighbours and a stranger, an operator deletes a node", shared, &[LOCK; 3])
        },
        World {
            records_behind: 1,
            budget: Budget { looks: 1, cancels: 1, ..NO_FAULT },
            ..looking("looks: records of releases, a wait given up", shared, &[LOCK; 4])
        },
        World {
            budget: Budget { looks: 1, cancels: 1, ..NO_FAULT },
            ..looking("looks: readers and writers", shared, &[READ, WRITE, READ, WRITE])
        },
        World {
            budget: Budget { looks: 1, crashes: 1, ..NO_FAULT },
            ..looking("looks: permits, a crash", Discipline::Permits { permits: 2 }, &[takes(1), takes(2), takes(1)])
        },
        World {
            budget: Budget { looks: 1, crashes: 1, ..NO_FAULT },
            linger: true,
            ..looking("looks: classes, a crash", classes_rule(), &[BACKGROUND, FOREGROUND, BACKGROUND])
        },
    ]
}
