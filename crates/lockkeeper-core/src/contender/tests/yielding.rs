//! Holds that make way: what they look for, and what a lost or refused request means.

use super::*;
use crate::{Ask, Class};

/// A holder of the background that makes way, and its node.
fn looks_out(terms: fn(Contender) -> Contender) -> (Contender, String) {
    let mode = Mode::Class(Class::BACKGROUND);
    let mut holder = terms(Contender::new(Discipline::Classes, NodeFormat::Contentserv, mode, ID, SessionId(1)));
    let own = enters(&mut holder, &[]);
    assert!(matches!(holder.next_command(), Some(Command::TakeHolderMarker { .. })));
    holder.handle(Event::HolderMarkerTaken(Ok(Zxid(8))));
    assert!(matches!(holder.next_command(), Some(Command::Grant(_))));
    assert_eq!(holder.next_command(), None, "it looks for no one before it is old enough");
    holder.handle(Event::YieldDue);
    (holder, own)
}

const FIRST: &str = "A-0000000010";

/// The same, and a contender of the foreground waits.
fn contended() -> (Contender, String) {
    contended_by(|contender| contender)
}

fn contended_by(terms: fn(Contender) -> Contender) -> (Contender, String) {
    let (mut holder, own) = looks_out(terms);
    assert_eq!(holder.next_command(), Some(Command::List { limit: false, watch: true, beside: false }));
    holder.handle(Event::Listed(Ok(Listing::of(vec![own.clone(), FIRST.to_owned()]))));
    assert_eq!(holder.next_command(), watch(FIRST, WatchKind::Blocker));
    holder.handle(Event::Watched(Ok(Inspection { owner: SessionId(2), ..SEEN })));
    assert_eq!(holder.next_command(), Some(Command::Contended(true)));
    (holder, own)
}

/// A later contender of its own class is no reason, nor is a node without a session.
#[test]
fn only_a_contender_of_an_earlier_class_is_made_way_for() {
    let (mut holder, own) = looks_out(|contender| contender);
    _ = holder.next_command();
    holder.handle(Event::Listed(Ok(Listing::of(vec![own.clone(), "B-0000000010".to_owned()]))));
    assert_eq!(holder.next_command(), None);
    assert!(holder.watches(""));
    holder.handle(Event::ChildrenChanged);
    _ = holder.next_command();
    let listing = Listing::of(vec![own, FIRST.to_owned()]);
    holder.handle(Event::Listed(Ok(listing.clone())));
    assert_eq!(holder.next_command(), watch(FIRST, WatchKind::Blocker));
    holder.handle(Event::Watched(Ok(Inspection { owner: SessionId::NONE, ..SEEN })));
    assert_eq!(holder.next_command(), Some(Command::List { limit: false, watch: true, beside: false }));
    holder.handle(Event::Listed(Ok(listing)));
    assert_eq!(holder.next_command(), None);
    assert!(holder.watches("") && holder.holds());
}

#[test]
fn a_contender_that_leaves_is_no_reason_any_more() {
    let (mut holder, own) = contended();
    holder.handle(Event::Gone(FIRST.to_owned()));
    assert_eq!(holder.next_command(), Some(Command::List { limit: false, watch: true, beside: false }));
    holder.handle(Event::Listed(Ok(Listing::of(vec![own]))));
    assert_eq!(holder.next_command(), Some(Command::Contended(false)));
    assert_eq!(holder.next_command(), None);
}

/// The hold needs no listing.
#[test]
fn a_refused_listing_ends_the_lookout_and_not_the_hold() {
    let (mut holder, _) = contended();
    holder.handle(Event::Gone(FIRST.to_owned()));
    _ = holder.next_command();
    holder.handle(Event::Listed(Err(Failure::Refused)));
    assert_eq!(holder.next_command(), Some(Command::Contended(false)));
    assert_eq!((holder.next_command(), holder.holds()), (None, true));
}

/// It keeps its node, and the watch that it has serves it as a waiter.
#[test]
fn a_hold_that_makes_way_gives_up_the_marker_and_waits_at_its_place() {
    let (mut holder, own) = contended();
    holder.handle(Event::Ask(Ask::Yield));
    assert!(!holder.holds() && holder.gives_way() && holder.node() == Some(&own));
    let marker = Discipline::Classes.holder_marker().unwrap().to_owned();
    assert_eq!(holder.next_command(), Some(Command::Inspect { name: marker.clone() }));
    holder.handle(Event::Inspected(Ok(Inspection { czxid: Zxid(8), version: 3, ..SEEN })));
    let give_up = Command::GiveUpHolderMarker { own: own.clone(), holder_marker: marker, version: 3 };
    assert_eq!(holder.next_command(), Some(give_up));
    holder.handle(Event::Deleted(Ok(())));
    assert_eq!(holder.next_command(), Some(Command::List { limit: false, watch: false, beside: false }));
    holder.handle(Event::Listed(Ok(Listing::of(vec![own, FIRST.to_owned()]))));
    assert_eq!((holder.next_command(), holder.waits_for()), (None, Some(FIRST)));
}

/// Another client deleted the marker before: near its end, the hold was not exclusive.
#[test]
fn a_marker_that_another_client_deleted_ends_the_attempt() {
    let (mut holder, _) = contended();
    holder.handle(Event::Ask(Ask::Yield));
    _ = holder.next_command();
    holder.handle(Event::Inspected(Err(Failure::NoNode)));
    _ = holder.next_command();
    assert_eq!(holder.leaves_for(), Some(End::Removed));
}

/// Its caller did not want to wait, or for so few only, before it was granted the lock.
#[test]
fn a_hold_that_makes_way_waits_whatever_its_terms_were_before_its_grant() {
    for limit in [|contender: Contender| contender.once(), |contender: Contender| contender.with_max_ahead(0)] {
        let (mut holder, own) = contended_by(limit);
        holder.handle(Event::Ask(Ask::Yield));
        _ = holder.next_command();
        holder.handle(Event::Inspected(Ok(Inspection { czxid: Zxid(8), version: 3, ..SEEN })));
        _ = holder.next_command();
        holder.handle(Event::Deleted(Ok(())));
        _ = holder.next_command();
        holder.handle(Event::Listed(Ok(Listing::of(vec![own, FIRST.to_owned()]))));
        assert_eq!((holder.next_command(), holder.waits_for()), (None, Some(FIRST)));
    }
}
