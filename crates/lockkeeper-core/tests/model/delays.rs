//! The worlds of lock delays, in which every claim must hold.

use lockkeeper_core::Discipline;

use super::witness::Witness::*;
use super::world::{Budget, Role, World};
use super::worlds::{DELAY, LOCK, NO_FAULT, READ, WRITE, takes, world};

/// Two contenders with a lock delay.
pub(crate) fn two_delayed(name: &'static str) -> World {
    World { delay: Some(DELAY), ..world(name, Discipline::SharedExclusive, &[LOCK; 2]) }
}

/// Contenders with a lock delay.
pub(crate) fn delayed() -> Vec<World> {
    let delayed = |name, discipline, roles: &[Role]| World { delay: Some(DELAY), ..world(name, discipline, roles) };
    let exclusive = |name, count: usize| delayed(name, Discipline::SharedExclusive, &[LOCK; 3][..count]);
    vec![
        World {
            budget: Budget { cuts: 1, crashes: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![GrantAfterTheHoldersCrash, SecondGrant, OneWaitsWhileAnotherHolds],
            ..exclusive("delays: three contenders, a crash, a connection lost", 3)
        },
        World {
            budget: Budget { crashes: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![GrantAfterTheHoldersCrash, SecondGrant],
            ..exclusive("delays: three contenders, a crash, a follower behind", 3)
        },
        World {
            budget: Budget { cuts: 2, missed_deadlines: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![ExpiredMeanwhile, BackInTime, DeleteRepeated],
            ..exclusive("delays: two contenders, two breaks, one that outlasts the trust", 2)
        },
        World {
            budget: Budget { cuts: 1, removals: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: vec![NodeRemoved, SecondGrant],
            ..exclusive("delays: two contenders, an operator deletes a node, a connection lost", 2)
        },
        World {
            budget: Budget { crashes: 1, cuts: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![SecondGrant, GrantAfterTheHoldersCrash],
            ..delayed(
                "delays: a reader and a writer, a crash, a connection lost",
                Discipline::SharedExclusive,
                &[READ, WRITE],
            )
        },
        World {
            budget: Budget { crashes: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![SecondGrant, ReadersTogether],
            ..delayed("delays: two readers and a writer, a crash", Discipline::SharedExclusive, &[READ, WRITE, READ])
        },
        World {
            budget: Budget { crashes: 1, downgrades: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![SecondGrant],
            ..delayed(
                "delays: a writer that reads on, a reader, a writer, a crash",
                Discipline::SharedExclusive,
                &[WRITE, READ, WRITE],
            )
        },
        World {
            budget: Budget { crashes: 1, cuts: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![SecondGrant],
            ..delayed(
                "delays: two for one permit, a crash, a connection lost",
                Discipline::Permits { permits: 1 },
                &[takes(1), takes(1)],
            )
        },
        World {
            budget: Budget { crashes: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![SecondGrant],
            ..delayed(
                "delays: three for two permits, one takes both, a crash",
                Discipline::Permits { permits: 2 },
                &[takes(1), takes(2), takes(1)],
            )
        },
    ]
}
