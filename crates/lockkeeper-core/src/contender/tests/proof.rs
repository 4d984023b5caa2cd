//! The proof of a hold.

use super::*;
use crate::protocol::Ask;

fn check(own: &str, holder_marker: Option<&str>) -> Option<Command> {
    Some(Command::Check { own: own.to_owned(), holder_marker: holder_marker.map(str::to_owned) })
}

#[test]
fn a_proof_is_the_own_node_and_the_holder_marker_that_this_hold_created() {
    use Failure::*;
    let (ours, another) = (Some(Zxid(8)), Some(Zxid(9)));
    for (marked, seen, shown) in [
        (false, Ok(None), Ok(())),
        (false, Err(NoNode), Err(NoNode)),
        (false, Err(Refused), Err(Refused)),
        (true, Ok(ours), Ok(())),
        (true, Ok(another), Err(NoNode)),
        (true, Err(NoNode), Err(NoNode)),
    ] {
        let (mut holder, own, marker) = match marked {
            true => holds_a_marker(),
            false => {
                let (holder, own) = holds(contender(Mode::Exclusive));
                (holder, own, String::new())
            }
        };
        holder.handle(Event::Ask(Ask::Verify));
        let expected = check(&own, Some(&*marker).filter(|_| marked));
        assert_eq!(holder.next_command(), expected);
        assert_eq!(holder.next_command(), None);
        holder.handle(Event::Checked(Err(ConnectionLoss)));
        assert_eq!(holder.next_command(), expected, "it is asked for again");
        holder.handle(Event::Checked(seen));
        assert_eq!(holder.next_command(), Some(Command::Verified(shown)), "{seen:?}");
        assert_eq!(holder.next_command(), None);
    }
}

#[test]
fn a_proof_runs_beside_other_commands_but_not_beside_a_downgrade_or_a_release() {
    let (mut writer, own) = holds(contender(Mode::Write));
    writer.handle(Event::OwnWatchDue);
    assert_eq!(writer.next_command(), watch(&own, WatchKind::Own));
    writer.handle(Event::Ask(Ask::Verify));
    assert_eq!(writer.next_command(), check(&own, None));
    writer.handle(Event::Ask(Ask::Downgrade));
    writer.handle(Event::Watched(Ok(SEEN)));
    let Some(Command::Downgrade { into, .. }) = writer.next_command() else { panic!("it reads on") };
    // The check's reply was lost. Behind the downgrade, it would not find the writer's node.
    writer.handle(Event::Checked(Err(Failure::ConnectionLoss)));
    assert_eq!(writer.next_command(), None);
    writer.handle(Event::Downgraded(Ok(Zxid(8))));
    assert_eq!(writer.next_command(), check(&into, None));
    assert_eq!(writer.next_command(), Some(Command::Reads { name: into }));
    writer.handle(Event::Leave);
    writer.handle(Event::Checked(Err(Failure::ConnectionLoss)));
    assert!(matches!(writer.next_command(), Some(Command::Delete { .. } | Command::Watch { .. })));
    assert_eq!(writer.next_command(), None);
}

#[test]
fn nothing_is_proved_before_the_grant_or_without_a_check() {
    let (mut waiter, _) = second();
    waiter.handle(Event::Ask(Ask::Verify));
    assert!(matches!(waiter.next_command(), Some(Command::Watch { .. })));
    let (mut holder, _) = holds(contender(Mode::Exclusive));
    holder.handle(Event::Checked(Err(Failure::NoNode)));
    assert_eq!(holder.next_command(), None);
}
