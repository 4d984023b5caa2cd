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
        waiter.handle(if near { Event::DeadlineNear } else { Event::LooksDue });
        assert_eq!(waiter.next_command(), Some(Command::Look { first: names[0].clone(), front: None }));
        waiter.handle(Event::Looked { first: Err(Failure::NoNode), front: None });
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

#[test]
fn a_waiter_looks_once_at_each_first_and_again_before_its_deadline() {
    let look = |first: &str| Some(Command::Look { first: first.to_owned(), front: None });
    let names = ["lock-0000000001", "lock-0000000002"];
    let mut waiter = contender(Mode::Exclusive);
    let own = enters(&mut waiter, &names);
    waiter.handle(Event::OwnWatchDue);
    waiter.handle(Event::LooksDue);
    assert_eq!(waiter.next_command(), look(names[0]));
    assert_eq!(waiter.next_command(), watch(names[1], WatchKind::Blocker), "it runs beside other commands");
    waiter.handle(Event::DeadlineNear);
    assert_eq!(waiter.next_command(), None, "one is under way");
    waiter.handle(Event::Looked { first: Ok(SEEN), front: None });
    assert_eq!(waiter.next_command(), None);
    waiter.handle(Event::DeadlineNear);
    assert_eq!(waiter.next_command(), look(names[0]));
    waiter.handle(Event::Looked { first: Err(Failure::NoNode), front: None });
    waiter.handle(Event::Watched(Ok(SEEN)));
    assert!(matches!(waiter.next_command(), Some(Command::List { .. })));
    waiter.handle(Event::Listed(Ok(Listing::of(vec![names[1].to_owned(), own]))));
    assert_eq!(waiter.next_command(), look(names[1]), "it is the first now");
    waiter.handle(Event::Looked { first: Ok(SEEN), front: None });
    waiter.handle(Event::DeadlineNear);
    while let Some(command) = waiter.next_command() {
        assert!(matches!(command, Command::Watch { .. }), "it waits for the end of that node: {command:?}");
        waiter.handle(Event::Watched(Ok(SEEN)));
    }
    waiter.handle(Event::Leave);
    waiter.handle(Event::DeadlineNear);
    assert!(matches!(waiter.next_command(), Some(Command::Delete { .. })));
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
