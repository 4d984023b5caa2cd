//! Tests of the judge: histories of a correct lock pass, and each planted violation is found under its name.

use std::time::Duration;

use proptest::prelude::*;

use super::{Cause, Claim, Event, Grant, Health, HoldId, Outcome, Promises, QueuePosition, Share, What, judge};

const PROMISES: Promises = Promises {
    permits: 3,
    lateness: Duration::from_millis(5),
    abandoned: Duration::from_millis(200),
    idle: Duration::from_millis(50),
    healthy: None,
    every: None,
};

/// A world whose servers answer all the time.
const CALM: Promises =
    Promises { healthy: Some(Health { start: Duration::from_secs(3), later: Duration::from_secs(2) }), ..PROMISES };

const TIMEOUT: Duration = Duration::from_secs(6);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A hold of a correct lock: when it was requested after the one before, how often it was checked, how it was released.
#[derive(Clone, Copy, Debug)]
struct Turn {
    think: u64,
    looks: u64,
    confirmed: bool,
    lost: bool,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = (0..30_u64, 1..5_u64, any::<bool>(), any::<bool>());
    let turn = turn.prop_map(|(think, looks, confirmed, lost)| Turn { think, looks, confirmed, lost });
    prop::collection::vec(turn, 2..12)
}

/// Returns holds in sequence, each requested while the one before is held: number, token and time grow together.
fn history(turns: &[Turn]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut clock = ms(1_000);
    for (at, turn) in turns.iter().enumerate() {
        let (contender, number) = (u32::try_from(at).unwrap(), i64::try_from(at).unwrap());
        let hold = HoldId(u64::from(contender));
        let mut add = |from, until, what| events.push(Event { contender, lock: 0, from, until, what });
        let asked = clock - ms(turn.think);
        let granted = clock + ms(1);
        let place = Some(QueuePosition { class: 0, number: Some(number) });
        let grant = Grant { hold, share: Share::Alone, token: Some(100 + number * 10), place };
        let limit = Some(granted - asked);
        add(asked, granted, What::Asked { limit, outcome: Outcome::Granted(grant) });
        add(granted, granted, What::Trusted { hold, sure: true, left: TIMEOUT / 2 });
        clock = granted;
        for look in 0..turn.looks {
            clock += ms(2);
            add(clock, clock, What::Trusted { hold, sure: true, left: TIMEOUT * 2 / 5 });
            add(clock, clock + ms(1), What::Looked { hold, held: true });
            let (token, order) = (100 + number * 10, u64::from(contender) * 10 + look);
            add(clock, clock + ms(1), What::Wrote { hold, token, order, accepted: true });
            clock += ms(1);
        }
        if turn.lost {
            add(clock, clock + ms(1), What::Looked { hold, held: false });
        }
        add(clock, clock + ms(2), What::Released { hold, confirmed: turn.confirmed });
        clock += ms(2);
    }
    events
}

fn claims(events: &[Event]) -> Vec<Claim> {
    claims_under(events, &PROMISES)
}

fn claims_under(events: &[Event], promises: &Promises) -> Vec<Claim> {
    judge(events, promises).violations.into_iter().map(|violation| violation.claim).collect()
}

/// Returns the event of this kind of a hold.
fn of(events: &mut [Event], hold: HoldId, which: impl Fn(&What) -> bool) -> &mut Event {
    let its = |what: &What| match what {
        What::Looked { hold, .. }
        | What::Trusted { hold, .. }
        | What::Wrote { hold, .. }
        | What::Released { hold, .. } => Some(*hold),
        What::Asked { outcome: Outcome::Granted(grant), .. } => Some(grant.hold),
        _ => None,
    };
    events.iter_mut().find(|event| its(&event.what) == Some(hold) && which(&event.what)).unwrap()
}

fn grant(events: &mut [Event], hold: u64, change: impl Fn(&mut Grant)) {
    match &mut of(events, HoldId(hold), |what| matches!(what, What::Asked { .. })).what {
        What::Asked { outcome: Outcome::Granted(grant), .. } => change(grant),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn a_lock_that_works_is_not_accused(mut turns in turns(), calm in any::<bool>(), shuffle in any::<u64>()) {
        turns.iter_mut().for_each(|turn| turn.lost &= !calm);
        let mut events = history(&turns);
        fastrand::Rng::with_seed(shuffle).shuffle(&mut events);
        let verdict = judge(&events, if calm { &CALM } else { &PROMISES });
        prop_assert_eq!(verdict.violations, vec![]);
        prop_assert_eq!(verdict.tally.grants, turns.len());
        prop_assert_eq!(verdict.tally.accepted as u64, turns.iter().map(|turn| turn.looks).sum::<u64>());
    }

    #[test]
    fn a_second_believer_is_found(turns in turns(), victim in any::<prop::sample::Index>()) {
        let mut events = history(&turns);
        let first = victim.index(turns.len() - 1);
        // The first contender still believes while the next one holds.
        let hold = HoldId(first as u64);
        let next = of(&mut events, HoldId(first as u64 + 1), |what| matches!(what, What::Looked { .. })).until;
        events.retain(|event| event.what != What::Looked { hold, held: false });
        let belief = What::Looked { hold, held: true };
        events.push(Event { contender: 0, lock: 0, from: next + ms(1), until: next + ms(2), what: belief });
        let found = claims(&events);
        prop_assert!(found.contains(&Claim::Exclusion) || turns[first + 1].looks == 1, "{found:?}");
        prop_assert!(found.contains(&Claim::OldAfterNew), "{found:?}");
    }

    #[test]
    fn a_loss_that_is_taken_back_is_found(mut turns in turns(), victim in any::<prop::sample::Index>()) {
        let victim = victim.index(turns.len());
        turns[victim].lost = true;
        let mut events = history(&turns);
        let hold = HoldId(victim as u64);
        let until = of(&mut events, hold, |what| matches!(what, What::Looked { held: false, .. })).until;
        let what = What::Looked { hold, held: true };
        events.push(Event { contender: 0, lock: 0, from: until + ms(1), until: until + ms(2), what });
        prop_assert!(claims(&events).contains(&Claim::LossIsFinal));
    }

    #[test]
    fn a_hold_that_falls_ill_is_found_where_servers_answer(
        mut turns in turns(),
        victim in any::<prop::sample::Index>(),
        illness in 0..5_u8,
    ) {
        turns.iter_mut().for_each(|turn| turn.lost = false);
        let victim = victim.index(turns.len());
        turns[victim].lost = illness == 0;
        let mut events = history(&turns);
        let hold = HoldId(victim as u64);
        prop_assert_eq!(claims_under(&history(&turns), &PROMISES), vec![], "elsewhere that may happen");
        let trust = |what: &What| matches!(what, What::Trusted { .. });
        let at = of(&mut events, hold, trust).from;
        match (illness, &mut of(&mut events, hold, trust).what) {
            (1, What::Trusted { sure, .. }) => *sure = false,
            (2, What::Trusted { left, .. }) => *left = TIMEOUT / 2 - ms(1),
            _ => {}
        }
        let mut add = |after, what| events.push(Event { contender: 0, lock: 0, from: at + after, until: at + after, what });
        match illness {
            3 => add(ms(1), What::Trusted { hold, sure: true, left: TIMEOUT / 3 - ms(1) }),
            4 => {
                // A reader that has become a writer begins a new hold.
                add(Duration::from_nanos(1), What::Changed { hold, share: Share::Alone, token: None });
                add(Duration::from_nanos(2), What::Trusted { hold, sure: true, left: TIMEOUT * 2 / 5 });
            }
            _ => {}
        }
        prop_assert_eq!(claims_under(&events, &CALM), vec![Claim::Healthy]);
    }

    #[test]
    fn a_stale_write_is_found_and_a_refused_one_is_none(turns in turns(), taken in any::<bool>()) {
        let mut events = history(&turns);
        let (last, hold) = (turns.len() as u64 * 10, HoldId(0));
        let what = What::Wrote { hold, token: 100, order: last, accepted: taken };
        events.push(Event { contender: 0, lock: 0, from: ms(0), until: ms(1), what });
        let verdict = judge(&events, &PROMISES);
        prop_assert_eq!(verdict.violations.iter().any(|found| found.claim == Claim::Fencing), taken);
        prop_assert_eq!((verdict.tally.stale, verdict.tally.refused), (usize::from(taken), usize::from(!taken)));
    }

    #[test]
    fn a_token_that_does_not_grow_is_found(turns in turns()) {
        let mut events = history(&turns);
        let last = turns.len() as u64 - 1;
        let before = of(&mut events, HoldId(last - 1), |what| matches!(what, What::Asked { .. })).until;
        of(&mut events, HoldId(last), |what| matches!(what, What::Asked { .. })).from = before + ms(1);
        grant(&mut events, last, |grant| grant.token = Some(5));
        prop_assert!(claims(&events).contains(&Claim::Tokens));
    }

    #[test]
    fn one_who_came_later_and_is_served_first_is_found(turns in turns()) {
        let mut events = history(&turns);
        let numbers = turns.len() as i64;
        for hold in 0..turns.len() as u64 {
            grant(&mut events, hold, |grant| grant.place = Some(QueuePosition { class: 0, number: Some(numbers - hold as i64) }));
        }
        prop_assert!(claims(&events).contains(&Claim::Order));
        // In different classes this order is allowed.
        for hold in 0..turns.len() as u64 {
            grant(&mut events, hold, |grant| grant.place = Some(QueuePosition { class: hold as u32, number: Some(0) }));
        }
        prop_assert_eq!(claims(&events), vec![]);
    }

    #[test]
    fn a_late_return_is_found_unless_the_process_was_stopped(turns in turns()) {
        let mut events = history(&turns);
        let asked = of(&mut events, HoldId(0), |what| matches!(what, What::Asked { .. }));
        let (from, until) = (asked.from - ms(100), asked.until);
        asked.from = from;
        // The lock was free in the meantime, which is another claim.
        let found: Vec<_> = claims(&events).into_iter().filter(|claim| *claim != Claim::WakeUp).collect();
        prop_assert_eq!(found, vec![Claim::Deadline]);
        events.push(Event { contender: 0, lock: 0, from, until: until - ms(1), what: What::Stopped });
        prop_assert!(!claims(&events).contains(&Claim::Deadline));
    }

    #[test]
    fn a_wake_up_that_comes_too_late_is_found(turns in turns(), idle in 51..500_u64) {
        let mut events = history(&turns);
        let end = events.iter().map(|event| event.until).max().unwrap();
        // After the last release or loss, a contender that asked long before gets the lock.
        let free = if turns.last().unwrap().confirmed { end } else { end + PROMISES.abandoned };
        let place = None;
        let grant = Grant { hold: HoldId(1_000), share: Share::Alone, token: None, place };
        let what = What::Asked { limit: None, outcome: Outcome::Granted(grant) };
        events.push(Event { contender: 99, lock: 0, from: ms(900), until: free + ms(idle), what });
        let verdict = judge(&events, &PROMISES);
        let earlier = turns.iter().rev().skip(1).any(|turn| !turn.confirmed);
        prop_assert!(verdict.violations.iter().any(|found| found.claim == Claim::WakeUp) || earlier, "{verdict:?}");
    }

    #[test]
    fn one_who_waits_for_ever_is_found_unless_it_died(turns in turns()) {
        let mut events = history(&turns);
        let what = What::Asked { limit: None, outcome: Outcome::Pending };
        events.push(Event { contender: 77, lock: 0, from: ms(1), until: ms(2), what });
        prop_assert_eq!(claims(&events), vec![Claim::End]);
        events.push(Event { contender: 77, lock: 0, from: ms(3), until: ms(3), what: What::Died });
        prop_assert_eq!(claims(&events), vec![]);
    }

    #[test]
    fn permits_are_counted_and_readers_stand_beside_readers_only(takes in prop::collection::vec(1..4_u32, 1..5)) {
        let inside = |share: &dyn Fn(usize) -> Share| {
            let mut events = Vec::new();
            for at in 0..takes.len() {
                let (hold, contender) = (HoldId(at as u64), at as u32);
                let grant = Grant { hold, share: share(at), token: None, place: None };
                let asked = What::Asked { limit: None, outcome: Outcome::Granted(grant) };
                events.push(Event { contender, lock: 0, from: ms(10), until: ms(11), what: asked });
                let held = |at| Event { contender, lock: 0, from: ms(at), until: ms(at), what: What::Looked { hold, held: true } };
                events.extend([held(20), held(30)]);
            }
            claims(&events)
        };
        let out: u32 = takes.iter().sum();
        prop_assert_eq!(inside(&|at| Share::Permits(takes[at])).contains(&Claim::Exclusion), out > PROMISES.permits);
        prop_assert_eq!(inside(&|_| Share::Reads), vec![]);
        let writer = |at| if at == 0 { Share::Alone } else { Share::Reads };
        prop_assert_eq!(inside(&writer).contains(&Claim::Exclusion), takes.len() > 1);
    }
}

#[test]
fn nodes_that_are_left_are_found() {
    let left = |nodes: &[&str]| {
        let nodes = nodes.iter().map(ToString::to_string).collect();
        let (from, until) = (ms(9), ms(9));
        claims(&[Event { contender: 0, lock: 0, from, until, what: What::LeftBehind { nodes } }])
    };
    assert_eq!(left(&[]), []);
    assert_eq!(left(&["lock-0000000001"]), [Claim::NoOrphan]);
}

/// Returns a hold of lock 0 that is believed from `from` until `until`, with this token.
fn believed(id: u64, from: u64, until: u64, token: i64) -> Vec<Event> {
    let (hold, contender, place) = (HoldId(id), id as u32, Some(QueuePosition { class: 1, number: None }));
    let grant = Grant { hold, share: Share::Alone, token: Some(token), place };
    let asked = What::Asked { limit: None, outcome: Outcome::Granted(grant) };
    let looked =
        |at| Event { contender, lock: 0, from: ms(at), until: ms(at), what: What::Looked { hold, held: true } };
    let asked = Event { contender, lock: 0, from: ms(from - 1), until: ms(from), what: asked };
    vec![asked, looked(from), looked(until)]
}

fn at(from: u64, until: u64, what: What) -> Event {
    Event { contender: 0, lock: 0, from: ms(from), until: ms(until), what }
}

#[test]
fn an_excused_hold_may_be_believed_beside_another_one_for_its_time_only() {
    let excused = |from, until, beside| {
        let mut events = [believed(0, 10, 30, 5), believed(1, 20, 40, 6)].concat();
        events.push(at(from, until, What::Excused { hold: HoldId(0), beside }));
        claims(&events)
    };
    assert_eq!(excused(15, 30, None), []);
    assert_eq!(excused(15, 29, None), [Claim::EndsInTime]);
    assert_eq!(excused(15, 30, Some(HoldId(1))), []);
    assert_eq!(excused(15, 30, Some(HoldId(2))), [Claim::Exclusion, Claim::OldAfterNew]);
    assert_eq!(excused(21, 30, None), [Claim::Exclusion, Claim::OldAfterNew], "it was not disturbed yet");
}

#[test]
fn an_excuse_that_is_over_explains_no_token_and_no_permit() {
    let older_token = |over| {
        let mut events = [believed(0, 10, 20, 6), believed(1, 30, 40, 5)].concat();
        events.push(at(15, over, What::Excused { hold: HoldId(1), beside: None }));
        claims(&events).contains(&Claim::Tokens)
    };
    assert!(!older_token(30) && older_token(29));
    let fourth = |over| {
        let mut events = (0..4).flat_map(|id| believed(id, 10 + id * 10, 60, 0)).collect::<Vec<_>>();
        for event in &mut events {
            if let What::Asked { outcome: Outcome::Granted(grant), .. } = &mut event.what {
                (grant.share, grant.token) = (Share::Permits(1), None);
            }
        }
        events.push(at(15, over, What::Excused { hold: HoldId(0), beside: None }));
        claims(&events)
    };
    assert_eq!(fourth(40), []);
    assert_eq!(fourth(39), [Claim::Exclusion]);
}

#[test]
fn who_asked_after_another_was_seen_waiting_is_served_after_it() {
    let waited = |seen, class, kept, exact| {
        let mut events = believed(1, 30, 40, 6);
        let what = What::Waited { class, kept: ms(kept), exact, slack: ms(10) };
        events.push(Event { contender: 7, ..at(seen, 35, what) });
        claims(&events)
    };
    assert_eq!(waited(20, 1, 100, true), [Claim::Order]);
    assert_eq!(waited(20, 1, 100, false), [], "it may have left before");
    assert_eq!(waited(29, 1, 100, true), [], "it was not seen before the other asked");
    assert_eq!(waited(20, 2, 100, true), [], "a later class");
    assert_eq!(waited(20, 1, 29, true), [], "a fault changed its position");
}

#[test]
fn a_lost_update_is_found() {
    let counts = |read, wrote| {
        let mut events = [believed(0, 10, 20, 5), believed(1, 30, 40, 6)].concat();
        let write = |hold, token, order| What::Wrote { hold: HoldId(hold), token, order, accepted: true };
        events.push(at(12, 12, write(0, 5, 8)));
        events.push(at(31, 31, What::Read { hold: HoldId(1), order: read }));
        events.push(at(32, 32, write(1, 6, wrote)));
        claims(&events)
    };
    assert_eq!(counts(8, 9), []);
    assert_eq!(counts(7, 9), [Claim::NoLostUpdate], "it did not see the first write");
    assert_eq!(counts(8, 8), [Claim::NoLostUpdate], "both wrote the same number");
}

#[test]
fn a_token_that_is_used_twice_is_found_although_both_asked_together() {
    let mut events = [believed(0, 10, 20, 5), believed(1, 30, 40, 5)].concat();
    events[3].from = ms(1);
    assert_eq!(claims(&events), [Claim::Tokens]);
}

#[test]
fn a_slot_that_does_not_run_exactly_once_is_found() {
    let (slot, succeeded) = (|| "noon".to_owned(), Some("succeeded".to_owned()));
    let claim = |from, token, due: &str, ended: &Option<String>, missed| {
        at(from, from, What::Claimed { slot: slot(), token, due: Some(due.to_owned()), ended: ended.clone(), missed })
    };
    let worked = |token| at(2, 2, What::Worked { slot: slot(), token });
    let found = |events: &[Event]| {
        let due = at(1, 1, What::Due { slot: slot() });
        claims(&[&[due], events].concat())
    };
    let run = || claim(1, 5, "noon", &succeeded, 0);
    assert_eq!(found(&[run(), worked(5)]), []);
    assert_eq!(found(&[]), [Claim::Once], "nobody claimed it");
    assert!(found(&[run(), claim(3, 6, "noon", &succeeded, 0), worked(5), worked(6)]).contains(&Claim::Once), "twice");
    assert_eq!(found(&[run(), worked(5), worked(5)]), [Claim::Once], "it worked twice");
    assert_eq!(found(&[run()]), [Claim::Once], "it succeeded without work");
    assert!(found(&[run(), worked(5), worked(7)]).contains(&Claim::Once), "work without a record");
    assert_eq!(found(&[claim(1, 5, "eleven", &succeeded, 0), worked(5)]), [Claim::Once], "in another hour");
    assert_eq!(found(&[claim(1, 5, "noon", &None, 0), worked(5)]), [Claim::Once], "without an end");
    assert_eq!(found(&[claim(1, 5, "noon", &succeeded, 2), worked(5)]), [Claim::Once], "others were missed");
    assert!(found(&[run(), worked(5), claim(3, 4, "noon", &succeeded, 0)]).contains(&Claim::Tokens));
    let every_three = |apart: u64| {
        let claim = |token| What::Claimed { slot: slot(), token, due: None, ended: succeeded.clone(), missed: 1 };
        let events = [at(1, 1, claim(5)), at(1 + apart, 1 + apart, claim(6)), worked(5), worked(6)];
        claims_under(&events, &Promises { every: Some(ms(3)), ..PROMISES })
    };
    assert_eq!(every_three(3), []);
    assert_eq!(every_three(2), [Claim::Once]);
}

/// The claims in a world without faults: of two holds, one after the other, and these events.
fn claims_with(second: u64, more: &[Event]) -> Vec<Claim> {
    let events = [believed(0, 1_000, 1_100, 5), believed(1, second, second + 100, 6), more.to_vec()].concat();
    claims_under(&events, &CALM)
}

#[test]
fn uses_of_one_hold_have_one_token() {
    let events = [believed(0, 10, 20, 5), believed(1, 30, 40, 5)].concat();
    assert_eq!(claims(&events), [Claim::Tokens, Claim::Tokens]);
    let joins = at(29, 30, What::Joins { hold: HoldId(1), first: HoldId(0) });
    assert_eq!(claims(&[events, vec![joins]].concat()), []);
}

#[test]
fn a_fenced_write_that_outlives_its_hold_is_found() {
    let claims = |answer, done: Option<u64>| {
        let hold = HoldId(0);
        let done = done.map(|at| (1, ms(at)));
        let released = at(1_100, 1_150, What::Released { hold, confirmed: true });
        claims_with(1_200, &[released, at(1_010, 1_020, What::Fenced { hold, token: 5, answer, done })])
    };
    assert_eq!(claims(Some(true), Some(1_100)), []);
    assert_eq!(claims(None, None), []);
    assert_eq!(claims(Some(true), None), [Claim::NoLostUpdate]);
    assert_eq!(claims(Some(false), Some(1_100)), [Claim::Fencing]);
    // After the release, and after the next grant.
    assert_eq!(claims(None, Some(1_160)), [Claim::Fencing]);
    assert_eq!(claims(None, Some(1_210)), [Claim::Fencing]);
}

#[test]
fn a_broken_hold_that_is_believed_for_too_long_is_found() {
    let broken = |within| at(1_040, 1_041, What::Broken { hold: HoldId(0), within: ms(within) });
    assert_eq!(claims_with(1_080, &[broken(80)]), []);
    assert_eq!(claims_with(1_080, &[broken(50)]), [Claim::EndsInTime, Claim::EndsInTime]);
    assert!(claims_with(1_080, &[]).contains(&Claim::Exclusion));
}

#[test]
fn a_grant_within_the_delay_of_an_abandoned_hold_is_found() {
    let hold = HoldId(0);
    let delays = at(1_000, 1_000, What::Delays { hold, delay: ms(500) });
    let lost = at(1_110, 1_120, What::Looked { hold, held: false });
    let broken = at(1_105, 1_106, What::Broken { hold, within: ms(50) });
    assert_eq!(claims_with(1_590, &[delays.clone(), lost.clone(), broken.clone()]), [Claim::Delay]);
    assert_eq!(claims_with(1_610, &[delays.clone(), lost.clone(), broken.clone()]), []);
    let pardoned = at(1_550, 1_551, What::Pardoned { hold });
    assert_eq!(claims_with(1_590, &[delays.clone(), lost, broken, pardoned]), []);
    // After a release, the next contender does not wait for it.
    let released = at(1_100, 1_110, What::Released { hold, confirmed: true });
    assert_eq!(claims_with(1_200, &[delays, released]), []);
}

#[test]
fn a_call_that_gets_some_of_its_locks_is_found() {
    let together = |held| claims(&[at(10, 20, What::Together { wanted: 2, held })]);
    assert_eq!((together(2), together(1)), (vec![], vec![Claim::AllOrNone]));
}

#[test]
fn a_hold_that_makes_way_for_no_contender_is_found() {
    let claims = |asked, left| {
        let wanted = Event { contender: 1, ..at(asked, left, What::Wanted { priority: 1 }) };
        claims_with(2_000, &[at(1_100, 1_400, What::Yielded { hold: HoldId(0) }), wanted])
    };
    assert_eq!((claims(1_000, 1_090), claims(1_000, 1_080)), (vec![], vec![Claim::Yield]));
    assert_eq!(claims(1_110, 1_200), [Claim::Yield], "it asked later");
}

#[test]
fn a_hold_that_continues_before_those_that_it_made_way_for_is_found() {
    let claims = |left| {
        let wanted = Event { contender: 1, ..at(1_000, left, What::Wanted { priority: 1 }) };
        let yielded = at(1_100, 1_101, What::Yielded { hold: HoldId(0) });
        let again = believed(2, 1_101, 1_150, 6).into_iter().map(|event| Event { contender: 0, ..event });
        let events = [believed(0, 1_000, 1_099, 5), again.collect(), vec![yielded, wanted]].concat();
        claims_under(&events, &CALM)
    };
    assert_eq!(claims(1_110), []);
    assert_eq!(claims(1_500), [Claim::Yield]);
}

#[test]
fn a_break_of_another_hold_than_the_one_that_was_seen_is_found() {
    let claims = |seen| {
        let aimed = at(seen, seen, What::Aimed { hold: HoldId(1) });
        claims_with(1_200, &[aimed, at(1_300, 1_300, What::Broken { hold: HoldId(1), within: ms(400) })])
    };
    assert_eq!((claims(1_150), claims(1_050)), (vec![], vec![Claim::Removed]));
}

#[test]
fn a_leader_that_is_not_reported_is_found() {
    let claims = |at_ms| {
        let reported = |at_ms, token| at(at_ms, at_ms, What::Reported { token });
        let reports = [reported(1_010, Some(5)), reported(at_ms, Some(6)), reported(1_500, None)];
        claims_with(1_200, &reports)
    };
    assert_eq!((claims(1_250), claims(1_251)), (vec![], vec![Claim::Report]));
}

#[test]
fn a_contender_that_waits_while_later_ones_are_served_is_found() {
    let waits = |asked| {
        let mut last = believed(2, 1_310, 1_350, 7);
        last[0].from = ms(asked);
        claims_with(1_200, &last)
    };
    assert_eq!((waits(1_198), waits(1_100)), (vec![], vec![Claim::Order]));
}

#[test]
fn a_lease_that_ends_too_early_or_too_late_is_found() {
    let hold = HoldId(0);
    let leased = |strict, until| {
        let ends = (ms(1_080), ms(until));
        at(1_000, 1_000, What::Leased { hold, priority: 1, strict, ends })
    };
    assert_eq!(claims_with(1_200, &[leased(true, 1_150)]), []);
    assert_eq!(claims_with(1_200, &[leased(true, 1_090)]), [Claim::Lease]);
    assert_eq!(claims_with(1_200, &[leased(false, 1_090)]), []);
    let ended = |at_ms, cause| at(at_ms, at_ms, What::Ended { hold, cause });
    let wanted = |priority| {
        let what = What::Wanted { priority };
        Event { contender: 1, lock: 0, from: ms(1_020), until: ms(1_200), what }
    };
    let claims = |at_ms, cause, strict, priority| {
        claims_with(1_200, &[leased(strict, 1_150), ended(at_ms, cause), wanted(priority)])
    };
    assert_eq!(claims(1_110, Cause::Preempted, true, 2), []);
    assert_eq!(claims(1_110, Cause::Preempted, true, 1), [Claim::Lease]);
    assert_eq!(claims(1_110, Cause::LeaseEnded, true, 1), []);
    assert_eq!(claims(1_070, Cause::LeaseEnded, true, 1), [Claim::Lease]);
    assert_eq!(claims_with(1_200, &[leased(false, 1_150), ended(1_110, Cause::LeaseEnded)]), [Claim::Lease]);
    assert_eq!(claims(1_110, Cause::Other, false, 1), [Claim::Lease]);
}

#[test]
fn a_report_of_an_older_leader_and_a_last_one_that_is_wrong_are_found() {
    let report = |tokens: &[Option<i64>]| {
        let report = |(from, token)| at(from, from, What::Reported { token });
        claims(&(1..).zip(tokens.iter().copied()).map(report).collect::<Vec<_>>())
    };
    assert_eq!(report(&[None, Some(5), None, Some(7), Some(9), None]), []);
    assert_eq!(report(&[Some(5), None, Some(5), None]), [Claim::Report]);
    assert_eq!(report(&[Some(5), Some(5), None]), [Claim::Report]);
    assert_eq!(report(&[None, Some(5)]), [Claim::Report]);
}
