//! The worlds in which every claim must hold.
//!
//! Each has four clients if the number of faults leaves it finite in seconds. Each kind of fault and of wish is in at
//! least one world with every other kind that it could meet.

use lockkeeper_core::{Class, Discipline, Limit, LockDelay, Mode, NodeFormat};

use super::witness::Witness::{self, *};
use super::world::{Budget, Role, World};

pub(crate) const NO_FAULT: Budget = Budget::NONE;

/// Time is not in the model, so any delay will do.
pub(crate) const DELAY: LockDelay = LockDelay::MILLISECOND;
pub(crate) const LOCK: Role = Role::Enters(Mode::Exclusive);
pub(crate) const READ: Role = Role::Enters(Mode::Read);
pub(crate) const WRITE: Role = Role::Enters(Mode::Write);
pub(crate) const FOREGROUND: Role = Role::Enters(Mode::Class(Class::FOREGROUND));
pub(crate) const BACKGROUND: Role = Role::Enters(Mode::Class(Class::BACKGROUND));

pub(crate) const fn takes(permits: u32) -> Role {
    Role::Enters(Mode::Permits(permits))
}

/// A world of one discipline, with its clients in the usual node format for it.
pub(crate) fn world(name: &'static str, discipline: Discipline, roles: &[Role]) -> World {
    let node_format = if discipline.holder_marker().is_some() { NodeFormat::Contentserv } else { NodeFormat::Curator };
    let limit = discipline.limit().map_or(Limit::Unset { version: 0 }, Limit::Permits);
    World { node_format, discipline, limit, roles: roles.to_vec(), ..World::new(name, 0) }
}

pub(crate) fn classes_rule() -> Discipline {
    Discipline::Classes
}

/// One holder, oldest first.
pub(crate) fn exclusive() -> Vec<World> {
    let usual = [OneWaitsWhileAnotherHolds, SecondGrant, Handover, QueueAtRest, AllGone, StaleView];
    let with = |more: &[Witness]| usual.iter().chain(more).copied().collect::<Vec<_>>();
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
            budget: Budget { cuts: 1, crashes: 1, missed_deadlines: 1, cancels: 1, ..NO_FAULT },
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
            budget: Budget { cuts: 1, missed_deadlines: 1, ..NO_FAULT },
            lag: 1,
            witnesses: with(&[BackInTime, ExpiredMeanwhile]),
            ..World::new("three contenders, a break that outlasts the session's trust", 3)
        },
        World {
            budget: Budget { cuts: 1, missed_deadlines: 1, ..NO_FAULT },
            lag: 0,
            witnesses: [OneWaitsWhileAnotherHolds, QueueAtRest, BackInTime, ExpiredMeanwhile].into(),
            ..World::new("four contenders, a break that outlasts the session's trust", 4)
        },
        World {
            node_format: NodeFormat::Recipe,
            budget: Budget { reaps: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![NumbersStartAgain, SecondGrant, Handover, QueueAtRest, AllGone],
            ..World::new("four contenders with unprotected names, a parent reaped", 4)
        },
        World {
            node_format: NodeFormat::Recipe,
            budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT },
            lag: 1,
            witnesses: with(&[NumbersStartAgain, LostCreateAdopted]),
            ..World::new("unprotected names, a connection lost, a parent reaped", 3)
        },
        World {
            node_format: NodeFormat::Recipe,
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
            budget: Budget { removals: 1, ..NO_FAULT },
            linger: true,
            lag: 1,
            witnesses: with(&[NodeRemoved, ReleasedLate]),
            ..World::new("three contenders, an operator deletes a node", 3)
        },
        World {
            budget: Budget { cuts: 1, removals: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: vec![NodeRemoved, SecondGrant, Handover],
            ..World::new("three contenders, an operator deletes a node, a connection lost", 3)
        },
        World {
            budget: Budget { cuts: 1, crashes: 1, ..NO_FAULT },
            first: i32::MAX,
            lag: 0,
            witnesses: vec![WrapCrossed, SecondGrant, Handover, GrantAfterTheHoldersCrash, AllGone],
            ..World::new("four contenders across the end of the counter", 4)
        },
        World {
            budget: Budget { words: 1, asks: 1, refusals: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: vec![WaiterRevoked, HolderAsked, AskedHolderReleased, Refused],
            ..World::new("three contenders, two revocations", 3)
        },
        World {
            budget: Budget { words: 1, cuts: 1, ..NO_FAULT },
            linger: true,
            lag: 1,
            witnesses: vec![WaiterRevoked, HolderAsked, AskedHolderReleased],
            ..World::new("two contenders, a revocation, a connection lost", 2)
        },
    ]
}

/// Contenders in one process, which report their releases to each other, and one in another process.
pub(crate) fn neighbours() -> Vec<World> {
    let neighbours = |name, neighbours, roles: &[Role]| World {
        neighbours,
        witnesses: vec![NeighbourReleased, SecondGrant, Unlisted],
        lag: 0,
        ..world(name, Discipline::SharedExclusive, roles)
    };
    vec![
        World {
            budget: Budget { cancels: 1, ..NO_FAULT },
            witnesses: vec![NeighbourReleased, SecondGrant, Unlisted, Deferred, SharedListing],
            ..neighbours("neighbours: three and a stranger, a wait given up", 3, &[LOCK; 4])
        },
        World {
            budget: Budget { crashes: 1, ..NO_FAULT },
            lag: 1,
            ..neighbours("neighbours: two and a stranger, a crash, a follower behind", 2, &[LOCK; 3])
        },
        World {
            budget: Budget { cuts: 2, ..NO_FAULT },
            lag: 1,
            witnesses: vec![NeighbourReleased, SecondGrant, Unlisted, Deferred],
            ..neighbours("neighbours: two and a stranger, two connections lost", 2, &[LOCK; 3])
        },
        World {
            budget: Budget { cuts: 1, missed_deadlines: 1, ..NO_FAULT },
            lag: 1,
            ..neighbours("neighbours: a break that outlasts the session's trust", 2, &[LOCK; 3])
        },
        World {
            budget: Budget { removals: 1, cuts: 1, ..NO_FAULT },
            linger: true,
            witnesses: vec![NeighbourReleased, SecondGrant, Unlisted, Deferred],
            ..neighbours("neighbours: an operator deletes a node, a connection lost", 2, &[LOCK; 3])
        },
        World {
            budget: Budget { removals: 1, reaps: 1, ..NO_FAULT },
            linger: true,
            witnesses: vec![NeighbourReleased, NodeRemoved, NumbersStartAgain],
            ..neighbours("neighbours: an operator deletes a node, a parent reaped", 2, &[LOCK; 3])
        },
        World {
            budget: Budget { words: 1, asks: 1, ..NO_FAULT },
            linger: true,
            ..neighbours("neighbours: two revocations", 2, &[LOCK; 3])
        },
        World {
            budget: Budget { writes: 1, cuts: 1, crashes: 1, ..NO_FAULT },
            witnesses: vec![NeighbourReleased, SecondGrant, Unlisted, WriteOutlastsHold],
            ..neighbours("neighbours: a fenced write, a connection lost, a crash", 2, &[LOCK; 3])
        },
        World {
            node_format: NodeFormat::Recipe,
            budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT },
            ..neighbours("neighbours: unprotected names, a connection lost, a parent reaped", 2, &[LOCK; 3])
        },
        World {
            budget: Budget { crashes: 1, ..NO_FAULT },
            ..neighbours("neighbours: readers and writers, a crash", 3, &[WRITE, READ, WRITE, READ])
        },
        World {
            budget: Budget { downgrades: 1, upgrades: 1, cuts: 1, ..NO_FAULT },
            ..neighbours("neighbours: upgrades and downgrades", 3, &[Role::Upgradeable, WRITE, READ])
        },
        World {
            delay: Some(DELAY),
            witnesses: vec![SecondGrant],
            budget: Budget { crashes: 1, ..NO_FAULT },
            ..neighbours("neighbours: a delay, a crash", 3, &[LOCK; 3])
        },
        World {
            neighbours: 3,
            witnesses: vec![PermitsTogether],
            ..world("neighbours: permits", Discipline::Permits { permits: 2 }, &[takes(1), takes(2), takes(1)])
        },
    ]
}

/// Contenders that have many ahead, and use the records of releases.
pub(crate) fn recorded() -> Vec<World> {
    let recorded = |name, roles: &[Role]| World {
        records_behind: 1,
        lag: 0,
        witnesses: vec![RecordGrants, SecondGrant, LaterListing],
        ..world(name, Discipline::SharedExclusive, roles)
    };
    vec![
        World { budget: Budget { cancels: 2, ..NO_FAULT }, ..recorded("records: two waits given up", &[LOCK; 4]) },
        World { budget: Budget { crashes: 1, ..NO_FAULT }, lag: 1, ..recorded("records: a crash", &[LOCK; 4]) },
        World { budget: Budget { cuts: 1, ..NO_FAULT }, ..recorded("records: a connection lost", &[LOCK; 4]) },
        World {
            budget: Budget { cuts: 1, missed_deadlines: 1, ..NO_FAULT },
            ..recorded("records: a break that outlasts the session's trust", &[LOCK; 4])
        },
        World {
            budget: Budget { removals: 1, cuts: 1, ..NO_FAULT },
            ..recorded("records: an operator deletes a node, a connection lost", &[LOCK; 4])
        },
        World {
            node_format: NodeFormat::Recipe,
            budget: Budget { reaps: 1, ..NO_FAULT },
            ..recorded("records: unprotected names, a parent reaped", &[LOCK; 4])
        },
        World {
            budget: Budget { downgrades: 1, ..NO_FAULT },
            ..recorded("records: readers and writers, one reads on", &[WRITE, WRITE, WRITE, READ])
        },
        World {
            budget: Budget { upgrades: 1, ..NO_FAULT },
            ..recorded("records: an upgrade", &[READ, WRITE, Role::Upgradeable, WRITE])
        },
        World {
            neighbours: 2,
            budget: Budget { cancels: 1, ..NO_FAULT },
            ..recorded("records: two neighbours and two strangers, a wait given up", &[LOCK; 4])
        },
    ]
}

/// Contenders that get the lock immediately or leave, and a persistent node with the name of a contender.
pub(crate) fn refused() -> Vec<World> {
    let tries = Role::Tries(Mode::Exclusive);
    let shared = |name, roles: &[Role]| world(name, Discipline::SharedExclusive, roles);
    vec![
        World {
            budget: Budget { cuts: 1, crashes: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![RefusedByAHolder, SecondGrant, AllGone],
            ..world(
                "two tries and a waiter, a crash, a connection lost",
                Discipline::SharedExclusive,
                &[LOCK, tries, tries],
            )
        },
        World {
            sessionless: Some(Mode::Exclusive),
            budget: Budget { cuts: 1, crashes: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![RefusedByAHolder, SecondGrant],
            ..world("a persistent node, a try, two waiters", Discipline::SharedExclusive, &[LOCK, tries, LOCK])
        },
        World {
            node_format: NodeFormat::Recipe,
            sessionless: Some(Mode::Exclusive),
            budget: Budget { cuts: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![RefusedByAHolder, SecondGrant],
            ..world("a persistent node, unprotected names", Discipline::SharedExclusive, &[LOCK, tries])
        },
        World {
            sessionless: Some(Mode::Write),
            budget: Budget { cuts: 1, downgrades: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![SecondGrant, ReadersTogether],
            ..shared("a persistent writer's node, readers and a writer", &[READ, WRITE, READ])
        },
        World {
            sessionless: Some(Mode::Read),
            budget: Budget { upgrades: 1, cuts: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![Alone],
            ..shared("a persistent reader's node, an upgradeable reader, a writer", &[Role::Upgradeable, WRITE])
        },
        World {
            sessionless: Some(Mode::Class(Class::FOREGROUND)),
            budget: Budget { crashes: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![RefusedByAHolder, LowerClassFirst],
            ..world(
                "a persistent node of the first class",
                classes_rule(),
                &[BACKGROUND, FOREGROUND, Role::Tries(Mode::Class(Class::FOREGROUND))],
            )
        },
    ]
}

/// Several readers together, or one writer alone; readers that upgrade, writers that read on.
pub(crate) fn shared() -> Vec<World> {
    let shared = |name, roles: &[Role]| world(name, Discipline::SharedExclusive, roles);
    let usual = [ReadersTogether, SecondGrant, Handover, QueueAtRest, AllGone];
    let with = |more: &[Witness]| usual.iter().chain(more).copied().collect::<Vec<_>>();
    vec![
        World {
            budget: Budget { cancels: 1, ..NO_FAULT },
            lag: 0,
            witnesses: with(&[WaiterLeft]),
            ..shared("two readers and two writers, a wait given up", &[READ, WRITE, READ, WRITE])
        },
        World {
            budget: Budget { crashes: 2, ..NO_FAULT },
            lag: 0,
            witnesses: with(&[GrantAfterTheHoldersCrash]),
            ..shared("two readers and two writers, two crashes", &[READ, WRITE, READ, WRITE])
        },
        World {
            budget: Budget { upgrades: 1, crashes: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![ReadsBesideAnUpgradeable, UpgradeWaits, Alone, AllGone],
            ..shared("two readers, an upgradeable reader, a writer, a crash", &[READ, Role::Upgradeable, READ, WRITE])
        },
        World {
            budget: Budget { upgrades: 2, stays: 1, cancels: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![UpgradeWaits, Alone, StayedReader, AllGone],
            ..shared("two upgradeable readers, one cancels its upgrade", &[Role::Upgradeable, Role::Upgradeable, READ])
        },
        World {
            budget: Budget { upgrades: 1, stays: 1, cuts: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![UpgradeWaits, Alone, StayedReader],
            ..shared("an upgradeable reader, a connection lost", &[Role::Upgradeable, READ, READ])
        },
        World {
            budget: Budget { downgrades: 2, ..NO_FAULT },
            lag: 0,
            witnesses: vec![ReadsOn, AllGone],
            ..shared("writers that read on", &[WRITE, READ, WRITE, READ])
        },
        World {
            budget: Budget { downgrades: 1, crashes: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![ReadsOn, AllGone],
            ..shared("a writer that reads on, a follower behind, a crash", &[WRITE, READ, WRITE])
        },
        World {
            budget: Budget { downgrades: 1, cuts: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![ReadsOn, LostDowngrade, AllGone],
            ..shared("a writer that reads on, a connection lost", &[WRITE, READ, WRITE])
        },
        World {
            budget: Budget { downgrades: 1, upgrades: 1, cuts: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![Alone, LostDowngrade],
            ..shared("alone and back to reading, a connection lost", &[Role::Upgradeable, READ, WRITE])
        },
        World {
            node_format: NodeFormat::Recipe,
            budget: Budget { downgrades: 1, cuts: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![ReadsOn, LostDowngrade],
            ..shared("unprotected names, a writer that reads on, a connection lost", &[WRITE, READ, WRITE])
        },
        World {
            budget: Budget { downgrades: 1, words: 1, cuts: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: vec![HolderAsked, WaiterRevoked, LostDowngrade],
            ..shared("a writer that reads on, a revocation, a connection lost", &[WRITE, READ])
        },
        World {
            budget: Budget { downgrades: 1, removals: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: vec![NodeRemoved],
            ..shared("an operator deletes a node of readers and writers", &[Role::Upgradeable, WRITE, READ])
        },
    ]
}

/// Several holders together, as long as there are permits.
pub(crate) fn permits() -> Vec<World> {
    let permits = |name, permits, roles: &[Role]| world(name, Discipline::Permits { permits }, roles);
    let usual = [PermitsTogether, SecondGrant, LaterListing, AllGone];
    let with = |more: &[Witness]| usual.iter().chain(more).copied().collect::<Vec<_>>();
    vec![
        World {
            budget: Budget { crashes: 2, ..NO_FAULT },
            lag: 0,
            witnesses: with(&[GrantAfterTheHoldersCrash, Announced, LastIsSilent]),
            ..permits("two permits, four who take one, two crashes", 2, &[takes(1); 4])
        },
        World {
            budget: Budget { cancels: 1, ..NO_FAULT },
            lag: 0,
            witnesses: with(&[WaiterLeft, BigWaits]),
            ..permits("three permits, a wait given up", 3, &[takes(2), takes(2), takes(1), takes(1)])
        },
        World {
            budget: Budget { crashes: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![StaleView],
            ..permits("two permits, a follower behind, a crash", 2, &[takes(2), takes(1), takes(1)])
        },
        World {
            budget: Budget { cuts: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![LostCreateAdopted, LaterListing],
            ..permits("three permits, a connection lost", 3, &[takes(2), takes(2), takes(1)])
        },
        World {
            budget: Budget { cuts: 1, ..NO_FAULT },
            lag: 0,
            witnesses: with(&[LostCreateAdopted, Announced]),
            ..permits("two permits, a connection lost", 2, &[takes(2), takes(1), takes(1)])
        },
        World {
            budget: Budget { words: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: with(&[WaiterRevoked, HolderAsked, Announced]),
            ..permits("two permits, a revocation", 2, &[takes(2), takes(1), takes(1)])
        },
        World {
            budget: Budget { removals: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: with(&[NodeRemoved]),
            ..permits("two permits, an operator deletes a node", 2, &[takes(2), takes(1), takes(1)])
        },
        World {
            budget: Budget { cuts: 1, ..NO_FAULT },
            limit: Limit::Unset { version: 0 },
            lag: 0,
            witnesses: vec![OtherLimit, LimitStored],
            ..permits(
                "no limit stated yet, one thinks of another, a connection lost",
                2,
                &[takes(1), takes(1), Role::Dissents(1)],
            )
        },
        World {
            budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT },
            parent: false,
            lag: 0,
            witnesses: vec![OtherLimit, NumbersStartAgain],
            ..permits(
                "no parent at first, one thinks of another limit, a connection lost",
                2,
                &[takes(1), takes(2), Role::Dissents(1)],
            )
        },
        World {
            limit: Limit::Foreign,
            lag: 0,
            witnesses: vec![],
            ..permits("the path states something of another maker", 2, &[takes(1), takes(2)])
        },
    ]
}

/// The lower class first; the holder marker shows which contender holds.
pub(crate) fn classes() -> Vec<World> {
    let classes = |name, roles: &[Role]| world(name, classes_rule(), roles);
    let usual = [LowerClassFirst, HolderMarkerWaited, SecondGrant, QueueAtRest, AllGone];
    let with = |more: &[Witness]| usual.iter().chain(more).copied().collect::<Vec<_>>();
    let mixed = [BACKGROUND, FOREGROUND, BACKGROUND, FOREGROUND];
    vec![
        World {
            budget: Budget { crashes: 1, ..NO_FAULT },
            lag: 0,
            witnesses: with(&[GrantAfterTheHoldersCrash]),
            ..classes("two classes, a crash", &mixed)
        },
        World {
            budget: Budget { crashes: 2, ..NO_FAULT },
            lag: 1,
            witnesses: vec![GrantAfterTheHoldersCrash, StaleView, LowerClassFirst],
            ..classes("two classes, a follower behind, two crashes", &[BACKGROUND, FOREGROUND, BACKGROUND])
        },
        World {
            budget: Budget { cuts: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![LostCreateAdopted, LostHolderMarkerFound],
            ..classes("two classes, a connection lost", &[BACKGROUND, FOREGROUND, BACKGROUND])
        },
        World {
            budget: Budget { cuts: 1, missed_deadlines: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![BackInTime, ExpiredMeanwhile, LostHolderMarkerFound],
            ..classes("two classes, a break that outlasts the session's trust", &[BACKGROUND, FOREGROUND, BACKGROUND])
        },
        World {
            budget: Budget { ages: 1, cuts: 1, ..NO_FAULT },
            lag: 0,
            witnesses: vec![ClassChanged, LostHolderMarkerFound],
            ..classes("one changes its class, a connection lost", &[BACKGROUND, FOREGROUND, BACKGROUND])
        },
        World {
            budget: Budget { ages: 1, words: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: vec![WaiterRevoked, HolderAsked, AskedHolderReleased],
            ..classes("one changes its class, a revocation", &[BACKGROUND, BACKGROUND])
        },
        World {
            budget: Budget { removals: 1, ..NO_FAULT },
            linger: true,
            lag: 0,
            witnesses: vec![NodeRemoved, SecondGrant],
            ..classes("two classes, an operator deletes a node", &[BACKGROUND, FOREGROUND])
        },
        World {
            budget: Budget { crashes: 1, ..NO_FAULT },
            lag: 1,
            witnesses: vec![BesidePlain, PlainHolds, LowerClassFirst],
            ..classes("beside foreign clients, a crash", &[BACKGROUND, FOREGROUND, Role::Plain(Class::BACKGROUND)])
        },
        World {
            lag: 0,
            witnesses: vec![BesidePlain, PlainHolds, LowerClassFirst],
            ..classes(
                "two contenders, two foreign clients",
                &[BACKGROUND, FOREGROUND, Role::Plain(Class::BACKGROUND), Role::Plain(Class::FOREGROUND)],
            )
        },
    ]
}
