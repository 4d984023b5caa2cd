//! Contenders of classes: the holder marker, and what a look at the queue shows of its owner.

use super::*;
use crate::Class;

const MARKER: Inspection = Inspection { czxid: Zxid(8), version: 3, ..SEEN };

/// A contender of this class.
fn of(class: Class) -> Contender {
    Contender::new(Discipline::Classes, NodeFormat::Contentserv, Mode::Class(class), ID, SessionId(1))
}

/// The node of another contender of this class, with this number.
fn node(class: Class, number: usize) -> String {
    let prefix = NodeFormat::Contentserv.prefix(Mode::Class(class), AttemptId::new(2)).unwrap();
    format!("{prefix}{number:010}")
}

fn inspect(name: &str) -> Option<Command> {
    Some(Command::Inspect { name: name.to_owned() })
}

#[test]
fn a_waiter_enters_again_only_with_another_class() {
    for (class, enters_again) in [(Class::BACKGROUND, false), (Class::FOREGROUND, true)] {
        let mut waiter = of(Class::BACKGROUND);
        let first = node(Class::FOREGROUND, 1);
        let own = enters(&mut waiter, &[&first]);
        waiter.handle(Event::Ask(crate::Ask::Reclassify(class)));
        let expected = if enters_again { inspect(&own) } else { watch(&first, WatchKind::Blocker) };
        assert_eq!(waiter.next_command(), expected, "its node is read before it is deleted");
        if enters_again {
            waiter.handle(Event::Inspected(Ok(SEEN)));
            let delete = Command::Delete { name: own.clone(), version: Some(0), holder_marker: None, write: None };
            assert_eq!(waiter.next_command(), Some(delete));
            let mut doubtful = waiter.clone();
            waiter.handle(Event::Deleted(Ok(())));
            assert!(matches!(waiter.next_command(), Some(Command::Enter { .. })));
            doubtful.handle(Event::Deleted(Err(Failure::ConnectionLoss)));
            assert_eq!(doubtful.next_command(), Some(Command::Recover));
            doubtful.handle(Event::Listed(Ok(Listing::of(vec![first, own.clone()]))));
            assert_eq!(doubtful.next_command(), inspect(&own), "the listing shows it");
        }
    }
}

/// A holder that has existed for a while: its node, and the name of its holder marker. Both are watched.
fn watched_holder() -> (Contender, String, String) {
    let (mut holder, own, marker) = holds_a_marker();
    holder.handle(Event::OwnWatchDue);
    assert_eq!(holder.next_command(), watch(&own, WatchKind::Own));
    holder.handle(Event::Watched(Ok(SEEN)));
    assert_eq!(holder.next_command(), watch(&marker, WatchKind::Own));
    holder.handle(Event::Watched(Ok(MARKER)));
    assert_eq!(holder.next_command(), None);
    (holder, own, marker)
}

#[test]
fn a_holder_marker_is_watched_again_after_each_change() {
    let (mut holder, _, marker) = watched_holder();
    holder.handle(Event::Changed(marker.clone()));
    assert_eq!(holder.next_command(), watch(&marker, WatchKind::Own));
    assert!(holder.holds());
}

#[test]
fn a_holder_whose_marker_is_deleted_leaves() {
    let (mut holder, _, marker) = watched_holder();
    holder.handle(Event::Gone(marker));
    assert_eq!((holder.holds(), holder.leaves_for()), (false, Some(End::Removed)));
}

/// A waiter watched the marker of the holder before, and then took the marker itself. The report about the earlier node may come
/// after that.
#[test]
fn the_end_of_an_earlier_holders_marker_does_not_end_the_own_hold() {
    let name = Discipline::Classes.holder_marker().unwrap();
    let mut waiter = of(Class::FOREGROUND);
    let own = enters(&mut waiter, &[name]);
    assert_eq!(waiter.next_command(), watch(name, WatchKind::Blocker));
    waiter.handle(Event::Watched(Ok(Inspection { owner: SessionId(2), czxid: Zxid(6), ..MARKER })));
    // It lists for another reason before it hears of that marker's end.
    waiter.view.listing_due = true;
    assert!(matches!(waiter.next_command(), Some(Command::List { .. })));
    waiter.handle(Event::Listed(Ok(Listing::of(vec![own]))));
    assert!(matches!(waiter.next_command(), Some(Command::TakeHolderMarker { .. })));
    waiter.handle(Event::HolderMarkerTaken(Ok(MARKER.czxid)));
    assert!(matches!(waiter.next_command(), Some(Command::Grant(_))));
    waiter.handle(Event::Gone(name.to_owned()));
    assert_eq!((waiter.holds(), waiter.leaves_for()), (true, None), "it was the earlier holder's marker");
    // Its own watch tells of its own marker.
    waiter.handle(Event::OwnWatchDue);
    assert!(matches!(waiter.next_command(), Some(Command::Watch { .. })));
    waiter.handle(Event::Watched(Ok(SEEN)));
    assert_eq!(waiter.next_command(), watch(name, WatchKind::Own));
    waiter.handle(Event::Watched(Ok(MARKER)));
    waiter.handle(Event::Gone(name.to_owned()));
    assert_eq!((waiter.holds(), waiter.leaves_for()), (false, Some(End::Removed)));
}

/// Its owner was the first of its class, and it may stand behind a try or a waiter of a higher class. Then the number of contenders ahead
/// does not include it.
#[test]
fn the_first_of_the_queue_is_read_only_if_the_markers_owner_may_be_behind_the_reader() {
    let marker = Discipline::Classes.holder_marker().unwrap();
    let (ahead, behind) = (node(Class::FOREGROUND, 1), node(Class::BACKGROUND, 2));
    let other = Inspection { owner: SessionId(2), ..SEEN };
    let cases: [(&[&str], Option<&Inspection>, usize); 4] = [
        (&[marker, &behind], None, 1),
        (&[marker, &ahead], None, 1),
        (&[marker, &ahead, &behind], Some(&MARKER), 1),
        (&[marker, &ahead, &behind], Some(&other), 2),
    ];
    for (queue, front, expected) in cases {
        let mut attempt = of(Class::FOREGROUND).once();
        enters(&mut attempt, queue);
        assert_eq!(attempt.next_command(), inspect(marker), "{queue:?}");
        attempt.handle(Event::Inspected(Ok(MARKER)));
        if let Some(front) = front {
            assert_eq!(attempt.next_command(), inspect(&ahead), "{queue:?}");
            attempt.handle(Event::Inspected(Ok(front.clone())));
        }
        assert_eq!(attempt.leaves_for(), Some(End::Held { ahead: expected }), "{queue:?}");
        let mut waiter = of(Class::FOREGROUND);
        enters(&mut waiter, queue);
        waiter.handle(Event::LooksDue);
        let look = Command::Look { first: marker.to_owned(), front: front.map(|_| ahead.clone()) };
        assert_eq!(waiter.next_command(), Some(look), "{queue:?}");
        waiter.handle(Event::Looked { first: Ok(MARKER), front: front.cloned().map(Box::new) });
        assert_eq!(waiter.ahead(), Some(expected), "{queue:?}");
    }
}

/// A node without a session is no contender. A holder marker and a tombstone block nevertheless: others wait for them.
#[test]
fn a_marker_and_a_tombstone_without_a_session_still_block() {
    let marker = Discipline::Classes.holder_marker().unwrap();
    let mut waiter = of(Class::FOREGROUND);
    enters(&mut waiter, &[marker]);
    waiter.no_contender(&crate::Sessionless { name: marker.to_owned(), czxid: crate::Zxid(1) });
    assert_eq!(waiter.next_command(), watch(marker, WatchKind::Blocker));
    let left = tombstone(2);
    let mut waiter = contender(Mode::Exclusive);
    enters(&mut waiter, &[&left]);
    assert!(matches!(waiter.next_command(), Some(Command::Delay { .. })));
    waiter.no_contender(&crate::Sessionless { name: left.clone(), czxid: crate::Zxid(1) });
    assert_eq!(waiter.next_command(), watch(&left, WatchKind::Blocker));
    let foreign = "lock-0000000000";
    let mut waiter = contender(Mode::Exclusive);
    enters(&mut waiter, &[foreign]);
    for lists in [true, false] {
        waiter.no_contender(&crate::Sessionless { name: foreign.to_owned(), czxid: crate::Zxid(1) });
        let next = waiter.next_command();
        assert_eq!(matches!(next, Some(Command::List { .. })), lists, "once for each such node: {next:?}");
    }
}

/// Another client deleted the holder's node and left the marker, which would block everyone.
#[test]
fn a_marker_without_its_node_is_deleted_once() {
    let (mut holder, own, marker) = watched_holder();
    holder.handle(Event::Gone(own));
    assert_eq!(holder.next_command(), inspect(&marker));
    holder.handle(Event::Inspected(Ok(MARKER)));
    let delete = Command::Delete { name: marker, version: Some(3), holder_marker: None, write: None };
    assert_eq!(holder.next_command(), Some(delete));
    holder.handle(Event::Deleted(Ok(())));
    assert_eq!(holder.next_command(), Some(Command::End(End::Removed)));
}

#[test]
fn a_waiter_watches_the_marker_of_another_once() {
    let name = Discipline::Classes.holder_marker().unwrap();
    let mut waiter = of(Class::FOREGROUND);
    let own = enters(&mut waiter, &[name]);
    assert_eq!(waiter.next_command(), watch(name, WatchKind::Blocker));
    waiter.handle(Event::Watched(Ok(Inspection { owner: SessionId(2), ..MARKER })));
    waiter.handle(Event::OwnWatchDue);
    assert_eq!(waiter.next_command(), watch(&own, WatchKind::Own));
}

#[test]
fn a_marker_whose_create_had_no_reply_is_a_grant_only_if_it_is_ours() {
    let name = Discipline::Classes.holder_marker().unwrap();
    let ours = Inspection { owner: SessionId(1), ..MARKER };
    let cases = [(ours.clone(), true), (Inspection { id: Some(AttemptId::new(2)), ..ours }, false)];
    for (seen, is_ours) in cases {
        let mut waiter = of(Class::FOREGROUND);
        let own = enters(&mut waiter, &[]);
        assert!(matches!(waiter.next_command(), Some(Command::TakeHolderMarker { .. })));
        waiter.handle(Event::HolderMarkerTaken(Err(Failure::ConnectionLoss)));
        assert_eq!(waiter.next_command(), Some(Command::Recover));
        waiter.handle(Event::Listed(Ok(Listing::of(vec![name.to_owned(), own]))));
        assert_eq!(waiter.next_command(), inspect(name));
        waiter.handle(Event::Inspected(Ok(seen)));
        let next = waiter.next_command();
        assert_eq!(matches!(next, Some(Command::Grant(_))), is_ours, "{next:?}");
    }
}
