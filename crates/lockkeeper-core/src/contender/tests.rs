//! Steps of the machine that no exploration of whole worlds covers by name.

mod beside;
mod classes;
mod looks;
mod proof;
mod release;
mod sessionless;
mod yielding;

use super::*;
use crate::protocol::{Inspection, Listing, PathMade};

const ID: AttemptId = AttemptId::new(1);

const SEEN: Inspection =
    Inspection { owner: SessionId(1), czxid: Zxid(7), id: Some(ID), version: 0, granted: false, asked: None };

fn contender(mode: Mode) -> Contender {
    Contender::new(Discipline::SharedExclusive, NodeFormat::Curator, mode, ID, SessionId(1))
}

/// Enters the queue behind these nodes; returns the own node.
fn enters(contender: &mut Contender, ahead: &[&str]) -> String {
    let Some(Command::Enter { prefix, .. }) = contender.next_command() else {
        panic!("it enters first");
    };
    let own = format!("{prefix}0000000009");
    let listing = ahead.iter().map(|name| (*name).to_owned()).chain([own.clone()]).collect();
    contender
        .handle(Event::Entered { created: Ok((own.clone(), Zxid(7))), arrival: Arrival::Listed(Listing::of(listing)) });
    own
}

/// A contender that holds the lock, and its node.
fn holds(mut contender: Contender) -> (Contender, String) {
    let own = enters(&mut contender, &[]);
    let mut next = contender.next_command();
    if let Some(Command::Tombstone { .. }) = next {
        contender.handle(Event::TombstoneMade(Ok(())));
        next = contender.next_command();
    }
    assert!(matches!(next, Some(Command::Grant(_))), "{next:?}");
    (contender, own)
}

/// A contender whose node is the second of the queue.
fn second() -> (Contender, String) {
    let mut contender =
        Contender::new(Discipline::SharedExclusive, NodeFormat::Curator, Mode::Exclusive, ID, SessionId(1));
    let Some(Command::Enter { prefix, .. }) = contender.next_command() else {
        panic!("it enters first");
    };
    let own = format!("{prefix}0000000001");
    let listing = vec!["lock-0000000000".to_owned(), own.clone()];
    contender
        .handle(Event::Entered { created: Ok((own.clone(), Zxid(7))), arrival: Arrival::Listed(Listing::of(listing)) });
    (contender, own)
}

/// The reply to its create was lost, and a node with its id exists, in a listing that may be older than the session.
#[test]
fn case_03_a_node_with_our_id_is_adopted_only_if_this_session_made_it() {
    for (owner, adopted) in [(SessionId(1), true), (SessionId(2), false)] {
        let mut contender =
            Contender::new(Discipline::SharedExclusive, NodeFormat::Curator, Mode::Exclusive, ID, SessionId(1));
        let Some(Command::Enter { prefix, .. }) = contender.next_command() else {
            panic!("it enters first");
        };
        contender.handle(Event::Entered { created: Err(Failure::ConnectionLoss), arrival: Arrival::Unknown });
        assert_eq!(contender.next_command(), Some(Command::Recover));
        let name = format!("{prefix}0000000001");
        contender.handle(Event::Listed(Ok(Listing::of(vec![name.clone()]))));
        assert_eq!(contender.next_command(), Some(Command::Inspect { name: name.clone() }));
        contender.handle(Event::Inspected(Ok(Inspection { owner, ..SEEN })));
        assert_eq!(contender.node(), adopted.then_some(name.as_str()));
        let next = contender.next_command();
        assert_eq!(matches!(next, Some(Command::Enter { .. })), !adopted, "{next:?}");
    }
}

/// A contender with more contenders ahead than it allows leaves; its driver reports the number that it asks for here.
#[test]
fn a_contender_leaves_a_queue_that_is_longer_than_it_allows() {
    for (most, leaves) in [(1, false), (0, true)] {
        let mut contender =
            Contender::new(Discipline::SharedExclusive, NodeFormat::Curator, Mode::Exclusive, ID, SessionId(1))
                .with_max_ahead(most);
        assert_eq!(contender.max_ahead(), most);
        let Some(Command::Enter { prefix, .. }) = contender.next_command() else {
            panic!("it enters first");
        };
        let own = format!("{prefix}0000000001");
        let arrival = Arrival::Listed(Listing::of(vec!["lock-0000000000".to_owned(), own.clone()]));
        contender.handle(Event::Entered { created: Ok((own, Zxid(7))), arrival });
        assert_eq!(contender.leaves_for(), leaves.then_some(End::TooManyAhead { ahead: 1 }));
    }
}

fn watch(name: &str, kind: WatchKind) -> Option<Command> {
    Some(Command::Watch { name: name.to_owned(), kind })
}

/// An operator deletes a waiter's node, then the holder leaves: the waiter must not take that for its grant.
#[test]
fn case_42_a_deleted_waiter_is_not_granted_by_its_blockers_going() {
    let (mut waiter, own) = second();
    assert_eq!(waiter.next_command(), watch("lock-0000000000", WatchKind::Blocker));
    waiter.handle(Event::Watched(Err(Failure::NoNode)));
    assert_eq!(waiter.next_command(), watch(&own, WatchKind::Own), "does my node still stand?");
    waiter.handle(Event::Watched(Err(Failure::NoNode)));
    assert_eq!(waiter.next_command(), Some(Command::End(End::Removed)));
}

#[test]
fn a_waiter_is_granted_by_its_blockers_going_without_another_listing() {
    let (mut waiter, own) = second();
    assert_eq!(waiter.next_command(), watch("lock-0000000000", WatchKind::Blocker));
    waiter.handle(Event::Watched(Ok(SEEN)));
    assert_eq!(waiter.next_command(), watch(&own, WatchKind::Own));
    waiter.handle(Event::Watched(Ok(SEEN)));
    assert_eq!(waiter.next_command(), None, "it waits");
    waiter.handle(Event::Gone("lock-0000000000".to_owned()));
    let token = FencingToken::from_zxid(Zxid(7));
    assert_eq!(waiter.next_command(), Some(Command::Grant(Grant { name: own, token })));
    assert!(waiter.holds());
}

#[test]
fn the_going_of_its_own_node_by_its_own_downgrade_is_no_removal() {
    let mut writer = Contender::new(Discipline::SharedExclusive, NodeFormat::Curator, Mode::Write, ID, SessionId(1));
    let Some(Command::Enter { prefix, .. }) = writer.next_command() else {
        panic!("it enters first");
    };
    let own = format!("{prefix}0000000001");
    let listing = vec![own.clone()];
    writer
        .handle(Event::Entered { created: Ok((own.clone(), Zxid(7))), arrival: Arrival::Listed(Listing::of(listing)) });
    assert!(matches!(writer.next_command(), Some(Command::Grant(_))));
    writer.handle(Event::OwnWatchDue);
    assert_eq!(writer.next_command(), watch(&own, WatchKind::Own));
    writer.handle(Event::Watched(Ok(SEEN)));
    writer.handle(Event::Ask(crate::Ask::Downgrade));
    let Some(Command::Downgrade { into, .. }) = writer.next_command() else {
        panic!("it was asked to");
    };
    // The server sends the watch event before the reply.
    writer.handle(Event::Gone(own.clone()));
    assert!(writer.holds());
    let reader = NodeFormat::Curator.prefix(Mode::Read, ID).unwrap();
    assert_eq!(into, format!("{reader}0000000001"), "in the same place of the queue");
    writer.handle(Event::Downgraded(Ok(Zxid(8))));
    assert_eq!(writer.next_command(), Some(Command::Reads { name: into }));
    assert!(writer.holds());
}

/// N-31: while the refusal is on its way, a read still shows the request that it answers; another request is a new one.
#[test]
fn a_refused_request_is_reported_again_only_if_it_is_another_one() {
    let request = |id: &str| Some(Box::new(crate::Revocation { id: id.to_owned(), ..crate::Revocation::default() }));
    for (next, reported) in [("first", false), ("second", true)] {
        let mut holder =
            Contender::new(Discipline::SharedExclusive, NodeFormat::Curator, Mode::Exclusive, ID, SessionId(1));
        let Some(Command::Enter { prefix, .. }) = holder.next_command() else {
            panic!("it enters first");
        };
        let own = format!("{prefix}0000000001");
        let listing = vec![own.clone()];
        holder.handle(Event::Entered {
            created: Ok((own.clone(), Zxid(7))),
            arrival: Arrival::Listed(Listing::of(listing)),
        });
        assert!(matches!(holder.next_command(), Some(Command::Grant(_))));
        holder.handle(Event::OwnWatchDue);
        assert_eq!(holder.next_command(), watch(&own, WatchKind::Own));
        holder.handle(Event::Watched(Ok(Inspection { asked: request("first"), ..SEEN })));
        assert_eq!(holder.next_command(), Some(Command::Revoke));
        holder.handle(Event::Refuse("busy".to_owned()));
        let Some(Command::WriteRecord { revocation: Some(answer), .. }) = holder.next_command() else {
            panic!("the refusal is due");
        };
        assert_eq!(answer.refused.as_deref(), Some("busy"));
        holder.handle(Event::RecordWritten(Err(Failure::BadVersion)));
        assert_eq!(holder.next_command(), watch(&own, WatchKind::Own));
        holder.handle(Event::Watched(Ok(Inspection { asked: request(next), version: 1, ..SEEN })));
        assert_eq!(holder.next_command() == Some(Command::Revoke), reported, "{next}");
    }
}

/// A listing shows what the numbers do not: a writer before both readers, and other ways of locking the path.
#[test]
fn a_contender_behind_one_of_its_session_lists_if_both_read_or_it_is_100_ms_old() {
    let node = |mode| format!("{}0000000000", NodeFormat::Curator.prefix(mode, AttemptId::new(2)).unwrap());
    let cases = [
        (Mode::Write, Mode::Read, false, false),
        (Mode::Read, Mode::Write, false, false),
        (Mode::Exclusive, Mode::Exclusive, false, false),
        (Mode::Exclusive, Mode::Exclusive, true, true),
        (Mode::Read, Mode::Read, false, true),
    ];
    for (mode, before, is_old, lists) in cases {
        let mut contender = Contender::new(Discipline::SharedExclusive, NodeFormat::Curator, mode, ID, SessionId(1));
        let Some(Command::Enter { prefix, alone: true, .. }) = contender.next_command() else {
            panic!("it enters first, and need not list");
        };
        if is_old {
            contender.handle(Event::OwnWatchDue);
        }
        let (own, name) = (format!("{prefix}0000000001"), node(before));
        let arrival = Arrival::AfterLocal { name: name.clone(), place: None };
        contender.handle(Event::Entered { created: Ok((own.clone(), Zxid(7))), arrival });
        let next = contender.next_command();
        if lists {
            assert_eq!(
                next,
                Some(Command::List { limit: false, watch: false, beside: false }),
                "{mode:?} behind {before:?}"
            );
            continue;
        }
        assert_eq!(next, watch(&own, WatchKind::Own), "{mode:?} behind {before:?}");
        contender.handle(Event::Watched(Ok(SEEN)));
        contender.handle(Event::Released { name: name.clone(), watched: false });
        assert_eq!(contender.next_command(), None, "that node may have been deleted before");
        contender.handle(Event::Released { name, watched: true });
        assert!(matches!(contender.next_command(), Some(Command::Grant(_))), "{mode:?} behind {before:?}");
    }
}

/// A name without an id may be another contender's, if the parent was created again.
#[test]
fn a_node_of_the_own_name_and_another_create_is_not_the_own() {
    let (mut waiter, own) = second();
    assert_eq!(waiter.next_command(), watch("lock-0000000000", WatchKind::Blocker));
    waiter.handle(Event::Watched(Ok(SEEN)));
    assert_eq!(waiter.next_command(), watch(&own, WatchKind::Own));
    waiter.handle(Event::Watched(Ok(Inspection { czxid: Zxid(8), ..SEEN })));
    assert_eq!(waiter.next_command(), Some(Command::End(End::Removed)));
}

/// Whether the next contender of its session may hold once it has released.
fn passes_on(mut holder: Contender, lost: bool, writes: bool) -> bool {
    holder.handle(Event::Release { lost, writes });
    holder.local_state().released
}

/// The next task of the process may hold before the node is deleted, because every older contender has ended.
#[test]
fn only_a_hold_that_excludes_all_others_is_passed_on() {
    for mode in [Mode::Exclusive, Mode::Write] {
        let (holder, _) = holds(contender(mode));
        assert!(holder.is_alone() && !holder.local_state().released);
        let passed_on = [(false, false), (true, false), (false, true)]
            .map(|(lost, writes)| passes_on(holder.clone(), lost, writes));
        assert_eq!(passed_on, [true, false, false], "others may hold after a loss, and a write may still take effect");
    }
    let (reader, _) = holds(contender(Mode::Read));
    assert_eq!((reader.is_alone(), passes_on(reader, false, false)), (false, false), "other readers may hold");
    let upgradeable = Contender::upgradeable(NodeFormat::Curator, ID, SessionId(1));
    let (upgradeable, _) = holds(upgradeable);
    assert_eq!((upgradeable.is_alone(), passes_on(upgradeable, false, false)), (false, false), "readers may hold");
    let (delayed, _) = holds(contender(Mode::Exclusive).with_delay(crate::LockDelay::MILLISECOND));
    assert_eq!((delayed.is_alone(), passes_on(delayed, false, false)), (true, false), "its tombstone is deleted first");
    let (mut downgrading, _) = holds(contender(Mode::Write));
    downgrading.handle(Event::Ask(crate::Ask::Downgrade));
    assert_eq!((downgrading.is_alone(), passes_on(downgrading, false, false)), (false, false), "readers may hold soon");
    let (waiter, _) = second();
    assert_eq!((waiter.is_alone(), passes_on(waiter, false, false)), (false, false));
    let permits =
        Contender::new(Discipline::Permits { permits: 2 }, NodeFormat::Curator, Mode::Permits(2), ID, SessionId(1));
    assert!(!passes_on(permits, false, false));
}

#[test]
fn a_contender_gives_one_command_at_a_time_and_none_after_its_end() {
    let mut waiter = contender(Mode::Exclusive);
    assert!(matches!(waiter.next_command(), Some(Command::Enter { .. })));
    assert_eq!(waiter.next_command(), None, "the reply is awaited");
    waiter.handle(Event::SessionOver);
    assert_eq!(waiter.next_command(), Some(Command::End(End::SessionOver)));
    assert_eq!(waiter.next_command(), None);
}

/// Without its listing it stays unknown which nodes are its own, so it cannot go on.
#[test]
fn a_refused_look_for_its_nodes_ends_an_attempt() {
    for failure in [Failure::Refused, Failure::BadVersion, Failure::NodeExists] {
        let mut doubtful = contender(Mode::Exclusive);
        assert!(doubtful.next_command().is_some());
        doubtful.handle(Event::Entered { created: Err(Failure::ConnectionLoss), arrival: Arrival::Unknown });
        assert_eq!(doubtful.next_command(), Some(Command::Recover));
        doubtful.handle(Event::Listed(Err(failure)));
        assert_eq!(doubtful.next_command(), Some(Command::End(End::Stuck)), "{failure:?}");
    }
}

/// Behind another node of its session, a contender need not list. A try must see the others, and so must a contender that may
/// have a second node.
#[test]
fn a_try_and_a_second_create_list_the_others() {
    let alone = |contender: &mut Contender| match contender.next_command() {
        Some(Command::Enter { alone, .. }) => alone,
        other => panic!("{other:?}"),
    };
    assert!(alone(&mut contender(Mode::Exclusive)));
    assert!(!alone(&mut contender(Mode::Exclusive).once()));
    let mut again = contender(Mode::Exclusive);
    assert!(alone(&mut again));
    again.handle(Event::Entered { created: Err(Failure::ConnectionLoss), arrival: Arrival::Unknown });
    assert_eq!(again.next_command(), Some(Command::Recover));
    again.handle(Event::Listed(Ok(Listing::of(Vec::new()))));
    assert!(!alone(&mut again));
    let permits =
        Contender::new(Discipline::Permits { permits: 2 }, NodeFormat::Curator, Mode::Permits(1), ID, SessionId(1));
    assert!(!alone(&mut permits.clone()), "a sum over all holders decides");
}

/// A tombstone that a contender with this id left.
fn tombstone(id: u128) -> String {
    let delayed = Contender::new(
        Discipline::SharedExclusive,
        NodeFormat::Curator,
        Mode::Exclusive,
        AttemptId::new(id),
        SessionId(2),
    )
    .with_delay(crate::LockDelay::MILLISECOND);
    let mut delayed = delayed;
    enters(&mut delayed, &[]);
    match delayed.next_command() {
        // The server appends the number.
        Some(Command::Tombstone { tombstone, .. }) => tombstone,
        other => panic!("{other:?}"),
    }
}

/// The watch on the children reports the deletion later, or already has.
#[test]
fn a_deleted_tombstone_is_deleted_once() {
    let name = tombstone(2);
    let mut waiter = contender(Mode::Exclusive);
    let own = enters(&mut waiter, &[&name]);
    assert_eq!(
        waiter.next_command(),
        Some(Command::Delay { name: name.clone(), delay: crate::LockDelay::MILLISECOND })
    );
    assert_eq!(waiter.next_command(), watch(&name, WatchKind::Blocker));
    waiter.handle(Event::Watched(Ok(SEEN)));
    waiter.handle(Event::DelayOver(name.clone()));
    assert_eq!(waiter.next_command(), Some(Command::Delete { name, version: None, holder_marker: None, write: None }));
    assert!(!waiter.has_begun_to_delete(), "the tombstone is of another contender");
    waiter.handle(Event::Deleted(Ok(())));
    assert_eq!(
        waiter.next_command(),
        Some(Command::List { limit: false, watch: false, beside: false }),
        "whose turn is it now?"
    );
    waiter.handle(Event::Listed(Ok(Listing::of(vec![own]))));
    assert!(matches!(waiter.next_command(), Some(Command::Grant(_))));
    waiter.handle(Event::Leave);
    assert!(matches!(waiter.next_command(), Some(Command::Delete { .. })));
    assert!(waiter.has_begun_to_delete());
}

#[test]
fn a_delay_is_counted_once() {
    let (older, nearest) = (tombstone(2), tombstone(3));
    let mut waiter = contender(Mode::Exclusive);
    let own = enters(&mut waiter, &[&older, &nearest]);
    let delay = crate::LockDelay::MILLISECOND;
    for name in [&older, &nearest] {
        assert_eq!(waiter.next_command(), Some(Command::Delay { name: name.clone(), delay }));
    }
    let blocker = match waiter.next_command() {
        Some(Command::Watch { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    let other = if blocker == older { nearest } else { older };
    waiter.handle(Event::Watched(Ok(SEEN)));
    waiter.handle(Event::DelayOver(blocker.clone()));
    assert_eq!(
        waiter.next_command(),
        Some(Command::Delete { name: blocker, version: None, holder_marker: None, write: None })
    );
    waiter.handle(Event::Deleted(Ok(())));
    assert_eq!(waiter.next_command(), Some(Command::List { limit: false, watch: false, beside: false }));
    waiter.handle(Event::Listed(Ok(Listing::of(vec![other.clone(), own]))));
    assert_eq!(waiter.next_command(), watch(&other, WatchKind::Blocker), "its delay is being counted");
}

/// Only an upgradeable reader that holds can become the writer.
#[test]
fn an_upgrade_is_for_upgradeable_readers_that_hold() {
    let lists = Some(Command::List { limit: false, watch: false, beside: false });
    let (mut upgradeable, _) = holds(Contender::upgradeable(NodeFormat::Curator, ID, SessionId(1)));
    upgradeable.handle(Event::Ask(crate::Ask::Upgrade));
    assert_eq!(upgradeable.next_command(), lists);
    let (mut reader, _) = holds(contender(Mode::Read));
    reader.handle(Event::Ask(crate::Ask::Upgrade));
    assert_eq!(reader.next_command(), None);
    let mut waiter = Contender::upgradeable(NodeFormat::Curator, ID, SessionId(1));
    let writer = format!("{}0000000000", NodeFormat::Curator.prefix(Mode::Write, AttemptId::new(2)).unwrap());
    enters(&mut waiter, &[&writer]);
    waiter.handle(Event::Ask(crate::Ask::Upgrade));
    assert_eq!(waiter.next_command(), watch(&writer, WatchKind::Blocker), "it waits on as a reader");
}

/// A create whose reply was lost took effect twice. The other node would block this one from the front for ever.
#[test]
fn a_second_node_of_an_attempt_is_deleted() {
    let mut doubtful = contender(Mode::Exclusive);
    let Some(Command::Enter { prefix, .. }) = doubtful.next_command() else {
        panic!("it enters first");
    };
    doubtful.handle(Event::Entered { created: Err(Failure::ConnectionLoss), arrival: Arrival::Unknown });
    assert_eq!(doubtful.next_command(), Some(Command::Recover));
    doubtful.handle(Event::Listed(Ok(Listing::of(Vec::new()))));
    assert!(matches!(doubtful.next_command(), Some(Command::Enter { .. })));
    let (first, own) = (format!("{prefix}0000000001"), format!("{prefix}0000000002"));
    let listing = Listing::of(vec![first.clone(), own.clone()]);
    doubtful.handle(Event::Entered { created: Ok((own, Zxid(9))), arrival: Arrival::Listed(listing) });
    assert_eq!(doubtful.next_command(), Some(Command::Inspect { name: first.clone() }));
    doubtful.handle(Event::Inspected(Ok(SEEN)));
    assert_eq!(
        doubtful.next_command(),
        Some(Command::Delete { name: first, version: None, holder_marker: None, write: None })
    );
}

/// A contender of a class that holds: its node, and the name of its holder marker.
fn holds_a_marker() -> (Contender, String, String) {
    let mut holder = Contender::new(
        Discipline::Classes,
        NodeFormat::Contentserv,
        Mode::Class(crate::Class::FOREGROUND),
        ID,
        SessionId(1),
    );
    let own = enters(&mut holder, &[]);
    let Some(Command::TakeHolderMarker { holder_marker, .. }) = holder.next_command() else {
        panic!("it is the first");
    };
    holder.handle(Event::HolderMarkerTaken(Ok(Zxid(8))));
    assert!(matches!(holder.next_command(), Some(Command::Grant(_))));
    (holder, own, holder_marker)
}

/// The marker of another contender, or of another hold of this session, must not be deleted.
#[test]
fn a_release_deletes_only_its_own_holder_marker() {
    let marker = Inspection { czxid: Zxid(8), version: 3, ..SEEN };
    let cases = [
        (marker.clone(), true),
        (Inspection { czxid: Zxid(9), ..marker.clone() }, false),
        (Inspection { owner: SessionId(2), ..marker.clone() }, false),
    ];
    for (seen, is_ours) in cases {
        let (mut holder, own, name) = holds_a_marker();
        holder.handle(Event::Leave);
        let mut deleted = None;
        for _ in 0..8 {
            match holder.next_command() {
                Some(Command::Inspect { name: asked }) if asked == name => {
                    holder.handle(Event::Inspected(Ok(seen.clone())));
                }
                Some(Command::Inspect { name: asked }) => {
                    assert_eq!(asked, own);
                    holder.handle(Event::Inspected(Ok(SEEN)));
                }
                Some(Command::Delete { name, holder_marker, .. }) => {
                    deleted = Some((name, holder_marker));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(deleted, Some((own, is_ours.then_some((name, 3)))), "{seen:?}");
    }
}

/// Its caller learns that another client deleted a node of the hold before the release, not that the release failed.
#[test]
fn a_marker_that_is_gone_before_the_release_makes_it_late() {
    for (outcome, late) in [(Ok(Inspection { czxid: Zxid(8), ..SEEN }), false), (Err(Failure::NoNode), true)] {
        let (mut holder, own, name) = holds_a_marker();
        holder.handle(Event::Leave);
        let mut end = None;
        for _ in 0..8 {
            match holder.next_command() {
                Some(Command::Inspect { name: asked }) if asked == name => {
                    holder.handle(Event::Inspected(outcome.clone()));
                }
                Some(Command::Inspect { name: asked }) => {
                    assert_eq!(asked, own);
                    holder.handle(Event::Inspected(Ok(SEEN)));
                }
                Some(Command::Delete { .. }) => holder.handle(Event::Deleted(Ok(()))),
                Some(Command::End(reason)) => {
                    end = Some(reason);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(end, Some(if late { End::Removed } else { End::Left }), "{outcome:?}");
    }
}

/// Watches report in order only over one connection. After a disconnect, the grant that a watch showed counts no more; one that a
/// listing showed does.
#[test]
fn a_grant_that_only_a_watch_shows_is_listed_again_after_a_disconnect() {
    let (mut waiter, own) = second();
    assert_eq!(waiter.next_command(), watch("lock-0000000000", WatchKind::Blocker));
    waiter.handle(Event::Watched(Ok(SEEN)));
    assert_eq!(waiter.next_command(), watch(&own, WatchKind::Own));
    waiter.handle(Event::Gone("lock-0000000000".to_owned()));
    waiter.handle(Event::Disconnected);
    waiter.handle(Event::Watched(Err(Failure::ConnectionLoss)));
    assert_eq!(waiter.next_command(), Some(Command::List { limit: false, watch: false, beside: false }));
    let mut first = contender(Mode::Exclusive);
    enters(&mut first, &[]);
    first.handle(Event::Disconnected);
    assert!(matches!(first.next_command(), Some(Command::Grant(_))));
}

#[test]
fn a_contender_makes_its_parent_ten_times_at_most() {
    let mut contender = contender(Mode::Exclusive);
    for made in 0..=10 {
        assert!(matches!(contender.next_command(), Some(Command::Enter { .. })), "{made}");
        contender.handle(Event::Entered { created: Err(Failure::NoNode), arrival: Arrival::Unknown });
        if made < 10 {
            assert!(matches!(contender.next_command(), Some(Command::MakeParent { .. })), "{made}");
            contender.handle(Event::ParentMade(Ok(PathMade::default())));
        }
    }
    assert_eq!(contender.next_command(), Some(Command::End(End::ParentVanishes)));
}

#[test]
fn a_contender_without_parents_makes_none_and_leaves() {
    let mut contender = contender(Mode::Exclusive).without_parents();
    assert!(matches!(contender.next_command(), Some(Command::Enter { .. })));
    contender.handle(Event::Entered { created: Err(Failure::NoNode), arrival: Arrival::Unknown });
    assert_eq!(contender.next_command(), Some(Command::End(End::NoParent)));
}

/// The id is in the name, too. So a foreign client's bare word over the data does not hide whose node it is.
#[test]
fn a_node_with_our_id_in_its_name_is_adopted_whatever_its_data_says() {
    let mut doubtful = contender(Mode::Exclusive);
    let Some(Command::Enter { prefix, .. }) = doubtful.next_command() else {
        panic!("it enters first");
    };
    doubtful.handle(Event::Entered { created: Err(Failure::ConnectionLoss), arrival: Arrival::Unknown });
    assert_eq!(doubtful.next_command(), Some(Command::Recover));
    let name = format!("{prefix}0000000001");
    doubtful.handle(Event::Listed(Ok(Listing::of(vec![name.clone()]))));
    assert_eq!(doubtful.next_command(), Some(Command::Inspect { name: name.clone() }));
    doubtful.handle(Event::Inspected(Ok(Inspection { id: None, ..SEEN })));
    assert_eq!(doubtful.node(), Some(name.as_str()));
}

#[test]
fn a_tombstone_whose_delay_is_over_is_deleted_only_by_those_that_it_blocks() {
    let mut waiter = contender(Mode::Exclusive);
    let behind = [tombstone(2), "lock-0000000001".to_owned()];
    enters(&mut waiter, &[&behind[0], &behind[1]]);
    let delay = crate::LockDelay::MILLISECOND;
    assert_eq!(waiter.next_command(), Some(Command::Delay { name: behind[0].clone(), delay }));
    let next = waiter.next_command();
    assert_eq!(next, watch(&behind[1], WatchKind::Blocker));
    waiter.handle(Event::Watched(Ok(SEEN)));
    waiter.handle(Event::DelayOver(behind[0].clone()));
    assert_eq!(waiter.next_command(), None);
}

/// A waiter that lists again before it is granted the lock learns there that its node exists.
#[test]
fn a_waiter_watches_its_own_node_at_once_only_if_no_listing_follows() {
    let ahead =
        |count: i32| (0..count).map(|number| format!("lock-{}", crate::Sequence::new(number))).collect::<Vec<_>>();
    for (count, at_once) in [(1, true), (2, false)] {
        let mut waiter = contender(Mode::Exclusive);
        let ahead = ahead(count);
        let own = enters(&mut waiter, &ahead.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(waiter.next_command(), watch(&ahead[ahead.len() - 1], WatchKind::Blocker));
        waiter.handle(Event::Watched(Ok(SEEN)));
        let next = waiter.next_command();
        assert_eq!(next, watch(&own, WatchKind::Own).filter(|_| at_once));
        if !at_once {
            waiter.handle(Event::OwnWatchDue);
            assert_eq!(waiter.next_command(), watch(&own, WatchKind::Own));
        }
    }
}

/// Otherwise it would count as a reader from then on.
#[test]
fn a_writer_that_is_told_to_stay_a_reader_waits_for_readers_nevertheless() {
    let reader = format!("{}0000000000", NodeFormat::Curator.prefix(Mode::Read, AttemptId::new(2)).unwrap());
    let mut writer = contender(Mode::Write);
    writer.handle(Event::Ask(crate::Ask::StayReader));
    enters(&mut writer, &[&reader]);
    assert_eq!(writer.next_command(), watch(&reader, WatchKind::Blocker));
}

#[test]
fn a_waiter_names_the_node_whose_end_it_waits_for() {
    let (waiter, _) = second();
    assert_eq!(waiter.waits_for(), Some("lock-0000000000"));
    let (holder, _) = holds(contender(Mode::Exclusive));
    assert_eq!(holder.waits_for(), None);
}

/// A name without an id may be another contender's by then. A listing shows first whether the delete took effect.
#[test]
fn a_delete_whose_reply_was_lost_is_listed_before_it_is_repeated() {
    for (format, lists) in [(NodeFormat::Curator, false), (NodeFormat::Numbered, true)] {
        let holder = Contender::new(Discipline::SharedExclusive, format, Mode::Exclusive, ID, SessionId(1));
        let (mut holder, own) = holds(holder);
        holder.handle(Event::Leave);
        let mut next = holder.next_command();
        if let Some(Command::Inspect { .. }) = next {
            holder.handle(Event::Inspected(Ok(SEEN)));
            next = holder.next_command();
        }
        assert!(matches!(&next, Some(Command::Delete { name, .. }) if *name == own), "{next:?}");
        holder.handle(Event::Deleted(Err(Failure::ConnectionLoss)));
        let then = holder.next_command();
        assert_eq!(then == Some(Command::Recover), lists, "{then:?}");
        assert_eq!(then == next, !lists, "{then:?}");
        if lists {
            let mut again = holder.clone();
            again.handle(Event::Listed(Ok(Listing::of(vec![own.clone()]))));
            assert_eq!(again.next_command(), Some(Command::Inspect { name: own }), "whose is it?");
            holder.handle(Event::Listed(Ok(Listing::of(Vec::new()))));
            assert_eq!(holder.next_command(), Some(Command::End(End::Left)));
        }
    }
}

/// Somebody wrote it over the refusal, so somebody asks again.
#[test]
fn a_request_that_is_read_after_its_refusal_was_written_is_reported_again() {
    let asked = Some(Box::new(crate::Revocation { id: "first".to_owned(), ..crate::Revocation::default() }));
    let (mut holder, own) = holds(contender(Mode::Exclusive));
    holder.handle(Event::OwnWatchDue);
    assert_eq!(holder.next_command(), watch(&own, WatchKind::Own));
    holder.handle(Event::Watched(Ok(Inspection { asked: asked.clone(), ..SEEN })));
    assert_eq!(holder.next_command(), Some(Command::Revoke));
    holder.handle(Event::Refuse("busy".to_owned()));
    assert!(matches!(holder.next_command(), Some(Command::WriteRecord { .. })));
    holder.handle(Event::RecordWritten(Ok(1)));
    holder.handle(Event::Changed(own.clone()));
    assert_eq!(holder.next_command(), watch(&own, WatchKind::Own));
    holder.handle(Event::Watched(Ok(Inspection { asked, version: 2, ..SEEN })));
    assert_eq!(holder.next_command(), Some(Command::Revoke));
}

/// The write goes out behind the grant, and neither a release nor a lost reply is in its way.
#[test]
fn a_holder_writes_once_that_it_was_granted_the_lock_late() {
    let (mut waiter, own) = second();
    for seen in [&*own, "lock-0000000000"] {
        assert!(matches!(waiter.next_command(), Some(Command::Watch { .. })), "{seen}");
        waiter.handle(Event::Watched(Ok(SEEN)));
    }
    waiter.handle(Event::GrantedLate);
    assert_eq!(waiter.next_command(), None, "it waits");
    waiter.handle(Event::Gone("lock-0000000000".to_owned()));
    assert!(matches!(waiter.next_command(), Some(Command::Grant(_))));
    assert_eq!(waiter.next_command(), None, "nothing says that the grant was late");
    let mut left = waiter.clone();
    left.handle(Event::Leave);
    left.handle(Event::GrantedLate);
    assert!(matches!(left.next_command(), Some(Command::Delete { .. })));
    waiter.handle(Event::GrantedLate);
    let write = Command::WriteRecord { name: own.clone(), granted: true, version: 0, revocation: None };
    assert_eq!(waiter.next_command(), Some(write));
    waiter.handle(Event::RecordWritten(Err(Failure::ConnectionLoss)));
    assert_eq!(waiter.next_command(), watch(&own, WatchKind::Own));
    waiter.handle(Event::Watched(Ok(Inspection { version: 1, granted: true, ..SEEN })));
    assert!(matches!(waiter.next_command(), Some(Command::WriteRecord { version: 1, .. })));
    waiter.handle(Event::RecordWritten(Ok(2)));
    assert_eq!(waiter.next_command(), None);
}

/// A `LeaderLatch` behind it listens once, and only to the deletion.
#[test]
fn a_leader_latch_never_writes_its_record_again() {
    let node_format = NodeFormat::LeaderLatch;
    let (mut holder, own) =
        holds(Contender::new(Discipline::SharedExclusive, node_format, Mode::Exclusive, ID, SessionId(1)));
    holder.handle(Event::OwnWatchDue);
    assert_eq!(holder.next_command(), watch(&own, WatchKind::Own));
    let asked = Some(Box::new(crate::Revocation { id: "first".to_owned(), ..crate::Revocation::default() }));
    holder.handle(Event::Watched(Ok(Inspection { asked, id: None, ..SEEN })));
    assert_eq!(holder.next_command(), Some(Command::Revoke));
    holder.handle(Event::GrantedLate);
    holder.handle(Event::Refuse("busy".to_owned()));
    assert_eq!(holder.next_command(), None);
}

#[test]
fn a_downgrade_is_for_writers_that_hold() {
    let (mut exclusive, _) = holds(contender(Mode::Exclusive));
    exclusive.handle(Event::Ask(crate::Ask::Downgrade));
    assert_eq!((exclusive.next_command(), exclusive.is_alone()), (None, true));
    let mut waiter = contender(Mode::Write);
    enters(&mut waiter, &["lock-0000000000"]);
    waiter.handle(Event::Ask(crate::Ask::Downgrade));
    assert_eq!(waiter.next_command(), watch("lock-0000000000", WatchKind::Blocker));
    waiter.handle(Event::Watched(Ok(SEEN)));
    waiter.handle(Event::OwnWatchDue);
    assert!(matches!(waiter.next_command(), Some(Command::Watch { kind: WatchKind::Own, .. })));
    waiter.handle(Event::Watched(Ok(SEEN)));
    waiter.handle(Event::Gone("lock-0000000000".to_owned()));
    assert!(matches!(waiter.next_command(), Some(Command::Grant(_))));
    assert_eq!((waiter.next_command(), waiter.is_alone()), (None, true));
}

/// Waiters behind it wait for its grant, not for a write.
#[test]
fn a_semaphores_contender_writes_nothing_before_its_grant() {
    let permits = |name: &str| format!("{}{name}", NodeFormat::Curator.prefix(Mode::Permits(1), ID).unwrap());
    let other = permits("0000000001").replace(&ID.to_string(), &AttemptId::new(2).to_string());
    let rule = Discipline::Permits { permits: 1 };
    let mut waiter = Contender::new(rule, NodeFormat::Curator, Mode::Permits(1), ID, SessionId(1));
    let own = enters(&mut waiter, &[&other]);
    let shown = Listing { limit: Some(crate::Limit::Permits(1)), ..Listing::of(vec![other, own.clone()]) };
    waiter.handle(Event::OwnWatchDue);
    let mut watched = false;
    for _ in 0..6 {
        match waiter.next_command() {
            Some(Command::List { .. }) => waiter.handle(Event::Listed(Ok(shown.clone()))),
            Some(Command::Watch { name, .. }) => {
                watched |= name == own;
                waiter.handle(Event::Watched(Ok(SEEN)));
            }
            next => assert_eq!(next, None),
        }
    }
    assert!(watched);
}

#[test]
fn a_release_deletes_its_node_and_its_tombstone_together() {
    let cases = [(Ok(()), None), (Err(Failure::NoNode), Some(true)), (Err(Failure::ConnectionLoss), Some(false))];
    for (outcome, alone) in cases {
        let (mut delayed, own) = holds(contender(Mode::Exclusive).with_delay(crate::LockDelay::MILLISECOND));
        delayed.handle(Event::Leave);
        let both = delayed.next_command();
        let Some(Command::Delete { name, holder_marker: Some((_, 0)), .. }) = &both else { panic!("{both:?}") };
        assert_eq!(*name, own);
        delayed.handle(Event::Deleted(outcome));
        let then = match alone {
            None => Some(Command::End(End::Left)),
            Some(false) => both,
            // One of them does not exist.
            Some(true) => Some(Command::Delete { name: own, version: None, holder_marker: None, write: None }),
        };
        assert_eq!(delayed.next_command(), then, "{outcome:?}");
    }
}
