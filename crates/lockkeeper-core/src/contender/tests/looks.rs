//! What a contender reads of the queue for its caller's deadline, and of its own nodes.

use super::*;

/// A waiter with the first of its queue two places ahead hears of its end only from a look.
#[test]
fn a_waiter_lists_once_for_its_deadline_and_not_in_a_long_queue() {
    let queue = |ahead: usize| (0..ahead).map(|number| format!("lock-{number:010}")).collect::<Vec<_>>();
    for (ahead, near, lists) in [(2, true, true), (100, true, true), (101, true, false), (2, false, false)] {
        let mut waiter = contender(Mode::Exclusive);
        let Some(Command::Enter { prefix, .. }) = waiter.next_command() else { panic!("it enters first") };
        let own = format!("{prefix}0000000999");
        let names: Vec<_> = queue(ahead).into_iter().chain([own.clone()]).collect();
        let arrival = Arrival::Listed(Listing::of(names.clone()));
        waiter.handle(Event::Entered { created: Ok((own, Zxid(7))), arrival });
        while waiter.next_command().is_some() {
            waiter.handle(Event::Watched(Ok(Inspection { czxid: Zxid(7), ..SEEN })));
        }
        if near {
            waiter.handle(Event::DeadlineNear);
        }
        waiter.handle(Event::Gone(names[0].clone()));
        let place = waiter.place().map(|place| place.ahead);
        assert_eq!(place, Some(ahead), "the place is known until the listing");
        let next = waiter.next_command();
        assert_eq!(matches!(next, Some(Command::List { .. })), lists, "{ahead} ahead: {next:?}");
        if lists {
            waiter.handle(Event::Listed(Ok(Listing::of(names[1..].to_vec()))));
            let first = waiter.place().unwrap().first.clone();
            assert_eq!(first, names[1]);
            while waiter.next_command().is_some() {
                waiter.handle(Event::Watched(Ok(Inspection { czxid: Zxid(7), ..SEEN })));
            }
            waiter.handle(Event::Gone(first));
            // With one ahead, that was the node that it waits for.
            let next = waiter.next_command();
            assert!(next.is_none() || ahead == 2 && matches!(next, Some(Command::Grant(_))), "{next:?}");
        }
    }
}

/// The watch on the holder marker, like that on the own node, makes way for the release.
#[test]
fn a_holder_only_watches_itself_while_it_reads_its_node_or_its_marker() {
    let (mut holder, own) = holds(contender(Mode::Exclusive));
    assert!(!holder.only_watches_itself());
    holder.handle(Event::OwnWatchDue);
    assert_eq!(holder.next_command(), watch(&own, WatchKind::Own));
    assert!(holder.only_watches_itself());
    let (mut holder, _, marker) = holds_a_marker();
    holder.handle(Event::OwnWatchDue);
    let mut watched = Vec::new();
    while let Some(Command::Watch { name, .. }) = holder.next_command() {
        assert!(holder.only_watches_itself(), "{name}");
        holder.handle(Event::Watched(Ok(SEEN)));
        watched.push(name);
    }
    assert!(watched.contains(&marker), "{watched:?}");
    let (mut waiter, _) = second();
    assert!(matches!(waiter.next_command(), Some(Command::Watch { .. })));
    assert!(!waiter.only_watches_itself(), "it watches the node ahead");
}
