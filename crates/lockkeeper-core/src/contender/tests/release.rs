//! The records of releases.

use super::*;
use crate::protocol::{Ask, ReleaseSeen, ReleaseWrite};
use crate::{LastRelease, ReleaseRecord};

/// A contender behind two others whose blocker, which transaction 5 created, is deleted.
fn far_back(mut contender: Contender) -> Contender {
    let ahead = match contender.terms.node_format {
        NodeFormat::Numbered => ["0000000001", "0000000002"],
        _ => ["lock-0000000001", "lock-0000000002"],
    };
    enters(&mut contender, &ahead);
    assert_eq!(contender.next_command(), watch(ahead[1], WatchKind::Blocker));
    contender.handle(Event::Watched(Ok(Inspection { czxid: Zxid(5), ..SEEN })));
    // What it reads then shows its own node too.
    assert_eq!(contender.next_command(), None);
    contender.handle(Event::Gone(ahead[1].to_owned()));
    contender
}

#[test]
fn only_a_record_of_the_node_before_grants_without_a_listing() {
    let last = |freed, version| Ok(ReleaseSeen { last: LastRelease { freed, version }, own: Some(Zxid(7)) });
    let record = |version| Some(ReleaseWrite::Record(ReleaseRecord::new(Zxid(7)), version));
    for (read, granted, writes) in [
        (last(Some(Zxid(5)), Some(3)), true, record(3)),
        (last(Some(Zxid(5)), None), true, None),
        (last(Some(Zxid(4)), Some(3)), false, record(3)),
        (last(None, Some(0)), false, record(0)),
        (last(None, None), false, None),
        (Err(Failure::Refused), false, None),
        (Err(Failure::NoNode), false, None),
        (Err(Failure::ConnectionLoss), false, None),
    ] {
        let mut contender = far_back(contender(Mode::Exclusive).with_records_behind(2));
        let own = contender.node().unwrap().to_owned();
        assert_eq!(contender.next_command(), Some(Command::ReadRelease { own }));
        contender.handle(Event::ReleaseRead(read));
        assert_eq!(contender.hold.is_granted(), granted, "{read:?}");
        if !granted {
            assert_eq!(contender.next_command(), Some(Command::List { limit: false, watch: false, beside: false }));
            let own = contender.node().unwrap().to_owned();
            contender.handle(Event::Listed(Ok(Listing::of(vec![own]))));
        }
        assert!(matches!(contender.next_command(), Some(Command::Grant(_))));
        contender.handle(Event::Release { lost: false, writes: false });
        let Some(Command::Delete { write, .. }) = contender.next_command() else { panic!("it deletes its node") };
        assert_eq!(write, writes, "{read:?}");
    }
}

/// Without a watch, only that read shows that an operator deleted the own node, or that its name is used again.
#[test]
fn a_record_grants_nothing_to_a_contender_whose_node_is_deleted() {
    for own in [None, Some(Zxid(8))] {
        for freed in [Some(Zxid(5)), None] {
            let mut contender = far_back(contender(Mode::Exclusive).with_records_behind(2));
            _ = contender.next_command();
            contender.handle(Event::ReleaseRead(Ok(ReleaseSeen { last: LastRelease { freed, version: None }, own })));
            assert_eq!(contender.next_command(), Some(Command::End(End::Removed)), "{own:?}");
        }
    }
}

#[test]
fn a_contender_that_gives_up_or_loses_its_hold_records_no_release() {
    let leaving = |event, granted| {
        let mut contender = far_back(contender(Mode::Exclusive).with_records_behind(2));
        let own = contender.node().unwrap().to_owned();
        assert_eq!(contender.next_command(), Some(Command::ReadRelease { own }));
        let freed = Zxid(if granted { 5 } else { 4 });
        let last = LastRelease { freed: Some(freed), version: Some(3) };
        contender.handle(Event::ReleaseRead(Ok(ReleaseSeen { last, own: Some(Zxid(7)) })));
        _ = contender.next_command();
        contender.handle(event);
        contender.handle(Event::Listed(Err(Failure::ConnectionLoss)));
        match contender.next_command() {
            Some(Command::Delete { write, .. }) => write,
            other => panic!("it deletes its node, not {other:?}"),
        }
    };
    assert_eq!((leaving(Event::Leave, false), leaving(Event::Lost, true)), (None, None));
    assert!(leaving(Event::Release { lost: false, writes: false }, true).is_some());
}

/// The contender behind it must not hold before the write, and the write takes the place of the record.
#[test]
fn a_release_with_a_write_of_its_caller_is_not_passed_on_and_leaves_no_record() {
    let mut with_record = far_back(contender(Mode::Exclusive).with_records_behind(2));
    _ = with_record.next_command();
    let last = LastRelease { freed: Some(Zxid(5)), version: Some(3) };
    with_record.handle(Event::ReleaseRead(Ok(ReleaseSeen { last, own: Some(Zxid(7)) })));
    assert!(matches!(with_record.next_command(), Some(Command::Grant(_))));
    let with_delay = holds(contender(Mode::Exclusive).with_delay(LockDelay::MILLISECOND)).0;
    for mut holder in [with_record, with_delay, holds_a_marker().0] {
        holder.handle(Event::Ask(Ask::WriteAtRelease));
        holder.handle(Event::Release { lost: false, writes: false });
        assert!(!holder.local_state().released);
        let mut next = holder.next_command();
        if let Some(Command::Inspect { .. }) = next {
            holder.handle(Event::Inspected(Ok(Inspection { czxid: Zxid(8), ..SEEN })));
            next = holder.next_command();
        }
        assert!(matches!(next, Some(Command::Delete { write: Some(ReleaseWrite::Callers), .. })), "{next:?}");
    }
}

#[test]
fn no_record_is_read_where_none_is_worth_it_or_none_is_written() {
    let few = far_back(contender(Mode::Exclusive).with_records_behind(3));
    let numbered = NodeFormat::Numbered;
    let beside = Contender::new(Discipline::SharedExclusive, numbered, Mode::Exclusive, ID, SessionId(1));
    let beside = far_back(beside.with_records_behind(2));
    for mut contender in [few, beside] {
        assert_eq!(contender.next_command(), Some(Command::List { limit: false, watch: false, beside: false }));
    }
}
