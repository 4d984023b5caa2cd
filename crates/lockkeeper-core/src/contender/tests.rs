//! Steps of the machine that no exploration of whole worlds covers by name.

use super::*;
use crate::protocol::{Inspection, Listing};

const ID: AttemptId = AttemptId::new(1);

const SEEN: Inspection =
    Inspection { owner: SessionId(1), czxid: Zxid(7), id: Some(ID), version: 0, granted: false, asked: None };

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
    writer.handle(Event::Lingered);
    assert_eq!(writer.next_command(), watch(&own, WatchKind::Own));
    writer.handle(Event::Watched(Ok(SEEN)));
    writer.handle(Event::Ask(crate::Ask::Downgrade));
    let Some(Command::Downgrade { into, .. }) = writer.next_command() else {
        panic!("it was asked to");
    };
    // The server sends the watch event before the reply.
    writer.handle(Event::Gone(own.clone()));
    assert!(writer.holds());
    writer.handle(Event::Downgraded(Ok(Zxid(8))));
    assert_eq!(writer.next_command(), Some(Command::Reads { name: into }));
    assert!(writer.holds());
}

/// N-31: while the refusal is on its way, a read still shows the request that it answers; another request is a new one.
#[test]
fn a_refused_request_is_reported_again_only_if_it_is_another_one() {
    let request = |id: &str| Some(crate::Revocation { id: id.to_owned(), ..crate::Revocation::default() });
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
        holder.handle(Event::Lingered);
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
            contender.handle(Event::Lingered);
        }
        let (own, name) = (format!("{prefix}0000000001"), node(before));
        let arrival = Arrival::Behind { name: name.clone(), ahead: 1 };
        contender.handle(Event::Entered { created: Ok((own.clone(), Zxid(7))), arrival });
        let next = contender.next_command();
        if lists {
            assert_eq!(next, Some(Command::List { limit: false, watch: false }), "{mode:?} behind {before:?}");
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
