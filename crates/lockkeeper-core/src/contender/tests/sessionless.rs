//! Nodes without a session: a contender skips them, and says which one blocks the foreign contender that it waits for.

use super::*;
use crate::Sessionless;

#[test]
fn a_waiter_knows_the_node_without_a_session_that_blocks_the_first_contender() {
    let [without, first] = ["lock-0000000000", "lock-0000000001"];
    let mut waiter = contender(Mode::Exclusive);
    enters(&mut waiter, &[without, first]);
    assert_eq!(waiter.place().map(|place| place.blocks_first.clone()), Some(None), "nothing was read yet");
    let node = Sessionless { name: without.to_owned(), czxid: Zxid(3) };
    waiter.no_contender(&node);
    assert!(matches!(waiter.next_command(), Some(Command::List { .. })));
    let own = waiter.node().unwrap().to_owned();
    waiter.handle(Event::Listed(Ok(Listing::of([without, first, &own].map(str::to_owned).to_vec()))));
    let place = waiter.place().unwrap();
    assert_eq!((place.first.as_str(), place.ahead, place.blocks_first.as_ref()), (first, 1, Some(&node)));
}
