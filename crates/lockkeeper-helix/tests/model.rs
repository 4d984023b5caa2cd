//! Every interleaving of small worlds of Helix's lock: stateright explores the real `transition` and `OwnedHold`.
//!
//! Three clients read, decide and write under compare-and-set. Replies are lost, clients die, time passes, leases end.
//! A referee that knows the exact time judges every write that takes effect, and every belief of a client is compared
//! with the record. The seeded mistakes of the original show that the claims can fail: each changes how a decision is
//! carried out, none changes `transition`.

#[path = "protocol/referee.rs"]
mod referee;
#[path = "protocol/world.rs"]
mod world;

use std::time::Instant;

use lockkeeper_helix::protocol::Terms;
use stateright::{Checker, HasDiscoveries, Model};
use world::{
    BELIEVES, Budget, EQUALS, GETS_IN, HANDED_OVER, KEEPS, LAZY, Mistake, ONE_OWNER, PRIORITIES, RENEWED, SETTLES,
    Witness, World,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NO_FAULT: Budget = Budget { losses: 0, crashes: 0, renewals: 0, transfers: 0, cancels: 0 };

fn low() -> Terms {
    Terms { priority: 1, cleanup_ms: 2, ..Terms::new("a", 4) }
}

fn middle() -> Terms {
    Terms { priority: 2, cleanup_ms: 1, waiting_ms: Some(2), ..Terms::new("b", 3) }
}

fn high() -> Terms {
    Terms { priority: 3, waiting_ms: Some(3), forceful: true, ..Terms::new("c", 3) }
}

/// An owner with a short lease, which it keeps until another client asks.
fn lazy() -> Terms {
    Terms { priority: 1, notice_ms: Some(2), ..Terms::new("a", 1) }
}

fn lazy_too() -> Terms {
    Terms { notice_ms: Some(1), ..Terms::new("b", 1) }
}

/// The worlds in which every claim must hold.
fn worlds() -> Vec<World> {
    let three = || vec![low(), middle(), high()];
    let world = |name, end_ms, budget| World { name, end_ms, clients: three(), budget, ..World::default() };
    vec![
        World {
            witnesses: vec![Witness::Forced, Witness::Displaced, Witness::HandedOver, Witness::LeaseTaken],
            ..world(PRIORITIES, 5, NO_FAULT)
        },
        World {
            witnesses: vec![Witness::Forced, Witness::Displaced, Witness::LeaseTaken],
            blur_ms: 1,
            ..world("three priorities, no client knows the time", 4, NO_FAULT)
        },
        World {
            witnesses: vec![Witness::Forced, Witness::Repeated],
            ..world("three priorities, a lost reply", 4, Budget { losses: 1, ..NO_FAULT })
        },
        World {
            witnesses: vec![Witness::Forced, Witness::Swept],
            ..world("three priorities, two crashes", 4, Budget { crashes: 2, ..NO_FAULT })
        },
        World {
            witnesses: vec![Witness::Forced, Witness::Swept, Witness::Repeated],
            ask_by_ms: 1,
            ..world("three priorities, a crash and a lost reply", 2, Budget { losses: 1, crashes: 1, ..NO_FAULT })
        },
        World {
            witnesses: vec![Witness::Forced, Witness::HandedOver],
            ..world(
                "three priorities, a renewal and a wait given up",
                3,
                Budget { renewals: 1, cancels: 1, ..NO_FAULT },
            )
        },
        World {
            clients: vec![low(), middle()],
            witnesses: vec![Witness::HandedOver, Witness::Repeated, Witness::LeaseTaken],
            gets_in: None,
            ..world(RENEWED, 6, Budget { renewals: 1, losses: 2, ..NO_FAULT })
        },
        World {
            witnesses: vec![Witness::Transferred, Witness::Inherited, Witness::Forced],
            ask_by_ms: 1,
            ..world(HANDED_OVER, 3, Budget { transfers: 1, losses: 1, ..NO_FAULT })
        },
        World {
            clients: vec![low(), middle(), Terms { id: "c".into(), ..middle() }],
            witnesses: vec![Witness::Unfinished],
            gets_in: None,
            ..world(EQUALS, 3, Budget { renewals: 1, crashes: 1, ..NO_FAULT })
        },
        World {
            clients: vec![low(), Terms { wait_past_cleanup: true, waiting_ms: None, ..middle() }, high()],
            witnesses: vec![Witness::Displaced, Witness::LeaseTaken],
            ..world("one waits past the cleanup", 3, Budget { crashes: 1, ..NO_FAULT })
        },
        World {
            clients: vec![lazy(), Terms { priority: 0, ..Terms::new("b", 2) }],
            witnesses: vec![Witness::Kept, Witness::HandedOver, Witness::LeaseTaken],
            gets_in: None,
            ask_by_ms: 3,
            ..world(LAZY, 6, Budget { renewals: 1, crashes: 1, losses: 1, ..NO_FAULT })
        },
        World {
            clients: vec![lazy(), lazy_too()],
            witnesses: vec![Witness::Kept, Witness::HandedOver, Witness::LeaseTaken],
            gets_in: None,
            blur_ms: 1,
            ask_by_ms: 3,
            ..world("two lazy owners, no client knows the time", 6, Budget { crashes: 1, cancels: 1, ..NO_FAULT })
        },
        World {
            clients: vec![lazy(), lazy_too(), high()],
            witnesses: vec![Witness::Kept, Witness::Forced, Witness::Displaced, Witness::LeaseTaken],
            ..world("two lazy owners and a higher client that uses force", 4, NO_FAULT)
        },
        World {
            clients: vec![lazy(), lazy_too()],
            witnesses: vec![Witness::Kept, Witness::Transferred, Witness::LeaseTaken],
            gets_in: None,
            ..world("a lazy owner hands over", 5, Budget { transfers: 1, losses: 1, ..NO_FAULT })
        },
        World {
            clients: vec![lazy(), lazy_too(), high()],
            witnesses: vec![Witness::Kept, Witness::Repeated],
            gets_in: None,
            tries: Some(2),
            ..world("two lazy owners and a higher client that only tries", 4, Budget { losses: 1, ..NO_FAULT })
        },
    ]
}

/// How many states of a world are explored without LOCKKEEPER_DEEP. `cargo xtask deep` explores all worlds to their ends.
const FEW: usize = 20_000;

/// At every version of the record there is one owner, no request is forgotten, the highest priority gets the lock, and
/// no client waits for ever.
#[test]
fn every_claim_holds_in_every_world() {
    let is_deep = std::env::var_os("LOCKKEEPER_DEEP").is_some();
    let mut states = 0;
    for world in worlds() {
        let (name, witnesses, started) = (world.name, world.witnesses.clone(), Instant::now());
        let builder = world.checker().threads(2);
        let builder = if is_deep { builder } else { builder.target_state_count(FEW) };
        let checker = builder.spawn_bfs().join();
        states += checker.unique_state_count();
        println!("{name}: {} states in {:.1?}", checker.unique_state_count(), started.elapsed());
        for (claim, path) in checker.discoveries() {
            if !witnesses.iter().any(|witness| witness.name() == claim) {
                panic!("{name}: {claim}\n{path}");
            }
        }
        for witness in witnesses.into_iter().filter(|_| is_deep) {
            assert!(checker.discovery(witness.name()).is_some(), "{name}: never seen: {}", witness.name());
        }
    }
    println!("{states} states");
    assert!(!is_deep || states >= 1_000_000, "only {states} states");
}

fn found(mistake: Mistake, claims: &[&'static str]) {
    let world = World {
        mistake: Some(mistake),
        witnesses: Vec::new(),
        ..worlds().into_iter().find(|world| world.name == mistake.shown_in()).expect("the name of a world")
    };
    let wanted = HasDiscoveries::AnyOf(claims.iter().copied().collect());
    let checker = world.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    assert!(claims.iter().any(|claim| checker.discovery(claim).is_some()), "{mistake:?} is not found");
}

/// B1: the result of the write decides which client holds.
#[test]
fn a_force_whose_write_failed_is_found() {
    found(Mistake::ForceUnchecked, &[BELIEVES, ONE_OWNER]);
}

/// B2: also after a cleanup.
#[test]
fn a_hold_after_a_cleanup_that_another_client_used_is_found() {
    found(Mistake::CleanupUnchecked, &[BELIEVES, ONE_OWNER]);
}

/// B3: a pending request yields only to strictly higher ones.
#[test]
fn an_equal_request_written_over_another_is_found() {
    found(Mistake::RequestOverwritten, &[referee::REQUEST_FORGOTTEN]);
}

/// B7: the owner's writes keep the request.
#[test]
fn an_unlock_that_wipes_the_request_is_found() {
    found(Mistake::WipedByUnlock, &[referee::REQUEST_FORGOTTEN]);
}

/// B11: the count starts with the first request.
#[test]
fn a_replacement_that_starts_the_count_again_is_found() {
    found(Mistake::CountRestarted, &[referee::COUNT_RESTARTED]);
}

/// case_35: a transfer takes nothing from a waiting requestor.
#[test]
fn a_transfer_that_wipes_the_request_is_found() {
    found(Mistake::WipedByTransfer, &[referee::REQUEST_FORGOTTEN]);
}

/// case_35: a transfer leaves nothing with the old owner.
#[test]
fn an_owner_that_holds_on_after_a_transfer_is_found() {
    found(Mistake::HeldOn, &[ONE_OWNER]);
}

/// H-15: an owner that keeps an ended lease gets its notice before another client gets the lock.
#[test]
fn an_ended_lease_taken_without_notice_is_found() {
    found(Mistake::NoNotice, &[ONE_OWNER]);
}

/// H-15: a lazy owner relies on the lock only as long as it knows that no client has asked.
#[test]
fn an_owner_that_does_not_look_for_requests_is_found() {
    found(Mistake::LookedAway, &[ONE_OWNER]);
}

/// A renewal may be done although its reply was lost.
#[test]
fn an_owner_that_takes_its_own_renewal_for_another_hold_is_found() {
    found(Mistake::RenewalForgotten, &[KEEPS]);
}

/// The claims by name, so that a typing error cannot leave one unchecked.
#[test]
fn every_world_asks_every_claim() {
    for world in worlds() {
        let asked: Vec<_> = world.properties().into_iter().map(|property| property.name).collect();
        for claim in [ONE_OWNER, BELIEVES, KEEPS, GETS_IN, SETTLES, referee::OWNER_REPLACED, referee::FORGED] {
            assert!(asked.contains(&claim), "{claim}");
        }
    }
}
