//! Every interleaving of small worlds: stateright explores the real `Contender` against a model of the znode tree.
//!
//! `tree` models what a server stores of a lock's path. `world` and `client` model the clients, sessions and
//! connections, with everything that can happen to them. `step` carries out the contender's commands, `serve` answers them, and
//! `neighbours` has what the clients of one process tell each other. `claims` states what must always be true, and `witness` what
//! must be seen to happen. `worlds`, `delays`, `dated`, `looks`, `holders` and `yields` list the explored worlds, `mistake` the planted
//! mistakes, and `replays` the defects that were found. `kept` is about the calls of one process that share a hold. Nothing of the protocol is here: a command is
//! carried out as a driver would, and the contender makes every decision. (`plain`, a foreign client, is no contender.)
//!
//! Each world has a small budget of faults. `cargo xtask deep` explores it to its end, and `cargo test` its first states. The seeded
//! mistakes show that the claims can fail: each mistake breaks how one command is carried out, and is found.

#![cfg_attr(not(deep), allow(unused_imports, reason = "some mistakes are planted by `cargo xtask deep` alone"))]

#[path = "model/claims.rs"]
mod claims;
#[path = "model/client.rs"]
mod client;
#[path = "model/dated.rs"]
mod dated;
#[path = "model/delays.rs"]
mod delays;
#[path = "model/holders.rs"]
mod holders;
#[path = "model/kept.rs"]
mod kept;
#[path = "model/locals.rs"]
mod locals;
#[path = "model/looks.rs"]
mod looks;
#[path = "model/mistake.rs"]
mod mistake;
#[path = "model/plain.rs"]
mod plain;
#[path = "model/replays.rs"]
mod replays;
#[path = "model/serve.rs"]
mod serve;
#[path = "model/step.rs"]
mod step;
#[path = "model/tree.rs"]
mod tree;
#[path = "model/witness.rs"]
mod witness;
#[path = "model/world.rs"]
mod world;
#[path = "model/worlds.rs"]
mod worlds;
#[path = "model/yields.rs"]
mod yields;

use std::collections::BTreeSet;
use std::time::Instant;

use claims::{
    EXCLUSION, LATE_ENOUGH, NO_GHOST, NO_HERD, NO_LOST_WAKEUP, NODE_STANDS, NOTHING_LEFT, OWN_NODES, SETTLES,
    SOMEONE_IN, TOLD_TO_YIELD, VERIFIED, WRITES_IN_TIME, WRITTEN,
};
use lockkeeper_core::{Discipline, NodeFormat};
use mistake::Mistake;
use stateright::{Checker, HasDiscoveries, Model, Path};
use witness::Witness::*;
use world::{Action, Budget, State, World};
use worlds::{BACKGROUND, FOREGROUND, NO_FAULT, READ, WRITE, classes_rule, takes, world};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Formats a counterexample, for people to read and to replay.
fn tell(path: Path<State, Action>) -> String {
    let last = path.last_state().clone();
    let steps: Vec<_> = path.into_actions().iter().map(|action| format!("    {action:?}")).collect();
    format!("{}\nleads to {last:#?}", steps.join("\n"))
}

/// Whether worlds are explored to their ends, as `cargo xtask deep` does. Otherwise only the first states of each are
/// explored.
fn is_deep() -> bool {
    std::env::var_os("LOCKKEEPER_DEEP").is_some()
}

/// How many states of a world are explored without LOCKKEEPER_DEEP.
const FEW: usize = 2_000;

/// Explores `world`: every claim holds, and every witness is seen if the world is explored to its end. Returns the
/// number of distinct states.
fn explore(world: World) -> usize {
    let name = world.name;
    let witnesses = world.witnesses.clone();
    let start = Instant::now();
    let builder = world.checker().threads(2);
    let builder = if is_deep() { builder } else { builder.target_state_count(FEW) };
    let checker = builder.spawn_bfs().join();
    let states = checker.unique_state_count();
    let is_whole = is_deep() || checker.state_count() < FEW;
    println!("{states:>8} states, up to {:>2} steps deep, {:.1?}: {name}", checker.max_depth(), start.elapsed());
    let found = checker.discoveries();
    let (seen, broken): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(claim, _)| witnesses.iter().any(|witness| witness.says() == *claim));
    if let Some((claim, path)) = broken.into_iter().next() {
        panic!("in the world {name:?} it is not so that {claim}:\n{}", tell(path));
    }
    for witness in witnesses.into_iter().filter(|_| is_whole) {
        let says = witness.says();
        assert!(seen.iter().any(|(claim, _)| *claim == says), "in the world {name:?} it was never seen that {says}");
    }
    states
}

/// Explores each of the worlds. If they are explored to their ends, all together must have at least this many states.
fn explore_all(worlds: Vec<World>, least: usize) {
    let states: usize = worlds.into_iter().map(explore).sum();
    println!("{states:>8} states in all");
    assert!(!is_deep() || states >= least, "only {states} distinct states were explored");
}

/// T-11, T-12: at every moment there is at most one holder. A waiter behind a contender that leaves is never forgotten,
/// and never granted the lock before its turn. Covers cases 2, 3, 6, 8, 9, 11, 15, 16, 18, 19, 20 and 23, and every
/// mixture of them that a budget allows.
#[test]
fn every_interleaving_of_a_mutex_keeps_the_promises() {
    explore_all(worlds::exclusive(), 1_000_000);
}

/// N-30, T-22: readers hold together and a writer holds alone, each after all contenders that block it. An upgradeable
/// reader becomes the only holder or stays a reader, a writer reads on in its place, and no contender waits for ever.
#[test]
fn every_interleaving_of_readers_and_writers_keeps_the_promises() {
    explore_all(worlds::shared(), 1_000_000);
}

/// Holders never take more permits than there are, and get them in order. No contender waits while there is room for
/// it. A contender configured with another limit is rejected.
#[test]
fn every_interleaving_of_a_semaphore_keeps_the_promises() {
    explore_all(worlds::permits(), 1_000_000);
}

/// C-10, C-11, C-14, C-18..C-21, C-25: one contender holds, by the holder marker. Within a class, contenders take the
/// marker in order, and only a contender that was first while the marker was free takes it. This is also true beside
/// clients that do what Contentserv's document says and no more.
#[test]
fn every_interleaving_of_priority_classes_keeps_the_promises() {
    explore_all(worlds::classes(), 1_000_000);
}

/// A release lets the next contender of the same process hold before the delete is sent. No two hold together, and each
/// gets the lock in its turn, beside contenders of another process.
#[test]
fn every_interleaving_of_neighbours_keeps_the_promises() {
    explore_all(worlds::neighbours(), 1_000_000);
}

/// T-11: a contender with many ahead learns from the record of a release that the contender before it has held, and lists
/// nothing. It holds only if every older contender has ended.
#[test]
fn every_interleaving_with_records_of_releases_keeps_the_promises() {
    explore_all(worlds::recorded(), 1_000_000);
}

/// A try gets the lock or leaves, and leaves nothing behind. A node without a session blocks no contender for ever.
#[test]
fn every_interleaving_with_tries_and_persistent_nodes_keeps_the_promises() {
    let states: usize = worlds::refused().into_iter().map(explore).sum();
    println!("{states:>8} states in all");
}

/// After a loss, no other contender that conflicts with the lost hold gets the lock before the delay is over. After a
/// release, the next contender gets the lock immediately, and nothing stays behind.
#[test]
fn case_34_every_interleaving_with_delays_keeps_the_promises() {
    explore_all(delays::delayed(), 500_000);
}

/// A holder that was granted the lock late writes that into its record. The write loses no request to release and disturbs no
/// release, and each contender behind it gets the lock in its turn.
#[test]
fn every_interleaving_of_holders_that_say_when_they_were_granted_the_lock_keeps_the_promises() {
    let states: usize = dated::dated().into_iter().map(explore).sum();
    println!("{states:>8} states in all");
}

/// A waiter whose deadline is near looks again who holds the lock. That grants the lock to no contender out of its turn, and
/// disturbs no wait.
#[test]
fn every_interleaving_of_waiters_that_look_again_keeps_the_promises() {
    let states: usize = looks::looking().into_iter().map(explore).sum();
    println!("{states:>8} states in all");
}

/// A holder that wants a proof of its hold learns whether the leader has its nodes. What a caller binds to its release is written with
/// the release, before another contender holds.
#[test]
fn every_interleaving_of_holders_that_want_proofs_or_write_with_their_releases_keeps_the_promises() {
    let states: usize = holders::holders().into_iter().map(explore).sum();
    println!("{states:>8} states in all");
}

/// A hold that makes way does so for each contender of an earlier class, also for a foreign client, and then continues ahead of all
/// others of its class. Neither class is starved: the earlier one gets the lock, and a hold makes way at most once for each contender.
#[test]
fn every_interleaving_of_holds_that_make_way_keeps_the_promises() {
    let states: usize = yields::yielding().into_iter().map(explore).sum();
    println!("{states:>8} states in all");
}

/// Explores a world with a mistake in it until the mistake violates each of `claims`. Without the mistake, no claim
/// fails.
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

/// Makes a test of each mistake: its name, the mistake, the claims that it violates, and a world in which it does. Those that take
/// longest to find are for `cargo xtask deep`.
macro_rules! mistakes {
    ($($(#[$doc:meta])* $name:ident: $mistake:ident breaks [$($claim:ident),+] in $world:expr;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            is_found(|| World { mistake: Some(Mistake::$mistake), ..$world }, &[$($claim),+]);
        }
    )+};
}

mistakes! {
    /// A second node is created although the first exists. The contender finds and deletes such a stray while it waits.
    /// Without the ordered write it cannot know, when it leaves, that there is no stray.
    seeded_mistake_recovery_without_an_ordered_write_is_found: NoOrderedWrite breaks [NOTHING_LEFT, NO_GHOST]
        in World { budget: Budget { cuts: 1, cancels: 1, ..NO_FAULT }, witnesses: vec![StrayDeleted],
            ..World::new("recovery without an ordered write", 2) };
    seeded_mistake_unprotected_create_is_found: Unprotected breaks [SOMEONE_IN, NO_GHOST]
        in World { budget: Budget { cuts: 1, ..NO_FAULT }, ..World::new("unprotected create", 2) };
    seeded_mistake_listing_before_create_is_found: ListBeforeCreate breaks [EXCLUSION]
        in World { lag: 0, ..World::new("listing before create", 2) };
    /// Correct, but expensive: each deletion wakes every waiter.
    seeded_mistake_watching_the_first_is_found: WatchTheFirst breaks [NO_HERD]
        in World { lag: 0, ..World::new("watch on the first", 3) };
    seeded_mistake_watching_the_wrong_node_is_found: WatchTheNextYounger breaks [NO_LOST_WAKEUP, SOMEONE_IN, SETTLES]
        in World { lag: 0, ..World::new("watch on the next younger", 3) };
    /// Curator's `setMaxLeases` makes this mistake: another holder leaves first, and no watch fires.
    seeded_mistake_watching_one_place_for_permits_is_found: WatchOnePlace breaks [NO_LOST_WAKEUP]
        in World { lag: 0, ..world("watch on one place", Discipline::Permits { permits: 2 }, &[takes(1); 3]) };
    seeded_mistake_no_announcement_is_found: NoAnnouncement breaks [NO_LOST_WAKEUP]
        in World { lag: 0,
            ..world("no announcement", Discipline::Permits { permits: 2 }, &[takes(2), takes(1), takes(1)]) };
    seeded_mistake_classes_without_a_holder_marker_are_found: NoHolderMarker breaks [EXCLUSION]
        in World { lag: 0, ..world("no holder marker", classes_rule(), &[BACKGROUND, FOREGROUND]) };
    /// Without a real read of the holder marker, a release whose reply was lost deletes the next holder's marker.
    #[cfg(deep)]
    seeded_mistake_deleting_the_holder_marker_by_name_is_found: HolderMarkerByName breaks [OWN_NODES, EXCLUSION]
        in World { budget: Budget { cuts: 1, ..NO_FAULT }, lag: 0,
            ..world("holder marker deleted by name", classes_rule(), &[BACKGROUND, BACKGROUND, FOREGROUND]) };
    seeded_mistake_granting_behind_a_writer_that_reads_on_is_found: WritersLookExclusive breaks [EXCLUSION]
        in World { budget: Budget { downgrades: 1, ..NO_FAULT }, lag: 0,
            ..world("a writer that reads on, taken for one that has left", Discipline::SharedExclusive, &[WRITE; 2]) };
    /// A waiter takes the deletion of the node ahead of it for its turn.
    seeded_mistake_a_delay_that_names_do_not_contain_is_found: DelayNotInNames breaks [LATE_ENOUGH]
        in World { budget: Budget { crashes: 1, ..NO_FAULT }, lag: 0,
            ..delays::two_delayed("a delay that names do not contain") };
    seeded_mistake_a_listing_without_tombstones_is_found: TombstonesUnseen breaks [LATE_ENOUGH]
        in World { budget: Budget { crashes: 1, ..NO_FAULT }, lag: 0, ..delays::two_delayed("tombstones unseen") };
    /// The caller has not released: its work may not know of the loss yet.
    seeded_mistake_a_loss_that_looks_like_leaving_is_found: LossLooksLikeLeaving breaks [LATE_ENOUGH]
        in World { budget: Budget { cuts: 1, missed_deadlines: 1, ..NO_FAULT }, lag: 0,
            ..delays::two_delayed("a loss that looks like leaving") };
    /// Its session may be over.
    #[cfg(deep)]
    seeded_mistake_a_neighbour_without_a_connection_is_found: HearsWithoutConnection breaks [NODE_STANDS]
        in World { neighbours: 2, budget: Budget { cuts: 1, missed_deadlines: 1, ..NO_FAULT }, lag: 0,
            ..World::new("a neighbour without a connection", 3) };
    /// It gives up its wait, and the one behind it waits for ever.
    seeded_mistake_a_neighbours_end_unheard_is_found: EndsUnheard breaks [NO_LOST_WAKEUP, SOMEONE_IN]
        in World { neighbours: 2, budget: Budget { cancels: 1, ..NO_FAULT }, lag: 0,
            ..World::new("the end of a neighbour unheard", 3) };
    /// A contender of another process is between the two.
    #[cfg(deep)]
    seeded_mistake_a_place_behind_any_neighbour_is_found: BehindAnyNumber breaks [EXCLUSION]
        in World { neighbours: 2, linger: true, lag: 0, ..World::new("behind any neighbour", 3) };
    /// Its node was deleted, the parent was created again, and numbers began again: another node may be between the two.
    #[cfg(deep)]
    seeded_mistake_a_place_behind_a_node_that_no_one_watched_is_found: SaysItWatched breaks [EXCLUSION]
        in World { neighbours: 2, budget: Budget { removals: 1, reaps: 1, ..NO_FAULT }, linger: true, lag: 0,
            ..World::new("behind a node that no one watched", 3) };
    /// A waiter that gave up is taken for a holder.
    seeded_mistake_a_record_of_each_end_is_found: RecordsEachEnd breaks [EXCLUSION]
        in World { records_behind: 1, budget: Budget { cancels: 1, ..NO_FAULT }, lag: 0,
            ..World::new("a record of each end", 4) };
    /// The same, by the contender behind it.
    seeded_mistake_any_record_that_counts_is_found: AnyRecordCounts breaks [EXCLUSION]
        in World { records_behind: 1, budget: Budget { cancels: 1, ..NO_FAULT }, lag: 0,
            ..World::new("any record counts", 4) };
    /// An operator deleted the node of the waiter, which the record before it then lets hold.
    #[cfg(deep)]
    seeded_mistake_a_record_read_without_the_own_node_is_found: OwnNodeUnread breaks [NODE_STANDS]
        in World { records_behind: 1, budget: Budget { removals: 1, ..NO_FAULT }, lag: 0,
            ..World::new("a record read without the own node", 4) };
    /// Other readers may still hold.
    seeded_mistake_a_reader_that_passes_the_lock_on_is_found: AllPassOn breaks [EXCLUSION]
        in World { neighbours: 3, lag: 0,
            ..world("a reader passes the lock on", Discipline::SharedExclusive, &[READ, READ, WRITE]) };
    /// The next holder works with a greater token when the write takes effect.
    seeded_mistake_passing_the_lock_on_before_a_write_is_found: AllPassOn breaks [WRITES_IN_TIME]
        in World { neighbours: 2, budget: Budget { writes: 1, ..NO_FAULT }, lag: 0,
            ..World::new("the lock passed on before a write", 2) };
    /// The next holder reads the node as it was before.
    seeded_mistake_passing_the_lock_on_before_the_write_of_a_release_is_found: AllPassOn breaks [WRITES_IN_TIME]
        in World { neighbours: 2, budget: Budget { release_writes: 1, ..NO_FAULT }, lag: 0,
            witnesses: vec![WroteAtRelease], ..World::new("the lock passed on before the write of a release", 2) };
    seeded_mistake_a_release_without_its_write_is_found: ReleaseWriteUnsaid breaks [WRITTEN]
        in World { budget: Budget { release_writes: 1, ..NO_FAULT }, lag: 0,
            ..World::new("a release without its write", 2) };
    /// The holder's server does not know yet that an operator deleted the node.
    seeded_mistake_a_proof_by_a_read_is_found: CheckUnordered breaks [VERIFIED]
        in World { budget: Budget { proofs: 1, removals: 1, ..NO_FAULT }, lag: 1, witnesses: vec![Proved, Disproved],
            ..World::new("a proof by a read", 2) };
    /// It is the node that the waiter waits for.
    seeded_mistake_a_look_that_finds_nothing_is_found: LookFindsNothing breaks [EXCLUSION]
        in World { budget: Budget { looks: 1, ..NO_FAULT }, linger: true, lag: 0,
            ..World::new("a look that finds nothing", 2) };
    /// The foreground waits for the whole of the hold.
    seeded_mistake_a_newcomer_that_the_holder_does_not_hear_of_is_found: NewcomersUnheard breaks [TOLD_TO_YIELD]
        in World { budget: Budget { yields: 1, ..NO_FAULT }, lag: 0,
            ..world("a newcomer that the holder does not hear of", classes_rule(), &[yields::YIELDS, FOREGROUND]) };
    /// The delete is repeated, and the foreground holds by then.
    #[cfg(deep)]
    seeded_mistake_making_way_by_the_name_of_the_holder_marker_is_found: HolderMarkerByName breaks [OWN_NODES, EXCLUSION]
        in World { budget: Budget { yields: 1, cuts: 1, ..NO_FAULT }, lag: 0,
            ..world("making way by the name of the marker", classes_rule(), &[yields::YIELDS, FOREGROUND, FOREGROUND]) };
    /// Case 20.
    #[cfg(deep)]
    seeded_mistake_deleting_by_name_is_found: DeleteByName breaks [OWN_NODES, EXCLUSION]
        in World { node_format: NodeFormat::Recipe, budget: Budget { cuts: 1, reaps: 1, ..NO_FAULT }, lag: 0,
            ..World::new("delete by name", 3) };
    /// Cases 2 and 3.
    #[cfg(deep)]
    seeded_mistake_adopting_a_node_of_another_session_is_found: AdoptForeign breaks [EXCLUSION]
        in World { budget: Budget { cuts: 2, closes: 1, returns: 1, ..NO_FAULT }, lag: 0,
            witnesses: vec![OldNodeBesideTheReturned],
            ..World::new("adoption without a look at the session", 2) };
}
