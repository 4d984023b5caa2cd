//! Tests of the tools that find and shrink failures, on scripts that are known to fail.

use std::collections::BTreeMap;
use std::time::Duration;

use super::life::lived;
use super::{Blow, Call, Family, Names, Problem, Scenario, Strike, run, shrink};
use crate::judged::history::{Claim, Promises, What, judge};
use crate::judged::sim::Fault;

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
            Ok(_) => lived(scenario).history,
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
    let mut losses = 0;
    for family in Family::ALL {
        let mut sum = crate::judged::history::Tally::default();
        let mut placed = 0;
        // A few, and the first calm one: only there is a hold's trust judged.
        let (few, grants) = if crate::is_deep() { (24, 200) } else { (8, 66) };
        let calm = (few..).find(|seed| Scenario::of(*seed, family).strikes.is_empty()).unwrap();
        for seed in (0..few).chain([calm]) {
            let scenario = Scenario::of(seed, family);
            let history = lived(&scenario).history;
            placed += history.iter().filter(|event| format!("{:?}", event.what).contains("Some(QueuePosition")).count();
            sum.add(judge(&history, &scenario.promises()).tally);
        }
        assert!(
            sum.grants > grants
                && sum.refusals > grants / 2
                && sum.looks > sum.grants
                && (sum.trusts > 0 || family == Family::Leased),
            "{family:?}: {sum:?}"
        );
        assert_eq!(placed > 0, family != Family::Leased, "{family:?}");
        assert!(!crate::is_deep() || sum.losses > 0, "{family:?}: {sum:?}");
        losses += sum.losses;
    }
    assert!(losses > 0);
}

/// The worlds contain every fault that they promise: each one takes effect, not only in the script.
#[test]
fn every_fault_takes_effect_in_seeded_worlds() {
    let mut sum = BTreeMap::new();
    for seed in 0..210 {
        if Fault::ALL.iter().all(|fault| sum.get(fault).is_some_and(|count| *count > 0)) {
            break;
        }
        let family = Family::ALL[usize::try_from(seed).unwrap() % Family::ALL.len()];
        for (fault, count) in lived(&Scenario::of(seed, family)).sim.faults() {
            *sum.entry(fault).or_insert(0) += count;
        }
    }
    println!("{sum:?}");
    for fault in Fault::ALL {
        assert!(sum.get(&fault).is_some_and(|count| *count > 0), "{fault:?} never takes effect: {sum:?}");
    }
}

/// Contenders notice each kind of fault: some history differs in more than its times from that of the same world
/// without faults.
#[test]
fn contenders_notice_every_kind_of_fault() {
    let session = u64::try_from(super::SESSION_TIMEOUT.as_millis()).unwrap();
    let blows = [
        Blow::Cut(0),
        Blow::Silence(0, session),
        Blow::Slow(0, 3_000),
        Blow::PingsOnly(0),
        Blow::Server(0, 3_000),
        Blow::Leader(1_000),
        Blow::Leader(session * 2),
        Blow::SlowDisk(1_000, 3_000),
    ];
    let steps = |scenario: &Scenario| -> Vec<(u32, What)> {
        let timeless = lived(scenario).history.into_iter().map(|event| match event.what {
            What::Trusted { hold, sure, .. } => (event.contender, What::Trusted { hold, sure, left: Duration::ZERO }),
            what => (event.contender, what),
        });
        timeless.collect()
    };
    for blow in blows {
        let noticed = (0..20).any(|seed| {
            let mut scenario = Scenario::of(seed, Family::Mutex(Names::Curator));
            scenario.strikes.clear();
            let calm = steps(&scenario);
            scenario.strikes = vec![Strike { after: 1_500, blow }; 3];
            steps(&scenario) != calm
        });
        assert!(noticed, "nothing changes with {blow:?}");
    }
}

/// Set in a process that only prints the digests of its histories.
const PRINTS: &str = "LOCKKEEPER_TEST_PRINTS_DIGESTS";

/// The scenarios whose histories are compared.
fn compared() -> impl Iterator<Item = Scenario> {
    let (families, seeds) = if crate::is_deep() { (Family::ALL.len(), 300) } else { (3, 1) };
    Family::ALL
        .into_iter()
        .take(families)
        .flat_map(move |family| (0..seeds).map(move |seed| Scenario::of(seed, family)))
}

/// One seed gives one history: the same events at the same times, and the same bytes on every link. In one process and
/// in two, because hash tables, tokio's random numbers, process ids and the wall clock differ.
#[test]
fn one_seed_gives_one_history_byte_for_byte() {
    if std::env::var_os(PRINTS).is_some() {
        for scenario in compared() {
            println!("digest {}", lived(&scenario).sim.digest());
        }
        return;
    }
    // Beside this process: both need a core.
    let other = std::thread::spawn(|| {
        let name = "judged::worlds::tests::one_seed_gives_one_history_byte_for_byte";
        let mut other = std::process::Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", name, "--nocapture"]).env(PRINTS, "1").output().unwrap()
    });
    let mut digests = Vec::new();
    for scenario in compared() {
        let (first, second) = (lived(&scenario), lived(&scenario));
        let differs = first.history.iter().zip(&second.history).position(|(one, other)| one != other);
        assert_eq!(differs, None, "{scenario:?}: events differ");
        assert_eq!(first.history.len(), second.history.len(), "{scenario:?}");
        assert_eq!(first.sim.digest(), second.sim.digest(), "{scenario:?}: bytes differ");
        digests.push(first.sim.digest());
    }
    let printed = String::from_utf8(other.join().unwrap().stdout).unwrap();
    let others: Vec<u64> = printed.lines().filter_map(|line| line.strip_prefix("digest ")?.parse().ok()).collect();
    assert_eq!(digests, others, "another process sends other bytes");
}
