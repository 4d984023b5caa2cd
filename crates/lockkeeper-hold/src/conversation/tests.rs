use super::*;

const ONE: ClientId = ClientId(1);
const TWO: ClientId = ClientId(2);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn lock() -> HeldLock {
    HeldLock { path: "/locks/a".to_owned(), node: "/locks/a/n-0000000001".to_owned(), token: Some("7".to_owned()) }
}

fn acquired() -> Happened {
    Happened::Acquired { locks: vec![lock()], session_timeout: seconds(30), valid_until: seconds(30) }
}

fn asked(reason: &str) -> Happened {
    let mut request = Revocation::default();
    request.reason = Some(reason.to_owned());
    Happened::Asked { path: "/locks/a".to_owned(), request }
}

fn said(word: Word) -> Happened {
    Happened::Said(ONE, Ok(word))
}

/// A conversation that holds until 30 s, bound to its first client.
fn held() -> Conversation {
    let mut talk = Conversation::new(Bound::To(ONE));
    talk.handle(Happened::Came(ONE));
    talk.handle(acquired());
    talk
}

fn told(steps: Vec<Step>) -> Vec<Event> {
    let event = |step| match step {
        Step::Tell(_, event) => event,
        other => panic!("{other:?}"),
    };
    steps.into_iter().map(event).collect()
}

fn is_error(steps: Vec<Step>, what: &str) -> bool {
    matches!(&told(steps)[..], [Event::Error { message, hint }] if message.contains(what) && !hint.is_empty())
}

#[test]
fn a_wait_is_told_when_it_changes_and_ends_with_the_grant() {
    let mut talk = Conversation::new(Bound::To(ONE));
    assert!(matches!(&told(talk.handle(Happened::Came(ONE)))[..], [Event::Hello { protocol: 1, .. }]));
    let waits = |ahead| Happened::Waits { path: "/locks/a".to_owned(), ahead, holder: Some("build@ci-7".to_owned()) };
    assert_eq!(told(talk.handle(waits(2))).len(), 1);
    assert_eq!(told(talk.handle(waits(2))), []);
    assert_eq!(told(talk.handle(waits(1))).len(), 1);
    assert_eq!(told(talk.handle(acquired())), [Event::acquired(&[lock()], 30_000, 30_000_000_000)]);
    assert_eq!(told(talk.handle(waits(0))), [], "of a wait that is over");
}

/// A client that believes an earlier time gives up too soon; one that believes a later one, too late.
#[test]
fn the_time_of_trust_only_grows_and_is_told_once() {
    let mut talk = held();
    let renewed = |at| Happened::Renewed { valid_until: seconds(at) };
    assert_eq!(told(talk.handle(renewed(40))), [Event::Valid { valid_until_ns: 40_000_000_000 }]);
    assert_eq!(told(talk.handle(renewed(40))), []);
    assert_eq!(told(talk.handle(renewed(35))), []);
    let suspected = || Happened::State(HoldState::Suspected);
    assert_eq!(told(talk.handle(suspected())), [Event::Suspected { valid_until_ns: 40_000_000_000 }]);
    assert_eq!(told(talk.handle(suspected())), []);
    let verified = Happened::Verified { client: ONE, valid_until: seconds(50), problem: None };
    assert_eq!(told(talk.handle(verified)), [Event::Checked { valid_until_ns: 50_000_000_000 }]);
    assert_eq!(told(talk.handle(renewed(50))), [], "it was told in the answer");
}

#[test]
fn after_the_last_event_nothing_is_told_and_nothing_done() {
    let loss = |talk: &mut Conversation| talk.handle(Happened::State(HoldState::Lost(Loss::SessionExpired)));
    let mut talk = held();
    assert_eq!(loss(&mut talk), [Step::Tell(To::All, Event::lost(Loss::SessionExpired)), Step::End]);
    let later = [
        Happened::Renewed { valid_until: seconds(90) },
        said(Word::Release),
        said(Word::Check),
        Happened::BondEnded,
        Happened::Gone(Ok(None)),
    ];
    for happened in later {
        assert_eq!(talk.handle(happened.clone()), [], "{happened:?}");
    }
}

/// Whatever ends the hold, the locks are released once, and the client is told when the servers have confirmed it.
#[test]
fn a_release_is_asked_for_once_and_told_when_it_is_confirmed() {
    for end in [said(Word::Release), Happened::Left(ONE), Happened::BondEnded] {
        let mut talk = held();
        let is_asked = matches!(end, Happened::Said(..));
        assert_eq!(talk.handle(end.clone()), [Step::Release { is_asked }], "{end:?}");
        for again in [
            said(Word::Release),
            Happened::Left(ONE),
            Happened::BondEnded,
            Happened::Renewed { valid_until: seconds(60) },
        ] {
            assert_eq!(talk.handle(again.clone()), [], "{again:?} after {end:?}");
        }
        assert!(is_error(talk.handle(said(Word::Check)), "is not held"));
        assert_eq!(
            talk.handle(Happened::Gone(Ok(None))),
            [Step::Tell(To::All, Event::Released { message: None }), Step::End]
        );
    }
    // The servers say that it was over before.
    let mut talk = held();
    talk.handle(said(Word::Release));
    let lost = talk.handle(Happened::Gone(Err(Loss::Removed)));
    assert_eq!(lost, [Step::Tell(To::All, Event::lost(Loss::Removed)), Step::End]);
}

#[test]
fn a_release_ends_a_wait_and_another_client_does_not_end_a_hold_that_is_bound_to_one() {
    let mut talk = Conversation::new(Bound::To(ONE));
    assert_eq!(talk.handle(Happened::Left(TWO)), []);
    assert_eq!(talk.handle(said(Word::Release)), [Step::Release { is_asked: true }]);
    assert_eq!(talk.handle(acquired()), [], "it came too late, and is released");
    let mut talk = Conversation::new(Bound::Otherwise { starter: ONE, bond: "for 8h".to_owned() });
    let greeting = told(talk.handle(Happened::Came(ONE)));
    assert!(matches!(&greeting[..], [Event::Hello { bond: Some(bond), .. }] if bond == "for 8h"), "{greeting:?}");
    assert_eq!(talk.clone().handle(Happened::Left(ONE)), [Step::Release { is_asked: false }], "nobody waits for it");
    talk.handle(acquired());
    assert_eq!(talk.clone().handle(Happened::Left(ONE)), [Step::Release { is_asked: false }], "nobody knows of it");
    assert_eq!(talk.handle(said(Word::Keep)), []);
    assert_eq!(talk.handle(Happened::Left(ONE)), []);
    assert!(is_error(held().handle(said(Word::Keep)), "not this client's to keep"));
}

/// A hold that is bound to something else, and whose starter has left. A second client uses it.
fn kept() -> Conversation {
    let mut talk = Conversation::new(Bound::Otherwise { starter: ONE, bond: "for 8h".to_owned() });
    for happened in [Happened::Came(ONE), acquired(), said(Word::Keep), Happened::Left(ONE), Happened::Came(TWO)] {
        talk.handle(happened);
    }
    talk
}

/// Whatever ends it, whoever uses the hold ends that before another contender can begin, if it hears or not.
#[test]
fn a_hold_is_released_when_those_who_use_it_have_left_or_know_that_it_is_over() {
    const THREE: ClientId = ClientId(3);
    let release = |client| Happened::Said(client, Ok(Word::Release));
    for (end, is_asked) in [(Happened::BondEnded, false), (release(THREE), true)] {
        let mut talk = kept();
        talk.handle(Happened::Came(THREE));
        if !is_asked {
            talk.handle(Happened::Left(THREE));
        }
        let ending = vec![Step::Tell(To::All, Event::Ending), Step::Await(seconds(30))];
        assert_eq!(talk.handle(end), ending);
        assert_eq!(talk.handle(Happened::Renewed { valid_until: seconds(60) }), [], "nobody trusts it for longer");
        assert_eq!(told(talk.handle(Happened::Came(ClientId(4))))[1..], [Event::Ending]);
        assert_eq!(talk.handle(release(ClientId(4))), []);
        for last in [Happened::Left(TWO), release(TWO), Happened::TrustEnded] {
            assert_eq!(talk.clone().handle(last), [Step::Release { is_asked }]);
        }
        let lost = talk.handle(Happened::State(HoldState::Lost(Loss::Removed)));
        assert_eq!(lost, [Step::Tell(To::All, Event::lost(Loss::Removed)), Step::End]);
    }
}

#[test]
fn whoever_comes_after_a_loss_is_told_until_the_bond_is_over_or_somebody_releases() {
    for end in [Happened::BondEnded, Happened::Said(TWO, Ok(Word::Release))] {
        let mut talk = kept();
        assert!(!talk.is_remembered());
        talk.handle(Happened::State(HoldState::Lost(Loss::Removed)));
        assert!(talk.is_remembered());
        assert_eq!(told(talk.handle(Happened::Came(TWO)))[1..], [Event::lost(Loss::Removed)]);
        assert_eq!(talk.handle(end), [Step::End]);
    }
    let mut talk = held();
    talk.handle(Happened::State(HoldState::Lost(Loss::Removed)));
    assert!(!talk.is_remembered(), "its client has heard it");
}

#[test]
fn questions_are_limited_and_each_is_answered() {
    let mut talk = held();
    for _ in 0..CHECKS {
        assert_eq!(talk.handle(said(Word::Check)), [Step::Verify(ONE)]);
    }
    assert!(is_error(talk.handle(said(Word::Check)), "16 questions"));
    let verified = Happened::Verified { client: ONE, valid_until: seconds(50), problem: None };
    assert_eq!(told(talk.handle(verified)).len(), 1);
    assert_eq!(talk.handle(said(Word::Check)), [Step::Verify(ONE)]);
}

#[test]
fn a_request_is_told_and_refused_once() {
    let mut talk = held();
    assert!(is_error(talk.handle(said(Word::Refuse { why: "busy".to_owned() })), "nobody asks"));
    let event = Event::Asked { path: "/locks/a".to_owned(), by: None, why: Some("deploy".to_owned()) };
    assert_eq!(told(talk.handle(asked("deploy")))[..], std::slice::from_ref(&event)[..]);
    // A client that comes later knows what the others know.
    let greeted = told(talk.handle(Happened::Came(TWO)));
    assert_eq!(greeted[1..], [Event::acquired(&[lock()], 30_000, 30_000_000_000), event]);
    assert_eq!(talk.handle(said(Word::Refuse { why: "busy".to_owned() })), [Step::Refuse("busy".to_owned())]);
    assert!(is_error(talk.handle(said(Word::Refuse { why: "busy".to_owned() })), "nobody asks"));
}

#[test]
fn a_client_that_makes_way_waits_again() {
    let mut talk = held();
    assert_eq!(told(talk.handle(Happened::Wanted)), [Event::Wanted]);
    assert_eq!(talk.handle(said(Word::MakeWay)), [Step::MakeWay]);
    assert!(is_error(talk.handle(said(Word::Check)), "is not held"));
    let again = Happened::Acquired { locks: vec![lock()], session_timeout: seconds(30), valid_until: seconds(20) };
    // The time of the hold before counts no more.
    assert_eq!(told(talk.handle(again)), [Event::acquired(&[lock()], 30_000, 20_000_000_000)]);
    assert_eq!(told(talk.handle(Happened::Renewed { valid_until: seconds(25) })).len(), 1);
}

#[test]
fn a_bad_line_has_no_effect_but_its_error() {
    let mut talk = held();
    let bad = Happened::Said(TWO, crate::protocol::parse(b"release"));
    let [Step::Tell(To::One(TWO), Event::Error { message, hint })] = &talk.handle(bad)[..] else { panic!() };
    assert!(message.contains("release") && hint.contains(r#"{"do": "release"}"#), "{message}; {hint}");
    assert_eq!(talk.handle(said(Word::Check)), [Step::Verify(ONE)]);
    let refused = Happened::Verified { client: ONE, valid_until: seconds(30), problem: Some("no right".to_owned()) };
    assert!(is_error(talk.handle(refused), "no right"));
    assert_eq!(talk.handle(said(Word::Check)), [Step::Verify(ONE)]);
}
