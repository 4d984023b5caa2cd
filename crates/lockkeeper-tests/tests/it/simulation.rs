//! The real library on the real server's state machine, in simulated worlds: one seed, one script, one history.
//!
//! `cargo xtask simulate` runs ten thousand worlds, `cargo xtask simulate --seed N` shows one. The worlds that found a defect
//! stay here as tests with a name.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::error::{AcquireError, SessionError};
use lockkeeper::guard::HoldState;
use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_client::{Connect, Searching};
use lockkeeper_helix::{AcquireLeaseError, HelixLock};
use lockkeeper_testkit::history::Tally;
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::sim::{Settings, Sim, Trouble};
use lockkeeper_testkit::worlds::{Family, Names, SESSION_TIMEOUT, Scenario, run, simulate};

const LOCK: &str = "/locks/simulated";

/// Checks exclusion, order, increasing tokens, deadlines, no orphaned node and no lost wake-up, whatever happens to the
/// network, the servers and the sessions.
fn explore(worlds: u64, family: Family) {
    let mut sum = Tally::default();
    // `cargo xtask simulate` runs thousands.
    let worlds = if is_deep() { worlds } else { worlds.div_ceil(6) };
    for seed in 0..worlds {
        match run(&Scenario::of(seed, family)) {
            Ok(tally) => sum.add(tally),
            Err(failure) => panic!("seed {seed} ({family:?}): {}", failure.first()),
        }
    }
    println!("{family:?}: {sum:?}");
}

#[test]
fn case_04_seeded_worlds_keep_the_contract() {
    explore(30, Family::Mutex(Names::Curator));
}

#[test]
fn seeded_worlds_keep_the_contract_with_unprotected_names() {
    explore(15, Family::Mutex(Names::Recipe));
}

#[test]
fn seeded_worlds_of_readers_and_writers_keep_the_contract() {
    explore(15, Family::Shared(Names::Curator));
}

#[test]
fn seeded_worlds_of_readers_and_writers_with_unprotected_names_keep_the_contract() {
    explore(7, Family::Shared(Names::Recipe));
}

#[test]
fn seeded_worlds_of_readers_and_writers_with_kazoos_names_keep_the_contract() {
    explore(5, Family::Shared(Names::Kazoo));
}

#[test]
fn seeded_worlds_of_permits_keep_the_contract() {
    explore(15, Family::Permits);
}

#[test]
fn seeded_worlds_of_classes_keep_the_contract() {
    explore(15, Family::Classes);
}

#[test]
fn seeded_worlds_of_kept_locks_keep_the_contract() {
    explore(15, Family::Kept);
}

#[test]
fn seeded_worlds_of_several_locks_in_one_call_keep_the_contract() {
    explore(15, Family::Several);
}

#[test]
fn seeded_worlds_of_lock_delays_keep_the_contract() {
    explore(15, Family::Delayed);
}

#[test]
fn seeded_worlds_of_leased_locks_keep_the_contract() {
    explore(15, Family::Leased);
}

#[test]
fn seeded_worlds_of_elections_keep_the_contract() {
    explore(15, Family::Elections);
}

/// For every waiting time and every position: a hold starts with half of the session timeout, and no work is stopped.
#[test]
fn a_healthy_hold_stays_healthy_in_queues_of_3_10_and_300() {
    let mut sum = Tally::default();
    for family in Family::ALL {
        for (contenders, worlds) in [(3, 12), (10, 4), (300, 1)] {
            let worlds = if is_deep() { worlds } else { worlds / 4 };
            for seed in 0..worlds {
                match run(&Scenario::queue(seed, family, contenders)) {
                    Ok(tally) => sum.add(tally),
                    Err(failure) => panic!("seed {seed} ({family:?}, {contenders}): {}", failure.first()),
                }
            }
        }
    }
    assert!(sum.trusts > sum.grants && sum.grants > if is_deep() { 2_000 } else { 50 }, "{sum:?}");
}

/// At the default session timeout. Nothing of a session is answered before its write.
#[test]
fn servers_that_need_7_s_for_a_write_keep_every_hold() {
    let mut sum = Tally::default();
    for family in Family::ALL {
        for seed in 0..2 {
            let scenario = Scenario { timeout: 30_000, slow: 6_950, ..Scenario::queue(seed, family, 3) };
            match run(&scenario) {
                Ok(tally) => sum.add(tally),
                Err(failure) => panic!("seed {seed} ({family:?}): {}", failure.first()),
            }
        }
    }
    assert!(sum.grants >= 40 && sum.trusts > sum.grants, "{sum:?}");
}

/// A network in which a name server does not answer for 5 s: the resolver then asks the next one.
struct SlowNames(Arc<dyn Connect>);

impl Connect for SlowNames {
    fn servers(&self) -> usize {
        self.0.servers()
    }

    fn connect(&self, server: usize) -> Searching {
        let found = self.0.connect(server);
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            found.await
        })
    }

    fn name(&self, server: usize) -> String {
        self.0.name(server)
    }
}

#[test]
fn a_name_whose_lookup_takes_5_s_is_connected_to() {
    simulate(async {
        let sim = Sim::new(1, Settings { servers: 1, ..Settings::default() });
        for timeout in [6, 30].map(Duration::from_secs) {
            let since = sim.elapsed();
            let names = Arc::new(SlowNames(sim.network()));
            let keeper = Lockkeeper::builder().session_timeout(timeout).simulated(names);
            keeper.mutex(LOCK).acquire().await.unwrap().release().await.unwrap();
            // At 6 s, an attempt of the first round lasts for 2 s, and the second one continues the lookup.
            assert!(sim.elapsed() - since < Duration::from_secs(6), "{:?}", sim.elapsed() - since);
        }
    });
}

#[test]
fn a_call_that_ends_during_a_lookup_names_the_lookup() {
    simulate(async {
        let sim = Sim::new(1, Settings { servers: 1, ..Settings::default() });
        let keeper = Lockkeeper::builder().simulated(Arc::new(SlowNames(sim.network())));
        let error = keeper.mutex(LOCK).acquire().timeout(Duration::from_secs(3)).await.unwrap_err();
        assert!(error.to_string().contains("DNS does not answer"), "{error}");
    });
}

/// The connection is cut 20 ms after the create while each fsync takes 0.8 s, and the session moves to a server that has not
/// applied the create yet. Without an ordered write before the look-up, the attempt would create a second node and queue behind its own
/// first one.
#[test]
fn case_08_case_33_a_cut_during_a_slow_fsync_leaves_one_node() {
    for seed in 0..if is_deep() { 1_000 } else { 50 } {
        simulate(async {
            let fixed = |millis| Duration::from_millis(millis)..Duration::from_millis(millis);
            let settings = Settings { fsync: fixed(800), lag: fixed(0), ..Settings::default() };
            let sim = Sim::new(seed, settings);
            let keeper = Lockkeeper::builder().session_timeout(Duration::from_secs(10)).simulated(sim.network());
            // The session and the parent exist already.
            keeper.mutex(LOCK).acquire().await.unwrap().release().await.unwrap();
            let created = sim.requests()["create"];
            let asking =
                crate::support::spawn(keeper.mutex(LOCK).acquire().timeout(Duration::from_secs(30)).into_future());
            while sim.requests()["create"] == created {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            sim.trouble(0, Trouble::Cut);
            let guard = asking.await.unwrap().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(sim.requests()["create"], created + 1, "seed {seed}: it did not find its own node");
            assert_eq!(sim.children(LOCK).len(), 1, "seed {seed}: a second node");
            guard.release().await.unwrap();
            assert!(sim.children(LOCK).is_empty(), "seed {seed}");
        });
    }
}

/// As with the system's clock, whose alarms another thread sets.
#[test]
fn a_simulated_holder_is_warned_of_a_loss_as_early_as_it_asks() {
    simulate(async {
        let sim = Sim::new(1, Settings::default());
        let keeper = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).simulated(sim.network());
        let lock = HelixLock::new(&keeper, "/locks/leased", Duration::from_secs(60)).strict();
        let guard = lock.acquire().await.unwrap();
        let margin = Duration::from_secs(20);
        assert_eq!(guard.nearly_lost(margin).await, HoldState::Held);
        let left = guard.valid_for();
        assert!(left <= margin && left > margin - Duration::from_secs(1), "{left:?}");
        assert_eq!(guard.nearly_lost(Duration::ZERO).await, HoldState::Lost(Loss::LeaseEnded));
    });
}

/// Runs a script that once broke a promise.
fn replay(script: &str) {
    if let Err(failure) = run(&serde_json::from_str(script).unwrap()) {
        panic!("{}", failure.first());
    }
}

/// A fenced write is dropped, and the release overtakes the read of the record that the write begins with. That read then shows
/// another hold or none.
#[test]
fn a_handle_closes_behind_a_dropped_fenced_write_of_a_released_lease() {
    replay(
        r#"{"noise":35,"family":"Leased","lasting":false,"lives":[[{"pause":228,"want":{"Leased":{"lease":744,"priority":1,"strict":false}},"call":"Try","steps":1,"change":"None","heeds":false,"end":"Release"},{"pause":0,"want":{"Leased":{"lease":3804,"priority":1,"strict":false}},"call":"Wait","steps":1,"change":"Renew","heeds":false,"end":"Drop"},{"pause":232,"want":{"Leased":{"lease":8909,"priority":1,"strict":false}},"call":"Wait","steps":0,"change":{"Write":28},"heeds":false,"end":"Release"}],[{"pause":294,"want":{"Leased":{"lease":250,"priority":1,"strict":true}},"call":"Wait","steps":1,"change":"None","heeds":false,"end":"Forget"},{"pause":0,"want":{"Leased":{"lease":1416,"priority":2,"strict":true}},"call":"Wait","steps":0,"change":"None","heeds":false,"end":"Release"}],[{"pause":0,"want":{"Leased":{"lease":1641,"priority":0,"strict":false}},"call":"Wait","steps":0,"change":"None","heeds":false,"end":"Release"}],[{"pause":0,"want":{"Leased":{"lease":3169,"priority":1,"strict":true}},"call":"Wait","steps":0,"change":"None","heeds":false,"end":"Release"}]],"handles":6,"timeout":10896,"slow":2029,"strikes":[],"pleas":[{"after":438,"act":"Evict"},{"after":2927,"act":"RevokeWaiter"}]}"#,
    );
}

/// T-09, N-21: a waiter sends only heartbeats, also when the holder that it once read has left.
#[test]
fn an_idle_waiter_sends_only_heartbeats() {
    simulate(async {
        let sim = Sim::new(1, Settings::default());
        let keeper = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).simulated(sim.network());
        let mutex = keeper.mutex(LOCK);
        let first = mutex.acquire().await.unwrap();
        let second = crate::support::spawn(mutex.acquire().into_future());
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Young enough that it still wants to read the holder, which leaves first.
        let third = crate::support::spawn(mutex.acquire().timeout(Duration::from_secs(3600)).into_future());
        while sim.children(LOCK).len() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        // After 10 s, the holder writes when it was granted the lock.
        tokio::time::sleep(Duration::from_secs(11)).await;
        let mut before = sim.requests();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let mut after = sim.requests();
        // The session sends heartbeats for the holder and the next waiter: one write per fifth of its timeout.
        let heartbeats = after.remove("check").unwrap() - before.remove("check").unwrap_or(0);
        assert!(heartbeats as u128 <= 60_000 / (SESSION_TIMEOUT / 5).as_millis() + 1, "{heartbeats}");
        after.insert("ping", before["ping"]);
        assert_eq!(before, after);
        second.release().await.unwrap();
        third.await.unwrap().unwrap().release().await.unwrap();
    });
}

/// The servers do not answer for a second before the deadline, which is not long enough to call them unreachable.
#[test]
fn a_wait_that_ends_within_a_short_silence_is_a_timeout() {
    for (silent_from, silent_for, unreachable) in [(3_300, 1_100, false), (1_500, 3_000, true)] {
        simulate(async {
            let sim = Sim::new(1, Settings::default());
            let network =
                |timeout| Lockkeeper::builder().session_timeout(Duration::from_secs(timeout)).simulated(sim.network());
            let (waiting, holding) = (network(2), network(10));
            // Client 0 is the one that is silenced.
            waiting.mutex("/locks/aside").acquire().await.unwrap().release().await.unwrap();
            let guard = holding.mutex(LOCK).acquire().await.unwrap();
            let timeout = Duration::from_secs(4);
            let waiter = crate::support::spawn(waiting.mutex(LOCK).acquire().timeout(timeout).into_future());
            tokio::time::sleep(Duration::from_millis(silent_from)).await;
            sim.trouble(0, Trouble::Silence(Duration::from_millis(silent_for)));
            let outcome = waiter.await.unwrap();
            assert_eq!(
                matches!(outcome, Err(AcquireError::Session(SessionError::Unreachable { .. }))),
                unreachable,
                "{outcome:?}"
            );
            assert_eq!(matches!(outcome, Err(AcquireError::Timeout { .. })), !unreachable, "{outcome:?}");
            guard.release().await.unwrap();
        });
    }
}

/// A call with a short deadline uses what its session knows from the calls before: their requests have no answer either. The first
/// calls of a silence end before that shows, and an answer ends it.
#[test]
fn short_calls_on_a_silent_server_are_unreachable_once_a_request_is_unanswered_for_250_ms() {
    for trouble in [Trouble::Silence(Duration::from_secs(5)), Trouble::PingsOnly] {
        simulate(async {
            let sim = Sim::new(1, Settings::default());
            let keeper = Lockkeeper::builder().session_timeout(Duration::from_secs(30)).simulated(sim.network());
            let (short, free) = (Duration::from_millis(100), keeper.mutex("/locks/free"));
            free.acquire().await.unwrap().release().await.unwrap();
            let leased = HelixLock::new(&keeper, "/locks/leased", Duration::from_secs(60));
            leased.acquire().await.unwrap().release().await.unwrap();
            sim.trouble(0, trouble);
            let began = sim.elapsed();
            let mut timed_out = Vec::new();
            while sim.elapsed() - began < Duration::from_secs(4) {
                let (lock, lease) = tokio::join!(
                    free.acquire().timeout(short).into_future(),
                    leased.acquire().timeout(short).into_future()
                );
                let since = sim.elapsed() - began;
                match (lock, lease) {
                    (
                        Err(AcquireError::Session(SessionError::Unreachable { .. })),
                        Err(AcquireLeaseError::Session(SessionError::Unreachable { .. })),
                    ) => {}
                    (Err(AcquireError::Timeout { .. }), Err(AcquireLeaseError::Timeout { .. })) => {
                        timed_out.push(since)
                    }
                    other => panic!("{trouble:?}, after {since:?}: {other:?}"),
                }
            }
            assert!(timed_out.len() == 2 && timed_out[1] < Duration::from_millis(250), "{trouble:?}: {timed_out:?}");
        });
    }
}
