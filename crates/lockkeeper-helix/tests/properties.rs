//! Laws of Helix's lock: `transition` writes only records that the referee allows, whatever record it was shown.

#[path = "protocol/referee.rs"]
mod referee;

use lockkeeper::Revocation;
use lockkeeper_core::leased::{Held, NOBODY, Record, Requested};
use lockkeeper_helix::protocol::{
    Answer, EMERGENCY, Histogram, Measurement, PreemptionOutcome, Refusal, Rules, SeenRecord, ServerNow, Statistics,
    Terms, Wish, transition,
};
use proptest::prelude::*;
use proptest::sample::select;

fn config() -> ProptestConfig {
    ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() }
}

const NOW: i64 = 1_000;
const RULES: Rules = Rules { skew_ms: 20, grace_ms: 50 };

fn id() -> impl Strategy<Value = String> {
    select(&["a", "b", "c"][..]).prop_map(str::to_owned)
}

/// Few enough values that equal ones meet, including the ends of the range.
fn priority() -> impl Strategy<Value = i32> {
    prop_oneof![0..4i32, Just(EMERGENCY), Just(EMERGENCY - 1)]
}

/// Before, around and after now, and never.
fn end() -> impl Strategy<Value = i64> {
    prop_oneof![Just(-1), 900..1_100i64, 950..1_010i64, Just(i64::MAX)]
}

fn held() -> impl Strategy<Value = Held> {
    let notice = proptest::option::of(select(&[0, 30, 200][..]));
    (id(), end(), priority(), select(&[-1, 0, 30, 200][..]), notice).prop_map(
        |(id, until_ms, priority, cleanup_ms, notice_ms)| Held {
            id,
            message: None,
            until_ms,
            priority,
            waiting_ms: 5,
            cleanup_ms,
            revocation: None,
            notice_ms,
            granted_by: None,
        },
    )
}

fn requested() -> impl Strategy<Value = Requested> {
    (id(), priority(), select(&[0, 30, 200][..]), 850..1_001i64, proptest::option::of(end())).prop_map(
        |(id, priority, waiting_ms, since_ms, until_ms)| Requested { id, priority, waiting_ms, since_ms, until_ms },
    )
}

fn record() -> impl Strategy<Value = Record> {
    (proptest::option::of(held()), proptest::option::of(requested()))
        .prop_map(|(owner, request)| Record { owner, request })
}

fn terms() -> impl Strategy<Value = Terms> {
    let waiting = proptest::option::of(select(&[0, 30, 200][..]));
    (id(), priority(), select(&[1, 100, i64::MAX][..]), waiting, any::<bool>(), any::<bool>()).prop_map(
        |(id, priority, lease_ms, waiting_ms, forceful, wait_past_cleanup)| Terms {
            priority,
            waiting_ms,
            forceful,
            wait_past_cleanup,
            cleanup_ms: 7,
            notice_ms: forceful.then_some(40),
            ..Terms::new(id, lease_ms)
        },
    )
}

/// Ends of leases that an attempt may have written.
const WRITTEN_MS: &[&[i64]] = &[&[], &[900], &[NOW]];

fn wish() -> impl Strategy<Value = Wish<'static>> {
    prop_oneof![
        3 => end().prop_map(|give_up_ms| Wish::Acquire { give_up_ms }),
        1 => Just(Wish::Try),
        1 => Just(Wish::Renew),
        1 => select(&["a", "b", "c"][..]).prop_map(|to| Wish::Transfer { to }),
        1 => Just(Wish::Refuse { reason: "not now" }),
        1 => Just(Wish::Leave),
        1 => select(WRITTEN_MS).prop_map(|written_ms| Wish::Withdraw { written_ms }),
        1 => Just(Wish::Unlock),
    ]
}

fn now() -> impl Strategy<Value = ServerNow> {
    (0..30i64, 0..30i64).prop_map(|(early, late)| ServerNow { earliest_ms: NOW - early, latest_ms: NOW + late })
}

proptest! {
    #![proptest_config(config())]

    /// The referee allows every write, also if the client is unsure of the time, and if none of our clients would write
    /// the record.
    ///
    /// H-30, H-57, H-58, H-60, H-61: the rules of the referee.
    ///
    /// B3, B7, B11, B13: none of them is a write that the referee allows.
    #[test]
    fn the_referee_allows_every_write(
        record in record(), modified_ms in 850..1_001i64, me in terms(), wish in wish(), now in now(),
    ) {
        let seen = SeenRecord { record: &record, modified_ms };
        if let Ok(done) = transition(seen, &me, wish, now, &RULES)
            && let Some(after) = &done.record
        {
            let give_up_ms = if let Wish::Acquire { give_up_ms } = wish { give_up_ms } else { i64::MAX };
            let judged = referee::judge(&record, modified_ms, after, (&me, give_up_ms), NOW, &RULES);
            prop_assert!(judged.is_ok(), "{judged:?}\n{after:?}\n{:?}", done.answer);
        }
    }

    /// A try takes the lock exactly if an acquire would take it now. It never writes a request, so no owner is asked.
    #[test]
    fn a_try_takes_what_is_free_and_asks_nobody(
        record in record(), modified_ms in 850..1_001i64, me in terms(), now in now(), give_up_ms in end(),
    ) {
        let seen = SeenRecord { record: &record, modified_ms };
        let tried = transition(seen, &me, Wish::Try, now, &RULES);
        match transition(seen, &me, Wish::Acquire { give_up_ms }, now, &RULES) {
            // Whether force is due depends on when the wait ends.
            Ok(taken) if matches!(taken.answer, Answer::Holds { .. }) && give_up_ms == i64::MAX => {
                prop_assert_eq!(tried, Ok(taken));
            }
            Ok(_) => match tried {
                Ok(taken) => prop_assert!(matches!(taken.answer, Answer::Holds { .. }), "{taken:?}"),
                Err(refusal) => prop_assert_eq!(Some(refusal), record.owner.map(Refusal::Held)),
            },
            Err(_) => prop_assert!(tried.is_err()),
        }
    }

    /// A client that asks again after its own write, as after a lost reply, gets the same answer, and no other client
    /// owns the lock.
    ///
    /// B14: a write whose reply was lost is simply decided again.
    #[test]
    fn a_step_done_twice_is_done_once(record in record(), me in terms(), wish in wish(), now in now()) {
        let seen = SeenRecord { record: &record, modified_ms: NOW - 10 };
        let Ok(once) = transition(seen, &me, wish, now, &RULES) else { return Ok(()) };
        let written = once.record.unwrap_or_else(|| record.clone());
        let again = transition(SeenRecord { record: &written, modified_ms: NOW }, &me, wish, now, &RULES);
        let same = match (&once.answer, &again) {
            (Answer::Holds { .. }, Ok(again)) => {
                let owner = again.record.as_ref().and_then(|record| record.owner.as_ref());
                matches!(again.answer, Answer::Holds { .. }) && owner.is_some_and(|owner| owner.id == me.id)
            }
            (Answer::Transferred | Answer::Told, Ok(again)) => again.record.is_none() && again.answer == once.answer,
            (Answer::Left { .. }, Ok(again)) if matches!(wish, Wish::Withdraw { .. }) => again.record.is_none(),
            (Answer::Left { .. }, Ok(again)) => again.record.as_ref().is_none_or(|record| record.owner.is_none()),
            // Its time may already have come with the first step.
            (Answer::Waits { .. }, Ok(again)) => !matches!(again.answer, Answer::Left { .. }),
            (Answer::GivesNotice { .. }, Ok(again)) => matches!(again.answer, Answer::GivesNotice { .. } | Answer::Holds { .. }),
            (Answer::Unfinished(_), Ok(again)) => !matches!(again.answer, Answer::Holds { .. }),
            (Answer::Unfinished(_), Err(Refusal::Unfinished(_))) => true,
            // A lease so short that it may already be over is not renewed ahead of the requestor.
            (Answer::Holds { until_ms }, Err(Refusal::Requested(_))) => *until_ms <= now.latest_ms,
            (_, Err(_)) => false,
        };
        prop_assert!(same, "{:?}, then {:?}", once.answer, again);
    }

    /// H-03, H-30, H-58: a client whose priority is not strictly higher changes nothing while the owner's lease runs.
    #[test]
    fn only_a_higher_priority_changes_a_running_lease(
        mut owner in held(), mut me in terms(), now in now(), give_up_ms in end(),
    ) {
        me.id = "me".to_owned();
        owner.until_ms = owner.until_ms.max(NOW + 1);
        me.priority = me.priority.min(owner.priority);
        let record = Record { owner: Some(owner.clone()), request: None };
        let seen = SeenRecord { record: &record, modified_ms: NOW - 10 };
        prop_assert_eq!(transition(seen, &me, Wish::Acquire { give_up_ms }, now, &RULES), Err(Refusal::Held(owner)));
        let unlocked = transition(seen, &me, Wish::Unlock, now, &RULES);
        prop_assert_eq!(unlocked, Err(Refusal::NotOwner { owner: record.owner.map(|owner| owner.id) }));
    }

    /// An attempt that is withdrawn frees only what it took itself, whether or not it learned that its write arrived. A
    /// hold of the same id stays, also if it was renewed meanwhile.
    #[test]
    fn a_withdrawn_attempt_leaves_every_other_hold_of_its_id(
        record in record(), me in terms(), now in now(), give_up_ms in end(), arrived in any::<bool>(),
        renewed in any::<bool>(),
    ) {
        let ends = |record: &Record| record.held_until_ms(&me.id);
        let step = |record: &Record, wish| {
            let done = transition(SeenRecord { record, modified_ms: NOW - 10 }, &me, wish, now, &RULES);
            done.ok().and_then(|done| done.record).unwrap_or_else(|| record.clone())
        };
        let tried = step(&record, Wish::Acquire { give_up_ms });
        let written: Vec<i64> = ends(&tried).filter(|end| ends(&record) != Some(*end)).into_iter().collect();
        let mut there = if arrived { tried } else { record };
        let took = arrived && !written.is_empty();
        if renewed && !took {
            there = step(&there, Wish::Renew);
            // A client of the same id that wrote at the same moment is taken for this one.
            prop_assume!(ends(&there).is_none_or(|end| !written.contains(&end)));
        }
        let left = step(&there, Wish::Withdraw { written_ms: &written });
        prop_assert!(left.request.is_none_or(|request| request.id != me.id));
        prop_assert_eq!(left.owner, if took { None } else { there.owner });
    }

    /// case_35: one write, which changes only the owner. A waiting requestor continues to wait, until the same time.
    #[test]
    fn a_lock_is_handed_over_as_it_is(
        mut owner in held(), mut request in proptest::option::of(requested()), now in now(),
        revocation in any::<bool>(),
    ) {
        owner.revocation = revocation.then(Box::default);
        owner.granted_by = revocation.then_some(7);
        if let Some(request) = &mut request {
            request.until_ms = Some(i64::MAX);
        }
        let record = Record { owner: Some(owner.clone()), request: request.clone() };
        let me = Terms::new(owner.id.clone(), 5);
        let seen = SeenRecord { record: &record, modified_ms: NOW - 10 };
        let done = transition(seen, &me, Wish::Transfer { to: "heir" }, now, &RULES);
        let asked = request.as_ref().is_some_and(|request| request.id != owner.id);
        if owner.until_ms <= now.latest_ms && (owner.notice_ms.is_none() || asked) {
            prop_assert_eq!(done, Err(Refusal::LeaseOver { until_ms: owner.until_ms }));
        } else {
            let heir = Held { id: "heir".into(), revocation: None, notice_ms: None, granted_by: None, ..owner };
            prop_assert_eq!(done.unwrap().record, Some(Record { owner: Some(heir), request }));
        }
        let stranger = transition(seen, &Terms::new("d", 5), Wish::Transfer { to: "heir" }, now, &RULES);
        prop_assert_eq!(stranger, Err(Refusal::NotOwner { owner: Some(me.id) }));
    }

    /// H-15, H-16: an owner that keeps its ended lease is asked, by any priority, and replaced when its notice is over. Neither
    /// force nor a wait of zero makes the notice shorter.
    #[test]
    fn an_ended_lease_is_kept_until_its_owner_was_asked(
        mut owner in held(), mut me in terms(), now in now(), give_up_ms in end(), notice_ms in 0..100i64, asked_before in 0..200i64,
    ) {
        me.id = "me".to_owned();
        (owner.until_ms, owner.notice_ms) = (900, Some(notice_ms));
        let wish = Wish::Acquire { give_up_ms };
        let before = Record { owner: Some(owner), request: None };
        let first = transition(SeenRecord { record: &before, modified_ms: 900 }, &me, wish, now, &RULES).unwrap();
        let asked = first.record.expect("the request is written");
        prop_assert!(matches!(first.answer, Answer::GivesNotice { .. }), "{:?}", first.answer);
        prop_assert_eq!((&asked.owner, &asked.request.as_ref().unwrap().id), (&before.owner, &me.id));
        let modified_ms = NOW - asked_before;
        let then = transition(SeenRecord { record: &asked, modified_ms }, &me, wish, now, &RULES).unwrap();
        match then.answer {
            Answer::Holds { .. } => prop_assert!(NOW >= modified_ms + notice_ms + RULES.skew_ms),
            Answer::GivesNotice { until_ms } => {
                prop_assert!(now.earliest_ms < until_ms);
                // Written again, it would begin again; so only if it was let pass.
                let passed_ms = modified_ms + notice_ms + RULES.skew_ms + RULES.grace_ms;
                prop_assert!(then.record.is_none() || now.earliest_ms >= passed_ms);
            }
            other => prop_assert!(false, "{other:?}"),
        }
        let stranger = transition(SeenRecord { record: &before, modified_ms: 900 }, &me, Wish::Unlock, now, &RULES);
        let other = before.owner.map(|owner| owner.id);
        prop_assert_eq!(stranger, Err(Refusal::NotOwner { owner: other }));
    }

    /// A request to release changes nothing except that the owner learns of it. It does not reach another owner.
    #[test]
    fn asking_takes_nothing(record in record(), asked in id()) {
        let (request, mut told) = (Revocation::default(), record.clone());
        let owns = record.owner.as_ref().is_some_and(|owner| owner.id == asked);
        prop_assert_eq!(told.ask(&asked, &request, 7), owns);
        if let Some(owner) = told.owner.as_mut().filter(|_| owns) {
            prop_assert_eq!(owner.revocation.take(), Some(Box::new(request)));
            prop_assert_eq!(owner.granted_by.take(), record.granted_by(7));
        }
        prop_assert_eq!(told, record);
    }

    /// H-66: for every record, not only Helix's.
    #[test]
    fn a_written_record_reads_back(record in record()) {
        prop_assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(record));
    }

    /// Any bytes are accepted.
    #[test]
    fn reading_never_panics(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(record) = Record::from_bytes(&data) {
            prop_assert!(data.is_empty() || record.owner.is_none_or(|owner| owner.id != NOBODY));
        }
    }
}

fn event() -> impl Strategy<Value = (String, Measurement)> {
    let ms = prop_oneof![0..20u64, 0..1_000_000u64, any::<u64>()];
    let outcome = select(
        &[PreemptionOutcome::InTime, PreemptionOutcome::Late, PreemptionOutcome::Forced, PreemptionOutcome::Refused][..],
    );
    let owner = select(&["a", "b", "c", "d", "e"][..]).prop_map(str::to_owned);
    let event =
        (ms.clone(), ms, any::<bool>(), 0..3u8, outcome).prop_map(
            |(one, other, overran, which, outcome)| match which {
                0 => Measurement::Hold { held_ms: one, lease_ms: other, overran },
                1 => Measurement::Cleanup { real_ms: one, allotted_ms: other, finished: one % 2 == 0 },
                _ => Measurement::Preemption { waited_ms: one, outcome },
            },
        );
    (owner, event)
}

fn counted(events: &[(String, Measurement)]) -> Statistics {
    let mut statistics = Statistics::default();
    events.iter().for_each(|(owner, event)| statistics.record(owner, *event));
    statistics
}

fn sum(parts: &[&Statistics]) -> Statistics {
    let mut sum = Statistics::default();
    parts.iter().for_each(|part| sum.merge(part));
    sum
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..config() })]

    /// H-73: merged counts of a fleet equal those of one observer that saw everything, in whatever order they are
    /// merged.
    #[test]
    fn sums_do_not_depend_on_their_order(
        a in proptest::collection::vec(event(), 0..20),
        b in proptest::collection::vec(event(), 0..20),
        c in proptest::collection::vec(event(), 0..20),
    ) {
        let (x, y, z) = (counted(&a), counted(&b), counted(&c));
        let all = counted(&[a, b, c].concat());
        prop_assert_eq!(&sum(&[&sum(&[&x, &y]), &z]), &all);
        prop_assert_eq!(&sum(&[&x, &sum(&[&y, &z])]), &all);
        prop_assert_eq!(&sum(&[&z, &x, &y]), &all);
        let text = serde_json::to_vec(&all).unwrap();
        prop_assert_eq!(&serde_json::from_slice::<Statistics>(&text).unwrap(), &all);
        let mut folded = all.clone();
        folded.fold_to(2);
        prop_assert!(folded.owners.len() <= 2);
        prop_assert_eq!(folded.total(), all.total());
    }

    /// H-73: a quantile is never less than the true one, and at most an eighth more.
    #[test]
    fn a_quantile_is_at_most_an_eighth_too_long(
        mut times in proptest::collection::vec(prop_oneof![0..20u64, 0..1_000_000u64, 0..1u64 << 40], 1..200), per_mille in 0..=1000u16,
    ) {
        let mut histogram = Histogram::default();
        times.iter().for_each(|time| histogram.record(*time));
        times.sort_unstable();
        let rank = (usize::from(per_mille) * times.len()).div_ceil(1000).max(1);
        let (real, told) = (times[rank - 1], histogram.quantile(per_mille).unwrap());
        prop_assert!(told >= real && told <= real + real / 8, "{told} for {real}");
    }
}

/// H-18: it is stored as never, and never ends.
#[test]
fn the_largest_lease_does_not_overflow() {
    let me = Terms::new("a", i64::MAX);
    let now = ServerNow { earliest_ms: NOW, latest_ms: NOW };
    let free = Record::default();
    let wish = Wish::Acquire { give_up_ms: i64::MAX };
    let taken = transition(SeenRecord { record: &free, modified_ms: 0 }, &me, wish, now, &RULES).unwrap();
    assert_eq!(taken.answer, Answer::Holds { until_ms: i64::MAX });
    let record = taken.record.unwrap();
    assert_eq!(record.info().timeout, i64::MAX);
    let late = ServerNow { earliest_ms: i64::MAX - 5, latest_ms: i64::MAX };
    let other = Terms::new("b", 5);
    let refused = transition(SeenRecord { record: &record, modified_ms: NOW }, &other, wish, late, &RULES);
    assert!(matches!(refused, Err(Refusal::Held(_))), "{refused:?}");
}

fn at_now(record: &Record, me: &Terms, wish: Wish<'_>) -> Result<(Option<Record>, Answer), Refusal> {
    let now = ServerNow { earliest_ms: NOW, latest_ms: NOW };
    let done = transition(SeenRecord { record, modified_ms: NOW - 10 }, me, wish, now, &RULES)?;
    Ok((done.record, done.answer))
}

fn owner(until_ms: i64, cleanup_ms: i64) -> Held {
    Held {
        id: "owner".into(),
        message: None,
        until_ms,
        priority: 0,
        waiting_ms: 5,
        cleanup_ms,
        revocation: None,
        notice_ms: None,
        granted_by: None,
    }
}

/// Once the lease is over, the requestor is next, but for clients of a higher priority.
#[test]
fn a_lower_requestor_does_not_keep_an_ended_lease_from_others() {
    let next = Requested { id: "next".into(), priority: 1, waiting_ms: 500, since_ms: NOW, until_ms: Some(i64::MAX) };
    let record = Record { owner: Some(owner(900, 0)), request: Some(next.clone()) };
    let acquire = Wish::Acquire { give_up_ms: i64::MAX };
    let taken = at_now(&record, &Terms { priority: 2, ..Terms::new("me", 5) }, acquire);
    assert!(matches!(taken, Ok((Some(_), Answer::Holds { .. }))), "{taken:?}");
    let refused = at_now(&record, &Terms { priority: 1, ..Terms::new("me", 5) }, acquire);
    assert_eq!(refused, Err(Refusal::Requested(next)));
}

/// A client that did not get the lock in time leaves no request.
#[test]
fn a_request_whose_wait_is_over_is_removed() {
    let mine = Requested { id: "me".into(), priority: 1, waiting_ms: 5, since_ms: NOW - 20, until_ms: Some(NOW - 1) };
    let record = Record { owner: Some(owner(i64::MAX, 1_000)), request: Some(mine) };
    let me = Terms { priority: 1, waiting_ms: Some(5), ..Terms::new("me", 5) };
    let (written, answer) = at_now(&record, &me, Wish::Acquire { give_up_ms: NOW - 1 }).unwrap();
    assert!(matches!(answer, Answer::Unfinished(_)), "{answer:?}");
    assert_eq!(written, Some(Record { request: None, ..record }));
}

/// The owner learns of its requestor by the record, also of one that replaces another.
#[test]
fn a_client_that_waits_is_the_requestor_of_the_record() {
    let me = Terms { priority: 2, waiting_ms: Some(5), ..Terms::new("me", 5) };
    let lower = Requested { id: "low".into(), priority: 1, waiting_ms: 7, since_ms: NOW - 3, until_ms: Some(NOW + 9) };
    for (before, since_ms) in [(None, NOW), (Some(lower), NOW - 3)] {
        let record = Record { owner: Some(owner(i64::MAX, 1_000)), request: before };
        let (written, answer) = at_now(&record, &me, Wish::Acquire { give_up_ms: NOW + 4 }).unwrap();
        assert!(matches!(answer, Answer::Waits { until_ms, .. } if until_ms == NOW + 4), "{answer:?}");
        let mine = Requested { id: "me".into(), priority: 2, waiting_ms: 5, since_ms, until_ms: Some(NOW + 4) };
        assert_eq!(written, Some(Record { request: Some(mine), ..record }));
    }
}

/// A lazy owner was asked long ago, and the requestor comes back after its turn: the notice is over, and does not begin again.
#[test]
fn a_notice_begins_once_for_each_request() {
    let mine = Requested { id: "me".into(), priority: 0, waiting_ms: 0, since_ms: 100, until_ms: None };
    let record = Record { owner: Some(Held { notice_ms: Some(30), ..owner(50, 0) }), request: Some(mine) };
    let seen = SeenRecord { record: &record, modified_ms: 100 };
    let now = ServerNow { earliest_ms: NOW, latest_ms: NOW };
    let taken = transition(seen, &Terms::new("me", 5), Wish::Acquire { give_up_ms: i64::MAX }, now, &RULES).unwrap();
    assert!(matches!(taken.answer, Answer::Holds { .. }), "{taken:?}");
}

/// Counts of zero are left out, because the statistics of all locks share a few kilobytes; the others read back.
#[test]
fn statistics_are_stored_without_zeros() {
    let mut statistics = Statistics::default();
    let outcome = PreemptionOutcome::Forced;
    statistics.record("a", Measurement::Preemption { waited_ms: 7, outcome });
    let stored = serde_json::to_value(&statistics).unwrap();
    let owner = &stored["owners"]["a"];
    assert_eq!((owner["forced"].as_u64(), owner.get("refused"), owner.get("late")), (Some(1), None, None), "{stored}");
    assert_eq!(serde_json::from_value::<Statistics>(stored).unwrap(), statistics);
}
