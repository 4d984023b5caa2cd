//! The worlds in which holds make way for contenders of earlier classes.
//!
//! When a hold is old enough is a matter of time, which is not in the model: it is at any moment after the grant.

use lockkeeper_core::{Class, Mode};

use super::witness::Witness::*;
use super::world::{Budget, Role, World};
use super::worlds::{BACKGROUND, FOREGROUND, NO_FAULT, classes_rule, world};

pub(crate) const YIELDS: Role = Role::Yields(Class::BACKGROUND);

/// Holds that make way, beside the faults that a lock with classes meets.
pub(crate) fn yielding() -> Vec<World> {
    let yielding = |name, roles: &[Role]| World { lag: 0, ..world(name, classes_rule(), roles) };
    vec![
        World {
            budget: Budget { yields: 3, ..NO_FAULT },
            witnesses: vec![MadeWay, WentOn, LowerClassFirst, AllGone],
            ..yielding(
                "yields: two of the background, two of the foreground",
                &[YIELDS, YIELDS, FOREGROUND, FOREGROUND],
            )
        },
        World {
            budget: Budget { yields: 2, cancels: 1, ..NO_FAULT },
            witnesses: vec![MadeWay, WentOn, AskedInVain],
            ..yielding("yields: a wait given up", &[YIELDS, BACKGROUND, FOREGROUND])
        },
        World {
            budget: Budget { yields: 2, cuts: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![MadeWay, LostYield],
            ..yielding("yields: a connection lost, a follower behind", &[YIELDS, FOREGROUND])
        },
        World {
            budget: Budget { yields: 1, cuts: 1, missed_deadlines: 1, crashes: 1, ..NO_FAULT },
            witnesses: vec![MadeWay, LostYield, GrantAfterTheHoldersCrash],
            ..yielding("yields: one of each fault", &[YIELDS, FOREGROUND])
        },
        World {
            budget: Budget { yields: 1, removals: 1, words: 1, ..NO_FAULT },
            linger: true,
            witnesses: vec![MadeWay, NodeRemoved, WaiterRevoked],
            ..yielding("yields: an operator deletes a node, a revocation", &[YIELDS, FOREGROUND])
        },
        World {
            budget: Budget { yields: 1, proofs: 2, removals: 1, ..NO_FAULT },
            linger: true,
            witnesses: vec![MadeWay],
            ..yielding("yields: proofs of holds", &[YIELDS, FOREGROUND])
        },
        World {
            sessionless: Some(Mode::Class(Class::FOREGROUND)),
            budget: Budget { yields: 2, ..NO_FAULT },
            witnesses: vec![MadeWay, WentOn],
            ..yielding("yields: a persistent node", &[YIELDS, BACKGROUND, FOREGROUND])
        },
        World {
            budget: Budget { yields: 2, ..NO_FAULT },
            lag: 1,
            witnesses: vec![MadeWay, PlainHolds, WentOn],
            ..yielding(
                "yields: beside foreign clients",
                &[YIELDS, Role::Plain(Class::FOREGROUND), Role::Plain(Class::BACKGROUND)],
            )
        },
    ]
}
