//! Tests of the tools that find and shrink failures, on scripts that are known to fail.

use super::{Blow, Call, Family, Names, Problem, Scenario, run, shrink};
use crate::judged::history::{Claim, Promises, judge};

/// An artificial failure with two causes: only these two are left.
#[test]
fn a_failing_script_shrinks_to_its_causes() {
    let family = Family::Mutex(Names::Curator);
    let bad = |scenario: &Scenario| {
        let leader = scenario.strikes.iter().any(|strike| matches!(strike.blow, Blow::Leader(_)));
        leader && scenario.lives.iter().flatten().any(|turn| turn.call == Call::Try)
    };
    let scenario = (0..).map(|seed| Scenario::of(seed, family)).find(bad).unwrap();
    let smallest = shrink(&scenario, bad);
    assert_eq!((smallest.strikes.len(), smallest.lives.len(), smallest.pleas.len()), (1, 1, 0), "{smallest:?}");
    let turn = smallest.lives[0][0];
    assert!(smallest.lives[0].len() == 1 && turn.steps <= 1 && turn.pause == 0, "{turn:?}");
}

/// The same with a real run: under a strict judge a script fails, is shrunk to few turns, printed and read back.
#[test]
fn a_failing_world_is_cut_down_printed_and_replayed() {
    let strict = |scenario: &Scenario| {
        let mut history = match run(scenario) {
            Ok(_) => super::life::history(scenario),
            Err(failure) => failure.history,
        };
        history.retain(|event| event.lock == 0);
        let promises = Promises { idle: std::time::Duration::from_millis(12), ..scenario.promises() };
        let late = |found: &crate::judged::history::Violation| found.claim == Claim::WakeUp;
        judge(&history, &promises).violations.into_iter().find(late)
    };
    let family = Family::Mutex(Names::Curator);
    let scenario = (0..).map(|seed| Scenario::of(seed, family)).find(|scenario| strict(scenario).is_some()).unwrap();
    let smallest = shrink(&scenario, |scenario| strict(scenario).is_some());
    assert!(smallest.lives.iter().map(Vec::len).sum::<usize>() <= 3, "{smallest:?}");
    let problems = vec![Problem::Broken(strict(&smallest).unwrap())];
    let failure = super::Failure { problems, history: Vec::new() };
    let test = failure.test("found", &smallest);
    let script = test.split('#').find(|part| part.starts_with("\"{")).unwrap().trim_matches('"');
    let read: Scenario = serde_json::from_str(script).unwrap();
    assert_eq!(read, smallest);
    assert_eq!(strict(&read), strict(&smallest), "a script stands for one history and no other");
}

/// Worlds contain what they should: comparable positions, losses, changes of holds.
#[test]
fn worlds_are_not_empty() {
    for family in Family::ALL {
        let mut sum = crate::judged::history::Tally::default();
        let mut placed = 0;
        for seed in 0..24 {
            let scenario = Scenario::of(seed, family);
            let history = super::life::history(&scenario);
            placed += history.iter().filter(|event| format!("{:?}", event.what).contains("Some(Place")).count();
            sum.add(judge(&history, &scenario.promises()).tally);
        }
        assert!(
            sum.grants > 600 && sum.refusals > 300 && sum.losses > 0 && sum.looks > sum.grants && sum.trusts > 0,
            "{family:?}: {sum:?}"
        );
        assert_eq!(placed > 0, !matches!(family, Family::Permits), "{family:?}");
    }
}
