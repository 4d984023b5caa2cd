//! Jobs in simulated worlds: hosts that crash at any step, leaders that fail, and replies that are lost.
//!
//! The simulated servers' clock starts in November 2023, and that of the hosts is the machine's: a slot that followed a host's clock
//! would be years off.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper_jobs::{Claim, EndKind, Job, JobsAdmin, Rule, RunEnd, Skipped, Slot};
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::sim::{Settings, Sim, Trouble};
use lockkeeper_testkit::worlds::{SESSION_TIMEOUT, simulate};

const JOB: &str = "/jobs/simulated";
const HOSTS: usize = 4;
const SLOTS: usize = 6;

/// How often the work of each slot began, and how often it was seen to be recorded as a success.
#[derive(Default)]
struct Ledger {
    began: BTreeMap<String, usize>,
    recorded: BTreeMap<String, usize>,
}

/// One host: asks for each slot in turn, until it learns that the slot is done. It crashes at a random moment of one slot:
/// its task ends, or its connection is silent for longer than its session lives.
async fn host(sim: Sim, at: usize, on_crash: Rule, ledger: Arc<Mutex<Ledger>>) {
    for slot in 0..SLOTS {
        let keeper = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).simulated(sim.network());
        let name = slot.to_string();
        let (job, ledger) = (Job::new(&keeper, JOB).slot(&name).on_crash(on_crash), ledger.clone());
        let (turn, work) = (sim.clone(), sim.within(&(Duration::ZERO..Duration::from_millis(400))));
        let asks = async move {
            loop {
                match job.claim().await {
                    Ok(Claim::Run(run)) => {
                        *ledger.lock().unwrap().began.entry(name.clone()).or_default() += 1;
                        tokio::time::sleep(work).await;
                        let finished = run.finish(RunEnd::succeeded()).await;
                        if finished.recorded.is_ok() {
                            *ledger.lock().unwrap().recorded.entry(name.clone()).or_default() += 1;
                        }
                    }
                    Ok(Claim::Skipped(Skipped::Done { run, .. })) => {
                        assert_eq!(run.slot.name, name);
                        return;
                    }
                    Ok(Claim::Skipped(skipped)) => panic!("{skipped}"),
                    Err(error) => {
                        tracing::trace!(%error, at);
                        tokio::time::sleep(turn.within(&(Duration::ZERO..Duration::from_millis(200)))).await;
                    }
                }
            }
        };
        if sim.pick(HOSTS) == at {
            let crash = sim.within(&(Duration::ZERO..Duration::from_millis(600)));
            _ = tokio::time::timeout(crash, asks).await;
        } else {
            asks.await;
        }
    }
}

/// What the hosts did, and what the records say.
async fn world(seed: u64, on_crash: Rule) -> (Ledger, BTreeMap<String, Vec<EndKind>>) {
    let sim = Sim::new(seed, Settings::default());
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let hosts: Vec<_> =
        (0..HOSTS).map(|at| crate::support::spawn(host(sim.clone(), at, on_crash, ledger.clone()))).collect();
    let troubles = sim.clone();
    let trouble = crate::support::spawn(async move {
        loop {
            tokio::time::sleep(troubles.within(&(Duration::ZERO..Duration::from_millis(900)))).await;
            let client = troubles.pick(HOSTS * SLOTS);
            match troubles.pick(5) {
                0 => troubles.leader_fails(Duration::from_millis(700)),
                1 => troubles.server_fails(troubles.pick(3), Duration::from_millis(500)),
                2 => troubles.trouble(client, Trouble::Silence(SESSION_TIMEOUT * 2)),
                _ => troubles.trouble(client, Trouble::Cut),
            }
        }
    });
    for host in hosts {
        host.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    trouble.abort();
    // A last host finds what a crash has left.
    let keeper = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).simulated(sim.network());
    for slot in 0..SLOTS {
        let job = Job::new(&keeper, JOB).slot(slot.to_string()).on_crash(on_crash);
        while let Ok(Claim::Run(run)) = job.claim().await {
            *ledger.lock().unwrap().began.entry(slot.to_string()).or_default() += 1;
            _ = run.finish(RunEnd::succeeded()).await;
        }
    }
    let mut ends: BTreeMap<String, Vec<EndKind>> = BTreeMap::new();
    for run in JobsAdmin::new(&keeper).job(JOB).await.unwrap().unwrap().runs {
        ends.entry(run.slot.name.clone()).or_default().push(run.end.expect("the last host has found it").kind);
    }
    (std::mem::take(&mut *ledger.lock().unwrap()), ends)
}

/// Each slot is claimed exactly once, and its work begins at most once, whatever crashes.
#[test]
fn a_job_that_does_not_retry_runs_at_most_once() {
    let (mut crashed, mut succeeded) = (0, 0);
    for seed in 0..if is_deep() { 60 } else { 6 } {
        simulate(async {
            let (ledger, ends) = world(seed, Rule::Next).await;
            for slot in 0..SLOTS {
                let slot = slot.to_string();
                let began = ledger.began.get(&slot).copied().unwrap_or_default();
                assert!(began <= 1, "seed {seed}: the work of slot {slot} began {began} times");
                assert_eq!(ends[&slot].len(), 1, "seed {seed}: slot {slot}: {:?}", ends[&slot]);
                let is_recorded = ledger.recorded.contains_key(&slot);
                assert!(!is_recorded || ends[&slot] == [EndKind::Succeeded], "seed {seed}: slot {slot}");
                match ends[&slot][0] {
                    EndKind::Succeeded => succeeded += 1,
                    _ => crashed += 1,
                }
            }
        });
    }
    assert!(crashed > 0 && succeeded > 0, "{crashed} crashed, {succeeded} succeeded");
}

/// Each slot ends with a success, and no success runs again.
#[test]
fn a_job_that_retries_after_a_crash_runs_at_least_once() {
    let mut retried = 0;
    for seed in 0..if is_deep() { 60 } else { 6 } {
        simulate(async {
            let (ledger, ends) = world(seed, Rule::Retry { most: None }).await;
            for slot in 0..SLOTS {
                let slot = slot.to_string();
                let successes = ends[&slot].iter().filter(|end| **end == EndKind::Succeeded).count();
                assert_eq!((successes, ends[&slot].last()), (1, Some(&EndKind::Succeeded)), "seed {seed}: slot {slot}");
                assert!(ledger.began[&slot] >= 1);
                retried += ends[&slot].len() - 1;
            }
        });
    }
    assert!(retried > 0, "{retried} retried");
}

/// Two tasks of one process share a session: the second reads the records that the first has written.
#[test]
fn two_tasks_of_one_process_run_a_slot_once() {
    for seed in 0..if is_deep() { 100 } else { 8 } {
        simulate(async {
            let sim = Sim::new(seed, Settings::default());
            let keeper = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).simulated(sim.network());
            keeper.check().await.unwrap();
            let cuts = sim.clone();
            let cut = crate::support::spawn(async move {
                loop {
                    tokio::time::sleep(cuts.within(&(Duration::ZERO..Duration::from_millis(150)))).await;
                    cuts.trouble(0, Trouble::Cut);
                }
            });
            let mut tasks = Vec::new();
            for _ in 0..4 {
                let job = Job::new(&keeper, JOB).slot("1").on_crash(Rule::Retry { most: None });
                tasks.push(crate::support::spawn(async move {
                    match job.claim().await {
                        Ok(Claim::Run(run)) => Some(run.finish(RunEnd::succeeded()).await),
                        // The claim of a cut connection may stay unknown.
                        Ok(Claim::Skipped(_)) | Err(_) => None,
                    }
                }));
            }
            let mut finished = Vec::new();
            for task in tasks {
                finished.extend(task.await.unwrap());
            }
            cut.abort();
            assert!(finished.iter().all(|run| run.recorded.is_ok() || run.loss.is_some()), "seed {seed}: {finished:?}");
            let runs = JobsAdmin::new(&keeper).job(JOB).await.unwrap().unwrap().runs;
            let successes = runs.iter().filter(|run| run.has_succeeded()).count();
            assert!(successes <= 1 && finished.len() <= runs.len(), "seed {seed}: {runs:?}");
        });
    }
}

/// The hour of a slot is that of the servers, which is years before that of the hosts.
#[test]
fn a_slot_is_of_the_servers_clock_and_never_of_the_hosts() {
    simulate(async {
        let sim = Sim::new(1, Settings::default());
        let keeper = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).simulated(sim.network());
        let job = Job::new(&keeper, JOB).once_per(Slot::Hour);
        let mut names = Vec::new();
        let hours = if is_deep() { 10 } else { 3 };
        for _ in 0..3 * hours {
            match job.claim().await.unwrap() {
                Claim::Run(run) => {
                    names.push(run.slot().name.clone());
                    _ = run.finish(RunEnd::succeeded()).await;
                }
                Claim::Skipped(skipped) => assert!(matches!(skipped, Skipped::Done { .. }), "{skipped}"),
            }
            tokio::time::sleep(Duration::from_secs(20 * 60)).await;
        }
        assert_eq!((names.len(), names[0].as_str()), (hours, "2023-11-14T22+00:00"), "{names:?}");
        names.dedup();
        assert_eq!(names.len(), hours);
    });
}
