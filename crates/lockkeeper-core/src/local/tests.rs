use super::*;

const WAITS: LocalState<'_> = LocalState {
    node: None,
    deleted: true,
    ahead: Some(1),
    holds: false,
    released: false,
    watches_itself: false,
    first: None,
    waits_for: None,
    deferred: false,
};
const HOLDS: LocalState<'_> = LocalState { ahead: Some(0), holds: true, watches_itself: true, ..WAITS };
const UNKNOWN: LocalState<'_> = LocalState { ahead: None, ..WAITS };

fn node(number: i32) -> String {
    format!("lock-{}", Sequence::new(number))
}

fn released(number: i32, watched: bool) -> Option<Event> {
    Some(Event::Released { name: node(number), watched })
}

fn ended(number: i32, deleted: bool) -> Option<Event> {
    Some(Event::Ended { name: node(number), deleted })
}

impl LocalQueue {
    fn shows(&mut self, key: Option<LocalKey>, name: &str, state: LocalState<'_>) -> LocalKey {
        self.report(key, &LocalState { node: Some(name), ..state }, &mut Vec::new()).unwrap()
    }

    fn joins(&mut self, number: i32, state: LocalState<'_>) -> LocalKey {
        self.shows(None, &node(number), state)
    }

    fn waits_for(&mut self, number: i32, other: i32) -> LocalKey {
        self.joins(number, LocalState { waits_for: Some(&node(other)), ..WAITS })
    }

    fn ahead_of(&self, key: LocalKey) -> Option<usize> {
        self.place(key).map(|place| place.ahead)
    }

    fn deletes(&mut self, key: LocalKey) -> Vec<LocalKey> {
        let mut woken = Vec::new();
        self.report(Some(key), &UNKNOWN, &mut woken);
        woken
    }

    fn releases(&mut self, key: LocalKey) -> Vec<LocalKey> {
        let mut woken = Vec::new();
        let LocalEntry { node, watches_itself, .. } = self.entry(key).unwrap().clone();
        self.report(Some(key), &LocalState { node: Some(&node), released: true, watches_itself, ..HOLDS }, &mut woken);
        woken
    }
}

#[test]
fn each_waiter_for_a_node_hears_of_its_release_and_then_of_its_end_and_nothing_is_left() {
    let mut queue = LocalQueue::default();
    let (first, second, third) = (queue.joins(1, HOLDS), queue.waits_for(2, 1), queue.waits_for(3, 1));
    let other = queue.waits_for(4, 2);
    assert_eq!((queue.hears_of(second), queue.has_signal(second)), (Some(&*node(1)), false));
    assert_eq!(queue.releases(first), [second, third]);
    assert_eq!(queue.take_signal(second), released(1, true));
    assert_eq!((queue.take_signal(second), queue.take_signal(other)), (None, None), "it has not ended; another node");
    let late = queue.waits_for(5, 1);
    assert_eq!(queue.take_signal(late), released(1, true));
    assert_eq!(queue.deletes(first), [second, third, late]);
    assert_eq!(queue.take_signal(second), ended(1, true));
    assert_eq!([queue.take_signal(third), queue.take_signal(third)], [released(1, true), ended(1, true)], "in order");
    let mut woken = Vec::new();
    queue.leave(second, &mut woken);
    assert_eq!((woken, queue.take_signal(other)), (vec![other, second], ended(2, false)));
    for key in [third, other, late] {
        queue.deletes(key);
    }
    assert!(queue.is_empty());
}

#[test]
fn a_waiter_that_waits_for_another_hears_nothing_more_of_the_first() {
    let mut queue = LocalQueue::default();
    let (first, second) = (queue.joins(1, HOLDS), queue.joins(2, WAITS));
    let third = queue.waits_for(3, 1);
    queue.releases(first);
    assert!(queue.has_signal(third));
    let waits = LocalState { waits_for: Some(&node(2)), ..WAITS };
    queue.shows(Some(third), &node(3), waits);
    assert_eq!((queue.deletes(first), queue.take_signal(third)), (vec![], None));
    queue.shows(Some(third), &node(3), WAITS);
    assert_eq!((queue.deletes(second), queue.take_signal(third)), (vec![], None));
}

#[test]
fn a_place_is_known_only_right_behind_an_entry_that_would_know_of_its_nodes_deletion() {
    let place = |ahead| Some(QueuePlace { ahead, first: node(7), front: None, blocks_first: None });
    let behind = |number, place| Arrival::AfterLocal { name: node(number), place };
    let blind = LocalState { watches_itself: false, ..HOLDS };
    let far = LocalState { ahead: Some(4), ..WAITS };
    for (state, expected) in [(HOLDS, behind(7, place(1))), (far, behind(7, None)), (blind, Arrival::Unknown)] {
        let mut queue = LocalQueue::default();
        let entry = queue.joins(7, state);
        assert!(queue.enter(true));
        assert!(!queue.enter(false), "it must list");
        queue.entered();
        assert_eq!(queue.arrival(&node(8)), expected);
        let further = || Arrival::BehindLocal { name: node(7), most_ahead: Some(6) };
        let further = if state.holds { Arrival::Unknown } else { further() };
        assert_eq!(queue.arrival(&node(9)), further, "another node is between");
        assert_eq!(queue.arrival(&node(6)), Arrival::Unknown, "it is behind");
        queue.releases(entry);
        assert_eq!(queue.arrival(&node(8)), Arrival::Unknown, "it has released");
        queue.entered();
        assert!(!queue.enter(true), "the only other has released");
    }
}

#[test]
fn a_listing_serves_those_that_had_their_nodes_when_it_was_sent() {
    let mut queue = LocalQueue::default();
    let [one, three] = [1, 3].map(node);
    let deferred = |on| LocalState { waits_for: Some(on), deferred: true, ..UNKNOWN };
    let first = queue.joins(1, WAITS);
    let second = queue.joins(3, deferred(&one));
    let before = queue.next_key();
    assert_eq!(queue.arrival(&node(5)), Arrival::BehindLocal { name: node(3), most_ahead: Some(5) });
    let third = queue.joins(5, deferred(&three));
    let mut woken = Vec::new();
    let listing = Listing::of([1, 2, 3].map(node).to_vec());
    queue.listed(before, &listing, &mut woken);
    assert_eq!((woken, queue.has_signal(third)), (vec![second], false), "the third came later");
    queue.releases(first);
    assert_eq!(queue.take_signal(second), Some(Event::ListedByLocal(Arc::new(listing.clone()))));
    assert_eq!(queue.take_signal(second), released(1, false));
    // It waits for a stranger now, so no later listing concerns it.
    queue.shows(Some(second), &node(3), LocalState { waits_for: Some(&node(2)), ..WAITS });
    let mut woken = Vec::new();
    queue.listed(queue.next_key(), &listing, &mut woken);
    assert_eq!((woken, queue.has_signal(second)), (vec![third], false));
    // A listing that its contender has not taken in yet is of no use once that one has listed itself.
    queue.shows(Some(third), &node(5), LocalState { waits_for: Some(&node(4)), ..WAITS });
    assert!(!queue.has_signal(third));
}

#[test]
fn numbers_begin_again_behind_the_largest() {
    let mut queue = LocalQueue::default();
    queue.joins(i32::MAX, HOLDS);
    let place = Some(QueuePlace { ahead: 1, first: node(i32::MAX), front: None, blocks_first: None });
    assert_eq!(queue.arrival(&node(i32::MIN)), Arrival::AfterLocal { name: node(i32::MAX), place });
}

#[test]
fn a_place_follows_from_the_foremost_entries() {
    let mut queue = LocalQueue::default();
    let front = queue.joins(7, UNKNOWN);
    let place = |queue: &LocalQueue, number| match queue.arrival(&node(number)) {
        Arrival::AfterLocal { place, .. } => place.map(|place| (place.ahead, place.first)),
        other => panic!("{other:?}"),
    };
    assert_eq!(place(&queue, 8), None);
    queue.shows(Some(front), &node(7), LocalState { ahead: Some(4), first: Some("theirs"), ..WAITS });
    assert_eq!(place(&queue, 8), Some((5, "theirs".to_owned())));
    queue.joins(8, LocalState { ahead: Some(5), ..WAITS });
    queue.shows(Some(front), &node(7), HOLDS);
    assert_eq!(place(&queue, 9), Some((2, node(7))));
    queue.releases(front);
    assert_eq!(place(&queue, 9), Some((6, "theirs".to_owned())), "it holds no more");
}

/// The numbers of contenders that have left say nothing about how many are ahead.
#[test]
fn contenders_are_counted_and_not_their_numbers() {
    let mut queue = LocalQueue::default();
    queue.joins(7, HOLDS);
    for number in 8..1_008 {
        let key = queue.joins(number, UNKNOWN);
        queue.deletes(key);
    }
    let waiters: Vec<_> = (1_008..1_012).map(|number| queue.joins(number, UNKNOWN)).collect();
    assert_eq!(queue.ahead_of(waiters[3]), Some(4));
    queue.deletes(waiters[1]);
    assert_eq!((queue.ahead_of(waiters[0]), queue.ahead_of(waiters[3])), (Some(1), Some(3)));
    // Another session had this number.
    let (listed, behind) = (queue.joins(1_013, UNKNOWN), queue.joins(1_014, UNKNOWN));
    let ahead = |queue: &LocalQueue| [waiters[3], listed, behind].map(|key| queue.ahead_of(key));
    assert_eq!(ahead(&queue), [Some(3), None, None]);
    queue.shows(Some(listed), &node(1_013), LocalState { ahead: Some(5), ..WAITS });
    assert_eq!(ahead(&queue), [Some(3), Some(5), Some(6)]);
    queue.leave(listed, &mut Vec::new());
    assert_eq!(ahead(&queue), [None; 3], "its node may be there");
}

#[test]
fn numbers_that_are_out_of_order_are_not_counted() {
    let mut queue = LocalQueue::default();
    queue.joins(7, HOLDS);
    let (_faster, slower) = (queue.joins(9, UNKNOWN), queue.joins(8, UNKNOWN));
    let next = queue.joins(10, UNKNOWN);
    assert_eq!((queue.ahead_of(slower), queue.ahead_of(next)), (None, None));
    queue.shows(Some(slower), &node(8), WAITS);
    let ahead = (queue.ahead_of(slower), queue.ahead_of(next));
    assert_eq!(ahead, (Some(1), None), "the number between the two may be anybody's");
    let last = queue.joins(11, LocalState { ahead: Some(4), ..WAITS });
    assert_eq!(queue.ahead_of(last), Some(4));
}

#[test]
fn a_contender_that_leaves_keeps_its_place_and_one_with_a_new_name_takes_its_place_along() {
    let mut queue = LocalQueue::default();
    queue.joins(6, HOLDS);
    let reader = queue.joins(8, LocalState { ahead: Some(2), first: Some("theirs"), ..WAITS });
    queue.shows(Some(reader), &node(8), UNKNOWN);
    assert_eq!(queue.ahead_of(reader), Some(2));
    let mut woken = Vec::new();
    let state = LocalState { node: Some("read-0000000008"), ..UNKNOWN };
    let renamed = queue.report(Some(reader), &state, &mut woken).unwrap();
    assert_eq!((renamed == reader, queue.ahead_of(renamed)), (false, Some(2)));
    assert_eq!(queue.report(Some(renamed), &UNKNOWN, &mut woken), None, "it has no node any more");
}

#[test]
fn a_number_that_is_used_again_belongs_to_the_last_entry() {
    let mut queue = LocalQueue::default();
    let old = queue.shows(None, "old-0000000007", WAITS);
    let waiter = queue.joins(8, LocalState { waits_for: Some("old-0000000007"), ..WAITS });
    let new = queue.joins(7, WAITS);
    let other = queue.waits_for(9, 7);
    assert_eq!((queue.deletes(old), queue.has_signal(other)), (vec![waiter], false));
    assert_eq!(queue.deletes(new), [other]);
}
